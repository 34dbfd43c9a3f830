//! A tree of boxes over points: up to eight children a node, whose distances from a query are computed together.
//!
//! What the tree passes over is never in doubt, rounding or not: the distance of a box is computed as that of a point is, from
//! terms that are not larger, in the same order, and rounding is monotone. So a box that is farther than a bound has no point
//! that is not. A box at the bound is looked into where one of its points has a lower index than the last that counts.

use super::scan::{distances, near};
use super::search::{Rows, counts};
use crate::prefetch::prefetch;
use crate::{Real, View};
use core::cmp::Ordering;

/// Up to this many dims, not counting those in which all points are equal, a tree is tried.
pub const MAX_TREE_DIM: usize = 6;

/// Points of a leaf. With 8 or 32 a search of 20,000 points took an eighth longer.
pub(super) const LEAF: usize = 16;

/// Children of a node.
const CHILDREN: usize = 8;

/// What waits on a walk at most: of ten levels, which 2^32 points have, all children but one, and of the last that one too.
const WAITING: usize = 10 * (CHILDREN - 1) + 1;

/// A tree over one block of points.
///
/// All nodes but the last of each level have all their children, so a node's children are known by its number: those of node
/// 3 are 24 to 31 of the level below.
pub(super) struct Tree<T> {
    dim: usize,
    /// From the parents of the leaves up to the root.
    levels: Vec<Level<T>>,
    /// Per leaf `[dim][LEAF]`; the last is filled up with zeros.
    points: Vec<T>,
    /// Global indexes in the order of the leaves.
    index: Vec<i64>,
}

/// The nodes of one level. Children that are not there are boxes without a point.
struct Level<T> {
    /// Per node and dim, the smallest and the largest coordinates of its children.
    boxes: Vec<[[T; CHILDREN]; 2]>,
    /// Per node, the lowest global indexes of its children.
    lowest: Vec<[i64; CHILDREN]>,
}

/// A node or a leaf that a walk has yet to look into.
#[derive(Clone, Copy, Debug)]
struct Waiting<T> {
    /// Not more than the squared distance of any of its points.
    apart: T,
    /// 0 for a leaf.
    level: u32,
    number: u32,
}

/// The smallest and the largest coordinates of nothing.
fn nothing<T: Real>() -> [T; 2] {
    [T::infinity(), T::neg_infinity()]
}

/// The smallest and the largest of coordinates. NaN is passed over: a point at NaN is at distance NaN, which does not count
/// under a bound that passes a box over.
#[inline(always)]
fn extent<T: Real>(coordinates: impl Iterator<Item = T>) -> [T; 2] {
    coordinates.fold(nothing(), |[low, high], x| {
        let low = if x < low { x } else { low };
        [low, if x > high { x } else { high }]
    })
}

impl<T: Real> Tree<T> {
    /// A tree over points `[points, dim]` with these global indexes. `None` where no tree would help: if the points differ in
    /// no dim, or in more than [`MAX_TREE_DIM`]; and of more points than numbers of 32 bits count.
    pub(super) fn new(points: &View<'_, T>, index: &[i64]) -> Option<Self> {
        let (count, dim) = (points.shape()[0], points.shape()[1]);
        let rows = points.to_vec();
        let of_dim = |d: usize| extent(rows.chunks_exact(dim).map(|row| row[d]));
        let mut cell: Vec<[T; 2]> = (0..dim).map(of_dim).collect();
        let differ = cell.iter().filter(|[low, high]| low < high).count();
        if !(1..=MAX_TREE_DIM).contains(&differ) {
            return None;
        }
        let mut order: Vec<u32> = (0..u32::try_from(count).ok()?).collect();
        let leaves = count.div_ceil(LEAF);
        let nodes = |below: &usize| (*below > 1).then(|| below.div_ceil(CHILDREN));
        let nodes: Vec<usize> =
            core::iter::successors(Some(leaves.div_ceil(CHILDREN)), nodes).collect();
        Cutter {
            rows: &rows,
            dim,
            keys: Vec::with_capacity(count),
        }
        .cut(
            &mut order,
            LEAF * CHILDREN.pow(nodes.len() as u32 - 1),
            &mut cell,
        );
        let mut tree = Self {
            dim,
            levels: Vec::new(),
            points: vec![T::zero(); leaves * LEAF * dim],
            index: order.iter().map(|&i| index[i as usize]).collect(),
        };
        for (place, &i) in order.iter().enumerate() {
            let to = place / LEAF * LEAF * dim + place % LEAF;
            let row = &rows[i as usize * dim..][..dim];
            for (d, &x) in row.iter().enumerate() {
                tree.points[to + d * LEAF] = x;
            }
        }
        tree.put_levels(&nodes);
        Some(tree)
    }

    /// Adds levels of these numbers of nodes, from the leaves up.
    fn put_levels(&mut self, nodes: &[usize]) {
        let dim = self.dim;
        // Of all nodes below: their boxes, dim by dim, and their lowest indexes.
        let mut boxes: Vec<[T; 2]> = Vec::new();
        let mut lowest: Vec<i64> = Vec::new();
        for (leaf, index) in self.index.chunks(LEAF).enumerate() {
            let columns = self.points[leaf * LEAF * dim..].chunks_exact(LEAF);
            let extent = |column: &[T]| extent(column[..index.len()].iter().copied());
            boxes.extend(columns.take(dim).map(extent));
            lowest.extend(index.iter().min());
        }
        for &nodes in nodes {
            let mut level = Level {
                boxes: vec![nothing().map(|x| [x; CHILDREN]); nodes * dim],
                lowest: vec![[i64::MAX; CHILDREN]; nodes],
            };
            for (child, corners) in boxes.chunks_exact(dim).enumerate() {
                let (node, place) = (child / CHILDREN, child % CHILDREN);
                level.lowest[node][place] = lowest[child];
                let sides = level.boxes[node * dim..].iter_mut();
                for ([lows, highs], &[low, high]) in sides.zip(corners) {
                    (lows[place], highs[place]) = (low, high);
                }
            }
            let whole = |[lows, highs]: &[[T; CHILDREN]; 2]| {
                let [[low, _], [_, high]] = [lows, highs].map(|x| extent(x.iter().copied()));
                [low, high]
            };
            boxes = level.boxes.iter().map(whole).collect();
            lowest = level
                .lowest
                .iter()
                .flat_map(|of| of.iter().min().copied())
                .collect();
            self.levels.push(level);
        }
    }

    /// Offers the points that may count to query `i`, roughly the nearest first.
    #[inline(always)]
    pub(super) fn visit(&self, query: &[T], i: usize, rows: &mut dyn Rows<T>) {
        let mut last = rows.last(i);
        let root = Waiting {
            apart: T::zero(),
            level: self.levels.len() as u32,
            number: 0,
        };
        let mut waiting = [root; WAITING];
        let mut held = 1;
        while held > 0 {
            held -= 1;
            let next = waiting[held];
            if !self.counts(&next, last) {
                continue;
            }
            let number = next.number as usize;
            let Some(below) = next.level.checked_sub(1) else {
                let points = &self.points[number * LEAF * self.dim..][..LEAF * self.dim];
                if let Some(distances) = distances::<T, LEAF>(query, points, last.0) {
                    let first = number * LEAF;
                    let index = &self.index[first..self.index.len().min(first + LEAF)];
                    last = rows.offer(i, &distances, index);
                }
                continue;
            };
            let first = held;
            let level = &self.levels[below as usize];
            let apart = level.apart(number, query);
            let children = self.children(below as usize, number);
            let mut near = near(&apart, last.0) & ((1 << children) - 1);
            while near != 0 {
                let child = near.trailing_zeros() as usize % CHILDREN;
                near &= near - 1;
                let child = Waiting {
                    apart: apart[child],
                    level: below,
                    number: (number * CHILDREN + child) as u32,
                };
                if self.counts(&child, last) {
                    if below == 0 {
                        let size = LEAF * self.dim;
                        prefetch(&self.points, child.number as usize * size, size);
                    }
                    // The nearest is on top, of equally near ones the first: it tends to have the lowest index.
                    let mut at = held;
                    while at > first && waiting[at - 1].apart <= child.apart {
                        waiting[at] = waiting[at - 1];
                        at -= 1;
                    }
                    waiting[at] = child;
                    held += 1;
                }
            }
        }
    }

    /// Whether a point of a child may count beside the last that does.
    #[inline(always)]
    fn counts(&self, child: &Waiting<T>, (bound, last): (T, i64)) -> bool {
        if child.apart != bound {
            return counts(child.apart, bound);
        }
        let (level, number) = (child.level as usize, child.number as usize);
        // The root is no node's child.
        let Some(level) = self.levels.get(level) else {
            return true;
        };
        level.lowest[number / CHILDREN][number % CHILDREN] <= last
    }

    /// How many children a node of this level has.
    #[inline(always)]
    fn children(&self, level: usize, node: usize) -> usize {
        let below = match level.checked_sub(1) {
            None => self.index.len().div_ceil(LEAF),
            Some(below) => self.levels[below].lowest.len(),
        };
        CHILDREN.min(below - node * CHILDREN)
    }
}

impl<T: Real> Level<T> {
    /// Per child of a node a squared distance that none of its points is nearer than.
    #[inline(always)]
    fn apart(&self, node: usize, query: &[T]) -> [T; CHILDREN] {
        let boxes = &self.boxes[node * query.len()..][..query.len()];
        let mut sums = [T::zero(); CHILDREN];
        for ([lows, highs], &q) in boxes.iter().zip(query) {
            for ((sum, &low), &high) in sums.iter_mut().zip(lows).zip(highs) {
                // Comparisons, so that NaN counts as no gap.
                let (below, above) = (low - q, q - high);
                let gap = if below > T::zero() { below } else { T::zero() };
                let gap = if above > gap { above } else { gap };
                *sum += gap * gap;
            }
        }
        sums
    }
}

/// Brings points into the order of leaves.
struct Cutter<'a, T> {
    /// `[points, dim]`
    rows: &'a [T],
    dim: usize,
    /// Coordinates of points in one dim, with their numbers.
    keys: Vec<(T, u32)>,
}

impl<T: Real> Cutter<'_, T> {
    /// Orders the points of a cell, so that each `size` of them, a node's, lie near each other, and so do those of each node
    /// below: the cell is halved along its longest side until a node is left.
    fn cut(&mut self, order: &mut [u32], size: usize, cell: &mut [[T; 2]]) {
        let nodes = order.len().div_ceil(size);
        if nodes <= 1 {
            if size > LEAF {
                self.cut(order, size / CHILDREN, cell);
            }
            return;
        }
        let side = |[low, high]: [T; 2]| high - low;
        let longest = (0..cell.len()).fold(0, |longest, d| {
            if side(cell[d]) > side(cell[longest]) {
                d
            } else {
                longest
            }
        });
        let half = nodes.div_ceil(2) * size;
        self.keys.clear();
        let key = |&i: &u32| match self.rows[i as usize * self.dim + longest] {
            x if x.is_nan() => (T::infinity(), i),
            x => (x, i),
        };
        self.keys.extend(order.iter().map(key));
        let order_of = |(a, _): &(T, u32), (b, _): &(T, u32)| a.partial_cmp(b);
        self.keys
            .select_nth_unstable_by(half, |a, b| order_of(a, b).unwrap_or(Ordering::Equal));
        for (to, &(_, i)) in order.iter_mut().zip(&self.keys) {
            *to = i;
        }
        let at = self.keys[half].0;
        let (left, right) = order.split_at_mut(half);
        for (part, corner) in [(left, 1), (right, 0)] {
            let whole = core::mem::replace(&mut cell[longest][corner], at);
            self.cut(part, size, cell);
            cell[longest][corner] = whole;
        }
    }
}
