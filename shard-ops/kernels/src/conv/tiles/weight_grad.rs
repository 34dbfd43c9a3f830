//! The gradient with respect to the weight: sums over places, of inputs as they are packed for the value and gradients of the
//! outputs at their places, with zeros between.

use super::super::lift::{Geometry, Slab};
use super::super::weight_grad::join;
use super::cover::{Cover, Tile};
use super::images::Images;
use super::pack::{Input, are_finite};
use super::plan::{Block, Plan, Run};
use super::{DEPTH, SIDE};
use crate::arrays::numbered;
use crate::copy::copy;
use crate::gemm::{Panel, Rows, TILES, Term, Unit};
use crate::pointwise::vectorized;
use crate::scratch::Room;
use crate::turn::{self, turned};
use crate::{View, ViewMut};
use half::bf16;
use pulp::{Simd, WithSimd};

/// Steps that are summed before others of the same inputs and outputs are: what is read for them stays in the first-level cache.
const STEPS: usize = 16;
/// Places that are summed in `f32`, about.
const FLUSH: usize = 8192;

/// Writes the gradient, `[Cout, Cin / groups, kernel]`, and tells whether that is right: of inputs that are infinite or no numbers it is not, as
/// zeros between outputs are multiplied by them. There are channels, positions and outputs.
fn sum(
    unit: &impl Unit,
    x: &Slab<'_, bf16>,
    dy: &Slab<'_, bf16>,
    plan: &Plan,
    grad: &mut [f32],
) -> bool {
    let g = &plan.geometry;
    let (channels, terms) = (plan.channels(), plan.terms.len());
    let [inputs, outputs] = [channels, g.cout].map(|n| n.next_multiple_of(SIDE));
    let [numbers, steps] = [inputs * plan.places, plan.places.div_ceil(DEPTH)];
    let mut room = Room::new();
    let mut room =
        room.numbers::<u16>(numbers + 2 * outputs / SIDE * steps * TILES + SIDE * steps * DEPTH);
    let packed = room.take(numbers);
    let right = room.take(2 * outputs / SIDE * steps * TILES);
    let lines = room.take(SIDE * steps * DEPTH);
    let mut room = Room::new();
    let sums = room
        .numbers::<f32>(terms * inputs * outputs)
        .take(terms * inputs * outputs);
    let mut input = Input::new(plan, x);
    let blocks = plan.blocks(dy.batch, dy.extent);
    // Of more places than are summed in `f32`.
    let mut totals = Vec::new();
    let mut cover = Cover::default();
    let mut lists = Lists {
        of_terms: vec![Vec::new(); terms],
        begun: vec![false; terms],
    };
    let all = channels * terms * g.cout;
    for (group, grad) in grad.chunks_exact_mut(all).enumerate() {
        let mut summed = 0;
        totals.clear();
        lists.begun.fill(false);
        for block in &blocks {
            if !input.channels(group * g.cin, block, packed) {
                return false;
            }
            let span = plan.span(block);
            cover.go_to(plan, block, &(0..span), false, false);
            let words: &mut [u32] = bytemuck::cast_slice_mut(&mut *right);
            let panels = words.chunks_exact_mut(cover.tiles.len() * TILES);
            let mut is_finite = true;
            for (panel, to) in panels.take(outputs / SIDE).enumerate() {
                let channels = panel * SIDE..g.cout.min((panel + 1) * SIDE);
                is_finite &= vectorized(Outputs {
                    plan,
                    dy,
                    block,
                    first: group * g.cout + channels.start,
                    count: channels.len(),
                    tiles: &cover.tiles,
                    lines: &mut *lines,
                    to,
                });
            }
            if !is_finite {
                // Zeros around the input make no number of what is infinite, wherever tiles begin.
                cover.go_to(plan, block, &(0..span), false, true);
            }
            let panels = [inputs / SIDE, outputs / SIDE];
            lists.add(unit, plan, &cover, [&*packed, &*right], panels, sums);
            summed += span;
            if summed >= FLUSH {
                totals.resize(all, 0.0);
                lists.clear(sums, outputs);
                join_padded(sums, outputs, &mut totals, g.cout);
                lists.begun.fill(false);
                summed = 0;
            }
        }
        if totals.is_empty() || summed > 0 {
            lists.clear(sums, outputs);
        }
        if !totals.is_empty() {
            if summed > 0 {
                join_padded(sums, outputs, &mut totals, g.cout);
            }
            let rows = totals.chunks_exact(g.cout);
            for (to, totals) in sums.chunks_exact_mut(outputs).zip(rows) {
                for (to, total) in to.iter_mut().zip(totals) {
                    *to = *total as f32;
                }
            }
        }
        let shape = [g.cin, plan.within(), terms, g.cout];
        let row = (terms * outputs) as isize;
        let steps = [row * plan.within() as isize, row, outputs as isize, 1];
        copy(
            &View::new(sums, 0, &shape, &steps).permute(&[3, 0, 2, 1]),
            &mut ViewMut::contiguous(grad, &[g.cout, g.cin, terms, plan.within()]),
        );
    }
    true
}

/// The gradient, `[Cout, Cin / groups, kernel]`; `None` of inputs that are infinite or no numbers. There are channels, positions and outputs.
pub(in super::super) fn weight_grad(
    unit: &impl Unit,
    x: &Slab<'_, bf16>,
    dy: &Slab<'_, bf16>,
    g: &Geometry,
) -> Option<Vec<f32>> {
    let plan = Plan::new(g, dy.batch, [x.extent, dy.extent], unit.rate());
    let mut grad = vec![0.0; g.groups * plan.terms.len() * plan.channels() * g.cout];
    sum(unit, x, dy, &plan, &mut grad).then_some(grad)
}

/// Of each term, tiles that need it.
struct Lists {
    /// Where they begin among the inputs, and their gradients of outputs.
    of_terms: Vec<Vec<Term>>,
    /// Whether there were any since sums began.
    begun: Vec<bool>,
}

impl Lists {
    /// Adds the products of a block's inputs, as they are packed, and of gradients of its outputs, in so many panels of either.
    fn add(
        &mut self,
        unit: &impl Unit,
        plan: &Plan,
        cover: &Cover,
        [inputs, outputs]: [&[u16]; 2],
        panels: [usize; 2],
        sums: &mut [f32],
    ) {
        let (terms, apart) = (plan.terms.len(), cover.tiles.len() * 2 * TILES);
        let width = terms * panels[1] * SIDE;
        for (number, tiles) in cover.tiles.chunks(STEPS).enumerate() {
            self.of_terms.iter_mut().for_each(Vec::clear);
            for (i, tile) in tiles.iter().enumerate() {
                let right = 2 * (number * STEPS + i) * TILES;
                for &term in &cover.terms[tile.terms.clone()] {
                    self.of_terms[term].push([tile.place + plan.terms[term], right]);
                }
            }
            for (term, list) in self.of_terms.iter().enumerate() {
                if list.is_empty() {
                    continue;
                }
                for row in 0..panels[0] {
                    let left = Panel {
                        numbers: &inputs[row * SIDE * plan.places..],
                        step: DEPTH,
                        tile: SIDE / 2 * plan.places,
                        row: plan.places,
                    };
                    for (panel, right) in outputs.chunks_exact(apart).take(panels[1]).enumerate() {
                        let right = Panel::packed(bytemuck::cast_slice(right), TILES);
                        let at = row * SIDE * width + (term * panels[1] + panel) * SIDE;
                        let mut to = Rows::whole(&mut sums[at..], width);
                        unit.multiply(1, list, left, right, &mut to, self.begun[term]);
                    }
                }
                self.begun[term] = true;
            }
        }
    }

    /// Makes zeros of sums that no tile was added to, in rows of so many of each term.
    fn clear(&self, sums: &mut [f32], padded: usize) {
        for row in sums.chunks_exact_mut(self.begun.len() * padded) {
            for (sums, begun) in row.chunks_exact_mut(padded).zip(&self.begun) {
                if !begun {
                    sums.fill(0.0);
                }
            }
        }
    }
}

/// Adds rows of sums, as they are padded, to rows of totals.
fn join_padded(sums: &[f32], padded: usize, totals: &mut [f64], width: usize) {
    for (sums, totals) in sums
        .chunks_exact(padded)
        .zip(totals.chunks_exact_mut(width))
    {
        join(sums, totals);
    }
}

/// Writes gradients of a block's outputs as tiles on the right, of some channels, and tells whether all are finite.
struct Outputs<'a, 'b, 't> {
    plan: &'a Plan,
    dy: &'a Slab<'b, bf16>,
    block: &'a Block,
    first: usize,
    count: usize,
    tiles: &'a [Tile],
    /// Memory for the lines of all channels.
    lines: &'t mut [u16],
    to: &'t mut [u32],
}

impl WithSimd for Outputs<'_, '_, '_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let Self {
            plan, dy, first, ..
        } = self;
        let data: &[u16] = bytemuck::cast_slice(dy.data);
        let places = 0..plan.span(self.block);
        // A tile may reach beyond the last output.
        let width = (places.end + DEPTH).next_multiple_of(2);
        let lines = &mut self.lines[..SIDE * width];
        lines.fill(0);
        let images = Images {
            inner: plan.inner(),
            jump: dy.step[2],
            apart: dy.outer[0],
        };
        let runs: Vec<Run> = plan.runs(self.block, &places).collect();
        let within = |run: &Run| -> isize {
            let at = run.at.iter().zip(&dy.step);
            let within: isize = at.map(|(at, step)| *at as isize * step).sum();
            run.image as isize * dy.outer[0] + within
        };
        let mut fours = Vec::new();
        for run in runs.iter().filter(|_| images.inner > 1) {
            images.add(run.place, run.len, run.images, within(run), &mut fours);
        }
        for channel in 0..self.count {
            let start = dy.start(0, first + channel);
            let line = &mut lines[channel * width..][..width];
            if images.inner > 1 {
                images.channel(data, start, &fours, line);
                continue;
            }
            for run in &runs {
                let at = start.wrapping_add_signed(within(run));
                let to = &mut line[run.place..][..run.len];
                if dy.step[2] == 1 {
                    to.copy_from_slice(&data[at..at + run.len]);
                } else {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = data[at.wrapping_add_signed(i as isize * dy.step[2])];
                    }
                }
            }
        }
        // A row of a tile has pairs of a place and the next, of all channels.
        const WIDE: usize = SIDE / 2;
        for (tile, to) in self.tiles.iter().zip(self.to.chunks_exact_mut(TILES)) {
            for (number, to) in to.chunks_exact_mut(WIDE * WIDE).enumerate() {
                for channel in (0..WIDE).step_by(turn::SIDE) {
                    for pair in (0..WIDE).step_by(turn::SIDE) {
                        let block: [[u32; turn::SIDE]; turn::SIDE] = numbered(
                            #[inline(always)]
                            |i| {
                                let line = (number * WIDE + channel + i) * width;
                                let pairs = &lines[line + tile.place + 2 * pair..];
                                bytemuck::pod_read_unaligned(bytemuck::cast_slice(
                                    &pairs[..2 * turn::SIDE],
                                ))
                            },
                        );
                        for (i, row) in turned(block).iter().enumerate() {
                            to[(pair + i) * WIDE + channel..][..turn::SIDE].copy_from_slice(row);
                        }
                    }
                }
            }
        }
        are_finite(lines)
    }
}
