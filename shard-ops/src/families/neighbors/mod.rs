//! Neighbour search: the k nearest points of every query, all points within a radius, and points far from each other.
//!
//! Queries are a map factor, and points are a [ring](Access::Ring) factor: where points are sharded, their blocks go round a
//! ring while the block before is searched, or are gathered if that is small. Mesh axes that shard the points and not the
//! queries shard the queries too. Neighbours are ordered by (distance, index) or by index, and distances are computed in one
//! fixed way, so the result is the single device's bit for bit, ties included, under any layout.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod farthest;
mod nearest;
pub(crate) mod radius;

pub use farthest::farthest_points;
pub use nearest::nearest;
pub use radius::{RadiusPairs, RadiusTable, radius_search, radius_search_capped};
#[cfg(feature = "cuda")]
pub(crate) use {
    farthest::Step,
    nearest::{NearestGrad, NearestOp},
    radius::{PairsGrad, RadiusOp},
};

use crate::families::types::float_types;
use crate::{Access, HostCall, Meta, OpError, Result, RuleBuilder};
use shard_comm::{DType, Element};
use shard_kernels::{Real, View, ViewMut};
use std::borrow::Cow;

/// Queries and points, and the type of both.
fn tables<'a>(op: &'static str, inputs: &'a [Meta]) -> Result<(&'a Meta, &'a Meta, DType)> {
    let [queries, points] = inputs else {
        return Err(OpError::Arity {
            op,
            expected: "queries and points".into(),
            got: inputs.len(),
        });
    };
    let dtype = float_types(op, inputs)?;
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
