//! Steps of optimizers: one pass over a parameter, its gradient and the optimizer's state.
//!
//! Formulas are PyTorch's; arithmetic is in the parameter's own type, and no product is fused with a sum, so that a step has the
//! same bits with vectors of any length.

mod adam;
mod descent;
mod squares;

pub use adam::{Adam, Adamax, NAdam, RAdam};
pub use descent::{Asgd, Lion, Rprop, Sgd};
pub use squares::{Adadelta, Adagrad, RmsProp};

use super::Real;
use super::pointwise::vectorized;
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};

/// The numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// Along the gradient, or a velocity.
    Sgd(Sgd),
    /// By means of the gradient and of its square.
    Adam(Adam),
    /// The same, looking ahead.
    NAdam(NAdam),
    /// The same, once enough is known.
    RAdam(RAdam),
    /// The same, by the largest gradient.
    Adamax(Adamax),
    /// Along the sign of a mean.
    Lion(Lion),
    /// By a mean of squares.
    RmsProp(RmsProp),
    /// By the sum of all squares.
    Adagrad(Adagrad),
    /// By means of squares of gradients and of steps.
    Adadelta(Adadelta),
    /// By steps that grow while signs stay.
    Rprop(Rprop),
    /// Along the gradient, with a mean of the parameters.
    Asgd(Asgd),
    /// A mean that follows values: it stands in the parameter's place, and the next value in the gradient's. No state.
    Average {
        /// How slowly the mean forgets.
        keep: f64,
    },
}

impl Update {
    /// How many arrays its state has.
    pub fn state(self) -> usize {
        match self {
            Self::Sgd(step) => usize::from(step.momentum != 0.0),
            Self::Adam(step) => 2 + usize::from(step.amsgrad),
            Self::RmsProp(step) => {
                1 + usize::from(step.momentum != 0.0) + usize::from(step.centered)
            }
            Self::NAdam(_)
            | Self::RAdam(_)
            | Self::Adamax(_)
            | Self::Adadelta(_)
            | Self::Rprop(_) => 2,
            Self::Lion(_) | Self::Adagrad(_) | Self::Asgd(_) => 1,
            Self::Average { .. } => 0,
        }
    }

    /// Its numbers in the order of the kernel for GPUs, with switches as 0 or 1.
    pub fn numbers(self) -> [f64; 8] {
        match self {
            Self::Sgd(step) => step.numbers(),
            Self::Adam(step) => step.numbers(),
            Self::NAdam(step) => step.numbers(),
            Self::RAdam(step) => step.numbers(),
            Self::Adamax(step) => step.numbers(),
            Self::Lion(step) => step.numbers(),
            Self::RmsProp(step) => step.numbers(),
            Self::Adagrad(step) => step.numbers(),
            Self::Adadelta(step) => step.numbers(),
            Self::Rprop(step) => step.numbers(),
            Self::Asgd(step) => step.numbers(),
            Self::Average { keep } => [keep, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        }
    }
}

/// A step that is an [`Update`] of its own.
macro_rules! updates {
    ($($name:ident),*) => { $(
        impl From<$name> for Update {
            fn from(step: $name) -> Self {
                Self::$name(step)
            }
        }
    )* };
}

updates!(
    Sgd, Adam, NAdam, RAdam, Adamax, Lion, RmsProp, Adagrad, Adadelta, Rprop, Asgd
);

compiled! { trait Compiled for Real: f32 f64; {
    /// Writes the new parameter and the new state of a step.
    ///
    /// ```
    /// use shard_kernels::optimize::{Sgd, update};
    ///
    /// let step = Sgd { rate: 0.1, momentum: 0.9, dampening: 0.0, decay: 0.0, nesterov: false, first: false };
    /// let (mut parameter, mut velocity) = ([0.0], [0.0]);
    /// update(step.into(), &[1.0f64], &[0.5], &[&[1.0]], &mut parameter, &mut [&mut velocity]);
    /// assert_eq!(velocity, [0.9 + 0.5]);
    /// assert_eq!(parameter, [1.0 - 0.1 * 1.4]);
    /// ```
    ///
    /// # Panics
    /// When the state has not as many arrays as [`Update::state`] says, or an array is shorter than the parameter.
    pub fn update<T>(
        update: Update,
        parameter: &[T],
        gradient: &[T],
        state: &[&[T]],
        new_parameter: &mut [T],
        new_state: &mut [&mut [T]],
    ) = update_here;
} }

fn update_here<T: Real>(
    update: Update,
    parameter: &[T],
    gradient: &[T],
    state: &[&[T]],
    new_parameter: &mut [T],
    new_state: &mut [&mut [T]],
) {
    let all = All {
        parameter,
        gradient,
        state,
        new_parameter,
        new_state,
    };
    match update {
        Update::Sgd(step) => step.take(all),
        Update::Adam(step) => step.take(all),
        Update::NAdam(step) => step.take(all),
        Update::RAdam(step) => step.take(all),
        Update::Adamax(step) => step.take(all),
        Update::Lion(step) => step.take(all),
        Update::RmsProp(step) => step.take(all),
        Update::Adagrad(step) => step.take(all),
        Update::Adadelta(step) => step.take(all),
        Update::Rprop(step) => step.take(all),
        Update::Asgd(step) => step.take(all),
        Update::Average { keep } => {
            let rest = T::of(1.0 - keep);
            all.pass(|mean, next, []| (mean + rest * (next - mean), []));
        }
    }
}

/// NaN if either is. Without a branch, which would keep a loop from running on vectors; so would `abs`, a call.
#[inline(always)]
fn larger<T: Real>(a: T, b: T) -> T {
    if a.is_nan() | (a > b) { a } else { b }
}

/// The arrays of a step.
struct All<'a, 'b, T> {
    parameter: &'a [T],
    gradient: &'a [T],
    state: &'a [&'a [T]],
    new_parameter: &'a mut [T],
    new_state: &'a mut [&'b mut [T]],
}

impl<T: Real> All<'_, '_, T> {
    /// One pass over all elements of a step with `N` arrays of state.
    fn pass<const N: usize>(self, element: impl Fn(T, T, [T; N]) -> (T, [T; N])) {
        let Self {
            parameter,
            gradient,
            state,
            new_parameter,
            new_state,
        } = self;
        assert!(
            [state.len(), new_state.len()] == [N; 2],
            "optimize: {} and {} arrays of state, not {N}",
            state.len(),
            new_state.len()
        );
        let count = parameter.len();
        let mut new_state = new_state.iter_mut();
        vectorized(Pass {
            parameter,
            gradient: &gradient[..count],
            state: std::array::from_fn(|k| &state[k][..count]),
            new_parameter: &mut new_parameter[..count],
            new_state: std::array::from_fn(|_| match new_state.next() {
                Some(new) => &mut new[..count],
                None => unreachable!("their number has been asserted"),
            }),
            element,
        });
    }
}

struct Pass<'a, T, F, const N: usize> {
    parameter: &'a [T],
    gradient: &'a [T],
    state: [&'a [T]; N],
    new_parameter: &'a mut [T],
    new_state: [&'a mut [T]; N],
    element: F,
}

impl<T: Real, F: Fn(T, T, [T; N]) -> (T, [T; N]), const N: usize> WithSimd for Pass<'_, T, F, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // Slices of one known length: the loop runs on vectors.
        let n = self.parameter.len();
        let (parameter, gradient) = (self.parameter, &self.gradient[..n]);
        let state = self.state.map(|state| &state[..n]);
        let new_parameter = &mut self.new_parameter[..n];
        let mut new_state = self.new_state.map(|state| &mut state[..n]);
        for i in 0..n {
            let old = std::array::from_fn(|k| state[k][i]);
            let (value, kept) = (self.element)(parameter[i], gradient[i], old);
            new_parameter[i] = value;
            for (new, kept) in new_state.iter_mut().zip(kept) {
                new[i] = kept;
            }
        }
    }
}
