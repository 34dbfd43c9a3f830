//! Calls of what came last: taps that are displaced, fields on the sphere, losses without logits, weights of attention, distributions and their samples with gradients, steps of optimizers,
//! every map with its parameters.

use super::{Call, Chance, one, two};
use shard_tensor::distributions::{
    AffineTransform, Beta, Binomial, Categorical, Cauchy, ContinuousBernoulli, Cumulative,
    Dirichlet, Distribution, Exponential, FisherSnedecor, Gamma, GeneralizedPareto, Geometric,
    Gumbel, HalfCauchy, HalfNormal, InverseGamma, Kumaraswamy, Laplace, LogNormal, LogisticNormal,
    MixtureSameFamily, Multinomial, NegativeBinomial, Normal, OneHotCategorical, Poisson,
    RelaxedOneHotCategorical, Reparametrized, StudentT, TanhTransform, Transformed, Uniform,
    VonMises, Weibull, kl_divergence,
};
use shard_tensor::nn::{self, ModelExt, Module};
use shard_tensor::optim::{AdamW, Ema, Optimizer, Sgd};
use shard_tensor::{
    Attention, Causal, ClassLoss, ConvOptions, DType, Mesh, Neighborhood, Result, ShardTensor,
    SphereGrid, SphericalTransform, Unary, replicate, shard,
};

/// Two tensors of one shape, as a rule.
fn pair(c: &mut Chance, m: &Mesh, ndim: usize) -> Result<[ShardTensor; 2]> {
    let x = c.of(m, ndim)?;
    let y = c.like(m, &x)?;
    Ok([x, y])
}

/// A model of one layer, and a gradient of each of its parameters.
fn trained(c: &mut Chance, m: &Mesh) -> Result<(nn::Linear, ShardTensor)> {
    let m = &m.with_dtype(DType::F64);
    let linear = nn::Linear::new(m, 3, 2)?;
    let x = c.tensor(m, &[4, 3])?.detach();
    let loss = linear.forward(&x)?.square()?.mean_all()?;
    Ok((linear, loss))
}

/// Maps with a parameter or two.
fn any_map(c: &mut Chance) -> Unary {
    let [a, b] = [c.number(), c.number()];
    match c.below(16) {
        0 => Unary::Clamp { min: a, max: b },
        1 => Unary::PowScalar { exponent: a },
        2 => Unary::RoundDecimals { decimals: a },
        3 => Unary::Logit { eps: a },
        4 => Unary::Softplus {
            beta: a,
            threshold: b,
        },
        5 => Unary::Celu { alpha: a },
        6 => Unary::Hardtanh {
            min_val: a,
            max_val: b,
        },
        7 => Unary::Threshold {
            threshold: a,
            value: b,
        },
        8 => Unary::Softshrink { lambd: a },
        9 => Unary::Hardshrink { lambd: a },
        10 => Unary::LeakyRelu { negative_slope: a },
        11 => Unary::Elu { alpha: a },
        12 => Unary::AddScalar { value: a },
        13 => Unary::MulScalar { value: a },
        _ => c.pick(Unary::ALL),
    }
}

/// Calls of what came last.
pub(super) const ALL: &[(&str, Call)] = &[
    ("linear_cross_entropy", |c, m| {
        let [rows, features, classes] = [(); 3].map(|()| c.extent());
        let x = c.tensor(m, &[rows, features])?;
        let weight = c.tensor(m, &[classes, features])?;
        let bias = c.of(m, 1)?;
        let target = match c.below(4) {
            0 => c.of(m, 2)?.abs()?,
            _ => c.indices(m, &[rows], classes)?,
        };
        let weights = c.tensor(m, &[classes])?.abs()?;
        let mut loss = ClassLoss::new().reduction(c.reduction());
        if c.flag() {
            loss = loss.weight(&weights).ignore(c.offset() as i64);
        }
        if c.below(4) == 0 {
            loss = loss.smoothing(c.number());
        }
        one(x.linear_cross_entropy(&weight, c.maybe(&bias), &target, &loss))
    }),
    ("deform_conv", |c, m| {
        let ([channels, outputs], kernel) = ([c.extent(), c.extent()], [c.below(3), c.below(4)]);
        let plane = c.shape(2);
        let x = c.tensor(m, &[&[2, channels], &plane[..]].concat())?;
        let weight = c.tensor(m, &[&[outputs, channels], &kernel[..]].concat())?;
        // What fits a stride of 1, as a rule.
        let pad = c.below(2);
        let places = [0, 1].map(|d| (plane[d] + 2 * pad + 1).saturating_sub(kernel[d]));
        let (groups, taps) = (c.pick(&[1, 1, channels]), kernel[0] * kernel[1]);
        let sized = |of: usize| [&[2, groups * taps * of], &places[..]].concat();
        let (offset, mask) = (c.tensor(m, &sized(2))?, c.tensor(m, &sized(1))?);
        let options = match c.below(4) {
            0 => ConvOptions::new().padding(pad).stride(c.size()),
            _ => ConvOptions::new().padding(pad),
        };
        let bias = c.of(m, 1)?;
        one(x.deform_conv(&offset, &weight, c.maybe(&mask), c.maybe(&bias), options))
    }),
    ("SphericalTransform", |c, m| {
        let x = c.of(m, 3)?;
        let (extents, degrees) = match x.shape() {
            [.., n, k] => ([*n, *k], c.pick(&[None, None, Some(2)])),
            _ => ([c.size(), c.size()], None),
        };
        let grid = c.pick(&[SphereGrid::Gauss, SphereGrid::Equiangular]);
        // Whatever the mesh, as much is drawn.
        let axes = [(); 2].map(|()| match c.below(3) {
            2 => replicate(),
            dim => shard(dim),
        });
        let axes = axes[..m.shape().len()].to_vec();
        let m = &m.with_dtype(x.dtype());
        let sphere = SphericalTransform::new(m, grid, extents, degrees, axes)?;
        match c.flag() {
            true => one(sphere.inverse(&sphere.forward(&x)?)),
            false => one(sphere.inverse(&x)),
        }
    }),
    ("shares, reciprocals and tails", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let (shape, at) = ([c.size()], c.number());
        one(match c.below(10) {
            0 => InverseGamma::new(&x.square()?, at)?.rsample(shape),
            1 => InverseGamma::new(&x, &x)?.log_prob(&y),
            2 => FisherSnedecor::new(&x.square()?, at)?.rsample(shape),
            3 => Kumaraswamy::new(&x.abs()?, at)?.rsample(shape),
            4 => ContinuousBernoulli::from_logits(&x)?.rsample(shape),
            5 => ContinuousBernoulli::from_probs(&x)?.cdf(&y),
            6 => GeneralizedPareto::new(&x, at, &y)?.rsample(shape),
            7 => LogisticNormal::new(&x, at)?.rsample(shape),
            8 => LogisticNormal::new(&x, &x)?.log_prob(&y),
            _ => Multinomial::from_logits(c.size(), &x)?.sample(shape),
        })
    }),
    ("attention_weights", |c, m| {
        let [batch, heads, queries, keys, dim] = [(); 5].map(|()| c.extent());
        let q = c.tensor(m, &[batch, heads, queries, dim])?;
        let k = c.tensor(m, &[batch, heads, keys, dim])?;
        let mask = c.mask(m, &[queries, keys])?;
        let mut options = Attention::new();
        if c.flag() {
            options = options.causal(c.pick(&[Causal::TopLeft, Causal::BottomRight]));
        }
        if c.flag() {
            options = options.window(c.size(), c.size()).scale(c.number());
        }
        one(q.attention_weights(&k, c.maybe(&mask), &options))
    }),
    ("map of numbers", |c, m| {
        let map = any_map(c);
        one(c.any(m)?.map(map))
    }),
    ("bernoulli", |c, m| {
        let x = c.any(m)?;
        let x = if c.flag() { x.sigmoid()? } else { x };
        one(x.bernoulli())
    }),
    ("locations and scales", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let (shape, at) = ([c.size()], c.number());
        one(match c.below(11) {
            9 => VonMises::new(&x, &y)?.sample(shape),
            10 => VonMises::new(&x, at)?.log_prob(&y),
            0 => Laplace::new(&x, &y)?.rsample(shape),
            1 => Uniform::new(&x, &y)?.rsample(shape),
            2 => Cauchy::new(&x, &y)?.sample(shape),
            3 => Gumbel::new(&x, at)?.rsample(shape),
            4 => LogNormal::new(&x, at)?.rsample(shape),
            5 => HalfNormal::new(&x)?.rsample(shape),
            6 => HalfCauchy::new(&x)?.log_prob(&y),
            7 => Weibull::new(&x, at)?.log_prob(&y),
            _ => Exponential::new(&x)?.rsample(shape),
        })
    }),
    ("counts that are drawn", |c, m| {
        let [x, y] = pair(c, m, 1)?;
        let (shape, at) = ([c.size()], c.number());
        let few = x.abs()?.clamp_max(5.0)?.round()?;
        one(match c.below(6) {
            0 => Poisson::new(&x.square()?)?.sample(shape),
            1 => Binomial::from_probs(&few, at)?.sample(shape),
            2 => Binomial::from_logits(&few, &y)?.log_prob(&y.abs()?.round()?),
            3 => NegativeBinomial::from_logits(&few.add_scalar(1.0)?, at)?.sample(shape),
            4 => Geometric::from_probs(&x)?.sample(shape),
            _ => Poisson::new(&x)?.log_prob(&y),
        })
    }),
    ("rsample of shares", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let (shape, at) = ([c.size()], c.number());
        one(match c.below(6) {
            0 => Beta::new(&x.square()?, at)?.rsample(shape),
            1 => Gamma::new(&x.abs()?, &y.abs()?)?.rsample(shape),
            2 => Dirichlet::new(&x.square()?)?.rsample(shape),
            3 => StudentT::new(&x.square()?, &y, at)?.rsample(shape),
            4 => RelaxedOneHotCategorical::from_logits(at, &x)?.rsample(shape),
            _ => OneHotCategorical::from_logits(&x)?.log_prob(&y),
        })
    }),
    ("shares below and back", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let z = c.like(m, &x)?;
        one(match c.below(6) {
            0 => Normal::new(&x, &y)?.cdf(&z),
            1 => Normal::new(&x, c.number())?.icdf(&z),
            2 => Uniform::new(&x, &y)?.icdf(&z),
            3 => Transformed::new(Normal::new(&x, &y)?, TanhTransform).log_prob(&z),
            4 => {
                let by = AffineTransform::new(&y, c.number())?;
                Transformed::new(Normal::new(&x, &y)?, by).log_prob(&z)
            }
            _ => kl_divergence(&Normal::new(&x, &y)?, &Normal::new(&z, c.number())?),
        })
    }),
    ("MixtureSameFamily", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let weights = Categorical::from_logits(&c.like(m, &x)?)?;
        let mixture = MixtureSameFamily::new(&weights, Normal::new(&x, &y)?)?;
        one(mixture.log_prob(&c.of(m, 1)?))
    }),
    ("optimizers", |c, m| {
        let (model, loss) = trained(c, m)?;
        let mut gradients = loss.backward()?;
        let rate = c.number();
        match c.below(3) {
            0 => {
                let clipped = gradients.clip_norm(c.number())?;
                one(loss.full_like(clipped))
            }
            1 => {
                gradients.clip_value(c.number())?;
                AdamW::new(model.parameters(), rate)?
                    .weight_decay(c.number())
                    .step(&gradients)?;
                Ok(model
                    .parameters()
                    .into_iter()
                    .map(|(_, p)| p.detach())
                    .collect())
            }
            _ => {
                let norm = gradients.norm(c.number())?;
                Sgd::new(model.parameters(), rate)?
                    .momentum(c.number())
                    .step(&gradients)?;
                Ema::new(&model, c.number())?;
                one(loss.full_like(norm))
            }
        }
    }),
    ("options of layers", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let [a, b] = [c.size(), c.size()];
        let (x, y) = (c.of(m, 3)?, c.of(m, 3)?);
        one(match c.below(7) {
            0 => nn::MultiheadAttention::new(m, a, b)?
                .kv_heads(c.size())?
                .attend(&x, &y, None),
            1 => nn::MultiheadAttention::from_widths(m, a, b, c.size(), c.size())?
                .without_bias()
                .attend_to(&x, &y, &y, None),
            2 => {
                let attention = nn::MultiheadAttention::new(m, a, b)?;
                return two(attention.attend_with_weights(&x, &y, &y, None));
            }
            3 => {
                let near = Neighborhood::new([c.size()]).dilation([c.size()]);
                nn::NeighborhoodAttention::new(m, a, b, near)?.forward(&x)
            }
            4 => nn::Lstm::new(m, a, b, c.size().min(3))?
                .dropout(c.number())
                .without_bias()
                .forward(&x),
            5 => nn::weight_norm(nn::Linear::new(m, a, b)?)?.forward(&x),
            _ => nn::spectral_norm(nn::Linear::new(m, a, b)?.without_bias())?.forward(&x),
        })
    }),
    ("SelectiveStateSpace, step by step", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let layer = nn::SelectiveStateSpace::new(m, c.size().min(40))?;
        let (x, y) = (c.of(m, 3)?, c.of(m, 3)?);
        let (first, kept) = layer.forward_from(&x, None)?;
        let (second, _) = layer.forward_from(&y, Some(&kept))?;
        Ok(vec![first, second])
    }),
];
