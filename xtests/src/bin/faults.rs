//! Runs reference cases with faults in the communicator.

use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;
use xtests::faults::sweep;
use xtests::made::project_cases;
use xtests::run::Options;

/// Every built op under every kind of fault, at random ranks, operations and layouts: the right result, or an error of
/// the same cause on every rank that survives; never a hang, never silently wrong.
///
/// Prints how often each kind of fault did no harm and how often it was caught. Exits with 1 if anything else came of one,
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
    /// Go round all cases again until this time is over; once if not given.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Seconds after which a trial without result counts as a hang.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = shard_tensor::refuse_copies() {
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
    let mut cases = match cases {
        Ok(cases) => cases,
        Err(error) => return stop(&error.to_string()),
    };
    if let Some(part) = &cli.filter {
        cases.retain(|c| c.name.contains(part.as_str()) || c.op.contains(part.as_str()));
    }
    let options = Options {
        ranks: cli.ranks.iter().map(|&p| usize::from(p)).collect(),
        seed: cli.seed,
        budget,
        patience: Duration::from_secs(cli.patience),
        ..Options::default()
    };
    let found = sweep(&cases, &options);
    println!("{found}");
    if found.trials() == 0 {
        return stop("no case to run");
    }
    ExitCode::from(u8::from(!found.broken.is_empty()))
}

fn stop(message: &str) -> ExitCode {
    eprintln!("faults: {message}");
    ExitCode::from(2)
}
