//! Products of `bf16` by the processor's unit for tiles, whose operands are packed once for many tiles of a fold: keys and values per head,
//! queries per stripe of rows.
//!
//! Queries, keys, values and gradients of the output are multiplied as they are stored. Weights and gradients of logits, which are computed in
//! `f32`, are sums of two numbers of `bf16` there, right to 2^-16. The unit takes products below 2^-126 for zero.

use super::problem::{Block, Problem, Tile};
use super::products::{GradProducts, Products, Vectors};
use super::stored::start;
use crate::View;
use crate::gemm::{self, Lines, MatMut, Operand, Side, Unit, multiply, stay_finite};
use half::bf16;
use std::ops::Range;

/// The parts of a number that is computed here.
const PARTS: usize = 2;
/// Weights are from 0 to 1, unless dropout makes the others of them larger, or no numbers.
const WEIGHTS: gemm::Range = gemm::Range::UNIT;
/// The fewest rows and keys, the fewest dims, and the fewest products of queries and keys of a head, from which on packing paid on a Xeon.
const FEWEST: [usize; 2] = [64, 32];
const FEW: f64 = (128 * 128 * 32) as f64;

/// Products of a fold by a unit.
pub(super) struct Tiles<'a, 'b, 'c, U> {
    unit: U,
    problem: &'c Problem<'a, 'b, bf16>,
    block: &'c Block<'a, bf16>,
    /// With the gradient of the output, for a gradient.
    dout: Option<&'c View<'a, bf16>>,
    head: [usize; 2],
    first: usize,
    of_head: OfHead,
    of_rows: OfRows,
    /// What is computed of a tile.
    computed: Operand,
    /// Gradients of the head's keys and values with rows and columns exchanged, so that what is computed need not be.
    key_grads: Vec<f32>,
    value_grads: Vec<f32>,
    wide: Vec<f32>,
}

/// Operands of a head, on the right. Names tell what a line is.
struct OfHead {
    key: Operand,
    key_dim: Operand,
    value: Operand,
    value_dim: Operand,
}

/// Operands of some rows, on the left.
struct OfRows {
    query: Operand,
    query_dim: Operand,
    dout: Operand,
    dout_dim: Operand,
}

/// Whether a unit takes the products of a fold, and that pays.
pub(super) fn fit(problem: &Problem<'_, '_, bf16>, block: &Block<'_, bf16>) -> bool {
    let e = problem.extents;
    let [rows, dims] = [e.rows().min(e.keys), e.dim.min(e.value_dim)];
    rows >= FEWEST[0]
        && dims >= FEWEST[1]
        && e.rows() as f64 * e.keys as f64 * dims as f64 >= FEW
        && are_taken(problem, block)
}

/// Whether a unit takes the products of a fold.
fn are_taken(problem: &Problem<'_, '_, bf16>, block: &Block<'_, bf16>) -> bool {
    let scale = problem.queries.scale;
    let lie_well = |view: &View<'_, bf16>| view.strides()[3] == 1 && view.strides()[2] >= 0;
    // Rows are scaled after their largest logit was found.
    scale > 0.0 && scale < 1e6 && lie_well(&block.k) && lie_well(&block.v)
}

impl<'a, 'b, 'c, U: Unit> Tiles<'a, 'b, 'c, U> {
    pub(super) fn new(
        unit: U,
        problem: &'c Problem<'a, 'b, bf16>,
        block: &'c Block<'a, bf16>,
        dout: Option<&'c View<'a, bf16>>,
    ) -> Self {
        Self {
            unit,
            problem,
            block,
            dout,
            head: [0; 2],
            first: 0,
            of_head: OfHead {
                key: Operand::new(),
                key_dim: Operand::new(),
                value: Operand::new(),
                value_dim: Operand::new(),
            },
            of_rows: OfRows {
                query: Operand::new(),
                query_dim: Operand::new(),
                dout: Operand::new(),
                dout_dim: Operand::new(),
            },
            computed: Operand::new(),
            key_grads: Vec::new(),
            value_grads: Vec::new(),
            wide: Vec::new(),
        }
    }

    /// The tile's rows, counted from the first of the stripe that is packed.
    fn rows(&self, tile: &Tile) -> Range<usize> {
        tile.rows.start - self.first..tile.rows.end - self.first
    }

    /// The same products by vectors, where numbers are too large for the unit.
    fn by_vectors(&self, tile: &Tile) -> Vectors<'a, 'b, 'c, bf16> {
        let mut vectors = Vectors::new(self.problem, self.block, self.dout);
        vectors.go_to_head(self.head);
        vectors.go_to_rows(tile.rows.clone());
        vectors
    }
}

impl<U: Unit> Products<f32> for Tiles<'_, '_, '_, U> {
    /// Weights, in `f32` and packed, fill a quarter of a second-level cache.
    const TILE: [usize; 2] = [128, 512];

    fn go_to_head(&mut self, at: [usize; 2]) {
        self.head = at;
        let Block { k, v, .. } = self.block;
        let (keys, dim, width) = (k.shape()[2], k.shape()[3], v.shape()[3]);
        let to = &mut self.of_head;
        to.key
            .pack(lines(k, at, false), [keys, dim], 1, Side::Right);
        if self.dout.is_some() {
            (to.key_dim).pack(lines(k, at, true), [dim, keys], 1, Side::Right);
            to.value
                .pack(lines(v, at, false), [keys, width], 1, Side::Right);
            for (sums, rows) in [(&mut self.key_grads, dim), (&mut self.value_grads, width)] {
                sums.clear();
                sums.resize(rows * keys, 0.0);
            }
        } else {
            (to.value_dim).pack(lines(v, at, true), [width, keys], 1, Side::Right);
        }
    }

    fn go_to_rows(&mut self, rows: Range<usize>) {
        let Self { problem, wide, .. } = self;
        self.first = rows.start;
        let to = &mut self.of_rows;
        let (n, dim, width) = (rows.len(), problem.extents.dim, problem.extents.value_dim);
        problem.pack(&problem.queries.q, self.head, rows.clone(), None, wide);
        (to.query).pack(of_matrix(wide, dim, false), [n, dim], 1, Side::Left);
        if let Some(dout) = self.dout {
            (to.query_dim).pack(of_matrix(wide, dim, true), [dim, n], 1, Side::Left);
            problem.pack(dout, self.head, rows, None, wide);
            (to.dout).pack(of_matrix(wide, width, false), [n, width], 1, Side::Left);
            (to.dout_dim).pack(of_matrix(wide, width, true), [width, n], 1, Side::Left);
        }
    }

    fn logits(&mut self, tile: &Tile, to: &mut [f32]) -> f32 {
        let q = self.of_rows.query.packed().lines(self.rows(tile));
        let k = self.of_head.key.packed().lines(tile.keys.clone());
        multiply(&self.unit, q, k, to, tile.keys.len(), false);
        self.problem.scale()
    }

    fn add_values(&mut self, tile: &Tile, weights: &[f32], to: &mut [f32]) {
        let extents = [tile.rows.len(), tile.keys.len()];
        let by_row = of_matrix(weights, tile.keys.len(), false);
        (self.computed).pack_known(by_row, extents, WEIGHTS, PARTS, Side::Left);
        let weights_packed = self.computed.packed();
        let v = self.of_head.value_dim.packed().numbers(tile.keys.clone());
        if stay_finite(weights_packed, v) {
            multiply(&self.unit, weights_packed, v, to, v.count(), true);
        } else {
            self.by_vectors(tile).add_values(tile, weights, to);
        }
    }
}

impl<U: Unit> GradProducts<f32> for Tiles<'_, '_, '_, U> {
    /// Weights and their gradients, in `f32` and one of them packed, fill half of a second-level cache.
    const GRAD_TILE: [usize; 2] = [256, 256];

    fn weight_grads(&mut self, tile: &Tile, to: &mut [f32]) {
        let dout = self.of_rows.dout.packed().lines(self.rows(tile));
        let v = self.of_head.value.packed().lines(tile.keys.clone());
        multiply(&self.unit, dout, v, to, tile.keys.len(), false);
    }

    fn add_value_grads(&mut self, tile: &Tile, weights: &[f32], dv: MatMut<'_, f32>) {
        let extents = [tile.keys.len(), tile.rows.len()];
        let by_key = of_matrix(weights, tile.keys.len(), true);
        (self.computed).pack_known(by_key, extents, WEIGHTS, PARTS, Side::Right);
        let weights_packed = self.computed.packed();
        let dout = self.of_rows.dout_dim.packed().numbers(self.rows(tile));
        if stay_finite(weights_packed, dout) {
            let to = &mut self.value_grads[tile.keys.start..];
            let apart = self.problem.extents.keys;
            multiply(&self.unit, dout, weights_packed, to, apart, true);
        } else {
            self.by_vectors(tile).add_value_grads(tile, weights, dv);
        }
    }

    fn add_query_and_key_grads(
        &mut self,
        tile: &Tile,
        ds: &[f32],
        dq: &mut [f32],
        dk: MatMut<'_, f32>,
    ) {
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let (by_row, by_key) = (of_matrix(ds, keys, false), of_matrix(ds, keys, true));
        let k = self.of_head.key_dim.packed().numbers(tile.keys.clone());
        let q = self.of_rows.query_dim.packed().numbers(self.rows(tile));
        self.computed.pack(by_row, [rows, keys], PARTS, Side::Left);
        let ds_packed = self.computed.packed();
        if !(stay_finite(ds_packed, k) && stay_finite(ds_packed, q)) {
            return (self.by_vectors(tile)).add_query_and_key_grads(tile, ds, dq, dk);
        }
        multiply(&self.unit, ds_packed, k, dq, k.count(), true);
        let range = ds_packed.range();
        (self.computed).pack_known(by_key, [keys, rows], range, PARTS, Side::Right);
        let to = &mut self.key_grads[tile.keys.start..];
        let apart = self.problem.extents.keys;
        multiply(&self.unit, q, self.computed.packed(), to, apart, true);
    }

    fn leave_head(&mut self, mut dk: MatMut<'_, f32>, mut dv: MatMut<'_, f32>) {
        let keys = self.problem.extents.keys;
        add_turned(&self.key_grads, keys, self.problem.scale(), &mut dk);
        add_turned(&self.value_grads, keys, 1.0, &mut dv);
    }
}

/// Adds the transpose of a row-major matrix, times `factor`.
fn add_turned(from: &[f32], cols: usize, factor: f32, to: &mut MatMut<'_, f32>) {
    for (i, row) in from.chunks_exact(cols.max(1)).enumerate() {
        let at = to.offset.wrapping_add_signed(i as isize * to.col_step);
        for (j, x) in row.iter().enumerate() {
            to.data[at.wrapping_add_signed(j as isize * to.row_step)] += factor * *x;
        }
    }
}

/// The rows of a head as lines, or with `turned` its columns.
fn lines<'a>(view: &View<'a, bf16>, at: [usize; 2], turned: bool) -> Lines<'a, bf16> {
    let [row, col] = [view.strides()[2], view.strides()[3]];
    let (line, step) = if turned { (col, row) } else { (row, col) };
    Lines {
        data: view.data(),
        offset: start(view, at),
        line,
        step,
    }
}

/// The rows of a row-major matrix as lines, or with `turned` its columns.
fn of_matrix(data: &[f32], cols: usize, turned: bool) -> Lines<'_, f32> {
    let (line, step) = if turned { (1, cols) } else { (cols, 1) };
    Lines {
        data,
        offset: 0,
        line: line as isize,
        step: step as isize,
    }
}

/// What tests see of folds by units.
#[doc(hidden)]
pub mod inside {
    use super::{Tiles, are_taken, bf16};
    use crate::attention::problem::Problem;
    use crate::attention::{AttentionGrad, AttentionState, Block, BlockGrad, Queries};
    use crate::gemm::{Emulated, Unit, of_processor};

    /// As [`AttentionState::fold`] by a unit that is emulated, whether that pays or not. Tells whether keys and values lie so that one takes them.
    pub fn fold_emulated(
        state: &mut AttentionState<f32>,
        queries: &Queries<'_, bf16>,
        block: &Block<'_, bf16>,
    ) -> bool {
        fold(Emulated, state, queries, block)
    }

    /// The same by the processor's, if it has one that the crate is compiled for.
    pub fn fold_by_processor(
        state: &mut AttentionState<f32>,
        queries: &Queries<'_, bf16>,
        block: &Block<'_, bf16>,
    ) -> Option<bool> {
        of_processor().map(|unit| fold(unit, state, queries, block))
    }

    fn fold(
        unit: impl Unit,
        state: &mut AttentionState<f32>,
        queries: &Queries<'_, bf16>,
        block: &Block<'_, bf16>,
    ) -> bool {
        let problem = Problem::new(queries, block);
        let are_taken = are_taken(&problem, block);
        if are_taken {
            state.take_in(&problem, &mut Tiles::new(unit, &problem, block, None));
        }
        are_taken
    }

    /// As [`AttentionGrad::fold`], in the same way.
    pub fn fold_grad_emulated(
        grad: &mut AttentionGrad<'_, bf16>,
        queries: &Queries<'_, bf16>,
        block: &Block<'_, bf16>,
        grads: &mut BlockGrad<'_, f32>,
    ) -> bool {
        grad.check(queries, block, grads);
        let problem = Problem::new(queries, block);
        let are_taken = are_taken(&problem, block);
        if are_taken {
            let dout = grad.dout();
            let mut products = Tiles::new(Emulated, &problem, block, Some(&dout));
            grad.take_in(&problem, &mut products, grads);
        }
        are_taken
    }
}
