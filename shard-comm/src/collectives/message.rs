//! Messages between two ranks.

use std::panic::Location;

use crate::caller::called;
use crate::guard::Guard;
use crate::request::check_peer;
use crate::{AgreedError, Buffer, Communicator, DType, Handle, Link, LinkSide, Result};

/// Messages between two ranks. They are matched in the order they were sent, without tags.
impl dyn Communicator + '_ {
    /// Sends elements to one rank, and returns when that rank has asked for them.
    ///
    /// Two ranks that both send to each other before they receive wait forever, which the `local` backend reports as a deadlock;
    /// use [`start_send`](#method.start_send) for such patterns.
    ///
    /// # Errors
    /// [`Mismatch`](crate::CommError::Mismatch), on both ranks, if the other expects another type or count; or a failure.
    #[doc(alias("MPI_Send", "ncclSend"))]
    #[track_caller]
    pub fn send(&self, peer: usize, data: &Buffer) -> Result<()> {
        self.start_send(peer, data)?.wait_optional().map(drop)
    }

    /// [`send`](#method.send) without waiting.
    ///
    /// # Errors
    /// [`CommError::Invalid`](crate::CommError::Invalid) if there is no such peer, and failures, at once; other errors come
    /// from the handle.
    #[doc(alias = "MPI_Isend")]
    #[track_caller]
    pub fn start_send(&self, peer: usize, data: &Buffer) -> Result<Handle> {
        let side = LinkSide::Send(data.clone());
        self.noted(self.post_link(Link {
            peer,
            side,
            elsewhere: false,
            status: Ok(()),
            site: called(Location::caller()),
            guard: Guard::default(),
        }))
    }

    /// Receives elements from one rank. Messages between two ranks arrive in the order they were sent.
    ///
    /// # Errors
    /// As [`send`](#method.send).
    #[doc(alias("MPI_Recv", "ncclRecv"))]
    #[track_caller]
    pub fn recv(&self, peer: usize, dtype: DType, len: usize) -> Result<Buffer> {
        self.start_recv(peer, dtype, len)?.wait()
    }

    /// [`recv`](#method.recv) without waiting.
    ///
    /// # Errors
    /// As [`start_send`](#method.start_send).
    #[doc(alias = "MPI_Irecv")]
    #[track_caller]
    pub fn start_recv(&self, peer: usize, dtype: DType, len: usize) -> Result<Handle> {
        // A rank that cannot allocate still joins, with nothing to write to, so that both ends fail alike.
        let (dst, status) = match self.device().alloc(dtype, len) {
            Ok(dst) => (dst, Ok(())),
            Err(error) => (
                self.device().alloc(dtype, 0)?,
                Err(Box::new(AgreedError::from_local("recv", error))),
            ),
        };
        self.noted(self.post_link(Link {
            peer,
            side: LinkSide::Recv(dst),
            elsewhere: false,
            status,
            site: called(Location::caller()),
            guard: Guard::default(),
        }))
    }

    /// Sends elements to one rank and receives elements from another or the same one, and returns when both are done. It is for
    /// ranks that pass something round a ring, or swap the borders of their parts.
    ///
    /// Costs the two messages, which are in flight at the same time. To do other work meanwhile, use
    /// [`start_recv`](#method.start_recv) and [`start_send`](#method.start_send).
    ///
    /// ```
    /// let left = shard_comm::local::run(3, |comm| {
    ///     let (me, n) = (comm.rank(), comm.size());
    ///     let mine = comm.device().upload_slice(&[me as i64]).unwrap();
    ///     let left = comm.send_recv((me + 1) % n, &mine, (me + n - 1) % n, mine.dtype(), 1);
    ///     left.unwrap().to_vec::<i64>().unwrap()
    /// }).unwrap();
    /// assert_eq!(left, [[2], [0], [1]]);
    /// ```
    ///
    /// # Errors
    /// [`CommError::Invalid`](crate::CommError::Invalid) if there is no such peer, before anything is sent; otherwise as
    /// [`send`](#method.send), for either message; if both fail, the error of the message received.
    #[doc(alias("MPI_Sendrecv", "halo", "neighbour", "shift", "batch_isend_irecv"))]
    #[track_caller]
    pub fn send_recv(
        &self,
        to: usize,
        data: &Buffer,
        from: usize,
        dtype: DType,
        len: usize,
    ) -> Result<Buffer> {
        // Peers are checked first, because a side that has begun could not be taken back.
        check_peer("send_recv", to, self.size())?;
        check_peer("send_recv", from, self.size())?;
        let received = self.start_recv(from, dtype, len)?;
        let sent = self.start_send(to, data)?;
        let received = received.wait();
        let sent = sent.wait_optional();
        let received = received?;
        sent.map(|_| received)
    }
}
