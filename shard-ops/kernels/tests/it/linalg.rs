use shard_kernels::linalg::*;
use shard_kernels::{View, ViewMut};

const A: [f64; 9] = [4.0, 1.0, -2.0, 1.0, 5.0, 0.5, -2.0, 0.5, 6.0];

fn made(kind: Factors, a: &[f64], n: usize, shapes: &[&[usize]]) -> Vec<Vec<f64>> {
    made_of(kind, a, [n, n], shapes)
}

/// The factors of a matrix of such extents.
fn made_of(kind: Factors, a: &[f64], extents: [usize; 2], shapes: &[&[usize]]) -> Vec<Vec<f64>> {
    let mut all: Vec<Vec<f64>> = (shapes.iter())
        .map(|s| vec![9.0; s.iter().product()])
        .collect();
    let mut outs: Vec<ViewMut<'_, f64>> = (all.iter_mut().zip(shapes))
        .map(|(data, shape)| ViewMut::contiguous(data, shape))
        .collect();
    factors(kind, &View::contiguous(a, &extents), &mut outs);
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

/// LAPACK's, by `torch.geqrf`; and reflections of a column that is done are none.
#[test]
fn reflections_are_lapacks() {
    let a = [-2.0, -1.0, 2.0, 7.0, 14.0, 23.0];
    let [made, tau] = &made_of(Factors::Reflections, &a, [3, 2], &[&[3, 2], &[2]])[..] else {
        panic!("two factors")
    };
    let expected = [
        14.282_856_857_085_7,
        23.664_733_420_073_36,
        -0.122_828_568_570_857,
        -4.356_649_189_097_37,
        -0.859_799_979_995_999,
        0.215_352_212_211_912_28,
    ];
    assert!(near(made, &expected), "{made:?}");
    assert!(
        near(tau, &[1.140_028_008_402_801, 1.911_357_772_337_237_5]),
        "{tau:?}"
    );
    let done = &made_of(
        Factors::Reflections,
        &[3.0, 1.0, 0.0, 2.0],
        [2, 2],
        &[&[2, 2], &[2]],
    );
    assert_eq!(done[..], [vec![3.0, 1.0, 0.0, 2.0], vec![0.0, 0.0]]);
    let odd = &made_of(
        Factors::Reflections,
        &[f64::NAN, 1.0],
        [2, 1],
        &[&[2, 1], &[1]],
    );
    assert!(odd.concat().iter().all(|x| x.is_nan()));
}

#[test]
fn eigenvectors_of_unsymmetric_matrices_are_turned_to_a_real_element() {
    let a = [0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.0];
    for power in [0, 700, -700] {
        let scale = 2_f64.powi(power);
        let a = a.map(|x| x * scale);
        let found = made(Factors::Eig, &a, 3, &[&[3, 2], &[3, 6], &[3, 3]]);
        let [values, vectors, real] = &found[..] else {
            panic!("three factors")
        };
        let (mut pairs, mut at) = (0, 0);
        for j in 0..3 {
            let w = [values[2 * j], values[2 * j + 1]];
            let v = |i: usize| [vectors[6 * i + 2 * j], vectors[6 * i + 2 * j + 1]];
            for i in 0..3 {
                let row = |part: usize| (0..3).map(|k| a[3 * i + k] * v(k)[part]).sum::<f64>();
                let [x, y] = v(i);
                let is = [w[0] * x - w[1] * y, w[0] * y + w[1] * x];
                assert!(
                    (row(0) - is[0]).abs() < 1e-13 * scale
                        && (row(1) - is[1]).abs() < 1e-13 * scale
                );
            }
            let length: f64 = (0..3).map(|i| v(i)[0].powi(2) + v(i)[1].powi(2)).sum();
            assert!((length - 1.0).abs() < 1e-14, "{length}");
            let one = (0..3).find(|i| real[3 * i + j] == 1.0).unwrap();
            assert!(v(one)[1] == 0.0 && v(one)[0] > 0.5, "{vectors:?}");
            if w[1] > 0.0 {
                // Its conjugate is the next one.
                assert_eq!([w[0], -w[1]], [values[2 * j + 2], values[2 * j + 3]]);
                pairs += 1;
            }
            at += usize::from((w[0] - 2.0 * scale).abs() < 1e-13 * scale && w[1] == 0.0);
        }
        assert_eq!((pairs, at), (1, 1));
    }
    let odd = [f64::INFINITY, 0.0, 0.0, 1.0];
    let none = made(Factors::Eig, &odd, 2, &[&[2, 2], &[2, 4], &[2, 2]]);
    assert!(none.concat().iter().all(|x| x.is_nan()));
    let empty = made(Factors::Eig, &[], 0, &[&[0, 2], &[0, 0], &[0, 0]]);
    assert!(empty.concat().is_empty());
}

/// LAPACK's factors and pivots, by `torch.linalg.ldl_factor`: of a hollow matrix, one whose pivots are single, and one that mixes both.
#[test]
fn symmetric_factors_are_lapacks() {
    let hollow = [
        0., 1., 2., 5., 1., 0., 3., 4., 2., 3., 0., 1., 5., 4., 1., 0.,
    ];
    let of_hollow = [
        0., 0., 0., 0., 5., 0., 0., 0., 0.2, 0.4, -0.8, 0., 0.8, 0.2, -1.5, 0.2,
    ];
    let single = [4., 1., 2., 1., 9., 3., 2., 3., 7.];
    let of_single = [
        4.,
        0.,
        0.,
        0.25,
        8.75,
        0.,
        0.5,
        2.5 / 8.75,
        6. - 6.25 / 8.75,
    ];
    for (a, expected, rows) in [
        (&hollow[..], &of_hollow[..], &[-4, -4, 3, 4][..]),
        (&single, &of_single, &[1, 2, 3]),
    ] {
        let n = rows.len();
        let (mut made, mut pivots) = (vec![9.0; n * n], vec![9; n]);
        symmetric_factors(
            &View::contiguous(a, &[n, n]),
            &mut ViewMut::contiguous(&mut made, &[n, n]),
            &mut ViewMut::contiguous(&mut pivots, &[n]),
        );
        assert!(near(&made, expected), "{made:?}");
        assert_eq!(pivots, rows);
    }
}

/// Of any symmetric matrix, and of many right-hand sides; what is above the diagonal is not read.
#[test]
fn symmetric_solutions_solve() {
    for n in [0, 1, 2, 3, 5, 8, 13] {
        for turn in 0..6 {
            // Small diagonals make blocks of two.
            let entry = |i: usize, j: usize| {
                let (i, j) = (i.max(j), i.min(j));
                let x = ((7 * i * i + 3 * j + 5 * i * j + turn) % 17) as f64 - 8.0;
                if i == j {
                    x * f64::from(turn as u8 % 3) / 8.0
                } else {
                    x
                }
            };
            let whole: Vec<f64> = (0..n * n).map(|f| entry(f / n, f % n)).collect();
            let lower: Vec<f64> = (0..n * n)
                .map(|f| if f / n >= f % n { whole[f] } else { f64::NAN })
                .collect();
            let x: Vec<f64> = (0..n * 2).map(|f| (f as f64 * 1.3).sin()).collect();
            let b: Vec<f64> = (0..n * 2)
                .map(|f| {
                    (0..n)
                        .map(|k| whole[f / 2 * n + k] * x[2 * k + f % 2])
                        .sum()
                })
                .collect();
            let (mut made, mut pivots) = (vec![9.0; n * n], vec![9; n]);
            symmetric_factors(
                &View::contiguous(&lower, &[n, n]),
                &mut ViewMut::contiguous(&mut made, &[n, n]),
                &mut ViewMut::contiguous(&mut pivots, &[n]),
            );
            let mut found = vec![9.0; n * 2];
            let mut solve = |pivots: &[i32]| {
                symmetric_solve(
                    &View::contiguous(&made, &[n, n]),
                    &View::contiguous(pivots, &[n]),
                    &View::contiguous(&b, &[n, 2]),
                    &mut ViewMut::contiguous(&mut found, &[n, 2]),
                );
                found.clone()
            };
            let apart = solve(&pivots)
                .iter()
                .zip(&x)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max);
            let det = made_det(&whole, n);
            assert!(
                det.abs() < 1e-6 || apart < 1e-10,
                "{n} {turn}: {apart}, {pivots:?}"
            );
            for wrong in [0, n as i32 + 1, i32::MIN] {
                let wrong = vec![wrong; n];
                assert!(solve(&wrong).iter().all(|x| x.is_nan()), "{wrong:?}");
            }
        }
    }
}

fn made_det(a: &[f64], n: usize) -> f64 {
    made(Factors::Det, a, n, &[&[]])[0][0]
}

#[test]
fn interchanges_make_the_permutation_that_they_are_of() {
    let wave: Vec<f64> = (0..30).map(|f| ((5 * f * f + 3 * f) % 11) as f64).collect();
    for (m, n) in [(5, 6), (6, 5), (6, 1), (1, 4)] {
        let k = m.min(n);
        let shapes: [&[usize]; 3] = [&[m, m], &[m, k], &[k, n]];
        let p = &made_of(Factors::Lu, &wave[..m * n], [m, n], &shapes)[0];
        let (mut pivots, mut again) = (vec![0; k], vec![9.0; m * m]);
        let rows = &mut ViewMut::contiguous(&mut pivots, &[k]);
        interchanges(&View::contiguous(p, &[m, m]), rows);
        assert!(
            (1..).zip(&pivots).all(|(row, &other)| row <= other),
            "{pivots:?}"
        );
        let to = &mut ViewMut::contiguous(&mut again, &[m, m]);
        permutations(&View::contiguous(&pivots, &[k]), to);
        assert_eq!(&again, p);
    }
    let mut none = [0.0_f64; 4];
    for wrong in [[0, 2], [3, 2], [-1, 2]] {
        let to = &mut ViewMut::contiguous(&mut none, &[2, 2]);
        permutations(&View::contiguous(&wrong, &[2]), to);
        assert!(none.iter().all(|x| x.is_nan()), "{wrong:?}");
    }
}

/// What one matrix leaves behind in memory is nothing to the next one, whether it has factors or not.
#[test]
fn a_matrix_has_the_factors_that_it_has_alone() {
    let n = 3;
    let usual = [4.0, 1.0, -2.0, 1.0, 5.0, 0.5, -2.0, 0.5, 6.0];
    let turned = [0.0, 2.0, 1.0, 3.0, 0.0, -1.0, 1.0, 1.0, 0.0];
    let singular = [1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 1.0, 1.0, 1.0];
    let none = [f64::NAN, 1.0, 0.0, 1.0, f64::INFINITY, 2.0, 0.0, 2.0, 1.0];
    let batch: Vec<[f64; 9]> = [usual, none, turned, singular, usual, [0.0; 9], turned].to_vec();
    let all = batch.as_flattened();
    let same = |a: &[f64], b: &[f64]| {
        a.iter()
            .zip(b)
            .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
    };
    for (kind, len) in [
        (Factors::Inverse, 9),
        (Factors::Cholesky, 9),
        (Factors::Adjugate, 9),
        (Factors::Det, 1),
    ] {
        let shape = |count: usize| match len {
            1 => vec![count],
            _ => vec![count, n, n],
        };
        let of = |count: usize, x: &[f64]| {
            let mut out = vec![7.0; count * len];
            let view = ViewMut::contiguous(&mut out, &shape(count));
            factors(kind, &View::contiguous(x, &[count, n, n]), &mut [view]);
            out
        };
        let together = of(batch.len(), all);
        for (i, matrix) in batch.iter().enumerate() {
            let alone = of(1, matrix);
            assert!(same(&together[i * len..][..len], &alone), "{kind:?} of {i}");
        }
    }
    let right = [1.0, -2.0, 3.0].repeat(batch.len());
    let solved = |a: &[f64], b: &[f64]| {
        let count = b.len() / n;
        let mut out = vec![7.0; b.len()];
        let (a, b) = (
            View::contiguous(a, &[count, n, n]),
            View::contiguous(b, &[count, n, 1]),
        );
        solve(
            None,
            &a,
            &b,
            &mut ViewMut::contiguous(&mut out, &[count, n, 1]),
        );
        out
    };
    let together = solved(all, &right);
    for (i, matrix) in batch.iter().enumerate() {
        let alone = solved(matrix, &right[..n]);
        assert!(same(&together[i * n..][..n], &alone), "solution of {i}");
    }
}
