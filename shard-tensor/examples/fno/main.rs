//! A Fourier neural operator on a real weather forecast, domain-parallel over uneven pieces.
//!
//! A forecast of air temperature has 7 levels of 204 x 187 points. Every second level is hidden, and the operator learns to
//! restore it from those above and below: what linear interpolation lacks. It trains on two hours and is scored on the third. A layer
//! transforms the field, multiplies the lowest frequencies by weights of its own, channels mixed, and transforms back; beside
//! that every point's channels are mixed by a linear map. Rows and columns of the field are divided over the axes of a mesh,
//! unevenly, and the model is written as for one device: a transform exchanges what it must.
//!
//! `cargo run --release -p shard-tensor --example fno -- --help`

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
#[path = "../output/told.rs"]
mod told;
#[path = "../training/trained.rs"]
mod trained;
#[path = "../input/uneven.rs"]
mod uneven;

use clap::Parser;
use forecast::Forecast;
use hidden::Hidden;
use model::Operator;
use ndarray::{Array4, s};
use numbers::numbers;
use progress::Progress;
use ranks::RankReport;
use restored::Restored;
use shard_tensor::AxisPlacement;
use shard_tensor::optim::Cosine;
use shard_tensor::prelude::*;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use told::Told;
use trained::Trained;
use uneven::uneven;

type Failure = Box<dyn std::error::Error>;

/// The learning rate, which falls to none along a cosine.
const RATE: f64 = 1e-2;

/// Trains a Fourier neural operator to restore hidden levels of a forecast, domain-parallel over in-process ranks.
#[derive(Parser)]
struct Args {
    /// Ranks along the rows and columns of the field.
    #[arg(long, default_value = "2x2", value_parser = numbers::<2>)]
    mesh: [usize; 2],
    /// Optimizer steps.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Frequencies that have weights, along each dim.
    #[arg(long, default_value_t = 12)]
    modes: usize,
    /// Channels of the layers.
    #[arg(long, default_value_t = 12)]
    width: usize,
    /// Trains in double precision, on one rank too, and fails unless both agree.
    #[arg(long)]
    verify: bool,
    /// Fails unless the model beats interpolation clearly on every hidden level.
    #[arg(long)]
    check: bool,
    /// Where the picture goes.
    #[arg(long, value_name = "DIR", default_value = "target/fno")]
    out: PathBuf,
    /// Where uk_hires_theta.npy and uk_hires_altitude.npy are.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data"))]
    data: PathBuf,
}

/// What a training gave.
struct Outcome {
    trained: Trained,
    restored: Restored,
    ranks: Vec<RankReport>,
}

fn main() -> ExitCode {
    exit::of(run(&Args::parse()))
}

/// Whether all is as it must be.
fn run(args: &Args) -> std::result::Result<bool, Failure> {
    let forecast = Forecast::read(&args.data)?;
    let [_, _, rows, columns] = forecast.shape();
    let most = (rows / 2).min(columns / 2 + 1);
    if args.modes == 0 || args.modes > most || args.width == 0 {
        return Err(format!("--modes from 1 to {most} and --width from 1 on are possible").into());
    }
    let dtype = if args.verify { DType::F64 } else { DType::F32 };
    // Of several processes, that of rank 0 tells what came of it.
    let many = train(args, &forecast, args.mesh, dtype)?;
    let one = match args.verify {
        true => train(args, &forecast, [1, 1], dtype)?,
        false => None,
    };
    let Some(many) = many else {
        return Ok(true);
    };
    let mut out = Told::new();
    let ([down, across], course) = (args.mesh, &many.trained.course);
    writeln!(
        out,
        "\n{down} x {across} ranks, {} steps in {dtype}\n",
        args.steps
    )?;
    scores::print(&mut out, &many.restored.scores, "linear", "model")?;
    ranks::print(&mut out, &many.ranks, course.losses.len())?;
    writeln!(out, "\n{course} (1 is the error of interpolation)")?;
    folder::make(&args.out)?;
    let file = args.out.join("fno.svg");
    (many.restored).draw(&file, "a Fourier neural operator")?;
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

/// Trains on a mesh, and gives what came of it to the process of rank 0.
fn train(
    args: &Args,
    forecast: &Forecast,
    mesh: [usize; 2],
    dtype: DType,
) -> Result<Option<Outcome>> {
    let launch = Launch::new(mesh.iter().product()).seed(0).dtype(dtype);
    let outcomes = launch.run(|ctx| on_rank(ctx, args, forecast, mesh))?;
    Ok(outcomes.into_iter().flatten().next())
}

/// The program of every rank.
fn on_rank(
    ctx: &Context,
    args: &Args,
    forecast: &Forecast,
    [down, across]: [usize; 2],
) -> Result<Option<Outcome>> {
    let mesh = ctx
        .mesh([("rows", down), ("columns", across)])?
        .with_dtype(ctx.dtype());
    let hours = Hours::new(&mesh, forecast, [down, across])?;
    let [given, hidden] = [&hours.train.0, &hours.train.1].map(|x| x.shape()[1]);
    let model = Operator::new(&mesh, [given, hidden], args.width, args.modes)?;
    let mut adam = AdamW::new(model.parameters(), RATE)?;
    let steps = args.steps as usize;
    let rates = Cosine::new(RATE, steps);
    let title = format!("{down}x{across} {}", ctx.dtype());
    let mut progress = Progress::new(ctx, 0, steps, title);
    for step in 0..steps {
        adam.set_learning_rate(rates.at(step));
        let loss = model.forward(&hours.train.0)?.mse_loss(&hours.train.1)?;
        adam.step(&loss.backward()?)?;
        progress.step(loss.item()?);
    }
    let course = progress.done();
    let found = ctx.no_grad(|| model.forward(&hours.test.0))?;
    let lacking = &hours.test.1;
    let piece = &lacking.local_shape()[2..];
    let outcome = Outcome {
        restored: Restored::new(forecast, lacking, &found, hours.unit)?,
        ranks: RankReport::gather(ctx, piece, &model.parameters(), &course.moved)?,
        trained: Trained::new(course, &model.parameters())?,
    };
    Ok((ctx.rank() == 0).then_some(outcome))
}

/// Levels that are given and what interpolation between them lacks, in pieces.
struct Hours {
    /// All hours but the last.
    train: (ShardTensor, ShardTensor),
    /// The last hour.
    test: (ShardTensor, ShardTensor),
    /// Kelvin that a number of the second ones stands for.
    unit: f64,
}

impl Hours {
    /// Rows and columns are divided, each part two thirds as large as the one before.
    fn new(mesh: &Mesh, forecast: &Forecast, parts: [usize; 2]) -> Result<Self> {
        let all = Hidden::of(forecast).map_err(Error::custom)?;
        let placements: Placements = (parts.iter().enumerate())
            .map(|(axis, &n)| shard(2 + axis).weights(uneven(n)))
            .collect::<Vec<AxisPlacement>>()
            .into();
        let placed = |from: usize, to: usize| -> Result<(ShardTensor, ShardTensor)> {
            let dtype = mesh.dtype();
            let at = |x: &Array4<f64>| {
                let some = x.slice(s![from..to, .., .., ..]).to_owned();
                mesh.with_dtype(DType::F64)
                    .distribute(&some, &placements)?
                    .to(dtype)
            };
            Ok((at(&all.given)?, at(&all.lacking)?))
        };
        let [hours, ..] = forecast.shape();
        Ok(Self {
            train: placed(0, hours - 1)?,
            test: placed(hours - 1, hours)?,
            unit: all.unit,
        })
    }
}
