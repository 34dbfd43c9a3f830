//! Slots, where ranks meet: one rendezvous after the other, without a lock.
//!
//! Each rank puts its [`Post`] into its own place of a [`Slot`] and counts itself in; the last rank validates all posts
//! and publishes the outcome, which the others poll. A slot knows the next one, so ranks that met once find each
//! other again without looking anywhere.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, OnceLock, fence};
use crate::backend::Post;
use crate::{Buffer, CommError, Result};

/// One rendezvous. Ranks hold it until they have read what they want; it is freed with the last of them.
///
/// The fields that every rank writes come first, so that they share few cache lines with the reference count: moving a line
/// from core to core is most of the cost of a rendezvous.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    /// How many places are empty.
    missing: AtomicUsize,
    /// Whether a rank waits for the outcome, or is about to. Set under the world's lock.
    awaited: AtomicBool,
    _gap: [u8; 72],
    /// [`OPEN`], [`DONE`] or [`FAILED`]; changed once. It has a cache line of its own, so that polling it does not take away from
    /// other ranks the line that they still write.
    state: AtomicUsize,
    /// The ranks' next rendezvous, made by the first rank that asks for it.
    ///
    /// A slot that is held keeps all later ones alive. While a slot is open nobody can complete a later one, because a rank joins
    /// this one before it joins a later one. Once it is settled, a rank leaves it with its next blocking call at the latest.
    next: OnceLock<Arc<Self>>,
    places: Box<[OnceLock<Post>]>,
    /// The number of the operation: how many rendezvous of these ranks came before. Rounds of one operation share it.
    pub(super) sequence: u64,
    /// Set before `DONE`: the result of every rank, if one rank computed it for all.
    result: OnceLock<Buffer>,
    /// Set before `FAILED`.
    error: OnceLock<CommError>,
    /// The rendezvous of the operation's next round.
    round: Mutex<Option<Arc<Self>>>,
}

const OPEN: usize = 0;
const DONE: usize = 1;
const FAILED: usize = 2;

impl Slot {
    /// The first rendezvous of a number of participants.
    pub(super) fn first(participants: usize) -> Arc<Self> {
        Self::new(participants, 0)
    }

    fn new(participants: usize, sequence: u64) -> Arc<Self> {
        Arc::new(Self {
            missing: AtomicUsize::new(participants),
            awaited: AtomicBool::new(false),
            _gap: [0; 72],
            state: AtomicUsize::new(OPEN),
            next: OnceLock::default(),
            places: (0..participants).map(|_| OnceLock::default()).collect(),
            sequence,
            result: OnceLock::default(),
            error: OnceLock::default(),
            round: Mutex::default(),
        })
    }

    /// The rendezvous after this one.
    pub(super) fn next(&self) -> Arc<Self> {
        if let Some(next) = self.next.get() {
            return Arc::clone(next);
        }
        let next = Self::new(self.places.len(), self.sequence + 1);
        match self.next.set(Arc::clone(&next)) {
            Ok(()) => next,
            // Another rank was first.
            Err(next) => self.next.get().map_or(next, Arc::clone),
        }
    }

    /// The rendezvous of the operation's next round.
    pub(super) fn next_round(&self) -> Arc<Self> {
        let mut round = lock(&self.round);
        Arc::clone(round.get_or_insert_with(|| Self::new(self.places.len(), self.sequence)))
    }

    /// Fills the place of a participant, and returns whether it was the last.
    ///
    /// The post is constructed in its place: it is as large as several cache lines, and every rank makes one per call.
    #[inline]
    pub(super) fn fill(&self, index: usize, post: impl FnOnce() -> Post) -> bool {
        // A participant comes once, so its place is empty.
        self.places[index].get_or_init(post);
        self.missing.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// How many participants meet here.
    pub(super) fn participants(&self) -> usize {
        self.places.len()
    }

    /// The post of a participant, if it has come.
    pub(super) fn post(&self, index: usize) -> Option<&Post> {
        self.places[index].get()
    }

    /// The posts of all participants, `None` for those who have not come yet.
    pub(super) fn posts(&self) -> impl Iterator<Item = Option<&Post>> {
        self.places.iter().map(OnceLock::get)
    }

    /// Whether there is an outcome.
    pub(super) fn is_settled(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }

    /// The common result if there is one, or why nothing moves; `None` while participants are missing.
    pub(super) fn outcome(&self) -> Option<Result<Option<&Buffer>, &CommError>> {
        match self.state.load(Ordering::Acquire) {
            OPEN => None,
            DONE => Some(Ok(self.result.get())),
            _ => self.error.get().map(Err),
        }
    }

    /// Settles the slot: all have come and agree. `result` is the result of each, if one rank computed it for all.
    pub(super) fn succeed(&self, result: Option<Buffer>) {
        if let Some(result) = result {
            drop(self.result.set(result));
        }
        self.settle(DONE);
    }

    /// Settles the slot with an error: nothing moves.
    pub(super) fn fail(&self, error: CommError) {
        drop(self.error.set(error));
        self.settle(FAILED);
    }

    /// The first outcome stands.
    fn settle(&self, outcome: usize) {
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        let (Ok(_) | Err(_)) = self.state.compare_exchange(OPEN, outcome, success, failure);
    }

    /// Whether some rank may be waiting for the slot. Called after settling.
    pub(super) fn is_awaited(&self) -> bool {
        // Together with the fence in `will_wait`: either this sees that a rank waits, or that rank sees the outcome.
        fence(Ordering::SeqCst);
        self.awaited.load(Ordering::Relaxed)
    }

    /// Announces a wait, under the world's lock; a rank that sees no outcome after this will be woken.
    pub(super) fn will_wait(&self) {
        self.awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Slot {
    /// A rank may be far ahead: the slots it leaves behind are dropped one after the other, not recursively.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(slot) = next {
            next = Arc::into_inner(slot).and_then(|mut slot| slot.next.take());
        }
    }
}

/// No code that can panic runs under these locks, so the data they guard is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(any(shard_loom, shard_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_participant_far_ahead_leaves_a_chain_that_is_taken_down_at_once() {
        let first = Slot::first(2);
        let mut ahead = first.next();
        for _ in 0..200_000 {
            ahead = ahead.next();
        }
        assert_eq!(ahead.sequence, 200_001);
        drop(ahead);
        // Recursive drops would need megabytes of stack.
        std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(move || drop(first))
            .unwrap()
            .join()
            .unwrap();
    }
}
