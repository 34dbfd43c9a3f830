//! Every fault at every operation of a program of all kinds of operations: the right result, or one cause on all
//! ranks.

#[path = "../../examples/backend/channels.rs"]
mod channels;

use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use shard_comm::local::{self, LocalOptions};
#[cfg(all(feature = "nccl", feature = "cuda-emulated"))]
use shard_comm::nccl::{self, NcclOptions};
use shard_comm::{
    Buffer, Checks, CommError, Communicator, DType, DeviceKind, DeviceRef, Fault, FaultKind, Host,
    LaunchError, Monoid, Result, checked, faulty,
};

const RANKS: usize = 3;

/// How long a rank waits over channels. Long for a program of a few milliseconds: what is late must not seem lost.
const PATIENCE: Duration = Duration::from_secs(4);

/// A bit of everything; the result depends on every element moved.
fn program(comm: &dyn Communicator) -> Result<Vec<f64>> {
    let (me, ranks) = (comm.rank(), comm.size());
    let upload = |values: &[f64]| comm.device().upload_slice(values);
    let mut seen: Vec<f64> = Vec::new();
    let mut keep = |buffer: Buffer| -> Result<()> {
        seen.extend(buffer.to_vec::<f64>()?);
        Ok(())
    };
    let counts: Vec<usize> = (0..ranks).collect();
    keep(comm.all_gather_v(&upload(&vec![me as f64 + 0.5; me])?, &counts)?)?;
    let one = upload(&[me as f64, 2.0])?;
    keep(comm.all_reduce(&one, Monoid::SUM)?)?;
    // Equal calls one after the other: a lost one must not let the next take its place.
    for k in 0..3 {
        keep(comm.all_reduce(&upload(&[k as f64 * me as f64])?, Monoid::MAX)?)?;
    }
    // Two rounds.
    let long: Vec<f64> = (0..5000).map(|i| (i % 7 * (me + 1)) as f64).collect();
    let long = upload(&long)?;
    let sum = comm.start_all_reduce(&long, Monoid::SUM)?;
    let dropped = comm.start_all_reduce(&long, Monoid::SUM)?;
    let root = (me == 1).then(|| upload(&[1.0, 2.0, 3.0])).transpose()?;
    keep(comm.broadcast(root.as_ref(), 1, DType::F64, 3)?)?;
    drop(dropped);
    // A ring of messages, both sides at once.
    let from = (me + ranks - 1) % ranks;
    let sent = comm.start_send((me + 1) % ranks, &upload(&[me as f64; 4])?)?;
    keep(comm.recv(from, DType::F64, 4)?)?;
    sent.wait_optional()?;
    if let Some(pair) = comm.split(Some(usize::from(me == 0)), 0)? {
        keep(pair.all_reduce(&one, Monoid::SUM)?)?;
        pair.barrier()?;
    }
    keep(sum.wait()?)?;
    let each = vec![1; ranks];
    keep(comm.all_to_all_v(&upload(&vec![me as f64; ranks])?, &each, &each)?)?;
    comm.barrier()?;
    Ok(seen)
}

type Outcome = Result<Vec<Result<Vec<f64>, CommError>>, LaunchError>;

/// What ranks are.
#[derive(Clone, Copy, Debug)]
enum On {
    Local(DeviceKind),
    /// The backend of the example, which finds deadlocks by waiting.
    Channels,
    #[cfg(all(feature = "nccl", feature = "cuda-emulated"))]
    Nccl,
}

fn run(on: On, faults: &[Fault]) -> Outcome {
    let rank = |comm: Rc<dyn Communicator>| {
        let comm = checked(faulty(comm, faults), Checks { checksums: true });
        let result = program(&*comm);
        if let Err(error) = &result {
            // As a program does that cannot go on.
            comm.fail(error.to_string());
        }
        result
    };
    match on {
        On::Local(device) => {
            let options = LocalOptions {
                device,
                ..LocalOptions::default()
            };
            local::run_with(RANKS, &options, |comm| rank(Rc::new(comm)))
        }
        On::Channels => {
            let devices = (0..RANKS).map(|_| Host::new() as DeviceRef).collect();
            channels::run(devices, PATIENCE, |comm| rank(Rc::new(comm)))
        }
        #[cfg(all(feature = "nccl", feature = "cuda-emulated"))]
        On::Nccl => {
            let options = NcclOptions {
                device: DeviceKind::EmulatedCuda,
                timeout: Some(Duration::from_secs(30)),
                ..NcclOptions::default()
            };
            nccl::run(RANKS, &options, |comm| rank(Rc::new(comm)))
        }
    }
}

/// [`run`], which has to end.
fn run_in_time(on: On, fault: Fault) -> Outcome {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(run(on, &[fault])));
    result
        .recv_timeout(Duration::from_secs(60))
        .unwrap_or_else(|_| panic!("{fault:?} hangs"))
}

/// Whether all errors tell of one cause; those of ranks other than the first ones quote it.
fn one_cause(errors: &[(usize, &CommError)]) -> bool {
    errors.iter().any(|(_, root)| {
        let root = root.to_string();
        errors.iter().all(|(_, e)| e.to_string().contains(&root))
    })
}

fn check(on: On, fault: Fault, expected: &[Vec<f64>], count: &mut [usize; 2]) {
    let outcome = match run_in_time(on, fault) {
        Ok(outcome) => outcome,
        Err(LaunchError::Panicked { rank, message }) => {
            assert_eq!(
                (rank, fault.kind),
                (fault.rank, FaultKind::Panic),
                "{message}"
            );
            count[1] += 1;
            return;
        }
        Err(other) => panic!("{fault:?}: {other}"),
    };
    let mut errors = Vec::new();
    for (rank, result) in outcome.iter().enumerate() {
        match result {
            Ok(values) => assert_eq!(values, &expected[rank], "{fault:?}: silently wrong"),
            // The rank that gave up knows why.
            Err(_) if fault.kind == FaultKind::Return && rank == fault.rank => {}
            Err(error) => errors.push((rank, error)),
        }
    }
    assert!(
        errors.is_empty() || one_cause(&errors),
        "{fault:?}: {errors:#?}"
    );
    count[usize::from(!errors.is_empty())] += 1;
    let harmless = fault.kind.is_harmless();
    assert!(!harmless || errors.is_empty(), "{fault:?}: {errors:#?}");
}

/// All ranks, calls and kinds of faults; says how many ended with the right result, and how many with an error.
fn every_fault(on: On, ranks: &[usize]) -> [usize; 2] {
    let expected: Vec<_> = run(on, &[])
        .unwrap()
        .into_iter()
        .map(|values| values.unwrap())
        .collect();
    let of_call = |call| {
        FaultKind::ALL.map(|kind| {
            let mut count = [0; 2];
            for &rank in ranks {
                check(on, Fault { rank, call, kind }, &expected, &mut count);
            }
            count
        })
    };
    // Calls side by side: where a lost one is found out by waiting, that is most of the time.
    let counts = std::thread::scope(|scope| {
        // One more than there are calls: a fault that never comes.
        let of_call = &of_call;
        let calls: Vec<_> = (0..=18)
            .map(|call| scope.spawn(move || of_call(call)))
            .collect();
        let counts = calls.into_iter().map(|call| call.join());
        counts.collect::<Result<Vec<_>, _>>()
    });
    let counts = counts.unwrap_or_else(|panic| resume_unwind(panic));
    let mut total = [0; 2];
    for (at, kind) in FaultKind::ALL.into_iter().enumerate() {
        let [right, caught]: [usize; 2] =
            [0, 1].map(|end| counts.iter().map(|count| count[at][end]).sum());
        let harmless = kind.is_harmless();
        assert_eq!(caught == 0, harmless, "{kind:?} was caught {caught} times");
        total = [total[0] + right, total[1] + caught];
    }
    total
}

#[test]
fn every_fault_ends_in_the_right_result_or_one_cause() {
    let [right, caught] = every_fault(On::Local(DeviceKind::Host), &[0, 1, 2]);
    println!("{right} right results, {caught} errors");
}

#[test]
fn faults_on_a_device_with_a_queue() {
    every_fault(On::Local(DeviceKind::Test), &[1]);
}

/// A backend made of what anybody can use.
#[test]
fn faults_over_channels() {
    every_fault(On::Channels, &[1]);
}

#[cfg(all(feature = "nccl", feature = "cuda-emulated"))]
#[test]
fn faults_over_nccl() {
    every_fault(On::Nccl, &[0, 1]);
}

/// Without checksums a wrong bit is not seen: what they are for.
#[test]
fn a_wrong_bit_needs_checksums() {
    let fault = Fault {
        rank: 1,
        call: 0,
        kind: FaultKind::Corrupt,
    };
    let sums = |checksums| {
        local::run(2, |comm| {
            let comm = checked(faulty(Rc::new(comm), &[fault]), Checks { checksums });
            let mine = comm.device().upload_slice(&[1.0_f64])?;
            Ok(comm.all_reduce(&mine, Monoid::SUM)?.to_vec::<f64>()?)
        })
        .unwrap()
    };
    assert!(sums(false).iter().all(|s| s.as_ref().unwrap() != &[2.0]));
    let caught = sums(true);
    assert!(caught.iter().all(Result::is_err));
    assert!(matches!(
        &caught[0],
        Err(CommError::PeerFailed { origin: 1, .. })
    ));
    assert_eq!(caught[0], caught[1]);
}

/// An equal operation must not take the place of one that got lost, whose handle nobody waits for.
#[test]
fn the_next_of_equal_operations_does_not_stand_for_a_lost_one() {
    let fault = Fault {
        rank: 1,
        call: 0,
        kind: FaultKind::Drop,
    };
    let sums = local::run(2, |comm| {
        let comm = checked(faulty(Rc::new(comm), &[fault]), Checks::default());
        let mine = |x: f64| comm.device().upload_slice(&[x]);
        drop(comm.start_all_reduce(&mine(1.0)?, Monoid::SUM)?);
        Ok(comm
            .all_reduce(&mine(10.0)?, Monoid::SUM)?
            .to_vec::<f64>()?)
    })
    .unwrap();
    // Rank 1 must not believe in 1 + 10.
    let Err(CommError::OutOfStep(report)) = &sums[1] else {
        panic!("{sums:?}")
    };
    assert_eq!((&*report.field, &*report.a, &*report.b), ("turn", "0", "1"));
    assert_eq!(sums[0], sums[1]);
}

/// What rank 1 of three did, in order, and what all had of it: a sum over all of them, begun, then one of two of them.
fn two_groups(faults: &[Fault]) -> Vec<(Vec<f64>, Vec<&'static str>)> {
    local::run(RANKS, |comm| {
        let inner = faulty(Rc::new(comm), faults);
        let comm = checked(inner, Checks { checksums: true });
        let pair = comm.split(Some(usize::from(comm.rank() == 0)), 0)?;
        let mine = comm.device().upload_slice(&[comm.rank() as f64])?;
        let sum = comm.start_all_reduce(&mine, Monoid::SUM)?;
        let mut seen = Vec::new();
        if let Some(pair) = pair {
            let both = pair.start_all_gather_v(&mine, &vec![1; pair.size()])?;
            seen.extend(both.wait()?.to_vec::<f64>()?);
        }
        seen.extend(sum.wait()?.to_vec::<f64>()?);
        comm.barrier()?;
        comm.fail("the record is to be seen".to_owned());
        let error = comm.barrier().unwrap_err();
        let record = comm.ledger().flight_record();
        let Some(record) = record.filter(|r| r.cause == error) else {
            return Err(error);
        };
        let names = record.operations.iter().map(|op| op.name);
        Ok((seen, names.collect()))
    })
    .unwrap()
    .into_iter()
    .collect::<Result<_>>()
    .unwrap()
}

#[test]
fn what_is_held_back_comes_after_other_groups_and_does_no_harm() {
    let order = |names: &[&'static str]| -> Vec<&'static str> {
        let those = names.iter().filter(|n| n.starts_with("all_"));
        those.copied().collect()
    };
    let as_written = two_groups(&[]);
    assert_eq!(order(&as_written[1].1), ["all_reduce", "all_gather_v"]);
    // Operation 0 is the split.
    for kind in [FaultKind::HeldBack, FaultKind::Overtaken] {
        let held = two_groups(&[Fault {
            rank: 1,
            call: 1,
            kind,
        }]);
        assert_eq!(
            order(&held[1].1),
            ["all_gather_v", "all_reduce"],
            "{kind:?}"
        );
        assert_eq!(
            order(&held[2].1),
            ["all_reduce", "all_gather_v"],
            "{kind:?}"
        );
        for (with, without) in held.iter().zip(&as_written) {
            assert_eq!(with.0, without.0, "{kind:?}");
        }
    }
}

/// What is overtaken begins right behind the next of its group, before all others; a rank alone sees in which order.
#[test]
fn one_operation_is_overtaken_by_one() {
    let order = |kind| -> Vec<&'static str> {
        let fault = Fault {
            rank: 0,
            call: 0,
            kind,
        };
        let names = local::run(1, |comm| -> Result<_> {
            let inner = faulty(Rc::new(comm), &[fault]);
            let comm: &dyn Communicator = &*inner;
            let mine = comm.device().upload_slice(&[1.0_f64])?;
            let started = [
                comm.start_all_gather_v(&mine, &[1])?,
                comm.start_all_to_all_v(&mine, &[1], &[1])?,
                comm.start_reduce_scatter_v(&mine, &[1], Monoid::SUM)?,
            ];
            for handle in started {
                handle.wait()?;
            }
            comm.fail("the record is to be seen".to_owned());
            comm.barrier().unwrap_err();
            let record = comm.ledger().flight_record();
            let record = record.map_or(Vec::new(), |record| record.operations.to_vec());
            let names = record.iter().map(|op| op.name);
            Ok(names.filter(|&name| name != "barrier").collect::<Vec<_>>())
        });
        names.unwrap().remove(0).unwrap()
    };
    let as_written = ["all_gather_v", "all_to_all_v", "reduce_scatter_v"];
    assert_eq!(order(FaultKind::HeldBack), as_written);
    let overtaken = ["all_to_all_v", "all_gather_v", "reduce_scatter_v"];
    assert_eq!(order(FaultKind::Overtaken), overtaken);
}

#[test]
fn operations_of_a_group_that_change_places_have_one_cause() {
    let sums = |kind| {
        local::run(RANKS, |comm| {
            let fault = Fault {
                rank: 1,
                call: 0,
                kind,
            };
            let comm = checked(faulty(Rc::new(comm), &[fault]), Checks::default());
            let mine = |x: f64| comm.device().upload_slice(&[x]);
            let first = comm.start_all_reduce(&mine(1.0)?, Monoid::SUM)?;
            let second = comm.start_all_reduce(&mine(10.0)?, Monoid::SUM)?;
            let sums = [first.wait()?, second.wait()?];
            Ok::<_, CommError>((sums[0].to_vec::<f64>()?[0], sums[1].to_vec::<f64>()?[0]))
        })
        .unwrap()
    };
    assert!(
        sums(FaultKind::HeldBack)
            .iter()
            .all(|s| s == &Ok((3.0, 30.0)))
    );
    let caught = sums(FaultKind::Overtaken);
    let Err(CommError::OutOfStep(report)) = &caught[0] else {
        panic!("{caught:?}")
    };
    assert_eq!((&*report.field, &*report.a, &*report.b), ("turn", "0", "1"));
    assert!(caught.iter().all(|c| c == &caught[0]), "{caught:?}");
}

/// Messages keep their order between two ranks and one direction; others go ahead of one that is held back.
#[test]
fn messages_change_places_with_those_of_the_same_peer_only() {
    let received = |kind| {
        local::run(RANKS, |comm| {
            let fault = Fault {
                rank: 0,
                call: 0,
                kind,
            };
            let comm = checked(faulty(Rc::new(comm), &[fault]), Checks::default());
            let mine = |x: f64| comm.device().upload_slice(&[x]);
            let read = |peer| -> Result<_, CommError> {
                Ok(comm.recv(peer, DType::F64, 1)?.to_vec::<f64>()?)
            };
            Ok::<_, CommError>(match comm.rank() {
                0 => {
                    let first = comm.start_send(1, &mine(1.0)?)?;
                    let other = comm.start_send(2, &mine(2.0)?)?;
                    let second = comm.start_send(1, &mine(3.0)?)?;
                    for sent in [first, other, second] {
                        sent.wait_optional()?;
                    }
                    Vec::new()
                }
                1 => [read(0)?, read(0)?].concat(),
                _ => read(0)?,
            })
        })
        .unwrap()
    };
    let right = [vec![], vec![1.0, 3.0], vec![2.0]];
    for (seen, right) in received(FaultKind::HeldBack).iter().zip(&right) {
        assert_eq!(seen.as_ref().unwrap(), right);
    }
    let caught = received(FaultKind::Overtaken);
    assert!(caught[1].is_err(), "{caught:?}");
}
