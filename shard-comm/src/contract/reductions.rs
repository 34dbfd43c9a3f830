//! Operations that combine.

use std::sync::Arc;

use shard_spec::ReduceOp;

use super::{count_cases, read, read_as_f64, upload, upload_as};
use crate::{
    CommError, Communicator, DType, ExchangePlan, Monoid, ONE_ROUND_BYTES, Piece, by_tree,
};

/// Small whole numbers of either sign, so that sums and products are exact in all types that are wide enough.
fn term(rank: usize, i: usize) -> f64 {
    ((rank * 7 + i * 3) % 5) as f64 - 2.0
}

fn combined(op: ReduceOp, ranks: usize, i: usize) -> f64 {
    let terms = (0..ranks).map(|r| term(r, i));
    let truth = |b: bool| f64::from(u8::from(b));
    match op {
        ReduceOp::Sum => terms.sum(),
        ReduceOp::Prod => terms.product(),
        ReduceOp::Max => terms.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => terms.fold(f64::INFINITY, f64::min),
        ReduceOp::Any => truth(terms.into_iter().any(|v| v != 0.0)),
        ReduceOp::All => truth(terms.into_iter().all(|v| v != 0.0)),
    }
}

const OPS: [ReduceOp; 6] = [
    ReduceOp::Sum,
    ReduceOp::Prod,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Any,
    ReduceOp::All,
];

/// `reduce_scatter_v` with every operation and uneven parts.
pub fn reduce_scatter(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for counts in count_cases(ranks) {
        let total: usize = counts.iter().sum();
        let mine: Vec<f64> = (0..total).map(|i| term(me, i)).collect();
        let start: usize = counts[..me].iter().sum();
        for op in OPS {
            let got = comm
                .reduce_scatter_v(&upload(comm, &mine), &counts, op.into())
                .expect("reduce_scatter_v");
            let expected: Vec<f64> = (start..start + counts[me])
                .map(|i| combined(op, ranks, i))
                .collect();
            // A rank alone keeps its values; with several ranks, any and all give truth values.
            if ranks > 1 || !matches!(op, ReduceOp::Any | ReduceOp::All) {
                assert_eq!(read(&got), expected, "{op:?} {counts:?}");
            }
        }
    }
}

/// `reduce_scatter` with equal parts, of one element and of pairs; a length that cannot be divided equally is everybody's error.
pub fn equal_scatter(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for part in [0, 1, 6, 700] {
        let mine: Vec<f64> = (0..part * ranks).map(|i| term(me, i)).collect();
        let mine = upload(comm, &mine);
        let sum = |i| combined(ReduceOp::Sum, ranks, i);
        let expected: Vec<f64> = (me * part..(me + 1) * part).map(sum).collect();
        let started = comm.start_reduce_scatter(&mine, Monoid::SUM);
        let started = started.expect("start_reduce_scatter");
        let got = comm.reduce_scatter(&mine, Monoid::SUM);
        assert_eq!(read(&got.expect("reduce_scatter")), expected);
        assert_eq!(read(&started.wait().expect("reduce_scatter")), expected);
    }
    // A value and its index belong together.
    let pairs: Vec<f64> = (0..ranks).flat_map(|_| [me as f64, me as f64]).collect();
    let got = comm.reduce_scatter(&upload(comm, &pairs), Monoid::ArgMax);
    let last = (ranks - 1) as f64;
    assert_eq!(read(&got.expect("reduce_scatter of pairs")), [last, last]);
    let odd = upload(comm, &vec![1.0; ranks + 1]);
    let (got, refused) = (comm.reduce_scatter(&odd, Monoid::SUM), ranks > 1);
    assert_eq!(matches!(got, Err(CommError::Agreed(_))), refused, "{got:?}");
    let torn = upload(comm, &vec![1.0; ranks]);
    let got = comm.reduce_scatter(&torn, Monoid::ArgMax);
    assert!(matches!(got, Err(CommError::Agreed(_))), "{got:?}");
}

/// `reduce` to every root has the bits of `all_reduce` there, in one round and in two.
pub fn reduce(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    // Another order of the terms gives another sum.
    let part = |i: usize| match (me + i) % 3 {
        0 => 1e16,
        1 => 1.0 + i as f64,
        _ => -1e16,
    };
    for len in [0, 1, ONE_ROUND_BYTES / 8, ONE_ROUND_BYTES / 8 + 77] {
        let mine = upload(comm, &(0..len).map(part).collect::<Vec<_>>());
        let all = read(&comm.all_reduce(&mine, Monoid::SUM).expect("all_reduce"));
        for root in 0..ranks {
            let started = comm.start_reduce(&mine, Monoid::SUM, root);
            let got = comm.reduce(&mine, Monoid::SUM, root).expect("reduce");
            let again = started.expect("start_reduce").wait_optional();
            let expected = (me == root).then(|| all.clone());
            assert_eq!(got.map(|sum| read(&sum)), expected, "{len} to {root}");
            assert_eq!(again.expect("reduce").map(|sum| read(&sum)), expected);
        }
    }
    let one = upload(comm, &[1.0]);
    assert!(comm.reduce(&one, Monoid::SUM, ranks).is_err());
    if ranks > 1 {
        let own_root = comm.reduce(&one, Monoid::SUM, usize::from(me > 0));
        assert!(matches!(&own_root, Err(CommError::Mismatch(m)) if m.field == "root"));
        for len in [1, ONE_ROUND_BYTES] {
            let odd = upload(comm, &vec![1.0; len + usize::from(me + 1 == ranks)]);
            let got = comm.reduce(&odd, Monoid::SUM, 0);
            assert!(matches!(got, Err(CommError::Mismatch(_))), "{got:?}");
        }
    }
    comm.barrier().expect("a barrier after errors");
}

/// `scan` combines the buffers up to each rank's, in the order of `all_reduce`; `exclusive_scan` those before it, of which rank 0 has none.
pub fn scans(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for len in [0, 1, 6, ONE_ROUND_BYTES] {
        let mine: Vec<f64> = (0..len).map(|i| term(me, i)).collect();
        let mine = upload(comm, &mine);
        for (op, identity) in [
            (ReduceOp::Sum, 0.0),
            (ReduceOp::Prod, 1.0),
            (ReduceOp::Max, f64::NEG_INFINITY),
        ] {
            let upto = |end: usize| -> Vec<f64> {
                let all = |i| match end {
                    0 => identity,
                    end => combined(op, end, i),
                };
                (0..len).map(all).collect()
            };
            let started = comm.start_scan(&mine, op.into()).expect("start_scan");
            let before = comm.start_exclusive_scan(&mine, op.into());
            let got = comm.scan(&mine, op.into()).expect("scan");
            assert_eq!(read(&got), upto(me + 1), "{op:?} of {len}");
            assert_eq!(read(&started.wait().expect("scan")), upto(me + 1));
            let got = comm.exclusive_scan(&mine, op.into());
            assert_eq!(read(&got.expect("exclusive_scan")), upto(me));
            let before = before.expect("start_exclusive_scan").wait();
            assert_eq!(read(&before.expect("exclusive_scan")), upto(me));
        }
    }
    // Another order of the terms gives another sum.
    let mine = upload(comm, &[[1e16, 1.0, -1e16, 3.0][me % 4]]);
    let all = read(&comm.all_reduce(&mine, Monoid::SUM).expect("all_reduce"));
    let sum = read(&comm.scan(&mine, Monoid::SUM).expect("scan"));
    assert!(me + 1 < ranks || sum == all, "{sum:?} of {all:?}");
    if ranks > 1 {
        let odd = upload(comm, &vec![1.0; 1 + usize::from(me == 0)]);
        let got = comm.scan(&odd, Monoid::SUM);
        assert!(matches!(&got, Err(CommError::Mismatch(m)) if m.field == "length"));
        let op = [Monoid::SUM, Monoid::MAX][usize::from(me == 0)];
        let got = comm.exclusive_scan(&upload(comm, &[1.0]), op);
        assert!(matches!(got, Err(CommError::Mismatch(_))), "{got:?}");
    }
}

/// `all_reduce` in one round and in two, in wide and exact types.
pub fn all_reduce(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for dtype in [DType::F64, DType::F32, DType::I64, DType::I32] {
        let around = ONE_ROUND_BYTES / dtype.size();
        for len in [0, 1, 7, around, around + 1, 3 * around + ranks - 1] {
            let mine: Vec<f64> = (0..len).map(|i| term(me, i)).collect();
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
                let got = comm
                    .all_reduce(&upload_as(comm, dtype, &mine), op.into())
                    .expect("all_reduce");
                let expected: Vec<f64> = (0..len).map(|i| combined(op, ranks, i)).collect();
                assert_eq!(read_as_f64(comm, &got), expected, "{op:?} {dtype} {len}");
            }
        }
    }
}

/// Values are combined by the tree over rank numbers, bit for bit, in one round and in two, wherever the chunk boundaries are.
pub fn tree_order(comm: &dyn Communicator) {
    // Adding a large value, a small one and the negative of the large one gives a different result in each order.
    let part = |r: usize, i: usize| match (r + i) % 3 {
        0 => 1e16,
        1 => 1.0 + i as f64,
        _ => -1e16,
    };
    for len in [5, ONE_ROUND_BYTES / 8 + 77] {
        let mine: Vec<f64> = (0..len).map(|i| part(comm.rank(), i)).collect();
        let got = comm
            .all_reduce(&upload(comm, &mine), Monoid::SUM)
            .expect("all_reduce");
        let expected: Vec<f64> = (0..len)
            .map(|i| {
                let parts = (0..comm.size()).map(|r| part(r, i));
                by_tree(parts, |a, b| a + b).expect("at least one rank")
            })
            .collect();
        assert_eq!(read(&got), expected);
    }
}

/// Sums of 16-bit floats are rounded once: many ones are not lost next to a large value.
pub fn half_sums(comm: &dyn Communicator) {
    for len in [3, ONE_ROUND_BYTES] {
        for (dtype, large) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
            let start = if comm.rank() == 0 { large } else { 1.0 };
            let mine = upload_as(comm, dtype, &vec![start; len]);
            let got = comm.all_reduce(&mine, Monoid::SUM).expect("all_reduce");
            let exact = large + (comm.size() - 1) as f64;
            let once = read_as_f64(comm, &upload_as(comm, dtype, &[exact]))[0];
            assert_eq!(read_as_f64(comm, &got), vec![once; len], "{dtype}");
        }
    }
}

/// Boxes of all ranks' arrays, combined straight from where they lie: by the tree over rank numbers, with 16-bit floats rounded once.
pub fn reduced_boxes(comm: &dyn Communicator) {
    const ROWS: usize = 5;
    let (ranks, me) = (comm.size(), comm.rank());
    // Rank r gets r + 1 columns of everybody's array, in two boxes of rows.
    let width = ranks * (ranks + 1) / 2;
    let columns = |r: usize| (r * (r + 1) / 2, r + 1);
    let boxes = |reader: usize, peer: usize| {
        let (first, count) = columns(reader);
        [(0, 2), (2, ROWS - 2)].map(|(row, rows)| Piece {
            peer,
            source: 0,
            shape: [rows, count][..].into(),
            src_offset: row * width + first,
            src_strides: [width as isize, 1][..].into(),
            dst_offset: row * count,
            dst_strides: [count as isize, 1][..].into(),
        })
    };
    let recv = (0..ranks).flat_map(|owner| boxes(me, owner)).collect();
    let send = (0..ranks)
        .flat_map(|reader| boxes(reader, reader))
        .collect();
    let plan = ExchangePlan::new("reduced boxes", 3, recv, send, Some(Monoid::SUM), None);
    let plan = Arc::new(plan);
    // Large and small terms of both signs: another order, or rounding between terms, gives other bits.
    let part = |r: usize, i: usize| match (r + i) % 3 {
        0 => 300.0 + i as f64,
        1 => 0.75,
        _ => -299.0,
    };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let round = |values: &[f64]| read_as_f64(comm, &upload_as(comm, dtype, values));
        let array = |r: usize| round(&(0..ROWS * width).map(|i| part(r, i)).collect::<Vec<_>>());
        let arrays: Vec<_> = (0..ranks).map(array).collect();
        let mine = upload_as(comm, dtype, &arrays[me]);
        let (first, count) = columns(me);
        let dst = comm
            .device()
            .alloc(dtype, ROWS * count)
            .expect("a small buffer");
        let got = comm.exchange(&plan, &[mine], dst, Ok(()));
        let sums: Vec<f64> = (0..ROWS * count)
            .map(|k| {
                let at = k / count * width + first + k % count;
                let sum = by_tree(arrays.iter().map(|array| array[at]), |a, b| match dtype {
                    DType::F64 => a + b,
                    _ => f64::from(a as f32 + b as f32),
                });
                sum.expect("at least one rank")
            })
            .collect();
        assert_eq!(
            read_as_f64(comm, &got.expect("an exchange")),
            round(&sums),
            "{dtype}"
        );
    }
}

/// Statistics, sums of exponentials, and the index of the extremes, also with empty contributions and ties.
pub fn structured_monoids(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    // Rank r has r values r*10, r*10 + 2, ...; rank 0 has none.
    let part = |r: usize| (0..r).map(|i| (r * 10 + 2 * i) as f64).collect::<Vec<_>>();
    let moments = |v: &[f64]| {
        let n = v.len() as f64;
        let mean = if v.is_empty() {
            0.0
        } else {
            v.iter().sum::<f64>() / n
        };
        [n, mean, v.iter().map(|x| (x - mean).powi(2)).sum()]
    };
    let got = comm
        .all_reduce(&upload(comm, &moments(&part(me))), Monoid::Moments)
        .expect("all_reduce of moments");
    let all: Vec<f64> = (0..ranks).flat_map(part).collect();
    for (got, expected) in read(&got).into_iter().zip(moments(&all)) {
        assert!(
            (got - expected).abs() <= 1e-12 * expected.abs(),
            "{got} {expected}"
        );
    }

    // The division into chunks must not tear groups apart: long enough for two rounds.
    let groups = ONE_ROUND_BYTES / 8;
    let pairs: Vec<f64> = (0..groups)
        .flat_map(|g| [((g + me) % 3) as f64, (me * groups + g) as f64])
        .collect();
    for op in [Monoid::ArgMax, Monoid::ArgMin] {
        let got = read(
            &comm
                .all_reduce(&upload(comm, &pairs), op)
                .expect("all_reduce of pairs"),
        );
        for g in 0..groups {
            let candidates = (0..ranks).map(|r| (((g + r) % 3) as f64, (r * groups + g) as f64));
            let best = candidates
                .reduce(|a, b| {
                    let wins = if op == Monoid::ArgMax {
                        b.0 > a.0
                    } else {
                        b.0 < a.0
                    };
                    if wins { b } else { a }
                })
                .expect("at least one rank");
            assert_eq!((got[2 * g], got[2 * g + 1]), best, "{op} {g}");
        }
    }
    let got = comm
        .all_reduce(&upload(comm, &[me as f64, 1.0]), Monoid::MaxSumExp)
        .expect("all_reduce of exponentials");
    let top = (ranks - 1) as f64;
    let sum: f64 = (0..ranks).map(|r| (r as f64 - top).exp()).sum();
    let got = read(&got);
    assert!(got[0] == top && (got[1] - sum).abs() < 1e-12, "{got:?}");
}
