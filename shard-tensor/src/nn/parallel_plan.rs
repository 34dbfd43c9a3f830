//! Plans of parallelism by the names of parameters.

use super::place::{Place, divided, present, split};
use crate::{Dim, Error, Result, ShardTensor};

/// How the parameters of a model are divided over named mesh axes, by patterns of their names.
///
/// A pattern names a parameter, or a part of the model with all that is in it; `*` stands for any characters, `?` for one. Rules are applied
/// one after the other, so that what one divides over one axis another may divide further over another.
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, ParallelPlan};
/// use shard_tensor::{launch, tree};
///
/// struct Mlp { up: Linear, down: Linear }
/// tree!(Mlp { up, down });
///
/// let laid = launch(4, |ctx| {
///     let mesh = ctx.mesh([("shard", 2), ("tensor", 2)])?;
///     let mlp = Mlp { up: Linear::new(&mesh, 6, 10)?, down: Linear::new(&mesh, 10, 6)? };
///     let plan = ParallelPlan::new().colwise("up", "tensor").rowwise("down", "tensor").fully_shard("*", "shard");
///     let mlp = mlp.distribute(&plan)?;
///     Ok([&mlp.up.weight, &mlp.down.weight].map(|w| format!("{} used as {}", w.layout(), w.layout_in_use())))
/// })?;
/// assert_eq!(laid[0], ["S(1) S(0) used as R S(0)", "S(0) S(1) used as R S(1)"]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ParallelPlan {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    pattern: String,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Replicate,
    Shard(String, Dim),
    /// Parts are whole units of so many features.
    Colwise(String, usize),
    Rowwise(String, usize),
    Fully(String),
}

impl ParallelPlan {
    /// A plan that leaves everything as it is.
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies on every rank.
    #[must_use]
    pub fn replicate(self, pattern: &str) -> Self {
        self.rule(pattern, What::Replicate)
    }

    /// Divides a dim over an axis; activations follow. Below 0 it counts from the last dim, -1.
    #[must_use]
    pub fn shard(self, pattern: &str, axis: &str, dim: impl Into<Dim>) -> Self {
        self.rule(pattern, What::Shard(axis.to_owned(), dim.into()))
    }

    /// Divides the outputs of linear layers over an axis: weight and bias by their first dim. Inputs that are whole along it do not
    /// move, and outputs are divided by their last dim.
    #[must_use]
    pub fn colwise(self, pattern: &str, axis: &str) -> Self {
        self.rule(pattern, What::Colwise(axis.to_owned(), 1))
    }

    /// Divides the inputs of linear layers over an axis: weights by their second dim. Inputs divided by their last dim, as a
    /// [`colwise`](Self::colwise) layer leaves them, do not move, and outputs are partial sums.
    #[must_use]
    pub fn rowwise(self, pattern: &str, axis: &str) -> Self {
        self.rule(pattern, What::Rowwise(axis.to_owned(), 1))
    }

    /// As [`colwise`](Self::colwise), in whole heads of so many features each, of which some ranks may have one more than others:
    /// projections of queries, keys and values, of which no head is then torn apart. With fewer heads of keys and values than ranks
    /// leave their projections whole.
    ///
    /// ```
    /// use shard_tensor::nn::{ModelExt, Module, MultiheadAttention, ParallelPlan};
    /// use shard_tensor::{launch, replicate};
    /// launch(3, |ctx| {
    ///     let mesh = ctx.mesh([("tensor", 3)])?;
    ///     let attention = MultiheadAttention::new(&mesh, 20, 5)?; // 5 heads of 4 features
    ///     let plan = ParallelPlan::new().colwise_by("?_proj", "tensor", 4).rowwise_by("out_proj", "tensor", 4);
    ///     let attention = attention.distribute(&plan)?;
    ///     assert_eq!(attention.q_proj.weight.layout().to_string(), "S(0)[8,8,4]");
    ///     let x = mesh.randn([1, 6, 20], replicate())?;
    ///     let before = ctx.ledger().snapshot();
    ///     let y = attention.forward(&x)?;
    ///     assert_eq!(y.layout().to_string(), "P(sum)"); // of each rank's heads
    ///     assert_eq!(ctx.ledger().since(&before).bytes, 0);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn colwise_by(self, pattern: &str, axis: &str, head_dim: usize) -> Self {
        self.rule(pattern, What::Colwise(axis.to_owned(), head_dim))
    }

    /// As [`rowwise`](Self::rowwise), in whole heads of so many features each: the projection behind the heads that
    /// [`colwise_by`](Self::colwise_by) divides.
    #[must_use]
    pub fn rowwise_by(self, pattern: &str, axis: &str, head_dim: usize) -> Self {
        self.rule(pattern, What::Rowwise(axis.to_owned(), head_dim))
    }

    /// What lies between, as norms do, whose activations are divided along their sequence: its parameters are copies, and the
    /// sums that their gradients are over the sequence are taken with the others. Where the sequence is divided and where it is
    /// whole, [`Moved`](super::Moved) says.
    #[must_use]
    pub fn sequence(self, pattern: &str) -> Self {
        self.replicate(pattern)
    }

    /// As [`fully_sharded`](super::ModelExt::fully_sharded).
    #[must_use]
    pub fn fully_shard(self, pattern: &str, axis: &str) -> Self {
        self.rule(pattern, What::Fully(axis.to_owned()))
    }

    fn rule(mut self, pattern: &str, what: What) -> Self {
        let pattern = pattern.to_owned();
        self.rules.push(Rule { pattern, what });
        self
    }

    /// Refuses patterns that match none of these names.
    #[track_caller]
    pub(super) fn check(&self, op: &'static str, names: &[String]) -> Result<()> {
        let idle = |rule: &&Rule| !names.iter().any(|name| rule.matches(name));
        match self.rules.iter().find(idle) {
            None => Ok(()),
            Some(rule) => Err(Error::argument(
                op,
                format!("patterns that match something of {}", names.join(", ")),
                format!("{:?}", rule.pattern),
                "name a parameter or a part of the model; `*` stands for any characters",
            )),
        }
    }

    /// Where a parameter goes, `None` if no rule names it.
    #[track_caller]
    pub(super) fn place(
        &self,
        op: &'static str,
        name: &str,
        tensor: &ShardTensor,
    ) -> Result<Option<Place>> {
        let mut rules = self
            .rules
            .iter()
            .filter(|rule| rule.matches(name))
            .peekable();
        if rules.peek().is_none() {
            return Ok(None);
        }
        let mut place = present(tensor);
        for rule in rules {
            place = rule.what.applied(op, name, place)?;
        }
        Ok(Some(place))
    }
}

impl What {
    fn applied(&self, op: &'static str, name: &str, place: Place) -> Result<Place> {
        let Place { own, used_as } = &place;
        let everywhere = |axis, dim, unit| {
            let whole = own == used_as;
            let own = split(op, name, own, axis, (dim, unit))?;
            let used_as = match whole {
                true => own.clone(),
                false => split(op, name, used_as, axis, (dim, unit))?,
            };
            Ok(Place { own, used_as })
        };
        match self {
            Self::Replicate => {
                let own = shard_spec::Layout::replicated(own.mesh(), own.shape());
                let used_as = own.clone();
                Ok(Place { own, used_as })
            }
            Self::Shard(axis, dim) => everywhere(axis, dim.of(op, own.ndim())?, 1),
            Self::Colwise(axis, unit) => everywhere(axis, 0, *unit),
            Self::Rowwise(axis, unit) if own.ndim() > 1 => everywhere(axis, 1, *unit),
            // A bias is added once, to the sum.
            Self::Rowwise(axis, _) => own.mesh().axis(axis).map(|_| place).map_err(Into::into),
            Self::Fully(axis) => divided(op, name, axis, place),
        }
    }
}

impl Rule {
    /// Whether the pattern matches the name, or that of something it is in.
    fn matches(&self, name: &str) -> bool {
        matches(&self.pattern, name)
    }
}

/// Whether a pattern matches a name, or that of something it is in.
pub fn matches(pattern: &str, name: &str) -> bool {
    let ends = name.match_indices('.').map(|(at, _)| at);
    (ends.chain([name.len()])).any(|end| fits(pattern.as_bytes(), &name.as_bytes()[..end]))
}

/// Whether a pattern is this name.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|skip| fits(rest, &name[skip..])),
        Some((b'?', rest)) => name.split_first().is_some_and(|(_, name)| fits(rest, name)),
        Some((first, rest)) => name
            .split_first()
            .is_some_and(|(n, name)| n == first && fits(rest, name)),
    }
}
