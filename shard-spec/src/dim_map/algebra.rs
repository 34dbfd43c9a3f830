//! Inverting, composing and classifying index relations.

use super::candidates::candidates;
use super::{DimMap, Run, argument};
use crate::error::Result;
use crate::progression::{Intersection, Progression};

impl DimMap {
    /// The relation with source and destination swapped: the adjoint, where several hits of one index accumulate.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let swap = |run: &Run| Run {
            dst_start: run.src_start,
            src_start: run.dst_start,
            len: run.len,
            dst_step: run.src_step,
            src_step: run.dst_step,
        };
        Self::from_valid(self.dst_extent, self.src_extent, self.runs.iter().map(swap))
    }

    /// This relation followed by `next`, whose source is this destination.
    ///
    /// # Errors
    /// [`SpecError::Argument`](crate::SpecError::Argument) where the source extent of `next` is not this destination extent.
    pub fn compose(&self, next: &Self) -> Result<Self> {
        if next.src_extent != self.dst_extent {
            let expected = format!("{}, the first map's destination", self.dst_extent);
            let got = next.src_extent;
            return Err(argument(
                "compose",
                "source extent",
                &got,
                expected,
                "compose maps in the order they apply",
            ));
        }
        Ok(self.then(next))
    }

    /// [`DimMap::compose`] for maps that are known to fit.
    pub(crate) fn then(&self, next: &Self) -> Self {
        let mut runs = Vec::new();
        candidates(&self.runs, &next.runs, |i, j| {
            join_at(&self.runs[i], &next.runs[j], &mut runs);
        });
        Self::from_valid(self.src_extent, next.dst_extent, runs)
    }

    /// Whether no destination index is hit twice.
    pub fn single_valued(&self) -> bool {
        if self.runs.iter().any(|run| run.len > 1 && run.dst_step == 0) {
            return false;
        }
        // Runs are sorted by first destination and never fall, so only runs that start before this one ends can meet it.
        self.runs.iter().enumerate().all(|(i, run)| {
            let end = run.dst().at(run.len - 1) as usize;
            self.runs[i + 1..]
                .iter()
                .take_while(|later| later.dst_start <= end)
                .all(|later| run.dst().intersect(&later.dst()) == Intersection::Never)
        })
    }

    /// Whether a destination index is hit by both relations.
    ///
    /// ```
    /// use shard_spec::DimMap;
    /// let (even, odd) = (DimMap::slice(6, 0, 2, 3)?.inverse(), DimMap::slice(6, 1, 2, 3)?.inverse());
    /// assert!(!even.meets(&odd) && even.meets(&DimMap::place(1, 6, 2)?));
    /// # Ok::<(), shard_spec::SpecError>(())
    /// ```
    pub fn meets(&self, other: &Self) -> bool {
        let end = |run: &Run| run.dst().at(run.len - 1) as usize;
        self.runs.iter().any(|a| {
            (other.runs.iter())
                .filter(|b| a.dst_start <= end(b) && b.dst_start <= end(a))
                .any(|b| a.dst().intersect(&b.dst()) != Intersection::Never)
        })
    }

    /// Whether every destination index is hit.
    pub fn covers_all_dst(&self) -> bool {
        if self.single_valued() {
            return self.runs.iter().map(|run| run.len).sum::<usize>() == self.dst_extent;
        }
        let contiguous = |run: &Run| run.dst_step <= 1;
        if self.runs.iter().all(contiguous) {
            let mut reached = 0;
            for run in &self.runs {
                if run.dst_start > reached {
                    return false;
                }
                reached = reached.max(run.dst().at(run.len - 1) as usize + 1);
            }
            return reached == self.dst_extent;
        }
        // Overlapping runs with gaps are rare, so indices are marked one by one.
        let mut hit = vec![false; self.dst_extent];
        for (_, dst) in self.pairs() {
            hit[dst] = true;
        }
        hit.into_iter().all(|h| h)
    }
}

/// Appends the pairs that `a` and then `b` relate.
fn join_at(a: &Run, b: &Run, runs: &mut Vec<Run>) {
    let (src, via_dst) = (a.src(), a.dst());
    let (via_src, dst) = (b.src(), b.dst());
    let run = |src: Progression, dst: Progression| Run {
        dst_start: dst.start as usize,
        src_start: src.start as usize,
        len: src.len,
        dst_step: dst.step,
        src_step: src.step,
    };
    let still = |start, len| Progression {
        start,
        step: 0,
        len,
    };
    match via_dst.intersect(&via_src) {
        Intersection::Never => {}
        Intersection::Line {
            i_start,
            i_step,
            j_start,
            j_step,
            len,
        } => {
            // The steps of a single pair may leave the address range; unit steps describe the same pair.
            let steps = (i_step as isize, j_step);
            let (src_step, dst_step) = if len == 1 {
                (1, 1)
            } else {
                (steps.0 * src.step, steps.1 * dst.step)
            };
            let src = Progression {
                start: src.at(i_start),
                step: src_step,
                len,
            };
            let dst = Progression {
                start: dst.at(j_start),
                step: dst_step,
                len,
            };
            runs.push(run(src, dst));
        }
        // Every source of `a` reaches every destination of `b`: one run per element of the shorter.
        Intersection::Everywhere if a.len <= b.len => {
            runs.extend((0..a.len).map(|i| run(still(src.at(i), b.len), dst)));
        }
        Intersection::Everywhere => {
            runs.extend((0..b.len).map(|j| run(src, still(dst.at(j), a.len))));
        }
    }
}
