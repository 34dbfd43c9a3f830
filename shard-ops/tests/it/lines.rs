//! Calls whose operands are all runs of elements side by side.

use shard_ops::OperandBox;
use shard_ops::inside::line_of;
use shard_spec::{Dims, Strides};
use smallvec::SmallVec;

fn operand(shape: &[usize], strides: &[isize]) -> OperandBox {
    OperandBox {
        shape: Dims::from_slice(shape),
        strides: Strides::from_slice(strides),
        offset: 3,
        start: Dims::from_slice(&[0; 2]),
        held: SmallVec::new(),
        global: Dims::from_slice(shape),
    }
}

/// The line of a call that reads and writes these.
fn line(input: OperandBox, output: OperandBox) -> Option<usize> {
    line_of(&[operand(&[2, 6], &[6, 1]), input], &[output])
}

#[test]
fn only_boxes_that_lie_alike_are_lines() {
    let whole = || operand(&[2, 6], &[6, 1]);
    assert_eq!(line(whole(), whole()), Some(12));
    assert_eq!(line(whole(), operand(&[2, 6], &[7, 1])), None);
    for (shape, strides) in [
        (&[2, 6][..], &[7, 1][..]),
        (&[2, 6], &[0, 1]),
        (&[2, 6], &[1, 2]),
        (&[1, 6], &[6, 1]),
        (&[2, 1], &[1, 1]),
        (&[6, 2], &[2, 1]),
        (&[12], &[1]),
    ] {
        let other = operand(shape, strides);
        assert_eq!(line(other, whole()), None, "{shape:?} by {strides:?}");
    }
}
