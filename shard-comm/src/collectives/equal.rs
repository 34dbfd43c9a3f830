//! Collectives in which every rank has equally many elements: they use the plans of those with counts.

use std::panic::Location;

use super::gather::plan_all_gather;
use super::reduce::{check_groups, plan_reduce_scatter};
use super::staged;
use crate::{
    Buffer, CommError, Communicator, ExchangePlan, Handle, Monoid, Piece, Request, Result, Site,
};

const ALL_GATHER: &str = "all_gather";
const ALL_TO_ALL: &str = "all_to_all";
const REDUCE_SCATTER: &str = "reduce_scatter";

/// Operations with equal counts, in elements.
impl dyn Communicator + '_ {
    /// Joins every rank's elements in rank order; all ranks have equally many. [`all_gather_v`](#method.all_gather_v) is for
    /// counts that differ.
    ///
    /// Costs a round in which each rank receives the `n - 1` buffers of the others.
    ///
    /// ```
    /// let all = shard_comm::local::run(3, |comm| {
    ///     let mine = comm.device().upload_slice(&[comm.rank() as i64; 2]).unwrap();
    ///     comm.all_gather(&mine).unwrap().to_vec::<i64>().unwrap()
    /// }).unwrap();
    /// assert_eq!(all, vec![vec![0, 0, 1, 1, 2, 2]; 3]);
    /// ```
    ///
    /// # Collective
    /// Every rank of the group, with buffers of equal length and type.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) if lengths or types differ between ranks, or a failure.
    #[doc(alias("MPI_Allgather", "ncclAllGather", "all_gather_into_tensor"))]
    #[track_caller]
    pub fn all_gather(&self, mine: &Buffer) -> Result<Buffer> {
        self.run(ALL_GATHER, Location::caller(), |site| {
            self.equal_gather_request(mine, site)
        })
    }

    /// [`all_gather`](#method.all_gather) without waiting.
    ///
    /// # Collective
    /// As `all_gather`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_all_gather(&self, mine: &Buffer) -> Result<Handle> {
        self.start(ALL_GATHER, Location::caller(), |site| {
            self.equal_gather_request(mine, site)
        })
    }

    fn equal_gather_request(&self, mine: &Buffer, site: Site) -> Result<Request> {
        let (ranks, me, len) = (self.size(), self.rank(), mine.len());
        let Some(whole) = len.checked_mul(ranks) else {
            return Err(CommError::invalid(
                ALL_GATHER,
                "buffers whose lengths add up to an addressable one",
                format!("{len} elements on each of {ranks} ranks"),
                "gather fewer elements",
            ));
        };
        let argument = Some(("length", len as u128));
        let link = self.messages();
        let bytes = whole.saturating_mul(mine.dtype().size());
        let in_stages = |link| staged::pays(ranks, bytes, link) || self.gathers_by_node(bytes);
        if link.is_some_and(in_stages) {
            let facts = [len, mine.dtype().size()];
            let steps = self.plans().staged(ALL_GATHER, None, &facts, &[], || {
                staged::all_gather(ALL_GATHER, me, &vec![len; ranks], self.nodes())
            });
            let mut request = staged::request(self, &steps, Some(mine), mine.dtype(), site)?;
            request.argument = argument;
            return Ok(request);
        }
        let plan = self.plans().get(ALL_GATHER, None, &[len], &[], || {
            known_by(len, plan_all_gather(ALL_GATHER, me, &vec![len; ranks]))
        });
        let target = self.target(mine.dtype(), whole)?;
        let mut request = Request::exchange(plan, std::slice::from_ref(mine), target, site);
        request.argument = argument;
        Ok(request)
    }

    /// Sends part `j` of as many equal parts as there are ranks to each rank `j`; returns the parts that came from each rank, in rank
    /// order. [`all_to_all_v`](#method.all_to_all_v) is for parts that differ.
    ///
    /// Costs a round in which each rank receives a part from each of the `n - 1` others.
    ///
    /// ```
    /// let turned = shard_comm::local::run(2, |comm| {
    ///     let mine = comm.device().upload_slice(&[10 * comm.rank() as i64, 10 * comm.rank() as i64 + 1]).unwrap();
    ///     comm.all_to_all(&mine).unwrap().to_vec::<i64>().unwrap()
    /// }).unwrap();
    /// assert_eq!(turned, [[0, 10], [1, 11]]);
    /// ```
    ///
    /// # Collective
    /// Every rank of the group, with buffers of equal length and type.
    ///
    /// # Errors
    /// [`Agreed`](CommError::Agreed) if the length is not a multiple of the number of ranks, otherwise as
    /// [`all_gather`](#method.all_gather).
    #[doc(alias("MPI_Alltoall", "all_to_all_single"))]
    #[track_caller]
    pub fn all_to_all(&self, mine: &Buffer) -> Result<Buffer> {
        self.run(ALL_TO_ALL, Location::caller(), |site| {
            self.equal_parts_request(mine, site)
        })
    }

    /// [`all_to_all`](#method.all_to_all) without waiting.
    ///
    /// # Collective
    /// As `all_to_all`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_all_to_all(&self, mine: &Buffer) -> Result<Handle> {
        self.start(ALL_TO_ALL, Location::caller(), |site| {
            self.equal_parts_request(mine, site)
        })
    }

    fn equal_parts_request(&self, mine: &Buffer, site: Site) -> Result<Request> {
        let (ranks, me, len) = (self.size(), self.rank(), mine.len());
        let part = self.equal_part(
            ALL_TO_ALL,
            len,
            "pad it, or give each rank's count to all_to_all_v",
        )?;
        let plan = self.plans().get(ALL_TO_ALL, None, &[len], &[], || {
            let recv = (0..ranks).map(|j| Piece::run(j, 0, part, me * part, j * part));
            let send = (0..ranks).map(|j| Piece::run(j, 0, part, j * part, me * part));
            let plan = ExchangePlan::new(ALL_TO_ALL, 0, recv.collect(), send.collect(), None, None);
            known_by(len, plan)
        });
        let target = self.target(mine.dtype(), len)?;
        let mut request = Request::exchange(plan, std::slice::from_ref(mine), target, site);
        request.argument = Some(("length", len as u128));
        Ok(request)
    }

    /// How many of `len` elements are each rank's part, if the ranks' are equal; the fix says what to do if they cannot be.
    fn equal_part(&self, name: &'static str, len: usize, fix: &'static str) -> Result<usize> {
        let ranks = self.size();
        match len.is_multiple_of(ranks) {
            true => Ok(len / ranks),
            false => Err(CommError::invalid(
                name,
                format!("a buffer of {ranks} equal parts, one per rank"),
                format!("{len} elements"),
                fix,
            )),
        }
    }

    /// Combines all ranks' buffers element by element, by the tree over rank numbers, and leaves each rank an equal part: rank 0 the first, and
    /// so on. [`reduce_scatter_v`](#method.reduce_scatter_v) is for parts that differ.
    ///
    /// Costs a round in which each rank receives its part of the `n - 1` buffers of the others.
    ///
    /// ```
    /// use shard_comm::{Monoid, local};
    /// let parts = local::run(2, |comm| {
    ///     let mine = comm.device().upload_slice(&[1.0f64, 2.0, 3.0, 4.0]).unwrap();
    ///     comm.reduce_scatter(&mine, Monoid::SUM).unwrap().to_vec::<f64>().unwrap()
    /// }).unwrap();
    /// assert_eq!(parts, [[2.0, 4.0], [6.0, 8.0]]);
    /// ```
    ///
    /// # Collective
    /// Every rank of the group, with buffers of equal length and type, and the same operation.
    ///
    /// # Errors
    /// [`Agreed`](CommError::Agreed) if the length is not a multiple of the number of ranks, otherwise as
    /// [`all_gather`](#method.all_gather).
    #[doc(alias(
        "MPI_Reduce_scatter_block",
        "ncclReduceScatter",
        "reduce_scatter_tensor"
    ))]
    #[track_caller]
    pub fn reduce_scatter(&self, mine: &Buffer, op: Monoid) -> Result<Buffer> {
        let sum = self.run(REDUCE_SCATTER, Location::caller(), |site| {
            self.reduce_scatter_request(mine, op, site)
        })?;
        staged::narrow(sum, mine.dtype())
    }

    /// [`reduce_scatter`](#method.reduce_scatter) without waiting.
    ///
    /// # Collective
    /// As `reduce_scatter`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_reduce_scatter(&self, mine: &Buffer, op: Monoid) -> Result<Handle> {
        let handle = self.start(REDUCE_SCATTER, Location::caller(), |site| {
            self.reduce_scatter_request(mine, op, site)
        })?;
        Ok(self.narrowing(handle, mine, op))
    }

    fn reduce_scatter_request(&self, mine: &Buffer, op: Monoid, site: Site) -> Result<Request> {
        let (ranks, me, len) = (self.size(), self.rank(), mine.len());
        let part = self.equal_part(
            REDUCE_SCATTER,
            len,
            "pad it, or give each rank's count to reduce_scatter_v",
        )?;
        check_groups(REDUCE_SCATTER, op, &[part])?;
        let argument = Some(("length", len as u128));
        let moves = staged::moves(mine.dtype(), op);
        let link = self.messages();
        if link.is_some_and(|link| staged::pays(ranks, len * moves.size(), link)) {
            let facts = [len, moves.size()];
            let steps = self
                .plans()
                .staged(REDUCE_SCATTER, Some(op), &facts, &[], || {
                    staged::reduce_scatter(REDUCE_SCATTER, me, &vec![part; ranks], op)
                });
            let mut request = staged::summed(self, &steps, mine, moves, site)?;
            request.argument = argument;
            return Ok(request);
        }
        let plan = self.plans().get(REDUCE_SCATTER, Some(op), &[len], &[], || {
            let counts = vec![part; ranks];
            known_by(len, plan_reduce_scatter(REDUCE_SCATTER, me, &counts, op))
        });
        let target = self.target(mine.dtype(), part)?;
        let mut request = Request::exchange(plan, std::slice::from_ref(mine), target, site);
        request.argument = argument;
        Ok(request)
    }
}

/// A plan that follows from a length, which ranks compare as an argument of its own.
pub(super) fn known_by(len: usize, mut plan: ExchangePlan) -> ExchangePlan {
    plan.id = len as u128 + 1;
    plan
}
