//! Ops that name the same elements by other dims.

use crate::{Dim, DimList, Extents, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::{broadcast, shape};

/// The same elements by other dims.
impl ShardTensor {
    /// Broadcast to a shape, of which -1 keeps the extent that there is.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let token = ctx.mesh_of(2)?.randn([1, 1, 12], shard(2))?;
    ///     assert_eq!(token.expand([5, -1, -1])?.shape(), [5, 1, 12]);
    ///     assert_eq!(token.expand([2, 1, 3, 12])?.shape(), [2, 1, 3, 12]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If the shape does not broadcast from this one's; for -1 as a dim that there is not yet.
    #[track_caller]
    pub fn expand(&self, shape: impl Into<Extents>) -> Result<Self> {
        let _call = Calling::of("expand");
        let shape = shape.into().expanding("expand", self.shape())?;
        self.run(|exec, x| broadcast::expand(exec, x, &shape))
    }

    /// The dims in another order.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Unless every dim is named once.
    #[track_caller]
    pub fn permute(&self, order: impl Into<DimList>) -> Result<Self> {
        let _call = Calling::of("permute");
        let order = order.into().of("permute", self.ndim())?;
        self.run(|exec, x| shape::permute(exec, x, &order))
    }

    /// Two dims exchanged; a tensor without dims, of 0 or -1, as it is.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// For a dim out of range.
    #[track_caller]
    pub fn transpose(&self, a: impl Into<Dim>, b: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("transpose");
        let (a, b) = (a.into(), b.into());
        if self.ndim() == 0 && a.is_first() && b.is_first() {
            return Ok(self.lift(self.value()));
        }
        let (a, b) = (self.dim("transpose", a)?, self.dim("transpose", b)?);
        self.run(|exec, x| shape::transpose(exec, x, a, b))
    }

    /// The same elements, row-major, under another shape. Of one extent that is -1 it is found out: see [`Extents`].
    ///
    /// # Collective
    /// All members of the mesh. No communication where the sharded dims are the outermost of the groups of dims that
    /// are merged or split and boundaries fall on multiples of what is inside; else the tensor is moved to the
    /// nearest such layout first.
    ///
    /// # Errors
    /// If the number of elements differs, or the others leave no extent for -1.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Extents>) -> Result<Self> {
        let _call = Calling::of("reshape");
        let shape = shape.into().of("reshape", self.numel())?;
        self.run(|exec, x| shape::reshape(exec, x, &shape))
    }

    /// Every element as one dim: what statistics of all of a tensor's elements are taken of.
    ///
    /// # Collective
    /// As [`reshape`](Self::reshape).
    ///
    /// # Errors
    /// As [`reshape`](Self::reshape).
    #[track_caller]
    pub fn flatten(&self) -> Result<Self> {
        let _call = Calling::of("flatten");
        self.run(|exec, x| shape::reshape(exec, x, &[x.shape().iter().product()]))
    }

    /// The dims from `start` to `end`, both included, as one: `x.flatten_dims(1, -1)` is PyTorch's `x.flatten(1)`. A tensor without dims
    /// becomes a list of its element.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.zeros([5, 4, 3, 2], shard(0))?;
    ///     let rows = x.flatten_dims(1, -1)?;
    ///     assert_eq!(rows.shape(), [5, 24]);
    ///     assert_eq!(rows.unflatten(-1, [4, 6])?.shape(), [5, 4, 6]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`reshape`](Self::reshape).
    ///
    /// # Errors
    /// For a dim out of range, and an end before the start; what the communicator reports.
    #[track_caller]
    pub fn flatten_dims(&self, start: impl Into<Dim>, end: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("flatten_dims");
        let ndim = self.ndim().max(1);
        let (start, end) = (
            start.into().of("flatten_dims", ndim)?,
            end.into().of("flatten_dims", ndim)?,
        );
        if start > end || end >= ndim {
            return Err(crate::Error::argument(
                "flatten_dims",
                format!("dims in order, below {ndim}"),
                format!("{start} to {end}"),
                "name the first and the last dim that become one",
            ));
        }
        let shape = self.shape();
        let (before, from) = shape.split_at(start.min(shape.len()));
        let (merged, behind) = from.split_at((end + 1 - start).min(from.len()));
        let merged = [merged.iter().product()];
        self.reshape([before, &merged, behind].concat())
    }

    /// A dim as several, of these extents, one of which may be -1: what [`flatten_dims`](Self::flatten_dims) undoes.
    ///
    /// # Collective
    /// As [`reshape`](Self::reshape).
    ///
    /// # Errors
    /// For a dim out of range, and extents that do not multiply to the dim's; what the communicator reports.
    #[track_caller]
    pub fn unflatten(&self, dim: impl Into<Dim>, extents: impl Into<Extents>) -> Result<Self> {
        let _call = Calling::of("unflatten");
        let dim = self.dim("unflatten", dim)?;
        let extent = self.shape().get(dim).copied().unwrap_or_default();
        let extents = extents.into().of("unflatten", extent)?;
        let product = (extents.iter()).try_fold(1_usize, |all, &n| all.checked_mul(n));
        if product.is_none() || product != self.shape().get(dim).copied() {
            return Err(crate::Error::argument(
                "unflatten",
                format!("extents whose product is that of dim {dim}"),
                format!("{:?} for shape {:?}", &extents[..], self.shape()),
                "give extents that multiply to the dim's",
            ));
        }
        let (before, behind) = (&self.shape()[..dim], &self.shape()[dim + 1..]);
        self.reshape([before, &extents, behind].concat())
    }

    /// Dims brought to other places, the others keeping their order: dim `from[i]` becomes dim `to[i]`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let images = ctx.mesh_of(2)?.zeros([2, 5, 4, 3], shard(1))?; // channels last
    ///     let images = images.movedim(-1, 1)?;
    ///     assert_eq!(images.shape(), [2, 3, 5, 4]);
    ///     images.expect_layout(shard(2)).map(|_| ())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// For a dim out of range or named twice, and unless there are as many places as dims.
    #[track_caller]
    pub fn movedim(&self, from: impl Into<DimList>, to: impl Into<DimList>) -> Result<Self> {
        let _call = Calling::of("movedim");
        let ndim = self.ndim();
        let from = from.into().of("movedim", ndim)?;
        let to = to.into().of("movedim", ndim)?;
        let once = |dims: &[usize]| {
            (dims.iter().enumerate()).all(|(i, d)| *d < ndim && !dims[..i].contains(d))
        };
        if from.len() != to.len() || !once(&from) || !once(&to) {
            return Err(crate::Error::argument(
                "movedim",
                format!("dims of {ndim} and as many places, each once"),
                format!("{from:?} to {to:?}"),
                "name each dim and each place once",
            ));
        }
        let mut others = (0..ndim).filter(|dim| !from.contains(dim));
        let moved = |place| to.iter().position(|&t| t == place).map(|i| from[i]);
        let order: Vec<usize> = (0..ndim)
            .filter_map(|place| moved(place).or_else(|| others.next()))
            .collect();
        self.permute(order)
    }

    /// A new dim of extent 1.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// For a dim out of range.
    #[track_caller]
    pub fn unsqueeze(&self, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("unsqueeze");
        let dim = dim.into().of("unsqueeze", self.ndim() + 1)?;
        self.run(|exec, x| shape::unsqueeze(exec, x, dim))
    }

    /// Without a dim of extent 1; a tensor without dims, along 0 or -1, as it is.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// For a dim out of range or of another extent.
    #[track_caller]
    pub fn squeeze(&self, dim: impl Into<Dim>) -> Result<Self> {
        self.along("squeeze", dim, shape::squeeze)
    }
}
