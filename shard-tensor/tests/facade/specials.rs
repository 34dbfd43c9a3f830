//! Ops of NaN, infinities, zeros, ties and ends against PyTorch's numbers (`xtests/data/special.json`): values and gradients, on one rank and on
//! three, of which one has nothing.

use ndarray::{ArrayD, IxDyn};
use serde_json::Value;
use shard_tensor::distributions::{Bernoulli, Beta, Binomial, Distribution, Gamma};
use shard_tensor::{
    ClassLoss, DType, DeviceKind, Error, Launch, LossReduction, Mesh, Placements, PoolOptions,
    Result, SampleEdge, SampleMode, Sampling, ScatterReduce, ShardTensor, replicate, shard,
};

type Op = fn(&[ShardTensor]) -> Result<ShardTensor>;

const NONE: LossReduction = LossReduction::None;
const INF: f64 = f64::INFINITY;

fn sampling(edge: SampleEdge) -> Sampling {
    Sampling {
        mode: SampleMode::Linear,
        edge,
        aligned: true,
    }
}

fn pool() -> PoolOptions {
    PoolOptions::new(3).stride(2).padding(1).ceil_mode(true)
}

/// Ops that are called as they are named, of one tensor and of two.
macro_rules! named {
    ($($one:ident)*; $($two:ident)*) => {
        &[$((stringify!($one), |x| x[0].$one()),)* $((stringify!($two), |x| x[0].$two(&x[1])),)*]
    };
}

const NAMED: &[(&str, Op)] = named! {
    abs exp expm1 log log1p sqrt sin cos tanh sigmoid relu round floor sign square reciprocal atan asinh erf selu hardsigmoid log_sigmoid;
    add mul div pow maximum minimum fmod remainder xlogy logaddexp hypot atan2 copysign nextafter
};

const OPS: &[(&str, Op)] = &[
    ("igamma", |x| x[0].detach().igamma(&x[1])),
    ("igammac", |x| x[0].detach().igammac(&x[1])),
    ("zeta", |x| x[0].detach().zeta(&x[1])),
    ("polygamma 2", |x| x[0].polygamma(2.0)),
    ("polygamma 3", |x| x[0].polygamma(3.0)),
    ("polygamma 6", |x| x[0].polygamma(6.0)),
    ("modified_bessel_k0", |x| x[0].detach().modified_bessel_k0()),
    ("modified_bessel_k1", |x| x[0].detach().modified_bessel_k1()),
    ("scaled_modified_bessel_k0", |x| {
        x[0].detach().scaled_modified_bessel_k0()
    }),
    ("scaled_modified_bessel_k1", |x| {
        x[0].detach().scaled_modified_bessel_k1()
    }),
    ("spherical_bessel_j0", |x| {
        x[0].detach().spherical_bessel_j0()
    }),
    ("frexp", |x| x[0].frexp().map(|pair| pair.0)),
    ("elu", |x| x[0].elu(1.0)),
    ("celu", |x| x[0].celu(1.0)),
    ("leaky_relu", |x| x[0].leaky_relu(0.01)),
    ("softplus", |x| x[0].softplus(1.0, 20.0)),
    ("gelu_erf", |x| x[0].gelu()),
    ("threshold", |x| x[0].threshold(1.0, 9.0)),
    ("clamp", |x| x[0].clamp(-0.5, 3.0)),
    ("clamp to no number", |x| x[0].clamp(f64::NAN, 3.0)),
    ("clamp crossed", |x| x[0].clamp(2.0, -1.0)),
    ("pow_scalar 0.0", |x| x[0].pow_scalar(0.0)),
    ("pow_scalar 0.5", |x| x[0].pow_scalar(0.5)),
    ("pow_scalar -0.5", |x| x[0].pow_scalar(-0.5)),
    ("pow_scalar 1.5", |x| x[0].pow_scalar(1.5)),
    ("pow_scalar 2.0", |x| x[0].pow_scalar(2.0)),
    ("pow_scalar -1.0", |x| x[0].pow_scalar(-1.0)),
    ("sum", |x| x[0].sum(1, false)),
    ("mean", |x| x[0].mean(1, false)),
    ("nansum", |x| x[0].nansum(1, false)),
    ("amax", |x| x[0].amax(1, false)),
    ("amin", |x| x[0].amin(1, false)),
    ("cumsum", |x| x[0].cumsum(1)),
    ("logsumexp", |x| x[0].logsumexp(1, false)),
    ("softmax", |x| x[0].softmax(1)),
    ("log_softmax", |x| x[0].log_softmax(1)),
    ("cummax", |x| x[0].cummax(1).map(|pair| pair.0)),
    ("max", |x| x[0].max(1, false).map(|pair| pair.0)),
    ("min", |x| x[0].min(1, false).map(|pair| pair.0)),
    ("prod", |x| x[0].prod(1, false)),
    ("cumprod", |x| x[0].cumprod(1)),
    ("var", |x| x[0].var(1, 1.0, false)),
    ("std", |x| x[0].std(1, 1.0, false)),
    ("var of one", |x| x[0].var(1, 1.0, false)),
    ("norm 0.0", |x| x[0].norm(0.0, 1, false)),
    ("norm 1.0", |x| x[0].norm(1.0, 1, false)),
    ("norm 2.0", |x| x[0].norm(2.0, 1, false)),
    ("norm inf", |x| x[0].norm(INF, 1, false)),
    ("norm -inf", |x| x[0].norm(-INF, 1, false)),
    ("normalize", |x| x[0].normalize(2.0, 1, 1e-12)),
    ("sort", |x| x[0].sort(1, false).map(|pair| pair.0)),
    ("median", |x| x[0].median(1).map(|pair| pair.0.detach())),
    ("cosine_similarity", |x| {
        x[0].cosine_similarity(&x[1], 1, 1e-8)
    }),
    ("layer_norm", |x| x[0].layer_norm(1, None, None, 1e-5)),
    ("gradient", |x| x[0].gradient(1.0, 0, 1)),
    ("mse", |x| x[0].mse_loss_by(&x[1], NONE)),
    ("l1", |x| x[0].l1_loss(&x[1], NONE)),
    ("huber", |x| x[0].huber_loss(&x[1], 2.5, NONE)),
    ("smooth_l1", |x| x[0].smooth_l1_loss(&x[1], 0.0, NONE)),
    ("bce", |x| {
        x[0].binary_cross_entropy(&x[1].detach(), None, NONE)
    }),
    ("bce of logits", |x| {
        x[0].binary_cross_entropy_with_logits(&x[1].detach(), None, None, NONE)
    }),
    ("cross_entropy 0", of_classes),
    ("cross_entropy 1", of_classes),
    ("cross_entropy, smooth", |x| {
        x[0].cross_entropy(&x[1], &ClassLoss::new().smoothing(0.1))
    }),
    ("cross_entropy of none", |x| {
        x[0].cross_entropy(&x[1], &ClassLoss::new())
    }),
    ("kl_div", |x| x[0].kl_div(&x[1].detach(), false, NONE)),
    ("where", |x| x[1].where_(&x[0].log()?, 0.0)),
    ("masked_fill", |x| x[0].masked_fill(&x[1], 3.0)),
    ("scatter_reduce amax", |x| {
        x[0].scatter_reduce(0, &x[1], &x[2], ScatterReduce::Max, true)
    }),
    ("scatter_reduce amin", |x| {
        x[0].scatter_reduce(0, &x[1], &x[2], ScatterReduce::Min, true)
    }),
    ("addmm, of no product", |x| {
        x[0].addmm(&x[1].detach(), &x[2].detach(), 1.0, 0.0)
    }),
    ("addmm, of products alone", |x| {
        x[0].detach().addmm(&x[1], &x[2], 0.0, 1.0)
    }),
    ("grid_sample, zeros", |x| {
        x[0].grid_sample(&x[1].detach(), sampling(SampleEdge::Zeros))
    }),
    ("grid_sample, border", |x| {
        x[0].grid_sample(&x[1].detach(), sampling(SampleEdge::Border))
    }),
    ("densities of Gamma at its end", |x| {
        Gamma::new(&x[0], 2.0)?.log_prob(&x[1].detach())
    }),
    ("densities of Beta at its ends", |x| {
        Beta::new(&x[0], &x[1])?.log_prob(&x[2].detach())
    }),
    ("Bernoulli at its ends", |x| {
        Bernoulli::from_probs(&x[0])?.log_prob(&x[1].detach())
    }),
    ("entropy of Bernoulli at its ends", |x| {
        Bernoulli::from_probs(&x[0])?.entropy()
    }),
    ("Binomial at its ends", |x| {
        let three = x[0].full_like(3.0)?;
        Binomial::from_probs(&three, &x[0])?.log_prob(&x[1].detach())
    }),
    ("renorm", |x| x[0].renorm(2.0, 0, 3.0)),
    ("batch_norm, of given statistics", |x| {
        let given = |of: [f64; 4]| x[0].mesh().distribute(&ndarray::arr1(&of), replicate());
        let (mean, var) = (given([0.5, 0.0, 1.0, 0.0])?, given([1.0, 4.0, 0.25, 1.0])?);
        let weight = x[1].detach();
        let y = x[0].batch_norm(Some((&mean, &var)), [Some(&weight), None], false, 0.1, 1e-5);
        Ok(y?.0)
    }),
    ("max_pool", |x| x[0].max_pool(pool())),
    ("avg_pool", |x| x[0].avg_pool(pool())),
];

fn of_classes(x: &[ShardTensor]) -> Result<ShardTensor> {
    x[0].cross_entropy(&x[1], &ClassLoss::new().reduction(NONE))
}

/// Numbers, of which those that JSON has no word for are texts.
fn numbers(list: &Value) -> Vec<f64> {
    let number = |x: &Value| match x.as_str() {
        Some(text) => text.parse().unwrap(),
        None => x.as_f64().unwrap(),
    };
    list.as_array().unwrap().iter().map(number).collect()
}

/// Whole on one rank; on three the first has all rows but one, and the second none.
fn placed(ranks: usize, shape: &[usize]) -> Placements {
    match (ranks, shape.first()) {
        (3, Some(&n)) => shard(0).sizes([n - 1, 0, 1]).into(),
        _ => replicate().into(),
    }
}

fn operand(mesh: &Mesh, of: &Value, ranks: usize) -> Result<ShardTensor> {
    let shape = numbers(&of["shape"]);
    let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
    let at = placed(ranks, &shape);
    let array = ArrayD::from_shape_vec(IxDyn(&shape), numbers(&of["of"]))?;
    let x = mesh.distribute(&array, at)?;
    match of["type"].as_str() {
        Some("float64") => x.requires_grad(),
        Some("bool") => x.to(DType::Bool),
        _ => x.to(DType::I64),
    }
}

fn alike(found: &[f64], exact: &[f64]) -> bool {
    let same = |(a, b): (&f64, &f64)| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-8 * b.abs() + 1e-15
    };
    found.len() == exact.len() && found.iter().zip(exact).all(same)
}

/// What an op gives, and its slopes.
fn found(inputs: &[ShardTensor], op: Op) -> Result<Vec<Vec<f64>>> {
    let y = op(inputs)?;
    let read = |x: &ShardTensor| {
        let x = x.detach().to(DType::F64)?.to_array::<f64>()?;
        Ok::<Vec<f64>, Error>(x.into_iter().collect())
    };
    let mut all = vec![read(&y)?];
    if y.is_tracked() {
        let flat = y.flatten()?;
        let steps = y.mesh().arange(y.numel(), Placements::replicated())?;
        let weight = steps
            .remainder_scalar(7.0)?
            .mul_scalar(0.25)?
            .add_scalar(0.5)?;
        let tracked: Vec<_> = inputs.iter().filter(|x| x.is_tracked()).collect();
        for (x, slope) in tracked
            .iter()
            .zip(flat.mul(&weight)?.sum_all()?.grad(&tracked, false)?)
        {
            all.push(match slope {
                Some(slope) => read(&slope)?,
                None => vec![0.0; x.numel()],
            });
        }
    }
    Ok(all)
}

/// What differs from PyTorch's numbers, of some cases, on so many ranks that have a device of this kind.
fn differing(ranks: usize, device: DeviceKind, which: impl Fn(&str) -> bool + Sync) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtests/data/special.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = fixture["cases"].as_object().unwrap();
    let ops = [NAMED, OPS].concat();
    assert_eq!(ops.len(), cases.len());
    let launch = Launch::new(ranks).dtype(DType::F64).device(device);
    let wrong = launch.run(|ctx| {
        let mesh = ctx.mesh_of(ranks)?;
        let mut wrong = Vec::new();
        for &(name, op) in ops.iter().filter(|(name, _)| which(name)) {
            let case = &cases[name];
            let inputs = numbers(&case["inputs"]).into_iter();
            let inputs = inputs.map(|i| operand(&mesh, &fixture["operands"][i as usize], ranks));
            let found = found(&inputs.collect::<Result<Vec<_>>>()?, op)?;
            let slopes = case["gradients"].as_array().unwrap().iter();
            let exact = std::iter::once(&case["y"]).chain(slopes).map(numbers);
            for (of, (found, exact)) in found.iter().zip(exact).enumerate() {
                if !alike(found, &exact) {
                    wrong.push(format!(
                        "{name}, {of}, on {ranks}: {found:?}, not {exact:?}"
                    ));
                }
            }
        }
        Ok(wrong)
    });
    wrong.unwrap().swap_remove(0)
}

#[test]
fn special_numbers_give_what_they_give_in_pytorch() {
    for ranks in [1, 3] {
        let wrong = differing(ranks, DeviceKind::Host, |_| true);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// GPUs have texts of their own, and take formulas step by step.
#[cfg(feature = "cuda-emulated")]
#[test]
fn special_numbers_give_the_same_on_gpus() {
    let names = [
        "huber",
        "copysign",
        "nextafter",
        "igamma",
        "igammac",
        "zeta",
        "polygamma 3",
        "frexp",
    ];
    let wrong = differing(1, DeviceKind::EmulatedCuda, |name| names.contains(&name));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
