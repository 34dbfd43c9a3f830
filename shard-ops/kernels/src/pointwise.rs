//! Elementwise maps of floats with broadcasting: arithmetic, and maps by a caller's formula.
//!
//! Activations and their derivatives are in [`unary`](super::unary); arithmetic of integers, and comparisons, in
//! [`whole`](super::whole).

mod double;
mod halves;

pub use self::halves::{binary_halves, next_halves};

use super::view::{Strides, for_each_joined, for_each_row, is_row_major, join_dims, same_shape};
use super::whole::{by_rows, gathered};
use super::{Real, View, ViewMut, special};
use crate::compiled::compiled;
use crate::loops::{Loops, Own};
use core::marker::PhantomData;
use core::ops::{Add, Div, Mul, Sub};
use pulp::{Arch, Simd, WithSimd};
use shard_device::Element;

/// A map of two numbers of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`, of floats
    Div,
    /// The largest whole number not above `a / b`.
    FloorDiv,
    /// What [`FloorDiv`](Self::FloorDiv) leaves: it has the sign of `b`.
    Remainder,
    /// What division rounded towards 0 leaves: it has the sign of `a`.
    Fmod,
    /// `a` to the power `b`
    Pow,
    /// The larger; NaN if either is.
    Maximum,
    /// The smaller; NaN if either is.
    Minimum,
    /// The angle of the point (`b`, `a`), of floats, as those below.
    Atan2,
    /// `√(a² + b²)` without overflow
    Hypot,
    /// `a ln b`, and 0 where `a` is 0 unless `b` is NaN
    Xlogy,
    /// `ln(e^a + e^b)` without overflow
    LogAddExp,
    /// `log₂(2^a + 2^b)` without overflow
    LogAddExp2,
    /// The size of `a` with the sign of `b`
    Copysign,
    /// `a` above 0, `b a` at and below it
    Prelu,
    /// Hurwitz's zeta function: the sum of `(b + k)^-a` over all `k` from 0 on.
    Zeta,
    /// The lower incomplete gamma function of `a`, up to `b`, over the whole one.
    Igamma,
    /// The upper incomplete gamma function of `a`, from `b` on, over the whole one.
    Igammac,
    /// The next number of the type after `a` on the way to `b`.
    NextAfter,
    /// The greatest common divisor, of integers, as the one below.
    Gcd,
    /// The least common multiple, 0 if either is.
    Lcm,
    /// The bits that both have, of integers and truth values, as those below.
    BitAnd,
    /// The bits that either has.
    BitOr,
    /// The bits that one of them has.
    BitXor,
    /// The bits of `a` moved up by `b`, of integers.
    Shl,
    /// The bits of `a` moved down by `b`, of integers; the sign stays.
    Shr,
}

compiled! { trait Compiled for Real: f32 f64; {
    /// `out = op(a, b)` element by element; `a` and `b` have the shape of `out`, broadcast by strides of 0
    /// ([`View::broadcast_to`]).
    ///
    /// ```
    /// use shard_kernels::{pointwise::{binary, Binary}, View, ViewMut};
    /// let (a, b) = ([1.0f32, 2.0, 3.0, 4.0], [10.0f32, 20.0]);
    /// let b = View::contiguous(&b, &[2, 1]).broadcast_to(&[2, 2]).unwrap();
    /// let mut out = [0.0; 4];
    /// binary(Binary::Add, &View::contiguous(&a, &[2, 2]), &b, &mut ViewMut::contiguous(&mut out, &[2, 2]));
    /// assert_eq!(out, [11.0, 12.0, 23.0, 24.0]);
    /// ```
    ///
    /// # Panics
    /// When the shapes differ; for maps of bits.
    pub fn binary<T>(
        op: Binary,
        a: &View<'_, T>,
        b: &View<'_, T>,
        out: &mut ViewMut<'_, T>,
    ) = binary_here;

    /// As [`binary`], of operands that are runs of elements side by side.
    ///
    /// # Panics
    /// When the lengths differ; for maps of bits.
    pub fn binary_lines<T>(op: Binary, a: &[T], b: &[T], out: &mut [T]) = lines_here;
} }

/// Runs an expression with `$f` bound to the formula of a map. Formulas are functions with names, so that there is one loop for each,
/// whoever calls it.
macro_rules! with_formula {
    ($op:expr, $T:ident, $f:ident => $body:expr) => {
        with_formula!(@ $op, $T, $f, $body;
            Add => Add::add, Sub => Sub::sub, Mul => Mul::mul, Div => Div::div,
            Maximum => larger, Minimum => smaller, Copysign => $T::copysign, Prelu => prelu)
    };
    (@ $op:expr, $T:ident, $f:ident, $body:expr; $($kind:ident => $formula:expr),+) => {
        match $op {
            $(Binary::$kind => {
                let $f = $formula;
                $body
            })+
            // One loop for all of these, whose formulas take longer than a call.
            op => {
                let $f = formula::<$T>(op);
                $body
            }
        }
    };
}

fn binary_here<T: Real>(op: Binary, a: &View<'_, T>, b: &View<'_, T>, out: &mut ViewMut<'_, T>) {
    if let Some(row) = double::row(op) {
        return by_rows(a, b, out, row);
    }
    with_formula!(op, T, f => zip(a, b, out, f));
}

fn lines_here<T: Real>(op: Binary, a: &[T], b: &[T], out: &mut [T]) {
    let lengths = [a.len(), b.len(), out.len()];
    assert!(
        lengths == [out.len(); 3],
        "pointwise: lengths {lengths:?} differ"
    );
    if let Some(row) = double::row(op) {
        return row(a, b, out);
    }
    with_formula!(op, T, f => vectorized(Rows::<T, Own, _>::new(a, b, out, &f)));
}

/// The maps that are called number by number.
fn formula<T: Real>(op: Binary) -> fn(T, T) -> T {
    match op {
        Binary::FloorDiv => floor_div,
        Binary::Remainder => remainder,
        Binary::Pow => T::powf,
        Binary::Fmod => |a, b| a % b,
        Binary::Atan2 => T::atan2,
        Binary::Hypot => T::hypot,
        Binary::Xlogy => |a, b| {
            if a == T::zero() && !b.is_nan() {
                T::zero()
            } else {
                a * b.ln()
            }
        },
        Binary::LogAddExp => |a, b| log_add(a, b, T::exp, T::ln_1p),
        Binary::LogAddExp2 => |a, b| {
            let log_1p = |x: T| x.ln_1p() / T::of(core::f64::consts::LN_2);
            log_add(a, b, T::exp2, log_1p)
        },
        Binary::Zeta => |s, q| T::of(special::zeta(s.wide(), q.wide())),
        Binary::Igamma => |a, x| T::of(special::incomplete_gamma(true, a.wide(), x.wide())),
        Binary::Igammac => |a, x| T::of(special::incomplete_gamma(false, a.wide(), x.wide())),
        Binary::NextAfter => special::next_after,
        // Of ops, the rule has refused maps of bits and divisors.
        _ => panic!("{op:?} of floats"),
    }
}

/// The logarithm of a sum of two powers, whose base `exp` and `log_1p` have.
#[inline(always)]
fn log_add<T: Real>(a: T, b: T, exp: fn(T) -> T, log_1p: fn(T) -> T) -> T {
    // Equal infinities have no difference.
    if a == b && a.is_infinite() {
        return a;
    }
    larger(a, b) + log_1p(exp(-(a - b).abs()))
}

/// `out = f(x)` element by element, for a formula the library does not have.
///
/// # Panics
/// When the shapes differ.
pub fn map<T: Real>(x: &View<'_, T>, out: &mut ViewMut<'_, T>, f: impl Fn(T) -> T) {
    zip(x, x, out, |x, _| f(x));
}

/// How many elements of short rows are brought together.
const REPEATED: usize = 256;

/// `out = f(a, b)` element by element; as [`binary`] with a caller's formula.
///
/// # Panics
/// When the shapes differ.
pub fn zip<T: Copy + Default>(
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
    f: impl Fn(T, T) -> T,
) {
    zip_by::<T, Own, _>(a, b, out, &f);
}

fn zip_by<T: Copy + Default, L: Loops<T>, F: Fn(L::Number, L::Number) -> L::Number>(
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
    f: &F,
) {
    // Most operands are single runs of as many elements.
    if let (Some(a), Some(b), Some(out)) = (a.as_line(), b.as_line(), out.as_line_mut())
        && a.len() == out.len()
        && b.len() == out.len()
    {
        return vectorized(Rows::<T, L, F>::new(a, b, out, f));
    }
    assert_shapes(&[a.shape(), b.shape()], out.shape());
    if let Some(out) = out.as_slice_mut() {
        // Rows by themselves would be too short for a loop each.
        match (a.as_slice(), b.as_slice()) {
            (Some(a), None) if has_short_rows(b) => {
                return beside(b, |at, b| {
                    let (a, out) = (&a[at..][..b.len()], &mut out[at..][..b.len()]);
                    vectorized(Rows::<T, L, F>::new(a, b, out, f));
                });
            }
            (None, Some(b)) if has_short_rows(a) => {
                return beside(a, |at, a| {
                    let (b, out) = (&b[at..][..a.len()], &mut out[at..][..a.len()]);
                    vectorized(Rows::<T, L, F>::new(a, b, out, f));
                });
            }
            // Slabs of one dim are rows.
            (None, None) if a.ndim() > 2 && (has_dense_slabs(a) || has_dense_slabs(b)) => {
                for (i, out) in out.chunks_exact_mut(a.len() / a.shape()[0]).enumerate() {
                    let (a, b) = (a.slab(i), b.slab(i));
                    zip_by::<T, L, F>(&a, &b, &mut ViewMut::contiguous(out, a.shape()), f);
                }
                return;
            }
            _ => {}
        }
    }
    let (shape, strides, offset, data) = out.parts();
    if shape.contains(&0) {
        return;
    }
    let (extents, steps) = join_dims(shape, [a.strides(), b.strides(), strides]);
    let (&n, outer) = extents.split_last().unwrap_or((&1, &[]));
    let along = *steps.last().unwrap_or(&[1; 3]);
    let at = [a.offset(), b.offset(), offset];
    let apart = &steps[..outer.len()];
    for_each_joined(outer, apart, at, &mut |at, rows, apart| {
        vectorized(Slab {
            a: a.data(),
            b: b.data(),
            out: &mut *data,
            at,
            rows,
            apart,
            n,
            along,
            f,
            loops: PhantomData::<L>,
        });
    });
}

/// Whether elements that do not lie side by side are in rows of so few that these are better brought together. A row that is one number
/// need not be.
fn has_short_rows<T>(x: &View<'_, T>) -> bool {
    let (extents, steps) = join_dims(x.shape(), [x.strides()]);
    let few = match steps.last() {
        Some([0]) => 16,
        _ => REPEATED,
    };
    extents.len() > 1 && extents.last().is_some_and(|n| *n < few)
}

/// Whether what an index of the first dim names lies side by side, and is long enough for a loop of its own.
fn has_dense_slabs<T>(x: &View<'_, T>) -> bool {
    let (shape, strides) = (x.shape(), x.strides());
    shape.len() > 1
        && is_row_major(&shape[1..], &strides[1..])
        && x.len() / shape[0].max(1) >= REPEATED
}

/// Visits the elements of a view in row-major order, some of them brought side by side at a time, and the number of the first.
fn beside<T: Copy + Default>(x: &View<'_, T>, mut visit: impl FnMut(usize, &[T])) {
    let (extents, steps) = join_dims(x.shape(), [x.strides()]);
    if let [.., times, n] = extents[..]
        && let [.., [0], [step]] = steps[..]
    {
        // Rows that come again and again are written once, as often as there is room for.
        let mut room = [T::default(); REPEATED];
        let room = &mut room[..REPEATED / n * n];
        let outer = extents.len() - 2;
        let outer_steps: Strides = steps[..outer].iter().map(|[step]| *step).collect();
        let mut number = 0;
        for_each_row(
            &extents[..outer],
            [&outer_steps],
            [x.offset()],
            |[at], slabs, [apart]| {
                for slab in 0..slabs {
                    let at = at.wrapping_add_signed(slab as isize * apart);
                    for (i, to) in room.iter_mut().enumerate() {
                        *to = x.data()[at.wrapping_add_signed((i % n) as isize * step)];
                    }
                    for first in (0..times * n).step_by(room.len()) {
                        let len = room.len().min(times * n - first);
                        visit(number + first, &room[..len]);
                    }
                    number += times * n;
                }
            },
        );
        return;
    }
    let (Some((&n, outer)), Some((&[step], apart))) = (extents.split_last(), steps.split_last())
    else {
        return visit(0, &x.data()[x.offset()..][..1]);
    };
    let (mut room, mut filled, mut number) = ([T::default(); REPEATED], 0, 0);
    for_each_joined(outer, apart, [x.offset()], &mut |[first], rows, [apart]| {
        for row in 0..rows as isize {
            let first = first.wrapping_add_signed(row * apart);
            let mut i = 0;
            while i < n {
                let len = (n - i).min(REPEATED - filled);
                let to = &mut room[filled..filled + len];
                let at = first.wrapping_add_signed(i as isize * step);
                if step == 1 {
                    to.copy_from_slice(&x.data()[at..at + len]);
                } else {
                    gathered(x.data(), at, step, to);
                }
                (i, filled) = (i + len, filled + len);
                if filled == REPEATED {
                    visit(number, &room);
                    (number, filled) = (number + filled, 0);
                }
            }
        }
    });
    if filled > 0 {
        visit(number, &room[..filled]);
    }
}

/// `acc = f(acc, x)` element by element: in-place accumulation.
///
/// # Panics
/// When the shapes differ.
pub fn update<T: Element>(acc: &mut ViewMut<'_, T>, x: &View<'_, T>, f: impl Fn(T, T) -> T) {
    assert_shapes(&[x.shape()], acc.shape());
    let (shape, strides, offset, data) = acc.parts();
    for_each_row(
        shape,
        [x.strides(), strides],
        [x.offset(), offset],
        |[p, r], n, steps| match steps {
            [1, 1] => vectorized(Accumulate {
                acc: &mut data[r..r + n],
                x: &x.data()[p..p + n],
                f: &f,
            }),
            [s, u] => {
                for i in 0..n as isize {
                    let at = r.wrapping_add_signed(i * u);
                    data[at] = f(data[at], x.data()[p.wrapping_add_signed(i * s)]);
                }
            }
        },
    );
}

/// `acc = acc x` element by element, of runs of equally many.
pub(crate) fn scale<T: Real>(acc: &mut [T], x: &[T]) {
    vectorized(Accumulate { acc, x, f: &T::mul });
}

/// The largest whole number not above the quotient, found from the exact remainder as Python and PyTorch do; the quotient
/// itself where the divisor is 0.
#[inline(always)]
fn floor_div<T: Real>(a: T, b: T) -> T {
    if b == T::zero() {
        return a / b;
    }
    let rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != T::zero() && (rest < T::zero()) != (b < T::zero()) {
        quotient -= T::one();
    }
    if quotient == T::zero() {
        return (a / b) * T::zero();
    }
    let floor = quotient.floor();
    if quotient - floor > T::of(0.5) {
        floor + T::one()
    } else {
        floor
    }
}

#[inline(always)]
fn prelu<T: Real>(a: T, b: T) -> T {
    let scaled = b * a;
    if a > T::zero() { a } else { scaled }
}

/// What [`floor_div`] leaves.
#[inline(always)]
fn remainder<T: Real>(a: T, b: T) -> T {
    let rest = a % b;
    if rest != T::zero() && (rest < T::zero()) != (b < T::zero()) {
        rest + b
    } else {
        rest
    }
}

/// The larger of two; NaN if either is. A zero counts as above its negative, so that the order of the operands does not
/// matter. All is asked at once: a branch is guessed wrong as often as not.
#[inline(always)]
pub(crate) fn larger<T: Real>(a: T, b: T) -> T {
    if (a > b) | a.is_nan() | ((a == b) & b.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// The smaller of two; NaN if either is. A zero counts as above its negative.
#[inline(always)]
pub(crate) fn smaller<T: Real>(a: T, b: T) -> T {
    if (a < b) | a.is_nan() | ((a == b) & b.is_sign_positive()) {
        a
    } else {
        b
    }
}

/// Runs `op` compiled for the best instruction set of this machine, of those that loops are compiled for (see `build.rs`). The call
/// costs a table look-up and a jump, which is too much for very short rows only.
#[inline]
pub(crate) fn vectorized<W: WithSimd>(op: W) -> W::Output {
    let best = Arch::new();
    #[cfg(up_to_avx2)]
    return match best {
        Arch::V4(simd) => Simd::vectorize(*simd, op),
        Arch::V3(simd) => Simd::vectorize(simd, op),
        _ => Simd::vectorize(pulp::Scalar, op),
    };
    #[cfg(without_avx2)]
    return match best {
        Arch::V4(simd) => Simd::vectorize(*simd, op),
        _ => Simd::vectorize(pulp::Scalar, op),
    };
    #[cfg(not(any(up_to_avx2, without_avx2)))]
    best.dispatch(op)
}

struct Rows<'a, T, L, F> {
    a: &'a [T],
    b: &'a [T],
    out: &'a mut [T],
    f: &'a F,
    loops: PhantomData<L>,
}

impl<'a, T, L, F> Rows<'a, T, L, F> {
    fn new(a: &'a [T], b: &'a [T], out: &'a mut [T], f: &'a F) -> Self {
        let loops = PhantomData;
        Self {
            a,
            b,
            out,
            f,
            loops,
        }
    }
}

impl<T: Copy, L: Loops<T>, F: Fn(L::Number, L::Number) -> L::Number> WithSimd
    for Rows<'_, T, L, F>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        L::zip(self.a, self.b, self.out, self.f);
    }
}

/// Rows of equally many elements: where the first begins in each operand and in the result, and how far it is to the next row and to a row's
/// next element.
struct Slab<'a, T, L, F> {
    a: &'a [T],
    b: &'a [T],
    out: &'a mut [T],
    at: [usize; 3],
    rows: usize,
    apart: [isize; 3],
    n: usize,
    along: [isize; 3],
    f: &'a F,
    loops: PhantomData<L>,
}

impl<T: Copy, L: Loops<T>, F: Fn(L::Number, L::Number) -> L::Number> WithSimd
    for Slab<'_, T, L, F>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { a, b, n, f, .. } = self;
        for row in 0..self.rows as isize {
            let of = |k: usize| self.at[k].wrapping_add_signed(row * self.apart[k]);
            let [p, q, r] = [of(0), of(1), of(2)];
            match self.along {
                [1, 1, 1] => L::zip(&a[p..][..n], &b[q..][..n], &mut self.out[r..][..n], f),
                [1, 0, 1] => {
                    let b = L::number(b[q]);
                    L::map(
                        &a[p..][..n],
                        &mut self.out[r..][..n],
                        #[inline(always)]
                        |a| f(a, b),
                    );
                }
                [0, 1, 1] => {
                    let a = L::number(a[p]);
                    L::map(
                        &b[q..][..n],
                        &mut self.out[r..][..n],
                        #[inline(always)]
                        |b| f(a, b),
                    );
                }
                [s, t, u] => {
                    for i in 0..n as isize {
                        let a = L::number(a[p.wrapping_add_signed(i * s)]);
                        let b = L::number(b[q.wrapping_add_signed(i * t)]);
                        self.out[r.wrapping_add_signed(i * u)] = L::element(f(a, b));
                    }
                }
            }
        }
    }
}

struct Accumulate<'a, T, F> {
    acc: &'a mut [T],
    x: &'a [T],
    f: &'a F,
}

impl<T: Copy, F: Fn(T, T) -> T> WithSimd for Accumulate<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (a, &x) in self.acc.iter_mut().zip(self.x) {
            *a = (self.f)(*a, x);
        }
    }
}

pub(crate) fn assert_shapes(inputs: &[&[usize]], out: &[usize]) {
    assert!(
        inputs.iter().all(|s| same_shape(s, out)),
        "pointwise: shapes {inputs:?} into {out:?}"
    );
}
