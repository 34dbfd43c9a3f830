//! Which dims correspond under a reshape, and how boundaries get from one shape to the other.

use std::ops::Range;

use crate::dims::{Dims, numel};
use crate::layout::Layout;
use crate::progression::gcd;

/// Consecutive dims of two shapes that hold the same elements: as few as possible, with equal products.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReshapeGroup {
    /// The dims of the first shape.
    pub from: Range<usize>,
    /// The dims of the second shape.
    pub to: Range<usize>,
    /// The first dim on each side that is not of extent 1, or else the first dim. Its boundaries are boundaries in row-major
    /// order too.
    pub outer: (usize, usize),
    /// Elements inside one index of each outer dim.
    pub inside: (usize, usize),
    /// The least common multiple of `inside`: a boundary at a multiple of it is one in both shapes. 0 where there are no
    /// elements.
    pub unit: usize,
}

impl ReshapeGroup {
    /// Elements of the group.
    pub fn numel(&self, from: &[usize]) -> usize {
        numel(&from[self.from.clone()])
    }
}

/// The groups of dims that correspond in two shapes of equal size, in order. Dims that are left over at the end have extent
/// 1 and are in no group.
///
/// ```
/// use shard_spec::reshape_groups;
/// // 6 rows of 4 become 2 times 3; the 5 stays.
/// let groups = reshape_groups(&[6, 4, 5], &[2, 3, 4, 5]);
/// let dims: Vec<_> = groups.iter().map(|g| (g.from.clone(), g.to.clone(), g.unit)).collect();
/// assert_eq!(dims, [(0..1, 0..2, 3), (1..2, 2..3, 1), (2..3, 3..4, 1)]);
/// ```
///
/// # Panics
/// Where the sizes differ.
pub fn reshape_groups(from: &[usize], to: &[usize]) -> Vec<ReshapeGroup> {
    assert!(
        numel(from) == numel(to),
        "{from:?} and {to:?} have different numbers of elements"
    );
    let group = |a: Range<usize>, b: Range<usize>| {
        let outer = (outermost(from, &a)?, outermost(to, &b)?);
        let inside = (
            numel(&from[outer.0 + 1..a.end]),
            numel(&to[outer.1 + 1..b.end]),
        );
        Some(ReshapeGroup {
            from: a,
            to: b,
            outer,
            inside,
            unit: lcm(inside.0, inside.1),
        })
    };
    if numel(from) == 0 {
        return group(0..from.len(), 0..to.len()).into_iter().collect();
    }
    let mut groups = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < from.len() && j < to.len() {
        let start = (i, j);
        let (mut left, mut right) = (from[i], to[j]);
        (i, j) = (i + 1, j + 1);
        while left != right {
            if left < right {
                left *= from[i];
                i += 1;
            } else {
                right *= to[j];
                j += 1;
            }
        }
        groups.extend(group(start.0..i, start.1..j));
    }
    groups
}

/// The shape to stop at on the way to another one, so that shards stay even; `None` where they stay even without a stop.
///
/// Without a stop, boundaries move to multiples of each group's [`unit`](ReshapeGroup::unit), of which there may be only one:
/// from `[1000, 7]` sharded by rows to `[7, 1000]`, one rank would get everything. A stop merges the dims of such a group into
/// one, so that boundaries first stay in place and then move to the nearest ones of the second shape. Boundaries that fit both
/// shapes do not move.
///
/// ```
/// use shard_spec::{DeviceMesh, Layout, reshape_stop};
/// let mesh = DeviceMesh::new(&[4])?;
/// let rows = Layout::parse(&mesh, &[1000, 7], "S(0)")?;
/// assert_eq!(reshape_stop(&rows, &[7, 1000]).as_deref(), Some(&[7000][..]));
/// assert_eq!(reshape_stop(&rows, &[10, 700]), None);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
///
/// # Panics
/// Where the sizes differ.
pub fn reshape_stop(from: &Layout, to: &[usize]) -> Option<Dims> {
    let shape = from.shape();
    let groups = reshape_groups(shape, to);
    let uneven = |group: &ReshapeGroup| {
        let divided = group.from.clone().any(|d| from.parts(d) > 1);
        divided && group.unit > group.inside.0.max(group.inside.1)
    };
    if !groups.iter().any(uneven) {
        return None;
    }
    let mut stop = Dims::new();
    for group in &groups {
        if uneven(group) {
            stop.push(group.numel(shape));
        } else {
            stop.extend_from_slice(&shape[group.from.clone()]);
        }
    }
    let rest = groups.last().map_or(0, |group| group.from.end);
    stop.extend_from_slice(&shape[rest..]);
    Some(stop)
}

/// The first dim of a group that is not of extent 1: sharding one of extent 1 would give one rank everything.
fn outermost(shape: &[usize], group: &Range<usize>) -> Option<usize> {
    let mut dims = group.clone();
    dims.find(|&d| shape[d] != 1).or(group.clone().next())
}

fn lcm(a: usize, b: usize) -> usize {
    if a == 0 || b == 0 {
        0
    } else {
        // Where there are no elements, the extents of the other dims may be any.
        (a / gcd(a, b)).saturating_mul(b)
    }
}
