//! Linear algebra of batches of matrices.

use crate::{Error, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::linalg::{self as ops, MatrixNorm};
use shard_ops::{Exec, OpError, Value};

/// Linear algebra, with the feature `linalg`. Matrices are the last two dims. Each is computed by one rank, or by all that need the result:
/// where mesh axes divide the matrices themselves, whole ones are brought together, and the axes divide the largest batch dim instead, or
/// nothing where there is none. Computed in double precision. What does not exist is NaN: the factor
/// of a matrix that is not positive definite, those of one with elements that are infinite or NaN, or the gradient of the logarithm of a determinant
/// of 0.
impl ShardTensor {
    /// The inverses of square matrices. That of a singular one has no meaning: its elements are infinite or NaN where elimination meets a
    /// pivot of 0, and very large where rounding hides it.
    ///
    /// # Collective
    /// All members of the mesh. No communication where mesh axes divide batch dims alone, or nothing; matrices in pieces are exchanged for
    /// whole ones, a share of the batch for each rank, or all of it. A partial tensor is reduced first.
    ///
    /// # Errors
    /// For matrices that are not square, and types other than `f32` and `f64`.
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

    /// The matrices `X` with `A X = B`, for this tensor as `A`, `[.., n, n]`, and `B` `[.., n, k]`, whose batch dims broadcast; or `[.., n]`,
    /// a vector for each matrix, or one for all. One matrix is factored once, for however many right sides.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let a = mesh.distribute(&array![[2.0_f64, 0.0], [1.0, 4.0]], replicate())?;
    ///     let sides = mesh.from_fn([3, 2, 1], shard(0), |i| i[0] as f64)?.to(a.dtype())?;
    ///     let x = a.solve(&sides)?;
    ///     assert_eq!(x.shape(), [3, 2, 1]);
    ///     x.to_array::<f64>()
    /// })?;
    /// assert_eq!((found[0][[2, 0, 0]], found[0][[2, 1, 0]]), (1.0, 0.25));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Communicates only to align batch dims, and as [`inv`](Self::inv) for matrices in pieces. The columns of `B`
    /// may be sharded: those of `X` then are as well.
    ///
    /// # Errors
    /// As [`inv`](Self::inv); for shapes that do not belong together, and types that differ.
    #[track_caller]
    pub fn solve(&self, b: &Self) -> Result<Self> {
        let _call = Calling::throughout("solve");
        self.beside("solve", b, |a, b| a.run2(b, ops::solve))
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

    /// As [`qr`](Self::qr), with columns for all rows: orthogonal `Q`, `[.., m, m]`, and `R`, `[.., m, n]`, `torch.linalg.qr` with
    /// `mode="complete"`. Which columns are behind the first `min(m, n)` is decided by none but that they make a basis, so PyTorch's may be others.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let a = mesh.distribute(&array![[3.0_f64], [0.0], [4.0]], replicate())?;
    ///     let (q, r) = a.qr_complete()?;
    ///     assert_eq!((q.shape(), r.shape()), (&[3, 3][..], &[3, 1][..]));
    ///     let [ones, same] = [q.matmul(&q.transpose(0, 1)?)?, q.matmul(&r)?];
    ///     assert!(ones.allclose(&mesh.with_dtype(a.dtype()).eye([3, 3], replicate())?, 1e-12, 1e-12, false)?);
    ///     assert!(same.allclose(&a, 1e-12, 1e-12, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`qr`](Self::qr).
    ///
    /// # Errors
    /// As [`qr`](Self::qr); [`Argument`](Error::Argument) for matrices with more rows than columns that gradients reach: there is none of
    /// columns that could be others.
    #[track_caller]
    pub fn qr_complete(&self) -> Result<(Self, Self)> {
        let _call = Calling::throughout("qr_complete");
        let more_rows = matches!(self.shape(), [.., m, n] if m > n);
        self.without_slopes("qr_complete", more_rows)?;
        let [q, r] = ops::qr_complete(self.context().tape(), &self.value())?;
        Ok((self.lift(q), self.lift(r)))
    }

    /// Refuses a tensor that gradients reach, where results have none.
    #[track_caller]
    fn without_slopes(&self, op: &'static str, has_none: bool) -> Result<()> {
        match has_none && self.is_tracked() {
            false => Ok(()),
            true => Err(Error::argument(
                op,
                "matrices that no gradient reaches, for vectors that could be others",
                "tracked ones",
                "take `qr` or `svd`, or `detach` them",
            )),
        }
    }

    /// `P`, `[.., m, m]`, which puts rows in another order, lower triangular `L`, `[.., m, k]` with ones on its diagonal, and upper triangular
    /// `U`, `[.., k, n]`, with `P L U = A` and `k = min(m, n)`: `torch.linalg.lu`. Each pivot is the greatest of its column. There is a gradient
    /// where no pivot is 0. Systems of equations are solved by [`solve`](Self::solve), and of matrices that are kept as factors by
    /// [`solve_triangular`](Self::solve_triangular) twice.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let a = mesh.distribute(&array![[0.0_f32, 2.0], [4.0, 6.0]], replicate())?;
    ///     let b = mesh.distribute(&array![[2.0_f32], [10.0]], replicate())?;
    ///     let (p, l, u) = a.lu()?;
    ///     assert_eq!(p.matmul(&l)?.matmul(&u)?.to_array::<f32>()?, a.to_array::<f32>()?);
    ///     let x = l.solve_triangular(&p.transpose(0, 1)?.matmul(&b)?, false, true)?;
    ///     let x = u.solve_triangular(&x, true, false)?;
    ///     assert_eq!(x.to_array::<f32>()?, array![[1.0], [1.0]].into_dyn());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv), of matrices of any extents.
    #[track_caller]
    pub fn lu(&self) -> Result<(Self, Self, Self)> {
        let _call = Calling::of("lu");
        let [p, l, u] = self.factors("lu", ops::lu)?;
        Ok((p, l, u))
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

    /// As [`svd`](Self::svd), with bases of all rows and all columns: `U`, `[.., m, m]`, `s`, `[.., min(m, n)]`, and `Vᵀ`, `[.., n, n]`,
    /// `torch.linalg.svd` with `full_matrices=True`. Which vectors belong to no singular value is decided by none but that they make a basis.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let a = ctx.mesh_of(2)?.randn([4, 5, 2], shard(0))?;
    ///     let (u, s, vt) = a.svd_full()?;
    ///     assert_eq!([u.shape(), s.shape(), vt.shape()], [&[4, 5, 5][..], &[4, 2], &[4, 2, 2]]);
    ///     let null = u.narrow(-1, 2..)?; // no column of a has anything of these
    ///     assert!(null.transpose(1, 2)?.matmul(&a)?.abs()?.amax(.., false)?.item()? < 1e-5);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`svd`](Self::svd) and [`qr`](Self::qr).
    ///
    /// # Errors
    /// As [`svd`](Self::svd); [`Argument`](Error::Argument) for matrices that are not square and that gradients reach: there is none of
    /// vectors that could be others.
    #[track_caller]
    pub fn svd_full(&self) -> Result<(Self, Self, Self)> {
        let _call = Calling::throughout("svd_full");
        let others = matches!(self.shape(), [.., m, n] if m != n);
        self.without_slopes("svd_full", others)?;
        let [u, s, vt] = ops::svd_full(self.context().tape(), &self.value())?;
        Ok((self.lift(u), self.lift(s), self.lift(vt)))
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

    /// The determinants of square matrices. Their gradients are the cofactors, of a singular matrix too; second derivatives are computed
    /// with the inverse, so it has none.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// let slope = launch(2, |ctx| {
    ///     let a = array![[1.0_f64, 2.0], [2.0, 4.0]];
    ///     let a = ctx.mesh_of(2)?.distribute(&a, replicate())?.requires_grad()?;
    ///     a.det()?.backward()?.get(&a)?.expect("the determinant depends on it").to_array::<f64>()
    /// })?;
    /// assert!((&slope[0] - &array![[4.0, -2.0], [-2.0, 1.0]].into_dyn()).iter().all(|d| d.abs() < 1e-12));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
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

    /// The matrices `X` with `A X = B`, for one triangle of this tensor as `A`: nothing else of it is read, and with `unit` not its diagonal,
    /// where ones are taken. `B` is as that of [`solve`](Self::solve).
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate};
    /// let x = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let a = mesh.distribute(&array![[2.0_f64, 9.0], [1.0, 4.0]], replicate())?;
    ///     let b = mesh.distribute(&array![2.0_f64, 9.0], replicate())?;
    ///     a.solve_triangular(&b, false, false)?.to_array::<f64>()
    /// })?;
    /// assert_eq!(x[0], array![1.0, 2.0].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`solve`](Self::solve).
    ///
    /// # Errors
    /// As [`solve`](Self::solve).
    #[track_caller]
    pub fn solve_triangular(&self, b: &Self, upper: bool, unit: bool) -> Result<Self> {
        let _call = Calling::throughout("solve_triangular");
        self.beside("solve_triangular", b, |a, b| {
            a.run2(b, |exec, a, b| {
                ops::solve_triangular(exec, a, b, upper, unit)
            })
        })
    }

    /// The `X` with the least `|A X - B|`, for this tensor as `A`, `[.., m, n]`, of full rank; of several the smallest, where there are more
    /// columns than rows. `B` is `[.., m, k]` or `[.., m]`. Where the rank may not be full, multiply by [`pinv`](Self::pinv).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let line = launch(2, |ctx| {
    ///     // A line through three points of each of two sets.
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let a = mesh.from_fn([2, 3, 2], shard(0), |i| if i[2] == 0 { 1.0 } else { i[1] as f64 })?;
    ///     let y = mesh.from_fn([2, 3], shard(0), |i| 1.0 + (i[0] * i[1]) as f64)?;
    ///     a.lstsq(&y)?.to_array::<f32>()
    /// })?;
    /// assert!((line[0][[1, 0]] - 1.0).abs() < 1e-6 && (line[0][[1, 1]] - 1.0).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`solve`](Self::solve).
    ///
    /// # Errors
    /// As [`solve`](Self::solve), of matrices of any extents.
    #[track_caller]
    pub fn lstsq(&self, b: &Self) -> Result<Self> {
        let _call = Calling::throughout("lstsq");
        self.beside("lstsq", b, |a, b| a.run2(b, ops::lstsq))
    }

    /// The pseudo-inverses of matrices of any extents, `[.., n, m]` of `[.., m, n]`. Singular values up to `rtol` times the greatest are taken
    /// for zeros; without it, up to the larger extent times the distance from 1 to the next number of the type.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv), of matrices of any extents; for an `rtol` below 0, or NaN.
    #[track_caller]
    pub fn pinv(&self, rtol: Option<f64>) -> Result<Self> {
        let _call = Calling::of("pinv");
        self.run(|exec, x| ops::pinv(exec, x, rtol))
    }

    /// The exponentials `e^A` of square matrices.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv).
    #[track_caller]
    pub fn matrix_exp(&self) -> Result<Self> {
        let _call = Calling::of("matrix_exp");
        let [found] = self.factors("matrix_exp", ops::matrix_exp)?;
        Ok(found)
    }

    /// The powers of square matrices; negative ones are those of the [inverse](Self::inv), and power 0 has ones on the diagonal. Other
    /// powers than negative ones leave matrices in pieces where they are.
    ///
    /// # Collective
    /// All members of the mesh. As [`matmul`](Self::matmul) of a matrix by itself, at most twice the logarithm of the exponent times; as
    /// [`inv`](Self::inv) for negative ones.
    ///
    /// # Errors
    /// For matrices that are not square; as [`matmul`](Self::matmul), and as [`inv`](Self::inv) for negative exponents.
    #[track_caller]
    pub fn matrix_power(&self, exponent: i64) -> Result<Self> {
        let _call = Calling::of("matrix_power");
        self.run(|exec, x| ops::matrix_power(exec, x, exponent))
    }

    /// The singular values of matrices of any extents, falling.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`inv`](Self::inv), of matrices of any extents.
    #[track_caller]
    pub fn svdvals(&self) -> Result<Self> {
        let _call = Calling::of("svdvals");
        self.run(ops::svdvals)
    }

    /// The norms of matrices, the last two dims, which disappear, or stay with extent 1 if `keepdim`. Those that are made of singular
    /// values (nuclear, 2 and -2) bring whole matrices together; others do not. Of matrices without elements norms are 0. That of vectors is
    /// [`norm`](Self::norm).
    ///
    /// ```
    /// use shard_tensor::{MatrixNorm, launch, shard};
    /// let norms = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(4, shard(0))?.reshape([2, 2])?; // 0 1, 2 3
    ///     Ok((x.matrix_norm(1.0, false)?.item()?, x.matrix_norm(MatrixNorm::Frobenius, false)?.item()?))
    /// })?;
    /// assert!(norms[0].0 == 4.0 && (norms[0].1 - 14_f64.sqrt()).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where dims of the matrices are sharded, a number for each column or row; a partial tensor is reduced first.
    ///
    /// # Errors
    /// For fewer than two dims, other orders, integers and truth values; for the least of no rows, columns or singular values; as
    /// [`inv`](Self::inv) for norms of singular values.
    #[track_caller]
    pub fn matrix_norm(&self, order: impl Into<MatrixNorm>, keepdim: bool) -> Result<Self> {
        let _call = Calling::of("matrix_norm");
        let order: MatrixNorm = order.into();
        self.run(|exec, x| ops::matrix_norm(exec, x, order, keepdim))
    }

    /// The condition numbers of matrices: the [norm](Self::matrix_norm) of each times that of its inverse. Of 2 and -2 matrices may have any
    /// extents; of others they are square. Those of singular matrices are infinite.
    ///
    /// # Collective
    /// As [`inv`](Self::inv).
    ///
    /// # Errors
    /// As [`matrix_norm`](Self::matrix_norm) and [`inv`](Self::inv).
    #[track_caller]
    pub fn cond(&self, order: impl Into<MatrixNorm>) -> Result<Self> {
        let _call = Calling::of("cond");
        let order: MatrixNorm = order.into();
        self.run(|exec, x| ops::cond(exec, x, order))
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
        <[Self; N]>::try_from(made)
            .map_err(|_| OpError::arity(name, format!("{N} results"), count).into())
    }
}

/// Right sides.
impl ShardTensor {
    /// What `f` finds for matrices and right sides of the same batch dims, of those that broadcast. Whether right sides are vectors is
    /// decided as in PyTorch: where they have the shape of the matrices without columns, or one dim.
    #[track_caller]
    pub(super) fn beside(
        &self,
        op: &'static str,
        b: &Self,
        f: impl Fn(&Self, &Self) -> Result<Self>,
    ) -> Result<Self> {
        let [Some(own), Some(others)] = [self, b].map(|x| x.ndim().checked_sub(2)) else {
            return match (self.ndim(), b.ndim()) {
                (3.., 1) => f(self, &b.expand(&self.shape()[..self.ndim() - 1])?),
                _ => f(self, b),
            };
        };
        let (own_batch, other_batch) = (&self.shape()[..own], &b.shape()[..others]);
        if b.shape() == &self.shape()[..=own] || own_batch == other_batch {
            return f(self, b);
        }
        if own == 0 {
            // Right sides are columns.
            let rows_first = b.movedim(-2, 0)?;
            let shape = rows_first.shape();
            let columns = shape[1..].iter().product();
            let found = f(self, &rows_first.reshape([shape[0], columns])?)?;
            let whole = [&found.shape()[..1], &shape[1..]].concat();
            return found.reshape(whole)?.movedim(0, -2);
        }
        let Some(batch) = together(own_batch, other_batch) else {
            return Err(Error::argument(
                op,
                format!("right sides whose batch dims broadcast with {own_batch:?}"),
                format!("shape {:?}", b.shape()),
                "give each matrix its own, or one for all",
            ));
        };
        let whole = |x: &Self, own: usize| x.expand([&batch[..], &x.shape()[own..]].concat());
        f(&whole(self, own)?, &whole(b, others)?)
    }
}

/// The batch dims that two tensors have together, if they broadcast.
fn together(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let (longer, shorter) = if a.len() < b.len() { (b, a) } else { (a, b) };
    let (first, last) = longer.split_at(longer.len() - shorter.len());
    let both = last.iter().zip(shorter).map(|(&n, &m)| match (n, m) {
        (1, n) | (n, 1) => Some(n),
        _ => (n == m).then_some(n),
    });
    first.iter().map(|&n| Some(n)).chain(both).collect()
}
