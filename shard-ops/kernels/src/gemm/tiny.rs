//! Products of a few numbers, such as rotations, and of a vector with short rows: to prepare a product of tiles takes longer than they.

use super::{Mat, MatMut, check_operands, check_results};
use crate::Real;
use crate::arrays::{each, numbered};
use crate::exp::fused;
use crate::pointwise::vectorized;
use crate::reduce::LANES;
use crate::softmax::short::{ROWS, load, store};
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// The most numbers that are multiplied.
const PRODUCTS: usize = 64;

/// The most numbers that are multiplied in each of many products that are computed together.
const PRODUCTS_OF_MANY: usize = 512;

/// The most numbers of a matrix of such products.
const NUMBERS: usize = 64;

/// Terms of a sum: fewer are added to what is there one by one.
const TERMS: core::ops::RangeInclusive<usize> = 3..=16;

/// The most terms of a product of rows with columns that all lie side by side. More of them may be more than a vector has lanes.
const IN_LANES: usize = 4;

/// The fewest rows that are multiplied with a vector many at a time.
const MANY: usize = 16;

/// Whether a product of these extents is computed here, with terms added as the crate adds them, so that the order of a sum does not depend on
/// how many there are.
///
/// Of rows and columns that [lie side by side](by_lanes) the crate adds up lanes, unless there are many of both; otherwise it adds terms one
/// after the other, to what is there if there is but one row or column.
#[inline]
pub(super) fn pays<T>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    accumulate: bool,
) -> bool {
    if !TERMS.contains(&k) {
        return false;
    }
    let is_small = m.saturating_mul(n).saturating_mul(k) <= PRODUCTS;
    match m.min(n) {
        _ if by_lanes(a, b) => k <= IN_LANES && (is_small || n == 1),
        1 => is_small && !accumulate,
        _ => is_small,
    }
}

/// Whether the numbers of rows on the left, and those of columns on the right, lie side by side.
#[inline]
fn by_lanes<T>(a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    a.col_step == 1 && b.row_step == 1
}

/// As [`gemm`](super::gemm). Matrices are looked at with bounds checked.
pub(super) fn product<T: Real>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    c: &mut MatMut<'_, T>,
    accumulate: bool,
) {
    let in_lanes = by_lanes(a, b);
    if in_lanes && n == 1 && m >= MANY {
        return vectorized(Rows {
            extent: [m, k],
            a,
            b,
            c,
            accumulate,
        });
    }
    vectorized(Tiny {
        extent: [m, n, k],
        a,
        b,
        c,
        accumulate,
        in_lanes,
    });
}

/// Products of so many matrices, whose operands and results lie `steps` apart, if they are computed here together: a product to a lane.
pub(super) fn products<T: Real>(
    [m, n, k]: [usize; 3],
    [a, b]: [&Mat<'_, T>; 2],
    c: &mut MatMut<'_, T>,
    (count, steps): (usize, [isize; 3]),
    accumulate: bool,
) -> bool {
    if count < TOGETHER / 2 || !pays_together([m, n, k], a, b, accumulate) {
        return false;
    }
    // What lies between the first and the last lies between their elements.
    let last = |offset: usize, step: isize| offset.wrapping_add_signed((count as isize - 1) * step);
    let [of_a, of_b] = [(a, steps[0]), (b, steps[1])].map(|(of, step)| Mat {
        offset: last(of.offset, step),
        ..*of
    });
    let of_c = MatMut {
        data: &mut *c.data,
        offset: last(c.offset, steps[2]),
        row_step: c.row_step,
        col_step: c.col_step,
    };
    check_results([m, n], &of_c);
    check_results([m, n], c);
    check_operands([m, n, k], a, b);
    check_operands([m, n, k], &of_a, &of_b);
    vectorized(Many {
        extent: [m, n, k],
        count,
        steps,
        in_lanes: by_lanes(a, b),
        a,
        b,
        c,
        accumulate,
    });
    true
}

/// Whether many products of these extents are computed together. Of more numbers than are computed here one by one those are which the crate adds up
/// in the same order.
fn pays_together<T>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    accumulate: bool,
) -> bool {
    let products = m.saturating_mul(n).saturating_mul(k);
    if products <= PRODUCTS {
        return pays([m, n, k], a, b, accumulate);
    }
    let numbers = (m * n).max(m * k).max(n * k);
    let is_small = products <= PRODUCTS_OF_MANY && numbers <= NUMBERS;
    is_small && TERMS.contains(&k) && m.min(n) > 1 && !by_lanes(a, b)
}

/// How many products are computed together.
const TOGETHER: usize = ROWS;

/// The sum of lanes, of which the last ones may be zeros, in halves.
#[inline(always)]
fn halved<T: Real>([a, b, c, d]: [T; IN_LANES]) -> T {
    (a + c) + (b + d)
}

/// A sum with a term more.
#[inline(always)]
fn added<S: Simd, T: Real>(x: T, y: T, sum: T) -> T {
    if const { fused::<S>() } {
        x.mul_add(y, sum)
    } else {
        x * y + sum
    }
}

struct Tiny<'a, 'c, T> {
    extent: [usize; 3],
    a: &'a Mat<'a, T>,
    b: &'a Mat<'a, T>,
    c: &'a mut MatMut<'c, T>,
    accumulate: bool,
    in_lanes: bool,
}

impl<T: Real> WithSimd for Tiny<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (a, b, c) = (self.a, self.b, self.c);
        let [m, n, k] = self.extent;
        for i in 0..m {
            for j in 0..n {
                let sum = if self.in_lanes {
                    let mut lanes = [T::zero(); IN_LANES];
                    for (l, lane) in lanes.iter_mut().enumerate().take(k) {
                        *lane = a.at(i, l) * b.at(l, j);
                    }
                    halved(lanes)
                } else {
                    (0..k).fold(T::zero(), |sum, l| {
                        added::<S, T>(a.at(i, l), b.at(l, j), sum)
                    })
                };
                let step = i as isize * c.row_step + j as isize * c.col_step;
                let to = &mut c.data[c.offset.wrapping_add_signed(step)];
                *to = if self.accumulate { *to + sum } else { sum };
            }
        }
    }
}

struct Many<'a, 'c, T> {
    extent: [usize; 3],
    count: usize,
    steps: [isize; 3],
    a: &'a Mat<'a, T>,
    b: &'a Mat<'a, T>,
    c: &'a mut MatMut<'c, T>,
    accumulate: bool,
    in_lanes: bool,
}

impl<T: Real> WithSimd for Many<'_, '_, T> {
    type Output = ();

    /// As [`Tiny`] has it of each, so that no number depends on how many products there are.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ([m, n, k], c) = (self.extent, self.c);
        let left = Lanes::of([m, k], [self.a.row_step, self.a.col_step], self.steps[0]);
        let right = Lanes::of([k, n], [self.b.row_step, self.b.col_step], self.steps[1]);
        let to = Lanes::of([m, n], [c.row_step, c.col_step], self.steps[2]);
        let mut room = [[[T::zero(); TOGETHER]; NUMBERS]; 3];
        for first in (0..self.count).step_by(TOGETHER) {
            let some = first..self.count.min(first + TOGETHER);
            let [a, b, made] = &mut room;
            left.load(self.a.data, self.a.offset, some.clone(), a);
            right.load(self.b.data, self.b.offset, some.clone(), b);
            if self.accumulate {
                to.load(c.data, c.offset, some.clone(), made);
            }
            for i in 0..m {
                for j in 0..n {
                    let factors = |l: usize| (&a[left.at(i, l)], &b[right.at(l, j)]);
                    let mut sums = [T::zero(); TOGETHER];
                    if self.in_lanes {
                        let mut terms = [[T::zero(); TOGETHER]; IN_LANES];
                        for (l, terms) in terms.iter_mut().enumerate().take(k) {
                            let (x, y) = factors(l);
                            *terms = numbered(|r| x[r] * y[r]);
                        }
                        sums = numbered(|r| halved(each(terms, |terms| terms[r])));
                    } else {
                        for l in 0..k {
                            let (x, y) = factors(l);
                            sums = numbered(|r| added::<S, T>(x[r], y[r], sums[r]));
                        }
                    }
                    let made = &mut made[to.at(i, j)];
                    *made = match self.accumulate {
                        true => numbered(|r| made[r] + sums[r]),
                        false => sums,
                    };
                }
            }
            to.store(made, c.data, c.offset, some);
        }
    }
}

/// Where the numbers of many matrices lie, of which those of one place are brought side by side.
struct Lanes {
    extent: [usize; 2],
    steps: [isize; 2],
    apart: isize,
    /// Steps of places where they are brought.
    here: [usize; 2],
    /// Whether the matrices lie one behind the other, without gaps: then they are brought as short rows are turned.
    is_dense: bool,
}

impl Lanes {
    fn of(extent: [usize; 2], steps: [isize; 2], apart: isize) -> Self {
        let [rows, columns] = extent;
        let lies = |here: [usize; 2]| {
            let follows = |d: usize| extent[d] == 1 || steps[d] == here[d] as isize;
            (follows(0) && follows(1)).then_some(here)
        };
        let dense = lies([columns, 1]).or_else(|| lies([1, rows]));
        Self {
            extent,
            steps,
            apart,
            here: dense.unwrap_or([columns, 1]),
            is_dense: dense.is_some() && apart == (rows * columns) as isize,
        }
    }

    /// Where the numbers of a place are brought.
    #[inline(always)]
    fn at(&self, i: usize, j: usize) -> usize {
        i * self.here[0] + j * self.here[1]
    }

    #[inline(always)]
    fn load<T: Real>(
        &self,
        data: &[T],
        offset: usize,
        some: Range<usize>,
        to: &mut [[T; TOGETHER]],
    ) {
        let len = self.extent[0] * self.extent[1];
        if self.is_dense {
            let x = &data[offset + some.start * len..][..some.len() * len];
            return load(x, len, &mut to[..len]);
        }
        self.each_place(
            #[inline(always)]
            |at, place| {
                for (r, to) in some.clone().zip(&mut to[place]) {
                    let step = at + r as isize * self.apart;
                    *to = data[offset.wrapping_add_signed(step)];
                }
            },
        );
    }

    #[inline(always)]
    fn store<T: Real>(
        &self,
        from: &[[T; TOGETHER]],
        data: &mut [T],
        offset: usize,
        some: Range<usize>,
    ) {
        let len = self.extent[0] * self.extent[1];
        if self.is_dense {
            let to = &mut data[offset + some.start * len..][..some.len() * len];
            return store(&from[..len], len, to);
        }
        self.each_place(
            #[inline(always)]
            |at, place| {
                for (r, from) in some.clone().zip(&from[place]) {
                    let step = at + r as isize * self.apart;
                    data[offset.wrapping_add_signed(step)] = *from;
                }
            },
        );
    }

    /// Visits where the number of each place lies in the first matrix, and where it is brought.
    #[inline(always)]
    fn each_place(&self, mut visit: impl FnMut(isize, usize)) {
        for i in 0..self.extent[0] {
            for j in 0..self.extent[1] {
                let at = i as isize * self.steps[0] + j as isize * self.steps[1];
                visit(at, self.at(i, j));
            }
        }
    }
}

/// Rows of a matrix, whose numbers lie side by side, times a column.
struct Rows<'a, 'c, T> {
    extent: [usize; 2],
    a: &'a Mat<'a, T>,
    b: &'a Mat<'a, T>,
    c: &'a mut MatMut<'c, T>,
    accumulate: bool,
}

impl<T: Real> WithSimd for Rows<'_, '_, T> {
    type Output = ();

    /// Many rows side by side: vectors are of the numbers that one column has in each.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ([rows, k], c) = (self.extent, self.c);
        for first in (0..rows).step_by(LANES) {
            let count = LANES.min(rows - first);
            let mut columns = [[T::zero(); LANES]; IN_LANES];
            for (l, column) in columns.iter_mut().enumerate().take(k) {
                let factor = self.b.at(l, 0);
                for (i, x) in column[..count].iter_mut().enumerate() {
                    *x = self.a.at(first + i, l) * factor;
                }
            }
            let sums: [T; LANES] = numbered(|i| halved(each(columns, |column| column[i])));
            for (i, sum) in sums[..count].iter().enumerate() {
                let step = (first + i) as isize * c.row_step;
                let to = &mut c.data[c.offset.wrapping_add_signed(step)];
                *to = if self.accumulate { *to + *sum } else { *sum };
            }
        }
    }
}
