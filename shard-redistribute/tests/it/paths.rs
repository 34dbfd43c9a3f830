//! What each path costs, and which is the best one where.

use shard_redistribute::inside::{Prices, paths};
use shard_redistribute::{CostModel, LinkCost, Method};
use shard_spec::{DeviceMesh, Layout};

fn layout(mesh: &[usize], shape: &[usize], text: &str) -> Layout {
    Layout::parse(&DeviceMesh::new(mesh).unwrap(), shape, text).unwrap()
}

/// Messages are free (α = 0): only bytes count.
fn bandwidth() -> CostModel {
    CostModel::network(LinkCost::new(0.0, 1.0))
}

#[test]
fn owning_everything_makes_direct_send_bound_and_slicing_cures_it() {
    // One rank of four holds all 12 rows, and every rank wants them.
    let from = layout(&[4], &[12], "S(0)[12,0,0,0]");
    let to = layout(&[4], &[12], "R");
    let paths = paths(&from, &to).unwrap();
    let times: Vec<(Method, f64)> = paths
        .iter()
        .map(|r| (r.method, Prices::new(&bandwidth(), 1).seconds(&r.hops)))
        .collect();
    // Directly, 3 copies leave rank 0. Sliced, 9 rows leave rank 0, and then every rank sends its 3 rows three times.
    assert_eq!(times, [(Method::Direct, 36.0), (Method::SliceGather, 18.0)]);
}

#[test]
fn spreading_over_copies_relieves_the_busiest_sender() {
    // Rows are sharded over the axis of 4 and copied 6 times; the destination shards them over the axis of 6 and copies
    // them 4 times.
    let from = layout(&[4, 6], &[24], "S(0) R");
    let to = layout(&[4, 6], &[24], "R S(0)");
    let paths = paths(&from, &to).unwrap();
    let sent = |s| {
        let path = paths.iter().find(|r| r.method == s).unwrap();
        path.hops[0].cost(&bandwidth(), 1)
    };
    let (direct, spread) = (sent(Method::Direct), sent(Method::Spread));
    assert_eq!(direct.received, spread.received);
    assert!(spread.sent < direct.sent, "{spread:?} {direct:?}");
}

#[test]
fn slicing_moving_and_gathering_compose() {
    let from = layout(&[3, 2, 4], &[240, 480], "S(0) S(1) S(1)");
    let to = layout(&[3, 2, 4], &[240, 480], "R S(0;2,1) S(0)");
    let model = CostModel::network(LinkCost::new(1e-7, 50e9));
    let paths = paths(&from, &to).unwrap();
    let best = |composed: bool| {
        let of = paths
            .iter()
            .filter(|r| (r.method == Method::Composed) == composed);
        of.map(|r| Prices::new(&model, 4).seconds(&r.hops))
            .fold(f64::INFINITY, f64::min)
    };
    assert!(best(true) < best(false), "{} {}", best(true), best(false));
}

#[test]
fn axis_by_axis_needs_fewer_messages() {
    let from = layout(&[4, 4], &[64], "S(0) S(0)");
    let to = layout(&[4, 4], &[64], "R R");
    let latency = CostModel::network(LinkCost::new(1.0, f64::INFINITY));
    let paths = paths(&from, &to).unwrap();
    assert_eq!(Prices::new(&latency, 1).seconds(&paths[0].hops), 15.0);
    let best = paths
        .iter()
        .map(|r| Prices::new(&latency, 1).seconds(&r.hops))
        .fold(f64::INFINITY, f64::min);
    assert_eq!(best, 6.0);
}
