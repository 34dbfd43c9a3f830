//! Ranks that wait for what never comes: what they are told, and when.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shard_comm::local::{Interleaving, LocalComm, LocalOptions, Patience, run_watched, run_with};
use shard_comm::{CommError, Communicator, ErrorClass, LaunchError, TimeoutReport, Whereabouts};

const PATIENCE: Duration = Duration::from_millis(60);

/// Runs ranks that wait no longer than `timeout`. All of them hear of a failure some time, so none ends the process.
fn run<T: Send>(
    ranks: usize,
    interleaving: &Interleaving,
    timeout: Duration,
    f: &(dyn Fn(LocalComm) -> T + Sync),
) -> Result<Vec<T>, LaunchError> {
    let options = LocalOptions {
        interleaving: interleaving.clone(),
        ..LocalOptions::default()
    };
    let patience = Patience {
        warning: Duration::from_secs(60),
        timeout: Some(timeout),
        grace: None,
    };
    run_watched(ranks, &options, patience, f)
}

/// The longest that ranks took to come to where others wait for them.
#[derive(Default)]
struct Lateness {
    longest: Mutex<Duration>,
    some: AtomicBool,
}

impl Lateness {
    fn note(&self, took: Duration) {
        let mut longest = self.longest.lock().unwrap_or_else(PoisonError::into_inner);
        *longest = took.max(*longest);
    }

    /// That a rank has come, so long after it was started. Of ranks that run in turns some do not before one has timed out, so
    /// the first counts.
    fn come(&self, begun: Instant, interleaving: &Interleaving) {
        if !self.some.swap(true, Ordering::Relaxed) || *interleaving == Interleaving::Free {
            self.note(begun.elapsed());
        }
    }
}

/// What comes of a run with some patience. A machine that has much else to do makes ranks late by themselves, so that others lose that
/// patience too early: such a run says nothing, and there is another one with twice as much.
fn in_time<T>(patience: Duration, run: impl Fn(Duration, &Lateness) -> T) -> (Duration, T) {
    let lateness = Lateness::default();
    let came = run(patience, &lateness);
    let longest = lateness.longest.into_inner().unwrap();
    if longest < patience {
        return (patience, came);
    }
    assert!(longest < Duration::from_secs(30), "late by {longest:?}");
    in_time(2 * patience, run)
}

/// The errors of ranks that are all to hear of the same.
fn timed_out(errors: &[CommError]) -> Arc<TimeoutReport> {
    assert!(errors.iter().all(|e| *e == errors[0]), "{errors:#?}");
    assert_eq!(errors[0].class(), ErrorClass::Failure);
    match &errors[0] {
        CommError::TimedOut(report) => Arc::clone(report),
        other => panic!("{other}"),
    }
}

#[test]
fn a_lock_held_by_a_rank_that_waits_is_an_error_on_all() {
    for interleaving in [
        Interleaving::Free,
        Interleaving::Seeded(3),
        Interleaving::listed([]),
    ] {
        let (patience, errors) = in_time(PATIENCE, |patience, lateness| {
            let (lock, begun) = (Mutex::new(()), Instant::now());
            run(3, &interleaving, patience, &|comm| {
                let met = comm.barrier();
                lateness.come(begun, &interleaving);
                met?;
                let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
                comm.barrier()
            })
        });
        let errors = errors.unwrap().into_iter().map(Result::unwrap_err);
        let report = timed_out(&errors.collect::<Vec<_>>());
        assert!(report.waited >= patience, "{report}");
        assert_eq!(report.others.len(), 2);
        let mut busy = 0;
        for other in &report.others {
            let last = match other {
                Whereabouts::Busy { last, .. } => last.as_ref().unwrap(),
                // For its turn, or for the one that is held up.
                Whereabouts::Waiting(wait) if interleaving != Interleaving::Free => {
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
        if interleaving == Interleaving::Free {
            assert_eq!((report.wait.op, report.wait.sequence), ("barrier", 1));
            assert_eq!((report.wait.missing.len(), report.recent.len()), (2, 2));
        }
    }
}

/// Rank 1 makes no call until all others have ended.
fn loops(comm: &LocalComm, ended: &AtomicUsize, come: &dyn Fn()) -> CommError {
    if comm.rank() == 1 {
        while ended.load(Ordering::Relaxed) < comm.size() - 1 {
            std::hint::spin_loop();
        }
        return comm.barrier().unwrap_err();
    }
    come();
    let error = comm.barrier().unwrap_err();
    ended.fetch_add(1, Ordering::Relaxed);
    error
}

#[test]
fn a_rank_that_loops_is_told_from_those_that_wait() {
    for interleaving in [Interleaving::Free, Interleaving::listed([])] {
        let (_, errors) = in_time(PATIENCE, |patience, lateness| {
            let (ended, begun) = (AtomicUsize::new(0), Instant::now());
            let come = || lateness.come(begun, &interleaving);
            run(3, &interleaving, patience, &|comm| {
                loops(&comm, &ended, &come)
            })
        });
        let report = timed_out(&errors.unwrap());
        // Whichever waited first.
        let first = report.wait.rank;
        assert!(first != 1 && report.wait.missing.contains(&1), "{report}");
        let busy = Whereabouts::Busy {
            rank: 1,
            last: None,
        };
        assert!(report.others.contains(&busy), "{report}");
        if interleaving == Interleaving::Free {
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
    let (_, met) = in_time(PATIENCE, |patience, lateness| {
        let begun = Instant::now();
        run(2, &Interleaving::Free, patience, &|comm| {
            let mut since = begun;
            for _ in 0..12 {
                if comm.rank() == 1 {
                    std::thread::sleep(patience / 4);
                }
                let joined = Instant::now();
                let met = comm.barrier();
                if comm.rank() == 1 {
                    // No longer than since it joined the one before has anybody waited for it.
                    lateness.note(since.elapsed());
                }
                since = joined;
                met?;
            }
            Ok::<_, CommError>(())
        })
    });
    assert_eq!(met.unwrap(), [Ok(()), Ok(())]);
}

#[test]
fn a_rank_that_never_returns_ends_the_process() {
    const CHILD: &str = "SHARD_TEST_NEVER_RETURNS";
    if std::env::var_os(CHILD).is_some() {
        let never = AtomicBool::new(false);
        let options = LocalOptions {
            timeout: Some(PATIENCE),
            ..LocalOptions::default()
        };
        drop(run_with(2, &options, |comm| {
            while comm.rank() == 1 && !never.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            comm.barrier()
        }));
        return;
    }
    let name = "watch::a_rank_that_never_returns_ends_the_process";
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

#[test]
fn absurd_numbers_of_ranks_are_refused() {
    let refused = run_with(1 << 40, &LocalOptions::default(), |_| ());
    assert!(matches!(
        refused,
        Err(LaunchError::TooMany { ranks, most }) if ranks == 1 << 40 && most < ranks
    ));
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
    let warning = Duration::from_millis(20);
    let (_, (told, met)) = in_time(warning, |warning, lateness| {
        let patience = Patience {
            warning,
            timeout: None,
            grace: None,
        };
        let warnings = Warnings::default();
        let begun = Instant::now();
        let met = tracing::subscriber::with_default(warnings.clone(), || {
            run_watched(3, &LocalOptions::default(), patience, |comm| {
                comm.barrier()?;
                if comm.rank() == 2 {
                    // Until it is told of, and for long enough to be told of again.
                    let told = || !warnings.0.lock().unwrap().is_empty();
                    while !told() && begun.elapsed() < 100 * warning {
                        std::thread::sleep(warning / 8);
                    }
                    std::thread::sleep(6 * warning);
                } else {
                    lateness.note(begun.elapsed());
                }
                comm.barrier()
            })
        });
        let told = std::mem::take(&mut *warnings.0.lock().unwrap());
        (told, met)
    });
    assert_eq!(met.unwrap(), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(told.len(), 1, "{told:?}");
    for line in [
        "rank 0 waits in barrier (operation 1 of ranks 0..=2)",
        "rank 1 waits in barrier",
        "rank 2 is not waiting; it was last seen in barrier (operation 0)",
    ] {
        assert!(told[0].contains(line), "{}", told[0]);
    }
}
