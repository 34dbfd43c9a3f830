//! Prints what a training step holds at most on one rank, beside what its vjps read.

use clap::Parser;
use shard_comm::DType;
use shard_tensor::{Launch, Result};
use xtests::say;
use xtests::step_memory::{Learner, held};

/// What a training step of the examples' models holds at most: rank 0, bytes.
#[derive(Parser)]
struct Args {
    /// Numbers of ranks, one thread each
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    ranks: Vec<usize>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    say!(
        "{:<6} {:>5} {:<5} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7}",
        "model",
        "ranks",
        "type",
        "parameters",
        "saved",
        "forward",
        "peak",
        "excess",
        "of f32"
    );
    for learner in [Learner::UNet, Learner::Vit] {
        for &ranks in &args.ranks {
            let mut full = None;
            for autocast in [None, Some(DType::BF16)] {
                let told = Launch::new(ranks)
                    .seed(1)
                    .run(|ctx| held(ctx, learner, 1, autocast))?;
                let Some(held) = told.first() else { continue };
                let all = *full.get_or_insert(held.saved);
                say!(
                    "{:<6} {ranks:>5} {:<5} {:>10} {:>10} {:>10} {:>10} {:>7.3} {:>7.3}",
                    format!("{learner:?}"),
                    autocast.unwrap_or(DType::F32).to_string(),
                    held.parameters,
                    held.saved,
                    held.forward,
                    held.peak,
                    held.excess(),
                    held.saved as f64 / all as f64,
                );
            }
        }
    }
    Ok(())
}
