//! The gradients: probabilities are computed again from the saved log-sum-exp.
//!
//! With `P = exp(S - lse)`, `D = rowsum(dO ∘ O)` and `dS = P ∘ (dO vᵀ - D)`: `dq = scale · dS k`, `dk = scale · dSᵀ q`, `dv = Pᵀ dO`.

use super::near::Near;
use super::rows::{Extents, add_scaled, dot, rows, scaled, write};
use crate::attention::{Exp, Stored, fused};
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
fn seen<A: Exp>(lse: &View<'_, A>) -> Vec<A> {
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
    /// The query at hand, scaled.
    query: Vec<A>,
    to: To<'a, A>,
}

/// Whose gradients are summed: the queries' or those of keys and values.
enum To<'a, A> {
    Queries { dq: &'a mut [A] },
    Keys { dk: &'a mut [A], dv: &'a mut [A] },
}

impl<A: Exp> Pass<'_, A> {
    fn run(&mut self, near: &Near) {
        let (mut keys, mut spare) = (Vec::new(), Vec::new());
        for site in 0..self.extents.queries {
            near.fill(site, &mut keys, &mut spare);
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

impl<A: Exp> WithSimd for Site<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if fused::<S>() {
            self.run::<true>();
        } else {
            self.run::<false>();
        }
    }
}

impl<A: Exp> Site<'_, '_, A> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Self { pass, site, keys } = self;
        let e = pass.extents;
        for batch in 0..e.batch {
            for head in 0..e.heads {
                let row = e.query(batch, site, head);
                scaled(&mut pass.query, pass.scale, &pass.q[row * e.dim..][..e.dim]);
                let dout = &pass.dout[row * e.value_dim..][..e.value_dim];
                let (lse, delta) = (pass.lse[row], pass.delta[row]);
                for &key in keys {
                    let key = e.key(batch, key, head);
                    let (at, value_at) = (key * e.dim, key * e.value_dim);
                    let (k, v) = (&pass.k[at..][..e.dim], &pass.v[value_at..][..e.value_dim]);
                    let p = A::exp_fast::<FMA>(dot::<A, FMA>(&pass.query, k) - lse);
                    let ds = p * (dot::<A, FMA>(dout, v) - delta);
                    match &mut pass.to {
                        To::Queries { dq } => {
                            let dq = &mut dq[row * e.dim..][..e.dim];
                            add_scaled::<A, FMA>(dq, pass.scale * ds, k);
                        }
                        To::Keys { dk, dv } => {
                            // The query is scaled already, so `dk` is too.
                            add_scaled::<A, FMA>(&mut dk[at..][..e.dim], ds, &pass.query);
                            add_scaled::<A, FMA>(&mut dv[value_at..][..e.value_dim], p, dout);
                        }
                    }
                }
            }
        }
    }
}
