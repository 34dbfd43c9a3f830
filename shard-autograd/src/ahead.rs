//! Parameters that are sent for ahead of their use.
//!
//! While the ops of one layer run, the parameter that is used next is gathered. Which one that is, a backward pass knows from its
//! tape, and a forward pass from the one before: uses come in runs, and a run that begins as an earlier one did is taken to go
//! on like it. If it does not, what was sent for in vain is dropped, and nothing is sent for until the next run.
//!
//! All of that is kept per mesh and follows from its members' uses alone, so that they agree on it.

use crate::node::Outlet;
use shard_comm::{Buffer, Scalar, Strided};
use shard_ops::{Exec, InOp, OpError, Value};
use shard_redistribute::{Array, MeshComm, PlanHandle};
use shard_spec::{Layout, numel};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const OP: &str = "gather";

type Result<T> = std::result::Result<T, OpError>;

/// So many runs are known per mesh: training and evaluation of a few models.
const KNOWN: usize = 8;

/// A run ends after so many uses. Only one that no backward pass follows gets so long.
const LONGEST: usize = 1 << 14;

/// A leaf that ops use in another layout than its own.
pub(crate) struct Sharded {
    outlet: Outlet,
    pub(crate) used_as: Layout,
    /// The present array, until nobody on this rank has the leaf any more.
    array: RefCell<Option<Array>>,
    /// The present array's number.
    number: Cell<u64>,
    /// How many arrays it had before.
    version: Cell<u64>,
}

/// What flies on each mesh, and what is known of the order of uses.
#[derive(Default)]
pub(crate) struct Ahead {
    off: Cell<bool>,
    passes: Cell<u64>,
    meshes: RefCell<Vec<OnMesh>>,
}

/// One mesh.
struct OnMesh {
    cx: Rc<MeshComm>,
    /// At most one parameter, so that memory is needed for no more.
    flight: Option<Flight>,
    run: Run,
    /// The known run that this one follows so far.
    follows: Option<usize>,
    known: Vec<Known>,
}

/// Uses between two backward passes.
#[derive(Default)]
struct Run {
    when: When,
    uses: Vec<Rc<Sharded>>,
}

/// A run that came to its end.
struct Known {
    run: Run,
    /// Whether the last two that began like it were equal, or there was but one.
    trusted: bool,
}

/// When ops use a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum When {
    /// Off the tape. As no backward pass comes, a run ends where its first leaf is used again.
    Unrecorded,
    /// On the tape, or in a function that will run again.
    #[default]
    Recorded,
    /// In a function that runs again.
    Again,
}

/// Who sent for a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// A run of uses.
    Run,
    /// The backward pass of this number.
    Pass(u64),
}

/// A parameter in flight.
struct Flight {
    of: Rc<Sharded>,
    version: u64,
    by: By,
    gather: PlanHandle,
}

impl Sharded {
    pub(crate) fn new(array: &Array, used_as: Layout) -> Rc<Self> {
        Rc::new(Self {
            outlet: Outlet::of(array),
            used_as,
            number: Cell::new(array.number()),
            array: RefCell::new(Some(array.clone())),
            version: Cell::new(0),
        })
    }

    /// Takes note of the leaf's next array, of the given version.
    pub(crate) fn renew(&self, array: &Array, version: u64) {
        self.number.set(array.number());
        self.array.replace(Some(array.clone()));
        self.version.set(version);
    }

    /// Nobody on this rank has the leaf any more.
    pub(crate) fn release(&self) {
        self.array.take();
    }

    /// The present array. Where the leaf is gone it may be alive on another rank, which then sends for it as well: what stands in
    /// for it here is used by nobody, since all ranks would have to.
    fn present(&self) -> Result<Array> {
        if let Some(array) = &*self.array.borrow() {
            return Ok(array.clone());
        }
        let Outlet { layout, dtype, cx } = &self.outlet;
        let zeros = |len: usize| -> Result<Buffer> {
            let mut zeros = cx.device().alloc(*dtype, len).in_op(OP)?;
            let all = Strided::contiguous(&[len]);
            (cx.device().fill(&mut zeros, &all, Scalar::ZERO)).in_op(OP)?;
            Ok(zeros.freeze())
        };
        let shape = layout.local_shape(cx.rank());
        let local = shape.map(|shape| zeros(numel(&shape))).transpose()?;
        let array = Array::from_parts(cx, layout, local, *dtype).in_op(OP)?;
        Ok(array.with_number(self.number.get()))
    }
}

impl Ahead {
    /// Whether anything is sent for ahead; what was set before.
    pub(crate) fn set(&self, on: bool) -> bool {
        if !on {
            self.meshes.borrow_mut().clear();
        }
        !self.off.replace(!on)
    }

    /// The leaf's array of this version as ops use it: what flies, or what is gathered now.
    pub(crate) fn gather(
        &self,
        exec: &dyn Exec,
        leaf: &Rc<Sharded>,
        (own, version): (&Value, u64),
    ) -> Result<Value> {
        let flight = self.on_mesh(leaf, |mesh| {
            let of_leaf = |flight: &mut Flight| Rc::ptr_eq(&flight.of, leaf);
            mesh.flight.take_if(of_leaf)
        });
        match flight {
            Some(flight) if flight.version == version => exec.gather_wait(flight.gather),
            _ => exec.gather(own, &leaf.used_as),
        }
    }

    /// Notes that an op uses the leaf, and sends for the one that is expected next.
    pub(crate) fn used(&self, exec: &dyn Exec, leaf: &Rc<Sharded>, when: When) -> Result<()> {
        if self.off.get() {
            return Ok(());
        }
        match self.on_mesh(leaf, |mesh| mesh.used(leaf, when)) {
            Some(next) => {
                let array = next.present()?;
                self.start(exec, &next, (array, next.version.get()), By::Run)
            }
            None => Ok(()),
        }
    }

    /// Sends for a leaf's array of this version, unless something flies on its mesh.
    pub(crate) fn start(
        &self,
        exec: &dyn Exec,
        leaf: &Rc<Sharded>,
        (array, version): (Array, u64),
        by: By,
    ) -> Result<()> {
        if self.off.get() || self.on_mesh(leaf, |mesh| mesh.flight.is_some()) {
            return Ok(());
        }
        let gather = exec.gather_start(&Value::new(array), &leaf.used_as)?;
        let flight = Flight {
            of: leaf.clone(),
            version,
            by,
            gather,
        };
        self.on_mesh(leaf, |mesh| mesh.flight = Some(flight));
        Ok(())
    }

    /// A number for a backward pass, which visits uses of these leaves: their runs have come to an end.
    pub(crate) fn begin_pass<'a>(&self, leaves: impl Iterator<Item = &'a Rc<Sharded>>) -> By {
        for leaf in leaves {
            self.on_mesh(leaf, OnMesh::end_run);
        }
        By::Pass(self.passes.replace(self.passes.get() + 1))
    }

    /// Drops what this one sent for in vain.
    pub(crate) fn drop_flights(&self, by: By) {
        for mesh in &mut *self.meshes.borrow_mut() {
            mesh.drop_flight(by);
        }
    }

    fn on_mesh<T>(&self, leaf: &Sharded, f: impl FnOnce(&mut OnMesh) -> T) -> T {
        let cx = &leaf.outlet.cx;
        let mut meshes = self.meshes.borrow_mut();
        let known = meshes.iter().position(|mesh| Rc::ptr_eq(&mesh.cx, cx));
        let at = known.unwrap_or_else(|| {
            meshes.push(OnMesh {
                cx: cx.clone(),
                flight: None,
                run: Run::default(),
                follows: None,
                known: Vec::new(),
            });
            meshes.len() - 1
        });
        f(&mut meshes[at])
    }
}

impl OnMesh {
    /// Notes a use; the leaf that is expected next.
    fn used(&mut self, leaf: &Rc<Sharded>, when: When) -> Option<Rc<Sharded>> {
        let again = |first: &Rc<Sharded>| when == When::Unrecorded && Rc::ptr_eq(first, leaf);
        let over = self.run.when != when || self.run.uses.len() >= LONGEST;
        if over || self.run.uses.first().is_some_and(again) {
            self.end_run();
        }
        let at = self.run.uses.len();
        self.run.when = when;
        self.run.uses.push(leaf.clone());
        if at == 0 {
            let begins = |known: &Known| known.run.begins_like(&self.run);
            self.follows = self.known.iter().position(begins);
        }
        let known = &self.known[self.follows?];
        let expected = known.run.uses.get(at);
        if !known.trusted || !expected.is_some_and(|known| Rc::ptr_eq(known, leaf)) {
            self.follows = None;
            self.drop_flight(By::Run);
            return None;
        }
        known.run.uses.get(at + 1).cloned()
    }

    fn end_run(&mut self) {
        self.follows = None;
        self.drop_flight(By::Run);
        let run = std::mem::take(&mut self.run);
        if run.uses.is_empty() {
            return;
        }
        let begins = |known: &Known| known.run.begins_like(&run);
        let trusted = match self.known.iter().position(begins) {
            Some(at) => self.known.remove(at).run.is(&run),
            None => true,
        };
        self.known.truncate(KNOWN - 1);
        self.known.insert(0, Known { run, trusted });
    }

    fn drop_flight(&mut self, by: By) {
        drop(self.flight.take_if(|flight| flight.by == by));
    }
}

impl Run {
    fn begins_like(&self, other: &Self) -> bool {
        let first = self.uses.first().zip(other.uses.first());
        self.when == other.when && first.is_some_and(|(a, b)| Rc::ptr_eq(a, b))
    }

    fn is(&self, other: &Self) -> bool {
        let mut both = self.uses.iter().zip(&other.uses);
        self.uses.len() == other.uses.len() && both.all(|(a, b)| Rc::ptr_eq(a, b))
    }
}
