//! Weighted sums of rows, element by element of a head.

use super::block::Terms;
use super::lanes::Rows;
use crate::Real;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// Rows to write: as [`Rows`].
#[derive(Debug)]
pub(super) struct RowsMut<'a, A> {
    pub(super) data: &'a mut [A],
    pub(super) at: [usize; 2],
    pub(super) dim: usize,
}

/// `to[row] += Σ weight · rows[term]`, in the order of the terms.
pub(super) fn add_rows<A: Real>(
    terms: &Terms,
    weights: &[A],
    rows: Rows<'_, A>,
    to: RowsMut<'_, A>,
) {
    assert!(
        rows.dim == to.dim,
        "sums of rows of {} elements in rows of {}",
        rows.dim,
        to.dim
    );
    vectorized(Sums {
        terms,
        weights,
        rows,
        to,
    });
}

/// The sum of products of each row of `a` with that of `b`; both have `dim` elements.
pub(super) fn products_of_rows<A: Real>(a: &[A], b: &[A], dim: usize, out: &mut [A]) {
    vectorized(Dots { a, b, dim, out });
}

struct Dots<'a, A> {
    a: &'a [A],
    b: &'a [A],
    dim: usize,
    out: &'a mut [A],
}

impl<A: Real> WithSimd for Dots<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.dim == 0 {
            return;
        }
        let rows = self
            .a
            .chunks_exact(self.dim)
            .zip(self.b.chunks_exact(self.dim));
        for (out, (a, b)) in self.out.iter_mut().zip(rows) {
            let (x, y) = (A::vectors::<S>(a), A::vectors::<S>(b));
            let mut sums = A::splat(simd, A::zero());
            for (x, y) in x.iter().zip(y) {
                sums = A::mul_add_vec(simd, *x, *y, sums);
            }
            *out = A::sum_vec(simd, sums);
            let ends = a.iter().zip(b).skip(x.len() * A::lanes::<S>());
            for (a, b) in ends {
                *out += *a * *b;
            }
        }
    }
}

struct Sums<'a, A> {
    terms: &'a Terms,
    weights: &'a [A],
    rows: Rows<'a, A>,
    to: RowsMut<'a, A>,
}

impl<A: Real> WithSimd for Sums<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let lanes = A::lanes::<S>();
        let RowsMut { data, at, dim } = self.to;
        let [first, step] = at;
        let mut begin = 0;
        for &[row, end] in &self.terms.rows {
            let to = &mut data[first + row * step..][..dim];
            let terms = &self.terms.terms[begin..end];
            begin = end;
            let mut at = 0;
            while at + 2 * lanes <= dim {
                columns::<A, S, 2>(simd, terms, self.weights, self.rows, at, to);
                at += 2 * lanes;
            }
            while at + lanes <= dim {
                columns::<A, S, 1>(simd, terms, self.weights, self.rows, at, to);
                at += lanes;
            }
            for (i, to) in to.iter_mut().enumerate().skip(at) {
                for &[weight, row] in terms {
                    *to += self.weights[weight] * self.rows.row(row)[i];
                }
            }
        }
    }
}

/// `NV` vectors of a row from element `at` on. Sums stay in registers.
#[inline(always)]
fn columns<A: Real, S: Simd, const NV: usize>(
    simd: S,
    terms: &[[usize; 2]],
    weights: &[A],
    rows: Rows<'_, A>,
    at: usize,
    to: &mut [A],
) {
    let width = NV * A::lanes::<S>();
    let to = A::vectors_mut::<S>(&mut to[at..at + width]);
    let mut sums: [A::Vec<S>; NV] = core::array::from_fn(|v| to[v]);
    for &[weight, row] in terms {
        let weight = A::splat(simd, weights[weight]);
        let start = rows.at[0] + row * rows.at[1] + at;
        let x = A::vectors::<S>(&rows.data[start..start + width]);
        for v in 0..NV {
            sums[v] = A::mul_add_vec(simd, weight, x[v], sums[v]);
        }
    }
    to.copy_from_slice(&sums);
}
