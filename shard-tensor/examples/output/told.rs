//! The standard output of a program that does more than to print.

use std::io::{self, ErrorKind, Stdout, Write};

/// What is told to whoever listens. Once nobody does, as after `| head`, the rest is told to nobody, and the program
/// goes on to its end: it has files to write and an exit code to give.
pub(crate) struct Told<W = Stdout>(W);

impl Told {
    /// To the standard output.
    pub(crate) fn new() -> Self {
        Self(io::stdout())
    }
}

impl<W: Write> Write for Told<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_closed(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_closed(self.0.flush(), ())
    }
}

fn unless_closed<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    match result {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(done),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is() {
        let tell = |kind| {
            let mut told = Told(Failing(kind));
            writeln!(told, "a line").and_then(|()| told.flush())
        };
        tell(ErrorKind::BrokenPipe).unwrap();
        assert_eq!(
            tell(ErrorKind::StorageFull).unwrap_err().kind(),
            ErrorKind::StorageFull
        );
    }
}
