//! Cases that are functions of tensors: the same text on a mesh, and on each rank alone.

use crate::case::{Bench, Limit, Work};
use shard_tensor::{Context, DType, Error, Result, ShardTensor};

/// What a rank that works alone has of an operand.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Share {
    /// Its piece.
    Piece,
    /// All of it, as when every query meets every key.
    Whole,
}

/// An operand, and a rank's share of it.
pub(crate) type Operand = (ShardTensor, Share);

/// A case that is a function of tensors. Several ranks are bounded by the same function of their shares; one by the machine.
pub(crate) fn bench(
    operands: &[Operand],
    f: impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + Clone + 'static,
    machine: impl FnOnce(&Context) -> Result<Limit>,
    work: Option<Work>,
) -> Result<Bench> {
    let inputs: Vec<ShardTensor> = operands.iter().map(|o| o.0.clone()).collect();
    let ctx = inputs[0].context().clone();
    let limit = if ctx.world_size() == 1 {
        machine(&ctx)?
    } else {
        let alone = (operands.iter())
            .map(|(x, share)| match share {
                Share::Piece => x.to_local(),
                Share::Whole => whole(x),
            })
            .collect::<Result<Vec<_>>>()?;
        let f = f.clone();
        // A piece that is smaller than a window is no operand by itself: that rank has next to nothing to do.
        let alone = f(&alone).is_ok().then_some(alone);
        Limit::new("alone", move || alone.as_deref().map(&f).transpose())
    };
    let check = {
        let (inputs, f) = (inputs.clone(), f.clone());
        move || difference(&inputs, f)
    };
    let mut bench = Bench::new(move || f(&inputs)).limit(limit);
    bench.work = work;
    if ctx.world_size() > 1 {
        bench = bench.check(check);
    }
    Ok(bench)
}

/// The gradients by all inputs but the last, of the function's first result, whose cotangent is the last input.
pub(crate) fn gradients(
    f: impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + Clone + 'static,
) -> impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + Clone + 'static {
    gradients_by(|_| true, f)
}

/// As [`gradients`], by some of the inputs.
pub(crate) fn gradients_by(
    varied: impl Fn(usize) -> bool + Clone + 'static,
    f: impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + Clone + 'static,
) -> impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + Clone + 'static {
    move |inputs| {
        let Some((cotangent, inputs)) = inputs.split_last() else {
            return Err(Error::custom("gradients of nothing"));
        };
        let leaves = (inputs.iter().enumerate())
            .map(|(i, x)| {
                if varied(i) {
                    x.requires_grad()
                } else {
                    Ok(x.clone())
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let gradients = f(&leaves)?[0].backward_with(cotangent)?;
        (leaves.iter().enumerate())
            .filter(|(i, _)| varied(*i))
            .map(|(_, leaf)| {
                let gradient = gradients.get(leaf)?;
                gradient.ok_or_else(|| Error::custom("a result that does not depend on an input"))
            })
            .collect()
    }
}

/// The whole of a tensor, on this rank alone.
fn whole(x: &ShardTensor) -> Result<ShardTensor> {
    x.full_tensor()?.to_local()
}

/// The largest difference between what the function gives on the mesh and on one rank.
fn difference(
    inputs: &[ShardTensor],
    f: impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>,
) -> Result<Option<f64>> {
    let got = (f(inputs)?.iter())
        .map(numbers)
        .collect::<Result<Vec<_>>>()?;
    let inputs = inputs.iter().map(whole).collect::<Result<Vec<_>>>()?;
    if inputs[0].context().rank() > 0 {
        return Ok(None);
    }
    let mut worst: f64 = 0.0;
    for (got, expected) in got.iter().zip(f(&inputs)?) {
        worst = worst.max(relative(got, &numbers(&expected)?));
    }
    Ok(Some(worst))
}

/// The largest difference as a share of the largest expected number; NaN if there is one.
pub(crate) fn relative(got: &[f64], expected: &[f64]) -> f64 {
    let (mut largest, mut apart): (f64, f64) = (0.0, 0.0);
    for (g, e) in got.iter().zip(expected) {
        largest = largest.max(e.abs());
        let d = (g - e).abs();
        apart = if d > apart || d.is_nan() { d } else { apart };
    }
    match got.len() == expected.len() {
        false => f64::NAN,
        true if apart == 0.0 => 0.0,
        true => apart / largest,
    }
}

/// All elements.
pub(crate) fn numbers(x: &ShardTensor) -> Result<Vec<f64>> {
    Ok(match x.dtype() {
        DType::I64 => x.to_array::<i64>()?.iter().map(|&v| v as f64).collect(),
        _ => x
            .to(DType::F32)?
            .to_array::<f32>()?
            .iter()
            .map(|&v| f64::from(v))
            .collect(),
    })
}
