//! Communicators that change the behaviour of another one.

mod checked;
mod faulty;

use std::fmt::Debug;
use std::rc::Rc;

pub use checked::{Checks, checked};
pub use faulty::{Fault, FaultKind, Faulty, faulty};

use crate::{
    Buffer, CommError, Communicator, DeviceRef, Handle, Ledger, Link, LinkCost, Nodes, PlanCache,
    Request, Result, Site, Topology,
};

/// A communicator that changes parts of the behaviour of another one and passes on the rest. Every type that implements it is a
/// [`Communicator`], and so are the groups split from it.
///
/// ```
/// use shard_comm::backend::Decorator;
/// use shard_comm::{Communicator, Handle, Request, Result, local};
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// /// Counts the operations of a rank, in all its groups.
/// #[derive(Debug)]
/// struct Counted(Rc<dyn Communicator>, Rc<Cell<usize>>);
///
/// impl Decorator for Counted {
///     fn inner(&self) -> &Rc<dyn Communicator> {
///         &self.0
///     }
///
///     fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator> {
///         Rc::new(Counted(group, self.1.clone()))
///     }
///
///     fn post(&self, request: Request) -> Result<Handle> {
///         self.1.set(self.1.get() + 1);
///         self.0.post(request)
///     }
/// }
///
/// let counts = local::run(2, |comm| {
///     let count = Rc::new(Cell::new(0));
///     let comm: Rc<dyn Communicator> = Rc::new(Counted(Rc::new(comm), count.clone()));
///     comm.barrier()?;
///     comm.split(Some(0), 0)?.unwrap().barrier()?;
///     Ok::<_, shard_comm::CommError>(count.get())
/// })
/// .unwrap();
/// assert_eq!(counts, [Ok(2), Ok(2)]);
/// ```
pub trait Decorator: Debug {
    /// The communicator below.
    fn inner(&self) -> &Rc<dyn Communicator>;

    /// The same decorator around a group split from the communicator below.
    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator>;

    /// See [`Communicator::post`].
    ///
    /// # Errors
    /// Errors of [`Communicator::post`].
    fn post(&self, request: Request) -> Result<Handle> {
        self.inner().post(request)
    }

    /// See [`Communicator::call`].
    ///
    /// # Errors
    /// Errors of [`Communicator::call`].
    fn call(&self, request: Request) -> Result<Option<Buffer>> {
        Decorator::post(self, request)?.wait_optional()
    }

    /// See [`Communicator::post_link`].
    ///
    /// # Errors
    /// Errors of [`Communicator::post_link`].
    fn post_link(&self, link: Link) -> Result<Handle> {
        self.inner().post_link(link)
    }

    /// See [`Communicator::messages`].
    fn messages(&self) -> Option<LinkCost> {
        self.inner().messages()
    }

    /// See [`Communicator::nodes`].
    fn nodes(&self) -> Option<&Nodes> {
        self.inner().nodes()
    }

    /// Called before the group is split, by colors or by naming members.
    ///
    /// # Errors
    /// A reason not to split the group; or a failure.
    fn before_split(&self, _: Site) -> Result<()> {
        Ok(())
    }
}

impl<D: Decorator> Communicator for D {
    fn rank(&self) -> usize {
        self.inner().rank()
    }

    fn size(&self) -> usize {
        self.inner().size()
    }

    fn members(&self) -> &[usize] {
        self.inner().members()
    }

    fn device(&self) -> &DeviceRef {
        self.inner().device()
    }

    fn ledger(&self) -> &Ledger {
        self.inner().ledger()
    }

    fn backend(&self) -> &'static str {
        self.inner().backend()
    }

    fn plans(&self) -> &PlanCache {
        self.inner().plans()
    }

    fn post(&self, request: Request) -> Result<Handle> {
        Decorator::post(self, request)
    }

    fn call(&self, request: Request) -> Result<Option<Buffer>> {
        Decorator::call(self, request)
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        Decorator::post_link(self, link)
    }

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        self.before_split(site)?;
        let group = self.inner().post_split(color, key, site)?;
        Ok(group.map(|group| self.decorate(group)))
    }

    fn post_subgroup(
        &self,
        members: Option<&[usize]>,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        self.before_split(site)?;
        let group = self.inner().post_subgroup(members, site)?;
        Ok(group.map(|group| self.decorate(group)))
    }

    fn topology(&self) -> Option<&Topology> {
        self.inner().topology()
    }

    fn messages(&self) -> Option<LinkCost> {
        Decorator::messages(self)
    }

    fn at_once(&self) -> usize {
        self.inner().at_once()
    }

    fn nodes(&self) -> Option<&Nodes> {
        Decorator::nodes(self)
    }

    fn failure(&self) -> Option<CommError> {
        self.inner().failure()
    }

    fn fail(&self, cause: String) {
        self.inner().fail(cause);
    }
}
