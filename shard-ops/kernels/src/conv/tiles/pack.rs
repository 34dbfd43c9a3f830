//! Packs blocks of the input: pairs of channels side by side, or channels by themselves.

use super::super::lift::Slab;
use super::plan::{Block, Plan, Row};
use crate::pointwise::vectorized;
use half::bf16;
use pulp::{Simd, WithSimd};

/// A block of the input that is packed.
pub(super) struct Packed<'a, 'b> {
    pub(super) plan: &'a Plan,
    pub(super) x: &'a Slab<'b, bf16>,
    /// Batch, and the first channel.
    pub(super) at: [usize; 2],
    pub(super) block: &'a Block,
    /// Memory for two rows.
    pub(super) spare: &'a mut [u16],
}

impl Packed<'_, '_> {
    /// Numbers of two rows, for a plan.
    pub(super) fn spare(plan: &Plan) -> usize {
        2 * plan.width()
    }

    /// Writes words of two numbers, those of two channels at a place. Channels that there are not are zeros.
    pub(super) fn pairs(self, to: &mut [u32]) {
        vectorized(Pairs { of: self, to });
    }

    /// Writes channels one after the other, with zeros behind their last places, and tells whether all numbers are finite.
    pub(super) fn channels(self, to: &mut [u16]) -> bool {
        vectorized(Channels { of: self, to })
    }
}

/// The numbers of a row, where they lie or as copies.
#[inline(always)]
fn numbers<'s>(
    plan: &Plan,
    x: &'s Slab<'_, bf16>,
    start: usize,
    row: &Row,
    spare: &'s mut [u16],
) -> &'s [u16] {
    let data: &[u16] = bytemuck::cast_slice(x.data);
    let [d, h, w] = row.at;
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
    let from = start.wrapping_add_signed(within);
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

struct Pairs<'a, 'b, 't> {
    of: Packed<'a, 'b>,
    to: &'t mut [u32],
}

impl WithSimd for Pairs<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Packed {
            plan,
            x,
            at: [n, first],
            block,
            spare,
        } = self.of;
        let (low_spare, high_spare) = spare.split_at_mut(plan.width());
        let start = |channel: usize| x.start(n, first + plan.source(channel));
        for (pair, to) in self.to.chunks_exact_mut(plan.places).enumerate() {
            let [low, high] = [2 * pair, 2 * pair + 1];
            if low >= plan.channels() {
                to.fill(0);
                continue;
            }
            // The last one may be alone.
            let is_whole = high < plan.channels();
            let high = if is_whole { high } else { low };
            if !is_whole {
                high_spare.fill(0);
            }
            for (a, b) in plan.rows(block, low).zip(plan.rows(block, high)) {
                let to = &mut to[a.place..][..plan.width()];
                let low = numbers(plan, x, start(low), &a, low_spare);
                let high = match is_whole {
                    true => numbers(plan, x, start(high), &b, high_spare),
                    false => &*high_spare,
                };
                for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                    *to = u32::from(*low) | u32::from(*high) << 16;
                }
            }
        }
    }
}

struct Channels<'a, 'b, 't> {
    of: Packed<'a, 'b>,
    to: &'t mut [u16],
}

impl WithSimd for Channels<'_, '_, '_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        /// The bits of an exponent, which are all set of what is infinite or no number.
        const EXPONENT: u16 = 0x7f80;
        let Packed {
            plan,
            x,
            at: [n, first],
            block,
            spare,
        } = self.of;
        let (spare, _) = spare.split_at_mut(plan.width());
        let mut largest = 0;
        for (channel, to) in
            (self.to.chunks_exact_mut(plan.places).enumerate()).take(plan.channels())
        {
            let start = x.start(n, first + plan.source(channel));
            let mut end = 0;
            for row in plan.rows(block, channel) {
                // What blocks before had there is not read, unless as numbers that are multiplied by zeros.
                to[end.min(row.place)..row.place].fill(0);
                end = row.place + plan.width();
                let to = &mut to[row.place..end];
                to.copy_from_slice(numbers(plan, x, start, &row, spare));
                for x in to {
                    largest = largest.max(*x & EXPONENT);
                }
            }
            to[end..].fill(0);
        }
        largest < EXPONENT
    }
}
