//! Pools by the number of outputs and by powers, windows as columns, channels as positions, and sampling at coordinates.
#![expect(
    clippy::needless_pass_by_value,
    reason = "options are built in place: `x.lp_pool(2.0, PoolOptions::new(3))`"
)]

use super::fine;
use crate::options::{ConvOptions, PoolOptions, UnfoldOptions};
use crate::{Dim, Result, Shape, ShardTensor};
use shard_comm::{Calling, DType};
use shard_ops::grid::{self, Sampling};
use shard_ops::random::Distribution;
use shard_ops::{pool, unfold};
use shard_spec::Layout;

/// Pools of `[batch, channels, spatial...]` tensors whose windows follow from the number of outputs: output `o` of `m` sees the inputs
/// `floor(o n / m) .. ceil((o + 1) n / m)` of `n`.
impl ShardTensor {
    /// The mean of each of this many areas: one extent per spatial dim, or one for all.
    ///
    /// # Collective
    /// All members of the mesh. Communicates what areas reach of other ranks' inputs; of dims with one output, sums alone.
    ///
    /// # Errors
    /// If the extents are not as many, or one is 0; if the plane is empty.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let means = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(5, [shard(0)])?.reshape([1, 1, 5])?;
    ///     x.adaptive_avg_pool(3)?.to_array::<f32>()
    /// })?;
    /// // Of 0 and 1, of 1 to 3, and of 3 and 4.
    /// assert_eq!(means[0].as_slice(), Some(&[0.5, 2.0, 3.5][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn adaptive_avg_pool(&self, outputs: impl Into<Shape>) -> Result<Self> {
        let _call = Calling::of("adaptive_avg_pool");
        let outputs = all(&outputs.into());
        self.run(|exec, x| pool::adaptive_avg_pool(exec, x, &outputs))
    }

    /// The greatest value of each of this many areas.
    ///
    /// # Collective
    /// All members of the mesh. Communicates what areas reach of other ranks' inputs.
    ///
    /// # Errors
    /// As [`adaptive_avg_pool`](Self::adaptive_avg_pool).
    #[track_caller]
    pub fn adaptive_max_pool(&self, outputs: impl Into<Shape>) -> Result<Self> {
        let _call = Calling::of("adaptive_max_pool");
        Ok(self.adaptive_max_pool_with_indices(outputs)?.0)
    }

    /// The greatest value of each of this many areas, and where in the plane it stands, counted row-major.
    ///
    /// # Collective
    /// As [`adaptive_max_pool`](Self::adaptive_max_pool).
    ///
    /// # Errors
    /// As [`adaptive_avg_pool`](Self::adaptive_avg_pool).
    #[track_caller]
    pub fn adaptive_max_pool_with_indices(
        &self,
        outputs: impl Into<Shape>,
    ) -> Result<(Self, Self)> {
        let _call = Calling::of("adaptive_max_pool_with_indices");
        let outputs = all(&outputs.into());
        let (y, indices) = pool::adaptive_max_pool(self.context().tape(), &self.value(), &outputs)?;
        Ok((self.lift(y), self.lift(indices)))
    }
}

fn all(extents: &[usize]) -> Vec<Option<usize>> {
    extents.iter().map(|&n| Some(n)).collect()
}

/// Pools of windows that begin at places drawn by chance.
impl ShardTensor {
    /// The greatest value of each of so many windows of these extents, which lie on the plane by chance, near each other or overlapping
    /// (Graham, 2014): `torch.nn.functional.fractional_max_pool2d`, and of three spatial dims `fractional_max_pool3d`. Where they begin follows from
    /// numbers from 0 to 1, `samples` of `[batch, channels, spatial dims]` as PyTorch's `_random_samples`; without them they are drawn, the same
    /// under any layout.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate, shard};
    /// let greatest = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.arange(6, [shard(0)])?.reshape([1, 1, 6])?;
    ///     assert_eq!(x.fractional_max_pool(2, 3, None)?.shape(), [1, 1, 3]);
    ///     let samples = mesh.distribute(&array![[[0.75_f32]]], replicate())?;
    ///     x.fractional_max_pool(2, 3, Some(&samples))?.to_array::<f32>()
    /// })?;
    /// // Windows begin at 0, ⌊1.75 · 2⌋ - ⌊0.75 · 2⌋ = 2, and 4.
    /// assert_eq!(greatest[0].as_slice(), Some(&[1.0, 3.0, 5.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh; without samples all ranks of the program, as it draws random numbers. Communicates halos, and what windows pick of
    /// other ranks' places.
    ///
    /// # Errors
    /// If there are not one to three spatial dims, an extent for each or one for all; if so many windows do not fit onto the plane; for samples of
    /// another shape.
    #[track_caller]
    pub fn fractional_max_pool(
        &self,
        kernel: impl Into<Shape>,
        outputs: impl Into<Shape>,
        samples: Option<&Self>,
    ) -> Result<Self> {
        let _call = Calling::of("fractional_max_pool");
        Ok(self
            .fractional_max_pool_with_indices(kernel, outputs, samples)?
            .0)
    }

    /// As [`fractional_max_pool`](Self::fractional_max_pool), and where in the plane each value stands, counted row-major.
    ///
    /// # Collective
    /// As [`fractional_max_pool`](Self::fractional_max_pool).
    ///
    /// # Errors
    /// As [`fractional_max_pool`](Self::fractional_max_pool).
    #[track_caller]
    pub fn fractional_max_pool_with_indices(
        &self,
        kernel: impl Into<Shape>,
        outputs: impl Into<Shape>,
        samples: Option<&Self>,
    ) -> Result<(Self, Self)> {
        let _call = Calling::of("fractional_max_pool_with_indices");
        let (kernel, outputs) = (kernel.into(), outputs.into());
        let samples = match samples {
            Some(samples) => samples.clone(),
            None => self.samples_of_planes()?,
        };
        let exec = self.context().tape();
        let (y, indices) =
            pool::fractional_max_pool(exec, &self.value(), &samples.value(), &kernel, &outputs)?;
        Ok((self.lift(y), self.lift(indices)))
    }

    /// Numbers from 0 to 1, `[batch, channels, spatial dims]`, which lie as the planes of this tensor do.
    #[track_caller]
    fn samples_of_planes(&self) -> Result<Self> {
        let mut shape = self.shape().to_vec();
        shape.truncate(2);
        shape.push(self.ndim().saturating_sub(2));
        let of = |d: usize| self.layout().sharding(d).filter(|_| d < 2).cloned();
        let layout =
            Layout::from_dims(self.layout().mesh(), &shape, (0..shape.len()).map(of), None)?;
        let dtype = match self.dtype().is_float() {
            true => fine(self.dtype()),
            // They are refused by the pool.
            false => DType::F32,
        };
        self.drawn(dtype, &layout, Distribution::Unit)
    }
}

/// Pools by powers, and the way back from a pool.
impl ShardTensor {
    /// The p-norm of each window; of the options, size, stride and rounding count.
    ///
    /// # Collective
    /// As [`max_pool`](Self::max_pool).
    ///
    /// # Errors
    /// As [`max_pool`](Self::max_pool); if the norm is not positive and finite.
    #[track_caller]
    pub fn lp_pool(&self, norm: f64, options: PoolOptions) -> Result<Self> {
        let _call = Calling::of("lp_pool");
        self.run(|exec, x| pool::lp_pool(exec, x, norm, options.options()))
    }

    /// Puts these values, and zeros elsewhere, where `indices` of [`max_pool_with_indices`](Self::max_pool_with_indices) name places in a plane of
    /// extents `output`. Of several values put to one place the last stays and has the gradient; in PyTorch each has it.
    ///
    /// # Collective
    /// All members of the mesh. Where spatial dims are sharded, values whose places are on other ranks and, at the first use of indices, a
    /// request for each.
    ///
    /// # Errors
    /// If shapes do not fit; on all ranks, if an index is beyond the plane on any.
    #[track_caller]
    pub fn max_unpool(&self, indices: &Self, output: impl Into<Shape>) -> Result<Self> {
        let _call = Calling::of("max_unpool");
        let output = output.into().to_vec();
        let options = pool::PoolOptions::new([1]);
        self.run2(indices, |exec, x, indices| {
            pool::max_unpool(exec, x, indices, &options, Some(&output))
        })
    }

    /// As [`max_unpool`](Self::max_unpool), into the plane that windows as in `options`, side by side, would cover.
    ///
    /// # Collective
    /// As [`max_unpool`](Self::max_unpool).
    ///
    /// # Errors
    /// As [`max_unpool`](Self::max_unpool); if options do not fit.
    #[track_caller]
    pub fn max_unpool_of(&self, indices: &Self, options: PoolOptions) -> Result<Self> {
        let _call = Calling::of("max_unpool_of");
        self.run2(indices, |exec, x, indices| {
            pool::max_unpool(exec, x, indices, options.options(), None)
        })
    }

    /// Divides each element of a `[batch, channels, ...]` tensor by a power of what `size` neighbouring channels come to:
    /// `x / (k + alpha mean(x²))^beta`.
    ///
    /// # Collective
    /// All members of the mesh. Communicates the halo of channels, if they are sharded.
    ///
    /// # Errors
    /// If there are fewer than two dims, or the size is 0.
    #[track_caller]
    pub fn local_response_norm(&self, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Self> {
        let _call = Calling::of("local_response_norm");
        self.run(|exec, x| pool::local_response_norm(exec, x, size, alpha, beta, k))
    }
}

/// Windows as columns, and channels as positions.
impl ShardTensor {
    /// The windows of a `[batch, channels, spatial...]` tensor as columns: `[batch, channels * positions, windows]`.
    ///
    /// # Collective
    /// All members of the mesh. Communicates the halos of sharded spatial dims; columns are redistributed where another dim than the first
    /// is sharded.
    ///
    /// # Errors
    /// If shapes or options do not fit.
    ///
    /// ```
    /// use shard_tensor::{UnfoldOptions, launch, shard};
    /// let sums = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.ones([1, 1, 5, 4], [shard(2)])?;
    ///     let windows = UnfoldOptions::new(3).padding(1);
    ///     // How many windows see each element.
    ///     x.unfold(windows.clone())?.fold([5, 4], windows)?.to_array::<f32>()
    /// })?;
    /// assert_eq!((sums[0][[0, 0, 0, 0]], sums[0][[0, 0, 2, 1]]), (4.0, 9.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn unfold(&self, windows: UnfoldOptions) -> Result<Self> {
        let _call = Calling::of("unfold");
        self.run(|exec, x| unfold::unfold(exec, x, windows.options()))
    }

    /// The sum of windows, given as columns, where [`unfold`](Self::unfold) takes them from: `[batch, channels, output...]`.
    ///
    /// # Collective
    /// As [`unfold`](Self::unfold).
    ///
    /// # Errors
    /// As [`unfold`](Self::unfold).
    #[track_caller]
    pub fn fold(&self, output: impl Into<Shape>, windows: UnfoldOptions) -> Result<Self> {
        let _call = Calling::of("fold");
        let output = output.into().to_vec();
        self.run(|exec, x| unfold::fold(exec, x, &output, windows.options()))
    }

    /// All slices of `size` along a dim, `step` apart, as a new last dim.
    ///
    /// # Collective
    /// All members of the mesh. Communicates the halo of the dim, if it is sharded.
    ///
    /// # Errors
    /// If the dim is out of range, or no slice fits.
    #[track_caller]
    pub fn sliding(&self, dim: impl Into<Dim>, size: usize, step: usize) -> Result<Self> {
        let _call = Calling::of("sliding");
        let dim = self.dim("sliding", dim)?;
        self.run(|exec, x| unfold::sliding(exec, x, dim, size, step))
    }

    /// Channels as positions: `[..., c r², h, w]` to `[..., c, h r, w r]`.
    ///
    /// # Collective
    /// All members of the mesh. No communication, unless channels are sharded in parts that are no multiples of `r²`.
    ///
    /// # Errors
    /// If there are fewer than three dims, or the factor's square does not divide the channels.
    #[track_caller]
    pub fn pixel_shuffle(&self, factor: usize) -> Result<Self> {
        let _call = Calling::of("pixel_shuffle");
        self.run(|exec, x| unfold::pixel_shuffle(exec, x, factor))
    }

    /// Positions as channels: `[..., c, h r, w r]` to `[..., c r², h, w]`.
    ///
    /// # Collective
    /// All members of the mesh. No communication, unless spatial dims are sharded in parts that are no multiples of `r`.
    ///
    /// # Errors
    /// If there are fewer than three dims, or the factor does not divide the spatial dims.
    #[track_caller]
    pub fn pixel_unshuffle(&self, factor: usize) -> Result<Self> {
        let _call = Calling::of("pixel_unshuffle");
        self.run(|exec, x| unfold::pixel_unshuffle(exec, x, factor))
    }

    /// Interleaves groups of the channels of a `[batch, channels, ...]` tensor.
    ///
    /// # Collective
    /// All members of the mesh. No communication, unless channels are sharded.
    ///
    /// # Errors
    /// If the groups do not divide the channels.
    #[track_caller]
    pub fn channel_shuffle(&self, groups: usize) -> Result<Self> {
        let _call = Calling::of("channel_shuffle");
        self.run(|exec, x| unfold::channel_shuffle(exec, x, groups))
    }
}

/// Sampling at coordinates.
impl ShardTensor {
    /// The elements of this `[batch, channels, spatial...]` tensor at the coordinates `grid`, `[batch, places..., spatial dims]`: from -1 to 1 over
    /// each dim, the last dim's first. Gives `[batch, channels, places...]`. Gradients reach the tensor and the coordinates. A coordinate that is NaN
    /// reads nothing, which is 0, and so does an infinite one that no border stops.
    ///
    /// ```
    /// use shard_tensor::{SampleEdge, SampleMode, Sampling, launch, shard, replicate};
    /// let near = Sampling { mode: SampleMode::Linear, edge: SampleEdge::Border, aligned: false };
    /// let differs = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.randn([1, 3, 8, 6], [shard(2)])?;
    ///     let identity = mesh.from_fn([1, 2, 3], [replicate()], |at| f64::from(u8::from(at[1] == at[2])))?;
    ///     let same = x.grid_sample(&identity.affine_grid([8, 6], false)?, near)?;
    ///     Ok(same.sub(&x)?.abs()?.to_array::<f32>()?.iter().copied().fold(0.0, f32::max))
    /// })?;
    /// assert!(differs[0] < 1e-5);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// The gradient of the plane has derivatives of any order; that of the coordinates has none itself, as in PyTorch.
    ///
    /// # Collective
    /// All members of the mesh. Where spatial dims are sharded, the elements that this rank's places read and others have, each once, and a
    /// request for each.
    ///
    /// # Errors
    /// If shapes or types do not belong together; what the communicator reports.
    #[track_caller]
    pub fn grid_sample(&self, grid: &Self, sampling: Sampling) -> Result<Self> {
        let _call = Calling::of("grid_sample");
        self.run2(grid, |exec, x, grid| {
            grid::grid_sample(exec, x, grid, sampling)
        })
    }

    /// A convolution of `[batch, channels, spatial...]` whose taps are displaced: with a `weight` `[out, channels / groups, kernel...]`, and for
    /// each output `offset` elements, `[batch, offset groups * taps * spatial dims, outputs...]`, of each tap the first dim's first. As many
    /// groups of channels are displaced each in its own way. A `mask`, `[batch, offset groups * taps, outputs...]`, weighs what taps read, which
    /// is linear between elements, and 0 beyond the ends. For two spatial dims it is torchvision's `deform_conv2d` (Dai et al., 2017; Zhu et
    /// al., 2019).
    ///
    /// ```
    /// use shard_tensor::{ConvOptions, launch, replicate, shard};
    /// launch(3, |ctx| {
    ///     let mesh = ctx.mesh_of(3)?;
    ///     let x = mesh.randn([1, 2, 9, 6], shard(2))?;
    ///     let weight = mesh.randn([4, 2, 3, 3], replicate())?;
    ///     let options = ConvOptions::new().padding(1);
    ///     let nowhere = mesh.zeros([1, 2 * 9, 9, 6], shard(2))?;
    ///     let plain = x.conv(&weight, None, options.clone())?;
    ///     let same = x.deform_conv(&nowhere, &weight, None, None, options.clone())?;
    ///     assert!(same.allclose(&plain, 1e-4, 1e-4, false)?);
    ///     // A row further down, all taps read what those of the next row would.
    ///     let down = mesh.from_fn([1, 2 * 9, 9, 6], shard(2), |i| ((i[1] + 1) % 2) as f64)?;
    ///     let moved = x.deform_conv(&down, &weight, None, None, options)?;
    ///     assert!(moved.narrow(2, 1..7)?.allclose(&plain.narrow(2, 2..8)?, 1e-4, 1e-4, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// Gradients reach all operands; that of the offsets has none itself.
    ///
    /// # Collective
    /// All members of the mesh. Where spatial dims are sharded, the elements that this rank's taps read and others have, each once, and a
    /// request for each: results lie as offsets do. Sharded channels make the result partial.
    ///
    /// # Errors
    /// If shapes or types do not belong together, for edges other than zeros, and a tensor without elements in a spatial dim; what the
    /// communicator reports.
    #[track_caller]
    pub fn deform_conv(
        &self,
        offset: &Self,
        weight: &Self,
        mask: Option<&Self>,
        bias: Option<&Self>,
        options: ConvOptions,
    ) -> Result<Self> {
        let _call = Calling::of("deform_conv");
        let [mask, bias] = [mask, bias].map(|of| of.map(Self::value));
        self.run3(offset, weight, |exec, x, offset, weight| {
            let operands = [x, offset, weight];
            grid::deform_conv(
                exec,
                operands,
                mask.as_ref(),
                bias.as_ref(),
                options.options(),
            )
        })
    }

    /// The coordinates at which these affine maps, `[batch, spatial dims, spatial dims + 1]`, have every place of a plane of extents `places`.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If the maps are not of that shape.
    #[track_caller]
    pub fn affine_grid(&self, places: impl Into<Shape>, aligned: bool) -> Result<Self> {
        let _call = Calling::of("affine_grid");
        let places = places.into().to_vec();
        self.run(|exec, theta| grid::affine_grid(exec, theta, &places, aligned))
    }
}
