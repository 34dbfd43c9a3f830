use shard_kernels::softmax::*;
use shard_kernels::{Real, View, ViewMut};

use crate::testing::{Rng, assert_close, naive_index};

/// The softmax of an element from the definition.
fn exact<T: Real>(x: &View<'_, T>, dims: &[usize], at: &[usize]) -> f64 {
    let same = |other: &Vec<usize>| (0..at.len()).all(|d| dims.contains(&d) || other[d] == at[d]);
    let all = naive_index(x.shape());
    let cell: Vec<f64> = all
        .iter()
        .filter(|o| same(o))
        .map(|o| x.get(o).wide())
        .collect();
    let max = cell.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = cell.iter().map(|v| (v - max).exp()).sum();
    (x.get(at).wide() - max).exp() / sum
}

fn random<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..60 {
        let nd = rng.within(1, 4);
        let wide = if round % 10 == 0 && nd <= 2 { 300 } else { 7 };
        let shape: Vec<usize> = (0..nd)
            .map(|d| rng.within(1, if d == 0 { wide } else { 4 }))
            .collect();
        let data: Vec<T> = rng.vec::<T>(shape.iter().product());
        let mut order: Vec<usize> = (0..nd).collect();
        for i in (1..nd).rev() {
            order.swap(i, rng.within(0, i));
        }
        let x = View::contiguous(&data, &shape).permute(&order);
        let dims: Vec<usize> = (0..nd).filter(|_| rng.within(0, 1) == 1).collect();
        let cells: usize = (0..nd)
            .filter(|d| !dims.contains(d))
            .map(|d| x.shape()[d])
            .product();
        let mut pairs = vec![f64::NAN; 2 * cells];
        max_sum_exp(&x, &dims, &mut pairs);
        let expected: Vec<f64> = naive_index(x.shape())
            .iter()
            .map(|at| exact(&x, &dims, at))
            .collect();
        for log in [false, true] {
            let mut out = vec![T::nan(); data.len()];
            softmax(
                log,
                &x,
                &dims,
                &pairs,
                &mut ViewMut::contiguous(&mut out, x.shape()),
            );
            let expected: Vec<f64> = match log {
                true => expected.iter().map(|p| p.ln()).collect(),
                false => expected.clone(),
            };
            assert_close(&out, &expected, 1e-5);
        }
    }
}

#[test]
fn softmax_over_every_choice_of_dims() {
    random::<f32>(1);
    random::<f64>(2);
}

#[test]
fn pairs_of_infinities_and_of_nothing() {
    let inf = f64::INFINITY;
    let x = [-inf, -inf, inf, 1.0, inf, inf, f64::NAN, 2.0];
    let mut pairs = [0.0; 8];
    max_sum_exp(&View::contiguous(&x, &[4, 2]), &[1], &mut pairs);
    assert_eq!(&pairs[..6], [-inf, 2.0, inf, 1.0, inf, 2.0]);
    assert!(pairs[6].is_nan());
    let mut columns = [0.0; 8];
    let across = View::contiguous(&x, &[4, 2]).permute(&[1, 0]).to_vec();
    max_sum_exp(&View::contiguous(&across, &[2, 4]), &[0], &mut columns);
    assert_eq!(columns[..6], pairs[..6]);
    assert!(columns[6].is_nan());
    let mut none = [1.0; 2];
    max_sum_exp(&View::contiguous(&x[..0], &[0]), &[0], &mut none);
    assert_eq!(none, [-inf, 0.0]);
}

/// Rows that are looked at many at a time, and what is left of them, give what each gives alone; and elements what they give in columns, where
/// none goes with others of its row.
#[test]
fn many_short_rows_give_what_each_gives_alone() {
    let rows = 2 * 16 + 5;
    for n in [2, 3, 10, 17, 63, 64] {
        let x: Vec<f32> = (0..rows * n)
            .map(|i| match (i * 7919) % 997 {
                0 => f32::NAN,
                1..6 => f32::NEG_INFINITY,
                6..9 => f32::INFINITY,
                k => (k as f32 - 500.0) / 100.0,
            })
            .collect();
        let bits = |of: &[f64]| -> Vec<u64> { of.iter().map(|x| x.to_bits()).collect() };
        let mut pairs = vec![9.0; 2 * rows];
        max_sum_exp(&View::contiguous(&x, &[rows, n]), &[1], &mut pairs);
        for (row, pair) in x.chunks(n).zip(pairs.chunks(2)) {
            let mut alone = [9.0; 2];
            max_sum_exp(&View::contiguous(row, &[1, n]), &[1], &mut alone);
            assert!(pair[0] == alone[0] || pair[0].is_nan() && alone[0].is_nan());
            assert!(
                (pair[1] / alone[1] - 1.0).abs() < 1e-6 || pair[1].is_nan() && alone[1].is_nan()
            );
        }
        let factors: Vec<f64> = pairs
            .chunks(2)
            .flat_map(|pair| [pair[0], pair[1]])
            .collect();
        let across = View::contiguous(&x, &[rows, n]).permute(&[1, 0]);
        let [mut by_rows, mut by_columns] = [(); 2].map(|()| vec![9.0f32; rows * n]);
        let to = &mut ViewMut::contiguous(&mut by_rows, &[rows, n]);
        exponentials(&View::contiguous(&x, &[rows, n]), &[1], &factors, to);
        let to = &mut ViewMut::contiguous(&mut by_columns, &[n, rows]);
        exponentials(&across, &[0], &factors, to);
        let turned = View::contiguous(&by_columns, &[n, rows])
            .permute(&[1, 0])
            .to_vec();
        let wide = |of: &[f32]| -> Vec<f64> { of.iter().map(|x| f64::from(*x)).collect() };
        let is_nan = |of: &[f64]| -> Vec<f64> {
            of.iter()
                .map(|x| if x.is_nan() { 7.0 } else { *x })
                .collect()
        };
        assert_eq!(
            bits(&is_nan(&wide(&by_rows))),
            bits(&is_nan(&wide(&turned))),
            "{n}"
        );
        assert!(by_rows.iter().any(|x| *x != 9.0 && !x.is_nan()));
    }
}
