//! The attention of every query to the keys of its window.

use super::block::{Block, Group};
use super::lanes::{Line, Rows, softmax, turn};
use super::near::Near;
use super::rows::{Extents, Part, into, rows};
use super::sums::{Lines, RowsMut, panelled, panels, sum_rows};
use crate::attention::Stored;
use crate::compiled::compiled;
use crate::scratch::Scratch;
use crate::{Real, View, ViewMut};
use half::{bf16, f16};

compiled! { trait CompiledNear for Stored: f32 f64 f16 bf16; {
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
    /// for (y, mean) in out.iter().zip([3.0, 3.0, 6.0, 5.0, 5.0]) {
    ///     assert!((y - mean).abs() < 1e-12);
    /// }
    /// # Ok::<(), shard_spec::SpecError>(())
    /// ```
    ///
    /// # Panics
    /// When shapes contradict each other or the windows.
    pub fn forward<T>(
        near: &Near,
        scale: f64,
        operands: [&View<'_, T>; 3],
        out: &mut ViewMut<'_, T>,
        lse: &mut ViewMut<'_, <T as Stored>::Acc>,
    ) = forward_here;
} }

fn forward_here<E: Stored>(
    near: &Near,
    scale: f64,
    [q, k, v]: [&View<'_, E>; 3],
    out: &mut ViewMut<'_, E>,
    lse: &mut ViewMut<'_, E::Acc>,
) where
    E::Acc: Stored<Acc = E::Acc>,
{
    let extents = Extents::new([q.shape(), k.shape(), v.shape()], near);
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let operands = [
        rows(q, &mut wide_q),
        rows(k, &mut wide_k),
        rows(v, &mut wide_v),
    ];
    into(out, |out| {
        into(lse, |lse| {
            let [q, k, v] = operands;
            let mut pass = Pass {
                extents,
                scale: <E::Acc as Real>::of(scale),
                q,
                k,
                v,
                out,
                lse,
            };
            pass.run(near);
        });
    });
}

struct Pass<'a, A> {
    extents: Extents,
    scale: A,
    q: &'a [A],
    k: &'a [A],
    v: &'a [A],
    out: &'a mut [A],
    lse: &'a mut [A],
}

impl<A: Real> Pass<'_, A> {
    fn run(&mut self, near: &Near) {
        let e = self.extents;
        for block in &Block::all(near) {
            // Logits are kept until all of a window are there.
            let per_query = e.places * block.slots + e.dim;
            for group in Group::all(near, per_query * block.wide * e.together()) {
                let lanes = group.queries.len() * e.together() * block.wide;
                let values = group.keys.len() * panelled(e.value_dim, block.keys.len());
                let line = Line::<A>::numbers(block, e.dim);
                let numbers = lanes * per_query + values + line + block.wide;
                for part in e.parts() {
                    Scratch::with(numbers, |scratch| self.group(block, &group, &part, scratch));
                }
            }
        }
    }

    fn group(&mut self, block: &Block, group: &Group, part: &Part, mut scratch: Scratch<'_, A>) {
        let Extents { dim, value_dim, .. } = self.extents;
        let heads = self.extents.together();
        let (turned, size) = (dim * block.wide, block.slots * block.wide);
        let window = self.extents.places * size;
        let number = group.queries.len() * heads;
        // Scaled queries of each line and head, `[dim][wide]`, and their logits, `[line of keys][slot][wide]`.
        let queries = scratch.take(number * turned);
        let logits = scratch.take(number * window);
        let mut keys = Line::new(&mut scratch, block, dim);
        let mut lines = Vec::new();
        let at = |i: usize, dim| part.queries(block, [group.queries[i / heads], i % heads], dim);
        for i in 0..number {
            let (data, at) = (self.q, at(i, dim));
            let to = &mut queries[i * turned..][..turned];
            turn(
                Rows { data, at, dim },
                block.count,
                self.scale,
                to,
                [block.wide, 0],
            );
        }
        for met in group.meetings.chunk_by(|a, b| a.key == b.key) {
            let (data, at) = (self.k, part.keys(block, group.keys[met[0].key], dim));
            keys.read(Rows { data, at, dim }, block);
            lines.clear();
            for met in met {
                let own = met.line * heads..(met.line + 1) * heads;
                lines.extend(own.map(|i| [i * turned, i * window + met.place * size]));
            }
            keys.products(block, &lines, queries, logits);
            for [_, at] in &lines {
                for unseen in &block.unseen {
                    logits[at + unseen] = A::neg_infinity();
                }
            }
        }
        // Values of a head lie far from each other, in few sets of a cache.
        let line = panelled(value_dim, block.keys.len());
        let values = scratch.take(group.keys.len() * line);
        for (place, &key) in group.keys.iter().enumerate() {
            let (data, at, dim) = (self.v, part.keys(block, key, value_dim), value_dim);
            let to = &mut values[place * line..][..line];
            panels(Rows { data, at, dim }, block.keys.len(), to);
        }
        let sums = scratch.take(block.wide);
        for i in 0..number {
            let seen = &group.seen[i / heads];
            let logits = &mut logits[i * window..][..seen.len() * size];
            softmax(logits, sums);
            let [first, step] = at(i, 1);
            for (x, sum) in sums[..block.count].iter().enumerate() {
                self.lse[first + x * step] = *sum;
            }
            lines.clear();
            lines.extend((seen.iter().enumerate()).map(|(place, key)| [place * size, key * line]));
            let from = Lines {
                lines: &lines,
                weights: logits,
                data: values,
                rows: block.keys.len(),
            };
            let to = RowsMut {
                data: self.out,
                at: at(i, value_dim),
                dim: value_dim,
            };
            sum_rows(&block.by_query, from, to, false);
        }
    }
}
