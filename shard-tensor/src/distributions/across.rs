//! How far distributions of one kind are from those of another.
//!
//! A divergence is `-H(p) - E_p[ln q]`: the entropy of `p`, and the mean of what `q` makes of samples of `p`, for which most kinds take no more
//! than a few of its moments.

use super::bounded::{log_norm, mean, variance};
use super::dirichlet::log_beta;
use super::extremes::EULER_GAMMA;
use super::{
    Bernoulli, Beta, Binomial, ContinuousBernoulli, Distribution, Divergence, Exponential, Gamma,
    Gumbel, Laplace, Normal, Poisson, Symbol, Uniform, part, repeated,
};
use crate::{Result, Shape, ShardTensor};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, LN_2, PI};

/// `ln √2π`
const LOG_SQRT_2_PI: f64 = 0.918_938_533_204_672_8;

/// What is known of a distribution.
#[derive(Clone, Copy)]
struct Known<'f> {
    entropy: Symbol<'f>,
    mean: Symbol<'f>,
    variance: Symbol<'f>,
}

fn beta<'f>(a: Symbol<'f>, b: Symbol<'f>) -> Known<'f> {
    let (sum, mean) = (a + b, a / (a + b));
    let each = (a - 1.0) * a.digamma() + (b - 1.0) * b.digamma();
    Known {
        entropy: log_beta(a, b) - each + (sum - 2.0) * sum.digamma(),
        mean,
        variance: mean * (b / sum) / (sum + 1.0),
    }
}

fn gamma<'f>(concentration: Symbol<'f>, rate: Symbol<'f>) -> Known<'f> {
    let slope = (1.0 - concentration) * concentration.digamma();
    Known {
        entropy: concentration - rate.log() + concentration.lgamma() + slope,
        mean: concentration / rate,
        variance: concentration / rate.square(),
    }
}

fn exponential(rate: Symbol<'_>) -> Known<'_> {
    Known {
        entropy: 1.0 - rate.log(),
        mean: rate.reciprocal(),
        variance: rate.square().reciprocal(),
    }
}

fn gumbel<'f>(loc: Symbol<'f>, scale: Symbol<'f>) -> Known<'f> {
    Known {
        entropy: scale.log() + (1.0 + EULER_GAMMA),
        mean: loc + scale * EULER_GAMMA,
        variance: scale.square() * (PI * PI / 6.0),
    }
}

fn laplace<'f>(loc: Symbol<'f>, scale: Symbol<'f>) -> Known<'f> {
    Known {
        entropy: scale.log() + (1.0 + LN_2),
        mean: loc,
        variance: scale.square() * 2.0,
    }
}

fn uniform<'f>(low: Symbol<'f>, high: Symbol<'f>) -> Known<'f> {
    Known {
        entropy: (high - low).log(),
        mean: (low + high) * 0.5,
        variance: (high - low).square() / 12.0,
    }
}

fn continuous(logit: Symbol<'_>) -> Known<'_> {
    Known {
        entropy: log_norm(logit) - logit * mean(logit),
        mean: mean(logit),
        variance: variance(logit),
    }
}

impl<'f> Known<'f> {
    fn against_normal(self, loc: Symbol<'f>, scale: Symbol<'f>) -> Symbol<'f> {
        let spread = self.variance / scale.square() + ((self.mean - loc) / scale).square();
        spread * 0.5 + scale.log() + LOG_SQRT_2_PI - self.entropy
    }

    fn against_exponential(self, rate: Symbol<'f>) -> Symbol<'f> {
        rate * self.mean - rate.log() - self.entropy
    }

    /// With the mean of the logarithm.
    fn against_gamma(self, log: Symbol<'f>, [concentration, rate]: [Symbol<'f>; 2]) -> Symbol<'f> {
        let powers = concentration * rate.log() + (concentration - 1.0) * log;
        concentration.lgamma() - powers + rate * self.mean - self.entropy
    }

    fn against_continuous(self, logit: Symbol<'f>) -> Symbol<'f> {
        log_norm(logit) - logit * self.mean - self.entropy
    }

    fn against_uniform(self, low: Symbol<'f>, high: Symbol<'f>) -> Symbol<'f> {
        (high - low).log() - self.entropy
    }
}

/// `x ln x`, which is 0 at 0, and below, where nobody looks.
fn x_log_x(x: Symbol<'_>) -> Symbol<'_> {
    let x = x.below(0.0, 1.0, x);
    part(x, x.log())
}

/// The mean of the logarithm of what is uniform.
fn uniform_log<'f>(low: Symbol<'f>, high: Symbol<'f>) -> Symbol<'f> {
    (x_log_x(high) - x_log_x(low)) / (high - low) - 1.0
}

/// Divergences by the parameters of both, by the methods that tell them and the names of their symbols.
macro_rules! across {
    ($($name:literal: $p:ident($($of_p:ident as $x:ident),+) from $q:ident($($of_q:ident as $y:ident),+) $body:block)+) => {$(
        impl Divergence<$q> for $p {
            #[track_caller]
            fn kl_divergence(&self, other: &$q) -> Result<ShardTensor> {
                formula!($name, |[$($x,)+ $($y),+]| $body of [$(self.$of_p(),)+ $(other.$of_q()),+])
            }
        }
    )+};
}

across! {
    "beta_from_normal": Beta(concentration1 as a, concentration0 as b) from Normal(loc as loc, scale as scale) {
        beta(a, b).against_normal(loc, scale)
    }
    "exponential_from_normal": Exponential(rate as p) from Normal(loc as loc, scale as scale) {
        exponential(p).against_normal(loc, scale)
    }
    "gamma_from_normal": Gamma(concentration as a, rate as p) from Normal(loc as loc, scale as scale) {
        gamma(a, p).against_normal(loc, scale)
    }
    "gumbel_from_normal": Gumbel(loc as p_loc, scale as p_scale) from Normal(loc as loc, scale as scale) {
        gumbel(p_loc, p_scale).against_normal(loc, scale)
    }
    "laplace_from_normal": Laplace(loc as p_loc, scale as p_scale) from Normal(loc as loc, scale as scale) {
        laplace(p_loc, p_scale).against_normal(loc, scale)
    }
    "uniform_from_normal": Uniform(low as low, high as high) from Normal(loc as loc, scale as scale) {
        uniform(low, high).against_normal(loc, scale)
    }
    "beta_from_exponential": Beta(concentration1 as a, concentration0 as b) from Exponential(rate as rate) {
        beta(a, b).against_exponential(rate)
    }
    "gamma_from_exponential": Gamma(concentration as a, rate as p) from Exponential(rate as rate) {
        gamma(a, p).against_exponential(rate)
    }
    "uniform_from_exponential": Uniform(low as low, high as high) from Exponential(rate as rate) {
        low.below(0.0, f64::INFINITY, uniform(low, high).against_exponential(rate))
    }
    "beta_from_gamma": Beta(concentration1 as a, concentration0 as b) from Gamma(concentration as q, rate as rate) {
        beta(a, b).against_gamma(a.digamma() - (a + b).digamma(), [q, rate])
    }
    "exponential_from_gamma": Exponential(rate as p) from Gamma(concentration as q, rate as rate) {
        let ratio = rate / p;
        ratio - q * ratio.log() + q.lgamma() + q * EULER_GAMMA - (1.0 + EULER_GAMMA)
    }
    "uniform_from_gamma": Uniform(low as low, high as high) from Gamma(concentration as q, rate as rate) {
        let found = uniform(low, high).against_gamma(uniform_log(low, high), [q, rate]);
        low.below(0.0, f64::INFINITY, found)
    }
    "beta_from_uniform": Beta(concentration1 as a, concentration0 as b) from Uniform(low as low, high as high) {
        let held = high.below(1.0, f64::INFINITY, beta(a, b).against_uniform(low, high));
        (-low).below(0.0, f64::INFINITY, held)
    }
    "continuous_bernoulli_from_normal": ContinuousBernoulli(logits as logit) from Normal(loc as loc, scale as scale) {
        continuous(logit).against_normal(loc, scale)
    }
    "continuous_bernoulli_from_exponential": ContinuousBernoulli(logits as logit) from Exponential(rate as rate) {
        continuous(logit).against_exponential(rate)
    }
    "continuous_bernoulli_from_uniform": ContinuousBernoulli(logits as logit) from Uniform(low as low, high as high) {
        let held = high.below(1.0, f64::INFINITY, continuous(logit).against_uniform(low, high));
        (-low).below(0.0, f64::INFINITY, held)
    }
    "beta_from_continuous_bernoulli": Beta(concentration1 as a, concentration0 as b) from ContinuousBernoulli(logits as logit) {
        beta(a, b).against_continuous(logit)
    }
    "uniform_from_continuous_bernoulli": Uniform(low as low, high as high) from ContinuousBernoulli(logits as logit) {
        let held = uniform(low, high).against_continuous(logit);
        let held = (-high).below(-1.0, f64::INFINITY, held);
        low.below(0.0, f64::INFINITY, held)
    }
    "uniform_from_beta": Uniform(low as low, high as high) from Beta(concentration1 as a, concentration0 as b) {
        let logs = (a - 1.0) * uniform_log(low, high) + (b - 1.0) * uniform_log(1.0 - high, 1.0 - low);
        let held = log_beta(a, b) - logs - uniform(low, high).entropy;
        let held = (-high).below(-1.0, f64::INFINITY, held);
        low.below(0.0, f64::INFINITY, held)
    }
    "exponential_from_gumbel": Exponential(rate as p) from Gumbel(loc as loc, scale as scale) {
        let (product, apart) = (p * scale, loc / scale);
        product.log() - 1.0 - apart + apart.exp() * product / (product + 1.0) + product.reciprocal()
    }
    "gamma_from_gumbel": Gamma(concentration as a, rate as p) from Gumbel(loc as loc, scale as scale) {
        let (product, apart) = (p * scale, loc / scale);
        let powers = (apart - a * product.reciprocal().log1p()).exp();
        (a - 1.0) * a.digamma() - a.lgamma() - a + product.log() + a / product + powers - apart
    }
    "normal_from_gumbel": Normal(loc as p_loc, scale as p_scale) from Gumbel(loc as loc, scale as scale) {
        let (apart, ratio) = ((p_loc - loc) / scale, p_scale / scale);
        apart - ratio.log() + (ratio.square() * 0.5 - apart).exp() - (0.5 + LOG_SQRT_2_PI)
    }
    "uniform_from_gumbel": Uniform(low as low, high as high) from Gumbel(loc as loc, scale as scale) {
        let [least, most] = [(low - loc) / scale, (high - loc) / scale];
        let share = scale / (high - low);
        share.log() + (least + most) * 0.5 + share * ((-least).exp() - (-most).exp())
    }
    "normal_from_laplace": Normal(loc as p_loc, scale as p_scale) from Laplace(loc as loc, scale as scale) {
        let apart = (p_loc - loc) / p_scale;
        // The mean distance from the other's middle, in deviations.
        let far = (apart.square() * -0.5).exp() * FRAC_2_PI.sqrt() + apart * (apart * FRAC_1_SQRT_2).erf();
        (scale / p_scale).log() + far * (p_scale / scale) + (LN_2 - 0.5 - LOG_SQRT_2_PI)
    }
    "bernoulli_from_poisson": Bernoulli(logits as logit, probs as p) from Poisson(rate as rate) {
        let entropy = part(p, logit.log_sigmoid()) + part(1.0 - p, (-logit).log_sigmoid());
        entropy - part(p, rate.log()) + rate
    }
}

/// Divergences from what never gives some of what the first gives.
macro_rules! infinite {
    ($($p:ident($of_p:ident) from $($q:ident($of_q:ident))+;)+) => {$($(
        /// Infinite: the other never gives some of what this gives.
        impl Divergence<$q> for $p {
            #[track_caller]
            fn kl_divergence(&self, other: &$q) -> Result<ShardTensor> {
                let p = repeated(self.$of_p(), &Shape::default(), self.batch_shape())?;
                infinite(&p, &repeated(other.$of_q(), &Shape::default(), other.batch_shape())?)
            }
        }
    )+)+};
}

infinite! {
    Exponential(rate) from Beta(concentration1) ContinuousBernoulli(logits) Uniform(low);
    Gamma(rate) from Beta(concentration1) ContinuousBernoulli(logits) Uniform(low);
    Gumbel(loc) from Beta(concentration1) ContinuousBernoulli(logits) Exponential(rate) Gamma(rate) Uniform(low);
    Laplace(loc) from Beta(concentration1) ContinuousBernoulli(logits) Exponential(rate) Gamma(rate) Uniform(low);
    Normal(loc) from Beta(concentration1) ContinuousBernoulli(logits) Exponential(rate) Gamma(rate) Uniform(low);
    Poisson(rate) from Bernoulli(probs) Binomial(total_count);
}

/// Infinity, where two tensors lie.
#[track_caller]
fn infinite(p: &ShardTensor, q: &ShardTensor) -> Result<ShardTensor> {
    formula!("infinite_kl_divergence", |[p, q]| {
        p.below(f64::NEG_INFINITY, 0.0, q.below(f64::NEG_INFINITY, 0.0, f64::INFINITY))
    } of [p, q])
}
