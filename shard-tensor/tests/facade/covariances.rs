//! Samples that are matrices, or have large ones: the same under any layout, and with the moments that are known.

use crate::common::on;
use shard_tensor::distributions::{
    Distribution, LkjCholesky, LowRankMultivariateNormal, Reparametrized, Wishart,
};
use shard_tensor::ndarray::{ArrayD, array};
use shard_tensor::{DType, ErrorClass, Launch, Mesh, Placements, Result, ShardTensor, shard};

/// Numbers that differ from each other, above 1.
fn pattern(mesh: &Mesh, shape: &[usize], at: &Placements) -> Result<ShardTensor> {
    mesh.from_fn(shape, at.clone(), |i| {
        let number = i.iter().fold(1, |n, i| n * 3 + i);
        1.5 + (0.7 * number as f64).sin() * 0.5
    })
}

fn drawn(mesh: &Mesh, at: &Placements) -> Result<Vec<ArrayD<f64>>> {
    let of = |shape: &[usize]| pattern(mesh, shape, at);
    let normal = LowRankMultivariateNormal::new(&of(&[5, 3])?, &of(&[5, 3, 2])?, &of(&[5, 3])?)?;
    let wishart = Wishart::new(&of(&[5])?.add_scalar(3.0)?, &of(&[5, 3, 3])?)?;
    let correlations = LkjCholesky::new(3, &of(&[5])?)?;
    let mut all = Vec::new();
    for samples in [
        normal.sample([2])?,
        normal.rsample([])?,
        wishart.sample([2, 1])?,
        wishart.rsample([0])?,
        correlations.sample([2])?,
    ] {
        all.push(samples.to_array::<f64>()?);
    }
    Ok(all)
}

#[test]
fn samples_are_those_of_one_rank() {
    let run = |ranks: usize, sizes: Option<Vec<usize>>| {
        let launch = Launch::new(ranks).dtype(DType::F64).seed(5);
        let found = launch.run(|ctx| {
            let at = shard(0);
            let at = match &sizes {
                Some(sizes) => at.sizes(sizes.clone()),
                None => at,
            };
            drawn(&ctx.mesh_of(ranks)?, &at.into())
        });
        found.unwrap().swap_remove(0)
    };
    let one = run(1, None);
    let shapes: Vec<_> = one.iter().map(|x| x.shape().to_vec()).collect();
    let expected: [&[usize]; 5] = [
        &[2, 5, 3],
        &[5, 3],
        &[2, 1, 5, 3, 3],
        &[0, 5, 3, 3],
        &[2, 5, 3, 3],
    ];
    assert_eq!(shapes, expected);
    for (ranks, sizes) in [(3, Some(vec![4, 0, 1])), (7, None)] {
        for (found, one) in run(ranks, sizes).iter().zip(&one) {
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(
                found.iter().zip(one).all(near),
                "{ranks} ranks: {found} is not {one}"
            );
        }
    }
}

/// The mean over the first dim is as expected, within a share of the largest.
fn mean_is(what: &str, of: &ShardTensor, expected: &ShardTensor) -> Result<()> {
    let (mean, expected) = (of.mean(0, false)?, expected.detach());
    let most = expected.abs()?.amax(.., false)?.item()?;
    let far = mean.sub(&expected)?.abs()?.amax(.., false)?.item()?;
    assert!(
        far < 0.06 * most,
        "{what}: {:?} for {:?}",
        mean.to_array::<f64>()?,
        expected.to_array::<f64>()?
    );
    Ok(())
}

#[test]
fn samples_have_their_distributions_moments() {
    const MANY: usize = 12_000;
    on(3, |ctx| {
        let (mesh, whole) = (ctx.mesh_of(3)?, Placements::replicated());
        let [loc, diagonal] = [pattern(&mesh, &[3], &whole)?, pattern(&mesh, &[3], &whole)?];
        let factor = pattern(&mesh, &[3, 2], &whole)?;
        let normal = LowRankMultivariateNormal::new(&loc, &factor, &diagonal)?;
        let x = normal.sample([MANY])?;
        mean_is("LowRankMultivariateNormal", &x, &loc)?;
        let apart = x.sub(&loc)?;
        let products = apart.unsqueeze(-1)?.mul(&apart.unsqueeze(-2)?)?;
        mean_is(
            "LowRankMultivariateNormal: products",
            &products,
            &normal.covariance()?,
        )?;

        let df = mesh
            .full([], 5.5, Placements::replicated())?
            .requires_grad()?;
        let scale = pattern(&mesh, &[3, 3], &whole)?.requires_grad()?;
        let wishart = Wishart::new(&df, &scale)?;
        let x = wishart.rsample([MANY])?;
        mean_is("Wishart", &x, &wishart.mean()?)?;
        let squares = x.sub(&wishart.mean()?)?.square()?;
        mean_is("Wishart: squares", &squares, &wishart.variance()?)?;
        // The slope of the mean is the mean of the slopes.
        let total = |x: &ShardTensor| x.diagonal(0, -2, -1)?.sum(-1, false)?.mean_all();
        let slopes = total(&x)?.grad(&[&df, &scale], false)?;
        let expected = total(&wishart.mean()?)?.grad(&[&df, &scale], false)?;
        for (slope, expected) in slopes.iter().zip(&expected) {
            let [slope, expected] = [slope, expected].map(|s| s.clone().unwrap());
            mean_is("Wishart: slopes", &slope.unsqueeze(0)?, &expected)?;
        }

        // Correlations have variances of a beta distribution, all the same.
        for (n, concentration) in [(3, 1.0), (4, 2.0)] {
            let of = mesh.full([], concentration, Placements::replicated())?;
            let triangle = LkjCholesky::new(n, &of)?.sample([MANY])?;
            let correlations = triangle.matmul(&triangle.transpose(-2, -1)?)?;
            let own = correlations.diagonal(0, -2, -1)?;
            assert!(own.allclose(&own.ones_like()?, 1e-12, 1e-12, false)?);
            assert_eq!(triangle.triu(1)?.abs()?.amax(.., false)?.item()?, 0.0);
            let variance = 1.0 / (2.0 * concentration - 1.0 + n as f64);
            let squares = correlations.square()?.mean(0, false)?;
            for (row, column) in (0..n).flat_map(|i| (0..i).map(move |j| (i, j))) {
                let found = squares.select(0, row)?.select(0, column)?.item()?;
                assert!(
                    (found / variance - 1.0).abs() < 0.06,
                    "{row}, {column}: {found}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn types_stay_and_what_does_not_fit_is_refused() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let mesh = mesh.with_dtype(dtype);
            let df = mesh.full([4], 6.0, shard(0))?;
            let ones = mesh.eye([3, 3], Placements::replicated())?;
            let wishart = Wishart::new(&df, &ones)?;
            let x = wishart.sample([])?;
            assert_eq!((x.dtype(), wishart.log_prob(&x)?.dtype()), (dtype, dtype));
            let lkj = LkjCholesky::new(3, &df)?;
            let x = lkj.sample([])?;
            assert_eq!((x.dtype(), lkj.log_prob(&x)?.dtype()), (dtype, dtype));
            let normal = LowRankMultivariateNormal::new(&df, &mesh.ones([4, 2], shard(1))?, &df)?;
            let x = normal.sample([3])?;
            assert_eq!((x.dtype(), normal.log_prob(&x)?.dtype()), (dtype, dtype));
        }
        let [three, four] = [mesh.ones([3], shard(0))?, mesh.ones([4], shard(0))?];
        let columns = mesh.ones([3, 2], shard(0))?;
        let whole = mesh.distribute(&array![2.0], Placements::replicated())?;
        let refused = [
            LowRankMultivariateNormal::new(&four, &columns, &three).err(),
            LowRankMultivariateNormal::new(&three, &columns, &four).err(),
            LowRankMultivariateNormal::new(&three, &three, &three).err(),
            Wishart::new(&four, &columns).err(),
            Wishart::new(&four, &three).err(),
            Wishart::new(&four, &mesh.ones([3, 2, 2], shard(0))?).err(),
            LkjCholesky::new(1, &whole).err(),
            LkjCholesky::new(0, &whole).err(),
            LkjCholesky::new(3, &whole.to(DType::I64)?).err(),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            let refused = refused.unwrap_or_else(|| panic!("number {i} fits"));
            assert_eq!(refused.class(), ErrorClass::Uniform, "{refused}");
        }
        // None of them, and none of the columns.
        let none = mesh.ones([0], shard(0))?;
        let eye = mesh.eye([2, 2], Placements::replicated())?;
        assert_eq!(
            Wishart::new(&none, &eye)?.sample([2])?.shape(),
            [2, 0, 2, 2]
        );
        assert_eq!(
            LkjCholesky::new(2, &none)?.sample([2])?.shape(),
            [2, 0, 2, 2]
        );
        let plain = LowRankMultivariateNormal::new(&three, &columns.narrow(1, ..0)?, &three)?;
        let alone = plain.log_prob(&three)?.item()?;
        assert!(
            (alone + 1.5 * std::f64::consts::TAU.ln()).abs() < 1e-12,
            "{alone}"
        );
        Ok(())
    });
}
