//! The engine on small ops: results equal one rank's, layouts follow the rules, and nothing moves needlessly.

use crate::ranks::{on_ranks, whole};
use half::{bf16, f16};
use shard_comm::{DType, DeviceKind};
use shard_kernels::View;
use shard_kernels::pointwise::zip;
use shard_kernels::unary::Unary;
use shard_ops::{
    Engine, EngineOptions, Exec, Halves, HostCall, Linearity, Meta, Op, OpError, Result, Rule,
    Value, broadcast, elementwise, index, key_of, loss, matmul, reduce, shape,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, EdgeMap, Layout, Partition, Placement, ReduceOp};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

fn value(index: &[usize]) -> f64 {
    let h = index
        .iter()
        .fold(17_usize, |h, &i| h.wrapping_mul(31).wrapping_add(i + 1));
    (h % 23) as f64 - 11.0
}

fn make(cx: &Rc<MeshComm>, layout: &Layout) -> Value {
    Value::new(Array::from_fn::<f64>(cx, layout, value).unwrap())
}

/// Every layout of `shape` on the mesh that a test tries: all placements, even, uneven and with empty parts.
fn layouts(mesh: &DeviceMesh, shape: &[usize]) -> Vec<Layout> {
    let mut all = vec![Layout::replicated(mesh, shape)];
    for d in 0..shape.len() {
        for a in 0..mesh.ndim() {
            let (n, p) = (shape[d], mesh.shape()[a]);
            let mut sizes = vec![0; p];
            sizes[p - 1] = n;
            let mut uneven = vec![0; p];
            uneven[0] = n - n / 3;
            uneven[p - 1] += n / 3;
            for partition in [
                Partition::chunk(n, p),
                Partition::from_sizes(&sizes).unwrap(),
                Partition::from_sizes(&uneven).unwrap(),
            ] {
                all.push(
                    Layout::builder(mesh, shape)
                        .shard(d, &[a], partition)
                        .build()
                        .unwrap(),
                );
            }
        }
        if mesh.ndim() == 2 {
            all.push(
                Layout::builder(mesh, shape)
                    .shard_balanced(d, &[1, 0])
                    .build()
                    .unwrap(),
            );
            let e = (d + 1) % shape.len();
            if e != d {
                all.push(
                    Layout::builder(mesh, shape)
                        .shard_balanced(d, &[1])
                        .shard_balanced(e, &[0])
                        .build()
                        .unwrap(),
                );
            }
        }
    }
    let mut partial = vec![Placement::Replicate; mesh.ndim()];
    partial[0] = Placement::Partial(ReduceOp::Sum);
    all.push(Layout::new(mesh, shape, &partial).unwrap());
    all
}

/// Checks that `f` on operands of all layouts equals `f` on one rank.
fn check(shapes: &[&[usize]], f: &(dyn Fn(&dyn Exec, &[Value]) -> Value + Sync)) {
    let single = on_ranks(&[1], |cx, engine| {
        let values: Vec<Value> = shapes
            .iter()
            .map(|s| make(cx, &Layout::replicated(cx.mesh(), s)))
            .collect();
        whole(engine, &f(engine, &values))
    })
    .remove(0);
    for mesh in [vec![1], vec![3], vec![4], vec![2, 2], vec![2, 3]] {
        on_ranks(&mesh, |cx, engine| {
            let choices: Vec<Vec<Layout>> = shapes.iter().map(|s| layouts(cx.mesh(), s)).collect();
            let most = choices.iter().map(Vec::len).max().unwrap();
            for k in 0..most * choices.len() {
                // Walk the combinations diagonally: every layout of every operand, against varied partners.
                let values: Vec<Value> = choices
                    .iter()
                    .enumerate()
                    .map(|(i, all)| make(cx, &all[(k * (i + 1) + i * (k / most)) % all.len()]))
                    .collect();
                let got = whole(engine, &f(engine, &values));
                let from: Vec<String> = values.iter().map(|v| v.layout().to_string()).collect();
                assert_eq!(got.len(), single.len(), "{from:?} on {mesh:?}");
                for (g, s) in got.iter().zip(&single) {
                    let close = (g - s).abs() <= 1e-12 * s.abs().max(1.0);
                    assert!(
                        close || (g.is_nan() && s.is_nan()),
                        "{got:?} != {single:?} for {from:?} on {mesh:?}"
                    );
                }
            }
        });
    }
}

#[test]
fn pointwise_ops_equal_one_rank() {
    check(&[&[5, 3], &[5, 3]], &|e, v| {
        elementwise::add(e, &v[0], &v[1]).unwrap()
    });
    check(&[&[5, 3], &[3]], &|e, v| {
        elementwise::mul(e, &v[0], &v[1]).unwrap()
    });
    check(&[&[5, 1], &[1, 7]], &|e, v| {
        elementwise::sub(e, &v[0], &v[1]).unwrap()
    });
    check(&[&[7, 2]], &|e, v| {
        elementwise::unary(e, &v[0], Unary::Gelu).unwrap()
    });
    check(&[&[7, 2]], &|e, v| {
        elementwise::mul_scalar(e, &v[0], 3.0).unwrap()
    });
    check(&[&[7, 2]], &|e, v| {
        elementwise::mul(e, &v[0], &v[0]).unwrap()
    });
    check(&[&[7, 2], &[7, 2]], &|e, v| {
        elementwise::div(e, &v[0], &elementwise::add_scalar(e, &v[1], 50.0).unwrap()).unwrap()
    });
    check(&[&[7, 2], &[7, 2]], &|e, v| {
        elementwise::maximum(e, &v[0], &v[1]).unwrap()
    });
}

/// A sum that notes in which shapes it is given its operands.
#[derive(Debug, Default)]
struct Noting(Mutex<Vec<Vec<usize>>>);

impl Op for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn key(&self) -> u128 {
        key_of("noting", &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        Rule::pointwise("noting", inputs, inputs[0].dtype, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (a, b) = (call.elements::<f64>(0), call.elements::<f64>(1));
        let mut out = call.elements_out::<f64>(0);
        let shapes = [a.shape(), b.shape(), out.shape()];
        self.0.lock().unwrap().extend(shapes.map(<[_]>::to_vec));
        let [a, b] = [&a, &b].map(|x| x.shaped(out.shape()).unwrap());
        zip(&a, &b, &mut out, |a, b| a + b);
    }
}

#[test]
fn operands_that_lie_alike_are_lines_of_elements() {
    on_ranks(&[2], |cx, engine| {
        let at = |shape: &[usize], by| make(cx, &Layout::new(cx.mesh(), shape, &[by]).unwrap());
        let (rows, columns) = (Placement::Shard(0), Placement::Shard(1));
        let seen = |a: &Value, b: &Value| {
            let op = Arc::new(Noting::default());
            let sum = engine.apply1(op.clone(), &[a, b]).unwrap();
            let expected = whole(engine, &elementwise::add(engine, a, b).unwrap());
            assert_eq!(whole(engine, &sum), expected);
            op.0.lock().unwrap().clone()
        };
        let x = at(&[4, 6], rows);
        assert_eq!(seen(&x, &at(&[4, 6], rows)), [[12], [12], [12]]);
        let y = at(&[4, 6], columns);
        assert_eq!(seen(&y, &y), [[12], [12], [12]]);
        // Repeated, or moved, they are boxes.
        let row = at(&[6], Placement::Replicate);
        assert_eq!(seen(&x, &row), [&[2, 6][..], &[6], &[2, 6]]);
        let row = at(&[1, 6], Placement::Replicate);
        assert_eq!(seen(&x, &row), [&[2, 6][..], &[1, 6], &[2, 6]]);
        assert!(seen(&x, &y).iter().all(|shape| shape.len() == 2));
    });
}

/// `a + 2 b` by a kernel that reads `a` as it is stored, for `bf16`, and notes of which types its operands are, and the shapes of results.
#[derive(Debug, Default)]
struct ReadsHalves {
    types: Mutex<Vec<[DType; 3]>>,
    shapes: Mutex<Vec<Vec<usize>>>,
}

impl Op for ReadsHalves {
    fn name(&self) -> &'static str {
        "reads_halves"
    }

    fn key(&self) -> u128 {
        key_of("reads_halves", &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let got = inputs[0].dtype;
        if got.is_half() {
            return Err(OpError::dtype("reads_halves", 0, "f32", got));
        }
        Rule::pointwise("reads_halves", inputs, got, Linearity::None)
    }

    fn halves(&self, stored: DType, _: &[Meta], _: DeviceKind) -> Halves {
        let reads: &[usize] = if stored == DType::BF16 { &[0] } else { &[] };
        Halves {
            reads,
            writes: false,
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let types = [call.inputs[0].dtype(), call.inputs[1].dtype(), call.dtype()];
        self.types.lock().unwrap().push(types);
        let a: Vec<f32> = match types[0] {
            DType::BF16 => (call.input::<bf16>(0).to_vec().into_iter())
                .map(bf16::to_f32)
                .collect(),
            _ => call.input::<f32>(0).to_vec(),
        };
        let shape = call.output::<f32>(0).shape().to_vec();
        let (a, b) = (View::contiguous(&a, &shape), call.input::<f32>(1));
        let b = b.broadcast_to(&shape).unwrap();
        zip(&a, &b, &mut call.output::<f32>(0), |a, b| a + 2.0 * b);
        self.shapes.lock().unwrap().push(shape);
    }
}

#[test]
fn a_kernel_reads_halves_as_they_are_stored() {
    use DType::{BF16, F16, F32};
    let value = |index: &[usize]| (index[0] * 40 + index[1]) as f64 / 64.0;
    for mesh in [1, 3] {
        on_ranks(&[mesh], |cx, _| {
            // Copies of so few bytes that calls are divided.
            let engine = Engine::new(EngineOptions {
                room: Some(256),
                ..EngineOptions::default()
            });
            for (stored, seen) in [(BF16, [BF16, F32, F32]), (F16, [F32; 3]), (F32, [F32; 3])] {
                for placed in [Placement::Shard(0), Placement::Shard(1)] {
                    let layout = Layout::new(cx.mesh(), &[7, 40], &[placed]).unwrap();
                    let x = Array::from_fn::<f64>(cx, &layout, value).unwrap();
                    let x = elementwise::cast(&*engine, &Value::new(x), stored).unwrap();
                    let op = Arc::new(ReadsHalves::default());
                    let y = engine.apply1(op.clone(), &[&x, &x]).unwrap();
                    assert_eq!(y.dtype(), stored);
                    let types = op.types.lock().unwrap().clone();
                    assert!(types.iter().all(|&types| types == seen), "{types:?}");
                    assert!(stored == F32 || types.len() > 1, "{types:?}");
                    let rounded = |x: f64| match stored {
                        BF16 => bf16::from_f64(x).to_f64(),
                        F16 => f16::from_f64(x).to_f64(),
                        _ => x,
                    };
                    let to = Layout::replicated(cx.mesh(), &[7, 40]);
                    let y = elementwise::cast(&*engine, &y, DType::F64).unwrap();
                    let got = engine.redistribute(&y, &to).unwrap();
                    for (at, got) in got.array().to_vec::<f64>().unwrap().into_iter().enumerate() {
                        let x = rounded(value(&[at / 40, at % 40]));
                        assert_eq!(got, rounded(3.0 * x), "{stored} at {at}");
                    }
                }
            }
        });
    }
}

#[test]
fn a_row_for_all_rows_does_not_have_columns_cut() {
    on_ranks(&[1], |cx, _| {
        let engine = Engine::new(EngineOptions {
            room: Some(1024),
            ..EngineOptions::default()
        });
        let filled = |shape: &[usize]| {
            let layout = Layout::replicated(cx.mesh(), shape);
            let x = Array::from_fn::<f64>(cx, &layout, |i| i[i.len() - 1] as f64).unwrap();
            elementwise::cast(&*engine, &Value::new(x), DType::BF16).unwrap()
        };
        let op = Arc::new(ReadsHalves::default());
        let y = engine
            .apply1(op.clone(), &[&filled(&[64, 16]), &filled(&[16])])
            .unwrap();
        // Copies of the result and of the row: of 8 rows 512 and 64 bytes.
        assert_eq!(*op.shapes.lock().unwrap(), vec![[8, 16]; 8]);
        let y = elementwise::cast(&*engine, &y, DType::F64).unwrap();
        let y = y.array().to_vec::<f64>().unwrap();
        assert!(
            y.iter()
                .enumerate()
                .all(|(i, &y)| y == 3.0 * (i % 16) as f64)
        );
    });
}

#[test]
fn products_equal_one_rank() {
    check(&[&[5, 7], &[7, 3]], &|e, v| {
        matmul::matmul(e, &v[0], &v[1]).unwrap()
    });
    check(&[&[2, 5, 4], &[1, 4, 3]], &|e, v| {
        matmul::matmul(e, &v[0], &v[1]).unwrap()
    });
    check(&[&[7], &[7]], &|e, v| matmul::dot(e, &v[0], &v[1]).unwrap());
    check(&[&[5, 7], &[3, 7], &[3]], &|e, v| {
        matmul::linear(e, &v[0], &v[1], Some(&v[2])).unwrap()
    });
}

#[test]
fn reductions_equal_one_rank() {
    check(&[&[5, 3, 2]], &|e, v| {
        reduce::sum(e, &v[0], &[0, 2], false).unwrap()
    });
    check(&[&[5, 3, 2]], &|e, v| {
        reduce::mean(e, &v[0], &[1], true).unwrap()
    });
    check(&[&[5, 3]], &|e, v| {
        reduce::amax(e, &v[0], &[0], false).unwrap()
    });
    check(&[&[5, 3]], &|e, v| {
        reduce::amin(e, &v[0], &[0, 1], false).unwrap()
    });
    check(&[&[5, 3], &[5, 3]], &|e, v| {
        loss::mse_loss(e, &v[0], &v[1], loss::LossReduction::Mean).unwrap()
    });
}

#[test]
fn moves_equal_one_rank() {
    check(&[&[7, 3]], &|e, v| {
        index::slice(e, &v[0], 0, 1, 2, 3).unwrap()
    });
    check(&[&[7, 3]], &|e, v| index::flip(e, &v[0], 0).unwrap());
    check(&[&[7, 3]], &|e, v| index::roll(e, &v[0], 0, -3).unwrap());
    check(&[&[4, 3]], &|e, v| index::repeat(e, &v[0], 1, 3).unwrap());
    check(&[&[5, 4]], &|e, v| {
        index::pad(e, &v[0], &[(2, 1), (-1, 3)], EdgeMap::Zeros, 1.5).unwrap()
    });
    check(&[&[5, 4]], &|e, v| {
        index::pad(e, &v[0], &[(4, 3), (2, 0)], EdgeMap::Reflect, 0.0).unwrap()
    });
    check(&[&[5, 4]], &|e, v| {
        index::pad(e, &v[0], &[(7, 6), (0, 9)], EdgeMap::Circular, 0.0).unwrap()
    });
    check(&[&[5, 4]], &|e, v| {
        index::pad(e, &v[0], &[(7, 6), (0, 9)], EdgeMap::Replicate, 0.0).unwrap()
    });
    check(&[&[5, 3], &[0, 3], &[4, 3]], &|e, v| {
        index::cat(e, &v.iter().collect::<Vec<_>>(), 0).unwrap()
    });
    check(&[&[5, 3], &[5, 3]], &|e, v| {
        index::stack(e, &v.iter().collect::<Vec<_>>(), 1).unwrap()
    });
    check(&[&[5, 3, 2]], &|e, v| {
        shape::permute(e, &v[0], &[2, 0, 1]).unwrap()
    });
    check(&[&[6, 4]], &|e, v| {
        shape::reshape(e, &v[0], &[8, 3]).unwrap()
    });
    check(&[&[10, 7]], &|e, v| {
        shape::reshape(e, &v[0], &[7, 10]).unwrap()
    });
    check(&[&[2, 6]], &|e, v| shape::reshape(e, &v[0], &[12]).unwrap());
    check(&[&[15, 2]], &|e, v| {
        shape::reshape(e, &v[0], &[5, 3, 2]).unwrap()
    });
    check(&[&[1, 3]], &|e, v| {
        broadcast::expand(e, &v[0], &[5, 4, 3]).unwrap()
    });
}

/// Counts the warnings of one rank.
struct Warnings(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The largest shard after a reshape of rows over this many ranks, the layout, and the warnings.
fn reshaped_rows(ranks: usize, shape: &[usize], to: &[usize]) -> (usize, String, usize) {
    let all = on_ranks(&[ranks], |cx, engine| {
        let count = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        tracing::subscriber::with_default(Warnings(count.clone()), || {
            let rows = Layout::parse(cx.mesh(), shape, "S(0)").unwrap();
            let y = shape::reshape(engine, &make(cx, &rows), to).unwrap();
            let warnings = count.load(std::sync::atomic::Ordering::Relaxed);
            (
                y.layout().max_local_numel(),
                y.layout().to_string(),
                warnings,
            )
        })
    });
    assert!(all.iter().all(|outcome| *outcome == all[0]), "{all:?}");
    all[0].clone()
}

#[test]
fn reshapes_keep_shards_even_or_warn() {
    // The shapes share no boundary but the ends: all would be on one rank if boundaries had to fit both at once.
    let even = reshaped_rows(4, &[1000, 7], &[7, 1000]);
    assert_eq!(even, (2000, "S(0)[2,2,1,2]".to_owned(), 0));
    assert_eq!(reshaped_rows(4, &[8, 6], &[8, 2, 3]).0, 12);
    assert_eq!(reshaped_rows(4, &[16, 9], &[1, 144]).0, 36);
    // Two rows for six ranks: three times as many elements as before, and nothing that a reshape could do.
    let (largest, layout, warnings) = reshaped_rows(6, &[18, 100], &[2, 900]);
    assert_eq!((largest, warnings), (900, 1), "{layout}");
}

#[test]
fn windows_equal_one_rank() {
    use shard_ops::conv::{ConvOptions, ConvTransposeOptions, Padding, conv, conv_transpose};
    use shard_ops::pool::{PoolOptions, avg_pool, max_pool};
    use shard_ops::resample::{ResampleTo, interpolate};
    use shard_spec::ResampleMode;
    let same =
        |stride: usize, dilation: usize, pads: (usize, usize), groups: usize, edge| ConvOptions {
            stride: vec![stride],
            dilation: vec![dilation],
            padding: Padding::Explicit(vec![pads]),
            groups,
            edge,
        };
    for options in [
        same(1, 1, (1, 1), 1, EdgeMap::Zeros),
        same(2, 1, (1, 0), 1, EdgeMap::Zeros),
        same(1, 3, (3, 3), 1, EdgeMap::Zeros),
        same(3, 1, (0, 2), 1, EdgeMap::Circular),
    ] {
        check(&[&[2, 3, 11, 7], &[4, 3, 3, 3], &[4]], &|e, v| {
            conv(e, &v[0], &v[1], Some(&v[2]), &options).unwrap()
        });
    }
    let grouped = same(1, 1, (1, 1), 2, EdgeMap::Zeros);
    check(&[&[1, 4, 9, 5], &[6, 2, 3, 3]], &|e, v| {
        conv(e, &v[0], &v[1], None, &grouped).unwrap()
    });
    let up = ConvTransposeOptions {
        stride: vec![2],
        padding: vec![(1, 1)],
        ..Default::default()
    };
    check(&[&[1, 3, 7], &[3, 2, 4], &[2]], &|e, v| {
        conv_transpose(e, &v[0], &v[1], Some(&v[2]), &up).unwrap()
    });
    let pool = PoolOptions {
        stride: vec![2],
        padding: vec![1],
        ceil_mode: true,
        ..PoolOptions::new([3])
    };
    check(&[&[2, 2, 10, 7]], &|e, v| {
        max_pool(e, &v[0], &pool).unwrap().0
    });
    check(&[&[2, 2, 10, 7]], &|e, v| {
        avg_pool(e, &v[0], &pool).unwrap()
    });
    for mode in [
        ResampleMode::Nearest,
        ResampleMode::Linear,
        ResampleMode::LinearAligned,
    ] {
        check(&[&[1, 2, 9, 5]], &|e, v| {
            interpolate(e, &v[0], &ResampleTo::Size(vec![17, 4]), mode).unwrap()
        });
    }
}

#[test]
fn norms_equal_one_rank() {
    use shard_ops::norm::{group_norm, layer_norm};
    check(&[&[2, 6, 7, 3], &[6], &[6]], &|e, v| {
        group_norm(e, &v[0], 3, Some(&v[1]), Some(&v[2]), 1e-5).unwrap()
    });
    check(&[&[5, 3, 7], &[3, 7], &[3, 7]], &|e, v| {
        layer_norm(e, &v[0], 2, Some(&v[1]), Some(&v[2]), 1e-5).unwrap()
    });
}

/// Groups that read no channels are still groups: how many a rank has shows in the rows of its weight.
#[test]
fn groups_without_input_channels_are_sharded_like_others() {
    use shard_ops::conv::{ConvOptions, conv};
    let options = ConvOptions {
        groups: 3,
        ..Default::default()
    };
    let sums = on_ranks(&[2], |cx, engine| {
        let x = make(cx, &Layout::replicated(cx.mesh(), &[1, 0, 4]));
        let w = make(
            cx,
            &Layout::parse(cx.mesh(), &[6, 0, 2], "S(0)[4,2]").unwrap(),
        );
        let y = conv(engine, &x, &w, None, &options).unwrap();
        let all = Layout::replicated(cx.mesh(), &[1, 6, 3]);
        y.array()
            .redistribute(&all)
            .unwrap()
            .to_vec::<f64>()
            .unwrap()
    });
    assert_eq!(sums, [vec![0.0; 18], vec![0.0; 18]]);
}

#[test]
fn a_convolution_computes_its_interior_while_the_halo_flies() {
    use shard_ops::conv::{ConvOptions, Padding, conv};
    let options = ConvOptions {
        padding: Padding::Same,
        ..Default::default()
    };
    let events = on_ranks(&[2, 2], |cx, engine| {
        let placements = [Placement::Shard(2), Placement::Shard(3)];
        let x = make(
            cx,
            &Layout::new(cx.mesh(), &[1, 2, 12, 13], &placements).unwrap(),
        );
        let w = make(cx, &Layout::replicated(cx.mesh(), &[2, 2, 3, 3]));
        cx.world().ledger().trace(true);
        conv(engine, &x, &w, None, &options).unwrap();
        cx.world()
            .ledger()
            .events()
            .iter()
            .map(|e| e.label.to_string())
            .collect::<Vec<_>>()
    });
    for labels in events {
        let at = |what: &str| {
            labels
                .iter()
                .position(|l| l == what)
                .unwrap_or_else(|| panic!("{what} in {labels:?}"))
        };
        assert!(at("post conv") < at("interior conv"));
        assert!(at("interior conv") < at("wait conv"));
        assert!(at("wait conv") < at("boundary conv"));
    }
}

#[test]
fn an_aligned_sum_stays_where_it_is() {
    on_ranks(&[4], |cx, engine| {
        let rows = Layout::builder(cx.mesh(), &[10, 3])
            .shard(0, &[0], Partition::from_sizes(&[1, 4, 0, 5]).unwrap())
            .build()
            .unwrap();
        let (a, b) = (make(cx, &rows), make(cx, &rows));
        let before = cx.world().ledger().snapshot();
        let y = elementwise::add(engine, &a, &b).unwrap();
        assert_eq!(y.layout(), &rows);
        let total = reduce::sum(engine, &y, &[0, 1], false).unwrap();
        assert_eq!(total.layout().to_string(), "P(sum)");
        assert_eq!(cx.world().ledger().since(&before).bytes, 0);
    });
}

#[test]
fn a_sharded_contraction_is_partial_and_free() {
    on_ranks(&[4], |cx, engine| {
        let a = make(
            cx,
            &Layout::new(cx.mesh(), &[5, 8], &[Placement::Shard(1)]).unwrap(),
        );
        let b = make(
            cx,
            &Layout::new(cx.mesh(), &[8, 3], &[Placement::Shard(0)]).unwrap(),
        );
        let before = cx.world().ledger().snapshot();
        let y = matmul::matmul(engine, &a, &b).unwrap();
        assert_eq!(y.layout().to_string(), "P(sum)");
        assert_eq!(cx.world().ledger().since(&before).rounds, 0);
    });
}

#[test]
fn explicit_moves_refuse_on_every_rank_alike() {
    let errors = on_ranks(&[3], |cx, engine| {
        engine.set_explicit_moves(true);
        let a = make(
            cx,
            &Layout::new(cx.mesh(), &[6, 2], &[Placement::Shard(0)]).unwrap(),
        );
        let b = make(
            cx,
            &Layout::new(cx.mesh(), &[6, 2], &[Placement::Shard(1)]).unwrap(),
        );
        let error = elementwise::add(engine, &a, &b).unwrap_err();
        assert_eq!(error.class(), shard_comm::ErrorClass::Uniform);
        // What is aligned still works.
        elementwise::add(engine, &a, &a).unwrap();
        error.to_string()
    });
    assert!(errors.iter().all(|e| e == &errors[0]));
    assert!(
        errors[0].contains("operand 1") && errors[0].contains("S(0)"),
        "{}",
        errors[0]
    );
}

/// Of partial sums, rows that are looked up, keys that go round, and ops that are moves.
#[test]
fn an_explicit_move_is_named_whatever_the_op() {
    use shard_ops::attention::{Attention, attention};
    use shard_ops::{FoldBy, indexing, neighbors, sort, unique};
    let errors = on_ranks(&[2], |cx, engine| {
        let of =
            |shape: &[usize], text: &str| make(cx, &Layout::parse(cx.mesh(), shape, text).unwrap());
        let x = of(&[6, 2], "S(0)");
        let terms = of(&[6, 2], "P(sum)");
        let rows = of(&[6], "S(0)");
        let rows = elementwise::cast(engine, &rows, shard_comm::DType::I64).unwrap();
        let counts = elementwise::cast(engine, &of(&[2, 6], "S(0)"), DType::I64).unwrap();
        let counts = reduce::sum(engine, &counts, &[0], false).unwrap();
        let stripes = of(&[6], "S(0)[0:1,1:1]*");
        let heads = of(&[1, 2, 8, 4], "S(1)");
        let queries = of(&[1, 2, 8, 4], "S(2)");
        engine.set_explicit_moves(true);
        let refused = [
            elementwise::unary(engine, &terms, Unary::Relu),
            elementwise::mul(engine, &terms, &x),
            index::cat(engine, &[&terms, &x], 0),
            indexing::index_select(engine, &terms, 0, &rows),
            attention(engine, &queries, &heads, &heads, None, &Attention::new()),
            sort::sort(engine, &stripes, 0, false).map(|(values, _)| values),
            neighbors::farthest_points(engine, &terms, 2, 0, FoldBy::Ring),
            indexing::segment_min_with_indices(engine, &terms, &rows, 6).map(|(least, _)| least),
            indexing::repeat_interleave_each(engine, &x, 0, &counts, None),
            unique::unique_dim(engine, &terms, 0).map(|found| found.values),
        ];
        refused.map(|result| result.map_or_else(|e| e.to_string(), |y| y.layout().to_string()))
    });
    assert_eq!(errors[0], errors[1]);
    let expected = [
        ("relu", 0, "P(sum)", "R"),
        ("mul", 1, "S(0)", "R"),
        ("cat", 0, "P(sum)", "R"),
        ("take", 1, "S(0)", "R"),
        ("attention", 0, "S(2)", "S(1)"),
        ("sort", 0, "S(0)[0:1,1:1]*", "S(0)"),
        ("farthest_points", 0, "P(sum)", "R"),
        ("segment_min_with_indices", 0, "P(sum)", "R"),
        ("repeat_interleave", 1, "P(sum)", "R"),
        ("unique_dim", 0, "P(sum)", "R"),
    ];
    for (error, (op, operand, from, to)) in errors[0].iter().zip(expected) {
        let moves = format!("{op}: operand {operand} with layout {from} would have to move");
        assert!(error.starts_with(&moves), "{error}");
        assert!(
            error.ends_with(&format!("redistribute it first, to {to}")),
            "{error}"
        );
    }
}

/// A halo is not a move, but bringing stripes to consecutive rows is one; ops without neighbours keep stripes.
#[test]
fn explicit_moves_know_that_windows_need_consecutive_indices() {
    use shard_ops::conv::{ConvOptions, Padding, conv};
    let errors = on_ranks(&[2], |cx, engine| {
        let of = |rows: &str| {
            let layout = Layout::parse(cx.mesh(), &[1, 1, 7], rows).unwrap();
            make(cx, &layout)
        };
        let w = make(cx, &Layout::replicated(cx.mesh(), &[1, 1, 3]));
        let options = ConvOptions {
            padding: Padding::Same,
            ..Default::default()
        };
        engine.set_explicit_moves(true);
        conv(engine, &of("S(2)"), &w, None, &options).unwrap();
        let stripes = of("S(2)[0:1,1:1]*");
        let doubled = elementwise::add(engine, &stripes, &stripes).unwrap();
        assert_eq!(doubled.layout(), stripes.layout());
        conv(engine, &stripes, &w, None, &options)
            .unwrap_err()
            .to_string()
    });
    assert!(errors[0].contains("operand 0"), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn ranks_that_apply_different_ops_are_found_out_and_the_group_goes_on() {
    let errors = on_ranks(&[3], |cx, engine| {
        let rows = Layout::new(cx.mesh(), &[6, 2], &[Placement::Shard(0)]).unwrap();
        let x = make(cx, &rows);
        // No communication here, so nobody can know yet.
        let map = if cx.rank() == 1 {
            Unary::Gelu
        } else {
            Unary::Relu
        };
        let y = elementwise::unary(engine, &x, map).unwrap();
        let whole_of = Layout::replicated(cx.mesh(), &[6, 2]);
        let error = engine.redistribute(&y, &whole_of).unwrap_err();
        assert_eq!(error.class(), shard_comm::ErrorClass::Uniform);
        // The group is as usable as before.
        assert_eq!(whole(engine, &x).len(), 12);
        error.to_string()
    });
    assert!(errors.iter().all(|e| e == &errors[0]), "{errors:?}");
    for told in [
        "rank 0 called relu of f64 [6, 2] S(0) at",
        "rank 1 called gelu of f64 [6, 2] S(0) at",
    ] {
        assert!(errors[0].contains(told), "{}", errors[0]);
    }
}

/// Operands of shapes that do not fit are named as the caller knows them.
#[test]
fn weights_and_biases_that_do_not_fit_are_named() {
    use shard_ops::conv::{ConvOptions, ConvTransposeOptions, conv, conv_transpose};
    use shard_ops::norm::{group_norm, layer_norm, rms_norm};
    on_ranks(&[1], |cx, exec| {
        let of = |shape: &[usize]| make(cx, &Layout::replicated(cx.mesh(), shape));
        let (x, w, back) = (of(&[1, 4, 5]), of(&[6, 4, 3]), of(&[4, 6, 3]));
        let (four, plain) = (of(&[4]), ConvOptions::default());
        let transposed = ConvTransposeOptions::default();
        let told = |made: Result<Value>| made.unwrap_err().to_string();
        let refused = [
            (
                told(conv(exec, &x, &back, None, &plain)),
                "conv: 4 channels do not fit",
                "(O, C / groups, kernel...)",
            ),
            (
                told(conv_transpose(exec, &x, &w, None, &transposed)),
                "conv_transpose: 4 channels do not fit",
                "(C, O / groups, kernel...)",
            ),
            (
                told(conv(exec, &x, &w, Some(&four), &plain)),
                "conv: the bias has shape [4], expected [6]",
                "one element per output channel",
            ),
            (
                told(conv_transpose(
                    exec,
                    &x,
                    &back,
                    Some(&of(&[1])),
                    &transposed,
                )),
                "conv_transpose: the bias has shape [1], expected [6]",
                "one element per output channel",
            ),
            (
                told(layer_norm(exec, &x, 1, Some(&four), None, 1e-5)),
                "layer_norm: the weight has shape [4], expected [5]",
                "permute channels last",
            ),
            (
                told(group_norm(exec, &x, 2, Some(&four), Some(&of(&[5])), 1e-5)),
                "group_norm: the bias has shape [5], expected [4]",
                "one element per channel",
            ),
            (
                told(rms_norm(exec, &x, 2, Some(&four), None)),
                "rms_norm: the weight has shape [4], expected [4, 5]",
                "permute channels last",
            ),
        ];
        for (told, begin, fix) in refused {
            assert!(told.starts_with(begin) && told.contains(fix), "{told}");
        }
        let bias = of(&[6]);
        assert!(conv_transpose(exec, &x, &back, Some(&bias), &transposed).is_ok());
        assert!(conv(exec, &x, &w, Some(&bias), &plain).is_ok());
    });
}

#[test]
fn errors_name_the_op_once() {
    use shard_comm::AgreedError;
    let of = |op| {
        let agreed = AgreedError::new(op, "an index below 4", "9", "clamp it");
        let source = Box::new(agreed.into());
        OpError::Comm { op: "take", source }.to_string()
    };
    let said = "on rank 0: expected an index below 4, got 9; clamp it";
    assert_eq!(of("take"), format!("take {said}"));
    assert_eq!(of("take_along"), format!("take: take_along {said}"));
    let counts = |expected: &str| {
        let (op, expected) = ("cat", expected.to_owned());
        OpError::arity(op, expected, 0).to_string()
    };
    assert_eq!(counts("one output"), "cat: expected one output, got 0");
    assert_eq!(counts("2"), "cat: expected 2 operands, got 0");
}
