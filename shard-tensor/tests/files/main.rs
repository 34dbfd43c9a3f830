//! Tests of files: checkpoints, arrays, and loaders of data.

mod abuse;
mod kill;
mod pieces;
mod resume;

use std::path::PathBuf;

/// A path of this process's own in the folder for such files.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("shard-tensor-files-{}-{name}", std::process::id()))
}
