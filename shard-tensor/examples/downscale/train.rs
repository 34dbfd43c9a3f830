//! One training on one mesh, from scattering the data to scoring the model.

use crate::args::{MeshShape, Split};
use crate::data::Forecast;
use crate::model::UNet;
use crate::pieces::boundaries;
use crate::prepare::{Task, mesh_of, rms};
use crate::progress::Progress;
use crate::trained::Trained;
use ndarray::{Array2, Ix2};
use serde::{Deserialize, Serialize};
use shard_tensor::nn::{ModelExt, Module};
use shard_tensor::optim::{AdamW, Cosine, Optimizer, Schedule};
use shard_tensor::{
    Backend, Context, DType, DeviceKind, Error, Launch, OpCount, Result, ShardTensor, checkpoint,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// Channels at full resolution.
const WIDTH: usize = 16;

/// The learning rate rises to this over the first tenth of the steps and falls to none along a cosine.
const RATE: f64 = 4e-3;

/// The longest step that a batch may ask for: the norm of all gradients.
const LONGEST: f64 = 1.0;

/// What to train, and where.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) forecast: &'a Forecast,
    pub(crate) mesh: &'a MeshShape,
    pub(crate) split: &'a Split,
    pub(crate) steps: usize,
    pub(crate) seed: u64,
    pub(crate) dtype: DType,
    /// What ranks compute on.
    pub(crate) device: DeviceKind,
    /// What moves elements between them.
    pub(crate) backend: Backend,
    /// Where the weights go, if anywhere.
    pub(crate) weights: Option<&'a Path>,
    /// The level whose picture is wanted.
    pub(crate) level: usize,
}

/// What a training gave.
pub(crate) struct Outcome {
    pub(crate) dtype: DType,
    pub(crate) trained: Trained,
    /// Per level, on the test hour.
    pub(crate) scores: Vec<Score>,
    pub(crate) panels: Panels,
    /// Per rank.
    pub(crate) ranks: Vec<RankReport>,
    /// All steps together.
    pub(crate) time: Duration,
}

/// Errors on the test hour, in kelvin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    pub(crate) bilinear: f64,
    pub(crate) model: f64,
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
}

/// What one rank had to do.
#[derive(Serialize, Deserialize)]
pub(crate) struct RankReport {
    /// Rows and columns of its piece.
    pub(crate) piece: [usize; 2],
    /// Most bytes of tensors at any time.
    pub(crate) peak: usize,
    /// Messages and bytes received during all steps.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// The same by the name of the operation.
    pub(crate) operations: Vec<(String, u64, u64)>,
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
        let mesh = mesh_of(ctx, self.mesh)?;
        let task = Task::new(&mesh, self.forecast, self.split)?;
        let [_, levels, ..] = self.forecast.shape();
        let model = UNet::new(&mesh, levels + 1, levels, WIDTH)?;
        let mut adam = AdamW::new(model.parameters(), RATE)?;
        let rates = Cosine::new(RATE, self.steps).warmup(self.steps / 10);

        let before = ctx.ledger().snapshot();
        let bar = Progress::new(ctx, self.steps, &format!("{} {}", self.mesh, self.dtype));
        let start = Instant::now();
        let mut losses = Vec::with_capacity(self.steps);
        for step in 0..self.steps {
            let began = Instant::now();
            adam.set_learning_rate(rates.at(step));
            let prediction = task
                .train
                .bilinear
                .add(&model.forward(&task.train.inputs)?)?;
            let loss = prediction.mse_loss(&task.train.target)?;
            let mut gradients = loss.backward()?;
            gradients.clip_norm(LONGEST)?;
            adam.step(&gradients)?;
            losses.push(loss.item()?);
            bar.step(
                step,
                losses[step],
                began.elapsed(),
                &ctx.ledger().since(&before),
            );
        }
        let (time, moved) = (start.elapsed(), ctx.ledger().since(&before));
        drop(bar);

        if let Some(path) = self.weights {
            checkpoint::save(path, &model.parameters())?;
        }
        let (scores, panels) = ctx.no_grad(|| self.evaluate(&task, &model))?;
        let piece = task.train.target.local_shape();
        let operation =
            |(name, count): &(&str, OpCount)| (String::from(*name), count.messages, count.bytes);
        let report = RankReport {
            piece: [piece[2], piece[3]],
            peak: ctx.ledger().memory().peak,
            messages: moved.messages,
            bytes: moved.bytes,
            operations: moved.ops.iter().map(operation).collect(),
        };
        let outcome = Outcome {
            dtype: self.dtype,
            trained: Trained::new(losses, &model.parameters())?,
            scores,
            panels,
            ranks: ctx.gather(&report)?,
            time,
        };
        // All ranks end with the same; one is enough.
        Ok((ctx.rank() == 0).then_some(outcome))
    }

    /// Errors per level on the test hour, and one level to look at.
    fn evaluate(&self, task: &Task, model: &UNet) -> Result<(Vec<Score>, Panels)> {
        let test = &task.test;
        let residual = model.forward(&test.inputs)?;
        let target = task.kelvin(&test.target)?;
        let input = task.kelvin(&test.bilinear)?;
        let prediction = task.kelvin(&test.bilinear.add(&residual)?)?;
        let errors = |x: &ShardTensor| rms(&x.sub(&target)?)?.to_array::<f64>();
        let scores = errors(&input)?
            .into_iter()
            .zip(errors(&prediction)?)
            .map(|(bilinear, model)| Score { bilinear, model })
            .collect();
        let level = |x: &ShardTensor| {
            let plane = x.select(1, self.level)?.select(0, 0)?.to_array::<f64>()?;
            plane.into_dimensionality::<Ix2>().map_err(Error::custom)
        };
        let panels = Panels {
            input: level(&input)?,
            prediction: level(&prediction)?,
            target: level(&target)?,
            ground: self.forecast.altitude.mapv(f64::from),
            boundaries: boundaries(test.target.layout()),
        };
        Ok((scores, panels))
    }
}
