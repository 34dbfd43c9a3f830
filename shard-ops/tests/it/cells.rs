//! Ops that find a few numbers of every cell, and what is made of cells with them.

use crate::applied::validated;
use shard_ops::softmax::{log_softmax, softmax};
use shard_ops::statistics::var;
use shard_ops::testing::Tensor;

#[test]
fn rows_have_the_softmax_of_one_rank_under_any_layout() {
    let x = [Tensor::drawn([5, 3, 7], 3)];
    for tried in [
        validated("softmax", &x, &|e, v| softmax(e, &v[0], &[2]).map(drop)),
        validated("log_softmax", &x, &|e, v| {
            log_softmax(e, &v[0], &[1, 2]).map(drop)
        }),
    ] {
        assert!(tried.layouts > 10 && tried.slopes > 0, "{tried:?}");
    }
}

/// The derivative of the pairs (maximum, sum of exponentials) is that of what does not depend on the maximum, so it has no place here.
#[test]
fn states_are_under_any_layout_what_they_are_on_one_rank() {
    let x = [Tensor::drawn([5, 7, 2], 3)];
    for dims in [&[1][..], &[0, 2]] {
        // The first op of a variance finds moments.
        let tried = validated("var", &x, &|e, v| var(e, &v[0], dims, 1.0, false).map(drop));
        assert!(tried.slopes > 0);
    }
}
