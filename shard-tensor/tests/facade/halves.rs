//! Ops that are made of several, of floats of 16 bits: results and gradients are those of `f32`, rounded once.

use shard_comm::half::bf16;
use shard_tensor::{
    ClassLoss, ConvOptions, ConvTransposeOptions, DType, Interpolation, Launch, LocalSizes,
    LossReduction, Placements, PoolOptions, ReduceOp, Result, SampleEdge, SampleMode, Sampling,
    ScatterReduce, ShardTensor, partial, shard,
};

const SHAPE: [usize; 2] = [4, 6];

/// Numbers that `f16` and `bf16` have, around 300, where squares and sums are beyond `f16`.
fn large(i: usize) -> f64 {
    280.0 + 2.0 * ((i * 7) % 24) as f64
}

fn other(i: usize) -> f64 {
    260.0 + 2.0 * ((i * 11 + 5) % 24) as f64
}

/// Numbers of either sign, whose sums cancel.
fn signed(i: usize) -> f64 {
    ((i * 37 + 11) % 64) as f64 / 32.0 - 0.984375
}

/// Probabilities.
fn share(i: usize) -> f64 {
    (1 + (i * 5) % 14) as f64 / 16.0
}

type Numbers = fn(usize) -> f64;
type Makes<'a> = &'a (dyn Fn(&[ShardTensor]) -> Result<ShardTensor> + Sync);

/// What an op gives, and the gradients of its operands, made of numbers of this type and rounded to `stored`.
fn found(
    (dtype, stored): (DType, DType),
    ranks: usize,
    shape: &[usize],
    operands: &[Numbers],
    makes: Makes<'_>,
) -> Vec<Vec<f64>> {
    let found = Launch::new(ranks).run(|ctx| {
        let mesh = ctx.mesh_of(ranks)?;
        let strides: Vec<usize> = (0..shape.len())
            .map(|d| shape[d + 1..].iter().product())
            .collect();
        let at = |i: &[usize]| i.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let xs = operands.iter().map(|number| {
            let x = mesh.from_fn(shape, [shard(0)], |i| number(at(i)))?;
            x.to(dtype)?.requires_grad()
        });
        let xs = xs.collect::<Result<Vec<ShardTensor>>>()?;
        let y = makes(&xs)?;
        assert_eq!(y.dtype(), dtype);
        let seed = mesh
            .with_dtype(dtype)
            .ones(y.shape(), Placements::replicated())?;
        let gradients = y.backward_with(&seed)?;
        let mut all = vec![y.detach()];
        for x in &xs {
            all.extend(gradients.get(x)?);
        }
        let numbers = |x: &ShardTensor| {
            let x = x.to(stored)?.to(DType::F64)?.to_array::<f64>()?;
            Ok(x.into_iter().collect::<Vec<f64>>())
        };
        all.iter().map(numbers).collect::<Result<Vec<_>>>()
    });
    found.unwrap().swap_remove(0)
}

fn check_of(what: &str, shape: &[usize], operands: &[Numbers], makes: Makes<'_>) {
    for ranks in [1, 3] {
        for stored in [DType::F16, DType::BF16] {
            let exact = found((DType::F32, stored), ranks, shape, operands, makes);
            let got = found((stored, stored), ranks, shape, operands, makes);
            let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
            for (k, (got, exact)) in got.iter().zip(&exact).enumerate() {
                assert!(
                    got.iter().zip(exact).all(same),
                    "{what}, {k} of {stored} on {ranks}: {got:?}, not {exact:?}"
                );
            }
            assert_eq!(got.len(), exact.len());
        }
    }
}

fn check(what: &str, operands: &[Numbers], makes: Makes<'_>) {
    check_of(what, &SHAPE, operands, makes);
}

#[test]
fn means_and_norms_of_16_bits_are_rounded_once() {
    check("mean", &[large], &|x| x[0].mean(1, false));
    check("mean of all", &[large], &|x| {
        x[0].mul_scalar(64.0)?.mean_all()
    });
    for order in [0.5, 1.0, 2.0, 3.0, -1.5, f64::INFINITY] {
        check("norm", &[large], &|x| x[0].norm(order, 1, false));
        check("normalize", &[large], &|x| x[0].normalize(order, 1, 1e-12));
    }
    check("cosine_similarity", &[large, other], &|x| {
        x[0].cosine_similarity(&x[1], 1, 1e-8)
    });
    for order in [1.0, 2.0, 3.0, f64::INFINITY] {
        check("cdist", &[large, other], &|x| x[0].cdist(&x[1], order));
    }
    check("quantile", &[large], &|x| {
        x[0].quantile(&[0.3], 1, Interpolation::Linear)
    });
    check("std", &[large], &|x| x[0].std(1, 1.0, false));
    check("var", &[large], &|x| x[0].var(1, 1.0, false));
    check("logsumexp", &[large], &|x| x[0].logsumexp(1, false));
    check("prod", &[|i| 2.0 + (i % 3) as f64], &|x| {
        x[0].prod(1, false)
    });
}

/// Of more cells than are widened together, with weights that go on from some to the next.
#[test]
fn whole_cells_of_16_bits_are_rounded_once() {
    let rows = [30, 96];
    check_of("layer_norm", &rows, &[signed, other, share], &|x| {
        let [weight, bias] = [x[1].select(0, 7)?, x[2].select(0, 8)?];
        x[0].layer_norm(1, Some(&weight), Some(&bias), 1e-5)
    });
    // Of which each rank has a part, which is longer than what is widened at a time; weights repeat in other steps than that.
    check_of(
        "layer_norm of parts",
        &[3100, 3],
        &[signed, other, share],
        &|x| {
            let [weight, bias] = [x[2].select(1, 0)?, x[1].select(1, 0)?];
            let turned = x[0].transpose(0, 1)?;
            turned.layer_norm(1, Some(&weight), Some(&bias), 1e-5)
        },
    );
    check_of("rms_norm", &rows, &[signed, other], &|x| {
        x[0].rms_norm(1, Some(&x[1].select(0, 7)?), Some(1e-5))
    });
    check_of("group_norm", &[6, 8, 69], &[signed, share], &|x| {
        let weight = x[1].select(0, 1)?.select(1, 5)?;
        x[0].group_norm(4, Some(&weight), Some(&weight), 1e-5)
    });
}

/// Statistics of all samples, of channels with runs of a number, of some and of more than a block, and statistics that are given.
#[test]
fn norms_of_channels_of_16_bits_are_rounded_once() {
    for shape in [[9, 33, 1], [7, 5, 40], [4, 3, 1100]] {
        for training in [true, false] {
            check_of("batch_norm", &shape, &[signed, share], &|x| {
                let row = |i| x[1].select(2, 0)?.select(0, i);
                let (weight, bias) = (row(1)?, row(2)?);
                let kept = weight.detach();
                let kept = (!training).then_some((&kept, &kept));
                let affine = [Some(&weight), Some(&bias)];
                Ok(x[0].batch_norm(kept, affine, training, 0.1, 1e-5)?.0)
            });
        }
    }
}

#[test]
fn losses_of_16_bits_are_rounded_once() {
    use LossReduction::{Mean, None, Sum};
    for how in [None, Mean, Sum] {
        check("l1", &[large, other], &|x| x[0].l1_loss(&x[1], how));
        check("mse", &[large, other], &|x| x[0].mse_loss(&x[1]));
        check("smooth l1", &[large, other], &|x| {
            x[0].smooth_l1_loss(&x[1], 3.0, how)
        });
        check("huber", &[large, other], &|x| {
            x[0].huber_loss(&x[1], 3.0, how)
        });
        check("bce", &[share, share], &|x| {
            let weight = x[1].detach();
            x[0].binary_cross_entropy(&x[1].flip(1)?, Some(&weight), how)
        });
        check("bce with logits", &[large, share], &|x| {
            let weight = x[1].detach();
            let positive = x[1].detach().narrow(0, 0..1)?;
            x[0].binary_cross_entropy_with_logits(&x[1], Some(&weight), Some(&positive), how)
        });
        check("kl_div", &[other, share], &|x| {
            x[0].kl_div(&x[1], false, how)
        });
        check("gaussian", &[large, other, share], &|x| {
            x[0].gaussian_nll_loss(&x[1], &x[2], true, 1e-6, how)
        });
        check("poisson", &[large, other], &|x| {
            x[0].poisson_nll_loss(&x[1], false, true, 1e-8, how)
        });
        check("cross_entropy", &[large, share], &|x| {
            let weight = x[1]
                .detach()
                .select(0, 0)?
                .redistribute(Placements::replicated())?;
            let options = ClassLoss::new().weight(&weight).smoothing(0.1);
            x[0].cross_entropy(&x[1], &options.reduction(how))
        });
        check("nll", &[large], &|x| {
            let classes = x[0].detach().argmax(1)?;
            x[0].nll_loss(&classes, &ClassLoss::new().reduction(how))
        });
    }
}

#[test]
fn maps_and_pools_of_16_bits_are_rounded_once() {
    check("lerp", &[large, other, share], &|x| x[0].lerp(&x[1], &x[2]));
    check("lerp by a number", &[large, other], &|x| {
        x[0].lerp(&x[1], 0.3)
    });
    // Seven terms are rounded once, not one by one.
    check_of("lerp of a row", &[7, 6], &[large, other], &|x| {
        x[0].lerp(&x[1].select(0, 0)?, 0.3)
    });
    check("addcmul", &[large, other, large], &|x| {
        x[0].addcmul(&x[1], &x[2], -0.01)
    });
    check("addcdiv", &[large, other, share], &|x| {
        x[0].addcdiv(&x[1], &x[2], 0.3)
    });
    check("atan2", &[large, other], &|x| x[0].atan2(&x[1]));
    check("glu", &[share], &|x| x[0].glu(1));
    check_of("cross", &[4, 3], &[large, other], &|x| x[0].cross(&x[1], 1));
    for outputs in [[1, 1], [1, 2]] {
        check_of("adaptive_avg_pool", &[2, 3, 6, 8], &[large], &|x| {
            x[0].mul_scalar(128.0)?.adaptive_avg_pool(outputs)
        });
    }
    check_of("lp_pool", &[2, 3, 6, 8], &[large], &|x| {
        x[0].lp_pool(2.0, PoolOptions::new(2))
    });
    check_of("local_response_norm", &[2, 3, 6, 8], &[large], &|x| {
        x[0].local_response_norm(3, 0.5, 0.75, 2.0)
    });
}

#[test]
fn numbers_beside_16_bits_are_not_rounded_to_them() {
    // Between two numbers that `f16` or `bf16` has, beyond those of `f16`, and nearer to 0.
    for value in [0.3, 257.0, 2049.0, 1e5, 1e-9] {
        for number in [large, signed] {
            check("add_scalar", &[number], &|x| x[0].add_scalar(value));
            check("rsub_scalar", &[number], &|x| x[0].rsub_scalar(value));
            check("a number less", &[number], &|x| Ok(value - &x[0]));
            check("mul_scalar", &[number], &|x| x[0].mul_scalar(value));
            check("div_scalar", &[number], &|x| x[0].div_scalar(value));
            check("remainder", &[number], &|x| x[0].remainder_scalar(value));
            check("floor_div", &[number], &|x| x[0].floor_div_scalar(value));
        }
        check("none by a number", &[|_| 0.0], &|x| x[0].div_scalar(value));
    }
}

#[test]
fn terms_of_16_bits_are_summed_before_a_number_that_f32_does_not_hold() {
    let found = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        // Terms 1 and 0: by infinity, the second would be none.
        let term = bf16::from_f32(1.0 - ctx.rank() as f32);
        let terms = [partial(ReduceOp::Sum)];
        let x = mesh.from_local(&ndarray::arr1(&[term]), terms, LocalSizes::Infer)?;
        assert!(x.layout().is_partial());
        Ok([x.mul_scalar(1e300)?.item()?, x.div_scalar(1e-300)?.item()?])
    });
    assert_eq!(found.unwrap(), [[f64::INFINITY; 2]; 2]);
}

#[test]
fn gradients_of_maps_of_two_numbers_are_rounded_once() {
    type Pair = fn(&ShardTensor, &ShardTensor) -> Result<ShardTensor>;
    let maps: [(&str, Pair, Numbers, Numbers); 10] = [
        ("mul", |a, b| a.mul(b), signed, share),
        ("div", |a, b| a.div(b), signed, share),
        ("pow", |a, b| a.pow(b), share, signed),
        ("fmod", |a, b| a.fmod(b), large, share),
        ("atan2", |a, b| a.atan2(b), signed, share),
        ("hypot", |a, b| a.hypot(b), signed, share),
        ("xlogy", |a, b| a.xlogy(b), signed, share),
        ("logaddexp", |a, b| a.logaddexp(b), signed, share),
        ("logaddexp2", |a, b| a.logaddexp2(b), signed, share),
        ("prelu", |a, b| a.prelu(&b.reshape([6])?), signed, share),
    ];
    for (name, map, a, b) in maps {
        if name != "prelu" {
            check(name, &[a, b], &|x| map(&x[0], &x[1]));
        }
        // Broadcast, so that gradients are sums.
        check(name, &[a, b], &|x| map(&x[0], &x[1].narrow(0, 1..2)?));
    }
}

/// More numbers than a kernel takes at a time: lines, rows, and what is repeated along some dims.
#[test]
fn maps_of_many_numbers_of_16_bits_are_rounded_once() {
    let shapes: [&[usize]; 4] = [&[9, 700], &[3, 5, 420], &[4, 2050], &[2, 30, 40, 3]];
    for shape in shapes {
        check_of("silu", shape, &[signed], &|x| x[0].silu());
        check_of("add", shape, &[signed, share], &|x| x[0].add(&x[1]));
        for d in 0..shape.len() {
            check_of("repeated", shape, &[signed, share], &|x| {
                x[0].mul(&x[1].narrow(d, 0..1)?)
            });
            check_of("both repeated", shape, &[signed, share], &|x| {
                let one = x[0].narrow(d, 1..2)?;
                one.maximum(&x[1].narrow((d + 1) % shape.len(), 0..1)?)
            });
        }
    }
}

#[test]
fn products_of_16_bits_are_rounded_once() {
    let square = [4, 4];
    for (beta, alpha) in [(1.0, 1.0), (0.5, -1.0), (0.3, 0.7), (0.0, 1.5)] {
        check_of("addmm", &square, &[signed, share, signed], &|x| {
            x[0].addmm(&x[1], &x[2], beta, alpha)
        });
    }
    check_of("einsum", &square, &[signed, share, signed], &|x| {
        ShardTensor::einsum("ij,jk,kl->il", &[&x[0], &x[1], &x[2]])
    });
    check_of("einsum of a sum", &square, &[signed, share], &|x| {
        ShardTensor::einsum("ij,jk->k", &[&x[0], &x[1]])
    });
    check_of("cross", &[4, 3], &[signed, share], &|x| {
        x[0].cross(&x[1], 1)
    });
    check_of("conv_transpose", &[3, 3, 3, 3], &[signed, share], &|x| {
        let bias = x[1].detach().select(3, 0)?.select(0, 0)?.select(0, 0)?;
        let bias = bias.redistribute(Placements::replicated())?;
        x[0].conv_transpose(&x[1], Some(&bias), ConvTransposeOptions::new())
    });
}

#[test]
fn scans_and_samples_of_16_bits_are_rounded_once() {
    for dim in [0, 1] {
        check("cumprod", &[signed], &|x| x[0].cumprod(dim));
        check("logcumsumexp", &[signed], &|x| x[0].logcumsumexp(dim));
        for backwards in [false, true] {
            check("linear_recurrence", &[signed, share, large], &|x| {
                let first = x[2].narrow(dim, 1..2)?;
                x[0].linear_recurrence(&x[1], Some(&first), dim, backwards)
            });
        }
    }
    check("amax", &[|i| (i % 3) as f64], &|x| x[0].amax([0, 1], false));
    check("scatter_reduce", &[signed, share], &|x| {
        let index = x[1].detach().mul_scalar(4.0)?.to(DType::I64)?;
        x[0].scatter_reduce(0, &index, &x[1], ScatterReduce::Mean, true)
    });
    let sampling = Sampling {
        mode: SampleMode::Linear,
        edge: SampleEdge::Zeros,
        aligned: false,
    };
    check_of("grid_sample", &[4, 3, 3, 2], &[signed, signed], &|x| {
        x[0].grid_sample(&x[1], sampling)
    });
    check_of("deform_conv", &[2, 2, 3, 4], &[signed, signed], &|x| {
        let weight = x[1].narrow(0, ..1)?;
        let offset = x[1]
            .detach()
            .narrow(1, ..1)?
            .narrow(2, ..1)?
            .narrow(3, ..1)?;
        let offset = offset.expand([2, 2 * 12, 1, 1])?;
        x[0].deform_conv(&offset, &weight, None, None, ConvOptions::new())
    });
}

#[test]
fn running_statistics_of_16_bits_are_rounded_once() {
    for of_mean in [true, false] {
        check_of("batch_norm", &[4, 3, 5], &[signed, share], &|x| {
            let kept = |i| {
                let numbers = x[1].detach().select(2, i)?.select(0, i)?;
                numbers.redistribute(Placements::replicated())
            };
            let (mean, var) = (kept(0)?, kept(1)?);
            let (_, moved) =
                x[0].detach()
                    .batch_norm(Some((&mean, &var)), [None, None], true, 0.3, 1e-5)?;
            let (mean, var) = moved.unwrap();
            // What the check differentiates is the tensor itself.
            let zero = x[0].select(2, 0)?.select(0, 0)?.mul_scalar(0.0)?;
            if of_mean { mean } else { var }.add(&zero)
        });
    }
}

/// What rounding on the way would lose altogether.
#[test]
fn sums_beyond_the_type_have_means_and_roots_within() {
    let found = Launch::new(2).dtype(DType::F16).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let many = mesh.full([70000], 1.0, [shard(0)])?;
        let long = mesh.full([4], 300.0, [shard(0)])?;
        Ok([
            many.mean_all()?.item()?,
            long.norm(2.0, 0, false)?.item()?,
            many.mse_loss(&many.mul_scalar(3.0)?)?.item()?,
        ])
    });
    assert_eq!(found.unwrap()[1], [1.0, 600.0, 4.0]);
}

#[test]
fn long_sharded_dims_of_16_bits_are_sorted() {
    // So many that ranks find where to cut the runs of all, and none gathers them.
    const LEN: usize = 20_000;
    let mixed = |i: usize| ((i * 389 + 7) % 211) as f64 - 100.0;
    let sorted = |ranks, dtype| {
        let found = Launch::new(ranks).dtype(dtype).run(|ctx| {
            let x = ctx
                .mesh_of(ranks)?
                .from_fn([LEN], shard(0), |i| mixed(i[0]))?;
            let median = x.median(0)?;
            let all = [x.sort(0, true)?, x.topk(9_000, 0, false)?, median];
            (all.iter().flat_map(|(values, places)| [values, places]))
                .map(|x| {
                    Ok(x.to(DType::F64)?
                        .to_array::<f64>()?
                        .into_raw_vec_and_offset()
                        .0)
                })
                .collect::<Result<Vec<_>>>()
        });
        found.unwrap().swap_remove(0)
    };
    for dtype in [DType::F16, DType::BF16] {
        assert_eq!(sorted(3, dtype), sorted(1, DType::F32), "{dtype}");
    }
}
