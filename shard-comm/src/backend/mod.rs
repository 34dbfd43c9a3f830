//! The ways in which ranks reach each other, and what a backend of your own needs.
//!
//! [`local`] runs ranks as threads, `mpi` runs them as processes, `nccl` moves elements between GPUs, and [`simulated`] plays
//! ranks that are not there. A backend of another crate implements [`Communicator`](crate::Communicator) with the functions of
//! this module; the backends of this crate use the same ones.
//!
//! # An operation, step by step
//!
//! [`post`](crate::Communicator::post) is given a [`Request`](crate::Request): exchanges that feed one another. The ranks
//! meet once for each exchange.
//!
//! 1. [`Request::checked`](crate::Request::checked) checks this rank's own arguments and turns what is wrong with them into a
//!    status, which the other ranks learn of. [`Ledger::posted`](crate::Ledger::posted) notes the call.
//! 2. [`Post::first`] takes out of the request what peers look at: this rank's claims, and the memory that they read. The
//!    backend brings the post to all members of the group, under a name that is the same on all of them: the group, how many
//!    operations it has posted before, and how many exchanges of this operation are done.
//! 3. Once the posts of all members are here, [`validate`] compares them. Its error is the same on every rank, and nothing
//!    moves. After [`OutOfStep`](crate::CommError::OutOfStep) no later operation could be right: the backend fails.
//! 4. [`receive`] reads this rank's pieces and counts them in the ledger. An error here is a failure, which all ranks have to
//!    hear of.
//! 5. The result goes into [`Post::next`] if there is another exchange, which begins at step 2; otherwise it is the operation's.
//!
//! A message between two ranks is an operation of two participants: [`Link::into_request`](crate::Link::into_request) makes it
//! one. A split is an operation in which ranks tell each other their colors and keys.
//!
//! # What ranks may rely on
//!
//! - Operations belong to the rank and not to their handles: any call that blocks carries all of them on, so a handle may be
//!   dropped or forgotten, and handles may be waited for in any order.
//! - The first failure is everybody's: later calls of all ranks return it. Waiting for a rank that has ended is a failure too.
//! - Nothing hangs. Where a deadlock cannot be found, waiting ends in [`TimedOut`](crate::CommError::TimedOut).
//!
//! `examples/backend` in this crate does all of this in some five hundred lines, over channels. The programs of `contract`
//! (feature `contract-tests`) test whether a backend keeps the contract; run them over [`checked`](crate::checked)
//! communicators too. A communicator that changes the behaviour of another one is a [`Decorator`].

/// A rank's handle derefs to [`dyn Communicator`](crate::Communicator), which has all the operations, and is printed as its rank and its
/// group.
macro_rules! communicator {
    ($name:ident) => {
        impl std::ops::Deref for $name {
            type Target = dyn crate::Communicator;

            fn deref(&self) -> &Self::Target {
                self
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let (rank, group) = (self.rank(), crate::backend::label(self.members()));
                write!(f, "{}(rank {rank} of {group})", stringify!($name))
            }
        }
    };
}

pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
pub(crate) mod post;
pub mod simulated;

pub use crate::decorator::Decorator;
pub use crate::plan::Traffic;
pub use crate::run::run;
pub use crate::validate::{Claim, label, validate};
pub use post::{Post, receive};
