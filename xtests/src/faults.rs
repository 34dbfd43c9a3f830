//! Ops under faults: what comes of a trial when one operation of one rank goes wrong.

#[cfg(feature = "mpi")]
pub mod jobs;
#[cfg(feature = "mpi")]
pub mod processes;

use crate::case::Case;
use crate::dispatch::{self, Apply};
use crate::harness::run_threads;
use crate::run::{Options, combinations, meshes, trial};
use crate::trial::{Trial, TrialError, one, recorder};
use serde::{Deserialize, Serialize};
use shard_comm::{Checks, CommError, Communicator, Fault, FaultKind, LaunchError, checked, faulty};
use shard_ops::testing::Rng;
use shard_redistribute::MeshComm;
use shard_spec::DeviceMesh;
use std::fmt;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What came of a trial with a fault in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The right result on every rank: the fault did no harm, or never came.
    Right,
    /// An error of one cause on every rank that survived and did not have its result before.
    Caught(String),
    /// Anything else; what must not be.
    Broken(String),
}

/// What a sweep found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Ops that were tried with at least one fault.
    pub ops: Vec<String>,
    /// How many times all cases were gone through, the last time perhaps not to the end: each with choices of its own.
    pub rounds: usize,
    /// Per kind of fault, by name: right results, and errors of one cause.
    pub counts: Vec<(&'static str, [usize; 2])>,
    /// What must not be: in words, with all that repeats it.
    pub broken: Vec<String>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            ops: Vec::new(),
            rounds: 0,
            counts: FaultKind::ALL.map(|kind| (name(kind), [0; 2])).to_vec(),
            broken: Vec::new(),
        }
    }
}

impl Sweep {
    /// How many trials there were.
    pub fn trials(&self) -> usize {
        let sound: usize = self.counts.iter().flat_map(|(_, c)| c).sum();
        sound + self.broken.len()
    }

    /// Counts what came of a trial, which `what` describes.
    fn add(&mut self, at: Position, op: &str, outcome: Outcome, what: impl FnOnce() -> String) {
        if !self.ops.iter().any(|known| known == op) {
            self.ops.push(op.to_owned());
        }
        self.rounds = self.rounds.max(at.round + 1);
        let count = &mut self.counts[at.kind].1;
        match outcome {
            Outcome::Right => count[0] += 1,
            Outcome::Caught(_) => count[1] += 1,
            Outcome::Broken(how) => self.broken.push(format!("{}: {how}", what())),
        }
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, [right, caught]) in &self.counts {
            writeln!(f, "{kind:<12} {right:>6} right {caught:>6} caught")?;
        }
        for broken in &self.broken {
            writeln!(f, "BROKEN {broken}")?;
        }
        let (ops, kinds, trials) = (self.ops.len(), self.counts.len(), self.trials());
        let seeds = self.rounds;
        writeln!(
            f,
            "{ops} ops x {kinds} faults x {seeds} seeds: {trials} cases"
        )?;
        let broken = self.broken.len();
        write!(f, "{} passed, {broken} failed", trials - broken)
    }
}

/// A place in the sequence of all trials of a sweep, which a seed fixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Position {
    round: usize,
    case: usize,
    kind: usize,
}

/// Every case, on random layouts, under every kind of fault at random places, again and again until the time of
/// `options.budget` is over; once without one.
///
/// A trial that takes longer than `options.patience` is a hang: the sweep ends with it, for its ranks cannot be stopped.
pub fn sweep(cases: &[Case], options: &Options) -> Sweep {
    let started = Instant::now();
    let late = || options.budget.is_some_and(|b| started.elapsed() >= b);
    let mut found = Sweep::default();
    let built = built(cases);
    for round in 0.. {
        let mut tried = false;
        for (place, &(case, apply)) in built.iter().enumerate() {
            if late() {
                return found;
            }
            let Some(subject) = Subject::draw(case, apply, options, round) else {
                continue;
            };
            tried = true;
            // What is refused, or not right to begin with, conformance will tell.
            let Some(calls) = calls(case, apply, &subject.mesh, &subject.trial) else {
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
                let outcome = subject.in_time(fault, options.patience);
                let hangs = outcome.is_none();
                let outcome = outcome.unwrap_or_else(|| Outcome::Broken("hangs".to_owned()));
                found.add(at, &case.op, outcome, || subject.describe(fault));
                if hangs {
                    return found;
                }
            }
        }
        if options.budget.is_none() || !tried {
            return found;
        }
    }
    found
}

/// The cases whose op is built.
fn built(cases: &[Case]) -> Vec<(&Case, Apply)> {
    let apply = |case| Some((case, dispatch::find(case).ok()?));
    cases.iter().filter_map(apply).collect()
}

/// One trial, to be spoilt in many ways.
struct Subject<'a> {
    case: &'a Case,
    apply: Apply,
    mesh: DeviceMesh,
    trial: Trial,
}

impl<'a> Subject<'a> {
    /// The layouts of a case in a round; `None` if there are none.
    fn draw(case: &'a Case, apply: Apply, options: &Options, round: usize) -> Option<Self> {
        let mut rng = Rng::new(options.seed, &["faults", &round.to_string(), &case.name]);
        let mesh = rng.pick(&meshes(&options.ranks))?;
        let mut drafts = combinations(case, &mesh, options);
        let drafts = drafts.all().ok()?;
        let place = rng.below(drafts.len().max(1));
        let trial = trial(case, &mesh, options, place, drafts.get(place)?)?;
        Some(Self {
            case,
            apply,
            mesh,
            trial,
        })
    }

    /// What goes wrong at a position, if ranks make these calls; `None` where there is none to go wrong: few operations can be
    /// overtaken.
    fn fault(&self, seed: u64, at: Position, calls: &[Calls]) -> Option<Fault> {
        let labels = [&*self.case.name, &format!("{} {}", at.round, at.kind)];
        let mut rng = Rng::new(seed, &labels);
        let kind = FaultKind::ALL[at.kind];
        if kind == FaultKind::Overtaken {
            let of_rank = |(rank, of): (usize, &Calls)| {
                let calls = of.overtakable.clone().into_iter();
                calls.map(move |call| Fault { rank, call, kind })
            };
            let all: Vec<Fault> = calls.iter().enumerate().flat_map(of_rank).collect();
            return all.get(rng.below(all.len().max(1))).copied();
        }
        let rank = rng.below(calls.len());
        let count = usize::try_from(calls.get(rank)?.count).unwrap_or(usize::MAX);
        let call = rng.below(count) as u64;
        (count > 0).then_some(Fault { rank, call, kind })
    }

    fn describe(&self, fault: Fault) -> String {
        let (name, mesh) = (&self.case.name, self.mesh.shape());
        format!("{name} on {mesh:?} {} with {fault:?}", self.trial)
    }

    fn in_time(&self, fault: Fault, patience: Duration) -> Option<Outcome> {
        let (done, outcome) = mpsc::channel();
        let (case, apply) = (self.case.clone(), self.apply);
        let (mesh, trial) = (self.mesh.clone(), self.trial.clone());
        std::thread::spawn(move || done.send(under_fault(&case, apply, &mesh, &trial, fault)));
        outcome.recv_timeout(patience).ok()
    }
}

/// The numbers of the kinds of faults to try.
fn kinds(options: &Options) -> impl Iterator<Item = usize> {
    let wanted = |&kind: &usize| options.faults.contains(&FaultKind::ALL[kind]);
    (0..FaultKind::ALL.len()).filter(wanted)
}

/// The kind of fault of a name, as a sweep prints it.
pub fn kind_named(wanted: &str) -> Option<FaultKind> {
    FaultKind::ALL
        .into_iter()
        .find(|&kind| name(kind) == wanted)
}

fn name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Delay(_) => "delay",
        FaultKind::HeldBack => "held back",
        FaultKind::Overtaken => "overtaken",
        FaultKind::Drop => "drop",
        FaultKind::Duplicate => "duplicate",
        FaultKind::Truncate => "truncate",
        FaultKind::Corrupt => "corrupt",
        FaultKind::WrongCount => "wrong count",
        FaultKind::WrongOp => "wrong op",
        FaultKind::Panic => "panic",
        FaultKind::Return => "return",
    }
}

/// What one rank of a trial ended with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum End {
    Right,
    /// A result that is not the reference.
    Wrong(String),
    Error {
        /// What ranks have in common.
        text: String,
        /// Whether it was found because time was over.
        timed_out: bool,
    },
    /// A panic, with its message.
    Panicked(String),
}

/// The operations that a rank starts in a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// How many.
    pub count: u64,
    /// Which of them the next one of the same group could overtake.
    pub overtakable: Vec<u64>,
}

/// The operations that each rank starts in a trial without faults; `None` if it does not pass.
pub fn calls(case: &Case, apply: Apply, mesh: &DeviceMesh, trial: &Trial) -> Option<Vec<Calls>> {
    all_right(launch(case, apply, mesh, trial, &[]).ok()?)
}

/// The calls of ranks that all have the right result.
fn all_right(ends: Vec<(End, Calls)>) -> Option<Vec<Calls>> {
    let passed = |(end, calls): (End, Calls)| matches!(end, End::Right).then_some(calls);
    ends.into_iter().map(passed).collect()
}

/// Runs a trial, which passes without, with one fault in it.
pub fn under_fault(
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trial: &Trial,
    fault: Fault,
) -> Outcome {
    match launch(case, apply, mesh, trial, &[fault]) {
        Ok(ends) => judge(ends.into_iter().map(|(end, _)| end), fault),
        // The launch names the rank that panicked first; the others' errors are gone with it.
        Err(LaunchError::Panicked { rank, message }) => {
            if fault.kind == FaultKind::Panic && rank == fault.rank {
                Outcome::Caught(message)
            } else {
                Outcome::Broken(format!("rank {rank} panicked: {message}"))
            }
        }
        Err(error) => Outcome::Broken(error.to_string()),
    }
}

/// What the ranks' ends amount to: all right, or one cause.
fn judge(ends: impl IntoIterator<Item = End>, fault: Fault) -> Outcome {
    let mut errors = Vec::new();
    let mut timeouts: Vec<String> = Vec::new();
    for (rank, end) in ends.into_iter().enumerate() {
        match end {
            End::Right => {}
            End::Wrong(how) => {
                return Outcome::Broken(format!("rank {rank}: silently wrong: {how}"));
            }
            End::Panicked(message) if fault.kind == FaultKind::Panic && rank == fault.rank => {
                errors.push(message);
            }
            End::Panicked(message) => {
                return Outcome::Broken(format!("rank {rank} panicked: {message}"));
            }
            // The rank that gave up has an error of its own.
            End::Error { .. } if fault.kind == FaultKind::Return && rank == fault.rank => {}
            End::Error { text, timed_out } => {
                if timed_out {
                    timeouts.push(text.clone());
                }
                errors.push(text);
            }
        }
    }
    if errors.is_empty() {
        return Outcome::Right;
    }
    if fault.kind.is_harmless() {
        return Outcome::Broken(format!("not right: {}", errors.join(" | ")));
    }
    let quoted = |root: &&String| errors.iter().all(|e| e.contains(root.as_str()));
    match errors.iter().find(quoted) {
        Some(root) => Outcome::Caught(root.clone()),
        // Where only time tells, ranks may find out at once, and each tells what it was waiting for.
        None if errors
            .iter()
            .all(|e| timeouts.iter().any(|root| e.contains(root))) =>
        {
            Outcome::Caught(timeouts.remove(0))
        }
        None => Outcome::Broken(format!("several causes: {}", errors.join(" | "))),
    }
}

/// Runs a trial; what each rank ended with, and the operations it started.
fn launch(
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trial: &Trial,
    faults: &[Fault],
) -> Result<Vec<(End, Calls)>, LaunchError> {
    run_threads(mesh.size(), trial.on, |comm| {
        on_rank(comm, case, apply, mesh, trial, faults)
    })
}

/// One rank of a trial. After an error it tells all others, as a program that cannot go on.
fn on_rank(
    comm: Rc<dyn Communicator>,
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trial: &Trial,
    faults: &[Fault],
) -> (End, Calls) {
    let inner = faulty(comm, faults);
    let world = checked(inner.clone(), Checks { checksums: true });
    let result = MeshComm::new(&world, mesh)
        .map_err(TrialError::from)
        .and_then(|cx| one(&cx, &recorder(), case, apply, trial));
    let end = match result {
        Ok(_) => End::Right,
        Err(TrialError::Wrong(how)) => End::Wrong(how),
        Err(error) => {
            world.fail(error.to_string());
            let (text, timed_out) = match cause(error) {
                Ok(error) => (error.to_string(), matches!(error, CommError::TimedOut(_))),
                Err(text) => (text, false),
            };
            End::Error { text, timed_out }
        }
    };
    let calls = Calls {
        count: inner.calls(),
        overtakable: inner.overtakable(),
    };
    (end, calls)
}

/// What an error says that ranks have in common: not what each was doing when it heard of it.
fn cause(error: TrialError) -> Result<CommError, String> {
    let error = match error {
        TrialError::Op(e) => shard_tensor::Error::from(e),
        TrialError::Autograd(e) => e.into(),
        TrialError::Redistribute(e) => e.into(),
        other => return Err(other.to_string()),
    };
    error.comm().cloned().ok_or_else(|| error.to_string())
}
