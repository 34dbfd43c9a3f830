//! Parts that convolutions and pools share: three spatial dims, and how input, output and kernel indexes meet.

use super::CudaView;
use bytemuck::{Pod, Zeroable};
use shard_kernels::conv::Taps;

/// As `Window` in `windows.cuh`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Meeting {
    kernel: [i64; 3],
    stride: [i64; 3],
    dilation: [i64; 3],
    origin: [i64; 3],
}

impl Meeting {
    pub(crate) fn new(kernel: &[usize], window: &Taps) -> Self {
        let dims = |of: &[usize]| lifted(&of.iter().map(|&n| n as i64).collect::<Vec<_>>(), 1);
        let origin: Vec<i64> = window.origin.iter().map(|&o| o as i64).collect();
        Self {
            kernel: dims(kernel),
            stride: dims(&window.stride),
            dilation: dims(&window.dilation),
            origin: lifted(&origin, 0),
        }
    }
}

/// Three numbers; missing ones are added in front.
pub(crate) fn lifted(of: &[i64], missing: i64) -> [i64; 3] {
    let mut three = [missing; 3];
    three[3 - of.len()..].copy_from_slice(of);
    three
}

/// A view of (N, C, spatial) as one with three spatial dims; missing ones are added in front.
pub(crate) fn lift(view: &CudaView) -> CudaView {
    let spatial = view.ndim as usize - 2;
    let mut five = CudaView { ndim: 5, ..*view };
    five.shape[2..5].copy_from_slice(&lifted(&view.shape[2..2 + spatial], 1));
    five.strides[2..5].copy_from_slice(&lifted(&view.strides[2..2 + spatial], 0));
    five
}
