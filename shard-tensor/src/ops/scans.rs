//! Scans along a dim, and integrals.

use crate::{Dim, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::integral::{self, Spacing};
use shard_ops::scan;

/// Scans along a dim, which stays as it is sharded: parts are scanned side by side, each from what the parts before it came
/// to. Integers are exact; the bits of floats, which are summed in `f64`, depend on the layout alone. A tensor without dims is scanned along
/// its only dim, 0 or -1, as in PyTorch.
impl ShardTensor {
    /// The sums of the elements of a dim up to each. Of integers and truth values they are `i64`, and wrap. A partial sum
    /// stays one.
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, each rank receives one number per line from every other part;
    /// nothing moves otherwise.
    ///
    /// # Errors
    /// For a dim out of range; what the communicator reports.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let sums = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.ones(7, [shard(0).sizes([4, 0, 3])])?;
    ///     x.cumsum(0)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(sums[0], ndarray::arr1(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn cumsum(&self, dim: impl Into<Dim>) -> Result<Self> {
        self.along("cumsum", dim, scan::cumsum)
    }

    /// The differences of neighbours along a dim, each element less the one before it, taken `n` times: what [`cumsum`](Self::cumsum)
    /// undoes. The dim is shorter by `n`, or empty. Of truth values they are whether neighbours differ. To have the first element kept, put a
    /// row of zeros in front by [`pad`](Self::pad).
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, ranks get what of neighbouring parts belongs to theirs; nothing moves
    /// otherwise. A partial sum stays one.
    ///
    /// # Errors
    /// For a dim out of range; what the communicator reports.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(3, |ctx| {
    ///     let squares = ctx.mesh_of(3)?.arange(6, [shard(0)])?.square()?;
    ///     Ok((squares.diff(1, 0)?.to_array::<f32>()?, squares.diff(2, 0)?.to_array::<f32>()?))
    /// })?;
    /// assert_eq!(found[0].0, ndarray::arr1(&[1.0, 3.0, 5.0, 7.0, 9.0]).into_dyn());
    /// assert_eq!(found[0].1, ndarray::arr1(&[2.0; 4]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn diff(&self, n: usize, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("diff");
        let dim = self.dim("diff", dim)?;
        self.run(|exec, x| shard_ops::elementwise::diff(exec, x, n, dim))
    }

    /// The products of the elements of a dim up to each. Of integers and truth values they are `i64`, and wrap.
    ///
    /// # Collective
    /// As [`cumsum`](Self::cumsum); a partial tensor is reduced first.
    ///
    /// # Errors
    /// As [`cumsum`](Self::cumsum).
    #[track_caller]
    pub fn cumprod(&self, dim: impl Into<Dim>) -> Result<Self> {
        self.along("cumprod", dim, scan::cumprod)
    }

    /// The logarithms of the sums of the exponentials of the elements of a dim up to each, without overflow.
    ///
    /// # Collective
    /// As [`cumprod`](Self::cumprod).
    ///
    /// # Errors
    /// As [`cumsum`](Self::cumsum); for integers and truth values.
    #[track_caller]
    pub fn logcumsumexp(&self, dim: impl Into<Dim>) -> Result<Self> {
        self.along("logcumsumexp", dim, scan::logcumsumexp)
    }

    /// The largest element of a dim up to each, and its index, as `i64`: the last of equal ones, and NaN before all, as in
    /// PyTorch.
    ///
    /// # Collective
    /// As [`cumprod`](Self::cumprod), with a number and an index per line.
    ///
    /// # Errors
    /// As [`cumsum`](Self::cumsum).
    #[track_caller]
    pub fn cummax(&self, dim: impl Into<Dim>) -> Result<(Self, Self)> {
        self.two_along("cummax", dim, scan::cummax)
    }

    /// The smallest element of a dim up to each, and its index, as `i64`: the last of equal ones, and NaN before all, as in
    /// PyTorch.
    ///
    /// # Collective
    /// As [`cummax`](Self::cummax).
    ///
    /// # Errors
    /// As [`cumsum`](Self::cumsum).
    #[track_caller]
    pub fn cummin(&self, dim: impl Into<Dim>) -> Result<(Self, Self)> {
        self.two_along("cummin", dim, scan::cummin)
    }
}

/// Recurrences along a dim.
impl ShardTensor {
    /// `h[t] = a[t] h[t-1] + b[t]` along a dim, of this tensor's elements `b` and of `factors` `a`; or, `backwards`,
    /// `h[t] = a[t] h[t+1] + b[t]`. What comes before all others is `first`, with extent 1 along the dim, or 0.
    ///
    /// It is the recurrence of state space models (the selective scan of Mamba, S5), of gated linear units that recur (RG-LRU), of
    /// exponential moving averages, of filters of the first order, and, backwards, of advantages that are estimated from rewards
    /// (GAE). Shapes broadcast as those of `add` do, so that `factors` may be one number of a line, or of all; `dim` is one of the
    /// result's. States go on in `f64`, and are rounded as they are written.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let found = launch(3, |ctx| {
    ///     let mesh = ctx.mesh_of(3)?;
    ///     // A moving average, whose factors are one number.
    ///     let x = mesh.from_fn(6, shard(0).sizes([4, 0, 2]), |i| 8.0 * i[0] as f64)?;
    ///     let average = (&x * 0.5).linear_recurrence(&mesh.full([], 0.5, replicate())?, None, 0, false)?;
    ///     // It goes on from where it was: the state is what was found last.
    ///     let more = mesh.full(2, 24.0, shard(0))?;
    ///     let last = average.narrow(0, 5..6)?;
    ///     let rest = more.linear_recurrence(&mesh.full([], 0.5, replicate())?, Some(&last), 0, false)?;
    ///     // Advantages of the last steps of an episode, which ends at the third.
    ///     let goes_on = mesh.from_fn(4, shard(0), |i| f64::from(u8::from(i[0] != 2)))?;
    ///     let delta = mesh.ones(4, shard(0))?;
    ///     let advantages = delta.linear_recurrence(&(&goes_on * 0.5), None, 0, true)?;
    ///     Ok([average, rest, advantages].map(|of| of.to_array::<f32>()))
    /// })?;
    /// let [average, rest, advantages] = found[0].clone();
    /// assert_eq!(average?, ndarray::arr1(&[0.0, 4.0, 10.0, 17.0, 24.5, 32.25]).into_dyn());
    /// assert_eq!(rest?, ndarray::arr1(&[40.125, 44.0625]).into_dyn());
    /// assert_eq!(advantages?, ndarray::arr1(&[1.75, 1.5, 1.0, 1.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// The state of Mamba's blocks, `x` and `dt` being `[batch, time, channels]`, `b` and `c` `[batch, time, state]`, and `a`
    /// `[channels, state]`, is `[batch, time, channels, state]`:
    ///
    /// ```
    /// use shard_tensor::{Result, ShardTensor};
    /// fn selective_scan(x: &ShardTensor, dt: &ShardTensor, [a, b, c]: [&ShardTensor; 3]) -> Result<ShardTensor> {
    ///     let decay = dt.unsqueeze(3)?.mul(a)?.exp()?;
    ///     let input = dt.mul(x)?.unsqueeze(3)?.mul(&b.unsqueeze(2)?)?;
    ///     let h = input.linear_recurrence(&decay, None, 1, false)?;
    ///     h.mul(&c.unsqueeze(2)?)?.sum(3, false)
    /// }
    /// # let _ = selective_scan;
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, each rank receives two numbers in `f64` per line from every other part, and factors
    /// that are divided otherwise are brought to this tensor's parts; partial operands are reduced first. Otherwise nothing moves. A
    /// gradient moves as much again, and of the states one element per line from the part before.
    ///
    /// # Errors
    /// For a dim out of range, shapes that do not broadcast, a `first` of another extent than 1 along the dim, integers and truth values, and
    /// types that differ; what the communicator reports.
    #[track_caller]
    pub fn linear_recurrence(
        &self,
        factors: &Self,
        first: Option<&Self>,
        dim: impl Into<Dim>,
        backwards: bool,
    ) -> Result<Self> {
        const NAME: &str = "linear_recurrence";
        let _call = Calling::of(NAME);
        let ndim = first.map_or(0, Self::ndim).max(factors.ndim());
        let dim = dim.into().of(NAME, ndim.max(self.ndim()))?;
        let first = first.map(Self::value);
        self.run2(factors, |exec, b, a| {
            scan::linear_recurrence(exec, b, a, first.as_ref(), dim, backwards)
        })
    }
}

/// Integrals along a dim, by the trapezoidal rule, and powers.
impl ShardTensor {
    /// The integral along a dim of what is known at places that are `dx` apart: 0 of one place, or of none. The dim disappears.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let areas = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.linspace(0.0, 2.0, 5, shard(0))?;
    ///     Ok((x.trapezoid(0.5, 0)?.item()?, x.trapezoid_at(&x, 0)?.item()?))
    /// })?;
    /// assert_eq!(areas[0], (2.0, 2.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, ranks get what of neighbouring parts belongs to theirs, and the result is
    /// partial; nothing moves otherwise.
    ///
    /// # Errors
    /// For a dim out of range, integers and truth values; what the communicator reports.
    #[track_caller]
    pub fn trapezoid(&self, dx: f64, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("trapezoid");
        let dim = self.dim("trapezoid", dim)?;
        self.run(|exec, y| integral::trapezoid(exec, y, Spacing::Even(dx), dim))
    }

    /// As [`trapezoid`](Self::trapezoid), with the places: a list, or a tensor that broadcasts to this one.
    ///
    /// # Collective
    /// As [`trapezoid`](Self::trapezoid); communicates to align misaligned operands.
    ///
    /// # Errors
    /// As [`trapezoid`](Self::trapezoid); for places that do not fit, and types that differ.
    #[track_caller]
    pub fn trapezoid_at(&self, x: &Self, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("trapezoid_at");
        let dim = self.dim("trapezoid_at", dim)?;
        self.run2(x, |exec, y, x| {
            integral::trapezoid(exec, y, Spacing::At(x), dim)
        })
    }

    /// The integrals along a dim up to each place but the first: the dim is shorter by one, or empty.
    ///
    /// # Collective
    /// As [`trapezoid`](Self::trapezoid) and [`cumsum`](Self::cumsum).
    ///
    /// # Errors
    /// As [`trapezoid`](Self::trapezoid).
    #[track_caller]
    pub fn cumulative_trapezoid(&self, dx: f64, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("cumulative_trapezoid");
        let dim = self.dim("cumulative_trapezoid", dim)?;
        self.run(|exec, y| integral::cumulative_trapezoid(exec, y, Spacing::Even(dx), dim))
    }

    /// As [`cumulative_trapezoid`](Self::cumulative_trapezoid), with the places.
    ///
    /// # Collective
    /// As [`trapezoid_at`](Self::trapezoid_at) and [`cumsum`](Self::cumsum).
    ///
    /// # Errors
    /// As [`trapezoid_at`](Self::trapezoid_at).
    #[track_caller]
    pub fn cumulative_trapezoid_at(&self, x: &Self, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("cumulative_trapezoid_at");
        let dim = self.dim("cumulative_trapezoid_at", dim)?;
        self.run2(x, |exec, y, x| {
            integral::cumulative_trapezoid(exec, y, Spacing::At(x), dim)
        })
    }

    /// Powers of the elements of a list as rows, `[elements, columns]`: from 1 on if `increasing`, or down to 1 (a Vandermonde matrix). Of
    /// integers they are `i64`, and wrap.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let powers = launch(2, |ctx| ctx.mesh_of(2)?.arange(3, shard(0))?.vander(3, true)?.to_array::<f32>())?;
    /// assert_eq!(powers[0], ndarray::arr2(&[[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// For another number of dims than one.
    #[track_caller]
    pub fn vander(&self, columns: usize, increasing: bool) -> Result<Self> {
        let _call = Calling::of("vander");
        self.run(|exec, x| scan::vander(exec, x, columns, increasing))
    }
}
