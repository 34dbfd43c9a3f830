//! The tables at the end.

use crate::args::Args;
use crate::ranks;
use crate::train::{Outcome, Score};
use crate::trained::largest;
use std::io::{Result, Write};
use std::path::Path;

/// A model must leave no more than this share of the error of interpolation, on every level.
pub(crate) const MARGIN: f64 = 0.8;

/// Model levels of the forecast, as its producers number them.
const LEVELS: [usize; 7] = [1, 4, 7, 10, 13, 16, 19];

/// Prints errors per level, then time, memory and messages per rank.
pub(crate) fn print(out: &mut impl Write, args: &Args, outcome: &Outcome) -> Result<()> {
    let course = &outcome.trained.course;
    let steps = course.losses.len();
    writeln!(
        out,
        "\n{} mesh, {} split, {steps} steps in {}\n",
        args.mesh, args.split, outcome.dtype,
    )?;
    errors(out, &outcome.scores)?;
    ranks::print(out, &outcome.ranks, steps)?;
    writeln!(out, "\n{course} (1 is the error of interpolation)")
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
