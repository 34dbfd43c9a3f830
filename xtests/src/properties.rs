//! Runs properties by name, with the options of `cargo test`, on ranks that are threads or processes.
//!
//! `cargo test -p xtests --test properties -- NAME` runs those of that name on threads. With the feature `mpi`, the program
//! that builds runs them on the processes of `mpirun -n 3 <program> --backend mpi NAME`.

use crate::strategies::{Draw, draw};
use clap::{Parser, ValueEnum};
use libtest_mimic::{Arguments, Trial, run};
use std::process::ExitCode;

/// A property, or another test, and its name.
pub type Property = (&'static str, fn());

/// [`Property`]s of these functions.
#[macro_export]
macro_rules! properties {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}

/// Runs properties: all, or those whose name contains a text.
#[derive(Parser)]
#[command(name = "properties", disable_version_flag = true)]
struct Cli {
    /// What ranks are.
    #[arg(long, value_enum, default_value_t = Backend::Local)]
    backend: Backend,
    /// How many cases each property draws, in place of its own number.
    #[arg(long, value_name = "N")]
    cases: Option<u32>,
    /// Fixes the cases that are drawn. On processes it is told, so that they can be drawn again.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    tests: Arguments,
}

/// What ranks are.
#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    /// Threads of this process.
    Local,
    /// The processes that mpirun started: every one is a rank, and the first one reports.
    #[cfg(feature = "mpi")]
    Mpi,
}

/// What a program of properties does: those of each module, as the command line says.
pub fn main(modules: &[(&str, &[Property])]) -> ExitCode {
    let cli = Cli::parse();
    let properties = modules.iter().flat_map(|(module, all)| {
        let name = move |&(name, test): &Property| (format!("{module}::{name}"), test);
        all.iter().map(name)
    });
    let wanted = Draw {
        cases: cli.cases,
        seed: cli.seed,
        ranks: None,
    };
    match cli.backend {
        Backend::Local => {
            if let Err(error) = shard_tensor::refuse_copies() {
                eprintln!("properties: {error}");
                return ExitCode::from(2);
            }
            draw(wanted);
            let trial = |(name, test): (String, fn())| {
                let runner = move || {
                    test();
                    Ok(())
                };
                Trial::test(name, runner)
            };
            run(&cli.tests, properties.map(trial).collect()).exit_code()
        }
        #[cfg(feature = "mpi")]
        Backend::Mpi => crate::job::run(cli.tests, wanted, properties),
    }
}
