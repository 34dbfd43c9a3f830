//! Reductions of several views of one shape into a destination, in one pass over all of them.

use super::arithmetic::{Family, Merge, Op, Widen, choose, narrow_into, widened};
use super::copy::copier;
use super::fold::Folds;
use super::nest::{Block, Kernel, Nest};
use super::stream;
use super::tree::by_tree;
use crate::{DType, Monoid, Strided};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Terms that are read side by side: few enough for registers, enough streams to keep memory busy, and a power of two, so that they
/// are a subtree.
const ABREAST: usize = 4;
/// Rows of two terms with at most this many elements are combined four by four: here the loop that the compiler makes for long
/// rows is slower. With more than two terms that loop is faster.
const SHORT: usize = 16;
/// With more than [`ABREAST`] terms this many elements are finished before the next ones are begun.
const TILE: usize = 512;
/// As many elements of a destination past the caches are combined before they are stored: few, so that terms are read all the
/// while.
const STREAMED: usize = 128;
/// A row of two terms with more bytes may have to be written past the caches.
const ROW: usize = 1 << 16;
/// Tiles of all levels with at most this many elements lie on the stack.
const SMALL: usize = 128;

// `tests/it/reduce.rs` tries lengths about these, and does not see them.
#[cfg(test)]
const _: () = assert!(SHORT == 16 && TILE == 512 && ROW == 1 << 16);

/// Sets a checked view, which visits no element twice, to the terms combined [by the tree](by_tree) over their numbers. A term is a
/// buffer and the element where its view begins; all views have the strides `strides`. 16-bit floats are combined in `f32` and
/// rounded once.
pub fn reduce(
    op: Monoid,
    dtype: DType,
    terms: &[(&[u8], usize)],
    strides: &[isize],
    dst: &mut [u8],
    dv: &Strided,
) {
    let Some(&(_, offset)) = terms.first() else {
        return;
    };
    if let [a, b] = *terms
        && let Some(row) = row_of(dtype, strides, dv)
        && let Some(Joiner {
            row: Some(join), ..
        }) = choose::<Joins>(op, dtype, dtype)
    {
        let [a, b] = [a, b].map(|(bytes, at)| &bytes[at * dtype.size()..][..row.len()]);
        return join(&mut dst[row], a, b);
    }
    let Some(nest) = Nest::of((offset, strides), dv) else {
        return;
    };
    let terms: SmallVec<[Term<'_>; 8]> = terms
        .iter()
        .map(|&(bytes, at)| (bytes, at as isize - offset as isize))
        .collect();
    if let [(only, _)] = terms[..]
        && !dtype.is_half()
    {
        let kernel = copier(dtype, dtype);
        return nest.blocks(&mut |block| kernel(dst, only, block));
    }
    let Some(joiner) = choose::<Joins>(op, dtype, dtype) else {
        return;
    };
    let dense = nest.innermost() == (1, 1);
    if terms.len() <= joiner.most(dense) {
        nest.blocks(&mut |block| (joiner.first)(dst, &terms, block));
    } else if dtype.is_half() {
        if let Some(joiner) = choose::<Joins>(op, dtype, DType::F32) {
            many(op, (dtype, DType::F32), &joiner, &nest, &terms, dst);
        }
    } else {
        many(op, (dtype, dtype), &joiner, &nest, &terms, dst);
    }
}

/// The bytes of a destination that is one dense row, as its terms are, and that is not too long for the caches: nothing has to be found
/// out about the order of its elements.
fn row_of(dtype: DType, strides: &[isize], dv: &Strided) -> Option<Range<usize>> {
    let dims = dv.shape.iter().zip(&dv.strides).zip(strides);
    let mut long = dims.filter(|&((&extent, _), _)| extent != 1);
    let (len, dense) = match long.next() {
        Some(((&len, &to), &from)) => (len, (to, from) == (1, 1)),
        None => (1, true),
    };
    let (start, bytes) = (dv.offset * dtype.size(), len * dtype.size());
    let is_row = dense && long.next().is_none() && (1..=ROW).contains(&bytes);
    is_row.then_some(start..start + bytes)
}

/// Combines any number of terms, a subtree of few at a time. The sums of finished subtrees wait in tiles, each on a level of its
/// own; level 0 is the destination, unless that has 16-bit elements, which would round each time, or no dense rows.
fn many(
    op: Monoid,
    (dtype, wide): (DType, DType),
    joiner: &Joiner,
    nest: &Nest,
    terms: &[Term<'_>],
    dst: &mut [u8],
) {
    let Some(folder) = choose::<Folds>(op, wide, wide) else {
        return;
    };
    let (src_step, dst_step) = nest.innermost();
    let tiled = wide != dtype || dst_step != 1;
    let width = joiner.most(src_step == 1);
    let leaves = terms.len().div_ceil(width);
    let (levels, size) = (levels(leaves), nest.numel().min(TILE));
    let mut tiles: SmallVec<[u64; SMALL]> = smallvec![0; levels * size];
    nest.parts_of(TILE, &mut |part| {
        let (onto, back) = (part.onto_tile(), part.within_tile());
        let own = (!tiled).then_some(Level {
            sum: &mut *dst,
            leaf: *part,
            above: back,
        });
        let tiles_of = tiles.chunks_exact_mut(size).map(|tile| Level {
            sum: bytemuck::cast_slice_mut(tile),
            leaf: onto,
            above: onto.within_tile(),
        });
        let mut levels: SmallVec<[Level<'_, '_>; 8]> = own.into_iter().chain(tiles_of).collect();
        sum_up(&mut levels, terms.chunks(width), joiner.first, folder);
        drop(levels);
        if tiled {
            (joiner.narrow)(dst, bytemuck::cast_slice(&tiles[..size]), &back);
        }
    });
}

/// A place where the sum of a subtree waits.
struct Level<'a, 'b> {
    sum: &'a mut [u8],
    /// The block that puts a leaf there.
    leaf: Block<'b>,
    /// The block that folds the next level into it.
    above: Block<'b>,
}

/// Leaves the sum of all leaves on the first level, as [`by_tree`] forms it.
fn sum_up<'t>(
    levels: &mut [Level<'_, '_>],
    leaves: impl Iterator<Item = &'t [Term<'t>]>,
    join: Join,
    folder: Kernel,
) {
    let fold = |levels: &mut [Level<'_, '_>], top: usize| {
        let (below, rest) = levels.split_at_mut(top);
        if let (Some(to), Some(from)) = (below.last_mut(), rest.first()) {
            folder(to.sum, from.sum, &to.above);
        }
    };
    let mut waiting = 0;
    for (n, leaf) in leaves.enumerate() {
        if let Some(level) = levels.get_mut(waiting) {
            join(level.sum, leaf, &level.leaf);
        }
        for _ in 0..(n + 1).trailing_zeros() {
            fold(levels, waiting);
            waiting -= 1;
        }
        waiting += 1;
    }
    for top in (1..waiting).rev() {
        fold(levels, top);
    }
}

/// How many sums of subtrees wait at most, while so many leaves are combined one after the other.
fn levels(leaves: usize) -> usize {
    (usize::BITS - leaves.saturating_sub(1).leading_zeros()) as usize + 1
}

/// A term's bytes, and the offset of its view from that of the first term, in elements.
type Term<'a> = (&'a [u8], isize);

/// The work on a block of several terms.
type Join = fn(&mut [u8], &[Term<'_>], &Block<'_>);

/// The work on a dense row of two terms.
type Row = fn(&mut [u8], &[u8], &[u8]);

struct Joiner {
    /// Sets a row to two terms, if there is code for that.
    row: Option<Row>,
    /// Sets the destination to at most `most` terms.
    first: Join,
    most: usize,
    /// Rounds the combined values.
    narrow: Kernel,
}

impl Joiner {
    /// How many terms are combined at once: at most two if rows are not dense.
    fn most(&self, dense: bool) -> usize {
        if dense { self.most } else { self.most.min(2) }
    }
}

/// The family of kernels that reduce a block of terms.
struct Joins;

impl Family for Joins {
    type Kernel = Joiner;

    fn each<S: Widen, D: Widen<Wide = S::Wide>, O: Op<S::Wide>>() -> Joiner {
        Joiner {
            row: O::COMMON.then_some(join_row::<S, D, O>),
            first: join::<S, D, O>,
            most: if O::COMMON { ABREAST } else { 2 },
            narrow: one::<D, S>,
        }
    }

    fn groups<S, D, M, const N: usize>() -> Joiner
    where
        S: Widen,
        D: Widen<Wide = S::Wide>,
        M: Merge<S::Wide, N>,
    {
        Joiner {
            row: None,
            first: join_groups::<S, D, M, N>,
            most: usize::MAX,
            narrow: one::<D, S>,
        }
    }
}

fn join<S, D, O>(dst: &mut [u8], terms: &[Term<'_>], block: &Block<'_>)
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    O: Op<S::Wide>,
{
    match *terms {
        [(only, delta)] => one::<S, D>(dst, only, &block.shifted(delta)),
        [a, b] => abreast::<S, D, O, 2>(dst, [a, b], block),
        [a, b, c] if O::COMMON => abreast::<S, D, O, 3>(dst, [a, b, c], block),
        [a, b, c, d] if O::COMMON => abreast::<S, D, O, 4>(dst, [a, b, c, d], block),
        _ => {}
    }
}

fn join_row<S, D, O>(dst: &mut [u8], a: &[u8], b: &[u8])
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    O: Op<S::Wide>,
{
    let to: &mut [D] = bytemuck::cast_slice_mut(dst);
    let rows = [a, b].map(|row| &bytemuck::cast_slice::<u8, S>(row)[..to.len()]);
    combine_rows::<S, D, O, 2>(to, rows);
}

/// A reduction of one term, whatever the operation: a copy, except that signalling NaNs of 16-bit floats become quiet.
fn one<S: Widen, D: Widen<Wide = S::Wide>>(dst: &mut [u8], src: &[u8], block: &Block<'_>) {
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    block.sweep(src, dst, |_, value| D::narrow(value.widen()));
}

/// Sets every element to the combined terms. The compiler knows their number, so they are combined in registers.
#[inline]
fn abreast<S, D, O, const K: usize>(dst: &mut [u8], terms: [Term<'_>; K], block: &Block<'_>)
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    O: Op<S::Wide>,
{
    let dst: &mut [D] = bytemuck::cast_slice_mut(dst);
    let mut from: [(&[S], isize); K] = [(&[], 0); K];
    for (from, (bytes, delta)) in from.iter_mut().zip(terms) {
        *from = (bytemuck::cast_slice(bytes), delta);
    }
    let n = block.inner.extent;
    if K > 2 || block.is_dense() {
        let bytes = |elements: usize| elements * size_of::<D>();
        let streams = stream::pays(bytes(dst.len()), bytes(block.numel()), bytes(n));
        let part = if streams { STREAMED } else { n };
        let mut tile = [D::default(); STREAMED];
        block.starts(|s, d| {
            stream::in_halves(n.div_ceil(part), |number| {
                let at = number * part;
                let len = part.min(n - at);
                let mut rows: [&[S]; K] = [&[]; K];
                for (row, (from, delta)) in rows.iter_mut().zip(from) {
                    *row = &from[(s + delta) as usize + at..][..len];
                    if streams {
                        stream::ask_behind(bytemuck::cast_slice(row));
                    }
                }
                let to = d as usize + at..d as usize + at + len;
                combine_rows::<S, D, O, K>(
                    match streams {
                        true => &mut tile[..len],
                        false => &mut dst[to.clone()],
                    },
                    rows,
                );
                if streams {
                    let summed = bytemuck::cast_slice(&tile[..len]);
                    stream::copy(bytemuck::cast_slice_mut(&mut dst[to]), summed);
                }
            });
        });
        if streams {
            stream::settle();
        }
        return;
    }
    block.starts(|mut s, mut d| {
        for _ in 0..n {
            let to = &mut dst[d as usize];
            let value = |k: usize| from[k].0[(s + from[k].1) as usize].widen();
            *to = D::narrow(combined::<S::Wide, O, K>(value));
            s += block.inner.src;
            d += block.inner.dst;
        }
    });
}

/// Combines the rows element by element, as many elements as the destination has.
// Inlined, because in a call the compiler would not know the lengths of the rows, and would not vectorise the loop.
#[inline(always)]
fn combine_rows<S, D, O, const K: usize>(to: &mut [D], rows: [&[S]; K])
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    O: Op<S::Wide>,
{
    let n = to.len();
    let one = |i: usize, to: &mut D, rows: &[&[S]; K]| {
        *to = D::narrow(combined::<S::Wide, O, K>(|k| rows[k][i].widen()));
    };
    if K == 2 && n <= SHORT {
        let (fours, rest) = to.as_chunks_mut::<4>();
        let whole = 4 * fours.len();
        for (k, to) in fours.iter_mut().enumerate() {
            let mut four: [&[S]; K] = [&[]; K];
            for (four, row) in four.iter_mut().zip(rows) {
                *four = &row[4 * k..4 * k + 4];
            }
            for (i, to) in to.iter_mut().enumerate() {
                one(i, to, &four);
            }
        }
        for (i, to) in rest.iter_mut().enumerate() {
            one(whole + i, to, &rows);
        }
    } else {
        for (i, to) in to.iter_mut().enumerate() {
            one(i, to, &rows);
        }
    }
}

/// Combines `K` values, at most [`ABREAST`], by the tree.
#[inline]
fn combined<W: Copy, O: Op<W>, const K: usize>(value: impl Fn(usize) -> W) -> W {
    match K {
        4 => O::of(O::of(value(0), value(1)), O::of(value(2), value(3))),
        _ => (1..K).fold(value(0), |sum, k| O::of(sum, value(k))),
    }
}

/// Sets groups of `N` elements, which lie in dense rows, to the combined groups of any number of terms.
fn join_groups<S, D, M, const N: usize>(dst: &mut [u8], terms: &[Term<'_>], block: &Block<'_>)
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    M: Merge<S::Wide, N>,
{
    let dst: &mut [D] = bytemuck::cast_slice_mut(dst);
    let terms: SmallVec<[(&[S], isize); 8]> = terms
        .iter()
        .map(|&(from, delta)| (bytemuck::cast_slice(from), delta))
        .collect();
    block.dense_rows(|s, d, n| {
        let (groups, _) = dst[d..d + n].as_chunks_mut::<N>();
        for (k, to) in groups.iter_mut().enumerate() {
            let values = terms.iter().map(|&(from, delta)| {
                let from = &from[(s as isize + delta) as usize..][k * N..];
                from.first_chunk::<N>().map(widened)
            });
            if let Some(Some(merged)) = by_tree(values, |a, b| Some(M::of(a?, b?))) {
                narrow_into(to, merged);
            }
        }
    });
}
