//! A communicator that has every operation of another one checked.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use super::Decorator;
use crate::guard::Guard;
use crate::{AgreedError, Buffer, Communicator, ExchangePlan, Handle, Result};
use crate::{Link, LinkSide, Request};

/// The optional part of what [`checked`] adds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Checks {
    /// A checksum of everything that moves, which the rank that reads it compares. Each element is then read twice more, and
    /// copied to the host where a device holds it. Between processes every exchange also takes two more rounds, and a
    /// sender waits until the readers have compared what it sent. This is for finding a fault, not for daily use.
    pub checksums: bool,
}

/// Gives every operation a number of its own and, if asked, a checksum of what it moves; the backend compares them.
///
/// Every backend compares anyway what ranks can get wrong by themselves (another operation, plan, type, count). This
/// catches what goes wrong below the caller: an operation that is lost, comes twice, or brings other elements than were
/// sent. A lost or repeated operation ends in the same [`Mismatch`](crate::CommError::Mismatch) on all ranks, or in a
/// [`Deadlock`](crate::CommError::Deadlock) if nothing follows; wrong elements end in a
/// [`PeerFailed`](crate::CommError::PeerFailed) that names sender and reader. All ranks must use the same checks. Splits of the
/// communicator are checked too.
///
/// ```
/// use shard_comm::{checked, faulty, local, Checks, CommError, Fault, FaultKind, Monoid};
/// use std::rc::Rc;
/// // Rank 1 sends a wrong bit in its third operation.
/// let faults = [Fault { rank: 1, call: 2, kind: FaultKind::Corrupt }];
/// let errors = local::run(2, |comm| {
///     let comm = checked(faulty(Rc::new(comm), faults.as_slice()), Checks { checksums: true });
///     let mine = comm.device().upload_slice(&[1.0f32])?;
///     (0..5).try_for_each(|_| comm.all_reduce(&mine, Monoid::SUM).map(drop))
/// })
/// .unwrap();
/// assert!(matches!(&errors[0], Err(CommError::PeerFailed { .. })));
/// assert_eq!(errors[0], errors[1]);
/// ```
pub fn checked(inner: Rc<dyn Communicator>, checks: Checks) -> Rc<dyn Communicator> {
    Rc::new(Checked {
        inner,
        checks,
        turn: Cell::new(0),
        links: RefCell::default(),
    })
}

struct Checked {
    inner: Rc<dyn Communicator>,
    checks: Checks,
    turn: Cell<u64>,
    /// How many messages there were so far, by peer: sent and received.
    links: RefCell<HashMap<usize, [u64; 2]>>,
}

impl Checked {
    fn sums(&self, plan: &ExchangePlan, sources: &[Buffer]) -> Result<Guard> {
        let sums = Guard::sums_of(self.inner.device(), plan, sources)?;
        Ok(Guard {
            turn: None,
            sums: Some(sums),
        })
    }
}

impl Decorator for Checked {
    fn inner(&self) -> &Rc<dyn Communicator> {
        &self.inner
    }

    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator> {
        checked(group, self.checks)
    }

    fn post(&self, request: Request) -> Result<Handle> {
        // If a rank's own arguments are wrong, they must not be read for a checksum.
        let mut request = request.checked(self.size());
        if self.checks.checksums
            && request.status.is_ok()
            && let Some(stage) = request.stages.first()
        {
            match self.sums(&stage.plan, &request.sources) {
                Ok(guard) => request.guard = guard,
                Err(error) => {
                    request.status = Err(Box::new(AgreedError::from_local(request.name(), error)));
                }
            }
        }
        let turn = self.turn.get();
        self.turn.set(turn + 1);
        request.guard.turn = Some(turn);
        self.inner.post(request)
    }

    fn post_link(&self, mut link: Link) -> Result<Handle> {
        if self.checks.checksums
            && link.status.is_ok()
            && let LinkSide::Send(data) = &link.side
        {
            match self.sums(&link.plan(), std::slice::from_ref(data)) {
                Ok(guard) => link.guard = guard,
                Err(error) => {
                    link.status = Err(Box::new(AgreedError::from_local(link.name(), error)));
                }
            }
        }
        let side = link.participant();
        let mut links = self.links.borrow_mut();
        let turn = &mut links.entry(link.peer).or_default()[side];
        link.guard.turn = Some(*turn);
        *turn += 1;
        drop(links);
        self.inner.post_link(link)
    }
}

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checked").field(&self.inner).finish()
    }
}
