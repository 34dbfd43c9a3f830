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

/// Layouts of `[2, 3]` on three ranks.
fn layouts() -> [Placements; 4] {
    [
        replicate().into(),
        shard(0).sizes([1, 0, 1]).into(),
        shard(1).sizes([0, 2, 1]).into(),
        shard(1).into(),
    ]
}

fn elements(x: &ShardTensor) -> Vec<f64> {
    x.to_array::<f64>().unwrap().iter().copied().collect()
}

#[test]
fn one_extent_is_found_out() {
    for at in layouts() {
        let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let x = mesh.from_fn([2, 3], &at, |i| (3 * i[0] + i[1]) as f64)?;
            let two = 2_usize;
            for (y, shape) in [
                (x.reshape(-1)?, &[6][..]),
                (x.reshape([-1, 2])?, &[3, 2]),
                (x.reshape([two, 3])?, &[2, 3]),
                (x.reshape([1, two as isize, -1])?, &[1, 2, 3]),
                (x.reshape(vec![3_isize, -1])?, &[3, 2]),
                (x.unflatten(1, [-1, 1])?, &[2, 3, 1]),
            ] {
                assert_eq!(y.shape(), shape);
                assert_eq!(elements(&y), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
            }
            let empty = mesh.zeros([2, 0], replicate())?;
            assert_eq!(empty.reshape([-1, 3])?.shape(), [0, 3]);
            for (i, wrong) in [
                x.reshape([-1, -1]),
                x.reshape([-2, 3]),
                x.reshape([-1, 4]),
                x.reshape([-1, 0]),
                x.reshape([-1_isize, isize::MAX, 4]),
                empty.reshape([-1, 0]),
                x.unflatten(1, [-1, 2]),
                x.unflatten(2, [-1]),
            ]
            .into_iter()
            .enumerate()
            {
                assert!(wrong.is_err(), "{i}");
            }
            let said = x.reshape([-1, 4]).unwrap_err().to_string();
            assert!(said.contains("reshape") && said.contains("[4]"), "{said}");
            Ok(())
        });
        found.unwrap();
    }
}

/// Numbers of `torch.tile`, and of `repeat` along some dims.
#[test]
fn pieces_have_names() {
    launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(12, replicate())?.reshape([2, 6])?;
        for at in [replicate(), shard(0), shard(1)] {
            let x = x.redistribute(at)?;
            let [a, b, c] = x.chunk_array(-1)?;
            let found = [a, b, c].map(|piece| elements(&piece.to(DType::F64).unwrap()));
            assert_eq!(
                found,
                [
                    [0.0, 1.0, 6.0, 7.0],
                    [2.0, 3.0, 8.0, 9.0],
                    [4.0, 5.0, 10.0, 11.0]
                ]
            );
            let [one, five] = x.split_array([1, 5], 1)?;
            assert_eq!((one.shape(), five.shape()), (&[2, 1][..], &[2, 5][..]));
            let [first, second] = x.unbind_array(0)?;
            let rows = [first, second].map(|row| elements(&row.to(DType::F64).unwrap())[5]);
            assert_eq!(rows, [5.0, 11.0]);
            // Names that are too many or too few.
            assert!(x.chunk_array::<4>(1).is_err() && x.chunk_array::<0>(1).is_err());
            assert!(x.split_array([1, 4], 1).is_err());
            assert!(x.unbind_array::<3>(0).is_err() && x.unbind_array::<1>(0).is_err());
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn extents_that_there_are_are_kept() {
    launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(3, shard(0))?.reshape([1, 3])?;
        let wide = x.expand([4, 2, -1])?;
        assert_eq!(wide.shape(), [4, 2, 3]);
        assert_eq!(elements(&wide.to(DType::F64)?)[21..], [0.0, 1.0, 2.0]);
        assert_eq!(x.expand([-1, -1])?.shape(), [1, 3]);
        assert_eq!(x.expand([-1, 3])?.shape(), [1, 3]);
        for wrong in [&[-1, 1, 3][..], &[2, -2], &[-1], &[-1, 4_isize]] {
            assert!(x.expand(wrong).is_err(), "{wrong:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn dims_are_repeated_all_at_once() {
    for (ranks, at) in [1, 3, 3, 3].into_iter().zip(layouts()) {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.from_fn([2, 3], &at, |i| (3 * i[0] + i[1]) as f64)?;
            let x = x.requires_grad()?;
            let y = x.repeat([0, -1], [2, 2])?;
            let rows = [
                [0.0, 1.0, 2.0, 0.0, 1.0, 2.0],
                [3.0, 4.0, 5.0, 3.0, 4.0, 5.0],
            ];
            assert_eq!(elements(&y), [rows, rows].concat().concat());
            assert_eq!(elements(&x.tile([2, 2])?), elements(&y));
            assert_eq!(elements(&x.tile(2)?), rows.concat());
            let three = x.tile([2, 1, 2])?;
            assert_eq!(three.shape(), [2, 2, 6]);
            assert_eq!(elements(&three), [rows, rows].concat().concat());
            assert_eq!(x.repeat(0, 0)?.shape(), [0, 3]);
            assert_eq!(elements(&mesh.ones((), replicate())?.tile(2)?), [1.0, 1.0]);
            // Every copy has a part in the gradient.
            let by = mesh.from_fn([4, 6], replicate(), |i| (6 * i[0] + i[1]) as f64)?;
            let gradients = y.mul(&by)?.sum_all()?.backward()?;
            let expected = [30.0, 34.0, 38.0, 54.0, 58.0, 62.0];
            assert_eq!(elements(&gradients.get(&x)?.unwrap()), expected);
            assert!(x.repeat([0, 1], 2).is_err() && x.repeat(2, 2).is_err());
            Ok(())
        });
        found.unwrap();
    }
}

#[test]
fn diagonals_are_put_and_taken_as_pytorch_does() {
    for (ranks, at) in [1, 3, 3, 3].into_iter().zip(layouts()) {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.from_fn([2, 3], &at, |i| (1 + 3 * i[0] + i[1]) as f64)?;
            let x = x.requires_grad()?;
            for (offset, n) in [(0_i64, 3), (2, 5), (-1, 4)] {
                let y = x.diag_embed(offset, -2, -1)?;
                assert_eq!(y.shape(), [2, n, n]);
                let place = |k: usize| {
                    let away = offset.unsigned_abs() as usize;
                    if offset < 0 {
                        (k + away, k)
                    } else {
                        (k, k + away)
                    }
                };
                let mut expected = ndarray::Array3::<f64>::zeros([2, n, n]);
                for (b, k) in (0..2).flat_map(|b| (0..3).map(move |k| (b, k))) {
                    expected[[b, place(k).0, place(k).1]] = (1 + 3 * b + k) as f64;
                }
                assert_eq!(y.to_array::<f64>()?, expected.into_dyn());
                assert_eq!(elements(&y.diagonal(offset, 1, 2)?), elements(&x));
                let gradients = y.square()?.sum_all()?.backward()?;
                let twice: Vec<f64> = elements(&x).iter().map(|x| 2.0 * x).collect();
                assert_eq!(elements(&gradients.get(&x)?.unwrap()), twice);
            }
            let moved = x.diag_embed(1, 0, 2)?;
            assert_eq!(moved.shape(), [4, 2, 4]);
            assert_eq!(moved.slices(ndarray::s![1, 1, 2])?.item()?, 5.0);
            let upside_down = x.diag_embed(1, 2, 1)?;
            assert_eq!(upside_down.slices(ndarray::s![1, 2, 1])?.item()?, 5.0);
            let list = x.select(0, 1)?;
            assert_eq!(elements(&list.diag(-1)?.diag(-1)?), [4.0, 5.0, 6.0]);
            assert_eq!(elements(&x.diag(1)?), [2.0, 6.0]);
            let number = mesh.ones((), replicate())?;
            let refused = [
                number.diag(0),
                x.unsqueeze(0)?.diag(0),
                number.diag_embed(0, -2, -1),
                x.diag_embed(0, 1, 1),
                x.diag_embed(0, 0, 3),
                x.diag_embed(i64::MIN, 0, 1),
            ];
            for (i, refused) in refused.into_iter().enumerate() {
                assert!(refused.is_err(), "{i}");
            }
            Ok(())
        });
        found.unwrap();
    }
}

#[test]
fn lists_are_coordinates_of_grids_where_they_lie() {
    launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let rows = mesh.arange(4, shard(0).sizes([3, 0, 1]))?.requires_grad()?;
        let (columns, one) = (mesh.arange(2, shard(0))?, mesh.full((), 7.0, replicate())?);
        let before = ctx.ledger().snapshot();
        let grid = ShardTensor::meshgrid(&[&rows, &one, &columns])?;
        assert_eq!(ctx.ledger().since(&before).bytes, 0);
        for (dim, x) in grid.iter().enumerate() {
            assert_eq!(x.shape(), [4, 1, 2]);
            let expected = ndarray::Array3::from_shape_fn((4, 1, 2), |(i, _, k)| {
                [i as f32, 7.0, k as f32][dim]
            });
            assert_eq!(x.to_array::<f32>()?, expected.into_dyn());
        }
        let gradients = grid[0].square()?.sum_all()?.backward()?;
        let gradient = gradients.get(&rows)?.unwrap();
        assert_eq!(
            gradient.to_array::<f32>()?.as_slice(),
            Some(&[0.0, 4.0, 8.0, 12.0][..])
        );
        let (table, whole) = (mesh.ones([2, 2], replicate())?, rows.to(DType::I64)?);
        assert!(ShardTensor::meshgrid(&[&rows, &table]).is_err());
        assert!(ShardTensor::meshgrid(&[&rows, &whole]).is_err());
        assert!(ShardTensor::meshgrid::<ShardTensor>(&[]).is_err());
        let (least, most) = rows.mul(&rows.sub_scalar(2.5)?)?.aminmax(0, true)?;
        assert_eq!((least.shape(), least.item()?), (&[1][..], -1.5));
        assert_eq!(most.item()?, 1.5);
        let (least, most) = one.aminmax(-1, false)?;
        assert_eq!((least.item()?, most.item()?), (7.0, 7.0));
        Ok(())
    })
    .unwrap();
}
