//! A backend in one file: ranks are threads that tell each other everything over channels.
//!
//! What an operation is, when ranks disagree, which elements are read from where, and what the ledger counts: all that is done
//! by functions of [`shard_comm::backend`]. What is left is what makes a backend, and stands here:
//!
//! - **names**: how an exchange is called, so that all who take part find each other ([`Key`]);
//! - **ways**: how a post comes to the other ranks ([`Rank::bring`]);
//! - **progress**: how operations go on whatever their rank waits for ([`Rank::progress`]);
//! - **ends**: what becomes of those who wait for a rank that failed, ended or never comes ([`Rank::give_up`]).
//!
//! Posts are shared by count and what they hold is never written again, so ranks read their peers' buffers where they are. Between
//! processes a post would travel as bytes, with what its reader is to have of its sources.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use shard_comm::backend::{Post, label, receive, validate};
use shard_comm::{
    Buffer, CommError, Communicator, DType, DeviceRef, ErrorClass, ExchangePlan, Handle,
    LaunchError, Ledger, Link, Pending, Piece, PlanCache, Request, Result, Site, Target,
    TimeoutReport, WaitLine, panic_message,
};

/// Runs `f` on a rank for each device, and returns the results in rank order. Who waits longer than `patience` gives up.
pub(crate) fn run<T: Send>(
    devices: Vec<DeviceRef>,
    patience: Duration,
    f: impl Fn(ChannelComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    if devices.is_empty() {
        return Err(LaunchError::NoRanks);
    }
    let everyone: Arc<[usize]> = (0..devices.len()).collect();
    let (peers, inboxes): (Vec<_>, Vec<_>) = devices.iter().map(|_| channel()).unzip();
    let failure = Arc::new(OnceLock::new());
    let begin = |(number, (device, inbox)): (usize, (DeviceRef, Receiver<Message>))| {
        let (peers, failure, everyone, f) = (peers.clone(), &failure, everyone.clone(), &f);
        move || {
            let rank = Rc::new(Rank {
                number,
                ledger: Ledger::new(device.clone()),
                device,
                patience,
                inbox,
                ended: RefCell::new(vec![false; peers.len()]),
                peers,
                failure: failure.clone(),
                meetings: RefCell::default(),
                flying: RefCell::default(),
            });
            let comm = ChannelComm::new(&rank, [].into(), everyone, number);
            let result = catch_unwind(AssertUnwindSafe(|| f(comm)));
            let result = result.map_err(|panic| panic_message(panic.as_ref()));
            match &result {
                Ok(_) => rank.finish(),
                Err(message) => drop(rank.fail_by_itself(&format!("panicked: {message}"))),
            }
            result
        }
    };
    let results: Vec<Result<T, String>> = std::thread::scope(|scope| {
        let ranks = devices.into_iter().zip(inboxes).enumerate();
        let ranks: Vec<_> = ranks.map(|rank| scope.spawn(begin(rank))).collect();
        let results = ranks.into_iter().map(|rank| rank.join());
        results
            .map(|r| r.unwrap_or_else(|panic| Err(panic_message(panic.as_ref()))))
            .collect()
    });
    // Of several panics the first is the cause.
    let origin = match failure.get() {
        Some(&CommError::PeerFailed { origin, .. }) => origin,
        _ => 0,
    };
    let of = |rank: usize| Some((rank, results.get(rank)?.as_ref().err()?.clone()));
    match of(origin).or_else(|| (0..results.len()).find_map(of)) {
        Some((rank, message)) => Err(LaunchError::Panicked { rank, message }),
        None => Ok(results.into_iter().filter_map(Result::ok).collect()),
    }
}

/// What an exchange is called, alike by all who take part.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// The splits the group came from: which operation of its parent, and which color.
    group: Arc<[(u64, usize)]>,
    lane: Lane,
    /// How many operations of this lane came before.
    sequence: u64,
    /// Which exchange of the operation.
    stage: usize,
}

/// What keeps its order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Lane {
    /// The operations of a group.
    All,
    /// Messages from one of its ranks to another.
    Link(usize, usize),
}

/// What ranks tell each other.
enum Message {
    /// A participant's part in an exchange of so many.
    Post(Key, usize, usize, Arc<Post>),
    /// A rank will post nothing any more.
    Ended(usize),
    /// Look whether there is a failure.
    Failed,
}

/// What belongs to one rank, whatever the group.
struct Rank {
    number: usize,
    device: DeviceRef,
    ledger: Ledger,
    patience: Duration,
    inbox: Receiver<Message>,
    peers: Vec<Sender<Message>>,
    /// The first failure of any rank. Threads can share it; processes would ask one of them which was first.
    failure: Arc<OnceLock<CommError>>,
    /// What has come of exchanges that this rank has not done.
    meetings: RefCell<HashMap<Key, Meeting>>,
    ended: RefCell<Vec<bool>>,
    /// Operations that have no result yet, with or without a handle that somebody still has.
    flying: RefCell<Vec<Rc<RefCell<Operation>>>>,
}

/// What has come of an exchange.
struct Meeting {
    /// By participant.
    posts: Vec<Option<Arc<Post>>>,
    /// As how many of them this rank takes part and is not done: two, if it sends to itself.
    readers: usize,
}

/// One operation of one rank.
struct Operation {
    op: &'static str,
    /// The exchange it is in.
    key: Key,
    members: Arc<[usize]>,
    me: usize,
    request: Request,
    result: Option<Result<Option<Buffer>>>,
}

impl Rank {
    /// Begins an operation of these members, of which this rank is number `me`.
    fn start(
        self: &Rc<Self>,
        op: &'static str,
        key: Key,
        members: &Arc<[usize]>,
        me: usize,
        mut request: Request,
    ) -> Result<Handle> {
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        self.ledger.posted(op, key.sequence, request.site);
        let post = Post::first(op, &mut request, &self.device);
        let (members, result) = (members.clone(), None);
        let operation = Operation {
            op,
            key,
            members,
            me,
            request,
            result,
        };
        self.bring(&operation, post);
        let operation = Rc::new(RefCell::new(operation));
        self.flying.borrow_mut().push(operation.clone());
        let rank = self.clone();
        Ok(Handle::new(Box::new(Flying { rank, operation })))
    }

    /// Brings a post to all who take part.
    fn bring(&self, operation: &Operation, post: Post) {
        let Operation {
            key, members, me, ..
        } = operation;
        let post = Arc::new(post);
        let message = || Message::Post(key.clone(), members.len(), *me, post.clone());
        self.hear(message());
        if let Some(meeting) = self.meetings.borrow_mut().get_mut(key) {
            meeting.readers += 1;
        }
        for &member in members.iter().filter(|&&member| member != self.number) {
            // A rank that has gone does not listen; whoever waits for it hears of that.
            drop(self.peers[member].send(message()));
        }
    }

    fn hear(&self, message: Message) {
        match message {
            Message::Post(key, participants, index, post) => {
                let mut meetings = self.meetings.borrow_mut();
                let meeting = meetings.entry(key).or_insert_with(|| Meeting {
                    posts: vec![None; participants],
                    readers: 0,
                });
                meeting.posts[index] = Some(post);
            }
            Message::Ended(rank) => self.ended.borrow_mut()[rank] = true,
            Message::Failed => {}
        }
    }

    /// Carries all operations on as far as they go without waiting.
    fn progress(&self) {
        self.inbox.try_iter().for_each(|message| self.hear(message));
        let flying = self.flying.borrow().clone();
        for operation in &flying {
            let operation = &mut operation.borrow_mut();
            self.advance(operation);
            self.give_up(operation);
        }
        let is_flying = |o: &Rc<RefCell<Operation>>| o.borrow().result.is_none();
        self.flying.borrow_mut().retain(is_flying);
    }

    /// Does the exchanges of an operation for which all have come.
    fn advance(&self, operation: &mut Operation) {
        while operation.result.is_none()
            && let Some(posts) = self.complete(&operation.key)
        {
            let mut outcome = self.exchange(operation, &posts);
            let stage = operation.key.stage + 1;
            if stage < operation.request.stages.len()
                && let Ok(result) = &mut outcome
            {
                let (own, device) = (&posts[operation.me], &self.device);
                match own.next(
                    &operation.request,
                    stage,
                    result.take(),
                    device,
                    self.number,
                ) {
                    Ok(post) => {
                        operation.key.stage = stage;
                        self.bring(operation, post);
                        continue;
                    }
                    Err(error) => outcome = Err(error),
                }
            }
            operation.result = Some(outcome.map_err(|error| match error.class() {
                ErrorClass::Failure => self.fail(error),
                // All have found the same, and go on.
                _ => error,
            }));
        }
    }

    /// The posts of an exchange, once there is one of each participant.
    fn complete(&self, key: &Key) -> Option<Vec<Arc<Post>>> {
        let mut meetings = self.meetings.borrow_mut();
        let meeting = meetings.get_mut(key)?;
        let posts = meeting.posts.iter().cloned().collect::<Option<_>>()?;
        meeting.readers -= 1;
        if meeting.readers == 0 {
            meetings.remove(key);
        }
        Some(posts)
    }

    /// Compares what all have posted, as they do too, and reads what is for this rank.
    fn exchange(&self, operation: &mut Operation, posts: &[Arc<Post>]) -> Result<Option<Buffer>> {
        let Operation {
            key,
            members,
            me,
            request,
            ..
        } = operation;
        let posts: Vec<&Post> = posts.iter().map(|post| &**post).collect();
        validate(key.sequence, members, &posts)?;
        let Some(stage) = request.stages.get_mut(key.stage) else {
            return Ok(None);
        };
        let post = |peer: usize| posts.get(peer).copied();
        receive(&self.ledger, &self.device, members, *me, stage, post)
    }

    /// Ends an operation that will never be complete: after a failure, or if it waits for a rank that has ended.
    fn give_up(&self, operation: &mut Operation) {
        if operation.result.is_some() {
            return;
        }
        let missing = self.missing(operation);
        let gone = missing.into_iter().find(|&rank| self.ended.borrow()[rank]);
        let failure = self.failure.get().cloned().or_else(|| {
            let (origin, wait) = (gone?, self.wait_line(operation));
            let WaitLine {
                op,
                group,
                sequence,
                site,
                rank,
                ..
            } = wait;
            let call = format!(
                "{op} (operation {sequence} of {group}), which rank {rank} called at {site}"
            );
            let cause = format!("it ended without joining {call}").into();
            Some(self.fail(CommError::PeerFailed { origin, cause }))
        });
        operation.result = failure.map(Err);
    }

    /// The ranks that have not come.
    fn missing(&self, operation: &Operation) -> Vec<usize> {
        let meetings = self.meetings.borrow();
        let meeting = meetings.get(&operation.key);
        let posts = meeting.into_iter().flat_map(|meeting| &meeting.posts);
        let members = operation.members.iter().zip(posts);
        let absent = members.filter(|(_, post)| post.is_none());
        absent.map(|(&rank, _)| rank).collect()
    }

    fn wait_line(&self, operation: &Operation) -> WaitLine {
        WaitLine {
            rank: self.number,
            op: operation.request.method.unwrap_or(operation.op),
            group: label(&operation.members),
            sequence: operation.key.sequence,
            site: operation.request.site.into(),
            missing: self.missing(operation),
        }
    }

    /// Waits for one operation, and carries all on meanwhile.
    fn wait(&self, operation: &RefCell<Operation>) -> Result<Option<Buffer>> {
        let begun = Instant::now();
        loop {
            self.progress();
            if let Some(result) = operation.borrow_mut().result.take() {
                return result;
            }
            let waited = begun.elapsed();
            if waited < self.patience {
                self.listen(self.patience - waited);
                continue;
            }
            let (wait, recent) = (self.wait_line(&operation.borrow()), self.ledger.recent());
            let report = TimeoutReport {
                waited,
                wait,
                recent,
                others: Vec::new(),
            };
            self.fail(CommError::TimedOut(Arc::new(report)));
        }
    }

    fn listen(&self, most: Duration) {
        if let Ok(message) = self.inbox.recv_timeout(most) {
            self.hear(message);
        }
    }

    /// Makes an error everybody's, unless another was first; the one that was.
    fn fail(&self, error: CommError) -> CommError {
        let first = self.failure.get_or_init(|| error).clone();
        for peer in &self.peers {
            drop(peer.send(Message::Failed));
        }
        first
    }

    fn fail_by_itself(&self, cause: &str) -> CommError {
        let (origin, cause) = (self.number, cause.into());
        self.fail(CommError::PeerFailed { origin, cause })
    }

    /// Finishes what others wait for, handles or not, and tells them that nothing more will come.
    fn finish(&self) {
        loop {
            let Some(operation) = self.flying.borrow().first().cloned() else {
                break;
            };
            // Nobody is left here to hear of an error.
            drop(self.wait(&operation));
        }
        if let Err(error) = self.device.synchronize() {
            self.fail_by_itself(&error.to_string());
        }
        for peer in &self.peers {
            drop(peer.send(Message::Ended(self.number)));
        }
    }
}

/// What a handle refers to.
struct Flying {
    rank: Rc<Rank>,
    operation: Rc<RefCell<Operation>>,
}

impl Pending for Flying {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        self.rank.wait(&self.operation)
    }

    fn is_done(&mut self) -> bool {
        self.rank.progress();
        self.operation.borrow().result.is_some()
    }

    fn rest(&mut self) {
        self.rank.listen(Duration::from_millis(1));
    }

    fn device(&self) -> &DeviceRef {
        &self.rank.device
    }

    fn ledger(&self) -> Option<&Ledger> {
        Some(&self.rank.ledger)
    }

    /// The operation is the rank's: nothing needs to be done.
    fn park(&mut self) {}
}

/// A rank that is a thread, as a member of one group.
pub(crate) struct ChannelComm {
    rank: Rc<Rank>,
    /// See [`Key`].
    group: Arc<[(u64, usize)]>,
    members: Arc<[usize]>,
    me: usize,
    /// Operations so far, by lane and side: a rank may send to itself.
    posted: RefCell<HashMap<(Lane, usize), u64>>,
    plans: PlanCache,
}

impl ChannelComm {
    fn new(rank: &Rc<Rank>, group: Arc<[(u64, usize)]>, members: Arc<[usize]>, me: usize) -> Self {
        Self {
            rank: rank.clone(),
            group,
            members,
            me,
            posted: RefCell::default(),
            plans: PlanCache::new(),
        }
    }

    /// The first exchange of the next operation.
    fn next(&self, lane: Lane, side: usize) -> Key {
        let mut posted = self.posted.borrow_mut();
        let count = posted.entry((lane, side)).or_default();
        *count += 1;
        let (group, sequence, stage) = (self.group.clone(), *count - 1, 0);
        Key {
            group,
            lane,
            sequence,
            stage,
        }
    }
}

impl Communicator for ChannelComm {
    fn rank(&self) -> usize {
        self.me
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn device(&self) -> &DeviceRef {
        &self.rank.device
    }

    fn ledger(&self) -> &Ledger {
        &self.rank.ledger
    }

    fn backend(&self) -> &'static str {
        "channels"
    }

    fn plans(&self) -> &PlanCache {
        &self.plans
    }

    fn post(&self, request: Request) -> Result<Handle> {
        let request = request.checked(self.size());
        let key = self.next(Lane::All, 0);
        self.rank
            .start(request.name(), key, &self.members, self.me, request)
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        let (op, side, [from, to]) = (link.name(), link.participant(), link.ends(self.me));
        let request = link.into_request(self.size(), self.plans())?;
        let ends = [self.members[from], self.members[to]].into();
        self.rank.start(
            op,
            self.next(Lane::Link(from, to), side),
            &ends,
            side,
            request,
        )
    }

    /// Ranks tell each other whether they have a color, which, and their key: three numbers that all gather.
    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let (ranks, device) = (self.size(), self.device());
        let recv = (0..ranks).map(|r| Piece::run(r, 0, 3, 0, 3 * r)).collect();
        let send = (0..ranks).map(|r| Piece::run(r, 0, 3, 0, 0)).collect();
        let plan = Arc::new(ExchangePlan::new("split", 1, recv, send, None, None));
        let joins = color.map_or([0, 0], |color| [1, color as i64]);
        let mine = device.upload_slice(&[joins[0], joins[1], key as i64])?;
        let all = Target::Write(device.alloc(DType::I64, 3 * ranks)?);
        let request = Request::exchange(plan, &[mine], all, site);
        let told = self.post(request)?.wait()?.to_vec::<i64>()?;

        let Some(color) = color else {
            return Ok(None);
        };
        let told = told.chunks_exact(3).enumerate();
        let fellows = told.filter(|(_, wish)| wish[..2] == joins);
        let mut order: Vec<_> = fellows.map(|(r, wish)| (wish[2] as u64, r)).collect();
        order.sort_unstable();
        let me = order.iter().position(|&(_, r)| r == self.me).unwrap_or(0);
        let members = order.iter().map(|&(_, r)| self.members[r]).collect();
        // This group's operations are numbered alike on all ranks, and this one was the last.
        let sequence = self.posted.borrow()[&(Lane::All, 0)];
        let group = self
            .group
            .iter()
            .copied()
            .chain([(sequence, color)])
            .collect();
        Ok(Some(Rc::new(Self::new(&self.rank, group, members, me))))
    }

    fn failure(&self) -> Option<CommError> {
        self.rank.failure.get().cloned()
    }

    fn fail(&self, cause: String) {
        self.rank.fail_by_itself(&cause);
    }
}

impl fmt::Debug for ChannelComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ChannelComm(rank {} of {})",
            self.me,
            label(&self.members)
        )
    }
}
