//! Loops over queries side by side: one lane per query, so that nothing is summed across lanes.

use super::block::{Block, MARGIN, UNIT};
use crate::scratch::Scratch;
use crate::Real;
use crate::exp::exp_in;
use crate::pointwise::vectorized;
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
    /// Rows that are read side by side, so that several elements are written at once.
    const TOGETHER: usize = 8;
    let whole = count / TOGETHER * TOGETHER;
    for x in (0..whole).step_by(TOGETHER) {
        let from: [&[A]; TOGETHER] = core::array::from_fn(|k| &rows.row(x + k)[..rows.dim]);
        for i in 0..rows.dim {
            let elements: [A; TOGETHER] = core::array::from_fn(|k| from[k][i] * factor);
            to[i * wide + at + x..][..TOGETHER].copy_from_slice(&elements);
        }
    }
    for x in whole..count {
        for (to, v) in to.chunks_exact_mut(wide).zip(rows.row(x)) {
            to[at + x] = *v * factor;
        }
    }
}

/// A line of keys as the queries of a block see it.
#[derive(Debug)]
pub(super) struct Line<'a, A> {
    /// `[dim][padded]`
    turned: &'a mut [A],
    /// `[slot][dim][wide]`; anything where nothing is seen.
    keys: &'a mut [A],
}

impl<'a, A: Real> Line<'a, A> {
    /// How many numbers one takes.
    pub(super) fn numbers(block: &Block, dim: usize) -> usize {
        dim * (block.padded() + block.slots * block.wide)
    }

    pub(super) fn new(scratch: &mut Scratch<'a, A>, block: &Block, dim: usize) -> Self {
        Self {
            turned: scratch.take(dim * block.padded()),
            keys: scratch.take(block.slots * dim * block.wide),
        }
    }

    /// Reads the rows of the keys that some query of the block sees.
    pub(super) fn read(&mut self, rows: Rows<'_, A>, block: &Block) {
        let (dim, wide, padded) = (rows.dim, block.wide, block.padded());
        if self.keys.is_empty() {
            return;
        }
        let count = block.keys.len();
        turn(rows, count, A::one(), self.turned, [padded, MARGIN]);
        vectorized(Shifted {
            from: self.turned,
            padded,
            shifts: &block.shifts,
            to: self.keys,
            wide,
        });
        // One lane through all rows, so that its places in them are checked once.
        for &[slot, lane, key] in &block.instead {
            let to = self.keys[slot * dim * wide..].chunks_exact_mut(wide);
            for (to, from) in to.zip(self.turned.chunks_exact(padded)) {
                to[lane] = from[key];
            }
        }
    }

    /// Writes the products of queries `[dim][wide]` with the keys they see, `[slot][wide]`.
    pub(super) fn products(&self, queries: &[A], block: &Block, out: &mut [A]) {
        if queries.is_empty() {
            out.fill(A::zero());
        } else {
            vectorized(Products {
                queries,
                keys: self.keys,
                wide: block.wide,
                out,
            });
        }
    }
}

/// Copies each slot's keys to its lanes.
struct Shifted<'a, A> {
    from: &'a [A],
    padded: usize,
    shifts: &'a [usize],
    to: &'a mut [A],
    wide: usize,
}

impl<A: Real> WithSimd for Shifted<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let dim = self.from.len() / self.padded;
        let slots = self.to.chunks_exact_mut(dim * self.wide);
        for (to, &shift) in slots.zip(self.shifts) {
            let rows = self.from.chunks_exact(self.padded);
            for (to, from) in to.chunks_exact_mut(self.wide).zip(rows) {
                let (to, _) = pulp::as_arrays_mut::<UNIT, A>(to);
                let (from, _) = pulp::as_arrays::<UNIT, A>(&from[shift..]);
                for (to, from) in to.iter_mut().zip(from) {
                    *to = *from;
                }
            }
        }
    }
}

struct Products<'a, A> {
    queries: &'a [A],
    keys: &'a [A],
    wide: usize,
    out: &'a mut [A],
}

impl<A: Real> WithSimd for Products<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let slots = self.out.len() / self.wide;
        let mut slot = 0;
        while slot < slots {
            if slots - slot > 3 {
                self.slots::<S, 5>(simd, slot);
                slot += 5;
            } else {
                self.slots::<S, 3>(simd, slot);
                slot += 3;
            }
        }
    }
}

impl<A: Real> Products<'_, A> {
    /// `N` slots from `slot` on. Where there are fewer the last one is found again.
    #[inline(always)]
    fn slots<S: Simd, const N: usize>(&mut self, simd: S, slot: usize) {
        let vectors = self.wide / A::lanes::<S>();
        let mut first = 0;
        while first + 2 <= vectors {
            self.tile::<S, N, 2>(simd, slot, first);
            first += 2;
        }
        if first < vectors {
            self.tile::<S, N, 1>(simd, slot, first);
        }
    }

    /// `N` slots by `NV` vectors of queries, summed over the elements of a head in registers.
    #[inline(always)]
    fn tile<S: Simd, const N: usize, const NV: usize>(
        &mut self,
        simd: S,
        slot: usize,
        first: usize,
    ) {
        let vectors = self.wide / A::lanes::<S>();
        let queries = A::vectors::<S>(self.queries);
        let size = queries.len();
        let last = self.keys.len() / self.queries.len() - 1;
        let slots: [usize; N] = core::array::from_fn(|j| (slot + j).min(last));
        let all = A::vectors::<S>(self.keys);
        let queries = &queries[first..];
        let len = size - first;
        let keys: [&[A::Vec<S>]; N] =
            core::array::from_fn(|j| &all[slots[j] * size + first..][..len]);
        let mut sums = [[A::splat(simd, A::zero()); NV]; N];
        let mut at = 0;
        while at + NV <= len {
            let q: [A::Vec<S>; NV] = core::array::from_fn(|v| queries[at + v]);
            for j in 0..N {
                for v in 0..NV {
                    sums[j][v] = A::mul_add_vec(simd, q[v], keys[j][at + v], sums[j][v]);
                }
            }
            at += vectors;
        }
        let out = A::vectors_mut::<S>(self.out);
        for (slot, sums) in slots.iter().zip(&sums) {
            out[slot * vectors + first..][..NV].copy_from_slice(sums);
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
    fn with_simd<S: Simd>(self, _: S) {
        let (sums, _) = pulp::as_arrays_mut::<UNIT, A>(self.sums);
        let (logits, _) = pulp::as_arrays_mut::<UNIT, A>(self.logits);
        let units = sums.len();
        for (unit, lse) in sums.iter_mut().enumerate() {
            let mut most = [A::neg_infinity(); UNIT];
            for logits in logits[unit..].iter().step_by(units) {
                for (most, x) in most.iter_mut().zip(logits) {
                    *most = if *x > *most { *x } else { *most };
                }
            }
            for most in &mut most {
                // A difference from -inf would not be a number.
                *most = if *most == A::neg_infinity() {
                    A::zero()
                } else {
                    *most
                };
            }
            let mut sums = [A::zero(); UNIT];
            for logits in logits[unit..].iter_mut().step_by(units) {
                for ((x, most), sum) in logits.iter_mut().zip(&most).zip(&mut sums) {
                    *x = exp_in::<S, A>(*x - *most);
                    *sum += *x;
                }
            }
            let mut inverse = [A::zero(); UNIT];
            for (inverse, sum) in inverse.iter_mut().zip(&sums) {
                *inverse = if *sum == A::zero() {
                    A::zero()
                } else {
                    A::one() / *sum
                };
            }
            for logits in logits[unit..].iter_mut().step_by(units) {
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
