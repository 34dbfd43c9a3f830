//! Strategies: a rule and the operands' layouts, turned into moves, kernel calls and result layouts.
//!
//! A [`Choice`] says which mesh axes shard which factor and which partial sums pass. Candidates come from the
//! operands themselves (each in turn leads, the others fill what it leaves free), and the cheapest wins: bytes
//! received by the busiest rank, ties to more sharding, then to the left. Everything here is a function of
//! values that are equal on all ranks, so every rank makes the same choice.

mod blocks;
mod candidates;
mod choice;
mod choose;
mod cost;
mod halo;
mod inputs;
mod intervals;
pub(crate) mod missing;
mod outcome;
mod overlap;
mod price;
mod ring;
pub(crate) mod routing;
mod site;
mod ways;

pub(crate) use blocks::Blocks;
pub use choice::Choice;
pub use choose::Alternative;
pub(crate) use inputs::InputMove;
pub(crate) use outcome::Outcome;
pub use price::WayCost;
pub(crate) use ring::{Columns, Ring, RingStep};
pub use routing::RouteCost;
pub(crate) use routing::{Group, Keyed, KeyedDims, Merging, Routing};

use crate::rule::Body;
use crate::{FoldBy, KernelCx, OpError, Result, RouteBy, Rule};
use choose::{alternatives, choose};
use cost::cost;
use intervals::Axes;
use shard_comm::{DType, Monoid};
use shard_redistribute::{CostModel, Exchange, Plan};
use shard_spec::{DeviceMesh, DimSharding, Layout, ReduceOp, numel};
use site::{Site, Spans};
use smallvec::SmallVec;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use ways::Way;

/// What one rank does to run an op on operands of given layouts.
#[derive(Debug)]
pub struct Strategy {
    pub(crate) choice: Choice,
    pub(crate) inputs: Vec<InputMove>,
    pub(crate) outputs: Vec<Layout>,
    /// Elements of the rank's pieces of the outputs.
    pub(crate) lens: Vec<usize>,
    /// The types in which kernel calls leave the outputs.
    pub(crate) left: SmallVec<[DType; 1]>,
    /// The input whose halo may fly while the early calls run, from its own piece.
    pub(crate) flying_halo: Option<usize>,
    /// Kernel calls that need only what each rank has: they run while the halo flies.
    pub(crate) early: Arc<Vec<KernelCx>>,
    /// Kernel calls that need everything.
    pub(crate) late: Arc<Vec<KernelCx>>,
    /// The blocks into which the early call is divided, or if there is none the late one.
    pub(crate) blocks: Blocks,
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
    /// Whether the op is one kernel call on what each rank has: nothing moves before, beside or after it, the kernel reads every
    /// operand, and what the call leaves are the results.
    pub(crate) is_local: bool,
    /// If it is, the layouts of the outputs as its results share them.
    pub(crate) shared: Vec<Rc<Layout>>,
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
        let made = Self::with_choice(rule, layouts, &choice, index, &mesh, (elements, model))?;
        match (wanted, made.outputs.first()) {
            // A way may leave a result elsewhere than its choice says.
            (Some(wanted), Some(first)) if wanted != first => Err(OpError::Pinned {
                op: rule.name,
                wanted: wanted.to_string(),
                possible: vec![first.to_string()],
            }),
            _ => Ok(made),
        }
    }

    /// This strategy, of the first of these rules; or that of another one whose blocks fly while kernels run, if it leaves the results
    /// as this one does, moves no more, and takes less time than if they did not.
    pub(crate) fn or_block_by_block(
        self,
        (rule, others): (Rule, Vec<Rule>),
        layouts: &[&Layout],
        index: usize,
        model: &CostModel,
    ) -> (Rule, Self) {
        if layouts.iter().any(|layout| layout.is_partial()) {
            return (rule, self);
        }
        let most = self.bytes.saturating_mul(rule.metas[0].dtype.size());
        for other in others {
            // Where results go home in blocks, the choice says only how their terms are divided.
            for wanted in [self.outputs.first(), None] {
                let made = Self::yielding(&other, layouts, wanted, index, model);
                if let Ok(made) = made
                    && made.outputs == self.outputs
                    && made.gains_by_ring().is_some_and(|bytes| bytes <= most)
                {
                    return (other, made);
                }
            }
        }
        (rule, self)
    }

    /// The bytes that go round, if that takes less time than gathering them.
    fn gains_by_ring(&self) -> Option<usize> {
        let of = |by| self.ways().iter().find(|cost| cost.way == by);
        let (ring, gather) = (of(FoldBy::Ring)?, of(FoldBy::Gather)?);
        let gains = self.way() == Some(FoldBy::Ring) && ring.seconds < gather.seconds;
        gains.then_some(ring.bytes)
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
        let mut site = Site::new(rule, choice, mesh, index).by(model);
        let (inputs, current) = site.reduced(layouts)?;
        let (served, compared) = site.take_route(&current);
        let taken = site.way(&current, model);
        let way = taken.as_ref().map(|(way, _)| way);
        site.ring = way.and_then(Way::ring);
        let elsewhere = way
            .filter(|way| way.work != *choice)
            .map(|way| (Site::new(rule, &way.work, mesh, index).by(model), way));
        let (inputs, current) = match &elsewhere {
            Some((work, _)) => site.reduced_for(work, layouts, inputs, &current)?,
            None => (inputs, current),
        };
        let outputs = site.outputs(elsewhere.as_ref())?;
        let rank = mesh.ranks()[index];
        let lens = (outputs.iter())
            .map(|layout| layout.local_shape(rank).map_or(0, |shape| numel(&shape)));
        let mut strategy = Self {
            choice: choice.clone(),
            inputs,
            lens: lens.collect(),
            left: SmallVec::new(),
            outputs,
            flying_halo: None,
            early: Arc::default(),
            late: Arc::default(),
            blocks: Blocks::default(),
            ring: None,
            routing: site.routing(served, compared),
            way: (taken.as_ref()).map(|(way, considered)| (way.cost.way, considered.clone())),
            outcome: None,
            assemble: None,
            combine: site.combined(),
            is_local: false,
            shared: Vec::new(),
            bytes,
        };
        match rule.body {
            // The exchange that is the op.
            Body::Move { accumulate } => {
                strategy.assemble = Some(site.assemble(&current, accumulate));
            }
            _ => strategy.add_calls(&site, &current, elsewhere.as_ref())?,
        }
        strategy.prepare(rule);
        Ok(strategy)
    }

    /// Finds out whether the op is one kernel call and no more, and if so, what its kernel would find out at every call.
    fn prepare(&mut self, rule: &Rule) {
        let in_place = |step: &InputMove| step.reduce.is_none() && step.exchange.is_none();
        self.left = (0..self.outputs.len())
            .map(|o| self.left(rule, o))
            .collect();
        let is_rounded = |(o, left): (usize, &DType)| rule.narrows(o).is_none_or(|to| to == *left);
        self.is_local = rule.body == Body::Kernel
            && self.left.iter().enumerate().all(is_rounded)
            && rule.unread.is_empty()
            && rule.decides_rows().is_none()
            && self.inputs.iter().all(in_place)
            && !self.overlaps()
            && self.ring.is_none()
            && self.routing.is_none()
            && self.outcome.is_none()
            && self.assemble.is_none()
            && self.combine.is_none();
        if let (true, Some(calls)) = (self.is_local, Arc::get_mut(&mut self.late)) {
            calls.iter_mut().for_each(KernelCx::find_line);
            self.shared = self.outputs.iter().cloned().map(Rc::new).collect();
        }
    }

    /// The type in which kernel calls leave output `o`: the one it is rounded to where nothing is summed up, merged or found out after
    /// them, and otherwise the one they write.
    fn left(&self, rule: &Rule, o: usize) -> DType {
        let written = rule.outputs[o].meta.dtype;
        let by = self.outputs[o].partial_op();
        // Contributions of other ranks' rows are sums that go on.
        let goes_on = |routing: &Routing| routing.group.is_some() && !routing.home.is_empty();
        let is_last = self.ring.is_none()
            && !self.routing.as_ref().is_some_and(goes_on)
            && self.outcome.is_none()
            && self.combine.is_none()
            && rule.decides_rows().is_none()
            && !matches!(by, Some(ReduceOp::Sum | ReduceOp::Prod));
        rule.narrows(o).filter(|_| is_last).unwrap_or(written)
    }

    /// The kernel calls, and what brings the operands to them: elsewhere if a way says so, block by block, around the flight of a
    /// halo, or at once.
    fn add_calls(
        &mut self,
        site: &Site<'_>,
        current: &[Layout],
        elsewhere: Option<&(Site<'_>, &Way)>,
    ) -> Result<()> {
        let inputs = &mut self.inputs;
        if let Some((work, way)) = elsewhere {
            let mut call = work.elsewhere_inputs(current, inputs);
            let outcome = site.with_outcome(work, way, &self.outputs)?;
            call.is_part = outcome.merge.is_some();
            self.lens = site.made_lens(&outcome);
            self.outcome = Some(outcome);
            self.late = Arc::new(vec![call]);
        } else if let Some(ring) = &site.ring {
            self.ring = Some(site.with_ring(ring, current, inputs, &self.outputs)?);
        } else if let Some(calls) = site.with_overlap(current, inputs) {
            self.flying_halo = Some(calls.halo_of);
            self.early = Arc::new(vec![calls.early]);
            self.blocks = calls.blocks;
            self.late = Arc::new(calls.late);
        } else {
            let whole = site.without_overlap(current, inputs);
            // What the data decides is found out in one call.
            if self.routing.is_none() && site.rule.decides_rows().is_none() {
                self.blocks = site.divided(&Spans::Full, &whole);
            }
            self.late = Arc::new(vec![whole]);
        }
        Ok(())
    }

    /// Which mesh axes shard which factor.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The layouts of the results; of rows that the data decides, without those.
    pub fn outputs(&self) -> &[Layout] {
        &self.outputs
    }

    /// How operand `i` is to lie, its partial sums reduced, in the short form of layouts: for messages alone.
    pub(crate) fn wanted(&self, rule: &Rule, layouts: &[&Layout], i: usize) -> String {
        let reduced = (layouts.iter().zip(&self.inputs))
            .map(|(layout, step)| step.reduce.as_ref().map_or(*layout, Plan::to));
        let current: SmallVec<[&Layout; 4]> = reduced.collect();
        match rule.body {
            Body::Move { .. } => current[i].to_string(),
            _ => Site::serving(rule, &self.choice, &current).wanted(i),
        }
    }

    /// The cost the choice was made by: elements received by the busiest rank.
    pub fn cost(&self) -> usize {
        self.bytes
    }

    /// Whether part of the work is done while the halo flies.
    pub fn overlaps(&self) -> bool {
        !self.early.is_empty()
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
                let how = match exchange.stages().len() {
                    _ if exchange.is_local() => "local copy",
                    1 => "exchange",
                    _ => "exchange by stages",
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
