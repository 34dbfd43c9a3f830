//! One backward pass over the graph.

use crate::accumulate::{Cotangents, Form, Mover};
use crate::backward::check_cotangent;
use crate::bucket::Buckets;
use crate::law::gradient_layout;
use crate::node::{Kept, Kind, LeafName, Node, Outlet, Slot, ValueId, on_tape};
use crate::recorder::Mode;
use crate::together::{Application, Together};
use crate::used::Again;
use crate::{AutogradError, Recorder, Result, by_hand, local, recompute, to_mesh};
use shard_ops::{Op, Saved, Terms, Value};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// One backward pass.
pub(crate) struct Pass<'a> {
    pub(crate) recorder: &'a Recorder,
    /// Whether the pass itself goes on the tape.
    pub(crate) recorded: bool,
    pub(crate) want: Want,
    /// Nodes older than this are not passed through.
    pub(crate) floor: u64,
}

/// Which gradients are wanted.
pub(crate) enum Want {
    /// The gradients of every leaf.
    Leaves,
    /// The gradients of these values.
    Values(BTreeSet<ValueId>),
    /// The gradients of every value older than the floor.
    Older,
}

/// Gradients by the ids of their values.
pub(crate) type FoundMap = BTreeMap<ValueId, Found>;

/// A gradient, and the layout of its value.
pub(crate) struct Found {
    pub(crate) outlet: Outlet,
    /// In the layout of the law, or one that a reduction brings to it. Without data while the reduction is in flight.
    pub(crate) value: Value,
    pub(crate) name: LeafName,
}

/// A node that the pass visits.
pub(crate) struct Visit {
    pub(crate) node: Rc<Node>,
    /// Whether its vjp is to be run.
    pub(crate) run: bool,
    pending: SmallVec<[Cotangents; 1]>,
    /// What is still to be made of cotangents, for each output.
    waiting: SmallVec<[Together; 1]>,
    /// How many edges from nodes whose vjp is still to be run lead here, if it is a leaf or what ops use of one.
    pub(crate) uses: usize,
    /// How many edges led here at first.
    terms: usize,
}

pub(crate) type Visits = BTreeMap<u64, Visit>;

impl Visit {
    /// Adds what is to be made for this output, and makes it and what waits if it is time.
    fn wait(&mut self, mover: Mover<'_>, output: usize, one: Application) -> Result<()> {
        if !self.waiting[output].takes(&one) {
            self.make(mover, output)?;
        }
        let waiting = &mut self.waiting[output];
        waiting.push(one);
        match waiting.is_full(&self.node.outlets[output]) {
            true => self.make(mover, output),
            false => Ok(()),
        }
    }

    /// Makes what waits for this output.
    fn make(&mut self, mover: Mover<'_>, output: usize) -> Result<()> {
        let terms = if self.node.is_leaf() { self.terms } else { 1 };
        let outlet = &self.node.outlets[output];
        if let Some(term) = self.waiting[output].make(mover, outlet, terms)? {
            self.pending[output].push(mover, term)?;
        }
        Ok(())
    }
}

impl Pass<'_> {
    /// Runs the pass from these values with these cotangents.
    pub(crate) fn run(&self, seeds: Vec<(Rc<Slot>, Value)>) -> Result<(FoundMap, Buckets)> {
        // A pass that is itself recorded is recorded inside `no_grad` too. A pass that is not applies nothing to the tape.
        let mode = if self.recorded {
            Mode::Record
        } else {
            Mode::Off
        };
        // Its ops go by the types of the forward pass.
        (self.recorder).cast_to(None, || {
            self.recorder.in_mode(mode, || self.visit_all(seeds)).0
        })
    }

    fn visit_all(&self, seeds: Vec<(Rc<Slot>, Value)>) -> Result<(FoundMap, Buckets)> {
        let mover = Mover {
            recorder: self.recorder,
            recorded: self.recorded,
        };
        let mut visits = self.reach(&seeds);
        let again = Again::begin(self.recorder, &visits);
        let mut buckets = Buckets::new(self.recorder.bucket_bytes());
        let mut found = BTreeMap::new();
        for (slot, seed) in seeds {
            let seed = if self.recorded { seed } else { seed.detach() };
            if let Some(visit) = visits.get_mut(&slot.node.id) {
                visit.pending[slot.output].push(mover, seed)?;
            }
        }
        while let Some((_, mut visit)) = visits.pop_last() {
            let mut cotangents = Vec::with_capacity(visit.pending.len());
            for output in 0..visit.pending.len() {
                cotangents.push(self.complete(mover, &mut visit, output, &mut found)?);
            }
            if !visit.run {
                continue;
            }
            let node = visit.node;
            let needs: SmallVec<[bool; 3]> = node
                .parents
                .iter()
                .map(|p| p.as_ref().is_some_and(|p| self.wanted(p, &visits)))
                .collect();
            // Where no cotangent arrived at a piece here, one may have arrived on another rank, and all ranks must go on
            // alike.
            let shared = matches!(node.kind, Kind::ToLocal { .. });
            if shared || cotangents.iter().any(Option::is_some) {
                let _span = tracing::trace_span!("vjp", op = node.name(), node = node.id).entered();
                let terms = self.vjp(mover, &node, &again, &needs, &cotangents, &mut visits)?;
                drop(cotangents);
                deliver(mover, &node, &needs, terms, &mut visits)?;
            }
            for parent in node.parents.iter().flatten() {
                match &parent.node.kind {
                    Kind::Leaf(_) => {
                        self.used(mover, parent, &mut visits, &mut found, &mut buckets)?;
                    }
                    Kind::Use(_) => again.read(&parent.node, &mut visits),
                    _ => {}
                }
            }
        }
        buckets.forget_open();
        Ok((found, buckets))
    }

    /// Notes that a user of a leaf has given its cotangent. After the last user the leaf's gradient is complete, long before
    /// its turn comes, and the sum over the ranks can begin.
    fn used(
        &self,
        mover: Mover<'_>,
        leaf: &Slot,
        visits: &mut Visits,
        found: &mut FoundMap,
        buckets: &mut Buckets,
    ) -> Result<()> {
        let Some(visit) = visits.get_mut(&leaf.node.id) else {
            return Ok(());
        };
        visit.uses = visit.uses.saturating_sub(1);
        if visit.uses > 0 || self.recorded || !self.is_target(leaf) {
            return Ok(());
        }
        match self.complete(mover, visit, leaf.output, found)? {
            Some(value) if value.layout().is_partial() && !matches!(self.want, Want::Older) => {
                buckets.add(leaf.id(), found)
            }
            _ => Ok(()),
        }
    }

    /// All nodes between the seeds and what is wanted, by creation number.
    fn reach(&self, seeds: &[(Rc<Slot>, Value)]) -> Visits {
        let mut visits: Visits = BTreeMap::new();
        let mut stack: Vec<Rc<Node>> = seeds.iter().map(|(slot, _)| slot.node.clone()).collect();
        while let Some(node) = stack.pop() {
            if visits.contains_key(&node.id) {
                continue;
            }
            if node.id >= self.floor {
                stack.extend(node.parents.iter().flatten().map(|p| p.node.clone()));
            }
            let pending = node.outlets.iter().map(|_| Cotangents::default()).collect();
            let waiting = node.outlets.iter().map(|_| Together::default()).collect();
            visits.insert(
                node.id,
                Visit {
                    node,
                    run: false,
                    pending,
                    waiting,
                    uses: 0,
                    terms: 0,
                },
            );
        }
        // Parents are older than children, so one sweep from the oldest node finds out which nodes lead to a target.
        let ids: Vec<u64> = visits
            .keys()
            .copied()
            .filter(|&id| id >= self.floor)
            .collect();
        for id in ids {
            let Some(node) = visits.get(&id).map(|v| v.node.clone()) else {
                continue;
            };
            if !node
                .parents
                .iter()
                .flatten()
                .any(|p| self.wanted(p, &visits))
            {
                continue;
            }
            if let Some(visit) = visits.get_mut(&id) {
                visit.run = true;
            }
            for parent in node.parents.iter().flatten() {
                if let Some(visit) = visits.get_mut(&parent.node.id) {
                    visit.uses += 1;
                    visit.terms += 1;
                }
            }
        }
        visits
    }

    fn is_target(&self, slot: &Slot) -> bool {
        match &self.want {
            _ if slot.frozen => false,
            Want::Leaves => slot.node.is_leaf(),
            Want::Values(ids) => ids.contains(&slot.id()),
            Want::Older => slot.node.id < self.floor,
        }
    }

    /// Whether the cotangent of this value is needed.
    fn wanted(&self, slot: &Slot, visits: &Visits) -> bool {
        self.is_target(slot) || visits.get(&slot.node.id).is_some_and(|v| v.run)
    }

    /// The complete cotangent of a node's output, after its hooks. It is kept if the output is a target.
    fn complete(
        &self,
        mover: Mover<'_>,
        visit: &mut Visit,
        output: usize,
        found: &mut FoundMap,
    ) -> Result<Option<Value>> {
        visit.make(mover, output)?;
        let node = &visit.node;
        let slot = Slot {
            node: node.clone(),
            output,
            version: 0,
            frozen: false,
        };
        let target = self.is_target(&slot);
        let hooks = match self.want {
            // The gradient is not complete: other terms come from outside the checkpointed function.
            Want::Older if target => Vec::new(),
            _ => node.hooks_of(output),
        };
        let form = match node.kind {
            _ if !hooks.is_empty() || target && self.recorded => Form::Law,
            _ if !visit.run => Form::Sums,
            Kind::Pass | Kind::Use(_) => Form::Any,
            _ => Form::Law,
        };
        let outlet = slot.outlet().clone();
        let law = gradient_layout(&outlet.layout);
        let pending = std::mem::take(&mut visit.pending[output]);
        let Some(mut value) = pending.finish(mover, &law, form)? else {
            return Ok(None);
        };
        for hook in hooks {
            if let Some(new) = hook(&value)? {
                let what = || "what the hook gave".to_owned();
                check_cotangent(
                    "on_gradient",
                    what,
                    &outlet,
                    &new,
                    "give a gradient of the value's",
                )?;
                value = mover.redistribute(if self.recorded { new } else { new.detach() }, &law)?;
            }
        }
        if target {
            found.insert(
                slot.id(),
                Found {
                    outlet,
                    value: value.clone(),
                    name: slot.node.leaf_name().cloned().unwrap_or_default(),
                },
            );
        }
        Ok(Some(value))
    }

    /// Cotangents of a node's inputs.
    fn vjp(
        &self,
        mover: Mover<'_>,
        node: &Rc<Node>,
        again: &Again<'_>,
        needs: &[bool],
        cotangents: &[Option<Value>],
        visits: &mut Visits,
    ) -> Result<Vec<Option<Value>>> {
        match &node.kind {
            Kind::Leaf(_) => Ok(Vec::new()),
            Kind::Pass | Kind::Use(_) => Ok(vec![
                cotangents.first().cloned().flatten();
                node.parents.len()
            ]),
            Kind::ToMesh => to_mesh::vjp(self.recorder, node, cotangents),
            Kind::Recompute {
                body,
                inputs,
                captured,
            } => {
                recompute::check_captured(captured)?;
                recompute::vjp(mover, node, body, inputs, cotangents)
            }
            Kind::ToLocal { cotangent, .. } => {
                local::vjp_of_to_local(self.recorder, node, cotangent, cotangents)
            }
            Kind::FromLocal { cotangent, counts } => {
                local::vjp_of_from_local(self.recorder, cotangent, *counts, cotangents)
            }
            Kind::ByHand(by_hand) => by_hand::vjp(mover, node, by_hand, cotangents),
            Kind::Anchor => local::vjp_of_anchor(mover, node, needs, cotangents),
            Kind::Op {
                op,
                kept,
                again: missing,
            } => {
                let (inputs, outputs) = kept.split_at(node.parents.len());
                let is_again = |i| missing.contains(&i) && op.keeps().input(i);
                let inputs = self.inputs_of(node, inputs, again, is_again)?;
                again.send_for_next(node)?;
                let needs = left_to_wait(mover, (node, op), &inputs, needs, cotangents, visits)?;
                if !needs.contains(&true) {
                    return Ok(vec![None; needs.len()]);
                }
                let (terms, exec) = (terms_of(node, visits), &**self.recorder.inner());
                let told = terms.iter().any(|&terms| terms > 1);
                let saved = Saved {
                    inputs: &inputs,
                    outputs: &self.outputs_of(node, outputs),
                    needs: &needs,
                    terms: told.then_some(Terms { exec, of: &terms }),
                };
                Ok(op.vjp(mover.exec(), &saved, cotangents)?)
            }
        }
    }

    /// The inputs of an op, of which those that `is_again` are gathered once more.
    fn inputs_of(
        &self,
        node: &Node,
        kept: &[Kept],
        again: &Again<'_>,
        is_again: impl Fn(usize) -> bool,
    ) -> Result<Vec<Value>> {
        let input = |(i, (kept, parent)): (usize, (&Kept, &Option<Rc<Slot>>))| {
            let array = kept.array(parent.as_deref().map(Slot::outlet));
            let array = match parent.as_deref().map(|slot| &slot.node) {
                Some(used) if is_again(i) => again.made(used, &array)?,
                _ => array,
            };
            Ok(match parent {
                Some(slot) if self.recorded => Value::with_slot(array, slot.clone()),
                _ => Value::new(array),
            })
        };
        let kept = kept.iter().zip(&node.parents);
        kept.enumerate().map(input).collect()
    }

    fn outputs_of(&self, node: &Rc<Node>, kept: &[Kept]) -> Vec<Value> {
        let output = |(i, (kept, outlet)): (usize, (&Kept, _))| {
            let array = kept.array(Some(outlet));
            match self.recorded {
                true => on_tape(array, node, i),
                false => Value::new(array),
            }
        };
        let kept = kept.iter().zip(&node.outlets);
        kept.enumerate().map(output).collect()
    }
}

/// With how many others the cotangent of each parent is summed before the sum over ranks is taken: those of a leaf, which is used as it is
/// or brought to where it is used.
fn terms_of(node: &Node, visits: &Visits) -> SmallVec<[usize; 3]> {
    let summed = |slot: &Rc<Slot>| {
        let leaf = match &slot.node.kind {
            Kind::Leaf(_) => Some(&slot.node),
            Kind::Use(_) => slot.node.parents.iter().flatten().map(|p| &p.node).next(),
            _ => None,
        };
        leaf.and_then(|leaf| visits.get(&leaf.id)).map(|v| v.terms)
    };
    (node.parents.iter())
        .map(|parent| parent.as_ref().and_then(summed).unwrap_or(1))
        .collect()
}

/// Leaves an op's cotangents that may be made later to the values that they are for, and says which are needed at once. Only values that
/// several ops use have others to wait for.
fn left_to_wait(
    mover: Mover<'_>,
    (node, op): (&Node, &Arc<dyn Op>),
    inputs: &[Value],
    needs: &[bool],
    cotangents: &[Option<Value>],
    visits: &mut Visits,
) -> Result<SmallVec<[bool; 3]>> {
    let mut needs = SmallVec::from_slice(needs);
    let [Some(cotangent)] = cotangents else {
        return Ok(needs);
    };
    for (operand, parent) in node.parents.iter().enumerate() {
        let parent = parent.as_ref().filter(|_| needs[operand]);
        let Some((parent, to)) = parent.and_then(|p| Some((p, visits.get_mut(&p.node.id)?))) else {
            continue;
        };
        if to.terms < 2 {
            continue;
        }
        if let Some(wait) = op.waits(operand, inputs, cotangent) {
            let one = Application::new(op, (operand, wait), inputs, cotangent);
            to.wait(mover, parent.output, one)?;
            needs[operand] = false;
        }
    }
    Ok(needs)
}

/// Adds the cotangents from a node's vjp to those of its inputs.
fn deliver(
    mover: Mover<'_>,
    node: &Node,
    needs: &[bool],
    terms: Vec<Option<Value>>,
    visits: &mut Visits,
) -> Result<()> {
    if terms.len() != node.parents.len() {
        return Err(AutogradError::Count {
            op: node.name(),
            what: "cotangents from its vjp",
            expected: node.parents.len(),
            got: terms.len(),
            fix: "the vjp must give one per input, `None` where none is wanted",
        });
    }
    for (operand, (term, parent)) in terms.into_iter().zip(&node.parents).enumerate() {
        let (Some(term), Some(parent), true) = (term, parent, needs[operand]) else {
            continue;
        };
        let what = || format!("the cotangent of operand {operand}");
        check_cotangent(
            node.name(),
            what,
            parent.outlet(),
            &term,
            "the vjp must give one of the operand's",
        )?;
        if let Some(to) = visits.get_mut(&parent.node.id) {
            to.pending[parent.output].push(mover, term)?;
        }
    }
    Ok(())
}
