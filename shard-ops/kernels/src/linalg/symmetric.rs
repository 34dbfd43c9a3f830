//! `A = L D Lᵀ` of symmetric matrices that need not be positive, by Bunch and Kaufman's pivots (1977), as LAPACK's `sytf2` and `sytrs` have it:
//! `D` has blocks of one and of two rows, and factors and interchanges are kept as they are made.

use super::{for_each_of, list, matrices, read, scaled, write, write_each};
use crate::{Real, View, ViewMut};
use faer::Mat;

/// For every matrix of `x`, of which the lower triangle is read, `D` on the diagonal and beside it, and what makes `L` below; zeros are above.
/// A pivot is the row, counted from 1, that a block's own was interchanged with; of blocks of two both are its negative, of the second row.
/// Factors of what is not finite are NaN.
///
/// # Panics
/// When shapes do not belong together.
pub fn symmetric_factors<T: Real>(
    x: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
    pivots: &mut ViewMut<'_, i32>,
) {
    let (batch, n, _) = matrices(x.shape());
    for_each_of(batch, |index| {
        let a = read(x, index, n, n);
        let is_finite = scaled(a.as_ref(), |i, j| i >= j).is_some();
        let mut made = Mat::from_fn(n, n, |i, j| if i >= j { a[(i, j)] } else { 0.0 });
        let rows = match is_finite {
            true => factored(&mut made),
            false => (1..=n as i32).collect(),
        };
        write(out, index, is_finite.then_some(&made));
        write_each(pivots, index, |i, _| rows[i]);
    });
}

/// `A X = B` for the factors and pivots of every matrix, and those of `b`; the batch dims are those of `out`. Pivots that no factors have make
/// NaN.
///
/// # Panics
/// When shapes do not belong together.
pub fn symmetric_solve<T: Real>(
    factors: &View<'_, T>,
    pivots: &View<'_, i32>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let (batch, n, columns) = matrices(b.shape());
    for_each_of(batch, |index| {
        let a = read(factors, index, n, n);
        let found = blocks(&list(pivots, index), n).map(|blocks| {
            let mut x = read(b, index, n, columns);
            solved(&a, &blocks, &mut x);
            x
        });
        write(out, index, found.as_ref());
    });
}

/// A block of `D`: its first row, whether it has a second, and the row that its last was interchanged with.
struct Block {
    at: usize,
    is_pair: bool,
    other: usize,
}

impl Block {
    fn last(&self) -> usize {
        self.at + usize::from(self.is_pair)
    }
}

fn blocks(pivots: &[i32], n: usize) -> Option<Vec<Block>> {
    let (mut blocks, mut at) = (Vec::new(), 0);
    while at < n {
        let pivot = *pivots.get(at)?;
        let is_pair = pivot < 0;
        let other = (pivot.unsigned_abs() as usize).checked_sub(1)?;
        if other >= n || is_pair && pivots.get(at + 1) != Some(&pivot) {
            return None;
        }
        let block = Block { at, is_pair, other };
        at = block.last() + 1;
        blocks.push(block);
    }
    Some(blocks)
}

/// The row of the greatest element among some of a column, and its size.
fn greatest(sizes: impl Iterator<Item = (usize, f64)>) -> (usize, f64) {
    sizes.fold((0, 0.0), |best, (i, x)| match x.abs() {
        x if x > best.1 => (i, x),
        _ => best,
    })
}

fn factored(a: &mut Mat<f64>) -> Vec<i32> {
    // (1 + √17) / 8 bounds what elements grow by, of one step of two rows as of two of one.
    let alpha = (1.0 + 17_f64.sqrt()) / 8.0;
    let n = a.nrows();
    let (mut pivots, mut k) = (vec![0; n], 0);
    while k < n {
        let own = a[(k, k)].abs();
        let (row, in_column) = greatest((k + 1..n).map(|i| (i, a[(i, k)])));
        let (other, is_pair) = if own.max(in_column) == 0.0 || own >= alpha * in_column {
            (k, false)
        } else {
            let before = (k..row).map(|j| (j, a[(row, j)]));
            let behind = (row + 1..n).map(|i| (i, a[(i, row)]));
            let (_, in_row) = greatest(before.chain(behind));
            if own >= alpha * in_column * (in_column / in_row) {
                (k, false)
            } else {
                (row, a[(row, row)].abs() < alpha * in_row)
            }
        };
        let block = Block {
            at: k,
            is_pair,
            other,
        };
        interchange(a, &block);
        match is_pair {
            false if a[(k, k)] != 0.0 => eliminate_one(a, k),
            false => {}
            true => eliminate_two(a, k),
        }
        let number = other as i32 + 1;
        for pivot in &mut pivots[k..=block.last()] {
            *pivot = if is_pair { -number } else { number };
        }
        k = block.last() + 1;
    }
    pivots
}

/// Interchanges a block's last row and column with others of the lower triangle.
fn interchange(a: &mut Mat<f64>, block: &Block) {
    let (own, other, n) = (block.last(), block.other, a.nrows());
    if own == other {
        return;
    }
    let mut swap = |x: (usize, usize), y: (usize, usize)| (a[x], a[y]) = (a[y], a[x]);
    for i in other + 1..n {
        swap((i, own), (i, other));
    }
    for i in own + 1..other {
        swap((i, own), (other, i));
    }
    swap((own, own), (other, other));
    if block.is_pair {
        swap((own, block.at), (other, block.at));
    }
}

fn eliminate_one(a: &mut Mat<f64>, k: usize) {
    let (n, over) = (a.nrows(), a[(k, k)].recip());
    for j in k + 1..n {
        let step = over * a[(j, k)];
        for i in j..n {
            let x = a[(i, k)];
            a[(i, j)] -= x * step;
        }
    }
    for i in k + 1..n {
        a[(i, k)] *= over;
    }
}

fn eliminate_two(a: &mut Mat<f64>, k: usize) {
    let n = a.nrows();
    let beside = a[(k + 1, k)];
    let (second, first) = (a[(k + 1, k + 1)] / beside, a[(k, k)] / beside);
    let over = (second * first - 1.0).recip() / beside;
    for j in k + 2..n {
        let (x, y) = (a[(j, k)], a[(j, k + 1)]);
        let steps = [over * (second * x - y), over * (first * y - x)];
        for i in j..n {
            let (x, y) = (a[(i, k)], a[(i, k + 1)]);
            a[(i, j)] -= x * steps[0] + y * steps[1];
        }
        [a[(j, k)], a[(j, k + 1)]] = steps;
    }
}

/// Solves for the columns of `x`, in place.
fn solved(a: &Mat<f64>, blocks: &[Block], x: &mut Mat<f64>) {
    let n = x.nrows();
    for c in 0..x.ncols() {
        let mut column: Vec<f64> = (0..n).map(|i| x[(i, c)]).collect();
        for block in blocks {
            column.swap(block.last(), block.other);
            eliminated(a, block, &mut column);
        }
        for block in blocks.iter().rev() {
            let last = block.last();
            for j in block.at..=last {
                let taken: f64 = (last + 1..n).map(|i| a[(i, j)] * column[i]).sum();
                column[j] -= taken;
            }
            column.swap(last, block.other);
        }
        for (i, found) in column.into_iter().enumerate() {
            x[(i, c)] = found;
        }
    }
}

/// Takes from the elements of a column behind a block's what these are there, and divides these by the block.
fn eliminated(a: &Mat<f64>, block: &Block, x: &mut [f64]) {
    let (k, last) = (block.at, block.last());
    for i in last + 1..x.len() {
        let taken: f64 = (k..=last).map(|j| a[(i, j)] * x[j]).sum();
        x[i] -= taken;
    }
    if !block.is_pair {
        x[k] /= a[(k, k)];
        return;
    }
    let beside = a[(last, k)];
    let (first, second) = (a[(k, k)] / beside, a[(last, last)] / beside);
    let under = first * second - 1.0;
    let (y, z) = (x[k] / beside, x[last] / beside);
    x[k] = (second * y - z) / under;
    x[last] = (first * z - y) / under;
}
