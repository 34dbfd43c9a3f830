//! The parts of a dim that is scanned, and where each one's totals are.

use crate::error::InOp;
use crate::families::shape::extent;
use crate::rule::RuleBuilder;
use crate::{Access, Exec, Meta, OperandBox, Result, RowCuts, Rule, Value};
use shard_comm::Element;
use shard_kernels::copy::copy;
use shard_kernels::{View, ViewMut};
use shard_spec::{DimSharding, Dims};
use std::ops::Range;
use std::sync::Arc;

/// A dim and how it is divided: the boundaries of its parts, if it is sharded.
///
/// The parts are the factor of a rule, and the dim's elements are [rows](Access::Rows) of the parts: a rank that has a part of
/// the one has the same part of the other.
#[derive(Clone, Debug, Hash)]
pub(super) struct Parts {
    pub(super) dim: usize,
    ends: Option<Arc<Ends>>,
}

#[derive(Debug, Hash)]
struct Ends {
    offsets: Vec<usize>,
    cuts: Arc<RowCuts>,
}

impl Parts {
    /// How a dim of a value is divided. Several intervals per rank count as one of their size each, which they are brought to.
    pub(super) fn of(op: &'static str, x: &Value, dim: usize) -> Result<Self> {
        let n = extent(op, x, dim)?;
        Self::divided(n, dim, x.layout().sharding(dim))
    }

    /// How a dim of `n` elements is divided that is sharded so.
    pub(super) fn divided(n: usize, dim: usize, sharding: Option<&DimSharding>) -> Result<Self> {
        let ends = sharding.and_then(|sharding| {
            let offsets = sharding.partition.to_contiguous().as_slice().to_vec();
            let parts: Vec<usize> = (0..offsets.len()).collect();
            assert_eq!(offsets.last(), Some(&n));
            let cuts = Arc::new(RowCuts::new(&parts, &offsets)?);
            Some(Arc::new(Ends { offsets, cuts }))
        });
        Ok(Self { dim, ends })
    }

    /// How many parts.
    pub(super) fn count(&self) -> usize {
        self.ends.as_ref().map_or(1, |e| e.offsets.len() - 1)
    }

    /// Whether a part has to know of others.
    pub(super) fn has_totals(&self) -> bool {
        self.count() > 1
    }

    /// A rule of `xs` operands that are divided so, and then of `totals` operands of which every rank has those of all parts;
    /// with the accesses of a result that is divided as the former.
    pub(super) fn scanned(
        &self,
        op: &'static str,
        inputs: &[Meta],
        xs: usize,
        totals: usize,
    ) -> (RuleBuilder, Vec<Access>) {
        let (mut rule, dims, _) = self.accesses(op, inputs);
        for _ in 0..xs {
            rule = rule.input(dims.clone());
        }
        let mut of_totals = dims.clone();
        of_totals[self.dim] = Access::WHOLE;
        for _ in 0..totals {
            rule = rule.input(of_totals.clone());
        }
        (rule, dims)
    }

    /// A rule of `xs` operands that are divided so, with the accesses and the shape of their totals.
    pub(super) fn totals(
        &self,
        op: &'static str,
        inputs: &[Meta],
        xs: usize,
    ) -> (RuleBuilder, Vec<Access>, Dims) {
        let (mut rule, dims, each) = self.accesses(op, inputs);
        for _ in 0..xs {
            rule = rule.input(dims.clone());
        }
        let (mut of_totals, mut shape) = (dims, inputs[0].shape.clone());
        (of_totals[self.dim], shape[self.dim]) = (each, self.count());
        (rule, of_totals, shape)
    }

    /// A rule without operands, the accesses of one that is divided so, and that of one with an element per part.
    pub(super) fn accesses(
        &self,
        op: &'static str,
        inputs: &[Meta],
    ) -> (RuleBuilder, Vec<Access>, Access) {
        let mut rule = Rule::builder(op, inputs);
        let part = rule.factor(self.count());
        let mut dims = Vec::with_capacity(inputs[0].shape.len());
        for (d, &n) in inputs[0].shape.iter().enumerate() {
            dims.push(match (d == self.dim, &self.ends) {
                (true, None) => Access::WHOLE,
                (true, Some(ends)) => Access::Rows {
                    factor: part,
                    cuts: Some(ends.cuts.clone()),
                },
                (false, _) => Access::factor(rule.factor(n)),
            });
        }
        (rule, dims, Access::factor(part))
    }

    /// The totals of all parts on every rank that has lines of theirs.
    pub(super) fn gathered(&self, exec: &dyn Exec, totals: &Value) -> Result<Value> {
        let layout = totals.layout().with_sharding(self.dim, None);
        exec.redistribute(totals, &layout.in_op("scan_totals")?)
    }

    /// The parts that come before a box, in the order of the scan.
    pub(super) fn before(&self, x: &OperandBox, backwards: bool) -> Vec<usize> {
        let (first, n) = (x.start[self.dim], x.shape[self.dim]);
        let Some(ends) = &self.ends else {
            return Vec::new();
        };
        let parts = ends.offsets.windows(2).enumerate();
        if backwards {
            let after = parts.filter(|(_, ends)| ends[0] >= first + n && ends[0] < ends[1]);
            return after.map(|(k, _)| k).rev().collect();
        }
        let before = parts.filter(|(_, ends)| ends[1] <= first && ends[0] < ends[1]);
        before.map(|(k, _)| k).collect()
    }

    /// The rows of a box, counted from its first, of each part whose totals another box has.
    pub(super) fn within(&self, x: &OperandBox, totals: &OperandBox) -> Vec<Range<usize>> {
        let (first, n) = (x.start[self.dim], x.shape[self.dim]);
        let (from, count) = (totals.start[self.dim], totals.shape[self.dim]);
        let Some(ends) = &self.ends else {
            return std::iter::once(0..n).collect();
        };
        let parts = ends.offsets[from..=from + count].windows(2);
        // Of an empty part the box may lie anywhere.
        let rows = |ends: &[usize]| match ends[0] < ends[1] {
            true => ends[0] - first..ends[1] - first,
            false => 0..0,
        };
        parts.map(rows).collect()
    }

    /// Some rows of a view.
    pub(super) fn rows<'a, T>(&self, x: &View<'a, T>, rows: Range<usize>) -> View<'a, T> {
        let (mut start, mut extent) = (vec![0; x.ndim()], x.shape().to_vec());
        (start[self.dim], extent[self.dim]) = (rows.start, rows.len());
        x.sub_box(&start, &extent)
    }

    /// Writes the totals of part number `k` of a box.
    pub(super) fn put<T: Element>(&self, totals: &mut ViewMut<'_, T>, k: usize, states: &[T]) {
        let (mut start, mut extent) = (vec![0; totals.ndim()], totals.shape().to_vec());
        (start[self.dim], extent[self.dim]) = (k, 1);
        let mut to = totals.reborrow().sub_box(&start, &extent);
        copy(&View::contiguous(states, &extent), &mut to);
    }
}

/// The extents of the other dims.
pub(super) fn line_shape(shape: &[usize], dim: usize) -> Dims {
    let mut shape = Dims::from_slice(shape);
    shape.remove(dim);
    shape
}

/// Joins the totals of some parts to the state of each line, in order.
pub(super) fn join<T: Copy, S>(
    totals: &View<'_, T>,
    dim: usize,
    parts: &[usize],
    states: &mut [S],
    mut join: impl FnMut(&mut S, T),
) {
    let (mut start, mut extent) = (vec![0; totals.ndim()], totals.shape().to_vec());
    extent[dim] = 1;
    for &part in parts {
        start[dim] = part;
        let of_part = totals.sub_box(&start, &extent).to_vec();
        for (state, total) in states.iter_mut().zip(of_part) {
            join(state, total);
        }
    }
}
