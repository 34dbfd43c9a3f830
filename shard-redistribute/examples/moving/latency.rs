//! What small operations cost.

use shard_comm::{
    CommError, Communicator, ExchangePlan, LocalComm, Monoid, Piece, Request, Target, local,
};
use std::error::Error;
use std::hint::black_box;
use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

type Operation = fn(&LocalComm, &Prepared) -> Result<(), CommError>;

/// What operations need besides the communicator.
struct Prepared {
    one: shard_comm::Buffer,
    ring: Arc<ExchangePlan>,
}

/// Prints microseconds per operation, back to back, at this number of ranks, or several.
pub(crate) fn report(ranks: Option<usize>) -> Result<(), Box<dyn Error>> {
    const OPERATIONS: [(&str, Operation); 3] = [
        ("barrier", |comm, _| comm.barrier()),
        ("all-reduce of one f32", |comm, p| {
            comm.all_reduce(&p.one, Monoid::SUM)
                .map(|sum| drop(black_box(sum)))
        }),
        ("exchange of 4 bytes with the next rank", exchange),
    ];
    println!(
        "{:<40} {:>6} {:>10} {:>10}",
        "operation", "ranks", "median us", "least us"
    );
    for ranks in ranks.map_or(vec![1, 2, 4, 64], |n| vec![n]) {
        for (name, operation) in OPERATIONS {
            let (median, least) = time(ranks, operation)?;
            println!("{name:<40} {ranks:>6} {median:>10.3} {least:>10.3}");
        }
    }
    Ok(())
}

fn exchange(comm: &LocalComm, prepared: &Prepared) -> Result<(), CommError> {
    let target = Target::Write(comm.device().alloc(prepared.one.dtype(), 1)?);
    let request = Request::exchange(
        Arc::clone(&prepared.ring),
        std::slice::from_ref(&prepared.one),
        target,
        Location::caller(),
    );
    comm.post(request)?.wait().map(|got| drop(black_box(got)))
}

/// Median and least over batches of the microseconds per operation at rank 0.
fn time(ranks: usize, operation: Operation) -> Result<(f64, f64), Box<dyn Error>> {
    const BATCHES: usize = 21;
    let batch = if ranks > 16 { 100 } else { 2000 };
    let times = local::run(ranks, |comm| -> Result<Vec<f64>, CommError> {
        let (me, n) = (comm.rank(), comm.size());
        let prepared = Prepared {
            one: comm.device().upload_slice(&[1.0f32])?,
            ring: Arc::new(ExchangePlan::new(
                "ring",
                0,
                [Piece::run((me + 1) % n, 0, 1, 0, 0)].into(),
                [Piece::run((me + n - 1) % n, 0, 1, 0, 0)].into(),
                None,
                None,
            )),
        };
        let mut times = Vec::new();
        for _ in 0..BATCHES {
            comm.barrier()?;
            let start = Instant::now();
            for _ in 0..batch {
                operation(&comm, &prepared)?;
            }
            times.push(1e6 * start.elapsed().as_secs_f64() / f64::from(batch));
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    })?;
    let times = times.into_iter().next().ok_or("no ranks")??;
    Ok((times[times.len() / 2], times[0]))
}
