//! The ways to serve a sharded ring dim, what each costs, and the choice between them.
//!
//! The operands' layouts decide where results lie, so that they lie alike whichever way is taken. A way decides which
//! factor the mesh axes of the blocks shard *while the kernels run*: the outputs' (a ring, or a gather), the blocks' own
//! (split), or another that all operands have (heads). Operands are brought there and results brought back by exchanges.

use super::choice::Choice;
use super::intervals::further;
use super::price::WayCost;
use super::site::Site;
use crate::rule::indexes;
use crate::{Access, FoldBy, Reduction, Result};
use shard_redistribute::CostModel;
use shard_spec::{DimSharding, Layout, ReduceOp};

/// A way, and the choice under which its kernels run.
pub(super) struct Way {
    pub(super) cost: WayCost,
    pub(super) work: Choice,
    /// How the blocks are divided.
    pub(super) blocks: DimSharding,
}

impl Way {
    /// How blocks are divided that are folded where they lie, or come round.
    pub(super) fn ring(&self) -> Option<DimSharding> {
        (self.cost.way != FoldBy::Gather).then(|| self.blocks.clone())
    }
}

impl Site<'_> {
    /// The way to take and what was compared; nothing where no ring dim is sharded.
    pub(super) fn way(&self, layouts: &[Layout], model: &CostModel) -> Option<(Way, Vec<WayCost>)> {
        let mut ways = self.ways(layouts, model);
        let considered = ways.iter().map(|way| way.cost).collect();
        let asked = |way: &Way| way.cost.way == self.rule.fold_by;
        if ways.iter().any(asked) {
            ways.retain(asked);
        }
        let fastest = (ways.iter()).fold(f64::INFINITY, |t, way| t.min(way.cost.seconds));
        ways.retain(|way| way.cost.seconds <= model.slack * fastest);
        let best = ways.into_iter().min_by_key(|way| way.cost.held)?;
        Some((best, considered))
    }

    /// Where all outputs lie in the end.
    pub(super) fn outputs(&self, elsewhere: Option<&(Self, &Way)>) -> Result<Vec<Layout>> {
        let of = |o| match elsewhere {
            Some((work, way)) => self.final_layout(o, way.cost.way, &work.output_layout(o)?),
            None => self.output_layout(o),
        };
        (0..self.rule.outputs.len()).map(of).collect()
    }

    fn ways(&self, layouts: &[Layout], model: &CostModel) -> Vec<Way> {
        let Some((ring, blocks)) = self.blocks(layouts) else {
            return Vec::new();
        };
        let mut works = vec![(FoldBy::Gather, self.choice.clone())];
        if self.can_ring(&blocks) {
            works.push((FoldBy::Ring, self.choice.clone()));
        }
        works.extend(self.elsewhere(ring, &blocks));
        let price = |(by, work): (FoldBy, Choice)| Way {
            cost: self.price(by, &work, &blocks, layouts, model),
            work,
            blocks: blocks.clone(),
        };
        works.into_iter().map(price).collect()
    }

    /// The ring factor, and how it is divided: as the first of its operands that is, or as the rule says.
    fn blocks(&self, layouts: &[Layout]) -> Option<(usize, DimSharding)> {
        let read = (0..layouts.len()).filter(|i| !self.rule.unread.contains(i));
        for i in read {
            for (d, access) in self.rule.inputs[i].iter().enumerate() {
                if let (Access::Ring { factor, .. }, Some(s)) = (access, layouts[i].sharding(d))
                    && s.partition.parts() > 1
                {
                    return Some((*factor, s.clone()));
                }
            }
        }
        let said = self
            .rule
            .blocks
            .as_ref()
            .filter(|s| s.partition.parts() > 1)?;
        let ring = (0..self.rule.factors.len()).find(|&f| self.rule.rings(f))?;
        Some((ring, said.clone()))
    }

    /// Whether blocks so divided may go round.
    fn can_ring(&self, blocks: &DimSharding) -> bool {
        // What these axes divide in a dim that all operands have, such as heads, is needed there whole. The rows that blocks are
        // folded into are what they are there to divide: of an operand that has those too, each rank has its own.
        let whole = self.rule.operands().any(|dims| {
            let ring = dims.iter().filter(|a| a.is_ring());
            let rows = ring.into_iter().find_map(Access::instead);
            let others = dims.iter().filter(|a| a.factor_index() != rows);
            dims.iter().any(Access::is_ring)
                && others.into_iter().any(|a| self.divides(a, &blocks.axes))
        });
        // Ranks along an axis that shards no work would all do the same, and their contributions be counted each time.
        let idle = blocks.axes.iter().any(|a| {
            let works = |s: &DimSharding| s.axes.contains(a);
            self.mesh.shape()[*a] > 1 && !self.choice.factors.iter().flatten().any(works)
        });
        !idle && !whole
    }

    /// Choices that move the axes of the blocks from the factor they shard to the blocks' own, or to another.
    fn elsewhere(&self, ring: usize, blocks: &DimSharding) -> Vec<(FoldBy, Choice)> {
        let rule = self.rule;
        let mut accesses = rule.operands().flatten();
        let rows = accesses.any(|a| matches!(a, Access::Rows { .. }));
        let shards = |s: &Option<DimSharding>| {
            s.as_ref()
                .is_some_and(|s| s.axes.ends_with(&blocks.axes[..]))
        };
        let Some(held) = self.choice.factors.iter().position(shards) else {
            return Vec::new();
        };
        if rows || !self.choice.carry.is_empty() {
            return Vec::new();
        }
        let parts = blocks.partition.parts();
        let freed = self.choice.factors[held].as_ref().and_then(|s| {
            let kept = s.axes.len() - blocks.axes.len();
            (kept > 0)
                .then(|| s.partition.joined(parts).ok())
                .flatten()
                .map(|partition| DimSharding {
                    axes: s.axes[..kept].into(),
                    partition,
                })
        });
        let moved = |to: usize, sharding: DimSharding| {
            let mut work = self.choice.clone();
            work.factors[held].clone_from(&freed);
            work.factors[to] = Some(sharding);
            work
        };
        let sums = rule.reduction == Some(Reduction::Partial(ReduceOp::Sum));
        let mut found = Vec::new();
        if sums || rule.merges {
            found.push((FoldBy::Split, moved(ring, blocks.clone())));
        }
        for f in (0..rule.factors.len()).filter(|&f| f != held && !rule.rings(f)) {
            let keys = (rule.inputs.iter())
                .any(|dims| dims.iter().any(Access::is_ring) && indexes(dims, f));
            let whole = (rule.inputs.iter().flatten())
                .all(|a| a.factor_index() != Some(f) || matches!(a, Access::Factor { .. }));
            if keys && whole && (sums || rule.outputs.iter().all(|o| indexes(&o.dims, f))) {
                let own = self.choice.factors[f].as_ref();
                if let Some(sharding) = further(own, rule.factors[f], &blocks.axes, parts) {
                    found.push((FoldBy::Heads, moved(f, sharding)));
                }
            }
        }
        found
    }
}
