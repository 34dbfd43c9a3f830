//! Adds two vectors whose pieces are uneven. Every rank adds its own pieces: nothing moves.
//!
//! `cargo run --release -p shard-tensor --example vector_add`

use clap::Parser;
use shard_tensor::{DeviceKind, Launch, Result, shard};

/// Adds two vectors whose pieces are uneven.
#[derive(Parser)]
struct Args {
    /// What every rank computes on: host, test, cuda or emulated-cuda; the last two need the feature of that name.
    #[arg(long, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let reports = Launch::new(4).device(args.device).run(|ctx| {
        let mesh = ctx.mesh([("ranks", 4)])?;
        let uneven = [shard(0).sizes([400, 100, 0, 500])];
        let a = mesh.arange(1000, uneven.clone())?;
        let b = mesh.full(1000, 0.5, uneven)?;

        let before = ctx.ledger().snapshot();
        let sum = &a + &b;
        let moved = ctx.ledger().since(&before);

        let last = sum.to_local_array::<f32>()?.last().copied();
        Ok(format!(
            "rank {}: {sum}, piece of {}, last element {last:?}; received {} bytes in {} messages",
            ctx.rank(),
            sum.local_shape()[0],
            moved.bytes,
            moved.messages,
        ))
    })?;
    println!("{}", reports.join("\n"));
    Ok(())
}
