//! A scalar product of two sharded vectors. Every rank multiplies its own pieces, which leaves the result partial;
//! only reading it communicates, and then one number per rank.
//!
//! `cargo run --release -p shard-tensor --example dot`

use clap::Parser;
use shard_tensor::{DType, DeviceKind, Launch, Result, shard};

/// A scalar product of two sharded vectors.
#[derive(Parser)]
struct Args {
    /// What every rank computes on: host, test, cuda or emulated-cuda; the last two need the feature of that name.
    #[arg(long, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let launch = Launch::new(4).dtype(DType::F64).device(args.device);
    let reports = launch.run(|ctx| {
        let mesh = ctx.mesh([("ranks", 4)])?;
        let x = mesh.arange(1001, [shard(0)])?;
        let y = mesh.ones(1001, [shard(0)])?;

        let start = ctx.ledger().snapshot();
        let product = x.dot(&y)?;
        let after_dot = ctx.ledger().since(&start);
        let own = product.to_local_array::<f64>()?.sum();
        let value = product.item()?;
        let after_item = ctx.ledger().since(&start);

        Ok(format!(
            "rank {}: {product}, own share {own}, value {value}; received {} bytes for the product, {} to read it",
            ctx.rank(),
            after_dot.bytes,
            after_item.bytes - after_dot.bytes,
        ))
    })?;
    println!("{}", reports.join("\n"));
    Ok(())
}
