//! A Fourier neural operator on a real weather forecast, domain-parallel over uneven pieces.
//!
//! From the temperature of one hour, on 7 levels of 204 x 187 points, it predicts the change until the next hour. A layer
//! transforms the field, multiplies the lowest frequencies by weights of its own, channels mixed, and transforms back; beside
//! that every point's channels are mixed by a linear map. Rows and columns of the field are divided over the axes of a mesh,
//! unevenly, and the model is written as for one device: a transform exchanges what it must.
//!
//! `cargo run --release -p shard-tensor --example fno -- --help`

#[path = "../input/changes.rs"]
mod changes;
#[path = "../downscale/data.rs"]
mod data;
#[path = "../output/fields.rs"]
mod fields;
mod model;
mod picture;
#[path = "../output/pieces.rs"]
mod pieces;
#[path = "../output/raster.rs"]
#[expect(dead_code, reason = "other examples draw the ground")]
mod raster;
#[path = "../output/told.rs"]
mod told;

use changes::{Changes, uneven};
use clap::Parser;
use data::Forecast;
use model::Operator;
use ndarray::{Array2, Array4, Ix2, s};
use shard_tensor::nn::{ModelExt, Module};
use shard_tensor::optim::{AdamW, Cosine, Optimizer, Schedule};
use shard_tensor::{
    AxisPlacement, Context, DType, Error, Launch, Mesh, Placements, Result, ShardTensor, shard,
};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use told::Told;

type Failure = Box<dyn std::error::Error>;

/// The learning rate, which falls to none along a cosine.
const RATE: f64 = 1e-2;

/// The largest difference from one rank in double precision: of losses as a share of them, of the rest as a share of the largest.
const NEAR: f64 = 1e-10;

/// The level of the picture: the lowest.
const PICTURED: usize = 0;

/// Trains a Fourier neural operator to predict an hour of weather, domain-parallel over in-process ranks.
#[derive(Parser)]
struct Args {
    /// Ranks along the rows and columns of the field.
    #[arg(long, default_value = "2x2", value_parser = mesh_shape)]
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
    /// Where the picture goes.
    #[arg(long, value_name = "DIR", default_value = "target/fno")]
    out: PathBuf,
    /// Where uk_hires_theta.npy and uk_hires_altitude.npy are.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data"))]
    data: PathBuf,
}

fn mesh_shape(text: &str) -> std::result::Result<[usize; 2], String> {
    let numbers = text
        .split_once('x')
        .and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
    numbers
        .filter(|[a, b]: &[usize; 2]| (1..=64).contains(a) && (1..=64).contains(b))
        .ok_or_else(|| "expected two numbers from 1 to 64, as 2x2 or 1x3".to_owned())
}

/// What a training gave.
struct Outcome {
    losses: Vec<f64>,
    /// Root of the mean square change of the test hour, in kelvin, and of what the model leaves of it.
    change: f64,
    error: f64,
    /// Of the pictured level: what is, what changes, and what was predicted to.
    given: Array2<f64>,
    truth: Array2<f64>,
    prediction: Array2<f64>,
    /// Where pieces begin and end, in rows and columns.
    boundaries: [Vec<usize>; 2],
    /// Bytes that each rank received while training.
    received: Vec<u64>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is as it must be.
fn run(args: &Args) -> std::result::Result<bool, Failure> {
    let forecast = Forecast::read(&args.data)?;
    let [_, _, rows, columns] = forecast.shape();
    let most = (rows / 2).min(columns / 2 + 1);
    if args.modes == 0 || args.modes > most || args.width == 0 {
        return Err(format!("--modes from 1 to {most} and --width from 1 on are possible").into());
    }
    let mut out = Told::new();
    let dtype = if args.verify { DType::F64 } else { DType::F32 };
    let Some(many) = train(args, &forecast, args.mesh, dtype)? else {
        return Ok(true);
    };
    let [down, across] = args.mesh;
    writeln!(out, "{down}x{across} ranks, {dtype}, {} steps", args.steps)?;
    let (first, last) = (many.losses[0], many.losses[many.losses.len() - 1]);
    writeln!(out, "  loss {first:.4} at first, {last:.4} at last")?;
    writeln!(
        out,
        "  the test hour changes by {:.3} K (rms), of which the model leaves {:.3} K",
        many.change, many.error
    )?;
    let megabytes: Vec<String> = (many.received.iter())
        .map(|&bytes| format!("{:.1}", bytes as f64 / 1e6))
        .collect();
    writeln!(out, "  ranks received {} MB", megabytes.join(", "))?;
    std::fs::create_dir_all(&args.out)?;
    let file = args.out.join("fno.svg");
    picture::write(&file, &many, "A Fourier neural operator")?;
    writeln!(out, "  drew {}", file.display())?;
    if !args.verify {
        return Ok(true);
    }
    let Some(one) = train(args, &forecast, [1, 1], dtype)? else {
        return Ok(true);
    };
    let losses = many.losses.iter().zip(&one.losses);
    let losses = losses
        .map(|(a, b)| (a - b).abs() / b.abs())
        .fold(0.0, f64::max);
    let scale = one
        .prediction
        .iter()
        .fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let fields = many.prediction.iter().zip(&one.prediction);
    let fields = fields
        .map(|(a, b)| (a - b).abs() / scale)
        .fold(0.0, f64::max);
    // NaN is not near anything.
    let near = losses <= NEAR && fields <= NEAR && one.losses.iter().all(|x| x.is_finite());
    let verdict = if near { "ok" } else { "TOO LARGE" };
    writeln!(
        out,
        "against one rank: losses within {losses:.1e}, predictions within {fields:.1e}  {verdict}"
    )?;
    Ok(near)
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
    let [_, levels, ..] = forecast.shape();
    let model = Operator::new(&mesh, levels, args.width, args.modes)?;
    let mut adam = AdamW::new(model.parameters(), RATE)?;
    let rates = Cosine::new(RATE, args.steps as usize);
    let before = ctx.ledger().snapshot();
    let mut losses = Vec::new();
    for step in 0..args.steps {
        adam.set_learning_rate(rates.at(step as usize));
        let loss = model.forward(&hours.train.0)?.mse_loss(&hours.train.1)?;
        adam.step(&loss.backward()?)?;
        losses.push(loss.item()?);
    }
    let received = ctx.ledger().since(&before).bytes;
    let prediction = ctx.no_grad(|| model.forward(&hours.test.0))?;
    let truth = hours.test.1.clone();
    let error = prediction.sub(&truth)?.square()?.mean_all()?.item()?.sqrt();
    let change = truth.square()?.mean_all()?.item()?.sqrt();
    let level = |x: &ShardTensor| {
        let plane = x
            .select(1, PICTURED)?
            .select(0, 0)?
            .to(DType::F64)?
            .to_array::<f64>()?;
        plane.into_dimensionality::<Ix2>().map_err(Error::custom)
    };
    let (truth, prediction) = (
        level(&truth)? * hours.unit,
        level(&prediction)? * hours.unit,
    );
    let received = ctx.gather(&received)?;
    let (hour, ..) = forecast.theta.dim();
    let given = forecast
        .theta
        .slice(s![hour - 2, PICTURED, .., ..])
        .mapv(f64::from);
    let outcome = Outcome {
        losses,
        change: change * hours.unit,
        error: error * hours.unit,
        given,
        truth,
        prediction,
        boundaries: pieces::boundaries(hours.test.1.layout()),
        received,
    };
    Ok((ctx.rank() == 0).then_some(outcome))
}

/// Hours and the changes that follow, in pieces.
struct Hours {
    /// All hours but the last two.
    train: (ShardTensor, ShardTensor),
    /// The last hour but one.
    test: (ShardTensor, ShardTensor),
    /// Kelvin that a change of one stands for.
    unit: f64,
}

impl Hours {
    /// Fields lose their mean and get the spread one, level by level; changes get the spread one.
    fn new(mesh: &Mesh, forecast: &Forecast, parts: [usize; 2]) -> Result<Self> {
        let Changes {
            fields,
            changes,
            unit,
        } = Changes::of(forecast)?;
        let hours = fields.dim().0;
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
            Ok((at(&fields)?, at(&changes)?))
        };
        Ok(Self {
            train: placed(0, hours - 2)?,
            test: placed(hours - 2, hours - 1)?,
            unit,
        })
    }
}
