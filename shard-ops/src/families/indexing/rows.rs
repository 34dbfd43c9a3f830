//! Which dims of a table, an operand that names its rows, and the rows it names belong together; and the two ops by which
//! rows travel.

use crate::host::with_element;
use crate::strategy::KeyedDims;
use crate::{
    Access, HostCall, Meta, Op, OpError, OperandBox, Result, Routes, Rule, RuleBuilder, key_of,
};
use shard_comm::DType;
use shard_kernels::rows::{Foldable, RowDim, RowFold, Rows, fold, pick};
use shard_spec::{Dims, ReduceOp};
use smallvec::SmallVec;

/// Rows of a table that an operand names: which dim its elements are indices of, and which of its dims are the table's as well.
///
/// What is picked, or folded in, has the table's dims, with those of the operand that it does not share in place of the routed one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Picked {
    /// The routed dim.
    pub(crate) dim: usize,
    /// Per dim of the operand, the dim of the table that it is.
    pub(crate) shared: SmallVec<[Option<usize>; 4]>,
    /// The element that names no row, such as [`ABSENT`], if there is one. It may be one that would name a row otherwise.
    pub(crate) gaps: Option<i64>,
    /// Whether negative indices count from the end.
    pub(crate) from_end: bool,
}

/// The largest of no whole numbers: what a place holds that nothing was put to.
pub(in crate::families) const ABSENT: i64 = i64::MIN;

/// A dim of what is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PickedDim {
    Table(usize),
    Index(usize),
}

/// A rule in the making: how the dims of the table, of the operand that names rows, and of the rows are indexed.
pub(super) struct Accesses {
    pub(super) rule: RuleBuilder,
    pub(super) table: Vec<Access>,
    pub(super) index: Vec<Access>,
    pub(super) picked: Vec<Access>,
    pub(super) shape: Dims,
}

impl Picked {
    /// Whole rows: the operand shares no dim.
    pub(crate) fn rows(dim: usize, index_dims: usize) -> Self {
        Self {
            dim,
            shared: SmallVec::from_elem(None, index_dims),
            gaps: None,
            from_end: true,
        }
    }

    /// Elements along a dim: the operand has all other dims as well.
    pub(crate) fn along(dim: usize, ndim: usize) -> Self {
        Self {
            dim,
            shared: (0..ndim).map(|d| (d != dim).then_some(d)).collect(),
            gaps: None,
            from_end: true,
        }
    }

    /// The same of an operand that does not name a row everywhere.
    pub(super) fn with_gaps(self) -> Self {
        self.with_gaps_at(ABSENT)
    }

    /// The same of an operand of which an element names no row.
    pub(super) fn with_gaps_at(self, element: i64) -> Self {
        Self {
            gaps: Some(element),
            ..self
        }
    }

    /// The same of an operand whose negative elements are out of range.
    pub(super) fn with_no_negatives(self) -> Self {
        Self {
            from_end: false,
            ..self
        }
    }

    /// How rows are named.
    pub(super) fn routes(&self) -> Routes {
        let routes = match self.from_end {
            true => Routes::by(1).counted_from_either_end(),
            false => Routes::by(1),
        };
        match self.gaps {
            Some(element) => routes.absent(element),
            None => routes,
        }
    }

    fn dims(&self, table_dims: usize) -> Vec<PickedDim> {
        let own = || (0..self.shared.len()).filter(|&k| self.shared[k].is_none());
        let mut dims = Vec::new();
        for t in 0..table_dims {
            match t == self.dim {
                true => dims.extend(own().map(PickedDim::Index)),
                false => dims.push(PickedDim::Table(t)),
            }
        }
        dims
    }

    /// The last dim of what is picked that is the operand's own. Of what is picked place by place there is one.
    pub(super) fn last_own(&self, table_dims: usize) -> usize {
        let is_own = |dim: &PickedDim| matches!(dim, PickedDim::Index(_));
        let dims = self.dims(table_dims);
        dims.iter().rposition(is_own).unwrap_or_default()
    }

    /// The factors of a rule on a table and an operand of these shapes.
    ///
    /// # Errors
    /// Shapes that do not belong together.
    pub(super) fn accesses(
        &self,
        name: &'static str,
        inputs: &[Meta],
        expected: usize,
    ) -> Result<Accesses> {
        if inputs.len() != expected {
            return Err(OpError::arity(name, expected.to_string(), inputs.len()));
        }
        let (table, index) = (&inputs[0], &inputs[1]);
        if !matches!(index.dtype, DType::I64 | DType::I32) {
            return Err(OpError::dtype(name, 1, "i64 or i32", index.dtype));
        }
        if self.dim >= table.shape.len() || self.shared.len() != index.shape.len() {
            return Err(OpError::Shape {
                op: name,
                problem: format!(
                    "there is no dim {} to index with {} dims",
                    self.dim,
                    self.shared.len()
                ),
                shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
                fix: "name a dim of the table, and give an index of the dims it takes",
            });
        }
        let mut rule = Rule::builder(name, inputs).any_order();
        let of_table: Vec<usize> = table.shape.iter().map(|&n| rule.factor(n)).collect();
        let of_index: Vec<usize> = (self.shared.iter().zip(&index.shape))
            .map(|(shared, &n)| shared.map_or_else(|| rule.factor(n), |t| of_table[t]))
            .collect();
        let access = |t: usize| match t == self.dim {
            true => Access::Routed {
                factor: of_table[t],
            },
            false => Access::factor(of_table[t]),
        };
        let dims = self.dims(table.shape.len());
        let picked = dims.iter().map(|d| match *d {
            PickedDim::Table(t) => access(t),
            PickedDim::Index(k) => Access::factor(of_index[k]),
        });
        let shape = dims.iter().map(|d| match *d {
            PickedDim::Table(t) => table.shape[t],
            PickedDim::Index(k) => index.shape[k],
        });
        Ok(Accesses {
            rule,
            table: (0..table.shape.len()).map(access).collect(),
            index: of_index.iter().map(|&f| Access::factor(f)).collect(),
            picked: picked.collect(),
            shape: shape.collect(),
        })
    }

    /// Where rows lie in boxes of the table and of what is picked, which an operand of this many dims names.
    pub(super) fn geometry(&self, table: &OperandBox, picked: &OperandBox) -> Rows {
        let step = |at: &OperandBox, d: usize| at.strides[d] as usize;
        let dims = self.dims(table.shape.len());
        let place = |wanted: PickedDim| dims.iter().position(|&d| d == wanted);
        let (mut keyed, mut row): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) = Default::default();
        for (t, &extent) in table.shape.iter().enumerate() {
            if t == self.dim || self.shared.contains(&Some(t)) {
                keyed.push((extent, step(table, t)));
            } else if let Some(p) = place(PickedDim::Table(t)) {
                row.push(RowDim::new(extent, step(table, t), step(picked, p)));
            }
        }
        let list: SmallVec<[_; 4]> = (self.shared.iter().enumerate())
            .filter_map(|(k, shared)| place(shared.map_or(PickedDim::Index(k), PickedDim::Table)))
            .map(|p| (picked.shape[p], step(picked, p)))
            .collect();
        Rows::new(&keyed, &list, &row)
    }
}

/// The rows of a table that others ask for, side by side: inputs are the table and the keys.
#[derive(Clone, Debug)]
pub(crate) struct Pack {
    pub(crate) keyed: KeyedDims,
}

/// Folds rows that came, side by side, into the rows of a table that their keys name: inputs are the rows and the keys.
#[derive(Clone, Debug)]
pub(crate) struct Settle {
    pub(crate) keyed: KeyedDims,
    pub(crate) fold: ReduceOp,
}

/// Where rows lie in a table and, side by side, on the other side.
pub(super) fn side_by_side(keyed: &KeyedDims, table: &OperandBox, rows: &OperandBox) -> Rows {
    let (mut keys, mut row): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) = Default::default();
    for (t, (&extent, &step)) in table.shape.iter().zip(&table.strides).enumerate() {
        match keyed[t] {
            true => keys.push((extent, step as usize)),
            false => row.push(RowDim::new(
                extent,
                step as usize,
                rows.strides[1 + row.len()] as usize,
            )),
        }
    }
    Rows::new(&keys, &[(rows.shape[0], rows.strides[0] as usize)], &row)
}

impl Op for Pack {
    fn name(&self) -> &'static str {
        "pack_rows"
    }

    fn key(&self) -> u128 {
        key_of("pack_rows", &self.keyed)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        Err(engines_own(self.name(), inputs))
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let rows = side_by_side(&self.keyed, &call.cx.inputs[0], &call.cx.outputs[0]);
        with_element!(call.dtype(), T => {
            let (table, keys) = (call.input::<T>(0), call.input::<i64>(1));
            pick(&rows, table.data(), &[], keys.data(), call.output::<T>(0).data_mut());
        });
    }
}

impl Op for Settle {
    fn name(&self) -> &'static str {
        "settle_rows"
    }

    fn key(&self) -> u128 {
        key_of("settle_rows", &(&self.keyed, self.fold))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        Err(engines_own(self.name(), inputs))
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let rows = side_by_side(&self.keyed, &call.cx.outputs[0], &call.cx.inputs[0]);
        with_foldable!(call.dtype(), T => {
            let (came, keys) = (call.input::<T>(0), call.input::<i64>(1));
            let mut own = call.output::<T>(0);
            fold_all::<T>(self.fold, &rows, own.data_mut(), &mut [], keys.data(), came.data());
        });
    }
}

/// What only the engine applies, to boxes of its own.
fn engines_own(name: &'static str, inputs: &[Meta]) -> OpError {
    OpError::Shape {
        op: name,
        problem: "this is a step of other ops".into(),
        shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
        fix: "apply those",
    }
}

/// Folds rows by a reduction that has a fold.
pub(super) fn fold_all<T: Foldable>(
    how: ReduceOp,
    rows: &Rows,
    table: &mut [T],
    ghosts: &mut [T],
    keys: &[i64],
    src: &[T],
) {
    fold(row_fold(how), rows, table, ghosts, keys, src);
}

/// The fold of a reduction; of truth values there is none, and rules let none through.
pub(super) fn row_fold(how: ReduceOp) -> RowFold {
    match how {
        ReduceOp::Prod => RowFold::Prod,
        ReduceOp::Max | ReduceOp::Any => RowFold::Max,
        ReduceOp::Min | ReduceOp::All => RowFold::Min,
        _ => RowFold::Sum,
    }
}

/// Runs an expression with `$T` bound to the type that `$dtype` names, for kernels that fold rows. Rules let no truth values
/// through, which have no folds, and whole numbers are those of `with_whole!` without them.
macro_rules! with_foldable {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shard_comm::DType::F32 | shard_comm::DType::F64 => {
                $crate::host::with_float!($dtype, $T => $body)
            }
            other => $crate::host::with_integer!(other, $T => $body),
        }
    };
}
pub(crate) use with_foldable;
