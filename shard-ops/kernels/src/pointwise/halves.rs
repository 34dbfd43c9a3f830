//! Arithmetic of numbers of `bf16` that broadcast: each is widened, and what comes out is rounded, in registers.

use super::{Binary, assert_shapes, join_dims, larger, prelu, smaller, zip};
use crate::reduce::Half;
use crate::special::next_half;
use crate::{View, ViewMut};
use half::bf16;
use shard_device::Element;

/// Numbers that lie side by side in both operands from which on these are better taken in turns, some at a time.
const LONG: usize = 1 << 14;

/// As [`binary`](super::binary) of numbers in `f32`, each rounded once. Returns false, and has done nothing, for maps whose formula takes longer than to
/// widen and round, and where many numbers lie side by side in both operands.
///
/// ```
/// use half::bf16;
/// use shard_kernels::{pointwise::{binary_halves, Binary}, View, ViewMut};
/// let [a, b] = [[1.0, 256.0], [2.0, 1.0]].map(|x| x.map(bf16::from_f32));
/// let mut out = [bf16::ZERO; 2];
/// let is_done = binary_halves(Binary::Add, &View::line(&a), &View::line(&b), &mut ViewMut::line(&mut out));
/// assert_eq!((is_done, out.map(f32::from)), (true, [3.0, 256.0]));
/// ```
///
/// # Panics
/// When the shapes differ.
pub fn binary_halves(
    op: Binary,
    a: &View<'_, bf16>,
    b: &View<'_, bf16>,
    out: &mut ViewMut<'_, bf16>,
) -> bool {
    assert_shapes(&[a.shape(), b.shape()], out.shape());
    macro_rules! rounded {
        ($f:expr) => {
            zip(
                a,
                b,
                out,
                #[inline(always)]
                |a: bf16, b: bf16| bf16::from_f32($f(a.to_f32(), b.to_f32())),
            )
        };
    }
    let (extents, steps) = join_dims(out.shape(), [a.strides(), b.strides()]);
    let side_by_side = steps.last() == Some(&[1, 1]);
    if side_by_side && extents.last().is_some_and(|n| *n >= LONG) {
        return false;
    }
    match op {
        Binary::Add => rounded!(|a, b| a + b),
        Binary::Sub => rounded!(|a, b| a - b),
        Binary::Mul => rounded!(|a, b| a * b),
        Binary::Div => rounded!(|a, b| a / b),
        Binary::Maximum => rounded!(larger),
        Binary::Minimum => rounded!(smaller),
        Binary::Copysign => rounded!(f32::copysign),
        Binary::Prelu => rounded!(prelu),
        _ => return false,
    }
    true
}

/// The next numbers of the type after those of `a` on the way to those of `b`: which are others than those of wider types.
///
/// ```
/// use half::bf16;
/// use shard_kernels::{View, ViewMut, pointwise::next_halves};
/// let [a, b] = [[1.0, 0.0, 3.0], [2.0, -1.0, 3.0]].map(|x| x.map(bf16::from_f32));
/// let mut out = [bf16::ZERO; 3];
/// next_halves(&View::line(&a), &View::line(&b), &mut ViewMut::line(&mut out));
/// assert_eq!(out, [bf16::from_f32(1.0078125), -bf16::MIN_POSITIVE_SUBNORMAL, bf16::from_f32(3.0)]);
/// ```
///
/// # Panics
/// When the shapes differ.
pub fn next_halves<T: Half + Element>(a: &View<'_, T>, b: &View<'_, T>, out: &mut ViewMut<'_, T>) {
    zip(a, b, out, next_half);
}
