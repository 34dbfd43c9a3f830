use shard_kernels::View;
use shard_kernels::tally::*;

use crate::testing::{Rng, naive_index};
use shard_device::Bool;

const ALL: [Tally; 4] = [Tally::Sum, Tally::Prod, Tally::Max, Tally::Min];

/// What `of` makes of each cell's elements, cells in row-major order of the dims that are kept.
fn cells<T: Copy>(x: &View<'_, T>, dims: &[usize], of: impl Fn(Vec<T>) -> i64) -> Vec<i64> {
    let kept: Vec<usize> = (0..x.ndim()).filter(|d| !dims.contains(d)).collect();
    let extents = kept.iter().map(|&d| x.shape()[d]);
    let mut members = vec![Vec::new(); extents.product()];
    for at in naive_index(x.shape()) {
        let cell = (kept.iter()).fold(0, |cell, &d| cell * x.shape()[d] + at[d]);
        members[cell].push(x.get(&at));
    }
    members.into_iter().map(of).collect()
}

fn exact(op: Tally, numbers: &[i64]) -> i64 {
    let mut total = op.identity();
    for &x in numbers {
        total = match op {
            Tally::Sum => total.wrapping_add(x),
            Tally::Prod => total.wrapping_mul(x),
            Tally::Max => total.max(x),
            Tally::Min => total.min(x),
        };
    }
    total
}

#[test]
fn every_reduction_over_every_choice_of_dims() {
    let mut rng = Rng::new(4);
    for round in 0..120 {
        let nd = rng.within(0, 4);
        let wide = if round % 8 == 0 { 700 } else { 9 };
        let shape: Vec<usize> = (0..nd)
            .map(|d| rng.within(0, if d == 0 { wide } else { 5 }))
            .collect();
        let count = shape.iter().product();
        let bytes: Vec<u8> = (0..count).map(|_| rng.within(0, 255) as u8).collect();
        let long: Vec<i64> = bytes
            .iter()
            .map(|&b| (i64::from(b) - 128).wrapping_mul(i64::MAX / 200))
            .collect();
        let mut order: Vec<usize> = (0..nd).collect();
        for i in (1..nd).rev() {
            order.swap(i, rng.within(0, i));
        }
        let dims: Vec<usize> = (0..nd).filter(|_| rng.within(0, 1) == 1).collect();
        let bytes = View::contiguous(&bytes, &shape).permute(&order);
        let long = View::contiguous(&long, &shape).permute(&order);
        for op in ALL {
            let wide = |v: Vec<u8>| -> Vec<i64> { v.into_iter().map(i64::from).collect() };
            let expected = cells(&bytes, &dims, |v| exact(op, &wide(v)));
            let mut found = vec![77; expected.len()];
            of_whole(op, &bytes, &dims, &mut |cell, x| found[cell] = x);
            assert_eq!(found, expected, "{op:?} of bytes");
            let expected = cells(&long, &dims, |v| exact(op, &v));
            of_whole(op, &long, &dims, &mut |cell, x| found[cell] = x);
            assert_eq!(found, expected, "{op:?} of longs");
            let truths =
                |v: Vec<u8>| -> Vec<i64> { v.into_iter().map(|x| i64::from(x != 0)).collect() };
            let expected = cells(&bytes, &dims, |v| exact(op, &truths(v)));
            of_truths(op, &bytes, &dims, &mut |cell, x| found[cell] = x);
            assert_eq!(found, expected, "{op:?} of truths");
        }
    }
}

#[test]
fn what_is_not_zero_is_true() {
    let x = [0.0_f32, -0.0, f32::NAN, 1e-45];
    let mut count = 0;
    of_truths(
        Tally::Sum,
        &View::contiguous(&x, &[4]),
        &[0],
        &mut |_, n| count = n,
    );
    assert_eq!(count, 2);
    let odd: &[Bool] = bytemuck::cast_slice(&[0_u8, 2, 3]);
    of_whole(
        Tally::Sum,
        &View::contiguous(odd, &[3]),
        &[0],
        &mut |_, n| count = n,
    );
    assert_eq!(count, 2);
    of_truths(
        Tally::Min,
        &View::contiguous(&x[..0], &[0]),
        &[0],
        &mut |_, n| count = n,
    );
    assert!(count > 0);
}
