//! The sum over a window.

use super::super::halves::Rounded;
use super::super::lift::{Geometry, Slab, SlabMut};
use super::SIDE;
use super::cover::Cover;
use super::images::Images;
use super::pack::{Input, are_finite};
use super::plan::{Block, Plan, Run};
use crate::gemm::{Panel, Rows, TILES, Term, Unit};
use crate::pointwise::vectorized;
use crate::scratch::Room;
use half::bf16;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Places that are computed before their sums are written: those of all channels of a panel stay in the first-level caches.
const PLACES: usize = 512;
/// From where the sums of a channel begin to where those of the next do: not as many lines of the cache as have the same place in it.
/// They include those that the last tile reaches beyond the places.
const APART: usize = PLACES + 48;

/// Writes `y = bias + weight * x` under `g`; `weight` is `[Cout, Cin / groups, kernel]`, contiguous. There are channels, positions and outputs.
pub(in super::super) fn correlate<R: Rounded>(
    unit: &impl Unit,
    x: &Slab<'_, bf16>,
    weight: &[bf16],
    bias: Option<&[f32]>,
    y: &mut SlabMut<'_, R>,
    g: &Geometry,
) {
    let plan = Plan::new(g, y.batch, [x.extent, y.extent], unit.rate());
    let (steps, count) = (plan.steps(), plan.terms.len());
    let panels = g.cout.div_ceil(SIDE);
    let panel = steps * count * TILES;
    let pairs = steps * SIDE / 2 * plan.places;
    let mut room = Room::new();
    let mut words = room.numbers::<u32>(panels * panel + pairs);
    let (weights, packed) = (words.take(panels * panel), words.take(pairs));
    let mut room = Room::new();
    let mut sums = room.numbers::<f32>(SIDE * APART);
    let sums = sums.take(SIDE * APART);
    let mut input = Input::new(&plan, x);
    let blocks = plan.blocks(y.batch, y.extent);
    let (mut cover, mut terms) = (Cover::default(), Vec::new());
    let mut rounded = [R::narrow(0.0); PLACES];
    for group in 0..g.groups {
        let first = group * g.cout;
        let own = &weight[first * g.taps()..][..g.cout * g.taps()];
        pack_weights(own, &plan, weights);
        // Zeros around the input make no number of what is infinite, wherever tiles begin.
        let all = !vectorized(AreFinite(own));
        for block in &blocks {
            input.pairs(group * g.cin, block, packed);
            let numbers: &[u16] = bytemuck::cast_slice(packed);
            let span = plan.span(block);
            // Whole columns.
            let step = PLACES / plan.inner() * plan.inner();
            for from in (0..span).step_by(step) {
                let places = from..span.min(from + step);
                cover.go_to(&plan, block, &places, true, all);
                terms.clear();
                terms.extend(
                    cover
                        .terms
                        .iter()
                        .map(|&term| -> Term { [2 * term * TILES, 2 * plan.terms[term]] }),
                );
                for (i, panel) in weights.chunks_exact(panel).enumerate() {
                    let left = Panel::packed(panel, count * TILES);
                    for tile in &cover.tiles {
                        let right = Panel {
                            numbers: &numbers[2 * tile.place..],
                            step: SIDE * plan.places,
                            tile: SIDE,
                            row: 2 * plan.places,
                        };
                        let mut to = Rows {
                            data: &mut sums[tile.place - from..],
                            apart: APART,
                            wanted: [g.cout - i * SIDE, tile.len],
                        };
                        let terms = &terms[tile.terms.clone()];
                        unit.multiply(steps, terms, left, right, &mut to, false);
                    }
                    let channels = i * SIDE..g.cout.min(i * SIDE + SIDE);
                    vectorized(Write {
                        plan: &plan,
                        block,
                        places: &places,
                        sums,
                        bias: bias.map(|bias| &bias[first..][channels.clone()]),
                        first: first + channels.start,
                        count: channels.len(),
                        rounded: &mut rounded,
                        y,
                    });
                }
            }
        }
    }
}

/// Writes the weights of a group as tiles: panels of output channels, of which each has all steps, of which each has all terms.
fn pack_weights(weight: &[bf16], plan: &Plan, to: &mut [u32]) {
    const ROW: usize = super::DEPTH;
    let (terms, channels) = (plan.terms.len(), plan.channels());
    let taps = terms * channels;
    let to: &mut [u16] = bytemuck::cast_slice_mut(to);
    to.fill(0);
    let panels = to.chunks_exact_mut(plan.steps() * terms * SIDE * ROW);
    for (to, weight) in panels.zip(weight.chunks(SIDE * taps)) {
        for (row, weight) in weight.chunks_exact(taps).enumerate() {
            for step in 0..plan.steps() {
                let own = step * ROW..channels.min((step + 1) * ROW);
                let to = &mut to[step * terms * SIDE * ROW..][..terms * SIDE * ROW];
                if plan.within() == 1 {
                    // Those of all terms of a channel lie one after the other.
                    let weight = &weight[own.start * terms..own.end * terms];
                    pack_row(weight, terms, &mut to[row * ROW..]);
                    continue;
                }
                for term in 0..terms {
                    let to = &mut to[(term * SIDE + row) * ROW..][..own.len()];
                    for (to, tap) in to.iter_mut().zip(plan.taps(own.clone(), term)) {
                        *to = weight[tap].to_bits();
                    }
                }
            }
        }
    }
}

/// Writes a row of each of so many terms' tiles, two channels at a time.
fn pack_row(weight: &[bf16], terms: usize, to: &mut [u16]) {
    const APART: usize = SIDE * super::DEPTH;
    let pairs = weight.chunks_exact(2 * terms);
    let last = pairs.remainder();
    let own = to.len().min((terms - 1) * APART + super::DEPTH);
    let to = &mut to[..own];
    let count = pairs.len();
    for (pair, weight) in pairs.enumerate() {
        let (low, high) = weight.split_at(terms);
        for ((low, high), to) in low.iter().zip(high).zip(to.chunks_mut(APART)) {
            to[2 * pair] = low.to_bits();
            to[2 * pair + 1] = high.to_bits();
        }
    }
    for (weight, to) in last.iter().zip(to.chunks_mut(APART)) {
        to[2 * count] = weight.to_bits();
    }
}

/// Whether all numbers are finite.
struct AreFinite<'a>(&'a [bf16]);

impl WithSimd for AreFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let numbers: &[u16] = bytemuck::cast_slice(self.0);
        are_finite(numbers)
    }
}

/// Some places' sums of some channels, that are written where they belong.
struct Write<'a, 'y, R> {
    plan: &'a Plan,
    block: &'a Block,
    places: &'a Range<usize>,
    sums: &'a [f32],
    bias: Option<&'a [f32]>,
    first: usize,
    count: usize,
    /// Memory for those of a row.
    rounded: &'a mut [R],
    y: &'a mut SlabMut<'y, R>,
}

impl<R: Rounded> WithSimd for Write<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { plan, y, first, .. } = self;
        let images = Images {
            inner: plan.inner(),
            jump: y.step[2],
            apart: y.outer[0],
        };
        let runs = plan.runs(self.block, self.places);
        let runs: Vec<(Run, isize)> = runs
            .map(|run| {
                let from = y.within(run.at) + run.image as isize * y.outer[0];
                (run, from)
            })
            .collect();
        let mut fours = Vec::new();
        for (run, from) in runs.iter().filter(|_| images.inner > 1) {
            let place = run.place - self.places.start;
            images.add(place, run.len, run.images, *from, &mut fours);
        }
        for channel in 0..self.count {
            let bias = self.bias.map_or(0.0, |bias| bias[channel]);
            let sums = &self.sums[channel * APART..][..self.places.len()];
            let start = y.start(0, first + channel);
            if images.inner > 1 {
                for (to, sum) in self.rounded.iter_mut().zip(sums) {
                    *to = R::narrow(sum + bias);
                }
                images.put(self.rounded, start, &fours, &mut y.data[..]);
                continue;
            }
            for (run, from) in &runs {
                let at = start.wrapping_add_signed(*from);
                let sums = &sums[run.place - self.places.start..][..run.len];
                put(sums, bias, &mut y.data[..], at, y.step[2]);
            }
        }
    }
}

/// Writes sums with a bias, so far from each other.
#[inline(always)]
fn put<R: Rounded>(sums: &[f32], bias: f32, to: &mut [R], at: usize, step: isize) {
    if step == 1 {
        for (to, sum) in to[at..at + sums.len()].iter_mut().zip(sums) {
            *to = R::narrow(sum + bias);
        }
        return;
    }
    // They are rounded side by side, and then moved one by one.
    let mut rounded = [R::narrow(0.0); SIDE];
    for (number, sums) in sums.chunks(SIDE).enumerate() {
        for (to, sum) in rounded.iter_mut().zip(sums) {
            *to = R::narrow(sum + bias);
        }
        for (i, x) in rounded[..sums.len()].iter().enumerate() {
            let from_first = (number * SIDE + i) as isize * step;
            to[at.wrapping_add_signed(from_first)] = *x;
        }
    }
}
