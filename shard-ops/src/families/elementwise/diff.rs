//! Differences of neighbours.

use super::{ne, sub};
use crate::error::InOp;
use crate::families::full::rounded_once;
use crate::families::index::slice;
use crate::families::shape::extent;
use crate::families::types::float_types;
use crate::host::{is_whole, with_stored};
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, Result, Rule,
    Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind, Element};
use shard_kernels::attention::Stored;
use shard_kernels::copy::{copy, fill};
use shard_kernels::fused::{Formula, FormulaStep, fused};
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::Unary;
use shard_kernels::{View, ViewMut};
use shard_spec::{Dims, Window};
use smallvec::smallvec;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

const NAME: &str = "diff";

/// The differences of neighbours along a dim, each element less the one before it, taken `n` times: a dim that is shorter by `n`, or
/// empty. Of truth values they are whether neighbours differ.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, ranks get what of neighbouring parts belongs to theirs.
///
/// # Errors
/// A dim that does not exist.
pub fn diff(exec: &dyn Exec, x: &Value, n: usize, dim: usize) -> Result<Value> {
    let len = extent(NAME, x, dim)?;
    let each = |x: &Value| {
        let mut y = x.clone();
        for times in 0..n.min(len) {
            y = once(exec, &y, dim, len - times - 1)?;
        }
        Ok(y)
    };
    // One step rounds once by itself.
    match n {
        1 => each(x),
        _ => rounded_once(exec, [x], |[x]| each(x)),
    }
}

/// The `rest` differences of neighbours.
fn once(exec: &dyn Exec, x: &Value, dim: usize, rest: usize) -> Result<Value> {
    let neighbours = |from| slice(exec, x, dim, from, 1, rest);
    // Devices without a kernel for neighbours, such as GPUs, have one for elements of two operands.
    let by_elements = is_whole(x.dtype()) || !x.array().cx().device().runs_host_jobs();
    match x.dtype() {
        _ if rest == 0 => neighbours(0),
        DType::Bool => ne(exec, &neighbours(1)?, &neighbours(0)?),
        _ if by_elements => sub(exec, &neighbours(1)?, &neighbours(0)?),
        _ => {
            let op = Diff {
                dim,
                len: rest + 1,
                adjoint: false,
            };
            exec.apply1(Arc::new(op), &[x])
        }
    }
}

/// Each of `len` elements of a dim but the first, less the one before it; or the way back: each difference added to the element it was
/// found at, and taken from the one before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Diff {
    dim: usize,
    len: usize,
    adjoint: bool,
}

impl Op for Diff {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        key_of(NAME, self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(NAME, inputs)?;
        let window = Window::conv(2, 1, 1, 0, 0).in_op(NAME)?;
        let mut shape: Dims = inputs[0].shape.clone();
        shape[self.dim] = self.len - usize::from(!self.adjoint);
        let mut rule = Rule::builder(NAME, inputs).any_order();
        let factors: Vec<usize> = shape.iter().map(|&n| rule.factor(n)).collect();
        let own = factors.iter().map(|&factor| Access::factor(factor));
        let read =
            factors
                .iter()
                .enumerate()
                .map(|(d, &factor)| match (d == self.dim, window.clone()) {
                    (false, _) => Access::factor(factor),
                    (true, window) if self.adjoint => Access::Adjoint { factor, window },
                    (true, window) => Access::Window { factor, window },
                });
        rule.input(read.collect())
            .output(own.collect(), shape, dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.dtype(), T => self.of::<T>(call));
    }

    fn halves(&self, _: DType, _: &[Meta], _: DeviceKind) -> Halves {
        Halves::ALL
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let adjoint = Self {
            adjoint: !self.adjoint,
            ..self.clone()
        };
        saved.pull_back_by(exec, cotangents, adjoint)
    }
}

impl Diff {
    fn of<T: Stored + Element>(&self, call: &mut HostCall<'_, '_>) {
        let dim = self.dim;
        let [from, to] = [&call.cx.inputs[0], &call.cx.outputs[0]].map(|at| at.start[dim]);
        let (x, mut y) = (call.input::<T>(0), call.output::<T>(0));
        let (read, made) = (from..from + x.shape()[dim], to..to + y.shape()[dim]);
        if made.is_empty() {
            return;
        }
        let x = |of: Range<usize>| part(&x, dim, &read, of);
        if !self.adjoint {
            let [before, after] = [0, 1].map(|by| x(made.start + by..made.end + by));
            return fused(&APART, 0, &[after, before], &mut [y]);
        }
        if read.is_empty() {
            return fill(&mut y, T::default());
        }
        // The first element of all is in no difference as the later one, the last in none as the earlier one.
        let both = made.start.max(read.start + 1)..made.end.min(read.end);
        if made.start < both.start {
            let first = made.start..made.start + 1;
            let to = part_mut(&mut y, dim, &made, first.clone());
            fused(&NEGATIVE, 0, &[x(first)], &mut [to]);
        }
        let before = both.start - 1..both.end - 1;
        let to = part_mut(&mut y, dim, &made, both.clone());
        fused(&APART, 0, &[x(before), x(both.clone())], &mut [to]);
        if both.end < made.end {
            let mut to = part_mut(&mut y, dim, &made, made.end - 1..made.end);
            copy(&x(read.end - 1..read.end), &mut to);
        }
    }
}

/// One number less another.
static APART: LazyLock<Formula> = LazyLock::new(|| {
    let (kind, of) = (Binary::Sub, [0, 1]);
    let steps = vec![
        FormulaStep::Input(0),
        FormulaStep::Input(1),
        FormulaStep::Binary { kind, of },
    ];
    Formula::new(steps, vec![1; 2], vec![vec![2]])
});

/// A number less than 0 by as much as another is more.
static NEGATIVE: LazyLock<Formula> = LazyLock::new(|| {
    let (map, order, of) = (Unary::Neg, 0, 0);
    let steps = vec![FormulaStep::Input(0), FormulaStep::Map { map, order, of }];
    Formula::new(steps, vec![1], vec![vec![1]])
});

/// These indices of a dim of which a view has some.
fn part<'a, T>(x: &View<'a, T>, dim: usize, has: &Range<usize>, of: Range<usize>) -> View<'a, T> {
    let (start, extent) = place(x.shape(), dim, has, &of);
    x.sub_box(&start, &extent)
}

/// As [`part`], to be written.
fn part_mut<'a, T>(
    y: &'a mut ViewMut<'_, T>,
    dim: usize,
    has: &Range<usize>,
    of: Range<usize>,
) -> ViewMut<'a, T> {
    let (start, extent) = place(y.shape(), dim, has, &of);
    y.reborrow().sub_box(&start, &extent)
}

/// The box of a part along a dim.
fn place(shape: &[usize], dim: usize, has: &Range<usize>, of: &Range<usize>) -> (Dims, Dims) {
    let (mut start, mut extent) = (Dims::from_elem(0, shape.len()), Dims::from_slice(shape));
    start[dim] = of.start - has.start;
    extent[dim] = of.len();
    (start, extent)
}
