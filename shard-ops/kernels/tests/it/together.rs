use half::bf16;
use shard_kernels::normalise::{
    CellGrad, WeightGrads, WholeCells, add_cell_grad, cell_grad, normalise_cells,
};
use shard_kernels::softmax::{softmax_rows, softmax_rows_grad};
use shard_kernels::together::{by_blocks, by_cells, by_runs};

use crate::testing::Rng;

fn halves(rng: &mut Rng, n: usize) -> (Vec<bf16>, Vec<f32>) {
    let halves: Vec<_> = (rng.vec::<f32>(n).into_iter())
        .map(bf16::from_f32)
        .collect();
    let wide = halves.iter().map(|x| x.to_f32()).collect();
    (halves, wide)
}

fn rounded(of: &[f32]) -> Vec<bf16> {
    of.iter().map(|x| bf16::from_f32(*x)).collect()
}

/// Cells that are few and long, many and short, and longer than what is widened at a time; results as they are made, and rounded.
#[test]
fn cells_of_16_bits_are_those_of_f32_rounded_once() {
    let mut rng = Rng::new(5);
    for (rows, n) in [(0, 7), (1, 1), (700, 13), (9, 1000), (3, 4096), (2, 5000)] {
        let ((y, wide_y), (dy, wide_dy)) = (halves(&mut rng, rows * n), halves(&mut rng, rows * n));
        let (mut expected, mut got) = (vec![f32::NAN; rows * n], vec![bf16::NAN; rows * n]);
        softmax_rows(false, &wide_y, n, &mut expected);
        let mut before = Vec::new();
        by_cells(n, [&y], &mut got, |cells, [x], out| {
            before.push(cells);
            softmax_rows(false, x, n, out);
        });
        assert_eq!(got, rounded(&expected), "{rows} x {n}");
        let together = (1024 / n).max(1);
        let starts: Vec<_> = (0..rows).step_by(together).collect();
        assert_eq!(before, starts, "{rows} x {n}");
        softmax_rows_grad(true, &wide_y, &wide_dy, n, &mut expected);
        let mut made = vec![f32::NAN; rows * n];
        by_cells(n, [&y, &dy], &mut made, |_, [y, dy], out| {
            softmax_rows_grad(true, y, dy, n, out);
        });
        assert_eq!(made, expected, "{rows} x {n}");
    }
}

/// Weights of elements and of runs in turn go on where the cells before have come to, and sums of weights go on over them.
#[test]
fn norms_of_some_cells_go_on_where_others_end() {
    let mut rng = Rng::new(6);
    for (runs, len, by_element, weights) in
        [(1, 300, true, 300), (3, 500, false, 6), (4, 37, false, 3)]
    {
        let (count, cell) = (50, runs * len);
        let whole = WholeCells {
            before: 0,
            runs,
            len,
            by_element,
            about_zero: false,
            eps: 1e-5,
        };
        let ((x, wide_x), (dy, wide_dy)) = (
            halves(&mut rng, count * cell),
            halves(&mut rng, count * cell),
        );
        let (gain, shift) = (rng.vec::<f32>(weights), rng.vec::<f32>(weights));
        let affine = [Some(&gain[..]), Some(&shift[..])];
        let (mut expected, mut stats) = (vec![f32::NAN; count * cell], vec![f64::NAN; 3 * count]);
        normalise_cells(whole, &wide_x, affine, &mut expected, &mut stats);
        let (mut got, mut found) = (vec![bf16::NAN; count * cell], vec![f64::NAN; 3 * count]);
        by_cells(cell, [&x], &mut got, |before, [x], out| {
            let stats = &mut found[3 * before..][..3 * (x.len() / cell)];
            normalise_cells(WholeCells { before, ..whole }, x, affine, out, stats);
        });
        assert_eq!((got, &found), (rounded(&expected), &stats), "{whole:?}");

        let (mut units, mut plain) = (vec![f32::NAN; weights], vec![f32::NAN; weights]);
        let grad = CellGrad {
            x: &wide_x,
            stats: &stats,
            dy: &wide_dy,
            gain: Some(&gain),
            dx: &mut expected,
            weights: Some([&mut units, &mut plain]),
        };
        cell_grad(whole, grad);
        let mut sums = WeightGrads::new(whole, weights);
        let mut got = vec![f32::NAN; count * cell];
        by_cells(cell, [&x, &dy], &mut got, |before, [x, dy], dx| {
            let grad = CellGrad {
                x,
                stats: &stats[3 * before..][..3 * (x.len() / cell)],
                dy,
                gain: Some(&gain),
                dx,
                weights: None,
            };
            add_cell_grad(WholeCells { before, ..whole }, grad, &mut sums);
        });
        assert_eq!(got, expected, "{whole:?}");
        let totals = sums
            .totals()
            .map(|of| of.into_iter().map(|x| x as f32).collect::<Vec<_>>());
        assert_eq!(totals, [units, plain], "{whole:?}");
    }
}

/// Runs that are widened together and run by run, with what comes before; and blocks of sums.
#[test]
fn runs_and_blocks_of_16_bits_are_seen_once_and_in_order() {
    let mut rng = Rng::new(7);
    for (runs, len) in [(0, 5), (50, 37), (3, 1024), (2, 1025), (2, 3000)] {
        let (x, wide) = halves(&mut rng, runs * len);
        let mut got = vec![f32::NAN; runs * len];
        by_runs(len, [&x], &mut got, |[run, before], [x], out| {
            for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
                *out = x + (10 * run + before + i) as f32;
            }
        });
        let at = |i: usize| wide[i] + (10 * (i / len) + i % len) as f32;
        assert!((0..runs * len).all(|i| got[i] == at(i)), "{runs} x {len}");

        let mut seen = Vec::new();
        by_blocks([&x, &x], |[a, b]| {
            assert_eq!(a, b);
            seen.push(a.to_vec());
        });
        assert!(seen.iter().rev().skip(1).all(|block| block.len() == 1024));
        assert_eq!(seen.concat(), wide);
    }
}

#[test]
#[should_panic(expected = "cells: [3] numbers into 4")]
fn operands_of_other_lengths_are_refused() {
    by_cells(1, [&[bf16::ONE; 3]], &mut [bf16::ONE; 4], |_, _, _| ());
}
