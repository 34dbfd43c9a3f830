use crate::testing::{Rng, naive_index};
use shard_kernels::copy::*;
use shard_kernels::{View, ViewMut};

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
