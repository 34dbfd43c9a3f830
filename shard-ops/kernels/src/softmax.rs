//! Softmax and its logarithm by cells of elements: the pairs (maximum, sum of exponentials below it) that ranks merge, the values
//! given these, and the derivative.
//!
//! A cell is all elements that share their indices outside of the dims the softmax runs over. Rows and columns of cells are read
//! in vectors of the element type; sums of exponentials leave it after few terms.

mod middling;
mod rows;
pub(crate) mod short;

pub(crate) use self::rows::CompiledRows;
pub use self::rows::{softmax_rows, softmax_rows_grad};

use super::cells::cell_steps;
use super::exp::exp_in;
use super::pointwise::{assert_shapes, larger, vectorized};
use super::reduce::{BLOCK, COLUMNS, FEW, LANES, Split, by_lanes, halve, largest};
use super::view::{for_each_row, join_dims};
use super::whole::{CHUNK, gathered};
use super::{Real, View, ViewMut};
use crate::compiled::compiled;
use core::marker::PhantomData;
use pulp::{Simd, WithSimd};

/// Rows per block where columns are side by side.
const ROWS: usize = 64;

compiled! { trait Compiled for Real: f32 f64; {
    /// The maximum of every cell of `x` over `dims` and the sum of exponentials of its elements less the maximum, as pairs, row-major
    /// over the remaining dims. Of no elements that is (-∞, 0). Elements equal to an infinite maximum count 1 each, all others 0.
    ///
    /// ```
    /// use shard_kernels::{softmax::max_sum_exp, View};
    /// let mut pairs = [0.0; 4];
    /// max_sum_exp(&View::contiguous(&[0.0f32, 0.0, 7.0, -1000.0], &[2, 2]), &[1], &mut pairs);
    /// assert_eq!(pairs, [0.0, 2.0, 7.0, 1.0]);
    /// ```
    ///
    /// # Panics
    /// When a dim is out of range or named twice, or `pairs` has another number of elements.
    pub fn max_sum_exp<T>(x: &View<'_, T>, dims: &[usize], pairs: &mut [f64]) = max_sum_exp_here;

    /// `exp(x - max) / sum`, or with `log` its logarithm, of the elements of `x` with the pairs of their cells over `dims`, which are
    /// row-major. As in PyTorch, a cell whose maximum is infinite has no softmax: NaN.
    ///
    /// # Panics
    /// When the shapes differ or `pairs` has another number of elements.
    pub fn softmax<T>(
        log: bool,
        x: &View<'_, T>,
        dims: &[usize],
        pairs: &[f64],
        out: &mut ViewMut<'_, T>,
    ) = softmax_here;

    /// `exp(x - from) * factor` of the elements of `x` with the pairs (from, factor) of their cells over `dims`, which are row-major: with the
    /// maximum and a cotangent the derivative of a sum of exponentials.
    ///
    /// # Panics
    /// As [`softmax`].
    pub fn exponentials<T>(
        x: &View<'_, T>,
        dims: &[usize],
        pairs: &[f64],
        out: &mut ViewMut<'_, T>,
    ) = exponentials_here;

    /// The derivative, given the result `y`, its cotangent, and the sums of cells: `y (dy - Σ y dy)`, or with `log`
    /// `dy - exp(y) Σ dy`. All operands have the shape of `out`, the sums by strides of 0.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn softmax_grad<T>(
        log: bool,
        y: &View<'_, T>,
        dy: &View<'_, T>,
        sums: &View<'_, T>,
        out: &mut ViewMut<'_, T>,
    ) = softmax_grad_here;
} }

fn max_sum_exp_here<T: Real>(x: &View<'_, T>, dims: &[usize], pairs: &mut [f64]) {
    let split = Split::new(x.shape(), x.strides(), dims);
    assert!(
        pairs.len() == 2 * split.cells(),
        "max_sum_exp: {} cells into {} elements",
        split.cells(),
        pairs.len()
    );
    let data = x.data();
    if let Some(n) = split.rows().filter(|&n| short::is_short(n)) {
        let x = &data[x.offset()..][..split.cells() * n];
        return vectorized(ShortRows { x, n, pairs });
    }
    let (mut room, mut states) = ([T::zero(); BLOCK], [[0.0; 2]; COLUMNS]);
    split.for_each_cell(x.offset(), COLUMNS, |cell, at, width, cell_step| {
        let states = &mut states[..width];
        states.fill([f64::NEG_INFINITY, 0.0]);
        split.for_each_run(at, |at, n, step| {
            let from = |i: usize| at.wrapping_add_signed(i as isize * step);
            if width > 1 {
                for first in (0..n).step_by(ROWS) {
                    vectorized(Columns {
                        data,
                        at: from(first),
                        rows: ROWS.min(n - first),
                        step,
                        states,
                    });
                }
                return;
            }
            for first in (0..n).step_by(BLOCK) {
                let len = BLOCK.min(n - first);
                let block = gathered(data, from(first), step, &mut room[..len]);
                states[0] = join(states[0], vectorized(Run(block)));
            }
        });
        for (j, state) in states.iter().enumerate() {
            let cell = cell.wrapping_add_signed(j as isize * cell_step);
            pairs[2 * cell..][..2].copy_from_slice(state);
        }
    });
}

/// Rows of a few elements, one behind the other, each of which gives a pair.
struct ShortRows<'a, T> {
    x: &'a [T],
    n: usize,
    pairs: &'a mut [f64],
}

impl<T: Real> WithSimd for ShortRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        short::pairs::<T, S>(self.x, self.n, self.pairs);
    }
}

/// The pair of elements side by side.
struct Run<'a, T>(&'a [T]);

impl<T: Real> WithSimd for Run<'_, T> {
    type Output = [f64; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f64; 2] {
        if self.0.len() <= FEW {
            self.pair::<S, FEW>(simd)
        } else {
            self.pair::<S, LANES>(simd)
        }
    }
}

impl<T: Real> Run<'_, T> {
    #[inline(always)]
    fn pair<S: Simd, const N: usize>(self, simd: S) -> [f64; 2] {
        let empty = T::neg_infinity();
        let max = if N == FEW {
            self.0.iter().fold(empty, |max, x| above(max, *x))
        } else {
            largest(simd, self.0)
        };
        if max == empty {
            // What fills up the lanes would count too.
            let sum: T = (self.0.iter()).fold(T::zero(), |sum, x| sum + below(*x, max) + T::one());
            return pair(max, sum.wide());
        }
        let mut sums = [T::zero(); N];
        by_lanes(self.0, empty, |block: &[T; N]| {
            for (sum, x) in sums.iter_mut().zip(block) {
                *sum += exp_in::<S, T>(below(*x, max));
            }
        });
        pair(max, halve(sums.map(Real::wide), |a, b| a + b))
    }
}

/// Joins rows of columns side by side to the columns' states.
struct Columns<'a, T> {
    data: &'a [T],
    at: usize,
    rows: usize,
    step: isize,
    states: &'a mut [[f64; 2]],
}

impl<T: Real> WithSimd for Columns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.join(simd);
    }
}

impl<T: Real> Columns<'_, T> {
    #[inline(always)]
    fn join<S: Simd>(self, simd: S) {
        let width = self.states.len();
        let row = |r: usize| {
            let from = self.at.wrapping_add_signed(r as isize * self.step);
            &self.data[from..from + width]
        };
        let mut most = [T::neg_infinity(); COLUMNS];
        let vectors = T::vectors_mut::<S>(&mut most[..width]);
        let whole = vectors.len() * T::lanes::<S>();
        for (v, most) in vectors.iter_mut().enumerate() {
            for r in 0..self.rows {
                *most = T::larger_vec(simd, *most, T::vectors::<S>(row(r))[v]);
            }
        }
        for r in 0..self.rows {
            for (most, x) in most[whole..width].iter_mut().zip(&row(r)[whole..]) {
                *most = above(*most, *x);
            }
        }
        let mut sums = [T::zero(); COLUMNS];
        for r in 0..self.rows {
            for ((sum, x), most) in sums.iter_mut().zip(row(r)).zip(&most) {
                *sum += exp_in::<S, T>(below(*x, *most));
            }
        }
        for ((state, most), sum) in self.states.iter_mut().zip(most).zip(sums) {
            *state = join(*state, pair(most, sum.wide()));
        }
    }
}

/// The larger of two numbers, of which the second may be NaN and is then ignored: the sum of exponentials keeps it.
#[inline(always)]
fn above<T: Real>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// A maximum that ignored NaN, and its sum, as a pair that keeps it.
#[inline(always)]
fn pair<T: Real>(max: T, sum: f64) -> [f64; 2] {
    [if sum.is_nan() { sum } else { max.wide() }, sum]
}

/// `x - max`; zero where both are the same infinity.
#[inline(always)]
fn below<T: Real>(x: T, max: T) -> T {
    if x == max { T::zero() } else { x - max }
}

/// Two pairs as one. Equal maxima need no rescaling, so infinite ones do not meet.
fn join([a, s]: [f64; 2], [b, t]: [f64; 2]) -> [f64; 2] {
    // Mostly there was nothing before.
    if s == 0.0 && a == f64::NEG_INFINITY {
        return [b, t];
    }
    let max = larger(a, b);
    let scaled = |m: f64, s: f64| if m == max { s } else { s * (m - max).exp() };
    [max, scaled(a, s) + scaled(b, t)]
}

fn softmax_here<T: Real>(
    log: bool,
    x: &View<'_, T>,
    dims: &[usize],
    pairs: &[f64],
    out: &mut ViewMut<'_, T>,
) {
    // The largest element, and what is divided by, or taken off.
    let term = |pair: &[f64]| match (pair[0].is_infinite(), log) {
        (true, _) => [T::nan(); 2],
        (false, true) => [T::of(pair[0]), T::of(pair[1].ln())],
        (false, false) => [T::of(pair[0]), T::of(1.0 / pair[1])],
    };
    with_pairs(log, x, dims, pairs, term, out);
}

fn exponentials_here<T: Real>(
    x: &View<'_, T>,
    dims: &[usize],
    pairs: &[f64],
    out: &mut ViewMut<'_, T>,
) {
    let term = |pair: &[f64]| [T::of(pair[0]), T::of(pair[1])];
    with_pairs(false, x, dims, pairs, term, out);
}

/// Writes [`Values`] with the terms that are made of the pairs of cells.
fn with_pairs<T: Real>(
    log: bool,
    x: &View<'_, T>,
    dims: &[usize],
    pairs: &[f64],
    term: impl Fn(&[f64]) -> [T; 2],
    out: &mut ViewMut<'_, T>,
) {
    assert_shapes(&[x.shape()], out.shape());
    let steps = cell_steps(x.shape(), dims);
    let (most, terms): (Vec<T>, Vec<T>) = (pairs.chunks_exact(2).map(term))
        .map(|[max, term]| (max, term))
        .unzip();
    let of_cells = |numbers| View::new(numbers, 0, x.shape(), &steps);
    each::<T, Values>(log, [x, &of_cells(&most), &of_cells(&terms)], out);
}

fn softmax_grad_here<T: Real>(
    log: bool,
    y: &View<'_, T>,
    dy: &View<'_, T>,
    sums: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    assert_shapes(&[y.shape(), dy.shape(), sums.shape()], out.shape());
    each::<T, Gradients>(log, [y, dy, sums], out);
}

/// A function of three numbers, in vectors; `LOG` says whether it is that of the logarithm.
trait Formula {
    /// Whether the second number is an element's, as the first, or its cell's, as the third.
    const SECOND_VARIES: bool;

    fn at<T: Real, const LOG: bool, S: Simd>(operands: [T; 3]) -> T;
}

/// Of an element, the maximum of its cell, and what is multiplied by or taken off.
struct Values;

impl Formula for Values {
    const SECOND_VARIES: bool = false;

    #[inline(always)]
    fn at<T: Real, const LOG: bool, S: Simd>([x, max, term]: [T; 3]) -> T {
        if LOG {
            (x - max) - term
        } else {
            exp_in::<S, T>(x - max) * term
        }
    }
}

/// Of a result, its cotangent, and the sum of its cell.
struct Gradients;

impl Formula for Gradients {
    const SECOND_VARIES: bool = true;

    #[inline(always)]
    fn at<T: Real, const LOG: bool, S: Simd>([y, dy, sum]: [T; 3]) -> T {
        if LOG {
            dy - exp_in::<S, T>(y) * sum
        } else {
            y * (dy - sum)
        }
    }
}

/// Writes a formula of three operands of one shape. What does not lie side by side is brought together in chunks.
fn each<T: Real, F: Formula>(log: bool, operands: [&View<'_, T>; 3], out: &mut ViewMut<'_, T>) {
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    let mut rooms = [[T::zero(); CHUNK]; 4];
    let [a, b, c] = operands;
    let (extents, steps) = join_dims(&shape, [a.strides(), b.strides(), c.strides(), &strides]);
    if let ([count, n], [[a_row, b_row, c_row, to_row], [1, b_step, 0, 1]]) =
        (&extents[..], &steps[..])
        && short::is_short(*n)
        && [a_row, to_row] == [&(*n as isize); 2]
        && *b_step == isize::from(F::SECOND_VARIES)
        && (!F::SECOND_VARIES || b_row == a_row)
    {
        // Rows go together, with the numbers of their cells beside each element.
        let some = CHUNK / n;
        for first in (0..*count).step_by(some) {
            let rows = first..(*count).min(first + some);
            let len = rows.len() * n;
            let [_, b_room, c_room, _] = &mut rooms;
            let repeat = |of: &View<'_, T>, step: isize, room: &mut [T]| {
                for (row, to) in rows.clone().zip(room.chunks_exact_mut(*n)) {
                    to.fill(of.data()[of.offset().wrapping_add_signed(row as isize * step)]);
                }
            };
            repeat(c, *c_row, c_room);
            let second = match F::SECOND_VARIES {
                true => &b.data()[b.offset() + first * n..][..len],
                false => {
                    repeat(b, *b_row, b_room);
                    &b_room[..len]
                }
            };
            vectorized(Each {
                log,
                from: [
                    &a.data()[a.offset() + first * n..][..len],
                    second,
                    &c_room[..len],
                ],
                to: &mut data[offset + first * n..][..len],
                formula: PhantomData::<F>,
            });
        }
        return;
    }
    for_each_row(
        &shape,
        [a.strides(), b.strides(), c.strides(), &strides],
        [a.offset(), b.offset(), c.offset(), offset],
        |at, n, steps| {
            for first in (0..n).step_by(CHUNK) {
                let len = CHUNK.min(n - first);
                let [p, q, r, to] =
                    core::array::from_fn(|k| at[k].wrapping_add_signed(first as isize * steps[k]));
                let [a_room, b_room, c_room, result] = &mut rooms;
                let in_cell = steps[2] == 0 && (F::SECOND_VARIES || steps[1] == 0);
                let of_cells = if in_cell { 1 } else { len };
                let second = if F::SECOND_VARIES { len } else { of_cells };
                let from = [
                    gathered(a.data(), p, steps[0], &mut a_room[..len]),
                    gathered(b.data(), q, steps[1], &mut b_room[..second]),
                    gathered(c.data(), r, steps[2], &mut c_room[..of_cells]),
                ];
                let side_by_side = steps[3] == 1;
                let target = match side_by_side {
                    true => &mut data[to..to + len],
                    false => &mut result[..len],
                };
                vectorized(Each {
                    log,
                    from,
                    to: target,
                    formula: PhantomData::<F>,
                });
                if !side_by_side {
                    for (i, v) in result[..len].iter().enumerate() {
                        data[to.wrapping_add_signed(i as isize * steps[3])] = *v;
                    }
                }
            }
        },
    );
}

struct Each<'a, T, F> {
    log: bool,
    from: [&'a [T]; 3],
    to: &'a mut [T],
    formula: PhantomData<F>,
}

impl<T: Real, F: Formula> WithSimd for Each<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if self.log {
            self.run::<true, S>();
        } else {
            self.run::<false, S>();
        }
    }
}

impl<T: Real, F: Formula> Each<'_, T, F> {
    #[inline(always)]
    fn run<const LOG: bool, S: Simd>(self) {
        let (to, [a, b, c]) = (self.to.iter_mut(), self.from);
        match (b, c) {
            (&[b], &[c]) if !F::SECOND_VARIES => {
                for (to, &a) in to.zip(a) {
                    *to = F::at::<T, LOG, S>([a, b, c]);
                }
            }
            (b, &[c]) if F::SECOND_VARIES => {
                for ((to, &a), &b) in to.zip(a).zip(b) {
                    *to = F::at::<T, LOG, S>([a, b, c]);
                }
            }
            (b, c) => {
                for (((to, &a), &b), &c) in to.zip(a).zip(b).zip(c) {
                    *to = F::at::<T, LOG, S>([a, b, c]);
                }
            }
        }
    }
}
