//! One case on one combination of layouts: forward, gradients, layouts of gradients, equal bits on all ranks.

use crate::case::{Case, CaseError, Data, Tensor};
use crate::dispatch::{Apply, ApplyError};
use crate::harness::{On, on_threads, run_threads};
use crate::layouts::Assignment;
use crate::strategies::integer;
use serde::{Deserialize, Serialize};
use shard_autograd::{AutogradError, Recorder, recompute};
use shard_comm::{DType, ErrorClass};
use shard_ops::testing::{Tolerance, difference};
use shard_ops::testing::{place, whole};
use shard_ops::{Engine, EngineOptions, KernelPolicy, OpError, Value};
use shard_redistribute::{MeshComm, RedistributeError};
use shard_spec::{DeviceMesh, Layout};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// One combination to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The layouts of the inputs.
    pub layouts: Assignment,
    /// Where the arrays live.
    pub on: On,
    /// The type of floats, f64 or f32.
    pub float: DType,
    /// How close the results must be.
    pub tolerance: Tolerance,
    /// Whether kernels on GPUs may call the vendor's libraries.
    pub libraries: bool,
    /// [`EngineOptions::room`].
    pub room: Option<usize>,
    /// Whether the op's gradients run it again, as in a checkpointed function.
    pub again: bool,
}

impl Trial {
    /// A trial in ordinary memory and double precision.
    pub fn new(layouts: Assignment) -> Self {
        Self {
            layouts,
            on: On::Host,
            float: DType::F64,
            tolerance: Tolerance::F64,
            libraries: true,
            room: None,
            again: false,
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layouts: Vec<String> = self.layouts.iter().map(Layout::to_string).collect();
        write!(
            f,
            "[{}] {} on {:?}",
            layouts.join(" | "),
            self.float,
            self.on
        )?;
        if self.again {
            f.write_str(", run again")?;
        }
        if !self.libraries {
            f.write_str(", without libraries")?;
        }
        Ok(())
    }
}

/// What came out of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// The single-device result, on every rank.
    Pass,
    /// The op's rule does not take these layouts, and says so.
    Refused(String),
    /// Anything else.
    Fail(String),
}

/// Tries combinations one after the other on one group of ranks: threads, or processes as in [`on_mesh`](crate::harness::on_mesh),
/// which then break with the first panic. After a trial that broke a group of threads, the rest runs on a new one, and `started`
/// is called when a trial begins.
pub fn run_trials(
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trials: &[Trial],
    started: &(dyn Fn(usize) + Sync),
) -> Vec<Verdict> {
    #[cfg(feature = "mpi")]
    if let Some(verdicts) = crate::job::trials(case, apply, mesh, trials) {
        return verdicts;
    }
    trials_on_threads(case, apply, mesh, trials, started)
}

pub(crate) fn trials_on_threads(
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
        verdicts.extend(run_group(case, apply, mesh, batch, on, &|i| {
            started(first + i);
        }));
    }
    verdicts
}

/// Fills in what a case gives on one rank: outputs, and gradients for whole-number cotangents made from the
/// seed. `wants` names the inputs whose gradients are wanted. The case's own outputs are not looked at.
///
/// # Panics
/// If the op fails on one rank: this is for tests that make up cases.
pub fn with_reference(mut case: Case, apply: Apply, wants: &[usize], seed: u64) -> Case {
    let Ok(mesh) = DeviceMesh::new(&[1]) else {
        unreachable!("a mesh of one rank")
    };
    let layouts = case
        .inputs
        .iter()
        .map(|(_, t)| Layout::replicated(&mesh, &t.shape))
        .collect();
    let trial = Trial::new(layouts);
    let single = |case: &Case| {
        let mut ranks = on_threads(&mesh, On::Host, |cx| {
            compute(cx, &recorder(), case, apply, &trial)
        });
        match ranks.pop() {
            Some(Ok(computed)) => computed,
            Some(Err(error)) => panic!("{} {:?} on one rank: {error}", case.op, case.attributes),
            None => unreachable!("one rank"),
        }
    };
    (case.cotangents, case.gradients) = (Vec::new(), Vec::new());
    case.outputs = single(&case).outputs;
    let floats = case
        .outputs
        .iter()
        .enumerate()
        .filter(|(_, t)| t.data.dtype().is_float());
    case.cotangents = floats
        .map(|(i, t)| {
            (
                i,
                shard_ops::testing::tensor(&t.shape, |at| integer(seed ^ 0xc07, at)),
            )
        })
        .collect();
    case.gradients = wants
        .iter()
        .map(|&i| (i, case.inputs[i].1.clone()))
        .collect();
    let found = single(&case).gradients;
    for ((_, gradient), found) in case.gradients.iter_mut().zip(found) {
        *gradient = found.unwrap_or_else(|| shard_ops::testing::tensor(&gradient.shape, |_| 0.0));
    }
    case
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
    let slots: Vec<Mutex<Vec<Option<RankResult>>>> = trials
        .iter()
        .map(|_| Mutex::new(vec![None; ranks]))
        .collect();
    let launched = run_threads(ranks, on, |world| {
        let rank = world.rank();
        let cx = MeshComm::new(&world, mesh)?;
        let mut recorders = HashMap::new();
        for (i, trial) in trials.iter().enumerate() {
            let options = (trial.libraries, trial.room);
            let recorder = (recorders.entry(options)).or_insert_with(|| recorder_with(options));
            if rank == 0 {
                started(i);
            }
            let result = one(&cx, recorder, case, apply, trial).map_err(RankError::from);
            let broken = matches!(&result, Err(e) if e.ends_group);
            if let Ok(mut ranks) = slots[i].lock() {
                ranks[rank] = Some(result);
            }
            if broken {
                break;
            }
        }
        LIBRARY_CALLS.fetch_add(world.ledger().snapshot().library_calls, Ordering::Relaxed);
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
        let ranks = slot
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let whole: Option<Vec<RankResult>> = ranks.iter().cloned().collect();
        match whole {
            Some(results) => {
                verdicts.push(judge(&results));
                if results.iter().any(|r| matches!(r, Err(e) if e.ends_group)) {
                    break;
                }
            }
            None => {
                let said = ranks
                    .into_iter()
                    .flatten()
                    .find_map(Result::err)
                    .map(|e| e.text);
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

/// A tape over a fresh engine.
pub fn recorder() -> Recorder {
    recorder_with((true, None))
}

/// One that may call the vendor's libraries on GPUs or not, with this [room](EngineOptions::room).
fn recorder_with((libraries, room): (bool, Option<usize>)) -> Recorder {
    let kernels = KernelPolicy {
        libraries,
        ..KernelPolicy::default()
    };
    Recorder::new(Engine::new(EngineOptions {
        kernels,
        room,
        ..EngineOptions::default()
    }))
}

/// How many kernel calls the vendor's libraries did in the trials of this process that have come to an end.
pub static LIBRARY_CALLS: AtomicU64 = AtomicU64::new(0);

/// What one rank found: a digest of the bits of all results, or what was wrong.
pub type RankResult = Result<u64, RankError>;

/// What was wrong on a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankError {
    /// Whether the op's rule refused the layouts.
    pub refusal: bool,
    /// Whether the group must not be used for another trial.
    pub ends_group: bool,
    /// In words.
    pub text: String,
}

impl From<TrialError> for RankError {
    fn from(error: TrialError) -> Self {
        Self {
            refusal: error.refusal(),
            ends_group: error.may_leave_ranks_apart(),
            text: error.to_string(),
        }
    }
}

/// Merges what the ranks found: all must agree.
pub fn judge(ranks: &[RankResult]) -> Verdict {
    let errors: Vec<(usize, &RankError)> = ranks
        .iter()
        .enumerate()
        .filter_map(|(r, e)| e.as_ref().err().map(|e| (r, e)))
        .collect();
    let Some(&(rank, RankError { refusal, text, .. })) = errors.first() else {
        return match ranks.iter().position(|r| r != &ranks[0]) {
            None => Verdict::Pass,
            Some(other) => Verdict::Fail(format!("ranks 0 and {other} computed different bits")),
        };
    };
    if errors.len() < ranks.len() {
        return Verdict::Fail(format!(
            "only {} of {} ranks, first rank {rank}: {text}",
            errors.len(),
            ranks.len()
        ));
    }
    if *refusal && errors.iter().all(|(_, e)| e.refusal && &e.text == text) {
        return Verdict::Refused(text.clone());
    }
    Verdict::Fail(text.clone())
}

/// Why a trial did not pass on a rank.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// An op failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A gradient could not be taken.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// Data could not be moved.
    #[error(transparent)]
    Redistribute(#[from] RedistributeError),
    /// The case does not describe its op.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The results are not the reference.
    #[error("{0}")]
    Wrong(String),
}

/// The op as a function of which nothing is kept.
fn applied_again(
    recorder: &Recorder,
    case: &Case,
    inputs: &[Value],
    apply: Apply,
) -> Result<Vec<Value>, AutogradError> {
    let (inputs, case) = (inputs.iter().collect::<Vec<_>>(), case.clone());
    recompute(recorder, &inputs, move |tape, inputs| {
        apply(tape, &case, inputs).map_err(|error| match error {
            ApplyError::Op(error) => error.into(),
            ApplyError::Case(error) => AutogradError::external(error, ErrorClass::Uniform),
        })
    })
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
    /// Whether ranks may be at different points of the program now: after any error but a wrong result, which
    /// is found after the last call that the ranks make together, and a refusal, before which nothing is sent.
    fn may_leave_ranks_apart(&self) -> bool {
        !matches!(self, Self::Wrong(_)) && !self.refusal()
    }

    /// Whether this is an op's declared refusal of a placement.
    pub(crate) fn refusal(&self) -> bool {
        let op = match self {
            Self::Op(e) => e,
            Self::Autograd(AutogradError::Op(e)) => e,
            _ => return false,
        };
        crate::dispatch::is_refusal(op)
    }
}

/// What a case gives on some layouts, gathered on this rank.
#[derive(Clone, Debug)]
pub struct Computed {
    /// All outputs, also those no reference is about.
    pub outputs: Vec<Tensor>,
    /// Gradients in the case's order; `None` where the tape found none.
    pub gradients: Vec<Option<Tensor>>,
    /// Gradients whose layout breaks the gradient law, in words.
    pub unlawful: Vec<String>,
}

/// Computes a case on some layouts: outputs, and gradients for its cotangents.
///
/// # Collective
/// All ranks of the mesh.
///
/// # Errors
/// What the op, the tape or the moves report.
pub fn compute(
    cx: &Rc<MeshComm>,
    recorder: &Recorder,
    case: &Case,
    apply: Apply,
    trial: &Trial,
) -> Result<Computed, TrialError> {
    let wants = |i: usize| case.gradients.iter().any(|&(g, _)| g == i);
    let mut inputs = Vec::with_capacity(case.inputs.len());
    for (i, ((_, tensor), layout)) in case.inputs.iter().zip(&trial.layouts).enumerate() {
        let array = place(cx, layout, tensor, trial.float)?;
        inputs.push(if wants(i) {
            recorder.leaf(array)?
        } else {
            Value::new(array)
        });
    }
    let values = match trial.again {
        false => apply(recorder, case, &inputs)?,
        true => applied_again(recorder, case, &inputs, apply)?,
    };
    let outputs = values
        .iter()
        .map(|v| whole(v.array()))
        .collect::<Result<_, _>>()?;

    let mut seeds = Vec::new();
    let mut roots = Vec::new();
    for (i, cotangent) in &case.cotangents {
        let Some(root) = values.get(*i) else { continue };
        let layout = root.layout().with_partial_reduced();
        seeds.push(Value::new(place(cx, &layout, cotangent, trial.float)?));
        roots.push(root);
    }
    let wanted: Vec<&Value> = case.gradients.iter().map(|&(i, _)| &inputs[i]).collect();
    let mut found = Vec::new();
    if !wanted.is_empty() {
        found = recorder.grad(
            &roots,
            &wanted,
            &seeds.iter().map(Some).collect::<Vec<_>>(),
            false,
        )?;
    }
    let mut unlawful = Vec::new();
    let mut gradients = Vec::with_capacity(found.len());
    for ((input, gradient), (i, _)) in wanted.iter().zip(&found).zip(&case.gradients) {
        let Some(gradient) = gradient else {
            gradients.push(None);
            continue;
        };
        let law = input.layout().with_partial_reduced();
        if gradient.layout() != &law {
            let name = &case.inputs[*i].0;
            unlawful.push(format!(
                "gradient of {name} has layout {}, not {law}",
                gradient.layout()
            ));
        }
        gradients.push(Some(whole(gradient.array())?));
    }
    Ok(Computed {
        outputs,
        gradients,
        unlawful,
    })
}

/// Computes and judges; a digest of the bits of all results if they are right.
pub(crate) fn one(
    cx: &Rc<MeshComm>,
    recorder: &Recorder,
    case: &Case,
    apply: Apply,
    trial: &Trial,
) -> Result<u64, TrialError> {
    let computed = compute(cx, recorder, case, apply, trial)?;
    match problem(case, &computed, trial.tolerance) {
        Some(problem) => Err(TrialError::Wrong(problem)),
        None => Ok(digest(&computed)),
    }
}

/// The first thing that is wrong with what was computed.
fn problem(case: &Case, computed: &Computed, tolerance: Tolerance) -> Option<String> {
    if computed.outputs.len() < case.outputs.len() {
        return Some(format!(
            "expected {} outputs, got {}",
            case.outputs.len(),
            computed.outputs.len()
        ));
    }
    for (i, (expected, got)) in case.outputs.iter().zip(&computed.outputs).enumerate() {
        if let Some(difference) = difference(expected, got, tolerance) {
            return Some(format!("output {i}: {difference}"));
        }
    }
    for ((i, expected), gradient) in case.gradients.iter().zip(&computed.gradients) {
        let name = &case.inputs[*i].0;
        // No gradient is a gradient of zeros.
        let zeros = || shard_ops::testing::tensor(&expected.shape, |_| 0.0);
        let got = gradient.clone().unwrap_or_else(zeros);
        if let Some(difference) = difference(expected, &got, tolerance) {
            let none = if gradient.is_none() {
                " (the tape found none)"
            } else {
                ""
            };
            return Some(format!("gradient of {name}{none}: {difference}"));
        }
    }
    computed.unlawful.first().cloned()
}

/// FNV-1a over the bits of the results.
fn digest(computed: &Computed) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut word = |w: u64| {
        hash = (hash ^ w)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(17);
    };
    for tensor in computed
        .outputs
        .iter()
        .chain(computed.gradients.iter().flatten())
    {
        match &*tensor.data {
            Data::F64(v) => v.iter().for_each(|x| word(x.to_bits())),
            Data::I64(v) => v.iter().for_each(|&x| word(x.cast_unsigned())),
            Data::Bool(v) => v.iter().for_each(|&x| word(u64::from(x))),
        }
    }
    hash
}
