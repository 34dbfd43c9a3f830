//! The tables at the end.

use crate::args::Args;
use crate::train::{Outcome, Score};
use crate::trained::largest;
use std::io::{Result, Write};
use std::path::Path;

/// A model must leave no more than this share of the error of interpolation, on every level.
pub(crate) const MARGIN: f64 = 0.8;

/// Model levels of the forecast, as its producers number them.
const LEVELS: [usize; 7] = [1, 4, 7, 10, 13, 16, 19];

const MIB: f64 = (1 << 20) as f64;

/// Prints errors per level, then time, memory and messages per rank.
pub(crate) fn print(out: &mut impl Write, args: &Args, outcome: &Outcome) -> Result<()> {
    writeln!(
        out,
        "\n{} mesh, {} split, {} steps in {}\n",
        args.mesh,
        args.split,
        outcome.trained.losses.len(),
        outcome.dtype,
    )?;
    errors(out, &outcome.scores)?;
    moved(out, outcome)?;
    time(out, outcome)
}

/// Whether the model beats interpolation by the margin on every level; false where an error is not a number.
pub(crate) fn beats_interpolation(scores: &[Score]) -> bool {
    scores.iter().all(|s| s.model <= MARGIN * s.bilinear)
}

/// Prints the verdict of `--check`.
pub(crate) fn verdict(out: &mut impl Write, scores: &[Score]) -> Result<()> {
    let worst = largest(scores.iter().map(|s| s.model / s.bilinear));
    writeln!(
        out,
        "check: {} (the worst level has {:.0} % of the error of interpolation; at most {:.0} % are allowed)",
        if beats_interpolation(scores) {
            "passed"
        } else {
            "FAILED"
        },
        100.0 * worst,
        100.0 * MARGIN
    )
}

/// Prints what was written.
pub(crate) fn files(out: &mut impl Write, files: &[&Path]) -> Result<()> {
    writeln!(out)?;
    for file in files {
        writeln!(out, "wrote {}", file.display())?;
    }
    Ok(())
}

fn errors(out: &mut impl Write, scores: &[Score]) -> Result<()> {
    writeln!(out, "error on the test hour, root mean square in kelvin")?;
    writeln!(out, "  level   bilinear      U-Net   share")?;
    for (i, score) in scores.iter().enumerate() {
        let level = match LEVELS.get(i) {
            Some(level) if scores.len() == LEVELS.len() => level.to_string(),
            _ => format!("#{i}"),
        };
        row(out, &level, *score)?;
    }
    let mean = |of: fn(&Score) -> f64| {
        let squares: f64 = scores.iter().map(|s| of(s) * of(s)).sum();
        (squares / scores.len().max(1) as f64).sqrt()
    };
    row(
        out,
        "all",
        Score {
            bilinear: mean(|s| s.bilinear),
            model: mean(|s| s.model),
        },
    )
}

fn row(out: &mut impl Write, level: &str, score: Score) -> Result<()> {
    let share = 100.0 * score.model / score.bilinear;
    writeln!(
        out,
        "  {level:>5}   {:8.4}   {:8.4}   {share:3.0} %",
        score.bilinear, score.model
    )
}

fn moved(out: &mut impl Write, outcome: &Outcome) -> Result<()> {
    let steps = outcome.trained.losses.len().max(1) as f64;
    writeln!(
        out,
        "\nper rank        piece   peak MiB   messages   MiB received   in a step"
    )?;
    let (mut messages, mut bytes) = (0, 0);
    for (rank, report) in outcome.ranks.iter().enumerate() {
        let [rows, columns] = report.piece;
        writeln!(
            out,
            "  {rank:>6}   {:>10}   {:8.1}   {:8}   {:12.1}   {:9.3}",
            format!("{rows} x {columns}"),
            report.peak as f64 / MIB,
            report.messages,
            report.bytes as f64 / MIB,
            report.bytes as f64 / MIB / steps,
        )?;
        messages += report.messages;
        bytes += report.bytes;
    }
    let bytes = bytes as f64 / MIB;
    writeln!(
        out,
        "  {:>6}   {:>10}   {:8}   {messages:8}   {bytes:12.1}   {:9.3}",
        "all",
        "",
        "",
        bytes / steps
    )?;

    if messages == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "\nby operation, in a step, all ranks   messages      KiB"
    )?;
    for (name, messages, bytes) in by_operation(outcome) {
        writeln!(
            out,
            "  {name:33}   {:8.1}   {:6.1}",
            messages / steps,
            bytes / steps / 1024.0
        )?;
    }
    Ok(())
}

/// Messages and bytes of every operation that sent any, over all ranks.
fn by_operation(outcome: &Outcome) -> Vec<(&str, f64, f64)> {
    let mut sums: Vec<(&str, f64, f64)> = Vec::new();
    for (name, messages, bytes) in outcome.ranks.iter().flat_map(|r| &r.operations) {
        let (messages, bytes) = (*messages as f64, *bytes as f64);
        match sums.iter_mut().find(|s| s.0 == name) {
            Some(sum) => (sum.1, sum.2) = (sum.1 + messages, sum.2 + bytes),
            None => sums.push((name, messages, bytes)),
        }
    }
    sums.retain(|s| s.1 > 0.0);
    sums.sort_by(|a, b| b.2.total_cmp(&a.2));
    sums
}

fn time(out: &mut impl Write, outcome: &Outcome) -> Result<()> {
    let seconds = outcome.time.as_secs_f64();
    let steps = outcome.trained.losses.len().max(1) as f64;
    writeln!(
        out,
        "\n{seconds:.1} s of training, {:.0} ms in a step",
        1e3 * seconds / steps
    )?;
    if let (Some(first), Some(last)) = (
        outcome.trained.losses.first(),
        outcome.trained.losses.last(),
    ) {
        writeln!(
            out,
            "loss {first:.5} at first, {last:.5} at last (1 is the error of interpolation)"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(model: f64) -> Score {
        Score {
            bilinear: 0.1,
            model,
        }
    }

    #[test]
    fn every_level_must_be_beaten_by_the_margin() {
        assert!(beats_interpolation(&[score(0.05), score(0.079)]));
        assert!(!beats_interpolation(&[score(0.05), score(0.081)]));
        assert!(!beats_interpolation(&[score(f64::NAN)]));
    }
}
