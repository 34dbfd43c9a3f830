//! Distributions of which some values the other never gives, and pairs of kinds that are put together.

use crate::common::on;
use crate::distributions::{everywhere, is, three};
use shard_tensor::distributions::{
    Bernoulli, Beta, Binomial, ContinuousBernoulli, Exponential, Gamma, Gumbel, Independent,
    Laplace, Normal, Poisson, TanhTransform, Transformation, Transformed, Uniform, kl_divergence,
};
use shard_tensor::{ErrorClass, Result, ShardTensor, shard};
use std::f64::consts::LN_2;

#[test]
fn what_the_other_never_gives_is_infinitely_far() {
    everywhere(|mesh| {
        let of = three(mesh, [0.5, 1.0, 2.0])?.requires_grad()?;
        let (normal, laplace) = (Normal::new(&of, 1.0)?, Laplace::new(&of, 1.0)?);
        let (gumbel, gamma) = (Gumbel::new(&of, 1.0)?, Gamma::new(&of, 1.0)?);
        let (exponential, beta) = (Exponential::new(&of)?, Beta::new(&of, 1.0)?);
        let (uniform, poisson) = (Uniform::new(&of, 7.0)?, Poisson::new(&of)?);
        let shares = three(mesh, [0.5, 0.0, 1.0])?;
        let bernoulli = Bernoulli::from_probs(&shares)?;
        let powers = ContinuousBernoulli::from_logits(&of)?;
        let binomial = Binomial::from_probs(&of.detach().mul_scalar(2.0)?, 0.5)?;
        let all = [
            kl_divergence(&exponential, &beta)?,
            kl_divergence(&exponential, &uniform)?,
            kl_divergence(&gamma, &beta)?,
            kl_divergence(&gamma, &uniform)?,
            kl_divergence(&gumbel, &beta)?,
            kl_divergence(&gumbel, &exponential)?,
            kl_divergence(&gumbel, &gamma)?,
            kl_divergence(&gumbel, &uniform)?,
            kl_divergence(&laplace, &beta)?,
            kl_divergence(&laplace, &exponential)?,
            kl_divergence(&laplace, &gamma)?,
            kl_divergence(&laplace, &uniform)?,
            kl_divergence(&normal, &beta)?,
            kl_divergence(&normal, &exponential)?,
            kl_divergence(&normal, &gamma)?,
            kl_divergence(&normal, &uniform)?,
            kl_divergence(&poisson, &bernoulli)?,
            kl_divergence(&poisson, &binomial)?,
            kl_divergence(&exponential, &powers)?,
            kl_divergence(&gamma, &powers)?,
            kl_divergence(&gumbel, &powers)?,
            kl_divergence(&laplace, &powers)?,
            kl_divergence(&normal, &powers)?,
            // These by their ends.
            kl_divergence(&Uniform::new(&of.neg()?, 1.0)?, &powers)?,
            kl_divergence(
                &Uniform::new(&of.detach().mul_scalar(0.0)?, &of.add_scalar(0.75)?)?,
                &powers,
            )?,
            kl_divergence(&powers, &Uniform::new(&of.mul_scalar(0.1)?, 3.0)?)?,
            kl_divergence(
                &powers,
                &Uniform::new(&of.mul_scalar(0.0)?, &of.mul_scalar(0.1)?)?,
            )?,
            kl_divergence(&Uniform::new(&of.neg()?, 1.0)?, &exponential)?,
            kl_divergence(&Uniform::new(&of.neg()?, 1.0)?, &gamma)?,
            kl_divergence(&Uniform::new(&of.neg()?, 1.0)?, &beta)?,
            kl_divergence(
                &Uniform::new(&of.detach().mul_scalar(0.0)?, &of.add_scalar(0.75)?)?,
                &beta,
            )?,
            kl_divergence(&beta, &Uniform::new(&of.mul_scalar(0.1)?, 3.0)?)?,
            kl_divergence(
                &beta,
                &Uniform::new(&of.mul_scalar(0.0)?, &of.mul_scalar(0.1)?)?,
            )?,
        ];
        for (i, found) in all.iter().enumerate() {
            is(&format!("pair {i}"), found, &[f64::INFINITY; 3])?;
            // Nor does it change.
            if found.is_tracked() {
                let slope = found.sum_all()?.grad(&[&of], false)?;
                let slope = slope[0].clone().unwrap_or(of.mul_scalar(0.0)?);
                is(&format!("slope of pair {i}"), &slope, &[0.0; 3])?;
            }
        }
        // PyTorch's numbers where the other gives just what this gives, and at probabilities of 0 and 1.
        let zero = of.detach().mul_scalar(0.0)?;
        let whole = Uniform::new(&zero, 1.0)?;
        let of_beta = [-0.5 + LN_2, 0.0, -0.5 + LN_2];
        let found = kl_divergence(&Beta::new(&of, 1.0)?, &whole)?;
        is("Beta from Uniform", &found.narrow(0, 1..2)?, &of_beta[1..2])?;
        is(
            "Uniform from Beta",
            &kl_divergence(&whole, &Beta::new(&of, 1.0)?)?,
            &[LN_2 - 0.5, 0.0, 1.0 - LN_2],
        )?;
        let found = kl_divergence(&bernoulli, &poisson)?;
        is(
            "Bernoulli from Poisson",
            &found,
            &[0.15342640972002736, 1.0, 1.3068528194400546],
        )
    });
}

/// A program's own function, of an odd power.
#[derive(Clone, Copy, PartialEq)]
struct Power(i32);

impl Transformation for Power {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.pow_scalar(self.0.into())
    }

    fn inverse(&self, y: &ShardTensor) -> Result<ShardTensor> {
        y.abs()?.pow_scalar(1.0 / f64::from(self.0))?.copysign(y)
    }

    fn log_slope(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let power = f64::from(self.0);
        x.abs()?
            .log()?
            .mul_scalar(power - 1.0)?
            .add_scalar(power.ln())
    }
}

#[test]
fn events_of_other_kinds_are_summed() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let ones = mesh.ones([4, 2], shard(0).sizes([1, 0, 3]))?;
        let (waits, normal) = (Exponential::new(&ones)?, Normal::new(&ones, 2.0)?);
        let each = kl_divergence(&waits, &normal)?.sum(1, false)?;
        let (p, q) = (
            Independent::new(waits, 1)?,
            Independent::new(normal.clone(), 1)?,
        );
        assert!(kl_divergence(&p, &q)?.allclose(&each, 1e-12, 0.0, false)?);
        let refused = kl_divergence(&p, &Independent::new(normal, 2)?).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Uniform, "{refused}");
        // A function of both changes nothing.
        let [p, q] = [0.5, 2.0].map(|scale| Normal::new(&ones, scale));
        let (p, q) = (p?, q?);
        let far = kl_divergence(&p, &q)?;
        let [p, q] = [p, q].map(|of| Transformed::new(of, TanhTransform));
        assert!(kl_divergence(&p, &q)?.allclose(&far, 0.0, 0.0, false)?);
        let by = |of, power| Transformed::new(of, Power(power));
        assert!(
            kl_divergence(&by(p.clone(), 3), &by(q.clone(), 3))?.allclose(&far, 0.0, 0.0, false)?
        );
        let refused = kl_divergence(&by(p, 3), &by(q, 5)).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Uniform, "{refused}");
        // Batches broadcast, of infinite ones too.
        let (one, many) = (mesh.ones([1, 2], shard(1))?, mesh.ones([4, 1], shard(0))?);
        let far = kl_divergence(&Normal::new(&one, 1.0)?, &Gamma::new(&many, &one)?)?;
        assert_eq!(
            (far.shape(), far.amin(.., false)?.item()?),
            (&[4, 2][..], f64::INFINITY)
        );
        Ok(())
    });
}
