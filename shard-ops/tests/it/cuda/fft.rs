//! Transforms by the libraries, beside the sums.

use super::under;
use shard_kernels::fft::Fft;
use shard_ops::index::slice;
use shard_ops::inside::Transform;
use shard_ops::shape::{permute, reshape};
use shard_ops::{Exec, KernelPolicy, Value};

/// All that a transform can be, of too few elements, as many as there are, and too many.
fn transforms() -> impl Iterator<Item = Transform> {
    let flags = [false, true];
    let kinds = flags.into_iter().flat_map(|flag| {
        [
            Fft::Complex { inverse: flag },
            Fft::FromReal { doubled: flag },
            Fft::ToReal { doubled: flag },
        ]
    });
    let cases = kinds.flat_map(|kind| [1, 2, 3, 4, 5, 8].map(|n| (kind, n)));
    cases.flat_map(|(kind, n)| {
        let whole = if kind.writes_complex() && !kind.reads_complex() {
            n / 2 + 1
        } else {
            n
        };
        // The adjoint of a transform that cuts or pads has results of another extent.
        [whole, 1, whole + 2].map(|out| Transform {
            name: "transform",
            kind,
            dim: 0,
            n,
            out,
            scale: 0.75,
            instead: None,
        })
    })
}

#[test]
fn the_library_transforms_as_the_sums_do() {
    let own = KernelPolicy {
        libraries: false,
        ..KernelPolicy::default()
    };
    for op in transforms() {
        let program = |exec: &dyn Exec, x: &Value| {
            let square = reshape(exec, x, &[2, 2]).unwrap();
            // Lines with steps, and for complex numbers these with imaginary parts elsewhere.
            op.apply(exec, &permute(exec, &square, &[1, 0]).unwrap())
                .unwrap()
        };
        let by_library = under(KernelPolicy::default(), program);
        let by_sums = under(own, program);
        for ((found, calls), (expected, none)) in by_library.iter().zip(&by_sums) {
            assert_eq!((*calls, *none), (1, 0), "{op:?}");
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                let near = (found - expected).abs() < 1e-12;
                assert!(near, "{found} for {expected}: {op:?}");
            }
        }
    }
}

/// Of lines without elements, by the library and by the sums.
#[test]
fn what_is_not_there_is_transformed_into_zeros() {
    let own = KernelPolicy {
        libraries: false,
        ..KernelPolicy::default()
    };
    for op in transforms().filter(|op| op.n == 4) {
        let program = |exec: &dyn Exec, x: &Value| {
            let square = reshape(exec, x, &[2, 2]).unwrap();
            op.apply(exec, &slice(exec, &square, 0, 0, 1, 0).unwrap())
                .unwrap()
        };
        for policy in [KernelPolicy::default(), own] {
            for (found, _) in under(policy, program) {
                assert!(
                    !found.is_empty() && found.iter().all(|&y| y == 0.0),
                    "{op:?}"
                );
            }
        }
    }
}
