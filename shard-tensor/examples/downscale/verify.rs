//! The promise, checked: many ranks give what one gives.

use crate::args::MeshShape;
use crate::train::{Job, Outcome};
use shard_tensor::{DType, Result};

/// Largest difference of a weight, as a share of the largest weight of its tensor, in double precision.
const WEIGHTS: f64 = 1e-9;

/// Largest difference of a loss, as a share of it, in double precision.
const LOSS: f64 = 1e-10;

/// How far two trainings are apart.
#[derive(Clone, Debug, PartialEq)]
struct Distance {
    /// The largest over all tensors of max|Δ| / max|w|, and the tensor it is of.
    weights: (f64, String),
    /// The largest over all steps of |Δ| / |loss|.
    loss: f64,
}

/// Trains the job on one rank, in double and in single precision, and where `outcome` is not of that type on its own
/// mesh too. Prints how far they are apart, and gives whether double precision agrees as it must.
///
/// # Errors
/// What the library reports.
pub(crate) fn agrees_with_one_rank(job: &Job<'_>, outcome: &Outcome) -> Result<bool> {
    println!("\nagainst one rank, after {} steps", job.steps);
    println!(
        "  {:4}  {:>24}  {:>18}  largest in",
        "", "weights max|Δ|/max|w|", "loss |Δ|/loss"
    );
    let one = MeshShape(vec![1]);
    let mut agrees = true;
    for dtype in [DType::F64, DType::F32] {
        let job = Job {
            dtype,
            weights: None,
            ..*job
        };
        let other;
        let many = if dtype == outcome.dtype {
            outcome
        } else {
            other = job.run()?;
            &other
        };
        let alone = Job {
            mesh: &one,
            split: &crate::args::Split::Even,
            ..job
        }
        .run()?;
        let distance = Distance::between(many, &alone);
        let verdict = match dtype {
            DType::F64 if distance.within(WEIGHTS, LOSS) => "  ok",
            DType::F64 => {
                agrees = false;
                "  TOO LARGE"
            }
            _ => "  (for information)",
        };
        println!(
            "  {:4}  {:>24.2e}  {:>18.2e}  {}{verdict}",
            dtype.name(),
            distance.weights.0,
            distance.loss,
            distance.weights.1
        );
    }
    println!("  f64 must be within {WEIGHTS:.0e} and {LOSS:.0e}");
    Ok(agrees)
}

impl Distance {
    fn between(many: &Outcome, one: &Outcome) -> Self {
        let of_tensor = |((name, a), (_, b)): (&(String, Vec<f64>), &(String, Vec<f64>))| {
            (
                largest(a, b) / b.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs())),
                name.clone(),
            )
        };
        let weights = many.weights.iter().zip(&one.weights).map(of_tensor);
        let losses = many.losses.iter().zip(&one.losses);
        Self {
            weights: weights.fold((0.0, "no tensor".to_owned()), |worst, next| {
                // A comparison that is false for NaN too: a NaN must win.
                if next.0 <= worst.0 { worst } else { next }
            }),
            loss: losses
                .map(|(a, b)| (a - b).abs() / b.abs())
                .fold(0.0, |worst, next| if next <= worst { worst } else { next }),
        }
    }

    /// False for NaN.
    fn within(&self, weights: f64, loss: f64) -> bool {
        self.weights.0 <= weights && self.loss <= loss
    }
}

/// The largest difference; NaN if there is one.
fn largest(a: &[f64], b: &[f64]) -> f64 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |worst, next| if next <= worst { worst } else { next })
}
