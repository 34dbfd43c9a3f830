use shard_kernels::Real;
use shard_kernels::normalise::{CellGrad, WholeCells, cell_grad, normalise_cells};

use crate::testing::Rng;

/// Values and derivatives against the formulas, over cells of one run and of several, with and without weights.
fn follows<T: Real>(tolerance: f64) {
    let mut rng = Rng::new(3);
    for (cells, count, weights) in [(5, 37, 37), (40, 130, 130), (6, 4 * 9, 8), (4, 3, 3)] {
        let by_element = weights == count;
        let runs = if by_element { 1 } else { 4 };
        for (about_zero, affine) in [(false, true), (true, true), (false, false)] {
            let whole = WholeCells {
                before: 0,
                runs,
                len: count / runs,
                by_element,
                about_zero,
                eps: 1e-3,
            };
            let [x, dy] = [0, 1].map(|_| rng.vec::<T>(cells * count));
            let [gain, shift] = [0, 1].map(|_| rng.vec::<T>(weights));
            let given = |w| if affine { Some(w) } else { None };
            let weight = |i: usize| match by_element {
                true => i % count,
                false => i / whole.len % weights,
            };
            let gain_of = |i| if affine { gain[weight(i)].wide() } else { 1.0 };
            let (mut y, mut stats) = (vec![T::nan(); x.len()], vec![f64::NAN; 3 * cells]);
            let of = [given(&gain[..]), given(&shift[..])];
            normalise_cells(whole, &x, of, &mut y, &mut stats);
            let mut dx = vec![T::nan(); x.len()];
            let [mut units, mut sums] = [0, 1].map(|_| vec![T::nan(); weights]);
            let grad = CellGrad {
                x: &x,
                stats: &stats,
                dy: &dy,
                gain: given(&gain[..]),
                dx: &mut dx,
                weights: affine.then_some([&mut units[..], &mut sums]),
            };
            cell_grad(whole, grad);
            let (mut all_units, mut all_sums) = (vec![0.0; weights], vec![0.0; weights]);
            let close = |got: T, wanted: f64| {
                let off = (got.wide() - wanted).abs();
                assert!(
                    off <= tolerance * wanted.abs().max(1.0),
                    "{got:?} for {wanted}: {whole:?}"
                );
            };
            for c in 0..cells {
                let at = c * count..(c + 1) * count;
                let mean_of =
                    |f: &dyn Fn(usize) -> f64| at.clone().map(f).sum::<f64>() / count as f64;
                let mean = if about_zero {
                    0.0
                } else {
                    mean_of(&|i| x[i].wide())
                };
                let var = mean_of(&|i| (x[i].wide() - mean).powi(2));
                let rstd = 1.0 / (var + 1e-3).sqrt();
                let unit = |i: usize| (x[i].wide() - mean) * rstd;
                let pulled = |i: usize| gain_of(i) * dy[i].wide();
                let a = if about_zero { 0.0 } else { mean_of(&pulled) };
                let b = mean_of(&|i| pulled(i) * unit(i));
                for i in at {
                    let shift = if affine { shift[weight(i)].wide() } else { 0.0 };
                    close(y[i], unit(i) * gain_of(i) + shift);
                    close(dx[i], rstd * (pulled(i) - a - unit(i) * b));
                    all_units[weight(i)] += dy[i].wide() * unit(i);
                    all_sums[weight(i)] += dy[i].wide();
                }
            }
            if affine {
                for w in 0..weights {
                    close(units[w], all_units[w]);
                    close(sums[w], all_sums[w]);
                }
            }
        }
    }
}

#[test]
fn cells_at_once_follow_the_formulas() {
    follows::<f32>(2e-5);
    follows::<f64>(1e-12);
}

#[test]
fn cells_of_nothing_have_no_statistics() {
    let whole = WholeCells {
        before: 0,
        runs: 1,
        len: 0,
        by_element: true,
        about_zero: false,
        eps: 0.0,
    };
    let mut stats = [f64::NAN; 6];
    normalise_cells::<f32>(whole, &[], [Some(&[]), None], &mut [], &mut stats);
    assert_eq!(stats, [0.0; 6]);
    let grad = CellGrad::<f32> {
        x: &[],
        stats: &stats,
        dy: &[],
        gain: None,
        dx: &mut [],
        weights: None,
    };
    cell_grad(whole, grad);
}
