//! The gradient with respect to the input where windows lie apart, as those of patches do: a product, whose rows are the windows.

use super::lift::{Geometry, Slab, SlabMut};
use crate::Real;
use crate::gemm::{Mat, MatMut, gemm};
use crate::view::for_each_row;

/// Elements of the windows that are computed at once: half of a second-level cache.
const BUDGET: usize = 128 * 1024;

/// Channels below which a product is not worth its packing.
const LEAST: usize = 8;

/// Whether no input lies in two windows, and each window is a long enough sum.
pub(super) fn are_apart(g: &Geometry) -> bool {
    let apart = |d: usize| g.kernel[d].saturating_sub(1) * g.dilation[d] < g.stride[d];
    (0..3).all(apart) && g.volume() > 1 && g.cin > 0 && g.cout >= LEAST
}

/// Writes all of `dx`, where [`are_apart`]; `weight` is `[Cout, Cin / groups, kernel]`, contiguous.
pub(super) fn input_grad<T: Real>(
    dy: &Slab<'_, T>,
    weight: &[T],
    dx: &mut SlabMut<'_, T>,
    g: &Geometry,
) {
    let taps = g.taps();
    let strip = (BUDGET / taps.max(1)).clamp(64, 4096);
    let mut windows = vec![T::zero(); taps * strip];
    for n in 0..dx.batch {
        for group in 0..g.groups {
            for ci in 0..g.cin {
                fill(dx, dx.start(n, group * g.cin + ci));
            }
            let weight = &weight[group * g.cout * taps..][..g.cout * taps];
            let mut first = 0;
            for_each_row(
                &dy.extent,
                [&dy.step],
                [dy.start(n, group * g.cout)],
                |[at], run, [step]| {
                    for skip in (0..run).step_by(strip) {
                        let len = strip.min(run - skip);
                        let outputs = Mat {
                            data: dy.data,
                            offset: at.wrapping_add_signed(skip as isize * step),
                            row_step: step,
                            col_step: dy.outer[1],
                        };
                        let to = MatMut::row_major(&mut windows, taps);
                        gemm(
                            len,
                            taps,
                            g.cout,
                            outputs,
                            Mat::row_major(weight, taps),
                            to,
                            false,
                        );
                        for (i, window) in windows.chunks_exact(taps).take(len).enumerate() {
                            let o = first + skip + i;
                            let [_, h, w] = dy.extent;
                            let o = [o / w / h, o / w % h, o % w];
                            place(window, o, dx, dx.start(n, group * g.cin), g);
                        }
                    }
                    first += run;
                },
            );
        }
    }
}

/// Zeros in the channel that starts there.
fn fill<T: Real>(dx: &mut SlabMut<'_, T>, start: usize) {
    for_each_row(&dx.extent, [&dx.step], [start], |[at], run, [step]| {
        if step == 1 {
            return dx.data[at..at + run].fill(T::zero());
        }
        for i in 0..run as isize {
            dx.data[at.wrapping_add_signed(i * step)] = T::zero();
        }
    });
}

/// Writes the window of output `o`, as far as it lies inside; channels begin at `start`.
fn place<T: Real>(
    window: &[T],
    o: [usize; 3],
    dx: &mut SlabMut<'_, T>,
    start: usize,
    g: &Geometry,
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
            dx.data[column(w)..][..kw].copy_from_slice(values);
            continue;
        }
        for (k, value) in values.iter().enumerate() {
            if let Some(w) = inside(2, k) {
                dx.data[column(w)] = *value;
            }
        }
    }
}
