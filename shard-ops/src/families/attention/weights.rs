//! What attention multiplies values by, stored whole.

use super::options::Attention;
use super::rule::Extents;
use super::{as_four_dims, check};
use crate::families::elementwise::{add, logical_not, masked_fill, mul_scalar, ne, number, where_};
use crate::families::full::in_full_with;
use crate::families::index::repeat_interleave;
use crate::families::matmul::matmul;
use crate::families::shape::transpose;
use crate::families::softmax::softmax;
use crate::families::triangle::{tril, triu};
use crate::{Exec, Meta, Result, Value};
use shard_comm::DType;

/// The probabilities `[batch, heads, queries, keys]` by which [`attention`](super::attention) of such queries and keys weighs values, before
/// any are dropped: a matrix that attention itself never stores. Queries that see no key have zeros.
///
/// # Collective
/// All members of the mesh; as [`matmul`](fn@crate::matmul::matmul) and [`softmax`](fn@crate::softmax::softmax).
///
/// # Errors
/// As [`attention`](super::attention).
pub fn attention_weights(
    exec: &dyn Exec,
    q: &Value,
    k: &Value,
    mask: Option<&Value>,
    options: &Attention,
) -> Result<Value> {
    check(q, k, options)?;
    let mask = as_four_dims(exec, mask)?;
    let (keys, of_mask) = (Meta::of(k), mask.as_ref().map(Meta::of));
    let at = Extents::new(&Meta::of(q), &keys, &keys, of_mask.as_ref())?;
    let (added, seen) = match mask {
        Some(mask) if mask.dtype() == DType::Bool => (None, Some(mask)),
        other => (other, None),
    };
    in_full_with(exec, [q, k], [added.as_ref()], |[q, k], [added]| {
        let k = &of_each_head(exec, k, at.group())?;
        let seen = seen.as_ref();
        probabilities(exec, [q, k], added, seen, options)
    })
}

/// Keys or values, once for each head that they serve.
pub(super) fn of_each_head(exec: &dyn Exec, x: &Value, group: usize) -> Result<Value> {
    match group {
        1 => Ok(x.clone()),
        group => repeat_interleave(exec, x, 1, group),
    }
}

/// The same of as many heads of keys as of queries: what is added to their logits, and which of them count.
pub(super) fn probabilities(
    exec: &dyn Exec,
    [q, k]: [&Value; 2],
    added: Option<&Value>,
    seen: Option<&Value>,
    options: &Attention,
) -> Result<Value> {
    let scale = options.scale_of(q.shape()[3]);
    let logits = matmul(
        exec,
        &mul_scalar(exec, q, scale)?,
        &transpose(exec, k, 2, 3)?,
    )?;
    let never = number(super::NAME, &logits, f64::NEG_INFINITY)?;
    let mut logits = logits;
    if let Some(added) = added {
        logits = add(exec, &logits, added)?;
    }
    if let Some(seen) = seen {
        logits = where_(exec, seen, &logits, &never)?;
    }
    let hidden = hidden(exec, &logits, &never, options)?;
    let logits = masked_fill(exec, &logits, &hidden, f64::NEG_INFINITY)?;
    // Of a query that sees nothing a softmax is NaN, all of which is hidden.
    masked_fill(exec, &softmax(exec, &logits, &[3])?, &hidden, 0.0)
}

/// Which keys a query does not see, by their logits and by their positions.
fn hidden(exec: &dyn Exec, logits: &Value, never: &Value, options: &Attention) -> Result<Value> {
    let mut seen = ne(exec, &logits.detach(), never)?;
    let (low, high) = options.band(logits.shape()[2], logits.shape()[3]).bounds();
    if high != i64::MAX {
        seen = tril(exec, &seen, high)?;
    }
    if low != i64::MIN {
        seen = triu(exec, &seen, low)?;
    }
    logical_not(exec, &seen)
}
