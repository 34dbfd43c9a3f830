//! Gradients of samples that are drawn until one fits.

use crate::common::{on, read};
use shard_tensor::distributions::{Beta, Dirichlet, Distribution, Gamma, Reparametrized, StudentT};
use shard_tensor::{DType, ErrorClass, Launch, Result, ShardTensor, replicate, shard};

/// By Stirling's series, from 12 on.
fn ln_gamma(a: f64) -> f64 {
    if a < 12.0 {
        return ln_gamma(a + 1.0) - a.ln();
    }
    let series = 1.0 / (12.0 * a) - 1.0 / (360.0 * a.powi(3)) + 1.0 / (1260.0 * a.powi(5));
    (a - 0.5) * a.ln() - a + 0.5 * std::f64::consts::TAU.ln() + series
}

/// The probability to be below `x`: a series of terms of one sign.
fn below(a: f64, x: f64) -> f64 {
    let mut term = (a * x.ln() - x - ln_gamma(a + 1.0)).exp();
    let mut sum = 0.0;
    for n in 1..3000 {
        sum += term;
        term *= x / (a + f64::from(n));
    }
    sum
}

/// How a sample moves that stays where it is among all.
fn slope(a: f64, x: f64) -> f64 {
    let step = 1e-3 * a;
    let by_a = (below(a + step, x) - below(a - step, x)) / (2.0 * step);
    -by_a / ((a - 1.0) * x.ln() - x - ln_gamma(a)).exp()
}

#[test]
fn a_gamma_sample_stays_where_it_is_among_all() {
    const OF: [f64; 8] = [0.05, 0.3, 0.9, 2.0, 7.5, 8.5, 30.0, 400.0];
    let drawn = |ranks: usize, dtype| {
        let launch = Launch::new(ranks).dtype(DType::F64).seed(11);
        let mut found = launch.run(move |ctx| {
            let mesh = ctx.mesh_of(ranks)?.with_dtype(dtype);
            let sizes = [vec![8], vec![3, 0, 5]][ranks / 3].clone();
            let a = mesh.from_fn([32, 8], shard(1).sizes(sizes), |i| OF[i[1]])?;
            let (a, rate) = (a.requires_grad()?, mesh.full([8], 2.0, replicate())?);
            let rate = rate.requires_grad()?;
            let gamma = Gamma::new(&a, &rate)?;
            assert!(!gamma.sample([])?.is_tracked());
            let x = gamma.rsample([])?;
            let slopes = x.sum_all()?.grad(&[&a, &rate], false)?;
            let [by_a, by_rate] = [0, 1].map(|i| slopes[i].clone().unwrap());
            assert_eq!((by_a.layout(), by_a.dtype()), (a.layout(), dtype));
            // There is no derivative of these.
            let refused = x.sum_all()?.grad(&[&a], true).unwrap_err();
            assert_eq!(refused.class(), ErrorClass::Uniform, "{refused}");
            let numbers = |t: &ShardTensor| read(&t.detach().to(DType::F64)?);
            Ok([numbers(&x)?, numbers(&by_a)?, numbers(&by_rate)?])
        });
        found.as_mut().unwrap().swap_remove(0)
    };
    let [x, by_a, by_rate] = drawn(1, DType::F64);
    for (i, (x, got)) in x.iter().zip(&by_a).enumerate() {
        let expected = slope(OF[i % 8], 2.0 * x) / 2.0;
        let error = (got / expected - 1.0).abs();
        assert!(
            error < 1e-3,
            "{got}, not {expected} of {} at {x}",
            OF[i % 8]
        );
    }
    for (i, got) in by_rate.iter().enumerate() {
        let expected: f64 = x.iter().skip(i).step_by(8).map(|x| -x / 2.0).sum();
        assert!(
            (got / expected - 1.0).abs() < 1e-12,
            "{got}, not {expected}"
        );
    }
    for (dtype, digits) in [(DType::F64, 1e-12), (DType::F32, 2e-3), (DType::BF16, 2e-2)] {
        let [others, slopes, _] = drawn(3, dtype);
        for (i, (x, got)) in others.iter().zip(&slopes).enumerate() {
            let expected = slope(OF[i % 8], 2.0 * x) / 2.0;
            // Of small concentrations most numbers are too small for `f32`.
            let is_known = *x > 1e-30;
            assert!(
                !is_known || (got / expected - 1.0).abs() < 1e-3 + digits,
                "{dtype}: {got}"
            );
        }
        let same = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-12;
        assert!(dtype != DType::F64 || slopes.iter().zip(&by_a).all(same));
    }
}

/// Numbers have the mean that is expected, within four deviations of it.
fn mean_is(what: &str, of: &ShardTensor, expected: f64) -> Result<()> {
    let of = read(&of.detach())?;
    let n = of.len() as f64;
    let mean = of.iter().sum::<f64>() / n;
    let spread = (of.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    assert!(
        (mean - expected).abs() < 4.0 * spread / n.sqrt() && spread > 0.0,
        "{what}: {mean} for {expected}"
    );
    Ok(())
}

#[test]
fn means_of_slopes_are_slopes_of_means() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let many = |of: f64| {
            mesh.full([3000], of, shard(0).sizes([1000, 0, 2000]))?
                .requires_grad()
        };
        let slopes = |y: &ShardTensor, of: &[&ShardTensor]| {
            let found = y.sum_all()?.grad(of, false)?.into_iter();
            Ok::<Vec<_>, shard_tensor::Error>(found.flatten().collect())
        };
        let (a, b) = (many(0.7)?, many(2.0)?);
        let of = slopes(&Beta::new(&a, &b)?.rsample([])?, &[&a, &b])?;
        mean_is("Beta by the first", &of[0], 2.0 / 2.7_f64.powi(2))?;
        mean_is("Beta by the second", &of[1], -0.7 / 2.7_f64.powi(2))?;

        let shares = mesh.from_fn([3000, 3], shard(0), |i| [0.6, 1.5, 3.0][i[1]])?;
        let shares = shares.requires_grad()?;
        let drawn = Dirichlet::new(&shares)?.rsample([])?;
        let of = slopes(&drawn.select(1, 0)?, &[&shares])?;
        mean_is("Dirichlet", &of[0].select(1, 0)?, 4.5 / 5.1_f64.powi(2))?;
        mean_is("Dirichlet", &of[0].select(1, 2)?, -0.6 / 5.1_f64.powi(2))?;
        let of = slopes(&drawn, &[&shares])?;
        assert!(
            of[0].abs()?.amax(.., false)?.item()? < 1e-9,
            "shares are 1 together"
        );

        let (df, loc, scale) = (many(12.0)?, many(0.5)?, many(2.0)?);
        let drawn = StudentT::new(&df, &loc, &scale)?.rsample([])?;
        let apart = drawn.sub(&loc.detach())?;
        let of = slopes(&apart.square()?, &[&df, &loc, &scale])?;
        mean_is("StudentT by df", &of[0], -4.0 * 2.0 / 100.0)?;
        assert!(of[1].allclose(&apart.detach().mul_scalar(2.0)?, 1e-9, 1e-12, false)?);
        assert!(of[2].allclose(&apart.detach().square()?, 1e-9, 1e-12, false)?);

        // None, and terms of a sum.
        let none = mesh.ones([0, 3], shard(0))?.requires_grad()?;
        let drawn = Dirichlet::new(&none)?.rsample([2])?;
        assert_eq!(slopes(&drawn, &[&none])?[0].shape(), [0, 3]);
        let terms = mesh.ones([6, 4], shard(0))?.requires_grad()?;
        let sums = terms.sum(0, false)?;
        assert!(sums.layout().is_partial());
        let drawn = Gamma::new(&sums, 1.0)?.rsample([5])?;
        assert!(
            slopes(&drawn, &[&terms])?[0]
                .gt_scalar(0.0)?
                .all(.., false)?
                .item()?
                == 1.0
        );
        Ok(())
    });
}
