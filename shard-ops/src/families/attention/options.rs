//! The options of attention: which keys a query sees, and how the keys reach it.

use super::rule::Masks;
use crate::rng::Stream;
use crate::{FoldBy, key_of};
use shard_kernels::attention::Band;

/// The options of attention: which keys a query sees, and how the keys reach it.
///
/// ```
/// use shard_ops::attention::{Attention, Causal};
/// let recent = Attention::new().causal(Causal::TopLeft).window(128, 0).scale(0.125);
/// # let _ = recent;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    pub(crate) scale: Option<f64>,
    causal: Option<Causal>,
    window: Option<(usize, usize)>,
    pub(crate) dropout: Option<(f64, Stream)>,
    pub(super) fold_by: FoldBy,
}

/// How the causal mask aligns queries with keys if their numbers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Causal {
    /// The first query with the first key, as PyTorch's `is_causal`.
    TopLeft,
    /// The last query with the last key, as in decoding with a cache.
    BottomRight,
}

impl Attention {
    /// Every query sees every key, logits are scaled by `1 / sqrt(dim)`, and nothing is dropped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Multiplies the logits by this instead of `1 / sqrt(dim)`.
    #[must_use]
    pub fn scale(self, scale: f64) -> Self {
        Self {
            scale: Some(scale),
            ..self
        }
    }

    /// Hides the keys that come after a query.
    #[must_use]
    pub fn causal(self, causal: Causal) -> Self {
        Self {
            causal: Some(causal),
            ..self
        }
    }

    /// Hides keys more than `left` before or `right` after a query. Aligned as the causal mask is, or top left without one.
    #[must_use]
    pub fn window(self, left: usize, right: usize) -> Self {
        Self {
            window: Some((left, right)),
            ..self
        }
    }

    /// Drops each probability with probability `rate`, below 1, and divides those that stay by the probability of staying.
    /// Which ones are dropped is a function of the stream and of (batch, head, query, key), the same under any layout; take a
    /// new stream for every call.
    #[must_use]
    pub fn dropout(self, rate: f64, stream: Stream) -> Self {
        Self {
            dropout: Some((rate, stream)),
            ..self
        }
    }

    /// Says how sharded keys meet the queries; by default in the cheapest way.
    #[must_use]
    pub fn fold_by(self, fold_by: FoldBy) -> Self {
        Self { fold_by, ..self }
    }

    /// The options with nothing hidden by position, and the least and the greatest distance from a query to a key that it sees by these, for
    /// so many of both: `i64::MIN` and `i64::MAX` where there is no bound. For what makes a mask of them.
    ///
    /// ```
    /// use shard_ops::attention::{Attention, Causal};
    /// let recent = Attention::new().causal(Causal::BottomRight).window(2, 0);
    /// assert_eq!(recent.without_bounds(3, 5), (Attention::new(), [0, 2]));
    /// assert_eq!(Attention::new().without_bounds(3, 5).1, [i64::MIN, i64::MAX]);
    /// ```
    #[must_use]
    pub fn without_bounds(self, queries: usize, keys: usize) -> (Self, [i64; 2]) {
        let bounds = self.band(queries, keys).bounds();
        let free = Self {
            causal: None,
            window: None,
            ..self
        };
        (free, bounds.into())
    }

    /// What logits of queries of so many elements are multiplied by.
    pub(super) fn scale_of(&self, dim: usize) -> f64 {
        (self.scale).unwrap_or_else(|| 1.0 / (dim.max(1) as f64).sqrt())
    }

    /// The keys that a query sees, for these numbers of queries and keys.
    pub(crate) fn band(&self, queries: usize, keys: usize) -> Band {
        let offset = match self.causal {
            Some(Causal::BottomRight) => keys as i64 - queries as i64,
            _ => 0,
        };
        let causal = self.causal.map_or(Band::ALL, |_| Band::causal());
        let window = self.window.map_or(Band::ALL, |(l, r)| Band::window(l, r));
        causal.and(window).shifted(offset)
    }

    pub(super) fn key(&self, name: &str, masks: Masks) -> u128 {
        let scale = self.scale.map(f64::to_bits);
        let rate = self.dropout.map(|(rate, _)| rate.to_bits());
        // The stream is left out: what is dropped does not change what moves, and every call has another stream.
        key_of(
            name,
            &(scale, self.causal, self.window, rate, self.fold_by, masks),
        )
    }
}
