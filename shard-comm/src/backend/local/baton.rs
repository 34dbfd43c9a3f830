//! One rank at a time, in a reproducible order: the baton.
//!
//! A rank runs only while it holds the baton. It passes it on whenever it has posted to a rendezvous, waits or ends; who
//! gets it next is the choice of the [`Interleaving`] among the ranks that can run. So the interleaving of ranks at their calls is a
//! function of the interleaving, and a program that goes wrong under one goes wrong each time.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::sync::{Condvar, Mutex, MutexGuard};

/// The order in which the ranks of a launch run between their calls.
///
/// Results never depend on it, unless ranks share something besides their communicators. An interleaving is for testing what ranks
/// share, and what a backend does when ranks arrive in an unusual order.
///
/// Ranks that wait for each other by other means than communicators (a channel, a lock) hang if only one may run at a time.
///
/// ```
/// use shard_comm::local::{self, Interleaving, LocalOptions};
/// use std::sync::Mutex;
/// let arrivals = |interleaving: Interleaving| {
///     let seen = Mutex::new(Vec::new());
///     let options = LocalOptions { interleaving, ..Default::default() };
///     local::run_with(3, &options, |comm| {
///         for _ in 0..3 {
///             seen.lock().unwrap().push(comm.rank());
///             comm.barrier().unwrap();
///         }
///     })
///     .unwrap();
///     seen.into_inner().unwrap()
/// };
/// // The same seed, the same order of arrivals; without one it differs from run to run.
/// assert_eq!(arrivals(Interleaving::Seeded(7)), arrivals(Interleaving::Seeded(7)));
/// // Without any choice, each rank goes on until it has to wait.
/// assert_eq!(arrivals(Interleaving::listed([]))[..3], [0, 1, 2]);
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Interleaving {
    /// All at once, as the system schedules them.
    #[default]
    Free,
    /// One at a time, in an order that follows from the seed.
    Seeded(u64),
    /// One at a time. The k-th number, modulo the count of ranks that can run, chooses the next of them, counted upwards from the
    /// rank that ran last, and after the highest from rank 0; after the end of the list every number is 0. A property test that
    /// generates such lists shrinks a failure to the fewest changes of rank.
    Listed(Arc<[u16]>),
}

impl Interleaving {
    /// One rank at a time, chosen by these numbers.
    pub fn listed(choices: impl Into<Vec<u16>>) -> Self {
        Self::Listed(choices.into().into())
    }
}

/// The state of turns: which rank may run.
pub(super) struct Baton {
    turn: Mutex<Turn>,
    /// What each rank waits at for its turn: only the one that gets the baton is woken.
    passed: Vec<Condvar>,
}

struct Turn {
    /// `None` while no rank can run.
    holder: Option<usize>,
    /// All ranks may run: there are no turns any more.
    open: bool,
    can_run: Vec<bool>,
    choices: Choices,
}

enum Choices {
    /// The state of SplitMix64 (Steele, Lea and Flood 2014).
    Seeded(u64),
    Listed(Arc<[u16]>, usize),
}

impl Baton {
    /// The baton of a launch; `None` if all run at once.
    pub(super) fn new(interleaving: &Interleaving, ranks: usize) -> Option<Self> {
        let choices = match interleaving {
            Interleaving::Free => return None,
            Interleaving::Seeded(seed) => Choices::Seeded(*seed),
            Interleaving::Listed(choices) => Choices::Listed(Arc::clone(choices), 0),
        };
        let mut turn = Turn {
            holder: None,
            open: false,
            can_run: vec![true; ranks],
            choices,
        };
        turn.choose(0);
        Some(Self {
            turn: Mutex::new(turn),
            passed: (0..ranks).map(|_| Condvar::new()).collect(),
        })
    }

    /// Waits until a rank may run.
    pub(super) fn take(&self, rank: usize) {
        let mut turn = self.lock();
        while turn.holder != Some(rank) && !turn.open {
            turn = (self.passed[rank].wait(turn)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the next rank run, which may be the same one, and waits until this rank may run again.
    pub(super) fn pass(&self, rank: usize) {
        self.hand_on(rank);
        self.take(rank);
    }

    /// Gives the baton to the next rank, if this one has it.
    pub(super) fn hand_on(&self, rank: usize) {
        let mut turn = self.lock();
        if turn.holder == Some(rank) {
            turn.choose(rank);
            // A rank that goes on itself waits nowhere.
            if turn.holder != Some(rank) {
                self.wake(turn);
            }
        }
    }

    /// Records whether a rank can run: it cannot while it waits, nor after its end.
    pub(super) fn set(&self, rank: usize, can_run: bool) {
        let mut turn = self.lock();
        turn.can_run[rank] = can_run;
        if turn.holder.is_none() && can_run {
            turn.choose(rank);
            self.wake(turn);
        }
    }

    /// Wakes the rank that got the baton, which then finds the lock free.
    fn wake(&self, turn: MutexGuard<'_, Turn>) {
        let holder = turn.holder;
        drop(turn);
        if let Some(rank) = holder {
            self.passed[rank].notify_one();
        }
    }

    /// Whose turn it is.
    pub(super) fn holder(&self) -> Option<usize> {
        self.lock().holder
    }

    /// Ends the taking of turns: from now on all ranks run at once.
    pub(super) fn open(&self) {
        self.lock().open = true;
        for rank in &self.passed {
            rank.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    fn choose(&mut self, last: usize) {
        let can_run = |&rank: &usize| self.can_run[rank];
        let mut able: Vec<usize> = Some(last).into_iter().filter(can_run).collect();
        able.extend((0..self.can_run.len()).filter(|r| *r != last && can_run(r)));
        self.holder = match able.len() {
            0 => None,
            n => Some(able[self.choices.next(n)]),
        };
    }
}

impl Choices {
    fn next(&mut self, among: usize) -> usize {
        match self {
            Self::Seeded(state) => {
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let x = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                ((x ^ (x >> 31)) % among as u64) as usize
            }
            Self::Listed(choices, at) => {
                let choice = choices.get(*at).copied().unwrap_or(0);
                *at += 1;
                usize::from(choice) % among
            }
        }
    }
}

impl fmt::Debug for Baton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Baton")
            .field("holder", &self.lock().holder)
            .finish_non_exhaustive()
    }
}
