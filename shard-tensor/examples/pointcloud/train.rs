//! One training on so many ranks, from the points to the score.

use crate::model::{LAYERS, Network, WIDTH};
use crate::progress::Progress;
use crate::task::Task;
use crate::trained::Trained;
use ndarray::{Array2, ArrayD};
use serde::{Deserialize, Serialize};
use shard_tensor::nn::ModelExt;
use shard_tensor::optim::{AdamW, Cosine, Optimizer, Schedule};
use shard_tensor::{
    Context, DType, DeviceKind, Error, Launch, LedgerSnapshot, Result, ShardTensor,
};

/// The highest learning rate.
const RATE: f64 = 1e-2;

/// What to train, and where.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    /// Heights in metres and steepness in metres for a hundred, `[rows, columns]`.
    pub(crate) terrain: &'a Array2<f64>,
    pub(crate) steepness: &'a Array2<f64>,
    /// Rows and columns of the whole terrain from one to the next.
    pub(crate) every: usize,
    /// Rows of the terrain on each rank.
    pub(crate) rows: &'a [usize],
    pub(crate) neighbours: usize,
    pub(crate) steps: usize,
    pub(crate) dtype: DType,
    pub(crate) device: DeviceKind,
}

/// What a training gave.
pub(crate) struct Outcome {
    pub(crate) trained: Trained,
    /// Over the points that are scored, in metres for a hundred.
    pub(crate) score: Score,
    /// Metres for a hundred, `[rows, columns]`.
    pub(crate) predicted: Array2<f64>,
    /// Per rank.
    pub(crate) ranks: Vec<RankReport>,
}

/// Root mean squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    /// From the mean: what a model leaves that knows no neighbours.
    pub(crate) spread: f64,
    /// From what is predicted.
    pub(crate) error: f64,
}

/// What one rank had to do.
#[derive(Serialize, Deserialize)]
pub(crate) struct RankReport {
    pub(crate) points: usize,
    pub(crate) edges: usize,
    /// Points of others that its edges begin at, each counted once.
    pub(crate) asked: u64,
    /// Bytes of the requests that others sent, once.
    pub(crate) requests: u64,
    /// Bytes received in a step.
    pub(crate) bytes: u64,
    /// Of these, rows for messages, and sums of gradients that came home.
    pub(crate) rows: u64,
    pub(crate) home: u64,
    /// Most bytes of tensors at any time.
    pub(crate) peak: usize,
}

impl Job<'_> {
    /// Trains, and gives what came of it to the process of rank 0.
    ///
    /// # Errors
    /// What the library reports.
    pub(crate) fn run(&self) -> Result<Option<Outcome>> {
        let outcomes = Launch::new(self.rows.len())
            .dtype(self.dtype)
            .device(self.device)
            .run(|ctx| self.on_rank(ctx))?;
        Ok(outcomes.into_iter().flatten().next())
    }

    /// The program of every rank.
    fn on_rank(&self, ctx: &Context) -> Result<Option<Outcome>> {
        let mesh = ctx.mesh([("points", self.rows.len())])?;
        let start = ctx.ledger().snapshot();
        let fields = [self.terrain, self.steepness];
        let task = Task::new(&mesh, fields, self.rows, self.every, self.neighbours)?;
        let model = Network::new(&mesh, 1, 3)?;
        let mut adam = AdamW::new(model.parameters(), RATE)?;
        let rates = Cosine::new(RATE, self.steps).warmup(self.steps / 10);

        let title = format!("{} {}", self.rows.len(), self.dtype);
        let mut progress = Progress::new(ctx, 0, self.steps, title);
        for step in 0..self.steps {
            adam.set_learning_rate(rates.at(step));
            let errors = model.forward(&task.graph, &task.known)? - &task.wanted;
            let loss = (errors.square()? * &task.learned).sum_all()?;
            adam.step(&loss.backward()?)?;
            progress.step(loss.item()?);
        }
        let course = progress.done();

        let report = self.report(ctx, &task, &ctx.ledger().since(&start), &course.moved);
        let found = ctx.no_grad(|| model.forward(&task.graph, &task.known))?;
        let error = |guess: &ShardTensor| -> Result<f64> {
            let squares = (guess - &task.wanted).square()? * &task.scored;
            Ok(task.spread * squares.sum_all()?.item()?.sqrt())
        };
        let score = Score {
            spread: error(&(&found * 0.0))?,
            error: error(&found)?,
        };
        let outcome = Outcome {
            trained: Trained::new(course, &model.parameters())?,
            score,
            predicted: self.field(&(found * task.spread + task.mean))?,
            ranks: ctx.gather(&report)?,
        };
        // All ranks end with the same; one is enough.
        Ok((ctx.rank() == 0).then_some(outcome))
    }

    /// What is here, and what moved in all and in the steps alone.
    fn report(
        &self,
        ctx: &Context,
        task: &Task,
        all: &LedgerSnapshot,
        steps: &LedgerSnapshot,
    ) -> RankReport {
        let of = |moved: &LedgerSnapshot, name| {
            let ops = moved.ops.iter().find(|(op, _)| *op == name);
            ops.map_or(0, |(_, count)| count.bytes)
        };
        let in_a_step = |bytes: u64| bytes / self.steps as u64;
        let rows = in_a_step(of(steps, "route rows"));
        let points = task.known.local_shape()[0];
        RankReport {
            points,
            edges: points * self.neighbours,
            asked: rows / (LAYERS * WIDTH * self.dtype.size()) as u64,
            requests: of(all, "route requests"),
            bytes: in_a_step(steps.bytes),
            rows,
            home: in_a_step(of(steps, "route home")),
            peak: ctx.ledger().memory().peak,
        }
    }

    /// One number for each point, as a field.
    fn field(&self, x: &ShardTensor) -> Result<Array2<f64>> {
        let all: ArrayD<f64> = x.to(DType::F64)?.to_array()?;
        let field = all.into_shape_with_order(self.terrain.raw_dim());
        field.map_err(Error::custom)
    }
}
