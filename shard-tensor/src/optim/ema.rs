//! A mean of a model's weights over its training.

use super::slots::{apply, check_in_use, tensor_like, whole};
use crate::nn::{ModelExt, Tree};
use crate::{Error, Result, ShardTensor, State, StateNumber, Stateful};
use shard_comm::Calling;
use shard_ops::Value;
use shard_ops::optimize::Update;
use std::collections::BTreeSet;

/// A mean of a model's parameters that follows them slowly: in every update `mean = keep * mean + (1 - keep) * parameter`. It
/// begins as the parameters are when it is made. Buffers have no mean.
///
/// This is `torch.optim.swa_utils.AveragedModel` with `get_ema_avg_fn(keep)` from its second update on: PyTorch's first update copies
/// the parameters, and forgets what they were before. For PyTorch's numbers, make it where that first update would be.
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Module};
/// use shard_tensor::optim::{Ema, Optimizer, Sgd};
/// use shard_tensor::{launch, shard};
///
/// let losses = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let model = Linear::new(&mesh, 4, 1)?;
///     let x = mesh.randn([6, 4], shard(0))?;
///     let loss = || model.forward(&x)?.square()?.mean_all();
///     let mut sgd = Sgd::new(model.parameters(), 0.1)?;
///     let mut ema = Ema::new(&model, 0.9)?;
///     for _ in 0..5 {
///         sgd.step(&loss()?.backward()?)?;
///         ema.update()?;
///     }
///     // Where the means take the parameters' places, the model lags behind.
///     Ok((loss()?.item()?, ema.applied(|| loss()?.item())?, loss()?.item()?))
/// })?;
/// let (own, mean, again) = losses[0];
/// assert!(own < mean && own == again);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ema {
    slots: Vec<(String, ShardTensor, Value)>,
    /// What a mean keeps per update; all updates count alike if nothing is said.
    keep: Option<f64>,
    updates: u64,
}

impl Ema {
    /// Of a model's parameters, of which each mean keeps this share per update. One that has several names, as a tied weight, has
    /// one mean, under its first name.
    ///
    /// # Collective
    /// All members of the parameters' meshes. No communication, and no memory before the first update.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a share that is not from 0 to 1.
    #[track_caller]
    pub fn new(model: &(impl Tree + ?Sized), keep: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&keep) {
            return Err(Error::argument(
                "Ema",
                "a share from 0 to 1",
                keep.to_string(),
                "give the share that stays, as 0.999",
            ));
        }
        Ok(Self::of(model, Some(keep)))
    }

    /// The mean in which all updates count alike, as `AveragedModel` without more: stochastic weight averaging (Izmailov and others, 2018).
    /// The first update copies the parameters.
    ///
    /// ```
    /// use shard_tensor::{launch, optim::Ema, replicate};
    /// let mean = launch(2, |ctx| {
    ///     let w = ctx.mesh_of(2)?.zeros([3], replicate())?.requires_grad()?;
    ///     let mut mean = Ema::alike(&w);
    ///     for value in [1.0, 2.0, 6.0] {
    ///         w.set(&w.full_like(value)?)?;
    ///         mean.update()?;
    ///     }
    ///     mean.applied(|| w.mean_all()?.item())
    /// })?;
    /// assert!((mean[0] - 3.0).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`new`](Self::new).
    pub fn alike(model: &(impl Tree + ?Sized)) -> Self {
        Self::of(model, None)
    }

    fn of(model: &(impl Tree + ?Sized), keep: Option<f64>) -> Self {
        // A second mean of a tied weight would be exchanged with the first.
        let mut seen = BTreeSet::new();
        let mut slots = Vec::new();
        for (name, parameter) in model.parameters() {
            if seen.insert(parameter.context().tape().id(&parameter.value())) {
                let mean = parameter.value().detach();
                slots.push((name, parameter, mean));
            }
        }
        Self {
            slots,
            keep,
            updates: 0,
        }
    }

    /// Lets the means follow the parameters, as after a step.
    ///
    /// # Collective
    /// All members of the parameters' meshes. No communication: one pass over each parameter.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a parameter that was replaced since, as [`place`](ModelExt::place) does, and has not
    /// changed since then; what the device reports.
    #[track_caller]
    pub fn update(&mut self) -> Result<()> {
        let _call = Calling::of("update");
        self.check_in_use("update")?;
        let before = self.updates as f64;
        let keep = self.keep.unwrap_or(before / (before + 1.0));
        let step = Update::Average { keep };
        for (_, parameter, mean) in &mut self.slots {
            let new = apply(parameter, step, mean, &parameter.value(), &[])?;
            if let Some(new) = new.into_iter().next() {
                *mean = new;
            }
        }
        self.updates = self.updates.saturating_add(1);
        Ok(())
    }

    /// Exchanges the parameters' values and the means. A second time undoes it.
    ///
    /// # Collective
    /// All members of the parameters' meshes. No communication, and no copy.
    ///
    /// # Errors
    /// As [`update`](Self::update); what [`set`](ShardTensor::set) reports.
    #[track_caller]
    pub fn swap(&mut self) -> Result<()> {
        let _call = Calling::of("swap");
        self.check_in_use("swap")?;
        for (_, parameter, mean) in &mut self.slots {
            let own = parameter.value().detach();
            parameter.set(&parameter.lift(mean.clone()))?;
            *mean = own;
        }
        Ok(())
    }

    #[track_caller]
    fn check_in_use(&self, op: &'static str) -> Result<()> {
        for (name, parameter, _) in &self.slots {
            check_in_use(op, "the mean", name, parameter)?;
        }
        Ok(())
    }

    /// What a function gives while the parameters have the means for values, as a validation.
    ///
    /// # Collective
    /// As [`swap`](Self::swap), and what the function does.
    ///
    /// # Errors
    /// What the function reports; the parameters have their own values again then, too, and if it panics.
    #[track_caller]
    pub fn applied<T>(&mut self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.swap()?;
        let mut lent = Lent(Some(self));
        let given = f();
        if let Some(ema) = lent.0.take() {
            ema.swap()?;
        }
        given
    }

    /// The means, by the names of their parameters.
    pub fn means(&self) -> Vec<(String, ShardTensor)> {
        let mean = |(name, parameter, mean): &(String, ShardTensor, Value)| {
            (name.clone(), parameter.lift(mean.clone()))
        };
        self.slots.iter().map(mean).collect()
    }
}

/// Parameters that have the means for values, and get their own back if what runs meanwhile panics.
struct Lent<'a>(Option<&'a mut Ema>);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(ema) = self.0.take() {
            // Nobody hears of an error while a panic is on its way.
            let _ = ema.swap();
        }
    }
}

/// Its tensors are `mean.` and the names of the parameters, its number is `updates`.
impl Stateful for Ema {
    fn state(&self) -> Result<State> {
        let means = self.means().into_iter();
        Ok(State {
            tensors: means
                .map(|(name, mean)| (format!("mean.{name}"), mean))
                .collect(),
            numbers: vec![("updates".to_owned(), StateNumber::Whole(self.updates))],
        })
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        let updates = whole(state, "updates")?;
        let means = self.slots.iter().map(|(name, parameter, _)| {
            let mean = tensor_like(state, &format!("mean.{name}"), parameter)?;
            Ok(mean.value().detach())
        });
        let means = means.collect::<Result<Vec<_>>>()?;
        for (slot, mean) in self.slots.iter_mut().zip(means) {
            slot.2 = mean;
        }
        self.updates = updates;
        Ok(())
    }
}
