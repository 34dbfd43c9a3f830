//! The recording executor.

use crate::ahead::{Ahead, Sharded, When};
use crate::autocast::Region;
use crate::bucket::BUCKET_BYTES;
use crate::node::{
    Census, Kept, Kind, Leaf, Node, Outlet, Parents, Slot, ValueId, on_tape, put_on_tape,
};
use crate::{AutogradError, Result};
use shard_ops::{Exec, Op, OpError, Sums, Value, Values};
use shard_redistribute::Array;
use shard_spec::Layout;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Applies ops through another executor and remembers what was applied to what, so that derivatives can be taken.
///
/// A value is *tracked* if derivatives reach it: leaves made by [`leaf`](Self::leaf), and every
/// floating-point output of an op that was applied to a tracked value while recording. Clones of a recorder
/// are the same recorder. It belongs to one rank; every rank has its own, and all of them record alike, because
/// all ranks run the program: whether a value is tracked, [`no_grad`](Self::no_grad) and hooks must not depend
/// on the rank.
#[derive(Clone)]
pub struct Recorder(Rc<Inner>);

struct Inner {
    exec: Rc<dyn Exec>,
    census: Rc<Census>,
    mode: RefCell<Mode>,
    bucket_bytes: Cell<usize>,
    ahead: Ahead,
    /// The region that casts by itself, if this is one.
    region: RefCell<Option<Rc<Region>>>,
    /// For each function of pieces that is running, the innermost last: the pieces that the host has read.
    reads: RefCell<Vec<BTreeSet<u64>>>,
}

/// Whether what is applied goes on the tape.
pub(crate) enum Mode {
    /// It goes on the tape.
    Record,
    /// It goes on the tape, with all that vjps read, since they come next: a checkpointed function runs for the second time.
    Again,
    /// It does not.
    Off,
    /// It does not, but the tracked values that it used are kept here, in order of first use.
    Capture(Vec<Rc<Slot>>),
}

impl Recorder {
    /// A recorder over an executor that computes the ops.
    pub fn new(exec: Rc<dyn Exec>) -> Self {
        Self(Rc::new(Inner {
            exec,
            census: Rc::default(),
            mode: RefCell::new(Mode::Record),
            bucket_bytes: Cell::new(BUCKET_BYTES),
            ahead: Ahead::default(),
            region: RefCell::default(),
            reads: RefCell::default(),
        }))
    }

    /// Whether the other is a clone of this one. Leaves of two recorders may have equal ids.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0.census, &other.0.census)
    }

    /// The executor underneath, which records nothing.
    pub fn inner(&self) -> &Rc<dyn Exec> {
        &self.0.exec
    }

    /// A value with respect to which derivatives are wanted. Two calls make two different leaves, even of the same array.
    ///
    /// # Errors
    /// [`NotDifferentiable`](AutogradError::NotDifferentiable) for an array of integers or truth values.
    pub fn leaf(&self, array: Array) -> Result<Value> {
        self.leaf_of(array, None)
    }

    pub(crate) fn leaf_of(&self, array: Array, used_as: Option<Layout>) -> Result<Value> {
        if !array.dtype().is_float() {
            return Err(AutogradError::NotDifferentiable {
                op: "leaf",
                expected: "a floating-point type",
                dtype: array.dtype(),
            });
        }
        let leaf = Leaf {
            used_as: used_as.map(|used_as| Sharded::new(&array, used_as)),
            ..Leaf::default()
        };
        let outlets = SmallVec::from_buf([Outlet::of(&array)]);
        let node = Node::new(&self.0.census, Kind::Leaf(leaf), Parents::new(), outlets);
        Ok(on_tape(array, &node, 0))
    }

    /// The same leaf with another array, like a parameter after a step: its [id](Self::id) and its hooks stay. What was
    /// computed from the old array keeps that array, and its gradient is still the leaf's.
    ///
    /// # Errors
    /// [`NotTracked`](AutogradError::NotTracked) for a value that is no leaf of this recorder;
    /// [`Leaf`](AutogradError::Leaf) for an array of another type, shape or layout.
    pub fn renewed(&self, leaf: &Value, array: Array) -> Result<Value> {
        const OP: &str = "renewed";
        let slot = self.leaf_slot(OP, leaf)?;
        let outlet = slot.outlet();
        if outlet.dtype != array.dtype() || *outlet.layout != *array.layout() {
            let said = |dtype, layout: &Layout| format!("{dtype} {:?} {layout}", layout.shape());
            return Err(AutogradError::Leaf {
                op: OP,
                expected: said(outlet.dtype, &outlet.layout),
                got: said(array.dtype(), array.layout()),
            });
        }
        Ok(next_of(&slot, array, slot.frozen))
    }

    /// The same leaf with the same array, frozen or thawed: what is computed from a frozen leaf is computed from a constant, which has
    /// no gradient and keeps nothing on the tape. Its [id](Self::id), name and hooks stay. What was computed before from the leaf as it
    /// was keeps what it had.
    ///
    /// A leaf that is [gathered for its uses](Self::leaf_used_as) goes on being gathered, and is not held whole in between.
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    ///
    /// # Errors
    /// [`NotTracked`](AutogradError::NotTracked) for a value that is no leaf of this recorder.
    pub fn frozen(&self, leaf: &Value, frozen: bool) -> Result<Value> {
        let slot = self.leaf_slot("frozen", leaf)?;
        Ok(next_of(&slot, leaf.array().clone(), frozen))
    }

    /// The slot of a value that must be a leaf of this recorder, frozen or not.
    fn leaf_slot(&self, op: &'static str, leaf: &Value) -> Result<Rc<Slot>> {
        let slot = self.own_slot(leaf).filter(|slot| slot.node.is_leaf());
        slot.ok_or_else(|| AutogradError::NotTracked {
            op,
            what: "as a leaf, the value".into(),
            fix: "pass what `leaf` gave",
        })
    }

    /// Gives a leaf a name, for [gradients](crate::Gradients::all) and messages. A name it had before is forgotten; what is no
    /// leaf of this recorder has none.
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    pub fn set_name(&self, leaf: &Value, name: &str) {
        if let Some(slot) = self.own_slot(leaf)
            && let Some(cell) = slot.node.leaf_name()
        {
            cell.replace(Some(name.into()));
        }
    }

    /// The name of a leaf, if it was given one.
    pub fn name(&self, leaf: &Value) -> Option<Rc<str>> {
        self.own_slot(leaf)?.node.leaf_name()?.borrow().clone()
    }

    /// Removes the hooks of all values. A hook that holds its own value keeps the value, and itself, until this or
    /// [`HookHandle::remove`](crate::HookHandle::remove) is called.
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    pub fn forget_hooks(&self) {
        self.0.census.forget_hooks();
    }

    /// Whether derivatives reach this value.
    pub fn is_tracked(&self, value: &Value) -> bool {
        self.own_slot(value).is_some_and(|slot| !slot.frozen)
    }

    /// Whether the value was made by [`leaf`](Self::leaf).
    pub fn is_leaf(&self, value: &Value) -> bool {
        self.own_slot(value).is_some_and(|s| s.node.is_leaf())
    }

    /// The id of a tracked value, or of a leaf that is [frozen](Self::frozen): equal for its clones, and the same on every rank.
    pub fn id(&self, value: &Value) -> Option<ValueId> {
        Some(self.own_slot(value)?.id())
    }

    /// Whether ops applied now go on the tape.
    pub fn is_recording(&self) -> bool {
        matches!(*self.0.mode.borrow(), Mode::Record | Mode::Again)
    }

    /// A value as what an op results in. Where that is the operand itself, as of a move to the layout it has, it is not tracked if nothing is
    /// recorded: whether it is must not depend on what there was to do.
    pub fn as_result(&self, value: Value) -> Value {
        match value.slot() {
            Some(_) if !self.records() => value.detach(),
            _ => value,
        }
    }

    /// The value in another layout, as an op of its own: also where it lies so already, gradients of one are not those of the other. (What
    /// ops move for themselves they take as it is.)
    ///
    /// # Collective
    /// As [`redistribute`](Exec::redistribute).
    ///
    /// # Errors
    /// As [`redistribute`](Exec::redistribute).
    pub fn moved(&self, value: &Value, to: &Layout) -> Result<Value, OpError> {
        if value.layout() != to {
            return self.redistribute(value, to);
        }
        let parents = self.parents("redistribute", &[value])?;
        Ok(self.record1(parents, value.array().clone(), || Kind::Pass))
    }

    /// Runs `f` without recording: what ops result in is not tracked. Recording goes on afterwards, even after an early return or
    /// a panic.
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    pub fn no_grad<T>(&self, f: impl FnOnce() -> T) -> T {
        self.in_mode(Mode::Off, f).0
    }

    /// Runs `f` with recording, even inside [`no_grad`](Self::no_grad).
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    pub fn enable_grad<T>(&self, f: impl FnOnce() -> T) -> T {
        self.in_mode(Mode::Record, f).0
    }

    /// How many bytes of complete gradients of replicated leaves a backward pass gathers before it starts to sum them over the
    /// ranks while it goes on; 32 MiB at first. What is left is summed when the first gradient is read. [`usize::MAX`] leaves
    /// all of them until then, for accumulating several passes.
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    pub fn set_bucket_bytes(&self, bytes: usize) {
        self.0.bucket_bytes.set(bytes);
    }

    pub(crate) fn bucket_bytes(&self) -> usize {
        self.0.bucket_bytes.get()
    }

    /// Whether leaves that are [gathered for their uses](Self::leaf_used_as) are sent for ahead of them, one at a time on each mesh,
    /// as they are at first; returns what was set before. Without it a rank needs memory for one such leaf less.
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    pub fn set_gathers_ahead(&self, on: bool) -> bool {
        self.0.ahead.set(on)
    }

    pub(crate) fn ahead(&self) -> &Ahead {
        &self.0.ahead
    }

    /// How ops that are applied now use leaves.
    pub(crate) fn uses(&self) -> When {
        match *self.0.mode.borrow() {
            Mode::Off => When::Unrecorded,
            Mode::Record | Mode::Capture(_) => When::Recorded,
            Mode::Again => When::Again,
        }
    }

    /// How many nodes this recorder's tape holds at the moment.
    pub fn live_nodes(&self) -> usize {
        self.0.census.live()
    }

    /// Runs `f` in a mode, and returns the mode as `f` left it.
    pub(crate) fn in_mode<T>(&self, mode: Mode, f: impl FnOnce() -> T) -> (T, Mode) {
        /// Puts the old mode back, whatever happens.
        struct Restore<'a>(&'a RefCell<Mode>, Option<Mode>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                if let Some(old) = self.1.take() {
                    self.0.replace(old);
                }
            }
        }
        let mut restore = Restore(&self.0.mode, Some(self.0.mode.replace(mode)));
        let result = f();
        let old = restore.1.take().unwrap_or(Mode::Record);
        (result, self.0.mode.replace(old))
    }

    pub(crate) fn region(&self) -> &RefCell<Option<Rc<Region>>> {
        &self.0.region
    }

    pub(crate) fn mode(&self) -> &RefCell<Mode> {
        &self.0.mode
    }

    /// Whether vjps come next.
    pub(crate) fn keeps_all(&self) -> bool {
        matches!(*self.0.mode.borrow(), Mode::Again)
    }

    /// The next node's number.
    pub(crate) fn next_id(&self) -> u64 {
        self.0.census.next()
    }

    pub(crate) fn reads(&self) -> &RefCell<Vec<BTreeSet<u64>>> {
        &self.0.reads
    }

    /// The number of the node that took this piece, if the piece is tracked.
    pub(crate) fn piece_number(&self, piece: &Value) -> Option<u64> {
        match self.own_slot(piece)?.node.kind {
            Kind::ToLocal { number, .. } => Some(number),
            _ => None,
        }
    }

    pub(crate) fn census(&self) -> &Rc<Census> {
        &self.0.census
    }

    /// The slot of a value on this tape.
    pub(crate) fn own_slot(&self, value: &Value) -> Option<Rc<Slot>> {
        Slot::of(value).filter(|s| Rc::ptr_eq(&s.node.census, &self.0.census))
    }

    /// The slot of a value that must be on this tape, and no frozen leaf.
    pub(crate) fn slot_of(&self, op: &'static str, what: &str, value: &Value) -> Result<Rc<Slot>> {
        self.own_slot(value)
            .filter(|slot| !slot.frozen)
            .ok_or_else(|| AutogradError::NotTracked {
                op,
                what: what.to_owned(),
                fix: "make it from a leaf, as `requires_grad` makes one of a tensor, that is neither frozen nor detached, outside of no_grad; a hook records only inside of enable_grad",
            })
    }

    /// Puts an application on the tape if one of its inputs is tracked, and with it its outputs, which no tape knows.
    pub(crate) fn record(
        &self,
        parents: Parents,
        outputs: &mut [Value],
        kind: impl FnOnce(&[Value]) -> Kind,
    ) {
        if parents.iter().any(Option::is_some) {
            self.put(parents, outputs, kind(outputs));
        }
    }

    /// Puts an application on the tape, and with it its outputs.
    #[inline]
    fn put(&self, parents: Parents, outputs: &mut [Value], kind: Kind) {
        let mut outlets = SmallVec::new();
        for output in &*outputs {
            outlets.push(Outlet::of(output.array()));
        }
        let node = Node::new(&self.0.census, kind, parents, outlets);
        for (i, output) in outputs.iter_mut().enumerate() {
            put_on_tape(output, &node, i);
        }
    }

    /// As [`record`](Self::record), for one output.
    pub(crate) fn record1(
        &self,
        parents: Parents,
        output: Array,
        kind: impl FnOnce() -> Kind,
    ) -> Value {
        if parents.iter().all(Option::is_none) {
            return Value::new(output);
        }
        let outlets = SmallVec::from_buf([Outlet::of(&output)]);
        let node = Node::new(&self.0.census, kind(), parents, outlets);
        on_tape(output, &node, 0)
    }

    /// The operands, with those summed over ranks of which the op takes the sum first; empty if it does so of none. The sum is a
    /// move on the tape, so that vjps read it and do not take it again.
    fn summed_first<'a>(
        &self,
        op: &Arc<dyn Op>,
        inputs: &[&'a Value],
    ) -> Result<SmallVec<[Cow<'a, Value>; 3]>, OpError> {
        let sums = self.0.exec.sums_first(op, inputs)?;
        if sums.iter().all(Option::is_none) {
            return Ok(SmallVec::new());
        }
        let mut settled: SmallVec<[Cow<'a, Value>; 3]> = SmallVec::with_capacity(inputs.len());
        for (i, (&value, sum)) in inputs.iter().zip(sums).enumerate() {
            let id = self.id(value);
            // An op of a value with itself needs its sum once.
            let same = |j: &usize| id.is_some() && self.id(inputs[*j]) == id;
            settled.push(match (sum, (0..i).find(same)) {
                (Some(sum), Some(j)) if *settled[j].layout() == sum => settled[j].clone(),
                (Some(sum), _) => Cow::Owned(self.redistribute(value, &sum)?),
                (None, _) => Cow::Borrowed(value),
            });
        }
        Ok(settled)
    }

    /// Ranks compare whether what they apply goes on the tape: the backward pass has to be the same on all.
    fn tell_tracked(&self, parents: &[Option<Rc<Slot>>], inputs: &[&Value]) {
        if let (Some(first), true) = (inputs.first(), parents.iter().any(Option::is_some)) {
            first.array().cx().history().will_track();
        }
    }

    /// Where the inputs came from, as far as the present mode needs to know.
    pub(crate) fn parents(&self, op: &'static str, inputs: &[&Value]) -> Result<Parents, OpError> {
        let mode = &mut *self.0.mode.borrow_mut();
        let mut parents = Parents::new();
        for (operand, input) in inputs.iter().enumerate() {
            if input.slot().is_none() || matches!(mode, Mode::Off) {
                parents.push(None);
                continue;
            }
            // A value of another tape is not a constant: treating it as one would lose its gradient silently.
            let Some(slot) = self.own_slot(input) else {
                return Err(OpError::OtherTape { op, operand });
            };
            parents.push(match mode {
                Mode::Capture(seen) => {
                    if seen.iter().all(|s| s.id() != slot.id()) {
                        seen.push(slot);
                    }
                    None
                }
                _ => Some(slot).filter(|slot| !slot.frozen),
            });
        }
        Ok(parents)
    }
}

/// The leaf's value after the present one.
fn next_of(slot: &Slot, array: Array, frozen: bool) -> Value {
    let mut version = slot.version;
    if let Kind::Leaf(leaf) = &slot.node.kind {
        version = leaf.version.get() + 1;
        leaf.version.set(version);
        if let Some(sharded) = &leaf.used_as {
            sharded.renew(&array, version);
        }
    }
    let slot = Slot {
        node: slot.node.clone(),
        output: slot.output,
        version,
        frozen,
    };
    Value::with_slot(array, Rc::new(slot))
}

impl Exec for Recorder {
    fn records(&self) -> bool {
        !matches!(*self.0.mode.borrow(), Mode::Off)
    }

    // In most programs most operands are used as they are, and each step that brings one to where it is used goes on with the next.
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values, OpError> {
        match (self.casts(), self.0.census.has_used()) {
            (true, _) => self.cast_results(op, inputs),
            (false, true) => self.used_results(op, inputs),
            (false, false) => self.tracked_results(op, inputs),
        }
    }

    fn moves_are_explicit(&self) -> bool {
        self.0.exec.moves_are_explicit()
    }

    fn sums_first(&self, op: &Arc<dyn Op>, inputs: &[&Value]) -> Result<Sums, OpError> {
        self.0.exec.sums_first(op, inputs)
    }

    fn set_terms(&self, terms: usize) -> usize {
        self.0.exec.set_terms(terms)
    }

    fn in_full(&self, value: &Value) -> Result<Value, OpError> {
        self.full(value)
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value, OpError> {
        if value.layout() == to {
            return Ok(self.as_result(value.clone()));
        }
        let parents = self.parents("redistribute", &[value])?;
        self.tell_tracked(&parents, &[value]);
        let moved = self.0.exec.redistribute(value, to)?;
        Ok(self.record1(parents, moved.array().clone(), || Kind::Pass))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("recording", &self.is_recording())
            .field("live_nodes", &self.live_nodes())
            .finish_non_exhaustive()
    }
}

/// How operands become what an op is applied to, and its results what the tape knows.
impl Recorder {
    /// Of operands in the types that the region casts them to.
    #[inline(never)]
    fn cast_results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values, OpError> {
        match self.in_precision(&op, inputs)? {
            None => self.used_results(op, inputs),
            Some(cast) => self.used_results(op, &borrowed(&cast)),
        }
    }

    /// Of operands in the layouts in which ops use them.
    #[inline(never)]
    fn used_results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values, OpError> {
        let used = self.operands(inputs)?;
        self.tracked_results(op, &borrowed(&used))
    }

    fn tracked_results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values, OpError> {
        // On the tape or not: where results lie must not depend on that, as a checkpointed function is run once so and once so.
        if inputs.iter().any(|value| value.layout().is_partial()) {
            let sums = self.summed_first(&op, inputs)?;
            if !sums.is_empty() {
                return self.settled_results(op, &borrowed(&sums));
            }
        }
        self.settled_results(op, inputs)
    }

    /// Of operands whose sums are taken, as far as the op takes them first.
    fn settled_results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values, OpError> {
        // What no tape knows has no parents.
        if inputs.iter().all(|value| value.slot().is_none()) {
            return self.0.exec.results(op, inputs);
        }
        let parents = self.parents(op.name(), inputs)?;
        if parents.iter().all(Option::is_none) {
            return self.0.exec.results(op, inputs);
        }
        self.recorded_results(op, inputs, parents)
    }

    /// Of operands that are on the tape. It keeps of them, and of the outputs, the elements that the op's vjp will look at. Of others
    /// a vjp may still ask for the layout.
    fn recorded_results(
        &self,
        op: Arc<dyn Op>,
        inputs: &[&Value],
        mut parents: Parents,
    ) -> Result<Values, OpError> {
        self.tell_tracked(&parents, inputs);
        self.add_frozen(&mut parents, inputs);
        let mut outputs = self.0.exec.results(op.clone(), inputs)?;
        let keeps = op.keeps();
        let again = self.made_again(&parents);
        let mut kept: SmallVec<[Kept; 3]> = SmallVec::new();
        for (i, (value, parent)) in inputs.iter().zip(&parents).enumerate() {
            let array = value.array();
            kept.push(match (keeps.input(i) && !again.contains(&i), parent) {
                (true, _) => Kept::Array(array.clone()),
                (false, Some(_)) => Kept::Number(array.number()),
                (false, None) => Kept::Array(array.without_data()),
            });
        }
        for (o, value) in outputs.iter().enumerate() {
            let array = value.array();
            kept.push(match keeps.output(o) {
                true => Kept::Array(array.clone()),
                false => Kept::Number(array.number()),
            });
        }
        self.put(parents, &mut outputs, Kind::Op { op, kept, again });
        Ok(outputs)
    }
}

fn borrowed<'a>(values: &'a [Cow<'_, Value>]) -> SmallVec<[&'a Value; 3]> {
    values.iter().map(|value| &**value).collect()
}
