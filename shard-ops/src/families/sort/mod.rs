//! Sorting along a dim, whole or the first few.
//!
//! A sharded dim is sorted part by part where the parts are, and each rank merges a stretch of the result from all parts: its share of the
//! work, though it sees all of a line. Of the first few, only those of every part are looked at.

#[cfg(feature = "cuda")]
mod cuda;

use super::index;
use super::indexing::{gather, with_foldable};
use super::shape::{extent, squeeze};
use crate::error::InOp;
use crate::host::positions;
use crate::{
    Access, Exec, HostCall, Keeps, Meta, Op, OpError, Result, Rule, RuleBuilder, Saved, Value,
    key_of,
};
use shard_comm::{DType, Element};
use shard_kernels::search::Sortable;
use shard_kernels::sort::{Runs, sort as sort_entries};
use shard_spec::{Dims, Layout};
use std::sync::Arc;

/// The elements of dim `dim` in ascending order, or in descending, and the indices they had, `i64`. Equal elements keep their order.
/// NaN stands behind all numbers, which descending is first.
///
/// Results lie as `x` does.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, the sorted parts of all ranks, with their indices.
///
/// # Errors
/// A dim out of range; 16-bit floats and truth values.
pub fn sort(exec: &dyn Exec, x: &Value, dim: usize, descending: bool) -> Result<(Value, Value)> {
    extent(NAME, x, dim)?;
    let (values, indices, ends) = runs(exec, x, dim, descending)?;
    let (values, indices) = merge(exec, values, indices, dim, ends, descending)?;
    let to = x.layout().with_partial_reduced();
    let indices = exec.redistribute(&indices, &to)?.detach();
    match x.slot() {
        // On a tape, values are those of `x` at the indices, which has a derivative.
        Some(_) => Ok((gather(exec, x, dim, &indices)?, indices)),
        None => Ok((exec.redistribute(&values, &to)?, indices)),
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
/// All members of the mesh. Where the dim is sharded, the first `k` of every part, with their indices.
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
    let n = extent("topk", x, dim)?;
    if k > n {
        return Err(OpError::Shape {
            op: "topk",
            problem: format!("{k} of {n} elements"),
            shapes: vec![x.shape().to_vec()],
            fix: "ask for no more than there are",
        });
    }
    let (values, indices, ends) = runs(exec, x, dim, largest)?;
    // The first few of every run, side by side.
    let mut cuts: Vec<(usize, usize)> = Vec::new();
    let mut from = 0;
    for end in ends {
        cuts.push((from, k.min(end - from)));
        from = end;
    }
    let heads = |v: &Value| -> Result<Value> {
        let parts = cuts.iter().filter(|c| c.1 > 0);
        let parts = parts.map(|&(from, len)| index::slice(exec, v, dim, from, 1, len));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        match parts.is_empty() {
            true => index::slice(exec, v, dim, 0, 1, 0),
            false => index::cat(exec, &parts.iter().collect::<Vec<_>>(), dim),
        }
    };
    let (values, indices) = match cuts.len() {
        1 => (values, indices),
        _ => {
            let ends = cuts.iter().scan(0, |end, c| {
                *end += c.1;
                Some(*end)
            });
            merge(
                exec,
                heads(&values)?,
                heads(&indices)?,
                dim,
                ends.collect(),
                largest,
            )?
        }
    };
    let first = |v: &Value| index::slice(exec, v, dim, 0, 1, k);
    let indices = first(&indices)?.detach();
    match x.slot() {
        Some(_) => Ok((gather(exec, x, dim, &indices)?, indices)),
        None => Ok((first(&values)?, indices)),
    }
}

/// The `k`-th smallest element of dim `dim`, counted from 1, and its index, without the dim. See [`topk`].
///
/// # Collective
/// As [`topk`].
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
    let (values, indices) = topk(exec, x, k, dim, false)?;
    let last = |v: &Value| squeeze(exec, &index::slice(exec, v, dim, k - 1, 1, 1)?, dim);
    Ok((last(&values)?, last(&indices)?.detach()))
}

const NAME: &str = "sort";
const MERGE: &str = "merge_runs";

/// Every part of a line sorted by itself, the indices, and where the parts end.
fn runs(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    descending: bool,
) -> Result<(Value, Value, Vec<usize>)> {
    let n = x.shape()[dim];
    // Parts that are no intervals are first made ones.
    let mut x = x.detach();
    if let Some(s) = x.layout().sharding(dim)
        && !s.partition.is_contiguous()
    {
        let dims = (x.layout().shardings().iter().enumerate()).map(|(d, s)| {
            let mut s = s.clone()?;
            if d == dim {
                s.partition = s.partition.to_contiguous().into();
            }
            Some(s)
        });
        let to = Layout::from_dims(x.layout().mesh(), x.shape(), dims, None).in_op(NAME)?;
        x = exec.redistribute(
            &exec.redistribute(&x, &x.layout().with_partial_reduced())?,
            &to,
        )?;
    }
    let ends: Vec<usize> = match x.layout().sharding(dim) {
        Some(s) if s.partition.parts() > 1 => {
            s.partition.offsets().unwrap_or(&[0, n])[1..].to_vec()
        }
        _ => vec![n],
    };
    let op = SortRuns {
        dim,
        ends: ends.clone(),
        descending,
    };
    let made = exec.apply(Arc::new(op), &[&x])?;
    let [values, indices] = pair(NAME, made)?;
    Ok((values, indices, ends))
}

fn merge(
    exec: &dyn Exec,
    values: Value,
    indices: Value,
    dim: usize,
    ends: Vec<usize>,
    descending: bool,
) -> Result<(Value, Value)> {
    if ends.len() == 1 {
        return Ok((values, indices));
    }
    let op = MergeRuns(SortRuns {
        dim,
        ends,
        descending,
    });
    let [values, indices] = pair(MERGE, exec.apply(Arc::new(op), &[&values, &indices])?)?;
    Ok((values, indices))
}

fn pair(op: &'static str, made: Vec<Value>) -> Result<[Value; 2]> {
    made.try_into().map_err(|made: Vec<_>| OpError::Arity {
        op,
        expected: "two outputs".into(),
        got: made.len(),
    })
}

/// Sorts the stretches of a dim that end at these places, each by itself: outputs are the elements and the indices they had.
#[derive(Clone, Debug)]
pub(crate) struct SortRuns {
    pub(crate) dim: usize,
    pub(crate) ends: Vec<usize>,
    pub(crate) descending: bool,
}

/// Merges sorted stretches: inputs and outputs are elements and indices.
#[derive(Clone, Debug)]
pub(crate) struct MergeRuns(pub(crate) SortRuns);

fn check(op: &'static str, inputs: &[Meta]) -> Result<()> {
    let numbers = [DType::F64, DType::F32, DType::I64, DType::I32, DType::U8];
    match numbers.contains(&inputs[0].dtype) {
        true => Ok(()),
        false => Err(OpError::DType {
            op,
            operand: 0,
            expected: "f64, f32, i64, i32 or u8".into(),
            got: inputs[0].dtype,
        }),
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
        key_of(NAME, &(self.dim, &self.ends, self.descending))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        check(NAME, inputs)?;
        let shape = inputs[0].shape.clone();
        let mut rule = Rule::builder(NAME, inputs);
        let of = factors(&mut rule, &shape);
        // A run is one rank's: the dim can be divided at the ends of runs alone, as rows that belong to runs can.
        let runs = rule.factor(self.ends.len());
        let numbers: Vec<usize> = (0..=self.ends.len()).collect();
        let places: Vec<usize> = std::iter::once(0)
            .chain(self.ends.iter().copied())
            .collect();
        let cuts = crate::RowCuts::new(&numbers, &places).map(Arc::new);
        let access = |d: usize| match d == self.dim {
            true => Access::Rows {
                factor: runs,
                cuts: cuts.clone(),
            },
            false => Access::factor(of[d]),
        };
        let dims: Vec<Access> = (0..shape.len()).map(access).collect();
        rule.input(dims.clone())
            .output(dims.clone(), shape.clone(), inputs[0].dtype)
            .output(dims, shape, DType::I64)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_foldable!(call.dtype(), T => sort_box::<T>(self, call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &[Option<Value>]) -> Result<Vec<Option<Value>>> {
        Ok(vec![None])
    }
}

impl SortRuns {
    /// The ends of the runs that lie within a stretch of the dim, from its start on.
    pub(crate) fn ends_within(&self, start: usize, len: usize) -> Vec<usize> {
        let within = self.ends.iter().filter(|&&e| e > start && e <= start + len);
        within.map(|e| e - start).collect()
    }
}

/// Lines of a box along a dim: how many before and after, and the steps between elements.
pub(crate) fn lines(shape: &[usize], dim: usize) -> (usize, usize, usize) {
    let (before, after) = (&shape[..dim], &shape[dim + 1..]);
    (before.iter().product(), shape[dim], after.iter().product())
}

fn sort_box<T: Sortable + Element>(op: &SortRuns, call: &mut HostCall<'_, '_>) {
    let at = &call.cx.inputs[0];
    let (before, n, after) = lines(&at.shape, op.dim);
    let (start, x) = (at.start[op.dim], call.input::<T>(0));
    let ends = op.ends_within(start, n);
    let (mut values, mut indices) = call.output_pair::<T, i64>();
    let mut entries = Vec::with_capacity(n);
    for line in 0..before * after {
        let first = line / after.max(1) * n * after + line % after.max(1);
        let place = |i: usize| first + i * after;
        entries.clear();
        entries.extend((0..n).map(|i| (x.data()[place(i)], (start + i) as i64)));
        let mut from = 0;
        for &end in &ends {
            sort_entries(&mut entries[from..end], op.descending);
            from = end;
        }
        for (i, &(value, index)) in entries.iter().enumerate() {
            values.data_mut()[place(i)] = value;
            indices.data_mut()[place(i)] = index;
        }
    }
}

impl Op for MergeRuns {
    fn name(&self) -> &'static str {
        MERGE
    }

    fn key(&self) -> u128 {
        key_of(MERGE, &(self.0.dim, &self.0.ends, self.0.descending))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        check(MERGE, inputs)?;
        let shape = inputs[0].shape.clone();
        let mut rule = Rule::builder(MERGE, inputs);
        let of = factors(&mut rule, &shape);
        let access = |d: usize, whole: bool| match d == self.0.dim && whole {
            true => Access::Whole {
                instead: Some(of[d]),
            },
            false => Access::factor(of[d]),
        };
        let from: Vec<Access> = (0..shape.len()).map(|d| access(d, true)).collect();
        let to: Vec<Access> = (0..shape.len()).map(|d| access(d, false)).collect();
        rule.input(from.clone())
            .input(from)
            .output(to.clone(), shape.clone(), inputs[0].dtype)
            .output(to, shape, DType::I64)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_foldable!(call.dtype(), T => merge_box::<T>(&self.0, call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &[Option<Value>]) -> Result<Vec<Option<Value>>> {
        Ok(vec![None, None])
    }
}

fn merge_box<T: Sortable + Element>(op: &SortRuns, call: &mut HostCall<'_, '_>) {
    let (from, to) = (&call.cx.inputs[0], &call.cx.outputs[0]);
    let (before, n, after) = lines(&from.shape, op.dim);
    let (held, start) = (to.shape[op.dim], positions(to, op.dim).get().at(0) as usize);
    let (x, indices) = (call.input::<T>(0), call.input::<i64>(1));
    let (mut values, mut found) = call.output_pair::<T, i64>();
    let (mut line_values, mut line_indices) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for line in 0..before * after {
        let (row, column) = (line / after.max(1), line % after.max(1));
        let place = |i: usize| (row * n + i) * after + column;
        let (line_values, line_indices): (&[T], &[i64]) = match after {
            1 => (&x.data()[row * n..][..n], &indices.data()[row * n..][..n]),
            _ => {
                line_values.clear();
                line_indices.clear();
                line_values.extend((0..n).map(|i| x.data()[place(i)]));
                line_indices.extend((0..n).map(|i| indices.data()[place(i)]));
                (&line_values, &line_indices)
            }
        };
        let runs = Runs::new(line_values, line_indices, &op.ends, op.descending);
        let mut to = row * held * after + column;
        runs.merged(start..start + held, |value, index| {
            values.data_mut()[to] = value;
            found.data_mut()[to] = index;
            to += after;
        });
    }
}
