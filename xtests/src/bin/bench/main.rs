//! How fast it is, beside what the machine allows.

mod case;
mod groups;
mod harness;
mod numbers;
mod peers;
mod report;
mod suite;
mod tensors;
mod training;

use clap::Parser;
use groups::Group;
use harness::{Effort, measure};
use peers::Peers;
use report::Report;
use shard_autograd::AutogradError;
use shard_ops::OpError;
use shard_tensor::{DeviceKind, Error};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;
use suite::{Options, Split, Suite};
use xtests::say;

/// Times the library between ranks of one process, and checks what it times.
///
/// A repetition begins at a barrier and ends when the last rank has finished. In turns with it, in the same run, the
/// same threads do what bounds it: on one rank a copy of the same bytes or matrix products of as many operations, on
/// several ranks the same op on each rank's own piece, alone and without communication ("alone"), or for moves a
/// plain copy or sum of the same bytes. A peer, if asked for, takes turns with both. On GPUs, whose work is waited for before the clock is read, these are the device's own
/// copy of the same bytes and the library's own products, and the time the host is busy with a call is told apart. Each result is compared once with one rank's. Exits with 1 if a result is
/// wrong, with 2 if a case cannot run; no time is judged.
#[derive(Parser)]
#[command(name = "bench")]
struct Cli {
    /// Groups of cases; all unless given, but `ops`, which is so with --quick alone.
    groups: Vec<Group>,
    /// Numbers of ranks, one thread each.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: Vec<u16>,
    /// What ranks compute on: host, cuda (several ranks on a GPU if there are few), emulated-cuda (with the feature of that
    /// name; slow: with --quick).
    #[arg(long, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
    /// Parts of 62 and 38 % on two ranks, of 37, 13, 31 and 19 % on four, in place of equal ones.
    #[arg(long)]
    uneven: bool,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Append the results here, a JSON object in each line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Beside cases on one rank, and those of `parallel` on several, in turns with them, the same of PyTorch, or SciPy, with one
    /// thread for each rank: a Python that has them.
    #[arg(long, value_name = "PYTHON")]
    beside_torch: Option<PathBuf>,
    /// Seconds after which a peer that does not answer is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    patience: u64,
    /// Small sizes and few repetitions: that everything runs and is right, not how fast.
    #[arg(long)]
    quick: bool,
    /// Seconds of measuring for each case, as far as 5 to 101 repetitions allow.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = shard_tensor::refuse_copies() {
        eprintln!("bench: {error}");
        return ExitCode::from(2);
    }
    let options = Options {
        ranks: cli.ranks.iter().map(|&p| usize::from(p)).collect(),
        split: if cli.uneven {
            Split::Uneven
        } else {
            Split::Even
        },
        quick: cli.quick,
        device: cli.device,
        beside: cli.beside_torch.is_some(),
    };
    let mut suite = Suite::new(&options);
    for group in Group::ALL {
        let unasked = cli.groups.is_empty() && (cli.quick || group != Group::Ops);
        if unasked || cli.groups.contains(&group) {
            group.add_to(&mut suite);
        }
    }
    let effort = if cli.quick {
        Effort::QUICK
    } else {
        Effort::of(cli.seconds)
    };
    let patience = Duration::from_secs(cli.patience);
    let peers = (cli.beside_torch)
        .map(|python| Peers::start(python, options.ranks[0], cli.quick, patience));
    let peers = match peers.transpose() {
        Ok(peers) => peers,
        Err(error) => return stop(&error),
    };
    let beside = peers.as_ref().map(|p| p.name.clone());
    let peers = Mutex::new(peers);
    let mut report = match Report::begin(cli.device, cli.json.as_deref(), beside.as_deref()) {
        Ok(report) => report,
        Err(error) => return stop(&error),
    };
    let mut wrong = 0;
    let (specs, skipped) = suite.into_specs();
    for spec in specs {
        // Nobody is told any more, and nothing is kept.
        if !say::is_heard() && cli.json.is_none() {
            break;
        }
        if cli.only.as_ref().is_some_and(|o| !spec.name.contains(o)) {
            continue;
        }
        let record = match measure(&spec, &options, &effort, &peers) {
            Ok(record) => record,
            Err(error) if is_without_kernel(&error) => {
                say!("skip  {} on {} ranks: {error}", spec.name, spec.ranks);
                continue;
            }
            Err(error) => return stop(&format!("{} on {} ranks: {error}", spec.name, spec.ranks)),
        };
        wrong += usize::from(
            record
                .check
                .is_some_and(|c| c.is_nan() || c > record.tolerance),
        );
        if let Err(error) = report.add(spec.group, &record) {
            return stop(&error);
        }
    }
    for (reason, count) in skipped {
        say!("skip  {count} cases: {reason}");
    }
    report.end();
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        eprintln!("bench: {wrong} results differ from one rank's by more than they may");
        ExitCode::FAILURE
    }
}

/// Whether an op has no kernel for the device or the element type: that is said, and no failure.
fn is_without_kernel(error: &Error) -> bool {
    let cannot = |op: &OpError| matches!(op, OpError::NoKernel { .. } | OpError::DType { .. });
    match error {
        Error::Op(op) => cannot(op),
        Error::Autograd(error) => matches!(&**error, AutogradError::Op(op) if cannot(op)),
        Error::OnRank { source, .. } => is_without_kernel(source),
        _ => false,
    }
}

fn stop(message: &str) -> ExitCode {
    eprintln!("bench: {message}");
    ExitCode::from(2)
}
