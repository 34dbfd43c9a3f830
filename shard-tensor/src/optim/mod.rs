//! Optimizers: one local update per parameter, no communication; and what goes with them. [`Lbfgs`], which compares vectors over ranks,
//! [`Muon`], which multiplies matrices, and [`Adafactor`], which sums squares, do communicate.
//!
//! A parameter and its gradient have the same layout, so every rank updates its own piece; replicas have equal
//! pieces and compute equal updates, which [`check_replicas`] checks. Formulas and defaults are PyTorch's.
//!
//! ```
//! use shard_tensor::nn::{Linear, ModelExt, Module};
//! use shard_tensor::optim::{AdamW, Cosine, Optimizer, Schedule};
//! use shard_tensor::{launch, shard};
//!
//! let losses = launch(2, |ctx| {
//!     let mesh = ctx.mesh_of(2)?;
//!     let model = Linear::new(&mesh, 4, 1)?;
//!     let (x, y) = (mesh.randn([9, 4], shard(0))?, mesh.randn([9, 1], shard(0))?);
//!     let mut adam = AdamW::new(model.parameters(), 1e-2)?
//!         .group(|name| name.ends_with("bias"), |options| options.weight_decay(0.0))?;
//!     let rates = Cosine::new(1e-2, 20).warmup(5);
//!     let mut losses = Vec::new();
//!     for step in 0..20 {
//!         let loss = model.forward(&x)?.mse_loss(&y)?;
//!         let mut gradients = loss.backward()?;
//!         gradients.clip_norm(1.0)?;
//!         adam.set_learning_rate(rates.at(step));
//!         adam.step(&gradients)?;
//!         losses.push(loss.item()?);
//!     }
//!     Ok(losses)
//! })?;
//! assert!(losses[0][19] < losses[0][0]);
//! # Ok::<(), shard_tensor::Error>(())
//! ```

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod asgd;
mod ema;
mod lbfgs;
mod lion;
mod loss_scale;
mod muon;
mod nadam;
mod options;
mod radam;
mod replicas;
mod rms_prop;
mod rprop;
mod schedules;
mod sgd;
mod slots;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adafactor::{Adafactor, AdafactorOptions};
pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions, AdamW, AdamWOptions};
pub use adamax::{Adamax, AdamaxOptions};
pub use asgd::{Asgd, AsgdOptions};
pub use ema::Ema;
pub use lbfgs::Lbfgs;
pub use lion::{Lion, LionOptions};
pub use loss_scale::LossScale;
pub use muon::{Muon, MuonOptions, MuonScale};
pub use nadam::{NAdam, NAdamOptions};
pub use radam::{RAdam, RAdamOptions};
pub use replicas::check_replicas;
pub use rms_prop::{RmsProp, RmsPropOptions};
pub use rprop::{Rprop, RpropOptions};
pub use schedules::{
    Constant, Cosine, Exponential, Lambda, LinearRate, Milestones, OneCycle, Plateau, Polynomial,
    Schedule, StepDecay, Then, Warmup,
};
pub use sgd::{Sgd, SgdOptions};

use crate::{Gradients, Result, State, Stateful};

/// Changes parameters along their gradients.
///
/// What it keeps of a parameter is laid out as the parameter, and as [`Stateful`] has the parameter's name behind its own, as
/// `exp_avg.head.weight`; the numbers are `learning_rate`, and for every parameter its `step`. Options are the program's,
/// and in no state. Parameters of one name cannot be told apart in a state, and are an error there.
///
/// # Copies
/// A clone of an optimizer changes the same parameters, and remembers on its own: the point to go back to, with
/// [states](crate::Stateful) or copies of the parameters. An optimizer of a model's [copy](crate::nn::ModelExt::copied) that goes on as the model's
/// does, as of each member of a population, is made by [`with_parameters`](AdamW::with_parameters):
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Module};
/// use shard_tensor::optim::{AdamW, Optimizer};
/// use shard_tensor::{Stateful, launch, shard};
///
/// let losses = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let (x, y) = (mesh.randn([9, 4], shard(0))?, mesh.randn([9, 1], shard(0))?);
///     let step = |model: &Linear, adam: &mut AdamW| {
///         let loss = model.forward(&x)?.mse_loss(&y)?;
///         adam.step(&loss.backward()?)?;
///         loss.item()
///     };
///     let mut model = Linear::new(&mesh, 4, 1)?;
///     let mut adam = AdamW::new(model.parameters(), 1e-2)?;
///     step(&model, &mut adam)?;
///
///     // Two members that go on from one.
///     let (other, own) = (model.copied()?, adam.clone());
///     let mut its = adam.with_parameters(other.parameters())?;
///     its.set_learning_rate(1e-1);
///     let (before, mut losses) = (model.state()?, Vec::new());
///     for _ in 0..3 {
///         losses.push([step(&model, &mut adam)?, step(&other, &mut its)?]);
///     }
///
///     // Back to where they parted.
///     model.load_state(&before)?;
///     adam = own;
///     for [first, _] in &losses {
///         assert_eq!(step(&model, &mut adam)?, *first);
///     }
///     Ok(losses)
/// })?;
/// assert_eq!(losses[0][0][0], losses[0][0][1]);
/// assert_ne!(losses[0][2][0], losses[0][2][1]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # An optimizer of your own
/// is ops on tensors, whatever their layout, and what it keeps of them:
///
/// ```
/// use shard_tensor::nn::Parameters;
/// use shard_tensor::optim::Optimizer;
/// use shard_tensor::{Gradients, Result, ShardTensor, State, Stateful, launch, shard};
///
/// /// Steps of one length for each parameter, along its momentum.
/// struct Normed {
///     rate: f64,
///     parameters: Parameters,
///     momenta: Vec<ShardTensor>,
/// }
///
/// impl Optimizer for Normed {
///     fn step(&mut self, gradients: &Gradients) -> Result<()> {
///         for ((_, p), momentum) in self.parameters.iter().zip(&mut self.momenta) {
///             let Some(g) = gradients.get(p)? else { continue };
///             p.context().no_grad(|| {
///                 *momentum = momentum.mul_scalar(0.9)?.add(&g)?;
///                 let along = momentum.normalize(2.0, .., 1e-12)?;
///                 p.set(&p.sub(&along.mul_scalar(self.rate)?)?)
///             })?;
///         }
///         Ok(())
///     }
///
///     fn learning_rate(&self) -> f64 {
///         self.rate
///     }
///
///     fn set_learning_rate(&mut self, rate: f64) {
///         self.rate = rate;
///     }
/// }
///
/// /// For checkpoints: momenta under the names of their parameters.
/// impl Stateful for Normed {
///     fn state(&self) -> Result<State> {
///         let names = self.parameters.iter().map(|(name, _)| format!("momentum.{name}"));
///         Ok(State { tensors: names.zip(self.momenta.iter().cloned()).collect(), numbers: Vec::new() })
///     }
///
///     fn load_state(&mut self, state: &State) -> Result<()> {
///         self.momenta = state.tensors.iter().map(|(_, momentum)| momentum.clone()).collect();
///         Ok(())
///     }
/// }
///
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([4], shard(0))?.requires_grad()?;
///     let (parameters, momenta) = (vec![("w".to_owned(), w.clone())], vec![w.zeros_like()?]);
///     let mut optimizer = Normed { rate: 0.5, parameters, momenta };
///     optimizer.step(&w.square()?.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - 0.75).abs() < 1e-6); // half a step of one in each of four elements
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub trait Optimizer: Stateful {
    /// One step. Parameters without a gradient stay as they are.
    ///
    /// # Collective
    /// All ranks of the program: sums over ranks that are outstanding in the gradients are taken here. Nothing else moves.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) for options that make no sense, as a rate below 0, for gradients of which none
    /// is one of its parameters', and for a parameter without a gradient that [`place`](crate::nn::ModelExt::place) and its like
    /// have replaced in its model; no parameter is changed then. What the communicator or the device reports.
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The learning rate.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate, as schedules do. Parameters with a rate of their own keep its ratio to this one.
    fn set_learning_rate(&mut self, rate: f64);
}

/// An optimizer that is chosen while the program runs.
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt};
/// use shard_tensor::optim::{AdamW, Optimizer, Sgd};
/// use shard_tensor::{Result, checkpoint::Checkpoint, launch};
/// let path = std::env::temp_dir().join("shard-tensor-chosen.safetensors");
/// launch(2, |ctx| {
///     let mut model = Linear::new(&ctx.mesh_of(2)?, 4, 1)?;
///     let mut optimizer: Box<dyn Optimizer> = match "adam" {
///         "adam" => Box::new(AdamW::new(model.parameters(), 1e-3)?),
///         _ => Box::new(Sgd::new(model.parameters(), 0.1)?),
///     };
///     optimizer.step(&model.weight.square()?.sum_all()?.backward()?)?;
///     Checkpoint::new().model(&mut model).optimizer(&mut optimizer).save(&path)
/// })?;
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shard_tensor::Error>(())
/// ```
impl Optimizer for Box<dyn Optimizer> {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        (**self).step(gradients)
    }

    fn learning_rate(&self) -> f64 {
        (**self).learning_rate()
    }

    fn set_learning_rate(&mut self, rate: f64) {
        (**self).set_learning_rate(rate);
    }
}

impl Stateful for Box<dyn Optimizer> {
    fn state(&self) -> Result<State> {
        (**self).state()
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        (**self).load_state(state)
    }
}
