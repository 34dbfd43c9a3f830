//! Ops that fold blocks of a sharded dim: attention and neighbour search.

use crate::{Result, ShardTensor};
use shard_ops::attention::{self, Attention};
use shard_ops::{RingUse, neighbors};

/// Attention and neighbour search. Where keys or points are sharded, their blocks go round a ring while the one before is
/// computed, or are gathered if that is small.
impl ShardTensor {
    /// Scaled dot product attention of these queries `[batch, heads, queries, dim]` to keys
    /// `[batch, kv heads, keys, dim]` with values `[batch, kv heads, keys, value dim]`, as
    /// [`attention`](fn@shard_ops::attention::attention).
    ///
    /// A bool mask says which keys count, one of the tensor's type is added to the logits; both are broadcast. Queries
    /// that see no key get zeros. For dropout give the options a stream of their own:
    /// `options.dropout(0.1, ctx.next_stream())`.
    ///
    /// ```
    /// use shard_tensor::{Attention, Causal, launch, shard};
    /// let causal = Attention::default().causal(Causal::TopLeft);
    /// let on = |ranks: usize| launch(ranks, |ctx| {
    ///     // Under a causal mask, zigzag shards give every rank the same work.
    ///     let tokens = ctx.mesh_of(ranks)?.randn([1, 2, 12, 4], [shard(2).zigzag()])?;
    ///     tokens.attention(&tokens, &tokens, None, &causal)?.to_array::<f32>()
    /// });
    /// let (one, three) = (on(1)?, on(3)?);
    /// assert!(one[0].iter().zip(&three[0]).all(|(a, b)| (a - b).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes or types do not fit; what the communicator reports.
    pub fn attention(
        &self,
        keys: &Self,
        values: &Self,
        mask: Option<&Self>,
        options: &Attention,
    ) -> Result<Self> {
        let (values, mask) = (values.value(), mask.map(Self::value));
        self.run2(keys, |exec, q, k| {
            attention::attention(exec, q, k, &values, mask.as_ref(), options)
        })
    }

    /// For each of these queries `[queries, dim]` the `k` nearest of `points` `[points, dim]`: Euclidean distances
    /// `[queries, k]`, ascending, and indices. Equal distances go to the lower index, so that the result is a single
    /// device's, bit for bit.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let points = mesh.from_fn([7, 1], [shard(0).sizes([5, 2])], |i| i[0] as f64)?;
    ///     let (distances, indices) = points.nearest(&points, 2)?;
    ///     Ok((distances.to_array::<f32>()?, indices.to_array::<i64>()?))
    /// })?;
    /// // Point 4 is nearest to itself; 3 and 5 are equally far.
    /// assert_eq!((found[0].0[[4, 1]], found[0].1[[4, 1]]), (1.0, 3));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes or types do not fit, or `k` is above the number of points; what the communicator reports.
    pub fn nearest(&self, points: &Self, k: usize) -> Result<(Self, Self)> {
        let mut indices = None;
        let distances = self.run2(points, |exec, queries, points| {
            let (found, at) = neighbors::nearest(exec, queries, points, k, RingUse::Auto)?;
            indices = Some(at);
            Ok(found)
        })?;
        match indices {
            Some(indices) => Ok((distances, self.lift(indices))),
            None => unreachable!("set wherever distances are returned"),
        }
    }
}
