//! Where sorted runs are cut so that the parts in front are the first so many of all: found from few elements of each run, a round
//! at a time, wherever the runs are.
//!
//! Of every run a bracket is known that the cut lies in. A round looks at the [`places`] of each bracket that cut it in equal parts,
//! and [`narrow`] draws from their ranks what they tell. With `s` places, all brackets together shrink to six `(s + 1)`ths: between
//! two neighbours among all places looked at lies less than one part of each bracket, and how many elements stand before a place is
//! known but for so many. So [`rounds`] knows beforehand how many rounds there will be, whatever the elements.

/// A stretch of a run in which its cut lies.
pub type Bracket = (usize, usize);

/// The places that are looked at in a bracket: `most` that cut it in equal parts, or all there are.
///
/// ```
/// use shard_kernels::cuts::places;
/// assert_eq!(places((10, 17), 3).collect::<Vec<_>>(), [11, 13, 15]);
/// assert_eq!(places((10, 12), 3).collect::<Vec<_>>(), [10, 11]);
/// ```
pub fn places(bracket: Bracket, most: usize) -> impl ExactSizeIterator<Item = usize> {
    (0..looked_at(bracket, most)).map(move |j| place(bracket, most, j))
}

fn looked_at((low, high): Bracket, most: usize) -> usize {
    (high - low).min(most)
}

/// Place `j` of a bracket, or where it ends.
fn place((low, high): Bracket, most: usize, j: usize) -> usize {
    let count = looked_at((low, high), most);
    let passed = (j as u128 + 1) * (high - low - count) as u128 / (count as u128 + 1);
    match j < count {
        true => low + j + passed as usize,
        false => high,
    }
}

/// How many rounds close the brackets of runs of so many elements together.
///
/// # Panics
/// When fewer than six places are looked at: then brackets may not shrink.
pub fn rounds(elements: usize, most: usize) -> usize {
    assert!(most >= 6, "{most} places tell too little");
    let (mut left, mut rounds) = (elements, 1);
    while left > most {
        left = left / (most + 1) * 6;
        rounds += 1;
    }
    rounds
}

/// Narrows the brackets by the ranks at their [`places`], `ranks[run * most..]` for each, towards the cut with `count` elements of all
/// runs in front. Of equal ranks those of the runs in front come first.
pub fn narrow(brackets: &mut [Bracket], ranks: &[u64], most: usize, count: usize) {
    let mut seen: Vec<(u64, usize, usize)> = Vec::new();
    // What is known of how many elements of each run stand before the place that is looked at.
    let (mut least, mut greatest) = (0, 0);
    let mut next = Vec::with_capacity(brackets.len());
    for (run, &bracket) in brackets.iter().enumerate() {
        let at = places(bracket, most);
        seen.extend((ranks[run * most..].iter().zip(at)).map(|(&rank, at)| (rank, run, at)));
        next.push((bracket.0, place(bracket, most, 0)));
        least += next[run].0;
        greatest += next[run].1;
    }
    seen.sort_unstable();
    let old: Vec<Bracket> = brackets.to_vec();
    let mut passed = vec![0; brackets.len()];
    for (_, run, at) in seen {
        // Of its own run, just those in front of it.
        let (low, high) = next[run];
        if greatest - high + at < count {
            brackets[run].0 = at + 1;
        }
        if least - low + at >= count {
            brackets[run].1 = brackets[run].1.min(at);
        }
        passed[run] += 1;
        next[run] = (at + 1, place(old[run], most, passed[run]));
        least += next[run].0 - low;
        greatest += next[run].1 - high;
    }
}

/// How many of each sorted run, of so many elements with these ranks, are among the first `count` of all. Of equal ranks those of the
/// runs in front come first.
///
/// ```
/// use shard_kernels::cuts::heads;
/// let runs = [&[1, 4, 9][..], &[], &[2, 3, 4]];
/// let rank = |run: usize, at: usize| runs[run][at];
/// assert_eq!(heads(&[3, 0, 3], rank, 4), [2, 0, 2]);
/// ```
pub fn heads(lens: &[usize], rank: impl Fn(usize, usize) -> u64, count: usize) -> Vec<usize> {
    const PLACES: usize = 31;
    let mut brackets: Vec<Bracket> = lens.iter().map(|&len| (0, len)).collect();
    let mut ranks = vec![0; lens.len() * PLACES];
    while brackets.iter().any(|(low, high)| low < high) {
        for (run, &bracket) in brackets.iter().enumerate() {
            for (to, at) in ranks[run * PLACES..]
                .iter_mut()
                .zip(places(bracket, PLACES))
            {
                *to = rank(run, at);
            }
        }
        narrow(&mut brackets, &ranks, PLACES, count);
    }
    brackets.into_iter().map(|(low, _)| low).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of these sorted numbers, cut by rounds of a few places, beside what counting finds.
    fn check(runs: &[Vec<u64>], most: usize) {
        let all: usize = runs.iter().map(Vec::len).sum();
        let mut order: Vec<(u64, usize, usize)> = (runs.iter().enumerate())
            .flat_map(|(r, run)| run.iter().enumerate().map(move |(i, &x)| (x, r, i)))
            .collect();
        order.sort_unstable();
        for count in (0..=all).step_by((all / 37).max(1)).chain([all]) {
            let expected: Vec<usize> = (0..runs.len())
                .map(|r| order[..count].iter().filter(|e| e.1 == r).count())
                .collect();
            let mut brackets: Vec<Bracket> = runs.iter().map(|run| (0, run.len())).collect();
            for _ in 0..rounds(all, most) {
                let mut ranks = vec![u64::MAX; runs.len() * most];
                for (r, &bracket) in brackets.iter().enumerate() {
                    for (to, at) in ranks[r * most..].iter_mut().zip(places(bracket, most)) {
                        *to = runs[r][at];
                    }
                }
                narrow(&mut brackets, &ranks, most, count);
            }
            let found: Vec<Bracket> = expected.iter().map(|&n| (n, n)).collect();
            assert_eq!(brackets, found, "{count} of {all} in {} runs", runs.len());
        }
    }

    #[test]
    fn as_many_rounds_as_are_promised_find_every_cut() {
        let run = |len: usize, of: &dyn Fn(usize) -> u64| {
            let mut run: Vec<u64> = (0..len).map(of).collect();
            run.sort_unstable();
            run
        };
        let mixed = |i: usize| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        for most in [6, 11, 31] {
            // Spread, all equal, in blocks one behind the other, in reverse, very uneven, with gaps of every size.
            check(
                &[
                    run(1000, &mixed),
                    run(1700, &|i| mixed(i + 5)),
                    run(3, &mixed),
                ],
                most,
            );
            check(&[vec![5; 700], vec![], vec![5; 1], vec![5; 900]], most);
            check(&[vec![0; 9], vec![u64::MAX; 700], vec![u64::MAX; 20]], most);
            check(
                &(0..4)
                    .map(|r| run(500, &|i| (500 * r + i) as u64))
                    .collect::<Vec<_>>(),
                most,
            );
            check(
                &(0..4)
                    .map(|r| run(500, &|i| (500 * (4 - r) + i) as u64))
                    .collect::<Vec<_>>(),
                most,
            );
            check(
                &[
                    run(4000, &mixed),
                    run(1, &mixed),
                    vec![],
                    run(2, &|_| 1 << 40),
                ],
                most,
            );
            check(
                &[run(900, &|i| 1 << (i % 60)), run(1100, &|i| 3 << (i % 50))],
                most,
            );
            check(&[], most);
        }
    }

    #[test]
    fn places_lie_within_their_bracket_and_leave_equal_gaps() {
        for len in 0..200 {
            for most in 1..40 {
                let at: Vec<usize> = places((7, 7 + len), most).collect();
                assert_eq!(at.len(), len.min(most));
                let ends = [6].into_iter().chain(at.iter().copied());
                let gaps = ends
                    .zip(at.iter().copied().chain([7 + len]))
                    .map(|(a, b)| b - a - 1);
                assert!(gaps.max().unwrap_or(0) <= len / (most + 1), "{len} {most}");
            }
        }
    }
}
