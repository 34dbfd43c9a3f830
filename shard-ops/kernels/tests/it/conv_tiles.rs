//! Convolutions of `bf16` by a unit for tiles, emulated and the processor's.

use crate::conv::{Case, flat, through_a_box};
use crate::testing::{Rng, assert_close, naive_index};
use half::bf16;
use shard_kernels::conv::inside::{forward_emulated, input_grad_emulated, weight_grad_emulated};
use shard_kernels::conv::{
    Taps, conv_forward_halves, conv_input_grad_halves, conv_weight_grad_halves,
};
use shard_kernels::gemm::Emulated;
use shard_kernels::{View, ViewMut};

fn halves(rng: &mut Rng, shape: &[usize]) -> Vec<bf16> {
    let count = shape.iter().product();
    (0..count).map(|_| bf16::from_f64(rng.unit())).collect()
}

/// Numbers that lie in columns, or turned over.
fn strided<'a>(rng: &mut Rng, data: &'a mut Vec<bf16>, shape: &[usize]) -> View<'a, bf16> {
    if rng.within(0, 2) > 0 {
        return View::contiguous(data, shape);
    }
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    let turned: Vec<usize> = order.iter().map(|d| shape[*d]).collect();
    let own = std::mem::take(data);
    *data = vec![bf16::ZERO; own.len()];
    for (at, x) in naive_index(shape).iter().zip(own) {
        let at: Vec<usize> = order.iter().map(|d| at[*d]).collect();
        data[flat(&turned, &at)] = x;
    }
    View::contiguous(data, &turned).permute(&order)
}

/// Value and gradients by the emulated unit against plain loops; those of `bf16` are the rounded ones, and the processor's the same.
fn compare(case: &Case, rng: &mut Rng) {
    let [mut x, mut w, mut dy] = [&case.x, &case.w, &case.y].map(|shape| halves(rng, shape));
    let bias: Vec<f32> = rng.vec(case.y[1]);
    let mut y_exact: Vec<f64> =
        (naive_index(&case.y).iter().map(|at| f64::from(bias[at[1]]))).collect();
    let (mut dx_exact, mut dw_exact) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    case.meetings(|iy, iw, ix| {
        let (iy, iw, ix) = (flat(&case.y, iy), flat(&case.w, iw), flat(&case.x, ix));
        y_exact[iy] += w[iw].to_f64() * x[ix].to_f64();
        dx_exact[ix] += w[iw].to_f64() * dy[iy].to_f64();
        dw_exact[iw] += x[ix].to_f64() * dy[iy].to_f64();
    });
    let (xv, wv) = (strided(rng, &mut x, &case.x), strided(rng, &mut w, &case.w));
    let (dyv, window, groups) = (strided(rng, &mut dy, &case.y), &case.window, case.groups);

    for unit in Emulated::ALL {
        let y: Vec<f32> = through_a_box(rng, &case.y, |y| {
            forward_emulated(unit, &xv, &wv, Some(&bias), y, window, groups);
        });
        assert_close(&y, &y_exact, 1e-5);
        let dx: Vec<f32> = through_a_box(rng, &case.x, |dx| {
            input_grad_emulated(unit, &dyv, &wv, dx, window, groups);
        });
        assert_close(&dx, &dx_exact, 1e-5);
        let dw: Vec<f32> = through_a_box(rng, &case.w, |dw| {
            assert!(weight_grad_emulated(unit, &xv, &dyv, dw, window, groups));
        });
        assert_close(&dw, &dw_exact, 1e-5);
    }

    let singles = |exact: &[f64]| -> Vec<f32> { exact.iter().map(|&x| x as f32).collect() };
    let [y, dx, dw] = [&y_exact, &dx_exact, &dw_exact].map(|exact| singles(exact));
    let mut rounded = vec![bf16::ZERO; y.len()];
    let mut to = ViewMut::contiguous(&mut rounded, &case.y);
    conv_forward_halves(&xv, &wv, Some(&bias), &mut to, window, groups);
    assert_near(&rounded, &y);
    let mut rounded = vec![bf16::ZERO; dx.len()];
    let mut to = ViewMut::contiguous(&mut rounded, &case.x);
    conv_input_grad_halves(&dyv, &wv, &mut to, window, groups);
    assert_near(&rounded, &dx);
    let mut rounded = vec![bf16::ZERO; dw.len()];
    let mut to = ViewMut::contiguous(&mut rounded, &case.w);
    conv_weight_grad_halves(&xv, &dyv, &mut to, window, groups);
    assert_near(&rounded, &dw);
}

/// Rounded numbers are the nearest, or next to that where sums have another order, as those by vectors do.
fn assert_near(got: &[bf16], sums: &[f32]) {
    let largest = sums.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (got, sum) in got.iter().zip(sums) {
        let bound = sum.abs() / 256.0 + largest * 1e-5;
        assert!((got.to_f32() - sum).abs() <= bound, "{got} for {sum}");
    }
}

#[test]
fn random_windows_match_plain_loops() {
    let mut rng = Rng::new(31);
    for _ in 0..150 {
        compare(&Case::random(&mut rng), &mut rng);
    }
}

/// Channels of several steps and panels, one more or less than there is room for in one.
#[test]
fn many_channels_match_plain_loops() {
    let mut rng = Rng::new(32);
    for round in 0..12 {
        let (cin, cout) = (
            [32, 33, 64, 31, 70, 7][round % 6],
            [33, 32, 5, 64, 31, 40][round % 6],
        );
        let stride = [rng.within(1, 2), rng.within(1, 2)];
        let kernel = [[1, 1], [3, 3], [1, 3], [2, 1]][round % 4];
        let x = vec![2, cin, rng.within(1, 6), rng.within(1, 24)];
        let y = vec![2, cout, x[2].div_ceil(stride[0]), x[3].div_ceil(stride[1])];
        let case = Case {
            window: Taps::new(
                &stride,
                &[1, rng.within(1, 2)],
                &[rng.within(0, 1) as isize - 1, -1],
            ),
            w: [&[cout, cin][..], &kernel].concat(),
            x,
            y,
            groups: 1,
        };
        compare(&case, &mut rng);
    }
}

/// Patches, whose windows lie apart, and windows of few channels that are wider than they.
#[test]
fn positions_that_are_channels_match_plain_loops() {
    let mut rng = Rng::new(33);
    for (channels, out, kernel, stride) in [
        (3, 9, 8, 8),
        (1, 8, 16, 16),
        (2, 5, 7, 2),
        (3, 3, 5, 1),
        (4, 40, 4, 4),
    ] {
        let x = vec![2, channels, 2 * kernel + 1, 3 * kernel];
        let y = vec![2, out, (kernel + 1) / stride + 1, 2 * kernel / stride + 1];
        let case = Case {
            window: Taps::new(&[stride; 2], &[1; 2], &[0; 2]),
            w: vec![out, channels, kernel, kernel],
            x,
            y,
            groups: 1,
        };
        compare(&case, &mut rng);
    }
}

/// Several blocks along each dim, of which the last is smaller, and more outputs than are summed in `f32`.
#[test]
fn several_blocks_match_plain_loops() {
    let mut rng = Rng::new(34);
    for (x, kernel) in [
        (vec![1, 4, 3, 2001], vec![3, 3]),
        (vec![1, 2, 301, 40], vec![3, 1]),
        // After two blocks sums are joined, and a third is left.
        (vec![1, 2, 451, 40], vec![3, 1]),
        (vec![1, 2, 12, 30, 33], vec![3, 3, 3]),
    ] {
        let nd = kernel.len();
        let case = Case {
            w: [&[3, x[1]][..], &kernel].concat(),
            y: [&[1, 3][..], &x[2..]].concat(),
            window: Taps::new(&vec![1; nd], &vec![1; nd], &vec![-1; nd]),
            x,
            groups: 1,
        };
        compare(&case, &mut rng);
    }
}

/// Images that lie side by side: as many as a tile has places, fewer, some that are not there, and blocks of the first rows alone; at strides,
/// and by positions that read nothing but zeros around the input.
#[test]
fn small_images_match_plain_loops() {
    let mut rng = Rng::new(37);
    for (batch, channels, side, kernel, [stride, dilation, reach]) in [
        (32, [33, 40], vec![4, 4], vec![3, 3], [1, 1, 1]),
        (64, [32, 33], vec![2, 2], vec![3, 3], [1, 1, 1]),
        (17, [40, 7], vec![5, 3], vec![3, 3], [1, 1, 1]),
        (8, [70, 33], vec![7, 7], vec![3, 3], [2, 1, 1]),
        (39, [32, 32], vec![4, 5], vec![5, 3], [1, 1, 2]),
        (32, [64, 34], vec![6, 7], vec![3, 3], [1, 2, 2]),
        // No position reads an input of the last row.
        (16, [33, 33], vec![3, 3], vec![2, 2], [2, 2, 4]),
        (16, [33, 3], vec![3, 2, 4], vec![3, 3, 3], [1, 1, 1]),
        // More than a block of all rows holds.
        (32, [300, 5], vec![6, 6], vec![3, 3], [1, 1, 1]),
    ] {
        let reads = |(x, k): (&usize, &usize)| {
            let places = x + 2 * reach - dilation * (k - 1);
            places.div_ceil(stride)
        };
        let y: Vec<usize> = side.iter().zip(&kernel).map(reads).collect();
        let nd = kernel.len();
        let case = Case {
            w: [&[channels[1], channels[0]][..], &kernel].concat(),
            y: [&[batch, channels[1]][..], &y].concat(),
            window: Taps::new(
                &vec![stride; nd],
                &vec![dilation; nd],
                &vec![-(reach as isize); nd],
            ),
            x: [&[batch, channels[0]][..], &side].concat(),
            groups: 1,
        };
        compare(&case, &mut rng);
    }
}

/// What is infinite meets zeros around the input in the same way whether images lie side by side or not.
#[test]
fn infinity_beside_zeros_is_the_same_for_any_number_of_images() {
    let mut rng = Rng::new(38);
    let (count, window) = (16, Taps::new(&[1, 1], &[1, 1], &[-1, -1]));
    let [x, w] = [[count, 32, 3, 3], [33, 32, 3, 3]];
    let y = [count, 33, 3, 3];
    let xs = halves(&mut rng, &x);
    let mut ws = halves(&mut rng, &w);
    ws[flat(&w, &[5, 7, 0, 1])] = bf16::INFINITY;
    let mut dys = halves(&mut rng, &y);
    dys[flat(&y, &[3, 6, 0, 2])] = bf16::NEG_INFINITY;
    let wv = View::contiguous(&ws, &w);
    for unit in Emulated::ALL {
        let mut all = vec![0.0f32; dys.len()];
        let to = &mut ViewMut::contiguous(&mut all, &y);
        forward_emulated(unit, &View::contiguous(&xs, &x), &wv, None, to, &window, 1);
        for (image, expected) in all.chunks_exact(33 * 9).enumerate() {
            let (x, y) = ([1, 32, 3, 3], [1, 33, 3, 3]);
            let own = &xs[image * 32 * 9..][..32 * 9];
            let mut alone = vec![0.0f32; 33 * 9];
            let to = &mut ViewMut::contiguous(&mut alone, &y);
            forward_emulated(unit, &View::contiguous(own, &x), &wv, None, to, &window, 1);
            let bits = |numbers: &[f32]| -> Vec<u32> {
                numbers
                    .iter()
                    .map(|x| if x.is_nan() { 0 } else { x.to_bits() })
                    .collect()
            };
            assert_eq!(bits(&alone), bits(expected), "{image}");
        }
        assert!(all.iter().any(|x| x.is_nan()) && !all.iter().all(|x| x.is_nan()));

        // Of gradients by the weight, those that an infinite one is multiplied for.
        let mut dw = [vec![0.0f32; ws.len()], vec![0.0; ws.len()]];
        let (x1, y1) = ([1, 32, 3, 3], [1, 33, 3, 3]);
        let (own, dy) = (&xs[3 * 32 * 9..][..32 * 9], &dys[3 * 33 * 9..][..33 * 9]);
        let [one, many] = &mut dw;
        let views = (View::contiguous(own, &x1), View::contiguous(dy, &y1));
        let to = &mut ViewMut::contiguous(one, &w);
        assert!(weight_grad_emulated(
            unit, &views.0, &views.1, to, &window, 1
        ));
        let views = (View::contiguous(&xs, &x), View::contiguous(&dys, &y));
        let to = &mut ViewMut::contiguous(many, &w);
        assert!(weight_grad_emulated(
            unit, &views.0, &views.1, to, &window, 1
        ));
        let nan = |dw: &[f32]| -> Vec<bool> { dw.iter().map(|x| x.is_nan()).collect() };
        assert_eq!(nan(&dw[0]), nan(&dw[1]));
        assert!(dw[0].iter().any(|x| x.is_nan()));
    }
}

/// The processor's unit, if there is one, gives the bits of the emulated one.
#[test]
fn the_processor_gives_the_same_bits() {
    let Some(unit) = Emulated::ALL
        .into_iter()
        .find(|unit| unit.is_of_processor())
    else {
        return;
    };
    let mut rng = Rng::new(35);
    for _ in 0..40 {
        let case = Case::random(&mut rng);
        let [x, w, dy] = [&case.x, &case.w, &case.y].map(|shape| halves(&mut rng, shape));
        let (xv, wv) = (View::contiguous(&x, &case.x), View::contiguous(&w, &case.w));
        let (dyv, window, groups) = (View::contiguous(&dy, &case.y), &case.window, case.groups);
        let mut both = [vec![0.0f32; dy.len()], vec![0.0; dy.len()]];
        let [a, b] = both.each_mut().map(|y| ViewMut::contiguous(y, &case.y));
        forward_emulated(unit, &xv, &wv, None, &mut { a }, window, groups);
        conv_forward_halves(&xv, &wv, None, &mut { b }, window, groups);
        assert_eq!(both[0], both[1]);
        let mut both = [vec![0.0f32; w.len()], vec![0.0; w.len()]];
        let [a, b] = both.each_mut().map(|w| ViewMut::contiguous(w, &case.w));
        assert!(weight_grad_emulated(
            unit,
            &xv,
            &dyv,
            &mut { a },
            window,
            groups
        ));
        conv_weight_grad_halves(&xv, &dyv, &mut { b }, window, groups);
        assert_eq!(both[0], both[1]);
    }
}

/// NaN reaches the windows that hold it and no others; of gradients by the weight those whose position reads it.
#[test]
fn nan_reaches_its_own_windows_only() {
    let shapes = ([1, 4, 6, 20], [5, 4, 3, 3], [1, 5, 6, 20]);
    let mut rng = Rng::new(36);
    let [mut x, w, dy] = [shapes.0, shapes.1, shapes.2].map(|shape| halves(&mut rng, &shape));
    let window = Taps::new(&[1, 1], &[1, 1], &[-1, -1]);
    let at = [0, 2, 3, 0];
    x[flat(&shapes.0, &at)] = bf16::NAN;
    let (xv, wv) = (
        View::contiguous(&x, &shapes.0),
        View::contiguous(&w, &shapes.1),
    );
    let dyv = View::contiguous(&dy, &shapes.2);
    let mut y = vec![0.0f32; dy.len()];
    let to = &mut ViewMut::contiguous(&mut y, &shapes.2);
    forward_emulated(Emulated::Tiles, &xv, &wv, None, to, &window, 1);
    for i in naive_index(&shapes.2) {
        let holds = i[2].abs_diff(at[2]) <= 1 && i[3].abs_diff(at[3]) <= 1;
        assert_eq!(y[flat(&shapes.2, &i)].is_nan(), holds, "{i:?}");
    }
    let mut dw = vec![0.0f32; w.len()];
    let mut to = ViewMut::contiguous(&mut dw, &shapes.1);
    assert!(!weight_grad_emulated(
        Emulated::Tiles,
        &xv,
        &dyv,
        &mut to,
        &window,
        1
    ));
    conv_weight_grad_halves(&xv, &dyv, &mut to, &window, 1);
    for i in naive_index(&shapes.1) {
        // The first column is read by the second position of the first output and by the first of the second.
        let holds = i[1] == at[1] && i[3] < 2;
        assert_eq!(dw[flat(&shapes.1, &i)].is_nan(), holds, "{i:?}");
    }
}

/// Nothing to sum: results are the bias, or zeros.
#[test]
fn without_channels_results_are_the_bias() {
    let (x, w) = (vec![], vec![]);
    let (xv, wv) = (
        View::contiguous(&x, &[1, 0, 5]),
        View::contiguous(&w, &[2, 0, 3]),
    );
    let mut y = vec![bf16::NAN; 6];
    let to = &mut ViewMut::contiguous(&mut y, &[1, 2, 3]);
    forward_emulated(
        Emulated::Tiles,
        &xv,
        &wv,
        Some(&[1.0, 2.0]),
        to,
        &Taps::unit(1),
        1,
    );
    let expected = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0].map(bf16::from_f32);
    assert_eq!(y, expected);
}
