//! Normal vectors.

use super::{Distribution, Divergence, Reparametrized, repeated};
use crate::{Error, Placements, Result, Shape, ShardTensor};
use shard_comm::Calling;
use shard_ops::elementwise::broadcast_shape;

/// `ln 2π`
pub(super) const LOG_2_PI: f64 = 1.837_877_066_409_345_3;

/// Normal vectors of a mean and a covariance, as `torch.distributions.MultivariateNormal`. With the feature `linalg`.
#[derive(Clone, Debug)]
pub struct MultivariateNormal {
    loc: ShardTensor,
    /// `[.., n, n]`, lower triangular.
    scale_tril: ShardTensor,
    batch: Vec<usize>,
    event: Vec<usize>,
}

impl MultivariateNormal {
    /// Of means `[batch.., n]` and lower triangular matrices `L`, `[batch.., n, n]` with diagonals above 0, whose products `L Lᵀ` are the
    /// covariances. Nothing above their diagonals is read.
    ///
    /// # Collective
    /// All members of the mesh. As [`tril`](ShardTensor::tril).
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for matrices that do not fit the means; shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, MultivariateNormal, Reparametrized};
    /// use shard_tensor::{launch, replicate, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (mean, scale) = (mesh.randn([5, 3], shard(0))?, mesh.eye([3, 3], replicate())?);
    ///     let normal = MultivariateNormal::new(&mean, &scale)?;
    ///     let x = normal.rsample([4])?;
    ///     assert_eq!((x.shape(), normal.log_prob(&x)?.shape()), (&[4, 5, 3][..], &[4, 5][..]));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(loc: &ShardTensor, scale_tril: &ShardTensor) -> Result<Self> {
        const OP: &str = "MultivariateNormal::new";
        let _call = Calling::of(OP);
        let (Some(&n), [.., rows, columns]) = (loc.shape().last(), scale_tril.shape()) else {
            return Err(unfit(OP, loc, scale_tril));
        };
        if [*rows, *columns] != [n, n] {
            return Err(unfit(OP, loc, scale_tril));
        }
        let scale_tril = scale_tril.tril(0)?;
        let rows = loc.unsqueeze(-1)?;
        let both = broadcast_shape(OP, &[&rows.value(), &scale_tril.value()])?;
        Ok(Self {
            loc: loc.clone(),
            scale_tril,
            batch: both[..both.len() - 2].to_vec(),
            event: vec![n],
        })
    }

    /// Of means `[batch.., n]` and covariances `[batch.., n, n]`, symmetric and positive definite.
    ///
    /// # Collective
    /// As [`cholesky`](ShardTensor::cholesky).
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`cholesky`](ShardTensor::cholesky).
    #[track_caller]
    pub fn from_covariance(loc: &ShardTensor, covariance: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("MultivariateNormal::from_covariance");
        Self::new(loc, &covariance.cholesky()?)
    }

    /// The means, `[.., n]`.
    pub fn loc(&self) -> &ShardTensor {
        &self.loc
    }

    /// The triangular matrices, `[.., n, n]`.
    pub fn scale_tril(&self) -> &ShardTensor {
        &self.scale_tril
    }

    /// The covariances, `[.., n, n]`.
    ///
    /// # Collective
    /// As [`matmul`](ShardTensor::matmul).
    ///
    /// # Errors
    /// What the communicator or the device reports.
    #[track_caller]
    pub fn covariance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("MultivariateNormal::covariance");
        self.scale_tril.matmul(&self.scale_tril.transpose(-2, -1)?)
    }

    /// The logarithms of the determinants of the matrices.
    #[track_caller]
    pub(super) fn log_det(&self) -> Result<ShardTensor> {
        self.scale_tril.diagonal(0, -2, -1)?.log()?.sum(-1, false)
    }

    /// The squares of the lengths of vectors `[.., n]` that the matrices are divided by.
    #[track_caller]
    pub(super) fn squares(&self, vectors: &ShardTensor) -> Result<ShardTensor> {
        if self.scale_tril.ndim() > 2 {
            let solved = self.divided(&vectors.unsqueeze(-1)?)?;
            return solved.square()?.sum([-2, -1], false);
        }
        // One matrix is divided by once, with all vectors as columns.
        let columns = vectors.movedim(-1, 0)?;
        let each = &columns.shape()[1..];
        let solved = match each.len() {
            0 | 1 => self.scale_tril.solve_triangular(&columns, false, false)?,
            _ => {
                let flat = columns.flatten_dims(1, -1)?;
                self.scale_tril.solve_triangular(&flat, false, false)?
            }
        };
        solved.square()?.sum(0, false)?.reshape(each)
    }

    /// The matrices `X` with `L X = B`, for `B` of one column or `n` that broadcast with them.
    #[track_caller]
    fn divided(&self, b: &ShardTensor) -> Result<ShardTensor> {
        const OP: &str = "MultivariateNormal";
        let n = self.event[0];
        let whole = broadcast_shape(OP, &[&self.scale_tril.value(), &b.value()])?;
        let batch: Shape = whole[..whole.len() - 2].to_vec().into();
        let columns = b.shape()[b.ndim() - 1];
        let left = repeated(&self.scale_tril, &batch, &[n, n])?;
        left.solve_triangular(&repeated(b, &batch, &[n, columns])?, false, false)
    }
}

/// The inverses of lower triangular matrices `[.., n, n]`.
#[track_caller]
pub(super) fn inverse(lower: &ShardTensor) -> Result<ShardTensor> {
    let n = lower.shape()[lower.ndim() - 1];
    let mesh = lower.mesh().with_dtype(lower.dtype());
    let ones = mesh.eye([n, n], Placements::replicated())?;
    let ones = repeated(&ones, &Shape::default(), lower.shape())?;
    lower.solve_triangular(&ones, false, false)
}

fn unfit(op: &'static str, loc: &ShardTensor, scale: &ShardTensor) -> Error {
    Error::argument(
        op,
        "means [.., n] and matrices [.., n, n]",
        format!("{:?} and {:?}", loc.shape(), scale.shape()),
        "give each vector of means a square matrix",
    )
}

impl Distribution for MultivariateNormal {
    fn batch_shape(&self) -> &[usize] {
        &self.batch
    }

    fn event_shape(&self) -> &[usize] {
        &self.event
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("MultivariateNormal::sample");
        let (loc, scale_tril) = (self.loc.detach(), self.scale_tril.detach());
        let detached = Self {
            loc,
            scale_tril,
            ..self.clone()
        };
        detached.rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("MultivariateNormal::log_prob");
        let apart = self.squares(&value.sub(&self.loc)?)?.mul_scalar(-0.5)?;
        let dims = self.event[0] as f64;
        apart
            .sub(&self.log_det()?)?
            .sub_scalar(0.5 * dims * LOG_2_PI)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("MultivariateNormal::entropy");
        let dims = self.event[0] as f64;
        let found = self.log_det()?.add_scalar(0.5 * dims * (1.0 + LOG_2_PI))?;
        repeated(&found, &Shape::default(), &self.batch)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("MultivariateNormal::mean");
        repeated(&self.loc, &self.batch.clone().into(), &self.event)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("MultivariateNormal::variance");
        let found = self.scale_tril.square()?.sum(-1, false)?;
        repeated(&found, &self.batch.clone().into(), &self.event)
    }
}

impl Reparametrized for MultivariateNormal {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("MultivariateNormal::rsample");
        let whole = [&self.batch[..], &self.event].concat();
        let noise = repeated(&self.loc.detach(), &shape.into(), &whole)?.randn_like()?;
        let vectors = self.scale_tril.matmul(&noise.unsqueeze(-1)?)?;
        self.loc.add(&vectors.squeeze(-1)?)
    }
}

impl Divergence for MultivariateNormal {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        let dets = other.log_det()?.sub(&self.log_det()?)?;
        let shapes = other
            .divided(&self.scale_tril)?
            .square()?
            .sum([-2, -1], false)?;
        let apart = other.squares(&self.loc.sub(&other.loc)?)?;
        let terms = shapes.add(&apart)?.sub_scalar(self.event[0] as f64)?;
        dets.add(&terms.mul_scalar(0.5)?)
    }
}
