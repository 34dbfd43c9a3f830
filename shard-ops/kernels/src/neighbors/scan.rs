//! Exhaustive search, which computes distances to whole vectors of points.

use super::search::{Rows, counts};
use crate::{Real, View};
use std::ops::Range;

/// Points whose distances are computed together: enough independent sums for every vector width.
pub(super) const WIDTH: usize = 64;

/// Bytes of points that stay in the first-level cache.
const TILE_BYTES: usize = 16 * 1024;

/// After this many dims, points that are already too far are given up.
const STRETCH: usize = 16;

/// Points stored dim by dim, in whole blocks of [`WIDTH`].
#[derive(Debug)]
pub(super) struct Columns<T> {
    /// `[block][dim][WIDTH]`; the last block is filled up with zeros.
    data: Vec<T>,
    dim: usize,
    count: usize,
}

impl<T: Real> Columns<T> {
    pub(super) fn new(points: &View<'_, T>) -> Self {
        let (count, dim) = (points.shape()[0], points.shape()[1]);
        let mut data = vec![T::zero(); count.next_multiple_of(WIDTH) * dim];
        let [row, col] = [points.strides()[0], points.strides()[1]];
        for i in 0..count {
            let from = points.offset().wrapping_add_signed(i as isize * row);
            let to = i / WIDTH * WIDTH * dim + i % WIDTH;
            for d in 0..dim {
                data[to + d * WIDTH] = points.data()[from.wrapping_add_signed(d as isize * col)];
            }
        }
        Self { data, dim, count }
    }

    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Ranges of blocks that fit into the cache together.
    pub(super) fn tiles(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        let blocks = self.count.div_ceil(WIDTH);
        let each = (TILE_BYTES / (WIDTH * self.dim.max(1) * size_of::<T>())).max(1);
        (0..blocks)
            .step_by(each)
            .map(move |first| first..(first + each).min(blocks))
    }

    /// One block, dim by dim.
    #[inline(always)]
    pub(super) fn block(&self, block: usize) -> &[T] {
        &self.data[block * WIDTH * self.dim..(block + 1) * WIDTH * self.dim]
    }

    /// Offers to query `i` the points of those blocks that have some that may count.
    #[inline(always)]
    pub(super) fn visit(
        &self,
        query: &[T],
        blocks: Range<usize>,
        index: &[i64],
        i: usize,
        rows: &mut dyn Rows<T>,
    ) {
        let (mut bound, _) = rows.last(i);
        for block in blocks {
            if let Some(distances) = distances::<T, WIDTH>(query, self.block(block), bound) {
                let first = block * WIDTH;
                let index = &index[first..self.count.min(first + WIDTH)];
                (bound, _) = rows.offer(i, &distances, index);
            }
        }
    }
}

/// Squared distances of a query to `N` points stored dim by dim, or `None` where none of them may count under `bound`.
///
/// The sum runs over the dims in order, and each operation is rounded, so it has the same bits wherever it is computed.
#[inline(always)]
pub(super) fn distances<T: Real, const N: usize>(
    query: &[T],
    points: &[T],
    bound: T,
) -> Option<[T; N]> {
    let mut sums = [T::zero(); N];
    let (columns, _) = pulp::as_arrays::<N, T>(points);
    for (stretch, columns) in query.chunks(STRETCH).zip(columns.chunks(STRETCH)) {
        for (&q, column) in stretch.iter().zip(columns) {
            for (sum, &p) in sums.iter_mut().zip(column) {
                let apart = p - q;
                *sum += apart * apart;
            }
        }
        // Sums only grow, so a point that is too far now stays too far.
        let near: u32 = sums.iter().map(|&d| u32::from(counts(d, bound))).sum();
        if near == 0 {
            return None;
        }
    }
    Some(sums)
}

/// Names the points that may count under a bound, of at most [`WIDTH`]. There are as many distances as indexes, or more.
#[inline(always)]
pub(super) fn each_near<T: Real>(
    distances: &[T],
    index: &[i64],
    bound: T,
    mut name: impl FnMut(T, i64),
) {
    let mut near = near(distances, bound);
    while let Some(&index) = index.get(near.trailing_zeros() as usize) {
        name(distances[near.trailing_zeros() as usize], index);
        near &= near - 1;
    }
}

/// A bit for each of at most [`WIDTH`] distances that may count under a bound, without branches, which would be unpredictable.
#[inline(always)]
pub(super) fn near<T: Real>(distances: &[T], bound: T) -> u64 {
    let bits = distances.iter().enumerate().take(WIDTH);
    bits.fold(0, |near, (i, &distance)| {
        near | u64::from(counts(distance, bound)) << i
    })
}
