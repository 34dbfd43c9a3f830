//! The communicator: one rank's view of a group.
//!
//! A backend implements the few methods of [`Communicator`]. Every collective that users call is an inherent method
//! of `dyn Communicator` (see `collectives/`) built on [`Communicator::post`], so that there is one mechanism, and
//! call sites in errors are the user's.

use std::fmt::Debug;
use std::rc::Rc;

use crate::{
    Buffer, CommError, DeviceRef, Handle, Ledger, Link, LinkCost, Nodes, ONE_ROUND_BYTES,
    PlanCache, Request, Result, Site, Topology,
};

/// One rank's membership of a group of ranks.
///
/// Live communicators of some backends must not leave their thread, so this is not `Send`; a rank's communicators
/// are made inside its own thread. The methods listed here are those that a backend provides. Programs call the inherent methods
/// of `dyn Communicator` below (`all_gather_v`, `barrier`, `exchange`, ...).
pub trait Communicator: Debug {
    /// This rank's number within the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn size(&self) -> usize;

    /// The ranks of the group as numbered in the launch, in group order.
    fn members(&self) -> &[usize];

    /// The device of this rank.
    fn device(&self) -> &DeviceRef;

    /// The account of what this rank moved, in all its groups.
    fn ledger(&self) -> &Ledger;

    /// The name of the backend.
    fn backend(&self) -> &'static str;

    /// The cache of plans of the inherent collectives.
    fn plans(&self) -> &PlanCache;

    /// Starts one operation of the group.
    ///
    /// # Collective
    /// Every rank of the group, in the same order as its other operations.
    ///
    /// # Errors
    /// Failures only ([`PeerFailed`](CommError::PeerFailed), [`Deadlock`](CommError::Deadlock),
    /// [`Closed`](CommError::Closed)). The handle returns errors in the arguments, on every rank.
    fn post(&self, request: Request) -> Result<Handle>;

    /// Runs one operation of the group and waits for it; returns the result, if there is one on this rank. A backend may
    /// implement this without a handle, to save its cost.
    ///
    /// # Collective
    /// As [`Communicator::post`].
    ///
    /// # Errors
    /// Whatever [`Communicator::post`] and its handle report.
    fn call(&self, request: Request) -> Result<Option<Buffer>> {
        self.post(request)?.wait_optional()
    }

    /// Starts one side of a message between two ranks of the group.
    ///
    /// # Errors
    /// As [`Communicator::post`]; [`CommError::Invalid`] if the peer is not in the group.
    fn post_link(&self, link: Link) -> Result<Handle>;

    /// Splits the group; see the inherent `split`.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>>;

    /// Splits off the group of these ranks, which all its members name alike; see the inherent `subgroup`.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    fn post_subgroup(
        &self,
        members: Option<&[usize]>,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let me = self.rank();
        let first = members.and_then(|m| m.first().copied());
        let key = members.and_then(|m| m.iter().position(|&r| r == me));
        self.post_split(first, key.unwrap_or(0), site)
    }

    /// The topology that joins the ranks, if it is known: the choice of plans depends on it.
    fn topology(&self) -> Option<&Topology> {
        None
    }

    /// What a message to another rank of the group costs, if elements go by messages; `None` if ranks read them where they lie. How
    /// sums and copies of many ranks are formed depends on it, so it is equal on all of them.
    fn messages(&self) -> Option<LinkCost> {
        None
    }

    /// Up to this many bytes of each rank reach all others best in one round, in which each combines everything. Equal on all ranks.
    fn at_once(&self) -> usize {
        ONE_ROUND_BYTES
    }

    /// Which ranks of the group share a node, if that is known and there are nodes of several: copies then go from node to node first.
    /// Equal on all ranks.
    fn nodes(&self) -> Option<&Nodes> {
        None
    }

    /// The failure that all calls of this rank return, if there is one that is known by now. Does not wait.
    fn failure(&self) -> Option<CommError> {
        None
    }

    /// Gives up: every other rank gets [`PeerFailed`](CommError::PeerFailed) with this rank as its origin, at its
    /// current or next call, and this rank at its next.
    fn fail(&self, cause: String);
}
