//! Where ranks meet: one rendezvous after the other, without a lock.
//!
//! Each rank puts what it brings, a [`Post`], in its own place of a [`Slot`] and counts itself in; the last one validates what all
//! brought and publishes the outcome, which the others poll. A slot knows the next one, so ranks that met once find each
//! other again without looking anywhere.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, OnceLock, fence};
use crate::backend::Post;
use crate::{Buffer, CommError, Result};

/// One rendezvous. Ranks hold it until they have read what they want; with the last of them it dies.
///
/// What every rank writes comes first, to lie in few cache lines with the count of references: moving a line from core to
/// core is most of what a rendezvous costs.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    /// How many places are empty.
    missing: AtomicUsize,
    /// Whether a rank waits for the outcome, or is about to. Set under the world's lock.
    awaited: AtomicBool,
    _gap: [u8; 72],
    /// [`OPEN`], [`DONE`] or [`FAILED`]; changed once. Apart, so that who polls it need not fetch, and take from the others, what
    /// they still write.
    state: AtomicUsize,
    /// The ranks' next rendezvous, from the first rank on that asks for it.
    ///
    /// A slot that is held holds all after it. While it is open nobody can complete a later one, since whoever joins that has
    /// joined this before; once it is settled, a rank leaves it with its next blocking call at the latest.
    next: OnceLock<Arc<Self>>,
    places: Box<[OnceLock<Post>]>,
    /// How many rendezvous of these ranks came before: the number of the operation. Rounds of one operation share it.
    pub(super) sequence: u64,
    /// Before `DONE`: the result of every rank, if it was found once for all.
    result: OnceLock<Buffer>,
    /// Before `FAILED`.
    error: OnceLock<CommError>,
    /// The rendezvous of the operation's next round.
    round: Mutex<Option<Arc<Self>>>,
}

const OPEN: usize = 0;
const DONE: usize = 1;
const FAILED: usize = 2;

impl Slot {
    /// The first rendezvous of so many participants.
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

    /// Fills the place of a participant; says whether it was the last.
    ///
    /// The post is made where it will lie: it is as large as several cache lines, and every rank makes one per call.
    #[inline]
    pub(super) fn fill(&self, index: usize, post: impl FnOnce() -> Post) -> bool {
        // A participant comes once, so its place is empty.
        self.places[index].get_or_init(post);
        self.missing.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// How many meet here.
    pub(super) fn participants(&self) -> usize {
        self.places.len()
    }

    /// What a participant brought, if it has come.
    pub(super) fn post(&self, index: usize) -> Option<&Post> {
        self.places[index].get()
    }

    /// What each participant brought, so far.
    pub(super) fn posts(&self) -> impl Iterator<Item = Option<&Post>> {
        self.places.iter().map(OnceLock::get)
    }

    /// Whether there is an outcome.
    pub(super) fn is_settled(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }

    /// The result of every rank if there is one, or why nothing moves; `None` while some are missing.
    pub(super) fn outcome(&self) -> Option<Result<Option<&Buffer>, &CommError>> {
        match self.state.load(Ordering::Acquire) {
            OPEN => None,
            DONE => Some(Ok(self.result.get())),
            _ => self.error.get().map(Err),
        }
    }

    /// All have come and agree, and perhaps this is the result of each.
    pub(super) fn succeed(&self, result: Option<Buffer>) {
        if let Some(result) = result {
            drop(self.result.set(result));
        }
        self.settle(DONE);
    }

    /// Nothing moves.
    pub(super) fn fail(&self, error: CommError) {
        drop(self.error.set(error));
        self.settle(FAILED);
    }

    /// The first outcome stands.
    fn settle(&self, outcome: usize) {
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        let (Ok(_) | Err(_)) = self.state.compare_exchange(OPEN, outcome, success, failure);
    }

    /// After settling: whether some rank may be waiting for it.
    pub(super) fn is_awaited(&self) -> bool {
        // With the fence in `will_wait`: either this sees a rank that waits, or that rank sees the outcome.
        fence(Ordering::SeqCst);
        self.awaited.load(Ordering::Relaxed)
    }

    /// Before waiting, under the world's lock; a rank that then sees no outcome will be woken.
    pub(super) fn will_wait(&self) {
        self.awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Slot {
    /// A rank may have gone far ahead: what it leaves behind is taken down one by one, not one within the other.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(slot) = next {
            next = Arc::into_inner(slot).and_then(|mut slot| slot.next.take());
        }
    }
}

/// No code that can panic runs under these locks, so what they guard is whole.
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
        // One drop within the other would need megabytes of stack.
        std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(move || drop(first))
            .unwrap()
            .join()
            .unwrap();
    }
}
