//! Which runs of two maps can meet, found without trying every run with every other.

use super::Run;
use crate::progression::{Progression, gcd};

/// Up to this many pairs are tried one by one: that is cheaper than sorting.
const FEW: usize = 64;

/// Calls `f` with the numbers of a run of `first` and a run of `second` wherever a destination of the one may be a source of
/// the other, at most once per pair.
///
/// Runs with unit steps are intervals. Merging them costs a sort and one call per pair that overlaps. Runs with longer steps
/// can meet only where their indices leave the same remainder, so the runs of one remainder are merged at a time.
pub fn candidates(first: &[Run], second: &[Run], mut f: impl FnMut(usize, usize)) {
    if few(first, second) {
        return every_pair(first.len(), second.len(), &mut f);
    }
    let mut left: Vec<Line> = lines(first.iter().map(Run::dst));
    let mut right: Vec<Line> = lines(second.iter().map(Run::src));
    if left.iter().chain(&right).all(|line| line.step <= 1) {
        return merge(&left, &right, 1, &mut f);
    }
    for side in [&mut left, &mut right] {
        side.sort_by_key(|line| line.step);
    }
    for left in left.chunk_by(|a, b| a.step == b.step) {
        for right in right.chunk_by(|a, b| a.step == b.step) {
            if few(left, right) {
                every_pair(left.len(), right.len(), &mut |i, j| {
                    f(left[i].number, right[j].number);
                });
            } else {
                merge(left, right, gcd(left[0].step, right[0].step), &mut f);
            }
        }
    }
}

fn few<T>(left: &[T], right: &[T]) -> bool {
    left.len().saturating_mul(right.len()) <= FEW
}

fn every_pair(left: usize, right: usize, f: &mut impl FnMut(usize, usize)) {
    for i in 0..left {
        for j in 0..right {
            f(i, j);
        }
    }
}

/// The indices of a run: from `lo` to `hi`, `step` apart. The step is 0 where there is only one index.
#[derive(Clone, Copy)]
struct Line {
    step: usize,
    lo: usize,
    hi: usize,
    number: usize,
}

fn lines(progressions: impl Iterator<Item = Progression>) -> Vec<Line> {
    let line = |(number, p): (usize, Progression)| {
        let ends = [p.start as usize, p.at(p.len - 1) as usize];
        Line {
            step: if p.len == 1 { 0 } else { p.step.unsigned_abs() },
            lo: ends[0].min(ends[1]),
            hi: ends[0].max(ends[1]),
            number,
        }
    };
    progressions.enumerate().map(line).collect()
}

/// Calls `f` for every two lines, one of each list, that overlap and leave the same remainder modulo `apart`.
fn merge(left: &[Line], right: &[Line], apart: usize, f: &mut impl FnMut(usize, usize)) {
    let rest = |lo: usize| if apart == 0 { lo } else { lo % apart };
    let from_left = left.iter().map(|&line| (rest(line.lo), line, true));
    let from_right = right.iter().map(|&line| (rest(line.lo), line, false));
    let mut lines: Vec<(usize, Line, bool)> = from_left.chain(from_right).collect();
    // Both sides are usually in order already, and a stable sort makes use of that.
    lines.sort_by_key(|&(rest, line, _)| (rest, line.lo));
    for same in lines.chunk_by(|a, b| a.0 == b.0) {
        // Lines seen so far that may still overlap a later one.
        let (mut open_left, mut open_right): (Vec<Line>, Vec<Line>) = (Vec::new(), Vec::new());
        for &(_, line, is_left) in same {
            // Every line that is kept overlaps this one, so looking at an open line either finds a pair or drops the line.
            let ends_later = |open: &Line| open.hi >= line.lo;
            if is_left {
                open_right.retain(ends_later);
                open_right.iter().for_each(|r| f(line.number, r.number));
                open_left.push(line);
            } else {
                open_left.retain(ends_later);
                open_left.iter().for_each(|l| f(l.number, line.number));
                open_right.push(line);
            }
        }
    }
}
