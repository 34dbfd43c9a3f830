//! How far a distribution is from another.

use crate::{Result, ShardTensor};
use shard_comm::Calling;

/// Distributions with a known divergence from those of a kind.
pub trait Divergence<Q: ?Sized = Self> {
    /// As the function [`kl_divergence`].
    ///
    /// # Collective
    /// As [`kl_divergence`].
    ///
    /// # Errors
    /// As [`kl_divergence`].
    fn kl_divergence(&self, other: &Q) -> Result<ShardTensor>;
}

/// The Kullback-Leibler divergence of `p` from `q`, the mean of `ln p - ln q` over samples of `p`, for each pair of distributions of
/// batches that broadcast: `torch.distributions.kl_divergence`.
///
/// ```
/// use shard_tensor::distributions::{Categorical, kl_divergence};
/// use shard_tensor::{launch, ndarray::array, replicate};
/// let found = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let even = Categorical::from_probs(&mesh.ones([4], replicate())?)?;
///     let two = Categorical::from_probs(&mesh.distribute(&array![0.5_f32, 0.5, 0.0, 0.0], replicate())?)?;
///     Ok((kl_divergence(&two, &even)?.item()?, kl_divergence(&even, &two)?.item()?))
/// })?;
/// assert!((found[0].0 - std::f64::consts::LN_2).abs() < 1e-6);
/// assert_eq!(found[0].1, f64::INFINITY);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// All members of the mesh. Communicates to align parameters that do not lie alike, and for sums over dims in pieces.
///
/// # Errors
/// Shapes that do not broadcast; types that differ.
#[track_caller]
pub fn kl_divergence<P: Divergence<Q>, Q>(p: &P, q: &Q) -> Result<ShardTensor> {
    let _call = Calling::of("kl_divergence");
    p.kl_divergence(q)
}
