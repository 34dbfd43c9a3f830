//! Forecasts beside runs, on the machine at hand.

use crate::Cli;
use crate::jobs::Job;
use shard_comm::{Communicator, HostOptions, Spent, local};
use shard_tensor::simulated::{Machine, Topology};
use shard_tensor::{Context, DType, FoldBy, Launch, Measured, Result, Simulation};
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Steps that are timed, after two that are not.
const STEPS: usize = 7;

/// What is run.
fn cases() -> [(&'static str, Job, bool); 5] {
    let attention = |way| Job::Attention {
        tokens: 2048,
        heads: 4,
        dim: 32,
        way,
    };
    let unet = Job::UNet {
        rows: 96,
        columns: 96,
    };
    let vit = Job::Vit {
        side: 256,
        layers: 2,
        width: 128,
        heads: 4,
        way: FoldBy::Auto,
    };
    [
        ("U-Net 96 x 96, inference", unet.clone(), false),
        ("U-Net 96 x 96, training", unet, true),
        (
            "ring attention 2048, inference",
            attention(FoldBy::Ring),
            false,
        ),
        (
            "ring attention 2048, training",
            attention(FoldBy::Ring),
            true,
        ),
        ("ViT of 2 layers, 1024 patches, training", vit, true),
    ]
}

/// Prints what was measured, and unless that is all, forecasts beside runs.
pub(crate) fn run(cli: &Cli) -> std::result::Result<(), Box<dyn Error>> {
    let cores = std::thread::available_parallelism()?.get();
    let first = cli.ranks.first().map_or(2, |&r| r as usize);
    let counts = if cli.measure {
        vec![processes().unwrap_or(first)]
    } else {
        vec![2, 4, 8]
    };
    let asked = processes();
    for ranks in counts {
        if asked.is_some_and(|there| there != ranks) {
            continue;
        }
        let measured = Launch::new(ranks).run(|ctx| ctx.mesh_of(ranks)?.measure())?;
        let Some(measured) = measured.into_iter().next() else {
            return Ok(());
        };
        let told = Launch::new(ranks).run(|ctx| Ok(ctx.rank() == 0))?;
        let tells = told.first() == Some(&true);
        if tells {
            println!("{ranks} ranks on {cores} cores: {measured}");
        }
        if cli.measure {
            continue;
        }
        let alone = one_rank()?;
        for (name, job, train) in cases() {
            let seen = timed(ranks, &job, train)?;
            if !tells {
                continue;
            }
            let machine = calibrated(&alone, &job, train)?;
            let slowed = machine.slowed((ranks as f64 / cores as f64).max(1.0));
            let told = told_seconds(&measured, &slowed, ranks, &job, train)?;
            println!(
                "{ranks:>3} ranks  {name:<42} run {:>9.3} ms  forecast {:>9.3} ms  {:>+6.1} %",
                1e3 * seen,
                1e3 * told,
                100.0 * (told / seen - 1.0)
            );
        }
    }
    Ok(())
}

/// How many processes a launcher started, if it did: these are the ranks then.
fn processes() -> Option<usize> {
    let told = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter();
    told.filter_map(|name| std::env::var(name).ok()?.parse().ok())
        .next()
}

/// What one rank computes when it has the machine to itself.
fn one_rank() -> Result<Machine> {
    let measured: Vec<Result<Measured>> = local::run(1, |comm| {
        let ctx = Context::new(Rc::new(comm), 0, DType::F32);
        ctx.mesh_of(1)?.measure()
    })?;
    let all: Result<Vec<Measured>> = measured.into_iter().collect();
    Ok(all?.remove(0).machine)
}

/// The share of the roofline that each op of this job reaches on one rank.
fn calibrated(machine: &Machine, job: &Job, train: bool) -> Result<Machine> {
    let options = local::LocalOptions {
        host: HostOptions {
            meter: true,
            ..HostOptions::default()
        },
        ..Default::default()
    };
    let spent = local::run_with(1, &options, |comm| -> Result<Vec<(&'static str, Spent)>> {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let ctx = Context::new(world, 0, DType::F32);
        let mut state = job.prepare(&ctx, train)?;
        job.step(&ctx, &mut state, train)?;
        // Of a few steps the shortest, which nobody disturbed.
        let mut best: Option<(Duration, Vec<(&'static str, Spent)>)> = None;
        for _ in 0..STEPS {
            ctx.device().reset_spent();
            job.step(&ctx, &mut state, train)?;
            let spent = ctx.device().spent();
            let total = spent.iter().map(|(_, s)| s.time).sum();
            if best.as_ref().is_none_or(|(least, _)| total < *least) {
                best = Some((total, spent));
            }
        }
        Ok(best.map(|(_, spent)| spent).unwrap_or_default())
    })?;
    let spent: Result<Vec<_>> = spent.into_iter().collect();
    Ok(machine.clone().calibrated(&spent?.remove(0)))
}

/// Seconds of a step on ranks of this machine: the shortest of a few, which nobody disturbed.
fn timed(ranks: usize, job: &Job, train: bool) -> Result<f64> {
    let seen = Launch::new(ranks).run(|ctx| {
        let mut state = job.prepare(ctx, train)?;
        let mut times = Vec::with_capacity(STEPS);
        for turn in 0..STEPS + 2 {
            ctx.world().barrier()?;
            let start = Instant::now();
            job.step(ctx, &mut state, train)?;
            ctx.world().barrier()?;
            if turn >= 2 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
        Ok(times.into_iter().fold(f64::INFINITY, f64::min))
    })?;
    Ok(seen.into_iter().fold(0.0, f64::max))
}

fn told_seconds(
    measured: &Measured,
    machine: &Machine,
    ranks: usize,
    job: &Job,
    train: bool,
) -> Result<f64> {
    let topology = Topology::shared_memory(ranks, machine.clone(), measured.links.axis(0))
        .with_round(measured.links.round);
    let forecast = Simulation::new(&topology)
        .ranks((0..ranks).collect::<Vec<_>>())
        .run(
            |ctx| job.prepare(ctx, train),
            |ctx, state| job.step(ctx, state, train),
        )?;
    Ok(forecast.seconds())
}
