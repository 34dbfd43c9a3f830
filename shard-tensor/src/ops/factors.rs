//! Factors that are kept as LAPACK keeps them, and eigenvalues of matrices that are not symmetric.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::linalg as ops;
use shard_ops::{Exec, OpError, Value};

/// Factors of matrices that are kept for right sides that come later, and reflections, with the feature `linalg`.
impl ShardTensor {
    /// The factors of [`lu`](Self::lu) in one matrix, `[.., m, n]`, `torch.linalg.lu_factor`: `U` on and above the diagonal, and `L` below it,
    /// whose ones are not kept. And the row, counted from 1, that each of the first `min(m, n)` was interchanged with, one after the other, as
    /// `i32`. [`lu_solve`](Self::lu_solve) takes both.
    ///
    /// # Collective
    /// As [`lu`](Self::lu).
    ///
    /// # Errors
    /// As [`lu`](Self::lu).
    #[track_caller]
    pub fn lu_factor(&self) -> Result<(Self, Self)> {
        let _call = Calling::throughout("lu_factor");
        self.both(ops::lu_factor)
    }

    /// The matrices `X` with `A X = B`, for this tensor and `pivots` as [`lu_factor`](Self::lu_factor) gives them of `A`: `torch.linalg.lu_solve`.
    /// If `A` is not `left`, with `X A = B`; and if `transpose`, the same of `Aᵀ`. `B` is as that of [`solve`](Self::solve).
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (lu, pivots) = mesh.distribute(&array![[0.0_f64, 2.0], [4.0, 6.0]], replicate())?.lu_factor()?;
    ///     assert_eq!(pivots.to_array::<i32>()?, array![2, 2].into_dyn());
    ///     for (b, x) in [([2.0, 10.0], [1.0, 1.0]), ([0.0, 4.0], [1.0, 0.0])] {
    ///         let b = mesh.distribute(&array![b[0], b[1]], replicate())?;
    ///         assert_eq!(lu.lu_solve(&pivots, &b, true, false)?.to_array::<f64>()?, array![x[0], x[1]].into_dyn());
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`solve_triangular`](Self::solve_triangular) twice, and as [`matmul`](Self::matmul) with what puts rows in order.
    ///
    /// # Errors
    /// As [`solve`](Self::solve); for pivots that are not as many as rows, or not `i32`. What is no row makes NaN.
    #[track_caller]
    pub fn lu_solve(&self, pivots: &Self, b: &Self, left: bool, transpose: bool) -> Result<Self> {
        let _call = Calling::throughout("lu_solve");
        let is_vector = b.ndim() == 1 || Some(b.shape()) == self.shape().split_last().map(|s| s.1);
        if !left && !is_vector {
            let b = b.transpose(-2, -1)?;
            let turned = self.with_pivots("lu_solve", pivots, &b, |exec, [a, p, b]| {
                ops::lu_solve(exec, a, p, b, true, !transpose)
            })?;
            return turned.transpose(-2, -1);
        }
        self.with_pivots("lu_solve", pivots, b, |exec, [a, p, b]| {
            ops::lu_solve(exec, a, p, b, true, transpose == left)
        })
    }

    /// The factors of symmetric matrices that need not be positive, of which the lower triangle is read, `torch.linalg.ldl_factor`: `A = L D Lᵀ` by
    /// Bunch and Kaufman's pivots, as LAPACK's `sytrf` keeps them, with zeros above. Blocks of `D` of two rows have negative pivots, `i32`,
    /// twice. [`ldl_solve`](Self::ldl_solve) takes both; there is no gradient.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     // No element of the diagonal is a pivot.
    ///     let (ld, pivots) = mesh.distribute(&array![[0.0_f64, 2.0], [2.0, 0.0]], replicate())?.ldl_factor()?;
    ///     assert_eq!(pivots.to_array::<i32>()?, array![-2, -2].into_dyn());
    ///     let b = mesh.distribute(&array![2.0_f64, 6.0], replicate())?;
    ///     assert_eq!(ld.ldl_solve(&pivots, &b)?.to_array::<f64>()?, array![3.0, 1.0].into_dyn());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv).
    #[track_caller]
    pub fn ldl_factor(&self) -> Result<(Self, Self)> {
        let _call = Calling::throughout("ldl_factor");
        self.both(ops::ldl_factor)
    }

    /// The matrices `X` with `A X = B`, for this tensor and `pivots` as [`ldl_factor`](Self::ldl_factor) gives them of `A`. There is a gradient by
    /// `B`, which is as that of [`solve`](Self::solve), and none by the factors.
    ///
    /// # Collective
    /// As [`solve`](Self::solve).
    ///
    /// # Errors
    /// As [`solve`](Self::solve); for pivots that are not as many as rows, or not `i32`. Those that no factors have make NaN.
    #[track_caller]
    pub fn ldl_solve(&self, pivots: &Self, b: &Self) -> Result<Self> {
        let _call = Calling::throughout("ldl_solve");
        self.with_pivots("ldl_solve", pivots, b, |exec, [a, p, b]| {
            ops::ldl_solve(exec, a, p, b)
        })
    }

    /// `Q` and `R` of [`qr`](Self::qr) as LAPACK keeps them, `torch.geqrf`: `R` on and above the diagonal of a matrix, `[.., m, n]`, and below it
    /// the vectors `v` of reflections `1 - tau v vᵀ`, whose product is `Q` and whose first elements, ones, are not kept; and `tau`,
    /// `[.., min(m, n)]`. [`householder_product`](Self::householder_product) and [`ormqr`](Self::ormqr) take both. There is no gradient.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv), of matrices of any extents.
    #[track_caller]
    pub fn geqrf(&self) -> Result<(Self, Self)> {
        let _call = Calling::throughout("geqrf");
        self.both(|exec, x| {
            let made = ops::geqrf(exec, x)?;
            let count = made.len();
            <[Value; 2]>::try_from(made).map_err(|_| OpError::arity("geqrf", "2 results", count))
        })
    }

    /// The first columns, `[.., m, n]`, of the product of the reflections `1 - tau v vᵀ`, `torch.linalg.householder_product`: vectors are the first
    /// columns of this tensor, `[.., m, n]` with `n` up to `m`, as many as `tau`, `[.., k]`, has numbers. Only what is below the diagonal is
    /// read.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let a = ctx.mesh_of(2)?.randn([4, 5, 3], shard(0))?;
    ///     let (reflections, tau) = a.geqrf()?;
    ///     let q = reflections.householder_product(&tau)?;
    ///     let r = reflections.triu(0)?.narrow(-2, ..3)?;
    ///     assert!(q.matmul(&r)?.allclose(&a, 1e-5, 1e-5, false)?);
    ///     // The same without making Q.
    ///     let back = reflections.ormqr(&tau, &reflections.triu(0)?, true, false)?;
    ///     assert!(back.allclose(&a, 1e-5, 1e-5, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`matmul`](Self::matmul) of such matrices, and [`solve_triangular`](Self::solve_triangular).
    ///
    /// # Errors
    /// For shapes that do not belong together, and types that differ or are not of floats.
    #[track_caller]
    pub fn householder_product(&self, tau: &Self) -> Result<Self> {
        let _call = Calling::throughout("householder_product");
        self.run2(tau, ops::householder_product)
    }

    /// `Q C` for the product `Q`, `[.., m, m]`, of the reflections of [`householder_product`](Self::householder_product), which this tensor,
    /// `[.., m, k]`, and `tau`, `[.., k]`, hold: `torch.ormqr`. If `Q` is not `left`, `C Q`; and if `transpose`, the same of `Qᵀ`.
    ///
    /// # Collective
    /// As [`householder_product`](Self::householder_product).
    ///
    /// # Errors
    /// As [`householder_product`](Self::householder_product); for a `C` with other than `m` rows, or columns where it stands left.
    #[track_caller]
    pub fn ormqr(&self, tau: &Self, c: &Self, left: bool, transpose: bool) -> Result<Self> {
        let _call = Calling::throughout("ormqr");
        self.run3(tau, c, |exec, a, tau, c| {
            ops::ormqr(exec, a, tau, c, left, transpose)
        })
    }

    /// The eigenvalues, `[.., n, 2]`, and the eigenvectors, as columns, `[.., n, n, 2]`, of square matrices of real numbers: `torch.linalg.eig`. The
    /// last dim holds real and imaginary parts, as `torch.view_as_real` has them. In which order values come is decided by none, but that of two
    /// conjugates the one with the positive imaginary part is the first; vectors have length 1, and their greatest element is real and
    /// positive. PyTorch's vectors may be turned otherwise.
    ///
    /// Gradients are those of what is found, where all values differ; those of loss functions that do not see how vectors are turned are PyTorch's, which
    /// refuses others.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// launch(2, |ctx| {
    ///     let turn = ctx.mesh_of(2)?.distribute(&array![[0.0_f64, -2.0], [2.0, 0.0]], replicate())?;
    ///     let (values, vectors) = turn.eig()?;
    ///     assert!((&values.to_array::<f64>()? - &array![[0.0, 2.0], [0.0, -2.0]].into_dyn()).iter().all(|x| x.abs() < 1e-12));
    ///     assert_eq!(vectors.shape(), [2, 2, 2]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv).
    #[track_caller]
    pub fn eig(&self) -> Result<(Self, Self)> {
        let _call = Calling::throughout("eig");
        self.both(ops::eig)
    }

    /// The eigenvalues of [`eig`](Self::eig), `[.., n, 2]`.
    ///
    /// # Collective
    /// As [`eig`](Self::eig).
    ///
    /// # Errors
    /// As [`eig`](Self::eig).
    #[track_caller]
    pub fn eigvals(&self) -> Result<Self> {
        let _call = Calling::throughout("eigvals");
        Ok(self.both(ops::eig)?.0)
    }

    /// Two results of this tensor.
    #[track_caller]
    fn both(
        &self,
        f: impl Fn(&dyn Exec, &Value) -> std::result::Result<[Value; 2], OpError>,
    ) -> Result<(Self, Self)> {
        let [first, second] = f(self.context().tape(), &self.value())?;
        Ok((self.lift(first), self.lift(second)))
    }

    /// What `f` solves with these factors, their pivots and right sides, whose batch dims broadcast.
    #[track_caller]
    fn with_pivots(
        &self,
        op: &'static str,
        pivots: &Self,
        b: &Self,
        f: impl Fn(&dyn Exec, [&Value; 3]) -> std::result::Result<Value, OpError>,
    ) -> Result<Self> {
        self.beside(op, b, |a, b| {
            let rows = &a.shape()[..a.ndim().saturating_sub(1)];
            let pivots = match pivots.shape() == rows {
                true => pivots.clone(),
                false => pivots.expand(rows)?,
            };
            a.run3(&pivots, b, |exec, a, pivots, b| f(exec, [a, pivots, b]))
        })
    }
}
