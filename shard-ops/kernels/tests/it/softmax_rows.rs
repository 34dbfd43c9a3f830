use shard_kernels::Real;
use shard_kernels::softmax::{softmax_rows, softmax_rows_grad};

use crate::testing::Rng;
use shard_kernels::softmax::{max_sum_exp, softmax};
use shard_kernels::{View, ViewMut};

/// Rows of every kind of length against the way that ranks merge.
fn agrees<T: Real>(tolerance: f64) {
    let mut rng = Rng::new(5);
    // Short rows go many at a time, and some are left over.
    for (rows, n) in [
        (3, 1),
        (17, 2),
        (53, 3),
        (16, 8),
        (23, 33),
        (19, 63),
        // Four at a time, and fewer.
        (5, 16),
        (3, 24),
        (4, 24),
        (6, 32),
        (7, 45),
        (3, 64),
        (3, 65),
        (3, 200),
        (3, 1024),
        (3, 1025),
        (3, 2500),
    ] {
        let shape = [rows, n];
        let [x, dy] = [0, 1].map(|_| rng.vec::<T>(rows * n));
        let view = View::contiguous(&x, &shape);
        let mut pairs = vec![0.0; 2 * rows];
        max_sum_exp(&view, &[1], &mut pairs);
        for log in [false, true] {
            let (mut y, mut expected) = (vec![T::nan(); rows * n], vec![T::nan(); rows * n]);
            softmax_rows(log, &x, n, &mut y);
            softmax(
                log,
                &view,
                &[1],
                &pairs,
                &mut ViewMut::contiguous(&mut expected, &shape),
            );
            let close = |got: T, wanted: f64| {
                let off = (got.wide() - wanted).abs();
                assert!(
                    off <= tolerance * wanted.abs().max(1e-3),
                    "{got:?} for {wanted} of {n}"
                );
            };
            for (y, e) in y.iter().zip(&expected) {
                close(*y, e.wide());
            }
            let mut dx = vec![T::nan(); rows * n];
            softmax_rows_grad(log, &y, &dy, n, &mut dx);
            for (row, dx) in dx.chunks(n).enumerate() {
                let [y, dy] = [&y, &dy].map(|v| v[row * n..][..n].iter().map(|v| v.wide()));
                let pairs: Vec<(f64, f64)> = y.zip(dy).collect();
                let factor = |y: f64| if log { 1.0 } else { y };
                let sum: f64 = pairs.iter().map(|(y, dy)| factor(*y) * dy).sum();
                for (dx, (y, dy)) in dx.iter().zip(&pairs) {
                    let wanted = match log {
                        true => dy - y.exp() * sum,
                        false => y * (dy - sum),
                    };
                    assert!(
                        (dx.wide() - wanted).abs() <= tolerance * 4.0,
                        "{dx:?} for {wanted}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_at_once_are_what_merged_ones_are() {
    agrees::<f32>(2e-6);
    agrees::<f64>(1e-14);
}

#[test]
fn rows_without_a_softmax_are_not_numbers() {
    let inf = f32::INFINITY;
    for row in [[-inf; 3], [1.0, inf, -inf], [0.0, f32::NAN, 1.0]] {
        for log in [false, true] {
            let mut y = [0.0; 6];
            let mut x = [0.0; 6];
            x[..3].copy_from_slice(&row);
            softmax_rows(log, &x, 3, &mut y);
            assert!(y[..3].iter().all(|y| y.is_nan()), "{row:?}: {y:?}");
            assert!(y[3..].iter().all(|y| y.is_finite()), "{row:?}: {y:?}");
        }
    }
    // The second of four, and the last of its lanes that go twice.
    for (at, wrong) in [(24, f32::NAN), (47, inf), (39, f32::NAN)] {
        let (mut x, mut y) = ([0.5; 4 * 24], [0.0; 4 * 24]);
        (x[1], x[at]) = (-inf, wrong);
        softmax_rows(false, &x, 24, &mut y);
        assert!(
            y[24..48].iter().all(|y| y.is_nan()),
            "{wrong} at {at}: {y:?}"
        );
        assert!(y[..24].iter().chain(&y[48..]).all(|y| y.is_finite()));
        assert_eq!((y[0], y[1]), (1.0 / 23.0, 0.0));
    }
    softmax_rows::<f32>(false, &[], 0, &mut []);
    softmax_rows_grad::<f32>(true, &[], &[], 5, &mut []);
}
