//! One rank of many, played: what it counts is what threads do, and its clock says what was meant.

use std::rc::Rc;
use std::sync::Arc;

use shard_comm::simulated::{PHANTOM, Played, SimulatedComm};
use shard_comm::{
    Checks, CommError, Communicator, DType, DeviceError, ExchangePlan, Host, HostJob, HostOptions,
    LedgerSnapshot, LinkCost, Machine, Monoid, Piece, Pieces, Topology, Work, checked, local,
};

/// A machine that takes a second per flop, with links that take a second per message and a millisecond per byte.
fn slow(ranks: usize) -> Topology {
    Topology::network(
        ranks,
        Machine::new(1.0, f64::INFINITY),
        LinkCost::new(1.0, 1e3),
    )
}

fn work(comm: &dyn Communicator, seconds: u64) {
    let much = Work {
        flops: seconds,
        bytes: 0,
    };
    let job = HostJob::new("work", much, |_, _| panic!("nothing is computed"));
    comm.device().submit(vec![], vec![], job).unwrap();
}

/// A program with every kind of operation, and what it counted.
fn program(comm: &dyn Communicator) -> LedgerSnapshot {
    let (ranks, me) = (comm.size(), comm.rank());
    let mine = comm.device().alloc(DType::F32, 3000).unwrap().freeze();
    comm.all_reduce(&mine, Monoid::SUM).unwrap();
    comm.all_reduce(&mine.slice(0..5), Monoid::SUM).unwrap();
    let counts: Vec<usize> = (0..ranks).collect();
    comm.all_gather_v(&mine.slice(0..me), &counts).unwrap();
    comm.all_to_all_v(&mine.slice(0..2 * ranks), &vec![2; ranks], &vec![2; ranks])
        .unwrap();
    let root = (me == 1).then(|| mine.clone());
    comm.broadcast(root.as_ref(), 1, DType::F32, 3000).unwrap();
    let next = comm
        .start_recv((me + ranks - 1) % ranks, DType::F32, 7)
        .unwrap();
    comm.send((me + 1) % ranks, &mine.slice(0..7)).unwrap();
    next.wait().unwrap();
    comm.barrier().unwrap();
    let half: Vec<usize> = (0..ranks).filter(|r| r % 2 == me % 2).collect();
    let group = comm.subgroup(Some(&half)).unwrap().unwrap();
    assert_eq!((group.size(), group.members()), (half.len(), &half[..]));
    group.all_reduce(&mine, Monoid::MAX).unwrap();
    let mut counted = comm.ledger().snapshot();
    // Threads count a message when it has come, so the order may differ from that of the simulation.
    counted.ops.sort_unstable_by_key(|op| op.0);
    counted
}

#[test]
fn what_is_played_is_what_threads_do() {
    let real = local::run(4, |comm| program(&*comm)).unwrap();
    for (rank, real) in real.into_iter().enumerate() {
        let comm = SimulatedComm::new(&slow(4), rank).unwrap();
        assert_eq!(program(&*comm), real, "rank {rank}");
    }
}

#[test]
fn threads_with_phantom_devices_count_the_same() {
    let options = local::LocalOptions {
        device: PHANTOM,
        ..Default::default()
    };
    let real = local::run(3, |comm| program(&*comm)).unwrap();
    let phantom = local::run_with(3, &options, |comm| program(&*comm)).unwrap();
    assert_eq!(phantom, real);
}

#[test]
fn messages_fly_while_ranks_compute() {
    let comm = SimulatedComm::new(&slow(2), 0).unwrap();
    let mine = comm.device().alloc(DType::U8, 1000).unwrap().freeze();
    // Two seconds: one for the message, one for its bytes.
    let flying = comm.start_all_gather_v(&mine, &[1000, 1000]).unwrap();
    work(&*comm, 5);
    flying.wait().unwrap();
    let played = comm.played();
    assert_eq!(played.seconds, 5.0);
    assert_eq!((played.total().moving, played.total().waiting), (2.0, 0.0));
    comm.restart();
    let flying = comm.start_all_gather_v(&mine, &[1000, 1000]).unwrap();
    work(&*comm, 1);
    flying.wait().unwrap();
    assert_eq!(
        (comm.played().seconds, comm.played().total().waiting),
        (2.0, 1.0)
    );
}

#[test]
fn readers_of_shared_memory_copy_when_they_wait() {
    let topology =
        Topology::shared_memory(2, Machine::new(1.0, f64::INFINITY), LinkCost::new(1.0, 1e3));
    let comm = SimulatedComm::new(&topology.with_round(0.5), 0).unwrap();
    let mine = comm.device().alloc(DType::U8, 1000).unwrap().freeze();
    let flying = comm.start_all_gather_v(&mine, &[1000, 1000]).unwrap();
    work(&*comm, 5);
    flying.wait().unwrap();
    assert_eq!(comm.played().seconds, 7.5);
}

#[test]
fn links_carry_one_thing_after_the_other() {
    let comm = SimulatedComm::new(&slow(2), 0).unwrap();
    let mine = comm.device().alloc(DType::U8, 1000).unwrap().freeze();
    let first = comm.start_all_gather_v(&mine, &[1000, 1000]).unwrap();
    let second = comm.start_all_gather_v(&mine, &[1000, 1000]).unwrap();
    second.wait().unwrap();
    first.wait().unwrap();
    assert_eq!(comm.played().seconds, 4.0);
}

#[test]
fn ranks_in_step_wait_for_the_busiest_at_each_place() {
    let played: Vec<Played> = (0..2)
        .map(|rank| {
            let comm = SimulatedComm::new(&slow(2), rank).unwrap();
            for turn in 0..4 {
                work(&*comm, if turn % 2 == rank { 10 } else { 1 });
                comm.barrier().unwrap();
            }
            comm.played()
        })
        .collect();
    assert_eq!((played[0].seconds, played[1].seconds), (22.0, 22.0));
    assert_eq!(Played::in_step(&played), 40.0);
    assert_eq!(Played::in_step(&played[..1]), 22.0);
}

#[test]
fn ranks_of_a_core_work_in_turns_and_wait_together() {
    let topology =
        Topology::shared_memory(4, Machine::new(1.0, f64::INFINITY), LinkCost::new(1.0, 1e3));
    let played: Vec<Played> = (0..2)
        .map(|rank| {
            let comm = SimulatedComm::new(&topology.clone().with_round(0.5), rank).unwrap();
            work(&*comm, [3, 5][rank]);
            comm.barrier().unwrap();
            work(&*comm, 1);
            comm.played()
        })
        .collect();
    assert_eq!(Played::in_step(&played), 5.5 + 1.0);
    // Of the four ranks two are on each core, which work 4 and 1 seconds each on average.
    assert_eq!(Played::in_turns(&played, 2.0), 2.0 * 4.0 + 0.5 + 2.0);
    // With a core for each, the busiest counts.
    assert_eq!(Played::in_turns(&played, 1.0), 6.5);
}

#[test]
fn a_rehearsal_takes_the_time_of_the_work_and_what_the_calls_are_said_to_take() {
    // Calls take no time by the clock on the wall, but seconds by the topology.
    let options = HostOptions {
        meter: true,
        ..Default::default()
    };
    let host = Host::with_options(options);
    let comm = SimulatedComm::rehearsing(&slow(2), 1, host).unwrap();
    let mine = comm.device().upload_slice(&[1.5_f32; 250]).unwrap();
    comm.restart();
    let nap = || std::thread::sleep(std::time::Duration::from_millis(20));
    nap();
    let flying = comm.start_all_gather_v(&mine, &[250, 250]).unwrap();
    nap();
    flying.wait().unwrap();
    let mut copy = comm.device().alloc(DType::F32, 250).unwrap();
    comm.device().copy_run(&mine, 0..250, &mut copy, 0).unwrap();
    let played = comm.played();
    // A message of a kilobyte, from when it was posted; the second nap passes meanwhile.
    let beside = played.seconds - 2.0;
    assert!((0.02..1.0).contains(&beside), "{beside}");
    let total = played.total();
    assert_eq!(total.moving, 2.0);
    assert!(total.waiting <= 2.0 - 0.02, "{}", total.waiting);
    assert_eq!((total.calls, total.work.bytes), (1, 2000));
    assert_eq!(played.moved.messages, 1);
    // The device is a host, so there is something to read.
    assert_eq!(copy.freeze().to_vec::<f32>().unwrap(), [1.5; 250]);
}

#[test]
fn pieces_of_many_runs_cost_a_rank_each_of_them() {
    let seconds = |strides: [isize; 2]| {
        let links = LinkCost::new(1.0, f64::INFINITY);
        let topology = Topology::shared_memory(2, Machine::new(1.0, 1.0), links).with_runs(0.25);
        let comm = SimulatedComm::new(&topology, 0).unwrap();
        let piece = |peer| Piece {
            shape: [4, 3][..].into(),
            src_strides: strides[..].into(),
            dst_strides: [3, 1][..].into(),
            ..Piece::run(peer, 0, 0, 0, 0)
        };
        let pieces = || Pieces::from([piece(1)]);
        let plan = ExchangePlan::new("halo", 0, pieces(), pieces(), None, None);
        let mine = comm.device().alloc(DType::F32, 100).unwrap().freeze();
        let dst = comm.device().alloc(DType::F32, 12).unwrap();
        comm.exchange(&Arc::new(plan), &[mine], dst, Ok(()))
            .unwrap();
        comm.played().seconds
    };
    assert_eq!(seconds([3, 1]), 1.0 + 0.25);
    assert_eq!(seconds([5, 1]), 1.0 + 4.0 * 0.25);
    assert_eq!(seconds([1, 4]), 1.0 + 12.0 * 0.25);
}

#[test]
fn memory_is_counted_while_it_is_held() {
    let comm = SimulatedComm::new(&slow(1), 0).unwrap();
    let a = comm.device().alloc(DType::F64, 1 << 40).unwrap().freeze();
    let part = a.slice(0..1);
    drop(a);
    assert_eq!(comm.device().memory().live, 8 << 40);
    drop(part);
    comm.device().alloc(DType::F64, 1).unwrap();
    assert_eq!(
        (comm.device().memory().live, comm.played().peak),
        (0, 8 << 40)
    );
    comm.restart();
    assert_eq!(comm.played().peak, 0);
    assert!(comm.device().alloc(DType::F64, usize::MAX / 2).is_err());
}

#[test]
fn what_one_rank_cannot_know_is_an_error() {
    let comm = SimulatedComm::new(&slow(3), 2).unwrap();
    let mine = comm.device().upload_slice(&[1.0f32]).unwrap();
    let error = mine.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, DeviceError::NoData { .. }), "{error}");
    assert!(mine.as_slice::<f32>().is_err());
    assert!(matches!(
        comm.split(Some(0), 0),
        Err(CommError::Invalid { .. })
    ));
    assert!(comm.subgroup(Some(&[0, 1])).is_err());
    assert!(SimulatedComm::new(&slow(3), 3).is_err());
    // A wrong argument is reported by the operation, and the group goes on.
    assert!(matches!(
        comm.all_gather_v(&mine, &[1, 1, 2]),
        Err(CommError::Agreed(_))
    ));
    comm.barrier().unwrap();
    comm.fail("enough".to_owned());
    assert!(matches!(
        comm.barrier(),
        Err(CommError::PeerFailed { origin: 2, .. })
    ));
}

#[test]
fn subgroups_of_one_rank_need_nobody() {
    let comm: Rc<dyn Communicator> = Rc::new(SimulatedComm::new(&slow(1), 0).unwrap());
    assert_eq!(comm.split(Some(7), 0).unwrap().unwrap().size(), 1);
    assert!(comm.split(None, 0).unwrap().is_none());
}

#[test]
fn decorators_pass_on_groups_that_are_named_and_what_joins_the_ranks() {
    let comm = SimulatedComm::new(&slow(4), 1).unwrap();
    let comm = checked(Rc::new(comm), Checks { checksums: true });
    assert_eq!(comm.topology().map(Topology::ranks), Some(4));
    // Colors that only other ranks know cannot be played; members that are named can.
    let group = comm.subgroup(Some(&[1, 3])).unwrap().unwrap();
    assert_eq!((group.members(), group.rank()), (&[1, 3][..], 0));
    assert_eq!(group.topology().map(Topology::ranks), Some(4));
    group.barrier().unwrap();
}

/// On 8 nodes of 8 ranks, what crosses between nodes is what each node lacks of the result, once.
#[test]
fn bytes_cross_between_nodes_once() {
    let (near, far) = (LinkCost::new(1e-6, 100e9), LinkCost::new(2e-6, 10e9));
    let cluster = Topology::network(64, Machine::new(1e12, 1e12), near).nodes_of(8, far);
    let crossed = |program: &dyn Fn(&dyn Communicator)| -> usize {
        let of_rank = |rank| {
            let comm = SimulatedComm::new(&cluster, rank).unwrap();
            program(&*comm);
            comm.played().crossed as usize
        };
        (0..64).map(of_rank).sum()
    };
    for bytes in [64, 64 << 10, 64 << 20] {
        let mine = |comm: &dyn Communicator, len: usize| {
            comm.device().alloc(DType::U8, len).unwrap().freeze()
        };
        let gathered = crossed(&|comm| {
            comm.all_gather(&mine(comm, bytes / 64)).unwrap();
        });
        assert_eq!(gathered, 7 * bytes, "all-gather of {bytes}");
        let uneven: Vec<usize> = (0..64).map(|r| bytes / 64 + 1 - 2 * (r % 2)).collect();
        let gathered = crossed(&|comm| {
            let mine = mine(comm, uneven[comm.rank()]);
            comm.all_gather_v(&mine, &uneven).unwrap();
        });
        assert_eq!(gathered, 7 * bytes, "uneven all-gather of {bytes}");
        let spread = crossed(&|comm| {
            let data = (comm.rank() == 19).then(|| mine(comm, bytes));
            comm.broadcast(data.as_ref(), 19, DType::U8, bytes).unwrap();
        });
        // In parts they are dealt out first: 1.5 times the whole, through as many nodes as there are doublings.
        assert!(spread <= 17 * bytes / 2, "broadcast of {bytes}: {spread}");
        let joined = crossed(&|comm| {
            let counts = [bytes / 64; 64];
            comm.gather_v(&mine(comm, bytes / 64), &counts, 19).unwrap();
        });
        assert!(joined <= 3 * bytes / 2, "gather of {bytes}: {joined}");
    }
    // A large sum: each term once on its way to the sum, and the sum once on its way back.
    let bytes = 8 << 20;
    let summed = crossed(&|comm| {
        let mine = comm.device().alloc(DType::F32, bytes / 4).unwrap().freeze();
        comm.all_reduce(&mine, Monoid::SUM).unwrap();
    });
    assert_eq!(summed, 2 * 7 * bytes);
}

/// Many ranks choose by the bytes of what they exchange how it goes, also where these cannot be counted.
#[test]
fn counts_of_more_bytes_than_can_be_counted_are_refused() {
    let comm = SimulatedComm::new(&slow(64), 0).unwrap();
    let comm: &dyn Communicator = &*comm;
    let mine = comm.device().alloc(DType::F64, 1).unwrap().freeze();
    let mut counts = [0; 64];
    (counts[0], counts[1]) = (1, 1 << 61);
    let refused = [
        comm.broadcast(None, 1, DType::F64, 1 << 61).err(),
        comm.all_gather_v(&mine, &counts).err(),
        comm.gather_v(&mine, &counts, 0).err(),
    ];
    for error in refused {
        let error = error.unwrap().to_string();
        assert!(
            error.contains("2305843009213693952 elements") || error.contains("out of memory"),
            "{error}"
        );
    }
}
