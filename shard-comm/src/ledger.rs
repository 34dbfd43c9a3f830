//! The ledger: an account of what one rank moved, counted where it is moved, and of what it did last.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{CommError, DType, DeviceRef, ErrorClass, ExchangePlan, MemoryStats, Site, SiteText};

/// How many operations the flight recorder remembers by default.
const RECENT: usize = 64;

/// Per rank: messages, bytes, rounds and operations of all its groups, and optionally a trace of events.
///
/// It is a flight recorder too: it remembers the last operations, and when one fails, keeps them with the error as a
/// [`FlightRecord`].
///
/// A rank's `messages` and `bytes` are those it received from other ranks; over all ranks they equal what was sent.
/// Counting happens where pieces are read, so the ledger counts only what really moved.
///
/// ```
/// use shard_comm::{local, Host};
/// let moved = local::run(2, |comm| {
///     let before = comm.ledger().snapshot();
///     let mine = comm.device().upload_slice(&[1.0f32, 2.0]).unwrap();
///     comm.all_gather_v(&mine, &[2, 2]).unwrap();
///     comm.ledger().since(&before)
/// }).unwrap();
/// assert_eq!((moved[0].messages, moved[0].bytes, moved[0].local_bytes), (1, 8, 8));
/// ```
pub struct Ledger {
    device: DeviceRef,
    /// By kind of operation, in order of first use.
    counted: RefCell<Vec<Counted>>,
    /// The index of the kind that was counted last.
    last: Cell<usize>,
    /// Counts of kernel calls: fallbacks to the host, their bytes, and calls of libraries.
    fallbacks: Cell<u64>,
    fallback_bytes: Cell<u64>,
    library_calls: Cell<u64>,
    agreement_messages: Cell<u64>,
    recent: Recent,
    /// How many operations are remembered.
    most: Cell<usize>,
    failure: RefCell<Option<FlightRecord>>,
    tracing: Cell<bool>,
    start: Instant,
    events: RefCell<Vec<TraceEvent>>,
}

/// Totals of a [`Ledger`] at one moment, or between two.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LedgerSnapshot {
    /// Rendezvous this rank took part in.
    pub rounds: u64,
    /// Peers received from, summed over rounds.
    pub messages: u64,
    /// Bytes received from other ranks.
    pub bytes: u64,
    /// Peers sent to, summed over rounds.
    pub sent_messages: u64,
    /// Bytes that other ranks were to read from this one.
    pub sent_bytes: u64,
    /// Bytes this rank copied from itself.
    pub local_bytes: u64,
    /// Kernel calls that ran on the host because the device had no kernel.
    pub fallbacks: u64,
    /// Bytes that went to the host and back for these calls.
    pub fallback_bytes: u64,
    /// Kernel calls that a library of the device's vendor computed: on GPUs, cuBLASLt, cuDNN and cuFFT.
    pub library_calls: u64,
    /// Messages by which this rank heard from others that they agree, where ranks do not share memory. They are not among the
    /// `messages`, which bring elements; a few small elements may come with them.
    pub agreement_messages: u64,
    /// Per operation name, in order of first use.
    pub ops: Vec<(&'static str, OpCount)>,
}

/// The traffic of one kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OpCount {
    /// Rendezvous.
    pub rounds: u64,
    /// Peers received from.
    pub messages: u64,
    /// Bytes received from other ranks.
    pub bytes: u64,
}

/// One entry of the flight recorder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// Which rendezvous of its group it was.
    pub sequence: u64,
    /// Where it was called.
    pub site: SiteText,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            sequence,
            site,
        } = self;
        write!(f, "{name} (operation {sequence}) at {site}")
    }
}

/// The last operations of a rank, oldest first. The rank's ledger adds to them, and the watch over a launch may read them.
///
/// Other threads take the lock only now and then, so taking it costs the rank no more than the write itself.
#[derive(Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<VecDeque<Posted>>>);

impl Recent {
    pub(crate) fn list(&self) -> Vec<Operation> {
        let recent = self.lock();
        let operations = recent.iter().map(|posted| Operation {
            name: posted.name,
            sequence: posted.sequence,
            site: posted.site.into(),
        });
        operations.collect()
    }

    /// No code that can panic runs under the lock.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, VecDeque<Posted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

/// An [`Operation`] as it is remembered. It is small, because every call writes one, to memory that has mostly left the nearest
/// cache.
#[derive(Clone, Copy)]
struct Posted {
    name: &'static str,
    sequence: u64,
    site: Site,
}

/// What a rank did before an operation of its own failed.
///
/// Errors are equal on all ranks, and short; this is the rank's own part of the story. It is also emitted as an event of
/// `tracing`, with level error and target `shard_comm`.
///
/// ```
/// use shard_comm::{local, Monoid};
/// let stories = local::run(2, |comm| {
///     comm.barrier().unwrap();
///     if comm.rank() == 0 {
///         comm.fail("out of paper".to_owned());
///     }
///     comm.barrier().unwrap_err();
///     comm.ledger().flight_record().unwrap()
/// })
/// .unwrap();
/// assert!(stories[1].cause.to_string().ends_with("out of paper"));
/// assert!(stories[1].to_string().contains("barrier (operation 0) at "));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct FlightRecord {
    /// The error.
    pub cause: CommError,
    /// The last operations the rank began before it heard of the error, oldest first.
    pub operations: Vec<Operation>,
}

impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nthe last operations, oldest first:", self.cause)?;
        self.operations
            .iter()
            .try_for_each(|operation| write!(f, "\n  {operation}"))
    }
}

/// One event of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// What happened: `posted halo`, `kernel conv interior`, `waited halo`, ...
    pub label: Cow<'static, str>,
    /// When, since the ledger was made.
    pub at: Duration,
}

/// The counts of one kind of operation so far.
struct Counted {
    name: &'static str,
    rounds: u64,
    moved: Moved,
}

/// The traffic of one round at one rank.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Moved {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) sent_messages: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) local_bytes: u64,
}

impl Ledger {
    /// An empty ledger; peak bytes come from the device.
    pub fn new(device: DeviceRef) -> Self {
        Self::remembered_in(device, Recent::default())
    }

    /// An empty ledger whose last operations others may read too.
    pub(crate) fn remembered_in(device: DeviceRef, recent: Recent) -> Self {
        Self {
            device,
            counted: RefCell::default(),
            last: Cell::new(0),
            fallbacks: Cell::new(0),
            fallback_bytes: Cell::new(0),
            library_calls: Cell::new(0),
            agreement_messages: Cell::new(0),
            recent,
            most: Cell::new(RECENT),
            failure: RefCell::default(),
            tracing: Cell::new(false),
            start: Instant::now(),
            events: RefCell::default(),
        }
    }

    /// The totals so far.
    pub fn snapshot(&self) -> LedgerSnapshot {
        let mut totals = LedgerSnapshot {
            fallbacks: self.fallbacks.get(),
            fallback_bytes: self.fallback_bytes.get(),
            library_calls: self.library_calls.get(),
            agreement_messages: self.agreement_messages.get(),
            ..LedgerSnapshot::default()
        };
        for kind in self.counted.borrow().iter() {
            let (rounds, moved) = (kind.rounds, &kind.moved);
            totals.rounds += rounds;
            totals.messages += moved.messages;
            totals.bytes += moved.bytes;
            totals.sent_messages += moved.sent_messages;
            totals.sent_bytes += moved.sent_bytes;
            totals.local_bytes += moved.local_bytes;
            let count = OpCount {
                rounds,
                messages: moved.messages,
                bytes: moved.bytes,
            };
            totals.ops.push((kind.name, count));
        }
        totals
    }

    /// What was added since a snapshot of this ledger.
    pub fn since(&self, before: &LedgerSnapshot) -> LedgerSnapshot {
        self.snapshot().minus(before)
    }

    /// Bytes of the rank's device: live, peak, cached.
    pub fn memory(&self) -> MemoryStats {
        self.device.memory()
    }

    /// The last operations, oldest first.
    pub fn recent(&self) -> Vec<Operation> {
        self.recent.list()
    }

    /// Sets how many operations are remembered from now on, 64 by default; zero for none.
    pub fn remember(&self, most: usize) {
        self.most.set(most);
        let mut recent = self.recent.lock();
        let surplus = recent.len().saturating_sub(most);
        recent.drain(..surplus);
    }

    /// What this rank did before its first [failure](crate::ErrorClass::Failure). Until there is one, what it did before the last
    /// [mismatch](CommError::Mismatch).
    pub fn flight_record(&self) -> Option<FlightRecord> {
        self.failure.borrow().clone()
    }

    /// Switches the trace on or off; it is off at first. Switching it on forgets earlier events.
    pub fn trace(&self, on: bool) {
        if on {
            self.events.borrow_mut().clear();
        }
        self.tracing.set(on);
    }

    /// Whether events are being traced.
    pub fn is_tracing(&self) -> bool {
        self.tracing.get()
    }

    /// Adds an event to the trace, if it is on. If a label is costly to build, check [`Ledger::is_tracing`] first.
    pub fn note(&self, label: impl Into<Cow<'static, str>>) {
        if self.tracing.get() {
            let event = TraceEvent {
                label: label.into(),
                at: self.start.elapsed(),
            };
            self.events.borrow_mut().push(event);
        }
    }

    /// The events traced so far, in order.
    pub fn events(&self) -> Vec<TraceEvent> {
        self.events.borrow().clone()
    }

    /// Counts a kernel call that ran on the host, and the bytes that went there and back.
    pub fn fell_back(&self, bytes: u64) {
        self.fallbacks.update(|calls| calls + 1);
        self.fallback_bytes.update(|all| all + bytes);
    }

    /// Counts kernel calls that a library of the device's vendor computed.
    pub fn used_library(&self, calls: u64) {
        self.library_calls.update(|all| all + calls);
    }

    /// Counts messages by which this rank hears that ranks agree.
    pub fn heard(&self, messages: usize) {
        self.agreement_messages.update(|all| all + messages as u64);
    }

    /// Notes that an operation begins, for the flight recorder. Backends call it when an operation is posted: `name` is the
    /// call, `sequence` counts the operations of the group, or the messages of the pair.
    #[inline]
    pub fn posted(&self, name: &'static str, sequence: u64, site: Site) {
        let mut recent = self.recent.lock();
        match self.most.get() {
            0 => return,
            most if recent.len() >= most => drop(recent.pop_front()),
            _ => {}
        }
        recent.push_back(Posted {
            name,
            sequence,
            site,
        });
    }

    /// Records that an operation of this rank has failed, and keeps what led to it. Handles call this when they are waited for,
    /// and so do the collectives; a backend has to call it only where it fails by itself.
    pub fn failed(&self, error: &CommError) {
        let kept = |known: &FlightRecord| known.cause.class() == ErrorClass::Failure;
        let fatal = error.class() == ErrorClass::Failure;
        if !fatal && !matches!(error, CommError::Mismatch(_))
            || self.failure.borrow().as_ref().is_some_and(kept)
        {
            return;
        }
        let record = FlightRecord {
            cause: error.clone(),
            operations: self.recent(),
        };
        tracing::error!(target: "shard_comm", "{record}");
        self.failure.replace(Some(record));
    }

    /// Counts what an exchange moves at one rank, number `me` of its participants, under the name of the call. Backends call
    /// it once per exchange; [`backend::receive`](crate::backend::receive) does.
    #[inline]
    pub fn moved(&self, name: &'static str, plan: &ExchangePlan, me: usize, dtype: Option<DType>) {
        let moved = plan.moved(me, dtype);
        tracing::trace!(
            target: "shard_comm",
            op = name,
            plan = plan.name,
            messages = moved.messages,
            bytes = moved.bytes,
            "moved"
        );
        self.count(name, &moved);
    }

    #[inline]
    fn count(&self, name: &'static str, moved: &Moved) {
        let mut counted = self.counted.borrow_mut();
        // The kind that was counted last is mostly the next one too.
        let last = self.last.get();
        let at = match counted.get(last) {
            Some(kind) if std::ptr::eq(kind.name, name) => last,
            _ => self.counted_at(&mut counted, name),
        };
        let kind = &mut counted[at];
        kind.rounds += 1;
        kind.moved.messages += moved.messages;
        kind.moved.bytes += moved.bytes;
        kind.moved.sent_messages += moved.sent_messages;
        kind.moved.sent_bytes += moved.sent_bytes;
        kind.moved.local_bytes += moved.local_bytes;
    }

    /// The index of a kind of operation, adding the kind if it is new.
    #[inline(never)]
    fn counted_at(&self, counted: &mut Vec<Counted>, name: &'static str) -> usize {
        let at = counted.iter().position(|kind| kind.name == name);
        let at = at.unwrap_or_else(|| {
            counted.push(Counted {
                name,
                rounds: 0,
                moved: Moved::default(),
            });
            counted.len() - 1
        });
        self.last.set(at);
        at
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

impl fmt::Display for LedgerSnapshot {
    /// The totals, and a line for each operation that moved or met.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds; received {} bytes in {} messages, sent {} in {}, copied {} locally",
            self.rounds,
            self.bytes,
            self.messages,
            self.sent_bytes,
            self.sent_messages,
            self.local_bytes
        )?;
        for (name, count) in &self.ops {
            write!(f, "\n  {name}: {} rounds", count.rounds)?;
            if count.messages > 0 {
                write!(f, ", {} bytes in {} messages", count.bytes, count.messages)?;
            }
        }
        if self.agreement_messages > 0 {
            write!(f, "\n  to agree: {} messages", self.agreement_messages)?;
        }
        if self.fallbacks > 0 {
            write!(
                f,
                "\n  on the host: {} kernel calls, {} bytes",
                self.fallbacks, self.fallback_bytes
            )?;
        }
        match self.library_calls {
            0 => Ok(()),
            calls => write!(f, "\n  by the vendor's libraries: {calls} kernel calls"),
        }
    }
}

impl LedgerSnapshot {
    /// The counts of one kind of operation; zero if it never ran.
    pub fn op(&self, name: &str) -> OpCount {
        self.ops
            .iter()
            .find(|(n, _)| *n == name)
            .map_or_else(OpCount::default, |(_, c)| *c)
    }

    fn minus(&self, before: &Self) -> Self {
        let ops = self.ops.iter().filter_map(|&(name, now)| {
            let old = before.op(name);
            let count = OpCount {
                rounds: now.rounds - old.rounds,
                messages: now.messages - old.messages,
                bytes: now.bytes - old.bytes,
            };
            (count.rounds > 0).then_some((name, count))
        });
        Self {
            rounds: self.rounds - before.rounds,
            messages: self.messages - before.messages,
            bytes: self.bytes - before.bytes,
            sent_messages: self.sent_messages - before.sent_messages,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            local_bytes: self.local_bytes - before.local_bytes,
            fallbacks: self.fallbacks - before.fallbacks,
            fallback_bytes: self.fallback_bytes - before.fallback_bytes,
            library_calls: self.library_calls - before.library_calls,
            agreement_messages: self.agreement_messages - before.agreement_messages,
            ops: ops.collect(),
        }
    }
}
