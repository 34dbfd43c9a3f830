//! Rows of channels side by side and apart: blocks of a few rows and columns are exchanged.

use super::{Beside, SIDE};
use crate::Real;
use crate::turn::{self, turned};
use bytemuck::Pod;

/// Rows and columns that are exchanged at a time.
const BLOCK: usize = turn::SIDE;

/// Where columns of a row go, or come from.
pub(super) struct Places {
    of: Vec<usize>,
    /// Whether each is behind the one before.
    follow: bool,
}

impl Places {
    pub(super) fn new(of: impl Iterator<Item = usize>) -> Self {
        let of: Vec<usize> = of.collect();
        let follow = of.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        Self { of, follow }
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// How many blocks of so many rows are exchanged whole.
    fn whole(&self, lanes: usize, step: isize) -> usize {
        match step == 1 && self.len() >= BLOCK {
            true => lanes / BLOCK,
            false => 0,
        }
    }
}

/// Lays rows of so many channels side by side, their columns each in its place.
#[inline(always)]
pub(super) fn beside<T: Real>(
    data: &[T],
    from: impl Fn(usize) -> usize,
    step: isize,
    lanes: usize,
    places: &Places,
    to: &mut [Beside<T>],
) {
    let (columns, whole) = (places.len(), places.whole(lanes, step));
    let of = &places.of[..];
    for part in 0..SIDE / BLOCK {
        if part >= whole {
            break;
        }
        let row = |i: usize| &data[from(part * BLOCK + i)..][..columns];
        let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
        let mut next = 0;
        while next < columns {
            // The last block may have columns again.
            let column = next.min(columns - BLOCK);
            next += BLOCK;
            let block = [at(a, column), at(b, column), at(c, column), at(d, column)];
            let [a, b, c, d] = turned(block);
            let places = match places.follow {
                true => {
                    let first = of[0] + column;
                    [first, first + 1, first + 2, first + 3]
                }
                false => at(of, column),
            };
            // A loop would take them through memory.
            put(&mut to[places[0]], part, a);
            put(&mut to[places[1]], part, b);
            put(&mut to[places[2]], part, c);
            put(&mut to[places[3]], part, d);
        }
    }
    for (column, place) in of.iter().enumerate() {
        let to = &mut to[*place][..lanes];
        for (lane, to) in to.iter_mut().enumerate().skip(whole * BLOCK) {
            *to = data[from(lane).wrapping_add_signed(column as isize * step)];
        }
    }
}

/// Writes rows of so many channels that lie side by side, each of whose columns is in its place.
#[inline(always)]
pub(super) fn apart<T: Real>(
    from: &[Beside<T>],
    places: &Places,
    lanes: usize,
    data: &mut [T],
    to: impl Fn(usize) -> usize,
    step: isize,
) {
    let (columns, whole) = (places.len(), places.whole(lanes, step));
    let of = &places.of[..];
    for part in 0..SIDE / BLOCK {
        if part >= whole {
            break;
        }
        let row = |i: usize| to(part * BLOCK + i);
        let rows = [row(0), row(1), row(2), row(3)];
        let mut next = 0;
        while next < columns {
            let column = next.min(columns - BLOCK);
            next += BLOCK;
            let places = match places.follow {
                true => {
                    let first = of[0] + column;
                    [first, first + 1, first + 2, first + 3]
                }
                false => at(of, column),
            };
            let [a, b, c, d] = turned([
                taken(&from[places[0]], part),
                taken(&from[places[1]], part),
                taken(&from[places[2]], part),
                taken(&from[places[3]], part),
            ]);
            data[rows[0] + column..][..BLOCK].copy_from_slice(&a);
            data[rows[1] + column..][..BLOCK].copy_from_slice(&b);
            data[rows[2] + column..][..BLOCK].copy_from_slice(&c);
            data[rows[3] + column..][..BLOCK].copy_from_slice(&d);
        }
    }
    for (column, place) in of.iter().enumerate() {
        let from = &from[*place][..lanes];
        for (lane, from) in from.iter().enumerate().skip(whole * BLOCK) {
            data[to(lane).wrapping_add_signed(column as isize * step)] = *from;
        }
    }
}

/// The numbers of a block, from one on.
#[inline(always)]
fn at<A: Pod>(numbers: &[A], first: usize) -> [A; BLOCK] {
    pulp::as_arrays::<BLOCK, A>(&numbers[first..first + BLOCK]).0[0]
}

/// Some of the numbers of channels side by side.
#[inline(always)]
fn taken<T: Real>(from: &Beside<T>, part: usize) -> [T; BLOCK] {
    pulp::as_arrays::<BLOCK, T>(from).0[part]
}

/// Writes some of the numbers of channels side by side.
#[inline(always)]
fn put<T: Real>(to: &mut Beside<T>, part: usize, numbers: [T; BLOCK]) {
    pulp::as_arrays_mut::<BLOCK, T>(to).0[part] = numbers;
}
