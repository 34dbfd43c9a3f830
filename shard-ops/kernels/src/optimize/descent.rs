//! Steps along a gradient, a velocity or a sign.

use super::All;
use crate::Real;

/// Gradient descent; its state is a velocity, if it has momentum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The learning rate.
    pub rate: f64,
    /// The share of the velocity that stays; without any there is no state.
    pub momentum: f64,
    /// The share of the gradient that does not join the velocity.
    pub dampening: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// Whether the step looks ahead along the velocity (Nesterov).
    pub nesterov: bool,
    /// Whether this is the parameter's first step, which sets the velocity to the gradient itself.
    pub first: bool,
}

impl Sgd {
    pub(super) fn numbers(self) -> [f64; 8] {
        let [nesterov, first] = [self.nesterov, self.first].map(|on| f64::from(u8::from(on)));
        let Self {
            rate,
            momentum,
            dampening,
            decay,
            ..
        } = self;
        [rate, momentum, dampening, decay, nesterov, first, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let n = T::of;
        let [rate, decay] = [self.rate, self.decay].map(n);
        if self.momentum == 0.0 {
            return all.pass(|p, g, []| (p - rate * (g + decay * p), []));
        }
        let (keep, join) = match self.first {
            true => (T::zero(), T::one()),
            false => (n(self.momentum), n(1.0 - self.dampening)),
        };
        // The direction is `ahead` of the gradient and `along` of the velocity.
        let (ahead, along) = match self.nesterov {
            true => (T::one(), n(self.momentum)),
            false => (T::zero(), T::one()),
        };
        all.pass(|p, g, [velocity]| {
            let g = g + decay * p;
            let velocity = keep * velocity + join * g;
            (p - rate * (ahead * g + along * velocity), [velocity])
        });
    }
}

/// Steps along the sign of a mean (Chen and others, 2023); its state is the mean of the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// The learning rate.
    pub rate: f64,
    /// The share of the parameter that stays: one minus rate times decay.
    pub keep: f64,
    /// The share of the mean in the direction, and how slowly the mean forgets.
    pub betas: [f64; 2],
}

impl Lion {
    pub(super) fn numbers(self) -> [f64; 8] {
        let [beta1, beta2] = self.betas;
        [self.rate, self.keep, beta1, beta2, 0.0, 0.0, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [rest1, rest2] = self.betas.map(|beta| T::of(1.0 - beta));
        let [beta1, beta2] = self.betas.map(T::of);
        let [rate, keep] = [self.rate, self.keep].map(T::of);
        all.pass(|p, g, [mean]| {
            let direction = sign(mean * beta1 + g * rest1);
            (p * keep - rate * direction, [mean * beta2 + g * rest2])
        });
    }
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
