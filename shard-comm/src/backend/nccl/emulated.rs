//! NCCL emulated by threads of this process: for tests where there is no GPU.
//!
//! The emulation keeps the promises of NCCL and no more. A group of calls is one piece of work on a stream: its calls make
//! progress together, and nothing behind it begins before all of them are done. Nothing is buffered, so a send is done only
//! when the other rank receives. A communicator that is aborted ends its own work, and nobody else's. Calls are queued only
//! after they were polled a few times. Ranks connect when they first need it, inside a group of calls, which is not queued
//! before: both ranks of a pair must come with calls that mirror each other, and all ranks must come to a collective. A split
//! waits until all that was queued is done. What real ranks would hang on hangs here; what NCCL leaves undefined (lengths or
//! calls that differ) is an error.
#![expect(
    unsafe_code,
    reason = "reads and writes the emulation's memory by address"
)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use shard_spec::ReduceOp;

use super::library::{
    Batch, Call, Clique, Data, Library, Op, Patience, Place, Ticket, Version, check_parts, failed,
};
use crate::cuda::Cuda;
use crate::{DType, Result, Strided, kernel};

/// The library; every process has one.
#[derive(Debug)]
pub(super) struct Emulated;

/// How often a call is polled before it is queued.
const LOOKS: u32 = 3;

/// Groups by their names: the ticket, or for a split the parent's name, the number of the split, and the color.
static FABRICS: LazyLock<Mutex<HashMap<Vec<u64>, Weak<Fabric>>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Library for Emulated {
    fn version(&self) -> Version {
        Version::SHARES_GPUS
    }

    fn ticket(&self) -> Result<Ticket> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = u64::from(std::process::id());
        let mut bytes = [number, process].map(u64::to_le_bytes).concat();
        bytes.resize(Ticket::BYTES, 0);
        Ok(Ticket(bytes))
    }

    fn gpu(&self, _: &Cuda) -> Result<[u8; 16]> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(u128::from(number).to_le_bytes())
    }

    fn join(
        &self,
        ticket: &Ticket,
        rank: usize,
        size: usize,
        _: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Box<dyn Clique>> {
        let words = ticket.0.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let words: Vec<u64> = words.collect();
        if words.get(1) != Some(&u64::from(std::process::id())) {
            let text = "it is played by the threads of one process only";
            return Err(failed("ncclCommInitRankConfig", text));
        }
        let fabric = Fabric::of(words, size);
        EmulatedClique::join(fabric, rank, patience)
    }
}

/// The state that the ranks of a group share.
#[derive(Debug)]
struct Fabric {
    name: Vec<u64>,
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many ranks have joined; and, by the number of a split, what the ranks say in it.
    joined: usize,
    colors: HashMap<u64, Vec<Option<Color>>>,
    /// Elements that are sent and not yet received, by sender, receiver and kind of call, in order.
    offers: HashMap<(usize, usize, Kind), VecDeque<Offer>>,
    /// The connections that a rank needs with another one, by the two of them, in order.
    greetings: HashMap<(usize, usize), VecDeque<Ends>>,
    /// How many ranks have called a kind of collective.
    callers: HashMap<Kind, usize>,
}

/// The ends of connections that a rank needs with another one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Ends {
    sends: bool,
    recvs: bool,
}

/// A rank's color and key in a split, if it joins.
type Color = Option<(usize, usize)>;

/// Kinds of calls. Calls of one kind match in the order in which they are made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Message,
    AllGather,
    Broadcast,
    ReduceScatter,
    AllReduce,
}

/// Elements that wait to be received. They stay where they are until the offer is taken or withdrawn.
#[derive(Clone, Debug)]
struct Offer {
    number: u64,
    address: u64,
    bytes: usize,
}

impl Fabric {
    fn of(name: Vec<u64>, size: usize) -> Arc<Self> {
        let mut fabrics = lock(&FABRICS);
        if let Some(fabric) = fabrics.get(&name).and_then(Weak::upgrade) {
            return fabric;
        }
        let fabric = Arc::new(Self {
            name: name.clone(),
            size,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        fabrics.insert(name, Arc::downgrade(&fabric));
        fabric
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        lock(&FABRICS).retain(|name, fabric| *name != self.name || fabric.strong_count() > 0);
    }
}

/// One communicator.
struct EmulatedClique {
    fabric: Arc<Fabric>,
    rank: usize,
    splits: Cell<u64>,
    aborted: Arc<AtomicBool>,
    /// The first error of work that was queued.
    wrong: Arc<Mutex<Option<String>>>,
    /// Groups of calls that are queued and not done.
    outstanding: Arc<AtomicUsize>,
    connected: RefCell<Connected>,
    /// The group of calls that is not yet queued.
    pending: RefCell<Option<Connecting>>,
}

/// The connections of a rank.
#[derive(Debug, Default)]
struct Connected {
    /// For each peer, whether this rank can send to it, and whether it can receive from it.
    ends: HashSet<(usize, bool)>,
    /// The kinds of collectives that all ranks have come to.
    kinds: HashSet<Kind>,
}

/// A group of calls that waits for connections.
#[derive(Debug)]
struct Connecting {
    tasks: Vec<Task>,
    looks: u32,
    /// Peers that must come with the mirror image of these ends.
    peers: Vec<(usize, Ends)>,
    /// Collectives that all ranks must have come to.
    kinds: Vec<Kind>,
}

impl EmulatedClique {
    fn join(fabric: Arc<Fabric>, rank: usize, patience: Patience<'_>) -> Result<Box<dyn Clique>> {
        lock(&fabric.state).joined += 1;
        // A communicator exists only when all ranks have joined.
        while lock(&fabric.state).joined < fabric.size {
            patience()?;
            std::thread::yield_now();
        }
        Ok(Box::new(Self {
            fabric,
            rank,
            splits: Cell::new(0),
            aborted: Arc::default(),
            wrong: Arc::default(),
            outstanding: Arc::default(),
            connected: RefCell::default(),
            pending: RefCell::default(),
        }))
    }

    /// Translates a call into moves between ranks.
    fn task(&self, call: &Call, batch: &mut Batch, cuda: &Cuda) -> Result<Task> {
        let (me, size) = (self.rank, self.fabric.size);
        let part = |place: Place, k: usize, of: usize| Place {
            address: place.address + (k * (place.bytes() / of)) as u64,
            elements: place.elements / of,
            dtype: place.dtype,
        };
        let mut task = Task::new(Kind::Message);
        match call {
            Call::Send { to, from } => task.sends.push((*to, batch.source(cuda, from)?)),
            Call::Recv { from, into } => {
                task.recvs.push((*from, batch.destination(cuda, into)?));
            }
            Call::AllGather { from, into } => {
                let (at, to) = (batch.source(cuda, from)?, batch.destination(cuda, into)?);
                check_parts("ncclAllGather", at.elements, to.elements, size)?;
                task.kind = Kind::AllGather;
                for peer in 0..size {
                    task.sends.push((peer, at));
                    task.recvs.push((peer, part(to, peer, size)));
                }
            }
            Call::Broadcast { root, data } => {
                task.kind = Kind::Broadcast;
                match data {
                    Data::Source(from) => {
                        let at = batch.source(cuda, from)?;
                        let others = (0..size).filter(|&peer| peer != me);
                        task.sends.extend(others.map(|peer| (peer, at)));
                    }
                    Data::Sink(into) => {
                        task.recvs.push((*root, batch.destination(cuda, into)?));
                    }
                }
            }
            Call::ReduceScatter { op, from, into } => {
                let (at, to) = (batch.source(cuda, from)?, batch.destination(cuda, into)?);
                check_parts("ncclReduceScatter", to.elements, at.elements, size)?;
                task.kind = Kind::ReduceScatter;
                task.sends
                    .extend((0..size).map(|peer| (peer, part(at, peer, size))));
                task.combine = Some((*op, to));
            }
            Call::AllReduce { op, from, into } => {
                let (at, to) = (batch.source(cuda, from)?, batch.destination(cuda, into)?);
                check_parts("ncclAllReduce", at.elements, to.elements, 1)?;
                task.kind = Kind::AllReduce;
                task.sends.extend((0..size).map(|peer| (peer, at)));
                task.combine = Some((*op, to));
            }
        }
        Ok(task)
    }

    /// Tells peers which connections this rank's calls need for the first time.
    fn connect(&self, tasks: Vec<Task>) -> Connecting {
        let (mut peers, mut kinds) = (Vec::new(), Vec::new());
        let connected = &mut *self.connected.borrow_mut();
        let mut state = lock(&self.fabric.state);
        for kind in tasks.iter().map(|task| task.kind) {
            if kind != Kind::Message && connected.kinds.insert(kind) {
                *state.callers.entry(kind).or_default() += 1;
                kinds.push(kind);
            }
        }
        let messages = || tasks.iter().filter(|task| task.kind == Kind::Message);
        let sends: BTreeSet<usize> = messages().flat_map(|t| &t.sends).map(|s| s.0).collect();
        let recvs: BTreeSet<usize> = messages().flat_map(|t| &t.recvs).map(|r| r.0).collect();
        for peer in sends
            .union(&recvs)
            .copied()
            .filter(|&peer| peer != self.rank)
        {
            let ends = Ends {
                sends: sends.contains(&peer) && connected.ends.insert((peer, true)),
                recvs: recvs.contains(&peer) && connected.ends.insert((peer, false)),
            };
            if ends != Ends::default() {
                let greetings = state.greetings.entry((self.rank, peer)).or_default();
                greetings.push_back(ends);
                peers.push((peer, ends));
            }
        }
        Connecting {
            tasks,
            looks: LOOKS,
            peers,
            kinds,
        }
    }

    /// Whether all ranks that a group of calls waits for have come.
    fn is_connected(&self, group: &mut Connecting) -> Result<bool> {
        let (mut state, me) = (lock(&self.fabric.state), self.rank);
        while let Some(&(peer, own)) = group.peers.last() {
            let greetings = state.greetings.entry((peer, me)).or_default();
            let Some(theirs) = greetings.pop_front() else {
                return Ok(false);
            };
            if (theirs.sends, theirs.recvs) != (own.recvs, own.sends) {
                let text = format!("rank {me} connects for {own:?}, rank {peer} for {theirs:?}");
                return Err(failed("ncclGroupEnd", &text));
            }
            group.peers.pop();
        }
        let came = |kind: &Kind| state.callers.get(kind) == Some(&self.fabric.size);
        group.looks = group.looks.saturating_sub(1);
        Ok(group.looks == 0 && group.kinds.iter().all(came))
    }

    fn alive(&self, call: &'static str) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(failed(call, "the communicator was aborted"));
        }
        match &*lock(&self.wrong) {
            Some(text) => Err(failed(call, text)),
            None => Ok(()),
        }
    }
}

impl Clique for EmulatedClique {
    fn begin(&self, batch: &mut Batch, stream: &Cuda) -> Result<()> {
        self.alive("ncclGroupEnd")?;
        if self.pending.borrow().is_some() {
            return Err(failed("ncclGroupEnd", "a call before the last one is done"));
        }
        let calls = std::mem::take(&mut batch.calls);
        let tasks = calls.iter().map(|call| self.task(call, batch, stream));
        let tasks = tasks.collect::<Result<Vec<_>>>()?;
        *self.pending.borrow_mut() = Some(self.connect(tasks));
        Ok(())
    }

    fn is_queued(&self, stream: &Cuda) -> Result<bool> {
        self.alive("ncclGroupEnd")?;
        let mut pending = self.pending.borrow_mut();
        if let Some(group) = &mut *pending
            && !self.is_connected(group)?
        {
            return Ok(false);
        }
        let Some(Connecting { tasks, .. }) = pending.take() else {
            return Ok(true);
        };
        let (fabric, me) = (Arc::clone(&self.fabric), self.rank);
        let (aborted, wrong) = (Arc::clone(&self.aborted), Arc::clone(&self.wrong));
        let outstanding = Arc::clone(&self.outstanding);
        outstanding.fetch_add(1, Ordering::AcqRel);
        let work = move || {
            if let Err(text) = fabric.run(me, &tasks, &aborted) {
                lock(&wrong).get_or_insert(text);
            }
            outstanding.fetch_sub(1, Ordering::AcqRel);
        };
        stream.queue_emulated(work)?;
        Ok(true)
    }

    fn split(
        &self,
        color: Option<usize>,
        key: usize,
        _: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Option<Box<dyn Clique>>> {
        self.alive("ncclCommSplit")?;
        if self.outstanding.load(Ordering::Acquire) > 0 || self.pending.borrow().is_some() {
            let text = "operations are outstanding, which NCCL may wait for for ever";
            return Err(failed("ncclCommSplit", text));
        }
        let count = self.splits.get();
        self.splits.set(count + 1);
        let size = self.fabric.size;
        {
            let mut state = lock(&self.fabric.state);
            let told = state
                .colors
                .entry(count)
                .or_insert_with(|| vec![None; size]);
            told[self.rank] = Some(color.map(|color| (color, key)));
        }
        let all = loop {
            let told = lock(&self.fabric.state).colors.get(&count).cloned();
            let told: Option<Vec<_>> = told.into_iter().flatten().collect();
            match told {
                Some(told) if told.len() == size => break told,
                _ => patience()?,
            }
            std::thread::yield_now();
        };
        let Some(color) = color else {
            return Ok(None);
        };
        let mut members: Vec<(usize, usize)> = all
            .iter()
            .enumerate()
            .filter_map(|(rank, told)| told.filter(|t| t.0 == color).map(|t| (t.1, rank)))
            .collect();
        members.sort_unstable();
        let index = members.iter().position(|&(_, rank)| rank == self.rank);
        let mut name = self.fabric.name.clone();
        name.extend([count, color as u64]);
        let fabric = Fabric::of(name, members.len());
        Self::join(fabric, index.unwrap_or(0), patience).map(Some)
    }

    fn check(&self) -> Result<()> {
        self.alive("ncclCommGetAsyncError")
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        // Under the lock, so that work that is about to wait sees it.
        drop(lock(&self.fabric.state));
        self.fabric.changed.notify_all();
    }
}

impl fmt::Debug for EmulatedClique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.rank, self.fabric.size);
        write!(f, "EmulatedClique(rank {rank} of {size})")
    }
}

/// One call as moves, which make progress together.
#[derive(Debug)]
struct Task {
    kind: Kind,
    sends: Vec<(usize, Place)>,
    recvs: Vec<(usize, Place)>,
    /// The combination of what all ranks send to this one.
    combine: Option<(Op, Place)>,
}

/// A receive that is awaited: sender, kind of call, destination; for a term to be combined, the combination and its rank.
type Awaited = (usize, Kind, Place, Option<(usize, usize)>);

impl Task {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            sends: Vec::new(),
            recvs: Vec::new(),
            combine: None,
        }
    }
}

/// What a rank still waits for in a group of calls.
#[derive(Default)]
struct Pending {
    /// What it offers that nobody has taken yet.
    sent: Vec<((usize, usize, Kind), u64)>,
    open: Vec<Awaited>,
    /// For each combination, the terms of all ranks.
    terms: Vec<Vec<Vec<u8>>>,
}

impl Fabric {
    /// Does the work of a group of calls at one rank, and returns when all of it is done.
    fn run(&self, me: usize, tasks: &[Task], aborted: &AtomicBool) -> Result<(), String> {
        let mut state = lock(&self.state);
        let mut pending = self.offer(me, tasks, &mut state);
        self.changed.notify_all();
        let result = loop {
            let taken = pending.take(me, &mut state);
            if taken != Ok(false) {
                self.changed.notify_all();
            }
            if let Err(error) = taken {
                break Err(error);
            }
            pending.sent.retain(|(key, number)| {
                let offers = state.offers.get(key);
                offers.is_some_and(|offers| offers.iter().any(|o| o.number == *number))
            });
            if pending.open.is_empty() && pending.sent.is_empty() {
                break Ok(());
            }
            if aborted.load(Ordering::Acquire) {
                break Err("aborted".to_owned());
            }
            let slept = self.changed.wait_timeout(state, Duration::from_millis(20));
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        };
        // Offers that nobody will take any more are withdrawn, because their memory may be used again.
        for (key, number) in pending.sent {
            if let Some(offers) = state.offers.get_mut(&key) {
                offers.retain(|offer| offer.number != number);
            }
        }
        drop(state);
        result?;
        let combined = tasks.iter().filter_map(|task| task.combine);
        let combined = combined.zip(pending.terms);
        combined.for_each(|((op, at), terms)| combine(op, at, &terms));
        Ok(())
    }

    /// Offers what a rank sends, and says what it awaits.
    fn offer(&self, me: usize, tasks: &[Task], state: &mut State) -> Pending {
        let mut pending = Pending::default();
        for task in tasks {
            for &(peer, place) in &task.sends {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let key = (me, peer, task.kind);
                let offer = Offer {
                    number,
                    address: place.address,
                    bytes: place.bytes(),
                };
                state.offers.entry(key).or_default().push_back(offer);
                pending.sent.push((key, number));
            }
            let recvs = task.recvs.iter();
            (pending.open).extend(recvs.map(|&(peer, at)| (peer, task.kind, at, None)));
            if let Some((_, at)) = task.combine {
                let slot = pending.terms.len();
                pending.terms.push(vec![Vec::new(); self.size]);
                let term = |peer| (peer, task.kind, at, Some((slot, peer)));
                pending.open.extend((0..self.size).map(term));
            }
        }
        pending
    }
}

impl Pending {
    /// Takes what is offered of what is awaited; whether there was any.
    fn take(&mut self, me: usize, state: &mut State) -> Result<bool, String> {
        let (mut taken, mut error) = (false, None);
        // Among equal ones the first comes first: calls of one kind match in order.
        let mut passed: Vec<(usize, Kind)> = Vec::new();
        self.open.retain(|&(peer, kind, at, term)| {
            if error.is_some() || passed.contains(&(peer, kind)) {
                return true;
            }
            let offers = state.offers.entry((peer, me, kind)).or_default();
            let Some(offer) = offers.pop_front() else {
                passed.push((peer, kind));
                return true;
            };
            taken = true;
            if offer.bytes != at.bytes() {
                let (sent, want) = (offer.bytes, at.bytes());
                error = Some(format!(
                    "rank {peer} sent {sent} bytes, {want} were expected"
                ));
                return false;
            }
            let mut bytes = vec![0; offer.bytes];
            // SAFETY: the sender keeps the elements it offers until the offer is gone, and nobody writes them meanwhile;
            // nobody else uses this rank's place until its stream is past this work.
            unsafe {
                copy(offer.address, bytes.as_mut_ptr() as u64, offer.bytes);
                if term.is_none() {
                    copy(bytes.as_ptr() as u64, at.address, offer.bytes);
                }
            }
            if let Some((slot, peer)) = term {
                self.terms[slot][peer] = bytes;
            }
            false
        });
        error.map_or(Ok(taken), Err)
    }
}

/// Combines terms in an order of the library's own: from the last rank to the first.
fn combine(op: Op, at: Place, terms: &[Vec<u8>]) {
    let op = match (op, at.dtype) {
        (Op::Sum, _) => ReduceOp::Sum,
        (Op::Prod, _) => ReduceOp::Prod,
        (Op::Max, _) => ReduceOp::Max,
        (Op::Min, _) => ReduceOp::Min,
    };
    // The library has no truth values.
    let dtype = match at.dtype {
        DType::Bool => DType::U8,
        other => other,
    };
    let aligned = |term: &Vec<u8>| {
        let mut words = vec![0_u64; term.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<_, u8>(&mut words)[..term.len()].copy_from_slice(term);
        words
    };
    let words: Vec<Vec<u64>> = terms.iter().rev().map(aligned).collect();
    let bytes = |words: &Vec<u64>| at.bytes().min(8 * words.len());
    let sources: Vec<(&[u8], usize)> = words
        .iter()
        .map(|w| (&bytemuck::cast_slice::<_, u8>(w)[..bytes(w)], 0))
        .collect();
    let mut result = vec![0_u64; at.bytes().div_ceil(8)];
    let all = Strided::contiguous(&[at.elements]);
    let written = &mut bytemuck::cast_slice_mut::<_, u8>(&mut result)[..at.bytes()];
    kernel::reduce(op.into(), dtype, &sources, &[1], written, &all);
    // SAFETY: nobody else uses the place until this rank's stream is past this work.
    unsafe { copy(written.as_ptr() as u64, at.address, at.bytes()) };
}

/// Copies bytes of the emulated GPU's memory or of the host's own.
///
/// # Safety
/// Both ranges are allocated; nobody writes the source, and nobody else uses the destination.
unsafe fn copy(from: u64, to: u64, bytes: usize) {
    // SAFETY: the caller's promise; the two may be one place, as in a message to oneself.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
