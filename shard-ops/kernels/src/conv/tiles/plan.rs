//! Which numbers of the input are channels, and where they lie in a packed block.

use super::super::lift::Geometry;
use super::order::{Order, Sizes};
use super::{DEPTH, SIDE};
use std::ops::Range;

/// Terms, a bit for each; of more than there are bits all are taken.
pub(super) type Needed = u128;

/// A convolution as sums of products of tiles.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) geometry: Geometry,
    /// The first of the dims whose kernel positions are channels.
    folded: usize,
    /// Kernel positions that are channels.
    within: usize,
    /// Distinct phases that positions of the other dims fall into.
    phases: [Vec<usize>; 3],
    order: Order,
    /// Places of a block's dims that its outputs read beyond their number.
    reach: [usize; 3],
    /// Places of all images of one phase.
    volume: usize,
    /// How many places ahead each kernel position that is no channel reads, row-major.
    pub(super) terms: Vec<usize>,
    /// Of each dim's positions: the outputs that read the input there, not zeros around it, and its terms.
    needed: [Vec<(Range<usize>, Needed)>; 3],
    /// Places of a packed channel; some behind those that are of use may be read.
    pub(super) places: usize,
}

/// Outputs that are computed from one packing.
#[derive(Clone, Debug)]
pub(super) struct Block {
    images: Range<usize>,
    outputs: [Range<usize>; 3],
}

/// Outputs of a block side by side.
#[derive(Debug)]
pub(super) struct Run {
    /// The place of the first.
    pub(super) place: usize,
    /// Its image and its indices.
    pub(super) image: usize,
    pub(super) at: [usize; 3],
    /// How many images lie side by side at each column.
    pub(super) images: usize,
    /// Columns, of which the last may lack images behind those that there are.
    pub(super) len: usize,
    /// The place behind the last output.
    pub(super) until: usize,
}

/// Consecutive places of a row of packed channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its first place.
    pub(super) place: usize,
    /// The image, and how many lie side by side from it on.
    pub(super) image: usize,
    pub(super) images: usize,
    /// The input's indices there of the first kernel position.
    pub(super) at: [isize; 3],
}

impl Plan {
    /// For so many images of inputs and outputs of some extents, and a unit of some [rate](crate::gemm::Unit::rate).
    pub(super) fn new(
        g: &Geometry,
        batch: usize,
        [inputs, outputs]: [[usize; 3]; 2],
        rate: usize,
    ) -> Self {
        let folded = folded(g);
        let phases: [Vec<usize>; 3] = core::array::from_fn(|d| phases(g, folded, d));
        let reach: [usize; 3] = core::array::from_fn(|d| reach(g, folded, d));
        let count: usize = phases.iter().map(Vec::len).product();
        let within = g.kernel[folded..].iter().product::<usize>();
        let kernel: [usize; 3] = core::array::from_fn(|d| if d < folded { g.kernel[d] } else { 1 });
        let read: [Vec<Range<usize>>; 3] = core::array::from_fn(|d| match d < folded {
            true => (0..kernel[d])
                .map(|k| reads(g, d, k, inputs[d], outputs[d]))
                .collect(),
            false => std::iter::once(0..outputs[d]).collect(),
        });
        let shared: [usize; 3] =
            core::array::from_fn(|d| shared(g, &phases[d], d, inputs[d], outputs[d] + reach[d]));
        let order = Order::best(&Sizes {
            batch,
            outputs,
            reach,
            shared,
            read: &read,
            is_folded: within > 1,
            steps: (g.cin * within).div_ceil(DEPTH),
            panels: g.cout.div_ceil(SIDE),
            phases: count,
            rate,
        });
        let Order { extent, inner, .. } = order;
        let last = [0, 1, 2].map(|d| order.block[d] + reach[d] - 1);
        let volume = (order.place(order.images - 1, last) + 1).next_multiple_of(inner);
        let mut terms = Vec::new();
        for kd in 0..kernel[0] {
            for kh in 0..kernel[1] {
                for kw in 0..kernel[2] {
                    let (mut phase, mut ahead) = (0, 0);
                    for (d, k) in [kd, kh, kw].into_iter().enumerate() {
                        let [at, steps] = [
                            k * g.dilation[d] % g.stride[d],
                            k * g.dilation[d] / g.stride[d],
                        ];
                        let number = phases[d].iter().position(|p| *p == at).unwrap_or(0);
                        phase = phase * phases[d].len() + number;
                        ahead = ahead * extent[d] + steps;
                    }
                    terms.push(phase * volume + ahead * inner);
                }
            }
        }
        // An odd number of lines of the cache, so that channels spread over it.
        let lines = (count * volume + SIDE).div_ceil(DEPTH) | 1;
        Self {
            geometry: *g,
            folded,
            within,
            phases,
            order,
            reach,
            volume,
            terms,
            needed: needed(read),
            places: lines * DEPTH,
        }
    }

    /// Numbers whose products are summed at a place.
    pub(super) fn channels(&self) -> usize {
        self.geometry.cin * self.within
    }

    /// Kernel positions that are channels of their own.
    pub(super) fn within(&self) -> usize {
        self.within
    }

    /// Steps of the unit for these.
    pub(super) fn steps(&self) -> usize {
        self.channels().div_ceil(DEPTH)
    }

    /// Where the weights of some channels and a term lie among those of an output channel.
    #[inline(always)]
    pub(super) fn taps(
        &self,
        channels: Range<usize>,
        term: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let (within, apart) = (self.within, self.terms.len() * self.within);
        let mut k = channels.start % within;
        let mut at = channels.start / within * apart + term * within + k;
        channels.map(move |_| {
            let tap = at;
            (k, at) = match k + 1 == within {
                true => (0, at + 1 + apart - within),
                false => (k + 1, at + 1),
            };
            tap
        })
    }

    /// The blocks that cover so many images of some outputs.
    pub(super) fn blocks(&self, batch: usize, outputs: [usize; 3]) -> Vec<Block> {
        let cut = |n: usize, size: usize| {
            (0..n)
                .step_by(size)
                .map(move |from| from..(from + size).min(n))
        };
        let mut blocks = Vec::new();
        for images in cut(batch, self.order.images) {
            for planes in cut(outputs[0], self.order.block[0]) {
                for rows in cut(outputs[1], self.order.block[1]) {
                    for cols in cut(outputs[2], self.order.block[2]) {
                        blocks.push(Block {
                            images: images.clone(),
                            outputs: [planes.clone(), rows.clone(), cols],
                        });
                    }
                }
            }
        }
        blocks
    }

    /// Places from that of a block's first output to that of its last.
    pub(super) fn span(&self, block: &Block) -> usize {
        let last = [0, 1, 2].map(|d| block.outputs[d].len() - 1);
        self.order.place(block.images.len() - 1, last) + 1
    }

    /// How many images lie side by side.
    pub(super) fn inner(&self) -> usize {
        self.order.inner
    }

    /// The outputs of a block whose places are in an interval, which begins where a column does.
    pub(super) fn runs(&self, block: &Block, places: &Range<usize>) -> impl Iterator<Item = Run> {
        let [planes, rows, cols] = block.outputs.clone();
        let (places, images) = (places.clone(), block.images.clone());
        let Order { extent, inner, .. } = self.order;
        let width = extent[2] * inner;
        // The rows of the first and the last place, if all rows of all planes of all images are counted.
        let first = places.start / width;
        let last = places.end.saturating_sub(1) / width;
        (first..=last).filter_map(move |row| {
            let [plane, h] = [row / extent[1], row % extent[1]];
            let [image, d] = [plane / extent[0] * inner, plane % extent[0]];
            let start = row * width;
            let from = start.max(places.start);
            let until = (start + cols.len() * inner).min(places.end);
            let is_inside =
                image < images.len() && d < planes.len() && h < rows.len() && from < until;
            is_inside.then(|| Run {
                place: from,
                image: images.start + image,
                images: inner.min(images.len() - image),
                at: [
                    planes.start + d,
                    rows.start + h,
                    cols.start + (from - start) / inner,
                ],
                len: (until - from).div_ceil(inner),
                until,
            })
        })
    }

    /// The terms that read an input for one of a run's outputs at some places.
    pub(super) fn needed(&self, run: &Run, places: Range<usize>) -> Needed {
        let inner = self.order.inner;
        let column = |place: usize| place.saturating_sub(run.place);
        let first = column(places.start) / inner;
        let until = column(places.end).div_ceil(inner).min(run.len);
        let columns = run.at[2] + first..run.at[2] + until;
        let [planes, rows, cols] = &self.needed;
        let cols = cols
            .iter()
            .filter(|(read, _)| columns.start.max(read.start) < columns.end.min(read.end));
        let cols = cols.fold(0, |all, (_, terms)| all | terms);
        let of = |reads: &[(Range<usize>, Needed)], output: usize| {
            let met = reads.iter().filter(|(read, _)| read.contains(&output));
            met.fold(0, |all, (_, terms)| all | terms)
        };
        of(planes, run.at[0]) & of(rows, run.at[1]) & cols
    }

    /// The rows of packed channels that the outputs of a block read, in order; one may begin with the zeros that one before it ends with.
    pub(super) fn rows(&self, block: &Block, to: &mut Vec<Row>) {
        let g = &self.geometry;
        let used = |d: usize| block.outputs[d].len() + self.reach[d];
        to.clear();
        let mut number = 0;
        for pd in &self.phases[0] {
            for ph in &self.phases[1] {
                for pw in &self.phases[2] {
                    for image in (0..block.images.len()).step_by(self.order.inner) {
                        for d in 0..used(0) {
                            for h in 0..used(1) {
                                let (phase, place) = ([pd, ph, pw], [d, h, 0]);
                                let input = |dim: usize| {
                                    let output = block.outputs[dim].start + place[dim];
                                    (output * g.stride[dim] + phase[dim]) as isize + g.origin[dim]
                                };
                                to.push(Row {
                                    place: number * self.volume + self.order.place(image, place),
                                    image: block.images.start + image,
                                    images: self.order.inner.min(block.images.len() - image),
                                    at: [input(0), input(1), input(2)],
                                });
                            }
                        }
                    }
                    number += 1;
                }
            }
        }
    }

    /// How many indices further than a row's first kernel position a channel reads.
    pub(super) fn shift(&self, channel: usize) -> [isize; 3] {
        let g = &self.geometry;
        let mut k = channel % self.within;
        let mut shift = [0; 3];
        for d in (self.folded..3).rev() {
            shift[d] = (k % g.kernel[d] * g.dilation[d]) as isize;
            k /= g.kernel[d];
        }
        shift
    }

    /// The input channel that a channel reads.
    pub(super) fn source(&self, channel: usize) -> usize {
        channel / self.within
    }

    /// Places of a row.
    pub(super) fn width(&self) -> usize {
        self.order.block[2] + self.reach[2]
    }
}

/// The outputs that read the input at a position of the kernel.
fn reads(g: &Geometry, d: usize, k: usize, inputs: usize, outputs: usize) -> Range<usize> {
    let (stride, first) = (g.stride[d] as isize, g.input(d, 0, k));
    // Outputs before the first that reads the first input, and before the first that reads behind the last.
    let until = |limit: isize| {
        let outputs = outputs as isize;
        (limit - first + stride - 1)
            .div_euclid(stride)
            .clamp(0, outputs) as usize
    };
    until(0)..until(inputs as isize)
}

/// The outputs that read the input at each of the dims' positions, with their terms.
fn needed(read: [Vec<Range<usize>>; 3]) -> [Vec<(Range<usize>, Needed)>; 3] {
    let [planes, rows, cols] = read.each_ref().map(Vec::len);
    let mut number = 0;
    let mut needed = read.map(|read| -> Vec<(Range<usize>, Needed)> {
        read.into_iter().map(|read| (read, 0)).collect()
    });
    for d in 0..planes {
        for h in 0..rows {
            for w in 0..cols {
                let bit = Needed::checked_shl(1, number).unwrap_or(0);
                for (needed, k) in needed.iter_mut().zip([d, h, w]) {
                    needed[k].1 |= bit;
                }
                number += 1;
            }
        }
    }
    needed
}

/// How many zeros there are both at the beginning and at the end of so many places of a whole dim, in all phases: those of one row, plane or
/// image are those of the next, so that they are there once.
fn shared(g: &Geometry, phases: &[usize], d: usize, inputs: usize, places: usize) -> usize {
    let stride = g.stride[d] as isize;
    let zeros = phases.iter().map(|phase| {
        let first = g.origin[d] + *phase as isize;
        // Places before the first input, and before the first that is behind them.
        let until = |limit: isize| (limit - first + stride - 1).div_euclid(stride).max(0) as usize;
        until(0).min(places.saturating_sub(until(inputs as isize)))
    });
    zeros.min().unwrap_or(0)
}

/// The first dim whose kernel positions are channels: none of them, unless those of the last dims fill steps of the unit that would be
/// empty otherwise, and by more than it takes to pack them. It depends on no extents, so that sums have one order wherever they are computed.
fn folded(g: &Geometry) -> usize {
    // In half cycles per place.
    let cost = |folded: usize| {
        let within: usize = g.kernel[folded..].iter().product();
        let (steps, terms) = (
            (g.cin * within).div_ceil(DEPTH),
            g.kernel[..folded].iter().product::<usize>(),
        );
        let phases: usize = (0..3).map(|d| phases(g, folded, d).len()).product();
        let word = if g.stride[2] == 1 { 1 } else { 4 };
        4 * g.cout.div_ceil(SIDE) * steps * terms + steps * DEPTH / 2 * phases * word
    };
    (0..=3)
        .rev()
        .min_by_key(|folded| cost(*folded))
        .unwrap_or(3)
}

fn phases(g: &Geometry, folded: usize, d: usize) -> Vec<usize> {
    if d >= folded {
        return vec![0];
    }
    let mut phases: Vec<usize> = (0..g.kernel[d])
        .map(|k| k * g.dilation[d] % g.stride[d])
        .collect();
    phases.sort_unstable();
    phases.dedup();
    phases
}

/// How many places a window reaches beyond its first.
fn reach(g: &Geometry, folded: usize, d: usize) -> usize {
    match d < folded {
        true => g.kernel[d].saturating_sub(1) * g.dilation[d] / g.stride[d],
        false => 0,
    }
}
