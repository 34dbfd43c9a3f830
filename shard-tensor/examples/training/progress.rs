//! The progress bar, drawn by rank 0.

use indicatif::{ProgressBar, ProgressStyle};
use shard_tensor::{Context, LedgerSnapshot};
use std::time::Duration;

/// Where the output is no terminal, this many lines take the bar's place.
const LINES: usize = 10;

const MIB: f64 = (1 << 20) as f64;

/// A bar with loss, step time and bytes moved; nothing on ranks other than 0.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
    title: String,
}

impl Progress {
    /// Begins a bar.
    pub(crate) fn new(ctx: &Context, steps: usize, title: &str) -> Self {
        let style = "{prefix:>9} {bar:30} {pos:>4}/{len} {msg}  {eta} left";
        let bar = (ctx.rank() == 0).then(|| {
            let bar = ProgressBar::new(steps as u64).with_prefix(title.to_owned());
            // The template is a constant; were it wrong, the default bar would do.
            match ProgressStyle::with_template(style) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self {
            bar,
            steps,
            title: title.to_owned(),
        }
    }

    /// One step is done: its loss, its time, and what this rank received since the first step.
    pub(crate) fn step(&self, step: usize, loss: f64, time: Duration, moved: &LedgerSnapshot) {
        let Some(bar) = &self.bar else { return };
        let done = step + 1;
        let message = format!(
            "loss {loss:.5}  {:.0} ms/step  {:.1} MiB received by rank 0",
            1e3 * time.as_secs_f64(),
            moved.bytes as f64 / MIB
        );
        if bar.is_hidden() {
            let line = |step: usize| step * LINES / self.steps;
            if line(done) > line(step) {
                eprintln!("{} step {done}/{}  {message}", self.title, self.steps);
            }
        }
        bar.inc(1);
        bar.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}
