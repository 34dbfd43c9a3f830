//! Operands as rows of one head's elements, and the loops over a row.

use crate::attention::Stored;
use crate::reduce::halve;
use crate::view::for_each_row;
use crate::{Real, View, ViewMut};
use pulp::Simd;

/// Logits in a group, whose exponentials are taken together.
const LANES: usize = 16;

/// The extents of a problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) dim: usize,
    pub(super) value_dim: usize,
}

impl Extents {
    /// The extents given by shapes that begin with the batch and end with heads and dim.
    ///
    /// # Panics
    /// When they contradict each other.
    pub(super) fn new([q, k, v]: [&[usize]; 3], queries: usize, keys: usize) -> Self {
        let ends = |shape: &[usize]| match shape {
            [batch, spatial @ .., heads, dim] => [*batch, spatial.iter().product(), *heads, *dim],
            _ => panic!("neighbourhood attention: an operand of shape {shape:?}"),
        };
        let ([b, nq, heads, dim], [bk, nk, kv_heads, dk], [bv, nv, hv, value_dim]) =
            (ends(q), ends(k), ends(v));
        let groups = heads == kv_heads || (kv_heads > 0 && heads.is_multiple_of(kv_heads));
        let fits = [bk, nk, dk, bv, nv, hv] == [b, keys, dim, b, keys, kv_heads] && nq == queries;
        assert!(
            fits && groups,
            "neighbourhood attention: queries, keys and values of shapes {q:?}, {k:?} and {v:?} for {queries} and {keys} sites"
        );
        Self {
            batch: b,
            queries,
            keys,
            heads,
            kv_heads,
            dim,
            value_dim,
        }
    }

    /// The kv head that a head reads.
    pub(super) fn kv_head(&self, head: usize) -> usize {
        head * self.kv_heads / self.heads
    }

    /// The number of a query's row among all rows.
    pub(super) fn query(&self, batch: usize, site: usize, head: usize) -> usize {
        (batch * self.queries + site) * self.heads + head
    }

    /// The numbers of the rows of some sites that a head reads, among all rows of keys.
    #[inline(always)]
    pub(super) fn keys<'s>(
        &self,
        batch: usize,
        head: usize,
        sites: &'s [usize],
    ) -> impl Iterator<Item = usize> + Clone + use<'s> {
        let first = batch * self.keys * self.kv_heads + self.kv_head(head);
        let heads = self.kv_heads;
        sites.iter().map(move |site| first + site * heads)
    }
}

/// All elements in row-major order, in the type they are computed in; in place where they are stored so.
pub(super) fn rows<'b, E: Stored>(view: &View<'b, E>, buffer: &'b mut Vec<E::Acc>) -> &'b [E::Acc] {
    if let Some(slice) = view.as_slice().and_then(E::as_acc) {
        return slice;
    }
    let elements = view.to_vec();
    buffer.resize(elements.len(), <E::Acc as num_traits::Zero>::zero());
    E::widen_slice(&elements, buffer);
    buffer
}

/// Writes elements in row-major order, rounded to the view's type.
pub(super) fn write<E: Stored>(to: &mut ViewMut<'_, E>, from: &[E::Acc]) {
    let (shape, strides, offset) = to.geometry();
    let data = to.data_mut();
    let own = crate::view::row_major(&shape);
    for_each_row(
        &shape,
        [&strides[..], &own[..]],
        [offset, 0],
        |[at, source], n, [step, source_step]| {
            for i in 0..n as isize {
                let x = from[source.wrapping_add_signed(i * source_step)];
                data[at.wrapping_add_signed(i * step)] = E::narrow(x);
            }
        },
    );
}

/// `n` rounded up to whole groups of logits.
pub(super) fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// The sum of products of two rows.
#[inline(always)]
pub(super) fn dot<A: Real, S: Simd>(simd: S, a: &[A], b: &[A]) -> A {
    let (x, y) = (A::vectors::<S>(a), A::vectors::<S>(b));
    let mut sums = A::splat(simd, A::zero());
    for (x, y) in x.iter().zip(y) {
        sums = A::mul_add_vec(simd, *x, *y, sums);
    }
    let mut sum = A::sum_vec(simd, sums);
    for i in x.len() * A::lanes::<S>()..a.len() {
        sum += a[i] * b[i];
    }
    sum
}

/// `to += factor * row`
#[inline(always)]
pub(super) fn add_scaled<A: Real, S: Simd>(simd: S, to: &mut [A], factor: A, row: &[A]) {
    let done = to.len() / A::lanes::<S>() * A::lanes::<S>();
    let by = A::splat(simd, factor);
    let whole = A::vectors_mut::<S>(to);
    for (t, x) in whole.iter_mut().zip(A::vectors::<S>(row)) {
        *t = A::mul_add_vec(simd, by, *x, *t);
    }
    for (t, x) in to.iter_mut().zip(row).skip(done) {
        *t += factor * *x;
    }
}

/// `to = factor * row`
#[inline(always)]
pub(super) fn scaled<A: Real>(to: &mut [A], factor: A, row: &[A]) {
    for (t, x) in to.iter_mut().zip(row) {
        *t = factor * *x;
    }
}

/// `to = factor Σ weight · row`, where row number `r` of `rows` is as long as `to`. Sums stay in registers.
#[inline(always)]
pub(super) fn weighted_sum<A: Real, S: Simd>(
    simd: S,
    to: &mut [A],
    factor: A,
    rows: &[A],
    weights: &(impl Iterator<Item = (A, usize)> + Clone),
) {
    let (lanes, dim) = (A::lanes::<S>(), to.len());
    let mut first = 0;
    while first + 2 * lanes <= dim {
        columns::<A, S, 2>(
            simd,
            &mut to[first..],
            factor,
            &rows[first..],
            dim,
            weights.clone(),
        );
        first += 2 * lanes;
    }
    while first + lanes <= dim {
        columns::<A, S, 1>(
            simd,
            &mut to[first..],
            factor,
            &rows[first..],
            dim,
            weights.clone(),
        );
        first += lanes;
    }
    for (i, to) in to.iter_mut().enumerate().skip(first) {
        let terms = weights
            .clone()
            .map(|(weight, row)| weight * rows[row * dim + i]);
        *to = factor * terms.fold(A::zero(), |a, b| a + b);
    }
}

/// The first `NV` vectors of a weighted sum of rows that lie `dim` apart.
#[inline(always)]
fn columns<A: Real, S: Simd, const NV: usize>(
    simd: S,
    to: &mut [A],
    factor: A,
    rows: &[A],
    dim: usize,
    weights: impl Iterator<Item = (A, usize)>,
) {
    let width = NV * A::lanes::<S>();
    let (zero, factor) = (A::splat(simd, A::zero()), A::splat(simd, factor));
    let mut sums = [zero; NV];
    for (weight, row) in weights {
        let weight = A::splat(simd, weight);
        let x = A::vectors::<S>(&rows[row * dim..][..width]);
        for j in 0..NV {
            sums[j] = A::mul_add_vec(simd, weight, x[j], sums[j]);
        }
    }
    let to = A::vectors_mut::<S>(&mut to[..width]);
    for j in 0..NV {
        to[j] = A::mul_add_vec(simd, factor, sums[j], zero);
    }
}

/// Turns logits into exponentials relative to the largest, and returns that largest logit and the sum of the exponentials.
/// Where there is nothing above -inf the sum is 0, or NaN if a logit is NaN. There are whole groups of logits, filled up
/// with -inf.
#[inline(always)]
pub(super) fn exponentials<A: Real, const FMA: bool>(logits: &mut [A]) -> (A, A) {
    let (groups, _) = pulp::as_arrays_mut::<LANES, A>(logits);
    let mut most = [A::neg_infinity(); LANES];
    for group in groups.iter() {
        for (most, x) in most.iter_mut().zip(group) {
            *most = if *x > *most { *x } else { *most };
        }
    }
    let max = halve(most, |a, b| if b > a { b } else { a });
    if max == A::neg_infinity() {
        let unordered = logits.iter().any(|x| x.is_nan());
        logits.fill(A::zero());
        return (max, if unordered { A::nan() } else { A::zero() });
    }
    let mut sums = [A::zero(); LANES];
    for group in groups {
        for (sum, x) in sums.iter_mut().zip(group) {
            *x = A::exp_fast::<FMA>(*x - max);
            *sum += *x;
        }
    }
    (max, halve(sums, |a, b| a + b))
}

/// Turns logits into `exp(logit - lse)`.
#[inline(always)]
pub(super) fn probabilities<A: Real, const FMA: bool>(logits: &mut [A], lse: A) {
    let (groups, _) = pulp::as_arrays_mut::<LANES, A>(logits);
    for x in groups.iter_mut().flatten() {
        *x = A::exp_fast::<FMA>(*x - lse);
    }
}
