//! Which keys of one box the queries of another box see.

use shard_spec::{Dims, Window};
use std::ops::Range;

/// Which keys of one box the queries of another box see: the product of what they see along each spatial dim.
///
/// ```
/// use shard_kernels::neighborhood::Near;
/// use shard_spec::Window;
/// let window = Window::neighborhood(8, 3, 1, false)?;
/// // Queries 0 and 1, and keys 0 to 3: both see keys 0, 1 and 2.
/// let near = Near::new(&[window], &[0..2], &[0..4]);
/// assert_eq!(near.of(1), [0, 1, 2]);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Near {
    /// Per spatial dim, and per query of the box along it: places in the box of keys.
    seen: Vec<Vec<Vec<usize>>>,
    keys: Dims,
}

impl Near {
    /// For [neighbourhoods](Window::neighborhood) and the global indices of queries and keys along each spatial dim. Keys
    /// outside their box are ignored.
    pub fn new(windows: &[Window], queries: &[Range<usize>], keys: &[Range<usize>]) -> Self {
        let along = windows.iter().zip(queries).zip(keys);
        let seen = along.map(|((window, queries), keys)| {
            let of = |i: usize| -> Vec<usize> {
                let all = window.neighbors(i).into_iter().flat_map(|near| near.keys());
                all.filter(|key| keys.contains(key))
                    .map(|key| key - keys.start)
                    .collect()
            };
            queries.clone().map(of).collect()
        });
        Self {
            seen: seen.collect(),
            keys: keys.iter().map(Range::len).collect(),
        }
    }

    /// The number of queries of the box, per batch entry and head.
    pub fn queries(&self) -> usize {
        self.seen.iter().map(Vec::len).product()
    }

    /// The number of keys of the box, per batch entry and head.
    pub fn keys(&self) -> usize {
        self.keys.iter().product()
    }

    /// The places of the keys that query number `site` of the box sees, both counted in row-major order.
    pub fn of(&self, site: usize) -> Vec<usize> {
        let (mut list, mut spare) = (Vec::new(), Vec::new());
        self.fill(site, &mut list, &mut spare);
        list
    }

    /// [`of`](Self::of) into the buffer `list`; `spare` holds intermediate results.
    pub(super) fn fill(&self, mut site: usize, list: &mut Vec<usize>, spare: &mut Vec<usize>) {
        list.clear();
        list.push(0);
        let mut weight = 1;
        // The innermost dim comes first; each further dim is put in front of what is there.
        for (seen, &extent) in self.seen.iter().zip(&self.keys).rev() {
            let own = &seen[site % seen.len()];
            site /= seen.len();
            std::mem::swap(list, spare);
            list.clear();
            for &key in own {
                list.extend(spare.iter().map(|inner| key * weight + inner));
            }
            weight *= extent;
        }
    }
}
