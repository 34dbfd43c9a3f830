//! Numbers that the data decides, and that all ranks go by.

use super::elementwise::{cast, ge, logical_or, lt, number};
use super::reduce::{amax, amin, any};
use crate::error::InOp;
use crate::{Exec, OpError, Result, Value};
use shard_comm::simulated::PHANTOM;
use shard_comm::{AgreedError, Bool, DType, DeviceError, Element};
use shard_spec::{Layout, numel};

/// The elements of a value, on all ranks of the program, so that they know what the data decides, as a layout; nothing where ranks are played.
///
/// ```
/// use shard_comm::{Communicator, DType, local};
/// use shard_ops::decided::known;
/// use shard_ops::{Engine, EngineOptions, Value};
/// use shard_redistribute::{Array, MeshComm};
/// use shard_spec::{DeviceMesh, Layout};
/// use std::rc::Rc;
/// let told = local::run(3, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::with_ranks(&[2], vec![2, 0]).unwrap(); // rank 1 is not on it
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let halves = Layout::parse(&mesh, &[4], "S(0)").unwrap();
///     let counts = Array::from_fn(&cx, &halves, |i| (i[0] * 10) as i64).unwrap();
///     known::<i64>(&*Engine::new(EngineOptions::default()), "count", &Value::new(counts)).unwrap()
/// })
/// .unwrap();
/// assert_eq!(told, vec![Some(vec![0, 10, 20, 30]); 3]);
/// ```
///
/// # Collective
/// All ranks of the program. Its mesh moves the value to copies; where some ranks are outside of it, a round in which they are told.
///
/// # Errors
/// What the communicator or the device reports, on all ranks; for another type than the value's.
pub fn known<T: Element>(exec: &dyn Exec, op: &'static str, x: &Value) -> Result<Option<Vec<T>>> {
    let whole = Layout::replicated(x.layout().mesh(), x.shape());
    told_all((op, 0), &exec.redistribute(&x.detach(), &whole)?)
}

/// The one element of a value, on all ranks of the mesh; nothing where there is no data: off the mesh, or where ranks are played.
pub(super) fn read<T: Element>(exec: &dyn Exec, op: &'static str, x: &Value) -> Result<Option<T>> {
    let whole = Layout::replicated(x.layout().mesh(), &[]);
    let elements = elements(op, &exec.redistribute(x, &whole)?)?;
    Ok(elements.and_then(|elements| elements.first().copied()))
}

/// The elements of this rank's piece of a value; nothing where there is no data, as for [`read`].
fn elements<T: Element>(op: &'static str, x: &Value) -> Result<Option<Vec<T>>> {
    let Some(buffer) = x.array().buffer() else {
        return Ok(None);
    };
    match buffer.to_vec::<T>() {
        Ok(elements) => Ok(Some(elements)),
        Err(DeviceError::NoData { .. }) => Ok(None),
        Err(error) => Err(error).in_op(op),
    }
}

/// The one element of a value, on all ranks of the program, so that a rank outside the mesh knows the extents that it decides.
///
/// # Collective
/// All ranks of the program: where some are outside the mesh, a round in which they are told.
pub(super) fn told<T: Element>(exec: &dyn Exec, op: &'static str, x: &Value) -> Result<T> {
    let found = read::<T>(exec, op, x).map(|found| found.map(|one| vec![one]));
    let known = tell(op, x, found, 1)?.and_then(|all| all.first().copied());
    known.ok_or(OpError::NoData { op, operand: 0 })
}

/// The elements of an operand that all members have whole, on all ranks of the program; nothing where ranks are played.
///
/// # Collective
/// As [`told`].
pub(super) fn told_all<T: Element>(
    (op, operand): (&'static str, usize),
    x: &Value,
) -> Result<Option<Vec<T>>> {
    let cx = x.array().cx();
    if cx.device().kind() == PHANTOM {
        return Ok(None);
    }
    let found = match elements::<T>(op, x) {
        Ok(None) if cx.is_member() => Err(OpError::NoData { op, operand }),
        found => found,
    };
    tell(op, x, found, numel(x.shape()))
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

/// What members of a value's mesh found, so many elements, on all ranks of the program, or what went wrong where it was looked for.
fn tell<T: Element>(
    op: &'static str,
    x: &Value,
    found: Result<Option<Vec<T>>>,
    len: usize,
) -> Result<Option<Vec<T>>> {
    let cx = x.array().cx();
    let program = match cx.program() {
        Some(program) if program.size() > cx.mesh().size() => &**program,
        _ => return found,
    };
    let root = cx.mesh().ranks()[0];
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
        (true, Some(own)) => Some(program.device().upload_slice(&own).in_op(op)?),
        (true, None) => return Ok(None),
        (false, _) => None,
    };
    let all = program
        .broadcast(own.as_ref(), root, T::DTYPE, len)
        .in_op(op)?;
    let all = program.device().download_vec::<T>(&all).in_op(op)?;
    Ok(Some(all))
}
