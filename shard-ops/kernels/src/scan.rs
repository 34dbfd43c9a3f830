//! Scans along a dim: running sums, products, extremes and the like, forwards or backwards.
//!
//! A scan keeps one state per line along the dim. It begins with the states it is given, which hold what came before, and leaves
//! them as they are after the last element: of a dim in several parts, each part can so go on where the one before it ended.

mod beside;
mod recurrence;

pub use self::recurrence::{CompiledRecurrence, Recurrence, recurrence};

use self::beside::{BESIDE, Beside};
use super::pointwise::{assert_shapes, vectorized};
use super::view::{Dims, Strides, for_each_row, row_major};
use super::whole::{Number, Whole};
use super::{Real, View, ViewMut};
use crate::compiled::compiled;
use bytemuck::Pod;
use shard_device::Bool;

/// What a scan of numbers gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Sums; of integers they wrap.
    Sum,
    /// Products; of integers they wrap.
    Prod,
    /// The logarithm of the sum of exponentials, of floats.
    LogSumExp,
}

impl Scan {
    /// The state before any float.
    pub const fn float_identity(self) -> f64 {
        match self {
            Self::Sum => 0.0,
            Self::Prod => 1.0,
            Self::LogSumExp => f64::NEG_INFINITY,
        }
    }

    /// The state before any integer.
    pub const fn whole_identity(self) -> i64 {
        match self {
            Self::Prod => 1,
            _ => 0,
        }
    }

    /// Two states of floats as one.
    #[inline]
    pub fn join_floats(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Sum => a + b,
            Self::Prod => a * b,
            Self::LogSumExp => log_add_exp(a, b),
        }
    }

    /// Two states of integers as one.
    #[inline]
    pub fn join_whole(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Prod => a.wrapping_mul(b),
            _ => a.wrapping_add(b),
        }
    }
}

/// `ln(e^a + e^b)` without overflow.
#[inline]
fn log_add_exp(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    // Equal infinities have no difference.
    if low == high && low.is_infinite() {
        return low;
    }
    high + (low - high).exp().ln_1p()
}

/// Which extreme is looked for, and where it was found: of equal ones the last, and NaN before all, as PyTorch's `cummax`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extreme<T> {
    /// The extreme.
    pub value: T,
    /// Its index; below 0 if there was no element yet.
    pub index: i64,
}

impl<T: Number> Extreme<T> {
    /// Before any element.
    pub fn none() -> Self {
        Self {
            value: T::default(),
            index: -1,
        }
    }

    /// This, or what comes after it if that is the largest (the smallest).
    #[inline]
    #[must_use]
    pub fn then(self, next: Self, largest: bool) -> Self {
        let wins = if largest {
            next.value >= self.value
        } else {
            next.value <= self.value
        };
        let takes = self.index < 0 || next.value.is_nan() || (!self.value.is_nan() && wins);
        if next.index >= 0 && takes { next } else { self }
    }

    /// Whether it is still the extreme after all of these.
    #[inline(always)]
    fn stays(self, after: &[T], largest: bool) -> bool {
        let all = |keeps: fn(T, T) -> bool| {
            (after.iter()).fold(true, |all, x| all & keeps(*x, self.value))
        };
        self.index >= 0
            && match largest {
                true => all(|x, most| x < most),
                false => all(|x, least| x > least),
            }
    }
}

/// Of how many elements at a time it is found out whether they change a running extreme.
const AT_ONCE: usize = 32;

/// The sum since the last element that ended a run, and whether there was one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunSum {
    /// The sum since.
    pub sum: f64,
    /// Whether some run ended.
    pub ended: bool,
}

impl RunSum {
    /// This, and what comes after it.
    #[inline]
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self {
            sum: if next.ended {
                next.sum
            } else {
                self.sum + next.sum
            },
            ended: self.ended || next.ended,
        }
    }
}

compiled! { trait Compiled for Real: f32 f64; {
    /// The running values of floats along a dim, summed and multiplied as `f64`. `states` has one per line, row-major over the
    /// other dims. Without `y` they are all that is computed.
    ///
    /// ```
    /// use shard_kernels::{scan::{floats, Scan}, View, ViewMut};
    /// let (mut y, mut states) = ([0.0f32; 4], [10.0]);
    /// let x = [1.0f32, 2.0, 3.0, 4.0];
    /// let to = &mut ViewMut::contiguous(&mut y, &[4]);
    /// floats(Scan::Sum, false, &View::contiguous(&x, &[4]), 0, &mut states, Some(to));
    /// assert_eq!((y, states), ([11.0, 13.0, 16.0, 20.0], [20.0]));
    /// ```
    ///
    /// # Panics
    /// When the dim is out of range, the shapes differ, or there is another number of states than lines.
    pub fn floats<T>(
        op: Scan,
        backwards: bool,
        x: &View<'_, T>,
        dim: usize,
        states: &mut [f64],
        y: Option<&mut ViewMut<'_, T>>,
    ) = floats_here;

    /// Backwards along a dim, the sums of runs that end (begin, forwards) where an index is the element's own, of which the first is
    /// `first`: each is written there, and 0 elsewhere. As [`floats`].
    ///
    /// # Panics
    /// As [`floats`].
    pub fn runs<T>(
        x: &View<'_, T>,
        index: &View<'_, i64>,
        dim: usize,
        first: i64,
        states: &mut [RunSum],
        y: Option<&mut ViewMut<'_, T>>,
    ) = runs_here;
} }

fn floats_here<T: Real>(
    op: Scan,
    backwards: bool,
    x: &View<'_, T>,
    dim: usize,
    states: &mut [f64],
    y: Option<&mut ViewMut<'_, T>>,
) {
    let lines = Lines::new(x.shape(), dim, backwards);
    let of = |x: T| x.wide();
    match op {
        Scan::Sum => lines.values(x, states, y, of, |a, b| a + b, T::of),
        Scan::Prod => lines.values(x, states, y, of, |a, b| a * b, T::of),
        Scan::LogSumExp => lines.values(x, states, y, of, log_add_exp, T::of),
    }
}

compiled! { trait CompiledWhole for Whole: i64 i32 u8 Bool; {
    /// The running values of integers and truth values along a dim, as `i64`; as [`floats`].
    ///
    /// # Panics
    /// As [`floats`]; for exponentials.
    pub fn whole<T>(
        op: Scan,
        backwards: bool,
        x: &View<'_, T>,
        dim: usize,
        states: &mut [i64],
        y: Option<&mut ViewMut<'_, i64>>,
    ) = whole_here;
} }

fn whole_here<T: Whole>(
    op: Scan,
    backwards: bool,
    x: &View<'_, T>,
    dim: usize,
    states: &mut [i64],
    y: Option<&mut ViewMut<'_, i64>>,
) {
    let lines = Lines::new(x.shape(), dim, backwards);
    match op {
        Scan::Sum => lines.values(x, states, y, T::wide, i64::wrapping_add, |v| v),
        Scan::Prod => lines.values(x, states, y, T::wide, i64::wrapping_mul, |v| v),
        Scan::LogSumExp => panic!("exponentials of {}", T::DTYPE),
    }
}

compiled! { trait CompiledNumber for Number: f32 f64 i64 i32 u8 Bool; {
    /// The running extremes along a dim, and their indices, of which the first is `first`; as [`floats`].
    ///
    /// # Panics
    /// As [`floats`].
    pub fn extremes<T>(
        largest: bool,
        x: &View<'_, T>,
        dim: usize,
        first: i64,
        states: &mut [Extreme<T>],
        out: Option<(&mut ViewMut<'_, T>,
        &mut ViewMut<'_, i64>)>,
    ) = extremes_here;
} }

fn extremes_here<T: Number>(
    largest: bool,
    x: &View<'_, T>,
    dim: usize,
    first: i64,
    states: &mut [Extreme<T>],
    out: Option<(&mut ViewMut<'_, T>, &mut ViewMut<'_, i64>)>,
) {
    let lines = Lines::new(x.shape(), dim, false);
    let data = x.data();
    let next = |state: &mut Extreme<T>, at: usize, i: usize| {
        let index = first + i as i64;
        let value = data[at];
        *state = state.then(Extreme { value, index }, largest);
    };
    let Some((values, indices)) = out else {
        return lines.each([(x.strides(), x.offset())], states, |state, [at], i| {
            next(state, at, i);
        });
    };
    assert_shapes(&[x.shape(), indices.shape()], values.shape());
    let (_, value_strides, value_offset) = values.geometry();
    let (_, index_strides, index_offset) = indices.geometry();
    let (values, indices) = (values.data_mut(), indices.data_mut());
    let operands = [
        (x.strides(), x.offset()),
        (&value_strides[..], value_offset),
        (&index_strides[..], index_offset),
    ];
    if lines.along(&operands) == [1; 3] {
        // The state of a line seldom changes: of a few elements at a time it is found out whether it does.
        return lines.rows(&operands, states.len(), |at, n, steps| {
            for j in 0..n as isize {
                let [state, x, value, index] =
                    core::array::from_fn(|k| at[k].wrapping_add_signed(j * steps[k]));
                let mut now = states[state];
                let values = values[value..][..lines.len].chunks_mut(AT_ONCE);
                let indices = indices[index..][..lines.len].chunks_mut(AT_ONCE);
                let elements = data[x..][..lines.len].chunks(AT_ONCE);
                let firsts = (first..).step_by(AT_ONCE);
                for (((first, x), values), indices) in firsts.zip(elements).zip(values).zip(indices)
                {
                    if x.len() == AT_ONCE && now.stays(x, largest) {
                        values.fill(now.value);
                        indices.fill(now.index);
                        continue;
                    }
                    let results = values.iter_mut().zip(indices);
                    for ((index, &value), results) in (first..).zip(x).zip(results) {
                        now = now.then(Extreme { value, index }, largest);
                        (*results.0, *results.1) = (now.value, now.index);
                    }
                }
                states[state] = now;
            }
        });
    }
    lines.each(operands, states, |state, [at, value, index], i| {
        next(state, at, i);
        (values[value], indices[index]) = (state.value, state.index);
    });
}

fn runs_here<T: Real>(
    x: &View<'_, T>,
    index: &View<'_, i64>,
    dim: usize,
    first: i64,
    states: &mut [RunSum],
    y: Option<&mut ViewMut<'_, T>>,
) {
    let lines = Lines::new(x.shape(), dim, true);
    let (data, indices) = (x.data(), index.data());
    assert_shapes(&[x.shape()], index.shape());
    let next = |state: &mut RunSum, at: usize, index: usize, i: usize| {
        let sum = state.sum + data[at].wide();
        let ends = indices[index] == first + i as i64;
        *state = RunSum {
            sum: if ends { 0.0 } else { sum },
            ended: state.ended || ends,
        };
        if ends { T::of(sum) } else { T::zero() }
    };
    let [from, index] = [(x.strides(), x.offset()), (index.strides(), index.offset())];
    let Some(y) = y else {
        return lines.each([from, index], states, |state, [at, index], i| {
            next(state, at, index, i);
        });
    };
    assert_shapes(&[x.shape()], y.shape());
    let (_, strides, offset) = y.geometry();
    let y = y.data_mut();
    let operands = [from, index, (&strides[..], offset)];
    lines.each(operands, states, |state, [at, index, to], i| {
        y[to] = next(state, at, index, i);
    });
}

/// The lines along a dim.
struct Lines {
    dim: usize,
    /// How many elements a line has.
    len: usize,
    backwards: bool,
    /// The other dims.
    kept: Dims,
}

impl Lines {
    fn new(shape: &[usize], dim: usize, backwards: bool) -> Self {
        assert!(dim < shape.len(), "scan: dim {dim} of shape {shape:?}");
        let mut kept = Dims::from_slice(shape);
        let len = kept.remove(dim);
        Self {
            dim,
            len,
            backwards,
            kept,
        }
    }

    fn values<T: Pod, A: Copy, Y: Pod>(
        &self,
        x: &View<'_, T>,
        states: &mut [A],
        y: Option<&mut ViewMut<'_, Y>>,
        lift: impl Fn(T) -> A,
        join: impl Fn(A, A) -> A,
        lower: impl Fn(A) -> Y,
    ) {
        let (data, from) = (x.data(), (x.strides(), x.offset()));
        let Some(y) = y else {
            return self.each([from], states, |state, [at], _| {
                *state = join(*state, lift(data[at]));
            });
        };
        assert_shapes(&[x.shape()], y.shape());
        let (_, strides, offset) = y.geometry();
        let y = y.data_mut();
        let operands = [from, (&strides[..], offset)];
        let (along, len) = (self.along(&operands), self.len);
        let step = |state: A, from: T| {
            let state = join(state, lift(from));
            (state, lower(state))
        };
        if along == [1, 1] && len > 0 {
            return self.rows(&operands, states.len(), |[state, from, to, _], n, steps| {
                if (2..=8).contains(&len) && steps[..3] == [1, len as isize, len as isize] {
                    let states = &mut states[state..][..n];
                    let (lines, results) = (&data[from..][..n * len], &mut y[to..][..n * len]);
                    return self.short(states, lines, results, &step);
                }
                let at = |first: usize, k: usize, j: usize| {
                    first.wrapping_add_signed(j as isize * steps[k])
                };
                let mut j = 0;
                while j + BESIDE <= n {
                    let results = core::array::from_fn(|b| {
                        let first = at(to, 2, j + b);
                        first..first + len
                    });
                    // Lines of a view that is written have no element in common; one that breaks this goes line by line.
                    let Ok(results) = y.get_disjoint_mut(results) else {
                        break;
                    };
                    let now = vectorized(Beside {
                        lines: [core::array::from_fn(|b| &data[at(from, 1, j + b)..][..len])],
                        results,
                        states: core::array::from_fn(|b| states[at(state, 0, j + b)]),
                        backwards: self.backwards,
                        step: |state, [from]: [T; 1]| step(state, from),
                    });
                    for (b, now) in now.into_iter().enumerate() {
                        states[at(state, 0, j + b)] = now;
                    }
                    j += BESIDE;
                }
                for j in j..n {
                    let (line, result) = (&data[at(from, 1, j)..][..len], at(to, 2, j));
                    let state = &mut states[at(state, 0, j)];
                    let result = &mut y[result..][..len];
                    for i in self.order() {
                        (*state, result[i]) = step(*state, line[i]);
                    }
                }
            });
        }
        self.rows(&operands, states.len(), |at, n, steps| {
            if steps[..3] != [1; 3] {
                return self.go(
                    &along,
                    states,
                    at,
                    n,
                    steps,
                    1,
                    &mut |state, [from, to], _| {
                        (*state, y[to]) = step(*state, data[from]);
                    },
                );
            }
            for first in (0..n).step_by(ABREAST) {
                let width = ABREAST.min(n - first);
                let states = &mut states[at[0] + first..][..width];
                for i in self.order() {
                    let place =
                        |k: usize| (at[k + 1] + first).wrapping_add_signed(i as isize * along[k]);
                    let (from, to) = (&data[place(0)..][..width], &mut y[place(1)..][..width]);
                    for ((state, &from), to) in states.iter_mut().zip(from).zip(to) {
                        (*state, *to) = step(*state, from);
                    }
                }
            }
        });
    }

    /// Short lines one behind the other, by loops of their length.
    fn short<T: Copy, A: Copy, Y: Copy>(
        &self,
        states: &mut [A],
        lines: &[T],
        results: &mut [Y],
        step: &impl Fn(A, T) -> (A, Y),
    ) {
        fn of<const N: usize, T: Copy, A: Copy, Y: Copy>(
            backwards: bool,
            states: &mut [A],
            (lines, results): (&[T], &mut [Y]),
            step: &impl Fn(A, T) -> (A, Y),
        ) {
            let (lines, results) = (lines.as_chunks::<N>().0, results.as_chunks_mut::<N>().0);
            for ((state, line), result) in states.iter_mut().zip(lines).zip(results) {
                for i in 0..N {
                    let i = if backwards { N - 1 - i } else { i };
                    (*state, result[i]) = step(*state, line[i]);
                }
            }
        }
        let (backwards, all) = (self.backwards, (lines, results));
        match self.len {
            2 => of::<2, T, A, Y>(backwards, states, all, step),
            3 => of::<3, T, A, Y>(backwards, states, all, step),
            4 => of::<4, T, A, Y>(backwards, states, all, step),
            5 => of::<5, T, A, Y>(backwards, states, all, step),
            6 => of::<6, T, A, Y>(backwards, states, all, step),
            7 => of::<7, T, A, Y>(backwards, states, all, step),
            _ => of::<8, T, A, Y>(backwards, states, all, step),
        }
    }

    /// Visits all elements, each line's in order: its state, where the element lies in each operand, and its place in the line.
    fn each<S, const N: usize>(
        &self,
        operands: [(&[isize], usize); N],
        states: &mut [S],
        mut visit: impl FnMut(&mut S, [usize; N], usize),
    ) {
        // Lines that begin side by side go on side by side, many at a time, where they lie so.
        let first = operands[0].0;
        let abreast =
            (0..first.len()).any(|d| d != self.dim && first[d] == 1 && self.extent(d) > 1);
        let width = if abreast { ABREAST } else { 1 };
        let along = self.along(&operands);
        self.rows(&operands, states.len(), |at, n, steps| {
            self.go(&along, states, at, n, steps, width, &mut visit);
        });
    }

    /// Visits the elements of lines of one row, as many lines at a time as `width`.
    #[expect(clippy::too_many_arguments, reason = "the geometry of a row")]
    fn go<S, const N: usize>(
        &self,
        along: &[isize; N],
        states: &mut [S],
        at: [usize; 4],
        n: usize,
        steps: [isize; 4],
        width: usize,
        visit: &mut impl FnMut(&mut S, [usize; N], usize),
    ) {
        for first in (0..n).step_by(width) {
            for i in self.order() {
                for j in first..(first + width).min(n) {
                    let place = |k: usize| at[k].wrapping_add_signed(j as isize * steps[k]);
                    let places = core::array::from_fn(|k| {
                        place(k + 1).wrapping_add_signed(i as isize * along[k])
                    });
                    visit(&mut states[place(0)], places, i);
                }
            }
        }
    }

    /// Visits the lines, rows of them: where the first one's state is and its elements in each operand, how many there are, and the steps
    /// from one to the next.
    fn rows<const N: usize>(
        &self,
        operands: &[(&[isize], usize); N],
        states: usize,
        visit: impl FnMut([usize; 4], usize, [isize; 4]),
    ) {
        let count: usize = self.kept.iter().product();
        assert!(states == count, "scan: {states} states of {count} lines");
        let kept: [Strides; N] = operands.map(|(strides, _)| {
            let mut strides = Strides::from_slice(strides);
            strides.remove(self.dim);
            strides
        });
        let state_steps = row_major(&self.kept);
        let mut all: [&[isize]; 4] = [&state_steps; 4];
        let mut at = [0; 4];
        for (k, (strides, (_, offset))) in kept.iter().zip(operands).enumerate() {
            (all[k + 1], at[k + 1]) = (strides, *offset);
        }
        for_each_row(&self.kept, all, at, visit);
    }

    /// The operands' steps along lines.
    fn along<const N: usize>(&self, operands: &[(&[isize], usize); N]) -> [isize; N] {
        operands.map(|(strides, _)| strides[self.dim])
    }

    /// The extent of a dim other than that of the lines.
    fn extent(&self, d: usize) -> usize {
        self.kept[d - usize::from(d > self.dim)]
    }

    /// The places of a line in the order in which they are visited.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (len, backwards) = (self.len, self.backwards);
        (0..len).map(move |i| if backwards { len - 1 - i } else { i })
    }
}

/// Lines that are gone through side by side: enough for whole pages of cache, few enough for their states to stay in it.
const ABREAST: usize = 256;
