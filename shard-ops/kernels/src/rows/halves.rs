//! Rows that are stored in 16 bits, folded in `f32`.

use super::weighted::{ByKey, Visit};
use super::{AHEAD, Foldable, Here, MOST, RowFold, Rows, by_key, fold_with};
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::prefetch::prefetch;
use crate::reduce::Half;
use crate::scratch::Room;
use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Neighbouring elements from which on all rows of a key are folded before the next key's. Shorter ones go to a table in `f32`.
const LONG: usize = 16;
/// Elements of a row that are folded at once, so that their sums stay in the nearest cache.
const STRIP: usize = 512;
/// Bytes of rows that a cache near a core holds; of more, those of later keys are asked for.
const HELD: usize = 1 << 19;
/// A table of so many times as many rows as there are keys is written first, and then those rows that keys name.
const SPARSE: usize = 8;

compiled! { trait CompiledFold for Half: f16 bf16; {
    /// [`fold`](super::fold()) of rows as if they were `f32`, into a table that is rounded at the end. It begins with `base`, or with the fold of
    /// nothing. No key names a ghost.
    ///
    /// ```
    /// use half::bf16;
    /// use shard_kernels::rows::{RowDim, RowFold, Rows, fold_rounded};
    /// let src = [1.0, 2.0, 256.0, 4.0, 1.0, 6.0].map(bf16::from_f32);
    /// let mut table = [bf16::ONE; 4];
    /// let rows = Rows::new(&[(2, 2)], &[(3, 2)], &[RowDim::new(2, 1, 1)]);
    /// fold_rounded(RowFold::Sum, &rows, None, &[1, 1, 1], &src, &mut table);
    /// assert_eq!(table.map(f32::from), [0.0, 0.0, 258.0, 12.0]);
    /// ```
    ///
    /// # Panics
    /// As [`pick`](super::pick); when `base` and `table` have different lengths.
    pub fn fold_rounded<T>(
        how: RowFold,
        rows: &Rows,
        base: Option<&[T]>,
        keys: &[i64],
        src: &[T],
        table: &mut [T],
    ) = fold_rounded_here;

    /// [`fold`](super::fold()) of rows as if they were `f32`, into what is.
    ///
    /// # Panics
    /// As [`pick`](super::pick).
    pub fn fold_widened<T>(
        how: RowFold,
        rows: &Rows,
        table: &mut [f32],
        ghosts: &mut [f32],
        keys: &[i64],
        src: &[T],
    ) = fold_widened_here;
} }

/// Calls `$f` with the function that joins two numbers behind its arguments.
macro_rules! joined {
    ($how:expr, $f:ident($($arg:expr),*)) => {
        match $how {
            RowFold::Sum => $f($($arg,)* f32::plus),
            RowFold::Prod => $f($($arg,)* f32::times),
            RowFold::Max => $f($($arg,)* f32::larger),
            RowFold::Min => $f($($arg,)* f32::smaller),
        }
    };
}

fn fold_rounded_here<T: Half>(
    how: RowFold,
    rows: &Rows,
    base: Option<&[T]>,
    keys: &[i64],
    src: &[T],
    table: &mut [T],
) {
    let none = f32::identity(how);
    let is_sparse = keys.len() * SPARSE <= rows.keys;
    if rows.run >= LONG || rows.row_len == 1 && is_sparse {
        let named = match is_sparse {
            true => {
                fill(base, T::narrow(none), table);
                Named::sparse(keys)
            }
            false => Named::dense(keys, rows.keys),
        };
        return joined!(how, key_by_key(rows, &named, (base, none), src, table));
    }
    let mut memory = Room::new();
    let full: &mut [f32] = memory.numbers(table.len()).take(table.len());
    match base {
        Some(base) => T::widen_slice(base, full),
        None => full.fill(none),
    }
    fold_widened_here(how, rows, full, &mut [], keys, src);
    T::narrow_slice(full, table);
}

fn fold_widened_here<T: Half>(
    how: RowFold,
    rows: &Rows,
    table: &mut [f32],
    ghosts: &mut [f32],
    keys: &[i64],
    src: &[T],
) {
    joined!(how, into_full(rows, [table, ghosts], keys, src));
}

fn into_full<T: Half>(
    rows: &Rows,
    to: [&mut [f32]; 2],
    keys: &[i64],
    src: &[T],
    join: impl Fn(f32, f32) -> f32 + Copy,
) {
    if rows.columns().is_some() {
        let [table, ghosts] = to;
        return fold_with(rows, table, ghosts, keys, src, T::widen, join);
    }
    let wide = &mut [0.0; STRIP];
    let visit = IntoFull {
        to,
        src,
        wide,
        join,
    };
    vectorized(ByKey { rows, keys, visit });
}

struct IntoFull<'a, T, J> {
    to: [&'a mut [f32]; 2],
    src: &'a [T],
    wide: &'a mut [f32; STRIP],
    join: J,
}

impl<T: Half, J: Fn(f32, f32) -> f32 + Copy> Visit for IntoFull<'_, T, J> {
    #[inline(always)]
    fn run(&mut self, _: usize, is_ghost: bool, at: usize, other: usize, len: usize) {
        let to = &mut self.to[usize::from(is_ghost)][at..at + len];
        let from = &self.src[other..other + len];
        for (to, from) in to.chunks_mut(STRIP).zip(from.chunks(STRIP)) {
            join_run(to, from, self.wide, self.join);
        }
    }
}

/// Joins each number of a strip with one in 16 bits.
#[inline(always)]
fn join_run<T: Half>(
    to: &mut [f32],
    from: &[T],
    wide: &mut [f32; STRIP],
    join: impl Fn(f32, f32) -> f32,
) {
    if T::IN_REGISTERS {
        for (to, from) in to.iter_mut().zip(from) {
            *to = join(*to, from.widen());
        }
        return;
    }
    let wide = &mut wide[..from.len()];
    T::widen_slice(from, wide);
    for (to, &from) in to.iter_mut().zip(&*wide) {
        *to = join(*to, from);
    }
}

/// A table of what a fold begins with.
fn fill<T: Copy>(base: Option<&[T]>, none: T, table: &mut [T]) {
    match base {
        Some(base) => table.copy_from_slice(base),
        None => table.fill(none),
    }
}

/// Positions of a list by the row that their keys name, those of one row in order.
struct Named {
    order: Vec<i64>,
    /// Rows, ascending, and where the positions of each end.
    ends: Vec<(usize, usize)>,
}

impl Named {
    /// All rows of a table of so many.
    fn dense(keys: &[i64], rows: usize) -> Self {
        let (order, starts) = by_key(keys, rows);
        let ends = starts.iter().skip(1).map(|&end| end as usize);
        Self {
            order,
            ends: ends.enumerate().collect(),
        }
    }

    /// The rows that keys name.
    fn sparse(keys: &[i64]) -> Self {
        let all = 0..keys.len() as i64;
        let mut order: Vec<i64> = all.filter(|&i| keys[i as usize] >= 0).collect();
        // Of a list that is sorted already this only looks.
        order.sort_by_key(|&i| keys[i as usize]);
        let (mut ends, mut end) = (Vec::new(), 0);
        for group in order.chunk_by(|&i, &j| keys[i as usize] == keys[j as usize]) {
            end += group.len();
            ends.push((keys[group[0] as usize] as usize, end));
        }
        Self { order, ends }
    }

    /// Calls `f` with each row and which positions of the order are its.
    #[inline(always)]
    fn for_each(&self, mut f: impl FnMut(usize, Range<usize>)) {
        let mut begin = 0;
        for &(row, end) in &self.ends {
            f(row, begin..end);
            begin = end;
        }
    }
}

fn key_by_key<T: Half>(
    rows: &Rows,
    named: &Named,
    (base, none): (Option<&[T]>, f32),
    src: &[T],
    table: &mut [T],
    join: impl Fn(f32, f32) -> f32 + Copy,
) {
    vectorized(KeyByKey {
        rows,
        named,
        base,
        none,
        src,
        table,
        join,
    });
}

struct KeyByKey<'a, T, J> {
    rows: &'a Rows,
    named: &'a Named,
    base: Option<&'a [T]>,
    /// The fold of nothing.
    none: f32,
    src: &'a [T],
    table: &'a mut [T],
    join: J,
}

impl<T: Half, J: Fn(f32, f32) -> f32 + Copy> WithSimd for KeyByKey<'_, T, J> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let (rows, order) = (self.rows, &self.named.order[..]);
        let [mut sums, mut wide] = [[0.0; STRIP]; 2];
        let is_far = size_of_val(self.src) > HELD;
        self.named.for_each(
            #[inline(always)]
            |row, all| {
                let count = if is_far { all.len() } else { 0 };
                let later = order.iter().skip(all.start + AHEAD).take(count);
                for &number in later {
                    prefetch(self.src, rows.other(number as usize), rows.run.min(MOST));
                }
                let all = &order[all];
                rows.runs(
                    Here::Table,
                    (rows.at(row), 0),
                    #[inline(always)]
                    |to, other| self.run(all, to, other, [&mut sums, &mut wide]),
                );
            },
        );
    }
}

impl<T: Half, J: Fn(f32, f32) -> f32 + Copy> KeyByKey<'_, T, J> {
    /// Folds a run of the table with those that begin so far behind where the rows at these positions do.
    #[inline(always)]
    fn run(
        &mut self,
        positions: &[i64],
        to: usize,
        other: usize,
        [sums, wide]: [&mut [f32; STRIP]; 2],
    ) {
        let (rows, run) = (self.rows, self.rows.run);
        for first in (0..run).step_by(STRIP) {
            let len = STRIP.min(run - first);
            let sums = &mut sums[..len];
            let base = self.base.map(|base| &base[to + first..][..len]);
            let table = &mut self.table[to + first..][..len];
            if positions.is_empty() {
                fill(base, T::narrow(self.none), table);
                continue;
            }
            match base {
                Some(base) if T::IN_REGISTERS => {
                    for (sum, base) in sums.iter_mut().zip(base) {
                        *sum = base.widen();
                    }
                }
                Some(base) => T::widen_slice(base, sums),
                None => sums.fill(self.none),
            }
            for &number in positions {
                let from = rows.other(number as usize) + other + first;
                join_run(sums, &self.src[from..][..len], wide, self.join);
            }
            match T::IN_REGISTERS {
                true => {
                    for (to, &sum) in table.iter_mut().zip(&*sums) {
                        *to = T::narrow(sum);
                    }
                }
                false => T::narrow_slice(sums, table),
            }
        }
    }
}
