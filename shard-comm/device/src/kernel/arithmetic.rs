//! The arithmetic of each monoid, in the type that values are computed in.

use half::{bf16, f16};
use shard_spec::ReduceOp;

use super::half_float::{narrow_f16, widen_f16};
use crate::{Bool, DType, Element, Monoid};

/// How two values become one.
pub(super) trait Op<W> {
    /// Whether it is common enough to have code that combines several terms at once.
    const COMMON: bool;
    fn of(a: W, b: W) -> W;
}

/// How two groups of neighbouring values become one.
pub(super) trait Merge<W, const N: usize> {
    fn of(a: [W; N], b: [W; N]) -> [W; N];
}

/// Code that exists for each operation on each pair of types that may meet; [`choose`] picks one instance of it.
pub(super) trait Family {
    /// An instance: pointers to functions, so that the loops around them are compiled fewer times.
    type Kernel;
    fn each<S: Widen, D: Widen<Wide = S::Wide>, O: Op<S::Wide>>() -> Self::Kernel;
    fn groups<S, D, M, const N: usize>() -> Self::Kernel
    where
        S: Widen,
        D: Widen<Wide = S::Wide>,
        M: Merge<S::Wide, N>;
}

/// The instance of a family that combines a type with itself, or a 16-bit float with `f32`; `None` where
/// [`Monoid::check`] refuses.
pub(super) fn choose<F: Family>(op: Monoid, from: DType, to: DType) -> Option<F::Kernel> {
    match (from, to) {
        (DType::F16, DType::F32) => f32::choose::<F, f16, f32>(op),
        (DType::BF16, DType::F32) => f32::choose::<F, bf16, f32>(op),
        (DType::F64, _) => f64::choose::<F, f64, f64>(op),
        (DType::F32, _) => f32::choose::<F, f32, f32>(op),
        (DType::F16, _) => f32::choose::<F, f16, f16>(op),
        (DType::BF16, _) => f32::choose::<F, bf16, bf16>(op),
        (DType::I64, _) => i64::choose::<F, i64, i64>(op),
        (DType::I32, _) => i32::choose::<F, i32, i32>(op),
        (DType::U8, _) => u8::choose::<F, u8, u8>(op),
        (DType::Bool, _) => Bool::choose::<F, Bool, Bool>(op),
    }
}

macro_rules! ops {
    ($($name:ident $common:literal: |$a:ident, $b:ident| $value:expr;)*) => {$(
        struct $name;
        impl<W: Wide> Op<W> for $name {
            const COMMON: bool = $common;
            #[inline]
            fn of($a: W, $b: W) -> W { $value }
        }
    )*};
}

ops! {
    Sum true: |a, b| a.add(b);
    Prod false: |a, b| a.mul(b);
    Max true: |a, b| a.max(b);
    Min true: |a, b| a.min(b);
    Any false: |a, b| truth(is_true(a) || is_true(b));
    All false: |a, b| truth(is_true(a) && is_true(b));
}

struct Moments;
struct MaxSumExp;
struct ArgMax;
struct ArgMin;

impl<W: Float> Merge<W, 3> for Moments {
    #[inline]
    fn of(a: [W; 3], b: [W; 3]) -> [W; 3] {
        W::merge_moments(a, b)
    }
}

impl<W: Float> Merge<W, 2> for MaxSumExp {
    #[inline]
    fn of(a: [W; 2], b: [W; 2]) -> [W; 2] {
        W::merge_max_sum_exp(a, b)
    }
}

impl<W: Wide> Merge<W, 2> for ArgMax {
    #[inline]
    fn of(a: [W; 2], b: [W; 2]) -> [W; 2] {
        better(a, b, W::max)
    }
}

impl<W: Wide> Merge<W, 2> for ArgMin {
    #[inline]
    fn of(a: [W; 2], b: [W; 2]) -> [W; 2] {
        better(a, b, W::min)
    }
}

fn choose_op<F: Family, S: Widen, D: Widen<Wide = S::Wide>>(op: Monoid) -> Option<F::Kernel> {
    match op {
        Monoid::Op(ReduceOp::Sum) => Some(F::each::<S, D, Sum>()),
        Monoid::Op(ReduceOp::Prod) => Some(F::each::<S, D, Prod>()),
        Monoid::Op(ReduceOp::Max) => Some(F::each::<S, D, Max>()),
        Monoid::Op(ReduceOp::Min) => Some(F::each::<S, D, Min>()),
        Monoid::Op(ReduceOp::Any) => Some(F::each::<S, D, Any>()),
        Monoid::Op(ReduceOp::All) => Some(F::each::<S, D, All>()),
        _ => None,
    }
}

fn choose_index<F: Family, S: Widen, D: Widen<Wide = S::Wide>>(op: Monoid) -> Option<F::Kernel> {
    match op {
        Monoid::ArgMax => Some(F::groups::<S, D, ArgMax, 2>()),
        Monoid::ArgMin => Some(F::groups::<S, D, ArgMin, 2>()),
        _ => choose_op::<F, S, D>(op),
    }
}

fn choose_statistic<F: Family, S: Widen<Wide: Float>, D: Widen<Wide = S::Wide>>(
    op: Monoid,
) -> Option<F::Kernel> {
    match op {
        Monoid::Moments => Some(F::groups::<S, D, Moments, 3>()),
        Monoid::MaxSumExp => Some(F::groups::<S, D, MaxSumExp, 2>()),
        _ => choose_index::<F, S, D>(op),
    }
}

/// On truth values all operations are one of two, under several names.
fn choose_truth<F: Family>(op: Monoid) -> Option<F::Kernel> {
    match op {
        Monoid::Op(ReduceOp::Sum | ReduceOp::Max | ReduceOp::Any) => {
            Some(F::each::<Bool, Bool, Sum>())
        }
        Monoid::Op(ReduceOp::Prod | ReduceOp::Min | ReduceOp::All) => {
            Some(F::each::<Bool, Bool, Prod>())
        }
        _ => None,
    }
}

/// Element types, each with the type that its values are computed in: `f32` for 16-bit floats, the type itself otherwise.
pub(super) trait Widen: Element {
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

// These are loops, because of each `map` of an array the compiler makes four functions.

/// A group in the type that it is computed in.
#[inline]
pub(super) fn widened<S: Widen, const N: usize>(group: &[S; N]) -> [S::Wide; N] {
    let mut wide = [S::Wide::default(); N];
    for (wide, value) in wide.iter_mut().zip(group) {
        *wide = value.widen();
    }
    wide
}

/// Writes the result of a computation on a group.
#[inline]
pub(super) fn narrow_into<D: Widen, const N: usize>(group: &mut [D; N], wide: [D::Wide; N]) {
    for (value, wide) in group.iter_mut().zip(wide) {
        *value = D::narrow(wide);
    }
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
    ($($type:ty: $widen:path, $narrow:path;)*) => {$(
        impl Widen for $type {
            type Wide = f32;
            #[inline]
            fn widen(self) -> f32 { $widen(self) }
            #[inline]
            fn narrow(wide: f32) -> Self { $narrow(wide) }
        }
    )*};
}

widen_to_f32!(f16: widen_f16, narrow_f16; bf16: bf16::to_f32, bf16::from_f32;);

/// Arithmetic of a type that values are computed in.
pub(super) trait Wide: Element {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The greater value; NaN if either is. +0 is above -0, so that the order of the two operands does not matter.
    fn max(self, other: Self) -> Self;
    /// The lesser value; NaN if either is. +0 is above -0.
    fn min(self, other: Self) -> Self;
    fn is_nan(self) -> bool {
        false
    }
    /// The instance of a family for an operation on types that are computed in this type.
    fn choose<F: Family, S: Widen<Wide = Self>, D: Widen<Wide = Self>>(
        op: Monoid,
    ) -> Option<F::Kernel>;
}

/// Arithmetic of the types that statistics are computed in.
trait Float: Wide {
    /// Merges (count, mean, M2).
    fn merge_moments(a: [Self; 3], b: [Self; 3]) -> [Self; 3];
    /// Merges (max, sum of exponentials).
    fn merge_max_sum_exp(a: [Self; 2], b: [Self; 2]) -> [Self; 2];
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
            fn choose<F: Family, S: Widen<Wide = Self>, D: Widen<Wide = Self>>(
                op: Monoid,
            ) -> Option<F::Kernel> {
                choose_statistic::<F, S, D>(op)
            }
        }

        impl Float for $type {
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
                if !delta.is_finite() {
                    // Means that are not finite, or as large as numbers get.
                    let all = mean * (n / count) + mean_b * (nb / count);
                    let apart = if all.is_finite() { Self::INFINITY } else { Self::NAN };
                    return [count, all, m2 + m2_b + apart];
                }
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
    ($($type:ty: $choose:ident),*) => {$(
        impl Wide for $type {
            #[inline]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline]
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
            #[inline]
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
            fn choose<F: Family, S: Widen<Wide = Self>, D: Widen<Wide = Self>>(
                op: Monoid,
            ) -> Option<F::Kernel> {
                $choose::<F, S, D>(op)
            }
        }
    )*};
}

wide_int!(i64: choose_index, i32: choose_index, u8: choose_op);

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
    fn choose<F: Family, S: Widen<Wide = Self>, D: Widen<Wide = Self>>(
        op: Monoid,
    ) -> Option<F::Kernel> {
        choose_truth::<F>(op)
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
