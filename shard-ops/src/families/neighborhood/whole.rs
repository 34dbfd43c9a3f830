//! The gradient of neighbourhood attention by the keys of each window beside each other: larger and slower than the ops that find it query by
//! query, and made of ops that have derivatives themselves.

use super::{Extents, Forward, scaled_for};
use crate::error::InOp;
use crate::families::einsum::einsum;
use crate::families::elementwise::{
    logical_and, logical_not, masked_fill, mul, mul_scalar, ne, number, sub, where_,
};
use crate::families::full::each_rounded_once;
use crate::families::indexing::{index_select, unselect};
use crate::families::reduce::sum;
use crate::families::shape::reshape;
use crate::families::softmax::softmax;
use crate::{Exec, Grads, Meta, Result, Saved, Value};
use shard_comm::{Bool, Element};
use shard_redistribute::Array;
use shard_spec::{Layout, Window};

/// What queries, keys and values get, for a cotangent of the result.
///
/// With `p` the probabilities of a window's keys and `g` the cotangent, `dv = pᵀ g`, logits get `p (g vᵀ - Σ p (g vᵀ))`, and queries and keys
/// what a product gives its factors; what a key gets in every window that it is in is added up.
///
/// # Collective
/// All members of the mesh; as [`index_select`] along each spatial dim, and back.
///
/// # Errors
/// What the communicator or the device reports.
pub(super) fn gradients(
    exec: &dyn Exec,
    of: &Forward,
    saved: &Saved<'_>,
    dout: &Value,
) -> Result<Grads> {
    let [q, k, v] = saved.inputs else {
        return Ok(vec![None; saved.inputs.len()]);
    };
    let metas: Vec<Meta> = saved.inputs.iter().map(Meta::of).collect();
    let at = Extents::new(&metas, &of.windows)?;
    let seen = Seen::new(q, &of.windows)?;
    let wants = |operand: usize| saved.needs.get(operand).is_some_and(|&wanted| wanted);
    let scale = scaled_for(at.dim, of.scale);
    each_rounded_once(exec, [q, k, v, dout], |[q, k, v, dout]| {
        let group = at.heads.checked_div(at.kv_heads).unwrap_or(1);
        let apart = |x: &Value| {
            let (heads, last) = (x.ndim() - 2, x.shape()[x.ndim() - 1]);
            let shape = [&x.shape()[..heads], &[at.kv_heads, group, last]].concat();
            reshape(exec, x, &shape)
        };
        let (queries, dout) = (apart(q)?, apart(dout)?);
        let (keys, values) = (seen.beside(exec, k)?, seen.beside(exec, v)?);
        let by = Letters::of(of.windows.len());
        let times = |equation: [&str; 3], a: &Value, b: &Value| {
            let [a_letters, b_letters, result] = equation;
            einsum(exec, &format!("{a_letters},{b_letters}->{result}"), &[a, b])
        };
        let [rows, windows, pairs] = [&by.rows, &by.windows, &by.pairs].map(String::as_str);
        let (of_keys, of_pairs) = ([rows, windows, pairs], [pairs, windows, rows]);
        let logits = times(of_keys, &mul_scalar(exec, &queries, scale)?, &keys[0])?;
        let p = seen.probabilities(exec, logits)?;

        let mut grads = vec![None; 3];
        if wants(2) {
            let dv = times([pairs, rows, windows], &p, &dout)?;
            grads[2] = Some(seen.back(exec, &values, dv)?);
        }
        if wants(0) || wants(1) {
            let dp = times(of_keys, &dout, &values[0])?;
            let mean = sum(exec, &mul(exec, &dp, &p)?, &seen.dims(p.ndim()), true)?;
            let logits = mul(exec, &p, &sub(exec, &dp, &mean)?)?;
            let logits = mul_scalar(exec, &logits, scale)?;
            if wants(0) {
                let dq = times(of_pairs, &logits, &keys[0])?;
                grads[0] = Some(reshape(exec, &dq, q.shape())?);
            }
            if wants(1) {
                let dk = times([pairs, rows, windows], &logits, &queries)?;
                grads[1] = Some(seen.back(exec, &keys, dk)?);
            }
        }
        Ok(grads)
    })
}

/// The letters of queries, `[batch, spatial.., kv heads, group, dim]`, of the keys of their windows, where each spatial dim has behind it one of
/// its window, and of pairs, `[batch, spatial.., kv heads, group, windows..]`.
struct Letters {
    rows: String,
    windows: String,
    pairs: String,
}

impl Letters {
    fn of(spatial: usize) -> Self {
        // Of more dims than there are letters an equation says so.
        let sites: Vec<char> = ('a'..='v').chain(['?']).take(spatial).collect();
        let inner: Vec<char> = sites.iter().map(char::to_ascii_uppercase).collect();
        let own: String = sites.iter().collect();
        let both: String = (sites.iter().zip(&inner))
            .flat_map(|(&s, &w)| [s, w])
            .collect();
        let last: String = inner.iter().collect();
        Self {
            rows: format!("z{own}yxw"),
            windows: format!("z{both}yw"),
            pairs: format!("z{own}yx{last}"),
        }
    }
}

/// Which keys each query sees, dim by dim.
struct Seen {
    /// Of each spatial dim, `[queries, keys of a window]`, where the queries lie.
    keys: Vec<Value>,
    /// Which of them there are, as dims of pairs, where some windows have fewer; the query itself is in their place.
    are_there: Vec<Value>,
}

impl Seen {
    fn new(q: &Value, windows: &[Window]) -> Result<Self> {
        let mut seen = Self {
            keys: Vec::new(),
            are_there: Vec::new(),
        };
        for (d, window) in windows.iter().enumerate() {
            let &Window::Neighborhood {
                extent,
                kernel,
                causal,
                ..
            } = window
            else {
                continue;
            };
            let key_of = |query: usize, slot: usize| {
                let found = window
                    .neighbors(query)
                    .and_then(|near| near.keys().nth(slot));
                (found.unwrap_or(query), found.is_some())
            };
            let key = |i: &[usize]| key_of(i[0], i[1]).0 as i64;
            seen.keys.push(placed(q, d + 1, &[extent, kernel], 0, key)?);
            if causal {
                // Behind the batch and the sites are two dims of heads.
                let inner = windows.len() + 3 + d;
                let mut shape = vec![1; 2 * windows.len() + 3];
                (shape[d + 1], shape[inner]) = (extent, kernel);
                let is_there = |i: &[usize]| Bool::from(key_of(i[d + 1], i[inner]).1);
                seen.are_there
                    .push(placed(q, d + 1, &shape, d + 1, is_there)?);
            }
        }
        Ok(seen)
    }

    /// The dims of windows among those of pairs.
    fn dims(&self, pairs: usize) -> Vec<usize> {
        (pairs - self.keys.len()..pairs).collect()
    }

    /// Keys or values, `[batch, spatial.., heads, dim]`, those of each window beside each other: each spatial dim has another behind it. First
    /// that, and then what it was picked from.
    fn beside(&self, exec: &dyn Exec, x: &Value) -> Result<Vec<Value>> {
        let mut steps = vec![x.clone()];
        for (d, keys) in self.keys.iter().enumerate().rev() {
            let picked = index_select(exec, &steps[0], d + 1, keys)?;
            steps.insert(0, picked);
        }
        Ok(steps)
    }

    /// What keys or values get that came to lie [beside](Self::beside) each other.
    fn back(&self, exec: &dyn Exec, steps: &[Value], mut dx: Value) -> Result<Value> {
        // The last to be picked are of the first dim, behind which that of windows now is.
        for ((d, keys), from) in self.keys.iter().enumerate().zip(&steps[1..]) {
            dx = unselect(exec, from, d + 1, keys, &dx)?;
        }
        Ok(dx)
    }

    /// The softmax over the keys of each window that are seen.
    fn probabilities(&self, exec: &dyn Exec, mut logits: Value) -> Result<Value> {
        let dims = self.dims(logits.ndim());
        let never = number(super::NAME, &logits, f64::NEG_INFINITY)?;
        for is_there in &self.are_there {
            logits = where_(exec, is_there, &logits, &never)?;
        }
        let mut seen = ne(exec, &logits.detach(), &never)?;
        for is_there in &self.are_there {
            seen = logical_and(exec, &seen, is_there)?;
        }
        let hidden = logical_not(exec, &seen)?;
        let logits = masked_fill(exec, &logits, &hidden, f64::NEG_INFINITY)?;
        // Of a query that sees nothing a softmax is NaN, all of which is hidden.
        masked_fill(exec, &softmax(exec, &logits, &dims)?, &hidden, 0.0)
    }
}

/// Numbers that all ranks know, of which dim `dim` lies as dim `of` of a value.
fn placed<T: Element>(
    like: &Value,
    of: usize,
    shape: &[usize],
    dim: usize,
    f: impl Fn(&[usize]) -> T,
) -> Result<Value> {
    let whole = Layout::replicated(like.layout().mesh(), shape);
    let layout = whole.with_sharding(dim, like.layout().sharding(of).cloned());
    let array = Array::from_fn(like.array().cx(), &layout.in_op(super::NAME)?, f);
    Ok(Value::new(array.in_op(super::NAME)?))
}
