//! What ops that are made of several do with floats of 16 bits: they go their way as `f32`, and what comes of them is rounded once. Steps
//! that rounded would lose digits that the next ones need, and large sums altogether: `f16` ends at 65504.

use super::elementwise::{cast, cast_op};
use crate::{Exec, Grads, Result, Value};
use shard_comm::DType;
use smallvec::SmallVec;

/// Applies `f` to values as [`Exec::in_full`] gives them, and to those of 16 bits as `f32`, of which the result is rounded to their type.
/// Types that differ are for `f` to refuse.
///
/// # Collective
/// As `f`.
///
/// # Errors
/// Errors of `f`.
pub(super) fn in_full<const N: usize>(
    exec: &dyn Exec,
    values: [&Value; N],
    f: impl FnOnce([&Value; N]) -> Result<Value>,
) -> Result<Value> {
    in_full_with(exec, values, [], |values, []| f(values))
}

/// Values of one type: where a program casts by itself those of 16 bits are widened beside others, as operands of one op are. Elsewhere types
/// that differ are for the op to refuse.
pub(super) fn alike<const N: usize>(exec: &dyn Exec, values: [&Value; N]) -> Result<[Value; N]> {
    let differs = values.iter().any(|v| v.dtype() != values[0].dtype());
    let mut alike = values.map(Value::clone);
    for value in alike.iter_mut().filter(|_| differs) {
        *value = exec.in_full(value)?;
    }
    Ok(alike)
}

/// As [`in_full`], with further values that may be missing.
pub(super) fn in_full_with<const N: usize, const M: usize>(
    exec: &dyn Exec,
    values: [&Value; N],
    others: [Option<&Value>; M],
    f: impl FnOnce([&Value; N], [Option<&Value>; M]) -> Result<Value>,
) -> Result<Value> {
    let full = Widened::of(exec, &values, &others, true)?;
    let found = f(
        std::array::from_fn(|i| full.value(i)),
        std::array::from_fn(|i| full.other(i)),
    )?;
    full.rounded(exec, found)
}

/// As [`in_full_with`], of a first step whose operand is large: it reads the value as it is, and leaves what it makes of 16 bits in `f32`.
pub(super) fn in_full_after<const M: usize>(
    exec: &dyn Exec,
    x: &Value,
    others: [Option<&Value>; M],
    first: impl FnOnce(&Value) -> Result<Value>,
    f: impl FnOnce(&Value, [Option<&Value>; M]) -> Result<Value>,
) -> Result<Value> {
    let x = &exec.in_full(x)?;
    let mut others = others.map(Option::<&Value>::cloned);
    for other in others.iter_mut().flatten() {
        *other = exec.in_full(other)?;
    }
    let (stored, mut made) = (x.dtype(), first(x)?);
    let is_stored = stored.is_half() && others.iter().flatten().all(|o| o.dtype() == stored);
    if is_stored {
        for other in others.iter_mut().flatten() {
            *other = cast(exec, other, DType::F32)?;
        }
    } else {
        // Types that differ are for the next op to refuse.
        made = cast(exec, &made, stored)?;
    }
    let found = f(&made, others.each_ref().map(Option::as_ref))?;
    match is_stored {
        true => cast(exec, &found, stored),
        false => Ok(found),
    }
}

/// As [`in_full`], of what an executor that casts by itself has in the type it is in.
pub(super) fn rounded_once<const N: usize>(
    exec: &dyn Exec,
    values: [&Value; N],
    f: impl FnOnce([&Value; N]) -> Result<Value>,
) -> Result<Value> {
    let full = Widened::of(exec, &values, &[], false)?;
    full.rounded(exec, f(std::array::from_fn(|i| full.value(i)))?)
}

/// As [`rounded_once`], of any number of values.
pub(super) fn all_rounded_once(
    exec: &dyn Exec,
    values: &[&Value],
    f: impl FnOnce(&[&Value]) -> Result<Value>,
) -> Result<Value> {
    let full = Widened::of(exec, values, &[], false)?;
    let wide: SmallVec<[&Value; 3]> = full.values.iter().collect();
    full.rounded(exec, f(&wide)?)
}

/// As [`rounded_once`], of the gradients that a vjp gives.
pub(super) fn each_rounded_once<const N: usize>(
    exec: &dyn Exec,
    values: [&Value; N],
    f: impl FnOnce([&Value; N]) -> Result<Grads>,
) -> Result<Grads> {
    each_of_all_rounded_once(exec, &values, |values| {
        f(std::array::from_fn(|i| values[i]))
    })
}

/// As [`each_rounded_once`], of any number of values.
pub(super) fn each_of_all_rounded_once(
    exec: &dyn Exec,
    values: &[&Value],
    f: impl FnOnce(&[&Value]) -> Result<Grads>,
) -> Result<Grads> {
    let full = Widened::of(exec, values, &[], false)?;
    let wide: SmallVec<[&Value; 3]> = full.values.iter().collect();
    let found = f(&wide)?.into_iter();
    found
        .map(|found| found.map(|found| full.rounded(exec, found)).transpose())
        .collect()
}

/// Values of which sums over ranks have been taken, for an op whose steps read them more than once and would each take them.
///
/// # Collective
/// All members of the mesh; a partial operand is reduced.
///
/// # Errors
/// What the communicator or the device reports.
pub(super) fn sums<const N: usize>(exec: &dyn Exec, values: [&Value; N]) -> Result<[Value; N]> {
    let mut taken = values.map(Value::clone);
    for value in &mut taken {
        if value.layout().is_partial() {
            // A conversion is the identity that is not linear.
            *value = exec.apply1(cast_op(value.dtype()), &[value])?;
        }
    }
    Ok(taken)
}

/// Values, of 16 bits as `f32`.
struct Widened {
    values: SmallVec<[Value; 3]>,
    others: SmallVec<[Option<Value>; 2]>,
    /// The type that all had, if it has 16 bits.
    stored: Option<DType>,
}

impl Widened {
    fn of(
        exec: &dyn Exec,
        values: &[&Value],
        others: &[Option<&Value>],
        casts: bool,
    ) -> Result<Self> {
        let taken = |value: &Value| match casts {
            true => exec.in_full(value),
            false => Ok(value.clone()),
        };
        let mut values = (values.iter())
            .map(|v| taken(v))
            .collect::<Result<SmallVec<[Value; 3]>>>()?;
        let mut others = (others.iter())
            .map(|other| other.map(taken).transpose())
            .collect::<Result<SmallVec<[Option<Value>; 2]>>>()?;
        let mut types = values
            .iter()
            .chain(others.iter().flatten())
            .map(Value::dtype);
        let first = types.next().filter(|dtype| dtype.is_half());
        let stored = first.filter(|first| types.all(|dtype| dtype == *first));
        if stored.is_some() {
            for value in values.iter_mut().chain(others.iter_mut().flatten()) {
                *value = cast(exec, value, DType::F32)?;
            }
        }
        Ok(Self {
            values,
            others,
            stored,
        })
    }

    fn value(&self, i: usize) -> &Value {
        &self.values[i]
    }

    fn other(&self, i: usize) -> Option<&Value> {
        self.others[i].as_ref()
    }

    fn rounded(&self, exec: &dyn Exec, found: Value) -> Result<Value> {
        match self.stored {
            Some(stored) => cast(exec, &found, stored),
            None => Ok(found),
        }
    }
}
