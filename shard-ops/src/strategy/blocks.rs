//! Kernel calls block by block, where kernels get copies of their operands in a wider type.
//!
//! A call is divided as ranks divide an op: each block is an interval of some factors. Blocks of a factor that indexes an output
//! are parts of that output; blocks of one that does not are terms of it, which the engine combines as it would those of several ranks.

use super::site::{Site, Spans};
use crate::{Access, KernelCx, Reduction};
use shard_comm::DType;
use shard_spec::numel;
use std::ops::Range;

/// In how many blocks a factor is cut.
#[derive(Clone, Copy)]
struct Cut {
    factor: usize,
    blocks: usize,
}

/// A call is not divided further.
const MOST_BLOCKS: usize = 4096;
/// From so many operations for each byte of the operands on, an op gains by large blocks.
const MANY_OPERATIONS: u64 = 32;
/// How much more room such an op has. Of a product of two matrices some operand is copied once for each block of the other.
const LARGER: usize = 4;

impl Site<'_> {
    /// A call that computes everything, in blocks; the inputs lie where they were brought.
    pub(super) fn in_blocks(&self, whole: KernelCx) -> Vec<KernelCx> {
        if !self.is_too_large(&whole) {
            return vec![whole];
        }
        let all = |i| self.covers_with_halos(i, &Spans::Full);
        self.divided(&Spans::Full, |spans| {
            self.kernel(spans, |i| {
                self.sub_box(&all(i), &self.covers_with_halos(i, spans))
            })
        })
    }

    /// The calls for the blocks into which some spans are divided, so that the copies for one call fit into the rule's room. Calls
    /// that write to the same box of an output follow each other, and are terms of it.
    pub(super) fn divided(
        &self,
        spans: &Spans,
        call: impl Fn(&Spans) -> KernelCx,
    ) -> Vec<KernelCx> {
        let mut largest = call(spans);
        let mut cuts: Vec<Cut> = Vec::new();
        while self.is_too_large(&largest) && count(&cuts) < MOST_BLOCKS {
            // The last blocks are the largest.
            let further = (0..self.rule.factors.len())
                .filter_map(|factor| self.cut_further(&cuts, factor))
                .map(|cuts| {
                    (
                        call(&self.spans_of_block(spans, &cuts, count(&cuts) - 1)),
                        cuts,
                    )
                });
            let Some((smaller, with)) = further.min_by_key(|(call, _)| self.copies(call)) else {
                break;
            };
            if self.copies(&smaller) >= self.copies(&largest) {
                break;
            }
            (largest, cuts) = (smaller, with);
        }
        if cuts.is_empty() {
            return vec![largest];
        }
        (0..count(&cuts))
            .map(|b| {
                let mut call = call(&self.spans_of_block(spans, &cuts, b));
                // What is added once is added with the first term.
                let is_reduced = |cut: &Cut| self.rule.is_reduced(cut.factor);
                call.adds_once &= places(&cuts, b).all(|(cut, at)| at == 0 || !is_reduced(cut));
                call
            })
            .collect()
    }

    /// Whether the copies for a call have no room.
    fn is_too_large(&self, call: &KernelCx) -> bool {
        let many = call.work.flops > MANY_OPERATIONS * call.work.bytes;
        let room = self.rule.room * if many { LARGER } else { 1 };
        self.copies(call) > room
    }

    /// The bytes of the copies that a call reads and writes.
    fn copies(&self, call: &KernelCx) -> usize {
        let read = call.inputs.iter().enumerate();
        let read = read.filter(|(i, _)| self.rule.widens(*i));
        let written = call.outputs.iter().enumerate();
        let written = written.filter(|(o, _)| self.rule.narrows(*o).is_some());
        let elements: usize = read.chain(written).map(|(_, at)| numel(&at.shape)).sum();
        elements * DType::F32.size()
    }

    /// The cuts with twice as many blocks of a factor; `None` if it cannot be cut.
    fn cut_further(&self, cuts: &[Cut], factor: usize) -> Option<Vec<Cut>> {
        let mut cuts = cuts.to_vec();
        if let Some(cut) = cuts.iter_mut().find(|cut| cut.factor == factor) {
            cut.blocks *= 2;
            return Some(cuts);
        }
        if !self.can_cut(factor) {
            return None;
        }
        let cut = Cut { factor, blocks: 2 };
        // Terms of an output follow each other where the factors that index it are the outer ones.
        let nested = |cuts: &Vec<Cut>| {
            (0..self.rule.outputs.len()).all(|o| {
                let mut indexed = cuts.iter().map(|cut| self.indexes(cut.factor, o));
                indexed.by_ref().all(|yes| yes) || !indexed.any(|yes| yes)
            })
        };
        let orders = [cuts.len(), 0].map(|at| {
            let mut cuts = cuts.clone();
            cuts.insert(at, cut);
            cuts
        });
        orders.into_iter().find(nested)
    }

    /// Whether a kernel may be called on an interval of this factor, and what it makes of several can be put together.
    fn can_cut(&self, factor: usize) -> bool {
        let outputs = &self.rule.outputs;
        let mut accesses = (self.rule.inputs.iter())
            .chain(outputs.iter().map(|o| &o.dims))
            .flatten();
        let by_spans = accesses.all(|access| {
            access.factor_index() != Some(factor)
                || matches!(
                    access,
                    Access::Factor { .. } | Access::Window { .. } | Access::Adjoint { .. }
                )
        });
        let terms = matches!(self.rule.reduction, Some(Reduction::Partial(_)));
        by_spans
            && (self.choice.factors[factor].as_ref()).is_none_or(|s| s.partition.is_contiguous())
            && (0..outputs.len())
                .all(|o| self.indexes(factor, o) || terms && outputs[o].meta.dtype == DType::F32)
    }

    /// Whether a factor indexes a dim of output `o`.
    fn indexes(&self, factor: usize, o: usize) -> bool {
        let mut dims = self.rule.outputs[o].dims.iter();
        dims.any(|access| access.factor_index() == Some(factor))
    }

    /// The spans of block `b`, for every part.
    fn spans_of_block(&self, spans: &Spans, cuts: &[Cut], b: usize) -> Spans {
        let mut cut = match spans {
            Spans::Full => vec![None; self.rule.factors.len()],
            Spans::Cut(cut) => cut.clone(),
        };
        for (Cut { factor, blocks }, at) in places(cuts, b) {
            let extent = self.rule.factors[*factor];
            let parts = cut[*factor]
                .take()
                .unwrap_or_else(|| self.choice.spans(*factor, extent));
            let of = |part: Range<usize>| {
                let bound = |k: usize| part.start + part.len() * k / blocks;
                bound(at)..bound(at + 1)
            };
            cut[*factor] = Some(parts.into_iter().map(of).collect());
        }
        Spans::Cut(cut)
    }
}

/// How many blocks there are.
fn count(cuts: &[Cut]) -> usize {
    cuts.iter().map(|cut| cut.blocks).product()
}

/// Which block of each cut factor belongs to block `b` of all; those of the last factor follow each other.
fn places(cuts: &[Cut], b: usize) -> impl Iterator<Item = (&Cut, usize)> {
    let mut left = b;
    cuts.iter().rev().map(move |cut| {
        let at = left % cut.blocks;
        left /= cut.blocks;
        (cut, at)
    })
}
