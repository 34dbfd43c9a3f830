//! The rendezvous itself under loom: every interleaving of two ranks with at most two or three preemptions, and of three
//! ranks with one.
//!
//! `RUSTFLAGS="--cfg shard_loom" cargo test -p shard-comm --test loom`
#![cfg(shard_loom)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use loom::model::Builder;
use shard_comm::local::{LocalComm, tickets};
use shard_comm::{CommError, DType, ExchangePlan, Monoid, Piece, Result};

/// Runs a program on so many ranks in every order with at most so many preemptions. A rank that waits for ever is a failure.
fn model(ranks: usize, preemptions: usize, program: impl Fn(LocalComm) + Send + Sync + 'static) {
    let program = Arc::new(program);
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        let mut tickets = tickets(ranks).into_iter();
        let own = tickets.next().expect("a rank");
        let threads: Vec<_> = tickets
            .map(|ticket| {
                let program = Arc::clone(&program);
                loom::thread::spawn(move || program(ticket.claim()))
            })
            .collect();
        program(own.claim());
        for thread in threads {
            thread.join().expect("a rank that ends");
        }
    });
}

/// The sum over all ranks of one more than their numbers.
fn sum(comm: &LocalComm) -> Result<f64> {
    let mine = comm.device().upload_slice(&[comm.rank() as f64 + 1.0])?;
    Ok(comm.all_reduce(&mine, Monoid::SUM)?.as_slice::<f64>()?[0])
}

/// Each rank reads one element of the next.
fn shift(comm: &LocalComm) -> Result<f64> {
    let (me, n) = (comm.rank(), comm.size());
    let piece = |peer: usize| [Piece::run(peer, 0, 1, 0, 0)].into();
    let plan = ExchangePlan::new(
        "shift",
        0,
        piece((me + 1) % n),
        piece((me + n - 1) % n),
        None,
        None,
    );
    let mine = comm.device().upload_slice(&[me as f64])?;
    let dst = comm.device().alloc(DType::F64, 1)?;
    Ok(comm
        .exchange(&Arc::new(plan), &[mine], dst, Ok(()))?
        .as_slice::<f64>()?[0])
}

fn barriers(comm: LocalComm) {
    comm.barrier().unwrap();
    comm.barrier().unwrap();
}

#[test]
fn barriers_of_two() {
    model(2, 3, barriers);
}

#[test]
fn barriers_of_three() {
    model(3, 1, barriers);
}

#[test]
fn exchanges_of_two_read_what_was_posted() {
    model(2, 3, |comm| {
        assert_eq!(shift(&comm), Ok((1 - comm.rank()) as f64));
        assert_eq!(sum(&comm), Ok(3.0));
    });
}

#[test]
fn exchanges_of_three_read_what_was_posted() {
    model(3, 1, |comm| {
        assert_eq!(shift(&comm), Ok(((comm.rank() + 1) % 3) as f64))
    });
}

#[test]
fn a_message_meets_its_receiver() {
    model(2, 3, |comm| {
        if comm.rank() == 0 {
            let data = comm.device().upload_slice(&[7.0_f64]).unwrap();
            comm.send(1, &data).unwrap();
        } else {
            let got = comm.recv(0, DType::F64, 1).unwrap();
            assert_eq!(got.as_slice::<f64>().unwrap(), [7.0]);
        }
    });
}

#[test]
fn two_that_wait_for_each_other_are_a_deadlock() {
    model(2, 3, |comm| {
        let error = comm.recv(1 - comm.rank(), DType::F64, 1).unwrap_err();
        assert!(matches!(&error, CommError::Deadlock(report) if report.waits.len() == 2));
        assert_eq!(comm.barrier(), Err(error));
    });
}

#[test]
fn three_that_wait_in_a_circle_are_a_deadlock() {
    model(3, 1, |comm| {
        let error = comm.recv((comm.rank() + 1) % 3, DType::F64, 1).unwrap_err();
        assert!(matches!(&error, CommError::Deadlock(report) if report.waits.len() == 3));
    });
}

#[test]
fn who_gives_up_is_the_cause_everywhere() {
    let cause = CommError::PeerFailed {
        origin: 0,
        cause: "disk full".into(),
    };
    model(3, 1, move |comm| {
        if comm.rank() == 0 {
            comm.fail("disk full".to_owned());
        }
        assert_eq!(comm.barrier(), Err(cause.clone()));
    });
}

#[test]
fn a_panic_is_heard_of() {
    model(2, 3, |comm| {
        if comm.rank() == 1 {
            let died = catch_unwind(AssertUnwindSafe(move || {
                let _comm = comm;
                // Without the hook's message in every interleaving.
                resume_unwind(Box::new("lost"))
            }));
            assert!(died.is_err());
        } else {
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, CommError::PeerFailed { origin: 1, .. }));
        }
    });
}

#[test]
fn an_early_return_is_heard_of() {
    for (ranks, preemptions) in [(2, 3), (3, 1)] {
        model(ranks, preemptions, |comm| {
            if comm.rank() > 0 {
                let error = comm.barrier().unwrap_err();
                assert!(matches!(error, CommError::PeerFailed { origin: 0, .. }));
            }
        });
    }
}

#[test]
fn a_dropped_handle_does_its_part() {
    model(2, 2, |comm| {
        let mine = comm.device().upload_slice(&[1.0_f64]).unwrap();
        let started = comm.start_all_reduce(&mine, Monoid::SUM).unwrap();
        if comm.rank() == 0 {
            drop(started);
        } else {
            assert_eq!(started.wait().unwrap().as_slice::<f64>().unwrap(), [2.0]);
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn ranks_that_split_meet_in_their_halves() {
    model(2, 2, |comm| {
        let whole = comm.split(Some(0), 0).unwrap().unwrap();
        whole.barrier().unwrap();
    });
}
