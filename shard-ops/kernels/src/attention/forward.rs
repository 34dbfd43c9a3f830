//! The fold of blocks of keys into running maximum, sum and output.

use super::problem::{KeyBlock, Problem, Queries, Step, Tile};
use super::products::{Products, Vectors};
use super::stored::Stored;
use super::tiles::{self, Tiled, Tiles};
use crate::Real;
use crate::ViewMut;
use crate::compiled::compiled;
use crate::exp::{exp_in, exp_shifted};
use crate::gemm;
use crate::pointwise::vectorized;
use crate::reduce::{BLOCK, LANES, by_lanes, largest, sum_of_lanes};
use crate::scratch::Room;
use half::{bf16, f16};
use pulp::{Simd, WithSimd};

/// The result of attention after some blocks of keys, in a form that takes in more: per query the largest logit, the sum of
/// exponentials relative to it, and the output not yet divided by that sum.
///
/// States of disjoint sets of keys merge; the state of no keys is the neutral element. All parts are in row-major order of
/// `[batch, heads, queries]`.
///
/// ```
/// use shard_kernels::attention::{AttentionState, KeyBlock, Queries};
/// use shard_kernels::{Positions, View, ViewMut};
/// let (q, k, v) = ([1.0f64], [0.0, 3.0f64.ln()], [1.0, 5.0]);
/// let queries = Queries::new(View::contiguous(&q, &[1, 1, 1, 1]), Positions::from(0));
/// let mut state = AttentionState::new([1, 1, 1], 1);
/// for key in 0..2 {
///     // One key at a time: weights 1 and 3.
///     let at = |x| View::contiguous(x, &[1, 1, 1, 1]);
///     state.fold(&queries, &KeyBlock::new(at(&k[key..=key]), at(&v[key..=key]), Positions::from(key as i64)));
/// }
/// let (mut out, mut lse) = ([0.0], [0.0]);
/// state.finish(&mut ViewMut::contiguous(&mut out, &[1, 1, 1, 1]), &mut lse);
/// assert!((out[0] - 4.0f64).abs() < 1e-14 && (lse[0] - 4.0f64.ln()).abs() < 1e-14);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionState<A> {
    /// Batch, heads, queries.
    shape: [usize; 3],
    value_dim: usize,
    max: Vec<A>,
    sum: Vec<A>,
    out: Vec<A>,
}

impl<A: Real> AttentionState<A> {
    /// The state of no keys, for queries of shape `[batch, heads, queries]` and values of `value_dim` elements.
    pub fn new(shape: [usize; 3], value_dim: usize) -> Self {
        let rows = shape.iter().product::<usize>();
        Self {
            shape,
            value_dim,
            max: vec![A::neg_infinity(); rows],
            sum: vec![A::zero(); rows],
            out: vec![A::zero(); rows * value_dim],
        }
    }

    /// A state from its parts, as [`AttentionState::into_parts`] gives them.
    ///
    /// # Panics
    /// When a part has another number of elements than the shape says.
    pub fn from_parts(shape: [usize; 3], value_dim: usize, [max, sum, out]: [Vec<A>; 3]) -> Self {
        let rows = shape.iter().product::<usize>();
        assert!(
            max.len() == rows && sum.len() == rows && out.len() == rows * value_dim,
            "attention: {}, {} and {} elements for a state of shape {shape:?} by {value_dim}",
            max.len(),
            sum.len(),
            out.len()
        );
        Self {
            shape,
            value_dim,
            max,
            sum,
            out,
        }
    }

    /// Largest logits, sums and unnormalised outputs.
    pub fn into_parts(self) -> [Vec<A>; 3] {
        [self.max, self.sum, self.out]
    }

    /// Takes in a block of keys and values.
    ///
    /// # Panics
    /// When shapes contradict each other or the state.
    pub fn fold<E: Stored<Acc = A>>(&mut self, queries: &Queries<'_, E>, block: &KeyBlock<'_, E>) {
        fold(self, queries, block);
    }

    /// Fails unless a block fits these queries and the state.
    fn check<E: Stored<Acc = A>>(&self, queries: &Queries<'_, E>, block: &KeyBlock<'_, E>) {
        assert!(
            self.shape == queries.q.shape()[..3] && self.value_dim == block.v.shape()[3],
            "attention: queries of shape {:?} and values of shape {:?} into a state of shape {:?} by {}",
            queries.q.shape(),
            block.v.shape(),
            self.shape,
            self.value_dim
        );
    }

    /// Takes in a block, by products that are formed somehow.
    pub(super) fn take_in<E: Stored<Acc = A>, P: Products<A>>(
        &mut self,
        problem: &Problem<'_, '_, E>,
        products: &mut P,
    ) {
        let (e, [rows, keys]) = (problem.extents, P::TILE);
        let rows = row_tile(e.rows(), rows);
        let most = rows * keys.min(e.keys);
        let mut room = Room::new();
        let logits = room.numbers::<A>(most).take(most);
        let mut factors = vec![A::zero(); problem.queries.dropout.map_or(0, |_| most)];
        problem.walk([rows, keys], products.span(), &mut |step| match step {
            Step::Keys(at, keys) => products.go_to_keys(at, keys),
            Step::Rows(rows) => products.go_to_rows(rows),
            Step::Tile(tile) => {
                let logits = &mut logits[..tile.area()];
                self.take(problem, products, &tile, logits, &mut factors);
            }
            Step::Left(..) => {}
        });
    }

    /// Takes in a tile. Its logits are turned into probabilities.
    fn take<E: Stored<Acc = A>>(
        &mut self,
        problem: &Problem<'_, '_, E>,
        products: &mut impl Products<A>,
        tile: &Tile,
        logits: &mut [A],
        factors: &mut [A],
    ) {
        let factor = products.logits(tile, logits);
        let factor = problem.mask(tile, factor, logits);
        let width = self.value_dim;
        let first = problem.row(tile.batch, tile.kv_head, tile.rows.start);
        let rows = first..first + tile.rows.len();
        let out = &mut self.out[rows.start * width..rows.end * width];
        vectorized(Online {
            logits,
            factor,
            keys: tile.keys.len(),
            max: &mut self.max[rows.clone()],
            sum: &mut self.sum[rows],
            out,
            width,
        });
        if let Some(dropout) = problem.queries.dropout {
            let factors = &mut factors[..tile.area()];
            problem.drop_factors(dropout, tile, factors);
            for (p, f) in logits.iter_mut().zip(factors) {
                *p *= *f;
            }
        }
        products.add_values(tile, logits, out);
    }

    /// Takes in the state of other keys for the same queries.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn merge(&mut self, other: &Self) {
        assert!(
            self.shape == other.shape && self.value_dim == other.value_dim,
            "attention: a state of shape {:?} by {} into one of shape {:?} by {}",
            other.shape,
            other.value_dim,
            self.shape,
            self.value_dim
        );
        for r in 0..self.max.len() {
            let max = higher(self.max[r], other.max[r]);
            if max == A::neg_infinity() {
                continue;
            }
            let (ours, theirs) = ((self.max[r] - max).exp(), (other.max[r] - max).exp());
            self.max[r] = max;
            self.sum[r] = self.sum[r] * ours + other.sum[r] * theirs;
            let row = r * self.value_dim..(r + 1) * self.value_dim;
            for (o, x) in self.out[row.clone()].iter_mut().zip(&other.out[row]) {
                *o = *o * ours + *x * theirs;
            }
        }
    }

    /// Writes the output `[batch, heads, queries, value dim]`, and per query the logarithm of the sum of exponentials of its
    /// logits. Queries that saw no key get zeros and -inf.
    ///
    /// # Panics
    /// When `out` or `lse` does not fit the state.
    pub fn finish<E: Stored<Acc = A>>(&self, out: &mut ViewMut<'_, E>, lse: &mut [A]) {
        finish(self, out, lse);
    }

    fn write<E: Stored<Acc = A>>(&self, out: &mut ViewMut<'_, E>, lse: &mut [A]) {
        let [batch, heads, queries] = self.shape;
        assert!(
            out.shape() == [batch, heads, queries, self.value_dim] && lse.len() == self.max.len(),
            "attention: a state of shape {:?} by {} into {:?} and {} sums",
            self.shape,
            self.value_dim,
            out.shape(),
            lse.len()
        );
        for (lse, (&max, &sum)) in lse.iter_mut().zip(self.max.iter().zip(&self.sum)) {
            *lse = if sum == A::zero() {
                A::neg_infinity()
            } else {
                max + sum.ln()
            };
        }
        let inverse = self
            .sum
            .iter()
            .map(|&l| if l == A::zero() { l } else { A::one() / l });
        write_rows(out, &self.out, inverse);
    }
}

compiled! { trait CompiledState for Stored: f64 f16; {
    fn fold<T>(
        state: &mut AttentionState<<T as Stored>::Acc>,
        queries: &Queries<'_, T>,
        block: &KeyBlock<'_, T>,
    ) = fold_here;

    fn finish<T>(
        state: &AttentionState<<T as Stored>::Acc>,
        out: &mut ViewMut<'_, T>,
        lse: &mut [<T as Stored>::Acc],
    ) = finish_here;
} }

/// The same of types of which a unit takes the products, where that pays.
macro_rules! tiled {
    ($($t:ty)+) => {$(
        impl CompiledState<Self> for $t {
            fn fold(
                state: &mut AttentionState<f32>,
                queries: &Queries<'_, Self>,
                block: &KeyBlock<'_, Self>,
            ) {
                fold_tiled(state, queries, block);
            }

            fn finish(state: &AttentionState<f32>, out: &mut ViewMut<'_, Self>, lse: &mut [f32]) {
                finish_here(state, out, lse);
            }
        }
    )+};
}

tiled!(f32 bf16);

fn fold_tiled<E: Tiled>(
    state: &mut AttentionState<f32>,
    queries: &Queries<'_, E>,
    block: &KeyBlock<'_, E>,
) {
    state.check(queries, block);
    let problem = Problem::new(queries, block);
    match tiles::fit(&problem, block)
        .then(gemm::of_processor)
        .flatten()
    {
        Some(unit) => state.take_in(&problem, &mut Tiles::new(unit, &problem, block, None)),
        None => state.take_in(&problem, &mut Vectors::new(&problem, block, None)),
    }
}

fn fold_here<E: Stored>(
    state: &mut AttentionState<E::Acc>,
    queries: &Queries<'_, E>,
    block: &KeyBlock<'_, E>,
) {
    state.check(queries, block);
    let problem = Problem::new(queries, block);
    state.take_in(&problem, &mut Vectors::new(&problem, block, None));
}

fn finish_here<E: Stored>(
    state: &AttentionState<E::Acc>,
    out: &mut ViewMut<'_, E>,
    lse: &mut [E::Acc],
) {
    state.write(out, lse);
}

/// Writes rows of row-major `from`, each times its factor, to the last dim of a four-dim view.
pub(super) fn write_rows<E: Stored>(
    to: &mut ViewMut<'_, E>,
    from: &[E::Acc],
    factors: impl Iterator<Item = E::Acc>,
) {
    let shape: [usize; 4] = core::array::from_fn(|d| to.shape()[d]);
    let steps: [isize; 4] = core::array::from_fn(|d| to.strides()[d]);
    if shape.contains(&0) {
        return;
    }
    let offset = to.offset();
    let data = to.data_mut();
    for ((r, row), factor) in from.chunks_exact(shape[3]).enumerate().zip(factors) {
        let index = [
            r / (shape[1] * shape[2]),
            r / shape[2] % shape[1],
            r % shape[2],
        ];
        let at = index
            .iter()
            .zip(steps)
            .fold(offset, |at, (&i, s)| at.wrapping_add_signed(i as isize * s));
        if steps[3] == 1 {
            narrow_times(row, factor, &mut data[at..at + row.len()]);
            continue;
        }
        for (j, x) in row.iter().enumerate() {
            data[at.wrapping_add_signed(j as isize * steps[3])] = E::narrow(*x * factor);
        }
    }
}

/// Narrows numbers times a factor: many at a time where that is a call, which one by one would be a call for each.
fn narrow_times<E: Stored>(from: &[E::Acc], factor: E::Acc, to: &mut [E]) {
    if let Some(to) = E::as_acc_mut(to) {
        for (to, x) in to.iter_mut().zip(from) {
            *to = *x * factor;
        }
        return;
    }
    let mut scaled = [<E::Acc as num_traits::Zero>::zero(); NARROWED];
    for (from, to) in from.chunks(NARROWED).zip(to.chunks_mut(NARROWED)) {
        let scaled = &mut scaled[..from.len()];
        for (to, x) in scaled.iter_mut().zip(from) {
            *to = *x * factor;
        }
        E::narrow_slice(scaled, to);
    }
}

/// Numbers that are narrowed at a time: those of a row of most heads.
const NARROWED: usize = 128;

/// Rows per tile, so that there are few tiles, all of about the same size.
pub(super) fn row_tile(rows: usize, most: usize) -> usize {
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}

/// Turns logits, which are still to be multiplied by a positive factor, into exponentials relative to the running maximum, and rescales
/// earlier sums to a new maximum.
struct Online<'a, A> {
    logits: &'a mut [A],
    factor: A,
    keys: usize,
    max: &'a mut [A],
    sum: &'a mut [A],
    out: &'a mut [A],
    width: usize,
}

impl<A: Real> WithSimd for Online<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.run(simd);
    }
}

impl<A: Real> Online<'_, A> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (r, row) in self.logits.chunks_exact_mut(self.keys).enumerate() {
            let before = self.max[r];
            let max = higher(before, largest(simd, row) * self.factor);
            if max == A::neg_infinity() {
                // Every key is hidden so far, so a difference of infinities is avoided. Only NaN needs attention.
                if row.iter().any(|t| t.is_nan()) {
                    self.sum[r] = A::nan();
                }
                row.fill(A::zero());
                continue;
            }
            if max != before {
                let factor = exp_in::<S, A>(before - max);
                self.max[r] = max;
                self.sum[r] *= factor;
                for o in &mut self.out[r * self.width..(r + 1) * self.width] {
                    *o *= factor;
                }
            }
            self.sum[r] += exponentials(simd, row, self.factor, max);
        }
    }
}

/// `row = exp(row * factor - max)`, and its sum.
#[inline(always)]
fn exponentials<A: Real, S: Simd>(simd: S, row: &mut [A], factor: A, max: A) -> A {
    let mut total = A::zero();
    for row in row.chunks_mut(BLOCK) {
        let (whole, tail) = pulp::as_arrays_mut::<LANES, A>(row);
        for x in whole.as_flattened_mut() {
            *x = exp_shifted::<S, A>(*x, factor, max);
        }
        for x in tail {
            *x = exp_shifted::<S, A>(*x, factor, max);
        }
        let mut sums = [A::zero(); LANES];
        by_lanes(row, A::zero(), |row: &[_; LANES]| {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += *x;
            }
        });
        total += sum_of_lanes(simd, &sums);
    }
    total
}

/// The larger of two numbers, of which the second may be NaN and is then ignored, since the sum of exponentials keeps it.
#[inline(always)]
fn higher<A: Real>(a: A, b: A) -> A {
    if b > a { b } else { a }
}
