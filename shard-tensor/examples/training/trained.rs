//! What a training leaves, and how far two are apart.

use crate::progress::Course;
use shard_tensor::nn::Parameters;
use shard_tensor::{DType, Result, ShardTensor};
use std::fmt;
use std::io::{self, Write};

/// The largest difference to one rank in double precision, of a loss and as a share of the largest weight of its tensor.
pub(crate) const APART: f64 = 1e-10;

/// A model after its training.
pub(crate) struct Trained {
    pub(crate) course: Course,
    /// All parameters, by name.
    pub(crate) weights: Vec<(String, Vec<f64>)>,
}

/// How far two trainings are apart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Distance {
    /// The largest over all tensors of max|Δ| / max|w|, and the tensor it is of.
    pub(crate) weights: (f64, String),
    /// The largest over all steps that both made of |Δ| / |loss|.
    pub(crate) loss: f64,
}

impl Trained {
    /// Reads the parameters.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn new(course: Course, parameters: &Parameters) -> Result<Self> {
        let read = |(name, tensor): &(String, ShardTensor)| {
            let whole = tensor.detach().to(DType::F64)?.to_array::<f64>()?;
            Ok((name.clone(), whole.into_iter().collect()))
        };
        let weights = parameters.iter().map(read).collect::<Result<_>>()?;
        Ok(Self { course, weights })
    }
}

impl Distance {
    /// Of a training on many ranks and the same on one, or of one that was resumed and the whole.
    pub(crate) fn between(many: &Trained, one: &Trained) -> Self {
        let tensors = many.weights.iter().zip(&one.weights);
        let weights = tensors.map(|((name, a), (_, b))| {
            let scale = b.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
            (largest(differences(a, b)) / scale, name.clone())
        });
        let from = many.course.first.max(one.course.first);
        let [a, b] = [many, one].map(|trained| {
            let Course { first, losses, .. } = &trained.course;
            &losses[losses.len().min(from - first)..]
        });
        let losses = differences(a, b).zip(b);
        Self {
            weights: weights.fold((0.0, "none".to_owned()), |worst, next| {
                if exceeds(next.0, worst.0) {
                    next
                } else {
                    worst
                }
            }),
            loss: largest(losses.map(|(difference, loss)| difference / loss.abs())),
        }
    }

    /// Whether neither is above its bound. False for NaN.
    pub(crate) fn within(&self, weights: f64, loss: f64) -> bool {
        self.weights.0 <= weights && self.loss <= loss
    }
}

/// Prints how far a training on many ranks is from the same on one, in double precision, and gives whether that is near enough.
pub(crate) fn agree(out: &mut impl Write, many: &Trained, one: &Trained) -> io::Result<bool> {
    let apart = Distance::between(many, one);
    let near = apart.within(APART, APART);
    let verdict = if near { "ok" } else { "TOO LARGE" };
    writeln!(out, "against one rank: {apart}: {verdict}")?;
    Ok(near)
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (loss, (weights, name)) = (self.loss, &self.weights);
        write!(f, "losses to {loss:.1e}, weights to {weights:.1e} ({name})")
    }
}

fn differences(a: &[f64], b: &[f64]) -> impl Iterator<Item = f64> {
    a.iter().zip(b).map(|(a, b)| (a - b).abs())
}

/// The largest number; NaN if there is one.
pub(crate) fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(
        0.0,
        |worst, next| if exceeds(next, worst) { next } else { worst },
    )
}

/// Whether a number is worse than the worst so far. Nothing is worse than NaN.
fn exceeds(next: f64, worst: f64) -> bool {
    !worst.is_nan() && (next.is_nan() || next > worst)
}
