//! One training on one mesh, from reading the data to scoring the model.

use crate::forecast::{Forecast, THETA};
use crate::model::UNet3d;
use crate::progress::Progress;
use crate::ranks::RankReport;
use crate::restored::Restored;
use crate::task::{INPUTS, Task, placements};
use crate::trained::Trained;
use shard_tensor::data::{Loader, Npy};
use shard_tensor::optim::Cosine;
use shard_tensor::prelude::*;
use std::path::Path;

/// The learning rate rises to this over the first tenth of the steps and falls to none along a cosine.
const RATE: f64 = 4e-3;

/// What is added to Adam's denominator: where gradients are next to nothing, steps would be made of their rounding.
const EPS: f64 = 1e-6;

/// The longest step that a batch may ask for: the norm of all gradients.
const LONGEST: f64 = 1.0;

/// What to train, and where.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    /// The folder of the forecast.
    pub(crate) data: &'a Path,
    pub(crate) forecast: &'a Forecast,
    /// Ranks along levels, rows and columns.
    pub(crate) mesh: [usize; 3],
    pub(crate) width: usize,
    pub(crate) steps: usize,
    pub(crate) dtype: DType,
}

/// What a training gave.
pub(crate) struct Outcome {
    pub(crate) trained: Trained,
    pub(crate) restored: Restored,
    pub(crate) ranks: Vec<RankReport>,
}

impl Job<'_> {
    /// Trains, and gives what came of it to the process of rank 0.
    ///
    /// # Errors
    /// What the library reports.
    pub(crate) fn run(&self) -> Result<Option<Outcome>> {
        let launch = Launch::new(self.mesh.iter().product()).dtype(self.dtype);
        let outcomes = launch.run(|ctx| self.on_rank(ctx))?;
        Ok(outcomes.into_iter().flatten().next())
    }

    /// The program of every rank.
    fn on_rank(&self, ctx: &Context) -> Result<Option<Outcome>> {
        let [levels, rows, columns] = self.mesh;
        let mesh = ctx.mesh([("levels", levels), ("rows", rows), ("columns", columns)])?;
        let task = Task::new(&mesh, self.data, &self.forecast.altitude)?;
        let model = UNet3d::new(&mesh, INPUTS, 1, self.width)?;
        let mut adam = AdamW::new(model.parameters(), RATE)?.eps(EPS);
        let [hours, ..] = self.forecast.shape();
        let mut past = Loader::new(&mesh, 1)?
            .source(placements(&mesh), || Npy::open(self.data.join(THETA)))?
            .samples(0..hours - 1)
            .shuffle(true);

        let rates = Cosine::new(RATE, self.steps).warmup(self.steps / 10);
        let title = format!("{levels}x{rows}x{columns} {}", self.dtype);
        let mut progress = Progress::new(ctx, 0, self.steps, title);
        for step in 0..self.steps {
            let hour = past.next_batch()?.swap_remove(0);
            let samples = task.samples(&hour, self.dtype)?;
            let loss = model.forward(&samples.inputs)?.mse_loss(&samples.target)?;
            let mut gradients = loss.backward()?;
            gradients.clip_norm(LONGEST)?;
            adam.set_learning_rate(rates.at(step));
            adam.step(&gradients)?;
            progress.step(loss.item()?);
        }
        let course = progress.done();

        let parameters = model.parameters();
        let restored = ctx.no_grad(|| self.evaluate(&task, &model))?;
        let piece = &task.test.local_shape()[1..];
        let outcome = Outcome {
            restored,
            ranks: RankReport::gather(ctx, piece, &parameters, &course.moved)?,
            trained: Trained::new(course, &parameters)?,
        };
        // All ranks end with the same; one is enough.
        Ok((ctx.rank() == 0).then_some(outcome))
    }

    /// The hidden levels of the test hour.
    fn evaluate(&self, task: &Task, model: &UNet3d) -> Result<Restored> {
        let test = task.samples(&task.test, self.dtype)?;
        let hidden = |x: &ShardTensor| {
            let levels = x.select(1, 0)?;
            levels.slice(1, 1, 2, levels.shape()[1] / 2)
        };
        let found = hidden(&model.forward(&test.inputs)?)?;
        Restored::new(self.forecast, &hidden(&test.target)?, &found, task.unit)
    }
}
