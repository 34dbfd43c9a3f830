//! Where the program called, however many layers are between the program and the communicator.

use crate::error::Site;
use std::cell::Cell;
use std::panic::Location;

thread_local! {
    /// The call of the program that this rank is in.
    static CALL: Cell<Option<Site>> = const { Cell::new(None) };
}

/// While it lives, operations of this thread name the place where it was made as theirs, in errors and records.
///
/// A library made upon communicators makes one in each function that its users call; of several the last counts.
///
/// ```
/// use shard_comm::{Calling, Communicator, local};
///
/// #[track_caller]
/// fn meet(comm: &local::LocalComm) -> shard_comm::Result<()> {
///     let _call = Calling::here();
///     (comm as &dyn Communicator).barrier()
/// }
///
/// let lost = local::run(2, |comm| match comm.rank() {
///     0 => meet(&comm).map_err(|e| e.to_string()), // this line is named,
///     _ => Ok(()),
/// })
/// .unwrap();
/// let line = line!() - 4;
/// // not the one of the barrier.
/// assert!(lost[0].as_ref().unwrap_err().contains(&format!(":{line}:")), "{lost:?}");
/// ```
#[derive(Debug)]
#[must_use = "operations name the place only as long as it lives"]
pub struct Calling(Option<Site>);

impl Calling {
    /// The place of the caller.
    #[track_caller]
    #[inline]
    pub fn here() -> Self {
        Self(CALL.replace(Some(Location::caller())))
    }
}

impl Drop for Calling {
    #[inline]
    fn drop(&mut self) {
        CALL.set(self.0);
    }
}

/// The program's call, or this one if nothing is between.
#[inline]
pub(crate) fn called(site: Site) -> Site {
    CALL.get().unwrap_or(site)
}
