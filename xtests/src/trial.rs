//! One case on one combination of layouts: forward, gradients, layouts of gradients, equal bits on all ranks.

use crate::arrays::{place, whole};
use crate::case::{Case, CaseError, Tensor};
use crate::compare::{Tolerance, difference};
use crate::dispatch::{Apply, ApplyError};
use crate::layouts::Assignment;
use shard_autograd::{AutogradError, Recorder, grad};
use shard_comm::{Communicator, DType, ErrorClass, local};
use shard_ops::{Engine, OpError, Value};
use shard_redistribute::{MeshComm, RedistributeError};
use shard_spec::{DeviceMesh, Layout};
use std::fmt;
use std::rc::Rc;
use std::sync::Mutex;

/// Where arrays live during a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum On {
    /// Ordinary memory.
    Host,
    /// Memory the host cannot read, behind a lazy queue: finds missing synchronisation.
    TestDevice,
}

/// One combination to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The layouts of the inputs.
    pub layouts: Assignment,
    /// Where the arrays live.
    pub on: On,
    /// The type of floats, f64 or f32.
    pub float: DType,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layouts: Vec<String> = self.layouts.iter().map(Layout::to_string).collect();
        write!(f, "[{}] {} on {:?}", layouts.join(" | "), self.float, self.on)
    }
}

/// What came out of a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The single-device result, on every rank.
    Pass,
    /// The op's rule does not take these layouts, and says so.
    Refused(String),
    /// Anything else.
    Fail(String),
}

/// Tries combinations one after the other on one group of in-process ranks. After a trial that broke the
/// group, the rest runs on a new one. `started` is called when a trial begins.
pub fn run_trials(
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trials: &[Trial],
    started: &(dyn Fn(usize) + Sync),
) -> Vec<Verdict> {
    let mut verdicts = Vec::with_capacity(trials.len());
    while verdicts.len() < trials.len() {
        let first = verdicts.len();
        // One group has one kind of device.
        let on = trials[first].on;
        let same = trials[first..].iter().take_while(|t| t.on == on).count();
        let batch = &trials[first..first + same];
        verdicts.extend(run_group(case, apply, mesh, batch, on, &|i| started(first + i)));
    }
    verdicts
}

/// Whether a trial on one rank gives the reference within a part of the single-precision tolerance.
pub fn passes_loosely(case: &Case, apply: Apply, mesh: &DeviceMesh, trial: &Trial) -> bool {
    let loose = Tolerance(Tolerance::F32.0 / 8.0);
    let results = local::run_with(mesh.size(), options(trial.on), |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, mesh)?;
        one(&cx, &Recorder::new(Rc::new(Engine::new())), case, apply, trial, loose)
    });
    results.is_ok_and(|ranks| ranks.iter().all(Result::is_ok))
}

/// Runs trials on one group until one breaks it; at least one verdict if there is at least one trial.
fn run_group(
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trials: &[Trial],
    on: On,
    started: &(dyn Fn(usize) + Sync),
) -> Vec<Verdict> {
    let ranks = mesh.size();
    // Kept outside the ranks, so that a panic does not take earlier results with it.
    let slots: Vec<Mutex<Vec<Option<RankResult>>>> =
        trials.iter().map(|_| Mutex::new(vec![None; ranks])).collect();
    let launched = local::run_with(ranks, options(on), |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let rank = world.rank();
        let cx = MeshComm::new(&world, mesh)?;
        let recorder = Recorder::new(Rc::new(Engine::new()));
        for (i, trial) in trials.iter().enumerate() {
            if rank == 0 {
                started(i);
            }
            let tolerance = if trial.float == DType::F32 { Tolerance::F32 } else { Tolerance::F64 };
            let result = one(&cx, &recorder, case, apply, trial, tolerance);
            let broken = matches!(&result, Err(e) if e.breaks_the_group());
            if let Ok(mut ranks) = slots[i].lock() {
                ranks[rank] = Some(result.map_err(|e| (e.refusal(), e.to_string())));
            }
            if broken {
                break;
            }
        }
        Ok::<(), RedistributeError>(())
    });
    let cause = match launched {
        Err(error) => error.to_string(),
        Ok(results) => match results.into_iter().find_map(Result::err) {
            Some(error) => error.to_string(),
            None => "a rank stopped early".to_owned(),
        },
    };

    let mut verdicts = Vec::new();
    for slot in slots {
        let ranks = slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let whole: Option<Vec<RankResult>> = ranks.iter().cloned().collect();
        match whole {
            Some(results) => verdicts.push(judge(&results)),
            None => {
                let said = ranks.into_iter().flatten().find_map(Result::err).map(|e| e.1);
                verdicts.push(Verdict::Fail(said.map_or_else(
                    || format!("the group broke: {cause}"),
                    |said| format!("the group broke: {said}; {cause}"),
                )));
                break;
            }
        }
    }
    verdicts
}

fn options(on: On) -> local::LocalOptions {
    match on {
        On::Host => local::LocalOptions::default(),
        On::TestDevice => local::LocalOptions::default().test_device(),
    }
}

/// What one rank found: a digest of the bits of all results, or whether it was a refusal and what was wrong.
type RankResult = Result<u64, (bool, String)>;

/// Merges what the ranks found: all must agree.
fn judge(ranks: &[RankResult]) -> Verdict {
    let errors: Vec<(usize, &(bool, String))> =
        ranks.iter().enumerate().filter_map(|(r, e)| e.as_ref().err().map(|e| (r, e))).collect();
    let Some(&(rank, (refusal, text))) = errors.first() else {
        return match ranks.iter().position(|r| r != &ranks[0]) {
            None => Verdict::Pass,
            Some(other) => Verdict::Fail(format!("ranks 0 and {other} computed different bits")),
        };
    };
    if errors.len() < ranks.len() {
        return Verdict::Fail(format!("only {} of {} ranks, first rank {rank}: {text}", errors.len(), ranks.len()));
    }
    if *refusal && errors.iter().all(|(_, (r, t))| *r && t == text) {
        return Verdict::Refused(text.clone());
    }
    Verdict::Fail(text.clone())
}

/// Why a trial did not pass on a rank.
#[derive(Debug, thiserror::Error)]
enum TrialError {
    #[error(transparent)]
    Op(#[from] OpError),
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    #[error(transparent)]
    Redistribute(#[from] RedistributeError),
    #[error(transparent)]
    Case(#[from] CaseError),
    #[error("{what}: {difference}")]
    Wrong { what: String, difference: String },
}

impl From<ApplyError> for TrialError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Op(e) => Self::Op(e),
            ApplyError::Case(e) => Self::Case(e),
        }
    }
}

impl TrialError {
    fn breaks_the_group(&self) -> bool {
        let class = match self {
            Self::Op(e) => e.class(),
            Self::Autograd(e) => e.class(),
            Self::Redistribute(e) => e.class(),
            Self::Case(_) | Self::Wrong { .. } => return false,
        };
        class == ErrorClass::Failure
    }

    /// Whether this is an op's declared refusal of a placement.
    fn refusal(&self) -> bool {
        let op = match self {
            Self::Op(e) => e,
            Self::Autograd(AutogradError::Op(e)) => e,
            _ => return false,
        };
        crate::dispatch::is_refusal(op)
    }
}

fn one(
    cx: &Rc<MeshComm>,
    recorder: &Recorder,
    case: &Case,
    apply: Apply,
    trial: &Trial,
    tolerance: Tolerance,
) -> Result<u64, TrialError> {
    let mut digest = Digest::default();
    let wants = |i: usize| case.gradients.iter().any(|&(g, _)| g == i);
    let mut inputs = Vec::with_capacity(case.inputs.len());
    for (i, ((_, tensor), layout)) in case.inputs.iter().zip(&trial.layouts).enumerate() {
        let array = place(cx, layout, tensor, trial.float)?;
        inputs.push(if wants(i) { recorder.leaf(array)? } else { Value::new(array) });
    }

    let outputs = apply(recorder, case, &inputs)?;
    if outputs.len() < case.outputs.len() {
        return Err(TrialError::Wrong {
            what: "outputs".into(),
            difference: format!("expected {}, got {}", case.outputs.len(), outputs.len()),
        });
    }
    // All results are gathered before any is judged: the ranks must make the same calls.
    let mut problems = Vec::new();
    let mut check = |what: String, expected: &Tensor, got: &Value| -> Result<(), TrialError> {
        let got = whole(got.array())?;
        digest.add(&got);
        problems.extend(difference(expected, &got, tolerance).map(|d| (what, d)));
        Ok(())
    };
    for (i, (expected, got)) in case.outputs.iter().zip(&outputs).enumerate() {
        check(format!("output {i}"), expected, got)?;
    }

    let mut roots = Vec::new();
    let mut seeds = Vec::new();
    for (i, cotangent) in &case.cotangents {
        let root = &outputs[*i];
        let layout = root.layout().with_partial_reduced();
        seeds.push(Value::new(place(cx, &layout, cotangent, trial.float)?));
        roots.push(root.clone());
    }
    let wanted: Vec<Value> = case.gradients.iter().map(|&(i, _)| inputs[i].clone()).collect();
    let mut laws = Vec::new();
    if !wanted.is_empty() {
        let gradients = grad(recorder, &roots, &wanted, &seeds, false)?;
        for ((i, expected), gradient) in case.gradients.iter().zip(&gradients) {
            let what = format!("gradient of {}", case.inputs[*i].0);
            let Some(gradient) = gradient else {
                let zeros = crate::arrays::tensor(&expected.shape, |_| 0.0);
                problems_of_none(&mut laws, what, expected, &zeros, tolerance);
                continue;
            };
            let law = inputs[*i].layout().with_partial_reduced();
            if gradient.layout() != &law {
                let text = format!("has layout {}, not {law}", gradient.layout());
                laws.push((what.clone(), text));
            }
            check(what, expected, gradient)?;
        }
    }
    problems.extend(laws);
    match problems.into_iter().next() {
        None => Ok(digest.0),
        Some((what, difference)) => Err(TrialError::Wrong { what, difference }),
    }
}

/// No gradient is a gradient of zeros.
fn problems_of_none(
    problems: &mut Vec<(String, String)>,
    what: String,
    expected: &Tensor,
    zeros: &Tensor,
    tolerance: Tolerance,
) {
    problems.extend(difference(expected, zeros, tolerance).map(|d| (what, format!("there is none; {d}"))));
}

/// FNV-1a over the bits of results.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, tensor: &Tensor) {
        use crate::case::Data;
        let mut word = |w: u64| self.0 = (self.0 ^ w).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        match &*tensor.data {
            Data::F64(v) => v.iter().for_each(|x| word(x.to_bits())),
            Data::I64(v) => v.iter().for_each(|&x| word(x.cast_unsigned())),
            Data::Bool(v) => v.iter().for_each(|&x| word(u64::from(x))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_must_agree() {
        let refuse = |t: &str| Err((true, t.to_owned()));
        let wrong = |t: &str| Err((false, t.to_owned()));
        assert_eq!(judge(&[Ok(1), Ok(1)]), Verdict::Pass);
        assert!(matches!(judge(&[Ok(1), Ok(2)]), Verdict::Fail(_)));
        assert!(matches!(judge(&[Ok(1), refuse("no")]), Verdict::Fail(_)));
        assert_eq!(judge(&[refuse("no"), refuse("no")]), Verdict::Refused("no".into()));
        assert!(matches!(judge(&[refuse("no"), refuse("other")]), Verdict::Fail(_)));
        assert!(matches!(judge(&[refuse("no"), wrong("no")]), Verdict::Fail(_)));
    }
}
