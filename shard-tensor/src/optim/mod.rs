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
use shard_comm::{Buffer, DType, Element, HostJob, HostSlice, HostSliceMut, Scalar, Strided, Work};
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

/// A parameter and what the optimizer remembers of it: `N` buffers like this rank's piece.
#[derive(Debug)]
struct Slot<const N: usize> {
    parameter: ShardTensor,
    /// Empty until the first step; off the mesh for ever.
    state: Option<[Buffer; N]>,
    steps: u64,
}

impl<const N: usize> Slot<N> {
    /// # Errors
    /// [`Argument`](Error::Argument) for tensors that are no parameters, or hold neither `f32` nor `f64`.
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
                state: None,
                steps: 0,
            })
            .collect())
    }

    /// Runs `update` on this rank's piece: parameter, gradient and old state in; parameter and new state out.
    fn update(&mut self, gradients: &Gradients, update: impl Update<N>) -> Result<()> {
        let Some(gradient) = gradients.get(&self.parameter)? else {
            return Ok(());
        };
        self.steps += 1;
        let (value, gradient) = (self.parameter.value(), gradient.value());
        let (Some(old), Some(slope)) = (value.array().buffer(), gradient.array().buffer()) else {
            return Ok(());
        };
        let (dtype, len) = (old.dtype(), old.len());
        let device = self.parameter.context().device();
        let state = match &self.state {
            Some(state) => state.clone(),
            None => {
                let mut zeros = device.alloc(dtype, len)?;
                device.fill(&mut zeros, &Strided::contiguous(&[len]), Scalar::F64(0.0))?;
                let zeros = zeros.freeze();
                std::array::from_fn(|_| zeros.clone())
            }
        };
        let mut inputs = vec![old.clone(), slope.clone()];
        inputs.extend(state);
        let outputs = (0..=N)
            .map(|_| device.alloc(dtype, len))
            .collect::<Result<Vec<_>, _>>()?;
        let first = self.steps == 1;
        let work = Work::moving((2 * N + 3) * len * dtype.size());
        let job = HostJob::new("optimizer", work, move |inputs, outputs| match dtype {
            DType::F64 => apply::<f64, N>(&update, first, inputs, outputs),
            _ => apply::<f32, N>(&update, first, inputs, outputs),
        });
        let outputs = device.submit(inputs, outputs, job)?;
        let mut outputs = outputs.into_iter().map(|b| b.freeze());
        if let Some(new) = outputs.next() {
            let array = value.array();
            self.parameter.set_array(Array::from_parts(
                array.cx(),
                array.layout(),
                Some(new),
                dtype,
            )?)?;
        }
        self.state = outputs.collect::<Vec<_>>().try_into().ok();
        Ok(())
    }
}

/// The arithmetic of one element, in the parameter's own precision.
trait Update<const N: usize>: Send + 'static {
    /// The new parameter and state. `first` on the parameter's first step.
    fn element<T: Real>(&self, first: bool, p: T, g: T, state: [T; N]) -> (T, [T; N]);
}

/// `f32` or `f64`.
trait Real:
    Element
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    fn sqrt(self) -> Self;
}

impl Real for f32 {
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

impl Real for f64 {
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

/// One pass over all buffers. Their types and lengths are those they were allocated with, so views cannot fail.
fn apply<T: Real, const N: usize>(
    update: &impl Update<N>,
    first: bool,
    inputs: &[HostSlice<'_>],
    outputs: &mut [HostSliceMut<'_>],
) {
    let mut read = inputs.iter().filter_map(|s| s.as_slice::<T>().ok());
    let (Some(p), Some(g)) = (read.next(), read.next()) else {
        return;
    };
    let old: [&[T]; N] = std::array::from_fn(|_| read.next().unwrap_or(p));
    let mut write: Vec<&mut [T]> = outputs
        .iter_mut()
        .filter_map(|s| s.as_mut_slice::<T>().ok())
        .collect();
    for i in 0..p.len() {
        let (new, state) = update.element(first, p[i], g[i], old.map(|s| s[i]));
        for (out, value) in write.iter_mut().zip(std::iter::once(new).chain(state)) {
            out[i] = value;
        }
    }
}
