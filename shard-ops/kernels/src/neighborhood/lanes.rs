//! Loops over queries side by side: one lane per query, so that nothing is summed across lanes.

use super::block::{Block, UNIT};
use crate::Real;
use crate::arrays::{each, numbered};
use crate::exp::exp_in;
use crate::pointwise::vectorized;
use crate::scratch::Scratch;
use pulp::{Simd, WithSimd};

/// Rows of an operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a, A> {
    pub(super) data: &'a [A],
    /// Where the first one lies, and how far it is from one to the next.
    pub(super) at: [usize; 2],
    /// Elements of a row.
    pub(super) dim: usize,
}

impl<'a, A> Rows<'a, A> {
    #[inline(always)]
    pub(super) fn row(&self, number: usize) -> &'a [A] {
        &self.data[self.at[0] + number * self.at[1]..][..self.dim]
    }
}

/// Writes the first rows, times a factor, to columns `at ..` of `to`, whose rows have `wide` elements.
pub(super) fn turn<A: Real>(
    rows: Rows<'_, A>,
    count: usize,
    factor: A,
    to: &mut [A],
    [wide, at]: [usize; 2],
) {
    vectorized(Turn {
        rows,
        count,
        factor,
        to,
        wide,
        at,
    });
}

struct Turn<'a, A> {
    rows: Rows<'a, A>,
    count: usize,
    factor: A,
    to: &'a mut [A],
    wide: usize,
    at: usize,
}

impl<A: Real> WithSimd for Turn<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            rows,
            count,
            wide,
            at,
            ..
        } = self;
        let (lanes, order) = (A::lanes::<S>(), order::<S, A>(simd));
        let (fours, whole) = (rows.dim / FOUR, if count < lanes { 0 } else { count });
        let [zero, factor] = [A::zero(), self.factor].map(|x| A::splat(simd, x));
        for x in (0..whole).step_by(lanes) {
            // The last rows may be turned again with those before them.
            let x = x.min(whole - lanes);
            let from: [&[[A; FOUR]]; UNIT] =
                numbered(|k| &pulp::as_arrays(rows.row(x + order[k % lanes])).0[..fours]);
            for i in 0..fours {
                let read: [[A; FOUR]; UNIT] = each(from, |row| row[i]);
                let read = A::vectors::<S>(read.as_flattened());
                let columns = A::split_fours(simd, [read[0], read[1], read[2], read[3]]);
                for (k, column) in columns.into_iter().enumerate() {
                    let to = &mut self.to[(i * FOUR + k) * wide + at + x..][..lanes];
                    A::vectors_mut::<S>(to)[0] = A::mul_add_vec(simd, column, factor, zero);
                }
            }
        }
        let turned = if whole > 0 { fours * FOUR } else { 0 };
        for i in turned..rows.dim {
            for (x, to) in self.to[i * wide + at..][..count].iter_mut().enumerate() {
                *to = rows.row(x)[i] * self.factor;
            }
        }
    }
}

/// Elements of a row that are turned together.
const FOUR: usize = 4;

/// Which row is to be read as which four, so that [`Real::split_fours`] leaves rows in their order.
#[inline(always)]
fn order<S: Simd, A: Real>(simd: S) -> [usize; UNIT] {
    let numbers: [[A; FOUR]; UNIT] = core::array::from_fn(|k| [A::of(k as f64); FOUR]);
    let numbers = A::vectors::<S>(numbers.as_flattened());
    let (mut found, mut order) = ([A::zero(); UNIT], [0; UNIT]);
    A::vectors_mut::<S>(&mut found)[0] =
        A::split_fours(simd, core::array::from_fn(|k| numbers[k]))[0];
    for (row, four) in found[..A::lanes::<S>()].iter().enumerate() {
        order[four.wide() as usize] = row;
    }
    order
}

/// A line of keys as the queries of a block see it: a column per place, `[dim][columns]`, with anything where nothing is seen.
#[derive(Debug)]
pub(super) struct Line<'a, A>(&'a mut [A]);

impl<'a, A: Real> Line<'a, A> {
    /// How many numbers one takes.
    pub(super) fn numbers(block: &Block, dim: usize) -> usize {
        dim * block.columns
    }

    pub(super) fn new(scratch: &mut Scratch<'a, A>, block: &Block, dim: usize) -> Self {
        Self(scratch.take(Self::numbers(block, dim)))
    }

    /// Reads the rows of the keys that some query of the block sees.
    pub(super) fn read(&mut self, rows: Rows<'_, A>, block: &Block) {
        if self.0.is_empty() {
            return;
        }
        let to = [block.columns, block.at];
        turn(rows, block.keys.len(), A::one(), self.0, to);
        for row in self.0.chunks_exact_mut(block.columns) {
            for &[place, key] in &block.beyond {
                row[place] = row[key];
            }
        }
    }

    /// Writes the products of queries with the keys they see, for each of some lines: where its queries `[dim][wide]` begin, and
    /// where its products `[slot][wide]`.
    pub(super) fn products(
        &self,
        block: &Block,
        lines: &[[usize; 2]],
        queries: &[A],
        out: &mut [A],
    ) {
        if self.0.is_empty() {
            for [_, at] in lines {
                out[*at..][..block.slots * block.wide].fill(A::zero());
            }
        } else if block.slots > 0 {
            vectorized(Products {
                keys: self.0,
                block,
                lines,
                queries,
                out,
            });
        }
    }
}

struct Products<'a, A> {
    keys: &'a [A],
    block: &'a Block,
    lines: &'a [[usize; 2]],
    queries: &'a [A],
    out: &'a mut [A],
}

impl<A: Real> WithSimd for Products<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Lines that are multiplied together: as many sums as registers hold.
        let mut line = 0;
        while line < self.lines.len() {
            let rest = self.lines.len() - line;
            if const { S::F32_LANES >= 16 } && rest > 3 {
                self.lines::<S, 5>(simd, line);
                line += 5;
            } else if const { S::F32_LANES >= 16 } && rest > 1 {
                self.lines::<S, 3>(simd, line);
                line += 3;
            } else if rest > 1 {
                self.lines::<S, 2>(simd, line);
                line += 2;
            } else {
                self.lines::<S, 1>(simd, line);
                line += 1;
            }
        }
    }
}

impl<A: Real> Products<'_, A> {
    /// `L` lines from `line` on. Where there are fewer the last one is found again, and so of slots.
    #[inline(always)]
    fn lines<S: Simd, const L: usize>(&mut self, simd: S, line: usize) {
        let mut slot = 0;
        while slot < self.block.slots {
            let rest = self.block.slots - slot;
            for first in (0..self.block.wide).step_by(A::lanes::<S>()) {
                if rest > 3 {
                    self.tile::<S, L, 5>(simd, line, slot, first);
                } else {
                    self.tile::<S, L, 3>(simd, line, slot, first);
                }
            }
            slot += if rest > 3 { 5 } else { 3 };
        }
    }

    /// `L` lines by `N` slots of a vector of queries, summed over the elements of a head in registers.
    #[inline(always)]
    fn tile<S: Simd, const L: usize, const N: usize>(
        &mut self,
        simd: S,
        line: usize,
        slot: usize,
        first: usize,
    ) {
        let Block {
            wide,
            columns,
            shifts,
            ..
        } = self.block;
        let (lanes, size) = (A::lanes::<S>(), self.keys.len() / columns * wide);
        // Loops over places: iterators of arrays copy these on the way.
        let (mut queries, mut out) = ([&self.queries[..0]; L], [0; L]);
        for l in 0..L {
            let [from, to] = self.lines[(line + l).min(self.lines.len() - 1)];
            (queries[l], out[l]) = (&self.queries[from..from + size], to + first);
        }
        let (mut slots, mut at) = ([0; N], [0; N]);
        for j in 0..N {
            slots[j] = (slot + j).min(shifts.len() - 1);
            at[j] = shifts[slots[j]] + first;
        }
        let zero = A::splat(simd, A::zero());
        let mut sums = [[zero; N]; L];
        for (i, row) in self.keys.chunks_exact(*columns).enumerate() {
            let mut keys = [zero; N];
            for j in 0..N {
                keys[j] = A::vectors::<S>(&row[at[j]..at[j] + lanes])[0];
            }
            for l in 0..L {
                let query = A::vectors::<S>(&queries[l][i * wide + first..][..lanes])[0];
                for j in 0..N {
                    sums[l][j] = A::mul_add_vec(simd, query, keys[j], sums[l][j]);
                }
            }
        }
        for l in 0..L {
            for j in 0..N {
                let to = &mut self.out[out[l] + slots[j] * wide..][..lanes];
                A::vectors_mut::<S>(to)[0] = sums[l][j];
            }
        }
    }
}

/// Turns logits `[key][wide]` into probabilities, and writes the logarithms of the sums of their exponentials. Where nothing is
/// above -inf these are 0 and -inf, or NaN if a logit is NaN.
pub(super) fn softmax<A: Real>(logits: &mut [A], sums: &mut [A]) {
    vectorized(Softmax { logits, sums });
}

struct Softmax<'a, A> {
    logits: &'a mut [A],
    sums: &'a mut [A],
}

impl<A: Real> WithSimd for Softmax<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (sums, _) = pulp::as_arrays_mut::<UNIT, A>(self.sums);
        let (logits, _) = pulp::as_arrays_mut::<UNIT, A>(self.logits);
        let (units, one) = (sums.len(), A::splat(simd, A::one()));
        for (unit, lse) in sums.iter_mut().enumerate() {
            let own = &mut logits[unit..];
            let mut most = [A::neg_infinity(); UNIT];
            fold::<S, A>(own, units, &mut most, |most, x| {
                A::larger_vec(simd, most, x)
            });
            for most in &mut most {
                // A difference from -inf would not be a number.
                *most = if *most == A::neg_infinity() {
                    A::zero()
                } else {
                    *most
                };
            }
            for logits in own.iter_mut().step_by(units) {
                for (x, most) in logits.iter_mut().zip(&most) {
                    *x = exp_in::<S, A>(*x - *most);
                }
            }
            let mut sums = [A::zero(); UNIT];
            fold::<S, A>(own, units, &mut sums, |sum, x| {
                A::mul_add_vec(simd, one, x, sum)
            });
            let mut inverse = [A::zero(); UNIT];
            for (inverse, sum) in inverse.iter_mut().zip(&sums) {
                *inverse = if *sum == A::zero() {
                    A::zero()
                } else {
                    A::one() / *sum
                };
            }
            for logits in own.iter_mut().step_by(units) {
                for (x, inverse) in logits.iter_mut().zip(&inverse) {
                    *x *= *inverse;
                }
            }
            for ((lse, sum), most) in lse.iter_mut().zip(&sums).zip(&most) {
                *lse = if *sum == A::zero() {
                    A::neg_infinity()
                } else {
                    *most + sum.ln()
                };
            }
        }
    }
}

/// Joins every so manieth unit to `to`, lane by lane, in registers.
#[inline(always)]
fn fold<S: Simd, A: Real>(
    of: &[[A; UNIT]],
    step: usize,
    to: &mut [A; UNIT],
    join: impl Fn(A::Vec<S>, A::Vec<S>) -> A::Vec<S>,
) {
    for (v, to) in A::vectors_mut::<S>(to).iter_mut().enumerate() {
        let mut joined = *to;
        for unit in of.iter().step_by(step) {
            joined = join(joined, A::vectors::<S>(unit)[v]);
        }
        *to = joined;
    }
}

/// Turns logits `[slot][wide]` into probabilities, and products of cotangents and values into `scale` times the gradients of
/// logits, given the log-sum-exps and deltas of the lanes.
pub(super) fn gradients<A: Real>(
    logits: &mut [A],
    products: &mut [A],
    [lse, delta]: [&[A]; 2],
    scale: A,
) {
    vectorized(Gradients {
        logits,
        products,
        lse,
        delta,
        scale,
    });
}

struct Gradients<'a, A> {
    logits: &'a mut [A],
    products: &'a mut [A],
    lse: &'a [A],
    delta: &'a [A],
    scale: A,
}

impl<A: Real> WithSimd for Gradients<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (logits, _) = pulp::as_arrays_mut::<UNIT, A>(self.logits);
        let (products, _) = pulp::as_arrays_mut::<UNIT, A>(self.products);
        let [(lse, _), (delta, _)] = [self.lse, self.delta].map(pulp::as_arrays::<UNIT, A>);
        let lanes = lse.iter().zip(delta).cycle();
        for ((p, ds), (lse, delta)) in logits.iter_mut().zip(products).zip(lanes) {
            for l in 0..UNIT {
                p[l] = exp_in::<S, A>(p[l] - lse[l]);
                ds[l] = self.scale * p[l] * (ds[l] - delta[l]);
            }
        }
    }
}
