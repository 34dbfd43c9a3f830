//! The k nearest points of every query.

use super::second::Pairs;
use super::{Clouds, HeldClouds, Sums, accesses, shape_error, tables, with_operands};
use crate::error::InOp;
use crate::families::shape::reshape;
use crate::families::types::float_types;
use crate::host::{positions, with_float};
use crate::{
    Access, Cotangents, Exec, FoldBy, Grads, HostCall, Keeps, Meta, Op, Reduction, Result, Rule,
    Saved, Value, key_of,
};
use shard_comm::{DType, Element};
use shard_kernels::Real;
use shard_kernels::neighbors::Nearest;
use shard_redistribute::Array;
use shard_spec::ReduceOp;
use smallvec::smallvec;
use std::sync::Arc;

/// The `k` points `[points, dim]` nearest to every query `[queries, dim]`: their Euclidean distances `[queries, k]`, ascending,
/// and their indices, `i64`. Among equal distances the lower index comes first, and NaN is the largest. Only the distances can be differentiated, to
/// any order; the distance of a point to itself has gradient zero.
///
/// # Collective
/// All members of the mesh. If points are sharded, each rank receives all points but its own, in as many rounds as there are
/// blocks (a ring) or in one (gathered). With a split it receives the other ranks' queries, and what each other rank found
/// among its own points for this rank's queries: this is for few queries and many points. A ring needs memory for two more
/// blocks. See [`FoldBy`].
///
/// # Errors
/// Shapes or types that do not fit each other; a `k` above the number of points.
///
/// ```
/// use shard_ops::{Engine, EngineOptions, FoldBy, Value, neighbors::nearest};
/// # use shard_comm::Communicator;
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// let found = shard_comm::local::run(2, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::new(&[2]).unwrap();
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let engine = Engine::new(EngineOptions::default());
///     // Points 0, 1, 2, 3, 4 on a line, the last one on rank 1; queries replicated.
///     let line = Layout::parse(&mesh, &[5, 1], "S(0)[4,1]").unwrap();
///     let points = Value::new(Array::from_fn(&cx, &line, |i| i[0] as f64).unwrap());
///     let all = Layout::replicated(&mesh, &[2, 1]);
///     let queries = Value::new(Array::from_fn(&cx, &all, |i| 3.5 * i[0] as f64).unwrap());
///     let (distances, indices) = nearest(&*engine, &queries, &points, 2, FoldBy::Ring).unwrap();
///     (distances.array().to_vec::<f64>().unwrap(), indices.array().to_vec::<i64>().unwrap())
/// })
/// .unwrap();
/// // Each rank searched for one of the queries; 3 and 4 are equally far from 3.5.
/// assert_eq!(found, [(vec![0.0, 1.0], vec![0, 1]), (vec![0.5, 0.5], vec![3, 4])]);
/// ```
pub fn nearest(
    exec: &dyn Exec,
    queries: &Value,
    points: &Value,
    k: usize,
    ring: FoldBy,
) -> Result<(Value, Value)> {
    found(exec, NearestOp { k, ring }, &[queries, points])
}

/// As [`nearest`] among the points of each query's own cloud. Where that has fewer than `k`, the row ends with infinite distances and
/// indices of -1.
///
/// # Collective
/// As [`nearest`]: blocks of points go round, or are gathered, whatever clouds they are of, with eight bytes more for each point, because
/// which points a rank needs is known only from the clouds of all of them, and those take nearly as much as points of few dims. Each
/// query is compared with its own cloud alone.
///
/// # Errors
/// Shapes or types that do not fit each other, but for the `k`, which may be any.
pub fn nearest_by_cloud(
    exec: &dyn Exec,
    queries: &Value,
    points: &Value,
    clouds: Clouds<'_>,
    k: usize,
    ring: FoldBy,
) -> Result<(Value, Value)> {
    let [own, others] = clouds.numbers(exec, NAME, [queries, points])?;
    found(
        exec,
        NearestOp { k, ring },
        &[queries, points, &own, &others],
    )
}

fn found(exec: &dyn Exec, op: NearestOp, operands: &[&Value]) -> Result<(Value, Value)> {
    let [distances, indices] = exec.apply_n(Arc::new(op), operands)?;
    Ok((distances, indices.detach()))
}

const NAME: &str = "nearest";

#[derive(Clone, Copy, Debug)]
pub(crate) struct NearestOp {
    pub(crate) k: usize,
    ring: FoldBy,
}

impl Op for NearestOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(self.k, self.ring))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (queries, points, dtype) = tables(NAME, inputs)?;
        if self.k > points.shape[0] && inputs.len() == 2 {
            return Err(shape_error(
                NAME,
                inputs,
                format!("{} neighbours of {} points", self.k, points.shape[0]),
                "ask for at most as many neighbours as there are points",
            ));
        }
        let mut rule = Rule::builder(NAME, inputs).any_order().fold_by(self.ring);
        let read = accesses(&mut rule, queries, points);
        let shape = smallvec![queries.shape[0], self.k];
        let found = vec![read[0][0].clone(), Access::WHOLE];
        with_operands(rule, inputs, read)
            .output(found.clone(), shape, dtype)
            .output(found, smallvec![queries.shape[0], self.k], DType::I64)
            .flops(distance_flops(points))
            .merges()
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => self.fold::<T>(call));
    }

    fn merge(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let merged = merge_parts::<T>(call, self.k);
            let (mut distances, mut indices) = call.output_pair::<T, i64>();
            merged.finish(distances.data_mut(), indices.data_mut());
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0, 1]).and_outputs(&[0, 1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let Some(g) = &cotangents[0] else {
            return Ok(vec![None; saved.inputs.len()]);
        };
        let op = Arc::new(NearestGrad { ring: self.ring });
        let [queries, points, clouds @ ..] = saved.inputs else {
            unreachable!("the rule has two inputs or more")
        };
        let [distances, indices] = saved.outputs else {
            unreachable!("the rule has two outputs")
        };
        let grads = exec.apply(op, &[queries, points, distances, indices, g])?;
        let clouds = clouds.iter().map(|_| None);
        Ok(grads.into_iter().map(Some).chain(clouds).collect())
    }
}

impl NearestOp {
    fn fold<T: Real + Element>(&self, call: &mut HostCall<'_, '_>) {
        let (queries, points) = (call.input::<T>(0), call.input::<T>(1));
        let index = positions(&call.cx.inputs[1], 0);
        let state = call.state.take().map(|s| s.downcast::<Nearest<T>>());
        let mut nearest = match state {
            Some(Ok(state)) => *state,
            _ => Nearest::new(queries.shape()[0], self.k),
        };
        match HeldClouds::of(call) {
            Some(clouds) => {
                nearest.fold_by_cloud(&queries, &points, index.get(), clouds.get());
            }
            None => nearest.fold(&queries, &points, index.get()),
        }
        if call.cx.fold.last {
            write_rows(call, nearest);
        } else {
            *call.state = Some(Box::new(nearest));
        }
    }
}

/// Floating-point operations per query and point.
pub(super) fn distance_flops(points: &Meta) -> f64 {
    3.0 * points.shape[1].max(1) as f64
}

/// Writes rows to the first two outputs: distances and indices or, for a part of the points, values that merge without rounding.
pub(super) fn write_rows<T: Real + Element>(call: &mut HostCall<'_, '_>, rows: Nearest<T>) {
    let is_part = call.cx.is_part;
    let (mut distances, mut indices) = call.output_pair::<T, i64>();
    if is_part {
        let (squared, indexes) = rows.into_parts();
        super::write(&mut distances, &squared);
        super::write(&mut indices, &indexes);
    } else {
        rows.finish(distances.data_mut(), indices.data_mut());
    }
}

/// Merges the rows of parts of the points, which are the first two inputs, into those of all.
pub(super) fn merge_parts<T: Real + Element>(call: &HostCall<'_, '_>, k: usize) -> Nearest<T> {
    let (squared, indexes) = (call.input::<T>(0), call.input::<i64>(1));
    let queries = squared.shape()[1];
    let mut merged = Nearest::new(queries, k);
    for part in 0..squared.shape()[0] {
        let at = part * queries * k..(part + 1) * queries * k;
        let (squared, indexes) = (&squared.data()[at.clone()], &indexes.data()[at]);
        merged.merge(&Nearest::from_parts(k, squared.to_vec(), indexes.to_vec()));
    }
    merged
}

/// The gradient of `|q - p|` by both: inputs are queries, points, distances, indices and the cotangent. Indices below 0 stand for
/// no point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearestGrad {
    pub(super) ring: FoldBy,
}

impl Op for NearestGrad {
    fn name(&self) -> &'static str {
        "nearest_grad"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.ring)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        float_types(self.name(), &inputs[..2])?;
        let (queries, points) = (&inputs[0], &inputs[1]);
        let mut rule = Rule::builder(self.name(), inputs)
            .any_order()
            .fold_by(self.ring);
        let [rows, blocks] = accesses(&mut rule, queries, points);
        let found = vec![rows[0].clone(), Access::WHOLE];
        rule.input(rows.clone())
            .input(blocks.clone())
            .input(found.clone())
            .input(found.clone())
            .input(found)
            .output(rows, queries.shape.clone(), queries.dtype)
            .output(blocks, points.shape.clone(), points.dtype)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            // Of all pairs of a query and a point only the neighbours are visited.
            .flops(0.0)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => fold_grad::<T>(call));
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [queries, points, distances, indices, g] = saved.inputs else {
            unreachable!("the rule has five inputs")
        };
        let (shape, all) = (distances.shape(), [distances.layout().numel()]);
        let list = |of: &Value| reshape(exec, of, &all);
        let point = list(indices)?;
        let k = shape[1].max(1);
        let query = Array::from_fn(point.array().cx(), point.layout(), |i| (i[0] / k) as i64);
        let pairs = Pairs {
            tables: [queries, points],
            query: Value::new(query.in_op(self.name())?),
            point,
            distance: list(distances)?,
            g: list(g)?,
        };
        let Some(second) = pairs.second(self.name(), exec, cotangents)? else {
            return Ok(vec![None; 5]);
        };
        let table = |of: &Value| Ok(Some(reshape(exec, of, shape)?));
        let (by_distance, by_g) = (table(&second.by_distance)?, table(&second.by_g)?);
        let [by_queries, by_points] = second.by_tables.map(Some);
        Ok(vec![by_queries, by_points, by_distance, None, by_g])
    }
}

/// Adds `g (q - p) / |q - p|` to the queries' gradient and subtracts it from the points', for neighbours in this block.
fn fold_grad<T: Real + Element>(call: &mut HostCall<'_, '_>) {
    let (distances, indices) = (call.input::<T>(2), call.input::<i64>(3));
    let g = call.input::<T>(4);
    let held = call.cx.inputs[1].held[0].clone();
    let mut sums = Sums::<T>::take(call);
    for i in 0..distances.shape()[0] {
        for j in 0..distances.shape()[1] {
            let index = usize::try_from(indices.get(&[i, j])).ok();
            if let Some(p) = index.and_then(|index| held.position(index)) {
                sums.add(i, p, distances.get(&[i, j]), g.get(&[i, j]));
            }
        }
    }
    sums.leave(call);
}
