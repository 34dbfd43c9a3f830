//! Layers with named parameters.
//!
//! Parameters are replicated on the mesh they are made on and initialised as PyTorch does it, from the context's
//! random numbers: the same on any mesh.

mod conv;
mod linear;
mod norm;

pub use conv::Conv;
pub use linear::Linear;
pub use norm::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};

use crate::{Mesh, Placements, Result, Shape, ShardTensor};

/// Named parameters, in a fixed order that is the same on every rank.
pub type Parameters = Vec<(String, ShardTensor)>;

/// A part of a model.
///
/// ```
/// use shard_tensor::nn::{Linear, Module, Parameters, prefixed};
/// use shard_tensor::{Result, ShardTensor, launch, shard};
///
/// struct Mlp { hidden: Linear, head: Linear }
///
/// impl Module for Mlp {
///     fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
///         self.head.forward(&self.hidden.forward(x)?.gelu()?)
///     }
///
///     fn parameters(&self) -> Parameters {
///         [prefixed("hidden", &self.hidden), prefixed("head", &self.head)].concat()
///     }
/// }
///
/// let names = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let model = Mlp { hidden: Linear::new(&mesh, 4, 8)?, head: Linear::new(&mesh, 8, 1)? };
///     let y = model.forward(&mesh.randn([5, 4], [shard(0)])?)?;
///     assert_eq!(y.layout().to_string(), "S(0)");
///     Ok(model.parameters().into_iter().map(|p| p.0).collect::<Vec<_>>())
/// })?;
/// assert_eq!(names[0], ["hidden.weight", "hidden.bias", "head.weight", "head.bias"]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub trait Module {
    /// Applies it.
    ///
    /// # Collective
    /// All members of the input's mesh.
    ///
    /// # Errors
    /// What its ops report.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor>;

    /// Its parameters, by name.
    fn parameters(&self) -> Parameters;
}

/// The parameters of a part, named `prefix.name`.
pub fn prefixed(prefix: &str, module: &dyn Module) -> Parameters {
    module
        .parameters()
        .into_iter()
        .map(|(name, tensor)| (format!("{prefix}.{name}"), tensor))
        .collect()
}

/// A weight and a bias, where there is one.
fn weight_and_bias(weight: &ShardTensor, bias: Option<&ShardTensor>) -> Parameters {
    let named = |name: &str, tensor: &ShardTensor| (name.to_owned(), tensor.clone());
    std::iter::once(named("weight", weight))
        .chain(bias.map(|b| named("bias", b)))
        .collect()
}

/// A replicated parameter, uniform in `±1/√fan_in`: what PyTorch gives linear and convolutional layers.
fn uniform(mesh: &Mesh, shape: impl Into<Shape>, fan_in: usize) -> Result<ShardTensor> {
    let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
    mesh.uniform(shape, -bound..bound, Placements::replicated())?
        .requires_grad()
}
