//! Every op takes 16-bit floats, on any layout: it gives what double precision gives of the same operands, to within the rounding of
//! the type. Ranks do not show: sums over them are rounded once. Nor does it show in how many blocks kernels are called.

use shard_comm::DType;
use shard_ops::conv::{ConvOptions, Padding, conv};
use shard_ops::elementwise::cast;
use shard_ops::testing::{Tensor, place};
use shard_ops::{Exec, Value};
use shard_spec::{DeviceMesh, Layout, numel};
use xtests::differentiate::numbers;
use xtests::dispatch;
use xtests::harness::{On, on_mesh};
use xtests::layouts::{Operand, Plan, drafts};
use xtests::made::project_cases;
use xtests::properties;
use xtests::properties::Property;
use xtests::sixteen;
use xtests::trial::{Trial, Verdict, run_trials};

pub(super) const ALL: &[Property] = properties![
    every_op_in_bf16,
    every_op_in_f16,
    convolutions_of_many_channels_round_once
];

fn every_op_in_bf16() {
    every_op(DType::BF16, 0);
}

fn every_op_in_f16() {
    every_op(DType::F16, 1);
}

/// Tries every reference case, its operands rounded to the type, on the `pair`-th two of four layouts of one mesh, and on the other two
/// of another mesh. The other type has what is left, so every case is tried in both types, and every layout in one: where elements lie
/// does not depend on which of the two types they are of.
fn every_op(float: DType, pair: usize) {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for case in project_cases().unwrap() {
        let case = case.unwrap();
        let Ok(apply) = dispatch::find(&case) else {
            continue;
        };
        let case = sixteen::case(case, apply, float).unwrap();
        let tolerance = sixteen::tolerance(&case.name, float);
        let operand = |(_, t): &(String, Tensor)| Operand {
            shape: t.shape.clone(),
            sums: t.data.dtype().is_float(),
        };
        let operands: Vec<Operand> = case.inputs.iter().map(operand).collect();
        // A few elements at a time, of the largest operand an eighth.
        let tensors = case.inputs.iter().map(|(_, t)| t).chain(&case.outputs);
        let largest = tensors.map(|t| numel(&t.shape)).max().unwrap_or(0);
        let room = (largest * size_of::<f32>() / 8).max(32);
        for (mesh, pair) in [(&[3][..], pair), (&[2, 2], 1 - pair)] {
            let mesh = DeviceMesh::new(mesh).unwrap();
            let plan = Plan {
                cap: 4,
                sample: 4,
                ..Plan::new(7)
            };
            let mut drafts = drafts(&mesh, &operands, &plan, &case.name);
            let pairs = drafts.first(4).unwrap().chunks(2);
            let trials: Vec<Trial> = (pairs.skip(pair).take(1).flatten().enumerate())
                .map(|(i, draft)| Trial {
                    float,
                    tolerance,
                    // Every other one in many blocks.
                    room: (i % 2 == 1).then_some(room),
                    ..Trial::new(draft.build(&mesh, &operands).unwrap())
                })
                .collect();
            let verdicts = run_trials(&case, apply, &mesh, &trials, &|_| {});
            for (trial, verdict) in trials.iter().zip(verdicts) {
                tried += 1;
                if verdict != Verdict::Pass {
                    wrong.push(format!("{} {trial}: {verdict:?}", case.name));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(tried > 1000, "only {tried} trials");
}

/// Convolutions of as many channels as units for tiles are for, which the reference cases do not have: value and gradients are those of the
/// rounded operands, whatever is sharded, channels that are summed too.
fn convolutions_of_many_channels_round_once() {
    let shapes = [[2, 20, 9, 13], [12, 20, 3, 3]];
    let layouts = [
        ["R", "R"],
        ["S(0)", "R"],
        ["S(2)", "R"],
        ["S(3)", "S(0)"],
        ["S(1)", "S(1)"],
    ];
    for (float, digits) in [(DType::BF16, 8), (DType::F16, 11)] {
        for (ranks, stride) in [(1, 1), (3, 1), (3, 2)] {
            let mesh = DeviceMesh::new(&[ranks]).unwrap();
            let options = ConvOptions {
                stride: vec![stride],
                padding: Padding::Explicit(vec![(1, 1)]),
                ..ConvOptions::default()
            };
            for layout in layouts {
                on_mesh(&mesh, On::Host, |cx| {
                    let tape = xtests::trial::recorder();
                    let operands = |float: DType| -> Vec<Value> {
                        let all = shapes.iter().zip(layout).enumerate();
                        all.map(|(i, (shape, layout))| {
                            let layout = Layout::parse(&mesh, shape, layout).unwrap();
                            let x = place(cx, &layout, &numbers(shape, i as u64), DType::F64);
                            let x = cast(&tape, &Value::new(x.unwrap()), float).unwrap();
                            tape.leaf(x.array().clone()).unwrap()
                        })
                        .collect()
                    };
                    let results = |x: &[Value]| -> Vec<Vec<f64>> {
                        let y = conv(&tape, &x[0], &x[1], None, &options).unwrap();
                        let seed = cast(&tape, &y.detach(), y.dtype()).unwrap().detach();
                        let seeds = [Some(&seed)];
                        let grads = tape.grad(&[&y], &[&x[0], &x[1]], &seeds, true).unwrap();
                        let all = std::iter::once(y.detach()).chain(grads.into_iter().flatten());
                        all.map(|v| {
                            let v = cast(&tape, &v, DType::F64).unwrap();
                            let to = Layout::replicated(&mesh, v.shape());
                            let v = tape.redistribute(&v, &to).unwrap();
                            v.array().to_vec::<f64>().unwrap()
                        })
                        .collect()
                    };
                    let small = operands(float);
                    let wide: Vec<Value> = (small.iter())
                        .map(|x| {
                            let x = cast(&tape, &x.detach(), DType::F64).unwrap();
                            tape.leaf(x.array().clone()).unwrap()
                        })
                        .collect();
                    let (found, expected) = (results(&small), results(&wide));
                    for (o, (a, b)) in found.iter().zip(&expected).enumerate() {
                        let size = b.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
                        // Half a unit in the last place; gradients also see the rounded result as their cotangent.
                        let units = if o == 0 { 1.0 } else { 4.0 };
                        let bound = units * 0.5_f64.powi(digits) * size + 1e-5 * size;
                        assert_eq!(a.len(), b.len());
                        for (x, y) in a.iter().zip(b) {
                            assert!(
                                (x - y).abs() <= bound,
                                "{float} {layout:?}, {o}: {x} for {y}"
                            );
                        }
                    }
                });
            }
        }
    }
}
