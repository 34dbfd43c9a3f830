//! Hears of spans, and keeps how long each took, and how much memory.

use super::{Profile, Slice, Spent};
use shard_comm::DeviceRef;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::dispatcher::{self, Dispatch};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, callsite};

/// Who listens while a profile is made.
pub(super) struct Listener {
    /// Who listened before, and is told of what programs log.
    before: Dispatch,
    heard: Arc<Mutex<Heard>>,
    spans: AtomicU64,
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Has a row of this number.
    Row(usize),
    /// A move: a part of the op that asked for it, or a row.
    Move(usize),
    Wait,
}

/// A span that was entered.
struct Frame {
    span: u64,
    kind: Kind,
    began: Instant,
    /// Time of what was entered within, and has left.
    within: Duration,
    /// Bytes in use when it was entered, if it has a row.
    live: usize,
    /// What those within kept of memory, that have left.
    kept_within: i64,
    /// Most bytes in use so far, while it was entered.
    peak: usize,
}

impl Frame {
    fn has_row(&self) -> bool {
        matches!(self.kind, Kind::Row(_))
    }
}

struct Heard {
    began: Instant,
    memory: Memory,
    /// The first two are [`ELSEWHERE`] and [`WAIT`].
    rows: Vec<Spent>,
    known: HashMap<String, usize>,
    kinds: HashMap<u64, Kind>,
    stack: Vec<Frame>,
    slices: Vec<Slice>,
}

const MOVE: &str = "redistribute";
/// The row of what is in no other.
const ELSEWHERE: usize = 0;
/// The name of waits, which count in the rows of others.
const WAIT: usize = 1;

impl Listener {
    /// Runs `f` and listens.
    pub(super) fn listen<T>(
        rank: usize,
        device: &DeviceRef,
        f: impl FnOnce() -> T,
    ) -> (T, Profile) {
        LazyLock::force(&SEVERAL);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let heard = Arc::new(Mutex::new(Heard::new(device)));
        let listener = Self {
            before: dispatcher::get_default(Dispatch::clone),
            heard: Arc::clone(&heard),
            spans: AtomicU64::new(1),
        };
        let _then = AsBefore;
        let result = tracing::subscriber::with_default(listener, f);
        let mut heard = locked(&heard);
        heard.measured();
        let heard = std::mem::replace(&mut *heard, Heard::new(device));
        (result, heard.profile(rank, since.unwrap_or_default()))
    }
}

/// A listener that never leaves, so that `tracing` asks all who listen. While it knows of one alone it asks who listens on the
/// current thread, which is nobody on a thread that has just ended its profile or that has none; so what one rank did would
/// end the profiles of the others.
static SEVERAL: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Deaf));

/// Hears nothing, and lets spans cost what they cost where nobody listens.
struct Deaf;

impl Subscriber for Deaf {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::never()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Makes spans as cheap as they were before somebody listened, also after a panic.
struct AsBefore;

impl Drop for AsBefore {
    fn drop(&mut self) {
        callsite::rebuild_interest_cache();
    }
}

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match is_ours(metadata) {
            true => Interest::always(),
            false => Interest::sometimes(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata) || metadata.is_event() && self.before.enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.spans.fetch_add(1, Ordering::Relaxed);
        let mut fields = Fields::default();
        span.record(&mut fields);
        let mut heard = locked(&self.heard);
        let kind = match span.metadata().name() {
            "wait" => Kind::Wait,
            "vjp" => Kind::Row(heard.row(&format!("vjp of {}", fields.name))),
            MOVE => Kind::Move(heard.row(MOVE)),
            "op" => Kind::Row(heard.row(&fields.name)),
            name => Kind::Row(heard.row(name)),
        };
        heard.kinds.insert(id, kind);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if is_ours(event.metadata()) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            locked(&self.heard).moved(&fields);
        }
        if self.before.enabled(event.metadata()) {
            self.before.event(event);
        }
    }

    fn enter(&self, span: &Id) {
        locked(&self.heard).enter(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        locked(&self.heard).exit(span.into_u64());
    }

    fn try_close(&self, span: Id) -> bool {
        locked(&self.heard).kinds.remove(&span.into_u64());
        true
    }
}

/// What the rank's device has in use. Measurements of others go on when this is dropped, as if there had been none here.
struct Memory {
    device: DeviceRef,
    /// What was in use at the beginning.
    live: usize,
    /// Most bytes in use since the last measurement before this one.
    before: usize,
    /// Most bytes in use since the beginning.
    peak: usize,
    /// What all rows but the first kept.
    kept: i64,
}

impl Memory {
    fn new(device: &DeviceRef) -> Self {
        let now = device.memory();
        device.reset_peak();
        Self {
            device: device.clone(),
            live: now.live,
            before: now.peak,
            peak: now.live,
            kept: 0,
        }
    }

    /// Bytes in use now, and most bytes since this was called before.
    fn read(&mut self) -> (usize, usize) {
        let now = self.device.memory();
        if now.peak > now.live {
            self.device.reset_peak();
        }
        self.peak = self.peak.max(now.peak);
        (now.live, now.peak)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.device.raise_peak(self.before.max(self.peak));
    }
}

/// By how many bytes more are in use.
fn more(from: usize, to: usize) -> i64 {
    to as i64 - from as i64
}

impl Heard {
    fn new(device: &DeviceRef) -> Self {
        let mut heard = Self {
            began: Instant::now(),
            memory: Memory::new(device),
            rows: Vec::new(),
            known: HashMap::new(),
            kinds: HashMap::new(),
            stack: Vec::new(),
            slices: Vec::new(),
        };
        let first = ["elsewhere", "wait"].map(|name| heard.row(name));
        debug_assert_eq!(first, [ELSEWHERE, WAIT]);
        heard
    }

    /// The number of a row.
    fn row(&mut self, name: &str) -> usize {
        if let Some(&row) = self.known.get(name) {
            return row;
        }
        self.rows.push(Spent {
            name: name.to_owned(),
            ..Spent::default()
        });
        self.known.insert(name.to_owned(), self.rows.len() - 1);
        self.rows.len() - 1
    }

    /// The row of what runs now.
    fn current(&self) -> usize {
        let row = self.stack.iter().rev().find_map(|frame| match frame.kind {
            Kind::Row(row) => Some(row),
            Kind::Move(_) | Kind::Wait => None,
        });
        row.unwrap_or(ELSEWHERE)
    }

    fn moved(&mut self, fields: &Fields) {
        let row = self.current();
        let row = &mut self.rows[row];
        row.messages += fields.messages;
        row.received += fields.bytes;
    }

    fn enter(&mut self, span: u64) {
        let Some(&kind) = self.kinds.get(&span) else {
            return;
        };
        // A move within an op, or within another move, is what these do.
        let kind = match kind {
            Kind::Move(row) if self.current() == ELSEWHERE => Kind::Row(row),
            kind => kind,
        };
        let mut live = 0;
        if let Kind::Row(row) = kind {
            self.rows[row].calls += 1;
            live = self.measured();
        }
        self.stack.push(Frame {
            span,
            kind,
            began: Instant::now(),
            within: Duration::ZERO,
            live,
            kept_within: 0,
            peak: live,
        });
    }

    /// Bytes in use now; tells what runs now of the most that were since this was called before.
    fn measured(&mut self) -> usize {
        let (live, peak) = self.memory.read();
        let running = self.stack.iter_mut().rev().find(|frame| frame.has_row());
        match running {
            Some(frame) => frame.peak = frame.peak.max(peak),
            None => {
                let elsewhere = &mut self.rows[ELSEWHERE];
                elsewhere.peak = elsewhere.peak.max(peak as u64);
            }
        }
        live
    }

    /// Takes what a frame of a row kept of memory, and its peak, into account; it is the last on the stack.
    fn remembered(&mut self, row: usize) {
        let live = self.measured();
        let Some((frame, outer)) = self.stack.split_last_mut() else {
            return;
        };
        let kept = more(frame.live, live);
        let spent = &mut self.rows[row];
        spent.kept += kept - frame.kept_within;
        spent.peak = spent.peak.max(frame.peak as u64);
        match outer.iter_mut().rev().find(|frame| frame.has_row()) {
            Some(outer) => {
                outer.kept_within += kept;
                outer.peak = outer.peak.max(frame.peak);
            }
            None => self.memory.kept += kept,
        }
    }

    fn exit(&mut self, span: u64) {
        let last = self.stack.last().filter(|frame| frame.span == span);
        match last.map(|frame| frame.kind) {
            None => return,
            Some(Kind::Row(row)) => self.remembered(row),
            Some(Kind::Move(_) | Kind::Wait) => {}
        }
        let Some(frame) = self.stack.pop() else {
            return;
        };
        let time = frame.began.elapsed();
        let own = time.saturating_sub(frame.within);
        let is_within = |kind: Kind| self.stack.iter().any(|outer| outer.kind == kind);
        // What the frame around it leaves out.
        let accounted = match frame.kind {
            Kind::Wait if is_within(Kind::Wait) => frame.within,
            Kind::Wait => {
                let row = self.current();
                self.rows[row].waiting += own;
                time
            }
            Kind::Move(_) => frame.within,
            Kind::Row(row) => {
                let outermost = !is_within(frame.kind);
                let row = &mut self.rows[row];
                row.own += own;
                if outermost {
                    row.time += time;
                }
                time
            }
        };
        if let Some(outer) = self.stack.last_mut() {
            outer.within += accounted;
        } else {
            self.rows[ELSEWHERE].time += accounted;
        }
        self.slices.push(Slice {
            name: match frame.kind {
                Kind::Wait => WAIT,
                Kind::Row(row) | Kind::Move(row) => row,
            },
            from: frame.began - self.began,
            time,
        });
    }

    fn profile(mut self, rank: usize, began: Duration) -> Profile {
        let time = self.began.elapsed();
        let live = self.measured();
        let kept = more(self.memory.live, live) - self.memory.kept;
        let peak = self.memory.peak as u64;
        // So far it has what was in spans, of which waiting is its own.
        let elsewhere = &mut self.rows[ELSEWHERE];
        elsewhere.own = time.saturating_sub(elsewhere.time);
        elsewhere.time = elsewhere.own + elsewhere.waiting;
        elsewhere.kept = kept;
        let names = self.rows.iter().map(|row| row.name.clone()).collect();
        let mut rows = self.rows;
        rows.retain(|row| row.calls > 0 || row.name == "elsewhere");
        rows.sort_by_key(|row| std::cmp::Reverse(row.own + row.waiting));
        Profile {
            rank,
            time,
            peak,
            rows,
            slices: self.slices,
            names,
            began,
        }
    }
}

/// Whether it is a span of the crates below, or tells what moved.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    let is_traced =
        *metadata.level() == tracing::Level::TRACE && metadata.target().starts_with("shard_");
    is_traced && (metadata.is_span() || metadata.fields().field("messages").is_some())
}

/// What spans and events say.
#[derive(Default)]
struct Fields {
    name: String,
    messages: u64,
    bytes: u64,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if matches!(field.name(), "name" | "op") {
            value.clone_into(&mut self.name);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "messages" => self.messages = value,
            "bytes" => self.bytes = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

/// What was heard, also after a panic of what was profiled.
fn locked(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}
