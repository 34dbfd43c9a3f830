//! Linear algebra of batches of matrices.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::linalg as ops;
use shard_ops::{Exec, OpError, Value};

/// Linear algebra, with the feature `linalg`. Matrices are the last two dims; each is whole on every rank that has it, and mesh axes
/// may divide batch dims. Computed in double precision. What does not exist is NaN: the factor
/// of a matrix that is not positive definite, those of one with elements that are infinite or NaN, or the gradient of the determinant of a
/// singular one, whose value is 0.
impl ShardTensor {
    /// The inverses of square matrices. That of a singular one has no meaning: its elements are infinite or NaN where elimination meets a
    /// pivot of 0, and very large where rounding hides it.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// For a sharded dim of the matrices, which must be redistributed first; for matrices that are not square, and types other than
    /// `f32` and `f64`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let inverse = launch(2, |ctx| {
    ///     let twice = ctx.mesh_of(2)?.from_fn([3, 2, 2], [shard(0)], |i| if i[1] == i[2] { 2.0 } else { 0.0 })?;
    ///     twice.inv()?.to_array::<f32>()
    /// })?;
    /// assert_eq!((inverse[0][[2, 1, 1]], inverse[0][[2, 0, 1]]), (0.5, 0.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn inv(&self) -> Result<Self> {
        let _call = Calling::of("inv");
        let [inverse] = self.factors("inv", ops::inv)?;
        Ok(inverse)
    }

    /// The matrices `X` with `A X = B`, for this tensor as `A`, `[.., n, n]`, and `B` `[.., n, k]`, or `[.., n]`, with equal batch dims.
    ///
    /// # Collective
    /// All members of the mesh. Communicates only to align batch dims.
    ///
    /// # Errors
    /// As [`inv`](Self::inv); for shapes that do not belong together, and types that differ.
    #[track_caller]
    pub fn solve(&self, b: &Self) -> Result<Self> {
        let _call = Calling::of("solve");
        self.run2(b, ops::solve)
    }

    /// The lower triangular `L` with `L Lᵀ = A`, of symmetric positive definite matrices, whose lower triangles are read.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv).
    #[track_caller]
    pub fn cholesky(&self) -> Result<Self> {
        let _call = Calling::of("cholesky");
        let [factor] = self.factors("cholesky", ops::cholesky)?;
        Ok(factor)
    }

    /// `Q`, `[.., m, k]` with orthonormal columns, and upper triangular `R`, `[.., k, n]`, with `Q R = A` and `k = min(m, n)`.
    /// There is a gradient where the first `k` columns of `A` are independent.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv), of matrices of any extents.
    #[track_caller]
    pub fn qr(&self) -> Result<(Self, Self)> {
        let _call = Calling::of("qr");
        let [q, r] = self.factors("qr", ops::qr)?;
        Ok((q, r))
    }

    /// `U`, `[.., m, k]`, the singular values `s`, `[.., k]` and falling, and `Vᵀ`, `[.., k, n]`, with `U diag(s) Vᵀ = A` and
    /// `k = min(m, n)`.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv), of matrices of any extents.
    #[track_caller]
    pub fn svd(&self) -> Result<(Self, Self, Self)> {
        let _call = Calling::of("svd");
        let [u, s, vt] = self.factors("svd", ops::svd)?;
        Ok((u, s, vt))
    }

    /// The eigenvalues, rising, and the eigenvectors, as columns, of symmetric matrices, whose lower triangles are read.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv).
    #[track_caller]
    pub fn eigh(&self) -> Result<(Self, Self)> {
        let _call = Calling::of("eigh");
        let [values, vectors] = self.factors("eigh", ops::eigh)?;
        Ok((values, vectors))
    }

    /// The determinants of square matrices. Of a singular one it is 0, with a gradient of NaN, as that is computed with the inverse.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv).
    #[track_caller]
    pub fn det(&self) -> Result<Self> {
        let _call = Calling::of("det");
        let [det] = self.factors("det", ops::det)?;
        Ok(det)
    }

    /// The signs of the determinants of square matrices, and the logarithms of their sizes.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv).
    #[track_caller]
    pub fn slogdet(&self) -> Result<(Self, Self)> {
        let _call = Calling::of("slogdet");
        let [sign, log] = self.factors("slogdet", ops::slogdet)?;
        Ok((sign, log))
    }

    #[track_caller]
    fn factors<const N: usize>(
        &self,
        name: &'static str,
        f: fn(&dyn Exec, &Value) -> std::result::Result<Vec<Value>, OpError>,
    ) -> Result<[Self; N]> {
        let _call = Calling::of(name);
        let made = f(self.context().tape(), &self.value())?;
        let made: Vec<Self> = made.into_iter().map(|value| self.lift(value)).collect();
        let count = made.len();
        <[Self; N]>::try_from(made).map_err(|_| {
            OpError::Arity {
                op: name,
                expected: format!("{N} results"),
                got: count,
            }
            .into()
        })
    }
}
