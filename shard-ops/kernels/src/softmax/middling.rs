//! Softmax of rows of a few vectors, four rows at a time: lane by lane first, and then over lanes for all four at once. To find the largest
//! element of one row by itself, or its sum, takes longer than its exponentials.

use crate::Real;
use crate::arrays::{each, numbered};
use crate::exp::exp_in;
use crate::turn::{SIDE, turned};
use pulp::Simd;

/// Elements of a row that go together. The last ones of a row go with some before them.
const LANES: usize = 16;
/// The most of these of a row. Rows of 64 by themselves take as long.
const MOST: usize = 4;

type Lanes<T> = [T; LANES];

/// Whether there are rows of this kind, of `n` elements each: with few that go twice.
pub(super) fn are_there(rows: usize, n: usize) -> bool {
    let go = n.next_multiple_of(LANES);
    rows >= SIDE && (LANES..LANES * MOST).contains(&n) && 3 * go <= 4 * n
}

/// Writes the softmax of rows, or its logarithm.
#[inline(always)]
pub(super) fn values<T: Real, S: Simd>(log: bool, x: &[T], n: usize, out: &mut [T]) {
    let mut kept = [[[T::zero(); LANES]; MOST]; SIDE];
    for_each_four(x.len() / n, |first| {
        let mut most = [[T::neg_infinity(); LANES]; SIDE];
        for (i, most) in most.iter_mut().enumerate() {
            let row = &x[(first + i) * n..][..n];
            *most = lanes(row, n - LANES);
            for k in 0..n / LANES {
                *most = both(*most, lanes(row, k * LANES), larger);
            }
        }
        let most = joined(most, larger);
        let mut sums = [[T::zero(); LANES]; SIDE];
        for i in 0..SIDE {
            let row = &x[(first + i) * n..][..n];
            for (k, kept) in kept[i].iter_mut().enumerate().take(n / LANES) {
                let below = lane_by_lane(lanes(row, k * LANES), |x| x - most[i]);
                let e = lane_by_lane(below, |x| exp_in::<S, T>(x));
                sums[i] = both(sums[i], e, add);
                *kept = if log { below } else { e };
            }
            if !n.is_multiple_of(LANES) {
                let below = lane_by_lane(lanes(row, n - LANES), |x| x - most[i]);
                let e = lane_by_lane(below, |x| exp_in::<S, T>(x));
                sums[i] = both(sums[i], last_of(n, e), add);
                kept[i][n / LANES] = if log { below } else { e };
            }
        }
        let total = each(joined(sums, add), Real::wide);
        let of = each(total, |t| T::of(if log { t.ln() } else { 1.0 / t }));
        for i in 0..SIDE {
            let out = &mut out[(first + i) * n..][..n];
            let value = |x: T| if log { x - of[i] } else { x * of[i] };
            for k in 0..n / LANES {
                out[k * LANES..][..LANES].copy_from_slice(&lane_by_lane(kept[i][k], value));
            }
            if !n.is_multiple_of(LANES) {
                out[n - LANES..].copy_from_slice(&lane_by_lane(kept[i][n / LANES], value));
            }
        }
    });
}

/// Writes the derivative of [`values`], given the result and its cotangent.
#[inline(always)]
pub(super) fn gradients<T: Real, S: Simd>(log: bool, y: &[T], dy: &[T], n: usize, out: &mut [T]) {
    for_each_four(y.len() / n, |first| {
        let mut sums = [[T::zero(); LANES]; SIDE];
        let term = |y: T, dy: T| if log { dy } else { y * dy };
        for i in 0..SIDE {
            let [y, dy] = [&y[(first + i) * n..][..n], &dy[(first + i) * n..][..n]];
            for k in 0..n / LANES {
                let terms = both(lanes(y, k * LANES), lanes(dy, k * LANES), term);
                sums[i] = both(sums[i], terms, add);
            }
            if !n.is_multiple_of(LANES) {
                let terms = both(lanes(y, n - LANES), lanes(dy, n - LANES), term);
                sums[i] = both(sums[i], last_of(n, terms), add);
            }
        }
        let total = joined(sums, add);
        for i in 0..SIDE {
            let [y, dy] = [&y[(first + i) * n..][..n], &dy[(first + i) * n..][..n]];
            let out = &mut out[(first + i) * n..][..n];
            let value = |y: T, dy: T| {
                if log {
                    dy - exp_in::<S, T>(y) * total[i]
                } else {
                    y * (dy - total[i])
                }
            };
            for k in 0..n / LANES {
                let values = both(lanes(y, k * LANES), lanes(dy, k * LANES), value);
                out[k * LANES..][..LANES].copy_from_slice(&values);
            }
            if !n.is_multiple_of(LANES) {
                let values = both(lanes(y, n - LANES), lanes(dy, n - LANES), value);
                out[n - LANES..].copy_from_slice(&values);
            }
        }
    });
}

/// Calls `f` with the first of four rows until all were there; the last four may have some again.
#[inline(always)]
fn for_each_four(rows: usize, mut f: impl FnMut(usize)) {
    for first in (0..rows).step_by(SIDE) {
        f(first.min(rows - SIDE));
    }
}

#[inline(always)]
fn lanes<T: Real>(row: &[T], at: usize) -> Lanes<T> {
    let mut lanes = [T::zero(); LANES];
    lanes.copy_from_slice(&row[at..at + LANES]);
    lanes
}

/// As [`each`], which takes the first lane apart from the others: they would be no whole vector.
#[inline(always)]
fn lane_by_lane<T: Real>(of: Lanes<T>, f: impl Fn(T) -> T) -> Lanes<T> {
    both(of, of, |x, _| f(x))
}

#[inline(always)]
fn both<T: Real>(a: Lanes<T>, b: Lanes<T>, f: impl Fn(T, T) -> T) -> Lanes<T> {
    let mut out = a;
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane]);
    }
    out
}

/// Of the last lanes of a row what is in no others, and otherwise 0.
#[inline(always)]
fn last_of<T: Real>(n: usize, of: Lanes<T>) -> Lanes<T> {
    let others = LANES - n % LANES;
    let mut out = of;
    for (lane, x) in out.iter_mut().enumerate() {
        *x = if lane < others { T::zero() } else { *x };
    }
    out
}

#[inline(always)]
fn add<T: Real>(a: T, b: T) -> T {
    a + b
}

/// NaN is passed over here, and kept by sums.
#[inline(always)]
fn larger<T: Real>(most: T, x: T) -> T {
    if x > most { x } else { most }
}

/// The lanes of each row as one number: those of four rows at a time, with rows and columns exchanged.
#[inline(always)]
fn joined<T: Real>(rows: [Lanes<T>; SIDE], join: impl Fn(T, T) -> T) -> [T; SIDE] {
    let mut fours = [[T::zero(); SIDE]; SIDE];
    for (fours, row) in fours.iter_mut().zip(&rows) {
        let (row, _) = row.as_chunks::<SIDE>();
        *fours = pairs([row[0], row[1], row[2], row[3]], &join);
    }
    pairs(turned(fours), &join)
}

#[inline(always)]
fn pairs<T: Real>(of: [[T; SIDE]; SIDE], join: impl Fn(T, T) -> T) -> [T; SIDE] {
    numbered(|i| join(join(of[0][i], of[1][i]), join(of[2][i], of[3][i])))
}
