//! States of models from elsewhere: other names, types and layouts.

use super::{Leaf, Tree};
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
    /// Names of the model that the state lacks, and of tied parameters all other names of, too.
    pub missing: Vec<String>,
    /// Names of the state that the model lacks.
    pub unexpected: Vec<String>,
}

/// Takes up the tensors of a state by name, converted to the model's types and moved to its layouts, as `load_state_dict`.
///
/// Joint projections of PyTorch's attention are [taken apart](State::with_split_projections). A parameter that the model has under
/// several names, as a tied weight, is found under any of them: files of Hugging Face have it once. If the state has it under more,
/// the last name in the model counts.
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
/// [`Argument`](Error::Argument) for tensors of other shapes, for joint projections that are not three of as many rows, and, if
/// strict, for names that only one of both has, all of them named. Nothing is changed then.
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
    let found = found(model, &own, &state);
    let differences = differences(&own, &found, &state);
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
    for ((name, old), new) in own.tensors.iter().zip(&found) {
        if let Some(new) = new.filter(|new| new.shape() != old.shape()) {
            return Err(Error::argument(
                OP,
                format!("{name:?} of shape {:?}", old.shape()),
                format!("shape {:?}", new.shape()),
                "make the model with the sizes that the state was saved with",
            ));
        }
    }
    let fitted = own
        .tensors
        .into_iter()
        .zip(found)
        .map(|((name, old), new)| {
            let new = match new {
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

/// The names that only one of a model and a state has.
fn differences(own: &State, found: &[Option<&ShardTensor>], state: &State) -> Differences {
    let missing = own.tensors.iter().zip(found);
    let unexpected = state.tensors.iter().map(|(name, _)| name);
    // PyTorch's batch norms count batches, which nothing here reads.
    let is_read = |name: &&String| !name.ends_with("num_batches_tracked");
    Differences {
        missing: (missing.filter(|(_, found)| found.is_none()))
            .map(|((name, _), _)| name.clone())
            .collect(),
        unexpected: (unexpected.filter(|name| own.tensor(name).is_none()))
            .filter(is_read)
            .cloned()
            .collect(),
    }
}

/// What a state has for each tensor of a model: under its name, or else under the last other name of the same parameter.
fn found<'a, M: Tree + ?Sized>(
    model: &M,
    own: &State,
    state: &'a State,
) -> Vec<Option<&'a ShardTensor>> {
    let leaves = model.leaves();
    let parameters: Vec<(&str, &ShardTensor)> = (leaves.iter())
        .filter_map(|(name, leaf)| match leaf {
            Leaf::Tensor(tensor) if tensor.is_parameter() => Some((&name[..], *tensor)),
            _ => None,
        })
        .collect();
    let tied = |name: &str| {
        let (_, parameter) = parameters.iter().find(|(other, _)| *other == name)?;
        let same = parameters.iter().rev();
        same.filter(|(_, other)| other.is_same_parameter(parameter))
            .find_map(|(other, _)| state.tensor(other))
    };
    (own.tensors.iter())
        .map(|(name, _)| state.tensor(name).or_else(|| tied(name)))
        .collect()
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
    /// [`Argument`](Error::Argument) for one that is not three projections of as many rows; what the communicator reports.
    #[track_caller]
    pub fn with_split_projections(&self) -> Result<Self> {
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (name, tensor) in &self.tensors {
            match name.split_once("in_proj_") {
                Some((of, what @ ("weight" | "bias"))) if of.is_empty() || of.ends_with('.') => {
                    let third = third(name, tensor)?;
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

/// The rows of each of three projections in one tensor.
#[track_caller]
fn third(name: &str, joint: &ShardTensor) -> Result<usize> {
    match joint.shape().first() {
        Some(rows) if rows.is_multiple_of(3) => Ok(rows / 3),
        _ => Err(Error::argument(
            "with_split_projections",
            format!("{name:?} with three projections of as many rows"),
            format!("shape {:?}", joint.shape()),
            "give the tensor that PyTorch saved, or rename what is something else with `State::renamed`",
        )),
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
