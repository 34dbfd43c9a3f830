//! The sum over a window: packs blocks of input and runs register tiles over them, or multiplies matrices.

use super::apart;
use super::beside::{self, LongLine, Targets};
use super::channels::{self, Channels};
use super::im2col;
use super::lift::{Geometry, Slab, SlabMut};
use super::line::Line;
use super::lone;
use super::pack::{Ahead, How, Order, Packing};
use super::pairs::{self, PARTS};
use super::panel::{self, PanelJob};
use super::weight_grad::SITES;
use super::weights;
use crate::Real;
use crate::pointwise::vectorized;
use crate::scratch::Room;
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
    } else if lanes::<T>() >= channels::LANES
        && let Some(channels) = Channels::of(g, x.extent, y.extent)
        && weight.iter().all(|w| w.is_finite())
    {
        channels.correlate(x, weight, bias, y);
    } else if let Some(line) = Line::of(g, y.extent)
        && weight.iter().all(|w| w.is_finite())
    {
        line.correlate(x, weight, bias, y);
    } else if apart::are_copied(g) {
        apart::correlate(x, weight, bias, y, g);
    } else if !are_few(y)
        && !fill_little(y, g)
        && beside::pay(g, y.batch, y.extent, x.extent[2], lanes::<T>())
    {
        vectorized(Direct {
            x,
            weight,
            bias,
            y,
            g,
            way: Way::Beside,
        });
    } else if y.extent[2] < narrow::<T>() && y.extent[1] >= narrow::<T>() {
        // The rows are short, as in a slab beside a column boundary, but the columns are long enough.
        vectorized(Direct {
            x: &x.turned(),
            weight,
            bias,
            y: &mut y.turned(),
            g: &g.turned(),
            way: Way::Turned,
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
            way: Way::Rows,
        });
    }
}

/// More weights than these leave a second-level cache of half a MiB.
const LARGE: usize = 256 * 1024;

/// Rows shorter than this fill too few lanes of a tile.
fn narrow<T: Real>() -> usize {
    48 / size_of::<T>()
}

/// Whether there are so few narrow outputs that products of matrices, of weights as they lie, take less time.
fn are_few<T: Real>(y: &SlabMut<'_, T>) -> bool {
    y.extent[2] < narrow::<T>() && y.batch * y.extent.iter().product::<usize>() <= SITES
}

/// Whether rows do not fill a vector of AVX2, and weights no second-level cache. Its 16 registers hold tiles of half the height, which read twice as
/// much for each product, so that products of matrices take less time than lines side by side.
fn fill_little<T: Real>(y: &SlabMut<'_, T>, g: &Geometry) -> bool {
    let (lanes, weights) = (lanes::<T>(), g.cout * g.taps());
    lanes * size_of::<T>() == 32 && y.extent[2] < lanes && weights > LARGE
}

pub(super) fn start_from_bias<T: Real>(bias: Option<&[T]>, y: &mut SlabMut<'_, T>, g: &Geometry) {
    start_from(|co| bias.map_or(T::zero(), |b| b[co]), y, g);
}

/// Writes a value to each output of a channel.
pub(super) fn start_from<T: Copy>(
    value: impl Fn(usize) -> T,
    y: &mut SlabMut<'_, T>,
    g: &Geometry,
) {
    for n in 0..y.batch {
        for co in 0..g.groups * g.cout {
            let start = y.start(n, co);
            let value = value(co);
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
    way: Way,
}

/// How lines of outputs are taken.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Rows, of one image after the other.
    Rows,
    /// Columns: rows and columns have changed places in all fields but the weights.
    Turned,
    /// Rows [side by side](super::beside).
    Beside,
}

/// Lanes of the vectors that a convolution is computed by.
pub(super) fn lanes<T: Real>() -> usize {
    struct Lanes<T>(core::marker::PhantomData<T>);
    impl<T: Real> WithSimd for Lanes<T> {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            T::lanes::<S>()
        }
    }
    vectorized(Lanes::<T>(core::marker::PhantomData))
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
pub(super) struct Panel {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) height: usize,
    /// Start of the panel's packed weights: `height` numbers per tap.
    pub(super) weights: usize,
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
            way,
        } = self;
        let turned = way == Way::Turned;
        let paired = pairs::fit(g, y.extent[1]);
        let (own, taps, least) = match paired {
            true => (g.taps(), PARTS * pairs::taps(g), MR),
            false => (g.taps(), g.taps(), 1),
        };
        let panels = panels(g.cout, taps, [least, MR]);
        let lanes = T::lanes::<S>();
        // The last tile ends less than two vectors behind the block.
        let vectors = match paired {
            true => panel::pair_vectors(MR),
            false => panel::row_vectors(panels[0].height),
        };
        let how = How {
            paired,
            turned,
            overread: 2 * lanes,
            order: match way {
                Way::Beside => Order::Rows,
                _ => Order::Channels,
            },
        };
        let packing = match way {
            Way::Beside => {
                let line = LongLine::new(g, y.batch, y.extent, x.extent[2], paired);
                Packing::beside(g, line, how)
            }
            _ => Packing::new(g, y.extent, vectors * lanes, how),
        };
        let (batch, extent) = packing.whole(y.batch, y.extent);
        let numbers = panels.iter().map(|p| p.height * taps).sum();
        let mut room = Room::new();
        let mut scratch = room.numbers(packing.elements() + numbers);
        let packed = scratch.take(packing.elements());
        let packed_weights = scratch.take(numbers);
        for group in 0..g.groups {
            let weight = &weight[group * g.cout * own..][..g.cout * own];
            if paired {
                weights::pack_pairs::<T, S, MR>(simd, weight, &panels, packed_weights, g, turned);
            } else {
                weights::pack(simd, weight, &panels, packed_weights, g);
            }
            for n in 0..batch {
                let mut blocks = packing.blocks(extent).peekable();
                while let Some(block) = blocks.next() {
                    packing.pack(simd, x, [n, group * g.cin], g.cin, &block, packed);
                    let rows = match (paired, block.rows.len()) {
                        (true, rows) => rows.div_ceil(2) * PARTS,
                        (false, rows) => rows,
                    };
                    let tiles = rows * block.cols.len().div_ceil(vectors * lanes);
                    let mut ahead = Ahead::new(
                        &packing,
                        x,
                        [n, group * g.cin],
                        blocks.peek().cloned(),
                        panels.len() * tiles,
                    );
                    let targets = packing.line.map(|line| Targets::new(&line, &block.cols, y));
                    let job = |panel: &Panel| {
                        let first = group * g.cout + panel.first;
                        let mut start = [T::zero(); 8];
                        if let Some(bias) = bias {
                            start[..panel.count].copy_from_slice(&bias[first..first + panel.count]);
                        }
                        let within = match targets {
                            Some(_) => 0,
                            None => y.within([block.plane, block.rows.start, block.cols.start]),
                        };
                        PanelJob {
                            packed: &*packed,
                            taps: &packing.taps,
                            row_step: packing.row_step,
                            weights: &packed_weights[panel.weights..][..panel.height * taps],
                            start,
                            count: panel.count,
                            height: panel.height,
                            at: y.start(n, first).wrapping_add_signed(within),
                            channel: y.outer[1],
                            steps: [y.step[1], y.step[2]],
                            block: &block,
                            targets: targets.as_ref(),
                        }
                    };
                    let jobs: Vec<PanelJob<'_, T>> = panels.iter().map(job).collect();
                    match paired {
                        true => panel::pairs::<T, S, MR>(simd, &jobs, y.data, &mut ahead),
                        false => panel::rows::<T, S, MR>(simd, &jobs, y.data, &mut ahead),
                    }
                }
            }
        }
    }
}
