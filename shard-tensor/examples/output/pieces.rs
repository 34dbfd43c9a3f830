//! The pieces of fields, as pictures show them.

use shard_tensor::Layout;

/// Where parts begin and end, in rows and columns, which are dims 2 and 3.
pub(crate) fn boundaries(layout: &Layout) -> [Vec<usize>; 2] {
    [2, 3].map(|dim| match layout.sharding(dim) {
        Some(sharding) => sharding.partition.to_contiguous().as_slice().to_vec(),
        None => vec![0, layout.shape()[dim]],
    })
}

/// The lowest rank of each piece, row by row, at an index of dim 1 and at the first of dim 0.
pub(crate) fn ranks(layout: &Layout, at: usize) -> Vec<usize> {
    let holds = |rank, index: [usize; 4]| {
        let parts = layout.local_parts(rank);
        parts.is_some_and(|parts| {
            let mut dims = parts.iter().zip(index);
            dims.all(|(part, index)| part.indices().any(|i| i == index))
        })
    };
    let [rows, columns] = boundaries(layout);
    let begins = |cuts: &[usize]| cuts[..cuts.len() - 1].to_vec();
    let mut ranks = Vec::new();
    for row in begins(&rows) {
        for column in begins(&columns) {
            let mut all = layout.mesh().ranks().iter().copied();
            // Nobody has the beginning of a last piece that is empty.
            ranks.push(
                all.find(|&rank| holds(rank, [0, at, row, column]))
                    .unwrap_or(0),
            );
        }
    }
    ranks
}
