//! How results get from where the kernels made them to where they belong, for ways whose kernels run under another choice.

use super::site::Site;
use super::ways::Way;
use crate::error::InOp;
use crate::host::partial_type;
use crate::{Fold, FoldBy, KernelCx, OperandBox, Result};
use shard_comm::{DType, Work};
use shard_redistribute::Plan;
use shard_spec::{DimSharding, Dims, Layout, Partition, numel, row_major_strides};

/// What happens to the outputs of the kernels.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Per output of the op.
    pub(crate) moves: Vec<OutputMove>,
    /// The call that merges partial results, once they are where they belong.
    pub(crate) merge: Option<KernelCx>,
}

/// How one output of the kernels moves.
#[derive(Debug)]
pub(crate) struct OutputMove {
    /// Where the kernels leave it; partial results stand side by side along a new first dim.
    pub(crate) made: Layout,
    /// In which type.
    pub(crate) dtype: DType,
    /// From there to where it belongs.
    pub(crate) plan: Plan,
}

impl Site<'_> {
    /// What happens to outputs that kernels made under another choice, `work`'s, to get them where the strategy says.
    pub(super) fn with_outcome(
        &self,
        work: &Site<'_>,
        way: &Way,
        outputs: &[Layout],
    ) -> Result<Outcome> {
        let name = self.rule.name;
        let merges = way.cost.way == FoldBy::Split && self.rule.merges;
        let mut moves = Vec::new();
        for (o, output) in self.rule.outputs.iter().enumerate() {
            let made = work.output_layout(o)?;
            let lies = &outputs[o];
            let (made, lies, dtype) = if merges {
                let parts = way.blocks.partition.parts();
                let own = DimSharding {
                    axes: way.blocks.axes.clone(),
                    partition: Partition::balanced(parts, parts),
                };
                (
                    stacked(&made, parts, Some(own)).in_op(name)?,
                    stacked(lies, parts, None).in_op(name)?,
                    partial_type(output.meta.dtype),
                )
            } else {
                (made, lies.clone(), output.meta.dtype)
            };
            let plan = self.plan(&made, &lies, dtype)?;
            moves.push(OutputMove { made, dtype, plan });
        }
        let merge = merges.then(|| KernelCx {
            inputs: moves.iter().map(|m| self.block(m.plan.to())).collect(),
            outputs: outputs.iter().map(|l| self.block(l)).collect(),
            adds_once: true,
            fold: Fold::ONLY,
            work: merging(&moves, outputs, self.mesh.ranks()[self.index]),
            is_part: false,
            line: None,
        });
        Ok(Outcome { moves, merge })
    }

    /// Elements of this rank's pieces of the outputs as the kernels make them.
    pub(super) fn made_lens(&self, outcome: &Outcome) -> Vec<usize> {
        let len = |m: &OutputMove| self.block(&m.made).shape.iter().product();
        outcome.moves.iter().map(len).collect()
    }

    /// This rank's block of an array.
    fn block(&self, layout: &Layout) -> OperandBox {
        let held = (0..layout.ndim())
            .map(|d| layout.part(d, self.mesh.part_at(layout.axis_order(d), &self.coords)));
        let held: smallvec::SmallVec<[shard_spec::DimPart; 4]> = held.collect();
        let shape: Dims = held.iter().map(shard_spec::DimPart::len).collect();
        OperandBox {
            offset: 0,
            strides: row_major_strides(&shape),
            shape,
            start: (held.iter())
                .map(|part| part.interval().map_or(0, |interval| interval.start))
                .collect(),
            held,
            global: layout.shape().iter().copied().collect(),
        }
    }
}

/// The work of merging: everything that comes is read once.
fn merging(moves: &[OutputMove], outputs: &[Layout], rank: usize) -> Work {
    let bytes = |layout: &Layout, dtype: DType| {
        (layout.local_shape(rank)).map_or(0, |shape| numel(&shape) * dtype.size())
    };
    let read: usize = moves.iter().map(|m| bytes(m.plan.to(), m.dtype)).sum();
    let written: usize = (outputs.iter().zip(moves))
        .map(|(layout, m)| bytes(layout, m.dtype))
        .sum();
    Work::moving(read + written)
}

/// A layout with one more dim in front, of so many parts.
fn stacked(
    layout: &Layout,
    parts: usize,
    along: Option<DimSharding>,
) -> shard_spec::Result<Layout> {
    let shape: Dims = std::iter::once(parts)
        .chain(layout.shape().iter().copied())
        .collect();
    let dims = std::iter::once(along).chain(layout.shardings().iter().cloned());
    Layout::from_dims(layout.mesh(), &shape, dims, None)
}
