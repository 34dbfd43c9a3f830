//! The steps of a training: their progress bar, drawn by rank 0, and what they came to.

use indicatif::{ProgressBar, ProgressStyle};
use shard_tensor::{Context, LedgerSnapshot};
use std::fmt;
use std::time::{Duration, Instant};

/// Where the output is no terminal, this many lines take the bar's place.
const LINES: usize = 10;

const MIB: f64 = (1 << 20) as f64;

/// A bar with loss, step time and bytes moved; nothing is drawn on ranks other than 0.
pub(crate) struct Progress<'a> {
    ctx: &'a Context,
    bar: Option<ProgressBar>,
    title: String,
    steps: usize,
    first: usize,
    losses: Vec<f64>,
    before: LedgerSnapshot,
    began: Instant,
    step_began: Instant,
}

/// The steps of a training that were made here.
pub(crate) struct Course {
    /// How many were made before.
    pub(crate) first: usize,
    /// Before each step.
    pub(crate) losses: Vec<f64>,
    /// All steps together.
    pub(crate) time: Duration,
    /// What this rank received meanwhile.
    pub(crate) moved: LedgerSnapshot,
}

impl<'a> Progress<'a> {
    /// Begins a bar of so many steps, of which the first ones are done.
    pub(crate) fn new(ctx: &'a Context, first: usize, steps: usize, title: String) -> Self {
        let style = "{prefix:>9} {bar:30} {pos:>4}/{len} {msg}  {eta} left";
        let bar = (ctx.rank() == 0).then(|| {
            let bar = ProgressBar::new(steps as u64).with_prefix(title.clone());
            let bar = bar.with_position(first as u64);
            // The template is a constant; were it wrong, the default bar would do.
            match ProgressStyle::with_template(style) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        let now = Instant::now();
        Self {
            ctx,
            bar,
            title,
            steps,
            first,
            losses: Vec::new(),
            before: ctx.ledger().snapshot(),
            began: now,
            step_began: now,
        }
    }

    /// One step is done, before which the loss was this.
    pub(crate) fn step(&mut self, loss: f64) {
        self.losses.push(loss);
        let time = self.step_began.elapsed();
        self.step_began = Instant::now();
        let Some(bar) = &self.bar else { return };
        let done = self.first + self.losses.len();
        let message = format!(
            "loss {loss:.5}  {:.0} ms/step  {:.1} MiB received by rank 0",
            1e3 * time.as_secs_f64(),
            self.ctx.ledger().since(&self.before).bytes as f64 / MIB
        );
        if bar.is_hidden() {
            let line = |step: usize| step * LINES / self.steps.max(1);
            if line(done) > line(done - 1) {
                eprintln!("{} step {done}/{}  {message}", self.title, self.steps);
            }
        }
        bar.inc(1);
        bar.set_message(message);
    }

    /// All that were asked for are done.
    pub(crate) fn done(mut self) -> Course {
        Course {
            first: self.first,
            losses: std::mem::take(&mut self.losses),
            time: self.began.elapsed(),
            moved: self.ctx.ledger().since(&self.before),
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, steps) = (self.time.as_secs_f64(), self.losses.len());
        let each = 1e3 * seconds / steps.max(1) as f64;
        write!(f, "{seconds:.1} s of training, {each:.0} ms in a step")?;
        match (self.losses.first(), self.losses.last()) {
            (Some(first), Some(last)) => write!(f, "; loss {first:.5} at first, {last:.5} at last"),
            _ => write!(f, ": all {} steps had been made before", self.first),
        }
    }
}
