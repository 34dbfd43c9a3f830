//! Layers with named parameters.
//!
//! Parameters are replicated on the mesh they are made on and initialised as PyTorch does it, from the context's
//! random numbers: the same on any mesh. [`ModelExt::place`], [`ModelExt::fully_sharded`] and [`ModelExt::distribute`] lay them
//! elsewhere. Names are PyTorch's, so that its weights [load](load_state_with).
//!
//! Layers are written with the module, `nn::Linear`, `nn::Conv`, as PyTorch's are.

mod adaptive;
mod attention;
mod buffer;
mod conv;
mod drop_path;
mod embedding;
mod experts;
pub mod init;
mod linear;
mod load;
mod moved;
mod norm;
pub(crate) mod parallel_plan;
mod parametrized;
mod place;
mod pool;
mod position;
mod prelu;
mod recurrent;
mod sequential;
mod spectral;
mod state_space;
mod transformer;
mod tree;

pub use adaptive::AdaptiveLogSoftmax;
pub use attention::{MultiheadAttention, NeighborhoodAttention};
pub use buffer::Buffer;
pub use conv::{Conv, ConvTranspose};
pub use drop_path::DropPath;
pub use embedding::{Embedding, EmbeddingBag};
pub use experts::{ExpertRouting, MixtureOfExperts};
pub use linear::{Bilinear, Linear};
pub use load::{Differences, Strict, load_state_with};
pub use moved::{Distributed, Moved, distribute_module};
pub use norm::{BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm};
pub use parallel_plan::ParallelPlan;
pub use parametrized::{
    Parametrization, Parametrized, SpectralNorm, WeightNorm, spectral_norm, weight_norm,
};
pub use pool::{
    AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, FractionalMaxPool, LpPool, MaxPool, MaxUnpool,
};
pub use position::{PositionEmbedding, Rotary, SinCos};
pub use prelu::PRelu;
pub use recurrent::{Gru, GruCell, Lstm, LstmCell, Recurrent, RecurrentCell, Rnn, RnnCell};
pub use sequential::{Dropout, Map, Sequential};
pub use spectral::SpectralConv;
pub use state_space::{SelectiveState, SelectiveStateSpace, StateSpaceSizes};
pub use transformer::{
    TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
};
pub use tree::{Leaf, LeafMut, ModelExt, Training, Tree, under};

use crate::{Error, Mesh, Placements, Result, Shape, ShardTensor};

/// Tensors by name, in a fixed order that is the same on every rank.
pub type Parameters = Vec<(String, ShardTensor)>;

/// A part of a model that makes one tensor of another.
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Module};
/// use shard_tensor::{Result, ShardTensor, launch, shard, tree};
///
/// struct Mlp { hidden: Linear, head: Linear }
/// tree!(Mlp { hidden, head });
///
/// impl Module for Mlp {
///     fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
///         self.head.forward(&self.hidden.forward(x)?.gelu()?)
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
pub trait Module: Tree {
    /// Applies it.
    ///
    /// # Collective
    /// All members of the input's mesh.
    ///
    /// # Errors
    /// What its ops report.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor>;
}

/// A replicated parameter, uniform in `±1/√fan_in`: what PyTorch gives linear and convolutional layers.
#[track_caller]
fn uniform(mesh: &Mesh, shape: impl Into<Shape>, fan_in: usize) -> Result<ShardTensor> {
    let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
    mesh.uniform(shape, -bound..bound, Placements::replicated())?
        .requires_grad()
}

/// So many layers, if there is memory for them at all: a number that nobody means is refused before the first is made.
#[track_caller]
fn layers_of<T>(
    op: &'static str,
    count: usize,
    layer: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<T>> {
    let mut layers = Vec::new();
    if layers.try_reserve_exact(count).is_err() {
        return Err(Error::argument(
            op,
            "as many layers as memory holds",
            count.to_string(),
            "give a smaller number of layers",
        ));
    }
    for made in (0..count).map(layer) {
        layers.push(made?);
    }
    Ok(layers)
}
