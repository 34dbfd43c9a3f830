//! The machine: what all ranks do at once without talking.

use crate::case::{Bench, Work};
use crate::suite::Suite;
use shard_comm::Element;
use shard_kernels::Real;
use shard_kernels::gemm::{Mat, MatMut, gemm};
use shard_tensor::Result;
use std::hint::black_box;

/// Why these are left out on GPUs.
const HOST: &str = "what the host's processor does";

pub(super) fn add(suite: &mut Suite<'_>) {
    for &ranks in &suite.options.ranks {
        for megabytes in [0.5, 67.1, 256.0] {
            if suite.options.quick && megabytes > 1.0 {
                continue;
            }
            suite.add_on_host(
                HOST,
                format!("limits/memcpy {megabytes} MB"),
                ranks,
                move |_| memcpy((megabytes * 1e6) as usize, ranks),
            );
        }
        for n in [128, 512, 1024, 2048] {
            if suite.options.quick && n > 512 {
                continue;
            }
            suite.add_on_host(HOST, format!("limits/mm f32 {n}^3"), ranks, move |_| {
                product::<f32>(n, ranks)
            });
        }
        let n = suite.size(1024, 128);
        suite.add_on_host(HOST, format!("limits/mm f64 {n}^3"), ranks, move |_| {
            product::<f64>(n, ranks)
        });
    }
}

/// Each rank copies its share.
fn memcpy(bytes: usize, ranks: usize) -> Result<Bench> {
    let from = vec![1_u8; bytes / ranks];
    let mut to = from.clone();
    Ok(Bench::new(move || {
        black_box(&mut to).copy_from_slice(black_box(&from));
        Ok(())
    })
    .work(Work::Bytes(bytes as f64)))
}

/// Each rank has a product of its own.
fn product<T: Real + Element>(n: usize, ranks: usize) -> Result<Bench> {
    let a: Vec<T> = (0..n * n)
        .map(|i| T::from_f64((i % 13) as f64 / 13.0))
        .collect();
    let mut c = a.clone();
    Ok(Bench::new(move || {
        let (left, right) = (Mat::row_major(&a, n), Mat::row_major(&a, n));
        let to = MatMut::row_major(black_box(&mut c), n);
        gemm(n, n, n, left, right, to, false);
        Ok(())
    })
    .work(Work::Flops((ranks * 2 * n * n * n) as f64)))
}
