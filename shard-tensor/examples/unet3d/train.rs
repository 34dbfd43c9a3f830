//! One training on one mesh, from reading the data to scoring the model.

use crate::forecast::{Forecast, THETA};
use crate::model::UNet3d;
use crate::pieces::boundaries;
use crate::progress::Progress;
use crate::ranks::RankReport;
use crate::scores::Score;
use crate::task::{INPUTS, Task, placements};
use crate::trained::Trained;
use ndarray::{Array2, Ix2};
use shard_tensor::data::{Loader, Npy};
use shard_tensor::optim::Cosine;
use shard_tensor::prelude::*;
use std::path::Path;

/// The learning rate rises to this over the first tenth of the steps and falls to none along a cosine.
const RATE: f64 = 4e-3;

/// The longest step that a batch may ask for: the norm of all gradients.
const LONGEST: f64 = 1.0;

/// The level of the picture: the lowest that is hidden.
const PICTURED: usize = 1;

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
    /// Per hidden level, on the test hour.
    pub(crate) scores: Vec<Score>,
    pub(crate) panels: Panels,
    pub(crate) ranks: Vec<RankReport>,
}

/// One level of the test hour, in kelvin.
pub(crate) struct Panels {
    pub(crate) level: String,
    pub(crate) truth: Array2<f64>,
    pub(crate) plain: Array2<f64>,
    pub(crate) prediction: Array2<f64>,
    /// Where pieces begin and end, in rows and columns.
    pub(crate) boundaries: [Vec<usize>; 2],
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
        let mut adam = AdamW::new(model.parameters(), RATE)?;
        let [hours, ..] = self.forecast.shape();
        let mut past = Loader::new(&mesh, 1)?
            .source(placements(&mesh), || Npy::open(self.data.join(THETA)))?
            .samples(0..hours - 1)
            .shuffle(true);

        let rates = Cosine::new(RATE, self.steps).warmup(self.steps / 10);
        let title = format!("{levels}x{rows}x{columns} {}", self.dtype);
        let (mut step, mut progress) = (0, Progress::new(ctx, 0, self.steps, title));
        while step < self.steps {
            let Some(hour) = past.epoch()?.next() else {
                continue; // The next epoch.
            };
            let samples = task.samples(&hour?[0], self.dtype)?;
            let loss = model.forward(&samples.inputs)?.mse_loss(&samples.target)?;
            let mut gradients = loss.backward()?;
            gradients.clip_norm(LONGEST)?;
            adam.set_learning_rate(rates.at(step));
            adam.step(&gradients)?;
            step += 1;
            progress.step(loss.item()?);
        }
        let course = progress.done();

        let parameters = model.parameters();
        let (scores, panels) = ctx.no_grad(|| self.evaluate(&task, &model))?;
        let piece = &task.test.local_shape()[1..];
        let outcome = Outcome {
            scores,
            panels,
            ranks: RankReport::gather(ctx, piece, &parameters, &course.moved)?,
            trained: Trained::new(course, &parameters)?,
        };
        // All ranks end with the same; one is enough.
        Ok((ctx.rank() == 0).then_some(outcome))
    }

    /// Errors per hidden level on the test hour, and one level to look at.
    fn evaluate(&self, task: &Task, model: &UNet3d) -> Result<(Vec<Score>, Panels)> {
        let test = task.samples(&task.test, self.dtype)?;
        let truth = task.test.unsqueeze(1)?;
        let found = model.forward(&test.inputs)?.to(DType::F64)?;
        let prediction = test.plain.add(&found.mul_scalar(task.unit)?)?;
        let errors = |x: &ShardTensor| {
            let squares = x.sub(&truth)?.square()?.mean([0, 1, 3, 4], false)?;
            squares.sqrt()?.to_array::<f64>()
        };
        let (plain, model) = (errors(&test.plain)?, errors(&prediction)?);
        let score = |level: usize| Score {
            level: self.forecast.level(level),
            plain: plain[[level]],
            model: model[[level]],
        };
        let level = |x: &ShardTensor| {
            let plane = x.select(2, PICTURED)?.select(0, 0)?.select(0, 0)?;
            let plane = plane.to_array::<f64>()?.into_dimensionality::<Ix2>();
            plane.map_err(Error::custom)
        };
        let panels = Panels {
            level: self.forecast.level(PICTURED),
            truth: level(&truth)?,
            plain: level(&test.plain)?,
            prediction: level(&prediction)?,
            boundaries: boundaries(task.test.layout()),
        };
        Ok(((1..plain.len()).step_by(2).map(score).collect(), panels))
    }
}
