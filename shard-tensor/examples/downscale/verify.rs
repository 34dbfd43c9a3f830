//! The promise, checked: many ranks give what one gives.

use crate::Failure;
use crate::args::{MeshShape, Split};
use crate::keep::Stretch;
use crate::train::{Job, Outcome};
use crate::trained::Distance;
use shard_tensor::{Backend, DType, DeviceKind};
use std::io::Write;

/// Largest difference of a weight, as a share of the largest weight of its tensor, in double precision.
const WEIGHTS: f64 = 1e-9;

/// Largest difference of a loss, as a share of it, in double precision.
const LOSS: f64 = 1e-10;

/// Trains the job on one rank, in double and in single precision, and where `outcome` is not of that type on its own
/// mesh too. Prints how far they are apart, where there is an outcome (in the process of rank 0), and gives whether double precision agrees as it must.
///
/// # Errors
/// What the library reports, and if the output cannot be written.
pub(crate) fn agrees_with_one_rank(
    out: &mut impl Write,
    job: &Job<'_>,
    outcome: Option<&Outcome>,
) -> Result<bool, Failure> {
    if outcome.is_some() {
        writeln!(out, "\nagainst one rank, after {} steps", job.steps)?;
        writeln!(
            out,
            "  {:4}  {:>24}  {:>18}  largest in",
            "", "weights max|Δ|/max|w|", "loss |Δ|/loss"
        )?;
    }
    let one = MeshShape(vec![1]);
    let (first_type, mut agrees) = (job.dtype, true);
    for dtype in [DType::F64, DType::F32] {
        let job = Job {
            dtype,
            stretch: Stretch::whole(job.steps),
            weights: None,
            profile: false,
            ..*job
        };
        let other;
        let many = if dtype == first_type {
            outcome
        } else {
            other = job.run()?;
            other.as_ref()
        };
        let alone = Job {
            mesh: &one,
            split: &Split::Even,
            device: DeviceKind::Host,
            backend: Backend::Own,
            ..job
        }
        .run()?;
        let (Some(many), Some(alone)) = (many, &alone) else {
            continue;
        };
        let distance = Distance::between(&many.trained, &alone.trained);
        let verdict = match dtype {
            DType::F64 if distance.within(WEIGHTS, LOSS) => "  ok",
            DType::F64 => {
                agrees = false;
                "  TOO LARGE"
            }
            _ => "  (for information)",
        };
        writeln!(
            out,
            "  {:4}  {:>24.2e}  {:>18.2e}  {}{verdict}",
            dtype.name(),
            distance.weights.0,
            distance.loss,
            distance.weights.1
        )?;
    }
    if outcome.is_some() {
        writeln!(out, "  f64 must be within {WEIGHTS:.0e} and {LOSS:.0e}")?;
    }
    Ok(agrees)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::tests::Folder;
    use ndarray::{Array2, Array4};
    use std::io::sink;

    /// Three hours of hills and waves.
    fn hills(name: &str) -> Folder {
        let altitude =
            Array2::from_shape_fn((13, 11), |(i, j)| (100 * (i * j % 7) + 10 * (i % 3)) as f32);
        let theta = Array4::from_shape_fn((3, 1, 13, 11), |(hour, _, i, j)| {
            280.0 + (i + hour) as f32 / 3.0 + (j as f32).sin() - altitude[[i, j]] / 300.0
        });
        Folder::of(name, &theta, &altitude)
    }

    fn job<'a>(hills: &'a Folder, mesh: &'a MeshShape, split: &'a Split) -> Job<'a> {
        Job {
            data: &hills.path,
            forecast: &hills.forecast,
            mesh,
            split,
            steps: 2,
            stretch: Stretch::whole(2),
            batch: 2,
            seed: 3,
            dtype: DType::F64,
            autocast: DType::F32,
            device: DeviceKind::Host,
            backend: Backend::Own,
            weights: None,
            level: 0,
            profile: false,
        }
    }

    #[test]
    fn pieces_of_one_row_and_of_none_train_as_one_rank() {
        let (hills, mesh, split) = (
            hills("pieces"),
            MeshShape(vec![3, 2]),
            Split::Sizes(vec![vec![12, 0, 1], vec![3, 8]]),
        );
        let job = job(&hills, &mesh, &split);
        let outcome = job.run().unwrap().unwrap();
        assert!(agrees_with_one_rank(&mut sink(), &job, Some(&outcome)).unwrap());
    }

    #[test]
    fn other_weights_do_not_agree() {
        let (hills, mesh, split) = (hills("other"), MeshShape(vec![2]), Split::Even);
        let job = job(&hills, &mesh, &split);
        let mut outcome = job.run().unwrap().unwrap();
        outcome.trained.weights[4].1[0] += 1e-6;
        assert!(!agrees_with_one_rank(&mut sink(), &job, Some(&outcome)).unwrap());
        outcome.trained.weights[4].1[0] = f64::NAN;
        assert!(!agrees_with_one_rank(&mut sink(), &job, Some(&outcome)).unwrap());
    }

    #[test]
    fn a_training_that_is_resumed_goes_on_as_the_whole() {
        let (hills, mesh, split) = (hills("resumed"), MeshShape(vec![3, 2]), Split::Uneven);
        let file = hills.path.join("training.safetensors");
        // Of the epochs of two batches each, the second one is not ended by the stop.
        let whole = Job {
            steps: 6,
            stretch: Stretch::whole(6),
            batch: 1,
            ..job(&hills, &mesh, &split)
        };
        let stopped = Job {
            stretch: Stretch {
                save: Some((&file, 2)),
                ..Stretch::whole(3)
            },
            ..whole
        };
        let resumed = Job {
            stretch: Stretch {
                resume: Some(&file),
                ..Stretch::whole(6)
            },
            ..whole
        };
        let whole = whole.run().unwrap().unwrap().trained;
        stopped.run().unwrap();
        let same = resumed.run().unwrap().unwrap().trained;
        assert_eq!((same.course.first, same.course.losses.len()), (3, 3));
        assert_eq!(same.course.losses, whole.course.losses[3..]);
        assert_eq!(same.weights, whole.weights);
        let elsewhere = Job {
            mesh: &MeshShape(vec![2]),
            split: &Split::Sizes(vec![vec![9, 4]]),
            ..resumed
        };
        let elsewhere = elsewhere.run().unwrap().unwrap().trained;
        assert_ne!(elsewhere.course.losses, same.course.losses);
        assert!(Distance::between(&elsewhere, &whole).within(WEIGHTS, 1e-12));
    }
}
