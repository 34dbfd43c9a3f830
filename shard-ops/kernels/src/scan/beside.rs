//! Lines that are runs of memory, gone through side by side: the sum of one waits for its last, those of others do not. Four by four
//! elements are turned, so that what is done at a time is of as many lines, in vectors.

use crate::arrays::numbered;
use crate::turn::{SIDE, turned};
use bytemuck::Pod;
use pulp::{Simd, WithSimd};

/// Lines that go side by side.
pub(super) const BESIDE: usize = 2 * SIDE;

/// Lines of equal length, of one operand or several, with their results and states, and a step of one of them.
pub(super) struct Beside<'a, T, Y, A, F, const K: usize> {
    pub(super) lines: [[&'a [T]; BESIDE]; K],
    pub(super) results: [&'a mut [Y]; BESIDE],
    pub(super) states: [A; BESIDE],
    pub(super) backwards: bool,
    pub(super) step: F,
}

impl<T: Pod, Y: Pod, A: Copy, F: Fn(A, [T; K]) -> (A, Y), const K: usize> WithSimd
    for Beside<'_, T, Y, A, F, K>
{
    /// The states after the last elements.
    type Output = [A; BESIDE];

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> [A; BESIDE] {
        if self.backwards {
            self.run::<true>();
        } else {
            self.run::<false>();
        }
        self.states
    }
}

impl<T: Pod, Y: Pod, A: Copy, F: Fn(A, [T; K]) -> (A, Y), const K: usize>
    Beside<'_, T, Y, A, F, K>
{
    #[inline(always)]
    fn run<const BACK: bool>(&mut self) {
        let len = self.lines[0][0].len();
        let (blocks, rest) = (len / SIDE, len % SIDE);
        let mut states = self.states;
        for block in 0..blocks {
            let at = if BACK {
                len - (block + 1) * SIDE
            } else {
                block * SIDE
            };
            for (group, states) in states.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
                let first = group * SIDE;
                let columns: [_; K] = numbered(
                    #[inline(always)]
                    |k| {
                        turned(numbered(
                            #[inline(always)]
                            |b| four(&self.lines[k][first + b][at..]),
                        ))
                    },
                );
                let mut results = [[Y::zeroed(); SIDE]; SIDE];
                for c in 0..SIDE {
                    let c = if BACK { SIDE - 1 - c } else { c };
                    for b in 0..SIDE {
                        let elements = numbered(
                            #[inline(always)]
                            |k| columns[k][c][b],
                        );
                        (states[b], results[c][b]) = (self.step)(states[b], elements);
                    }
                }
                for (b, result) in turned(results).iter().enumerate() {
                    self.results[first + b][at..at + SIDE].copy_from_slice(result);
                }
            }
        }
        for i in 0..rest {
            let i = if BACK {
                rest - 1 - i
            } else {
                blocks * SIDE + i
            };
            for (b, state) in states.iter_mut().enumerate() {
                let elements = numbered(
                    #[inline(always)]
                    |k| self.lines[k][b][i],
                );
                (*state, self.results[b][i]) = (self.step)(*state, elements);
            }
        }
        self.states = states;
    }
}

/// The first elements.
#[inline(always)]
fn four<T: Copy>(of: &[T]) -> [T; SIDE] {
    let of = &of[..SIDE];
    [of[0], of[1], of[2], of[3]]
}
