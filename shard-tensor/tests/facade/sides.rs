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
                    for (a, x) in [
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
