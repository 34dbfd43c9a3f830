//! Boxes of indices.

use shard_spec::IndexBox;

#[test]
fn scalar_boxes_hold_one_index() {
    let scalar = IndexBox::whole(&[]);
    assert_eq!(
        (scalar.numel(), scalar.is_empty(), scalar.contains(&[])),
        (1, false, true)
    );
    assert_eq!(scalar.intersect(&scalar), Some(scalar.clone()));
}

#[test]
fn disjoint_boxes_do_not_meet() {
    let (a, b) = (IndexBox::new([0, 0], [2, 2]), IndexBox::new([2, 0], [4, 2]));
    assert_eq!(a.intersect(&b), None);
    assert_eq!(a.intersect(&IndexBox::whole(&[2])), None);
    assert!(a.contains_box(&IndexBox::new([1, 1], [1, 2])));
    assert!(!a.contains_box(&IndexBox::new([1, 1], [3, 2])));
    assert!(a.contains(&[1, 1]) && !a.contains(&[1, 2]) && !a.contains(&[1]));
}
