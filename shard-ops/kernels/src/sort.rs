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
