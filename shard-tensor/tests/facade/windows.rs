//! Pools, windows as columns, sampling and norms: values by their definitions, what moves, and gradients.

use shard_tensor::nn::{BatchNorm, ModelExt, Module, RmsNorm};
use shard_tensor::{
    Context, DType, GradCheck, Launch, Placements, PoolOptions, ResampleMode, Result, SampleEdge,
    SampleMode, Sampling, ShardTensor, UnfoldOptions, launch, replicate, shard,
};

/// The shape of a mesh, and placements on it of a tensor of four dims.
type OnMesh = (Vec<usize>, fn() -> Placements);

fn layouts() -> Vec<OnMesh> {
    vec![
        (vec![1], || [replicate()].into()),
        (vec![3], || [shard(2).sizes([4, 0, 3])].into()),
        (vec![2], || [shard(1)].into()),
        (vec![4], || [shard(3)].into()),
        (vec![2, 2], || [shard(2), shard(3)].into()),
        (vec![2, 2], || [shard(2), shard(2)].into()),
        (vec![9], || [shard(2)].into()),
    ]
}

const SHAPE: [usize; 4] = [2, 4, 7, 6];

fn element(at: &[usize]) -> f64 {
    let h = at.iter().fold(7, |h, &i| (h * 31 + i + 1) % 1009);
    (h % 29) as f64 / 8.0 - 1.75
}

/// What a program makes of a tensor of [`SHAPE`], in `f64`.
fn run(
    (shape, placements): &OnMesh,
    program: impl Fn(&ShardTensor) -> Result<ShardTensor> + Sync,
) -> (Vec<usize>, Vec<f64>) {
    let out = Launch::new(shape.iter().product())
        .dtype(DType::F64)
        .run(|ctx| {
            let mesh = ctx.mesh_of(shape.clone())?;
            let out = program(&mesh.from_fn(SHAPE, placements(), element)?)?;
            Ok((
                out.shape().to_vec(),
                out.to_array::<f64>()?.into_raw_vec_and_offset().0,
            ))
        });
    out.unwrap().swap_remove(0)
}

/// Asserts that a program gives, in all layouts, what `expected` is at every place.
fn gives(
    name: &str,
    extents: &[usize],
    expected: impl Fn(&[usize]) -> f64,
    program: impl Fn(&ShardTensor) -> Result<ShardTensor> + Sync,
) {
    for on in layouts() {
        let (shape, found) = run(&on, &program);
        assert_eq!(shape, extents, "{name} on {:?}", on.0);
        for (i, found) in found.iter().enumerate() {
            let mut at = vec![0; extents.len()];
            let mut rest = i;
            for d in (0..extents.len()).rev() {
                at[d] = rest % extents[d];
                rest /= extents[d];
            }
            let wanted = expected(&at);
            let near = (found - wanted).abs() <= 1e-12 * wanted.abs().max(1.0);
            assert!(
                near,
                "{name} on {:?} at {at:?}: {found}, not {wanted}",
                on.0
            );
        }
    }
}

#[test]
fn pools_by_powers_are_their_definitions() {
    let window = |at: &[usize]| {
        let (rows, columns) = (2 * at[2]..2 * at[2] + 3, 2 * at[3]..2 * at[3] + 2);
        let lead = [at[0], at[1]];
        rows.flat_map(move |h| {
            columns
                .clone()
                .map(move |w| element(&[lead[0], lead[1], h, w]))
        })
    };
    let norm = |at: &[usize]| window(at).map(|x| x.abs().powi(4)).sum::<f64>().powf(0.25);
    let pool = || PoolOptions::new([3, 2]).stride(2);
    gives("lp_pool", &[2, 4, 3, 3], norm, |x| x.lp_pool(4.0, pool()));
    let response = |at: &[usize]| {
        let near = at[1].saturating_sub(1)..(at[1] + 2).min(4);
        let squares = near.map(|c| element(&[at[0], c, at[2], at[3]]).powi(2));
        element(at) / (2.0 + 0.5 * squares.sum::<f64>() / 3.0).powf(0.75)
    };
    gives("local_response_norm", &SHAPE, response, |x| {
        x.local_response_norm(3, 0.5, 0.75, 2.0)
    });
}

/// Where the sum of powers is zero, so is the gradient.
#[test]
fn the_root_of_nothing_has_no_slope() {
    let slopes = launch(2, |ctx| {
        let x = ctx
            .mesh_of(2)?
            .zeros([1, 1, 4], [shard(2)])?
            .requires_grad()?;
        let y = x.lp_pool(2.0, PoolOptions::new(2))?;
        Ok(y.sum_all()?
            .backward()?
            .get(&x)?
            .unwrap()
            .to_array::<f32>()?
            .into_raw_vec_and_offset()
            .0)
    });
    assert_eq!(slopes.unwrap()[0], [0.0; 4]);
}

#[test]
fn values_go_back_to_where_they_were() {
    let largest = |at: &[usize]| {
        let (h, w) = (at[2] / 2 * 2, at[3] / 2 * 2);
        let window = (0..4).map(|k| [at[0], at[1], h + k / 2, w + k % 2]);
        // The last row is in no window.
        let mut best = None::<[usize; 4]>;
        for place in window.filter(|p| p[2] < 6) {
            if best.is_none_or(|b| element(&place) > element(&b)) {
                best = Some(place);
            }
        }
        best.map_or(0.0, |b| if b == at { element(at) } else { 0.0 })
    };
    gives("max_unpool", &SHAPE, largest, |x| {
        let (y, indices) = x.max_pool_with_indices(PoolOptions::new(2))?;
        y.max_unpool(&indices, [7, 6])
    });
}

#[test]
fn columns_and_channels_are_their_definitions() {
    let windows = || UnfoldOptions::new([3, 2]).stride([2, 1]).padding([1, 0]);
    let column = |at: &[usize]| {
        let (c, k, o) = (at[1] / 6, at[1] % 6, [at[2] / 5, at[2] % 5]);
        let h = (2 * o[0] + k / 2).checked_sub(1).filter(|&h| h < 7);
        h.map_or(0.0, |h| element(&[at[0], c, h, o[1] + k % 2]))
    };
    gives("unfold", &[2, 24, 20], column, |x| x.unfold(windows()));
    // As often as windows see it.
    let count = |at: &[usize]| {
        let rows = (0..4)
            .filter(|o| (2 * o..2 * o + 3).contains(&(at[2] + 1)))
            .count();
        let columns = (0..5).filter(|o| (*o..o + 2).contains(&at[3])).count();
        element(at) * (rows * columns) as f64
    };
    gives("fold", &SHAPE, count, |x| {
        x.unfold(windows())?.fold([7, 6], windows())
    });
    let slice = |at: &[usize]| element(&[at[0], at[1], 2 * at[2] + at[4], at[3]]);
    gives("sliding", &[2, 4, 3, 6, 3], slice, |x| x.sliding(2, 3, 2));
    let spread = |at: &[usize]| element(&[at[0], at[2] % 2 * 2 + at[3] % 2, at[2] / 2, at[3] / 2]);
    gives("pixel_shuffle", &[2, 1, 14, 12], spread, |x| {
        x.pixel_shuffle(2)
    });
    gives("pixel_unshuffle", &SHAPE, element, |x| {
        x.pixel_shuffle(2)?.pixel_unshuffle(2)
    });
    let turned = |at: &[usize]| element(&[at[0], at[1] % 2 * 2 + at[1] / 2, at[2], at[3]]);
    gives("channel_shuffle", &SHAPE, turned, |x| x.channel_shuffle(2));
}

/// A last window that overhangs is divided by what of it lies on the plane, padded or not: PyTorch's numbers.
#[test]
fn averages_of_windows_that_overhang_are_pytorchs() {
    for (ranks, placed) in [
        (1, shard(2)),
        (3, shard(2)),
        (3, shard(2).sizes([1, 0, 5])),
        (2, shard(2).sizes([5, 1])),
    ] {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.from_fn([1, 1, 6], placed.clone(), |i| i[2] as f64 + 1.0)?;
            let pooled = |padding: usize, counts| -> Result<Vec<f64>> {
                let pool = PoolOptions::new([3])
                    .stride([2])
                    .padding([padding])
                    .ceil_mode(true);
                let y = x.avg_pool(pool.count_include_pad(counts))?;
                Ok(y.to_array::<f64>()?.into_iter().collect())
            };
            Ok([pooled(0, true)?, pooled(1, true)?, pooled(1, false)?])
        });
        for [plain, counted, left_out] in found.unwrap() {
            assert_eq!(plain, [2.0, 4.0, 5.5], "{ranks} ranks");
            assert_eq!(counted, [1.0, 3.0, 5.0, 3.0], "{ranks} ranks");
            assert_eq!(left_out, [1.5, 3.0, 5.0, 6.0], "{ranks} ranks");
        }
    }
}

#[test]
fn adaptive_pools_are_their_definitions() {
    let area = |at: &[usize]| {
        let range = |o: usize, n: usize, m: usize| o * n / m..((o + 1) * n).div_ceil(m);
        let (rows, columns) = (range(at[2], 7, 3), range(at[3], 6, 4));
        let lead = [at[0], at[1]];
        let each = rows.flat_map(move |h| columns.clone().map(move |w| (h, w)));
        each.map(move |(h, w)| element(&[lead[0], lead[1], h, w]))
    };
    let mean = |at: &[usize]| area(at).sum::<f64>() / area(at).count() as f64;
    gives("adaptive_avg_pool", &[2, 4, 3, 4], mean, |x| {
        x.adaptive_avg_pool([3, 4])
    });
    let most = |at: &[usize]| area(at).fold(f64::NEG_INFINITY, f64::max);
    gives("adaptive_max_pool", &[2, 4, 3, 4], most, |x| {
        x.adaptive_max_pool([3, 4])
    });
}

/// A shift of a whole number of elements: what lies beyond is zero.
#[test]
fn a_sampled_shift_is_a_shift() {
    let shifted = |at: &[usize]| match at[2] {
        6 => 0.0,
        h => element(&[at[0], at[1], h + 1, at[3]]),
    };
    for mode in [SampleMode::Nearest, SampleMode::Linear, SampleMode::Cubic] {
        let sampling = Sampling {
            mode,
            edge: SampleEdge::Zeros,
            aligned: false,
        };
        gives("grid_sample", &SHAPE, shifted, |x| {
            // Rows are two sevenths of the way apart.
            let theta = |at: &[usize]| match at {
                [_, 0, 0] | [_, 1, 1] => 1.0,
                [_, 1, 2] => 2.0 / 7.0,
                _ => 0.0,
            };
            let theta = x
                .mesh()
                .from_fn([2, 2, 3], Placements::replicated(), theta)?;
            let sampled = x.grid_sample(&theta.affine_grid([7, 6], false)?, sampling)?;
            // Weights that should be 0 or 1 are so up to rounding.
            sampled.add_scalar(0.0)
        });
    }
}

fn check_gradients(name: &str, f: impl Fn(&[ShardTensor]) -> Result<ShardTensor> + Sync) {
    for on in layouts().into_iter().take(5) {
        let ranks = on.0.iter().product();
        let checked = Launch::new(ranks).dtype(DType::F64).run(|ctx: &Context| {
            let mesh = ctx.mesh_of(on.0.clone())?;
            let x = mesh.from_fn(SHAPE, (on.1)(), |at| element(at) + 0.01 * at[3] as f64)?;
            let weight = mesh.from_fn(4, Placements::replicated(), |at| 0.5 + at[0] as f64)?;
            let f = |xs: &[ShardTensor]| Ok(vec![f(xs)?]);
            ctx.gradcheck(f, &[&x, &weight], GradCheck::default())
        });
        if let Err(e) = checked {
            panic!("{name} on {:?}: {e}", on.0);
        }
    }
}

/// Samples of many positions, and each position as a sample: channels are the same numbers, in long runs and one by one.
#[test]
fn channels_are_normed_alike_in_runs_and_one_by_one() {
    for ranks in [1, 3, 5] {
        let apart = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let placement = match ranks {
                3 => shard(0).sizes([4, 0, 2]),
                _ => shard(0),
            };
            let of = |seed: usize| {
                let at = |i: &[usize]| element(&[seed, i[0], i[1], i[2]]);
                mesh.from_fn([6, 3, 20], placement.clone(), at)
            };
            let (x, dy) = (of(1)?.requires_grad()?, of(2)?);
            let weights = [3.0, -0.5].map(|from| {
                let weight = mesh.from_fn(3, replicate(), |i| from + i[0] as f64)?;
                weight.requires_grad()
            });
            let [weight, bias] = weights;
            let (weight, bias) = (weight?, bias?);
            let each = |x: &ShardTensor| x.transpose(1, 2)?.reshape([120, 3]);
            let normed = |x: &ShardTensor| -> Result<ShardTensor> {
                let affine = [Some(&weight), Some(&bias)];
                Ok(x.batch_norm(None, affine, true, 0.1, 1e-5)?.0)
            };
            let mut found = Vec::new();
            for one_by_one in [false, true] {
                let (y, dy) = match one_by_one {
                    true => (normed(&each(&x)?)?, each(&dy)?),
                    false => (normed(&x)?, dy.clone()),
                };
                let slopes = y.backward_with(&dy)?;
                let y = if one_by_one { y } else { each(&y)? };
                let mut all = vec![y];
                for leaf in [&x, &weight, &bias] {
                    all.extend(slopes.get(leaf)?);
                }
                assert_eq!(all.len(), 4);
                found.push(all);
            }
            let apart = found[0].iter().zip(&found[1]).map(|(a, b)| {
                let apart = a.sub(b)?.abs()?.amax(.., false)?;
                apart.full_tensor()?.item()
            });
            apart.collect::<Result<Vec<f64>>>()
        });
        for apart in apart.unwrap().into_iter().flatten() {
            assert!(apart < 1e-12, "{apart:e} on {ranks} ranks");
        }
    }
}

/// Three f64 per channel and ring of ranks, and no part of the data; halos of windows, and nothing else.
#[test]
fn norms_move_channels_and_windows_halos() {
    let moved = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.randn([2, 3, 40, 10], [shard(2)])?;
        let affine = mesh.ones(3, [replicate()])?;
        let bytes = |f: &dyn Fn() -> Result<ShardTensor>| -> Result<u64> {
            let before = ctx.ledger().snapshot();
            f()?;
            Ok(ctx.ledger().since(&before).bytes)
        };
        let row = 2 * 3 * 10 * 8;
        let found = [
            bytes(&|| {
                let norm = x.batch_norm(None, [Some(&affine), Some(&affine)], true, 0.1, 1e-5)?;
                Ok(norm.0)
            })?,
            bytes(&|| x.rms_norm(1, None, None))?,
            // Areas of 10 by 1 lie on one rank each.
            bytes(&|| x.adaptive_avg_pool([4, 10]))?,
            // Two f64 sums at most for each plane.
            bytes(&|| x.adaptive_avg_pool(1)?.redistribute([replicate()]))?,
            bytes(&|| x.interpolate([80, 20], ResampleMode::Cubic))? / row,
            bytes(&|| x.sliding(2, 3, 1))? / row,
        ];
        Ok(found)
    });
    for [batch, rms, areas, planes, cubic, sliding] in moved.unwrap() {
        assert!(0 < batch && batch <= 3 * 3 * 3 * 8 * 2, "{batch}");
        assert_eq!((rms, areas), (0, 0));
        assert!(planes <= 6 * 8 * 2 * 4, "{planes}");
        assert!(cubic <= 4 && sliding <= 2, "{cubic} {sliding}");
    }
}

/// Little displacement moves little: the rows that places read beyond a boundary, and requests for them.
#[test]
fn sampling_moves_what_is_read() {
    let moved = Launch::new(4).dtype(DType::F32).run(|ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.randn([1, 16, 64, 64], [shard(2)])?;
        let theta = mesh.from_fn([1, 2, 3], [replicate()], |at| match at {
            [_, 0, 0] | [_, 1, 1] => 1.0,
            [_, 1, 2] => 0.05,
            _ => 0.0,
        })?;
        let grid = theta
            .affine_grid([64, 64], false)?
            .redistribute([shard(1)])?;
        let sampling = Sampling {
            mode: SampleMode::Linear,
            edge: SampleEdge::Border,
            aligned: false,
        };
        let before = ctx.ledger().snapshot();
        let y = x.grid_sample(&grid, sampling)?;
        assert_eq!(y.layout(), x.layout());
        Ok(ctx.ledger().since(&before).bytes)
    });
    // A shift of 1.6 rows: two rows of 64 positions of 16 channels, and 8 bytes for each position.
    let most = 3 * 64 * (16 * 4 + 8);
    let whole = 3 * 16 * 64 * 16 * 4;
    for bytes in moved.unwrap() {
        assert!(bytes <= most && most < whole / 2, "{bytes} of {most}");
    }
}

/// Of data whose mean is ten thousand times its spread, single precision keeps three digits of the spread.
#[test]
fn large_means_cost_no_digits() {
    let far = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.randn([4, 2, 500], [shard(2)])?;
        let shifted = x.add_scalar(1e4)?;
        let norm = |x: &ShardTensor| -> Result<ShardTensor> {
            Ok(x.batch_norm(None, [None, None], true, 0.1, 1e-5)?.0)
        };
        // What rounding the data itself costs is not the norm's.
        let exact = shifted.to(DType::F64)?;
        let apart = norm(&shifted)?.to(DType::F64)?.sub(&norm(&exact)?)?;
        Ok(apart.abs()?.to_array::<f64>()?.into_raw_vec_and_offset().0)
    });
    let worst = far.unwrap()[0].iter().copied().fold(0.0, f64::max);
    assert!(worst < 1e-3, "{worst}");
}

/// Running statistics are those of the whole batch, of the unbiased variance, and evaluation uses them.
#[test]
fn running_statistics_are_the_whole_batches() {
    let values: Vec<f64> = (0..2 * 7 * 6)
        .map(|i| element(&[i / 42, 1, i / 6 % 7, i % 6]))
        .collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    for on in layouts() {
        let found = Launch::new(on.0.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(on.0.clone())?;
                let x = mesh.from_fn(SHAPE, (on.1)(), element)?;
                let norm = BatchNorm::new(&mesh, 4)?.momentum(0.25);
                let trained = norm.forward(&x)?;
                assert_eq!(trained.layout(), x.layout());
                norm.eval();
                let [means, vars] =
                    [&norm.running_mean, &norm.running_var].map(|b| b.as_ref().unwrap().get());
                let y = norm.forward(&x)?.narrow(1, 1..2)?;
                let trained = trained.narrow(1, 1..2)?;
                let instances =
                    x.instance_norm_running((&means, &vars), [None, None], true, 1.0, 1e-5)?;
                Ok((
                    [
                        means.to_array::<f64>()?.into_raw_vec_and_offset().0[1],
                        vars.to_array::<f64>()?.into_raw_vec_and_offset().0[1],
                    ],
                    [
                        trained.to_array::<f64>()?.into_raw_vec_and_offset().0[0],
                        y.to_array::<f64>()?.into_raw_vec_and_offset().0[0],
                    ],
                    [
                        instances.1.0.to_array::<f64>()?.into_raw_vec_and_offset().0[1],
                        instances.1.1.to_array::<f64>()?.into_raw_vec_and_offset().0[1],
                    ],
                ))
            })
            .unwrap()
            .swap_remove(0);
        let ([running_mean, running_var], [trained, evaluated], [kept_mean, kept_var]) = found;
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, not {b}, on {:?}", on.0);
        near(running_mean, 0.25 * mean);
        near(running_var, 0.75 + 0.25 * squares / (n - 1.0));
        near(trained, (values[0] - mean) / (squares / n + 1e-5).sqrt());
        near(
            evaluated,
            (values[0] - running_mean) / (running_var + 1e-5).sqrt(),
        );
        // The mean over samples of each one's own.
        let own = |v: &[f64]| {
            let mean = v.iter().sum::<f64>() / 42.0;
            (
                mean,
                v.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 41.0,
            )
        };
        let (a, b) = (own(&values[..42]), own(&values[42..]));
        near(kept_mean, f64::midpoint(a.0, b.0));
        near(kept_var, f64::midpoint(a.1, b.1));
    }
}

#[test]
fn one_value_per_channel_cannot_train() {
    launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.ones([1, 3, 1], [shard(1)])?;
        let refused = x.batch_norm(None, [None, None], true, 0.1, 1e-5);
        assert!(refused.is_err_and(|e| e.to_string().contains("one value per channel")));
        let refused = x.batch_norm(None, [None, None], false, 0.1, 1e-5);
        assert!(refused.is_err_and(|e| e.to_string().contains("no statistics")));
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_are_slopes() {
    let norm = |training: bool| {
        move |xs: &[ShardTensor]| {
            let mesh = xs[0].mesh();
            let mean = mesh.full(4, 0.25, Placements::replicated())?;
            let var = mesh.full(4, 2.0, Placements::replicated())?;
            let affine = [Some(&xs[1]), None];
            let y = xs[0].batch_norm(Some((&mean, &var)), affine, training, 0.1, 1e-3)?;
            y.0.square()?.mul(&xs[0])
        }
    };
    check_gradients("batch_norm", norm(true));
    check_gradients("batch_norm, evaluated", norm(false));
    check_gradients("rms_norm", |xs| {
        xs[0].rms_norm(2, None, Some(1e-3))?.square()
    });
    check_gradients("lp_pool", |xs| {
        xs[0]
            .square()?
            .add_scalar(0.5)?
            .lp_pool(3.0, PoolOptions::new(2))
    });
    check_gradients("grid_sample", |xs| {
        // Coordinates that depend on the weight.
        let theta = xs[1]
            .mul_scalar(0.113)?
            .expand([2, 4])?
            .reshape([2, 2, 2])?;
        let shift = xs[0].narrow(1, 0..1)?.mean([1, 2, 3], false)?;
        let shift = shift.reshape([2, 1, 1])?.expand([2, 2, 1])?;
        let theta = ShardTensor::cat(&[&theta, &shift], 2)?;
        let sampling = Sampling {
            mode: SampleMode::Cubic,
            edge: SampleEdge::Zeros,
            aligned: false,
        };
        xs[0].grid_sample(&theta.affine_grid([3, 5], false)?, sampling)
    });
}

#[test]
fn layers_name_their_parameters() {
    launch(1, |ctx| {
        let mesh = ctx.mesh_of(1)?;
        let names = |m: &dyn Module| m.parameters().into_iter().map(|p| p.0).collect::<Vec<_>>();
        let norm = BatchNorm::new(&mesh, 3)?;
        assert_eq!(names(&norm), ["weight", "bias"]);
        let buffers: Vec<_> = norm.buffers().into_iter().map(|b| b.0).collect();
        assert_eq!(buffers, ["running_mean", "running_var"]);
        let norm = RmsNorm::new(&mesh, [3])?.eps(1e-6);
        assert_eq!(names(&norm), ["weight"]);
        let y = norm.forward(&mesh.full([2, 3], 4.0, [shard(1)])?)?;
        assert!(
            y.to_array::<f32>()?
                .into_raw_vec_and_offset()
                .0
                .iter()
                .all(|v| (v - 1.0).abs() < 1e-6)
        );
        Ok(())
    })
    .unwrap();
}
