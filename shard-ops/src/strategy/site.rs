//! A rule with a choice, seen from one rank: what each operand must cover, and where the boxes lie.

use super::intervals::{clip, multiplied, same_intervals};
use super::ways::is_ring;
use super::{Axes, Choice, InputMove, Strategy};
use crate::error::InOp;
use crate::{Access, Fold, KernelCx, OperandBox, Reduction, Result, Rule};
use shard_comm::Monoid;
use shard_redistribute::{Exchange, ExchangeBuilder, Plan, Source};
use shard_spec::{
    DeviceMesh, DimCover, DimMap, DimPart, DimSharding, Dims, Layout, ReduceOp, row_major_strides,
};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

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
        }
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
            if let (Some(sharding), false) =
                (sharding, dims.iter().any(|a| a.factor_index() == Some(f)))
            {
                axes.extend(sharding.axes.iter().copied());
            }
        }
        if let (Some(ring), true) = (&self.ring, dims.iter().any(is_ring) && !self.stays(dims)) {
            axes.retain(|a| !ring.axes.contains(a));
        }
        axes.sort_unstable();
        axes
    }

    pub(super) fn output_layout(&self, o: usize) -> Result<Layout> {
        let output = &self.rule.outputs[o];
        let mut builder = Layout::builder(self.mesh, &output.meta.shape);
        for (d, access) in output.dims.iter().enumerate() {
            if let Access::Factor { factor, block } = access
                && let Some(sharding) = &self.choice.factors[*factor]
            {
                builder = builder.shard(d, &sharding.axes, multiplied(&sharding.partition, *block));
            }
            if let Access::Ring { factor, .. } = access
                && let Some(own) = (self.choice.factors[*factor].as_ref())
                    .or(self.ring.as_ref().filter(|_| !self.stays(&output.dims)))
            {
                builder = builder.shard(d, &own.axes, own.partition.clone());
            }
            if let Some(rows) = self.rows_of(access) {
                builder = builder.shard(d, &rows.axes, rows.partition);
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

    /// How each input's partial sums are reduced, and where that leaves it.
    pub(super) fn reduced(&self, layouts: &[&Layout]) -> Result<(Vec<InputMove>, Vec<Layout>)> {
        let all = layouts.iter().enumerate();
        let steps = all.map(|(i, layout)| self.reduce_input(i, layout));
        Ok(steps.collect::<Result<Vec<_>>>()?.into_iter().unzip())
    }

    /// Reduces what does not pass, unless the exchange can fold it on the way.
    pub(super) fn reduce_input(&self, i: usize, layout: &Layout) -> Result<(InputMove, Layout)> {
        let name = self.rule.name;
        let keep: Axes = layout
            .partial_axes()
            .iter()
            .copied()
            .filter(|&a| self.choice.carries(i, a))
            .collect();
        if keep.len() == layout.partial_axes().len() || self.rule.unread.contains(&i) {
            return Ok((InputMove::default(), layout.clone()));
        }
        let mut to = layout.with_partial_reduced();
        // Axes that will shard a dim of this operand are reduced by scattering straight to the owners.
        let mut builder = Layout::builder(self.mesh, layout.shape());
        let mut scattered = false;
        for (d, access) in self.rule.inputs[i].iter().enumerate() {
            let own = to.sharding(d).cloned();
            let wish = match access {
                Access::Factor { factor, block } => {
                    self.choice.factors[*factor].as_ref().map(|s| DimSharding {
                        axes: s.axes.clone(),
                        partition: multiplied(&s.partition, *block),
                    })
                }
                _ => None,
            };
            let scatters = wish.as_ref().is_some_and(|w| {
                w.axes.iter().all(|a| {
                    layout.partial_axes().contains(a) || layout.replicate_axes().contains(a)
                })
            });
            let pick = if own.is_none() && scatters { wish } else { own };
            if let Some(s) = pick {
                scattered |= scatters;
                builder = builder.shard(d, &s.axes, s.partition);
            }
        }
        if scattered {
            to = builder.build().in_op(name)?;
        }
        if let (Some(op), false) = (layout.partial_op(), keep.is_empty()) {
            to = to.with_partial(&keep, op).in_op(name)?;
        }
        let plan = Plan::new(layout, &to, self.index).in_op(name)?;
        let realigned = plan.communicates();
        Ok((
            InputMove {
                reduce: Some(plan),
                exchange: None,
                realigned,
                wanted: to.to_string(),
            },
            to,
        ))
    }

    /// What each dim of input `i` must cover.
    pub(super) fn covers(&self, i: usize, spans: &Spans) -> Vec<DimCover> {
        self.rule.inputs[i]
            .iter()
            .zip(&self.rule.metas[i].shape)
            .map(|(access, &extent)| self.cover(access, extent, spans))
            .collect()
    }

    pub(super) fn cover(&self, access: &Access, extent: usize, spans: &Spans) -> DimCover {
        let Some(factor) = access.factor_index() else {
            return DimCover::whole(extent);
        };
        let sharding = self.choice.factors[factor].as_ref();
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
        let needs = |span| self.needs(access, extent, span);
        DimCover::intervals(axes, spans.into_iter().map(needs).collect())
    }

    /// What a span of the factor needs of the dim. What a window reaches beyond the dim is the kernel's padding.
    pub(super) fn needs(&self, access: &Access, extent: usize, span: Range<usize>) -> Range<usize> {
        match access {
            Access::Whole { .. } => 0..extent,
            Access::Factor { block, .. } => span.start * block..span.end * block,
            Access::Map { .. } | Access::Ring { .. } => span,
            // Rows the data has not decided are none; the choice divides the factor only where the others are cut.
            Access::Rows { cuts, .. } => {
                let rows = cuts.as_ref().and_then(|cuts| cuts.rows(span));
                rows.unwrap_or(0..extent)
            }
            Access::Window { window, .. } => clip(window.input_interval(extent, span), extent),
            Access::Adjoint { factor, window } => {
                window.output_of_input(self.rule.factors[*factor], span)
            }
        }
    }

    /// How rows that exist already are divided, where their factor is.
    fn rows_of(&self, access: &Access) -> Option<DimSharding> {
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

    pub(super) fn source(&self, i: usize, layout: &Layout) -> Source {
        let maps =
            self.rule.inputs[i]
                .iter()
                .zip(layout.shape())
                .map(|(access, &n)| match access {
                    Access::Map { map, .. } => map.clone(),
                    _ => DimMap::identity(n),
                });
        Source {
            layout: layout.clone(),
            maps: maps.collect(),
        }
    }

    /// The exchange that brings input `i` to its cover; `None` if it is in place on every rank.
    pub(super) fn exchange(&self, i: usize, layout: &Layout) -> Option<Exchange> {
        let covers = self.covers(i, &Spans::Full);
        if self.in_place(layout, &covers) || self.rule.unread.contains(&i) {
            return None;
        }
        let builder =
            ExchangeBuilder::new(self.rule.name, self.mesh, covers).source(self.source(i, layout));
        Some(builder.build(self.index))
    }

    /// Whether every rank's piece of the operand is exactly what it needs.
    pub(super) fn in_place(&self, layout: &Layout, covers: &[DimCover]) -> bool {
        covers
            .iter()
            .enumerate()
            .all(|(d, cover)| same_intervals(cover, layout, d, self.mesh))
    }

    /// Brings the inputs to where the kernels run, which is not where the choice `of` the strategy has them.
    pub(super) fn elsewhere_inputs(
        &self,
        of: &Site<'_>,
        layouts: &[Layout],
        strategy: &mut Strategy,
    ) {
        let realigned: Vec<bool> = strategy.inputs.iter().map(|step| step.realigned).collect();
        self.without_overlap(layouts, strategy);
        for (i, (step, realigned)) in strategy.inputs.iter_mut().zip(realigned).enumerate() {
            step.realigned = realigned;
            step.wanted = of.wanted(i);
        }
    }

    /// Whether input `i` has to move to where the choice wants it, a halo or the blocks of a ring aside.
    pub(super) fn misaligned(&self, i: usize, layout: &Layout) -> bool {
        self.is_realigned(i, layout) && self.exchange(i, layout).is_some_and(|e| !e.is_local())
    }

    pub(super) fn without_overlap(&self, layouts: &[Layout], strategy: &mut Strategy) {
        for (i, layout) in layouts.iter().enumerate() {
            let exchange = self.exchange(i, layout);
            let step = &mut strategy.inputs[i];
            step.realigned |=
                exchange.as_ref().is_some_and(|e| !e.is_local()) && self.is_realigned(i, layout);
            step.wanted = self.wanted(i);
            step.exchange = exchange;
        }
        Arc::make_mut(&mut strategy.late).push(self.kernel(&Spans::Full, |i| {
            let covers = self.covers(i, &Spans::Full);
            self.input_box(&covers, 0)
        }));
    }

    /// The boxes of one kernel call.
    pub(super) fn kernel(&self, spans: &Spans, input: impl Fn(usize) -> OperandBox) -> KernelCx {
        let adds_once = self
            .reduced_axes()
            .iter()
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
                .map(|(a, &n)| self.cover(a, n, spans))
                .collect()
        };
        let mut part = self.sub_box(&side(&Spans::Full), &side(spans));
        part.global = output.meta.shape.clone();
        part
    }

    /// The exchange that is a move.
    pub(super) fn assemble(&self, layouts: &[Layout], accumulate: bool) -> Exchange {
        let output = &self.rule.outputs[0];
        let target = output
            .dims
            .iter()
            .zip(&output.meta.shape)
            .map(|(a, &n)| self.cover(a, n, &Spans::Full))
            .collect();
        let mut builder = ExchangeBuilder::new(self.rule.name, self.mesh, target);
        for (i, layout) in layouts.iter().enumerate() {
            builder = builder.source(self.source(i, layout));
        }
        builder = builder.fill(self.rule.fill);
        if accumulate {
            builder = builder.fold(Monoid::Op(ReduceOp::Sum));
        }
        builder.build(self.index)
    }

    /// Whether an operand that needs an exchange was misaligned, rather than short of a halo.
    pub(super) fn is_realigned(&self, i: usize, layout: &Layout) -> bool {
        self.rule.inputs[i].iter().enumerate().any(|(d, access)| {
            let wanted = access
                .factor_index()
                .and_then(|f| self.choice.factors[f].as_ref());
            match (access, layout.sharding(d), wanted) {
                (Access::Window { .. } | Access::Adjoint { .. }, Some(have), Some(want)) => {
                    have.axes != want.axes || !have.partition.is_contiguous()
                }
                (Access::Ring { .. }, ..) => false,
                (Access::Rows { .. }, Some(have), Some(_)) => {
                    self.rows_of(access).as_ref() != Some(have)
                }
                (_, Some(_), None) => true,
                (Access::Factor { block, .. }, Some(have), Some(want)) => {
                    have.axes != want.axes || have.partition != multiplied(&want.partition, *block)
                }
                _ => false,
            }
        })
    }

    /// What the strategy wants of operand `i`, in the short form of layouts.
    pub(super) fn wanted(&self, i: usize) -> String {
        let mut builder = Layout::builder(self.mesh, &self.rule.metas[i].shape);
        for (d, access) in self.rule.inputs[i].iter().enumerate() {
            if let Access::Factor { factor, block } = access
                && let Some(sharding) = &self.choice.factors[*factor]
            {
                builder = builder.shard(d, &sharding.axes, multiplied(&sharding.partition, *block));
            }
            if let Some(rows) = self.rows_of(access) {
                builder = builder.shard(d, &rows.axes, rows.partition);
            }
        }
        builder
            .build()
            .map_or_else(|e| e.to_string(), |layout| layout.to_string())
    }
}

/// Whether what a part of the factor needs of the dim is the same indices.
fn is_plain(access: &Access) -> bool {
    matches!(
        access,
        Access::Factor { block: 1, .. } | Access::Map { .. } | Access::Ring { .. }
    )
}
