//! Folds of strided views: `dst = dst op src`.

use half::{bf16, f16};
use shard_spec::ReduceOp;

use super::nest::Nest;
use crate::{Bool, CommError, DType, Element, Monoid, Result, Strided};

/// Combines a checked view into another. Types are equal, or a 16-bit float is folded into `f32`.
pub(crate) fn fold(
    op: Monoid,
    from: DType,
    src: &[u8],
    sv: &Strided,
    to: DType,
    dst: &mut [u8],
    dv: &Strided,
) {
    let Some(nest) = Nest::new(sv, dv) else {
        return;
    };
    match (from, to) {
        (DType::F16, DType::F32) => fold_as::<f16, f32>(op, &nest, src, dst),
        (DType::BF16, DType::F32) => fold_as::<bf16, f32>(op, &nest, src, dst),
        (DType::F64, _) => fold_as::<f64, f64>(op, &nest, src, dst),
        (DType::F32, _) => fold_as::<f32, f32>(op, &nest, src, dst),
        (DType::F16, _) => fold_as::<f16, f16>(op, &nest, src, dst),
        (DType::BF16, _) => fold_as::<bf16, bf16>(op, &nest, src, dst),
        (DType::I64, _) => fold_as::<i64, i64>(op, &nest, src, dst),
        (DType::I32, _) => fold_as::<i32, i32>(op, &nest, src, dst),
        (DType::U8, _) => fold_as::<u8, u8>(op, &nest, src, dst),
        (DType::Bool, _) => fold_as::<Bool, Bool>(op, &nest, src, dst),
    }
}

/// What a device checks before a fold, beyond its views.
///
/// # Errors
/// [`CommError::Invalid`] if the types do not fit each other or the operation, or groups are torn apart.
pub(crate) fn check(op: Monoid, from: DType, sv: &Strided, to: DType, dv: &Strided) -> Result<()> {
    if from != to && !(from.is_half() && to == DType::F32) {
        return Err(CommError::dtype("fold", to, from));
    }
    op.check(to)?;
    let width = op.width();
    let whole = |v: &Strided| {
        v.numel() == 0
            || matches!((v.shape.last(), v.strides.last()), (Some(n), Some(1)) if n % width == 0)
    };
    if width > 1 && !(whole(sv) && whole(dv)) {
        return Err(CommError::invalid(
            "fold",
            format!("a dense innermost dim, a multiple of {width}, for {op}"),
            format!("{sv:?} and {dv:?}"),
            "keep the elements of a group side by side",
        ));
    }
    Ok(())
}

fn fold_as<S, D>(op: Monoid, nest: &Nest, src: &[u8], dst: &mut [u8])
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
{
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    match op {
        Monoid::Op(ReduceOp::Sum) => each(nest, src, dst, Wide::add),
        Monoid::Op(ReduceOp::Prod) => each(nest, src, dst, Wide::mul),
        Monoid::Op(ReduceOp::Max) => each(nest, src, dst, Wide::max),
        Monoid::Op(ReduceOp::Min) => each(nest, src, dst, Wide::min),
        Monoid::Op(ReduceOp::Any) => each(nest, src, dst, |a, b| truth(is_true(a) || is_true(b))),
        Monoid::Op(ReduceOp::All) => each(nest, src, dst, |a, b| truth(is_true(a) && is_true(b))),
        Monoid::Moments => groups(nest, src, dst, Wide::merge_moments),
        Monoid::MaxSumExp => groups(nest, src, dst, Wide::merge_max_sum_exp),
        Monoid::ArgMax => groups(nest, src, dst, |a, b| better(a, b, S::Wide::max)),
        Monoid::ArgMin => groups(nest, src, dst, |a, b| better(a, b, S::Wide::min)),
    }
}

/// Elements and what they are computed in: 16-bit floats in `f32`, everything else in itself.
trait Widen: Element {
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
trait Wide: Element {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The greater value; NaN if either is.
    fn max(self, other: Self) -> Self;
    /// The lesser value; NaN if either is.
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
                if self.is_nan() || self > other { self } else { other }
            }
            #[inline]
            fn min(self, other: Self) -> Self {
                if self.is_nan() || self < other { self } else { other }
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

fn each<S: Widen, D: Widen<Wide = S::Wide>>(
    nest: &Nest,
    src: &[S],
    dst: &mut [D],
    op: impl Fn(S::Wide, S::Wide) -> S::Wide,
) {
    let one = |d: D, s: S| D::narrow(op(d.widen(), s.widen()));
    let row = |to: &mut [D], from: &[S]| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = one(*to, *from);
        }
    };
    nest.sweep(src, dst, row, one);
}

fn groups<const N: usize, S: Widen, D: Widen<Wide = S::Wide>>(
    nest: &Nest,
    src: &[S],
    dst: &mut [D],
    merge: impl Fn([S::Wide; N], [S::Wide; N]) -> [S::Wide; N],
) {
    nest.rows(src, dst, |to, from| {
        let (to, _) = to.as_chunks_mut::<N>();
        let (from, _) = from.as_chunks::<N>();
        for (to, from) in to.iter_mut().zip(from) {
            *to = merge(to.map(D::widen), from.map(S::widen)).map(D::narrow);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smallvec::smallvec;

    fn fold_slices<T: Element>(op: Monoid, dst: &mut [T], src: &[T]) {
        let v = Strided::contiguous(&[src.len()]);
        check(op, T::DTYPE, &v, T::DTYPE, &v).unwrap();
        fold(
            op,
            T::DTYPE,
            bytemuck::cast_slice(src),
            &v,
            T::DTYPE,
            bytemuck::cast_slice_mut(dst),
            &v,
        );
    }

    #[test]
    fn extremes_propagate_nan_from_either_side() {
        for op in [Monoid::MAX, Monoid::MIN] {
            let mut a = [f64::NAN, 1.0];
            fold_slices(op, &mut a, &[1.0, f64::NAN]);
            assert!(a.iter().all(|v| v.is_nan()), "{op}");
        }
    }

    #[test]
    fn lowest_index_wins_ties_and_nan_wins_all() {
        let mut a = [2.0f64, 7.0, 2.0, 3.0, f64::NAN, 9.0, 5.0, 0.0];
        fold_slices(
            Monoid::ArgMax,
            &mut a,
            &[2.0, 5.0, 3.0, 9.0, 8.0, 1.0, f64::NAN, 4.0],
        );
        assert_eq!(a[..4], [2.0, 5.0, 3.0, 9.0]);
        assert!(a[4].is_nan() && a[5] == 9.0 && a[6].is_nan() && a[7] == 4.0);
        let mut b = [4i64, 1];
        fold_slices(Monoid::ArgMin, &mut b, &[4, 0]);
        assert_eq!(b, [4, 0]);
    }

    #[test]
    fn identities_change_nothing() {
        let all = [
            Monoid::SUM,
            Monoid::Op(ReduceOp::Prod),
            Monoid::MAX,
            Monoid::MIN,
            Monoid::Moments,
            Monoid::MaxSumExp,
            Monoid::ArgMax,
            Monoid::ArgMin,
        ];
        for op in all {
            let identity: Vec<f64> = op
                .identity(DType::F64)
                .iter()
                .map(|&s| f64::from_scalar(s))
                .collect();
            let values = [[-3.0, 2.0, 5.0], [f64::NEG_INFINITY, 1.0, 4.0]];
            for value in values {
                let value = &value[..op.width()];
                let mut left = identity.clone();
                fold_slices(op, &mut left, value);
                assert_eq!(left, value, "{op}");
                let mut right = value.to_vec();
                fold_slices(op, &mut right, &identity);
                assert_eq!(right, value, "{op}");
            }
        }
        for (op, start) in [(Monoid::MAX, i32::MIN), (Monoid::MIN, i32::MAX)] {
            assert_eq!(i32::from_scalar(op.identity(DType::I32)[0]), start);
        }
    }

    #[test]
    fn moments_survive_a_large_mean() {
        let parts: [&[f32]; 3] = [&[1e4, 1e4 + 1.0], &[], &[1e4 - 1.0, 1e4 + 2.0, 1e4]];
        let mut total = [0.0f32; 3];
        for part in parts {
            let n = part.len() as f32;
            let mean = if part.is_empty() {
                0.0
            } else {
                part.iter().sum::<f32>() / n
            };
            let m2 = part.iter().map(|v| (v - mean).powi(2)).sum::<f32>();
            fold_slices(Monoid::Moments, &mut total, &[n, mean, m2]);
        }
        assert!((total[1] - 10_000.4).abs() < 1e-2, "{total:?}");
        assert!((total[2] - 5.2).abs() < 1e-2, "{total:?}");
    }

    #[test]
    fn half_sums_round_once_in_single() {
        let v = Strided::contiguous(&[1]);
        let one = [f16::from_f32(2048.0)];
        let mut acc = [0.0f32];
        for value in [one[0], f16::ONE, f16::ONE] {
            fold(
                Monoid::SUM,
                DType::F16,
                bytemuck::cast_slice(&[value]),
                &v,
                DType::F32,
                bytemuck::cast_slice_mut(&mut acc),
                &v,
            );
        }
        assert_eq!(acc, [2050.0]);
    }

    #[test]
    fn an_overlapping_destination_accumulates_in_order() {
        // Three sources on one element, as the adjoint of a broadcast: ((1e16 + 1) - 1e16) differs from other orders.
        let src = [1e16f64, 1.0, -1e16];
        let mut dst = [0.0f64];
        let sv = Strided::contiguous(&[3]);
        let dv = Strided::new(0, smallvec![3], smallvec![0]);
        fold(
            Monoid::SUM,
            DType::F64,
            bytemuck::cast_slice(&src),
            &sv,
            DType::F64,
            bytemuck::cast_slice_mut(&mut dst),
            &dv,
        );
        assert_eq!(dst, [(1e16 + 1.0) - 1e16]);
    }

    #[test]
    fn an_overlapping_destination_keeps_its_order_in_two_dims() {
        // Looks like a transpose, but each element is written several times, from rows that step backwards.
        let src: Vec<f64> = (0..10).map(f64::from).collect();
        let sv = Strided::new(4, smallvec![2, 3], smallvec![1, -1]);
        let dv = Strided::new(2, smallvec![2, 3], smallvec![-1, 1]);
        let mut dst = [0.0f64; 6];
        let v = (DType::F64, bytemuck::cast_slice(&src));
        fold(
            Monoid::SUM,
            v.0,
            v.1,
            &sv,
            v.0,
            bytemuck::cast_slice_mut(&mut dst),
            &dv,
        );
        assert_eq!(dst, [0.0, 5.0, 4.0 + 4.0, 3.0 + 3.0, 2.0, 0.0]);
    }

    #[test]
    fn torn_groups_and_wrong_types_are_refused() {
        let v = Strided::contiguous(&[4]);
        assert!(check(Monoid::Moments, DType::F32, &v, DType::F32, &v).is_err());
        assert!(check(Monoid::ArgMax, DType::F16, &v, DType::F16, &v).is_err());
        assert!(check(Monoid::SUM, DType::F32, &v, DType::F64, &v).is_err());
        assert!(check(Monoid::SUM, DType::BF16, &v, DType::F32, &v).is_ok());
    }

    proptest! {
        #[test]
        fn max_sum_exp_is_the_log_sum(values in prop::collection::vec(-50.0..50.0f64, 1..20)) {
            let mut total = [f64::NEG_INFINITY, 0.0];
            for &v in &values {
                fold_slices(Monoid::MaxSumExp, &mut total, &[v, 1.0]);
            }
            let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = values.iter().map(|v| (v - max).exp()).sum();
            prop_assert_eq!(total[0], max);
            prop_assert!((total[1] - sum).abs() <= 1e-12 * sum);
        }
    }
}
