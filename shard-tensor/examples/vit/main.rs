//! A vision transformer on a real weather forecast: data parallel, domain parallel and fully sharded at once.
//!
//! A forecast of air temperature has 7 levels of 204 x 187 points. Every second level is hidden, and the transformer learns to
//! restore it from the one above and the one below: what linear interpolation lacks. Patches of fields are its tokens. The hidden
//! levels of two hours are the samples: the axes `data` and `shard` of the mesh divide them, unevenly; `domain` divides the rows of each field, so that attention goes around a ring of ranks; and over `shard` every parameter is divided too,
//! gathered for each use and dropped. A training that was put down goes on with `--resume`, on as many ranks as there are then.
//!
//! `cargo run --release -p shard-tensor --example vit -- --help`

#[path = "../output/exit.rs"]
mod exit;
#[path = "../output/fields.rs"]
mod fields;
#[path = "../output/folder.rs"]
mod folder;
#[path = "../input/forecast.rs"]
mod forecast;
#[path = "../input/hidden.rs"]
mod hidden;
#[path = "../training/keep.rs"]
mod keep;
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
#[expect(dead_code, reason = "other examples judge them")]
mod scores;
#[path = "../output/told.rs"]
mod told;
mod train;
#[path = "../training/trained.rs"]
mod trained;
#[path = "../input/uneven.rs"]
mod uneven;
mod verify;

use clap::Parser;
use forecast::Forecast;
use keep::Keep;
use model::Sizes;
use numbers::numbers;
use shard_tensor::DType;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use told::Told;
use train::Job;

type Failure = Box<dyn std::error::Error>;

/// Trains a vision transformer to restore hidden levels of a forecast on a mesh of three axes.
#[derive(Parser)]
struct Args {
    /// Ranks along the axes data, domain and shard.
    #[arg(long, default_value = "1x2x2", value_parser = numbers::<3>)]
    mesh: [usize; 3],
    /// Optimizer steps [default: 200, with --verify 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: Option<u32>,
    /// Points along the side of a patch, which divides the field's sides.
    #[arg(long, default_value_t = 17)]
    side: usize,
    /// Features of a token, of which each head has eight.
    #[arg(long, default_value_t = 96)]
    width: usize,
    /// Blocks of attention.
    #[arg(long, default_value_t = 2)]
    depth: usize,
    #[command(flatten)]
    keep: Keep,
    /// Trains in double precision, on one rank too, and twice again from the middle, and fails unless all agree.
    #[arg(long)]
    verify: bool,
    /// Where the picture and the training go.
    #[arg(long, value_name = "DIR", default_value = "target/vit")]
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
    let [_, _, rows, columns] = forecast.shape();
    let divides = |n: usize| args.side > 0 && n.is_multiple_of(args.side);
    if !divides(rows) || !divides(columns) || args.width == 0 || !args.width.is_multiple_of(8) {
        return Err(format!("--side divides {rows} and {columns}, and --width by 8").into());
    }
    folder::make(&args.out)?;
    let [picture, training] = ["vit.svg", "training.safetensors"].map(|name| args.out.join(name));
    let steps = args.steps.unwrap_or(if args.verify { 20 } else { 200 }) as usize;
    let job = Job {
        forecast: &forecast,
        sizes: Sizes {
            grid: [rows / args.side, columns / args.side],
            side: args.side,
            width: args.width,
            heads: args.width / 8,
            depth: args.depth,
        },
        mesh: args.mesh,
        dtype: if args.verify { DType::F64 } else { DType::F32 },
        steps,
        stretch: args.keep.stretch(&training, steps),
    };
    let outcome = job.run()?;
    let mut out = Told::new();
    // Of several processes, that of rank 0 tells what came of it.
    if let Some(outcome) = &outcome {
        let ([data, domain, shard], course) = (args.mesh, &outcome.trained.course);
        writeln!(
            out,
            "\ndata {data} x domain {domain} x shard {shard} ranks, {}\n",
            job.dtype
        )?;
        scores::print(&mut out, &outcome.restored.scores, "linear", "model")?;
        ranks::print(&mut out, &outcome.ranks, course.losses.len())?;
        writeln!(out, "\n{course} (1 is the error of interpolation)")?;
        outcome.restored.draw(&picture, "a vision transformer")?;
        writeln!(
            out,
            "\nwrote {}\nwrote {}",
            picture.display(),
            training.display()
        )?;
    }
    match args.verify {
        true => verify::agrees(&mut out, &job, outcome.as_ref(), &training),
        false => Ok(true),
    }
}
