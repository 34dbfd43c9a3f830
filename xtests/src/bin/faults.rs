//! Runs reference cases with faults in the communicator.

use clap::{Parser, ValueEnum};
use shard_comm::FaultKind;
use std::process::ExitCode;
use std::time::Duration;
use xtests::case::Case;
use xtests::faults::{Sweep, kind_named, sweep};
#[cfg(feature = "mpi")]
use xtests::faults::{jobs, processes};
use xtests::made::project_cases;
use xtests::run::Options;
use xtests::say;

/// Every built op under every kind of fault, at random ranks, operations and layouts: the right result, or an error of
/// the same cause on every rank that survives; never a hang, never silently wrong.
///
/// Prints how often each kind of fault did no harm and how often it was caught. On processes, what fails ends the job, so
/// the program starts mpirun by itself, again and again (MPIRUN names another launcher). Exits with 1 if anything else came of one,
/// and with 2 if it could not start.
#[derive(Parser)]
#[command(name = "faults")]
struct Cli {
    /// Only cases whose name or op contains this.
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Rank counts; 4 and 6 also run as 2 x 2 and 2 x 3.
    #[arg(long, value_delimiter = ',', default_value = "2,3,4", value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: Vec<u16>,
    /// Fixes every random choice.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only faults of this kind, such as "wrong op": a name that the program prints.
    #[arg(long, value_name = "KIND")]
    fault: Option<String>,
    /// Go round all cases again until this time is over; once if not given.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Seconds after which a trial without result counts as a hang; 60 if not given. On processes, where a rank finds out
    /// by this time only that others do not come, 5.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,
    /// What the ranks are.
    #[arg(long, value_enum, default_value = "local")]
    backend: Backend,
}

/// What ranks are.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// Threads of this process.
    Local,
    /// Processes that mpirun starts; the budget is shared by the rank counts.
    #[cfg(feature = "mpi")]
    Mpi,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.backend == Backend::Local
        && let Err(error) = shard_tensor::refuse_copies()
    {
        return stop(&error.to_string());
    }
    // Ranks panic on purpose here.
    std::panic::set_hook(Box::new(|_| ()));
    let budget = match cli.budget.map(Duration::try_from_secs_f64).transpose() {
        Ok(budget) => budget,
        Err(error) => return stop(&format!("--budget: {error}")),
    };
    let cases: Result<Vec<_>, _> = match project_cases() {
        Ok(loaded) => loaded.into_iter().collect(),
        Err(error) => return stop(&error.to_string()),
    };
    let mut cases: Vec<Case> = match cases {
        Ok(cases) => cases,
        Err(error) => return stop(&error.to_string()),
    };
    if let Some(part) = &cli.filter {
        cases.retain(|c| c.name.contains(part.as_str()) || c.op.contains(part.as_str()));
    }
    let patience = cli.patience.unwrap_or(match cli.backend {
        Backend::Local => 60,
        #[cfg(feature = "mpi")]
        Backend::Mpi => 5,
    });
    let kinds = match &cli.fault {
        None => FaultKind::ALL.to_vec(),
        Some(named) => match kind_named(named) {
            Some(kind) => vec![kind],
            None => return stop(&format!("--fault: there is none called {named}")),
        },
    };
    let options = Options {
        faults: kinds,
        ranks: cli.ranks.iter().map(|&p| usize::from(p)).collect(),
        seed: cli.seed,
        budget,
        patience: Duration::from_secs(patience),
        ..Options::default()
    };
    match cli.backend {
        Backend::Local => tell(None, &sweep(&cases, &options)),
        #[cfg(feature = "mpi")]
        Backend::Mpi => on_processes(&cli, &cases, &options),
    }
}

/// As a rank of a job, or as the one who starts them.
#[cfg(feature = "mpi")]
fn on_processes(cli: &Cli, cases: &[Case], options: &Options) -> ExitCode {
    if let Some(task) = processes::Task::given() {
        return match processes::work(cases, options, &task) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => stop(&error),
        };
    }
    let share = options
        .budget
        .map(|b| b / options.ranks.len().max(1) as u32);
    let mut worst = ExitCode::SUCCESS;
    for &ranks in &options.ranks {
        let mut arguments: Vec<String> = ["--backend", "mpi", "--ranks"].map(str::to_owned).into();
        arguments.push(ranks.to_string());
        arguments.extend(["--seed".to_owned(), options.seed.to_string()]);
        let patience = options.patience.as_secs().to_string();
        arguments.extend(["--patience".to_owned(), patience]);
        if let Some(filter) = &cli.filter {
            arguments.extend(["--filter".to_owned(), filter.clone()]);
        }
        if let Some(fault) = &cli.fault {
            arguments.extend(["--fault".to_owned(), fault.clone()]);
        }
        let code = match jobs::sweep(ranks, &arguments, share, options.patience) {
            Ok(found) => tell(Some(ranks), &found),
            Err(error) => stop(&error),
        };
        if code != ExitCode::SUCCESS {
            worst = code;
        }
    }
    worst
}

/// Prints what a sweep found.
fn tell(processes: Option<usize>, found: &Sweep) -> ExitCode {
    if let Some(ranks) = processes {
        say!("on {ranks} processes:");
    }
    say!("{found}");
    if found.trials() == 0 {
        return stop("no case to run");
    }
    ExitCode::from(u8::from(!found.broken.is_empty()))
}

fn stop(message: &str) -> ExitCode {
    eprintln!("faults: {message}");
    ExitCode::from(2)
}
