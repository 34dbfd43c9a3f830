//! Patterns of names, orders of samples, and what launchers leave behind.

use shard_tensor::inside::{Processes, matches, shuffled};

#[test]
fn patterns() {
    let up = |name| matches("blocks.*.up", name);
    assert!(up("blocks.0.up.weight") && up("blocks.1.mlp.up"));
    assert!(!up("blocks.0.upper.weight") && !up("up.weight"));
    assert!(matches("*", "anything.at.all") && matches("a*c*", "abcd") && !matches("a*c", "abcd"));
}

#[test]
fn every_number_comes_once_in_an_order_of_the_epochs_own() {
    for n in [0, 1, 2, 100] {
        let mut order = shuffled(n, 7, 3).unwrap();
        assert_eq!(order, shuffled(n, 7, 3).unwrap());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..n));
    }
    assert_ne!(shuffled(100, 7, 3).unwrap(), shuffled(100, 7, 4).unwrap());
    assert_ne!(shuffled(100, 7, 3).unwrap(), shuffled(100, 8, 3).unwrap());
    // Each place takes each number about as often.
    let mut first = [0; 4];
    (0..4000).for_each(|epoch| first[shuffled(4, 1, epoch).unwrap()[0]] += 1);
    assert!(first.iter().all(|n| (900..1100).contains(n)), "{first:?}");
}

fn found(variables: &[(&str, &str)]) -> Option<Processes> {
    Processes::found(|wanted| {
        let known = variables.iter().find(|(name, _)| *name == wanted);
        known.map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn launchers_are_recognised() {
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[("OMPI_COMM_WORLD_SIZE", "1")]), None);
    // A batch script that starts the program itself starts one.
    assert_eq!(found(&[("SLURM_NTASKS", "8")]), None);
    let count = |variables: &[(&str, &str)]| found(variables).map(|p| (p.count, p.variable));
    assert_eq!(
        count(&[("SLURM_STEP_NUM_TASKS", "8"), ("PMI_SIZE", "8")]),
        Some((8, "PMI_SIZE"))
    );
    assert_eq!(
        count(&[("WORLD_SIZE", "4"), ("RANK", "1")]),
        Some((4, "WORLD_SIZE"))
    );
}

#[test]
fn several_processes_never_run_alone() {
    let torchrun = found(&[("WORLD_SIZE", "4")]).unwrap();
    let text = torchrun.check().unwrap_err().to_string();
    assert!(
        text.contains("torchrun started 4 processes (WORLD_SIZE=4)"),
        "{text}"
    );
    let mpirun = found(&[("OMPI_COMM_WORLD_SIZE", "3")]).unwrap();
    assert_eq!(mpirun.check().is_ok(), cfg!(feature = "mpi"));
}
