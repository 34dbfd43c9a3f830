//! Sums of products over named dims.

use crate::{Dim, DimList, Error, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::{RouteBy, Value, broadcast, einsum, elementwise, indexing, matmul};

/// Products over named dims. A sharded dim that is summed gives a partial result, and nothing is sent for it.
impl ShardTensor {
    /// The sum of products that an equation such as `"bij,bjk->bik"` describes, by the rules of `torch.einsum`: letters that the
    /// result lacks are summed, a letter that stands twice in an operand is its diagonal, `...` stands for any dims, which
    /// broadcast, and without `->` the result has the letters that stand once, in alphabetical order. Several tensors are
    /// multiplied two by two, those first that take the fewest operations; of 16-bit floats each such product is rounded.
    ///
    /// # Collective
    /// All members of the mesh. Tensors that shard the same letters alike do not move. If a summed letter is sharded the result
    /// is partial over its axes. Else the cheapest redistribution is made.
    ///
    /// # Errors
    /// For an equation that cannot be read or does not fit the tensors, and types that differ; what the communicator reports.
    ///
    /// ```
    /// use shard_tensor::{ShardTensor, launch, shard};
    /// let sums = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.ones([3, 5], [shard(1).sizes([1, 4])])?;
    ///     let w = mesh.ones([5, 2], [shard(0).sizes([1, 4])])?;
    ///     ShardTensor::einsum("bi,io->bo", &[&x, &w])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(sums[0], ndarray::ArrayD::from_elem(vec![3, 2], 5.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn einsum(equation: &str, tensors: &[&Self]) -> Result<Self> {
        let _call = Calling::of("einsum");
        Self::joined("einsum", tensors, |exec, values| {
            einsum::einsum(exec, equation, values)
        })
    }

    /// The product of matrices in a row, `torch.linalg.multi_dot`, multiplied two by two in the order that takes the fewest multiplications. The
    /// first and the last may be vectors, a row and a column.
    ///
    /// ```
    /// use shard_tensor::{ShardTensor, launch, shard};
    /// let product = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (a, b) = (mesh.ones([40, 2], shard(0))?, mesh.ones([2, 40], shard(1))?);
    ///     // b by the vector first.
    ///     ShardTensor::multi_dot(&[&a, &b, &mesh.ones([40], shard(0))?])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(product[0], ndarray::ArrayD::from_elem(vec![40], 80.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`matmul`](Self::matmul) of each two.
    ///
    /// # Errors
    /// For fewer than two, others than matrices, and those that do not fit each other; for types that differ.
    #[track_caller]
    pub fn multi_dot(matrices: &[&Self]) -> Result<Self> {
        let _call = Calling::throughout("multi_dot");
        let last = matrices.len().wrapping_sub(1);
        let misfit = |i: usize| {
            let may_be_vector = i == 0 || i == last;
            let ndim = matrices[i].ndim();
            ndim != 2 && !(may_be_vector && ndim == 1)
        };
        if matrices.len() < 2 || (0..=last).any(misfit) {
            let shapes: Vec<&[usize]> = matrices.iter().map(|x| x.shape()).collect();
            return Err(Error::argument(
                "multi_dot",
                "two or more matrices, of which the first and the last may be vectors",
                format!("shapes {shapes:?}"),
                "multiply batches by `matmul`",
            ));
        }
        // Rows of the first, and columns of each, of which those of a vector at the end are one.
        let extents: Vec<usize> = (matrices.iter().enumerate())
            .flat_map(|(i, x)| match (i, x.shape()) {
                (0, [k]) => vec![1, *k],
                (0, shape) => shape.to_vec(),
                (_, [_]) => vec![1],
                (_, shape) => vec![shape[1]],
            })
            .collect();
        chain(matrices, &splits(&extents), 0, last)
    }

    /// The sum of products over dims of both: dims `dims` of this tensor meet dims `other_dims` of the other, in this order. The
    /// result has the other dims of this tensor, then those of the other.
    ///
    /// # Collective
    /// As [`einsum`](Self::einsum).
    ///
    /// # Errors
    /// For dims out of range, named twice, or of different extents; for types that differ.
    #[track_caller]
    pub fn tensordot(
        &self,
        other: &Self,
        dims: impl Into<DimList>,
        other_dims: impl Into<DimList>,
    ) -> Result<Self> {
        let _call = Calling::of("tensordot");
        let dims = dims.into().of("tensordot", self.ndim())?;
        let other_dims = other_dims.into().of("tensordot", other.ndim())?;
        self.run2(other, |exec, a, b| {
            einsum::tensordot(exec, a, b, &dims, &other_dims)
        })
    }

    /// All products of an element of this vector with one of another, `[n, m]`.
    ///
    /// # Collective
    /// All members of the mesh. Communicates only if both are sharded over one mesh axis.
    ///
    /// # Errors
    /// For tensors that have not one dim, and types that differ.
    #[track_caller]
    pub fn outer(&self, other: &Self) -> Result<Self> {
        let _call = Calling::of("outer");
        self.run2(other, einsum::outer)
    }

    /// The Kronecker product: every element of this tensor times all of the other, so that element `i m + j` of a dim is that of this tensor
    /// at `i` times that of the other at `j`, of `m`. Of two tensors with different numbers of dims one has dims of 1 in front.
    ///
    /// # Collective
    /// All members of the mesh. Communicates if both are sharded over one mesh axis, or the second is in a dim that the first has.
    ///
    /// # Errors
    /// For types that differ.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let tens = mesh.from_fn([2], [shard(0)], |i| [10.0, 100.0][i[0]])?;
    ///     tens.kron(&mesh.arange(3, [shard(0)])?)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], ndarray::arr1(&[0.0, 10.0, 20.0, 0.0, 100.0, 200.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn kron(&self, other: &Self) -> Result<Self> {
        let _call = Calling::of("kron");
        self.run2(other, einsum::kron)
    }

    /// The sums of products over the last dims of both; the product with a number if either has no dims.
    ///
    /// # Collective
    /// As [`einsum`](Self::einsum).
    ///
    /// # Errors
    /// For last dims of different extents, and types that differ.
    #[track_caller]
    pub fn inner(&self, other: &Self) -> Result<Self> {
        let _call = Calling::of("inner");
        self.run2(other, einsum::inner)
    }

    /// The cross products of the vectors of three numbers along a dim of both tensors, broadcast.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands, and, where the vectors' own dim is sharded, their elements.
    ///
    /// # Errors
    /// For a dim that has not three indices in both tensors, shapes that do not broadcast, and types that differ.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let z = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let axis = |k: usize| mesh.from_fn([4, 3], [shard(0)], move |i| f64::from(u8::from(i[1] == k)));
    ///     axis(0)?.cross(&axis(1)?, -1)?.to_array::<f32>()
    /// })?;
    /// assert_eq!((z[0][[3, 0]], z[0][[3, 1]], z[0][[3, 2]]), (0.0, 0.0, 1.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn cross(&self, other: &Self, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("cross");
        let dim = dim.into().of("cross", self.ndim().max(other.ndim()))?;
        self.run2(other, |exec, a, b| elementwise::cross(exec, a, b, dim))
    }

    /// `y[.., o] = Σ x[.., i] w[o, i, j] other[.., j]`, and a bias `[o]` if there is one: `torch.nn.functional.bilinear`. Dims before the last
    /// broadcast. Of 16-bit floats the result is rounded once.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (x, other) = (mesh.ones([5, 2], shard(0))?, mesh.ones([5, 3], shard(0))?);
    ///     let weight = mesh.from_fn([4, 2, 3], replicate(), |i| i[0] as f64)?;
    ///     x.bilinear(&other, &weight, None)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice().map(|all| &all[16..]), Some(&[0.0, 6.0, 12.0, 18.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`einsum`](Self::einsum).
    ///
    /// # Errors
    /// For shapes that do not belong together, types that differ, and integers.
    #[track_caller]
    pub fn bilinear(&self, other: &Self, weight: &Self, bias: Option<&Self>) -> Result<Self> {
        let _call = Calling::of("bilinear");
        let (weight, bias) = (weight.value(), bias.map(Self::value));
        self.run2(other, |exec, a, b| {
            matmul::bilinear(exec, a, b, &weight, bias.as_ref())
        })
    }

    /// Products of groups of rows, each with a matrix of its own: `torch.nn.functional.grouped_mm`. Group `g` ends before `offsets[g]`, a list of
    /// integers, and begins where the one before ends. By the dims of this tensor and the other:
    ///
    /// | this | other | result | what is divided into groups |
    /// |---|---|---|---|
    /// | `[rows, in]` | `[groups, in, out]` | `[rows, out]` | rows |
    /// | `[groups, rows, in]` | `[in, out]` | `[rows, out]` | columns, `out` |
    /// | `[rows, in]` | `[in, out]` | `[groups, rows, out]` | the contraction, `in` |
    /// | `[groups, rows, in]` | `[groups, in, out]` | `[groups, rows, out]` | nothing: a batch, without offsets |
    ///
    /// What lies behind the last group has zeros and gets no gradient; PyTorch leaves it as its memory was. On GPUs these are kernels of this
    /// workspace, without units for matrices. [`gather_mm`](Self::gather_mm) takes a number for each row in place of offsets.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.ones([5, 2], shard(0))?;
    ///     let w = mesh.from_fn([3, 2, 1], shard(0).sizes([1, 2]), |i| 10f64.powi(i[0] as i32))?;
    ///     let offsets = mesh.distribute(&array![2_i64, 2, 4], replicate())?; // rows 0 and 1, none, rows 2 and 3; row 4 is in no group
    ///     x.grouped_mm(&w, &offsets)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[2.0, 2.0, 200.0, 200.0, 0.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program, members of the mesh or not: offsets are read at their first use, which waits for what makes them. Where matrices
    /// are divided over groups, each that a rank's rows need and others have comes once, and the sum for it goes back in the backward pass, or
    /// all rows come where that is less, and the result is a sum. Nothing comes where the rows of each group lie with its matrix, nor where rows are
    /// copies along these axes: then, too, the result is a sum. So it is where `in` is divided, and where the groups are of it.
    ///
    /// # Errors
    /// For shapes that do not belong together, types that differ, integers, and offsets that are missing or too many; on all ranks for offsets
    /// that do not ascend, or end behind the rows.
    #[track_caller]
    pub fn grouped_mm<'a>(
        &self,
        other: &Self,
        offsets: impl Into<Option<&'a Self>>,
    ) -> Result<Self> {
        let _call = Calling::of("grouped_mm");
        let offsets = offsets.into().map(Self::value);
        self.run2(other, |exec, a, b| {
            indexing::grouped_mm(exec, a, b, offsets.as_ref())
        })
    }

    /// The product of each row with the matrix that its number names: `y[i] = x[i] w[index[i]]`, `[rows, out]`, of rows `[rows, in]`, matrices
    /// `[matrices, in, out]` and an index `[rows]`. It is what [`grouped_mm`](Self::grouped_mm) is for rows in any order; those of a matrix that
    /// stand together are not copied.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.ones([3, 2], shard(0))?;
    ///     let w = mesh.from_fn([2, 2, 1], replicate(), |i| 1.0 + i[0] as f64)?;
    ///     x.gather_mm(&w, &mesh.distribute(&array![1_i64, 0, 1], shard(0))?)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[4.0, 2.0, 4.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. As [`grouped_mm`](Self::grouped_mm), without offsets; at the first use of an index a round of a number per rank,
    /// and a request for each matrix that comes.
    ///
    /// # Errors
    /// As [`grouped_mm`](Self::grouped_mm); for an index that is not i64 or i32; on all ranks for one below 0 or out of range.
    #[track_caller]
    pub fn gather_mm(&self, matrices: &Self, index: &Self) -> Result<Self> {
        self.gather_mm_by(matrices, index, (false, RouteBy::Auto))
    }

    /// [`gather_mm`](Self::gather_mm), saying whether matrices are `[matrices, out, in]`, and how they come to rows.
    #[track_caller]
    pub(crate) fn gather_mm_by(
        &self,
        matrices: &Self,
        index: &Self,
        how: (bool, RouteBy),
    ) -> Result<Self> {
        let _call = Calling::of("gather_mm");
        let index = index.value();
        self.run2(matrices, |exec, x, w| {
            indexing::gather_mm_by(exec, x, w, &index, how)
        })
    }

    /// The sum of the diagonal of a matrix, of integers and truth values as `i64`.
    ///
    /// # Collective
    /// All members of the mesh. No communication where rows and columns are sharded at the same boundaries, or only one of them
    /// is; the result is partial.
    ///
    /// # Errors
    /// For tensors that have not two dims.
    #[track_caller]
    pub fn trace(&self) -> Result<Self> {
        let _call = Calling::of("trace");
        let least = self.shape().iter().copied().min().unwrap_or(0);
        // PyTorch's takes matrices of any extents.
        let square = if self.ndim() == 2 && self.shape()[0] != self.shape()[1] {
            self.narrow(0, 0..least)?.narrow(1, 0..least)?
        } else {
            self.clone()
        };
        square.run(|exec, x| {
            let diagonal = einsum::einsum(exec, "ii->i", &[x])?;
            broadcast::sum(exec, &diagonal, &[0], false)
        })
    }

    /// `beta * x + alpha * a b`, with `x` broadcast to the product of the matrices `a` and `b`; also of batches of them, as
    /// `torch.baddbmm`. With a `beta` of 0 only the shape of `x` counts, and with an `alpha` of 0 that of the product: NaN and
    /// infinities in them do not. Of 16-bit floats the product is rounded before it is added.
    ///
    /// # Collective
    /// As [`matmul`](Self::matmul).
    ///
    /// # Errors
    /// As [`matmul`](Self::matmul); for a tensor that does not broadcast to the product.
    #[track_caller]
    pub fn addmm(&self, a: &Self, b: &Self, beta: f64, alpha: f64) -> Result<Self> {
        let _call = Calling::of("addmm");
        let b: Value = b.value();
        self.run2(a, |exec, x, a| matmul::baddbmm(exec, x, a, &b, beta, alpha))
    }
}

/// Where to divide each stretch of matrices in a row, by its first and its last, so that its product takes the fewest multiplications.
fn splits(extents: &[usize]) -> Vec<Vec<usize>> {
    let n = extents.len() - 1;
    let (mut costs, mut splits) = (vec![vec![0.0; n]; n], vec![vec![0; n]; n]);
    for length in 1..n {
        for first in 0..n - length {
            let last = first + length;
            let cost = |split: usize| {
                let own = [first, split + 1, last + 1].map(|i| extents[i] as f64);
                costs[first][split] + costs[split + 1][last] + own.iter().product::<f64>()
            };
            let at = (first..last).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
            splits[first][last] = at.unwrap_or(first);
            costs[first][last] = cost(splits[first][last]);
        }
    }
    splits
}

/// The product of a stretch.
fn chain(
    matrices: &[&ShardTensor],
    splits: &[Vec<usize>],
    first: usize,
    last: usize,
) -> Result<ShardTensor> {
    if first == last {
        return Ok(matrices[first].clone());
    }
    let split = splits[first][last];
    let left = chain(matrices, splits, first, split)?;
    left.matmul(&chain(matrices, splits, split + 1, last)?)
}
