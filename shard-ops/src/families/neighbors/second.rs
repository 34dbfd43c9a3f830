//! Derivatives of the gradients of distances, from other ops, so that there are more of them.
//!
//! A pair with distance `d` and cotangent `g` adds `g (q - p) / d` to the query's gradient and takes it from the point's. Of that
//! the vjp is a row per pair, from rows that are looked up, and sums of such rows.

use crate::families::elementwise::{
    div, ge, logical_and, logical_not, masked_fill, mul, ne, number, sub, unary, where_,
};
use crate::families::indexing::{ABSENT, index_select, pick, segment_sum};
use crate::families::reduce::sum;
use crate::families::shape::unsqueeze;
use crate::{Exec, Result, Value};
use shard_kernels::unary::Unary;

/// Queries, points, and pairs of them, each with its distance and that distance's cotangent: lists of one length. A point below 0
/// is none.
pub(super) struct Pairs<'a> {
    pub(super) tables: [&'a Value; 2],
    pub(super) query: Value,
    pub(super) point: Value,
    pub(super) distance: Value,
    pub(super) g: Value,
}

/// What comes of cotangents of the gradients by queries and points.
pub(super) struct Second {
    pub(super) by_tables: [Value; 2],
    pub(super) by_distance: Value,
    pub(super) by_g: Value,
}

impl Pairs<'_> {
    /// The vjp, `None` if no cotangent is wanted or there are no points.
    pub(super) fn second(
        &self,
        op: &'static str,
        exec: &dyn Exec,
        cotangents: &[Option<Value>],
    ) -> Result<Option<Second>> {
        let [queries, points] = self.tables;
        let zero = number(op, &self.distance, 0.0)?;
        let has_point = ge(exec, &self.point, &number(op, &self.point, 0.0)?)?;
        let counts = logical_and(exec, &has_point, &ne(exec, &self.distance, &zero)?)?;
        let missing = logical_not(exec, &has_point)?;
        let named = masked_fill(exec, &self.point, &missing, ABSENT as f64)?;
        let here = |of: &Value| index_select(exec, of, 0, &self.query);
        let there = |of: &Value| pick(exec, of, 0, &named);
        let pulled = match cotangents {
            _ if points.shape()[0] == 0 => return Ok(None),
            [Some(a), Some(b)] => sub(exec, &here(a)?, &there(b)?)?,
            [Some(a), None] => here(a)?,
            [None, Some(b)] => unary(exec, &there(b)?, Unary::Neg)?,
            _ => return Ok(None),
        };
        let apart = sub(exec, &here(queries)?, &there(points)?)?;
        // Where the two coincide, or there is no point, nothing changes anything.
        let one = number(op, &self.distance, 1.0)?;
        let distance = where_(exec, &counts, &self.distance, &one)?;
        let along = div(
            exec,
            &sum(exec, &mul(exec, &apart, &pulled)?, &[1], false)?,
            &distance,
        )?;
        let by_g = where_(exec, &counts, &along, &zero)?;
        let share = where_(exec, &counts, &div(exec, &self.g, &distance)?, &zero)?;
        let step = mul(exec, &unsqueeze(exec, &share, 1)?, &pulled)?;
        let named = masked_fill(exec, &self.point, &missing, 0.0)?;
        let to_points = segment_sum(exec, &step, &named, points.shape()[0])?;
        Ok(Some(Second {
            by_tables: [
                segment_sum(exec, &step, &self.query, queries.shape()[0])?,
                unary(exec, &to_points, Unary::Neg)?,
            ],
            by_distance: unary(exec, &mul(exec, &share, &by_g)?, Unary::Neg)?,
            by_g,
        }))
    }
}
