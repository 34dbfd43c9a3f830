//! The nearest neighbours of terrain points three ways: operands aligned by the engine, points round a ring, and one rank.
//!
//! The points are the 38,148 cells of a real terrain, in strips of rows, one uneven strip per rank. The first way writes the distances
//! out as `queries[:, None] - points[None]` and picks the smallest, tile by tile; which operand moves, and that minima over
//! a sharded dim are reduced, is the engine's business. The others call `nearest`. All must find the same neighbours.
//!
//! `cargo run --release -p shard-tensor --example knn -- --plot knn.svg`

#[path = "../input/altitude.rs"]
mod altitude;
#[path = "../output/exit.rs"]
mod exit;
mod picture;
mod terrain;
#[path = "../output/told.rs"]
mod told;
mod ways;

use altitude::strips;
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use ndarray::{Array2, ArrayD};
use shard_tensor::{Context, DeviceKind, Error, Launch, shard};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use told::Told;
use ways::Way;

/// Nearest neighbours of terrain points on one rank and on several.
#[derive(Parser)]
struct Args {
    /// Points, taken evenly from all.
    #[arg(long, default_value_t = terrain::COUNT as u32, value_parser = clap::value_parser!(u32).range(1..))]
    points: u32,
    /// Queries for the comparison of the three ways, taken evenly from the points.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    queries: u32,
    /// Neighbours of each, itself included.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    neighbours: usize,
    /// Numbers of ranks to try besides one.
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    ranks: Vec<usize>,
    /// Queries whose distances to all points are held at once.
    #[arg(long, default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    tile: usize,
    /// What every rank computes on: host, test, cuda or emulated-cuda; the last two need the feature of that name.
    #[arg(long, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
    /// Where to draw the graph, its shards and its traffic, as SVG.
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// What a run gave: the neighbours, and what it took.
struct Seen {
    /// How they compare with one rank's.
    verdict: String,
    distances: ArrayD<f32>,
    indices: ArrayD<i64>,
    seconds: f64,
    /// Bytes each rank received and sent.
    traffic: Vec<(u64, u64)>,
    /// The first point of each rank, and how many there are.
    shards: Vec<usize>,
    /// Most bytes a rank held at once.
    peak: usize,
}

/// How often a search is timed; the fastest counts.
const TIMES: usize = 3;

/// Searches, and gives what came of it to the process of rank 0. It is an error, of the whole job, if neighbours are not
/// those that `single`, one rank, found.
fn search(
    way: Way,
    ranks: usize,
    points: &Array2<f32>,
    queries: &Array2<f32>,
    single: Option<&Seen>,
    args: &Args,
) -> shard_tensor::Result<Option<Seen>> {
    let rank = |ctx: &Context| -> shard_tensor::Result<Option<Seen>> {
        let mesh = ctx.mesh_of(ranks)?;
        let at = |n: usize| [shard(0).sizes(strips(n, ranks))];
        let queries = mesh.distribute(queries, at(queries.nrows()))?;
        let points = mesh.distribute(points, at(points.nrows()))?;
        let times = if way == Way::Aligned { 1 } else { TIMES };
        let mut seconds = f64::INFINITY;
        let mut last = None;
        for _ in 0..times {
            ctx.device().reset_peak();
            let before = ctx.ledger().snapshot();
            ctx.world().barrier()?;
            let start = Instant::now();
            let found = way.search(&queries, &points, args.neighbours, args.tile)?;
            ctx.world().barrier()?;
            seconds = seconds.min(start.elapsed().as_secs_f64());
            let (moved, peak) = (ctx.ledger().since(&before), ctx.ledger().memory().peak);
            last = Some((found, (moved.bytes, moved.sent_bytes), peak));
        }
        let Some(((distances, indices), traffic, peak)) = last else {
            return Err(Error::custom("nothing was timed"));
        };
        // Every rank reads: that is collective, so it must not depend on what a rank measured.
        let (distances, indices) = (distances.to_array()?, ways::indices(&indices)?);
        let all = ctx.gather(&(seconds, traffic, peak))?;
        let sizes = strips(points.shape()[0], ranks).into_iter();
        let ends = sizes.scan(0, |end, size| {
            *end += size;
            Some(*end)
        });
        if ctx.rank() > 0 {
            return Ok(None);
        }
        let mut seen = Seen {
            verdict: String::new(),
            shards: std::iter::once(0).chain(ends).collect(),
            distances,
            indices,
            seconds: all.iter().map(|a| a.0).fold(0.0, f64::max),
            traffic: all.iter().map(|a| a.1).collect(),
            peak: all.iter().map(|a| a.2).max().unwrap_or(0),
        };
        seen.verdict = verdict(way, &seen, single.unwrap_or(&seen)).map_err(Error::custom)?;
        Ok(Some(seen))
    };
    let seen = Launch::new(ranks).device(args.device).run(rank)?;
    Ok(seen.into_iter().flatten().next())
}

/// What each rank of a ring received from each other: the points of that one. An error if the ledgers say anything else.
fn between(ring: &Seen) -> Result<Vec<Vec<u64>>, String> {
    let point = (3 * size_of::<f32>()) as u64;
    let blocks: Vec<u64> = (ring.shards.windows(2))
        .map(|ends| (ends[1] - ends[0]) as u64 * point)
        .collect();
    let received = |to: usize| {
        let each = blocks.iter().enumerate();
        each.map(move |(from, &bytes)| if from == to { 0 } else { bytes })
            .collect()
    };
    let all: Vec<Vec<u64>> = (0..blocks.len()).map(received).collect();
    for (rank, seen) in ring.traffic.iter().enumerate() {
        let sums = (
            all[rank].iter().sum(),
            all.iter().map(|row| row[rank]).sum(),
        );
        if *seen != sums {
            return Err(format!(
                "rank {rank} received and sent {seen:?} bytes, not {sums:?}"
            ));
        }
    }
    Ok(all)
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    exit::of(run(&Args::parse()))
}

/// Searches in all ways on all numbers of ranks.
fn run(args: &Args) -> Result<bool, Failure> {
    let mut out = Told::new();
    let points = terrain::points(args.points as usize)?;
    let some = terrain::evenly(&points, (args.queries as usize).min(points.nrows()));
    let single = search(Way::Nearest, 1, &points, &some, None, args)?;
    if single.is_some() {
        writeln!(
            out,
            "{} points of a terrain, {} neighbours each\n",
            points.nrows(),
            args.neighbours
        )?;
        writeln!(
            out,
            "way          ranks  queries         ms  KiB received  MiB held  result"
        )?;
    }
    report(&mut out, Way::Nearest, single.as_ref())?;
    let mut compare = |way, ranks, queries, single: &Option<Seen>| {
        let seen = search(way, ranks, &points, queries, single.as_ref(), args)?;
        report(&mut out, way, seen.as_ref())?;
        Ok::<_, Failure>(seen)
    };
    compare(Way::Aligned, 1, &some, &single)?;
    for &ranks in &args.ranks {
        for way in [Way::Aligned, Way::Ring] {
            compare(way, ranks, &some, &single)?;
        }
    }
    // The whole graph.
    let single = compare(Way::Nearest, 1, &points, &None)?;
    let mut last = None;
    for &ranks in &args.ranks {
        last = compare(Way::Ring, ranks, &points, &single)?;
    }
    if let (Some(path), Some(graph)) = (&args.plot, last.or(single)) {
        let bytes = between(&graph)?;
        let drawn = picture::draw(path, &points, &graph.indices, &graph.shards, &bytes);
        drawn.map_err(|e| format!("{}: {e}", path.display()))?;
        writeln!(out, "\nthe graph: {}", path.display())?;
    }
    Ok(true)
}

/// Prints one line, in the process of rank 0.
fn report(out: &mut impl Write, way: Way, seen: Option<&Seen>) -> std::io::Result<()> {
    let Some(seen) = seen else { return Ok(()) };
    let received = seen.traffic.iter().map(|t| t.0).max().unwrap_or(0);
    writeln!(
        out,
        "{:<11}  {:>5}  {:>7}  {:>9.2}  {:>12.1}  {:>8.2}  {}",
        way.name(),
        seen.traffic.len(),
        seen.indices.shape()[0],
        1e3 * seen.seconds,
        received as f64 / 1024.0,
        seen.peak as f64 / f64::from(1 << 20),
        seen.verdict
    )
}

/// How a result compares with one rank's.
fn verdict(way: Way, seen: &Seen, single: &Seen) -> Result<String, String> {
    if seen.indices != single.indices {
        return Err(format!(
            "{}: found other neighbours than one rank",
            way.name()
        ));
    }
    let pairs = seen.distances.iter().zip(&single.distances);
    let apart = pairs.fold(0.0_f32, |m, (a, b)| m.max((a - b).abs()));
    if apart == 0.0 {
        return Ok("the same bits".into());
    }
    let size = single.distances.iter().fold(0.0_f32, |m, x| m.max(*x));
    let apart = apart / size;
    if apart > 1e-6 {
        return Err(format!("{}: distances differ by {apart:.1e}", way.name()));
    }
    Ok(format!("the same, distances to {apart:.0e}"))
}
