//! Leaves that ops use in another layout than their own: sharded parameters that are gathered for each use.

use crate::accumulate::Mover;
use crate::node::{Kind, Leaf, Node, Slot};
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
    /// freed after the op, and made again where the backward pass reads it. Gradients have the leaf's own layout. Explicit moves,
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
    pub fn operand<'a>(&self, value: &'a Value) -> Result<Cow<'a, Value>, OpError> {
        if !self.census().has_used() {
            return Ok(Cow::Borrowed(value));
        }
        let slot = self.own_slot(value);
        let Some(used_as) = slot.as_ref().and_then(|slot| slot.node.used_as()) else {
            return Ok(Cow::Borrowed(value));
        };
        let parents = self.parents("gather", &[value])?;
        let used = self.inner().gather(value, used_as)?;
        let own = value.array();
        let kind = || Kind::Use(own.clone());
        Ok(Cow::Owned(self.record1(parents, used.into_array(), kind)))
    }

    /// The operands as ops use them, where one of them is used otherwise than it lies.
    pub(crate) fn operands<'a>(
        &self,
        inputs: &[&'a Value],
    ) -> Result<Option<SmallVec<[Cow<'a, Value>; 3]>>, OpError> {
        if !self.census().has_used() {
            return Ok(None);
        }
        let used: Result<_, OpError> = inputs.iter().map(|value| self.operand(value)).collect();
        used.map(Some)
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
        match &self.kind {
            Kind::Leaf(Leaf { used_as, .. }) => used_as.as_ref(),
            _ => None,
        }
    }
}

/// What a backward pass has gathered again and is going to read once more.
#[derive(Default)]
pub(crate) struct Again(RefCell<Vec<(u64, Array)>>);

impl Again {
    /// What a node gave, which is all there but its data.
    pub(crate) fn made(&self, mover: Mover<'_>, node: &Node, like: &Array) -> Result<Array> {
        if let Some((_, known)) = self.0.borrow().iter().find(|(id, _)| *id == node.id) {
            return Ok(known.clone());
        }
        let Kind::Use(own) = &node.kind else {
            return Ok(like.clone());
        };
        let (own, exec) = (Value::new(own.clone()), mover.recorder.inner());
        let gathered = exec.gather(&own, like.layout())?.into_array();
        self.0.borrow_mut().push((node.id, gathered.clone()));
        Ok(gathered)
    }

    /// Notes that one more reader of the node's value is done, and frees what was gathered after the last.
    pub(crate) fn read(&self, node: &Node, visits: &mut Visits) {
        if let Some(visit) = visits.get_mut(&node.id) {
            visit.uses = visit.uses.saturating_sub(1);
            if visit.uses == 0 {
                self.0.borrow_mut().retain(|(id, _)| *id != node.id);
            }
        }
    }
}
