//! A tree of boxes over points: halves along the widest dim, down to leaves of one vector loop.

use super::scan::{distances, offer};
use super::search::{Row, counts};
use crate::kernels::{Real, View};

/// Up to this many dims a tree is tried.
pub const MAX_TREE_DIM: usize = 6;

/// Points of a leaf.
const LEAF: usize = 32;

/// Levels a stack can hold: more than halving any number of points takes.
const LEVELS: usize = 64;

/// A tree over one block of points.
#[derive(Debug)]
pub(super) struct Tree<T> {
    dim: usize,
    /// In preorder: a node's left child follows it.
    nodes: Vec<Node>,
    /// Per node the smallest, then the largest coordinates of its points.
    boxes: Vec<T>,
    /// Per leaf `[dim][LEAF]`; the last is filled up with zeros.
    points: Vec<T>,
    /// Global indexes in the order of the leaves.
    index: Vec<i64>,
}

#[derive(Clone, Copy, Debug)]
enum Node {
    /// The number of the right child.
    Inner(u32),
    /// The number of the leaf.
    Leaf(u32),
}

impl<T: Real> Tree<T> {
    /// A tree over points `[points, dim]`, `dim` at least 1, with these global indexes.
    pub(super) fn new(points: &View<'_, T>, index: &[i64]) -> Self {
        let (count, dim) = (points.shape()[0], points.shape()[1]);
        let rows = points.to_vec();
        let mut order: Vec<usize> = (0..count).collect();
        let leaves = count.div_ceil(LEAF);
        let mut tree = Self {
            dim,
            nodes: Vec::with_capacity(2 * leaves),
            boxes: Vec::with_capacity(4 * leaves * dim),
            points: vec![T::zero(); leaves * LEAF * dim],
            index: Vec::new(),
        };
        tree.grow(&rows, &mut order, 0);
        for (place, &i) in order.iter().enumerate() {
            let to = place / LEAF * LEAF * dim + place % LEAF;
            for (d, &x) in rows[i * dim..(i + 1) * dim].iter().enumerate() {
                tree.points[to + d * LEAF] = x;
            }
        }
        tree.index = order.iter().map(|&i| index[i]).collect();
        tree
    }

    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Adds the node of the points in `order`, whose first leaf is `leaf`; orders them.
    fn grow(&mut self, rows: &[T], order: &mut [usize], leaf: usize) {
        let dim = self.dim;
        let node = self.nodes.len();
        let at = self.boxes.len();
        self.boxes.extend(core::iter::repeat_n(T::infinity(), dim));
        self.boxes
            .extend(core::iter::repeat_n(T::neg_infinity(), dim));
        let (low, high) = self.boxes[at..].split_at_mut(dim);
        for &i in &*order {
            // NaN changes no box: a point at NaN is at distance NaN, which no bound that passes a box over admits.
            for (d, &x) in rows[i * dim..(i + 1) * dim].iter().enumerate() {
                low[d] = if x < low[d] { x } else { low[d] };
                high[d] = if x > high[d] { x } else { high[d] };
            }
        }
        if order.len() <= LEAF {
            self.nodes.push(Node::Leaf(leaf as u32));
            return;
        }
        let mut widest = 0;
        for d in 1..dim {
            if high[d] - low[d] > high[widest] - low[widest] {
                widest = d;
            }
        }
        let half = order.len().div_ceil(LEAF) / 2;
        let key = |i: usize| rows[i * dim + widest];
        order.select_nth_unstable_by(half * LEAF, |&i, &j| {
            key(i)
                .partial_cmp(&key(j))
                .unwrap_or_else(|| key(i).is_nan().cmp(&key(j).is_nan()))
        });
        let (left, right) = order.split_at_mut(half * LEAF);
        self.nodes.push(Node::Inner(0));
        self.grow(rows, left, leaf);
        self.nodes[node] = Node::Inner(self.nodes.len() as u32);
        self.grow(rows, right, leaf + half);
    }

    /// Offers the points that may count to the query's row, roughly the nearest first.
    ///
    /// `dim` is the tree's: a caller that knows it as a constant gets loops over constants.
    #[inline(always)]
    pub(super) fn visit(&self, dim: usize, query: &[T], row: &mut impl Row<T>) {
        let mut stack = [(T::zero(), 0usize); LEVELS];
        let mut held = 1;
        while held > 0 {
            held -= 1;
            let (mut distance, mut node) = stack[held];
            while counts(distance, row.bound()) {
                match self.nodes[node] {
                    Node::Leaf(leaf) => {
                        self.visit_leaf(leaf as usize, dim, query, row);
                        break;
                    }
                    Node::Inner(right) => {
                        let mut near = (self.apart(node + 1, dim, query), node + 1);
                        let mut far = (self.apart(right as usize, dim, query), right as usize);
                        if far.0 < near.0 {
                            (near, far) = (far, near);
                        }
                        stack[held] = far;
                        held += 1;
                        (distance, node) = near;
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn visit_leaf(&self, leaf: usize, dim: usize, query: &[T], row: &mut impl Row<T>) {
        let size = LEAF * dim;
        let points = &self.points[leaf * size..(leaf + 1) * size];
        if let Some(distances) = distances::<T, LEAF>(query, points, row.bound()) {
            let first = leaf * LEAF;
            let index = &self.index[first..self.index.len().min(first + LEAF)];
            offer(&distances, index, row);
        }
    }

    /// A bound from below for the squared distances of the query to a node's points, which it never exceeds: it is summed in the
    /// same order from smaller terms, and rounding is monotone.
    #[inline(always)]
    fn apart(&self, node: usize, dim: usize, query: &[T]) -> T {
        let corners = &self.boxes[node * 2 * dim..(node + 1) * 2 * dim];
        let (low, high) = corners.split_at(dim);
        let mut sum = T::zero();
        for d in 0..dim {
            // Comparisons, so that NaN counts as no gap.
            let (below, above) = (low[d] - query[d], query[d] - high[d]);
            let gap = if below > T::zero() { below } else { T::zero() };
            let gap = if above > gap { above } else { gap };
            sum += gap * gap;
        }
        sum
    }
}
