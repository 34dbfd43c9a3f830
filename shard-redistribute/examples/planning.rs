//! How long one rank takes to plan: cold, on small meshes and on meshes of thousands of ranks, which need not exist.
//! The direct plan, the direct plan with a forecast of what it moves, and the cheapest
//! of all strategies.
//!
//! `cargo run --release -p shard-redistribute --example planning`

use shard_comm::DType;
use shard_redistribute::{CostModel, LinkCost, Plan, Planner};
use shard_spec::{DeviceMesh, Layout};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:<12} {:<32} {:>10} {:>10} {:>10} {:>9} {:>12}",
        "mesh", "move", "direct", "forecast", "cheapest", "reads", "taken"
    );
    let small = [
        "S(0) S(1) -> S(1) S(0)",
        "S(0) S(0) -> R S(0)",
        "S(0) R -> S(1) S(1)",
    ];
    for text in small {
        report(&[2, 4], &[8192, 4096], text)?;
    }
    let cubes = [
        "S(0) S(1) S(2) -> S(2) S(0) S(1)",
        "S(0) S(0) S(1) -> R S(0) S(0)",
    ];
    for text in cubes {
        report(&[2, 2, 2], &[512, 512, 512], text)?;
        report(&[3, 2, 2], &[512, 512, 500], text)?;
    }
    // The largest for which hops are priced by their pieces.
    for (mesh, shape) in [
        (&[8, 8][..], &[8192, 4096, 3][..]),
        (&[4, 4, 4], &[512, 512, 500]),
    ] {
        for text in ["S(0) S(1)", "S(0) R", "R S(0)"].map(|t| format!("{t} -> S(1) S(0)")) {
            let more = if mesh.len() == 3 {
                [" S(2)", " R"]
            } else {
                ["", ""]
            };
            let (from, to) = text.split_once(" -> ").ok_or("no arrow")?;
            report(
                mesh,
                shape,
                &format!("{from}{} -> {to}{}", more[0], more[1]),
            )?;
        }
    }
    // Uneven: no extent is a multiple of its number of parts.
    for mesh in [[8, 8, 16], [16, 16, 16], [16, 32, 32]] {
        for text in [
            "S(0) S(1) S(2) -> S(2) S(1) S(0)",
            "S(0) S(0) S(0) -> S(1) S(1) S(1)",
            "S(0) S(1) S(2) -> S(0) S(1) S(2)",
            "S(0) S(1) R -> S(0) S(1) S(2)",
        ] {
            report(&mesh, &[20011, 20011, 1009], text)?;
        }
    }
    for ranks in [1024, 4096, 16384] {
        for text in ["S(0) -> R", "R -> S(0)"] {
            report(&[ranks], &[ranks * 3 + 5, 7], text)?;
        }
    }
    lookup()
}

/// What finding a plan that was made before costs.
fn lookup() -> Result<(), Box<dyn std::error::Error>> {
    const TURNS: u32 = 100_000;
    let mesh = DeviceMesh::new(&[2, 4])?;
    let from = Layout::parse(&mesh, &[8192, 4096], "S(0) S(1)")?;
    let to = Layout::parse(&mesh, &[8192, 4096], "S(1) S(0)")?;
    let planner = Planner::new(0, 256);
    let start = Instant::now();
    for _ in 0..TURNS {
        std::hint::black_box(planner.plan(&from, &to, DType::F32)?);
    }
    let each = start.elapsed() / TURNS;
    println!("a plan that is kept is found in {} ns", each.as_nanos());
    Ok(())
}

fn report(mesh: &[usize], shape: &[usize], text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let device_mesh = DeviceMesh::new(mesh)?;
    let (from, to) = text.split_once(" -> ").ok_or("no arrow")?;
    let from = Layout::parse(&device_mesh, shape, from)?;
    let to = Layout::parse(&device_mesh, shape, to)?;
    let index = device_mesh.size() / 2 + 1;
    let model = CostModel::network(LinkCost::new(10e-6, 50e9));
    let direct = median(|| Plan::new(&from, &to, index).map(drop))?;
    let told = median(|| {
        Plan::new(&from, &to, index).map(|p| {
            std::hint::black_box(p.forecast(DType::F32));
        })
    })?;
    let cheapest = median(|| Plan::cheapest(&from, &to, index, DType::F32, &model).map(drop))?;
    let plan = Plan::cheapest(&from, &to, index, DType::F32, &model)?;
    println!(
        "{:<12} {text:<32} {:>7.1} us {:>7.1} us {:>7.1} us {:>9} {:>12}",
        mesh.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("x"),
        1e6 * direct.as_secs_f64(),
        1e6 * told.as_secs_f64(),
        1e6 * cheapest.as_secs_f64(),
        plan.forecast(DType::F32).messages,
        plan.strategy().to_string(),
    );
    Ok(())
}

/// The median of some runs, each planning anew.
fn median(
    mut plan: impl FnMut() -> shard_redistribute::Result<()>,
) -> shard_redistribute::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        plan()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
