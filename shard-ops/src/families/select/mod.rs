//! Elements that a condition picks, in row-major order: how many there are the data decides.
//!
//! Each rank finds its own among consecutive indices of the first dim, and hears how many the others found; results are divided as
//! that dim is, and stand in the single device's order.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use super::broadcast::expand;
use super::elementwise::{broadcast_shape, where_};
use super::full::alike;
use super::index::slice;
use super::shape::reshape;
use crate::host::{positions, with_element};
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Result,
    RowCuts, Rule, Saved, Value, key_of,
};
use shard_comm::{Bool, DType, Element};
use shard_spec::{Dims, numel};
use smallvec::smallvec;
use std::sync::Arc;

/// The indices of all elements that are not zero, `[found, dims]`, `i64`, in row-major order. NaN is not zero. A scalar has one index, or none,
/// of no dims.
///
/// # Collective
/// All ranks of the program, members of the mesh or not: one round of a number per rank. Other dims than the first are brought together
/// where they are sharded.
///
/// # Errors
/// What the communicator reports.
pub fn nonzero(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let [found, _] = exec.apply_n(Arc::new(Nonzero), &[&in_rows(exec, &x.detach())?])?;
    Ok(match x.ndim() {
        0 => slice(exec, &found, 1, 0, 1, 0)?.detach(),
        _ => found.detach(),
    })
}

/// A scalar as a list of one element; others as they are.
fn in_rows(exec: &dyn Exec, x: &Value) -> Result<Value> {
    match x.ndim() {
        0 => reshape(exec, x, &[1]),
        _ => Ok(x.clone()),
    }
}

/// The elements of `x` where `mask` is true, `[found]`, in row-major order. Shapes broadcast as in NumPy.
///
/// # Collective
/// As [`nonzero`].
///
/// # Errors
/// A mask that is not bool; shapes that do not broadcast.
pub fn masked_select(exec: &dyn Exec, x: &Value, mask: &Value) -> Result<Value> {
    let shape = broadcast_shape(SELECT, &[x, mask])?;
    let to = |v: &Value| match v.shape() == shape {
        true => Ok(v.clone()),
        false => expand(exec, v, &shape),
    };
    let [x, mask] = [to(x)?, to(&mask.detach())?];
    let operands = [&in_rows(exec, &x)?, &in_rows(exec, &mask)?];
    let [found, _] = exec.apply_n(Arc::new(MaskedSelect), &operands)?;
    Ok(found)
}

/// `x` with elements of `source` where `mask` is true: the first of them, in row-major order of both. The mask is broadcast.
///
/// # Collective
/// As [`masked_select`]; the elements that are put move to where they belong.
///
/// # Errors
/// A mask that is not bool, or does not broadcast; types that differ; fewer elements than places, on all ranks.
pub fn masked_scatter(exec: &dyn Exec, x: &Value, mask: &Value, source: &Value) -> Result<Value> {
    const OP: &str = "masked_scatter";
    let [x, source] = &alike(exec, [x, source])?;
    if source.dtype() != x.dtype() {
        return Err(OpError::dtype(OP, 2, x.dtype().to_string(), source.dtype()));
    }
    let shape = x.shape();
    let rows = if x.ndim() == 0 { &[1] } else { shape };
    let mask = match mask.shape() == shape {
        true => mask.detach(),
        false => expand(exec, &mask.detach(), shape)?,
    };
    let mask = match x.ndim() {
        0 => reshape(exec, &mask, rows)?,
        _ => mask,
    };
    let [picked, counts] = exec.apply_n(Arc::new(MaskedSelect), &[&mask, &mask])?;
    let (places, given) = (picked.shape()[0], numel(source.shape()));
    let cuts = Arc::new(RowCuts::between(OP, counts.layout(), picked.layout())?);
    if given < places {
        return Err(OpError::Shape {
            op: OP,
            problem: format!("{given} elements for {places} places"),
            shapes: vec![
                shape.to_vec(),
                mask.shape().to_vec(),
                source.shape().to_vec(),
            ],
            fix: "give an element for each place where the mask is true",
        });
    }
    let list = reshape(exec, source, &[given])?;
    let put = match places == given {
        true => list,
        false => slice(exec, &list, 0, 0, 1, places)?,
    };
    let put = exec.apply1(Arc::new(MaskedPut { cuts }), &[&mask, &put])?;
    match x.ndim() {
        0 => where_(
            exec,
            &reshape(exec, &mask, &[])?,
            &reshape(exec, &put, &[])?,
            x,
        ),
        _ => where_(exec, &mask, &put, x),
    }
}

const NONZERO: &str = "nonzero";
const SELECT: &str = "masked_select";
const PUT: &str = "masked_put";

/// Where elements are not zero: outputs are the indices, and how many each index of the first dim has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nonzero;

/// The elements under a mask: inputs are the elements and the mask; outputs are those picked, and how many each index of the first
/// dim has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskedSelect;

/// Elements back where a mask picked them, and zeros elsewhere: inputs are the mask and the elements.
#[derive(Clone, Debug)]
pub(crate) struct MaskedPut {
    cuts: Arc<RowCuts>,
}

/// The accesses of operands of which the first dim alone may be divided.
fn by_rows(
    op: &'static str,
    rule: &mut crate::RuleBuilder,
    shape: &Dims,
) -> Result<(usize, Vec<Access>)> {
    let Some((&n, rest)) = shape.split_first() else {
        return Err(OpError::Shape {
            op,
            problem: "a scalar has no rows".into(),
            shapes: vec![shape.to_vec()],
            fix: "reshape it to one element",
        });
    };
    let factor = rule.factor(n);
    let rest = rest.iter().map(|_| Access::WHOLE);
    Ok((
        factor,
        std::iter::once(Access::factor(factor))
            .chain(rest)
            .collect(),
    ))
}

fn is_mask(op: &'static str, inputs: &[Meta], operand: usize) -> Result<()> {
    match inputs[operand].dtype {
        DType::Bool => Ok(()),
        got => Err(OpError::dtype(op, operand, "bool", got)),
    }
}

/// What was found, as a rank's rows of the first output, element by element.
fn leave<T: Element>(call: &mut HostCall<'_, '_>, found: Vec<T>, width: usize, counts: &[i64]) {
    call.outputs_from::<i64>(1)[0]
        .data_mut()
        .copy_from_slice(counts);
    *call.rows = counts.iter().sum::<i64>() as usize;
    assert_eq!(found.len(), width * *call.rows, "every row is found");
    *call.state = Some(Box::new(found));
}

/// Writes what was found.
fn write<T: Element>(call: &mut HostCall<'_, '_>) {
    let Some(Ok(found)) = call.state.take().map(|s| s.downcast::<Vec<T>>()) else {
        unreachable!("rows are written after they were found")
    };
    call.output::<T>(0).data_mut().copy_from_slice(&found);
}

impl Op for Nonzero {
    fn name(&self) -> &'static str {
        NONZERO
    }

    fn key(&self) -> u128 {
        key_of(NONZERO, &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = &inputs[0];
        let mut rule = Rule::builder(NONZERO, inputs);
        let (factor, dims) = by_rows(NONZERO, &mut rule, &x.shape)?;
        let rows = vec![Access::Rows { factor, cuts: None }, Access::WHOLE];
        rule.input(dims)
            .output(rows, smallvec![0, x.shape.len()], DType::I64)
            .output(
                vec![Access::factor(factor)],
                smallvec![x.shape[0]],
                DType::I64,
            )
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let at = &call.cx.inputs[0];
        let (shape, first) = (at.shape.clone(), positions(at, 0));
        let (mut found, mut counts) = (Vec::new(), vec![0; shape[0]]);
        with_element!(call.inputs[0].dtype(), T => {
            let x = call.input::<T>(0);
            let zero = T::default();
            let width = numel(&shape[1..]);
            for (row, count) in counts.iter_mut().enumerate() {
                for (number, value) in x.data()[row * width..(row + 1) * width].iter().enumerate() {
                    if *value == zero {
                        continue;
                    }
                    *count += 1;
                    let from = found.len();
                    let mut rest = number;
                    for &n in shape[1..].iter().rev() {
                        found.push((rest % n) as i64);
                        rest /= n;
                    }
                    found.push(first.get().at(row));
                    found[from..].reverse();
                }
            }
        });
        let width = shape.len();
        leave(call, found, width, &counts);
    }

    fn write_rows(&self, call: &mut HostCall<'_, '_>) {
        write::<i64>(call);
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
        Ok(vec![None])
    }
}

impl Op for MaskedSelect {
    fn name(&self) -> &'static str {
        SELECT
    }

    fn key(&self) -> u128 {
        key_of(SELECT, &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        is_mask(SELECT, inputs, 1)?;
        let x = &inputs[0];
        let mut rule = Rule::builder(SELECT, inputs);
        let (factor, dims) = by_rows(SELECT, &mut rule, &x.shape)?;
        // A sum is taken before: every rank with terms of it would count the same elements.
        rule.input(dims.clone())
            .input(dims)
            .output(
                vec![Access::Rows { factor, cuts: None }],
                smallvec![0],
                x.dtype,
            )
            .output(
                vec![Access::factor(factor)],
                smallvec![x.shape[0]],
                DType::I64,
            )
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let shape = &call.cx.inputs[0].shape;
        let (mut counts, width) = (vec![0; shape[0]], numel(&shape[1..]));
        with_element!(call.inputs[0].dtype(), T => {
            let (x, mask) = (call.input::<T>(0), call.input::<Bool>(1));
            let mut found = Vec::new();
            for (row, count) in counts.iter_mut().enumerate() {
                let at = row * width..(row + 1) * width;
                let picked = x.data()[at.clone()].iter().zip(&mask.data()[at]);
                let before = found.len();
                found.extend(picked.filter(|(_, mask)| mask.get()).map(|(x, _)| *x));
                *count = (found.len() - before) as i64;
            }
            leave(call, found, 1, &counts);
        });
    }

    fn write_rows(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.outputs[0].dtype(), T => write::<T>(call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (picked, counts) = (&saved.outputs[0], &saved.outputs[1]);
        let cuts = Arc::new(RowCuts::between(PUT, counts.layout(), picked.layout())?);
        saved.pull_back_to(0, cotangents, |dy| {
            let put = MaskedPut { cuts: cuts.clone() };
            exec.apply1(Arc::new(put), &[&saved.inputs[1], dy])
        })
    }
}

impl Op for MaskedPut {
    fn name(&self) -> &'static str {
        PUT
    }

    fn key(&self) -> u128 {
        key_of(PUT, &*self.cuts)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        is_mask(PUT, inputs, 0)?;
        let mut rule = Rule::builder(PUT, inputs);
        let (factor, dims) = by_rows(PUT, &mut rule, &inputs[0].shape)?;
        let rows = Access::Rows {
            factor,
            cuts: Some(self.cuts.clone()),
        };
        rule.input(dims.clone())
            .input(vec![rows])
            .output(dims, inputs[0].shape.clone(), inputs[1].dtype)
            .linearity(Linearity::Each(smallvec![1]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.dtype(), T => {
            let (mask, from) = (call.input::<Bool>(0), call.input::<T>(1));
            let mut from = from.data().iter();
            let mut to = call.output::<T>(0);
            for (to, mask) in to.data_mut().iter_mut().zip(mask.data()) {
                let next = if mask.get() { from.next() } else { None };
                *to = next.copied().unwrap_or_default();
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back_to(1, cotangents, |dy| {
            masked_select(exec, dy, &saved.inputs[0])
        })
    }
}
