//! One rank's place in a group of the library's.

use std::cell::RefCell;

use super::library::{Batch, Clique, Patience, failed};
use crate::Result;
use crate::cuda::Cuda;

/// A communicator of the library, until its rank ends.
#[derive(Debug, Default)]
pub(super) struct GroupHandle(RefCell<Option<Box<dyn Clique>>>);

impl GroupHandle {
    pub(super) fn new(clique: Option<Box<dyn Clique>>) -> Self {
        Self(RefCell::new(clique))
    }

    /// Queues calls, if there are any.
    pub(super) fn queue(
        &self,
        batch: &mut Batch,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<()> {
        if batch.calls.is_empty() {
            return batch.in_use(stream);
        }
        match &*self.0.borrow() {
            Some(clique) => clique.queue(batch, stream, patience),
            None => Err(failed("ncclGroupEnd", "the communicator has ended")),
        }
    }

    pub(super) fn split(
        &self,
        color: Option<usize>,
        key: usize,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Self> {
        match &*self.0.borrow() {
            Some(clique) => clique.split(color, key, stream, patience).map(Self::new),
            // A rank alone has nobody to split from.
            None => Ok(Self::default()),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.0
            .borrow()
            .as_ref()
            .map_or(Ok(()), |clique| clique.check())
    }

    pub(super) fn abort(&self) {
        if let Some(clique) = &*self.0.borrow() {
            clique.abort();
        }
    }

    /// Leaves the group.
    pub(super) fn leave(&self) {
        drop(self.0.borrow_mut().take());
    }
}
