//! Factors of matrices, and solutions with them.

use crate::applied::validated;
use crate::ranks::on_ranks;
use shard_comm::ErrorClass;
use shard_ops::linalg::{
    cholesky, det, eigh, inv, lstsq, lu, matrix_exp, matrix_power, pinv, qr, slogdet, solve,
    solve_triangular, svd,
};
use shard_ops::testing::Tensor;
use shard_ops::{Exec, Result, Value};
use shard_redistribute::Array;
use shard_spec::Layout;

type Of = fn(&dyn Exec, &Value) -> Result<Vec<Value>>;

/// Symmetric and positive definite, one for each of a batch.
fn positive(batch: usize, n: usize) -> Tensor {
    let entry = |i: usize| {
        let (b, r, c) = (i / (n * n), i / n % n, i % n);
        let near = 1.0 / (1.0 + r.abs_diff(c) as f64) + 0.1 * ((r * c + b) % 3) as f64;
        near + if r == c { 2.0 + r as f64 } else { 0.0 }
    };
    let all: Vec<f64> = (0..batch * n * n).map(entry).collect();
    Tensor::new([batch, n, n], all)
}

#[test]
fn square_matrices_have_one_ranks_factors_under_all_layouts_of_the_batch() {
    let all: [(&str, Of); 4] = [
        ("inv", inv),
        ("det", det),
        ("slogdet", slogdet),
        ("matrix_exp", matrix_exp),
    ];
    for (name, of) in all {
        let tried = validated(name, &[positive(5, 3)], &|e, v| of(e, &v[0]).map(drop));
        assert!(tried.slopes > 0, "{name}");
    }
}

#[test]
fn determinants_of_singular_matrices_have_slopes() {
    // Of rank 2, 1 and 0, and one that has an inverse.
    let bases: [[f64; 9]; 4] = [
        [1., 2., 3., 4., 5., 6., 7., 8., 9.],
        [1., 2., 3., 2., 4., 6., -1., -2., -3.],
        [0.; 9],
        [2., 1., 0., 1., 3., 1., 0., 1., 4.],
    ];
    let operands = [Tensor::new([4, 3, 3], bases.concat())];
    let tried = validated("det", &operands, &|e, v| det(e, &v[0]).map(drop));
    assert!(tried.slopes > 0);
}

#[test]
fn solutions_are_one_ranks_under_all_layouts_of_the_batch() {
    let operands = [positive(5, 3), Tensor::drawn([5, 3, 2], 4)];
    let tried = validated("solve", &operands, &|e, v| solve(e, &v[0], &v[1]).map(drop));
    assert!(tried.slopes > 0);
}

#[test]
fn triangles_are_solved_under_all_layouts_of_the_batch() {
    for (upper, unit) in [(false, false), (false, true), (true, false), (true, true)] {
        let operands = [positive(5, 3), Tensor::drawn([5, 3, 2], 4)];
        let tried = validated("solve_triangular", &operands, &|e, v| {
            solve_triangular(e, &v[0], &v[1], upper, unit).map(drop)
        });
        assert!(tried.slopes > 0, "{upper} {unit}");
    }
}

#[test]
fn pseudo_inverses_are_one_ranks_under_all_layouts_of_the_batch() {
    for [rows, columns] in [[5, 3], [3, 5], [4, 4]] {
        let a = Tensor::drawn([4, rows, columns], 7);
        let tried = validated("pinv", &[a], &|e, v| pinv(e, &v[0], None).map(drop));
        assert!(tried.slopes > 0, "{rows} x {columns}");
    }
}

#[test]
fn factors_of_any_matrix_have_the_slopes_of_their_vjps() {
    let all: [(&str, Of); 3] = [("qr", qr), ("lu", lu), ("svd", svd)];
    for (name, of) in all {
        for shape in [[4, 4, 3], [4, 3, 5], [4, 3, 3]] {
            let operands = [Tensor::drawn(shape, 5)];
            let tried = validated(name, &operands, &|e, v| of(e, &v[0]).map(drop));
            assert!(tried.slopes > 0, "{name} of {shape:?}");
        }
    }
}

#[test]
fn matrices_in_pieces_are_refused_on_all_ranks_with_the_fix_and_batches_are_not() {
    let pseudo: Of = |e, x| pinv(e, x, None).map(|found| vec![found]);
    let below: Of = |e, x| matrix_power(e, x, -1).map(|found| vec![found]);
    let all: [Of; 11] = [
        inv, cholesky, qr, lu, svd, eigh, det, slogdet, matrix_exp, pseudo, below,
    ];
    let told = on_ranks(&[2], |cx, engine| {
        let of = |placed: &str| {
            let layout = Layout::parse(cx.mesh(), &[3, 4, 4], placed).unwrap();
            let entry = |i: &[usize]| if i[1] == i[2] { 2.0 } else { 0.25 };
            Value::new(Array::from_fn::<f64>(cx, &layout, entry).unwrap())
        };
        let before = cx.world().ledger().snapshot();
        let mut told = Vec::new();
        for placed in ["S(1)", "S(2)"] {
            let x = of(placed);
            let errors = all.iter().map(|f| f(engine, &x).unwrap_err());
            let solved = [
                solve(engine, &x, &of("R")),
                solve(engine, &of("R"), &x),
                solve_triangular(engine, &x, &of("R"), true, false),
                lstsq(engine, &of("R"), &x),
            ];
            for error in errors.chain(solved.map(Result::unwrap_err)) {
                assert_eq!(error.class(), ErrorClass::Uniform);
                told.push(error.to_string());
            }
        }
        assert!(all.iter().all(|f| f(engine, &of("S(0)[1,2]")).is_ok()));
        assert_eq!(cx.world().ledger().since(&before).bytes, 0);
        told
    });
    assert_eq!(told[0], told[1]);
    assert!(
        told[0].iter().all(|error| error.contains("redistribute")),
        "{told:?}"
    );
}
