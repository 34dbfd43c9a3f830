//! Softmax and its logarithm by cells of elements: the pairs (maximum, sum of exponentials below it) that ranks merge, the values
//! given these, and the derivative.
//!
//! A cell is all elements that share their indices outside of the dims the softmax runs over.

use super::cells::cell_steps;
use super::pointwise::{assert_shapes, larger};
use super::reduce::{COLUMNS, Split};
use super::unary::Unary;
use super::view::for_each_row;
use super::{Real, View, ViewMut};

/// Elements per step through the buffers: small enough to stay in the first cache.
const CHUNK: usize = 512;

/// Rows per block where columns are side by side.
const ROWS: usize = 64;

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
pub fn max_sum_exp<T: Real>(x: &View<'_, T>, dims: &[usize], pairs: &mut [f64]) {
    let split = Split::new(x.shape(), x.strides(), dims);
    assert!(
        pairs.len() == 2 * split.cells(),
        "max_sum_exp: {} cells into {} elements",
        split.cells(),
        pairs.len()
    );
    let data = x.data();
    let (mut run, mut exps) = ([T::zero(); CHUNK], [T::zero(); CHUNK]);
    split.for_each_cell(x.offset(), |cell, at, width, cell_step| {
        let mut states = [[f64::NEG_INFINITY, 0.0]; COLUMNS];
        for_each_row(
            &split.reduced,
            [&split.reduced_steps],
            [at],
            |[at], n, [step]| {
                let from = |i: usize| at.wrapping_add_signed(i as isize * step);
                if width > 1 {
                    for first in (0..n).step_by(ROWS) {
                        let rows = first..n.min(first + ROWS);
                        let row = |r: usize| &data[from(r)..][..width];
                        columns(rows, row, &mut run, &mut exps, &mut states[..width]);
                    }
                    return;
                }
                for first in (0..n).step_by(CHUNK) {
                    let len = CHUNK.min(n - first);
                    for (i, to) in run[..len].iter_mut().enumerate() {
                        *to = data[from(first + i)];
                    }
                    let max = run[..len].iter().copied().fold(T::neg_infinity(), larger);
                    for v in &mut run[..len] {
                        *v = below(*v, max);
                    }
                    Unary::Exp.eval(0, &run[..len], &mut exps[..len]);
                    let sum = exps[..len].iter().map(|e| e.wide()).sum();
                    states[0] = join(states[0], [max.wide(), sum]);
                }
            },
        );
        for (j, state) in states[..width].iter().enumerate() {
            let cell = cell.wrapping_add_signed(j as isize * cell_step);
            pairs[2 * cell..][..2].copy_from_slice(state);
        }
    });
}

/// Joins rows of columns side by side to the columns' states.
fn columns<'a, T: Real>(
    rows: core::ops::Range<usize>,
    row: impl Fn(usize) -> &'a [T],
    run: &mut [T],
    exps: &mut [T],
    states: &mut [[f64; 2]],
) {
    let width = states.len();
    let (mut most, mut sums) = ([T::neg_infinity(); COLUMNS], [0.0; COLUMNS]);
    for r in rows.clone() {
        for (most, x) in most.iter_mut().zip(row(r)) {
            *most = larger(*most, *x);
        }
    }
    for r in rows {
        for ((to, x), most) in run.iter_mut().zip(row(r)).zip(&most) {
            *to = below(*x, *most);
        }
        Unary::Exp.eval(0, &run[..width], &mut exps[..width]);
        for (sum, e) in sums.iter_mut().zip(&exps[..width]) {
            *sum += e.wide();
        }
    }
    for ((state, most), sum) in states.iter_mut().zip(&most).zip(&sums) {
        *state = join(*state, [most.wide(), *sum]);
    }
}

/// `x - max`; zero where both are the same infinity.
#[inline(always)]
fn below<T: Real>(x: T, max: T) -> T {
    if x == max { T::zero() } else { x - max }
}

/// Two pairs as one. Equal maxima need no rescaling, so infinite ones do not meet.
fn join([a, s]: [f64; 2], [b, t]: [f64; 2]) -> [f64; 2] {
    let max = larger(a, b);
    let scaled = |m: f64, s: f64| if m == max { s } else { s * (m - max).exp() };
    [max, scaled(a, s) + scaled(b, t)]
}

/// `exp(x - max) / sum`, or with `log` its logarithm, of the elements of `x` with the pairs of their cells over `dims`, which are
/// row-major. As in PyTorch, a cell whose maximum is infinite has no softmax: NaN.
///
/// # Panics
/// When the shapes differ or `pairs` has another number of elements.
pub fn softmax<T: Real>(
    log: bool,
    x: &View<'_, T>,
    dims: &[usize],
    pairs: &[f64],
    out: &mut ViewMut<'_, T>,
) {
    assert_shapes(&[x.shape()], out.shape());
    let steps = cell_steps(x.shape(), dims);
    // The largest element, and what is divided by, or taken off.
    let term = |pair: &[f64]| match (pair[0].is_infinite(), log) {
        (true, _) => [T::nan(); 2],
        (false, true) => [T::of(pair[0]), T::of(pair[1].ln())],
        (false, false) => [T::of(pair[0]), T::of(1.0 / pair[1])],
    };
    let terms: Vec<[T; 2]> = pairs.chunks_exact(2).map(term).collect();
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    let (mut run, mut exps) = ([T::zero(); CHUNK], [T::zero(); CHUNK]);
    for_each_row(
        &shape,
        [x.strides(), &steps, &strides],
        [x.offset(), 0, offset],
        |at, n, steps| {
            for first in (0..n).step_by(CHUNK) {
                let len = CHUNK.min(n - first);
                let place =
                    |k: usize, i: usize| at[k].wrapping_add_signed((first + i) as isize * steps[k]);
                for (i, to) in run[..len].iter_mut().enumerate() {
                    *to = x.data()[place(0, i)] - terms[place(1, i)][0];
                }
                if log {
                    for (i, v) in run[..len].iter().enumerate() {
                        data[place(2, i)] = *v - terms[place(1, i)][1];
                    }
                    continue;
                }
                Unary::Exp.eval(0, &run[..len], &mut exps[..len]);
                for (i, e) in exps[..len].iter().enumerate() {
                    data[place(2, i)] = *e * terms[place(1, i)][1];
                }
            }
        },
    );
}

/// The derivative, given the result `y`, its cotangent, and the sums of cells: `y (dy - Σ y dy)`, or with `log`
/// `dy - exp(y) Σ dy`. All operands have the shape of `out`, the sums by strides of 0.
///
/// # Panics
/// When the shapes differ.
pub fn softmax_grad<T: Real>(
    log: bool,
    y: &View<'_, T>,
    dy: &View<'_, T>,
    sums: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    assert_shapes(&[y.shape(), dy.shape(), sums.shape()], out.shape());
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    let (mut run, mut exps) = ([T::zero(); CHUNK], [T::zero(); CHUNK]);
    for_each_row(
        &shape,
        [y.strides(), dy.strides(), sums.strides(), &strides],
        [y.offset(), dy.offset(), sums.offset(), offset],
        |at, n, steps| {
            for first in (0..n).step_by(CHUNK) {
                let len = CHUNK.min(n - first);
                let place =
                    |k: usize, i: usize| at[k].wrapping_add_signed((first + i) as isize * steps[k]);
                for (i, to) in run[..len].iter_mut().enumerate() {
                    *to = y.data()[place(0, i)];
                }
                if log {
                    Unary::Exp.eval(0, &run[..len], &mut exps[..len]);
                }
                for i in 0..len {
                    let (dy, sum) = (dy.data()[place(1, i)], sums.data()[place(2, i)]);
                    data[place(3, i)] = match log {
                        true => dy - exps[i] * sum,
                        false => run[i] * (dy - sum),
                    };
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, assert_close, naive_index};

    /// The softmax of an element from the definition.
    fn exact<T: Real>(x: &View<'_, T>, dims: &[usize], at: &[usize]) -> f64 {
        let same =
            |other: &Vec<usize>| (0..at.len()).all(|d| dims.contains(&d) || other[d] == at[d]);
        let all = naive_index(x.shape());
        let cell: Vec<f64> = all
            .iter()
            .filter(|o| same(o))
            .map(|o| x.get(o).wide())
            .collect();
        let max = cell.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = cell.iter().map(|v| (v - max).exp()).sum();
        (x.get(at).wide() - max).exp() / sum
    }

    fn random<T: Real>(seed: u64) {
        let mut rng = Rng::new(seed);
        for round in 0..60 {
            let nd = rng.within(1, 4);
            let wide = if round % 10 == 0 && nd <= 2 { 300 } else { 7 };
            let shape: Vec<usize> = (0..nd)
                .map(|d| rng.within(1, if d == 0 { wide } else { 4 }))
                .collect();
            let data: Vec<T> = rng.vec::<T>(shape.iter().product());
            let mut order: Vec<usize> = (0..nd).collect();
            for i in (1..nd).rev() {
                order.swap(i, rng.within(0, i));
            }
            let x = View::contiguous(&data, &shape).permute(&order);
            let dims: Vec<usize> = (0..nd).filter(|_| rng.within(0, 1) == 1).collect();
            let cells: usize = (0..nd)
                .filter(|d| !dims.contains(d))
                .map(|d| x.shape()[d])
                .product();
            let mut pairs = vec![f64::NAN; 2 * cells];
            max_sum_exp(&x, &dims, &mut pairs);
            let expected: Vec<f64> = naive_index(x.shape())
                .iter()
                .map(|at| exact(&x, &dims, at))
                .collect();
            for log in [false, true] {
                let mut out = vec![T::nan(); data.len()];
                softmax(
                    log,
                    &x,
                    &dims,
                    &pairs,
                    &mut ViewMut::contiguous(&mut out, x.shape()),
                );
                let expected: Vec<f64> = match log {
                    true => expected.iter().map(|p| p.ln()).collect(),
                    false => expected.clone(),
                };
                assert_close(&out, &expected, 1e-5);
            }
        }
    }

    #[test]
    fn softmax_over_every_choice_of_dims() {
        random::<f32>(1);
        random::<f64>(2);
    }

    #[test]
    fn pairs_of_infinities_and_of_nothing() {
        let inf = f64::INFINITY;
        let x = [-inf, -inf, inf, 1.0, inf, inf, f64::NAN, 2.0];
        let mut pairs = [0.0; 8];
        max_sum_exp(&View::contiguous(&x, &[4, 2]), &[1], &mut pairs);
        assert_eq!(&pairs[..6], [-inf, 2.0, inf, 1.0, inf, 2.0]);
        assert!(pairs[6].is_nan());
        let mut columns = [0.0; 8];
        let across = View::contiguous(&x, &[4, 2]).permute(&[1, 0]).to_vec();
        max_sum_exp(&View::contiguous(&across, &[2, 4]), &[0], &mut columns);
        assert_eq!(columns[..6], pairs[..6]);
        assert!(columns[6].is_nan());
        let mut none = [1.0; 2];
        max_sum_exp(&View::contiguous(&x[..0], &[0]), &[0], &mut none);
        assert_eq!(none, [-inf, 0.0]);
    }
}
