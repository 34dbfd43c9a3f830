//! Ops as functions apply them. Most ops are not public; they are tried like those that are.

use crate::ranks::on_ranks;
use shard_comm::DType;
use shard_ops::testing::{Capture, OpSample, Tensor, Validated, Validation, place};
use shard_ops::{Exec, Result, Value};
use shard_spec::Layout;

/// What applies ops to values, on any executor.
pub(crate) type Applies<'a> = dyn Fn(&dyn Exec, &[Value]) -> Result<()> + Sync + 'a;

/// The first op of this name that `f` applies on one rank to these operands, where floats are doubles, and what it was given.
pub(crate) fn applied(name: &str, operands: &[Tensor], f: &Applies<'_>) -> OpSample {
    applied_on(&[1], name, operands, "R", f)
}

/// The same on a mesh on which all operands lie so.
pub(crate) fn applied_on(
    mesh: &[usize],
    name: &str,
    operands: &[Tensor],
    placed: &str,
    f: &Applies<'_>,
) -> OpSample {
    let samples = on_ranks(mesh, |cx, _| {
        let value = |t: &Tensor| {
            let layout = Layout::parse(cx.mesh(), &t.shape, placed).unwrap();
            Value::new(place(cx, &layout, t, DType::F64).unwrap())
        };
        let operands: Vec<Value> = operands.iter().map(value).collect();
        let capture = Capture::new();
        f(&*capture, &operands).unwrap();
        capture.samples()
    });
    let found = samples.into_iter().flatten().find(|s| s.op.name() == name);
    found.unwrap_or_else(|| panic!("no {name} was applied"))
}

/// What the validator tried of that op.
pub(crate) fn validated(name: &str, operands: &[Tensor], f: &Applies<'_>) -> Validated {
    let OpSample { op, inputs, .. } = applied(name, operands, f);
    let tried = Validation::default().run_shared(&op, &inputs);
    tried.unwrap_or_else(|fault| panic!("{op:?}: {fault}"))
}
