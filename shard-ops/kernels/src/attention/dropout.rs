//! Dropout of probabilities, by a function of positions.

/// Which probabilities are dropped: a pure function of places in the whole problem, so that every split drops the same ones.
///
/// `batch` and `head` count within the views given to the kernel; an implementation for a part of a larger problem adds its
/// own offsets. Positions are global.
pub trait DropoutMask {
    /// The probability of being kept, above 0. What is kept is divided by it.
    fn kept(&self) -> f64;

    /// Writes for one query and every key in `keys` whether the probability is kept.
    fn keep(&self, batch: usize, head: usize, query: i64, keys: &[i64], keep: &mut [bool]);
}

/// [`DropoutMask`] by a function of (batch, head, query, key) that says what is dropped.
#[derive(Clone, Copy, Debug)]
pub struct DropWhere<F> {
    /// The share of probabilities that are dropped, below 1.
    pub rate: f64,
    /// Whether a probability is dropped.
    pub dropped: F,
}

impl<F: Fn(usize, usize, i64, i64) -> bool> DropoutMask for DropWhere<F> {
    fn kept(&self) -> f64 {
        1.0 - self.rate
    }

    fn keep(&self, batch: usize, head: usize, query: i64, keys: &[i64], keep: &mut [bool]) {
        for (keep, &key) in keep.iter_mut().zip(keys) {
            *keep = !(self.dropped)(batch, head, query, key);
        }
    }
}
