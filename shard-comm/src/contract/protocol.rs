//! Errors, groups, handles and accounts.

use super::{read, upload, upload_as, value, values};
use crate::history::KEPT;
use crate::{
    AgreedError, Call, Calling, CommError, Communicator, DType, ErrorClass, ExchangePlan, History,
    HostJob, Mismatch, Monoid, Request, Strided, Work,
};
use std::panic::Location;
use std::sync::Arc;

/// One rank's error becomes everybody's; if several ranks have one, the lowest rank's; and the group goes on.
pub fn agreed_errors(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for first in 0..ranks {
        let status = if me >= first {
            Err(AgreedError::new(
                "read",
                "a file",
                format!("nothing at {me}"),
                "write it first",
            ))
        } else {
            Ok(())
        };
        match comm.agree(status) {
            Err(CommError::Agreed(error)) => {
                assert_eq!(error.rank, comm.members()[first]);
                assert_eq!(error.got, format!("nothing at {first}"));
            }
            other => panic!("expected the error of rank {first}, got {other:?}"),
        }
        comm.agree(Ok(())).expect("agreement after an error");
    }
}

/// A rank whose own arguments are wrong does not leave the others waiting.
pub fn local_mistakes_are_agreed(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let culprit = ranks - 1;
    let counts = vec![2; ranks];
    let mine = upload(comm, &values(me, if me == culprit { 3 } else { 2 }));
    let error = comm
        .all_gather_v(&mine, &counts)
        .expect_err("a buffer that is too long");
    assert_eq!(error.class(), ErrorClass::Agreed);
    assert!(
        matches!(&error, CommError::Agreed(e) if e.rank == comm.members()[culprit]),
        "{error}"
    );
    let long = vec![2; ranks + 1];
    let result = comm.all_gather_v(&mine, if me == culprit { &long } else { &counts });
    assert!(matches!(result, Err(CommError::Agreed(_))));
    let fits = upload(comm, &values(me, 2));
    let (none, f64) = (None, DType::F64);
    for (i, beyond) in [
        comm.broadcast(none, ranks, f64, 1).map(drop),
        comm.scatter_v(none, &counts, ranks, f64).map(drop),
        comm.gather_v(&fits, &counts, ranks).map(drop),
        comm.reduce(&fits, Monoid::SUM, ranks).map(drop),
    ]
    .into_iter()
    .enumerate()
    {
        let told = beyond.expect_err("a root that is no rank").to_string();
        assert!(
            told.contains(&format!("a root below {ranks}")),
            "{i}: {told}"
        );
    }
    comm.barrier().expect("a barrier after errors");
}

/// A value that differs on one rank gives the same error everywhere.
pub fn uniform_checks(comm: &dyn Communicator) {
    comm.check_uniform("layout", 42).expect("equal values");
    if comm.size() > 1 {
        let last = comm.size() - 1;
        let seed = 1 + (comm.rank() == last) as u128;
        match comm.check_uniform("seed", seed) {
            Err(CommError::Mismatch(m)) => {
                assert_eq!(
                    (m.field.as_str(), m.a.as_str(), m.b.as_str()),
                    ("seed", "1", "2")
                );
                assert_eq!(
                    (m.rank_a, m.rank_b),
                    (comm.members()[0], comm.members()[last])
                );
            }
            other => panic!("expected a mismatch, got {other:?}"),
        }
        comm.check_uniform("seed", 1)
            .expect("equal values after a mismatch");
    }
}

/// Ranks that did something else before are told what, whatever the operation, and forget it.
pub fn histories(comm: &dyn Communicator) {
    let (me, last) = (comm.rank(), comm.size() - 1);
    let history = History::new();
    let _call = Calling::of("histories");
    let meet = |wait: bool| {
        let plan = Arc::new(ExchangePlan::silent("meet"));
        let mut request = Request::status(plan, Ok(()), Location::caller());
        request.past = history.past();
        match wait {
            true => history.heard(comm.call(request)),
            false => {
                let posted = history.heard(comm.post(request));
                posted?.heard_by(&history).wait_optional()
            }
        }
    };
    for wait in [true, false] {
        history.record(Call::new("begin"));
        meet(wait).expect("equal histories");
        if comm.size() == 1 {
            continue;
        }
        history.record(Call::new("load"));
        let value = history.record(Call::new(if me == last { "store" } else { "fetch" }));
        history.record(Call::new("end").reading(&[value]));
        match meet(wait) {
            Err(CommError::Mismatch(m)) => {
                assert_eq!(m.field, Mismatch::CALLS);
                assert!(m.a.starts_with("histories (fetch) at "), "{m}");
                assert!(m.b.starts_with("histories (store) at "), "{m}");
                let ranks = (comm.members()[0], comm.members()[last]);
                assert_eq!((m.rank_a, m.rank_b), ranks);
            }
            other => panic!("expected a mismatch, got {other:?}"),
        }
        meet(wait).expect("equal histories after a mismatch");
        for _ in 0..2 * KEPT {
            history.record(Call::new("step").with(u128::from(me == last)));
        }
        match meet(wait) {
            Err(CommError::Mismatch(m)) => assert_eq!(m.field, Mismatch::OLD_CALLS),
            other => panic!("expected a mismatch, got {other:?}"),
        }
    }
    comm.barrier().expect("a barrier after a mismatch");
}

/// Elements of one type are not taken for those of another type with as many bytes.
pub fn element_types_agree(comm: &dyn Communicator) {
    if comm.size() < 2 {
        return;
    }
    let last = comm.size() - 1;
    let dtype = if comm.rank() == last {
        DType::I64
    } else {
        DType::F64
    };
    for len in [1, 300] {
        let mine = upload_as(comm, dtype, &vec![1.0; len]);
        match comm.all_gather_v(&mine, &vec![len; comm.size()]) {
            Err(CommError::Mismatch(m)) => {
                assert_eq!(m.field, "element type");
                let ranks = (comm.members()[0], comm.members()[last]);
                assert_eq!((m.rank_a, m.rank_b), ranks);
            }
            other => panic!("expected a mismatch, got {other:?}"),
        }
    }
    comm.barrier().expect("a barrier after a mismatch");
}

/// Groups by parity, overlapping windows of neighbours, reversed order, and no group at all.
pub fn splits(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let parity = comm
        .split(Some(me % 2), 0)
        .expect("split")
        .expect("a member");
    let fellows: Vec<usize> = (0..ranks).filter(|r| r % 2 == me % 2).collect();
    assert_eq!(
        parity.members(),
        fellows
            .iter()
            .map(|&r| comm.members()[r])
            .collect::<Vec<_>>()
    );
    assert_eq!((parity.size(), parity.rank()), (fellows.len(), me / 2));
    let reversed = comm
        .split(Some(0), ranks - me)
        .expect("split")
        .expect("a member");
    assert_eq!(reversed.rank(), ranks - 1 - me);
    let only_first = comm.split((me == 0).then_some(3), 0).expect("split");
    assert_eq!(only_first.is_some(), me == 0);

    // Operations of several groups in flight at once, waited for in a different order on odd ranks.
    let counts = vec![1; ranks];
    let in_parity = parity
        .start_all_reduce(&upload(comm, &values(me, 1000)), Monoid::SUM)
        .expect("start");
    let in_reversed = reversed
        .start_all_gather_v(&upload(comm, &[me as f64]), &counts)
        .expect("start");
    let in_all = comm
        .start_all_gather_v(&upload(comm, &[me as f64]), &counts)
        .expect("start");
    let order: Vec<f64> = (0..ranks).map(|r| r as f64).collect();
    let backwards: Vec<f64> = order.iter().rev().copied().collect();
    let check_parity = |sum: Vec<f64>| {
        let expected = (0..1000).map(|i| fellows.iter().map(|&r| value(r, i)).sum::<f64>());
        assert_eq!(sum, expected.collect::<Vec<_>>());
    };
    if me % 2 == 0 {
        check_parity(read(&in_parity.wait().expect("sum")));
        assert_eq!(read(&in_reversed.wait().expect("gather")), backwards);
        assert_eq!(read(&in_all.wait().expect("gather")), order);
    } else {
        assert_eq!(read(&in_all.wait().expect("gather")), order);
        assert_eq!(read(&in_reversed.wait().expect("gather")), backwards);
        check_parity(read(&in_parity.wait().expect("sum")));
    }
    // A split of a split.
    let single = parity
        .split(Some(parity.rank()), 0)
        .expect("split")
        .expect("a member");
    assert_eq!(
        (single.size(), single.members()),
        (1, &comm.members()[me..=me])
    );
    single.barrier().expect("a barrier of one");
}

/// Groups that are named by their members: in any order, of one rank, and none at all.
pub fn subgroups(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let backwards: Vec<usize> = (0..ranks).rev().filter(|r| r % 2 == me % 2).collect();
    let group = comm.subgroup(Some(&backwards)).expect("subgroup");
    let group = group.expect("a member");
    let named: Vec<usize> = backwards.iter().map(|&r| comm.members()[r]).collect();
    assert_eq!((group.members(), group.size()), (&*named, named.len()));
    assert_eq!(Some(group.rank()), backwards.iter().position(|&r| r == me));
    let all = group.all_gather(&upload(comm, &[me as f64]));
    let expected: Vec<f64> = backwards.iter().map(|&r| r as f64).collect();
    assert_eq!(read(&all.expect("all_gather")), expected);
    let first = comm.subgroup((me == 0).then_some(&[0])).expect("subgroup");
    assert_eq!(first.map(|group| group.size()), (me == 0).then_some(1));
}

/// A group that its members name differently is an error on all ranks, whether they are in it or not.
pub fn misnamed_groups(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let refused = |members: Option<&[usize]>| match comm.subgroup(members) {
        Err(CommError::Agreed(error)) => error,
        other => panic!("expected an agreed error for {members:?}, got {other:?}"),
    };
    if ranks > 1 {
        let pair: Option<&[usize]> = Some(match me {
            0 => &[0, 1],
            _ => &[1, 0],
        });
        let error = refused(pair.filter(|_| me < 2));
        assert_eq!((error.rank, &*error.op), (comm.members()[0], "subgroup"));
        // A rank is named that does not name the group itself.
        refused((me == 0).then_some(&[0, 1]));
        // The list lacks the rank that names it; or it has a rank that does not exist.
        refused(Some(&[(me + 1) % ranks]));
        refused(Some(&[me, ranks]));
    }
    if ranks > 2 {
        let pair: Option<&[usize]> = Some(if me == 0 { &[0, 1] } else { &[0, 2] });
        refused(pair.filter(|_| me != 1));
        // Ranks that agree learn of those that do not.
        let pair: Option<&[usize]> = Some(if me < 2 { &[0, 1] } else { &[2, 0] });
        refused(pair.filter(|_| me < 3));
    }
    comm.barrier().expect("a barrier after errors");
}

/// Each rank waits for its handles in an order of its own.
pub fn handles_in_any_order(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let lens = [1usize, 2000, 5, 900];
    let mut handles: Vec<_> = lens
        .iter()
        .map(|&len| {
            let mine = upload(comm, &values(me, len));
            Some(
                comm.start_all_reduce(&mine, Monoid::SUM)
                    .expect("start_all_reduce"),
            )
        })
        .collect();
    for k in 0..lens.len() {
        let at = (k * 3 + me) % lens.len();
        let sum = handles[at]
            .take()
            .expect("each once")
            .wait()
            .expect("all_reduce");
        let expected: Vec<f64> = (0..lens[at])
            .map(|i| (0..ranks).map(|r| value(r, i)).sum())
            .collect();
        assert_eq!(read(&sum), expected);
    }
}

/// A handle that is dropped or leaked on one rank does not keep the others from their result.
pub fn dropped_handles(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for careless in 0..ranks {
        let mine = upload(comm, &values(me, 3000));
        let start = || {
            comm.start_all_reduce(&mine, Monoid::SUM)
                .expect("start_all_reduce")
        };
        let (one, two) = (start(), start());
        if me == careless {
            drop(one);
            std::mem::forget(two);
        } else {
            for handle in [one, two] {
                let sum = read(&handle.wait().expect("all_reduce"));
                assert_eq!(sum[2], (0..ranks).map(|r| value(r, 2)).sum::<f64>());
            }
        }
        comm.barrier().expect("barrier");
    }
}

/// Ledgers count each message at its sender and at its receiver alike, and a gather moves exactly what it must.
pub fn ledger_balances(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let before = comm.ledger().snapshot();
    let counts: Vec<usize> = (0..ranks).map(|r| r % 3).collect();
    let total: usize = counts.iter().sum();
    comm.all_gather_v(&upload(comm, &values(me, counts[me])), &counts)
        .expect("all_gather_v");
    comm.all_reduce(&upload(comm, &values(me, 1000)), Monoid::SUM)
        .expect("all_reduce");
    let moved = comm.ledger().since(&before);
    let gathered = moved.op("all_gather_v");
    assert_eq!(gathered.bytes, 8 * (total - counts[me]) as u64);
    let talkers = (0..ranks).filter(|&r| r != me && counts[r] > 0).count();
    if comm.messages().is_none() || gathered.rounds == 1 {
        assert_eq!(gathered.messages, talkers as u64);
    } else {
        assert!(gathered.messages <= talkers as u64);
    }
    let account = [
        moved.bytes,
        moved.sent_bytes,
        moved.messages,
        moved.sent_messages,
    ];
    let account: Vec<f64> = account.iter().map(|&n| n as f64).collect();
    let sums = read(
        &comm
            .all_reduce(&upload(comm, &account), Monoid::SUM)
            .expect("all_reduce"),
    );
    assert_eq!((sums[0], sums[2]), (sums[1], sums[3]));
    if ranks > 1 {
        // Two rounds: each rank receives its chunk from everybody, then everybody's chunk. Ranks that send messages may go about it
        // in stages: then some elements pass through several ranks, and nobody has many messages.
        let summed = moved.op("all_reduce");
        let sum_bytes = comm
            .all_reduce(&upload(comm, &[summed.bytes as f64]), Monoid::SUM)
            .expect("all_reduce");
        let least = (2 * 8 * 1000 * (ranks - 1)) as f64;
        let levels = u64::from(ranks.next_power_of_two().ilog2());
        if comm.messages().is_none() || summed.rounds == 2 {
            assert_eq!(read(&sum_bytes), [least]);
        } else {
            assert!(read(&sum_bytes)[0] >= least);
            assert!(summed.messages <= 2 * levels + 2, "{summed:?}");
        }
    }
}

/// A device's own work is ordered with what a group does to its buffers.
pub fn devices(comm: &dyn Communicator) {
    let device = comm.device();
    let (ranks, me) = (comm.size(), comm.rank());
    let all = Strided::contiguous(&[4]);
    let mut mine = device.alloc(DType::I64, 4).expect("a small buffer");
    device
        .fill(&mut mine, &all, crate::Scalar::I64(me as i64 + 1))
        .expect("fill");
    let sum = comm
        .all_reduce(&mine.freeze(), Monoid::SUM)
        .expect("all_reduce");
    let out = device.alloc(DType::I64, 4).expect("a small buffer");
    let doubled = device.submit(
        vec![sum],
        vec![out],
        HostJob::new("double", Work::moving(64), |inputs, outputs| {
            let x = inputs[0].as_slice::<i64>().expect("i64");
            let y = outputs[0].as_mut_slice::<i64>().expect("i64");
            y.iter_mut().zip(x).for_each(|(y, x)| *y = 2 * x);
        }),
    );
    // A device whose memory the host cannot reach may refuse jobs.
    if let Ok(mut doubled) = doubled {
        let doubled = doubled.pop().expect("one output").freeze();
        let gathered = comm
            .all_gather_v(&doubled, &vec![4; ranks])
            .expect("all_gather_v");
        let expected = vec![(ranks * (ranks + 1)) as i64; 4 * ranks];
        assert_eq!(gathered.to_vec::<i64>().expect("i64"), expected);
    }
}
