//! Tables of weak and strong scaling, beside published figures.

use crate::jobs::Job;
use crate::plot::{Curve, draw};
use crate::{Cli, Which};
use shard_tensor::simulated::{LinkCost, Machine, Played, Reductions, Topology};
use shard_tensor::{FoldBy, Forecast, Simulation};
use std::error::Error;
use xtests::say;

/// Seconds a kernel takes to start on the devices that are imagined.
const LAUNCH: f64 = 5e-6;

/// Seconds of one step on 1, 2, 4 and 8 ranks, as published, and on what.
struct Published {
    what: &'static str,
    seconds: [f64; 4],
}

/// Latencies of PhysicsNeMo's ViT tutorial, 126.9 M parameters, a picture of 2048 x 2048 (GPUs of 80 GB).
const VIT: [Published; 2] = [
    Published {
        what: "ViT 2048, inference",
        seconds: [2.2, 1.32, 0.76, 0.54],
    },
    Published {
        what: "ViT 2048, training",
        seconds: [31.4, 16.4, 8.78, 5.02],
    },
];

/// Times of PhysicsNeMo's ring attention figure, 8 heads of 256 at 2^17 tokens, read off its plot to 5 %.
const RING: [Published; 2] = [
    Published {
        what: "ring attention 2^17, inference",
        seconds: [4.4, 2.15, 1.04, 0.515],
    },
    Published {
        what: "ring attention 2^17, training",
        seconds: [14.0, 7.1, 3.7, 1.87],
    },
];

/// What is asked of a program: a name, and its size on so many ranks.
struct Question {
    name: &'static str,
    train: bool,
    job: fn(usize) -> Job,
}

const UNET: [Question; 2] = [
    Question {
        name: "U-Net training, strong, 4096 x 4096",
        train: true,
        job: |_| Job::UNet {
            rows: 4096,
            columns: 4096,
        },
    },
    Question {
        name: "U-Net training, weak, 512 x 512 per rank",
        train: true,
        job: |ranks| {
            let side = (ranks as f64).sqrt() * 512.0;
            Job::UNet {
                rows: side.round() as usize,
                columns: side.round() as usize,
            }
        },
    },
];

const ATTENTION: [Question; 2] = [
    Question {
        name: "ring attention training, strong, 2^17 tokens",
        train: true,
        job: |_| attention(1 << 17, FoldBy::Ring),
    },
    Question {
        name: "ring attention training, weak, 2^14 tokens per rank",
        train: true,
        job: |ranks| attention(ranks << 14, FoldBy::Ring),
    },
];

const TRANSFORMER: [Question; 2] = [
    Question {
        name: "ViT training, strong, 2048 x 2048",
        train: true,
        job: |_| vit(2048, FoldBy::Auto),
    },
    Question {
        name: "ViT training, weak, 8192 patches per rank",
        train: true,
        job: |ranks| vit(8 * ((ranks << 13) as f64).sqrt() as usize, FoldBy::Auto),
    },
];

fn attention(tokens: usize, way: FoldBy) -> Job {
    Job::Attention {
        tokens,
        heads: 8,
        dim: 256,
        way,
    }
}

fn vit(side: usize, way: FoldBy) -> Job {
    Job::Vit {
        side,
        layers: 16,
        width: 768,
        heads: 12,
        way,
    }
}

/// Prints the tables, and draws the picture.
pub(crate) fn run(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let all = [Which::Unet, Which::Attention, Which::Vit];
    let asked = all
        .into_iter()
        .filter(|w| cli.jobs.is_empty() || cli.jobs.contains(w));
    let machine = Machine::new(cli.rate[0] * 1e12, cli.rate[1] * 1e12).with_launch(LAUNCH);
    say!(
        "a rank: {machine}; nodes of {}, inside {}, between {}\n",
        cli.per_node,
        link(&cli.inside),
        link(&cli.between)
    );
    let mut curves = Vec::new();
    for which in asked {
        match which {
            // What one rank would do alone is more than is to be done here.
            _ if cli.rehearse => {}
            Which::Unet => {}
            Which::Attention => {
                for (published, train) in RING.iter().zip([false, true]) {
                    beside(cli, &attention(1 << 17, FoldBy::Ring), train, published)?;
                }
            }
            Which::Vit => {
                for (published, train) in VIT.iter().zip([false, true]) {
                    beside(cli, &vit(2048, FoldBy::Ring), train, published)?;
                }
            }
        }
        let questions = match which {
            Which::Unet => &UNET,
            Which::Attention => &ATTENTION,
            Which::Vit => &TRANSFORMER,
        };
        for question in questions {
            curves.push(table(cli, &machine, question)?);
        }
    }
    if let Some(path) = &cli.plot {
        draw(path, &curves)?;
        say!("speedups: {}", path.display());
    }
    Ok(())
}

fn link(numbers: &[f64]) -> LinkCost {
    LinkCost::new(numbers[0] * 1e-6, numbers[1] * 1e9)
}

fn forecast(
    cli: &Cli,
    machine: &Machine,
    reductions: Reductions,
    ranks: usize,
    (job, train): (&Job, bool),
) -> shard_tensor::Result<Forecast> {
    let topology = Topology::network(ranks, machine.clone(), link(&cli.inside))
        .nodes_of(cli.per_node, link(&cli.between))
        .with_reductions(reductions);
    // An edge and a middle, which has neighbours on all sides, are enough where shards are alike.
    let middle = ranks / 2 + (ranks as f64).sqrt() as usize / 2;
    let mut play = vec![0, middle.min(ranks - 1)];
    play.dedup();
    let prepare = |ctx: &_| job.prepare(ctx, train);
    let step = |ctx: &_, state: &mut _| job.step(ctx, state, train);
    let simulation = Simulation::new(&topology).ranks(play);
    match cli.rehearse {
        true => simulation.rehearse(prepare, step),
        false => simulation.run(prepare, step),
    }
}

/// One question on every number of ranks.
fn table(cli: &Cli, machine: &Machine, question: &Question) -> Result<Curve, Box<dyn Error>> {
    say!(
        "{}\n{:>6} {:>12} {:>8} {:>8} {:>11} {:>11} {:>9} {:>12} {:>10}",
        question.name,
        "ranks",
        "ms",
        "busy",
        "waits",
        "GiB/rank",
        "MiB moved",
        "messages",
        "ms, library",
        "busy"
    );
    let mut points = Vec::new();
    for &ranks in &cli.ranks {
        let ranks = ranks as usize;
        let job = (question.job)(ranks);
        let own = forecast(
            cli,
            machine,
            Reductions::Direct,
            ranks,
            (&job, question.train),
        )?;
        let sums = |played: &Played| played.moved.op("all_reduce").rounds > 0;
        let library = if own.played.iter().any(sums) {
            let by = Reductions::Library;
            forecast(cli, machine, by, ranks, (&job, question.train))?
        } else {
            own.clone()
        };
        let (Some(busiest), seconds) = (own.busiest(), own.seconds()) else {
            continue;
        };
        let total = busiest.total();
        let ideal = total.work.flops as f64 / machine.flops();
        say!(
            "{ranks:>6} {:>12.3} {:>7.1}% {:>7.1}% {:>11.3} {:>11.2} {:>9} {:>12.3} {:>9.1}%",
            1e3 * seconds,
            100.0 * ideal / seconds,
            100.0 * total.waiting / busiest.seconds,
            own.peak() as f64 / f64::from(1 << 30),
            busiest.moved.bytes as f64 / f64::from(1 << 20),
            busiest.moved.messages,
            1e3 * library.seconds(),
            100.0 * ideal / library.seconds(),
        );
        if cli.ops {
            say!("{own}");
        }
        let useful = ranks as f64 * ideal;
        points.push((ranks as f64, useful / seconds, useful / library.seconds()));
    }
    say!();
    Ok(Curve {
        name: question.name,
        points,
    })
}

/// One job on 1, 2, 4 and 8 ranks of a machine that computes as fast as the published single one did.
fn beside(cli: &Cli, job: &Job, train: bool, published: &Published) -> Result<(), Box<dyn Error>> {
    let bandwidth = cli.rate[1] * 1e12;
    let rough = Machine::new(1e12, bandwidth);
    let one = forecast(cli, &rough, Reductions::Library, 1, (job, train))?;
    let flops = one.busiest().map_or(0, |p| p.total().work.flops) as f64;
    let machine = Machine::new(flops / published.seconds[0], bandwidth).with_launch(LAUNCH);
    say!(
        "{}: published, and forecast at the {:.1} TFLOP/s that one rank reached\n{:>6} {:>12} {:>12} {:>9} {:>9} {:>9}",
        published.what,
        1e-12 * machine.flops(),
        "ranks",
        "published s",
        "forecast s",
        "speedup",
        "forecast",
        "GiB/rank"
    );
    let mut first = None;
    for (ranks, seconds) in [1, 2, 4, 8].into_iter().zip(published.seconds) {
        let forecast = forecast(cli, &machine, Reductions::Library, ranks, (job, train))?;
        let single = *first.get_or_insert(forecast.seconds());
        say!(
            "{ranks:>6} {seconds:>12.3} {:>12.3} {:>9.2} {:>9.2} {:>9.2}",
            forecast.seconds(),
            published.seconds[0] / seconds,
            single / forecast.seconds(),
            forecast.peak() as f64 / f64::from(1 << 30)
        );
    }
    say!();
    Ok(())
}
