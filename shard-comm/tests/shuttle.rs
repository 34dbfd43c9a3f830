//! Thousands of random schedules of four to eight ranks, on every collective, by shuttle.
//!
//! `RUSTFLAGS="--cfg shard_shuttle" cargo test -p shard-comm --features contract-tests --test shuttle`
//!
//! A failure prints its schedule, which `shuttle::replay` runs again.
#![cfg(shard_shuttle)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use shard_comm::local::{LocalComm, tickets};
use shard_comm::{CommError, Communicator, DType, Monoid, contract};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Random schedules of each program and number of ranks, and as many with few changes of rank at random places.
const SCHEDULES: usize = 250;

fn explore(ranks: usize, schedules: usize, program: impl Fn(LocalComm) + Send + Sync + 'static) {
    let program = Arc::new(program);
    let run = move || {
        let threads: Vec<_> = tickets(ranks)
            .into_iter()
            .map(|ticket| {
                let program = Arc::clone(&program);
                shuttle::thread::spawn(move || program(ticket.claim()))
            })
            .collect();
        for thread in threads {
            thread.join().expect("a rank that ends");
        }
    };
    let config = || {
        let mut config = Config::new();
        // Ranks of unoptimised builds need more than the 32 KiB there are otherwise.
        config.stack_size = 1 << 20;
        config
    };
    let random = RandomScheduler::new(schedules);
    Runner::new(random, config()).run(run.clone());
    let few_changes = PctScheduler::new(3, schedules);
    Runner::new(few_changes, config()).run(run);
}

/// A program of the contract on four to eight ranks.
fn keeps(program: fn(&dyn Communicator)) {
    for ranks in [4, 5, 8] {
        explore(ranks, SCHEDULES / ranks, move |comm| program(&*comm));
    }
}

#[test]
fn gathers_and_scatters() {
    keeps(contract::all_gather);
    keeps(contract::all_to_all);
    keeps(contract::broadcast);
    keeps(contract::scatter);
    keeps(contract::gather);
}

#[test]
fn messages_and_exchanges() {
    keeps(contract::messages);
    keeps(contract::exchange_with_strides);
}

#[test]
fn reductions() {
    keeps(contract::reduce_scatter);
    keeps(contract::all_reduce);
    keeps(contract::tree_order);
    keeps(contract::half_sums);
}

#[test]
fn errors_that_all_agree_on() {
    keeps(contract::agreed_errors);
    keeps(contract::local_mistakes_are_agreed);
    keeps(contract::uniform_checks);
}

#[test]
fn groups_and_handles() {
    keeps(contract::splits);
    keeps(contract::handles_in_any_order);
    keeps(contract::dropped_handles);
}

#[test]
fn ranks_that_wait_in_a_circle_are_a_deadlock() {
    explore(5, SCHEDULES, |comm| {
        let error = comm.recv((comm.rank() + 1) % 5, DType::F64, 1).unwrap_err();
        assert!(matches!(&error, CommError::Deadlock(report) if report.waits.len() == 5));
    });
}

#[test]
fn whatever_befalls_one_rank_all_others_hear_of_it() {
    let hears = |comm: &LocalComm| loop {
        let mine = comm
            .device()
            .upload_slice(&[1.0_f64])
            .expect("a small upload");
        if let Err(error) = comm.all_reduce(&mine, Monoid::SUM) {
            assert!(
                matches!(error, CommError::PeerFailed { origin: 2, .. }),
                "{error}"
            );
            return;
        }
    };
    explore(6, SCHEDULES, move |comm| {
        if comm.rank() == 2 {
            // Its last communicator goes: an early return.
            comm.barrier().unwrap();
        } else {
            comm.barrier().unwrap();
            hears(&comm);
        }
    });
    explore(6, SCHEDULES, move |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            let died = catch_unwind(AssertUnwindSafe(move || {
                let _comm = comm;
                resume_unwind(Box::new("lost"))
            }));
            assert!(died.is_err());
        } else {
            hears(&comm);
        }
    });
}
