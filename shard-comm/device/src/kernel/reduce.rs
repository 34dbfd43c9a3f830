//! Reductions of several views of one shape into a destination, in one pass over all of them.

use super::arithmetic::{Family, Merge, Op, Widen, choose, narrow_into, widened};
use super::copy::copier;
use super::fold::Folds;
use super::nest::{Block, Kernel, Nest};
use crate::{DType, Monoid, Strided};
use smallvec::SmallVec;

/// Terms that are read side by side: few enough for registers, and enough streams to keep memory busy.
const ABREAST: usize = 4;
/// Rows of two terms with at most this many elements are combined four by four: here the loop that the compiler makes for long
/// rows is slower. With more than two terms that loop is faster.
const SHORT: usize = 16;
/// With more than [`ABREAST`] terms, this many elements are finished before the next ones are begun.
const TILE: usize = 512;
/// Reductions of at most this many elements get a smaller tile: clearing a large one takes longer than combining them.
const SMALL: usize = 32;

/// Sets a checked view, which visits no element twice, to the terms combined in order. A term is a buffer and the
/// element where its view begins; all views have the strides `strides`. 16-bit floats are combined in `f32` and rounded once.
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
    let (shape, steps) = (
        SmallVec::from_slice(&dv.shape),
        SmallVec::from_slice(strides),
    );
    let sv = Strided::new(offset, shape, steps);
    let Some(nest) = Nest::new(&sv, dv) else {
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

/// Combines any number of terms, some at a time. The result is collected in the destination, or in a tile where the
/// destination has 16-bit elements, which would round each time, or no dense rows.
fn many(
    op: Monoid,
    (dtype, wide): (DType, DType),
    joiner: &Joiner,
    nest: &Nest,
    terms: &[Term<'_>],
    dst: &mut [u8],
) {
    let (src_step, dst_step) = nest.innermost();
    let tiled = wide != dtype || dst_step != 1;
    let dense = src_step == 1;
    let (first, rest) = terms.split_at(joiner.most(dense).min(terms.len()));
    let more = joiner.more.filter(|_| dense);
    let (fours, ones) = match more {
        Some(_) => rest.as_chunks::<ABREAST>(),
        None => (&[][..], rest),
    };
    let folder = if ones.is_empty() {
        None
    } else {
        choose::<Folds>(op, dtype, wide)
    };
    let join = |to: &mut [u8], block: &Block<'_>| {
        (joiner.first)(to, first, block);
        if let Some(more) = more {
            fours.iter().for_each(|four| more(to, four, block));
        }
        if let Some(folder) = folder {
            let mut fold = |&(from, delta): &_| folder(to, from, &block.shifted(delta));
            ones.iter().for_each(&mut fold);
        }
    };
    if !tiled && nest.numel() <= TILE {
        return nest.blocks(&mut |block| join(dst, block));
    }
    if !tiled {
        return nest.parts_of(TILE, &mut |part| join(dst, part));
    }
    let (mut small, mut large);
    let tile: &mut [u8] = if nest.numel() <= SMALL {
        small = [0u64; SMALL];
        bytemuck::cast_slice_mut(&mut small)
    } else {
        large = [0u64; TILE];
        bytemuck::cast_slice_mut(&mut large)
    };
    nest.parts_of(TILE, &mut |part| {
        join(tile, &part.onto_tile());
        (joiner.narrow)(dst, tile, &part.within_tile());
    });
}

/// A term's bytes, and the offset of its view from that of the first term, in elements.
type Term<'a> = (&'a [u8], isize);

/// The work on a block of several terms.
type Join = fn(&mut [u8], &[Term<'_>], &Block<'_>);

struct Joiner {
    /// Sets the destination to at most `most` terms.
    first: Join,
    most: usize,
    /// Folds [`ABREAST`] terms into dense rows, for operations that have such code.
    more: Option<Join>,
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
            first: join::<S, D, O>,
            most: if O::COMMON { ABREAST } else { 2 },
            more: if O::COMMON {
                Some(join_more::<S, D, O>)
            } else {
                None
            },
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
            first: join_groups::<S, D, M, N>,
            most: usize::MAX,
            more: None,
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
        [(only, _)] => one::<S, D>(dst, only, block),
        [a, b] => abreast::<S, D, O, 2>(dst, [a, b], block, false),
        [a, b, c] if O::COMMON => abreast::<S, D, O, 3>(dst, [a, b, c], block, false),
        [a, b, c, d] if O::COMMON => abreast::<S, D, O, 4>(dst, [a, b, c, d], block, false),
        _ => {}
    }
}

fn join_more<S, D, O>(dst: &mut [u8], terms: &[Term<'_>], block: &Block<'_>)
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    O: Op<S::Wide>,
{
    if let Some(&terms) = terms.first_chunk::<ABREAST>() {
        abreast::<S, D, O, ABREAST>(dst, terms, block, true);
    }
}

/// A reduction of one term, whatever the operation: a copy, except that signalling NaNs of 16-bit floats become quiet.
fn one<S: Widen, D: Widen<Wide = S::Wide>>(dst: &mut [u8], src: &[u8], block: &Block<'_>) {
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    block.sweep(src, dst, |_, value| D::narrow(value.widen()));
}

/// Sets every element to the combined terms or, with `more`, to itself combined with the terms. The compiler knows the number
/// of terms, so they are combined in registers.
#[inline]
fn abreast<S, D, O, const K: usize>(
    dst: &mut [u8],
    terms: [Term<'_>; K],
    block: &Block<'_>,
    more: bool,
) where
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
    if K > 2 || more || block.is_dense() {
        block.starts(|s, d| {
            let mut rows: [&[S]; K] = [&[]; K];
            for (row, (from, delta)) in rows.iter_mut().zip(from) {
                *row = &from[(s + delta) as usize..][..n];
            }
            combine_rows::<S, D, O, K>(&mut dst[d as usize..][..n], rows, more);
        });
        return;
    }
    block.starts(|mut s, mut d| {
        for _ in 0..n {
            let to = &mut dst[d as usize];
            let value = |k: usize| from[k].0[(s + from[k].1) as usize].widen();
            *to = D::narrow(combined::<S::Wide, O, K>(to.widen(), value, more));
            s += block.inner.src;
            d += block.inner.dst;
        }
    });
}

/// Combines the rows element by element, as many elements as the destination has.
// Inlined, because in a call the compiler would not know the lengths of the rows, and would not vectorise the loop.
#[inline(always)]
fn combine_rows<S, D, O, const K: usize>(to: &mut [D], rows: [&[S]; K], more: bool)
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    O: Op<S::Wide>,
{
    let n = to.len();
    let one = |i: usize, to: &mut D, rows: &[&[S]; K]| {
        *to = D::narrow(combined::<S::Wide, O, K>(
            to.widen(),
            |k| rows[k][i].widen(),
            more,
        ));
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

/// Combines `K` values in order or, with `more`, the old value and then the `K` values.
#[inline]
fn combined<W: Copy, O: Op<W>, const K: usize>(
    old: W,
    value: impl Fn(usize) -> W,
    more: bool,
) -> W {
    let (mut sum, next) = if more { (old, 0) } else { (value(0), 1) };
    for k in next..K {
        sum = O::of(sum, value(k));
    }
    sum
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
            if let Some(Some(merged)) = values.reduce(|a, b| Some(M::of(a?, b?))) {
                narrow_into(to, merged);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;
    use half::{bf16, f16};
    use proptest::prelude::*;
    use shard_spec::ReduceOp;

    /// A shape, the strides of the terms, and a view of the destination that visits no element twice.
    fn views() -> impl Strategy<Value = (Vec<usize>, Vec<isize>, Strided)> {
        prop::collection::vec(1..7usize, 1..4).prop_flat_map(|shape| {
            let n = shape.len();
            let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
            let flips = prop::collection::vec(any::<bool>(), n);
            let strides = prop::collection::vec(-9..10isize, n);
            (order, flips, strides, 1..3isize).prop_map(move |(order, flips, strides, gap)| {
                let (mut step, mut offset) = (gap, 0);
                let mut steps = vec![0; shape.len()];
                for &d in &order {
                    steps[d] = if flips[d] { -step } else { step };
                    let reach = (shape[d] as isize - 1) * step;
                    offset += if flips[d] { reach } else { 0 };
                    step *= shape[d] as isize;
                }
                let dv = Strided::new(offset as usize, shape[..].into(), steps[..].into());
                (shape.clone(), strides, dv)
            })
        })
    }

    /// The expected reduction of these terms, in `f32`, element by element in the order of the view.
    fn expected(shape: &[usize], strides: &[isize], terms: &[(Vec<f32>, usize)]) -> Vec<f32> {
        let mut index = vec![0; shape.len()];
        let mut all = Vec::new();
        for _ in 0..shape.iter().product() {
            let at: isize = index
                .iter()
                .zip(strides)
                .map(|(&i, &s)| i as isize * s)
                .sum();
            let values = terms
                .iter()
                .map(|(v, start)| v[(*start as isize + at) as usize]);
            all.extend(values.reduce(|a, b| a + b));
            for d in (0..shape.len()).rev() {
                index[d] += 1;
                if index[d] < shape[d] {
                    break;
                }
                index[d] = 0;
            }
        }
        all
    }

    fn sum_of<T: Element>(
        terms: &[(Vec<f32>, usize)],
        strides: &[isize],
        dv: &Strided,
        cast: impl Fn(f32) -> T,
    ) -> Vec<T> {
        let typed: Vec<(Vec<T>, usize)> = (terms.iter())
            .map(|(v, at)| (v.iter().map(|&v| cast(v)).collect(), *at))
            .collect();
        let bytes: Vec<(&[u8], usize)> = (typed.iter())
            .map(|(v, at)| (bytemuck::cast_slice(v), *at))
            .collect();
        let mut dst = vec![T::default(); dv.end().unwrap()];
        let out = bytemuck::cast_slice_mut(&mut dst);
        reduce(Monoid::SUM, T::DTYPE, &bytes, strides, out, dv);
        // The destination in the order of the view: a reduction of one term that holds element numbers tells the places.
        let places = (0..dst.len()).map(|i| i as f32).collect();
        let places = expected(&dv.shape, &dv.strides, &[(places, dv.offset)]);
        places
            .into_iter()
            .map(|place| dst[place as usize])
            .collect()
    }

    proptest! {
        #[test]
        fn reductions_equal_their_definition(
            (shape, strides, dv) in views(),
            starts in prop::collection::vec(0..5usize, 1..11),
        ) {
            let down: isize = (shape.iter().zip(&strides))
                .map(|(&n, &s)| (n as isize - 1) * s.min(0))
                .sum();
            let terms: Vec<(Vec<f32>, usize)> = (starts.iter().enumerate())
                .map(|(k, &start)| {
                    // Large and small values of both signs: every order of adding gives other bits.
                    let value = |i: usize| [1e3, 1.0, -1e3, 0.1][(i + k) % 4] * (1 + i % 7) as f32;
                    let values = (0..200).map(|i| bf16::from_f32(f16::from_f32(value(i)).to_f32()));
                    (values.map(bf16::to_f32).collect(), start + down.unsigned_abs())
                })
                .collect();
            let sums = expected(&shape, &strides, &terms);
            prop_assert_eq!(&sum_of(&terms, &strides, &dv, |v| v), &sums);
            let rounded: Vec<bf16> = sums.iter().map(|&v| bf16::from_f32(v)).collect();
            prop_assert_eq!(sum_of(&terms, &strides, &dv, bf16::from_f32), rounded);
            let rounded: Vec<f16> = sums.iter().map(|&v| f16::from_f32(v)).collect();
            prop_assert_eq!(sum_of(&terms, &strides, &dv, f16::from_f32), rounded);
        }
    }

    #[test]
    fn long_rows_of_many_terms_go_through_tiles() {
        let n = 2 * TILE + 3;
        for count in [5, 8, 9] {
            let terms: Vec<Vec<f64>> = (0..count)
                .map(|k| (0..n).map(|i| (i * 31 + k) as f64).collect())
                .collect();
            let bytes: Vec<(&[u8], usize)> =
                terms.iter().map(|v| (bytemuck::cast_slice(v), 0)).collect();
            let mut dst = vec![0.0f64; n];
            let view = Strided::contiguous(&[n]);
            let out = bytemuck::cast_slice_mut(&mut dst);
            reduce(Monoid::SUM, DType::F64, &bytes, &view.strides, out, &view);
            for (i, &sum) in dst.iter().enumerate() {
                assert_eq!(sum, terms.iter().map(|v| v[i]).sum::<f64>());
            }
        }
    }

    #[test]
    fn truth_of_many_terms_is_that_of_their_pairs() {
        let n = TILE + 5;
        let (any, all) = (Monoid::Op(ReduceOp::Any), Monoid::Op(ReduceOp::All));
        for count in [2, 3, 4, 7] {
            let terms: Vec<Vec<f32>> = (0..count)
                .map(|k| (0..n).map(|i| f32::from((i >> k) % 2 == 0)).collect())
                .collect();
            let bytes: Vec<(&[u8], usize)> =
                terms.iter().map(|v| (bytemuck::cast_slice(v), 0)).collect();
            for (gap, op) in [(1, any), (1, all), (3, any)] {
                let view = Strided::new(0, [n][..].into(), [gap as isize][..].into());
                let mut dst = vec![-1.0f32; gap * n];
                let out = bytemuck::cast_slice_mut(&mut dst);
                reduce(op, DType::F32, &bytes, &[1], out, &view);
                for i in 0..n {
                    let mut values = terms.iter().map(|v| v[i] != 0.0);
                    let truth = if op == any {
                        values.any(|v| v)
                    } else {
                        values.all(|v| v)
                    };
                    assert_eq!(dst[gap * i], f32::from(truth));
                    assert!(dst[gap * i + 1..gap * (i + 1)].iter().all(|&v| v == -1.0));
                }
            }
        }
    }

    #[test]
    fn groups_are_merged_whole() {
        let (a, b) = ([1.0f32, 5.0, 7.0, 2.0], [3.0f32, 9.0, 7.0, 1.0]);
        let mut dst = [0.0f32; 4];
        let view = Strided::contiguous(&[4]);
        let terms = [(bytemuck::cast_slice(&a), 0), (bytemuck::cast_slice(&b), 0)];
        let out = bytemuck::cast_slice_mut(&mut dst);
        reduce(
            Monoid::ArgMax,
            DType::F32,
            &terms,
            &view.strides,
            out,
            &view,
        );
        assert_eq!(dst, [3.0, 9.0, 7.0, 1.0]);
    }
}
