//! The attention of every query to the keys of its window.

use super::near::Near;
use super::rows::{Extents, dot, exponentials, padded, rows, scaled, weighted_sum, write};
use crate::attention::Stored;
use crate::exp::fused;
use crate::pointwise::vectorized;
use crate::{Real, View, ViewMut};
use pulp::{Simd, WithSimd};

/// Writes `softmax(scale · q kᵀ) v` over the keys that each query sees, and per query and head the logarithm of the sum of
/// exponentials of its logits, `[batch, spatial..., heads]`. A query that sees no key of the box gets zeros and -inf.
///
/// ```
/// use shard_kernels::neighborhood::{Near, forward};
/// use shard_kernels::{View, ViewMut};
/// use shard_spec::Window;
/// // Equal logits: every query gets the mean of the three values nearest to it.
/// let (zeros, v) = ([0.0f64; 5], [0.0, 3.0, 6.0, 9.0, 0.0]);
/// let shape = [1, 5, 1, 1];
/// let at = |x| View::contiguous(x, &shape);
/// let near = Near::new(&[Window::neighborhood(5, 3, 1, false)?], &[0..5], &[0..5]);
/// let (mut out, mut lse) = ([0.0; 5], [0.0; 5]);
/// forward(
///     &near, 1.0, [&at(&zeros), &at(&zeros), &at(&v)],
///     &mut ViewMut::contiguous(&mut out, &shape), &mut ViewMut::contiguous(&mut lse, &[1, 5, 1]),
/// );
/// assert_eq!(out, [3.0, 3.0, 6.0, 5.0, 5.0]);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
///
/// # Panics
/// When shapes contradict each other or the windows.
pub fn forward<E: Stored>(
    near: &Near,
    scale: f64,
    [q, k, v]: [&View<'_, E>; 3],
    out: &mut ViewMut<'_, E>,
    lse: &mut ViewMut<'_, E::Acc>,
) where
    E::Acc: Stored<Acc = E::Acc>,
{
    let zero = <E::Acc as num_traits::Zero>::zero();
    let extents = Extents::new(
        [q.shape(), k.shape(), v.shape()],
        near.queries(),
        near.keys(),
    );
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let mut sums = vec![zero; extents.batch * extents.queries * extents.heads];
    let mut results = vec![zero; sums.len() * extents.value_dim];
    let mut pass = Pass {
        extents,
        scale: <E::Acc as Real>::of(scale),
        q: rows(q, &mut wide_q),
        k: rows(k, &mut wide_k),
        v: rows(v, &mut wide_v),
        query: vec![zero; extents.dim],
        logits: Vec::new(),
        out: &mut results,
        lse: &mut sums,
    };
    let (mut keys, mut spare) = (Vec::new(), Vec::new());
    for site in 0..extents.queries {
        near.fill(site, &mut keys, &mut spare);
        pass.logits.clear();
        pass.logits.resize(padded(keys.len()), zero);
        vectorized(Site {
            pass: &mut pass,
            site,
            keys: &keys,
        });
    }
    write(out, &results);
    write(lse, &sums);
}

struct Pass<'a, A> {
    extents: Extents,
    scale: A,
    q: &'a [A],
    k: &'a [A],
    v: &'a [A],
    /// The elements of the query at hand, scaled, and its logits.
    query: Vec<A>,
    logits: Vec<A>,
    out: &'a mut [A],
    lse: &'a mut [A],
}

/// All batch entries and heads of a query.
struct Site<'p, 'a, A> {
    pass: &'p mut Pass<'a, A>,
    site: usize,
    keys: &'p [usize],
}

impl<A: Real> WithSimd for Site<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if fused::<S>() {
            self.run::<S, true>(simd);
        } else {
            self.run::<S, false>(simd);
        }
    }
}

impl<A: Real> Site<'_, '_, A> {
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Self { pass, site, keys } = self;
        let e = pass.extents;
        for batch in 0..e.batch {
            for head in 0..e.heads {
                let row = e.query(batch, site, head);
                let keys = e.keys(batch, head, keys);
                scaled(&mut pass.query, pass.scale, &pass.q[row * e.dim..][..e.dim]);
                pass.logits.fill(A::neg_infinity());
                for (logit, key) in pass.logits.iter_mut().zip(keys.clone()) {
                    *logit = dot(simd, &pass.query, &pass.k[key * e.dim..][..e.dim]);
                }
                let (max, sum) = exponentials::<A, FMA>(&mut pass.logits);
                let empty = sum == A::zero();
                pass.lse[row] = if empty {
                    A::neg_infinity()
                } else {
                    max + sum.ln()
                };
                let out = &mut pass.out[row * e.value_dim..][..e.value_dim];
                let inverse = if empty { A::zero() } else { A::one() / sum };
                let weights = pass.logits.iter().copied().zip(keys);
                weighted_sum(simd, out, inverse, pass.v, &weights);
            }
        }
    }
}
