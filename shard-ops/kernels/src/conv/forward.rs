//! The sum over a window: packs blocks of input and runs register tiles over them, or multiplies matrices.

use super::apart;
use super::direct::{splats, tile, tile_onto};
use super::im2col;
use super::lift::{Geometry, Slab, SlabMut};
use super::lone;
use super::pack::{Ahead, Block, Packing};
use super::pairs::{self, PARTS};
use crate::Real;
use crate::pointwise::vectorized;
use crate::prefetch::prefetch;
use core::hint::black_box;
use pulp::{Simd, WithSimd};

/// Writes `y = bias + weight * x` under `g`; `weight` is `[Cout, Cin / groups, kernel]`, contiguous.
pub(super) fn correlate<T: Real>(
    x: &Slab<'_, T>,
    weight: &[T],
    bias: Option<&[T]>,
    y: &mut SlabMut<'_, T>,
    g: &Geometry,
) {
    if y.extent.contains(&0) || y.batch == 0 || g.cout == 0 {
        return;
    }
    if g.taps() == 0 {
        start_from_bias(bias, y, g);
    } else if g.volume() == 1 && g.cin >= 8 && im2col::pointwise(x, weight, bias, y, g) {
        // The work is done, with one product per group.
    } else if apart::are_copied(g) {
        apart::correlate(x, weight, bias, y, g);
    } else if y.extent[2] < narrow::<T>() && y.extent[1] >= narrow::<T>() {
        // The rows are short, as in a slab beside a column boundary, but the columns are long enough.
        vectorized(Direct {
            x: &x.turned(),
            weight,
            bias,
            y: &mut y.turned(),
            g: &g.turned(),
            turned: true,
        });
    } else if y.extent[2] < narrow::<T>() && g.cout > 1 {
        start_from_bias(bias, y, g);
        im2col::strips(x, weight, y, g);
    } else if lone::fits(g, [x.step[2], y.step[2]]) {
        lone::correlate(x, weight, bias, y, g);
    } else {
        vectorized(Direct {
            x,
            weight,
            bias,
            y,
            g,
            turned: false,
        });
    }
}

/// Rows shorter than this fill too few lanes of a tile.
fn narrow<T: Real>() -> usize {
    48 / size_of::<T>()
}

pub(super) fn start_from_bias<T: Real>(bias: Option<&[T]>, y: &mut SlabMut<'_, T>, g: &Geometry) {
    for n in 0..y.batch {
        for co in 0..g.groups * g.cout {
            let start = y.start(n, co);
            let value = bias.map_or(T::zero(), |b| b[co]);
            let (extent, step) = (y.extent, y.step);
            crate::view::for_each_row(&extent, [&step], [start], |[at], run, [step]| {
                for i in 0..run as isize {
                    y.data[at.wrapping_add_signed(i * step)] = value;
                }
            });
        }
    }
}

struct Direct<'a, 'b, 'c, T> {
    x: &'a Slab<'c, T>,
    weight: &'a [T],
    bias: Option<&'a [T]>,
    y: &'a mut SlabMut<'b, T>,
    g: &'a Geometry,
    /// Whether rows and columns have changed places in all fields but the weights.
    turned: bool,
}

impl<T: Real> WithSimd for Direct<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // 32 vector registers hold 8 x 2 accumulators and their operands, 16 registers 4 x 3: fewer would wait for each other.
        if S::F32_LANES >= 16 {
            self.run::<S, 8>(simd);
        } else {
            self.run::<S, 4>(simd);
        }
    }
}

/// Output channels `first .. first + count`, computed by a tile of `height` channels.
struct Panel {
    first: usize,
    count: usize,
    height: usize,
    /// Start of the panel's packed weights: `height` numbers per tap.
    weights: usize,
}

/// Splits `cout` channels into panels of at most `most`, with lower tiles, of at least `least`, for a remainder.
fn panels(cout: usize, taps: usize, [least, most]: [usize; 2]) -> Vec<Panel> {
    let (mut out, mut first, mut weights) = (Vec::new(), 0, 0);
    while first < cout {
        let count = most.min(cout - first);
        let height = count.next_power_of_two().max(least);
        out.push(Panel {
            first,
            count,
            height,
            weights,
        });
        first += count;
        weights += height * taps;
    }
    out
}

impl<T: Real> Direct<'_, '_, '_, T> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize>(self, simd: S) {
        let Self {
            x,
            weight,
            bias,
            y,
            g,
            turned,
        } = self;
        let paired = pairs::fit(g, y.extent[1]);
        let (own, taps, least) = match paired {
            true => (g.taps(), PARTS * pairs::taps(g), 4),
            false => (g.taps(), g.taps(), 1),
        };
        let panels = panels(g.cout, taps, [least, MR]);
        let lanes = T::lanes::<S>();
        // Vectors of columns of the tiles below, of which the last ends less than two vectors behind the block.
        let vectors = match panels[0].height {
            4.. => 3,
            _ => 4,
        };
        let packing = Packing::new(g, y.extent, vectors * lanes, 2 * lanes, turned, paired);
        let (mut packed, mut packed_weights) = (Vec::new(), Vec::new());
        for group in 0..g.groups {
            let weight = &weight[group * g.cout * own..][..g.cout * own];
            if paired {
                let factors = pairs::factors(weight, g, turned);
                pack_weights(&factors, taps, &panels, &mut packed_weights);
            } else {
                pack_weights(weight, taps, &panels, &mut packed_weights);
            }
            for n in 0..y.batch {
                let mut blocks = packing.blocks(y.extent).peekable();
                while let Some(block) = blocks.next() {
                    packing.pack(simd, x, n, group * g.cin, g.cin, &block, &mut packed);
                    let rows = block.rows.len();
                    let rows = if paired {
                        rows.div_ceil(2) * PARTS
                    } else {
                        rows
                    };
                    let tiles = rows * block.cols.len().div_ceil(vectors * lanes);
                    let mut ahead = Ahead::new(
                        &packing,
                        x,
                        [n, group * g.cin],
                        blocks.peek().cloned(),
                        panels.len() * tiles,
                    );
                    for panel in &panels {
                        let first = group * g.cout + panel.first;
                        let mut start = [T::zero(); 8];
                        if let Some(bias) = bias {
                            start[..panel.count].copy_from_slice(&bias[first..first + panel.count]);
                        }
                        let job = PanelJob {
                            packed: &packed,
                            taps: &packing.taps,
                            row_step: packing.row_step,
                            weights: &packed_weights[panel.weights..][..panel.height * taps],
                            start,
                            count: panel.count,
                            at: y.start(n, first).wrapping_add_signed(y.within([
                                block.plane,
                                block.rows.start,
                                block.cols.start,
                            ])),
                            channel: y.outer[1],
                            steps: [y.step[1], y.step[2]],
                            block: &block,
                        };
                        // Heights that no panel has are not compiled.
                        match panel.height {
                            8 if MR >= 8 && paired => {
                                job.pairs::<S, 8, 3>(simd, y.data, &mut ahead);
                            }
                            8 if MR >= 8 => job.rows::<S, 8, 3>(simd, y.data, &mut ahead),
                            4 if paired => job.pairs::<S, 4, 3>(simd, y.data, &mut ahead),
                            4 => job.rows::<S, 4, 3>(simd, y.data, &mut ahead),
                            2 => job.rows::<S, 2, 4>(simd, y.data, &mut ahead),
                            _ => job.rows::<S, 1, 4>(simd, y.data, &mut ahead),
                        }
                    }
                }
            }
        }
    }
}

fn pack_weights<T: Real>(weight: &[T], taps: usize, panels: &[Panel], out: &mut Vec<T>) {
    out.clear();
    out.resize(panels.iter().map(|p| p.height * taps).sum(), T::zero());
    for panel in panels {
        let packed = &mut out[panel.weights..][..panel.height * taps];
        for i in 0..panel.count {
            let row = &weight[(panel.first + i) * taps..][..taps];
            for (lane, w) in packed.chunks_exact_mut(panel.height).zip(row) {
                lane[i] = *w;
            }
        }
    }
}

/// One panel of channels over one packed block.
struct PanelJob<'a, T> {
    packed: &'a [T],
    taps: &'a [usize],
    row_step: usize,
    weights: &'a [T],
    start: [T; 8],
    count: usize,
    /// Position of the block's first output in `y`, and the steps from there.
    at: usize,
    channel: isize,
    steps: [isize; 2],
    block: &'a Block,
}

/// A tile's place: the block's row and first column, and whether its vectors lie in `y` as they are.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    width: usize,
    /// Columns that lie in the block, of `width`.
    valid: usize,
    side_by_side: bool,
}

/// A tile's sums in memory, by channel, each vector within a line of the cache.
#[repr(align(64))]
struct Sums<T, const MR: usize>([[T; 64]; MR]);

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

    /// As [`rows`](Self::rows), two at a time.
    #[inline(always)]
    fn pairs<S: Simd, const MR: usize, const NV: usize>(
        &self,
        simd: S,
        y: &mut [T],
        ahead: &mut Ahead<'_, '_, T>,
    ) {
        let mut sums = [(); 2].map(|()| Sums([[T::zero(); 64]; MR]));
        for row in (0..self.block.rows.len()).step_by(2) {
            let packed = &self.packed[row / 2 * PARTS * self.row_step..];
            let mut done = 0;
            while let Some((vectors, col)) = self.next::<S, NV>(&mut done) {
                let at = [row, col];
                match vectors {
                    1 => self.pair::<S, MR, 1>(simd, packed, at, &mut sums, y, ahead),
                    2 => self.pair::<S, MR, 2>(simd, packed, at, &mut sums, y, ahead),
                    _ => self.pair::<S, MR, NV>(simd, packed, at, &mut sums, y, ahead),
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
        let mut buffer = Sums([[T::zero(); 64]; MR]);
        for (to, sums) in buffer.0.iter_mut().zip(&acc) {
            T::vectors_mut::<S>(&mut to[..place.width]).copy_from_slice(sums);
        }
        self.write::<S, MR, NV>(y, place, &buffer);
    }

    /// Two rows of a tile, by their parts.
    #[inline(always)]
    fn pair<S: Simd, const MR: usize, const NV: usize>(
        &self,
        simd: S,
        packed: &[T],
        [row, col]: [usize; 2],
        both: &mut [Sums<T, MR>; 2],
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
            if part == 0 || part == 3 {
                self.ask(y, place);
            }
            match part {
                0 => self.write::<S, MR, NV>(y, place, upper),
                2 => shared::<T, S, MR, NV>(simd, upper, lower),
                3 if row + 1 < self.block.rows.len() => self.write::<S, MR, NV>(y, place, lower),
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
            width,
            valid,
            side_by_side: valid == width && self.steps[1] == 1,
        }
    }

    /// Asks for the memory that is written.
    #[inline(always)]
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
    fn write<S: Simd, const MR: usize, const NV: usize>(
        &self,
        y: &mut [T],
        place: Place,
        sums: &Sums<T, MR>,
    ) {
        for (i, sums) in sums.0.iter().enumerate().take(self.count) {
            let to = place.at.wrapping_add_signed(i as isize * self.channel);
            if place.side_by_side {
                let to = &mut y[to..to + place.width];
                T::vectors_mut::<S>(to).copy_from_slice(T::vectors::<S>(&sums[..place.width]));
                continue;
            }
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
    first: &mut Sums<T, MR>,
    second: &mut Sums<T, MR>,
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
