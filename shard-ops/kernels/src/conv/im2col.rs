//! Convolution as matrix products: for outputs too narrow to fill vectors, and windows of one position.

use super::forward::start_from_bias;
use super::lift::{Geometry, Slab, SlabMut};
use super::weight_grad::join;
use crate::Real;
use crate::gemm::{Mat, MatMut, gemm};
use crate::scratch::Room;
use crate::view::for_each_row;

/// Elements of the column matrix per strip.
const BUDGET: usize = 128 * 1024;

/// The product for a window of one position, which needs no column matrix, since the input is one. Returns `false`, with
/// nothing done, where the outputs reach outside the input or come in runs too short to be worth a product each.
pub(super) fn pointwise<T: Real>(
    x: &Slab<'_, T>,
    weight: &[T],
    bias: Option<&[T]>,
    y: &mut SlabMut<'_, T>,
    g: &Geometry,
) -> bool {
    let Some(x_step) = are_matrices(x, y.extent, y.step, g) else {
        return false;
    };
    if bias.is_some() {
        start_from_bias(bias, y, g);
    }
    let corner: isize = (0..3).map(|d| g.origin[d] * x.step[d]).sum();
    for n in 0..y.batch {
        for group in 0..g.groups {
            let from = x.start(n, group * g.cin).wrapping_add_signed(corner);
            let to = y.start(n, group * g.cout);
            let (x_channel, y_channel) = (x.outer[1], y.outer[1]);
            let (extent, y_step) = (y.extent, y.step);
            for_each_row(
                &extent,
                [&x_step, &y_step],
                [from, to],
                |[from, to], run, [sx, sy]| {
                    let w = Mat::row_major(&weight[group * g.cout * g.cin..], g.cin);
                    let x = Mat {
                        data: x.data,
                        offset: from,
                        row_step: x_channel,
                        col_step: sx,
                    };
                    let y = MatMut {
                        data: y.data,
                        offset: to,
                        row_step: y_channel,
                        col_step: sy,
                    };
                    gemm(g.cout, run, g.cin, w, x, y, bias.is_some());
                },
            );
        }
    }
    true
}

/// Where windows have one position: how far inputs lie apart, if the outputs are inside the input and both come in runs long enough to be worth a
/// product each.
pub(super) fn are_matrices<T>(
    x: &Slab<'_, T>,
    extent: [usize; 3],
    step: [isize; 3],
    g: &Geometry,
) -> Option<[isize; 3]> {
    let inside = (0..3).all(|d| {
        extent[d] == 0
            || (g.input(d, 0, 0) >= 0 && g.input(d, extent[d] - 1, 0) < x.extent[d] as isize)
    });
    if g.volume() != 1 || !inside {
        return None;
    }
    let x_step: [isize; 3] = core::array::from_fn(|d| x.step[d] * g.stride[d] as isize);
    let (joined, _) = crate::view::join_dims(&extent, [&x_step, &step]);
    let are_short = joined.len() > 1 && joined.last().is_some_and(|run| *run < 64);
    (!are_short).then_some(x_step)
}

/// Writes the gradient with respect to weights of one position, as rows `[groups, Cout / groups, Cin / groups]`, by products of [matrices that
/// are there](are_matrices), whose inputs lie `x_step` apart; about `flush` products are summed in the element type.
pub(super) fn pointwise_weight_grad<T: Real>(
    x: &Slab<'_, T>,
    dy: &Slab<'_, T>,
    to: &mut [T],
    x_step: [isize; 3],
    flush: usize,
    g: &Geometry,
) {
    let corner: isize = (0..3).map(|d| g.origin[d] * x.step[d]).sum();
    let is_long = dy.batch * dy.extent.iter().product::<usize>() > flush;
    let mut totals = vec![0.0; if is_long { g.cout * g.cin } else { 0 }];
    for (group, to) in to.chunks_exact_mut(g.cout * g.cin).enumerate() {
        let mut summed = 0;
        totals.fill(0.0);
        for n in 0..dy.batch {
            let from = x.start(n, group * g.cin).wrapping_add_signed(corner);
            let start = dy.start(n, group * g.cout);
            let steps = [&x_step[..], &dy.step];
            for_each_row(&dy.extent, steps, [from, start], |at, run, steps| {
                for first in (0..run).step_by(flush) {
                    let len = flush.min(run - first);
                    if summed > 0 && summed + len > flush {
                        join(to, &mut totals);
                        summed = 0;
                    }
                    let at = |i: usize| at[i].wrapping_add_signed(first as isize * steps[i]);
                    let inputs = Mat {
                        data: x.data,
                        offset: at(0),
                        row_step: steps[0],
                        col_step: x.outer[1],
                    };
                    let outputs = Mat {
                        data: dy.data,
                        offset: at(1),
                        row_step: dy.outer[1],
                        col_step: steps[1],
                    };
                    let sums = MatMut::row_major(&mut *to, g.cin);
                    gemm(g.cout, g.cin, len, outputs, inputs, sums, summed > 0);
                    summed += len;
                }
            });
        }
        if is_long {
            join(to, &mut totals);
            for (to, total) in to.iter_mut().zip(&totals) {
                *to = T::of(*total);
            }
        }
    }
}

/// The convolution by strips of columns: gather, multiply, scatter. `y` must hold the bias (or zeros).
pub(super) fn strips<T: Real>(x: &Slab<'_, T>, weight: &[T], y: &mut SlabMut<'_, T>, g: &Geometry) {
    let taps = g.taps();
    let outputs: usize = y.extent.iter().product();
    let strip = (BUDGET / taps.max(1)).clamp(64, 4096).min(outputs.max(1));
    let mut room = Room::new();
    let mut scratch = room.numbers((taps + g.cout) * strip);
    let columns = scratch.take(taps * strip);
    let product = scratch.take(g.cout * strip);
    for n in 0..y.batch {
        for group in 0..g.groups {
            for first in (0..outputs).step_by(strip) {
                let len = strip.min(outputs - first);
                gather(x, n, group * g.cin, y.extent, first, len, g, columns);
                let w = Mat::row_major(&weight[group * g.cout * taps..], taps);
                let c = MatMut::row_major(product, len);
                gemm(g.cout, len, taps, w, Mat::row_major(columns, len), c, false);
                for co in 0..g.cout {
                    let start = y.start(n, group * g.cout + co);
                    for_each_run(y.extent, first, len, |at, skip, run| {
                        let to = start.wrapping_add_signed(y.within(at));
                        for (i, v) in product[co * len + skip..][..run].iter().enumerate() {
                            y.data[to.wrapping_add_signed(i as isize * y.step[2])] += *v;
                        }
                    });
                }
            }
        }
    }
}

/// Writes the gradient with respect to the weight, as rows `[groups, Cout / groups, taps]`, of which all products are summed in the element
/// type.
pub(super) fn weight_grad<T: Real>(x: &Slab<'_, T>, dy: &Slab<'_, T>, to: &mut [T], g: &Geometry) {
    let groups = to.chunks_exact_mut(g.cout * g.taps());
    for (group, to) in groups.enumerate() {
        sum_products(x, dy, group, g, to);
    }
}

/// Writes the gradient with respect to the weight of a group, `[Cout / groups, taps]`.
fn sum_products<T: Real>(
    x: &Slab<'_, T>,
    dy: &Slab<'_, T>,
    group: usize,
    g: &Geometry,
    sums: &mut [T],
) {
    let taps = g.taps();
    let outputs: usize = dy.extent.iter().product();
    let strip = (BUDGET / taps.max(1)).clamp(64, 4096).min(outputs.max(1));
    let mut room = Room::new();
    let mut scratch = room.numbers((taps + g.cout) * strip);
    let columns = scratch.take(taps * strip);
    let lines = scratch.take(g.cout * strip);
    let mut add = false;
    for n in 0..dy.batch {
        for first in (0..outputs).step_by(strip) {
            let len = strip.min(outputs - first);
            gather(x, n, group * g.cin, dy.extent, first, len, g, columns);
            for (co, line) in lines.chunks_exact_mut(len).take(g.cout).enumerate() {
                let start = dy.start(n, group * g.cout + co);
                for_each_run(dy.extent, first, len, |at, skip, run| {
                    let within = (0..3).map(|d| at[d] as isize * dy.step[d]).sum();
                    let from = start.wrapping_add_signed(within);
                    for (i, to) in line[skip..][..run].iter_mut().enumerate() {
                        *to = dy.data[from.wrapping_add_signed(i as isize * dy.step[2])];
                    }
                });
            }
            let columns = Mat::row_major(columns, len).transposed();
            let lines = Mat::row_major(lines, len);
            let to = MatMut::row_major(&mut *sums, taps);
            gemm(g.cout, taps, len, lines, columns, to, add);
            add = true;
        }
    }
}

/// Fills `columns[tap][0 .. len]` with the inputs of outputs `first .. first + len` (row-major over `extent`).
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, all of it geometry"
)]
fn gather<T: Real>(
    x: &Slab<'_, T>,
    n: usize,
    channel: usize,
    extent: [usize; 3],
    first: usize,
    len: usize,
    g: &Geometry,
    columns: &mut [T],
) {
    let mut rows = columns.chunks_exact_mut(len);
    let [kd, kh, kw] = g.kernel;
    for ci in 0..g.cin {
        let start = x.start(n, channel + ci);
        for k in 0..kd * kh * kw {
            let k = [k / (kh * kw), k / kw % kh, k % kw];
            let Some(row) = rows.next() else { return };
            for_each_run(extent, first, len, |at, skip, run| {
                let target = &mut row[skip..skip + run];
                let i: [isize; 3] = core::array::from_fn(|d| g.input(d, at[d], k[d]));
                let inside = (0..2).all(|d| (0..x.extent[d] as isize).contains(&i[d]));
                for (j, v) in target.iter_mut().enumerate() {
                    let column = i[2] + (j * g.stride[2]) as isize;
                    *v = if inside && (0..x.extent[2] as isize).contains(&column) {
                        x.data[start.wrapping_add_signed(
                            i[0] * x.step[0] + i[1] * x.step[1] + column * x.step[2],
                        )]
                    } else {
                        T::zero()
                    };
                }
            });
        }
    }
}

/// Visits the row pieces of positions `first .. first + len` of `extent`: `(index, position - first, length)`.
fn for_each_run(
    extent: [usize; 3],
    first: usize,
    len: usize,
    mut visit: impl FnMut([usize; 3], usize, usize),
) {
    let mut done = 0;
    while done < len {
        let p = first + done;
        let col = p % extent[2];
        let run = (extent[2] - col).min(len - done);
        visit(
            [p / extent[2] / extent[1], p / extent[2] % extent[1], col],
            done,
            run,
        );
        done += run;
    }
}
