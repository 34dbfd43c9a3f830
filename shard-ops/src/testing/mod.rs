//! Checks of an op of one's own: is it under any layout what it is on one rank?
//!
//! What is easy to get wrong in a [`Rule`](crate::Rule) shows only where a factor is sharded: a kernel that forgets where its
//! box begins, a sum that was not declared, a linearity that is none. [`validate`] tries it, in a test:
//!
//! ```
//! use shard_ops::testing::{Tensor, validate};
//! # use shard_ops::{Access, Exec, HostCall, Meta, Op, OpError, Result, Rule, Saved, Value, key_of};
//! # use shard_ops::{Cotangents, Grads};
//! # #[derive(Clone, Copy, Debug)]
//! # struct Twice;
//! # impl Op for Twice {
//! #     fn name(&self) -> &'static str { "twice" }
//! #     fn key(&self) -> u128 { key_of(self.name(), &()) }
//! #     fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
//! #         let mut rule = Rule::builder(self.name(), inputs);
//! #         let i = rule.factor(inputs[0].shape[0]);
//! #         rule.input(vec![Access::factor(i)])
//! #             .output(vec![Access::factor(i)], inputs[0].shape.clone(), inputs[0].dtype)
//! #             .build()
//! #     }
//! #     fn host(&self, call: &mut HostCall<'_, '_>) {
//! #         let x = call.input::<f64>(0);
//! #         let mut y = call.output::<f64>(0);
//! #         for i in 0..x.len() {
//! #             y.set(&[i], 2.0 * x.get(&[i]));
//! #         }
//! #     }
//! #     fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, dy: &Cotangents) -> Result<Grads> {
//! #         saved.pull_back(dy, |dy, _| exec.apply1(std::sync::Arc::new(*self), &[dy]))
//! #     }
//! # }
//! let tried = validate(Twice, &[Tensor::drawn([7], 1)])?; // an op of yours
//! assert_eq!(tried.slopes, 7);
//! # Ok::<(), shard_ops::testing::ValidationError>(())
//! ```
//!
//! Beside it are the tools it is made of: whole tensors ([`Tensor`]), placed in any layout ([`place`]) and read back ([`whole`]),
//! layouts to try ([`layout`], [`Split`]), and an executor that remembers what was applied ([`Capture`]).

pub(crate) mod arrays;
mod compare;
mod gradient;
mod keys;
mod layouts;
mod probe;
mod rng;
mod sample;
mod tensor;

pub use arrays::{local_indices, place, tensor, whole};
pub use compare::{Tolerance, difference};
pub use layouts::{AxisChoice, Split, choices, layout};
pub use probe::{Difference, Probe, differences, probes};
pub use rng::Rng;
pub use sample::{Capture, OpSample};
pub use tensor::{Data, Tensor};

use crate::error::InOp;
use crate::{Op, OpError, Value};
use gradient::{Slope, Slopes};
use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DType, HostOptions, LaunchError};
use shard_redistribute::MeshComm;
use shard_spec::{DeviceMesh, Layout, SpecError};
use std::rc::Rc;
use std::sync::Arc;

/// How [`validate`] goes about it.
///
/// ```
/// use shard_comm::DType;
/// use shard_ops::testing::Validation;
/// let quick = Validation { meshes: vec![vec![3]], float: DType::F32, ..Validation::default() };
/// // quick.run(op, &operands)?
/// # let _ = quick;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// Shapes of the meshes that it is tried on.
    pub meshes: Vec<Vec<usize>>,
    /// How the dims of operands are cut.
    pub splits: Vec<Split>,
    /// The type that operands of doubles get. Derivatives are compared with differences in `f64` alone.
    pub float: DType,
    /// Where the cuts are follows from this.
    pub seed: u64,
    /// At most so many elements of each operand are moved a little, to compare the derivative with what that makes.
    pub slopes: usize,
}

impl Default for Validation {
    /// Meshes of 1, 2, 3, 4 and 2 x 2 ranks; all cuts; doubles; seed 0; 32 slopes.
    fn default() -> Self {
        Self {
            meshes: vec![vec![1], vec![2], vec![3], vec![4], vec![2, 2]],
            splits: vec![Split::Even, Split::Uneven, Split::Gaps],
            float: DType::F64,
            seed: 0,
            slopes: 32,
        }
    }
}

/// What a validation that found no fault has tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Validated {
    /// Combinations of layouts and choices, of the op and of those that its derivative applies.
    pub layouts: usize,
    /// Combinations of layouts under which the gradients were compared; 0 if the op has no derivative.
    pub gradients: usize,
    /// Elements for which the derivative was compared with a difference of values.
    pub slopes: usize,
}

/// Why an op is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidationError {
    /// It does not run on one rank.
    #[error("on one rank: {0}")]
    Alone(OpError),
    /// A result or a gradient is not as on one rank.
    #[error("on a mesh of {mesh:?}: {difference}")]
    Differs {
        /// The shape of the mesh.
        mesh: Vec<usize>,
        /// The first layouts under which it is not.
        difference: Difference,
    },
    /// Two ops with different rules have one key.
    #[error(
        "{op} has the key of {other} and another rule, and would be run by what was found for that; make its `key` of all its attributes"
    )]
    Key {
        /// The op.
        op: String,
        /// The op that was tried before.
        other: String,
    },
    /// The kernel leaves elements of a result as they were in memory.
    #[error(
        "{op}: output {output} depends on what was in its memory before: {problem}; write every element of it"
    )]
    Unwritten {
        /// The op.
        op: String,
        /// Which output.
        output: usize,
        /// How it differs over memory of other contents.
        problem: String,
    },
    /// The vjp gives a list that is none of gradients of the operands, or lacks one.
    #[error("the vjp of {op}: {problem}")]
    Vjp {
        /// The op.
        op: String,
        /// What does not fit.
        problem: String,
    },
    /// The derivative is not that of the op, on one rank already.
    #[error(
        "the vjp of {op}: operand {operand} at {index:?}: expected {expected:e} by differences of values, got {got:e}"
    )]
    Slope {
        /// The op.
        op: String,
        /// Which operand.
        operand: usize,
        /// Which element of it.
        index: Vec<usize>,
        /// What moving that element makes of the result.
        expected: f64,
        /// What the vjp says.
        got: f64,
    },
    /// A rank panicked, such as a kernel that reads beyond its box, or could not be started.
    #[error("on a mesh of {mesh:?}: {source}")]
    Launch {
        /// The shape of the mesh.
        mesh: Vec<usize>,
        /// What happened.
        source: LaunchError,
    },
    /// A mesh that is none.
    #[error(transparent)]
    Mesh(#[from] SpecError),
}

/// Applies an op, and the ops of its derivative, with each factor of their rules sharded, over one and several mesh axes, in
/// even, uneven and partly empty parts, and with operands as terms of a sum where a rule says that they pass; on 1 to 4 ranks.
/// All must be as on one rank, gradients included, and the derivative that of the op. On one rank, results must be the same
/// whatever was in their memory, and the vjp must give an entry for each operand: a gradient of its shape and type, or none where that
/// would be zero. Ops of one key, among these and all that this process tried before, must have one rule for the same operands, as
/// strategies are cached under it: an attribute that is no part of the key is found where it is tried with values that rules differ by.
///
/// Ranks are threads of this process.
///
/// # Errors
/// The first [`ValidationError`]: it names op, layouts and element.
pub fn validate(op: impl Op, operands: &[Tensor]) -> Result<Validated, ValidationError> {
    Validation::default().run(op, operands)
}

impl Validation {
    /// As [`validate`].
    ///
    /// # Errors
    /// As [`validate`].
    pub fn run(&self, op: impl Op, operands: &[Tensor]) -> Result<Validated, ValidationError> {
        let op: Arc<dyn Op> = Arc::new(op);
        self.run_shared(&op, operands)
    }

    /// As [`run`](Self::run), of an op that is shared, such as that of an [`OpSample`]: ops that are not public themselves are tried as
    /// public functions apply them.
    ///
    /// # Errors
    /// As [`validate`].
    pub fn run_shared(
        &self,
        op: &Arc<dyn Op>,
        operands: &[Tensor],
    ) -> Result<Validated, ValidationError> {
        let alone = self.alone(op, operands)?;
        let mut tried = Validated {
            slopes: alone.slopes,
            ..Validated::default()
        };
        for shape in &self.meshes {
            self.on(shape, &alone, &mut tried)?;
        }
        Ok(tried)
    }

    /// What one rank gives.
    fn alone(&self, op: &Arc<dyn Op>, operands: &[Tensor]) -> Result<Alone, ValidationError> {
        let once = self.on_one(op, operands, NOT_A_NUMBER)?;
        let again = self.on_one(op, operands, ZEROS)?;
        for sample in &once.samples {
            keys::differs(sample)?;
        }
        unwritten(&once.samples, &again.samples)?;
        let of = |problem| ValidationError::Vjp {
            op: format!("{op:?}"),
            problem,
        };
        let (gradients, checked) = once.derivative.map_err(of)?;
        let slopes = checked.map_err(|slope| wrong_slope(op, slope))?;
        Ok(Alone {
            samples: once.samples,
            gradients,
            slopes,
        })
    }

    /// What one rank gives, in memory that holds this before it is written.
    fn on_one(
        &self,
        op: &Arc<dyn Op>,
        operands: &[Tensor],
        memory: HostOptions,
    ) -> Result<OnOne, ValidationError> {
        let mesh = DeviceMesh::new(&[1])?;
        let options = LocalOptions {
            host: memory,
            ..LocalOptions::default()
        };
        let mut runs = Self::on_mesh(&mesh, &options, |cx| {
            let capture = Capture::new();
            let of = |t: &Tensor| {
                let layout = Layout::replicated(&mesh, &t.shape);
                Ok(Value::new(
                    place(cx, &layout, t, self.float).in_op(op.name())?,
                ))
            };
            let inputs = operands.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            let derivative = match Slopes::of(&*capture, op, &inputs)? {
                Ok(slopes) => Ok((slopes.gradients()?, slopes.check(&inputs, self.slopes)?)),
                Err(problem) => Err(problem),
            };
            Ok(OnOne {
                samples: capture.samples(),
                derivative,
            })
        })?;
        // One rank, one result.
        runs.swap_remove(0).map_err(ValidationError::Alone)
    }

    /// Compares on one mesh.
    fn on(
        &self,
        shape: &[usize],
        alone: &Alone,
        tried: &mut Validated,
    ) -> Result<(), ValidationError> {
        let mesh = DeviceMesh::new(shape)?;
        let mut work = Vec::new();
        for sample in &alone.samples {
            let probes =
                probes(sample, &mesh, &self.splits, self.seed).map_err(ValidationError::Alone)?;
            work.extend(probes.into_iter().map(|probe| (sample, probe)));
        }
        tried.layouts += work.len();
        let first = alone.samples.first();
        let of_op = work.iter().filter(|(sample, probe)| {
            let is_op = first.is_some_and(|first| std::ptr::eq(first, *sample));
            is_op && probe.choice.is_none() && !alone.gradients.is_empty()
        });
        let of_op: Vec<_> = of_op.collect();
        tried.gradients += of_op.len();
        let found = Self::on_mesh(&mesh, &LocalOptions::default(), |cx| {
            let mut found = differences(cx, &work);
            for (sample, probe) in &of_op {
                found.extend(gradient::difference(cx, sample, probe, &alone.gradients));
            }
            found
        })?;
        match found.into_iter().flatten().next() {
            None => Ok(()),
            Some(difference) => Err(ValidationError::Differs {
                mesh: shape.to_vec(),
                difference,
            }),
        }
    }

    fn on_mesh<T: Send>(
        mesh: &DeviceMesh,
        options: &LocalOptions,
        f: impl Fn(&Rc<MeshComm>) -> T + Sync,
    ) -> Result<Vec<T>, ValidationError> {
        let run = local::run_with(mesh.size(), options, |comm| {
            let world: Rc<dyn Communicator> = Rc::new(comm);
            Ok(f(&MeshComm::new(&world, mesh).in_op("mesh")?))
        });
        let failed = |source| ValidationError::Launch {
            mesh: mesh.shape().to_vec(),
            source,
        };
        let results: Result<Vec<T>, OpError> = run.map_err(failed)?.into_iter().collect();
        results.map_err(ValidationError::Alone)
    }
}

/// What is said of a derivative that is not that of the op.
fn wrong_slope(op: &Arc<dyn Op>, slope: Slope) -> ValidationError {
    let Slope {
        operand,
        index,
        expected,
        got,
    } = slope;
    let op = format!("{op:?}");
    match got {
        Some(got) => ValidationError::Slope {
            op,
            operand,
            index,
            expected,
            got,
        },
        None => ValidationError::Vjp {
            op,
            problem: format!(
                "there is no gradient of operand {operand}, where differences of values at {index:?} say {expected:e}; give it, or \
                 refuse to by NoVjp"
            ),
        },
    }
}

/// Memory that holds NaN, and integers near the greatest, before it is written.
const NOT_A_NUMBER: HostOptions = HostOptions {
    cached_bytes: 0,
    poison: true,
    meter: false,
};

/// Memory that holds zeros before it is written, as nothing is used again.
const ZEROS: HostOptions = HostOptions {
    poison: false,
    ..NOT_A_NUMBER
};

/// The first result that is not the same over memory of other contents, of the same ops.
fn unwritten(once: &[OpSample], again: &[OpSample]) -> Result<(), ValidationError> {
    for (sample, other) in once.iter().zip(again) {
        let outputs = sample.outputs.iter().zip(&other.outputs);
        let differs = |(output, (a, b))| Some((output, difference(b, a, Tolerance::EXACT)?));
        if let Some((output, problem)) = outputs.enumerate().find_map(differs) {
            return Err(ValidationError::Unwritten {
                op: format!("{:?}", sample.op),
                output,
                problem,
            });
        }
    }
    Ok(())
}

/// What one run on one rank gave.
struct OnOne {
    /// The op, and those its derivative applied.
    samples: Vec<OpSample>,
    /// Or what is wrong with the list that the vjp gave.
    derivative: Result<Derivative, String>,
}

/// Gradients by operand, and how many of their elements are as differences say.
type Derivative = (Vec<Option<Tensor>>, Result<usize, Slope>);

/// What an op is on one rank.
struct Alone {
    /// The op, and those its derivative applied.
    samples: Vec<OpSample>,
    /// By operand; empty if there is no derivative.
    gradients: Vec<Option<Tensor>>,
    slopes: usize,
}
