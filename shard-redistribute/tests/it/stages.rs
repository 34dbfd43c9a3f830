//! How an axis is taken apart into stages, and what those cost.

use shard_comm::{DType, Monoid, Scalar};
use shard_redistribute::inside::{AxisSplit, Move, Stages, digits};
use shard_redistribute::{CostModel, ExchangeBuilder, ExchangeSource, LinkCost, Owners};
use shard_spec::{DeviceMesh, DimCover, DimMap, Layout, ReduceOp};

fn lists(n: usize, each: usize, summed: bool) -> Vec<Vec<usize>> {
    let all = digits(n, each, summed);
    all.iter().map(|digits| digits.to_vec()).collect()
}

#[test]
fn digits_are_about_equal_and_the_last_is_a_node() {
    let flat = [vec![6, 4], vec![3, 4, 2], vec![3, 2, 2, 2]];
    assert_eq!(lists(24, 1, false), flat);
    assert_eq!(lists(24, 8, false), [vec![3, 8]]);
    assert_eq!(
        lists(96, 8, false),
        [vec![12, 8], vec![3, 4, 8], vec![3, 2, 2, 8]]
    );
    assert!(lists(13, 1, false).is_empty() && lists(1, 1, false).is_empty());
    assert_eq!(lists(26, 13, false), [vec![2, 13]]);
    // Sums of threes and fives are not parts of a tree of pairs, but pairs of threes are.
    assert_eq!(
        lists(24, 1, true),
        [vec![6, 4], vec![3, 4, 2], vec![3, 2, 2, 2]]
    );
    assert_eq!(lists(36, 12, true), [vec![9, 4]]);
    assert!(lists(15, 5, true).is_empty());
}

#[test]
fn two_stages_have_a_node_and_then_the_others() {
    let mesh = DeviceMesh::new(&[2048]).unwrap();
    let layout = |text| Layout::parse(&mesh, &[4096, 8192], text).unwrap();
    let (near, far) = (LinkCost::new(1e-6, 100e9), LinkCost::new(1e-5, 10e9));
    let model = CostModel::network(far).with_node(0, 8, near);
    let of = Move {
        from: layout("S(0)"),
        to: layout("S(1)"),
        scatter: Default::default(),
        owners: Owners::Nearest,
        stages: None,
    };
    let split = AxisSplit {
        axis: 0,
        digits: [256, 8][..].into(),
        last_first: true,
    };
    let stages = Stages::new(&of, split).unwrap().unwrap();
    let cost = stages.cost(&model, 4);
    assert_eq!(of.cost(&model, 4).messages, 2048);
    assert_eq!(cost.messages, 8 + 256);
    let best = Stages::best(&of, DType::F32, &model, usize::MAX).unwrap();
    assert!(best.cost(&model, 4).time <= cost.time, "{best:?}");
    assert!(best.staging() <= (best.moves.len() - 1) * of.to.max_local_numel());
    assert!(Stages::best(&of, DType::F32, &model, 0).is_none());
}

/// What changes elements, or places them elsewhere, goes straight to where it belongs.
#[test]
fn only_plain_moves_are_staged() {
    let mesh = DeviceMesh::new(&[100]).unwrap();
    let layout = |text| Layout::parse(&mesh, &[200, 300], text).unwrap();
    let (rows, columns) = (layout("S(0)"), layout("S(1)"));
    let model = CostModel::network(LinkCost::new(10e-6, 50e9));
    let count = |exchange: ExchangeBuilder| {
        let staged = exchange.staged(DType::F32, &model).build(7);
        staged.stages().count()
    };
    let onto = || ExchangeBuilder::onto("columns", &columns);
    let plain = ExchangeSource::identity(&rows);
    assert!(count(onto().source(plain.clone())) > 1);
    for maps in [
        vec![DimMap::flip(200), DimMap::identity(300)],
        vec![DimMap::identity(200), DimMap::roll(300, 1)],
    ] {
        let layout = rows.clone();
        assert_eq!(count(onto().source(ExchangeSource { layout, maps })), 1);
    }
    let filled = onto().source(plain.clone()).fill(Scalar::from(1.0));
    assert_eq!(count(filled), 1);
    let again: Vec<DimCover> = (0..2).map(|d| DimCover::of(&columns, d)).collect();
    assert_eq!(count(onto().source(plain.clone()).region(again.clone())), 1);
    assert_eq!(count(onto().source(plain.clone()).source(plain.clone())), 1);
    // Nor what is made of a plain move that was to be staged.
    let staged = || onto().source(plain.clone()).staged(DType::F32, &model);
    for (i, changed) in [
        staged().source(plain.clone()),
        staged().region(again),
        staged().fill(Scalar::from(1.0)),
        staged().fold(Monoid::Op(ReduceOp::Sum)),
        staged().embed_axes(&[0]),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(changed.build(7).stages().count(), 1, "{i}");
    }
}

/// Sums fold by one tree, of which stages of threes are no part, nor those that meet far ranks first.
#[test]
fn sums_in_stages_are_parts_of_the_tree() {
    let mesh = DeviceMesh::new(&[12]).unwrap();
    let of = |from, scatter: &[usize]| Move {
        from: Layout::parse(&mesh, &[24, 36], from).unwrap(),
        to: Layout::parse(&mesh, &[24, 36], "S(1)").unwrap(),
        scatter: scatter.into(),
        owners: Owners::Nearest,
        stages: None,
    };
    let staged = |of: &Move, digits: [usize; 2], last_first| {
        let split = AxisSplit {
            axis: 0,
            digits: digits[..].into(),
            last_first,
        };
        Stages::new(of, split).unwrap().is_some()
    };
    let (sums, plain) = (of("P(sum)", &[0]), of("S(0)", &[]));
    for (digits, last_first, fits) in [
        ([3, 4], true, true),
        ([4, 3], true, false),
        ([3, 4], false, false),
        ([4, 3], false, false),
    ] {
        assert_eq!(
            staged(&sums, digits, last_first),
            fits,
            "{digits:?} {last_first}"
        );
        assert!(staged(&plain, digits, last_first));
    }
    // Nor stages of one, or of other ranks than there are.
    assert!(!staged(&plain, [1, 12], true) && !staged(&plain, [3, 5], true));
}
