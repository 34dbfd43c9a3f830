//! What each monoid does to values, in the type they are computed in.

use half::{bf16, f16};
use shard_spec::ReduceOp;

use crate::{Bool, Element, Monoid};

/// Something that goes over memory, to be told how elements or groups are combined.
pub(super) trait Combine<W> {
    /// Element by element.
    fn each(self, op: impl Fn(W, W) -> W);
    /// Groups of neighbouring elements at once.
    fn groups<const N: usize>(self, merge: impl Fn([W; N], [W; N]) -> [W; N]);
}

/// Goes over memory with the operation of a monoid.
pub(super) fn combine<W: Wide>(op: Monoid, over: impl Combine<W>) {
    match op {
        Monoid::Op(ReduceOp::Sum) => over.each(Wide::add),
        Monoid::Op(ReduceOp::Prod) => over.each(Wide::mul),
        Monoid::Op(ReduceOp::Max) => over.each(Wide::max),
        Monoid::Op(ReduceOp::Min) => over.each(Wide::min),
        Monoid::Op(ReduceOp::Any) => over.each(|a, b| truth(is_true(a) || is_true(b))),
        Monoid::Op(ReduceOp::All) => over.each(|a, b| truth(is_true(a) && is_true(b))),
        Monoid::Moments => over.groups(Wide::merge_moments),
        Monoid::MaxSumExp => over.groups(Wide::merge_max_sum_exp),
        Monoid::ArgMax => over.groups(|a, b| better(a, b, W::max)),
        Monoid::ArgMin => over.groups(|a, b| better(a, b, W::min)),
    }
}

/// Elements and what they are computed in: 16-bit floats in `f32`, everything else in itself.
pub(super) trait Widen: Element {
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! widen_to_self {
    ($($type:ty),*) => {$(
        impl Widen for $type {
            type Wide = Self;
            #[inline]
            fn widen(self) -> Self { self }
            #[inline]
            fn narrow(wide: Self) -> Self { wide }
        }
    )*};
}

widen_to_self!(f64, f32, i64, i32, u8, Bool);

macro_rules! widen_to_f32 {
    ($($type:ty),*) => {$(
        impl Widen for $type {
            type Wide = f32;
            #[inline]
            fn widen(self) -> f32 { self.to_f32() }
            #[inline]
            fn narrow(wide: f32) -> Self { Self::from_f32(wide) }
        }
    )*};
}

widen_to_f32!(f16, bf16);

/// Arithmetic of a type that values are computed in.
pub(super) trait Wide: Element {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The greater value; NaN if either is. A zero is above its negative, so that the order of the two is of no account.
    fn max(self, other: Self) -> Self;
    /// The lesser value; NaN if either is. A zero is above its negative.
    fn min(self, other: Self) -> Self;
    fn is_nan(self) -> bool {
        false
    }
    /// Merges (count, mean, M2); of float types only, which [`Monoid::check`] ensures.
    fn merge_moments(a: [Self; 3], _b: [Self; 3]) -> [Self; 3] {
        a
    }
    /// Merges (max, sum of exponentials); of float types only, which [`Monoid::check`] ensures.
    fn merge_max_sum_exp(a: [Self; 2], _b: [Self; 2]) -> [Self; 2] {
        a
    }
}

macro_rules! wide_float {
    ($($type:ty),*) => {$(
        impl Wide for $type {
            #[inline]
            fn add(self, other: Self) -> Self { self + other }
            #[inline]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline]
            fn max(self, other: Self) -> Self {
                let wins = self > other || self == other && other.is_sign_negative();
                if self.is_nan() || wins { self } else { other }
            }
            #[inline]
            fn min(self, other: Self) -> Self {
                let wins = self < other || self == other && other.is_sign_positive();
                if self.is_nan() || wins { self } else { other }
            }
            #[inline]
            fn is_nan(self) -> bool { self != self }

            // Chan, Golub, LeVeque: exact where sums of squares cancel. An empty side changes nothing.
            #[inline]
            fn merge_moments([n, mean, m2]: [Self; 3], [nb, mean_b, m2_b]: [Self; 3]) -> [Self; 3] {
                if nb == 0.0 {
                    return [n, mean, m2];
                }
                if n == 0.0 {
                    return [nb, mean_b, m2_b];
                }
                let (delta, count) = (mean_b - mean, n + nb);
                [count, mean + delta * (nb / count), m2 + m2_b + delta * delta * (n * nb / count)]
            }

            #[inline]
            fn merge_max_sum_exp([ma, sa]: [Self; 2], [mb, sb]: [Self; 2]) -> [Self; 2] {
                let max = Wide::max(ma, mb);
                // Equal maxima need no rescaling, and infinite ones must not become inf - inf.
                let scaled = |m: Self, s: Self| if m == max { s } else { s * (m - max).exp() };
                [max, scaled(ma, sa) + scaled(mb, sb)]
            }
        }
    )*};
}

wide_float!(f64, f32);

macro_rules! wide_int {
    ($($type:ty),*) => {$(
        impl Wide for $type {
            #[inline]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline]
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
            #[inline]
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
        }
    )*};
}

wide_int!(i64, i32, u8);

impl Wide for Bool {
    #[inline]
    fn add(self, other: Self) -> Self {
        Self::new(self.get() | other.get())
    }
    #[inline]
    fn mul(self, other: Self) -> Self {
        Self::new(self.get() & other.get())
    }
    #[inline]
    fn max(self, other: Self) -> Self {
        self.add(other)
    }
    #[inline]
    fn min(self, other: Self) -> Self {
        self.mul(other)
    }
}

#[inline]
fn is_true<T: Wide>(value: T) -> bool {
    value != T::default()
}

#[inline]
fn truth<T: Wide>(value: bool) -> T {
    T::from_f64(f64::from(u8::from(value)))
}

/// The better of two (value, index) pairs under `pick`; NaN is best, and the lower index wins ties.
#[inline]
fn better<T: Wide>(a: [T; 2], b: [T; 2], pick: impl Fn(T, T) -> T) -> [T; 2] {
    let lower = || if b[1] < a[1] { b } else { a };
    match (a[0].is_nan(), b[0].is_nan()) {
        (true, true) => lower(),
        (true, false) => a,
        (false, true) => b,
        (false, false) if a[0] == b[0] => lower(),
        (false, false) => {
            if pick(a[0], b[0]) == a[0] {
                a
            } else {
                b
            }
        }
    }
}
