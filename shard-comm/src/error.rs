//! Errors, in the three classes of the promise: uniform, agreed, failure.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use shard_device::{DType, DeviceError, ErrorClass};

use crate::Operation;

/// Shorthand for results of this crate.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// Where in the program a collective was called.
pub type Site = &'static Location<'static>;

/// An error of a communicator, or of a device below it.
///
/// Ranks named here are ranks of the whole launch, also inside a group made by `split`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// The ranks of a group called different operations, or the same one with arguments that do not fit.
    #[error(transparent)]
    Mismatch(Arc<Mismatch>),
    /// An operation of some rank was lost or came twice, so that every later one would meet a different one. Only
    /// [checked](crate::checked) communicators can tell.
    #[error("out of step: {0}")]
    OutOfStep(Arc<Mismatch>),
    /// Every rank that still runs waits for another one.
    #[error(transparent)]
    Deadlock(Arc<DeadlockReport>),
    /// A rank that others depend on panicked, gave up or returned early.
    #[error("rank {origin} failed: {cause}")]
    PeerFailed {
        /// The rank of the launch at which the failure began.
        origin: usize,
        /// What happened there; the message of its panic if there was one.
        cause: Arc<str>,
    },
    /// A fact that one rank saw before anything moved.
    #[error(transparent)]
    Agreed(Box<AgreedError>),
    /// The communicator has been shut down.
    #[error("{op}: this communicator is closed; make the call before its rank ends")]
    Closed {
        /// The call that came too late.
        op: &'static str,
    },
    /// The arguments of one call contradict each other.
    #[error("{op}: expected {expected}, got {got}; {remedy}")]
    Invalid {
        /// The call.
        op: &'static str,
        /// What it accepts.
        expected: String,
        /// What it was given.
        got: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A rank waited for others longer than it was told to.
    #[error(transparent)]
    TimedOut(Arc<TimeoutReport>),
    /// A call to the library underneath failed.
    #[error("{backend}: {call} failed: {cause}")]
    Backend {
        /// The backend.
        backend: &'static str,
        /// The library's function.
        call: &'static str,
        /// Its message.
        cause: Arc<str>,
    },
    /// A buffer or a device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl CommError {
    /// Who learns of this error, and what is left of the group.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Mismatch(_) | Self::Invalid { .. } => ErrorClass::Uniform,
            Self::Agreed(_) => ErrorClass::Agreed,
            Self::Deadlock(_)
            | Self::OutOfStep(_)
            | Self::PeerFailed { .. }
            | Self::Closed { .. }
            | Self::TimedOut(_)
            | Self::Backend { .. } => ErrorClass::Failure,
            Self::Device(error) => error.class(),
        }
    }

    /// An error of a call whose own arguments contradict each other: what the call accepts, what it was given, and what to do.
    ///
    /// ```
    /// let error = shard_comm::CommError::invalid("send", "a peer below 4", "7", "name a rank of the group");
    /// assert_eq!(error.to_string(), "send: expected a peer below 4, got 7; name a rank of the group");
    /// ```
    pub fn invalid(
        op: &'static str,
        expected: impl Into<String>,
        got: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        Self::Invalid {
            op,
            expected: expected.into(),
            got: got.into(),
            remedy,
        }
    }

    pub(crate) fn dtype(op: &'static str, expected: DType, got: DType) -> Self {
        Self::invalid(
            op,
            expected.name(),
            got.name(),
            "pass buffers of one element type, or convert first",
        )
    }
}

impl From<AgreedError> for CommError {
    fn from(error: AgreedError) -> Self {
        Self::Agreed(Box::new(error))
    }
}

/// A local fact that all ranks of a group are told: the error of the lowest failing rank wins.
///
/// ```
/// use shard_comm::AgreedError;
/// let e = AgreedError::new("from_local", "a shard of [3, 4]", "[3, 5]", "pass the sizes of your shard");
/// assert_eq!(
///     e.to_string(),
///     "from_local on rank 0: expected a shard of [3, 4], got [3, 5]; pass the sizes of your shard"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} on rank {rank}: expected {expected}, got {got}; {remedy}")]
pub struct AgreedError {
    /// The rank of the launch that has the error; filled in by the communicator.
    pub rank: usize,
    /// The operation that failed.
    pub op: String,
    /// What it accepts.
    pub expected: String,
    /// What that rank had.
    pub got: String,
    /// What to do about it.
    pub remedy: String,
}

impl AgreedError {
    /// An error of this rank; its number is filled in when the communicator tells the others.
    pub fn new(
        op: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            rank: 0,
            op: op.into(),
            expected: expected.into(),
            got: got.into(),
            remedy: remedy.into(),
        }
    }

    /// A local error of this crate, as an error to be agreed on.
    pub fn from_local(op: impl Into<String>, error: impl Into<CommError>) -> Self {
        match error.into() {
            CommError::Agreed(e) => *e,
            CommError::Invalid {
                op: inner,
                expected,
                got,
                remedy,
            }
            | CommError::Device(DeviceError::Invalid {
                op: inner,
                expected,
                got,
                remedy,
            }) => {
                let op = op.into();
                let op = if op == inner {
                    op
                } else {
                    format!("{op} ({inner})")
                };
                Self::new(op, expected, got, remedy)
            }
            other => Self::new(
                op,
                "local preparation to succeed",
                other.to_string(),
                "see there",
            ),
        }
    }
}

/// Two ranks whose calls of one collective do not fit each other.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Mismatch {
    /// The first field that differs, or [`CALLS`](Self::CALLS).
    pub field: String,
    /// The group, by its ranks.
    pub group: String,
    /// Which operation of the group, counted from 0.
    pub sequence: u64,
    /// The lower of the two ranks.
    pub rank_a: usize,
    /// What it passed.
    pub a: String,
    /// The operation it called.
    pub op_a: String,
    /// Where it called.
    pub site_a: SiteText,
    /// The other rank.
    pub rank_b: usize,
    /// What that one passed.
    pub b: String,
    /// The operation that one called.
    pub op_b: String,
    /// Where that one called.
    pub site_b: SiteText,
}

impl Mismatch {
    /// The field, where what differs are calls before the operation: the first ones that do are told.
    pub const CALLS: &str = "the calls before";

    /// The same where those are so long ago that no rank knows them any more: the last ones are told.
    pub const OLD_CALLS: &str = "the calls long before";

    /// The same where ranks did not meet any more after them.
    pub const LAST_CALLS: &str = "the calls after the last operation";
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            group,
            sequence,
            rank_a,
            a,
            op_a,
            site_a,
            rank_b,
            b,
            op_b,
            site_b,
        } = self;
        let called = match field.as_str() {
            Self::CALLS => "called",
            Self::OLD_CALLS => "last called",
            Self::LAST_CALLS => {
                return write!(
                    f,
                    "ranks disagree on {field} of {group}: rank {rank_a} called {a}, rank {rank_b} called {b}"
                );
            }
            _ => {
                return write!(
                    f,
                    "ranks disagree on {field} in operation {sequence} of {group}: \
                     rank {rank_a} has {a} in {op_a} at {site_a}, rank {rank_b} has {b} in {op_b} at {site_b}"
                );
            }
        };
        write!(
            f,
            "ranks disagree on {field} operation {sequence} of {group}: \
             rank {rank_a} {called} {a}, rank {rank_b} {called} {b}; they met in {op_a} at {site_a}"
        )?;
        match site_a == site_b {
            true => Ok(()),
            false => write!(f, " and {op_b} at {site_b}"),
        }
    }
}

/// A call site that prints as `file:line:column`, in this process or another one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SiteText {
    /// The source file.
    pub file: Cow<'static, str>,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
}

impl From<Site> for SiteText {
    fn from(site: Site) -> Self {
        Self {
            file: site.file().into(),
            line: site.line(),
            column: site.column(),
        }
    }
}

impl fmt::Display for SiteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl fmt::Debug for SiteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who waits for whom when no rank can go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct DeadlockReport {
    /// One line per waiting rank, in rank order.
    pub waits: Vec<WaitLine>,
}

impl fmt::Display for DeadlockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deadlock: no rank can go on")?;
        for wait in &self.waits {
            write!(f, "\n  {wait}")?;
        }
        Ok(())
    }
}

/// One waiting rank of a [`DeadlockReport`].
#[derive(Clone, Debug, PartialEq)]
pub struct WaitLine {
    /// The rank that waits.
    pub rank: usize,
    /// The operation it waits in.
    pub op: &'static str,
    /// The group, by its ranks.
    pub group: String,
    /// Which operation of the group (or of the pair, for send and recv), counted from 0.
    pub sequence: u64,
    /// Where it was called.
    pub site: SiteText,
    /// The ranks that have not joined the operation.
    pub missing: Vec<usize>,
}

impl fmt::Display for WaitLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} waits in {} (operation {} of {}) at {} for ranks {:?}",
            self.rank, self.op, self.sequence, self.group, self.site, self.missing
        )
    }
}

/// What a rank waited for until its timeout, and what it had done before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct TimeoutReport {
    /// How long it waited.
    pub waited: Duration,
    /// The wait: its operation, where it was called, and the ranks that have not been heard of.
    pub wait: WaitLine,
    /// The last operations the rank began, oldest first.
    pub recent: Vec<Operation>,
    /// What the other ranks were doing, in rank order. Empty between processes, where that cannot be known.
    pub others: Vec<Whereabouts>,
}

impl fmt::Display for TimeoutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// As many as are read at a glance; `recent` has them all.
        const SHOWN: usize = 8;
        write!(f, "timed out after {:?}: {}", self.waited, self.wait)?;
        (self.others.iter()).try_for_each(|other| write!(f, "\n  {other}"))?;
        write!(f, "\nthe last operations of rank {}:", self.wait.rank)?;
        let hidden = self.recent.len().saturating_sub(SHOWN);
        self.recent
            .iter()
            .skip(hidden)
            .try_for_each(|operation| write!(f, "\n  {operation}"))
    }
}

/// What a rank is doing while another one waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Whereabouts {
    /// It waits too.
    Waiting(WaitLine),
    /// It does not wait for a rank: it computes, or is held up by something that communicators do not know about, such as a lock.
    Busy {
        /// The rank.
        rank: usize,
        /// The last operation it began; `None` if it has made no call.
        last: Option<Operation>,
    },
    /// It has ended.
    Ended {
        /// The rank.
        rank: usize,
    },
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(wait) => write!(f, "{wait}"),
            Self::Busy { rank, last: None } => {
                write!(f, "rank {rank} is not waiting; it has made no call")
            }
            Self::Busy {
                rank,
                last: Some(last),
            } => write!(f, "rank {rank} is not waiting; it was last seen in {last}"),
            Self::Ended { rank } => write!(f, "rank {rank} has ended"),
        }
    }
}

/// Why a launch of ranks gave no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A launch needs at least one rank.
    #[error("cannot launch 0 ranks; ask for at least one")]
    NoRanks,
    /// More ranks than this process has threads for.
    #[error(
        "cannot launch {ranks} ranks as threads: at most {most} here; start processes with `mpirun`, or play the ranks \
         (`simulated`, `Simulation`)"
    )]
    TooMany {
        /// How many were asked for.
        ranks: usize,
        /// How many there may be.
        most: usize,
    },
    /// A rank panicked. If several did, this is the first one: the cause of the others.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// The message of its panic.
        message: String,
    },
    /// A rank in another process failed, the ranks did not end alike, or the backend is missing.
    #[error(transparent)]
    Failed(CommError),
    /// The processes of a job cannot work together.
    #[error("cannot start: {cause}; {remedy}")]
    Processes {
        /// What is in the way.
        cause: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A rank cannot have the device that it was to have.
    #[error(transparent)]
    Device(DeviceError),
    /// The system refused a thread.
    #[error("cannot start the thread of rank {rank}: {source}")]
    Spawn {
        /// The rank whose thread could not start.
        rank: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl LaunchError {
    /// Decided by the arguments, before any rank has begun, or a failure.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoRanks | Self::TooMany { .. } => ErrorClass::Uniform,
            _ => ErrorClass::Failure,
        }
    }
}
