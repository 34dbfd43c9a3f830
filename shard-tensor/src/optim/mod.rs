//! Optimizers: one local update per parameter, no communication.
//!
//! A parameter and its gradient have the same layout, so every rank updates its own piece; replicas have equal
//! pieces and compute equal updates. Formulas and defaults are PyTorch's.

mod adamw;
mod sgd;

pub use adamw::AdamW;
pub use sgd::Sgd;

use crate::nn::Parameters;
use crate::{Error, Gradients, Result, ShardTensor};
use shard_comm::{Call, Calling, DType, Scalar, Strided};
use shard_ops::Value;
use shard_ops::optimize::{Update, update};
use shard_redistribute::Array;

/// Changes parameters along their gradients.
pub trait Optimizer {
    /// One step. Parameters without a gradient stay as they are.
    ///
    /// # Collective
    /// All ranks of the program: sums over ranks that are outstanding in the gradients are taken here.
    ///
    /// # Errors
    /// What the communicator or the device reports.
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The learning rate.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate, as schedules do.
    fn set_learning_rate(&mut self, rate: f64);
}

/// A parameter and what the optimizer remembers of it, laid out as it is.
#[derive(Debug)]
struct Slot {
    parameter: ShardTensor,
    /// Empty until the first step.
    state: Vec<Value>,
    steps: u64,
}

impl Slot {
    /// # Errors
    /// [`Argument`](Error::Argument) for tensors that are no parameters, or hold neither `f32` nor `f64`.
    #[track_caller]
    fn all(op: &'static str, parameters: Parameters) -> Result<Vec<Self>> {
        for (name, parameter) in &parameters {
            if !parameter.is_parameter() || !matches!(parameter.dtype(), DType::F32 | DType::F64) {
                return Err(Error::argument(
                    op,
                    "parameters of type f32 or f64",
                    format!("{parameter:?} as {name:?}"),
                    "make parameters with `requires_grad`",
                ));
            }
        }
        Ok(parameters
            .into_iter()
            .map(|(_, parameter)| Self {
                parameter,
                state: Vec::new(),
                steps: 0,
            })
            .collect())
    }

    /// One step by the numbers that `step` gives for its count, from 1 on, if there is a gradient.
    #[track_caller]
    fn update(&mut self, gradients: &Gradients, step: impl Fn(u64) -> Update) -> Result<()> {
        let _call = Calling::of("step");
        let Some(gradient) = gradients.get(&self.parameter)? else {
            return Ok(());
        };
        self.steps += 1;
        let step = step(self.steps);
        let (value, gradient) = (self.parameter.value().detach(), gradient.value().detach());
        while self.state.len() < step.state() {
            self.state.push(zeros_like(value.array())?);
        }
        // What an update is made of is no attribute of the op, because it changes from step to step.
        let call = Call::new("step").of(value.dtype(), value.layout());
        let call = numbers(step)
            .iter()
            .fold(call, |call, number| call.with(number.to_bits().into()));
        value.array().cx().record(call);
        let engine = self.parameter.context().engine();
        let mut new = update(&**engine, step, &value, &gradient, &self.state)?.into_iter();
        if let Some(new) = new.next() {
            self.parameter.set_array(new.into_array())?;
        }
        self.state = new.collect();
        Ok(())
    }
}

/// The numbers of an update.
fn numbers(update: Update) -> [f64; 6] {
    match update {
        Update::Sgd {
            rate,
            momentum,
            decay,
            first,
        } => [rate, momentum, decay, f64::from(u8::from(first)), 0.0, 0.0],
        Update::AdamW {
            keep,
            betas: [first, second],
            size,
            root,
            eps,
        } => [keep, first, second, size, root, eps],
    }
}

fn zeros_like(array: &Array) -> Result<Value> {
    let device = array.cx().device();
    let zeros = match array.buffer() {
        Some(buffer) => {
            let mut zeros = device.alloc(array.dtype(), buffer.len())?;
            let all = Strided::contiguous(&[buffer.len()]);
            device.fill(&mut zeros, &all, Scalar::ZERO)?;
            Some(zeros.freeze())
        }
        None => None,
    };
    let zeros = Array::from_parts(array.cx(), array.layout(), zeros, array.dtype())?;
    Ok(Value::new(zeros))
}
