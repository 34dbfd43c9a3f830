//! All that a training is made of, in one file.

use super::{Saving, load_state, saving};
use crate::{Context, Error, Result, State, Stateful};
use shard_comm::Calling;
use std::path::Path;

/// What is saved together, so that a program that starts anew goes on as if it had not stopped.
///
/// ```
/// use shard_tensor::{Launch, DType, checkpoint::Checkpoint, nn::Linear, prelude::*};
/// # use shard_tensor::{ShardTensor, State, StateNumber, Stateful};
/// # struct Rate(f64);
/// # impl Stateful for Rate {
/// #     fn state(&self) -> Result<State> { Ok(State { numbers: vec![("rate".into(), StateNumber::Real(self.0))], ..State::default() }) }
/// #     fn load_state(&mut self, s: &State) -> Result<()> { if let Some(StateNumber::Real(r)) = s.number("rate") { self.0 = r } Ok(()) }
/// # }
/// let path = std::env::temp_dir().join("shard-tensor-job-doc.safetensors");
/// let train = |ranks, from: u64, to: u64| {
///     Launch::new(ranks).dtype(DType::F64).run(|ctx| {
///         let mesh = ctx.mesh_of(ranks)?;
///         let mut model = Linear::new(&mesh, 3, 1)?;
///         let mut rate = Rate(0.1); // a schedule, an optimizer, a loader: anything `Stateful`
///         let mut step = 0;
///         let mut job = Checkpoint::new().model(&mut model).schedule(&mut rate).step(&mut step).rng(ctx);
///         if from > 0 {
///             job.load(&path)?;
///         }
///         let mut loss = 0.0;
///         while step < to {
///             let error = model.forward(&mesh.randn([8, 3], shard(0))?)?.square()?.mean_all()?;
///             Sgd::new(model.parameters(), rate.0)?.step(&error.backward()?)?;
///             (loss, rate.0, step) = (error.item()?, rate.0 * 0.9, step + 1);
///         }
///         Checkpoint::new().model(&mut model).schedule(&mut rate).step(&mut step).rng(ctx).save(&path)?;
///         Ok(loss)
///     })
/// };
/// let whole = train(2, 0, 6)?[0];
/// train(2, 0, 3)?;
/// assert_eq!(train(2, 3, 6)?[0], whole);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct Checkpoint<'a> {
    parts: Vec<(String, Part<'a>)>,
    ctx: Option<Context>,
}

enum Part<'a> {
    Lent(&'a mut dyn Stateful),
    Context(Context),
}

impl Part<'_> {
    fn get(&self) -> &dyn Stateful {
        match self {
            Self::Lent(part) => &**part,
            Self::Context(ctx) => ctx,
        }
    }

    fn get_mut(&mut self) -> &mut dyn Stateful {
        match self {
            Self::Lent(part) => &mut **part,
            Self::Context(ctx) => ctx,
        }
    }
}

/// What is in it.
impl<'a> Checkpoint<'a> {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The model, as `model`.
    #[must_use]
    pub fn model(self, model: &'a mut impl Stateful) -> Self {
        self.with("model", model)
    }

    /// The optimizer, as `optimizer`.
    #[must_use]
    pub fn optimizer(self, optimizer: &'a mut impl Stateful) -> Self {
        self.with("optimizer", optimizer)
    }

    /// The schedule of the learning rate, as `schedule`.
    #[must_use]
    pub fn schedule(self, schedule: &'a mut impl Stateful) -> Self {
        self.with("schedule", schedule)
    }

    /// The running mean of the weights, as `ema`.
    #[must_use]
    pub fn ema(self, ema: &'a mut impl Stateful) -> Self {
        self.with("ema", ema)
    }

    /// The place in the data, as `data`.
    #[must_use]
    pub fn data(self, loader: &'a mut impl Stateful) -> Self {
        self.with("data", loader)
    }

    /// How many steps were done, as `step`.
    #[must_use]
    pub fn step(self, step: &'a mut u64) -> Self {
        self.with("step", step)
    }

    /// The context's random numbers, as `rng`: their seed, and how many tensors were drawn.
    #[must_use]
    pub fn rng(mut self, ctx: &Context) -> Self {
        self.parts
            .push(("rng".to_owned(), Part::Context(ctx.clone())));
        self.ctx = Some(ctx.clone());
        self
    }

    /// Anything else, under a name of its own. An empty name puts nothing in front of the names in it: that is how a model
    /// takes up weights that another program has saved.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, part: &'a mut impl Stateful) -> Self {
        self.parts.push((name.into(), Part::Lent(part)));
        self
    }
}

/// Putting it down and taking it up.
impl Checkpoint<'_> {
    /// Writes everything to one file. A tensor's name begins with that of its part, as in `model.head.weight`; numbers are
    /// remarks of the file, to the last bit.
    ///
    /// # Collective
    /// As [`save`](super::save).
    ///
    /// # Errors
    /// As [`save`](super::save); [`Argument`](Error::Argument) if there is neither a tensor nor [`rng`](Self::rng) in it; what
    /// the parts report.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let _call = Calling::of("save");
        let (ctx, all) = self.all(SAVE, &self.states()?)?;
        saving::begin(SAVE, &ctx, path.as_ref(), &all)?.now()
    }

    /// As [`save`](Self::save), on a thread, while the program goes on: what is saved is what everything is now. Tensors are
    /// values, so nothing is copied for that; but what replaces them while the file is written takes memory of its own, at most
    /// as much again as what is saved.
    ///
    /// # Collective
    /// As [`save`](Self::save). The file is there after [`Saving::wait`].
    ///
    /// # Errors
    /// As [`save`](Self::save); what goes wrong with writing is told by [`Saving::wait`].
    #[track_caller]
    pub fn start_save(&self, path: impl AsRef<Path>) -> Result<Saving> {
        let _call = Calling::of("start_save");
        let (ctx, all) = self.all(SAVE, &self.states()?)?;
        saving::begin(SAVE, &ctx, path.as_ref(), &all)?.meanwhile()
    }

    /// Reads everything, whatever mesh, layout and number of ranks it was saved with. What else is in the file is ignored.
    ///
    /// # Collective
    /// As [`load`](super::load): every rank reads its pieces and no more. Until the last part has taken its state up, both the
    /// old and the new values are held.
    ///
    /// # Errors
    /// As [`load`](super::load), and [`save`](Self::save). Nothing is changed then.
    #[track_caller]
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let _call = Calling::of("load");
        const OP: &str = "Checkpoint::load";
        let before = self.states()?;
        let (ctx, all) = self.all(OP, &before)?;
        let found = load_state(OP, &ctx, path.as_ref(), &all)?;
        drop(all);
        let (mut tensors, mut numbers) = (found.tensors.into_iter(), found.numbers.into_iter());
        for (at, old) in before.iter().enumerate() {
            // What was read is in the order of what was asked for, and is known to its part by the part's own names.
            let new = State {
                tensors: renamed(&old.tensors, &mut tensors),
                numbers: renamed(&old.numbers, &mut numbers),
            };
            if let Err(error) = self.parts[at].1.get_mut().load_state(&new) {
                for ((_, part), old) in self.parts[..at].iter_mut().zip(&before) {
                    part.get_mut().load_state(old)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn states(&self) -> Result<Vec<State>> {
        self.parts
            .iter()
            .map(|(_, part)| part.get().state())
            .collect()
    }

    /// The states of all parts as one, under the parts' names.
    #[track_caller]
    fn all(&self, op: &'static str, states: &[State]) -> Result<(Context, State)> {
        let mut all = State::default();
        for ((part, _), State { tensors, numbers }) in self.parts.iter().zip(states) {
            all.tensors.extend(within(part, tensors));
            all.numbers.extend(within(part, numbers));
        }
        let first = all.tensors.first().map(|(_, t)| t.context().clone());
        match self.ctx.clone().or(first) {
            Some(ctx) => Ok((ctx, all)),
            None => Err(Error::argument(
                op,
                "something with tensors, or the context",
                format!("{} parts without", self.parts.len()),
                "add the model, or `rng(ctx)`",
            )),
        }
    }
}

const SAVE: &str = "Checkpoint::save";

/// What a part lists, under names that begin with the part's.
fn within<T: Clone>(part: &str, named: &[(String, T)]) -> impl Iterator<Item = (String, T)> {
    let part = part.to_owned();
    let joined = move |rest: &str| match (part.is_empty(), rest.is_empty()) {
        (true, _) => rest.to_owned(),
        (_, true) => part.clone(),
        _ => format!("{part}.{rest}"),
    };
    named
        .iter()
        .map(move |(rest, value)| (joined(rest), value.clone()))
}

/// The values that come next, under the names that these have.
fn renamed<A, B>(
    names: &[(String, A)],
    values: &mut impl Iterator<Item = (String, B)>,
) -> Vec<(String, B)> {
    let pairs = names.iter().zip(values.by_ref().take(names.len()));
    pairs
        .map(|((name, _), (_, value))| (name.clone(), value))
        .collect()
}

impl std::fmt::Debug for Checkpoint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.parts.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}
