//! How many elements lie in each of some intervals.

use super::decided;
use super::elementwise::{
    add, cast, div, ge, le, logical_and, maximum, minimum, mul_scalar, number, sub, sub_scalar,
    where_,
};
use super::full::sums;
use super::fused::Fused;
use super::index::slice;
use super::indexing::{ABSENT, bincount_of_some, bincount_within};
use super::reduce::{amax, amin, sum};
use super::search::bucketize;
use super::shape::reshape;
use crate::error::InOp;
use crate::{Exec, OpError, Result, Value};
use shard_comm::{Call, DType};
use shard_redistribute::Array;
use shard_spec::{Layout, numel};
use std::sync::{Arc, LazyLock};

/// The intervals that elements are counted in.
#[derive(Clone, Copy, Debug)]
pub enum Bins<'a> {
    /// So many of equal width, from the least element to the largest, or from end to end.
    Count(usize, Option<(f64, f64)>),
    /// Between ascending edges, `[bins + 1]`, of the elements' type.
    Edges(&'a Value),
}

/// How many elements of `x` lie in each of the bins, or the sums of their `weights`, in the type of `x`; and the edges of the bins. A bin
/// has its lower edge, and the last both; elements outside of all, and NaN, are not counted. With `density` the integral over all
/// bins is 1.
///
/// # Collective
/// All members of the mesh, as [`segment_sum`](super::indexing::segment_sum); where the ends are not given, all ranks of the program, and
/// two reductions of a number.
///
/// # Errors
/// Elements that are no floats; weights of another shape or type; no bins; ends that are not finite or not ascending, given or found.
pub fn histogram(
    exec: &dyn Exec,
    x: &Value,
    bins: Bins<'_>,
    weights: Option<&Value>,
    density: bool,
) -> Result<(Value, Value)> {
    const OP: &str = "histogram";
    check(OP, x, x.shape(), weights)?;
    let coordinate = Coordinate::of(exec, OP, &widened(exec, x)?, bins)?;
    let (counts, mut edges) = over_bins(exec, OP, x, &[coordinate], weights, density)?;
    Ok((counts, edges.remove(0)))
}

/// How many of the points `x`, `[.., coordinates]`, lie in each of the boxes that the bins of their coordinates make, `[bins, ..]`, or the
/// sums of their `weights`, `[..]`; and the edges of the bins of each coordinate. See [`histogram`].
///
/// # Collective
/// As [`histogram`], with two reductions for each coordinate whose ends are not given.
///
/// # Errors
/// As [`histogram`]; not as many bins as coordinates.
pub fn histogramdd(
    exec: &dyn Exec,
    x: &Value,
    bins: &[Bins<'_>],
    weights: Option<&Value>,
    density: bool,
) -> Result<(Value, Vec<Value>)> {
    const OP: &str = "histogramdd";
    let Some((&coordinates, points)) = x.shape().split_last() else {
        return Err(no_coordinates(x, bins.len()));
    };
    if coordinates != bins.len() || bins.is_empty() {
        return Err(no_coordinates(x, bins.len()));
    }
    check(OP, x, points, weights)?;
    let of = |(k, &bins): (usize, &Bins<'_>)| {
        let along = slice(exec, &x.detach(), points.len(), k, 1, 1)?;
        Coordinate::of(exec, OP, &widened(exec, &along)?, bins)
    };
    let all = bins.iter().enumerate().map(of);
    let all = all.collect::<Result<Vec<_>>>()?;
    over_bins(exec, OP, x, &all, weights, density)
}

/// One number of each point, and the bins it is counted in.
struct Coordinate {
    edges: Value,
    /// The bin of each point, if the point is inside.
    bin: Value,
    inside: Value,
}

impl Coordinate {
    fn of(exec: &dyn Exec, op: &'static str, x: &Value, bins: Bins<'_>) -> Result<Self> {
        let edges = match bins {
            Bins::Edges(edges) if edges.ndim() == 1 && edges.shape()[0] > 1 => {
                widened(exec, &edges.detach())?
            }
            Bins::Edges(edges) => return Err(no_bins(op, edges)),
            Bins::Count(0, _) => return Err(no_bins(op, x)),
            Bins::Count(usize::MAX, _) => return Err(too_many(op, x)),
            Bins::Count(count, range) => {
                let ends = match range {
                    Some(ends) => ends,
                    None => extremes(exec, op, x)?,
                };
                even_edges(exec, x, count, spread(op, x, ends, 0.5)?)?
            }
        };
        let last = edges.shape()[0] - 1;
        // Of those below no edge there is no bin; the last edge is of the last bin.
        let above = bucketize(exec, x, &edges, true)?;
        let within = |from: usize| slice(exec, &edges, 0, from, 1, 1);
        let inside = inside(exec, x, &within(0)?, &within(last)?)?;
        let bin = clamped(exec, op, &sub_scalar(exec, &above, 1.0)?, last)?;
        Ok(Self { edges, bin, inside })
    }

    fn bins(&self) -> usize {
        self.edges.shape()[0] - 1
    }

    /// The widths of the bins, along one of so many dims.
    fn widths(&self, exec: &dyn Exec, dim: usize, dims: usize) -> Result<Value> {
        let bins = self.bins();
        let widths = sub(
            exec,
            &slice(exec, &self.edges, 0, 1, 1, bins)?,
            &slice(exec, &self.edges, 0, 0, 1, bins)?,
        )?;
        let mut shape = vec![1; dims];
        shape[dim] = bins;
        reshape(exec, &widths, &shape)
    }
}

/// What the boxes hold that bins of all coordinates make, and the edges, in the type of `x`.
fn over_bins(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    coordinates: &[Coordinate],
    weights: Option<&Value>,
    density: bool,
) -> Result<(Value, Vec<Value>)> {
    let shape: Vec<usize> = coordinates.iter().map(Coordinate::bins).collect();
    let boxes = shape
        .iter()
        .try_fold(1, |all: usize, &n| all.checked_mul(n));
    let boxes = boxes.ok_or_else(|| too_many(op, x))?;
    // Boxes are numbered in row-major order.
    let (mut number, mut inside) = (coordinates[0].bin.clone(), coordinates[0].inside.clone());
    for next in &coordinates[1..] {
        number = add(
            exec,
            &mul_scalar(exec, &number, next.bins() as f64)?,
            &next.bin,
        )?;
        inside = logical_and(exec, &inside, &next.inside)?;
    }
    let sums = counted(exec, op, &number, &inside, weights, boxes)?;
    let mut sums = cast(exec, &sums, coordinates[0].edges.dtype())?;
    if shape.len() > 1 {
        sums = reshape(exec, &sums, &shape)?;
    }
    if density {
        let all: Vec<usize> = (0..shape.len()).collect();
        sums = div(exec, &sums, &sum(exec, &sums, &all, true)?)?;
        for (dim, coordinate) in coordinates.iter().enumerate() {
            sums = div(exec, &sums, &coordinate.widths(exec, dim, shape.len())?)?;
        }
    }
    let back = |v: &Value| match v.dtype() == x.dtype() {
        true => Ok(v.clone()),
        false => cast(exec, v, x.dtype()),
    };
    let edges = coordinates.iter().map(|c| back(&c.edges));
    Ok((back(&sums)?, edges.collect::<Result<_>>()?))
}

fn no_coordinates(x: &Value, bins: usize) -> OpError {
    OpError::Shape {
        op: "histogramdd",
        problem: format!("bins of {bins} coordinates"),
        shapes: vec![x.shape().to_vec()],
        fix: "give bins for each coordinate, which the last dim counts",
    }
}

/// How many elements of `x` lie in each of `bins` intervals of equal width between two ends, in the type of `x`: PyTorch's older
/// [`histogram`], which finds bins by division. Ends that are equal stand for the least and the largest element.
///
/// # Collective
/// As [`histogram`].
///
/// # Errors
/// As [`histogram`].
pub fn histc(exec: &dyn Exec, x: &Value, bins: usize, ends: (f64, f64)) -> Result<Value> {
    const OP: &str = "histc";
    check(OP, x, x.shape(), None)?;
    if bins == 0 {
        return Err(no_bins(OP, x));
    }
    let mut wide = widened(exec, x)?;
    if bins > EXACT {
        wide = cast(exec, &wide, DType::F64)?;
    }
    let ends = match ends.0 == ends.1 && numel(x.shape()) > 0 {
        true => extremes(exec, OP, &wide)?,
        false => ends,
    };
    let (low, high) = spread(OP, x, ends, 1.0)?;
    let of = |value: f64| number(OP, &wide, value);
    let operands = [
        &wide,
        &of(low)?,
        &of(high)?,
        &of(bins as f64)?,
        &of((bins - 1) as f64)?,
    ];
    let bin = cast(exec, &BIN.apply1(exec, &operands)?, DType::I64)?;
    cast(exec, &bincount_of_some(exec, &bin, bins)?, x.dtype())
}

/// Bins that `f32` can number.
const EXACT: usize = 1 << 24;

/// The bin of a number, but for its fraction: of those from `low` to `high`, of which the last has both its edges. Others, and NaN, have none.
static BIN: LazyLock<Arc<Fused>> = LazyLock::new(|| {
    Fused::new("histc", |[x, low, high, bins, last]| {
        let none = ABSENT as f64;
        let bin = (x - low) * bins / (high - low);
        let bin = high.below(x, none, bin.below(last, bin, last));
        [x.below(f64::INFINITY, x.below(low, none, bin), none)]
    })
});

/// Refuses what cannot be counted: one weight, if there are any, is for each of these.
fn check(op: &'static str, x: &Value, counted: &[usize], weights: Option<&Value>) -> Result<()> {
    let refuse = |operand: usize, expected: String, got: DType| {
        Err(OpError::dtype(op, operand, expected, got))
    };
    match weights {
        _ if !x.dtype().is_float() => refuse(0, "a float".into(), x.dtype()),
        Some(weights) if weights.dtype() != x.dtype() => {
            refuse(1, x.dtype().to_string(), weights.dtype())
        }
        Some(weights) if weights.shape() != counted => Err(OpError::Shape {
            op,
            problem: "weights are not as many".into(),
            shapes: vec![x.shape().to_vec(), weights.shape().to_vec()],
            fix: "give a weight for each that is counted",
        }),
        _ => Ok(()),
    }
}

fn no_bins(op: &'static str, x: &Value) -> OpError {
    OpError::Shape {
        op,
        problem: "there are no bins".into(),
        shapes: vec![x.shape().to_vec()],
        fix: "give a number of bins of 1 or more, or a list of two edges or more",
    }
}

fn too_many(op: &'static str, x: &Value) -> OpError {
    OpError::Shape {
        op,
        problem: "there are more bins than can be counted".into(),
        shapes: vec![x.shape().to_vec()],
        fix: "give fewer",
    }
}

/// The elements as a list, 16-bit floats as `f32`, after sums over ranks.
fn widened(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let [x] = sums(exec, [&x.detach()])?;
    let list = match x.ndim() {
        1 => x.clone(),
        _ => reshape(exec, &x, &[numel(x.shape())])?,
    };
    match x.dtype() {
        DType::F16 | DType::BF16 => cast(exec, &list, DType::F32),
        _ => Ok(list),
    }
}

/// The least element and the largest, on all ranks; 0 if there are none.
fn extremes(exec: &dyn Exec, op: &'static str, x: &Value) -> Result<(f64, f64)> {
    // The edges of nothing are PyTorch's and NumPy's.
    if numel(x.shape()) == 0 {
        return Ok((0.0, 1.0));
    }
    let told = |end: Value| decided::told::<f64>(exec, op, &cast(exec, &end, DType::F64)?);
    Ok((
        told(amin(exec, x, &[0], false)?)?,
        told(amax(exec, x, &[0], false)?)?,
    ))
}

/// Ends that are apart, by so much on either side where they were not.
fn spread(op: &'static str, x: &Value, (low, high): (f64, f64), by: f64) -> Result<(f64, f64)> {
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return Err(OpError::Shape {
            op,
            problem: format!("bins from {low} to {high}"),
            shapes: vec![x.shape().to_vec()],
            fix: "give finite ends of the bins in ascending order, where elements are not finite",
        });
    }
    match low == high {
        true => Ok((low - by, high + by)),
        false => Ok((low, high)),
    }
}

/// The edges of bins of equal width, counted from the nearer end, in the type of `like`.
fn even_edges(
    exec: &dyn Exec,
    like: &Value,
    bins: usize,
    (low, high): (f64, f64),
) -> Result<Value> {
    let cx = like.array().cx();
    let layout = Layout::replicated(cx.mesh(), &[bins + 1]);
    let step = (high - low) / bins as f64;
    let edges = Array::from_fn(cx, &layout, |i| match i[0] < bins.div_ceil(2) {
        true => low + i[0] as f64 * step,
        false => high - (bins - i[0]) as f64 * step,
    });
    let ends = Call::new("histogram").with(low.to_bits().into());
    let ends = ends.with(high.to_bits().into());
    let known = cx.record(ends.constant().of(DType::F64, &layout));
    let edges = Value::new(edges.in_op("histogram")?.with_number(known));
    match like.dtype() {
        DType::F64 => Ok(edges),
        dtype => cast(exec, &edges, dtype),
    }
}

/// Where elements lie between two others, or on them; nowhere for NaN.
fn inside(exec: &dyn Exec, x: &Value, low: &Value, high: &Value) -> Result<Value> {
    logical_and(exec, &ge(exec, x, low)?, &le(exec, x, high)?)
}

/// How many elements, or what sum of weights, each bin has of those inside.
fn counted(
    exec: &dyn Exec,
    op: &'static str,
    bin: &Value,
    inside: &Value,
    weights: Option<&Value>,
    bins: usize,
) -> Result<Value> {
    let terms = match weights {
        None => cast(exec, inside, DType::I64)?,
        Some(weights) => {
            let weights = widened(exec, weights)?;
            where_(exec, inside, &weights, &number(op, &weights, 0.0)?)?
        }
    };
    bincount_within(exec, bin, Some(&terms), bins)
}

/// Numbers of bins, the nearest where there are none.
fn clamped(exec: &dyn Exec, op: &'static str, bin: &Value, bins: usize) -> Result<Value> {
    let last = number(op, bin, (bins - 1) as f64)?;
    maximum(exec, &minimum(exec, bin, &last)?, &number(op, bin, 0.0)?)
}
