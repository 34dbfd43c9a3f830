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
    kernel::copy(T::DTYPE, input, &from, T::DTYPE, output, &to);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, naive_index};

    #[test]
    fn random_permutations_and_boxes_copy_exactly() {
        let mut rng = Rng::new(11);
        for _ in 0..200 {
            let nd = rng.within(0, 4);
            let shape: Vec<usize> = (0..nd).map(|_| rng.within(1, 20)).collect();
            let data: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
            let mut order: Vec<usize> = (0..nd).collect();
            for i in (1..nd).rev() {
                order.swap(i, rng.within(0, i));
            }
            let start: Vec<usize> = shape.iter().map(|&n| rng.within(0, n)).collect();
            let extent: Vec<usize> = shape
                .iter()
                .zip(&start)
                .map(|(&n, &s)| rng.within(0, n - s))
                .collect();
            let src = View::contiguous(&data, &shape)
                .sub_box(&start, &extent)
                .permute(&order);
            let padded: Vec<usize> = src.shape().iter().map(|n| n + 1).collect();
            let mut out = vec![-1; padded.iter().product()];
            let mut dst = ViewMut::contiguous(&mut out, &padded).sub_box(&vec![0; nd], src.shape());
            copy(&src, &mut dst);
            for at in naive_index(src.shape()) {
                assert_eq!(
                    dst.as_view().get(&at),
                    src.get(&at),
                    "{at:?} of {:?}",
                    src.shape()
                );
            }
            let written = out.iter().filter(|v| **v != -1).count();
            assert_eq!(written, extent.iter().product::<usize>());
        }
    }

    #[test]
    fn broadcast_and_reversed_sources() {
        let data = [1, 2, 3];
        let mut out = [0; 6];
        let repeated = View::contiguous(&data, &[3])
            .broadcast_to(&[2, 3])
            .expect("broadcasts");
        copy(&repeated, &mut ViewMut::contiguous(&mut out, &[2, 3]));
        assert_eq!(out, [1, 2, 3, 1, 2, 3]);
        let mut back = [0; 3];
        copy(
            &View::new(&data, 2, &[3], &[-1]),
            &mut ViewMut::contiguous(&mut back, &[3]),
        );
        assert_eq!(back, [3, 2, 1]);
        fill(
            &mut ViewMut::contiguous(&mut out, &[2, 3]).sub_box(&[0, 1], &[2, 1]),
            9,
        );
        assert_eq!(out, [1, 9, 3, 1, 9, 3]);
    }
}
