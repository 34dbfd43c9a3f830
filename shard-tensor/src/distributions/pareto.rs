//! What is beyond a threshold.

use super::bounded::series;
use super::{Batch, Cumulative, Distribution, Reparametrized, Symbol, open_uniform, part};
use crate::{Branch, Result, Shape, ShardTensor};
use shard_comm::Calling;

/// Numbers beyond a threshold, with a tail that is a power, exponential, or ends, as `torch.distributions.GeneralizedPareto`. Near a
/// concentration of 0, where PyTorch's gradients leave it alone, these do not.
#[derive(Clone, Debug)]
pub struct GeneralizedPareto(Batch<3>);

impl GeneralizedPareto {
    /// Of thresholds, scales above 0, and concentrations, which say how heavy tails are; the last two are tensors or numbers.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, GeneralizedPareto};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let thresholds = ctx.mesh_of(2)?.ones([3], shard(0))?;
    ///     GeneralizedPareto::new(&thresholds, 2.0, 0.5)?.mean()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[5.0; 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(
        loc: &ShardTensor,
        scale: impl Into<Branch<'a>>,
        concentration: impl Into<Branch<'a>>,
    ) -> Result<Self> {
        let _call = Calling::of("GeneralizedPareto::new");
        let [loc, scale] = super::pair(loc, scale)?;
        let [loc, concentration] = super::pair(&loc, concentration)?;
        let all = [loc, scale, concentration];
        Ok(Self(Batch::new("GeneralizedPareto", all)?))
    }

    /// The thresholds.
    pub fn loc(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The scales.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[1]
    }

    /// How heavy tails are.
    pub fn concentration(&self) -> &ShardTensor {
        &self.0.of[2]
    }
}

/// Up to where series serve.
const NEAR: f64 = 1e-2;

/// The logarithm of the share beyond `z` scales behind the threshold: `-log(1 + k z) / k`.
fn log_beyond<'f>(z: Symbol<'f>, k: Symbol<'f>) -> Symbol<'f> {
    let product = k * z;
    let far = product.abs().below(NEAR, NEAR, product);
    let numbers = [
        1.0,
        -1.0 / 2.0,
        1.0 / 3.0,
        -1.0 / 4.0,
        1.0 / 5.0,
        -1.0 / 6.0,
        1.0 / 7.0,
    ];
    let near = series(product, &numbers);
    -z * product.abs().below(NEAR, near, far.log1p() / far)
}

/// How many scales behind the threshold a share lies whose complement has this logarithm: `(e^(-k log) - 1) / k`.
fn reached<'f>(log: Symbol<'f>, k: Symbol<'f>) -> Symbol<'f> {
    let product = -(k * log);
    let far = product.abs().below(NEAR, NEAR, product);
    let numbers = [
        1.0,
        1.0 / 2.0,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5040.0,
    ];
    let near = series(product, &numbers);
    -log * product.abs().below(NEAR, near, far.expm1() / far)
}

impl Distribution for GeneralizedPareto {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::log_prob");
        formula!("generalized_pareto_log_prob", |[x, loc, scale, k]| {
            let z = (x - loc) / scale;
            let inside = part(k + 1.0, log_beyond(z, k)) - scale.log();
            let inside = (k * z).below(-1.0, f64::NEG_INFINITY, inside);
            z.below(0.0, f64::NEG_INFINITY, inside)
        } of [value, self.loc(), self.scale(), self.concentration()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::entropy");
        let found = formula!("generalized_pareto_entropy", |[scale, k]| {
            scale.log() + k + 1.0
        } of [self.scale(), self.concentration()])?;
        self.0.filled(&found)
    }

    /// NaN for concentrations of 1 and more, as in PyTorch.
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::mean");
        formula!("generalized_pareto_mean", |[loc, scale, k]| {
            k.below(1.0, loc + scale / (1.0 - k), f64::NAN)
        } of self.0.each())
    }

    /// NaN for concentrations of a half and more, as in PyTorch.
    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::variance");
        let found = formula!("generalized_pareto_variance", |[scale, k]| {
            let found = (scale / (1.0 - k)).square() / (1.0 - k * 2.0);
            k.below(0.5, found, f64::NAN)
        } of [self.scale(), self.concentration()])?;
        self.0.filled(&found)
    }
}

impl Reparametrized for GeneralizedPareto {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::rsample");
        let (largest, dtype) = (self.0.largest(&shape.into())?, self.loc().dtype());
        let u = open_uniform(&largest)?;
        let [loc, scale, k] = self.0.each().map(|of| of.to(u.dtype()));
        // The share beyond a sample is as uniform as that below.
        formula!("generalized_pareto_sample", |[loc, scale, k, u]| {
            loc + scale * reached(u.log(), k)
        } of [&loc?, &scale?, &k?, &u])?
        .to(dtype)
    }
}

impl Cumulative for GeneralizedPareto {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::cdf");
        formula!("generalized_pareto_cdf", |[x, loc, scale, k]| {
            let z = (x - loc) / scale;
            let inside = -log_beyond(z, k).expm1();
            z.below(0.0, 0.0, (k * z).below(-1.0, 1.0, inside))
        } of [value, self.loc(), self.scale(), self.concentration()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("GeneralizedPareto::icdf");
        formula!("generalized_pareto_icdf", |[share, loc, scale, k]| {
            loc + scale * reached((-share).log1p(), k)
        } of [share, self.loc(), self.scale(), self.concentration()])
    }
}
