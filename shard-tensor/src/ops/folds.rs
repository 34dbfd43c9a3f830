//! Ops that fold blocks of a sharded dim: attention and neighbour search.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::attention::{self, Attention, TokenSegments};
use shard_ops::neighbors::{self, Clouds};
use shard_ops::{Exec, FoldBy, OpError, Value};

/// Attention and neighbour search. Where keys or points are sharded, [`FoldBy`] says how their blocks
/// meet the queries; the cheapest way, if not said.
impl ShardTensor {
    /// Scaled dot product attention of these queries `[batch, heads, queries, dim]` to keys
    /// `[batch, kv heads, keys, dim]` with values `[batch, kv heads, keys, value dim]`, as
    /// [`attention`](fn@shard_ops::attention::attention).
    ///
    /// A bool mask says which keys count, one of the tensor's type is added to the logits; both are broadcast. A key whose logit is -∞,
    /// by the mask or by itself, is not seen, and queries that see no key get zeros: also where
    /// PyTorch's softmax of nothing but -∞ is NaN. For dropout give the options a stream of their own:
    /// `options.dropout(0.1, ctx.next_stream())`.
    ///
    /// ```
    /// use shard_tensor::{Attention, Causal, launch, shard};
    /// let causal = Attention::new().causal(Causal::TopLeft);
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
    /// Consecutive parts are right too, but the last rank then waits for nobody, and all wait for it: under a causal mask the later of
    /// two halves has one and a half of its share of the work, and the last of many parts twice. [`explain`](crate::Context::explain)
    /// tells.
    ///
    /// ```
    /// # use shard_tensor::{Attention, Causal, launch, shard};
    /// # let causal = Attention::new().causal(Causal::TopLeft);
    /// launch(2, |ctx| {
    ///     let tokens = ctx.mesh_of(2)?.randn([1, 2, 64, 4], [shard(2)])?;
    ///     let (_, why) = ctx.explain(|| tokens.attention(&tokens, &tokens, None, &causal))?;
    ///     assert!(why.to_string().contains("the busiest rank see 1.49 times"), "{why}");
    ///     assert!(why.to_string().contains("zigzag"), "{why}");
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Nothing moves where keys are not sharded; else as [`FoldBy`](crate::FoldBy) says.
    ///
    /// # Errors
    /// If shapes or types do not fit; what the communicator reports.
    #[track_caller]
    pub fn attention(
        &self,
        keys: &Self,
        values: &Self,
        mask: Option<&Self>,
        options: &Attention,
    ) -> Result<Self> {
        let _call = Calling::of("attention");
        let (values, mask) = (values.value(), mask.map(Self::value));
        self.run2(keys, |exec, q, k| {
            attention::attention(exec, q, k, &values, mask.as_ref(), options)
        })
    }

    /// [Attention](Self::attention) in which a query sees the keys of its own segment alone, as those of its own document where several are
    /// packed one after the other, of its own cloud of points, or of the window that it is in. `segments` are the numbers of the queries'
    /// and of the keys' segments, `[tokens]` or `[batch, tokens]`: any integers, in any order. Of packed documents the result of each is
    /// as by itself, also under a causal mask and windows, where they are aligned as in [`Causal::TopLeft`](crate::Causal::TopLeft).
    /// Memory is what attention takes: no matrix of queries by keys is made. Where segments stand one after the other, what they do not
    /// see is not computed on the host; on GPUs it is computed, and hidden.
    ///
    /// ```
    /// use shard_tensor::ndarray::array;
    /// use shard_tensor::{Attention, Causal, launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let tokens = mesh.randn([1, 2, 7, 4], shard(2))?; // a document of three tokens, and one of four
    ///     let of = mesh.distribute(&array![0_i64, 0, 0, 1, 1, 1, 1], shard(0))?;
    ///     let causal = Attention::new().causal(Causal::TopLeft);
    ///     let packed = tokens.attention_by_segment(&tokens, &tokens, [&of, &of], None, &causal)?;
    ///     let second = tokens.narrow(2, 3..)?;
    ///     let alone = second.attention(&second, &second, None, &causal)?;
    ///     assert!(packed.narrow(2, 3..)?.allclose(&alone, 1e-5, 1e-6, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`attention`](Self::attention), with eight bytes more for each key that moves.
    ///
    /// # Errors
    /// As [`attention`](Self::attention), and for numbers that are not one integer for each query and each key.
    #[track_caller]
    pub fn attention_by_segment(
        &self,
        keys: &Self,
        values: &Self,
        [of_queries, of_keys]: [&Self; 2],
        mask: Option<&Self>,
        options: &Attention,
    ) -> Result<Self> {
        let _call = Calling::of("attention_by_segment");
        let (values, mask) = (values.value(), mask.map(Self::value));
        let (of_queries, of_keys) = (of_queries.value(), of_keys.value());
        self.run2(keys, |exec, q, k| {
            let segments = TokenSegments {
                queries: &of_queries,
                keys: &of_keys,
            };
            attention::attention_by_segment(exec, [q, k, &values], segments, mask.as_ref(), options)
        })
    }

    /// The probabilities `[batch, heads, queries, keys]` by which [`attention`](Self::attention) of these queries to such keys weighs values,
    /// before any are dropped: for looking at, as a matrix that attention itself never stores. Queries that see no key have zeros.
    ///
    /// ```
    /// use shard_tensor::{Attention, Causal, launch, shard};
    /// launch(2, |ctx| {
    ///     let tokens = ctx.mesh_of(2)?.randn([1, 2, 6, 4], shard(2).sizes([4, 2]))?;
    ///     let causal = Attention::new().causal(Causal::TopLeft);
    ///     let weights = tokens.attention_weights(&tokens, None, &causal)?;
    ///     assert_eq!((weights.shape(), weights.layout().to_string().as_str()), (&[1, 2, 6, 6][..], "S(2)[4,2]"));
    ///     // They are what attention multiplies values by.
    ///     let found = weights.matmul(&tokens)?;
    ///     assert!(found.allclose(&tokens.attention(&tokens, &tokens, None, &causal)?, 1e-4, 1e-5, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. As [`matmul`](Self::matmul) of queries and keys, and [`softmax`](Self::softmax).
    ///
    /// # Errors
    /// As [`attention`](Self::attention).
    #[track_caller]
    pub fn attention_weights(
        &self,
        keys: &Self,
        mask: Option<&Self>,
        options: &Attention,
    ) -> Result<Self> {
        let _call = Calling::of("attention_weights");
        let mask = mask.map(Self::value);
        self.run2(keys, |exec, q, k| {
            attention::attention_weights(exec, q, k, mask.as_ref(), options)
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
    /// # Collective
    /// All members of the mesh. Nothing moves where points are not sharded; else as [`FoldBy`](crate::FoldBy) says.
    ///
    /// # Errors
    /// If shapes or types do not fit, or `k` is above the number of points; what the communicator reports.
    #[track_caller]
    pub fn nearest(&self, points: &Self, k: usize) -> Result<(Self, Self)> {
        let _call = Calling::of("nearest");
        self.nearest_by(points, k, FoldBy::Auto)
    }

    /// [`nearest`](Self::nearest), saying how blocks of points meet the queries; the result is the same.
    ///
    /// # Collective
    /// As [`nearest`](Self::nearest).
    ///
    /// # Errors
    /// As [`nearest`](Self::nearest).
    #[track_caller]
    pub fn nearest_by(&self, points: &Self, k: usize, ring: FoldBy) -> Result<(Self, Self)> {
        let _call = Calling::of("nearest_by");
        let exec = self.context().tape();
        let (distances, indices) =
            neighbors::nearest(exec, &self.value(), &points.value(), k, ring)?;
        Ok((self.lift(distances), self.lift(indices)))
    }

    /// [`nearest`](Self::nearest) in each of several clouds by itself, as a batch of them has it: the nearest `k` points of each query's own
    /// cloud. `clouds` says of which cloud each query and each point is: two lists of `i64` or `i32`, in any order. Where a cloud has fewer
    /// points, rows end with infinite distances and indices of -1. Clouds of one size, `[clouds, points, dim]`, are reshaped to
    /// `[clouds * points, dim]`.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let points = mesh.from_fn([5, 1], [shard(0)], |i| i[0] as f64)?;
    ///     let cloud = mesh.distribute(&array![0_i64, 0, 0, 1, 1], [shard(0)])?;
    ///     let (_, indices) = points.nearest_by_cloud(&points, 3, [&cloud, &cloud])?;
    ///     indices.to_array::<i64>()
    /// })?;
    /// let expected = array![[0, 1, 2], [1, 0, 2], [2, 1, 0], [3, 4, -1], [4, 3, -1]];
    /// assert_eq!(found[0], expected.into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`nearest`](Self::nearest). Which clouds a rank has is up to the numbers, which no layout tells, so ranks receive points whatever
    /// clouds they are of, with eight bytes more for each. Where every cloud is on one rank with its queries,
    /// [`map_local`](crate::Context::map_local) searches the ranks' pieces and nothing is sent; indices then count from the first point of
    /// the rank.
    ///
    /// # Errors
    /// If shapes or types do not fit; what the communicator reports.
    #[track_caller]
    pub fn nearest_by_cloud(
        &self,
        points: &Self,
        k: usize,
        clouds: [&Self; 2],
    ) -> Result<(Self, Self)> {
        let _call = Calling::of("nearest_by_cloud");
        let (distances, indices) = self.in_clouds(points, clouds, |exec, x, y, clouds| {
            neighbors::nearest_by_cloud(exec, x, y, clouds, k, FoldBy::Auto)
        })?;
        Ok((self.lift(distances), self.lift(indices)))
    }

    /// All of `points` `[points, dim]` at most `radius` away from each of these queries `[queries, dim]`, as pairs in the order of
    /// (query, point): a single device's, under any layout. How many there are is up to the data; each rank holds those of its
    /// queries.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let points = mesh.from_fn([7, 1], [shard(0).sizes([5, 2])], |i| i[0] as f64)?;
    ///     let near = points.radius_search(&points, 1.0)?;
    ///     Ok((near.pairs.to_array::<i64>()?, near.counts.to_array::<i64>()?))
    /// })?;
    /// // Everyone is near itself and its two neighbours, but for the ends.
    /// assert_eq!((found[0].0.shape(), found[0].1[[0]]), (&[19, 2][..], 2));
    /// assert_eq!((found[0].0[[18, 0]], found[0].0[[18, 1]]), (6, 6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program; see [`radius_search`](fn@shard_ops::neighbors::radius_search).
    ///
    /// # Errors
    /// If shapes or types do not fit, or the radius is negative or not a number; what the communicator reports.
    #[track_caller]
    pub fn radius_search(&self, points: &Self, radius: f64) -> Result<RadiusPairs> {
        let _call = Calling::of("radius_search");
        let exec = self.context().tape();
        let (queries, points) = (self.value(), points.value());
        let found = neighbors::radius_search(exec, &queries, &points, radius, FoldBy::Auto)?;
        Ok(self.pairs(found))
    }

    /// [`radius_search`](Self::radius_search) in each of several clouds by itself. `clouds` says of which cloud each query and each point
    /// is, as for [`nearest_by_cloud`](Self::nearest_by_cloud).
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let points = mesh.from_fn([5, 1], [shard(0)], |i| i[0] as f64)?;
    ///     let cloud = mesh.distribute(&array![0_i64, 0, 0, 1, 1], [shard(0)])?;
    ///     points.radius_search_by_cloud(&points, 1.0, [&cloud, &cloud])?.counts.to_array::<i64>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[2, 3, 2, 2, 2][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`radius_search`](Self::radius_search), and of points as [`nearest_by_cloud`](Self::nearest_by_cloud).
    ///
    /// # Errors
    /// As [`radius_search`](Self::radius_search).
    #[track_caller]
    pub fn radius_search_by_cloud(
        &self,
        points: &Self,
        radius: f64,
        clouds: [&Self; 2],
    ) -> Result<RadiusPairs> {
        let _call = Calling::of("radius_search_by_cloud");
        let found = self.in_clouds(points, clouds, |exec, x, y, clouds| {
            neighbors::radius_search_by_cloud(exec, x, y, clouds, radius, FoldBy::Auto)
        })?;
        Ok(self.pairs(found))
    }

    /// The nearest `cap` of the `points` `[points, dim]` at most `radius` away from each of these queries `[queries, dim]`,
    /// nearest first, equal distances by index: tables `[queries, cap]`, which are that large however few points there are.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let points = ctx.mesh_of(2)?.from_fn([4, 1], [shard(0)], |i| i[0] as f64)?;
    ///     points
    ///         .radius_search_capped(&points, 1.0, 3)?
    ///         .indices
    ///         .to_array::<i64>()
    /// })?;
    /// assert_eq!(found[0], ndarray::array![[0, 1, -1], [1, 0, 2], [2, 1, 3], [3, 2, -1]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// A query with fewer points has indices of -1 behind them, which [`index_select`](Self::index_select) takes as the last row. What is
    /// read there has to be masked:
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let sums = launch(2, |ctx| {
    ///     let points = ctx.mesh_of(2)?.from_fn([4, 1], [shard(0)], |i| i[0] as f64)?;
    ///     let near = points.radius_search_capped(&points, 1.0, 3)?.indices;
    ///     let rows = points.index_select(0, &near.reshape([12])?)?.reshape([4, 3, 1])?;
    ///     let missing = near.lt_scalar(0.0)?.unsqueeze(-1)?;
    ///     rows.masked_fill(&missing, 0.0)?.sum(1, false)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(sums[0], ndarray::array![[1.0], [3.0], [6.0], [5.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`nearest`](Self::nearest).
    ///
    /// # Errors
    /// As [`radius_search`](Self::radius_search).
    #[track_caller]
    pub fn radius_search_capped(
        &self,
        points: &Self,
        radius: f64,
        cap: usize,
    ) -> Result<RadiusTable> {
        let _call = Calling::of("radius_search_capped");
        let exec = self.context().tape();
        let (queries, points) = (self.value(), points.value());
        let ring = FoldBy::Auto;
        let found = neighbors::radius_search_capped(exec, &queries, &points, radius, cap, ring)?;
        Ok(self.table(found))
    }

    /// [`radius_search_capped`](Self::radius_search_capped) in each of several clouds by itself. `clouds` says of which cloud each query and
    /// each point is, as for [`nearest_by_cloud`](Self::nearest_by_cloud).
    ///
    /// # Collective
    /// As [`nearest_by_cloud`](Self::nearest_by_cloud).
    ///
    /// # Errors
    /// As [`radius_search`](Self::radius_search).
    #[track_caller]
    pub fn radius_search_capped_by_cloud(
        &self,
        points: &Self,
        radius: f64,
        cap: usize,
        clouds: [&Self; 2],
    ) -> Result<RadiusTable> {
        let _call = Calling::of("radius_search_capped_by_cloud");
        let found = self.in_clouds(points, clouds, |exec, x, y, clouds| {
            let ring = FoldBy::Auto;
            neighbors::radius_search_capped_by_cloud(exec, x, y, clouds, radius, cap, ring)
        })?;
        Ok(self.table(found))
    }

    /// A search of these queries among points, each in its own cloud.
    fn in_clouds<T>(
        &self,
        points: &Self,
        clouds: [&Self; 2],
        search: impl FnOnce(&dyn Exec, &Value, &Value, Clouds<'_>) -> Result<T, OpError>,
    ) -> Result<T> {
        let [queries, points, own, others] = [self, points, clouds[0], clouds[1]].map(Self::value);
        let clouds = Clouds {
            queries: &own,
            points: &others,
        };
        Ok(search(self.context().tape(), &queries, &points, clouds)?)
    }

    fn pairs(&self, found: neighbors::RadiusPairs) -> RadiusPairs {
        RadiusPairs {
            pairs: self.lift(found.pairs),
            distances: self.lift(found.distances),
            counts: self.lift(found.counts),
        }
    }

    fn table(&self, found: neighbors::RadiusTable) -> RadiusTable {
        RadiusTable {
            distances: self.lift(found.distances),
            indices: self.lift(found.indices),
            counts: self.lift(found.counts),
        }
    }
}

/// Sampling.
impl ShardTensor {
    /// The indices of `count` of these points `[points, dim]` that are far from each other: first `start`, then again and again
    /// the point farthest from all taken so far, of equally far ones the one of lowest index. The same under any layout, and replicated.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let points = ctx.mesh_of(2)?.from_fn([5, 1], [shard(0).sizes([4, 1])], |i| i[0] as f64)?;
    ///     points.farthest_points(3, 1)?.to_array::<i64>()
    /// })?;
    /// // From 1, point 4 is farthest; then 0 and 2 are equally far, and 3.
    /// assert_eq!(found[0], ndarray::array![1, 4, 0].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh; see [`farthest_points`](fn@shard_ops::neighbors::farthest_points).
    ///
    /// # Errors
    /// If this is no table of points, the start is none of them (of no samples it is not looked at), or there are fewer than `count`; what the
    /// communicator reports.
    #[track_caller]
    pub fn farthest_points(&self, count: usize, start: usize) -> Result<Self> {
        let _call = Calling::of("farthest_points");
        self.run(|exec, points| {
            neighbors::farthest_points(exec, points, count, start, FoldBy::Auto)
        })
    }

    /// [`farthest_points`](Self::farthest_points) of each of so many clouds by itself, `[clouds, count]`, beginning with its first point that is finite: point
    /// `i` is of cloud `ids[i]`, ids as those of [`segment_sum`](Self::segment_sum). Where a cloud has fewer points than `count`, its samples
    /// end with -1.
    ///
    /// A share of each cloud, PyTorch Geometric's `ratio`, are the first so many of each row:
    ///
    /// ```
    /// use shard_tensor::{DType, launch, ndarray::array, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let points = mesh.from_fn([6, 1], [shard(0)], |i| i[0] as f64)?;
    ///     let ids = mesh.distribute(&array![0_i64, 0, 0, 0, 2, 2], [shard(0)])?;
    ///     let far = points.farthest_points_by_cloud(&ids, 3, 3)?;
    ///     let half = ids.bincount(None, 3)?.to(DType::F32)?.mul_scalar(0.5)?.ceil()?;
    ///     let place = mesh.arange(3, replicate())?;
    ///     let halves = far.masked_select(&place.unsqueeze(0)?.lt(&half.unsqueeze(1)?)?)?;
    ///     Ok((far.to_array::<i64>()?, halves.to_array::<i64>()?))
    /// })?;
    /// assert_eq!(found[0].0, array![[0, 3, 1], [-1, -1, -1], [4, 5, -1]].into_dyn());
    /// assert_eq!(found[0].1.as_slice(), Some(&[0, 3, 4][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`farthest_points`](Self::farthest_points), with numbers for each cloud: where points stay, each rank receives them for all
    /// clouds, those it has no points of too.
    ///
    /// # Errors
    /// As [`farthest_points`](Self::farthest_points); for ids that are not one for each point; on all ranks, for an id out of range on any.
    #[track_caller]
    pub fn farthest_points_by_cloud(
        &self,
        ids: &Self,
        clouds: usize,
        count: usize,
    ) -> Result<Self> {
        let _call = Calling::of("farthest_points_by_cloud");
        self.run2(ids, |exec, points, ids| {
            neighbors::farthest_points_by_cloud(exec, points, ids, clouds, count, FoldBy::Auto)
        })
    }
}

/// Pairs of a query and a point near it.
#[derive(Clone, Debug)]
pub struct RadiusPairs {
    /// Query and point of each pair, `[pairs, 2]`, `i64`, ascending.
    pub pairs: ShardTensor,
    /// Their Euclidean distances, `[pairs]`: what can be differentiated. That of a point to itself has gradient zero.
    pub distances: ShardTensor,
    /// How many pairs each query has, `[queries]`, `i64`.
    pub counts: ShardTensor,
}

/// A bounded number of points near each query.
#[derive(Clone, Debug)]
pub struct RadiusTable {
    /// Euclidean distances `[queries, cap]`, ascending; infinite where there is no further point.
    pub distances: ShardTensor,
    /// Indices of the points, `[queries, cap]`, `i64`; -1 where there is none.
    pub indices: ShardTensor,
    /// How many entries of each row are points, `[queries]`, `i64`.
    pub counts: ShardTensor,
}
