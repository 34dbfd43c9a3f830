//! Neighbour search: the k nearest points of every query, all points within a radius, and points far from each other.
//!
//! Queries are a map factor, and points are a [ring](Access::Ring) factor: where points are sharded, their blocks go round a
//! ring while the block before is searched, or are gathered if that is small. Mesh axes that shard the points and not the
//! queries shard the queries too. Neighbours are ordered by (distance, index) or by index, and distances are computed in one
//! fixed way, so the result is the single device's bit for bit, ties included, under any layout.
//!
//! Points may be of several clouds. A query meets those of its own, and the numbers of the clouds go along with queries and blocks.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod farthest;
mod nearest;
pub(crate) mod radius;
mod second;

pub use farthest::{farthest_points, farthest_points_by_cloud};
pub use nearest::{nearest, nearest_by_cloud};
pub use radius::{
    RadiusPairs, RadiusTable, radius_search, radius_search_by_cloud, radius_search_capped,
    radius_search_capped_by_cloud,
};
#[cfg(feature = "cuda")]
pub(crate) use {
    farthest::Step,
    nearest::{NearestGrad, NearestOp},
    radius::{PairsGrad, RadiusOp},
};

use crate::families::elementwise::cast;
use crate::families::types::float_types;
use crate::{Access, Exec, HostCall, Meta, OpError, Result, RuleBuilder, Value};
use shard_comm::{DType, Element};
use shard_kernels::neighbors::Clouds as Held;
use shard_kernels::{Real, View, ViewMut};
use std::borrow::Cow;

/// Which cloud each query and each point is of: numbers of any kind, `i64` or `i32`, in any order. A query meets the points whose number
/// is its own.
#[derive(Clone, Copy, Debug)]
pub struct Clouds<'a> {
    /// Of the queries, `[queries]`.
    pub queries: &'a Value,
    /// Of the points, `[points]`.
    pub points: &'a Value,
}

impl Clouds<'_> {
    /// The numbers of the clouds of these queries and points, `i64`.
    fn numbers(
        &self,
        exec: &dyn Exec,
        op: &'static str,
        tables: [&Value; 2],
    ) -> Result<[Value; 2]> {
        one_id_each(op, [tables[0], self.queries])?;
        one_id_each(op, [tables[1], self.points])?;
        let number = |of: &Value| cast(exec, &of.detach(), DType::I64);
        Ok([number(self.queries)?, number(self.points)?])
    }
}

/// Refuses ids that are not one whole number for each point.
fn one_id_each(op: &'static str, [points, ids]: [&Value; 2]) -> Result<()> {
    if !matches!(ids.dtype(), DType::I64 | DType::I32) {
        return Err(OpError::dtype(op, 1, "i64 or i32", ids.dtype()));
    }
    match ids.ndim() == 1 && points.shape().first() == ids.shape().first() {
        true => Ok(()),
        false => Err(OpError::Shape {
            op,
            problem: "points need the number of one cloud each".into(),
            shapes: vec![points.shape().to_vec(), ids.shape().to_vec()],
            fix: "give numbers of one dim, as many as points",
        }),
    }
}

/// The clouds that a rank holds of the queries and of a block of points, if there are such operands behind those two.
struct HeldClouds([Vec<i64>; 2]);

impl HeldClouds {
    fn of(call: &HostCall<'_, '_>) -> Option<Self> {
        (call.inputs.len() > 2).then(|| Self([2, 3].map(|i| call.input::<i64>(i).to_vec())))
    }

    fn get(&self) -> Held<'_> {
        let [queries, points] = &self.0;
        Held { queries, points }
    }
}

/// Queries and points, and the type of both. Their clouds may follow.
fn tables<'a>(op: &'static str, inputs: &'a [Meta]) -> Result<(&'a Meta, &'a Meta, DType)> {
    let ([queries, points] | [queries, points, _, _]) = inputs else {
        return Err(OpError::arity(
            op,
            "queries and points, and clouds of both or of none",
            inputs.len(),
        ));
    };
    let dtype = float_types(op, &inputs[..2])?;
    let tables = queries.shape.len() == 2 && points.shape.len() == 2;
    if !tables || queries.shape[1] != points.shape[1] {
        return Err(shape_error(
            op,
            inputs,
            "queries and points are not tables of as many coordinates".into(),
            "give [queries, dim] and [points, dim]",
        ));
    }
    Ok((queries, points, dtype))
}

fn shape_error(op: &'static str, inputs: &[Meta], problem: String, fix: &'static str) -> OpError {
    OpError::Shape {
        op,
        problem,
        shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
        fix,
    }
}

/// How the rows of queries and the blocks of points are indexed.
fn accesses(rule: &mut RuleBuilder, queries: &Meta, points: &Meta) -> [Vec<Access>; 2] {
    let rows = rule.factor(queries.shape[0]);
    let rest = Access::Whole {
        instead: Some(rows),
    };
    let ring = Access::Ring {
        factor: rule.factor(points.shape[0]),
        instead: Some(rows),
    };
    [vec![Access::factor(rows), rest.clone()], vec![ring, rest]]
}

/// A rule of queries and points that are indexed so, and of their clouds if there are four operands.
fn with_operands(
    rule: RuleBuilder,
    inputs: &[Meta],
    [queries, points]: [Vec<Access>; 2],
) -> RuleBuilder {
    let clouds = [&queries, &points].map(|dims| vec![dims[0].clone()]);
    let rule = rule.input(queries).input(points);
    match inputs.len() {
        2 => rule,
        _ => clouds.into_iter().fold(rule, RuleBuilder::input),
    }
}

/// Gradients of distances `|q - p|`, summed block by block: by the queries over all blocks, by the points of this block.
struct Sums<'a, T: Copy> {
    /// Row by row, as the sums below.
    queries: Cow<'a, [T]>,
    points: Cow<'a, [T]>,
    dim: usize,
    by_queries: Vec<T>,
    by_points: Vec<T>,
}

impl<'a, T: Real + Element> Sums<'a, T> {
    /// The sums that the calls before left; queries and points are the first two inputs.
    fn take(call: &mut HostCall<'a, '_>) -> Self {
        let (queries, points) = (call.input::<T>(0), call.input::<T>(1));
        let zeros = |view: &View<'_, T>| vec![T::zero(); view.len()];
        let rows = |view: &View<'a, T>| match view.as_slice() {
            Some(rows) => Cow::Borrowed(rows),
            None => Cow::Owned(view.to_vec()),
        };
        let left = call.state.take().and_then(|s| s.downcast::<Vec<T>>().ok());
        Self {
            by_queries: left.map_or_else(|| zeros(&queries), |sums| *sums),
            by_points: zeros(&points),
            dim: queries.shape()[1],
            queries: rows(&queries),
            points: rows(&points),
        }
    }

    /// Adds a pair with the distance's cotangent `g`: adds `g (q - p) / |q - p|` to the query's gradient and subtracts it from
    /// the point's. Where the two coincide the gradient is taken to be zero.
    fn add(&mut self, query: usize, point: usize, distance: T, g: T) {
        if distance == T::zero() {
            return;
        }
        let scale = g / distance;
        let [query, point] = [query, point].map(|row| row * self.dim..(row + 1) * self.dim);
        let coordinates = self.queries[query.clone()]
            .iter()
            .zip(&self.points[point.clone()]);
        let sums = (self.by_queries[query].iter_mut()).zip(&mut self.by_points[point]);
        for ((&q, &p), (by_query, by_point)) in coordinates.zip(sums) {
            let step = scale * (q - p);
            *by_query += step;
            *by_point -= step;
        }
    }

    /// Writes the gradients, which are the two outputs, or leaves them to the next call.
    fn leave(self, call: &mut HostCall<'_, '_>) {
        write(&mut call.outputs_from::<T>(1)[0], &self.by_points);
        if call.cx.fold.last {
            write(&mut call.output::<T>(0), &self.by_queries);
        } else {
            *call.state = Some(Box::new(self.by_queries));
        }
    }
}

fn write<T: Copy>(view: &mut ViewMut<'_, T>, values: &[T]) {
    view.data_mut()[..values.len()].copy_from_slice(values);
}
