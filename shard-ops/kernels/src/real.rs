//! The element types that kernels compute in, and their vectors.

use super::exp::Exp;
use super::gemm::Product;
use num_traits::{Float, NumAssign};
use pulp::Simd;
use shard_device::Element;

/// A floating point element type: `f32` or `f64`.
///
/// Besides arithmetic, a type knows its vector type on each instruction set, so that one generic tile kernel serves both types.
pub trait Real:
    Float
    + NumAssign
    + Element
    + Exp
    + super::conv::Compiled<Self>
    + super::fft::CompiledProduct<Self>
    + super::grid::Compiled<Self>
    + super::moments::Compiled<Self>
    + super::neighbors::CompiledFarthest<Self>
    + super::neighbors::CompiledNearest<Self>
    + super::neighbors::CompiledRadius<Self>
    + super::normalise::Compiled<Self>
    + super::normalise::CompiledCells<Self>
    + super::normalise::CompiledColumns<Self>
    + super::normalise::CompiledRuns<Self>
    + super::normalise::CompiledForward<Self>
    + super::optimize::Compiled<Self>
    + super::pairwise::Compiled<Self>
    + super::pointwise::Compiled<Self>
    + super::pool::Compiled<Self>
    + super::powers::Compiled<Self>
    + super::reduce::Compiled<Self>
    + super::resample::Compiled<Self>
    + super::rows::CompiledWeighted<Self>
    + super::scan::Compiled<Self>
    + super::scan::CompiledRecurrence<Self>
    + super::softmax::Compiled<Self>
    + super::softmax::CompiledRows<Self>
    + super::unary::Compiled<Self>
    + super::unfold::Compiled<Self>
{
    /// The vector of this element on instruction set `S`.
    type Vec<S: Simd>: Copy + core::fmt::Debug;

    /// The value nearest to `x`.
    fn of(x: f64) -> Self;

    /// This value in double precision, exactly.
    fn wide(self) -> f64;

    /// Lanes of [`Real::Vec`] on `S`.
    fn lanes<S: Simd>() -> usize;

    /// `slice` as whole vectors; the remainder that fills no vector is dropped.
    fn vectors<S: Simd>(slice: &[Self]) -> &[Self::Vec<S>];

    /// `slice` as whole mutable vectors; the remainder that fills no vector is dropped.
    fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [Self::Vec<S>];

    /// A vector of copies of `x`.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vec<S>;

    /// `a * b + c` per lane, fused where the instruction set fuses.
    fn mul_add_vec<S: Simd>(
        simd: S,
        a: Self::Vec<S>,
        b: Self::Vec<S>,
        c: Self::Vec<S>,
    ) -> Self::Vec<S>;

    /// `a + b` per lane.
    fn add_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S>;

    /// `a - b` per lane.
    fn sub_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S>;

    /// `a * b` per lane.
    fn mul_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S>;

    /// `a / b` per lane.
    fn div_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S>;

    /// The third where the first is below the second, and the fourth elsewhere, per lane.
    fn where_below_vec<S: Simd>(simd: S, of: [Self::Vec<S>; 4]) -> Self::Vec<S>;

    /// `b` where it is greater than `a` or no number, `a` elsewhere, per lane.
    fn larger_or_nan_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S>;

    /// `b` where it is less than `a` or no number, `a` elsewhere, per lane.
    fn smaller_or_nan_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S>;

    /// The larger of two numbers per lane, or the first where one is none.
    fn larger_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S>;

    /// The sum of a vector's lanes, in halves.
    fn sum_vec<S: Simd>(simd: S, a: Self::Vec<S>) -> Self;

    /// Of fours of elements that lie one after the other in four vectors, a vector of the first elements, one of the second ones, and so
    /// on. In which order the fours are then depends on the instruction set alone.
    fn split_fours<S: Simd>(simd: S, fours: [Self::Vec<S>; 4]) -> [Self::Vec<S>; 4];

    /// The function that multiplies matrices of this element.
    fn product() -> Product<Self>;
}

macro_rules! real {
    ($t:ty, $vec:ident, $lanes:ident, $as:ident, $as_mut:ident, $splat:ident, $fma:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $equal:ident, $greater:ident, $select:ident, $sum:ident, $split:ident, $product:ident) => {
        impl Real for $t {
            type Vec<S: Simd> = S::$vec;

            #[inline(always)]
            fn of(x: f64) -> Self {
                num_traits::AsPrimitive::<Self>::as_(x)
            }

            #[inline(always)]
            fn wide(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }

            #[inline(always)]
            fn vectors<S: Simd>(slice: &[Self]) -> &[Self::Vec<S>] {
                S::$as(slice).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [Self::Vec<S>] {
                S::$as_mut(slice).0
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: Self) -> Self::Vec<S> {
                simd.$splat(x)
            }

            #[inline(always)]
            fn mul_add_vec<S: Simd>(
                simd: S,
                a: Self::Vec<S>,
                b: Self::Vec<S>,
                c: Self::Vec<S>,
            ) -> Self::Vec<S> {
                simd.$fma(a, b, c)
            }

            #[inline(always)]
            fn add_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S> {
                simd.$add(a, b)
            }

            #[inline(always)]
            fn sub_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S> {
                simd.$sub(a, b)
            }

            #[inline(always)]
            fn div_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S> {
                simd.$div(a, b)
            }

            #[inline(always)]
            fn where_below_vec<S: Simd>(simd: S, [a, b, x, y]: [Self::Vec<S>; 4]) -> Self::Vec<S> {
                simd.$select(simd.$greater(b, a), x, y)
            }

            #[inline(always)]
            fn mul_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S> {
                simd.$mul(a, b)
            }

            #[inline(always)]
            fn larger_or_nan_vec<S: Simd>(
                simd: S,
                a: Self::Vec<S>,
                b: Self::Vec<S>,
            ) -> Self::Vec<S> {
                let number = simd.$equal(b, b);
                let larger = simd.$select(simd.$greater(b, a), b, a);
                simd.$select(number, larger, b)
            }

            #[inline(always)]
            fn smaller_or_nan_vec<S: Simd>(
                simd: S,
                a: Self::Vec<S>,
                b: Self::Vec<S>,
            ) -> Self::Vec<S> {
                let number = simd.$equal(b, b);
                let smaller = simd.$select(simd.$greater(a, b), b, a);
                simd.$select(number, smaller, b)
            }

            #[inline(always)]
            fn larger_vec<S: Simd>(simd: S, a: Self::Vec<S>, b: Self::Vec<S>) -> Self::Vec<S> {
                simd.$select(simd.$greater(b, a), b, a)
            }

            #[inline(always)]
            fn sum_vec<S: Simd>(simd: S, a: Self::Vec<S>) -> Self {
                simd.$sum(a)
            }

            #[inline(always)]
            fn split_fours<S: Simd>(simd: S, fours: [Self::Vec<S>; 4]) -> [Self::Vec<S>; 4] {
                simd.$split(fours)
            }

            #[inline(always)]
            fn product() -> Product<Self> {
                Product::$product()
            }
        }
    };
}

real!(
    f32,
    f32s,
    F32_LANES,
    as_simd_f32s,
    as_mut_simd_f32s,
    splat_f32s,
    mul_add_e_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    equal_f32s,
    greater_than_f32s,
    select_f32s,
    reduce_sum_f32s,
    deinterleave_shfl_f32s,
    single
);
real!(
    f64,
    f64s,
    F64_LANES,
    as_simd_f64s,
    as_mut_simd_f64s,
    splat_f64s,
    mul_add_e_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    equal_f64s,
    greater_than_f64s,
    select_f64s,
    reduce_sum_f64s,
    deinterleave_shfl_f64s,
    double
);
