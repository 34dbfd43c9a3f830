//! What programs print, to whoever listens.

use std::fmt;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody has closed the standard output.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints a line, as `println!` does, and not to somebody who has left, as after `| head`: see [`say`](mod@crate::say).
#[macro_export]
macro_rules! say {
    () => { $crate::say::print(format_args!("\n")) };
    ($($line:tt)*) => { $crate::say::print(format_args!("{}\n", format_args!($($line)*))) };
}

/// Prints text. Once nobody reads it, the rest is told to nobody: that is no error, and the program has files to write and an exit
/// code to give. Where the text cannot be written for another reason, as on a full disk, the program says so and ends with 2.
pub fn print(text: fmt::Arguments<'_>) {
    match stdout().write_fmt(text) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            CLOSED.store(true, Ordering::Relaxed);
        }
        Err(error) => {
            eprintln!("standard output: {error}");
            exit(2);
        }
    }
}

/// Whether somebody reads what is printed, as far as this is known: if not, work whose result is only printed can be left out.
pub fn is_heard() -> bool {
    !CLOSED.load(Ordering::Relaxed)
}
