//! Triangles and diagonals of matrices: what is kept is told by global positions, so nothing moves for a triangle.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use super::index::{pad, slice};
use super::shape::{extent, permute};
use super::types::same_types;
use crate::host::{Held, positions, with_element};
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, OperandBox,
    Reduction, Result, Rule, Saved, Value, key_of,
};
use shard_kernels::triangle as kernels;
use shard_spec::{EdgeMap, ReduceOp};
use smallvec::smallvec;
use std::sync::Arc;

/// The lower triangle of matrices, the last two dims: elements above diagonal number `diagonal` are 0. Number 0 is the main one,
/// higher ones lie above it.
///
/// # Collective
/// All members of the mesh. No communication; partial sums stay partial.
///
/// # Errors
/// Fewer than two dims.
pub fn tril(exec: &dyn Exec, x: &Value, diagonal: i64) -> Result<Value> {
    let op = Triangle {
        upper: false,
        diagonal,
    };
    exec.apply1(Arc::new(op), &[x])
}

/// The upper triangle of matrices, the last two dims: elements below diagonal number `diagonal` are 0.
///
/// # Collective
/// As [`tril`].
///
/// # Errors
/// As [`tril`].
pub fn triu(exec: &dyn Exec, x: &Value, diagonal: i64) -> Result<Value> {
    let op = Triangle {
        upper: true,
        diagonal,
    };
    exec.apply1(Arc::new(op), &[x])
}

/// Diagonal number `offset` of the matrices that two dims are, as the last dim of the result; dim `rows` counts rows and
/// `columns` columns.
///
/// # Collective
/// All members of the mesh. Nothing moves if the matrices are square and the main diagonal is asked for: what each rank has of
/// it is a term of a sum over the mesh axes that shard columns. Other diagonals are those of a slice, which moves what crosses
/// its boundaries.
///
/// # Errors
/// A dim out of range, or one named twice.
pub fn diagonal(
    exec: &dyn Exec,
    x: &Value,
    offset: i64,
    rows: usize,
    columns: usize,
) -> Result<Value> {
    let (height, width) = (
        extent("diagonal", x, rows)?,
        extent("diagonal", x, columns)?,
    );
    if rows == columns {
        return Err(OpError::Shape {
            op: "diagonal",
            problem: format!("dim {rows} is named twice"),
            shapes: vec![x.shape().to_vec()],
            fix: "name two dims",
        });
    }
    let away = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    let (down, right) = if offset < 0 { (away, 0) } else { (0, away) };
    let (down, right) = (down.min(height), right.min(width));
    let len = (height - down).min(width - right);
    let square = slice(exec, x, rows, down, 1, len)?;
    let square = slice(exec, &square, columns, right, 1, len)?;
    let others = (0..x.ndim()).filter(|&d| d != rows && d != columns);
    let order: Vec<usize> = others.chain([rows, columns]).collect();
    let square = match order.is_sorted() {
        true => square,
        false => permute(exec, &square, &order)?,
    };
    exec.apply1(Arc::new(Diagonal), &[&square])
}

/// Matrices of zeros with the last dim on diagonal number `offset`; dims `rows` and `columns` of the result count their rows and columns.
///
/// # Collective
/// All members of the mesh. Rows lie as the dim does, and nothing moves for the main diagonal; the boundaries of others are shifted.
///
/// # Errors
/// No dims; a dim that the result does not have, or one named twice; a diagonal so far away that its matrix cannot be counted.
pub fn diag_embed(
    exec: &dyn Exec,
    x: &Value,
    offset: i64,
    rows: usize,
    columns: usize,
) -> Result<Value> {
    const OP: &str = "diag_embed";
    let ndim = x.ndim() + 1;
    let wrong = |problem: String, fix| OpError::Shape {
        op: OP,
        problem,
        shapes: vec![x.shape().to_vec()],
        fix,
    };
    if x.ndim() == 0 || rows.max(columns) >= ndim || rows == columns {
        let problem = format!("no matrices of dims {rows} and {columns}");
        return Err(wrong(
            problem,
            "give a dim at least, and name two dims of the result",
        ));
    }
    let mut matrices = exec.apply1(Arc::new(Embed), &[x])?;
    if offset != 0 {
        let away = isize::try_from(offset.unsigned_abs()).ok();
        let away = away.filter(|&away| away < isize::MAX / 2);
        let away =
            away.ok_or_else(|| wrong(format!("diagonal {offset}"), "name one that is nearer"))?;
        let (down, right) = if offset < 0 { (away, 0) } else { (0, away) };
        let mut pads = vec![(0, 0); ndim];
        // Rows before those of a diagonal below the main one, and columns behind its own; above it is the other way round.
        pads[ndim - 2] = (down, right);
        pads[ndim - 1] = (right, down);
        matrices = pad(exec, &matrices, &pads, EdgeMap::Zeros, 0.0)?;
    }
    let mut others = 0..ndim - 2;
    let order: Vec<usize> = (0..ndim)
        .filter_map(|d| match d {
            d if d == rows => Some(ndim - 2),
            d if d == columns => Some(ndim - 1),
            _ => others.next(),
        })
        .collect();
    match order.is_sorted() {
        true => Ok(matrices),
        false => permute(exec, &matrices, &order),
    }
}

/// Of a list the matrix with it on diagonal number `offset`, and of a matrix the list on that diagonal.
///
/// # Collective
/// As [`diag_embed`], and as [`diagonal`].
///
/// # Errors
/// Other numbers of dims than one and two.
pub fn diag(exec: &dyn Exec, x: &Value, offset: i64) -> Result<Value> {
    match x.ndim() {
        1 => diag_embed(exec, x, offset, 0, 1),
        2 => diagonal(exec, x, offset, 0, 1),
        _ => Err(OpError::Shape {
            op: "diag",
            problem: "neither a list nor a matrix".into(),
            shapes: vec![x.shape().to_vec()],
            fix: "use `diagonal` or `diag_embed`, which name dims",
        }),
    }
}

fn matrices(op: &'static str, inputs: &[Meta], least: usize) -> Result<()> {
    match inputs {
        [x] if x.shape.len() < least => Err(OpError::Shape {
            op,
            problem: "no matrices".into(),
            shapes: vec![x.shape.to_vec()],
            fix: "give a tensor of two dims or more",
        }),
        _ => Ok(()),
    }
}

/// The positions of the rows and of the columns that a box has: its last two dims, which the rules here asked for.
fn sides(matrices: &OperandBox) -> (Held, Held) {
    let n = matrices.shape.len();
    (positions(matrices, n - 2), positions(matrices, n - 1))
}

/// What lies on one side of a diagonal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Triangle {
    upper: bool,
    diagonal: i64,
}

impl Op for Triangle {
    fn name(&self) -> &'static str {
        if self.upper { "triu" } else { "tril" }
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.diagonal)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = same_types(self.name(), inputs)?;
        matrices(self.name(), inputs, 2)?;
        Rule::pointwise(self.name(), inputs, dtype, Linearity::Each(smallvec![0]))
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (rows, columns) = sides(&call.cx.outputs[0]);
        with_element!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let (rows, columns) = (rows.get(), columns.get());
            kernels::triangle(
                self.upper, self.diagonal, rows, columns, &x, &mut call.output::<T>(0),
            );
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back_by(exec, cotangents, *self)
    }
}

/// The main diagonal of square matrices, the last two dims: the sum over columns of what lies on it, which is one element, so
/// that a rank that has only some of the columns has a term.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Diagonal;

impl Op for Diagonal {
    fn name(&self) -> &'static str {
        "diagonal"
    }

    fn key(&self) -> u128 {
        key_of("diagonal", &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = same_types("diagonal", inputs)?;
        matrices("diagonal", inputs, 2)?;
        let x = &inputs[0].shape;
        let mut rule = Rule::builder("diagonal", inputs).any_order();
        let dims: Vec<Access> = (x.iter().map(|&n| Access::factor(rule.factor(n)))).collect();
        let out = dims[..x.len() - 1].to_vec();
        let shape = x[..x.len() - 1].iter().copied().collect();
        rule.input(dims)
            .output(out, shape, dtype)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (rows, columns) = sides(&call.cx.inputs[0]);
        with_element!(call.dtype(), T => {
            let x = call.input::<T>(0);
            kernels::take(rows.get(), columns.get(), &x, &mut call.output::<T>(0));
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back_by(exec, cotangents, Embed)
    }
}

/// Square matrices of zeros with the last dim on their diagonals: the derivative of [`Diagonal`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embed;

impl Op for Embed {
    fn name(&self) -> &'static str {
        "diagonal_embed"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = same_types(self.name(), inputs)?;
        matrices(self.name(), inputs, 1)?;
        let x = &inputs[0].shape;
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let dims: Vec<Access> = (x.iter().map(|&n| Access::factor(rule.factor(n)))).collect();
        let n = x[x.len() - 1];
        let columns = Access::factor(rule.factor(n));
        let shape = x.iter().copied().chain([n]).collect();
        rule.input(dims.clone())
            .output(dims.into_iter().chain([columns]).collect(), shape, dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (rows, columns) = sides(&call.cx.outputs[0]);
        with_element!(call.dtype(), T => {
            let x = call.input::<T>(0);
            kernels::embed(rows.get(), columns.get(), &x, &mut call.output::<T>(0));
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back_by(exec, cotangents, Diagonal)
    }
}
