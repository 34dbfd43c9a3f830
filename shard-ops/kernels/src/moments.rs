//! Count, mean and sum of squared deviations: what norms and variances merge across ranks.
//!
//! Each block takes a corrected two-pass sum (the mean, then deviations from it), and blocks are merged by the formula of Chan,
//! Golub and LeVeque in f64, so that neither a large mean nor many elements cost digits. The few blocks whose squares `f32` cannot hold,
//! as they are too large or too small, are taken once more in f64: what becomes of a cell does not depend on where it is cut. So are those
//! whose squares no type holds: with an infinite element the mean is infinite and M2 is NaN; if all are finite, the mean is and M2 is infinite.

use super::pointwise::vectorized;
use super::reduce::{BLOCK, COLUMNS, FEW, LANES, Pending, Split, by_lanes, sum_of_lanes};
use super::softmax::short::{ROWS as ROWS_BESIDE, load};
use super::whole::gathered;
use super::{Dims, Real, View};
use crate::arrays::{each, numbered};
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};

/// Rows per block where columns are summed side by side.
pub const ROWS: usize = 64;

/// Moments of the cells of a reduction, row-major over [`Moments::shape`].
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Extents of the cells.
    pub shape: Dims,
    /// Number of elements per cell.
    pub count: Vec<f64>,
    /// Mean per cell; 0 where the count is 0.
    pub mean: Vec<f64>,
    /// Sum of squared deviations from the mean per cell.
    pub m2: Vec<f64>,
}

/// Maps a dim of channels to groups: global channel `c` belongs to group `floor(c * groups / channels)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The dim of the view that holds channels; not among the reduced dims.
    pub dim: usize,
    /// Global index of the view's first channel.
    pub start: usize,
    /// Channels in all, over all ranks.
    pub channels: usize,
    /// Groups in all. The cells have this extent along `dim`; empty groups have count 0.
    pub groups: usize,
}

compiled! { trait Compiled for Real: f32 f64; {
    /// Moments of `x` over `dims`, one cell per index of the remaining dims, channels optionally merged into groups.
    ///
    /// ```
    /// use shard_kernels::{moments::moments, View};
    /// let m = moments(&View::contiguous(&[1.0f32, 3.0, 10.0, 10.0], &[2, 2]), &[1], None);
    /// assert_eq!((m.count, m.mean, m.m2), (vec![2.0, 2.0], vec![2.0, 10.0], vec![2.0, 0.0]));
    /// ```
    ///
    /// # Panics
    /// When a dim is out of range or named twice, or the groups name a reduced dim or channels beyond their count.
    pub fn moments<T>(
        x: &View<'_, T>,
        dims: &[usize],
        groups: Option<Groups>,
    ) -> Moments = moments_here;
} }

fn moments_here<T: Real>(x: &View<'_, T>, dims: &[usize], groups: Option<Groups>) -> Moments {
    let split = Split::new(x.shape(), x.strides(), dims);
    let mut cells = Moments::empty(&split.kept);
    let data = x.data();
    if let Some(n) = split.rows().filter(|&n| n <= FEW) {
        let x = &data[x.offset()..][..cells.count.len() * n];
        let found = &mut cells;
        vectorized(ShortRows { x, n, found });
    } else {
        moments_of_runs(&split, x, &mut cells);
    }
    match groups {
        None => cells,
        Some(groups) => grouped(&cells, dims, groups),
    }
}

/// Adds what each cell has, run by run.
fn moments_of_runs<T: Real>(split: &Split, x: &View<'_, T>, cells: &mut Moments) {
    let data = x.data();
    let (mut room, mut pending) = ([T::zero(); BLOCK], Pending::new());
    split.for_each_cell(x.offset(), COLUMNS, |cell, at, width, cell_step| {
        if width == 1 && split.short_runs {
            let mut join = |block: &[T]| {
                let (mean, m2) = vectorized(Block(block));
                cells.merge_cell(cell, block.len() as f64, mean, m2);
            };
            split.for_each_run(at, |at, n, step| {
                pending.add(data, (at, n, step), &mut join);
            });
            return pending.take(join);
        }
        split.for_each_run(at, |at, n, step| {
            if width > 1 {
                for first in (0..n).step_by(ROWS) {
                    let rows = ROWS.min(n - first);
                    let at = at.wrapping_add_signed(first as isize * step);
                    let (mean, m2) = vectorized(ColumnBlock {
                        data,
                        at,
                        rows,
                        step,
                        width,
                    });
                    for j in 0..width {
                        let cell = cell.wrapping_add_signed(j as isize * cell_step);
                        cells.merge_cell(cell, rows as f64, mean[j], m2[j]);
                    }
                }
                return;
            }
            for first in (0..n).step_by(BLOCK) {
                let len = BLOCK.min(n - first);
                let at = at.wrapping_add_signed(first as isize * step);
                let block = gathered(data, at, step, &mut room[..len]);
                let (mean, m2) = vectorized(Block(block));
                cells.merge_cell(cell, len as f64, mean, m2);
            }
        });
    });
}

/// Rows of a few elements, one behind the other, each of which is a cell.
struct ShortRows<'a, T> {
    x: &'a [T],
    n: usize,
    found: &'a mut Moments,
}

impl<T: Real> WithSimd for ShortRows<'_, T> {
    type Output = ();

    /// Many rows side by side: vectors are of the elements with one index in each. They are joined as [`of_block`] joins those of one.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (n, found) = (self.n, self.found);
        found.count.fill(n as f64);
        let mut columns = [[T::zero(); ROWS_BESIDE]; FEW];
        for (block, x) in self.x.chunks(ROWS_BESIDE * n).enumerate() {
            load(x, n, &mut columns[..n]);
            let guess = each(joined(columns, n), |sum| T::of(sum.wide() / n as f64));
            let (mut off, mut squares) = ([[T::zero(); ROWS_BESIDE]; FEW], columns);
            for ((off, square), column) in off.iter_mut().zip(&mut squares).zip(&columns[..n]) {
                *off = numbered(|r| column[r] - guess[r]);
                *square = each(*off, |d| d * d);
            }
            let (off, squares) = (joined(off, n), joined(squares, n));
            for (r, row) in x.chunks_exact(n).enumerate() {
                let (mean, m2) = match is_lost(squares[r]) {
                    true => again(row),
                    false => {
                        let [guess, off, squares] = [guess[r], off[r], squares[r]].map(T::wide);
                        corrected(n as f64, guess, off, squares)
                    }
                };
                let cell = block * ROWS_BESIDE + r;
                (found.mean[cell], found.m2[cell]) = (mean, m2);
            }
        }
    }
}

/// The sums of `n` columns, in halves, as those of lanes; those behind them are zeros.
#[inline(always)]
fn joined<T: Real>(mut columns: [[T; ROWS_BESIDE]; FEW], n: usize) -> [T; ROWS_BESIDE] {
    let mut half = n.next_power_of_two() / 2;
    while half > 0 {
        for i in 0..half {
            let (a, b) = (columns[i], columns[i + half]);
            columns[i] = numbered(|r| a[r] + b[r]);
        }
        half /= 2;
    }
    columns[0]
}

impl Moments {
    /// Cells that have seen no element.
    pub fn empty(shape: &[usize]) -> Self {
        let cells = shape.iter().product();
        Self {
            shape: shape.into(),
            count: vec![0.0; cells],
            mean: vec![0.0; cells],
            m2: vec![0.0; cells],
        }
    }

    /// Adds the elements that `other` has seen, cell by cell.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn merge(&mut self, other: &Self) {
        assert!(
            self.shape == other.shape,
            "moments: {:?} merged with {:?}",
            self.shape,
            other.shape
        );
        for cell in 0..self.count.len() {
            self.merge_cell(cell, other.count[cell], other.mean[cell], other.m2[cell]);
        }
    }

    fn merge_cell(&mut self, cell: usize, count: f64, mean: f64, m2: f64) {
        let mut state = [self.count[cell], self.mean[cell], self.m2[cell]];
        merge(&mut state, [count, mean, m2]);
        [self.count[cell], self.mean[cell], self.m2[cell]] = state;
    }
}

/// Chan's merge of (count, mean, M2). Merging into or with nothing is exact.
///
/// ```
/// let mut state = [1.0, 3.0, 0.0];
/// shard_kernels::moments::merge(&mut state, [1.0, 5.0, 0.0]);
/// assert_eq!(state, [2.0, 4.0, 2.0]);
/// ```
#[inline(always)]
pub fn merge(state: &mut [f64; 3], [count, mean, m2]: [f64; 3]) {
    if count == 0.0 {
        return;
    }
    if state[0] == 0.0 {
        *state = [count, mean, m2];
        return;
    }
    let total = state[0] + count;
    let delta = mean - state[1];
    if !delta.is_finite() {
        *state = merge_far(*state, [count, mean, m2]);
        return;
    }
    state[2] += m2 + delta * delta * (state[0] * count / total);
    state[1] += delta * (count / total);
    state[0] = total;
}

/// [`merge`] of means whose difference is not finite: they are not, or are as large as numbers get.
#[cold]
#[inline(never)]
fn merge_far(state: [f64; 3], [count, mean, m2]: [f64; 3]) -> [f64; 3] {
    let total = state[0] + count;
    let all = state[1] * (state[0] / total) + mean * (count / total);
    let apart = if all.is_finite() {
        f64::INFINITY
    } else {
        f64::NAN
    };
    [total, all, state[2] + m2 + apart]
}

/// (count, mean, M2) of elements side by side.
#[inline(always)]
pub(crate) fn of_run<T: Real, S: Simd>(simd: S, x: &[T]) -> [f64; 3] {
    let (first, rest) = x.split_at(x.len().min(BLOCK));
    let (mean, m2) = match first.is_empty() {
        true => (0.0, 0.0),
        false => of_block(simd, first),
    };
    let mut state = [first.len() as f64, mean, m2];
    // Not a closure, which would have to be told to be compiled for these vectors.
    for block in rest.chunks(BLOCK) {
        let (mean, m2) = of_block(simd, block);
        merge(&mut state, [block.len() as f64, mean, m2]);
    }
    state
}

fn grouped(cells: &Moments, dims: &[usize], groups: Groups) -> Moments {
    let Groups {
        dim,
        start,
        channels,
        groups,
    } = groups;
    let kept_dim = dim - dims.iter().filter(|d| **d < dim).count();
    let present = cells.shape.get(kept_dim).copied().unwrap_or(0);
    let valid = !dims.contains(&dim)
        && kept_dim < cells.shape.len()
        && start + present <= channels
        && groups > 0;
    assert!(
        valid,
        "moments: channels {start}..{} of {channels} on dim {dim}, reduced {dims:?}",
        start + present
    );
    let mut shape = cells.shape.clone();
    shape[kept_dim] = groups;
    let mut out = Moments::empty(&shape);
    let inner: usize = shape[kept_dim + 1..].iter().product();
    for cell in 0..cells.count.len() {
        let (rest, i) = (cell / inner, cell % inner);
        let (outer, c) = (rest / present, rest % present);
        let group = (start + c) * groups / channels;
        let to = (outer * groups + group) * inner + i;
        out.merge_cell(to, cells.count[cell], cells.mean[cell], cells.m2[cell]);
    }
    out
}

/// Mean and M2 of a contiguous block.
struct Block<'a, T>(&'a [T]);

impl<T: Real> WithSimd for Block<'_, T> {
    type Output = (f64, f64);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> (f64, f64) {
        of_block(simd, self.0)
    }
}

/// Mean and M2 of a contiguous block of at most `BLOCK` elements.
#[inline(always)]
fn of_block<T: Real, S: Simd>(simd: S, x: &[T]) -> (f64, f64) {
    let (guess, [off, squares]) = match x.len() {
        ..=FEW => sums::<T, S, FEW>(simd, x),
        _ => sums::<T, S, LANES>(simd, x),
    };
    if is_lost(squares) {
        return again(x);
    }
    corrected(x.len() as f64, guess.wide(), off.wide(), squares.wide())
}

/// Whether a sum of squares may have lost what makes it up: some were too large for the type, or all so small that the type has few
/// digits for them, or none. For small ones there is nothing wider than f64.
#[inline(always)]
fn is_lost<T: Real>(squares: T) -> bool {
    let least = match size_of::<T>() < size_of::<f64>() {
        true => T::min_positive_value() / T::epsilon(),
        false => T::zero(),
    };
    !(squares >= least && squares < T::infinity())
}

/// Mean and M2 of a block whose squares are lost.
#[cold]
#[inline(never)]
fn again<T: Real>(x: &[T]) -> (f64, f64) {
    // Most such blocks are all zeros.
    match x[0].is_finite() && !vectorized(Differs(x)) {
        true => (x[0].wide(), 0.0),
        false => in_double(x),
    }
}

/// Whether elements are not all the same.
struct Differs<'a, T>(&'a [T]);

impl<T: Real> WithSimd for Differs<'_, T> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let first = self.0[0];
        let mut differs = [false; LANES];
        by_lanes(self.0, first, |block: &[_; LANES]| {
            for (differs, x) in differs.iter_mut().zip(block) {
                *differs |= *x != first;
            }
        });
        differs.contains(&true)
    }
}

/// Mean and M2 of a block, computed in f64.
fn in_double<T: Real>(x: &[T]) -> (f64, f64) {
    let n = x.len() as f64;
    let mut mean = x.iter().fold(0.0, |sum, x| sum + x.wide()) / n;
    if !mean.is_finite() {
        // Their sum may be too large where they are not.
        mean = x.iter().fold(0.0, |sum, x| sum + x.wide() / n);
    }
    let (off, squares) = x.iter().fold((0.0, 0.0), |(off, squares), x| {
        let d = x.wide() - mean;
        (off + d, squares + d * d)
    });
    match (mean.is_finite(), squares.is_finite()) {
        (true, true) => corrected(n, mean, off, squares),
        (true, false) if off.is_finite() => (mean + off / n, f64::INFINITY),
        (true, false) => (mean, f64::INFINITY),
        (false, _) => (mean, f64::NAN),
    }
}

/// The sum of squares of elements with these moments. Of those with infinities, whose M2 is NaN, it is infinite unless `has_nan`.
#[inline(always)]
pub fn about_zero([count, mean, m2]: [f64; 3], has_nan: impl FnOnce() -> bool) -> f64 {
    let squares = m2 + count * mean * mean;
    if squares.is_nan() && !has_nan() {
        return f64::INFINITY;
    }
    squares
}

/// The mean of a block, rounded, and the sums of deviations from it and of their squares, in so many lanes.
#[inline(always)]
fn sums<T: Real, S: Simd, const N: usize>(simd: S, x: &[T]) -> (T, [T; 2]) {
    let guess = guess::<T, S, N>(simd, x);
    (guess, deviations::<T, S, N>(simd, x, guess))
}

/// The mean of a block, rounded.
#[inline(always)]
fn guess<T: Real, S: Simd, const N: usize>(simd: S, x: &[T]) -> T {
    let mut sums = [T::zero(); N];
    by_lanes(
        x,
        T::zero(),
        #[inline(always)]
        |block: &[_; N]| {
            for (sum, x) in sums.iter_mut().zip(block) {
                *sum += *x;
            }
        },
    );
    T::of(sum_of_lanes(simd, &sums).wide() / x.len() as f64)
}

/// The sums of a block's deviations from a guess of its mean, and of their squares.
#[inline(always)]
fn deviations<T: Real, S: Simd, const N: usize>(simd: S, x: &[T], guess: T) -> [T; 2] {
    let (mut off, mut squares) = ([T::zero(); N], [T::zero(); N]);
    by_lanes(
        x,
        guess,
        #[inline(always)]
        |block: &[_; N]| {
            for ((off, square), x) in off.iter_mut().zip(&mut squares).zip(block) {
                let d = *x - guess;
                *off += d;
                *square += d * d;
            }
        },
    );
    [sum_of_lanes(simd, &off), sum_of_lanes(simd, &squares)]
}

/// Means and M2s of `width` columns over `rows` rows.
struct ColumnBlock<'a, T> {
    data: &'a [T],
    at: usize,
    rows: usize,
    step: isize,
    width: usize,
}

impl<T: Real> WithSimd for ColumnBlock<'_, T> {
    type Output = ([f64; COLUMNS], [f64; COLUMNS]);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Self::Output {
        let row = |r: usize| self.row(r);
        let n = self.rows as f64;
        let mut guess = [T::zero(); COLUMNS];
        for r in 0..self.rows {
            for (g, x) in guess.iter_mut().zip(row(r)) {
                *g += *x;
            }
        }
        for g in &mut guess[..self.width] {
            *g = T::of(g.wide() / n);
        }
        let (mut off, mut squares) = ([T::zero(); COLUMNS], [T::zero(); COLUMNS]);
        for r in 0..self.rows {
            for (((o, s), g), x) in off.iter_mut().zip(&mut squares).zip(&guess).zip(row(r)) {
                let d = *x - *g;
                *o += d;
                *s += d * d;
            }
        }
        let (mut mean, mut m2) = ([0.0; COLUMNS], [0.0; COLUMNS]);
        for j in 0..self.width {
            (mean[j], m2[j]) = corrected(n, guess[j].wide(), off[j].wide(), squares[j].wide());
        }
        let lost = |lost, s: &T| lost | is_lost(*s);
        if squares[..self.width].iter().fold(false, lost) {
            self.again(&squares, &mut mean, &mut m2);
        }
        (mean, m2)
    }
}

impl<T: Real> ColumnBlock<'_, T> {
    #[inline(always)]
    fn row(&self, r: usize) -> &[T] {
        let from = self.at.wrapping_add_signed(r as isize * self.step);
        &self.data[from..from + self.width]
    }

    /// Takes the columns in f64 whose squares are lost. Those of which all elements are the same have none.
    #[cold]
    #[inline(never)]
    fn again(&self, squares: &[T; COLUMNS], mean: &mut [f64; COLUMNS], m2: &mut [f64; COLUMNS]) {
        let differs = vectorized(ColumnsDiffer(self));
        let mut room = [T::zero(); ROWS];
        for j in 0..self.width {
            if !is_lost(squares[j]) {
                continue;
            }
            let first = self.row(0)[j];
            if first.is_finite() && !differs[j] {
                (mean[j], m2[j]) = (first.wide(), 0.0);
                continue;
            }
            for (r, to) in room[..self.rows].iter_mut().enumerate() {
                *to = self.row(r)[j];
            }
            (mean[j], m2[j]) = in_double(&room[..self.rows]);
        }
    }
}

/// Which columns have elements that are not all the same.
struct ColumnsDiffer<'a, T>(&'a ColumnBlock<'a, T>);

impl<T: Real> WithSimd for ColumnsDiffer<'_, T> {
    type Output = [bool; COLUMNS];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [bool; COLUMNS] {
        let (block, first) = (self.0, self.0.row(0));
        let mut differs = [false; COLUMNS];
        for r in 1..block.rows {
            for ((differs, x), first) in differs.iter_mut().zip(block.row(r)).zip(first) {
                *differs |= *x != *first;
            }
        }
        differs
    }
}

/// Mean and M2 from a guessed mean, the sum of deviations from it, and the sum of their squares.
#[inline(always)]
fn corrected(n: f64, guess: f64, off: f64, squares: f64) -> (f64, f64) {
    let m2 = squares - off * off / n;
    // Not max(): NaN must stay.
    (guess + off / n, if m2 < 0.0 { 0.0 } else { m2 })
}
