//! Rows of a table by key: picked, folded into, and, if they are matrices, multiplied with.
//!
//! Of a table's dims some are *keyed*, the others make up its rows. A key is the row-major number of a place in the keyed
//! dims. Keys from [`Rows::keys`] on name *ghosts*: rows that lie side by side in memory of their own, as they came from
//! elsewhere or are to go there. A negative key names no row.

mod halves;
mod products;
mod weighted;

pub(crate) use self::halves::CompiledFold;
pub use self::halves::{fold_rounded, fold_widened};
pub use self::products::{OneProduct, multiply_each, outer_each};
pub(crate) use self::weighted::CompiledWeighted;
pub use self::weighted::{row_dots, spread, weigh};

use crate::compiled::compiled;
use crate::prefetch::{line as ask_for, prefetch};
use smallvec::SmallVec;

/// From how many neighbouring elements on a row is asked for, how many at most are, and how many rows before its turn.
const LONG: usize = 16;
const MOST: usize = 128;
const AHEAD: usize = 8;

/// Where rows lie in a table, in ghosts, and on the other side, which has a row for every key of a list.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Extents and steps of the keyed dims that a key counts through.
    keyed: SmallVec<[(usize, usize); 4]>,
    keys: usize,
    /// The list of keys as a box: extents, and steps on the other side.
    list: SmallVec<[(usize, usize); 4]>,
    /// The dims of a row that are not one run everywhere.
    outer: SmallVec<[RowDim; 4]>,
    /// Neighbouring elements of a row.
    run: usize,
    row_len: usize,
}

/// One dim of a row: its extent, and its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowDim {
    /// How many indices.
    pub extent: usize,
    /// Step in the table.
    pub table: usize,
    /// Step on the other side.
    pub other: usize,
    /// Step in the ghosts; found by [`Rows::new`].
    ghost: usize,
}

impl RowDim {
    /// A dim of this extent, with its steps in the table and on the other side.
    pub fn new(extent: usize, table: usize, other: usize) -> Self {
        Self {
            extent,
            table,
            other,
            ghost: 0,
        }
    }
}

/// Where a row is that has another on the other side.
#[derive(Clone, Copy)]
enum Here {
    Nowhere,
    Table,
    Ghosts,
}

impl Rows {
    /// Rows of a table whose keyed dims have these `(extent, step)`, picked by a list of keys of these `(extent, step on the other
    /// side)`; `row` lists the dims of a row, in which ghosts are row-major.
    pub fn new(keyed: &[(usize, usize)], list: &[(usize, usize)], row: &[RowDim]) -> Self {
        let keys = keyed.iter().map(|k| k.0).product();
        let mut outer: SmallVec<[RowDim; 4]> = SmallVec::new();
        let row_len = row.iter().map(|d| d.extent).product();
        let mut ghost = row_len;
        for &dim in row.iter().filter(|d| d.extent != 1) {
            ghost /= dim.extent.max(1);
            let dim = RowDim { ghost, ..dim };
            match outer.last_mut() {
                // Two dims that follow each other everywhere are one.
                Some(last)
                    if last.table == dim.extent * dim.table
                        && last.other == dim.extent * dim.other =>
                {
                    *last = RowDim {
                        extent: last.extent * dim.extent,
                        ..dim
                    };
                }
                _ => outer.push(dim),
            }
        }
        let mut run = 1;
        if let Some(last) = outer.last()
            && (last.table, last.other) == (1, 1)
        {
            run = last.extent;
            outer.pop();
        }
        let mut counted: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        for &(extent, step) in keyed.iter().filter(|k| k.0 != 1) {
            match counted.last_mut() {
                Some(last) if last.1 == extent * step => *last = (last.0 * extent, step),
                _ => counted.push((extent, step)),
            }
        }
        Self {
            keyed: counted,
            keys,
            list: list.into(),
            outer,
            run,
            row_len,
        }
    }

    /// How many rows the table has: keys from here on name ghosts.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Extents and steps of the keyed dims, those that follow each other as one.
    pub fn keyed(&self) -> &[(usize, usize)] {
        &self.keyed
    }

    /// The list of keys as a box: extents, and steps on the other side.
    pub fn list(&self) -> &[(usize, usize)] {
        &self.list
    }

    /// The dims of a row, those that follow each other everywhere as one.
    pub fn row(&self) -> SmallVec<[RowDim; 4]> {
        let run = (self.run > 1).then_some(RowDim {
            extent: self.run,
            table: 1,
            other: 1,
            ghost: 1,
        });
        self.outer.iter().copied().chain(run).collect()
    }

    /// Where a row of the table begins.
    #[inline]
    fn at(&self, mut key: usize) -> usize {
        if let [(_, step)] = self.keyed[..] {
            return key * step;
        }
        let mut at = 0;
        for &(extent, step) in self.keyed.iter().rev() {
            at += key % extent * step;
            key /= extent;
        }
        at
    }

    /// Where the row of a key of the list begins on the other side.
    #[inline]
    fn other(&self, mut number: usize) -> usize {
        if let [(_, step)] = self.list[..] {
            return number * step;
        }
        let mut at = 0;
        for &(extent, step) in self.list.iter().rev() {
            at += number % extent * step;
            number /= extent;
        }
        at
    }

    /// Whether all keys name rows of the table.
    fn are_own(&self, keys: &[i64]) -> bool {
        // One after the other, and not up to the first that is not, as vectors do.
        (keys.iter()).fold(true, |all, &key| all & ((key as u64) < self.keys as u64))
    }

    /// The step of keys in the table and the dim of a row, where keys count along one dim and elements of a row lie further apart than rows, or
    /// are one: then all keys are gone through for each index of that dim. To find where a row is and what it is made of would take longer than to
    /// read it, and of each line of a cache one element would be read at a time.
    fn columns(&self) -> Option<(usize, RowDim)> {
        let step = match self.keyed[..] {
            [] => 0,
            [(_, step)] => step,
            _ => return None,
        };
        match self.outer[..] {
            _ if self.row_len == 1 => Some((step, RowDim::new(1, 0, 0))),
            [dim] if self.run == 1 && dim.table > step => Some((step, dim)),
            _ => None,
        }
    }

    /// Calls `f` with every key of the list and where its row begins on the other side; and where in the table a long row begins whose
    /// turn comes soon. Its memory may be asked for, since keys are in an order that no processor foresees.
    fn for_each(&self, keys: &[i64], mut f: impl FnMut(i64, usize, Option<usize>)) {
        let long = self.run >= LONG;
        let mut number = 0;
        self.for_each_line(keys, |line, to, step| {
            for (i, &key) in line.iter().enumerate() {
                let ahead = || {
                    let key = usize::try_from(*keys.get(number + i + AHEAD)?).ok()?;
                    (key < self.keys).then(|| self.at(key))
                };
                f(key, to + i * step, if long { ahead() } else { None });
            }
            number += line.len();
        });
    }

    /// Calls `f` with the keys of every line of the list, and where on the other side rows begin: the first, and how far apart.
    fn for_each_line(&self, keys: &[i64], f: impl FnMut(&[i64], usize, usize)) {
        self.visit_lines(keys, f);
    }

    /// [`for_each_line`](Self::for_each_line), compiled for the vectors of its caller.
    #[inline(always)]
    fn visit_lines(&self, keys: &[i64], mut f: impl FnMut(&[i64], usize, usize)) {
        // One place of one key is a list without dims.
        let (&(inner, step), front) = self.list.split_last().unwrap_or((&(1, 0), &[]));
        if inner == 0 {
            return;
        }
        let mut at: SmallVec<[usize; 4]> = SmallVec::from_elem(0, front.len());
        let mut base = 0;
        for line in keys.chunks_exact(inner) {
            f(line, base, step);
            for (place, &(extent, step)) in at.iter_mut().zip(front).rev() {
                *place += 1;
                base += step;
                if *place < extent {
                    break;
                }
                base -= extent * step;
                *place = 0;
            }
        }
    }

    /// Calls `f` with where the runs of a row begin: here, and on the other side.
    #[inline(always)]
    fn runs(&self, here: Here, (a, b): (usize, usize), mut f: impl FnMut(usize, usize)) {
        let step = |d: &RowDim| match here {
            Here::Nowhere => 0,
            Here::Table => d.table,
            Here::Ghosts => d.ghost,
        };
        match &self.outer[..] {
            [] => f(a, b),
            [d] => {
                for i in 0..d.extent {
                    f(a + i * step(d), b + i * d.other);
                }
            }
            dims => {
                let count: usize = dims.iter().map(|d| d.extent).product();
                for number in 0..count {
                    let (mut rest, mut a, mut b) = (number, a, b);
                    for d in dims.iter().rev() {
                        let i = rest % d.extent;
                        rest /= d.extent;
                        (a, b) = (a + i * step(d), b + i * d.other);
                    }
                    f(a, b);
                }
            }
        }
    }
}

/// Writes the row of every key to its place in `out`; zeros where a key names none.
///
/// ```
/// use shard_kernels::rows::{RowDim, Rows, pick};
/// // Three rows of two, and one that came from elsewhere.
/// let (table, ghosts) = ([0, 1, 10, 11, 20, 21], [90, 91]);
/// let rows = Rows::new(&[(3, 2)], &[(4, 2)], &[RowDim::new(2, 1, 1)]);
/// let mut out = [7; 8];
/// pick(&rows, &table, &ghosts, &[2, 3, -1, 2], &mut out);
/// assert_eq!(out, [20, 21, 90, 91, 0, 0, 20, 21]);
/// ```
///
/// # Panics
/// When a key or a place lies outside of what it names.
pub fn pick<T: Copy + Default>(
    rows: &Rows,
    table: &[T],
    ghosts: &[T],
    keys: &[i64],
    out: &mut [T],
) {
    let run = rows.run;
    if rows.row_len == 0 {
        return;
    }
    if let Some((step, row)) = rows.columns() {
        return pick_columns(rows, (step, row), [table, ghosts], keys, out);
    }
    rows.for_each(keys, |key, to, ahead| {
        if let Some(at) = ahead {
            prefetch(table, at, run.min(MOST));
        }
        match usize::try_from(key) {
            Err(_) => rows.runs(Here::Nowhere, (0, to), |_, b| {
                out[b..b + run].fill(T::default());
            }),
            Ok(key) if key < rows.keys => {
                rows.runs(Here::Table, (rows.at(key), to), |a, b| {
                    move_run(&mut out[b..b + run], &table[a..a + run]);
                });
            }
            Ok(key) => {
                let from = (key - rows.keys) * rows.row_len;
                rows.runs(Here::Ghosts, (from, to), |a, b| {
                    move_run(&mut out[b..b + run], &ghosts[a..a + run]);
                });
            }
        }
    });
}

/// [`pick`] where rows lie as columns do, or are one element.
fn pick_columns<T: Copy + Default>(
    rows: &Rows,
    (step, row): (usize, RowDim),
    [table, ghosts]: [&[T]; 2],
    keys: &[i64],
    out: &mut [T],
) {
    let all_own = rows.are_own(keys);
    for k in 0..row.extent {
        let [from, ghost, to_first] = [row.table, row.ghost, row.other].map(|by| k * by);
        let named = |key: i64| match usize::try_from(key) {
            Err(_) => T::default(),
            Ok(key) if key < rows.keys => table[key * step + from],
            Ok(key) => ghosts[(key - rows.keys) * rows.row_len + ghost],
        };
        rows.for_each_line(keys, |line, to, by| {
            let to = to_first + to;
            if !all_own || by != 1 {
                for (i, &key) in line.iter().enumerate() {
                    out[to + i * by] = named(key);
                }
                return;
            }
            let (here, out) = (&table[from..], &mut out[to..to + line.len()]);
            for (to, &key) in out.iter_mut().zip(line) {
                let at = key as usize * step;
                *to = here[at];
                // No processor foresees which of the next index are read.
                ask_for(here.as_ptr().wrapping_add(at + row.table));
            }
        });
    }
}

/// Runs of one element are common, and a call of the library for each is not cheap.
#[inline]
fn move_run<T: Copy>(to: &mut [T], from: &[T]) {
    if let ([to], [from]) = (&mut *to, from) {
        *to = *from;
        return;
    }
    to.copy_from_slice(from);
}

/// What is folded into a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowFold {
    /// Sums; of whole numbers wrapping ones.
    Sum,
    /// Products; of whole numbers wrapping ones.
    Prod,
    /// The largest, NaN if there is one.
    Max,
    /// The smallest, NaN if there is one.
    Min,
}

/// A number that rows are folded of.
pub trait Foldable: Copy + Default + Compiled<Self> {
    /// What a fold of nothing gives.
    fn identity(fold: RowFold) -> Self;
    /// `self + other`
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// `self * other`
    #[must_use]
    fn times(self, other: Self) -> Self;
    /// The larger; NaN if either is, and of zeros the positive one.
    #[must_use]
    fn larger(self, other: Self) -> Self;
    /// The smaller; NaN if either is, and of zeros the negative one.
    #[must_use]
    fn smaller(self, other: Self) -> Self;
}

macro_rules! foldable_floats {
    ($($T:ty),*) => {$(
        impl Foldable for $T {
            fn identity(fold: RowFold) -> Self {
                match fold {
                    RowFold::Sum => 0.0,
                    RowFold::Prod => 1.0,
                    RowFold::Max => Self::NEG_INFINITY,
                    RowFold::Min => Self::INFINITY,
                }
            }

            fn plus(self, other: Self) -> Self {
                self + other
            }

            fn times(self, other: Self) -> Self {
                self * other
            }

            fn larger(self, other: Self) -> Self {
                let loses = self < other || other.is_nan() || (self == other && self.is_sign_negative());
                if loses && !self.is_nan() { other } else { self }
            }

            fn smaller(self, other: Self) -> Self {
                let loses = self > other || other.is_nan() || (self == other && self.is_sign_positive());
                if loses && !self.is_nan() { other } else { self }
            }
        }
    )*};
}

macro_rules! foldable_whole {
    ($($T:ty),*) => {$(
        impl Foldable for $T {
            fn identity(fold: RowFold) -> Self {
                match fold {
                    RowFold::Sum => 0,
                    RowFold::Prod => 1,
                    RowFold::Max => Self::MIN,
                    RowFold::Min => Self::MAX,
                }
            }

            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
        }
    )*};
}

foldable_floats!(f32, f64);
foldable_whole!(i64, i32, u8);

compiled! { trait Compiled for Foldable: f32 f64 i64 i32 u8; {
    /// Folds every row of `src` into the row that its key names, in the order of the list; those whose key names none are left out.
    ///
    /// ```
    /// use shard_kernels::rows::{RowDim, RowFold, Rows, fold};
    /// let (mut table, mut ghosts) = ([0, 1, 10, 11], [0, 0]);
    /// let rows = Rows::new(&[(2, 2)], &[(4, 2)], &[RowDim::new(2, 1, 1)]);
    /// fold(RowFold::Sum, &rows, &mut table, &mut ghosts, &[1, 2, -1, 1], &[1, 2, 3, 4, 5, 6, 7, 8]);
    /// assert_eq!((table, ghosts), ([0, 1, 18, 21], [3, 4]));
    /// ```
    ///
    /// # Panics
    /// As [`pick`].
    pub fn fold<T>(
        how: RowFold,
        rows: &Rows,
        table: &mut [T],
        ghosts: &mut [T],
        keys: &[i64],
        src: &[T],
    ) = fold_here;
} }

fn fold_here<T: Foldable>(
    how: RowFold,
    rows: &Rows,
    table: &mut [T],
    ghosts: &mut [T],
    keys: &[i64],
    src: &[T],
) {
    match how {
        RowFold::Sum => fold_with(rows, table, ghosts, keys, src, |x| x, T::plus),
        RowFold::Prod => fold_with(rows, table, ghosts, keys, src, |x| x, T::times),
        RowFold::Max => fold_with(rows, table, ghosts, keys, src, |x| x, T::larger),
        RowFold::Min => fold_with(rows, table, ghosts, keys, src, |x| x, T::smaller),
    }
}

fn fold_with<T: Foldable, E: Copy>(
    rows: &Rows,
    table: &mut [T],
    ghosts: &mut [T],
    keys: &[i64],
    src: &[E],
    widen: impl Fn(E) -> T + Copy,
    join: impl Fn(T, T) -> T + Copy,
) {
    let run = rows.run;
    if rows.row_len == 0 {
        return;
    }
    let into = |to: &mut [T], from: &[E]| {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = join(*to, widen(from));
        }
    };
    if let Some((step, row)) = rows.columns() {
        let all_own = rows.are_own(keys);
        for k in 0..row.extent {
            let [into, ghost, first] = [row.table, row.ghost, row.other].map(|by| k * by);
            rows.for_each_line(keys, |line, from, by| {
                let from = first + from;
                if all_own && by == 1 {
                    let (table, src) = (&mut table[into..], &src[from..from + line.len()]);
                    for (&from, &key) in src.iter().zip(line) {
                        let to = &mut table[key as usize * step];
                        *to = join(*to, widen(from));
                    }
                    return;
                }
                for (i, &key) in line.iter().enumerate() {
                    let to = match usize::try_from(key) {
                        Err(_) => continue,
                        Ok(key) if key < rows.keys => &mut table[key * step + into],
                        Ok(key) => &mut ghosts[(key - rows.keys) * rows.row_len + ghost],
                    };
                    *to = join(*to, widen(src[from + i * by]));
                }
            });
        }
        return;
    }
    rows.for_each(keys, |key, from, ahead| {
        if let Some(at) = ahead {
            prefetch(table, at, run.min(MOST));
        }
        match usize::try_from(key) {
            Err(_) => {}
            Ok(key) if key < rows.keys => {
                rows.runs(Here::Table, (rows.at(key), from), |a, b| {
                    into(&mut table[a..a + run], &src[b..b + run]);
                });
            }
            Ok(key) => {
                let to = (key - rows.keys) * rows.row_len;
                rows.runs(Here::Ghosts, (to, from), |a, b| {
                    into(&mut ghosts[a..a + run], &src[b..b + run]);
                });
            }
        }
    });
}

/// The list's positions sorted by key, those of one key in order, and where each key's begin: of `targets` keys, and one more
/// for the end. Positions of keys that name no row are left out.
///
/// ```
/// use shard_kernels::rows::by_key;
/// assert_eq!(by_key(&[2, 0, -1, 2], 3), (vec![1, 0, 3], vec![0, 1, 1, 3]));
/// ```
///
/// # Panics
/// When a key is not below `targets`.
pub fn by_key(keys: &[i64], targets: usize) -> (Vec<i64>, Vec<i64>) {
    let named = || {
        keys.iter()
            .enumerate()
            .filter_map(|(j, &k)| Some((j, usize::try_from(k).ok()?)))
    };
    let mut starts = vec![0_i64; targets + 1];
    for (_, key) in named() {
        starts[key + 1] += 1;
    }
    for t in 0..targets {
        starts[t + 1] += starts[t];
    }
    let mut next = starts.clone();
    let mut order = vec![0; starts[targets] as usize];
    for (j, key) in named() {
        order[next[key] as usize] = j as i64;
        next[key] += 1;
    }
    (order, starts)
}
