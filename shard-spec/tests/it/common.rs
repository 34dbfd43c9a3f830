//! Generators: extents that matter, meshes with size-1 axes and shuffled ranks, layouts on these.

use proptest::prelude::*;
use shard_spec::strategies::layout_with;
pub(crate) use shard_spec::strategies::{division, partition};
use shard_spec::{DeviceMesh, Layout, Partition, ReduceOp};

/// Extents that matter: none, one, fewer than ranks, primes.
pub(crate) fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(1), Just(7), Just(13), 0usize..24]
}

/// A partition of any extent into up to eight parts.
pub(crate) fn any_partition() -> impl Strategy<Value = Partition> {
    (extent(), 1usize..9).prop_flat_map(|(n, parts)| partition(n, parts))
}

/// A mesh of up to three axes; world ranks are shuffled and leave gaps.
pub(crate) fn mesh() -> impl Strategy<Value = DeviceMesh> {
    prop::collection::vec(1usize..4, 0..4).prop_flat_map(|shape| {
        let size: usize = shape.iter().product();
        let ranks = prop_oneof![
            Just((0..size).collect::<Vec<_>>()),
            Just((0..size).map(|r| 2 * r + 1).collect::<Vec<_>>()).prop_shuffle(),
        ];
        ranks.prop_map(move |ranks| DeviceMesh::with_ranks(&shape, ranks).unwrap())
    })
}

/// A layout of up to three dims: every axis shards a dim, replicates or is partial, dims take their axes in any order.
pub(crate) fn layout() -> impl Strategy<Value = Layout> {
    (mesh(), prop::collection::vec(extent(), 0..4))
        .prop_flat_map(|(mesh, shape)| layout_with(&mesh, &shape, &ReduceOp::ALL))
}

/// Every multi-index of a shape, row-major.
pub(crate) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![Vec::new()], |prefixes, &n| {
        let extend = |prefix: Vec<usize>| {
            (0..n).map(move |i| {
                let mut index = prefix.clone();
                index.push(i);
                index
            })
        };
        prefixes.into_iter().flat_map(extend).collect()
    })
}
