//! Classes as rows that are 1 in one place.

use super::decided;
use super::elementwise::{cast, eq};
use super::full::sums;
use super::indexing::ungather;
use super::shape::unsqueeze;
use super::types::integers;
use crate::error::InOp;
use crate::{Exec, OpError, Result, Value, holds};
use shard_comm::DType;
use shard_redistribute::Array;
use shard_spec::Layout;

const NAME: &str = "one_hot";

/// A new last dim of `classes`, 1 where its index is the element and 0 elsewhere, as `i64`. Without a number there are as many as the
/// largest element says.
///
/// # Collective
/// All members of the mesh; without a number, all ranks of the program. One reduction of a number finds out whether all elements are
/// classes, another one how many there are, and then all agree that they go on; else nothing moves, but that partial operands are reduced
/// first.
///
/// # Errors
/// Elements that are no integers, or a type that cannot hold the classes; no number and no elements;
/// [`OutOfRange`](OpError::OutOfRange) for elements that are no classes, on all ranks alike.
pub fn one_hot(exec: &dyn Exec, x: &Value, classes: Option<usize>) -> Result<Value> {
    integers(NAME, 0, x)?;
    let classes = match classes {
        Some(classes) => classes,
        None => decided::count(exec, NAME, x)?.ok_or_else(|| OpError::Shape {
            op: NAME,
            problem: "no elements say how many classes there are".into(),
            shapes: vec![x.shape().to_vec()],
            fix: "give their number",
        })?,
    };
    let dtype = x.dtype();
    if !holds(dtype, classes as f64 - 1.0) {
        return Err(OpError::Value {
            op: NAME,
            value: classes as f64,
            dtype,
        });
    }
    let [x] = &sums(exec, [&x.detach()])?;
    decided::within(exec, NAME, x, classes)?;
    let class = match dtype {
        DType::U8 => &cast(exec, x, DType::I64)?,
        _ => x,
    };
    // Most is zeros: ones are put where they belong.
    let class = unsqueeze(exec, class, x.ndim())?;
    let cx = x.array().cx();
    let ones = Array::from_runs(cx, class.layout(), |_, _, run| run.fill(1_i64)).in_op(NAME)?;
    ungather(
        exec,
        &rows_of(&class, classes)?,
        x.ndim(),
        &class,
        &Value::new(ones),
    )
}

/// So many numbers in place of the one of the last dim, divided as others are, without elements.
fn rows_of(x: &Value, classes: usize) -> Result<Value> {
    let (cx, of, last) = (x.array().cx(), x.layout(), x.ndim() - 1);
    let mut shape = x.shape().to_vec();
    shape[last] = classes;
    let others = of.shardings()[..last].iter().cloned();
    let layout = Layout::from_dims(cx.mesh(), &shape, others.chain([None]), None).in_op(NAME)?;
    let rows = Array::from_parts(cx, &layout, None, DType::I64).in_op(NAME)?;
    Ok(Value::new(rows))
}

/// Whether elements are each of so many classes, a new last dim; what is none of them is no class. No communication, but that partial
/// operands are reduced first.
pub(super) fn is_class(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    classes: usize,
) -> Result<Value> {
    let layout = Layout::replicated(x.layout().mesh(), &[classes]);
    let cx = x.array().cx();
    let class = match x.dtype() {
        DType::U8 => Array::from_fn(cx, &layout, |i| i[0] as u8),
        DType::I32 => Array::from_fn(cx, &layout, |i| i[0] as i32),
        _ => Array::from_fn(cx, &layout, |i| i[0] as i64),
    };
    let class = Value::new(class.in_op(op)?);
    eq(exec, &unsqueeze(exec, x, x.ndim())?, &class)
}
