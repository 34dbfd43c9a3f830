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

/// Points and columns that go together, and what is left of them, give what each gives alone.
#[test]
fn points_and_coordinates_give_what_each_gives_alone() {
    let ([n, k, m], mut rng) = ([6, 64 + 5, 9], Rng::new(10));
    let [x, y, g] = [n * m, k * m, n * k].map(|len| rng.vec::<f32>(len));
    for p in [1.0, 2.0, 3.0] {
        let (mut all, mut back) = (vec![9.0; n * k], vec![9.0; n * m]);
        let of_y = View::contiguous(&y, &[k, m]);
        let to = &mut ViewMut::contiguous(&mut all, &[n, k]);
        powers(&View::contiguous(&x, &[n, m]), &of_y, p, to);
        let to = &mut ViewMut::contiguous(&mut back, &[n, m]);
        let of_g = View::contiguous(&g, &[n, k]);
        slopes(&View::contiguous(&x, &[n, m]), &of_y, &of_g, p, to);
        for i in 0..n {
            let point = View::contiguous(&x[i * m..][..m], &[1, m]);
            for j in 0..k {
                let mut one = [9.0];
                let other = View::contiguous(&y[j * m..][..m], &[1, m]);
                powers(
                    &point,
                    &other,
                    p,
                    &mut ViewMut::contiguous(&mut one, &[1, 1]),
                );
                assert_eq!(one[0], all[i * k + j], "{p}: {i} and {j}");
            }
            let weights = View::contiguous(&g[i * k..][..k], &[1, k]);
            for c in 0..m {
                let mut one = [9.0];
                let at = View::contiguous(&x[i * m + c..][..1], &[1, 1]);
                let others: Vec<f32> = y.iter().skip(c).step_by(m).copied().collect();
                let others = View::contiguous(&others, &[k, 1]);
                slopes(
                    &at,
                    &others,
                    &weights,
                    p,
                    &mut ViewMut::contiguous(&mut one, &[1, 1]),
                );
                assert_eq!(one[0], back[i * m + c], "{p}: {i}, {c}");
            }
        }
    }
}
