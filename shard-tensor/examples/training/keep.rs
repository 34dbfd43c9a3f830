//! How a training is put down and taken up.

use clap::Args;
use std::path::Path;

/// What the command line says of it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Keep {
    /// Puts the training down each time after so many steps, and at the end, as training.safetensors in --out
    #[arg(long, value_name = "STEPS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    save_every: u64,

    /// Goes on where a training in --out was put down, on any mesh
    #[arg(long, conflicts_with = "verify")]
    resume: bool,

    /// Stops after this step, as if the time were up
    #[arg(long, value_name = "STEP", conflicts_with = "verify", value_parser = clap::value_parser!(u64).range(1..))]
    stop: Option<u64>,
}

/// The part of a training that one program makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    /// Where to go on, if not from the beginning.
    pub(crate) resume: Option<&'a Path>,
    /// Where the training is put down, if anywhere, and after how many steps each time.
    pub(crate) save: Option<(&'a Path, u64)>,
    /// The last step.
    pub(crate) stop: u64,
}

impl Keep {
    /// What to make of so many steps, with a file to put the training down in.
    pub(crate) fn stretch<'a>(&self, file: &'a Path, steps: usize) -> Stretch<'a> {
        Stretch {
            resume: self.resume.then_some(file),
            save: Some((file, self.save_every)),
            stop: self
                .stop
                .map_or(steps as u64, |stop| stop.min(steps as u64)),
        }
    }
}

impl<'a> Stretch<'a> {
    /// All of a training.
    pub(crate) fn whole(steps: usize) -> Self {
        Self {
            resume: None,
            save: None,
            stop: steps as u64,
        }
    }

    /// Where to put the training down after a step, if it is time to.
    pub(crate) fn due(&self, step: u64) -> Option<&'a Path> {
        let (path, every) = self.save?;
        (step.is_multiple_of(every) || step == self.stop).then_some(path)
    }
}
