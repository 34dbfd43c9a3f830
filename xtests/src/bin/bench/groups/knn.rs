//! Nearest neighbours.

use crate::case::{Bench, Limit};
use crate::numbers::{fill, number};
use crate::suite::Suite;
use crate::tensors::{Share, bench};
use shard_kernels::neighbors::{Nearest, RowOrder, Search, WithinRadius, farthest, lower};
use shard_kernels::{Positions, View};
use shard_ops::{FoldBy, neighbors};
use shard_tensor::{Context, Error, Result, ShardTensor};

const K: usize = 16;
/// Why kernels by themselves are left out on GPUs.
const HOST: &str = "kernels of the host";

pub(super) fn add(suite: &mut Suite<'_>) {
    let split = suite.options.split;
    let (n, m) = (suite.size(20_000, 1000), suite.size(5000, 300));
    // Up to 6 dims a tree is built; beyond, each query meets each point.
    for (name, dim, ring) in [
        ("", 3, FoldBy::Gather),
        ("/ring", 3, FoldBy::Ring),
        ("/8-D bruteforce", 8, FoldBy::Gather),
        ("/8-D bruteforce ring", 8, FoldBy::Ring),
    ] {
        for &ranks in &suite.options.ranks {
            if ranks == 1 && ring == FoldBy::Ring {
                continue;
            }
            suite.add(format!("knn/{n}x{m}k{K}{name}"), ranks, move |ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let cloud =
                    |n: usize, seed| fill(&mesh, &[n, dim], [split.shard(0, n, ranks)], seed);
                let operands = vec![(cloud(m, 1)?, Share::Piece), (cloud(n, 2)?, Share::Whole)];
                // Three operations per coordinate of a pair.
                let machine = |ctx: &Context| Limit::gemm_rate(ctx, (3 * n * m * dim) as f64);
                bench(&operands, move |x| nearest(x, ring), machine, None)
            });
        }
    }
    for (name, how) in [("tree", Search::Tree), ("exhaustive", Search::Exhaustive)] {
        suite.add_on_host(
            HOST,
            format!("knn/kernel {n}x{m}k{K} {name}"),
            1,
            move |_| {
                let (points, queries) = (numbers(1, 3 * n), numbers(2, 3 * m));
                let (mut distances, mut indexes) = (vec![0.0; K * m], vec![0; K * m]);
                Ok(Bench::new(move || {
                    let mut state = Nearest::new(m, K);
                    let [q, p] = [view(&queries, 3), view(&points, 3)];
                    state.fold_by(how, &q, &p, Positions::from(0));
                    state.finish(&mut distances, &mut indexes);
                    Ok(())
                }))
            },
        );
        suite.add_on_host(
            HOST,
            format!("knn/kernel {n}x{m} radius 0.15 {name}"),
            1,
            move |_| {
                let (points, queries) = (numbers(1, 3 * n), numbers(2, 3 * m));
                Ok(Bench::new(move || {
                    let mut state = WithinRadius::new(m, 0.15, None);
                    let [q, p] = [view(&queries, 3), view(&points, 3)];
                    state.fold_by(how, &q, &p, Positions::from(0));
                    Ok(state.finish(RowOrder::Index))
                }))
            },
        );
    }
    suite.add_on_host(
        HOST,
        format!("knn/kernel {n} farthest point step"),
        1,
        move |_| {
            let points = numbers(1, 3 * n);
            let mut nearest = vec![f32::INFINITY; n];
            Ok(Bench::new(move || {
                let points = View::contiguous(&points, &[3, n]);
                lower(&points, &[0.1, 0.2, 0.3], &mut nearest);
                Ok(farthest(&nearest, Positions::from(0)))
            }))
        },
    );
    within(suite, n, m);
    sampling(suite);
    crossover(suite);
}

/// Pairs within a radius, whose number the data decides.
fn within(suite: &mut Suite<'_>, n: usize, m: usize) {
    let split = suite.options.split;
    for (name, ring) in [("", FoldBy::Gather), ("/ring", FoldBy::Ring)] {
        for &ranks in &suite.options.ranks {
            if ranks == 1 && ring == FoldBy::Ring {
                continue;
            }
            suite.add(
                format!("knn/radius 0.15 {n}x{m}{name}"),
                ranks,
                move |ctx| {
                    let mesh = ctx.mesh_of(ranks)?;
                    let cloud =
                        |n: usize, seed| fill(&mesh, &[n, 3], [split.shard(0, n, ranks)], seed);
                    let operands = [(cloud(m, 1)?, Share::Piece), (cloud(n, 2)?, Share::Whole)];
                    let machine = |ctx: &Context| Limit::gemm_rate(ctx, (3 * n * m * 3) as f64);
                    let search = move |x: &[ShardTensor]| {
                        let (ctx, q, p) = (x[0].context(), x[0].value(), x[1].value());
                        let near = neighbors::radius_search(ctx.tape(), &q, &p, 0.15, ring);
                        let near = near.map_err(Error::from)?;
                        let found = [near.distances, near.pairs, near.counts];
                        Ok(found.map(|v| ShardTensor::new(ctx, v)).into())
                    };
                    bench(&operands, search, machine, None)
                },
            );
        }
    }
}

/// Farthest point sampling of points that stay where they are beside points that are gathered, where the choice turns.
fn sampling(suite: &mut Suite<'_>) {
    let split = suite.options.split;
    for n in [5000, 20_000, 80_000, 320_000] {
        if suite.options.quick && n > 5000 {
            continue;
        }
        for (name, ring) in [("stay", FoldBy::Ring), ("gather", FoldBy::Gather)] {
            for &ranks in &suite.options.ranks {
                suite.add(
                    format!("knn/farthest 64 of {n} {name}"),
                    ranks,
                    move |ctx| {
                        let mesh = ctx.mesh_of(ranks)?;
                        let points = fill(&mesh, &[n, 3], [split.shard(0, n, ranks)], 1)?;
                        let machine = |ctx: &Context| Limit::gemm_rate(ctx, (64 * 9 * n) as f64);
                        let sample = move |x: &[ShardTensor]| {
                            let (ctx, points) = (x[0].context(), x[0].value());
                            let far = neighbors::farthest_points(ctx.tape(), &points, 64, 0, ring);
                            Ok(vec![ShardTensor::new(ctx, far.map_err(Error::from)?)])
                        };
                        bench(&[(points, Share::Piece)], sample, machine, None)
                    },
                );
            }
        }
    }
}

fn nearest(x: &[ShardTensor], ring: FoldBy) -> Result<Vec<ShardTensor>> {
    let ctx: &Context = x[0].context();
    let (q, p) = (x[0].value(), x[1].value());
    let (distances, indices) =
        neighbors::nearest(ctx.tape(), &q, &p, K, ring).map_err(Error::from)?;
    Ok([distances, indices]
        .map(|v| ShardTensor::new(ctx, v))
        .into())
}

/// The tree beside all pairs, where the choice between them turns.
fn crossover(suite: &mut Suite<'_>) {
    for dim in [1, 2, 3, 4, 6] {
        for (n, m) in [
            (128, 1024),
            (512, 64),
            (512, 1024),
            (4096, 64),
            (20_000, 1024),
        ] {
            if suite.options.quick && n > 512 {
                continue;
            }
            suite.add_on_host(
                HOST,
                format!("knn/kernel {dim}-D {n}x{m}k{K} tree"),
                1,
                move |_| {
                    let search = |how| {
                        let (points, queries) = (numbers(3, n * dim), numbers(4, m * dim));
                        move || {
                            let mut state = Nearest::new(m, K);
                            let [q, p] = [view(&queries, dim), view(&points, dim)];
                            state.fold_by(how, &q, &p, Positions::from(0));
                            Ok(state)
                        }
                    };
                    let all = Limit::new("all pairs", search(Search::Exhaustive));
                    Ok(Bench::new(search(Search::Tree)).limit(all))
                },
            );
        }
    }
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|i| number(seed, i) as f32).collect()
}

fn view(data: &[f32], dim: usize) -> View<'_, f32> {
    View::contiguous(data, &[data.len() / dim, dim])
}
