//! Rows of a table that are combined in bags.

use super::{bincount_within, embedding, segment_max, segment_sum};
use crate::error::InOp;
use crate::families::decided::within;
use crate::families::elementwise::{
    add_scalar, cast, div, div_scalar, eq, masked_fill, maximum, mul, number, rsub_scalar, sub,
};
use crate::families::full::in_full_with;
use crate::families::index::{pad, slice};
use crate::families::reduce::{amax, sum};
use crate::families::search::searchsorted;
use crate::families::shape::unsqueeze;
use crate::families::types::integers;
use crate::{Exec, OpError, Result, Value, key_of};
use shard_comm::DType;
use shard_redistribute::Array;
use shard_spec::EdgeMap;
use std::rc::Rc;

/// How [`embedding_bag`] combines the rows of a bag. A bag without rows gives zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BagReduce {
    /// Sums.
    Sum,
    /// Means.
    #[default]
    Mean,
    /// The largest, element by element. Gradients are shared evenly between ties.
    Max,
}

/// Which rows are in which bag of [`embedding_bag`], and what they count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bags<'a> {
    /// Of a list of indices: where each bag begins in it, `i64` or `i32`, from 0 and rising.
    pub offsets: Option<&'a Value>,
    /// A row that counts as none and gets no gradient.
    pub padding: Option<usize>,
    /// A factor for each index, for sums.
    pub weights: Option<&'a Value>,
}

const OP: &str = "embedding_bag";

/// Rows of `table`, `[rows, features]`, combined in bags: `[bags, features]`. A bag is a row of `indices`, `[bags, length]`; or a part of a
/// list, which begins where its offset says and ends where the next begins.
///
/// # Collective
/// As [`embedding`], and where offsets say which bag an index is in, as [`segment_sum`] of as many rows. At the first use of
/// offsets three reductions of a number find out whether they are such.
///
/// # Errors
/// As [`embedding`]; indices of other numbers of dims, offsets for indices of two, factors of another shape than the indices, or for other than
/// sums; on all ranks, offsets that do not begin with 0, fall, or end behind the list.
pub fn embedding_bag(
    exec: &dyn Exec,
    indices: &Value,
    table: &Value,
    how: BagReduce,
    bags: Bags<'_>,
) -> Result<Value> {
    let belong = match (indices.ndim(), bags.offsets) {
        (2, None) => true,
        (1, Some(offsets)) => offsets.ndim() == 1,
        _ => false,
    };
    let weighs = bags.weights.is_none_or(|w| w.shape() == indices.shape());
    if !belong || !weighs || table.ndim() != 2 || (bags.weights.is_some() && how != BagReduce::Sum)
    {
        let others = bags.offsets.into_iter().chain(bags.weights);
        return Err(OpError::Shape {
            op: OP,
            problem: "indices, offsets and factors do not belong together".into(),
            shapes: ([table, indices].into_iter().chain(others))
                .map(|v| v.shape().to_vec())
                .collect(),
            fix: "give a table of two dims, indices of two, or a list and the offsets of its bags, and factors of the indices' shape for sums",
        });
    }
    let rows = embedding(exec, indices, table, bags.padding)?;
    let padding = match bags.padding {
        Some(padding) => Some(eq(exec, indices, &number(OP, indices, padding as f64)?)?),
        None => None,
    };
    let ids = match bags.offsets {
        Some(offsets) => Some((bag_of_each(exec, indices, offsets)?, offsets.shape()[0])),
        None => None,
    };
    in_full_with(exec, [&rows], [bags.weights], |[rows], [weights]| {
        combined(exec, rows, how, weights, padding.as_ref(), ids.as_ref())
    })
}

/// Rows combined: along dim 1, or by the numbers of bags, of which there are so many. Those of `padding` count as none.
fn combined(
    exec: &dyn Exec,
    rows: &Value,
    how: BagReduce,
    weights: Option<&Value>,
    padding: Option<&Value>,
    ids: Option<&(Value, usize)>,
) -> Result<Value> {
    let last = rows.ndim() - 1;
    // Nothing has no largest.
    let is_sum = how == BagReduce::Sum || (ids.is_none() && rows.shape()[1] == 0);
    let mut rows = rows.clone();
    if let Some(weights) = weights {
        rows = mul(exec, &rows, &unsqueeze(exec, weights, last)?)?;
    }
    if let Some(padding) = padding {
        let least = match how {
            BagReduce::Max => f64::NEG_INFINITY,
            _ => 0.0,
        };
        rows = masked_fill(exec, &rows, &unsqueeze(exec, padding, last)?, least)?;
    }
    let found = match (ids, how) {
        (Some((ids, bags)), BagReduce::Max) => segment_max(exec, &rows, ids, *bags)?,
        (Some((ids, bags)), _) => segment_sum(exec, &rows, ids, *bags)?,
        (None, BagReduce::Max) if !is_sum => amax(exec, &rows, &[1], false)?,
        (None, _) => sum(exec, &rows, &[1], false)?,
    };
    if is_sum {
        return Ok(found);
    }
    let counted = match padding {
        Some(padding) => {
            let padding = cast(exec, padding, rows.dtype())?;
            Some(rsub_scalar(exec, &padding, 1.0)?)
        }
        None => None,
    };
    let counts = match (ids, &counted) {
        (Some((ids, bags)), _) => bincount_within(exec, ids, counted.as_ref(), *bags)?,
        (None, Some(counted)) => sum(exec, counted, &[1], false)?,
        (None, None) if how == BagReduce::Mean => {
            return div_scalar(exec, &found, rows.shape()[1] as f64);
        }
        (None, None) => return Ok(found),
    };
    let counts = unsqueeze(exec, &cast(exec, &counts, rows.dtype())?, 1)?;
    match how {
        BagReduce::Max => {
            let none = eq(exec, &counts, &number(OP, &counts, 0.0)?)?;
            masked_fill(exec, &found, &none, 0.0)
        }
        _ => {
            let one = number(OP, &counts, 1.0)?;
            div(exec, &found, &maximum(exec, &counts, &one)?)
        }
    }
}

/// The number of the bag that each of a list of indices is in: kept with the offsets, of which a training has few.
fn bag_of_each(exec: &dyn Exec, indices: &Value, offsets: &Value) -> Result<Value> {
    let layout = indices.layout().with_partial_reduced();
    let (n, bags) = (indices.shape()[0], offsets.shape()[0]);
    let key = key_of(OP, &(n, layout.hash128()));
    if let Some(known) = offsets.array().kept::<Value>(key) {
        return Ok((*known).clone());
    }
    integers(OP, 2, offsets)?;
    let whole = offsets.layout().with_partial_reduced();
    let begins = exec.aligned((OP, 2), &offsets.detach(), &whole)?;
    let begins = cast(exec, &begins, DType::I64)?;
    if bags > 0 {
        // The first is 0, none is below the one before, and the last is not behind the end.
        let before = pad(exec, &begins, &[(1, -1)], EdgeMap::Zeros, 0.0)?;
        within(exec, OP, &sub(exec, &begins, &before)?, n + 1)?;
        within(exec, OP, &slice(exec, &begins, 0, 0, 1, 1)?, 1)?;
        within(exec, OP, &slice(exec, &begins, 0, bags - 1, 1, 1)?, n + 1)?;
    } else if n > 0 {
        return Err(OpError::Shape {
            op: OP,
            problem: "there are indices, and no bags".into(),
            shapes: vec![indices.shape().to_vec(), offsets.shape().to_vec()],
            fix: "give an offset for each bag, the first of which is 0",
        });
    }
    let places = Array::from_fn(indices.array().cx(), &layout, |i| i[0] as i64);
    let places = Value::new(places.in_op(OP)?);
    let behind = searchsorted(exec, &begins, &places, true)?;
    let ids = add_scalar(exec, &behind, -1.0)?.detach();
    offsets.array().keep(key, Rc::new(ids.clone()));
    Ok(ids)
}
