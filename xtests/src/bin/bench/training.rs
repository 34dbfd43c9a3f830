//! Steps of training: on a mesh, and beside it on each rank alone.

use crate::case::{Bench, Limit};
use crate::harness::TOLERANCE;
use crate::tensors::relative;
use shard_tensor::nn::{ModelExt, Tree};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{DType, Error, Mesh, Result, ShardTensor};

/// What a model makes of a batch of so many tensors: the number that training lowers.
pub(crate) type Loss<M, const N: usize> = fn(&M, &[ShardTensor; N]) -> Result<ShardTensor>;

/// How far a step of the optimizer goes, in the program of PyTorch too.
const RATE: f64 = 1e-3;

/// A model that learns from one batch again and again.
struct Training<M, const N: usize> {
    model: M,
    adam: AdamW,
    batch: [ShardTensor; N],
    loss: Loss<M, N>,
    /// What products are computed in: other than `f32`, inside [`autocast`](shard_tensor::Context::autocast).
    products: DType,
}

impl<M: Tree, const N: usize> Training<M, N> {
    fn new(model: M, batch: [ShardTensor; N], loss: Loss<M, N>, products: DType) -> Result<Self> {
        let adam = AdamW::new(model.parameters(), RATE)?;
        Ok(Self {
            model,
            adam,
            batch,
            loss,
            products,
        })
    }

    /// Forward, loss, backward, and a step of the optimizer.
    fn step(&mut self) -> Result<ShardTensor> {
        let loss = || (self.loss)(&self.model, &self.batch);
        let loss = self.batch[0].context().autocast(self.products, loss)?;
        self.adam.step(&loss.backward()?)?;
        loss.reduced()
    }
}

/// A step of training. On several ranks it is bounded by a step of each rank alone on its pieces of the batch, and the losses of
/// three steps are compared with those of one rank that has all of it.
pub(crate) fn bench<M: Tree + 'static, const N: usize>(
    batch: &[ShardTensor; N],
    model: impl Fn(&Mesh) -> Result<M>,
    loss: Loss<M, N>,
) -> Result<Bench> {
    bench_with(batch, model, Ok, loss, DType::F32)
}

/// As [`bench()`], where products are computed in another type.
pub(crate) fn bench_in<M: Tree + 'static, const N: usize>(
    products: DType,
    batch: &[ShardTensor; N],
    model: impl Fn(&Mesh) -> Result<M>,
    loss: Loss<M, N>,
) -> Result<Bench> {
    bench_with(batch, model, Ok, loss, products)
}

/// As [`bench()`], of a model whose parameters are placed on the mesh.
pub(crate) fn bench_placed<M: Tree + 'static, const N: usize>(
    batch: &[ShardTensor; N],
    model: impl Fn(&Mesh) -> Result<M>,
    place: impl Fn(M) -> Result<M>,
    loss: Loss<M, N>,
) -> Result<Bench> {
    bench_with(batch, model, place, loss, DType::F32)
}

fn bench_with<M: Tree + 'static, const N: usize>(
    batch: &[ShardTensor; N],
    model: impl Fn(&Mesh) -> Result<M>,
    place: impl Fn(M) -> Result<M>,
    loss: Loss<M, N>,
    products: DType,
) -> Result<Bench> {
    // Batches may begin with integers.
    let model = |batch: &[ShardTensor; N]| model(&batch[0].mesh().with_dtype(DType::F32));
    let train = |batch: [ShardTensor; N]| Training::new(model(&batch)?, batch, loss, products);
    let mut training = Training::new(place(model(batch)?)?, batch.clone(), loss, products)?;
    let parameters = parameter_count(&training.model);
    if batch[0].context().world_size() == 1 {
        return Ok(Bench::new(move || training.step()).parameters(parameters));
    }
    let whole = each(batch, |x| x.full_tensor()?.to_local())?;
    let mut single = train(whole)?;
    copy_weights(&training.model, &single.model)?;
    let mut alone = train(each(batch, ShardTensor::to_local)?)?;
    let mut losses = Vec::new();
    for _ in 0..3 {
        losses.push((training.step()?.item()?, single.step()?.item()?));
    }
    let (got, expected): (Vec<f64>, Vec<f64>) = losses.into_iter().unzip();
    Ok(Bench {
        found: got.clone(),
        tolerance: tolerance_in(products),
        ..Bench::new(move || training.step())
            .limit(Limit::new("alone", move || alone.step()))
            .check(move || Ok(Some(relative(&got, &expected))))
            .parameters(parameters)
    })
}

/// How far results may be from one rank's: in 16 bits, terms of ranks are rounded.
pub(crate) fn tolerance_in(products: DType) -> f64 {
    match products {
        DType::F32 => TOLERANCE,
        _ => 0.02,
    }
}

/// How many numbers a model learns.
pub(crate) fn parameter_count(model: &impl Tree) -> usize {
    let parameters = model.parameters();
    parameters.iter().map(|(_, p)| p.numel()).sum()
}

/// What a function makes of each tensor.
fn each<const N: usize>(
    tensors: &[ShardTensor; N],
    f: impl Fn(&ShardTensor) -> Result<ShardTensor>,
) -> Result<[ShardTensor; N]> {
    let mut found = tensors.clone();
    for x in &mut found {
        *x = f(x)?;
    }
    Ok(found)
}

/// Gives a model on one rank the weights of another.
fn copy_weights(from: &impl Tree, to: &impl Tree) -> Result<()> {
    for ((name, from), (_, to)) in from.parameters().iter().zip(to.parameters()) {
        to.set(&from.detach().full_tensor()?.to_local()?)
            .map_err(|e| Error::custom(format!("{name}: {e}")))?;
    }
    Ok(())
}
