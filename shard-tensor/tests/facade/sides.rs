//! Right sides of linear equations, whose batch dims broadcast with the matrices', and whole bases.

use crate::common::{on, pattern};
use shard_tensor::{DType, ErrorClass, Placements, ShardTensor, replicate, shard};

#[test]
fn matrices_and_right_sides_broadcast() {
    const SHAPES: [[&[usize]; 3]; 9] = [
        // Matrices, right sides and what PyTorch gives of them: vectors,
        [&[3, 3], &[3], &[3]],
        [&[4, 3, 3], &[3], &[4, 3]],
        [&[4, 3, 3], &[4, 3], &[4, 3]],
        // and matrices.
        [&[3, 3], &[4, 3, 2], &[4, 3, 2]],
        [&[3, 3], &[5, 4, 3, 2], &[5, 4, 3, 2]],
        [&[4, 3, 3], &[3, 2], &[4, 3, 2]],
        [&[4, 3, 3], &[1, 3, 2], &[4, 3, 2]],
        [&[4, 1, 3, 3], &[5, 3, 2], &[4, 5, 3, 2]],
        [&[3, 3], &[0, 3, 2], &[0, 3, 2]],
    ];
    for ranks in [1, 3] {
        on(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            for [matrices, sides, expected] in SHAPES {
                for place in [Placements::from(shard(0)), replicate().into()] {
                    let some = |shape: &[usize], seed| {
                        mesh.from_fn(shape, place.clone(), |i| pattern(seed, i))
                    };
                    let a =
                        some(matrices, 1)?.add(&mesh.eye([3, 3], replicate())?.mul_scalar(4.0)?)?;
                    let b = some(sides, 2)?;
                    let vectors = expected.len() < matrices.len();
                    let times = |a: &ShardTensor, x: &ShardTensor| match vectors {
                        true => a.matmul(&x.unsqueeze(-1)?)?.squeeze(-1),
                        false => a.matmul(x),
                    };
                    let whole = b.expand(expected)?;
                    let (lu, pivots) = a.lu_factor()?;
                    let symmetric = a.add(&a.transpose(-2, -1)?)?;
                    let (ld, rows) = symmetric.ldl_factor()?;
                    // Pivots of one matrix serve all.
                    let one = pivots.narrow(0, ..1)?;
                    let alike = pivots.eq(&one.expand(pivots.shape())?)?.all(.., false)?;
                    if pivots.ndim() > 1 && alike.item()? == 1.0 {
                        let found = lu.lu_solve(&one, &b, true, false)?;
                        assert!(times(&a, &found)?.allclose(&whole, 1e-10, 1e-10, false)?);
                    }
                    // As the rows of what is turned twice, and of a vector as it is.
                    let turned = match vectors || b.ndim() < 2 {
                        true => lu.lu_solve(&pivots, &b, false, true)?,
                        false => {
                            let b = b.transpose(-2, -1)?;
                            let x = lu.lu_solve(&pivots, &b, false, true)?;
                            x.transpose(-2, -1)?
                        }
                    };
                    for (a, x) in [
                        (a.clone(), lu.lu_solve(&pivots, &b, true, false)?),
                        (a.transpose(-2, -1)?, lu.lu_solve(&pivots, &b, true, true)?),
                        (a.clone(), turned),
                        (symmetric, ld.ldl_solve(&rows, &b)?),
                        (a.clone(), a.solve(&b)?),
                        (a.tril(0)?, a.solve_triangular(&b, false, false)?),
                        (a.clone(), a.lstsq(&b)?),
                    ] {
                        assert_eq!(x.shape(), expected, "{matrices:?} {sides:?}");
                        assert!(times(&a, &x)?.allclose(&whole, 1e-10, 1e-10, false)?);
                    }
                }
            }
            let [a, b] = [&[4, 3, 3][..], &[5, 3, 2]].map(|shape| mesh.ones(shape, shard(0)));
            let refused = a?.solve(&b?).unwrap_err();
            assert_eq!(refused.class(), shard_tensor::ErrorClass::Uniform);
            assert!(refused.to_string().contains("broadcast"), "{refused}");
            Ok(())
        });
    }
}

/// Bases are whole and orthonormal, begin as the small ones do, and give the matrices back.
#[test]
fn factors_have_whole_bases() {
    for ranks in [1, 3] {
        on(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            for shape in [
                &[4, 5, 2][..],
                &[2, 5],
                &[3, 3],
                &[1, 0, 2],
                &[2, 3, 0],
                &[0, 4, 1],
            ] {
                for at in [0, shape.len() as isize - 1] {
                    let mut a = mesh.from_fn(shape, shard(at), |i| pattern(3, i))?;
                    if shape == [4, 5, 2] {
                        // Of the first matrix the first column is that of ones: its reflection meets nothing.
                        let first = |i: &[usize]| f64::from(u8::from(i[0] == 0 && i[2] == 0));
                        let one = |i: &[usize]| f64::from(u8::from(i[0] == 0 && i[1..] == [0, 0]));
                        let mask = mesh.from_fn(shape, shard(0), first)?.to(DType::Bool)?;
                        a = mask.where_(&mesh.from_fn(shape, shard(0), one)?, &a)?;
                    }
                    let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
                    let batch = &shape[..shape.len() - 2];
                    let orthogonal = |q: &ShardTensor, n: usize| {
                        assert_eq!(q.shape(), [batch, &[n, n]].concat());
                        let products = q.transpose(-2, -1)?.matmul(q)?;
                        let eye = mesh.eye([n, n], replicate())?.expand(products.shape())?;
                        assert!(products.allclose(&eye, 1e-12, 1e-12, false)?, "{shape:?}");
                        Ok::<_, shard_tensor::Error>(())
                    };
                    let near =
                        |a: &ShardTensor, b: &ShardTensor| a.allclose(b, 1e-12, 1e-12, false);
                    let (q, r) = a.qr_complete()?;
                    orthogonal(&q, m)?;
                    assert!(near(&q.matmul(&r)?, &a)? && near(&r.triu(0)?, &r)?);
                    let (small, _) = a.qr()?;
                    assert!(near(&q.narrow(-1, ..m.min(n))?, &small)?);
                    let (u, s, vt) = a.svd_full()?;
                    orthogonal(&u, m)?;
                    orthogonal(&vt, n)?;
                    let k = m.min(n);
                    let [left, right] = [u.narrow(-1, ..k)?, vt.narrow(-2, ..k)?];
                    let again = left.mul(&s.unsqueeze(-2)?)?.matmul(&right)?;
                    assert!(near(&again, &a)?, "{shape:?}");
                }
            }
            // Gradients are those of the small factors, where these are all; else there are none.
            let wide = mesh
                .from_fn([2, 3], shard(1), |i| pattern(5, i))?
                .requires_grad()?;
            let of = |(q, r): (ShardTensor, ShardTensor)| {
                q.sum_all()?.add(&r.sum_all()?)?.grad1(&wide, false)
            };
            assert!(of(wide.qr_complete()?)?.allclose(&of(wide.qr()?)?, 1e-12, 1e-12, false)?);
            let tall = wide.transpose(0, 1)?;
            let refused = [
                tall.qr_complete().err(),
                tall.svd_full().err(),
                wide.svd_full().err(),
            ];
            for refused in refused.map(|refused| refused.expect("some vectors could be others")) {
                assert_eq!(refused.class(), ErrorClass::Uniform, "{refused}");
                assert!(refused.to_string().contains("detach"), "{refused}");
            }
            tall.detach().qr_complete()?;
            Ok(())
        });
    }
}

/// In another order the product of the first two alone would have 2^44 elements.
#[test]
fn matrices_in_a_row_are_multiplied_in_the_order_that_takes_least() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let n = 1 << 22;
        let (column, row) = (mesh.ones([n, 1], shard(0))?, mesh.ones([1, n], shard(1))?);
        let x = ShardTensor::multi_dot(&[&column, &row, &column, &mesh.ones([1], replicate())?])?;
        assert_eq!((x.shape(), x.mean_all()?.item()?), (&[n][..], n as f64));
        let x = ShardTensor::multi_dot(&[&row.flatten()?, &column, &row])?;
        assert_eq!(x.shape(), [n]);
        let batch = mesh.ones([2, 3, 3], shard(0))?;
        for wrong in [
            &[][..],
            &[&row],
            &[&row, &batch],
            &[&row, &row.flatten()?, &row],
        ] {
            let refused = ShardTensor::multi_dot(wrong).unwrap_err();
            assert_eq!(refused.class(), ErrorClass::Uniform);
        }
        Ok(())
    });
}

/// Wrong pivots, types and extents are told on all ranks alike; what no factors have as pivots makes NaN.
#[test]
fn pivots_that_do_not_fit_are_refused() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let a = mesh.from_fn([4, 3, 3], shard(0), |i| pattern(1, i))?;
        let b = mesh.ones([4, 3, 2], shard(0))?;
        let (lu, pivots) = a.lu_factor()?;
        let (ld, rows) = a.ldl_factor()?;
        let short = pivots.narrow(1, ..2)?;
        for wrong in [
            lu.lu_solve(&short, &b, true, false),
            ld.ldl_solve(&short, &b),
            lu.lu_solve(&pivots.to(DType::I64)?, &b, true, false),
            ld.ldl_solve(&rows.to(DType::F64)?, &b),
            a.householder_product(&b),
            a.ormqr(&b.select(2, 0)?, &b, false, false),
            a.tensorsolve(&b),
            b.tensorinv(9),
            a.matrix_rank(Some(-1.0), None),
        ] {
            assert_eq!(wrong.unwrap_err().class(), ErrorClass::Uniform);
        }
        let none = pivots.mul_scalar(0.0)?;
        for x in [
            lu.lu_solve(&none, &b, true, false)?,
            ld.ldl_solve(&none, &b)?,
        ] {
            assert_eq!(x.isnan()?.all(.., false)?.item()?, 1.0);
        }
        // Which have gradients by right sides alone, or none.
        let a = a.requires_grad()?;
        let told = |x: ShardTensor| x.sum_all()?.backward().map(drop);
        for refused in [
            told(a.geqrf()?.0),
            told(a.ldl_factor()?.0),
            told(a.ldl_solve(&rows, &b)?),
        ] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("has no derivative"), "{refused}");
        }
        let b = b.requires_grad()?;
        let slopes = ld.ldl_solve(&rows, &b)?.sum_all()?.grad1(&b, false)?;
        let same = ld.ldl_solve(&rows, &b.ones_like()?)?;
        assert!(slopes.allclose(&same, 1e-12, 1e-12, false)?);
        Ok(())
    });
}
