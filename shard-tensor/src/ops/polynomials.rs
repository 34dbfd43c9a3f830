//! Orthogonal polynomials.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::elementwise::{OrthogonalPolynomial, polynomial};

macro_rules! polynomials {
    ($($(#[$doc:meta])* $name:ident: $variant:ident, $shifted:literal;)*) => {
        /// Orthogonal polynomials of a degree, at each element: `torch.special` has them by the same names. Each is found from those of the two degrees before, so
        /// it takes a few operations for each degree, in one pass over memory, and has derivatives of any order.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// All members of the mesh. No communication; a partial tensor is reduced first.
            ///
            /// # Errors
            /// For integers and truth values; for degrees above 1000, and those whose coefficients the type does not hold.
            #[track_caller]
            pub fn $name(&self, degree: usize) -> Result<Self> {
                let _call = Calling::of(stringify!($name));
                self.run(|exec, x| polynomial(exec, x, OrthogonalPolynomial::$variant, degree, $shifted))
            }
        )*}
    };
}

polynomials! {
    /// Chebyshev's of the first kind, `cos(n arccos x)`.
    chebyshev_polynomial_t: ChebyshevT, false;
    /// Chebyshev's of the second kind, `sin((n + 1) t) / sin t` of `x = cos t`.
    chebyshev_polynomial_u: ChebyshevU, false;
    /// Chebyshev's of the third kind, `cos((n + 1/2) t) / cos(t / 2)` of `x = cos t`.
    chebyshev_polynomial_v: ChebyshevV, false;
    /// Chebyshev's of the fourth kind, `sin((n + 1/2) t) / sin(t / 2)` of `x = cos t`.
    chebyshev_polynomial_w: ChebyshevW, false;
    /// Chebyshev's of the first kind, of `2 x - 1`.
    shifted_chebyshev_polynomial_t: ChebyshevT, true;
    /// Chebyshev's of the second kind, of `2 x - 1`.
    shifted_chebyshev_polynomial_u: ChebyshevU, true;
    /// Chebyshev's of the third kind, of `2 x - 1`.
    shifted_chebyshev_polynomial_v: ChebyshevV, true;
    /// Chebyshev's of the fourth kind, of `2 x - 1`.
    shifted_chebyshev_polynomial_w: ChebyshevW, true;
    /// Hermite's of physics, orthogonal by the weight `e^(-x²)`.
    hermite_polynomial_h: HermiteH, false;
    /// Hermite's of probability, orthogonal by the weight `e^(-x²/2)`.
    hermite_polynomial_he: HermiteHe, false;
    /// Laguerre's, orthogonal from 0 on by the weight `e^-x`.
    laguerre_polynomial_l: LaguerreL, false;
    /// Legendre's, orthogonal between -1 and 1.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.distribute(&array![0.0_f32, 0.5, 1.0], shard(0))?;
    ///     x.legendre_polynomial_p(2)?.to_array::<f32>() // (3 x² - 1) / 2
    /// })?;
    /// assert_eq!(found[0], array![-0.5, -0.125, 1.0].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    legendre_polynomial_p: LegendreP, false;
}
