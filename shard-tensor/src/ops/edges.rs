//! Numbers at the edges: NaN, infinities, zeros with a sign, bounds, and equality but for rounding.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::elementwise as ops;

/// What is not a number, what is almost one, and what has to stay within bounds.
impl ShardTensor {
    /// The same numbers, but `nan` for NaN, and `posinf` and `neginf` for the infinities: with `None`, the largest and the least
    /// number of the type. Integers stay as they are. Only numbers that stay have a gradient.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([4], [shard(0)], |i| [1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY][i[0]])?;
    ///     x.nan_to_num(0.0, None, Some(-1.0))?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], ndarray::arr1(&[1.0, 0.0, f32::MAX, -1.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<Self> {
        let _call = Calling::of("nan_to_num");
        self.run(|exec, x| ops::nan_to_num(exec, x, nan, posinf, neginf))
    }

    /// Whether the sign of each element is set, as `bool`: of numbers below 0, of -0, and of NaN if it has one.
    ///
    /// # Collective
    /// As [`isnan`](Self::isnan).
    ///
    /// # Errors
    /// As [`isnan`](Self::isnan).
    #[track_caller]
    pub fn signbit(&self) -> Result<Self> {
        let _call = Calling::of("signbit");
        self.run(ops::signbit)
    }

    /// Whether `|x - y| <= atol + rtol |y|`, as `bool`; PyTorch's tolerances are 1e-5 and 1e-8. Equal infinities are close; NaN is close to
    /// NaN alone, if `equal_nan`. Shapes broadcast. Integers are compared in `f64`, and floats of 16 bits in `f32`.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands; partial ones are reduced first.
    ///
    /// # Errors
    /// If shapes do not broadcast or types differ; for a tolerance below 0 or NaN.
    #[track_caller]
    pub fn isclose(&self, other: &Self, rtol: f64, atol: f64, equal_nan: bool) -> Result<Self> {
        let _call = Calling::of("isclose");
        self.run2(other, |exec, a, b| {
            ops::isclose(exec, a, b, rtol, atol, equal_nan)
        })
    }

    /// Whether all elements [are close](Self::isclose); all ranks are told the same.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let close = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.randn([6, 4], [shard(0)])?;
    ///     let w = mesh.randn([4, 3], [replicate()])?;
    ///     let columns = x.redistribute([shard(1)])?;      // their product is a sum over the ranks
    ///     x.matmul(&w)?.allclose(&columns.matmul(&w)?, 1e-5, 1e-6, false)
    /// })?;
    /// assert_eq!(close, [true, true]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program. As [`isclose`](Self::isclose), and one element over all ranks.
    ///
    /// # Errors
    /// As [`isclose`](Self::isclose).
    #[track_caller]
    pub fn allclose(&self, other: &Self, rtol: f64, atol: f64, equal_nan: bool) -> Result<bool> {
        let _call = Calling::of("allclose");
        let close = self.isclose(other, rtol, atol, equal_nan)?;
        let all = close.all(close.all_dims(), false)?;
        Ok(all.item_everywhere("allclose")? != 0.0)
    }

    /// Each element, but `min` where it is below that: [`clamp`](Self::clamp) from below alone, of integers too.
    ///
    /// ```
    /// use shard_tensor::{DType, launch, shard};
    /// let degrees = launch(2, |ctx| {
    ///     let degrees = ctx.mesh_of(2)?.with_dtype(DType::I64).arange(4, shard(0))?;
    ///     degrees.clamp_min(1.0)?.clamp_max(2.0)?.to_array::<i64>()
    /// })?;
    /// assert_eq!(degrees[0].as_slice(), Some(&[1, 1, 2, 2][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`clamp`](Self::clamp).
    ///
    /// # Errors
    /// As [`clamp`](Self::clamp).
    #[track_caller]
    pub fn clamp_min(&self, min: f64) -> Result<Self> {
        let _call = Calling::of("clamp_min");
        self.clamp(min, f64::INFINITY)
    }

    /// Each element, but `max` where it is above that: [`clamp`](Self::clamp) from above alone, of integers too.
    ///
    /// # Collective
    /// As [`clamp`](Self::clamp).
    ///
    /// # Errors
    /// As [`clamp`](Self::clamp).
    #[track_caller]
    pub fn clamp_max(&self, max: f64) -> Result<Self> {
        let _call = Calling::of("clamp_max");
        self.clamp(f64::NEG_INFINITY, max)
    }

    /// Each element, but `min` where it is below that, and then `max` where it is above that: `max` where `min` is above it. NaN if any
    /// of them is. Shapes broadcast. Ties share the gradient evenly. Bounds that are numbers are for [`clamp`](Self::clamp).
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let most = mesh.from_fn([3], [replicate()], |i| i[0] as f64)?;
    ///     mesh.ones([2, 3], [shard(0)])?.clamp_by(None, Some(&most))?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], ndarray::arr2(&[[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands; partial ones are reduced first.
    ///
    /// # Errors
    /// If neither is given; if shapes do not broadcast or types differ.
    #[track_caller]
    pub fn clamp_by(&self, min: Option<&Self>, max: Option<&Self>) -> Result<Self> {
        let _call = Calling::of("clamp_by");
        let [min, max] = [min, max].map(|bound| bound.map(Self::value));
        self.run(|exec, x| ops::clamp_by(exec, x, min.as_ref(), max.as_ref()))
    }
}
