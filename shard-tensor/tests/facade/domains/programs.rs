//! Cases 34 to 46: shapes, rows by index, what does not fit, and models.

use super::*;

#[test]
fn case_34_views() {
    for (from, to) in [
        (vec![4, 12, 8, 4], vec![4, 12, 32]),
        (vec![4, 12, 32], vec![4, 12, 8, 4]),
        (vec![4, 12, 8], vec![4, 96]),
        (vec![2, 0, 3], vec![0, 6]),
    ] {
        on(3, |ctx| {
            let x = field(&ctx.mesh_of(3)?, &from, [shard(1)])?;
            let y = x.reshape(to.clone())?;
            assert_eq!(y.shape(), to);
            is_field(&y)
        });
    }
    on(3, |ctx| {
        let x = field(&ctx.mesh_of(3)?, &[48], [shard(0)])?;
        is_field(&x.reshape([8, 6, 1])?)?;
        assert_eq!(x.reshape([7, 7]).unwrap_err().class(), ErrorClass::Uniform);
        Ok(())
    });
}

#[test]
fn case_35_nothing_is_permuted() {
    on(2, |ctx| {
        is_field(&field(&ctx.mesh_of(2)?, &[2, 6], [shard(1)])?.reshape(12)?)
    });
}

#[test]
fn case_36_dims_come_and_go() {
    let x = [operand(&[5, 6, 7], shard(2).sizes([3, 0, 4]))];
    for dim in [-4, -2, -1, 0, 1, 3] {
        equal(&[3], &x, &|x| {
            let more = x[0].unsqueeze(dim)?;
            assert_eq!(more.squeeze(dim)?.layout(), x[0].layout());
            Ok(more)
        });
    }
    equal(&[3], &x, &|x| x[0].select(1, 2));
    equal(&[3], &x, &|x| {
        let index = x[0]
            .mesh()
            .from_fn([9], [shard(0)], |i| ((i[0] * i[0]) % 7) as f64)?;
        x[0].index_select(2, &index.to(DType::I64)?)
    });
}

#[test]
fn case_37_rows_by_index() {
    let x = [operand(&[29, 4], shard(0).sizes([20, 0, 9]))];
    equal(&[3], &x, &|x| {
        let mesh = x[0].mesh();
        let index = mesh.from_fn([11, 3], [shard(0)], |i| {
            ((i[0] * 7 + i[1] * 5) % 41) as f64 - 12.0
        })?;
        x[0].index_select(0, &index.to(DType::I64)?)
    });
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let table = mesh.ones([3000, 4], [shard(0)])?;
        let index = mesh
            .from_fn([30], [shard(0)], |i| (i[0] * 97 % 3000) as f64)?
            .to(DType::I64)?;
        let before = ctx.ledger().snapshot();
        table.index_select(0, &index)?;
        let bytes = ctx.ledger().since(&before).bytes;
        assert!(
            bytes < 1000 * 4 * 8,
            "{bytes} bytes came: the table was gathered"
        );
        Ok(())
    });
}

#[test]
fn case_38_what_each_sends_to_each() {
    on(4, |ctx| {
        let (comm, me) = (ctx.world(), ctx.rank());
        let send: Vec<usize> = (0..4).map(|k| me + k).collect();
        let rows = (0..4).flat_map(|k| std::iter::repeat_n((100 * me + k) as f64, me + k));
        let mine = comm
            .device()
            .upload_slice(&rows.collect::<Vec<f64>>())
            .unwrap();
        let came = comm.all_to_all_v(&mine, &send, &send).unwrap();
        let expected =
            (0..4).flat_map(|src| std::iter::repeat_n((100 * src + me) as f64, src + me));
        assert_eq!(
            came.to_vec::<f64>().unwrap(),
            expected.collect::<Vec<f64>>()
        );
        // Only rank 0 sends.
        let (send, receive) = if me == 0 {
            ([1, 2, 3, 4], [1, 0, 0, 0])
        } else {
            ([0; 4], [me + 1, 0, 0, 0])
        };
        let mine = comm
            .device()
            .upload_slice(&vec![7.0_f64; send.iter().sum()])
            .unwrap();
        let came = comm.all_to_all_v(&mine, &send, &receive).unwrap();
        assert_eq!(came.to_vec::<f64>().unwrap(), vec![7.0; me + 1]);
        Ok(())
    });
}

#[test]
fn case_39_what_is_lent_returns() {
    // A ring of 18 nodes on 3 ranks; each sees itself and the two after it.
    let x = [operand(&[18, 4], shard(0))];
    equal(&[3], &x, &|x| {
        let mesh = x[0].mesh();
        let at = |next: usize| {
            mesh.from_fn([18], [shard(0)], move |i| ((i[0] + next) % 18) as f64)?
                .to(DType::I64)
        };
        let ahead = x[0]
            .index_select(0, &at(1)?)?
            .add(&x[0].index_select(0, &at(2)?)?)?;
        x[0].mul(&ahead)
    });
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.ones([18, 4], [shard(0)])?.requires_grad()?;
        let ghosts = mesh.from_fn([24], [shard(0)], |i| {
            ((i[0] / 8 * 6 + i[0] % 8) % 18) as f64
        })?;
        let seen = x.index_select(0, &ghosts.to(DType::I64)?)?;
        let dx = numbers(&seen.sum_all()?.backward()?.get(&x)?.unwrap())?;
        // Each rank has its 6 and borrows the next 2: these have one borrower more.
        let expected = (0..18).flat_map(|i| [if i % 6 < 2 { 2.0 } else { 1.0 }; 4]);
        assert_eq!(dx, expected.collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn case_40_rows_that_do_not_line_up() {
    let (a, b) = (shard(0).sizes([2, 1, 1, 1]), shard(0).sizes([1, 1, 1, 2]));
    let x = [operand(&[5, 3], a.clone()), operand(&[5, 3], b.clone())];
    equal(&[4], &x, &|x| x[0].add(&x[1]));
    equal(&[4], &x, &|x| x[0].mul(&x[1]));
    equal(
        &[4],
        &[operand(&[5, 3], a.clone()), operand(&[5, 1], b.clone())],
        &|x| x[0].add(&x[1]),
    );
    equal(
        &[4],
        &[operand(&[5, 3], a), operand(&[1, 3], replicate())],
        &|x| x[0].add(&x[1]),
    );
    let (q, k) = (shard(2).sizes([2, 1, 1, 1]), shard(2).sizes([1, 1, 1, 2]));
    let x = [
        operand(&[1, 1, 5, 3], q),
        operand(&[1, 1, 5, 3], k.clone()),
        operand(&[1, 1, 5, 3], k),
    ];
    equal(&[4], &x, &|x| {
        x[0].attention(&x[1], &x[2], None, &Attention::new())
    });
    equal(
        &[4],
        &[
            operand(&[5, 3], shard(0).sizes([2, 1, 1, 1])),
            operand(&[5, 3], b),
        ],
        &|x| {
            let index = x[0]
                .mesh()
                .from_fn([5, 3], [shard(1)], |i| ((i[0] * 2 + i[1]) % 5) as f64)?;
            x[0].scatter_add(0, &index.to(DType::I64)?, &x[1])
        },
    );
}

#[test]
fn case_41_cross_products() {
    let cross = |x: &[ShardTensor]| x[0].cross(&x[1], -1);
    let by = || shard(0).sizes([0, 12, 7]);
    equal(
        &[3],
        &[operand(&[19, 3], by()), operand(&[19, 3], by())],
        &cross,
    );
    equal(
        &[3],
        &[operand(&[19, 3], by()), operand(&[1, 3], replicate())],
        &cross,
    );
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.distribute(&array![[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [shard(0)])?;
        let y = mesh.distribute(&array![[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [shard(0)])?;
        assert_eq!(numbers(&cross(&[x, y])?)?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        Ok(())
    });
}

#[test]
fn case_42_layouts_are_what_they_say() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let of = |sizes: [usize; 3]| mesh.layout([6, 2], [shard(0).sizes(sizes)]);
        let (a, b): (Layout, Layout) = (of([2, 2, 2])?, of([1, 2, 3])?);
        assert!(a != b && a.hash128() != b.hash128());
        // By chunk is the same table, however it was said.
        let c = mesh.layout([6, 2], [shard(0)])?;
        assert!(a == c && a.hash128() == c.hash128());
        Ok(())
    });
}

#[test]
fn case_43_what_cannot_be() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let refused = |placements: Placements| mesh.layout([6, 2], placements).unwrap_err().class();
        for placements in [
            Placements::from(vec![shard(0), replicate()]),
            [shard(0).sizes([])].into(),
            [shard(0).sizes([3, 4])].into(),
            [shard(2)].into(),
        ] {
            assert_eq!(
                refused(placements.clone()),
                ErrorClass::Uniform,
                "{placements:?}"
            );
        }
        let x = mesh.ones([6, 2], [shard(0)])?;
        let to_terms = x.redistribute([partial(ReduceOp::Sum)]).unwrap_err();
        assert_eq!(to_terms.class(), ErrorClass::Uniform);
        // A piece that is not what the table says is refused on all ranks.
        let piece = Array1::<f64>::zeros(3 + ctx.rank());
        let error = mesh
            .from_local(&piece, [shard(0)], LocalSizes::Global(6.into()))
            .unwrap_err();
        assert_eq!(error.class(), ErrorClass::Agreed);
        Ok(())
    });
}

#[test]
fn case_44_models() {
    // A U-Net in space, and a transformer of patches.
    let volume = [
        operand(&[1, 2, 9, 6, 5], shard(2).sizes([4, 0, 5])),
        operand(&[3, 2, 3, 3, 3], replicate()),
        operand(&[2, 5, 3, 3, 3], replicate()),
    ];
    equal(&[3], &volume, &|x| {
        let fine = x[0]
            .conv3d(&x[1], None, ConvOptions::new().padding(1))?
            .group_norm(3, None, None, 1e-5)?
            .silu()?;
        let coarse = fine.max_pool(PoolOptions::new(2).ceil_mode(true))?;
        let up = coarse.interpolate(&fine.shape()[2..], ResampleMode::Linear)?;
        let both = ShardTensor::cat(&[&up.narrow(1, 0..2)?, &fine], 1)?;
        both.conv3d(&x[2], None, ConvOptions::new().padding(1))
    });
    let image = [
        operand(&[2, 1, 16, 12], [shard(2), shard(3)]),
        operand(&[8, 1, 4, 4], Placements::replicated()),
        operand(&[24, 8], Placements::replicated()),
        operand(&[8, 8], Placements::replicated()),
    ];
    equal(&[2, 2], &image, &|x| {
        let patches = x[0].conv2d(&x[1], None, ConvOptions::new().stride(4))?;
        let tokens = patches.reshape([2, 8, 12])?.transpose(1, 2)?;
        let qkv = tokens
            .layer_norm(1, None, None, 1e-5)?
            .linear(&x[2], None)?;
        let heads = |k: usize| {
            qkv.narrow(2, 8 * k..8 * k + 8)?
                .reshape([2, 12, 2, 4])?
                .transpose(1, 2)
        };
        let seen = heads(0)?.attention(&heads(1)?, &heads(2)?, None, &Attention::new())?;
        let joined = seen
            .transpose(1, 2)?
            .reshape([2, 12, 8])?
            .linear(&x[3], None)?;
        tokens.add(&joined)?.gelu()
    });
}

#[test]
fn case_45_distances_to_a_surface() {
    let x = [
        operand(&[143, 3], shard(0)),
        operand(&[93, 3], shard(0).sizes([90, 0, 3])),
    ];
    equal(&[3], &x, &|x| Ok(x[0].nearest(&x[1], 1)?.0));
}

#[test]
fn case_46_training_is_the_same_training() {
    let train = |shape: &[usize], placements: Placements| {
        let losses = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.to_vec())?;
                let first = nn::Conv::new(&mesh, 1, 4, [3, 3], ConvOptions::new().padding(1))?;
                let last = nn::Conv::new(&mesh, 4, 1, [3, 3], ConvOptions::new().padding(1))?;
                let parameters = [first.parameters(), last.parameters()].concat();
                let mut sgd = Sgd::new(parameters, 0.1)?.momentum(0.9);
                let x = mesh.from_fn([3, 1, 11, 9], &placements, |i| pattern(0, i))?;
                let y = mesh.from_fn([3, 1, 11, 9], &placements, |i| pattern(0, i).abs())?;
                (0..8)
                    .map(|_| {
                        let loss = last.forward(&first.forward(&x)?.gelu()?)?.mse_loss(&y)?;
                        sgd.step(&loss.backward()?)?;
                        loss.item()
                    })
                    .collect::<Result<Vec<f64>>>()
            });
        losses.unwrap().swap_remove(0)
    };
    let alone = train(&[1], [replicate()].into());
    assert!(alone[7] < 0.8 * alone[0], "{alone:?}");
    close(&train(&[3], [shard(2)].into()), &alone, 1e-10, "domain");
    close(
        &train(&[2, 3], [shard(0), shard(2)].into()),
        &alone,
        1e-10,
        "data x domain",
    );
}
