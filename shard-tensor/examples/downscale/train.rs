//! One training on one mesh, from reading the data to scoring the model.

use crate::args::{MeshShape, Split};
use crate::forecast::{Forecast, THETA};
use crate::keep::Stretch;
use crate::model::UNet;
use crate::pieces;
use crate::prepare::{Task, mesh_of, placements, rms};
use crate::progress::{Course, Progress};
use crate::ranks::RankReport;
use crate::scores::Score;
use crate::trained::Trained;
use ndarray::{Array2, Ix2};
use shard_tensor::data::{Loader, Npy};
use shard_tensor::optim::Cosine;
use shard_tensor::prelude::*;
use shard_tensor::{Backend, DeviceKind, Profile, checkpoint};
use std::path::Path;

/// Channels at full resolution.
const WIDTH: usize = 16;

/// The learning rate rises to this over the first tenth of the steps and falls to none along a cosine.
const RATE: f64 = 4e-3;

/// The longest step that a batch may ask for: the norm of all gradients.
const LONGEST: f64 = 1.0;

/// What to train, and where.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    /// The folder of the forecast.
    pub(crate) data: &'a Path,
    pub(crate) forecast: &'a Forecast,
    pub(crate) mesh: &'a MeshShape,
    pub(crate) split: &'a Split,
    pub(crate) steps: usize,
    /// What is made of them here.
    pub(crate) stretch: Stretch<'a>,
    /// Hours that a step learns from.
    pub(crate) batch: usize,
    pub(crate) seed: u64,
    pub(crate) dtype: DType,
    /// The type of products; `f32` casts nothing.
    pub(crate) autocast: DType,
    /// What ranks compute on.
    pub(crate) device: DeviceKind,
    /// What moves elements between them.
    pub(crate) backend: Backend,
    /// Where the weights go, if anywhere.
    pub(crate) weights: Option<&'a Path>,
    /// The level whose picture is wanted.
    pub(crate) level: usize,
    /// Whether the last step is measured op by op.
    pub(crate) profile: bool,
}

/// What a training gave.
pub(crate) struct Outcome {
    pub(crate) dtype: DType,
    pub(crate) trained: Trained,
    /// Per level, on the test hour.
    pub(crate) scores: Vec<Score>,
    pub(crate) panels: Panels,
    pub(crate) ranks: Vec<RankReport>,
    /// What the last step took on each rank, if that was to be measured.
    pub(crate) profiles: Vec<Profile>,
}

/// One level of the test hour, in kelvin.
pub(crate) struct Panels {
    pub(crate) input: Array2<f64>,
    pub(crate) prediction: Array2<f64>,
    pub(crate) target: Array2<f64>,
    /// Its altitude, in metres.
    pub(crate) ground: Array2<f64>,
    /// Where pieces begin and end, in rows and columns.
    pub(crate) boundaries: [Vec<usize>; 2],
    /// And which ranks have them.
    pub(crate) ranks: Vec<usize>,
}

/// All that changes while a model trains.
struct Training {
    model: UNet,
    adam: AdamW,
    hours: Loader,
    step: u64,
}

impl Training {
    /// What is put down of it, and taken up.
    fn checkpoint(&mut self, ctx: &Context) -> Checkpoint<'_> {
        Checkpoint::new()
            .model(&mut self.model)
            .optimizer(&mut self.adam)
            .data(&mut self.hours)
            .step(&mut self.step)
            .rng(ctx)
    }
}

impl Job<'_> {
    /// Trains, and gives what came of it to the process of rank 0.
    ///
    /// # Errors
    /// What the library reports.
    pub(crate) fn run(&self) -> Result<Option<Outcome>> {
        let outcomes = Launch::new(self.mesh.ranks())
            .seed(self.seed)
            .dtype(self.dtype)
            .device(self.device)
            .backend(self.backend)
            .run(|ctx| self.on_rank(ctx))?;
        Ok(outcomes.into_iter().flatten().next())
    }

    /// The program of every rank.
    fn on_rank(&self, ctx: &Context) -> Result<Option<Outcome>> {
        // Of gradients half the bytes move.
        ctx.engine().set_narrow_sums(self.autocast.is_half());
        let mesh = mesh_of(ctx, self.mesh)?;
        let task = Task::new(&mesh, self.data, self.split)?;
        let mut training = self.begin(&mesh)?;
        if let Some(path) = self.stretch.resume {
            training.checkpoint(ctx).load(path)?;
        }
        let (course, profile) = self.train(ctx, &task, &mut training)?;

        let Training { model, .. } = training;
        let parameters = model.parameters();
        if let Some(path) = self.weights {
            checkpoint::save(path, &parameters)?;
        }
        let (scores, panels) = ctx.no_grad(|| self.evaluate(&task, &model))?;
        let piece = &task.test.local_shape()[2..];
        let outcome = Outcome {
            dtype: self.dtype,
            scores,
            panels,
            ranks: RankReport::gather(ctx, piece, &parameters, &course.moved)?,
            trained: Trained::new(course, &parameters)?,
            profiles: match profile {
                Some(profile) => ctx.gather(&profile)?,
                None => Vec::new(),
            },
        };
        // All ranks end with the same; one is enough.
        Ok((ctx.rank() == 0).then_some(outcome))
    }

    /// A model that has learned nothing, and the hours before the last in pieces, in an order of their own if a batch has not
    /// all of them.
    fn begin(&self, mesh: &Mesh) -> Result<Training> {
        let [hours, levels, ..] = self.forecast.shape();
        let model = UNet::new(mesh, levels + 1, levels, WIDTH)?;
        let adam = AdamW::new(model.parameters(), RATE)?;
        let theta = || Npy::open(self.data.join(THETA));
        let hours = Loader::new(mesh, self.batch)?
            .source(placements(mesh, self.split, 2), theta)?
            .samples(0..hours - 1)
            .shuffle(self.batch < hours - 1);
        Ok(Training {
            model,
            adam,
            hours,
            step: 0,
        })
    }

    /// Trains until it is to stop.
    fn train(
        &self,
        ctx: &Context,
        task: &Task,
        training: &mut Training,
    ) -> Result<(Course, Option<Profile>)> {
        let title = format!("{} {}", self.mesh, self.dtype);
        let mut progress = Progress::new(ctx, training.step as usize, self.steps, title);
        let mut profile = None;
        while training.step < self.stretch.stop {
            let is_last = training.step + 1 == self.stretch.stop;
            let mut step = || self.step(ctx, task, training);
            let loss = if self.profile && is_last {
                let (loss, measured) = ctx.profile(step)?;
                profile = Some(measured);
                loss
            } else {
                step()?
            };
            progress.step(loss);
            if let Some(path) = self.stretch.due(training.step) {
                training.checkpoint(ctx).save(path)?;
            }
        }
        Ok((progress.done(), profile))
    }

    /// One step, and the loss before it.
    fn step(&self, ctx: &Context, task: &Task, training: &mut Training) -> Result<f64> {
        let rates = Cosine::new(RATE, self.steps).warmup(self.steps / 10);
        let hours = training.hours.next_batch()?.swap_remove(0);
        let samples = task.samples(&hours, self.dtype)?;
        let loss = ctx.autocast(self.autocast, || {
            let residual = training.model.forward(&samples.inputs)?;
            (samples.bilinear.add(&residual)?).mse_loss(&samples.target)
        })?;
        let mut gradients = loss.backward()?;
        gradients.clip_norm(LONGEST)?;
        let rate = rates.at(training.step as usize);
        training.adam.set_learning_rate(rate);
        training.adam.step(&gradients)?;
        training.step += 1;
        loss.item()
    }

    /// Errors per level on the test hour, and one level to look at.
    fn evaluate(&self, task: &Task, model: &UNet) -> Result<(Vec<Score>, Panels)> {
        let test = task.samples(&task.test, self.dtype)?;
        let residual = model.forward(&test.inputs)?;
        let target = task.kelvin(&test.target)?;
        let input = task.kelvin(&test.bilinear)?;
        let prediction = task.kelvin(&test.bilinear.add(&residual)?)?;
        let errors = |x: &ShardTensor| rms(&x.sub(&target)?)?.to_array::<f64>();
        let errors = errors(&input)?.into_iter().zip(errors(&prediction)?);
        let score = |(level, (plain, model))| Score {
            level: self.forecast.level(level),
            plain,
            model,
        };
        let scores = errors.enumerate().map(score).collect();
        let level = |x: &ShardTensor| {
            let plane = x.select(1, self.level)?.select(0, 0)?.to_array::<f64>()?;
            plane.into_dimensionality::<Ix2>().map_err(Error::custom)
        };
        let panels = Panels {
            input: level(&input)?,
            prediction: level(&prediction)?,
            target: level(&target)?,
            ground: self.forecast.altitude.mapv(f64::from),
            boundaries: pieces::boundaries(test.target.layout()),
            ranks: pieces::ranks(test.target.layout(), self.level),
        };
        Ok((scores, panels))
    }
}
