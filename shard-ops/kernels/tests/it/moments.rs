use shard_kernels::moments::*;
use shard_kernels::{Real, View};

use crate::testing::{Rng, naive_index};

fn naive<T: Real>(x: &View<'_, T>, dims: &[usize], groups: Option<Groups>) -> Moments {
    let kept: Vec<usize> = (0..x.ndim()).filter(|d| !dims.contains(d)).collect();
    let group_of = |d: usize, i: usize| match groups {
        Some(g) if g.dim == d => (g.start + i) * g.groups / g.channels,
        _ => i,
    };
    let extent = |d: usize| match groups {
        Some(g) if g.dim == d => g.groups,
        _ => x.shape()[d],
    };
    let shape: Vec<usize> = kept.iter().map(|&d| extent(d)).collect();
    let mut out = Moments::empty(&shape);
    let all = naive_index(x.shape());
    for (i, cell) in naive_index(&shape).iter().enumerate() {
        let members: Vec<f64> = all
            .iter()
            .filter(|at| {
                kept.iter()
                    .zip(cell)
                    .all(|(&d, c)| group_of(d, at[d]) == *c)
            })
            .map(|at| x.get(at).wide())
            .collect();
        if !members.is_empty() {
            let n = members.len() as f64;
            let mean = members.iter().sum::<f64>() / n;
            out.count[i] = n;
            out.mean[i] = mean;
            out.m2[i] = members.iter().map(|x| (x - mean).powi(2)).sum();
        }
    }
    out
}

fn assert_same(got: &Moments, expected: &Moments, tolerance: f64) {
    assert_eq!((&got.shape, &got.count), (&expected.shape, &expected.count));
    for (g, e) in got
        .mean
        .iter()
        .zip(&expected.mean)
        .chain(got.m2.iter().zip(&expected.m2))
    {
        assert!(
            (g - e).abs() <= tolerance * e.abs().max(1.0),
            "{g} against {e}"
        );
    }
}

fn random<T: Real>(tolerance: f64) {
    let mut rng = Rng::new(21);
    for _ in 0..120 {
        let nd = rng.within(1, 4);
        let shape: Vec<usize> = (0..nd).map(|_| rng.within(0, 8)).collect();
        let data = rng.vec::<T>(shape.iter().product());
        let mut order: Vec<usize> = (0..nd).collect();
        for i in (1..nd).rev() {
            order.swap(i, rng.within(0, i));
        }
        let x = View::contiguous(&data, &shape).permute(&order);
        let dims: Vec<usize> = (0..nd).filter(|_| rng.within(0, 1) == 1).collect();
        let kept: Vec<usize> = (0..nd).filter(|d| !dims.contains(d)).collect();
        let groups = kept.first().map(|&dim| {
            let start = rng.within(0, 3);
            let channels = start + x.shape()[dim] + rng.within(1, 3);
            Groups {
                dim,
                start,
                channels,
                groups: rng.within(1, channels),
            }
        });
        assert_same(
            &moments(&x, &dims, None),
            &naive(&x, &dims, None),
            tolerance,
        );
        assert_same(
            &moments(&x, &dims, groups),
            &naive(&x, &dims, groups),
            tolerance,
        );
    }
}

#[test]
fn moments_and_groups_match_two_passes() {
    random::<f64>(1e-12);
    random::<f32>(1e-5);
}

#[test]
fn a_large_mean_costs_no_digits_and_splits_merge() {
    let mut rng = Rng::new(8);
    let x: Vec<f64> = (0..5000).map(|_| 1e6 + rng.unit()).collect();
    let whole = moments(&View::contiguous(&x, &[5000]), &[0], None);
    let mut parts = moments(&View::contiguous(&x[..1777], &[1777]), &[0], None);
    parts.merge(&Moments::empty(&[]));
    parts.merge(&moments(&View::contiguous(&x[1777..], &[3223]), &[0], None));
    assert_same(&parts, &whole, 1e-9);
    let exact = naive(&View::contiguous(&x, &[5000]), &[0], None);
    assert_same(&whole, &exact, 1e-9);
    let columns = moments(&View::contiguous(&x, &[2500, 2]), &[0], None);
    assert!((columns.m2[0] + columns.m2[1] - whole.m2[0]).abs() < 0.01 * whole.m2[0]);
}

#[test]
fn nan_is_data() {
    let x = [1.0f32, f32::NAN, 2.0, 4.0];
    let m = moments(&View::contiguous(&x, &[2, 2]), &[1], None);
    assert!(m.mean[0].is_nan() && m.m2[0].is_nan());
    assert_eq!((m.mean[1], m.m2[1]), (3.0, 2.0));
}

/// Squares of such deviations are 0 or infinite in `f32`.
#[test]
fn squares_beyond_the_type_are_those_of_double_precision() {
    let lines: [&[f32]; 6] = [
        &[1e-25, 2e-25, -3e-25, 1e-25],
        &[0.0, 1e20, 1.0, 2.0],
        &[3e38, 3e38, 3e38, 3e38],
        &[-3e38, 3e38, 3e38, -3e38],
        &[0.1, 0.1, 0.1, 0.1],
        &[1e-22, 0.0, 0.0, 0.0],
    ];
    for line in lines {
        let n = line.len();
        let exact = naive(&View::contiguous(line, &[n]), &[0], None);
        let same = |got: &Moments, cell: usize, times: f64| {
            let close = |g: f64, e: f64| (g - e).abs() <= 1e-6 * e.abs() + 1e-45;
            assert!(
                close(got.mean[cell], exact.mean[0]) && close(got.m2[cell], times * exact.m2[0]),
                "{line:?}: {} {}, not {} {}",
                got.mean[cell],
                got.m2[cell],
                exact.mean[0],
                times * exact.m2[0]
            );
        };
        same(&moments(&View::contiguous(line, &[n]), &[0], None), 0, 1.0);
        // Side by side, and over several blocks.
        let columns: Vec<f32> = line.iter().flat_map(|x| [*x, 5.0, *x]).collect();
        let found = moments(&View::contiguous(&columns, &[n, 3]), &[0], None);
        same(&found, 0, 1.0);
        same(&found, 2, 1.0);
        assert_eq!((found.mean[1], found.m2[1]), (5.0, 0.0));
        let many: Vec<f32> = line.iter().cycle().take(n * 5000).copied().collect();
        let found = moments(&View::contiguous(&many, &[many.len()]), &[0], None);
        same(&found, 0, 5000.0);
    }
    let nothing_known = moments(
        &View::contiguous(&[1.0f32, f32::INFINITY], &[2]),
        &[0],
        None,
    );
    assert!(nothing_known.m2[0].is_nan());
}

/// No type holds these squares, and infinities have no deviations.
#[test]
fn means_stay_where_squares_are_beyond_double_precision() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    // Values from PyTorch, but for those whose sum overflows there.
    let lines: [(&[f64], f64, f64); 8] = [
        (&[1e160, 3e160, -1e160, 1e160], 1e160, inf),
        (&[1.7e308, 1.7e308, -1.7e308, 0.0], 0.425e308, inf),
        (&[1e300; 4], 1e300, 0.0),
        (&[1.0, inf, 2.0, 3.0], inf, nan),
        (&[-inf, 1.0, -inf, 2.0], -inf, nan),
        (&[-inf, 1.0, inf, 2.0], nan, nan),
        (&[1.0, nan, inf, 2.0], nan, nan),
        (&[inf], inf, nan),
    ];
    let same = |g: f64, e: f64| g == e || g.is_nan() && e.is_nan() || (g - e).abs() <= 1e-12 * e;
    for (line, mean, m2) in lines {
        let of = |x: &[f64]| moments(&View::contiguous(x, &[x.len()]), &[0], None);
        let check = |found: &Moments, cell: usize| {
            let (a, b) = (found.mean[cell], found.m2[cell]);
            assert!(same(a, mean) && same(b, m2), "{line:?}: {a} {b}");
        };
        check(&of(line), 0);
        // Side by side, over several blocks, and cut.
        let columns: Vec<f64> = line.iter().flat_map(|x| [*x, 5.0, *x]).collect();
        let found = moments(&View::contiguous(&columns, &[line.len(), 3]), &[0], None);
        check(&found, 0);
        check(&found, 2);
        assert_eq!((found.mean[1], found.m2[1]), (5.0, 0.0));
        let many: Vec<f64> = line
            .iter()
            .cycle()
            .take(line.len() * 5000)
            .copied()
            .collect();
        check(&of(&many), 0);
        for cut in 0..line.len() {
            let mut found = of(&line[..cut]);
            found.merge(&of(&line[cut..]));
            check(&found, 0);
        }
        let narrow: Vec<f32> = line.iter().map(|x| *x as f32).collect();
        if !mean.is_finite() {
            check(
                &moments(&View::contiguous(&narrow, &[narrow.len()]), &[0], None),
                0,
            );
        }
    }
}

#[test]
fn squares_about_zero_of_infinities_are_infinite() {
    let of = |x: &[f64]| {
        let found = moments(&View::contiguous(x, &[x.len()]), &[0], None);
        let has_nan = || x.iter().any(|x| x.is_nan());
        about_zero([found.count[0], found.mean[0], found.m2[0]], has_nan)
    };
    assert!((of(&[3.0, -4.0]) - 25.0).abs() < 1e-12);
    assert_eq!(of(&[1.0, f64::INFINITY, 2.0]), f64::INFINITY);
    assert_eq!(of(&[f64::NEG_INFINITY, f64::INFINITY]), f64::INFINITY);
    assert_eq!(of(&[1e200, 1.0]), f64::INFINITY);
    assert!(of(&[f64::INFINITY, f64::NAN]).is_nan());
}

/// Rows that are looked at many at a time, and what is left of them, have the moments that each has alone.
#[test]
fn many_short_rows_have_the_moments_of_each_alone() {
    let rows = 2 * 16 + 5;
    for n in [2, 3, 10, 16, 17] {
        let x: Vec<f32> = (0..rows * n)
            .map(|i| match (i * 7919) % 997 {
                0 => f32::NAN,
                1..4 => f32::INFINITY,
                4..20 => 1e-30,
                20..30 => 3e38,
                k => k as f32 / 100.0,
            })
            .collect();
        let all = moments(&View::contiguous(&x, &[rows, n]), &[1], None);
        for (i, row) in x.chunks(n).enumerate() {
            let one = moments(&View::contiguous(row, &[1, n]), &[1], None);
            let bits = |m: &Moments, i: usize| {
                let known = |x: f64| if x.is_nan() { 7.5 } else { x };
                [m.count[i], known(m.mean[i]), known(m.m2[i])].map(f64::to_bits)
            };
            assert_eq!(bits(&all, i), bits(&one, 0), "{row:?}");
        }
    }
}

/// Short runs of a cell have the moments of the same elements one behind the other: nobody sees where runs begin.
#[test]
fn short_runs_have_the_moments_of_one_long_one() {
    for (samples, channels, run) in [(8, 3, 49), (3, 2, 100), (50, 2, 33), (9, 2, 128)] {
        let x: Vec<f32> = (0..samples * channels * run)
            .map(|i| ((i * 7919) % 997) as f32 / 100.0 - 3.0)
            .collect();
        let planes = View::contiguous(&x, &[samples, channels, run]);
        let by_channel = planes.permute(&[1, 0, 2]).to_vec();
        let rows = View::contiguous(&by_channel, &[channels, samples * run]);
        assert_eq!(
            moments(&planes, &[0, 2], None),
            moments(&rows, &[1], None),
            "{samples} {channels} {run}"
        );
    }
}
