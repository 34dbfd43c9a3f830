//! Farthest point sampling: points far from each other.
//!
//! Each sample costs two small reductions where points are sharded: the largest distance with its index, and the coordinates
//! of the point that has it. Both are rules with a reduced factor; nothing here communicates by itself.

use super::{one_id_each, shape_error};
use crate::error::InOp;
use crate::families::elementwise::cast;
use crate::families::indexing::resolve::Resolve;
use crate::families::shape::{permute, reshape};
use crate::families::types::float_types;
use crate::host::{positions, with_float};
use crate::{
    Access, Exec, FoldBy, HostCall, Meta, Op, Reduction, Result, Rule, RuleBuilder, Value, key_of,
};
use shard_comm::{Call, DType, Element, Monoid};
use shard_kernels::neighbors::{farthest, farthest_by_cloud, lower, lower_by_cloud, unsampled};
use shard_kernels::{Real, View};
use shard_redistribute::Array;
use shard_spec::Layout;
use smallvec::smallvec;
use std::borrow::Cow;
use std::sync::Arc;

/// Points with more coordinates than this stay where they are by default.
const STAY_ABOVE: usize = 1 << 16;

const NAME: &str = "farthest_points";

/// The indices, `[count]` and `i64`, of `count` of the points `[points, dim]`: first `start`, then repeatedly the point that is
/// farthest from all taken so far; among equally far points, the one with the lowest index. No point is taken twice. Points
/// with a coordinate that is not finite come last, by index.
///
/// With [`Ring`](FoldBy::Ring) and [`Split`](FoldBy::Split), sharded points stay where they are; with
/// [`Gather`](FoldBy::Gather) they are gathered. Otherwise up to 65,536 coordinates are gathered, because going through so many
/// takes no longer than the two reductions. The result is replicated, and the same in each case, bit for bit. It has no
/// derivative.
///
/// # Collective
/// All members of the mesh. If the points are gathered, they are received once; otherwise each sample takes two reductions, of 2
/// and of `dim` numbers.
///
/// # Errors
/// Points that are not a table of floats; a start that is not a point; more samples than points.
///
/// ```
/// use shard_ops::{Engine, EngineOptions, FoldBy, Value, neighbors::farthest_points};
/// # use shard_comm::Communicator;
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// let found = shard_comm::local::run(2, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::new(&[2]).unwrap();
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let engine = Engine::new(EngineOptions::default());
///     let line = Layout::parse(&mesh, &[5, 1], "S(0)[4,1]").unwrap();
///     let points = Value::new(Array::from_fn(&cx, &line, |i| i[0] as f64).unwrap());
///     let far = farthest_points(&*engine, &points, 4, 0, FoldBy::Ring).unwrap();
///     far.array().to_vec::<i64>().unwrap()
/// })
/// .unwrap();
/// // Points 1 and 3 are equally far from 0, 2 and 4.
/// assert_eq!(found, [[0, 4, 2, 1], [0, 4, 2, 1]]);
/// ```
pub fn farthest_points(
    exec: &dyn Exec,
    points: &Value,
    count: usize,
    start: usize,
    ring: FoldBy,
) -> Result<Value> {
    let points = &single(exec, points)?;
    check(points, count, Some(start))?;
    let cx = points.array().cx();
    let first = |i: &[usize]| if i[1] == 0 { 0.0 } else { start as f64 };
    let known = cx.record(Call::new(NAME).with(start as u128).constant());
    let best = Array::from_fn(cx, &Layout::replicated(cx.mesh(), &[1, 2]), first);
    let best = Value::new(best.map(|best| best.with_number(known)).in_op(NAME)?);
    let taken = sampled(exec, points, None, 1, Some(best), count, ring)?;
    reshape(exec, &taken, &[count])
}

/// As [`farthest_points`] in each of so many clouds by itself, `[clouds, count]`: point `i` is of cloud `ids[i]`. Ids need not be
/// sorted, and negative ones count from the end. Each cloud begins with its first point that is finite. Where a cloud has fewer points than `count`, its
/// samples end with -1. Consecutive points of one cloud are looked at together, which takes the least time.
///
/// # Collective
/// As [`farthest_points`]: each sample of all clouds takes two reductions, of 2 and of `dim` numbers for each cloud. Ids go where their
/// points are.
///
/// # Errors
/// Points that are not a table of floats; ids of another shape, or not i64 or i32; more samples than points; on all ranks, an id out
/// of range on any.
pub fn farthest_points_by_cloud(
    exec: &dyn Exec,
    points: &Value,
    ids: &Value,
    clouds: usize,
    count: usize,
    ring: FoldBy,
) -> Result<Value> {
    let points = &single(exec, points)?;
    check(points, count, None)?;
    one_id_each(NAME, [points, ids])?;
    let ids = Resolve::apply(exec, NAME, ids, clouds)?;
    sampled(exec, points, Some(ids), clouds, None, count, ring)
}

/// The samples of clouds, `[clouds, count]`, beginning with these or with the first points.
fn sampled(
    exec: &dyn Exec,
    points: &Value,
    ids: Option<Value>,
    clouds: usize,
    first: Option<Value>,
    count: usize,
    ring: FoldBy,
) -> Result<Value> {
    let cx = points.array().cx().clone();
    let none = Layout::replicated(cx.mesh(), &[clouds, count]);
    let none = Array::from_fn(&cx, &none, |_| -1_i64);
    let mut taken = Value::new(none.in_op(NAME)?);
    if count == 0 || clouds == 0 {
        return Ok(taken);
    }
    let points = exec.aligned((NAME, 0), points, &points.layout().with_partial_reduced())?;
    let points = exec.redistribute(&points, &home(points.layout(), points.layout(), ring)?)?;
    let ids = match ids {
        Some(ids) => {
            Some(exec.redistribute(&ids, &home(points.layout(), ids.layout(), FoldBy::Ring)?)?)
        }
        None => None,
    };
    let with_ids = |operands: &[&Value], step| {
        let operands: Vec<&Value> = operands.iter().copied().chain(&ids).collect();
        exec.apply1(Arc::new(step), &operands)
    };
    // One dim after the other, as vectorised loops need it.
    let points = permute(exec, &points, &[1, 0])?;
    let mut nearest = exec.apply1(Arc::new(Step::Unsampled), &[&points])?;
    let mut best = match first {
        Some(first) => first,
        None => with_ids(&[&nearest], Step::Best { clouds })?,
    };
    for sample in 1..=count {
        taken = exec.apply1(Arc::new(Step::Take), &[&taken, &best])?;
        if sample < count {
            let at = exec.apply1(Arc::new(Step::Coordinates), &[&points, &best])?;
            nearest = with_ids(&[&points, &nearest, &at, &best], Step::Lower)?;
            best = with_ids(&[&nearest], Step::Best { clouds })?;
        }
    }
    Ok(taken)
}

/// The points as constants, those of 16 bits as `f32`: what is found are indices, and distances are rounded nowhere.
fn single(exec: &dyn Exec, points: &Value) -> Result<Value> {
    match points.dtype().is_half() {
        true => cast(exec, &points.detach(), DType::F32),
        false => Ok(points.detach()),
    }
}

fn check(points: &Value, count: usize, start: Option<usize>) -> Result<()> {
    let meta = [Meta {
        shape: points.shape().iter().copied().collect(),
        dtype: points.dtype(),
    }];
    float_types(NAME, &meta)?;
    let wrong = |problem, fix| Err(shape_error(NAME, &meta, problem, fix));
    let &[n, _] = points.shape() else {
        return wrong("points are no table".into(), "give [points, dim]");
    };
    if count > n {
        return wrong(
            format!("{count} samples of {n} points"),
            "ask for at most as many samples as there are points",
        );
    }
    match start.filter(|&start| count > 0 && start >= n) {
        Some(start) => wrong(
            format!("a start at point {start} of {n}"),
            "start at one of the points",
        ),
        None => Ok(()),
    }
}

/// The layout of the points while samples are taken, and of what is `of` them.
fn home(points: &Layout, of: &Layout, ring: FoldBy) -> Result<Layout> {
    let stays = match ring {
        FoldBy::Ring | FoldBy::Split => true,
        FoldBy::Gather => false,
        FoldBy::Auto | FoldBy::Heads => points.numel() > STAY_ABOVE,
    };
    let mut builder = Layout::builder(points.mesh(), of.shape());
    if let (Some(sharding), true) = (points.sharding(0), stays) {
        builder = builder.shard(0, &sharding.axes, sharding.partition.clone());
    }
    builder.build().in_op(NAME)
}

/// The ops of one sample of each cloud. Their inputs are given in order; `Lower` and `Best` may have one more, the points' clouds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The squared distances before the first sample. Input: the points.
    Unsampled,
    /// The coordinates of the best points: zeros on ranks that do not hold them, summed. Inputs: the points and the best.
    Coordinates,
    /// The distances after one more sample. Inputs: the points, the distances, the samples, and the best.
    Lower,
    /// The largest distance in each cloud and its index, `[clouds, 2]`, in f64, which holds every index. Input: the distances.
    Best { clouds: usize },
    /// The lists of samples with the best ones appended and the first ones dropped; -1 where a cloud has no further point. Inputs: the
    /// lists and the best.
    Take,
}

impl Op for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::Unsampled => "farthest_points_unsampled",
            Self::Coordinates => "farthest_points_coordinates",
            Self::Lower => "farthest_points_lower",
            Self::Best { .. } => "farthest_points_best",
            Self::Take => "farthest_points_take",
        }
    }

    fn key(&self) -> u128 {
        key_of(self.name(), self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (first, whole) = (&inputs[0], Access::WHOLE);
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        // How many points there are of how many coordinates, or samples of how many clouds.
        let [n, dim] = match (self, &first.shape[..]) {
            (Self::Best { .. }, &[n]) => [n, 0],
            (Self::Take, &[clouds, count]) => [clouds, count],
            (_, &[dim, n]) => [n, dim],
            _ => {
                let problem = "operands of other ranks".into();
                return Err(shape_error(
                    self.name(),
                    inputs,
                    problem,
                    "use farthest_points",
                ));
            }
        };
        let each = Access::factor(rule.factor(n));
        let points = vec![whole.clone(), each.clone()];
        let table = vec![whole.clone(), whole];
        let rule = match *self {
            Self::Unsampled => rule
                .input(points)
                .output(vec![each], smallvec![n], first.dtype),
            Self::Coordinates => rule
                .input(points)
                .input(table.clone())
                .output(table, smallvec![inputs[1].shape[0], dim], first.dtype)
                .reduction(Reduction::Now(Monoid::SUM)),
            Self::Lower => with_clouds(
                rule.input(points)
                    .input(vec![each.clone()])
                    .input(table.clone())
                    .input(table),
                inputs.len() > 4,
                &each,
            )
            .output(vec![each], smallvec![n], first.dtype),
            Self::Best { clouds } => {
                with_clouds(rule.input(vec![each.clone()]), inputs.len() > 1, &each)
                    .output(table, smallvec![clouds, 2], DType::F64)
                    .reduction(Reduction::Now(Monoid::ArgMax))
            }
            Self::Take => rule.input(table.clone()).input(table.clone()).output(
                table,
                smallvec![n, dim],
                DType::I64,
            ),
        };
        rule.build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        if *self == Self::Take {
            take(call);
        } else {
            with_float!(call.inputs[0].dtype(), T => self.compute::<T>(call));
        }
    }
}

impl Step {
    fn compute<T: Real + Element>(self, call: &mut HostCall<'_, '_>) {
        let first = call.input::<T>(0);
        match self {
            Self::Unsampled => {
                let nearest = unsampled(&first);
                call.output::<T>(0).data_mut().copy_from_slice(&nearest);
            }
            Self::Coordinates => {
                let (best, held) = (call.input::<f64>(1), &call.cx.inputs[0].held[1]);
                let at: Vec<_> = (0..best.shape()[0])
                    .map(|cloud| held.position(best.get(&[cloud, 1]) as usize))
                    .collect();
                let mut output = call.output::<T>(0);
                let rows = output.data_mut().chunks_exact_mut(first.shape()[0].max(1));
                for (row, at) in rows.zip(at) {
                    for (d, x) in row.iter_mut().enumerate() {
                        *x = at.map_or(T::zero(), |at| first.get(&[d, at]));
                    }
                }
            }
            Self::Lower => {
                let (nearest, samples) = (call.input::<T>(1), call.input::<T>(2).to_vec());
                let (best, ids) = (call.input::<f64>(3), ids(call, 4));
                let taken: Vec<_> = (0..best.shape()[0])
                    .map(|cloud| best.get(&[cloud, 1]) as usize)
                    .filter_map(|index| call.cx.inputs[0].held[1].position(index))
                    .collect();
                let mut output = call.output::<T>(0);
                let output = output.data_mut();
                output.copy_from_slice(&elements(&nearest));
                match ids {
                    Some(ids) => lower_by_cloud(&first, &samples, &ids, output),
                    None => lower(&first, &samples, output),
                }
                for at in taken {
                    output[at] = T::neg_infinity();
                }
            }
            Self::Best { clouds } => {
                let (index, ids) = (positions(&call.cx.inputs[0], 0), ids(call, 1));
                let (index, distances) = (index.get(), elements(&first));
                let best = match ids {
                    Some(ids) => farthest_by_cloud(&distances, index, &ids, clouds),
                    None => vec![farthest(&distances, index)],
                };
                let mut output = call.output::<f64>(0);
                let pairs = output.data_mut().chunks_exact_mut(2);
                for (pair, best) in pairs.zip(best) {
                    let wide = |(distance, index): (T, i64)| [distance.wide(), index as f64];
                    pair.copy_from_slice(&best.map_or([f64::NEG_INFINITY, f64::INFINITY], wide));
                }
            }
            Self::Take => unreachable!("lists of samples have no type to choose"),
        }
    }
}

/// The rule's next operand, if there is one: the points' clouds.
fn with_clouds(rule: RuleBuilder, has: bool, each: &Access) -> RuleBuilder {
    match has {
        true => rule.input(vec![each.clone()]),
        false => rule,
    }
}

/// The points' clouds, if they are operand `i`.
fn ids(call: &HostCall<'_, '_>, i: usize) -> Option<Vec<i64>> {
    (call.inputs.len() > i).then(|| call.input::<i64>(i).to_vec())
}

/// The elements, copied only if they are not contiguous.
fn elements<'a, T: Real>(view: &View<'a, T>) -> Cow<'a, [T]> {
    (view.as_slice()).map_or_else(|| view.to_vec().into(), Cow::Borrowed)
}

fn take(call: &mut HostCall<'_, '_>) {
    let (lists, best) = (call.input::<i64>(0), call.input::<f64>(1));
    let [clouds, count] = [0, 1].map(|d| lists.shape()[d]);
    let mut output = call.output::<i64>(0);
    let rows = output.data_mut().chunks_exact_mut(count.max(1));
    for (cloud, row) in (0..clouds).zip(rows) {
        for (i, to) in row.iter_mut().enumerate() {
            *to = match i + 1 < count {
                true => lists.get(&[cloud, i + 1]),
                false if best.get(&[cloud, 0]) == f64::NEG_INFINITY => -1,
                false => best.get(&[cloud, 1]) as i64,
            };
        }
    }
}
