//! Fourier transforms.

use crate::{DimList, Mesh, Placements, Result, ShardTensor};
use shard_comm::{Call, Calling};
use shard_ops::fft::{self, FourierNorm};

/// Methods that transform along one dim, and along several.
macro_rules! transforms {
    ($($(#[$doc:meta])* $name:ident, $complex:literal, $(#[$many_doc:meta])* $many:ident;)*) => {
        /// Fourier transforms along sharded dims, by the conventions of `torch.fft`. Complex numbers are two numbers side by
        /// side, in a last dim of 2, which dims are not counted with. Where a dim is sharded, its mesh axes come to divide another
        /// dim instead, in one exchange, and stay there: a transform of both dims of a matrix over both axes of a mesh is two
        /// exchanges. Parts may be uneven or empty.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// `n` is how many elements are transformed: the tensor is cut or padded with zeros to that. `norm` says which of two
            /// transforms that undo each other is scaled.
            ///
            /// # Collective
            /// All members of the mesh. One exchange if the dim is sharded, none otherwise; a partial sum stays one.
            ///
            /// # Errors
            /// For a dim out of range, a length of 0, numbers that are not complex where they should be, and types other than
            /// `f32` and `f64`.
            #[track_caller]
            pub fn $name(
                &self,
                n: Option<usize>,
                dim: impl Into<crate::Dim>,
                norm: FourierNorm,
            ) -> Result<Self> {
                let _call = Calling::of(stringify!($name));
                let counted = self.ndim().saturating_sub($complex);
                let dim = dim.into().of(stringify!($name), counted)?;
                self.run(|exec, x| fft::$name(exec, x, n, dim, norm))
            }

            $(#[$many_doc])*
            ///
            /// `lengths` are those of the transforms, one for each dim.
            ///
            /// # Collective
            /// All members of the mesh. One exchange for each dim that is sharded when its turn comes. Dims that follow each other and
            /// are not sharded are one op.
            ///
            /// # Errors
            /// As for one dim; for no dims, dims named twice, and another number of lengths.
            #[track_caller]
            pub fn $many(
                &self,
                lengths: Option<&[usize]>,
                dims: impl Into<DimList>,
                norm: FourierNorm,
            ) -> Result<Self> {
                let _call = Calling::of(stringify!($many));
                let counted = self.ndim().saturating_sub($complex);
                let dims = dims.into().of(stringify!($many), counted)?;
                self.run(|exec, x| fft::$many(exec, x, lengths, &dims, norm))
            }
        )*}
    };
}

transforms! {
    /// The Fourier transform of complex numbers along a dim.
    ///
    /// ```
    /// use shard_tensor::{FourierNorm, launch, shard};
    /// let y = launch(3, |ctx| {
    ///     // A wave of period 4, as complex numbers.
    ///     let x = ctx.mesh_of(3)?.from_fn([8, 2], [shard(0)], |i| {
    ///         let angle = i[0] as f64 * std::f64::consts::FRAC_PI_2;
    ///         if i[1] == 0 { angle.cos() } else { angle.sin() }
    ///     })?;
    ///     x.fft(None, 0, FourierNorm::Backward)?.to_array::<f32>()
    /// })?;
    /// assert!((y[0][[2, 0]] - 8.0).abs() < 1e-5 && y[0][[3, 0]].abs() < 1e-5);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    fft, 1,
    /// [`fft`](Self::fft) along several dims.
    fftn;
    /// The inverse of [`fft`](Self::fft).
    ifft, 1,
    /// [`ifft`](Self::ifft) along several dims.
    ifftn;
    /// The Fourier transform of real numbers along a dim: the `n/2 + 1` complex numbers of which the others are mirror images.
    rfft, 0,
    /// [`rfft`](Self::rfft) along the last of several dims, then [`fft`](Self::fft) along the others.
    rfftn;
    /// The inverse of [`rfft`](Self::rfft), which gives real numbers: `n` of them, by default the even number
    /// `2 (extent - 1)`.
    irfft, 1,
    /// [`ifft`](Self::ifft) along all but the last of several dims, then [`irfft`](Self::irfft) along the last.
    irfftn;
}

impl ShardTensor {
    /// Moves frequency 0 from the beginning to the middle of dims; a dim of complex numbers is counted here.
    ///
    /// # Collective
    /// All members of the mesh. Communicates for sharded dims.
    ///
    /// # Errors
    /// For a dim out of range.
    #[track_caller]
    pub fn fftshift(&self, dims: impl Into<DimList>) -> Result<Self> {
        let _call = Calling::of("fftshift");
        let dims = dims.into().of("fftshift", self.ndim())?;
        self.run(|exec, x| fft::fftshift(exec, x, &dims))
    }

    /// Undoes [`fftshift`](Self::fftshift).
    ///
    /// # Collective
    /// As [`fftshift`](Self::fftshift).
    ///
    /// # Errors
    /// As [`fftshift`](Self::fftshift).
    #[track_caller]
    pub fn ifftshift(&self, dims: impl Into<DimList>) -> Result<Self> {
        let _call = Calling::of("ifftshift");
        let dims = dims.into().of("ifftshift", self.ndim())?;
        self.run(|exec, x| fft::ifftshift(exec, x, &dims))
    }

    /// The products of complex numbers, which lie in a last dim of 2; the other dims broadcast.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands.
    ///
    /// # Errors
    /// For a last dim that is not 2; for shapes that do not broadcast, and types that differ or are not `f32` or `f64`.
    #[track_caller]
    pub fn complex_mul(&self, other: &Self) -> Result<Self> {
        let _call = Calling::of("complex_mul");
        self.run2(other, fft::complex_mul)
    }

    /// [`einsum`](Self::einsum) of complex numbers, which lie in a last dim of 2 that the equation does not name; what the result's letters
    /// are stands behind `->`. The numbers of all but the largest tensor take twice their memory meanwhile.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{ShardTensor, launch, shard};
    /// let product = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![[1.0_f32, 2.0], [0.0, 1.0]], [shard(0)])?; // 1 + 2i, i
    ///     let y = mesh.distribute(&array![[3.0_f32, -1.0], [2.0, 0.0]], [shard(0)])?; // 3 - i, 2
    ///     ShardTensor::complex_einsum("k,k->", &[&x, &y])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(product[0], array![5.0, 7.0].into_dyn()); // 5 + 5i and 2i
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`einsum`](Self::einsum).
    ///
    /// # Errors
    /// As [`einsum`](Self::einsum); for a last dim that is not 2, and an equation without `->`.
    #[track_caller]
    pub fn complex_einsum(equation: &str, tensors: &[&Self]) -> Result<Self> {
        let _call = Calling::of("complex_einsum");
        Self::joined("complex_einsum", tensors, |exec, values| {
            fft::complex_einsum(exec, equation, values)
        })
    }
}

impl Mesh {
    /// The frequencies of the results of [`fft`](ShardTensor::fft) of `n` elements that are `d` apart, in cycles per unit.
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`from_fn`](Self::from_fn).
    #[track_caller]
    pub fn fftfreq(
        &self,
        n: usize,
        d: f64,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("fftfreq");
        self.filled(
            &Call::new("fftfreq").constant().with(d.to_bits().into()),
            &n.into(),
            &placements.into(),
            &|i| fft::frequency(i[0], n, d),
        )
    }

    /// The frequencies of the results of [`rfft`](ShardTensor::rfft): those from 0 to half of `1/d`.
    ///
    /// # Collective
    /// As [`fftfreq`](Self::fftfreq).
    ///
    /// # Errors
    /// As [`from_fn`](Self::from_fn).
    #[track_caller]
    pub fn rfftfreq(
        &self,
        n: usize,
        d: f64,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("rfftfreq");
        // The extent does not tell an even number of samples from the odd one behind it.
        let call = Call::new("rfftfreq").constant().with(d.to_bits().into());
        self.filled(
            &call.with(n as u128),
            &(n / 2 + 1).into(),
            &placements.into(),
            &|i| i[0] as f64 / (n as f64 * d),
        )
    }
}
