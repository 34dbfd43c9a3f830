//! The rule validator on the ranks of a mesh: see [`shard_ops::testing`].

use crate::harness::{On, on_mesh};
use shard_ops::testing::{Split, differences, probes};
use shard_spec::DeviceMesh;

pub use shard_ops::testing::{Capture, OpSample};

/// Applies samples with all their probes on a mesh and returns what was not as on one rank, in words.
///
/// Whole numbers must be equal, others to 1e-12 of the largest where they are doubles.
pub fn validate(samples: &[OpSample], mesh: &DeviceMesh, seed: u64) -> Vec<String> {
    let mut work = Vec::new();
    let mut problems = Vec::new();
    for sample in samples {
        match probes(sample, mesh, &[Split::Uneven, Split::Gaps], seed) {
            Ok(all) => work.extend(all.into_iter().map(|p| (sample, p))),
            Err(error) => problems.push(format!("{:?}: {error}", sample.op)),
        }
    }
    let found: Vec<Vec<String>> = on_mesh(mesh, On::Host, |cx| {
        let found = differences(cx, &work);
        found.iter().map(ToString::to_string).collect()
    });
    problems.extend(found.into_iter().flatten());
    problems
}
