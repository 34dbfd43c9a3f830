//! The gradient with respect to the input, as stride-1 convolutions: one per phase of the stride.
//!
//! Input index `i` meets output `o` through `k` where `i - origin - k * dilation = o * stride`. The inputs of one phase
//! `i = p + m * stride` use a fixed subset of the kernel, and `o` runs with `m`: a convolution of `dy` with those weights, reversed.

use super::apart;
use super::channels::{self, Channels};
use super::contiguous;
use super::forward::{correlate, lanes};
use super::lift::{Geometry, Slab, SlabMut, lift_view_mut};
use super::pairs;
use super::weight_grad::{FEW, SITES};
use crate::copy::fill;
use crate::gemm::gemm;
use crate::scratch::Room;
use crate::{Real, View, ViewMut};
use bytemuck::Pod;
use shard_device::Element;

/// The kernel positions that inputs of one phase use, and the geometry that leads to their outputs.
struct Phase {
    /// Kernel positions, in the order of increasing output.
    kernel: Vec<usize>,
    dilation: usize,
    origin: isize,
    /// The number of inputs in the phase.
    extent: usize,
}

impl Phase {
    fn new(g: &Geometry, d: usize, extent: usize, phase: usize) -> Self {
        let (stride, dilation) = (g.stride[d] as isize, g.dilation[d] as isize);
        let met = |k: usize| phase as isize - g.origin[d] - k as isize * dilation;
        let kernel: Vec<usize> = (0..g.kernel[d])
            .rev()
            .filter(|&k| met(k) % stride == 0)
            .collect();
        let origin = kernel.first().map_or(0, |&k| met(k) / stride);
        // Neighbouring positions of the subset lie lcm(stride, dilation) inputs apart.
        let apart = kernel
            .windows(2)
            .map(|k| ((k[0] - k[1]) * g.dilation[d]) / g.stride[d])
            .next();
        Self {
            kernel,
            dilation: apart.unwrap_or(1),
            origin,
            extent: extent.saturating_sub(phase).div_ceil(g.stride[d]),
        }
    }
}

pub(super) fn input_grad<T: Real>(
    dy: &View<'_, T>,
    weight: &View<'_, T>,
    dx: &mut ViewMut<'_, T>,
    g: &Geometry,
) {
    let weight = contiguous(weight);
    let dy = Slab::new(dy);
    if apart::are_apart(g) || are_few(&dy, g) {
        let mut dx = SlabMut::new(dx);
        return apart::input_grad(&dy, &weight, &mut dx, g, gemm, |sum, x| sum + x);
    }
    let extent = SlabMut::new(dx).extent;
    if lanes::<T>() >= channels::LANES
        && let Some(channels) = Channels::adjoint(g, extent, dy.extent)
        && weight.iter().all(|w| w.is_finite())
    {
        return channels.correlate(&dy, &weight, None, &mut SlabMut::new(dx));
    }
    by_phases(&weight, dx, g, |weight, dx, g| {
        correlate(&dy, weight, None, dx, g);
    });
}

/// Whether there are so few outputs that their windows are less than the weights, which are read as they lie then: otherwise their rows and
/// columns are exchanged. Where rows go in [pairs], that is worth it for fewer.
fn are_few<T>(dy: &Slab<'_, T>, g: &Geometry) -> bool {
    let sites: usize = dy.extent.iter().product();
    let most = match pairs::fit(g, dy.extent[1]) {
        true => g.cout.min(SITES),
        false => g.cout,
    };
    g.volume() > 0 && g.cin >= FEW && sites <= SITES && dy.batch * sites <= most
}

/// Calls `correlate` for each phase, with its weights, its inputs and its geometry.
pub(super) fn by_phases<E: Pod, R: Element>(
    weight: &[E],
    dx: &mut ViewMut<'_, R>,
    g: &Geometry,
    mut correlate: impl FnMut(&[E], &mut SlabMut<'_, R>, &Geometry),
) {
    let mut dx = lift_view_mut(dx);
    let extent: [usize; 3] = core::array::from_fn(|d| dx.shape()[d + 2]);
    let phases: [Vec<Phase>; 3] = core::array::from_fn(|d| {
        (0..g.stride[d].min(extent[d]))
            .map(|p| Phase::new(g, d, extent[d], p))
            .collect()
    });
    let (batch, channels) = (dx.shape()[0], dx.shape()[1]);
    // What no window reads: a stride may be larger than the kernel.
    if phases.iter().flatten().any(|phase| phase.kernel.is_empty()) {
        fill(&mut dx, R::zeroed());
    }
    for (pd, d) in phases[0].iter().enumerate() {
        for (ph, h) in phases[1].iter().enumerate() {
            for (pw, w) in phases[2].iter().enumerate() {
                let sub = Geometry {
                    groups: g.groups,
                    cin: g.cout,
                    cout: g.cin,
                    kernel: [d.kernel.len(), h.kernel.len(), w.kernel.len()],
                    stride: [1; 3],
                    dilation: [d.dilation, h.dilation, w.dilation],
                    origin: [d.origin, h.origin, w.origin],
                };
                let kernel = [&d.kernel[..], &h.kernel, &w.kernel];
                let size: usize = kernel.iter().map(|k| k.len()).product();
                if size == 0 {
                    continue;
                }
                let mut room = Room::new();
                let numbers = g.groups * g.cin * g.cout * size;
                let reversed = room.numbers::<E>(numbers).take(numbers);
                transpose(weight, g, kernel, reversed);
                let [sd, sh, sw] = g.stride;
                let mut target = dx.reborrow().stepped(
                    &[0, 0, pd, ph, pw],
                    &[1, 1, sd, sh, sw],
                    &[batch, channels, d.extent, h.extent, w.extent],
                );
                correlate(reversed, &mut SlabMut::new(&mut target), &sub);
            }
        }
    }
}

/// Writes the weights at the given kernel positions, `[groups * Cin/g, Cout/g, positions]` from `[groups * Cout/g, Cin/g, kernel]`.
fn transpose<T: Pod>(weight: &[T], g: &Geometry, kernel: [&[usize]; 3], out: &mut [T]) {
    /// Output channels that are read side by side, so that both reads and writes run through consecutive memory.
    const TURN: usize = 8;
    let mut positions = Vec::with_capacity(g.volume());
    for d in kernel[0] {
        for h in kernel[1] {
            positions.extend(
                kernel[2]
                    .iter()
                    .map(|w| (d * g.kernel[1] + h) * g.kernel[2] + w),
            );
        }
    }
    let (size, volume) = (positions.len(), g.volume());
    for group in 0..g.groups {
        for first in (0..g.cout).step_by(TURN) {
            for ci in 0..g.cin {
                for co in first..(first + TURN).min(g.cout) {
                    let from = &weight[((group * g.cout + co) * g.cin + ci) * volume..][..volume];
                    let to = &mut out[((group * g.cin + ci) * g.cout + co) * size..][..size];
                    if size == volume {
                        // All of them, in the order of increasing output, which is the reverse.
                        reverse(from, to);
                        continue;
                    }
                    for (to, p) in to.iter_mut().zip(&positions) {
                        *to = from[*p];
                    }
                }
            }
        }
    }
}

/// Copies in reverse; those of a window of 3 x 3 without a loop.
#[inline(always)]
fn reverse<T: Copy>(from: &[T], to: &mut [T]) {
    if let (Ok(from), Ok(to)) = (<&[T; 9]>::try_from(from), <&mut [T; 9]>::try_from(&mut *to)) {
        for i in 0..9 {
            to[i] = from[8 - i];
        }
        return;
    }
    for (to, from) in to.iter_mut().zip(from.iter().rev()) {
        *to = *from;
    }
}
