//! All three maps against plain loops in f64, and against each other by the adjoint identity.

use crate::testing::{Rng, assert_close, naive_index};
use shard_kernels::conv::{Taps, conv_forward, conv_input_grad, conv_weight_grad};
use shard_kernels::{Real, View, ViewMut};

pub(crate) struct Case {
    pub(crate) x: Vec<usize>,
    pub(crate) w: Vec<usize>,
    pub(crate) y: Vec<usize>,
    pub(crate) window: Taps,
    pub(crate) groups: usize,
}

impl Case {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let nd = rng.within(1, 3);
        let groups = [1, 1, 2, 3][rng.within(0, 3)];
        let (cin, cout) = (rng.within(1, 4), [1, 2, 3, 5, 9, 20][rng.within(0, 5)]);
        let batch = rng.within(0, 6).min(2);
        let (mut x, mut w) = (vec![batch, cin * groups], vec![cout * groups, cin]);
        let mut y = vec![batch, cout * groups];
        let (mut stride, mut dilation, mut origin) = (vec![], vec![], vec![]);
        for d in 0..nd {
            let most = if d + 1 == nd { 70 } else { 7 };
            x.push(rng.within(0, if nd == 3 { most.min(20) } else { most }));
            w.push(rng.within(1, 3));
            stride.push([1, 1, 2, 3, 5][rng.within(0, 4)]);
            dilation.push([1, 1, 2, 3][rng.within(0, 3)]);
            origin.push(rng.within(0, 4) as isize - 2);
            // Outputs may end before, at, or beyond the last window that fits.
            y.push((x[d + 2] / stride[d] + 2).saturating_sub(rng.within(0, 3)));
        }
        Self {
            x,
            w,
            y,
            window: Taps::new(&stride, &dilation, &origin),
            groups,
        }
    }

    /// All `(y index, w index, x index)` triples that meet inside the views.
    pub(crate) fn meetings(&self, mut visit: impl FnMut(&[usize], &[usize], &[usize])) {
        let (cin, cout) = (self.w[1], self.w[0] / self.groups);
        let taps = naive_index(&self.w[1..]);
        let (mut w, mut x) = (self.w.clone(), self.x.clone());
        for y in naive_index(&self.y) {
            (w[0], x[0]) = (y[1], y[0]);
            'taps: for tap in &taps {
                w[1..].copy_from_slice(tap);
                x[1] = y[1] / cout * cin + tap[0];
                for d in 0..tap.len() - 1 {
                    let window = &self.window;
                    let i = (y[d + 2] * window.stride[d] + tap[d + 1] * window.dilation[d])
                        as isize
                        + window.origin[d];
                    if i < 0 || i >= self.x[d + 2] as isize {
                        continue 'taps;
                    }
                    x[d + 2] = i as usize;
                }
                visit(&y, &w, &x);
            }
        }
    }
}

pub(crate) fn flat(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |p, (n, i)| p * n + i)
}

/// Writes into a box of a larger array, or through permuted strides, and returns the box in row-major order.
pub(crate) fn through_a_box<T: Real>(
    rng: &mut Rng,
    shape: &[usize],
    write: impl FnOnce(&mut ViewMut<'_, T>),
) -> Vec<T> {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if rng.within(0, 2) == 0 {
        order.reverse();
    }
    let start: Vec<usize> = shape.iter().map(|_| rng.within(0, 1)).collect();
    let outer: Vec<usize> = order.iter().map(|&d| shape[d] + start[d] + 1).collect();
    let mut memory = vec![T::nan(); outer.iter().product()];
    let mut back = vec![0; order.len()];
    for (i, &d) in order.iter().enumerate() {
        back[d] = i;
    }
    let untouched = memory.len() - shape.iter().product::<usize>();
    let mut view = ViewMut::contiguous(&mut memory, &outer)
        .permute(&back)
        .sub_box(&start, shape);
    write(&mut view);
    let out = view.as_view().to_vec();
    assert_eq!(
        memory.iter().filter(|v| v.is_nan()).count(),
        untouched,
        "exactly the box of {shape:?} is written"
    );
    out
}

fn random_cases<T: Real>(seed: u64, rounds: usize) {
    let mut rng = Rng::new(seed);
    for _ in 0..rounds {
        let case = Case::random(&mut rng);
        compare::<T>(&case, &mut rng);
    }
}

/// Channels that do not mix: rows of one column and of many, every column or some, windows wider than the field, outputs beyond the last
/// window.
#[test]
fn windows_of_single_channels_match_plain_loops() {
    let mut rng = Rng::new(17);
    for round in 0..150 {
        let (nd, groups, batch) = (rng.within(1, 3), rng.within(1, 3), rng.within(1, 2));
        let (mut x, mut w, mut y) = (vec![batch, groups], vec![groups, 1], vec![batch, groups]);
        let (mut stride, mut dilation, mut origin) = (vec![], vec![], vec![]);
        for d in 0..nd {
            let last = d + 1 == nd;
            x.push(if last {
                [1, 2, 15, 16, 17, 40, 64, 131][round % 8]
            } else {
                rng.within(1, 6)
            });
            w.push(rng.within(1, 5));
            stride.push(match (last, round % 3) {
                (true, 0) => rng.within(2, 4),
                (true, _) => 1,
                _ => rng.within(1, 3),
            });
            dilation.push(rng.within(1, 3));
            origin.push(rng.within(0, 6) as isize - 4);
            y.push((x[d + 2] / stride[d] + 2).saturating_sub(rng.within(0, 3)));
        }
        let window = Taps::new(&stride, &dilation, &origin);
        let case = Case {
            x,
            w,
            y,
            window,
            groups,
        };
        compare::<f32>(&case, &mut rng);
        compare::<f64>(&case, &mut rng);
    }
}

/// Value and gradients of `case` on random numbers, against plain loops.
fn compare<T: Real>(case: &Case, rng: &mut Rng) {
    let count = |s: &[usize]| s.iter().product::<usize>();
    let (x, w) = (rng.vec::<T>(count(&case.x)), rng.vec::<T>(count(&case.w)));
    let (dy, bias) = (rng.vec::<T>(count(&case.y)), rng.vec::<T>(case.y[1]));
    let mut y_exact: Vec<f64> = naive_index(&case.y)
        .iter()
        .map(|at| bias[at[1]].wide())
        .collect();
    let (mut dx_exact, mut dw_exact) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    case.meetings(|iy, iw, ix| {
        let (iy, iw, ix) = (flat(&case.y, iy), flat(&case.w, iw), flat(&case.x, ix));
        y_exact[iy] += w[iw].wide() * x[ix].wide();
        dx_exact[ix] += w[iw].wide() * dy[iy].wide();
        dw_exact[iw] += x[ix].wide() * dy[iy].wide();
    });
    let (xv, wv) = (View::contiguous(&x, &case.x), View::contiguous(&w, &case.w));
    let (dyv, window, groups) = (View::contiguous(&dy, &case.y), &case.window, case.groups);
    let y = through_a_box(rng, &case.y, |y| {
        conv_forward(&xv, &wv, Some(&bias), y, window, groups);
    });
    assert_close(&y, &y_exact, 1e-5);
    let dx = through_a_box(rng, &case.x, |dx| {
        conv_input_grad(&dyv, &wv, dx, window, groups);
    });
    assert_close(&dx, &dx_exact, 1e-5);
    let dw = through_a_box(rng, &case.w, |dw| {
        conv_weight_grad(&xv, &dyv, dw, window, groups);
    });
    assert_close(&dw, &dw_exact, 1e-5);
}

/// A spatial dim: inputs, kernel positions, stride and dilation.
type Dim = [usize; 4];

/// A case of such dims, whose windows begin before, at or behind the first input, and whose outputs end before, at or behind the last window.
fn case_of(
    rng: &mut Rng,
    batch: usize,
    [cin, cout]: [usize; 2],
    groups: usize,
    dims: &[Dim],
) -> Case {
    let (mut x, mut w) = (vec![batch, cin * groups], vec![cout * groups, cin]);
    let mut y = vec![batch, cout * groups];
    let (mut strides, mut dilations, mut origin) = (vec![], vec![], vec![]);
    for &[extent, kernel, stride, dilation] in dims {
        x.push(extent);
        w.push(kernel);
        strides.push(stride);
        dilations.push(dilation);
        origin.push(rng.within(0, 4) as isize - 3);
        y.push((extent / stride + 2).saturating_sub(rng.within(0, 2)));
    }
    let window = Taps::new(&strides, &dilations, &origin);
    Case {
        x,
        w,
        y,
        window,
        groups,
    }
}

/// Kernels of three rows, at stride and dilation 1, with enough channels for pairs of rows: even and odd numbers of rows, rows and
/// columns outside the input, short rows beside long columns, strides of columns.
#[test]
fn pairs_of_rows_match_plain_loops() {
    let mut rng = Rng::new(23);
    for round in 0..15 {
        let (nd, groups, batch) = (rng.within(2, 3), rng.within(1, 2), rng.within(1, 2));
        let channels = [rng.within(8, 9), [8, 9, 8, 12, 20][round % 5]];
        let column = [
            [3, 9, 16, 33, 52, 7, 20][round % 7],
            rng.within(1, 3),
            rng.within(1, 2),
            rng.within(1, 2),
        ];
        let row = [rng.within(3, 13), 3, 1, 1];
        let plane = [rng.within(1, 2), rng.within(1, 3), 1, 1];
        let dims = &[plane, row, column][3 - nd..];
        let case = case_of(&mut rng, batch, channels, groups, dims);
        compare::<f32>(&case, &mut rng);
        compare::<f64>(&case, &mut rng);
    }
}

/// Narrow rows of several images, which are computed side by side: single rows and pairs, odd numbers of them, strides and dilations of
/// columns, planes, windows outside the input, more lines than one block holds, and gradients of more and fewer outputs than are summed in
/// the element type.
#[test]
fn narrow_rows_side_by_side_match_plain_loops() {
    let mut rng = Rng::new(37);
    for round in 0..24 {
        let (nd, groups) = (rng.within(1, 3), [1, 1, 2][rng.within(0, 2)]);
        let batch = [1, 2, 3, 5][round % 4];
        let channels = [rng.within(22, 26), [8, 9, 16, 20][rng.within(0, 3)]];
        let mut stride = || [1, 1, 2][rng.within(0, 2)];
        let strides = [stride(), stride(), stride()];
        let column = [
            [1, 2, 5, 7, 8, 11, 14, 16, 20][rng.within(0, 8)],
            3,
            strides[2],
            rng.within(1, 2),
        ];
        let row = [rng.within(1, 9), 3, strides[1], 1];
        let plane = [rng.within(1, 2), rng.within(1, 2), strides[0], 1];
        let dims = &[plane, row, column][3 - nd..];
        let case = case_of(&mut rng, batch, channels, groups, dims);
        compare::<f32>(&case, &mut rng);
        compare::<f64>(&case, &mut rng);
    }
    // Several blocks of lines.
    for (images, side) in [(60, 6), (9, 15)] {
        let case = Case {
            x: vec![images, 30, side, side],
            w: vec![9, 30, 3, 3],
            y: vec![images, 9, side, side],
            window: Taps::new(&[1; 2], &[1; 2], &[-1; 2]),
            groups: 1,
        };
        compare::<f32>(&case, &mut rng);
    }
    // So many weights that with AVX2 rows are products of matrices.
    let case = case_of(&mut rng, 2, [172, 172], 1, &[[4, 3, 1, 1]; 2]);
    compare::<f32>(&case, &mut rng);
}

/// Few outputs of many channels, whose gradients are products of matrices: of several images and groups, by the input where there are fewer
/// outputs than channels, by the weight of more outputs than are summed in the element type.
#[test]
fn few_outputs_of_many_channels_match_plain_loops() {
    let mut rng = Rng::new(29);
    for (batch, side, kernel, stride, dilation, groups) in [
        (3, 7, 3, 1, 1, 1),
        (3, 7, 3, 1, 1, 2),
        (3, 9, 3, 2, 1, 1),
        (3, 1, 3, 1, 1, 1),
        (1, 4, 3, 1, 1, 2),
        (2, 5, 3, 2, 1, 1),
        (1, 4, 2, 1, 2, 1),
        (60, 6, 1, 1, 1, 1),
        // Windows of no position, and no images.
        (1, 4, 0, 1, 1, 1),
        (0, 4, 3, 1, 1, 1),
    ] {
        let (channels, outputs) = (17, usize::div_ceil(side, stride));
        let case = Case {
            x: vec![batch, channels * groups, side, side],
            w: vec![18 * groups, channels, kernel, kernel],
            y: vec![batch, 18 * groups, outputs, outputs],
            window: Taps::new(&[stride; 2], &[dilation; 2], &[-1; 2]),
            groups,
        };
        compare::<f32>(&case, &mut rng);
        compare::<f64>(&case, &mut rng);
        rows_without_gaps_have_the_same_bits(&case, &mut rng);
    }
}

/// Windows of one position inside the input, whose gradients by the weight are products of what is there: fewer and more outputs than are summed
/// in the element type, of one image and of several, groups, rows that lie apart, and inputs that a stride leaves out.
#[test]
fn windows_of_one_position_match_plain_loops() {
    let mut rng = Rng::new(41);
    // Without a margin the rows of a channel are one run.
    for (batch, side, columns, margin, stride, groups) in [
        (2, 5, 7, 0, 1, 1),
        (3, 30, 30, 0, 1, 1),
        (1, 50, 60, 0, 1, 2),
        (2, 20, 70, 1, 1, 1),
        (1, 3, 140, 1, 2, 1),
        (2, 70, 130, 1, 2, 2),
    ] {
        let (channels, outputs) = (17, 18);
        let case = Case {
            x: vec![batch, channels * groups, side, columns + 2 * margin],
            w: vec![outputs * groups, channels, 1, 1],
            y: vec![
                batch,
                outputs * groups,
                side.div_ceil(stride),
                columns.div_ceil(stride),
            ],
            window: Taps::new(&[stride; 2], &[1; 2], &[0, margin as isize]),
            groups,
        };
        compare::<f32>(&case, &mut rng);
        compare::<f64>(&case, &mut rng);
        rows_without_gaps_have_the_same_bits(&case, &mut rng);
    }
}

/// Gradients by the weight, where they are written as they are computed and where they are written elsewhere.
fn rows_without_gaps_have_the_same_bits(case: &Case, rng: &mut Rng) {
    let [x, dy] = [&case.x, &case.y].map(|shape| rng.vec::<f32>(shape.iter().product()));
    let (x, dy) = (
        View::contiguous(&x, &case.x),
        View::contiguous(&dy, &case.y),
    );
    let mut within = vec![f32::NAN; case.w.iter().product()];
    let to = &mut ViewMut::contiguous(&mut within, &case.w);
    conv_weight_grad(&x, &dy, to, &case.window, case.groups);
    let elsewhere = through_a_box(rng, &case.w, |dw| {
        conv_weight_grad(&x, &dy, dw, &case.window, case.groups);
    });
    assert_eq!(within, elsewhere);
}

/// Packed blocks that follow each other in one buffer leave nothing behind, in rows or in columns.
#[test]
fn long_rows_and_tall_slabs_run_in_several_blocks() {
    let mut rng = Rng::new(6);
    for (x, w, y, window) in [
        (
            vec![2, 2, 1100],
            vec![3, 2, 3],
            vec![2, 3, 1102],
            Taps::new(&[1], &[1], &[-2]),
        ),
        (
            vec![1, 2, 1100],
            vec![20, 2, 3],
            vec![1, 20, 551],
            Taps::new(&[2], &[1], &[-1]),
        ),
        (
            vec![2, 40, 70, 40],
            vec![2, 40, 3, 2],
            vec![2, 2, 71, 41],
            Taps::new(&[1, 1], &[1, 1], &[-1, -1]),
        ),
        // Short rows and long columns.
        (
            vec![1, 2, 1300, 9],
            vec![5, 2, 3, 2],
            vec![1, 5, 650, 4],
            Taps::new(&[2, 2], &[3, 1], &[-2, -1]),
        ),
        (
            vec![2, 2, 4, 30, 3],
            vec![3, 2, 2, 3, 2],
            vec![2, 3, 3, 31, 2],
            Taps::new(&[1, 1, 1], &[1, 1, 1], &[0, -2, 0]),
        ),
        // Patches, some of which reach out of the input, and inputs between them.
        (
            vec![2, 3, 43, 52],
            vec![16, 3, 4, 4],
            vec![2, 16, 10, 10],
            Taps::new(&[4, 5], &[1, 1], &[-2, 1]),
        ),
        (
            vec![1, 2, 8400],
            vec![9, 2, 2],
            vec![1, 9, 2100],
            Taps::new(&[4], &[3], &[-1]),
        ),
        // Long patches of many channels, which are copied; so many that sums of gradients are flushed.
        (
            vec![3, 2, 83, 300],
            vec![70, 2, 3, 8],
            vec![3, 70, 29, 30],
            Taps::new(&[3, 10], &[1, 1], &[-2, -3]),
        ),
    ] {
        compare::<f32>(
            &Case {
                x,
                w,
                y,
                window,
                groups: 1,
            },
            &mut rng,
        );
    }
}

#[test]
fn random_windows_match_plain_loops_f64() {
    random_cases::<f64>(1, 120);
}

#[test]
fn random_windows_match_plain_loops_f32() {
    random_cases::<f32>(2, 120);
}

#[test]
fn value_and_gradients_are_adjoint() {
    let mut rng = Rng::new(3);
    for (x, w, y, window, groups) in [
        (
            vec![2, 6, 31, 37],
            vec![10, 3, 3, 3],
            vec![2, 10, 16, 19],
            Taps::new(&[2, 2], &[1, 1], &[-1, -1]),
            2,
        ),
        (
            vec![1, 4, 20, 70],
            vec![8, 4, 5, 3],
            vec![1, 8, 16, 66],
            Taps::new(&[1, 1], &[1, 2], &[0, 0]),
            1,
        ),
        (
            vec![1, 12, 40],
            vec![12, 1, 7],
            vec![1, 12, 34],
            Taps::unit(1),
            12,
        ),
        (
            vec![1, 3, 6, 9, 40],
            vec![4, 3, 3, 3, 3],
            vec![1, 4, 4, 7, 38],
            Taps::unit(3),
            1,
        ),
        (
            vec![2, 32, 9, 80],
            vec![16, 32, 1, 1],
            vec![2, 16, 9, 80],
            Taps::unit(2),
            1,
        ),
    ] {
        let count = |s: &[usize]| s.iter().product::<usize>();
        let (xs, ws, dys) = (
            rng.vec::<f64>(count(&x)),
            rng.vec::<f64>(count(&w)),
            rng.vec::<f64>(count(&y)),
        );
        let (mut ys, mut dxs, mut dws) = (
            vec![0.0; dys.len()],
            vec![0.0; xs.len()],
            vec![0.0; ws.len()],
        );
        let (xv, wv, dyv) = (
            View::contiguous(&xs, &x),
            View::contiguous(&ws, &w),
            View::contiguous(&dys, &y),
        );
        conv_forward(
            &xv,
            &wv,
            None,
            &mut ViewMut::contiguous(&mut ys, &y),
            &window,
            groups,
        );
        conv_input_grad(
            &dyv,
            &wv,
            &mut ViewMut::contiguous(&mut dxs, &x),
            &window,
            groups,
        );
        conv_weight_grad(
            &xv,
            &dyv,
            &mut ViewMut::contiguous(&mut dws, &w),
            &window,
            groups,
        );
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (value, by_x, by_w) = (dot(&ys, &dys), dot(&xs, &dxs), dot(&ws, &dws));
        assert!(
            (value - by_x).abs() < 1e-9 && (value - by_w).abs() < 1e-9,
            "{value} {by_x} {by_w}"
        );
    }
}

/// An element's bits do not depend on where the slab it is computed in begins, but for rows that are computed in pairs: there slabs
/// begin an even number of rows apart.
#[test]
fn splits_give_the_same_bits() {
    // Wide slabs, and slabs that lie beside column boundaries.
    for groups in [1, 5] {
        let slabs = [(13..29, 31..77), (3..40, 89..90), (0..25, 40..43)];
        splits_give_the_same_bits_in(5, groups, &slabs);
    }
    splits_give_the_same_bits_in(9, 1, &[(12..29, 31..77), (2..40, 0..90), (36..40, 7..80)]);
}

type Slab = (core::ops::Range<usize>, core::ops::Range<usize>);

fn splits_give_the_same_bits_in(channels: usize, groups: usize, slabs: &[Slab]) {
    let mut rng = Rng::new(4);
    let (h, w) = (40, 90);
    let x = rng.vec::<f32>(channels * h * w);
    let weight = rng.vec::<f32>(channels * channels / groups * 9);
    let (xv, wv) = (
        View::contiguous(&x, &[1, channels, h, w]),
        View::contiguous(&weight, &[channels, channels / groups, 3, 3]),
    );
    let run = |rows: core::ops::Range<usize>, cols: core::ops::Range<usize>| {
        let shape = [1, channels, rows.len(), cols.len()];
        let (mut y, mut dx) = (
            vec![0.0; shape.iter().product()],
            vec![0.0; shape.iter().product()],
        );
        let window = Taps::new(
            &[1, 1],
            &[1, 1],
            &[rows.start as isize - 1, cols.start as isize - 1],
        );
        conv_forward(
            &xv,
            &wv,
            None,
            &mut ViewMut::contiguous(&mut y, &shape),
            &window,
            groups,
        );
        let window = Taps::new(
            &[1, 1],
            &[1, 1],
            &[-1 - rows.start as isize, -1 - cols.start as isize],
        );
        conv_input_grad(
            &xv,
            &wv,
            &mut ViewMut::contiguous(&mut dx, &shape),
            &window,
            groups,
        );
        (y, dx)
    };
    let (y, dx) = run(0..h, 0..w);
    for (rows, cols) in slabs {
        let (y_part, dx_part) = run(rows.clone(), cols.clone());
        let shape = [channels, rows.len(), cols.len()];
        for at in naive_index(&shape) {
            let part = flat(&shape, &at);
            let at = [at[0], at[1] + rows.start, at[2] + cols.start];
            let whole = flat(&[channels, h, w], &at);
            assert_eq!(
                (y_part[part].to_bits(), dx_part[part].to_bits()),
                (y[whole].to_bits(), dx[whole].to_bits()),
                "{at:?}"
            );
        }
    }
}

/// Patches of several strips and of a part of one have the same bits.
#[test]
fn splits_of_patches_give_the_same_bits() {
    let mut rng = Rng::new(5);
    let (side, patch, channels, out) = (24, 16, 3, 72);
    let x = rng.vec::<f32>(channels * side * patch * side * patch);
    let weight = rng.vec::<f32>(out * channels * patch * patch);
    let xv = View::contiguous(&x, &[1, channels, side * patch, side * patch]);
    let wv = View::contiguous(&weight, &[out, channels, patch, patch]);
    let bias = rng.vec::<f32>(out);
    let run = |rows: core::ops::Range<usize>, cols: core::ops::Range<usize>| {
        let shape = [1, out, rows.len(), cols.len()];
        let mut y = vec![0.0; shape.iter().product()];
        let origin = [(rows.start * patch) as isize, (cols.start * patch) as isize];
        let window = Taps::new(&[patch, patch], &[1, 1], &origin);
        let mut to = ViewMut::contiguous(&mut y, &shape);
        conv_forward(&xv, &wv, Some(&bias), &mut to, &window, 1);
        y
    };
    let whole = run(0..side, 0..side);
    for (rows, cols) in [
        (0..1, 0..24),
        (3..24, 0..23),
        (23..24, 22..24),
        (7..8, 5..6),
    ] {
        let part = run(rows.clone(), cols.clone());
        for at in naive_index(&[out, rows.len(), cols.len()]) {
            let of_part = flat(&[out, rows.len(), cols.len()], &at);
            let of_whole = flat(
                &[out, side, side],
                &[at[0], at[1] + rows.start, at[2] + cols.start],
            );
            let (part, whole) = (part[of_part].to_bits(), whole[of_whole].to_bits());
            assert_eq!(part, whole, "{at:?} of rows {rows:?} and columns {cols:?}");
        }
    }
}

/// Zeros around a channel meet the same weights in a part of it, though that has fewer columns beside them: an infinite one gives NaN in both.
#[test]
fn zeros_around_a_channel_are_the_same_for_its_parts() {
    let mut rng = Rng::new(41);
    let x = rng.vec::<f32>(2 * 3 * 20);
    let mut w = rng.vec::<f32>(2 * 5);
    w[4] = f32::INFINITY;
    let xv = View::contiguous(&x, &[1, 2, 3, 20]);
    let wv = View::contiguous(&w, &[2, 1, 1, 5]);
    let of = |first: usize, inputs: usize, origin: isize, outputs: usize| {
        let mut y = vec![0.0; 2 * 3 * outputs];
        let x = xv.sub_box(&[0, 0, 0, first], &[1, 2, 3, inputs]);
        let window = Taps::new(&[1, 1], &[1, 1], &[0, origin]);
        let mut to = ViewMut::contiguous(&mut y, &[1, 2, 3, outputs]);
        conv_forward(&x, &wv, None, &mut to, &window, 2);
        y
    };
    let (whole, left, right) = (of(0, 20, -2, 20), of(0, 12, -2, 10), of(8, 12, 0, 10));
    assert!(whole.iter().any(|v| v.is_nan()));
    for (row, whole) in whole.chunks_exact(20).enumerate() {
        let parts = [&left[row * 10..][..10], &right[row * 10..][..10]].concat();
        for (a, b) in whole.iter().zip(parts) {
            assert!(
                *a == b || a.is_nan() && b.is_nan(),
                "row {row}: {a} and {b}"
            );
        }
    }
}

/// NaN stays where the window puts it, although tiles read past the row they write.
#[test]
fn nan_reaches_its_own_windows_only() {
    let mut x = vec![1.0f32; 2 * 3 * 50];
    x[49] = f32::NAN;
    let w = vec![1.0f32; 2 * 3];
    let (xv, wv) = (
        View::contiguous(&x, &[2, 1, 3, 50]),
        View::contiguous(&w, &[2, 1, 1, 3]),
    );
    let mut y = vec![0.0; 2 * 2 * 3 * 40];
    let window = Taps::unit(2);
    conv_forward(
        &xv,
        &wv,
        None,
        &mut ViewMut::contiguous(&mut y, &[2, 2, 3, 40]),
        &window,
        1,
    );
    assert!(y.iter().all(|v| *v == 3.0));
    let dy = vec![1.0f32; 2 * 2 * 3 * 40];
    let mut dw = vec![0.0; 6];
    let dyv = View::contiguous(&dy, &[2, 2, 3, 40]);
    conv_weight_grad(
        &xv,
        &dyv,
        &mut ViewMut::contiguous(&mut dw, &[2, 1, 1, 3]),
        &window,
        1,
    );
    assert!(dw.iter().all(|v| *v == 240.0), "{dw:?}");
}

/// NaN reaches the windows that hold it and no others, in rows that are computed in pairs too.
#[test]
fn nan_in_a_pair_of_rows_reaches_its_own_windows_only() {
    // Wide rows of one image, and narrow ones of several side by side.
    for (batch, w, column) in [(1, 40, 20), (3, 9, 8), (2, 9, 0)] {
        nan_reaches_its_own_windows_only_in(batch, w, column);
    }
}

fn nan_reaches_its_own_windows_only_in(batch: usize, w: usize, column: usize) {
    let (channels, out, h) = (8, 9, 7);
    let mut rng = Rng::new(8);
    let weight = rng.vec::<f32>(out * channels * 9);
    let wv = View::contiguous(&weight, &[out, channels, 3, 3]);
    for row in 0..h {
        let mut x = rng.vec::<f32>(batch * channels * h * w);
        x[(3 * h + row) * w + column] = f32::NAN;
        let xv = View::contiguous(&x, &[batch, channels, h, w]);
        let mut y = vec![0.0; batch * out * h * w];
        let mut dx = vec![0.0; batch * channels * h * w];
        let window = Taps::new(&[1, 1], &[1, 1], &[-1, -1]);
        let mut to = ViewMut::contiguous(&mut y, &[batch, out, h, w]);
        conv_forward(&xv, &wv, None, &mut to, &window, 1);
        let turned = rng.vec::<f32>(channels * channels * 9);
        let tv = View::contiguous(&turned, &[channels, channels, 3, 3]);
        let mut to = ViewMut::contiguous(&mut dx, &[batch, channels, h, w]);
        conv_input_grad(&xv, &tv, &mut to, &window, 1);
        for (values, count) in [(&y, out), (&dx, channels)] {
            for at in naive_index(&[batch, count, h, w]) {
                let near = at[2].abs_diff(row) <= 1 && at[3].abs_diff(column) <= 1;
                let value = values[flat(&[batch, count, h, w], &at)];
                let holds = at[0] == 0 && near;
                assert_eq!(value.is_nan(), holds, "{at:?} with NaN in row {row}");
            }
        }
    }
}

/// An odd number of rows leaves the last one without a second: a row that nobody reads stays out of the gradient.
#[test]
fn a_pair_of_one_row_reads_no_more_than_it_needs() {
    for (batch, w) in [(1, 40), (2, 9)] {
        let (channels, out, rows) = (8, 8, 5);
        let mut rng = Rng::new(9);
        let mut x = rng.vec::<f32>(batch * channels * (rows + 3) * w);
        for channel in x.chunks_exact_mut((rows + 3) * w) {
            channel[(rows + 2) * w..].fill(f32::NAN);
        }
        let dy = rng.vec::<f32>(batch * out * rows * w);
        let mut dw = vec![0.0; out * channels * 9];
        conv_weight_grad(
            &View::contiguous(&x, &[batch, channels, rows + 3, w]),
            &View::contiguous(&dy, &[batch, out, rows, w]),
            &mut ViewMut::contiguous(&mut dw, &[out, channels, 3, 3]),
            &Taps::new(&[1, 1], &[1, 1], &[0, -1]),
            1,
        );
        assert!(dw.iter().all(|v| v.is_finite()), "{dw:?}");
    }
}

/// Blocks whose columns all lie in the padding, before the input and behind it.
#[test]
fn pairs_of_rows_beside_the_input_read_nothing() {
    let mut rng = Rng::new(12);
    let case = Case {
        x: vec![1, 8, 6, 5],
        w: vec![8, 8, 3, 3],
        y: vec![1, 8, 8, 1300],
        window: Taps::new(&[1, 1], &[1, 1], &[-1, -640]),
        groups: 1,
    };
    compare::<f32>(&case, &mut rng);
}

/// Zeros between rows that are one line meet no infinity: weights and inputs that have one are dealt with row by row.
#[test]
fn infinity_in_short_rows_of_single_channels_stays_in_its_own_windows() {
    let mut rng = Rng::new(43);
    let (h, w) = (4, 6);
    let window = Taps::new(&[1, 1], &[1, 1], &[-1, -1]);
    let shape = [1, 2, h, w];
    let mut x = rng.vec::<f32>(2 * h * w);
    x[2 * w - 1] = f32::INFINITY;
    let mut weight = rng.vec::<f32>(2 * 9);
    weight[9] = f32::NEG_INFINITY;
    let dy = rng.vec::<f32>(2 * h * w);
    let xv = View::contiguous(&x, &shape);
    let wv = View::contiguous(&weight, &[2, 1, 3, 3]);
    let (mut y, mut dw) = (vec![9.0; 2 * h * w], vec![9.0; 2 * 9]);
    let mut to = ViewMut::contiguous(&mut y, &shape);
    conv_forward(&xv, &wv, None, &mut to, &window, 2);
    let dyv = View::contiguous(&dy, &shape);
    let mut to = ViewMut::contiguous(&mut dw, &[2, 1, 3, 3]);
    conv_weight_grad(&xv, &dyv, &mut to, &window, 2);
    let (mut y_exact, mut dw_exact) = (vec![0.0; 2 * h * w], vec![0.0; 2 * 9]);
    for (c, i, j) in (0..2).flat_map(|c| (0..h).flat_map(move |i| (0..w).map(move |j| (c, i, j)))) {
        for (a, b) in (0..3).flat_map(|a| (0..3).map(move |b| (a, b))) {
            let (Some(row), Some(column)) = ((i + a).checked_sub(1), (j + b).checked_sub(1)) else {
                continue;
            };
            if row < h && column < w {
                let (o, k) = ((c * h + i) * w + j, c * 9 + a * 3 + b);
                let x = f64::from(x[(c * h + row) * w + column]);
                y_exact[o] += f64::from(weight[k]) * x;
                dw_exact[k] += f64::from(dy[o]) * x;
            }
        }
    }
    for (found, exact) in (y.iter().zip(&y_exact)).chain(dw.iter().zip(&dw_exact)) {
        let found = f64::from(*found);
        let same =
            found == *exact || (found - exact).abs() < 1e-4 || found.is_nan() && exact.is_nan();
        assert!(same, "{found} and {exact}");
    }
}

/// Steps and windows that reach far beyond a narrow plane take no memory for what lies between.
#[test]
fn long_steps_of_single_channels_take_little_memory() {
    const FAR: usize = 1 << 33;
    let (x, w) = ([1.0_f32, 2.0, 3.0, 4.0], [2.0, 3.0, 5.0]);
    let (xv, wv) = (
        View::contiguous(&x, &[1, 1, 4, 1]),
        View::contiguous(&w, &[1, 1, 3, 1]),
    );
    // The middle taps alone are inside; of one window that begins at the second row, all.
    for (stride, dilation, origin, expected) in [
        (1, FAR, -(FAR as isize), [3.0, 6.0, 9.0, 12.0]),
        (FAR, 1, 1, [33.0, 0.0, 0.0, 0.0]),
    ] {
        let window = Taps::new(&[stride, 1], &[dilation, 1], &[origin, 0]);
        let outputs = if stride == 1 { 4 } else { 1 };
        let mut y = [0.0; 4];
        let mut to = ViewMut::contiguous(&mut y[..outputs], &[1, 1, outputs, 1]);
        conv_forward(&xv, &wv, None, &mut to, &window, 1);
        assert_eq!(y, expected);
    }
}
