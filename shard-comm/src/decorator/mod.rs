//! Communicators that change what another one does.

mod checked;
mod faulty;

use std::fmt::Debug;
use std::rc::Rc;

pub use checked::{Checks, checked};
pub use faulty::{Fault, FaultKind, Faulty, faulty};

use crate::{
    CommError, Communicator, DeviceRef, Handle, Ledger, Link, PlanCache, Request, Result, Site,
    Topology,
};

/// A communicator that changes what another one does, and passes on what it does not.
pub(crate) trait Decorator: Debug {
    /// The communicator below.
    fn inner(&self) -> &Rc<dyn Communicator>;

    /// The same around a group split from the one below.
    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator>;

    fn post(&self, request: Request) -> Result<Handle>;

    fn post_link(&self, link: Link) -> Result<Handle>;

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        self.split_inner(color, key, site)
    }

    fn split_inner(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let group = self.inner().post_split(color, key, site)?;
        Ok(group.map(|group| self.decorate(group)))
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

    fn post_link(&self, link: Link) -> Result<Handle> {
        Decorator::post_link(self, link)
    }

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        Decorator::post_split(self, color, key, site)
    }

    fn topology(&self) -> Option<&Topology> {
        self.inner().topology()
    }

    fn failure(&self) -> Option<CommError> {
        self.inner().failure()
    }

    fn fail(&self, cause: String) {
        self.inner().fail(cause);
    }
}
