//! Kernel calls block by block, where kernels get copies of their operands in a wider type.
//!
//! A call is divided as ranks divide an op: each block is an interval of some factors. Blocks of a factor that indexes an output
//! are parts of that output; blocks of one that does not are terms of it, which the engine combines as it would those of several ranks.

use super::site::{Site, Spans, with_halo};
use crate::rule::indexes;
use crate::{Access, KernelCx, OperandBox, Reduction, Rule};
use shard_comm::DType;
use shard_spec::numel;
use std::borrow::Cow;
use std::ops::Range;

/// A call is not divided further.
const MOST_BLOCKS: usize = 4096;
/// From so many operations for each byte of the operands on, an op gains by large blocks.
const MANY_OPERATIONS: u64 = 32;
/// Copies that are larger by this share of them are as good.
const NEARLY: usize = 16;
/// How much more room such an op has. Of a product of two matrices some operand is copied once for each block of the other.
const LARGER: usize = 4;

/// The blocks into which a call is divided. They are found one by one when the call is made: there may be thousands.
///
/// Calls that write to the same box of an output follow each other, and are terms of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks(Vec<Cut>);

/// In how many blocks a factor is cut, and which interval of it. Blocks of the last factor that is cut follow each other.
#[derive(Clone, Debug)]
struct Cut {
    factor: usize,
    span: Range<usize>,
    blocks: usize,
}

impl Blocks {
    /// What a call is that is not divided.
    pub(crate) const ONE: &'static Self = &Self(Vec::new());

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|cut| cut.blocks).product()
    }

    /// The calls for the blocks of one.
    pub(crate) fn calls<'a>(
        &'a self,
        rule: &'a Rule,
        whole: &'a KernelCx,
    ) -> impl Iterator<Item = Cow<'a, KernelCx>> {
        (0..self.count()).map(move |b| match self.0[..] {
            [] => Cow::Borrowed(whole),
            _ => Cow::Owned(self.call(rule, whole, b)),
        })
    }

    /// The call for block `b`: what it reads and writes lies where it lies for all of them.
    fn call(&self, rule: &Rule, whole: &KernelCx, b: usize) -> KernelCx {
        let mut call = whole.clone();
        let operands = call.inputs.iter_mut().chain(&mut call.outputs);
        for (dims, at) in rule.operands().zip(operands) {
            for (cut, place) in self.places(b) {
                for (d, access) in dims.iter().enumerate() {
                    if access.factor_index() == Some(cut.factor) {
                        let part = with_halo(rule, access, at.global[d], cut.block(place));
                        narrow(at, d, part);
                    }
                }
            }
        }
        // What is added once is added with the first term.
        let is_reduced = |cut: &Cut| rule.is_reduced(cut.factor);
        call.adds_once &= (self.places(b)).all(|(cut, at)| at == 0 || !is_reduced(cut));
        call.work = rule.work(&call.inputs, &call.outputs);
        call.line = None;
        call
    }

    /// Which block of each factor that is cut belongs to block `b` of all.
    fn places(&self, b: usize) -> impl Iterator<Item = (&Cut, usize)> {
        let mut left = b;
        self.0.iter().rev().map(move |cut| {
            let at = left % cut.blocks;
            left /= cut.blocks;
            (cut, at)
        })
    }
}

impl Cut {
    fn block(&self, at: usize) -> Range<usize> {
        let bound = |k: usize| self.span.start + self.span.len() * k / self.blocks;
        bound(at)..bound(at + 1)
    }
}

impl Site<'_> {
    /// The blocks into which a call that computes some spans is divided, so that the copies for each fit into the rule's room.
    pub(super) fn divided(&self, spans: &Spans, whole: &KernelCx) -> Blocks {
        let mut blocks = Blocks::default();
        let mut largest = Cow::Borrowed(whole);
        while self.is_too_large(&largest) && blocks.count() < MOST_BLOCKS {
            // The last blocks are the largest.
            let further: Vec<_> = (0..self.rule.factors.len())
                .filter_map(|factor| self.cut_further(spans, &blocks, factor))
                .map(|blocks| (blocks.call(self.rule, whole, blocks.count() - 1), blocks))
                .collect();
            // Of nearly equal ones the first: a bias, which is cut with the columns of a product, does not have them cut to the last.
            let least = further.iter().map(|(call, _)| self.copies(call)).min();
            let nearly = least.map_or(0, |least| least + least / NEARLY);
            let first = (further.into_iter()).find(|(call, _)| self.copies(call) <= nearly);
            let Some((smaller, with)) = first else {
                break;
            };
            if self.copies(&smaller) >= self.copies(&largest) {
                break;
            }
            (largest, blocks) = (Cow::Owned(smaller), with);
        }
        blocks
    }

    /// Whether the copies for a call have no room.
    fn is_too_large(&self, call: &KernelCx) -> bool {
        let many = call.work.flops > MANY_OPERATIONS.saturating_mul(call.work.bytes);
        let room = self.rule.room * if many { LARGER } else { 1 };
        self.copies(call) > room
    }

    /// The bytes of the copies that a call reads and writes.
    fn copies(&self, call: &KernelCx) -> usize {
        let read = call.inputs.iter().enumerate();
        let read = read.filter(|(i, _)| self.rule.widens(*i));
        let written = call.outputs.iter().enumerate();
        let written = written.filter(|(o, _)| self.rule.narrows(*o).is_some() && !self.rule.rounds);
        let elements: usize = read.chain(written).map(|(_, at)| numel(&at.shape)).sum();
        elements * DType::F32.size()
    }

    /// Twice as many blocks of a factor; `None` if it cannot be cut.
    fn cut_further(&self, spans: &Spans, blocks: &Blocks, factor: usize) -> Option<Blocks> {
        let mut cuts = blocks.0.clone();
        if let Some(cut) = cuts.iter_mut().find(|cut| cut.factor == factor) {
            cut.blocks *= 2;
            return Some(Blocks(cuts));
        }
        if !self.can_cut(factor) {
            return None;
        }
        let span = self.own_span(spans, factor);
        let cut = Cut {
            factor,
            span,
            blocks: 2,
        };
        // Terms of an output follow each other where the factors that index it are the outer ones.
        let nested = |cuts: &Vec<Cut>| {
            (0..self.rule.outputs.len()).all(|o| {
                let mut indexed = cuts.iter().map(|cut| self.indexes(cut.factor, o));
                indexed.by_ref().all(|yes| yes) || !indexed.any(|yes| yes)
            })
        };
        let orders = [cuts.len(), 0].map(|at| {
            let mut cuts = cuts.clone();
            cuts.insert(at, cut.clone());
            cuts
        });
        orders.into_iter().find(nested).map(Blocks)
    }

    /// Whether a kernel may be called on an interval of this factor, and what it makes of several can be put together.
    fn can_cut(&self, factor: usize) -> bool {
        let outputs = &self.rule.outputs;
        let mut accesses = self.rule.operands().flatten();
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
        indexes(&self.rule.outputs[o].dims, factor)
    }

    /// What this rank's part computes of a factor.
    fn own_span(&self, spans: &Spans, factor: usize) -> Range<usize> {
        let axes = (self.choice.factors[factor].as_ref()).map_or(&[][..], |s| &s.axes);
        let part = self.mesh.part_at(axes, &self.coords);
        match spans {
            Spans::Cut(cut) => cut[factor].as_ref().map(|parts| parts[part].clone()),
            Spans::Full => None,
        }
        .unwrap_or_else(|| self.choice.spans(factor, self.rule.factors[factor])[part].clone())
    }
}

/// Restricts a box to an interval of what it has of dim `d`.
fn narrow(at: &mut OperandBox, d: usize, interval: Range<usize>) {
    // Where nothing is left, what is beyond the box may not be in memory.
    if !interval.is_empty() {
        at.offset += (interval.start - at.start[d]) * at.strides[d] as usize;
    }
    (at.shape[d], at.start[d]) = (interval.len(), interval.start);
    at.held[d] = interval.into();
}
