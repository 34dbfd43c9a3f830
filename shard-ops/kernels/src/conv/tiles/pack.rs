//! Packs blocks of the input: pairs of channels side by side, or channels by themselves.

use super::super::lift::Slab;
use super::images::{Four, Images};
use super::plan::{Block, Plan, Row};
use crate::pointwise::vectorized;
use bytemuck::Zeroable;
use half::bf16;
use pulp::{Simd, WithSimd};

/// Whether numbers of which these are the bits are finite.
#[inline(always)]
pub(super) fn are_finite(numbers: &[u16]) -> bool {
    /// The bits of an exponent, which are all set of what is infinite or no number.
    const EXPONENT: u16 = 0x7f80;
    let largest = numbers.iter().fold(
        0,
        #[inline(always)]
        |largest, x| largest.max(x & EXPONENT),
    );
    largest < EXPONENT
}

/// Blocks of the input that are packed.
pub(super) struct Input<'a, 'b> {
    plan: &'a Plan,
    x: &'a Slab<'b, bf16>,
    /// The rows of a block.
    rows: Vec<Row>,
    /// What is inside of these, for each kernel position that is a channel.
    parts: Vec<Inside>,
    /// Of images side by side, the numbers inside.
    fours: Vec<Four>,
}

/// The part of a row that is inside the input; around it are zeros.
#[derive(Clone, Copy, Debug)]
struct Inside {
    /// The row's first place.
    place: usize,
    /// The row's columns inside: none, where the row is beyond the input.
    low: usize,
    high: usize,
    /// Where the first of these lies, from where its channel of the first image begins.
    from: isize,
    /// Images that lie side by side.
    images: usize,
}

impl Inside {
    /// Of a row of so many columns, for a channel that reads at some distance from where rows begin.
    fn new(plan: &Plan, x: &Slab<'_, bf16>, row: &Row, shift: [isize; 3]) -> Self {
        let [d, h, w] = [0, 1, 2].map(|d| row.at[d] + shift[d]);
        let (width, stride) = (plan.width() as isize, plan.geometry.stride[2] as isize);
        let exists =
            (0..x.extent[0] as isize).contains(&d) && (0..x.extent[1] as isize).contains(&h);
        // The columns before the first one inside, and before the first one behind.
        let until = |limit: isize| (limit - w + stride - 1).div_euclid(stride).clamp(0, width);
        let (low, high) = (until(0), until(x.extent[2] as isize));
        let [low, high] = match exists && low < high {
            true => [low, high],
            false => [0, 0],
        };
        let within = d * x.step[0] + h * x.step[1] + (w + low * stride) * x.step[2];
        Self {
            place: row.place,
            low: low as usize,
            high: high as usize,
            from: row.image as isize * x.outer[0] + within,
            images: row.images,
        }
    }

    /// The row, with zeros around what is inside, which is returned.
    #[inline(always)]
    fn cleared<'t, T: Zeroable + Copy>(&self, to: &'t mut [T], width: usize) -> &'t mut [T] {
        let row = &mut to[self.place..][..width];
        row[..self.low].fill(T::zeroed());
        row[self.high..].fill(T::zeroed());
        &mut row[self.low..self.high]
    }
}

impl<'a, 'b> Input<'a, 'b> {
    pub(super) fn new(plan: &'a Plan, x: &'a Slab<'b, bf16>) -> Self {
        Self {
            plan,
            x,
            rows: Vec::new(),
            parts: Vec::new(),
            fours: Vec::new(),
        }
    }

    fn go_to(&mut self, block: &Block) {
        self.plan.rows(block, &mut self.rows);
        self.parts.clear();
        for k in 0..self.plan.within() {
            let shift = self.plan.shift(k);
            let inside = |row| Inside::new(self.plan, self.x, row, shift);
            self.parts.extend(self.rows.iter().map(inside));
        }
        let images = self.images();
        self.fours.clear();
        if images.inner > 1 {
            for part in &self.parts {
                let place = part.place + part.low * images.inner;
                let len = part.high - part.low;
                images.add(place, len, part.images, part.from, &mut self.fours);
            }
        }
    }

    fn images(&self) -> Images {
        Images {
            inner: self.plan.inner(),
            jump: self.plan.geometry.stride[2] as isize * self.x.step[2],
            apart: self.x.outer[0],
        }
    }

    /// Writes words of two numbers, those of two channels at a place, of the input's channels from one on. Channels that there are not are zeros.
    pub(super) fn pairs(&mut self, first: usize, block: &Block, to: &mut [u32]) {
        self.go_to(block);
        vectorized(Pairs {
            of: self,
            first,
            to,
        });
    }

    /// Writes channels one after the other, with zeros behind their last places, and tells whether all numbers are finite.
    pub(super) fn channels(&mut self, first: usize, block: &Block, to: &mut [u16]) -> bool {
        self.go_to(block);
        vectorized(Channels {
            of: self,
            first,
            to,
        })
    }

    /// What a channel reads.
    #[inline(always)]
    fn channel(&self, first: usize, channel: usize) -> Channel<'_> {
        let (source, k) = (self.plan.source(channel), channel % self.plan.within());
        let rows = self.rows.len();
        Channel {
            numbers: bytemuck::cast_slice(self.x.data),
            start: self.x.start(0, first + source),
            jump: self.images().jump,
            parts: &self.parts[k * rows..][..rows],
        }
    }
}

/// What a channel reads: an input channel's numbers, so far from each other, by the rows that they are put into.
struct Channel<'s> {
    numbers: &'s [u16],
    start: usize,
    jump: isize,
    parts: &'s [Inside],
}

impl Channel<'_> {
    /// Calls `put` with each of `to` and its number, of a part of a row.
    #[inline(always)]
    fn each<T>(&self, part: &Inside, to: &mut [T], put: impl Fn(&mut T, u16)) {
        let from = self.start.wrapping_add_signed(part.from);
        match (self.jump, to.len()) {
            (_, 0) => {}
            (1, n) => {
                let numbers = &self.numbers[from..from + n];
                for (to, x) in to.iter_mut().zip(numbers) {
                    put(to, *x);
                }
            }
            (2, n) => {
                let numbers = &self.numbers[from..from + 2 * n - 1];
                for (to, x) in to.iter_mut().zip(numbers.chunks_exact(2)) {
                    put(to, x[0]);
                }
                put(&mut to[n - 1], numbers[2 * n - 2]);
            }
            (jump, _) => {
                for (i, to) in to.iter_mut().enumerate() {
                    put(
                        to,
                        self.numbers[from.wrapping_add_signed(i as isize * jump)],
                    );
                }
            }
        }
    }
}

struct Pairs<'i, 'a, 'b, 't> {
    of: &'i mut Input<'a, 'b>,
    first: usize,
    to: &'t mut [u32],
}

impl WithSimd for Pairs<'_, '_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let plan = self.of.plan;
        let (width, images) = (plan.width(), self.of.images());
        for (pair, to) in self.to.chunks_exact_mut(plan.places).enumerate() {
            let [low, high] = [2 * pair, 2 * pair + 1];
            if low >= plan.channels() {
                to.fill(0);
                continue;
            }
            let low = self.of.channel(self.first, low);
            if images.inner > 1 {
                let other = self.of.channel(self.first, high.min(plan.channels() - 1));
                to.fill(0);
                let starts = [low.start, other.start];
                let is_one = high >= plan.channels();
                images.pairs(low.numbers, starts, is_one, &self.of.fours, to);
                continue;
            }
            for part in low.parts {
                let to = part.cleared(to, width);
                low.each(
                    part,
                    to,
                    #[inline(always)]
                    |to, x| *to = u32::from(x),
                );
            }
            // The last one may be alone.
            if high < plan.channels() {
                let high = self.of.channel(self.first, high);
                for part in high.parts {
                    let to = &mut to[part.place..][part.low..part.high];
                    high.each(
                        part,
                        to,
                        #[inline(always)]
                        |to, x| *to |= u32::from(x) << 16,
                    );
                }
            }
        }
    }
}

struct Channels<'i, 'a, 'b, 't> {
    of: &'i mut Input<'a, 'b>,
    first: usize,
    to: &'t mut [u16],
}

impl WithSimd for Channels<'_, '_, '_, '_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let plan = self.of.plan;
        let (width, images) = (plan.width(), self.of.images());
        let mut are_all_finite = true;
        let channels = self.to.chunks_exact_mut(plan.places).enumerate();
        for (channel, to) in channels.take(plan.channels()) {
            let channel = self.of.channel(self.first, channel);
            if images.inner > 1 {
                to.fill(0);
                images.channel(channel.numbers, channel.start, &self.of.fours, to);
                are_all_finite &= are_finite(to);
                continue;
            }
            let mut end = 0;
            for part in channel.parts {
                // What is multiplied by zeros must be numbers. Zeros that rows share are written for both.
                to[end.min(part.place)..part.place].fill(0);
                end = part.place + width;
                let to = part.cleared(to, width);
                channel.each(
                    part,
                    to,
                    #[inline(always)]
                    |to, x| *to = x,
                );
                are_all_finite &= are_finite(to);
            }
            to[end..].fill(0);
        }
        are_all_finite
    }
}
