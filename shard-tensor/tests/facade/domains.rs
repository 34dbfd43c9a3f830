//! Forty-six cases of domain-parallel programs, by number: what NVIDIA's `ShardTensor` set as the example, with the right answer
//! where it gives none. Where a case says nothing else, results and gradients equal those of one rank, and gradients lie as
//! their values do.

use ndarray::{Array1, ArrayD, IxDyn, array};
use shard_tensor::nn::{self, Module};
use shard_tensor::op::EdgeMap;
use shard_tensor::optim::{Optimizer, Sgd};
use shard_tensor::{
    Attention, Causal, Context, Conv, ConvTranspose, DType, ErrorClass, FoldBy, GradAs, Launch,
    Layout, LocalSizes, Mesh, Neighborhood, Placements, Pool, ReduceOp, ResampleMode, Result,
    ShardTensor, partial, replicate, shard,
};

/// The shape and the placements of an operand.
type Operand = (Vec<usize>, Placements);

fn operand(shape: &[usize], placements: impl Into<Placements>) -> Operand {
    (shape.to_vec(), placements.into())
}

/// A number in -1..1 that no neighbour has.
fn pattern(seed: usize, index: &[usize]) -> f64 {
    let mixed = index.iter().fold(seed + 1, |h, i| h * 31 + 7 * i + 3);
    (mixed as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0
}

fn numbers(x: &ShardTensor) -> Result<Vec<f64>> {
    Ok(x.to(DType::F64)?.to_array::<f64>()?.into_iter().collect())
}

/// Runs a program of `f64` numbers on ranks.
fn on(ranks: usize, program: impl Fn(&Context) -> Result<()> + Sync) {
    Launch::new(ranks).dtype(DType::F64).run(program).unwrap();
}

type Function<'a> = dyn Fn(&[ShardTensor]) -> Result<ShardTensor> + Sync + 'a;

/// The result of a function, and the gradients of its mean square.
fn results(mesh: &Mesh, operands: &[Operand], f: &Function<'_>) -> Result<Vec<Vec<f64>>> {
    let make = |(seed, (shape, placements)): (usize, &Operand)| {
        mesh.from_fn(shape.clone(), placements, |i| pattern(seed, i))?
            .requires_grad()
    };
    let x = (operands.iter().enumerate().map(make)).collect::<Result<Vec<_>>>()?;
    let y = f(&x)?;
    let gradients = y.square()?.mean_all()?.backward()?;
    let mut found = vec![numbers(&y)?];
    for x in &x {
        let dx = gradients.get(x)?.expect("all operands are used");
        assert_eq!(dx.layout(), x.layout());
        found.push(numbers(&dx)?);
    }
    Ok(found)
}

/// Compares a function on a mesh with the same on one rank, relative to the largest number.
fn equal(mesh: &[usize], operands: &[Operand], f: &Function<'_>) {
    let whole: Vec<Operand> = (operands.iter())
        .map(|(shape, _)| operand(shape, Placements::replicated()))
        .collect();
    let alone = Launch::new(1)
        .dtype(DType::F64)
        .run(|ctx| results(&ctx.mesh_of(1)?, &whole, f));
    let alone = alone.unwrap().swap_remove(0);
    on(mesh.iter().product(), |ctx| {
        let found = results(&ctx.mesh_of(mesh.to_vec())?, operands, f)?;
        for (k, (found, exact)) in found.iter().zip(&alone).enumerate() {
            close(found, exact, 1e-12, &format!("{k}: {operands:?}"));
        }
        Ok(())
    });
}

fn close(found: &[f64], exact: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let most = exact.iter().fold(1e-300, |most: f64, x| most.max(x.abs()));
    for (a, b) in found.iter().zip(exact) {
        assert!((a - b).abs() <= tolerance * most, "{what}: {a}, not {b}");
    }
}

/// A tensor whose elements are their own row-major numbers.
fn field(mesh: &Mesh, shape: &[usize], placements: impl Into<Placements>) -> Result<ShardTensor> {
    let at = |i: &[usize]| i.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
    mesh.from_fn(shape.to_vec(), placements, |i| at(i) as f64)
}

/// Whether a [field] is what it was, on every rank, and lies where its layout says.
fn is_field(x: &ShardTensor) -> Result<()> {
    let n: usize = x.shape().iter().product();
    assert_eq!(numbers(x)?, (0..n).map(|i| i as f64).collect::<Vec<_>>());
    Ok(())
}

/// Sizes by which ranks along an axis differ.
fn uneven(dim: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|r| 4 * (r + dim + 1) + 2 * r).collect()
}

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

#[test]
fn case_17_convolutions_of_lines() {
    for sizes in [vec![8, 8, 8, 8], vec![9, 5, 8, 10]] {
        for k in [1, 2, 3, 4, 5, 7] {
            for (stride, padding, dilation) in [(1, 0, 1), (2, 1, 1), (3, 2, 2), (4, 3, 1)] {
                let x = [
                    operand(&[2, 3, 32], shard(2).sizes(sizes.clone())),
                    operand(&[2, 3, k], replicate()),
                ];
                equal(&[4], &x, &|x| {
                    let options = Conv::new()
                        .stride(stride)
                        .padding(padding)
                        .dilation(dilation);
                    x[0].conv1d(&x[1], None, options)
                });
            }
        }
    }
}

#[test]
fn case_18_convolutions_of_images_and_volumes() {
    for (mesh, placements) in [
        (vec![4], Placements::from([shard(2)])),
        (vec![2, 2], [shard(2), shard(3)].into()),
    ] {
        for (k, stride, padding) in [(3, 1, 1), (2, 2, 0)] {
            let x = [
                operand(&[2, 3, 16, 14], placements.clone()),
                operand(&[4, 3, k, k], Placements::replicated()),
            ];
            equal(&mesh, &x, &|x| {
                x[0].conv2d(&x[1], None, Conv::new().stride(stride).padding(padding))
            });
        }
        let x = [
            operand(&[1, 2, 8, 7, 6], placements),
            operand(&[3, 2, 3, 3, 3], Placements::replicated()),
        ];
        equal(&mesh, &x, &|x| {
            x[0].conv3d(&x[1], None, Conv::new().padding(1))
        });
    }
}

#[test]
fn case_19_pieces_stay_pieces() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.ones([1, 2, 64, 64], [shard(2)])?.requires_grad()?;
        let w = mesh.ones([2, 2, 3, 3], [replicate()])?;
        let y = x.conv2d(&w, None, Conv::new().padding(1))?;
        let dx = y.mean_all()?.backward()?.get(&x)?.unwrap();
        assert_eq!(
            [&y.local_shape()[..], &dx.local_shape()[..]],
            [[1, 2, 16, 64]; 2]
        );
        Ok(())
    });
}

#[test]
fn case_20_transposed_convolutions() {
    for (k, padding, more) in [(2, 0, 0), (3, 1, 1)] {
        let x = [
            operand(&[2, 3, 9, 5], shard(2).sizes([4, 0, 5])),
            operand(&[3, 2, k, k], replicate()),
        ];
        equal(&[3], &x, &|x| {
            let options = ConvTranspose::new()
                .stride(2)
                .padding(padding)
                .output_padding(more);
            x[0].conv_transpose(&x[1], None, options)
        });
    }
}

#[test]
fn case_21_a_halo_from_beyond_the_neighbour() {
    let x = [
        operand(&[1, 2, 10], shard(2).sizes([4, 2, 2, 2])),
        operand(&[2, 2, 7], replicate()),
    ];
    equal(&[4], &x, &|x| {
        x[0].conv1d(&x[1], None, Conv::new().padding(3))
    });
}

#[test]
fn case_22_padded_by_what_lies_around() {
    for edge in [EdgeMap::Reflect, EdgeMap::Replicate, EdgeMap::Circular] {
        let x = [
            operand(&[1, 2, 17, 5], shard(2).sizes([3, 9, 5])),
            operand(&[2, 2, 3, 3], replicate()),
        ];
        equal(&[3], &x, &|x| {
            x[0].conv2d(&x[1], None, Conv::new().padding(2).edge(edge))
        });
    }
}

#[test]
fn case_23_padding_alone() {
    for dim in [2, 3] {
        let x = [operand(&[1, 2, 9, 8], shard(dim))];
        equal(&[3], &x, &|x| {
            x[0].pad(&[(0, 0), (0, 0), (3, 4), (1, 2)], EdgeMap::Zeros, 1.234)
        });
        equal(&[3], &x, &|x| {
            let below = x[0].pad(&[(0, 0), (0, 0), (2, 0), (0, 0)], EdgeMap::Replicate, 0.0)?;
            below.pad(&[(0, 0), (0, 0), (0, 2), (0, 0)], EdgeMap::Zeros, 1.0)
        });
    }
}

#[test]
fn case_24_pools() {
    let x = [operand(&[2, 2, 17, 9], shard(2).sizes([6, 0, 11]))];
    for options in [
        || Pool::new(2),
        || Pool::new(4),
        || Pool::new(3).stride(2).padding(1),
    ] {
        equal(&[3], &x, &|x| x[0].avg_pool(options()));
        equal(&[3], &x, &|x| x[0].max_pool(options()));
    }
    let indices = |ranks: usize, placements: Placements| {
        let found = Launch::new(ranks).run(|ctx| {
            let x = ctx
                .mesh_of(ranks)?
                .from_fn([1, 1, 17, 9], placements.clone(), |i| pattern(0, i))?;
            x.max_pool_with_indices(Pool::new(3).stride(2).padding(1))?
                .1
                .to_array::<i64>()
        });
        found.unwrap().swap_remove(0)
    };
    assert_eq!(
        indices(3, [shard(2).sizes([6, 0, 11])].into()),
        indices(1, [replicate()].into())
    );
}

#[test]
fn case_25_upsampling() {
    let x = [operand(&[1, 2, 9, 5], shard(2).sizes([2, 6, 1]))];
    for (factor, mode) in [
        (2.0, ResampleMode::Nearest),
        (3.0, ResampleMode::Nearest),
        (2.0, ResampleMode::Linear),
        (2.0, ResampleMode::LinearAligned),
    ] {
        equal(&[3], &x, &|x| x[0].interpolate_by(&[factor, factor], mode));
    }
}

#[test]
fn case_26_group_norms_far_from_zero() {
    for groups in [1, 4] {
        let x = [
            operand(&[2, 8, 13, 11], shard(2).sizes([2, 0, 11])),
            operand(&[8], replicate()),
            operand(&[8], replicate()),
        ];
        equal(&[3], &x, &|x| {
            x[0].group_norm(groups, Some(&x[1]), Some(&x[2]), 1e-5)
        });
    }
    // Data around 1000 in 32 bits keep five digits.
    let shifted = |ranks: usize, dtype| {
        let found = Launch::new(ranks).dtype(dtype).run(|ctx| {
            let by = if ranks == 1 {
                replicate()
            } else {
                shard(2).sizes([2, 0, 11])
            };
            let x = ctx
                .mesh_of(ranks)?
                .from_fn([2, 8, 13, 11], [by], |i| pattern(0, i))?;
            numbers(&x.add_scalar(1e3)?.group_norm(4, None, None, 1e-5)?)
        });
        found.unwrap().swap_remove(0)
    };
    close(
        &shifted(3, DType::F32),
        &shifted(1, DType::F64),
        1e-3,
        "shifted",
    );
}

#[test]
fn case_27_linear_layers() {
    for (shape, dim) in [
        (vec![1, 29, 8], 1),
        (vec![1, 29, 4, 8], 1),
        (vec![32, 8], 0),
    ] {
        let x = [
            operand(&shape, shard(dim)),
            operand(&[12, 8], replicate()),
            operand(&[12], replicate()),
        ];
        equal(&[3], &x, &|x| x[0].linear(&x[1], Some(&x[2])));
    }
}

#[test]
fn case_28_attention_under_every_pair_of_layouts() {
    for (queries, keys) in [(16, 16), (8, 24), (24, 8)] {
        for (q, k) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let by = |sharded| if sharded == 1 { shard(2) } else { replicate() };
            let x = [
                operand(&[2, 3, queries, 4], by(q)),
                operand(&[2, 3, keys, 4], by(k)),
                operand(&[2, 3, keys, 4], by(k)),
            ];
            equal(&[3], &x, &|x| {
                x[0].attention(&x[1], &x[2], None, &Attention::default())
            });
        }
    }
}

#[test]
fn case_29_uneven_rings_with_masks() {
    let sizes = [7, 3, 0, 2];
    let x: Vec<Operand> = (0..3)
        .map(|_| operand(&[1, 2, 12, 4], shard(2).sizes(sizes)))
        .collect();
    for fold in [FoldBy::Ring, FoldBy::Auto] {
        let causal = Attention::default().causal(Causal::TopLeft).fold_by(fold);
        equal(&[4], &x, &|x| x[0].attention(&x[1], &x[2], None, &causal));
        // Nobody sees the keys of rank 1.
        equal(&[4], &x, &|x| {
            let seen = x[0]
                .mesh()
                .from_fn([1, 1, 12, 12], Placements::replicated(), |i| {
                    f64::from(!(7..10).contains(&i[3]))
                })?;
            let all = Attention::default().fold_by(fold);
            x[0].attention(&x[1], &x[2], Some(&seen.to(DType::Bool)?), &all)
        });
    }
}

#[test]
fn case_30_neighborhood_attention() {
    for (space, k) in [(vec![16], 5), (vec![9, 8], 3), (vec![8, 5, 4], 3)] {
        let shape: Vec<usize> = [1]
            .into_iter()
            .chain(space.iter().copied())
            .chain([2, 4])
            .collect();
        let x: Vec<Operand> = (0..3).map(|_| operand(&shape, shard(1))).collect();
        let near = Neighborhood::new(vec![k; space.len()]);
        equal(&[3], &x, &|x| {
            x[0].neighborhood_attention(&x[1], &x[2], &near)
        });
    }
    // Pieces smaller than the window.
    let x: Vec<Operand> = (0..3)
        .map(|_| operand(&[1, 8, 1, 2], shard(1).sizes([1, 2, 0, 5])))
        .collect();
    equal(&[4], &x, &|x| {
        x[0].neighborhood_attention(&x[1], &x[2], &Neighborhood::new([7]))
    });
}

fn cloud(
    mesh: &Mesh,
    seed: usize,
    points: usize,
    by: shard_tensor::AxisPlacement,
) -> Result<ShardTensor> {
    mesh.from_fn([points, 3], [by], |i| {
        pattern(seed, &[i[0] * i[0] + 1, i[1]])
    })
}

#[test]
fn case_31_nearest_neighbours() {
    let search = |ranks: usize, q: bool, p: bool| {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let by = |sharded| match sharded {
                true => shard(0).weights(
                    (0..ranks)
                        .map(|r| f64::from(r % 3 != 1))
                        .collect::<Vec<_>>(),
                ),
                false => replicate(),
            };
            let (queries, points) = (cloud(&mesh, 0, 211, by(q))?, cloud(&mesh, 1, 103, by(p))?);
            let (distances, indices) = queries.nearest(&points, 50)?;
            Ok((distances.to_array::<f64>()?, indices.to_array::<i64>()?))
        });
        found.unwrap().swap_remove(0)
    };
    let alone = search(1, false, false);
    for (q, p) in [(false, false), (false, true), (true, false), (true, true)] {
        // The smallest piece is empty, so 50 neighbours are more than it has.
        assert!(
            search(3, q, p) == alone,
            "queries sharded: {q}, points: {p}"
        );
    }
}

#[test]
fn case_32_neighbours_within_a_radius() {
    for (q, p) in [(false, true), (true, false), (true, true)] {
        let by = |sharded| {
            if sharded {
                shard(0).sizes([40, 0, 28])
            } else {
                replicate()
            }
        };
        let x = [operand(&[68, 3], by(q)), operand(&[68, 3], by(p))];
        equal(&[3], &x, &|x| {
            let near = x[0].radius_search(&x[1], 0.8)?;
            assert!(near.pairs.shape()[0] > 100);
            // The gradient of a distance needs the pair; the order of pairs is that of one rank.
            Ok(near.distances)
        });
    }
}

#[test]
fn case_33_rings() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let sizes: Vec<usize> = (0..4).map(|r| 10 + 3 * r).collect();
        let points = cloud(&mesh, 2, 58, shard(0).sizes(sizes))?;
        let whole = cloud(&mesh, 2, 58, replicate())?.nearest(&points, 7)?;
        for fold in [FoldBy::Ring, FoldBy::Gather, FoldBy::Split] {
            let (distances, indices) = points.nearest_by(&points, 7, fold)?;
            assert_eq!(numbers(&distances)?, numbers(&whole.0)?, "{fold:?}");
            assert_eq!(numbers(&indices)?, numbers(&whole.1)?, "{fold:?}");
        }
        Ok(())
    });
}

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
        x[0].attention(&x[1], &x[2], None, &Attention::default())
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
    let cross = |x: &[ShardTensor]| {
        let turned = |x: &ShardTensor, by: isize| x.roll(-1, -by);
        let ahead = turned(&x[0], 1)?.mul(&turned(&x[1], 2)?)?;
        ahead.sub(&turned(&x[0], 2)?.mul(&turned(&x[1], 1)?)?)
    };
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
            .conv3d(&x[1], None, Conv::new().padding(1))?
            .group_norm(3, None, None, 1e-5)?
            .silu()?;
        let coarse = fine.max_pool(Pool::new(2).ceil_mode(true))?;
        let up = coarse.interpolate(&fine.shape()[2..], ResampleMode::Linear)?;
        let both = ShardTensor::cat(&[&up.narrow(1, 0..2)?, &fine], 1)?;
        both.conv3d(&x[2], None, Conv::new().padding(1))
    });
    let image = [
        operand(&[2, 1, 16, 12], [shard(2), shard(3)]),
        operand(&[8, 1, 4, 4], Placements::replicated()),
        operand(&[24, 8], Placements::replicated()),
        operand(&[8, 8], Placements::replicated()),
    ];
    equal(&[2, 2], &image, &|x| {
        let patches = x[0].conv2d(&x[1], None, Conv::new().stride(4))?;
        let tokens = patches.reshape([2, 8, 12])?.transpose(1, 2)?;
        let qkv = tokens
            .layer_norm(1, None, None, 1e-5)?
            .linear(&x[2], None)?;
        let heads = |k: usize| {
            qkv.narrow(2, 8 * k..8 * k + 8)?
                .reshape([2, 12, 2, 4])?
                .transpose(1, 2)
        };
        let seen = heads(0)?.attention(&heads(1)?, &heads(2)?, None, &Attention::default())?;
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
                let first = nn::Conv::new(&mesh, 1, 4, [3, 3], Conv::new().padding(1))?;
                let last = nn::Conv::new(&mesh, 4, 1, [3, 3], Conv::new().padding(1))?;
                let mut parameters = nn::prefixed("first", &first);
                parameters.extend(nn::prefixed("last", &last));
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
