//! What is too much for a record: elements that lie in the memory of a node, and those that have no room there.

use shard_comm::{
    Buffer, CommError, Communicator, DType, HostOptions, LaunchError, Monoid, Strided, local, mpi,
};
use shard_spec::ReduceOp;
use std::time::{Duration, Instant};

/// Elements of rank `me`, whose sums round.
fn numbers(comm: &dyn Communicator, dtype: DType, len: usize) -> Buffer {
    let value = |i: usize| ((comm.rank() * 7919 + i * 10_473) % 251) as f64 / 7.0;
    let values: Vec<f64> = (0..len).map(value).collect();
    let wide = comm.device().upload_slice(&values).expect("numbers");
    let mut mine = comm.device().alloc(dtype, len).expect("as many");
    let all = Strided::contiguous(&[len]);
    let copied = comm.device().copy(&wide, &all, &mut mine, &all);
    copied.expect("a copy");
    mine.freeze()
}

/// The results of all kinds of operations, on this rank.
fn results(comm: &dyn Communicator) -> Vec<(String, Vec<u8>)> {
    let (ranks, me) = (comm.size(), comm.rank());
    let mut all = Vec::new();
    let mut keep = |what: String, result: Option<Buffer>| {
        let bytes = result.map_or(Vec::new(), |r| r.as_bytes().expect("host memory").to_vec());
        all.push((what, bytes));
    };
    // Fewer than ranks, a record's worth, one round's, and what goes in stages; the last has no room in the memory of a node.
    for len in [ranks - 1, 600, 8195, 20_001, 131_072, 700_003] {
        let mine = numbers(comm, DType::F64, len);
        let sum = comm.all_reduce(&mine, Monoid::SUM).expect("a sum");
        keep(format!("all_reduce {len}"), Some(sum));
        let sum = comm.reduce(&mine, Monoid::SUM, ranks - 1).expect("a sum");
        keep(format!("reduce {len}"), sum);
        // Uneven parts, one of them empty.
        let weights: usize = (0..ranks).sum();
        let mut counts: Vec<usize> = (0..ranks).map(|r| len * r / weights).collect();
        counts[ranks - 1] += len - counts.iter().sum::<usize>();
        let part = comm.reduce_scatter_v(&mine, &counts, Monoid::SUM);
        let part = part.expect("a part");
        let gathered = comm.all_gather_v(&part, &counts).expect("all parts");
        keep(format!("reduce_scatter_v {len}"), Some(part));
        keep(format!("all_gather_v {len}"), Some(gathered));
        let root = len % ranks;
        let data = (me == root).then_some(&mine);
        let got = comm.broadcast(data, root, DType::F64, len);
        keep(format!("broadcast {len}"), Some(got.expect("a copy")));
        let got = comm.scatter_v(data, &counts, root, DType::F64);
        let got = got.expect("a part");
        let whole = comm.gather_v(&got, &counts, root).expect("all parts");
        keep(format!("scatter_v {len}"), Some(got));
        keep(format!("gather_v {len}"), whole);
        let from: Vec<usize> = (0..ranks).map(|_| counts[me]).collect();
        let got = comm.all_to_all_v(&mine, &counts, &from);
        keep(format!("all_to_all_v {len}"), Some(got.expect("parts")));
    }
    let monoids = [
        Monoid::Op(ReduceOp::Sum),
        Monoid::Op(ReduceOp::Max),
        Monoid::Op(ReduceOp::Any),
        Monoid::Moments,
        Monoid::MaxSumExp,
        Monoid::ArgMax,
    ];
    for dtype in DType::ALL {
        for op in monoids.into_iter().filter(|op| op.check(dtype).is_ok()) {
            let mine = numbers(comm, dtype, 30_006);
            let sum = comm.all_reduce(&mine, op).expect("a result");
            keep(format!("all_reduce of {dtype} by {op}"), Some(sum));
        }
    }
    all
}

/// The bits of everything are those of ranks that are threads.
pub(crate) fn like_threads(comm: &dyn Communicator) {
    let here = results(comm);
    let there = local::run(comm.size(), |comm| results(&*comm)).expect("threads");
    for (ours, theirs) in here.iter().zip(&there[comm.rank()]) {
        assert_eq!(ours.0, theirs.0);
        assert!(ours.1 == theirs.1, "{}", ours.0);
    }
    assert_eq!(here.len(), there[comm.rank()].len());
}

/// More in flight than the memory of a node has room for, in several groups, waited for in another order on each rank; and ranks of
/// which some have much and others little.
pub(crate) fn crowd(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let halves = comm.split(Some(me % 2), me).expect("a split");
    let half = halves.expect("a member");
    for round in 0..3 {
        let started = |k: usize| {
            let len = [140_000, 70_000, 10_000, 140_000, 300_000][k % 5];
            let group = if k % 3 == 2 { &*half } else { comm };
            let values = vec![(k + me) as f64; len];
            let mine = comm.device().upload_slice(&values).expect("numbers");
            let expected: usize = group.members().iter().map(|r| k + r).sum();
            let sum = group.start_all_reduce(&mine, Monoid::SUM);
            (sum.expect("a sum"), len, expected as f64)
        };
        let mut started: Vec<_> = (0..11).map(started).collect();
        started.rotate_left((me * 5 + round) % 11);
        while let Some((sum, len, expected)) = started.pop() {
            let sum = sum.wait().expect("a sum").to_vec::<f64>();
            assert!(sum.expect("doubles") == vec![expected; len], "{len}");
        }
        let counts: Vec<usize> = (0..ranks)
            .map(|r| [5, 900_000, 3000, 20_000][(r + round) % 4])
            .collect();
        let mine = comm.device().upload_slice(&vec![me as f64; counts[me]]);
        let all = comm.all_gather_v(&mine.expect("numbers"), &counts);
        let all = all.expect("all parts").to_vec::<f64>().expect("doubles");
        let expected = counts.iter().enumerate();
        let expected: Vec<f64> = (expected.flat_map(|(r, &n)| vec![r as f64; n])).collect();
        assert!(all == expected, "uneven parts");
    }
}

/// Ranks that disagree about how much they sum up find the same error, and go on.
pub(crate) fn differ(comm: &dyn Communicator) {
    let me = comm.rank();
    for turn in 0..12 {
        let late = turn % comm.size();
        let len = if me == late { 100_000 } else { 131_072 };
        let ones = comm.device().upload_slice(&vec![1.0; len]).expect("ones");
        let error = comm.all_reduce(&ones, Monoid::SUM).expect_err("lengths");
        assert!(matches!(error, CommError::Mismatch(_)), "{error}");
        let ones = ones.slice(0..100_000);
        let sum = comm.all_reduce(&ones, Monoid::SUM).expect("equal lengths");
        let sum = sum.to_vec::<f64>().expect("doubles");
        assert!(sum == vec![comm.size() as f64; 100_000]);
    }
}

/// A rank goes when others have what it laid first, and wait for what it would lay next.
pub(crate) fn dies_on_the_way(options: &mpi::MpiOptions, me: usize) {
    let start = Instant::now();
    let over = mpi::run(options, |comm| {
        let ones = comm.device().upload_slice(&vec![1.0; 131_072]);
        let ones = ones.expect("ones");
        comm.all_reduce(&ones, Monoid::SUM).expect("all are there");
        if me == 1 {
            std::mem::forget(comm.start_all_reduce(&ones, Monoid::SUM));
            panic!("out of luck");
        }
        std::thread::sleep(Duration::from_millis(50));
        let error = comm.all_reduce(&ones, Monoid::SUM);
        super::assert_failed(&error.expect_err("rank 1 is gone"), 1, "out of luck");
    });
    match over {
        Err(LaunchError::Panicked { rank: 1, .. }) => assert_eq!(me, 1),
        Err(LaunchError::Failed(error)) => super::assert_failed(&error, 1, "out of luck"),
        other => panic!("the run has failed: {other:?}"),
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// One process shares memory and another does not: no rank waits for long.
pub(crate) fn share_or_not(options: &mpi::MpiOptions, me: usize) {
    let start = Instant::now();
    mpi::run(options, |comm| comm.barrier().expect("all are there")).expect("a run");
    let options = mpi::MpiOptions {
        shared_memory: options.shared_memory ^ (me == 1),
        ..*options
    };
    let over = mpi::run(&options, |comm| {
        let error = comm.barrier().expect_err("they wait in two places");
        assert!(
            error.to_string().contains("MpiOptions::shared_memory"),
            "{error}"
        );
    });
    assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Hosts that count their work come to the same.
pub(crate) fn metered(options: &mpi::MpiOptions) {
    let options = mpi::MpiOptions {
        host: HostOptions {
            meter: true,
            ..options.host
        },
        ..*options
    };
    let run = mpi::run(&options, |comm| like_threads(&*comm));
    run.expect("a run").expect("a rank");
}
