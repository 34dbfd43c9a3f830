//! Layers, and ops that are made for them.

use super::Case;
use ndarray::arr1;
use shard_tensor::nn::{AdaptiveLogSoftmax, Embedding, EmbeddingBag, Module, MultiheadAttention};
use shard_tensor::{Attention, BagReduce, Causal, Result, ShardTensor, replicate, shard};

/// What fractional pools find and where, by samples that are multiples of 0.37.
fn fractional(x: &ShardTensor, kernel: &[usize], outputs: &[usize]) -> Result<ShardTensor> {
    let [batch, channels, spatial] = [x.shape()[0], x.shape()[1], x.ndim() - 2];
    let sample = |i: &[usize]| ((i[0] * channels + i[1]) * spatial + i[2]) as f64 * 0.37 % 1.0;
    let shape = [batch, channels, spatial];
    let samples = x.mesh().from_fn(shape, [("first", shard(0))], sample)?;
    let (values, at) = x.fractional_max_pool_with_indices(kernel, outputs, Some(&samples))?;
    values.add(&at.to(x.dtype())?.mul_scalar(0.01)?)
}

/// Rows that some places name.
fn often(like: &ShardTensor) -> Result<ShardTensor> {
    like.mesh()
        .distribute(&arr1(&[2_i64, 0, 2, 3, 2, 0]), [("first", shard(0))])
}

/// What two heads of a layer with these weights and keys of its own find, and by what weights.
fn added(
    x: &[ShardTensor],
    zeros: bool,
    options: Attention,
    mask: Option<&ShardTensor>,
) -> Result<ShardTensor> {
    let mesh = x[0].mesh();
    let mut layer = MultiheadAttention::new(&mesh, 4, 2)?
        .without_bias()
        .options(options);
    layer.q_proj.weight = x[1].clone();
    layer.k_proj.weight = x[2].clone();
    layer.v_proj.weight = x[3].clone();
    layer.out_proj.weight = x[4].clone();
    if let Some(bias) = x.get(5) {
        layer = layer.add_bias_kv()?;
        let row = |k: usize| bias.narrow(0, k..=k)?.unsqueeze(0);
        (layer.bias_k, layer.bias_v) = (Some(row(0)?), Some(row(1)?));
    }
    if zeros {
        layer = layer.add_zero_attn();
    }
    let (found, weights) = layer.attend_with_weights(&x[0], &x[0], &x[0], mask)?;
    assert!(found.allclose(&layer.attend(&x[0], &x[0], mask)?, 1e-12, 1e-12, false)?);
    ShardTensor::cat(&[found.flatten()?, weights.flatten()?], 0)
}

/// How far keys are from queries.
fn distance(x: &ShardTensor) -> Result<ShardTensor> {
    let far = |i: &[usize]| i[1] as f64 - i[0] as f64;
    x.mesh().from_fn([5, 5], replicate(), far)
}

/// A layer of nine classes in three parts.
fn clusters(x: &[ShardTensor]) -> Result<AdaptiveLogSoftmax> {
    let mut layer = AdaptiveLogSoftmax::new(&x[0].mesh(), 4, 9, &[3, 5], 2.0)?.head_bias()?;
    layer.head.weight = x[1].clone();
    layer.head.bias = Some(x[2].clone());
    for (k, cluster) in layer.tail.iter_mut().enumerate() {
        cluster[0].weight = x[3 + 2 * k].clone();
        cluster[1].weight = x[4 + 2 * k].clone();
    }
    Ok(layer)
}

pub(super) const LAYERS: [Case; 11] = [
    ("fractional_max_pool of planes", |x| {
        fractional(&x[0], &[2, 3], &[4, 2])
    }),
    ("fractional_max_pool of volumes", |x| {
        fractional(&x[0], &[1, 2, 3], &[3, 1, 3])
    }),
    ("embedding, gradients by frequency", |x| {
        let mut table = Embedding::new(&x[0].mesh(), 4, 3)?
            .padding(3)?
            .scale_grad_by_freq();
        table.weight = x[0].clone();
        table.forward(&often(&x[0])?)
    }),
    ("embedding of bounded rows", |x| {
        let mut table = Embedding::new(&x[0].mesh(), 4, 3)?.max_norm(1.0, 0.9);
        table.weight = x[0].clone();
        let before = x[0].detach();
        let found = table.forward(&often(&x[0])?)?;
        let unnamed = [&before, &x[0].detach()].map(|t| t.select(0, 1)?.to_array::<f64>());
        let [before, after] = unnamed;
        assert_eq!(before?, after?);
        Ok(found)
    }),
    ("embedding_bag of bounded rows", |x| {
        let mut table = EmbeddingBag::new(&x[0].mesh(), 4, 3, BagReduce::Mean)?.max_norm(1.0, 0.9);
        table.weight = x[0].clone();
        table.forward(&often(&x[0])?.reshape([2, 3])?)
    }),
    ("embedding_bag, gradients by frequency", |x| {
        let mut table =
            EmbeddingBag::new(&x[0].mesh(), 4, 3, BagReduce::Mean)?.scale_grad_by_freq();
        table.weight = x[0].clone();
        table.forward(&often(&x[0])?.reshape([2, 3])?)
    }),
    ("attention with keys of its own", |x| {
        added(x, true, Attention::new(), None)
    }),
    ("attention with a key of its own, causal", |x| {
        let by_options = Attention::new().causal(Causal::TopLeft);
        let found = added(x, false, by_options, None)?;
        let mask = distance(&x[0])?.le_scalar(0.0)?;
        let by_mask = added(x, false, Attention::new(), Some(&mask))?;
        assert!(found.allclose(&by_mask, 1e-12, 1e-12, false)?);
        Ok(found)
    }),
    ("attention with a key of zeros, near", |x| {
        let near = Attention::new().window(1, 0);
        let slope = distance(&x[0])?.mul_scalar(0.3)?;
        added(x, true, near, Some(&slope))
    }),
    ("adaptive_log_softmax", |x| {
        let classes = arr1(&[7_i64, 0, 4, 8, 2]);
        let classes = x[0].mesh().distribute(&classes, [("first", shard(0))])?;
        let (found, loss) = clusters(x)?.forward(&x[0], &classes)?;
        ShardTensor::cat(&[found, loss.unsqueeze(0)?], 0)
    }),
    ("adaptive_log_softmax of all", |x| {
        let (layer, rows) = (clusters(x)?, x[0].unsqueeze(0)?);
        let all = layer.log_prob(&x[0])?;
        let most = all.argmax(1)?.to_array::<i64>()?;
        assert_eq!(layer.predict(&rows)?.squeeze(0)?.to_array::<i64>()?, most);
        Ok(all)
    }),
];
