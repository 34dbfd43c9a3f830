//! Calls of what few programs have: windows by chance, layers with keys of their own, clusters of classes, pairs of kinds.

use super::{Call, one, two};
use shard_tensor::distributions::{
    Beta, Distribution, Exponential, Gamma, Gumbel, Laplace, LkjCholesky, Normal, Uniform,
    kl_divergence,
};
use shard_tensor::nn::{self, Module};
use shard_tensor::{Attention, BagReduce, Causal, DType};

pub(super) const ALL: &[(&str, Call)] = &[
    ("fractional_max_pool", |c, m| {
        let x = c.of(m, 4)?;
        let planes = [&x.shape()[..x.ndim().min(2)], &[c.pick(&[2, 2, 2, 1])]].concat();
        let samples = c.tensor(m, &planes)?;
        let samples = c.maybe(&samples);
        two(x.fractional_max_pool_with_indices(c.size(), [c.size(), c.size()], samples))
    }),
    ("options of tables", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let (rows, features, n) = (c.size(), c.size(), c.extent());
        let indices = c.indices(m, &[2, n], rows.min(9))?;
        one(match c.below(3) {
            0 => nn::EmbeddingBag::new(m, rows, features, BagReduce::Sum)?
                .max_norm(c.number(), c.number())
                .scale_grad_by_freq()
                .forward(&indices),
            1 => nn::Embedding::new(m, rows, features)?
                .scale_grad_by_freq()
                .forward(&indices),
            _ => nn::Embedding::new(m, rows, features)?
                .max_norm(c.number(), c.number())
                .forward(&indices),
        })
    }),
    ("MultiheadAttention with keys of its own", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let (x, y) = (c.of(m, 3)?, c.of(m, 3)?);
        let mut options = Attention::new();
        if c.flag() {
            options = options.causal(c.pick(&[Causal::TopLeft, Causal::BottomRight]));
        }
        if c.flag() {
            options = options.window(c.size(), c.size());
        }
        let mut layer = nn::MultiheadAttention::new(m, c.size(), c.size())?
            .options(options)
            .add_zero_attn();
        if c.flag() {
            layer = layer.add_bias_kv()?.kv_heads(c.size())?;
        }
        let queries = x.shape().get(1).copied().unwrap_or(1);
        let shape = [queries, y.shape().get(1).copied().unwrap_or(1)];
        let mask = c.mask(m, &shape)?;
        one(layer.attend(&x, &y, c.maybe(&mask)))
    }),
    ("AdaptiveLogSoftmax", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let (x, cutoffs) = (c.of(m, 2)?, [c.size(), c.size()]);
        let layer = nn::AdaptiveLogSoftmax::new(m, c.size(), c.size(), &cutoffs, c.number())?;
        let rows = &x.shape()[..x.ndim().saturating_sub(1)];
        let classes = c.indices(m, rows, 9)?;
        two(layer.forward(&x, &classes))
    }),
    ("divergences of kinds", |c, m| {
        let (x, y) = (c.of(m, 1)?, c.of(m, 1)?);
        let at = c.number();
        one(match c.below(7) {
            0 => kl_divergence(&Beta::new(&x, &y)?, &Normal::new(&x, at)?),
            1 => kl_divergence(&Uniform::new(&x, &y)?, &Gamma::new(&x, at)?),
            2 => kl_divergence(&Normal::new(&x, &y)?, &Laplace::new(&x, at)?),
            3 => kl_divergence(&Gamma::new(&x, &y)?, &Gumbel::new(&x, at)?),
            4 => kl_divergence(&Gumbel::new(&x, at)?, &Exponential::new(&y)?),
            5 => LkjCholesky::new(c.size(), &x.abs()?)?.sample([c.size()]),
            _ => LkjCholesky::new(c.size(), &x)?.log_prob(&c.of(m, 3)?),
        })
    }),
];
