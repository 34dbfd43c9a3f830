//! Every op takes 16-bit floats, on any layout: it gives what double precision gives of the same operands, to within the rounding of
//! the type. Ranks do not show: sums over them are rounded once.

use shard_comm::DType;
use shard_ops::testing::{Data, Tensor, Tolerance};
use shard_spec::DeviceMesh;
use xtests::case::Case;
use xtests::dispatch;
use xtests::layouts::{Operand, Plan, drafts};
use xtests::made::project_cases;
use xtests::properties;
use xtests::properties::Property;
use xtests::trial::{Trial, Verdict, run_trials, with_reference};

pub(super) const ALL: &[Property] = properties![every_op_in_bf16, every_op_in_f16];

fn every_op_in_bf16() {
    every_op(DType::BF16, 8);
}

fn every_op_in_f16() {
    every_op(DType::F16, 11);
}

/// Ops whose result is another matrix altogether where operands are rounded: inverses of matrices that are nearly singular.
const ILL_CONDITIONED: [&str; 0] = [];

/// Tries every reference case, its operands rounded to the type, on some layouts of two meshes.
fn every_op(float: DType, digits: i32) {
    // Half the distance from 1 to the next number, the error of one rounding.
    let rounding = 2f64.powi(-digits);
    let only = std::env::var("XTESTS_ONLY").unwrap_or_default();
    let mut wrong = Vec::new();
    let mut tried = 0;
    for case in project_cases().unwrap() {
        let case = rounded(case.unwrap(), float);
        if !case.name.contains(&only) || ILL_CONDITIONED.contains(&&*case.op) {
            continue;
        }
        let Ok(apply) = dispatch::find(&case) else {
            continue;
        };
        let wants: Vec<usize> = case.gradients.iter().map(|&(i, _)| i).collect();
        let case = with_reference(case, apply, &wants, 5);
        let operand = |(_, t): &(String, Tensor)| Operand {
            shape: t.shape.clone(),
            sums: t.data.dtype().is_float(),
        };
        let operands: Vec<Operand> = case.inputs.iter().map(operand).collect();
        for mesh in [&[3][..], &[2, 2]] {
            let mesh = DeviceMesh::new(mesh).unwrap();
            let plan = Plan {
                cap: 4,
                sample: 4,
                ..Plan::new(7)
            };
            let drafts = drafts(&mesh, &operands, &plan, &case.name).unwrap();
            let trials: Vec<Trial> = (drafts.iter().take(4))
                .map(|draft| Trial {
                    float,
                    tolerance: Tolerance {
                        relative: 8.0 * rounding,
                        absolute: 0.0,
                    },
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
    assert!(tried > 1000 || !only.is_empty(), "only {tried} trials");
}

/// The case with operands that the type can hold.
fn rounded(mut case: Case, float: DType) -> Case {
    for (_, tensor) in &mut case.inputs {
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
