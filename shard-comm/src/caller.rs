//! The place where the program called, and the method, however many layers lie between the program and the communicator.

use crate::error::Site;
use std::cell::Cell;
use std::panic::Location;

thread_local! {
    /// The call of the program that this rank is in.
    static CALL: Cell<Call> = const { Cell::new(Call { method: None, site: None, is_whole: false }) };
}

/// A call of the program.
#[derive(Clone, Copy, Debug)]
struct Call {
    method: Option<&'static str>,
    site: Option<Site>,
    /// Whether what it calls is named after it, too, wherever that is called.
    is_whole: bool,
}

/// While this value lives, operations of this thread name, in errors and records, the place where the value was made, and the
/// method.
///
/// A library built on communicators makes one in each function that its users call; if several are alive, the last one counts.
/// A function may call others that users call too: at the same place of the program the first one keeps its name.
///
/// ```
/// use shard_comm::{Calling, Communicator, local};
///
/// #[track_caller]
/// fn meet(comm: &local::LocalComm) -> shard_comm::Result<()> {
///     let _call = Calling::of("meet");
///     (comm as &dyn Communicator).barrier()
/// }
///
/// let lost = local::run(2, |comm| match comm.rank() {
///     0 => meet(&comm).map_err(|e| e.to_string()), // this line is named,
///     _ => Ok(()),
/// })
/// .unwrap();
/// let line = line!() - 4;
/// let error = lost[0].as_ref().unwrap_err();
/// // not the one of the barrier.
/// assert!(error.contains("joining meet") && error.contains(&format!(":{line}:")), "{error}");
/// ```
#[derive(Debug)]
#[must_use = "operations name the place only as long as it lives"]
pub struct Calling(Call);

impl Calling {
    /// The place of the caller, whose method names itself by the [first op](Self::doing) that it does.
    #[track_caller]
    #[inline]
    pub fn here() -> Self {
        Self::enter(None, Location::caller())
    }

    /// The place of the caller, and the method called there.
    #[track_caller]
    #[inline]
    pub fn of(method: &'static str) -> Self {
        Self::enter(Some(method), Location::caller())
    }

    /// As [`of`](Self::of), of a method that calls others in closures, which know nothing of the place: whatever is called while the value
    /// lives has this place and this name.
    #[track_caller]
    #[inline]
    pub fn throughout(method: &'static str) -> Self {
        let call = Self::of(method);
        CALL.set(Call {
            is_whole: true,
            ..CALL.get()
        });
        call
    }

    #[inline]
    fn enter(method: Option<&'static str>, site: Site) -> Self {
        let outer = CALL.get();
        if outer.is_whole {
            return Self(outer);
        }
        let named = (outer.method).filter(|_| outer.site.is_some_and(|s| std::ptr::eq(s, site)));
        let method = named.or(method);
        CALL.set(Call {
            method,
            site: Some(site),
            is_whole: false,
        });
        Self(outer)
    }

    /// What the program's call does, and the place of the caller, where they are not known yet: for functions that a library
    /// calls as well as its users.
    #[track_caller]
    #[inline]
    pub fn doing(op: &'static str) -> Self {
        let outer = CALL.get();
        CALL.set(Call {
            method: outer.method.or(Some(op)),
            site: outer.site.or(Some(Location::caller())),
            is_whole: outer.is_whole,
        });
        Self(outer)
    }

    /// Where the program called, if it is known.
    pub fn site() -> Option<Site> {
        CALL.get().site
    }

    /// The method it called, if it is known.
    pub fn method() -> Option<&'static str> {
        CALL.get().method
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
    CALL.get().site.unwrap_or(site)
}
