//! Operations that copy.

use std::sync::Arc;

use shard_spec::{Dims, Strides};

use super::{count_cases, read, upload, value, values};
use crate::{CommError, Communicator, DType, ExchangePlan, Handle, Monoid, Piece, Scalar};

/// `all_gather_v` against a plain concatenation.
pub fn all_gather(comm: &dyn Communicator) {
    for counts in count_cases(comm.size()) {
        let mine = upload(comm, &values(comm.rank(), counts[comm.rank()]));
        let all = comm.all_gather_v(&mine, &counts).expect("all_gather_v");
        let expected: Vec<f64> = counts
            .iter()
            .enumerate()
            .flat_map(|(r, &n)| values(r, n))
            .collect();
        assert_eq!(read(&all), expected, "{counts:?}");
    }
}

/// `all_gather` is `all_gather_v` with equal counts; if lengths differ, all ranks get the error.
pub fn equal_gather(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for len in [0, 1, 5, 700] {
        let mine = upload(comm, &values(me, len));
        let expected: Vec<f64> = (0..ranks).flat_map(|r| values(r, len)).collect();
        let started = comm.start_all_gather(&mine).expect("start_all_gather");
        assert_eq!(read(&comm.all_gather(&mine).expect("all_gather")), expected);
        assert_eq!(read(&started.wait().expect("all_gather")), expected);
    }
    if ranks > 1 {
        let other = upload(comm, &vec![1.0; 2 + usize::from(me + 1 == ranks)]);
        match comm.all_gather(&other) {
            Err(CommError::Mismatch(m)) => {
                assert_eq!((&*m.field, &*m.a, &*m.b), ("length", "2", "3"));
            }
            unexpected => panic!("expected a mismatch, got {unexpected:?}"),
        }
    }
}

/// `all_to_all_v` with a different size for every pair.
pub fn all_to_all(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for salt in 0..3 {
        let count = |from: usize, to: usize| (from * 5 + to * 3 + salt) % 4;
        let send: Vec<_> = (0..ranks).map(|to| count(me, to)).collect();
        let recv: Vec<_> = (0..ranks).map(|from| count(from, me)).collect();
        let mine = upload(comm, &values(me, send.iter().sum()));
        let got = comm
            .all_to_all_v(&mine, &send, &recv)
            .expect("all_to_all_v");
        let mut expected = Vec::new();
        for from in 0..ranks {
            let start: usize = (0..me).map(|to| count(from, to)).sum();
            expected.extend((0..count(from, me)).map(|i| value(from, start + i)));
        }
        assert_eq!(read(&got), expected);
    }
}

/// `all_to_all` is `all_to_all_v` with equal counts; a length that cannot be divided equally is everybody's error.
pub fn equal_parts(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for part in [0, 1, 3, 700] {
        let mine = upload(comm, &values(me, part * ranks));
        let expected: Vec<f64> = (0..ranks)
            .flat_map(|from| (0..part).map(move |i| value(from, me * part + i)))
            .collect();
        let started = comm.start_all_to_all(&mine).expect("start_all_to_all");
        assert_eq!(read(&comm.all_to_all(&mine).expect("all_to_all")), expected);
        assert_eq!(read(&started.wait().expect("all_to_all")), expected);
    }
    if ranks > 1 {
        let got = comm.all_to_all(&upload(comm, &vec![1.0; ranks + 1]));
        assert!(matches!(got, Err(CommError::Agreed(_))), "{got:?}");
        let others = upload(comm, &vec![1.0; ranks * (1 + usize::from(me == 0))]);
        let got = comm.all_to_all(&others);
        assert!(matches!(&got, Err(CommError::Mismatch(m)) if m.field == "length"));
    }
}

/// `broadcast` from every root, also of an empty buffer.
pub fn broadcast(comm: &dyn Communicator) {
    for root in 0..comm.size() {
        for len in [0, 1, 1000] {
            let data = (comm.rank() == root).then(|| upload(comm, &values(root, len)));
            let got = comm
                .broadcast(data.as_ref(), root, DType::F64, len)
                .expect("broadcast");
            assert_eq!(read(&got), values(root, len));
        }
    }
}

/// `scatter_v` from every root.
pub fn scatter(comm: &dyn Communicator) {
    let me = comm.rank();
    for counts in count_cases(comm.size()) {
        for root in 0..comm.size() {
            let total = counts.iter().sum();
            let data = (me == root).then(|| upload(comm, &values(root, total)));
            let got = comm
                .scatter_v(data.as_ref(), &counts, root, DType::F64)
                .expect("scatter_v");
            let start: usize = counts[..me].iter().sum();
            assert_eq!(read(&got), values(root, total)[start..start + counts[me]]);
        }
    }
}

/// `gather_v` to every root; the others get nothing.
pub fn gather(comm: &dyn Communicator) {
    let me = comm.rank();
    for counts in count_cases(comm.size()) {
        for root in 0..comm.size() {
            let mine = upload(comm, &values(me, counts[me]));
            let got = comm.gather_v(&mine, &counts, root).expect("gather_v");
            let expected: Vec<f64> = counts
                .iter()
                .enumerate()
                .flat_map(|(r, &n)| values(r, n))
                .collect();
            assert_eq!(got.map(|all| read(&all)), (me == root).then_some(expected));
        }
    }
}

/// Messages around a ring and to oneself, several in flight, in order.
pub fn messages(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let sent: Vec<_> = (0..3)
        .map(|k| {
            comm.start_send(next, &upload(comm, &values(me, k)))
                .expect("start_send")
        })
        .collect();
    for k in 0..3 {
        let got = comm.recv(previous, DType::F64, k).expect("recv");
        assert_eq!(read(&got), values(previous, k));
    }
    for handle in sent {
        handle.wait().expect("a send that was received");
    }
    if ranks > 1 && me < 2 {
        let peer = 1 - me;
        if me == 0 {
            comm.send(peer, &upload(comm, &[7.0])).expect("send");
        } else {
            assert_eq!(read(&comm.recv(peer, DType::F64, 1).expect("recv")), [7.0]);
        }
    }
}

/// `send_recv` round a ring in both directions, between pairs, and with lengths that differ.
pub fn rings(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    for step in [1, ranks - 1, 0] {
        let (to, from) = ((me + step) % ranks, (me + ranks - step) % ranks);
        let mine = upload(comm, &values(me, me + 1));
        let got = comm.send_recv(to, &mine, from, DType::F64, from + 1);
        assert_eq!(read(&got.expect("send_recv")), values(from, from + 1));
    }
    // Pairs swap, and a rank without a partner sends to itself.
    let partner = Some(me ^ 1).filter(|&p| p < ranks).unwrap_or(me);
    let mine = upload(comm, &values(me, 600));
    let got = comm.send_recv(partner, &mine, partner, DType::F64, 600);
    assert_eq!(read(&got.expect("send_recv")), values(partner, 600));
    assert!(comm.send_recv(ranks, &mine, me, DType::F64, 0).is_err());
}

/// An exchange whose pieces transpose, flip, broadcast and overlap, from two sources per rank, copied and folded; waited for at once,
/// and while another is in flight.
pub fn exchange_with_strides(comm: &dyn Communicator) {
    // `wide` steps keep destinations apart; otherwise they overlap.
    for (wide, fold) in [
        (30, None),
        (5, None),
        (5, Some(Monoid::SUM)),
        (0, Some(Monoid::MAX)),
    ] {
        let (ranks, me) = (comm.size(), comm.rank());
        let len = ranks * wide + 40;
        let recv = (0..ranks).flat_map(|owner| strided_pieces(owner, me, wide));
        let recv: Vec<Piece> = recv.collect();
        let send = (0..ranks).flat_map(|reader| {
            strided_pieces(me, reader, wide).map(move |piece| Piece {
                peer: reader,
                ..piece
            })
        });
        let fill = fold.is_none().then_some(Scalar::I64(-5));
        let expected = strided_result(&recv, fold, len);
        let (recv, send) = (recv.into_iter().collect(), send.collect());
        let plan = ExchangePlan::new("strided", wide as u128, recv, send, fold, fill);
        let plan = Arc::new(plan);
        let mine = strided_sources(me).map(|v| upload(comm, &v));
        let dst = || comm.device().alloc(DType::F64, len);
        let dst = || dst().expect("a small buffer");
        let started = comm.start_exchange(&plan, &mine, dst(), Ok(()));
        let got = comm.exchange(&plan, &mine, dst(), Ok(()));
        let got = got.expect("exchange");
        assert_eq!(read(&got), expected, "step {wide}, fold {fold:?}");
        let got = started.and_then(Handle::wait).expect("start_exchange");
        assert_eq!(read(&got), expected, "step {wide}, fold {fold:?}, started");
    }
}

/// What a rank gives to read.
fn strided_sources(rank: usize) -> [Vec<f64>; 2] {
    [values(rank, 24), values(rank + 100, 24)]
}

/// The three pieces that every reader reads from every owner, the destinations of two owners `wide` elements apart.
fn strided_pieces(owner: usize, reader: usize, wide: usize) -> impl Iterator<Item = Piece> {
    (0..3).map(move |kind| {
        let (shape, src_offset, src_strides): (&[usize], usize, &[isize]) = match kind {
            0 => (&[3, 4], (owner + reader) % 3, &[1, 5]),
            1 => (&[2, 3], 20, &[-7, -2]),
            _ => (&[2, 2], 5, &[0, 1]),
        };
        let dst_strides: &[isize] = if kind == 1 { &[1, 2] } else { &[4, 1] };
        Piece {
            peer: owner,
            source: kind % 2,
            shape: Dims::from(shape),
            src_offset,
            src_strides: Strides::from(src_strides),
            dst_offset: owner * wide + kind * 4,
            dst_strides: Strides::from(dst_strides),
        }
    })
}

/// What comes of pieces that are read one element after the other.
fn strided_result(recv: &[Piece], fold: Option<Monoid>, len: usize) -> Vec<f64> {
    let before = match fold {
        None => -5.0,
        Some(Monoid::MAX) => f64::NEG_INFINITY,
        Some(_) => 0.0,
    };
    let mut result = vec![before; len];
    for piece in recv {
        let theirs = &strided_sources(piece.peer)[piece.source];
        for (i, j) in (0..piece.shape[0]).flat_map(|i| (0..piece.shape[1]).map(move |j| (i, j))) {
            let at = |offset: usize, strides: &[isize]| {
                (offset as isize + i as isize * strides[0] + j as isize * strides[1]) as usize
            };
            let new = theirs[at(piece.src_offset, &piece.src_strides)];
            let old = &mut result[at(piece.dst_offset, &piece.dst_strides)];
            *old = match fold {
                None => new,
                Some(Monoid::MAX) => old.max(new),
                Some(_) => *old + new,
            };
        }
    }
    result
}

/// An exchange whose pieces leave gaps, so that the gaps are filled, and nothing else is.
pub fn exchange_with_gaps(comm: &dyn Communicator) {
    /// The length of what each owner sends, and of the range it is put into.
    const WIDTH: usize = 10;
    let (ranks, me) = (comm.size(), comm.rank());
    let piece = |owner: usize, reader: usize, peer: usize| Piece {
        peer,
        source: 0,
        shape: Dims::from(&[3, 2][..]),
        src_offset: reader % 4,
        src_strides: Strides::from(&[2, 5][..]),
        dst_offset: 1 + owner * WIDTH,
        dst_strides: Strides::from(&[3, 1][..]),
    };
    let recv = (0..ranks).map(|owner| piece(owner, me, owner)).collect();
    let send = (0..ranks).map(|reader| piece(me, reader, reader)).collect();
    let fill = Some(Scalar::I64(-5));
    let plan = Arc::new(ExchangePlan::new("gaps", 7, recv, send, None, fill));
    let mut expected = vec![-5.0; ranks * WIDTH];
    for owner in 0..ranks {
        let theirs = values(owner, 24);
        for (i, j) in (0..3).flat_map(|i| [(i, 0), (i, 1)]) {
            expected[1 + owner * WIDTH + 3 * i + j] = theirs[me % 4 + 2 * i + 5 * j];
        }
    }
    let mine = upload(comm, &values(me, 24));
    let dst = comm.device().alloc(DType::F64, expected.len());
    let dst = dst.expect("a small buffer");
    let got = comm
        .exchange(&plan, &[mine], dst, Ok(()))
        .expect("exchange");
    assert_eq!(read(&got), expected);
}

/// A rank that would send elements from elsewhere than its peer reads them, as many of them, is found by all, and the group goes on.
pub fn other_places(comm: &dyn Communicator) {
    let (ranks, me) = (comm.size(), comm.rank());
    let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let pass = |sent_from| {
        let recv = [Piece::run(previous, 0, 2, 3, 0)].into();
        let send = [Piece::run(next, 0, 2, sent_from, 0)].into();
        let plan = ExchangePlan::new("pass on", 0, recv, send, None, None);
        let dst = comm.device().alloc(DType::F64, 2);
        let dst = dst.expect("a small buffer");
        comm.exchange(
            &Arc::new(plan),
            &[upload(comm, &values(me, 5))],
            dst,
            Ok(()),
        )
    };
    let last = ranks - 1;
    match pass(if me == last { 2 } else { 3 }) {
        Err(CommError::Mismatch(m)) => {
            let [from, to] = [comm.members()[last], comm.members()[0]];
            assert_eq!(m.field, format!("pieces from rank {from} to rank {to}"));
        }
        other => panic!("expected a mismatch, got {other:?}"),
    }
    assert_eq!(read(&pass(3).expect("pass on")), values(previous, 5)[3..]);
}
