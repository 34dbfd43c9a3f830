//! Every op's rule against brute force: what is true of one rank is true of each factor sharded by one or two
//! mesh axes, evenly or not, and of linear operands given as terms.

use shard_autograd::Recorder;
use shard_spec::{DeviceMesh, Layout};
use std::collections::HashSet;
use xtests::case::Case;
use xtests::dispatch;
use xtests::harness::{On, on_threads};
use xtests::made::project_cases;
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::fits;
use xtests::trial::{Trial, compute};
use xtests::validate::{Capture, OpSample, validate};

pub(super) const ALL: &[Property] = properties![rules_hold,];

/// Every op that the reference cases and their gradients apply, each with a few kinds of operands.
fn samples() -> Vec<OpSample> {
    let cases: Vec<Case> = project_cases()
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let mesh = DeviceMesh::new(&[1]).unwrap();
    let mut seen = HashSet::new();
    let mut samples = Vec::new();
    for case in &cases {
        let Ok(apply) = dispatch::find(case) else {
            continue;
        };
        let found = on_threads(&mesh, On::Host, |cx| {
            let capture = Capture::new();
            let layouts = case
                .inputs
                .iter()
                .map(|(_, t)| Layout::replicated(&mesh, &t.shape))
                .collect();
            let recorder = Recorder::new(capture.clone());
            compute(cx, &recorder, case, apply, &Trial::new(layouts)).unwrap();
            capture.samples()
        });
        for sample in found.into_iter().flatten() {
            if seen.insert((sample.op.key(), kind(&sample))) {
                samples.push(sample);
            }
        }
    }
    samples
}

/// What a rule sees of the operands: which extents are 0, are 1, and are alike. Of `[4, 1, 4]` and `[4, 7]` that is `[2, 1, 2]` and `[2, 3]`.
fn kind(sample: &OpSample) -> Vec<Vec<usize>> {
    let mut met = vec![0, 1];
    let mut number = |&extent: &usize| {
        met.iter().position(|&e| e == extent).unwrap_or_else(|| {
            met.push(extent);
            met.len() - 1
        })
    };
    let shapes = sample.inputs.iter().map(|t| &t.shape);
    shapes
        .map(|shape| shape.iter().map(&mut number).collect())
        .collect()
}

fn rules_hold() {
    let samples = samples();
    let names: HashSet<&str> = samples.iter().map(|s| s.op.name()).collect();
    assert!(names.len() >= 15, "only {names:?}");
    for routed in ["take", "fold_rows"] {
        assert!(names.contains(routed), "no {routed} among {names:?}");
    }
    let mut problems = Vec::new();
    for (seed, mesh) in [vec![2], vec![3], vec![2, 2]].into_iter().enumerate() {
        if !fits(&mesh) {
            continue;
        }
        problems.extend(validate(
            &samples,
            &DeviceMesh::new(&mesh).unwrap(),
            seed as u64,
        ));
    }
    let shown: Vec<&String> = problems.iter().take(20).collect();
    assert!(
        problems.is_empty(),
        "{} problems, such as {shown:#?}",
        problems.len()
    );
}
