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

    fn q(&self, tile: &Tile) -> Mat<'_, E::Acc> {
        let dim = self.problem.extents.dim;
        Mat::row_major(&self.q_rows[(tile.rows.start - self.first) * dim..], dim)
    }

    fn dout(&self, tile: &Tile) -> Mat<'_, E::Acc> {
        let width = self.problem.extents.value_dim;
        Mat::row_major(
            &self.dout_rows[(tile.rows.start - self.first) * width..],
            width,
        )
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
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let k = self.k.rows_below(tile.keys.start).transposed();
        let to = MatMut::row_major(to, keys);
        gemm(
            rows,
            keys,
            self.problem.extents.dim,
            self.q(tile),
            k,
            to,
            false,
        );
        E::Acc::of(1.0)
    }

    fn add_values(&mut self, tile: &Tile, weights: &[E::Acc], to: &mut [E::Acc]) {
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let v = self.v.rows_below(tile.keys.start);
        let weights = Mat::row_major(weights, keys);
        let to = MatMut::row_major(to, self.problem.extents.value_dim);
        gemm(
            rows,
            self.problem.extents.value_dim,
            keys,
            weights,
            v,
            to,
            true,
        );
    }
}

impl<E: Stored> GradProducts<E::Acc> for Vectors<'_, '_, '_, E> {
    /// Weights and their gradients together fill half of a second-level cache.
    const GRAD_TILE: [usize; 2] = [256, 1024 / size_of::<E::Acc>()];

    fn weight_grads(&mut self, tile: &Tile, to: &mut [E::Acc]) {
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let v = self.v.rows_below(tile.keys.start).transposed();
        let to = MatMut::row_major(to, keys);
        gemm(
            rows,
            keys,
            self.problem.extents.value_dim,
            self.dout(tile),
            v,
            to,
            false,
        );
    }

    fn add_value_grads(&mut self, tile: &Tile, weights: &[E::Acc], to: MatMut<'_, E::Acc>) {
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let weights = Mat::row_major(weights, keys).transposed();
        let width = self.problem.extents.value_dim;
        gemm(keys, width, rows, weights, self.dout(tile), to, true);
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
        gemm(
            rows,
            dim,
            keys,
            ds,
            self.k.rows_below(tile.keys.start),
            dq,
            true,
        );
        gemm(keys, dim, rows, ds.transposed(), self.q(tile), dk, true);
    }
}
