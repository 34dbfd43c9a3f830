//! Choices by a mask, triangles and diagonals, and classes as rows.

use crate::{Dim, Error, Result, ShardTensor};
use shard_comm::{Calling, DType};
use shard_ops::{elementwise, one_hot, triangle};

/// What [`ShardTensor::where_`] chooses from, what [`ShardTensor::slices_assign`] and [`ShardTensor::index_put`] put, and the weight of
/// [`ShardTensor::lerp`]: a tensor, or a number, which takes the type of the other.
#[derive(Clone, Copy, Debug)]
pub enum Branch<'a> {
    /// A tensor.
    Tensor(&'a ShardTensor),
    /// A number.
    Number(f64),
}

impl<'a> From<&'a ShardTensor> for Branch<'a> {
    fn from(tensor: &'a ShardTensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<f64> for Branch<'_> {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for Branch<'_> {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl Branch<'_> {
    /// What an op puts into this tensor: a number in its type, on its mesh.
    #[track_caller]
    pub(super) fn put_into(self, op: &'static str, tensor: &ShardTensor) -> Result<ShardTensor> {
        match self {
            Self::Tensor(other) => Ok(other.clone()),
            Self::Number(number) => {
                Ok(tensor.lift(elementwise::number(op, &tensor.value(), number)?))
            }
        }
    }
}

/// Choices by a mask.
impl ShardTensor {
    /// Of a mask (`bool`): `a` where it is true and `b` elsewhere, as `torch.where`. It is a method of the mask, where PyTorch's
    /// `x.where(mask, y)` is one of what is chosen: that is `mask.where_(&x, &y)`. Shapes broadcast as in NumPy.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands; partial ones are reduced first.
    ///
    /// # Errors
    /// If this is not `bool`; if `a` and `b` are both numbers, or of different types, or shapes do not broadcast; for a number
    /// that the type does not hold.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let x = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.arange(5, [shard(0)])?;
    ///     x.gt_scalar(2.0)?.where_(&x, -1)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(x[0], ndarray::arr1(&[-1.0, -1.0, -1.0, 3.0, 4.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn where_<'a>(&self, a: impl Into<Branch<'a>>, b: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("where_");
        let (mask, exec) = (self.value(), self.context().tape());
        if self.dtype() != DType::Bool {
            return Err(Error::argument(
                "where_",
                "a mask of bool, which chooses",
                self.dtype().name(),
                "`x.where(mask, y)` of PyTorch is `mask.where_(&x, &y)`; zeros and ones become a mask by `.to()`, other numbers by a comparison",
            ));
        }
        let number = |like: &Self, number| elementwise::number("where", &like.value(), number);
        let (a, b) = match (a.into(), b.into()) {
            (Branch::Tensor(a), Branch::Tensor(b)) => (a.value(), b.value()),
            (Branch::Tensor(a), Branch::Number(b)) => (a.value(), number(a, b)?),
            (Branch::Number(a), Branch::Tensor(b)) => (number(b, a)?, b.value()),
            (Branch::Number(a), Branch::Number(b)) => {
                return Err(Error::argument(
                    "where",
                    "a tensor among the two to choose from, whose type the result has",
                    format!("{a} and {b}"),
                    "make a tensor of one: `mesh.full((), value, [replicate()])`",
                ));
            }
        };
        Ok(self.lift(elementwise::where_(exec, &mask, &a, &b)?))
    }

    /// This, but `value` where the mask (`bool`) is true. Shapes broadcast as in NumPy.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands; a partial tensor stays partial if the value is 0,
    /// and is reduced first otherwise.
    ///
    /// # Errors
    /// If the mask is not `bool` or shapes do not broadcast; for a value that the type does not hold.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Self, value: f64) -> Result<Self> {
        let _call = Calling::of("masked_fill");
        self.run2(mask, |exec, x, mask| {
            elementwise::masked_fill(exec, x, mask, value)
        })
    }

    /// Of integers: a new last dim of `classes`, 1 where its index is the integer and 0 elsewhere, as `i64`. With `None` there are as many
    /// as the largest says.
    ///
    /// # Collective
    /// All members of the mesh; with `None`, all ranks of the program. One reduction of a number finds out whether all are classes, with
    /// `None` another one how many there are, and then all agree that they go on; nothing else moves.
    ///
    /// # Errors
    /// If this holds no integers, or the type does not hold the classes; for `None` of an empty tensor; an error on all ranks if some are no classes.
    ///
    /// ```
    /// use shard_tensor::{DType, launch, shard};
    /// let degrees = launch(2, |ctx| {
    ///     // Where the edges of a graph of four nodes end.
    ///     let ends = ctx.mesh_of(2)?.distribute(&ndarray::arr1(&[3_i64, 1, 3, 0, 1, 3]), [shard(0)])?;
    ///     ends.one_hot(4)?.sum(0, false)?.to_array::<i64>()
    /// })?;
    /// assert_eq!(degrees[1], ndarray::arr1(&[1, 2, 0, 3]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: impl Into<Option<usize>>) -> Result<Self> {
        let _call = Calling::of("one_hot");
        let classes = classes.into();
        self.run(|exec, x| one_hot(exec, x, classes))
    }
}

/// Triangles and diagonals of matrices.
impl ShardTensor {
    /// The lower triangle of matrices, the last two dims: what lies above diagonal number `diagonal` is 0. Number 0 is the
    /// main one, higher ones lie above it.
    ///
    /// # Collective
    /// All members of the mesh. No communication: rows and columns are counted globally. Partial sums stay partial.
    ///
    /// # Errors
    /// For fewer than two dims.
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> Result<Self> {
        let _call = Calling::of("tril");
        self.run(|exec, x| triangle::tril(exec, x, diagonal))
    }

    /// The upper triangle of matrices, the last two dims: what lies below diagonal number `diagonal` is 0.
    ///
    /// # Collective
    /// As [`tril`](Self::tril).
    ///
    /// # Errors
    /// As [`tril`](Self::tril).
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> Result<Self> {
        let _call = Calling::of("triu");
        self.run(|exec, x| triangle::triu(exec, x, diagonal))
    }

    /// Diagonal number `offset` of the matrices that two dims are, as the last dim of the result: element `i` is of row `i`
    /// and column `i + offset`, or below the main diagonal of row `i - offset` and column `i`.
    ///
    /// # Collective
    /// All members of the mesh. Of square matrices' main diagonal nothing moves: the result is partial over the axes that
    /// shard columns. Other diagonals are those of a slice, which moves what crosses its boundaries.
    ///
    /// # Errors
    /// For a dim out of range, or one named twice.
    #[track_caller]
    pub fn diagonal(
        &self,
        offset: i64,
        rows: impl Into<Dim>,
        columns: impl Into<Dim>,
    ) -> Result<Self> {
        let _call = Calling::of("diagonal");
        let rows = self.dim("diagonal", rows)?;
        let columns = self.dim("diagonal", columns)?;
        self.run(|exec, x| triangle::diagonal(exec, x, offset, rows, columns))
    }

    /// Matrices of zeros with the last dim on diagonal number `offset`: what [`diagonal`](Self::diagonal) undoes. `rows` and `columns` are
    /// dims of the result, for PyTorch's -2 and -1 the last two.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.distribute(&array![[1.0_f32, 2.0]], [shard(1)])?;
    ///     x.diag_embed(1, -2, -1)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], array![[[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication for the main diagonal: rows lie as the dim does. For others the boundaries of rows are
    /// shifted, and what crosses them moves.
    ///
    /// # Errors
    /// For tensors without dims, a dim out of range, and one named twice.
    #[track_caller]
    pub fn diag_embed(
        &self,
        offset: i64,
        rows: impl Into<Dim>,
        columns: impl Into<Dim>,
    ) -> Result<Self> {
        let _call = Calling::of("diag_embed");
        let rows = rows.into().of("diag_embed", self.ndim() + 1)?;
        let columns = columns.into().of("diag_embed", self.ndim() + 1)?;
        self.run(|exec, x| triangle::diag_embed(exec, x, offset, rows, columns))
    }

    /// Of a list the matrix with it on diagonal number `offset`, and of a matrix the list on that diagonal, as `torch.diag`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(3, shard(0))?;
    ///     assert_eq!(x.diag(0)?.trace()?.item()?, 3.0);
    ///     assert_eq!(x.diag(-1)?.diag(-1)?.to_array::<f32>()?, x.to_array::<f32>()?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`diag_embed`](Self::diag_embed), and as [`diagonal`](Self::diagonal).
    ///
    /// # Errors
    /// For other numbers of dims than one and two.
    #[track_caller]
    pub fn diag(&self, offset: i64) -> Result<Self> {
        let _call = Calling::of("diag");
        self.run(|exec, x| triangle::diag(exec, x, offset))
    }
}
