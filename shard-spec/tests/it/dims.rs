//! Extents, strides and their products.

use shard_spec::{SpecError, checked_numel, checked_row_major_strides, numel, row_major_strides};

#[test]
fn empty_extents_do_not_zero_the_strides() {
    assert_eq!(row_major_strides(&[3, 0, 4]).as_slice(), &[4, 4, 1]);
    assert!(row_major_strides(&[]).is_empty());
    assert_eq!(numel(&[3, 0, 4]), 0);
}

#[test]
fn oversized_shapes_are_refused_not_wrapped() {
    assert_eq!(numel(&[usize::MAX, 2]), usize::MAX);
    assert_eq!(numel(&[usize::MAX, 2, 0]), 0);
    let shape = [usize::MAX, 2, 0];
    assert_eq!(
        checked_numel(&shape),
        Err(SpecError::Overflow {
            op: "shape",
            shape: shape.to_vec()
        })
    );
    assert!(checked_row_major_strides(&[1 << 40, 1 << 40]).is_err());
    assert_eq!(checked_numel(&[2, 3]), Ok(6));
}
