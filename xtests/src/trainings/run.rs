//! A training that runs on a rank.

use super::model::{Meshes, Model, Sizes};
use super::optimizers::optimizers;
use super::{Event, Samples, Stay, TrainingRun};
use crate::programs::{Computed, How, Slip};
use crate::strategies::integer;
use ndarray::{ArrayD, IxDyn};
use shard_ops::testing::Rng;
use shard_redistribute::MeshComm;
use shard_tensor::checkpoint::Checkpoint;
use shard_tensor::data::Loader;
use shard_tensor::nn::ModelExt;
use shard_tensor::optim::{Ema, LossScale, Optimizer};
use shard_tensor::{
    AxisPlacement, ClipNorm, Context, DType, Gradients, Mesh, Placements, Result, ShardTensor,
    Stateful, replicate, shard,
};
use std::path::Path;
use std::rc::Rc;

/// Runs one of a training's stays, from what is in the file to what is in it then. This rank may slip.
pub(super) fn stay(
    run: &TrainingRun,
    at: usize,
    cx: &Rc<MeshComm>,
    file: &Path,
    slip: Option<&Slip<Event>>,
) -> Result<Computed> {
    let stay = &run.stays[at];
    let how = |step| slip.and_then(|slip| slip.at(step, stay.events.len() + 1, cx));
    let ctx = Context::new(cx.world().clone(), 5, DType::F64);
    let mut job = match how(0) {
        Some(How::Otherwise(seed)) => {
            let stay = Stay {
                seed: *seed,
                ..stay.clone()
            };
            Job::new(run, &stay, &ctx)?
        }
        Some(How::Twice) => {
            Job::new(run, stay, &ctx)?;
            Job::new(run, stay, &ctx)?
        }
        Some(How::Leave) => return Ok(Computed::default()),
        Some(How::Skip | How::Instead(_)) | None => Job::new(run, stay, &ctx)?,
    };
    if at > 0 && !matches!(how(0), Some(How::Skip)) {
        job.checkpoint().load(file)?;
    }
    let mut computed = Computed::default();
    for (step, event) in stay.events.iter().enumerate() {
        match how(step + 1) {
            None => job.meets(event, &mut computed)?,
            Some(How::Leave) => return Ok(computed),
            Some(How::Skip) => {}
            Some(How::Twice) => {
                job.meets(event, &mut computed)?;
                job.meets(event, &mut computed)?;
            }
            Some(How::Otherwise(seed)) => job.meets(&event.with_seed(*seed), &mut computed)?,
            Some(How::Instead(event)) => job.meets(event, &mut computed)?,
        }
    }
    job.checkpoint().save(file)?;
    job.all(&mut computed)?;
    Ok(computed)
}

impl Event {
    fn with_seed(&self, seed: u64) -> Self {
        match self {
            Self::Step(parts, _) => Self::Step(*parts, seed),
            Self::Freeze(_) => Self::Freeze(seed),
            other => other.clone(),
        }
    }
}

/// All that a training is made of.
struct Job<'a> {
    run: &'a TrainingRun,
    meshes: Meshes,
    model: Model,
    optimizers: Vec<Box<dyn Optimizer>>,
    means: Option<Ema>,
    scale: Option<LossScale>,
    loader: Loader,
    steps: u64,
}

impl<'a> Job<'a> {
    fn new(run: &'a TrainingRun, stay: &Stay, ctx: &Context) -> Result<Self> {
        let mut rng = Rng::new(stay.seed, &["stay"]);
        if rng.one_in(2) {
            ctx.tape().set_bucket_bytes([1, 100, 2000][rng.below(3)]);
        }
        ctx.tape().set_gathers_ahead(rng.one_in(2));
        let sizes = Sizes::of(run);
        let meshes = Meshes::new(ctx, stay)?;
        let loader = loader(run, stay, meshes.first(), &sizes)?;
        let model = Model::new(&meshes, run, &sizes)?.lies(stay)?;
        // Powers of two, which change no digits.
        let scale = Rng::new(run.seed, &["scale"]).one_in(4);
        let scale = scale.then(|| LossScale::new().from(1024.0).growing(2.0, 2, 0.5));
        let mut rng = Rng::new(run.seed, &["means"]);
        let means = match rng.below(3) {
            0 => Some(Ema::new(&model, 0.8)?),
            1 => Some(Ema::alike(&model)),
            _ => None,
        };
        Ok(Self {
            run,
            meshes,
            optimizers: optimizers(model.parameters(), run.seed)?,
            model,
            means,
            scale,
            loader,
            steps: 0,
        })
    }

    fn checkpoint(&mut self) -> Checkpoint<'_> {
        let mut all = Checkpoint::new()
            .model(&mut self.model)
            .data(&mut self.loader)
            .step(&mut self.steps)
            .rng(self.meshes.all.context());
        for (at, optimizer) in self.optimizers.iter_mut().enumerate() {
            all = all.with(format!("optimizer {at}"), optimizer);
        }
        if let Some(scale) = &mut self.scale {
            all = all.with("scale", scale);
        }
        match &mut self.means {
            Some(means) => all.ema(means),
            None => all,
        }
    }

    fn meets(&mut self, event: &Event, computed: &mut Computed) -> Result<()> {
        match *event {
            Event::Step(parts, seed) => self.step(parts, seed, computed),
            Event::Freeze(seed) => {
                let mut rng = Rng::new(seed, &["freeze"]);
                let mut all = self.model.parameters().into_iter();
                all.try_for_each(|(_, p)| p.set_requires_grad(!rng.one_in(3)))
            }
            Event::Look => self.look(computed),
            Event::Copy => self.go_on_with_a_copy(),
        }
    }

    fn step(&mut self, parts: usize, seed: u64, computed: &mut Computed) -> Result<()> {
        let mut rng = Rng::new(seed, &["step"]);
        let smooth = self.run.samples != Samples::Words && rng.one_in(5);
        let mut sum: Option<Gradients> = None;
        for _ in 0..parts {
            let batch = self.loader.next_batch()?.remove(0);
            let loss = match smooth {
                true => self.smooth_loss(&batch)?,
                false => self.model.loss(&batch)?,
            };
            self.add(computed, &format!("loss {}", self.steps), &loss)?;
            if !loss.is_tracked() {
                return Ok(());
            }
            let gradients = match &self.scale {
                Some(scale) => scale.scaled(&loss)?.backward()?,
                None => loss.backward()?,
            };
            match &mut sum {
                Some(sum) => sum.accumulate(gradients)?,
                None => sum = Some(gradients),
            }
        }
        let Some(mut gradients) = sum else {
            return Ok(());
        };
        if let Some(scale) = &mut self.scale
            && !scale.unscale(&mut gradients)?
        {
            return Ok(());
        }
        gradients.scale(1.0 / parts as f64)?;
        match rng.below(6) {
            0 => drop(gradients.clip_norm(0.5)?),
            1 => drop(gradients.clip_norm(ClipNorm::new(0.5).order(f64::INFINITY))?),
            2 => drop(gradients.clip_norm(ClipNorm::new(0.5).order(1.0))?),
            3 => gradients.clip_value(0.05)?,
            _ => {}
        }
        for optimizer in &mut self.optimizers {
            optimizer.step(&gradients)?;
            optimizer.set_learning_rate(0.9 * optimizer.learning_rate());
        }
        if let Some(means) = &mut self.means {
            means.update()?;
        }
        self.steps += 1;
        Ok(())
    }

    /// A loss with how much it changes with the batch.
    fn smooth_loss(&self, batch: &ShardTensor) -> Result<ShardTensor> {
        let batch = batch.detach().requires_grad()?;
        let loss = self.model.loss(&batch)?;
        let slope = loss.grad(&[&batch], true)?.remove(0);
        let Some(slope) = slope else {
            return Ok(loss);
        };
        let size = slope.square()?.mean_all()?.mul_scalar(0.1)?;
        loss.add(&size.to_mesh(&loss.mesh(), Placements::replicated())?)
    }

    /// What the model finds where it does not train, and by the means of its weights.
    fn look(&mut self, computed: &mut Computed) -> Result<()> {
        let batch = self.loader.next_batch()?.remove(0);
        let ctx = batch.context().clone();
        self.model.eval();
        let forward = || ctx.no_grad(|| self.model.forward(&batch));
        let found = forward()?;
        let by_means = match &mut self.means {
            Some(means) => Some(means.applied(forward)?),
            None => None,
        };
        self.add(computed, "look", &found)?;
        if let Some(found) = by_means {
            self.add(computed, "look by means", &found)?;
        }
        self.model.train(true);
        Ok(())
    }

    fn go_on_with_a_copy(&mut self) -> Result<()> {
        let model = self.model.copied()?;
        let mut optimizers = optimizers(model.parameters(), self.run.seed)?;
        for (new, old) in optimizers.iter_mut().zip(&self.optimizers) {
            new.load_state(&old.state()?)?;
        }
        if let Some(means) = &mut self.means {
            let state = means.state()?;
            *means = match Rng::new(self.run.seed, &["means"]).below(3) {
                0 => Ema::new(&model, 0.8)?,
                _ => Ema::alike(&model),
            };
            means.load_state(&state)?;
        }
        (self.model, self.optimizers) = (model, optimizers);
        Ok(())
    }

    fn all(&self, computed: &mut Computed) -> Result<()> {
        for (name, x) in self.model.parameters().iter().chain(&self.model.buffers()) {
            self.add(computed, name, x)?;
        }
        for (name, mean) in self.means.iter().flat_map(Ema::means) {
            self.add(computed, &format!("mean of {name}"), &mean)?;
        }
        Ok(())
    }

    /// Adds a tensor, which all ranks hear of.
    fn add(&self, computed: &mut Computed, name: &str, x: &ShardTensor) -> Result<()> {
        let everywhere = x
            .detach()
            .to_mesh(&self.meshes.all, Placements::replicated())?;
        computed.add(name, &everywhere)
    }
}

/// Batches of the samples, which lie as they may.
fn loader(run: &TrainingRun, stay: &Stay, mesh: &Mesh, sizes: &Sizes) -> Result<Loader> {
    let (mut fixed, mut rng) = (
        Rng::new(run.seed, &["loader"]),
        Rng::new(stay.seed, &["loader"]),
    );
    let loader = Loader::new(mesh, sizes.batch)?;
    let mut shape = vec![sizes.samples];
    shape.extend(&sizes.shape);
    let loader = match run.samples {
        Samples::Words => {
            shape.pop();
            let words = numbers(&shape, |i| {
                integer(run.seed, i).abs() as i64 % sizes.words as i64
            });
            loader.source_array(&words, placements(mesh, &shape, &mut rng))?
        }
        _ => {
            let values = numbers(&shape, |i| integer(run.seed, i) / 9.0);
            loader.source_array(&values, placements(mesh, &shape, &mut rng))?
        }
    };
    Ok(loader.shuffle(fixed.one_in(2)).drop_last(fixed.one_in(2)))
}

fn numbers<T>(shape: &[usize], f: impl Fn(usize) -> T) -> ArrayD<T> {
    let mut at = 0;
    ArrayD::from_shape_simple_fn(IxDyn(shape), || {
        at += 1;
        f(at)
    })
}

fn placements(mesh: &Mesh, shape: &[usize], rng: &mut Rng) -> Placements {
    let axes = ["a", "b", "c"].into_iter().take(mesh.mesh().ndim());
    let axes: Vec<(&str, AxisPlacement)> = axes
        .map(|axis| {
            let dim = rng.below(shape.len());
            let placement = match rng.below(6) {
                0 => replicate(),
                1 => shard(dim).even(),
                2 => shard(dim).zigzag(),
                3 => shard(dim).striped(),
                _ => shard(dim),
            };
            (axis, placement)
        })
        .collect();
    axes.into()
}
