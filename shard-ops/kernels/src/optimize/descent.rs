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

/// Steps along the sign of the gradient whose sizes grow while it stays and shrink where it turns (Riedmiller and Braun, 1993); its state
/// is the last gradient and the size of each element's step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rprop {
    /// The size of the first steps.
    pub rate: f64,
    /// By what a size is multiplied where the sign has turned, and where it has stayed.
    pub factors: [f64; 2],
    /// The least size and the largest.
    pub sizes: [f64; 2],
    /// Whether this is the parameter's first step, before which there are no sizes.
    pub first: bool,
}

impl Rprop {
    pub(super) fn numbers(self) -> [f64; 8] {
        let ([minus, plus], [least, most]) = (self.factors, self.sizes);
        let first = f64::from(u8::from(self.first));
        [self.rate, minus, plus, least, most, first, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let ([minus, plus], [least, most]) = (self.factors.map(T::of), self.sizes.map(T::of));
        // Before the first step no gradient has a sign.
        let (rate, keep) = match self.first {
            true => (T::of(self.rate), T::zero()),
            false => (T::zero(), T::one()),
        };
        all.pass(|p, g, [before, size]| {
            let turn = sign(g * before);
            let turned = turn < T::zero();
            let factor = if turned {
                minus
            } else if turn > T::zero() {
                plus
            } else {
                T::one() + turn
            };
            let size = (rate + keep * size) * factor;
            let size = if size < least { least } else { size };
            let size = if size > most { most } else { size };
            let g = if turned { T::zero() } else { g };
            (p - sign(g) * size, [g, size])
        });
    }
}

/// Gradient descent with ever smaller steps, beside which the parameters are averaged (Polyak and Juditsky, 1992); its state is that mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asgd {
    /// How far along the gradient the step goes.
    pub size: f64,
    /// The share of the parameter that stays, beside the gradient.
    pub keep: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// The share of the new parameter in the mean; all of it, if it is 1.
    pub share: f64,
}

impl Asgd {
    pub(super) fn numbers(self) -> [f64; 8] {
        let Self {
            size,
            keep,
            decay,
            share,
        } = self;
        [size, keep, decay, share, 0.0, 0.0, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [size, keep, decay, share] = [self.size, self.keep, self.decay, self.share].map(T::of);
        if self.share == 1.0 {
            return all.pass(|p, g, [_]| {
                let p = p * keep - size * (g + decay * p);
                (p, [p])
            });
        }
        all.pass(|p, g, [mean]| {
            let p = p * keep - size * (g + decay * p);
            (p, [mean + (p - mean) * share])
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
