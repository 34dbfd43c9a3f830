//! Promises of the local backend only: exact mismatches, deadlocks and failures, and thousands of random exchanges.

use std::rc::Rc;
use std::sync::Arc;

use proptest::prelude::*;

use shard_comm::local::{Binding, LocalOptions, run, run_with, tickets, tickets_with};
use shard_comm::{
    AgreedError, Buffer, CommError, Communicator, DType, DeviceKind, ErrorClass, ExchangePlan,
    LaunchError, Mismatch, Monoid, Piece, Pieces, Scalar,
};

type Outcome = Result<(), CommError>;

/// Runs a collective that must end in one mismatch on all ranks and leave the group usable.
fn mismatch(ranks: usize, f: impl Fn(&dyn Communicator) -> Outcome + Sync) -> Mismatch {
    let errors = run(ranks, |comm| {
        let error = f(&*comm).unwrap_err();
        // The next operation must pair up, whatever the broken one was.
        let one = comm.device().upload_slice(&[1i64]).unwrap();
        let sum = comm.all_reduce(&one, Monoid::SUM).unwrap();
        assert_eq!(sum.as_slice::<i64>().unwrap(), [ranks as i64]);
        assert_eq!(error.class(), ErrorClass::Uniform);
        error
    })
    .unwrap();
    assert!(errors.windows(2).all(|w| w[0] == w[1]), "{errors:#?}");
    match &errors[0] {
        CommError::Mismatch(report) => Mismatch::clone(report),
        other => panic!("{other}"),
    }
}

fn floats(comm: &dyn Communicator, len: usize) -> Buffer {
    comm.device().upload_slice(&vec![1.0f64; len]).unwrap()
}

#[test]
fn different_operations_are_named_with_their_sites() {
    let first_line = line!();
    let report = mismatch(3, |comm| match comm.rank() {
        0 | 1 => comm.all_gather_v(&floats(comm, 1), &[1; 3]).map(drop),
        _ => comm.barrier(),
    });
    assert_eq!(report.field, "operation");
    assert_eq!((report.rank_a, report.a.as_str()), (0, "all_gather_v"));
    assert_eq!((report.rank_b, report.b.as_str()), (2, "barrier"));
    let lines = [&report.site_a, &report.site_b].map(|site| site.line - first_line);
    assert_eq!(lines, [2, 3]);
    assert!(report.site_a.file.ends_with("local.rs"));
    assert!(report.to_string().contains("ranks 0..=2"), "{report}");
}

#[test]
fn every_argument_that_must_agree_is_checked() {
    let odd = |comm: &dyn Communicator| comm.rank() == 1;
    let report = mismatch(2, |comm| {
        let buffer = if odd(comm) {
            comm.device().upload_slice(&[1.0f32; 2]).unwrap()
        } else {
            floats(comm, 2)
        };
        comm.all_gather_v(&buffer, &[2, 2]).map(drop)
    });
    assert_eq!(
        (report.field.as_str(), report.a.as_str(), report.b.as_str()),
        ("element type", "f64", "f32")
    );

    let report = mismatch(2, |comm| {
        let op = if odd(comm) { Monoid::MAX } else { Monoid::SUM };
        comm.all_reduce(&floats(comm, 2), op).map(drop)
    });
    assert_eq!(
        (report.field.as_str(), report.b.as_str()),
        ("reduction", "max")
    );

    // Lengths on either side of the one from which an all-reduce takes two rounds.
    let report = mismatch(2, |comm| {
        comm.all_reduce(&floats(comm, if odd(comm) { 5000 } else { 2 }), Monoid::SUM)
            .map(drop)
    });
    assert_eq!(
        (report.field.as_str(), report.b.as_str()),
        ("length", "5000")
    );

    let report = mismatch(3, |comm| {
        let data = floats(comm, 4);
        comm.broadcast(Some(&data), comm.rank() / 2, DType::F64, 4)
            .map(drop)
    });
    assert_eq!(
        (report.field.as_str(), report.rank_b, report.b.as_str()),
        ("root", 2, "1")
    );

    let report = mismatch(2, |comm| {
        let mine = floats(comm, 3);
        let counts = if odd(comm) { [2, 3] } else { [3, 3] };
        comm.all_gather_v(&mine, &counts).map(drop)
    });
    assert_eq!(report.field, "elements from rank 0 to rank 1");
    assert_eq!(
        (report.a.as_str(), report.b.as_str()),
        ("3 to send", "2 to receive")
    );

    // Rank 0 sends one element that rank 1 does not expect at all.
    let report = mismatch(2, |comm| {
        let (send, recv) = if odd(comm) {
            ([0, 0], [0, 0])
        } else {
            ([0, 1], [0, 0])
        };
        let mine = floats(comm, send.iter().sum());
        comm.all_to_all_v(&mine, &send, &recv).map(drop)
    });
    assert_eq!(
        (report.a.as_str(), report.b.as_str()),
        ("1 to send", "0 to receive")
    );

    let report = mismatch(2, |comm| {
        let plan = ExchangePlan::new(
            "shift",
            u128::from(odd(comm)),
            Pieces::new(),
            Pieces::new(),
            None,
            None,
        );
        let dst = comm.device().alloc(DType::F64, 0).unwrap();
        comm.exchange(&Arc::new(plan), &[], dst, Ok(())).map(drop)
    });
    assert_eq!(
        (report.field.as_str(), report.b.as_str()),
        ("plan", "one of its own")
    );

    // The reader reads past the end of the owner's source, with the right number of elements.
    let report = mismatch(2, |comm| {
        let (mut recv, mut send) = (vec![], vec![]);
        if odd(comm) {
            recv.push(Piece::run(0, 0, 2, 3, 0));
        } else {
            send.push(Piece::run(1, 0, 2, 0, 0));
        }
        let plan = ExchangePlan::new(
            "halo",
            0,
            recv.into(),
            send.into(),
            None,
            Some(Scalar::ZERO),
        );
        let dst = comm.device().alloc(DType::F64, 2).unwrap();
        comm.exchange(&Arc::new(plan), &[floats(comm, 4)], dst, Ok(()))
            .map(drop)
    });
    assert_eq!(report.field, "length of source 0 of rank 0");
    assert_eq!((report.a.as_str(), report.b.as_str()), ("4", "at least 5"));
}

#[test]
fn both_ends_of_a_bad_message_hear_of_it() {
    let errors = run(2, |comm| {
        let result = if comm.rank() == 0 {
            comm.send(1, &floats(&*comm, 3))
        } else {
            comm.recv(0, DType::F64, 4).map(drop)
        };
        comm.barrier().unwrap();
        result.unwrap_err()
    })
    .unwrap();
    assert_eq!(errors[0], errors[1]);
    let CommError::Mismatch(report) = &errors[0] else {
        panic!("{}", errors[0])
    };
    assert_eq!((&*report.op_a, &*report.op_b), ("send", "recv"));
    assert_eq!(report.field, "elements from rank 0 to rank 1");
}

#[test]
fn a_fingerprint_that_lies_is_a_failure_that_all_hear_of() {
    let errors = run(2, |comm| {
        let reads = comm.rank() == 0;
        let recv: Pieces = [Piece::run(1, 2, 4, 0, 0)].into();
        let recv = if reads { recv } else { Pieces::new() };
        let plan = ExchangePlan::new("lie", 9, recv, Pieces::new(), None, None);
        let dst = comm
            .device()
            .alloc(DType::F64, if reads { 4 } else { 0 })
            .unwrap();
        let got = comm.exchange(&Arc::new(plan), &[floats(&*comm, 4)], dst, Ok(()));
        got.and_then(|_| comm.barrier()).unwrap_err()
    })
    .unwrap();
    assert_eq!(errors[0], errors[1]);
    assert!(
        matches!(&errors[0], CommError::PeerFailed { origin: 0, cause } if cause.contains("at least")),
        "{:?}",
        errors[0]
    );
}

#[test]
fn alone_in_a_group_a_rank_keeps_what_it_has() {
    run(3, |comm| {
        let alone = comm.split(Some(comm.rank()), 0).unwrap().unwrap();
        let before = comm.ledger().snapshot();
        let mine = floats(&*comm, 5);
        let sum = alone.all_reduce(&mine, Monoid::SUM).unwrap();
        assert!(sum.ptr_eq(&mine));
        assert_eq!(comm.ledger().since(&before).rounds, 0);
        assert!(alone.all_reduce(&mine, Monoid::Moments).is_err());
    })
    .unwrap();
}

#[test]
fn a_status_travels_with_an_exchange_and_nothing_moves() {
    let errors = run(3, |comm| {
        let plan = Arc::new(ExchangePlan::new(
            "shift",
            0,
            [Piece::run((comm.rank() + 1) % 3, 0, 1, 0, 0)].into(),
            [Piece::run((comm.rank() + 2) % 3, 0, 1, 0, 0)].into(),
            None,
            None,
        ));
        let dst = comm.device().alloc(DType::F64, 1).unwrap();
        // The failing rank could not even make its plan.
        let mine = if comm.rank() == 1 {
            Arc::new(ExchangePlan::empty("shift"))
        } else {
            plan
        };
        let status = match comm.rank() {
            1 => Err(AgreedError::new(
                "load",
                "a shard",
                "an empty file",
                "write it again",
            )),
            _ => Ok(()),
        };
        let before = comm.ledger().snapshot();
        let error = comm
            .exchange(&mine, &[floats(&*comm, 1)], dst, status)
            .unwrap_err();
        assert_eq!(comm.ledger().since(&before).bytes, 0);
        comm.barrier().unwrap();
        error
    })
    .unwrap();
    for error in errors {
        assert_eq!(
            error.to_string(),
            "load on rank 1: expected a shard, got an empty file; write it again"
        );
    }
}

#[test]
fn a_deadlock_is_reported_exactly() {
    let errors = run(4, |comm| {
        let halves = comm.split(Some(comm.rank() / 2), 0).unwrap().unwrap();
        match comm.rank() {
            // 0 waits for 1 in the half, 1 and 2 in the whole, 3 for a message from 0.
            0 => halves.barrier(),
            1 | 2 => comm.all_reduce(&floats(&*comm, 1), Monoid::SUM).map(drop),
            _ => comm.recv(0, DType::F32, 1).map(drop),
        }
        .unwrap_err()
    })
    .unwrap();
    assert!(errors.windows(2).all(|w| w[0] == w[1]));
    let CommError::Deadlock(report) = &errors[0] else {
        panic!("{}", errors[0])
    };
    let table: Vec<_> = report
        .waits
        .iter()
        .map(|w| {
            (
                w.rank,
                w.op,
                w.group.as_str(),
                w.sequence,
                w.missing.clone(),
            )
        })
        .collect();
    assert_eq!(
        table,
        [
            (0, "barrier", "ranks [0, 1]", 0, vec![1]),
            (1, "all_reduce", "ranks 0..=3", 1, vec![0, 3]),
            (2, "all_reduce", "ranks 0..=3", 1, vec![0, 3]),
            (3, "recv", "ranks [0, 3]", 0, vec![0]),
        ]
    );
    assert_eq!(errors[0].class(), ErrorClass::Failure);
    assert!(
        errors[0].to_string().contains("rank 3 waits in recv"),
        "{}",
        errors[0]
    );
}

#[test]
fn two_ranks_that_only_send_are_a_deadlock() {
    let errors = run(2, |comm| {
        comm.send(1 - comm.rank(), &floats(&*comm, 1)).unwrap_err()
    })
    .unwrap();
    assert!(errors.iter().all(|e| matches!(e, CommError::Deadlock(_))));
}

#[test]
fn a_poisoned_group_keeps_answering_with_the_first_cause() {
    let errors = run(2, |comm| {
        let first = comm.recv(1 - comm.rank(), DType::F64, 1).unwrap_err();
        assert_eq!(comm.barrier().unwrap_err(), first);
        first
    })
    .unwrap();
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn an_early_return_fails_those_who_wait() {
    let results = run(3, |comm| {
        if comm.rank() == 1 {
            return Ok(());
        }
        comm.barrier()
    })
    .unwrap();
    assert!(results[1].is_ok());
    assert_eq!(results[0], results[2]);
    let Err(CommError::PeerFailed { origin: 1, cause }) = &results[0] else {
        panic!("{results:?}")
    };
    assert!(cause.contains("ended without joining barrier"), "{cause}");
}

#[test]
fn ranks_may_end_when_nobody_needs_them() {
    let sums = run(4, |comm| {
        let half = comm.split(Some(comm.rank() / 2), 0).unwrap().unwrap();
        drop(comm);
        if half.members()[0] == 0 {
            return 0.0;
        }
        (0..50)
            .map(|_| {
                half.all_reduce(&floats(&*half, 1), Monoid::SUM)
                    .unwrap()
                    .to_vec::<f64>()
                    .unwrap()[0]
            })
            .sum()
    })
    .unwrap();
    assert_eq!(sums, [0.0, 0.0, 100.0, 100.0]);
}

#[test]
fn a_panic_is_the_cause_everywhere() {
    let seen = std::sync::Mutex::new(Vec::new());
    let error = run(4, |comm| {
        if comm.rank() == 2 {
            panic!("lost my shard");
        }
        // Ranks 0 and 1 talk among themselves first; the panic reaches them at their current or next call.
        let error = loop {
            if let Err(error) = comm.barrier() {
                break error;
            }
        };
        seen.lock().unwrap().push(error);
    })
    .unwrap_err();
    assert!(
        matches!(&error, LaunchError::Panicked { rank: 2, message } if message == "lost my shard")
    );
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 3);
    for error in seen {
        assert_eq!(error.to_string(), "rank 2 failed: panicked: lost my shard");
    }
}

#[test]
fn of_many_panics_the_first_is_reported() {
    let error = run(4, |comm| {
        if comm.rank() == 3 {
            panic!("the cause");
        }
        comm.barrier().unwrap();
    })
    .unwrap_err();
    assert!(matches!(&error, LaunchError::Panicked { rank: 3, message } if message == "the cause"));
}

#[test]
fn a_rank_can_give_up() {
    let errors = run(3, |comm| {
        if comm.rank() == 0 {
            comm.fail("disk full".to_owned());
        }
        comm.barrier().unwrap_err()
    })
    .unwrap();
    for error in errors {
        assert_eq!(
            error,
            CommError::PeerFailed {
                origin: 0,
                cause: "disk full".into()
            }
        );
    }
}

#[test]
fn tickets_are_for_the_devices_that_options_name_and_refused_where_they_are_too_many() {
    let options = LocalOptions {
        device: DeviceKind::Test,
        ..LocalOptions::default()
    };
    let all = tickets_with(2, &options).unwrap();
    let threads: Vec<_> = (all.into_iter().enumerate())
        .map(|(rank, ticket)| {
            assert_eq!(ticket.rank(), rank);
            std::thread::spawn(move || {
                let comm = ticket.claim();
                let sum = comm.all_reduce(&floats(&comm, 3), Monoid::SUM).unwrap();
                (comm.device().kind(), sum.to_vec::<f64>().unwrap())
            })
        })
        .collect();
    for thread in threads {
        let (kind, sum) = thread.join().unwrap();
        assert_eq!((kind, &sum[..]), (DeviceKind::Test, &[2.0, 2.0, 2.0][..]));
    }
    let error = tickets_with(usize::MAX, &options).unwrap_err();
    assert!(matches!(error, LaunchError::TooMany { .. }), "{error}");
}

#[test]
fn a_lost_ticket_and_an_unwinding_thread_are_noticed() {
    let mut all = tickets(3).into_iter();
    let (a, b, c) = (
        all.next().unwrap(),
        all.next().unwrap(),
        all.next().unwrap(),
    );
    let waiting = std::thread::spawn(move || a.claim().barrier().unwrap_err());
    drop(b);
    let error = waiting.join().unwrap();
    assert!(
        matches!(error, CommError::PeerFailed { origin: 1, .. }),
        "{error}"
    );
    drop(c);

    let mut all = tickets(2).into_iter();
    let (a, b) = (all.next().unwrap(), all.next().unwrap());
    let waiting = std::thread::spawn(move || a.claim().barrier().unwrap_err());
    let panicking = std::thread::spawn(move || {
        let _comm = b.claim();
        panic!("out");
    });
    assert!(panicking.join().is_err());
    let error = waiting.join().unwrap();
    assert!(
        matches!(error, CommError::PeerFailed { origin: 1, .. }),
        "{error}"
    );
}

#[test]
fn unfinished_operations_do_not_outlive_their_rank() {
    // Rank 0 ends in the middle of an operation of two rounds; rank 1 gets its result all the same.
    let results = run(2, |comm| {
        let mine = floats(&*comm, 4000);
        let sum = comm.start_all_reduce(&mine, Monoid::SUM).unwrap();
        if comm.rank() == 0 {
            std::mem::forget(sum);
            return 0.0;
        }
        sum.wait().unwrap().as_slice::<f64>().unwrap()[3999]
    })
    .unwrap();
    assert_eq!(results, [0.0, 2.0]);
}

#[test]
fn sources_live_until_the_last_reader_and_no_longer() {
    run(3, |comm| {
        let mine = floats(&*comm, 1000);
        let all = comm.all_gather_v(&mine, &[1000; 3]).unwrap();
        drop((mine, all));
        comm.barrier().unwrap();
        // After the barrier every rank has read everything, and let go of it.
        assert_eq!(comm.device().memory().live, 0);
        comm.barrier().unwrap();
    })
    .unwrap();
}

#[test]
fn many_ranks_on_few_cores() {
    for device in [DeviceKind::Host, DeviceKind::Test] {
        let options = LocalOptions {
            device,
            stack_size: 256 << 10,
            ..LocalOptions::default()
        };
        let sums = run_with(64, &options, |comm| {
            let mine = comm
                .device()
                .upload_slice(&[comm.rank() as f64; 200])
                .unwrap();
            let sum = comm.all_reduce(&mine, Monoid::SUM).unwrap();
            let row = comm.split(Some(comm.rank() / 8), 0).unwrap().unwrap();
            let column = comm.split(Some(comm.rank() % 8), 0).unwrap().unwrap();
            let along: Rc<dyn Communicator> = if comm.rank() % 3 == 0 { row } else { column };
            drop(along);
            comm.barrier().unwrap();
            sum.to_vec::<f64>().unwrap()[199]
        })
        .unwrap();
        assert_eq!(sums, vec![2016.0; 64]);
    }
}

#[test]
fn a_receiver_without_memory_tells_the_sender() {
    let errors = run(3, |comm| match comm.rank() {
        0 => comm.send(1, &floats(&*comm, 1)).unwrap_err(),
        1 => comm.recv(0, DType::F64, usize::MAX / 16).unwrap_err(),
        _ => comm
            .send_recv(2, &floats(&*comm, 1), 2, DType::F64, usize::MAX / 16)
            .unwrap_err(),
    })
    .unwrap();
    assert_eq!(errors[0], errors[1]);
    for (error, rank) in errors.iter().zip([1, 1, 2]) {
        assert_eq!(error.class(), ErrorClass::Agreed);
        assert!(
            matches!(error, CommError::Agreed(e) if e.rank == rank),
            "{error}"
        );
    }
}

#[test]
fn no_ranks_are_refused() {
    assert!(matches!(run(0, |_| ()), Err(LaunchError::NoRanks)));
}

#[test]
fn the_peak_of_an_all_reduce_is_its_destination_and_one_chunk() {
    run(4, |comm| {
        let n = 1 << 16;
        let mine = floats(&*comm, n);
        comm.barrier().unwrap();
        comm.device().reset_peak();
        let sum = comm.all_reduce(&mine, Monoid::SUM).unwrap();
        assert_eq!(
            comm.device().memory().peak,
            mine.bytes() + sum.bytes() + sum.bytes() / 4
        );
    })
    .unwrap();
}

/// A random piece between two ranks: shape, and a view of the source and of the destination.
fn piece() -> impl Strategy<Value = (Vec<usize>, Vec<isize>, Vec<isize>, usize, usize)> {
    (prop::collection::vec(0..4usize, 0..4), 0..3usize, 0..6usize).prop_flat_map(
        |(shape, source, at)| {
            let n = shape.len();
            let strides = || prop::collection::vec(-6..7isize, n);
            (Just(shape), strides(), strides(), Just(source), Just(at))
        },
    )
}

/// The offset that keeps a view's least index at `at`.
fn base(shape: &[usize], strides: &[isize], at: usize) -> usize {
    let down: isize = shape
        .iter()
        .zip(strides)
        .filter(|&(&n, &s)| n > 0 && s < 0)
        .map(|(&n, &s)| (n as isize - 1) * s)
        .sum();
    at + down.unsigned_abs()
}

fn indices(shape: &[usize], strides: &[isize], offset: usize) -> Vec<usize> {
    shape
        .iter()
        .zip(strides)
        .fold(vec![offset], |all, (&n, &step)| {
            all.iter()
                .flat_map(|&at| (0..n).map(move |i| (at as isize + i as isize * step) as usize))
                .collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_exchanges_equal_their_definition(
        ranks in 1..5usize,
        raw in prop::collection::vec((0..5usize, 0..5usize, piece()), 0..12),
        folds in any::<bool>(),
        test_device in any::<bool>(),
    ) {
        const SOURCE: usize = 80;
        const DST: usize = 90;
        let all: Vec<(usize, usize, Piece)> = raw
            .into_iter()
            .map(|(owner, reader, (shape, src, dst, source, at))| {
                let piece = Piece {
                    peer: 0,
                    source,
                    src_offset: base(&shape, &src, at),
                    dst_offset: base(&shape, &dst, at),
                    shape: shape.into(),
                    src_strides: src.into(),
                    dst_strides: dst.into(),
                };
                (owner % ranks, reader % ranks, piece)
            })
            .collect();
        let value = |rank: usize, source: usize, i: usize| (rank * 500 + source * 100 + i) as f64;
        let device = if test_device { DeviceKind::Test } else { DeviceKind::Host };
        let options = LocalOptions { device, ..LocalOptions::default() };
        let results = run_with(ranks, &options, |comm| {
            let me = comm.rank();
            let with = |peer, piece: &Piece| Piece { peer, ..piece.clone() };
            let recv = all.iter().filter(|p| p.1 == me).map(|(owner, _, p)| with(*owner, p)).collect();
            let send = all.iter().filter(|p| p.0 == me).map(|(_, reader, p)| with(*reader, p)).collect();
            let (fold, fill) = if folds { (Some(Monoid::SUM), None) } else { (None, Some(Scalar::I64(-1))) };
            let plan = Arc::new(ExchangePlan::new("random", 1, recv, send, fold, fill));
            let sources: Vec<_> = (0..3)
                .map(|s| {
                    let v: Vec<f64> = (0..SOURCE).map(|i| value(me, s, i)).collect();
                    comm.device().upload_slice(&v).unwrap()
                })
                .collect();
            let dst = comm.device().alloc(DType::F64, DST).unwrap();
            comm.exchange(&plan, &sources, dst, Ok(())).unwrap().to_vec::<f64>().unwrap()
        })
        .unwrap();
        for (reader, got) in results.iter().enumerate() {
            let mut expected = vec![if folds { 0.0 } else { -1.0 }; DST];
            for (owner, _, p) in all.iter().filter(|p| p.1 == reader) {
                let from = indices(&p.shape, &p.src_strides, p.src_offset);
                let to = indices(&p.shape, &p.dst_strides, p.dst_offset);
                for (s, d) in from.into_iter().zip(to) {
                    let new = value(*owner, p.source, s);
                    expected[d] = if folds { expected[d] + new } else { new };
                }
            }
            prop_assert_eq!(got, &expected);
        }
    }

    #[test]
    fn random_all_to_alls_are_a_transpose(
        ranks in 1..7usize,
        counts in prop::collection::vec(0..5usize, 36),
        depth in 1..4usize,
    ) {
        run(ranks, |comm| {
            let me = comm.rank();
            let count = |from: usize, to: usize| counts[from * 6 + to];
            let send: Vec<_> = (0..ranks).map(|to| count(me, to)).collect();
            let recv: Vec<_> = (0..ranks).map(|from| count(from, me)).collect();
            let mine: Vec<i64> =
                (0..ranks).flat_map(|to| vec![(me * 100 + to) as i64; send[to]]).collect();
            let mine = comm.device().upload_slice(&mine).unwrap();
            let flying: Vec<_> =
                (0..depth).map(|_| comm.start_all_to_all_v(&mine, &send, &recv).unwrap()).collect();
            let expected: Vec<i64> =
                (0..ranks).flat_map(|from| vec![(from * 100 + me) as i64; recv[from]]).collect();
            for handle in flying.into_iter().rev() {
                assert_eq!(handle.wait().unwrap().to_vec::<i64>().unwrap(), expected);
            }
        })
        .unwrap();
    }
}

/// Cores that the current thread may use.
#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}

#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "asks the system for cores")]
#[test]
fn bound_ranks_share_the_cores_evenly() {
    let before = allowed();
    for ranks in [1, 2, 3, 7] {
        let options = LocalOptions {
            binding: Binding::Core,
            ..LocalOptions::default()
        };
        let cores = run_with(ranks, &options, |_| allowed()).unwrap();
        assert!(cores.iter().all(|of| of.len() == 1), "{cores:?}");
        let on = |core: usize| cores.iter().filter(|of| of[0] == core).count();
        let used = ranks.min(before.len());
        let fair = [ranks / used, ranks.div_ceil(used)];
        let shares: Vec<usize> = before.iter().map(|&c| on(c)).filter(|&n| n > 0).collect();
        assert_eq!(shares.len(), used, "{cores:?}");
        assert!(shares.iter().all(|n| fair.contains(n)), "{cores:?}");
    }
    let free = run_with(2, &LocalOptions::default(), |_| allowed()).unwrap();
    assert_eq!(free, [before.clone(), before.clone()]);
    assert_eq!(allowed(), before);
}

/// What rank 0 gets of rank 1's buffer by one piece, and whether it is that memory itself.
fn got_of_a_peer(len: usize, piece: &Piece, fold: Option<Monoid>) -> (Vec<f64>, bool) {
    let got = run(2, |comm| {
        let whole: Vec<f64> = (0..len).map(|i| i as f64).collect();
        let mine = comm.device().upload_slice(&whole).unwrap();
        let (recv, send) = match comm.rank() {
            0 => (
                vec![Piece {
                    peer: 1,
                    ..piece.clone()
                }],
                Vec::new(),
            ),
            _ => (
                Vec::new(),
                vec![Piece {
                    peer: 0,
                    ..piece.clone()
                }],
            ),
        };
        let taken = if comm.rank() == 0 { piece.numel() } else { 0 };
        let into = comm.device().alloc(DType::F64, taken).unwrap();
        let plan = ExchangePlan::new(
            "get",
            1,
            recv.into_iter().collect(),
            send.into_iter().collect(),
            fold,
            None,
        );
        let result = comm
            .exchange(&Arc::new(plan), std::slice::from_ref(&mine), into, Ok(()))
            .unwrap();
        // Nobody takes its memory back before all have looked.
        comm.barrier().unwrap();
        let is_shared = mine.into_mut().is_err();
        comm.barrier().unwrap();
        (result.to_vec::<f64>().unwrap(), is_shared)
    })
    .unwrap();
    (got[0].0.clone(), got[1].1)
}

#[test]
fn what_is_all_of_a_peers_memory_is_shared_and_not_copied() {
    let numbers = |n: usize| (0..n).map(|i| i as f64).collect::<Vec<_>>();
    let all = |n| Piece::run(1, 0, n, 0, 0);
    assert_eq!(got_of_a_peer(512, &all(512), None), (numbers(512), true));
    // Little, a part, another order, and a term of a sum are copied.
    assert_eq!(got_of_a_peer(511, &all(511), None), (numbers(511), false));
    assert_eq!(got_of_a_peer(600, &all(512), None), (numbers(512), false));
    let turned = Piece {
        src_offset: 511,
        src_strides: std::iter::once(-1).collect(),
        ..all(512)
    };
    let backwards: Vec<f64> = numbers(512).into_iter().rev().collect();
    assert_eq!(got_of_a_peer(512, &turned, None), (backwards, false));
    let sum = got_of_a_peer(512, &all(512), Some(Monoid::SUM));
    assert_eq!(sum, (numbers(512), false));
}
