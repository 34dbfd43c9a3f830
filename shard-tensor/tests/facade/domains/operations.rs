//! Cases 17 to 33: windows, norms, attention and neighbours.

use super::*;

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
                    let options = ConvOptions::new()
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
                x[0].conv2d(
                    &x[1],
                    None,
                    ConvOptions::new().stride(stride).padding(padding),
                )
            });
        }
        let x = [
            operand(&[1, 2, 8, 7, 6], placements),
            operand(&[3, 2, 3, 3, 3], Placements::replicated()),
        ];
        equal(&mesh, &x, &|x| {
            x[0].conv3d(&x[1], None, ConvOptions::new().padding(1))
        });
    }
}

#[test]
fn case_19_pieces_stay_pieces() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.ones([1, 2, 64, 64], [shard(2)])?.requires_grad()?;
        let w = mesh.ones([2, 2, 3, 3], [replicate()])?;
        let y = x.conv2d(&w, None, ConvOptions::new().padding(1))?;
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
            let options = ConvTransposeOptions::new()
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
        x[0].conv1d(&x[1], None, ConvOptions::new().padding(3))
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
            x[0].conv2d(&x[1], None, ConvOptions::new().padding(2).edge(edge))
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
        || PoolOptions::new(2),
        || PoolOptions::new(4),
        || PoolOptions::new(3).stride(2).padding(1),
    ] {
        equal(&[3], &x, &|x| x[0].avg_pool(options()));
        equal(&[3], &x, &|x| x[0].max_pool(options()));
    }
    let indices = |ranks: usize, placements: Placements| {
        let found = Launch::new(ranks).run(|ctx| {
            let x = ctx
                .mesh_of(ranks)?
                .from_fn([1, 1, 17, 9], placements.clone(), |i| pattern(0, i))?;
            x.max_pool_with_indices(PoolOptions::new(3).stride(2).padding(1))?
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
                x[0].attention(&x[1], &x[2], None, &Attention::new())
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
        let causal = Attention::new().causal(Causal::TopLeft).fold_by(fold);
        equal(&[4], &x, &|x| x[0].attention(&x[1], &x[2], None, &causal));
        // Nobody sees the keys of rank 1.
        equal(&[4], &x, &|x| {
            let seen = x[0]
                .mesh()
                .from_fn([1, 1, 12, 12], Placements::replicated(), |i| {
                    f64::from(!(7..10).contains(&i[3]))
                })?;
            let all = Attention::new().fold_by(fold);
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
