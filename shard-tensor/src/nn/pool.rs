//! Pools.

use super::Module;
use crate::{PoolOptions, Result, Shape, ShardTensor, tree};

/// Layers that hold options and apply one op.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($options:ty) = $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name($options);

        impl $name {
            /// The layer with these options.
            pub fn new(options: impl Into<$options>) -> Self {
                Self(options.into())
            }
        }

        tree!($name {});

        impl Module for $name {
            #[track_caller]
            fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
                x.$op(self.0.clone())
            }
        }
    )*};
}

options! {
    /// The greatest of each window.
    MaxPool(PoolOptions) = max_pool;
    /// The mean of each window.
    AvgPool(PoolOptions) = avg_pool;
    /// Means over so many windows as there are to be outputs.
    AdaptiveAvgPool(Shape) = adaptive_avg_pool;
    /// The greatest of so many windows as there are to be outputs.
    AdaptiveMaxPool(Shape) = adaptive_max_pool;
}

/// The p-norm of each window.
#[derive(Clone, Debug)]
pub struct LpPool {
    norm: f64,
    options: PoolOptions,
}

impl LpPool {
    /// The layer of this norm; of the options, size, stride and rounding count.
    pub fn new(norm: f64, options: impl Into<PoolOptions>) -> Self {
        let options = options.into();
        Self { norm, options }
    }
}

tree!(LpPool {});

impl Module for LpPool {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.lp_pool(self.norm, self.options.clone())
    }
}

/// The greatest of each of so many windows that lie on the plane by chance, others in each call: `torch.nn.FractionalMaxPool2d` and `3d`.
///
/// ```
/// use shard_tensor::nn::{FractionalMaxPool, Module};
/// use shard_tensor::{launch, shard};
/// launch(2, |ctx| {
///     let x = ctx.mesh_of(2)?.rand([2, 3, 9, 8], shard(2))?;
///     assert_eq!(FractionalMaxPool::new(2, [5, 4]).forward(&x)?.shape(), [2, 3, 5, 4]);
///     assert_eq!(FractionalMaxPool::by_ratio(2, [0.5, 0.75]).forward(&x)?.shape(), [2, 3, 4, 6]);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FractionalMaxPool {
    kernel: Shape,
    outputs: Outputs,
}

/// How many windows there are along each dim.
#[derive(Clone, Debug)]
enum Outputs {
    Number(Shape),
    Ratio(Vec<f64>),
}

impl FractionalMaxPool {
    /// The layer of windows of these extents, so many of them along each dim.
    pub fn new(kernel: impl Into<Shape>, outputs: impl Into<Shape>) -> Self {
        Self {
            kernel: kernel.into(),
            outputs: Outputs::Number(outputs.into()),
        }
    }

    /// The layer of so many windows as a share of each of the plane's extents comes to, rounded down; one for all dims, or one for each.
    pub fn by_ratio(kernel: impl Into<Shape>, ratios: impl Into<Vec<f64>>) -> Self {
        Self {
            kernel: kernel.into(),
            outputs: Outputs::Ratio(ratios.into()),
        }
    }
}

tree!(FractionalMaxPool {});

impl Module for FractionalMaxPool {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let spatial = x.shape().iter().skip(2);
        let outputs: Vec<usize> = match &self.outputs {
            Outputs::Number(outputs) => outputs.to_vec(),
            Outputs::Ratio(ratios) => (ratios.iter().cycle())
                .zip(spatial)
                .map(|(ratio, &n)| (ratio * n as f64) as usize)
                .collect(),
        };
        x.fractional_max_pool(self.kernel.clone(), outputs, None)
    }
}

/// The way back from a [`MaxPool`], with the indices that it found. It takes two tensors, so it is no [`Module`].
///
/// ```
/// use shard_tensor::nn::MaxUnpool;
/// use shard_tensor::{PoolOptions, launch, shard};
/// let planes = launch(2, |ctx| {
///     let x = ctx.mesh_of(2)?.from_fn([1, 1, 6], [shard(2)], |i| [1.0, 3.0, 2.0, 0.0, 5.0, 4.0][i[2]])?;
///     let pool = PoolOptions::new(2);
///     let (y, places) = x.max_pool_with_indices(pool.clone())?;
///     MaxUnpool::new(pool).unpool(&y, &places)?.to_array::<f32>()
/// })?;
/// assert_eq!(planes[0].as_slice(), Some(&[0.0, 3.0, 2.0, 0.0, 5.0, 0.0][..]));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MaxUnpool(PoolOptions);

impl MaxUnpool {
    /// The layer with the options of the pool.
    pub fn new(options: impl Into<PoolOptions>) -> Self {
        Self(options.into())
    }

    /// The values at the places that indices name, and zeros elsewhere, in the plane that the windows side by side would cover.
    /// Where the pool left out a rest, give the extents to [`ShardTensor::max_unpool`].
    ///
    /// # Collective
    /// As [`ShardTensor::max_unpool`].
    ///
    /// # Errors
    /// As [`ShardTensor::max_unpool`].
    #[track_caller]
    pub fn unpool(&self, x: &ShardTensor, indices: &ShardTensor) -> Result<ShardTensor> {
        x.max_unpool_of(indices, self.0.clone())
    }
}
