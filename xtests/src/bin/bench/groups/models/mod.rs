//! Whole models as users write them, and what a step of training takes: forward, loss, backward and `AdamW`. Samples are divided over
//! the ranks.
//!
//! Fields have the names that `torch_models.py` gives its own, so that weights can be copied from one to the other.

mod convnext;
mod dcgan;
mod decoding;
mod fno;
mod graph_attention;
pub(super) mod llama;
mod mesh_graph;
mod pinn;
mod recurrent;
pub(super) mod resnet;
mod swin;
pub(super) mod unet;
mod vit;

use crate::case::Bench;
use crate::suite::{Split, Suite};
use crate::training::{self, Loss};
use shard_tensor::nn::{Module, Tree};
use shard_tensor::{AxisPlacement, ClassLoss, DType, Mesh, Result, ShardTensor};

pub(super) fn add(suite: &mut Suite<'_>) {
    vit::add(suite);
    swin::add(suite);
    llama::add(suite);
    decoding::add(suite);
    resnet::add(suite);
    convnext::add(suite);
    unet::add(suite);
    dcgan::add(suite);
    fno::add(suite);
    pinn::add(suite);
    mesh_graph::add(suite);
    graph_attention::add(suite);
    recurrent::add(suite);
}

/// Adds steps of a model whose samples know nothing of each other.
fn train<M: Tree + 'static, const N: usize>(
    suite: &mut Suite<'_>,
    name: &str,
    batch: impl Fn(&Samples) -> Result<[ShardTensor; N]> + Clone + Sync + 'static,
    model: impl Fn(&Mesh) -> Result<M> + Clone + Sync + 'static,
    loss: Loss<M, N>,
) {
    add_steps(suite, name, move |samples, products| {
        training::bench_in(products, &batch(samples)?, &model, loss)
    });
}

/// As [`train`], on a graph. Edges name nodes that other ranks have, so no rank could do its part alone.
fn train_on_graph<M: Tree + 'static, const N: usize>(
    suite: &mut Suite<'_>,
    name: &str,
    graph: impl Fn(&Samples) -> Result<[ShardTensor; N]> + Clone + Sync + 'static,
    model: impl Fn(&Mesh) -> Result<M> + Clone + Sync + 'static,
    loss: Loss<M, N>,
) {
    add_steps(suite, name, move |samples, products| {
        let bench = training::bench_in(products, &graph(samples)?, &model, loss)?;
        Ok(Bench {
            limit: None,
            ..bench
        })
    });
}

/// Adds a case on all numbers of ranks, for all types that products are computed in.
fn add_steps(
    suite: &mut Suite<'_>,
    name: &str,
    bench: impl Fn(&Samples, DType) -> Result<Bench> + Clone + Sync + 'static,
) {
    let split = suite.options.split;
    for products in PRODUCTS {
        for &ranks in &suite.options.ranks {
            let bench = bench.clone();
            suite.add(named(name, products), ranks, move |ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                bench(&Samples { mesh, split, ranks }, products)
            });
        }
    }
}

/// What models compute products in, other than `f32` inside [`autocast`](shard_tensor::Context::autocast).
const PRODUCTS: [DType; 2] = [DType::F32, DType::BF16];

fn named(name: &str, products: DType) -> String {
    match products {
        DType::F32 => format!("models/{name}"),
        other => format!("models/{name} in {other}"),
    }
}

/// Draws tensors whose first dim is divided over the ranks.
struct Samples {
    mesh: Mesh,
    split: Split,
    ranks: usize,
}

impl Samples {
    /// Standard normal numbers.
    fn normal<const D: usize>(&self, shape: [usize; D]) -> Result<ShardTensor> {
        self.mesh.randn(shape, [self.divided(shape[0])])
    }

    /// Integers from 0 on, below an end.
    fn below<const D: usize>(&self, end: usize, shape: [usize; D]) -> Result<ShardTensor> {
        let by = [self.divided(shape[0])];
        self.mesh.randint(shape, 0..end as i64, by)
    }

    fn divided(&self, samples: usize) -> AxisPlacement {
        self.split.shard(0, samples, self.ranks)
    }
}

/// The loss of a model that tells classes apart, for inputs and their classes.
pub(super) fn cross_entropy<M: Module>(
    model: &M,
    [inputs, classes]: &[ShardTensor; 2],
) -> Result<ShardTensor> {
    let logits = model.forward(inputs)?;
    logits.cross_entropy(classes, &ClassLoss::new())
}

/// The loss of a model that gives numbers, for inputs and what it should give.
pub(super) fn mean_square<M: Module>(
    model: &M,
    [inputs, targets]: &[ShardTensor; 2],
) -> Result<ShardTensor> {
    model.forward(inputs)?.mse_loss(targets)
}
