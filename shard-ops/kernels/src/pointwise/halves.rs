//! Arithmetic of numbers of `bf16`: each is widened, and what comes out is rounded, in registers.

use super::{Binary, assert_shapes, by_rows, larger, prelu, smaller, zip_by};
use crate::loops::Words;
use crate::reduce::Half;
use crate::special::next_half;
use crate::{View, ViewMut};
use core::ops::{Add, Div, Mul, Sub};
use half::bf16;
use shard_device::Element;

/// As [`binary`](super::binary) of numbers in `f32`, each rounded once. Returns false, and has done nothing, for maps whose formula takes longer than to
/// widen and round.
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
            zip_by::<bf16, Words, _>(a, b, out, &$f)
        };
    }
    match op {
        Binary::Add => rounded!(f32::add),
        Binary::Sub => rounded!(f32::sub),
        Binary::Mul => rounded!(f32::mul),
        Binary::Div => rounded!(f32::div),
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
    by_rows(a, b, out, |a, b, out| {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = next_half(*a, *b);
        }
    });
}
