//! Shapes that change, and tensors that are like others.

use shard_tensor::{DType, Launch, Placements, ShardTensor, launch, replicate, shard};

#[test]
fn dims_are_merged_split_and_brought_elsewhere() {
    launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let number = |i: &[usize]| (12 * i[0] + 3 * i[1] + i[2]) as f64;
        for at in [shard(0).sizes([0, 1, 1]), shard(1), shard(2), replicate()] {
            let x = mesh.from_fn([2, 4, 3], at, number)?;
            let all: Vec<f32> = (0..24).map(|n| n as f32).collect();
            let flat = |y: &ShardTensor| {
                Ok::<_, shard_tensor::Error>(y.to_array::<f32>()?.into_raw_vec_and_offset().0)
            };
            for (y, shape) in [
                (x.flatten_dims(0, -1)?, &[24][..]),
                (x.flatten_dims(1, 2)?, &[2, 12]),
                (x.flatten_dims(-3, 1)?, &[8, 3]),
                (x.flatten_dims(1, 1)?, &[2, 4, 3]),
                (x.unflatten(1, [2, 1, 2])?, &[2, 2, 1, 2, 3]),
                (x.unflatten(-1, [3])?, &[2, 4, 3]),
            ] {
                assert_eq!((y.shape(), flat(&y)?), (shape, all.clone()));
            }
            let moved = x.movedim([0, 1], [-1, 0])?;
            assert_eq!(moved.shape(), [4, 3, 2]);
            assert_eq!(flat(&moved.movedim(2, 0)?)?, all);
            assert_eq!(
                moved.slices(ndarray::s![3, 2, 1])?.item()?,
                number(&[1, 3, 2])
            );
        }
        // Shifts as they are computed, of either type.
        let (x, by) = (mesh.from_fn([2, 4, 3], shard(1), number)?, 1_i32);
        let there = x.roll([1, 2], [-by, by])?.roll([1, 2], [by as isize, -1])?;
        assert_eq!(there.to_array::<f32>()?, x.to_array::<f32>()?);
        let number = mesh.ones((), replicate())?;
        assert_eq!(number.flatten_dims(0, -1)?.shape(), [1]);
        let x = mesh.ones([2, 4], replicate())?;
        let refused = [
            x.flatten_dims(1, 0),
            x.flatten_dims(0, 2),
            x.flatten_dims(-3, -1),
            x.unflatten(1, [3, 2]),
            x.unflatten(2, [1]),
            x.unflatten(1, [usize::MAX, 2]),
            x.movedim([0, 0], [0, 1]),
            x.movedim([0, 1], [1, 1]),
            x.movedim(0, [0, 1]),
            x.movedim(2, 0),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            assert!(refused.is_err(), "{i}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_like_a_tensor_has_its_shape_type_and_layout() {
    let drawn = |ranks: usize, at: Placements| {
        let made = Launch::new(ranks).seed(3).dtype(DType::F64).run(|ctx| {
            let x = ctx.mesh_of(ranks)?.ones([5, 3], &at)?.requires_grad()?;
            let like = [
                x.zeros_like()?,
                x.ones_like()?,
                x.full_like(2.5)?,
                x.rand_like()?,
                x.randn_like()?,
            ];
            for y in &like {
                assert_eq!((y.dtype(), y.layout()), (DType::F64, x.layout()));
                assert!(!y.is_parameter() && !y.is_tracked());
            }
            // Of terms of a sum, copies.
            let sums = x.sum(0, false)?;
            assert_eq!(sums.layout().is_partial(), ranks > 1);
            let ones = sums.ones_like()?;
            ones.expect_layout(replicate())?;
            assert_eq!(ones.sum_all()?.item()?, 3.0);
            let count = x.gt_scalar(0.0)?.to(DType::I64)?.full_like(7_i64)?;
            assert_eq!(
                (count.dtype(), count.sum_all()?.item()?),
                (DType::I64, 105.0)
            );
            like.iter()
                .map(|y| y.to_array::<f64>())
                .collect::<shard_tensor::Result<Vec<_>>>()
        });
        made.unwrap().remove(0)
    };
    let one = drawn(1, replicate().into());
    assert_eq!(one, drawn(4, shard(0).sizes([3, 0, 1, 1]).into()));
    assert_eq!(one[2].sum(), 37.5);
    assert_ne!(one[3], one[4]);
}

#[test]
fn a_bare_replicate_is_for_any_mesh() {
    launch(4, |ctx| {
        let mesh = ctx.mesh([("data", 2), ("tensor", 2)])?;
        let x = mesh.ones([4, 2], replicate())?;
        x.expect_layout([replicate(), replicate()])?;
        let y = mesh
            .ones([4, 2], [shard(0), shard(1)])?
            .redistribute(replicate())?;
        y.expect_layout(Placements::replicated())?;
        // Of a list, and of what divides, it must be known which axis is meant.
        assert!(mesh.ones([4, 2], [replicate()]).is_err());
        assert!(mesh.ones([4, 2], shard(0)).is_err());
        Ok(())
    })
    .unwrap();
}
