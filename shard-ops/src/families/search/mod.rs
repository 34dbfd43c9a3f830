//! Where values would stand among sorted ones. A sharded list is searched part by part: the place among all is the sum of the
//! places in the parts, so that nothing of the list moves.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use super::elementwise::{cast, eq, gt, logical_and, number, sub};
use super::full::{alike, sums};
use super::indexing::with_foldable;
use super::shape::reshape;
use super::sort::sort;
use super::types::same_types;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Meta, Op, OpError, Reduction, Result, Rule,
    Saved, Value, key_of,
};
use shard_comm::DType;
use shard_kernels::search::count_before;
use shard_spec::ReduceOp;
use std::sync::Arc;

/// For every value the place among `sorted`, ascending along its last dim, where it could be put and leave that sorted: the first
/// such place, or with `right` the last. Of a list, values may have any dims; else the dims before the last are those of the values.
/// NaN stands behind all numbers. The result is `i64`.
///
/// # Collective
/// All members of the mesh. Nothing of the list moves if the values are replicated over the mesh axes that divide it: the result is
/// then partial.
///
/// # Errors
/// Shapes that do not belong together; types that differ, or 16-bit floats and truth values.
pub fn searchsorted(exec: &dyn Exec, sorted: &Value, values: &Value, right: bool) -> Result<Value> {
    exec.apply1(
        Arc::new(Search { right }),
        &[&sorted.detach(), &values.detach()],
    )
}

/// [`searchsorted`] with the operands the other way round, as PyTorch has it: of which of the intervals between ascending
/// `boundaries` each value is.
///
/// # Collective
/// As [`searchsorted`].
///
/// # Errors
/// As [`searchsorted`]; boundaries of more than one dim.
pub fn bucketize(exec: &dyn Exec, x: &Value, boundaries: &Value, right: bool) -> Result<Value> {
    if boundaries.ndim() != 1 {
        return Err(OpError::Shape {
            op: "bucketize",
            problem: "boundaries are no list".into(),
            shapes: vec![boundaries.shape().to_vec()],
            fix: "give boundaries of one dim",
        });
    }
    searchsorted(exec, boundaries, x, right)
}

/// Whether each element is equal to one of `among`, which may have any shape: `bool`. NaN is equal to nothing. What is looked among is
/// sorted, and elements are looked up there, so that nothing is as large as all pairs.
///
/// # Collective
/// All members of the mesh. Moves what [`sort`](super::sort::sort) does of `among`, and then what [`searchsorted`] does; a partial operand is
/// reduced first.
///
/// # Errors
/// Types that differ.
pub fn isin(exec: &dyn Exec, x: &Value, among: &Value) -> Result<Value> {
    const NAME: &str = "isin";
    let [x, among] = &alike(exec, [x, among])?;
    if x.dtype() != among.dtype() {
        return Err(OpError::dtype(
            NAME,
            1,
            x.dtype().to_string(),
            among.dtype(),
        ));
    }
    let full = match x.dtype() {
        dtype if dtype.is_half() => DType::F32,
        DType::Bool => DType::U8,
        dtype => dtype,
    };
    let list = reshape(exec, &among.detach(), &[among.shape().iter().product()])?;
    let (sorted, _) = sort(exec, &cast(exec, &list, full)?, 0, false)?;
    let [x] = &sums(exec, [&cast(exec, &x.detach(), full)?])?;
    // As many are equal as there are places to put it. Both numbers are terms of one sum.
    let [first, last] = [false, true].map(|right| searchsorted(exec, &sorted, x, right));
    let equal = sub(exec, &last?, &first?)?;
    let found = gt(exec, &equal, &number(NAME, &equal, 0.0)?)?;
    match full {
        DType::F32 | DType::F64 => logical_and(exec, &found, &eq(exec, x, x)?),
        _ => Ok(found),
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) right: bool,
}

const NAME: &str = "searchsorted";

impl Op for Search {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        key_of(NAME, &self.right)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = same_types(NAME, inputs)?;
        let numbers = [DType::F64, DType::F32, DType::I64, DType::I32, DType::U8];
        if !numbers.contains(&dtype) {
            return Err(OpError::dtype(NAME, 0, "f64, f32, i64, i32 or u8", dtype));
        }
        let misfit = |problem: &str| OpError::Shape {
            op: NAME,
            problem: problem.into(),
            shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
            fix: "give a list, or as many rows of sorted elements as the values have",
        };
        let [sorted, values] = inputs else {
            return Err(OpError::arity(NAME, "2", inputs.len()));
        };
        let Some((&n, lead)) = sorted.shape.split_last() else {
            return Err(misfit("there is nothing sorted"));
        };
        let shared = values
            .shape
            .len()
            .checked_sub(1)
            .map(|last| &values.shape[..last]);
        if !lead.is_empty() && shared != Some(lead) {
            return Err(misfit("other dims than the last differ"));
        }
        let mut rule = Rule::builder(NAME, inputs).any_order();
        let own: Vec<usize> = values.shape.iter().map(|&m| rule.factor(m)).collect();
        let list = rule.factor(n);
        let mut of_sorted: Vec<Access> = own
            .iter()
            .take(lead.len())
            .map(|&f| Access::factor(f))
            .collect();
        of_sorted.push(Access::factor(list));
        let of_values: Vec<Access> = own.iter().map(|&f| Access::factor(f)).collect();
        rule.input(of_sorted)
            .input(of_values.clone())
            .output(of_values, values.shape.clone(), DType::I64)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let n = call.cx.inputs[0].shape.last().copied().unwrap_or(0);
        let rows: usize = call.cx.inputs[0].shape.iter().rev().skip(1).product();
        with_foldable!(call.inputs[0].dtype(), T => {
            let (sorted, values) = (call.input::<T>(0), call.input::<T>(1));
            let each = values.len() / rows.max(1);
            let mut counts = call.output::<i64>(0);
            let counts = counts.data_mut().chunks_mut(each.max(1));
            for (row, (counts, values)) in counts.zip(values.data().chunks(each.max(1))).enumerate() {
                count_before(&sorted.data()[row * n..(row + 1) * n], values, self.right, counts);
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
        Ok(vec![None, None])
    }
}
