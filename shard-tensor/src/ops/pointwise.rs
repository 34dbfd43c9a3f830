//! Maps of one number and of two.

use super::Branch;
use crate::{Dim, Result, ShardTensor};
use shard_comm::{Calling, DType};
use shard_kernels::unary::Unary;
use shard_ops::elementwise as ops;

/// A method for each row of the table.
macro_rules! methods {
    ($_x:ident; $(
        $(#[$doc:meta])*
        $name:ident: $variant:ident $(($($(#[$_about:meta])* $p:ident = $_default:expr),+))? $(, $_form:ident)? {
            $($_formulas:tt)+
        }
    )*) => {
        /// Maps of one number: no communication, but that partial operands of non-linear ones are reduced first.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// All members of the mesh. No communication; a partial tensor is reduced first, unless the map is linear.
            ///
            /// # Errors
            /// As [`map`](Self::map).
            #[track_caller]
            pub fn $name(&self $($(, $p: f64)+)?) -> Result<Self> {
                self.map(Unary::$variant $({ $($p),+ })?)
            }
        )*}
    };
}

shard_kernels::unary_table!(methods);

/// Maps of one number that are not rows of the table.
impl ShardTensor {
    /// Any map of one number.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first, unless the map is linear.
    ///
    /// # Errors
    /// For types other than `f32` and `f64`, and integers where the map does not stay with them; what the communicator reports.
    #[track_caller]
    pub fn map(&self, map: Unary) -> Result<Self> {
        self.run(|exec, x| ops::unary(exec, x, map))
    }

    /// `x / value`, rounded once: not the product with the reciprocal. A partial sum stays partial, unless the value is zero
    /// or not finite.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first, unless the map is linear.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn div_scalar(&self, value: f64) -> Result<Self> {
        let _call = Calling::of("div_scalar");
        self.run(|exec, x| ops::div_scalar(exec, x, value))
    }

    /// Numbers from a half to 1 in size, and powers of two, `i32`, with which they give these: as `torch.frexp`. 0, infinity and NaN stay, with
    /// the power 0. The first have a gradient.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.distribute(&array![6.0_f32, -0.25, 0.0], shard(0))?;
    ///     let (mantissas, powers) = x.frexp()?;
    ///     Ok((mantissas.to_array::<f32>()?, powers.to_array::<i32>()?))
    /// })?;
    /// assert_eq!(found[0], (array![0.75, -0.5, 0.0].into_dyn(), array![3, -1, 0].into_dyn()));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`map`](Self::map).
    ///
    /// # Errors
    /// For types that are no floats; what the communicator reports.
    #[track_caller]
    pub fn frexp(&self) -> Result<(Self, Self)> {
        let _call = Calling::of("frexp");
        let powers = self.detach().map(Unary::FrexpExponent)?.to(DType::I32)?;
        Ok((self.map(Unary::FrexpMantissa)?, powers))
    }

    /// `x - value`
    ///
    /// # Collective
    /// As [`add_scalar`](Self::add_scalar).
    ///
    /// # Errors
    /// As [`map`](Self::map); a number that integers do not hold.
    #[track_caller]
    pub fn sub_scalar(&self, value: f64) -> Result<Self> {
        let _call = Calling::of("sub_scalar");
        self.run(|exec, x| ops::sub_scalar(exec, x, value))
    }

    /// `value - x`, as `torch.rsub`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let left = launch(2, |ctx| ctx.mesh_of(2)?.arange(3, shard(0))?.rsub_scalar(1.0)?.to_array::<f32>())?;
    /// assert_eq!(left[0].as_slice(), Some(&[1.0, 0.0, -1.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`add_scalar`](Self::add_scalar).
    ///
    /// # Errors
    /// As [`sub_scalar`](Self::sub_scalar).
    #[track_caller]
    pub fn rsub_scalar(&self, value: f64) -> Result<Self> {
        let _call = Calling::of("rsub_scalar");
        self.run(|exec, x| ops::rsub_scalar(exec, x, value))
    }

    /// [`floor_div`](Self::floor_div) by a number.
    ///
    /// ```
    /// use shard_tensor::{DType, launch, shard};
    /// let split = launch(2, |ctx| {
    ///     let places = ctx.mesh_of(2)?.with_dtype(DType::I64).arange(5, shard(0))?; // of a table of 3 columns
    ///     let (row, column) = (places.floor_div_scalar(3.0)?, places.remainder_scalar(3.0)?);
    ///     Ok([row.to_array::<i64>()?, column.to_array::<i64>()?])
    /// })?;
    /// assert_eq!(split[0][0].as_slice(), Some(&[0, 0, 0, 1, 1][..]));
    /// assert_eq!(split[0][1].as_slice(), Some(&[0, 1, 2, 0, 1][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// As [`floor_div`](Self::floor_div); for a number that the type cannot hold.
    #[track_caller]
    pub fn floor_div_scalar(&self, value: f64) -> Result<Self> {
        let _call = Calling::of("floor_div_scalar");
        self.run(|exec, x| ops::floor_div_scalar(exec, x, value))
    }

    /// [`remainder`](Self::remainder) of the division by a number.
    ///
    /// # Collective
    /// As [`floor_div_scalar`](Self::floor_div_scalar).
    ///
    /// # Errors
    /// As [`floor_div_scalar`](Self::floor_div_scalar).
    #[track_caller]
    pub fn remainder_scalar(&self, value: f64) -> Result<Self> {
        let _call = Calling::of("remainder_scalar");
        self.run(|exec, x| ops::remainder_scalar(exec, x, value))
    }

    /// A number as a tensor of the same type on the same mesh.
    #[track_caller]
    pub(crate) fn number(&self, value: f64) -> Result<Self> {
        self.mesh().full((), value, crate::Placements::replicated())
    }

    /// The same numbers in another type: the nearest float; an integer towards zero, at most as far from it as the type
    /// reaches, and 0 for NaN; and as `bool`, whether they are not zero.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// What the communicator or the device reports.
    ///
    /// ```
    /// use shard_tensor::{DType, launch, shard};
    /// let same = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let guesses = mesh.from_fn([5], [shard(0)], |i| (i[0] % 3) as f64)?.to(DType::I64)?;
    ///     let labels = mesh.with_dtype(DType::I64).arange(5, [shard(0)])?;
    ///     guesses.eq(&labels)?.to(DType::F32)?.mean_all()?.item()
    /// })?;
    /// assert!((same[0] - 0.6).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn to(&self, dtype: DType) -> Result<Self> {
        self.run(|exec, x| ops::cast(exec, x, dtype))
    }
}

/// Methods that are maps of two numbers.
macro_rules! binaries {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Maps of two numbers of one type. Shapes broadcast as in NumPy. Where layouts differ the smaller operand moves,
        /// unless [moves are explicit](crate::Context::explicit_moves). Integers wrap, as in PyTorch; truth values are added
        /// by "or" and multiplied by "and".
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// All members of the mesh. Communicates to align misaligned operands.
            ///
            /// # Errors
            /// If shapes do not broadcast; if types differ, or have no such map: [`to`](Self::to) converts. What the
            /// communicator reports.
            #[track_caller]
            pub fn $name(&self, other: &Self) -> Result<Self> {
                let _call = Calling::of(stringify!($name));
                self.run2(other, ops::$name)
            }
        )*}
    };
}

binaries! {
    /// `x + y`
    add;
    /// `x - y`
    sub;
    /// `x * y`
    mul;
    /// `x / y`; of integers and truth values the true quotient, in `f32`.
    div;
    /// The largest whole number not above `x / y`, of integers 0 where `y` is 0. It has no gradient.
    floor_div;
    /// What [`floor_div`](Self::floor_div) leaves, with the sign of `y`; of integers 0 where `y` is 0.
    remainder;
    /// What division rounded towards 0 leaves, with the sign of `x`; of integers 0 where `y` is 0.
    fmod;
    /// The angle, in `-π ..= π`, of the point whose ordinate is `x` and whose abscissa is `y`. At the origin the gradient is 0.
    atan2;
    /// `√(x² + y²)` without overflow.
    hypot;
    /// `x ln y`, and 0 where `x` is 0 unless `y` is NaN.
    xlogy;
    /// `ln(e^x + e^y)` without overflow.
    logaddexp;
    /// `log₂(2^x + 2^y)` without overflow.
    logaddexp2;
    /// `x^y`; of integers to negative powers 0, but for those of 1 and -1.
    pow;
    /// The greater; NaN if either is. Ties share the gradient evenly, and where it is NaN both have it.
    maximum;
    /// The lesser; NaN if either is. Ties share the gradient evenly, and where it is NaN both have it.
    minimum;
    /// The greater, and the other one where one is NaN. Ties share the gradient evenly.
    fmax;
    /// The lesser, and the other one where one is NaN. Ties share the gradient evenly.
    fmin;
    /// The size of `x` with the sign of `y`, also of zeros; of integers and truth values in `f32`. Where `x` is 0 the gradient is 0, where it
    /// is NaN NaN, and `y` has none.
    copysign;
    /// 0 below 0 and for NaN, 1 above 0, and `y` at 0. Only `y` has a gradient.
    heaviside;
    /// Hurwitz's zeta function, the sum of `(y + k)^-x` over all `k` from 0 on, as `torch.special.zeta`: infinite where `x` is 1, and where `y`
    /// is 0 or a whole number below it. Only `y` has a gradient; of `x` none is known here, as in PyTorch.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let s = mesh.distribute(&array![2.0_f64, 4.0], shard(0))?;
    ///     s.zeta(&mesh.with_dtype(s.dtype()).ones([1], shard(0))?)?.to_array::<f64>() // Riemann's
    /// })?;
    /// assert!((found[0][0] - std::f64::consts::PI.powi(2) / 6.0).abs() < 1e-14);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    zeta;
    /// The lower incomplete gamma function of `x` up to `y`, over the whole one, as `torch.igamma`: the share of a gamma distribution of
    /// concentration `x` and rate 1 that is below `y`. NaN below 0. Only `y` has a gradient; of `x` none is known here, as in PyTorch.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![0.5_f32, 3.0], shard(0))?.requires_grad()?;
    ///     let below = mesh.ones([1], shard(0))?.igamma(&x)?; // of exponential waiting times
    ///     let density = below.sum_all()?.backward()?.get(&x)?.expect("it depends on it");
    ///     Ok([below.to_array::<f32>()?, density.to_array::<f32>()?])
    /// })?;
    /// let [below, density] = &found[0];
    /// assert!((below[1] - (1.0 - (-3.0_f32).exp())).abs() < 1e-6 && (density[1] - (-3.0_f32).exp()).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    igamma;
    /// What [`igamma`](Self::igamma) lacks of 1, with all digits where that is little.
    igammac;
    /// The next number of the type after `x` on the way to `y`, which is `y` where they are equal: there the gradient is 0, as PyTorch's, and
    /// elsewhere it is that of `x`.
    nextafter;
    /// The greatest common divisor of integers, which is not below 0; of two zeros 0.
    gcd;
    /// The least common multiple of integers, which is not below 0 unless it wraps; 0 if either is.
    lcm;
    /// The bits that both have, of integers and truth values.
    bitwise_and;
    /// The bits that either has, of integers and truth values.
    bitwise_or;
    /// The bits that one of the two has, of integers and truth values.
    bitwise_xor;
    /// The bits of integers moved up by `y`: 0 where that is below 0 or as many as there are.
    shift_left;
    /// The bits of integers moved down by `y`, the sign staying: only the sign where that is below 0 or as many as there are.
    shift_right;
}

impl ShardTensor {
    /// The bits that integers lack; the contrary of truth values.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// For floats.
    #[track_caller]
    pub fn bitwise_not(&self) -> Result<Self> {
        self.run(ops::bitwise_not)
    }
}

/// A few maps in a row.
impl ShardTensor {
    /// Whether each element is NaN, as `bool`.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn isnan(&self) -> Result<Self> {
        self.run(ops::isnan)
    }

    /// Whether each element is infinite, as `bool`.
    ///
    /// # Collective
    /// As [`isnan`](Self::isnan).
    ///
    /// # Errors
    /// As [`isnan`](Self::isnan).
    #[track_caller]
    pub fn isinf(&self) -> Result<Self> {
        self.run(ops::isinf)
    }

    /// Whether each element is neither infinite nor NaN, as `bool`.
    ///
    /// # Collective
    /// As [`isnan`](Self::isnan).
    ///
    /// # Errors
    /// As [`isnan`](Self::isnan).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let finite = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(3, [shard(0)])?;
    ///     x.reciprocal()?.isfinite()?.count_nonzero(0, false)?.item()
    /// })?;
    /// assert_eq!(finite, [2.0, 2.0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn isfinite(&self) -> Result<Self> {
        self.run(ops::isfinite)
    }

    /// `x + weight * (end - x)`, for weights of 0.5 and above computed as `end - (1 - weight) * (end - x)`, as PyTorch does: a weight of 1
    /// gives `end`. The weight is a tensor or a number. Shapes broadcast.
    ///
    /// A target network, or a teacher, follows another model by a share; in `detach`, parameters lie as they are kept, so that nothing moves:
    ///
    /// ```
    /// use shard_tensor::nn::{Linear, ModelExt};
    /// use shard_tensor::launch;
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh([("shard", 2)])?;
    ///     let model = Linear::new(&mesh, 4, 3)?.fully_sharded("shard")?;
    ///     let teacher = model.copied()?;
    ///     for ((_, old), (_, new)) in teacher.parameters().iter().zip(model.parameters()) {
    ///         old.set(&old.detach().lerp(&new.detach(), 0.01)?)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    #[track_caller]
    pub fn lerp<'a>(&self, end: &Self, weight: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("lerp");
        let weight = match weight.into() {
            Branch::Tensor(weight) => weight.value(),
            Branch::Number(weight) => {
                return self.run2(end, |exec, a, b| ops::lerp_by(exec, a, b, weight));
            }
        };
        self.run2(end, |exec, a, b| ops::lerp(exec, a, b, &weight))
    }

    /// `x + alpha * other` in one pass, as `torch.add(x, other, alpha=alpha)`; with `-alpha` it is `torch.sub`. Shapes broadcast. Of 16-bit floats
    /// the sum is rounded once.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.arange(3, [shard(0)])?;
    ///     x.add_scaled(&mesh.ones([3], shard(0))?, -0.5)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[-0.5, 0.5, 1.5][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`lerp`](Self::lerp).
    ///
    /// # Errors
    /// As [`add`](Self::add); for a number that the type cannot hold.
    #[track_caller]
    pub fn add_scaled(&self, other: &Self, alpha: f64) -> Result<Self> {
        let _call = Calling::of("add_scaled");
        self.run2(other, |exec, x, y| ops::add_scaled(exec, x, y, alpha))
    }

    /// `x + value * a * b`; shapes broadcast.
    ///
    /// # Collective
    /// As [`lerp`](Self::lerp).
    ///
    /// # Errors
    /// As [`add`](Self::add); for a value that the type cannot hold.
    #[track_caller]
    pub fn addcmul(&self, a: &Self, b: &Self, value: f64) -> Result<Self> {
        let _call = Calling::of("addcmul");
        let b = b.value();
        self.run2(a, |exec, x, a| ops::addcmul(exec, x, a, &b, value))
    }

    /// `x + value * a / b`; shapes broadcast.
    ///
    /// # Collective
    /// As [`lerp`](Self::lerp).
    ///
    /// # Errors
    /// As [`addcmul`](Self::addcmul); for integers.
    #[track_caller]
    pub fn addcdiv(&self, a: &Self, b: &Self, value: f64) -> Result<Self> {
        let _call = Calling::of("addcdiv");
        let b = b.value();
        self.run2(a, |exec, x, a| ops::addcdiv(exec, x, a, &b, value))
    }

    /// `x` above 0 and `weight * x` at and below it; `weight` is a number for each index of dim 1, or one for all.
    ///
    /// # Collective
    /// As [`lerp`](Self::lerp).
    ///
    /// # Errors
    /// For another number of weights; for types that differ, and integers.
    #[track_caller]
    pub fn prelu(&self, weight: &Self) -> Result<Self> {
        let _call = Calling::of("prelu");
        self.run2(weight, ops::prelu)
    }

    /// The first half of a dim times the sigmoid of the second half.
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded one half is brought to the other.
    ///
    /// # Errors
    /// For a dim out of range or of odd extent; for integers.
    #[track_caller]
    pub fn glu(&self, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("glu");
        let dim = self.dim("glu", dim)?;
        self.run(|exec, x| ops::glu(exec, x, dim))
    }
}
