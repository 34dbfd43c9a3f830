//! Forty-six cases of domain-parallel programs, by number: what NVIDIA's `ShardTensor` set as the example, with the right answer
//! where it gives none. Where a case says nothing else, results and gradients equal those of one rank, and gradients lie as
//! their values do.

mod layouts;
mod operations;
mod programs;

use crate::common::{numbers, on, pattern};
use ndarray::{Array1, ArrayD, IxDyn, array};
use shard_tensor::nn::{self, ModelExt, Module};
use shard_tensor::op::EdgeMap;
use shard_tensor::optim::{Optimizer, Sgd};
use shard_tensor::{
    Attention, Causal, ConvOptions, ConvTransposeOptions, DType, ErrorClass, FoldBy, GradAs,
    Launch, Layout, LocalSizes, Mesh, Neighborhood, Placements, PoolOptions, ReduceOp,
    ResampleMode, Result, ShardTensor, partial, replicate, shard,
};

/// The shape and the placements of an operand.
type Operand = (Vec<usize>, Placements);

fn operand(shape: &[usize], placements: impl Into<Placements>) -> Operand {
    (shape.to_vec(), placements.into())
}

type Function<'a> = dyn Fn(&[ShardTensor]) -> Result<ShardTensor> + Sync + 'a;

/// The result of a function, and the gradients of its mean square.
fn results(mesh: &Mesh, operands: &[Operand], f: &Function<'_>) -> Result<Vec<Vec<f64>>> {
    let make = |(seed, (shape, placements)): (usize, &Operand)| {
        mesh.from_fn(shape.clone(), placements, |i| pattern(seed, i))?
            .requires_grad()
    };
    let x = (operands.iter().enumerate().map(make)).collect::<Result<Vec<_>>>()?;
    let y = f(&x)?;
    let gradients = y.square()?.mean_all()?.backward()?;
    let mut found = vec![numbers(&y)?];
    for x in &x {
        let dx = gradients.get(x)?.expect("all operands are used");
        assert_eq!(dx.layout(), x.layout());
        found.push(numbers(&dx)?);
    }
    Ok(found)
}

/// Compares a function on a mesh with the same on one rank, relative to the largest number.
fn equal(mesh: &[usize], operands: &[Operand], f: &Function<'_>) {
    let whole: Vec<Operand> = (operands.iter())
        .map(|(shape, _)| operand(shape, Placements::replicated()))
        .collect();
    let alone = Launch::new(1)
        .dtype(DType::F64)
        .run(|ctx| results(&ctx.mesh_of(1)?, &whole, f));
    let alone = alone.unwrap().swap_remove(0);
    on(mesh.iter().product(), |ctx| {
        let found = results(&ctx.mesh_of(mesh.to_vec())?, operands, f)?;
        for (k, (found, exact)) in found.iter().zip(&alone).enumerate() {
            close(found, exact, 1e-12, &format!("{k}: {operands:?}"));
        }
        Ok(())
    });
}

fn close(found: &[f64], exact: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let most = exact.iter().fold(1e-300, |most: f64, x| most.max(x.abs()));
    for (a, b) in found.iter().zip(exact) {
        assert!((a - b).abs() <= tolerance * most, "{what}: {a}, not {b}");
    }
}

/// A tensor whose elements are their own row-major numbers.
fn field(mesh: &Mesh, shape: &[usize], placements: impl Into<Placements>) -> Result<ShardTensor> {
    let at = |i: &[usize]| i.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
    mesh.from_fn(shape.to_vec(), placements, |i| at(i) as f64)
}

/// Whether a [field] is what it was, on every rank, and lies where its layout says.
fn is_field(x: &ShardTensor) -> Result<()> {
    let n: usize = x.shape().iter().product();
    assert_eq!(numbers(x)?, (0..n).map(|i| i as f64).collect::<Vec<_>>());
    Ok(())
}

/// Sizes by which ranks along an axis differ.
fn uneven(dim: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|r| 4 * (r + dim + 1) + 2 * r).collect()
}
