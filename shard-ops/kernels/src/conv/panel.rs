//! Panels of output channels over one packed block: tiles of some channels by some vectors of columns, row by row or in [pairs].

use super::beside::{self, Targets};
use super::direct::{splats, tile, tile_onto};
use super::pack::{Ahead, Block};
use super::pairs::{self, PARTS};
use crate::Real;
use crate::prefetch::prefetch;
use core::hint::black_box;
use pulp::Simd;
use smallvec::SmallVec;

/// One panel of channels over one packed block.
pub(super) struct PanelJob<'a, T> {
    pub(super) packed: &'a [T],
    pub(super) taps: &'a [usize],
    pub(super) row_step: usize,
    pub(super) weights: &'a [T],
    pub(super) start: [T; 8],
    pub(super) count: usize,
    /// Channels of its tiles.
    pub(super) height: usize,
    /// Position of the block's first output in `y`, and the steps from there.
    pub(super) at: usize,
    pub(super) channel: isize,
    pub(super) steps: [isize; 2],
    pub(super) block: &'a Block,
    /// Where lines are written that lie side by side; `at` is the channel's first output then.
    pub(super) targets: Option<&'a Targets>,
}

/// The most vectors of a tile of single rows, by its channels.
pub(super) fn row_vectors(height: usize) -> usize {
    if height >= 4 { 3 } else { 4 }
}

/// The most vectors of a tile of pairs, by its channels.
pub(super) fn pair_vectors(height: usize) -> usize {
    if height >= 8 { 3 } else { 2 }
}

/// Computes a block row by row. No panel has more than `MR` channels.
#[inline(always)]
pub(super) fn rows<T: Real, S: Simd, const MR: usize>(
    simd: S,
    jobs: &[PanelJob<'_, T>],
    y: &mut [T],
    ahead: &mut Ahead<'_, '_, T>,
) {
    for job in jobs {
        // Heights that no panel has are not compiled.
        match job.height {
            8 if MR >= 8 => job.rows::<S, 8, 3>(simd, y, ahead),
            4 => job.rows::<S, 4, 3>(simd, y, ahead),
            2 => job.rows::<S, 2, 4>(simd, y, ahead),
            _ => job.rows::<S, 1, 4>(simd, y, ahead),
        }
    }
}

/// Computes a block two rows at a time, by panels of `MR` channels. All of them take a tile before the next one, so that what is packed for
/// it stays in the first-level cache.
#[inline(always)]
pub(super) fn pairs<T: Real, S: Simd, const MR: usize>(
    simd: S,
    jobs: &[PanelJob<'_, T>],
    y: &mut [T],
    ahead: &mut Ahead<'_, '_, T>,
) {
    if MR >= 8 {
        pairs_of::<T, S, MR, 3>(simd, jobs, y, ahead);
    } else {
        // Eight sums wait for nobody, and they fit into 16 registers with what they are made of.
        pairs_of::<T, S, MR, 2>(simd, jobs, y, ahead);
    }
}

#[inline(always)]
fn pairs_of<T: Real, S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    jobs: &[PanelJob<'_, T>],
    y: &mut [T],
    ahead: &mut Ahead<'_, '_, T>,
) {
    let mut sums = [(); 2].map(|()| Sums([[T::zero(); 64]; 8]));
    let Some(first) = jobs.first() else { return };
    let mut tiles: SmallVec<[(usize, usize); 32]> = SmallVec::new();
    let mut done = 0;
    while let Some(tile) = first.next::<S, NV>(&mut done) {
        tiles.push(tile);
    }
    for row in (0..first.block.rows.len()).step_by(2) {
        let packed = &first.packed[row / 2 * PARTS * first.row_step..];
        for i in 0..tiles.len() * jobs.len() {
            // Weights of many channels are read once for all tiles that lie side by side.
            let (tile, job) = match first.targets {
                Some(_) => (i % tiles.len(), i / tiles.len()),
                None => (i / jobs.len(), i % jobs.len()),
            };
            let ((vectors, col), job) = (tiles[tile], &jobs[job]);
            let at = [row, col];
            match vectors {
                1 => job.pair::<S, MR, 1>(simd, packed, at, &mut sums, y, ahead),
                2 => job.pair::<S, MR, 2>(simd, packed, at, &mut sums, y, ahead),
                _ => job.pair::<S, MR, NV>(simd, packed, at, &mut sums, y, ahead),
            }
        }
    }
}

/// A tile's place: the block's row and first column, and whether its vectors lie in `y` as they are.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    row: usize,
    col: usize,
    width: usize,
    /// Columns that lie in the block, of `width`.
    valid: usize,
    side_by_side: bool,
}

/// A tile's sums in memory, by channel, each vector within a line of the cache.
#[repr(align(64))]
struct Sums<T>([[T; 64]; 8]);

impl<T: Real> PanelJob<'_, T> {
    #[inline(always)]
    fn rows<S: Simd, const MR: usize, const NV: usize>(
        &self,
        simd: S,
        y: &mut [T],
        ahead: &mut Ahead<'_, '_, T>,
    ) {
        for row in 0..self.block.rows.len() {
            let packed = &self.packed[row * self.row_step..];
            let mut done = 0;
            while let Some((vectors, col)) = self.next::<S, NV>(&mut done) {
                match vectors {
                    1 => self.columns::<S, MR, 1>(simd, packed, [row, col], y, ahead),
                    2 => self.columns::<S, MR, 2>(simd, packed, [row, col], y, ahead),
                    _ => self.columns::<S, MR, NV>(simd, packed, [row, col], y, ahead),
                }
            }
        }
    }

    /// The next tile of a row, of which `done` columns have been taken: its vectors and its first column.
    #[inline(always)]
    fn next<S: Simd, const NV: usize>(&self, done: &mut usize) -> Option<(usize, usize)> {
        let lanes = T::lanes::<S>();
        let cols = self.block.cols.len();
        let left = cols.checked_sub(*done).filter(|left| *left > 0)?;
        // Four vectors are two halves, rather than a tile whose sums wait for each other.
        let vectors = match left.div_ceil(lanes) {
            4 if NV == 3 => 2,
            left => left.min(NV),
        };
        // The last tile of a row takes outputs again that the one before it had.
        let col = (*done).min(cols.saturating_sub(vectors * lanes));
        *done += vectors * lanes;
        Some((vectors, col))
    }

    #[inline(always)]
    fn columns<S: Simd, const MR: usize, const NV: usize>(
        &self,
        simd: S,
        packed: &[T],
        [row, col]: [usize; 2],
        y: &mut [T],
        ahead: &mut Ahead<'_, '_, T>,
    ) {
        let place = self.place(row, col, NV * T::lanes::<S>());
        ahead.some();
        self.ask(y, place);
        let start = self.start::<S, MR, NV>(simd);
        let acc = tile::<T, S, MR, NV>(simd, &packed[col..], self.taps, self.weights, start);
        // All sums are named by constants, so that they stay in registers.
        if place.side_by_side {
            for (i, sums) in acc.iter().enumerate() {
                if i < self.count {
                    let to = place.at.wrapping_add_signed(i as isize * self.channel);
                    T::vectors_mut::<S>(&mut y[to..to + place.width]).copy_from_slice(sums);
                }
            }
            return;
        }
        let mut buffer = Sums([[T::zero(); 64]; 8]);
        for (to, sums) in buffer.0.iter_mut().zip(&acc) {
            T::vectors_mut::<S>(&mut to[..place.width]).copy_from_slice(sums);
        }
        self.write_apart(y, place, &buffer);
    }

    /// Two rows of a tile, by their parts.
    #[inline(always)]
    fn pair<S: Simd, const MR: usize, const NV: usize>(
        &self,
        simd: S,
        packed: &[T],
        [row, col]: [usize; 2],
        both: &mut [Sums<T>; 2],
        y: &mut [T],
        ahead: &mut Ahead<'_, '_, T>,
    ) {
        let width = NV * T::lanes::<S>();
        let taps = self.taps.len() * MR;
        let [upper, lower] = both;
        for i in 0..MR {
            let start = T::splat(simd, self.start[i]);
            T::vectors_mut::<S>(&mut upper.0[i][..width]).fill(start);
            lower.0[i][..width].fill(T::zero());
        }
        // The parts that both rows share come first: they are what the others start from.
        for part in [1, 2, 0, 3] {
            let packed = &packed[part * self.row_step + col..];
            let weights = &self.weights[part * taps..][..taps];
            let sums = if part == 1 || part == 0 {
                &mut *upper
            } else {
                &mut *lower
            };
            let place = self.place(row + part / 3, col, width);
            ahead.some();
            if part == 0 || part == 3 {
                self.ask(y, place);
            }
            tile_onto::<T, S, MR, NV>(simd, packed, self.taps, weights, &mut sums.0);
            match part {
                0 => self.write::<S>(y, place, upper),
                2 => shared::<T, S, MR, NV>(simd, upper, lower),
                3 if row + 1 < self.block.rows.len() => self.write::<S>(y, place, lower),
                _ => {}
            }
        }
    }

    /// The bias.
    #[inline(always)]
    fn start<S: Simd, const MR: usize, const NV: usize>(&self, simd: S) -> [[T::Vec<S>; NV]; MR] {
        // They are read for each tile: kept, they would take registers from the sums.
        let start = pulp::as_arrays::<MR, T>(black_box(&self.start)).0;
        splats::<T, S, MR, NV>(simd, &start[0])
    }

    #[inline(always)]
    fn place(&self, row: usize, col: usize, width: usize) -> Place {
        let valid = width.min(self.block.cols.len() - col);
        let within = row as isize * self.steps[0] + col as isize * self.steps[1];
        Place {
            at: self.at.wrapping_add_signed(within),
            row,
            col,
            width,
            valid,
            side_by_side: valid == width && self.steps[1] == 1 && self.targets.is_none(),
        }
    }

    /// Asks for the memory that is written.
    #[inline(never)]
    fn ask(&self, y: &[T], place: Place) {
        if place.side_by_side {
            for i in 0..self.count as isize {
                let to = place.at.wrapping_add_signed(i * self.channel);
                prefetch(y, to, place.width);
            }
        }
    }

    /// Writes what lies in the block of some sums.
    #[inline(always)]
    fn write<S: Simd>(&self, y: &mut [T], place: Place, sums: &Sums<T>) {
        if !place.side_by_side {
            return self.write_apart(y, place, sums);
        }
        for (i, sums) in sums.0.iter().enumerate().take(self.count) {
            let to = place.at.wrapping_add_signed(i as isize * self.channel);
            let to = &mut y[to..to + place.width];
            T::vectors_mut::<S>(to).copy_from_slice(T::vectors::<S>(&sums[..place.width]));
        }
    }

    /// As [`write`](Self::write), where vectors do not lie in `y` as they are: one function for tiles of any size on any vectors.
    #[inline(never)]
    fn write_apart(&self, y: &mut [T], place: Place, sums: &Sums<T>) {
        if let Some(targets) = self.targets {
            let runs = targets.runs(place.col..place.col + place.valid, place.row);
            for (i, sums) in sums.0.iter().enumerate().take(self.count) {
                let to = self.at.wrapping_add_signed(i as isize * self.channel);
                beside::write(&runs, sums, place.col, y, to, self.steps[1]);
            }
            return;
        }
        for (i, sums) in sums.0.iter().enumerate().take(self.count) {
            let to = place.at.wrapping_add_signed(i as isize * self.channel);
            for (j, v) in sums[..place.valid].iter().enumerate() {
                y[to.wrapping_add_signed(j as isize * self.steps[1])] = *v;
            }
        }
    }
}

/// Makes of the sums of the two parts that rows share, of which the first holds the bias, what the rows start from.
#[inline(always)]
fn shared<T: Real, S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    first: &mut Sums<T>,
    second: &mut Sums<T>,
) {
    let width = NV * T::lanes::<S>();
    let sums = pairs::Sums::<T, S>::new(simd);
    for i in 0..MR {
        let upper = T::vectors_mut::<S>(&mut first.0[i][..width]);
        let lower = T::vectors_mut::<S>(&mut second.0[i][..width]);
        for j in 0..NV {
            let (first, second) = (upper[j], lower[j]);
            upper[j] = sums.add(first, second);
            lower[j] = sums.sub(first, second);
        }
    }
}
