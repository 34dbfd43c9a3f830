//! One, two and three spatial dims as three, with leading dims of extent 1.

use super::Taps;
use crate::{Dims, Strides, View, ViewMut};
use smallvec::SmallVec;

/// A convolution's numbers over three spatial dims.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) groups: usize,
    /// Input channels per group.
    pub(super) cin: usize,
    /// Output channels per group.
    pub(super) cout: usize,
    pub(super) kernel: [usize; 3],
    pub(super) stride: [usize; 3],
    pub(super) dilation: [usize; 3],
    pub(super) origin: [isize; 3],
}

impl Geometry {
    pub(super) fn new(
        window: &Taps,
        weight: &[usize],
        x: &[usize],
        y: &[usize],
        groups: usize,
    ) -> Self {
        let nd = window.stride.len() + 2;
        let fits = weight.len() == nd
            && x.len() == nd
            && y.len() == nd
            && groups > 0
            && x[0] == y[0]
            && y[1] == weight[0]
            && x[1] == weight[1] * groups
            && weight[0].is_multiple_of(groups);
        assert!(
            fits,
            "conv: input {x:?}, weight {weight:?}, output {y:?}, {groups} groups"
        );
        Self {
            groups,
            cin: weight[1],
            cout: weight[0] / groups,
            kernel: lift_extents(&weight[2..], 1),
            stride: lift_extents(&window.stride, 1),
            dilation: lift_extents(&window.dilation, 1),
            origin: lift_extents(&window.origin, 0),
        }
    }

    /// Kernel positions.
    pub(super) fn volume(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Products per output element.
    pub(super) fn taps(&self) -> usize {
        self.cin * self.volume()
    }

    /// The last two dims exchanged.
    pub(super) fn turned(self) -> Self {
        Self {
            kernel: turn(self.kernel),
            stride: turn(self.stride),
            dilation: turn(self.dilation),
            origin: turn(self.origin),
            ..self
        }
    }

    /// The input index of output `o` and kernel `k` along dim `d`.
    #[inline(always)]
    pub(super) fn input(&self, d: usize, o: usize, k: usize) -> isize {
        (o * self.stride[d] + k * self.dilation[d]) as isize + self.origin[d]
    }
}

/// Batch, channels and three spatial dims to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab<'a, T> {
    pub(super) data: &'a [T],
    pub(super) offset: usize,
    pub(super) batch: usize,
    pub(super) extent: [usize; 3],
    /// Steps of batch and channel.
    pub(super) outer: [isize; 2],
    pub(super) step: [isize; 3],
}

/// Batch, channels and three spatial dims to write.
#[derive(Debug)]
pub(super) struct SlabMut<'a, T> {
    pub(super) data: &'a mut [T],
    pub(super) offset: usize,
    pub(super) batch: usize,
    pub(super) extent: [usize; 3],
    pub(super) outer: [isize; 2],
    pub(super) step: [isize; 3],
}

impl<'a, T> Slab<'a, T> {
    pub(super) fn new(view: &View<'a, T>) -> Self {
        Self {
            data: view.data(),
            offset: view.offset(),
            batch: view.shape()[0],
            extent: lift_extents(&view.shape()[2..], 1),
            outer: [view.strides()[0], view.strides()[1]],
            step: lift_extents(&view.strides()[2..], 0),
        }
    }

    /// The last two dims exchanged.
    pub(super) fn turned(self) -> Self {
        Self {
            extent: turn(self.extent),
            step: turn(self.step),
            ..self
        }
    }

    /// Position of element `(n, c, 0, 0, 0)`.
    pub(super) fn start(&self, n: usize, c: usize) -> usize {
        self.offset
            .wrapping_add_signed(n as isize * self.outer[0] + c as isize * self.outer[1])
    }
}

impl<'a, T> SlabMut<'a, T> {
    pub(super) fn new(view: &'a mut ViewMut<'_, T>) -> Self {
        let outer = [view.strides()[0], view.strides()[1]];
        let step = lift_extents(&view.strides()[2..], 0);
        let (offset, batch) = (view.offset(), view.shape()[0]);
        let extent = lift_extents(&view.shape()[2..], 1);
        Self {
            data: view.data_mut(),
            offset,
            batch,
            extent,
            outer,
            step,
        }
    }

    /// Position of element `(n, c, 0, 0, 0)`.
    pub(super) fn start(&self, n: usize, c: usize) -> usize {
        self.offset
            .wrapping_add_signed(n as isize * self.outer[0] + c as isize * self.outer[1])
    }

    /// The last two dims exchanged.
    pub(super) fn turned(&mut self) -> SlabMut<'_, T> {
        SlabMut {
            data: self.data,
            offset: self.offset,
            batch: self.batch,
            extent: turn(self.extent),
            outer: self.outer,
            step: turn(self.step),
        }
    }

    /// Position of `at` relative to the start of its channel.
    pub(super) fn within(&self, at: [usize; 3]) -> isize {
        (0..3).map(|d| at[d] as isize * self.step[d]).sum()
    }
}

fn turn<T>([d, h, w]: [T; 3]) -> [T; 3] {
    [d, w, h]
}

/// `values` for the last spatial dims, `missing` for the ones in front.
pub(crate) fn lift_extents<T: Copy>(values: &[T], missing: T) -> [T; 3] {
    let mut out = [missing; 3];
    out[3 - values.len()..].copy_from_slice(values);
    out
}

/// A `[N, C, *S]` view with three spatial dims.
pub(crate) fn lift_view<'a, T>(view: &View<'a, T>) -> View<'a, T> {
    let (shape, strides) = lifted(view.shape(), view.strides());
    View::new(view.data(), view.offset(), &shape, &strides)
}

/// A writable `[N, C, *S]` view with three spatial dims.
pub(crate) fn lift_view_mut<'a, T>(view: &'a mut ViewMut<'_, T>) -> ViewMut<'a, T> {
    let (shape, strides) = lifted(view.shape(), view.strides());
    let offset = view.offset();
    ViewMut::new(view.data_mut(), offset, &shape, &strides)
}

fn lifted(shape: &[usize], strides: &[isize]) -> (Dims, Strides) {
    let mut dims: Dims = SmallVec::from_slice(&shape[..2]);
    dims.extend(lift_extents(&shape[2..], 1));
    let mut steps: Strides = SmallVec::from_slice(&strides[..2]);
    steps.extend(lift_extents(&strides[2..], 0));
    (dims, steps)
}
