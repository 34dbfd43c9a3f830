//! What moving an array in its own memory costs in time and saves in memory. Beside each figure of the ledger stands the peak
//! of the process as the system counts it (on Linux; elsewhere it is left out).
//!
//! ```text
//! cargo run --release -p shard-redistribute --example in_place [-- MIB [RANKS]]
//! ```
//!
//! MIB is the size of the whole array (1024 unless given), RANKS the number of ranks (2).

use shard_comm::{Communicator, local};
use shard_redistribute::{Array, CostModel, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::error::Error;
use std::rc::Rc;
use std::time::Instant;

/// One move from one layout to another.
struct Case {
    from: &'static str,
    to: &'static str,
    /// Bytes of staging; `None` moves into new memory beside the source.
    staging: Option<usize>,
}

/// What a move took: the slowest rank's seconds, and the most bytes that the ranks' devices held together.
struct Figures {
    seconds: f64,
    held: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mib: usize = args.next().map_or(Ok(1024), |a| a.parse())?;
    let ranks: usize = args.next().map_or(Ok(2), |a| a.parse())?;
    let shape = [mib * 4, 65536];
    println!(
        "{mib} MiB of f32, {} x {}, {ranks} ranks",
        shape[0], shape[1]
    );
    println!(
        "{:<16} {:>12} {:>10} {:>14} {:>14}",
        "move", "staging", "seconds", "held, MiB", "process, MiB"
    );
    for (from, to) in [
        ("S(0)", "S(1)"),
        ("S(1)", "S(0)"),
        ("R", "S(0)"),
        ("S(0)", "R"),
    ] {
        for staging in [None, Some(64 << 20), Some(4 << 20)] {
            let case = Case { from, to, staging };
            let _ = std::fs::write("/proc/self/clear_refs", "5");
            let figures = measure(&case, &shape, ranks)?;
            println!(
                "{:<16} {:>12} {:>10.3} {:>14} {:>14}",
                format!("{from} to {to}"),
                staging.map_or("beside".to_owned(), |s| format!("{} MiB", s >> 20)),
                figures.seconds,
                figures.held >> 20,
                peak_of_process().map_or("unknown".to_owned(), |kib| format!("{}", kib >> 10)),
            );
        }
    }
    Ok(())
}

/// Moves an array once, in a world of its own.
fn measure(case: &Case, shape: &[usize], ranks: usize) -> Result<Figures, Box<dyn Error>> {
    let mesh = DeviceMesh::new(&[ranks])?;
    let from = Layout::parse(&mesh, shape, case.from)?;
    let to = Layout::parse(&mesh, shape, case.to)?;
    let results = local::run(ranks, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh)?;
        if let Some(staging) = case.staging {
            let model = CostModel::shared_memory().with_staging(staging);
            cx.planner().set_model(Some(model));
        }
        let x = zeros(&cx, &from)?;
        world.barrier()?;
        cx.device().reset_peak();
        let start = Instant::now();
        let y = match case.staging {
            Some(_) => x.redistribute_into(&to)?,
            None => x.redistribute(&to)?,
        };
        let seconds = start.elapsed().as_secs_f64();
        world.barrier()?;
        drop(y);
        Ok::<_, shard_redistribute::RedistributeError>((seconds, cx.device().memory().peak))
    })?;
    let mut figures = Figures {
        seconds: 0.0,
        held: 0,
    };
    for result in results {
        let (seconds, held) = result?;
        figures.seconds = figures.seconds.max(seconds);
        figures.held += held;
    }
    Ok(figures)
}

/// An array in memory that has been written to.
fn zeros(cx: &Rc<MeshComm>, layout: &Layout) -> shard_redistribute::Result<Array> {
    let len = layout
        .local_shape(cx.rank())
        .unwrap_or_default()
        .iter()
        .product();
    let mut local = cx.device().alloc(shard_comm::DType::F32, len)?;
    local.as_mut_slice::<f32>()?.fill(1.0);
    Array::from_parts(cx, layout, Some(local.freeze()), shard_comm::DType::F32)
}

/// The most memory that the process had at once since its peak was last reset, in KiB.
fn peak_of_process() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
