//! Softmax, and logarithms of sums of exponentials.

use crate::{DimList, Result, ShardTensor};
use shard_ops::{softmax as ops, statistics};

macro_rules! softmaxes {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Softmax over dims, which may be sharded: ranks merge the largest element and the sum of exponentials of every cell, and
        /// every element stays where it is.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// Dims below zero count from the end; over several dims it is one softmax of all their elements.
            ///
            /// # Collective
            /// All members of the mesh. Where a dim is sharded, two numbers per cell forward, in `f64`, and one backward; nothing
            /// moves otherwise. A partial tensor is reduced first.
            ///
            /// # Errors
            /// For a dim out of range or named twice, integers and truth values; what the communicator reports.
            #[track_caller]
            pub fn $name(&self, dims: impl Into<DimList>) -> Result<Self> {
                self.over(stringify!($name), dims, |exec, x, dims| ops::$name(exec, x, dims))
            }
        )*}
    };
}

softmaxes! {
    /// `exp(x) / Σ exp(x)` over some dims, without overflow.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let p = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.full([4], 1000.0, [shard(0).sizes([3, 0, 1])])?;
    ///     x.softmax(0)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(p[0], ndarray::arr1(&[0.25_f32; 4]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    softmax;
    /// The logarithm of the [softmax](Self::softmax), without overflow.
    log_softmax;
    /// The [softmax](Self::softmax) of `-x`.
    softmin;
}

impl ShardTensor {
    /// The logarithm of the sum of exponentials over some dims, without overflow; -∞ over nothing.
    ///
    /// Dims below zero count from the end. With `keepdim` the dims stay, with extent 1.
    ///
    /// # Collective
    /// All members of the mesh. Where a dim is sharded, two numbers per cell; nothing moves otherwise.
    ///
    /// # Errors
    /// As [`softmax`](Self::softmax).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let y = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.full([8], -3000.0, [shard(0)])?;
    ///     x.logsumexp(0, false)?.item()
    /// })?;
    /// assert!((y[0] - (8_f64.ln() - 3000.0)).abs() < 1e-3);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, dims: impl Into<DimList>, keepdim: bool) -> Result<Self> {
        self.over("logsumexp", dims, |exec, x, dims| {
            statistics::logsumexp(exec, x, dims, keepdim)
        })
    }
}
