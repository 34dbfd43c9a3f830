//! All points within a radius of every query.

use super::nearest::{NearestGrad, distance_flops, merge_parts, write_rows};
use super::second::Pairs;
use super::{Clouds, HeldClouds, Sums, accesses, shape_error, tables, with_operands};
use crate::families::index::slice;
use crate::families::shape::squeeze;
use crate::families::types::float_types;
use crate::host::{Held, positions, with_float};
use crate::{
    Access, Cotangents, Exec, FoldBy, Grads, HostCall, Keeps, Meta, Op, Reduction, Result, RowCuts,
    Rule, Saved, Value, key_of,
};
use shard_comm::{DType, Element};
use shard_kernels::Real;
use shard_kernels::neighbors::{Nearest, RadiusRows, RowOrder, WithinRadius};
use shard_spec::ReduceOp;
use smallvec::smallvec;
use std::sync::Arc;

/// Pairs of a query and a point near it.
#[derive(Clone, Debug)]
pub struct RadiusPairs {
    /// Query and point of each pair, `[pairs, 2]`, `i64`, ascending.
    pub pairs: Value,
    /// The distance of each pair, `[pairs]`.
    pub distances: Value,
    /// How many pairs each query has, `[queries]`, `i64`.
    pub counts: Value,
}

/// A bounded number of points near each query.
#[derive(Clone, Debug)]
pub struct RadiusTable {
    /// Distances `[queries, cap]`, ascending; infinite where there is no further point.
    pub distances: Value,
    /// Indices of the points, `[queries, cap]`, `i64`; -1 where there is none.
    pub indices: Value,
    /// How many entries of each row are points, `[queries]`, `i64`.
    pub counts: Value,
}

/// All points `[points, dim]` at most `radius` away from each query `[queries, dim]`, as pairs in the order of (query, point).
///
/// A point is within the radius if its rounded distance is at most the radius. The number of pairs depends on the data. Pairs are
/// divided among ranks as their queries are, which are held in consecutive indices. Only the distances can be
/// differentiated; the distance of a point to itself has gradient zero.
///
/// # Collective
/// All ranks of the program, whether members of the mesh or not: each learns how many pairs there are, in one round of a number
/// per rank. Otherwise bytes are received as for [`nearest`](super::nearest).
///
/// # Errors
/// Shapes or types that do not fit each other; a radius that is negative or not a number; ranks that hold different copies of
/// a query.
///
/// ```
/// use shard_ops::{Engine, EngineOptions, FoldBy, Value, neighbors::radius_search};
/// # use shard_comm::Communicator;
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// let found = shard_comm::local::run(2, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::new(&[2]).unwrap();
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let engine = Engine::new(EngineOptions::default());
///     // Points 0, 1, 2, 3, 4 on a line, the last one on rank 1, and as many queries at the same places.
///     let line = Layout::parse(&mesh, &[5, 1], "S(0)[4,1]").unwrap();
///     let points = Value::new(Array::from_fn(&cx, &line, |i| i[0] as f64).unwrap());
///     let near = radius_search(&*engine, &points, &points, 1.0, FoldBy::Ring).unwrap();
///     (near.pairs.layout().to_string(), near.pairs.array().to_vec::<i64>().unwrap())
/// })
/// .unwrap();
/// // Point 4 has two neighbours, itself among them: its rank holds two of the 13 pairs.
/// assert_eq!(found[1], ("S(0)[11,2]".to_owned(), vec![4, 3, 4, 4]));
/// ```
pub fn radius_search(
    exec: &dyn Exec,
    queries: &Value,
    points: &Value,
    radius: f64,
    ring: FoldBy,
) -> Result<RadiusPairs> {
    pairs(exec, RadiusOp::new(radius, None, ring), &[queries, points])
}

/// As [`radius_search`] among the points of each query's own cloud.
///
/// # Collective
/// As [`radius_search`], with eight bytes more for each point.
///
/// # Errors
/// As [`radius_search`]; clouds of another shape, or not i64 or i32.
pub fn radius_search_by_cloud(
    exec: &dyn Exec,
    queries: &Value,
    points: &Value,
    clouds: Clouds<'_>,
    radius: f64,
    ring: FoldBy,
) -> Result<RadiusPairs> {
    let [own, others] = clouds.numbers(exec, NAME, [queries, points])?;
    let op = RadiusOp::new(radius, None, ring);
    pairs(exec, op, &[queries, points, &own, &others])
}

/// The first `cap` of the points at most `radius` away from each query, nearest first, equal distances by index. Like
/// [`nearest`](super::nearest), but rows may end early.
///
/// # Collective
/// As [`nearest`](super::nearest).
///
/// # Errors
/// Shapes or types that do not fit each other; a radius that is negative or not a number.
pub fn radius_search_capped(
    exec: &dyn Exec,
    queries: &Value,
    points: &Value,
    radius: f64,
    cap: usize,
    ring: FoldBy,
) -> Result<RadiusTable> {
    let op = RadiusOp::new(radius, Some(cap), ring);
    table(exec, op, &[queries, points])
}

/// As [`radius_search_capped`] among the points of each query's own cloud.
///
/// # Collective
/// As [`nearest_by_cloud`](super::nearest_by_cloud).
///
/// # Errors
/// As [`radius_search_by_cloud`].
pub fn radius_search_capped_by_cloud(
    exec: &dyn Exec,
    queries: &Value,
    points: &Value,
    clouds: Clouds<'_>,
    radius: f64,
    cap: usize,
    ring: FoldBy,
) -> Result<RadiusTable> {
    let [own, others] = clouds.numbers(exec, NAME, [queries, points])?;
    let op = RadiusOp::new(radius, Some(cap), ring);
    table(exec, op, &[queries, points, &own, &others])
}

fn pairs(exec: &dyn Exec, op: RadiusOp, operands: &[&Value]) -> Result<RadiusPairs> {
    let [pairs, distances, counts] = exec.apply_n(Arc::new(op), operands)?;
    Ok(RadiusPairs {
        pairs: pairs.detach(),
        distances,
        counts: counts.detach(),
    })
}

fn table(exec: &dyn Exec, op: RadiusOp, operands: &[&Value]) -> Result<RadiusTable> {
    let [distances, indices, counts] = exec.apply_n(Arc::new(op), operands)?;
    Ok(RadiusTable {
        distances,
        indices: indices.detach(),
        counts: counts.detach(),
    })
}

const NAME: &str = "radius_search";

#[derive(Clone, Copy, Debug)]
pub(crate) struct RadiusOp {
    pub(crate) radius: f64,
    /// With a cap the results are a table.
    pub(crate) cap: Option<usize>,
    ring: FoldBy,
}

impl Op for RadiusOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(self.radius.to_bits(), self.cap, self.ring))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (queries, points, dtype) = tables(NAME, inputs)?;
        if self.radius.is_nan() || self.radius < 0.0 {
            return Err(shape_error(
                NAME,
                inputs,
                format!("a radius of {}", self.radius),
                "give a radius of 0 or more",
            ));
        }
        let mut rule = Rule::builder(NAME, inputs).any_order().fold_by(self.ring);
        let read = accesses(&mut rule, queries, points);
        let (each, count) = (read[0][0].clone(), queries.shape[0]);
        let rule = with_operands(rule, inputs, read);
        let rule = match (self.cap, &each) {
            (None, Access::Factor { factor, .. }) => {
                let rows = Access::Rows {
                    factor: *factor,
                    cuts: None,
                };
                rule.output(
                    vec![rows.clone(), Access::WHOLE],
                    smallvec![0, 2],
                    DType::I64,
                )
                .output(vec![rows], smallvec![0], dtype)
            }
            (cap, _) => {
                let (dims, cap) = (vec![each.clone(), Access::WHOLE], cap.unwrap_or(0));
                rule.output(dims.clone(), smallvec![count, cap], dtype)
                    .output(dims, smallvec![count, cap], DType::I64)
            }
        };
        let rule = rule
            .output(vec![each], smallvec![count], DType::I64)
            .flops(distance_flops(points));
        match self.cap {
            Some(_) => rule.merges(),
            None => rule,
        }
        .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.inputs[0].dtype(), T => self.fold::<T>(call));
    }

    fn merge(&self, call: &mut HostCall<'_, '_>) {
        let cap = self.cap.unwrap_or(0);
        with_float!(call.dtype(), T => {
            let merged = merge_parts::<T>(call, cap);
            write_table(call, merged);
        });
    }

    fn write_rows(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.outputs[1].dtype(), T => write_pairs::<T>(call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0, 1]).and_outputs(&[0, 1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [queries, points, clouds @ ..] = saved.inputs else {
            unreachable!("the rule has two inputs or more")
        };
        let [first, second, counts] = saved.outputs else {
            unreachable!("the rule has three outputs")
        };
        let ring = self.ring;
        let g = &cotangents[usize::from(self.cap.is_none())];
        let (Some(g), op) = (g, NearestGrad { ring }) else {
            return Ok(vec![None; saved.inputs.len()]);
        };
        let grads = if self.cap.is_some() {
            exec.apply(Arc::new(op), &[queries, points, first, second, g])?
        } else {
            let cuts = RowCuts::between(PAIRS_GRAD, counts.layout(), second.layout())?;
            let op = PairsGrad {
                ring,
                cuts: Arc::new(cuts),
            };
            exec.apply(Arc::new(op), &[queries, points, first, second, g])?
        };
        let clouds = clouds.iter().map(|_| None);
        Ok(grads.into_iter().map(Some).chain(clouds).collect())
    }
}

/// The hits of one rank's queries.
struct Found<T> {
    rows: RadiusRows<T>,
    /// The global indices of the queries.
    queries: Held,
}

impl RadiusOp {
    fn new(radius: f64, cap: Option<usize>, ring: FoldBy) -> Self {
        Self { radius, cap, ring }
    }

    fn fold<T: Real + Element>(&self, call: &mut HostCall<'_, '_>) {
        let (queries, points) = (call.input::<T>(0), call.input::<T>(1));
        let index = positions(&call.cx.inputs[1], 0);
        let state = call.state.take().map(|s| s.downcast::<WithinRadius<T>>());
        let mut within = match state {
            Some(Ok(state)) => *state,
            _ => WithinRadius::new(queries.shape()[0], T::of(self.radius), self.cap),
        };
        match HeldClouds::of(call) {
            Some(clouds) => {
                within.fold_by_cloud(&queries, &points, index.get(), clouds.get());
            }
            None => within.fold(&queries, &points, index.get()),
        }
        if !call.cx.fold.last {
            *call.state = Some(Box::new(within));
            return;
        }
        if let Some(cap) = self.cap {
            return write_table(call, within.into_nearest(cap));
        }
        let rows = within.finish(RowOrder::Index);
        let ends = rows.offsets.windows(2);
        let mut counts = call.outputs_from::<i64>(2);
        for (count, ends) in counts[0].data_mut().iter_mut().zip(ends) {
            *count = (ends[1] - ends[0]) as i64;
        }
        *call.rows = rows.indexes.len();
        let queries = positions(&call.cx.inputs[0], 0);
        *call.state = Some(Box::new(Found { rows, queries }));
    }
}

/// Writes a table, and how many entries of each row are points.
fn write_table<T: Real + Element>(call: &mut HostCall<'_, '_>, rows: Nearest<T>) {
    let counts = rows.counts();
    let mut to = call.outputs_from::<i64>(2);
    // A table without columns has no rows to count from.
    to[0].data_mut().fill(0);
    for (to, count) in to[0].data_mut().iter_mut().zip(counts) {
        *to = count as i64;
    }
    write_rows(call, rows);
}

fn write_pairs<T: Real + Element>(call: &mut HostCall<'_, '_>) {
    let Some(Ok(found)) = call.state.take().map(|s| s.downcast::<Found<T>>()) else {
        unreachable!("rows are written after they were found")
    };
    let Found { rows, queries } = *found;
    let (mut pairs, mut distances) = call.output_pair::<i64, T>();
    distances.data_mut().copy_from_slice(&rows.distances);
    let mut pairs = pairs.data_mut().chunks_exact_mut(2);
    for (i, ends) in rows.offsets.windows(2).enumerate() {
        let query = queries.get().at(i);
        let points = &rows.indexes[ends[0]..ends[1]];
        // `points` is the first iterator of the zip, so that the loop ends without taking an element from `pairs`.
        for (&point, pair) in points.iter().zip(pairs.by_ref()) {
            pair.copy_from_slice(&[query, point]);
        }
    }
}

const PAIRS_GRAD: &str = "radius_search_grad";

/// The gradient of `|q - p|` by both: inputs are queries, points, pairs, their distances and the cotangent.
#[derive(Clone, Debug)]
pub struct PairsGrad {
    /// How points come to queries.
    pub ring: FoldBy,
    /// How many pairs lie before which query.
    pub cuts: Arc<RowCuts>,
}

impl Op for PairsGrad {
    fn name(&self) -> &'static str {
        PAIRS_GRAD
    }

    fn key(&self) -> u128 {
        key_of(PAIRS_GRAD, &(self.ring, &*self.cuts))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        float_types(PAIRS_GRAD, &inputs[..2])?;
        let (queries, points) = (&inputs[0], &inputs[1]);
        let mut rule = Rule::builder(PAIRS_GRAD, inputs)
            .any_order()
            .fold_by(self.ring);
        let [query, block] = accesses(&mut rule, queries, points);
        let Some(factor) = query[0].factor_index() else {
            unreachable!("queries are a factor")
        };
        let rows = Access::Rows {
            factor,
            cuts: Some(self.cuts.clone()),
        };
        rule.input(query.clone())
            .input(block.clone())
            .input(vec![rows.clone(), Access::WHOLE])
            .input(vec![rows.clone()])
            .input(vec![rows])
            .output(query, queries.shape.clone(), queries.dtype)
            .output(block, points.shape.clone(), points.dtype)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => fold_pairs_grad::<T>(call));
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [queries, points, pairs, distances, g] = saved.inputs else {
            unreachable!("the rule has five inputs")
        };
        let column = |i| squeeze(exec, &slice(exec, pairs, 1, i, 1, 1)?, 1);
        let pairs = Pairs {
            tables: [queries, points],
            query: column(0)?,
            point: column(1)?,
            distance: distances.clone(),
            g: g.clone(),
        };
        let Some(second) = pairs.second(PAIRS_GRAD, exec, cotangents)? else {
            return Ok(vec![None; 5]);
        };
        let [by_queries, by_points] = second.by_tables.map(Some);
        let (by_distance, by_g) = (Some(second.by_distance), Some(second.by_g));
        Ok(vec![by_queries, by_points, None, by_distance, by_g])
    }
}

/// Adds the gradients of the pairs whose point is in this block.
fn fold_pairs_grad<T: Real + Element>(call: &mut HostCall<'_, '_>) {
    let (pairs, distances) = (call.input::<i64>(2), call.input::<T>(3));
    let g = call.input::<T>(4);
    let [queries, points] = [0, 1].map(|i| call.cx.inputs[i].held[0].clone());
    let mut sums = Sums::<T>::take(call);
    for i in 0..distances.shape()[0] {
        let [query, point] = [(0, &queries), (1, &points)].map(|(side, held)| {
            let index = usize::try_from(pairs.get(&[i, side])).ok();
            index.and_then(|index| held.position(index))
        });
        if let (Some(query), Some(point)) = (query, point) {
            sums.add(query, point, distances.get(&[i]), g.get(&[i]));
        }
    }
    sums.leave(call);
}
