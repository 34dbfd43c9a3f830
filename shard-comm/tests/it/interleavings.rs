//! Ranks that run one at a time, in an order that can be had again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};
use shard_comm::local::{Interleaving, LocalOptions, run_with};
use shard_comm::{CommError, DType, LaunchError, Monoid};

fn options(interleaving: Interleaving) -> LocalOptions {
    LocalOptions {
        interleaving,
        ..LocalOptions::default()
    }
}

/// The ranks in the order in which they come by.
fn order(interleaving: Interleaving) -> Vec<usize> {
    let seen = Mutex::new(Vec::new());
    run_with(4, &options(interleaving), |comm| {
        for _ in 0..10 {
            seen.lock().unwrap().push(comm.rank());
            comm.barrier().unwrap();
            seen.lock().unwrap().push(comm.rank());
            let next = (comm.rank() + 1) % 4;
            let data = comm.device().upload_slice(&[1.0_f64]).unwrap();
            let sent = comm.start_send(next, &data).unwrap();
            comm.recv((comm.rank() + 3) % 4, DType::F64, 1).unwrap();
            sent.wait_optional().unwrap();
        }
    })
    .unwrap();
    seen.into_inner().unwrap()
}

#[test]
fn a_seed_is_an_order() {
    let orders: Vec<_> = (0..10).map(|s| order(Interleaving::Seeded(s))).collect();
    for (seed, first) in orders.iter().enumerate() {
        assert_eq!(&order(Interleaving::Seeded(seed as u64)), first);
    }
    let distinct: std::collections::HashSet<_> = orders.iter().collect();
    assert!(distinct.len() > 5);
}

#[test]
fn deadlocks_and_panics_are_found_one_at_a_time_too() {
    for seed in 0..50 {
        let errors = run_with(3, &options(Interleaving::Seeded(seed)), |comm| {
            comm.recv((comm.rank() + 1) % 3, DType::F32, 1).unwrap_err()
        })
        .unwrap();
        assert!(matches!(&errors[0], CommError::Deadlock(report) if report.waits.len() == 3));
        assert_eq!((&errors[0], &errors[0]), (&errors[1], &errors[2]));

        let panicked = run_with(3, &options(Interleaving::Seeded(seed)), |comm| {
            assert_ne!(comm.rank(), 1, "rank one's fault");
            comm.barrier()
        });
        assert!(matches!(
            panicked,
            Err(LaunchError::Panicked { rank: 1, .. })
        ));
    }
}

/// A mistake that few orders show: each rank in its turn adds one to what they share, but stores the sum only after it has
/// started the call that ends its turn. Says how many additions were lost.
fn lost_updates(interleaving: Interleaving) -> usize {
    let shared = AtomicUsize::new(0);
    run_with(3, &options(interleaving), |comm| {
        let mine = comm.device().upload_slice(&[1.0_f64]).unwrap();
        for turn in 0..3 {
            let seen = shared.load(Ordering::SeqCst);
            let end_of_turn = comm.start_all_reduce(&mine, Monoid::SUM).unwrap();
            if turn == comm.rank() {
                shared.store(seen + 1, Ordering::SeqCst);
            }
            end_of_turn.wait().unwrap();
        }
    })
    .unwrap();
    3 - shared.load(Ordering::SeqCst)
}

#[test]
fn a_failing_order_is_found_and_shrinks() {
    // Ranks that go on until they wait do it right.
    assert_eq!(lost_updates(Interleaving::listed([])), 0);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let found = runner.run(
        &prop::collection::vec(0_u16..3, 0..12),
        |choices| match lost_updates(Interleaving::listed(choices)) {
            0 => Ok(()),
            lost => Err(TestCaseError::fail(format!("{lost} lost"))),
        },
    );
    let Err(TestError::Fail(_, choices)) = found else {
        panic!("{found:?}")
    };
    // It fails each time, and little is left that need not be.
    assert!(lost_updates(Interleaving::listed(choices.clone())) > 0);
    let changes = choices.iter().filter(|&&c| c != 0).count();
    assert!(changes <= 5, "{choices:?}");
}
