//! The result of a backward pass.

use crate::accumulate::{Cotangents, Form, Mover};
use crate::bucket::{BUCKET_BYTES, Buckets};
use crate::law::{gradient_layout, is_law_but_for_sums};
use crate::node::ValueId;
use crate::pass::{Found, FoundMap};
use crate::{AutogradError, Recorder, Result};
use shard_comm::Call;
use shard_ops::Value;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// The gradients of a backward pass.
///
/// The gradient of a replicated leaf is often a sum over ranks that has not been taken yet. It is taken when the
/// first gradient is read, once and for all of them together, in few large reductions instead of many small
/// ones. Passes of several batches may be [added](Self::accumulate) before that, and are then reduced once.
pub struct Gradients {
    recorder: Recorder,
    found: RefCell<FoundMap>,
    /// Sums that have been started already.
    early: RefCell<Buckets>,
}

impl Gradients {
    pub(crate) fn new(recorder: &Recorder, (found, early): (FoundMap, Buckets)) -> Self {
        Self {
            recorder: recorder.clone(),
            found: RefCell::new(found),
            early: RefCell::new(early),
        }
    }

    /// The gradients of no pass, to which others are [added](Self::accumulate).
    pub fn none(recorder: &Recorder) -> Self {
        Self::new(recorder, (FoundMap::default(), Buckets::new(BUCKET_BYTES)))
    }

    /// The gradient of a leaf, in the layout of the [gradient law](crate::gradient_layout); `None` if the loss
    /// does not depend on it, or the value is no leaf.
    ///
    /// # Collective
    /// All ranks of the program, as long as [`unreduced`](Self::unreduced) is not 0: the first read takes all
    /// outstanding sums.
    ///
    /// # Errors
    /// What the communicator reports.
    pub fn get(&self, leaf: &Value) -> Result<Option<Value>> {
        match self.recorder.id(leaf) {
            Some(id) => self.get_id(id),
            None => Ok(None),
        }
    }

    /// The gradient of the leaf with this id; see [`get`](Self::get).
    ///
    /// # Collective
    /// As [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_id(&self, id: ValueId) -> Result<Option<Value>> {
        self.reduce()?;
        let found = self.found.borrow();
        Ok(found.get(&id).map(|found| {
            let array = found.value.array();
            let call = Call::new("gradient").of(array.dtype(), array.layout());
            array.cx().record(call.reading(&[array.number()]));
            found.value.clone()
        }))
    }

    /// The ids of the leaves that have a gradient, in order of their creation.
    pub fn ids(&self) -> Vec<ValueId> {
        self.found.borrow().keys().copied().collect()
    }

    /// All gradients with the [names](Recorder::set_name) of their leaves, in order of the leaves' creation.
    ///
    /// # Collective
    /// As [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn all(&self) -> Result<Vec<(Option<Rc<str>>, Value)>> {
        self.reduce()?;
        let found = self.found.borrow();
        let named = |found: &Found| (found.name.borrow().clone(), found.value.clone());
        Ok(found.values().map(named).collect())
    }

    /// Replaces every gradient by what `f` makes of it, in order of the leaves' creation. A gradient whose sum over ranks has
    /// not been taken is a partial value, and stays one unless [`reduce`](Self::reduce) was called before.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What `f` reports, when no gradient is replaced; [`Leaf`](AutogradError::Leaf) for what is no gradient of the same leaf.
    pub fn map(&mut self, mut f: impl FnMut(&Value) -> Result<Value>) -> Result<()> {
        // What has been started is summed as it was.
        self.land()?;
        let mut found = self.found.borrow_mut();
        let mut mapped = Vec::with_capacity(found.len());
        for Found { outlet, value, .. } in found.values() {
            let new = f(value)?;
            let law = gradient_layout(&outlet.layout);
            let fits = new.layout() == value.layout() || is_law_but_for_sums(new.layout(), &law);
            if new.dtype() != outlet.dtype || !fits {
                return Err(AutogradError::Leaf {
                    op: "map",
                    expected: format!("{} {:?} {law}", outlet.dtype, law.shape()),
                    got: format!("{} {:?} {}", new.dtype(), new.shape(), new.layout()),
                });
            }
            mapped.push(new.detach());
        }
        for (found, new) in found.values_mut().zip(mapped) {
            found.value = new;
        }
        Ok(())
    }

    /// How many leaves have a gradient.
    pub fn len(&self) -> usize {
        self.found.borrow().len()
    }

    /// Whether no leaf has a gradient.
    pub fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// How many gradients are sums over ranks that have not been taken yet.
    pub fn unreduced(&self) -> usize {
        self.found
            .borrow()
            .values()
            .filter(|f| f.value.layout().is_partial())
            .count()
    }

    /// Takes all outstanding sums. Those over the same mesh axes and of the same type are taken together. A no-op the second
    /// time.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What the communicator reports.
    pub fn reduce(&self) -> Result<()> {
        self.land()?;
        let found = &mut *self.found.borrow_mut();
        let partial = |(&id, found): (_, &Found)| found.value.layout().is_partial().then_some(id);
        let outstanding: Vec<ValueId> = found.iter().filter_map(partial).collect();
        let mut buckets = Buckets::new(BUCKET_BYTES);
        for id in outstanding {
            buckets.add(id, found)?;
        }
        buckets.finish(found)
    }

    /// Waits for the sums that were started.
    fn land(&self) -> Result<()> {
        let mut early = self.early.borrow_mut();
        early.land(&mut self.found.borrow_mut())?;
        early.forget_open();
        Ok(())
    }

    /// Adds the gradients of another pass of the same recorder, leaf by leaf, without taking outstanding sums
    /// (but waiting for those that [were started](Recorder::set_bucket_bytes)).
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// [`NotTracked`](AutogradError::NotTracked) for a pass of another recorder, whose leaves are others; what the device and the
    /// communicator report.
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        if !self.recorder.is(&other.recorder) {
            return Err(AutogradError::NotTracked {
                op: "accumulate",
                what: "the pass to add".into(),
                fix: "add gradients of passes of one recorder",
            });
        }
        self.land()?;
        other.land()?;
        let mover = Mover {
            recorder: &self.recorder,
            recorded: false,
        };
        let mut found = self.found.borrow_mut();
        for (id, theirs) in other.found.into_inner() {
            let Some(mine) = found.get_mut(&id) else {
                found.insert(id, theirs);
                continue;
            };
            let law = gradient_layout(&theirs.outlet.layout);
            let mut sum = Cotangents::default();
            sum.push(mover, mine.value.clone())?;
            sum.push(mover, theirs.value)?;
            if let Some(value) = sum.finish(mover, &law, Form::Sums)? {
                mine.value = value;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gradients")
            .field("len", &self.len())
            .field("unreduced", &self.unreduced())
            .finish()
    }
}
