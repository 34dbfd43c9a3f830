//! The promises, checked: many ranks give what one gives, and a training that was put down goes on as if it had not been.

use crate::Failure;
use crate::keep::Stretch;
use crate::train::{Job, Outcome};
use crate::trained::Distance;
use std::io::Write;
use std::path::Path;

/// The largest difference to one rank, of a loss and as a share of the largest weight of its tensor.
const APART: f64 = 1e-10;

/// The same of a training that is resumed on other ranks, of a loss.
const RESUMED: f64 = 1e-12;

/// Trains the job on one rank; and half of it, which is resumed on its own mesh and on another. Prints how far they are from
/// `whole`, where there is one (in the process of rank 0), and gives whether that is near enough.
///
/// # Errors
/// What the library reports, and if the output cannot be written.
pub(crate) fn agrees(
    out: &mut impl Write,
    job: &Job<'_>,
    whole: Option<&Outcome>,
    file: &Path,
) -> Result<bool, Failure> {
    let (steps, half) = (job.steps, (job.steps as u64 / 2).max(1));
    let run = |mesh: [usize; 3], stretch| {
        let job = Job {
            mesh,
            stretch,
            ..*job
        };
        job.run()
    };
    let one = run([1, 1, 1], Stretch::whole(steps))?;
    let stopped = Stretch {
        save: Some((file, half)),
        stop: half,
        ..Stretch::whole(steps)
    };
    run(job.mesh, stopped)?;
    let rest = Stretch {
        resume: Some(file),
        ..Stretch::whole(steps)
    };
    let same = run(job.mesh, rest)?;
    // Fewer ranks by one, among which the parameters are divided.
    let ranks = job.mesh.iter().product::<usize>().max(2) - 1;
    let other = run([1, 1, ranks], rest)?;
    let (Some(whole), Some(one), Some(same), Some(other)) = (whole, one, same, other) else {
        return Ok(true);
    };
    let mut passed = true;
    let mut tell = |what: &str, near: bool, apart: Distance| {
        passed &= near;
        let verdict = if near { "ok" } else { "TOO LARGE" };
        writeln!(out, "{what}: {apart}: {verdict}")
    };
    let apart = Distance::between(&one.trained, &whole.trained);
    tell("against one rank", apart.within(APART, APART), apart)?;
    let apart = Distance::between(&same.trained, &whole.trained);
    let what = format!("resumed after {half} of {steps} steps, to the bit");
    tell(&what, apart.within(0.0, 0.0), apart)?;
    let apart = Distance::between(&other.trained, &whole.trained);
    let what = format!("resumed there on 1x1x{ranks} ranks");
    tell(&what, apart.within(APART, RESUMED), apart)?;
    Ok(passed)
}
