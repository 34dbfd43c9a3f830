//! Combinations of what the ranks before each have.

use std::panic::Location;

use super::equal::known_by;
use super::reduce::{check_reduction, length_of};
use crate::{Buffer, Communicator, ExchangePlan, Handle, Monoid, Piece, Request, Result, Site};

/// Of which ranks each has the combination.
#[derive(Clone, Copy)]
enum Upto {
    /// Those before it and itself.
    Inclusive,
    /// Those before it.
    Exclusive,
}

/// Operations in which rank `r` combines what ranks up to it have.
impl dyn Communicator + '_ {
    /// Combines, element by element and by the tree over rank numbers, the buffers of this rank and of those before it. The last rank
    /// has the bits of [`all_reduce`](#method.all_reduce).
    ///
    /// Costs one round in which rank `r` receives `r` buffers: it is meant for few elements, such as counts of rows.
    ///
    /// ```
    /// use shard_comm::{Monoid, local};
    /// let sums = local::run(3, |comm| {
    ///     let mine = comm.device().upload_slice(&[10 + comm.rank() as i64]).unwrap();
    ///     comm.scan(&mine, Monoid::SUM).unwrap().to_vec::<i64>().unwrap()
    /// }).unwrap();
    /// assert_eq!(sums, [[10], [21], [33]]);
    /// ```
    ///
    /// # Collective
    /// Every rank of the group, with buffers of equal length and type, and the same operation.
    ///
    /// # Errors
    /// [`Mismatch`](crate::CommError::Mismatch) if lengths, types or operations differ between ranks,
    /// [`Agreed`](crate::CommError::Agreed) if the type has no such operation, or a failure.
    #[doc(alias = "MPI_Scan")]
    #[track_caller]
    pub fn scan(&self, mine: &Buffer, op: Monoid) -> Result<Buffer> {
        self.run("scan", Location::caller(), |site| {
            self.scan_request("scan", Upto::Inclusive, mine, op, site)
        })
    }

    /// [`scan`](#method.scan) without waiting.
    ///
    /// # Collective
    /// As `scan`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_scan(&self, mine: &Buffer, op: Monoid) -> Result<Handle> {
        self.start("scan", Location::caller(), |site| {
            self.scan_request("scan", Upto::Inclusive, mine, op, site)
        })
    }

    /// [`scan`](#method.scan) of the ranks before this one, without itself: where its rows begin, if buffers are numbers of rows. Rank 0
    /// has the operation's identity, 0 of sums.
    ///
    /// ```
    /// use shard_comm::{Monoid, local};
    /// let starts = local::run(3, |comm| {
    ///     let rows = comm.device().upload_slice(&[[4i64, 0, 7][comm.rank()]]).unwrap();
    ///     comm.exclusive_scan(&rows, Monoid::SUM).unwrap().to_vec::<i64>().unwrap()
    /// }).unwrap();
    /// assert_eq!(starts, [[0], [4], [4]]);
    /// ```
    ///
    /// # Collective
    /// As `scan`.
    ///
    /// # Errors
    /// As `scan`.
    #[doc(alias = "MPI_Exscan")]
    #[track_caller]
    pub fn exclusive_scan(&self, mine: &Buffer, op: Monoid) -> Result<Buffer> {
        self.run("exclusive_scan", Location::caller(), |site| {
            self.scan_request("exclusive_scan", Upto::Exclusive, mine, op, site)
        })
    }

    /// [`exclusive_scan`](#method.exclusive_scan) without waiting.
    ///
    /// # Collective
    /// As `scan`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_exclusive_scan(&self, mine: &Buffer, op: Monoid) -> Result<Handle> {
        self.start("exclusive_scan", Location::caller(), |site| {
            self.scan_request("exclusive_scan", Upto::Exclusive, mine, op, site)
        })
    }

    fn scan_request(
        &self,
        name: &'static str,
        upto: Upto,
        mine: &Buffer,
        op: Monoid,
        site: Site,
    ) -> Result<Request> {
        check_reduction(name, mine, op)?;
        let len = mine.len();
        let plan = self.plans().get(name, Some(op), &[len], &[], || {
            known_by(
                len,
                plan_scan(name, self.rank(), self.size(), len, op, upto),
            )
        });
        let target = self.target(mine.dtype(), len)?;
        let mut request = Request::exchange(plan, std::slice::from_ref(mine), target, site);
        request.argument = length_of(mine);
        Ok(request)
    }
}

fn plan_scan(
    name: &'static str,
    me: usize,
    ranks: usize,
    len: usize,
    op: Monoid,
    upto: Upto,
) -> ExchangePlan {
    let (before, after) = match upto {
        Upto::Inclusive => (0..me + 1, me..ranks),
        Upto::Exclusive => (0..me, me + 1..ranks),
    };
    let whole = |j| Piece::run(j, 0, len, 0, 0);
    let (recv, send) = (before.map(whole), after.map(whole));
    ExchangePlan::new(name, 0, recv.collect(), send.collect(), Some(op), None)
}
