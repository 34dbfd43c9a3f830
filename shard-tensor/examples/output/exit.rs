//! How a program ends.

use crate::Failure;
use std::process::ExitCode;

/// As a success if all is as it must be. An error is told.
pub(crate) fn of(ended: Result<bool, Failure>) -> ExitCode {
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
