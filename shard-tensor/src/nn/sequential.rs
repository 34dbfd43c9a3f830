//! Layers one after the other, and layers without parameters.

use super::{Leaf, LeafMut, Module, Training, Tree};
use crate::{Result, ShardTensor, tree};
use shard_comm::Calling;

/// Layers that are applied one after the other, named by their index as PyTorch's are.
///
/// ```
/// use shard_tensor::nn::{self, ModelExt, Module};
/// use shard_tensor::{ConvOptions, PoolOptions, launch, shard};
/// let names = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let net = nn::Sequential::new()
///         .then(nn::Conv::new(&mesh, 3, 8, [3, 3], ConvOptions::new().padding(1))?)
///         .then(nn::Map::new(|x| x.gelu()))
///         .then(nn::MaxPool::new(PoolOptions::new([2, 2])));
///     net.forward(&mesh.ones([1, 3, 8, 6], shard(2))?)?.expect_layout(shard(2))?;
///     Ok(net.parameters().into_iter().map(|p| p.0).collect::<Vec<_>>())
/// })?;
/// assert_eq!(names[0], ["0.weight", "0.bias"]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

/// A layer of any type that can be cloned.
trait Layer: Module {
    fn cloned(&self) -> Box<dyn Layer>;
}

impl<M: Module + Clone + 'static> Layer for M {
    fn cloned(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Layer> {
    fn clone(&self) -> Self {
        (**self).cloned()
    }
}

impl Sequential {
    /// No layers yet, which change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// One layer more, which can be cloned, so that all of them can.
    #[must_use]
    pub fn then(mut self, layer: impl Module + Clone + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Tree for Sequential {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        self.layers.leaves()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        self.layers.leaves_mut()
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        Ok(x)
    }
}

impl std::fmt::Debug for Sequential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.leaves().into_iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

/// A function as a layer: an activation, `Map::new(|x| x.gelu())`, and whatever else has no parameters and is the same in training, as
/// PyTorch's `Flatten`, `Unflatten`, `PixelShuffle`, `PixelUnshuffle`, `Fold`, `Unfold`, `Upsample`, `ZeroPad2d`, `LocalResponseNorm`,
/// `Softmax2d`, `CosineSimilarity` and `Identity`.
///
/// ```
/// use shard_tensor::nn::{Map, Module, Sequential};
/// use shard_tensor::{ResampleMode, launch, shard};
/// launch(2, |ctx| {
///     let layers = Sequential::new()
///         .then(Map::new(|x| x.pixel_shuffle(2)))
///         .then(Map::new(|x| x.interpolate_by(&[2.0, 2.0], ResampleMode::Nearest)))
///         .then(Map::new(|x| x.softmax(1)))
///         .then(Map::new(|x| x.flatten_dims(1, -1)));
///     let y = layers.forward(&ctx.mesh_of(2)?.ones([3, 8, 5, 2], shard(0))?)?;
///     assert_eq!(y.shape(), [3, 2 * 20 * 8]);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Map<F>(F);

impl<F: Fn(&ShardTensor) -> Result<ShardTensor>> Map<F> {
    /// The layer that applies it.
    pub fn new(f: F) -> Self {
        Self(f)
    }
}

impl<F> Tree for Map<F> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        Vec::new()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        Vec::new()
    }
}

impl<F: Fn(&ShardTensor) -> Result<ShardTensor>> Module for Map<F> {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        (self.0)(x)
    }
}

/// While it [trains](super::ModelExt::train), sets elements to zero with a probability and scales the others up, or drops in [another
/// way](Self::by).
#[derive(Clone, Debug)]
pub struct Dropout {
    p: f64,
    how: fn(&ShardTensor, f64) -> Result<ShardTensor>,
    training: Training,
}

impl Dropout {
    /// A layer that drops with this probability.
    pub fn new(p: f64) -> Self {
        Self::by(|x, p| x.dropout(p), p)
    }

    /// A layer that drops with this probability by one of the methods for that: `torch.nn.Dropout2d`, `AlphaDropout` and the like.
    ///
    /// ```
    /// use shard_tensor::nn::{Dropout, ModelExt, Module};
    /// use shard_tensor::{ShardTensor, launch, shard};
    /// let kept = launch(2, |ctx| {
    ///     let layer = Dropout::by(ShardTensor::dropout2d, 0.5);
    ///     let x = ctx.mesh_of(2)?.ones([4, 8, 3, 3], shard(0))?;
    ///     let channels = layer.forward(&x)?.sum([2, 3], false)?.to_array::<f32>()?;
    ///     assert!(channels.iter().all(|&sum| sum == 0.0 || sum == 18.0));
    ///     layer.eval();
    ///     layer.forward(&x)?.mean_all()?.item()
    /// })?;
    /// assert_eq!(kept[0], 1.0);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    pub fn by(how: fn(&ShardTensor, f64) -> Result<ShardTensor>, p: f64) -> Self {
        let training = Training::default();
        Self { p, how, training }
    }
}

tree!(Dropout { training });

impl Module for Dropout {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        // A function that is a value does not know where it is called.
        let _call = Calling::throughout("Dropout");
        match self.training.is_on() && self.p != 0.0 {
            true => (self.how)(x, self.p),
            false => Ok(x.clone()),
        }
    }
}
