//! Models as trees of named tensors.

use super::{Buffer, ParallelPlan, Parameters, place};
use crate::{Error, Placements, Result, ShardTensor, State, Stateful};
use shard_comm::Calling;
use std::cell::Cell;

/// What a model, or a part of one, is made of: tensors under names, in a fixed order that is the same on every rank.
///
/// [`tree!`](crate::tree) implements it from a list of fields. A field's leaves have the field's name in front, as in
/// `head.weight`, and those of a list its index, as in `layers.2.weight`.
pub trait Tree {
    /// Everything in it, by name.
    fn leaves(&self) -> Vec<(String, Leaf<'_>)>;

    /// Everything in it, by name, to be replaced. The same names in the same order as [`leaves`](Self::leaves).
    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)>;
}

/// Something under a name in a model.
#[derive(Clone, Copy, Debug)]
pub enum Leaf<'a> {
    /// A parameter, or where it [is none](ShardTensor::is_parameter), a constant.
    Tensor(&'a ShardTensor),
    /// A tensor that is no parameter and changes while a model is used.
    Buffer(&'a Buffer),
    /// Whether it trains.
    Training(&'a Training),
}

/// As [`Leaf`], to be replaced.
#[derive(Debug)]
pub enum LeafMut<'a> {
    /// A parameter or a constant.
    Tensor(&'a mut ShardTensor),
    /// A tensor that changes while a model is used.
    Buffer(&'a mut Buffer),
    /// Whether it trains.
    Training(&'a mut Training),
}

/// Implements [`Tree`](crate::nn::Tree) for a struct: its name, then the fields that are trees themselves: layers, tensors,
/// buffers, and options, boxes, arrays, lists and tuples of them.
///
/// ```
/// use shard_tensor::nn::{Linear, Module, ModelExt};
/// use shard_tensor::{Result, ShardTensor, launch, shard, tree};
///
/// struct Mlp { layers: Vec<Linear>, head: Linear }
/// tree!(Mlp { layers, head });
///
/// let names = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let mlp = Mlp { layers: vec![Linear::new(&mesh, 4, 8)?], head: Linear::new(&mesh, 8, 1)? };
///     Ok(mlp.parameters().into_iter().map(|p| p.0).collect::<Vec<_>>())
/// })?;
/// assert_eq!(names[0], ["layers.0.weight", "layers.0.bias", "head.weight", "head.bias"]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[macro_export]
macro_rules! tree {
    ($name:ident $(<$($generic:ident $(: $bound:path)?),+>)? { $($field:ident),* $(,)? }) => {
        impl $(<$($generic $(: $bound)?),+>)? $crate::nn::Tree for $name $(<$($generic),+>)? {
            fn leaves(&self) -> ::std::vec::Vec<(::std::string::String, $crate::nn::Leaf<'_>)> {
                let fields: ::std::vec::Vec<::std::vec::Vec<_>> = ::std::vec![
                    $($crate::nn::under(stringify!($field), $crate::nn::Tree::leaves(&self.$field)).collect()),*
                ];
                fields.into_iter().flatten().collect()
            }

            fn leaves_mut(&mut self) -> ::std::vec::Vec<(::std::string::String, $crate::nn::LeafMut<'_>)> {
                let fields: ::std::vec::Vec<::std::vec::Vec<_>> = ::std::vec![
                    $($crate::nn::under(stringify!($field), $crate::nn::Tree::leaves_mut(&mut self.$field)).collect()),*
                ];
                fields.into_iter().flatten().collect()
            }
        }
    };
}

/// Puts a name in front of those of leaves: of a field that is named as a keyword, `r#box`, the name without the mark.
pub fn under<L>(name: &str, leaves: Vec<(String, L)>) -> impl Iterator<Item = (String, L)> {
    let name = name.strip_prefix("r#").unwrap_or(name);
    leaves
        .into_iter()
        .map(move |(rest, leaf)| match rest.is_empty() {
            true => (name.to_owned(), leaf),
            false => (format!("{name}.{rest}"), leaf),
        })
}

/// Whether a layer trains, and so for example normalises by its batch. It does at first.
#[derive(Clone, Debug)]
pub struct Training(Cell<bool>);

impl Default for Training {
    fn default() -> Self {
        Self(Cell::new(true))
    }
}

impl Training {
    /// Whether it trains.
    pub fn is_on(&self) -> bool {
        self.0.get()
    }

    /// Sets whether it trains. Alike on all ranks.
    pub fn set(&self, on: bool) {
        self.0.set(on);
    }
}

/// What every [`Tree`] can do.
pub trait ModelExt: Tree {
    /// Its parameters, by name, which they [carry](ShardTensor::named) from now on.
    fn parameters(&self) -> Parameters {
        let parameter = |(name, leaf): (String, Leaf<'_>)| match leaf {
            Leaf::Tensor(tensor) if tensor.is_parameter() => {
                let tensor = tensor.clone().named(&name);
                Some((name, tensor))
            }
            _ => None,
        };
        self.leaves().into_iter().filter_map(parameter).collect()
    }

    /// Its other tensors, by name, as they are now.
    fn buffers(&self) -> Parameters {
        let buffer = |(name, leaf)| match leaf {
            Leaf::Tensor(tensor) if !tensor.is_parameter() => Some((name, tensor.clone())),
            Leaf::Buffer(buffer) => Some((name, buffer.get())),
            _ => None,
        };
        self.leaves().into_iter().filter_map(buffer).collect()
    }

    /// Makes all its layers train, or not: a norm then uses its running statistics, a dropout nothing.
    ///
    /// # Collective
    /// All ranks of the program, alike. No communication.
    fn train(&self, on: bool) {
        for (_, leaf) in self.leaves() {
            if let Leaf::Training(training) = leaf {
                training.set(on);
            }
        }
    }

    /// Freezes all its parameters, or thaws them with `true`, as `torch.nn.Module.requires_grad_`: see
    /// [`ShardTensor::set_requires_grad`]. They go on being its parameters, under their names.
    ///
    /// ```
    /// use shard_tensor::nn::{Linear, ModelExt, Module};
    /// use shard_tensor::{launch, shard, tree};
    ///
    /// struct Tuned { body: Linear, head: Linear }
    /// tree!(Tuned { body, head });
    ///
    /// let names = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let model = Tuned { body: Linear::new(&mesh, 4, 8)?, head: Linear::new(&mesh, 8, 1)? };
    ///     model.body.set_requires_grad(false)?;
    ///     assert_eq!(model.parameters().len(), 4);
    ///     let y = model.head.forward(&model.body.forward(&mesh.ones([6, 4], shard(0))?)?)?;
    ///     let gradients = y.mean_all()?.backward()?;
    ///     Ok(gradients.iter()?.map(|(name, _)| name).collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(names[0], ["head.weight", "head.bias"]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the parameters' meshes, alike. No communication.
    ///
    /// # Errors
    /// None that a model of this library causes.
    #[track_caller]
    fn set_requires_grad(&self, on: bool) -> Result<()> {
        let _call = Calling::of("set_requires_grad");
        for (_, leaf) in self.leaves() {
            if let Leaf::Tensor(tensor) = leaf
                && tensor.is_parameter()
            {
                tensor.set_requires_grad(on)?;
            }
        }
        Ok(())
    }

    /// Places its parameters and other tensors: `plan` says of each name where. The ranks keep their parts of what they hold, and
    /// only what they lack moves. Tied parameters stay tied. Make optimizers and hooks afterwards: these are new
    /// parameters, and an optimizer of the old ones says so when it gets no gradient of them.
    ///
    /// ```
    /// use shard_tensor::nn::{Linear, ModelExt, Module};
    /// use shard_tensor::{Placements, launch, replicate, shard, tree};
    ///
    /// struct Mlp { up: Linear, down: Linear }
    /// tree!(Mlp { up, down });
    ///
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh([("tensor", 2)])?;
    ///     let mlp = Mlp { up: Linear::new(&mesh, 4, 6)?, down: Linear::new(&mesh, 6, 4)? };
    ///     let mlp = mlp.place(|name, _| match name {
    ///         "up.weight" | "up.bias" => [("tensor", shard(0))].into(),
    ///         "down.weight" => [("tensor", shard(1))].into(),
    ///         _ => Placements::replicated(),
    ///     })?;
    ///     let hidden = mlp.up.forward(&mesh.ones([3, 4], replicate())?)?.gelu()?;
    ///     hidden.expect_layout(shard(1))?;                    // nothing has moved,
    ///     let y = mlp.down.forward(&hidden)?.reduced()?;      // and here one sum over the ranks is taken
    ///     y.expect_layout(replicate())?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program, with the same plan. Moves what ranks lack; nothing from replicas to shards.
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) if one parameter is placed differently under two names. Nothing has
    /// moved then.
    #[track_caller]
    fn place(mut self, mut plan: impl FnMut(&str, &ShardTensor) -> Placements) -> Result<Self>
    where
        Self: Sized,
    {
        const OP: &str = "place";
        let _call = Calling::of(OP);
        place::replace(OP, &mut self, &mut |name, tensor| {
            place::placed(&plan(name, tensor), tensor).map(Some)
        })?;
        Ok(self)
    }

    /// A copy with parameters and buffers of its own, that are and lie as these: `copy.deepcopy` of a module, for teachers and target
    /// networks. A clone has the same parameters under another handle, and so has a clone's optimizer.
    ///
    /// ```
    /// use shard_tensor::nn::{Linear, ModelExt, Sequential};
    /// use shard_tensor::optim::{Optimizer, Sgd};
    /// use shard_tensor::{Stateful, launch};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let mut student = Sequential::new().then(Linear::new(&mesh, 4, 1)?);
    ///     let mut teacher = student.copied()?;
    ///     let first = teacher.parameters()[0].1.to_array::<f32>()?;
    ///     let loss = student.parameters()[0].1.square()?.sum_all()?;
    ///     Sgd::new(student.parameters(), 0.1)?.step(&loss.backward()?)?;
    ///     assert_eq!(teacher.parameters()[0].1.to_array::<f32>()?, first);
    ///     teacher.load_state(&student.state()?)?; // takes over what the student has learnt
    ///     assert_ne!(teacher.parameters()[0].1.to_array::<f32>()?, first);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program. No communication, and no memory until one of both changes.
    ///
    /// # Errors
    /// What a tape reports.
    #[track_caller]
    fn copied(&self) -> Result<Self>
    where
        Self: Clone,
    {
        let _call = Calling::of("copied");
        let mut copy = self.clone();
        place::own(&mut copy)?;
        Ok(copy)
    }

    /// Divides all parameters over a mesh axis, pinned: wherever an op uses one it is gathered along the axis, never the
    /// activations instead; then it is dropped, gathered again where the backward pass reads it, and its gradient arrives in the
    /// parameter's parts, by sums in which every rank is left its own. While ops run, the parameter that is used next is in flight. With the data divided over the same axis this is fully
    /// sharded data parallelism (ZeRO-3): a step moves three times what the ranks lack of the parameters, and gradients and
    /// optimizers' states are as small as the parts.
    ///
    /// A parameter is divided along its longest dim that no other axis divides, in parts that differ by at most one. Placements
    /// over other axes stay, so that it combines with tensor parallelism; [place](Self::place) first.
    ///
    /// ```
    /// use shard_tensor::nn::{Linear, ModelExt, Module};
    /// use shard_tensor::optim::{AdamW, Optimizer};
    /// use shard_tensor::{launch, shard};
    /// launch(3, |ctx| {
    ///     let mesh = ctx.mesh([("shard", 3)])?;
    ///     let layer = Linear::new(&mesh, 4, 7)?.fully_sharded("shard")?;
    ///     assert_eq!(layer.weight.layout().to_string(), "S(0)[3,2,2]");
    ///     let mut adam = AdamW::new(layer.parameters(), 1e-3)?;
    ///     let y = layer.forward(&mesh.ones([6, 4], shard(0))?)?;
    ///     y.expect_layout(shard(0))?;                     // the activations stay where they are
    ///     let gradients = y.square()?.mean_all()?.backward()?;
    ///     let slope = gradients.get(&layer.weight)?.expect("the loss depends on it");
    ///     slope.expect_layout(layer.weight.layout())?;
    ///     adam.step(&gradients)
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program. Moves nothing from replicas.
    ///
    /// # Errors
    /// For an unknown axis, and for parameters that it divides already. Nothing has changed then.
    #[track_caller]
    fn fully_sharded(mut self, axis: &str) -> Result<Self>
    where
        Self: Sized,
    {
        const OP: &str = "fully_sharded";
        let _call = Calling::of(OP);
        place::replace(
            OP,
            &mut self,
            &mut |name, tensor| match tensor.is_parameter() {
                true => place::divided(OP, name, axis, place::present(tensor)).map(Some),
                false => Ok(None),
            },
        )?;
        Ok(self)
    }

    /// Places its parameters by a [`ParallelPlan`].
    ///
    /// # Collective
    /// All ranks of the program, with the same plan. As [`place`](Self::place).
    ///
    /// # Errors
    /// As [`place`](Self::place); [`Argument`](Error::Argument) for a pattern that matches nothing, for a dim that a parameter has
    /// not, for an axis that divides it already, and for features that do not divide into whole heads.
    #[track_caller]
    fn distribute(mut self, plan: &ParallelPlan) -> Result<Self>
    where
        Self: Sized,
    {
        const OP: &str = "distribute";
        let _call = Calling::of(OP);
        let names: Vec<String> = (self.parameters().into_iter())
            .map(|(name, _)| name)
            .collect();
        plan.check(OP, &names)?;
        place::replace(
            OP,
            &mut self,
            &mut |name, tensor| match tensor.is_parameter() {
                true => plan.place(OP, name, tensor),
                false => Ok(None),
            },
        )?;
        Ok(self)
    }

    /// As [`train(false)`](Self::train).
    ///
    /// # Collective
    /// As [`train`](Self::train).
    fn eval(&self) {
        self.train(false);
    }
}

impl<T: Tree + ?Sized> ModelExt for T {}

/// Parameters keep being the same parameters; other tensors are replaced.
impl<T: Tree + ?Sized> Stateful for T {
    fn state(&self) -> Result<State> {
        let tensors = self
            .leaves()
            .into_iter()
            .filter_map(|(name, leaf)| match leaf {
                Leaf::Tensor(tensor) => Some((name, tensor.detach())),
                Leaf::Buffer(buffer) => Some((name, buffer.get())),
                Leaf::Training(_) => None,
            });
        Ok(State {
            tensors: tensors.collect(),
            numbers: Vec::new(),
        })
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        for (name, old) in self.state()?.tensors {
            let fits =
                |new: &ShardTensor| new.layout() == old.layout() && new.dtype() == old.dtype();
            let tell = |t: &ShardTensor| format!("{} {:?} {}", t.dtype(), t.shape(), t.layout());
            match state.tensor(&name) {
                Some(new) if fits(new) => {}
                found => {
                    return Err(Error::argument(
                        "load_state",
                        format!("{name:?}: {}", tell(&old)),
                        found.map_or_else(|| "nothing".to_owned(), tell),
                        "give every tensor of the model, in the model's layout",
                    ));
                }
            }
        }
        for (name, leaf) in self.leaves_mut() {
            let Some(new) = state.tensor(&name) else {
                continue;
            };
            match leaf {
                LeafMut::Tensor(old) if old.is_parameter() => old.set(new)?,
                LeafMut::Tensor(old) => *old = new.detach(),
                LeafMut::Buffer(old) => old.set(new)?,
                LeafMut::Training(_) => {}
            }
        }
        Ok(())
    }
}

impl Tree for ShardTensor {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        vec![(String::new(), Leaf::Tensor(self))]
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        vec![(String::new(), LeafMut::Tensor(self))]
    }
}

impl Tree for Buffer {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        vec![(String::new(), Leaf::Buffer(self))]
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        vec![(String::new(), LeafMut::Buffer(self))]
    }
}

impl Tree for Training {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        vec![(String::new(), Leaf::Training(self))]
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        vec![(String::new(), LeafMut::Training(self))]
    }
}

impl<T: Tree + ?Sized> Tree for Box<T> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        (**self).leaves()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        (**self).leaves_mut()
    }
}

impl<T: Tree> Tree for Option<T> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        self.as_ref().map_or_else(Vec::new, Tree::leaves)
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        self.as_mut().map_or_else(Vec::new, Tree::leaves_mut)
    }
}

impl<T: Tree> Tree for [T] {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        let parts = self.iter().enumerate();
        parts
            .flat_map(|(i, part)| under(&i.to_string(), part.leaves()).collect::<Vec<_>>())
            .collect()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        let parts = self.iter_mut().enumerate();
        parts
            .flat_map(|(i, part)| under(&i.to_string(), part.leaves_mut()).collect::<Vec<_>>())
            .collect()
    }
}

impl<T: Tree> Tree for Vec<T> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        self[..].leaves()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        self[..].leaves_mut()
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        self[..].leaves()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        self[..].leaves_mut()
    }
}

/// Parts of several types, named by their places as those of a list are: `(encoder, head)` needs no struct of its own.
macro_rules! tuples {
    ($($part:ident $at:tt),+) => {
        impl<$($part: Tree),+> Tree for ($($part,)+) {
            fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
                let mut leaves = Vec::new();
                $(leaves.extend(under(stringify!($at), self.$at.leaves()));)+
                leaves
            }

            fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
                let mut leaves = Vec::new();
                $(leaves.extend(under(stringify!($at), self.$at.leaves_mut()));)+
                leaves
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
