//! Ranks, inverses of tensors, and what else is a few lines of linear algebra.

use crate::{DType, Error, Result, ShardTensor};
use shard_comm::Calling;

/// What is made of factors, with the feature `linalg`.
impl ShardTensor {
    /// The ranks of matrices of any extents, `i64`: how many singular values are above `atol` and above `rtol` times the greatest one. Without
    /// both, `rtol` is the larger extent times the distance from 1 to the next number of the type; without one, that is 0.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let ranks = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([3, 2, 2], shard(0), |i| if i[0] > 0 && i[1] == i[2] { i[0] as f64 } else { i[0] as f64 - 1.0 })?;
    ///     x.matrix_rank(None, None)?.to_array::<i64>()
    /// })?;
    /// // Of (-1 -1, -1 -1), (1 0, 0 1) and (2 1, 1 2).
    /// assert_eq!(ranks[0], array![1, 2, 2].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`svdvals`](Self::svdvals).
    ///
    /// # Errors
    /// As [`svdvals`](Self::svdvals); for bounds below 0, or NaN.
    #[track_caller]
    pub fn matrix_rank(&self, atol: Option<f64>, rtol: Option<f64>) -> Result<Self> {
        let _call = Calling::throughout("matrix_rank");
        for bound in [atol, rtol].into_iter().flatten() {
            if bound.is_nan() || bound < 0.0 {
                return Err(Error::argument(
                    "matrix_rank",
                    "bounds of 0 or above",
                    bound.to_string(),
                    "say up to where singular values are taken for zeros",
                ));
            }
        }
        let values = self.detach().svdvals()?;
        let larger = self.shape().iter().rev().take(2).max().copied();
        let step = match self.dtype() {
            DType::F64 => f64::EPSILON,
            _ => f64::from(f32::EPSILON),
        };
        let share = match (atol, rtol) {
            (_, Some(rtol)) => rtol,
            (Some(_), None) => 0.0,
            (None, None) => larger.unwrap_or_default() as f64 * step,
        };
        let least = values.amax(-1, true)?.mul_scalar(share)?;
        let least = least.clamp_min(atol.unwrap_or(0.0))?;
        values.gt(&least)?.count_nonzero(-1, false)
    }

    /// The matrices `X` with `L Lᵀ X = B`, for this tensor as the `L` of [`cholesky`](Self::cholesky): `torch.cholesky_solve`, whose arguments
    /// stand the other way round. `B` is as that of [`solve`](Self::solve).
    ///
    /// # Collective
    /// As [`solve_triangular`](Self::solve_triangular) twice.
    ///
    /// # Errors
    /// As [`solve_triangular`](Self::solve_triangular).
    #[track_caller]
    pub fn cholesky_solve(&self, b: &Self) -> Result<Self> {
        let _call = Calling::throughout("cholesky_solve");
        let y = self.solve_triangular(b, false, false)?;
        self.transpose(-2, -1)?.solve_triangular(&y, true, false)
    }

    /// The inverses of `L Lᵀ`, for this tensor as the `L` of [`cholesky`](Self::cholesky).
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// let found = launch(2, |ctx| {
    ///     let l = ctx.mesh_of(2)?.distribute(&array![[2.0_f64, 0.0], [1.0, 1.0]], replicate())?;
    ///     l.cholesky_inverse()?.to_array::<f64>() // of 4 2, 2 2
    /// })?;
    /// assert_eq!(found[0], array![[0.5, -0.5], [-0.5, 1.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`cholesky_solve`](Self::cholesky_solve).
    ///
    /// # Errors
    /// As [`cholesky_solve`](Self::cholesky_solve).
    #[track_caller]
    pub fn cholesky_inverse(&self) -> Result<Self> {
        let _call = Calling::throughout("cholesky_inverse");
        let ones = self.detach().zeros_like()?;
        let ones = match ones.shape() {
            [.., m, n] if m == n => {
                let eye = self
                    .mesh()
                    .with_dtype(self.dtype())
                    .eye([*m, *n], crate::Placements::replicated())?;
                ones.add(&eye)?
            }
            _ => ones,
        };
        self.cholesky_solve(&ones)
    }

    /// The eigenvalues of symmetric matrices, rising: the first result of [`eigh`](Self::eigh).
    ///
    /// # Collective
    /// As [`eigh`](Self::eigh).
    ///
    /// # Errors
    /// As [`eigh`](Self::eigh).
    #[track_caller]
    pub fn eigvalsh(&self) -> Result<Self> {
        let _call = Calling::throughout("eigvalsh");
        Ok(self.eigh()?.0)
    }

    /// The logarithms of the determinants of square matrices: -∞ of 0, and NaN below it.
    ///
    /// # Collective
    /// As [`slogdet`](Self::slogdet).
    ///
    /// # Errors
    /// As [`slogdet`](Self::slogdet).
    #[track_caller]
    pub fn logdet(&self) -> Result<Self> {
        let _call = Calling::throughout("logdet");
        let (sign, log) = self.slogdet()?;
        log.masked_fill(&sign.lt_scalar(0.0)?, f64::NAN)
    }

    /// The tensor of shape `[.., first..]` that gives ones along a diagonal when this one, `[first.., ..]` with `dims` dims in front, is multiplied
    /// with it: `torch.linalg.tensorinv`, whose `ind` is `dims`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.randn([4, 6, 8, 3], shard(0))?;
    ///     assert_eq!(x.tensorinv(2)?.shape(), [8, 3, 4, 6]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`reshape`](Self::reshape) and [`inv`](Self::inv).
    ///
    /// # Errors
    /// For more `dims` than there are; as [`inv`](Self::inv) of a matrix of the extents' products.
    #[track_caller]
    pub fn tensorinv(&self, dims: usize) -> Result<Self> {
        let _call = Calling::throughout("tensorinv");
        let Some((first, others)) = self.shape().split_at_checked(dims) else {
            return Err(Error::argument(
                "tensorinv",
                format!("as many dims in front as a tensor of {} has", self.ndim()),
                format!("{dims}"),
                "give the number of those that are rows",
            ));
        };
        let [rows, columns] = [first, others].map(|of| of.iter().product::<usize>());
        let inverse = self.reshape([rows, columns])?.inv()?;
        inverse.reshape([others, first].concat())
    }

    /// The tensor `x` that gives `b` when this one, of shape `[b's.., x's..]`, is multiplied with it: `torch.linalg.tensorsolve`. Dims that are not
    /// the last ones are moved there before (`movedim`), for its `dims`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (a, x) = (mesh.randn([2, 6, 4, 3], shard(0))?, mesh.randn([4, 3], shard(0))?);
    ///     let b = a.tensordot(&x, [2, 3], [0, 1])?;
    ///     assert!(a.tensorsolve(&b)?.allclose(&x, 1e-2, 1e-3, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`reshape`](Self::reshape) and [`solve`](Self::solve).
    ///
    /// # Errors
    /// For a `b` whose shape does not begin this tensor's; as [`solve`](Self::solve) of a matrix of the extents' products.
    #[track_caller]
    pub fn tensorsolve(&self, b: &Self) -> Result<Self> {
        let _call = Calling::throughout("tensorsolve");
        let Some(others) = self.shape().strip_prefix(b.shape()) else {
            return Err(Error::argument(
                "tensorsolve",
                format!("a right side whose shape begins {:?}", self.shape()),
                format!("shape {:?}", b.shape()),
                "move the dims that are solved for behind the others",
            ));
        };
        let [rows, columns] = [b.shape(), others].map(|of| of.iter().product::<usize>());
        let x = self.reshape([rows, columns])?.solve(&b.reshape([rows])?)?;
        x.reshape(others)
    }
}
