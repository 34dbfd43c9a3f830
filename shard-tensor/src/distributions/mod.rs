//! Probability distributions, as `torch.distributions`.
//!
//! A distribution is made of tensors, its parameters, whose shapes broadcast to the [`batch_shape`](Distribution::batch_shape): one
//! distribution for each of its elements. A sample lies as the largest of the parameters does, and is that of one device whatever the
//! layout and the number of ranks. Log-probabilities, entropies and divergences have gradients with respect to the parameters; so have
//! samples of [`rsample`](Reparametrized::rsample).
//!
//! ```
//! use shard_tensor::distributions::{Categorical, Distribution, Normal, Reparametrized, kl_divergence};
//! use shard_tensor::prelude::*;
//!
//! launch(3, |ctx| {
//!     let mesh = ctx.mesh_of(3)?;
//!     // A policy that chooses among four actions, for seven states in pieces.
//!     let logits = mesh.randn([7, 4], shard(0))?.requires_grad()?;
//!     let policy = Categorical::from_logits(&logits)?;
//!     let action = policy.sample([])?;
//!     let loss = policy.log_prob(&action)?.add(&policy.entropy()?)?.mean_all()?;
//!     loss.backward()?.clip_norm(0.5)?;
//!
//!     // The encoder of a variational autoencoder, and how far it is from its prior.
//!     let (mean, deviation) = (mesh.randn([7, 2], shard(0))?, mesh.rand([7, 2], shard(0))?.requires_grad()?);
//!     let posterior = Normal::new(&mean, &deviation)?;
//!     let z = posterior.rsample([])?;
//!     z.expect_layout(mean.layout())?;
//!     let far = kl_divergence(&posterior, &Normal::new(&mean.zeros_like()?, 1.0)?)?.sum(-1, false)?;
//!     far.add(&z.square()?.sum(-1, false)?)?.mean_all()?.backward()?;
//!     Ok(())
//! })?;
//! # Ok::<(), shard_tensor::Error>(())
//! ```
//!
//! Parameters and values are not checked element by element, as that would make ranks wait for each other: the logarithm of a deviation below
//! 0 is NaN, and so is what is made of it. Two checks are made: what classes and truth values are drawn by has to be probabilities, and a
//! class has to be one of those that there are.
//!
//! Distributions are put together: [`Independent`] makes dims of a batch one event, [`MixtureSameFamily`] draws one of several, and
//! [`Transformed`] is one of what a function makes of samples, as the actions of soft actor-critic, which `tanh` bounds. [`Cumulative`] tells
//! the share below a value. What has no closed form, as the entropy of a mixture, is an error that says what to take instead.

/// What a formula makes of operands; it is recorded once.
macro_rules! formula {
    ($name:literal, |[$($operand:ident),+]| $body:block of $operands:expr) => {{
        static FORMULA: std::sync::LazyLock<crate::Fused<{ [$(stringify!($operand)),+].len() }, 1>> =
            std::sync::LazyLock::new(|| crate::Fused::new($name, |[$($operand),+]| [$body]));
        FORMULA.of($operands).map(|[found]| found)
    }};
}

mod across;
mod bernoulli;
mod bounded;
mod categorical;
mod cauchy;
mod counts;
mod cumulative;
mod dirichlet;
mod divergence;
mod extremes;
mod gamma;
mod gamma_slope;
mod half_normal;
mod independent;
mod inverse_gamma;
mod laplace;
mod lkj;
#[cfg(feature = "linalg")]
mod low_rank;
mod mixture;
#[cfg(feature = "linalg")]
mod multivariate;
mod normal;
mod one_hot;
mod pareto;
mod simplex;
mod student;
mod transformed;
mod uniform;
mod von_mises;
#[cfg(feature = "linalg")]
mod wishart;

pub use bernoulli::Bernoulli;
pub use bounded::{ContinuousBernoulli, Kumaraswamy};
pub use categorical::Categorical;
pub use cauchy::{Cauchy, HalfCauchy};
pub use counts::{Binomial, Geometric, NegativeBinomial, Poisson};
pub use cumulative::Cumulative;
pub use dirichlet::{Beta, Dirichlet};
pub use divergence::{Divergence, kl_divergence};
pub use extremes::{Gumbel, Weibull};
pub use gamma::Gamma;
pub use half_normal::HalfNormal;
pub use independent::Independent;
pub use inverse_gamma::{FisherSnedecor, InverseGamma};
pub use laplace::Laplace;
pub use lkj::LkjCholesky;
#[cfg(feature = "linalg")]
pub use low_rank::LowRankMultivariateNormal;
pub use mixture::MixtureSameFamily;
#[cfg(feature = "linalg")]
pub use multivariate::MultivariateNormal;
pub use normal::{LogNormal, Normal};
pub use one_hot::{OneHotCategorical, RelaxedOneHotCategorical};
pub use pareto::GeneralizedPareto;
pub use simplex::{LogisticNormal, Multinomial};
pub use student::StudentT;
pub use transformed::{
    AffineTransform, ExpTransform, SigmoidTransform, TanhTransform, Transformation, Transformed,
};
pub use uniform::{Exponential, Uniform};
pub use von_mises::VonMises;
#[cfg(feature = "linalg")]
pub use wishart::Wishart;

use crate::ops::fine;
use crate::{Branch, DType, Error, Result, Shape, ShardTensor, Symbol};
use shard_ops::elementwise::broadcast_shape;

/// What all distributions have.
pub trait Distribution {
    /// The shape of the parameters together: of a distribution for each of its elements.
    fn batch_shape(&self) -> &[usize];

    /// The shape of one sample of one distribution: none for a number or a class.
    fn event_shape(&self) -> &[usize] {
        &[]
    }

    /// Samples without gradients, `[shape.., batch.., event..]`: `[]` is one of each distribution.
    ///
    /// # Collective
    /// All ranks of the program must draw the same tensors in the same order, as for [`Mesh::rand`](crate::Mesh::rand).
    ///
    /// # Errors
    /// Sizes that are too large for an array; what the distribution says of its own.
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor>;

    /// The logarithm of the density, or of the probability, at a value whose shape broadcasts with `[batch.., event..]`.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align what does not lie alike.
    ///
    /// # Errors
    /// Shapes that do not broadcast; types that differ.
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor>;

    /// The entropies, in natural units, `[batch..]`.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align parameters that do not lie alike.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a distribution of which no closed form is known; what the communicator or the device reports.
    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        Err(unknown("entropy"))
    }

    /// The means, `[batch.., event..]`.
    ///
    /// # Collective
    /// As [`entropy`](Self::entropy).
    ///
    /// # Errors
    /// As [`entropy`](Self::entropy).
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        Err(unknown("mean"))
    }

    /// The variances, `[batch.., event..]`.
    ///
    /// # Collective
    /// As [`entropy`](Self::entropy).
    ///
    /// # Errors
    /// As [`entropy`](Self::entropy).
    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        Err(unknown("variance"))
    }

    /// The square roots of the variances.
    ///
    /// # Collective
    /// As [`entropy`](Self::entropy).
    ///
    /// # Errors
    /// As [`entropy`](Self::entropy).
    fn stddev(&self) -> Result<ShardTensor> {
        self.variance()?.sqrt()
    }
}

/// Distributions whose samples have gradients with respect to the parameters: a sample is a function of them and of noise.
pub trait Reparametrized: Distribution {
    /// Samples with gradients; the numbers are those that [`sample`](Distribution::sample) would have drawn in its place.
    ///
    /// # Collective
    /// As [`sample`](Distribution::sample).
    ///
    /// # Errors
    /// As [`sample`](Distribution::sample).
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor>;
}

/// That no formula gives this of a distribution.
#[track_caller]
fn unknown(op: &'static str) -> Error {
    Error::argument(
        op,
        "a distribution of which a closed form is known",
        "another one",
        "take the mean over samples: of `-log_prob` for an entropy, of values and squares for moments",
    )
}

/// The parameters of a batch of distributions, whose shapes broadcast to that of the batch.
#[derive(Clone, Debug)]
struct Batch<const N: usize> {
    of: [ShardTensor; N],
    batch: Vec<usize>,
}

impl<const N: usize> Batch<N> {
    #[track_caller]
    fn new(op: &'static str, mut of: [ShardTensor; N]) -> Result<Self> {
        let dtype = of.first().map(ShardTensor::dtype);
        let casts = |of: &ShardTensor| of.context().tape().autocasts_to().is_some();
        if of.iter().any(|of| Some(of.dtype()) != dtype && casts(of)) {
            // Where programs cast by themselves, numbers of 16 bits are widened beside others.
            for of in of.iter_mut().filter(|of| of.dtype().is_half()) {
                *of = of.to(DType::F32)?;
            }
        }
        let dtype = of.first().map(ShardTensor::dtype);
        if let Some(other) = of
            .iter()
            .find(|of| Some(of.dtype()) != dtype || !of.dtype().is_float())
        {
            return Err(Error::argument(
                op,
                "parameters of one type of floats",
                format!("{} among them", other.dtype()),
                "convert them with `to`",
            ));
        }
        let values = of.each_ref().map(ShardTensor::value);
        let batch = broadcast_shape(op, &values.each_ref())?;
        Ok(Self { of, batch })
    }

    /// The same numbers without gradients.
    fn detached(&self) -> Self {
        Self {
            of: self.of.each_ref().map(ShardTensor::detach),
            batch: self.batch.clone(),
        }
    }

    fn each(&self) -> [&ShardTensor; N] {
        self.of.each_ref()
    }

    /// The parameter with the most elements, for each of so many samples: noise lies as it does.
    #[track_caller]
    fn largest(&self, shape: &Shape) -> Result<ShardTensor> {
        let [first, others @ ..] = &self.of[..] else {
            unreachable!("a distribution has a parameter")
        };
        let most = others.iter().fold(first, |most, other| {
            if other.numel() > most.numel() {
                other
            } else {
                most
            }
        });
        repeated(&most.detach(), shape, &self.batch)
    }

    /// What an op makes of the parameters, for each distribution.
    #[track_caller]
    fn filled(&self, found: &ShardTensor) -> Result<ShardTensor> {
        repeated(found, &Shape::default(), &self.batch)
    }
}

/// A tensor, for each of so many samples of distributions of a shape.
#[track_caller]
fn repeated(of: &ShardTensor, shape: &Shape, batch: &[usize]) -> Result<ShardTensor> {
    let whole: Vec<usize> = shape.dims().iter().chain(batch).copied().collect();
    match of.shape() == whole {
        true => Ok(of.clone()),
        false => of.expand(whole),
    }
}

/// Uniform numbers between 0 and 1, neither of which is among them, as a tensor lies: in its type, or `f32` for 16 bits.
#[track_caller]
fn open_uniform(like: &ShardTensor) -> Result<ShardTensor> {
    let wide = fine(like.dtype());
    // Whole multiples of a power of two, without 0.
    let least = match wide {
        DType::F64 => 2_f64.powi(-53),
        _ => 2_f64.powi(-24),
    };
    like.to(wide)?.rand_like()?.clamp_min(least)
}

/// Two parameters, of which the second may be a number, which takes the type and the mesh of the first.
#[track_caller]
fn pair<'a>(first: &ShardTensor, second: impl Into<Branch<'a>>) -> Result<[ShardTensor; 2]> {
    let second = match second.into() {
        Branch::Tensor(second) => second.clone(),
        Branch::Number(number) => first.number(number)?,
    };
    Ok([first.clone(), second])
}

/// What is below it counts as 0, in all types.
const LITTLE: f64 = 1e-37;

/// A multiple of a logarithm. 0 times it is 0, also if it is infinite.
fn part<'f>(times: Symbol<'f>, log: Symbol<'f>) -> Symbol<'f> {
    // The slope by the multiple is the logarithm, or what stands for it.
    times * log.below(-3e38, times.abs().below(LITTLE, 0.0, log), log)
}
