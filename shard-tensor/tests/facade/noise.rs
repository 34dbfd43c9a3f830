//! Random choices do not depend on layout or rank count, and are what they say.

use crate::common::numbers;
use shard_tensor::{
    AxisPlacement, DType, DeviceMesh, FourierNorm, Launch, Placements, Result, ShardTensor, shard,
};

/// What all kinds of noise make of a tensor that lies so.
fn drawn(mesh: &[usize], placements: &Placements) -> Vec<Vec<f64>> {
    let ranks = mesh.iter().product();
    let launch = Launch::new(ranks).seed(5).dtype(DType::F64);
    let all = launch.run(|ctx| {
        let mesh = ctx.mesh_of(mesh)?;
        let x = mesh.from_fn([6, 5, 4], placements, |i| {
            (1 + i[0] + 2 * i[1] + 3 * i[2]) as f64 / 40.0
        })?;
        let rows = x.select(2, 1)?;
        let axes = mesh.shape().iter().map(|_| shard(0));
        let first: Placements = axes.collect::<Vec<AxisPlacement>>().into();
        let made = [
            x.dropout(0.4)?,
            x.dropout1d(0.5)?,
            x.dropout2d(0.5)?,
            x.alpha_dropout(0.3)?,
            x.bernoulli()?,
            x.add_scalar(-0.4)?.rrelu(0.1..0.3, true)?,
            rows.multinomial(3, false)?,
            rows.multinomial(7, true)?,
            rows.select(0, 2)?.multinomial(5, false)?,
            mesh.randperm(11, &first)?,
            mesh.randint([4, 3], -3..9, &first)?,
            mesh.trunc_normal([50], 1.0, 2.0, 0.0..2.5, &first)?,
            x.drop_path(0.5)?,
            rows.gumbel_softmax(1.0, true, 1)?,
        ];
        made.iter().map(numbers).collect::<Result<Vec<_>>>()
    });
    let mut all = all.unwrap();
    assert!(all.iter().all(|a| a == &all[0]));
    all.swap_remove(0)
}

#[test]
fn noise_is_the_same_under_any_layout_and_rank_count() {
    let alone = drawn(&[1], &[shard(0)].into());
    let others: [(&[usize], Placements); 4] = [
        (&[3], [shard(0).sizes([1, 0, 5])].into()),
        (&[2], [shard(1)].into()),
        (&[2, 2], [shard(2), shard(0)].into()),
        (&[4], [shard(2).sizes([0, 4, 0, 0])].into()),
    ];
    for (mesh, placements) in others {
        assert_eq!(drawn(mesh, &placements), alone, "{placements:?}");
    }
}

#[test]
fn noise_is_what_it_says() {
    let all = drawn(&[2], &[shard(0)].into());
    let dropped = all[0].iter().filter(|x| **x == 0.0).count();
    assert!((20..80).contains(&dropped), "{dropped} of 120");
    // Whole channels of [batch, channels, length].
    for channel in all[1].chunks(4) {
        let zeros = channel.iter().filter(|x| **x == 0.0).count();
        assert!(zeros == 0 || zeros == 4, "{channel:?}");
    }
    assert!(all[4].iter().all(|x| [0.0, 1.0].contains(x)));
    for row in all[6].chunks(3) {
        assert!(
            row[0] != row[1] && row[1] != row[2] && row[0] != row[2],
            "{row:?}"
        );
    }
    let mut order = all[9].clone();
    assert_ne!(order, (0..11).map(f64::from).collect::<Vec<_>>());
    order.sort_by(f64::total_cmp);
    assert_eq!(order, (0..11).map(f64::from).collect::<Vec<_>>());
    assert!(
        all[10]
            .iter()
            .all(|x| (-3.0..9.0).contains(x) && x.fract() == 0.0)
    );
    assert!(all[11].iter().all(|x| (0.0..=2.5).contains(x)));
    // Whole samples, and twice what they were otherwise.
    for (at, sample) in all[12].chunks(20).enumerate() {
        let twice =
            |(i, x): (usize, &f64)| *x == 2.0 * (1 + at + 2 * (i / 4) + 3 * (i % 4)) as f64 / 40.0;
        let zero = sample.iter().all(|x| *x == 0.0);
        assert!(
            zero || sample.iter().enumerate().all(twice),
            "{at}: {sample:?}"
        );
    }
}

#[test]
fn integers_of_a_range_are_each_as_likely() {
    const N: usize = 24_000;
    let told = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let rows = || Placements::from(shard(0));
        let far = (1_i64 << 52) - 1;
        for range in [
            -3..9,
            -12..0,
            -1..1,
            0..2,
            7..8,
            far..far + 3,
            -far..3 - far,
        ] {
            let drawn = mesh.randint([N], range.clone(), rows())?;
            let all = drawn.to_array::<i64>()?;
            let count = range.end - range.start;
            let share = N as f64 / count as f64;
            for number in range.start - 1..=range.end {
                let found = all.iter().filter(|&&n| n == number).count() as f64;
                let expected = if range.contains(&number) { share } else { 0.0 };
                let apart = (found - expected).abs();
                assert!(
                    apart <= 5.0 * expected.sqrt(),
                    "{range:?}: {found} of {number}"
                );
            }
        }
        let whole = mesh
            .with_dtype(DType::I32)
            .uniform([N], -1.5..1.5, rows())?;
        let yes = mesh
            .with_dtype(DType::Bool)
            .uniform([N], 0.0..2.0, rows())?;
        let shares = [-1.0, 0.0, 1.0].map(|n| whole.eq_scalar(n)?.sum_all()?.item());
        Ok((
            shares.into_iter().collect::<Result<Vec<_>>>()?,
            yes.sum_all()?.item()?,
        ))
    });
    let (shares, yes) = told.unwrap().swap_remove(0);
    assert!(
        shares.iter().all(|n| (n - 8000.0).abs() < 400.0),
        "{shares:?}"
    );
    assert!((yes - 12_000.0).abs() < 500.0, "{yes}");
}

#[test]
fn no_number_is_rounded_to_the_end_of_its_range() {
    let told = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for range in [0.0..1.0, -3.0..-2.0, -1.0..0.0, 1024.0..1040.1] {
                let drawn = mesh
                    .with_dtype(dtype)
                    .uniform([20_000], range.clone(), shard(0))?;
                let all = numbers(&drawn)?;
                let inside = all.iter().all(|x| range.contains(x));
                assert!(inside, "{dtype} {range:?}");
            }
        }
        Ok(())
    });
    told.unwrap();
}

#[test]
fn ranges_without_integers_that_f64_tells_apart_are_refused() {
    let told = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let beyond = 1_i64 << 53;
        let ends = [
            (5, 5),
            (5, 3),
            (0, i64::MAX),
            (beyond + 1, beyond + 3),
            (-beyond, 0),
        ];
        for (start, end) in ends {
            let range = start..end;
            let text = mesh
                .randint([4], range.clone(), shard(0))
                .unwrap_err()
                .to_string();
            assert!(
                text.starts_with("randint: expected a "),
                "{range:?}: {text}"
            );
        }
        let bytes = mesh.with_dtype(DType::U8);
        for range in [0.25..0.75, 0.0..257.0, -1.0..3.0] {
            let text = bytes
                .uniform([4], range.clone(), shard(0))
                .unwrap_err()
                .to_string();
            assert!(text.starts_with("uniform: expected "), "{range:?}: {text}");
        }
        Ok(())
    });
    told.unwrap();
}

/// In 16 bits there are no numbers between 0 and 1/256 to compare a probability with, or 1/2048.
#[test]
fn probabilities_are_those_that_are_given_in_sixteen_bits_too() {
    const N: usize = 400_000;
    let told = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let count = |x: &ShardTensor| x.sum_all()?.item();
        let mut told = Vec::new();
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let x = mesh.ones([N], [shard(0)])?.to(dtype)?;
            let rare = x.mul_scalar(0.001)?;
            told.push(count(&rare.bernoulli()?.to(DType::F32)?)?);
            told.push(count(&x.dropout(0.001)?.eq_scalar(0.0)?.to(DType::F32)?)?);
            let dropped = x.alpha_dropout(0.001)?.lt_scalar(0.0)?;
            told.push(count(&dropped.to(DType::F32)?)?);
        }
        let (x, w) = (
            mesh.ones([N / 4, 1], [shard(0)])?,
            mesh.ones([4, 1], Placements::replicated())?,
        );
        let y = ctx.autocast(DType::BF16, || x.linear(&w, None)?.dropout(0.001))?;
        assert_eq!(y.dtype(), DType::BF16);
        told.push(count(&y.eq_scalar(0.0)?.to(DType::F32)?)?);
        Ok(told)
    });
    // Ten deviations around 400.
    for n in told.unwrap().concat() {
        assert!((200.0..600.0).contains(&n), "{n} of {N}");
    }
}

/// A factor that is rounded to 16 bits itself would make all that is kept too large.
#[test]
fn what_dropout_keeps_is_scaled_before_it_is_rounded() {
    let told = Launch::new(1).run(|ctx| {
        let x = ctx
            .mesh_of(1)?
            .from_fn(1 << 14, [shard(0)], |i| 1.0 + (i[0] % 128) as f64 / 128.0)?;
        let x = x.to(DType::BF16)?;
        Ok((numbers(&x)?, numbers(&x.dropout(0.3)?)?))
    });
    let (x, y) = told.unwrap().swap_remove(0);
    let kept = x.iter().zip(&y).filter(|(_, y)| **y != 0.0);
    let ratios: Vec<f64> = kept.map(|(x, y)| y / x).collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!((mean * 0.7 - 1.0).abs() < 2e-4, "{mean}");
}

/// Factor and shift are rounded with the result alone.
#[test]
fn alpha_dropout_is_rounded_once() {
    let dropped = |dtype| {
        let told = Launch::new(2).run(|ctx| {
            let x = ctx
                .mesh_of(2)?
                .from_fn([64, 2], shard(0), |i| i[0] as f64 / 16.0 - 2.0)?;
            let x = x.to(dtype)?;
            let y = [x.alpha_dropout(0.3)?, x.feature_alpha_dropout(0.6)?];
            y.iter()
                .map(|y| numbers(&y.to(DType::BF16)?))
                .collect::<Result<Vec<_>>>()
        });
        told.unwrap()
    };
    assert_eq!(dropped(DType::BF16), dropped(DType::F32));
}

#[test]
fn draws_without_replacement_need_enough_weights() {
    let errors = Launch::new(2).run(|ctx| {
        let x = ctx
            .mesh_of(2)?
            .from_fn([2, 4], [shard(0)], |i| (i[0] * i[1]) as f64)?;
        Ok(x.multinomial(2, false).is_err())
    });
    assert_eq!(errors.unwrap(), [true, true]);
}

#[test]
fn ranks_off_the_mesh_have_no_weights_to_look_at() {
    let after = Launch::new(3).run(|ctx| {
        let pair = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![0, 2])?)?;
        let drawn = pair.ones([2, 4], shard(0))?.multinomial(3, false)?;
        assert_eq!(drawn.shape(), [2, 3]);
        let refused = pair.zeros([2, 4], shard(0))?.multinomial(3, false);
        assert_eq!(refused.is_err(), pair.is_member());
        // All have taken as many streams, whether they saw what was wrong or not.
        numbers(&ctx.mesh_of(3)?.randn([4], shard(0))?)
    });
    let after = after.unwrap();
    assert_eq!(after[0], after[1]);
}

#[test]
fn frequencies_are_as_numpy_has_them_and_a_spectrum_goes_back() {
    let all = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.from_fn([7, 5], [shard(0).sizes([5, 0, 2])], |i| {
            (i[0] * i[0] + 3 * i[1]) as f64
        })?;
        let spectrum = x.rfftn(None, [0, 1], FourierNorm::Backward)?;
        let back = spectrum.irfftn(Some(&[7, 5]), [0, 1], FourierNorm::Backward)?;
        let error = back.sub(&x)?.abs()?.amax([0, 1], false)?.item()?;
        assert!(error < 1e-12, "{error}");
        Ok([
            numbers(&mesh.fftfreq(5, 0.5, [shard(0)])?)?,
            numbers(&mesh.rfftfreq(5, 0.5, [shard(0)])?)?,
            numbers(&mesh.fftfreq(4, 1.0, [shard(0)])?.fftshift(0)?)?,
        ])
    });
    let all = all.unwrap().swap_remove(0);
    assert_eq!(all[0], [0.0, 0.4, 0.8, -0.8, -0.4]);
    assert_eq!(all[1], [0.0, 0.4, 0.8]);
    assert_eq!(all[2], [-0.5, -0.25, 0.0, 0.25]);
}

/// What has no elements along a dim is padded with zeros to any length, and gets no gradient.
#[test]
fn spectra_of_nothing_are_zero() {
    for ranks in [1, 3] {
        let sums = Launch::new(ranks).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let mut sums = Vec::new();
            for (shape, dim) in [([5, 0], 1), ([0, 5], 0)] {
                for at in [0, 1] {
                    let x = mesh.ones(shape, [shard(at)])?.requires_grad()?;
                    let spectrum = x.rfft(Some(6), dim, FourierNorm::Backward)?;
                    assert_eq!(spectrum.shape()[dim], 4);
                    sums.push(spectrum.abs()?.sum_all()?.item()?);
                    let back = spectrum.irfft(Some(7), dim, FourierNorm::Ortho)?;
                    let gradients = back.sum_all()?.backward()?;
                    let gradient = gradients.get(&x)?.map(|g| g.shape().to_vec());
                    assert_eq!(gradient, Some(shape.to_vec()));
                }
            }
            Ok(sums)
        });
        assert!(sums.unwrap().iter().all(|sums| *sums == [0.0; 4]));
    }
}

/// More draws than a row has weights are an error on all ranks, even of no rows at all.
#[test]
fn too_many_draws_of_no_rows() {
    let drawn = Launch::new(2).run(|ctx| {
        let none = ctx.mesh_of(2)?.ones([0, 3], [shard(0)])?;
        let error = none.multinomial(5, false).unwrap_err().to_string();
        assert!(error.contains("5 of rows of 3 weights"), "{error}");
        Ok(none.multinomial(2, false)?.shape().to_vec())
    });
    assert_eq!(drawn.unwrap(), [[0, 2], [0, 2]]);
}

/// Classes come as often as the softmax of their logits says, and hard choices have the gradients of soft ones.
#[test]
fn samples_of_classes_are_as_frequent_as_their_logits_say() {
    for (ranks, at) in [(1, shard(0)), (3, shard(1).sizes([1, 0, 2]))] {
        let found = Launch::new(ranks).seed(11).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let probabilities = [0.5_f64, 0.125, 0.375];
            let logits = mesh.from_fn([4000, 3], [at.clone()], |i| probabilities[i[1]].ln())?;
            for (dtype, distance) in [(DType::F32, 0.03), (DType::BF16, 0.03)] {
                let hard = logits.to(dtype)?.gumbel_softmax(0.7, true, 1)?;
                assert_eq!(hard.dtype(), dtype);
                let one = numbers(&hard.to(DType::F64)?.sum(1, false)?)?;
                assert!(one.iter().all(|x| (x - 1.0).abs() < 1e-6));
                for (share, p) in numbers(&hard.to(DType::F64)?.mean(0, false)?)?
                    .iter()
                    .zip(probabilities)
                {
                    assert!((share - p).abs() < distance, "{share} for {p}");
                }
            }
            Ok(())
        });
        found.unwrap();
        let gradient = |hard: bool| -> Vec<f64> {
            let found = Launch::new(ranks).seed(3).dtype(DType::F64).run(|ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let x = mesh.from_fn([4, 3], [at.clone()], |i| (i[0] + i[1]) as f64 / 4.0)?;
                let x = x.requires_grad()?;
                let y = x.gumbel_softmax(0.5, hard, -1)?;
                if hard {
                    let all = numbers(&y)?;
                    assert!(
                        all.iter()
                            .all(|y| y.abs() < 1e-12 || (y - 1.0).abs() < 1e-12)
                    );
                }
                let by = mesh.from_fn([4, 3], [shard(0)], |i| (3 * i[0] + i[1]) as f64)?;
                numbers(&y.mul(&by)?.sum_all()?.backward()?.get(&x)?.unwrap())
            });
            found.unwrap().remove(0)
        };
        let soft = gradient(false);
        assert!(soft.iter().any(|x| x.abs() > 1e-3));
        let far = soft.iter().zip(gradient(true)).map(|(a, b)| (a - b).abs());
        assert!(far.fold(0.0, f64::max) < 1e-12);
    }
    let refused = Launch::new(1).run(|ctx| {
        let x = ctx.mesh_of(1)?.ones([2, 3], shard(0))?;
        for (i, wrong) in [
            x.gumbel_softmax(0.0, false, 1),
            x.gumbel_softmax(f64::NAN, false, 1),
            x.gumbel_softmax(1.0, false, 2),
            x.to(DType::I64)?.gumbel_softmax(1.0, false, 1),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(wrong.is_err(), "{i}");
        }
        Ok(())
    });
    refused.unwrap();
}

/// Frequencies, moments and values, of which layouts and rank counts say nothing.
#[test]
fn what_is_drawn_is_distributed_as_it_is_said_to_be() {
    const N: usize = 20_000;
    let told = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let moments = |x: &ShardTensor| {
            let (var, mean) = x.var_mean(.., 0.0, false)?;
            Ok::<_, shard_tensor::Error>((mean.item()?, var.sqrt()?.item()?))
        };
        let weights = mesh.from_fn([N, 3], shard(0), |i| [1.0, 2.0, 5.0][i[1]])?;
        for replacement in [true, false] {
            let drawn = weights.multinomial(1, replacement)?;
            for (class, expected) in [0.125, 0.25, 0.625].into_iter().enumerate() {
                let share = drawn.eq_scalar(class as f64)?.to(DType::F64)?.mean_all()?;
                let share = share.item()?;
                assert!((share - expected).abs() < 0.02, "{class}: {share}");
            }
        }
        // What SciPy's `truncnorm` has.
        let (mean, deviation) = moments(&mesh.trunc_normal([N], 1.0, 2.0, 0.0..2.5, shard(0))?)?;
        assert!((mean - 1.2191).abs() < 0.02, "{mean}");
        assert!((deviation - 0.7026).abs() < 0.02, "{deviation}");
        let minus = mesh.full([N], -2.0, shard(0))?;
        assert_eq!(minus.rrelu(0.2..0.6, false)?.select(0, 7)?.item()?, -0.8);
        assert_eq!(minus.rrelu(0.25..0.25, true)?.select(0, 7)?.item()?, -0.5);
        let (mean, deviation) = moments(&minus.rrelu(0.2..0.6, true)?)?;
        assert!((mean + 0.8).abs() < 0.01, "{mean}");
        assert!((deviation - 0.8 / 12f64.sqrt()).abs() < 0.01, "{deviation}");
        // Normal numbers stay so: PyTorch's factor, and what it puts in the place of those that are dropped.
        let (mean, deviation) = moments(&mesh.randn([N], shard(0))?.alpha_dropout(0.3)?)?;
        assert!(mean.abs() < 0.04 && (deviation - 1.0).abs() < 0.04);
        // The lower the temperature, the nearer to one class.
        let logits = mesh.zeros([200, 4], shard(0))?;
        let most = |tau| {
            logits
                .gumbel_softmax(tau, false, 1)?
                .amax(1, false)?
                .mean_all()?
                .item()
        };
        let (cold, warm) = (most(0.01)?, most(100.0)?);
        assert!(cold > 0.95 && warm < 0.3, "{cold}, {warm}");
        let mut values = numbers(&mesh.ones([100], shard(0))?.alpha_dropout(0.3)?)?;
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (least, p) = (-1.758_099_340_847_376_6_f64, 0.3);
        let factor = ((1.0 - p) * (1.0 + p * least * least)).sqrt().recip();
        for (got, old) in values.iter().zip([least, 1.0]) {
            assert!(
                (got - factor * (old - p * least)).abs() < 1e-12,
                "{values:?}"
            );
        }
        assert_eq!(values.len(), 2);
        Ok(())
    });
    told.unwrap();
}

/// Which dims tell apart what is dropped together.
#[test]
fn whole_channels_are_dropped_of_fields_with_and_without_a_batch() {
    type Drop = fn(&ShardTensor) -> Result<ShardTensor>;
    // How many elements each channel has, and how many channels there are of all samples.
    let cases: [(&[usize], usize, Drop); 6] = [
        (&[8, 5], 8, |x| x.dropout1d(0.5)),
        (&[3, 8, 5], 24, |x| x.dropout1d(0.5)),
        (&[3, 8, 5], 24, |x| x.dropout2d(0.5)),
        (&[3, 8, 2, 3], 24, |x| x.dropout2d(0.5)),
        (&[8, 2, 3, 2], 8, |x| x.dropout3d(0.5)),
        (&[3, 8, 2, 3, 2], 24, |x| x.dropout3d(0.5)),
    ];
    for (shape, channels, drop) in cases {
        let told =
            Launch::new(2).run(|ctx| numbers(&drop(&ctx.mesh_of(2)?.ones(shape, shard(0))?)?));
        let all = told.unwrap().remove(0);
        let each: Vec<&[f64]> = all.chunks(all.len() / channels).collect();
        assert!(
            each.iter().all(|c| c.iter().all(|x| *x == c[0])),
            "{shape:?}"
        );
        assert!(each.iter().any(|c| c[0] == 0.0) && each.iter().any(|c| c[0] == 2.0));
    }
}
