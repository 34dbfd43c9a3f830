//! The tables and pictures at the end.

use crate::Failure;
use crate::curve::{self, Names};
use crate::fields::{self, Panel};
use crate::raster::Scale;
use crate::task::is_scored;
use crate::train::{Job, Outcome, Score};
use ndarray::Array2;
use std::io::Write;
use std::path::Path;

const KIB: f64 = 1024.0;

/// Prints errors, and what each rank asked for and received.
pub(crate) fn print(out: &mut impl Write, job: &Job<'_>, outcome: &Outcome) -> Result<(), Failure> {
    let Outcome { score, ranks, .. } = outcome;
    writeln!(
        out,
        "{} points, {} neighbours each, {} steps in {}\n",
        job.terrain.len(),
        job.neighbours,
        job.steps,
        job.dtype
    )?;
    writeln!(
        out,
        "steepness of points that were not told, in metres for a hundred"
    )?;
    writeln!(out, "  spread   {:7.4}", score.spread)?;
    writeln!(
        out,
        "  error    {:7.4}   {:.1} % of it",
        score.error,
        100.0 * score.share()
    )?;
    writeln!(
        out,
        "\nper rank   points    edges   rows asked   KiB of requests   in a step   rows of it   gradients   peak MiB"
    )?;
    for (rank, r) in ranks.iter().enumerate() {
        writeln!(
            out,
            "  {rank:>6}   {:>6}   {:>6}   {:>10}   {:>15.1}   {:>9.1}   {:>10.1}   {:>9.1}   {:>8.1}",
            r.points,
            r.edges,
            r.asked,
            r.requests as f64 / KIB,
            r.bytes as f64 / KIB,
            r.rows as f64 / KIB,
            r.home as f64 / KIB,
            r.peak as f64 / KIB / KIB,
        )?;
    }
    writeln!(out, "\n{}", outcome.trained.course)?;
    Ok(())
}

impl Score {
    /// The error as a share of the spread.
    fn share(&self) -> f64 {
        self.error / self.spread
    }
}

/// Prints whether enough was learned.
pub(crate) fn is_learned(out: &mut impl Write, score: &Score, most: f64) -> Result<bool, Failure> {
    let passed = score.share() <= most;
    let verdict = if passed { "passed" } else { "FAILED" };
    writeln!(
        out,
        "check: {verdict} (the error is {:.1} % of the spread; at most {:.1} % are allowed)",
        100.0 * score.share(),
        100.0 * most
    )?;
    Ok(passed)
}

/// Draws the losses, the terrain, and how steep it is and is predicted to be.
pub(crate) fn draw(
    out: &mut impl Write,
    folder: &Path,
    job: &Job<'_>,
    outcome: &Outcome,
) -> Result<(), Failure> {
    let [curve, picture] = ["loss.svg", "steepness.svg"].map(|name| folder.join(name));
    let ranks = job.rows.len();
    let names = Names {
        caption: &format!("Training on {ranks} ranks"),
        baseline: "the mean",
        model: "graph network",
    };
    curve::write(&curve, &outcome.trained.course, names)?;

    let columns = job.terrain.ncols();
    // Where it was told the model is not to be judged.
    let error = Array2::from_shape_fn(job.terrain.dim(), |(i, j)| {
        match is_scored(i * columns + j) {
            true => outcome.predicted[[i, j]] - job.steepness[[i, j]],
            false => f64::NAN,
        }
    });
    let steep = Scale::terrain(job.steepness);
    let panel = |title: String, field, scale, unit| Panel {
        title,
        field,
        scale,
        unit,
        names: &[],
    };
    let errors = Scale::diverging(outcome.score.spread.max(f64::MIN_POSITIVE));
    let wrong = format!("Error where not told: rms {:.2} %", outcome.score.error);
    let all: Vec<usize> = (0..ranks).collect();
    let panels = [
        Panel {
            names: &all,
            ..panel(
                "Given: heights".into(),
                job.terrain,
                Scale::terrain(job.terrain),
                "m",
            )
        },
        panel(
            "Predicted: steepness".into(),
            &outcome.predicted,
            steep,
            "%",
        ),
        panel(wrong, &error, errors, "%"),
    ];
    let ends = job.rows.iter().scan(0, |end, rows| {
        *end += rows;
        Some(*end)
    });
    let boundaries = [std::iter::once(0).chain(ends).collect(), vec![0, columns]];
    let caption = "How steep a terrain is, learned by points from their neighbours";
    fields::write(&picture, &panels, &boundaries, caption)?;
    writeln!(
        out,
        "\nwrote {}\nwrote {}",
        curve.display(),
        picture.display()
    )?;
    Ok(())
}
