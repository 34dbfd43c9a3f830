//! Products by the processor's unit for tiles of `bf16`, whose operands are packed once for many tiles of a fold: keys and values per head,
//! queries per stripe of rows.
//!
//! What is stored in `bf16` is multiplied as it is; weights and gradients of logits, which are computed in `f32`, are sums of two numbers of
//! `bf16` then, right to 2^-16, and their products are left to vectors where the unit is but twice as fast as those. What is stored in `f32`,
//! and what is computed from it, is a sum of three, as in other products of `f32`. The unit takes products below 2^-126 for zero: in `f32` vectors
//! form products of which that may count. They also form the sums over rows and keys that gradients in `f32` are, since as three parts for
//! each tile the packing took what products gained.

use super::forward::row_tile;
use super::problem::{KeyBlock, Problem, Tile};
use super::products::{GradProducts, Products, Vectors};
use super::stored::{Stored, start};
use crate::View;
use crate::gemm::{self, Lines, MatMut, Number, Operand, Packed, Side, Unit, multiply};
use crate::gemm::{LINES, are_near, stay_finite};
use half::bf16;
use std::ops::Range;

/// An element type of which a unit takes the products.
#[expect(private_bounds, reason = "it is public for tests alone")]
pub trait Tiled: Stored<Acc = f32> + Number {
    /// The parts of a number that is computed.
    const COMPUTED: usize;
    /// Whether gradients that are sums over what is computed, and packed anew for each tile, are taken too.
    const SUM_GRADS: bool;
    /// The lowest rate of a unit, beside vectors of `f32`, from which on it pays.
    const RATE: usize;
    /// The fewest rows and keys of a head, and the fewest products of its queries and keys, from which on packing pays for a unit of such a rate.
    fn fewest(rate: usize) -> [usize; 2];
}

impl Tiled for bf16 {
    const COMPUTED: usize = 2;
    const SUM_GRADS: bool = true;
    const RATE: usize = 2;

    /// By what was measured on a Xeon: heads of 32 rows took 0.73 of the time of copies in `f32`, of 16 rows 1.17. Where sums are left to vectors, less
    /// is gained than packing takes of short rows (measured on a Zen 5).
    fn fewest(rate: usize) -> [usize; 2] {
        match leaves_computed::<Self>(rate) {
            true => [256, 128 * 128 * LEAST_DIM],
            false => [32, 32 * 32 * LEAST_DIM],
        }
    }
}

impl Tiled for f32 {
    const COMPUTED: usize = 3;
    const SUM_GRADS: bool = false;
    const RATE: usize = 6;

    /// By what was measured on a Xeon.
    fn fewest(_rate: usize) -> [usize; 2] {
        [512, 1024 * 1024 * LEAST_DIM]
    }
}

/// Weights are from 0 to 1, unless dropout makes the others of them larger, or no numbers.
const WEIGHTS: gemm::Range = gemm::Range::UNIT;
/// The most numbers of `bf16` of keys and values that are packed at a time: as many as fill a third of a second-level cache.
const SPAN: usize = 384 * 1024;

/// The fewest dims of keys and of values from which on packing pays.
const LEAST_DIM: usize = 32;

/// Products of a fold by a unit.
pub(super) struct Tiles<'a, 'b, 'c, E: Stored, U> {
    unit: U,
    problem: &'c Problem<'a, 'b, E>,
    block: &'c KeyBlock<'a, E>,
    /// With the gradient of the output, for a gradient.
    dout: Option<&'c View<'a, E>>,
    /// What forms the sums over keys and rows where the unit does not.
    sums: Option<Vectors<'a, 'b, 'c, E>>,
    head: [usize; 2],
    /// The keys that were gone to, and the first of the rows.
    keys: Range<usize>,
    first: usize,
    of_keys: OfKeys,
    of_rows: OfRows,
    /// What is computed of a tile.
    computed: Operand,
    /// Gradients of these keys and their values with rows and columns exchanged, so that what is computed need not be.
    key_grads: Vec<f32>,
    value_grads: Vec<f32>,
    wide: Vec<f32>,
}

/// Operands of some keys, on the right. Names tell what a line is.
struct OfKeys {
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
pub(super) fn fit<E: Tiled>(problem: &Problem<'_, '_, E>, block: &KeyBlock<'_, E>) -> bool {
    let e = problem.extents;
    let [rows, dims] = [e.rows().min(e.keys), e.dim.min(e.value_dim)];
    let rate = gemm::rate();
    let [fewest, products] = E::fewest(rate);
    rate >= E::RATE
        && rows >= fewest
        && dims >= LEAST_DIM
        && e.rows() as f64 * e.keys as f64 * dims as f64 >= products as f64
        && are_taken(problem, block)
}

/// Whether a unit of such a rate is too slow for what is computed, whose numbers are of several parts.
fn leaves_computed<E: Tiled>(rate: usize) -> bool {
    rate < 2 * E::COMPUTED
}

/// Whether a unit takes the products of a fold.
fn are_taken<E: Tiled>(problem: &Problem<'_, '_, E>, block: &KeyBlock<'_, E>) -> bool {
    let scale = problem.queries.scale;
    let lie_well = |view: &View<'_, E>| view.strides()[3] == 1 && view.strides()[2] >= 0;
    // Rows are scaled after their largest logit was found.
    scale > 0.0 && scale < 1e6 && lie_well(&block.k) && lie_well(&block.v)
}

/// Whether a unit forms the products of these: in 16 bits those that are lost may count.
fn may_meet<E: Tiled>(a: Packed<'_>, b: Packed<'_>) -> bool {
    if E::MOST == 1 {
        stay_finite(a, b)
    } else {
        are_near(a, b)
    }
}

impl<'a, 'b, 'c, E: Tiled, U: Unit> Tiles<'a, 'b, 'c, E, U> {
    pub(super) fn new(
        unit: U,
        problem: &'c Problem<'a, 'b, E>,
        block: &'c KeyBlock<'a, E>,
        dout: Option<&'c View<'a, E>>,
    ) -> Self {
        let leaves_sums = leaves_computed::<E>(unit.rate()) || dout.is_some() && !E::SUM_GRADS;
        Self {
            unit,
            problem,
            block,
            dout,
            sums: leaves_sums.then(|| Vectors::new(problem, block, dout)),
            head: [0; 2],
            keys: 0..0,
            first: 0,
            of_keys: OfKeys {
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

    /// The tile's keys, counted from the first of those that are packed.
    fn keys(&self, tile: &Tile) -> Range<usize> {
        tile.keys.start - self.keys.start..tile.keys.end - self.keys.start
    }

    /// The same products by vectors, where numbers are too large for the unit.
    fn by_vectors(&self, tile: &Tile) -> Vectors<'a, 'b, 'c, E> {
        let mut vectors = Vectors::new(self.problem, self.block, self.dout);
        vectors.go_to_keys(self.head, tile.keys.clone());
        vectors.go_to_rows(tile.rows.clone());
        vectors
    }
}

impl<E: Tiled, U: Unit> Products<f32> for Tiles<'_, '_, '_, E, U> {
    /// Weights, in `f32` and packed, fill a quarter of a second-level cache.
    const TILE: [usize; 2] = [128, 512];

    fn span(&self) -> usize {
        let e = self.problem.extents;
        let operands = if self.dout.is_some() && self.sums.is_none() {
            3
        } else {
            2
        };
        let numbers = operands * e.dim.max(e.value_dim) * E::MOST;
        let most = (SPAN / numbers.max(1)).max(Self::TILE[1]);
        row_tile(e.keys, most).next_multiple_of(LINES)
    }

    fn go_to_keys(&mut self, at: [usize; 2], keys: Range<usize>) {
        (self.head, self.keys) = (at, keys.clone());
        let KeyBlock { k, v, .. } = self.block;
        let (dim, width) = (k.shape()[3], v.shape()[3]);
        let to = &mut self.of_keys;
        let all = keys.len();
        let lines = |view, turned| lines(view, at, keys.start, turned);
        let most = E::MOST;
        (to.key).pack(lines(k, false), [all, dim], most, Side::Right);
        if self.dout.is_some() {
            (to.value).pack(lines(v, false), [all, width], most, Side::Right);
        }
        if let Some(sums) = &mut self.sums {
            sums.go_to_keys(at, keys);
            return;
        }
        if self.dout.is_none() {
            (to.value_dim).pack(lines(v, true), [width, all], most, Side::Right);
            return;
        }
        (to.key_dim).pack(lines(k, true), [dim, all], most, Side::Right);
        for (sums, rows) in [(&mut self.key_grads, dim), (&mut self.value_grads, width)] {
            sums.clear();
            sums.resize(rows * all, 0.0);
        }
    }

    fn go_to_rows(&mut self, rows: Range<usize>) {
        self.first = rows.start;
        let Self { problem, wide, .. } = self;
        let to = &mut self.of_rows;
        let sums_here = self.dout.is_some() && self.sums.is_none();
        let mut pack = |view, to: &mut Operand, by_dim: &mut Operand| {
            let by_dim = sums_here.then_some(by_dim);
            pack_rows(problem, view, (self.head, &rows), to, by_dim, wide);
        };
        pack(&problem.queries.q, &mut to.query, &mut to.query_dim);
        if let Some(dout) = self.dout {
            pack(dout, &mut to.dout, &mut to.dout_dim);
        }
        if let Some(sums) = &mut self.sums {
            sums.go_to_rows(rows);
        }
    }

    fn logits(&mut self, tile: &Tile, to: &mut [f32]) -> f32 {
        let q = self.of_rows.query.packed().lines(self.rows(tile));
        let k = self.of_keys.key.packed().lines(self.keys(tile));
        if !may_meet::<E>(q, k) {
            return self.by_vectors(tile).logits(tile, to);
        }
        multiply(&self.unit, q, k, to, tile.keys.len(), false);
        self.problem.scale()
    }

    fn add_values(&mut self, tile: &Tile, weights: &[f32], to: &mut [f32]) {
        if let Some(sums) = &mut self.sums {
            return sums.add_values(tile, weights, to);
        }
        let extents = [tile.rows.len(), tile.keys.len()];
        let by_row = of_matrix(weights, tile.keys.len(), false);
        (self.computed).pack_known(by_row, extents, WEIGHTS, E::COMPUTED, Side::Left);
        let weights_packed = self.computed.packed();
        let v = self.of_keys.value_dim.packed().numbers(self.keys(tile));
        if may_meet::<E>(weights_packed, v) {
            multiply(&self.unit, weights_packed, v, to, v.count(), true);
        } else {
            self.by_vectors(tile).add_values(tile, weights, to);
        }
    }
}

impl<E: Tiled, U: Unit> GradProducts<f32> for Tiles<'_, '_, '_, E, U> {
    /// Weights and their gradients, in `f32` and one of them packed, fill half of a second-level cache.
    const GRAD_TILE: [usize; 2] = [256, 256];

    fn weight_grads(&mut self, tile: &Tile, to: &mut [f32]) {
        let dout = self.of_rows.dout.packed().lines(self.rows(tile));
        let v = self.of_keys.value.packed().lines(self.keys(tile));
        if !may_meet::<E>(dout, v) {
            return self.by_vectors(tile).weight_grads(tile, to);
        }
        multiply(&self.unit, dout, v, to, tile.keys.len(), false);
    }

    fn add_value_grads(&mut self, tile: &Tile, weights: &[f32], dv: MatMut<'_, f32>) {
        if let Some(sums) = &mut self.sums {
            return sums.add_value_grads(tile, weights, dv);
        }
        let extents = [tile.keys.len(), tile.rows.len()];
        let by_key = of_matrix(weights, tile.keys.len(), true);
        (self.computed).pack_known(by_key, extents, WEIGHTS, E::COMPUTED, Side::Right);
        let weights_packed = self.computed.packed();
        let dout = self.of_rows.dout_dim.packed().numbers(self.rows(tile));
        if may_meet::<E>(weights_packed, dout) {
            let to = &mut self.value_grads[tile.keys.start - self.keys.start..];
            let apart = self.keys.len();
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
        if let Some(sums) = &mut self.sums {
            return sums.add_query_and_key_grads(tile, ds, dq, dk);
        }
        let (rows, keys) = (tile.rows.len(), tile.keys.len());
        let (by_row, by_key) = (of_matrix(ds, keys, false), of_matrix(ds, keys, true));
        let k = self.of_keys.key_dim.packed().numbers(self.keys(tile));
        let q = self.of_rows.query_dim.packed().numbers(self.rows(tile));
        self.computed
            .pack(by_row, [rows, keys], E::COMPUTED, Side::Left);
        let ds_packed = self.computed.packed();
        if !(may_meet::<E>(ds_packed, k) && may_meet::<E>(ds_packed, q)) {
            return (self.by_vectors(tile)).add_query_and_key_grads(tile, ds, dq, dk);
        }
        multiply(&self.unit, ds_packed, k, dq, k.count(), true);
        let range = ds_packed.range();
        (self.computed).pack_known(by_key, [keys, rows], range, E::COMPUTED, Side::Right);
        let to = &mut self.key_grads[tile.keys.start - self.keys.start..];
        let apart = self.keys.len();
        multiply(&self.unit, q, self.computed.packed(), to, apart, true);
    }

    fn leave_keys(&mut self, mut dk: MatMut<'_, f32>, mut dv: MatMut<'_, f32>) {
        let keys = self.keys.len();
        add_turned(&self.key_grads, keys, self.problem.scale(), &mut dk);
        add_turned(&self.value_grads, keys, 1.0, &mut dv);
    }
}

/// Packs rows of a head's group, of a view that has the form of the queries: as lines, and where what is computed is to meet them also with
/// rows and columns exchanged.
fn pack_rows<E: Tiled>(
    problem: &Problem<'_, '_, E>,
    view: &View<'_, E>,
    (head, rows): ([usize; 2], &Range<usize>),
    to: &mut Operand,
    by_dim: Option<&mut Operand>,
    wide: &mut Vec<f32>,
) {
    let extents = [rows.len(), view.shape()[3]];
    match problem.rows_in_place(view, head, rows) {
        Some(rows) => pack_both(rows, extents, to, by_dim),
        None => {
            problem.pack(view, head, rows.clone(), None, wide);
            pack_both(of_matrix(wide, extents[1], false), extents, to, by_dim);
        }
    }
}

/// Packs lines on the left, and where that is asked for also what they are with rows and columns exchanged.
fn pack_both<E: Number>(
    from: Lines<'_, E>,
    [lines, numbers]: [usize; 2],
    to: &mut Operand,
    by_dim: Option<&mut Operand>,
) {
    to.pack(from, [lines, numbers], E::MOST, Side::Left);
    if let Some(by_dim) = by_dim {
        by_dim.pack(from.turned(), [numbers, lines], E::MOST, Side::Left);
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

/// The rows of a head from one on as lines, or with `turned` its columns.
fn lines<'a, E>(view: &View<'a, E>, at: [usize; 2], first: usize, turned: bool) -> Lines<'a, E> {
    let [row, col] = [view.strides()[2], view.strides()[3]];
    let (line, step) = if turned { (col, row) } else { (row, col) };
    Lines {
        data: view.data(),
        offset: start(view, at).wrapping_add_signed(first as isize * row),
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
    use super::{Tiles, are_taken};
    use crate::attention::problem::Problem;
    use crate::attention::{AttentionGrad, AttentionState, BlockGrad, KeyBlock, Queries};
    use crate::gemm::{Emulated, Unit, of_processor};

    pub use super::Tiled;

    /// As [`AttentionState::fold`] by a unit that is emulated, whether that pays or not. Tells whether keys and values lie so that one takes them.
    pub fn fold_emulated<E: Tiled>(
        unit: Emulated,
        state: &mut AttentionState<f32>,
        queries: &Queries<'_, E>,
        block: &KeyBlock<'_, E>,
    ) -> bool {
        fold(unit, state, queries, block)
    }

    /// The same by the processor's, if it has one that the crate is compiled for.
    pub fn fold_by_processor<E: Tiled>(
        state: &mut AttentionState<f32>,
        queries: &Queries<'_, E>,
        block: &KeyBlock<'_, E>,
    ) -> Option<bool> {
        of_processor().map(|unit| fold(unit, state, queries, block))
    }

    fn fold<E: Tiled>(
        unit: impl Unit,
        state: &mut AttentionState<f32>,
        queries: &Queries<'_, E>,
        block: &KeyBlock<'_, E>,
    ) -> bool {
        let problem = Problem::new(queries, block);
        let are_taken = are_taken(&problem, block);
        if are_taken {
            state.take_in(&problem, &mut Tiles::new(unit, &problem, block, None));
        }
        are_taken
    }

    /// As [`AttentionGrad::fold`], in the same way.
    pub fn fold_grad_emulated<E: Tiled>(
        unit: Emulated,
        grad: &mut AttentionGrad<'_, E>,
        queries: &Queries<'_, E>,
        block: &KeyBlock<'_, E>,
        grads: &mut BlockGrad<'_, f32>,
    ) -> bool {
        grad.check(queries, block, grads);
        let problem = Problem::new(queries, block);
        let are_taken = are_taken(&problem, block);
        if are_taken {
            let dout = grad.dout();
            let mut products = Tiles::new(unit, &problem, block, Some(&dout));
            grad.take_in(&problem, &mut products, grads);
        }
        are_taken
    }
}
