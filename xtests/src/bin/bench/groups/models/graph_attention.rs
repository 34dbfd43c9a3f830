//! Graph attention: nodes weigh what they hear along their edges.

use super::train_on_graph;
use crate::suite::Suite;
use shard_tensor::nn::{Linear, Module};
use shard_tensor::{ClassLoss, Mesh, Result, ShardTensor, replicate, tree};

const DEPTH: usize = 2;
const HEADS: usize = 4;
const CLASSES: usize = 7;

pub(super) fn add(suite: &mut Suite<'_>) {
    let (nodes, edges) = (suite.size(3000, 60), suite.size(20_000, 400));
    let width = suite.size(64, 8);
    train_on_graph(
        suite,
        &format!("graph attention {nodes} nodes"),
        move |draw| {
            Ok([
                draw.normal([nodes, width])?,
                draw.below(nodes, [edges])?,
                draw.below(nodes, [edges])?,
                draw.below(CLASSES, [nodes])?,
            ])
        },
        move |mesh| GraphAttention::new(mesh, width),
        |model, [nodes, from, to, classes]| {
            let logits = model.forward(nodes, from, to)?;
            logits.cross_entropy(classes, &ClassLoss::new())
        },
    );
}

/// Layers, and a head that tells nodes apart.
struct GraphAttention {
    layers: Vec<Layer>,
    head: Linear,
}

tree!(GraphAttention { layers, head });

/// Features of heads, and what each head's are multiplied by where an edge begins and where it ends.
struct Layer {
    project: Linear,
    begin: ShardTensor,
    end: ShardTensor,
}

tree!(Layer {
    project,
    begin,
    end
});

impl GraphAttention {
    fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        let vectors = || {
            mesh.randn([HEADS, width / HEADS], replicate())?
                .requires_grad()
        };
        let layer = |_| {
            Ok(Layer {
                project: Linear::new(mesh, width, width)?.without_bias(),
                begin: vectors()?,
                end: vectors()?,
            })
        };
        Ok(Self {
            layers: (0..DEPTH).map(layer).collect::<Result<_>>()?,
            head: Linear::new(mesh, width, CLASSES)?,
        })
    }

    /// Features `[nodes, width]`, and the node that each edge comes from and leads to, to logits `[nodes, classes]`.
    fn forward(
        &self,
        nodes: &ShardTensor,
        from: &ShardTensor,
        to: &ShardTensor,
    ) -> Result<ShardTensor> {
        let mut nodes = nodes.clone();
        for layer in &self.layers {
            nodes = layer.forward(&nodes, from, to)?;
        }
        self.head.forward(&nodes)
    }
}

impl Layer {
    fn forward(
        &self,
        nodes: &ShardTensor,
        from: &ShardTensor,
        to: &ShardTensor,
    ) -> Result<ShardTensor> {
        let count = nodes.shape()[0];
        let heads = self.project.forward(nodes)?;
        let heads = heads.unflatten(1, [HEADS as isize, -1])?;
        let score = |by: &ShardTensor| heads.mul(by)?.sum([2], false);
        let (begin, end) = (score(&self.begin)?, score(&self.end)?);
        let scores = begin
            .index_select(0, from)?
            .add(&end.index_select(0, to)?)?;
        let weights = scores.leaky_relu(0.2)?.segment_softmax(to, count)?;
        let messages = heads.index_select(0, from)?.mul(&weights.unsqueeze(2)?)?;
        messages
            .segment_sum(to, count)?
            .flatten_dims(1, 2)?
            .elu(1.0)
    }
}
