//! Farthest point sampling: points far from each other.
//!
//! Each sample costs two small reductions where points are sharded: the largest distance with its index, and the coordinates
//! of the point that has it. Both are rules with a reduced factor; nothing here communicates by itself.

use super::shape_error;
use crate::error::InOp;
use crate::families::shape::permute;
use crate::families::types::float_types;
use crate::host::{positions, with_float};
use crate::{Access, Exec, FoldBy, HostCall, Meta, Op, Reduction, Result, Rule, Value, key_of};
use shard_comm::{Call, DType, Element, Monoid};
use shard_kernels::neighbors::{farthest, lower, unsampled};
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
/// Points that are not a table of f32 or f64; a start that is not a point; more samples than points.
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
    let points = points.detach();
    check(&points, count, start)?;
    let cx = points.array().cx().clone();
    let whole = |shape: &[usize]| Layout::replicated(cx.mesh(), shape);
    let constant = |array| -> Result<Value> { Ok(Value::new(InOp::in_op(array, NAME)?)) };
    let mut taken = constant(Array::from_fn(&cx, &whole(&[count]), |_| -1_i64))?;
    if count == 0 {
        return Ok(taken);
    }
    let points = exec.redistribute(&points, &home(points.layout(), ring)?)?;
    // One dim after the other, as vectorised loops need it.
    let points = permute(exec, &points, &[1, 0])?;
    let mut nearest = exec.apply1(Arc::new(Step::Unsampled), &[&points])?;
    let first = |i: &[usize]| if i[0] == 0 { 0.0 } else { start as f64 };
    let known = cx.record(Call::new(NAME).with(start as u128));
    let best = Array::from_fn(&cx, &whole(&[2]), first);
    let mut best = constant(best.map(|best| best.with_number(known)))?;
    for sample in 1..=count {
        taken = exec.apply1(Arc::new(Step::Take), &[&taken, &best])?;
        if sample < count {
            let at = exec.apply1(Arc::new(Step::Coordinates), &[&points, &best])?;
            nearest = exec.apply1(Arc::new(Step::Lower), &[&points, &nearest, &at, &best])?;
            best = exec.apply1(Arc::new(Step::Best), &[&nearest])?;
        }
    }
    Ok(taken)
}

fn check(points: &Value, count: usize, start: usize) -> Result<()> {
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
    if count > 0 && start >= n {
        return wrong(
            format!("a start at point {start} of {n}"),
            "start at one of the points",
        );
    }
    Ok(())
}

/// The layout of the points while samples are taken.
fn home(points: &Layout, ring: FoldBy) -> Result<Layout> {
    let stays = match ring {
        FoldBy::Ring | FoldBy::Split => true,
        FoldBy::Gather => false,
        FoldBy::Auto | FoldBy::Heads => points.numel() > STAY_ABOVE,
    };
    let mut builder = Layout::builder(points.mesh(), points.shape());
    if let (Some(sharding), true) = (points.sharding(0), stays) {
        builder = builder.shard(0, &sharding.axes, sharding.partition.clone());
    }
    builder.build().in_op(NAME)
}

/// The ops of one sample. Their inputs are given in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The squared distances before the first sample. Input: the points.
    Unsampled,
    /// The coordinates of the best point: zeros on ranks that do not hold it, summed. Inputs: the points and the best.
    Coordinates,
    /// The distances after one more sample. Inputs: the points, the distances, the sample, and the best.
    Lower,
    /// The largest distance and its index, in f64, which holds every index. Input: the distances.
    Best,
    /// The list of samples with the best one appended and the first one dropped. Inputs: the list and the best.
    Take,
}

impl Op for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::Unsampled => "farthest_points_unsampled",
            Self::Coordinates => "farthest_points_coordinates",
            Self::Lower => "farthest_points_lower",
            Self::Best => "farthest_points_best",
            Self::Take => "farthest_points_take",
        }
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (first, whole) = (&inputs[0], Access::WHOLE);
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let [n, dim] = match (self, &first.shape[..]) {
            (Self::Best, &[n]) => [n, 0],
            (Self::Take, &[count]) => [0, count],
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
        let rule = match self {
            Self::Unsampled => rule
                .input(points)
                .output(vec![each], smallvec![n], first.dtype),
            Self::Coordinates => rule
                .input(points)
                .input(vec![whole.clone()])
                .output(vec![whole], smallvec![dim], first.dtype)
                .reduction(Reduction::Now(Monoid::SUM)),
            Self::Lower => rule
                .input(points)
                .input(vec![each.clone()])
                .input(vec![whole.clone()])
                .input(vec![whole])
                .output(vec![each], smallvec![n], first.dtype),
            Self::Best => rule
                .input(vec![each])
                .output(vec![whole], smallvec![2], DType::F64)
                .reduction(Reduction::Now(Monoid::ArgMax)),
            Self::Take => rule
                .input(vec![whole.clone()])
                .input(vec![whole.clone()])
                .output(vec![whole], smallvec![dim], DType::I64),
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
                let index = call.input::<f64>(1).get(&[1]) as usize;
                let at = call.cx.inputs[0].held[1].position(index);
                let coordinate = |d| at.map_or(T::zero(), |at| first.get(&[d, at]));
                for (d, x) in call.output::<T>(0).data_mut().iter_mut().enumerate() {
                    *x = coordinate(d);
                }
            }
            Self::Lower => {
                let (nearest, sample) = (call.input::<T>(1), call.input::<T>(2).to_vec());
                let index = call.input::<f64>(3).get(&[1]) as usize;
                let taken = call.cx.inputs[0].held[1].position(index);
                let mut output = call.output::<T>(0);
                output.data_mut().copy_from_slice(&elements(&nearest));
                lower(&first, &sample, output.data_mut());
                if let Some(at) = taken {
                    output.data_mut()[at] = T::neg_infinity();
                }
            }
            Self::Best | Self::Take => {
                let index = positions(&call.cx.inputs[0], 0);
                let best = match farthest(&elements(&first), index.get()) {
                    Some((distance, index)) => [distance.wide(), index as f64],
                    None => [f64::NEG_INFINITY, f64::INFINITY],
                };
                call.output::<f64>(0).data_mut().copy_from_slice(&best);
            }
        }
    }
}

/// The elements, copied only if they are not contiguous.
fn elements<'a, T: Real>(view: &View<'a, T>) -> Cow<'a, [T]> {
    (view.as_slice()).map_or_else(|| view.to_vec().into(), Cow::Borrowed)
}

fn take(call: &mut HostCall<'_, '_>) {
    let (list, best) = (call.input::<i64>(0).to_vec(), call.input::<f64>(1));
    let last = best.get(&[1]) as i64;
    let samples = list.into_iter().skip(1).chain([last]);
    for (to, index) in call.output::<i64>(0).data_mut().iter_mut().zip(samples) {
        *to = index;
    }
}
