//! How layouts are written in a trace.

use shard_redistribute::inside::placements;
use shard_spec::{DeviceMesh, Layout};

#[test]
fn levels_are_shown_where_axes_nest() {
    let mesh = DeviceMesh::new(&[2, 3, 2]).unwrap();
    for (layout, text) in [
        ("S(0) S(1) R", "S(0) S(1) R"),
        ("S(0) S(0) R", "S(0)[0]S(0)[1] R"),
        ("S(1;2,0) R S(1)", "S(1)[1] R S(1)[0]"),
        ("S(0)[1,3] P(sum) R", "S(0) P(sum) R"),
        ("S(0) S(0) S(0)", "S(0)[0]S(0)[1]S(0)[2]"),
    ] {
        let layout = Layout::parse(&mesh, &[4, 6], layout).unwrap();
        assert_eq!(placements(&layout), text);
    }
}
