//! Numbers with tails that are as heavy as is said.

use super::{Batch, Distribution, Reparametrized, fine, gamma};
use crate::{Branch, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::PI;

/// Numbers around `loc`, as wide as `scale`, whose tails fall with a power, as `torch.distributions.StudentT`. Its
/// entropy and its moments are those of the closed forms: the mean is NaN up to one degree of freedom, the variance infinite up to two.
#[derive(Clone, Debug)]
pub struct StudentT(Batch<3>);

impl StudentT {
    /// Of degrees of freedom `df`, and centres `loc` and widths `scale`, each a tensor or a number; `df` and `scale` are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, StudentT};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     // A likelihood that outliers do not move much.
    ///     let errors = ctx.mesh_of(2)?.arange(3, shard(0))?;
    ///     let far = StudentT::new(&errors.full_like(4.0)?, 0.0, 1.0)?.log_prob(&errors)?;
    ///     far.to_array::<f32>()
    /// })?;
    /// assert!((found[0][0] - found[0][2] - 2.5 * 2_f32.ln()).abs() < 1e-5);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(
        df: &ShardTensor,
        loc: impl Into<Branch<'a>>,
        scale: impl Into<Branch<'a>>,
    ) -> Result<Self> {
        let _call = Calling::of("StudentT::new");
        let [df, loc] = super::pair(df, loc)?;
        let [_, scale] = super::pair(&df, scale)?;
        Ok(Self(Batch::new("StudentT", [df, loc, scale])?))
    }

    /// The degrees of freedom.
    pub fn df(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The centres.
    pub fn loc(&self) -> &ShardTensor {
        &self.0.of[1]
    }

    /// The widths.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[2]
    }
}

impl Distribution for StudentT {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("StudentT::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("StudentT::log_prob");
        formula!("student_t_log_prob", |[x, df, loc, scale]| {
            let more = (df + 1.0) * 0.5;
            let whole = (df * 0.5).lgamma() - more.lgamma() + df.log() * 0.5 + 0.5 * PI.ln();
            let far = ((x - loc) / scale).square() / df;
            -(more * far.log1p()) - whole - scale.log()
        } of [value, self.df(), self.loc(), self.scale()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("StudentT::entropy");
        let found = formula!("student_t_entropy", |[df, scale]| {
            let (half, more) = (df * 0.5, (df + 1.0) * 0.5);
            let beta = half.lgamma() - more.lgamma() + 0.5 * PI.ln();
            scale.log() + more * (more.digamma() - half.digamma()) + df.log() * 0.5 + beta
        } of [self.df(), self.scale()])?;
        self.0.filled(&found)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("StudentT::mean");
        let found = formula!("student_t_mean", |[df, loc]| {
            // NaN is not below anything.
            (1.0 - df).below(0.0, loc, f64::NAN)
        } of [self.df(), self.loc()])?;
        self.0.filled(&found)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("StudentT::variance");
        let found = formula!("student_t_variance", |[df, scale]| {
            let wide = scale.square() * df / (df - 2.0);
            let wide = (2.0 - df).below(0.0, wide, f64::INFINITY);
            (1.0 - df).below(0.0, wide, f64::NAN)
        } of [self.df(), self.scale()])?;
        self.0.filled(&found)
    }
}

impl Reparametrized for StudentT {
    /// Gradients for `df` are those of a [`Gamma`](super::Gamma) sample; they are not differentiated again.
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("StudentT::rsample");
        let dtype = self.df().dtype();
        let ones = self
            .0
            .largest(&shape.into())?
            .ones_like()?
            .to(fine(dtype))?;
        let [df, loc, scale] = self.0.each().map(|of| of.to(ones.dtype()));
        let df = ones.mul(&df?)?;
        let normal = ones.randn_like()?;
        let squares = gamma::standard(&df.mul_scalar(0.5)?)?;
        formula!("student_t_sample", |[df, loc, scale, normal, squares]| {
            loc + scale * normal * (df * 0.5 / squares).sqrt()
        } of [&df, &loc?, &scale?, &normal, &squares])?
        .to(dtype)
    }
}
