//! A communicator that puts faults into another one, for testing how programs and backends react to them.

mod held;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Decorator;
use crate::{
    Buffer, BufferMut, CommError, Communicator, DType, DeviceRef, ExchangePlan, Handle, Ledger,
    Pieces, Result, Site,
};
use crate::{Link, LinkSide, Pending, Request, Stage, Target};
use held::{Lane, Waiting, What};

/// One thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The rank of the launch at which it happens.
    pub rank: usize,
    /// The operation of that rank in which it happens, counted from 0 over all its groups: exchanges, messages and splits.
    pub call: u64,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// What goes wrong in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The rank comes late: others overtake it.
    Delay(Duration),
    /// The operation is held back until its rank starts the next one of the same group (of a message: with the same
    /// peer) or waits for anything. Operations of other groups go ahead of it, and other ranks go ahead. Ranks may do this to one
    /// another at any time, because within each group the order is that of the program; so the result must be right.
    HeldBack,
    /// The operation is held back in the same way, and the next one of its group goes ahead of it too: the rank has the two in
    /// another order than the other ranks. If the rank waits before there is a next one, nothing has happened; otherwise all
    /// ranks must get an error. If the two operations are alike, only [`checked`](crate::checked) can tell that they changed
    /// places.
    Overtaken,
    /// The operation gets lost on its way: its rank believes that it has started it, but no other rank ever sees it.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// The buffer that the rank sends from is one element too short.
    Truncate,
    /// One bit of what it sends is wrong. Only [checksums](crate::Checks::checksums) can tell.
    Corrupt,
    /// The rank sends one peer one element less than that peer expects.
    WrongCount,
    /// The rank starts another operation than the others.
    WrongOp,
    /// The rank panics.
    Panic,
    /// The rank gives up: this call and all later ones return an error.
    Return,
}

impl FaultKind {
    /// Each kind once; a delay of a millisecond.
    pub const ALL: [Self; 11] = [
        Self::Delay(Duration::from_millis(1)),
        Self::HeldBack,
        Self::Overtaken,
        Self::Drop,
        Self::Duplicate,
        Self::Truncate,
        Self::Corrupt,
        Self::WrongCount,
        Self::WrongOp,
        Self::Panic,
        Self::Return,
    ];

    /// Whether it is not a fault but something that may happen at any time: the result must be right.
    pub fn is_harmless(self) -> bool {
        matches!(self, Self::Delay(_) | Self::HeldBack)
    }

    /// Whether the operation is held back; if so, whether the next one overtakes it.
    fn holds(self) -> Option<bool> {
        match self {
            Self::HeldBack => Some(false),
            Self::Overtaken => Some(true),
            _ => None,
        }
    }
}

/// Puts faults into a communicator. Splits of it have them too.
///
/// The promise of [`checked`](crate::checked)`(faulty(backend))` is that of the backend: the right result, or the same
/// root cause on every rank that survives, at its current or next call; nothing hangs. Each rank ignores the faults of other
/// ranks, so all ranks may be given the same list.
///
/// ```
/// use shard_comm::{faulty, local, CommError, Fault, FaultKind};
/// use std::rc::Rc;
/// let fault = Fault { rank: 2, call: 1, kind: FaultKind::WrongOp };
/// let errors = local::run(3, |comm| {
///     let comm = faulty(Rc::new(comm), &[fault]);
///     comm.barrier().unwrap();
///     comm.barrier().unwrap_err()
/// })
/// .unwrap();
/// assert!(matches!(&errors[0], CommError::Mismatch(m) if m.field == "operation" && m.rank_b == 2));
/// assert_eq!(errors[0], errors[2]);
/// ```
pub fn faulty(inner: Rc<dyn Communicator>, faults: &[Fault]) -> Rc<Faulty> {
    let me = inner.members().get(inner.rank()).copied();
    let mine = faults.iter().filter(|f| Some(f.rank) == me).copied();
    Rc::new(Faulty {
        inner,
        mind: Rc::new(Mind {
            faults: mine.collect(),
            waiting: Rc::default(),
            calls: Cell::new(0),
            returned: Cell::new(false),
            lost: RefCell::default(),
        }),
    })
}

/// The state that all communicators of a rank share.
struct Mind {
    faults: Vec<Fault>,
    calls: Cell<u64>,
    returned: Cell<bool>,
    /// Operations that got lost. Their memory stays in use as if they were in flight.
    lost: RefCell<Vec<Request>>,
    waiting: Rc<Waiting>,
}

/// A communicator with faults in it; see [`faulty`]. It derefs to [`dyn Communicator`](Communicator).
pub struct Faulty {
    inner: Rc<dyn Communicator>,
    mind: Rc<Mind>,
}

impl Deref for Faulty {
    type Target = dyn Communicator;

    fn deref(&self) -> &Self::Target {
        self
    }
}

impl Faulty {
    /// How many operations this rank has started, over all groups split from this one: [`Fault::call`] counts them in the same
    /// way.
    pub fn calls(&self) -> u64 {
        self.mind.calls.get()
    }

    /// The numbers of this rank's operations so far that the next one of their group (of messages: with the same peer) would have
    /// overtaken under [`FaultKind::Overtaken`], because it began before the rank waited for anything.
    ///
    /// ```
    /// use shard_comm::{faulty, local, Monoid};
    /// use std::rc::Rc;
    /// let overtakable = local::run(2, |comm| {
    ///     let comm = faulty(Rc::new(comm), &[]);
    ///     let mine = comm.device().upload_slice(&[1.0f64]).unwrap();
    ///     comm.barrier().unwrap();
    ///     let first = comm.start_all_reduce(&mine, Monoid::SUM).unwrap();
    ///     let second = comm.start_all_reduce(&mine, Monoid::MAX).unwrap();
    ///     first.wait().unwrap();
    ///     second.wait().unwrap();
    ///     comm.overtakable()
    /// })
    /// .unwrap();
    /// assert_eq!(overtakable, [[1], [1]]);
    /// ```
    pub fn overtakable(&self) -> Vec<u64> {
        self.mind.waiting.followed()
    }

    /// The fault of the call that begins now, if it has one.
    ///
    /// # Errors
    /// If the rank has given up.
    #[expect(clippy::panic, reason = "a panic is what was asked for")]
    fn next(&self, op: &'static str) -> Result<Option<FaultKind>> {
        let call = self.mind.calls.get();
        self.mind.calls.set(call + 1);
        let fault = self.mind.faults.iter().find(|f| f.call == call);
        let kind = fault.map(|f| f.kind);
        match kind {
            Some(FaultKind::Delay(time)) => std::thread::sleep(time),
            Some(FaultKind::Panic) => panic!("injected fault in call {call} ({op})"),
            Some(FaultKind::Return) => self.mind.returned.set(true),
            _ => {}
        }
        if self.mind.returned.get() {
            return Err(CommError::Closed { op });
        }
        Ok(kind)
    }

    fn note(&self, lane: Lane) {
        let call = self.mind.calls.get().saturating_sub(1);
        self.mind.waiting.note(&self.inner, lane, call);
    }

    /// A handle of an operation that no other rank ever sees.
    fn lost(&self) -> Handle {
        Handle::new(Box::new(Lost(Rc::clone(&self.inner))))
    }

    fn alloc_like(&self, target: &Target) -> Result<Target> {
        Ok(match target {
            Target::Write(dst) => Target::Write(self.device().alloc(dst.dtype(), dst.len())?),
            Target::Keep(result) => Target::Keep(result.clone()),
            Target::Same => Target::Same,
            Target::Nothing => Target::Nothing,
            Target::Elsewhere => Target::Elsewhere,
        })
    }

    fn twice(&self, request: &Request) -> Result<Request> {
        let again = |stage: &Stage| -> Result<Stage> {
            Ok(Stage {
                plan: Arc::clone(&stage.plan),
                target: self.alloc_like(&stage.target)?,
            })
        };
        Ok(Request {
            stages: request.stages.iter().map(again).collect::<Result<_>>()?,
            sources: request.sources.clone(),
            status: request.status.clone(),
            guard: request.guard.clone(),
            past: request.past.clone(),
            direct: request.direct.clone(),
            ..*request
        })
    }

    /// Starts an operation in its turn: before or after the one that is held back.
    fn in_turn(&self, lane: Lane, start: impl FnOnce() -> Result<Handle>) -> Result<Handle> {
        let waiting = &self.mind.waiting;
        waiting.before(&self.inner, lane);
        let handle = start()?;
        waiting.after(&self.inner, lane);
        Ok(waiting.watch(&self.inner, handle))
    }

    /// Starts an operation with this fault in it.
    fn spoilt(&self, mut request: Request, kind: Option<FaultKind>) -> Result<Handle> {
        match kind {
            Some(FaultKind::Drop) => {
                self.mind.lost.borrow_mut().push(request);
                return Ok(self.lost());
            }
            Some(FaultKind::Duplicate) => {
                let again = self.twice(&request)?;
                let handle = self.inner.post(request)?;
                drop(self.inner.post(again)?);
                return Ok(handle);
            }
            Some(FaultKind::Truncate) => {
                if let Some(source) = request.sources.iter_mut().find(|s| !s.is_empty()) {
                    *source = shorter(source);
                }
            }
            Some(FaultKind::Corrupt) => {
                if let Some(stage) = request.stages.first()
                    && let Some(piece) = stage.plan.send.first()
                    && let Some(source) = request.sources.get_mut(piece.source)
                {
                    *source = corrupted(self.device(), source, piece.src_offset)?;
                }
            }
            Some(FaultKind::WrongCount) => {
                let me = self.rank();
                if let Some(stage) = request.stages.first_mut() {
                    stage.plan = Arc::new(one_less(&stage.plan, me));
                }
            }
            Some(FaultKind::WrongOp) => {
                let plan = Arc::new(ExchangePlan::empty("another operation"));
                request = Request::status(plan, Ok(()), request.site);
            }
            _ => {}
        }
        self.inner.post(request)
    }

    /// Starts a message with this fault in it.
    fn spoilt_link(&self, mut link: Link, kind: Option<FaultKind>) -> Result<Handle> {
        match (kind, &mut link.side) {
            (Some(FaultKind::Drop), _) => return Ok(self.lost()),
            (Some(FaultKind::Duplicate), side) => {
                let side = match side {
                    LinkSide::Send(data) => LinkSide::Send(data.clone()),
                    LinkSide::Recv(dst) => {
                        LinkSide::Recv(self.device().alloc(dst.dtype(), dst.len())?)
                    }
                };
                let again = Link {
                    side,
                    status: link.status.clone(),
                    guard: link.guard.clone(),
                    ..link
                };
                let handle = self.inner.post_link(link)?;
                drop(self.inner.post_link(again)?);
                return Ok(handle);
            }
            (Some(FaultKind::Truncate | FaultKind::WrongCount), LinkSide::Send(data)) => {
                *data = shorter(data);
            }
            (Some(FaultKind::Corrupt), LinkSide::Send(data)) if !data.is_empty() => {
                *data = corrupted(self.device(), data, 0)?;
            }
            _ => {}
        }
        self.inner.post_link(link)
    }
}

impl Decorator for Faulty {
    fn inner(&self) -> &Rc<dyn Communicator> {
        &self.inner
    }

    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator> {
        Rc::new(Self {
            inner: group,
            mind: Rc::clone(&self.mind),
        })
    }

    fn post(&self, request: Request) -> Result<Handle> {
        let kind = self.next(request.name())?;
        self.note(None);
        if let Some(overtaken) = kind.and_then(FaultKind::holds) {
            let what = What::Operation(request);
            let waiting = &self.mind.waiting;
            return Ok(waiting.hold(&self.inner, None, overtaken, what));
        }
        self.in_turn(None, || self.spoilt(request, kind))
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        let kind = self.next("message")?;
        let lane = Some((link.peer, link.participant()));
        self.note(lane);
        if let Some(overtaken) = kind.and_then(FaultKind::holds) {
            let what = What::Message(link);
            let waiting = &self.mind.waiting;
            return Ok(waiting.hold(&self.inner, lane, overtaken, what));
        }
        self.in_turn(lane, || self.spoilt_link(link, kind))
    }

    fn before_split(&self, site: Site) -> Result<()> {
        // A split waits for all of the group.
        let kind = self.next("split")?;
        self.mind.waiting.release();
        match kind {
            Some(FaultKind::Drop) => self.lost().wait_optional().map(drop)?,
            Some(FaultKind::WrongOp) => {
                let plan = Arc::new(ExchangePlan::empty("another operation"));
                let request = Request::status(plan, Ok(()), site);
                self.inner.post(request)?.wait_optional().map(drop)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("faults", &self.mind.faults)
            .finish()
    }
}

/// A handle that waits for what will never come, as its rank would: for a message of its own.
struct Lost(Rc<dyn Communicator>);

impl Pending for Lost {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        let nowhere: BufferMut = self.0.device().alloc(DType::U8, 0)?;
        self.0
            .post_link(Link {
                peer: self.0.rank(),
                side: LinkSide::Recv(nowhere),
                elsewhere: false,
                status: Ok(()),
                site: std::panic::Location::caller(),
                guard: crate::Guard::default(),
            })?
            .wait_optional()
    }

    fn is_done(&mut self) -> bool {
        false
    }

    fn device(&self) -> &DeviceRef {
        self.0.device()
    }

    fn ledger(&self) -> Option<&Ledger> {
        Some(self.0.ledger())
    }

    fn park(&mut self) {}
}

fn shorter(buffer: &Buffer) -> Buffer {
    buffer.slice(0..buffer.len().saturating_sub(1))
}

/// A copy in which one bit of element `at` is different.
fn corrupted(device: &DeviceRef, buffer: &Buffer, at: usize) -> Result<Buffer> {
    let mut bytes = device.download(buffer)?;
    // The bit is in the most significant byte, so that no tolerance forgives it; a truth value stays one.
    let byte = (at + 1) * buffer.dtype().size() - 1;
    if let Some(byte) = bytes.get_mut(byte) {
        *byte ^= 1;
    }
    Ok(device.upload(buffer.dtype(), &bytes)?)
}

/// A plan that sends one peer one element less (if the piece is a run) or one row less (if it is a box of rows).
fn one_less(plan: &ExchangePlan, me: usize) -> ExchangePlan {
    let mut send = Vec::new();
    let mut done = false;
    for piece in plan.send.iter() {
        let mut piece = piece.to_piece();
        if !done && piece.peer != me && !piece.shape.is_empty() {
            piece.shape[0] -= 1;
            done = true;
        }
        send.push(piece);
    }
    let id = if done { plan.id ^ 1 } else { plan.id };
    let send: Pieces = send.into();
    ExchangePlan::new(plan.name, id, plan.recv.clone(), send, plan.fold, plan.fill)
}
