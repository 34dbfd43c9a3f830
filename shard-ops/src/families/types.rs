//! Which element types the operands of several families may have.

use crate::host::{computes, is_whole, partial_type};
use crate::{Meta, OpError, Result, Value};
use shard_comm::DType;

/// The common type of the operands.
pub(super) fn same_types(op: &'static str, inputs: &[Meta]) -> Result<DType> {
    let Some(first) = inputs.first() else {
        return Err(OpError::arity(op, "at least one operand", 0));
    };
    match inputs.iter().position(|m| m.dtype != first.dtype) {
        Some(operand) => Err(OpError::dtype(
            op,
            operand,
            first.dtype.to_string(),
            inputs[operand].dtype,
        )),
        None => Ok(first.dtype),
    }
}

/// The common type of operands that must all be f32 or all f64.
pub(super) fn float_types(op: &'static str, inputs: &[Meta]) -> Result<DType> {
    let dtype = same_types(op, inputs)?;
    if !computes(dtype) {
        return Err(OpError::dtype(op, 0, "f32 or f64", dtype));
    }
    Ok(dtype)
}

/// The common type of operands that are multiplied and summed: f32, f64 or integers.
pub(super) fn product_types(op: &'static str, inputs: &[Meta]) -> Result<DType> {
    let dtype = same_types(op, inputs)?;
    if dtype.is_half() || dtype == DType::Bool {
        return Err(OpError::dtype(op, 0, "f32, f64 or an integer", dtype));
    }
    Ok(dtype)
}

/// The common type of operands that can be compared.
pub(super) fn number_types(op: &'static str, inputs: &[Meta]) -> Result<DType> {
    let dtype = same_types(op, inputs)?;
    if dtype.is_half() {
        return Err(OpError::dtype(op, 0, "f32, f64, an integer or bool", dtype));
    }
    Ok(dtype)
}

/// Refuses an operand of integers or truth values.
pub(super) fn floats(op: &'static str, operand: usize, x: &Value) -> Result<()> {
    match is_whole(x.dtype()) {
        true => Err(OpError::dtype(op, operand, "f32 or f64", x.dtype())),
        false => Ok(()),
    }
}

/// Refuses an operand of floats or truth values.
pub(super) fn integers(op: &'static str, operand: usize, x: &Value) -> Result<()> {
    match is_whole(x.dtype()) && x.dtype() != DType::Bool {
        true => Ok(()),
        false => Err(OpError::dtype(op, operand, "an integer", x.dtype())),
    }
}

/// Operand `i` holds truth values.
pub(super) fn truths(op: &'static str, inputs: &[Meta], operand: usize) -> Result<()> {
    match inputs.get(operand) {
        Some(mask) if mask.dtype != DType::Bool => {
            Err(OpError::dtype(op, operand, "bool", mask.dtype))
        }
        _ => Ok(()),
    }
}

/// The operands' common type, for kernels that [compute in a wider one](partial_type) where it has 16 bits.
pub(super) fn stored_types(op: &'static str, inputs: &[Meta]) -> Result<DType> {
    let first = inputs[0].dtype;
    match inputs.iter().position(|m| m.dtype != first) {
        None if partial_type(first) != first => Ok(first),
        _ => float_types(op, inputs),
    }
}
