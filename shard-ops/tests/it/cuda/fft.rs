//! Transforms by the libraries, beside the sums.

use super::under;
use shard_kernels::fft::{Fft, Pass};
use shard_ops::index::slice;
use shard_ops::inside::Transform;
use shard_ops::shape::{permute, reshape};
use shard_ops::{Exec, KernelPolicy, Value};

/// All that a transform can be, of too few elements, as many as there are, and too many.
fn passes() -> impl Iterator<Item = Pass> {
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
        [whole, 1, whole + 2].map(|extent| Pass {
            kind,
            dim: 0,
            n,
            extent,
            scale: 0.75,
        })
    })
}

#[test]
fn the_library_transforms_as_the_sums_do() {
    let own = KernelPolicy {
        libraries: false,
        ..KernelPolicy::default()
    };
    let alone = passes().map(|pass| vec![pass]);
    // Real numbers to half spectra of columns, and along rows; back, and cut and padded on the way.
    let along = |kind, dim, n, extent| Pass {
        kind,
        dim,
        n,
        extent,
        scale: 0.75,
    };
    let [there, back] = [false, true].map(|inverse| Fft::Complex { inverse });
    let from_real = Fft::FromReal { doubled: false };
    let to_real = Fft::ToReal { doubled: true };
    let several = [
        vec![along(from_real, 0, 2, 2), along(there, 1, 2, 2)],
        vec![
            along(from_real, 1, 5, 3),
            along(back, 0, 3, 1),
            along(to_real, 1, 4, 3),
        ],
    ];
    for op in alone.chain(several) {
        let program = |exec: &dyn Exec, x: &Value| {
            let square = reshape(exec, x, &[2, 2]).unwrap();
            // Lines with steps, and for complex numbers these with imaginary parts elsewhere.
            let turned = permute(exec, &square, &[1, 0]).unwrap();
            Transform::apply(exec, "transform", &op, &turned).unwrap()
        };
        let by_library = under(KernelPolicy::default(), program);
        let by_sums = under(own, program);
        for ((found, calls), (expected, none)) in by_library.iter().zip(&by_sums) {
            assert_eq!((*calls, *none), (op.len() as u64, 0), "{op:?}");
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
    for pass in passes().filter(|pass| pass.n == 4) {
        let program = |exec: &dyn Exec, x: &Value| {
            let square = reshape(exec, x, &[2, 2]).unwrap();
            let none = slice(exec, &square, 0, 0, 1, 0).unwrap();
            Transform::apply(exec, "transform", &[pass], &none).unwrap()
        };
        for policy in [KernelPolicy::default(), own] {
            for (found, _) in under(policy, program) {
                assert!(
                    !found.is_empty() && found.iter().all(|&y| y == 0.0),
                    "{pass:?}"
                );
            }
        }
    }
}
