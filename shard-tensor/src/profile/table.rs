//! A profile as text.

use super::{Profile, Spent};
use std::fmt;
use std::time::Duration;

impl fmt::Display for Profile {
    /// A line about all, and a table: a row for each op, with what it spent within ops in it only under `time`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |row: &Spent| row.name.chars().count();
        let width = self.rows.iter().map(name).max().unwrap_or(0).max(2);
        writeln!(
            f,
            "rank {}: {}, of which {} waiting; {} bytes received in {} messages; at most {} in use",
            self.rank,
            Millis(self.time),
            Millis(self.waiting()),
            self.received(),
            self.messages(),
            Mebibytes(self.peak as f64)
        )?;
        writeln!(
            f,
            "{:width$} {:>7} {:>13} {:>13} {:>13} {:>9} {:>13} {:>13} {:>13}",
            "op", "calls", "time", "own", "waiting", "messages", "bytes", "kept", "peak"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:width$} {:>7} {:>13} {:>13} {:>13} {:>9} {:>13} {:>13} {:>13}",
                row.name,
                row.calls,
                Millis(row.time),
                Millis(row.own),
                Millis(row.waiting),
                row.messages,
                row.received,
                Mebibytes(row.kept as f64),
                Mebibytes(row.peak as f64)
            )?;
        }
        Ok(())
    }
}

/// Bytes, in units of 1024 KiB.
struct Mebibytes(f64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Less than half of the last digit is shown as 0, which has no sign.
        let thousandths = (1e3 * self.0 / f64::from(1 << 20)).round() + 0.0;
        f.pad(&format!("{:.3} MiB", thousandths / 1e3))
    }
}

/// A time, in milliseconds.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} ms", 1e3 * self.0.as_secs_f64()))
    }
}
