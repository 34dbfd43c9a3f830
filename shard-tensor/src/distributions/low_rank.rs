//! Normal vectors whose covariances are few products and a diagonal.

use super::multivariate::{LOG_2_PI, MultivariateNormal, inverse};
use super::{Distribution, Divergence, Reparametrized, repeated};
use crate::{Error, Placements, Result, Shape, ShardTensor};
use shard_comm::Calling;
use shard_ops::elementwise::broadcast_shape;

/// Normal vectors of covariances `W Wᵀ + D` with few columns `W` and a diagonal `D`, as `torch.distributions.LowRankMultivariateNormal`: no matrix of
/// as many rows and columns as a vector has numbers is made, but for [`covariance`](Self::covariance). With the feature `linalg`.
#[derive(Clone, Debug)]
pub struct LowRankMultivariateNormal {
    loc: ShardTensor,
    factor: ShardTensor,
    diagonal: ShardTensor,
    /// `D⁻¹ W`, `[.., n, rank]`.
    scaled: ShardTensor,
    /// The inverse of the triangle `L` of `1 + Wᵀ D⁻¹ W`, `[.., rank, rank]`.
    inner: ShardTensor,
    /// The variances, `[.., n]`.
    spread: ShardTensor,
    batch: Vec<usize>,
    event: Vec<usize>,
}

impl LowRankMultivariateNormal {
    /// Of means `[batch.., n]`, columns `W`, `[batch.., n, rank]`, and diagonals `D` above 0, `[batch.., n]`.
    ///
    /// # Collective
    /// All members of the mesh. As [`matmul`](ShardTensor::matmul) and [`cholesky`](ShardTensor::cholesky) of matrices of that rank.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for columns and diagonals that do not fit the means; shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, LowRankMultivariateNormal, Reparametrized};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (mean, columns) = (mesh.randn([5, 100], shard(0))?, mesh.randn([100, 2], shard(0))?);
    ///     let normal = LowRankMultivariateNormal::new(&mean, &columns, &mesh.ones([100], shard(0))?)?;
    ///     let x = normal.rsample([4])?;
    ///     assert_eq!((x.shape(), normal.log_prob(&x)?.shape()), (&[4, 5, 100][..], &[4, 5][..]));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(loc: &ShardTensor, factor: &ShardTensor, diagonal: &ShardTensor) -> Result<Self> {
        const OP: &str = "LowRankMultivariateNormal::new";
        let _call = Calling::throughout(OP);
        let fits = match (loc.shape(), factor.shape(), diagonal.shape()) {
            ([.., n], [.., rows, _], [.., of]) => n == rows && n == of,
            _ => false,
        };
        if !fits {
            return Err(Error::argument(
                OP,
                "means [.., n], columns [.., n, rank] and diagonals [.., n]",
                format!(
                    "{:?}, {:?} and {:?}",
                    loc.shape(),
                    factor.shape(),
                    diagonal.shape()
                ),
                "give each vector of means as many rows and variances",
            ));
        }
        let scaled = factor.div(&diagonal.unsqueeze(-1)?)?;
        let products = factor.transpose(-2, -1)?.matmul(&scaled)?;
        let rank = factor.shape()[factor.ndim() - 1];
        let mesh = factor.mesh().with_dtype(factor.dtype());
        let ones = mesh.eye([rank, rank], Placements::replicated())?;
        let inner = inverse(&products.add(&ones)?.cholesky()?)?;
        let spread = factor.square()?.sum(-1, false)?.add(diagonal)?;
        let mut batch = broadcast_shape(OP, &[&loc.value(), &spread.value()])?;
        let event = batch.split_off(batch.len() - 1);
        Ok(Self {
            loc: loc.clone(),
            factor: factor.clone(),
            diagonal: diagonal.clone(),
            scaled,
            inner,
            spread,
            batch,
            event,
        })
    }

    /// The means, `[.., n]`.
    pub fn loc(&self) -> &ShardTensor {
        &self.loc
    }

    /// The columns, `[.., n, rank]`.
    pub fn cov_factor(&self) -> &ShardTensor {
        &self.factor
    }

    /// The diagonals, `[.., n]`.
    pub fn cov_diag(&self) -> &ShardTensor {
        &self.diagonal
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
        let _call = Calling::throughout("LowRankMultivariateNormal::covariance");
        let products = self.factor.matmul(&self.factor.transpose(-2, -1)?)?;
        products.add(&self.diagonal.diag_embed(0, -2, -1)?)
    }

    /// The logarithms of the determinants of the covariances, by the lemma of the determinant.
    #[track_caller]
    fn log_det(&self) -> Result<ShardTensor> {
        let inner = self.inner.diagonal(0, -2, -1)?.log()?.sum(-1, false)?;
        let outer = self.diagonal.log()?.sum(-1, false)?;
        outer.add_scaled(&inner, -2.0)
    }

    /// `L⁻¹ Wᵀ D⁻¹`, `[.., rank, n]`: the inverses of the covariances are `D⁻¹` without the products of these.
    #[track_caller]
    fn taken(&self) -> Result<ShardTensor> {
        self.inner.matmul(&self.scaled.transpose(-2, -1)?)
    }

    /// The squares of the lengths of vectors `[.., n]`, in units of the covariances.
    #[track_caller]
    fn squares(&self, vectors: &ShardTensor) -> Result<ShardTensor> {
        let plain = vectors.square()?.div(&self.diagonal)?.sum(-1, false)?;
        let rows = vectors.unsqueeze(-2)?.matmul(&self.scaled)?;
        let taken = rows.matmul(&self.inner.transpose(-2, -1)?)?;
        plain.sub(&taken.square()?.sum([-2, -1], false)?)
    }
}

/// The sum of the squares of matrices.
#[track_caller]
fn size(of: &ShardTensor) -> Result<ShardTensor> {
    of.square()?.sum([-2, -1], false)
}

impl Distribution for LowRankMultivariateNormal {
    fn batch_shape(&self) -> &[usize] {
        &self.batch
    }

    fn event_shape(&self) -> &[usize] {
        &self.event
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::throughout("LowRankMultivariateNormal::sample");
        let [loc, factor, diagonal] =
            [&self.loc, &self.factor, &self.diagonal].map(ShardTensor::detach);
        let detached = Self {
            loc,
            factor,
            diagonal,
            ..self.clone()
        };
        detached.rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::throughout("LowRankMultivariateNormal::log_prob");
        let apart = self.squares(&value.sub(&self.loc)?)?;
        let dims = self.event[0] as f64;
        let whole = apart.add(&self.log_det()?)?.add_scalar(dims * LOG_2_PI)?;
        whole.mul_scalar(-0.5)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::throughout("LowRankMultivariateNormal::entropy");
        let dims = self.event[0] as f64;
        let found = self.log_det()?.add_scalar(dims * (1.0 + LOG_2_PI))?;
        repeated(&found.mul_scalar(0.5)?, &Shape::default(), &self.batch)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("LowRankMultivariateNormal::mean");
        repeated(&self.loc, &self.batch.clone().into(), &self.event)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("LowRankMultivariateNormal::variance");
        repeated(&self.spread, &self.batch.clone().into(), &self.event)
    }
}

impl Reparametrized for LowRankMultivariateNormal {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::throughout("LowRankMultivariateNormal::rsample");
        let whole = [&self.batch[..], &self.event].concat();
        let like = repeated(&self.loc.detach(), &shape.into(), &whole)?;
        let own = self.diagonal.sqrt()?.mul(&like.randn_like()?)?;
        let rank = self.factor.shape()[self.factor.ndim() - 1];
        let of_columns = [&like.shape()[..like.ndim() - 1], &[1, rank]].concat();
        let columns = like.narrow(-1, ..1)?.unsqueeze(-1)?.expand(of_columns)?;
        let shared = columns
            .randn_like()?
            .matmul(&self.factor.transpose(-2, -1)?)?;
        self.loc.add(&shared.squeeze(-2)?)?.add(&own)
    }
}

impl LowRankMultivariateNormal {
    /// Half of the sum of differences of determinants, of `shapes`, the trace of the product of the other's inverse with a covariance, and of
    /// distances.
    #[track_caller]
    fn divergence(
        log_dets: [&ShardTensor; 2],
        shapes: &ShardTensor,
        apart: &ShardTensor,
        n: usize,
    ) -> Result<ShardTensor> {
        let [p, q] = log_dets;
        let terms = q.sub(p)?.add(shapes)?.add(apart)?;
        terms.sub_scalar(n as f64)?.mul_scalar(0.5)
    }
}

impl Divergence for LowRankMultivariateNormal {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        let (taken, q) = (other.taken()?, &other.diagonal);
        let diagonals = self.diagonal.div(q)?.sum(-1, false)?;
        let columns = self.factor.square()?.div(&q.unsqueeze(-1)?)?;
        let plain = diagonals.add(&columns.sum([-2, -1], false)?)?;
        let of_diagonal = taken.square()?.mul(&self.diagonal.unsqueeze(-2)?)?;
        let of_columns = size(&taken.matmul(&self.factor)?)?;
        let shapes = plain
            .sub(&of_diagonal.sum([-2, -1], false)?)?
            .sub(&of_columns)?;
        let apart = other.squares(&self.loc.sub(&other.loc)?)?;
        Self::divergence(
            [&self.log_det()?, &other.log_det()?],
            &shapes,
            &apart,
            self.event[0],
        )
    }
}

impl Divergence<MultivariateNormal> for LowRankMultivariateNormal {
    #[track_caller]
    fn kl_divergence(&self, other: &MultivariateNormal) -> Result<ShardTensor> {
        let q = inverse(other.scale_tril())?;
        let diagonal = q.square()?.mul(&self.diagonal.unsqueeze(-2)?)?;
        let shapes = size(&q.matmul(&self.factor)?)?.add(&diagonal.sum([-2, -1], false)?)?;
        let apart = other.squares(&self.loc.sub(other.loc())?)?;
        let q = other.log_det()?.mul_scalar(2.0)?;
        Self::divergence([&self.log_det()?, &q], &shapes, &apart, self.event[0])
    }
}

impl Divergence<LowRankMultivariateNormal> for MultivariateNormal {
    #[track_caller]
    fn kl_divergence(&self, other: &LowRankMultivariateNormal) -> Result<ShardTensor> {
        let (own, q) = (self.scale_tril(), &other.diagonal);
        let plain = own.square()?.div(&q.unsqueeze(-1)?)?.sum([-2, -1], false)?;
        let shapes = plain.sub(&size(&other.taken()?.matmul(own)?)?)?;
        let apart = other.squares(&self.loc().sub(&other.loc)?)?;
        let (p, n) = (self.log_det()?.mul_scalar(2.0)?, other.event[0]);
        LowRankMultivariateNormal::divergence([&p, &other.log_det()?], &shapes, &apart, n)
    }
}
