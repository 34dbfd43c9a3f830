//! An operation that its rank has started but that the backend has not seen yet, because others go ahead of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::{Buffer, CommError, Communicator, DeviceRef, Handle, Result};
use crate::{Link, Pending, Request};

/// What keeps its order: the operations of a group (`None`), or the messages to or from a peer on one side.
pub(super) type Lane = Option<(usize, usize)>;

/// The operation that is held back.
pub(super) enum What {
    Operation(Request),
    Message(Link),
}

/// The one operation of a rank that is held back, if there is one, and the numbers of others that could have been overtaken.
#[derive(Default)]
pub(super) struct Waiting {
    held: RefCell<Option<Rc<Held>>>,
    /// The last operation of each group's lanes since the rank last waited, and its number. A new group comes from a split, which
    /// waits; so within this list the address of a group identifies it.
    last: RefCell<Vec<(*const (), Lane, u64)>>,
    /// The numbers of operations that were followed by another one of their lane before the rank waited.
    followed: RefCell<Vec<u64>>,
}

/// An operation that is held back.
struct Held {
    comm: Rc<dyn Communicator>,
    lane: Lane,
    overtaken: bool,
    what: Cell<Option<What>>,
    /// The backend's answer, once the operation has started.
    started: Cell<Option<Result<Handle>>>,
}

impl Held {
    fn shares(&self, comm: &Rc<dyn Communicator>, lane: Lane) -> bool {
        std::ptr::addr_eq(Rc::as_ptr(&self.comm), Rc::as_ptr(comm)) && self.lane == lane
    }

    fn start(&self) {
        let started = self.what.take().map(|what| match what {
            What::Operation(request) => self.comm.post(request),
            What::Message(link) => self.comm.post_link(link),
        });
        self.started.set(started);
    }
}

impl Waiting {
    /// Holds an operation back until the next one of its lane starts, which goes ahead if this one is `overtaken`, or until
    /// the rank waits for anything.
    pub(super) fn hold(
        self: &Rc<Self>,
        comm: &Rc<dyn Communicator>,
        lane: Lane,
        overtaken: bool,
        what: What,
    ) -> Handle {
        self.start_held();
        let held = Rc::new(Held {
            comm: Rc::clone(comm),
            lane,
            overtaken,
            what: Cell::new(Some(what)),
            started: Cell::new(None),
        });
        *self.held.borrow_mut() = Some(Rc::clone(&held));
        Handle::new(Box::new(Late {
            waiting: Rc::clone(self),
            held,
        }))
    }

    /// Notes that an operation starts.
    pub(super) fn note(&self, comm: &Rc<dyn Communicator>, lane: Lane, call: u64) {
        let (group, mut last) = (Rc::as_ptr(comm).cast(), self.last.borrow_mut());
        let before = last.iter_mut().find(|(g, l, _)| *g == group && *l == lane);
        if let Some((_, _, before)) = before {
            self.followed.borrow_mut().push(*before);
            *before = call;
        } else {
            last.push((group, lane, call));
        }
    }

    /// The numbers of operations that another could overtake.
    pub(super) fn followed(&self) -> Vec<u64> {
        self.followed.borrow().clone()
    }

    /// The rank waits: starts the operation that is held back.
    pub(super) fn release(&self) {
        self.last.borrow_mut().clear();
        self.start_held();
    }

    fn start_held(&self) {
        let held = self.held.borrow_mut().take();
        if let Some(held) = held {
            held.start();
        }
    }

    /// Called before an operation starts: starts the one that is held back, if it is of the same lane and must not be overtaken.
    pub(super) fn before(&self, comm: &Rc<dyn Communicator>, lane: Lane) {
        self.release_if(|held| !held.overtaken && held.shares(comm, lane));
    }

    /// Called after an operation has started: starts the one that is held back, if it is of the same lane.
    pub(super) fn after(&self, comm: &Rc<dyn Communicator>, lane: Lane) {
        self.release_if(|held| held.shares(comm, lane));
    }

    fn release_if(&self, due: impl Fn(&Held) -> bool) {
        let due = self.held.borrow().as_deref().is_some_and(due);
        if due {
            self.start_held();
        }
    }

    /// A handle that starts the operation that is held back before it waits: otherwise its rank would wait for ranks that wait
    /// for it.
    pub(super) fn watch(self: &Rc<Self>, comm: &Rc<dyn Communicator>, handle: Handle) -> Handle {
        Handle::new(Box::new(Watched {
            waiting: Rc::clone(self),
            comm: Rc::clone(comm),
            handle: Some(handle),
        }))
    }
}

/// The handle of an operation that is held back.
struct Late {
    waiting: Rc<Waiting>,
    held: Rc<Held>,
}

impl Pending for Late {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        self.waiting.release();
        match self.held.started.take() {
            Some(started) => started?.wait_optional(),
            None => Err(CommError::Closed { op: "wait" }),
        }
    }

    // Asking whether it is done counts as waiting.
    fn is_done(&mut self) -> bool {
        self.waiting.release();
        let mut started = self.held.started.take();
        let done = match &mut started {
            Some(Ok(handle)) => handle.is_done(),
            Some(Err(_)) | None => true,
        };
        self.held.started.set(started);
        done
    }

    #[cfg(feature = "nccl")]
    fn rest(&mut self) {
        self.waiting.release();
        let mut started = self.held.started.take();
        if let Some(Ok(handle)) = &mut started {
            handle.rest();
        }
        self.held.started.set(started);
    }

    fn device(&self) -> &DeviceRef {
        self.held.comm.device()
    }

    fn park(&mut self) {
        // A rank that panics starts nothing more.
        if !std::thread::panicking() {
            self.waiting.release();
        }
        drop(self.held.started.take());
    }
}

/// The handle of another operation of the rank.
struct Watched {
    waiting: Rc<Waiting>,
    comm: Rc<dyn Communicator>,
    handle: Option<Handle>,
}

impl Pending for Watched {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        self.waiting.release();
        match self.handle.take() {
            Some(handle) => handle.wait_optional(),
            None => Err(CommError::Closed { op: "wait" }),
        }
    }

    fn is_done(&mut self) -> bool {
        self.waiting.release();
        self.handle.as_mut().is_none_or(Handle::is_done)
    }

    #[cfg(feature = "nccl")]
    fn rest(&mut self) {
        self.waiting.release();
        if let Some(handle) = &mut self.handle {
            handle.rest();
        }
    }

    fn device(&self) -> &DeviceRef {
        self.comm.device()
    }

    fn park(&mut self) {
        drop(self.handle.take());
    }
}
