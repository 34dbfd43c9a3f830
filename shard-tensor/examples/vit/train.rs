//! One training on one mesh, or a stretch of it.

use crate::forecast::Forecast;
use crate::hidden::Hidden;
use crate::keep::Stretch;
use crate::model::{Sizes, Vit};
use crate::progress::{Course, Progress};
use crate::ranks::RankReport;
use crate::restored::Restored;
use crate::trained::Trained;
use crate::uneven::uneven;
use ndarray::{Array4, Axis, s};
use shard_tensor::DeviceMesh;
use shard_tensor::optim::Cosine;
use shard_tensor::prelude::*;

/// The highest learning rate.
const RATE: f64 = 3e-3;

/// The longest step that a batch may ask for: the norm of all gradients.
const LONGEST: f64 = 1.0;

/// What to train, and where.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) forecast: &'a Forecast,
    pub(crate) sizes: Sizes,
    /// Ranks along the axes data, domain and shard.
    pub(crate) mesh: [usize; 3],
    pub(crate) dtype: DType,
    pub(crate) steps: usize,
    /// What is made of them here.
    pub(crate) stretch: Stretch<'a>,
}

/// What a training gave.
pub(crate) struct Outcome {
    pub(crate) trained: Trained,
    pub(crate) restored: Restored,
    pub(crate) ranks: Vec<RankReport>,
}

/// All that changes while a model trains.
struct Training {
    model: Vit,
    adam: AdamW,
    step: u64,
}

impl Training {
    /// What is put down of it, and taken up.
    fn checkpoint(&mut self) -> Checkpoint<'_> {
        Checkpoint::new()
            .model(&mut self.model)
            .optimizer(&mut self.adam)
            .step(&mut self.step)
    }
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
        let [data, domain, shards] = self.mesh;
        let mesh = ctx.mesh([("data", data), ("domain", domain), ("shard", shards)])?;
        let samples = Samples::new(&mesh, self.forecast, self.sizes.side, domain)?;
        let model = Vit::new(&mesh, self.sizes)?.fully_sharded("shard")?;
        let adam = AdamW::new(model.parameters(), RATE)?;
        let step = 0;
        let mut training = Training { model, adam, step };
        ctx.device().reset_peak();
        if let Some(path) = self.stretch.resume {
            training.checkpoint().load(path)?;
        }
        let course = self.train(ctx, &samples, &mut training)?;

        let Training { model, .. } = training;
        let parameters = model.parameters();
        let found = ctx.no_grad(|| model.forward(&samples.test.0))?;
        let [lacking, found] = [&samples.test.1, &found].map(|x| x.transpose(0, 1));
        let [levels, _, rows, columns] = samples.train.1.local_shape()[..] else {
            unreachable!("samples have four dims")
        };
        let piece = [levels, rows, columns];
        let outcome = Outcome {
            restored: Restored::new(self.forecast, &lacking?, &found?, samples.unit)?,
            ranks: RankReport::gather(ctx, &piece, &parameters, &course.moved)?,
            trained: Trained::new(course, &parameters)?,
        };
        Ok((ctx.rank() == 0).then_some(outcome))
    }

    /// Trains until it is to stop.
    fn train(&self, ctx: &Context, samples: &Samples, training: &mut Training) -> Result<Course> {
        let [data, domain, shards] = self.mesh;
        let title = format!("{data}x{domain}x{shards} {}", self.dtype);
        let rates = Cosine::new(RATE, self.steps).warmup(self.steps / 10);
        let mut progress = Progress::new(ctx, training.step as usize, self.steps, title);
        let (around, lacking) = &samples.train;
        while training.step < self.stretch.stop {
            let loss = training.model.forward(around)?.mse_loss(lacking)?;
            let mut gradients = loss.backward()?;
            gradients.clip_norm(LONGEST)?;
            let rate = rates.at(training.step as usize);
            training.adam.set_learning_rate(rate);
            training.adam.step(&gradients)?;
            training.step += 1;
            progress.step(loss.item()?);
            if let Some(path) = self.stretch.due(training.step) {
                training.checkpoint().save(path)?;
            }
        }
        Ok(progress.done())
    }
}

/// Hidden levels in pieces: the one below and the one above `[levels, 2, rows, columns]`, and what the mean of these lacks
/// `[levels, 1, rows, columns]`.
struct Samples {
    /// Of all hours but the last.
    train: (ShardTensor, ShardTensor),
    /// Of the last hour.
    test: (ShardTensor, ShardTensor),
    /// Kelvin that a number of the second ones stands for.
    unit: f64,
}

impl Samples {
    /// # Collective
    /// All ranks.
    fn new(mesh: &Mesh, forecast: &Forecast, side: usize, domain: usize) -> Result<Self> {
        let all = Hidden::of(forecast).map_err(Error::custom)?;
        let (hours, hidden, rows, columns) = all.lacking.dim();
        let [below, above] = [0..hidden, 1..hidden + 1]
            .map(|levels| all.given.slice(s![.., levels, .., ..]).to_owned());
        // Whole patches on every rank: so many of each 1 + 2/3 + 4/9 + ...
        let strips = Placements::from(shard(0).weights(uneven(domain)));
        let patches = DeviceMesh::new(&[domain]).map_err(Error::custom)?;
        let strips = strips.layout(&patches, &[rows / side])?;
        let strips: Vec<usize> = (0..domain)
            .map(|part| strips.part_size(0, part) * side)
            .collect();
        let placements = Placements::from([
            ("data", shard(0)),
            ("domain", shard(2).sizes(strips)),
            ("shard", shard(0)),
        ]);
        let placed = |from: usize, to: usize| {
            // Fields that belong together beside each other, and the levels of all hours one after the other.
            let at = |fields: &[&Array4<f64>]| -> Result<ShardTensor> {
                let some: Vec<_> = (fields.iter())
                    .map(|x| x.slice(s![from..to, .., .., ..]))
                    .collect();
                let some = ndarray::stack(Axis(2), &some).map_err(Error::custom)?;
                let shape = ((to - from) * hidden, fields.len(), rows, columns);
                let some = some.to_shape(shape).map_err(Error::custom)?.into_owned();
                let whole = mesh.with_dtype(DType::F64).distribute(&some, &placements)?;
                whole.to(mesh.dtype())
            };
            Ok::<_, Error>((at(&[&below, &above])?, at(&[&all.lacking])?))
        };
        Ok(Self {
            train: placed(0, hours - 1)?,
            test: placed(hours - 1, hours)?,
            unit: all.unit,
        })
    }
}
