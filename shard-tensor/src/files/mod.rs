//! Files of arrays that ranks read and write side by side, each the boxes it has.

mod agree;
pub(crate) mod boxes;
pub(crate) mod shared;
mod target;

pub(crate) use agree::agree_on_tensors;
pub(crate) use boxes::{Place, filled, read_at};
pub(crate) use shared::{Part, SharedFile, save_one};

use shard_comm::AgreedError;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Opens a regular file to read, and tells how long it is: opening a pipe would wait for who writes to it.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("no regular file"));
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

/// What one rank found wrong with a file.
pub(crate) fn file_error(
    op: &'static str,
    path: &Path,
    expected: &str,
    got: String,
) -> AgreedError {
    AgreedError::new(
        op,
        format!("{expected} at {}", path.display()),
        got,
        "check the path and the file",
    )
}

/// As text: what a rank tells others of an error.
pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
