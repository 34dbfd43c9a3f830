//! Reductions of a view over some of its dims.
//!
//! Blocks of at most `BLOCK` elements accumulate in the element type over independent lanes, and block results are joined in
//! f64. So sums of f32 lose no digits with length, and the loops run on vectors.

mod halves;
mod runs;

pub use self::halves::{Half, reduce_rows};
pub(crate) use self::runs::{Pending, SHORT_RUN};
use super::pointwise::{larger, smaller, vectorized};
use super::view::{for_each_row, join_dims};
use super::{Dims, Real, Strides, View};
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};

/// Elements accumulated in the element type before they join the f64 total.
pub(crate) const BLOCK: usize = 1024;

/// Independent accumulators of a run: enough for every vector width and the latency of an add.
pub(crate) const LANES: usize = 64;

/// Elements of a run of which one sum is faster than one per lane.
const SHORT: usize = 32;

/// Elements of a row of which there are many that are faster looked at side by side.
const SHORTEST: usize = 10;

/// Elements of a row up to which rows are reduced by sides.
const MIDDLING: usize = 256;

/// Lanes of such a row, and rows of which lanes are joined together.
const SIDE: usize = 16;

/// Columns accumulated side by side where the contiguous dim is kept.
pub(crate) const COLUMNS: usize = 256;

/// Columns whose sums are accumulated so: long stretches of few rows at a time are what memory gives fastest.
const SUMMED: usize = 512;

/// Columns of whole vectors on every instruction set.
const WHOLE: usize = 16;

/// Rows accumulated in the element type before they join the f64 totals.
const ROWS: usize = 16;

/// The operation of a reduction. Empty sets give the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    /// Sum; 0 when empty.
    Sum,
    /// Sum of squares; 0 when empty.
    SquareSum,
    /// Product; 1 when empty.
    Prod,
    /// Largest, NaN if there is one; -inf when empty.
    Max,
    /// Smallest, NaN if there is one; inf when empty.
    Min,
}

compiled! { trait Compiled for Real: f32 f64; {
    /// Reduces `x` over `dims` into `out`, row-major over the remaining dims. This is also the result that keeps reduced dims with
    /// extent 1.
    ///
    /// ```
    /// use shard_kernels::{reduce::{reduce, ReduceKind}, View};
    /// let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let mut out = [0.0; 3];
    /// reduce(ReduceKind::Sum, &View::contiguous(&x, &[2, 3]), &[0], &mut out);
    /// assert_eq!(out, [5.0, 7.0, 9.0]);
    /// ```
    ///
    /// # Panics
    /// When a dim is out of range or named twice, or `out` has another number of elements.
    pub fn reduce<T>(op: ReduceKind, x: &View<'_, T>, dims: &[usize], out: &mut [T]) = reduce_here;
} }

fn reduce_here<T: Real>(op: ReduceKind, x: &View<'_, T>, dims: &[usize], out: &mut [T]) {
    match op {
        ReduceKind::Sum => fold::<T, Sum>(x, dims, out),
        ReduceKind::SquareSum => fold::<T, Squares>(x, dims, out),
        ReduceKind::Prod => fold::<T, Prod>(x, dims, out),
        ReduceKind::Max => fold::<T, Max>(x, dims, out),
        ReduceKind::Min => fold::<T, Min>(x, dims, out),
    }
}

/// A commutative monoid on numbers, and what of an element is joined.
trait Fold {
    #[inline(always)]
    fn term<R: Real>(x: R) -> R {
        x
    }

    #[inline(always)]
    fn term_vec<R: Real, S: Simd>(_: S, x: R::Vec<S>) -> R::Vec<S> {
        x
    }

    fn start<R: Real>() -> R;
    fn join<R: Real>(a: R, b: R) -> R;

    /// The fold of a few numbers, one after the other.
    #[inline(always)]
    fn few<R: Real>(of: &[R]) -> R {
        of.iter()
            .fold(Self::start(), |sum, x| Self::join(sum, Self::term(*x)))
    }

    /// The same per lane. Of choices between two elements in a loop the compiler makes branches, or stores under a mask.
    fn join_vec<R: Real, S: Simd>(simd: S, a: R::Vec<S>, b: R::Vec<S>) -> R::Vec<S>;
}

macro_rules! folds {
    ($($name:ident: $start:expr, |$a:ident, $b:ident| $join:expr, $join_vec:ident $(, $few:ident)?;)*) => {$(
        struct $name;
        impl Fold for $name {
            #[inline(always)]
            fn start<R: Real>() -> R {
                $start
            }
            #[inline(always)]
            fn join<R: Real>($a: R, $b: R) -> R {
                $join
            }
            #[inline(always)]
            fn join_vec<R: Real, S: Simd>(simd: S, a: R::Vec<S>, b: R::Vec<S>) -> R::Vec<S> {
                R::$join_vec(simd, a, b)
            }
            $(
                #[inline(always)]
                fn few<R: Real>(of: &[R]) -> R {
                    $few::<R, Self>(of)
                }
            )?
        }
    )*};
}

folds! {
    Sum: R::zero(), |a, b| a + b, add_vec;
    Prod: R::one(), |a, b| a * b, mul_vec;
    Max: R::neg_infinity(), |a, b| larger(a, b), larger_or_nan_vec, most_of;
    Min: R::infinity(), |a, b| smaller(a, b), smaller_or_nan_vec, least_of;
}

/// The largest of a few numbers by comparisons alone, which are right unless there is a NaN, or zeros of two signs may be the largest.
#[inline(always)]
fn most_of<R: Real, F: Fold>(of: &[R]) -> R {
    let most = (of.iter()).fold(F::start(), |most: R, x| if *x > most { *x } else { most });
    checked::<R, F>(most, of)
}

#[inline(always)]
fn least_of<R: Real, F: Fold>(of: &[R]) -> R {
    let least = (of.iter()).fold(
        F::start(),
        |least: R, x| if *x < least { *x } else { least },
    );
    checked::<R, F>(least, of)
}

#[inline(always)]
fn checked<R: Real, F: Fold>(found: R, of: &[R]) -> R {
    let is_none = of.iter().fold(false, |is_none, x| is_none | x.is_nan());
    if is_none | (found == R::zero()) {
        return of.iter().fold(F::start(), |found, x| F::join(found, *x));
    }
    found
}

struct Squares;

impl Fold for Squares {
    #[inline(always)]
    fn term<R: Real>(x: R) -> R {
        x * x
    }

    #[inline(always)]
    fn term_vec<R: Real, S: Simd>(simd: S, x: R::Vec<S>) -> R::Vec<S> {
        R::mul_vec(simd, x, x)
    }

    #[inline(always)]
    fn start<R: Real>() -> R {
        Sum::start()
    }

    #[inline(always)]
    fn join<R: Real>(a: R, b: R) -> R {
        Sum::join(a, b)
    }

    #[inline(always)]
    fn join_vec<R: Real, S: Simd>(simd: S, a: R::Vec<S>, b: R::Vec<S>) -> R::Vec<S> {
        Sum::join_vec::<R, S>(simd, a, b)
    }
}

/// How a reduction walks its view: dims split into kept and reduced, and whether columns run side by side.
pub(crate) struct Split {
    pub(crate) kept: Dims,
    /// The kept dims as cells are visited, those that follow each other as one, with the steps of cells and of elements.
    visited: Dims,
    cell_steps: Strides,
    visited_steps: Strides,
    pub(crate) reduced: Dims,
    pub(crate) reduced_steps: Strides,
    /// The visited dim that is contiguous in memory, if no reduced dim is.
    columns: Option<usize>,
    /// Elements of a cell and their step, where they are one run.
    run: Option<(usize, isize)>,
    /// Whether they are several short ones.
    pub(crate) short_runs: bool,
}

impl Split {
    pub(crate) fn new(shape: &[usize], strides: &[isize], dims: &[usize]) -> Self {
        let valid = dims
            .iter()
            .enumerate()
            .all(|(i, d)| *d < shape.len() && !dims[..i].contains(d));
        assert!(valid, "reduce: dims {dims:?} of shape {shape:?}");
        let (mut kept, mut kept_steps) = (Dims::new(), Strides::new());
        let (mut reduced, mut reduced_steps) = (Dims::new(), Strides::new());
        for d in 0..shape.len() {
            let (extents, steps) = if dims.contains(&d) {
                (&mut reduced, &mut reduced_steps)
            } else {
                (&mut kept, &mut kept_steps)
            };
            extents.push(shape[d]);
            steps.push(strides[d]);
        }
        let cells = super::view::row_major(&kept);
        let (visited, steps) = join_dims(&kept, [&cells, &kept_steps]);
        let cell_steps = steps.iter().map(|step| step[0]).collect();
        let visited_steps: Strides = steps.iter().map(|step| step[1]).collect();
        let runs = |extents: &[usize], steps: &[isize]| {
            (0..steps.len()).find(|&d| extents[d] > 1 && steps[d] == 1)
        };
        let columns = match runs(&reduced, &reduced_steps) {
            Some(_) => None,
            None => runs(&visited, &visited_steps),
        };
        let joined = join_dims(&reduced, [&reduced_steps]);
        let short_runs = joined.0.len() > 1 && joined.0.last().is_some_and(|n| *n <= SHORT_RUN);
        let run = match joined {
            _ if reduced.contains(&0) => None,
            (extents, steps) => match (&extents[..], &steps[..]) {
                ([], _) => Some((1, 1)),
                ([n], [[step]]) => Some((*n, *step)),
                _ => None,
            },
        };
        Self {
            kept,
            visited,
            cell_steps,
            visited_steps,
            reduced,
            reduced_steps,
            columns,
            run,
            short_runs,
        }
    }

    /// Visits `(position in x, elements, step)` for the runs of the cell, or of the cells side by side, whose first element is
    /// at `at`.
    pub(crate) fn for_each_run(&self, at: usize, mut visit: impl FnMut(usize, usize, isize)) {
        if let Some((n, step)) = self.run {
            return visit(at, n, step);
        }
        for_each_row(
            &self.reduced,
            [&self.reduced_steps],
            [at],
            |[at], n, [step]| visit(at, n, step),
        );
    }

    /// How many numbers rows have, if each cell is one of a few numbers, and they lie one behind the other.
    pub(crate) fn short_rows(&self) -> Option<usize> {
        self.rows().filter(|&n| n <= SHORTEST)
    }

    /// How many numbers rows have, if each cell is one, and they lie one behind the other.
    pub(crate) fn rows(&self) -> Option<usize> {
        let (n, _) = self.run.filter(|&(_, step)| step == 1)?;
        match (&self.cell_steps[..], &self.visited_steps[..]) {
            ([1], [step]) if *step == n as isize && n > 1 => Some(n),
            _ => None,
        }
    }

    /// How many rows cells side by side have and how far apart these lie, if they are so few that they join in the element type.
    fn few_rows(&self) -> Option<(usize, isize)> {
        let rows = self.run.filter(|&(rows, _)| rows <= ROWS)?;
        let c = self.columns?;
        // Cells lie side by side in the output too.
        (self.cell_steps[c] == 1).then_some(rows)
    }

    pub(crate) fn cells(&self) -> usize {
        self.kept.iter().product()
    }

    /// Visits `(output cell, position in x, columns)`: single cells, or up to `most` of them side by side.
    ///
    /// Cells side by side are `cell_step` apart in the output.
    pub(crate) fn for_each_cell(
        &self,
        offset: usize,
        most: usize,
        mut visit: impl FnMut(usize, usize, usize, isize),
    ) {
        let (cells, steps) = (&self.cell_steps, &self.visited_steps);
        let Some(c) = self.columns else {
            for_each_row(
                &self.visited,
                [cells, steps],
                [0, offset],
                |[cell, at], n, [s, t]| {
                    for i in 0..n as isize {
                        visit(
                            cell.wrapping_add_signed(i * s),
                            at.wrapping_add_signed(i * t),
                            1,
                            1,
                        );
                    }
                },
            );
            return;
        };
        let mut outer = self.visited.clone();
        outer[c] = 1;
        for_each_row(
            &outer,
            [cells, steps],
            [0, offset],
            |[cell, at], n, [s, t]| {
                for i in 0..n as isize {
                    let (cell, at) = (
                        cell.wrapping_add_signed(i * s),
                        at.wrapping_add_signed(i * t),
                    );
                    for first in (0..self.visited[c]).step_by(most) {
                        let width = most.min(self.visited[c] - first);
                        visit(
                            cell + first * cells[c] as usize,
                            at + first,
                            width,
                            cells[c],
                        );
                    }
                }
            },
        );
    }
}

/// Whether rows of so many numbers are reduced by sides. Of a few more than whole lanes they are not: what is left over takes longer than all of them
/// one after the other.
fn is_middling(n: usize) -> bool {
    n <= MIDDLING && (n > SHORT || n > 0 && n.is_multiple_of(SIDE))
}

fn fold<T: Real, F: Fold>(x: &View<'_, T>, dims: &[usize], out: &mut [T]) {
    let split = Split::new(x.shape(), x.strides(), dims);
    assert!(
        out.len() == split.cells(),
        "reduce: {} cells into {} elements",
        split.cells(),
        out.len()
    );
    let data = x.data();
    if let Some(n) = split.short_rows() {
        let rows = &data[x.offset()..][..out.len() * n];
        let fold = core::marker::PhantomData;
        return vectorized(ShortRows::<T, F> { rows, n, out, fold });
    }
    if let Some(n) = split.rows().filter(|&n| is_middling(n)) {
        let rows = &data[x.offset()..][..out.len() * n];
        let fold = core::marker::PhantomData;
        return vectorized(MiddlingRows::<T, F> { rows, n, out, fold });
    }
    if let Some((rows, step)) = split.few_rows() {
        return split.for_each_cell(x.offset(), SUMMED, |cell, at, width, _| {
            vectorized(FewRows::<T, F> {
                data,
                at,
                rows,
                step,
                out: &mut out[cell..][..width],
                fold: core::marker::PhantomData,
            });
        });
    }
    // Made once: where rows are short, to make them takes longer than what they are for.
    let (mut totals, mut room) = ([0.0; SUMMED], ([T::zero(); SUMMED], [0.0; SUMMED]));
    split.for_each_cell(x.offset(), SUMMED, |cell, at, width, cell_step| {
        if width == 1 {
            let mut total: f64 = F::start();
            split.for_each_run(at, |at, n, step| {
                if step == 1 && is_middling(n) {
                    let row = OneRow::<T, F>(&data[at..at + n], core::marker::PhantomData);
                    total = F::join(total, vectorized(row).wide());
                } else if step == 1 && n <= SHORT {
                    total = F::join(total, F::few(&data[at..at + n]).wide());
                } else if step == 1 {
                    for block in data[at..at + n].chunks(BLOCK) {
                        let run = Run::<T, F>(block, core::marker::PhantomData);
                        total = F::join(total, vectorized(run).wide());
                    }
                } else {
                    for i in 0..n as isize {
                        let x = data[at.wrapping_add_signed(i * step)];
                        total = F::join(total, F::term(x).wide());
                    }
                }
            });
            out[cell] = T::of(total);
            return;
        }
        totals[..width.next_multiple_of(WHOLE)].fill(F::start());
        split.for_each_run(at, |at, n, step| {
            // What stands behind rows goes along, so that vectors are whole; nobody looks at what it comes to. The last rows may have too little
            // behind them.
            let whole = width.next_multiple_of(WHOLE);
            let room_behind = data.len().checked_sub(at + whole);
            let filled = match (room_behind, usize::try_from(step)) {
                (None, _) => 0,
                (Some(behind), Ok(step @ 1..)) if behind / step + 1 < n => {
                    (behind / step + 1) / ROWS * ROWS
                }
                _ => n,
            };
            for (from, rows, width) in [(0, filled, whole), (filled, n - filled, width)] {
                if rows == 0 {
                    continue;
                }
                vectorized(Rows::<T, F> {
                    totals: &mut totals[..width],
                    columns: &mut room.0[..width],
                    wide: &mut room.1[..width],
                    data,
                    at: at.wrapping_add_signed(from as isize * step),
                    step,
                    rows,
                    fold: core::marker::PhantomData,
                });
            }
        });
        for (j, total) in totals[..width].iter().enumerate() {
            out[cell.wrapping_add_signed(j as isize * cell_step)] = T::of(*total);
        }
    });
}

/// Rows of `n` numbers, one behind the other, each of which gives one.
struct ShortRows<'a, T, F> {
    rows: &'a [T],
    n: usize,
    out: &'a mut [T],
    fold: core::marker::PhantomData<F>,
}

impl<T: Real, F: Fold> WithSimd for ShortRows<'_, T, F> {
    type Output = ();

    /// Many rows side by side: vectors are of the numbers with one index in each. A row's are joined one after the other.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = self.n;
        let mut blocks = self.rows.chunks_exact(LANES * n);
        let mut out = self.out.chunks_exact_mut(LANES);
        for (rows, out) in blocks.by_ref().zip(out.by_ref()) {
            let mut joined = [F::start::<T>(); LANES];
            for i in 0..n {
                let mut column = [T::zero(); LANES];
                for (x, row) in column.iter_mut().zip(rows.chunks_exact(n)) {
                    *x = row[i];
                }
                let column = T::vectors::<S>(&column).iter();
                for (joined, x) in T::vectors_mut::<S>(&mut joined).iter_mut().zip(column) {
                    *joined = F::join_vec::<T, S>(simd, *joined, F::term_vec::<T, S>(simd, *x));
                }
            }
            out.copy_from_slice(&joined);
        }
        let last = blocks.remainder().chunks_exact(n);
        for (row, out) in last.zip(out.into_remainder()) {
            *out = F::join(F::start(), F::few(row));
        }
    }
}

/// As [`ShortRows`], of more numbers.
struct MiddlingRows<'a, T, F> {
    rows: &'a [T],
    n: usize,
    out: &'a mut [T],
    fold: core::marker::PhantomData<F>,
}

impl<T: Real, F: Fold> WithSimd for MiddlingRows<'_, T, F> {
    type Output = ();

    /// Each row is joined to lanes, and lanes of rows side by side one after the other, as are the numbers that fill no lanes. How a row is joined
    /// does not depend on where it stands.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = self.n;
        let in_lanes = n - n % SIDE;
        let blocks = self.rows.chunks(SIDE * n);
        for (rows, out) in blocks.zip(self.out.chunks_mut(SIDE)) {
            if out.len() < SIDE / 4 {
                for (row, out) in rows.chunks_exact(n).zip(out) {
                    *out = OneRow::<T, F>(row, self.fold).with_simd(simd);
                }
                continue;
            }
            let mut lanes = [[F::start::<T>(); SIDE]; SIDE];
            for (lanes, row) in lanes.iter_mut().zip(rows.chunks_exact(n)) {
                join_lanes::<T, F, S>(simd, row, lanes);
            }
            let mut joined = [F::start::<T>(); SIDE];
            for i in 0..SIDE.min(in_lanes) {
                let mut column = [T::zero(); SIDE];
                for (x, lanes) in column.iter_mut().zip(&lanes) {
                    *x = lanes[i];
                }
                let column = T::vectors::<S>(&column).iter();
                for (joined, x) in T::vectors_mut::<S>(&mut joined).iter_mut().zip(column) {
                    *joined = F::join_vec::<T, S>(simd, *joined, *x);
                }
            }
            for i in in_lanes..n {
                let mut column = [T::zero(); SIDE];
                for (x, row) in column.iter_mut().zip(rows.chunks_exact(n)) {
                    *x = row[i];
                }
                let column = T::vectors::<S>(&column).iter();
                for (joined, x) in T::vectors_mut::<S>(&mut joined).iter_mut().zip(column) {
                    let term = F::term_vec::<T, S>(simd, *x);
                    *joined = F::join_vec::<T, S>(simd, *joined, term);
                }
            }
            out.copy_from_slice(&joined[..out.len()]);
        }
    }
}

/// One row, as [`MiddlingRows`] has it among others.
struct OneRow<'a, T, F>(&'a [T], core::marker::PhantomData<F>);

impl<T: Real, F: Fold> WithSimd for OneRow<'_, T, F> {
    type Output = T;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> T {
        let mut lanes = [F::start::<T>(); SIDE];
        let rest = join_lanes::<T, F, S>(simd, self.0, &mut lanes);
        let lanes = &lanes[..if rest.len() < self.0.len() { SIDE } else { 0 }];
        let joined = lanes.iter().fold(F::start(), |sum, x| F::join(sum, *x));
        rest.iter().fold(joined, |sum, x| F::join(sum, F::term(*x)))
    }
}

/// Joins a row to lanes, and returns the end that fills none.
#[inline(always)]
fn join_lanes<'a, T: Real, F: Fold, S: Simd>(
    simd: S,
    row: &'a [T],
    lanes: &mut [T; SIDE],
) -> &'a [T] {
    let (whole, rest) = pulp::as_arrays::<SIDE, T>(row);
    for (v, lanes) in T::vectors_mut::<S>(lanes).iter_mut().enumerate() {
        for x in whole {
            let term = F::term_vec::<T, S>(simd, T::vectors::<S>(x)[v]);
            *lanes = F::join_vec::<T, S>(simd, *lanes, term);
        }
    }
    rest
}

/// Columns of a few rows, so far apart, each of which gives one number.
struct FewRows<'a, T, F> {
    data: &'a [T],
    at: usize,
    rows: usize,
    step: isize,
    out: &'a mut [T],
    fold: core::marker::PhantomData<F>,
}

impl<T: Real, F: Fold> WithSimd for FewRows<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (rows, width) = (self.rows, self.out.len());
        let row = |i: usize| {
            let at = self.at.wrapping_add_signed(i as isize * self.step);
            &self.data[at..][..width]
        };
        let vectors = T::vectors_mut::<S>(self.out);
        let whole = vectors.len() * T::lanes::<S>();
        let join = |joined, row, v: usize| {
            let term = F::term_vec::<T, S>(simd, T::vectors::<S>(row)[v]);
            F::join_vec::<T, S>(simd, joined, term)
        };
        let start = T::splat(simd, F::start());
        if rows == ROWS {
            let rows: [&[T]; ROWS] = core::array::from_fn(row);
            for (v, out) in vectors.iter_mut().enumerate() {
                *out = rows.iter().fold(start, |joined, row| join(joined, row, v));
            }
        } else {
            for (v, out) in vectors.iter_mut().enumerate() {
                *out = (0..rows).fold(start, |joined, i| join(joined, row(i), v));
            }
        }
        for j in whole..width {
            let join = |joined, i| F::join(joined, F::term(row(i)[j]));
            self.out[j] = (0..rows).fold(F::start(), join);
        }
    }
}

/// The largest (or smallest) of some numbers; NaN if there is one.
pub(crate) fn extreme<T: Real>(largest: bool, of: &[T]) -> T {
    match largest {
        true => vectorized(Run::<T, Max>(of, core::marker::PhantomData)),
        false => vectorized(Run::<T, Min>(of, core::marker::PhantomData)),
    }
}

/// The fold of a contiguous block.
struct Run<'a, T, F>(&'a [T], core::marker::PhantomData<F>);

impl<T: Real, F: Fold> WithSimd for Run<'_, T, F> {
    type Output = T;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> T {
        let mut lanes = [F::start::<T>(); LANES];
        let (whole, tail) = pulp::as_arrays::<LANES, T>(self.0);
        let mut last = [F::start::<T>(); LANES];
        for (last, x) in last.iter_mut().zip(tail) {
            *last = F::term(*x);
        }
        // Vectors whose joins wait for each other go side by side, as many as there are registers for.
        match LANES / T::lanes::<S>() {
            4 => joined::<T, F, S, 4>(simd, whole, &mut lanes),
            8 => joined::<T, F, S, 8>(simd, whole, &mut lanes),
            _ => joined::<T, F, S, 1>(simd, whole, &mut lanes),
        }
        for (lanes, last) in
            (T::vectors_mut::<S>(&mut lanes).iter_mut()).zip(T::vectors::<S>(&last))
        {
            *lanes = F::join_vec::<T, S>(simd, *lanes, *last);
        }
        // As [`halve`] does, in vectors as long as there are two.
        let vectors = T::vectors_mut::<S>(&mut lanes);
        let mut half = vectors.len() / 2;
        while half > 0 {
            for i in 0..half {
                vectors[i] = F::join_vec::<T, S>(simd, vectors[i], vectors[i + half]);
            }
            half /= 2;
        }
        half = T::lanes::<S>() / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = F::join(lanes[i], lanes[i + half]);
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// Joins blocks to lanes, `N` vectors of them at a time.
#[inline(always)]
fn joined<T: Real, F: Fold, S: Simd, const N: usize>(
    simd: S,
    blocks: &[[T; LANES]],
    lanes: &mut [T; LANES],
) {
    for (first, lanes) in (T::vectors_mut::<S>(lanes).chunks_exact_mut(N)).enumerate() {
        let mut joined: [T::Vec<S>; N] = core::array::from_fn(|i| lanes[i]);
        for block in blocks {
            let block = &T::vectors::<S>(block)[first * N..][..N];
            for (joined, x) in joined.iter_mut().zip(block) {
                *joined = F::join_vec::<T, S>(simd, *joined, F::term_vec::<T, S>(simd, *x));
            }
        }
        lanes.copy_from_slice(&joined);
    }
}

/// Visits a block in whole arrays of lanes, of which the last is filled up. So all of them stay in registers.
#[inline(always)]
pub(crate) fn by_lanes<T: Copy, const N: usize>(
    block: &[T],
    fill: T,
    mut visit: impl FnMut(&[T; N]),
) {
    let (whole, tail) = pulp::as_arrays::<N, T>(block);
    for block in whole {
        visit(block);
    }
    if !tail.is_empty() {
        let mut last = [fill; N];
        last[..tail.len()].copy_from_slice(tail);
        visit(&last);
    }
}

/// Joins lanes in halves.
#[inline(always)]
pub(crate) fn halve<T: Copy, const N: usize>(mut lanes: [T; N], join: impl Fn(T, T) -> T) -> T {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The largest of some numbers; what is none is passed over.
///
/// These are vectors by name: of a choice between two elements the compiler makes a store under a mask, and waits for it.
#[inline(always)]
pub(crate) fn largest<T: Real, S: Simd>(simd: S, x: &[T]) -> T {
    const CHAINS: usize = 4;
    let mut most = [T::splat(simd, T::neg_infinity()); CHAINS];
    by_lanes(
        x,
        T::neg_infinity(),
        #[inline(always)]
        |block: &[T; LANES]| {
            for (i, x) in T::vectors::<S>(block).iter().enumerate() {
                most[i % CHAINS] = T::larger_vec(simd, most[i % CHAINS], *x);
            }
        },
    );
    let mut lanes = [T::neg_infinity(); LANES];
    for (to, most) in T::vectors_mut::<S>(&mut lanes).iter_mut().zip(most) {
        *to = most;
    }
    halve(lanes, |a, b| if b > a { b } else { a })
}

/// Lanes of a run of at most as many elements: others would stay empty, and sums are the same without them.
pub(crate) const FEW: usize = 16;

/// The sum of lanes, joined in the same halves on every instruction set, as [`halve`] does, but in vectors throughout.
#[inline(always)]
pub(crate) fn sum_of_lanes<T: Real, S: Simd, const N: usize>(simd: S, lanes: &[T; N]) -> T {
    let vectors = T::vectors::<S>(lanes);
    let mut sums = [T::splat(simd, T::zero()); LANES];
    sums[..vectors.len()].copy_from_slice(vectors);
    let one = T::splat(simd, T::one());
    let mut half = N / T::lanes::<S>() / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] = T::mul_add_vec(simd, one, sums[i], sums[i + half]);
        }
        half /= 2;
    }
    T::sum_vec(simd, sums[0])
}

/// Rows, a few of them joined in the element type and then with totals.
struct Rows<'a, T, F> {
    totals: &'a mut [f64],
    /// Room for as many numbers.
    columns: &'a mut [T],
    wide: &'a mut [f64],
    data: &'a [T],
    at: usize,
    step: isize,
    rows: usize,
    fold: core::marker::PhantomData<F>,
}

impl<T: Real, F: Fold> WithSimd for Rows<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let is_narrow = self.totals.len() == WHOLE;
        for first in (0..self.rows).step_by(ROWS) {
            let rows = ROWS.min(self.rows - first);
            match is_narrow {
                true => self.few_narrow(simd, first, rows),
                false => self.few(simd, first, rows),
            }
        }
    }
}

impl<T: Real, F: Fold> Rows<'_, T, F> {
    /// As [`few`](Self::few), of columns that registers hold.
    #[inline(always)]
    fn few_narrow<S: Simd>(&mut self, simd: S, first: usize, rows: usize) {
        let mut wide = [0.0; WHOLE];
        let each = wide.chunks_exact_mut(T::lanes::<S>());
        for (v, wide) in each.enumerate() {
            let mut joined = T::splat(simd, F::start());
            for i in first..first + rows {
                let at = self.at.wrapping_add_signed(i as isize * self.step);
                let row = T::vectors::<S>(&self.data[at..][..WHOLE]);
                joined = F::join_vec::<T, S>(simd, joined, F::term_vec::<T, S>(simd, row[v]));
            }
            let mut lanes = [T::zero(); WHOLE];
            T::vectors_mut::<S>(&mut lanes)[0] = joined;
            for (wide, x) in wide.iter_mut().zip(lanes) {
                *wide = x.wide();
            }
        }
        let totals = f64::vectors_mut::<S>(self.totals).iter_mut();
        for (total, x) in totals.zip(f64::vectors::<S>(&wide)) {
            *total = F::join_vec::<f64, S>(simd, *total, *x);
        }
    }

    /// Adds so many rows from one on.
    #[inline(always)]
    fn few<S: Simd>(&mut self, simd: S, first: usize, rows: usize) {
        let (width, data) = (self.totals.len(), self.data);
        let first = self.at.wrapping_add_signed(first as isize * self.step);
        let step = self.step;
        let row = |i: usize| &data[first.wrapping_add_signed(i as isize * step)..][..width];
        let columns = &mut self.columns[..width];
        columns.fill(F::start());
        let vectors = T::vectors_mut::<S>(columns);
        let whole = vectors.len() * T::lanes::<S>();
        if rows == ROWS {
            let rows: [&[T]; ROWS] = core::array::from_fn(row);
            for (v, column) in vectors.iter_mut().enumerate() {
                let mut joined = *column;
                for row in &rows {
                    let term = F::term_vec::<T, S>(simd, T::vectors::<S>(row)[v]);
                    joined = F::join_vec::<T, S>(simd, joined, term);
                }
                *column = joined;
            }
        } else {
            for i in 0..rows {
                for (column, x) in vectors.iter_mut().zip(T::vectors::<S>(row(i))) {
                    *column = F::join_vec::<T, S>(simd, *column, F::term_vec::<T, S>(simd, *x));
                }
            }
        }
        for i in 0..rows {
            for (column, x) in columns[whole..].iter_mut().zip(&row(i)[whole..]) {
                *column = F::join(*column, F::term(*x));
            }
        }
        let wide = &mut self.wide[..width];
        for (wide, column) in wide.iter_mut().zip(&*columns) {
            *wide = column.wide();
        }
        let totals = f64::vectors_mut::<S>(self.totals);
        let whole = totals.len() * f64::lanes::<S>();
        for (total, x) in totals.iter_mut().zip(f64::vectors::<S>(wide)) {
            *total = F::join_vec::<f64, S>(simd, *total, *x);
        }
        for (total, x) in self.totals[whole..].iter_mut().zip(&wide[whole..]) {
            *total = F::join(*total, *x);
        }
    }
}
