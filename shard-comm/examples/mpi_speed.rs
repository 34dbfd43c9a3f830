//! The backend `mpi` beside what it stands on: a redistribution beside `MPI_Alltoallw` on subarrays and `MPI_Alltoall` of
//! as many contiguous bytes, and all-reduces of 8 bytes to 64 MiB beside `MPI_Allreduce`, in one run on the same memory.
//!
//! `cargo build --release -p shard-comm --features mpi --example mpi_speed`, then
//! `mpirun -n 2 target/release/examples/mpi_speed [rows and columns] [doubles of the one sum]`

#![expect(unsafe_code, reason = "the raw calls of MPI are what is compared with")]

use mpi::ffi;
use shard_comm::{CommError, Communicator, DType, ExchangePlan, Monoid, Piece, Pieces};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

/// Rounds; the least time of the slowest rank counts.
const ROUNDS: usize = 30;

/// Doubles that are summed up, how many sums are timed together, and how often: short enough that some rounds are free of other
/// work.
const SUMS: [(usize, usize, usize); 10] = [
    (1, 200, 300),
    (1 << 7, 200, 150),
    (1 << 10, 100, 150),
    (1 << 13, 20, 150),
    (1 << 14, 10, 100),
    (1 << 15, 5, 100),
    (1 << 16, 4, 70),
    (1 << 17, 2, 50),
    (1 << 19, 1, 30),
    (1 << 23, 1, 7),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let n: usize = std::env::args().nth(1).map_or(Ok(4096), |a| a.parse())?;
    let only: Option<usize> = std::env::args().nth(2).map(|a| a.parse()).transpose()?;
    let run = shard_comm::mpi::run(&Default::default(), |comm| compare(&*comm, n, only))?;
    if let Some(lines) = run {
        print!("{}", lines?);
    }
    Ok(())
}

fn compare(comm: &dyn Communicator, n: usize, only: Option<usize>) -> Result<String, CommError> {
    let (ranks, me) = (comm.size(), comm.rank());
    let (rows, columns) = (n / ranks, n / ranks);
    let values: Vec<f32> = (0..rows * n).map(|i| (me * rows * n + i) as f32).collect();
    let mine = comm.device().upload_slice(&values)?;

    let plan = Arc::new(by_columns(ranks, me, n));
    let dst = || comm.device().alloc(DType::F32, n * columns);
    let got = comm.exchange(&plan, std::slice::from_ref(&mine), dst()?, Ok(()))?;
    let raw = Raw::new(ranks, n);
    let mut copy = vec![0_f32; n * columns];
    raw.alltoallw(&values, &mut copy);
    assert!(got.as_slice::<f32>()? == copy, "both move the same");
    drop(got);

    let moved = least(comm, || {
        comm.exchange(&plan, std::slice::from_ref(&mine), dst()?, Ok(()))
            .map(drop)
    })?;
    let typed = least(comm, || {
        raw.alltoallw(&values, &mut copy);
        Ok(())
    })?;
    let plain = least(comm, || {
        raw.alltoall(&values, &mut copy);
        Ok(())
    })?;

    let mut sums = String::new();
    let wanted = |sum: &(usize, usize, usize)| only.is_none_or(|len| len == sum.0);
    for (len, times, rounds) in SUMS.into_iter().filter(wanted) {
        let terms = vec![1.0_f64; len];
        let (mine, mut sum) = (comm.device().upload_slice(&terms)?, vec![0.0; len]);
        let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..rounds {
            ours = ours.min(slowest(comm, || {
                (0..times).try_for_each(|_| comm.all_reduce(&mine, Monoid::SUM).map(drop))
            })?);
            theirs = theirs.min(slowest(comm, || {
                (0..times).for_each(|_| raw.allreduce(&terms, &mut sum));
                Ok(())
            })?);
        }
        let per = |seconds: f64| 1e6 * seconds / times as f64;
        sums += &format!(
            "\x20 {:>9} B  all_reduce {:10.2} us  MPI_Allreduce {:10.2} us  all_reduce / it {:.2}\n",
            8 * len,
            per(ours),
            per(theirs),
            ours / theirs
        );
    }
    if me > 0 {
        return Ok(String::new());
    }
    Ok(format!(
        "S(0) to S(1) of {n} x {n} f32 on {ranks} processes\n\
         \x20 exchange                    {:8.2} ms\n\
         \x20 MPI_Alltoallw on subarrays  {:8.2} ms  exchange / it {:.2}\n\
         \x20 MPI_Alltoall, unpacked      {:8.2} ms  exchange / it {:.2}\n\
         sums of f64 over all processes\n{sums}",
        1e3 * moved,
        1e3 * typed,
        moved / typed,
        1e3 * plain,
        moved / plain,
    ))
}

/// Rows of everybody to columns of everybody.
fn by_columns(ranks: usize, me: usize, n: usize) -> ExchangePlan {
    let (rows, columns) = (n / ranks, n / ranks);
    let piece = |peer: usize, owner: usize, reader: usize| Piece {
        peer,
        source: 0,
        shape: [rows, columns][..].into(),
        src_offset: reader * columns,
        src_strides: [n as isize, 1][..].into(),
        dst_offset: owner * rows * columns,
        dst_strides: [columns as isize, 1][..].into(),
    };
    let recv: Pieces = (0..ranks).map(|owner| piece(owner, owner, me)).collect();
    let send = (0..ranks).map(|reader| piece(reader, me, reader)).collect();
    ExchangePlan::new("by columns", 0, recv, send, None, None)
}

/// The least time over rounds of the slowest rank.
fn least(
    comm: &dyn Communicator,
    mut f: impl FnMut() -> Result<(), CommError>,
) -> Result<f64, CommError> {
    (0..ROUNDS).try_fold(f64::INFINITY, |least, _| {
        Ok(least.min(slowest(comm, &mut f)?))
    })
}

/// The time of the slowest rank.
fn slowest(
    comm: &dyn Communicator,
    f: impl FnOnce() -> Result<(), CommError>,
) -> Result<f64, CommError> {
    comm.barrier()?;
    let start = Instant::now();
    f()?;
    let time = comm
        .device()
        .upload_slice(&[start.elapsed().as_secs_f64()])?;
    Ok(comm.all_reduce(&time, Monoid::MAX)?.to_vec::<f64>()?[0])
}

/// The same moves by hand.
struct Raw {
    ranks: usize,
    part: usize,
    send: Vec<ffi::MPI_Datatype>,
    recv: Vec<ffi::MPI_Datatype>,
}

impl Raw {
    fn new(ranks: usize, n: usize) -> Self {
        let (rows, columns) = ((n / ranks) as c_int, (n / ranks) as c_int);
        let n = n as c_int;
        let subarray = |sizes: [c_int; 2], starts: [c_int; 2]| {
            let part = [rows, columns];
            // SAFETY: lists of two numbers; the order and the type are the library's constants, the result is committed.
            unsafe {
                let mut new = ffi::RSMPI_DATATYPE_NULL;
                ffi::MPI_Type_create_subarray(
                    2,
                    sizes.as_ptr(),
                    part.as_ptr(),
                    starts.as_ptr(),
                    ffi::MPI_ORDER_C as c_int,
                    ffi::RSMPI_FLOAT,
                    &raw mut new,
                );
                ffi::MPI_Type_commit(&raw mut new);
                new
            }
        };
        let all = 0..ranks as c_int;
        Self {
            ranks,
            part: (rows * columns) as usize,
            send: all
                .clone()
                .map(|r| subarray([rows, n], [0, r * columns]))
                .collect(),
            recv: all.map(|r| subarray([n, columns], [r * rows, 0])).collect(),
        }
    }

    fn alltoallw(&self, from: &[f32], to: &mut [f32]) {
        let (ones, zeros) = (vec![1; self.ranks], vec![0; self.ranks]);
        let (from, to): (*const c_void, *mut c_void) =
            (from.as_ptr().cast(), to.as_mut_ptr().cast());
        // SAFETY: one count, place and type per rank; the types lie inside both arrays.
        unsafe {
            ffi::MPI_Alltoallw(
                from,
                ones.as_ptr(),
                zeros.as_ptr(),
                self.send.as_ptr(),
                to,
                ones.as_ptr(),
                zeros.as_ptr(),
                self.recv.as_ptr(),
                ffi::RSMPI_COMM_WORLD,
            );
        }
    }

    fn alltoall(&self, from: &[f32], to: &mut [f32]) {
        let (float, count) = (
            // SAFETY: a constant of the library.
            unsafe { ffi::RSMPI_FLOAT },
            self.part as c_int,
        );
        let (from, to): (*const c_void, *mut c_void) =
            (from.as_ptr().cast(), to.as_mut_ptr().cast());
        // SAFETY: both arrays have `part` floats per rank.
        unsafe { ffi::MPI_Alltoall(from, count, float, to, count, float, ffi::RSMPI_COMM_WORLD) };
    }

    fn allreduce(&self, terms: &[f64], sum: &mut [f64]) {
        let (from, to): (*const c_void, *mut c_void) =
            (terms.as_ptr().cast(), sum.as_mut_ptr().cast());
        // SAFETY: as many doubles each way.
        unsafe {
            let (double, op) = (ffi::RSMPI_DOUBLE, ffi::RSMPI_SUM);
            let count = terms.len().min(sum.len()) as c_int;
            ffi::MPI_Allreduce(from, to, count, double, op, ffi::RSMPI_COMM_WORLD);
        }
        assert!(sum[0] == self.ranks as f64, "a sum of ones");
    }
}
