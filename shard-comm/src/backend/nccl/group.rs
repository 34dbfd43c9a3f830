//! One rank's place in a group of the library.

use std::cell::RefCell;
use std::rc::Rc;

use super::library::{Batch, Call, Clique, Patience, Sink, Source, cuda, failed};
use crate::cuda::Cuda;
use crate::{DType, DeviceRef, Result};

/// A communicator of the library, until its rank ends.
#[derive(Debug, Default)]
pub(super) struct GroupHandle(RefCell<Option<Box<dyn Clique>>>);

impl GroupHandle {
    pub(super) fn new(clique: Option<Box<dyn Clique>>) -> Self {
        Self(RefCell::new(clique))
    }

    fn begin(&self, batch: &mut Batch, stream: &Cuda) -> Result<()> {
        if batch.calls.is_empty() {
            return Ok(());
        }
        match &*self.0.borrow() {
            Some(clique) => clique.begin(batch, stream),
            None => Err(failed("ncclGroupEnd", "the communicator has ended")),
        }
    }

    fn is_queued(&self, stream: &Cuda) -> Result<bool> {
        (self.0.borrow().as_ref()).map_or(Ok(true), |clique| clique.is_queued(stream))
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
            // A rank alone in its group has no communicator to split from.
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

/// A group of calls on its way to a stream, and the memory that they name.
#[derive(Debug)]
pub(super) struct Calls {
    group: Rc<GroupHandle>,
    stream: DeviceRef,
    /// The batch, until all of it is queued.
    batch: Option<Batch>,
}

impl Calls {
    /// Begins to queue calls, if there are any.
    ///
    /// # Errors
    /// Errors of the library.
    pub(super) fn begin(
        group: &Rc<GroupHandle>,
        stream: &DeviceRef,
        mut batch: Batch,
    ) -> Result<Self> {
        let begun = group.begin(&mut batch, cuda(stream)?);
        let calls = Self {
            group: Rc::clone(group),
            stream: DeviceRef::clone(stream),
            batch: Some(batch),
        };
        begun.map(|()| calls)
    }

    /// The batch, once everything is queued. Its memory is in use until the stream has done the work.
    ///
    /// # Errors
    /// Errors of the library.
    pub(super) fn queued(&mut self) -> Result<Option<Batch>> {
        let stream = cuda(&self.stream)?;
        if !self.group.is_queued(stream)? {
            return Ok(None);
        }
        if let Some(batch) = &self.batch {
            batch.in_use(stream)?;
        }
        Ok(self.batch.take())
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            // A part may be queued already. The memory is not used again before the stream is past it.
            self.group.abort();
            if let Ok(stream) = cuda(&self.stream) {
                drop(batch.in_use(stream));
            }
        }
    }
}

/// Connects every rank of a group with every other one, in both directions. This is for messages: two ranks may see different
/// messages first, while the library connects a pair only if both come with the same message.
///
/// # Collective
/// All ranks of the group.
///
/// # Errors
/// Errors of the library.
pub(super) fn connect_all(
    group: &Rc<GroupHandle>,
    stream: &DeviceRef,
    me: usize,
    ranks: usize,
    patience: Patience<'_>,
) -> Result<()> {
    let mut batch = Batch::default();
    let read = batch.read(stream.upload_slice(&vec![0_u8; ranks])?);
    let write = batch.write(stream.alloc(DType::U8, ranks)?);
    for peer in (0..ranks).filter(|&peer| peer != me) {
        let range = peer..peer + 1;
        batch.calls.push(Call::Send {
            to: peer,
            from: Source {
                read,
                range: range.clone(),
            },
        });
        let into = Sink { write, range };
        batch.calls.push(Call::Recv { from: peer, into });
    }
    let mut calls = Calls::begin(group, stream, batch)?;
    while calls.queued()?.is_none() {
        patience()?;
        std::thread::yield_now();
    }
    Ok(())
}
