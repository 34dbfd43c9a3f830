//! Messages along the edges of random graphs equal those on one rank, forward and backward: multigraphs with edges several times
//! over, nodes without any and to themselves, and graphs of nearest neighbours, under layouts of every kind, empty parts among them.

use super::ops::{check, mesh};
use proptest::prelude::*;
use shard_kernels::unary::Unary;
use shard_ops::indexing::{
    index_add, index_select, segment_max, segment_mean, segment_min, segment_softmax, segment_sum,
};
use shard_ops::testing::{Rng, Tolerance};
use shard_ops::{Exec, OpError, Value, elementwise};
use std::sync::Arc;
use xtests::case::{Case, Data, Tensor};
use xtests::dispatch::{Apply, ApplyError};
use xtests::generate::case;
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::{Recipe, recipe};

pub(super) const ALL: &[Property] =
    properties![messages_pass_as_on_one_rank, segments_are_one_ranks];

/// Sources and targets of edges between so many nodes.
#[derive(Clone, Debug)]
struct Graph {
    nodes: usize,
    source: Vec<i64>,
    target: Vec<i64>,
}

/// Any edges between any nodes, more often than not between the first third; some count from the end.
fn multigraphs() -> impl Strategy<Value = Graph> {
    (1_usize..24, 0_usize..60, any::<u64>()).prop_map(|(nodes, edges, seed)| {
        let mut rng = Rng::new(seed, &["multigraph"]);
        let mut end = || {
            let among = if rng.below(3) > 0 {
                nodes.div_ceil(3)
            } else {
                nodes
            };
            let node = rng.below(among) as i64;
            if rng.below(5) == 0 {
                node - nodes as i64
            } else {
                node
            }
        };
        let (source, target) = (0..edges).map(|_| (end(), end())).unzip();
        Graph {
            nodes,
            source,
            target,
        }
    })
}

/// Each of some points in a square hears from its nearest.
fn geometric_graphs() -> impl Strategy<Value = Graph> {
    (1_usize..24, 1_usize..5, any::<u64>()).prop_map(|(nodes, degree, seed)| {
        let mut rng = Rng::new(seed, &["geometric"]);
        let places: Vec<[i64; 2]> = (0..nodes)
            .map(|_| [rng.below(100) as i64, rng.below(100) as i64])
            .collect();
        let far = |a: usize, b: usize| -> i64 {
            (0..2).map(|d| (places[a][d] - places[b][d]).pow(2)).sum()
        };
        let near = |t: usize| {
            let mut others: Vec<usize> = (0..nodes).collect();
            others.sort_by_key(|&s| (far(s, t), s));
            others.truncate(degree);
            others.into_iter().map(move |s| (s as i64, t as i64))
        };
        let (source, target) = (0..nodes).flat_map(near).unzip();
        Graph {
            nodes,
            source,
            target,
        }
    })
}

fn list(elements: &[i64]) -> Tensor {
    Tensor {
        shape: vec![elements.len()],
        data: Arc::new(Data::I64(elements.to_vec())),
    }
}

/// A case of features `[nodes, width]`, weights `[edges, 1]` and the ends of edges.
fn along_edges(graph: &Graph, width: usize, seed: u64) -> Case {
    let edges = graph.source.len();
    let operands = [
        ("features", vec![graph.nodes, width]),
        ("weights", vec![edges, 1]),
    ];
    let mut case = case("messages", &serde_json::json!({}), &operands, seed);
    case.inputs.push(("source".into(), list(&graph.source)));
    case.inputs.push(("target".into(), list(&graph.target)));
    case
}

/// Features and, of their sources, weighted, what comes along edges.
fn messages(exec: &dyn Exec, _: &Case, values: &[Value]) -> Result<Vec<Value>, ApplyError> {
    let [features, weights, source, target] = values else {
        unreachable!("the case has four operands")
    };
    let there = index_select(exec, features, 0, source)?;
    let here = index_select(exec, features, 0, target)?;
    let apart = elementwise::sub(exec, &there, &here)?;
    let message = elementwise::mul(exec, &apart, weights)?;
    Ok(vec![index_add(exec, features, 0, target, &message, 2.0)?])
}

/// A case of rows `[edges, width]` and of the segments they are of.
fn rows_of_nodes(graph: &Graph, width: usize, seed: u64) -> Case {
    let rows = [("rows", vec![graph.target.len(), width])];
    let attributes = serde_json::json!({"nodes": graph.nodes});
    let mut case = case("segments", &attributes, &rows, seed);
    case.inputs.push(("ids".into(), list(&graph.target)));
    case
}

type Segments = fn(&dyn Exec, &Value, &Value, usize) -> Result<Value, OpError>;

/// Every fold over segments. Those without rows have infinities, which are cut off.
fn segments(exec: &dyn Exec, case: &Case, values: &[Value]) -> Result<Vec<Value>, ApplyError> {
    let [rows, ids] = values else {
        unreachable!("the case has two operands")
    };
    let nodes = case.attributes.size("nodes", 0)?;
    let folds: [Segments; 4] = [segment_sum, segment_mean, segment_max, segment_min];
    let finite = Unary::Clamp {
        min: -1e3,
        max: 1e3,
    };
    let mut all = Vec::new();
    for fold in folds {
        let folded = fold(exec, rows, ids, nodes)?;
        all.push(elementwise::unary(exec, &folded, finite)?);
    }
    all.push(segment_softmax(exec, rows, ids, nodes)?);
    Ok(all)
}

/// A case of a graph, a mesh, and layouts for the operands; lists of nodes are whole numbers, and not given as sums.
fn scenes(
    made: fn(&Graph, usize, u64) -> Case,
) -> impl Strategy<Value = (Case, Vec<usize>, Vec<Recipe>)> {
    let graphs = prop_oneof![multigraphs().boxed(), geometric_graphs().boxed()];
    (mesh(), graphs, 1_usize..4, any::<u64>()).prop_flat_map(move |(mesh, graph, width, seed)| {
        let case = made(&graph, width, seed);
        let recipes: Vec<_> = (case.inputs.iter())
            .map(|(_, t)| recipe(mesh.len(), t.shape.len(), t.data.dtype().is_float()))
            .collect();
        (Just(case), Just(mesh), recipes)
    })
}

proptest! {
    #![proptest_config(xtests::strategies::config(64))]

    fn messages_pass_as_on_one_rank((case, mesh, recipes) in scenes(along_edges)) {
        check(case, messages as Apply, &mesh, &recipes, Tolerance::EXACT)?;
    }

    fn segments_are_one_ranks((case, mesh, recipes) in scenes(rows_of_nodes)) {
        // Of few rows the gradients of all folds may cancel to less than the rounding of one.
        let tolerance = Tolerance { relative: 1e-12, absolute: 1e-13 };
        check(case, segments as Apply, &mesh, &recipes, tolerance)?;
    }
}
