//! Sorting: runs by themselves, and any stretch of what they are merged to.
//!
//! Elements are ordered by value, NaN behind all numbers, then by index: so the order is one, and sorting is stable. Descending, values stand
//! the other way round and equal ones still by index.

use super::search::Sortable;
use crate::compiled::compiled;

/// Sorts runs; keeps its memory from one to the next.
#[derive(Debug, Default)]
pub struct Sorter {
    short: [Vec<u64>; 2],
    long: [Vec<(u64, usize)>; 2],
}

/// Where a run is sorted by digits and not by comparing: there must be more elements than a digit has values.
const LEAST_FOR_DIGITS: usize = 1 << 10;
/// A pass for each of more digits takes longer than to compare.
const MOST_DIGITS: usize = 5;
const DIGIT: u32 = 8;
const VALUES: usize = 1 << DIGIT;

impl Sorter {
    /// Writes the first elements of a run in order, as many as there is room for, and their places in the run, counted from
    /// `start`.
    ///
    /// ```
    /// use shard_kernels::sort::Sorter;
    /// let run = [2.0_f32, f32::NAN, -0.0, 2.0, 0.0, -7.5];
    /// let (mut values, mut places) = ([0.0; 6], [0; 6]);
    /// Sorter::default().sort(&run, 10, false, &mut values, &mut places);
    /// assert_eq!(places, [15, 12, 14, 10, 13, 11]);
    /// let (mut largest, mut places) = ([0.0; 3], [0; 3]);
    /// Sorter::default().sort(&run, 10, true, &mut largest, &mut places);
    /// assert_eq!((places, largest[1..].to_vec()), ([11, 10, 13], vec![2.0, 2.0]));
    /// ```
    ///
    /// # Panics
    /// When there is room for more than the run has.
    pub fn sort<T: Sortable>(
        &mut self,
        run: &[T],
        start: i64,
        descending: bool,
        values: &mut [T],
        places: &mut [i64],
    ) {
        sort(self, run, start, descending, values, places);
    }
}

fn sort_here<T: Sortable>(
    sorter: &mut Sorter,
    run: &[T],
    start: i64,
    descending: bool,
    values: &mut [T],
    places: &mut [i64],
) {
    if T::RANK_BITS <= 32 && u32::try_from(run.len()).is_ok() {
        sort_by(&mut sorter.short, run, start, descending, values, places);
    } else {
        sort_by(&mut sorter.long, run, start, descending, values, places);
    }
}

/// A rank and the place of the element that has it, which keeps elements of one rank in order.
trait Packed: Copy + Ord + Default {
    fn new(rank: u64, place: usize) -> Self;
    fn rank(self) -> u64;
    fn place(self) -> usize;
}

impl Packed for u64 {
    fn new(rank: u64, place: usize) -> Self {
        rank << 32 | place as Self
    }

    fn rank(self) -> u64 {
        self >> 32
    }

    fn place(self) -> usize {
        (self & Self::from(u32::MAX)) as usize
    }
}

impl Packed for (u64, usize) {
    fn new(rank: u64, place: usize) -> Self {
        (rank, place)
    }

    fn rank(self) -> u64 {
        self.0
    }

    fn place(self) -> usize {
        self.1
    }
}

/// The rank of a value in the order that is asked for.
#[inline]
pub fn rank<T: Sortable>(value: T, descending: bool) -> u64 {
    turned::<T>(value.rank(), descending)
}

#[inline]
fn turned<T: Sortable>(rank: u64, descending: bool) -> u64 {
    match descending {
        true => !rank & (u64::MAX >> (64 - T::RANK_BITS)),
        false => rank,
    }
}

fn sort_by<T: Sortable, P: Packed>(
    memory: &mut [Vec<P>; 2],
    run: &[T],
    start: i64,
    descending: bool,
    values: &mut [T],
    places: &mut [i64],
) {
    let pack = |(place, &value): (usize, &T)| P::new(rank(value, descending), place);
    let wanted = places.len();
    let mut put = |at: usize, packed: P| {
        let only = T::of_rank(turned::<T>(packed.rank(), descending));
        values[at] = only.unwrap_or_else(|| run[packed.place()]);
        places[at] = start + packed.place() as i64;
    };
    let [a, b] = memory;
    if run.len() >= LEAST_FOR_DIGITS && wanted == run.len() {
        let digits = Digits::of(run, descending);
        if (1..=MOST_DIGITS).contains(&digits.0.len()) {
            return by_digits(digits, run.len(), |i| pack((i, &run[i])), [a, b], put);
        }
    }
    a.clear();
    a.extend(run.iter().enumerate().map(pack));
    if wanted < a.len() && wanted > 0 {
        a.select_nth_unstable(wanted);
    }
    let head = &mut a[..wanted];
    head.sort_unstable();
    for (at, &packed) in head.iter().enumerate() {
        put(at, packed);
    }
}

/// The digits in which ranks differ, lowest first: by how much to shift, and where the elements of each value go.
#[derive(Default)]
struct Digits(Vec<(u32, Vec<usize>)>);

impl Digits {
    fn of<T: Sortable>(run: &[T], descending: bool) -> Self {
        let shifts = || (0..T::RANK_BITS).step_by(DIGIT as usize);
        let mut counts = vec![[0_usize; VALUES]; shifts().count()];
        for &value in run {
            let rank = rank(value, descending);
            for (shift, counts) in shifts().zip(&mut counts) {
                counts[(rank >> shift) as usize % VALUES] += 1;
            }
        }
        let several = |counts: &[usize; VALUES]| counts.iter().filter(|&&n| n > 0).count() > 1;
        let differing = shifts().zip(counts).filter(|(_, counts)| several(counts));
        let places = differing.map(|(shift, counts)| {
            let places = counts.iter().scan(0, |next, n| {
                let first = *next;
                *next += n;
                Some(first)
            });
            (shift, places.collect())
        });
        Self(places.collect())
    }
}

/// A stable pass for each digit, from the lowest on. The first reads what is to be sorted, and the last writes where it belongs.
fn by_digits<P: Packed>(
    digits: Digits,
    count: usize,
    element: impl Fn(usize) -> P,
    [from, to]: [&mut Vec<P>; 2],
    mut put: impl FnMut(usize, P),
) {
    let digit = |packed: P, shift: u32| (packed.rank() >> shift) as usize % VALUES;
    let last = digits.0.len() - 1;
    for (pass, (shift, mut next)) in digits.0.into_iter().enumerate() {
        let mut place = |packed: P| {
            let next = &mut next[digit(packed, shift)];
            let at = *next;
            *next += 1;
            at
        };
        if pass != last {
            to.resize(count, P::default());
        }
        match (pass == 0, pass == last) {
            (true, true) => (0..count).map(&element).for_each(|p| put(place(p), p)),
            (true, false) => (0..count).map(&element).for_each(|p| to[place(p)] = p),
            (false, true) => from.iter().for_each(|&p| put(place(p), p)),
            (false, false) => from.iter().for_each(|&p| to[place(p)] = p),
        }
        std::mem::swap(from, to);
    }
}

/// A sorted run: elements, and their indices.
pub type SortedRun<'a, T> = (&'a [T], &'a [i64]);

compiled! { trait Compiled for Sortable: f32 f64 i64 i32 u8; {
    fn sort<T>(
        sorter: &mut Sorter,
        run: &[T],
        start: i64,
        descending: bool,
        values: &mut [T],
        places: &mut [i64],
    ) = sort_here;

    /// Merges sorted runs of which every one has lower indices than those after it.
    ///
    /// ```
    /// use shard_kernels::sort::merge;
    /// let (mut values, mut indices) = ([0; 5], [0; 5]);
    /// merge(&[(&[1, 4, 4], &[0, 1, 2]), (&[2, 4], &[3, 4])], false, &mut values, &mut indices);
    /// assert_eq!((values, indices), ([1, 2, 4, 4, 4], [0, 3, 1, 2, 4]));
    /// ```
    ///
    /// # Panics
    /// When there is no room for all, or for more.
    pub fn merge<T>(
        runs: &[SortedRun<'_, T>],
        descending: bool,
        values: &mut [T],
        indices: &mut [i64],
    ) = merge_here;
} }

fn merge_here<T: Sortable>(
    runs: &[SortedRun<'_, T>],
    descending: bool,
    values: &mut [T],
    indices: &mut [i64],
) {
    let filled: Vec<SortedRun<'_, T>> = (runs.iter().copied())
        .filter(|run| !run.0.is_empty())
        .collect();
    match filled[..] {
        [] => assert!(values.is_empty(), "nothing to fill {} places", values.len()),
        [(a, i)] => {
            values.copy_from_slice(a);
            indices.copy_from_slice(i);
        }
        [a, b] => merge_two(a, b, descending, values, indices),
        _ => {
            // Neighbours first, so that the lower indices stay in front.
            let (front, back) = filled.split_at(filled.len() / 2);
            let half = |runs: &[SortedRun<'_, T>]| {
                let len = runs.iter().map(|run| run.0.len()).sum();
                let mut made = (vec![T::default(); len], vec![0; len]);
                merge(runs, descending, &mut made.0, &mut made.1);
                made
            };
            let (a, b) = (half(front), half(back));
            merge_two((&a.0, &a.1), (&b.0, &b.1), descending, values, indices);
        }
    }
}

fn merge_two<T: Sortable>(
    a: SortedRun<'_, T>,
    b: SortedRun<'_, T>,
    descending: bool,
    values: &mut [T],
    indices: &mut [i64],
) {
    match descending {
        false => merge_by(a, b, values, indices, |b, a| b.is_before(a)),
        true => merge_by(a, b, values, indices, |b, a| a.is_before(b)),
    }
}

/// Merges from both ends at once: two chains of steps, each of which waits for the one before it, take the time of one.
fn merge_by<T: Copy>(
    (a, a_indices): SortedRun<'_, T>,
    (b, b_indices): SortedRun<'_, T>,
    values: &mut [T],
    indices: &mut [i64],
    overtakes: impl Fn(T, T) -> bool,
) {
    let count = a.len() + b.len();
    assert_eq!((values.len(), indices.len()), (count, count));
    assert_eq!((a_indices.len(), b_indices.len()), (a.len(), b.len()));
    let (mut i, mut j, mut to) = (0, 0, 0);
    let (mut i_end, mut j_end, mut end) = (a.len(), b.len(), count);
    // While neither run ends before the ends meet.
    while i + 1 < i_end && j + 1 < j_end {
        let (x, y) = (a[i], b[j]);
        let second = overtakes(y, x);
        values[to] = if second { y } else { x };
        indices[to] = if second { b_indices[j] } else { a_indices[i] };
        j += usize::from(second);
        i += usize::from(!second);
        to += 1;
        let (x, y) = (a[i_end - 1], b[j_end - 1]);
        let first = overtakes(y, x);
        end -= 1;
        values[end] = if first { x } else { y };
        indices[end] = if first {
            a_indices[i_end - 1]
        } else {
            b_indices[j_end - 1]
        };
        i_end -= usize::from(first);
        j_end -= usize::from(!first);
    }
    while i < i_end && j < j_end {
        let second = overtakes(b[j], a[i]);
        values[to] = if second { b[j] } else { a[i] };
        indices[to] = if second { b_indices[j] } else { a_indices[i] };
        j += usize::from(second);
        i += usize::from(!second);
        to += 1;
    }
    let rest = to + i_end - i;
    values[to..rest].copy_from_slice(&a[i..i_end]);
    indices[to..rest].copy_from_slice(&a_indices[i..i_end]);
    values[rest..end].copy_from_slice(&b[j..j_end]);
    indices[rest..end].copy_from_slice(&b_indices[j..j_end]);
}
