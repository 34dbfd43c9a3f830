//! The communicator over the emulated library.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shard_comm::cuda::Cuda;
use shard_comm::local;
use shard_comm::nccl::inside::{Break, over_breaking, rest};
use shard_comm::nccl::{NcclComm, NcclOptions, Order, run};
use shard_comm::{
    Buffer, Checks, CommError, Communicator, DType, DeviceKind, DeviceRef, ExchangePlan, Monoid,
    Piece, Result, checked, contract,
};

fn options(order: Order) -> NcclOptions {
    NcclOptions {
        device: DeviceKind::EmulatedCuda,
        order,
        timeout: Some(Duration::from_secs(20)),
    }
}

/// Runs ranks over the emulated library.
fn emulated<T: Send>(ranks: usize, f: impl Fn(NcclComm) -> T + Sync) -> Vec<T> {
    run(ranks, &options(Order::Rank), f).unwrap()
}

#[test]
fn the_contract_holds_over_nccl() {
    for ranks in [1, 2, 3, 4, 6] {
        emulated(ranks, |comm| contract::all(&comm));
    }
}

#[test]
fn the_contract_holds_with_checksums() {
    emulated(3, |comm| {
        contract::all(&*checked(Rc::new(comm), Checks { checksums: true }));
    });
}

/// Reductions in the order of ranks are those of threads, bit for bit; in any order all ranks have the same bits.
#[test]
fn orders_of_reductions_are_as_asked_for() {
    let sum = |comm: &dyn Communicator| {
        // Sums that depend on their order.
        let term = |i: usize| (i as f64 + 0.1) * 10f64.powi(7 * (comm.rank() as i32 - 1));
        let terms: Vec<f64> = (0..3000).map(term).collect();
        let mine = comm.device().upload_slice(&terms).unwrap();
        let sum = comm.all_reduce(&mine, Monoid::SUM).unwrap();
        sum.to_vec::<f64>().unwrap()
    };
    let threads = local::run(3, |comm| sum(&*comm)).unwrap();
    let by_rank = run(3, &options(Order::Rank), |comm| sum(&*comm)).unwrap();
    assert_eq!(by_rank, threads);
    let by_library = run(3, &options(Order::Any), |comm| sum(&*comm)).unwrap();
    assert_eq!(by_library[0], by_library[1]);
    assert_eq!(by_library[0], by_library[2]);
    // The emulation combines in the opposite order, so that the test can tell.
    assert_ne!(by_library, threads);
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * a.abs();
    assert!(by_library[0].iter().zip(&threads[0]).all(close));
}

/// Maxima keep NaN, which NCCL does not promise for its own; the library combines integers in every order.
#[test]
fn exact_reductions_are_exact() {
    emulated(3, |comm| {
        let me = comm.rank();
        let mine = [if me == 1 { f32::NAN } else { 1.0 }, me as f32];
        let mine = comm.device().upload_slice(&mine).unwrap();
        let most = comm.all_reduce(&mine, Monoid::MAX).unwrap();
        let most = most.to_vec::<f32>().unwrap();
        assert!(most[0].is_nan() && most[1] == 2.0);
        let mine = comm.device().upload_slice(&vec![i64::MAX; 3000]).unwrap();
        let sum = comm.all_reduce(&mine, Monoid::SUM).unwrap();
        assert_eq!(
            sum.to_vec::<i64>().unwrap(),
            vec![i64::MAX.wrapping_mul(3); 3000]
        );
        let part = comm
            .reduce_scatter_v(&mine, &[1000; 3], Monoid::MIN)
            .unwrap();
        assert_eq!(part.to_vec::<i64>().unwrap(), vec![i64::MAX; 1000]);
    });
}

/// Both ranks send before they receive, more than any buffers would hold, and in a different order on each.
#[test]
fn messages_cross() {
    emulated(3, |comm| {
        let (me, ranks) = (comm.rank(), comm.size());
        let upload = |k: usize| {
            comm.device()
                .upload_slice(&vec![(10 * me + k) as i32; 1000])
        };
        let peers: Vec<usize> = (1..ranks).map(|k| (me + k) % ranks).collect();
        for _ in 0..20 {
            let mut sent = Vec::new();
            for &peer in &peers {
                sent.push(comm.start_send(peer, &upload(peer).unwrap()).unwrap());
            }
            let recv = |&peer| (peer, comm.start_recv(peer, DType::I32, 1000).unwrap());
            let received: Vec<_> = peers.iter().rev().map(recv).collect();
            for (peer, handle) in received {
                let values = handle.wait().unwrap().to_vec::<i32>().unwrap();
                assert_eq!(values, vec![(10 * peer + me) as i32; 1000]);
            }
            for handle in sent {
                handle.wait_optional().unwrap();
            }
        }
    });
}

/// Two ranks see different messages first: each connects for the message that it sees.
#[test]
fn ranks_see_messages_in_any_order() {
    let posted = AtomicBool::new(false);
    let options = NcclOptions {
        timeout: Some(Duration::from_secs(5)),
        ..options(Order::Rank)
    };
    let received = run(2, &options, |comm| -> Result<Vec<i32>> {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        let mine = comm.device().upload_slice(&[me as i32; 1000])?;
        let received = comm.start_recv(peer, DType::I32, 1000)?;
        if me == 0 {
            // Rank 1 comes to this message alone.
            assert!(until(&posted));
        } else {
            posted.store(true, Ordering::Release);
            // And it sees that message and the next one together.
            std::thread::sleep(Duration::from_millis(100));
        }
        let sent = comm.start_send(peer, &mine)?;
        let received = received.wait()?.to_vec()?;
        sent.wait_optional()?;
        Ok(received)
    });
    assert_eq!(received.unwrap(), [Ok(vec![1; 1000]), Ok(vec![0; 1000])]);
}

/// The first operation of a group, in which its ranks connect, does not keep a rank from what others wait for meanwhile.
#[test]
fn an_operation_that_connects_keeps_nothing_else_waiting() {
    let posted = AtomicBool::new(false);
    let options = NcclOptions {
        timeout: Some(Duration::from_secs(5)),
        ..options(Order::Rank)
    };
    let ranks = run(3, &options, |comm| -> Result<()> {
        let me = comm.rank();
        let first = comm.split((me < 2).then_some(0), me)?;
        let second = comm.split((me > 0).then_some(0), me)?;
        let mine = comm.device().upload_slice(&vec![me as i32; 1000])?;
        let start = |group: Option<Rc<dyn Communicator>>| {
            let group = group.expect("a member");
            group.start_all_gather_v(&mine, &[1000; 2])
        };
        match me {
            // Comes to the first group's operation only after a message of rank 2.
            0 => {
                comm.recv(2, DType::I32, 1000)?;
                start(first)?.wait()?;
            }
            // The second group's operation is queued behind that of the first.
            1 => {
                let handles = [start(first)?, start(second)?];
                posted.store(true, Ordering::Release);
                handles.into_iter().try_for_each(|h| h.wait().map(drop))?;
            }
            _ => {
                assert!(until(&posted));
                let both = start(second)?;
                comm.send(0, &mine)?;
                both.wait()?;
            }
        }
        Ok(())
    });
    assert_eq!(ranks.unwrap(), [Ok(()), Ok(()), Ok(())]);
}

/// A split begins once the operations in flight of its group are done.
#[test]
fn a_split_waits_for_what_is_in_flight() {
    let ranks = local::run(2, |control| -> Result<()> {
        let device = cuda_of(&Cuda::emulated()?).sibling()?;
        let comm = NcclComm::over(Rc::new(control), &device, &options(Order::Rank))?;
        let nap = || std::thread::sleep(Duration::from_millis(100));
        cuda_of(&device).queue_emulated(nap)?;
        let mine = device.upload_slice(&[comm.rank() as i32; 100])?;
        let all = comm.start_all_gather_v(&mine, &[100; 2])?;
        let group = comm.split(Some(0), 0)?.expect("a member");
        assert_eq!(all.wait()?.to_vec::<i32>()?, [[0; 100], [1; 100]].concat());
        group.barrier()?;
        comm.finish()
    });
    assert_eq!(ranks.unwrap(), [Ok(()), Ok(())]);
}

/// The control communicator may be any group of a launch: the library's group has exactly its ranks.
#[test]
fn the_control_may_be_a_part_of_a_launch() {
    let options = NcclOptions {
        timeout: Some(Duration::from_secs(5)),
        ..options(Order::Rank)
    };
    let ranks = local::run(4, |world| -> Result<()> {
        let me = world.rank();
        // In reverse order, so that places in the library's group are not ranks of the launch.
        let half = world.split(Some(me / 2), 4 - me)?.expect("a member");
        let comm = NcclComm::over(half, &Cuda::emulated()?, &options)?;
        let peer = 1 - comm.rank();
        let mine = comm.device().upload_slice(&[me as i32; 100])?;
        let (high, low) = (2 * (me / 2) + 1, 2 * (me / 2));
        let all = comm.all_gather_v(&mine, &[100; 2])?.to_vec::<i32>()?;
        assert_eq!(all, [[high as i32; 100], [low as i32; 100]].concat());
        let pair = comm.split(Some(0), me)?.expect("a member");
        for (comm, peer) in [(&*comm, peer), (&*pair, 1 - pair.rank())] {
            let sent = comm.start_send(peer, &mine)?;
            let other = comm.recv(peer, DType::I32, 100)?;
            assert_eq!(other.to_vec::<i32>()?, [(high + low - me) as i32; 100]);
            sent.wait_optional()?;
        }
        comm.finish()
    });
    assert_eq!(ranks.unwrap(), [Ok(()), Ok(()), Ok(()), Ok(())]);
}

/// A message of a rank to itself is received on the same communicator, and on no other.
#[test]
fn messages_to_oneself_stay_on_their_communicator() {
    emulated(2, |comm| {
        let me = comm.rank();
        let group = comm.split(Some(0), 0).unwrap().expect("a member");
        let upload = |k: i32| comm.device().upload_slice(&[k; 10]).unwrap();
        let receivers = [&*comm, &*group, &*comm];
        let received = receivers.map(|comm| comm.start_recv(me, DType::I32, 10).unwrap());
        // What is sent first is not meant for the communicator that receives first.
        let sent = [
            group.start_send(me, &upload(2)).unwrap(),
            comm.start_send(me, &upload(1)).unwrap(),
            comm.start_send(me, &upload(3)).unwrap(),
        ];
        let received = received.map(|r| r.wait().unwrap().to_vec::<i32>().unwrap()[0]);
        assert_eq!(received, [1, 2, 3]);
        for handle in sent {
            handle.wait_optional().unwrap();
        }
    });
}

/// A sender and a reader that list different elements, or the same in a different order, get an error. Backends for threads alone
/// do not compare this.
#[test]
fn what_is_sent_is_what_is_read() {
    let errors = emulated(2, |comm| {
        let mine = comm.device().upload_slice(&[1.0f32, 2.0, 3.0, 4.0])?;
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        let dst = comm.device().alloc(DType::F32, 2)?;
        // Rank 1 sends its first two elements, and rank 0 wants its last two.
        let from = |at| Piece::run(peer, 0, 2, at, 0);
        let plan = ExchangePlan::new(
            "shift",
            0,
            [from(if me == 0 { 2 } else { 0 })].into(),
            [from(0)].into(),
            None,
            None,
        );
        let result = comm.exchange(&Arc::new(plan), &[mine], dst, Ok(()));
        comm.barrier()?;
        result
    });
    for result in errors {
        let Err(CommError::Mismatch(report)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(report.field, "pieces from rank 1 to rank 0");
    }
}

/// A deadlock of the program is found at once, whatever moves the elements.
#[test]
fn deadlocks_are_found() {
    let begun = Instant::now();
    let errors = emulated(2, |comm| {
        let mine = comm.device().upload_slice(&[1.0f32]).unwrap();
        // This one is in flight meanwhile, and its other end never comes.
        let _odd = (comm.rank() == 0).then(|| comm.start_recv(1, DType::F32, 1).unwrap());
        match comm.rank() {
            0 => comm.recv(1, DType::F32, 3).map(drop),
            _ => comm.all_gather_v(&mine, &[1, 1]).map(drop),
        }
    });
    for error in errors {
        assert!(matches!(error, Err(CommError::Deadlock(_))), "{error:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// If a rank's own stream is behind with its work, elements leave only after the work that is queued.
#[test]
fn elements_leave_after_what_writes_them() {
    let ranks = local::run(2, |control| -> Result<()> {
        let device = cuda_of(&Cuda::emulated()?).sibling()?;
        let comm = NcclComm::over(Rc::new(control), &device, &options(Order::Rank))?;
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        let late = |value: usize| {
            let nap = || std::thread::sleep(Duration::from_millis(50));
            (cuda_of(&device).queue_emulated(nap)).expect("a stream that is a thread");
            device.upload_slice(&[value as i32; 100])
        };
        let of = |value: usize| vec![value as i32; 100];
        let all = comm.all_gather_v(&late(1 + me)?, &[100; 2])?;
        assert_eq!(all.to_vec::<i32>()?, [of(1), of(2)].concat());
        let sent = comm.start_send(peer, &late(3 + me)?)?;
        let received = comm.recv(peer, DType::I32, 100)?;
        assert_eq!(received.to_vec::<i32>()?, of(3 + peer));
        sent.wait_optional()?;
        comm.finish()
    });
    assert_eq!(ranks.unwrap(), [Ok(()), Ok(())]);
}

fn cuda_of(device: &DeviceRef) -> &Cuda {
    Cuda::of(&**device).expect("a stream")
}

/// Operations of groups that share ranks are queued in the order in which they are posted, even if the later one is agreed on
/// first and only one of the ranks polls.
#[test]
fn groups_that_overlap_keep_one_order() {
    let flags = [const { AtomicBool::new(false) }; 3];
    let [posted, looked, joined] = &flags;
    let seen = emulated(3, |comm| -> Result<Vec<i32>> {
        let me = comm.rank();
        let pair = comm.split((me < 2).then_some(0), me)?;
        let mine = comm.device().upload_slice(&vec![me as i32; 1000])?;
        let Some(pair) = pair else {
            // This rank comes late.
            assert!(until(looked));
            let all = comm.start_all_gather_v(&mine, &[1000; 3])?;
            joined.store(true, Ordering::Release);
            return Ok(all.wait()?.to_vec()?);
        };
        let all = comm.start_all_gather_v(&mine, &[1000; 3])?;
        let mut both = pair.start_all_gather_v(&mine, &[1000; 2])?;
        if me == 0 {
            assert!(until(posted));
            for _ in 0..100 {
                assert!(!both.is_done(), "in front of what was posted before");
            }
            looked.store(true, Ordering::Release);
        } else {
            posted.store(true, Ordering::Release);
            // It polls again only when all can go on.
            assert!(until(joined));
        }
        both.wait()?;
        Ok(all.wait()?.to_vec()?)
    });
    let all: Vec<i32> = (0..3).flat_map(|rank| vec![rank; 1000]).collect();
    assert!(
        seen.iter().all(|seen| seen.as_ref() == Ok(&all)),
        "{seen:?}"
    );
}

/// Lets others run until the flag is set, for some seconds at most, and returns whether it is.
fn until(flag: &AtomicBool) -> bool {
    let begun = Instant::now();
    while !flag.load(Ordering::Acquire) && begun.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    flag.load(Ordering::Acquire)
}

/// Polling one operation of the control communicator carries all on. A rank that has not seen yet that another one is done
/// must not rest, because it has elements to send for that one.
#[test]
fn a_rank_does_not_rest_while_something_is_done_unseen() {
    let [joined, rested] = [AtomicBool::new(false), AtomicBool::new(false)];
    let sums = local::run(2, |comm| -> Result<f64> {
        let mine = comm.device().upload_slice(&[1.0f64])?;
        let sum = comm.start_all_reduce(&mine, Monoid::SUM)?;
        if comm.rank() == 0 {
            let mut other = comm.start_recv(1, DType::F64, 1)?;
            assert!(until(&joined));
            assert!(!other.is_done());
            rest(&mut other);
            rested.store(true, Ordering::Release);
            other.wait()?;
        } else {
            joined.store(true, Ordering::Release);
            assert!(until(&rested), "rank 0 waits for what nobody will do");
            comm.send(0, &mine)?;
        }
        Ok(sum.wait()?.to_vec::<f64>()?[0])
    });
    assert_eq!(sums.unwrap(), [Ok(2.0), Ok(2.0)]);
}

/// Runs ranks over a library that fails in its third group of calls.
fn over_broken<T: Send>(
    ranks: usize,
    rank: Option<usize>,
    fault: Break,
    timeout: Duration,
    f: impl Fn(&NcclComm) -> T + Sync,
) -> Vec<T> {
    let options = NcclOptions {
        timeout: Some(timeout),
        ..options(Order::Rank)
    };
    local::run(ranks, |control| {
        let device = Cuda::emulated().unwrap();
        f(&over_breaking(Rc::new(control), &device, &options, rank, fault).unwrap())
    })
    .unwrap()
}

/// The errors of each rank's operations over a library that fails.
fn broken(ranks: usize, rank: Option<usize>, fault: Break, timeout: Duration) -> Vec<CommError> {
    over_broken(ranks, rank, fault, timeout, |comm| {
        let mine: Buffer = comm.device().upload_slice(&vec![1.0f64; 1000]).unwrap();
        let error = (0..5)
            .find_map(|_| comm.all_reduce(&mine, Monoid::SUM).err())
            .expect("an error");
        // From now on everything ends in the same error.
        assert_eq!(comm.barrier().unwrap_err(), error);
        error
    })
}

#[test]
fn what_the_library_refuses_ends_all_ranks_with_one_cause() {
    for fault in [Break::Refuse, Break::AsyncError] {
        let errors = broken(3, Some(1), fault, Duration::from_secs(20));
        assert!(
            matches!(&errors[0], CommError::PeerFailed { origin: 1, .. }),
            "{errors:?}"
        );
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    }
}

/// A rank that is within a call of the library learns there of another rank's failure.
#[test]
fn a_call_that_is_never_done_ends_when_another_rank_gives_up() {
    let begun = Instant::now();
    let errors = over_broken(3, Some(1), Break::Stall, Duration::from_secs(20), |comm| {
        let mine = comm.device().upload_slice(&vec![1.0f64; 1000])?;
        // An operation of two groups of calls.
        comm.all_reduce(&mine, Monoid::SUM)?;
        let sum = comm.start_all_reduce(&mine, Monoid::SUM)?;
        if comm.rank() == 2 {
            std::thread::sleep(Duration::from_millis(20));
            comm.fail("no longer".to_owned());
        }
        sum.wait()
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no longer"), "{error}");
    }
}

/// A wait for elements that never arrive ends by the timeout: the rank whose patience ends says so, and the others learn of it.
#[test]
fn elements_that_do_not_arrive_end_by_time() {
    let begun = Instant::now();
    let errors = broken(3, Some(1), Break::Lose, Duration::from_millis(300));
    assert!(begun.elapsed() < Duration::from_secs(5));
    let late = |error: &CommError| matches!(error, CommError::TimedOut(_));
    assert!(errors.iter().any(late), "{errors:?}");
    for error in errors.iter().filter(|error| !late(error)) {
        assert!(error.to_string().contains("timed out"), "{error}");
    }
}

/// The rank's own work runs beside the library's, and is ordered with it only where one needs the other.
#[test]
fn elements_fly_while_kernels_run() {
    emulated(2, |comm| {
        let device = comm.device();
        let me = comm.rank() as f64;
        let mine = device.upload_slice(&vec![me; 5000]).unwrap();
        let flying = comm.start_all_gather_v(&mine, &[5000, 5000]).unwrap();
        // The source may be dropped, and its memory used again, before its elements have left.
        drop(mine);
        for _ in 0..50 {
            let other = device.upload_slice(&vec![-1.0f64; 5000]).unwrap();
            drop(other);
        }
        let mut all = vec![0.0; 5000];
        all.extend(vec![1.0; 5000]);
        assert_eq!(flying.wait().unwrap().to_vec::<f64>().unwrap(), all);
    });
}

/// A failure settles what a rank waits for, and not what it posted to that rank before.
#[test]
fn who_rests_for_a_message_behind_others_hears_of_a_failure() {
    let heard = local::run(2, |comm| {
        if comm.rank() == 1 {
            comm.barrier().unwrap();
            comm.fail("had enough".to_owned());
            return String::new();
        }
        let receive = || comm.start_recv(1, DType::F64, 1).unwrap();
        let (_first, _second, mut last) = (receive(), receive(), receive());
        comm.barrier().unwrap();
        let mut rests = 0;
        while !last.is_done() {
            assert!(rests < 1000, "it goes on resting");
            rest(&mut last);
            rests += 1;
        }
        last.wait().unwrap_err().to_string()
    });
    assert!(heard.unwrap()[0].contains("had enough"));
}
