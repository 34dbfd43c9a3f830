//! Meshes of many axes: groups are made for axes of several ranks, and the others cost nothing.

use crate::common::{expected, on_ranks, spread};
use shard_spec::{Layout, Placement};

/// One group per subset of all axes would be 2^70.
#[test]
fn axes_of_one_rank_make_no_groups() {
    for axes in [22, 70] {
        let sizes = on_ranks(&vec![1; axes], |cx| {
            let along: Vec<usize> = (0..axes).collect();
            [&along[..], &along[..1], &[]].map(|axes| cx.along(axes).unwrap().size())
        });
        assert_eq!(sizes, [[1; 3]]);
    }
}

#[test]
fn groups_are_those_of_the_axes_of_several_ranks() {
    let sizes = on_ranks(&[1, 2, 1, 3], |cx| {
        let all = cx.all().unwrap().size();
        let own = cx.own().along(&[0]).unwrap().size();
        let along = [
            &[][..],
            &[0],
            &[1],
            &[2, 1],
            &[3, 0],
            &[3, 1],
            &[0, 1, 2, 3],
        ];
        let along = along.map(|axes| cx.along(axes).unwrap().size());
        assert!(cx.along(&[4]).is_none());
        (all, own, along)
    });
    assert_eq!(sizes, [(6, 1, [1, 1, 2, 2, 3, 6, 6]); 6]);
}

/// Axes whose numbers are beyond the bits of a word.
#[test]
fn arrays_move_along_axes_of_any_number() {
    let mut shape = vec![1; 66];
    (shape[64], shape[65]) = (2, 2);
    on_ranks(&shape, |cx| {
        let layout = |a: usize, b: usize| {
            let mut placements = vec![Placement::Replicate; 66];
            (placements[64], placements[65]) = (Placement::Shard(a), Placement::Shard(b));
            Layout::new(cx.mesh(), &[6, 5], &placements).unwrap()
        };
        let model =
            shard_redistribute::CostModel::network(shard_redistribute::LinkCost::new(1.0, 1.0));
        cx.planner().set_model(Some(model));
        let (from, to) = (layout(0, 1), layout(1, 0));
        let moved = spread(cx, &from).redistribute(&to).unwrap();
        assert_eq!(moved.to_vec::<f64>().unwrap(), expected(cx, &to));
    });
}
