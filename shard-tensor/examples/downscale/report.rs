//! The tables at the end.

use crate::args::Args;
use crate::train::Outcome;
use crate::{ranks, scores};
use std::io::{Result, Write};
use std::path::Path;

/// Prints errors per level, then memory and messages per rank, and time.
pub(crate) fn print(out: &mut impl Write, args: &Args, outcome: &Outcome) -> Result<()> {
    let course = &outcome.trained.course;
    let steps = course.losses.len();
    writeln!(
        out,
        "\n{} mesh, {} split, {steps} steps in {}\n",
        args.mesh, args.split, outcome.dtype,
    )?;
    scores::print(out, &outcome.scores, "bilinear", "U-Net")?;
    ranks::print(out, &outcome.ranks, steps)?;
    writeln!(out, "\n{course} (1 is the error of interpolation)")
}

/// Prints what was written.
pub(crate) fn files(out: &mut impl Write, files: &[&Path]) -> Result<()> {
    writeln!(out)?;
    for file in files {
        writeln!(out, "wrote {}", file.display())?;
    }
    Ok(())
}
