//! The sum over a window: packs blocks of input and runs register tiles over them, or multiplies matrices.

use super::apart;
use super::direct::tile;
use super::im2col;
use super::lift::{Geometry, Slab, SlabMut};
use super::lone;
use super::pack::{Ahead, Block, Packing};
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

/// Splits `cout` channels into panels of at most `most`, with lower tiles for a remainder.
fn panels(cout: usize, taps: usize, most: usize) -> Vec<Panel> {
    let (mut out, mut first, mut weights) = (Vec::new(), 0, 0);
    while first < cout {
        let count = most.min(cout - first);
        let height = count.next_power_of_two();
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
        let taps = g.taps();
        let panels = panels(g.cout, taps, MR);
        let lanes = T::lanes::<S>();
        // Vectors of columns of the tiles below, of which the last ends less than two vectors behind the block.
        let vectors = match panels[0].height {
            4.. => 3,
            _ => 4,
        };
        let packing = Packing::new(g, y.extent, vectors * lanes, 2 * lanes, turned);
        let (mut packed, mut packed_weights) = (Vec::new(), Vec::new());
        for group in 0..g.groups {
            let weight = &weight[group * g.cout * taps..][..g.cout * taps];
            pack_weights(weight, taps, &panels, &mut packed_weights);
            for n in 0..y.batch {
                let mut blocks = packing.blocks(y.extent).peekable();
                while let Some(block) = blocks.next() {
                    packing.pack(x, n, group * g.cin, g.cin, &block, &mut packed);
                    let tiles = block.rows.len() * block.cols.len().div_ceil(vectors * lanes);
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
                        match panel.height {
                            8 => job.rows::<S, 8, 3>(simd, y.data, &mut ahead),
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

impl<T: Real> PanelJob<'_, T> {
    #[inline(always)]
    fn rows<S: Simd, const MR: usize, const NV: usize>(
        &self,
        simd: S,
        y: &mut [T],
        ahead: &mut Ahead<'_, '_, T>,
    ) {
        let lanes = T::lanes::<S>();
        let cols = self.block.cols.len();
        for row in 0..self.block.rows.len() {
            let packed = &self.packed[row * self.row_step..];
            let at = self.at.wrapping_add_signed(row as isize * self.steps[0]);
            let mut col = 0;
            while col < cols {
                let left = (cols - col).div_ceil(lanes);
                // Four vectors are two halves, rather than a tile whose sums wait for each other.
                let vectors = if left == 4 && NV == 3 {
                    2
                } else {
                    left.min(NV)
                };
                // The last tile of a row takes outputs again that the one before it had.
                let from = col.min(cols.saturating_sub(vectors * lanes));
                let packed = &packed[from..];
                match vectors {
                    1 => self.columns::<S, MR, 1>(simd, packed, at, from, y, ahead),
                    2 => self.columns::<S, MR, 2>(simd, packed, at, from, y, ahead),
                    _ => self.columns::<S, MR, NV>(simd, packed, at, from, y, ahead),
                }
                col += vectors * lanes;
            }
        }
    }

    #[inline(always)]
    fn columns<S: Simd, const MR: usize, const NV: usize>(
        &self,
        simd: S,
        packed: &[T],
        at: usize,
        col: usize,
        y: &mut [T],
        ahead: &mut Ahead<'_, '_, T>,
    ) {
        let width = NV * T::lanes::<S>();
        let valid = width.min(self.block.cols.len() - col);
        let to = |i: usize| {
            at.wrapping_add_signed(i as isize * self.channel + col as isize * self.steps[1])
        };
        let side_by_side = valid == width && self.steps[1] == 1;
        ahead.some();
        if side_by_side {
            for i in 0..self.count {
                prefetch(y, to(i), width);
            }
        }
        // They are read for each tile: kept, they would take registers from the sums.
        let start = pulp::as_arrays::<MR, T>(black_box(&self.start)).0;
        let acc = tile::<T, S, MR, NV>(simd, packed, self.taps, self.weights, &start[0]);
        // All sums are named by constants, so that they stay in registers.
        if side_by_side {
            for (i, sums) in acc.iter().enumerate() {
                if i < self.count {
                    let to = to(i);
                    T::vectors_mut::<S>(&mut y[to..to + width]).copy_from_slice(sums);
                }
            }
            return;
        }
        let mut buffer = [[T::zero(); 64]; MR];
        for (to, sums) in buffer.iter_mut().zip(&acc) {
            T::vectors_mut::<S>(&mut to[..width]).copy_from_slice(sums);
        }
        for (i, sums) in buffer.iter().enumerate().take(self.count) {
            for (j, v) in sums[..valid].iter().enumerate() {
                y[to(i).wrapping_add_signed(j as isize * self.steps[1])] = *v;
            }
        }
    }
}
