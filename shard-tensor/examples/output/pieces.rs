//! The pieces of fields, as pictures show them.

use shard_tensor::Layout;

/// Where parts begin and end, in rows and columns.
pub(crate) fn boundaries(layout: &Layout) -> [Vec<usize>; 2] {
    [2, 3].map(|dim| match layout.sharding(dim) {
        Some(sharding) => sharding.partition.to_contiguous().as_slice().to_vec(),
        None => vec![0, layout.shape()[dim]],
    })
}
