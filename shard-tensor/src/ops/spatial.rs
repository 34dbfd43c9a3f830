//! Windows: convolution, pooling, resampling, neighbourhood attention; and norms.
#![expect(
    clippy::needless_pass_by_value,
    reason = "options are built in place: `x.conv2d(&w, None, ConvOptions::new().padding(1))`"
)]

use crate::options::{ConvOptions, ConvTransposeOptions, PoolOptions};
use crate::{Error, Result, Shape, ShardTensor};
use shard_comm::Calling;
use shard_ops::neighborhood::{self, Neighborhood};
use shard_ops::resample::{self, ResampleTo};
use shard_ops::{Value, conv, norm, pool};
use shard_spec::ResampleMode;

/// Convolutions of `[batch, channels, spatial...]` tensors. Sharded spatial dims exchange halos, and the result keeps
/// their sharding.
impl ShardTensor {
    /// A convolution of as many spatial dims as the tensor has, with a weight `[out, in / groups, kernel...]`. A weight that is infinite or NaN
    /// makes what it meets NaN; where it meets nothing but padding, that depends on the layout.
    ///
    /// # Collective
    /// All members of the mesh. Communicates the halos of sharded spatial dims, of any width, while the interior is
    /// computed. Sharded input channels make the result partial.
    ///
    /// # Errors
    /// If shapes or options do not fit, or types differ; what the communicator reports.
    #[track_caller]
    pub fn conv(&self, weight: &Self, bias: Option<&Self>, options: ConvOptions) -> Result<Self> {
        let _call = Calling::of("conv");
        let bias = bias.map(Self::value);
        self.run2(weight, |exec, x, w| {
            conv::conv(exec, x, w, bias.as_ref(), options.options())
        })
    }

    /// A transposed convolution, with a weight `[in, out / groups, kernel...]`.
    ///
    /// # Collective
    /// As [`conv`](Self::conv).
    ///
    /// # Errors
    /// As [`conv`](Self::conv).
    #[track_caller]
    pub fn conv_transpose(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        options: ConvTransposeOptions,
    ) -> Result<Self> {
        let _call = Calling::of("conv_transpose");
        let bias = bias.map(Self::value);
        self.run2(weight, |exec, x, w| {
            conv::conv_transpose(exec, x, w, bias.as_ref(), options.options())
        })
    }

    /// [`conv`](Self::conv), of one spatial dim.
    ///
    /// # Collective
    /// As [`conv`](Self::conv).
    ///
    /// # Errors
    /// As [`conv`](Self::conv); if the tensor has not three dims.
    #[track_caller]
    pub fn conv1d(&self, weight: &Self, bias: Option<&Self>, options: ConvOptions) -> Result<Self> {
        let _call = Calling::of("conv1d");
        self.has_ndim("conv1d", 3)?.conv(weight, bias, options)
    }

    /// [`conv`](Self::conv), of two spatial dims.
    ///
    /// # Collective
    /// As [`conv`](Self::conv).
    ///
    /// # Errors
    /// As [`conv`](Self::conv); if the tensor has not four dims.
    #[track_caller]
    pub fn conv2d(&self, weight: &Self, bias: Option<&Self>, options: ConvOptions) -> Result<Self> {
        let _call = Calling::of("conv2d");
        self.has_ndim("conv2d", 4)?.conv(weight, bias, options)
    }

    /// [`conv`](Self::conv), of three spatial dims.
    ///
    /// # Collective
    /// As [`conv`](Self::conv).
    ///
    /// # Errors
    /// As [`conv`](Self::conv); if the tensor has not five dims.
    #[track_caller]
    pub fn conv3d(&self, weight: &Self, bias: Option<&Self>, options: ConvOptions) -> Result<Self> {
        let _call = Calling::of("conv3d");
        self.has_ndim("conv3d", 5)?.conv(weight, bias, options)
    }

    #[track_caller]
    fn has_ndim(&self, op: &'static str, ndim: usize) -> Result<&Self> {
        if self.ndim() == ndim {
            return Ok(self);
        }
        Err(Error::argument(
            op,
            format!(
                "a tensor of {ndim} dims: batch, channels, {} spatial",
                ndim - 2
            ),
            format!("shape {:?}", self.shape()),
            "add the missing dims with `unsqueeze`",
        ))
    }
}

/// Pools over the spatial dims of `[batch, channels, spatial...]` tensors.
impl ShardTensor {
    /// The greatest value of each window.
    ///
    /// # Collective
    /// All members of the mesh. Communicates the halos of sharded spatial dims.
    ///
    /// # Errors
    /// If shapes or options do not fit; what the communicator reports.
    #[track_caller]
    pub fn max_pool(&self, options: PoolOptions) -> Result<Self> {
        let _call = Calling::of("max_pool");
        Ok(self.max_pool_with_indices(options)?.0)
    }

    /// The greatest value of each window, and where in the plane it stands, counted row-major.
    ///
    /// # Collective
    /// As [`max_pool`](Self::max_pool).
    ///
    /// # Errors
    /// As [`max_pool`](Self::max_pool).
    #[track_caller]
    pub fn max_pool_with_indices(&self, options: PoolOptions) -> Result<(Self, Self)> {
        let _call = Calling::of("max_pool_with_indices");
        let (y, indices) = pool::max_pool(self.context().tape(), &self.value(), options.options())?;
        Ok((self.lift(y), self.lift(indices)))
    }

    /// The mean of each window.
    ///
    /// # Collective
    /// As [`max_pool`](Self::max_pool).
    ///
    /// # Errors
    /// As [`max_pool`](Self::max_pool).
    #[track_caller]
    pub fn avg_pool(&self, options: PoolOptions) -> Result<Self> {
        let _call = Calling::of("avg_pool");
        self.run(|exec, x| pool::avg_pool(exec, x, options.options()))
    }
}

/// Resampling of the spatial dims of `[batch, channels, spatial...]` tensors.
impl ShardTensor {
    /// Interpolates to these spatial extents, with PyTorch's coordinates. Linear means bilinear in two dims and
    /// trilinear in three; `align_corners=True` of PyTorch is [`LinearAligned`](ResampleMode::LinearAligned) and
    /// [`CubicAligned`](ResampleMode::CubicAligned).
    ///
    /// # Collective
    /// All members of the mesh. Communicates the samples that lie on other ranks.
    ///
    /// # Errors
    /// If there are no spatial dims, or the extents are not one per spatial dim.
    ///
    /// ```
    /// use shard_tensor::{ResampleMode, launch, shard};
    /// let larger = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(3, [shard(0)])?.reshape([1, 1, 3])?;
    ///     x.interpolate(6, ResampleMode::Nearest)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(larger[0].as_slice(), Some(&[0.0, 0.0, 1.0, 1.0, 2.0, 2.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn interpolate(&self, size: impl Into<Shape>, mode: ResampleMode) -> Result<Self> {
        let _call = Calling::of("interpolate");
        let target = ResampleTo::Size(size.into().to_vec());
        self.run(|exec, x| resample::interpolate(exec, x, &target, mode))
    }

    /// Interpolates by factors, one per spatial dim or one for all: the extents are rounded down, and coordinates
    /// sampled by the factors themselves.
    ///
    /// # Collective
    /// As [`interpolate`](Self::interpolate).
    ///
    /// # Errors
    /// As [`interpolate`](Self::interpolate).
    #[track_caller]
    pub fn interpolate_by(&self, factors: &[f64], mode: ResampleMode) -> Result<Self> {
        let _call = Calling::of("interpolate_by");
        let target = ResampleTo::Scale(factors.to_vec());
        self.run(|exec, x| resample::interpolate(exec, x, &target, mode))
    }
}

/// Normalisation. Statistics are those of the whole tensor, however it is divided.
impl ShardTensor {
    /// Normalises groups of channels of a `[batch, channels, ...]` tensor, then scales and shifts each channel.
    ///
    /// # Collective
    /// All members of the mesh. Communicates three numbers per group and sample, if dims that are averaged over are
    /// sharded.
    ///
    /// # Errors
    /// If the groups do not divide the channels, or shapes or types do not fit.
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Self>,
        bias: Option<&Self>,
        eps: f64,
    ) -> Result<Self> {
        let _call = Calling::of("group_norm");
        let (weight, bias) = values(weight, bias);
        self.run(|exec, x| norm::group_norm(exec, x, groups, weight.as_ref(), bias.as_ref(), eps))
    }

    /// Normalises each channel of each sample over its positions, then scales and shifts each channel.
    ///
    /// # Collective
    /// As [`group_norm`](Self::group_norm).
    ///
    /// # Errors
    /// As [`group_norm`](Self::group_norm).
    #[track_caller]
    pub fn instance_norm(
        &self,
        weight: Option<&Self>,
        bias: Option<&Self>,
        eps: f64,
    ) -> Result<Self> {
        let _call = Calling::of("instance_norm");
        let (weight, bias) = values(weight, bias);
        self.run(|exec, x| norm::instance_norm(exec, x, weight.as_ref(), bias.as_ref(), eps))
    }

    /// Normalises over the last `dims` dims, then scales and shifts each position of them.
    ///
    /// # Collective
    /// All members of the mesh. Communicates three numbers per row, if normalised dims are sharded.
    ///
    /// # Errors
    /// If there are fewer dims, or shapes or types do not fit.
    #[track_caller]
    pub fn layer_norm(
        &self,
        dims: usize,
        weight: Option<&Self>,
        bias: Option<&Self>,
        eps: f64,
    ) -> Result<Self> {
        let _call = Calling::of("layer_norm");
        let (weight, bias) = values(weight, bias);
        self.run(|exec, x| norm::layer_norm(exec, x, dims, weight.as_ref(), bias.as_ref(), eps))
    }
}

/// Normalisation with statistics that are kept, and by mean squares.
impl ShardTensor {
    /// Normalises each channel of a `[batch, channels, ...]` tensor over all samples and positions, then scales and shifts it. In training by
    /// the statistics of the whole tensor, however it is divided; the second result is the `running` means and unbiased variances, `[channels]`
    /// each, moved by `momentum` towards them, or as they were if the tensor has no elements. Otherwise by the running ones, which come back as
    /// they are.
    ///
    /// # Collective
    /// All members of the mesh. In training communicates three numbers per channel, if other dims are sharded.
    ///
    /// # Errors
    /// If there is one value per channel in training, or nothing running otherwise; if shapes or types do not fit.
    #[track_caller]
    pub fn batch_norm(
        &self,
        running: Option<(&Self, &Self)>,
        [weight, bias]: [Option<&Self>; 2],
        training: bool,
        momentum: f64,
        eps: f64,
    ) -> Result<(Self, Option<(Self, Self)>)> {
        let _call = Calling::of("batch_norm");
        let (weight, bias) = values(weight, bias);
        let running = running.map(kept);
        let (y, new) = norm::batch_norm(
            self.context().tape(),
            &self.value(),
            running.as_ref(),
            weight.as_ref(),
            bias.as_ref(),
            training,
            momentum,
            eps,
        )?;
        let new = new.map(|new| (self.lift(new.mean), self.lift(new.var)));
        Ok((self.lift(y), new))
    }

    /// [`instance_norm`](Self::instance_norm) with statistics that are kept: in training the running ones move towards the mean over samples;
    /// otherwise they are used, as in [`batch_norm`](Self::batch_norm).
    ///
    /// # Collective
    /// As [`instance_norm`](Self::instance_norm); in training also two numbers per channel, if samples are sharded.
    ///
    /// # Errors
    /// As [`batch_norm`](Self::batch_norm).
    #[track_caller]
    pub fn instance_norm_running(
        &self,
        running: (&Self, &Self),
        [weight, bias]: [Option<&Self>; 2],
        training: bool,
        momentum: f64,
        eps: f64,
    ) -> Result<(Self, (Self, Self))> {
        let _call = Calling::of("instance_norm_running");
        let (weight, bias) = values(weight, bias);
        let (y, new) = norm::instance_norm_running(
            self.context().tape(),
            &self.value(),
            &kept(running),
            weight.as_ref(),
            bias.as_ref(),
            training,
            momentum,
            eps,
        )?;
        Ok((self.lift(y), (self.lift(new.mean), self.lift(new.var))))
    }

    /// Divides by the root of the mean square over the last `dims` dims, then scales each position of them. Without `eps` the type's own
    /// is added to the mean square.
    ///
    /// # Collective
    /// As [`layer_norm`](Self::layer_norm).
    ///
    /// # Errors
    /// As [`layer_norm`](Self::layer_norm).
    #[track_caller]
    pub fn rms_norm(&self, dims: usize, weight: Option<&Self>, eps: Option<f64>) -> Result<Self> {
        let _call = Calling::of("rms_norm");
        let weight = weight.map(Self::value);
        self.run(|exec, x| norm::rms_norm(exec, x, dims, weight.as_ref(), eps))
    }
}

fn kept((mean, var): (&ShardTensor, &ShardTensor)) -> norm::Running {
    norm::Running {
        mean: mean.value(),
        var: var.value(),
    }
}

fn values(
    weight: Option<&ShardTensor>,
    bias: Option<&ShardTensor>,
) -> (Option<Value>, Option<Value>) {
    (weight.map(ShardTensor::value), bias.map(ShardTensor::value))
}

/// Attention on grids.
impl ShardTensor {
    /// Attention of these queries `[batch, spatial..., heads, dim]` to the keys in a window around each, as NATTEN's `na1d`, `na2d`
    /// and `na3d`; see [`neighborhood_attention`](fn@shard_ops::neighborhood::neighborhood_attention). Sharded spatial dims
    /// exchange halos, whatever the shards' sizes, and the result keeps their sharding.
    ///
    /// ```
    /// use shard_tensor::{Neighborhood, launch, shard};
    /// let on = |ranks: usize| launch(ranks, |ctx| {
    ///     let grid = ctx.mesh_of(ranks)?.randn([1, 9, 6, 2, 4], [shard(1)])?;
    ///     let near = Neighborhood::new([5, 3]);
    ///     grid.neighborhood_attention(&grid, &grid, &near)?.to_array::<f32>()
    /// });
    /// let (one, four) = (on(1)?, on(4)?);
    /// assert!(one[0].iter().zip(&four[0]).all(|(a, b)| (a - b).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Communicates the halo of keys and values of sharded spatial dims: half a window on
    /// either side.
    ///
    /// # Errors
    /// If shapes, types or windows do not fit; what the communicator reports.
    #[track_caller]
    pub fn neighborhood_attention(
        &self,
        keys: &Self,
        values: &Self,
        near: &Neighborhood,
    ) -> Result<Self> {
        let _call = Calling::of("neighborhood_attention");
        let values = values.value();
        self.run2(keys, |exec, q, k| {
            neighborhood::neighborhood_attention(exec, q, k, &values, near)
        })
    }
}
