//! Copies between strided views: permutations, boxes, broadcasts made real.

use super::{View, ViewMut};
use shard_device::{Element, Strided, kernel};

/// Copies `src` to `dst` element by element, with any strides on both sides.
///
/// Devices copy in the same way ([`kernel::copy`]): loops that continue each other in both views are joined, and where one
/// view runs along rows and the other along columns the copy goes by tiles.
///
/// ```
/// use shard_kernels::{copy::copy, View, ViewMut};
/// let columns = [1, 4, 2, 5, 3, 6];
/// let mut rows = [0; 6];
/// copy(&View::contiguous(&columns, &[3, 2]).permute(&[1, 0]), &mut ViewMut::contiguous(&mut rows, &[2, 3]));
/// assert_eq!(rows, [1, 2, 3, 4, 5, 6]);
/// ```
///
/// # Panics
/// When the shapes differ.
pub fn copy<T: Element>(src: &View<'_, T>, dst: &mut ViewMut<'_, T>) {
    convert(src, dst);
}

/// As [`copy`], to another type.
pub(crate) fn convert<A: Element, B: Element>(src: &View<'_, A>, dst: &mut ViewMut<'_, B>) {
    assert!(
        src.shape() == dst.shape(),
        "copy: shape {:?} into {:?}",
        src.shape(),
        dst.shape()
    );
    let from = strided(src.shape(), src.strides(), src.offset());
    let to = strided(dst.shape(), dst.strides(), dst.offset());
    let input = bytemuck::cast_slice(src.data());
    let output = bytemuck::cast_slice_mut(dst.data_mut());
    kernel::copy(A::DTYPE, input, &from, B::DTYPE, output, &to);
}

/// Sets every element of `dst` to `value`.
pub fn fill<T: Element>(dst: &mut ViewMut<'_, T>, value: T) {
    let view = strided(dst.shape(), dst.strides(), dst.offset());
    let output = bytemuck::cast_slice_mut(dst.data_mut());
    kernel::fill(T::DTYPE, output, &view, value.to_scalar());
}

fn strided(shape: &[usize], strides: &[isize], offset: usize) -> Strided {
    Strided::new(offset, shape.into(), strides.into())
}
