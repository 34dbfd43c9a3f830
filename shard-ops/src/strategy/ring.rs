//! Folding the blocks of a sharded dim one after the other, while the next one is on its way.
//!
//! In step `t` of `P` the rank of block `p` works on block `(p + t) mod P`: what it reads then is an exchange whose
//! destination is the same partition [rotated](shard_spec::Partition::rotated) by `t`, straight from the block's owner. A rank
//! holds its own block and two more, whatever `P` is. Outputs over the dim (gradients of keys) go the other way, from the
//! rotated partition to the one that owns, and are summed there in the order of the steps, so that their bits depend on
//! nothing but the layout.

use super::Strategy;
use super::site::{Site, Spans};
use super::ways::is_ring;
use crate::{Access, Fold, KernelCx, Result};
use shard_redistribute::{Exchange, ExchangeBuilder, Source};
use shard_spec::{DimCover, DimSharding, Layout, Partition};

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
        cx.work = self.rule.work(&cx.inputs, &cx.outputs);
        Ok(RingStep { fetch, cx, home })
    }

    fn goes_round(&self, dims: &[Access]) -> bool {
        self.ring.is_some() && dims.iter().any(is_ring)
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
