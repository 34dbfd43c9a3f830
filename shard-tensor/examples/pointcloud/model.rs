//! A graph network: messages along edges, added up where they arrive.

use shard_tensor::nn::{Linear, Module};
use shard_tensor::{Mesh, Result, ShardTensor, tree};

/// Layers of messages.
pub(crate) const LAYERS: usize = 3;

/// Numbers that a node knows.
pub(crate) const WIDTH: usize = 24;

/// Who hears from whom. An edge lies with its target.
pub(crate) struct Graph {
    /// The nodes where edges begin, `[edges]`: the nearest of each target.
    source: ShardTensor,
    /// The nodes where they end, `[edges]`.
    target: ShardTensor,
    /// From the target to the source, `[edges, dims]`.
    offset: ShardTensor,
    /// Edges that end at each node.
    degree: usize,
}

impl Graph {
    /// Every node of `places` `[nodes, dims]`, whose numbers `nodes` holds, hears from the `degree` nearest, itself among them.
    pub(crate) fn nearest(
        places: &ShardTensor,
        nodes: &ShardTensor,
        degree: usize,
    ) -> Result<Self> {
        let (_, nearest) = places.nearest(places, degree)?;
        let source = nearest.flatten()?;
        let target = nodes.repeat_interleave(0, degree)?;
        let offset = places
            .index_select(0, &source)?
            .sub(&places.index_select(0, &target)?)?;
        Ok(Self {
            source,
            target,
            offset,
            degree,
        })
    }
}

/// What a node knows of itself becomes, layer by layer, what it knows of its surroundings, and then a number.
pub(crate) struct Network {
    encode: Linear,
    layers: Vec<Layer>,
    head: Linear,
}

tree!(Network {
    encode,
    layers,
    head
});

/// A message is a function of both ends of its edge, and of how far they are apart.
struct Layer {
    there: Linear,
    here: Linear,
    between: Linear,
    message: Linear,
}

tree!(Layer {
    there,
    here,
    between,
    message
});

impl Network {
    /// Weights are random, and the same on every mesh.
    pub(crate) fn new(mesh: &Mesh, inputs: usize, dims: usize) -> Result<Self> {
        let layers = (0..LAYERS).map(|_| Layer::new(mesh, dims));
        Ok(Self {
            encode: Linear::new(mesh, inputs, WIDTH)?,
            layers: layers.collect::<Result<_>>()?,
            head: Linear::new(mesh, WIDTH, 1)?,
        })
    }

    /// A number for each node, `[nodes, 1]`, of which `x` `[nodes, inputs]` is known.
    pub(crate) fn forward(&self, graph: &Graph, x: &ShardTensor) -> Result<ShardTensor> {
        let mut h = self.encode.forward(x)?;
        for layer in &self.layers {
            h = layer.forward(graph, &h)?;
        }
        self.head.forward(&h.gelu()?)
    }
}

impl Layer {
    fn new(mesh: &Mesh, dims: usize) -> Result<Self> {
        Ok(Self {
            there: Linear::new(mesh, WIDTH, WIDTH)?,
            here: Linear::new(mesh, WIDTH, WIDTH)?.without_bias(),
            between: Linear::new(mesh, dims, WIDTH)?.without_bias(),
            message: Linear::new(mesh, WIDTH, WIDTH)?,
        })
    }

    /// Rows of other ranks come for the sources, each once; messages end where they are made.
    fn forward(&self, graph: &Graph, h: &ShardTensor) -> Result<ShardTensor> {
        let known = h.gelu()?;
        let there = self.there.forward(&known)?.index_select(0, &graph.source)?;
        let here = self.here.forward(&known)?.index_select(0, &graph.target)?;
        let between = self.between.forward(&graph.offset)?;
        let message = self.message.forward(&(there + here + between).gelu()?)?;
        h.index_add(0, &graph.target, &(message / graph.degree as f64))
    }
}
