//! Which numbers of the input are channels, and where they lie in a packed block.

use super::super::lift::Geometry;
use super::{DEPTH, SIDE};
use std::ops::Range;

/// Bytes of a packed block: a fourth of a second-level cache, as processors with such a unit have it.
const BUDGET: usize = 512 << 10;
/// What it takes to begin a row, in numbers.
const START: usize = 16;

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
    /// Outputs of a block, of each of some images.
    images: usize,
    block: [usize; 3],
    /// Places of a block's dims that its outputs read beyond their number.
    reach: [usize; 3],
    /// Places from one column, row, plane to the next, of one phase of a packed channel: those that a dim's outputs read, without zeros at
    /// its end that are those at the beginning of what comes next.
    extent: [usize; 3],
    /// Places of all images of one phase.
    volume: usize,
    /// How many places ahead each kernel position that is no channel reads, row-major.
    pub(super) terms: Vec<usize>,
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
pub(super) struct Run {
    /// The place of the first.
    pub(super) place: usize,
    /// Its image and its indices.
    pub(super) image: usize,
    pub(super) at: [usize; 3],
    pub(super) len: usize,
}

/// Consecutive places of a row of packed channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its first place.
    pub(super) place: usize,
    /// The image, and the input's indices there of the first kernel position.
    pub(super) image: usize,
    pub(super) at: [isize; 3],
}

impl Plan {
    /// For so many images of inputs and outputs of some extents.
    pub(super) fn new(g: &Geometry, batch: usize, inputs: [usize; 3], outputs: [usize; 3]) -> Self {
        let folded = folded(g);
        let phases: [Vec<usize>; 3] = core::array::from_fn(|d| phases(g, folded, d));
        let reach: [usize; 3] = core::array::from_fn(|d| reach(g, folded, d));
        let count: usize = phases.iter().map(Vec::len).product();
        let within = g.kernel[folded..].iter().product::<usize>();
        let per_place = (g.cin * within).div_ceil(DEPTH) * DEPTH * size_of::<u16>() * count;
        let most = BUDGET / per_place.max(1);
        let block = block(outputs, reach, most);
        let extent: [usize; 3] = core::array::from_fn(|d| {
            let shared = match block[d] == outputs[d] {
                true => shared(g, &phases[d], d, inputs[d], block[d] + reach[d]),
                false => 0,
            };
            block[d] + reach[d] - shared.min(reach[d])
        });
        let image: usize = extent.iter().product();
        let images = match block == outputs {
            true => even(batch, batch.div_ceil((most / image).clamp(1, batch))),
            false => 1,
        };
        let last = [0, 1, 2].map(|d| block[d] + reach[d] - 1);
        let volume = place(&extent, images - 1, last) + 1;
        let mut terms = Vec::new();
        let kernel = |d: usize| if d < folded { g.kernel[d] } else { 1 };
        for kd in 0..kernel(0) {
            for kh in 0..kernel(1) {
                for kw in 0..kernel(2) {
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
                    terms.push(phase * volume + ahead);
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
            images,
            block,
            reach,
            extent,
            volume,
            terms,
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
        for images in cut(batch, self.images) {
            for planes in cut(outputs[0], self.block[0]) {
                for rows in cut(outputs[1], self.block[1]) {
                    for cols in cut(outputs[2], self.block[2]) {
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
        self.place(block.images.len() - 1, last) + 1
    }

    /// The place of an output, by its image and its indices in a block.
    fn place(&self, image: usize, at: [usize; 3]) -> usize {
        place(&self.extent, image, at)
    }

    /// The outputs of a block whose places are in an interval.
    pub(super) fn runs(&self, block: &Block, places: &Range<usize>) -> impl Iterator<Item = Run> {
        let [planes, rows, cols] = block.outputs.clone();
        let (places, images) = (places.clone(), block.images.clone());
        // The rows of the first and the last place, if all rows of all planes of all images are counted.
        let first = places.start / self.extent[2];
        let last = places.end.saturating_sub(1) / self.extent[2];
        (first..=last).filter_map(move |row| {
            let [plane, h] = [row / self.extent[1], row % self.extent[1]];
            let [image, d] = [plane / self.extent[0], plane % self.extent[0]];
            let start = row * self.extent[2];
            let from = start.max(places.start);
            let until = (start + cols.len()).min(places.end);
            let is_inside =
                image < images.len() && d < planes.len() && h < rows.len() && from < until;
            is_inside.then(|| Run {
                place: from,
                image: images.start + image,
                at: [planes.start + d, rows.start + h, cols.start + from - start],
                len: until - from,
            })
        })
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
                    for image in 0..block.images.len() {
                        for d in 0..used(0) {
                            for h in 0..used(1) {
                                let (phase, place) = ([pd, ph, pw], [d, h, 0]);
                                let input = |dim: usize| {
                                    let output = block.outputs[dim].start + place[dim];
                                    (output * g.stride[dim] + phase[dim]) as isize + g.origin[dim]
                                };
                                to.push(Row {
                                    place: number * self.volume + self.place(image, place),
                                    image: block.images.start + image,
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
        self.block[2] + self.reach[2]
    }
}

/// The place of what has these indices in an image.
fn place(extent: &[usize; 3], image: usize, [d, h, w]: [usize; 3]) -> usize {
    ((image * extent[0] + d) * extent[1] + h) * extent[2] + w
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

/// How large about so many parts of something are that are alike.
fn even(n: usize, parts: usize) -> usize {
    n.div_ceil(n.div_ceil(n.div_ceil(parts)))
}

/// The blocks of which least is packed, of those that have no more than `most` places, if there are such.
fn block(outputs: [usize; 3], reach: [usize; 3], most: usize) -> [usize; 3] {
    let cuts = |n: usize| {
        let parts = (0..usize::BITS)
            .map(|bit| 1 << bit)
            .take_while(move |parts| *parts < 2 * n);
        parts.map(move |parts| even(n, parts.min(n)))
    };
    let with = |size: [usize; 3]| -> [usize; 3] { core::array::from_fn(|d| size[d] + reach[d]) };
    let mut best = ([1; 3], (true, usize::MAX));
    for planes in cuts(outputs[0]) {
        for cols in cuts(outputs[2]) {
            let [depth, _, width] = with([planes, 1, cols]);
            let rows = (most / (depth * width)).saturating_sub(reach[1]);
            let rows = rows.clamp(1, outputs[1]);
            let size = [planes, even(outputs[1], outputs[1].div_ceil(rows)), cols];
            let [depth, height, width] = with(size);
            let count: usize = (0..3).map(|d| outputs[d].div_ceil(size[d])).product();
            let is_larger = depth * height * width > most;
            let packed = count * depth * height * (width + START);
            if (is_larger, packed) < best.1 {
                best = (size, (is_larger, packed));
            }
        }
    }
    best.0
}
