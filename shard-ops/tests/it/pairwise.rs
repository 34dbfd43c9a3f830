//! Distances of all pairs of points.

use crate::applied::{applied, validated};
use shard_ops::Saved;
use shard_ops::pairwise::cdist;
use shard_ops::testing::Tensor;

#[test]
fn distances_have_one_ranks_values_and_slopes_under_all_layouts() {
    let operands = [Tensor::drawn([2, 5, 4], 1), Tensor::drawn([7, 4], 2)];
    for p in [1.0, 2.0, 3.0, 1.5] {
        let tried = validated("cdist", &operands, &|e, v| {
            cdist(e, &v[0], &v[1], p).map(drop)
        });
        assert!(tried.slopes > 0, "{p}");
    }
}

#[test]
fn sums_of_slopes_take_partial_cotangents() {
    let shapes: [&[usize]; 3] = [&[5, 3], &[4, 3], &[5, 4]];
    let operands: Vec<Tensor> = (shapes.iter().zip(1..))
        .map(|(shape, seed)| Tensor::drawn(*shape, seed))
        .collect();
    let powers = applied("cdist", &operands[..2], &|e, v| {
        cdist(e, &v[0], &v[1], 2.0).map(drop)
    });
    validated("cdist_grad", &operands, &|e, v| {
        let saved = Saved {
            inputs: &v[..2],
            outputs: &[],
            needs: &[true, false],
            terms: None,
        };
        powers.op.vjp(e, &saved, &[Some(v[2].clone())]).map(drop)
    });
}
