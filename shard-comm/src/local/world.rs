//! What all ranks share: the rendezvous that are open, and what every rank is doing.
//!
//! One lock guards it all; it is held for a few dozen instructions per call, never while anything is validated or
//! copied. From it follow the three guarantees:
//!
//! - *complete*: the last rank to arrive at a rendezvous validates it and publishes the outcome in its [`Slot`], which
//!   the others poll without the lock.
//! - *deadlock*: a rank that has polled in vain registers as waiting, under the lock, after looking once more. Whoever
//!   completes a slot marks those waiting for it as running again before it can itself wait. So when no rank is
//!   running, nothing can happen any more, and every wait is in the table that is reported.
//! - *one cause*: the first failure is the root; every open slot and every later call answers with it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use smallvec::SmallVec;

use super::baton::{Baton, Schedule};
use crate::guard::Guard;
use crate::plan::Traffic;
use crate::validate::{Claim, label, validate};
use crate::{
    AgreedError, Buffer, CommError, DType, DeadlockReport, Event, ExchangePlan, Monoid, Result,
    Site, SiteText, WaitLine,
};

/// Everything the ranks of one launch share.
#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
    /// Set before a waiting rank's thread is unparked.
    awake: Vec<AtomicBool>,
    /// How many ranks wait or are about to: while none does, completing a rendezvous needs no second look under the
    /// lock. Changed under the lock only.
    waiting: AtomicUsize,
    /// How many ranks share a core.
    crowd: u32,
    /// If ranks run one at a time.
    baton: Option<Baton>,
    everyone: Arc<Group>,
}

/// Some ranks that operate together.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: u64,
    /// Ranks of the launch, in group order.
    pub(super) members: Arc<[usize]>,
}

impl Group {
    pub(super) fn label(&self) -> String {
        label(&self.members)
    }
}

/// Which rendezvous: the same on all its ranks without any talk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub(super) group: u64,
    pub(super) lane: Lane,
    /// Counts the operations of the lane.
    pub(super) sequence: u64,
    /// Counts the rounds of the operation. Ranks that disagree on it still agree on the next sequence number.
    pub(super) stage: u32,
}

/// What is counted together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lane {
    /// Operations of all ranks of a group.
    All,
    /// Messages from one rank of a group to another.
    Link(u32, u32),
}

/// What one rank brings to a rendezvous.
#[derive(Debug)]
pub(super) struct Post {
    /// The call, for messages; `plan.name` is what must agree.
    pub(super) op: &'static str,
    pub(super) plan: Arc<ExchangePlan>,
    pub(super) sources: SmallVec<[Buffer; 1]>,
    pub(super) event: Event,
    pub(super) dtype: Option<DType>,
    pub(super) argument: Option<(&'static str, u128)>,
    pub(super) status: Result<(), AgreedError>,
    /// What others learn of this rank: its color and key in a split.
    pub(super) note: Option<(usize, usize)>,
    pub(super) site: Site,
    pub(super) guard: Guard,
}

impl Claim for Post {
    fn op(&self) -> &'static str {
        self.op
    }

    fn site(&self) -> SiteText {
        self.site.into()
    }

    fn name(&self) -> &'static str {
        self.plan.name
    }

    fn turn(&self) -> Option<u64> {
        self.guard.turn
    }

    fn status(&self) -> Option<&AgreedError> {
        self.status.as_ref().err()
    }

    fn argument(&self) -> Option<(&'static str, u128)> {
        self.argument
    }

    fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    fn fold(&self) -> Option<Monoid> {
        self.plan.fold
    }

    fn id(&self) -> u128 {
        self.plan.id
    }

    fn incoming(&self) -> &[Traffic] {
        self.plan.incoming()
    }

    fn outgoing(&self) -> &[Traffic] {
        self.plan.outgoing()
    }

    fn source_len(&self, source: usize) -> usize {
        self.sources.get(source).map_or(0, Buffer::len)
    }
}

/// One rendezvous. Ranks hold it until they have read what they want; with the last of them it dies.
#[derive(Debug, Default)]
pub(super) struct Slot {
    outcome: OnceLock<Result<Vec<Post>>>,
}

impl Slot {
    /// What everybody brought, or why nothing moves; `None` while some are missing.
    pub(super) fn outcome(&self) -> Option<&Result<Vec<Post>>> {
        self.outcome.get()
    }

    /// The first outcome stands.
    fn settle(&self, outcome: Result<Vec<Post>>) {
        drop(self.outcome.set(outcome));
    }
}

#[derive(Debug)]
struct State {
    ranks: Vec<RankState>,
    /// How many ranks are [`RankState::Running`].
    running: usize,
    /// How many ranks are [`RankState::Ended`].
    ended: usize,
    open: HashMap<Key, Open, BuildHasherDefault<KeyHasher>>,
    /// The first failure.
    root: Option<CommError>,
    next_group: u64,
    /// Groups made by splits, until all members have joined: by parent, sequence and color.
    forming: HashMap<(u64, u64, usize), (Arc<Group>, usize)>,
}

/// A rendezvous that some ranks have not joined.
#[derive(Debug)]
struct Open {
    slot: Arc<Slot>,
    members: Arc<[usize]>,
    posts: Vec<Option<Post>>,
    missing: usize,
}

#[derive(Debug)]
enum RankState {
    Running,
    /// Parked until one of these slots is settled; the first is the one its call is about.
    Waiting(Thread, SmallVec<[Key; 2]>),
    Ended,
}

impl World {
    pub(super) fn new(ranks: usize, schedule: &Schedule) -> Arc<Self> {
        let state = State {
            ranks: (0..ranks).map(|_| RankState::Running).collect(),
            running: ranks,
            ended: 0,
            open: HashMap::default(),
            root: None,
            next_group: 1,
            forming: HashMap::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            awake: (0..ranks).map(|_| AtomicBool::new(true)).collect(),
            waiting: AtomicUsize::new(0),
            crowd: crowd(ranks),
            baton: Baton::new(schedule, ranks),
            everyone: Arc::new(Group {
                id: 0,
                members: (0..ranks).collect(),
            }),
        })
    }

    /// A rank begins, when it may.
    pub(super) fn begin(&self, rank: usize) {
        if let Some(baton) = &self.baton {
            baton.take(rank);
        }
    }

    /// Whether ranks run one at a time.
    pub(super) fn one_at_a_time(&self) -> bool {
        self.baton.is_some()
    }

    /// How many ranks share a core; at least one.
    pub(super) fn crowd(&self) -> u32 {
        self.crowd
    }

    pub(super) fn ranks(&self) -> usize {
        self.awake.len()
    }

    pub(super) fn everyone(&self) -> &Arc<Group> {
        &self.everyone
    }

    /// Joins a rendezvous of `members` as its participant `index`; completes it if it is the last.
    ///
    /// # Errors
    /// The root failure, if there is one, or becomes one because a participant has ended.
    pub(super) fn post(
        &self,
        key: Key,
        members: &Arc<[usize]>,
        index: usize,
        post: Post,
    ) -> Result<Arc<Slot>> {
        let slot = self.join(key, members, index, post);
        if let Some(baton) = &self.baton {
            baton.pass(members[index]);
        }
        slot
    }

    fn join(
        &self,
        key: Key,
        members: &Arc<[usize]>,
        index: usize,
        post: Post,
    ) -> Result<Arc<Slot>> {
        let mut state = self.lock();
        if let Some(root) = &state.root {
            return Err(root.clone());
        }
        let open = state.open.entry(key).or_insert_with(|| Open {
            slot: Arc::default(),
            members: Arc::clone(members),
            posts: members.iter().map(|_| None).collect(),
            missing: members.len(),
        });
        let slot = Arc::clone(&open.slot);
        open.posts[index] = Some(post);
        open.missing -= 1;
        if open.missing > 0 {
            if state.ended > 0 {
                self.fail_if_abandoned(&mut state, key)?;
            }
            return Ok(slot);
        }
        let complete = state.open.remove(&key);
        drop(state);
        // This rank counts as running meanwhile, so nobody takes the silence for a deadlock.
        if let Some(open) = complete {
            let posts: Vec<_> = open.posts.into_iter().flatten().collect();
            let mut outcome = validate(key.sequence, &open.members, &posts).map(|()| posts);
            if let Err(error @ CommError::OutOfStep(_)) = outcome {
                // No later operation of the group could be right; the first to find out tells all.
                outcome = Err(self.fail_with(error));
            }
            slot.settle(outcome);
            // With the fence in `park`: either this sees a rank that waits, or that rank sees the outcome.
            fence(Ordering::SeqCst);
            if self.waiting.load(Ordering::Relaxed) > 0 {
                let mut state = self.lock();
                for &rank in open.members.iter() {
                    self.wake(&mut state, rank, |keys| keys.contains(&key));
                }
            }
        }
        Ok(slot)
    }

    /// Parks a rank until one of these slots is settled. `wanted[0]` is the one its call is about.
    pub(super) fn park(&self, rank: usize, wanted: &[(Key, Arc<Slot>)]) {
        let mut state = self.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let settled = wanted.iter().any(|(_, slot)| slot.outcome().is_some());
        if let Some(root) = &state.root
            && !settled
        {
            // Open slots were settled when it happened; this one belonged to a rank that died completing it.
            for (_, slot) in wanted {
                slot.settle(Err(root.clone()));
            }
        }
        if settled || state.root.is_some() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.awake[rank].store(false, Ordering::Relaxed);
        let keys = wanted.iter().map(|(key, _)| *key).collect();
        state.ranks[rank] = RankState::Waiting(std::thread::current(), keys);
        state.running -= 1;
        if let Some(baton) = &self.baton {
            baton.set(rank, false);
        }
        self.detect_deadlock(&mut state);
        drop(state);
        if let Some(baton) = &self.baton {
            baton.hand_on(rank);
        }
        while !self.awake[rank].load(Ordering::Acquire) {
            std::thread::park();
        }
        if let Some(baton) = &self.baton {
            baton.take(rank);
        }
    }

    /// Ends a rank that will make no more calls. Those waiting for it, now or later, fail.
    pub(super) fn end(&self, rank: usize) {
        if let Some(baton) = &self.baton {
            baton.set(rank, false);
        }
        self.mark_ended(rank);
        if let Some(baton) = &self.baton {
            baton.hand_on(rank);
        }
    }

    fn mark_ended(&self, rank: usize) {
        let mut state = self.lock();
        if matches!(state.ranks[rank], RankState::Ended) {
            return;
        }
        state.ranks[rank] = RankState::Ended;
        state.running -= 1;
        state.ended += 1;
        // In a fixed order, so that the same program always names the same cause.
        let mut keys: Vec<_> = state.open.keys().copied().collect();
        keys.sort_unstable_by_key(|k| (k.group, k.sequence, k.stage));
        for key in keys {
            if self.fail_if_abandoned(&mut state, key).is_err() {
                return;
            }
        }
        self.detect_deadlock(&mut state);
    }

    /// Poisons everything: `origin` cannot go on.
    pub(super) fn fail(&self, origin: usize, cause: &str) {
        self.fail_with(CommError::PeerFailed {
            origin,
            cause: cause.into(),
        });
    }

    /// Poisons everything; the first cause stands, and is returned.
    pub(super) fn fail_with(&self, error: CommError) -> CommError {
        self.fail_all(&mut self.lock(), error)
    }

    /// Where the first failure began, if it was at one rank.
    pub(super) fn first_failure(&self) -> Option<usize> {
        match self.lock().root {
            Some(CommError::PeerFailed { origin, .. }) => Some(origin),
            _ => None,
        }
    }

    /// The first failure.
    pub(super) fn root(&self) -> Option<CommError> {
        self.lock().root.clone()
    }

    /// The group of a color, the same object on all its members. Each member calls it once.
    pub(super) fn join_group(&self, split: Key, color: usize, members: Vec<usize>) -> Arc<Group> {
        let mut state = self.lock();
        let at = (split.group, split.sequence, color);
        let size = members.len();
        let (group, left) = match state.forming.remove(&at) {
            Some(formed) => formed,
            None => {
                let id = state.next_group;
                state.next_group += 1;
                (
                    Arc::new(Group {
                        id,
                        members: members.into(),
                    }),
                    size,
                )
            }
        };
        if left > 1 {
            state.forming.insert(at, (Arc::clone(&group), left - 1));
        }
        group
    }

    /// Fails everything if a rank that the rendezvous still needs has ended.
    fn fail_if_abandoned(&self, state: &mut State, key: Key) -> Result<()> {
        let Some(open) = state.open.get(&key) else {
            return Ok(());
        };
        let gone =
            open.members.iter().zip(&open.posts).find(|&(&rank, post)| {
                post.is_none() && matches!(state.ranks[rank], RankState::Ended)
            });
        let joined = open
            .members
            .iter()
            .zip(&open.posts)
            .find_map(|(r, p)| Some((r, p.as_ref()?)));
        let (Some((&origin, _)), Some((rank, post))) = (gone, joined) else {
            return Ok(());
        };
        let cause = format!(
            "it ended without joining {} (operation {} of {}), which rank {rank} called at {}",
            post.op,
            key.sequence,
            label(&open.members),
            SiteText::from(post.site)
        );
        let error = CommError::PeerFailed {
            origin,
            cause: cause.into(),
        };
        self.fail_all(state, error.clone());
        Err(error)
    }

    fn detect_deadlock(&self, state: &mut State) {
        if state.running > 0 {
            return;
        }
        let waits: Vec<_> = state
            .ranks
            .iter()
            .enumerate()
            .filter_map(|(rank, is)| match is {
                RankState::Waiting(_, keys) => wait_line(state, rank, *keys.first()?),
                RankState::Running | RankState::Ended => None,
            })
            .collect();
        if !waits.is_empty() {
            self.fail_all(
                state,
                CommError::Deadlock(Arc::new(DeadlockReport { waits })),
            );
        }
    }

    /// The first failure becomes the outcome of every open rendezvous.
    fn fail_all(&self, state: &mut State, error: CommError) -> CommError {
        let root = state.root.get_or_insert(error).clone();
        for (_, open) in state.open.drain() {
            open.slot.settle(Err(root.clone()));
        }
        for rank in 0..self.ranks() {
            self.wake(state, rank, |_| true);
        }
        root
    }

    /// Marks a waiting rank as running, if its wait is concerned, and unparks it.
    fn wake(&self, state: &mut State, rank: usize, concerns: impl Fn(&[Key]) -> bool) {
        let waiting = &mut state.ranks[rank];
        if !matches!(waiting, RankState::Waiting(_, keys) if concerns(keys)) {
            return;
        }
        if let RankState::Waiting(thread, _) = std::mem::replace(waiting, RankState::Running) {
            state.running += 1;
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.awake[rank].store(true, Ordering::Release);
            if let Some(baton) = &self.baton {
                baton.set(rank, true);
            }
            thread.unpark();
        }
    }

    /// No code that can panic runs under the lock, so its state is whole even if it is poisoned.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many times the cores the ranks are, at least once: how much longer than alone each takes for the same.
fn crowd(ranks: usize) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(ranks / cores).unwrap_or(u32::MAX).max(1)
}

fn wait_line(state: &State, rank: usize, key: Key) -> Option<WaitLine> {
    let open = state.open.get(&key)?;
    let mine = open
        .members
        .iter()
        .zip(&open.posts)
        .find_map(|(&r, post)| if r == rank { post.as_ref() } else { None })?;
    let absent = open
        .members
        .iter()
        .zip(&open.posts)
        .filter(|(_, post)| post.is_none());
    Some(WaitLine {
        rank,
        op: mine.op,
        group: label(&open.members),
        sequence: key.sequence,
        site: SiteText::from(mine.site),
        missing: absent.map(|(&r, _)| r).collect(),
    })
}

/// Keys are few small integers, not chosen by an adversary: one multiplication per word mixes them enough.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value.cast_unsigned() as u64);
    }
}
