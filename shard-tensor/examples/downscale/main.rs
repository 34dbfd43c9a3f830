//! Statistical downscaling of a real weather forecast, domain-parallel over uneven pieces.
//!
//! A small U-Net learns to sharpen a field of air temperature: from means over 4 x 4 blocks, interpolated back, and
//! the altitude of the ground, it predicts the field of 204 x 187 points on 7 levels. It trains on two hours of a Met
//! Office UK forecast and is scored on the third against plain interpolation. Every rank holds one piece of the domain;
//! no extent divides evenly at any resolution of the U-Net, and the model does not know.
//!
//! `cargo run --release -p shard-tensor --example downscale -- --help`

mod args;
#[path = "../training/curve.rs"]
mod curve;
#[path = "../output/fields.rs"]
mod fields;
#[path = "../output/folder.rs"]
mod folder;
#[path = "../input/forecast.rs"]
mod forecast;
#[path = "../training/keep.rs"]
mod keep;
mod model;
mod picture;
#[path = "../output/pieces.rs"]
mod pieces;
mod prepare;
#[path = "../training/progress.rs"]
mod progress;
#[path = "../output/ranks.rs"]
mod ranks;
#[path = "../output/raster.rs"]
mod raster;
mod report;
#[path = "../output/scores.rs"]
mod scores;
#[path = "../output/told.rs"]
mod told;
mod train;
#[path = "../training/trained.rs"]
#[expect(dead_code, reason = "other examples have one bound for all")]
mod trained;
mod verify;

use args::Args;
use clap::Parser;
use forecast::Forecast;
use shard_tensor::Profile;
use std::io::Write;
use std::process::ExitCode;
use told::Told;
use train::Job;

/// The level of the picture: the lowest, where the ground shapes the field most.
const PICTURED: usize = 0;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(help) if !help.use_stderr() => help.exit(),
        Err(error) => return usage(&first_paragraph(&error.to_string())),
    };
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is wrong, on one line, without the hints that follow.
fn first_paragraph(text: &str) -> String {
    let lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// One line, and the exit code of a wrong command line.
fn usage(line: &str) -> ExitCode {
    eprintln!("{line}");
    ExitCode::from(2)
}

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let forecast = Forecast::read(&args.data)?;
    let [hours, _, rows, columns] = forecast.shape();
    if let Some(objection) = args.split.objection(&args.mesh, [rows, columns]) {
        return Ok(usage(&format!("error: {objection}")));
    }
    folder::make(&args.out)?;
    let [training, weights, curve, picture] = [
        "training.safetensors",
        "weights.safetensors",
        "loss.svg",
        "fields.svg",
    ]
    .map(|name| args.out.join(name));
    let job = Job {
        data: &args.data,
        forecast: &forecast,
        mesh: &args.mesh,
        split: &args.split,
        steps: args.steps(),
        stretch: args.keep.stretch(&training, args.steps()),
        batch: args.batch(hours - 1),
        seed: args.seed,
        dtype: args.dtype(),
        autocast: args.autocast(),
        device: args.device,
        backend: args.backend(),
        weights: Some(&weights),
        level: PICTURED,
        profile: args.profile,
    };
    let outcome = job.run()?;
    let mut out = Told::new();
    // Of several processes, that of rank 0 tells what came of it.
    let mut passed = true;
    if let Some(outcome) = &outcome {
        let by = format!("{} mesh, {} split, {}", args.mesh, args.split, job.dtype);
        let names = curve::Names {
            caption: &format!("Training on a {by}"),
            baseline: "bilinear interpolation",
            model: "U-Net, training hours",
        };
        curve::write(&curve, &outcome.trained.course, names)?;
        let caption =
            format!("Potential temperature of the test hour, lowest level; trained on a {by}");
        picture::write(&picture, &outcome.panels, &caption)?;
        report::print(&mut out, args, outcome)?;
        report::files(&mut out, &[&curve, &picture, &weights, &training])?;
        if let Some(first) = outcome.profiles.first() {
            let file = args.out.join("profile.json");
            std::fs::write(&file, Profile::trace(&outcome.profiles))?;
            report::files(&mut out, &[&file])?;
            write!(out, "\nthe last step of {first}")?;
        }
        if args.check {
            passed &= scores::verdict(&mut out, &outcome.scores)?;
        }
    }
    if args.verify {
        passed &= verify::agrees_with_one_rank(&mut out, &job, outcome.as_ref())?;
    }
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
