//! Element types attention reads and writes, and what it computes in.

use crate::gemm::Mat;
use crate::{Real, View};
use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};
use shard_device::{DType, Element, kernel};

/// An element type of queries, keys, values and results. Kernels compute and accumulate in [`Stored::Acc`].
pub trait Stored:
    Copy
    + core::fmt::Debug
    + Send
    + Sync
    + super::backward::CompiledGrad<Self>
    + super::forward::CompiledState<Self>
    + super::merge::Compiled<Self>
    + crate::neighborhood::CompiledNear<Self>
    + crate::neighborhood::CompiledNearGrad<Self>
    + crate::fused::Compiled<Self>
    + 'static
{
    /// `f64` for `f64`, `f32` for the others.
    type Acc: Real;

    /// The value, exactly.
    fn widen(self) -> Self::Acc;

    /// The nearest value.
    fn narrow(x: Self::Acc) -> Self;

    /// [`Stored::widen`] of a whole slice of the same length.
    fn widen_slice(from: &[Self], to: &mut [Self::Acc]);

    /// [`Stored::narrow`] of a whole slice of the same length.
    fn narrow_slice(from: &[Self::Acc], to: &mut [Self]);

    /// The slice itself, where it needs no widening.
    fn as_acc(slice: &[Self]) -> Option<&[Self::Acc]>;

    /// As [`Stored::as_acc`], to write.
    fn as_acc_mut(slice: &mut [Self]) -> Option<&mut [Self::Acc]>;
}

macro_rules! own {
    ($($t:ty),*) => {$(
        impl Stored for $t {
            type Acc = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(x: Self) -> Self {
                x
            }
            fn widen_slice(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn narrow_slice(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn as_acc(slice: &[Self]) -> Option<&[Self]> {
                Some(slice)
            }
            fn as_acc_mut(slice: &mut [Self]) -> Option<&mut [Self]> {
                Some(slice)
            }
        }
    )*};
}

macro_rules! widened {
    ($($t:ty),*) => {$(
        impl Stored for $t {
            type Acc = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn narrow(x: f32) -> Self {
                Self::from_f32(x)
            }
            fn widen_slice(from: &[Self], to: &mut [f32]) {
                convert((Self::DTYPE, cast_slice(from)), (f32::DTYPE, cast_slice_mut(to)));
            }
            fn narrow_slice(from: &[f32], to: &mut [Self]) {
                convert((f32::DTYPE, cast_slice(from)), (Self::DTYPE, cast_slice_mut(to)));
            }
            fn as_acc(_: &[Self]) -> Option<&[f32]> {
                None
            }
            fn as_acc_mut(_: &mut [Self]) -> Option<&mut [f32]> {
                None
            }
        }
    )*};
}

own!(f32, f64);
widened!(f16, bf16);

/// Converts all elements; there are as many of both.
fn convert((from_type, from): (DType, &[u8]), (to_type, to): (DType, &mut [u8])) {
    let len = from.len() / from_type.size();
    kernel::convert_run((from_type, from), (to_type, to), [0, 0], len);
}

/// Where matrix `(i, j)` of the leading dims of a four-dim view begins.
pub(super) fn start<E>(view: &View<'_, E>, [i, j]: [usize; 2]) -> usize {
    view.offset()
        .wrapping_add_signed(i as isize * view.strides()[0] + j as isize * view.strides()[1])
}

/// Copies elements from position `at` on, `step` apart, and widens them.
pub(crate) fn gather<E: Stored>(data: &[E], at: usize, step: isize, to: &mut [E::Acc]) {
    if to.is_empty() {
        // There is nothing to copy, and the position may lie outside.
    } else if step == 1 {
        E::widen_slice(&data[at..at + to.len()], to);
    } else {
        for (j, to) in to.iter_mut().enumerate() {
            *to = data[at.wrapping_add_signed(j as isize * step)].widen();
        }
    }
}

/// The matrices of a four-dim view, one at a time: in place where they can be multiplied as they are, otherwise widened.
pub(super) struct Matrices<'v, 'b, E: Stored> {
    view: &'v View<'b, E>,
    begin: usize,
    wide: Vec<E::Acc>,
}

impl<'v, 'b, E: Stored> Matrices<'v, 'b, E> {
    pub(super) fn new(view: &'v View<'b, E>) -> Self {
        Self {
            view,
            begin: view.offset(),
            wide: Vec::new(),
        }
    }

    /// Goes to matrix `at` of the leading dims.
    pub(super) fn go_to(&mut self, at: [usize; 2]) {
        let view = self.view;
        self.begin = start(view, at);
        if E::as_acc(view.data()).is_some() {
            return;
        }
        let (rows, cols) = (view.shape()[2], view.shape()[3]);
        (self.wide).resize(rows * cols, <E::Acc as num_traits::Zero>::zero());
        for (i, to) in self.wide.chunks_exact_mut(cols.max(1)).enumerate() {
            let at = (self.begin).wrapping_add_signed(i as isize * view.strides()[2]);
            gather(view.data(), at, view.strides()[3], to);
        }
    }

    /// Its rows from one on.
    pub(super) fn rows_below(&self, row: usize) -> Mat<'_, E::Acc> {
        let mut all = match E::as_acc(self.view.data()) {
            Some(data) => Mat {
                data,
                offset: self.begin,
                row_step: self.view.strides()[2],
                col_step: self.view.strides()[3],
            },
            None => Mat::row_major(&self.wide, self.view.shape()[3]),
        };
        all.offset = (all.offset).wrapping_add_signed(row as isize * all.row_step);
        all
    }
}
