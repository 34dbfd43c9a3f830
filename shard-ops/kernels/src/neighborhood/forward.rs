//! The attention of every query to the keys of its window.

use super::block::{Block, Group};
use super::lanes::{Line, softmax, turn};
use super::near::Near;
use super::rows::{Extents, Part, rows, write};
use super::sums::add_rows;
use crate::attention::Stored;
use crate::{Real, View, ViewMut};

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
    let extents = Extents::new([q.shape(), k.shape(), v.shape()], near);
    let (mut wide_q, mut wide_k, mut wide_v) = (Vec::new(), Vec::new(), Vec::new());
    let mut sums = vec![zero; extents.batch * extents.queries * extents.heads];
    let mut results = vec![zero; sums.len() * extents.value_dim];
    let mut pass = Pass {
        extents,
        places: near.places(),
        scale: <E::Acc as Real>::of(scale),
        q: rows(q, &mut wide_q),
        k: rows(k, &mut wide_k),
        v: rows(v, &mut wide_v),
        out: &mut results,
        lse: &mut sums,
        keys: Line::default(),
        queries: Vec::new(),
        logits: Vec::new(),
    };
    for block in &Block::all(near) {
        // Logits are kept until all of a window are there.
        let per_query = pass.places * block.slots + extents.dim;
        for group in Group::all(near, per_query * block.wide * extents.together()) {
            for part in extents.parts() {
                pass.group(block, &group, &part);
            }
        }
    }
    write(out, &results);
    write(lse, &sums);
}

struct Pass<'a, A> {
    extents: Extents,
    /// The most lines of keys that a line of queries sees.
    places: usize,
    scale: A,
    q: &'a [A],
    k: &'a [A],
    v: &'a [A],
    out: &'a mut [A],
    lse: &'a mut [A],
    keys: Line<A>,
    /// Of each line and head of a group: scaled queries `[dim][wide]`, and logits `[line of keys][slot][wide]`.
    queries: Vec<A>,
    logits: Vec<A>,
}

impl<A: Real> Pass<'_, A> {
    fn group(&mut self, block: &Block, group: &Group, part: &Part) {
        let Extents { dim, value_dim, .. } = self.extents;
        let heads = self.extents.together();
        let (turned, room) = (dim * block.wide, block.slots * block.wide);
        let window = self.places * room;
        let number = group.queries.len() * heads;
        self.queries.resize(number * turned, A::zero());
        self.logits.resize(number * window, A::zero());
        let at = |i: usize| [group.queries[i / heads], i % heads];
        for i in 0..number {
            let q = part.of_queries(self.q, at(i), dim);
            let to = &mut self.queries[i * turned..][..turned];
            turn(
                q,
                [block.first, block.count],
                self.scale,
                to,
                [block.wide, 0],
            );
        }
        for met in group.meetings.chunk_by(|a, b| a.key == b.key) {
            self.keys.read(part.of_keys(self.k, met[0].key, dim), block);
            for met in met {
                for i in met.line * heads..(met.line + 1) * heads {
                    let logits = &mut self.logits[i * window + met.place * room..][..room];
                    let queries = &self.queries[i * turned..][..turned];
                    self.keys.products(queries, block, logits);
                    for &unseen in &block.unseen {
                        logits[unseen] = A::neg_infinity();
                    }
                }
            }
        }
        let mut sums = vec![A::zero(); block.wide];
        for i in 0..number {
            let own = group.places[i / heads] * room;
            softmax(&mut self.logits[i * window..][..own], &mut sums);
            let [first, step] = part.of_queries(self.lse, at(i), 1).at;
            for (x, sum) in sums[..block.count].iter().enumerate() {
                self.lse[first + (block.first + x) * step] = *sum;
            }
        }
        for met in &group.meetings {
            for i in met.line * heads..(met.line + 1) * heads {
                let weights = &self.logits[i * window + met.place * room..][..room];
                let v = part.of_keys(self.v, met.key, value_dim);
                let to = part.of_queries_mut(self.out, at(i), value_dim);
                add_rows(&block.by_query, weights, v, to);
            }
        }
    }
}
