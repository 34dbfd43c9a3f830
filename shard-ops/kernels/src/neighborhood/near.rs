//! Which keys of one box the queries of another box see.

use shard_spec::{Dims, Window};
use smallvec::SmallVec;
use std::ops::Range;

/// What one query has along one dim, which are few: without memory of its own as a rule.
pub(super) type Few<T> = SmallVec<[T; 8]>;

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
    pub(super) seen: Vec<Vec<Few<usize>>>,
    keys: Dims,
    /// The dim whose queries are computed side by side: the longest of the whole grid, so that it is the same for all boxes.
    pub(super) along: usize,
    /// The windows along it.
    pub(super) window: Along,
}

/// Windows along one dim, and where the boxes of queries and of keys begin along it. All indices are those of the whole grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Along {
    pub(super) queries: usize,
    pub(super) keys: usize,
    extent: usize,
    pub(super) kernel: usize,
    dilation: usize,
    /// How many keys lie before a query where the ends allow it.
    before: usize,
}

impl Along {
    /// Of a grid without dims, which is one site.
    const SITE: Self = Self {
        queries: 0,
        keys: 0,
        extent: 1,
        kernel: 1,
        dilation: 1,
        before: 0,
    };

    fn new(window: &Window, queries: usize, keys: usize) -> Self {
        match *window {
            Window::Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
                ..
            } => Self {
                queries,
                keys,
                extent,
                kernel,
                dilation,
                before: if causal { kernel - 1 } else { kernel / 2 },
            },
            _ => Self::SITE,
        }
    }

    /// How far it is from a query to the place of its key in a slot: as far as where no end is near. Places may lie outside of the
    /// grid.
    pub(super) fn to_place(self, slot: usize) -> isize {
        (slot as isize - self.before as isize) * self.dilation as isize
    }

    /// The key at a place. Windows near an end are shifted inwards, so a place beyond it is that of the key at the other end of the
    /// window.
    pub(super) fn key_at(self, place: isize) -> isize {
        let span = (self.kernel * self.dilation) as isize;
        if place < 0 {
            place + span
        } else if place >= self.extent as isize {
            place - span
        } else {
            place
        }
    }
}

impl Near {
    /// For [neighbourhoods](Window::neighborhood) and the global indices of queries and keys along each spatial dim. Keys
    /// outside their box are ignored.
    pub fn new(windows: &[Window], queries: &[Range<usize>], keys: &[Range<usize>]) -> Self {
        let along = windows.iter().zip(queries).zip(keys);
        let seen = along.map(|((window, queries), keys)| {
            let of = |i: usize| -> Few<usize> {
                let all = window.neighbors(i).into_iter().flat_map(|near| near.keys());
                all.filter(|key| keys.contains(key))
                    .map(|key| key - keys.start)
                    .collect()
            };
            queries.clone().map(of).collect()
        });
        let extent = |window: &Window| match window {
            Window::Neighborhood { extent, .. } => *extent,
            _ => 0,
        };
        let mut near = Self {
            seen: seen.collect(),
            keys: keys.iter().map(Range::len).collect(),
            along: 0,
            window: Along::SITE,
        };
        if let Some(d) = (0..windows.len()).max_by_key(|&d| extent(&windows[d])) {
            near.along = d;
            near.window = Along::new(&windows[d], queries[d].start, keys[d].start);
        } else {
            // A grid without dims is one site.
            (near.seen, near.keys) = (vec![vec![Few::from_slice(&[0])]], Dims::from_slice(&[1]));
        }
        near
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
        self.product(site, None, &mut list, &mut spare);
        list
    }

    /// The lines of queries along the chosen dim.
    pub(super) fn lines(&self) -> usize {
        let others = (0..self.seen.len()).filter(|d| *d != self.along);
        others.map(|d| self.seen[d].len()).product()
    }

    /// The most lines of keys that a line of queries sees.
    pub(super) fn places(&self) -> usize {
        let others = (0..self.seen.len()).filter(|d| *d != self.along);
        let most = |d: usize| self.seen[d].iter().map(|seen| seen.len()).max();
        others.map(|d| most(d).unwrap_or(0)).product()
    }

    /// From one query of a line to the next, and from one key to the next.
    pub(super) fn steps(&self) -> [usize; 2] {
        let inner = self.along + 1..self.seen.len();
        let queries = inner.clone().map(|d| self.seen[d].len()).product();
        [queries, inner.map(|d| self.keys[d]).product()]
    }

    /// The first query of a line, and in `list` the first keys of the lines of keys that its queries see.
    pub(super) fn line(
        &self,
        number: usize,
        list: &mut Vec<usize>,
        spare: &mut Vec<usize>,
    ) -> usize {
        self.product(number, Some(self.along), list, spare)
    }

    /// What is seen from number `number` along all dims but `without`: the place of that query is returned, those of keys are
    /// written to `list` in ascending order; `spare` holds intermediate results.
    fn product(
        &self,
        mut number: usize,
        without: Option<usize>,
        list: &mut Vec<usize>,
        spare: &mut Vec<usize>,
    ) -> usize {
        list.clear();
        list.push(0);
        let (mut query, mut weights) = (0, [1, 1]);
        // The innermost dim comes first; each further dim is put in front of what is there.
        for (d, (seen, &extent)) in self.seen.iter().zip(&self.keys).enumerate().rev() {
            if Some(d) != without {
                let at = number % seen.len();
                number /= seen.len();
                query += at * weights[0];
                std::mem::swap(list, spare);
                list.clear();
                for &key in &seen[at] {
                    list.extend(spare.iter().map(|inner| key * weights[1] + inner));
                }
            }
            weights = [weights[0] * seen.len(), weights[1] * extent];
        }
        query
    }
}
