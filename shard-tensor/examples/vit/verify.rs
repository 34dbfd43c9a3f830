//! The promises, checked: many ranks give what one gives, and a training that was put down goes on as if it had not been.

use crate::Failure;
use crate::keep::Stretch;
use crate::train::{Job, Outcome};
use crate::trained::{self, APART, Distance};
use std::io::Write;
use std::path::Path;

/// The largest difference of a loss, where a training is resumed on other ranks.
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
    let mut passed = trained::agree(out, &whole.trained, &one.trained)?;
    let mut tell = |what: String, resumed: &Outcome, bounds: [f64; 2]| {
        let apart = Distance::between(&resumed.trained, &whole.trained);
        let near = apart.within(bounds[0], bounds[1]);
        passed &= near;
        let verdict = if near { "ok" } else { "TOO LARGE" };
        writeln!(out, "{what}: {apart}: {verdict}")
    };
    let what = format!("resumed after {half} of {steps} steps, to the bit");
    tell(what, &same, [0.0, 0.0])?;
    let what = format!("resumed there on 1x1x{ranks} ranks");
    tell(what, &other, [APART, RESUMED])?;
    Ok(passed)
}
