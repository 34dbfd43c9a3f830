//! Who watches the ranks of a launch: the thread that started them and has nothing to do until they end.
//!
//! A rank that is never going to join an operation, because it loops or is held up by a lock, looks like one that computes,
//! so it is no deadlock, and only time tells. The watch costs the ranks nothing: it looks at them a few times within the
//! shortest time it is to notice.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::world::World;

/// How long ranks may wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Before it is told of.
    pub warning: Duration,
    /// Before it is an error.
    pub timeout: Option<Duration>,
    /// After an error, for ranks that make no call, before the process ends; without it they are waited for.
    pub grace: Option<Duration>,
}

/// Looks within the shortest time that is to be noticed: what is found late is late by a part of this.
const LOOKS: u32 = 8;

/// Looks are never closer together than this.
const SHORTEST: Duration = Duration::from_millis(1);

/// What has been seen of the ranks so far.
pub(super) struct Watch {
    world: Arc<World>,
    patience: Patience,
    /// Between two looks. Waits are measured in looks, not by the clock: a machine that slept has not waited.
    tick: Duration,
    /// The wait each rank was in when last looked at.
    seen: Vec<Option<Seen>>,
    /// For how many looks there has been a failure.
    failing: u32,
}

#[derive(Clone, Copy)]
struct Seen {
    /// Which wait.
    number: u64,
    /// Looks since it was seen first.
    age: u32,
    /// Whether it has been told of.
    told: bool,
}

impl Watch {
    pub(super) fn new(world: &Arc<World>, patience: Patience) -> Self {
        let shortest = (patience.timeout).map_or(patience.warning, |t| t.min(patience.warning));
        Self {
            world: Arc::clone(world),
            patience,
            tick: (shortest / LOOKS).max(SHORTEST),
            seen: vec![None; world.ranks()],
            failing: 0,
        }
    }

    /// Returns when all senders are gone: `true`; or, with a grace, when something has failed and some have not heard of it
    /// for that long, because they make no calls: `false`.
    pub(super) fn until_gone(&mut self, alive: &Receiver<Infallible>) -> bool {
        loop {
            match alive.recv_timeout(self.tick) {
                Err(RecvTimeoutError::Timeout) if self.look() => {}
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
                Ok(never) => match never {},
            }
        }
    }

    /// Whether to go on.
    fn look(&mut self) -> bool {
        if self.world.has_failed() {
            self.failing += 1;
            return (self.patience.grace).is_none_or(|most| self.tick * self.failing < most);
        }
        let waits = self.world.waits();
        for (seen, wait) in self.seen.iter_mut().zip(waits) {
            *seen = wait.map(|number| match *seen {
                Some(known) if known.number == number => Seen {
                    age: known.age.saturating_add(1),
                    ..known
                },
                _ => Seen {
                    number,
                    age: 0,
                    told: false,
                },
            });
        }
        let waiting = self.seen.iter().enumerate();
        let waiting = waiting.filter_map(|(rank, seen)| Some((rank, (*seen)?)));
        // Of several the lowest, so that the same program names the same one.
        let oldest = waiting.rev().max_by_key(|(_, seen)| seen.age);
        if let Some((rank, seen)) = oldest {
            let waited = self.tick * seen.age;
            if self.patience.timeout.is_some_and(|most| waited >= most) {
                self.world.time_out(rank, seen.number, waited);
                self.world.release();
            } else if waited >= self.patience.warning && !seen.told {
                self.warn(waited);
            }
        }
        true
    }

    /// Tells once of all waits there are.
    fn warn(&mut self, waited: Duration) {
        let mut table = String::new();
        for rank in self.world.whereabouts() {
            table += &format!("\n  {rank}");
        }
        tracing::warn!(target: "shard_comm", "ranks have been waiting for {waited:?}:{table}");
        for seen in self.seen.iter_mut().flatten() {
            seen.told = true;
        }
    }
}
