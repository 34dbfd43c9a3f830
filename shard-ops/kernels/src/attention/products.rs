//! The products that attention is made of: what a fold asks for, and how vectors form them.

use super::problem::{KeyBlock, Problem, Tile};
use super::stored::{Matrices, Stored};
use crate::gemm::{Mat, MatMut, gemm};
use crate::{Real, View};
use std::ops::Range;

/// Forms the products of a fold, tile by tile. Rows of a tile are queries of a group of heads, as in [`Tile`].
pub(super) trait Products<A> {
    /// The most rows and keys of a tile.
    const TILE: [usize; 2];

    /// How many keys of a head to go to at a time.
    fn span(&self) -> usize;

    /// Goes to some keys of a head, and their values.
    fn go_to_keys(&mut self, at: [usize; 2], keys: Range<usize>);

    /// Goes to some rows of that head, of which the next tiles have some each.
    fn go_to_rows(&mut self, rows: Range<usize>);

    /// Writes `q kᵀ`, row-major, and tells by what that is still to be multiplied.
    fn logits(&mut self, tile: &Tile, to: &mut [A]) -> A;

    /// Adds `weights v`, row-major; the weights are from 0 to 1 but for dropout.
    fn add_values(&mut self, tile: &Tile, weights: &[A], to: &mut [A]);
}

/// The same of a gradient's fold. What is row-major has as many rows and keys as the tile.
pub(super) trait GradProducts<A>: Products<A> {
    /// The most rows and keys of a tile.
    const GRAD_TILE: [usize; 2];

    /// Writes `dout vᵀ`.
    fn weight_grads(&mut self, tile: &Tile, to: &mut [A]);

    /// Adds `weightsᵀ dout` to `dv`, now or when these keys are left.
    fn add_value_grads(&mut self, tile: &Tile, weights: &[A], dv: MatMut<'_, A>);

    /// Adds `ds k` to `dq`, and `dsᵀ q` times the scale to `dk`, the latter now or when these keys are left.
    fn add_query_and_key_grads(&mut self, tile: &Tile, ds: &[A], dq: &mut [A], dk: MatMut<'_, A>);

    /// Adds what was put off, to the gradients of the keys that were gone to.
    fn leave_keys(&mut self, _dk: MatMut<'_, A>, _dv: MatMut<'_, A>) {}
}

/// Products by the crate that multiplies matrices, in the type that attention computes in.
pub(super) struct Vectors<'a, 'b, 'c, E: Stored> {
    problem: &'c Problem<'a, 'b, E>,
    /// With the gradient of the output, for a gradient.
    dout: Option<&'c View<'a, E>>,
    k: Matrices<'c, 'a, E>,
    v: Matrices<'c, 'a, E>,
    head: [usize; 2],
    first: usize,
    /// Queries of the rows, scaled, and gradients of their outputs.
    q_rows: Vec<E::Acc>,
    dout_rows: Vec<E::Acc>,
}

impl<'a, 'b, 'c, E: Stored> Vectors<'a, 'b, 'c, E> {
    pub(super) fn new(
        problem: &'c Problem<'a, 'b, E>,
        block: &'c KeyBlock<'a, E>,
        dout: Option<&'c View<'a, E>>,
    ) -> Self {
        Self {
            problem,
            dout,
            k: Matrices::new(&block.k),
            v: Matrices::new(&block.v),
            head: [0; 2],
            first: 0,
            q_rows: Vec::new(),
            dout_rows: Vec::new(),
        }
    }
}

impl<E: Stored> Products<E::Acc> for Vectors<'_, '_, '_, E> {
    /// The logits fill half of a second-level cache, and products of this size run at nearly the full rate.
    const TILE: [usize; 2] = [256, 2048 / size_of::<E::Acc>()];

    fn span(&self) -> usize {
        self.problem.extents.keys
    }

    fn go_to_keys(&mut self, at: [usize; 2], _: Range<usize>) {
        self.head = at;
        self.k.go_to(at);
        self.v.go_to(at);
    }

    fn go_to_rows(&mut self, rows: Range<usize>) {
        let problem = self.problem;
        self.first = rows.start;
        if let Some(dout) = self.dout {
            problem.pack(dout, self.head, rows.clone(), None, &mut self.dout_rows);
        }
        let (q, scale) = (&problem.queries.q, Some(problem.scale()));
        problem.pack(q, self.head, rows, scale, &mut self.q_rows);
    }

    fn logits(&mut self, tile: &Tile, to: &mut [E::Acc]) -> E::Acc {
        let (rows, keys, dim) = (tile.rows.len(), tile.keys.len(), self.problem.extents.dim);
        let q = of_tile(&self.q_rows, tile, self.first, dim);
        let (first, to) = (tile.keys.start, MatMut::row_major(to, keys));
        (self.k).multiply([rows, keys, dim], q, (first, true), to, false);
        E::Acc::of(1.0)
    }

    fn add_values(&mut self, tile: &Tile, weights: &[E::Acc], to: &mut [E::Acc]) {
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let width = self.problem.extents.value_dim;
        let (weights, to) = (Mat::row_major(weights, keys), MatMut::row_major(to, width));
        let first = (tile.keys.start, false);
        (self.v).multiply([rows, width, keys], weights, first, to, true);
    }
}

impl<E: Stored> GradProducts<E::Acc> for Vectors<'_, '_, '_, E> {
    /// Weights and their gradients together fill half of a second-level cache.
    const GRAD_TILE: [usize; 2] = [256, 1024 / size_of::<E::Acc>()];

    fn weight_grads(&mut self, tile: &Tile, to: &mut [E::Acc]) {
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let width = self.problem.extents.value_dim;
        let dout = of_tile(&self.dout_rows, tile, self.first, width);
        let (first, to) = (tile.keys.start, MatMut::row_major(to, keys));
        (self.v).multiply([rows, keys, width], dout, (first, true), to, false);
    }

    fn add_value_grads(&mut self, tile: &Tile, weights: &[E::Acc], to: MatMut<'_, E::Acc>) {
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let weights = Mat::row_major(weights, keys).transposed();
        let width = self.problem.extents.value_dim;
        let dout = of_tile(&self.dout_rows, tile, self.first, width);
        gemm(keys, width, rows, weights, dout, to, true);
    }

    fn add_query_and_key_grads(
        &mut self,
        tile: &Tile,
        ds: &[E::Acc],
        dq: &mut [E::Acc],
        dk: MatMut<'_, E::Acc>,
    ) {
        let (rows, keys, dim) = (tile.rows.len(), tile.keys.len(), self.problem.extents.dim);
        let (ds, dq) = (Mat::row_major(ds, keys), MatMut::row_major(dq, dim));
        let first = (tile.keys.start, false);
        (self.k).multiply([rows, dim, keys], ds, first, dq, true);
        let q = of_tile(&self.q_rows, tile, self.first, dim);
        gemm(keys, dim, rows, ds.transposed(), q, dk, true);
    }
}

/// A tile's rows of those that begin with the `first` one, of so many numbers.
fn of_tile<'a, A>(rows: &'a [A], tile: &Tile, first: usize, cols: usize) -> Mat<'a, A> {
    Mat::row_major(&rows[(tile.rows.start - first) * cols..], cols)
}
