//! Copies between strided views: permutations, boxes, broadcasts made real.

use super::view::join_dims;
use super::{View, ViewMut};
use crate::view::for_each_row;

/// Side of the square blocks in which transposing copies walk, so that both sides stay in cache lines.
const BLOCK: usize = 16;

/// Copies `src` to `dst` element by element; any strides on both sides.
///
/// Runs that are contiguous on both sides are copied whole; otherwise the walk is blocked over the two dims that are
/// innermost in either view.
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
pub fn copy<T: Copy>(src: &View<'_, T>, dst: &mut ViewMut<'_, T>) {
    assert!(
        src.shape() == dst.shape(),
        "copy: shape {:?} into {:?}",
        src.shape(),
        dst.shape()
    );
    if src.is_empty() {
        return;
    }
    let (shape, steps) = join_dims(src.shape(), [src.strides(), dst.strides()]);
    let (from, to) = (src.offset(), dst.offset());
    let (input, output) = (src.data(), dst.data_mut());

    // Order the dims by the destination's step so that writes run forward, then find the source's fastest dim.
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|&d| core::cmp::Reverse(steps[d][1].unsigned_abs()));
    let Some((&inner, outer)) = order.split_last() else {
        output[to] = input[from];
        return;
    };
    let fast = outer
        .iter()
        .copied()
        .find(|&d| steps[d][0].unsigned_abs() == 1);
    match fast {
        Some(cross) if steps[inner][0] != 1 => {
            let rest: Vec<usize> = outer.iter().copied().filter(|&d| d != cross).collect();
            let [rows, cols] = [shape[cross], shape[inner]];
            walk(&shape, &steps, &rest, [from, to], |at, n, step| {
                for i in 0..n as isize {
                    let at = [0, 1].map(|k| at[k].wrapping_add_signed(i * step[k]));
                    transpose(
                        input,
                        output,
                        at,
                        [rows, cols],
                        [steps[cross], steps[inner]],
                    );
                }
            });
        }
        _ => walk(
            &shape,
            &steps,
            &order,
            [from, to],
            |[from, to], n, [step_in, step_out]| {
                if step_in == 1 && step_out == 1 {
                    output[to..to + n].copy_from_slice(&input[from..from + n]);
                } else {
                    for i in 0..n as isize {
                        output[to.wrapping_add_signed(i * step_out)] =
                            input[from.wrapping_add_signed(i * step_in)];
                    }
                }
            },
        ),
    }
}

/// Sets every element of `dst` to `value`.
pub fn fill<T: Copy>(dst: &mut ViewMut<'_, T>, value: T) {
    let (shape, strides, offset) = dst.geometry();
    let data = dst.data_mut();
    for_each_row(&shape, [&strides], [offset], |[at], n, [step]| {
        if step == 1 {
            data[at..at + n].fill(value);
        } else {
            for i in 0..n as isize {
                data[at.wrapping_add_signed(i * step)] = value;
            }
        }
    });
}

fn walk(
    shape: &[usize],
    steps: &[[isize; 2]],
    order: &[usize],
    at: [usize; 2],
    visit: impl FnMut([usize; 2], usize, [isize; 2]),
) {
    let extents: Vec<usize> = order.iter().map(|&d| shape[d]).collect();
    let from: Vec<isize> = order.iter().map(|&d| steps[d][0]).collect();
    let to: Vec<isize> = order.iter().map(|&d| steps[d][1]).collect();
    for_each_row(&extents, [&from, &to], at, visit);
}

/// Copies a `rows x cols` matrix whose source runs along rows and whose destination runs along columns.
fn transpose<T: Copy>(
    input: &[T],
    output: &mut [T],
    at: [usize; 2],
    [rows, cols]: [usize; 2],
    [row, col]: [[isize; 2]; 2],
) {
    let place = |which: usize, r: usize, c: usize| {
        at[which].wrapping_add_signed(r as isize * row[which] + c as isize * col[which])
    };
    for r0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..cols).step_by(BLOCK) {
            for r in r0..(r0 + BLOCK).min(rows) {
                for c in c0..(c0 + BLOCK).min(cols) {
                    output[place(1, r, c)] = input[place(0, r, c)];
                }
            }
        }
    }
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
            let data: Vec<u64> = (0..shape.iter().product::<usize>() as u64).collect();
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
            let mut out = vec![u64::MAX; padded.iter().product()];
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
            let written = out.iter().filter(|v| **v != u64::MAX).count();
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
