//! Batches of samples, in an order of their own.

use super::batches::{Cuts, Feed, Plan, Share, beyond_memory};
use super::order::{Weights, shuffled};
use super::source::agreed;
use super::{DataError, Npy, Source, npy_bytes};
use crate::mesh::check_whole;
use crate::{Error, Mesh, Placements, Result, ShardTensor, State, StateNumber, Stateful};
use ndarray::{ArrayRef, Dimension};
use shard_comm::{Call, Calling, Element};
use shard_ops::{Value, key_of};
use shard_redistribute::Array;
use shard_spec::Layout;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

const OP: &str = "Loader";

/// Makes batches of the samples of sources that lie side by side, as inputs and targets do: what is at one index of their
/// first dims belongs together.
///
/// A batch is laid out as the placements say, dim 0 being the batch, so a rank reads the boxes it has of the samples it has
/// and no more. Which samples are in a batch depends on the seed, the epoch and the batch's size, and not on ranks and
/// layouts. The next batches are read on a thread meanwhile.
///
/// Its place in the data is [`Stateful`]: a [`Checkpoint`](crate::checkpoint::Checkpoint) keeps it, and after loading one the
/// next batch is the one that would have come.
///
/// ```
/// use shard_tensor::data::{DataError, Loader, Npy, npy_bytes};
/// use shard_tensor::{launch, shard};
/// let file = |rows: usize| -> Result<Npy, DataError> {
///     let rows = ndarray::Array2::from_shape_fn((rows, 3), |(i, j)| (3 * i + j) as f32);
///     Npy::from_bytes(npy_bytes(&rows).map_err(DataError::other)?)
/// };
/// let seen = launch(2, |ctx| {
///     let mesh = ctx.mesh([("data", 2)])?;
///     let mut loader = Loader::new(&mesh, 4)?
///         .source(("data", shard(0)), || file(10))?
///         .source(("data", shard(0)), || file(10))?
///         .shuffle(true);
///     let mut sums = Vec::new();
///     for batch in loader.epoch()? {
///         let [x, y] = &batch?[..] else { unreachable!("two sources") };
///         sums.push((x.shape()[0], x.sub(y)?.sum_all()?.item()?));
///     }
///     Ok(sums)
/// })?;
/// assert_eq!(seen[0], [(4, 0.0), (4, 0.0), (2, 0.0)]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub struct Loader {
    mesh: Mesh,
    batch: usize,
    sources: Vec<(Arc<dyn Source>, Placements)>,
    /// The samples that are used; `None` for all.
    chosen: Option<Chosen>,
    /// How probable each of them is, if they are drawn.
    weights: Option<Weights>,
    shuffle: bool,
    drop_last: bool,
    ahead: usize,
    /// Which loader it is: the first seed, which no other has.
    id: u64,
    seed: u64,
    epoch: u64,
    /// Samples of this epoch that were given out.
    given: u64,
    feed: Option<Feed>,
}

/// Some of the samples.
#[derive(Clone, Debug)]
enum Chosen {
    Range(Range<usize>),
    /// A list, and a key of all of it, for ranks to compare.
    List(Vec<usize>, u128),
}

impl Chosen {
    fn list(list: Vec<usize>) -> Self {
        let key = key_of("samples_of", &list);
        Self::List(list, key)
    }

    fn key(&self) -> u128 {
        match self {
            Self::Range(range) => key_of("samples", range),
            Self::List(_, key) => *key,
        }
    }
}

/// What a loader does.
impl Loader {
    /// A loader of batches of this many samples, in the order of the sources, with a smaller batch at the end if there are
    /// samples left, that reads one batch ahead.
    ///
    /// # Collective
    /// All ranks of the program: it draws a seed, as a random tensor does its numbers. So what is drawn after it is other than
    /// without it.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for batches of nothing.
    #[track_caller]
    pub fn new(mesh: &Mesh, batch: usize) -> Result<Self> {
        if batch == 0 {
            return Err(Error::argument(
                OP,
                "batches of one sample or more",
                "0",
                "make them larger",
            ));
        }
        let [a, b, ..] = mesh.context().next_stream().words(0);
        let seed = u64::from(a) << 32 | u64::from(b);
        Ok(Self {
            mesh: mesh.clone(),
            batch,
            sources: Vec::new(),
            chosen: None,
            weights: None,
            shuffle: false,
            drop_last: false,
            ahead: 1,
            id: seed,
            seed,
            epoch: 0,
            given: 0,
            feed: None,
        })
    }

    /// Adds a source. Its first dim is the samples; `placements` are those of a batch.
    ///
    /// # Collective
    /// All ranks of the program, with sources and placements that are alike, which is checked by types and shapes.
    ///
    /// # Errors
    /// An agreed error if a rank cannot open it; a mismatch if ranks see different ones; [`Argument`](Error::Argument) for a
    /// source without dims, or with more or fewer samples than those before; as [`Placements::layout`].
    #[track_caller]
    pub fn source<S: Source + 'static>(
        mut self,
        placements: impl Into<Placements>,
        open: impl FnOnce() -> Result<S, DataError>,
    ) -> Result<Self> {
        let _call = Calling::of("source");
        let source = agreed(OP, &self.mesh, open())?;
        let (dtype, shape, placements) =
            (source.dtype(), source.shape().to_vec(), placements.into());
        let samples = self.sources.first().map(|(s, _)| s.shape()[0]);
        let fits = match (shape.first(), samples) {
            (None, _) => Err("no dims".to_owned()),
            (Some(&n), Some(m)) if n != m => Err(format!("{n} samples after {m}")),
            _ => Ok(()),
        };
        let refuse = |got| {
            Error::argument(
                OP,
                "as many samples in every source",
                got,
                "give sources side by side",
            )
        };
        let layout = fits
            .map_err(refuse)
            .and_then(|()| self.layout_of(&shape, &placements, self.batch));
        let words = |layout: &Layout| format!("{dtype} {shape:?} {layout}");
        self.mesh.context().uniform(OP, layout, words)?;
        self.sources.push((Arc::new(source), placements));
        self.feed = None;
        Ok(self)
    }

    /// [Adds](Self::source) an array that every rank has in memory, the same on all of them.
    ///
    /// ```
    /// use ndarray::{Array1, Array2};
    /// use shard_tensor::{data::Loader, launch, shard};
    /// let (x, y) = (Array2::<f32>::zeros((10, 3)), Array1::from_iter(0..10_i64));
    /// let sums = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let loader = Loader::new(&mesh, 4)?.source_array(&x, shard(0))?.source_array(&y, shard(0))?;
    ///     let batch = loader.shuffle(true).drop_last(true).next_batch()?;
    ///     assert_eq!((batch[0].shape(), batch[1].shape()), (&[4, 3][..], &[4][..]));
    ///     batch[0].sum_all()?.item()
    /// })?;
    /// assert_eq!(sums, [0.0; 2]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`source`](Self::source). Each rank keeps a copy of the whole array; nothing moves.
    ///
    /// # Errors
    /// As [`source`](Self::source); an agreed error for `bf16`, which NumPy does not know.
    #[track_caller]
    pub fn source_array<T: Element, D: Dimension>(
        self,
        array: &ArrayRef<T, D>,
        placements: impl Into<Placements>,
    ) -> Result<Self> {
        let bytes = npy_bytes(array).map_err(DataError::other);
        self.source(placements, || Npy::from_bytes(bytes?))
    }

    /// Of all samples these alone, as those to train on. [`epoch`](Self::epoch) refuses a range that the sources do not have.
    #[must_use]
    pub fn samples(mut self, range: Range<usize>) -> Self {
        (self.chosen, self.feed) = (Some(Chosen::Range(range)), None);
        self
    }

    /// Of all samples those of a list alone, in its order and as often as it names them: `Subset` of PyTorch, `SubsetRandomSampler` with
    /// [`shuffle`](Self::shuffle), and `random_split` with the parts of a list in any order. The same list on all ranks.
    /// [`epoch`](Self::epoch) refuses numbers of samples that the sources do not have.
    ///
    /// ```
    /// use shard_tensor::ndarray::Array1;
    /// use shard_tensor::{data::Loader, launch, shard};
    /// let seen = launch(2, |ctx| {
    ///     let numbers = Array1::from_iter(0..10_i64);
    ///     let loader = Loader::new(&ctx.mesh_of(2)?, 3)?.source_array(&numbers, shard(0))?;
    ///     loader.samples_of([7, 0, 7]).next_batch()?[0].to_array::<i64>()
    /// })?;
    /// assert_eq!(seen[0].as_slice(), Some(&[7, 0, 7][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn samples_of(mut self, list: impl Into<Vec<usize>>) -> Self {
        (self.chosen, self.feed) = (Some(Chosen::list(list.into())), None);
        self
    }

    /// Draws so many samples in each epoch, each time any of those that are used, by weights that need not sum to 1: `WeightedRandomSampler` of
    /// PyTorch. What is drawn depends on seed and epoch alone. The same weights on all ranks, one for each sample that is used;
    /// [`epoch`](Self::epoch) refuses others, and such as are below 0, not finite, or all 0.
    ///
    /// ```
    /// use shard_tensor::ndarray::Array1;
    /// use shard_tensor::{data::Loader, launch, shard};
    /// let share = launch(2, |ctx| {
    ///     let classes = Array1::from_iter((0..100_i64).map(|i| i64::from(i < 10))); // a tenth is of class 1
    ///     let weights: Vec<f64> = classes.iter().map(|&class| if class == 1 { 9.0 } else { 1.0 }).collect();
    ///     let loader = Loader::new(&ctx.mesh_of(2)?, 1000)?.source_array(&classes, shard(0))?;
    ///     let batch = loader.weights(weights, 1000).next_batch()?;
    ///     Ok(batch[0].sum_all()?.item()? / 1000.0)
    /// })?;
    /// assert!((share[0] - 0.5).abs() < 0.08);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn weights(mut self, weights: impl Into<Vec<f64>>, draws: usize) -> Self {
        let weights = Weights::new(weights.into(), draws);
        (self.weights, self.feed) = (Some(weights), None);
        self
    }

    /// Whether samples come in an order of each epoch's own. They do not at first. Those that are drawn by [weights](Self::weights) do anyway.
    #[must_use]
    pub fn shuffle(mut self, on: bool) -> Self {
        (self.shuffle, self.feed) = (on, None);
        self
    }

    /// Whether samples that are left at the end of an epoch, and are fewer than a batch, are left out. They are not at first.
    #[must_use]
    pub fn drop_last(mut self, on: bool) -> Self {
        (self.drop_last, self.feed) = (on, None);
        self
    }

    /// How many batches are read before they are asked for; with zero, none, and there is no thread. Each takes memory of the
    /// size of this rank's pieces. No more than 65,536 are, and no more than an epoch has.
    #[must_use]
    pub fn prefetch(mut self, batches: usize) -> Self {
        (self.ahead, self.feed) = (batches, None);
        self
    }

    /// How many epochs were gone through.
    pub fn epochs(&self) -> u64 {
        self.epoch
    }

    /// The batches that are left of this epoch; after them the next one begins.
    ///
    /// # Collective
    /// All ranks of the program, here and for every batch: a small round each, so that what a rank cannot read is an error of
    /// all.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if there is no source, if [`samples`](Self::samples) or [`samples_of`](Self::samples_of) asks for more than there
    /// are, for [`weights`](Self::weights) that are none of the samples', and if the placements do not fit the smaller batch at the end; an agreed error if a rank can make no thread, or has
    /// no memory for an order of so many samples.
    #[track_caller]
    pub fn epoch(&mut self) -> Result<Batches<'_>> {
        let _call = Calling::of("epoch");
        if self.sources.is_empty() {
            return Err(Error::argument(
                OP,
                "a source of samples",
                "none",
                "add one with `source` or `source_array`",
            ));
        }
        if self.feed.is_none() {
            self.check_choice()?;
            let plan = self.plan()?;
            let order = self.order();
            let feed = order.and_then(|order| Feed::new(Plan { order, ..plan }, self.ahead));
            self.feed = Some(agreed(OP, &self.mesh, feed)?);
        }
        Ok(Batches {
            loader: self,
            failed: false,
        })
    }

    /// The next batch, which is the first of the next epoch if this one is over: for a training that counts its steps.
    ///
    /// # Collective
    /// As [`epoch`](Self::epoch), for one batch.
    ///
    /// # Errors
    /// As [`epoch`](Self::epoch); what a rank cannot read, as an agreed error; [`Argument`](Error::Argument) if an epoch has no
    /// batches.
    #[track_caller]
    pub fn next_batch(&mut self) -> Result<Vec<ShardTensor>> {
        for _ in 0..2 {
            if let Some(batch) = self.epoch()?.next() {
                return batch;
            }
        }
        let got = format!("{} samples by {}", self.given_out(), self.batch);
        let remedy = "choose more samples, or keep the last batch, which is smaller";
        Err(Error::argument(OP, "a batch in every epoch", got, remedy))
    }
}

impl Loader {
    /// How many samples there are.
    fn all(&self) -> usize {
        self.sources.first().map_or(0, |(s, _)| s.shape()[0])
    }

    /// How many of them are used.
    fn used(&self) -> usize {
        match &self.chosen {
            None => self.all(),
            Some(Chosen::Range(range)) => range.len(),
            Some(Chosen::List(list, _)) => list.len(),
        }
    }

    /// How many an epoch gives out.
    fn given_out(&self) -> usize {
        let draws = self.weights.as_ref().map(Weights::draws);
        draws.unwrap_or_else(|| self.used())
    }

    /// Refuses a choice of samples that there are not, and weights of others.
    #[track_caller]
    fn check_choice(&self) -> Result<()> {
        let (all, used) = (self.all(), self.used());
        let beyond = match &self.chosen {
            None => None,
            Some(Chosen::Range(range)) => {
                let fits = range.start <= range.end && range.end <= all;
                (!fits).then(|| format!("{range:?}"))
            }
            Some(Chosen::List(list, _)) => list.iter().find(|&&i| i >= all).map(usize::to_string),
        };
        if let Some(got) = beyond {
            return Err(Error::argument(
                OP,
                format!("a range of the {all} samples that there are, or their numbers"),
                got,
                "choose fewer",
            ));
        }
        match self
            .weights
            .as_ref()
            .and_then(|weights| weights.misfit(used))
        {
            None => Ok(()),
            Some(got) => Err(Error::argument(
                OP,
                format!("weights of {used} samples, 0 or above and not all 0"),
                got,
                "give a finite number for each sample that is used",
            )),
        }
    }

    fn cuts(&self) -> Cuts {
        Cuts {
            samples: self.given_out(),
            batch: self.batch,
            drop_last: self.drop_last,
        }
    }

    /// How many samples of this epoch were given out: a file may say any number.
    fn given(&self) -> usize {
        usize::try_from(self.given).unwrap_or(usize::MAX)
    }

    /// The order of this epoch's samples, if it is not that of the sources.
    fn order(&self) -> Result<Option<Vec<usize>>, DataError> {
        let samples = self.used();
        let order = match &self.weights {
            Some(weights) => Some(weights.drawn(self.seed, self.epoch)),
            None => (self.shuffle).then(|| shuffled(samples, self.seed, self.epoch)),
        };
        let order = (order.transpose()).map_err(|_| beyond_memory(self.given_out()))?;
        let Some(Chosen::List(list, _)) = &self.chosen else {
            return Ok(order);
        };
        Ok(Some(match order {
            None => list.clone(),
            Some(mut order) => {
                order.iter_mut().for_each(|i| *i = list[*i]);
                order
            }
        }))
    }

    /// The first sample that an order counts from.
    fn first(&self) -> usize {
        match &self.chosen {
            Some(Chosen::Range(range)) => range.start,
            _ => 0,
        }
    }

    #[track_caller]
    fn layout_of(&self, shape: &[usize], placements: &Placements, batch: usize) -> Result<Layout> {
        let mut shape = shape.to_vec();
        shape[0] = batch;
        let layout = self.mesh.layout(&shape[..], placements.clone())?;
        check_whole(OP, &layout).map(|()| layout)
    }

    /// Why there is no batch of a size that placements do not fit, where they [fit](Self::source) a full one.
    #[track_caller]
    fn misfit(&self, size: usize, why: &Error) -> Error {
        let batch = self.batch;
        Error::argument(
            OP,
            format!("placements for the last batch of {size} samples too, as for those of {batch}"),
            why.to_string(),
            "leave it out with `drop_last(true)`, or give placements without sizes",
        )
    }

    /// What this rank reads from here to the end of the epoch, in the order of the sources.
    #[track_caller]
    fn plan(&self) -> Result<Plan> {
        let (cuts, given) = (self.cuts(), self.given());
        let sizes = cuts.sizes(given);
        let rank = self.mesh.context().rank();
        let shares = self.sources.iter().map(|(source, placements)| {
            let held = sizes.iter().map(|&size| {
                let layout = self.layout_of(source.shape(), placements, size);
                let layout = layout.map_err(|e| self.misfit(size, &e))?;
                Ok((size, layout.local_parts(rank).map(|held| held.to_vec())))
            });
            Ok(Share {
                source: source.clone(),
                held: held.collect::<Result<_>>()?,
            })
        });
        Ok(Plan {
            shares: shares.collect::<Result<_>>()?,
            order: None,
            first: self.first(),
            cuts,
            given,
        })
    }

    /// The next batch of this epoch, if there is one.
    #[track_caller]
    fn next_of_epoch(&mut self) -> Result<Option<Vec<ShardTensor>>> {
        let Some(range) = self.cuts().next(self.given()) else {
            (self.epoch, self.given, self.feed) = (self.epoch.wrapping_add(1), 0, None);
            return Ok(None);
        };
        let pieces = match &mut self.feed {
            Some(feed) => feed.next(),
            None => Err(DataError::other("no epoch has begun")),
        };
        // What was read ahead is not of the batch that is asked for next, if this one is lost.
        let pieces = agreed(OP, &self.mesh, pieces).inspect_err(|_| self.feed = None)?;
        let (ctx, cx) = (self.mesh.context(), self.mesh.comm());
        // Which samples they are: ranks that shuffle or choose otherwise have others, and so have those of another loader.
        let drawn = self.shuffle || self.weights.is_some();
        let order = drawn.then(|| (self.seed, self.used()));
        let choice = (
            self.chosen.as_ref().map(Chosen::key),
            self.weights.as_ref().map(Weights::key),
        );
        let which = key_of(OP, &(self.id, order, choice, self.epoch, &range));
        let mut batch = Vec::with_capacity(pieces.len());
        for ((source, placements), piece) in self.sources.iter().zip(pieces) {
            let dtype = source.dtype();
            let layout = self.layout_of(source.shape(), placements, range.len())?;
            let local = piece.map(|bytes| ctx.device().upload(dtype, &bytes));
            cx.record(Call::new(OP).of(dtype, &layout).with(which));
            let array = Array::from_parts(cx, &layout, local.transpose()?, dtype)?;
            batch.push(ShardTensor::new(ctx, Value::new(array)));
        }
        self.given = range.end as u64;
        Ok(Some(batch))
    }
}

/// The batches that are left of an epoch: each a tensor per source.
///
/// If it is dropped before its end, the loader goes on where it was. After an error there are no more; the loader tries that
/// batch again in [`Loader::epoch`].
#[derive(Debug)]
pub struct Batches<'a> {
    loader: &'a mut Loader,
    failed: bool,
}

impl Iterator for Batches<'_> {
    type Item = Result<Vec<ShardTensor>>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        let _call = Calling::of("next");
        if self.failed {
            return None;
        }
        let next = self.loader.next_of_epoch();
        self.failed = next.is_err();
        next.transpose()
    }
}

/// The seed of the order, the epoch, and how many samples of it were given out.
impl Stateful for Loader {
    fn state(&self) -> Result<State> {
        let number = |name: &str, n| (name.to_owned(), StateNumber::Whole(n));
        Ok(State {
            tensors: Vec::new(),
            numbers: vec![
                number("seed", self.seed),
                number("epoch", self.epoch),
                number("given", self.given),
            ],
        })
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        let (seed, epoch) = (state.whole("seed")?, state.whole("epoch")?);
        self.given = state.whole("given")?;
        (self.seed, self.epoch, self.feed) = (seed, epoch, None);
        Ok(())
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, batch) = (self.given_out(), self.batch);
        let (epoch, given) = (self.epoch, self.given);
        write!(
            f,
            "Loader({n} samples by {batch}, epoch {epoch}, {given} given out)"
        )
    }
}
