//! Distributions of shares, of reciprocals and of what is beyond a threshold: PyTorch's numbers in `f64`, and those of other sources where PyTorch
//! has none.

use crate::common::on;
use crate::distributions::{Golden, LOC, SCALE, SCALE_2, everywhere, is, pieces, three, values};
use crate::tails::{check, there_and_back};
use shard_tensor::distributions::{
    Beta, ContinuousBernoulli, Cumulative, Distribution, Exponential, FisherSnedecor,
    GeneralizedPareto, InverseGamma, Kumaraswamy, LogisticNormal, Multinomial, Normal,
    Reparametrized, Uniform, kl_divergence,
};
use shard_tensor::ndarray::{ArrayD, array};
use shard_tensor::{
    DType, ErrorClass, GradCheck, Launch, Mesh, Result, ShardTensor, replicate, shard,
};

/// Two values between 0 and 1 for each of three distributions.
fn inner(mesh: &Mesh) -> Result<ShardTensor> {
    mesh.distribute(&array![[0.3, 0.9, 0.55], [0.05, 0.2, 0.999]], replicate())
}

#[test]
fn reciprocals_and_quotients_have_pytorchs_densities_and_moments() {
    everywhere(|mesh| {
        let x = values(mesh)?.abs()?;
        let (concentration, rate) = (three(mesh, [1.5, 2.25, 3.0])?, three(mesh, SCALE_2)?);
        let golden = Golden {
            log_prob: &[
                -0.20261908488324787,
                -1.8975867508198934,
                -4.658883083359672,
                -1.7940236841378279,
                1.0462203442585527,
                0.15888308335967127,
            ],
            entropy: &[1.2879928274183143, -0.17905148219468536, 0.6951570207260227],
            mean: &[2.0, 0.4, 1.0],
            variance: &[f64::INFINITY, 0.64, 1.0],
            divergence: &[0.4835621165163689, 8.572410846235702, 0.9187069383221929],
        };
        let p = InverseGamma::new(&concentration, &rate)?;
        check("InverseGamma", &golden, &p, &x)?;
        let q = InverseGamma::new(&rate, &concentration)?;
        is(
            "InverseGamma: divergence",
            &kl_divergence(&p, &q)?,
            golden.divergence,
        )?;
        // Nothing is at 0, where PyTorch has NaN, nor below; and means of small concentrations are infinite.
        let none = p.log_prob(&mesh.distribute(&array![[0.0], [-1.0]], replicate())?)?;
        is("InverseGamma: nothing", &none, &[f64::NEG_INFINITY; 6])?;
        is(
            "InverseGamma: no mean",
            &InverseGamma::new(&rate, 1.0)?.mean()?,
            &[f64::INFINITY, f64::INFINITY, 1.0],
        )?;

        let golden = Golden {
            log_prob: &[
                -0.4342258057418775,
                -2.3437542087651404,
                -3.168514346510284,
                -1.9271549219926911,
                -0.9370255271897254,
                -0.8240609746035853,
            ],
            entropy: &[],
            mean: &[1.6666666666666667, 3.0, f64::NAN],
            variance: &[16.666666666666668, f64::NAN, f64::NAN],
            divergence: &[],
        };
        let p = FisherSnedecor::new(&three(mesh, SCALE)?, &three(mesh, [5.0, 3.0, 1.5])?)?;
        check("FisherSnedecor", &golden, &p, &x)
    });
}

#[test]
fn shares_and_tails_have_pytorchs_densities_moments_and_shares() {
    everywhere(|mesh| {
        let x = inner(mesh)?;
        let (a, b) = (three(mesh, SCALE)?, three(mesh, SCALE_2)?);
        let golden = Golden {
            log_prob: &[
                -0.19652129405480367,
                -0.17551973262459986,
                0.4141138496871475,
                -1.092401028668831,
                -0.319936790297112,
                -4.020384688419779,
            ],
            entropy: &[
                -0.07213177477483107,
                -0.7616753749604913,
                -0.29175946922805507,
            ],
            mean: &[0.6000000000000001, 0.4063492063492063, 0.642857142857143],
            variance: &[
                0.06857142857142856,
                0.13441869262597583,
                0.03673469387755085,
            ],
            divergence: &[],
        };
        let p = Kumaraswamy::new(&a, &b)?;
        check("Kumaraswamy", &golden, &p, &x)?;
        let cdf = [
            0.16431676725154976,
            0.8387664626242317,
            0.3050693593750001,
            0.011180339887499002,
            0.42444835590228913,
            0.999991017985006,
        ];
        there_and_back("Kumaraswamy", &p, &x, &cdf)?;

        let golden = Golden {
            log_prob: &[
                -0.3966503985745112,
                0.5877866649021191,
                -2.152821569749337,
                -1.8157782769530866,
                -0.5108256237659906,
                -0.8022714998295282,
            ],
            entropy: &[1.4, -0.1931471805599454, 2.9431471805599454],
            mean: &[2.166666666666667, -0.6666666666666667, f64::NAN],
            variance: &[13.888888888888893, 0.05555555555555555, f64::NAN],
            divergence: &[],
        };
        let p = GeneralizedPareto::new(&three(mesh, LOC)?, &b, &three(mesh, [0.4, -0.5, 1.25])?)?;
        let beyond = mesh.distribute(&array![[0.8, -0.9, 4.0], [2.2, -0.3, 2.1]], replicate())?;
        check("GeneralizedPareto", &golden, &p, &beyond)?;
        let cdf = [
            0.2467225904631154,
            0.18999999999999997,
            0.4772982122112561,
            0.7266451424991286,
            0.91,
            0.04734237247064232,
        ];
        there_and_back("GeneralizedPareto", &p, &beyond, &cdf)?;
        // Below the threshold is nothing, nor is beyond the end of a tail that has one.
        let outside = mesh.distribute(&array![[0.4, 0.1, 1.0]], replicate())?;
        is(
            "GeneralizedPareto: outside",
            &p.log_prob(&outside)?,
            &[f64::NEG_INFINITY; 3],
        )?;
        is(
            "GeneralizedPareto: shares",
            &p.cdf(&outside)?,
            &[0.0, 1.0, 0.0],
        )?;
        // A uniform one has an end that counts.
        let uniform = GeneralizedPareto::new(&mesh.zeros(1, replicate())?, 2.0, -1.0)?;
        is(
            "uniform",
            &uniform.log_prob(&mesh.full(1, 2.0, replicate())?)?,
            &[-(2.0_f64.ln())],
        )
    });
}

#[test]
fn powers_of_two_numbers_have_pytorchs_densities_and_all_digits() {
    everywhere(|mesh| {
        let (x, logits) = (inner(mesh)?, three(mesh, [2.0, -0.6, 9.0])?);
        let golden = Golden {
            log_prob: &[
                -0.5614393615711959,
                -0.2549552554196711,
                -1.8526520052441504,
                -1.0614393615711961,
                0.16504474458032892,
                2.18834799475585,
            ],
            entropy: &[
                -0.15159592392813526,
                -0.014866273676851283,
                -1.1984588200793667,
            ],
            mean: &[0.6565176427496656, 0.45029745150579603, 0.889012313924827],
            variance: &[
                0.06898458475842242,
                0.08185449502583397,
                0.012222238742661724,
            ],
            divergence: &[
                0.08373215354606023,
                0.006488579795565497,
                0.5818735538014934,
            ],
        };
        let p = ContinuousBernoulli::from_logits(&logits)?;
        check("ContinuousBernoulli", &golden, &p, &x)?;
        let q = ContinuousBernoulli::from_logits(&three(mesh, LOC)?)?;
        is(
            "ContinuousBernoulli: divergence",
            &kl_divergence(&p, &q)?,
            golden.divergence,
        )?;
        let cdf = [
            0.1286760966973054,
            0.9247839284103622,
            0.017301099960768652,
            0.01646110418301872,
            0.2506260629239278,
            0.9910392729313123,
        ];
        there_and_back("ContinuousBernoulli", &p, &x, &cdf)?;
        let [loc, scale] = [three(mesh, LOC)?, three(mesh, SCALE)?];
        let (low, high) = (
            three(mesh, [-0.5, -1.0, -2.0])?,
            three(mesh, [1.5, 1.25, 3.0])?,
        );
        let share = Uniform::new(&scale.mul_scalar(0.1)?, &scale.mul_scalar(0.2)?)?;
        let beta = Beta::new(&scale, &high)?;
        for (what, found, expected) in [
            (
                "from Normal",
                kl_divergence(&p, &Normal::new(&loc, &scale)?)?,
                [1.4967734224077134, 17.02924798872196, 3.285260524027334],
            ),
            (
                "from Exponential",
                kl_divergence(&p, &Exponential::new(&scale)?)?,
                [0.7309072799444694, 1.5137349976731909, 2.7668834731857377],
            ),
            (
                "from Uniform",
                kl_divergence(&p, &Uniform::new(&low, &high)?)?,
                [0.8447431044880805, 0.82579648989318, 2.807896732513467],
            ),
            (
                "of Uniform",
                kl_divergence(&share, &p)?,
                [2.608559346457076, 3.4263347095336076, 3.9566248095694267],
            ),
            (
                "of Beta",
                kl_divergence(&beta, &p)?,
                [0.20985665628173988, 1.636394083185582, 2.5705160535723137],
            ),
        ] {
            is(what, &found, &expected)?;
        }
        let same = ContinuousBernoulli::from_probs(&logits.sigmoid()?)?;
        is("by probabilities", &same.mean()?, golden.mean)?;
        // Where series take turns with quotients, and far away, as mpmath has them with 40 digits.
        let edges = [0.0, 1e-9, 0.003, -0.4, 0.499, 0.501, 40.0, -700.0];
        let p = ContinuousBernoulli::from_logits(&mesh.distribute(
            &ArrayD::from_shape_vec(vec![8], edges.to_vec()).unwrap(),
            replicate(),
        )?)?;
        is(
            "means",
            &p.mean()?,
            &[
                0.5,
                0.5000000000833333,
                0.5002499999625,
                0.4667552182802636,
                0.5414117785846051,
                0.5415763824039235,
                0.975,
                0.0014285714285714286,
            ],
        )?;
        is(
            "variances",
            &p.variance()?,
            &[
                0.08333333333333333,
                0.08333333333333333,
                0.08333329583334673,
                0.0826708758897253,
                0.08230599211107267,
                0.08229782197541019,
                0.0006249999999999958,
                2.040816326530612e-06,
            ],
        )?;
        is(
            "entropies",
            &p.entropy()?,
            &[
                0.0,
                -4.166666666666222e-20,
                -3.749999156250201e-07,
                -0.006640112402667553,
                -0.01031087945186198,
                -0.01039318135879784,
                -2.6888794541139367,
                -5.551080335043404,
            ],
        )?;
        // Up to half the way, but for the last, all of which is before that.
        let halves = mesh.full(7, 0.5, replicate())?;
        let p7 = ContinuousBernoulli::from_logits(&p.logits().narrow(0, ..7)?)?;
        assert!(
            p7.icdf(&p7.cdf(&halves)?)?
                .allclose(&halves, 1e-12, 1e-12, false)?
        );
        // mpmath
        let rare = mesh.distribute(&array![1e-12, 0.25, 1.0 - 1e-9], replicate())?;
        let steep = ContinuousBernoulli::from_logits(
            &mesh.distribute(&array![35.0, 29.0, -3.0], replicate())?,
        )?;
        is(
            "rare",
            &steep.icdf(&rare)?,
            &[0.21056026277309978, 0.952196746168306, 0.9999999936381546],
        )?;
        is(
            "beyond",
            &p.cdf(&mesh.distribute(&array![[-0.5], [1.5]], replicate())?)?,
            &[[0.0; 8], [1.0; 8]].concat(),
        )
    });
}

#[test]
fn shares_of_normal_numbers_and_counts_of_classes_have_pytorchs_probabilities() {
    everywhere(|mesh| {
        let loc = mesh.distribute(&array![[0.5, -1.0, 2.0], [0.0, 0.3, -0.2]], pieces(mesh, 0))?;
        let scale = three(mesh, SCALE)?;
        let golden = Golden {
            log_prob: &[0.7475299689974788, -0.34522392395249746],
            entropy: &[],
            mean: &[],
            variance: &[],
            divergence: &[],
        };
        let p = LogisticNormal::new(&loc, &scale)?;
        let shares = mesh.distribute(
            &array![[0.1, 0.2, 0.3, 0.4], [0.6, 0.1, 0.25, 0.05]],
            pieces(mesh, 1),
        )?;
        check("LogisticNormal", &golden, &p, &shares)?;
        assert!(
            p.sample([5])?
                .sum(-1, false)?
                .sub_scalar(1.0)?
                .abs()?
                .lt_scalar(1e-12)?
                .all(.., false)?
                .item()?
                == 1.0
        );

        let golden = Golden {
            log_prob: &[-2.1320814939832182, -1.4020427180880306],
            entropy: &[],
            mean: &[0.9, 1.8, 6.3, 4.5, 4.5, 0.0],
            variance: &[0.81, 1.44, 1.89, 2.25, 2.25, 0.0],
            divergence: &[],
        };
        let probs = mesh.distribute(&array![[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]], pieces(mesh, 1))?;
        let p = Multinomial::from_probs(9, &probs)?;
        let counts = mesh.distribute(&array![[1.0, 2.0, 6.0], [4.0, 5.0, 0.0]], pieces(mesh, 0))?;
        check("Multinomial", &golden, &p, &counts)?;
        assert_eq!(
            (p.batch_shape(), p.event_shape(), p.total_count()),
            (&[2][..], &[3][..], 9)
        );
        let none = Multinomial::from_probs(0, &probs)?.sample([2])?;
        is("nothing drawn", &none, &[0.0; 12])
    });
}

/// Samples of all, of parameters in pieces of a dim of a table.
fn drawn(mesh: &Mesh, dim: usize) -> Result<Vec<ArrayD<f64>>> {
    let loc = mesh.distribute(
        &array![[0.5, -1.0, 2.0], [0.0, 0.3, -0.2]],
        pieces(mesh, dim),
    )?;
    let above = loc.exp()?;
    let samples = [
        InverseGamma::new(&above, 2.0)?.sample([3])?,
        FisherSnedecor::new(&above, &above)?.sample([3])?,
        Kumaraswamy::new(&above, 2.0)?.sample([3])?,
        ContinuousBernoulli::from_logits(&loc)?.sample([3])?,
        GeneralizedPareto::new(&loc, &above, &loc)?.sample([3])?,
        LogisticNormal::new(&loc, &above)?.sample([3])?,
        Multinomial::from_logits(7, &loc)?.sample([3])?,
    ];
    assert!(samples.iter().all(|s| !s.is_tracked()));
    samples.iter().map(ShardTensor::to_array::<f64>).collect()
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
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-13 * a.abs().max(1.0);
            assert!(one.iter().zip(many).all(near), "{one} {many}");
        }
    }
}

/// The mean of samples is that of their distribution, within five deviations, and so is their variance, within a twentieth.
fn moments(name: &str, p: &impl Distribution, samples: &ShardTensor) -> Result<()> {
    let (mean, variance) = (p.mean()?, p.variance()?);
    let n = samples.shape()[0] as f64;
    let off = samples.mean(0, false)?.sub(&mean)?.square()?;
    let bound = variance.mul_scalar(25.0 / n)?.add_scalar(1e-12)?;
    assert!(
        off.le(&bound)?.all(.., false)?.item()? == 1.0,
        "{name}: {off:?}"
    );
    let found = samples.var(0, 1.0, false)?;
    assert!(
        found.allclose(&variance, 0.05, 1e-12, false)?,
        "{name}: {:?}",
        found.to_array::<f64>()?
    );
    Ok(())
}

#[test]
fn samples_have_their_distributions_moments() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let of = |a: f64, b: f64| mesh.distribute(&array![a, b], shard(0));
        macro_rules! tried {
            ($p:expr) => {{
                let p = $p;
                moments(stringify!($p), &p, &p.sample([20000])?)?;
            }};
        }
        tried!(InverseGamma::new(&of(9.0, 12.0)?, 2.0)?);
        tried!(FisherSnedecor::new(&of(3.0, 8.0)?, 20.0)?);
        tried!(Kumaraswamy::new(&of(0.7, 3.0)?, &of(2.0, 0.5)?)?);
        tried!(ContinuousBernoulli::from_logits(&of(-0.004, 3.0)?)?);
        tried!(ContinuousBernoulli::from_logits(&of(-5.0, 0.0)?)?);
        tried!(GeneralizedPareto::new(
            &of(1.0, -2.0)?,
            2.0,
            &of(-0.7, 0.0)?
        )?);
        let probs = mesh.distribute(&array![[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]], shard(0))?;
        tried!(Multinomial::from_probs(6, &probs)?);
        // What a share leaves is normal, as its logit tells.
        let p = LogisticNormal::new(&mesh.full([1], 0.5, replicate())?, 1.5)?;
        let y = p.sample([20000])?;
        let x = y.select(-1, 0)?.log()?.sub(&y.select(-1, 1)?.log()?)?;
        assert!((x.mean_all()?.item()? - 0.5).abs() < 0.05);
        assert!((x.var(0, 1.0, false)?.item()? - 2.25).abs() < 0.1);
        Ok(())
    });
}

#[test]
fn gradients_are_slopes() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let of = |numbers: [f64; 3]| {
            let numbers = array![numbers[0], numbers[1], numbers[2]];
            mesh.distribute(&numbers, shard(0).sizes([2, 0, 1]))?
                .requires_grad()
        };
        let (x, loc, scale) = (of([0.7, 0.1, 0.9])?, of([0.002, -0.3, 2.0])?, of(SCALE)?);
        let inputs = [&x, &loc, &scale];
        let slopes = |name: &str, f: &dyn Fn([&ShardTensor; 3]) -> Result<ShardTensor>| {
            let found = ctx.gradcheck(
                |t: &[ShardTensor]| Ok(vec![f([&t[0], &t[1], &t[2]])?]),
                &inputs,
                GradCheck::default(),
            );
            assert!(found.is_ok(), "{name}: {found:?}");
        };
        slopes("InverseGamma", &|[x, _, scale]| {
            let p = InverseGamma::new(&scale.add_scalar(2.5)?, scale)?;
            p.log_prob(x)?
                .add(&p.entropy()?)?
                .add(&p.mean()?.mul(&p.variance()?)?)
        });
        slopes("FisherSnedecor", &|[x, _, scale]| {
            let p = FisherSnedecor::new(scale, &scale.add_scalar(4.5)?)?;
            p.log_prob(x)?.add(&p.mean()?.mul(&p.variance()?)?)
        });
        slopes("Kumaraswamy", &|[x, loc, scale]| {
            let p = Kumaraswamy::new(scale, &loc.exp()?)?;
            let moments = p.entropy()?.add(&p.mean()?.mul(&p.variance()?)?)?;
            p.log_prob(x)?
                .add(&p.cdf(x)?)?
                .add(&p.icdf(x)?)?
                .add(&moments)
        });
        slopes("ContinuousBernoulli", &|[x, loc, _]| {
            let p = ContinuousBernoulli::from_logits(loc)?;
            let moments = p.entropy()?.add(&p.mean()?.mul(&p.variance()?)?)?;
            p.log_prob(x)?
                .add(&p.cdf(x)?)?
                .add(&p.icdf(x)?)?
                .add(&moments)
        });
        slopes("GeneralizedPareto", &|[x, loc, scale]| {
            let p = GeneralizedPareto::new(&x.full_like(-0.3)?, scale, loc)?;
            p.log_prob(x)?
                .add(&p.cdf(x)?)?
                .add(&p.icdf(x)?)?
                .add(&p.entropy()?)
        });
        slopes("LogisticNormal", &|[x, loc, scale]| {
            let shares = ShardTensor::cat(&[x, x, loc, scale], 0)?.exp()?;
            let shares = shares.narrow(0, 2..6)?;
            LogisticNormal::new(loc, scale)?.log_prob(&shares.div(&shares.sum_all()?)?)
        });
        slopes("Multinomial", &|[x, loc, _]| {
            Multinomial::from_logits(4, loc)?.log_prob(&x.mul_scalar(3.0)?)
        });
        Ok(())
    });
}

/// A sample stays where it is among all while parameters move: it moves by the slope of its share along them, divided by the density.
fn moves<D: Cumulative + Reparametrized>(
    name: &str,
    parameter: &ShardTensor,
    of: impl Fn(&ShardTensor) -> Result<D>,
) -> Result<()> {
    let p = of(parameter)?;
    let x = p.rsample([50])?;
    let found = x.sum_all()?.grad1(parameter, false)?;
    let each = p
        .cdf(&x.detach())?
        .div(&p.log_prob(&x.detach())?.exp()?.detach())?;
    let expected = each.sum_all()?.grad1(parameter, false)?.neg()?;
    assert!(
        found.allclose(&expected, 1e-8, 1e-8, false)?,
        "{name}: {found:?} {expected:?}"
    );
    Ok(())
}

#[test]
fn samples_move_with_their_parameters() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let of = |numbers: [f64; 3]| {
            mesh.distribute(&array![numbers[0], numbers[1], numbers[2]], shard(0))?
                .requires_grad()
        };
        let above = of(SCALE)?;
        moves("Kumaraswamy", &above, |a| Kumaraswamy::new(a, 2.0))?;
        moves("its other exponent", &above, |b| {
            Kumaraswamy::new(&above.full_like(1.5)?, b)
        })?;
        moves("ContinuousBernoulli", &of([2.0, -0.7, 0.02])?, |logits| {
            ContinuousBernoulli::from_logits(logits)
        })?;
        for k in [of([0.4, -0.5, 1.25])?, of([0.02, -0.02, 0.3])?] {
            moves("GeneralizedPareto", &k, |k| {
                GeneralizedPareto::new(&k.zeros_like()?, 2.0, k)
            })?;
        }
        // At a logit of 0 the distribution is uniform, and samples move too.
        let none = of([0.0, 0.0, 1e-7])?;
        let u = ContinuousBernoulli::from_logits(&none)?.rsample([50])?;
        let half = u
            .detach()
            .rsub_scalar(1.0)?
            .mul(&u.detach())?
            .mul_scalar(0.5)?
            .sum(0, false)?;
        assert!(
            u.sum_all()?
                .grad1(&none, false)?
                .allclose(&half, 1e-6, 1e-7, false)?
        );
        let x = of([0.7, 0.1, 0.9])?;
        let log_prob = ContinuousBernoulli::from_logits(&none)?.log_prob(&x.detach())?;
        let slope = log_prob.sum_all()?.grad1(&none, true)?;
        assert!(slope.allclose(&x.sub_scalar(0.5)?, 1e-7, 1e-7, false)?);
        is(
            "twice",
            &slope.sum_all()?.grad1(&none, false)?,
            &[-1.0 / 12.0; 3],
        )?;
        // At a concentration of 0 it is exponential.
        let k = of([0.0, 0.0, 0.0])?;
        let p = GeneralizedPareto::new(&k.detach(), 2.0, &k)?;
        let plain = Exponential::new(&k.detach().full_like(0.5)?)?;
        let found = p.log_prob(&x.detach())?;
        assert!(found.allclose(&plain.log_prob(&x.detach())?, 1e-14, 1e-14, false)?);
        let z = x.detach().mul_scalar(0.5)?;
        let expected = z.square()?.mul_scalar(0.5)?.sub(&z)?;
        assert!(
            found
                .sum_all()?
                .grad1(&k, false)?
                .allclose(&expected, 1e-12, 1e-12, false)?
        );
        let y = p.rsample([50])?;
        let t = y.detach().mul_scalar(0.5)?;
        assert!(y.sum_all()?.grad1(&k, false)?.allclose(
            &t.square()?.sum(0, false)?,
            1e-10,
            1e-10,
            false
        )?);
        // Samples that are quotients of Gamma numbers: by their rate they are that many times as large.
        let rate = of(SCALE_2)?;
        let y = InverseGamma::new(&above.detach(), &rate)?.rsample([9])?;
        let expected = y.detach().sum(0, false)?.div(&rate)?;
        assert!(
            y.sum_all()?
                .grad1(&rate, false)?
                .allclose(&expected, 1e-12, 1e-12, false)?
        );
        let df = of([3.0, 5.0, 8.0])?;
        let f = FisherSnedecor::new(&df, &df)?.rsample([9])?;
        assert!(
            f.sum_all()?
                .grad1(&df, false)?
                .isfinite()?
                .all(.., false)?
                .item()?
                == 1.0
        );
        let loc = of([0.5, -1.0, 2.0])?;
        let shares = LogisticNormal::new(&loc, 0.3)?.rsample([9])?;
        assert!(
            shares
                .select(-1, 0)?
                .sum_all()?
                .grad1(&loc, false)?
                .select(0, 0)?
                .item()?
                > 0.0
        );
        Ok(())
    });
}

#[test]
fn numbers_of_16_bits_and_who_errs() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let half = mesh.full([3], 1.5, shard(0))?.to(DType::BF16)?;
        let wide = half.to(DType::F64)?;
        for [found, expected] in [
            [
                LogisticNormal::new(&half, 0.5)?.sample([2])?,
                LogisticNormal::new(&wide, 0.5)?.sample([2])?,
            ],
            [
                Kumaraswamy::new(&half, 0.5)?.mean()?,
                Kumaraswamy::new(&wide, 0.5)?.mean()?,
            ],
            [
                ContinuousBernoulli::from_logits(&half)?.entropy()?,
                ContinuousBernoulli::from_logits(&wide)?.entropy()?,
            ],
            [
                Multinomial::from_logits(300, &half)?.mean()?,
                Multinomial::from_logits(300, &wide)?.mean()?,
            ],
        ] {
            assert_eq!(found.dtype(), DType::BF16);
            assert_eq!(found.shape(), expected.shape());
            assert!(found.isfinite()?.all(.., false)?.item()? == 1.0);
        }
        let narrow = LogisticNormal::new(&half, 0.5)?
            .log_prob(&mesh.full([4], 0.25, replicate())?.to(DType::BF16)?)?;
        let exact = LogisticNormal::new(&wide, 0.5)?
            .log_prob(&mesh.full([4], 0.25, replicate())?)?
            .item()?;
        assert!(
            (narrow.item()? - exact).abs() < 0.01 * exact.abs(),
            "{narrow:?} {exact}"
        );
        let uniform = |e: shard_tensor::Error| e.class() == ErrorClass::Uniform;
        assert!(LogisticNormal::new(&mesh.full((), 0.0, replicate())?, 1.0).is_err_and(uniform));
        assert!(
            LogisticNormal::new(&wide, 1.0)?
                .log_prob(&wide)
                .is_err_and(uniform)
        );
        assert!(InverseGamma::new(&wide, &mesh.ones([2], replicate())?).is_err_and(uniform));
        assert!(GeneralizedPareto::new(&wide, &half, 0.1).is_err_and(uniform));
        assert!(Multinomial::from_logits(3, &mesh.full((), 0.0, replicate())?).is_err_and(uniform));
        assert!(
            Multinomial::from_logits(3, &wide)?
                .entropy()
                .is_err_and(uniform)
        );
        Ok(())
    });
}
