//! Forecasts beside runs, on the machine at hand.

use crate::Cli;
use crate::jobs::Job;
use crate::others::Ticks;
use shard_comm::{Communicator, HostOptions, WorkStats, local};
use shard_tensor::simulated::{Machine, Topology};
use shard_tensor::{Context, DType, FoldBy, Forecast, Launch, Measured, Result, Simulation};
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};
use xtests::say;

/// Steps that are timed, after two that are not.
const STEPS: usize = 7;

/// A turn counts if other programs had less of the machine than this share.
const QUIET: f64 = 0.05;

/// How often a turn is tried again until it counts.
const TRIES: u32 = 10;

/// A program that is run, by a name, and whether it is trained.
type Case = (&'static str, Job, bool);

/// What is run.
fn cases() -> [Case; 5] {
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
        let here = Here {
            ranks,
            cores,
            measured,
            tells: told.first() == Some(&true),
        };
        if here.tells {
            say!("{ranks} ranks on {cores} cores: {}", here.measured);
        }
        if !cli.measure {
            here.compare(cli)?;
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

/// Ranks of this machine.
struct Here {
    ranks: usize,
    cores: usize,
    measured: Measured,
    /// Whether this process prints.
    tells: bool,
}

/// A run and its forecast.
struct Turn {
    /// Seconds of a step.
    run: f64,
    told: Forecast,
    /// Whether no other program had much of the machine.
    quiet: bool,
}

impl Turn {
    fn ratio(&self) -> String {
        let mark = if self.quiet { "" } else { "?" };
        format!("{:.2}{mark}", self.run / self.told.seconds())
    }
}

impl Here {
    /// Runs and forecasts in turns, case by case: of both the shortest of all turns counts, which nobody disturbed.
    fn compare(&self, cli: &Cli) -> Result<()> {
        if self.tells {
            say!(
                "{:>9}  {:<42} {:>10} {:>20} {:>20}   run / rehearsal in each turn (?: disturbed)",
                "",
                "",
                "run, ms",
                "rehearsal, ms",
                "rates of 1 rank, ms"
            );
        }
        let alone = one_rank()?;
        for case in cases() {
            let mut turns = Vec::new();
            for _ in 0..cli.turns {
                turns.extend(self.quiet_turn(&case)?);
            }
            let Some(last) = turns.last() else {
                continue;
            };
            // Disturbed turns count only if there are no others.
            let any_quiet = turns.iter().any(|turn| turn.quiet);
            let least = |seconds: &dyn Fn(&Turn) -> f64| {
                let counted = turns.iter().filter(|turn| turn.quiet || !any_quiet);
                counted.map(seconds).fold(f64::INFINITY, f64::min)
            };
            let (run, rehearsal) = (least(&|turn| turn.run), least(&|turn| turn.told.seconds()));
            let by_rates = self.by_rates(&calibrated(&alone, &case)?, &case)?;
            let rates = by_rates.seconds();
            let beside =
                |told: f64| format!("{:.3} ({:+.1} %)", 1e3 * told, 100.0 * (told / run - 1.0));
            say!(
                "{:>3} ranks  {:<42} {:>10.3} {:>20} {:>20}   {}",
                self.ranks,
                case.0,
                1e3 * run,
                beside(rehearsal),
                beside(rates),
                turns.iter().map(Turn::ratio).collect::<Vec<_>>().join(" ")
            );
            if cli.ops {
                let alone = self.rehearsed(&case, 1)?;
                say!(
                    "by rates: {by_rates}\nrehearsed one at a time: {alone}\nrehearsed together: {}",
                    last.told
                );
            }
        }
        Ok(())
    }

    /// A run and a rehearsal in which nobody disturbed them, unless somebody always does; the process that does not print only runs.
    fn quiet_turn(&self, case: &Case) -> Result<Option<Turn>> {
        // Processes run as often as each other.
        let tries = if processes().is_some() { 1 } else { TRIES };
        let mut times = 1;
        loop {
            let before = Ticks::now();
            let run = timed(self.ranks, case)?;
            if !self.tells {
                return Ok(None);
            }
            let told = self.rehearsed(case, self.cores)?;
            let others = Ticks::now()
                .zip(before)
                .map(|(now, then)| now.others_since(&then));
            let quiet = others.is_none_or(|share| share < QUIET);
            if quiet || times == tries {
                return Ok(Some(Turn { run, told, quiet }));
            }
            times += 1;
        }
    }

    /// The ranks as threads of this machine that compute as `machine` does.
    fn topology(&self, machine: &Machine) -> Topology {
        let links = &self.measured.links;
        Topology::shared_memory(self.ranks, machine.clone(), links.axis(0))
            .with_round(links.round)
            .with_runs(links.per_run)
    }

    /// The forecast of ranks that do their own work, so many at a time.
    fn rehearsed(&self, (_, job, train): &Case, cores: usize) -> Result<Forecast> {
        Simulation::new(&self.topology(&self.measured.machine))
            .ranks((0..self.ranks).collect::<Vec<_>>())
            .cores(cores)
            .rehearse(
                |ctx| job.prepare(ctx, *train),
                |ctx, state| job.step(ctx, state, *train),
            )
    }

    /// The forecast from the rates that the ops of one rank alone reached.
    fn by_rates(&self, machine: &Machine, (_, job, train): &Case) -> Result<Forecast> {
        let shared = (self.ranks as f64 / self.cores as f64).max(1.0);
        Simulation::new(&self.topology(&machine.clone().slowed(shared)))
            .ranks((0..self.ranks).collect::<Vec<_>>())
            .run(
                |ctx| job.prepare(ctx, *train),
                |ctx, state| job.step(ctx, state, *train),
            )
    }
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
fn calibrated(machine: &Machine, (_, job, train): &Case) -> Result<Machine> {
    let options = local::LocalOptions {
        host: HostOptions {
            meter: true,
            ..HostOptions::default()
        },
        ..Default::default()
    };
    let spent = local::run_with(
        1,
        &options,
        |comm| -> Result<Vec<(&'static str, WorkStats)>> {
            let world: Rc<dyn Communicator> = Rc::new(comm);
            let ctx = Context::new(world, 0, DType::F32);
            let mut state = job.prepare(&ctx, *train)?;
            job.step(&ctx, &mut state, *train)?;
            // Of a few steps the shortest, which nobody disturbed.
            let mut best: Option<(Duration, Vec<(&'static str, WorkStats)>)> = None;
            for _ in 0..STEPS {
                ctx.device().reset_spent();
                job.step(&ctx, &mut state, *train)?;
                let spent = ctx.device().spent();
                let total = spent.iter().map(|(_, s)| s.time).sum();
                if best.as_ref().is_none_or(|(least, _)| total < *least) {
                    best = Some((total, spent));
                }
            }
            Ok(best.map(|(_, spent)| spent).unwrap_or_default())
        },
    )?;
    let spent: Result<Vec<_>> = spent.into_iter().collect();
    Ok(machine.clone().calibrated(&spent?.remove(0)))
}

/// Seconds of a step on ranks of this machine: the shortest of a few, which nobody disturbed.
fn timed(ranks: usize, (_, job, train): &Case) -> Result<f64> {
    let seen = Launch::new(ranks).run(|ctx| {
        let mut state = job.prepare(ctx, *train)?;
        let mut times = Vec::with_capacity(STEPS);
        for turn in 0..STEPS + 2 {
            ctx.world().barrier()?;
            let start = Instant::now();
            job.step(ctx, &mut state, *train)?;
            ctx.world().barrier()?;
            if turn >= 2 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
        Ok(times.into_iter().fold(f64::INFINITY, f64::min))
    })?;
    Ok(seen.into_iter().fold(0.0, f64::max))
}
