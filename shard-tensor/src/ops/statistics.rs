//! Variances, places of extremes, norms and quantiles.

use crate::{Dim, DimList, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::statistics::{self as ops, Interpolation, NormOrder};
use shard_ops::{Exec, OpError, Value, pairwise};

/// Statistics over dims. Where a dim is sharded, ranks merge a few numbers per cell, at once; the elements stay where they are.
impl ShardTensor {
    /// The variance over some dims: squared deviations from the mean, divided by the number of elements less `correction`, which is 1
    /// for the unbiased estimate. It is as exact for data far from 0 as for others.
    ///
    /// Dims below zero count from the end. With `keepdim` the dims stay, with extent 1.
    ///
    /// # Collective
    /// All members of the mesh. Where a dim is sharded, three numbers per cell, in `f64`; nothing moves otherwise. A partial tensor is
    /// reduced first.
    ///
    /// # Errors
    /// For a dim out of range or named twice, integers and truth values; what the communicator reports.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([3], [shard(0)], |i| 1e4 + i[0] as f64)?;
    ///     x.var(0, 1.0, false)?.item()
    /// })?;
    /// assert_eq!(found[0], 1.0);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn var(&self, dims: impl Into<DimList>, correction: f64, keepdim: bool) -> Result<Self> {
        self.over("var", dims, |exec, x, dims| {
            ops::var(exec, x, dims, correction, keepdim)
        })
    }

    /// The square root of the [variance](Self::var). Where that is 0 it has no gradient.
    ///
    /// # Collective
    /// As [`var`](Self::var).
    ///
    /// # Errors
    /// As [`var`](Self::var).
    #[track_caller]
    pub fn std(&self, dims: impl Into<DimList>, correction: f64, keepdim: bool) -> Result<Self> {
        self.over("std", dims, |exec, x, dims| {
            ops::std(exec, x, dims, correction, keepdim)
        })
    }

    /// The [variance](Self::var) and the mean, of one reduction.
    ///
    /// # Collective
    /// As [`var`](Self::var).
    ///
    /// # Errors
    /// As [`var`](Self::var).
    #[track_caller]
    pub fn var_mean(
        &self,
        dims: impl Into<DimList>,
        correction: f64,
        keepdim: bool,
    ) -> Result<(Self, Self)> {
        self.two("var_mean", dims, |exec, x, dims| {
            ops::var_mean(exec, x, dims, correction, keepdim)
        })
    }

    /// The [standard deviation](Self::std) and the mean, of one reduction.
    ///
    /// # Collective
    /// As [`var`](Self::var).
    ///
    /// # Errors
    /// As [`var`](Self::var).
    #[track_caller]
    pub fn std_mean(
        &self,
        dims: impl Into<DimList>,
        correction: f64,
        keepdim: bool,
    ) -> Result<(Self, Self)> {
        self.two("std_mean", dims, |exec, x, dims| {
            ops::std_mean(exec, x, dims, correction, keepdim)
        })
    }

    /// The index of the largest element over some dims, as `i64`: the first of equal ones, and NaN before all numbers. Over several dims
    /// it is the row-major index among their elements, so that over all dims it is that of the flattened tensor. Reduced dims
    /// disappear; with [`argmax_keepdim`](Self::argmax_keepdim) they stay.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.from_fn([7], [shard(0)], |i| (i[0] % 4) as f64)?;
    ///     x.argmax(0)?.to_array::<i64>()
    /// })?;
    /// assert_eq!(found[0], ndarray::arr0(3).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where a dim is sharded, an element and an index per cell; nothing moves otherwise. A partial tensor is
    /// reduced first.
    ///
    /// # Errors
    /// For a dim out of range, named twice or without elements; what the communicator reports.
    #[track_caller]
    pub fn argmax(&self, dims: impl Into<DimList>) -> Result<Self> {
        self.over("argmax", dims, |exec, x, dims| {
            ops::argmax(exec, x, dims, false)
        })
    }

    /// As [`argmax`](Self::argmax), with reduced dims of extent 1: what [`gather`](Self::gather) takes.
    ///
    /// # Collective
    /// As [`argmax`](Self::argmax).
    ///
    /// # Errors
    /// As [`argmax`](Self::argmax).
    #[track_caller]
    pub fn argmax_keepdim(&self, dims: impl Into<DimList>) -> Result<Self> {
        self.over("argmax_keepdim", dims, |exec, x, dims| {
            ops::argmax(exec, x, dims, true)
        })
    }

    /// The index of the smallest element over some dims: as [`argmax`](Self::argmax).
    ///
    /// # Collective
    /// As [`argmax`](Self::argmax).
    ///
    /// # Errors
    /// As [`argmax`](Self::argmax).
    #[track_caller]
    pub fn argmin(&self, dims: impl Into<DimList>) -> Result<Self> {
        self.over("argmin", dims, |exec, x, dims| {
            ops::argmin(exec, x, dims, false)
        })
    }

    /// As [`argmin`](Self::argmin), with reduced dims of extent 1.
    ///
    /// # Collective
    /// As [`argmax`](Self::argmax).
    ///
    /// # Errors
    /// As [`argmax`](Self::argmax).
    #[track_caller]
    pub fn argmin_keepdim(&self, dims: impl Into<DimList>) -> Result<Self> {
        self.over("argmin_keepdim", dims, |exec, x, dims| {
            ops::argmin(exec, x, dims, true)
        })
    }

    /// The largest element of a dim and its index, as [`argmax`](Self::argmax). The gradient goes to that element, where that of
    /// [`amax`](Self::amax) is shared between equal ones.
    ///
    /// # Collective
    /// As [`argmax`](Self::argmax); where gradients are wanted, also what [`gather`](Self::gather) of one element per cell takes.
    ///
    /// # Errors
    /// As [`argmax`](Self::argmax).
    #[track_caller]
    pub fn max(&self, dim: impl Into<Dim>, keepdim: bool) -> Result<(Self, Self)> {
        self.two_along("max", dim, |exec, x, dim| ops::max(exec, x, dim, keepdim))
    }

    /// The smallest element of a dim and its index: as [`max`](Self::max).
    ///
    /// # Collective
    /// As [`max`](Self::max).
    ///
    /// # Errors
    /// As [`argmax`](Self::argmax).
    #[track_caller]
    pub fn min(&self, dim: impl Into<Dim>, keepdim: bool) -> Result<(Self, Self)> {
        self.two_along("min", dim, |exec, x, dim| ops::min(exec, x, dim, keepdim))
    }

    /// The least and the greatest value over some dims, as [`amin`](Self::amin) and [`amax`](Self::amax): `torch.aminmax`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let (least, most) = ctx.mesh_of(2)?.arange(7, shard(0))?.aminmax(0, false)?;
    ///     Ok((least.item()?, most.item()?))
    /// })?;
    /// assert_eq!(found[0], (0.0, 6.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication: the results are partial over the axes that shard reduced dims.
    ///
    /// # Errors
    /// As [`amax`](Self::amax).
    #[track_caller]
    pub fn aminmax(&self, dims: impl Into<DimList>, keepdim: bool) -> Result<(Self, Self)> {
        self.two("aminmax", dims, |exec, x, dims| {
            shard_ops::reduce::aminmax(exec, x, dims, keepdim)
        })
    }

    /// The norm of some order over some dims: a number `p` for `(Σ |x|^p)^(1/p)`, 0 for how many elements are not zero, and infinities
    /// for the largest and the smallest magnitude. Where it is 0 there is no gradient.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let lengths = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([2], [shard(0)], |i| 3.0 + i[0] as f64)?;
    ///     Ok((x.norm(2.0, 0, false)?.item()?, x.norm(f64::INFINITY, 0, false)?.item()?))
    /// })?;
    /// assert_eq!(lengths[0], (5.0, 4.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where a dim is sharded, a number per cell; nothing moves otherwise.
    ///
    /// # Errors
    /// As [`var`](Self::var); for the largest or smallest magnitude of dims without elements, of which there is none.
    #[track_caller]
    pub fn norm(
        &self,
        order: impl Into<NormOrder>,
        dims: impl Into<DimList>,
        keepdim: bool,
    ) -> Result<Self> {
        let _call = Calling::of("norm");
        let order: NormOrder = order.into();
        self.over("norm", dims, |exec, x, dims| {
            ops::norm(exec, x, order, dims, keepdim)
        })
    }

    /// The tensor divided by its [norm](Self::norm) over some dims, or by `eps` where that is larger.
    ///
    /// # Collective
    /// As [`norm`](Self::norm).
    ///
    /// # Errors
    /// As [`norm`](Self::norm).
    #[track_caller]
    pub fn normalize(
        &self,
        order: impl Into<NormOrder>,
        dims: impl Into<DimList>,
        eps: f64,
    ) -> Result<Self> {
        let _call = Calling::of("normalize");
        let order: NormOrder = order.into();
        self.over("normalize", dims, |exec, x, dims| {
            ops::normalize(exec, x, order, dims, eps)
        })
    }

    /// The cosine of the angle to another tensor along a dim of both broadcast: the product of the two, each divided by its length, or by
    /// `eps` where that is larger, and is then no function of the tensor: PyTorch differentiates the length all the same.
    ///
    /// # Collective
    /// As [`norm`](Self::norm), of three numbers per cell; communicates to align misaligned operands.
    ///
    /// # Errors
    /// As [`norm`](Self::norm); if shapes do not broadcast.
    #[track_caller]
    pub fn cosine_similarity(&self, other: &Self, dim: impl Into<Dim>, eps: f64) -> Result<Self> {
        let _call = Calling::of("cosine_similarity");
        let ndim = self.ndim().max(other.ndim());
        let dim = dim.into().of("cosine_similarity", ndim)?;
        self.run2(other, |exec, a, b| {
            ops::cosine_similarity(exec, a, b, dim, eps)
        })
    }

    /// The distances between each of these points, `[batch..., n, dims]`, and each of others, `[batch..., k, dims]`, as norms of some order
    /// of their differences: `[batch..., n, k]`. Batch dims broadcast. Where a distance is 0 there is no gradient. Points without coordinates are
    /// 0 apart.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let apart = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([3, 2], [shard(0)], |i| i[0] as f64 * (3.0 + i[1] as f64))?;
    ///     x.cdist(&x, 2.0)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(apart[0], ndarray::arr2(&[[0.0, 5.0, 10.0], [5.0, 0.0, 5.0], [10.0, 5.0, 0.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Nothing moves where one of the two is replicated over the mesh axes that shard the other's points; where
    /// both shard the coordinates alike, one number for each pair.
    ///
    /// # Errors
    /// For shapes that do not fit, types that differ or are no floats, and an order below 0; what the communicator reports.
    #[track_caller]
    pub fn cdist(&self, other: &Self, order: impl Into<NormOrder>) -> Result<Self> {
        let _call = Calling::of("cdist");
        let order: NormOrder = order.into();
        self.run2(other, |exec, x, y| pairwise::cdist(exec, x, y, order))
    }

    /// The distances between vectors along the last dim of this and of the other tensor, which broadcast: norms of some order of their
    /// differences, each of which has `eps` added, as PyTorch has it.
    ///
    /// # Collective
    /// As [`norm`](Self::norm); communicates to align misaligned operands.
    ///
    /// # Errors
    /// As [`norm`](Self::norm); for tensors without dims, shapes that do not broadcast, and types that differ.
    #[track_caller]
    pub fn pairwise_distance(
        &self,
        other: &Self,
        order: impl Into<NormOrder>,
        eps: f64,
        keepdim: bool,
    ) -> Result<Self> {
        let _call = Calling::of("pairwise_distance");
        let order: NormOrder = order.into();
        self.run2(other, |exec, x, y| {
            pairwise::pairwise_distance(exec, x, y, order, eps, keepdim)
        })
    }

    /// The distances between all pairs of these points `[n, coordinates]`, each pair once: `[n (n - 1) / 2]`, those from the first point to
    /// the others first.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let apart = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([3, 1], shard(0), |i| (i[0] * i[0]) as f64)?;
    ///     x.pdist(2.0)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(apart[0], ndarray::arr1(&[1.0, 4.0, 3.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program, members of the mesh or not. As [`cdist`](Self::cdist), all of which is held meanwhile, and a number per
    /// rank.
    ///
    /// # Errors
    /// As [`cdist`](Self::cdist); for points that are not two dims.
    #[track_caller]
    pub fn pdist(&self, order: impl Into<NormOrder>) -> Result<Self> {
        let _call = Calling::of("pdist");
        let order: NormOrder = order.into();
        self.run(|exec, x| pairwise::pdist(exec, x, order))
    }

    /// The covariances of variables, the rows, over observations, the columns: `[variables, variables]`, also of one row, where PyTorch gives a
    /// number; of a list the variance of its elements. Sums of products are divided by the number of observations less `correction`. Weights,
    /// `[observations]`, say how often each was seen, in whole numbers, and how much it counts: `fweights` and `aweights` of PyTorch.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([2, 3], shard(1), |i| if i[0] == 0 { i[1] as f64 } else { 2.0 - i[1] as f64 })?;
    ///     x.cov(1.0, [None, None])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], ndarray::arr2(&[[1.0, -1.0], [-1.0, 1.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where observations are sharded, a number per variable, and the result is partial; where variables are,
    /// what [`matmul`](Self::matmul) of them moves.
    ///
    /// # Errors
    /// For other numbers of dims than one and two, weights that are not one for each observation, integers and truth values.
    #[track_caller]
    pub fn cov(&self, correction: f64, weights: [Option<&Self>; 2]) -> Result<Self> {
        let _call = Calling::of("cov");
        let weights = weights.map(|weight| weight.map(Self::value));
        self.run(|exec, x| ops::cov(exec, x, correction, weights.each_ref().map(Option::as_ref)))
    }

    /// Pearson's correlations of variables, the rows, over observations, the columns, from -1 to 1: of what does not vary they are NaN.
    /// They have the shape of [`cov`](Self::cov).
    ///
    /// # Collective
    /// As [`cov`](Self::cov), whose sum over ranks is taken.
    ///
    /// # Errors
    /// As [`cov`](Self::cov).
    #[track_caller]
    pub fn corrcoef(&self) -> Result<Self> {
        let _call = Calling::of("corrcoef");
        self.run(ops::corrcoef)
    }

    /// The tensor with all at an index of a dim scaled down where its norm of some order is above `most`; a norm that is NaN is not.
    ///
    /// # Collective
    /// As [`norm`](Self::norm) over the other dims.
    ///
    /// # Errors
    /// As [`norm`](Self::norm); for a dim out of range, and a bound below 0.
    #[track_caller]
    pub fn renorm(
        &self,
        order: impl Into<NormOrder>,
        dim: impl Into<Dim>,
        most: f64,
    ) -> Result<Self> {
        let _call = Calling::of("renorm");
        let (order, dim) = (order.into(), self.dim("renorm", dim)?);
        self.run(|exec, x| ops::renorm(exec, x, order, dim, most))
    }

    /// The [quantiles](Self::quantile) of what is not NaN in a dim: NaN where nothing is.
    ///
    /// ```
    /// use shard_tensor::{Interpolation, launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.distribute(&array![3.0_f32, f32::NAN, 1.0], shard(0))?;
    ///     x.nanquantile(&[0.5], 0, Interpolation::Linear)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], array![2.0].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`sort`](Self::sort) of the dim, and [`gather`](Self::gather) of one or two elements for each quantile.
    ///
    /// # Errors
    /// As [`quantile`](Self::quantile).
    #[track_caller]
    pub fn nanquantile(
        &self,
        q: &[f64],
        dim: impl Into<Dim>,
        interpolation: Interpolation,
    ) -> Result<Self> {
        let _call = Calling::of("nanquantile");
        let (x, dim) = self.line("nanquantile", dim)?;
        x.run(|exec, x| ops::nanquantile(exec, x, q, dim, interpolation))
    }

    /// The quantiles `q` of a dim, each from 0 to 1, which take its place; of a line with NaN they are NaN, and between an infinity and a
    /// number they are the infinity.
    ///
    /// ```
    /// use shard_tensor::{Interpolation, launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([4], [shard(0)], |i| -(i[0] as f64))?;
    ///     x.quantile(&[0.5, 1.0], 0, Interpolation::Linear)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], ndarray::arr1(&[-1.5, 0.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`sort`](Self::sort) of the dim.
    ///
    /// # Errors
    /// For a dim out of range or without elements, a `q` outside of 0 to 1, integers and truth values; what the communicator reports.
    #[track_caller]
    pub fn quantile(
        &self,
        q: &[f64],
        dim: impl Into<Dim>,
        interpolation: Interpolation,
    ) -> Result<Self> {
        let _call = Calling::of("quantile");
        let (x, dim) = self.line("quantile", dim)?;
        x.run(|exec, x| ops::quantile(exec, x, q, dim, interpolation))
    }

    #[track_caller]
    fn two(
        &self,
        op: &'static str,
        dims: impl Into<DimList>,
        f: impl FnOnce(&dyn Exec, &Value, &[usize]) -> Result<(Value, Value), OpError>,
    ) -> Result<(Self, Self)> {
        let _call = Calling::of(op);
        let dims = self.dims_of(op, dims)?;
        let (first, second) = f(self.context().tape(), &self.value(), &dims)?;
        Ok((self.lift(first), self.lift(second)))
    }
}
