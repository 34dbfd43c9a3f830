//! Linear recurrences: each element is a factor times the one before it, and a term.
//!
//! A part of the dim makes `A h + B` of the state `h` that the parts before it leave: its total is the pair of the product `A` of
//! its factors and of what it makes of nothing, `B`. What a part is given is what those before make of the first state, one after the
//! other. The derivative goes the other way, with factors that are taken as the state goes on: no factors move for that.

use super::parts::{self, Parts};
use crate::error::InOp;
use crate::families::broadcast::{expand, expand_like, sum, sum_to};
use crate::families::elementwise::mul;
use crate::families::full::{each_of_all_rounded_once, sums};
use crate::families::index::{shift, slice};
use crate::families::types::float_types;
use crate::host::with_float;
use crate::rule::broadcast;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Precision,
    Result, Rule, Saved, Value, key_of,
};
use shard_comm::DType;
use shard_kernels::Real;
use shard_kernels::scan::{Recurrence, Scan, floats, recurrence};
use shard_spec::{DimSharding, Dims, Partition};
use smallvec::smallvec;
use std::sync::Arc;

const NAME: &str = "linear_recurrence";

/// `h[t] = a[t] h[t-1] + b[t]` along a dim, of `b`, `a` and the `h` before all others, which is 0 if it is not given; or
/// `h[t] = a[t] h[t+1] + b[t]`, `backwards`. Shapes broadcast as in NumPy, and `dim` is one of the result's: `a` may be one number for a line, or
/// for all. The first `h` has extent 1 there.
///
/// Where the dim is sharded, a part that starts from 0 is as on one device whatever its factors come to; a factor that is infinite
/// may make NaN of what is infinite there.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, every rank gathers the totals of the other parts, two numbers in `f64` per line and
/// part, and sums of partial operands are taken first; else nothing moves, and a partial `b` alone stays one. A dim in several intervals
/// per rank (zigzag, striped) is first brought to one each, and `a` to the parts of `b`, as which the result lies.
///
/// # Errors
/// A dim out of range; shapes that do not broadcast; a first `h` with another extent than 1 along the dim; types that differ; integers and
/// truth values.
pub fn linear_recurrence(
    exec: &dyn Exec,
    b: &Value,
    a: &Value,
    first: Option<&Value>,
    dim: usize,
    backwards: bool,
) -> Result<Value> {
    let operands = [Some(b), Some(a), first].into_iter().flatten();
    let metas: Vec<Meta> = operands.map(Meta::of).collect();
    let shape = broadcast(NAME, &metas)?;
    let misfit = |problem, fix| OpError::Shape {
        op: NAME,
        problem,
        shapes: metas.iter().map(|meta| meta.shape.to_vec()).collect(),
        fix,
    };
    if dim >= shape.len() {
        let problem = format!("dim {dim} of a result of {} dims", shape.len());
        return Err(misfit(problem, "name one of the result's dims"));
    }
    let first = match first {
        Some(first) => {
            let along = (dim + first.ndim()).checked_sub(shape.len());
            if along.is_some_and(|d| first.shape()[d] != 1) {
                let problem = format!("a first state with more than one index of dim {dim}");
                return Err(misfit(problem, "give one of extent 1 along the dim"));
            }
            let mut line = shape.clone();
            line[dim] = 1;
            Some(repeated(exec, first, &line, None)?)
        }
        None => None,
    };
    let b = repeated(exec, b, &shape, Some(a))?;
    let of = Recurrence {
        backwards,
        adjoint: false,
    };
    along(exec, of, &b, a, first.as_ref(), dim)
}

/// A value repeated to a shape, lying as another one that has it.
fn repeated(exec: &dyn Exec, x: &Value, shape: &[usize], like: Option<&Value>) -> Result<Value> {
    match like {
        _ if x.shape() == shape => Ok(x.clone()),
        Some(like) if like.shape() == shape => expand_like(exec, x, like),
        _ => expand(exec, x, shape),
    }
}

/// A recurrence of terms that have the result's shape, and a first state with extent 1 along the dim.
fn along(
    exec: &dyn Exec,
    of: Recurrence,
    b: &Value,
    a: &Value,
    first: Option<&Value>,
    dim: usize,
) -> Result<Value> {
    // Which dim of the factors it is, if they differ along it.
    let own = (dim + a.ndim())
        .checked_sub(b.ndim())
        .filter(|&d| a.shape()[d] == b.shape()[dim]);
    let sharded = |x: &Value, dim: usize| {
        let sharding = x.layout().sharding(dim)?;
        let partition = Partition::from(sharding.partition.to_contiguous());
        let axes = sharding.axes.clone();
        Some(DimSharding { axes, partition })
    };
    let is_free = |sharding: &DimSharding| (0..b.ndim()).all(|d| !meets(b, d, sharding));
    let sharding = sharded(b, dim).or_else(|| sharded(a, own?).filter(is_free));
    let parts = Parts::divided(b.shape()[dim], dim, sharding.as_ref())?;
    let op = Recurring {
        of,
        parts,
        starts: first.is_some(),
        stored: b.dtype().is_half(),
    };
    let Some(sharding) = sharding.filter(|_| op.parts.has_totals()) else {
        let operands: Vec<&Value> = [Some(b), Some(a), first].into_iter().flatten().collect();
        return exec.apply1(Arc::new(op), &operands);
    };
    // Two ops read them.
    let [b, a] = sums(exec, [b, a])?;
    let b = brought(exec, 0, &b, Some(dim), &sharding)?;
    let a = brought(exec, 1, &a, own, &sharding)?;
    let totals = Arc::new(RecurringTotals(op.clone()));
    let [of_nothing, factors] = exec.apply_n(totals, &[&b.detach(), &a.detach()])?;
    let [of_nothing, factors] = [
        op.parts.gathered(exec, &of_nothing)?,
        op.parts.gathered(exec, &factors)?,
    ];
    let operands = [Some(&b), Some(&a), first, Some(&of_nothing), Some(&factors)];
    let operands: Vec<&Value> = operands.into_iter().flatten().collect();
    exec.apply1(Arc::new(op), &operands)
}

/// Whether axes of a sharding divide a dim of a value.
fn meets(x: &Value, dim: usize, sharding: &DimSharding) -> bool {
    let own = x.layout().sharding(dim);
    own.is_some_and(|own| own.axes.iter().any(|axis| sharding.axes.contains(axis)))
}

/// An operand as the parts need it: divided as they are along the recurrence's dim, and by their axes along no other. One that
/// neither concerns stays where it is.
fn brought(
    exec: &dyn Exec,
    operand: usize,
    x: &Value,
    dim: Option<usize>,
    sharding: &DimSharding,
) -> Result<Value> {
    let divided = |d| Some(d) == dim && x.layout().sharding(d).is_some();
    if !(0..x.ndim()).any(|d| divided(d) || meets(x, d, sharding)) {
        return Ok(x.clone());
    }
    let dims = (0..x.ndim()).map(|d| match x.layout().sharding(d) {
        _ if Some(d) == dim => Some(sharding.clone()),
        Some(_) if meets(x, d, sharding) => None,
        own => own.cloned(),
    });
    let to = x.layout().with_dims(x.shape(), dims).in_op(NAME)?;
    match to == *x.layout() {
        true => Ok(x.clone()),
        false => exec.aligned((NAME, operand), x, &to),
    }
}

/// A recurrence of terms, factors, the first state if it `starts` from one, and, of a dim in parts, their totals: what each makes of nothing,
/// and the product of its factors.
#[derive(Clone, Debug)]
pub(crate) struct Recurring {
    pub(super) of: Recurrence,
    pub(super) parts: Parts,
    pub(super) starts: bool,
    /// Whether the terms are kept for the derivative: a result of 16 bits has lost what it was rounded by, and is found anew.
    stored: bool,
}

/// The totals of the parts.
#[derive(Clone, Debug)]
pub(crate) struct RecurringTotals(pub(super) Recurring);

impl Recurring {
    /// The number of the first operand that is totals.
    pub(super) fn totals(&self) -> usize {
        2 + usize::from(self.starts)
    }

    /// How the dims of the factors are indexed, if those of the terms are so.
    fn along_factors(dims: &[Access], inputs: &[Meta]) -> Vec<Access> {
        let (shape, own) = (&inputs[0].shape, &inputs[1].shape);
        let lead = shape.len() - own.len();
        let each = own
            .iter()
            .enumerate()
            .map(|(d, &n)| match n == shape[lead + d] {
                true => dims[lead + d].clone(),
                false => Access::WHOLE,
            });
        each.collect()
    }

    /// The state of each line before the first element of this call's part.
    fn begun(&self, call: &HostCall<'_, '_>, lines: usize) -> Vec<f64> {
        let (dim, totals) = (self.parts.dim, self.totals());
        let mut states = match self.starts {
            true => with_float!(call.dtype(), T => {
                let first = call.input::<T>(2).to_vec();
                first.into_iter().map(Real::wide).collect()
            }),
            false => vec![0.0; lines],
        };
        if call.inputs.len() == totals {
            return states;
        }
        let before = self.parts.before(&call.cx.inputs[0], self.of.backwards);
        let [of_nothing, factors] = [0, 1].map(|k| call.input::<f64>(totals + k));
        let mut part = vec![(0.0, 1.0); lines];
        for k in before {
            parts::join(&of_nothing, dim, &[k], &mut part, |part, b| part.0 = b);
            parts::join(&factors, dim, &[k], &mut part, |part, a| part.1 = a);
            for (state, &(of_nothing, factor)) in states.iter_mut().zip(&part) {
                *state = Recurrence::join(*state, factor, of_nothing);
            }
        }
        states
    }
}

impl Op for Recurring {
    fn name(&self) -> &'static str {
        match self.of.adjoint {
            true => "linear_recurrence_adjoint",
            false => NAME,
        }
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(self.of, &self.parts, self.starts))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let own = self.totals();
        let dtype = float_types(self.name(), &inputs[..own])?;
        let (mut rule, dims, _) = self.parts.accesses(self.name(), inputs);
        rule = (rule.input(dims.clone())).input(Self::along_factors(&dims, inputs));
        let mut of_lines = dims.clone();
        of_lines[self.parts.dim] = Access::WHOLE;
        for _ in 2..inputs.len() {
            rule = rule.input(of_lines.clone());
        }
        // Terms pass where the state is of them alone.
        let linear = match inputs.len() {
            2 => Linearity::Each(smallvec![0]),
            _ => Linearity::None,
        };
        rule.output(dims, inputs[0].shape.clone(), dtype)
            .linearity(linear)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (dim, shape) = (self.parts.dim, call.cx.inputs[0].shape.clone());
        let mut states = self.begun(call, parts::line_shape(&shape, dim).iter().product());
        with_float!(call.dtype(), T => {
            let (b, a) = (call.input::<T>(0), call.input::<T>(1));
            if let Some(a) = a.broadcast_to(&shape) {
                let to = &mut call.output::<T>(0);
                recurrence(self.of, &a, &b, dim, &mut states, Some(to));
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        match (self.stored, self.starts) {
            (true, true) => Keeps::inputs(&[0, 1, 2]),
            (true, false) => Keeps::inputs(&[0, 1]),
            (false, true) => Keeps::inputs(&[1, 2]).and_outputs(&[0]),
            (false, false) => Keeps::inputs(&[1]).and_outputs(&[0]),
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None; saved.needs.len()]);
        };
        let known = match self.stored {
            true => &saved.inputs[0],
            false => &saved.outputs[0],
        };
        let mut operands = vec![dy, &saved.inputs[1], known];
        if self.starts {
            operands.push(&saved.inputs[2]);
        }
        each_of_all_rounded_once(exec, &operands, |of| {
            let (dy, a, known, first) = (of[0], of[1], of[2], of.get(3).copied());
            let opposite = Recurrence {
                backwards: !self.of.backwards,
                adjoint: !self.of.adjoint,
            };
            let db = along(exec, opposite, dy, a, None, self.parts.dim)?;
            saved.pull_back(cotangents, |_, operand| match operand {
                0 => Ok(db.clone()),
                1 => {
                    let y = match self.stored {
                        true => along(exec, self.of, known, a, first, self.parts.dim)?,
                        false => known.clone(),
                    };
                    self.of_factors(exec, &db, a, &y, first)
                }
                2 if self.starts => self.of_first(exec, &db, a),
                // The totals are made of the first operands, whose derivatives are of both.
                _ => Err(OpError::NoVjp {
                    op: self.name(),
                    operand,
                }),
            })
        })
    }
}

impl Recurring {
    /// The cotangent of the factors: that of the terms, times what each factor was multiplied with.
    fn of_factors(
        &self,
        exec: &dyn Exec,
        db: &Value,
        a: &Value,
        y: &Value,
        first: Option<&Value>,
    ) -> Result<Value> {
        let (dim, backwards) = (self.parts.dim, self.of.backwards);
        // What comes before each element in the order of the one of the two that takes its factors as the state comes.
        let each = match self.of.adjoint {
            true => mul(exec, y, &shift(exec, db, dim, !backwards, None)?)?,
            false => mul(exec, db, &shift(exec, y, dim, backwards, first)?)?,
        };
        sum_to(exec, &each, a.shape())
    }

    /// The cotangent of the first state: what goes on behind the first element.
    fn of_first(&self, exec: &dyn Exec, db: &Value, a: &Value) -> Result<Value> {
        let (dim, n) = (self.parts.dim, db.shape()[self.parts.dim]);
        // Of no elements the first state makes nothing.
        let begin = if self.of.backwards {
            n.saturating_sub(1)
        } else {
            0
        };
        let at = |x: &Value, dim: usize| slice(exec, x, dim, begin, 1, n.min(1));
        let own = (dim + a.ndim()).checked_sub(db.ndim());
        let a = match own.filter(|&own| a.shape()[own] == n) {
            Some(own) => at(a, own)?,
            None => a.clone(),
        };
        sum(exec, &mul(exec, &at(db, dim)?, &a)?, &[dim], true)
    }
}

impl Op for RecurringTotals {
    fn name(&self) -> &'static str {
        "scan_totals"
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of("recurrence_totals", &(self.0.of, &self.0.parts))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (name, parts) = (self.name(), &self.0.parts);
        float_types(self.0.name(), inputs)?;
        let (rule, dims, each) = parts.accesses(name, inputs);
        let (mut of_totals, mut shape): (_, Dims) = (dims.clone(), inputs[0].shape.clone());
        (of_totals[parts.dim], shape[parts.dim]) = (each, parts.count());
        let factors = Recurring::along_factors(&dims, inputs);
        rule.input(dims)
            .input(factors)
            .output(of_totals.clone(), shape.clone(), DType::F64)
            .output(of_totals, shape, DType::F64)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let Recurring { of, parts, .. } = &self.0;
        let at = &call.cx.inputs[0];
        let lines: usize = parts::line_shape(&at.shape, parts.dim).iter().product();
        let each = parts.within(at, &call.cx.outputs[0]);
        with_float!(call.inputs[0].dtype(), T => {
            let b = call.input::<T>(0);
            let Some(a) = call.input::<T>(1).broadcast_to(&at.shape) else {
                return;
            };
            for (k, rows) in each.into_iter().enumerate() {
                let [b, a] = [&b, &a].map(|of| parts.rows(of, rows.clone()));
                let (mut of_nothing, mut factors) = (vec![0.0; lines], vec![1.0; lines]);
                recurrence(*of, &a, &b, parts.dim, &mut of_nothing, None);
                floats(Scan::Prod, of.backwards, &a, parts.dim, &mut factors, None);
                let (mut to, mut of_factors) = call.output_pair::<f64, f64>();
                parts.put(&mut to, k, &of_nothing);
                parts.put(&mut of_factors, k, &factors);
            }
        });
    }

    crate::kernel::gpu_kernel!();
}
