//! Operands as rows of one head's elements, and the loops over a row.

use crate::attention::{Exp, Stored};
use crate::view::for_each_row;
use crate::{Real, View, ViewMut};

/// Elements of a row that are multiplied together.
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

    /// The number of a key's row among all rows.
    pub(super) fn key(&self, batch: usize, site: usize, head: usize) -> usize {
        (batch * self.keys + site) * self.kv_heads + self.kv_head(head)
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

#[inline(always)]
fn fma<A: Real, const FMA: bool>(a: A, b: A, c: A) -> A {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The sum of products of two rows.
#[inline(always)]
pub(super) fn dot<A: Real, const FMA: bool>(a: &[A], b: &[A]) -> A {
    let mut lanes = [A::zero(); LANES];
    let (whole_a, tail_a) = pulp::as_arrays::<LANES, A>(a);
    let (whole_b, tail_b) = pulp::as_arrays::<LANES, A>(b);
    for (x, y) in whole_a.iter().zip(whole_b) {
        for i in 0..LANES {
            lanes[i] = fma::<A, FMA>(x[i], y[i], lanes[i]);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(tail_a).zip(tail_b) {
        *lane = fma::<A, FMA>(*x, *y, *lane);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `to += factor * row`
#[inline(always)]
pub(super) fn add_scaled<A: Real, const FMA: bool>(to: &mut [A], factor: A, row: &[A]) {
    for (t, x) in to.iter_mut().zip(row) {
        *t = fma::<A, FMA>(factor, *x, *t);
    }
}

/// `to = factor * row`
#[inline(always)]
pub(super) fn scaled<A: Real>(to: &mut [A], factor: A, row: &[A]) {
    for (t, x) in to.iter_mut().zip(row) {
        *t = factor * *x;
    }
}

/// Turns logits into exponentials relative to the largest, and returns that largest logit and the sum of the exponentials.
/// Where there is nothing above -inf the sum is 0, or NaN if a logit is NaN.
#[inline(always)]
pub(super) fn exponentials<A: Exp, const FMA: bool>(logits: &mut [A]) -> (A, A) {
    let mut max = A::neg_infinity();
    let mut unordered = false;
    for &x in logits.iter() {
        unordered |= x.is_nan();
        if x > max {
            max = x;
        }
    }
    if max == A::neg_infinity() {
        logits.fill(A::zero());
        return (max, if unordered { A::nan() } else { A::zero() });
    }
    let mut sum = A::zero();
    for x in logits.iter_mut() {
        *x = A::exp_fast::<FMA>(*x - max);
    }
    for x in logits.iter() {
        sum += *x;
    }
    (max, sum)
}
