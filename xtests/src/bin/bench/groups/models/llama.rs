//! A decoder as Llama is: root mean square norms, rotary places, heads of queries that share keys, and a gated net.

use super::train;
use crate::suite::Suite;
use shard_tensor::nn::{Embedding, Linear, ModelExt, Module, ParallelPlan, RmsNorm, Rotary};
use shard_tensor::{
    Attention, Causal, ClassLoss, Mesh, Result, ShardTensor, replicate, shard, tree,
};

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, length) = (suite.size(4, 4), suite.size(256, 16));
    let sizes = Sizes::of(suite);
    train(
        suite,
        &format!("Llama {samples}x{length} tokens"),
        move |draw| {
            let tokens = || draw.below(sizes.tokens, [samples, length]);
            Ok([tokens()?, tokens()?])
        },
        move |mesh| Llama::new(mesh, sizes),
        next_tokens,
    );
}

/// The loss for tokens `[samples, length]`, and those that follow each of them.
pub(in crate::groups) fn next_tokens(
    model: &Llama,
    [tokens, next]: &[ShardTensor; 2],
) -> Result<ShardTensor> {
    let logits = model.forward(tokens)?.flatten_dims(0, 1)?;
    logits.cross_entropy(&next.flatten()?, &ClassLoss::new())
}

/// Sizes of a model.
#[derive(Clone, Copy)]
pub(in crate::groups) struct Sizes {
    /// Different ones.
    pub(in crate::groups) tokens: usize,
    places: usize,
    width: usize,
    heads: usize,
    /// Heads of keys and values.
    kv_heads: usize,
    hidden: usize,
    depth: usize,
}

impl Sizes {
    pub(in crate::groups) fn of(suite: &Suite<'_>) -> Self {
        Self {
            tokens: suite.size(4096, 64),
            places: suite.size(256, 32),
            width: suite.size(256, 16),
            heads: 4,
            kv_heads: 2,
            hidden: suite.size(688, 40),
            depth: suite.size(4, 2),
        }
    }
}

/// Tokens embedded, blocks, and logits of the tokens that come next.
pub(in crate::groups) struct Llama {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    /// Whether ranks have tokens of their own between layers that are divided over the same ranks.
    sequence: bool,
}

tree!(Llama {
    embedding,
    blocks,
    norm,
    head
});

/// Keys and values of the tokens before, `[samples, heads, tokens, features]`, of a block that has seen some.
pub(super) type Past = Option<[ShardTensor; 2]>;

impl Llama {
    pub(in crate::groups) fn new(mesh: &Mesh, sizes: Sizes) -> Result<Self> {
        let Sizes { tokens, width, .. } = sizes;
        let blocks = (0..sizes.depth).map(|_| Block::new(mesh, sizes));
        Ok(Self {
            embedding: Embedding::new(mesh, tokens, width)?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: RmsNorm::new(mesh, width)?,
            head: Linear::new(mesh, width, tokens)?.without_bias(),
            sequence: false,
        })
    }

    /// Divides heads, hidden features, and rows and logits of tokens over an axis, and sequences between these.
    pub(in crate::groups) fn divided(mut self, axis: &str) -> Result<Self> {
        self.sequence = true;
        for block in &mut self.blocks {
            block.sequence = true;
        }
        let features = self.blocks[0].features;
        let plan = ParallelPlan::new()
            .shard("embedding.weight", axis, 0)
            .colwise_by("blocks.*.?_proj", axis, features)
            .rowwise_by("blocks.*.out_proj", axis, features)
            .colwise("blocks.*.gate", axis)
            .colwise("blocks.*.up", axis)
            .rowwise("blocks.*.down", axis)
            .colwise("head", axis);
        self.distribute(&plan)
    }

    /// What its blocks remember before the first token.
    pub(super) fn nothing(&self) -> Vec<Past> {
        vec![None; self.blocks.len()]
    }

    /// Logits `[samples, tokens, next tokens]` for tokens from a place on, which blocks remember.
    pub(super) fn forward_at(
        &self,
        tokens: &ShardTensor,
        place: usize,
        past: &mut [Past],
    ) -> Result<ShardTensor> {
        let mut x = scattered(self.embedding.forward(tokens)?, self.sequence)?;
        for (block, past) in self.blocks.iter().zip(past) {
            x = block.forward_at(&x, place, past)?;
        }
        (self.head).forward(&gathered(self.norm.forward(&x)?, self.sequence)?)
    }
}

/// All tokens, for layers that are divided.
fn gathered(x: ShardTensor, sequence: bool) -> Result<ShardTensor> {
    match sequence {
        true => x.redistribute(replicate()),
        false => Ok(x),
    }
}

/// Each rank's tokens of `[samples, tokens, width]`, summed over what such layers give.
fn scattered(x: ShardTensor, sequence: bool) -> Result<ShardTensor> {
    match sequence {
        true => x.redistribute(shard(1)),
        false => Ok(x),
    }
}

impl Module for Llama {
    fn forward(&self, tokens: &ShardTensor) -> Result<ShardTensor> {
        self.forward_at(tokens, 0, &mut self.nothing())
    }
}

/// Attention to the tokens so far, and a net of each token's features that another one gates.
struct Block {
    norm1: RmsNorm,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    out_proj: Linear,
    norm2: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
    rotary: Rotary,
    /// Features of a head.
    features: usize,
    /// As the model's.
    sequence: bool,
}

tree!(Block {
    norm1,
    q_proj,
    k_proj,
    v_proj,
    out_proj,
    norm2,
    gate,
    up,
    down
});

impl Block {
    fn new(mesh: &Mesh, sizes: Sizes) -> Result<Self> {
        let Sizes { width, hidden, .. } = sizes;
        let features = width / sizes.heads;
        let keys = sizes.kv_heads * features;
        let linear = |from, to| Linear::new(mesh, from, to).map(Linear::without_bias);
        Ok(Self {
            norm1: RmsNorm::new(mesh, width)?,
            q_proj: linear(width, width)?,
            k_proj: linear(width, keys)?,
            v_proj: linear(width, keys)?,
            out_proj: linear(width, width)?,
            norm2: RmsNorm::new(mesh, width)?,
            gate: linear(width, hidden)?,
            up: linear(width, hidden)?,
            down: linear(hidden, width)?,
            rotary: Rotary::new(mesh, sizes.places, features)?,
            features,
            sequence: false,
        })
    }

    fn forward_at(&self, x: &ShardTensor, place: usize, past: &mut Past) -> Result<ShardTensor> {
        let all = gathered(self.norm1.forward(x)?, self.sequence)?;
        let found = self.attend(&all, place, past)?;
        let x = x.add(&scattered(found, self.sequence)?)?;
        let all = gathered(self.norm2.forward(&x)?, self.sequence)?;
        x.add(&scattered(self.feed(&all)?, self.sequence)?)
    }

    /// What tokens from a place on find among themselves and the past, which they become a part of.
    fn attend(&self, x: &ShardTensor, place: usize, past: &mut Past) -> Result<ShardTensor> {
        let heads = |projection: &Linear| {
            let x = projection.forward(x)?;
            x.unflatten(2, [-1, self.features as isize])?
                .transpose(1, 2)
        };
        let q = self.rotary.forward_at(&heads(&self.q_proj)?, place)?;
        let k = self.rotary.forward_at(&heads(&self.k_proj)?, place)?;
        let v = heads(&self.v_proj)?;
        let [k, v] = match past.take() {
            None => [k, v],
            Some([before_k, before_v]) => [
                ShardTensor::cat(&[&before_k, &k], 2)?,
                ShardTensor::cat(&[&before_v, &v], 2)?,
            ],
        };
        let causal = Attention::new().causal(Causal::BottomRight);
        let found = q.attention(&k, &v, None, &causal)?.transpose(1, 2)?;
        *past = Some([k, v]);
        self.out_proj.forward(&found.flatten_dims(2, 3)?)
    }

    fn feed(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let gated = self.gate.forward(x)?.silu()?.mul(&self.up.forward(x)?)?;
        self.down.forward(&gated)
    }
}
