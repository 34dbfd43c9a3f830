//! Distributions: PyTorch's numbers, and the same samples and gradients under any layout.

use crate::common::on;
use shard_tensor::distributions::{
    Bernoulli, Beta, Categorical, Dirichlet, Distribution, Divergence, Exponential, Gamma,
    Independent, Laplace, LogNormal, Normal, Reparametrized, Uniform, kl_divergence,
};
use shard_tensor::ndarray::{Array1, ArrayD, array};
use shard_tensor::{
    Context, DType, ErrorClass, GradCheck, Launch, Mesh, Placements, Result, ShardTensor,
    replicate, shard,
};
use std::f64::consts::{LN_2, LN_10};

/// What PyTorch says of a distribution in `f64`.
pub(crate) struct Golden {
    pub(crate) log_prob: &'static [f64],
    pub(crate) entropy: &'static [f64],
    pub(crate) mean: &'static [f64],
    pub(crate) variance: &'static [f64],
    pub(crate) divergence: &'static [f64],
}

/// Ten digits are as expected, or the same infinity, or NaN.
pub(crate) fn is(what: &str, found: &ShardTensor, expected: &[f64]) -> Result<()> {
    let found = found.to_array::<f64>()?;
    assert_eq!(found.len(), expected.len(), "{what}: {found:?}");
    for (&found, &expected) in found.iter().zip(expected) {
        let near = (found - expected).abs() < 1e-10 * expected.abs().max(1.0);
        let same = found == expected || (found.is_nan() && expected.is_nan());
        assert!(near || same, "{what}: {found} is not {expected}");
    }
    Ok(())
}

impl Golden {
    fn check<D: Distribution + Divergence>(
        &self,
        name: &str,
        p: &D,
        value: &ShardTensor,
        q: &D,
    ) -> Result<()> {
        is(
            &format!("{name}: log_prob"),
            &p.log_prob(value)?,
            self.log_prob,
        )?;
        is(&format!("{name}: entropy"), &p.entropy()?, self.entropy)?;
        is(&format!("{name}: mean"), &p.mean()?, self.mean)?;
        is(&format!("{name}: variance"), &p.variance()?, self.variance)?;
        is(
            &format!("{name}: divergence"),
            &kl_divergence(p, q)?,
            self.divergence,
        )
    }
}

/// Three numbers, in pieces of sizes that differ.
pub(crate) fn three(mesh: &Mesh, numbers: [f64; 3]) -> Result<ShardTensor> {
    mesh.distribute(&array![numbers[0], numbers[1], numbers[2]], pieces(mesh, 0))
}

/// A dim in pieces over all axes, of which one has most.
pub(crate) fn pieces(mesh: &Mesh, dim: usize) -> Placements {
    match mesh.shape() {
        [1] => shard(dim).into(),
        _ => [shard(dim), shard(dim)].into(),
    }
}

/// A program on one rank and on a mesh of two by two, whose last ranks have nothing of three.
pub(crate) fn everywhere(program: impl Fn(&Mesh) -> Result<()> + Sync) {
    on(1, |ctx| program(&ctx.mesh_of(1)?));
    on(4, |ctx| program(&ctx.mesh_of([2, 2])?));
}

pub(crate) const LOC: [f64; 3] = [0.5, -1.0, 2.0];
pub(crate) const SCALE: [f64; 3] = [1.5, 0.25, 3.0];
pub(crate) const LOC_2: [f64; 3] = [0.0, -0.5, 1.0];
pub(crate) const SCALE_2: [f64; 3] = [1.0, 0.5, 2.0];

/// Two values for each of three distributions.
pub(crate) fn values(mesh: &Mesh) -> Result<ShardTensor> {
    mesh.distribute(&array![[0.3, -0.9, 4.0], [1.7, 0.2, 0.5]], replicate())
}

#[test]
fn numbers_have_pytorchs_densities_moments_and_divergences() {
    everywhere(|mesh| {
        let x = values(mesh)?;
        let [loc, scale] = [three(mesh, LOC)?, three(mesh, SCALE)?];
        let [loc_2, scale_2] = [three(mesh, LOC_2)?, three(mesh, SCALE_2)?];
        let golden = Golden {
            log_prob: &[
                -1.333292530201726,
                0.38735582791521805,
                -2.2397730440950046,
                -1.6444036413128371,
                -11.052644172084781,
                -2.1425508218727822,
            ],
            entropy: &[1.824403641312837, 0.0326441720847821, 2.5175508218727822],
            mean: &[0.5, -1.0, 2.0],
            variance: &[2.25, 0.0625, 9.0],
            divergence: &[0.3445348918918356, 0.8181471805599453, 0.3445348918918356],
        };
        let (p, q) = (Normal::new(&loc, &scale)?, Normal::new(&loc_2, &scale_2)?);
        golden.check("Normal", &p, &x, &q)?;
        let golden = Golden {
            log_prob: &[
                -0.7656582409607664,
                -5.830322111979199,
                -3.4247693280589644,
                -1.8552403567668136,
                -0.8945228125469546,
                -1.727350404432725,
            ],
            entropy: &[2.324403641312837, -0.9673558279152179, 4.517550821872782],
            mean: &[5.0784190371800815, 0.3795571881830896, 665.1416330443618],
            variance: &[218.90159234702733, 0.009291307743475185, 3584470432.7395825],
            divergence: &[0.3445348918918356, 0.8181471805599453, 0.3445348918918356],
        };
        let (p, q) = (
            LogNormal::new(&loc, &scale)?,
            LogNormal::new(&loc_2, &scale_2)?,
        );
        golden.check("LogNormal", &p, &x.abs()?, &q)?;
        let golden = Golden {
            log_prob: &[
                -1.231945622001443,
                0.2931471805599454,
                -2.4584261358947215,
                -1.8986122886681098,
                -4.106852819440054,
                -2.291759469228055,
            ],
            entropy: &[2.09861228866811, 0.3068528194400547, 2.791759469228055],
            mean: &[0.5, -1.0, 2.0],
            variance: &[4.5, 0.125, 18.0],
            divergence: &[0.16933185775251958, 0.7608148221782518, 0.16933185775251958],
        };
        let (p, q) = (Laplace::new(&loc, &scale)?, Laplace::new(&loc_2, &scale_2)?);
        golden.check("Laplace", &p, &x, &q)?;
        let high = loc.add(&scale)?;
        let [low_2, high_2] = [
            three(mesh, [0.0, -1.5, 2.5])?,
            three(mesh, [3.0, 1.0, 9.0])?,
        ];
        let golden = Golden {
            log_prob: &[
                f64::NEG_INFINITY,
                1.3862943611198906,
                -1.0986122886681098,
                -0.4054651081081644,
                f64::NEG_INFINITY,
                f64::NEG_INFINITY,
            ],
            entropy: &[0.4054651081081644, -1.3862943611198906, 1.0986122886681098],
            mean: &[1.25, -0.875, 3.5],
            variance: &[0.1875, 0.005208333333333333, 0.75],
            divergence: &[LN_2, LN_10, f64::INFINITY],
        };
        let (p, q) = (Uniform::new(&loc, &high)?, Uniform::new(&low_2, &high_2)?);
        golden.check("Uniform", &p, &x, &q)?;
        let golden = Golden {
            log_prob: &[
                -0.04453489189183557,
                -1.6112943611198907,
                -10.90138771133189,
                -2.144534891891835,
                -1.4362943611198906,
                -0.4013877113318902,
            ],
            entropy: &[0.5945348918918356, 2.386294361119891, -0.09861228866810978],
            mean: &[0.6666666666666666, 4.0, 0.3333333333333333],
            variance: &[0.4444444444444444, 16.0, 0.1111111111111111],
            divergence: &[0.07213177477483113, 0.3068528194400546, 0.07213177477483113],
        };
        let (p, q) = (Exponential::new(&scale)?, Exponential::new(&scale_2)?);
        golden.check("Exponential", &p, &x.abs()?, &q)?;
        Ok(())
    });
}

#[test]
fn waiting_times_and_shares_have_pytorchs_densities_moments_and_divergences() {
    everywhere(|mesh| {
        let [a, b] = [three(mesh, [0.3, 1.0, 4.5])?, three(mesh, [2.0, 0.5, 1.5])?];
        let [to_a, to_b] = [three(mesh, [0.7, 2.0, 3.0])?, three(mesh, [1.0, 1.0, 2.5])?];
        let x = mesh.distribute(&array![[0.1, 0.9, 2.0], [1.7, 0.2, 5.5]], replicate())?;
        let golden = Golden {
            log_prob: &[
                0.5239557244457398,
                -1.1431471805599454,
                -1.203128452395894,
                -4.659293616393612,
                -0.7931471805599453,
                -2.9125252615212136,
            ],
            entropy: &[-1.7491161412819627, 1.6931471805599454, 1.6872232204759268],
            mean: &[0.15, 2.0, 3.0],
            variance: &[0.075, 4.0, 2.0],
            divergence: &[0.9012819669856057, 0.19092130378164218, 1.7902401279588243],
        };
        let (p, q) = (Gamma::new(&a, &b)?, Gamma::new(&to_a, &to_b)?);
        golden.check("Gamma", &p, &x, &q)?;
        let x = mesh.distribute(&array![[0.1, 0.9, 0.5], [0.7, 0.2, 0.35]], replicate())?;
        let golden = Golden {
            log_prob: &[
                0.5648405095795603,
                0.45814536593707766,
                -0.31805131266493225,
                -1.8959088834272684,
                -0.5815754049028404,
                -1.4352314842167506,
            ],
            entropy: &[
                -1.7529307866709238,
                -0.30685281944005427,
                -0.5093599650952862,
            ],
            mean: &[0.13043478260869565, 0.6666666666666666, 0.75],
            variance: &[
                0.03437016669530848,
                0.08888888888888889,
                0.026785714285714284,
            ],
            divergence: &[0.8788364998404259, 0.2274112777602179, 0.6683110743338133],
        };
        let (p, q) = (Beta::new(&a, &b)?, Beta::new(&to_a, &to_b)?);
        golden.check("Beta", &p, &x, &q)?;
        let x = mesh.distribute(&array![[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]], replicate())?;
        let golden = Golden {
            log_prob: &[-0.3990039651013664, -1.3089819193354182],
            entropy: &[-3.5395128185781557, -1.5068434306052663],
            mean: &[
                0.05172413793103448,
                0.1724137931034483,
                0.7758620689655172,
                0.5,
                0.125,
                0.375,
            ],
            variance: &[
                0.007213051689165559,
                0.020983423095754353,
                0.025573546897950616,
                0.05,
                0.021875,
                0.046875,
            ],
            divergence: &[1.465065036129237, 1.167231271915579],
        };
        for dim in [0, 1] {
            let of = |rows: [&ShardTensor; 2]| {
                Dirichlet::new(
                    &ShardTensor::stack(&rows.map(Clone::clone), 0)?
                        .redistribute(pieces(mesh, dim))?,
                )
            };
            golden.check("Dirichlet", &of([&a, &b])?, &x, &of([&to_a, &to_b])?)?;
        }
        // At the ends of what there is: densities that are flat, steep and none.
        let flat = Beta::new(&three(mesh, [1.0, 2.0, 0.5])?, 1.0)?;
        is(
            "at 0",
            &flat.log_prob(&mesh.zeros([3], replicate())?)?,
            &[0.0, f64::NEG_INFINITY, f64::INFINITY],
        )
    });
}

#[test]
fn choices_have_pytorchs_probabilities_entropies_and_divergences() {
    everywhere(|mesh| {
        let answers = values(mesh)?.gt_scalar(0.4)?;
        let [p, q] = [three(mesh, LOC)?, three(mesh, LOC_2)?];
        let golden = Golden {
            log_prob: &[
                -0.9740769841801067,
                -0.3132616875182228,
                -0.1269280110429725,
                -0.4740769841801067,
                -0.3132616875182228,
                -0.1269280110429725,
            ],
            entropy: &[0.6628473185791794, 0.5822031088882179, 0.36533385508720784],
            mean: &[0.6224593312018546, 0.2689414213699951, 0.8807970779778823],
            variance: &[0.2350037122015945, 0.19661193324148185, 0.10499358540350662],
            divergence: &[
                0.030299861980765896,
                0.026344585976886298,
                0.06713075445313266,
            ],
        };
        let (p, q) = (Bernoulli::from_logits(&p)?, Bernoulli::from_logits(&q)?);
        golden.check("Bernoulli of logits", &p, &answers, &q)?;

        let answers = mesh.distribute(&array![[0.0, 0.0, 1.0], [1.0, 0.0, 1.0]], replicate())?;
        let [p, q] = [three(mesh, [0.2, 0.0, 1.0])?, three(mesh, [0.3, 0.5, 0.0])?];
        let golden = Golden {
            log_prob: &[
                -0.2231435513142097,
                -0.0,
                -2.220446049250318e-16,
                -1.6094379124341003,
                -0.0,
                -2.220446049250318e-16,
            ],
            entropy: &[0.5004024235381879, 0.0, 2.220446049250318e-16],
            mean: &[0.2, 0.0, 1.0],
            variance: &[0.16000000000000003, 0.0, 0.0],
            divergence: &[0.02573209247798522, 0.6931471805599451, f64::INFINITY],
        };
        let (p, q) = (Bernoulli::from_probs(&p)?, Bernoulli::from_probs(&q)?);
        golden.check("Bernoulli of probabilities", &p, &answers, &q)?;

        let classes = mesh.distribute(&array![[3_i64, 0], [1, 2], [2, 1]], replicate())?;
        let p = array![[0.5, -1.0, 2.0, 0.1], [1.5, 0.25, -3.0, 0.0]];
        let q = array![[0.0, 0.5, -0.5, 1.0], [1.0, 1.0, 2.0, -2.0]];
        let golden = Golden {
            log_prob: &[
                -2.2524059381034305,
                -0.41919965824290384,
                -3.3524059381034306,
                -4.919199658242904,
                -0.35240593810343057,
                -1.6691996582429038,
            ],
            entropy: &[0.8924723458433542, 0.907655797744551],
            mean: &[f64::NAN, f64::NAN],
            variance: &[f64::NAN, f64::NAN],
            divergence: &[1.1237177039624497, 1.087153641080239],
        };
        for dim in [0, 1] {
            let of =
                |logits| Categorical::from_logits(&mesh.distribute(logits, pieces(mesh, dim))?);
            golden.check("Categorical of logits", &of(&p)?, &classes, &of(&q)?)?;
        }

        let p = array![[1.0, 0.0, 3.0, 4.0], [2.0, 2.0, 0.0, 0.0]];
        let q = array![[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]];
        let golden = Golden {
            log_prob: &[
                -LN_2,
                -LN_2,
                -36.04365338911715,
                -36.04365338911715,
                -0.9808292530117262,
                -LN_2,
            ],
            entropy: &[0.9743147528693494, LN_2],
            mean: &[f64::NAN, f64::NAN],
            variance: &[f64::NAN, f64::NAN],
            divergence: &[0.41197960825054114, f64::INFINITY],
        };
        for dim in [0, 1] {
            let of = |probs| Categorical::from_probs(&mesh.distribute(probs, pieces(mesh, dim))?);
            golden.check("Categorical of probabilities", &of(&p)?, &classes, &of(&q)?)?;
            is(
                "what is never drawn",
                &kl_divergence(&of(&q)?, &of(&p)?)?,
                &[f64::INFINITY; 2],
            )?;
        }
        Ok(())
    });
}

#[test]
fn dims_of_one_event_are_summed() {
    everywhere(|mesh| {
        let [scale, loc_2, scale_2] = [SCALE, LOC_2, SCALE_2].map(|of| three(mesh, of));
        let (scale, x) = (scale?, values(mesh)?.redistribute(pieces(mesh, 0))?);
        let p = Independent::new(Normal::new(&x, &scale)?, 1)?;
        let q = Independent::new(Normal::new(&loc_2?.expand([2, 3])?, &scale_2?)?, 1)?;
        let golden = Golden {
            log_prob: &[-4.721820857492624, -3.1186264130481796],
            entropy: &[4.374598635270401, 4.374598635270401],
            mean: &[0.3, -0.9, 4.0, 1.7, 0.2, 0.5],
            variance: &[2.25, 0.0625, 9.0, 2.25, 0.0625, 9.0],
            divergence: &[2.2472169643436164, 3.213466964343616],
        };
        golden.check("Independent", &p, &x.mul_scalar(0.5)?, &q)?;
        let refused = Independent::new(Normal::new(&x, &scale)?, 3)
            .err()
            .map(|e| e.class());
        assert_eq!(refused, Some(ErrorClass::Uniform));
        Ok(())
    });
}

#[cfg(feature = "linalg")]
#[test]
fn normal_vectors_have_pytorchs_densities_moments_and_divergences() {
    use shard_tensor::distributions::MultivariateNormal;
    everywhere(|mesh| {
        let scale = array![
            [[1.0, 9.0, 9.0], [0.5, 2.0, 9.0], [-0.3, 0.7, 0.5]], // what is above the diagonal does not count
            [[2.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.2, 0.1, 1.5]]
        ];
        let scale = mesh.distribute(&scale, pieces(mesh, 0))?;
        let mean = mesh.distribute(&array![[0.5, -1.0, 2.0], [1.0, 0.0, -0.5]], replicate())?;
        let p = MultivariateNormal::new(&mean, &scale)?;
        let q = MultivariateNormal::new(&mesh.zeros([3], pieces(mesh, 0))?, &scale.select(0, 1)?)?;
        let x = values(mesh)?;
        let x = ShardTensor::stack(&[x.clone(), x.add_scalar(1.0)?, x.mul_scalar(2.0)?], 0)?;
        let golden = Golden {
            log_prob: &[
                -9.775615599614017,
                -4.238066777171016,
                -21.078115599614023,
                -6.904733443837683,
                -82.92664059961403,
                -6.124316777171016,
            ],
            entropy: &[4.2568155996140185, 5.355427888282128],
            mean: &[0.5, -1.0, 2.0, 1.0, 0.0, -0.5],
            variance: &[1.0, 4.25, 0.83, 4.0, 2.0, 2.3],
            divergence: &[3.6140289553347755, 0.3438888888888889],
        };
        golden.check("MultivariateNormal", &p, &x, &q)?;
        let again = MultivariateNormal::from_covariance(&mean, &p.covariance()?)?;
        assert!(
            again
                .scale_tril()
                .allclose(p.scale_tril(), 1e-12, 1e-12, false)?
        );
        // One matrix for all of several dims.
        let one = MultivariateNormal::new(&mean, &scale.select(0, 1)?)?;
        let each = MultivariateNormal::new(&mean, &scale.select(0, 1)?.expand([3, 2, 3, 3])?)?;
        assert!(
            one.log_prob(&x)?
                .allclose(&each.log_prob(&x)?, 1e-12, 1e-12, false)?
        );
        // Of what is drawn the noise is found again.
        let drawn = p.rsample([5])?;
        assert_eq!(drawn.shape(), [5, 2, 3]);
        let each = scale.expand([5, 2, 3, 3])?;
        let noise = drawn.sub(&mean)?.unsqueeze(-1)?;
        let noise = each.solve_triangular(&noise, false, false)?;
        let far = noise.square()?.sum([-2, -1], false)?.mul_scalar(-0.5)?;
        let density = far.sub(&scale.diagonal(0, -2, -1)?.log()?.sum(-1, false)?)?;
        let density = density.sub_scalar(1.5 * (2.0 * std::f64::consts::PI).ln())?;
        assert!(
            p.log_prob(&drawn)?
                .allclose(&density, 1e-10, 1e-10, false)?
        );
        Ok(())
    });
}

/// Samples of all kinds, `[5, 3]` or of three classes.
fn drawn(mesh: &Mesh, dim: usize) -> Result<Vec<ArrayD<f64>>> {
    let [loc, scale] = [three(mesh, LOC)?, three(mesh, SCALE)?];
    let loc = loc.expand([4, 3])?.redistribute(pieces(mesh, dim))?;
    let samples = [
        Normal::new(&loc, &scale)?.sample([5])?,
        LogNormal::new(&loc, 0.5)?.rsample([5])?,
        Laplace::new(&loc, &scale)?.sample([5])?,
        Uniform::new(&loc, &loc.add(&scale)?)?.sample([5])?,
        Exponential::new(&scale.add(&loc.square()?)?)?.sample([5])?,
        Bernoulli::from_logits(&loc)?.sample([5])?,
        Categorical::from_logits(&loc)?
            .sample([5])?
            .to(DType::F64)?,
        Categorical::from_probs(&loc.abs()?)?
            .sample([])?
            .to(DType::F64)?,
        Gamma::new(&loc.square()?, &scale)?.sample([5])?,
        Beta::new(&loc.square()?, &scale)?.sample([5])?,
        Dirichlet::new(&loc.square()?)?.sample([5])?,
        Independent::new(Normal::new(&scale, 1.0)?, 1)?.sample([2, 2])?,
    ];
    assert_eq!(samples[6].shape(), [5, 4]);
    assert_eq!(samples[11].shape(), [2, 2, 3]);
    samples[0].expect_layout(loc.expand([5, 4, 3])?.layout())?; // as the larger parameter lies
    samples
        .iter()
        .map(|sample| sample.to_array::<f64>())
        .collect()
}

#[test]
fn samples_are_those_of_one_rank() {
    let launch = |ranks| Launch::new(ranks).seed(5).dtype(DType::F64);
    let one = launch(1).run(|ctx| drawn(&ctx.mesh_of(1)?, 0)).unwrap();
    for dim in [0, 1] {
        let many = launch(4)
            .run(|ctx| drawn(&ctx.mesh_of([2, 2])?, dim))
            .unwrap();
        for (one, many) in one[0].iter().zip(&many[3]) {
            assert!(
                one.iter().zip(many).all(|(a, b)| (a - b).abs() < 1e-14),
                "{one} {many}"
            );
        }
    }
}

#[test]
fn samples_have_their_distributions_moments() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let of = |numbers: [f64; 3]| mesh.distribute(&Array1::from(numbers.to_vec()), shard(0));
        let [loc, scale] = [of(LOC)?, of(SCALE)?];
        let moments = |name: &str, p: &dyn Fn() -> Result<[ShardTensor; 3]>| -> Result<()> {
            let [samples, mean, variance] = p()?;
            let deviation = variance.sqrt()?;
            let (found, mean_found) = samples.var_mean(0, 1.0, false)?;
            let near = mean_found
                .sub(&mean)?
                .div(&deviation)?
                .abs()?
                .amax(.., false)?
                .item()?;
            assert!(
                near < 0.06,
                "{name}: the mean of 4000 samples is {near} deviations off"
            );
            let near = found
                .div(&variance)?
                .log()?
                .abs()?
                .amax(.., false)?
                .item()?;
            assert!(
                near < 0.25,
                "{name}: the variance of 4000 samples is off by e^{near}"
            );
            Ok(())
        };
        macro_rules! check {
            ($($made:expr;)*) => {$(
                moments(stringify!($made), &|| {
                    let p = $made?;
                    Ok([p.sample([4000])?, p.mean()?, p.variance()?])
                })?;
            )*};
        }
        check! {
            Normal::new(&loc, &scale);
            LogNormal::new(&loc, 0.3);
            Laplace::new(&loc, &scale);
            Uniform::new(&loc, &loc.add(&scale)?);
            Exponential::new(&scale);
            Bernoulli::from_logits(&loc);
            Gamma::new(&scale, 2.0);
            Beta::new(&scale, &of([0.5, 2.0, 7.0])?);
            Dirichlet::new(&scale);
        }
        let policy = Categorical::from_probs(&of([1.0, 0.0, 3.0])?)?;
        let counts = policy
            .sample([4000])?
            .bincount(None, 3)?
            .to_array::<i64>()?;
        assert!(counts[1] == 0 && (counts[0] - 1000).abs() < 150, "{counts}");
        Ok(())
    });
}

/// What a distribution tells of a value has gradients that are differences of values, by value and parameters.
fn slopes<D: Distribution + Divergence>(
    ctx: &Context,
    inputs: [&ShardTensor; 3],
    make: impl Fn([&ShardTensor; 2]) -> Result<D>,
) {
    let all = |t: &[ShardTensor]| {
        let others = [t[1].mul_scalar(1.25)?, t[2].mul_scalar(1.25)?];
        let (p, q) = (make([&t[1], &t[2]])?, make(others.each_ref())?);
        Ok(vec![
            p.log_prob(&t[0])?,
            p.entropy()?,
            kl_divergence(&p, &q)?,
        ])
    };
    let found = ctx.gradcheck(all, &inputs, GradCheck::default());
    assert!(found.is_ok(), "{}: {found:?}", std::any::type_name::<D>());
}

#[test]
fn gradients_are_slopes() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let of = |numbers: [f64; 3]| {
            mesh.distribute(&Array1::from(numbers.to_vec()), shard(0).sizes([2, 0, 1]))?
                .requires_grad()
        };
        let (x, loc, scale) = (of([0.7, 0.1, 1.9])?, of(LOC)?, of(SCALE)?);
        let inputs = [&x, &loc, &scale];
        slopes(ctx, inputs, |[loc, scale]| Normal::new(loc, scale));
        slopes(ctx, inputs, |[loc, scale]| LogNormal::new(loc, scale));
        slopes(ctx, inputs, |[loc, scale]| Laplace::new(loc, scale));
        slopes(ctx, inputs, |[_, scale]| Exponential::new(scale));
        slopes(ctx, inputs, |[loc, _]| Bernoulli::from_logits(loc));
        slopes(ctx, inputs, |[_, scale]| {
            Gamma::new(scale, &scale.square()?)
        });
        // A sample moves with its parameters: here by its noise.
        let p = Laplace::new(&loc, &scale)?;
        let z = p.rsample([6])?;
        let slopes = z.sum_all()?.grad(&[&loc, &scale], false)?;
        let [Some(by_loc), Some(by_scale)] = &slopes[..] else {
            panic!("no gradient")
        };
        is("by loc", by_loc, &[6.0; 3])?;
        let noise = z.detach().sub(&loc)?.div(&scale)?.sum(0, false)?;
        assert!(by_scale.allclose(&noise, 1e-12, 1e-12, false)?);
        assert!(!p.sample([])?.is_tracked());
        Ok(())
    });
}

#[test]
fn masked_actions_have_gradients() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let logits = mesh
            .distribute(&array![[0.5, -1.0, 2.0], [1.0, 0.0, 0.5]], shard(0))?
            .requires_grad()?;
        let allowed = mesh
            .distribute(&array![[1, 0, 1], [0, 1, 0]], shard(0))?
            .to(DType::Bool)?;
        let masked = allowed.where_(&logits, f64::NEG_INFINITY)?;
        let policy = Categorical::from_logits(&masked)?;
        let q = Categorical::from_logits(&logits.detach())?;
        let action = policy.sample([7])?;
        let loss = policy
            .log_prob(&action)?
            .mean(0, false)?
            .add(&policy.entropy()?)?;
        let loss = loss.add(&kl_divergence(&policy, &q)?)?.sum_all()?;
        let slope = loss.grad1(&logits, false)?;
        assert!(
            slope.isfinite()?.all(.., false)?.item()? == 1.0,
            "{:?}",
            slope.to_array::<f64>()?
        );
        Ok(())
    });
}

#[test]
fn classes_that_are_not_there_and_logits_that_are_no_numbers_are_refused() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let policy = Categorical::from_logits(&mesh.zeros([3, 4], shard(0))?)?;
        for class in [-100_i64, -1, 4] {
            let value = mesh.distribute(&array![0, 1, class], shard(0))?;
            let refused = policy.log_prob(&value).err().map(|e| e.class());
            assert_eq!(refused, Some(ErrorClass::Agreed), "{class}");
        }
        let lost = Categorical::from_logits(&mesh.full([3, 4], f64::NAN, shard(0))?)?;
        let refused = lost.sample([2]).unwrap_err().to_string();
        assert!(
            refused.contains("Categorical::sample: expected weights"),
            "{refused}"
        );
        let lost = Bernoulli::from_probs(&mesh.full([3], 1.5, shard(0))?)?;
        let refused = lost.sample([2]).unwrap_err().to_string();
        assert!(refused.contains("Bernoulli::sample"), "{refused}");
        assert!(Categorical::from_logits(&mesh.zeros([3, 0], shard(0))?).is_err());
        // So many that their number wraps around: to 0, of an even number twice.
        let even = Categorical::from_logits(&mesh.zeros([3, 2], shard(0))?)?;
        assert!(even.sample([usize::MAX / 2 + 1, 2]).is_err());
        let halfway = policy
            .log_prob(&mesh.ones([3], shard(0))?)
            .unwrap_err()
            .to_string();
        assert!(halfway.contains("classes as i64 or i32"), "{halfway}");
        let wide = mesh.with_dtype(DType::F32).ones([3], shard(0))?;
        let mixed = Normal::new(&wide, &mesh.ones([3], shard(0))?)
            .unwrap_err()
            .to_string();
        assert!(mixed.contains("one type of floats, got f64"), "{mixed}");
        // An error is at the program's line.
        let huge = Normal::new(&wide, 1.0)?
            .sample([usize::MAX])
            .unwrap_err()
            .to_string();
        assert!(huge.contains("distributions.rs"), "{huge}");
        let halves = mesh.with_dtype(DType::BF16).ones([3], shard(0))?;
        let sample = Laplace::new(&halves, 1.0)?.rsample([2])?;
        assert_eq!((sample.dtype(), sample.shape()), (DType::BF16, &[2, 3][..]));
        assert_eq!(
            Normal::new(&halves, 1.0)?.log_prob(&sample)?.dtype(),
            DType::BF16
        );
        let none = Normal::new(&mesh.zeros([0, 3], shard(0))?, 1.0)?;
        assert_eq!(none.log_prob(&none.sample([2])?)?.shape(), [2, 0, 3]);
        Ok(())
    });
}

#[test]
fn parts_shapes_and_temperatures_that_do_not_fit_are_refused() {
    use shard_tensor::distributions::{
        AffineTransform, MixtureSameFamily, OneHotCategorical, Poisson, RelaxedOneHotCategorical,
        StudentT, Transformed,
    };
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let normal = Normal::new(&mesh.zeros([4, 3], shard(0))?, 1.0)?;
        let two = Categorical::from_logits(&mesh.zeros([4, 2], shard(0))?)?;
        let refused = MixtureSameFamily::new(&two, normal.clone())
            .err()
            .map(|e| e.to_string());
        assert!(refused.is_some_and(|e| e.contains("weights of 3 parts")));
        let number = Normal::new(&mesh.zeros((), replicate())?, 1.0)?;
        let one = Categorical::from_logits(&mesh.zeros([1], shard(0))?)?;
        assert!(MixtureSameFamily::new(&one, number).is_err());
        let wide = AffineTransform::new(&mesh.zeros([5, 4, 3], shard(0))?, 2.0)?;
        let refused = Transformed::new(normal, wide)
            .sample([])
            .err()
            .map(|e| (e.class(), e.to_string()));
        assert!(refused.is_some_and(
            |(class, e)| class == ErrorClass::Uniform && e.contains("[4, 3] that it was given")
        ));
        let logits = mesh.zeros([4, 3], shard(0))?;
        assert!(RelaxedOneHotCategorical::from_logits(0.0, &logits).is_err());
        let rows = OneHotCategorical::from_logits(&logits)?;
        assert!(rows.log_prob(&mesh.zeros([4, 2], shard(0))?).is_err());
        // Rates that are none are no counts; none are nothing; and 16 bits are drawn finely.
        let lost = Poisson::new(&mesh.full([2], f64::NAN, shard(0))?)?.sample([])?;
        is("NaN", &lost, &[f64::NAN; 2])?;
        assert_eq!(
            Poisson::new(&mesh.zeros([0, 3], shard(0))?)?
                .sample([2])?
                .shape(),
            [2, 0, 3]
        );
        let halves = mesh.with_dtype(DType::BF16).ones([3], shard(0))?;
        let p = StudentT::new(&halves, 0.0, 1.0)?;
        let sample = p.sample([2])?;
        assert_eq!(
            (sample.dtype(), p.log_prob(&sample)?.dtype()),
            (DType::BF16, DType::BF16)
        );
        assert_eq!(Poisson::new(&halves)?.sample([])?.dtype(), DType::BF16);
        Ok(())
    });
}
