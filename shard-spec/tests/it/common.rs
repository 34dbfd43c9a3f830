//! Generators: meshes with size-1 axes and shuffled ranks, partitions with empty parts, layouts in any axis order.

use proptest::prelude::*;
use shard_spec::{DeviceMesh, DimSharding, Layout, Partition, ReduceOp};

/// Extents that matter: none, one, fewer than ranks, primes.
pub(crate) fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(1), Just(7), Just(13), 0usize..24]
}

/// A partition of `n` into `parts`, with empty parts anywhere.
pub(crate) fn partition(n: usize, parts: usize) -> impl Strategy<Value = Partition> {
    let cuts = prop::collection::vec(0..=n, parts - 1).prop_map(move |mut cuts| {
        cuts.sort_unstable();
        let offsets = std::iter::once(0).chain(cuts).chain([n]).collect();
        Partition::from_offsets(n, offsets).unwrap()
    });
    prop_oneof![
        4 => cuts,
        1 => Just(Partition::chunk(n, parts)),
        1 => Just(Partition::balanced(n, parts)),
        1 => (0..parts).prop_map(move |owner| {
            let mut sizes = vec![0; parts];
            sizes[owner] = n;
            Partition::from_sizes(&sizes).unwrap()
        }),
    ]
}

/// A partition of `n` into `parts`, of one interval each or of several.
pub(crate) fn division(n: usize, parts: usize) -> impl Strategy<Value = Partition> {
    let tiles = || prop::collection::vec((0..parts, 0usize..5), 0..9);
    let scattered = tiles().prop_map(move |mut tiles| {
        let mut left = n;
        for (_, size) in &mut tiles {
            *size = (*size).min(left);
            left -= *size;
        }
        tiles.push((parts - 1, left));
        Partition::from_segments(n, parts, &tiles).unwrap()
    });
    let repeated = tiles().prop_map(move |tiles| {
        Partition::from_repeated(n, parts, &tiles).unwrap_or_else(|_| Partition::chunk(n, parts))
    });
    prop_oneof![
        4 => partition(n, parts),
        1 => Just(Partition::zigzag(n, parts)),
        1 => (1usize..5).prop_map(move |block| Partition::block_cyclic(n, parts, block)),
        1 => scattered,
        1 => repeated,
    ]
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
    (mesh(), prop::collection::vec(extent(), 0..4)).prop_flat_map(|(mesh, shape)| {
        let roles = prop::collection::vec(0..shape.len() + 2, mesh.ndim());
        let order = Just((0..mesh.ndim()).collect::<Vec<_>>()).prop_shuffle();
        let op = prop::sample::select(ReduceOp::ALL.to_vec());
        (roles, order, op).prop_flat_map(move |(roles, order, op)| {
            let (mesh, shape) = (mesh.clone(), shape.clone());
            let dims: Vec<_> = shape
                .iter()
                .enumerate()
                .map(|(dim, &n)| {
                    let axes: Vec<usize> =
                        order.iter().copied().filter(|&a| roles[a] == dim).collect();
                    let parts = axes.iter().map(|&a| mesh.axis_size(a)).product();
                    division(n, parts).prop_map(move |partition| {
                        let axes = axes.iter().copied().collect();
                        Some(DimSharding { axes, partition })
                    })
                })
                .collect();
            let partial: Vec<usize> = (0..mesh.ndim())
                .filter(|&a| roles[a] == shape.len())
                .collect();
            dims.prop_map(move |dims| {
                let partial = (!partial.is_empty()).then_some((op, partial.as_slice()));
                Layout::from_dims(&mesh, &shape, dims, partial).unwrap()
            })
        })
    })
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
