//! Weights that are computed from parameters whenever they are used.

use super::tree::{Leaf, LeafMut, Training, Tree, under};
use super::{Buffer, Module};
use crate::{Dim, Error, Placements, Result, ShardTensor, tree};
use shard_comm::Calling;

/// How a weight is computed from the parameter that stands in its place, and what that needs beside it: a parametrisation in the sense of
/// `torch.nn.utils.parametrize`.
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Module, Parametrization, Parametrized};
/// use shard_tensor::{Result, ShardTensor, launch, shard, tree};
///
/// /// Weights that are never negative.
/// struct Positive;
/// tree!(Positive {});
///
/// impl Parametrization for Positive {
///     fn weight(&self, original: &ShardTensor) -> Result<ShardTensor> {
///         original.exp()
///     }
/// }
///
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let layer = Parametrized::new(Linear::new(&mesh, 3, 4)?.without_bias(), "weight", |_| Ok(Positive))?;
///     assert_eq!(layer.parameters()[0].0, "parametrizations.weight.original");
///     let y = layer.forward(&mesh.ones([5, 3], shard(0))?)?;
///     assert!(y.amin(.., false)?.item()? > 0.0);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub trait Parametrization: Tree {
    /// The name of the parameter that stands in the weight's place, below `parametrizations` and the weight's own name.
    const ORIGINAL: &'static str = "original";

    /// The weight, of the original's shape.
    ///
    /// # Collective
    /// All members of the mesh.
    ///
    /// # Errors
    /// What its ops report.
    fn weight(&self, original: &ShardTensor) -> Result<ShardTensor>;
}

/// A module of which one weight is computed by a [`Parametrization`] in every pass. Its parameter is the original instead, with PyTorch's name,
/// as `parametrizations.weight.original`; so plans, optimizers and checkpoints have to do with that.
#[derive(Clone, Debug)]
pub struct Parametrized<M, P> {
    /// The module, with the original where its weight was.
    inner: M,
    name: String,
    by: P,
}

impl<M: Tree, P: Parametrization> Parametrized<M, P> {
    /// The module with its weight of this name computed by what `by` makes of the weight as it is: mostly a parametrisation that changes
    /// nothing at first.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if the module has no parameter of this name; errors of `by`.
    #[track_caller]
    pub fn new(module: M, name: &str, by: impl FnOnce(&ShardTensor) -> Result<P>) -> Result<Self> {
        let _call = Calling::of("Parametrized::new");
        let leaves = module.leaves();
        let weight = leaves.iter().find_map(|(own, leaf)| match leaf {
            Leaf::Tensor(tensor) if own == name && tensor.is_parameter() => Some(*tensor),
            _ => None,
        });
        let Some(weight) = weight else {
            let names: Vec<&str> = leaves.iter().map(|(own, _)| own.as_str()).collect();
            return Err(Error::argument(
                "Parametrized::new",
                format!("one of {}", names.join(", ")),
                format!("{name:?}"),
                "name a parameter of the module",
            ));
        };
        let (by, name) = (by(weight)?, name.to_owned());
        drop(leaves);
        Ok(Self {
            inner: module,
            name,
            by,
        })
    }

    /// What computes the weight.
    pub fn parametrization(&self) -> &P {
        &self.by
    }

    /// The module with the weight as it is now, as far as gradients go computed from the original: for modules that have other ways to be
    /// applied, and for the weight itself.
    ///
    /// # Collective
    /// All members of the mesh. As the parametrisation's.
    ///
    /// # Errors
    /// What the parametrisation reports.
    #[track_caller]
    pub fn module(&self) -> Result<M>
    where
        M: Clone,
    {
        let _call = Calling::of("module");
        let mut module = self.inner.clone();
        for (name, leaf) in module.leaves_mut() {
            if let LeafMut::Tensor(weight) = leaf
                && name == self.name
            {
                *weight = self.by.weight(weight)?;
            }
        }
        Ok(module)
    }
}

/// The leaves of a module, with other names for the original and for what computes the weight, which come last.
fn renamed<P: Parametrization, L>(
    weight: &str,
    inner: Vec<(String, L)>,
    by: Vec<(String, L)>,
) -> Vec<(String, L)> {
    let below = format!("parametrizations.{weight}");
    let (original, mut all): (Vec<_>, Vec<_>) =
        inner.into_iter().partition(|(name, _)| name == weight);
    all.extend(under(&below, by));
    let original = original
        .into_iter()
        .map(|(_, leaf)| (P::ORIGINAL.to_owned(), leaf));
    all.extend(under(&below, original.collect()));
    all
}

impl<M: Tree, P: Parametrization> Tree for Parametrized<M, P> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        renamed::<P, _>(&self.name, self.inner.leaves(), self.by.leaves())
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        let Self { inner, name, by } = self;
        renamed::<P, _>(name, inner.leaves_mut(), by.leaves_mut())
    }
}

impl<M: Module + Clone, P: Parametrization> Module for Parametrized<M, P> {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.module()?.forward(x)
    }
}

/// Weights as a length and a direction each, `g v / |v|`: what [`weight_norm`] computes.
#[derive(Clone, Debug)]
pub struct WeightNorm {
    dim: usize,
    /// The lengths, one for each index of the dim, and 1 of all other dims.
    pub original0: ShardTensor,
}

tree!(WeightNorm { original0 });

impl WeightNorm {
    /// The lengths of a weight, taken over all dims but one: of linear layers and convolutions over all but 0.
    ///
    /// # Collective
    /// All members of the mesh. A sum of a number per length, where the other dims are sharded.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a dim out of range; what the communicator reports.
    #[track_caller]
    pub fn new(weight: &ShardTensor, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("WeightNorm::new");
        let dim = dim.into().within("WeightNorm::new", weight.ndim())?;
        let length = lengths(&weight.detach(), dim)?.reduced()?;
        Ok(Self {
            dim,
            original0: length.requires_grad()?,
        })
    }
}

/// The norms over all dims but one, which stay with 1 as their extent.
fn lengths(weight: &ShardTensor, dim: usize) -> Result<ShardTensor> {
    let others: Vec<usize> = (0..weight.ndim()).filter(|&d| d != dim).collect();
    match others.is_empty() {
        true => weight.abs(), // a norm over no dims
        false => weight.norm(2.0, others, true),
    }
}

impl Parametrization for WeightNorm {
    const ORIGINAL: &'static str = "original1";

    #[track_caller]
    fn weight(&self, original: &ShardTensor) -> Result<ShardTensor> {
        original.mul(&self.original0.div(&lengths(original, self.dim)?)?)
    }
}

/// The module with its `weight` as a length and a direction of each output, which are learnt apart: `torch.nn.utils.parametrizations.weight_norm`
/// (Salimans and Kingma, 2016). For other weights or dims, as of transposed convolutions, there is [`WeightNorm::new`].
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Module, weight_norm};
/// use shard_tensor::{launch, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let plain = Linear::new(&mesh, 4, 3)?;
///     let layer = weight_norm(plain.copied()?)?;
///     let names: Vec<String> = layer.parameters().into_iter().map(|p| p.0).collect();
///     assert_eq!(names, ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]);
///     let x = mesh.randn([5, 4], shard(0))?;
///     assert!(layer.forward(&x)?.allclose(&plain.forward(&x)?, 1e-5, 1e-6, false)?);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// All members of the mesh. As [`WeightNorm::new`], here and in each pass.
///
/// # Errors
/// [`Argument`](Error::Argument) if the module has no parameter `weight`; what the communicator reports.
#[track_caller]
pub fn weight_norm<M: Tree>(module: M) -> Result<Parametrized<M, WeightNorm>> {
    let _call = Calling::of("weight_norm");
    Parametrized::new(module, "weight", |weight| WeightNorm::new(weight, 0))
}

/// Weights divided by their largest singular value, of which an estimate is kept: what [`spectral_norm`] computes.
#[derive(Clone, Debug)]
pub struct SpectralNorm {
    dim: usize,
    steps: usize,
    training: Training,
    /// The singular vector of the dim, of length 1.
    pub u: Buffer,
    /// That of all others, row-major.
    pub v: Buffer,
}

/// Lengths below this count as this.
const EPS: f64 = 1e-12;

impl SpectralNorm {
    /// The norm of a weight as a matrix with this dim for its rows: of linear layers and convolutions dim 0, of transposed convolutions 1.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers. Sums where the weight is sharded, fifteen times.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a dim out of range; what the communicator reports.
    #[track_caller]
    pub fn new(weight: &ShardTensor, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("SpectralNorm::new");
        let dim = dim.into().within("SpectralNorm::new", weight.ndim())?;
        let matrix = matrix(&weight.detach(), dim)?;
        let mesh = weight.mesh().with_dtype(weight.dtype());
        let vector = |n: usize| unit(&mesh.randn([n], Placements::replicated())?);
        let (u, v) = (vector(matrix.shape()[0])?, vector(matrix.shape()[1])?);
        let mut norm = Self {
            dim,
            steps: 15,
            training: Training::default(),
            u: Buffer::new(&u),
            v: Buffer::new(&v),
        };
        norm.improve(&matrix)?;
        norm.steps = 1;
        Ok(norm)
    }

    /// The norm with so many steps towards the singular vectors in each pass; at first it is one.
    #[must_use]
    pub fn steps(self, steps: usize) -> Self {
        Self { steps, ..self }
    }

    /// Goes steps of the power method.
    fn improve(&self, matrix: &ShardTensor) -> Result<()> {
        let (mut u, mut v) = (self.u.get(), self.v.get());
        let (rows, columns) = (u.layout().clone(), v.layout().clone());
        for _ in 0..self.steps {
            u = unit(&matrix.matmul(&v)?)?.redistribute(&rows)?;
            v = unit(&matrix.transpose(0, 1)?.matmul(&u)?)?.redistribute(&columns)?;
        }
        self.u.set(&u)?;
        self.v.set(&v)
    }
}

/// A weight with one dim for the rows, and all others for the columns.
fn matrix(weight: &ShardTensor, dim: usize) -> Result<ShardTensor> {
    let rows = weight.shape()[dim];
    let columns = weight.numel().checked_div(rows).unwrap_or(0);
    weight.movedim(dim, 0)?.reshape([rows, columns])
}

fn unit(vector: &ShardTensor) -> Result<ShardTensor> {
    vector.normalize(2.0, 0, EPS)
}

impl Tree for SpectralNorm {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        spectral(
            Leaf::Buffer(&self.u),
            Leaf::Buffer(&self.v),
            Leaf::Training(&self.training),
        )
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        let Self { u, v, training, .. } = self;
        spectral(
            LeafMut::Buffer(u),
            LeafMut::Buffer(v),
            LeafMut::Training(training),
        )
    }
}

/// PyTorch's names.
fn spectral<L>(u: L, v: L, training: L) -> Vec<(String, L)> {
    let all = [("_u", u), ("_v", v), ("training", training)];
    under("0", all.map(|(name, leaf)| (name.to_owned(), leaf)).into()).collect()
}

impl Parametrization for SpectralNorm {
    #[track_caller]
    fn weight(&self, original: &ShardTensor) -> Result<ShardTensor> {
        let matrix = matrix(original, self.dim)?;
        if self.training.is_on() {
            if original.context().runs_again().get() {
                return Err(Error::argument(
                    "spectral_norm",
                    "a pass that is run once",
                    "one that `recompute` runs again",
                    "its vectors have gone on since: leave the layer out of `recompute`, or let it not train",
                ));
            }
            original
                .context()
                .no_grad(|| self.improve(&matrix.detach()))?;
        }
        let largest = matrix.matmul(&self.v.get())?.dot(&self.u.get())?;
        original.div(&largest)
    }
}

/// The module with its `weight` divided by its largest singular value, so that it lengthens nothing: `torch.nn.utils.parametrizations.spectral_norm`
/// (Miyato and others, 2018), as discriminators have it. The singular vectors are buffers, which each pass improves by a step while the module
/// trains. For other weights or dims, as of transposed convolutions, there is [`SpectralNorm::new`].
///
/// ```
/// use shard_tensor::nn::{Conv, ModelExt, Module, spectral_norm};
/// use shard_tensor::{ConvOptions, launch, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let layer = spectral_norm(Conv::new(&mesh, 2, 4, [3, 3], ConvOptions::new().padding(1))?)?;
///     layer.forward(&mesh.randn([1, 2, 6, 6], shard(2))?)?.expect_layout(shard(2))?;
///     let names: Vec<String> = layer.buffers().into_iter().map(|b| b.0).collect();
///     assert_eq!(names, ["parametrizations.weight.0._u", "parametrizations.weight.0._v"]);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// All ranks of the program, as [`SpectralNorm::new`]. A pass sums two vectors where the weight is sharded.
///
/// # Errors
/// [`Argument`](Error::Argument) if the module has no parameter `weight`, and from a backward pass where the layer trains inside
/// [`recompute`](crate::Context::recompute): what ran once had other vectors; what the communicator reports.
#[track_caller]
pub fn spectral_norm<M: Tree>(module: M) -> Result<Parametrized<M, SpectralNorm>> {
    let _call = Calling::of("spectral_norm");
    Parametrized::new(module, "weight", |weight| SpectralNorm::new(weight, 0))
}
