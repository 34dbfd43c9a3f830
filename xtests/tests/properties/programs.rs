//! Programs of many ops compute on any mesh, from any layouts, what they compute on one rank: values, gradients, and gradients of
//! gradients.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use shard_spec::DeviceMesh;
use shard_tensor::ErrorClass;
use xtests::case::Tensor;
use xtests::dispatch;
use xtests::harness::{On, on_mesh, on_threads};
use xtests::layouts::{Operand, Plan, drafts};
use xtests::made::project_cases;
use xtests::programs::{Computed, How, Numbers, Program, programs, slips, step};
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::config;
use xtests::trial::{Trial, Verdict, run_trials};

pub(super) const ALL: &[Property] = properties![
    whole_numbers_are_one_ranks,
    smooth_functions_are_one_ranks,
    on_devices_too,
    few_programs_are_refused,
    a_rank_that_slips_is_found_out,
    every_op_again,
];

/// What every rank of a program's mesh computes, or the text of a uniform error.
fn outcome(program: &Program, on: On) -> Vec<Result<Computed, String>> {
    let all = DeviceMesh::new(&[program.mesh.iter().product()]).unwrap();
    on_mesh(&all, on, |cx| {
        program.run(cx).map_err(|e| {
            assert_eq!(e.class(), ErrorClass::Uniform, "{e}");
            e.to_string()
        })
    })
}

fn check(program: &Program, on: On) -> Result<(), TestCaseError> {
    let single = outcome(&program.alone(), On::Host).remove(0);
    for (rank, got) in outcome(program, on).into_iter().enumerate() {
        let differs = match (&single, &got) {
            (Ok(want), Ok(got)) => got.differs(want, |name, scale| program.bound(name, scale)),
            (Err(_), Err(_)) => None,
            (want, got) => Some(format!("{got:?}, where one rank has {want:?}")),
        };
        prop_assert!(
            differs.is_none(),
            "rank {}: {}",
            rank,
            differs.unwrap_or_default()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(100))]

    fn whole_numbers_are_one_ranks(program in programs(Numbers::Whole, 6, 12)) {
        check(&program, On::Host)?;
    }

    fn smooth_functions_are_one_ranks(program in programs(Numbers::Smooth, 6, 12)) {
        check(&program, On::Host)?;
    }
}

proptest! {
    #![proptest_config(config(30))]

    /// In memory that the host cannot read, and on emulated GPUs, moved by threads and by what plays NCCL.
    fn on_devices_too(program in programs(Numbers::Whole, 4, 10)) {
        check(&program, On::TestDevice)?;
        if cfg!(feature = "cuda-emulated") {
            check(&program, On::EmulatedCuda)?;
        }
        #[cfg(all(feature = "cuda-emulated", feature = "nccl"))]
        check(&program, On::EmulatedNccl)?;
    }
}

proptest! {
    #![proptest_config(config(100))]

    /// All ranks hear of it, or it made no difference; none gets numbers that others have not, and none waits for ever.
    fn a_rank_that_slips_is_found_out(program in programs(Numbers::Whole, 4, 8), slip in slips(step(Numbers::Whole))) {
        let ranks = program.mesh.iter().product();
        if ranks > 1 {
            let all = DeviceMesh::new(&[ranks]).unwrap();
            let ends = on_threads(&all, On::Host, |cx| {
                program.run_with(cx, Some(&slip)).map_err(|e| (e.class(), e.to_string()))
            });
            let heard = ends.iter().filter(|end| end.is_err()).count();
            let others = usize::from(matches!(slip.how, How::Leave));
            // A step that does nothing may have another name.
            let numbers = |end: &Result<Computed, _>| {
                let all = end.as_ref().ok()?.all.iter();
                Some(all.map(|(_, numbers)| numbers.clone()).collect::<Vec<_>>())
            };
            let all: Option<Vec<_>> = ends.iter().map(numbers).collect();
            let same = all.is_some_and(|all| all.iter().all(|one| *one == all[0]));
            prop_assert!(heard + others >= ranks || same, "{ends:?}");
        }
    }
}

/// What is refused on one rank compares nothing with others.
fn few_programs_are_refused() {
    let mut runner = TestRunner::new(config(1));
    let mut refused = Vec::new();
    for numbers in [Numbers::Whole, Numbers::Smooth] {
        for _ in 0..50 {
            let program = programs(numbers, 2, 12).new_tree(&mut runner).unwrap();
            let found = outcome(&program.current().alone(), On::Host).remove(0);
            refused.extend(found.err());
        }
    }
    assert!(refused.len() < 10, "{refused:#?}");
}

/// Every reference case as a checkpointed function, which gradients run again: results lie the second time as the first time, when no
/// tape follows them, and are one rank's.
fn every_op_again() {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for case in project_cases().unwrap() {
        let case = case.unwrap();
        let Ok(apply) = dispatch::find(&case) else {
            continue;
        };
        let operand = |(_, t): &(String, Tensor)| Operand {
            shape: t.shape.clone(),
            sums: t.data.dtype().is_float(),
        };
        let operands: Vec<Operand> = case.inputs.iter().map(operand).collect();
        for mesh in [&[3][..], &[2, 2]] {
            let mesh = DeviceMesh::new(mesh).unwrap();
            let plan = Plan {
                cap: 3,
                sample: 3,
                ..Plan::new(9)
            };
            let mut drafts = drafts(&mesh, &operands, &plan, &case.name);
            let trials: Vec<Trial> = (drafts.first(3).unwrap().iter())
                .map(|draft| Trial {
                    again: true,
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
    let all = wrong.join("\n");
    assert!(wrong.is_empty(), "{} of {tried}:\n{all}", wrong.len());
    assert!(tried > 1000, "only {tried} trials");
}
