//! A row of points in order, into which a nearer one is put.

use super::nearest::{MISSING, precedes};
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

/// Puts all points of a block into a row that is not full, and says whether it did: not where some would find no room, unless the row is
/// empty, nor where a distance is NaN.
#[inline(always)]
pub(super) fn fill_in_order<T: Real, const N: usize>(
    distances: &mut [T],
    indexes: &mut [i64],
    points: &[T; N],
    index: &[i64],
) -> bool {
    let held = indexes.partition_point(|&i| i != MISSING);
    let room = indexes.len() - held;
    if (held > 0 && room < index.len()) || points[..index.len()].iter().any(|x| x.is_nan()) {
        return false;
    }
    let (points, index, count) = in_order(points, index);
    let (mut before, mut new) = (held, count.min(room));
    while new > 0 {
        let next = (points[new - 1], index[new - 1]);
        let last = before.checked_sub(1).map(|at| (distances[at], indexes[at]));
        let next = match last.filter(|last| precedes(next, *last)) {
            Some(last) => {
                before -= 1;
                last
            }
            None => {
                new -= 1;
                next
            }
        };
        (distances[before + new], indexes[before + new]) = next;
    }
    true
}

/// Points with numbers for distances, in order, and how many there are. The place of one is how many are before it, which is found for all of
/// them side by side.
#[inline(always)]
fn in_order<T: Real, const N: usize>(points: &[T; N], index: &[i64]) -> ([T; N], [i64; N], usize) {
    let mut numbers = [MISSING; N];
    numbers[..index.len()].copy_from_slice(index);
    let mut places = [0u32; N];
    for (at, (&x, &i)) in points.iter().zip(index).enumerate() {
        for (other, place) in places.iter_mut().enumerate() {
            let (y, j) = (points[other], numbers[other]);
            // Points that are the same in both stay as they are.
            let lower = (i < j) | ((i == j) & (at < other));
            *place += u32::from((x < y) | ((x == y) & lower));
        }
    }
    let mut sorted = ([T::zero(); N], [MISSING; N]);
    for ((&place, &x), &i) in places.iter().zip(points).zip(index) {
        let place = place as usize % N;
        (sorted.0[place], sorted.1[place]) = (x, i);
    }
    (sorted.0, sorted.1, index.len())
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
