//! The backward pass.

use crate::accumulate::{Form, Mover, Pending};
use crate::gradients::Gradients;
use crate::hook::GradientHook;
use crate::law::gradient_layout;
use crate::node::{Kind, Node, Outlet, Slot, ValueId, on_tape};
use crate::recorder::Mode;
use crate::{AutogradError, Recorder, Result, checkpoint};
use shard_comm::{Scalar, Strided};
use shard_ops::{Saved, Value};
use shard_redistribute::Array;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

impl Recorder {
    /// Computes the gradients of `loss` with respect to every leaf it depends on.
    ///
    /// `seed` is the cotangent of the loss, of its shape and type and in any layout; a loss of one element needs
    /// none. A partial loss counts as the value it stands for. The graph stays as it is: another pass may follow.
    ///
    /// Nodes are visited in reverse order of creation, which is the same on every rank, so that the
    /// communication of the vjps matches.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// [`NotTracked`](AutogradError::NotTracked) if the loss depends on no leaf;
    /// [`SeedNeeded`](AutogradError::SeedNeeded); [`Cotangent`](AutogradError::Cotangent) if the seed does not
    /// fit; whatever vjps and hooks report.
    pub fn backward(&self, loss: &Value, seed: Option<&Value>) -> Result<Gradients> {
        let slot = self.slot_of("backward", "the loss", loss)?;
        let seed = seed_of("backward", loss, seed)?;
        let pass = Pass {
            recorder: self,
            recorded: false,
            want: Want::Leaves,
            floor: 0,
        };
        Ok(Gradients::new(self, pass.run(vec![(slot, seed)])?))
    }

    /// The gradients of `outputs` with respect to `inputs`, which may be leaves or not: the sum over the outputs
    /// of their vector-Jacobian products with `cotangents`. `None` for an input that no output depends on.
    ///
    /// An input that depends on another input of the list does not hide it: each gradient counts every way from
    /// its input to the outputs. With `create_graph` the gradients are themselves on the tape, for derivatives
    /// of higher order.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Count`](AutogradError::Count) if there are not as many cotangents as
    /// outputs (an empty list stands for the default of each).
    pub fn grad(
        &self,
        outputs: &[&Value],
        inputs: &[&Value],
        cotangents: &[Option<&Value>],
        create_graph: bool,
    ) -> Result<Vec<Option<Value>>> {
        if !cotangents.is_empty() && cotangents.len() != outputs.len() {
            return Err(AutogradError::Count {
                op: "grad",
                what: "cotangents",
                expected: outputs.len(),
                got: cotangents.len(),
                fix: "pass one per output, `None` for the default, or an empty list",
            });
        }
        let targets = (inputs.iter().enumerate())
            .map(|(i, v)| Ok(self.slot_of("grad", &format!("input {i}"), v)?.id()))
            .collect::<Result<Vec<_>>>()?;
        let mut seeds = Vec::with_capacity(outputs.len());
        for (i, output) in outputs.iter().enumerate() {
            let slot = self.slot_of("grad", &format!("output {i}"), output)?;
            seeds.push((
                slot,
                seed_of("grad", output, cotangents.get(i).copied().flatten())?,
            ));
        }
        let pass = Pass {
            recorder: self,
            recorded: create_graph,
            want: Want::Values(targets.iter().copied().collect()),
            floor: targets.iter().map(|t| t.node).min().unwrap_or(0),
        };
        let found = pass.run(seeds)?;
        if create_graph {
            return Ok(targets
                .iter()
                .map(|t| found.get(t).map(|f| f.value.clone()))
                .collect());
        }
        let gradients = Gradients::new(self, found);
        targets.iter().map(|&t| gradients.get_id(t)).collect()
    }
}

/// One backward pass.
pub(crate) struct Pass<'a> {
    pub(crate) recorder: &'a Recorder,
    /// Whether it goes on the tape itself.
    pub(crate) recorded: bool,
    pub(crate) want: Want,
    /// Nodes older than this are not passed through.
    pub(crate) floor: u64,
}

/// Whose gradients are wanted.
pub(crate) enum Want {
    /// Those of every leaf.
    Leaves,
    /// Those of these values.
    Values(BTreeSet<ValueId>),
    /// Those of every value older than the floor.
    Older,
}

/// Gradients by what they belong to.
pub(crate) type FoundMap = BTreeMap<ValueId, Found>;

/// A gradient, and where it belongs.
pub(crate) struct Found {
    pub(crate) outlet: Outlet,
    /// In the layout of the law, or partial over more axes.
    pub(crate) value: Value,
}

/// A node on the way.
struct Visit {
    node: Rc<Node>,
    /// Whether its vjp is to be run.
    run: bool,
    pending: SmallVec<[Pending; 1]>,
}

impl Pass<'_> {
    /// Runs the pass from these values with these cotangents.
    pub(crate) fn run(&self, seeds: Vec<(Rc<Slot>, Value)>) -> Result<FoundMap> {
        // A pass that is itself recorded is so inside `no_grad` too; the other one applies nothing to the tape.
        let mode = if self.recorded {
            Mode::Record
        } else {
            Mode::Off
        };
        self.recorder.in_mode(mode, || self.visit_all(seeds)).0
    }

    fn visit_all(&self, seeds: Vec<(Rc<Slot>, Value)>) -> Result<FoundMap> {
        let mover = Mover {
            recorder: self.recorder,
            recorded: self.recorded,
        };
        let mut visits = self.reach(&seeds);
        for (slot, seed) in seeds {
            let seed = if self.recorded { seed } else { seed.detach() };
            if let Some(visit) = visits.get_mut(&slot.node.id) {
                visit.pending[slot.output].push(mover, seed)?;
            }
        }
        let mut found = BTreeMap::new();
        while let Some((_, Visit { node, run, pending })) = visits.pop_last() {
            let mut cotangents = Vec::with_capacity(pending.len());
            for (output, pending) in pending.into_iter().enumerate() {
                cotangents.push(self.complete(mover, &node, output, run, pending, &mut found)?);
            }
            if !run || cotangents.iter().all(Option::is_none) {
                continue;
            }
            let _span = tracing::trace_span!("vjp", op = node.name(), node = node.id).entered();
            let needs: SmallVec<[bool; 3]> = node
                .parents
                .iter()
                .map(|p| p.as_ref().is_some_and(|p| self.wanted(p, &visits)))
                .collect();
            let terms = self.vjp(mover, &node, &needs, &cotangents)?;
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
        }
        Ok(found)
    }

    /// All nodes between the seeds and what is wanted, by creation number.
    fn reach(&self, seeds: &[(Rc<Slot>, Value)]) -> BTreeMap<u64, Visit> {
        let mut visits: BTreeMap<u64, Visit> = BTreeMap::new();
        let mut stack: Vec<Rc<Node>> = seeds.iter().map(|(slot, _)| slot.node.clone()).collect();
        while let Some(node) = stack.pop() {
            if visits.contains_key(&node.id) {
                continue;
            }
            if node.id >= self.floor {
                stack.extend(node.parents.iter().flatten().map(|p| p.node.clone()));
            }
            let pending = node.outlets.iter().map(|_| Pending::default()).collect();
            visits.insert(
                node.id,
                Visit {
                    node,
                    run: false,
                    pending,
                },
            );
        }
        // Parents are older than children: one sweep from the oldest settles which nodes lead to a target.
        let ids: Vec<u64> = visits
            .keys()
            .copied()
            .filter(|&id| id >= self.floor)
            .collect();
        for id in ids {
            let run = (visits.get(&id)).is_some_and(|v| {
                v.node
                    .parents
                    .iter()
                    .flatten()
                    .any(|p| self.wanted(p, &visits))
            });
            if let Some(visit) = visits.get_mut(&id) {
                visit.run = run;
            }
        }
        visits
    }

    fn is_target(&self, slot: &Slot) -> bool {
        match &self.want {
            Want::Leaves => slot.node.is_leaf(),
            Want::Values(ids) => ids.contains(&slot.id()),
            Want::Older => slot.node.id < self.floor,
        }
    }

    /// Whether the cotangent of this value is of use.
    fn wanted(&self, slot: &Slot, visits: &BTreeMap<u64, Visit>) -> bool {
        self.is_target(slot) || visits.get(&slot.node.id).is_some_and(|v| v.run)
    }

    /// The complete cotangent of a node's output, after its hooks; kept if it is a target.
    fn complete(
        &self,
        mover: Mover<'_>,
        node: &Rc<Node>,
        output: usize,
        run: bool,
        pending: Pending,
        found: &mut FoundMap,
    ) -> Result<Option<Value>> {
        let outlet = node.outlets[output].clone();
        let law = gradient_layout(&outlet.layout);
        let hooks: Vec<GradientHook> = if matches!(self.want, Want::Older) && node.id < self.floor {
            // Its gradient is not complete: other terms come from outside the checkpointed function.
            Vec::new()
        } else {
            node.hooks
                .borrow()
                .iter()
                .filter(|h| h.output == output)
                .map(|h| h.run.clone())
                .collect()
        };
        let slot = Slot {
            node: node.clone(),
            output,
        };
        let target = self.is_target(&slot);
        let form = match node.kind {
            _ if !hooks.is_empty() || target && self.recorded => Form::Law,
            _ if !run => Form::Sums,
            Kind::Pass => Form::Any,
            _ => Form::Law,
        };
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
        needs: &[bool],
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        match &node.kind {
            Kind::Leaf => Ok(Vec::new()),
            Kind::Pass => Ok(vec![
                cotangents.first().cloned().flatten();
                node.parents.len()
            ]),
            Kind::Checkpoint { body, inputs } => {
                checkpoint::vjp(mover, node, body, inputs, cotangents)
            }
            Kind::Op {
                op,
                inputs,
                outputs,
            } => {
                let inputs: Vec<Value> = (inputs.iter().zip(&node.parents))
                    .map(|(array, parent)| match parent {
                        Some(slot) if self.recorded => {
                            Value::with_slot(array.clone(), slot.clone())
                        }
                        _ => Value::new(array.clone()),
                    })
                    .collect();
                let outputs: Vec<Value> = (outputs.iter().enumerate())
                    .map(|(i, a)| {
                        if self.recorded {
                            on_tape(a.clone(), node, i)
                        } else {
                            Value::new(a.clone())
                        }
                    })
                    .collect();
                let saved = Saved {
                    inputs: &inputs,
                    outputs: &outputs,
                    needs,
                };
                Ok(op.vjp(mover.exec(), &saved, cotangents)?)
            }
        }
    }
}

/// The cotangent a pass starts from.
fn seed_of(op: &'static str, value: &Value, seed: Option<&Value>) -> Result<Value> {
    let outlet = Outlet::of(value.array());
    if let Some(seed) = seed {
        check_cotangent(
            op,
            || "the seed".to_owned(),
            &outlet,
            seed,
            "pass a seed of the value's",
        )?;
        return Ok(seed.clone());
    }
    if value.shape().iter().product::<usize>() != 1 {
        return Err(AutogradError::SeedNeeded {
            op,
            shape: value.shape().to_vec(),
        });
    }
    let layout = gradient_layout(value.layout());
    let array = value.array();
    let buffer = match array.buffer() {
        None => None,
        // The gradient's piece is as large as the value's: only sums differ.
        Some(like) => {
            let device = like.device();
            let mut ones = device.alloc(like.dtype(), like.len())?;
            device.fill(
                &mut ones,
                &Strided::contiguous(&[like.len()]),
                Scalar::F64(1.0),
            )?;
            Some(ones.freeze())
        }
    };
    Ok(Value::new(Array::from_parts(
        array.cx(),
        &layout,
        buffer,
        array.dtype(),
    )?))
}

/// Refuses a cotangent that is not of its value's shape and type.
fn check_cotangent(
    op: &'static str,
    what: impl FnOnce() -> String,
    value: &Outlet,
    cotangent: &Value,
    fix: &'static str,
) -> Result<()> {
    if value.layout.shape() == cotangent.shape() && value.dtype == cotangent.dtype() {
        return Ok(());
    }
    Err(AutogradError::Cotangent {
        op,
        what: what(),
        shape: value.layout.shape().to_vec(),
        dtype: value.dtype,
        got_shape: cotangent.shape().to_vec(),
        got_dtype: cotangent.dtype(),
        fix,
    })
}
