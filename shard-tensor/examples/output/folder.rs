//! The folder that a program writes to.

use crate::Failure;
use std::path::Path;

/// Makes it, if it is not there.
///
/// # Errors
/// If there can be none, with its name.
pub(crate) fn make(folder: &Path) -> Result<(), Failure> {
    let made = std::fs::create_dir_all(folder);
    Ok(made.map_err(|e| format!("{}: {e}; name another folder with --out", folder.display()))?)
}
