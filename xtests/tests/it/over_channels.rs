//! Programs of tensors over the backend of shard-comm's example, which is made of what anybody can use.

#[path = "../../../shard-comm/examples/backend/channels.rs"]
mod channels;

use shard_comm::{DeviceRef, Host};
use shard_tensor::{Context, ConvOptions, Error, Launch, Result, replicate, shard};
use std::rc::Rc;
use std::time::Duration;

fn over_channels<T: Send>(
    ranks: usize,
    program: impl Fn(&Context) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    Launch::new(ranks).seed(3).run_over(
        |ranks, rank| {
            let devices = (0..ranks).map(|_| Host::new() as DeviceRef).collect();
            channels::run(devices, Duration::from_secs(60), |comm| rank(Rc::new(comm)))
        },
        program,
    )
}

/// A convolution with halos on uneven shards, its gradient, and a move.
fn program(ctx: &Context) -> Result<(Vec<f32>, Vec<f32>)> {
    let mesh = ctx.mesh_of(ctx.world().size())?;
    let x = mesh.randn([1, 2, 11, 5], shard(2))?.requires_grad()?;
    let w = mesh.randn([3, 2, 3, 3], replicate())?;
    let y = x.conv2d(&w, None, ConvOptions::new().padding(1))?;
    let gradients = y.mul(&y)?.sum_all()?.backward()?;
    let moved = y.redistribute(shard(1))?;
    let gradient = gradients
        .get(&x)?
        .ok_or_else(|| Error::custom("no gradient"))?;
    let values = |array: ndarray::ArrayD<f32>| array.into_iter().collect();
    Ok((values(moved.to_array()?), values(gradient.to_array()?)))
}

#[test]
fn tensors_give_the_same_over_channels_as_over_memory() {
    for ranks in [1, 2, 3] {
        let expected = Launch::new(ranks).seed(3).run(program).unwrap();
        assert_eq!(over_channels(ranks, program).unwrap(), expected, "{ranks}");
    }
}

#[test]
fn the_cause_is_found_over_channels_too() {
    let lost = over_channels(3, |ctx| match ctx.rank() {
        1 => Err(Error::custom("no such file")),
        _ => Ok(ctx.world().barrier()?),
    });
    assert_eq!(lost.unwrap_err().to_string(), "rank 1: no such file");
}
