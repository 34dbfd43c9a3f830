use shard_kernels::linalg::*;
use shard_kernels::{View, ViewMut};

const A: [f64; 9] = [4.0, 1.0, -2.0, 1.0, 5.0, 0.5, -2.0, 0.5, 6.0];

fn made(kind: Factors, a: &[f64], n: usize, shapes: &[&[usize]]) -> Vec<Vec<f64>> {
    let mut all: Vec<Vec<f64>> = (shapes.iter())
        .map(|s| vec![9.0; s.iter().product()])
        .collect();
    let mut outs: Vec<ViewMut<'_, f64>> = (all.iter_mut().zip(shapes))
        .map(|(data, shape)| ViewMut::contiguous(data, shape))
        .collect();
    factors(kind, &View::contiguous(a, &[n, n]), &mut outs);
    drop(outs);
    all
}

fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let at = |i: usize, j: usize| (0..n).map(|k| a[i * n + k] * b[k * n + j]).sum();
    (0..n * n).map(|f| at(f / n, f % n)).collect()
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12)
}

#[test]
fn factors_multiply_to_the_matrix() {
    let inverse = &made(Factors::Inverse, &A, 3, &[&[3, 3]])[0];
    assert!(near(
        &product(&A, inverse, 3),
        &[1., 0., 0., 0., 1., 0., 0., 0., 1.]
    ));
    let l = &made(Factors::Cholesky, &A, 3, &[&[3, 3]])[0];
    let turned: Vec<f64> = (0..9).map(|f| l[f % 3 * 3 + f / 3]).collect();
    assert!(near(&product(l, &turned, 3), &A) && l[1] == 0.0);
    let qr = made(Factors::Qr, &A, 3, &[&[3, 3], &[3, 3]]);
    assert!(near(&product(&qr[0], &qr[1], 3), &A) && qr[1][3] == 0.0);
    let svd = made(Factors::Svd, &A, 3, &[&[3, 3], &[3], &[3, 3]]);
    let scaled: Vec<f64> = (0..9).map(|f| svd[0][f] * svd[1][f % 3]).collect();
    assert!(near(&product(&scaled, &svd[2], 3), &A) && svd[1][0] >= svd[1][2]);
    let eigen = made(Factors::Eigh, &A, 3, &[&[3], &[3, 3]]);
    let scaled: Vec<f64> = (0..9).map(|f| eigen[1][f] * eigen[0][f % 3]).collect();
    assert!(near(&product(&A, &eigen[1], 3), &scaled) && eigen[0][0] <= eigen[0][2]);
}

/// Of any extents, and where pivots are zeros; rows are turned so that no element of `L` is larger than 1.
#[test]
fn triangles_and_an_order_of_rows_multiply_to_the_matrix() {
    let wave = |m: usize, n: usize| -> Vec<f64> {
        (0..m * n)
            .map(|f| ((5 * f * f + 3 * f) % 11) as f64 - 5.0)
            .collect()
    };
    let singular = vec![1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 5.0, 1.0, 0.0];
    let hollow = vec![0.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 3.0, 0.5];
    for (a, m, n) in [
        (wave(3, 3), 3, 3),
        (wave(5, 3), 5, 3),
        (wave(2, 5), 2, 5),
        (wave(17, 17), 17, 17),
        (singular, 3, 3),
        (hollow, 3, 3),
        (vec![0.0; 6], 3, 2),
        (vec![], 0, 3),
        (vec![], 2, 0),
    ] {
        let k = m.min(n);
        let (mut p, mut l, mut u) = (vec![9.0; m * m], vec![9.0; m * k], vec![9.0; k * n]);
        let mut outs = [
            ViewMut::contiguous(&mut p, &[m, m]),
            ViewMut::contiguous(&mut l, &[m, k]),
            ViewMut::contiguous(&mut u, &[k, n]),
        ];
        factors(Factors::Lu, &View::contiguous(&a, &[m, n]), &mut outs);
        let order: Vec<usize> = (0..m)
            .map(|row| (0..m).find(|&j| p[row * m + j] == 1.0).unwrap())
            .collect();
        assert_eq!(p.iter().filter(|&&x| x == 0.0).count(), m * m - m, "{p:?}");
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k).map(|t| l[order[i] * k + t] * u[t * n + j]).sum();
                assert!((sum - a[i * n + j]).abs() < 1e-12, "{m} x {n}: {i}, {j}");
            }
            for j in 0..k {
                let x = l[i * k + j];
                assert!(
                    x.abs() <= 1.0 && (i != j || x == 1.0) && (i >= j || x == 0.0),
                    "{l:?}"
                );
            }
        }
        assert!((0..k).all(|i| (0..i).all(|j| u[i * n + j] == 0.0)), "{u:?}");
    }
    let shapes: [&[usize]; 3] = [&[3, 3]; 3];
    let mut odd = A;
    odd[4] = f64::NAN;
    assert!(
        made(Factors::Lu, &odd, 3, &shapes)
            .concat()
            .iter()
            .all(|x| x.is_nan())
    );
}

#[test]
fn determinants_have_the_sign_of_the_permutation() {
    let turned = [0.0, 2.0, 0.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0];
    let swapped = [0.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 4.0];
    for (a, expected) in [(turned, 24.0), (swapped, -24.0)] {
        let det = made(Factors::Det, &a, 3, &[&[]])[0][0];
        assert!((det - expected).abs() < 1e-12, "{det}");
        let both = made(Factors::Slogdet, &a, 3, &[&[], &[]]);
        assert_eq!(both[0][0], expected.signum());
        assert!((both[1][0] - 24f64.ln()).abs() < 1e-12);
    }
    assert_eq!(made(Factors::Det, &[0.0; 4], 2, &[&[]])[0][0], 0.0);
}

#[test]
fn adjugates_hold_the_cofactors_of_singular_matrices_too() {
    let cofactors = |a: &[f64]| -> Vec<f64> {
        let minor = |i: usize, j: usize| {
            let (r, c) = ([(i + 1) % 3, (i + 2) % 3], [(j + 1) % 3, (j + 2) % 3]);
            a[r[0] * 3 + c[0]] * a[r[1] * 3 + c[1]] - a[r[0] * 3 + c[1]] * a[r[1] * 3 + c[0]]
        };
        (0..9).map(|at| minor(at % 3, at / 3)).collect()
    };
    let rank_two = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let turned = [0.0, 2.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0];
    let rank_one = [1.0, 2.0, 3.0, -2.0, -4.0, -6.0, 0.5, 1.0, 1.5];
    let nearly = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0 + 1e-9];
    for a in [A, rank_two, turned, rank_one, nearly, [0.0; 9]] {
        let found = &made(Factors::Adjugate, &a, 3, &[&[3, 3]])[0];
        let expected = cofactors(&a);
        let misses = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(
            misses.fold(0.0, f64::max) < 1e-11,
            "{a:?}: {found:?}, not {expected:?}"
        );
    }
    assert_eq!(made(Factors::Adjugate, &[0.0], 1, &[&[1, 1]])[0], [1.0]);
    assert!(made(Factors::Adjugate, &[], 0, &[&[0, 0]])[0].is_empty());
    let found = &made(Factors::Adjugate, &[f64::NAN, 0.0, 0.0, 1.0], 2, &[&[2, 2]])[0];
    assert!(found.iter().any(|x| x.is_nan()));
}

#[test]
fn what_does_not_exist_is_nan() {
    let indefinite = [1.0, 2.0, 2.0, 1.0];
    let l = &made(Factors::Cholesky, &indefinite, 2, &[&[2, 2]])[0];
    assert!(l.iter().all(|x| x.is_nan()));
}

/// Squares of elements are no numbers, but what is made of them is. A factor of two changes no digit.
#[test]
fn factors_of_the_smallest_and_greatest_numbers_are_those_of_any() {
    let all: [(Factors, &[&[usize]]); 3] = [
        (Factors::Qr, &[&[3, 3], &[3, 3]]),
        (Factors::Svd, &[&[3, 3], &[3], &[3, 3]]),
        (Factors::Eigh, &[&[3], &[3, 3]]),
    ];
    for (kind, shapes) in all {
        let usual = made(kind, &A, 3, shapes);
        // Which of the results grow with the matrix.
        let grows = match kind {
            Factors::Eigh => 0,
            _ => 1,
        };
        for power in [-1060, -700, -340, 340, 700, 1015] {
            let scale = |x: &f64| x * 2_f64.powi(power / 2) * 2_f64.powi(power - power / 2);
            let a: Vec<f64> = A.iter().map(scale).collect();
            for (i, (found, usual)) in made(kind, &a, 3, shapes).iter().zip(&usual).enumerate() {
                for (found, usual) in found.iter().zip(usual) {
                    let (expected, unit) = match i == grows {
                        true => (scale(usual), scale(&1.0)),
                        false => (*usual, 1.0),
                    };
                    // Of the smallest numbers few digits are left.
                    let digits = if power < -1022 { 1e-3 } else { 1e-12 };
                    let apart = (found - expected).abs();
                    assert!(
                        apart <= digits * (expected.abs() + unit),
                        "{kind:?} by 2^{power}: {found} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_no_number_has_no_factors() {
    for bad in [f64::NAN, f64::INFINITY] {
        let mut a = A;
        a[3] = bad;
        for kind in [Factors::Qr, Factors::Svd] {
            let all = made(kind, &a, 3, &[&[3, 3]]);
            assert!(all[0].iter().all(|x| x.is_nan()), "{kind:?} of {bad}");
        }
        // Of a symmetric matrix the lower triangle is read.
        assert!(made(Factors::Eigh, &a, 3, &[&[3]])[0][0].is_nan());
        a.swap(1, 3);
        assert!(!made(Factors::Eigh, &a, 3, &[&[3]])[0][0].is_nan());
    }
}

#[test]
fn exponentials_of_large_and_of_no_numbers() {
    // A rotation, squared several times.
    let (sine, cosine) = 40f64.sin_cos();
    let turned = &made(Factors::Exp, &[0.0, -40.0, 40.0, 0.0], 2, &[&[2, 2]])[0];
    assert!(near(turned, &[cosine, -sine, sine, cosine]), "{turned:?}");
    let one = &made(Factors::Exp, &[0.0; 4], 2, &[&[2, 2]])[0];
    assert!(near(one, &[1.0, 0.0, 0.0, 1.0]), "{one:?}");
    for entry in [f64::NAN, f64::INFINITY] {
        let none = &made(Factors::Exp, &[entry, 0.0, 0.0, 1.0], 2, &[&[2, 2]])[0];
        assert!(none.iter().all(|x| x.is_nan()), "{none:?}");
    }
    assert_eq!(made(Factors::Exp, &[], 0, &[&[0, 0]])[0].len(), 0);
}

#[test]
fn pseudo_inverses_leave_out_what_is_no_rank() {
    for (rtol, expected) in [(1e-12, [0.25; 4]), (2.0, [0.0; 4])] {
        let mut found = [9.0; 4];
        let x = View::contiguous(&[1.0; 4], &[2, 2]);
        pseudo_inverse(rtol, &x, &mut ViewMut::contiguous(&mut found, &[2, 2]));
        assert!(near(&found, &expected), "{found:?}");
    }
}

#[test]
fn triangles_are_all_that_is_read() {
    let a = [2.0, 1.0, f64::NAN, 4.0];
    let of = |upper, unit, a: &[f64]| {
        let (mut found, b) = ([9.0; 2], [4.0, 8.0]);
        let (a, b) = (View::contiguous(a, &[2, 2]), View::contiguous(&b, &[2, 1]));
        let out = &mut ViewMut::contiguous(&mut found, &[2, 1]);
        solve(Some(Triangle { upper, unit }), &a, &b, out);
        found
    };
    assert_eq!(of(true, false, &a), [1.0, 2.0]);
    assert_eq!(
        of(true, true, &[f64::NAN, 1.0, f64::NAN, f64::NAN]),
        [-4.0, 8.0]
    );
    assert_eq!(of(false, false, &[2.0, f64::NAN, 1.0, 4.0]), [2.0, 1.5]);
    assert_eq!(
        of(false, true, &[f64::NAN, f64::NAN, 1.0, f64::NAN]),
        [4.0, 4.0]
    );
}
