//! Every op takes 16-bit floats, on any layout: it gives what double precision gives of the same operands, to within the rounding of
//! the type. Ranks do not show: sums over them are rounded once. Nor does it show in how many blocks kernels are called.

use shard_comm::DType;
use shard_ops::testing::{Data, Tensor, Tolerance, tensor};
use shard_spec::{DeviceMesh, Layout, numel};
use xtests::case::Case;
use xtests::dispatch::{self, Apply};
use xtests::harness::{On, on_threads};
use xtests::layouts::{Operand, Plan, drafts};
use xtests::made::project_cases;
use xtests::properties;
use xtests::properties::Property;
use xtests::trial::{Trial, Verdict, compute, recorder, run_trials};

pub(super) const ALL: &[Property] = properties![every_op_in_bf16, every_op_in_f16];

fn every_op_in_bf16() {
    every_op(DType::BF16, 8, 0);
}

fn every_op_in_f16() {
    every_op(DType::F16, 11, 1);
}

/// Cases whose gradients are differences of larger numbers that are rounded before, and the size of these: products of a result, which is
/// stored in 16 bits, and large keys; losses of single elements and their mean.
const DIFFERENCES: [(&str, f64); 2] =
    [("sdpa_large_logits", 16.0), ("stats_cross_entropy_39", 4.0)];

/// Tries every reference case, its operands rounded to the type, on the `pair`-th two of four layouts of one mesh, and on the other two
/// of another mesh. The other type has what is left, so every case is tried in both types, and every layout in one: where elements lie
/// does not depend on which of the two types they are of.
fn every_op(float: DType, digits: i32, pair: usize) {
    // Half the distance from 1 to the next number, the error of one rounding.
    let rounding = 2f64.powi(-digits);
    // Numbers below have fewer digits, or none.
    let least = match float {
        DType::F16 => shard_comm::half::f16::MIN_POSITIVE.to_f64() * rounding,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    let mut wrong = Vec::new();
    let mut tried = 0;
    for case in project_cases().unwrap() {
        let case = rounded(case.unwrap(), float);
        let Ok(apply) = dispatch::find(&case) else {
            continue;
        };
        let case = on_one_rank(case, apply);
        let terms = DIFFERENCES.iter().find(|(name, _)| *name == case.name);
        let tolerance = Tolerance {
            relative: 8.0 * rounding,
            absolute: terms.map_or(least, |(_, size)| 8.0 * rounding * size),
        };
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

/// The case with the results and gradients that one rank has of it in double precision.
fn on_one_rank(mut case: Case, apply: Apply) -> Case {
    let mesh = DeviceMesh::new(&[1]).unwrap();
    let whole = |(_, t): &(String, Tensor)| Layout::replicated(&mesh, &t.shape);
    let trial = Trial::new(case.inputs.iter().map(whole).collect());
    let mut found = on_threads(&mesh, On::Host, |cx| {
        compute(cx, &recorder(), &case, apply, &trial).map_err(|e| e.to_string())
    });
    let found = match found.remove(0) {
        Ok(found) => found,
        Err(error) => panic!("{}: {error}", case.name),
    };
    case.outputs = found.outputs;
    for ((_, gradient), found) in case.gradients.iter_mut().zip(found.gradients) {
        *gradient = found.unwrap_or_else(|| tensor(&gradient.shape, |_| 0.0));
    }
    case
}

/// The case with operands and cotangents that the type can hold.
fn rounded(mut case: Case, float: DType) -> Case {
    let inputs = case.inputs.iter_mut().map(|(_, tensor)| tensor);
    let cotangents = case.cotangents.iter_mut().map(|(_, tensor)| tensor);
    for tensor in inputs.chain(cotangents) {
        let Data::F64(values) = &*tensor.data else {
            continue;
        };
        let round = |&x: &f64| match float {
            DType::F16 => shard_comm::half::f16::from_f64(x).to_f64(),
            _ => shard_comm::half::bf16::from_f64(x).to_f64(),
        };
        let values: Vec<f64> = values.iter().map(round).collect();
        *tensor = Tensor::new(tensor.shape.clone(), values);
    }
    case
}
