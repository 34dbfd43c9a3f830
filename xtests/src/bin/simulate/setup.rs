//! What being one of many ranks costs before anything is computed: time and memory of set-up, by the number of ranks.

use crate::Cli;
use crate::jobs::{Job, State};
use shard_comm::Communicator;
use shard_comm::simulated::SimulatedComm;
use shard_tensor::simulated::{LinkCost, Machine, Topology};
use shard_tensor::{Context, DType, FoldBy, Result};
use std::error::Error;
use std::fs;
use std::rc::Rc;
use std::time::Instant;
use xtests::say;

/// Ranks that are set up side by side; the table has what one of them takes.
const SIDE_BY_SIDE: usize = 16;

/// Steps of which the shortest counts, after the first.
const STEPS: usize = 3;

/// The most bytes that a rank may take for each rank there is, when it is set up and after a step, and the most besides: so that
/// nothing that grows with their number is kept for every op, and the program fails when something is.
const MOST: [(usize, usize); 2] = [(48, 256 << 10), (96, 2 << 20)];

/// A program, and its size on so many ranks: as much for each rank, however many there are.
type Asked = (&'static str, fn(usize) -> Job);

const ASKED: [Asked; 2] = [
    ("U-Net, ranks both ways, 64 x 64 per rank", |ranks| {
        let side = (ranks as f64).sqrt() * 64.0;
        Job::UNet {
            rows: side.round() as usize,
            columns: side.round() as usize,
        }
    }),
    (
        "linear layer and norm, ranks in a row, 64 patches per rank",
        |ranks| Job::Vit {
            side: 8 * ((ranks << 6) as f64).sqrt() as usize,
            layers: 0,
            width: 64,
            heads: 4,
            way: FoldBy::Gather,
        },
    ),
];

/// One rank, kept so that its memory is not given to the next.
struct Rank {
    ctx: Context,
    state: State,
}

/// Prints a table of each program.
pub(crate) fn run(cli: &Cli) -> std::result::Result<(), Box<dyn Error>> {
    // What the program itself needs once is there before it counts.
    let mut kept = vec![ranks_of(&ASKED[0].1(8), 8)?];
    for ranks in &mut kept {
        steps(&ASKED[0].1(8), ranks)?;
    }
    for (name, job) in ASKED {
        say!(
            "{name}\n{:>6} {:>14} {:>12} {:>14} {:>12} {:>14}",
            "ranks",
            "set-up, ms",
            "KiB",
            "first step, ms",
            "KiB",
            "next step, ms"
        );
        for &count in &cli.ranks {
            let job = job(count as usize);
            let before = resident()?;
            let start = Instant::now();
            let mut ranks = ranks_of(&job, count as usize)?;
            let (made, prepared) = (start.elapsed(), resident()?);
            let start = Instant::now();
            steps(&job, &mut ranks)?;
            let (first, stepped) = (start.elapsed(), resident()?);
            let mut next = f64::INFINITY;
            for _ in 0..STEPS {
                let start = Instant::now();
                steps(&job, &mut ranks)?;
                next = next.min(start.elapsed().as_secs_f64());
            }
            let each = 1e3 / SIDE_BY_SIDE as f64;
            let kib = |from: usize, to: usize| to.saturating_sub(from) / SIDE_BY_SIDE / 1024;
            say!(
                "{count:>6} {:>14.3} {:>12} {:>14.3} {:>12} {:>14.3}",
                each * made.as_secs_f64(),
                kib(before, prepared),
                each * first.as_secs_f64(),
                kib(prepared, stepped),
                each * next
            );
            kept.push(ranks);
            for (bytes, (per_rank, besides)) in [prepared, stepped].iter().zip(MOST) {
                let (each, most) = (
                    (bytes.saturating_sub(before)) / SIDE_BY_SIDE,
                    per_rank * count as usize,
                );
                if each > most + besides {
                    return Err(format!("{each} bytes per rank, {} at most", most + besides).into());
                }
            }
        }
    }
    Ok(())
}

/// Ranks of a group of this size, with a mesh, a model and an optimizer each.
fn ranks_of(job: &Job, size: usize) -> Result<Vec<Rank>> {
    let topology = Topology::network(size, Machine::new(20e12, 2e12), LinkCost::new(10e-6, 40e9));
    let all = (0..SIDE_BY_SIDE).map(|i| {
        let world: Rc<dyn Communicator> =
            Rc::new(SimulatedComm::new(&topology, i * size / SIDE_BY_SIDE)?);
        let ctx = Context::new(world, 0, DType::F32);
        let state = job.prepare(&ctx, true)?;
        Ok(Rank { ctx, state })
    });
    all.collect()
}

fn steps(job: &Job, ranks: &mut [Rank]) -> Result<()> {
    ranks
        .iter_mut()
        .try_for_each(|rank| job.step(&rank.ctx, &mut rank.state, true))
}

/// Bytes of this process that are in memory. Elements of tensors are none of them, because no rank here has any.
fn resident() -> std::result::Result<usize, Box<dyn Error>> {
    const PAGE: usize = 4096;
    let pages = fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split_whitespace().nth(1).unwrap_or_default();
    Ok(resident.parse::<usize>()? * PAGE)
}
