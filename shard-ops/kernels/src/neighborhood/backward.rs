//! The gradients: probabilities are computed again from the saved log-sum-exp.
//!
//! With `P = exp(S - lse)`, `D = rowsum(dO ∘ O)` and `dS = P ∘ (dO vᵀ - D)`: `dq = scale · dS k`, `dk = scale · dSᵀ q`, `dv = Pᵀ dO`.

use super::block::{Block, Group};
use super::lanes::{Line, gradients, turn};
use super::near::Near;
use super::rows::{Extents, Part, rows, write};
use super::sums::{add_rows, products_of_rows};
use crate::attention::Stored;
use crate::{Real, View, ViewMut};
use num_traits::Zero;

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
    let e = Extents::new([q.shape(), k.shape(), v.shape()], near);
    let (mut wide_out, mut wide_dout) = (Vec::new(), Vec::new());
    let (out, dout) = (rows(out, &mut wide_out), rows(dout, &mut wide_dout));
    let mut delta = vec![zero; e.batch * e.queries * e.heads];
    products_of_rows(out, dout, e.value_dim, &mut delta);
    let mut dq = vec![zero; delta.len() * e.dim];
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let mut pass = Pass {
        extents: e,
        scale: E::Acc::of(scale),
        q: rows(q, &mut wide_q),
        k: rows(k, &mut wide_k),
        v: rows(v, &mut wide_v),
        dout,
        lse: &seen(lse),
        delta: &delta,
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
    let e = Extents::new([q.shape(), k.shape(), v.shape()], near);
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
        lse: &seen(lse),
        delta: rows(delta, &mut wide_delta),
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

/// Whose gradients are summed: the queries' or those of keys and values.
enum To<'a, A> {
    Queries { dq: &'a mut [A] },
    Keys { dk: &'a mut [A], dv: &'a mut [A] },
}

struct Pass<'a, A> {
    extents: Extents,
    scale: A,
    q: &'a [A],
    k: &'a [A],
    v: &'a [A],
    dout: &'a [A],
    lse: &'a [A],
    delta: &'a [A],
    to: To<'a, A>,
}

/// What is kept for a group.
struct Kept<A> {
    keys: Line<A>,
    values: Line<A>,
    /// Of each line and head: scaled queries and cotangents `[dim][wide]`, log-sum-exps and deltas `[wide]`.
    queries: Vec<A>,
    cotangents: Vec<A>,
    lse: Vec<A>,
    delta: Vec<A>,
}

impl<A: Real> Pass<'_, A> {
    fn run(&mut self, near: &Near) {
        let e = self.extents;
        let mut kept = Kept {
            keys: Line::default(),
            values: Line::default(),
            queries: Vec::new(),
            cotangents: Vec::new(),
            lse: Vec::new(),
            delta: Vec::new(),
        };
        for block in &Block::all(near) {
            let per_line = (e.dim + e.value_dim + 2) * block.wide * e.together();
            for group in Group::all(near, per_line) {
                for part in e.parts() {
                    self.group(block, &group, &part, &mut kept);
                }
            }
        }
    }

    fn group(&mut self, block: &Block, group: &Group, part: &Part, kept: &mut Kept<A>) {
        let Extents { dim, value_dim, .. } = self.extents;
        let (heads, wide) = (self.extents.together(), block.wide);
        let at = |i: usize| [group.queries[i / heads], i % heads];
        let number = group.queries.len() * heads;
        let which = [block.first, block.count];
        let all = [
            (&mut kept.queries, self.q, dim, self.scale),
            (&mut kept.cotangents, self.dout, value_dim, A::one()),
            (&mut kept.lse, self.lse, 1, A::one()),
            (&mut kept.delta, self.delta, 1, A::one()),
        ];
        for (to, from, dim, factor) in all {
            to.resize(number * dim * wide, A::zero());
            for i in 0..number {
                let to = &mut to[i * dim * wide..][..dim * wide];
                turn(
                    part.of_queries(from, at(i), dim),
                    which,
                    factor,
                    to,
                    [wide, 0],
                );
            }
        }
        let room = block.slots * wide;
        let (mut logits, mut grads) = (vec![A::zero(); room], vec![A::zero(); room]);
        for met in group.meetings.chunk_by(|a, b| a.key == b.key) {
            let k = part.of_keys(self.k, met[0].key, dim);
            kept.keys.read(k, block);
            kept.values
                .read(part.of_keys(self.v, met[0].key, value_dim), block);
            for i in met
                .iter()
                .flat_map(|met| met.line * heads..(met.line + 1) * heads)
            {
                let of = |dim: usize| i * dim * wide..(i + 1) * dim * wide;
                kept.keys
                    .products(&kept.queries[of(dim)], block, &mut logits);
                let cotangents = &kept.cotangents[of(value_dim)];
                kept.values.products(cotangents, block, &mut grads);
                let lanes = [&kept.lse[of(1)], &kept.delta[of(1)]];
                gradients(&mut logits, &mut grads, lanes, self.scale);
                match &mut self.to {
                    To::Queries { dq } => {
                        let dq = part.of_queries_mut(dq, at(i), dim);
                        add_rows(&block.by_query, &grads, k, dq);
                    }
                    To::Keys { dk, dv } => {
                        let q = part.of_queries(self.q, at(i), dim);
                        let dk = part.of_keys_mut(dk, met[0].key, dim);
                        add_rows(&block.by_key, &grads, q, dk);
                        let dout = part.of_queries(self.dout, at(i), value_dim);
                        let dv = part.of_keys_mut(dv, met[0].key, value_dim);
                        add_rows(&block.by_key, &logits, dout, dv);
                    }
                }
            }
        }
    }
}
