//! The gradients: probabilities are computed again from the saved log-sum-exp.
//!
//! With `P = exp(S - lse)`, `D = rowsum(dO ∘ O)` and `dS = P ∘ (dO vᵀ - D)`: `dq = scale · dS k`, `dk = scale · dSᵀ q`, `dv = Pᵀ dO`.

use super::near::Near;
use super::rows::{
    Extents, add_scaled, dot, padded, probabilities, rows, scaled, weighted_sum, write,
};
use crate::attention::Stored;
use crate::exp::fused;
use crate::pointwise::vectorized;
use crate::{Real, View, ViewMut};
use num_traits::Zero;
use pulp::{Simd, WithSimd};

/// The arrays that [`grad_queries`] writes.
#[derive(Debug)]
pub struct QueryGrads<'a, A> {
    /// With respect to the queries, in their shape.
    pub dq: ViewMut<'a, A>,
    /// Per query and head the sum of products of result and cotangent, which [`grad_keys`] needs.
    pub delta: ViewMut<'a, A>,
}

/// The arrays that [`grad_keys`] writes.
#[derive(Debug)]
pub struct KeyGrads<'a, A> {
    /// With respect to the keys, in their shape.
    pub dk: ViewMut<'a, A>,
    /// With respect to the values, in their shape.
    pub dv: ViewMut<'a, A>,
}

/// Writes the gradient with respect to the queries of a box, given all keys they see, the results `out`, their log-sum-exps
/// and cotangent.
///
/// # Panics
/// When shapes contradict each other or the windows.
pub fn grad_queries<E: Stored>(
    near: &Near,
    scale: f64,
    [q, k, v]: [&View<'_, E>; 3],
    [out, dout]: [&View<'_, E>; 2],
    lse: &View<'_, E::Acc>,
    grads: &mut QueryGrads<'_, E::Acc>,
) where
    E::Acc: Stored<Acc = E::Acc>,
{
    let zero = <E::Acc as Zero>::zero();
    let e = Extents::new(
        [q.shape(), k.shape(), v.shape()],
        near.queries(),
        near.keys(),
    );
    let (mut wide_out, mut wide_dout) = (Vec::new(), Vec::new());
    let (out, dout) = (rows(out, &mut wide_out), rows(dout, &mut wide_dout));
    let width = e.value_dim.max(1);
    let mut delta: Vec<E::Acc> = (out.chunks_exact(width).zip(dout.chunks_exact(width)))
        .map(|(o, d)| o.iter().zip(d).fold(zero, |sum, (x, y)| sum + *x * *y))
        .collect();
    delta.resize(e.batch * e.queries * e.heads, zero);
    let mut dq = vec![zero; delta.len() * e.dim];
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let mut pass = Pass {
        extents: e,
        scale: E::Acc::of(scale),
        q: rows(q, &mut wide_q),
        k: rows(k, &mut wide_k),
        v: rows(v, &mut wide_v),
        dout,
        lse: seen(lse),
        delta: &delta,
        query: vec![zero; e.dim],
        probabilities: Vec::new(),
        grads: Vec::new(),
        to: To::Queries { dq: &mut dq },
    };
    pass.run(near);
    write(&mut grads.dq, &dq);
    write(&mut grads.delta, &delta);
}

/// Writes the gradients with respect to the keys and values of a box, given all queries that see them, with the queries'
/// log-sum-exps, the `delta` of [`grad_queries`], and the cotangent of their results.
///
/// # Panics
/// When shapes contradict each other or the windows.
pub fn grad_keys<E: Stored>(
    near: &Near,
    scale: f64,
    [q, k, v]: [&View<'_, E>; 3],
    dout: &View<'_, E>,
    [lse, delta]: [&View<'_, E::Acc>; 2],
    grads: &mut KeyGrads<'_, E::Acc>,
) where
    E::Acc: Stored<Acc = E::Acc>,
{
    let zero = <E::Acc as Zero>::zero();
    let e = Extents::new(
        [q.shape(), k.shape(), v.shape()],
        near.queries(),
        near.keys(),
    );
    let rows_of_keys = e.batch * e.keys * e.kv_heads;
    let mut dk = vec![zero; rows_of_keys * e.dim];
    let mut dv = vec![zero; rows_of_keys * e.value_dim];
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let (mut wide_dout, mut wide_delta) = (Vec::new(), Vec::new());
    let mut pass = Pass {
        extents: e,
        scale: E::Acc::of(scale),
        q: rows(q, &mut wide_q),
        k: rows(k, &mut wide_k),
        v: rows(v, &mut wide_v),
        dout: rows(dout, &mut wide_dout),
        lse: seen(lse),
        delta: rows(delta, &mut wide_delta),
        query: vec![zero; e.dim],
        probabilities: Vec::new(),
        grads: Vec::new(),
        to: To::Keys {
            dk: &mut dk,
            dv: &mut dv,
        },
    };
    pass.run(near);
    write(&mut grads.dk, &dk);
    write(&mut grads.dv, &dv);
}

/// Log-sum-exps; +inf for queries that see no key, so that their probabilities become 0.
fn seen<A: Real>(lse: &View<'_, A>) -> Vec<A> {
    let mut all = lse.to_vec();
    for x in &mut all {
        if *x == A::neg_infinity() {
            *x = -*x;
        }
    }
    all
}

struct Pass<'a, A> {
    extents: Extents,
    scale: A,
    q: &'a [A],
    k: &'a [A],
    v: &'a [A],
    dout: &'a [A],
    lse: Vec<A>,
    delta: &'a [A],
    /// The query at hand, scaled, its probabilities, and the gradients of its logits.
    query: Vec<A>,
    probabilities: Vec<A>,
    grads: Vec<A>,
    to: To<'a, A>,
}

/// Whose gradients are summed: the queries' or those of keys and values.
enum To<'a, A> {
    Queries { dq: &'a mut [A] },
    Keys { dk: &'a mut [A], dv: &'a mut [A] },
}

impl<A: Real> Pass<'_, A> {
    fn run(&mut self, near: &Near) {
        let (mut keys, mut spare) = (Vec::new(), Vec::new());
        for site in 0..self.extents.queries {
            near.fill(site, &mut keys, &mut spare);
            self.probabilities.resize(padded(keys.len()), A::zero());
            self.grads.resize(keys.len(), A::zero());
            vectorized(Site {
                pass: self,
                site,
                keys: &keys,
            });
        }
    }
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
                let dout = &pass.dout[row * e.value_dim..][..e.value_dim];
                let all = &mut pass.probabilities;
                all.fill(A::neg_infinity());
                for (p, key) in all.iter_mut().zip(keys.clone()) {
                    *p = dot(simd, &pass.query, &pass.k[key * e.dim..][..e.dim]);
                }
                probabilities::<A, FMA>(all, pass.lse[row]);
                let terms = pass.grads.iter_mut().zip(all.iter()).zip(keys.clone());
                for ((ds, p), key) in terms {
                    let v = &pass.v[key * e.value_dim..][..e.value_dim];
                    *ds = *p * (dot(simd, dout, v) - pass.delta[row]);
                }
                let grads = pass.grads.iter().copied();
                match &mut pass.to {
                    To::Queries { dq } => {
                        let dq = &mut dq[row * e.dim..][..e.dim];
                        weighted_sum(simd, dq, pass.scale, pass.k, &grads.zip(keys));
                    }
                    To::Keys { dk, dv } => {
                        for ((ds, p), key) in grads.zip(all.iter()).zip(keys) {
                            // The query is scaled already, so `dk` is too.
                            add_scaled(simd, &mut dk[key * e.dim..][..e.dim], ds, &pass.query);
                            let dv = &mut dv[key * e.value_dim..][..e.value_dim];
                            add_scaled(simd, dv, *p, dout);
                        }
                    }
                }
            }
        }
    }
}
