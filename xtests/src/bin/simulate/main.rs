//! How a job would scale, from 1 rank to 16,384, without the ranks.

mod jobs;
#[path = "../../../../shard-tensor/examples/downscale/model.rs"]
mod model;
mod others;
mod plot;
mod scaling;
mod setup;
mod validate;

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// Plays the main job, ring attention and a vision transformer on a cluster of any size, without data: times, bytes and
/// memory of a step, as a table and a picture, beside the figures that others published.
///
/// What runs are the programs themselves, one rank after the other of a few; see `shard_tensor::Simulation`. The cluster is
/// described, not measured; with --validate it is this machine, measured, and the forecast is compared with a run.
#[derive(Parser)]
#[command(name = "simulate")]
struct Cli {
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_value = "8,32,128,512,2048,8192,16384",
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    ranks: Vec<u32>,
    /// Only these programs.
    #[arg(long, value_enum, value_delimiter = ',')]
    jobs: Vec<Which>,
    /// Ranks per node.
    #[arg(long, default_value_t = 8)]
    per_node: usize,
    /// Link within a node: microseconds per message and gigabytes per second.
    #[arg(long, value_delimiter = ',', num_args = 2, default_value = "5,300")]
    inside: Vec<f64>,
    /// Link between nodes, per rank.
    #[arg(long, value_delimiter = ',', num_args = 2, default_value = "10,40")]
    between: Vec<f64>,
    /// What a rank computes: teraflops and terabytes per second.
    #[arg(long, value_delimiter = ',', num_args = 2, default_value = "20,2")]
    rate: Vec<f64>,
    /// Let the ranks that are played do their own work here instead, so that kernels and dispatch take what they take on a core of
    /// this machine. The memory of two ranks is needed.
    #[arg(long)]
    rehearse: bool,
    /// Where to draw the speedups, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print what each op takes on the busiest rank; with --validate by each kind of forecast.
    #[arg(long)]
    ops: bool,
    /// Measure this machine, and compare forecasts with runs of small cases on 2, 4 and 8 ranks of it: threads, or under
    /// mpirun (feature mpi) as many processes as it started.
    #[arg(long)]
    validate: bool,
    /// How often --validate takes turns between a run and its forecast, not counting turns in which other programs had more than a
    /// twentieth of the machine.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Measure time and memory of a rank's set-up and first steps, by the number of ranks (on Linux).
    #[arg(long)]
    setup: bool,
    /// Only measure this machine, on as many ranks as --ranks begins with.
    #[arg(long)]
    measure: bool,
}

/// A program.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// The U-Net of the main job.
    Unet,
    /// Attention over 2^17 tokens.
    Attention,
    /// A vision transformer on a picture of 2048 x 2048.
    Vit,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = if cli.measure || cli.validate {
        validate::run(&cli)
    } else if cli.setup {
        setup::run(&cli)
    } else {
        scaling::run(&cli)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::from(2)
        }
    }
}
