//! Nodes of the graph: what was done to what, in which order.

use crate::ahead::Sharded;
use crate::by_hand::ByHand;
use crate::hook::{GradientHook, Hook};
use crate::recompute::Body;
use shard_comm::DType;
use shard_ops::{Op, Value};
use shard_redistribute::{Array, MeshComm};
use shard_spec::Layout;
use smallvec::SmallVec;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// The id of a value on a tape: equal for clones of a value, different for any two other values of one recorder.
///
/// It is the same on every rank, since all ranks run the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ValueId {
    /// Creation number of the node.
    pub(crate) node: u64,
    /// Which of its outputs.
    pub(crate) output: usize,
}

/// What the recorder keeps in a value's slot: the node that made it, and which output it is.
pub(crate) struct Slot {
    pub(crate) node: Rc<Node>,
    pub(crate) output: usize,
    /// How many arrays the node had before the value's, if it is a leaf.
    pub(crate) version: u64,
    /// Whether the value is that of a frozen leaf: no derivative is wanted, and the node only says where vjps find it.
    pub(crate) frozen: bool,
}

impl Slot {
    /// The slot of a value, if a tape put one there.
    pub(crate) fn of(value: &Value) -> Option<Rc<Self>> {
        value.slot().cloned()?.downcast().ok()
    }

    pub(crate) fn id(&self) -> ValueId {
        ValueId {
            node: self.node.id,
            output: self.output,
        }
    }

    /// The layout, type and mesh of the value.
    pub(crate) fn outlet(&self) -> &Outlet {
        &self.node.outlets[self.output]
    }
}

/// One application on the tape.
///
/// Nothing lists the nodes: values hold the nodes that made them, nodes hold those of their inputs, and
/// dropping the last value frees its graph.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) parents: Parents,
    pub(crate) outlets: SmallVec<[Outlet; 1]>,
    pub(crate) hooks: RefCell<Vec<Hook>>,
    pub(crate) census: Rc<Census>,
}

/// Where each input came from; `None` for constants.
pub(crate) type Parents = SmallVec<[Option<Rc<Slot>>; 3]>;

/// What a node stands for.
pub(crate) enum Kind {
    /// A leaf: derivatives are wanted with respect to it.
    Leaf(Leaf),
    /// An applied op, with the arrays that its vjp may look at.
    Op {
        op: Arc<dyn Op>,
        /// The inputs, and after them the outputs.
        kept: SmallVec<[Kept; 3]>,
        /// Inputs that are gathered again instead of being kept.
        again: SmallVec<[usize; 3]>,
    },
    /// A move of one input, or a sum of several. As a map of global tensors it is the identity in each of them, so the
    /// cotangent goes to every parent as it is, label included.
    Pass,
    /// A leaf that was brought to the layout it is used in. As a map it is a move. What ops read of it is not kept for their
    /// vjps, which bring the leaf's array, kept here, there again.
    Use(Array),
    /// A move to another mesh.
    ToMesh,
    /// A function that will be run again to find its derivative.
    Recompute {
        body: Rc<Body>,
        inputs: Vec<Array>,
        /// The leaves that the function used and that are not its inputs, with the number of arrays each had had by then.
        captured: Vec<(Rc<Slot>, u64)>,
    },
    /// This rank's piece of a value.
    ToLocal {
        /// The layout of the value that the cotangents of the pieces form.
        cotangent: Layout,
        /// Counts nodes of this kind alone. It is the same on every rank, unlike the numbers of nodes that lie between pieces.
        number: u64,
    },
    /// One value made of the ranks' pieces.
    FromLocal {
        /// The label under which the pieces see the value's cotangent.
        cotangent: Layout,
        /// Whether this rank's piece gets its piece of the cotangent, or zeros.
        counts: bool,
    },
    /// A function of pieces whose derivative is written by hand.
    ByHand(ByHand),
    /// The first parent, unchanged. The value is recorded as depending on the others because it may on another rank.
    Anchor,
}

/// What a node keeps of an operand or of an output.
pub(crate) enum Kept {
    /// The array, perhaps without elements.
    Array(Array),
    /// The [number](Array::number) alone of one whose elements no vjp looks at, and of which the outlet that it came from knows the rest.
    Number(u64),
}

impl Kept {
    /// The array that came from this outlet, if that is known.
    pub(crate) fn array(&self, outlet: Option<&Outlet>) -> Array {
        match (self, outlet) {
            (Self::Array(array), _) => array.clone(),
            (Self::Number(number), Some(Outlet { layout, dtype, cx })) => {
                let array = Array::on_mesh(cx, layout.clone(), None, *dtype).with_number(*number);
                array.without_data()
            }
            (Self::Number(_), None) => unreachable!("where it came from is known"),
        }
    }
}

/// What is particular to a leaf.
#[derive(Default)]
pub(crate) struct Leaf {
    /// How many arrays it has had before the present one.
    pub(crate) version: Cell<u64>,
    pub(crate) name: LeafName,
    /// The layout in which ops use it, where that is another than its own, and what is sent for then.
    pub(crate) used_as: Option<Rc<Sharded>>,
}

/// The name of a leaf, which its gradients share.
pub(crate) type LeafName = Rc<RefCell<Option<Rc<str>>>>;

/// What is known of a value without its data.
#[derive(Clone)]
pub(crate) struct Outlet {
    pub(crate) layout: Rc<Layout>,
    pub(crate) dtype: DType,
    pub(crate) cx: Rc<MeshComm>,
}

impl Outlet {
    pub(crate) fn of(array: &Array) -> Self {
        Self {
            layout: array.shared_layout().clone(),
            dtype: array.dtype(),
            cx: array.cx().clone(),
        }
    }
}

/// Counts a recorder's nodes, and tells them from those of other recorders.
#[derive(Debug, Default)]
pub(crate) struct Census {
    next: Cell<u64>,
    live: Cell<usize>,
    pieces: Cell<u64>,
    hooks: Cell<u64>,
    /// Whether some leaf is used in another layout than its own.
    used: Cell<bool>,
    /// The nodes that have or had hooks.
    hooked: RefCell<Vec<Weak<Node>>>,
    /// Functions of users that nodes had, while they are [dropped](Self::bury).
    remains: RefCell<Vec<Box<dyn Any>>>,
    burying: Cell<bool>,
}

impl Census {
    /// The number the next node will get.
    pub(crate) fn next(&self) -> u64 {
        self.next.get()
    }

    /// A number for the next node of a piece.
    pub(crate) fn next_piece(&self) -> u64 {
        self.pieces.replace(self.pieces.get() + 1)
    }

    /// A key for the next hook.
    pub(crate) fn next_hook(&self) -> u64 {
        self.hooks.replace(self.hooks.get() + 1)
    }

    /// Notes that some leaf is used in another layout than its own.
    pub(crate) fn note_used(&self) {
        self.used.set(true);
    }

    /// Whether some leaf is, so that operands have to be looked at.
    pub(crate) fn has_used(&self) -> bool {
        self.used.get()
    }

    /// Remembers a node that gets its first hook.
    pub(crate) fn add_hooked(&self, node: &Rc<Node>) {
        let mut hooked = self.hooked.borrow_mut();
        // Those that are gone are left out before it grows, to twice the others: at each node that would be quadratic.
        if hooked.len() == hooked.capacity() {
            hooked.retain(|node| node.strong_count() > 0);
            let others = hooked.len();
            hooked.reserve(others + 1);
        }
        hooked.push(Rc::downgrade(node));
    }

    /// Removes all hooks.
    pub(crate) fn forget_hooks(&self) {
        let hooked = self.hooked.take();
        // Dropping a hook may drop the last handle of a node, so nothing stays borrowed meanwhile.
        for node in hooked.iter().filter_map(Weak::upgrade) {
            drop(node.hooks.take());
        }
    }

    /// Drops functions of users, which may hold values, and so nodes with functions that hold values: one after the other, since
    /// recursion would overflow the stack on a long chain.
    fn bury(&self, remains: impl Any) {
        struct Over<'a>(&'a Cell<bool>);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        self.remains.borrow_mut().push(Box::new(remains));
        if self.burying.replace(true) {
            return;
        }
        let _over = Over(&self.burying);
        loop {
            // Dropping it may add others, so nothing stays borrowed meanwhile.
            let Some(next) = self.remains.borrow_mut().pop() else {
                break;
            };
            drop(next);
        }
    }

    /// How many nodes are alive.
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }
}

impl Node {
    #[inline]
    pub(crate) fn new(
        census: &Rc<Census>,
        kind: Kind,
        parents: Parents,
        outlets: SmallVec<[Outlet; 1]>,
    ) -> Rc<Self> {
        let id = census.next.get();
        census.next.set(id + 1);
        census.live.set(census.live.get() + 1);
        Rc::new(Self {
            id,
            kind,
            parents,
            outlets,
            hooks: RefCell::default(),
            census: census.clone(),
        })
    }

    /// Lets go of the parents, of which those that nobody else has are left to the caller.
    fn give_up(&mut self, orphans: &mut SmallVec<[Slot; 4]>) {
        for parent in &mut self.parents {
            if let Some(slot) = parent.take().and_then(Rc::into_inner) {
                orphans.push(slot);
            }
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Leaf(_) => "leaf",
            Kind::Op { op, .. } => op.name(),
            Kind::Pass => "redistribute",
            Kind::Use(_) => "gather",
            Kind::ToMesh => "to_mesh",
            Kind::Recompute { .. } => "recompute",
            Kind::ToLocal { .. } => "to_local",
            Kind::FromLocal { .. } => "from_local",
            Kind::ByHand(_) => "map_local_with_grad",
            Kind::Anchor => "map_local",
        }
    }

    /// The hooks on an output, in the order in which they were put there.
    pub(crate) fn hooks_of(&self, output: usize) -> Vec<GradientHook> {
        let hooks = self.hooks.borrow();
        let own = hooks.iter().filter(|hook| hook.output == output);
        own.map(|hook| hook.run.clone()).collect()
    }

    pub(crate) fn is_leaf(&self) -> bool {
        matches!(self.kind, Kind::Leaf(_))
    }

    /// The name of the leaf, if it is one.
    pub(crate) fn leaf_name(&self) -> Option<&LeafName> {
        match &self.kind {
            Kind::Leaf(leaf) => Some(&leaf.name),
            _ => None,
        }
    }

    /// What ops use of it in another layout than its own, if it is such a leaf.
    pub(crate) fn sharded(&self) -> Option<&Rc<Sharded>> {
        match &self.kind {
            Kind::Leaf(leaf) => leaf.used_as.as_ref(),
            _ => None,
        }
    }

    /// Whether what it gave is made anew where a vjp reads it.
    pub(crate) fn is_use(&self) -> bool {
        matches!(self.kind, Kind::Use(_))
    }

    /// How many arrays the node has had before the present one, if it is a leaf.
    pub(crate) fn version(&self) -> Option<u64> {
        match &self.kind {
            Kind::Leaf(leaf) => Some(leaf.version.get()),
            _ => None,
        }
    }
}

/// The value of an array as output number `output` of `node`. Values that have no derivative stay off the tape.
pub(crate) fn on_tape(array: Array, node: &Rc<Node>, output: usize) -> Value {
    let mut value = Value::new(array);
    put_on_tape(&mut value, node, output);
    value
}

/// As [`on_tape`], of a value that no tape knows.
pub(crate) fn put_on_tape(value: &mut Value, node: &Rc<Node>, output: usize) {
    if value.dtype().is_float() {
        value.set_slot(Rc::new(Slot {
            node: node.clone(),
            output,
            version: 0,
            frozen: false,
        }));
    }
}

impl Drop for Node {
    /// Frees the ancestors that only this node kept alive, in a loop, since recursion would overflow the stack on a long
    /// chain.
    fn drop(&mut self) {
        self.census
            .live
            .set(self.census.live.get().saturating_sub(1));
        if let Some(sharded) = self.sharded() {
            sharded.release();
        }
        let mut orphans: SmallVec<[Slot; 4]> = SmallVec::new();
        self.give_up(&mut orphans);
        while let Some(Slot { node, .. }) = orphans.pop() {
            if let Some(mut node) = Rc::into_inner(node) {
                node.give_up(&mut orphans);
            }
        }
        let is_of_users = matches!(self.kind, Kind::Recompute { .. } | Kind::ByHand(_));
        if is_of_users || !self.hooks.get_mut().is_empty() {
            let kind = std::mem::replace(&mut self.kind, Kind::Anchor);
            self.census.bury((kind, self.hooks.take()));
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name(), self.id)
    }
}
