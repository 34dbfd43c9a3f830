//! Maps of two numbers of any type, row by row: arithmetic of integers and truth values, comparisons of all types, and choices
//! by a mask.
//!
//! Floats are added and multiplied by [`pointwise`](super::pointwise). What is done here is chosen before the loops, as a
//! function on rows: there is one walk of the operands per type, whatever the operation.

use super::pointwise::{Binary, assert_shapes, vectorized};
use super::view::for_each_row;
use super::{View, ViewMut};
use crate::compiled::compiled;
use num_traits::{AsPrimitive, PrimInt, WrappingMul, WrappingSub};
use pulp::{Simd, WithSimd};
use shard_device::{Bool, Element};

/// A comparison of two numbers, or what logic says of both: zero is false, all else is true, NaN too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// `a > b`
    Gt,
    /// `a >= b`
    Ge,
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a == b`
    Eq,
    /// `a != b`
    Ne,
    /// Both are true.
    And,
    /// Either is true.
    Or,
    /// One of the two is true.
    Xor,
}

/// What a map does to a row.
type Row<T, R> = fn(&[T], &[T], &mut [R]);

/// An element that can be compared: a float, an integer or a truth value.
pub trait Number:
    Element
    + Compiled<Self>
    + super::best::Compiled<Self>
    + super::scan::CompiledNumber<Self>
    + super::tally::Compiled<Self>
{
    /// Whether it is not zero; NaN is not.
    #[inline]
    fn is_true(self) -> bool {
        self != Self::default()
    }

    /// Whether it is no number.
    #[inline]
    #[expect(clippy::eq_op, reason = "what differs from itself is NaN")]
    fn is_nan(self) -> bool {
        self != self
    }

    /// The largest (or smallest) of some elements, NaN if there is one, where vectors find it faster than one comparison after
    /// another does.
    #[inline]
    fn extreme(_largest: bool, _of: &[Self]) -> Option<Self> {
        None
    }
}

impl Number for f64 {
    fn extreme(largest: bool, of: &[Self]) -> Option<Self> {
        Some(super::reduce::extreme(largest, of))
    }
}
impl Number for f32 {
    fn extreme(largest: bool, of: &[Self]) -> Option<Self> {
        Some(super::reduce::extreme(largest, of))
    }
}
impl Number for i64 {}
impl Number for i32 {}
impl Number for u8 {}
impl Number for Bool {}

/// An integer or a truth value.
///
/// Integers wrap. Division rounds down and has the divisor's sign on the remainder, as PyTorch's `floor_divide` and
/// `remainder`; by 0 both give 0, as NumPy's. An integer to a negative power is 0, but for those of 1 and -1. A shift by less
/// than 0 or by as many bits as there are shifts everything out. Sums and products of truth values are "or" and "and".
pub trait Whole: Number + CompiledWhole<Self> + super::scan::CompiledWhole<Self> {
    /// The map of rows, if the type has it.
    fn row(op: Binary) -> Option<Row<Self, Self>>;
    /// As an integer that holds it.
    fn wide(self) -> i64;
    /// The number of these low bits; of a truth value, whether it is not 0.
    fn narrow(wide: i64) -> Self;
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Whole for $type {
            fn row(op: Binary) -> Option<Row<Self, Self>> {
                Some(match op {
                    Binary::Add => |a, b, out| each(a, b, out, Self::wrapping_add),
                    Binary::Sub => |a, b, out| each(a, b, out, Self::wrapping_sub),
                    Binary::Mul => |a, b, out| each(a, b, out, Self::wrapping_mul),
                    Binary::FloorDiv => |a, b, out| each(a, b, out, floor_div),
                    Binary::Remainder => |a, b, out| each(a, b, out, remainder),
                    Binary::Fmod => |a, b, out| each(a, b, out, fmod),
                    Binary::Pow => |a, b, out| each(a, b, out, power),
                    Binary::Maximum => |a, b, out| each(a, b, out, Ord::max),
                    Binary::Minimum => |a, b, out| each(a, b, out, Ord::min),
                    Binary::BitAnd => |a, b, out| each(a, b, out, |a, b| a & b),
                    Binary::BitOr => |a, b, out| each(a, b, out, |a, b| a | b),
                    Binary::BitXor => |a, b, out| each(a, b, out, |a, b| a ^ b),
                    Binary::Shl => |a, b, out| each(a, b, out, shl),
                    Binary::Shr => |a, b, out| each(a, b, out, shr),
                    Binary::Gcd => |a, b, out| each(a, b, out, divisor),
                    Binary::Lcm => |a, b, out| each(a, b, out, multiple),
                    Binary::Div
                    | Binary::Atan2
                    | Binary::Hypot
                    | Binary::Xlogy
                    | Binary::LogAddExp
                    | Binary::LogAddExp2
                    | Binary::Copysign
                    | Binary::Prelu
                    | Binary::Zeta
                    | Binary::Igamma
                    | Binary::Igammac
                    | Binary::NextAfter => return None,
                })
            }

            #[inline]
            fn wide(self) -> i64 {
                i64::from(self)
            }

            #[inline]
            fn narrow(wide: i64) -> Self {
                wide.as_()
            }
        }
    )*};
}

integers!(i64 i32 u8);

impl Whole for Bool {
    fn row(op: Binary) -> Option<Row<Self, Self>> {
        Some(match op {
            Binary::Add | Binary::Maximum | Binary::BitOr => {
                |a, b, out| each(a, b, out, |a: Self, b| Self::new(a.get() | b.get()))
            }
            Binary::Mul | Binary::Minimum | Binary::BitAnd => {
                |a, b, out| each(a, b, out, |a: Self, b| Self::new(a.get() & b.get()))
            }
            Binary::BitXor => {
                |a, b, out| each(a, b, out, |a: Self, b| Self::new(a.get() ^ b.get()))
            }
            _ => return None,
        })
    }

    #[inline]
    fn wide(self) -> i64 {
        i64::from(self.get())
    }

    #[inline]
    fn narrow(wide: i64) -> Self {
        Self::new(wide != 0)
    }
}

compiled! { trait CompiledWhole for Whole: i64 i32 u8 Bool; {
    /// `out = op(a, b)` element by element; `a` and `b` have the shape of `out`, broadcast by strides of 0
    /// ([`View::broadcast_to`]).
    ///
    /// ```
    /// use shard_kernels::{pointwise::Binary, whole::binary, View, ViewMut};
    /// let (a, b) = ([-7i64, 7, i64::MAX], [2i64, -2, -1]);
    /// let mut out = [0; 3];
    /// let [a, b] = [&a, &b].map(|x| View::contiguous(x, &[3]));
    /// binary(Binary::FloorDiv, &a, &b, &mut ViewMut::contiguous(&mut out, &[3]));
    /// assert_eq!(out, [-4, -4, -i64::MAX]);
    /// ```
    ///
    /// # Panics
    /// When the shapes differ, or the type has no such map.
    pub fn binary<T>(
        op: Binary,
        a: &View<'_, T>,
        b: &View<'_, T>,
        out: &mut ViewMut<'_, T>,
    ) = binary_here;
} }

fn binary_here<T: Whole>(op: Binary, a: &View<'_, T>, b: &View<'_, T>, out: &mut ViewMut<'_, T>) {
    let Some(row) = T::row(op) else {
        panic!("{op:?} of {}", T::DTYPE)
    };
    by_rows(a, b, out, row);
}

compiled! { trait Compiled for Number: f32 f64 i64 i32 u8 Bool; {
    /// `out = op(a, b)` element by element, as [`binary`].
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn compare<T>(
        op: Compare,
        a: &View<'_, T>,
        b: &View<'_, T>,
        out: &mut ViewMut<'_, Bool>,
    ) = compare_here;
} }

fn compare_here<T: Number>(
    op: Compare,
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, Bool>,
) {
    let row: Row<T, Bool> = match op {
        Compare::Gt => |a, b, out| each(a, b, out, |a, b| Bool::new(a > b)),
        Compare::Ge => |a, b, out| each(a, b, out, |a, b| Bool::new(a >= b)),
        Compare::Lt => |a, b, out| each(a, b, out, |a, b| Bool::new(a < b)),
        Compare::Le => |a, b, out| each(a, b, out, |a, b| Bool::new(a <= b)),
        Compare::Eq => |a, b, out| each(a, b, out, |a, b| Bool::new(a == b)),
        Compare::Ne => |a, b, out| each(a, b, out, |a, b| Bool::new(a != b)),
        Compare::And => |a, b, out| each(a, b, out, |a, b| Bool::new(a.is_true() & b.is_true())),
        Compare::Or => |a, b, out| each(a, b, out, |a, b| Bool::new(a.is_true() | b.is_true())),
        Compare::Xor => |a, b, out| each(a, b, out, |a, b| Bool::new(a.is_true() ^ b.is_true())),
    };
    by_rows(a, b, out, row);
}

/// `out = a` where the mask is true and `b` elsewhere; all of one shape.
///
/// # Panics
/// When the shapes differ.
pub fn select<T: Element>(
    mask: &View<'_, Bool>,
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    assert_shapes(&[mask.shape(), a.shape(), b.shape()], out.shape());
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    let at = [mask.offset(), a.offset(), b.offset(), offset];
    let (mask_strides, a_strides, b_strides) = (mask.strides(), a.strides(), b.strides());
    let all = [mask_strides, a_strides, b_strides, &strides];
    for_each_row(&shape, all, at, |at, n, steps| {
        if let ([1, 0 | 1, 0 | 1, 1], [m, p, q, r]) = (steps, at) {
            return vectorized(Chosen {
                mask: &mask.data()[m..m + n],
                a: Source::of(a.data(), p, steps[1], n),
                b: Source::of(b.data(), q, steps[2], n),
                out: &mut data[r..r + n],
            });
        }
        if let ([0, p_step, q_step, 1], [m, p, q, r]) = (steps, at) {
            // A row is one operand's: nothing is chosen for each element.
            let out = &mut data[r..r + n];
            let (from, at, step) = match mask.data()[m].get() {
                true => (a.data(), p, p_step),
                false => (b.data(), q, q_step),
            };
            if step == 1 {
                out.copy_from_slice(&from[at..at + n]);
            } else {
                gathered(from, at, step, out);
            }
            return;
        }
        for i in 0..n as isize {
            let [m, p, q, r] = core::array::from_fn(|k| at[k].wrapping_add_signed(i * steps[k]));
            data[r] = match mask.data()[m].get() {
                true => a.data()[p],
                false => b.data()[q],
            };
        }
    });
}

/// One element for each of a row, or the same for all.
enum Source<'a, T> {
    Row(&'a [T]),
    Same(T),
}

impl<'a, T: Copy> Source<'a, T> {
    fn of(data: &'a [T], at: usize, step: isize, n: usize) -> Self {
        match step {
            0 => Self::Same(data[at]),
            _ => Self::Row(&data[at..at + n]),
        }
    }
}

/// The elements of a row that a mask chooses.
struct Chosen<'a, T> {
    mask: &'a [Bool],
    a: Source<'a, T>,
    b: Source<'a, T>,
    out: &'a mut [T],
}

impl<T: Element> WithSimd for Chosen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let out = self.out.iter_mut().zip(self.mask);
        match (self.a, self.b) {
            (Source::Row(a), Source::Row(b)) => {
                for ((out, mask), (&a, &b)) in out.zip(a.iter().zip(b)) {
                    *out = choose(mask, a, b);
                }
            }
            (Source::Row(a), Source::Same(b)) => {
                out.zip(a)
                    .for_each(|((out, mask), &a)| *out = choose(mask, a, b));
            }
            (Source::Same(a), Source::Row(b)) => {
                out.zip(b)
                    .for_each(|((out, mask), &b)| *out = choose(mask, a, b));
            }
            (Source::Same(a), Source::Same(b)) => {
                out.for_each(|(out, mask)| *out = choose(mask, a, b));
            }
        }
    }
}

/// Chosen bit by bit: of a choice between two elements the compiler makes one between their addresses, and gathers.
#[inline(always)]
fn choose<T: Element>(mask: &Bool, a: T, b: T) -> T {
    macro_rules! of_bits {
        ($($bits:ty),*) => {
            $(if size_of::<T>() == size_of::<$bits>() {
                let kept = <$bits>::from(mask.get()).wrapping_neg();
                let [a, b]: [$bits; 2] = [bytemuck::cast(a), bytemuck::cast(b)];
                return bytemuck::cast(b ^ ((a ^ b) & kept));
            })*
        };
    }
    of_bits!(u8, u16, u32, u64);
    if mask.get() { a } else { b }
}

/// Elements per row of operands that do not lie side by side: few enough to stay in the first cache.
pub(crate) const CHUNK: usize = 512;

/// Runs a map over the rows of two operands. What does not lie side by side is brought together in chunks.
pub(crate) fn by_rows<T: Element, R: Element>(
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, R>,
    row: Row<T, R>,
) {
    assert_shapes(&[a.shape(), b.shape()], out.shape());
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    let (mut left, mut right) = ([T::default(); CHUNK], [T::default(); CHUNK]);
    let mut result = [R::default(); CHUNK];
    let at = [a.offset(), b.offset(), offset];
    let all = [a.strides(), b.strides(), &strides];
    for_each_row(&shape, all, at, |[p, q, r], n, steps| {
        if steps == [1, 1, 1] {
            return row(
                &a.data()[p..p + n],
                &b.data()[q..q + n],
                &mut data[r..r + n],
            );
        }
        for first in (0..n).step_by(CHUNK) {
            let len = CHUNK.min(n - first);
            let place = |at: usize, step: isize| at.wrapping_add_signed(first as isize * step);
            let a = gathered(a.data(), place(p, steps[0]), steps[0], &mut left[..len]);
            let b = gathered(b.data(), place(q, steps[1]), steps[1], &mut right[..len]);
            let r = place(r, steps[2]);
            if steps[2] == 1 {
                row(a, b, &mut data[r..r + len]);
                continue;
            }
            row(a, b, &mut result[..len]);
            for (i, value) in result[..len].iter().enumerate() {
                data[r.wrapping_add_signed(i as isize * steps[2])] = *value;
            }
        }
    });
}

/// Elements `step` apart, side by side: where they lie, or in `room`.
pub(crate) fn gathered<'a, T: Copy>(
    data: &'a [T],
    at: usize,
    step: isize,
    room: &'a mut [T],
) -> &'a [T] {
    match step {
        1 => return &data[at..at + room.len()],
        0 => room.fill(data[at]),
        _ => {
            for (i, to) in room.iter_mut().enumerate() {
                *to = data[at.wrapping_add_signed(i as isize * step)];
            }
        }
    }
    room
}

#[inline(always)]
fn each<T: Copy, R>(a: &[T], b: &[T], out: &mut [R], f: impl Fn(T, T) -> R) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}

/// The largest integer not above the quotient; 0 for a divisor of 0.
#[inline]
fn floor_div<T: PrimInt>(a: T, b: T) -> T {
    if b.is_zero() {
        return b;
    }
    // Only the least number by -1 leaves the type, and wraps to itself.
    let Some(quotient) = a.checked_div(&b) else {
        return a;
    };
    let zero = T::zero();
    match quotient * b != a && (a < zero) != (b < zero) {
        true => quotient - T::one(),
        false => quotient,
    }
}

/// What [`floor_div`] leaves; 0 for a divisor of 0.
#[inline]
fn remainder<T: PrimInt>(a: T, b: T) -> T {
    let zero = T::zero();
    if b.is_zero() || a.checked_div(&b).is_none() {
        return zero;
    }
    let rest = a % b;
    match !rest.is_zero() && (rest < zero) != (b < zero) {
        true => rest + b,
        false => rest,
    }
}

/// What division rounded towards 0 leaves; 0 where the divisor is 0.
#[inline]
fn fmod<T: PrimInt>(a: T, b: T) -> T {
    if b.is_zero() || a.checked_div(&b).is_none() {
        T::zero()
    } else {
        a % b
    }
}

#[inline]
fn power<T: PrimInt + WrappingMul + WrappingSub>(base: T, exponent: T) -> T {
    let (zero, one) = (T::zero(), T::one());
    if exponent < zero {
        let odd = exponent & one == one;
        return match base {
            b if b == one || (b == zero.wrapping_sub(&one) && !odd) => one,
            b if b == zero.wrapping_sub(&one) => b,
            _ => zero,
        };
    }
    let (mut result, mut square, mut left) = (one, base, exponent);
    while left > zero {
        if left & one == one {
            result = result.wrapping_mul(&square);
        }
        square = square.wrapping_mul(&square);
        left = left >> 1;
    }
    result
}

/// How many bits to shift by, if some stay.
#[inline]
fn bits<T: PrimInt + AsPrimitive<i64>>(by: T) -> Option<usize> {
    let width = 8 * size_of::<T>();
    usize::try_from(by.as_()).ok().filter(|&by| by < width)
}

#[inline]
fn shl<T: PrimInt + AsPrimitive<i64>>(a: T, by: T) -> T {
    bits(by).map_or(T::zero(), |by| a << by)
}

/// By Euclid's remainders, which are of the sign of what is divided: sizes are taken in the end, as the least integer has none.
#[inline]
fn divisor<T: PrimInt + AsPrimitive<i64> + WrappingSub>(a: T, b: T) -> T
where
    i64: AsPrimitive<T>,
{
    let (mut a, mut b): (i64, i64) = (a.as_(), b.as_());
    while b != 0 {
        (a, b) = (b, a.wrapping_rem(b));
    }
    a.wrapping_abs().as_()
}

#[inline]
fn multiple<T: PrimInt + AsPrimitive<i64> + WrappingSub>(a: T, b: T) -> T
where
    i64: AsPrimitive<T>,
{
    if a.is_zero() || b.is_zero() {
        return T::zero();
    }
    let shared: i64 = divisor(a, b).as_();
    let (a, b): (i64, i64) = (a.as_(), b.as_());
    (a.wrapping_div(shared).wrapping_mul(b))
        .wrapping_abs()
        .as_()
}

#[inline]
fn shr<T: PrimInt + AsPrimitive<i64>>(a: T, by: T) -> T {
    let last = 8 * size_of::<T>() - 1;
    match bits(by) {
        Some(by) => a >> by,
        // All bits are the sign's.
        None => (a >> last) >> last.min(1),
    }
}
