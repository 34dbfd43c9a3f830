//! A row of points in order, into which a nearer one is put.

use super::nearest::precedes;
use crate::Real;

/// Puts a point in its place, if it comes before the last.
#[inline(always)]
pub(super) fn put_in_order<T: Real>(distances: &mut [T], indexes: &mut [i64], new: (T, i64)) {
    let last = distances.len() - 1;
    if !precedes(new, (distances[last], indexes[last])) {
        return;
    }
    let (x, i) = new;
    if x.is_nan() {
        move_behind(distances, indexes, new, |entry| precedes(new, entry));
    } else {
        move_behind(
            distances,
            indexes,
            new,
            // As `precedes` has it of a number, without branches.
            #[inline(always)]
            |(a, j)| !((a < x) | ((a == x) & (j < i))),
        );
    }
}

/// Entries of a row that are looked at together.
const LANES: usize = 8;

/// Moves those entries by one that are behind a new one, and puts that in its place.
#[inline(always)]
fn move_behind<T: Real>(
    distances: &mut [T],
    indexes: &mut [i64],
    new: (T, i64),
    behind: impl Fn((T, i64)) -> bool,
) {
    let mut end = distances.len();
    while end > LANES {
        let first = end - LANES;
        let here = (lanes(&distances[first..]), lanes(&indexes[first..]));
        let before = (lanes(&distances[first - 1..]), lanes(&indexes[first - 1..]));
        let (moved, at) = moved(here, before, new, &behind);
        *lanes_mut(&mut distances[first..]) = moved;
        *lanes_mut(&mut indexes[first..]) = at;
        if !behind((before.0[0], before.1[0])) {
            return;
        }
        end = first;
    }
    if end == LANES {
        let here = (lanes(distances), lanes(indexes));
        // Nothing is in front of the first.
        let mut before = ([T::neg_infinity(); LANES], [i64::MIN; LANES]);
        for lane in 1..LANES {
            before.0[lane] = here.0[lane - 1];
            before.1[lane] = here.1[lane - 1];
        }
        let (moved, at) = moved(here, before, new, &behind);
        *lanes_mut(distances) = moved;
        *lanes_mut(indexes) = at;
        return;
    }
    for at in (1..end).rev() {
        let before = (distances[at - 1], indexes[at - 1]);
        if !behind(before) {
            (distances[at], indexes[at]) = new;
            return;
        }
        (distances[at], indexes[at]) = before;
    }
    (distances[0], indexes[0]) = new;
}

/// What is in the places of some entries, of which those behind a new one are moved by one.
#[inline(always)]
fn moved<T: Real>(
    here: ([T; LANES], [i64; LANES]),
    before: ([T; LANES], [i64; LANES]),
    new: (T, i64),
    behind: impl Fn((T, i64)) -> bool,
) -> ([T; LANES], [i64; LANES]) {
    let (mut distances, mut indexes) = here;
    for lane in 0..LANES {
        let taken = behind((here.0[lane], here.1[lane]));
        let moves = behind((before.0[lane], before.1[lane]));
        let distance = if taken { new.0 } else { here.0[lane] };
        distances[lane] = if moves { before.0[lane] } else { distance };
        let index = if taken { new.1 } else { here.1[lane] };
        indexes[lane] = if moves { before.1[lane] } else { index };
    }
    (distances, indexes)
}

/// The first lanes.
#[inline(always)]
fn lanes<T: Copy>(of: &[T]) -> [T; LANES] {
    of.as_chunks().0[0]
}

#[inline(always)]
fn lanes_mut<T>(of: &mut [T]) -> &mut [T; LANES] {
    &mut of.as_chunks_mut().0[0]
}
