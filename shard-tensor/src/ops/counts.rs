//! How often values occur: each once, and how many in which interval.

use crate::{Dim, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::{Value, histogram, indexing, unique};
use std::ops::Range;

/// The different elements of a tensor, or what it has at the indices of a dim, and how often each occurs.
#[derive(Clone, Debug)]
pub struct Unique {
    /// Each once, `[found]`; of a dim, in the shape of the tensor, `found` for its extent.
    pub values: ShardTensor,
    /// For every element the index of its value, `i64`, in the shape of the tensor; of a dim, for every index of it.
    pub inverse: ShardTensor,
    /// How many elements, or indices, have each value, `[found]`, `i64`.
    pub counts: ShardTensor,
}

/// The intervals that [`ShardTensor::histogram`] counts in: a number of them, of equal width from the least element to the largest; a
/// number and the ends; or a tensor of their ascending edges.
#[derive(Clone, Debug)]
pub enum Bins<'a> {
    /// So many of equal width, from the least element to the largest, or from end to end.
    Count(usize, Option<Range<f64>>),
    /// Between these, of which there is one more.
    Edges(&'a ShardTensor),
}

impl From<usize> for Bins<'_> {
    fn from(count: usize) -> Self {
        Self::Count(count, None)
    }
}

impl From<(usize, Range<f64>)> for Bins<'_> {
    fn from((count, ends): (usize, Range<f64>)) -> Self {
        Self::Count(count, Some(ends))
    }
}

impl<'a> From<&'a ShardTensor> for Bins<'a> {
    fn from(edges: &'a ShardTensor) -> Self {
        Self::Edges(edges)
    }
}

/// Bins as the ops take them.
enum BinsOfValue {
    Count(usize, Option<(f64, f64)>),
    Edges(Value),
}

impl From<Bins<'_>> for BinsOfValue {
    fn from(bins: Bins<'_>) -> Self {
        match bins {
            Bins::Count(count, ends) => Self::Count(count, ends.map(|ends| (ends.start, ends.end))),
            Bins::Edges(edges) => Self::Edges(edges.value()),
        }
    }
}

impl BinsOfValue {
    fn view(&self) -> histogram::Bins<'_> {
        match self {
            Self::Count(count, ends) => histogram::Bins::Count(*count, *ends),
            Self::Edges(edges) => histogram::Bins::Edges(edges),
        }
    }
}

/// How often values occur. No derivative passes, but for that of weights.
impl ShardTensor {
    /// The different elements, ascending. NaN differs from itself.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.distribute(&array![3_i64, -1, 3, 7, 3], [shard(0)])?;
    ///     x.unique()?.to_array::<i64>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[-1, 3, 7][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program: a [`sort`](Self::sort), one element from the part before, and a round of a number per rank.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn unique(&self) -> Result<Self> {
        let _call = Calling::of("unique");
        self.run(unique::unique)
    }

    /// [`unique`](Self::unique), with which of them each element is, and how many are each.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(3, |ctx| {
    ///     let x = ctx.mesh_of(3)?.distribute(&array![3_i64, -1, 3, 7, 3], [shard(0)])?;
    ///     let found = x.unique_all()?;
    ///     Ok((found.inverse.to_array::<i64>()?, found.counts.to_array::<i64>()?))
    /// })?;
    /// assert_eq!(found[0].0.as_slice(), Some(&[1, 0, 1, 2, 1][..]));
    /// assert_eq!(found[0].1.as_slice(), Some(&[1, 3, 1][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`unique`](Self::unique), and twice [`bincount_within`](Self::bincount_within).
    ///
    /// # Errors
    /// As [`unique`](Self::unique).
    #[track_caller]
    pub fn unique_all(&self) -> Result<Unique> {
        let _call = Calling::of("unique_all");
        self.found(unique::unique_all)
    }

    /// The elements, in row-major order, without those that equal the one before; which of them each element is, and how many are each.
    ///
    /// # Collective
    /// As [`unique_all`](Self::unique_all), without sorting.
    ///
    /// # Errors
    /// As [`unique`](Self::unique).
    #[track_caller]
    pub fn unique_consecutive(&self) -> Result<Unique> {
        let _call = Calling::of("unique_consecutive");
        self.found(unique::unique_consecutive)
    }

    /// What the tensor has at the indices of a dim (of dim 0 its rows), each once; which of them each index has, and how many have each.
    /// They are ascending: of two that differ, the first place where they do, in row-major order, decides. NaN differs from itself.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(3, |ctx| {
    ///     let edges = array![[3_i64, 1], [0, 2], [3, 1], [0, 1]];
    ///     let found = ctx.mesh_of(3)?.distribute(&edges, [shard(0)])?.unique_dim(0)?;
    ///     let [inverse, counts] = [found.inverse, found.counts].map(|of| of.to_array::<i64>());
    ///     Ok((found.values.to_array::<i64>()?, inverse?, counts?))
    /// })?;
    /// let (values, inverse, counts) = &found[0];
    /// assert_eq!(values.as_slice(), Some(&[0, 1, 0, 2, 3, 1][..]));
    /// assert_eq!(inverse.as_slice(), Some(&[2, 1, 2, 0][..]));
    /// assert_eq!(counts.as_slice(), Some(&[1, 1, 2][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program: for every place beside the dim a [`sort`](Self::sort) of as many elements as the dim has, and an
    /// [`index_select`](Self::index_select); then as [`unique_all`](Self::unique_all). So it is meant for few places, such as the ends of
    /// edges.
    ///
    /// # Errors
    /// For a dim out of range, and where there are no places beside the dim; what the communicator reports.
    #[track_caller]
    pub fn unique_dim(&self, dim: impl Into<Dim>) -> Result<Unique> {
        let _call = Calling::of("unique_dim");
        let dim = self.dim("unique_dim", dim)?;
        self.found(|exec, x| unique::unique_dim(exec, x, dim))
    }

    /// What the tensor has at the indices of a dim, in their order, without what equals that at the index before.
    ///
    /// # Collective
    /// All ranks of the program: one index from the part before, a round of a number per rank, and an
    /// [`index_select`](Self::index_select).
    ///
    /// # Errors
    /// As [`unique_dim`](Self::unique_dim).
    #[track_caller]
    pub fn unique_consecutive_dim(&self, dim: impl Into<Dim>) -> Result<Unique> {
        let _call = Calling::of("unique_consecutive_dim");
        let dim = self.dim("unique_consecutive_dim", dim)?;
        self.found(|exec, x| unique::unique_consecutive_dim(exec, x, dim))
    }

    /// How often each number from 0 to the largest of these elements is among them, and to at least `minlength` numbers; or the sum of the
    /// `weights` of its elements, of integers as `i64`.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.distribute(&array![3_i64, 0, 3, 3, 1], [shard(0)])?;
    ///     Ok((x.bincount(None, 0)?.to_array::<i64>()?, x.bincount(None, 6)?.to_array::<i64>()?))
    /// })?;
    /// assert_eq!(found[0].0.as_slice(), Some(&[1, 1, 0, 3][..]));
    /// assert_eq!(found[0].1.as_slice(), Some(&[1, 1, 0, 3, 0, 0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program: a reduction finds the largest. Then as [`bincount_within`](Self::bincount_within).
    ///
    /// # Errors
    /// As [`bincount_within`](Self::bincount_within).
    #[track_caller]
    pub fn bincount(&self, weights: Option<&Self>, minlength: usize) -> Result<Self> {
        let _call = Calling::of("bincount");
        let weights = weights.map(Self::value);
        self.run(|exec, x| indexing::bincount(exec, x, weights.as_ref(), minlength))
    }

    /// How often each number from 0 to below `bins` is among these elements, or the sum of the `weights` of its elements, of integers as
    /// `i64`.
    ///
    /// # Collective
    /// As [`segment_sum`](Self::segment_sum).
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum); for numbers out of range, negative ones too.
    #[track_caller]
    pub fn bincount_within(&self, weights: Option<&Self>, bins: usize) -> Result<Self> {
        let _call = Calling::of("bincount_within");
        let weights = weights.map(Self::value);
        self.run(|exec, x| indexing::bincount_within(exec, x, weights.as_ref(), bins))
    }

    /// How many elements lie in each of the bins, or the sums of their `weights`, in this type; and the edges of the bins. A bin has its lower
    /// edge, and the last both; elements outside of all, and NaN, are not counted. Without ends and elements bins go from 0 to 1. With `density`
    /// the integral over all bins is 1.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![0.0_f32, 1.0, 1.5, 4.0, 9.0], [shard(0)])?;
    ///     let (even, edges) = x.histogram((2, 0.0..4.0), None, false)?;
    ///     assert_eq!(edges.to_array::<f32>()?.as_slice(), Some(&[0.0, 2.0, 4.0][..]));
    ///     let edges = mesh.distribute(&array![0.0_f32, 1.0, 10.0], [shard(0)])?;
    ///     let (uneven, _) = x.histogram(&edges, None, false)?;
    ///     Ok((even.to_array::<f32>()?, uneven.to_array::<f32>()?))
    /// })?;
    /// assert_eq!(found[0].0.as_slice(), Some(&[3.0, 1.0][..]));
    /// assert_eq!(found[0].1.as_slice(), Some(&[1.0, 4.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`bincount_within`](Self::bincount_within); without ends all ranks of the program, and two reductions of a number.
    ///
    /// # Errors
    /// For elements that are no floats, weights of another shape or type, no bins, and ends that are not finite or not ascending, given or
    /// found; what the communicator reports.
    #[track_caller]
    pub fn histogram<'a>(
        &self,
        bins: impl Into<Bins<'a>>,
        weights: Option<&Self>,
        density: bool,
    ) -> Result<(Self, Self)> {
        let _call = Calling::of("histogram");
        let (x, weights, exec) = (
            self.value(),
            weights.map(Self::value),
            self.context().tape(),
        );
        let bins = BinsOfValue::from(bins.into());
        let (counts, edges) =
            histogram::histogram(exec, &x, bins.view(), weights.as_ref(), density)?;
        Ok((self.lift(counts), self.lift(edges)))
    }

    /// How many of these points, `[.., coordinates]`, lie in each of the boxes that the bins of their coordinates make, `[bins, ..]`, or the
    /// sums of their `weights`, `[..]`; and the edges of each coordinate's bins. Otherwise as [`histogram`](Self::histogram).
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let points = array![[0.0_f32, 1.0], [0.2, 3.0], [0.9, 3.5], [0.1, 0.0]];
    ///     let points = ctx.mesh_of(2)?.distribute(&points, [shard(0)])?;
    ///     let bins = [(2, 0.0..1.0).into(), (2, 0.0..4.0).into()];
    ///     let (counts, edges) = points.histogramdd(&bins, None, false)?;
    ///     assert_eq!(edges[1].to_array::<f32>()?.as_slice(), Some(&[0.0, 2.0, 4.0][..]));
    ///     counts.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].shape(), [2, 2]);
    /// assert_eq!(found[0].as_slice(), Some(&[2.0, 1.0, 0.0, 1.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`histogram`](Self::histogram), with two reductions for each coordinate whose ends are not given.
    ///
    /// # Errors
    /// As [`histogram`](Self::histogram); for not as many bins as coordinates.
    #[track_caller]
    pub fn histogramdd(
        &self,
        bins: &[Bins<'_>],
        weights: Option<&Self>,
        density: bool,
    ) -> Result<(Self, Vec<Self>)> {
        let _call = Calling::of("histogramdd");
        let (x, weights, exec) = (
            self.value(),
            weights.map(Self::value),
            self.context().tape(),
        );
        let bins: Vec<_> = bins.iter().cloned().map(BinsOfValue::from).collect();
        let bins: Vec<_> = bins.iter().map(BinsOfValue::view).collect();
        let (counts, edges) = histogram::histogramdd(exec, &x, &bins, weights.as_ref(), density)?;
        let edges = edges.into_iter().map(|of| self.lift(of));
        Ok((self.lift(counts), edges.collect()))
    }

    /// How many elements lie in each of `bins` intervals of equal width between two ends, in this type. A range whose ends are equal stands for
    /// that from the least to the largest element.
    ///
    /// # Collective
    /// As [`histogram`](Self::histogram).
    ///
    /// # Errors
    /// As [`histogram`](Self::histogram).
    #[track_caller]
    pub fn histc(&self, bins: usize, ends: Range<f64>) -> Result<Self> {
        let _call = Calling::of("histc");
        self.run(|exec, x| histogram::histc(exec, x, bins, (ends.start, ends.end)))
    }

    #[track_caller]
    fn found(
        &self,
        f: impl FnOnce(&dyn shard_ops::Exec, &shard_ops::Value) -> shard_ops::Result<unique::Unique>,
    ) -> Result<Unique> {
        let _call = Calling::here();
        let found = f(self.context().tape(), &self.value())?;
        Ok(Unique {
            values: self.lift(found.values),
            inverse: self.lift(found.inverse),
            counts: self.lift(found.counts),
        })
    }
}
