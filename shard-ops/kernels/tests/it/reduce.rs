use half::{bf16, f16};
use shard_kernels::reduce::*;
use shard_kernels::{Real, View};

use crate::testing::{Rng, assert_close, naive_index};

type Exact = fn(&[f64]) -> f64;

fn exact(op: ReduceKind) -> Exact {
    match op {
        ReduceKind::Sum => |v| v.iter().sum(),
        ReduceKind::SquareSum => |v| v.iter().map(|x| x * x).sum(),
        ReduceKind::Prod => |v| v.iter().product(),
        ReduceKind::Max => |v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceKind::Min => |v| v.iter().copied().fold(f64::INFINITY, f64::min),
    }
}

const OPS: [ReduceKind; 5] = [
    ReduceKind::Sum,
    ReduceKind::SquareSum,
    ReduceKind::Prod,
    ReduceKind::Max,
    ReduceKind::Min,
];

fn random<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..150 {
        let nd = rng.within(0, 4);
        let shape: Vec<usize> = (0..nd).map(|_| rng.within(0, 9)).collect();
        let mut data = rng.vec::<T>(shape.iter().product());
        for x in &mut data {
            if rng.within(0, 3) == 0 {
                *x = T::zero();
            }
        }
        let mut order: Vec<usize> = (0..nd).collect();
        for i in (1..nd).rev() {
            order.swap(i, rng.within(0, i));
        }
        let x = View::contiguous(&data, &shape).permute(&order);
        let dims: Vec<usize> = (0..nd).filter(|_| rng.within(0, 1) == 1).collect();
        let kept: Vec<usize> = (0..nd).filter(|d| !dims.contains(d)).collect();
        let cells = naive_index(&kept.iter().map(|&d| x.shape()[d]).collect::<Vec<_>>());
        for op in OPS {
            let mut out = vec![T::nan(); cells.len()];
            reduce(op, &x, &dims, &mut out);
            let all = naive_index(x.shape());
            let expected: Vec<f64> = cells
                .iter()
                .map(|cell| {
                    let members = all
                        .iter()
                        .filter(|at| kept.iter().zip(cell).all(|(&d, c)| at[d] == *c));
                    exact(op)(&members.map(|at| x.get(at).wide()).collect::<Vec<_>>())
                })
                .collect();
            assert_close(&out, &expected, 1e-5);
        }
    }
}

#[test]
fn every_reduction_over_every_choice_of_dims() {
    random::<f32>(1);
    random::<f64>(2);
}

#[test]
fn long_single_precision_sums_keep_their_digits() {
    let x = vec![0.1f32; 3_000_000];
    let mut out = [0.0];
    reduce(
        ReduceKind::Sum,
        &View::contiguous(&x, &[3_000_000]),
        &[0],
        &mut out,
    );
    assert!(
        (f64::from(out[0]) - f64::from(0.1f32) * 3e6).abs() < 0.1,
        "{}",
        out[0]
    );
    let mut columns = [0.0; 3];
    reduce(
        ReduceKind::Sum,
        &View::contiguous(&x, &[1_000_000, 3]),
        &[0],
        &mut columns,
    );
    assert!(
        (f64::from(columns[2]) - f64::from(0.1f32) * 1e6).abs() < 0.04,
        "{columns:?}"
    );
}

/// More columns than are summed side by side, and rows that are no multiple of those taken at once.
#[test]
fn wide_columns_of_many_rows() {
    // 512 columns side by side, 16 rows at once.
    let (rows, cols) = (2 * 16 + 5, 512 + 130);
    let x: Vec<f32> = (0..rows * cols).map(|i| (i % 101) as f32 - 50.0).collect();
    for (op, exact) in OPS.map(|op| (op, exact(op))) {
        if op == ReduceKind::Prod {
            continue;
        }
        let mut out = vec![f32::NAN; cols];
        reduce(op, &View::contiguous(&x, &[rows, cols]), &[0], &mut out);
        for (j, got) in out.iter().enumerate() {
            let column: Vec<f64> = (0..rows).map(|i| x[i * cols + j].into()).collect();
            assert_eq!(f64::from(*got), exact(&column), "{op:?} of column {j}");
        }
    }
}

#[test]
fn nan_is_the_extreme_wherever_it_stands() {
    for place in [0, 70, 99] {
        let mut x = [1.0f64; 200];
        x[place] = f64::NAN;
        for op in [ReduceKind::Max, ReduceKind::Min] {
            let mut out = [0.0; 2];
            reduce(op, &View::contiguous(&x, &[2, 100]), &[1], &mut out);
            assert!(out[0].is_nan() && out[1] == 1.0);
            let mut columns = [0.0; 100];
            reduce(op, &View::contiguous(&x, &[2, 100]), &[0], &mut columns);
            assert!(columns[place].is_nan() && columns.iter().filter(|c| c.is_nan()).count() == 1);
        }
    }
}

#[test]
fn extremes_of_short_rows_see_nan_and_the_signs_of_zeros() {
    let of = |op, row: [f32; 3]| {
        let mut out = [9.0];
        reduce(op, &View::contiguous(&row, &[1, 3]), &[1], &mut out);
        out[0]
    };
    for op in [ReduceKind::Max, ReduceKind::Min] {
        for at in 0..3 {
            let mut row = [1.0, -2.0, 3.0];
            row[at] = f32::NAN;
            assert!(of(op, row).is_nan(), "{op:?} {at}");
        }
    }
    for (below, above) in [(-0.0, 0.0), (0.0, -0.0)] {
        assert!(of(ReduceKind::Max, [below, -1.0, above]).is_sign_positive());
        assert!(of(ReduceKind::Min, [below, 1.0, above]).is_sign_negative());
    }
}

/// Rows that are looked at many at a time, and what is left of them, give what each gives alone.
#[test]
fn many_short_rows_give_what_each_gives_alone() {
    let rows = 2 * 64 + 13;
    for n in 2..=12 {
        let x: Vec<f32> = (0..rows * n)
            .map(|i| match (i * 7919) % 97 {
                0 => f32::NAN,
                1..6 => -0.0,
                6..12 => 0.0,
                12 => f32::INFINITY,
                k => (k as f32 - 50.0) / 3.0,
            })
            .collect();
        for op in OPS {
            let mut all = vec![9.0; rows];
            reduce(op, &View::contiguous(&x, &[rows, n]), &[1], &mut all);
            for (row, all) in x.chunks(n).zip(&all) {
                let mut alone = [9.0];
                reduce(op, &View::contiguous(row, &[1, n]), &[1], &mut alone);
                let same = alone[0].to_bits() == all.to_bits() || alone[0].is_nan() && all.is_nan();
                assert!(same, "{op:?} of {row:?}: {all} and {}", alone[0]);
            }
        }
    }
}

/// What stands in memory beside columns of few, or behind the last one, has no part in them.
#[test]
fn few_columns_of_many_rows_are_those_of_a_wider_array() {
    let rows = 5 * 16 + 3;
    for (width, stride) in [(2, 2), (3, 3), (3, 5), (15, 17), (16, 16), (17, 40)] {
        let mut x = vec![f64::NAN; rows * stride];
        for (i, row) in x.chunks_mut(stride).enumerate() {
            for (j, x) in row[..width].iter_mut().enumerate() {
                *x = ((i * 31 + j * 17) % 101) as f64 / 50.0 + 0.3;
            }
        }
        for op in OPS {
            let mut found = vec![9.0; width];
            let columns = View::new(&x, 0, &[rows, width], &[stride as isize, 1]);
            reduce(op, &columns, &[0], &mut found);
            for (j, found) in found.iter().enumerate() {
                let mut alone = [9.0];
                let column: Vec<f64> = (0..rows).map(|i| x[i * stride + j]).collect();
                // Beside another, so that it is taken by rows too.
                let beside: Vec<f64> = column.iter().flat_map(|x| [*x, 1.0]).collect();
                let mut pair = [9.0; 2];
                reduce(op, &View::contiguous(&beside, &[rows, 2]), &[0], &mut pair);
                assert_eq!(
                    found.to_bits(),
                    pair[0].to_bits(),
                    "{op:?} of column {j} of {width}"
                );
                reduce(op, &View::contiguous(&column, &[rows]), &[0], &mut alone);
                assert!(
                    (found / alone[0] - 1.0).abs() < 1e-12,
                    "{op:?} of column {j} of {width}"
                );
            }
        }
    }
}

/// Rows of all lengths that loops tell apart, and narrow columns of many rows, one of them with a NaN. What a row comes to does not depend on the
/// rows about it.
fn long_and_narrow<T: Real>() {
    let mut rng = Rng::new(5);
    for round in 0..120 {
        let (by_rows, few, many) = (round % 2 == 0, rng.within(1, 40), rng.within(1, 700));
        let shape = if by_rows {
            [few, many.min(300)]
        } else {
            [many, few]
        };
        let dim = usize::from(by_rows);
        let mut data: Vec<T> = (rng.vec::<T>(shape[0] * shape[1]).into_iter())
            .map(|x| T::of(1.0 + x.wide() / 64.0))
            .collect();
        if round % 3 == 0 {
            let at = rng.within(0, data.len() - 1);
            data[at] = T::nan();
        }
        let x = View::contiguous(&data, &shape);
        for op in OPS {
            let mut out = vec![T::zero(); shape[1 - dim]];
            reduce(op, &x, &[dim], &mut out);
            for (cell, got) in out.iter().enumerate() {
                let of = (0..shape[dim]).map(|i| match by_rows {
                    true => x.get(&[cell, i]),
                    false => x.get(&[i, cell]),
                });
                let of: Vec<f64> = of.map(T::wide).collect();
                let expected = match of.iter().any(|x| x.is_nan()) {
                    true => f64::NAN,
                    false => exact(op)(&of),
                };
                assert_close(&[*got], &[expected], 1e-5);
                if by_rows {
                    let own = &data[cell * shape[1]..][..shape[1]];
                    let mut alone = [T::zero()];
                    reduce(op, &View::contiguous(own, &[1, shape[1]]), &[1], &mut alone);
                    assert!(
                        alone[0] == *got || got.is_nan(),
                        "{op:?} of row {cell} of {shape:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn long_rows_and_narrow_columns_are_reduced() {
    long_and_narrow::<f32>();
    long_and_narrow::<f64>();
}

/// Rows in 16 bits, of all lengths that are taken in other ways, without and with gaps, come to what they come to in single precision.
fn rows_of<T: Half>() {
    let mut rng = Rng::new(5);
    let kinds = [
        ReduceKind::Sum,
        ReduceKind::SquareSum,
        ReduceKind::Prod,
        ReduceKind::Max,
        ReduceKind::Min,
    ];
    for (round, n) in [0, 1, 2, 3, 10, 16, 33, 49, 256, 257, 1024, 1025, 2049, 5000]
        .into_iter()
        .cycle()
        .take(42)
        .enumerate()
    {
        let (cells, op) = (rng.within(0, 5), kinds[round % kinds.len()]);
        let numbers = rng.vec::<f32>(2 * cells * n + 8);
        let data: Vec<T> = numbers.into_iter().map(T::narrow).collect();
        let n = n as isize;
        let (shape, strides, kept): (Vec<usize>, Vec<isize>, usize) = match round % 4 {
            0 => (vec![cells, n as usize], vec![n, 1], 1),
            // Of every row the second half.
            1 => (vec![cells, n as usize], vec![2 * n, 1], 1),
            // Every other number.
            2 => (vec![cells, 1, n as usize], vec![2 * n, 7, 2], 2),
            _ => (vec![cells, n as usize], vec![n, 1], 0),
        };
        let len: usize = shape[..kept].iter().product();
        let (mut got, mut expected) = (vec![f32::NAN; len], vec![f32::NAN; len]);
        let x = View::new(&data, 3, &shape, &strides);
        reduce_rows(op, &x, kept, &mut got);
        // Widened, side by side.
        let all = naive_index(&shape).into_iter();
        let all: Vec<f32> = all.map(|at| x.get(&at).widen()).collect();
        let rows = [len, all.len().checked_div(len).unwrap_or(0)];
        reduce(op, &View::contiguous(&all, &rows), &[1], &mut expected);
        let bits = |of: &[f32]| of.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(
            bits(&got),
            bits(&expected),
            "{op:?} of {shape:?}, {strides:?}"
        );
    }
}

#[test]
fn rows_in_16_bits_are_those_in_single_precision() {
    rows_of::<f16>();
    rows_of::<bf16>();
}
