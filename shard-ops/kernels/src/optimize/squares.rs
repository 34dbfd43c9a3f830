//! Steps along a gradient that is divided by how large gradients were.

use super::All;
use crate::Real;

/// Divides by the root of a mean of squares (Tieleman and Hinton, 2012). Its state is that mean, a velocity if it has momentum, and the
/// mean of the gradient if it is centred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    /// The learning rate.
    pub rate: f64,
    /// How slowly means forget.
    pub keep: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// The number that is added to the denominator.
    pub eps: f64,
    /// The share of the velocity that stays; without any there is none.
    pub momentum: f64,
    /// Whether the root of the variance divides, rather than that of the mean of squares. Rounding may leave less than nothing of a
    /// variance, which counts as nothing.
    pub centered: bool,
}

impl RmsProp {
    pub(super) fn numbers(self) -> [f64; 8] {
        let Self {
            rate,
            keep,
            decay,
            eps,
            momentum,
            ..
        } = self;
        [rate, keep, decay, eps, momentum, 0.0, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [rate, decay, eps] = [self.rate, self.decay, self.eps].map(T::of);
        let (momentum, means) = (T::of(self.momentum), Means::new(self.keep));
        match (self.momentum != 0.0, self.centered) {
            (false, false) => all.pass(|p, g, [square]| {
                let g = g + decay * p;
                let square = means.of_squares(square, g);
                (p - rate * (g / (square.sqrt() + eps)), [square])
            }),
            (true, false) => all.pass(|p, g, [square, velocity]| {
                let g = g + decay * p;
                let square = means.of_squares(square, g);
                let velocity = momentum * velocity + g / (square.sqrt() + eps);
                (p - rate * velocity, [square, velocity])
            }),
            (false, true) => all.pass(|p, g, [square, mean]| {
                let g = g + decay * p;
                let (square, mean) = (means.of_squares(square, g), means.of(mean, g));
                (
                    p - rate * (g / (spread(square, mean) + eps)),
                    [square, mean],
                )
            }),
            (true, true) => all.pass(|p, g, [square, velocity, mean]| {
                let g = g + decay * p;
                let (square, mean) = (means.of_squares(square, g), means.of(mean, g));
                let velocity = momentum * velocity + g / (spread(square, mean) + eps);
                (p - rate * velocity, [square, velocity, mean])
            }),
        }
    }
}

/// How means follow values.
#[derive(Clone, Copy)]
struct Means<T> {
    keep: T,
    forget: T,
}

impl<T: Real> Means<T> {
    fn new(keep: f64) -> Self {
        Self {
            keep: T::of(keep),
            forget: T::of(1.0 - keep),
        }
    }

    #[inline(always)]
    fn of(self, mean: T, next: T) -> T {
        mean + (next - mean) * self.forget
    }

    #[inline(always)]
    fn of_squares(self, mean: T, next: T) -> T {
        mean * self.keep + self.forget * next * next
    }
}

/// The root of the variance that a mean of squares and a mean leave.
#[inline(always)]
fn spread<T: Real>(square: T, mean: T) -> T {
    let variance = square - mean * mean;
    let none = variance < T::zero();
    (if none { T::zero() } else { variance }).sqrt()
}

/// Divides by the root of the sum of all squares so far, which is its state (Duchi, Hazan and Singer, 2011).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adagrad {
    /// The learning rate.
    pub rate: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// The number that is added to the denominator.
    pub eps: f64,
}

impl Adagrad {
    pub(super) fn numbers(self) -> [f64; 8] {
        [self.rate, self.decay, self.eps, 0.0, 0.0, 0.0, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [rate, decay, eps] = [self.rate, self.decay, self.eps].map(T::of);
        all.pass(|p, g, [sum]| {
            let g = g + decay * p;
            let sum = sum + g * g;
            (p - rate * (g / (sum.sqrt() + eps)), [sum])
        });
    }
}

/// Steps as large as the last ones were beside such gradients (Zeiler, 2012). Its state is the means of the squares of gradients, and of
/// steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adadelta {
    /// The share of such a step that is taken.
    pub rate: f64,
    /// How slowly the two means forget.
    pub keep: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// The number that is added to both means.
    pub eps: f64,
}

impl Adadelta {
    pub(super) fn numbers(self) -> [f64; 8] {
        let Self {
            rate,
            keep,
            decay,
            eps,
        } = self;
        [rate, keep, decay, eps, 0.0, 0.0, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [rate, decay, eps] = [self.rate, self.decay, self.eps].map(T::of);
        let (keep, forget) = (T::of(self.keep), T::of(1.0 - self.keep));
        all.pass(|p, g, [square, steps]| {
            let g = g + decay * p;
            let square = square * keep + forget * g * g;
            let step = (steps + eps).sqrt() / (square + eps).sqrt() * g;
            (
                p - rate * step,
                [square, steps * keep + forget * step * step],
            )
        });
    }
}
