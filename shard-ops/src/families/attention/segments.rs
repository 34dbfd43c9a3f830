//! Attention of queries to the keys of their own segment, as to those of their own document among several that stand one after the other.

use super::options::Attention;
use super::{NAME, apply};
use crate::families::elementwise::cast;
use crate::families::shape::reshape;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;

/// Of which segment each query and each key is: numbers of any kind, `i64` or `i32`, in any order. A query sees the keys whose number is its own.
#[derive(Clone, Copy, Debug)]
pub struct TokenSegments<'a> {
    /// Of the queries, `[queries]`, or `[batch, queries]` where entries of the batch have segments of their own.
    pub queries: &'a Value,
    /// Of the keys, `[keys]` or `[batch, keys]`.
    pub keys: &'a Value,
}

impl TokenSegments<'_> {
    /// The numbers, `[batch or 1, queries]` and `[batch or 1, keys]`, `i64`.
    fn numbers(&self, exec: &dyn Exec, [q, k]: [&Value; 2]) -> Result<[Value; 2]> {
        let number = |operand: usize, rows: &Value, of: &Value| {
            if !matches!(of.dtype(), DType::I64 | DType::I32) {
                return Err(OpError::dtype(NAME, operand, "i64 or i32", of.dtype()));
            }
            let fits = match (rows.shape(), of.shape()) {
                ([_, _, n, _], [m]) => n == m,
                ([batch, _, n, _], [entries, m]) => n == m && (entries == batch || *entries == 1),
                _ => false,
            };
            if !fits {
                return Err(OpError::Shape {
                    op: NAME,
                    problem: "queries and keys need the number of one segment each".into(),
                    shapes: vec![rows.shape().to_vec(), of.shape().to_vec()],
                    fix: "give numbers [tokens] or [batch, tokens], as many as there are",
                });
            }
            let of = cast(exec, &of.detach(), DType::I64)?;
            match *of.shape() {
                [n] => reshape(exec, &of, &[1, n]),
                _ => Ok(of),
            }
        };
        Ok([number(3, q, self.queries)?, number(4, k, self.keys)?])
    }
}

/// [Attention](super::attention) in which queries see the keys of their own segment alone: of documents that are packed one after the other
/// the result of each is as by itself, if masks by positions, as the causal one, are [aligned](super::Causal::TopLeft) at the first key. A
/// matrix of which queries see which keys is not made: that is found block by block, and blocks in which no segments meet are not computed
/// on the host.
///
/// # Collective
/// As [`attention`](super::attention), with eight bytes more for each key that moves.
///
/// # Errors
/// As [`attention`](super::attention); numbers that are not one integer for each query and each key.
pub fn attention_by_segment(
    exec: &dyn Exec,
    [q, k, v]: [&Value; 3],
    segments: TokenSegments<'_>,
    mask: Option<&Value>,
    options: &Attention,
) -> Result<Value> {
    let segments = segments.numbers(exec, [q, k])?;
    apply(exec, [q, k, v], mask, Some(&segments), options)
}
