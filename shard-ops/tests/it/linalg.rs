//! Factors of matrices, and solutions with them.

use crate::applied::validated;
use crate::ranks::{on_ranks, received, whole};
use shard_ops::elementwise::add;
use shard_ops::linalg::{
    cholesky, det, eig, eigh, geqrf, householder_product, inv, ldl_factor, ldl_solve, lstsq, lu,
    lu_factor, lu_solve, matrix_exp, matrix_power, ormqr, pinv, qr, slogdet, solve,
    solve_triangular, svd,
};
use shard_ops::matmul::matmul;
use shard_ops::shape::{transpose, unsqueeze};
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

/// Whether eigenvalues are real or not, slopes are those of what is found.
#[test]
fn eigenvectors_have_one_ranks_slopes_under_all_layouts_of_the_batch() {
    for n in [1, 2, 3, 4] {
        let operands = [Tensor::drawn([4, n, n], 3)];
        let tried = validated("eig", &operands, &|e, v| eig(e, &v[0]).map(drop));
        assert!(tried.slopes > 0, "{n}");
    }
}

#[test]
fn packed_factors_are_one_ranks_under_all_layouts_of_the_batch() {
    for shape in [[4, 3, 3], [3, 4, 2], [3, 2, 4]] {
        let operands = [Tensor::drawn(shape, 5)];
        validated("geqrf", &operands, &|e, v| geqrf(e, &v[0]).map(drop));
        validated("interchanges", &operands, &|e, v| {
            lu_factor(e, &v[0]).map(drop)
        });
    }
    let operands = [Tensor::drawn([4, 3, 3], 6)];
    validated("ldl_factor", &operands, &|e, v| {
        ldl_factor(e, &v[0]).map(drop)
    });
}

#[test]
fn packed_factors_solve_on_either_side() {
    on_ranks(&[2], |cx, engine| {
        let of = |shape: &[usize], salt: usize| {
            let layout = Layout::parse(cx.mesh(), shape, "S(0)").unwrap();
            let entry = |i: &[usize]| {
                let flat = i.iter().fold(salt, |at, &i| 5 * at + i);
                ((flat * flat) % 13) as f64 - 5.5
            };
            Value::new(Array::from_fn::<f64>(cx, &layout, entry).unwrap())
        };
        let (a, b, list) = (of(&[4, 3, 3], 1), of(&[4, 3, 3], 2), of(&[4, 3], 3));
        let [factors, pivots] = lu_factor(engine, &a).unwrap();
        let turned = transpose(engine, &a, 1, 2).unwrap();
        let near = |found: &Value, expected: &Value| {
            let (found, expected) = (whole(engine, found), whole(engine, expected));
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-10;
            found.iter().zip(&expected).all(near)
        };
        for (left, turns) in [(true, false), (true, true), (false, false), (false, true)] {
            let of = if turns { &turned } else { &a };
            let x = lu_solve(engine, &factors, &pivots, &b, left, turns).unwrap();
            let [first, second] = if left { [of, &x] } else { [&x, of] };
            assert!(
                near(&matmul(engine, first, second).unwrap(), &b),
                "{left} {turns}"
            );
            // A vector is a column, or a row.
            let x = lu_solve(engine, &factors, &pivots, &list, left, turns).unwrap();
            let of = if left == turns { &turned } else { &a };
            let column = unsqueeze(engine, &x, 2).unwrap();
            let made = matmul(engine, of, &column).unwrap();
            assert!(
                near(&made, &unsqueeze(engine, &list, 2).unwrap()),
                "{left} {turns}"
            );
        }
    });
}

/// Those in pieces are brought together, a share of the batch for each rank if there is one; those that are not are left where they are.
#[test]
fn matrices_in_pieces_have_one_ranks_factors_and_whole_ones_do_not_move() {
    let pseudo: Of = |e, x| pinv(e, x, None).map(|found| vec![found]);
    let below: Of = |e, x| matrix_power(e, x, -1).map(|found| vec![found]);
    let solved: Of = |e, x| solve(e, x, x).map(|found| vec![found]);
    let triangle: Of = |e, x| solve_triangular(e, x, x, true, false).map(|found| vec![found]);
    let least: Of = |e, x| lstsq(e, x, x).map(|found| vec![found]);
    let packed: Of = |e, x| {
        let [factors, pivots] = lu_factor(e, x)?;
        Ok(vec![
            lu_solve(e, &factors, &pivots, x, true, false)?,
            factors,
        ])
    };
    let symmetric: Of = |e, x| {
        let x = &add(e, x, &transpose(e, x, x.ndim() - 2, x.ndim() - 1)?)?;
        let [factors, pivots] = ldl_factor(e, x)?;
        Ok(vec![ldl_solve(e, &factors, &pivots, x)?, factors])
    };
    let reflected: Of = |e, x| {
        let made = geqrf(e, x)?;
        let q = householder_product(e, &made[0], &made[1])?;
        Ok(vec![ormqr(e, &made[0], &made[1], x, true, true)?, q])
    };
    let all: [Of; 18] = [
        inv,
        cholesky,
        qr,
        lu,
        svd,
        eigh,
        det,
        slogdet,
        matrix_exp,
        pseudo,
        below,
        solved,
        triangle,
        least,
        packed,
        symmetric,
        reflected,
        |e, x| eig(e, x).map(Vec::from),
    ];
    on_ranks(&[2, 2], |cx, engine| {
        let of = |shape: &[usize], placed: &str| {
            let layout = Layout::parse(cx.mesh(), shape, placed).unwrap();
            let entry = |i: &[usize]| {
                let [.., row, column] = i else {
                    return 1.0;
                };
                2.0 / (1 + row.abs_diff(*column)) as f64
                    + if row == column { i[0] as f64 } else { 0.0 }
            };
            Value::new(Array::from_fn::<f64>(cx, &layout, entry).unwrap())
        };
        let batch = ["S(1) R", "R S(2)", "S(0)[1,2] S(2)", "S(2)[4,0] S(1)[1,3]"];
        let alone = ["S(0) R", "S(0) S(1)", "R S(1)[1,3]"];
        for (i, f) in all.iter().enumerate() {
            for (shape, layouts) in [(&[3, 4, 4][..], &batch[..]), (&[4, 4], &alone)] {
                let expected: Vec<_> = f(engine, &of(shape, "R R")).unwrap();
                for placed in layouts {
                    let found = f(engine, &of(shape, placed)).unwrap();
                    for (found, expected) in found.iter().zip(&expected) {
                        let (found, expected) = (whole(engine, found), whole(engine, expected));
                        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
                        assert!(found.iter().zip(&expected).all(near), "{i} of {placed}");
                    }
                }
            }
            let x = of(&[3, 4, 4], "S(0)[1,2] R");
            assert_eq!(received(cx, || drop(f(engine, &x).unwrap())), 0, "{i}");
        }
        // Each rank along the axis has a share of the batch, or of the columns.
        let laid = |value: &Value| value.layout().to_string();
        let inverse = &inv(engine, &of(&[3, 4, 4], "S(1) R")).unwrap()[0];
        assert_eq!(laid(inverse), "S(0) R");
        let (a, b) = (of(&[4, 4], "R R"), of(&[4, 4], "S(1)[1,3] R"));
        let mut x = None;
        assert_eq!(received(cx, || x = solve(engine, &a, &b).ok()), 0);
        assert_eq!(laid(&x.unwrap()), "S(1)[1,3] R");
        let x = solve_triangular(engine, &a, &of(&[4, 4], "R S(0)"), true, false).unwrap();
        assert_eq!(laid(&x), "R S(1)");
        // A vector is one column, which nobody divides.
        let x = solve(engine, &a, &of(&[4], "S(0) R")).unwrap();
        assert_eq!(laid(&x), "R R");
    });
}
