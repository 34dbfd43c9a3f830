//! Steps of optimizers: one pass over a parameter, its gradient and the optimizer's state.
//!
//! Formulas are PyTorch's; arithmetic is in the parameter's own type, and no product is fused with a sum, so that a step has the
//! same bits with vectors of any length.

use super::Real;
use super::pointwise::vectorized;
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};

/// The numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// Gradient descent; its state is a velocity, if it has momentum.
    Sgd {
        /// The learning rate.
        rate: f64,
        /// The share of the velocity that stays; without any there is no state.
        momentum: f64,
        /// The share of the gradient that does not join the velocity.
        dampening: f64,
        /// The share of the parameter that is added to its gradient.
        decay: f64,
        /// Whether the step looks ahead along the velocity (Nesterov).
        nesterov: bool,
        /// Whether this is the parameter's first step, which sets the velocity to the gradient itself.
        first: bool,
    },
    /// Adam (Kingma and Ba, 2015); its state is the means of the gradient and of its square.
    Adam {
        /// The share of the parameter that stays: one minus rate times decoupled decay (Loshchilov and Hutter, 2019).
        keep: f64,
        /// The share of the parameter that is added to its gradient.
        decay: f64,
        /// How slowly the two means forget.
        betas: [f64; 2],
        /// The learning rate divided by the first mean's correction, `1 - beta1^step`.
        size: f64,
        /// The root of the second mean's correction, `1 - beta2^step`.
        root: f64,
        /// The number that is added to the denominator.
        eps: f64,
        /// Whether the largest second mean so far divides, which is a third state (Reddi, Kale and Kumar, 2018).
        amsgrad: bool,
    },
    /// Steps along the sign of a mean (Chen and others, 2023); its state is the mean of the gradient.
    Lion {
        /// The learning rate.
        rate: f64,
        /// The share of the parameter that stays: one minus rate times decay.
        keep: f64,
        /// The share of the mean in the direction, and how slowly the mean forgets.
        betas: [f64; 2],
    },
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
            Self::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Self::Adam { amsgrad, .. } => 2 + usize::from(amsgrad),
            Self::Lion { .. } => 1,
            Self::Average { .. } => 0,
        }
    }

    /// Its numbers in the order of the kernel for GPUs, with switches as 0 or 1.
    pub fn numbers(self) -> [f64; 7] {
        let switch = |on| f64::from(u8::from(on));
        let mut numbers = [0.0; 7];
        match self {
            Self::Sgd {
                rate,
                momentum,
                dampening,
                decay,
                nesterov,
                first,
            } => {
                let all = [rate, momentum, dampening, decay];
                numbers[..4].copy_from_slice(&all);
                numbers[4..6].copy_from_slice(&[nesterov, first].map(switch));
            }
            Self::Adam {
                keep,
                decay,
                betas: [first, second],
                size,
                root,
                eps,
                amsgrad: _,
            } => numbers = [keep, decay, first, second, size, root, eps],
            Self::Lion {
                rate,
                keep,
                betas: [first, second],
            } => numbers[..4].copy_from_slice(&[rate, keep, first, second]),
            Self::Average { keep } => numbers[0] = keep,
        }
        numbers
    }
}

compiled! { trait Compiled for Real: f32 f64; {
    /// Writes the new parameter and the new state of a step.
    ///
    /// ```
    /// use shard_kernels::optimize::{Update, update};
    ///
    /// let step = Update::Sgd { rate: 0.1, momentum: 0.9, dampening: 0.0, decay: 0.0, nesterov: false, first: false };
    /// let (mut parameter, mut velocity) = ([0.0], [0.0]);
    /// update(step, &[1.0f64], &[0.5], &[&[1.0]], &mut parameter, &mut [&mut velocity]);
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
    let n = T::of;
    match update {
        Update::Sgd {
            rate,
            momentum: 0.0,
            decay,
            ..
        } => {
            let (rate, decay) = (n(rate), n(decay));
            pass::<T, 0>(all, |p, g, []| (p - rate * (g + decay * p), []));
        }
        Update::Sgd {
            rate,
            momentum,
            dampening,
            decay,
            nesterov,
            first,
        } => {
            let [rate, decay] = [rate, decay].map(n);
            let (keep, join) = match first {
                true => (T::zero(), T::one()),
                false => (n(momentum), n(1.0 - dampening)),
            };
            // The direction is `ahead` of the gradient and `along` of the velocity.
            let (ahead, along) = match nesterov {
                true => (T::one(), n(momentum)),
                false => (T::zero(), T::one()),
            };
            pass::<T, 1>(all, |p, g, [velocity]| {
                let g = g + decay * p;
                let velocity = keep * velocity + join * g;
                (p - rate * (ahead * g + along * velocity), [velocity])
            });
        }
        Update::Adam {
            amsgrad: false,
            keep,
            decay,
            betas: [beta1, beta2],
            size,
            root,
            eps,
        } => {
            let [keep, decay, size, root, eps] = [keep, decay, size, root, eps].map(n);
            let ([forget1, forget2], beta2) = ([1.0 - beta1, 1.0 - beta2].map(n), n(beta2));
            pass::<T, 2>(all, |p, g, [mean, square]| {
                let g = g + decay * p;
                let mean = mean + (g - mean) * forget1;
                let square = square * beta2 + forget2 * g * g;
                let denominator = square.sqrt() / root + eps;
                (p * keep - size * (mean / denominator), [mean, square])
            });
        }
        Update::Adam {
            amsgrad: true,
            keep,
            decay,
            betas: [beta1, beta2],
            size,
            root,
            eps,
        } => {
            let [keep, decay, size, root, eps] = [keep, decay, size, root, eps].map(n);
            let ([forget1, forget2], beta2) = ([1.0 - beta1, 1.0 - beta2].map(n), n(beta2));
            pass::<T, 3>(all, |p, g, [mean, square, most]| {
                let g = g + decay * p;
                let mean = mean + (g - mean) * forget1;
                let square = square * beta2 + forget2 * g * g;
                let most = larger(most, square);
                let denominator = most.sqrt() / root + eps;
                (p * keep - size * (mean / denominator), [mean, square, most])
            });
        }
        Update::Lion {
            rate,
            keep,
            betas: [beta1, beta2],
        } => {
            let [rest1, rest2] = [1.0 - beta1, 1.0 - beta2].map(n);
            let [rate, keep, beta1, beta2] = [rate, keep, beta1, beta2].map(n);
            pass::<T, 1>(all, |p, g, [mean]| {
                let direction = sign(mean * beta1 + g * rest1);
                (p * keep - rate * direction, [mean * beta2 + g * rest2])
            });
        }
        Update::Average { keep } => {
            let rest = n(1.0 - keep);
            pass::<T, 0>(all, |mean, next, []| (mean + rest * (next - mean), []));
        }
    }
}

/// NaN if either is.
#[inline(always)]
fn larger<T: Real>(a: T, b: T) -> T {
    if a.is_nan() || a > b { a } else { b }
}

/// Zero of zero, NaN of NaN.
#[inline(always)]
fn sign<T: Real>(x: T) -> T {
    if x > T::zero() {
        T::one()
    } else if x < T::zero() {
        -T::one()
    } else {
        x
    }
}

/// The arrays of a step.
struct All<'a, 'b, T> {
    parameter: &'a [T],
    gradient: &'a [T],
    state: &'a [&'a [T]],
    new_parameter: &'a mut [T],
    new_state: &'a mut [&'b mut [T]],
}

/// One pass over all elements of a step with `N` arrays of state.
fn pass<T: Real, const N: usize>(
    all: All<'_, '_, T>,
    element: impl Fn(T, T, [T; N]) -> (T, [T; N]),
) {
    let All {
        parameter,
        gradient,
        state,
        new_parameter,
        new_state,
    } = all;
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
