//! Sorting: runs by themselves, and any stretch of what they are merged to.
//!
//! Elements are ordered by value, NaN behind all numbers, then by index: so the order is one, and sorting is stable. Descending, values stand
//! the other way round and equal ones still by index.

use super::search::Sortable;
use core::cmp::Ordering;

/// An element and its index.
pub type Entry<T> = (T, i64);

fn compare<T: Sortable>(a: &Entry<T>, b: &Entry<T>, descending: bool) -> Ordering {
    let by_value = match descending {
        false => a.0.order(b.0),
        true => b.0.order(a.0),
    };
    by_value.then(a.1.cmp(&b.1))
}

/// Sorts entries.
///
/// ```
/// use shard_kernels::sort::sort;
/// let mut entries = [(2.0, 0), (f64::NAN, 1), (1.0, 2), (2.0, 3)];
/// sort(&mut entries, false);
/// assert_eq!(entries.map(|e| e.1), [2, 0, 3, 1]);
/// sort(&mut entries, true);
/// assert_eq!(entries.map(|e| e.1), [1, 0, 3, 2]);
/// ```
pub fn sort<T: Sortable>(entries: &mut [Entry<T>], descending: bool) {
    entries.sort_unstable_by(|a, b| compare(a, b, descending));
}

/// Sorts the places of a line's values: as [`sort`] does entries whose indices are their places, by whole numbers that stand as the
/// values do, which takes a third of the time.
///
/// ```
/// use shard_kernels::sort::sorted_places;
/// let values = [2.0_f32, f32::NAN, -0.0, 2.0, 0.0, -7.5];
/// assert_eq!(sorted_places(&values, false), [5, 2, 4, 0, 3, 1]);
/// assert_eq!(sorted_places(&values, true), [1, 0, 3, 2, 4, 5]);
/// ```
pub fn sorted_places<T: Sortable>(values: &[T], descending: bool) -> Vec<usize> {
    let short = values.first().is_none_or(|v| v.rank().1 <= 32);
    let rank = |value: &T| {
        let (rank, bits) = value.rank();
        match descending {
            true => !rank & (u64::MAX >> (64 - bits)),
            false => rank,
        }
    };
    if short && u32::try_from(values.len()).is_ok() {
        // The place in the lower half keeps equal values in order.
        let packed = values
            .iter()
            .enumerate()
            .map(|(i, v)| rank(v) << 32 | i as u64);
        let mut packed: Vec<u64> = packed.collect();
        packed.sort_unstable();
        return packed
            .into_iter()
            .map(|p| (p & u64::from(u32::MAX)) as usize)
            .collect();
    }
    let mut packed: Vec<(u64, usize)> = values
        .iter()
        .enumerate()
        .map(|(i, v)| (rank(v), i))
        .collect();
    packed.sort_unstable();
    packed.into_iter().map(|p| p.1).collect()
}

/// Sorted runs of one line.
#[derive(Clone, Debug)]
pub struct Runs<'a, T> {
    runs: Vec<(&'a [T], &'a [i64])>,
    descending: bool,
}

impl<'a, T: Sortable> Runs<'a, T> {
    /// The runs of a line of values and their indices that ends at these places, the last at its end.
    ///
    /// # Panics
    /// When the ends do not ascend to the line's.
    pub fn new(values: &'a [T], indices: &'a [i64], ends: &[usize], descending: bool) -> Self {
        let mut from = 0;
        let runs = ends.iter().map(|&end| {
            let run = (&values[from..end], &indices[from..end]);
            from = end;
            run
        });
        Self {
            runs: runs.collect(),
            descending,
        }
    }

    fn entry(&self, run: usize, at: usize) -> Entry<T> {
        (self.runs[run].0[at], self.runs[run].1[at])
    }

    /// How many of each run are among the first `count` of all.
    fn heads(&self, count: usize) -> Vec<usize> {
        let mut low = vec![0; self.runs.len()];
        let mut high: Vec<usize> = self.runs.iter().map(|r| r.0.len()).collect();
        loop {
            // The middle of the run of which least is known.
            let widest = (0..low.len()).max_by_key(|&r| high[r] - low[r]);
            let Some(run) = widest.filter(|&r| high[r] > low[r]) else {
                return low;
            };
            let pivot = self.entry(run, low[run] + (high[run] - low[run]) / 2);
            let before: Vec<usize> = (0..low.len()).map(|r| self.before(r, &pivot)).collect();
            // The pivot is among the first `count` if fewer than that stand before it.
            if before.iter().sum::<usize>() < count {
                for r in 0..low.len() {
                    low[r] = low[r].max(before[r] + usize::from(r == run));
                }
            } else {
                for r in 0..low.len() {
                    high[r] = high[r].min(before[r]).max(low[r]);
                }
            }
        }
    }

    /// How many of a run stand before an entry.
    fn before(&self, run: usize, entry: &Entry<T>) -> usize {
        let (values, indices) = self.runs[run];
        let (mut low, mut high) = (0, values.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match compare(&(values[middle], indices[middle]), entry, self.descending) {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// Calls `f` with the entries `from..to` of all runs merged.
    ///
    /// ```
    /// use shard_kernels::sort::Runs;
    /// let runs = Runs::new(&[1, 4, 9, 2, 3, 5], &[0, 1, 2, 3, 4, 5], &[3, 3, 6], false);
    /// let mut found = Vec::new();
    /// runs.merged(1..5, |value, index| found.push((value, index)));
    /// assert_eq!(found, [(2, 3), (3, 4), (4, 1), (5, 5)]);
    /// ```
    pub fn merged(&self, range: core::ops::Range<usize>, mut f: impl FnMut(T, i64)) {
        let mut at = self.heads(range.start);
        let ends = self.heads(range.end);
        // Runs that have something left.
        let mut left: Vec<usize> = (0..at.len()).filter(|&r| at[r] < ends[r]).collect();
        while let Some((&first, others)) = left.split_first() {
            let mut best = first;
            for &run in others {
                let (a, b) = (self.entry(run, at[run]), self.entry(best, at[best]));
                if compare(&a, &b, self.descending) == Ordering::Less {
                    best = run;
                }
            }
            let (value, index) = self.entry(best, at[best]);
            f(value, index);
            at[best] += 1;
            if at[best] == ends[best] {
                left.retain(|&r| r != best);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_entries() {
        fn check<T: Sortable + PartialEq>(values: &[T]) {
            for descending in [false, true] {
                let mut entries: Vec<Entry<T>> = values.iter().copied().zip(0..).collect();
                sort(&mut entries, descending);
                let expected: Vec<usize> = entries.iter().map(|e| e.1 as usize).collect();
                assert_eq!(sorted_places(values, descending), expected);
            }
        }
        let spread = |i: i64| i.wrapping_mul(0x5DEE_CE66_D765_4321);
        let wide: Vec<i64> = (0..99)
            .map(spread)
            .chain([i64::MIN, i64::MAX, 0, -1, 0])
            .collect();
        check(&wide);
        check(&wide.iter().map(|&i| i as i32).collect::<Vec<_>>());
        check(&wide.iter().map(|&i| i as u8).collect::<Vec<_>>());
        let odd = [
            f64::NAN,
            -f64::NAN,
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            -1e-320,
            1e-320,
        ];
        let floats: Vec<f64> = wide.iter().map(|&i| i as f64 * 1e-9).chain(odd).collect();
        check(&floats);
        check(&floats.iter().map(|&x| x as f32).collect::<Vec<_>>());
        check::<f32>(&[]);
    }

    #[test]
    fn any_stretch_of_merged_runs_is_that_of_all_sorted() {
        let value = |i: usize| ((i * 7919) % 13) as f64;
        for descending in [false, true] {
            for ends in [&[0, 9, 9, 20, 31][..], &[31], &[1, 2, 31]] {
                let mut entries: Vec<Entry<f64>> = (0..31).map(|i| (value(i), i as i64)).collect();
                entries[17].0 = f64::NAN;
                let mut from = 0;
                for &end in ends {
                    sort(&mut entries[from..end], descending);
                    from = end;
                }
                let values: Vec<f64> = entries.iter().map(|e| e.0).collect();
                let indices: Vec<i64> = entries.iter().map(|e| e.1).collect();
                sort(&mut entries, descending);
                let runs = Runs::new(&values, &indices, ends, descending);
                for start in 0..=31 {
                    for end in start..=31 {
                        let mut found = Vec::new();
                        runs.merged(start..end, |_, index| found.push(index));
                        let expected: Vec<i64> = entries[start..end].iter().map(|e| e.1).collect();
                        assert_eq!(found, expected, "{start}..{end} of {ends:?}");
                    }
                }
            }
        }
    }
}
