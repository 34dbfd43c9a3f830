//! One job of a sweep on processes: trials until one of them ends it.
//!
//! What fails on processes ends the job: a rank that died cannot be called back. So a sweep is many jobs, one after the
//! other (see [`jobs`](super::jobs)), each of which goes on after the trial that ended the one before. Each rank leaves
//! what it saw in a folder: no message can be relied on when ranks have failed.

use super::{Calls, End, Position, Subject, all_right, built, judge, kinds, on_rank};
use crate::case::Case;
use crate::faults::Outcome;
use crate::harness::On;
use crate::processes::Group;
use crate::run::Options;
use serde::{Deserialize, Serialize};
use shard_comm::{Communicator, Fault, LaunchError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What a job is told: where to leave its results, where to begin, and how long to go on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub(super) folder: PathBuf,
    pub(super) from: Position,
    pub(super) seconds: Option<f64>,
}

impl Task {
    /// The variable that holds a task.
    pub(super) const VARIABLE: &str = "SHARD_FAULTS_TASK";

    /// That of this process, if it is one of a job.
    pub fn given() -> Option<Self> {
        serde_json::from_str(&std::env::var(Self::VARIABLE).ok()?).ok()
    }

    /// Where rank 0 writes a line for every trial that the job survived.
    pub(super) fn survived(&self) -> PathBuf {
        self.folder.join("survived")
    }

    /// Where a rank tells how it left the trial that ended the job.
    pub(super) fn last(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("last-{rank}"))
    }
}

/// A trial that the job survived.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Survived {
    pub(super) at: Position,
    pub(super) op: String,
    pub(super) what: String,
    pub(super) outcome: Outcome,
}

/// How a rank left the trial that ended the job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Last {
    pub(super) at: Position,
    pub(super) op: String,
    pub(super) what: String,
    pub(super) rank: usize,
    pub(super) call: u64,
    pub(super) end: End,
}

/// How long ranks wait for one another's words before they go.
const GRACE: Duration = Duration::from_secs(10);

/// Does trials from the task's position on, until one ends the job or time is over.
///
/// # Collective
/// All processes of a job, with the same arguments.
///
/// # Errors
/// What MPI reports at the start, and results that cannot be written.
pub fn work(cases: &[Case], options: &Options, task: &Task) -> Result<(), String> {
    let group = Group::start(options.patience).map_err(|e: LaunchError| e.to_string())?;
    let done = trials(&group, cases, options, task);
    group.end();
    done
}

fn trials(group: &Group, cases: &[Case], options: &Options, task: &Task) -> Result<(), String> {
    let started = Instant::now();
    let late = || {
        task.seconds
            .is_some_and(|s| started.elapsed().as_secs_f64() >= s)
    };
    let text = |e: std::io::Error| format!("{}: {e}", task.folder.display());
    let mut log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(task.survived())
        .map_err(text)?;
    let built = built(cases);
    let rounds = if task.seconds.is_some() {
        usize::MAX
    } else {
        1
    };
    for round in task.from.round..rounds {
        let first = if round == task.from.round {
            task.from.case
        } else {
            0
        };
        for (place, &(case, apply)) in built.iter().enumerate().skip(first) {
            if group.of_first(late())? {
                return Ok(());
            }
            let Some(mut subject) = Subject::draw(case, apply, options, round) else {
                continue;
            };
            subject.trial.on = On::Host;
            let Some(calls) = all_right(run(group, &subject, &[])?) else {
                continue;
            };
            for kind in kinds(options) {
                let at = Position {
                    round,
                    case: place,
                    kind,
                };
                let Some(fault) = subject.fault(options.seed, at, &calls) else {
                    continue;
                };
                if at < task.from {
                    continue;
                }
                let mine = of_rank(group, &subject, &[fault])?;
                let ends = match group.all(|| mine.clone()) {
                    Ok(ends) => ends.into_iter().flatten().map(|(end, _)| end),
                    Err(_) => {
                        let last = Last {
                            at,
                            op: case.op.clone(),
                            what: subject.describe(fault),
                            rank: fault.rank,
                            call: fault.call,
                            // Who is no member has seen nothing.
                            end: mine.map_or(End::Right, |(end, _)| end),
                        };
                        return leave(task, group, &last).map_err(text);
                    }
                };
                if group.rank() == 0 {
                    let line = Survived {
                        at,
                        op: case.op.clone(),
                        what: subject.describe(fault),
                        outcome: judge(ends, fault),
                    };
                    let mut line = serde_json::to_vec(&line).map_err(|e| e.to_string())?;
                    line.push(b'\n');
                    log.write_all(&line).map_err(text)?;
                }
            }
        }
    }
    Ok(())
}

/// What all ranks of a trial ended with.
fn run(
    group: &Group,
    subject: &Subject<'_>,
    faults: &[Fault],
) -> Result<Vec<(End, Calls)>, String> {
    let mine = of_rank(group, subject, faults)?;
    let all = group.all(|| mine)?;
    Ok(all.into_iter().flatten().collect())
}

/// What this rank of a trial ended with; `None` if it is none.
fn of_rank(
    group: &Group,
    subject: &Subject<'_>,
    faults: &[Fault],
) -> Result<Option<(End, Calls)>, String> {
    let Some(comm) = group.split(subject.mesh.size())? else {
        return Ok(None);
    };
    let comm: Rc<dyn Communicator> = comm;
    let (case, apply) = (subject.case, subject.apply);
    let (mesh, trial) = (&subject.mesh, &subject.trial);
    let end = group.catch(|| on_rank(comm, case, apply, mesh, trial, faults));
    Ok(Some(match end {
        Ok(end) => end,
        Err(LaunchError::Panicked { message, .. }) => (End::Panicked(message), Calls::default()),
        Err(other) => return Err(other.to_string()),
    }))
}

/// Leaves this rank's last word, and waits for those of the others.
fn leave(task: &Task, group: &Group, last: &Last) -> std::io::Result<()> {
    let path = task.last(group.rank());
    // Whole, or not there.
    let partial = path.with_extension("part");
    std::fs::write(&partial, serde_json::to_vec(last)?)?;
    std::fs::rename(&partial, &path)?;
    let waits = Instant::now();
    let there = |p: &Path| p.exists();
    while !(0..group.size()).all(|rank| there(&task.last(rank))) && waits.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
