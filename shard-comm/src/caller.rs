//! The place where the program called, however many layers lie between the program and the communicator.

use crate::error::Site;
use std::cell::Cell;
use std::panic::Location;

thread_local! {
    /// The call of the program that this rank is in.
    static CALL: Cell<Option<Site>> = const { Cell::new(None) };
}

/// While this value lives, operations of this thread name, in errors and records, the place where the value was made.
///
/// A library built on communicators makes one in each function that its users call; if several are alive, the last one counts.
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

/// The place of the program's call, or this place if no `Calling` lives.
#[inline]
pub(crate) fn called(site: Site) -> Site {
    CALL.get().unwrap_or(site)
}
