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
