use shard_kernels::normalise::*;

/// The same numbers by the plain formulas, in f64.
#[test]
fn every_form_follows_its_formula() {
    let n = 1300;
    let of = |k: usize| -> Vec<f32> {
        (0..n)
            .map(|i| ((i * (k + 3)) % 17) as f32 / 8.0 - 1.0)
            .collect()
    };
    let [x, dy, gains, shifts] = [0, 1, 2, 3].map(of);
    let scale = Scale {
        mean: 0.25_f32,
        rstd: 1.5,
    };
    let unit = |i: usize| (f64::from(x[i]) - 0.25) * 1.5;
    let close = |got: f64, wanted: f64, size: f64| {
        assert!((got - wanted).abs() <= 1e-5 * size, "{got} for {wanted}");
    };
    for (gain, gain_of) in [
        (Along::One(0.75), &(|_| 0.75) as &dyn Fn(usize) -> f64),
        (Along::Each(&gains), &|i| f64::from(gains[i])),
    ] {
        let mut out = vec![f32::NAN; n];
        for (shift, shift_of) in [
            (Along::One(-2.0), &(|_| -2.0) as &dyn Fn(usize) -> f64),
            (Along::Each(&shifts), &|i| f64::from(shifts[i])),
        ] {
            normalise(&x, &mut out, scale, gain, shift);
            for (i, y) in out.iter().enumerate() {
                close((*y).into(), unit(i) * gain_of(i) + shift_of(i), 4.0);
            }
        }
        let (a, b) = cell_sums(&x, &dy, scale, gain);
        let weighed = |i: usize| gain_of(i) * f64::from(dy[i]);
        close(a, (0..n).map(weighed).sum(), n as f64);
        close(b, (0..n).map(|i| weighed(i) * unit(i)).sum(), n as f64);
        input_grad(&x, &dy, &mut out, scale, [0.5, 0.125], gain);
        for (i, dx) in out.iter().enumerate() {
            let wanted = 1.5 * (weighed(i) - 0.5 - unit(i) * 0.125);
            close((*dx).into(), wanted, 4.0);
        }
    }
    let (mut sums, mut along) = (vec![1.0; n], vec![2.0; n]);
    add_weight_sums(&x, &dy, scale, &mut sums, &mut along);
    for i in 0..n {
        close(sums[i], 1.0 + f64::from(dy[i]), 4.0);
        close(along[i], 2.0 + f64::from(dy[i]) * unit(i), 4.0);
    }
}

/// Columns with numbers of their own, in rows that do not fill vectors: sums begin anew after every few rows.
#[test]
fn columns_follow_their_formulas() {
    for (rows, width) in [(1, 1), (3, 7), (16, 5), (37, 33), (0, 4)] {
        let of = |n: usize, k: usize| -> Vec<f32> {
            (0..n)
                .map(|i| ((i * (k + 3)) % 17) as f32 / 8.0 - 1.0)
                .collect()
        };
        let [x, dy] = [0, 1].map(|k| of(rows * width, k));
        let [mean, p, q, r] = [2, 3, 4, 5].map(|k| of(width, k));
        let at = |i: usize| [x[i], dy[i], mean[i % width], p[i % width]].map(f64::from);
        let close = |got: f32, wanted: f64, i: usize| {
            assert!(
                (f64::from(got) - wanted).abs() < 1e-5,
                "{got} for {wanted} at {i}"
            );
        };
        let mut out = vec![f32::NAN; rows * width];
        normalise_rows(&x, &mut out, [&mean, &p, &q]);
        for (i, y) in out.iter().enumerate() {
            let [x, _, mean, p] = at(i);
            close(*y, (x - mean) * p + f64::from(q[i % width]), i);
        }
        input_grad_rows(&x, &dy, &mut out, [&mean, &p, &q, &r]);
        for (i, dx) in out.iter().enumerate() {
            let ([x, dy, mean, p], [q, r]) = (at(i), [&q, &r].map(|of| f64::from(of[i % width])));
            close(*dx, p * dy - q - (x - mean) * r, i);
        }
        let (mut sums, mut along) = (vec![1.0; width], vec![2.0; width]);
        add_column_sums(&x, &dy, &mean, &mut sums, &mut along);
        for c in 0..width {
            let column = || (c..rows * width).step_by(width).map(at);
            let (plain, times): (f64, f64) = (
                column().map(|[_, dy, ..]| dy).sum(),
                column().map(|[x, dy, mean, _]| dy * (x - mean)).sum(),
            );
            close((sums[c] - 1.0) as f32, plain, c);
            close((along[c] - 2.0) as f32, times, c);
        }
    }
}

/// Runs of channels that are taken together have the bits of each by itself, whichever comes first.
#[test]
fn runs_of_channels_are_those_of_each_by_itself() {
    let channels = 3;
    let scales = [0, 1, 2].map(|c| Scale {
        mean: c as f32 / 4.0,
        rstd: 1.0 + c as f32,
    });
    let (gain, shift) = ([0.75f32, 2.0, -1.0], [0.5f32, 0.0, 3.0]);
    let means = [[0.5f32, 0.125], [0.0, 1.0], [-2.0, 0.25]];
    for (len, before, count) in [
        (1, 0, 7),
        (49, 4, 11),
        (130, 2, 6),
        (1500, 5, 3),
        (49, 0, 0),
    ] {
        let of = |k: usize| -> Vec<f32> {
            (0..len * count)
                .map(|i| ((i * (k + 3)) % 17) as f32 / 8.0 - 1.0)
                .collect()
        };
        let [x, dy] = [0, 1].map(of);
        for gain in [None, Some(&gain[..])] {
            let runs = Runs {
                len,
                before,
                scales: &scales,
                gain,
            };
            let [mut out, mut dx] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
            let mut sums = [[1.0; 2]; 3];
            normalise_runs(&x, &mut out, runs, Some(&shift));
            input_grad_runs(&x, &dy, &mut dx, runs, &means);
            add_run_sums(&x, &dy, runs, &mut sums);
            let (mut one, mut expected_sums) = (vec![0.0; len], vec![[1.0; 2]; channels]);
            for r in 0..count {
                let (c, at) = ((before + r) % channels, r * len..(r + 1) * len);
                let factor = Along::One(gain.map_or(1.0, |gain| gain[c]));
                let (x, dy) = (&x[at.clone()], &dy[at.clone()]);
                normalise(x, &mut one, scales[c], factor, Along::One(shift[c]));
                assert_eq!(one, out[at.clone()], "{len} {before} {r}");
                input_grad(x, dy, &mut one, scales[c], means[c], factor);
                assert_eq!(one, dx[at], "{len} {before} {r}");
                let (a, b) = cell_sums(x, dy, scales[c], factor);
                expected_sums[c] = [expected_sums[c][0] + a, expected_sums[c][1] + b];
            }
            assert_eq!(sums[..], expected_sums[..], "{len} {before}");
        }
    }
}
