//! Adam and its kin: steps by a mean of the gradient, and how large it was.

use super::{All, larger};
use crate::Real;

/// Adam (Kingma and Ba, 2015); its state is the means of the gradient and of its square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// The share of the parameter that stays: one minus rate times decoupled decay (Loshchilov and Hutter, 2019).
    pub keep: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// How slowly the two means forget.
    pub betas: [f64; 2],
    /// The learning rate divided by the first mean's correction, `1 - beta1^step`.
    pub size: f64,
    /// The root of the second mean's correction, `1 - beta2^step`.
    pub root: f64,
    /// The number that is added to the denominator.
    pub eps: f64,
    /// Whether the largest second mean so far divides, which is a third state (Reddi, Kale and Kumar, 2018).
    pub amsgrad: bool,
}

impl Adam {
    pub(super) fn numbers(self) -> [f64; 8] {
        let ([b1, b2], Self { keep, decay, .. }) = (self.betas, self);
        [keep, decay, b1, b2, self.size, self.root, self.eps, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [keep, decay] = [self.keep, self.decay].map(T::of);
        let [size, root, eps] = [self.size, self.root, self.eps].map(T::of);
        let means = Means::of(self.betas);
        match self.amsgrad {
            false => all.pass(|p, g, [mean, square]| {
                let [mean, square] = means.next(g + decay * p, [mean, square]);
                let denominator = square.sqrt() / root + eps;
                (p * keep - size * (mean / denominator), [mean, square])
            }),
            true => all.pass(|p, g, [mean, square, most]| {
                let [mean, square] = means.next(g + decay * p, [mean, square]);
                let most = larger(most, square);
                let denominator = most.sqrt() / root + eps;
                (p * keep - size * (mean / denominator), [mean, square, most])
            }),
        }
    }
}

/// Adam that looks ahead along its mean (Dozat, 2016); its state is Adam's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NAdam {
    /// The share of the parameter that stays: one minus rate times decoupled decay.
    pub keep: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// How slowly the two means forget.
    pub betas: [f64; 2],
    /// How far the step goes along the gradient, and how far along its mean.
    pub sizes: [f64; 2],
    /// The root of the second mean's correction, `1 - beta2^step`.
    pub root: f64,
    /// The number that is added to the denominator.
    pub eps: f64,
}

impl NAdam {
    pub(super) fn numbers(self) -> [f64; 8] {
        let ([b1, b2], [along, ahead]) = (self.betas, self.sizes);
        let Self {
            keep,
            decay,
            root,
            eps,
            ..
        } = self;
        [keep, decay, b1, b2, along, ahead, root, eps]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [keep, decay] = [self.keep, self.decay].map(T::of);
        let ([along, ahead], [root, eps]) =
            (self.sizes.map(T::of), [self.root, self.eps].map(T::of));
        let means = Means::of(self.betas);
        all.pass(|p, g, state| {
            let g = g + decay * p;
            let [mean, square] = means.next(g, state);
            let denominator = square.sqrt() / root + eps;
            let step = (along * g + ahead * mean) / denominator;
            (p * keep - step, [mean, square])
        });
    }
}

/// Adam that divides by its second mean once enough is known of that (Liu and others, 2020); its state is Adam's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RAdam {
    /// The share of the parameter that stays: one minus rate times decoupled decay.
    pub keep: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// How slowly the two means forget.
    pub betas: [f64; 2],
    /// The learning rate times all corrections.
    pub size: f64,
    /// The number that is added to the denominator.
    pub eps: f64,
    /// Whether there is a denominator.
    pub adapts: bool,
}

impl RAdam {
    pub(super) fn numbers(self) -> [f64; 8] {
        let ([b1, b2], adapts) = (self.betas, f64::from(u8::from(self.adapts)));
        let Self {
            keep,
            decay,
            size,
            eps,
            ..
        } = self;
        [keep, decay, b1, b2, size, eps, adapts, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [keep, decay, size, eps] = [self.keep, self.decay, self.size, self.eps].map(T::of);
        let means = Means::of(self.betas);
        match self.adapts {
            true => all.pass(|p, g, state| {
                let [mean, square] = means.next(g + decay * p, state);
                let step = mean / (square.sqrt() + eps);
                (p * keep - size * step, [mean, square])
            }),
            false => all.pass(|p, g, state| {
                let [mean, square] = means.next(g + decay * p, state);
                (p * keep - size * mean, [mean, square])
            }),
        }
    }
}

/// Adam with the largest gradient of late in place of the mean of squares (Kingma and Ba, 2015, section 7.1); its state is the mean of
/// the gradient, and that size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adamax {
    /// The learning rate divided by the mean's correction, `1 - beta1^step`.
    pub size: f64,
    /// The share of the parameter that is added to its gradient.
    pub decay: f64,
    /// How slowly the mean and the largest gradient forget.
    pub betas: [f64; 2],
    /// The number that is added to the size of each gradient.
    pub eps: f64,
}

impl Adamax {
    pub(super) fn numbers(self) -> [f64; 8] {
        let [b1, b2] = self.betas;
        [self.size, self.decay, b1, b2, self.eps, 0.0, 0.0, 0.0]
    }

    pub(super) fn take<T: Real>(self, all: All<'_, '_, T>) {
        let [size, decay, eps] = [self.size, self.decay, self.eps].map(T::of);
        let (forget, keep) = (T::of(1.0 - self.betas[0]), T::of(self.betas[1]));
        all.pass(|p, g, [mean, most]| {
            let g = g + decay * p;
            let mean = mean + (g - mean) * forget;
            let most = larger(keep * most, larger(g, -g) + eps);
            (p - size * (mean / most), [mean, most])
        });
    }
}

/// How the means of Adam follow gradients.
#[derive(Clone, Copy)]
struct Means<T> {
    forget: [T; 2],
    keep: T,
}

impl<T: Real> Means<T> {
    fn of([beta1, beta2]: [f64; 2]) -> Self {
        Self {
            forget: [1.0 - beta1, 1.0 - beta2].map(T::of),
            keep: T::of(beta2),
        }
    }

    #[inline(always)]
    fn next(self, g: T, [mean, square]: [T; 2]) -> [T; 2] {
        let [forget1, forget2] = self.forget;
        [
            mean + (g - mean) * forget1,
            square * self.keep + forget2 * g * g,
        ]
    }
}
