//! Tokens one after the other: the likeliest each time, with the keys and values of those before kept.

use super::llama::{Llama, Sizes};
use super::{PRODUCTS, named};
use crate::case::Bench;
use crate::suite::Suite;
use crate::tensors::{numbers, relative};
use crate::training::{parameter_count, tolerance_in};
use shard_tensor::nn::Module;
use shard_tensor::{Context, DType, Result, ShardTensor, replicate};

pub(super) fn add(suite: &mut Suite<'_>) {
    let (count, sizes) = (suite.size(32, 4), Sizes::of(suite));
    // One sequence has no samples to divide.
    for products in PRODUCTS {
        if suite.options.ranks.contains(&1) {
            let name = named(&format!("Llama decodes {count} tokens"), products);
            suite.add(name, 1, move |ctx| bench(ctx, sizes, count, products));
        }
    }
}

/// It is checked that logits of the last token are those that the model has for all tokens at once.
fn bench(ctx: &Context, sizes: Sizes, count: usize, products: DType) -> Result<Bench> {
    let mesh = ctx.mesh_of(1)?;
    let model = Llama::new(&mesh, sizes)?;
    let first = mesh.randint([1, 1], 0..sizes.tokens as i64, replicate())?;
    let parameters = parameter_count(&model);
    let (tokens, last) = decode(&model, &first, count, products)?;
    let all = ctx.autocast(products, || model.forward(&ShardTensor::cat(&tokens, 1)?))?;
    let (got, expected) = (numbers(&last)?, numbers(&all.narrow(1, count - 1..count)?)?);
    let bench = Bench::new(move || decode(&model, &first, count, products))
        .check(move || Ok(Some(relative(&got, &expected))))
        .parameters(parameters);
    Ok(Bench {
        tolerance: tolerance_in(products),
        ..bench
    })
}

/// So many tokens from the first on, `[samples, 1]` each, and the logits of what comes after the last.
fn decode(
    model: &Llama,
    first: &ShardTensor,
    count: usize,
    products: DType,
) -> Result<(Vec<ShardTensor>, ShardTensor)> {
    let ctx = first.context();
    let decode = || {
        let (mut tokens, mut past) = (vec![first.clone()], model.nothing());
        loop {
            let place = tokens.len() - 1;
            let logits = model.forward_at(&tokens[place], place, &mut past)?;
            if tokens.len() == count {
                return Ok((tokens, logits));
            }
            tokens.push(logits.argmax([2])?);
        }
    };
    ctx.no_grad(|| ctx.autocast(products, decode))
}
