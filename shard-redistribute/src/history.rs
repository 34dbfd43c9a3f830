//! Communicators that compare what the program did.

use shard_comm::backend::Decorator;
use shard_comm::{Buffer, Communicator, Handle, History, Request, Result};
use std::rc::Rc;

/// A group of a mesh, each of whose operations compares the mesh's history.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) group: Rc<dyn Communicator>,
    pub(crate) history: History,
}

impl Compared {
    #[inline]
    fn with_past(&self, mut request: Request) -> Request {
        request.past = self.history.past();
        request
    }
}

impl Decorator for Compared {
    fn inner(&self) -> &Rc<dyn Communicator> {
        &self.group
    }

    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator> {
        Rc::new(Self {
            group,
            history: self.history.clone(),
        })
    }

    fn post(&self, request: Request) -> Result<Handle> {
        // A backend may know at once what ranks disagree on, or only when the operation is waited for.
        let posted = self.group.post(self.with_past(request));
        Ok(self.history.heard(posted)?.heard_by(&self.history))
    }

    fn call(&self, request: Request) -> Result<Option<Buffer>> {
        self.history.heard(self.group.call(self.with_past(request)))
    }
}
