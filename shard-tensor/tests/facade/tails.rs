//! Distributions with tails, of extremes, counts, mixtures and functions of others: PyTorch's numbers, and the same samples under any layout.

use crate::common::on;
use crate::distributions::{
    Golden, LOC, LOC_2, SCALE, SCALE_2, everywhere, is, pieces, three, values,
};
use shard_tensor::distributions::{
    AffineTransform, Binomial, Categorical, Cauchy, Cumulative, Distribution, ExpTransform,
    Exponential, Geometric, Gumbel, HalfCauchy, HalfNormal, Independent, Laplace, LogNormal,
    MixtureSameFamily, NegativeBinomial, Normal, OneHotCategorical, Poisson,
    RelaxedOneHotCategorical, Reparametrized, SigmoidTransform, StudentT, TanhTransform,
    Transformed, Uniform, VonMises, Weibull, kl_divergence,
};
use shard_tensor::ndarray::{Array2, ArrayD, array};
use shard_tensor::{
    DType, ErrorClass, GradCheck, Launch, Mesh, Result, ShardTensor, replicate, shard,
};
use std::f64::consts::LN_2;

/// What PyTorch says of distributions without closed forms of all: what is empty here is not asked for.
pub(crate) fn check(
    name: &str,
    golden: &Golden,
    p: &impl Distribution,
    x: &ShardTensor,
) -> Result<()> {
    is(
        &format!("{name}: log_prob"),
        &p.log_prob(x)?,
        golden.log_prob,
    )?;
    let found = [
        ("entropy", golden.entropy, p.entropy()),
        ("mean", golden.mean, p.mean()),
        ("variance", golden.variance, p.variance()),
    ];
    for (what, expected, found) in found {
        match (expected.is_empty(), found) {
            (false, found) => is(&format!("{name}: {what}"), &found?, expected)?,
            (true, Err(refused)) => {
                assert_eq!(refused.class(), ErrorClass::Uniform);
                assert!(refused.to_string().contains("closed form"), "{refused}");
            }
            (true, Ok(found)) => panic!("{name} has no {what}: {found:?}"),
        }
    }
    Ok(())
}

/// The share below a value, and the value back.
pub(crate) fn there_and_back(
    name: &str,
    p: &impl Cumulative,
    x: &ShardTensor,
    cdf: &[f64],
) -> Result<()> {
    let below = p.cdf(x)?;
    is(&format!("{name}: cdf"), &below, cdf)?;
    let inside = below
        .gt_scalar(0.0)?
        .logical_and(&below.lt_scalar(1.0 - 1e-5)?)?;
    let back = inside.where_(&p.icdf(&below)?, x)?;
    assert!(
        back.allclose(&x.expand(back.shape())?, 1e-8, 1e-8, false)?,
        "{name}: icdf"
    );
    Ok(())
}

#[test]
fn tails_and_extremes_have_pytorchs_densities_moments_and_shares() {
    everywhere(|mesh| {
        let x = values(mesh)?;
        let above = x.abs()?;
        let [loc, scale] = [three(mesh, LOC)?, three(mesh, SCALE)?];
        let [loc_2, scale_2] = [three(mesh, LOC_2)?, three(mesh, SCALE_2)?];
        let golden = Golden {
            log_prob: &[
                -1.5678165953073842,
                0.09314447015221719,
                -2.611066954642827,
                -2.0448912357936715,
                -2.9381546343965166,
                -2.4664857258317197,
            ],
            entropy: &[2.9364893550774553, 1.1447298858494002, 3.6296365356374007],
            mean: &[f64::NAN, f64::NAN, f64::NAN],
            variance: &[f64::INFINITY, f64::INFINITY, f64::INFINITY],
            divergence: &[
                0.08004270767353638,
                0.48550781578170077,
                0.08004270767353638,
            ],
        };
        let p = Cauchy::new(&loc, &scale)?;
        check("Cauchy", &golden, &p, &x)?;
        there_and_back(
            "Cauchy",
            &p,
            &x,
            &[
                0.45780753684115866,
                0.6211189415908434,
                0.6871670418109987,
                0.7147767125227227,
                0.9346206170443299,
                0.35241638234956674,
            ],
        )?;
        is(
            "Cauchy: divergence",
            &kl_divergence(&p, &Cauchy::new(&loc_2, &scale_2)?)?,
            golden.divergence,
        )?;
        let golden = Golden {
            log_prob: &[
                -0.8962685265509006,
                -1.7014844415037906,
                -2.571846241489546,
                -1.683170676648364,
                0.4400154139943286,
                -1.577593968145679,
            ],
            entropy: &[2.24334217451751, 0.4515827052894549, 2.9364893550774553],
            mean: &[f64::INFINITY, f64::INFINITY, f64::INFINITY],
            variance: &[f64::INFINITY, f64::INFINITY, f64::INFINITY],
            divergence: &[],
        };
        let p = HalfCauchy::new(&scale)?;
        check("HalfCauchy", &golden, &p, &above)?;
        there_and_back(
            "HalfCauchy",
            &p,
            &above,
            &[
                0.12566591637800228,
                0.8275098778138417,
                0.590334470601733,
                0.5397370486110817,
                0.42955342504544536,
                0.10513691342250686,
            ],
        )?;
        let golden = Golden {
            log_prob: &[
                -0.6512564607528918,
                -5.3194969915248365,
                -2.213292530201726,
                -1.2734786829751137,
                0.8405030084751631,
                -1.3382925302017261,
            ],
            entropy: &[1.1312564607528919, -0.6605030084751632, 1.8244036413128368],
            mean: &[1.1968268412042982, 0.19947114020071635, 2.3936536824085963],
            variance: &[0.8176055121729419, 0.022711264227026164, 3.2704220486917674],
            divergence: &[0.21953489189183562, 0.3181471805599453, 0.21953489189183562],
        };
        let p = HalfNormal::new(&scale)?;
        check("HalfNormal", &golden, &p, &above)?;
        there_and_back(
            "HalfNormal",
            &p,
            &above,
            &[
                0.15851941887820598,
                0.9996817828196849,
                0.8175775605482642,
                0.74292570131517,
                0.5762892028332067,
                0.13236766522180732,
            ],
        )?;
        is(
            "HalfNormal: divergence",
            &kl_divergence(&p, &HalfNormal::new(&scale_2)?)?,
            golden.divergence,
        )?;
        let golden = Golden {
            log_prob: &[
                -1.4147625865705538,
                0.31597431508425133,
                -2.2786960743673683,
                -1.654794072225386,
                -3.421935385929129,
                -2.247333559368238,
            ],
            entropy: &[1.9826807730096971, 0.19092130378164218, 2.6758279535696428],
            mean: &[1.3658234973522994, -0.8556960837746168, 3.7316469947045987],
            variance: &[3.7011016504085092, 0.10280837917801415, 14.804406601634037],
            divergence: &[0.18942842696754236, 0.81355389545854, 0.18942842696754236],
        };
        let p = Gumbel::new(&loc, &scale)?;
        check("Gumbel", &golden, &p, &x)?;
        there_and_back(
            "Gumbel",
            &p,
            &x,
            &[
                0.3189787439523134,
                0.5115448336890417,
                0.5984471158550726,
                0.6380561665820187,
                0.9918040246116492,
                0.19229564554796497,
            ],
        )?;
        is(
            "Gumbel: divergence",
            &kl_divergence(&p, &Gumbel::new(&loc_2, &scale_2)?)?,
            golden.divergence,
        )?;
        let golden = Golden {
            log_prob: &[
                -0.6054651081081643,
                -1.8446863382721146,
                -1.8955608134341613,
                -1.5387984414414977,
                -0.08970823478286583,
                -2.2250023551139972,
            ],
            entropy: &[1.4054651081081644, -0.27036284546147815, 1.6940729405589308],
            mean: &[1.5, 0.5, 2.658680776358274],
            variance: &[2.25, 1.2500000000000002, 1.9314165294229655],
            divergence: &[],
        };
        let p = Weibull::new(&scale, &scale_2)?;
        check("Weibull", &golden, &p, &above)?;
        there_and_back(
            "Weibull",
            &p,
            &above,
            &[
                0.18126924692201818,
                0.850036987121365,
                0.8309866845939339,
                0.6780417284623241,
                0.5911582802021959,
                0.027395522883651657,
            ],
        )?;
        let golden = Golden {
            log_prob: &[
                -1.7422015725406341,
                0.18295345846264058,
                -2.3758018152532534,
                -2.334129616244436,
                -3.1839050876802513,
                -2.259586553638692,
            ],
            entropy: &[4.072192524212019, 0.7633651067247585, 2.8720898605314016],
            mean: &[f64::NAN, -1.0, 2.0],
            variance: &[f64::NAN, f64::INFINITY, 27.0],
            divergence: &[],
        };
        let p = StudentT::new(&three(mesh, [0.5, 1.5, 3.0])?, &loc, &scale)?;
        check("StudentT", &golden, &p, &x)
    });
}

#[test]
fn shares_below_a_value_are_pytorchs() {
    everywhere(|mesh| {
        let x = values(mesh)?;
        let [loc, scale] = [three(mesh, LOC)?, three(mesh, SCALE)?];
        there_and_back(
            "Normal",
            &Normal::new(&loc, &scale)?,
            &x,
            &[
                0.446964883376386,
                0.6554217416103241,
                0.7475074624530771,
                0.7881446014166033,
                0.999999206671848,
                0.3085375387259869,
            ],
        )?;
        there_and_back(
            "LogNormal",
            &LogNormal::new(&loc, &scale)?,
            &x.abs()?,
            &[
                0.12798207613511686,
                0.9998272523578626,
                0.4189546160417625,
                0.5081453702051519,
                0.007389461779196249,
                0.18466856142006366,
            ],
        )?;
        there_and_back(
            "Laplace",
            &Laplace::new(&loc, &scale)?,
            &x,
            &[
                0.43758665952147374,
                0.6648399769821803,
                0.743291440483704,
                0.7753355179413892,
                0.99588512647549,
                0.3032653298563167,
            ],
        )?;
        there_and_back(
            "Uniform",
            &Uniform::new(&loc, &loc.add(&scale)?)?,
            &x,
            &[
                0.0,
                0.3999999999999999,
                0.6666666666666666,
                0.7999999999999999,
                1.0,
                0.0,
            ],
        )?;
        there_and_back(
            "Exponential",
            &Exponential::new(&scale)?,
            &x.abs()?,
            &[
                0.36237184837822667,
                0.20148378124062294,
                0.9999938557876467,
                0.9219183339988468,
                0.048770575499285984,
                0.7768698398515702,
            ],
        )?;
        // Nothing is below 0, and a small share keeps its digits.
        let none = [
            LogNormal::new(&loc, &scale)?.cdf(&x.abs()?.neg()?)?,
            Exponential::new(&scale)?.cdf(&x.abs()?.neg()?)?,
        ];
        for none in none {
            is("below 0", &none, &[0.0; 6])?;
        }
        let far = Normal::new(&loc.zeros_like()?, 1.0)?.cdf(&loc.full_like(-20.0)?)?;
        let expected = 2.753_624_118_606_233_6e-89;
        assert!(
            far.to_array::<f64>()?
                .iter()
                .all(|far| (far / expected - 1.0).abs() < 1e-10)
        );
        Ok(())
    });
}

#[test]
fn counts_have_pytorchs_probabilities_and_moments() {
    everywhere(|mesh| {
        let k = mesh.distribute(&array![[0.0, 3.0, 2.0], [1.0, 0.0, 7.0]], replicate())?;
        let of = |numbers| three(mesh, numbers);
        let golden = Golden {
            log_prob: &[
                -0.3,
                -1.7123179275482192,
                -19.25539553082354,
                -1.5039728043259362,
                -2.0,
                -10.99303058698801,
            ],
            entropy: &[],
            mean: &[0.3, 2.0, 25.0],
            variance: &[0.3, 2.0, 25.0],
            divergence: &[0.33880815870221914, 1.2725887222397811, 0.5785887828552427],
        };
        let p = Poisson::new(&of([0.3, 2.0, 25.0])?)?;
        check("Poisson", &golden, &p, &k)?;
        let q = Poisson::new(&of([1.0, 0.5, 20.0])?)?;
        is(
            "Poisson: divergence",
            &kl_divergence(&p, &q)?,
            golden.divergence,
        )?;
        let (probs, others) = (of([0.2, 0.5, 0.9])?, of([0.3, 0.1, 0.95])?);
        let golden = Golden {
            log_prob: &[
                -1.6094379124341003,
                -2.772588722239781,
                -4.710530701645918,
                -1.83258146374831,
                -LN_2,
                -16.223456166616145,
            ],
            entropy: &[2.5020121176909393, 1.3862943611198906, 0.36120330376827575],
            mean: &[4.0, 1.0, 0.11111111111111116],
            variance: &[20.0, 2.0, 0.12345679012345684],
            divergence: &[0.128660462389926, 1.0216512475319812, 0.02294913212527394],
        };
        let (p, q) = (
            Geometric::from_probs(&probs)?,
            Geometric::from_logits(&others.logit(-1.0)?)?,
        );
        check("Geometric", &golden, &p, &k)?;
        is(
            "Geometric: divergence",
            &kl_divergence(&p, &q)?,
            golden.divergence,
        )?;
        let golden = Golden {
            entropy: &[],
            ..Golden {
                log_prob: &[
                    -1.7851484105136777,
                    -1.5198257537444126,
                    -10.694027079104725,
                    -1.0920012299537323,
                    -5.545177444479562,
                    -0.9606671609189945,
                ],
                entropy: &[1.500385558124227, 1.763503329079248, 1.1548072846716013],
                mean: &[1.6, 4.0, 7.2],
                variance: &[1.2800000000000002, 2.0, 0.7199999999999999],
                divergence: &[0.20585673982388153, 4.086604990127925, 0.16523375130196882],
            }
        };
        let trials = of([8.0; 3])?;
        let (p, q) = (
            Binomial::from_probs(&trials, &probs)?,
            Binomial::from_probs(&trials, &others)?,
        );
        check("Binomial", &golden, &p, &k)?;
        is(
            "Binomial: divergence",
            &kl_divergence(&p, &q)?,
            golden.divergence,
        )?;
        let more = Binomial::from_probs(&of([9.0; 3])?, &others)?;
        is(
            "of more trials",
            &kl_divergence(&more, &q)?,
            &[f64::INFINITY; 3],
        )?;
        is(
            "of fewer trials",
            &kl_divergence(&q, &more)?,
            &[f64::NAN; 3],
        )?;
        let golden = Golden {
            log_prob: &[
                -0.48703849209005334,
                -3.180014076471224,
                -13.685761171973617,
                -1.6542626568301053,
                -0.6265233750364457,
                -9.763021705036738,
            ],
            entropy: &[],
            mean: &[0.8243606353500641, 0.7357588823428847, 59.1124487914452],
            variance: &[2.183501549579587, 1.00642944881611, 495.89764905659916],
            divergence: &[],
        };
        let p = NegativeBinomial::from_logits(&of([0.5, 2.0, 8.0])?, &of(LOC)?)?;
        check("NegativeBinomial", &golden, &p, &k)?;
        let p = NegativeBinomial::from_probs(&of([0.5, 2.0, 8.0])?, &of(LOC)?.sigmoid()?)?;
        check("NegativeBinomial of probabilities", &golden, &p, &k)
    });
}

/// A row for each of two distributions, in pieces.
fn rows(mesh: &Mesh, dim: usize, numbers: &Array2<f64>) -> Result<ShardTensor> {
    mesh.distribute(numbers, pieces(mesh, dim))
}

const LOGITS: [[f64; 3]; 2] = [[0.5, -1.0, 2.0], [1.0, 0.0, 0.5]];

#[test]
fn mixtures_rows_and_what_is_transformed_have_pytorchs_densities() {
    everywhere(|mesh| {
        let (x, scale) = (values(mesh)?, three(mesh, SCALE)?);
        let logits = array![LOGITS[0], LOGITS[1]];
        for dim in [0, 1] {
            let weights = || Categorical::from_logits(&rows(mesh, dim, &logits)?);
            let golden = Golden {
                log_prob: &[-2.28239026633217, -1.6992805543410987],
                entropy: &[],
                mean: &[3.1597739400554956, 1.0518793522990304],
                variance: &[10.100059750264425, 4.357519162759793],
                divergence: &[],
            };
            let p = MixtureSameFamily::new(&weights()?, Normal::new(&x, &scale)?)?;
            check(
                "MixtureSameFamily",
                &golden,
                &p,
                &mesh.distribute(&array![0.7, -0.2], replicate())?,
            )?;
            let points = ShardTensor::stack(&[x.clone(), x.add_scalar(1.0)?], -1)?
                .redistribute(pieces(mesh, dim))?;
            let golden = Golden {
                log_prob: &[-4.38497194184502, -3.028662965762455],
                entropy: &[],
                mean: &[
                    3.1597739400554956,
                    4.159773940055496,
                    1.0518793522990304,
                    2.0518793522990304,
                ],
                variance: &[
                    2.8828385208164424,
                    2.882838520816443,
                    0.6915300787164707,
                    0.6915300787164707,
                ],
                divergence: &[],
            };
            let p = MixtureSameFamily::new(
                &weights()?,
                Independent::new(Normal::new(&points, 0.5)?, 1)?,
            )?;
            check(
                "MixtureSameFamily of vectors",
                &golden,
                &p,
                &rows(mesh, dim, &array![[0.1, 0.2], [0.3, 0.4]])?,
            )?;

            let golden = Golden {
                log_prob: &[-3.241311296657157, -1.1802696706417346],
                entropy: &[0.6215846046792746, 1.0201913367268314],
                mean: &[
                    0.1752903921400367,
                    0.039112573270687456,
                    0.7855970345892759,
                    0.506480391055654,
                    0.1863237232258476,
                    0.3071958857184984,
                ],
                variance: &[
                    0.14456367056342886,
                    0.03758277988283256,
                    0.16843433383381196,
                    0.2499580045317658,
                    0.15160719338910533,
                    0.21282657351612563,
                ],
                divergence: &[0.9154599636738587, 0.09964225266857782],
            };
            let of = |logits: &ShardTensor| OneHotCategorical::from_logits(logits);
            let own = rows(mesh, dim, &logits)?;
            let (p, q) = (of(&own)?, of(&own.flip(1)?)?);
            check(
                "OneHotCategorical",
                &golden,
                &p,
                &rows(mesh, dim, &array![[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])?,
            )?;
            is(
                "OneHotCategorical: divergence",
                &kl_divergence(&p, &q)?,
                golden.divergence,
            )?;
            let golden = Golden {
                log_prob: &[-1.2209317113400582, -0.505472194563878],
                entropy: &[],
                mean: &[],
                variance: &[],
                divergence: &[],
            };
            let p = RelaxedOneHotCategorical::from_logits(0.7, &own)?;
            check(
                "RelaxedOneHotCategorical",
                &golden,
                &p,
                &rows(mesh, dim, &array![[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]])?,
            )?;

            let y = rows(mesh, dim, &array![[0.3, -0.9, 0.99], [0.7, 0.2, 0.5]])?;
            let golden = Golden {
                log_prob: &[0.07622474506859422, -2.0270311243247288],
                entropy: &[],
                mean: &[],
                variance: &[],
                divergence: &[],
            };
            let p = Transformed::new(
                Independent::new(Normal::new(&x, &scale)?, 1)?,
                TanhTransform,
            );
            check("vectors that are bounded", &golden, &p, &y)?;
            let normal = Normal::new(&three(mesh, LOC)?, &scale)?;
            let golden = Golden {
                log_prob: &[
                    -1.238155802104471,
                    0.34415706399897217,
                    1.876253650800356,
                    -0.6810390164144782,
                    -11.064346950216175,
                    -1.8467861195802753,
                ],
                entropy: &[],
                mean: &[],
                variance: &[],
                divergence: &[],
            };
            check(
                "Tanh",
                &golden,
                &Transformed::new(normal.clone(), TanhTransform),
                &y,
            )?;
            let golden = Golden {
                log_prob: &[
                    -0.1671362318490437,
                    -78.90265854681505,
                    2.223522642382,
                    0.20944059498971357,
                    1.1061506241993324,
                    -0.853478682975114,
                ],
                entropy: &[],
                mean: &[],
                variance: &[],
                divergence: &[],
            };
            check(
                "Sigmoid",
                &golden,
                &Transformed::new(normal.clone(), SigmoidTransform),
                &y.abs()?,
            )?;
            let golden = Golden {
                log_prob: &[
                    -0.7656582409607664,
                    -24.346290298075985,
                    -4.278365536392533,
                    -1.8552403567668136,
                    -9.115325290675827,
                    -2.4677164443660833,
                ],
                entropy: &[],
                mean: &[],
                variance: &[],
                divergence: &[],
            };
            let affine = AffineTransform::new(&three(mesh, LOC_2)?, &three(mesh, SCALE_2)?)?;
            let p = Transformed::new(Transformed::new(normal, affine), ExpTransform);
            check("two transforms", &golden, &p, &x.abs()?)?;
        }
        Ok(())
    });
}

/// Samples of all kinds.
fn drawn(mesh: &Mesh, dim: usize) -> Result<Vec<ArrayD<f64>>> {
    let [loc, scale] = [three(mesh, LOC)?, three(mesh, SCALE)?];
    let loc = loc.expand([4, 3])?.redistribute(pieces(mesh, dim))?;
    let size = loc.square()?;
    let parts = Normal::new(&loc, &scale)?;
    let samples = [
        Cauchy::new(&loc, &scale)?.sample([5])?,
        HalfCauchy::new(&size)?.sample([5])?,
        HalfNormal::new(&size)?.rsample([5])?,
        Gumbel::new(&loc, &scale)?.sample([5])?,
        Weibull::new(&size, &scale)?.sample([5])?,
        StudentT::new(&size, &loc, &scale)?.sample([5])?,
        Poisson::new(&size.mul_scalar(10.0)?)?.sample([5])?,
        Binomial::from_logits(&size.mul_scalar(30.0)?.round()?, &loc)?.sample([5])?,
        NegativeBinomial::from_logits(&size, &loc)?.sample([5])?,
        Geometric::from_logits(&loc)?.sample([5])?,
        OneHotCategorical::from_logits(&loc)?.sample([5])?,
        RelaxedOneHotCategorical::from_logits(0.5, &loc)?.sample([5])?,
        MixtureSameFamily::new(&Categorical::from_logits(&scale)?, parts.clone())?.sample([5])?,
        Transformed::new(parts, TanhTransform).sample([5])?,
        VonMises::new(&loc, &size)?.sample([5])?,
    ];
    samples[0].expect_layout(loc.expand([5, 4, 3])?.layout())?; // as the larger parameter lies
    let counts = ShardTensor::stack(&samples[6..10], 0)?;
    assert!(counts.eq(&counts.round()?.abs()?)?.all(.., false)?.item()? == 1.0);
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
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-13 * a.abs().max(1.0);
            assert!(one.iter().zip(many).all(near), "{one} {many}");
        }
    }
}

/// Shares of so many samples up to some numbers are the probabilities of these: within four deviations of such a share.
fn shares(
    name: &str,
    samples: &ShardTensor,
    up_to: &[f64],
    expected: impl Fn(f64) -> f64,
) -> Result<()> {
    let n = samples.numel() as f64;
    for &x in up_to {
        let (found, expected) = (
            samples.le_scalar(x)?.to(DType::F64)?.mean_all()?.item()?,
            expected(x),
        );
        let deviation = (expected * (1.0 - expected).max(0.0) / n).sqrt();
        assert!(
            (found - expected).abs() < 4.0 * deviation + 1e-9,
            "{name}: {found} of {expected} up to {x}"
        );
    }
    Ok(())
}

#[test]
fn samples_have_their_distributions_shares() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let many = |value: f64| mesh.full([12000], value, shard(0));
        let number = |x: f64| mesh.full((), x, replicate());
        macro_rules! smooth {
            ($p:expr, $up_to:expr) => {{
                let p = $p;
                let cdf = |x: f64| {
                    p.cdf(&number(x).unwrap())
                        .unwrap()
                        .select(0, 0)
                        .unwrap()
                        .item()
                        .unwrap()
                };
                shares(stringify!($p), &p.sample([])?, &$up_to, cdf)?;
            }};
        }
        smooth!(Cauchy::new(&many(1.0)?, 2.0)?, [-8.0, 0.0, 1.0, 2.0, 30.0]);
        smooth!(HalfCauchy::new(&many(2.0)?)?, [0.1, 2.0, 30.0]);
        smooth!(HalfNormal::new(&many(2.0)?)?, [0.1, 2.0, 4.0]);
        smooth!(Gumbel::new(&many(1.0)?, 2.0)?, [-2.0, 1.0, 6.0]);
        smooth!(Weibull::new(&many(1.0)?, 0.7)?, [0.1, 1.0, 3.0]);
        // By the probabilities of each number up to the last.
        macro_rules! counted {
            ($p:expr, $up_to:expr) => {{
                let p = $p;
                let up_to: [usize; 3] = $up_to;
                let k = mesh.arange(up_to[2] + 1, replicate())?.unsqueeze(1)?;
                let each = p.log_prob(&k)?.narrow(1, 0..1)?.exp()?.to_array::<f64>()?;
                let cdf = |x: f64| each.iter().take(x as usize + 1).sum::<f64>();
                shares(
                    stringify!($p),
                    &p.sample([])?,
                    &up_to.map(|k| k as f64),
                    cdf,
                )?;
            }};
        }
        counted!(Poisson::new(&many(0.0)?)?, [0, 1, 2]);
        counted!(Poisson::new(&many(0.7)?)?, [0, 1, 3]);
        counted!(Poisson::new(&many(9.9)?)?, [5, 10, 14]);
        counted!(Poisson::new(&many(10.1)?)?, [5, 10, 14]);
        counted!(Poisson::new(&many(333.0)?)?, [310, 333, 350]);
        counted!(Binomial::from_probs(&many(5.0)?, 0.3)?, [0, 1, 5]);
        counted!(Binomial::from_probs(&many(100.0)?, 0.3)?, [25, 30, 34]);
        counted!(Binomial::from_probs(&many(40.0)?, 0.9)?, [33, 36, 40]);
        counted!(Binomial::from_probs(&many(400.0)?, 0.9)?, [350, 360, 366]);
        counted!(NegativeBinomial::from_probs(&many(2.5)?, 0.6)?, [0, 3, 8]);
        counted!(Geometric::from_probs(&many(0.3)?)?, [0, 2, 5]);
        counted!(Geometric::from_probs(&many(1.0)?)?, [0, 1, 2]);
        // A normal number by a normal number's root.
        let t = StudentT::new(&many(1.0)?, 1.0, 2.0)?.sample([])?;
        let cauchy = Cauchy::new(&number(1.0)?, 2.0)?;
        shares("StudentT", &t, &[-8.0, 0.0, 2.0], |x| {
            cauchy.cdf(&number(x).unwrap()).unwrap().item().unwrap()
        })?;
        let weights = Categorical::from_probs(&mesh.distribute(&array![0.25, 0.75], replicate())?)?;
        let parts = Normal::new(
            &mesh
                .distribute(&array![-50.0, 50.0], replicate())?
                .expand([12000, 2])?,
            1.0,
        )?;
        let mixture = MixtureSameFamily::new(&weights, parts)?.sample([])?;
        shares("MixtureSameFamily", &mixture, &[-100.0, 0.0, 50.0], |x| {
            [0.0, 0.25, 0.625][(x / 50.0 + 2.0) as usize - usize::from(x >= 0.0)]
        })
    });
}

#[test]
fn gradients_are_slopes() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let of = |numbers: [f64; 3]| {
            let numbers = mesh.distribute(
                &array![numbers[0], numbers[1], numbers[2]],
                shard(0).sizes([2, 0, 1]),
            )?;
            numbers.requires_grad()
        };
        let (x, loc, scale) = (of([0.7, 0.1, 1.9])?, of(LOC)?, of(SCALE)?);
        let inputs = [&x, &loc, &scale];
        let slopes = |name: &str, f: &dyn Fn([&ShardTensor; 3]) -> Result<ShardTensor>| {
            let found = ctx.gradcheck(
                |t: &[ShardTensor]| Ok(vec![f([&t[0], &t[1], &t[2]])?]),
                &inputs,
                GradCheck::default(),
            );
            assert!(found.is_ok(), "{name}: {found:?}");
        };
        slopes("Cauchy", &|[x, loc, scale]| {
            Cauchy::new(loc, scale)?.log_prob(x)
        });
        slopes("cdf of Cauchy", &|[x, loc, scale]| {
            Cauchy::new(loc, scale)?.cdf(x)
        });
        slopes("cdf of Normal", &|[x, loc, scale]| {
            Normal::new(loc, scale)?.cdf(x)
        });
        slopes("VonMises", &|[x, loc, scale]| {
            let p = VonMises::new(loc, scale)?;
            p.log_prob(x)?.add(&p.entropy()?.mul(&p.variance()?)?)
        });
        slopes("HalfCauchy", &|[x, _, scale]| {
            HalfCauchy::new(scale)?.log_prob(x)
        });
        slopes("HalfNormal", &|[x, _, scale]| {
            HalfNormal::new(scale)?.log_prob(x)
        });
        slopes("Gumbel", &|[x, loc, scale]| {
            Gumbel::new(loc, scale)?.log_prob(x)
        });
        slopes("Weibull", &|[x, loc, scale]| {
            Weibull::new(&loc.square()?, scale)?.log_prob(x)
        });
        slopes("StudentT", &|[x, loc, scale]| {
            StudentT::new(scale, loc, scale)?.log_prob(x)
        });
        slopes("Poisson", &|[x, _, scale]| Poisson::new(scale)?.log_prob(x));
        slopes("Geometric", &|[x, loc, _]| {
            Geometric::from_logits(loc)?.log_prob(x)
        });
        slopes("NegativeBinomial", &|[x, loc, scale]| {
            NegativeBinomial::from_logits(scale, loc)?.log_prob(x)
        });
        slopes("Binomial", &|[x, loc, _]| {
            Binomial::from_logits(&x.full_like(4.0)?, loc)?.log_prob(x)
        });
        slopes("MixtureSameFamily", &|[x, loc, scale]| {
            MixtureSameFamily::new(&Categorical::from_logits(loc)?, Normal::new(loc, scale)?)?
                .log_prob(&x.sum(0, false)?)
        });
        slopes("Transformed", &|[x, loc, scale]| {
            let p = Transformed::new(Normal::new(loc, scale)?, AffineTransform::new(scale, loc)?);
            Transformed::new(p, SigmoidTransform).log_prob(&x.sigmoid()?)
        });
        // A sample moves with its parameters.
        let z = Gumbel::new(&loc, &scale)?.rsample([6])?;
        let by_loc = z.sum_all()?.grad1(&loc, false)?;
        is("by loc", &by_loc, &[6.0; 3])?;
        let p = Transformed::new(Normal::new(&loc, &scale)?, TanhTransform);
        let (y, log_prob) = p.rsample_with_log_prob([6])?;
        assert!(log_prob.allclose(&p.log_prob(&y)?, 1e-9, 1e-9, false)?);
        let slope = y.sum_all()?.grad1(&loc, false)?;
        let expected = y.detach().square()?.rsub_scalar(1.0)?.sum(0, false)?;
        assert!(slope.allclose(&expected, 1e-12, 1e-12, false)?);
        assert!(
            !p.sample([])?.is_tracked()
                && !StudentT::new(&scale, &loc, &scale)?
                    .sample([])?
                    .is_tracked()
        );
        Ok(())
    });
}
