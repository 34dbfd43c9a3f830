//! Convolution of channels that do not mix, by vectors of channels: the value and both gradients.
//!
//! Inputs of 16 channels lie side by side at each column, and columns of zeros around them, so that no window needs a test. Each tap of some
//! outputs side by side then reads whole vectors, however narrow the plane is and however its windows step: columns that windows `stride` apart
//! read are packed by phases of the stride, and outputs of the gradient by the input are so computed.

use super::lift::{Geometry, Slab, SlabMut};
use crate::Real;
use crate::pointwise::vectorized;
use crate::scratch::Room;
use core::ops::Range;
use places::{Places, beside};
use values::{ROWS, Values};
use weights::Weights;

mod places;
mod values;
mod weights;

/// The fewest lanes of vectors for which channels lie side by side.
pub(super) const LANES: usize = 4;
/// Channels that are computed together.
const SIDE: usize = 16;
/// Outputs of a row whose sums are in registers at a time, in wide registers: those that no output is computed twice by, as many rows have a
/// multiple of seven.
const AT_ONCE: [usize; 2] = [8, 7];
/// The fewest channels that are worth it.
const FEWEST: usize = SIDE - SIDE / 4;
/// Positions of a window that pay for what is packed.
const FEW: usize = 4;
/// Positions of a large window, for which it pays sooner.
const MANY: usize = 16;
/// Rows of outputs that fill vectors by themselves: of small windows, and of large ones. Sums over outputs for small windows are like the latter;
/// those for large windows, and gradients where windows step, are faster side by side in rows of any length.
const SHORT: usize = 24;
const LONG: usize = 64;
/// Cells of a packed block: a part of a second-level cache.
const BUDGET: usize = 4 * 1024;

/// Numbers of channels side by side.
type Beside<T> = [T; SIDE];

/// Where outputs read, from the first one's place on, and by which position of the kernel.
#[derive(Clone, Copy)]
struct Tap {
    at: usize,
    k: usize,
}

impl Tap {
    /// If it is among so many.
    fn inside(at: isize, k: usize, extent: usize) -> Option<Self> {
        let at = usize::try_from(at).ok()?;
        (at < extent).then_some(Self { at, k })
    }
}

/// How outputs of channels that do not mix meet inputs.
pub(super) struct Channels {
    /// The input's plane that each of the output's reads.
    planes: Vec<Option<usize>>,
    /// The input's rows that each of the output's reads.
    rows: Vec<Vec<Tap>>,
    columns: Columns,
    /// Rows and columns of the kernel.
    kernel: [usize; 2],
}

/// How columns do.
struct Columns {
    /// Of each phase of the outputs.
    taps: Vec<Vec<Tap>>,
    /// Places of outputs among the sums of a row, and how many sums there are of a phase.
    outputs: Places,
    each: usize,
    /// How many of them are in registers at a time.
    at_once: usize,
    /// The inputs that are read, from the first on, and their places in a packed row.
    first: usize,
    inputs: Places,
    width: usize,
}

impl Channels {
    /// How a convolution's outputs meet its inputs, if vectors of channels are faster.
    pub(super) fn of(g: &Geometry, inputs: [usize; 3], outputs: [usize; 3]) -> Option<Self> {
        fits(g, outputs[2], short(g))?;
        Self::meeting(g, inputs, outputs)
    }

    /// The same for the gradient by the weight.
    pub(super) fn of_weight(g: &Geometry, inputs: [usize; 3], outputs: [usize; 3]) -> Option<Self> {
        let is_any = g.volume() >= MANY || g.stride[2] > 1;
        fits(g, outputs[2], if is_any { usize::MAX } else { LONG })?;
        Self::meeting(g, inputs, outputs)
    }

    fn meeting(g: &Geometry, inputs: [usize; 3], outputs: [usize; 3]) -> Option<Self> {
        let met = |dim: usize, o: usize| {
            let tap = move |k| Tap::inside(g.input(dim, o, k), k, inputs[dim]);
            (0..g.kernel[dim]).filter_map(tap)
        };
        Some(Self {
            columns: Columns::of(g, inputs[2], outputs[2])?,
            planes: (0..outputs[0])
                .map(|o| met(0, o).next().map(|tap| tap.at))
                .collect(),
            rows: (0..outputs[1]).map(|o| met(1, o).collect()).collect(),
            kernel: [g.kernel[1], g.kernel[2]],
        })
    }

    /// How the gradient by a convolution's inputs meets that by its outputs, if vectors of channels are faster.
    pub(super) fn adjoint(g: &Geometry, inputs: [usize; 3], outputs: [usize; 3]) -> Option<Self> {
        // Where windows step, the gradient would be a convolution for each phase of the stride.
        let steps = g.stride[2] > 1;
        fits(g, outputs[2], if steps { usize::MAX } else { short(g) })?;
        let met = |dim: usize, i: usize| {
            meeting(g, dim, i).filter_map(move |(at, k)| Tap::inside(at, k, outputs[dim]))
        };
        Some(Self {
            columns: Columns::adjoint(g, inputs[2], outputs[2])?,
            planes: (0..inputs[0])
                .map(|i| met(0, i).next().map(|tap| tap.at))
                .collect(),
            rows: (0..inputs[1]).map(|i| met(1, i).collect()).collect(),
            kernel: [g.kernel[1], g.kernel[2]],
        })
    }

    /// Rows of outputs that are computed from one packed block, and those of inputs that they read.
    fn blocks(&self) -> Vec<[Range<usize>; 2]> {
        let mut blocks: Vec<[Range<usize>; 2]> = Vec::new();
        for (row, taps) in self.rows.iter().enumerate() {
            let reach = reach(taps);
            if let Some([rows, inputs]) = blocks.last_mut() {
                let both = match [inputs.len(), reach.len()] {
                    [0, _] => reach.clone(),
                    [_, 0] => inputs.clone(),
                    _ => inputs.start.min(reach.start)..inputs.end.max(reach.end),
                };
                if both.len() * self.columns.width <= BUDGET {
                    (rows.end, *inputs) = (row + 1, both);
                    continue;
                }
            }
            blocks.push([row..row + 1, reach]);
        }
        blocks
    }

    /// Writes `y = bias + weight * x`; `weight` is `[channels, 1, kernel]`, contiguous, and has no infinity or NaN, which zeros beside a plane
    /// would meet. A sum runs over the kernel in order.
    pub(super) fn correlate<T: Real>(
        &self,
        x: &Slab<'_, T>,
        weight: &[T],
        bias: Option<&[T]>,
        y: &mut SlabMut<'_, T>,
    ) {
        let blocks = self.blocks();
        let most = blocks.iter().map(|[_, inputs]| inputs.len()).max();
        let most = most.unwrap_or(0) * self.columns.width;
        let taps: usize = self.kernel.iter().product();
        let sums = ROWS * self.columns.taps.len() * self.columns.each;
        let mut room = Room::new();
        let mut numbers = room.numbers((most + taps + sums) * SIDE);
        let mut take = |cells: usize| numbers.take(cells * SIDE).as_chunks_mut().0;
        vectorized(Values {
            how: self,
            blocks: &blocks,
            x,
            weight,
            bias,
            y,
            inputs: take(most),
            weights: take(taps),
            sums: take(sums),
        });
    }

    /// Adds to `totals`, `[channels, kernel]`, the gradient with respect to the weight; at most `flush` products are summed in the element
    /// type. `dy` has no infinity or NaN, which zeros around a plane would meet.
    pub(super) fn weight_grad<T: Real>(
        &self,
        x: &Slab<'_, T>,
        dy: &Slab<'_, T>,
        totals: &mut [f64],
        flush: usize,
        g: &Geometry,
    ) {
        let reach = |rows: usize| (rows - 1) * g.stride[1] + (g.kernel[1] - 1) * g.dilation[1] + 1;
        let columns = self.columns.outputs.len();
        let most = (flush / columns).clamp(1, self.rows.len());
        let fit = |rows: &usize| reach(*rows) * self.columns.width <= BUDGET;
        let rows = (1..=most).rev().find(fit).unwrap_or(1);
        let taps = (0..g.kernel[1]).flat_map(|h| {
            let row = h * g.dilation[1] * self.columns.width;
            self.columns.taps[0].iter().map(move |tap| row + tap.at)
        });
        let taps: Vec<usize> = taps.collect();
        let mut room = Room::new();
        let [inputs, outputs] = [reach(rows) * self.columns.width, rows * columns];
        let mut numbers = room.numbers((inputs + outputs) * SIDE);
        let mut take = |cells: usize| numbers.take(cells * SIDE).as_chunks_mut().0;
        vectorized(Weights {
            how: self,
            g,
            x,
            dy,
            rows,
            taps: &taps,
            inputs: take(inputs),
            outputs: take(outputs),
            totals,
        });
    }

    /// Brings rows of some channels of a plane. Rows that are not there, and columns beside those that are, are zeros.
    #[inline(always)]
    fn bring<T: Real>(
        &self,
        x: &Slab<'_, T>,
        n: usize,
        channels: &Range<usize>,
        plane: usize,
        rows: Range<isize>,
        to: &mut [Beside<T>],
    ) {
        for (row, to) in rows.zip(to.chunks_exact_mut(self.columns.width)) {
            if !(0..x.extent[1] as isize).contains(&row) {
                to.fill([T::zero(); SIDE]);
                continue;
            }
            let within = plane as isize * x.step[0] + row * x.step[1];
            let within = within + self.columns.first as isize * x.step[2];
            let from = |lane: usize| {
                x.start(n, channels.start + lane)
                    .wrapping_add_signed(within)
            };
            beside(
                x.data,
                from,
                x.step[2],
                channels.len(),
                &self.columns.inputs,
                to,
            );
        }
    }
}

impl Columns {
    fn of(g: &Geometry, inputs: usize, outputs: usize) -> Option<Self> {
        let [kernel, stride, dilation] = [g.kernel, g.stride, g.dilation].map(|of| of[2]);
        let at_once = at_once(outputs);
        let each = outputs.max(at_once);
        // Inputs of each phase of the stride lie side by side.
        let count = each + (kernel - 1) * dilation / stride;
        let width = stride.saturating_mul(count);
        if !packs(g, width) {
            return None;
        }
        let place = |column: usize| column % stride * count + column / stride;
        let taps = (0..kernel).map(|k| Tap {
            at: place(k * dilation),
            k,
        });
        let place = |column: usize| {
            let tap = Tap::inside(column as isize - g.origin[2], 0, width)?;
            Some(place(tap.at))
        };
        Some(Self {
            taps: vec![taps.collect()],
            outputs: Places::new(0..outputs),
            each,
            at_once,
            first: (0..inputs).find(|c| place(*c).is_some()).unwrap_or(0),
            inputs: Places::new((0..inputs).filter_map(place)),
            width,
        })
    }

    fn adjoint(g: &Geometry, inputs: usize, outputs: usize) -> Option<Self> {
        let stride = g.stride[2];
        let phases: Vec<Vec<(isize, usize)>> = (0..stride.min(inputs))
            .map(|phase| meeting(g, 2, phase).collect())
            .collect();
        let at = || phases.iter().flatten().map(|(at, _)| *at);
        let (low, high) = (at().min().unwrap_or(0), at().max().unwrap_or(0));
        let at_once = at_once(inputs.div_ceil(stride));
        let each = inputs.div_ceil(stride).max(at_once);
        let width = each.saturating_add(high.abs_diff(low));
        if !packs(g, width) || phases.len().saturating_mul(each) > BUDGET {
            return None;
        }
        let place = |column: usize| Tap::inside(column as isize - low, 0, width).map(|tap| tap.at);
        let tap = |(at, k): &(isize, usize)| Tap {
            at: at.abs_diff(low),
            k: *k,
        };
        Some(Self {
            taps: phases
                .iter()
                .map(|taps| taps.iter().map(tap).collect())
                .collect(),
            outputs: Places::new((0..inputs).map(|i| i % stride * each + i / stride)),
            each,
            at_once,
            first: (0..outputs).find(|c| place(*c).is_some()).unwrap_or(0),
            inputs: Places::new((0..outputs).filter_map(place)),
            width,
        })
    }
}

/// How many of so many outputs are in registers at a time.
fn at_once(outputs: usize) -> usize {
    let [many, few] = AT_ONCE;
    match !outputs.is_multiple_of(many) && outputs.is_multiple_of(few) {
        true => few,
        false => many,
    }
}

/// The outputs that an input meets, inside or not, and by which positions of the kernel, in the order of increasing output.
fn meeting(g: &Geometry, dim: usize, input: usize) -> impl Iterator<Item = (isize, usize)> {
    let (origin, stride) = (g.origin[dim], g.stride[dim] as isize);
    let dilation = g.dilation[dim];
    (0..g.kernel[dim]).rev().filter_map(move |k| {
        let from = input as isize - origin - (k * dilation) as isize;
        (from.rem_euclid(stride) == 0).then_some((from / stride, k))
    })
}

/// Whether each group is one channel in and one out, of which there are many, with so many outputs in a row, and vectors of channels pay for what is
/// packed.
fn fits(g: &Geometry, outputs: usize, most: usize) -> Option<()> {
    let are_alone = [g.cin, g.cout, g.kernel[0]] == [1; 3] && g.groups >= FEWEST;
    (are_alone && g.volume() >= FEW && outputs < most).then_some(())
}

/// Outputs of a row from which on these fill vectors by themselves.
fn short(g: &Geometry) -> usize {
    if g.volume() < MANY { SHORT } else { LONG }
}

/// Whether rows that are so wide, of one window, are no more than a block.
fn packs(g: &Geometry, width: usize) -> bool {
    let rows = (g.kernel[1] - 1).saturating_mul(g.dilation[1]);
    rows.saturating_add(1).saturating_mul(width) <= BUDGET
}

/// From the first to the last row that is read.
fn reach(taps: &[Tap]) -> Range<usize> {
    let at = || taps.iter().map(|tap| tap.at);
    at().min().unwrap_or(0)..at().max().map_or(0, |at| at + 1)
}

/// The channels that are computed together, one group after the other.
fn groups(channels: usize) -> impl Iterator<Item = Range<usize>> {
    (0..channels)
        .step_by(SIDE)
        .map(move |first| first..channels.min(first + SIDE))
}
