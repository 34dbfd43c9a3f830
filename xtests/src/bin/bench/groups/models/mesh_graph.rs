//! A mesh graph net: nodes and edges tell each other what they know, along the edges.

use super::train_on_graph;
use crate::suite::Suite;
use shard_tensor::nn::{LayerNorm, Linear, Map, Module, Sequential};
use shard_tensor::{Mesh, Result, ShardTensor, tree};

/// Rounds in which messages pass.
const ROUNDS: usize = 3;
/// Features of a node, of an edge, and of what nodes give.
const FEATURES: [usize; 3] = [8, 4, 3];

pub(super) fn add(suite: &mut Suite<'_>) {
    let (nodes, width) = (suite.size(4000, 60), suite.size(64, 8));
    let edges = 6 * nodes;
    train_on_graph(
        suite,
        &format!("mesh graph net {nodes} nodes"),
        move |draw| {
            let [of_nodes, of_edges, found] = FEATURES;
            Ok([
                draw.normal([nodes, of_nodes])?,
                draw.normal([edges, of_edges])?,
                draw.below(nodes, [edges])?,
                draw.below(nodes, [edges])?,
                draw.normal([nodes, found])?,
            ])
        },
        move |mesh| MeshGraphNet::new(mesh, width),
        |model, [nodes, edges, from, to, targets]| {
            model.forward(nodes, edges, from, to)?.mse_loss(targets)
        },
    );
}

/// Features of nodes and edges encoded, rounds of messages, and what each node gives.
struct MeshGraphNet {
    nodes: Sequential,
    edges: Sequential,
    rounds: Vec<Round>,
    decoder: Sequential,
}

tree!(MeshGraphNet {
    nodes,
    edges,
    rounds,
    decoder
});

/// What an edge learns from its ends, and a node from the edges that lead to it.
struct Round {
    edges: Sequential,
    nodes: Sequential,
}

tree!(Round { edges, nodes });

impl MeshGraphNet {
    fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        let normed = |inputs| -> Result<Sequential> {
            Ok(net(mesh, inputs, width, width)?.then(LayerNorm::new(mesh, width)?))
        };
        let round = |_| {
            Ok(Round {
                edges: normed(3 * width)?,
                nodes: normed(2 * width)?,
            })
        };
        let [of_nodes, of_edges, found] = FEATURES;
        Ok(Self {
            nodes: normed(of_nodes)?,
            edges: normed(of_edges)?,
            rounds: (0..ROUNDS).map(round).collect::<Result<_>>()?,
            decoder: net(mesh, width, width, found)?,
        })
    }

    /// Features `[nodes, ...]` and `[edges, ...]`, and the node that each edge comes from and leads to.
    fn forward(
        &self,
        nodes: &ShardTensor,
        edges: &ShardTensor,
        from: &ShardTensor,
        to: &ShardTensor,
    ) -> Result<ShardTensor> {
        let count = nodes.shape()[0];
        let (mut nodes, mut edges) = (self.nodes.forward(nodes)?, self.edges.forward(edges)?);
        for round in &self.rounds {
            let ends = [nodes.index_select(0, from)?, nodes.index_select(0, to)?];
            let seen = ShardTensor::cat(&[&edges, &ends[0], &ends[1]], 1)?;
            edges = edges.add(&round.edges.forward(&seen)?)?;
            let heard = edges.segment_sum(to, count)?;
            let seen = ShardTensor::cat(&[&nodes, &heard], 1)?;
            nodes = nodes.add(&round.nodes.forward(&seen)?)?;
        }
        self.decoder.forward(&nodes)
    }
}

/// Two linear layers.
fn net(mesh: &Mesh, inputs: usize, hidden: usize, outputs: usize) -> Result<Sequential> {
    Ok(Sequential::new()
        .then(Linear::new(mesh, inputs, hidden)?)
        .then(Map::new(ShardTensor::silu))
        .then(Linear::new(mesh, hidden, outputs)?))
}
