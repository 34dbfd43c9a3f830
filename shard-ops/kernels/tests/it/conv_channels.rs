//! Convolutions of channels that do not mix, of which many are computed side by side.

use crate::conv::{Case, flat, through_a_box};
use crate::testing::{Rng, naive_index};
use shard_kernels::conv::{Taps, conv_forward, conv_input_grad, conv_weight_grad};
use shard_kernels::{Real, View, ViewMut};

/// A case of so many channels: extents, kernel, strides, dilations and origins of its dims.
fn case(batch: usize, channels: usize, dims: &[(usize, usize, usize, usize, isize)]) -> Case {
    let (mut x, mut w, mut y) = (
        vec![batch, channels],
        vec![channels, 1],
        vec![batch, channels],
    );
    let (mut stride, mut dilation, mut origin) = (vec![], vec![], vec![]);
    for &(extent, kernel, step, apart, first) in dims {
        x.push(extent);
        w.push(kernel);
        // Windows end before, at and behind the last input.
        y.push((extent / step + 2).saturating_sub(extent % 3));
        stride.push(step);
        dilation.push(apart);
        origin.push(first);
    }
    Case {
        x,
        w,
        y,
        window: Taps::new(&stride, &dilation, &origin),
        groups: channels,
    }
}

/// Halves of small integers: sums of their products are exact in any order.
fn exact<T: Real>(rng: &mut Rng, shape: &[usize]) -> Vec<T> {
    let count = shape.iter().product();
    let number = |_| T::of(rng.within(0, 16) as f64 / 2.0 - 4.0);
    (0..count).map(number).collect()
}

/// All three maps against plain loops: nothing is rounded.
fn compare<T: Real>(rng: &mut Rng, case: &Case) {
    let [x, w, dy] = [&case.x, &case.w, &case.y].map(|shape| exact::<T>(rng, shape));
    let bias = exact::<T>(rng, &case.w[..1]);
    let mut expected_y: Vec<f64> = naive_index(&case.y)
        .iter()
        .map(|at| bias[at[1]].wide())
        .collect();
    let (mut expected_dx, mut expected_dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    case.meetings(|iy, iw, ix| {
        let (iy, iw, ix) = (flat(&case.y, iy), flat(&case.w, iw), flat(&case.x, ix));
        expected_y[iy] += w[iw].wide() * x[ix].wide();
        expected_dx[ix] += w[iw].wide() * dy[iy].wide();
        expected_dw[iw] += x[ix].wide() * dy[iy].wide();
    });
    let (window, groups) = (&case.window, case.groups);
    let (xv, wv) = (View::contiguous(&x, &case.x), View::contiguous(&w, &case.w));
    let dyv = View::contiguous(&dy, &case.y);
    let y = through_a_box(rng, &case.y, |y| {
        conv_forward(&xv, &wv, Some(&bias), y, window, groups);
    });
    let dx = through_a_box(rng, &case.x, |dx| {
        conv_input_grad(&dyv, &wv, dx, window, groups);
    });
    let dw = through_a_box(rng, &case.w, |dw| {
        conv_weight_grad(&xv, &dyv, dw, window, groups);
    });
    let wide = |found: &[T]| -> Vec<f64> { found.iter().map(|v| v.wide()).collect() };
    let shapes = format!("{:?} {:?} {:?} {:?}", case.x, case.w, case.y, case.window);
    assert_eq!(wide(&y), expected_y, "value, {shapes}");
    assert_eq!(wide(&dx), expected_dx, "gradient by the input, {shapes}");
    assert_eq!(wide(&dw), expected_dw, "gradient by the weight, {shapes}");
}

#[test]
fn channels_side_by_side_match_plain_loops() {
    let mut rng = Rng::new(19);
    for channels in [11, 12, 16, 21, 35] {
        for (round, columns) in [0, 1, 3, 4, 7, 8, 9, 14, 17, 31].into_iter().enumerate() {
            let [batch, rows] = [rng.within(1, 2), rng.within(1, 9)];
            let kernel = [[3, 3], [7, 7], [2, 5], [5, 2], [1, 4]][round % 5];
            for (stride, dilation) in [
                ([1, 1], [1, 1]),
                ([2, 2], [1, 1]),
                ([3, 2], [2, 3]),
                ([1, 3], [2, 1]),
            ] {
                let mut origin = |kernel: usize| 1 - rng.within(0, kernel + 1) as isize;
                let origin = [origin(kernel[0]), origin(kernel[1])];
                let dim = |d: usize, extent| (extent, kernel[d], stride[d], dilation[d], origin[d]);
                let case = case(batch, channels, &[dim(0, rows), dim(1, columns)]);
                compare::<f32>(&mut rng, &case);
                compare::<f64>(&mut rng, &case);
            }
        }
    }
}

#[test]
fn channels_side_by_side_in_one_and_three_dims_and_in_several_blocks() {
    let mut rng = Rng::new(23);
    for case in [
        case(2, 20, &[(33, 4, 1, 1, -3)]),
        case(1, 17, &[(40, 5, 2, 2, -4)]),
        case(0, 16, &[(5, 3, 1, 1, -1), (5, 3, 1, 1, -1)]),
        case(
            1,
            16,
            &[(4, 1, 2, 1, -1), (6, 3, 1, 1, -1), (9, 3, 1, 1, -1)],
        ),
        // More rows than a block has, and rows that are not read.
        case(1, 18, &[(90, 5, 1, 1, -1), (60, 4, 1, 1, -1)]),
        case(1, 13, &[(70, 5, 2, 1, -2), (130, 5, 2, 1, -2)]),
        case(1, 12, &[(40, 2, 5, 1, 0), (50, 2, 7, 1, 3)]),
        case(1, 14, &[(6, 4, 1, 1, -40), (6, 4, 1, 1, 30)]),
        // Long rows, two of which are computed together where channels do not lie side by side.
        case(1, 12, &[(7, 3, 1, 1, -1), (131, 3, 1, 1, -1)]),
        case(2, 3, &[(6, 4, 2, 2, -2), (150, 3, 1, 2, -2)]),
    ] {
        compare::<f32>(&mut rng, &case);
        compare::<f64>(&mut rng, &case);
    }
}

/// Bits of values and of gradients by the input, of some channels, rows and columns of a plane.
fn bits<T: Real>(
    [x, w]: [&View<'_, T>; 2],
    channels: core::ops::Range<usize>,
    [rows, columns]: [core::ops::Range<usize>; 2],
    stride: usize,
) -> [Vec<T>; 2] {
    let (all, count) = (x.shape().to_vec(), channels.len());
    let x = x.sub_box(&[0, channels.start, 0, 0], &[all[0], count, all[2], all[3]]);
    let kernel = [w.shape()[2], w.shape()[3]];
    let w = w.sub_box(
        &[channels.start, 0, 0, 0],
        &[count, 1, kernel[0], kernel[1]],
    );
    let shape = [all[0], count, rows.len(), columns.len()];
    let first = [rows.start as isize, columns.start as isize];
    let pad = kernel.map(|k| (k / 2) as isize);
    let mut out = [
        vec![T::nan(); shape.iter().product()],
        vec![T::nan(); shape.iter().product()],
    ];
    let [y, dx] = &mut out;
    let step = stride as isize;
    let window = Taps::new(
        &[stride; 2],
        &[1, 1],
        &[first[0] * step - pad[0], first[1] * step - pad[1]],
    );
    conv_forward(
        &x,
        &w,
        None,
        &mut ViewMut::contiguous(y, &shape),
        &window,
        count,
    );
    let window = Taps::new(
        &[stride; 2],
        &[1, 1],
        &[-pad[0] - first[0], -pad[1] - first[1]],
    );
    conv_input_grad(&x, &w, &mut ViewMut::contiguous(dx, &shape), &window, count);
    out
}

/// A number's bits are the same whatever is computed beside it: other channels, rows and columns.
#[test]
fn channels_side_by_side_have_the_bits_of_each_alone() {
    let mut rng = Rng::new(29);
    let (channels, height, width) = (37, 11, 26);
    for (kernel, stride) in [([3, 3], 1), ([7, 7], 1), ([3, 5], 2)] {
        let x = rng.vec::<f32>(2 * channels * height * width);
        let w = rng.vec::<f32>(channels * kernel[0] * kernel[1]);
        let xv = View::contiguous(&x, &[2, channels, height, width]);
        let wv = View::contiguous(&w, &[channels, 1, kernel[0], kernel[1]]);
        let whole = bits([&xv, &wv], 0..channels, [0..height, 0..width], stride);
        for (channels_here, rows, columns) in [
            (0..16, 0..11, 0..26),
            (3..4, 0..11, 0..26),
            (5..24, 2..7, 3..5),
            (20..37, 10..11, 1..26),
            (30..37, 0..11, 13..14),
        ] {
            let part = bits(
                [&xv, &wv],
                channels_here.clone(),
                [rows.clone(), columns.clone()],
                stride,
            );
            for at in naive_index(&[2, channels_here.len(), rows.len(), columns.len()]) {
                let of_part = flat(&[2, channels_here.len(), rows.len(), columns.len()], &at);
                let [n, c, i, j] = [
                    at[0],
                    at[1] + channels_here.start,
                    at[2] + rows.start,
                    at[3] + columns.start,
                ];
                let of_whole = flat(&[2, channels, height, width], &[n, c, i, j]);
                for (part, whole) in part.iter().zip(&whole) {
                    assert_eq!(
                        part[of_part].to_bits(),
                        whole[of_whole].to_bits(),
                        "{kernel:?} {stride}: {at:?}"
                    );
                }
            }
        }
    }
}

/// Zeros beside a plane, and channels that are not there, meet no infinity.
#[test]
fn infinity_stays_in_its_own_windows_and_channels() {
    let (channels, side) = (18, 6);
    let shape = [1, channels, side, side];
    let window = Taps::new(&[1, 1], &[1, 1], &[-1, -1]);
    let count = channels * side * side;
    let (plain, weight) = (vec![1.0_f32; count], vec![2.0_f32; channels * 9]);
    let (mut infinite, mut heavy) = (plain.clone(), weight.clone());
    // A corner of channel 3, and the first position of channel 17.
    infinite[3 * side * side] = f32::INFINITY;
    heavy[17 * 9] = f32::INFINITY;
    let value = |x: &[f32], w: &[f32]| {
        let mut y = vec![0.0; count];
        let (x, w) = (
            View::contiguous(x, &shape),
            View::contiguous(w, &[channels, 1, 3, 3]),
        );
        conv_forward(
            &x,
            &w,
            None,
            &mut ViewMut::contiguous(&mut y, &shape),
            &window,
            channels,
        );
        y
    };
    for (at, v) in value(&infinite, &weight).iter().enumerate() {
        let (c, i, j) = (at / 36, at / 6 % 6, at % 6);
        assert_eq!(v.is_infinite(), c == 3 && i < 2 && j < 2, "{at}: {v}");
    }
    for (at, v) in value(&plain, &heavy).iter().enumerate() {
        let (c, i, j) = (at / 36, at / 6 % 6, at % 6);
        assert_eq!(v.is_infinite(), c == 17 && i > 0 && j > 0, "{at}: {v}");
        assert!(!v.is_nan());
    }
    let mut dw = vec![0.0; channels * 9];
    let (x, dy) = (
        View::contiguous(&plain, &shape),
        View::contiguous(&infinite, &shape),
    );
    let mut to = ViewMut::contiguous(&mut dw, &[channels, 1, 3, 3]);
    conv_weight_grad(&x, &dy, &mut to, &window, channels);
    for (at, v) in dw.iter().enumerate() {
        let (c, k, l) = (at / 9, at / 3 % 3, at % 3);
        assert_eq!(v.is_infinite(), c == 3 && k > 0 && l > 0, "{at}: {v}");
        assert!(!v.is_nan());
    }
}
