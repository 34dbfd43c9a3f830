//! Packs blocks of the input: pairs of channels side by side, or channels by themselves.

use super::super::lift::Slab;
use super::plan::{Block, Plan, Row};
use crate::pointwise::vectorized;
use half::bf16;
use pulp::{Simd, WithSimd};

/// Blocks of the input that are packed.
pub(super) struct Input<'a, 'b> {
    plan: &'a Plan,
    x: &'a Slab<'b, bf16>,
    /// The rows of a block.
    rows: Vec<Row>,
    /// Memory for two rows.
    spare: Vec<u16>,
}

impl<'a, 'b> Input<'a, 'b> {
    pub(super) fn new(plan: &'a Plan, x: &'a Slab<'b, bf16>) -> Self {
        Self {
            plan,
            x,
            rows: Vec::new(),
            spare: vec![0; 2 * plan.width()],
        }
    }

    fn go_to(&mut self, block: &Block) {
        self.plan.rows(block, &mut self.rows);
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
}

/// The numbers of a row, where they lie or as copies.
#[inline(always)]
fn numbers<'s>(
    plan: &Plan,
    x: &'s Slab<'_, bf16>,
    channel: &Channel,
    row: &Row,
    spare: &'s mut [u16],
) -> &'s [u16] {
    let data: &[u16] = bytemuck::cast_slice(x.data);
    let [d, h, w] = [0, 1, 2].map(|d| row.at[d] + channel.shift[d]);
    let (width, stride) = (spare.len(), plan.geometry.stride[2] as isize);
    let exists = (0..x.extent[0] as isize).contains(&d) && (0..x.extent[1] as isize).contains(&h);
    // The columns before the first one inside, and before the first one behind.
    let until = |limit: isize| {
        let columns = (limit - w + stride - 1).div_euclid(stride);
        columns.clamp(0, width as isize) as usize
    };
    let (low, high) = (until(0), until(x.extent[2] as isize));
    if !exists || low >= high {
        spare.fill(0);
        return spare;
    }
    let jump = stride * x.step[2];
    let within = d * x.step[0] + h * x.step[1] + (w + low as isize * stride) * x.step[2];
    let from = x
        .start(row.image, channel.source)
        .wrapping_add_signed(within);
    if jump == 1 && high - low == width {
        return &data[from..from + width];
    }
    spare[..low].fill(0);
    spare[high..].fill(0);
    let inside = &mut spare[low..high];
    if jump == 1 {
        inside.copy_from_slice(&data[from..from + inside.len()]);
    } else {
        for (i, to) in inside.iter_mut().enumerate() {
            *to = data[from.wrapping_add_signed(i as isize * jump)];
        }
    }
    spare
}

/// What a channel reads: an input channel, and how far from where rows begin.
struct Channel {
    source: usize,
    shift: [isize; 3],
}

impl Channel {
    fn new(plan: &Plan, first: usize, channel: usize) -> Self {
        Self {
            source: first + plan.source(channel),
            shift: plan.shift(channel),
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
        let Input {
            plan,
            x,
            rows,
            spare,
        } = self.of;
        let (low_spare, high_spare) = spare.split_at_mut(plan.width());
        for (pair, to) in self.to.chunks_exact_mut(plan.places).enumerate() {
            let [low, high] = [2 * pair, 2 * pair + 1];
            if low >= plan.channels() {
                to.fill(0);
                continue;
            }
            // The last one may be alone.
            let is_whole = high < plan.channels();
            let [low, high] = [low, if is_whole { high } else { low }]
                .map(|channel| Channel::new(plan, self.first, channel));
            if !is_whole {
                high_spare.fill(0);
            }
            for row in &*rows {
                let to = &mut to[row.place..][..plan.width()];
                let low = numbers(plan, x, &low, row, low_spare);
                let high = match is_whole {
                    true => numbers(plan, x, &high, row, high_spare),
                    false => &*high_spare,
                };
                for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                    *to = u32::from(*low) | u32::from(*high) << 16;
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
        /// The bits of an exponent, which are all set of what is infinite or no number.
        const EXPONENT: u16 = 0x7f80;
        let Input {
            plan,
            x,
            rows,
            spare,
        } = self.of;
        let (spare, _) = spare.split_at_mut(plan.width());
        let mut largest = 0;
        let channels = self.to.chunks_exact_mut(plan.places).enumerate();
        for (channel, to) in channels.take(plan.channels()) {
            let channel = Channel::new(plan, self.first, channel);
            let mut end = 0;
            for row in &*rows {
                // What is multiplied by zeros must be numbers.
                to[end..row.place].fill(0);
                end = row.place + plan.width();
                let to = &mut to[row.place..end];
                to.copy_from_slice(numbers(plan, x, &channel, row, spare));
                for x in to {
                    largest = largest.max(*x & EXPONENT);
                }
            }
            to[end..].fill(0);
        }
        largest < EXPONENT
    }
}
