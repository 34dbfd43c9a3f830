//! A vision transformer on a real weather forecast: data parallel, domain parallel and fully sharded at once.
//!
//! From the temperature of one hour on a level of 204 x 187 points it predicts the change until the next hour. Patches of a
//! field are its tokens. The seven levels are the samples: the axes `data` and `shard` of the mesh divide them, unevenly; `domain`
//! divides the rows of each field, so that attention goes around a ring of ranks; and over `shard` every parameter is divided too,
//! gathered for each use and dropped.
//!
//! `cargo run --release -p shard-tensor --example vit -- --help`

#[path = "../input/changes.rs"]
mod changes;
#[path = "../downscale/data.rs"]
mod data;
#[path = "../output/fields.rs"]
mod fields;
mod model;
#[path = "../fno/picture.rs"]
mod picture;
#[path = "../output/pieces.rs"]
mod pieces;
#[path = "../training/progress.rs"]
mod progress;
#[path = "../output/raster.rs"]
#[expect(dead_code, reason = "other examples draw the ground")]
mod raster;
#[path = "../output/told.rs"]
mod told;
#[path = "../training/trained.rs"]
mod trained;

use changes::{Changes, uneven};
use clap::Parser;
use data::Forecast;
use model::{Sizes, Vit};
use ndarray::{Array2, Ix2, s};
use progress::Progress;
use shard_tensor::nn::{ModelExt, Module};
use shard_tensor::optim::{AdamW, Cosine, Optimizer, Schedule};
use shard_tensor::{Context, DType, Error, Launch, Mesh, Placements, Result, ShardTensor, shard};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use told::Told;
use trained::{Distance, Trained};

type Failure = Box<dyn std::error::Error>;

/// The highest learning rate.
const RATE: f64 = 3e-3;

/// The largest difference to one rank, of a loss and as a share of the largest weight of its tensor.
const APART: f64 = 1e-10;

/// The level of the picture: the lowest.
const PICTURED: usize = 0;

const KIB: f64 = 1024.0;

/// Trains a vision transformer to predict an hour of weather on a mesh of three axes.
#[derive(Parser)]
struct Args {
    /// Ranks along the axes data, domain and shard.
    #[arg(long, default_value = "1x2x2", value_parser = mesh_shape)]
    mesh: [usize; 3],
    /// Optimizer steps.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Points along the side of a patch, which divides the field's sides.
    #[arg(long, default_value_t = 17)]
    side: usize,
    /// Features of a token, of which each head has eight.
    #[arg(long, default_value_t = 48)]
    width: usize,
    /// Blocks of attention.
    #[arg(long, default_value_t = 3)]
    depth: usize,
    /// Trains in double precision, on one rank too, and fails unless both agree.
    #[arg(long)]
    verify: bool,
    /// Where the picture goes.
    #[arg(long, value_name = "DIR", default_value = "target/vit")]
    out: PathBuf,
    /// Where uk_hires_theta.npy and uk_hires_altitude.npy are.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data"))]
    data: PathBuf,
}

fn mesh_shape(text: &str) -> std::result::Result<[usize; 3], String> {
    let numbers: Vec<usize> = text.split('x').filter_map(|n| n.parse().ok()).collect();
    let all = text.split('x').count();
    let shape = <[usize; 3]>::try_from(numbers).ok();
    shape
        .filter(|shape| all == 3 && shape.iter().all(|n| (1..=16).contains(n)))
        .ok_or_else(|| "expected three numbers from 1 to 16, as 1x2x2 or 2x1x3".to_owned())
}

/// What a training gave.
struct Outcome {
    trained: Trained,
    /// Root of the mean square change of the test hour, in kelvin, and of what the model leaves of it.
    change: f64,
    error: f64,
    /// Of the pictured level: what is, what changes, and what was predicted to.
    given: Array2<f64>,
    truth: Array2<f64>,
    prediction: Array2<f64>,
    /// Where pieces begin and end, in rows and columns.
    boundaries: [Vec<usize>; 2],
    /// Of each rank: bytes received in a step, bytes of its parameters, and most bytes held at once.
    ranks: Vec<[u64; 3]>,
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
    let divides = |n: usize| args.side > 0 && n.is_multiple_of(args.side);
    if !divides(rows) || !divides(columns) || args.width == 0 || !args.width.is_multiple_of(8) {
        return Err(format!("--side divides {rows} and {columns}, and --width by 8").into());
    }
    let dtype = if args.verify { DType::F64 } else { DType::F32 };
    // Of several processes, that of rank 0 tells what came of it.
    let many = train(args, &forecast, args.mesh, dtype)?;
    let one = match args.verify {
        true => train(args, &forecast, [1, 1, 1], dtype)?,
        false => None,
    };
    let Some(many) = many else {
        return Ok(true);
    };
    let mut out = Told::new();
    print(&mut out, args, &many)?;
    std::fs::create_dir_all(&args.out)?;
    let file = args.out.join("vit.svg");
    picture::write(&file, &many, "A vision transformer")?;
    writeln!(out, "  drew {}", file.display())?;
    let Some(one) = one else {
        return Ok(true);
    };
    let apart = Distance::between(&many.trained, &one.trained);
    let passed = apart.within(APART, APART);
    let verdict = if passed { "ok" } else { "TOO LARGE" };
    writeln!(out, "against one rank: {apart}: {verdict}")?;
    Ok(passed)
}

/// Prints what was learned, and what each rank received and held.
fn print(out: &mut impl Write, args: &Args, found: &Outcome) -> std::result::Result<(), Failure> {
    let [data, domain, shard] = args.mesh;
    writeln!(
        out,
        "data {data} x domain {domain} x shard {shard} ranks, {} steps",
        args.steps
    )?;
    let losses = &found.trained.losses;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    writeln!(out, "  loss {first:.4} at first, {last:.4} at last")?;
    writeln!(
        out,
        "  the test hour changes by {:.3} K (rms), of which the model leaves {:.3} K",
        found.change, found.error
    )?;
    writeln!(
        out,
        "  rank   KiB received in a step   KiB of parameters   most KiB held"
    )?;
    for (rank, bytes) in found.ranks.iter().enumerate() {
        let [received, parameters, peak] = bytes.map(|bytes| bytes as f64 / KIB);
        writeln!(
            out,
            "  {rank:>4}   {received:>22.1}   {parameters:>17.1}   {peak:>13.1}"
        )?;
    }
    Ok(())
}

/// Trains on a mesh, and gives what came of it to the process of rank 0.
fn train(
    args: &Args,
    forecast: &Forecast,
    mesh: [usize; 3],
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
    [data, domain, shards]: [usize; 3],
) -> Result<Option<Outcome>> {
    let mesh = ctx.mesh([("data", data), ("domain", domain), ("shard", shards)])?;
    let samples = Samples::new(&mesh, forecast, args.side, domain)?;
    let model = Vit::new(&mesh, sizes(args, forecast))?.fully_sharded("shard")?;
    let mut adam = AdamW::new(model.parameters(), RATE)?;
    ctx.device().reset_peak();
    let before = ctx.ledger().snapshot();
    let steps = args.steps as usize;
    let rates = Cosine::new(RATE, steps).warmup(steps / 10);
    let title = format!("{data}x{domain}x{shards} {}", ctx.dtype());
    let bar = Progress::new(ctx, steps, &title);
    let mut losses = Vec::new();
    for step in 0..steps {
        let began = Instant::now();
        adam.set_learning_rate(rates.at(step));
        let loss = model
            .forward(&samples.train.0)?
            .mse_loss(&samples.train.1)?;
        adam.step(&loss.backward()?)?;
        losses.push(loss.item()?);
        bar.step(
            step,
            losses[step],
            began.elapsed(),
            &ctx.ledger().since(&before),
        );
    }
    drop(bar);
    let received = ctx.ledger().since(&before).bytes / u64::from(args.steps);
    let held: usize = (model.parameters().iter())
        .map(|(_, p)| p.local_shape().iter().product::<usize>() * p.dtype().size())
        .sum();
    let ranks = [received, held as u64, ctx.device().memory().peak as u64];
    let prediction = ctx.no_grad(|| model.forward(&samples.test.0))?;
    let truth = samples.test.1.clone();
    let error = prediction.sub(&truth)?.square()?.mean_all()?.item()?.sqrt();
    let change = truth.square()?.mean_all()?.item()?.sqrt();
    let level = |x: &ShardTensor| -> Result<Array2<f64>> {
        let plane = x.select(0, PICTURED)?.select(0, 0)?.to(DType::F64)?;
        let plane = plane.to_array::<f64>()?.into_dimensionality::<Ix2>();
        Ok(plane.map_err(Error::custom)? * samples.unit)
    };
    let hour = forecast.theta.dim().0 - 2;
    let given = forecast.theta.slice(s![hour, PICTURED, .., ..]);
    let outcome = Outcome {
        change: change * samples.unit,
        error: error * samples.unit,
        given: given.mapv(f64::from),
        truth: level(&truth)?,
        prediction: level(&prediction)?,
        boundaries: pieces::boundaries(truth.layout()),
        ranks: ctx.gather(&ranks)?,
        trained: Trained::new(losses, &model.parameters())?,
    };
    Ok((ctx.rank() == 0).then_some(outcome))
}

fn sizes(args: &Args, forecast: &Forecast) -> Sizes {
    let [_, _, rows, columns] = forecast.shape();
    Sizes {
        grid: [rows / args.side, columns / args.side],
        side: args.side,
        width: args.width,
        heads: args.width / 8,
        depth: args.depth,
    }
}

/// Levels of an hour and their changes, `[levels, 1, rows, columns]`, in pieces.
struct Samples {
    /// Of the hours but the last two.
    train: (ShardTensor, ShardTensor),
    /// Of the last hour but one.
    test: (ShardTensor, ShardTensor),
    /// Kelvin that a change of one stands for.
    unit: f64,
}

impl Samples {
    /// # Collective
    /// All ranks.
    fn new(mesh: &Mesh, forecast: &Forecast, side: usize, domain: usize) -> Result<Self> {
        let Changes {
            fields,
            changes,
            unit,
        } = Changes::of(forecast)?;
        let (hours, levels, rows, columns) = fields.dim();
        // Whole patches on every rank: so many of each 1 + 2/3 + 4/9 + ...
        let strips = shard_tensor::Placements::from(shard(0).weights(uneven(domain)));
        let patches = shard_tensor::DeviceMesh::new(&[domain]).map_err(Error::custom)?;
        let strips = strips.layout(&patches, &[rows / side])?;
        let strips: Vec<usize> = (0..domain)
            .map(|part| strips.part_size(0, part) * side)
            .collect();
        let placements = Placements::from([
            ("data", shard(0)),
            ("domain", shard(2).sizes(strips)),
            ("shard", shard(0)),
        ]);
        let placed = |from: usize, to: usize| {
            let at = |x: &ndarray::Array4<f64>| -> Result<ShardTensor> {
                let some = x.slice(s![from..to, .., .., ..]).to_owned();
                let all = ((to - from) * levels, 1, rows, columns);
                let some = some.into_shape_with_order(all).map_err(Error::custom)?;
                let whole = mesh.with_dtype(DType::F64).distribute(&some, &placements)?;
                whole.to(mesh.dtype())
            };
            Ok::<_, Error>((at(&fields)?, at(&changes)?))
        };
        Ok(Self {
            train: placed(0, hours - 2)?,
            test: placed(hours - 2, hours - 1)?,
            unit,
        })
    }
}
