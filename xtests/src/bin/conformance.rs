//! Runs reference cases on many layouts and says which agree.

use clap::{Parser, ValueEnum};
use shard_comm::DType;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use xtests::case::{self, Case};
use xtests::dispatch;
use xtests::harness::{On, on_mesh};
use xtests::made::project_cases;
use xtests::paths::{Path, paths};
#[cfg(feature = "mpi")]
use xtests::processes::Group;
use xtests::report::{CaseReport, Report};
#[cfg(feature = "mpi")]
use xtests::run::run_on_processes;
use xtests::run::{Options, run};
use xtests::say;
use xtests::sixteen;
use xtests::trial::LIBRARY_CALLS;

/// Checks every built op against reference results, on many layouts and rank counts, forward and backward.
///
/// Prints one line per case, then how many layouts were refused, then the totals. Exits with 1 if a case
/// failed, hung or depended on the rank, and with 2 if it could not start.
#[derive(Parser)]
#[command(name = "conformance")]
struct Cli {
    /// Folder of cases; the project's own by default.
    dir: Option<PathBuf>,
    /// Only cases whose name or op contains this.
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// What ranks are.
    #[arg(long, value_enum, default_value_t = Backend::Local)]
    backend: Backend,
    /// Where arrays live; on GPUs an op without a kernel fails.
    #[arg(long, value_enum, default_value_t = Device::Host)]
    device: Device,
    /// Floats of 16 bits, in place of f64 and f32.
    #[arg(long, value_enum)]
    float: Option<Half>,
    /// Instead of cases, so many tensors through random layouts, on at most as many ranks as the largest count.
    #[arg(long, value_name = "N")]
    moves: Option<usize>,
    /// Rank counts; 4 and 6 also run as 2 x 2 and 2 x 3. Of processes, those there are enough for.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,6,8", value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: Vec<u16>,
    /// All combinations of placements and splits, on all meshes.
    #[arg(long)]
    exhaustive: bool,
    /// Fixes the order and every random choice.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop starting layouts after so long; every case gets one on every mesh first as far as time allows.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Write the results as JSON too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How many groups of ranks run side by side; one per core by default.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Seconds after which a layout without result counts as a hang.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

/// What ranks are.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// Threads of this process.
    Local,
    /// The processes that mpirun started: every one is a rank, and the first one reports.
    #[cfg(feature = "mpi")]
    Mpi,
    /// Threads of this process between whose GPUs NCCL moves.
    #[cfg(feature = "nccl")]
    Nccl,
}

impl Backend {
    fn is_threads(self) -> bool {
        match self {
            Self::Local => true,
            #[cfg(feature = "mpi")]
            Self::Mpi => false,
            #[cfg(feature = "nccl")]
            Self::Nccl => true,
        }
    }
}

/// Types of 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Half {
    F16,
    Bf16,
}

impl Half {
    fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}

/// Where arrays live.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// Memory of the host, and in some trials a device that finds missing synchronisation.
    Host,
    /// GPUs.
    Cuda,
    /// The emulation of GPUs.
    EmulatedCuda,
}

impl Device {
    fn on(self, backend: Backend) -> Option<On> {
        match (self, backend) {
            (Self::Host, _) => None,
            #[cfg(feature = "nccl")]
            (Self::Cuda, Backend::Nccl) => Some(On::Nccl),
            #[cfg(feature = "nccl")]
            (Self::EmulatedCuda, Backend::Nccl) => Some(On::EmulatedNccl),
            (Self::Cuda, _) => Some(On::Cuda),
            (Self::EmulatedCuda, _) => Some(On::EmulatedCuda),
        }
    }
}

/// The case in a type of 16 bits, if one was asked for and the case's op is built.
fn in_type(case: Case, float: Option<DType>) -> Result<Case, String> {
    match (float, dispatch::find(&case)) {
        (Some(float), Ok(apply)) => sixteen::case(case, apply, float),
        _ => Ok(case),
    }
}

/// Layouts a tensor takes in a test of moves.
const STEPS: usize = 3;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.backend.is_threads()
        && let Err(error) = shard_tensor::refuse_copies()
    {
        return stop(&error.to_string());
    }
    // A rank that panics is a failure with its message in the report; it need not also be on the terminal.
    std::panic::set_hook(Box::new(|_| ()));
    #[cfg(feature = "nccl")]
    if (cli.backend, cli.device) == (Backend::Nccl, Device::Host) {
        return stop("NCCL moves between GPUs: say --device cuda, or emulated-cuda");
    }
    if let (Some(count), true) = (cli.moves, cli.backend.is_threads()) {
        let ranks = cli.ranks.iter().copied().max().unwrap_or(1);
        let device = cli.device.on(cli.backend).unwrap_or(On::Host);
        return moves(usize::from(ranks), count, cli.seed, true, |path| {
            let walk = |cx: &_| path.walk(cx).unwrap_or_else(|e| Some(e.to_string()));
            Ok(on_mesh(&path.mesh, device, walk))
        });
    }
    let budget = match cli.budget.map(Duration::try_from_secs_f64).transpose() {
        Ok(budget) => budget,
        Err(error) => return stop(&format!("--budget: {error}")),
    };
    let loaded = match &cli.dir {
        Some(dir) => case::load_dir(dir),
        None => project_cases(),
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return stop(&error.to_string()),
    };
    let mut unreadable = Vec::new();
    let mut cases: Vec<Case> = Vec::new();
    for result in loaded {
        let float = cli.float.map(Half::dtype);
        match result
            .map_err(|e| e.to_string())
            .and_then(|case| in_type(case, float))
        {
            Ok(case) => cases.push(case),
            Err(error) => {
                unreadable.push(CaseReport::failed("(unreadable)", "", &error));
            }
        }
    }
    if let Some(part) = &cli.filter {
        cases.retain(|c| c.name.contains(part.as_str()) || c.op.contains(part.as_str()));
    }
    if cases.is_empty() && unreadable.is_empty() {
        return stop("no case to run");
    }

    let mut options = Options {
        ranks: cli.ranks.iter().map(|&p| usize::from(p)).collect(),
        exhaustive: cli.exhaustive,
        seed: cli.seed,
        budget,
        patience: Duration::from_secs(cli.patience),
        device: cli.device.on(cli.backend),
        float: cli.float.map(Half::dtype),
        ..Options::default()
    };
    if let Some(jobs) = cli.jobs {
        options.jobs = jobs.max(1);
    }
    let finish = |report: &Report| -> ExitCode {
        let mut report = report.clone();
        report.cases.extend(unreadable.iter().cloned());
        say::print(format_args!("{}", report.text()));
        #[cfg(feature = "cuda")]
        if cli.device == Device::Cuda {
            say!("libraries: {}", shard_comm::cuda::libraries());
        }
        if cli.device != Device::Host {
            let calls = LIBRARY_CALLS.load(Ordering::Relaxed);
            say!("{calls} kernel calls by libraries");
        }
        if let Some(path) = &cli.json {
            let written = serde_json::to_vec_pretty(&report)
                .map_err(std::io::Error::from)
                .and_then(|bytes| std::fs::write(path, bytes));
            if let Err(error) = written {
                return stop(&format!("{}: cannot be written: {error}", path.display()));
            }
        }
        if report.is_good() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    };
    #[cfg(feature = "mpi")]
    if cli.backend == Backend::Mpi {
        let group = match Group::start(options.patience) {
            Ok(group) => group,
            Err(error) => return stop(&error.to_string()),
        };
        options.ranks.retain(|&p| p <= group.size());
        let first = group.rank() == 0;
        let code = if let Some(count) = cli.moves {
            moves(group.size(), count, cli.seed, first, |path| {
                group.on_mesh(&path.mesh, |cx| {
                    path.walk(cx).unwrap_or_else(|e| Some(e.to_string()))
                })
            })
        } else {
            let report = run_on_processes(&cases, &options, &group);
            match (first, report.is_good() && unreadable.is_empty()) {
                (true, _) => finish(&report),
                (false, true) => ExitCode::SUCCESS,
                (false, false) => ExitCode::FAILURE,
            }
        };
        group.end();
        return code;
    }
    // Hung ranks cannot be joined: what is known is printed, and the process ends.
    let report = run(&cases, &options, &|report| {
        finish(report);
        std::process::exit(1)
    });
    finish(&report)
}

/// Takes tensors through random layouts, on ranks that `walk` gives the results of; says what came of it, if `tell`.
fn moves(
    ranks: usize,
    count: usize,
    seed: u64,
    tell: bool,
    walk: impl Fn(&Path) -> Result<Vec<Option<String>>, String>,
) -> ExitCode {
    for (place, path) in paths(ranks, STEPS, seed).take(count).enumerate() {
        let wrong = match walk(&path) {
            Ok(ranks) => (ranks.into_iter().enumerate())
                .find_map(|(rank, wrong)| Some(format!("rank {rank}: {}", wrong?))),
            Err(cause) => Some(cause),
        };
        if let Some(wrong) = wrong {
            if tell {
                let layouts: Vec<String> = path.layouts.iter().map(ToString::to_string).collect();
                say!("FAIL tensor {place}: {}\n  {wrong}", layouts.join(" to "));
            }
            return ExitCode::FAILURE;
        }
    }
    if tell {
        say!("{count} tensors through {STEPS} random layouts each: all exact");
    }
    ExitCode::SUCCESS
}

fn stop(message: &str) -> ExitCode {
    eprintln!("conformance: {message}");
    ExitCode::from(2)
}
