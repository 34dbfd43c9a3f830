//! Every op takes 16-bit floats, on any layout: it gives what double precision gives of the same operands, to within the rounding of
//! the type. Ranks do not show: sums over them are rounded once. Nor does it show in how many blocks kernels are called.

use shard_comm::DType;
use shard_ops::testing::Tensor;
use shard_spec::{DeviceMesh, numel};
use xtests::dispatch;
use xtests::layouts::{Operand, Plan, drafts};
use xtests::made::project_cases;
use xtests::properties;
use xtests::properties::Property;
use xtests::sixteen;
use xtests::trial::{Trial, Verdict, run_trials};

pub(super) const ALL: &[Property] = properties![every_op_in_bf16, every_op_in_f16];

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
