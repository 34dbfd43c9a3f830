//! Angles.

use super::counts::by_candidates;
use super::{Batch, Distribution, Divergence, pair};
use crate::{Branch, DType, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::{PI, TAU};
use std::sync::LazyLock;

/// Angles around `loc`, as `torch.distributions.VonMises`: on a circle what a normal distribution is on a line. Samples are from `-π` to `π`;
/// the density is that of the angle on the circle, whatever whole turns are added.
#[derive(Clone, Debug)]
pub struct VonMises(Batch<2>);

impl VonMises {
    /// Of the likeliest angles `loc`, in radians, and the concentrations around them, a tensor or a number, which are above 0: large ones are
    /// nearly the inverse of a normal distribution's variance.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, VonMises};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let headings = VonMises::new(&ctx.mesh_of(2)?.full([3], 3.0, shard(0))?, 40.0)?;
    ///     Ok((headings.sample([9])?.to_array::<f32>()?, headings.variance()?.to_array::<f32>()?))
    /// })?;
    /// let (drawn, variance) = &found[0];
    /// assert!(drawn.iter().all(|angle| angle.abs() <= std::f32::consts::PI)); // some of them beyond half a turn
    /// assert!(variance.iter().all(|variance| (variance - 0.01258).abs() < 1e-4));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, concentration: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("VonMises::new");
        Ok(Self(Batch::new("VonMises", pair(loc, concentration)?)?))
    }

    /// The likeliest angles.
    pub fn loc(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// How near to them the others are.
    pub fn concentration(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

/// An angle from 0 for each concentration, in `f64`, by the method of Best and Fisher 1979, "Efficient simulation of the von Mises
/// distribution". Of candidates at least 65 of 100 are taken.
#[track_caller]
fn angles(concentration: &ShardTensor) -> Result<ShardTensor> {
    static CANDIDATE: LazyLock<Fused<3, 2>> = LazyLock::new(|| {
        Fused::new("von_mises_candidate", |[k, u, v]| {
            // Without any, all angles are alike, and nearly all candidates are taken.
            let k = k.below(1e-9, 1e-9, k);
            let r = ((k.square() * 4.0 + 1.0).sqrt() + 1.0) / (k * 2.0);
            let z = (u * TAU).cos();
            let cosine = ((r * z + 1.0) / (r + z)).clamp(-1.0, 1.0);
            let c = k * (r - cosine);
            let refused = v.log() - c.log() - 1.0 + c;
            let size = cosine.acos();
            [u.below(0.5, size, -size), refused]
        })
    });
    by_candidates(concentration, |u, v| CANDIDATE.of([concentration, u, v]))
}

impl Distribution for VonMises {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("VonMises::sample");
        let of = self.0.detached();
        let zeros = of.largest(&shape.into())?.to(DType::F64)?.zeros_like()?;
        let [loc, concentration] = of.each().map(|of| of.to(DType::F64)?.add(&zeros));
        let angle = loc?.add(&angles(&concentration?)?)?;
        let turned = angle
            .add_scalar(PI)?
            .remainder_scalar(TAU)?
            .sub_scalar(PI)?;
        turned.to(self.loc().dtype())
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("VonMises::log_prob");
        formula!("von_mises_log_prob", |[x, loc, k]| {
            // What the cosine lacks of 1, which does not cancel near 0.
            let lacks = ((x - loc) * 0.5).sin().square() * 2.0;
            -(k * lacks) - k.i0e().log() - TAU.ln()
        } of [value, self.loc(), self.concentration()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("VonMises::entropy");
        let entropy = formula!("von_mises_entropy", |[k]| {
            k.i0e().log() + TAU.ln() + k * (1.0 - k.i1e() / k.i0e())
        } of [self.concentration()])?;
        self.0.filled(&entropy)
    }

    /// The likeliest angles.
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("VonMises::mean");
        self.0.filled(self.loc())
    }

    /// Those on the circle: what the mean of cosines of distances from `loc` lacks of 1.
    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("VonMises::variance");
        let variance = formula!("von_mises_variance", |[k]| {
            1.0 - k.i1e() / k.i0e()
        } of [self.concentration()])?;
        self.0.filled(&variance)
    }
}

impl Divergence for VonMises {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("von_mises_kl_divergence", |[p_loc, p, q_loc, q]| {
            let (share, lacks) = (p.i1e() / p.i0e(), ((p_loc - q_loc) * 0.5).sin().square() * 2.0);
            // Of exponents that were taken off, and of means of the cosines.
            let apart = (q - p) * (1.0 - share) + q * share * lacks;
            q.i0e().log() - p.i0e().log() + apart
        } of [self.loc(), self.concentration(), other.loc(), other.concentration()])
    }
}
