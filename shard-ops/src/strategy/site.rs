//! A rule with a choice, seen from one rank: what each operand must cover, and where the boxes lie.

use super::choice::Choice;
use super::intervals::{Axes, clip_halo, multiplied, same_intervals};
use crate::error::InOp;
use crate::rule::indexes;
use crate::{Access, Fold, FoldBy, KernelCx, OperandBox, Reduction, Result, Rule};
use shard_comm::{DType, Monoid};
use shard_redistribute::{CostModel, Plan};
use shard_spec::{
    DeviceMesh, DimCover, DimPart, DimSharding, Dims, Layout, ReduceOp, row_major_strides,
};
use smallvec::SmallVec;
use std::ops::Range;

/// Which interval of each factor a kernel call computes, for every part.
pub(super) enum Spans {
    /// All of it.
    Full,
    /// Per factor, per part; `None` for factors that are not cut.
    Cut(Vec<Option<Vec<Range<usize>>>>),
}

/// A rule with a choice, seen from one rank.
pub(super) struct Site<'a> {
    pub(super) rule: &'a Rule,
    pub(super) choice: &'a Choice,
    pub(super) mesh: &'a DeviceMesh,
    pub(super) index: usize,
    pub(super) coords: SmallVec<[usize; 4]>,
    /// How the ring factor is divided in blocks; `None` where nothing goes round.
    pub(super) ring: Option<DimSharding>,
    /// How the routed factor is divided among those who are asked for rows; `None` where nobody is.
    pub(super) routed: Option<DimSharding>,
    /// What messages cost, where moves may go in stages.
    pub(super) model: Option<&'a CostModel>,
}

impl<'a> Site<'a> {
    pub(super) fn new(
        rule: &'a Rule,
        choice: &'a Choice,
        mesh: &'a DeviceMesh,
        index: usize,
    ) -> Self {
        Self {
            rule,
            choice,
            mesh,
            index,
            coords: mesh.coords_at(index),
            ring: None,
            routed: None,
            model: None,
        }
    }

    /// The same site, whose moves go in stages where this model finds that cheaper.
    pub(super) fn by(self, model: &'a CostModel) -> Self {
        let model = Some(model);
        Self { model, ..self }
    }

    /// The plan of a move.
    pub(super) fn plan(&self, from: &Layout, to: &Layout, dtype: DType) -> Result<Plan> {
        let plan = match self.model {
            Some(model) => Plan::staged(from, to, self.index, dtype, model),
            None => Plan::new(from, to, self.index),
        };
        plan.in_op(self.rule.name)
    }

    /// Axes that split a sum: those of sharded factors that appear in no output.
    pub(super) fn reduced_axes(&self) -> Axes {
        let mut axes = Axes::new();
        for (f, sharding) in self.choice.factors.iter().enumerate() {
            if let (Some(sharding), true) = (sharding, self.rule.is_reduced(f)) {
                axes.extend(sharding.axes.iter().copied());
            }
        }
        axes.sort_unstable();
        axes
    }

    /// Axes that split the sum of which an output of these dims is a term. What goes home over a ring is summed there; what stays is
    /// not.
    fn summed_axes(&self, dims: &[Access]) -> Axes {
        let mut axes = Axes::new();
        for (f, sharding) in self.choice.factors.iter().enumerate() {
            if let (Some(sharding), false) = (sharding, indexes(dims, f)) {
                axes.extend(sharding.axes.iter().copied());
            }
        }
        if let (Some(ring), true) = (
            &self.ring,
            dims.iter().any(Access::is_ring) && !self.stays(dims),
        ) {
            axes.retain(|a| !ring.axes.contains(a));
        }
        if let (Some(routed), true) = (&self.routed, dims.iter().any(Access::is_routed)) {
            axes.retain(|a| !routed.axes.contains(a));
        }
        axes.sort_unstable();
        axes
    }

    pub(super) fn output_layout(&self, o: usize) -> Result<Layout> {
        let output = &self.rule.outputs[o];
        let mut builder = Layout::builder(self.mesh, &output.meta.shape);
        for (d, access) in output.dims.iter().enumerate() {
            let own = match access {
                Access::Ring { factor, .. } => (self.choice.factors[*factor].as_ref())
                    .or(self.ring.as_ref().filter(|_| !self.stays(&output.dims)))
                    .cloned(),
                _ => self.sharding_of(access),
            };
            if let Some(own) = own {
                builder = builder.shard(d, &own.axes, own.partition);
            }
        }
        let mut partial: Axes = self.choice.carry.clone();
        let mut op = ReduceOp::Sum;
        if let Some(Reduction::Partial(by)) = self.rule.reduction {
            partial.extend(self.summed_axes(&output.dims));
            op = by;
        }
        for axis in partial {
            builder = builder.partial(axis, op);
        }
        builder.build().in_op(self.rule.name)
    }

    /// Over which axes outputs are combined at once, and how.
    pub(super) fn combined(&self) -> Option<(Axes, Monoid)> {
        match self.rule.reduction {
            Some(Reduction::Now(monoid)) => {
                Some((self.reduced_axes(), monoid)).filter(|c| !c.0.is_empty())
            }
            _ => None,
        }
    }

    /// Where an output lies in the end: as the choice says, whatever the way.
    pub(super) fn final_layout(&self, o: usize, by: FoldBy, made: &Layout) -> Result<Layout> {
        let dims = &self.rule.outputs[o].dims;
        // Gradients of the blocks: they are home already, or divided in a way that only the kernels' layout can say.
        let home = dims.iter().any(Access::is_ring);
        let stays = by == FoldBy::Split
            || self
                .ring
                .as_ref()
                .is_some_and(|r| dims.iter().any(|a| self.divides(a, &r.axes)));
        if home && stays {
            return Ok(made.clone());
        }
        self.output_layout(o)
    }

    /// Whether an operand has a dim that is folded block by block, and stays where it is.
    pub(super) fn stays(&self, dims: &[Access]) -> bool {
        let ring = self.ring.as_ref();
        ring.is_some_and(|ring| self.is_crossed(dims, &ring.axes))
    }

    /// Whether an operand has a dim that is folded block by block, and another that is divided by some of these axes.
    pub(super) fn is_crossed(&self, dims: &[Access], axes: &[usize]) -> bool {
        dims.iter().any(Access::is_ring) && dims.iter().any(|a| self.divides(a, axes))
    }

    /// Whether a dim that is indexed so is divided by one of these axes.
    pub(super) fn divides(&self, access: &Access, axes: &[usize]) -> bool {
        let sharding = access
            .factor_index()
            .and_then(|f| self.choice.factors[f].as_ref());
        sharding.is_some_and(|s| s.axes.iter().any(|a| axes.contains(a)))
    }

    /// What each dim of input `i` must cover, with its halo.
    pub(super) fn covers_with_halos(&self, i: usize, spans: &Spans) -> Vec<DimCover> {
        self.rule.inputs[i]
            .iter()
            .zip(&self.rule.metas[i].shape)
            .map(|(access, &extent)| self.cover_with_halo(access, extent, spans))
            .collect()
    }

    /// What a dim so indexed must cover on each part: the indices that belong to the part's, and their halo.
    pub(super) fn cover_with_halo(
        &self,
        access: &Access,
        extent: usize,
        spans: &Spans,
    ) -> DimCover {
        let Some(factor) = access.factor_index() else {
            return DimCover::whole(extent);
        };
        let sharding = match access {
            Access::Routed { factor } => self.routed_sharding(*factor),
            _ => self.choice.factors[factor].as_ref(),
        };
        let axes = sharding.map_or(&[][..], |s| &s.axes);
        let cut = match spans {
            Spans::Cut(cut) => cut[factor].clone(),
            Spans::Full => None,
        };
        let spans = match (cut, sharding) {
            (Some(cut), _) => cut,
            // The dim is divided as the factor is.
            (None, Some(s)) if is_plain(access) => return DimCover::from(s),
            (None, _) => self.choice.spans(factor, self.rule.factors[factor]),
        };
        let with_halo = |span| with_halo(self.rule, access, extent, span);
        DimCover::intervals(axes, spans.into_iter().map(with_halo).collect())
    }

    /// How the routed factor is divided: by the choice, or among those who are asked.
    pub(super) fn routed_sharding(&self, factor: usize) -> Option<&DimSharding> {
        self.choice.factors[factor]
            .as_ref()
            .or(self.routed.as_ref())
    }

    /// How a dim that is indexed so is divided, window and ring aside: as its factor is, or the rows that it names.
    pub(super) fn sharding_of(&self, access: &Access) -> Option<DimSharding> {
        match access {
            Access::Factor { factor, block } => {
                let sharding = self.choice.factors[*factor].as_ref()?;
                Some(DimSharding {
                    axes: sharding.axes.clone(),
                    partition: multiplied(&sharding.partition, *block),
                })
            }
            Access::Routed { factor } => self.routed_sharding(*factor).cloned(),
            _ => self.rows_of(access),
        }
    }

    /// How rows that exist already are divided, where their factor is.
    pub(super) fn rows_of(&self, access: &Access) -> Option<DimSharding> {
        let Access::Rows {
            factor,
            cuts: Some(cuts),
        } = access
        else {
            return None;
        };
        let sharding = self.choice.factors[*factor].as_ref()?;
        Some(DimSharding {
            axes: sharding.axes.clone(),
            partition: cuts.divided(&sharding.partition)?,
        })
    }

    /// Whether every rank's piece of the operand is exactly what it needs.
    pub(super) fn in_place(&self, layout: &Layout, covers: &[DimCover]) -> bool {
        covers
            .iter()
            .enumerate()
            .all(|(d, cover)| same_intervals(cover, layout, d, self.mesh))
    }

    /// The boxes of one kernel call.
    pub(super) fn kernel(&self, spans: &Spans, input: impl Fn(usize) -> OperandBox) -> KernelCx {
        // What goes home is added up there.
        let home = self.routed.as_ref().map_or(&[][..], |s| &s.axes);
        let adds_once = self
            .reduced_axes()
            .iter()
            .filter(|a| !home.contains(a))
            .chain(&self.choice.carry)
            .all(|&a| self.coords[a] == 0);
        let inputs: Vec<OperandBox> = (0..self.rule.inputs.len())
            .map(|i| {
                let mut operand = input(i);
                operand.global = self.rule.metas[i].shape.clone();
                operand
            })
            .collect();
        let outputs: Vec<OperandBox> = (0..self.rule.outputs.len())
            .map(|o| self.output_box(o, spans))
            .collect();
        KernelCx {
            work: self.rule.work(&inputs, &outputs),
            inputs,
            outputs,
            adds_once,
            fold: Fold::ONLY,
            is_part: false,
            line: None,
        }
    }

    /// The box of an input that lies as a whole in a buffer of its own, from `offset` on.
    pub(super) fn input_box(&self, covers: &[DimCover], offset: usize) -> OperandBox {
        let at = |c: &DimCover| c.at(self.mesh, &self.coords);
        let shape: Dims = covers.iter().map(|c| at(c).len()).collect();
        let held: SmallVec<[DimPart; 4]> = covers.iter().map(at).collect();
        let start = |part: &DimPart| part.interval().map_or(0, |interval| interval.start);
        OperandBox {
            offset,
            strides: row_major_strides(&shape),
            shape,
            start: held.iter().map(start).collect(),
            held,
            global: Dims::new(),
        }
    }

    /// A sub-box of a buffer that covers `outer`.
    pub(super) fn sub_box(&self, outer: &[DimCover], inner: &[DimCover]) -> OperandBox {
        let whole = self.input_box(outer, 0);
        let mut part = self.input_box(inner, 0);
        if !part.shape.contains(&0) {
            let steps = part.start.iter().zip(&whole.start).zip(&whole.strides);
            part.offset = steps.map(|((a, b), &s)| (a - b) * s as usize).sum();
        }
        part.strides = whole.strides;
        part
    }

    pub(super) fn output_box(&self, o: usize, spans: &Spans) -> OperandBox {
        let output = &self.rule.outputs[o];
        let side = |spans: &Spans| -> Vec<DimCover> {
            output
                .dims
                .iter()
                .zip(&output.meta.shape)
                .map(|(a, &n)| self.cover_with_halo(a, n, spans))
                .collect()
        };
        let mut part = self.sub_box(&side(&Spans::Full), &side(spans));
        part.global = output.meta.shape.clone();
        part
    }
}

/// What a span of the factor needs of the dim: through a window, with the halo. What that reaches beyond the dim is the kernel's
/// padding.
pub(super) fn with_halo(
    rule: &Rule,
    access: &Access,
    extent: usize,
    span: Range<usize>,
) -> Range<usize> {
    match access {
        Access::Whole { .. } => 0..extent,
        Access::Factor { block, .. } => span.start * block..span.end * block,
        Access::Map { .. } | Access::Ring { .. } | Access::Routed { .. } => span,
        // Rows the data has not decided are none; the choice divides the factor only where the others are cut.
        Access::Rows { cuts, .. } => {
            let rows = cuts.as_ref().and_then(|cuts| cuts.rows(span));
            rows.unwrap_or(0..extent)
        }
        Access::Window { window, .. } => clip_halo(window.input_interval(extent, span), extent),
        // A window may have more outputs than the dim: what it adds behind them.
        Access::Adjoint { factor, window } => {
            let reached = window.output_of_input(rule.factors[*factor], span);
            reached.start.min(extent)..reached.end.min(extent)
        }
    }
}

/// Whether what a part of the factor needs of the dim is the same indices.
fn is_plain(access: &Access) -> bool {
    matches!(
        access,
        Access::Factor { block: 1, .. }
            | Access::Map { .. }
            | Access::Ring { .. }
            | Access::Routed { .. }
    )
}
