//! The gradient as a fold over blocks of keys: probabilities are computed again from the saved log-sum-exp.

use super::forward::{row_tile, write_rows};
use super::problem::{KeyBlock, Problem, Queries, Step, Tile};
use super::products::{GradProducts, Vectors};
use super::stored::{Stored, gather, start};
use super::tiles::{self, Tiled, Tiles};
use crate::compiled::compiled;
use crate::exp::exp_shifted;
use crate::gemm::{self, MatMut};
use crate::pointwise::vectorized;
use crate::scratch::Room;
use crate::{Real, View, ViewMut};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};

/// The gradient of attention with respect to its queries, for the blocks taken in so far.
///
/// With `P = exp(S - lse)`, `D = rowsum(dO ∘ O)` and `dS = P ∘ (dO vᵀ - D)`: `dq = scale · dS k`, `dk = scale · dSᵀ q`,
/// `dv = Pᵀ dO`, and the additive mask gets `dS`. Each block's gradients are added to accumulators that the caller passes, so
/// they may travel with the block.
///
/// ```
/// use shard_kernels::attention::{AttentionGrad, AttentionState, KeyBlock, BlockGrad, Queries};
/// use shard_kernels::{Positions, View, ViewMut};
/// // Two keys of equal weight, of values 1 and 5.
/// let (q, k, v, dout) = ([2.0f64], [0.0, 0.0], [1.0, 5.0], [1.0]);
/// let (row, rows) = ([1, 1, 1, 1], [1, 1, 2, 1]);
/// let queries = Queries::new(View::contiguous(&q, &row), Positions::from(0));
/// let block = KeyBlock::new(View::contiguous(&k, &rows), View::contiguous(&v, &rows), Positions::from(0));
/// let mut state = AttentionState::new([1, 1, 1], 1);
/// state.fold(&queries, &block);
/// let (mut out, mut lse) = ([0.0], [0.0]);
/// state.finish(&mut ViewMut::contiguous(&mut out, &row), &mut lse);
///
/// let mut grad = AttentionGrad::new(View::contiguous(&dout, &row), &View::contiguous(&out, &row), &lse, 1);
/// let (mut dk, mut dv, mut dq) = ([0.0; 2], [0.0; 2], [0.0]);
/// let (keys, values) = (ViewMut::contiguous(&mut dk, &rows), ViewMut::contiguous(&mut dv, &rows));
/// grad.fold(&queries, &block, &mut BlockGrad { dk: keys, dv: values, dbias: None });
/// grad.finish(&mut ViewMut::contiguous(&mut dq, &row));
/// assert_eq!((out, dv, dq), ([3.0], [0.5, 0.5], [0.0]));
/// assert_eq!(dk, [-2.0, 2.0]);
/// ```
#[derive(Clone, Debug)]
pub struct AttentionGrad<'a, E: Stored> {
    dout: View<'a, E>,
    /// Log-sum-exp; +inf for queries that see no key, so that their probabilities become 0.
    lse: Vec<E::Acc>,
    delta: Vec<E::Acc>,
    dq: Vec<E::Acc>,
    dim: usize,
    scale: Option<f64>,
}

/// An [`AttentionGrad`] between two blocks, without the data it borrows.
#[derive(Clone, Debug)]
pub struct PausedGrad<A> {
    lse: Vec<A>,
    delta: Vec<A>,
    dq: Vec<A>,
    dim: usize,
    scale: Option<f64>,
}

/// Where the gradients of one block are added.
#[derive(Debug)]
pub struct BlockGrad<'a, A> {
    /// With respect to the keys: `[batch, kv heads, keys, dim]`.
    pub dk: ViewMut<'a, A>,
    /// With respect to the values: `[batch, kv heads, keys, value dim]`.
    pub dv: ViewMut<'a, A>,
    /// With respect to the additive mask, if that is wanted: `[batch, heads, queries, keys]`, summed where an extent is 1.
    pub dbias: Option<ViewMut<'a, A>>,
}

compiled! { trait CompiledGrad for Stored: f64 f16; {
    fn fold<T>(
        grad: &mut AttentionGrad<'_, T>,
        queries: &Queries<'_, T>,
        block: &KeyBlock<'_, T>,
        grads: &mut BlockGrad<'_, <T as Stored>::Acc>,
    ) = fold_here;
} }

/// The same of types of which a unit takes the products, where that pays.
macro_rules! tiled {
    ($($t:ty)+) => {$(
        impl CompiledGrad<Self> for $t {
            fn fold(
                grad: &mut AttentionGrad<'_, Self>,
                queries: &Queries<'_, Self>,
                block: &KeyBlock<'_, Self>,
                grads: &mut BlockGrad<'_, f32>,
            ) {
                fold_tiled(grad, queries, block, grads);
            }
        }
    )+};
}

tiled!(f32 bf16);

fn fold_tiled<E: Tiled>(
    grad: &mut AttentionGrad<'_, E>,
    queries: &Queries<'_, E>,
    block: &KeyBlock<'_, E>,
    grads: &mut BlockGrad<'_, f32>,
) {
    grad.check(queries, block, grads);
    let problem = Problem::new(queries, block);
    let dout = &grad.dout();
    match tiles::fit(&problem, block)
        .then(gemm::of_processor)
        .flatten()
    {
        Some(unit) => {
            let mut products = Tiles::new(unit, &problem, block, Some(dout));
            grad.take_in(&problem, &mut products, grads);
        }
        None => {
            let mut products = Vectors::new(&problem, block, Some(dout));
            grad.take_in(&problem, &mut products, grads);
        }
    }
}

fn fold_here<E: Stored>(
    grad: &mut AttentionGrad<'_, E>,
    queries: &Queries<'_, E>,
    block: &KeyBlock<'_, E>,
    grads: &mut BlockGrad<'_, E::Acc>,
) {
    grad.check(queries, block, grads);
    let problem = Problem::new(queries, block);
    let dout = grad.dout();
    let mut products = Vectors::new(&problem, block, Some(&dout));
    grad.take_in(&problem, &mut products, grads);
}

impl<'a, E: Stored> AttentionGrad<'a, E> {
    /// The gradient before any keys are taken in: for output `out` `[batch, heads, queries, value dim]`, its cotangent `dout`,
    /// and the log-sum-exps that [`AttentionState::finish`](super::AttentionState::finish) gave; `dim` is that of the queries.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn new(dout: View<'a, E>, out: &View<'_, E>, lse: &[E::Acc], dim: usize) -> Self {
        let shape = out.shape();
        let fits = shape.len() == 4
            && dout.shape() == shape
            && lse.len() == shape[..3].iter().product::<usize>();
        assert!(
            fits,
            "attention: {} sums and a cotangent of shape {:?} for an output of shape {shape:?}",
            lse.len(),
            dout.shape()
        );
        let zero = <E::Acc as num_traits::Zero>::zero();
        let (mut a, mut b) = (vec![zero; shape[3]], vec![zero; shape[3]]);
        let mut delta = Vec::with_capacity(lse.len());
        for i in 0..shape[0] {
            for j in 0..shape[1] {
                for r in 0..shape[2] as isize {
                    for (view, row) in [(&dout, &mut a), (out, &mut b)] {
                        let at = start(view, [i, j]).wrapping_add_signed(r * view.strides()[2]);
                        gather(view.data(), at, view.strides()[3], row);
                    }
                    delta.push(a.iter().zip(&b).fold(zero, |sum, (x, y)| sum + *x * *y));
                }
            }
        }
        let unseen = <E::Acc as num_traits::Float>::neg_infinity();
        Self {
            lse: lse
                .iter()
                .map(|&l| if l == unseen { -l } else { l })
                .collect(),
            dq: vec![zero; lse.len() * dim],
            delta,
            dout,
            dim,
            scale: None,
        }
    }

    /// Takes in a block of keys and values, and adds the block's own gradients to `grads`.
    ///
    /// # Panics
    /// When shapes contradict each other, or `queries` has another scale than before.
    pub fn fold(
        &mut self,
        queries: &Queries<'_, E>,
        block: &KeyBlock<'_, E>,
        grads: &mut BlockGrad<'_, E::Acc>,
    ) {
        fold(self, queries, block, grads);
    }

    /// The cotangent.
    pub(super) fn dout(&self) -> View<'a, E> {
        self.dout.clone()
    }

    /// Fails unless a block and its gradients fit these queries and the cotangent, and keeps the scale.
    pub(super) fn check(
        &mut self,
        queries: &Queries<'_, E>,
        block: &KeyBlock<'_, E>,
        grads: &BlockGrad<'_, E::Acc>,
    ) {
        assert!(
            self.dout.shape()[..3] == queries.q.shape()[..3]
                && self.dout.shape()[3] == block.v.shape()[3]
                && self.dim == queries.q.shape()[3]
                // A user may have asked for a scale that is no number.
                && self.scale.get_or_insert(queries.scale).to_bits() == queries.scale.to_bits(),
            "attention: queries of shape {:?}, values of shape {:?}, a cotangent of shape {:?}, dim {}",
            queries.q.shape(),
            block.v.shape(),
            self.dout.shape(),
            self.dim
        );
        assert!(
            grads.dk.shape() == block.k.shape() && grads.dv.shape() == block.v.shape(),
            "attention: gradients of shapes {:?} and {:?} for a block of shapes {:?} and {:?}",
            grads.dk.shape(),
            grads.dv.shape(),
            block.k.shape(),
            block.v.shape()
        );
    }

    /// Takes in a block, by products that are formed somehow.
    pub(super) fn take_in<P: GradProducts<E::Acc>>(
        &mut self,
        problem: &Problem<'_, '_, E>,
        products: &mut P,
        grads: &mut BlockGrad<'_, E::Acc>,
    ) {
        let (e, [rows, keys]) = (problem.extents, P::GRAD_TILE);
        let rows = row_tile(e.rows(), rows);
        let mut room = Room::new();
        let dropout = problem.queries.dropout.is_some();
        let mut work = Work::new(&mut room, rows * keys.min(e.keys), dropout);
        problem.walk([rows, keys], products.span(), &mut |step| match step {
            Step::Keys(at, keys) => products.go_to_keys(at, keys),
            Step::Rows(rows) => products.go_to_rows(rows),
            Step::Tile(tile) => self.take(problem, products, &tile, &mut work, grads),
            Step::Left(at, keys) => products.leave_keys(
                block_rows(&mut grads.dk, at, keys.start),
                block_rows(&mut grads.dv, at, keys.start),
            ),
        });
    }

    fn take(
        &mut self,
        problem: &Problem<'_, '_, E>,
        products: &mut impl GradProducts<E::Acc>,
        tile: &Tile,
        work: &mut Work<'_, E::Acc>,
        grads: &mut BlockGrad<'_, E::Acc>,
    ) {
        let (dim, keys) = (self.dim, tile.keys.len());
        let first = problem.row(tile.batch, tile.kv_head, tile.rows.start);
        let rows = first..first + tile.rows.len();
        let [p, ds, dropped, factors] = work.parts(tile.area());

        let factor = products.logits(tile, p);
        vectorized(Probabilities {
            factor: problem.mask(tile, factor, p),
            logits: p,
            keys,
            lse: &self.lse[rows.clone()],
        });
        products.weight_grads(tile, ds);
        let used = if let Some(dropout) = problem.queries.dropout {
            problem.drop_factors(dropout, tile, factors);
            for (i, f) in factors.iter().enumerate() {
                dropped[i] = p[i] * *f;
                ds[i] *= *f;
            }
            &*dropped
        } else {
            &*p
        };
        let at = [tile.batch, tile.kv_head];
        products.add_value_grads(tile, used, block_rows(&mut grads.dv, at, tile.keys.start));
        vectorized(Logits {
            ds,
            p,
            keys,
            delta: &self.delta[rows.clone()],
        });
        if let Some(dbias) = &mut grads.dbias {
            add_bias_grad(problem, tile, ds, dbias);
        }
        let dq = &mut self.dq[rows.start * dim..rows.end * dim];
        let dk = block_rows(&mut grads.dk, at, tile.keys.start);
        products.add_query_and_key_grads(tile, ds, dq, dk);
    }

    /// What has been taken in so far, to be resumed with the same cotangent.
    pub fn pause(self) -> PausedGrad<E::Acc> {
        PausedGrad {
            lse: self.lse,
            delta: self.delta,
            dq: self.dq,
            dim: self.dim,
            scale: self.scale,
        }
    }

    /// Goes on where [`AttentionGrad::pause`] left off.
    ///
    /// # Panics
    /// When the cotangent has another shape than before.
    pub fn resume(paused: PausedGrad<E::Acc>, dout: View<'a, E>) -> Self {
        let rows = dout.shape().iter().take(3).product::<usize>();
        assert!(
            dout.ndim() == 4 && rows == paused.lse.len(),
            "attention: a cotangent of shape {:?} for {} rows",
            dout.shape(),
            paused.lse.len()
        );
        Self {
            dout,
            lse: paused.lse,
            delta: paused.delta,
            dq: paused.dq,
            dim: paused.dim,
            scale: paused.scale,
        }
    }

    /// Writes the gradient with respect to the queries, in the queries' shape.
    ///
    /// # Panics
    /// When `dq` has another shape.
    pub fn finish<T: Stored<Acc = E::Acc>>(&self, dq: &mut ViewMut<'_, T>) {
        assert!(
            dq.ndim() == 4
                && dq.shape()[..3] == self.dout.shape()[..3]
                && dq.shape()[3] == self.dim,
            "attention: gradient of shape {:?} for a cotangent of shape {:?} and dim {}",
            dq.shape(),
            self.dout.shape(),
            self.dim
        );
        // Without a block the gradient is zero and the scale is unknown.
        let scale = E::Acc::of(self.scale.unwrap_or(1.0));
        write_rows(dq, &self.dq, core::iter::repeat(scale));
    }
}

/// Buffers of one tile: probabilities, gradient of the logits, and with dropout the probabilities after it and the factors.
struct Work<'a, A>([&'a mut [A]; 4]);

impl<'a, A: Real> Work<'a, A> {
    fn new(room: &'a mut Room, area: usize, dropout: bool) -> Self {
        // Each begins at a line of the cache.
        let area = area.next_multiple_of(64);
        let extra = if dropout { area } else { 0 };
        let mut numbers = room.numbers(2 * (area + extra));
        Self([area, area, extra, extra].map(|n| numbers.take(n)))
    }

    fn parts(&mut self, area: usize) -> [&mut [A]; 4] {
        self.0.each_mut().map(|v| {
            let n = area.min(v.len());
            &mut v[..n]
        })
    }
}

/// The rows of a gradient's matrix from a key on.
fn block_rows<'a, A>(
    grad: &'a mut ViewMut<'_, A>,
    [i, j]: [usize; 2],
    key: usize,
) -> MatMut<'a, A> {
    let steps: [isize; 4] = core::array::from_fn(|d| grad.strides()[d]);
    let index = [i, j, key];
    let offset = index.iter().zip(steps).fold(grad.offset(), |at, (&i, s)| {
        at.wrapping_add_signed(i as isize * s)
    });
    MatMut {
        data: grad.data_mut(),
        offset,
        row_step: steps[2],
        col_step: steps[3],
    }
}

/// Adds a tile's logit gradients to those of the additive mask, summing where an extent is 1.
fn add_bias_grad<E: Stored>(
    problem: &Problem<'_, '_, E>,
    tile: &Tile,
    ds: &[E::Acc],
    dbias: &mut ViewMut<'_, E::Acc>,
) {
    let pairs = problem.pairs();
    let lead = 4usize.checked_sub(dbias.ndim());
    let fits = lead.is_some_and(|lead| {
        dbias
            .shape()
            .iter()
            .zip(&pairs[lead..])
            .all(|(&n, &all)| n == all || n == 1)
    });
    assert!(
        fits,
        "attention: mask gradient of shape {:?} for pairs of shape {pairs:?}",
        dbias.shape()
    );
    let lead = lead.unwrap_or(0);
    let steps: [isize; 4] = core::array::from_fn(|d| match d.checked_sub(lead) {
        Some(d) if dbias.shape()[d] > 1 => dbias.strides()[d],
        _ => 0,
    });
    let offset = dbias.offset();
    let data = dbias.data_mut();
    for (r, row) in tile.rows.clone().zip(ds.chunks_exact(tile.keys.len())) {
        let (head, query) = problem.place(tile.kv_head, r);
        let at = [tile.batch, head, query, tile.keys.start]
            .iter()
            .zip(steps)
            .fold(offset, |at, (&i, s)| at.wrapping_add_signed(i as isize * s));
        match steps[3] {
            0 => {
                let zero = <E::Acc as num_traits::Zero>::zero();
                data[at] += row.iter().fold(zero, |sum, x| sum + *x);
            }
            step => {
                for (j, x) in row.iter().enumerate() {
                    data[at.wrapping_add_signed(j as isize * step)] += *x;
                }
            }
        }
    }
}

/// `logits = exp(logits * factor - lse)`, row by row.
struct Probabilities<'a, A> {
    factor: A,
    logits: &'a mut [A],
    keys: usize,
    lse: &'a [A],
}

impl<A: Real> WithSimd for Probabilities<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.run::<S>();
    }
}

impl<A: Real> Probabilities<'_, A> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (row, &lse) in self.logits.chunks_exact_mut(self.keys).zip(self.lse) {
            for x in row {
                *x = exp_shifted::<S, A>(*x, self.factor, lse);
            }
        }
    }
}

/// `ds = p (ds - delta)`, row by row, and zero where `p` is 1.
struct Logits<'a, A> {
    ds: &'a mut [A],
    p: &'a [A],
    keys: usize,
    delta: &'a [A],
}

impl<A: Real> WithSimd for Logits<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self
            .ds
            .chunks_exact_mut(self.keys)
            .zip(self.p.chunks_exact(self.keys));
        for ((ds, p), &delta) in rows.zip(self.delta) {
            for (x, p) in ds.iter_mut().zip(p) {
                // The result of a query that sees only one key does not depend on its logit, whatever the rounding of delta.
                let p = if *p == A::one() { A::zero() } else { *p };
                *x = p * (*x - delta);
            }
        }
    }
}
