//! Folding the blocks of a sharded dim one after the other, while the next one is on its way.
//!
//! In step `t` of `P` the rank of block `p` works on block `(p + t) mod P`: what it reads then is an exchange whose
//! destination is the same partition [rotated](shard_spec::Partition::rotated) by `t`, straight from the block's owner. A rank
//! holds its own block and two more, whatever `P` is. Outputs over the dim (gradients of keys) go the other way, from the
//! rotated partition to the one that owns, and are summed there in the order of the steps, so that their bits depend on
//! nothing but the layout.
//!
//! An operand that the same axes divide in another dim too, as a mask with an entry for every query and key, stays: a rank has
//! its own rows of all columns, and each step copies the columns of its block out of them, or, of an output, into them.

use super::inputs::InputMove;
use super::site::{Site, Spans};
use crate::error::InOp;
use crate::{Access, Fold, KernelCx, Result};
use shard_comm::Strided;
use shard_redistribute::{Exchange, ExchangeBuilder, ExchangeSource};
use shard_spec::{DimCover, DimSharding, Dims, Layout, Partition, numel, row_major_strides};

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
    /// Per input over the dim that stays, the columns of the block.
    pub(crate) columns: Vec<(usize, Columns)>,
    /// Per output over the dim, how the contribution to the block gets home.
    pub(crate) home: Vec<(usize, Exchange)>,
    /// Per output over the dim that stays, the columns of the block.
    pub(crate) places: Vec<(usize, Columns)>,
}

/// Where the columns of a block lie: within the block, and within all columns. As many pairs of boxes as the block has runs.
#[derive(Debug)]
pub(crate) struct Columns {
    pub(crate) block: Vec<Strided>,
    pub(crate) whole: Vec<Strided>,
    /// Elements of the block.
    pub(crate) len: usize,
}

impl Site<'_> {
    /// The steps of a ring whose outputs lie so in the end; inputs that do not go round are brought in place as always.
    pub(super) fn with_ring(
        &self,
        ring: &DimSharding,
        layouts: &[Layout],
        inputs: &mut [InputMove],
        outputs: &[Layout],
    ) -> Result<Ring> {
        for (i, (layout, step)) in layouts.iter().zip(inputs).enumerate() {
            if !self.goes_round(&self.rule.inputs[i]) {
                self.bring(i, layout, step);
            }
        }
        let home = (self.rule.outputs.iter().zip(outputs)).map(|(output, owned)| {
            let goes = self.goes_round(&output.dims);
            let at = || self.block_layout(owned, &output.dims, &ring.partition);
            goes.then(at).transpose()
        });
        let home: Vec<Option<Layout>> = home.collect::<Result<_>>()?;
        let blocks = ring.partition.parts();
        let mut turned = ring.partition.clone();
        let mut steps = Vec::with_capacity(blocks);
        for t in 0..blocks {
            let place = Fold {
                first: t == 0,
                last: t + 1 == blocks,
            };
            steps.push(self.ring_step(&turned, place, layouts, &home)?);
            turned = turned.rotated(1);
        }
        Ok(Ring { steps })
    }

    /// The step in which the blocks are with whom `turned` says. Outputs that go round have their layout at `home`.
    fn ring_step(
        &self,
        turned: &Partition,
        place: Fold,
        layouts: &[Layout],
        home: &[Option<Layout>],
    ) -> Result<RingStep> {
        let mut fetch = Vec::new();
        for (i, layout) in layouts.iter().enumerate() {
            if self.goes_round(&self.rule.inputs[i]) {
                let covers = self.block_covers(&self.rule.inputs[i], layout.shape(), turned);
                let exchange = (!self.in_place(layout, &covers)).then(|| {
                    ExchangeBuilder::new(self.rule.name, self.mesh, covers)
                        .source(ExchangeSource::identity(layout))
                        .build(self.index)
                });
                fetch.push((i, exchange));
            }
        }
        let mut cx = self.kernel(&Spans::Full, |i| {
            let (dims, shape) = (&self.rule.inputs[i], &self.rule.metas[i].shape);
            self.input_box(&self.block_covers(dims, shape, turned), 0)
        });
        cx.fold = place;
        let inputs = self.rule.inputs.iter().zip(&self.rule.metas).enumerate();
        let columns = inputs
            .filter(|(_, (dims, _))| self.stays(dims))
            .map(|(i, (dims, meta))| (i, self.columns(dims, &meta.shape, turned)))
            .collect();
        let (mut going_home, mut places) = (Vec::new(), Vec::new());
        for (o, output) in self.rule.outputs.iter().enumerate() {
            if !output.dims.iter().any(Access::is_ring) {
                continue;
            }
            let (dims, shape) = (&output.dims, &output.meta.shape);
            let mut at = self.input_box(&self.block_covers(dims, shape, turned), 0);
            at.global = shape.clone();
            cx.outputs[o] = at;
            match &home[o] {
                None => places.push((o, self.columns(dims, shape, turned))),
                Some(home) => {
                    let made = self.block_layout(home, dims, turned)?;
                    let builder = ExchangeBuilder::onto(self.rule.name, home);
                    let exchange = builder
                        .source(ExchangeSource::identity(&made))
                        .build(self.index);
                    going_home.push((o, exchange));
                }
            }
        }
        cx.work = self.rule.work(&cx.inputs, &cx.outputs);
        Ok(RingStep {
            fetch,
            cx,
            columns,
            home: going_home,
            places,
        })
    }

    fn goes_round(&self, dims: &[Access]) -> bool {
        self.ring.is_some() && dims.iter().any(Access::is_ring) && !self.stays(dims)
    }

    /// The columns of the block that this rank folds.
    fn columns(&self, dims: &[Access], shape: &[usize], blocks: &Partition) -> Columns {
        let sizes = |covers: &[DimCover]| -> Dims {
            let at = |cover: &DimCover| cover.at(self.mesh, &self.coords).len();
            covers.iter().map(at).collect()
        };
        let covers = self.block_covers(dims, shape, blocks);
        let of_block = sizes(&covers);
        let all: Vec<DimCover> = (dims.iter().zip(shape))
            .map(|(access, &n)| self.cover_with_halo(access, n, &Spans::Full))
            .collect();
        let of_whole = sizes(&all);
        let mut columns = Columns {
            block: Vec::new(),
            whole: Vec::new(),
            len: numel(&of_block),
        };
        let Some(d) = dims.iter().position(Access::is_ring) else {
            return columns;
        };
        let held = covers[d].at(self.mesh, &self.coords);
        for run in held.to_global(shape[d]).runs() {
            let view = |extents: &Dims, start: usize, step: isize| {
                let (mut shape, mut strides) = (extents.clone(), row_major_strides(extents));
                let offset = start * strides[d] as usize;
                (shape[d], strides[d]) = (run.len, strides[d] * step);
                Strided::new(offset, shape, strides)
            };
            let into = view(&of_block, run.src_start, run.src_step);
            columns.block.push(into);
            columns
                .whole
                .push(view(&of_whole, run.dst_start, run.dst_step));
        }
        columns
    }

    /// What each dim of an operand must cover while this partition of the ring factor is folded.
    fn block_covers(&self, dims: &[Access], shape: &[usize], blocks: &Partition) -> Vec<DimCover> {
        let cover = |(access, &n): (&Access, &usize)| match (access, &self.ring) {
            (Access::Ring { .. }, Some(ring)) => DimCover::from(&DimSharding {
                axes: ring.axes.clone(),
                partition: blocks.clone(),
            }),
            _ => self.cover_with_halo(access, n, &Spans::Full),
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
        Layout::from_dims(self.mesh, owned.shape(), shardings, None).in_op(self.rule.name)
    }
}
