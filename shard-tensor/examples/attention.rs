//! Causal self-attention over a sequence divided among ranks: keys and values go round a ring.
//!
//! Shows, for each number of ranks, that the result is one rank's; how evenly contiguous and zigzag shards share the work
//! that a causal mask leaves; and how the memory of a rank falls with the number of ranks by ring, and does not by gather.
//!
//! `cargo run --release -p shard-tensor --example attention -- --plot attention.svg`

#[path = "output/exit.rs"]
mod exit;
#[path = "output/told.rs"]
mod told;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use ndarray::ArrayD;
use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use shard_tensor::{
    Attention, AxisPlacement, Causal, Context, DeviceKind, Error, FoldBy, Launch, shard,
};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use told::Told;

/// Causal attention by ring and by gather, on one rank and on several.
#[derive(Parser)]
struct Args {
    /// Tokens in the sequence.
    #[arg(long, default_value_t = 2048, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    tokens: usize,
    /// Heads.
    #[arg(long, default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    heads: usize,
    /// Numbers per head and token.
    #[arg(long, default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    dim: usize,
    /// Numbers of ranks to try.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    ranks: Vec<usize>,
    /// What every rank computes on: host, test, cuda or emulated-cuda; the last two need the feature of that name.
    #[arg(long, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
    /// Where to draw the memory of a rank against the number of ranks, as SVG.
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// What came of one run.
struct Seen {
    output: ArrayD<f32>,
    gradient: ArrayD<f32>,
    ranks: Vec<Taken>,
}

/// What it took one rank.
#[derive(Serialize, Deserialize)]
struct Taken {
    seconds: f64,
    /// Pairs of a query here and a key it sees.
    pairs: usize,
    /// Most bytes this rank held at once.
    peak: usize,
    received: u64,
}

/// The program of every rank; rank 0 tells what came of it.
fn attend(
    ctx: &Context,
    args: &Args,
    along: AxisPlacement,
    ring: FoldBy,
) -> shard_tensor::Result<Option<Seen>> {
    let mesh = ctx.mesh_of(ctx.world_size())?;
    let x = mesh
        .randn([1, args.heads, args.tokens, args.dim], [along])?
        .requires_grad()?;
    let options = Attention::new().causal(Causal::TopLeft).fold_by(ring);
    let before = ctx.ledger().snapshot();
    ctx.world().barrier()?;
    let start = Instant::now();
    let y = x.attention(&x, &x, None, &options)?;
    let gradients = y.mul(&y)?.sum([0, 1, 2, 3], false)?.backward()?;
    ctx.world().barrier()?;
    let seconds = start.elapsed().as_secs_f64();
    let (received, peak) = (
        ctx.ledger().since(&before).bytes,
        ctx.ledger().memory().peak,
    );
    let gradient = gradients
        .get(&x)?
        .ok_or_else(|| Error::custom("the input has a gradient"))?;
    let held = x.layout().local_parts(ctx.rank()).unwrap_or_default();
    let ranks = ctx.gather(&Taken {
        seconds,
        pairs: held[2].indices().map(|query| query + 1).sum(),
        peak,
        received,
    })?;
    let (output, gradient) = (y.to_array()?, gradient.to_array()?);
    Ok((ctx.rank() == 0).then_some(Seen {
        output,
        gradient,
        ranks,
    }))
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    exit::of(run(&Args::parse()))
}

/// Tries all ways on all numbers of ranks.
fn run(args: &Args) -> Result<bool, Failure> {
    let mut out = Told::new();
    let run = |ranks: usize, along: AxisPlacement, ring| {
        let seen = Launch::new(ranks)
            .device(args.device)
            .run(|ctx| attend(ctx, args, along.clone(), ring))?;
        Ok::<_, Error>(seen.into_iter().flatten().next())
    };
    // Of several processes, that of rank 0 tells what came of it.
    let single = run(1, shard(2), FoldBy::Gather)?;
    if let Some(single) = &single {
        writeln!(
            out,
            "{} tokens, {} heads of {}: forward and backward on one rank {:.0} ms\n",
            args.tokens,
            args.heads,
            args.dim,
            1e3 * single.ranks[0].seconds
        )?;
        writeln!(
            out,
            "ranks  shards      keys    busiest/mean work      ms  MiB per rank  MiB received  difference"
        )?;
    }
    let mut curves: Vec<Curve> = vec![("ring", BLUE, Vec::new()), ("gather", RED, Vec::new())];
    for &ranks in &args.ranks {
        let ways = [
            ("contiguous", shard(2), FoldBy::Ring),
            ("zigzag", shard(2).zigzag(), FoldBy::Ring),
            ("zigzag", shard(2).zigzag(), FoldBy::Gather),
        ];
        for (shards, along, ring) in ways {
            let (Some(seen), Some(single)) = (run(ranks, along, ring)?, &single) else {
                continue;
            };
            let most = |f: &dyn Fn(&Taken) -> f64| seen.ranks.iter().map(f).fold(0.0, f64::max);
            let mean = seen.ranks.iter().map(|s| s.pairs as f64).sum::<f64>() / ranks as f64;
            let memory = most(&|s| s.peak as f64) / f64::from(1 << 20);
            let gathers = ring == FoldBy::Gather;
            writeln!(
                out,
                "{ranks:>5}  {shards:<10}  {:<6}  {:>17.3}  {:>6.0}  {memory:>12.2}  {:>12.2}  {:>10.1e}",
                if gathers { "gather" } else { "ring" },
                most(&|s| s.pairs as f64) / mean,
                1e3 * most(&|s| s.seconds),
                most(&|s| s.received as f64) / f64::from(1 << 20),
                difference(&seen, single),
            )?;
            if shards == "zigzag" {
                curves[usize::from(gathers)].2.push((ranks as f64, memory));
            }
        }
    }
    if let (Some(path), Some(_)) = (&args.plot, &single) {
        plot(path, &curves).map_err(|e| format!("{}: {e}", path.display()))?;
        writeln!(out, "\nmemory against ranks: {}", path.display())?;
    }
    Ok(true)
}

/// The largest difference of results and of gradients, in units of the largest of each.
fn difference(a: &Seen, b: &Seen) -> f32 {
    let of = |a: &ArrayD<f32>, b: &ArrayD<f32>| {
        let size = b.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        a.iter()
            .zip(b)
            .fold(0.0_f32, |m, (x, y)| m.max((x - y).abs()))
            / size
    };
    of(&a.output, &b.output).max(of(&a.gradient, &b.gradient))
}

/// A name, a colour, and (ranks, MiB) pairs.
type Curve = (&'static str, RGBColor, Vec<(f64, f64)>);

/// Memory of the busiest rank against the number of ranks.
fn plot(path: &Path, curves: &[Curve]) -> Result<(), Failure> {
    let all = || curves.iter().flat_map(|c| &c.2);
    let right = all().fold(1.0, |m, p| f64::max(m, p.0)) * 1.1;
    let low = all().fold(f64::MAX, |m, p| m.min(p.1)) * 0.8;
    let high = all().fold(0.0, |m, p| f64::max(m, p.1)) * 1.25;
    let ranks = all().map(|point| point.0).collect();
    let ranks = (0.9..right).log_scale().with_key_points(ranks);
    let powers = (-20..20).map(|n| f64::powi(2.0, n));
    let powers = powers.filter(|at| (low..high).contains(at)).collect();
    let memory = (low..high).log_scale().with_key_points(powers);
    let root = SVGBackend::new(path, (700, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Causal attention, forward and backward", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(ranks, memory)?;
    chart
        .configure_mesh()
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 17))
        .x_label_formatter(&f64::to_string)
        .y_label_formatter(&f64::to_string)
        .x_desc("ranks")
        .y_desc("MiB held by a rank at most")
        .light_line_style(WHITE)
        .draw()?;
    for (name, color, points) in curves {
        let color = *color;
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    chart
        .configure_series_labels()
        .label_font(("sans-serif", 15))
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
