//! Ops under faults: what comes of a trial when one operation of one rank goes wrong.

use crate::case::Case;
use crate::dispatch::{self, Apply};
use crate::harness::run_threads;
use crate::rng::Rng;
use crate::run::{Options, combinations, meshes, trial};
use crate::trial::{Trial, TrialError, one, recorder};
use shard_comm::{Checks, Fault, FaultKind, LaunchError, checked, faulty};
use shard_redistribute::MeshComm;
use shard_spec::DeviceMesh;
use std::fmt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What came of a trial with a fault in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The right result on every rank: the fault did no harm, or never came.
    Right,
    /// An error of one cause on every rank that survived and did not have its result before.
    Caught(String),
    /// Anything else; what must not be.
    Broken(String),
}

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Ops that were tried with at least one fault.
    pub ops: Vec<String>,
    /// Per kind of fault, by name: right results, and errors of one cause.
    pub counts: Vec<(&'static str, [usize; 2])>,
    /// What must not be: in words, with all that repeats it.
    pub broken: Vec<String>,
}

impl Sweep {
    /// How many trials there were.
    pub fn trials(&self) -> usize {
        let sound: usize = self.counts.iter().flat_map(|(_, c)| c).sum();
        sound + self.broken.len()
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
        let (ops, trials) = (self.ops.len(), self.trials());
        writeln!(f, "{ops} ops, {trials} trials with a fault each")?;
        let broken = self.broken.len();
        write!(f, "{} passed, {broken} failed", trials - broken)
    }
}

/// Every case, on random layouts, under every kind of fault at random places, again and again until the time of
/// `options.budget` is over; once without one.
///
/// A trial that takes longer than `options.patience` is a hang: the sweep ends with it, for its ranks cannot be stopped.
pub fn sweep(cases: &[Case], options: &Options) -> Sweep {
    let started = Instant::now();
    let late = || options.budget.is_some_and(|b| started.elapsed() >= b);
    let kinds = FaultKind::ALL.map(|kind| (name(kind), [0; 2]));
    let mut found = Sweep {
        counts: kinds.to_vec(),
        ..Sweep::default()
    };
    let built: Vec<(&Case, Apply)> = cases
        .iter()
        .filter_map(|case| Some((case, dispatch::find(case).ok()?)))
        .collect();
    let meshes = meshes(&options.ranks);
    for round in 0.. {
        let mut rng = Rng::new(options.seed, &["faults", &round.to_string()]);
        let mut tried = false;
        for &(case, apply) in &built {
            if late() {
                return found;
            }
            let Some(mesh) = rng.pick(&meshes) else {
                return found;
            };
            let drafts = combinations(case, &mesh, options);
            let place = rng.below(drafts.len().max(1));
            let trial = (drafts.get(place)).and_then(|d| trial(case, &mesh, options, place, d));
            let Some(trial) = trial else { continue };
            tried = true;
            let subject = Subject {
                case,
                apply,
                mesh: &mesh,
                trial: &trial,
            };
            if !subject.all_kinds(&mut rng, options.patience, &mut found) {
                return found;
            }
        }
        if options.budget.is_none() || !tried {
            return found;
        }
    }
    found
}

/// One trial, to be spoilt in many ways.
struct Subject<'a> {
    case: &'a Case,
    apply: Apply,
    mesh: &'a DeviceMesh,
    trial: &'a Trial,
}

impl Subject<'_> {
    /// One fault of each kind; false after a hang.
    fn all_kinds(&self, rng: &mut Rng, patience: Duration, found: &mut Sweep) -> bool {
        let Some(calls) = calls(self.case, self.apply, self.mesh, self.trial) else {
            // Refused, or not right to begin with, which conformance will tell.
            return true;
        };
        let rank = rng.below(calls.len());
        if calls[rank] == 0 {
            return true;
        }
        if !found.ops.contains(&self.case.op) {
            found.ops.push(self.case.op.clone());
        }
        for (k, kind) in FaultKind::ALL.into_iter().enumerate() {
            let call = rng.below(usize::try_from(calls[rank]).unwrap_or(usize::MAX)) as u64;
            let fault = Fault { rank, call, kind };
            let what = || {
                let (name, mesh) = (&self.case.name, self.mesh.shape());
                format!("{name} on {mesh:?} {} with {fault:?}", self.trial)
            };
            match self.in_time(fault, patience) {
                Some(Outcome::Right) => found.counts[k].1[0] += 1,
                Some(Outcome::Caught(_)) => found.counts[k].1[1] += 1,
                Some(Outcome::Broken(how)) => found.broken.push(format!("{}: {how}", what())),
                None => {
                    found.broken.push(format!("{}: hangs", what()));
                    return false;
                }
            }
        }
        true
    }

    fn in_time(&self, fault: Fault, patience: Duration) -> Option<Outcome> {
        let (done, outcome) = mpsc::channel();
        let (case, apply) = (self.case.clone(), self.apply);
        let (mesh, trial) = (self.mesh.clone(), self.trial.clone());
        std::thread::spawn(move || done.send(under_fault(&case, apply, &mesh, &trial, fault)));
        outcome.recv_timeout(patience).ok()
    }
}

fn name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Delay(_) => "delay",
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
enum End {
    Right,
    /// A result that is not the reference.
    Wrong(String),
    Error(String),
}

/// How many operations each rank starts in a trial without faults; `None` if it does not pass.
pub fn calls(case: &Case, apply: Apply, mesh: &DeviceMesh, trial: &Trial) -> Option<Vec<u64>> {
    let ends = launch(case, apply, mesh, trial, &[]).ok()?;
    let passed = |(end, calls): (End, u64)| matches!(end, End::Right).then_some(calls);
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
    let ends = match launch(case, apply, mesh, trial, &[fault]) {
        Ok(ends) => ends,
        Err(LaunchError::Panicked { rank, message }) => {
            // The launch names the rank that panicked first; the others' errors are gone with it.
            let injected = fault.kind == FaultKind::Panic && rank == fault.rank;
            return if injected {
                Outcome::Caught(message)
            } else {
                Outcome::Broken(format!("rank {rank} panicked: {message}"))
            };
        }
        Err(error) => return Outcome::Broken(error.to_string()),
    };
    let mut errors = Vec::new();
    for (rank, (end, _)) in ends.into_iter().enumerate() {
        match end {
            End::Right => {}
            End::Wrong(how) => {
                return Outcome::Broken(format!("rank {rank}: silently wrong: {how}"));
            }
            // The rank that gave up has an error of its own.
            End::Error(_) if fault.kind == FaultKind::Return && rank == fault.rank => {}
            End::Error(text) => errors.push(text),
        }
    }
    let quoted = |root: &&String| errors.iter().all(|e| e.contains(root.as_str()));
    match errors.iter().find(quoted) {
        Some(root) => Outcome::Caught(root.clone()),
        None if errors.is_empty() => Outcome::Right,
        None => Outcome::Broken(format!("several causes: {}", errors.join(" | "))),
    }
}

/// Runs a trial; what each rank ended with, and how many operations it started.
fn launch(
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trial: &Trial,
    faults: &[Fault],
) -> Result<Vec<(End, u64)>, LaunchError> {
    run_threads(mesh.size(), trial.on, |comm| {
        let inner = faulty(comm, faults);
        let world = checked(inner.clone(), Checks { checksums: true });
        let result = MeshComm::new(&world, mesh)
            .map_err(TrialError::from)
            .and_then(|cx| one(&cx, &recorder(), case, apply, trial));
        let end = match result {
            Ok(_) => End::Right,
            Err(TrialError::Wrong(how)) => End::Wrong(how),
            Err(error) => {
                // As a program that cannot go on.
                world.fail(error.to_string());
                End::Error(cause(error))
            }
        };
        (end, inner.calls())
    })
}

/// What an error says that ranks have in common: not what each was doing when it heard of it.
fn cause(error: TrialError) -> String {
    let error = match error {
        TrialError::Op(e) => shard_tensor::Error::from(e),
        TrialError::Autograd(e) => e.into(),
        TrialError::Redistribute(e) => e.into(),
        other => return other.to_string(),
    };
    error
        .comm()
        .map_or_else(|| error.to_string(), ToString::to_string)
}
