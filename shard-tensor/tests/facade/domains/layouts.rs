//! Cases 1 to 16: pieces, moves, and what terms of sums do.

use super::*;

#[test]
fn case_1_uneven_parts_to_every_layout() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let sizes = uneven(1, 3);
        let x = field(&mesh, &[5, sizes.iter().sum(), 7], [shard(1).sizes(sizes)])?;
        for to in [shard(1), replicate(), shard(2)] {
            is_field(&x.redistribute([to])?)?;
        }
        Ok(())
    });
}

#[test]
fn case_2_and_on_two_axes() {
    for shape in [[2, 2], [2, 4]] {
        on(shape.iter().product(), |ctx| {
            let mesh = ctx.mesh_of(shape)?;
            let (a, b) = (uneven(1, shape[0]), uneven(2, shape[1]));
            let extents = [3, a.iter().sum(), b.iter().sum(), 5];
            let x = field(&mesh, &extents, [shard(1).sizes(a), shard(2).sizes(b)])?;
            for to in [
                [shard(1), shard(2)],
                [replicate(), shard(2)],
                [shard(1), replicate()],
                [replicate(), replicate()],
                [replicate(), shard(1)],
                [shard(2), replicate()],
                [shard(2), shard(1)],
                [shard(3), replicate()],
            ] {
                let y = x.redistribute(to.clone())?;
                assert_eq!(y.layout(), &mesh.layout(extents, to)?);
                is_field(&y)?;
            }
            Ok(())
        });
    }
}

#[test]
fn case_3_an_empty_part() {
    on(3, |ctx| {
        let x = field(&ctx.mesh_of(3)?, &[6, 8, 5], [shard(1).sizes([4, 4, 0])])?;
        is_field(&x.redistribute([shard(2)])?)?;
        is_field(&x.redistribute([replicate()])?)
    });
}

#[test]
fn case_4_empty_parts_on_two_axes() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let x = field(
            &mesh,
            &[3, 4, 12, 5],
            [shard(1).sizes([4, 0]), shard(2).sizes([4, 8])],
        )?;
        is_field(&x.redistribute([shard(2), shard(1)])?)?;
        is_field(&x.redistribute([replicate(), shard(3)])?)
    });
}

#[test]
fn case_5_planned_and_negotiated_sizes_are_one() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let sizes = uneven(1, 3);
        let n: usize = sizes.iter().sum();
        let planned = [shard(1).sizes(sizes.clone())];
        let shape = IxDyn(&[2, sizes[ctx.rank()], 3]);
        let piece = ArrayD::from_shape_fn(shape, |i| pattern(ctx.rank(), &[i[0], i[1], i[2]]));
        let gradient = |sizes: LocalSizes| -> Result<(Vec<f64>, Vec<f64>)> {
            let x = match sizes {
                LocalSizes::Infer => mesh.from_local(&piece, [shard(1)], sizes)?,
                LocalSizes::Global(_) => mesh.from_local(&piece, planned.clone(), sizes)?,
            };
            let x = x.requires_grad()?;
            let y = x.redistribute([shard(2)])?;
            let gradients = y.square()?.sum_all()?.backward()?;
            Ok((numbers(&y)?, numbers(&gradients.get(&x)?.unwrap())?))
        };
        assert!(gradient(LocalSizes::Infer)? == gradient(LocalSizes::Global([2, n, 3].into()))?);
        Ok(())
    });
}

#[test]
fn case_6_fewer_columns_than_ranks() {
    on(4, |ctx| {
        let sizes: Vec<usize> = (0..4).map(|r| 4 * (r + 1)).collect();
        let x = field(&ctx.mesh_of(4)?, &[8, 40, 2], [shard(1).sizes(sizes)])?;
        let y = x.redistribute([shard(2)])?;
        assert_eq!(y.local_shape()[2], [1, 1, 0, 0][ctx.rank()]);
        is_field(&y)
    });
}

#[test]
fn case_7_chains_of_moves() {
    on(4, |ctx| {
        let sizes = uneven(1, 4);
        let shape = [3, sizes.iter().sum(), 5];
        let x = field(&ctx.mesh_of(4)?, &shape, [shard(1).sizes(sizes)])?;
        let back = x
            .redistribute([shard(2)])?
            .redistribute([replicate()])?
            .redistribute([shard(1)])?;
        is_field(&back)?;
        // A layout that is asked for by name alone is by chunk, whatever was before; one can ask for that which was.
        assert_eq!(back.layout(), &x.mesh().layout(shape, [shard(1)])?);
        let same = back.redistribute(x.layout())?;
        assert_eq!(same.layout(), x.layout());
        is_field(&same)
    });
}

fn ranks_and_one(mesh: &Mesh, shape: [usize; 2]) -> Result<ShardTensor> {
    let mine = 1.0 + mesh.context().rank() as f64;
    let piece = ArrayD::from_elem(IxDyn(&shape), mine);
    mesh.from_local(&piece, [partial(ReduceOp::Sum)], LocalSizes::Infer)
}

#[test]
fn case_8_terms_to_copies_and_parts() {
    on(3, |ctx| {
        let x = ranks_and_one(&ctx.mesh_of(3)?, [8, 8])?;
        for to in [replicate(), shard(0), shard(0).sizes([1, 0, 7])] {
            let y = x.redistribute([to])?;
            assert!(y.to_local_array::<f64>()?.iter().all(|&x| x == 6.0));
            assert_eq!(numbers(&y)?, [6.0; 64]);
        }
        Ok(())
    });
}

#[test]
fn case_9_gradients_of_terms() {
    on(3, |ctx| {
        let x = ranks_and_one(&ctx.mesh_of(3)?, [8, 8])?.requires_grad()?;
        let y = x.redistribute([replicate()])?;
        let dx = y.sum_all()?.backward()?.get(&x)?.unwrap();
        assert_eq!(
            dx.to_local_array::<f64>()?.into_iter().collect::<Vec<_>>(),
            [1.0; 64]
        );
        assert!(dx.placements()[0].is_replicate());
        Ok(())
    });
}

#[test]
fn case_10_scatter_from_every_rank() {
    for placements in [[shard(1), replicate()], [shard(1), shard(2)]] {
        on(4, |ctx| {
            let mesh = ctx.mesh_of([2, 2])?;
            let whole = ArrayD::from_shape_fn(IxDyn(&[3, 14, 15, 2]), |i| {
                pattern(0, &[i[0], i[1], i[2], i[3]])
            });
            for root in 0..4 {
                let mine = (ctx.rank() == root).then(|| whole.view());
                let x = mesh
                    .scatter(root, mine, placements.clone())?
                    .requires_grad()?;
                assert_eq!(
                    x.to_local_array::<f64>()?.len(),
                    x.local_shape().iter().product::<usize>()
                );
                assert!(x.is_parameter());
                let dx = x.square()?.sum_all()?.backward()?.get(&x)?.unwrap();
                assert_eq!(dx.to_array::<f64>()?, &whole * 2.0);
            }
            Ok(())
        });
    }
}

#[test]
fn case_11_offsets_are_where_pieces_lie() {
    on(4, |ctx| {
        let rows = 42 + (17 * ctx.rank() * ctx.rank()) % 43;
        let piece =
            ArrayD::from_shape_fn(IxDyn(&[2, rows]), |i| pattern(ctx.rank(), &[i[0], i[1]]));
        let x = ctx
            .mesh_of(4)?
            .from_local(&piece, [shard(1)], LocalSizes::Infer)?;
        let (whole, at) = (x.to_array::<f64>()?, x.offsets().unwrap()[1]);
        let mine = whole.slice_axis(ndarray::Axis(1), (at..at + rows).into());
        assert_eq!(mine, piece.view());
        Ok(())
    });
}

#[test]
fn case_12_copies_that_are_used_differently() {
    on(3, |ctx| {
        let w = ctx.mesh_of(3)?.ones(4, [replicate()])?.requires_grad()?;
        let own = w
            .to_local_with(GradAs::Partial)?
            .mul_scalar(1.0 + ctx.rank() as f64)?;
        let dw = own.sum_all()?.backward()?.get(&w)?.unwrap();
        assert_eq!((numbers(&dw)?, dw.layout()), (vec![6.0; 4], w.layout()));
        Ok(())
    });
}

#[test]
fn case_13_a_weight_for_all() {
    equal(
        &[4],
        &[
            operand(&[7], replicate()),
            operand(&[5, 7], shard(1).sizes([0, 4, 1, 2])),
        ],
        &|x| x[1].mul(&x[0]),
    );
}

#[test]
fn case_14_sums_and_means() {
    for keep in [false, true] {
        for dims in [vec![0], vec![1], vec![0, 1], vec![0, 1, 2]] {
            let x = [operand(&[2, 13, 2], shard(1).sizes([9, 0, 4]))];
            equal(&[3], &x, &|x| x[0].sum(dims.clone(), keep));
            equal(&[3], &x, &|x| x[0].mean(dims.clone(), keep));
        }
    }
}

#[test]
fn case_15_a_masked_loss() {
    let x = [operand(&[2, 40, 5], shard(1).sizes([25, 3, 12]))];
    equal(&[3], &x, &|x| {
        let mesh = x[0].mesh();
        let mask = mesh.from_fn([2, 40, 1], x[0].placements(), |i| f64::from(i[1] % 3 == 0))?;
        let errors = x[0].square()?.mul(&mask)?;
        errors.sum([0, 1], false)?.sum_all()?.div(&mask.sum_all()?)
    });
}

#[test]
fn case_16_a_partial_cotangent() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.ones([4, 2], [shard(0)])?.requires_grad()?;
        let y = x.sum([0, 1], false)?;
        let piece = ndarray::arr0(1.0 + ctx.rank() as f64);
        let seed = mesh.from_local(&piece, [partial(ReduceOp::Sum)], LocalSizes::Infer)?;
        let dx = y.backward_with(&seed)?.get(&x)?.unwrap();
        assert_eq!((numbers(&dx)?, dx.layout()), (vec![6.0; 8], x.layout()));
        Ok(())
    });
}
