//! Shows how a tensor goes from one layout to another: the plan, the methods it was compared with, and who sends what to whom.
//!
//! ```text
//! plan --mesh 2x4 --shape 8192x4096 --from 'S(0) S(1)' --to 'S(1) S(0)'
//! ```

mod svg;
mod traffic;

use clap::Parser;
use shard_comm::DType;
use shard_redistribute::{CostModel, LinkCost, Plan};
use shard_spec::{DeviceMesh, Layout};
use std::path::PathBuf;
use std::process::ExitCode;
use traffic::Traffic;

/// Plans the move of a tensor from one layout to another, and explains it.
#[derive(Parser, Debug)]
#[command(name = "plan", version)]
struct Args {
    /// Ranks along each mesh axis, such as 2x4.
    #[arg(long)]
    mesh: String,
    /// The tensor's global shape, such as 8192x4096.
    #[arg(long)]
    shape: String,
    #[arg(
        long,
        help = "The layout it has, one placement per mesh axis, such as 'S(0)[3,5] R P(sum)'"
    )]
    from: String,
    /// The layout that the tensor is to have.
    #[arg(long)]
    to: String,
    /// The element type.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Microseconds per message.
    #[arg(long, default_value_t = 10.0)]
    latency: f64,
    /// Gigabytes per second of one link.
    #[arg(long, default_value_t = 50.0)]
    bandwidth: f64,
    /// Ranks share memory: messages are free and readers copy what they need.
    #[arg(long)]
    shared_memory: bool,
    /// The rank whose figures are shown in the plan.
    #[arg(long, default_value_t = 0)]
    rank: usize,
    /// Draws boxes and traffic into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// The most ranks whose traffic is listed.
const LISTED_RANKS: usize = 256;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) if !e.use_stderr() => {
            print!("{e}");
            return ExitCode::SUCCESS;
        }
        Err(e) => return refuse(&one_line(&e.to_string())),
    };
    match run(&args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(message) => refuse(&format!("error: {message}")),
    }
}

fn refuse(line: &str) -> ExitCode {
    eprintln!("{line}");
    ExitCode::from(2)
}

/// What the parser says before it explains usage, on one line.
fn one_line(text: &str) -> String {
    text.lines()
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more"))
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn run(args: &Args) -> Result<String, String> {
    let mesh = DeviceMesh::new(&extents("--mesh", &args.mesh)?).map_err(|e| e.to_string())?;
    let shape = extents("--shape", &args.shape)?;
    let layout = |name: &str, text: &str| {
        Layout::parse(&mesh, &shape, text).map_err(|e| format!("{name} '{text}': {e}"))
    };
    let (from, to) = (layout("--from", &args.from)?, layout("--to", &args.to)?);
    let dtype = dtype(&args.dtype)?;
    if args.rank >= mesh.size() {
        let (rank, size) = (args.rank, mesh.size());
        return Err(format!("--rank {rank}: the mesh has {size} ranks"));
    }
    let model = model(args)?;
    let plan = |index| Plan::cheapest(&from, &to, index, dtype, &model).map_err(|e| e.to_string());
    let mut text = plan(args.rank)?.explain(dtype).to_string();
    if mesh.size() > LISTED_RANKS {
        text += &format!(
            "  ({} ranks: traffic is listed up to {LISTED_RANKS})\n",
            mesh.size()
        );
        return Ok(text);
    }
    let plans: Vec<Plan> = (0..mesh.size()).map(plan).collect::<Result<_, _>>()?;
    let traffic = Traffic::of(&plans, dtype);
    text += "\n";
    text += &traffic.table(&from, &to);
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::draw(&from, &to, &traffic))
            .map_err(|e| format!("--svg {}: {e}", path.display()))?;
    }
    Ok(text)
}

/// `2x4` as a list of numbers.
fn extents(name: &str, text: &str) -> Result<Vec<usize>, String> {
    text.split('x')
        .map(|n| n.trim().parse())
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{name} '{text}': expected numbers joined by x, such as 2x4"))
}

fn dtype(text: &str) -> Result<DType, String> {
    DType::ALL
        .into_iter()
        .find(|t| t.to_string() == text)
        .ok_or_else(|| {
            let all: Vec<String> = DType::ALL.iter().map(ToString::to_string).collect();
            format!("--dtype '{text}': expected one of {}", all.join(", "))
        })
}

fn model(args: &Args) -> Result<CostModel, String> {
    let usable = |x: f64| x.is_finite() && x >= 0.0;
    if !usable(args.latency) || !usable(args.bandwidth) || args.bandwidth == 0.0 {
        return Err("--latency must be at least 0 and --bandwidth above 0".to_owned());
    }
    if args.shared_memory {
        return Ok(CostModel::shared_memory());
    }
    let link = LinkCost::new(args.latency * 1e-6, args.bandwidth * 1e9);
    Ok(CostModel::network(link))
}
