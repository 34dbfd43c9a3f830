//! Sorting along a dim, whole or the first few.
//!
//! A sharded dim is sorted part by part where the parts are. Then each rank merges its stretch of the result: by few elements of every
//! part the ranks find where the stretches cut the parts, and each reads the pieces that its own is made of
//! ([`Routes::merging`](crate::Routes::merging)). Of the first few, only those of every part are kept.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod merge;
mod mode;

use self::merge::MergeRuns;
pub use self::mode::mode;
use super::full::sums;
use super::index;
use super::indexing::{gather, ungather, with_foldable};
use super::shape::{extent, squeeze};
use crate::elementwise::{ne, where_};
use crate::error::InOp;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Meta, Op, OpError, Result, RouteBy, Rule,
    RuleBuilder, Saved, Value, key_of,
};
use shard_comm::{DType, Element};
use shard_kernels::search::Sortable;
use shard_kernels::sort::Sorter;
use shard_redistribute::Array;
use shard_spec::{Dims, Layout};
use std::ops::Range;
use std::sync::Arc;

/// The elements of dim `dim` in ascending order, or in descending, and the indices they had, `i64`. Equal elements keep their order.
/// NaN stands behind all numbers, which descending is first.
///
/// Results lie as `x` does.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, the part of the result that a rank holds, with its indices, less what it had of
/// that itself; and some hundred numbers from each rank for every line that is sorted. Lines too short for that are gathered.
///
/// # Errors
/// A dim out of range; 16-bit floats and truth values.
pub fn sort(exec: &dyn Exec, x: &Value, dim: usize, descending: bool) -> Result<(Value, Value)> {
    sort_by(exec, x, dim, descending, RouteBy::Auto)
}

/// [`sort`], saying whether each rank asks for what its part of the result is made of, or gathers all.
///
/// # Collective
/// As [`sort`].
///
/// # Errors
/// As [`sort`].
pub fn sort_by(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    descending: bool,
    by: RouteBy,
) -> Result<(Value, Value)> {
    let n = extent(NAME, x, dim)?;
    let (values, indices) = stretch(exec, x, dim, descending, 0..n, by)?;
    let to = x.layout().with_partial_reduced();
    let values = exec.redistribute(&values, &to)?;
    let indices = exec.redistribute(&indices, &to)?.detach();
    match x.slot() {
        // On a tape, values are those of `x` at the indices, which has a derivative.
        Some(_) => {
            let values = exec.apply1(Arc::new(Reordered { dim }), &[&values, x, &indices])?;
            Ok((values, indices))
        }
        None => Ok((values, indices)),
    }
}

/// The indices that [`sort`] gives.
///
/// # Collective
/// As [`sort`].
///
/// # Errors
/// As [`sort`].
pub fn argsort(exec: &dyn Exec, x: &Value, dim: usize, descending: bool) -> Result<Value> {
    sort(exec, &x.detach(), dim, descending).map(|(_, indices)| indices)
}

/// The `k` largest elements of dim `dim`, largest first, or the smallest, smallest first, and their indices, `i64`. Of equal elements the
/// first come first; NaN is larger than all numbers.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, the part of the result that a rank holds or, where it is short, the first `k` of
/// every part; with their indices.
///
/// # Errors
/// As [`sort`]; more elements than there are.
pub fn topk(
    exec: &dyn Exec,
    x: &Value,
    k: usize,
    dim: usize,
    largest: bool,
) -> Result<(Value, Value)> {
    topk_as("topk", exec, x, k, dim, largest)
}

fn topk_as(
    op: &'static str,
    exec: &dyn Exec,
    x: &Value,
    k: usize,
    dim: usize,
    largest: bool,
) -> Result<(Value, Value)> {
    check_count(op, x, dim, k)?;
    let [x] = &sums(exec, [x])?;
    found(
        exec,
        x,
        dim,
        stretch(exec, x, dim, largest, 0..k, RouteBy::Auto)?,
    )
}

/// Elements along a dim and their indices: on a tape those of `x`, which lie as they do without.
fn found(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    (values, indices): (Value, Value),
) -> Result<(Value, Value)> {
    let indices = indices.detach();
    match x.slot() {
        Some(_) => {
            let gathered = gather(exec, x, dim, &indices)?;
            Ok((exec.redistribute(&gathered, values.layout())?, indices))
        }
        None => Ok((values, indices)),
    }
}

fn check_count(op: &'static str, x: &Value, dim: usize, k: usize) -> Result<()> {
    let n = extent(op, x, dim)?;
    if k <= n {
        return Ok(());
    }
    Err(OpError::Shape {
        op,
        problem: format!("{k} of {n} elements"),
        shapes: vec![x.shape().to_vec()],
        fix: "ask for no more than there are",
    })
}

/// The `k`-th smallest element of dim `dim`, counted from 1, and its index, without the dim. See [`topk`].
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, some hundred numbers from each rank for every line, and that element.
///
/// # Errors
/// As [`topk`]; a `k` of 0.
pub fn kthvalue(exec: &dyn Exec, x: &Value, k: usize, dim: usize) -> Result<(Value, Value)> {
    if k == 0 {
        return Err(OpError::Shape {
            op: "kthvalue",
            problem: "the element before the first".into(),
            shapes: vec![x.shape().to_vec()],
            fix: "count from 1",
        });
    }
    check_count("kthvalue", x, dim, k)?;
    let [x] = &sums(exec, [x])?;
    let kth = stretch(exec, x, dim, false, k - 1..k, RouteBy::Auto)?;
    let (value, index) = found(exec, x, dim, kth)?;
    Ok((
        squeeze(exec, &value, dim)?,
        squeeze(exec, &index, dim)?.detach(),
    ))
}

/// The middle element of dim `dim`, of an even number the lower of the two in the middle, and its index, without the dim; the first NaN if
/// there is one.
///
/// # Collective
/// As [`kthvalue`].
///
/// # Errors
/// As [`sort`]; a dim without elements.
pub fn median(exec: &dyn Exec, x: &Value, dim: usize) -> Result<(Value, Value)> {
    let n = extent("median", x, dim)?;
    if n == 0 {
        return Err(OpError::Shape {
            op: "median",
            problem: "there is no middle of nothing".into(),
            shapes: vec![x.shape().to_vec()],
            fix: "give a dim with elements",
        });
    }
    let [x] = &sums(exec, [x])?;
    let untracked = x.detach();
    let half = n.div_ceil(2);
    let (_, middle) = stretch(exec, &untracked, dim, false, half - 1..half, RouteBy::Auto)?;
    // NaN is larger than all numbers, and of several the first comes first.
    let (largest, first) = topk_as("median", exec, &untracked, 1, dim, true)?;
    let is_nan = ne(exec, &largest, &largest)?;
    let place = where_(exec, &is_nan, &first, &middle)?.detach();
    let value = gather(exec, x, dim, &place)?;
    Ok((
        squeeze(exec, &value, dim)?,
        squeeze(exec, &place, dim)?.detach(),
    ))
}

/// A stretch of what [`sort`] gives, of an array that no tape follows. Parts are cut and read, or gathered, as `by` says.
fn stretch(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    descending: bool,
    wanted: Range<usize>,
    by: RouteBy,
) -> Result<(Value, Value)> {
    let x = in_intervals(exec, &x.detach(), dim)?;
    let n = x.shape()[dim];
    let ends: Vec<usize> = match x.layout().sharding(dim) {
        Some(s) if s.partition.parts() > 1 => {
            s.partition.offsets().unwrap_or(&[0, n])[1..].to_vec()
        }
        _ => vec![n],
    };
    let runs = SortRuns {
        dim,
        ends,
        descending,
        first: wanted.end,
    };
    let kept = runs.kept();
    let [values, indices] = exec.apply_n(Arc::new(runs), &[&x])?;
    if let [len] = kept[..] {
        if wanted == (0..len) {
            return Ok((values, indices));
        }
        let part = |v: &Value| index::slice(exec, v, dim, wanted.start, 1, wanted.len());
        return Ok((part(&values)?, part(&indices)?));
    }
    let merge = MergeRuns {
        dim,
        ends: kept,
        descending,
        from: wanted.start,
        by,
    };
    let to = like(&values, dim, wanted.len())?;
    let [values, indices] = exec.apply_n(Arc::new(merge), &[&to, &values, &indices])?;
    Ok((values, indices))
}

/// The array with parts of a dim that are no intervals made ones.
fn in_intervals(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Value> {
    let segments = (x.layout().sharding(dim)).is_some_and(|s| !s.partition.is_contiguous());
    if !segments {
        return Ok(x.clone());
    }
    let dims = (x.layout().shardings().iter().enumerate()).map(|(d, s)| {
        let mut s = s.clone()?;
        if d == dim {
            s.partition = s.partition.to_contiguous().into();
        }
        Some(s)
    });
    let to = Layout::from_dims(x.layout().mesh(), x.shape(), dims, None).in_op(NAME)?;
    let reduced = exec.aligned((NAME, 0), x, &x.layout().with_partial_reduced())?;
    exec.aligned((NAME, 0), &reduced, &to)
}

/// An array without data that lies as `x` does, with `len` indices of a dim.
fn like(x: &Value, dim: usize, len: usize) -> Result<Value> {
    if x.shape()[dim] == len {
        return Ok(x.detach());
    }
    let mut shape: Dims = x.shape().iter().copied().collect();
    shape[dim] = len;
    let dims = (x.layout().shardings().iter().enumerate()).map(|(d, s)| {
        let mut s = s.clone()?;
        if d == dim {
            s.partition = s.partition.scaled(len);
        }
        Some(s)
    });
    let layout = Layout::from_dims(x.layout().mesh(), &shape, dims, None).in_op(NAME)?;
    let array = Array::from_parts(x.array().cx(), &layout, None, x.dtype()).in_op(NAME)?;
    Ok(array.into())
}

const NAME: &str = "sort";

/// Sorts the stretches of a dim that end at these places, each by itself: outputs are the first elements of each and the indices they
/// had.
#[derive(Clone, Debug)]
pub(crate) struct SortRuns {
    pub(crate) dim: usize,
    pub(crate) ends: Vec<usize>,
    pub(crate) descending: bool,
    /// How many elements of each run are kept, if it has as many.
    pub(crate) first: usize,
}

fn check(op: &'static str, operand: usize, inputs: &[Meta]) -> Result<()> {
    let numbers = [DType::F64, DType::F32, DType::I64, DType::I32, DType::U8];
    let got = inputs[operand].dtype;
    match numbers.contains(&got) {
        true => Ok(()),
        false => Err(OpError::dtype(op, operand, "f64, f32, i64, i32 or u8", got)),
    }
}

/// A factor for each dim.
fn factors(rule: &mut RuleBuilder, shape: &Dims) -> Vec<usize> {
    shape.iter().map(|&n| rule.factor(n)).collect()
}

impl Op for SortRuns {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(self.dim, &self.ends, self.descending, self.first))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        check(NAME, 0, inputs)?;
        let shape = inputs[0].shape.clone();
        let mut rule = Rule::builder(NAME, inputs);
        let of = factors(&mut rule, &shape);
        // A run is one rank's: the dim can be divided at the ends of runs alone, as rows that belong to runs can.
        let runs = rule.factor(self.ends.len());
        let numbers: Vec<usize> = (0..=self.ends.len()).collect();
        let dims = |ends: &[usize]| -> Vec<Access> {
            let places: Vec<usize> = std::iter::once(0).chain(ends.iter().copied()).collect();
            let cuts = crate::RowCuts::new(&numbers, &places).map(Arc::new);
            let access = |d: usize| match d == self.dim {
                true => Access::Rows {
                    factor: runs,
                    cuts: cuts.clone(),
                },
                false => Access::factor(of[d]),
            };
            (0..shape.len()).map(access).collect()
        };
        let kept = self.kept();
        let (from, to) = (dims(&self.ends), dims(&kept));
        let mut shape = shape.clone();
        shape[self.dim] = kept.last().copied().unwrap_or(0);
        rule.input(from)
            .output(to.clone(), shape.clone(), inputs[0].dtype)
            .output(to, shape, DType::I64)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_foldable!(call.dtype(), T => sort_box::<T>(self, call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}

impl SortRuns {
    /// Where what is kept of each run ends.
    pub(crate) fn kept(&self) -> Vec<usize> {
        let lens = self.ends.iter().scan(0, |from, &end| {
            let len = end - *from;
            *from = end;
            Some(len)
        });
        let ends = lens.scan(0, |to, len| {
            *to += len.min(self.first);
            Some(*to)
        });
        ends.collect()
    }

    /// The runs that lie within a stretch of the dim, as stretches of it.
    pub(crate) fn within(&self, start: usize, len: usize) -> Vec<Range<usize>> {
        let starts = std::iter::once(&0).chain(&self.ends);
        let runs = starts.zip(&self.ends).map(|(&from, &to)| from..to);
        let within = runs.filter(|run| run.start >= start && run.end <= start + len);
        let within = within.map(|run| run.start - start..run.end - start);
        within.filter(|run| !run.is_empty()).collect()
    }
}

/// Lines of a box along a dim: how many before and after, and the steps between elements.
pub(crate) fn lines(shape: &[usize], dim: usize) -> (usize, usize, usize) {
    let (before, after) = (&shape[..dim], &shape[dim + 1..]);
    (before.iter().product(), shape[dim], after.iter().product())
}

fn sort_box<T: Sortable + Element>(op: &SortRuns, call: &mut HostCall<'_, '_>) {
    let (at, to) = (&call.cx.inputs[0], &call.cx.outputs[0]);
    let (before, n, after) = lines(&at.shape, op.dim);
    let kept = to.shape[op.dim];
    let (start, x) = (at.start[op.dim], call.input::<T>(0));
    let runs = op.within(start, n);
    let (mut values, mut indices) = call.output_pair::<T, i64>();
    let (values, indices) = (values.data_mut(), indices.data_mut());
    let mut sorter = Sorter::default();
    let (mut line, mut sorted) = (Vec::new(), (Vec::new(), Vec::new()));
    for row in 0..before {
        for column in 0..after {
            let (from, to) = (row * n * after + column, row * kept * after + column);
            let mut done = 0;
            for run in &runs {
                let (begin, room) = ((start + run.start) as i64, run.len().min(op.first));
                if after == 1 {
                    let place = to + done..to + done + room;
                    let run = &x.data()[from + run.start..from + run.end];
                    let (v, i) = (&mut values[place.clone()], &mut indices[place]);
                    sorter.sort(run, begin, op.descending, v, i);
                } else {
                    line.clear();
                    line.extend(run.clone().map(|i| x.data()[from + i * after]));
                    sorted.0.resize(room, T::default());
                    sorted.1.resize(room, 0);
                    sorter.sort(&line, begin, op.descending, &mut sorted.0, &mut sorted.1);
                    let places = (0..room).map(|i| to + (done + i) * after);
                    for (place, (&v, &i)) in places.zip(sorted.0.iter().zip(&sorted.1)) {
                        (values[place], indices[place]) = (v, i);
                    }
                }
                done += room;
            }
        }
    }
}

/// Elements along a dim in another order, which has been found: inputs are the elements in that order, the array they are of, and their
/// indices. It is there for its derivative.
#[derive(Clone, Copy, Debug)]
struct Reordered {
    dim: usize,
}

const REORDERED: &str = "reordered";

impl Op for Reordered {
    fn name(&self) -> &'static str {
        REORDERED
    }

    fn key(&self) -> u128 {
        key_of(REORDERED, &self.dim)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let shape = inputs[0].shape.clone();
        let mut rule = Rule::builder(REORDERED, inputs).any_order();
        let dims: Vec<Access> = (factors(&mut rule, &shape).into_iter())
            .map(Access::factor)
            .collect();
        rule.input(dims.clone())
            .input(dims.clone())
            .input(dims.clone())
            .unread(1)
            .unread(2)
            .output(dims, shape, inputs[0].dtype)
            .relabels()
            .build()
    }

    fn host(&self, _: &mut HostCall<'_, '_>) {}

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[2])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [_, x, indices] = saved.inputs else {
            unreachable!("the rule has three inputs")
        };
        saved.pull_back(cotangents, |dy, operand| match operand {
            1 => ungather(exec, x, self.dim, indices, dy).map(Some),
            _ => Ok(None),
        })
    }
}
