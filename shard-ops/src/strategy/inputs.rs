//! How inputs get where the kernels need them.

use super::halo::Halo;
use super::intervals::Axes;
use super::site::{Site, Spans};
use crate::error::InOp;
use crate::{Access, KernelCx, Result};
use shard_comm::Monoid;
use shard_redistribute::{Exchange, ExchangeBuilder, ExchangeSource, Plan};
use shard_spec::{DimCover, DimMap, Layout, ReduceOp};

/// How one input gets where the kernel needs it.
#[derive(Debug, Default)]
pub(crate) struct InputMove {
    /// Partial sums that do not pass are reduced first.
    pub(crate) reduce: Option<Plan>,
    /// Pieces and halos from other ranks; `None` if the operand is in place.
    pub(crate) exchange: Option<Exchange>,
    /// How the rank's own piece joins what the exchange brings, where that is only what the rank lacks, to be kept.
    pub(crate) halo: Option<Halo>,
    /// Whether operands have to move in the sense of `explicit_moves`: a halo is not a move.
    pub(crate) realigned: bool,
}

impl Site<'_> {
    /// How each input's partial sums are reduced, and where that leaves it.
    pub(super) fn reduced(&self, layouts: &[&Layout]) -> Result<(Vec<InputMove>, Vec<Layout>)> {
        let all = layouts.iter().enumerate();
        let steps = all.map(|(i, layout)| self.reduce_input(i, layout));
        Ok(steps.collect::<Result<Vec<_>>>()?.into_iter().unzip())
    }

    /// As [`reduced`](Self::reduced), for work that is done under another choice than this one.
    pub(super) fn reduced_for(
        &self,
        work: &Site<'_>,
        layouts: &[&Layout],
        mut inputs: Vec<InputMove>,
        current: &[Layout],
    ) -> Result<(Vec<InputMove>, Vec<Layout>)> {
        let (steps, at) = work.reduced(layouts)?;
        for ((i, layout), (input, step)) in
            current.iter().enumerate().zip(inputs.iter_mut().zip(steps))
        {
            // An operand that lies as the choice wants it is not misaligned, wherever the way takes it.
            input.realigned |= self.misaligned(i, layout);
            input.reduce = step.reduce;
        }
        Ok((inputs, at))
    }

    /// Reduces what does not pass, unless the exchange can fold it on the way.
    fn reduce_input(&self, i: usize, layout: &Layout) -> Result<(InputMove, Layout)> {
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
                Access::Factor { .. } => self.sharding_of(access),
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
        let plan = self.plan(layout, &to, self.rule.metas[i].dtype)?;
        let realigned = plan.communicates();
        Ok((
            InputMove {
                reduce: Some(plan),
                exchange: None,
                halo: None,
                realigned,
            },
            to,
        ))
    }

    pub(super) fn source(&self, i: usize, layout: &Layout) -> ExchangeSource {
        let maps =
            self.rule.inputs[i]
                .iter()
                .zip(layout.shape())
                .map(|(access, &n)| match access {
                    Access::Map { map, .. } => map.clone(),
                    _ => DimMap::identity(n),
                });
        ExchangeSource {
            layout: layout.clone(),
            maps: maps.collect(),
        }
    }

    /// The exchange that brings input `i` to its cover; `None` if it is in place on every rank.
    pub(super) fn exchange(&self, i: usize, layout: &Layout) -> Option<Exchange> {
        let covers = self.covers_with_halos(i, &Spans::Full);
        if self.in_place(layout, &covers) || self.rule.unread.contains(&i) {
            return None;
        }
        Some(self.brought(i, layout, covers).build(self.index))
    }

    /// How input `i` gets to its covers.
    pub(super) fn brought(
        &self,
        i: usize,
        layout: &Layout,
        covers: Vec<DimCover>,
    ) -> ExchangeBuilder {
        let builder = ExchangeBuilder::new(self.rule.name, self.mesh, covers);
        let builder = builder.source(self.source(i, layout));
        match self.model {
            Some(model) => builder.staged(self.rule.metas[i].dtype, model),
            None => builder,
        }
    }

    /// Brings the inputs to where the kernels run, which is not where the strategy's choice has them.
    pub(super) fn elsewhere_inputs(
        &self,
        layouts: &[Layout],
        inputs: &mut [InputMove],
    ) -> KernelCx {
        let realigned: Vec<bool> = inputs.iter().map(|step| step.realigned).collect();
        let call = self.without_overlap(layouts, inputs);
        for (step, realigned) in inputs.iter_mut().zip(realigned) {
            step.realigned = realigned;
        }
        call
    }

    /// Whether input `i` has to move to where the choice wants it, a halo or the blocks of a ring aside.
    pub(super) fn misaligned(&self, i: usize, layout: &Layout) -> bool {
        self.is_realigned(i, layout) && self.exchange(i, layout).is_some_and(|e| !e.is_local())
    }

    /// Brings every input in place; the kernel call that runs then.
    pub(super) fn without_overlap(&self, layouts: &[Layout], inputs: &mut [InputMove]) -> KernelCx {
        for (i, (layout, step)) in layouts.iter().zip(inputs).enumerate() {
            self.bring(i, layout, step);
        }
        self.kernel(&Spans::Full, |i| {
            let covers = self.covers_with_halos(i, &Spans::Full);
            self.input_box(&covers, 0)
        })
    }

    /// Brings input `i` in place.
    pub(super) fn bring(&self, i: usize, layout: &Layout, step: &mut InputMove) {
        step.exchange = self.exchange(i, layout);
        if step.exchange.as_ref().is_some_and(|e| !e.is_local()) {
            step.realigned |= self.is_realigned(i, layout);
            let all = self.covers_with_halos(i, &Spans::Full);
            if self.rule.kept_halos.contains(&i)
                && let Some((exchange, halo)) = self.halo(i, layout, &[all])
            {
                (step.exchange, step.halo) = (Some(exchange), Some(halo));
            }
        }
    }

    /// The exchange that is a move.
    pub(super) fn assemble(&self, layouts: &[Layout], accumulate: bool) -> Exchange {
        let output = &self.rule.outputs[0];
        let target = output
            .dims
            .iter()
            .zip(&output.meta.shape)
            .map(|(a, &n)| self.cover_with_halo(a, n, &Spans::Full))
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
    fn is_realigned(&self, i: usize, layout: &Layout) -> bool {
        self.rule.inputs[i].iter().enumerate().any(|(d, access)| {
            let wanted = access
                .factor_index()
                .and_then(|f| self.choice.factors[f].as_ref());
            match (access, layout.sharding(d), wanted) {
                (Access::Window { .. } | Access::Adjoint { .. }, Some(have), Some(want)) => {
                    have.axes != want.axes || !have.partition.is_contiguous()
                }
                (Access::Ring { .. }, ..) => false,
                (
                    Access::Factor { .. } | Access::Routed { .. } | Access::Rows { .. },
                    Some(have),
                    _,
                ) => self.sharding_of(access).as_ref() != Some(have),
                (_, Some(_), None) => true,
                _ => false,
            }
        })
    }

    /// What the strategy wants of operand `i`, in the short form of layouts.
    pub(super) fn wanted(&self, i: usize) -> String {
        let mut builder = Layout::builder(self.mesh, &self.rule.metas[i].shape);
        for (d, access) in self.rule.inputs[i].iter().enumerate() {
            if let Some(own) = self.sharding_of(access) {
                builder = builder.shard(d, &own.axes, own.partition);
            }
        }
        builder
            .build()
            .map_or_else(|e| e.to_string(), |layout| layout.to_string())
    }
}
