//! Files of arrays that ranks read and write side by side, each the boxes it has.

mod agree;
pub(crate) mod boxes;
pub(crate) mod shared;
mod target;

pub(crate) use agree::{agree_on_list, told};
pub(crate) use boxes::{Place, filled, read_at};
pub(crate) use shared::{Part, SharedFile, save_one};

use shard_comm::AgreedError;
use std::path::Path;

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
