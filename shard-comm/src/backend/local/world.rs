//! The state that all ranks share: what every rank is doing, and what went wrong first.
//!
//! Ranks meet in [`Slot`]s, without a lock. The lock here is for the rest: ranks that wait, end, fail or form groups. It is
//! held for a few dozen instructions, never while anything is validated or copied. Three guarantees follow:
//!
//! - *complete*: the last rank to arrive at a rendezvous validates it and publishes the outcome, which the others poll.
//! - *deadlock*: a rank that has polled in vain registers as waiting, under the lock, after looking once more. Whoever
//!   completes a slot marks the ranks that wait for it as running again before it can itself wait. So when no rank is
//!   running, nothing can happen any more, and every wait is in the table that is reported.
//! - *one cause*: the first failure is the root; every slot that is open then, and every later call, returns it.
//!
//! If a rank has ended, those who arrive after its end, or wait then or later, find that it is missing.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use super::baton::{Baton, Interleaving};
use super::slot::Slot;
use super::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Thread, current, park};
use crate::backend::Post;
use crate::ledger::Recent;
use crate::validate::{Claim, agree_plainly, label, validate};
use crate::{
    Buffer, CommError, DeadlockReport, DeviceKind, DeviceRef, Host, Result, TimeoutReport,
    WaitLine, Whereabouts, run,
};

/// Everything the ranks of one launch share.
#[derive(Debug)]
pub(super) struct World {
    /// The part that every call looks at; it seldom changes.
    notice: Apart<Notice>,
    state: Mutex<State>,
    /// Set before a waiting rank's thread is unparked.
    awake: Vec<AtomicBool>,
    /// How many ranks share a core, at least one; and whether every rank has its own.
    crowd: u32,
    has_cores: bool,
    /// The baton, if ranks run one at a time.
    baton: Option<Baton>,
    everyone: Arc<Group>,
    /// The last operations of each rank, for reports.
    recent: Vec<Recent>,
    /// Memory of results that one rank computes for all; no rank owns it.
    common: DeviceRef,
}

/// A value in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// Changed under the lock only.
#[derive(Debug)]
struct Notice {
    /// Whether there is a root failure.
    failed: AtomicBool,
    /// How many ranks are [`RankState::Ended`].
    ended: AtomicUsize,
}

/// Some ranks that operate together.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: u64,
    /// Ranks of the launch, in group order.
    pub(super) members: Arc<[usize]>,
}

/// What is counted together: operations of a group, or messages of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lane {
    /// Operations of all ranks of a group.
    All,
    /// Messages from one rank of a group to another.
    Link(u32, u32),
}

#[derive(Debug)]
struct State {
    ranks: Vec<RankState>,
    /// How many ranks are [`RankState::Running`].
    running: usize,
    /// The first failure.
    root: Option<CommError>,
    /// The first rendezvous of a group's lane, until all its participants have come, and how many are still to come.
    lanes: HashMap<(u64, Lane), (Arc<Slot>, usize)>,
    next_group: u64,
    /// Groups that splits make, until all members have joined: by parent, sequence and color.
    forming: HashMap<(u64, u64, usize), (Arc<Group>, usize)>,
    /// How many waits have begun.
    waits: u64,
    /// If ranks run one at a time: the ranks that wait for their turn, each with the number of the wait and the call it is in.
    queued: HashMap<usize, (u64, Meeting)>,
}

/// A slot at which a rank meets others, or waits for them.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    pub(super) slot: Arc<Slot>,
    /// Ranks of the launch, in the order of their places.
    pub(super) members: Arc<[usize]>,
    /// This rank's index in `members`.
    pub(super) index: usize,
}

#[derive(Debug)]
enum RankState {
    Running,
    Waiting(Wait),
    Ended,
}

#[derive(Debug)]
struct Wait {
    thread: Thread,
    /// Parked until one of these slots is settled; the first is the one that the rank's call is about.
    wanted: SmallVec<[Meeting; 1]>,
    /// The number of this wait among all waits of the launch.
    number: u64,
}

/// From this many ranks on, a result that is equal on all of them is computed once. Fewer ranks are faster if each computes it.
const MANY: usize = 8;

/// How many cores the thread that first asks may use. Asked once: the answer is read from files, which takes a quarter of what a thread
/// takes to begin. It decides how ranks wait, not what they do.
static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

impl World {
    pub(super) fn new(ranks: usize, interleaving: &Interleaving) -> Arc<Self> {
        let state = State {
            ranks: (0..ranks).map(|_| RankState::Running).collect(),
            running: ranks,
            root: None,
            lanes: HashMap::new(),
            next_group: 1,
            forming: HashMap::new(),
            waits: 0,
            queued: HashMap::new(),
        };
        let notice = Notice {
            failed: AtomicBool::new(false),
            ended: AtomicUsize::new(0),
        };
        let cores = *CORES;
        Arc::new(Self {
            notice: Apart(notice),
            state: Mutex::new(state),
            awake: (0..ranks).map(|_| AtomicBool::new(true)).collect(),
            crowd: u32::try_from(ranks / cores).unwrap_or(u32::MAX).max(1),
            has_cores: ranks <= cores,
            baton: Baton::new(interleaving, ranks),
            everyone: Arc::new(Group {
                id: 0,
                members: (0..ranks).collect(),
            }),
            recent: (0..ranks).map(|_| Recent::default()).collect(),
            common: Host::new(),
        })
    }

    /// Lets a rank begin, once it is its turn.
    pub(super) fn begin(&self, rank: usize) {
        if let Some(baton) = &self.baton {
            baton.take(rank);
        }
    }

    /// The record of a rank's last operations.
    pub(super) fn recent(&self, rank: usize) -> &Recent {
        &self.recent[rank]
    }

    /// Whether ranks run one at a time.
    pub(super) fn one_at_a_time(&self) -> bool {
        self.baton.is_some()
    }

    /// How many ranks share a core; at least one.
    pub(super) fn crowd(&self) -> u32 {
        self.crowd
    }

    /// Whether every rank may have a core of its own.
    pub(super) fn has_cores(&self) -> bool {
        self.has_cores
    }

    pub(super) fn ranks(&self) -> usize {
        self.awake.len()
    }

    pub(super) fn everyone(&self) -> &Arc<Group> {
        &self.everyone
    }

    /// Whether something has failed: no slot that is open will be completed.
    pub(super) fn has_failed(&self) -> bool {
        self.notice.0.failed.load(Ordering::Acquire)
    }

    /// The first rendezvous of a lane. Each of its participants asks once.
    pub(super) fn first_slot(&self, group: u64, lane: Lane, participants: usize) -> Arc<Slot> {
        let mut state = self.lock();
        let (slot, left) = match state.lanes.remove(&(group, lane)) {
            Some(known) => known,
            None => (Slot::first(participants), participants),
        };
        if left > 1 {
            let rest = (Arc::clone(&slot), left - 1);
            state.lanes.insert((group, lane), rest);
        }
        slot
    }

    /// Joins a rendezvous; completes it if this rank is the last.
    ///
    /// Fails with the root failure: one that there is already, or one that this call finds because a participant has ended.
    #[inline]
    pub(super) fn post(&self, meeting: &Meeting, post: impl FnOnce() -> Post) -> Result<()> {
        let joined = match self.root() {
            Some(root) => Err(root),
            None if meeting.slot.fill(meeting.index, post) => {
                self.complete(meeting);
                Ok(())
            }
            None if self.notice.0.ended.load(Ordering::Acquire) > 0 => {
                self.fail_if_abandoned(&mut self.lock(), &meeting.slot, &meeting.members)
            }
            None => Ok(()),
        };
        self.passed_on(meeting, joined)
    }

    /// Where ranks run one at a time, gives another rank its turn after each call.
    fn passed_on(&self, meeting: &Meeting, joined: Result<()>) -> Result<()> {
        if let Some(baton) = &self.baton {
            let rank = meeting.members[meeting.index];
            self.queue(rank, meeting, || baton.pass(rank));
        }
        joined
    }

    /// Waits for a rank's turn; meanwhile the world knows that it does.
    #[inline(never)]
    fn queue(&self, rank: usize, meeting: &Meeting, for_turn: impl FnOnce()) {
        let mut state = self.lock();
        let number = state.next_wait();
        state.queued.insert(rank, (number, meeting.clone()));
        drop(state);
        for_turn();
        self.lock().queued.remove(&rank);
    }

    /// Publishes the outcome of a slot that all have joined, this rank as the last.
    ///
    /// This rank counts as running meanwhile, so nobody takes the others' waiting for a deadlock.
    #[inline(never)]
    fn complete(&self, meeting: &Meeting) {
        let Meeting {
            slot,
            members,
            index,
        } = meeting;
        let agreed = if agree_plainly(slot.posts().flatten()) {
            Ok(())
        } else {
            let posts: SmallVec<[&Post; 4]> = slot.posts().flatten().collect();
            validate(slot.sequence, members, &posts)
        };
        match agreed {
            Ok(()) => slot.succeed(self.result_of_all(slot, *index)),
            // No later operation of the group could be right; the first rank to find this out tells all.
            Err(error @ CommError::OutOfStep(_)) => slot.fail(self.fail_with(error)),
            Err(error) => slot.fail(error),
        }
        if slot.is_awaited() {
            let mut state = self.lock();
            for &rank in members.iter() {
                self.wake(&mut state, rank, |wanted| {
                    wanted.iter().any(|w| Arc::ptr_eq(&w.slot, slot))
                });
            }
        }
    }

    /// The result of an exchange whose result is equal on all of many ranks, computed once; `None` where each rank computes its
    /// own.
    fn result_of_all(&self, slot: &Slot, last: usize) -> Option<Buffer> {
        if slot.participants() < MANY {
            return None;
        }
        let post = slot.post(last)?;
        let (plan, dtype) = (post.plan_alike()?, post.moves?);
        let len = plan.destination_len();
        let by_each = |post: &Post| match post.sources.as_slice() {
            [one] => {
                post.guard.sums.is_some()
                    || one.len() < len
                    || one.device().kind() != DeviceKind::Host
            }
            _ => true,
        };
        let mut sources: SmallVec<[&Buffer; 64]> = SmallVec::new();
        for post in slot.posts().flatten() {
            if by_each(post) {
                return None;
            }
            sources.extend(post.sources.first());
        }
        // If anything is wrong here, each rank tries by itself and reports the error.
        let mut result = self.common.alloc(dtype, len).ok()?;
        let source = |peer: usize, _| sources[peer];
        run::run(&self.common, plan, source, &mut result).ok()?;
        Some(result.freeze())
    }

    /// Parks a rank until one of these slots is settled. `wanted[0]` is the one its call is about.
    pub(super) fn park(&self, rank: usize, wanted: SmallVec<[Meeting; 1]>) {
        let mut state = self.lock();
        for Meeting { slot, .. } in &wanted {
            slot.will_wait();
        }
        if wanted.iter().any(|w| w.slot.is_settled()) {
            return;
        }
        if self.notice.0.ended.load(Ordering::Relaxed) > 0 && state.root.is_none() {
            for Meeting { slot, members, .. } in &wanted {
                // If this fails, the failure becomes the root, which is checked next.
                drop(self.fail_if_abandoned(&mut state, slot, members));
            }
        }
        if let Some(root) = &state.root {
            for Meeting { slot, .. } in &wanted {
                slot.fail(root.clone());
            }
            return;
        }
        self.awake[rank].store(false, Ordering::Relaxed);
        let about = self.baton.as_ref().and(wanted.first().cloned());
        let number = state.next_wait();
        state.ranks[rank] = RankState::Waiting(Wait {
            thread: current(),
            wanted,
            number,
        });
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
            park();
        }
        if let (Some(baton), Some(about)) = (&self.baton, about) {
            self.queue(rank, &about, || baton.take(rank));
        }
    }

    /// Ends a rank that will make no more calls. Ranks that wait for it, now or later, fail.
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
        self.notice.0.ended.fetch_add(1, Ordering::Release);
        // In rank order, so that the same program always names the same cause.
        let waiting = state.ranks.iter().flat_map(|is| match is {
            RankState::Waiting(wait) => wait.wanted.as_slice(),
            RankState::Running | RankState::Ended => &[],
        });
        let wanted: Vec<_> = waiting
            .map(|w| (Arc::clone(&w.slot), Arc::clone(&w.members)))
            .collect();
        for (slot, members) in wanted {
            if self.fail_if_abandoned(&mut state, &slot, &members).is_err() {
                return;
            }
        }
        self.detect_deadlock(&mut state);
    }

    /// Poisons everything, because rank `origin` cannot go on.
    pub(super) fn fail(&self, origin: usize, cause: &str) {
        self.fail_with(CommError::PeerFailed {
            origin,
            cause: cause.into(),
        });
    }

    /// Poisons everything. If there was a failure before, it stands. Returns the root failure.
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
    #[inline]
    pub(super) fn root(&self) -> Option<CommError> {
        if self.has_failed() {
            return self.known_root();
        }
        None
    }

    #[cold]
    fn known_root(&self) -> Option<CommError> {
        self.lock().root.clone()
    }

    /// The group of a color: the same object for all its members. Each member calls this once.
    pub(super) fn join_group(
        &self,
        parent: &Group,
        sequence: u64,
        color: usize,
        members: Vec<usize>,
    ) -> Arc<Group> {
        let mut state = self.lock();
        let at = (parent.id, sequence, color);
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
    fn fail_if_abandoned(&self, state: &mut State, slot: &Slot, members: &[usize]) -> Result<()> {
        if slot.is_settled() {
            return Ok(());
        }
        let places = || members.iter().zip(slot.posts());
        let gone = places()
            .find(|&(&rank, post)| post.is_none() && matches!(state.ranks[rank], RankState::Ended));
        let joined = places().find_map(|(rank, post)| Some((rank, post?)));
        let (Some((&origin, _)), Some((rank, post))) = (gone, joined) else {
            return Ok(());
        };
        let cause = format!(
            "it ended without joining {} (operation {} of {}), which rank {rank} called at {}",
            post.called(),
            slot.sequence,
            label(members),
            post.site()
        );
        let error = CommError::PeerFailed {
            origin,
            cause: cause.into(),
        };
        Err(self.fail_all(state, error))
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
                RankState::Waiting(wait) => wait_line(rank, wait.wanted.first()?),
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

    /// Makes the first failure the outcome of every open rendezvous: of those waited for now, and of others once they are.
    fn fail_all(&self, state: &mut State, error: CommError) -> CommError {
        let root = state.root.get_or_insert(error).clone();
        self.notice.0.failed.store(true, Ordering::Release);
        for rank in 0..self.ranks() {
            self.wake(state, rank, |_| true);
        }
        root
    }

    /// The number of the wait that each rank is in.
    pub(super) fn waits(&self) -> Vec<Option<u64>> {
        let state = self.lock();
        (0..self.ranks())
            .map(|rank| Some(state.wait_of(rank)?.0))
            .collect()
    }

    /// What every rank is doing.
    pub(super) fn whereabouts(&self) -> Vec<Whereabouts> {
        self.where_all_are(&self.lock())
    }

    fn where_all_are(&self, state: &State) -> Vec<Whereabouts> {
        let of = |rank: usize| {
            let mut wait = state
                .wait_of(rank)
                .and_then(|(_, about)| wait_line(rank, about));
            if let (Some(wait), Some(baton)) = (&mut wait, &self.baton)
                && wait.missing.is_empty()
            {
                // All have come, and this rank waits for its turn.
                wait.missing.extend(baton.holder());
            }
            match (wait, &state.ranks[rank]) {
                (Some(wait), _) => Whereabouts::Waiting(wait),
                (None, RankState::Ended) => Whereabouts::Ended { rank },
                (None, _) => Whereabouts::Busy {
                    rank,
                    last: self.recent[rank].list().pop(),
                },
            }
        };
        (0..self.ranks()).map(of).collect()
    }

    /// Fails everything because a rank has been in one wait for too long. Does nothing if the rank is no longer in that wait.
    pub(super) fn time_out(&self, rank: usize, number: u64, waited: Duration) {
        let mut state = self.lock();
        if state.wait_of(rank).is_none_or(|(known, _)| known != number) {
            return;
        }
        let mut others = self.where_all_are(&state);
        let Whereabouts::Waiting(wait) = others.remove(rank) else {
            return;
        };
        let report = TimeoutReport {
            waited,
            wait,
            recent: self.recent[rank].list(),
            others,
        };
        self.fail_all(&mut state, CommError::TimedOut(Arc::new(report)));
    }

    /// Lets all ranks run at once if they run one at a time, for the case that the rank whose turn it is never passes it on.
    pub(super) fn release(&self) {
        if let Some(baton) = &self.baton {
            baton.open();
        }
    }

    /// Marks a waiting rank as running, if `concerns` holds for its wait, and unparks it.
    fn wake(&self, state: &mut State, rank: usize, concerns: impl Fn(&[Meeting]) -> bool) {
        let waiting = &mut state.ranks[rank];
        if !matches!(waiting, RankState::Waiting(wait) if concerns(&wait.wanted)) {
            return;
        }
        if let RankState::Waiting(Wait { thread, .. }) =
            std::mem::replace(waiting, RankState::Running)
        {
            state.running += 1;
            self.awake[rank].store(true, Ordering::Release);
            if let Some(baton) = &self.baton {
                baton.set(rank, true);
            }
            thread.unpark();
        }
    }

    /// No code that can panic runs under the lock, so its state is consistent even if it is poisoned.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The number of the wait that a rank is in, and what its call is about.
    fn wait_of(&self, rank: usize) -> Option<(u64, &Meeting)> {
        match &self.ranks[rank] {
            RankState::Waiting(wait) => Some((wait.number, wait.wanted.first()?)),
            _ => self
                .queued
                .get(&rank)
                .map(|(number, about)| (*number, about)),
        }
    }

    fn next_wait(&mut self) -> u64 {
        self.waits += 1;
        self.waits
    }
}

fn wait_line(rank: usize, wanted: &Meeting) -> Option<WaitLine> {
    let Meeting {
        slot,
        members,
        index,
    } = wanted;
    let mine = slot.post(*index)?;
    let absent = members
        .iter()
        .zip(slot.posts())
        .filter(|(_, post)| post.is_none());
    Some(WaitLine {
        rank,
        op: mine.called,
        group: label(members),
        sequence: slot.sequence,
        site: mine.site(),
        missing: absent.map(|(&r, _)| r).collect(),
    })
}
