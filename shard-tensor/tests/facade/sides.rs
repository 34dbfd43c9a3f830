//! Right sides of linear equations, whose batch dims broadcast with the matrices'.

use crate::common::{on, pattern};
use shard_tensor::{Placements, ShardTensor, replicate, shard};

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
