//! Operands as rows of one head's elements.

use super::block::Block;
use super::near::Near;
use crate::attention::Stored;
use crate::view::for_each_row;
use crate::{View, ViewMut};

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
    /// From a query of a line to the next, and from a key to the next.
    steps: [usize; 2],
    /// The most lines of keys that a line of queries sees.
    pub(super) places: usize,
}

impl Extents {
    /// The extents given by shapes that begin with the batch and end with heads and dim.
    ///
    /// # Panics
    /// When they contradict each other or the windows.
    pub(super) fn new([q, k, v]: [&[usize]; 3], near: &Near) -> Self {
        let ends = |shape: &[usize]| match shape {
            [batch, spatial @ .., heads, dim] => [*batch, spatial.iter().product(), *heads, *dim],
            _ => panic!("neighbourhood attention: an operand of shape {shape:?}"),
        };
        let ([b, nq, heads, dim], [bk, nk, kv_heads, dk], [bv, nv, hv, value_dim]) =
            (ends(q), ends(k), ends(v));
        let (queries, keys) = (near.queries(), near.keys());
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
            steps: near.steps(),
            places: near.places(),
        }
    }

    /// The heads that read one kv head.
    pub(super) fn together(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(1)
    }

    /// The batch entries, with each kv head.
    pub(super) fn parts(self) -> impl Iterator<Item = Part> {
        (0..self.batch * self.kv_heads).map(move |i| Part {
            batch: i / self.kv_heads,
            kv_head: i % self.kv_heads,
            extents: self,
        })
    }
}

/// A batch entry and a kv head, with the heads that read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    batch: usize,
    kv_head: usize,
    extents: Extents,
}

impl Part {
    /// Where the rows of `dim` elements lie that belong to a block's queries of a line, for a head of the group: the first, and
    /// the step.
    pub(super) fn queries(
        &self,
        block: &Block,
        [line, head]: [usize; 2],
        dim: usize,
    ) -> [usize; 2] {
        let e = self.extents;
        let head = self.kv_head * e.together() + head;
        let site = line + block.first * e.steps[0];
        let row = (self.batch * e.queries + site) * e.heads + head;
        [row * dim, e.steps[0] * e.heads * dim]
    }

    /// The same of the keys that a block sees of a line.
    pub(super) fn keys(&self, block: &Block, line: usize, dim: usize) -> [usize; 2] {
        let e = self.extents;
        let site = line + block.keys.start * e.steps[1];
        let row = (self.batch * e.keys + site) * e.kv_heads + self.kv_head;
        [row * dim, e.steps[1] * e.kv_heads * dim]
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

/// Calls `f` with room for all elements in row-major order, in the type they are computed in: the view's own memory where it
/// is stored so.
pub(super) fn into<E: Stored>(to: &mut ViewMut<'_, E>, f: impl FnOnce(&mut [E::Acc])) {
    let (contiguous, offset, len) = (to.is_contiguous(), to.offset(), to.len());
    if contiguous && let Some(own) = E::as_acc_mut(&mut to.data_mut()[offset..offset + len]) {
        return f(own);
    }
    let mut buffer = vec![<E::Acc as num_traits::Zero>::zero(); len];
    f(&mut buffer);
    write(to, &buffer);
}

/// Writes elements in row-major order, rounded to the view's type.
fn write<E: Stored>(to: &mut ViewMut<'_, E>, from: &[E::Acc]) {
    let (shape, strides, offset) = to.geometry();
    let data = to.data_mut();
    let own = crate::view::row_major(&shape);
    for_each_row(
        &shape,
        [&strides[..], &own[..]],
        [offset, 0],
        |[at, source], n, [step, source_step]| {
            if [step, source_step] == [1, 1] {
                let pairs = data[at..at + n].iter_mut().zip(&from[source..source + n]);
                return pairs.for_each(|(to, x)| *to = E::narrow(*x));
            }
            for i in 0..n as isize {
                let x = from[source.wrapping_add_signed(i * source_step)];
                data[at.wrapping_add_signed(i * step)] = E::narrow(x);
            }
        },
    );
}
