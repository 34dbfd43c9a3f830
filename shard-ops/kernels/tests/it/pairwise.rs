use shard_kernels::pairwise::*;
use shard_kernels::{View, ViewMut};

use crate::testing::{Rng, assert_close};

#[test]
fn rows_of_transposed_and_broadcast_matrices_are_compared() {
    let mut rng = Rng::new(3);
    // Three points of four coordinates, stored by columns, and a batch of two matrices of two points.
    let (x, y): (Vec<f64>, Vec<f64>) = (rng.vec(12), rng.vec(16));
    let of_x = View::contiguous(&x, &[4, 3]).permute(&[1, 0]);
    let of_y = View::contiguous(&y, &[2, 2, 4]);
    for p in [1.0, 2.0, 0.5, 3.0] {
        let (mut out, mut expected) = ([0.0; 12], vec![0.0; 12]);
        powers(
            &of_x,
            &of_y,
            p,
            &mut ViewMut::contiguous(&mut out, &[2, 3, 2]),
        );
        let (g, mut back) = (rng.vec(12), [0.0; 24]);
        let of_g = View::contiguous(&g, &[2, 3, 2]);
        slopes(
            &of_x,
            &of_y,
            &of_g,
            p,
            &mut ViewMut::contiguous(&mut back, &[2, 3, 4]),
        );
        let mut slope = vec![0.0; 24];
        for at in 0..12 {
            let (b, i, j) = (at / 6, at / 2 % 3, at % 2);
            for k in 0..4 {
                let d: f64 = x[k * 3 + i] - y[b * 8 + j * 4 + k];
                expected[at] += d.abs().powf(p);
                slope[b * 12 + i * 4 + k] += g[at] * p * d.abs().powf(p - 1.0) * d.signum();
            }
        }
        assert_close(&out, &expected, 1e-5);
        assert_close(&back, &slope, 1e-5);
    }
}

#[test]
fn equal_coordinates_have_no_slope_and_nan_stays() {
    for p in [1.0, 2.0, 0.5] {
        let (x, g, mut out) = ([1.0, f64::NAN], [1.0], [7.0; 2]);
        let row = |x| View::contiguous(x, &[1, 2]);
        let to = &mut ViewMut::contiguous(&mut out, &[1, 2]);
        slopes(
            &row(&x),
            &row(&[1.0, 1.0]),
            &View::contiguous(&g, &[1, 1]),
            p,
            to,
        );
        assert!(out[0] == 0.0 && out[1].is_nan(), "{p}: {out:?}");
    }
}

#[test]
fn slopes_to_many_points_are_summed() {
    let (count, mut rng) = (75, Rng::new(9));
    let (x, y, g) = (rng.vec(2 * 3), rng.vec(count * 3), rng.vec(2 * count));
    let [x, y, g] = [x, y, g].map(|v| v.into_iter().map(|v: f64| v as f32).collect::<Vec<_>>());
    let mut out = [0.0; 6];
    slopes(
        &View::contiguous(&x, &[2, 3]),
        &View::contiguous(&y, &[count, 3]),
        &View::contiguous(&g, &[2, count]),
        2.0,
        &mut ViewMut::contiguous(&mut out, &[2, 3]),
    );
    let expected: Vec<f64> = (0..6)
        .map(|at| {
            let (i, k) = (at / 3, at % 3);
            let term = |j: usize| g[i * count + j] * 2.0 * (x[at] - y[j * 3 + k]);
            (0..count).map(|j| f64::from(term(j))).sum()
        })
        .collect();
    assert_close(&out, &expected, 1e-5);
}
