//! Ranks that wait for what never comes: what they are told, and when.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shard_comm::local::{Interleaving, LocalComm, LocalOptions, Patience, run_watched, run_with};
use shard_comm::{CommError, Communicator, ErrorClass, LaunchError, TimeoutReport, Whereabouts};

fn options(interleaving: Interleaving) -> LocalOptions {
    LocalOptions {
        interleaving,
        timeout: Some(Duration::from_millis(60)),
        ..LocalOptions::default()
    }
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
        let lock = Mutex::new(());
        let errors = run_with(3, &options(interleaving.clone()), |comm| {
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
    for interleaving in [Interleaving::Free, Interleaving::listed([])] {
        let ended = AtomicUsize::new(0);
        let errors = run_with(3, &options(interleaving.clone()), |comm| {
            loops(&comm, &ended)
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
    let met = run_with(2, &options(Interleaving::Free), |comm| {
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
        drop(run_with(2, &options(Interleaving::Free), |comm| {
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
    let patience = Patience {
        warning: Duration::from_millis(20),
        timeout: None,
    };
    let warnings = Warnings::default();
    let wait = |interleaving| {
        let options = LocalOptions {
            interleaving,
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
    assert_eq!(wait(Interleaving::Free).unwrap(), [Ok(()), Ok(()), Ok(())]);
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
