//! Folding the blocks of a sharded dim one after the other, while the next one is on its way.
//!
//! In step `t` of `P` the rank of block `p` works on block `(p + t) mod P`: what it reads then is an exchange whose
//! destination is the same partition [rotated](shard_spec::Partition::rotated) by `t`, straight from the block's owner. A rank
//! holds its own block and two more, whatever `P` is. Outputs over the dim (gradients of keys) go the other way, from the
//! rotated partition to the one that owns, and are summed there in the order of the steps, so that their bits depend on
//! nothing but the layout.

use super::Strategy;
use super::site::{Site, Spans};
use crate::rule::RING_ABOVE;
use crate::{Access, Fold, KernelCx, Result, RingUse};
use shard_redistribute::{Exchange, ExchangeBuilder, Source};
use shard_spec::{DimCover, DimSharding, Layout, Partition, numel};

/// The steps of a ring, as one rank sees them.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) steps: Vec<RingStep>,
}

/// One block.
#[derive(Debug)]
pub(crate) struct RingStep {
    /// Per input that goes round, how the block comes; `None` if it is in place.
    pub(crate) fetch: Vec<(usize, Option<Exchange>)>,
    /// The kernel call.
    pub(crate) cx: KernelCx,
    /// Per output over the dim, how the contribution to the block gets home.
    pub(crate) home: Vec<(usize, Exchange)>,
}

impl Site<'_> {
    /// How the ring factor of the rule is divided, if its blocks go round. Decided from layouts alone.
    pub(super) fn ring_of(&self, layouts: &[Layout]) -> Option<DimSharding> {
        let rings = |dims: &[Access]| dims.iter().any(|a| matches!(a, Access::Ring { .. }));
        let going: Vec<usize> = (0..layouts.len())
            .filter(|&i| rings(&self.rule.inputs[i]) && !self.rule.unread.contains(&i))
            .collect();
        let found = going.iter().find_map(|&i| {
            let dims = self.rule.inputs[i].iter().enumerate();
            let mut sharded = dims.filter(|(_, a)| matches!(a, Access::Ring { .. }));
            sharded.find_map(|(d, _)| layouts[i].sharding(d))
        })?;
        if found.partition.parts() < 2 {
            return None;
        }
        // Axes that shard another dim of something that goes round gather it anyway: every rank needs all of its share.
        let outputs = self.rule.outputs.iter().map(|o| &o.dims);
        let travel = self
            .rule
            .inputs
            .iter()
            .chain(outputs)
            .filter(|dims| rings(dims));
        let shares = travel.flatten().any(|access| {
            access
                .factor_index()
                .and_then(|f| self.choice.factors[f].as_ref())
                .is_some_and(|s| s.axes.iter().any(|a| found.axes.contains(a)))
        });
        // Ranks along an axis that shards no work would all do the same, and their contributions be counted each time.
        let idle = found.axes.iter().any(|a| {
            let works = |s: &DimSharding| s.axes.contains(a);
            self.mesh.shape()[*a] > 1 && !self.choice.factors.iter().flatten().any(works)
        });
        let wanted = match self.rule.ring {
            RingUse::Never => false,
            RingUse::Always => true,
            RingUse::Auto => {
                let sum = |f: &dyn Fn(usize) -> usize| going.iter().map(|&i| f(i)).sum::<usize>();
                let whole = sum(&|i| {
                    let covers = self.covers(i, &Spans::Full);
                    numel(&covers.iter().map(DimCover::max_size).collect::<Vec<_>>())
                });
                let blocks = 2 * sum(&|i| layouts[i].max_local_numel());
                whole > RING_ABOVE && whole > 2 * blocks
            }
        };
        (wanted && !shares && !idle).then(|| found.clone())
    }

    /// The steps of the ring; other inputs are brought in place as always.
    pub(super) fn with_ring(&self, layouts: &[Layout], strategy: &mut Strategy) -> Result<()> {
        let Some(ring) = &self.ring else {
            return Ok(());
        };
        for (i, layout) in layouts.iter().enumerate() {
            let step = &mut strategy.inputs[i];
            step.wanted = self.wanted(i);
            if !self.goes_round(&self.rule.inputs[i]) {
                let exchange = self.exchange(i, layout);
                step.realigned |= exchange.as_ref().is_some_and(|e| !e.is_local())
                    && self.is_realigned(i, layout);
                step.exchange = exchange;
            }
        }
        let blocks = ring.partition.parts();
        let steps =
            (0..blocks).map(|t| self.ring_step(&ring.partition, t, blocks, layouts, strategy));
        strategy.ring = Some(Ring {
            steps: steps.collect::<Result<_>>()?,
        });
        Ok(())
    }

    fn ring_step(
        &self,
        partition: &Partition,
        t: usize,
        blocks: usize,
        layouts: &[Layout],
        strategy: &Strategy,
    ) -> Result<RingStep> {
        let turned = partition.rotated(t);
        let mut fetch = Vec::new();
        for (i, layout) in layouts.iter().enumerate() {
            if self.goes_round(&self.rule.inputs[i]) {
                let covers = self.block_covers(&self.rule.inputs[i], layout.shape(), &turned);
                let exchange = (!self.in_place(layout, &covers)).then(|| {
                    ExchangeBuilder::new(self.rule.name, self.mesh, covers)
                        .source(Source::identity(layout))
                        .build(self.index)
                });
                fetch.push((i, exchange));
            }
        }
        let mut cx = self.kernel(&Spans::Full, |i| {
            let (dims, shape) = (&self.rule.inputs[i], &self.rule.metas[i].shape);
            self.input_box(&self.block_covers(dims, shape, &turned), 0)
        });
        cx.fold = Fold {
            first: t == 0,
            last: t + 1 == blocks,
        };
        let mut home = Vec::new();
        for (o, output) in self.rule.outputs.iter().enumerate() {
            if self.goes_round(&output.dims) {
                let (dims, shape) = (&output.dims, &output.meta.shape);
                let mut at = self.input_box(&self.block_covers(dims, shape, &turned), 0);
                at.global = shape.clone();
                cx.outputs[o] = at;
                let made = self.block_layout(&strategy.outputs[o], dims, &turned)?;
                let target = self.block_covers(dims, shape, partition);
                let builder = ExchangeBuilder::new(self.rule.name, self.mesh, target);
                home.push((o, builder.source(Source::identity(&made)).build(self.index)));
            }
        }
        Ok(RingStep { fetch, cx, home })
    }

    fn goes_round(&self, dims: &[Access]) -> bool {
        self.ring.is_some() && dims.iter().any(|a| matches!(a, Access::Ring { .. }))
    }

    /// What each dim of an operand must cover while this partition of the ring factor is folded.
    fn block_covers(&self, dims: &[Access], shape: &[usize], blocks: &Partition) -> Vec<DimCover> {
        let cover = |(access, &n): (&Access, &usize)| match (access, &self.ring) {
            (Access::Ring { .. }, Some(ring)) => DimCover::from(&DimSharding {
                axes: ring.axes.clone(),
                partition: blocks.clone(),
            }),
            _ => self.cover(access, n, &Spans::Full),
        };
        dims.iter().zip(shape).map(cover).collect()
    }

    /// The layout of contributions to the blocks that the ranks work on.
    fn block_layout(&self, owned: &Layout, dims: &[Access], blocks: &Partition) -> Result<Layout> {
        let shardings = dims.iter().enumerate().map(|(d, access)| match access {
            Access::Ring { .. } => self.ring.as_ref().map(|ring| DimSharding {
                axes: ring.axes.clone(),
                partition: blocks.clone(),
            }),
            _ => owned.sharding(d).cloned(),
        });
        let at = Layout::from_dims(self.mesh, owned.shape(), shardings, None);
        crate::InOp::in_op(at, self.rule.name)
    }
}
