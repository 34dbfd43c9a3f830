//! How much better a model is than a baseline, level by level.

use crate::trained::largest;
use std::io::{Result, Write};

/// A model must leave no more than this share of the baseline's error, on every level.
pub(crate) const MARGIN: f64 = 0.8;

/// Errors on one level of the test hour, root mean squares in kelvin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Score {
    /// What the level is called.
    pub(crate) level: String,
    /// Of interpolation.
    pub(crate) plain: f64,
    pub(crate) model: f64,
}

impl Score {
    fn share(&self) -> f64 {
        self.model / self.plain
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        let (plain, model, share) = (self.plain, self.model, 100.0 * self.share());
        let level = &self.level;
        writeln!(
            out,
            "  {level:>5}   {plain:8.4}   {model:8.4}   {share:3.0} %"
        )
    }
}

/// Prints the errors of every level and of all, of a baseline and a model with these names.
pub(crate) fn print(
    out: &mut impl Write,
    scores: &[Score],
    plain: &str,
    model: &str,
) -> Result<()> {
    writeln!(out, "error on the test hour, root mean square in kelvin")?;
    writeln!(out, "  level   {plain:>8}   {model:>8}   share")?;
    for score in scores {
        score.print(out)?;
    }
    let mean = |of: fn(&Score) -> f64| {
        let squares: f64 = scores.iter().map(|s| of(s) * of(s)).sum();
        (squares / scores.len().max(1) as f64).sqrt()
    };
    let all = Score {
        level: "all".to_owned(),
        plain: mean(|s| s.plain),
        model: mean(|s| s.model),
    };
    all.print(out)
}

/// Prints whether the model beats the baseline by the margin on every level, and gives it; false where an error is not a
/// number.
pub(crate) fn verdict(out: &mut impl Write, scores: &[Score]) -> Result<bool> {
    let passed = scores.iter().all(|s| s.share() <= MARGIN);
    let worst = 100.0 * largest(scores.iter().map(Score::share));
    writeln!(
        out,
        "check: {} (the worst level has {worst:.0} % of the error of interpolation; at most {:.0} % are allowed)",
        if passed { "passed" } else { "FAILED" },
        100.0 * MARGIN
    )?;
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_must_be_beaten_by_the_margin() {
        let beaten = |models: &[f64]| {
            let score = |&model: &f64| Score {
                level: String::new(),
                plain: 0.1,
                model,
            };
            let scores: Vec<Score> = models.iter().map(score).collect();
            verdict(&mut std::io::sink(), &scores).unwrap()
        };
        assert!(beaten(&[0.05, 0.079]));
        assert!(!beaten(&[0.05, 0.081]));
        assert!(!beaten(&[f64::NAN]));
    }
}
