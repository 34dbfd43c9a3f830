//! Linear recurrences along a dim: each state is a factor times the one before it, and a term.

use super::beside::{BESIDE, Beside};
use super::{ABREAST, Lines};
use crate::compiled::compiled;
use crate::pointwise::{assert_shapes, vectorized};
use crate::{Real, View, ViewMut};
use pulp::{Simd, WithSimd};

/// Which way a linear recurrence goes, and where its factors are taken.
///
/// Of elements `a` and `b` and the state `h` it is `h = a h + b`, which is written. Its adjoint, run the other way, writes `h + b`, of
/// which `a` times as much is the next state. Either way a part of a line makes `A h + B` of the state that it is given, `A` being the
/// product of its factors, and `B` what it makes of nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recurrence {
    /// From the last element to the first.
    pub backwards: bool,
    /// Factors are taken as the state goes on, and not as it comes.
    pub adjoint: bool,
}

impl Recurrence {
    /// What a part makes of a state, if its factors come to `factor` and it makes `of_nothing` of no state. Factors that overflow, as
    /// those of a state that is nothing may, so change nothing.
    #[inline]
    pub fn join(state: f64, factor: f64, of_nothing: f64) -> f64 {
        if state == 0.0 {
            of_nothing
        } else {
            factor * state + of_nothing
        }
    }
}

compiled! { trait CompiledRecurrence for Real: f32 f64; {
    /// A linear recurrence of factors `a` and terms `b` along a dim, in double precision. `states` has one state per line, row-major over
    /// the other dims. Without `y` they are all that is computed.
    ///
    /// ```
    /// use shard_kernels::{scan::{recurrence, Recurrence}, View, ViewMut};
    /// let (mut y, mut states) = ([0.0f32; 3], [8.0]);
    /// let [a, b] = [[0.5f32, 2.0, 1.0], [1.0, 0.0, -3.0]];
    /// let [a, b] = [&a, &b].map(|of| View::contiguous(of, &[3]));
    /// let to = &mut ViewMut::contiguous(&mut y, &[3]);
    /// let forwards = Recurrence { backwards: false, adjoint: false };
    /// recurrence(forwards, &a, &b, 0, &mut states, Some(to));
    /// assert_eq!((y, states), ([5.0, 10.0, 7.0], [7.0]));
    /// ```
    ///
    /// # Panics
    /// When the dim is out of range, the shapes differ, or there is another number of states than lines.
    pub fn recurrence<T>(
        of: Recurrence,
        a: &View<'_, T>,
        b: &View<'_, T>,
        dim: usize,
        states: &mut [f64],
        y: Option<&mut ViewMut<'_, T>>,
    ) = recurrence_here;
} }

fn recurrence_here<T: Real>(
    of: Recurrence,
    a: &View<'_, T>,
    b: &View<'_, T>,
    dim: usize,
    states: &mut [f64],
    y: Option<&mut ViewMut<'_, T>>,
) {
    assert_shapes(&[a.shape()], b.shape());
    let lines = Lines::new(b.shape(), dim, of.backwards);
    // The state that is left, and what is written.
    match of.adjoint {
        false => run(&lines, a, b, states, y, |h, a, b| {
            let h = a * h + b;
            (h, h)
        }),
        true => run(&lines, a, b, states, y, |h, a, b| {
            let h = h + b;
            (a * h, h)
        }),
    }
}

/// Where a row of lines lies: the first state, factor, term and result, the steps from one line to the next, and those along a line.
struct Row<const N: usize> {
    at: [usize; 4],
    n: usize,
    steps: [isize; 4],
    along: [isize; N],
}

impl<const N: usize> Row<N> {
    /// Of line `j`, where its state is (0), and where its factors, terms and results begin.
    fn place(&self, k: usize, j: usize) -> usize {
        self.at[k].wrapping_add_signed(j as isize * self.steps[k])
    }

    /// Whether there are some lines that begin side by side, and each has a factor of its own or all have the same.
    fn is_abreast(&self) -> bool {
        self.n >= BESIDE
            && self.steps[0] == 1
            && matches!(self.steps[1], 0 | 1)
            && self.steps[2..=N].iter().all(|&step| step == 1)
    }

    /// Whether lines are runs of memory, as their factors are, if those are not one number.
    fn is_beside(&self) -> bool {
        matches!(self.along[0], 0 | 1) && self.along[1..].iter().all(|&step| step == 1)
    }
}

/// Goes through lines of factors and terms: `step` has the state, a factor and a term, and gives the next state and what is written.
fn run<T: Real>(
    lines: &Lines,
    a: &View<'_, T>,
    b: &View<'_, T>,
    states: &mut [f64],
    y: Option<&mut ViewMut<'_, T>>,
    step: impl Fn(f64, f64, f64) -> (f64, f64) + Copy,
) {
    let from = [a.data(), b.data()];
    let [factors, terms] = from;
    let operands = [(a.strides(), a.offset()), (b.strides(), b.offset())];
    let Some(y) = y else {
        let along = lines.along(&operands);
        return lines.rows(&operands, states.len(), |at, n, steps| {
            let row = Row {
                at,
                n,
                steps,
                along,
            };
            if row.is_abreast() {
                return abreast(lines, &row, from, states, &mut [], step);
            }
            lines.go(&along, states, at, n, steps, BESIDE, &mut |h, [a, b], _| {
                *h = step(*h, factors[a].wide(), terms[b].wide()).0;
            });
        });
    };
    assert_shapes(&[b.shape()], y.shape());
    let (_, strides, offset) = y.geometry();
    let y = y.data_mut();
    let operands = [operands[0], operands[1], (&strides[..], offset)];
    let along = lines.along(&operands);
    lines.rows(&operands, states.len(), |at, n, steps| {
        let row = Row {
            at,
            n,
            steps,
            along,
        };
        if row.is_beside() && lines.len > 1 {
            return beside(lines, &row, from, states, y, step);
        }
        if row.is_abreast() {
            return abreast(lines, &row, from, states, y, step);
        }
        lines.go(&along, states, at, n, steps, 1, &mut |h, [a, b, to], _| {
            let (state, found) = step(*h, factors[a].wide(), terms[b].wide());
            (*h, y[to]) = (state, T::of(found));
        });
    });
}

/// Lines that are runs of memory, several side by side.
fn beside<T: Real>(
    lines: &Lines,
    row: &Row<3>,
    [factors, terms]: [&[T]; 2],
    states: &mut [f64],
    y: &mut [T],
    step: impl Fn(f64, f64, f64) -> (f64, f64) + Copy,
) {
    let (len, backwards) = (lines.len, lines.backwards);
    let constant = row.along[0] == 0;
    let line = |j: usize| &terms[row.place(2, j)..][..len];
    let own = |j: usize| &factors[row.place(1, j)..][..if constant { 1 } else { len }];
    let mut j = 0;
    while j + BESIDE <= row.n {
        let several: [usize; BESIDE] = core::array::from_fn(|b| j + b);
        let results = several.map(|j| row.place(3, j)..row.place(3, j) + len);
        // Lines of a view that is written have no element in common; one that breaks this goes line by line.
        let Ok(results) = y.get_disjoint_mut(results) else {
            break;
        };
        let begun = several.map(|j| states[row.place(0, j)]);
        let now = if constant {
            // A factor goes along with its line's state.
            let with_factor = |b: usize| (begun[b], own(j + b)[0].wide());
            let now = vectorized(Beside {
                lines: [several.map(line)],
                results,
                states: core::array::from_fn(with_factor),
                backwards,
                step: |(h, a), [b]: [T; 1]| {
                    let (state, found) = step(h, a, b.wide());
                    ((state, a), T::of(found))
                },
            });
            now.map(|(state, _)| state)
        } else {
            vectorized(Beside {
                lines: [several.map(own), several.map(line)],
                results,
                states: begun,
                backwards,
                step: |h, [a, b]: [T; 2]| {
                    let (state, found) = step(h, a.wide(), b.wide());
                    (state, T::of(found))
                },
            })
        };
        for (j, now) in several.into_iter().zip(now) {
            states[row.place(0, j)] = now;
        }
        j += BESIDE;
    }
    for j in j..row.n {
        let (own, line) = (own(j), line(j));
        let result = &mut y[row.place(3, j)..][..len];
        let h = &mut states[row.place(0, j)];
        for i in lines.order() {
            let a = own[if constant { 0 } else { i }];
            let (state, found) = step(*h, a.wide(), line[i].wide());
            (*h, result[i]) = (state, T::of(found));
        }
    }
}

/// Lines that begin side by side. Without `y` nothing is written.
fn abreast<T: Real, const N: usize>(
    lines: &Lines,
    row: &Row<N>,
    [factors, terms]: [&[T]; 2],
    states: &mut [f64],
    y: &mut [T],
    step: impl Fn(f64, f64, f64) -> (f64, f64) + Copy,
) {
    for first in (0..row.n).step_by(ABREAST) {
        let width = ABREAST.min(row.n - first);
        let states = &mut states[row.place(0, first)..][..width];
        for i in lines.order() {
            let place = |k: usize| {
                row.place(k, first)
                    .wrapping_add_signed(i as isize * row.along[k - 1])
            };
            let of_each = if row.steps[1] == 0 { 1 } else { width };
            vectorized(Abreast {
                factors: &factors[place(1)..][..of_each],
                terms: &terms[place(2)..][..width],
                states,
                y: match N {
                    3 => &mut y[place(3)..][..width],
                    _ => &mut [],
                },
                step,
            });
        }
    }
}

/// An element of each of several lines.
struct Abreast<'a, T, F> {
    /// One of each line, or one of all.
    factors: &'a [T],
    terms: &'a [T],
    states: &'a mut [f64],
    /// Of as many, or nothing.
    y: &'a mut [T],
    step: F,
}

impl<T: Real, F: Fn(f64, f64, f64) -> (f64, f64)> WithSimd for Abreast<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self {
            factors,
            terms,
            states,
            y,
            step,
        } = self;
        let of_all = factors[0].wide();
        match (factors.len() == terms.len(), y.is_empty()) {
            (true, false) => {
                for (((h, &a), &b), y) in states.iter_mut().zip(factors).zip(terms).zip(y) {
                    let (state, found) = step(*h, a.wide(), b.wide());
                    (*h, *y) = (state, T::of(found));
                }
            }
            (true, true) => {
                for ((h, &a), &b) in states.iter_mut().zip(factors).zip(terms) {
                    *h = step(*h, a.wide(), b.wide()).0;
                }
            }
            (false, false) => {
                for ((h, &b), y) in states.iter_mut().zip(terms).zip(y) {
                    let (state, found) = step(*h, of_all, b.wide());
                    (*h, *y) = (state, T::of(found));
                }
            }
            (false, true) => {
                for (h, &b) in states.iter_mut().zip(terms) {
                    *h = step(*h, of_all, b.wide()).0;
                }
            }
        }
    }
}
