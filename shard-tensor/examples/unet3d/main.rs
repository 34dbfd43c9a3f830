//! A U-Net of three dims on a real weather forecast, its levels in pieces like its rows and columns.
//!
//! A forecast of air temperature has 7 levels of 204 x 187 points. Every second level is hidden, and the U-Net learns to
//! restore it from those above and below and the altitude of the ground: what linear interpolation lacks. It trains on two hours
//! and is scored on the third. Every rank holds a box of the volume; the model's pools and transposed convolutions halve and
//! double extents that no mesh divides evenly, 7 levels become 4 and then 2, and the model does not know.
//!
//! `cargo run --release -p shard-tensor --example unet3d -- --help`

#[path = "../output/exit.rs"]
mod exit;
#[path = "../output/fields.rs"]
mod fields;
#[path = "../output/folder.rs"]
mod folder;
#[path = "../input/forecast.rs"]
mod forecast;
mod model;
#[path = "../input/numbers.rs"]
mod numbers;
#[path = "../output/pieces.rs"]
mod pieces;
#[path = "../training/progress.rs"]
mod progress;
#[path = "../output/ranks.rs"]
mod ranks;
#[path = "../output/raster.rs"]
#[expect(dead_code, reason = "other examples draw the ground")]
mod raster;
#[path = "../output/restored.rs"]
mod restored;
#[path = "../output/scores.rs"]
mod scores;
mod task;
#[path = "../output/told.rs"]
mod told;
mod train;
#[path = "../training/trained.rs"]
mod trained;
#[path = "../input/uneven.rs"]
mod uneven;

use clap::Parser;
use forecast::Forecast;
use numbers::numbers;
use shard_tensor::DType;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use told::Told;
use train::Job;

type Failure = Box<dyn std::error::Error>;

/// Trains a U-Net of three dims to restore hidden levels of a forecast, on uneven boxes of it.
#[derive(Parser)]
struct Args {
    /// Ranks along the levels, rows and columns of the volume.
    #[arg(long, default_value = "2x2x1", value_parser = numbers::<3>)]
    mesh: [usize; 3],
    /// Optimizer steps [default: 200, with --verify 10]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: Option<u32>,
    /// Channels at the finest resolution within, a multiple of 4.
    #[arg(long, default_value_t = 8)]
    width: usize,
    /// Trains in double precision, on one rank too, and fails unless both agree.
    #[arg(long)]
    verify: bool,
    /// Fails unless the model beats interpolation clearly on every hidden level.
    #[arg(long)]
    check: bool,
    /// Where the picture goes.
    #[arg(long, value_name = "DIR", default_value = "target/unet3d")]
    out: PathBuf,
    /// Where uk_hires_theta.npy and uk_hires_altitude.npy are.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data"))]
    data: PathBuf,
}

fn main() -> ExitCode {
    exit::of(run(&Args::parse()))
}

/// Whether all is as it must be.
fn run(args: &Args) -> Result<bool, Failure> {
    let forecast = Forecast::read(&args.data)?;
    let [_, levels, ..] = forecast.shape();
    if levels < 3 || levels.is_multiple_of(2) {
        return Err(format!("{levels} levels: an odd number from 3 on has levels between").into());
    }
    if args.width == 0 || !args.width.is_multiple_of(4) {
        return Err("--width is a multiple of 4".into());
    }
    folder::make(&args.out)?;
    let job = Job {
        data: &args.data,
        forecast: &forecast,
        mesh: args.mesh,
        width: args.width,
        steps: args.steps.unwrap_or(if args.verify { 10 } else { 200 }) as usize,
        dtype: if args.verify { DType::F64 } else { DType::F32 },
    };
    let many = job.run()?;
    let one = match args.verify {
        true => Job {
            mesh: [1, 1, 1],
            ..job
        }
        .run()?,
        false => None,
    };
    // Of several processes, that of rank 0 tells what came of it.
    let Some(many) = many else {
        return Ok(true);
    };
    let mut out = Told::new();
    let ([down, north, east], course) = (args.mesh, &many.trained.course);
    writeln!(
        out,
        "\n{down} x {north} x {east} ranks, {} steps in {}\n",
        job.steps, job.dtype
    )?;
    scores::print(&mut out, &many.restored.scores, "linear", "U-Net")?;
    ranks::print(&mut out, &many.ranks, job.steps)?;
    writeln!(out, "\n{course} (1 is the error of interpolation)")?;
    let file = args.out.join("unet3d.svg");
    (many.restored).draw(&file, "a U-Net of three dims")?;
    writeln!(out, "\nwrote {}", file.display())?;
    let mut passed = true;
    if args.check {
        passed &= scores::verdict(&mut out, &many.restored.scores)?;
    }
    if let Some(one) = one {
        passed &= trained::agree(&mut out, &many.trained, &one.trained)?;
    }
    Ok(passed)
}
