//! Tests of files: checkpoints, arrays, and loaders of data.

mod abuse;
mod arrays;
mod inside;
mod kill;
mod loading;
mod memory;
mod npy;
mod pieces;
#[cfg(feature = "mpi")]
mod processes;
mod resume;
#[cfg(feature = "zarr")]
mod stores;
mod weights;

use shard_tensor::{Result, ShardTensor};
use std::path::PathBuf;

/// A path of this process's own in the folder for such files.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("shard-tensor-files-{}-{name}", std::process::id()))
}

/// Bytes that this thread has read and written so far.
fn moved() -> Option<[u64; 2]> {
    let told = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    let of = |key| {
        let line = told.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse().ok()
    };
    Some([of("rchar:")?, of("wchar:")?])
}

/// What `f` lets this thread read and write, if the system tells.
fn moves<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, [u64; 2])> {
    let before = moved();
    let done = f()?;
    let after = moved();
    let each = |i| {
        after
            .zip(before)
            .map_or(0, |(a, b): ([u64; 2], [u64; 2])| a[i] - b[i])
    };
    Ok((done, [each(0), each(1)]))
}

fn piece_bytes(x: &ShardTensor) -> u64 {
    (x.local_shape().iter().product::<usize>() * x.dtype().size()) as u64
}
