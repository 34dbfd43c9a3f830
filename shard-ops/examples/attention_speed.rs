//! How fast one rank folds attention, beside the rate of matrix products in the same run.
//!
//! `cargo run --release -p shard-ops --example attention_speed`: 8 heads of 4096 queries and keys, 64 wide, in f32.

use shard_ops::kernels::attention::{
    AttentionGrad, AttentionState, Band, Block, BlockGrad, Queries,
};
use shard_ops::kernels::gemm::{Mat, MatMut, gemm};
use shard_ops::kernels::{Positions, View, ViewMut};
use std::time::Instant;

const HEADS: usize = 8;
const LENGTH: usize = 4096;
const DIM: usize = 64;
const SHAPE: [usize; 4] = [1, HEADS, LENGTH, DIM];
const TURNS: usize = 11;

fn main() {
    // Compared by the least times, which others on the machine disturb least.
    let peak = product_rate();
    println!("matrix product 1024^3: {peak:.0} GFLOP/s at best");
    let pairs = (HEADS * LENGTH * LENGTH) as f64;
    for (name, band, share) in [
        ("full", Band::ALL, 1.0),
        ("causal", Band::causal(), 0.5),
        ("window 256", Band::window(256, 0), 256.5 / LENGTH as f64),
    ] {
        let [forward, backward] = times(band);
        for (what, [median, least], products) in
            [("forward", forward, 2), ("backward", backward, 5)]
        {
            let flops = share * pairs * (2 * products * DIM) as f64;
            let rate = flops / least / 1e9;
            println!(
                "{name:<11} {what:<9} {:7.1} ms, at best {:7.1} ms: {rate:4.0} GFLOP/s, {:.2} of the product",
                median * 1e3,
                least * 1e3,
                rate / peak
            );
        }
    }
}

/// Times of forward and backward.
fn times(band: Band) -> [[f64; 2]; 2] {
    let count = SHAPE.iter().product();
    let [q, k, v, dout] = [1, 2, 3, 4].map(|seed| numbers(seed, count));
    let [q, k, v, dout] = [&q, &k, &v, &dout].map(|x| View::contiguous(x, &SHAPE));
    let queries = Queries::new(q, Positions::from(0)).band(band);
    let block = Block::new(k, v, Positions::from(0));
    let (mut out, mut lse) = (vec![0.0; count], vec![0.0; HEADS * LENGTH]);
    let forward = times_of(|| {
        let mut state = AttentionState::new([1, HEADS, LENGTH], DIM);
        state.fold(&queries, &block);
        state.finish(&mut ViewMut::contiguous(&mut out, &SHAPE), &mut lse);
    });
    let [mut dq, mut dk, mut dv] = [(); 3].map(|()| vec![0.0; count]);
    let backward = times_of(|| {
        let out = View::contiguous(&out, &SHAPE);
        let mut grad = AttentionGrad::new(dout.clone(), &out, &lse, DIM);
        let mut grads = BlockGrad {
            dk: ViewMut::contiguous(&mut dk, &SHAPE),
            dv: ViewMut::contiguous(&mut dv, &SHAPE),
            dbias: None,
        };
        grad.fold(&queries, &block, &mut grads);
        grad.finish(&mut ViewMut::contiguous(&mut dq, &SHAPE));
    });
    [forward, backward]
}

/// GFLOP/s of a matrix product whose operands fit the caches.
fn product_rate() -> f64 {
    const N: usize = 1024;
    let (a, b) = (numbers(5, N * N), numbers(6, N * N));
    let mut c = vec![0.0; N * N];
    let [_, seconds] = times_of(|| {
        let (a, b) = (Mat::row_major(&a, N), Mat::row_major(&b, N));
        gemm(N, N, N, a, b, MatMut::row_major(&mut c, N), false);
    });
    2.0 * (N * N * N) as f64 / seconds / 1e9
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
