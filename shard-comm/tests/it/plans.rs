//! Plans by themselves: lists of pieces, what moves by them, and what one rank does with them alone.

use shard_comm::{
    CommError, DType, ExchangePlan, Guard, Host, Ledger, Monoid, Piece, Pieces, Scalar,
};
use smallvec::smallvec;

#[test]
fn lists_give_back_what_was_put_in() {
    let all: Vec<Piece> = (0..40)
        .map(|k| Piece {
            shape: smallvec![1 + k % 3, 2],
            src_strides: smallvec![2, 1],
            dst_strides: smallvec![-3, k as isize % 2],
            ..Piece::run(40 - k, k % 2, 1, k, 100 - k)
        })
        .collect();
    let mut list: Pieces = all.clone().into();
    let back: Vec<Piece> = list.iter().map(|p| p.to_piece()).collect();
    assert_eq!(back, all);
    assert_eq!(list.get(3).map(|p| p.to_piece()).as_ref(), Some(&all[3]));
    assert_eq!(list.get(40), None);
    list.sort();
    let mut sorted = all;
    sorted.sort_by_key(|p| (p.peer, p.source, p.dst_offset, p.src_offset));
    assert!(list.iter().eq(sorted.iter().map(Piece::view)));
    assert_eq!(list.first(), Some(sorted[0].view()));
}

#[test]
fn empty_pieces_are_left_out_and_blocks_are_shared() {
    let list: Pieces = (0..100).map(|k| Piece::run(k, 0, k % 4, 0, 0)).collect();
    assert_eq!((list.len(), list.blocks()), (75, 3));
    assert!(Pieces::from([Piece::run(0, 0, 0, 0, 0)]).is_empty());
}

#[test]
fn what_moves_is_told_of_whoever_asks() {
    let pieces: Pieces = [Piece::run(0, 0, 3, 0, 0), Piece::run(1, 0, 2, 0, 3)].into();
    let plan = ExchangePlan::new("t", 0, pieces.clone(), pieces, None, None);
    let moved = |me, dtype| {
        let ledger = Ledger::new(Host::new());
        ledger.moved("t", &plan, me, Some(dtype));
        let moved = ledger.snapshot();
        (
            moved.messages,
            moved.bytes,
            moved.sent_bytes,
            moved.local_bytes,
        )
    };
    // Rank 0 keeps 3 elements and receives 2; for rank 1 it is the reverse.
    assert_eq!(moved(0, DType::F32), (1, 8, 8, 12));
    assert_eq!(moved(1, DType::F32), (1, 12, 12, 8));
    assert_eq!(moved(0, DType::F64), (1, 16, 16, 24));
    assert_eq!(moved(2, DType::U8), (2, 5, 5, 0));
}

#[test]
fn traffic_is_summed_by_peer() {
    let recv = vec![
        Piece::run(2, 1, 3, 4, 0),
        Piece::run(0, 0, 1, 0, 3),
        Piece::run(2, 0, 2, 0, 4),
    ];
    let plan = ExchangePlan::new("t", 0, recv.into(), Pieces::new(), None, None);
    assert_eq!((plan.received_from(2), plan.received_from(1)), (5, 0));
    assert_eq!(plan.incoming()[1].extents(), &[(0, 2), (1, 7)]);
    assert_eq!((plan.remote_messages(0), plan.remote_elements(0)), (1, 5));
}

#[test]
fn a_plan_that_leaves_elements_unwritten_is_refused() {
    let device = Host::new();
    let source = [device.upload_slice(&[1.0_f64, 2.0]).unwrap()];
    let run_into = |len: usize, fold: Option<Monoid>, fill: Option<Scalar>| {
        let pieces = [Piece::run(0, 0, 2, 0, 1)];
        let plan = ExchangePlan::new("put", 0, pieces.into(), [].into(), fold, fill);
        let mut dst = device.alloc(DType::F64, len)?;
        plan.run_alone(&device, &source, &mut dst)?;
        Ok::<_, CommError>(dst.freeze().to_vec::<f64>().unwrap())
    };
    let error = run_into(3, None, None).unwrap_err();
    let told =
        "put: expected pieces for all 3 elements of the destination, got pieces for 2 of them";
    assert!(error.to_string().starts_with(told), "{error}");
    assert_eq!(
        run_into(3, None, Some(Scalar::F64(7.0))).unwrap(),
        [7.0, 1.0, 2.0]
    );
    assert_eq!(
        run_into(3, Some(Monoid::SUM), None).unwrap(),
        [0.0, 1.0, 2.0]
    );
}

/// Moments are three elements side by side, where they are read and where they are combined.
#[test]
fn pieces_of_groups_are_whole_groups_side_by_side() {
    let device = Host::new();
    let numbers: Vec<f64> = (1..=16).map(f64::from).collect();
    let source = [device.upload_slice(&numbers).unwrap()];
    let run = |extents: &[usize], from: &[isize], to: &[isize]| {
        let piece = Piece {
            shape: extents.into(),
            src_strides: from.into(),
            dst_strides: to.into(),
            ..Piece::run(0, 0, 1, 0, 0)
        };
        let fold = Some(Monoid::Moments);
        let plan = ExchangePlan::new("fold", 0, [piece].into(), [].into(), fold, None);
        let mut dst = device.alloc(DType::F64, 12)?;
        plan.run_alone(&device, &source, &mut dst)?;
        Ok::<_, CommError>(dst.freeze().to_vec::<f64>().unwrap())
    };
    let whole = run(&[2, 3], &[3, 1], &[6, 1]).unwrap();
    assert_eq!((&whole[..3], &whole[6..9]), (&numbers[..3], &numbers[3..6]));
    let torn: [(&[usize], &[isize], &[isize]); 4] = [
        (&[2, 2], &[3, 1], &[6, 1]),
        (&[3], &[2], &[1]),
        (&[3], &[1], &[2]),
        (&[], &[], &[]),
    ];
    for (extents, from, to) in torn {
        let error = run(extents, from, to).unwrap_err().to_string();
        assert!(error.contains("a multiple of 3 long"), "{error}");
    }
}

#[test]
fn sums_see_every_bit_and_every_place_but_no_order() {
    let device = Host::new();
    let sum = |values: &[f64], cuts: &[(usize, usize)]| {
        let source = device.upload_slice(values).unwrap();
        let run = |&(start, len): &(usize, usize)| Piece::run(1, 0, len, start, 0);
        let send = cuts.iter().map(run).collect();
        let plan = ExchangePlan::new("test", 0, [].into(), send, None, None);
        Guard::sums_of(&device, &plan, &[source]).unwrap()[0].sum
    };
    let whole = sum(&[1.0, 2.0, 3.0], &[(0, 3)]);
    assert_eq!(whole, sum(&[1.0, 2.0, 3.0], &[(2, 1), (0, 2)]));
    assert_ne!(whole, sum(&[1.0, 3.0, 2.0], &[(0, 3)]));
    assert_ne!(
        whole,
        sum(
            &[1.0, 2.0, f64::from_bits(3.0_f64.to_bits() + 1)],
            &[(0, 3)]
        )
    );
    assert_ne!(whole, sum(&[1.0, 2.0, 3.0], &[(0, 2)]));
}
