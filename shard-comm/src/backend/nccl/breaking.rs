//! An emulated library that fails, for tests.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::emulated::Emulated;
use super::library::{Batch, Clique, Library, Patience, Ticket, Version, failed};
use super::member::NcclComm;
use super::options::NcclOptions;
use crate::cuda::Cuda;
use crate::{Communicator, DeviceRef, Result};

/// What goes wrong in the library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Break {
    /// A group of calls is refused.
    Refuse,
    /// Calls are lost, and the library says so.
    AsyncError,
    /// Calls are lost, so that nothing arrives.
    Lose,
    /// A call is never done.
    Stall,
}

/// A communicator over an emulated library that fails after two groups of calls, at one rank or at all.
///
/// # Errors
/// As for any.
///
/// # Collective
/// All ranks of `control`.
pub fn over_breaking(
    control: Rc<dyn Communicator>,
    device: &DeviceRef,
    options: &NcclOptions,
    rank: Option<usize>,
    fault: Break,
) -> Result<NcclComm> {
    let library = Rc::new(Breaking {
        rank,
        after: 2,
        fault,
    });
    NcclComm::with_library(control, device, options, Ok(library))
}

/// A library that fails at one rank after a number of groups of calls.
#[derive(Debug)]
struct Breaking {
    rank: Option<usize>,
    after: usize,
    fault: Break,
}

#[derive(Debug)]
struct Broken {
    clique: Box<dyn Clique>,
    left: Rc<Cell<usize>>,
    fault: Break,
    /// Whether a call is under way that will never be done.
    stuck: Cell<bool>,
}

impl Library for Breaking {
    fn version(&self) -> Version {
        Version::SHARES_GPUS
    }

    fn ticket(&self) -> Result<Ticket> {
        Emulated.ticket()
    }

    fn gpu(&self, stream: &Cuda) -> Result<[u8; 16]> {
        Emulated.gpu(stream)
    }

    fn join(
        &self,
        ticket: &Ticket,
        rank: usize,
        size: usize,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Box<dyn Clique>> {
        let clique = Emulated.join(ticket, rank, size, stream, patience)?;
        let mine = self.rank.is_none_or(|broken| broken == rank);
        Ok(Box::new(Broken {
            clique,
            left: Rc::new(Cell::new(if mine { self.after } else { usize::MAX })),
            fault: self.fault,
            stuck: Cell::new(false),
        }))
    }
}

impl Clique for Broken {
    fn begin(&self, batch: &mut Batch, stream: &Cuda) -> Result<()> {
        if let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            return self.clique.begin(batch, stream);
        }
        self.stuck.set(self.fault == Break::Stall);
        match self.fault {
            Break::Refuse => Err(failed("ncclGroupEnd", "refused")),
            Break::Stall => Ok(()),
            // Somebody has to wait for the result.
            Break::AsyncError | Break::Lose => {
                batch.calls.clear();
                Ok(stream.queue_emulated(|| std::thread::sleep(Duration::from_millis(600)))?)
            }
        }
    }

    fn is_queued(&self, stream: &Cuda) -> Result<bool> {
        Ok(!self.stuck.get() && self.clique.is_queued(stream)?)
    }

    fn split(
        &self,
        color: Option<usize>,
        key: usize,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Option<Box<dyn Clique>>> {
        self.clique.split(color, key, stream, patience)
    }

    fn check(&self) -> Result<()> {
        match (self.left.get(), self.fault) {
            (0, Break::AsyncError) => Err(failed("ncclCommGetAsyncError", "the network failed")),
            _ => self.clique.check(),
        }
    }

    fn abort(&self) {
        self.clique.abort();
    }
}
