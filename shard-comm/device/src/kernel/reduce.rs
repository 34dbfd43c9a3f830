//! Reductions of several views of one shape into a destination, in one pass over all of them.

use super::arithmetic::{Combine, Widen, combine};
use super::nest::Nest;
use crate::{DType, Monoid, Strided, dispatch_dtype};
use smallvec::SmallVec;

/// Terms that are read side by side: few enough for registers, and enough streams to keep memory busy.
const ABREAST: usize = 4;
/// Rows of two terms of up to so many elements are combined by fours: the loop that the compiler makes for long rows
/// costs more, though with more terms it costs less.
const SHORT: usize = 16;
/// Elements of a row that more terms than [`ABREAST`] finish before going on.
const TILE: usize = 512;

/// Sets a checked view, which visits no element twice, to the terms combined in order. A term is a buffer and the
/// element where it begins; all have the steps of `strides`. 16-bit floats are combined in `f32` and rounded once.
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
    dispatch_dtype!(dtype, T => {
        let terms = terms
            .iter()
            .map(|&(bytes, at)| (bytemuck::cast_slice::<_, T>(bytes), at as isize - offset as isize))
            .collect();
        let reduce = Reduce { nest: &nest, terms, dst: bytemuck::cast_slice_mut::<_, T>(dst) };
        combine(op, reduce);
    });
}

/// A term's elements, and how far its view lies from that of the first.
type Term<'a, T> = (&'a [T], isize);

/// A reduction whose type is known.
struct Reduce<'a, T> {
    nest: &'a Nest,
    terms: SmallVec<[Term<'a, T>; 8]>,
    dst: &'a mut [T],
}

impl<T: Widen> Combine<T::Wide> for Reduce<'_, T> {
    fn each(mut self, op: impl Fn(T::Wide, T::Wide) -> T::Wide) {
        let terms = std::mem::take(&mut self.terms);
        match terms[..] {
            [a] => self.abreast([a], op),
            [a, b] => self.abreast([a, b], op),
            [a, b, c] => self.abreast([a, b, c], op),
            [a, b, c, d] => self.abreast([a, b, c, d], op),
            _ => self.many(&terms, op),
        }
    }

    fn groups<const N: usize>(self, merge: impl Fn([T::Wide; N], [T::Wide; N]) -> [T::Wide; N]) {
        let Self { nest, terms, dst } = self;
        let (n, ..) = nest.innermost();
        nest.starts(|s, d| {
            let (groups, _) = dst[d as usize..][..n].as_chunks_mut::<N>();
            for (k, to) in groups.iter_mut().enumerate() {
                let values = terms.iter().map(|&(from, delta)| {
                    let from = &from[(s + delta) as usize + k * N..][..N];
                    std::array::from_fn(|i| from[i].widen())
                });
                if let Some(merged) = values.reduce(&merge) {
                    *to = merged.map(T::narrow);
                }
            }
        });
    }
}

impl<T: Widen> Reduce<'_, T> {
    /// With their number known to the compiler, terms are combined in registers.
    fn abreast<const K: usize>(
        self,
        terms: [Term<'_, T>; K],
        op: impl Fn(T::Wide, T::Wide) -> T::Wide,
    ) {
        let (n, src_step, dst_step) = self.nest.innermost();
        let one = |values: [T; K]| T::narrow(joined(values.map(T::widen), &op));
        if (src_step, dst_step) == (1, 1) && n <= SHORT && K <= 2 {
            self.nest.starts(|s, d| {
                let from = terms.map(|(from, delta)| &from[(s + delta) as usize..][..n]);
                let to = &mut self.dst[d as usize..][..n];
                let (fours, rest) = to.as_chunks_mut::<4>();
                let whole = 4 * fours.len();
                for (k, to) in fours.iter_mut().enumerate() {
                    let from = from.map(|from| &from[4 * k..4 * k + 4]);
                    *to = std::array::from_fn(|i| one(from.map(|from| from[i])));
                }
                for (i, to) in rest.iter_mut().enumerate() {
                    *to = one(from.map(|from| from[whole + i]));
                }
            });
        } else if (src_step, dst_step) == (1, 1) {
            self.nest.starts(|s, d| {
                let from = terms.map(|(from, delta)| &from[(s + delta) as usize..][..n]);
                let to = &mut self.dst[d as usize..][..n];
                for (i, to) in to.iter_mut().enumerate() {
                    *to = one(from.map(|from| from[i]));
                }
            });
        } else {
            self.nest.starts(|s, d| {
                for i in 0..n as isize {
                    let at = s + i * src_step;
                    self.dst[(d + i * dst_step) as usize] =
                        one(terms.map(|(from, delta)| from[(at + delta) as usize]));
                }
            });
        }
    }

    /// As many terms as there are, some at a time.
    fn many(self, terms: &[Term<'_, T>], op: impl Fn(T::Wide, T::Wide) -> T::Wide) {
        let (n, src_step, dst_step) = self.nest.innermost();
        let mut tile = [T::Wide::default(); TILE];
        self.nest.starts(|s, d| {
            for start in (0..n).step_by(TILE) {
                let tile = &mut tile[..TILE.min(n - start)];
                let at = s + start as isize * src_step;
                let (first, rest) = terms.split_at(ABREAST);
                gather::<T, ABREAST>(tile, first, at, src_step, |_, values| joined(values, &op));
                let more = |sum, values: [T::Wide; 1]| op(sum, values[0]);
                let (fours, rest) = rest.as_chunks::<ABREAST>();
                for four in fours {
                    gather::<T, ABREAST>(tile, four, at, src_step, |sum, values| {
                        values.into_iter().fold(sum, &op)
                    });
                }
                for term in rest {
                    gather::<T, 1>(tile, std::slice::from_ref(term), at, src_step, more);
                }
                let at = d + start as isize * dst_step;
                for (i, &sum) in tile.iter().enumerate() {
                    self.dst[(at + i as isize * dst_step) as usize] = T::narrow(sum);
                }
            }
        });
    }
}

/// Combines values in order.
#[inline]
fn joined<W: Copy, const K: usize>(values: [W; K], op: impl Fn(W, W) -> W) -> W {
    let mut sum = values[0];
    for &value in &values[1..] {
        sum = op(sum, value);
    }
    sum
}

/// Sets every element of a tile to `f(old, values of K terms)`.
#[inline]
fn gather<T: Widen, const K: usize>(
    tile: &mut [T::Wide],
    terms: &[Term<'_, T>],
    at: isize,
    step: isize,
    f: impl Fn(T::Wide, [T::Wide; K]) -> T::Wide,
) {
    let n = tile.len();
    if step == 1 {
        let from: [&[T]; K] = std::array::from_fn(|k| {
            let (from, delta) = terms[k];
            &from[(at + delta) as usize..][..n]
        });
        for (i, sum) in tile.iter_mut().enumerate() {
            *sum = f(*sum, from.map(|from| from[i].widen()));
        }
    } else {
        for (i, sum) in tile.iter_mut().enumerate() {
            let at = at + i as isize * step;
            let values = std::array::from_fn(|k| {
                let (from, delta) = terms[k];
                from[(at + delta) as usize].widen()
            });
            *sum = f(*sum, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// A shape, the steps of the terms, and a view of the destination that visits no element twice.
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

    /// What a reduction of these terms is, in `f32`, element by element in the order of the view.
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
        // The destination in the order of the view: its places are a term of one.
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
