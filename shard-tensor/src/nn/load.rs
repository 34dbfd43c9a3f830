//! States of models from elsewhere: other names, types and layouts.

use super::Tree;
use crate::{Error, Result, ShardTensor, State, Stateful};

/// Whether names of a state that the model lacks, and of the model that the state lacks, are errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict {
    /// They are.
    Yes,
    /// They are told of, and what is missing stays as it is.
    No,
}

/// What a state and a model did not have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Names of the model that the state lacks.
    pub missing: Vec<String>,
    /// Names of the state that the model lacks.
    pub unexpected: Vec<String>,
}

/// Takes up the tensors of a state by name, converted to the model's types and moved to its layouts, as `load_state_dict`.
///
/// Joint projections of PyTorch's attention are [taken apart](State::with_split_projections).
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Strict, load_state_with};
/// use shard_tensor::{Stateful, launch};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh([("shard", 2)])?;
///     let saved = Linear::new(&mesh, 4, 3)?.state()?.with_prefix("encoder.");
///     let mut layer = Linear::new(&mesh, 4, 3)?.fully_sharded("shard")?;
///     let state = saved.renamed(|name| name.strip_prefix("encoder.").map(str::to_owned));
///     load_state_with(&mut layer, &state, Strict::Yes)?;
///     let [old, new] = [saved.tensor("encoder.weight").unwrap(), &layer.weight].map(|w| w.to_array::<f32>());
///     assert_eq!(old?, new?);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// All ranks of the program, with the same state. Moves what differs in layout.
///
/// # Errors
/// [`Argument`](Error::Argument) for tensors of other shapes, and, if strict, for names that only one of both has, all of them
/// named. Nothing is changed then.
#[track_caller]
pub fn load_state_with<M: Tree + ?Sized>(
    model: &mut M,
    state: &State,
    strict: Strict,
) -> Result<Differences> {
    const OP: &str = "load_state";
    let own = model.state()?;
    let mut state = state.clone();
    if state
        .tensors
        .iter()
        .any(|(name, _)| own.tensor(name).is_none())
    {
        state = state.with_split_projections()?;
    }
    let lacks = |in_it: &State, other: &State| -> Vec<String> {
        let names = in_it.tensors.iter().map(|(name, _)| name);
        names
            .filter(|name| other.tensor(name).is_none())
            .cloned()
            .collect()
    };
    let mut differences = Differences {
        missing: lacks(&own, &state),
        unexpected: lacks(&state, &own),
    };
    // PyTorch's batch norms count batches, which nothing here reads.
    (differences.unexpected).retain(|name| !name.ends_with("num_batches_tracked"));
    if strict == Strict::Yes && differences != Differences::default() {
        return Err(Error::argument(
            OP,
            "a state with the names of the model",
            format!(
                "one that lacks {:?} and has {:?} besides",
                differences.missing, differences.unexpected
            ),
            "rename with `State::renamed`, or load with `Strict::No`",
        ));
    }
    for (name, old) in &own.tensors {
        if let Some(new) = state.tensor(name).filter(|new| new.shape() != old.shape()) {
            return Err(Error::argument(
                OP,
                format!("{name:?} of shape {:?}", old.shape()),
                format!("shape {:?}", new.shape()),
                "make the model with the sizes that the state was saved with",
            ));
        }
    }
    let fitted = own.tensors.into_iter().map(|(name, old)| {
        let new = match state.tensor(&name) {
            Some(new) => new.detach().to(old.dtype())?.redistribute(old.layout())?,
            None => old,
        };
        Ok((name, new))
    });
    let fitted = State {
        tensors: fitted.collect::<Result<_>>()?,
        numbers: Vec::new(),
    };
    model.load_state(&fitted)?;
    Ok(differences)
}

/// Other names.
impl State {
    /// With other names; what gets none is left out.
    #[must_use]
    pub fn renamed(&self, rename: impl Fn(&str) -> Option<String>) -> Self {
        fn named<T: Clone>(
            all: &[(String, T)],
            rename: impl Fn(&str) -> Option<String>,
        ) -> Vec<(String, T)> {
            let renamed = all
                .iter()
                .map(|(name, of)| Some((rename(name)?, of.clone())));
            renamed.flatten().collect()
        }
        Self {
            tensors: named(&self.tensors, &rename),
            numbers: named(&self.numbers, &rename),
        }
    }

    /// With this in front of all names, as `"model."`.
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> Self {
        self.renamed(|name| Some(format!("{prefix}{name}")))
    }

    /// With PyTorch's `in_proj_weight` and `in_proj_bias`, the projections of an attention in one tensor, as `q_proj.weight`,
    /// `k_proj.weight`, `v_proj.weight` and their biases, and its `q_proj_weight` and so on, where widths differ, under these names.
    ///
    /// # Collective
    /// All members of the tensors' meshes. As [`ShardTensor::narrow`].
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn with_split_projections(&self) -> Result<Self> {
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (name, tensor) in &self.tensors {
            match name.split_once("in_proj_") {
                Some((of, what @ ("weight" | "bias"))) if of.is_empty() || of.ends_with('.') => {
                    let third = tensor.shape().first().map_or(0, |rows| rows / 3);
                    for (i, projection) in ["q", "k", "v"].iter().enumerate() {
                        let part: ShardTensor = tensor.narrow(0, i * third..(i + 1) * third)?;
                        tensors.push((format!("{of}{projection}_proj.{what}"), part));
                    }
                }
                _ => tensors.push((separate(name), tensor.clone())),
            }
        }
        let numbers = self.numbers.clone();
        Ok(Self { tensors, numbers })
    }
}

/// The name of a weight here that PyTorch's attention calls `q_proj_weight`; others stay.
fn separate(name: &str) -> String {
    let projection = ["q", "k", "v"].into_iter().find_map(|projection| {
        let of = name.strip_suffix(&format!("{projection}_proj_weight"))?;
        let is_path = of.is_empty() || of.ends_with('.');
        is_path.then(|| format!("{of}{projection}_proj.weight"))
    });
    projection.unwrap_or_else(|| name.to_owned())
}
