//! Element types attention reads and writes, and what it computes in.

use crate::gemm::Mat;
use crate::{Real, View};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

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
                from.convert_to_f32_slice(to);
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

/// All rows of matrix `at` of a four-dim view: in place where they can be multiplied as they are, otherwise widened into
/// `buffer`.
pub(super) fn matrix<'b, E: Stored>(
    view: &View<'b, E>,
    at: [usize; 2],
    buffer: &'b mut Vec<E::Acc>,
) -> Mat<'b, E::Acc> {
    let (rows, cols) = (view.shape()[2], view.shape()[3]);
    let (row, col) = (view.strides()[2], view.strides()[3]);
    let begin = start(view, at);
    if let Some(data) = E::as_acc(view.data()) {
        return Mat {
            data,
            offset: begin,
            row_step: row,
            col_step: col,
        };
    }
    buffer.resize(rows * cols, <E::Acc as num_traits::Zero>::zero());
    for (i, to) in buffer.chunks_exact_mut(cols.max(1)).enumerate() {
        gather(
            view.data(),
            begin.wrapping_add_signed(i as isize * row),
            col,
            to,
        );
    }
    Mat::row_major(buffer, cols)
}
