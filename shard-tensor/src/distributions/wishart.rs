//! Covariances that are drawn.

use super::multivariate::inverse;
use super::{Distribution, Reparametrized, fine, gamma, repeated};
use crate::{Error, Placements, Result, Shape, ShardTensor};
use shard_comm::Calling;
use shard_ops::elementwise::broadcast_shape;
use std::f64::consts::{LN_2, PI};

/// Positive definite matrices, as the products of so many normal vectors of a covariance with themselves are: `torch.distributions.Wishart`. With the
/// feature `linalg`.
#[derive(Clone, Debug)]
pub struct Wishart {
    /// `[batch..]`
    df: ShardTensor,
    /// `[batch.., n, n]`, lower triangular.
    scale_tril: ShardTensor,
    batch: Vec<usize>,
    event: Vec<usize>,
}

impl Wishart {
    /// Of degrees of freedom `[batch..]`, above `n - 1`, and lower triangular matrices `L`, `[batch.., n, n]` with diagonals above 0: a sample has
    /// the mean `df L Lᵀ`. Nothing above the diagonals is read.
    ///
    /// # Collective
    /// All members of the mesh. As [`tril`](ShardTensor::tril).
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for what is no square matrix; shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Wishart};
    /// use shard_tensor::{launch, replicate, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let wishart = Wishart::new(&mesh.full([5], 4.0, shard(0))?, &mesh.eye([3, 3], replicate())?)?;
    ///     let covariance = wishart.sample([2])?;
    ///     assert_eq!((covariance.shape(), wishart.log_prob(&covariance)?.shape()), (&[2, 5, 3, 3][..], &[2, 5][..]));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(df: &ShardTensor, scale_tril: &ShardTensor) -> Result<Self> {
        const OP: &str = "Wishart::new";
        let _call = Calling::throughout(OP);
        let &[.., n, columns] = scale_tril.shape() else {
            return Err(no_square(OP, scale_tril));
        };
        if n != columns {
            return Err(no_square(OP, scale_tril));
        }
        let scale_tril = scale_tril.tril(0)?;
        let matrices = df.unsqueeze(-1)?.unsqueeze(-1)?;
        let mut batch = broadcast_shape(OP, &[&matrices.value(), &scale_tril.value()])?;
        let event = batch.split_off(batch.len() - 2);
        Ok(Self {
            df: df.clone(),
            scale_tril,
            batch,
            event,
        })
    }

    /// Of degrees of freedom `[batch..]` and matrices `[batch.., n, n]`, symmetric and positive definite.
    ///
    /// # Collective
    /// As [`cholesky`](ShardTensor::cholesky).
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`cholesky`](ShardTensor::cholesky).
    #[track_caller]
    pub fn from_covariance(df: &ShardTensor, covariance: &ShardTensor) -> Result<Self> {
        let _call = Calling::throughout("Wishart::from_covariance");
        Self::new(df, &covariance.cholesky()?)
    }

    /// The degrees of freedom, `[..]`.
    pub fn df(&self) -> &ShardTensor {
        &self.df
    }

    /// The triangular matrices, `[.., n, n]`.
    pub fn scale_tril(&self) -> &ShardTensor {
        &self.scale_tril
    }

    fn dims(&self) -> f64 {
        self.event[0] as f64
    }

    /// Half of what degrees of freedom the numbers on the diagonal of a sample's triangle have, `[.., n]`.
    #[track_caller]
    fn halves(&self) -> Result<ShardTensor> {
        let mesh = self.df.mesh().with_dtype(self.df.dtype());
        let rows = mesh.arange(self.event[0], Placements::replicated())?;
        self.df.unsqueeze(-1)?.sub(&rows)?.mul_scalar(0.5)
    }

    /// The logarithm of the multivariate gamma function of half of the degrees of freedom.
    #[track_caller]
    fn log_gamma(&self) -> Result<ShardTensor> {
        let n = self.dims();
        let each = self.halves()?.lgamma()?.sum(-1, false)?;
        each.add_scalar(n * (n - 1.0) * 0.25 * PI.ln())
    }

    /// The logarithms of the determinants of the triangles, and what twos they come with.
    #[track_caller]
    fn log_det(&self) -> Result<ShardTensor> {
        let log_det = self.scale_tril.diagonal(0, -2, -1)?.log()?.sum(-1, false)?;
        log_det.add_scalar(self.dims() * LN_2 * 0.5)
    }
}

fn no_square(op: &'static str, scale: &ShardTensor) -> Error {
    Error::argument(
        op,
        "matrices [.., n, n]",
        format!("{:?}", scale.shape()),
        "give square matrices",
    )
}

impl Distribution for Wishart {
    fn batch_shape(&self) -> &[usize] {
        &self.batch
    }

    fn event_shape(&self) -> &[usize] {
        &self.event
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::throughout("Wishart::sample");
        let [df, scale_tril] = [&self.df, &self.scale_tril].map(ShardTensor::detach);
        let detached = Self {
            df,
            scale_tril,
            ..self.clone()
        };
        detached.rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::throughout("Wishart::log_prob");
        let inverse = inverse(&self.scale_tril)?;
        let precision = inverse.transpose(-2, -1)?.matmul(&inverse)?;
        // The trace of the product: both are symmetric.
        let trace = precision.mul(value)?.sum([-2, -1], false)?;
        let (_, log_det) = value.slogdet()?;
        let powers = self.df.sub_scalar(self.dims() + 1.0)?.mul(&log_det)?;
        let at_value = powers.sub(&trace)?.mul_scalar(0.5)?;
        let constant = self.df.mul(&self.log_det()?)?.add(&self.log_gamma()?)?;
        at_value.sub(&constant)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::throughout("Wishart::entropy");
        let n = self.dims();
        let slopes = self.halves()?.digamma()?.sum(-1, false)?;
        let powers = self
            .df
            .sub_scalar(n + 1.0)?
            .mul(&slopes)?
            .mul_scalar(-0.5)?;
        let scale = self.log_det()?.mul_scalar(n + 1.0)?;
        let all = scale.add(&self.log_gamma()?)?.add(&powers)?;
        let all = all.add_scaled(&self.df, 0.5 * n)?;
        repeated(&all, &Shape::default(), &self.batch)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::throughout("Wishart::mean");
        let covariance = self
            .scale_tril
            .matmul(&self.scale_tril.transpose(-2, -1)?)?;
        covariance.mul(&self.df.unsqueeze(-1)?.unsqueeze(-1)?)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::throughout("Wishart::variance");
        let covariance = self
            .scale_tril
            .matmul(&self.scale_tril.transpose(-2, -1)?)?;
        let own = self.scale_tril.square()?.sum(-1, false)?;
        let own = own.unsqueeze(-1)?.mul(&own.unsqueeze(-2)?)?;
        let each = covariance.square()?.add(&own)?;
        each.mul(&self.df.unsqueeze(-1)?.unsqueeze(-1)?)
    }
}

impl Reparametrized for Wishart {
    /// By the decomposition of Bartlett: the triangle of a sample has normal numbers below its diagonal, and on it roots of sums of squares of such.
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::throughout("Wishart::rsample");
        let (shape, dtype) = (shape.into(), self.scale_tril.dtype());
        let wide = fine(dtype);
        let vectors = [&self.batch[..], &self.event[..1]].concat();
        let halves = repeated(&self.halves()?.to(wide)?, &shape, &vectors)?;
        let own = gamma::standard(&halves)?.mul_scalar(2.0)?.sqrt()?;
        let below = own
            .detach()
            .unsqueeze(-1)?
            .expand([own.shape(), &self.event[..1]].concat())?;
        let triangle = below
            .randn_like()?
            .tril(-1)?
            .add(&own.diag_embed(0, -2, -1)?)?;
        let factor = self.scale_tril.to(wide)?.matmul(&triangle)?;
        factor.matmul(&factor.transpose(-2, -1)?)?.to(dtype)
    }
}
