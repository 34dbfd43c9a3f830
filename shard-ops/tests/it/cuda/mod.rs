//! Kernels for GPUs: their texts compile, and on the emulated GPU, or a real one where there is one, they do what the host does.

mod attention;
#[cfg(feature = "cuda-emulated")]
mod fft;
#[cfg(feature = "cuda-emulated")]
mod formulas;
mod typed;

use crate::ranks::{gpus, on_device};
#[cfg(feature = "cuda-emulated")]
use shard_comm::MatmulPrecision;
use shard_comm::cuda::{KernelSource, compile_to_ptx};
use shard_comm::{DType, DeviceError, DeviceKind, ErrorClass};
use shard_ops::inside::{Cells, Normalise, PairsGrad, Softmax, Statistics, texts};
use shard_ops::random::{Distribution, random};
use shard_ops::rng::Stream;
use shard_ops::{
    Cotangents, Engine, Exec, FoldBy, Grads, HostCall, KernelPolicy, Linearity, Meta, Op, OpError,
    Result, RowCuts, Rule, Saved, Value, elementwise, key_of, neighbors,
};
#[cfg(feature = "cuda-emulated")]
use shard_ops::{conv, index, matmul, reduce, shape};
use shard_redistribute::Array;
use shard_spec::{Layout, Partition};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Each text compiles to PTX, where there is a compiler of NVIDIA's.
#[test]
fn texts_compile_to_ptx() {
    for (source, defines) in texts() {
        assert_compiles(source, defines);
    }
}

/// No text of a family is left out: as many are tried as stand in the files.
#[test]
fn all_texts_are_tried() {
    let families = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/families");
    let of_file = |file: std::fs::DirEntry| {
        let is_for_gpus = file.file_name().to_string_lossy().ends_with("cuda.rs");
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        match is_for_gpus {
            true => text.matches("cuda_source!(").count(),
            false => 0,
        }
    };
    let families = std::fs::read_dir(families).unwrap();
    let folders = families.flat_map(|family| std::fs::read_dir(family.unwrap().path()));
    let there: usize = folders.flatten().map(|file| of_file(file.unwrap())).sum();
    let tried: BTreeSet<&str> = texts().map(|(source, _)| source.text).collect();
    assert_eq!(tried.len(), there);
}

pub(crate) fn assert_compiles(source: &KernelSource, defines: &str) {
    match compile_to_ptx(source, defines, "compute_80") {
        Ok(bytes) => assert!(bytes > 500, "{}", source.name),
        Err(DeviceError::Library { call: "nvrtc", .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Runs `f` on each kind of GPU, on several ranks that each have a replicated vector. Returns the results of all ranks of each
/// kind.
fn on_gpus<T: Send>(ranks: usize, f: impl Fn(&Engine, Value) -> T + Sync) -> Vec<Vec<T>> {
    let run = |kind| on_kind(kind, ranks, &f);
    gpus().into_iter().map(run).collect()
}

fn on_kind<T: Send>(
    device: DeviceKind,
    ranks: usize,
    f: impl Fn(&Engine, Value) -> T + Sync,
) -> Vec<T> {
    on_device(device, &[ranks], |cx, engine| {
        let layout = Layout::replicated(cx.mesh(), &[4]);
        let local = cx.device().upload_slice(&[1.0f64, 2.0, 3.0, 4.0]).unwrap();
        let x = Array::from_local(cx, &layout, Some(local), DType::F64).unwrap();
        f(engine, Value::new(x))
    })
}

fn elements(value: &Value) -> Vec<f64> {
    value.array().buffer().unwrap().to_vec().unwrap()
}

#[test]
fn an_op_with_a_kernel_stays_on_the_gpu() {
    let moved = on_gpus(2, |engine, x| {
        let y = elementwise::add(engine, &x, &x).unwrap();
        assert_eq!(elements(&y), [2.0, 4.0, 6.0, 8.0]);
        y.array().cx().world().ledger().snapshot().fallbacks
    });
    assert!(moved.iter().all(|ranks| ranks == &[0, 0]), "{moved:?}");
}

/// The results of a program on two ranks under a policy, and how many of its kernel calls the emulated libraries computed.
#[cfg(feature = "cuda-emulated")]
pub(crate) fn under(
    policy: KernelPolicy,
    program: impl Fn(&dyn Exec, &Value) -> Value + Sync,
) -> Vec<(Vec<f64>, u64)> {
    on_kind(DeviceKind::EmulatedCuda, 2, |engine, x| {
        engine.set_kernels(policy);
        let y = program(engine, &x);
        let calls = x.array().cx().world().ledger().snapshot().library_calls;
        (elements(&y), calls)
    })
}

#[cfg(feature = "cuda-emulated")]
#[test]
fn products_and_convolutions_go_by_the_libraries_unless_the_engine_says_not() {
    let product = |exec: &dyn Exec, x: &Value| {
        let square = shape::reshape(exec, x, &[2, 2]).unwrap();
        matmul::linear(exec, &square, &square, None).unwrap()
    };
    let convolution = |exec: &dyn Exec, x: &Value| {
        let x = shape::reshape(exec, x, &[1, 2, 2]).unwrap();
        let w = shape::reshape(exec, &x, &[2, 2, 1]).unwrap();
        let bias = shape::reshape(exec, &w, &[4]).unwrap();
        let bias = index::slice(exec, &bias, 0, 0, 1, 2).unwrap();
        conv::conv(exec, &x, &w, Some(&bias), &conv::ConvOptions::default()).unwrap()
    };
    let own = KernelPolicy {
        libraries: false,
        ..KernelPolicy::default()
    };
    for (program, expected) in [
        (
            &product as &(dyn Fn(&dyn Exec, &Value) -> Value + Sync),
            [5.0, 11.0, 11.0, 25.0],
        ),
        (&convolution, [8.0, 11.0, 17.0, 24.0]),
    ] {
        let with = under(KernelPolicy::default(), program);
        assert_eq!(with, vec![(expected.to_vec(), 1); 2]);
        assert_eq!(under(own, program), vec![(expected.to_vec(), 0); 2]);
    }
}

#[cfg(feature = "cuda-emulated")]
#[test]
fn products_of_f32_are_in_full_unless_the_engine_says_not() {
    // A number with one more bit than TF32 has.
    let bit = 2.0_f64.powi(-11);
    let square = |exec: &dyn Exec, x: &Value| {
        let x = elementwise::add_scalar(
            exec,
            &elementwise::mul_scalar(exec, x, 0.0).unwrap(),
            1.0 + bit,
        );
        let x = elementwise::cast(exec, &x.unwrap(), DType::F32).unwrap();
        let y = matmul::dot(exec, &x, &x).unwrap();
        elementwise::cast(exec, &y, DType::F64).unwrap()
    };
    let tf32 = KernelPolicy {
        precision: MatmulPrecision::Tf32,
        ..KernelPolicy::default()
    };
    let (full, rounded) = (under(KernelPolicy::default(), square), under(tf32, square));
    let exact = 4.0 * (1.0 + bit).powi(2);
    assert_eq!(full[0].0, [f64::from(exact as f32)]);
    assert_eq!(rounded[0].0, [4.0 * (1.0 + 2.0 * bit).powi(2)]);
}

/// Sums that 16 bits do not hold, of operands of 16 bits that kernels read as they are.
#[cfg(feature = "cuda-emulated")]
#[test]
fn steps_of_16_bits_are_left_in_full() {
    let halves = |exec: &dyn Exec, x: &Value, by: f64| {
        let x = elementwise::mul_scalar(exec, x, by).unwrap();
        elementwise::cast(exec, &x, DType::F16).unwrap()
    };
    let mean = |exec: &dyn Exec, x: &Value| {
        reduce::mean(exec, &halves(exec, x, 10240.0), &[0], false).unwrap()
    };
    // 2115 - 2114, of which the first takes 12 bits.
    let product = |exec: &dyn Exec, x: &Value| {
        let a = shape::reshape(exec, &halves(exec, x, 1.0), &[1, 4]).unwrap();
        let b = shape::reshape(exec, &halves(exec, x, 70.5), &[4, 1]).unwrap();
        let c = index::slice(exec, &halves(exec, x, -2114.0), 0, 0, 1, 1).unwrap();
        matmul::baddbmm(exec, &c, &a, &b, 1.0, 1.0).unwrap()
    };
    let transposed = |exec: &dyn Exec, x: &Value| {
        let a = shape::reshape(exec, &halves(exec, x, 1.0), &[1, 4, 1]).unwrap();
        let w = shape::reshape(exec, &halves(exec, x, 70.5), &[4, 1, 1]).unwrap();
        let bias = index::slice(exec, &halves(exec, x, -2114.0), 0, 0, 1, 1).unwrap();
        let options = conv::ConvTransposeOptions::default();
        conv::conv_transpose(exec, &a, &w, Some(&bias), &options).unwrap()
    };
    let own = KernelPolicy {
        libraries: false,
        ..KernelPolicy::default()
    };
    type Program<'a> = &'a (dyn Fn(&dyn Exec, &Value) -> Value + Sync);
    let programs: [(Program<'_>, f64); 3] = [(&mean, 25600.0), (&product, 1.0), (&transposed, 1.0)];
    for (program, expected) in programs {
        for policy in [KernelPolicy::default(), own] {
            let found = under(policy, |exec, x| {
                let y = program(exec, x);
                assert_eq!(y.dtype(), DType::F16);
                elementwise::cast(exec, &y, DType::F64).unwrap()
            });
            assert!(found.iter().all(|(y, _)| *y == [expected]), "{found:?}");
        }
    }
}

#[test]
fn ranks_of_different_policies_are_found_out_at_the_next_exchange() {
    let errors = on_gpus(2, |engine, x| {
        let cx = x.array().cx().clone();
        engine.set_kernels(KernelPolicy {
            libraries: cx.world().rank() == 0,
            ..KernelPolicy::default()
        });
        let y = elementwise::add(engine, &x, &x).unwrap();
        let sharded = Layout::builder(cx.mesh(), &[4]).shard(0, &[0], Partition::chunk(4, 2));
        let y = y.array().redistribute(&sharded.build().unwrap()).unwrap();
        let whole = y.redistribute(&Layout::replicated(cx.mesh(), &[4]));
        whole.unwrap_err().to_string()
    });
    for ranks in errors {
        assert_eq!(ranks[0], ranks[1]);
        assert!(ranks[0].contains("the calls before"), "{}", ranks[0]);
    }
}

/// A user's own op, with a kernel for the host alone.
#[derive(Debug)]
struct Twice;

impl Op for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn key(&self) -> u128 {
        key_of("twice", &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        Rule::pointwise("twice", inputs, inputs[0].dtype, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f64>(0).to_vec();
        for (y, x) in call.output::<f64>(0).data_mut().iter_mut().zip(x) {
            *y = 2.0 * x;
        }
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
        Ok(vec![None])
    }
}

#[test]
fn an_op_without_one_is_the_same_error_on_all_ranks_or_goes_by_the_host_if_told() {
    let errors = on_gpus(2, |engine, x| {
        let again = || engine.apply1(Arc::new(Twice), &[&x]);
        let error = again().unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        assert!(matches!(error, OpError::NoKernel { .. }), "{error}");
        engine.set_host_fallback(true);
        let y = again().unwrap();
        let ledger = y.array().cx().world().ledger().snapshot();
        // The operand and the result go to the host, and the result comes back.
        assert_eq!((ledger.fallbacks, ledger.fallback_bytes), (1, 8 * 3 * 4));
        assert_eq!(elements(&y), [2.0, 4.0, 6.0, 8.0]);
        error.to_string()
    });
    assert!(errors.iter().all(|ranks| ranks[0] == ranks[1]));
}

/// Farthest points and tables of neighbours among points on a small grid, where nearly every distance is a tie.
fn among_points(device: DeviceKind, ranks: usize, by: FoldBy) -> Vec<(Vec<i64>, Vec<f64>)> {
    on_device(device, &[ranks], |cx, engine| {
        let mesh = cx.mesh();
        // The rows of part 0 are not consecutive, so positions come as a list.
        let rows = Partition::zigzag(17, ranks);
        let layout = Layout::builder(mesh, &[17, 2]).shard(0, &[0], rows);
        let layout = layout.build().unwrap();
        let at = |i: &[usize]| match (i[0], i[1]) {
            (5, _) => f64::NAN,
            (row, d) => ((row * 7 + d * 3) % 4) as f64,
        };
        let points = Value::new(Array::from_fn(cx, &layout, at).unwrap());
        let far = neighbors::farthest_points(engine, &points, 17, 3, by).unwrap();
        let near = neighbors::radius_search_capped(engine, &points, &points, 1.5, 4, by).unwrap();
        let mut indices: Vec<i64> = far.array().buffer().unwrap().to_vec().unwrap();
        for of in [&near.indices, &near.counts] {
            indices.extend(of.array().buffer().unwrap().to_vec::<i64>().unwrap());
        }
        // The same in three clouds, of which one has no points and one no queries, and numbers of two that stand in no order.
        let numbers = |at: fn(usize) -> usize| {
            let layout = Layout::builder(mesh, &[17])
                .shard(0, &[0], Partition::zigzag(17, ranks))
                .build()
                .unwrap();
            Value::new(Array::from_fn(cx, &layout, |i| at(i[0]) as i64).unwrap())
        };
        let (own, others) = (numbers(|i| i % 3), numbers(|i| (i * 5) % 4 * (i % 2)));
        let clouds = neighbors::Clouds {
            queries: &own,
            points: &others,
        };
        let far = neighbors::farthest_points_by_cloud(engine, &points, &others, 5, 9, by).unwrap();
        let (_, found) =
            neighbors::nearest_by_cloud(engine, &points, &points, clouds, 3, by).unwrap();
        let within =
            neighbors::radius_search_by_cloud(engine, &points, &points, clouds, 1.5, by).unwrap();
        for of in [&far, &found, &within.pairs, &within.counts] {
            indices.extend(of.array().buffer().unwrap().to_vec::<i64>().unwrap());
        }
        // Pairs, and the gradient of half the sum of their squared distances.
        let all = neighbors::radius_search(engine, &points, &points, 1.5, by).unwrap();
        indices.extend(all.pairs.array().buffer().unwrap().to_vec::<i64>().unwrap());
        let cuts = RowCuts::between("test", all.counts.layout(), all.distances.layout()).unwrap();
        let grad = Arc::new(PairsGrad {
            ring: by,
            cuts: Arc::new(cuts),
        });
        let operands = [&points, &points, &all.pairs, &all.distances, &all.distances];
        let grads = engine.apply(grad, &operands).unwrap();
        let numbers = [&near.distances, &all.distances, &grads[0], &grads[1]];
        let finite = numbers.map(elements).concat().into_iter();
        (
            indices,
            finite.map(|x| if x.is_nan() { -1.0 } else { x }).collect(),
        )
    })
}

#[test]
fn points_have_the_hosts_neighbours() {
    for ranks in 1..4 {
        for by in [FoldBy::Ring, FoldBy::Gather, FoldBy::Split] {
            let expected = among_points(DeviceKind::Host, ranks, by);
            for kind in gpus() {
                let found = among_points(kind, ranks, by);
                assert_eq!(found, expected, "{ranks} ranks, {by:?}, {kind}");
            }
        }
    }
}

/// The pieces that each rank holds of random arrays of every type with a distribution, as bytes.
fn drawn(device: DeviceKind, ranks: usize, how: Distribution) -> Vec<Vec<(DType, Vec<u8>)>> {
    on_kind(device, ranks, |_, x| {
        let cx = x.array().cx().clone();
        let mesh = cx.mesh();
        let mut all = Vec::new();
        let zigzag = Layout::builder(mesh, &[3, 29]).shard(1, &[0], Partition::zigzag(29, ranks));
        let mut layouts = vec![zigzag.build().unwrap()];
        for text in ["S(0)", "R", "P(sum)"] {
            layouts.push(Layout::parse(mesh, &[5, 7, 3], text).unwrap());
        }
        layouts.push(Layout::parse(mesh, &[0, 3], "S(0)").unwrap());
        layouts.push(Layout::parse(mesh, &[], "R").unwrap());
        // One dim more than kernels support.
        layouts.push(Layout::parse(mesh, &[2, 1, 2, 1, 2, 1, 2, 1, 2], "S(8)").unwrap());
        for (call, layout) in layouts.iter().enumerate() {
            for dtype in DType::ALL {
                // Calls and seeds beyond 32 bits.
                let stream = Stream::new((7 << 40) + 3, (5 << 33) + call as u64);
                let array = random(&cx, layout, dtype, &stream, how).unwrap();
                let bytes = array.buffer().map(|b| cx.device().download(b).unwrap());
                all.push((dtype, bytes.unwrap_or_default()));
            }
        }
        all
    })
}

/// The difference of two floats of a type, in units in the last place.
fn ulps<T: bytemuck::Pod>(a: &[u8], b: &[u8], bits: impl Fn(T) -> i64) -> i64 {
    let all = |bytes: &[u8]| bytemuck::allocation::pod_collect_to_vec::<u8, T>(bytes);
    let pairs = all(a).into_iter().zip(all(b));
    let apart = pairs.map(|(a, b)| (bits(a) - bits(b)).abs());
    apart.max().unwrap_or(0)
}

#[test]
fn random_numbers_have_the_hosts_bits_under_any_layout() {
    let range = Distribution::Uniform {
        start: -3.0,
        width: 300.0,
    };
    for ranks in [1, 3] {
        for how in [Distribution::Unit, range, Distribution::Normal] {
            let expected = drawn(DeviceKind::Host, ranks, how);
            for kind in gpus() {
                for (found, expected) in drawn(kind, ranks, how).iter().zip(&expected) {
                    for ((dtype, a), (_, b)) in found.iter().zip(expected) {
                        assert_eq!(a.len(), b.len());
                        // The logarithm and the cosine of a GPU may differ from those of the host.
                        let apart = match (dtype, how) {
                            (DType::F64, Distribution::Normal) => ulps::<i64>(a, b, |x| x),
                            (DType::F32, Distribution::Normal) => ulps::<i32>(a, b, i64::from),
                            (DType::F16 | DType::BF16, Distribution::Normal) => {
                                ulps::<i16>(a, b, i64::from)
                            }
                            _ => i64::from(a != b) * i64::MAX,
                        };
                        assert!(apart <= 2, "{kind} {how:?} {dtype}: {apart} ulp");
                    }
                }
            }
        }
    }
}

/// Softmax of rows and norms of cells that lie whole, with gradients, on ranks that divide the rows.
fn of_rows(device: DeviceKind, ranks: usize) -> Vec<Vec<f64>> {
    let all = on_kind(device, ranks, |engine, x| {
        let cx = x.array().cx().clone();
        let drawn = |shape: &[usize], layout: &Layout, seed: f64| {
            assert_eq!(layout.shape(), shape);
            let at = |i: &[usize]| i.iter().fold(seed, |n, &i| n * 7.3 + i as f64).sin();
            Value::new(Array::from_fn(&cx, layout, at).unwrap())
        };
        let of = |shape: &[usize], text: &str, seed| {
            drawn(shape, &Layout::parse(cx.mesh(), shape, text).unwrap(), seed)
        };
        let mut found = Vec::new();
        let mut try_op = |op: Arc<dyn Op>, inputs: &[Value]| {
            let outputs = engine
                .apply(op.clone(), &inputs.iter().collect::<Vec<_>>())
                .unwrap();
            let dy = drawn(outputs[0].shape(), outputs[0].layout(), 0.7);
            let mut cotangents = vec![None; outputs.len()];
            cotangents[0] = Some(dy);
            let saved = Saved {
                inputs,
                outputs: &outputs,
                needs: &vec![true; inputs.len()],
                terms: None,
            };
            let grads = op.vjp(engine, &saved, &cotangents).unwrap();
            found.extend(outputs.iter().chain(grads.iter().flatten()).map(elements));
        };
        for log in [false, true] {
            let (dims, rows) = ([1, 2].into_iter().collect(), true);
            let op = Softmax {
                dims,
                log,
                rows,
                in_full: false,
            };
            try_op(Arc::new(op), &[of(&[5, 3, 47], "S(0)", 0.2)]);
        }
        let norms = [
            (Cells::Last(1), Statistics::Moments, [5, 3, 37], 37),
            (Cells::Last(1), Statistics::Squares, [5, 3, 37], 37),
            (Cells::Groups(2), Statistics::Moments, [5, 4, 9], 4),
        ];
        for (cells, by, shape, weights) in norms {
            let op = Normalise {
                cells,
                by,
                eps: 1e-5_f64.to_bits(),
                finds: true,
                weight: true,
                bias: true,
            };
            let [w, b] = [0.3, 0.4].map(|seed| of(&[weights], "R", seed));
            try_op(Arc::new(op), &[of(&shape, "S(0)", 0.2), w, b]);
        }
        found
    });
    all.concat()
}

#[test]
fn rows_that_lie_whole_are_the_hosts() {
    for ranks in [1, 2] {
        let expected = of_rows(DeviceKind::Host, ranks);
        for kind in gpus() {
            let found = of_rows(kind, ranks);
            assert_eq!(found.len(), expected.len());
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.len(), expected.len());
                for (f, e) in found.iter().zip(expected) {
                    assert!(
                        (f - e).abs() <= 1e-12 * e.abs().max(1.0),
                        "{kind} {i}: {f} for {e}"
                    );
                }
            }
        }
    }
}
