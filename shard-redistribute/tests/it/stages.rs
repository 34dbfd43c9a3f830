//! How an axis is taken apart into stages, and what those cost.

use shard_comm::DType;
use shard_redistribute::inside::{Move, Split, Stages, digits};
use shard_redistribute::{CostModel, LinkCost, Owners};
use shard_spec::{DeviceMesh, Layout};

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
    let split = Split {
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
