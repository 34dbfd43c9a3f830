//! What is too large, and what never ends.

use shard_tensor::nn::{self, Module};
use shard_tensor::op::Handler;
use shard_tensor::{
    Attention, ConvOptions, ConvTransposeOptions, DType, DeviceFactory, EdgeMap, ErrorClass,
    FourierNorm, Launch, Mesh, Neighborhood, PoolOptions, Result, ShardTensor, launch, replicate,
    shard,
};
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn more_ranks_than_a_process_has_threads_for_are_refused() {
    for ranks in [1 << 22, 1 << 40, usize::MAX] {
        let error = Launch::new(ranks).run(|_| Ok(())).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        assert!(error.to_string().contains(&ranks.to_string()), "{error}");
    }
}

#[test]
fn meshes_of_more_ranks_than_there_are_are_refused() {
    let told = launch(2, |ctx| {
        let refused = |ranks, axis| {
            let error = ctx.mesh_on(ranks, [("data", axis)]).unwrap_err();
            (error.class(), error.to_string())
        };
        let all = 0..usize::MAX;
        Ok([
            refused(all.clone(), 2),
            refused(all, usize::MAX),
            refused(1..4, 3),
            refused(0..1, 2),
        ])
    });
    let told = told.unwrap();
    assert_eq!(told[0], told[1]);
    for (class, text) in &told[0] {
        assert_eq!(*class, ErrorClass::Uniform, "{text}");
    }
}

#[test]
fn a_tensor_too_large_to_count_is_refused_before_it_is_made() {
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([3, 2], [shard(0)])?;
        let errors = [
            x.repeat(0, 1 << 40).map(|_| ()),
            x.repeat(1, usize::MAX).map(|_| ()),
            x.pad(&[(0, 0), (1 << 40, 0)], EdgeMap::Circular, 0.0)
                .map(|_| ()),
            x.pad(&[(0, 0), (0, 1 << 40)], EdgeMap::Circular, 0.0)
                .map(|_| ()),
        ];
        assert_eq!(x.repeat(0, 3)?.sum_all()?.item()?, 18.0);
        Ok(errors.map(|e| e.map_err(|e| (e.class(), e.to_string()))))
    });
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
    for (i, error) in texts[0].iter().enumerate() {
        assert!(error.is_err(), "call {i}");
    }
}

/// As many elements can be counted, and not their bytes.
#[test]
fn a_result_whose_bytes_cannot_be_counted_is_refused() {
    type Huge = fn(&ShardTensor) -> Result<ShardTensor>;
    let huge: &[(&str, Huge)] = &[
        ("segment_max", |x| x.segment_max(&ids(x)?, 1 << 60)),
        ("segment_softmax", |x| x.segment_softmax(&ids(x)?, 1 << 60)),
        ("bincount_within", |x| {
            ids(x)?.bincount_within(None, 1 << 62)
        }),
        ("bincount", |x| {
            let far = ids(x)?.mul_scalar((1_u64 << 61) as f64)?;
            far.bincount(None, 0)
        }),
        ("radius_search_capped", |x| {
            Ok(x.radius_search_capped(x, 2.0, 1 << 60)?.indices)
        }),
    ];
    for ranks in [1, 3] {
        let done = Launch::new(ranks).run(|ctx| {
            let x = ctx.mesh_of(ranks)?.ones([3, 2], shard(0))?;
            let errors = huge.iter().map(|(op, make)| (*op, make(&x).map(drop)));
            let errors = errors.map(|(op, e)| (op, e.map_err(|e| e.to_string())));
            Ok(errors.collect::<Vec<_>>())
        });
        let done = done.unwrap();
        assert!(done.iter().all(|rank| *rank == done[0]), "{done:#?}");
        for (op, error) in &done[0] {
            let text = error.as_ref().expect_err(op);
            assert!(text.contains("memory"), "{op} on {ranks}: {text}");
        }
    }
}

/// What a matrix would take is more than a word counts, and there is none.
#[cfg(feature = "linalg")]
#[test]
fn factors_of_no_matrices_are_no_reason_to_panic() {
    type Empty = fn(&Mesh) -> Result<ShardTensor>;
    let empty: &[(&str, Empty)] = &[
        ("inv", |mesh| {
            mesh.zeros([0, 1 << 22, 1 << 22], shard(0))?.inv()
        }),
        ("pinv", |mesh| {
            mesh.zeros([0, 1 << 22, 1 << 22], shard(0))?.pinv(None)
        }),
        ("solve", |mesh| {
            let a = mesh.zeros([0, 1 << 22, 1 << 22], shard(0))?;
            a.solve(&mesh.zeros([0, 1 << 22, 1], shard(0))?)
        }),
    ];
    for (op, make) in empty {
        let counts = launch(2, |ctx| Ok(make(&ctx.mesh_of(2)?)?.numel()));
        assert_eq!(
            counts.unwrap_or_else(|e| panic!("{op}: {e}")),
            [0, 0],
            "{op}"
        );
    }
}

/// PyTorch's: norms of no elements are 0, the least of none is refused, and a singular matrix has the condition infinity.
#[cfg(feature = "linalg")]
#[test]
fn norms_of_no_matrices_and_conditions_of_singular_ones() {
    use shard_tensor::MatrixNorm::{Frobenius, Nuclear};
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        for shape in [[0, 3], [3, 0], [0, 0]] {
            let nothing = mesh.zeros(shape, replicate())?;
            for order in [
                Frobenius,
                Nuclear,
                1.0.into(),
                2.0.into(),
                f64::INFINITY.into(),
            ] {
                let norm = nothing.matrix_norm(order, false)?.item()?;
                assert_eq!(norm, 0.0, "{order:?} of {shape:?}");
            }
            for order in [1.0, -1.0, 2.0, -2.0] {
                assert_eq!(nothing.cond(order)?.item()?, 0.0, "{order} of {shape:?}");
            }
            let least = nothing.matrix_norm(-2.0, false);
            assert_eq!(least.unwrap_err().class(), ErrorClass::Uniform);
        }
        let rows = mesh.zeros([0, 3], replicate())?;
        assert!(rows.matrix_norm(f64::NEG_INFINITY, false).is_err());
        let flat = mesh.from_fn([3, 2, 2], shard(0), |i| {
            (i[0] * (1 + i[1]) * (1 + i[2])) as f64
        })?;
        for order in [Frobenius, 1.0.into(), (-1.0).into(), f64::INFINITY.into()] {
            let found = flat.cond(order)?.to_array::<f32>()?;
            assert!(
                found.iter().all(|c| *c == f32::INFINITY),
                "{order:?}: {found}"
            );
        }
        let none = mesh.full([2, 2], f64::NAN, replicate())?;
        assert!(none.cond(1.0)?.item()?.is_nan());
        Ok(())
    })
    .unwrap();
}

/// As in PyTorch, a batch without samples is no reason to forget.
#[test]
fn a_batch_of_nothing_leaves_running_statistics() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (mean, var) = (
            mesh.full(2, 3.0, replicate())?,
            mesh.full(2, 4.0, replicate())?,
        );
        for shape in [[0, 2, 3], [1, 2, 0]] {
            let x = mesh.zeros(shape, shard(0))?;
            let (_, kept) = x.batch_norm(Some((&mean, &var)), [None, None], true, 0.5, 1e-5)?;
            let (mean, var) = kept.expect("running statistics");
            let sums = (mean.sum_all()?.item()?, var.sum_all()?.item()?);
            assert_eq!(sums, (6.0, 8.0), "{shape:?}");
            let running = (&mean, &var);
            let (_, kept) = x.instance_norm_running(running, [None, None], true, 0.5, 1e-5)?;
            let sums = (kept.0.sum_all()?.item()?, kept.1.sum_all()?.item()?);
            assert_eq!(sums, (6.0, 8.0), "of samples, {shape:?}");
        }
        Ok(())
    })
    .unwrap();
}

/// Numbers that windows come to, and pads that a sign would turn into cropping.
#[test]
fn options_of_windows_that_cannot_be_counted_are_refused() {
    let refused = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let (x, weight) = (
            mesh.ones([1, 1, 3], shard(2))?,
            mesh.ones([1, 1, 2], shard(2))?,
        );
        let index = mesh.with_dtype(DType::I64).zeros([1, 1, 3], shard(2))?;
        let edges = [EdgeMap::Replicate, EdgeMap::Reflect, EdgeMap::Circular];
        let convs = edges.iter().flat_map(|&edge| {
            let options = ConvOptions::new().edge(edge);
            [(usize::MAX, 0), (0, usize::MAX - 1)]
                .map(|pads| x.conv(&weight, None, options.clone().padding_each([pads])))
        });
        let pools = [
            PoolOptions::new(usize::MAX),
            PoolOptions::new(2).stride(usize::MAX),
            PoolOptions::new(2).padding(usize::MAX),
        ];
        let unpools = pools.map(|options| x.max_unpool_of(&index, options));
        Ok((convs.chain(unpools))
            .map(|y| y.map(|y| y.shape().to_vec()).map_err(|e| e.class()))
            .collect::<Vec<_>>())
    });
    for (call, found) in refused.unwrap().concat().into_iter().enumerate() {
        assert_eq!(found, Err(ErrorClass::Uniform), "{call}");
    }
}

/// The rows 0, 1 and 2.
fn ids(x: &ShardTensor) -> Result<ShardTensor> {
    x.mesh().with_dtype(DType::I64).arange(3, shard(0))
}

/// Where numbers are on their way to a device too.
#[test]
fn more_numbers_than_memory_has_are_an_error() {
    let devices = DeviceFactory::new(|_rank| Ok(shard_comm::TestDevice::new()));
    for launch in [Launch::new(1), Launch::new(1).devices(devices)] {
        let errors = launch.run(|ctx| {
            let made = ctx.mesh_of(1)?.from_fn(1 << 50, [shard(0)], |_| 1.0);
            Ok(made.map(drop).map_err(|e| (e.class(), e.to_string())))
        });
        let (class, text) = errors.unwrap().remove(0).unwrap_err();
        assert_eq!(class, ErrorClass::Failure);
        assert!(text.contains("out of memory"), "{text}");
    }
}

/// A handler that hands its op back to the engine gets what the op does without it.
#[test]
fn a_handler_may_run_its_own_op() {
    let calls = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.from_fn(4, [shard(0)], |i| i[0] as f64 - 1.0)?;
        let calls = Rc::new(Cell::new(0));
        let count = calls.clone();
        let again: Handler = Rc::new(move |engine, op, inputs| {
            count.set(count.get() + 1);
            engine.run(op, inputs)
        });
        ctx.register("relu", again);
        for _ in 0..2 {
            assert_eq!(x.relu()?.sum_all()?.item()?, 3.0);
        }
        Ok(calls.get())
    });
    assert_eq!(calls.unwrap(), [2, 2]);
}

/// A call on a mesh.
type Call = fn(&Mesh) -> Result<()>;

/// Calls with arguments that nobody means, after the op or what else their errors name.
const ABSURD: &[(&str, Call)] = &[
    ("repeat_interleave along no dim", |m| {
        let x = m.ones([3, 2], [shard(0)])?;
        x.repeat_interleave(2, 2).map(drop)
    }),
    ("repeat_interleave of a number", |m| {
        let x = m.ones([3], [shard(0)])?.sum_all()?;
        x.repeat_interleave(0, 2).map(drop)
    }),
    ("repeat_interleave without end", |m| {
        let x = m.ones([2, 0], [shard(0)])?;
        x.repeat_interleave(0, usize::MAX).map(drop)
    }),
    ("chunk of nothing", |m| {
        let x = m.ones([3, 0], [shard(0)])?;
        x.chunk(1 << 40, 1).map(drop)
    }),
    ("pixel_shuffle", |m| {
        let x = m.ones([1, 0, 2, 2], [shard(2)])?;
        x.pixel_shuffle(usize::MAX).map(drop)
    }),
    ("pixel_shuffle of planes", |m| {
        let x = m.ones([1, 0, 4, 4], [shard(2)])?;
        x.pixel_shuffle(1 << 31).map(drop)?;
        x.pixel_shuffle(1 << 62).map(drop)
    }),
    ("pixel_unshuffle", |m| {
        let x = m.ones([1, 3, 0, 0], [shard(1)])?;
        x.pixel_unshuffle(1 << 40).map(drop)
    }),
    ("avg_pool by nothing", |m| {
        let x = m.ones([4, 1, 6], [shard(0)])?.sum([0], true)?;
        x.avg_pool(PoolOptions::new(2).divisor(0)).map(drop)
    }),
    ("pad of two dims", |m| {
        let x = m.ones([3, 2], [shard(0)])?;
        let pads = [(1 << 40, 0), (0, 1 << 40)];
        x.pad(&pads, EdgeMap::Zeros, 0.0).map(drop)
    }),
    ("histogram", |m| {
        let x = m.arange(5, [shard(0)])?;
        x.histogram(usize::MAX, None, false).map(drop)
    }),
    ("histogramdd", |m| {
        let bins = [1 << 16; 4].map(Into::into);
        let x = m.ones([5, 4], [shard(0)])?;
        x.histogramdd(&bins, None, false).map(drop)
    }),
    ("conv by itself", |m| {
        let x = m.ones([1, 1, 6], [shard(2)])?;
        let options = ConvOptions::new().same().dilation(usize::MAX);
        x.conv1d(&m.ones([1, 1, 3], [shard(0)])?, None, options)
            .map(drop)
    }),
    ("attention times no number", |m| {
        let x = m.ones([1, 1, 4, 2], [shard(2)])?;
        let options = Attention::new().scale(f64::NAN);
        x.attention(&x, &x, None, &options).map(drop)
    }),
    ("attention times infinity", |m| {
        let x = m.ones([1, 1, 4, 2], [shard(2)])?;
        let options = Attention::new().scale(f64::INFINITY);
        x.attention(&x, &x, None, &options).map(drop)
    }),
    ("normalise by weights of other features", |m| {
        let x = m.ones([2, 3, 7], [shard(0)])?;
        nn::LayerNorm::new(m, 9)?.forward(&x).map(drop)
    }),
    ("normalise by one weight", |m| {
        let x = m.ones([2, 3, 7], [shard(1)])?;
        nn::RmsNorm::new(m, 1)?.forward(&x).map(drop)
    }),
    ("normalise nothing", |m| {
        let x = m.ones([2, 0], [shard(0)])?;
        nn::LayerNorm::new(m, 3)?.forward(&x).map(drop)
    }),
    ("normalise by a bias of other features", |m| {
        let x = m.ones([2, 7], [shard(1)])?;
        x.layer_norm(1, None, Some(&m.ones(8, [shard(0)])?), 1e-5)
            .map(drop)
    }),
    ("normalise channels by other weights", |m| {
        let x = m.ones([2, 4, 3], [shard(2)])?;
        nn::GroupNorm::new(m, 2, 2)?.forward(&x).map(drop)
    }),
    ("uniform weights of a convolution", |m| {
        nn::Conv::new(m, 1 << 40, 3, [1 << 40, 3], ConvOptions::new()).map(drop)
    }),
    ("uniform weights of a transposed one", |m| {
        let options = ConvTransposeOptions::new();
        nn::ConvTranspose::new(m, 3, 1 << 40, [1 << 40, 3], options).map(drop)
    }),
    ("uniform weights of attention", |m| {
        nn::MultiheadAttention::new(m, usize::MAX / 3 + 2, 1).map(drop)
    }),
    ("TransformerEncoder of endless layers", |m| {
        let layer = || nn::TransformerEncoderLayer::new(m, 4, 2, 4);
        nn::TransformerEncoder::new(9 << 59, layer).map(drop)
    }),
    ("TransformerDecoder of endless layers", |m| {
        let layer = || nn::TransformerDecoderLayer::new(m, 4, 2, 4);
        nn::TransformerDecoder::new(9 << 59, layer).map(drop)
    }),
    ("Gru of endless layers", |m| {
        nn::Gru::bidirectional(m, 2, 2, 1 << 60).map(drop)
    }),
    ("neighborhood_attention times no number", |m| {
        let x = m.ones([1, 4, 1, 2], [shard(1)])?;
        let near = Neighborhood::new([3]).scale(f64::NAN);
        x.neighborhood_attention(&x, &x, &near).map(drop)
    }),
];

#[test]
fn what_nobody_means_is_an_error() {
    let mut wrong = Vec::new();
    for &(call, make) in ABSURD {
        for ranks in [1, 2] {
            let done = Launch::new(ranks).run(|ctx| {
                let made = make(&ctx.mesh_of(ranks)?);
                Ok(made.map_err(|e| (e.class(), e.to_string())))
            });
            let op = call.split(' ').next().unwrap_or_default();
            let is_right = |made: &std::result::Result<(), (ErrorClass, String)>| match made {
                Err((ErrorClass::Uniform, text)) => text.contains(op) || text.contains("shape"),
                _ => false,
            };
            if !done.as_ref().is_ok_and(|all| all.iter().all(is_right)) {
                wrong.push(format!("{call} on {ranks} ranks: {done:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An op on a tensor.
type Tried = fn(&ShardTensor) -> Result<ShardTensor>;

/// Ops that look along dims.
const ALONG_DIMS: &[(&str, Tried)] = &[
    ("softmax", |x| x.softmax(1)),
    ("cumsum", |x| x.cumsum(1)),
    ("linear_recurrence", |x| {
        x.linear_recurrence(x, None, 1, true)
    }),
    ("cummax", |x| x.cummax(1).map(|pair| pair.0)),
    ("sort", |x| x.sort(1, false).map(|pair| pair.0)),
    ("argsort", |x| x.argsort(0, true)),
    ("topk", |x| x.topk(0, 1, true).map(|pair| pair.0)),
    ("topk of one", |x| x.topk(1, 1, true).map(|pair| pair.0)),
    ("median", |x| x.median(1).map(|pair| pair.0)),
    ("argmax", |x| x.argmax([1])),
    ("amax", |x| x.amax([0], false)),
    ("var", |x| x.var([1], 1.0, false)),
    ("norm", |x| x.norm(2.0, [1], false)),
    ("logsumexp", |x| x.logsumexp([1], false)),
    ("layer norm", |x| x.layer_norm(1, None, None, 1e-5)),
    ("rms norm", |x| x.rms_norm(1, None, None)),
    ("cdist", |x| x.cdist(x, 2.0)),
    ("nearest", |x| x.nearest(x, 1).map(|pair| pair.0)),
    ("product", |x| x.matmul(&x.permute([1, 0])?)),
    ("einsum", |x| ShardTensor::einsum("ab,cb->ac", &[x, x])),
    ("flip", |x| x.flip(1)),
    ("roll", |x| x.roll(1, 1)),
    ("tril", |x| x.tril(0)),
    ("unique", |x| x.unique()),
    ("fft", |x| x.rfft(Some(5), 1, FourierNorm::Ortho)),
];

/// The right result or an error, and never a panic: a rank of a training may be left without a point.
#[test]
fn what_has_no_elements_is_no_reason_to_panic() {
    for shape in [[3, 0], [0, 3], [0, 0]] {
        for (ranks, (op, apply)) in [1, 2]
            .into_iter()
            .flat_map(|r| ALONG_DIMS.iter().map(move |op| (r, op)))
        {
            for at in [0, 1] {
                let done = Launch::new(ranks).run(|ctx| {
                    let mesh = ctx.mesh_of(ranks)?;
                    let x = mesh.ones(shape, [shard(at)])?;
                    let given = apply(&x).map(drop).map_err(|e| e.class());
                    // With gradients too, where there are any.
                    let taped = apply(&x.requires_grad()?);
                    if let Ok(y) = &taped {
                        let back = y.sum_all().and_then(|sum| sum.backward());
                        let back = back.map(drop).map_err(|e| e.class());
                        assert_ne!(back, Err(ErrorClass::Failure), "{op} of {shape:?}");
                    }
                    let taped = taped.map(drop).map_err(|e| e.class());
                    assert_eq!(given, taped);
                    Ok(given)
                });
                let done = done.unwrap_or_else(|e| panic!("{op} of {shape:?}: {e}"));
                assert!(done.iter().all(|of| *of == done[0]), "{op} of {shape:?}");
                assert_ne!(done[0], Err(ErrorClass::Failure), "{op} of {shape:?}");
            }
        }
    }
}

/// Prices of moves are of what could be there: next to an extent of none others may be beyond all memory.
#[test]
fn large_extents_of_nothing_are_no_reason_to_panic() {
    type Applied = fn(&ShardTensor) -> Result<ShardTensor>;
    let calls: [(&str, [usize; 3], Applied); 2] = [
        ("sort", [1 << 61, 1, 0], |x| Ok(x.sort(2, false)?.0)),
        ("rfft", [0, 1 << 59, 2], |x| {
            x.rfft(Some(4), 2, FourierNorm::Ortho)
        }),
    ];
    for (name, shape, apply) in calls {
        for dim in 0..3 {
            for ranks in [1, 2, 3] {
                let done = Launch::new(ranks).run(|ctx| {
                    let x = ctx.mesh_of(ranks)?.zeros(shape, shard(dim))?;
                    Ok(apply(&x).map(|y| y.numel()).map_err(|e| e.class()))
                });
                let done = done.unwrap_or_else(|e| panic!("{name} by {dim}: {e}"));
                let refused = Err(ErrorClass::Uniform);
                assert!(
                    done.iter().all(|y| *y == Ok(0) || *y == refused),
                    "{name}: {done:?}"
                );
            }
        }
    }
}
