//! Strategies: a rule and the operands' layouts, turned into moves, kernel calls and result layouts.
//!
//! A [`Choice`] says which mesh axes shard which factor and which partial sums pass. Candidates come from the
//! operands themselves (each in turn leads, the others fill what it leaves free), and the cheapest wins: bytes
//! received by the busiest rank, ties to more sharding, then to the left. Everything here is a function of
//! values that are equal on all ranks, so every rank makes the same choice.

mod candidates;
mod choice;
mod choose;
mod cost;
mod inputs;
mod intervals;
mod missing;
mod outcome;
mod overlap;
mod price;
mod ring;
mod routing;
mod site;
mod ways;

pub use choice::Choice;
pub use choose::Alternative;
pub(crate) use inputs::InputMove;
pub(crate) use outcome::Outcome;
pub use price::WayCost;
pub(crate) use ring::{Ring, RingStep};
pub use routing::RouteCost;
pub(crate) use routing::{Group, Keyed, KeyedDims, Routing};
#[cfg(test)]
pub(crate) use routing::{OperandPart, Peer};

use crate::rule::Body;
use crate::{FoldBy, KernelCx, Reduction, Result, RouteBy, Rule};
use choose::{alternatives, choose};
use cost::cost;
use intervals::Axes;
use shard_comm::Monoid;
use shard_redistribute::{CostModel, Exchange, Plan};
use shard_spec::{DeviceMesh, DimSharding, Layout, numel};
use site::Site;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// What one rank does to run an op on operands of given layouts.
#[derive(Debug)]
pub struct Strategy {
    pub(crate) choice: Choice,
    pub(crate) inputs: Vec<InputMove>,
    pub(crate) outputs: Vec<Layout>,
    /// Elements of the rank's pieces of the outputs.
    pub(crate) lens: Vec<usize>,
    /// The input whose halo may fly while the early calls run, from its own piece.
    pub(crate) flying_halo: Option<usize>,
    /// Kernel calls that need only what each rank has: they run while the halo flies.
    pub(crate) early: Arc<Vec<KernelCx>>,
    /// Kernel calls that need everything.
    pub(crate) late: Arc<Vec<KernelCx>>,
    /// The blocks that are folded one after the other, in place of the calls above.
    pub(crate) ring: Option<Ring>,
    /// The way sharded ring dims are served, and what was compared.
    way: Option<(FoldBy, Vec<WayCost>)>,
    /// How rows are looked up that an operand names.
    pub(crate) routing: Option<Routing>,
    /// How results get where they belong, where kernels make them elsewhere.
    pub(crate) outcome: Option<Outcome>,
    /// For moves: the exchange that is the op.
    pub(crate) assemble: Option<Exchange>,
    /// Combine the outputs over these axes at once.
    pub(crate) combine: Option<(Axes, Monoid)>,
    bytes: usize,
}

impl Strategy {
    /// Derives the strategy of the mesh member at row-major position `index`. No communication.
    ///
    /// # Errors
    /// Layouts the rule cannot serve; the same on all ranks.
    pub fn new(rule: &Rule, layouts: &[&Layout], index: usize, model: &CostModel) -> Result<Self> {
        Self::yielding(rule, layouts, None, index, model)
    }

    /// As [`new`](Self::new); if the first result is to lie so, the cheapest strategy that leaves it so.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Pinned`](crate::OpError::Pinned) if there is none.
    pub fn yielding(
        rule: &Rule,
        layouts: &[&Layout],
        wanted: Option<&Layout>,
        index: usize,
        model: &CostModel,
    ) -> Result<Self> {
        let mesh = layouts[0].mesh().clone();
        let (elements, choice) = choose(rule, layouts, wanted)?;
        Self::with_choice(rule, layouts, &choice, index, &mesh, (elements, model))
    }

    /// What this strategy was chosen from, and why: it and the others that the operands' layouts suggest.
    pub fn alternatives(
        &self,
        rule: &Rule,
        layouts: &[&Layout],
        wanted: Option<&Layout>,
    ) -> Vec<Alternative> {
        alternatives(rule, layouts, wanted, &self.choice)
    }

    /// The strategy of a given choice: what the rule validator runs to try every factor. Factors that are folded block by
    /// block are never sharded by choice, and stay whole here too, as do those that cannot be divided so because rows
    /// [belong](crate::Access::Rows) to their indices.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn forced(rule: &Rule, layouts: &[&Layout], choice: &Choice, index: usize) -> Result<Self> {
        let mesh = layouts[0].mesh().clone();
        let mut choice = choice.clone();
        for (f, sharding) in choice.factors.iter_mut().enumerate() {
            let divides = |s: &DimSharding| rule.divides(f, &s.partition);
            if rule.rings(f) || !sharding.as_ref().is_none_or(divides) {
                *sharding = None;
            }
        }
        let bytes = cost(rule, layouts, &choice, usize::MAX).unwrap_or(usize::MAX);
        let model = CostModel::default();
        Self::with_choice(rule, layouts, &choice, index, &mesh, (bytes, &model))
    }

    fn with_choice(
        rule: &Rule,
        layouts: &[&Layout],
        choice: &Choice,
        index: usize,
        mesh: &DeviceMesh,
        (bytes, model): (usize, &CostModel),
    ) -> Result<Self> {
        let mut site = Site::new(rule, choice, mesh, index);
        let (mut inputs, mut current) = site.reduced(layouts)?;
        let (mut served, mut compared) = (RouteBy::Auto, SmallVec::new());
        if let Some((by, owners, considered)) = site.route(&current.iter().collect::<Vec<_>>()) {
            (served, compared) = (by, considered);
            site.routed = (by == RouteBy::Ask).then_some(owners);
        }
        let taken = site.way(&current, model);
        let by = taken.as_ref().map(|(way, _)| way.cost.way);
        let mut elsewhere = None;
        if let Some((way, _)) = &taken {
            if way.cost.way != FoldBy::Gather {
                site.ring = Some(way.blocks.clone());
            }
            if way.work != *choice {
                let work = Site::new(rule, &way.work, mesh, index);
                // An operand that lies as the choice wants it is not misaligned, wherever the way takes it.
                for (i, layout) in current.iter().enumerate() {
                    inputs[i].realigned |= site.misaligned(i, layout);
                }
                let (steps, at) = work.reduced(layouts)?;
                for (step, own) in inputs.iter_mut().zip(steps) {
                    step.reduce = own.reduce;
                }
                current = at;
                elsewhere = Some((work, way));
            }
        }
        let outputs = (0..rule.outputs.len())
            .map(|o| match (&elsewhere, by) {
                (Some((work, _)), Some(by)) => site.final_layout(o, by, &work.output_layout(o)?),
                _ => site.output_layout(o),
            })
            .collect::<Result<Vec<_>>>()?;
        let rank = mesh.ranks()[index];
        let lens = (outputs.iter())
            .map(|layout| layout.local_shape(rank).map_or(0, |shape| numel(&shape)));
        let combine = match rule.reduction {
            Some(Reduction::Now(monoid)) => {
                Some((site.reduced_axes(), monoid)).filter(|c| !c.0.is_empty())
            }
            _ => None,
        };
        let mut strategy = Self {
            choice: choice.clone(),
            inputs,
            lens: lens.collect(),
            outputs,
            flying_halo: None,
            early: Arc::default(),
            late: Arc::default(),
            ring: None,
            routing: site.routing(served, compared),
            way: by.zip(taken.as_ref().map(|(_, considered)| considered.clone())),
            outcome: None,
            assemble: None,
            combine,
            bytes,
        };
        if let Body::Move { accumulate } = rule.body {
            strategy.assemble = Some(site.assemble(&current, accumulate));
            for (step, layout) in strategy.inputs.iter_mut().zip(&current) {
                step.wanted = layout.to_string();
            }
            return Ok(strategy);
        }
        let inputs = &mut strategy.inputs;
        if let Some((work, way)) = &elsewhere {
            let mut call = work.elsewhere_inputs(&site, &current, inputs);
            let outcome = site.with_outcome(work, way, &strategy.outputs)?;
            call.is_part = outcome.merge.is_some();
            strategy.lens = site.made_lens(&outcome);
            strategy.outcome = Some(outcome);
            strategy.late = Arc::new(vec![call]);
        } else if let Some(ring) = &site.ring {
            strategy.ring = Some(site.with_ring(ring, &current, inputs, &strategy.outputs)?);
        } else if let (Some(overlap), None) = (site.overlap(&current), rule.decides_rows()) {
            let calls = site.with_overlap(&current, &overlap, inputs);
            strategy.flying_halo = calls.halo_of;
            strategy.early = Arc::new(calls.early);
            strategy.late = Arc::new(calls.late);
        } else {
            strategy.late = Arc::new(vec![site.without_overlap(&current, inputs)]);
        }
        Ok(strategy)
    }

    /// Which mesh axes shard which factor.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The layouts of the results; of rows that the data decides, without those.
    pub fn outputs(&self) -> &[Layout] {
        &self.outputs
    }

    /// The cost the choice was made by: elements received by the busiest rank.
    pub fn cost(&self) -> usize {
        self.bytes
    }

    /// Whether part of the work is done while the halo flies.
    pub fn overlaps(&self) -> bool {
        !self.early.is_empty()
    }

    /// How many blocks are folded one after the other; 0 where nothing goes round a ring.
    pub fn ring_steps(&self) -> usize {
        self.ring.as_ref().map_or(0, |ring| ring.steps.len())
    }

    /// The way sharded [ring](crate::Access::Ring) dims are served; `None` where none is sharded.
    pub fn way(&self) -> Option<FoldBy> {
        self.way.as_ref().map(|(by, _)| *by)
    }

    /// What the ways that were compared cost; the same on every rank.
    pub fn ways(&self) -> &[WayCost] {
        self.way.as_ref().map_or(&[], |(_, considered)| considered)
    }

    /// How the rows of a sharded [routed](crate::Access::Routed) dim are served; `None` where all are at hand, or each rank looks at
    /// its own.
    pub fn route(&self) -> Option<RouteBy> {
        let routing = self.routing.as_ref();
        routing.map(|r| r.by).filter(|&by| by != RouteBy::Auto)
    }

    /// What the ways to serve a routed dim that were compared cost; the same on every rank.
    pub fn routes(&self) -> &[RouteCost] {
        self.routing.as_ref().map_or(&[], |r| &r.considered)
    }

    /// Whether running it communicates.
    pub fn communicates(&self) -> bool {
        self.combine.is_some()
            || self.ring.is_some()
            || self.routing.is_some()
            || self.outcome.is_some()
            || self.assemble.as_ref().is_some_and(|e| !e.is_local())
            || self.inputs.iter().any(|i| {
                i.reduce.as_ref().is_some_and(Plan::communicates)
                    || i.exchange.as_ref().is_some_and(|e| !e.is_local())
            })
    }
}

impl fmt::Display for Strategy {
    /// Such as `out S(2)[3,2] R, input 0: exchange of 24`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs: Vec<String> = self.outputs.iter().map(ToString::to_string).collect();
        write!(f, "out {}", outputs.join(", "))?;
        for (i, input) in self.inputs.iter().enumerate() {
            if let Some(plan) = &input.reduce {
                write!(f, "; input {i}: {plan}")?;
            }
            if let Some(exchange) = &input.exchange {
                let how = if exchange.is_local() {
                    "local copy"
                } else {
                    "exchange"
                };
                write!(
                    f,
                    "; input {i}: {how} in {} pieces",
                    exchange.plan().recv.len()
                )?;
            }
        }
        if self.overlaps() {
            write!(f, "; interior first")?;
        }
        if let Some(ring) = &self.ring {
            write!(f, "; ring of {} blocks", ring.steps.len())?;
        }
        if let Some((by, considered)) = &self.way {
            write!(f, "; by {by:?} of")?;
            for (i, cost) in considered.iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                write!(f, "{comma} {cost}")?;
            }
        }
        if let Some(by) = self.route() {
            write!(f, "; rows by {by:?} of")?;
            for (i, cost) in self.routes().iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                write!(f, "{comma} {cost}")?;
            }
        }
        if let Some((axes, monoid)) = &self.combine {
            write!(f, "; combine {monoid:?} over axes {axes:?}")?;
        }
        Ok(())
    }
}
