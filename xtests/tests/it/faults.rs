//! A few ops under every kind of fault; the binary `faults` runs all of them.

use xtests::case;
use xtests::faults::sweep;
use xtests::run::Options;

#[test]
fn ops_under_faults_are_right_or_fail_alike() {
    let mut cases: Vec<_> = case::load_dir(&case::default_dir())
        .unwrap()
        .into_iter()
        .filter_map(Result::ok)
        .collect();
    cases.retain(|c| ["matmul", "conv2d"].contains(&c.op.as_str()));
    let options = Options {
        ranks: vec![2, 4],
        ..Options::default()
    };
    let found = sweep(&cases, &options);
    assert_eq!(found.broken, [""; 0]);
    let caught: usize = found.counts.iter().map(|(_, c)| c[1]).sum();
    assert!(caught > 50, "{found}");
}

/// The program starts jobs by itself: what fails on processes ends them.
#[cfg(feature = "mpi")]
fn on_two_processes(arguments: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_faults"))
        .args(["--backend", "mpi", "--ranks", "2", "--patience", "5"])
        .args(arguments)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{error}");
    assert!(told.contains(" 0 failed"), "{told}\n{error}");
    told
}

#[cfg(feature = "mpi")]
#[test]
fn ops_under_faults_on_processes() {
    let told = on_two_processes(&["--filter", "matmul", "--budget", "8"]);
    let caught = told.lines().filter(|line| line.ends_with("caught"));
    assert!(caught.count() == shard_comm::FaultKind::ALL.len(), "{told}");
}

/// Few ops start an operation before they wait for the one before, and only those can change places.
#[cfg(feature = "mpi")]
#[test]
fn operations_that_change_places_on_processes() {
    let told = on_two_processes(&["--fault", "overtaken", "--budget", "8"]);
    let overtaken = told.lines().find(|line| line.starts_with("overtaken"));
    let caught = overtaken.and_then(|line| line.split_whitespace().nth(3)?.parse::<usize>().ok());
    assert!(caught.is_some_and(|n| n > 0), "{told}");
}
