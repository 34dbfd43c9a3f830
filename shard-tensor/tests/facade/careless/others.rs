//! Calls that the other lists lack: each method of one family that has siblings there, and what came later.

use super::{Call, Chance, one, two};
use shard_tensor::distributions::{
    Bernoulli, Beta, Categorical, Dirichlet, Distribution, Gamma, Independent, Normal,
    kl_divergence,
};
use shard_tensor::nn::{self, Module};
use shard_tensor::{
    BagReduce, ConvTransposeOptions, DType, FoldBy, LossReduction, Mesh, Placements, Result,
    RouteBy, ShardTensor, replicate, shard,
};

/// Two tensors of one shape, as a rule.
fn pair(c: &mut Chance, m: &Mesh, ndim: usize) -> Result<[ShardTensor; 2]> {
    let x = c.of(m, ndim)?;
    let y = c.like(m, &x)?;
    Ok([x, y])
}

/// Three tensors of one shape, as a rule.
fn three(c: &mut Chance, m: &Mesh, ndim: usize) -> Result<[ShardTensor; 3]> {
    let [x, y] = pair(c, m, ndim)?;
    let z = c.like(m, &x)?;
    Ok([x, y, z])
}

/// Cumulative sums of a few sizes, as a rule.
fn offsets(c: &mut Chance, m: &Mesh, groups: usize) -> Result<ShardTensor> {
    c.indices(m, &[groups], 3)?.cumsum(0)
}

/// Numbers between 0 and 1.
fn shares(c: &mut Chance, m: &Mesh, shape: &[usize]) -> Result<ShardTensor> {
    c.tensor(m, shape)?.sigmoid()
}

/// Calls that the other lists lack.
pub(super) const ALL: &[(&str, Call)] = &[
    ("add_scaled", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.add_scaled(&y, c.number()))
    }),
    ("addcmul", |c, m| {
        let [x, y, z] = three(c, m, 2)?;
        one(x.addcmul(&y, &z, c.number()))
    }),
    ("addcdiv", |c, m| {
        let [x, y, z] = three(c, m, 2)?;
        one(x.addcdiv(&y, &z, c.number()))
    }),
    ("lerp", |c, m| {
        let [x, y, z] = three(c, m, 2)?;
        one(match c.flag() {
            true => x.lerp(&y, &z),
            false => x.lerp(&y, c.number()),
        })
    }),
    ("clamp_by", |c, m| {
        let [x, y, z] = three(c, m, 2)?;
        let (low, high) = (c.maybe(&y), c.maybe(&z));
        one(x.clamp_by(low, high))
    }),
    ("prelu", |c, m| {
        let x = c.any(m)?;
        one(x.prelu(&c.of(m, 1)?))
    }),
    ("glu", |c, m| one(c.any(m)?.glu(c.dim()))),
    ("rsub_scalar", |c, m| one(c.any(m)?.rsub_scalar(c.number()))),
    ("nan_to_num", |c, m| {
        let (x, high, low) = (c.any(m)?, c.number(), c.number());
        one(x.nan_to_num(c.number(), c.maybe(high), c.maybe(low)))
    }),
    ("isclose", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.isclose(&y, c.number(), c.number(), c.flag()))
    }),
    ("complex_mul", |c, m| {
        let shape = [&c.shape(2)[..], &[2]].concat();
        let x = c.tensor(m, &shape)?;
        let y = c.like(m, &x)?;
        one(x.complex_mul(&y))
    }),
    ("isin", |c, m| {
        let [x, y] = [c.any(m)?, c.any(m)?];
        one(x.isin(&y))
    }),
    ("bucketize", |c, m| {
        let (x, edges) = (c.any(m)?, c.of(m, 1)?);
        let edges = match edges.ndim() {
            1 => edges.sort(0, false)?.0,
            _ => edges,
        };
        one(x.bucketize(&edges, c.flag()))
    }),
    ("argsort", |c, m| one(c.any(m)?.argsort(c.dim(), c.flag()))),
    ("mode", |c, m| two(c.any(m)?.round()?.mode(c.dim()))),
    ("cummin", |c, m| two(c.any(m)?.cummin(c.dim()))),
    ("std_mean", |c, m| {
        two(c.any(m)?.std_mean([c.dim()], c.number(), c.flag()))
    }),
    ("argmin_keepdim", |c, m| {
        one(c.any(m)?.argmin_keepdim([c.dim()]))
    }),
    ("cumulative_trapezoid_at", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.cumulative_trapezoid_at(&y, c.dim()))
    }),
    ("ifftshift", |c, m| {
        one(c.any(m)?.ifftshift([c.dim(), c.dim()]))
    }),
    ("fftfreq", |c, m| {
        let m = &m.with_dtype(DType::F64);
        one(m.fftfreq(c.size(), c.number(), Placements::replicated()))
    }),
    ("rfftfreq", |c, m| {
        let m = &m.with_dtype(DType::F64);
        one(m.rfftfreq(c.size(), c.number(), Placements::replicated()))
    }),
    ("randint", |c, m| {
        let ends = [i64::MIN, i64::MAX, 1 << 60];
        let mut end = || match c.below(4) {
            0 => c.pick(&ends),
            _ => c.offset() as i64,
        };
        let range = end()..end();
        one(m.randint([7], range, Placements::everywhere(shard(0))))
    }),
    ("unique", |c, m| one(c.any(m)?.unique())),
    ("unique_consecutive", |c, m| {
        let found = c.any(m)?.unique_consecutive()?;
        Ok(vec![found.values, found.inverse, found.counts])
    }),
    ("nonzero", |c, m| one(c.any(m)?.nonzero())),
    ("take_along_dim", |c, m| {
        let x = c.of(m, 2)?;
        let shape = c.shape(2);
        let index = c.indices(m, &shape, 2)?;
        one(x.take_along_dim(c.dim(), &index))
    }),
    ("scatter_value", |c, m| {
        let x = c.of(m, 2)?;
        let shape = c.shape(2);
        let index = c.indices(m, &shape, 2)?;
        one(x.scatter_value(c.dim(), &index, c.number()))
    }),
    ("index_select_by", |c, m| {
        let (x, n) = (c.any(m)?, c.extent());
        let index = c.indices(m, &[n], 3)?;
        let by = c.pick(&[RouteBy::Ask, RouteBy::Gather]);
        one(x.index_select_by(c.dim(), &index, by))
    }),
    ("segment_mean", |c, m| {
        let (x, count) = (c.any(m)?, c.size());
        let n = x.shape().first().copied().unwrap_or(0);
        let ids = c.indices(m, &[n], count.min(5))?;
        one(x.segment_mean(&ids, count))
    }),
    ("segment_min_with_indices", |c, m| {
        let (x, count) = (c.any(m)?, c.size());
        let n = x.shape().first().copied().unwrap_or(0);
        let ids = c.indices(m, &[n], count.min(5))?;
        two(x.segment_min_with_indices(&ids, count))
    }),
    ("nearest_by", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let by = c.pick(&[FoldBy::Ring, FoldBy::Gather, FoldBy::Split, FoldBy::Heads]);
        two(x.nearest_by(&y, c.size(), by))
    }),
    ("radius_search_by_cloud", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let of = |x: &ShardTensor| x.shape().first().copied().unwrap_or(0);
        let [a, b] = [&x, &y].map(|x| c.indices(m, &[of(x)], 3));
        let found = x.radius_search_by_cloud(&y, c.number(), [&a?, &b?])?;
        Ok(vec![found.pairs, found.distances, found.counts])
    }),
    ("radius_search_capped_by_cloud", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let of = |x: &ShardTensor| x.shape().first().copied().unwrap_or(0);
        let [a, b] = [&x, &y].map(|x| c.indices(m, &[of(x)], 3));
        let found = x.radius_search_capped_by_cloud(&y, c.number(), c.size(), [&a?, &b?])?;
        Ok(vec![found.distances, found.indices, found.counts])
    }),
    ("outer", |c, m| {
        let [x, y] = [c.of(m, 1)?, c.of(m, 1)?];
        one(x.outer(&y))
    }),
    ("trace", |c, m| one(c.of(m, 2)?.trace())),
    ("meshgrid", |c, m| {
        let [x, y, z] = [c.of(m, 1)?, c.of(m, 1)?, c.of(m, 1)?];
        ShardTensor::meshgrid(&[x, y, z][..c.below(4)])
    }),
    ("gather_mm", |c, m| {
        let [rows, matrices, inner, outer] = [(); 4].map(|()| c.extent());
        let x = c.tensor(m, &[rows, inner])?;
        let w = c.tensor(m, &[matrices, inner, outer])?;
        one(x.gather_mm(&w, &c.indices(m, &[rows], matrices)?))
    }),
    ("grouped_mm", |c, m| {
        let [rows, inner, outer] = [(); 3].map(|()| c.extent());
        let groups = c.below(4);
        let dims = [2, 3];
        let [a, b] = [c.pick(&dims), c.pick(&dims)];
        let a = c.tensor(m, &[groups, rows, inner][3 - a..])?;
        let b = c.tensor(m, &[groups, inner, outer][3 - b..])?;
        let offsets = offsets(c, m, groups)?;
        one(a.grouped_mm(&b, c.maybe(&offsets)))
    }),
    ("instance_norm", |c, m| {
        let x = c.of(m, 4)?;
        let [weight, bias] = [c.of(m, 1)?, c.of(m, 1)?];
        let (weight, bias) = (c.maybe(&weight), c.maybe(&bias));
        one(x.instance_norm(weight, bias, c.number()))
    }),
    ("instance_norm_running", |c, m| {
        let x = c.of(m, 4)?;
        let channels = x.shape().get(1).copied().unwrap_or(1);
        let [mean, var] = [c.tensor(m, &[channels])?, c.tensor(m, &[channels])?];
        let (mean, var) = (mean.detach(), var.detach().abs()?);
        let (momentum, training) = (c.number(), c.flag());
        let (y, (mean, var)) =
            x.instance_norm_running((&mean, &var), [None, None], training, momentum, 1e-5)?;
        Ok(vec![y, mean, var])
    }),
    ("l1_loss", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.l1_loss(&y, c.reduction()))
    }),
    ("binary_cross_entropy", |c, m| {
        let shape = c.shape(2);
        let [x, y] = [shares(c, m, &shape)?, shares(c, m, &shape)?];
        let weight = c.like(m, &x)?;
        one(x.binary_cross_entropy(&y, c.maybe(&weight), c.reduction()))
    }),
    ("hinge_embedding_loss", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.hinge_embedding_loss(&y.sign()?, c.number(), c.reduction()))
    }),
    ("margin_ranking_loss", |c, m| {
        let [x, y, z] = three(c, m, 2)?;
        one(x.margin_ranking_loss(&y, &z.sign()?, c.number(), c.reduction()))
    }),
    ("multilabel_margin_loss", |c, m| {
        let x = c.of(m, 2)?;
        let classes = x.shape().last().copied().unwrap_or(1);
        let target = c.indices(m, x.shape(), classes)?.sub_scalar(1.0)?;
        one(x.multilabel_margin_loss(&target, c.reduction()))
    }),
    ("distributions", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let shape = match c.below(3) {
            0 => vec![],
            1 => vec![c.size()],
            _ => vec![c.size(), c.size()],
        };
        one(match c.below(6) {
            0 => Categorical::from_logits(&x)?.sample(shape),
            1 => Categorical::from_probs(&x)?.sample(shape),
            2 => Bernoulli::from_logits(&x)?.sample(shape),
            3 => Gamma::new(&x.square()?, &y.square()?)?.sample(shape),
            4 => Beta::new(&x.square()?, &y.square()?)?.sample(shape),
            _ => Independent::new(Normal::new(&x, &y)?, c.size())?.sample(shape),
        })
    }),
    ("densities", |c, m| {
        let [x, y, z] = three(c, m, 2)?;
        one(match c.below(6) {
            0 => Categorical::from_logits(&x)?.log_prob(&c.indices(m, &[3], 3)?),
            1 => Dirichlet::new(&x.square()?)?.log_prob(&y.softmax(-1)?),
            2 => Bernoulli::from_probs(&x.sigmoid()?)?.log_prob(&y.sigmoid()?),
            3 => Gamma::new(&x.square()?, &y.square()?)?.log_prob(&z),
            4 => Independent::new(Normal::new(&x, &y)?, c.size())?.log_prob(&z),
            _ => kl_divergence(
                &Categorical::from_logits(&x)?,
                &Categorical::from_logits(&y)?,
            ),
        })
    }),
    ("redistribute_axis", |c, m| {
        let x = c.any(m)?;
        let to = match c.below(3) {
            0 => replicate(),
            1 => shard(c.dim()),
            _ => shard(c.dim()).zigzag(),
        };
        one(x.redistribute_axis("a", to))
    }),
    ("mean_all", |c, m| one(c.any(m)?.mean_all())),
    ("allclose", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let close = x.allclose(&y, 1.0, 1.0, c.flag())?;
        one(x.full_like(close))
    }),
    ("layers of other kinds", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let [a, b] = [c.size(), c.size()];
        let x = c.of(m, 3)?;
        one(match c.below(14) {
            0 => nn::Bilinear::new(m, [a, b], 2)?.forward(&x, &c.of(m, 3)?),
            1 => nn::ConvTranspose::new(m, a, b, [c.size()], ConvTransposeOptions::new())?
                .forward(&x),
            2 => nn::GroupNorm::new(m, a, b)?.eps(c.number()).forward(&x),
            3 => nn::InstanceNorm::new()
                .affine(m, a)?
                .running(m, b)?
                .forward(&x),
            4 => nn::LayerNorm::new(m, [a, b])?.forward(&x),
            5 => nn::BatchNorm::new(m, a)?.momentum(c.number()).forward(&x),
            6 => nn::Embedding::new(m, a, b)?
                .padding(c.size())?
                .forward(&c.indices(m, &[3], 3)?),
            7 => nn::EmbeddingBag::new(m, a, b, BagReduce::Mean)?.forward(&c.indices(
                m,
                &[3, 2],
                3,
            )?),
            8 => nn::Rnn::bidirectional(m, a, b, c.size().min(3))?.forward(&x),
            9 => nn::Lstm::new(m, a, b, 1)?.projected(c.size())?.forward(&x),
            10 => nn::PRelu::new(m, a)?.forward(&x),
            11 => nn::SelectiveStateSpace::new(m, a.min(40))?.forward(&x),
            12 => {
                let sizes = nn::StateSpaceSizes {
                    inner: c.size(),
                    states: c.size(),
                    kernel: c.size(),
                    rank: c.size(),
                };
                nn::SelectiveStateSpace::with_sizes(m, a, sizes)?.forward(&x)
            }
            _ => nn::LpPool::new(c.number(), c.pool()).forward(&x),
        })
    }),
    ("MixtureOfExperts", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let x = c.of(m, 3)?;
        let [width, hidden, experts] = [c.size(), c.size(), c.size().min(7)];
        let moe = nn::MixtureOfExperts::new(m, width, hidden, experts, c.size())?;
        let moe = if c.flag() {
            moe.swiglu()?
        } else {
            moe.biased()?
        };
        one(match c.flag() {
            true => moe.capacity(c.number())?.forward(&x),
            false => moe.forward(&x),
        })
    }),
    ("computed weights", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let linear = nn::Linear::new(m, c.size(), c.size())?;
        let x = c.of(m, 2)?;
        let dim = c.dim();
        one(match c.flag() {
            true => nn::Parametrized::new(linear, "weight", |w| nn::WeightNorm::new(w, dim))?
                .forward(&x),
            false => nn::Parametrized::new(linear, "weight", |w| nn::SpectralNorm::new(w, dim))?
                .forward(&x),
        })
    }),
    ("reductions of nothing", |c, m| {
        let x = c.any(m)?.narrow(0, 0..0)?;
        one(match c.below(4) {
            0 => x.mse_loss(&x),
            1 => x.l1_loss(&x, LossReduction::Mean),
            2 => x.mean_all(),
            _ => x.amax(.., false),
        })
    }),
];
