//! Shallow water on a rotating plane: stencils on halos alone, domain-parallel over uneven pieces.
//!
//! A hill and a hollow of water collapse into waves, which run round the plane and through each other; rotation keeps two
//! eddies of them standing. Rows and columns of 203 x 187 cells are divided over the axes of a mesh, unevenly, and the model is
//! written as for one device. What moves are frames of pieces, one cell wide.
//!
//! `cargo run --release -p shard-tensor --example shallow_water -- --help`

#[path = "../output/animation.rs"]
mod animation;
#[path = "../output/exit.rs"]
mod exit;
#[path = "../output/folder.rs"]
mod folder;
mod model;
#[path = "../input/numbers.rs"]
mod numbers;
#[path = "../output/pieces.rs"]
#[expect(dead_code, reason = "other examples name the pieces")]
mod pieces;
#[path = "../output/raster.rs"]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "other examples draw into an SVG")
)]
mod raster;
#[path = "../output/told.rs"]
mod told;
#[path = "../input/uneven.rs"]
mod uneven;

use clap::Parser;
use indicatif::ProgressBar;
use model::{DEPTH, STEP, Water};
use ndarray::{Array2, Ix2};
use numbers::numbers;
use raster::Scale;
use serde::{Deserialize, Serialize};
use shard_tensor::{
    AxisPlacement, Context, DType, Error, Launch, Placements, Result, ShardTensor, shard,
};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use told::Told;
use uneven::uneven;

type Failure = Box<dyn std::error::Error>;

/// The largest difference from one rank, as a share of the largest departure from rest.
const NEAR: f64 = 1e-10;

/// The largest change of the mass, as a share of it: the rounding of sums over all cells.
const KEPT: f64 = 1e-13;

/// Lets water move on a rotating plane, domain-parallel over in-process ranks, in double precision.
#[derive(Parser)]
struct Args {
    /// Ranks along the rows and columns of the plane.
    #[arg(long, default_value = "2x2", value_parser = numbers::<2>)]
    mesh: [usize; 2],
    /// Rows and columns of cells, each of 5 km.
    #[arg(long, default_value = "203x187", value_parser = numbers::<2>)]
    cells: [usize; 2],
    /// Steps, each of 30 s.
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    steps: u32,
    /// Frames of the picture.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    frames: u32,
    /// Computes on one rank too, and fails unless both agree.
    #[arg(long)]
    verify: bool,
    /// Where the picture goes.
    #[arg(long, value_name = "DIR", default_value = "target/shallow_water")]
    out: PathBuf,
}

/// What became of the water.
struct Outcome {
    /// The height above rest, now and then, in metres.
    heights: Vec<Array2<f64>>,
    /// The sum of all depths at first and at last.
    mass: [f64; 2],
    /// Where pieces begin and end, in rows and columns.
    boundaries: [Vec<usize>; 2],
    ranks: Vec<RankReport>,
    seconds: f64,
}

/// What one rank had to do.
#[derive(Serialize, Deserialize)]
struct RankReport {
    /// Rows and columns of its piece.
    piece: [usize; 2],
    /// Most bytes of tensors at any time.
    peak: usize,
    /// Received during all steps.
    messages: u64,
    bytes: u64,
}

fn main() -> ExitCode {
    exit::of(run(&Args::parse()))
}

/// Whether all is as it must be.
fn run(args: &Args) -> std::result::Result<bool, Failure> {
    let Some(many) = flow(args, args.mesh)? else {
        return Ok(true);
    };
    let mut out = Told::new();
    let kept = report(&mut out, args, &many)?;
    folder::make(&args.out)?;
    let file = args.out.join("shallow_water.png");
    let highest = many.heights.iter().skip(1).map(most).fold(0.0, f64::max);
    let scale = Scale::diverging((0.5 * highest).max(f64::MIN_POSITIVE));
    animation::write(&file, &many.heights, &scale, &many.boundaries)?;
    writeln!(out, "  drew {}", file.display())?;
    if !args.verify {
        return Ok(kept);
    }
    let Some(one) = flow(args, [1, 1])? else {
        return Ok(kept);
    };
    let apart = (many.heights.iter().zip(&one.heights))
        .map(|(a, b)| most(&(a - b)))
        .fold(0.0, f64::max);
    let apart = apart / most(&one.heights[0]).max(f64::MIN_POSITIVE);
    // NaN is not near anything.
    let near = apart <= NEAR && one.heights.iter().all(|h| most(h).is_finite());
    let verdict = if near { "ok" } else { "TOO LARGE" };
    writeln!(
        out,
        "against one rank: heights within {apart:.1e}  {verdict}"
    )?;
    Ok(kept && near)
}

/// Prints what became of the water, and gives whether its mass stayed.
fn report(out: &mut impl Write, args: &Args, many: &Outcome) -> std::io::Result<bool> {
    let ([down, across], [rows, columns]) = (args.mesh, args.cells);
    let hours = STEP * f64::from(args.steps) / 3600.0;
    let Outcome { seconds, mass, .. } = many;
    writeln!(
        out,
        "{down}x{across} ranks, {rows}x{columns} cells, {} steps ({hours:.1} h of waves in {seconds:.1} s)",
        args.steps
    )?;
    for (rank, told) in many.ranks.iter().enumerate() {
        let [height, width] = told.piece;
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        writeln!(
            out,
            "  rank {rank}: {height}x{width} cells, received {:.2} MiB in {} messages ({:.0} bytes per step), at most {:.1} MiB of tensors",
            mib(told.bytes as f64),
            told.messages,
            told.bytes as f64 / f64::from(args.steps),
            mib(told.peak as f64)
        )?;
    }
    let change = (mass[1] - mass[0]).abs() / mass[0];
    let kept = change <= KEPT;
    let verdict = if kept { "ok" } else { "TOO LARGE" };
    writeln!(out, "  mass changed by {change:.1e} of itself  {verdict}")?;
    Ok(kept)
}

/// The largest magnitude; NaN if there is one.
fn most(field: &Array2<f64>) -> f64 {
    let larger = |m: f64, x: f64| if x.is_nan() || x > m { x } else { m };
    field.iter().fold(0.0, |m, x| larger(m, x.abs()))
}

/// Computes on a mesh, and gives what came of it to the process of rank 0.
fn flow(args: &Args, mesh: [usize; 2]) -> Result<Option<Outcome>> {
    let launch = Launch::new(mesh.iter().product()).dtype(DType::F64);
    let outcomes = launch.run(|ctx| on_rank(ctx, args, mesh))?;
    Ok(outcomes.into_iter().flatten().next())
}

/// The program of every rank.
fn on_rank(ctx: &Context, args: &Args, [down, across]: [usize; 2]) -> Result<Option<Outcome>> {
    let mesh = ctx.mesh([("rows", down), ("columns", across)])?;
    let placements: Placements = [
        shard(2).weights(uneven(down)),
        shard(3).weights(uneven(across)),
    ]
    .map(AxisPlacement::from)
    .into();
    let water = Water::new(&mesh)?;
    let mut state = model::rest(&mesh, args.cells, &placements)?;
    let depths = |state: &ShardTensor| state.narrow(1, 0..1)?.sum_all()?.item();
    let mut mass = [depths(&state)?; 2];
    let mut heights = vec![height(&state)?];
    let bar = (ctx.rank() == 0).then(|| ProgressBar::new(args.steps.into()));
    let began = Instant::now();
    let (mut change, mut moved) = (None, [0, 0]);
    let mut shown = ctx.ledger().snapshot();
    for step in 1..=args.steps {
        let (next, slope) = water.step(&state, change.as_ref())?;
        (state, change) = (next, Some(slope));
        if let Some(bar) = &bar {
            bar.inc(1);
        }
        let frame = |step: u32| u64::from(step) * u64::from(args.frames) / u64::from(args.steps);
        if frame(step) > frame(step - 1) {
            // What is gathered for the picture is none of the model's.
            let now = ctx.ledger().since(&shown);
            moved = [moved[0] + now.messages, moved[1] + now.bytes];
            heights.push(height(&state)?);
            shown = ctx.ledger().snapshot();
        }
    }
    let now = ctx.ledger().since(&shown);
    let [messages, bytes] = [moved[0] + now.messages, moved[1] + now.bytes];
    let seconds = began.elapsed().as_secs_f64();
    if let Some(bar) = bar {
        bar.finish();
    }
    mass[1] = depths(&state)?;
    let piece = state.local_shape();
    let report = RankReport {
        piece: [piece[2], piece[3]],
        peak: ctx.ledger().memory().peak,
        messages,
        bytes,
    };
    let outcome = Outcome {
        heights,
        mass,
        boundaries: pieces::boundaries(state.layout()),
        ranks: ctx.gather(&report)?,
        seconds,
    };
    Ok((ctx.rank() == 0).then_some(outcome))
}

/// The height of the water above rest, whole.
fn height(state: &ShardTensor) -> Result<Array2<f64>> {
    let plane = state.select(1, 0)?.select(0, 0)?.to_array::<f64>()?;
    let plane = plane.into_dimensionality::<Ix2>().map_err(Error::custom)?;
    Ok(plane - DEPTH)
}
