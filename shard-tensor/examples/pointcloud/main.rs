//! A graph network on the points of a real terrain, in uneven strips.
//!
//! The network learns how steep the terrain is at each of its points: all it is given is where they lie, and which are the
//! nearest of each. Three times over every point hears from its neighbours; it is scored on points whose steepness nobody told
//! it. Edges lie with their targets, so that messages end where they are made; of the sources that lie with other ranks each
//! row is fetched once, and who asks whom is found out once for all layers and steps.
//!
//! `cargo run --release -p shard-tensor --example pointcloud -- --help`

#[path = "../input/altitude.rs"]
mod altitude;
#[path = "../training/curve.rs"]
mod curve;
#[path = "../output/exit.rs"]
mod exit;
#[path = "../output/fields.rs"]
mod fields;
#[path = "../output/folder.rs"]
mod folder;
mod model;
#[path = "../training/progress.rs"]
mod progress;
#[path = "../output/raster.rs"]
mod raster;
mod report;
mod task;
#[path = "../output/told.rs"]
mod told;
mod train;
#[path = "../training/trained.rs"]
mod trained;

use clap::Parser;
use ndarray::s;
use shard_tensor::{DType, DeviceKind};
use std::path::PathBuf;
use std::process::ExitCode;
use told::Told;
use train::Job;

/// Trains a graph network on the points of a terrain, in uneven strips of rows.
#[derive(Parser)]
struct Args {
    /// Ranks, whose strips grow as 3, 4, 5, ...
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..))]
    ranks: u8,
    /// Every row and column, or only each second, third, ...
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    every: u8,
    /// Edges that end at each point, one of them its own.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..))]
    neighbours: u8,
    /// Optimizer steps [default: 200, with --verify 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Trains in f64, on one rank too, and fails unless weights and losses agree.
    #[arg(long)]
    verify: bool,
    /// Fails unless the error is at most this share of the spread of what is predicted, as 0.3.
    #[arg(long, value_name = "SHARE")]
    check: Option<f64>,
    /// What every rank computes on: host, test, cuda or emulated-cuda; the last two need the feature of that name.
    #[arg(long, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
    /// Where the loss curve and the picture go.
    #[arg(long, value_name = "DIR", default_value = "target/pointcloud")]
    out: PathBuf,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    exit::of(run(&Args::parse()))
}

/// Whether all is as it must be.
fn run(args: &Args) -> Result<bool, Failure> {
    let every = usize::from(args.every);
    let terrain = altitude::altitude()?.mapv(f64::from);
    let terrain = terrain.slice(s![..;every as isize, ..;every as isize]);
    let terrain = terrain.to_owned();
    let rows = altitude::strips(terrain.nrows(), args.ranks.into());
    let job = Job {
        terrain: &terrain,
        steepness: &task::steepness(&terrain, every),
        every,
        rows: &rows,
        neighbours: args.neighbours.into(),
        steps: args.steps.unwrap_or(if args.verify { 20 } else { 200 }) as usize,
        dtype: if args.verify { DType::F64 } else { DType::F32 },
        device: args.device,
    };
    folder::make(&args.out)?;
    // Of several processes, that of rank 0 tells what came of it.
    let outcome = job.run()?;
    let alone = match args.verify {
        true => Job {
            rows: &[terrain.nrows()],
            device: DeviceKind::Host,
            ..job
        }
        .run()?,
        false => None,
    };
    let Some(outcome) = outcome else {
        return Ok(true);
    };
    let mut out = Told::new();
    report::print(&mut out, &job, &outcome)?;
    report::draw(&mut out, &args.out, &job, &outcome)?;
    let mut passed = true;
    if let Some(share) = args.check {
        passed &= report::is_learned(&mut out, &outcome.score, share)?;
    }
    if let Some(alone) = &alone {
        passed &= trained::agree(&mut out, &outcome.trained, &alone.trained)?;
    }
    Ok(passed)
}
