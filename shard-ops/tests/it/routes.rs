//! Which rows ranks ask each other for, and what they make of a rank that says what no program of this crate says.

use shard_comm::{AgreedError, Communicator, ErrorClass, local};
use shard_ops::inside::{
    Asked, COUNTS, Group, Keyed, Meeting, Merging, OperandPart, OwnRun, Peer, Routing, ask,
    exchange_numbers, swap, tell_counts, tell_rows, within,
};
use shard_ops::{InOp, MergedRuns, Result, RouteBy};
use shard_spec::{DimPart, Partition};
use smallvec::smallvec;

/// Rank `me` of as many as the partition has parts, which looks up a part of this shape.
fn routing(partition: &Partition, me: usize, shape: &[usize], keyed: &[Keyed]) -> Routing {
    let peers = (0..partition.parts()).map(|part| Peer { at: part, part });
    Routing {
        index: 1,
        part: OperandPart {
            shape: shape.iter().copied().collect(),
            held: shape.iter().map(|&n| DimPart::from(10..10 + n)).collect(),
        },
        extent: partition.extent(),
        from_end: true,
        skips: None,
        absent: None,
        own: partition.part(me),
        keyed: keyed.iter().copied().collect(),
        group: Some(Group {
            partition: partition.clone(),
            peers: peers.collect(),
            me,
        }),
        narrow: true,
        fetched: Vec::new(),
        home: Vec::new(),
        id: 0,
        by: RouteBy::Ask,
        considered: smallvec![],
        merging: None,
    }
}

/// What is asked for, and the keys.
fn asked(
    op: &'static str,
    routing: &Routing,
    indices: &[i64],
) -> Result<(Asked, Vec<i64>), AgreedError> {
    let mut keys = vec![7; indices.len()];
    Ok((ask(op, routing, indices, &mut keys)?, keys))
}

#[test]
fn duplicates_are_asked_for_once_and_in_order() {
    // Rows 0..4, none, 4..7, 7..10: rank 2 asks.
    let partition = Partition::from_sizes(&[4, 0, 3, 3]).unwrap();
    let routing = routing(&partition, 2, &[7], &[Keyed::Routed]);
    let (asked, keys) = asked("take", &routing, &[9, 0, 5, -1, 3, 0, 4]).unwrap();
    assert_eq!(asked.requests, [0, 3, 2]);
    assert_eq!(asked.counts, [2, 0, 0, 1]);
    // Own rows are keys 0..3, the others follow in the order of the requests.
    assert_eq!(keys, [5, 3, 1, 5, 4, 3, 0]);
}

#[test]
fn every_rank_asks_for_what_the_others_have() {
    let sizes = [5, 0, 3, 7, 1];
    let n: usize = sizes.iter().sum();
    let indices: Vec<i64> = (0..64).map(|i| (i * i * 31 + 7 * i) % 16).collect();
    let indices: Vec<i64> = (indices.iter().enumerate())
        .map(|(k, &i)| if k % 3 == 0 { i - n as i64 } else { i })
        .collect();
    let partition = Partition::from_sizes(&sizes).unwrap();
    for me in 0..sizes.len() {
        let mut routing = routing(&partition, me, &[64], &[Keyed::Routed]);
        routing.absent = Some(9);
        let (asked, keys) = asked("take", &routing, &indices).unwrap();
        let own = partition.part(me);
        let mut starts = vec![0];
        sizes
            .iter()
            .for_each(|size| starts.push(starts[starts.len() - 1] + size));
        let owners = (0..sizes.len()).flat_map(|part| vec![starts[part]; asked.counts[part]]);
        let ghosts: Vec<usize> = (owners.zip(&asked.requests))
            .map(|(start, &at)| start + at as usize)
            .collect();
        assert_eq!(ghosts.len(), asked.requests.len());
        assert!(ghosts.is_sorted_by(|a, b| a < b));
        assert!(ghosts.iter().all(|row| own.position(*row).is_none()));
        for (&index, &key) in indices.iter().zip(&keys) {
            let Ok(key) = usize::try_from(key) else {
                assert_eq!((index, key), (9, -1));
                continue;
            };
            let row = match key.checked_sub(own.len()) {
                Some(ghost) => ghosts[ghost],
                None => own.index(key),
            };
            assert_eq!(row as i64, index.rem_euclid(n as i64), "rank {me}");
        }
        let distinct: std::collections::BTreeSet<usize> = (indices.iter())
            .filter(|&&index| index != 9)
            .map(|index| index.rem_euclid(n as i64) as usize)
            .filter(|&row| own.position(row).is_none())
            .collect();
        assert!(ghosts.into_iter().eq(distinct));
    }
}

#[test]
fn bits_and_lists_find_the_same() {
    let partition = Partition::block_cyclic(1 << 20, 3, 5);
    let mut indices: Vec<i64> = (0..500).map(|i| (i * i * 7919) % (1 << 20)).collect();
    let (few, few_keys) = asked(
        "take",
        &routing(&partition, 1, &[500], &[Keyed::Routed]),
        &indices,
    )
    .unwrap();
    // Enough elements that bits take less room than lists.
    indices.resize(1 << 18, 3);
    let many = routing(&partition, 1, &[1 << 18], &[Keyed::Routed]);
    let (many, many_keys) = asked("take", &many, &indices).unwrap();
    let repeated = many.requests.len() - few.requests.len();
    assert!(repeated <= 1, "row 3 may be new");
    let row = |asked: &Asked, key: i64| {
        let own = partition.size(1) as i64;
        (key >= own).then(|| asked.requests[(key - own) as usize])
    };
    for j in 0..500 {
        assert_eq!(row(&few, few_keys[j]), row(&many, many_keys[j]));
    }
}

#[test]
fn shared_dims_count_before_and_after_the_routed_one() {
    // A table [2, 6, 3] whose dim 1 is routed, by an operand [2, 2, 3]: every element has its own row.
    let partition = Partition::from_sizes(&[2, 4]).unwrap();
    let shared = |dim, extent| Keyed::Shared { dim, extent };
    let keyed = [shared(0, 2), Keyed::Routed, shared(2, 3)];
    let routing = routing(&partition, 0, &[2, 2, 3], &keyed);
    let (asked, keys) = asked("gather", &routing, &[0, 1, 5, 2, 2, 2, 1, 1, 1, 5, 5, 5]).unwrap();
    // Rank 1 has a box [2, 4, 3]: key (b * 4 + at) * 3 + c.
    assert_eq!(asked.requests, [0, 1, 2, 11, 21, 22, 23]);
    assert_eq!(keys[..3], [0, 4, 12 + 3]);
    assert_eq!(keys[3..6], [12, 13, 14]);
    assert_eq!(keys[6..9], [9, 10, 11]);
    assert_eq!(keys[9..], [16, 17, 18]);
}

#[test]
fn strays_are_named_by_global_position() {
    let partition = Partition::balanced(6, 2);
    let routing = routing(&partition, 0, &[2, 3], &[Keyed::Routed]);
    let error = asked("take", &routing, &[0, 5, -6, 1, 6, -7]).unwrap_err();
    assert_eq!(
        (error.expected.as_str(), error.got.as_str()),
        (
            "indices from -6 to below 6, the extent of the dim",
            "index 6 at position [11, 11]"
        )
    );
}

/// What two ranks of 4 and 6 rows make of a meeting at which rank 1 says what no program of this crate says.
fn meeting<T: Send>(
    f: impl Fn(&dyn Communicator, &Routing, &Group) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let partition = Partition::from_sizes(&[4, 6]).unwrap();
    local::run(2, |comm| {
        let routing = routing(&partition, comm.rank(), &[3], &[Keyed::Routed]);
        f(&comm, &routing, routing.group.as_ref().unwrap())
    })
    .unwrap()
}

#[test]
fn more_requests_than_there_are_rows_are_everybodys_error() {
    for absurd in [5, 1_000_000_000, i64::MAX, -1, i64::MIN] {
        let ends = meeting(|comm, routing, group| {
            let asked = Asked {
                counts: vec![0, 0],
                ..Asked::default()
            };
            if comm.rank() == 0 {
                let (from, status) = tell_counts("take", comm, routing, group, &asked, Ok(()))?;
                return tell_rows("take", comm, routing, group, &asked, &from, status);
            }
            let said = [absurd, 0];
            exchange_numbers("take", COUNTS, comm, group, routing.id, Ok(()), &said, 1)?;
            tell_rows("take", comm, routing, group, &asked, &[0, 0], Ok(()))
        });
        for end in ends {
            let error = end.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Agreed);
            let text = error.to_string();
            assert!(
                text.contains("at most 4 rows") && text.contains(&absurd.to_string()),
                "{text}"
            );
        }
    }
}

#[test]
fn rows_that_are_not_there_are_everybodys_error_before_rows_move() {
    for absurd in [4, i64::from(i32::MAX), -1] {
        let ends = meeting(|comm, routing, group| {
            let counts = if comm.rank() == 1 {
                vec![2, 0]
            } else {
                vec![0, 0]
            };
            let asked = Asked {
                requests: vec![3, absurd][..counts[0]].to_vec(),
                counts,
            };
            let (from, status) = tell_counts("take", comm, routing, group, &asked, Ok(()))?;
            let told = tell_rows("take", comm, routing, group, &asked, &from, status)?;
            let own = routing.own.len();
            let (rows, status) = within("take", comm.device(), own, &told)?;
            let told = rows.to_vec::<i64>().in_op("take")?;
            assert!(told.iter().all(|&row| row < own as i64));
            swap(
                "take",
                "route rows",
                comm,
                group,
                &rows,
                &from,
                &asked.counts,
                1,
                status,
            )
        });
        for end in ends {
            let error = end.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Agreed);
            assert!(error.to_string().contains("rows below 4"), "{error}");
        }
    }
}

#[test]
fn stretches_that_runs_have_not_are_everybodys_error() {
    for absurd in [
        [0, 1_000_000_000],
        [-1, 2],
        [3, 2],
        [5, 5],
        [i64::MIN, i64::MAX],
    ] {
        let ends = meeting(|comm, routing, group| hear_absurd(comm, routing, group, absurd));
        for end in ends {
            let error = end.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Agreed);
            assert!(error.to_string().contains("a run of 4 elements"), "{error}");
        }
    }
}

/// What ranks with one line of runs hear of which rank 1 asks for a stretch that no run has.
fn hear_absurd(
    comm: &dyn Communicator,
    routing: &Routing,
    group: &Group,
    absurd: [i64; 2],
) -> Result<Vec<u64>> {
    let merging = Merging {
        runs: MergedRuns {
            ends: vec![4, 10],
            descending: false,
            from: 0,
        },
        dim: 0,
        wanted: 10,
        places: 7,
        rounds: 2,
    };
    let meeting = Meeting {
        op: "merge_runs",
        comm,
        group,
        merging: &merging,
        id: routing.id,
        lens: vec![4, 6],
        in_order: vec![0, 1],
        lines: 1,
        step: 1,
        stretch: [0, 4],
    };
    let values = comm
        .device()
        .upload_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let values = values.in_op("merge_runs")?;
    let own = OwnRun::new(&meeting, &values)?;
    let first = if comm.rank() == 1 { absurd } else { [0, 4] };
    let mine = [first, first, [0, 6], [0, 6]].concat();
    let told = meeting.exchange("cut requests", mine, 4, Ok(()))?;
    let (asked, status) = meeting.within_own(&told);
    meeting.answer(&own, &asked, status)
}
