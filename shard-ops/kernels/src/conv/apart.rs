//! Convolutions whose windows lie apart, as those of patches do: products of matrices, whose rows are the windows. Gradients of few outputs'
//! windows, which may overlap, are such too.

use super::forward::start_from_bias;
use super::lift::{Geometry, Slab, SlabMut};
use super::weight_grad::join;
use crate::Real;
use crate::gemm::{Mat, MatMut, gemm};
use crate::scratch::Room;
use crate::view::for_each_row;
use bytemuck::Pod;

/// Elements of the windows that are computed at once: half of a second-level cache.
const BUDGET: usize = 128 * 1024;

/// Windows that are multiplied at least, with others beside them: products of fewer would be summed in another order.
const FEW: usize = 4;

/// Elements of a window's row from which on it is moved as one.
const LONG: usize = 8;

/// Channels below which a product is not worth its packing.
const LEAST: usize = 8;

/// Whether no input lies in two windows, and each window is a long enough sum.
pub(super) fn are_apart(g: &Geometry) -> bool {
    lie_apart(g) && g.volume() > 1 && g.cin > 0 && g.cout >= LEAST
}

/// Whether no input lies in two windows.
fn lie_apart(g: &Geometry) -> bool {
    let apart = |d: usize| g.kernel[d].saturating_sub(1) * g.dilation[d] < g.stride[d];
    (0..3).all(apart)
}

/// Whether windows that [`are_apart`] are worth being copied: their runs are long, and the products outweigh the copy. Products of
/// so many channels are summed in the same order for any number of windows.
pub(super) fn are_copied(g: &Geometry) -> bool {
    are_apart(g) && g.kernel[2] >= LONG && g.dilation[2] == 1 && g.cout > 64
}

/// Writes `y = bias + weight * x`, where windows [`are_copied`]; `weight` is `[Cout, Cin / groups, kernel]`, contiguous.
pub(super) fn correlate<T: Real>(
    x: &Slab<'_, T>,
    weight: &[T],
    bias: Option<&[T]>,
    y: &mut SlabMut<'_, T>,
    g: &Geometry,
) {
    if bias.is_some() {
        start_from_bias(bias, y, g);
    }
    let (taps, extent, step) = (g.taps(), y.extent, y.step);
    let mut room = Room::new();
    let mut scratch = room.numbers(taps * strip(taps) + g.cout * FEW);
    let windows = scratch.take(taps * strip(taps));
    let few = scratch.take(g.cout * FEW);
    for n in 0..y.batch {
        for group in 0..g.groups {
            let weight = Mat::row_major(&weight[group * g.cout * taps..], taps);
            for_each_strip(extent, step, y.start(n, group * g.cout), taps, |strip| {
                let channel = y.outer[1];
                let at = |co: usize, i: usize| {
                    let within = co as isize * channel + i as isize * strip.step;
                    strip.at.wrapping_add_signed(within)
                };
                let own = &mut windows[..strip.len * taps];
                gather(x, [n, group * g.cin], strip.first, extent, g, own);
                let columns = Mat::row_major(windows, taps).transposed();
                let add = bias.is_some();
                if strip.len >= FEW {
                    let to = MatMut {
                        data: y.data,
                        offset: strip.at,
                        row_step: channel,
                        col_step: strip.step,
                    };
                    return gemm(g.cout, strip.len, taps, weight, columns, to, add);
                }
                for (co, few) in few.chunks_exact_mut(FEW).enumerate() {
                    for (i, v) in few[..strip.len].iter_mut().enumerate() {
                        *v = y.data[at(co, i)];
                    }
                }
                let to = MatMut::row_major(few, FEW);
                gemm(g.cout, FEW, taps, weight, columns, to, add);
                for (co, few) in few.chunks_exact(FEW).enumerate() {
                    for (i, v) in few[..strip.len].iter().enumerate() {
                        y.data[at(co, i)] = *v;
                    }
                }
            });
        }
    }
}

/// Adds to `totals`, `[Cout, Cin / groups, kernel]`, the gradient with respect to the weight, where windows [`are_copied`]; about `flush`
/// products are summed in the element type.
pub(super) fn weight_grad<T: Real>(
    x: &Slab<'_, T>,
    dy: &Slab<'_, T>,
    totals: &mut [f64],
    flush: usize,
    g: &Geometry,
) {
    let taps = g.taps();
    let mut room = Room::new();
    let mut scratch = room.numbers((strip(taps) + g.cout) * taps);
    let windows = scratch.take(taps * strip(taps));
    let sums = scratch.take(g.cout * taps);
    for (group, totals) in totals.chunks_exact_mut(g.cout * taps).enumerate() {
        let mut summed = 0;
        for n in 0..dy.batch {
            let start = dy.start(n, group * g.cout);
            for_each_strip(dy.extent, dy.step, start, taps, |strip| {
                let windows = &mut windows[..strip.len * taps];
                gather(x, [n, group * g.cin], strip.first, dy.extent, g, windows);
                let outputs = Mat {
                    data: dy.data,
                    offset: strip.at,
                    row_step: dy.outer[1],
                    col_step: strip.step,
                };
                if summed >= flush {
                    join(sums, totals);
                    summed = 0;
                }
                let (windows, to) = (Mat::row_major(windows, taps), MatMut::row_major(sums, taps));
                gemm(g.cout, taps, strip.len, outputs, windows, to, summed > 0);
                summed += strip.len;
            });
        }
        if summed > 0 {
            join(sums, totals);
        }
    }
}

/// Writes all of `dx` from zeros; `weight` is `[Cout, Cin / groups, kernel]`, contiguous. Windows are products of `multiply`, and `put` to what
/// is there one after the other: where they [lie apart](are_apart) that is a zero.
pub(super) fn input_grad<E, T: Real, R: Pod>(
    dy: &Slab<'_, E>,
    weight: &[E],
    dx: &mut SlabMut<'_, R>,
    g: &Geometry,
    multiply: impl Fn(usize, usize, usize, Mat<'_, E>, Mat<'_, E>, MatMut<'_, T>, bool),
    put: impl Fn(R, T) -> R,
) {
    let (taps, by_taps) = (g.taps(), lie_apart(g) && g.kernel[2] < LONG);
    let mut room = Room::new();
    let windows = room.numbers(taps * strip(taps)).take(taps * strip(taps));
    for n in 0..dx.batch {
        for group in 0..g.groups {
            for ci in 0..g.cin {
                fill(dx, dx.start(n, group * g.cin + ci), R::zeroed());
            }
            let weight = &weight[group * g.cout * taps..][..g.cout * taps];
            let start = dy.start(n, group * g.cout);
            for_each_strip(dy.extent, dy.step, start, taps, |strip| {
                let outputs = Mat {
                    data: dy.data,
                    offset: strip.at,
                    row_step: strip.step,
                    col_step: dy.outer[1],
                };
                let weight = Mat::row_major(weight, taps);
                if by_taps {
                    // A tap of all outputs side by side: those of one output are few, and lie in many rows.
                    let to = MatMut::row_major(windows, strip.len).transposed();
                    multiply(strip.len, taps, g.cout, outputs, weight, to, false);
                    let start = dx.start(n, group * g.cin);
                    return spread(windows, &strip, dy.extent, dx, start, g, &put);
                }
                let to = MatMut::row_major(windows, taps);
                multiply(strip.len, taps, g.cout, outputs, weight, to, false);
                for (i, window) in windows.chunks_exact(taps).take(strip.len).enumerate() {
                    let o = output(strip.first + i, dy.extent);
                    place(window, o, dx, dx.start(n, group * g.cin), g, &put);
                }
            });
        }
    }
}

/// Outputs whose windows are computed at once.
struct Strip {
    /// Number of the first one.
    first: usize,
    len: usize,
    /// Where the first one lies, and how far it is from one to the next.
    at: usize,
    step: isize,
}

/// The most outputs of a strip, by the elements of a window: whole tiles of a product.
fn strip(taps: usize) -> usize {
    (BUDGET / taps.max(1)).clamp(64, 4096) / 64 * 64
}

/// Visits the outputs of a channel that starts there.
fn for_each_strip(
    extent: [usize; 3],
    step: [isize; 3],
    start: usize,
    taps: usize,
    mut visit: impl FnMut(Strip),
) {
    let (most, mut first) = (strip(taps), 0);
    for_each_row(&extent, [&step], [start], |[at], run, [step]| {
        for skip in (0..run).step_by(most) {
            visit(Strip {
                first: first + skip,
                len: most.min(run - skip),
                at: at.wrapping_add_signed(skip as isize * step),
                step,
            });
        }
        first += run;
    });
}

/// The indices of an output.
fn output(number: usize, [_, h, w]: [usize; 3]) -> [usize; 3] {
    [number / w / h, number / w % h, number % w]
}

/// Reads the windows of outputs from `first` on, with zeros where they reach outside; `[n, channel]` is the first that is read.
fn gather<T: Real>(
    x: &Slab<'_, T>,
    [n, channel]: [usize; 2],
    first: usize,
    extent: [usize; 3],
    g: &Geometry,
    windows: &mut [T],
) {
    let [_, kh, kw] = g.kernel;
    let start = x.start(n, channel);
    for (i, window) in windows.chunks_exact_mut(g.taps()).enumerate() {
        let o = output(first + i, extent);
        let inside = |d: usize, k: usize| {
            let i = g.input(d, o[d], k);
            (0..x.extent[d] as isize).contains(&i).then_some(i)
        };
        let whole = inside(2, 0).filter(|_| inside(2, kw - 1).is_some());
        let run = g.dilation[2] == 1 && x.step[2] == 1;
        for (row, values) in window.chunks_exact_mut(kw).enumerate() {
            let (ci, k) = (row / g.kernel[0] / kh, [row / kh % g.kernel[0], row % kh]);
            let (Some(d), Some(h)) = (inside(0, k[0]), inside(1, k[1])) else {
                values.fill(T::zero());
                continue;
            };
            let at =
                start.wrapping_add_signed(ci as isize * x.outer[1] + d * x.step[0] + h * x.step[1]);
            let column = |w: isize| at.wrapping_add_signed(w * x.step[2]);
            if let (true, Some(w)) = (run, whole) {
                values.copy_from_slice(&x.data[column(w)..][..kw]);
                continue;
            }
            for (k, value) in values.iter_mut().enumerate() {
                *value = inside(2, k).map_or(T::zero(), |w| x.data[column(w)]);
            }
        }
    }
}

/// A value in the channel that starts there.
fn fill<R: Copy>(dx: &mut SlabMut<'_, R>, start: usize, value: R) {
    for_each_row(&dx.extent, [&dx.step], [start], |[at], run, [step]| {
        if step == 1 {
            return dx.data[at..at + run].fill(value);
        }
        for i in 0..run as isize {
            dx.data[at.wrapping_add_signed(i * step)] = value;
        }
    });
}

/// Puts windows that [`lie_apart`], of each tap one column, to what is there, as far as they lie inside; channels begin at `start`.
fn spread<T: Copy, R: Copy>(
    windows: &[T],
    strip: &Strip,
    extent: [usize; 3],
    dx: &mut SlabMut<'_, R>,
    start: usize,
    g: &Geometry,
    put: impl Fn(R, T) -> R,
) {
    let [kd, kh, kw] = g.kernel;
    let (stride, apart) = (g.stride[2], g.stride[2] as isize * dx.step[2]);
    let inside = |d: usize, at: isize| (0..dx.extent[d] as isize).contains(&at).then_some(at);
    // How many outputs lie before the one whose tap is the first at or behind `at`, if one's is at `first`.
    let before = |at: isize, first: isize| (at - first).max(0).cast_unsigned().div_ceil(stride);
    let mut done = 0;
    while done < strip.len {
        let o = output(strip.first + done, extent);
        let run = (extent[2] - o[2]).min(strip.len - done);
        for (row, columns) in windows
            .chunks_exact(kw * strip.len)
            .take(g.cin * kd * kh)
            .enumerate()
        {
            let (ci, k) = (row / (kd * kh), [row / kh % kd, row % kh]);
            let [d, h] = [0, 1].map(|d| inside(d, g.input(d, o[d], k[d])));
            let (Some(d), Some(h)) = (d, h) else { continue };
            let at = ci as isize * dx.outer[1] + d * dx.step[0] + h * dx.step[1];
            for (k, column) in columns.chunks_exact(strip.len).enumerate() {
                let first = g.input(2, o[2], k);
                let (from, to) = (
                    before(0, first),
                    before(dx.extent[2] as isize, first).min(run),
                );
                if from >= to {
                    continue;
                }
                let values = &column[done + from..done + to];
                let within = at + first * dx.step[2] + from as isize * apart;
                let at = start.wrapping_add_signed(within);
                if apart > 0 {
                    let places = dx.data[at..].chunks_mut(apart.cast_unsigned());
                    for (place, value) in places.zip(values) {
                        place[0] = put(place[0], *value);
                    }
                } else {
                    for (i, value) in values.iter().enumerate() {
                        let place = &mut dx.data[at.wrapping_add_signed(i as isize * apart)];
                        *place = put(*place, *value);
                    }
                }
            }
        }
        done += run;
    }
}

/// Puts the window of output `o` to what is there, as far as it lies inside; channels begin at `start`.
fn place<T: Copy, R: Copy>(
    window: &[T],
    o: [usize; 3],
    dx: &mut SlabMut<'_, R>,
    start: usize,
    g: &Geometry,
    put: impl Fn(R, T) -> R,
) {
    let [kd, kh, kw] = g.kernel;
    let inside = |d: usize, k: usize| {
        let i = g.input(d, o[d], k);
        (0..dx.extent[d] as isize).contains(&i).then_some(i)
    };
    let whole = inside(2, 0).filter(|_| inside(2, kw - 1).is_some());
    let run = g.dilation[2] == 1 && dx.step[2] == 1;
    for (row, values) in window.chunks_exact(kw).enumerate() {
        let (ci, k) = (row / (kd * kh), [row / kh % kd, row % kh]);
        let (Some(d), Some(h)) = (inside(0, k[0]), inside(1, k[1])) else {
            continue;
        };
        let at =
            start.wrapping_add_signed(ci as isize * dx.outer[1] + d * dx.step[0] + h * dx.step[1]);
        let column = |w: isize| at.wrapping_add_signed(w * dx.step[2]);
        if let (true, Some(w)) = (run, whole) {
            for (to, value) in dx.data[column(w)..][..kw].iter_mut().zip(values) {
                *to = put(*to, *value);
            }
            continue;
        }
        for (k, value) in values.iter().enumerate() {
            if let Some(w) = inside(2, k) {
                let to = &mut dx.data[column(w)];
                *to = put(*to, *value);
            }
        }
    }
}
