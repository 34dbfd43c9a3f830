//! The sum over a window.

use super::super::lift::{Geometry, Slab, SlabMut};
use super::SIDE;
use super::pack::Input;
use super::plan::{Block, Plan};
use crate::attention::Stored;
use crate::gemm::{Panel, Rows, TILES, Term, Unit};
use crate::pointwise::vectorized;
use crate::scratch::Room;
use half::bf16;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Places that are computed before their sums are written: those of all channels of a panel stay in the first-level caches.
const PLACES: usize = 512;
/// From where the sums of a channel begin to where those of the next do: not as many lines of the cache as have the same place in it.
const APART: usize = PLACES + 16;

/// Writes `y = bias + weight * x` under `g`; `weight` is `[Cout, Cin / groups, kernel]`, contiguous. There are channels, positions and outputs.
pub(in super::super) fn correlate<R: Stored<Acc = f32>>(
    unit: &impl Unit,
    x: &Slab<'_, bf16>,
    weight: &[bf16],
    bias: Option<&[f32]>,
    y: &mut SlabMut<'_, R>,
    g: &Geometry,
) {
    let plan = Plan::new(g, y.batch, x.extent, y.extent);
    let (steps, count) = (plan.steps(), plan.terms.len());
    let terms: Vec<Term> = (plan.terms.iter().enumerate())
        .map(|(term, ahead)| [2 * term * TILES, 2 * ahead])
        .collect();
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
    for group in 0..g.groups {
        let first = group * g.cout;
        pack_weights(
            &weight[first * g.taps()..][..g.cout * g.taps()],
            &plan,
            weights,
        );
        for block in &blocks {
            input.pairs(group * g.cin, block, packed);
            let numbers: &[u16] = bytemuck::cast_slice(packed);
            let span = plan.span(block);
            for from in (0..span).step_by(PLACES) {
                let places = from..span.min(from + PLACES);
                for (i, panel) in weights.chunks_exact(panel).enumerate() {
                    let left = Panel::packed(panel, count * TILES);
                    for place in places.clone().step_by(SIDE) {
                        let right = Panel {
                            numbers: &numbers[2 * place..],
                            step: SIDE * plan.places,
                            tile: SIDE,
                            row: 2 * plan.places,
                        };
                        let mut to = Rows {
                            data: &mut sums[place - from..],
                            apart: APART,
                            wanted: [g.cout - i * SIDE, places.end - place],
                        };
                        unit.multiply(steps, &terms, left, right, &mut to, false);
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
                for term in 0..terms {
                    let to = &mut to[((step * terms + term) * SIDE + row) * ROW..][..own.len()];
                    if plan.within() == 1 {
                        // Those of all terms of a channel lie one after the other.
                        let weight = weight[own.start * terms..].chunks_exact(terms);
                        for (to, taps) in to.iter_mut().zip(weight) {
                            *to = taps[term].to_bits();
                        }
                    } else {
                        for (to, tap) in to.iter_mut().zip(plan.taps(own.clone(), term)) {
                            *to = weight[tap].to_bits();
                        }
                    }
                }
            }
        }
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
    y: &'a mut SlabMut<'y, R>,
}

impl<R: Stored<Acc = f32>> WithSimd for Write<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { plan, y, first, .. } = self;
        for run in plan.runs(self.block, self.places) {
            let within = y.within(run.at);
            for channel in 0..self.count {
                let bias = self.bias.map_or(0.0, |bias| bias[channel]);
                let sums = channel * APART + run.place - self.places.start;
                let sums = &self.sums[sums..][..run.len];
                let at = y
                    .start(run.image, first + channel)
                    .wrapping_add_signed(within);
                if y.step[2] == 1 {
                    for (to, sum) in y.data[at..at + run.len].iter_mut().zip(sums) {
                        *to = R::narrow(sum + bias);
                    }
                    continue;
                }
                // They are rounded side by side, and then moved one by one.
                let mut rounded = [R::narrow(0.0); SIDE];
                for (number, sums) in sums.chunks(SIDE).enumerate() {
                    for (to, sum) in rounded.iter_mut().zip(sums) {
                        *to = R::narrow(sum + bias);
                    }
                    for (i, x) in rounded[..sums.len()].iter().enumerate() {
                        let from_first = (number * SIDE + i) as isize * y.step[2];
                        y.data[at.wrapping_add_signed(from_first)] = *x;
                    }
                }
            }
        }
    }
}
