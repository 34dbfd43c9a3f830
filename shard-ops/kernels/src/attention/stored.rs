//! Element types attention reads and writes, and what it computes in.

use crate::gemm::{self, Mat, MatMut};
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

    /// Computes a product of extents `[m, n, k]` of which the right operand is read as it is stored, where it is not computed in that type and that
    /// pays, and tells whether it did.
    fn product_of_few(
        _extent: [usize; 3],
        _a: &Mat<'_, Self::Acc>,
        _b: &Mat<'_, Self>,
        _c: &mut MatMut<'_, Self::Acc>,
        _accumulate: bool,
    ) -> bool {
        false
    }
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
    ($t:ty $(, $($also:item)+)?) => {
        impl Stored for $t {
            type Acc = f32;
            $($($also)+)?
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
    };
}

own!(f32, f64);
widened!(f16);
widened!(
    bf16,
    fn product_of_few(
        extent: [usize; 3],
        a: &Mat<'_, f32>,
        b: &Mat<'_, Self>,
        c: &mut MatMut<'_, f32>,
        accumulate: bool,
    ) -> bool {
        gemm::product_of_few(extent, a, b, c, accumulate)
    }
);

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
    is_wide: bool,
}

impl<'v, 'b, E: Stored> Matrices<'v, 'b, E> {
    pub(super) fn new(view: &'v View<'b, E>) -> Self {
        Self {
            view,
            begin: view.offset(),
            wide: Vec::new(),
            is_wide: false,
        }
    }

    /// Goes to matrix `at` of the leading dims.
    pub(super) fn go_to(&mut self, at: [usize; 2]) {
        (self.begin, self.is_wide) = (start(self.view, at), false);
    }

    /// As [`gemm`](gemm::gemm) of extents `[m, n, k]` whose right operand is the matrix's rows from one on, or with `turned` their transpose.
    pub(super) fn multiply(
        &mut self,
        extent: [usize; 3],
        a: Mat<'_, E::Acc>,
        (row, turned): (usize, bool),
        mut to: MatMut<'_, E::Acc>,
        accumulate: bool,
    ) {
        let stored = self.rows_below(row);
        let stored = if turned { stored.transposed() } else { stored };
        if E::product_of_few(extent, &a, &stored, &mut to, accumulate) {
            return;
        }
        let b = self.wide_rows_below(row);
        let b = if turned { b.transposed() } else { b };
        let [m, n, k] = extent;
        gemm::gemm(m, n, k, a, b, to, accumulate);
    }

    /// Its rows from one on, as they are stored.
    fn rows_below(&self, row: usize) -> Mat<'b, E> {
        let [row_step, col_step] = [self.view.strides()[2], self.view.strides()[3]];
        Mat {
            data: self.view.data(),
            offset: (self.begin).wrapping_add_signed(row as isize * row_step),
            row_step,
            col_step,
        }
    }

    /// The same in the type that attention computes in. All rows are widened when the first of them are asked for.
    fn wide_rows_below(&mut self, row: usize) -> Mat<'_, E::Acc> {
        let (view, stored) = (self.view, self.rows_below(row));
        if let Some(data) = E::as_acc(stored.data) {
            return Mat {
                data,
                offset: stored.offset,
                row_step: stored.row_step,
                col_step: stored.col_step,
            };
        }
        let (rows, cols) = (view.shape()[2], view.shape()[3]);
        if !self.is_wide {
            (self.wide).resize(rows * cols, <E::Acc as num_traits::Zero>::zero());
            for (i, to) in self.wide.chunks_exact_mut(cols.max(1)).enumerate() {
                let at = (self.begin).wrapping_add_signed(i as isize * view.strides()[2]);
                gather(view.data(), at, view.strides()[3], to);
            }
            self.is_wide = true;
        }
        Mat {
            offset: row * cols,
            ..Mat::row_major(&self.wide, cols)
        }
    }
}
