//! How fast one rank finds neighbours: exhaustively, and through a tree.
//!
//! `cargo run --release -p shard-ops --example neighbor_speed`

use shard_ops::kernels::neighbors::{FarthestPoints, Nearest, RowOrder, Search, WithinRadius};
use shard_ops::kernels::{Positions, View};
use std::time::Instant;

const TURNS: usize = 11;

fn main() {
    let points = numbers(1, 20_000 * 3);
    let queries = numbers(2, 5_000 * 3);
    let points = View::contiguous(&points, &[20_000, 3]);
    let queries = View::contiguous(&queries, &[5_000, 3]);
    println!("20,000 points, 5,000 queries, 3 dims, f32");
    for (name, how) in [("tree", Search::Tree), ("exhaustive", Search::Exhaustive)] {
        let (mut distances, mut indexes) = (vec![0.0; 80_000], vec![0; 80_000]);
        let [median, least] = times_of(|| {
            let mut state = Nearest::new(5_000, 16);
            state.fold_by(how, &queries, &points, Positions::from(0));
            state.finish(&mut distances, &mut indexes);
        });
        println!(
            "  16 nearest, {name:<10} {:8.2} ms, at best {:8.2} ms",
            median * 1e3,
            least * 1e3
        );
        let mut found = 0;
        let [median, least] = times_of(|| {
            let mut state = WithinRadius::new(5_000, 0.1, None);
            state.fold_by(how, &queries, &points, Positions::from(0));
            found = state.finish(RowOrder::Index).indexes.len();
        });
        println!(
            "  radius 0.1, {name:<10} {:8.2} ms, at best {:8.2} ms, {found} pairs",
            median * 1e3,
            least * 1e3
        );
    }
    let mut farthest = FarthestPoints::new(&points, Positions::from(0));
    let [median, least] = times_of(|| {
        farthest.step(&[0.1, 0.2, 0.3]);
    });
    println!(
        "  farthest point step    {:8.4} ms, at best {:8.4} ms",
        median * 1e3,
        least * 1e3
    );
    crossover();
}

/// Time through the tree over time of all pairs.
fn crossover() {
    println!("tree / exhaustive, 16 nearest:");
    println!(
        "{:>4} {:>8} {:>8} {:>8}",
        "dim", "points", "queries", "ratio"
    );
    for dim in [1, 2, 3, 4, 5, 6, 7, 8] {
        for (n, m) in [
            (128, 32),
            (128, 1024),
            (512, 1),
            (512, 8),
            (512, 64),
            (512, 1024),
            (4096, 8),
            (4096, 64),
            (4096, 1024),
            (20_000, 8),
            (20_000, 64),
            (20_000, 1024),
        ] {
            let (points, queries) = (numbers(3, n * dim), numbers(4, m * dim));
            let points = View::contiguous(&points, &[n, dim]);
            let queries = View::contiguous(&queries, &[m, dim]);
            let [tree, all] = [Search::Tree, Search::Exhaustive].map(|how| {
                let [_, least] = times_of(|| {
                    let mut state = Nearest::new(m, 16);
                    state.fold_by(how, &queries, &points, Positions::from(0));
                });
                least
            });
            println!("{dim:>4} {n:>8} {m:>8} {:>8.2}", tree / all);
        }
    }
}

/// Median and least seconds of a call.
fn times_of(mut run: impl FnMut()) -> [f64; 2] {
    run();
    let mut seconds: Vec<f64> = (0..TURNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    [seconds[TURNS / 2], seconds[0]]
}

/// Numbers in [-1, 1) of a small generator.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}
