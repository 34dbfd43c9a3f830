//! A sweep on processes: jobs of `mpirun`, one after the other.

use super::processes::{Last, Survived, Task};
use super::{Outcome, Position, Sweep, judge};
use shard_comm::{Fault, FaultKind};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What Open MPI, 4 and 5, must be told to start more processes than there are cores, and as root; others take no note.
const PERMISSIONS: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// A job that says nothing for so many times the patience of its ranks hangs.
const PATIENCE: u32 = 5;

/// Starts this program again under `mpirun` (`MPIRUN` names another launcher) with these arguments, as often as jobs
/// end before the time of `budget` is over, or all cases are done.
///
/// # Errors
/// If jobs cannot be started, or end without a word.
pub fn sweep(
    ranks: usize,
    arguments: &[String],
    budget: Option<Duration>,
    patience: Duration,
) -> Result<Sweep, String> {
    let started = Instant::now();
    let mut found = Sweep::default();
    let mut from = Position::default();
    loop {
        let left = budget.map(|b| b.saturating_sub(started.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(found);
        }
        let folder = Folder::new()?;
        let task = Task {
            folder: folder.0.clone(),
            from,
            seconds: left.map(|left| left.as_secs_f64()),
        };
        let output = job(ranks, arguments, &task, patience)?;
        if let Ok(lines) = std::fs::read_to_string(task.survived()) {
            for line in lines.lines() {
                let line: Survived = serde_json::from_str(line).map_err(|e| e.to_string())?;
                found.add(line.at, &line.op, line.outcome, || line.what);
            }
        }
        let Some(output) = output else {
            found.broken.push(format!("a job of {ranks} ranks hangs"));
            return Ok(found);
        };
        let last: Vec<Option<Last>> = (0..ranks).map(|rank| read(&task.last(rank))).collect();
        let Some(one) = last.iter().flatten().next() else {
            return match output.status.success() {
                true => Ok(found),
                false => Err(format!(
                    "a job of {ranks} ranks ended without a word: {}",
                    said(&output)
                )),
            };
        };
        let (at, op, what) = (one.at, one.op.clone(), one.what.clone());
        let fault = Fault {
            rank: one.rank,
            call: one.call,
            kind: FaultKind::ALL[at.kind],
        };
        let silent = last.iter().position(Option::is_none);
        let outcome = match silent {
            Some(rank) => Outcome::Broken(format!("rank {rank} left without a word")),
            None => judge(last.into_iter().flatten().map(|last| last.end), fault),
        };
        // A job that a failure ended must not look as if all were well.
        let outcome = match outcome {
            Outcome::Caught(_) if output.status.success() => {
                Outcome::Broken("mpirun reports success after a failure".to_owned())
            }
            other => other,
        };
        found.add(at, &op, outcome, || what);
        from = Position {
            kind: at.kind + 1,
            ..at
        };
    }
}

/// Runs a job; `None` if it hangs, and had to be ended.
fn job(
    ranks: usize,
    arguments: &[String],
    task: &Task,
    patience: Duration,
) -> Result<Option<Output>, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mpirun = std::env::var_os("MPIRUN").unwrap_or_else(|| "mpirun".into());
    let told = serde_json::to_string(task).map_err(|e| e.to_string())?;
    let mut child = Command::new(&mpirun)
        .args(["-n", &ranks.to_string()])
        .arg(program)
        .args(arguments)
        .env(Task::VARIABLE, told)
        .envs(PERMISSIONS)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", mpirun.display()))?;
    let mut heard = (0, Instant::now());
    loop {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Ok(Some(_)) => {
                return child
                    .wait_with_output()
                    .map(Some)
                    .map_err(|e| e.to_string());
            }
            Err(error) => return Err(error.to_string()),
        }
        let words = std::fs::metadata(task.survived()).map_or(0, |m| m.len());
        if words != heard.0 {
            heard = (words, Instant::now());
        } else if heard.1.elapsed() > PATIENCE * patience {
            child.kill().map_err(|e| e.to_string())?;
            child.wait().map_err(|e| e.to_string())?;
            return Ok(None);
        }
    }
}

fn read(path: &Path) -> Option<Last> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// A folder of its own, which goes with it.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Result<Self, String> {
        let since = std::time::UNIX_EPOCH.elapsed().map_err(|e| e.to_string())?;
        let name = format!("shard-faults-{}-{}", std::process::id(), since.as_nanos());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is the system's to clear.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
