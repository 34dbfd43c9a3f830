//! What a program did on a mesh, and communicators that compare it.

use shard_comm::backend::Decorator;
use shard_comm::{Buffer, CommError, Communicator, Handle, Request, Result};
use std::cell::Cell;
use std::rc::Rc;

/// The prime of the 128-bit hash of Fowler, Noll and Vo.
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// A running fingerprint of what the program did on a mesh; clones are the same.
///
/// Ranks run one program, so it is equal on all of them wherever they meet. Where one took another turn in which nothing had
/// to be sent (another pointwise op, other extents, one more random tensor), it differs, and they are told at their next
/// operation.
#[derive(Clone, Default, Debug)]
pub(crate) struct History(Rc<Cell<u128>>);

impl History {
    pub(crate) fn record(&self, call: u128) {
        let mixed = (self.0.get() ^ call).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        self.0.set(mixed.rotate_left(17));
    }

    /// Starts anew, after ranks have learnt of a disagreement.
    pub(crate) fn forget(&self) {
        self.0.set(0);
    }
}

/// A group of a mesh, each of whose operations compares the mesh's history.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) group: Rc<dyn Communicator>,
    pub(crate) history: History,
}

impl Compared {
    /// The request with one more argument that must be equal on all ranks. Counts of elements and roots follow from the
    /// program here, so they are compared with its history as one number; other arguments are told by their name.
    fn with_history(&self, mut request: Request) -> Request {
        let history = self.history.0.get();
        request.argument = match request.argument {
            None => Some(("the calls before it", history)),
            Some(("length" | "root", value)) => {
                let both = (history ^ value).wrapping_mul(PRIME).rotate_left(29);
                Some(("the calls before it, or its arguments", both))
            }
            other => other,
        };
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
        self.group.post(self.with_history(request))
    }

    fn call(&self, request: Request) -> Result<Option<Buffer>> {
        let result = self.group.call(self.with_history(request));
        if matches!(result, Err(CommError::Mismatch(_))) {
            self.history.forget();
        }
        result
    }
}
