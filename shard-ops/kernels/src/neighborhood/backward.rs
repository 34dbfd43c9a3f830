//! The gradients: probabilities are computed again from the saved log-sum-exp.
//!
//! With `P = exp(S - lse)`, `D = rowsum(dO ∘ O)` and `dS = P ∘ (dO vᵀ - D)`: `dq = scale · dS k`, `dk = scale · dSᵀ q`, `dv = Pᵀ dO`.

use super::block::{Block, Group, Meeting};
use super::lanes::{Line, Rows, gradients, turn};
use super::near::Near;
use super::rows::{Extents, Part, into, rows};
use super::sums::{Lines, RowsMut, panelled, panels, products_of_rows, sum_rows};
use crate::attention::Stored;
use crate::compiled::compiled;
use crate::scratch::Scratch;
use crate::{Real, View, ViewMut};
use half::{bf16, f16};
use num_traits::Zero;
use std::iter::repeat;

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

compiled! { trait CompiledNearGrad for Stored: f32 f64 f16 bf16; {
    /// Writes the gradient with respect to the queries of a box, given all keys they see, the results `out`, their log-sum-exps
    /// and cotangent.
    ///
    /// # Panics
    /// When shapes contradict each other or the windows.
    pub fn grad_queries<T>(
        near: &Near,
        scale: f64,
        operands: [&View<'_, T>; 3],
        results: [&View<'_, T>; 2],
        lse: &View<'_, <T as Stored>::Acc>,
        grads: &mut QueryGrads<'_, <T as Stored>::Acc>,
    ) = grad_queries_here;

    /// Writes the gradients with respect to the keys and values of a box, given all queries that see them, with the queries'
    /// log-sum-exps, the `delta` of [`grad_queries`], and the cotangent of their results.
    ///
    /// # Panics
    /// When shapes contradict each other or the windows.
    pub fn grad_keys<T>(
        near: &Near,
        scale: f64,
        operands: [&View<'_, T>; 3],
        dout: &View<'_, T>,
        sums: [&View<'_, <T as Stored>::Acc>; 2],
        grads: &mut KeyGrads<'_, <T as Stored>::Acc>,
    ) = grad_keys_here;
} }

fn grad_queries_here<E: Stored>(
    near: &Near,
    scale: f64,
    [q, k, v]: [&View<'_, E>; 3],
    [out, dout]: [&View<'_, E>; 2],
    lse: &View<'_, E::Acc>,
    grads: &mut QueryGrads<'_, E::Acc>,
) where
    E::Acc: Stored<Acc = E::Acc>,
{
    let e = Extents::new([q.shape(), k.shape(), v.shape()], near);
    let (mut wide_out, mut wide_dout) = (Vec::new(), Vec::new());
    let (out, dout) = (rows(out, &mut wide_out), rows(dout, &mut wide_dout));
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let operands = [
        rows(q, &mut wide_q),
        rows(k, &mut wide_k),
        rows(v, &mut wide_v),
        dout,
    ];
    let lse = seen(lse);
    into(&mut grads.delta, |delta| {
        products_of_rows(out, dout, e.value_dim, delta);
        into(&mut grads.dq, |dq| {
            let [q, k, v, dout] = operands;
            let pass = Pass {
                extents: e,
                scale: E::Acc::of(scale),
                q,
                k,
                v,
                dout,
                lse: &lse,
                delta,
            };
            pass.run(near, &mut To::Queries { dq });
        });
    });
}

fn grad_keys_here<E: Stored>(
    near: &Near,
    scale: f64,
    [q, k, v]: [&View<'_, E>; 3],
    dout: &View<'_, E>,
    [lse, delta]: [&View<'_, E::Acc>; 2],
    grads: &mut KeyGrads<'_, E::Acc>,
) where
    E::Acc: Stored<Acc = E::Acc>,
{
    let e = Extents::new([q.shape(), k.shape(), v.shape()], near);
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let (mut wide_dout, mut wide_delta) = (Vec::new(), Vec::new());
    let pass = Pass {
        extents: e,
        scale: E::Acc::of(scale),
        q: rows(q, &mut wide_q),
        k: rows(k, &mut wide_k),
        v: rows(v, &mut wide_v),
        dout: rows(dout, &mut wide_dout),
        lse: &seen(lse),
        delta: rows(delta, &mut wide_delta),
    };
    into(&mut grads.dk, |dk| {
        into(&mut grads.dv, |dv| {
            dk.fill(E::Acc::zero());
            dv.fill(E::Acc::zero());
            pass.run(near, &mut To::Keys { dk, dv });
        });
    });
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
}

/// What is kept for a group.
struct Kept<'r, A> {
    keys: Line<'r, A>,
    values: Line<'r, A>,
    /// Of each line and head: scaled queries and cotangents `[dim][wide]`, log-sum-exps and deltas `[wide]`.
    queries: &'r mut [A],
    cotangents: &'r mut [A],
    lse: &'r mut [A],
    delta: &'r mut [A],
    /// Probabilities and gradients of logits of each line, head and line of keys: `[slot][wide]`.
    logits: &'r mut [A],
    grads: &'r mut [A],
    /// What is summed, in panels: keys, or queries and cotangents. Rows of a head lie far from each other, in few sets of a
    /// cache.
    rows: [&'r mut [A]; 2],
}

/// A block's queries in the lines of a group, and whether gradients by keys are found.
#[derive(Clone, Copy)]
struct Where<'a> {
    extents: Extents,
    block: &'a Block,
    group: &'a Group,
    by_keys: bool,
}

impl Where<'_> {
    /// The lines of queries, one for each head.
    fn lines(&self) -> usize {
        self.group.queries.len() * self.extents.together()
    }

    /// Where the rows of `dim` elements of a line of queries lie.
    fn queries(&self, part: &Part, i: usize, dim: usize) -> [usize; 2] {
        let heads = self.extents.together();
        part.queries(self.block, [self.group.queries[i / heads], i % heads], dim)
    }

    /// Numbers of the rows that are summed.
    fn rows(&self) -> [usize; 2] {
        let (e, block) = (self.extents, self.block);
        if self.by_keys {
            [e.dim, e.value_dim].map(|dim| self.lines() * panelled(dim, block.count))
        } else {
            [self.group.keys.len() * panelled(e.dim, block.keys.len()), 0]
        }
    }

    /// Numbers of all that is [`Kept`].
    fn numbers<A: Real>(&self) -> usize {
        let (e, block) = (self.extents, self.block);
        let lanes = self.lines() * block.wide;
        let dims = [e.dim, e.value_dim].map(|dim| Line::<A>::numbers(block, dim) + lanes * dim);
        let windows = 2 * lanes * (1 + e.places * block.slots);
        windows + dims.iter().chain(&self.rows()).sum::<usize>()
    }

    fn take<'r, A: Real>(&self, mut scratch: Scratch<'r, A>) -> Kept<'r, A> {
        let (e, block) = (self.extents, self.block);
        let lanes = self.lines() * block.wide;
        Kept {
            keys: Line::new(&mut scratch, block, e.dim),
            values: Line::new(&mut scratch, block, e.value_dim),
            queries: scratch.take(lanes * e.dim),
            cotangents: scratch.take(lanes * e.value_dim),
            lse: scratch.take(lanes),
            delta: scratch.take(lanes),
            logits: scratch.take(lanes * e.places * block.slots),
            grads: scratch.take(lanes * e.places * block.slots),
            rows: self.rows().map(|numbers| scratch.take(numbers)),
        }
    }
}

impl<A: Real> Pass<'_, A> {
    fn run(&self, near: &Near, to: &mut To<'_, A>) {
        let (e, by_keys) = (self.extents, matches!(to, To::Keys { .. }));
        for block in &Block::all(near) {
            let per_query = 2 * e.places * block.slots + e.dim + e.value_dim;
            for group in Group::all(near, per_query * block.wide * e.together()) {
                let at = Where {
                    extents: e,
                    block,
                    group: &group,
                    by_keys,
                };
                for part in e.parts() {
                    Scratch::with(at.numbers::<A>(), |scratch| {
                        let mut kept = at.take(scratch);
                        self.turn(at, &part, &mut kept);
                        self.keys(at, &part, &mut kept, to);
                        if let To::Queries { dq } = to {
                            self.queries(at, &part, &kept, dq);
                        }
                    });
                }
            }
        }
    }

    /// Turns what belongs to the queries of a group, and puts what is summed side by side.
    fn turn(&self, at: Where<'_>, part: &Part, kept: &mut Kept<'_, A>) {
        let Extents { dim, value_dim, .. } = self.extents;
        let (block, wide) = (at.block, at.block.wide);
        let all = [
            (&mut *kept.queries, self.q, dim, self.scale),
            (&mut *kept.cotangents, self.dout, value_dim, A::one()),
            (&mut *kept.lse, self.lse, 1, A::one()),
            (&mut *kept.delta, self.delta, 1, A::one()),
        ];
        for (to, data, dim, factor) in all {
            for i in 0..at.lines() {
                let to = &mut to[i * dim * wide..][..dim * wide];
                let at = at.queries(part, i, dim);
                turn(Rows { data, at, dim }, block.count, factor, to, [wide, 0]);
            }
        }
        let [first, second] = &mut kept.rows;
        if at.by_keys {
            for (to, data, dim) in [(first, self.q, dim), (second, self.dout, value_dim)] {
                let line = panelled(dim, block.count);
                for i in 0..at.lines() {
                    let at = at.queries(part, i, dim);
                    let to = &mut to[i * line..][..line];
                    panels(Rows { data, at, dim }, block.count, to);
                }
            }
        } else {
            let line = panelled(dim, block.keys.len());
            for (place, &key) in at.group.keys.iter().enumerate() {
                let (data, at) = (self.k, part.keys(block, key, dim));
                let to = &mut first[place * line..][..line];
                panels(Rows { data, at, dim }, block.keys.len(), to);
            }
        }
    }

    /// Finds probabilities and the gradients of logits, and adds to the gradients by keys and values if these are asked for.
    fn keys(&self, at: Where<'_>, part: &Part, kept: &mut Kept<'_, A>, to: &mut To<'_, A>) {
        let Extents { dim, value_dim, .. } = self.extents;
        let (block, wide) = (at.block, at.block.wide);
        let size = block.slots * wide;
        let (window, heads) = (self.extents.places * size, self.extents.together());
        let mut lines = Vec::new();
        for met in at.group.meetings.chunk_by(|a, b| a.key == b.key) {
            let key = at.group.keys[met[0].key];
            let pairs = [
                (&mut kept.keys, self.k, dim),
                (&mut kept.values, self.v, value_dim),
            ];
            for (line, data, dim) in pairs {
                let at = part.keys(block, key, dim);
                line.read(Rows { data, at, dim }, block);
            }
            let each = |m: &Meeting| (m.line * heads..(m.line + 1) * heads).zip(repeat(m.place));
            let own = |i: usize, place: usize| i * window + place * size;
            let pairs = [
                (&kept.keys, &*kept.queries, dim, &mut *kept.logits),
                (&kept.values, &*kept.cotangents, value_dim, &mut *kept.grads),
            ];
            for (line, queries, dim, to) in pairs {
                lines.clear();
                let at = met.iter().flat_map(each);
                lines.extend(at.map(|(i, place)| [i * dim * wide, own(i, place)]));
                line.products(block, &lines, queries, to);
            }
            for (i, place) in met.iter().flat_map(each) {
                let (lanes, own) = (i * wide..(i + 1) * wide, own(i, place));
                let (logits, grads) = (
                    &mut kept.logits[own..][..size],
                    &mut kept.grads[own..][..size],
                );
                let lanes = [&kept.lse[lanes.clone()], &kept.delta[lanes]];
                gradients(logits, grads, lanes, self.scale);
            }
            let To::Keys { dk, dv } = to else { continue };
            let [q, dout] = &kept.rows;
            let pairs = [
                (&mut **dk, q, dim, &kept.grads),
                (&mut **dv, dout, value_dim, &kept.logits),
            ];
            for (to, rows, dim, weights) in pairs {
                let line = panelled(dim, block.count);
                let first = |(i, place)| [i * window + place * size, i * line];
                lines.clear();
                lines.extend(met.iter().flat_map(each).map(first));
                let from = Lines {
                    lines: &lines,
                    weights,
                    data: rows,
                    rows: block.count,
                };
                let to = RowsMut {
                    data: to,
                    at: part.keys(block, key, dim),
                    dim,
                };
                sum_rows(&block.by_key, from, to, true);
            }
        }
    }

    /// Sums the gradients by queries.
    fn queries(&self, at: Where<'_>, part: &Part, kept: &Kept<'_, A>, dq: &mut [A]) {
        let (block, dim) = (at.block, self.extents.dim);
        let size = block.slots * block.wide;
        let (window, heads) = (self.extents.places * size, self.extents.together());
        let line = panelled(dim, block.keys.len());
        let mut lines = Vec::new();
        for i in 0..at.lines() {
            let seen = at.group.seen[i / heads].iter().enumerate();
            lines.clear();
            lines.extend(seen.map(|(place, key)| [i * window + place * size, key * line]));
            let from = Lines {
                lines: &lines,
                weights: kept.grads,
                data: kept.rows[0],
                rows: block.keys.len(),
            };
            let to = RowsMut {
                data: dq,
                at: at.queries(part, i, dim),
                dim,
            };
            sum_rows(&block.by_query, from, to, false);
        }
    }
}
