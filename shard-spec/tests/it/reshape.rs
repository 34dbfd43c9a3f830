//! Which dims of two shapes belong together.

use shard_spec::{DeviceMesh, Layout, reshape_groups, reshape_stop};

#[test]
fn groups_are_as_small_as_can_be() {
    let dims = |from: &[usize], to: &[usize]| -> Vec<_> {
        let groups = reshape_groups(from, to);
        groups
            .into_iter()
            .map(|g| (g.from, g.to, g.outer))
            .collect()
    };
    assert_eq!(dims(&[2, 3], &[6]), [(0..2, 0..1, (0, 0))]);
    assert_eq!(
        dims(&[1, 4, 6], &[4, 1, 2, 3]),
        [(0..2, 0..1, (1, 0)), (2..3, 1..4, (2, 2))]
    );
    assert_eq!(dims(&[3, 1], &[3]), [(0..1, 0..1, (0, 0))]);
    assert_eq!(dims(&[], &[1]), []);
    assert_eq!(dims(&[0, 3], &[5, 0]), [(0..2, 0..2, (0, 0))]);
}

#[test]
fn only_groups_that_are_divided_and_share_few_boundaries_are_merged() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let stop = |shape: &[usize], text: &str, to: &[usize]| {
        let layout = Layout::parse(&mesh, shape, text).unwrap();
        reshape_stop(&layout, to).map(|stop| stop.to_vec())
    };
    let (from, to) = ([4, 1000, 7, 6, 1], [4, 7, 1000, 3, 2]);
    assert_eq!(stop(&from, "S(1) S(3)", &to), Some(vec![4, 7000, 6, 1]));
    assert_eq!(stop(&from, "S(0) S(3)", &to), None);
    assert_eq!(stop(&from, "R R", &to), None);
    assert_eq!(stop(&[0, 3], "S(1) R", &[5, 0]), None);
}
