//! Reductions and products.

use crate::{DimList, Error, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::{Exec, OpError, Value, matmul, reduce as ops};

/// Methods that reduce over dims.
macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Reductions over dims. Over a sharded dim the result is partial: each rank's own share, combined when it is
        /// read or a non-linear op needs it.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// Dims below zero count from the end. With `keepdim` the dims stay, with extent 1. A tensor without dims is reduced along its
            /// only dim, 0 or -1, as in PyTorch, and so by everything that goes over some dims.
            ///
            /// # Collective
            /// All members of the mesh. No communication, but that a partial tensor is reduced first, unless it is summed in
            /// its own type. So it is in `nansum` and `nanmean`, which have to see what is NaN.
            ///
            /// # Errors
            /// For a dim out of range or named twice; for integers in [`mean`](Self::mean) and [`nanmean`](Self::nanmean).
            #[track_caller]
            pub fn $name(&self, dims: impl Into<DimList>, keepdim: bool) -> Result<Self> {
                self.over(stringify!($name), dims, |exec, x, dims| ops::$name(exec, x, dims, keepdim))
            }
        )*}
    };
}

reductions! {
    /// The sum over some dims. Of integers and truth values it is `i64`, and wraps, as PyTorch's.
    sum;
    /// The mean over some dims.
    mean;
    /// The sum over some dims of all that is not NaN, 0 if nothing else is; NaN has no gradient. Of integers as [`sum`](Self::sum).
    nansum;
    /// The mean over some dims of all that is not NaN, which is NaN if nothing else is; NaN has no gradient.
    nanmean;
    /// The greatest value over some dims; NaN if any is, which makes the gradient NaN. Ties share the gradient evenly. Of nothing it is -∞,
    /// and of integers the least that there is, where PyTorch has an error.
    amax;
    /// The least value over some dims; NaN if any is, which makes the gradient NaN. Ties share the gradient evenly. Of nothing it is ∞, and
    /// of integers the greatest that there is, where PyTorch has an error.
    amin;
    /// The product over some dims. Of integers and truth values it is `i64`, and wraps, as PyTorch's. The gradient of an element is the product
    /// of the others, also where elements are 0 or infinite; where a line has both it is NaN.
    prod;
    /// Whether any element over some dims is not zero, as `bool`.
    any;
    /// Whether all elements over some dims are not zero, as `bool`.
    all;
    /// How many elements over some dims are not zero, as `i64`.
    count_nonzero;
}

impl ShardTensor {
    /// The sum of all elements.
    ///
    /// # Collective
    /// All members of the mesh. No communication: the result is partial over the axes that shard the tensor.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    #[track_caller]
    pub fn sum_all(&self) -> Result<Self> {
        self.sum(self.all_dims(), false)
    }

    /// The mean of all elements.
    ///
    /// # Collective
    /// As [`sum_all`](Self::sum_all).
    ///
    /// # Errors
    /// As [`mean`](Self::mean).
    #[track_caller]
    pub fn mean_all(&self) -> Result<Self> {
        self.mean(self.all_dims(), false)
    }

    pub(super) fn all_dims(&self) -> Vec<usize> {
        (0..self.ndim()).collect()
    }

    /// Dims of the tensor. A number has none, and is to PyTorch one element along dim 0: there is nothing to reduce.
    pub(super) fn dims_of(&self, op: &'static str, dims: impl Into<DimList>) -> Result<Vec<usize>> {
        let dims = dims.into();
        if self.ndim() == 0 && dims.is_first() {
            return Ok(Vec::new());
        }
        let dims = dims.of(op, self.ndim())?;
        if let Some(dim) = dims.iter().find(|&&d| d >= self.ndim()) {
            return Err(Error::argument(
                op,
                format!("dims below {}", self.ndim()),
                format!("dim {dim} of shape {:?}", self.shape()),
                "count dims from 0",
            ));
        }
        Ok(dims)
    }

    #[track_caller]
    pub(super) fn over(
        &self,
        op: &'static str,
        dims: impl Into<DimList>,
        f: impl Fn(&dyn Exec, &Value, &[usize]) -> Result<Value, OpError>,
    ) -> Result<Self> {
        let _call = Calling::of(op);
        let dims = self.dims_of(op, dims)?;
        self.run(|exec, x| f(exec, x, &dims))
    }
}

/// Products. A sharded contraction gives a partial result.
impl ShardTensor {
    /// The matrix product over the last two dims, the others broadcast; vectors as in `torch.matmul`. Products of integers keep their type
    /// and wrap, as PyTorch's on a CPU.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![[100_u8, 200, 1]], shard(1))?;
    ///     let w = mesh.distribute(&array![[2_u8], [1], [3]], replicate())?;
    ///     let y = x.matmul(&w)?;
    ///     assert_eq!(y.layout().to_string(), "P(sum)");
    ///     y.to_array::<u8>()
    /// })?;
    /// assert_eq!(found[0], array![[147]].into_dyn()); // 403 is 147 more than 256
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Nothing moves if both operands agree on the sharding of the contraction; the result
    /// is then partial over its axes. Else the cheapest redistribution is made.
    ///
    /// # Errors
    /// If shapes do not fit or types differ, and for truth values; what the communicator reports.
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        self.run2(other, matmul::matmul)
    }

    /// The scalar product of two vectors.
    ///
    /// # Collective
    /// As [`matmul`](Self::matmul).
    ///
    /// # Errors
    /// As [`matmul`](Self::matmul).
    #[track_caller]
    pub fn dot(&self, other: &Self) -> Result<Self> {
        let _call = Calling::of("dot");
        self.run2(other, matmul::dot)
    }

    /// `x wᵀ + b` over the last dim, with `w` of shape `[out, in]`.
    ///
    /// # Collective
    /// As [`matmul`](Self::matmul).
    ///
    /// # Errors
    /// As [`matmul`](Self::matmul).
    #[track_caller]
    pub fn linear(&self, weight: &Self, bias: Option<&Self>) -> Result<Self> {
        let _call = Calling::of("linear");
        let bias = bias.map(Self::value);
        self.run2(weight, |exec, x, w| {
            matmul::linear(exec, x, w, bias.as_ref())
        })
    }
}
