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
pub(super) struct Patience {
    /// Before it is told of.
    pub(super) warning: Duration,
    /// Before it is an error.
    pub(super) timeout: Option<Duration>,
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

    /// Returns when all senders are gone: `true`; or, with a timeout, when something has failed and some have not heard of it
    /// for as long again, because they make no calls: `false`.
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
            return (self.patience.timeout).is_none_or(|most| self.tick * self.failing < most);
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

#[cfg(all(test, not(any(shard_loom, shard_shuttle))))]
mod tests {
    use super::*;
    use crate::local::{LocalComm, LocalOptions, Schedule, run_watched, run_with};
    use crate::{CommError, ErrorClass, LaunchError, Whereabouts};
    use std::fmt::Write as _;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    fn options(schedule: Schedule) -> LocalOptions {
        LocalOptions {
            schedule,
            timeout: Some(Duration::from_millis(60)),
            ..LocalOptions::default()
        }
    }

    /// The errors of ranks that are all to hear of the same.
    fn timed_out(errors: &[CommError]) -> Arc<crate::TimeoutReport> {
        assert!(errors.iter().all(|e| *e == errors[0]), "{errors:#?}");
        assert_eq!(errors[0].class(), ErrorClass::Failure);
        match &errors[0] {
            CommError::TimedOut(report) => Arc::clone(report),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_lock_held_by_a_rank_that_waits_is_an_error_on_all() {
        for schedule in [Schedule::Free, Schedule::Seeded(3), Schedule::listed([])] {
            let lock = Mutex::new(());
            let errors = run_with(3, &options(schedule.clone()), |comm| {
                comm.barrier().unwrap();
                let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
                comm.barrier().unwrap_err()
            });
            let report = timed_out(&errors.unwrap());
            assert!(report.waited >= Duration::from_millis(60), "{report}");
            assert_eq!(report.others.len(), 2);
            let mut busy = 0;
            for other in &report.others {
                let last = match other {
                    Whereabouts::Busy { last, .. } => last.as_ref().unwrap(),
                    // For its turn, or for the one that is held up.
                    Whereabouts::Waiting(wait) if schedule != Schedule::Free => {
                        assert!(!wait.missing.is_empty(), "{report}");
                        continue;
                    }
                    other => panic!("{other} in {report}"),
                };
                busy += 1;
                assert_eq!((last.name, last.sequence), ("barrier", 0));
                assert!(last.site.file.ends_with("watch.rs"));
            }
            assert!(busy > 0, "{report}");
            if schedule == Schedule::Free {
                assert_eq!((report.wait.op, report.wait.sequence), ("barrier", 1));
                assert_eq!((report.wait.missing.len(), report.recent.len()), (2, 2));
            }
        }
    }

    /// Rank 1 makes no call until all others have ended.
    fn loops(comm: &LocalComm, ended: &AtomicUsize) -> CommError {
        if comm.rank() == 1 {
            while ended.load(Ordering::Relaxed) < comm.size() - 1 {
                std::hint::spin_loop();
            }
            return comm.barrier().unwrap_err();
        }
        let error = comm.barrier().unwrap_err();
        ended.fetch_add(1, Ordering::Relaxed);
        error
    }

    #[test]
    fn a_rank_that_loops_is_told_from_those_that_wait() {
        for schedule in [Schedule::Free, Schedule::listed([])] {
            let ended = AtomicUsize::new(0);
            let errors = run_with(3, &options(schedule.clone()), |comm| loops(&comm, &ended));
            let report = timed_out(&errors.unwrap());
            // Whichever waited first.
            let first = report.wait.rank;
            assert!(first != 1 && report.wait.missing.contains(&1), "{report}");
            let busy = Whereabouts::Busy {
                rank: 1,
                last: None,
            };
            assert!(report.others.contains(&busy), "{report}");
            if schedule == Schedule::Free {
                let other = |at: &Whereabouts| matches!(at, Whereabouts::Waiting(wait) if wait.rank == 2 - first);
                assert_eq!(report.wait.missing, [1]);
                assert!(report.others.iter().any(other), "{report}");
            }
            let text = report.to_string();
            assert!(
                text.contains("rank 1 is not waiting; it has made no call"),
                "{text}"
            );
        }
    }

    #[test]
    fn who_waits_often_has_not_waited_long() {
        let met = run_with(2, &options(Schedule::Free), |comm| {
            for _ in 0..12 {
                if comm.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(15));
                }
                comm.barrier()?;
            }
            Ok::<_, CommError>(())
        });
        assert_eq!(met.unwrap(), [Ok(()), Ok(())]);
    }

    #[test]
    fn a_rank_that_never_returns_ends_the_process() {
        const CHILD: &str = "SHARD_TEST_NEVER_RETURNS";
        if std::env::var_os(CHILD).is_some() {
            let never = AtomicBool::new(false);
            drop(run_with(2, &options(Schedule::Free), |comm| {
                while comm.rank() == 1 && !never.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                comm.barrier()
            }));
            return;
        }
        let name = "backend::local::watch::tests::a_rank_that_never_returns_ends_the_process";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.code(), Some(1), "{told}");
        assert!(told.contains("rank 0 waits in barrier"), "{told}");
        assert!(told.contains("ranks [1] made no call since"), "{told}");
    }

    /// Keeps the warnings of one thread.
    #[derive(Clone, Default)]
    struct Warnings(Arc<Mutex<Vec<String>>>);

    struct Text(String);

    impl tracing::field::Visit for Text {
        fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            write!(self.0, "{value:?}").unwrap();
        }
    }

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn a_long_wait_is_told_of_once() {
        let patience = Patience {
            warning: Duration::from_millis(20),
            timeout: None,
        };
        let warnings = Warnings::default();
        let wait = |schedule| {
            let options = LocalOptions {
                schedule,
                ..LocalOptions::default()
            };
            tracing::subscriber::with_default(warnings.clone(), || {
                run_watched(3, &options, patience, |comm| {
                    comm.barrier()?;
                    if comm.rank() == 2 {
                        std::thread::sleep(Duration::from_millis(150));
                    }
                    comm.barrier()
                })
            })
        };
        assert_eq!(wait(Schedule::Free).unwrap(), [Ok(()), Ok(()), Ok(())]);
        let told = std::mem::take(&mut *warnings.0.lock().unwrap());
        assert_eq!(told.len(), 1, "{told:?}");
        for line in [
            "rank 0 waits in barrier (operation 1 of ranks 0..=2)",
            "rank 1 waits in barrier",
            "rank 2 is not waiting; it was last seen in barrier (operation 0)",
        ] {
            assert!(told[0].contains(line), "{}", told[0]);
        }
    }

    #[test]
    fn absurd_numbers_of_ranks_are_refused() {
        let refused = run_with(1 << 40, &LocalOptions::default(), |_| ());
        assert!(matches!(
            refused,
            Err(LaunchError::TooMany { ranks, most }) if ranks == 1 << 40 && most < ranks
        ));
    }
}
