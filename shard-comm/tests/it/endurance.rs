//! Programs that are hard on the local backend: handles nobody asks for, groups in groups, ranks that run far ahead.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shard_comm::local::{Interleaving, LocalOptions, run, run_with};
use shard_comm::{
    Buffer, Checks, CommError, Communicator, DType, Element, Monoid, by_tree, checked, half,
};

fn doubles(comm: &dyn Communicator, len: usize, value: f64) -> Buffer {
    comm.device().upload_slice(&vec![value; len]).unwrap()
}

fn first(buffer: &Buffer) -> f64 {
    buffer.as_slice::<f64>().unwrap()[0]
}

#[test]
fn a_leaked_handle_keeps_its_own_result_and_nothing_that_comes_later() {
    const LEN: usize = 1000;
    run(3, |comm| {
        let mine = doubles(&*comm, LEN, 1.0);
        if comm.rank() == 1 {
            std::mem::forget(comm.start_all_gather_v(&mine, &[LEN; 3]).unwrap());
        } else {
            comm.all_gather_v(&mine, &[LEN; 3]).unwrap();
        }
        drop(mine);
        for k in 0..200 {
            let mine = doubles(&*comm, LEN, f64::from(k));
            assert_eq!(
                first(&comm.all_gather_v(&mine, &[LEN; 3]).unwrap()),
                f64::from(k)
            );
        }
        comm.barrier().unwrap();
        let leaked = if comm.rank() == 1 { 3 * LEN * 8 } else { 0 };
        assert_eq!(comm.device().memory().live, leaked);
        comm.barrier().unwrap();
    })
    .unwrap();
}

#[test]
fn a_handle_of_a_rank_that_never_waits_keeps_nothing_that_comes_later() {
    const LEN: usize = 1000;
    let (posted, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let reach = |count: &AtomicUsize, least| {
        while count.load(Ordering::Acquire) < least {
            std::thread::yield_now();
        }
    };
    run(2, |comm| {
        let whole = comm.start_all_gather_v(&doubles(&*comm, LEN, 1.0), &[LEN; 2]);
        let first = whole.unwrap();
        if comm.rank() == 0 {
            // The other one has always come before, so this rank goes on at once.
            for k in 1..=50 {
                reach(&posted, k);
                let mine = doubles(&*comm, LEN, 0.0);
                comm.all_gather_v(&mine, &[LEN; 2]).unwrap();
                read.store(k, Ordering::Release);
            }
            reach(&posted, 51);
        } else {
            first.wait_optional().unwrap();
            for k in 1..=50 {
                let mine = doubles(&*comm, LEN, 0.0);
                let handle = comm.start_all_gather_v(&mine, &[LEN; 2]).unwrap();
                posted.store(k, Ordering::Release);
                handle.wait().unwrap();
            }
            reach(&read, 50);
            let live = comm.device().memory().live;
            posted.store(51, Ordering::Release);
            assert_eq!(live, 0);
        }
    })
    .unwrap();
}

#[test]
fn handles_leaked_dropped_and_waited_for_in_any_order_disturb_nobody() {
    for seed in 0..40 {
        let interleaving = if seed % 2 == 0 {
            Interleaving::Free
        } else {
            Interleaving::Seeded(seed)
        };
        let options = LocalOptions {
            interleaving,
            ..LocalOptions::default()
        };
        run_with(4, &options, |comm| {
            // Each rank does something else with the same operations.
            let mut fate = seed.wrapping_mul(31) + comm.rank() as u64 * 7;
            let mut kept = Vec::new();
            for k in 0..12 {
                // Both forms of all-reduce: one round, and two.
                let len = if k % 3 == 0 { 2000 } else { 3 };
                let mine = doubles(&*comm, len, f64::from(k));
                let started = comm.start_all_reduce(&mine, Monoid::SUM).unwrap();
                fate = fate.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match fate >> 62 {
                    0 => drop(started),
                    1 => std::mem::forget(started),
                    2 => assert_eq!(first(&started.wait().unwrap()), 4.0 * f64::from(k)),
                    _ => kept.push((k, started)),
                }
            }
            for (k, started) in kept.into_iter().rev() {
                assert_eq!(first(&started.wait().unwrap()), 4.0 * f64::from(k));
            }
        })
        .unwrap();
    }
}

#[test]
fn groups_in_groups_go_at_their_own_speed() {
    let results = run(8, |comm| {
        let me = comm.rank();
        let half = comm.split(Some(me / 4), 0).unwrap().unwrap();
        // In the other order, so that numbers within groups are not those of the launch.
        let pair = half.split(Some(half.rank() / 2), 9 - me).unwrap().unwrap();
        let alone = pair.split((me % 2 == 0).then_some(me), 0).unwrap();
        assert_eq!(alone.is_some(), me % 2 == 0);
        assert_eq!(pair.members()[pair.rank()], me);
        let mut total = 0.0;
        // From 1 to 1000 rounds: the last pair is still at it when the first has long left for the half.
        for _ in 0..10_usize.pow((me / 2) as u32) {
            total += first(
                &pair
                    .all_reduce(&doubles(&*pair, 1, 1.0), Monoid::SUM)
                    .unwrap(),
            );
        }
        let of_half = half
            .all_reduce(&doubles(&*half, 1, total), Monoid::SUM)
            .unwrap();
        let of_all = comm
            .all_reduce(&doubles(&*comm, 1, total), Monoid::SUM)
            .unwrap();
        (first(&of_half), first(&of_all))
    })
    .unwrap();
    for (rank, result) in results.into_iter().enumerate() {
        let half = if rank < 4 { 2.0 * 22.0 } else { 2.0 * 2200.0 };
        assert_eq!(result, (half, 2.0 * 2222.0));
    }
}

#[test]
fn a_sender_far_ahead_is_caught_up_with_in_order() {
    run(2, |comm| {
        const MESSAGES: usize = 3000;
        if comm.rank() == 0 {
            let sent: Vec<_> = (0..MESSAGES)
                .map(|k| comm.start_send(1, &doubles(&*comm, 1, k as f64)).unwrap())
                .collect();
            for started in sent {
                started.wait_optional().unwrap();
            }
        } else {
            for k in 0..MESSAGES {
                assert_eq!(first(&comm.recv(0, DType::F64, 1).unwrap()), k as f64);
            }
        }
    })
    .unwrap();
}

#[test]
fn ranks_that_return_at_different_calls_leave_one_cause() {
    for leaver in 0..4 {
        for call in 0..3 {
            let results = run(4, |comm| {
                for k in 0..3 {
                    if (comm.rank(), k) == (leaver, call) {
                        return Ok(());
                    }
                    comm.barrier()?;
                }
                Ok(())
            })
            .unwrap();
            let stayed: Vec<_> = (0..4)
                .filter(|&r| r != leaver)
                .map(|r| &results[r])
                .collect();
            assert!(stayed.windows(2).all(|w| w[0] == w[1]), "{results:?}");
            assert!(
                matches!(stayed[0], Err(CommError::PeerFailed { origin, .. }) if *origin == leaver)
            );
        }
    }
}

#[test]
fn a_deadlock_names_the_calls() {
    let line = line!();
    let errors = run(3, |comm| match comm.rank() {
        0 => comm.barrier().unwrap_err(),
        1 => comm.recv(2, DType::F32, 1).unwrap_err(),
        _ => comm.recv(1, DType::F32, 1).unwrap_err(),
    })
    .unwrap();
    let CommError::Deadlock(report) = &errors[0] else {
        panic!("{}", errors[0])
    };
    let calls: Vec<_> = report
        .waits
        .iter()
        .map(|w| (w.rank, w.op, w.site.line - line, w.missing.clone()))
        .collect();
    let expected = [
        (0, "barrier", 2, vec![1, 2]),
        (1, "recv", 3, vec![2]),
        (2, "recv", 4, vec![1]),
    ];
    assert_eq!(calls, expected);
    assert!(
        report
            .waits
            .iter()
            .all(|w| w.site.file.ends_with("endurance.rs"))
    );
}

/// The sums of all ranks' values, as bits, found once for all or, with checksums, by each rank.
fn sums<T: Element>(ranks: usize, checksums: bool, value: impl Fn(usize) -> T + Sync) -> Vec<u8> {
    let bits = run(ranks, |comm| {
        let comm = checked(Rc::new(comm), Checks { checksums });
        let mine = comm
            .device()
            .upload_slice(&[value(comm.rank()), value(7)])
            .unwrap();
        let sum = comm.all_reduce(&mine, Monoid::SUM).unwrap();
        sum.as_bytes().unwrap().to_vec()
    })
    .unwrap();
    assert!(bits.windows(2).all(|w| w[0] == w[1]));
    bits[0].clone()
}

#[test]
fn what_is_found_once_for_all_has_the_bits_of_the_tree() {
    // Of such values every order has another sum.
    let value = |rank: usize| [1e8_f32, 3.3, -1e8, 0.7][rank % 4] * (rank + 1) as f32;
    for ranks in [2, 7, 8, 9, 33] {
        let in_order = by_tree((0..ranks).map(value), |a, b| a + b).unwrap();
        let bits = sums(ranks, false, value);
        assert_eq!(bits[..4], in_order.to_ne_bytes());
        assert_eq!(bits, sums(ranks, true, value));
        let small = |rank: usize| half::f16::from_f32([2048.0, 1.5, -0.3][rank % 3]);
        assert_eq!(sums(ranks, false, small), sums(ranks, true, small));
    }
}

/// Were every one that waits looked at by every call, this would take minutes.
#[test]
fn tens_of_thousands_of_messages_are_in_flight_at_once() {
    const COUNT: usize = 20_000;
    run(2, |comm| {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        let number = |rank: usize, k: usize| (rank * COUNT + k) as f64;
        let receive = |from: usize| comm.start_recv(from, DType::F64, 1).unwrap();
        let receives: Vec<_> = (0..COUNT).map(|_| receive(peer)).collect();
        let own: Vec<_> = (0..COUNT).map(|_| receive(me)).collect();
        let mut sends = Vec::new();
        for k in 0..COUNT {
            for to in [peer, me] {
                let sent = comm.start_send(to, &doubles(&*comm, 1, number(me, k)));
                // Of some nobody asks whether they have gone.
                sends.extend(sent.ok().filter(|_| k % 3 > 0));
            }
        }
        // An operation of several rounds among them, and one of all that comes later.
        let sum = comm.start_all_reduce(&doubles(&*comm, 5000, 1.0), Monoid::SUM);
        comm.barrier().unwrap();
        let check = |from: usize, all: Vec<shard_comm::Handle>| {
            let mut all: Vec<_> = all.into_iter().enumerate().collect();
            // The last ones first, then the first ones, then all that were between.
            let last = all.split_off(COUNT - 100);
            for (k, handle) in last.into_iter().rev().chain(all) {
                assert_eq!(first(&handle.wait().unwrap()), number(from, k));
            }
        };
        check(peer, receives);
        check(me, own);
        for sent in sends {
            sent.wait_optional().unwrap();
        }
        assert_eq!(first(&sum.unwrap().wait().unwrap()), 2.0);
        comm.barrier().unwrap();
        assert_eq!(comm.device().memory().live, 0);
        comm.barrier().unwrap();
    })
    .unwrap();
}
