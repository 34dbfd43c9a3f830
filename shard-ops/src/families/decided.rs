//! Numbers that the data decides, and that all ranks go by.

use super::elementwise::{cast, ge, logical_or, lt, number};
use super::reduce::{amax, amin, any};
use crate::error::InOp;
use crate::{Exec, OpError, Result, Value};
use shard_comm::{AgreedError, Bool, Communicator, DType, DeviceError, Element};
use shard_spec::{Layout, numel};

/// The one element of a value, on all ranks of the mesh; nothing where there is no data: off the mesh, or where ranks are played.
pub(super) fn read<T: Element>(exec: &dyn Exec, op: &'static str, x: &Value) -> Result<Option<T>> {
    let whole = Layout::replicated(x.layout().mesh(), &[]);
    let x = exec.redistribute(x, &whole)?;
    let Some(buffer) = x.array().buffer() else {
        return Ok(None);
    };
    match buffer.to_vec::<T>() {
        Ok(elements) => Ok(elements.first().copied()),
        Err(DeviceError::NoData { .. }) => Ok(None),
        Err(error) => Err(error).in_op(op),
    }
}

/// The one element of a value, on all ranks of the program, so that a rank outside the mesh knows the extents that it decides.
///
/// # Collective
/// All ranks of the program: where some are outside the mesh, a round in which they are told.
pub(super) fn told<T: Element>(exec: &dyn Exec, op: &'static str, x: &Value) -> Result<T> {
    let cx = x.array().cx();
    let found = read::<T>(exec, op, x);
    let known = match cx.program() {
        Some(program) if program.size() > cx.mesh().size() => {
            tell(op, &**program, cx.mesh().ranks()[0], found)?
        }
        _ => found?,
    };
    known.ok_or(OpError::NoData { op, operand: 0 })
}

/// One more than the largest element of integers, at least 0, on all ranks of the program; nothing if there are no elements.
///
/// # Collective
/// As [`told`], of the largest element.
pub(super) fn count(exec: &dyn Exec, op: &'static str, x: &Value) -> Result<Option<usize>> {
    if numel(x.shape()) == 0 {
        return Ok(None);
    }
    let all: Vec<usize> = (0..x.ndim()).collect();
    let most = amax(exec, &x.detach(), &all, false)?;
    let most = told::<i64>(exec, op, &cast(exec, &most, DType::I64)?)?;
    Ok(Some(usize::try_from(most.saturating_add(1)).unwrap_or(0)))
}

/// Refuses integers on all ranks alike if some is below 0, or not below `extent`.
///
/// # Collective
/// All members of the mesh: one reduction of a number.
pub(super) fn within(exec: &dyn Exec, op: &'static str, x: &Value, extent: usize) -> Result<()> {
    let all: Vec<usize> = (0..x.ndim()).collect();
    let low = lt(exec, x, &number(op, x, 0.0)?)?;
    let high = ge(exec, x, &number(op, x, extent as f64)?)?;
    let wrong = any(exec, &logical_or(exec, &low, &high)?, &all, false)?;
    let wrong = read::<Bool>(exec, op, &wrong)?;
    if !wrong.is_some_and(Bool::get) {
        return Ok(());
    }
    let ends = [amin, amax].map(|end| {
        let end = cast(exec, &end(exec, x, &all, false)?, DType::I64)?;
        read::<i64>(exec, op, &end)
    });
    let [least, most] = ends;
    Err(OpError::OutOfRange {
        op,
        least: least?.unwrap_or_default(),
        most: most?.unwrap_or_default(),
        extent,
    })
}

/// What a rank found, on all, or what went wrong where it was looked for.
fn tell<T: Element>(
    op: &'static str,
    program: &dyn Communicator,
    root: usize,
    found: Result<Option<T>>,
) -> Result<Option<T>> {
    let failed = |e: &OpError| {
        let fix = "see what that rank reports";
        AgreedError::new(op, "a number to be found", e.to_string(), fix)
    };
    let status = found.as_ref().map(|_| ()).map_err(failed);
    let agreed = program.agree(status).in_op(op);
    // What went wrong here is known better than what others hear of it.
    let found = found?;
    agreed?;
    let own = match (program.rank() == root, found) {
        (true, Some(own)) => Some(program.device().upload_slice(&[own]).in_op(op)?),
        (true, None) => return Ok(None),
        (false, _) => None,
    };
    let all = program
        .broadcast(own.as_ref(), root, T::DTYPE, 1)
        .in_op(op)?;
    let all = program.device().download_vec::<T>(&all).in_op(op)?;
    Ok(all.first().copied())
}
