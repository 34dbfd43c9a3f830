//! Leaves that ops use in another layout than their own: sharded parameters that are gathered for each use.

use crate::ahead::{By, Sharded};
use crate::node::{Kind, Node, Parents, Slot};
use crate::pass::Visits;
use crate::{AutogradError, Recorder, Result};
use shard_ops::{OpError, Value};
use shard_redistribute::Array;
use shard_spec::Layout;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

impl Recorder {
    /// A [leaf](Self::leaf) that ops use in the layout `used_as`, which may have more of it on each rank than its own.
    ///
    /// Whatever op is applied to it gets it in that layout; nothing else is moved instead. What was gathered is not kept: it is
    /// freed after the op, and made again where the backward pass reads it. While ops run, the leaf that is expected next is
    /// [in flight](Self::set_gathers_ahead): in a backward pass the next one that a vjp reads, else the one that came next when
    /// leaves were last used so. Gradients have the leaf's own layout. Explicit moves,
    /// and reading it, start from that as well.
    ///
    /// ```
    /// use shard_autograd::Recorder;
    /// use shard_comm::{Communicator, local};
    /// use shard_ops::{Engine, EngineOptions, Value, elementwise::mul, reduce::sum};
    /// use shard_redistribute::{Array, MeshComm};
    /// use shard_spec::{DeviceMesh, Layout};
    /// use std::rc::Rc;
    ///
    /// local::run(2, |comm| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let mesh = DeviceMesh::new(&[2])?;
    ///     let cx = MeshComm::new(&world, &mesh)?;
    ///     let tape = Recorder::new(Engine::new(EngineOptions::default()));
    ///     let (own, whole) = (Layout::parse(&mesh, &[3], "S(0)")?, Layout::replicated(&mesh, &[3]));
    ///     let w = tape.leaf_used_as(Array::from_fn(&cx, &own, |i| i[0] as f64)?, &whole)?;
    ///     let x = Value::new(Array::from_fn(&cx, &Layout::parse(&mesh, &[5, 3], "S(0)")?, |_| 1.0)?);
    ///     let y = mul(&tape, &x, &w)?;
    ///     assert_eq!(y.layout(), x.layout());
    ///     let dw = tape.backward(&sum(&tape, &y, &[0, 1], false)?, None)?.get(&w)?.ok_or("it depends on w")?;
    ///     assert_eq!(dw.layout(), &own);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Collective
    /// None here; each use is a [redistribution](shard_ops::Exec::redistribute).
    ///
    /// # Errors
    /// As [`leaf`](Self::leaf); [`Leaf`](AutogradError::Leaf) for a layout of another mesh or shape, or a partial one.
    pub fn leaf_used_as(&self, array: Array, used_as: &Layout) -> Result<Value> {
        let own = array.layout();
        if own.mesh() != used_as.mesh() || own.shape() != used_as.shape() || used_as.is_partial() {
            let said = |layout: &Layout| format!("{:?} {layout}", layout.shape());
            return Err(AutogradError::Leaf {
                op: "leaf_used_as",
                expected: format!("a layout of shards and replicas for {}", said(own)),
                got: format!("{} on mesh {}", said(used_as), used_as.mesh()),
            });
        }
        let used_as = (own != used_as).then(|| used_as.clone());
        if used_as.is_some() {
            self.census().note_used();
        }
        self.leaf_of(array, used_as)
    }

    /// The layout in which ops use this value.
    pub fn layout_in_use(&self, value: &Value) -> Layout {
        let slot = self.own_slot(value);
        let used_as = slot.as_ref().and_then(|slot| slot.node.used_as());
        used_as.unwrap_or(value.layout()).clone()
    }

    /// The value as ops use it. Passing this to several ops brings it into its layout once.
    ///
    /// # Collective
    /// All members of the value's mesh.
    ///
    /// # Errors
    /// As [`redistribute`](shard_ops::Exec::redistribute).
    #[inline]
    pub fn operand<'a>(&self, value: &'a Value) -> Result<Cow<'a, Value>, OpError> {
        match self.census().has_used() {
            true => self.used(value),
            false => Ok(Cow::Borrowed(value)),
        }
    }

    /// The value as ops use it, which may be otherwise than it lies.
    fn used<'a>(&self, value: &'a Value) -> Result<Cow<'a, Value>, OpError> {
        let slot = self.own_slot(value);
        let Some((slot, leaf)) = slot.as_ref().and_then(|s| Some((s, s.node.sharded()?))) else {
            return Ok(Cow::Borrowed(value));
        };
        let mut parents = self.parents("gather", &[value])?;
        let (ahead, exec) = (self.ahead(), &**self.inner());
        let used = ahead.gather(exec, leaf, (value, slot.version))?;
        ahead.used(exec, leaf, self.uses())?;
        let own = value.array();
        let kind = || Kind::Use(own.clone());
        if !slot.frozen || !self.is_recording() {
            return Ok(Cow::Owned(self.record1(parents, used.into_array(), kind)));
        }
        // Nothing goes back there, but vjps of ops with other operands read it, and have it gathered again.
        parents[0] = Some(slot.clone());
        let used = self.record1(parents, used.into_array(), kind);
        let on_tape = self.own_slot(&used).map(|slot| Slot {
            node: slot.node.clone(),
            output: slot.output,
            version: slot.version,
            frozen: true,
        });
        Ok(Cow::Owned(match on_tape {
            Some(slot) => Value::with_slot(used.into_array(), Rc::new(slot)),
            None => used,
        }))
    }

    /// Adds to the parents of an op that goes on the tape the frozen leaves that were gathered for it.
    pub(crate) fn add_frozen(&self, parents: &mut Parents, inputs: &[&Value]) {
        if !self.census().has_used() {
            return;
        }
        for (parent, input) in parents.iter_mut().zip(inputs) {
            if parent.is_none() {
                let used = |slot: &Rc<Slot>| slot.frozen && slot.node.is_use();
                *parent = self.own_slot(input).filter(used);
            }
        }
    }

    /// The operands as ops use them.
    pub(crate) fn operands<'a>(
        &self,
        inputs: &[&'a Value],
    ) -> Result<SmallVec<[Cow<'a, Value>; 3]>, OpError> {
        inputs.iter().map(|value| self.operand(value)).collect()
    }

    /// The operands that are made anew where a vjp reads them, and so need not be kept.
    pub(crate) fn made_again(&self, parents: &[Option<Rc<Slot>>]) -> SmallVec<[usize; 3]> {
        if !self.census().has_used() || self.keeps_all() {
            return SmallVec::new();
        }
        let again = |parent: &Option<Rc<Slot>>| parent.as_ref().is_some_and(|p| p.node.is_use());
        let numbered = parents.iter().enumerate();
        numbered.filter(|(_, p)| again(p)).map(|(i, _)| i).collect()
    }
}

impl Node {
    /// The layout in which ops use the node's value, if it is a leaf that they use in another layout than its own.
    fn used_as(&self) -> Option<&Layout> {
        self.sharded().map(|sharded| &sharded.used_as)
    }
}

/// What a backward pass has gathered again and is going to read once more, and what it is going to read for the first time.
pub(crate) struct Again<'a> {
    recorder: &'a Recorder,
    by: By,
    made: RefCell<Vec<(u64, Array)>>,
    /// By the number of the node whose vjp reads, the newest last: the node that gave what is gathered again, and none where
    /// a function runs again, which sends for what it uses by itself.
    reads: RefCell<Vec<(u64, Option<Rc<Node>>)>>,
}

impl<'a> Again<'a> {
    pub(crate) fn begin(recorder: &'a Recorder, visits: &Visits) -> Self {
        let mut reads = Vec::new();
        if recorder.census().has_used() {
            for (&id, visit) in visits.iter().filter(|(_, visit)| visit.run) {
                match &visit.node.kind {
                    Kind::Op { op, again, .. } => {
                        let (keeps, parents) = (op.keeps(), &visit.node.parents);
                        let again = again.iter().rev().filter(|&&i| keeps.input(i));
                        let used = again.filter_map(|&i| Some(parents[i].as_ref()?.node.clone()));
                        reads.extend(used.map(|used| (id, Some(used))));
                    }
                    Kind::Recompute { .. } => reads.push((id, None)),
                    _ => {}
                }
            }
        }
        let leaves = visits.values().filter_map(|visit| visit.node.sharded());
        Self {
            recorder,
            by: recorder.ahead().begin_pass(leaves),
            made: RefCell::default(),
            reads: RefCell::new(reads),
        }
    }

    /// What a node gave, which is all there but its data.
    pub(crate) fn made(&self, node: &Node, like: &Array) -> Result<Array> {
        if let Some(known) = self.known(node) {
            return Ok(known);
        }
        let Some((leaf, own, version)) = gathered(node) else {
            return Ok(like.clone());
        };
        let (exec, own) = (&**self.recorder.inner(), Value::new(own.clone()));
        let value = self.recorder.ahead().gather(exec, leaf, (&own, version))?;
        let gathered = value.into_array();
        self.made.borrow_mut().push((node.id, gathered.clone()));
        Ok(gathered)
    }

    /// Sends for what is read next, before the vjp of this node runs, which has what it reads.
    pub(crate) fn send_for_next(&self, node: &Node) -> Result<()> {
        let mut reads = self.reads.borrow_mut();
        let is_there = |(reader, used): &mut (u64, Option<Rc<Node>>)| {
            *reader >= node.id || (used.as_ref()).is_some_and(|used| self.known(used).is_some())
        };
        while reads.pop_if(is_there).is_some() {}
        let next = reads.last().and_then(|(_, used)| gathered(used.as_ref()?));
        let Some((leaf, own, version)) = next else {
            return Ok(());
        };
        let exec = &**self.recorder.inner();
        let ahead = self.recorder.ahead();
        Ok(ahead.start(exec, leaf, (own.clone(), version), self.by)?)
    }

    /// Notes that one more reader of the node's value is done, and frees what was gathered after the last.
    pub(crate) fn read(&self, node: &Node, visits: &mut Visits) {
        if let Some(visit) = visits.get_mut(&node.id) {
            visit.uses = visit.uses.saturating_sub(1);
            if visit.uses == 0 {
                self.made.borrow_mut().retain(|(id, _)| *id != node.id);
            }
        }
    }

    fn known(&self, node: &Node) -> Option<Array> {
        let made = self.made.borrow();
        let known = made.iter().find(|(id, _)| *id == node.id);
        known.map(|(_, array)| array.clone())
    }
}

impl Drop for Again<'_> {
    fn drop(&mut self) {
        self.recorder.ahead().drop_flights(self.by);
    }
}

/// The leaf that a node gathered, with the array that the leaf had then and its version.
fn gathered(node: &Node) -> Option<(&Rc<Sharded>, &Array, u64)> {
    let (Kind::Use(own), Some(Some(slot))) = (&node.kind, node.parents.first()) else {
        return None;
    };
    Some((slot.node.sharded()?, own, slot.version))
}
