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
fn what_does_not_exist_is_nan() {
    let indefinite = [1.0, 2.0, 2.0, 1.0];
    let l = &made(Factors::Cholesky, &indefinite, 2, &[&[2, 2]])[0];
    assert!(l.iter().all(|x| x.is_nan()));
}
