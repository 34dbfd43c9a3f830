//! Sums of cotangents, each with a label of its own.

use crate::law::{is_law_but_for_sums, scattered};
use crate::node::{Kind, Outlet};
use crate::{Recorder, Result};
use shard_comm::{Buffer, BufferMut, History, Monoid, Strided};
use shard_ops::{Exec, Value};
use shard_redistribute::Array;
use shard_spec::{Layout, ReduceOp};
use smallvec::SmallVec;

/// How a backward pass moves and adds cotangents: on the tape or off it.
#[derive(Clone, Copy)]
pub(crate) struct Mover<'a> {
    pub(crate) recorder: &'a Recorder,
    /// Whether the pass is itself to be differentiable.
    pub(crate) recorded: bool,
}

/// The cotangents of one value that have arrived so far, one sum per label: buffers are never added across
/// labels.
#[derive(Default)]
pub(crate) struct Cotangents {
    sums: SmallVec<[Sum; 1]>,
}

/// The layout that a complete cotangent must have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The layout of the gradient law.
    Law,
    /// The layout of the law, or one that a reduction over ranks brings to it.
    Sums,
    /// Any layout that saves moving the cotangent twice.
    Any,
}

/// The terms of one label, in order of arrival.
enum Sum {
    One(Value),
    /// Several terms that are added at the end, because their sum must go on the tape.
    Many(Value, Vec<Value>),
    /// A running sum, what else is needed to make it a value, and the number of that.
    Running(BufferMut, Outlet, u64),
}

impl Cotangents {
    /// Adds a cotangent. Cotangents are summed in the order of their arrival.
    pub(crate) fn push(&mut self, mover: Mover<'_>, value: Value) -> Result<()> {
        // Only sums are linear: any other partial value is reduced before it meets another cotangent.
        let value = match value.layout().partial_op() {
            Some(op) if op != ReduceOp::Sum => {
                let reduced = value.layout().with_partial_reduced();
                mover.redistribute(value, &reduced)?
            }
            _ => value,
        };
        match self.sums.iter_mut().find(|s| s.label() == value.layout()) {
            None => self.sums.push(Sum::One(value)),
            Some(sum) => sum.push(mover, value)?,
        }
        Ok(())
    }

    /// The sum over all labels, `None` if nothing arrived.
    pub(crate) fn finish(
        self,
        mover: Mover<'_>,
        law: &Layout,
        form: Form,
    ) -> Result<Option<Value>> {
        let mut values = self
            .sums
            .into_iter()
            .map(|s| s.finish(mover))
            .collect::<Result<Vec<_>>>()?;
        if let ([only], true) = (&values[..], form != Form::Law)
            && (form == Form::Any || scattered(only.layout(), law)?.is_some())
        {
            return Ok(values.pop());
        }
        let (near, far): (Vec<_>, Vec<_>) = values
            .into_iter()
            .partition(|v| is_law_but_for_sums(v.layout(), law));
        let near = sum_near(mover, near, law)?;
        if far.is_empty() && form != Form::Law {
            return Ok(near);
        }
        let mut terms = near.into_iter().chain(far).map(|v| mover.part(v, law));
        let Some(first) = terms.next().transpose()? else {
            return Ok(None);
        };
        mover
            .add(first, &terms.collect::<Result<Vec<_>>>()?)
            .map(Some)
    }
}

impl Sum {
    fn label(&self) -> &Layout {
        match self {
            Self::One(value) | Self::Many(value, _) => value.layout(),
            Self::Running(_, outlet, _) => &outlet.layout,
        }
    }

    fn push(&mut self, mover: Mover<'_>, value: Value) -> Result<()> {
        match self {
            Self::One(first) if mover.recorded => *self = Self::Many(first.clone(), vec![value]),
            Self::Many(_, rest) => rest.push(value),
            Self::One(last) => {
                let number = joined(last.array().number(), &value);
                let outlet = Outlet::of(value.array());
                let none = Value::new(value.array().without_data());
                let first = std::mem::replace(last, none).into_array();
                *self = match (first.into_buffer(), value.into_array().into_buffer()) {
                    (Some(a), Some(b)) => Self::Running(total(a, b)?, outlet, number),
                    // Off the mesh there are no elements to add, but the sum has its number there too: it may go on to another mesh.
                    _ => Self::One(outlet.value(None, number)),
                };
            }
            Self::Running(sum, _, number) => {
                if let Some(buffer) = value.array().buffer() {
                    fold(sum, buffer)?;
                    *number = joined(*number, &value);
                }
            }
        }
        Ok(())
    }

    fn finish(self, mover: Mover<'_>) -> Result<Value> {
        match self {
            Self::One(value) => Ok(value),
            Self::Many(first, rest) => mover.add(first, &rest),
            Self::Running(sum, outlet, number) => Ok(outlet.value(Some(sum.freeze()), number)),
        }
    }
}

impl Mover<'_> {
    pub(crate) fn exec(&self) -> &dyn Exec {
        if self.recorded {
            self.recorder
        } else {
            &**self.recorder.inner()
        }
    }

    pub(crate) fn redistribute(self, value: Value, to: &Layout) -> Result<Value> {
        if value.layout() == to {
            return Ok(value);
        }
        Ok(self.exec().redistribute(&value, to)?)
    }

    /// As [`redistribute`](Self::redistribute), for a result that is kept: it does not share the memory of a larger piece.
    fn part(self, value: Value, to: &Layout) -> Result<Value> {
        let len = |value: &Value| value.array().buffer().map_or(0, Buffer::len);
        let whole = len(&value);
        let moved = self.redistribute(value, to)?;
        match moved.array().buffer() {
            Some(part) if len(&moved) < whole && !self.recorded => {
                let number = moved.array().number();
                Ok(Outlet::of(moved.array()).value(Some(copy(part)?.freeze()), number))
            }
            _ => Ok(moved),
        }
    }

    /// The sum of values with one label. Taking sums is linear, so this is right for every label, partial ones included, and
    /// needs no communication.
    pub(crate) fn add(self, first: Value, rest: &[Value]) -> Result<Value> {
        if rest.is_empty() {
            return Ok(first);
        }
        let buffer = match first.array().buffer() {
            None => None,
            Some(buffer) => {
                let mut sum = copy(buffer)?;
                for term in rest.iter().filter_map(|t| t.array().buffer()) {
                    fold(&mut sum, term)?;
                }
                Some(sum.freeze())
            }
        };
        let number = (rest.iter()).fold(first.array().number(), joined);
        let sum = Outlet::of(first.array()).value(buffer, number);
        if !self.recorded {
            return Ok(sum);
        }
        let terms: Vec<&Value> = std::iter::once(&first).chain(rest).collect();
        let parents = self.recorder.parents("accumulate", &terms)?;
        Ok(self
            .recorder
            .record1(parents, sum.array().clone(), || Kind::Pass))
    }
}

impl Outlet {
    /// The value of this layout and type with the given data and number.
    pub(crate) fn value(&self, buffer: Option<Buffer>, number: u64) -> Value {
        let array = Array::on_mesh(&self.cx, self.layout.clone(), buffer, self.dtype);
        Value::new(array.with_number(number))
    }
}

/// Adds values whose layout is the law's, or partial where the law replicates. Each is made partial over every axis that one
/// of them is partial over, which costs no communication, so that the sums over ranks are taken once.
fn sum_near(mover: Mover<'_>, values: Vec<Value>, law: &Layout) -> Result<Option<Value>> {
    if values.len() < 2 {
        return Ok(values.into_iter().next());
    }
    let mut axes: SmallVec<[usize; 4]> = SmallVec::new();
    for &axis in values.iter().flat_map(|v| v.layout().partial_axes()) {
        if !axes.contains(&axis) {
            axes.push(axis);
        }
    }
    let label = law.with_partial(&axes, ReduceOp::Sum)?;
    let mut terms = values.into_iter().map(|v| mover.redistribute(v, &label));
    let Some(first) = terms.next().transpose()? else {
        return Ok(None);
    };
    mover
        .add(first, &terms.collect::<Result<Vec<_>>>()?)
        .map(Some)
}

/// The number of a sum with one term more: it follows from theirs.
fn joined(sum: u64, term: &Value) -> u64 {
    History::derived(sum, term.array().number())
}

/// The sum of two, in the memory of one that nobody else holds, if there is one.
fn total(a: Buffer, b: Buffer) -> Result<BufferMut> {
    let own = |buffer: Buffer| match buffer.fills_memory() {
        true => buffer.into_mut(),
        false => Err(buffer),
    };
    let (mut sum, term) = match own(a) {
        Ok(a) => (a, b),
        Err(a) => match own(b) {
            Ok(b) => (b, a),
            Err(b) => (copy(&a)?, b),
        },
    };
    fold(&mut sum, &term)?;
    Ok(sum)
}

fn copy(src: &Buffer) -> Result<BufferMut> {
    let mut dst = src.device().alloc(src.dtype(), src.len())?;
    let all = Strided::contiguous(&[src.len()]);
    src.device().copy(src, &all, &mut dst, &all)?;
    Ok(dst)
}

fn fold(sum: &mut BufferMut, term: &Buffer) -> Result<()> {
    let all = Strided::contiguous(&[term.len()]);
    term.device()
        .fold(Monoid::Op(ReduceOp::Sum), term, &all, sum, &all)?;
    Ok(())
}
