//! Convolution of channels that do not mix, as depthwise ones: rows of the input are read where they lie.

use super::direct::{dot_tile, splats, tile};
use super::lift::{Geometry, Slab, SlabMut};
use crate::Real;
use crate::arrays::{each, numbered};
use crate::exp::fused;
use crate::pointwise::vectorized;
use crate::prefetch::prefetch;
use crate::reduce::halve;
use crate::scratch::Room;
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// How many rows lie ahead that are asked for.
const AHEAD: isize = 2;

/// Whether each group is one channel in and one out, and outputs side by side meet inputs side by side, given the steps of
/// columns.
pub(super) fn fits(g: &Geometry, columns: [isize; 2]) -> bool {
    [g.cin, g.cout, g.stride[2]] == [1; 3] && columns == [1; 2]
}

/// Rows of outputs that meet the same rows of the kernel.
struct Run {
    plane: usize,
    rows: Range<usize>,
    /// Where the inputs of the first row begin, counted from those of the channel, and how far it is to those of the next.
    from: isize,
    down: isize,
    /// Taps of the kernel: where the inputs lie of the first column whose window is inside, and their number in the kernel.
    taps: Vec<usize>,
    kernel: Vec<usize>,
    /// Columns whose windows reach outside.
    edges: Vec<Edge>,
}

/// A column whose window reaches outside.
struct Edge {
    column: usize,
    /// The taps that it has: where their inputs lie, and which of the run's they are.
    inputs: Vec<usize>,
    taps: Vec<usize>,
}

impl Run {
    /// All runs of outputs, and the columns whose windows are inside.
    fn all<T>(x: &Slab<'_, T>, outputs: [usize; 3], g: &Geometry) -> (Vec<Self>, Range<usize>) {
        let inner = whole(g, x.extent[2], outputs[2]);
        let met = |dim: usize, o: usize| -> Vec<usize> {
            let inside = |k: &usize| (0..x.extent[dim] as isize).contains(&g.input(dim, o, *k));
            (0..g.kernel[dim]).filter(inside).collect()
        };
        let mut runs: Vec<Self> = Vec::new();
        for plane in 0..outputs[0] {
            let mut last = None;
            for row in 0..outputs[1] {
                let here = Some(met(1, row));
                match runs.last_mut() {
                    Some(run) if here == last => run.rows.end += 1,
                    _ => runs.push(Self::new(
                        x,
                        [plane, row],
                        [met(0, plane), met(1, row)],
                        &inner,
                        outputs[2],
                        g,
                    )),
                }
                last = here;
            }
        }
        (runs, inner)
    }

    fn new<T>(
        x: &Slab<'_, T>,
        [plane, row]: [usize; 2],
        [depths, heights]: [Vec<usize>; 2],
        inner: &Range<usize>,
        columns: usize,
        g: &Geometry,
    ) -> Self {
        let (mut at, mut kernel) = (Vec::new(), Vec::new());
        for &d in &depths {
            for &h in &heights {
                let line = g.input(0, plane, d) * x.step[0] + g.input(1, row, h) * x.step[1];
                for k in 0..g.kernel[2] {
                    at.push(line + g.input(2, inner.start, k));
                    kernel.push((d * g.kernel[1] + h) * g.kernel[2] + k);
                }
            }
        }
        let from = at.iter().min().copied().unwrap_or(0);
        let edges = (0..inner.start).chain(inner.end..columns).map(|column| {
            let inside = |t: &usize| {
                let i = g.input(2, column, kernel[*t] % g.kernel[2]);
                (0..x.extent[2] as isize).contains(&i)
            };
            let taps: Vec<usize> = (0..kernel.len()).filter(inside).collect();
            let input = |t: &usize| (at[*t] - from) as usize + column;
            Edge {
                column,
                inputs: (taps.iter())
                    .map(|t| input(t).wrapping_sub(inner.start))
                    .collect(),
                taps,
            }
        });
        Self {
            plane,
            rows: row..row + 1,
            from,
            down: g.stride[1] as isize * x.step[1],
            taps: at.iter().map(|at| (at - from) as usize).collect(),
            edges: edges.collect(),
            kernel,
        }
    }
}

/// The outputs of a row whose windows lie inside the input.
fn whole(g: &Geometry, inputs: usize, outputs: usize) -> Range<usize> {
    let outputs = outputs as isize;
    let start = (-g.input(2, 0, 0)).clamp(0, outputs);
    let last = g.input(2, 0, g.kernel[2] - 1);
    let end = (inputs as isize - last).clamp(start, outputs);
    start as usize..end as usize
}

/// Writes `y = bias + weight * x`, where it [fits](fits); `weight` is `[channels, 1, kernel]`, contiguous.
pub(super) fn correlate<T: Real>(
    x: &Slab<'_, T>,
    weight: &[T],
    bias: Option<&[T]>,
    y: &mut SlabMut<'_, T>,
    g: &Geometry,
) {
    for_each_channel(x, y.extent, g, |read, [n, c], runs, inner| {
        let weight = &weight[c * g.volume()..][..g.volume()];
        for run in runs {
            let weights: Vec<T> = run.kernel.iter().map(|k| weight[*k]).collect();
            let at_edges = run.edges.iter().flat_map(|edge| &edge.taps);
            let at_edges: Vec<T> = at_edges.map(|t| weights[*t]).collect();
            vectorized(Values {
                run,
                at_edges: &at_edges,
                x: read.data,
                from: read.start(n, c).wrapping_add_signed(run.from),
                weights: &weights,
                start: bias.map_or(T::zero(), |b| b[c]),
                to: y
                    .start(n, c)
                    .wrapping_add_signed(y.within([run.plane, run.rows.start, 0])),
                step: y.step[1],
                y: y.data,
                inner: inner.clone(),
                columns: y.extent[2],
            });
        }
    });
}

/// Calls `visit` with each channel of each batch: what to read it from, its number, its runs, and the columns whose windows are inside.
fn for_each_channel<T: Real>(
    x: &Slab<'_, T>,
    outputs: [usize; 3],
    g: &Geometry,
    mut visit: impl FnMut(&Slab<'_, T>, [usize; 2], &[Run], &Range<usize>),
) {
    /// So many columns beside the inner ones take longer by themselves than a copy of the channel with zeros around.
    const MANY: usize = 4;
    // By the kernel, so that zeros meet the same weights whatever columns there are here.
    let reach = (g.kernel[2] - 1) * g.dilation[2];
    if reach < MANY || whole(g, x.extent[2], outputs[2]).len() == outputs[2] {
        let (runs, inner) = Run::all(x, outputs, g);
        for n in 0..x.batch {
            for c in 0..g.groups {
                visit(x, [n, c], &runs, &inner);
            }
        }
        return;
    }
    let padded = Geometry {
        origin: [g.origin[0], g.origin[1], 0],
        ..*g
    };
    let width = outputs[2] + reach;
    let [depth, height, _] = x.extent;
    let mut room = Room::new();
    let copy = room
        .numbers(depth * height * width)
        .take(depth * height * width);
    let extent = [depth, height, width];
    let (runs, inner) = Run::all(&of_channel(copy, extent), outputs, &padded);
    // The columns of the copy that the input has.
    let low = (-g.origin[2]).clamp(0, width as isize) as usize;
    let high = (x.extent[2] as isize - g.origin[2]).clamp(low as isize, width as isize) as usize;
    for n in 0..x.batch {
        for c in 0..g.groups {
            for d in 0..depth {
                for h in 0..height {
                    let to = &mut copy[(d * height + h) * width..][..width];
                    to[..low].fill(T::zero());
                    to[high..].fill(T::zero());
                    if low < high {
                        let column = low as isize + g.origin[2];
                        let within = d as isize * x.step[0] + h as isize * x.step[1] + column;
                        let from = x.start(n, c).wrapping_add_signed(within);
                        to[low..high].copy_from_slice(&x.data[from..from + high - low]);
                    }
                }
            }
            visit(&of_channel(copy, extent), [n, c], &runs, &inner);
        }
    }
}

/// One channel, whatever its number is, whose elements lie one after the other.
fn of_channel<T>(data: &[T], extent: [usize; 3]) -> Slab<'_, T> {
    Slab {
        data,
        offset: 0,
        batch: 1,
        extent,
        outer: [0; 2],
        step: [(extent[1] * extent[2]) as isize, extent[2] as isize, 1],
    }
}

/// The outputs of a run, of one channel.
struct Values<'a, T> {
    run: &'a Run,
    x: &'a [T],
    from: usize,
    weights: &'a [T],
    /// Of each edge's taps, one edge after the other.
    at_edges: &'a [T],
    start: T,
    to: usize,
    step: isize,
    y: &'a mut [T],
    inner: Range<usize>,
    columns: usize,
}

impl<T: Real> WithSimd for Values<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run {
            taps,
            edges,
            rows,
            down,
            ..
        } = self.run;
        // Of the rows that a window reads, the last one is new.
        let new = taps.last().copied().unwrap_or(0);
        for row in 0..rows.len() as isize {
            let from = self.from.wrapping_add_signed(row * down);
            let to = self.to.wrapping_add_signed(row * self.step);
            prefetch(
                self.y,
                to.wrapping_add_signed(AHEAD * self.step),
                self.columns,
            );
            let to = &mut self.y[to..to + self.columns];
            if taps.is_empty() {
                to.fill(self.start);
                continue;
            }
            if !self.inner.is_empty() {
                let later = from.wrapping_add(new).wrapping_add_signed(AHEAD * *down);
                prefetch(self.x, later, self.inner.len());
                let to = &mut to[self.inner.clone()];
                columns::<T, S>(simd, &self.x[from..], taps, self.weights, self.start, to);
            }
            let mut weights = self.at_edges;
            for edge in edges {
                let (own, others) = weights.split_at(edge.inputs.len());
                weights = others;
                to[edge.column] = own
                    .iter()
                    .zip(&edge.inputs)
                    .fold(self.start, |sum, (w, at)| {
                        mul_add::<T, S>(*w, self.x[from.wrapping_add(*at)], sum)
                    });
            }
        }
    }
}

/// As [`Real::mul_add_vec`].
#[inline(always)]
fn mul_add<T: Real, S: Simd>(a: T, b: T, c: T) -> T {
    if const { fused::<S>() } {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Sums over taps of outputs side by side. The last vectors may take outputs again that those before them had.
#[inline(always)]
pub(super) fn columns<T: Real, S: Simd>(
    simd: S,
    data: &[T],
    taps: &[usize],
    weights: &[T],
    start: T,
    out: &mut [T],
) {
    let (lanes, cols) = (T::lanes::<S>(), out.len());
    let mut col = 0;
    while col < cols && cols >= 4 * lanes {
        let at = col.min(cols - 4 * lanes);
        let start = splats::<T, S, 1, _>(simd, &[start]);
        let [sums] = tile::<T, S, 1, 4>(simd, &data[at..], taps, weights, start);
        T::vectors_mut::<S>(&mut out[at..at + 4 * lanes]).copy_from_slice(&sums);
        col += 4 * lanes;
    }
    while col < cols && cols >= 2 * lanes {
        let at = col.min(cols - 2 * lanes);
        let start = splats::<T, S, 1, _>(simd, &[start]);
        let [sums] = tile::<T, S, 1, 2>(simd, &data[at..], taps, weights, start);
        T::vectors_mut::<S>(&mut out[at..at + 2 * lanes]).copy_from_slice(&sums);
        col += 2 * lanes;
    }
    while col < cols && cols >= lanes {
        let at = col.min(cols - lanes);
        let start = splats::<T, S, 1, _>(simd, &[start]);
        let [sums] = tile::<T, S, 1, 1>(simd, &data[at..], taps, weights, start);
        T::vectors_mut::<S>(&mut out[at..at + lanes]).copy_from_slice(&sums);
        col += lanes;
    }
    for (col, out) in out.iter_mut().enumerate().skip(col) {
        *out = (taps.iter().zip(weights)).fold(start, |sum, (tap, weight)| {
            mul_add::<T, S>(*weight, data[tap + col], sum)
        });
    }
}

/// Adds to `totals`, `[channels, kernel]`, the gradient with respect to the weight, where it [fits](fits); at most `flush`
/// products are summed in the element type.
pub(super) fn weight_grad<T: Real>(
    x: &Slab<'_, T>,
    dy: &Slab<'_, T>,
    totals: &mut [f64],
    flush: usize,
    g: &Geometry,
) {
    let together = (flush / dy.extent[2]).max(1);
    for_each_channel(x, dy.extent, g, |read, [n, c], runs, inner| {
        let totals = &mut totals[c * g.volume()..][..g.volume()];
        for run in runs {
            let within = run.plane as isize * dy.step[0] + run.rows.start as isize * dy.step[1];
            for first in (0..run.rows.len()).step_by(together) {
                let down = |step: isize| first as isize * step;
                vectorized(Weights {
                    run,
                    x: read.data,
                    from: (read.start(n, c)).wrapping_add_signed(run.from + down(run.down)),
                    dy: dy.data,
                    at: dy
                        .start(n, c)
                        .wrapping_add_signed(within + down(dy.step[1])),
                    step: dy.step[1],
                    rows: together.min(run.rows.len() - first),
                    inner: inner.clone(),
                    totals,
                });
            }
        }
    });
}

/// The sums over some rows of a run, of one channel.
struct Weights<'a, T> {
    run: &'a Run,
    x: &'a [T],
    from: usize,
    dy: &'a [T],
    at: usize,
    step: isize,
    rows: usize,
    inner: Range<usize>,
    totals: &'a mut [f64],
}

impl<T: Real> WithSimd for Weights<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // All positions of a window of 3 x 3, and those of larger ones by nines.
        const AT_ONCE: usize = 9;
        // Columns behind the last whole unit are a unit with those before them, which are left out of the sum.
        const UNIT: usize = 16;
        let Self {
            run, inner, x, dy, ..
        } = self;
        let (cols, whole) = (inner.len(), inner.len() / UNIT * UNIT);
        let counts: [bool; UNIT] = numbered(|l| l >= UNIT - cols % UNIT);
        for (chunk, taps) in run.taps.chunks(AT_ONCE).enumerate() {
            // A short last chunk repeats its last tap and drops the copies.
            let taps_here: [usize; AT_ONCE] = numbered(|t| taps[t.min(taps.len() - 1)]);
            let mut sums = [T::splat(simd, T::zero()); AT_ONCE];
            let mut ends = [[T::zero(); UNIT]; AT_ONCE];
            for row in 0..self.rows as isize {
                let from = self.from.wrapping_add_signed(row * run.down);
                let at = self.at.wrapping_add_signed(row * self.step);
                if cols > 0 {
                    let ahead = |at: usize, step: isize| at.wrapping_add_signed(AHEAD * step);
                    let new = taps.last().copied().unwrap_or(0);
                    prefetch(dy, ahead(at, self.step), cols);
                    prefetch(x, ahead(from.wrapping_add(new), run.down), cols);
                    let dy = &dy[at + inner.start..at + inner.end];
                    let x = each(taps_here, |tap| &x[from + tap..][..cols]);
                    let before = each(x, |x| &x[..whole]);
                    dot_tile::<T, S, AT_ONCE>(simd, before, &dy[..whole], &mut sums);
                    if cols >= UNIT && cols > whole {
                        let end_of = |row: &[T]| -> [T; UNIT] {
                            let mut end = pulp::as_arrays::<UNIT, T>(&row[cols - UNIT..]).0[0];
                            for (end, counts) in end.iter_mut().zip(&counts) {
                                *end = if *counts { *end } else { T::zero() };
                            }
                            end
                        };
                        let dy = end_of(dy);
                        for (sums, x) in ends.iter_mut().zip(x) {
                            for ((sum, x), dy) in sums.iter_mut().zip(end_of(x)).zip(dy) {
                                *sum = mul_add::<T, S>(x, dy, *sum);
                            }
                        }
                    } else {
                        for (sums, x) in ends.iter_mut().zip(x) {
                            for ((sum, x), dy) in sums.iter_mut().zip(&x[whole..]).zip(&dy[whole..])
                            {
                                *sum = mul_add::<T, S>(*x, *dy, *sum);
                            }
                        }
                    }
                }
                for edge in &run.edges {
                    let dy = dy[at + edge.column];
                    for (t, at) in edge.taps.iter().zip(&edge.inputs) {
                        if t / AT_ONCE == chunk {
                            let end = &mut ends[t % AT_ONCE][0];
                            *end = mul_add::<T, S>(x[from.wrapping_add(*at)], dy, *end);
                        }
                    }
                }
            }
            for (t, k) in run.kernel[chunk * AT_ONCE..][..taps.len()]
                .iter()
                .enumerate()
            {
                self.totals[*k] +=
                    T::sum_vec(simd, sums[t]).wide() + halve(ends[t], |a, b| a + b).wide();
            }
        }
    }
}
