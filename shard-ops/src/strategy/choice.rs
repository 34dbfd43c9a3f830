//! Which mesh axes shard which factor.

use super::intervals::Axes;
use crate::Rule;
use shard_spec::DimSharding;
use std::ops::Range;

/// Which mesh axes shard which factor, and which partial sums pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Per factor, the mesh axes and boundaries it is sharded by.
    pub factors: Vec<Option<DimSharding>>,
    /// Axes along which operands stay partial, and the result is.
    pub carry: Axes,
    /// The one operand that stays partial; `None` if all that are partial along these axes do.
    pub carrier: Option<usize>,
}

impl Choice {
    /// Nothing is sharded.
    pub fn none(rule: &Rule) -> Self {
        Self {
            factors: vec![None; rule.factors.len()],
            carry: Axes::new(),
            carrier: None,
        }
    }

    /// Whether operand `i` stays partial along an axis: a product of two sums is not the sum of the products.
    pub(super) fn carries(&self, i: usize, axis: usize) -> bool {
        self.carry.contains(&axis) && self.carrier.is_none_or(|c| c == i)
    }

    /// The intervals of a factor of `extent` indices that is held in consecutive ones.
    pub(super) fn spans(&self, factor: usize, extent: usize) -> Vec<Range<usize>> {
        match &self.factors[factor] {
            Some(s) => s.partition.to_contiguous().intervals().collect(),
            None => std::iter::once(0..extent).collect(),
        }
    }

    /// How many mesh axes shard factors.
    pub(super) fn axes(&self) -> usize {
        self.factors.iter().flatten().map(|s| s.axes.len()).sum()
    }

    pub(super) fn uses(&self, axis: usize) -> bool {
        self.carry.contains(&axis)
            || self
                .factors
                .iter()
                .flatten()
                .any(|s| s.axes.contains(&axis))
    }
}
