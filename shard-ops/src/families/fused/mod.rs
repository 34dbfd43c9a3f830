//! Pointwise ops that are several maps in a row, in one pass over memory.

mod gradient;
mod layers;
mod symbol;

pub use self::layers::{gru, lstm, rotary};
pub use self::symbol::{Side, Symbol};

use self::gradient::{Gradient, gradient};
use self::symbol::Steps;
use super::broadcast::{expand, sum_to};
use super::elementwise::{self, Arithmetic, UnaryMap, number, where_};
use super::full::each_of_all_rounded_once;
use super::index::{slice, stack};
use super::shape::reshape;
use super::types::float_types;
use crate::host::with_stored;
use crate::rule::broadcast;
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Meta, Op, OpError, Precision, Result,
    Rule, Saved, Value, Values, holds, key_of,
};
use shard_comm::{DType, DeviceKind, Element};
use shard_kernels::View;
use shard_kernels::attention::Stored;
use shard_kernels::fused::{Formula, FormulaStep, MOST, fused};
use shard_spec::Dims;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError};

/// A pointwise op that is written as arithmetic with its operands' elements.
///
/// Each element goes through the whole formula at once, so that results between its steps take no memory, and no pass over it; operands of 16
/// bits are computed in `f32` and results rounded once. Derivatives are formulas too, made from this one as vjps of the single ops are, so it
/// can be differentiated as often as these: maps of one number three times.
///
/// Devices without a kernel for formulas, such as GPUs, apply the same steps as ops one after the other.
///
/// ```
/// use shard_ops::fused::Fused;
/// # use shard_comm::Communicator;
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_ops::{Engine, EngineOptions, Value};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// shard_comm::local::run(2, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::new(&[2]).unwrap();
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let engine = Engine::new(EngineOptions::default());
///     // A gated unit: what goes through, times the silu of its gate.
///     let swiglu = Fused::new("swiglu", |[gate, x]| [gate * gate.sigmoid() * x]);
///     let layout = Layout::parse(&mesh, &[3], "S(0)").unwrap();
///     let gate = Array::from_fn(&cx, &layout, |_| 40.0).unwrap();
///     let x = Array::from_fn(&cx, &layout, |_| 0.5).unwrap();
///     let y = swiglu.apply1(&*engine, &[&Value::new(gate), &Value::new(x)]).unwrap();
///     // Each rank has its rows.
///     let rows = 2 - cx.rank();
///     assert_eq!(y.array().to_vec::<f64>().unwrap(), vec![20.0; rows]);
/// }).unwrap();
/// ```
#[derive(Debug)]
pub struct Fused {
    name: &'static str,
    formula: Formula,
    key: u128,
    /// Its derivative, where that takes fewer steps than one that is made from the formula's.
    slopes: Option<Slopes>,
    /// By which operands need a cotangent and which results have one.
    gradients: Mutex<Vec<(Asked, Arc<Gradient>)>>,
}

/// How the one result of a formula grows with each operand: steps from the operands on, and which of them is an operand's slope, if it has one.
#[derive(Debug)]
struct Slopes {
    steps: Vec<FormulaStep>,
    of: Vec<Option<usize>>,
}

/// Which operands need a cotangent, and which results have one.
type Asked = (SmallVec<[bool; 4]>, SmallVec<[bool; 4]>);

impl Fused {
    /// A formula from `N` operands, whose shapes broadcast, to `M` results.
    ///
    /// Ops of one name have one formula: what ranks agree on by name is computed by it.
    pub fn new<const N: usize, const M: usize>(
        name: &'static str,
        f: impl for<'f> FnOnce([Symbol<'f>; N]) -> [Symbol<'f>; M],
    ) -> Arc<Self> {
        Self::of_parts(name, [1; N], |x| {
            f(x.map(|parts| parts[0])).map(|y| vec![y])
        })
    }

    /// As [`new`](Self::new), with operands of so many parts: one of several has a dim more than the others, of that extent, and each of
    /// its indices is a part. So have results that are given as several.
    pub fn of_parts<const N: usize, const M: usize>(
        name: &'static str,
        parts: [usize; N],
        f: impl for<'f> FnOnce([&[Symbol<'f>]; N]) -> [Vec<Symbol<'f>>; M],
    ) -> Arc<Self> {
        let steps = Steps::default();
        let all: usize = parts.iter().sum();
        let inputs: Vec<_> = (0..all)
            .map(|part| steps.symbol(FormulaStep::Input(part)))
            .collect();
        let mut first = 0;
        let of_operands = parts.map(|parts| {
            first += parts;
            &inputs[first - parts..first]
        });
        let results = f(of_operands).map(|parts| parts.iter().map(|part| part.at()).collect());
        let results = results.into_iter().collect();
        drop(inputs);
        let formula = Formula::new(steps.into_vec(), parts.to_vec(), results);
        Self::of_formula(name, formula)
    }

    /// As [`new`](Self::new), of one result, with its slopes along the operands: `None` for those that have no derivative.
    pub(crate) fn with_slopes<const N: usize>(
        name: &'static str,
        f: impl for<'f> FnOnce([Symbol<'f>; N]) -> Symbol<'f>,
        slopes: impl for<'f> FnOnce([Symbol<'f>; N]) -> [Option<Symbol<'f>>; N],
    ) -> Arc<Self> {
        let formula = Self::new(name, |x| [f(x)]).formula.clone();
        let steps = Steps::default();
        let of = slopes(core::array::from_fn(|i| {
            steps.symbol(FormulaStep::Input(i))
        }));
        let of = of.iter().map(|slope| slope.map(Symbol::at)).collect();
        let steps = steps.into_vec();
        Self::with(name, formula, Some(Slopes { steps, of }))
    }

    fn of_formula(name: &'static str, formula: Formula) -> Arc<Self> {
        Self::with(name, formula, None)
    }

    fn with(name: &'static str, formula: Formula, slopes: Option<Slopes>) -> Arc<Self> {
        let key = key_of(name, format!("{formula:?}").as_str());
        Arc::new(Self {
            name,
            formula,
            key,
            slopes,
            gradients: Mutex::default(),
        })
    }

    /// The results for operands whose shapes broadcast.
    ///
    /// # Collective
    /// All members of the mesh; communicates only to align operands whose boundaries differ. A partial operand is reduced first.
    ///
    /// # Errors
    /// Another number of operands; shapes that do not broadcast; types that differ, are no floats, or do not hold a number of the formula.
    pub fn apply(self: &Arc<Self>, exec: &dyn Exec, operands: &[&Value]) -> Result<Values> {
        self.apply_to(exec, operands, 0)
    }

    /// As [`apply`](Self::apply), the result of a formula that has one.
    ///
    /// # Collective
    /// As [`apply`](Self::apply).
    ///
    /// # Errors
    /// As [`apply`](Self::apply); a formula of several results.
    pub fn apply1(self: &Arc<Self>, exec: &dyn Exec, operands: &[&Value]) -> Result<Value> {
        self.one_of_parts(exec, operands, 0)
    }

    /// As [`apply`](Self::apply), where the dim of an operand's parts has so many dims behind it. Where that dim is sharded, the operand
    /// is resharded along the one behind it.
    ///
    /// # Collective
    /// As [`apply`](Self::apply).
    ///
    /// # Errors
    /// As [`apply`](Self::apply); an operand without a dim of its parts.
    pub fn apply_to(
        self: &Arc<Self>,
        exec: &dyn Exec,
        operands: &[&Value],
        behind: usize,
    ) -> Result<Values> {
        let pass = self.pass(behind);
        match operands {
            [first, ..] if !first.array().cx().device().runs_host_jobs() => {
                pass.by_ops(exec, operands)
            }
            _ => exec.results(Arc::new(pass), operands),
        }
    }

    /// As [`apply_to`](Self::apply_to), the result of a formula that has one.
    pub(crate) fn one_of_parts(
        self: &Arc<Self>,
        exec: &dyn Exec,
        operands: &[&Value],
        behind: usize,
    ) -> Result<Value> {
        match self.apply_to(exec, operands, behind)?.into_inner() {
            Ok([value]) => Ok(value),
            Err(more) => Err(OpError::arity(self.name, "one output", more.len())),
        }
    }

    fn pass(self: &Arc<Self>, behind: usize) -> Pass {
        Pass {
            fused: self.clone(),
            behind,
        }
    }

    /// The op that [`apply_to`](Self::apply_to) applies, as [`validate`](crate::testing::validate) takes it.
    pub fn op(self: &Arc<Self>, behind: usize) -> Arc<dyn Op> {
        Arc::new(self.pass(behind))
    }

    fn gradient(&self, asked: Asked) -> Result<Arc<Gradient>> {
        let mut known = self
            .gradients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = known.iter().find(|(of, _)| *of == asked) {
            return Ok(known.clone());
        }
        let made = Arc::new(gradient(self, &asked.0, &asked.1)?);
        known.push((asked, made.clone()));
        Ok(made)
    }
}

/// A formula with the place of the parts' dim.
#[derive(Clone, Debug)]
struct Pass {
    fused: Arc<Fused>,
    /// How many dims there are behind that of the parts.
    behind: usize,
}

impl Pass {
    /// Where the dim of several parts is among so many dims.
    fn dim_of(&self, parts: usize, ndim: usize) -> Option<usize> {
        match parts {
            1 => None,
            _ => ndim.checked_sub(self.behind + 1),
        }
    }

    /// The shape that operands have without their parts' dims.
    fn shape(&self, inputs: &[Meta]) -> Result<Dims> {
        let (name, operands) = (self.fused.name, self.fused.formula.operands());
        if inputs.len() != operands.len() {
            let wanted = format!("{} operands", operands.len());
            return Err(OpError::arity(name, wanted, inputs.len()));
        }
        let results = self.fused.formula.results().iter().map(Vec::len);
        let parts = operands.iter().copied().chain(results).sum();
        if parts > MOST {
            let wanted = format!("at most {MOST} parts of operands and results");
            return Err(OpError::arity(name, wanted, parts));
        }
        let mut plain = inputs.to_vec();
        for (meta, &parts) in plain.iter_mut().zip(operands) {
            let dim = self.dim_of(parts, meta.shape.len());
            match dim.filter(|&dim| meta.shape[dim] == parts) {
                Some(dim) => drop(meta.shape.remove(dim)),
                None if parts == 1 => {}
                None => {
                    return Err(OpError::Shape {
                        op: name,
                        problem: format!("no dim of {parts} before the last {}", self.behind),
                        shapes: vec![meta.shape.to_vec()],
                        fix: "give the operand a dim of its parts",
                    });
                }
            }
        }
        let shape = broadcast(name, &plain)?;
        let mut results = self.fused.formula.results().iter();
        match results.any(|parts| parts.len() != 1) && shape.len() < self.behind {
            true => Err(OpError::Shape {
                op: name,
                problem: format!("no {} dims behind those of parts", self.behind),
                shapes: vec![shape.to_vec()],
                fix: "give operands of as many dims",
            }),
            false => Ok(shape),
        }
    }

    /// The shape of an operand or result of so many parts.
    fn with_parts(&self, shape: &[usize], parts: usize) -> Dims {
        let mut with = Dims::from_slice(shape);
        if parts != 1 {
            with.insert(shape.len() - self.behind, parts);
        }
        with
    }

    /// The same, as ops one after the other.
    fn by_ops(&self, exec: &dyn Exec, operands: &[&Value]) -> Result<Values> {
        let metas: Vec<Meta> = operands.iter().map(|x| Meta::of(x)).collect();
        let shape = self.shape(&metas)?;
        let found = each_of_all_rounded_once(exec, operands, |operands| {
            let formula = &self.fused.formula;
            let mut parts = Vec::new();
            for (x, &count) in operands.iter().zip(formula.operands()) {
                match self.dim_of(count, x.ndim()) {
                    None => parts.push((*x).clone()),
                    Some(dim) => {
                        let mut plain = x.shape().to_vec();
                        plain.remove(dim);
                        for part in 0..count {
                            let part = slice(exec, x, dim, part, 1, 1)?;
                            parts.push(reshape(exec, &part, &plain)?);
                        }
                    }
                }
            }
            let mut values: Vec<Value> = Vec::new();
            for step in formula.steps() {
                values.push(self.step(exec, step, &parts, &values)?);
            }
            let results = formula.results().iter().map(|parts| {
                let parts = parts
                    .iter()
                    .map(|&part| expand(exec, &values[part], &shape));
                let parts = parts.collect::<Result<Vec<_>>>()?;
                match &parts[..] {
                    [one] => Ok(Some(one.clone())),
                    _ => {
                        let parts: Vec<&Value> = parts.iter().collect();
                        Ok(Some(stack(exec, &parts, shape.len() - self.behind)?))
                    }
                }
            });
            results.collect()
        })?;
        Ok(found.into_iter().flatten().collect())
    }

    /// One step as an op of those before it.
    fn step(
        &self,
        exec: &dyn Exec,
        step: &FormulaStep,
        parts: &[Value],
        before: &[Value],
    ) -> Result<Value> {
        let of = |at: usize| &before[at];
        match *step {
            FormulaStep::Input(part) => Ok(parts[part].clone()),
            FormulaStep::Number(value) => number(self.fused.name, &parts[0], value),
            FormulaStep::Map {
                map,
                order: 0,
                of: x,
            } => elementwise::unary(exec, of(x), map),
            FormulaStep::Map { map, order, of: x } => {
                let one = expand(exec, &number(self.fused.name, of(x), 1.0)?, of(x).shape())?;
                exec.apply1(Arc::new(UnaryMap { map, order }), &[of(x), &one])
            }
            FormulaStep::Binary { kind, of: [a, b] } => {
                exec.apply1(Arc::new(Arithmetic::of(kind)), &[of(a), of(b)])
            }
            FormulaStep::Below([a, b, x, y]) => {
                let below = elementwise::lt(exec, &of(a).detach(), &of(b).detach())?;
                where_(exec, &below, of(x), of(y))
            }
        }
    }

    fn run<T: Stored + Element>(&self, call: &mut HostCall<'_, '_>) {
        let formula = &self.fused.formula;
        let plain = match (call.cx.outputs.first(), formula.results().first()) {
            (Some(at), Some(parts)) => {
                let mut plain = at.shape.clone();
                if let Some(dim) = self.dim_of(parts.len(), plain.len()) {
                    plain.remove(dim);
                }
                plain
            }
            _ => return,
        };
        let inputs: SmallVec<[View<'_, T>; 8]> = (formula.operands().iter().enumerate())
            .filter_map(|(i, &parts)| {
                call.input::<T>(i)
                    .broadcast_to(&self.with_parts(&plain, parts))
            })
            .collect();
        let mut outs = call.outputs_from::<T>(0);
        fused(formula, self.behind, &inputs, &mut outs);
    }
}

impl Op for Pass {
    fn name(&self) -> &'static str {
        self.fused.name
    }

    fn key(&self) -> u128 {
        self.fused.key ^ self.behind as u128
    }

    fn precision(&self) -> Precision {
        let is_steep = |step: &FormulaStep| match *step {
            FormulaStep::Map { map, order: 0, .. } => elementwise::is_steep(map),
            _ => false,
        };
        match self.fused.formula.steps().iter().any(is_steep) {
            true => Precision::Full,
            false => Precision::Widest,
        }
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let name = self.fused.name;
        let dtype = float_types(name, inputs)?;
        let shape = self.shape(inputs)?;
        let formula = &self.fused.formula;
        for step in formula.steps() {
            if let FormulaStep::Number(value) = *step
                && !holds(dtype, value)
            {
                return Err(OpError::Value {
                    op: name,
                    value,
                    dtype,
                });
            }
        }
        let mut rule = Rule::builder(name, inputs)
            .any_order()
            .flops(formula.steps().len() as f64);
        let factors: Vec<usize> = shape.iter().map(|&n| rule.factor(n)).collect();
        // What is sharded along its parts is sharded along the dim behind them instead.
        let instead = (shape.len().checked_sub(self.behind))
            .and_then(|dim| factors.get(dim))
            .copied();
        let with_parts = |mut dims: Vec<Access>, parts: usize| {
            if parts != 1 {
                dims.insert(dims.len() - self.behind, Access::Whole { instead });
            }
            dims
        };
        for (meta, &parts) in inputs.iter().zip(formula.operands()) {
            let mut extents = meta.shape.clone();
            if let Some(dim) = self.dim_of(parts, extents.len()) {
                extents.remove(dim);
            }
            let lead = shape.len() - extents.len();
            let dims =
                extents
                    .iter()
                    .enumerate()
                    .map(|(d, &n)| match n == 1 && shape[lead + d] != 1 {
                        true => Access::WHOLE,
                        false => Access::factor(factors[lead + d]),
                    });
            rule = rule.input(with_parts(dims.collect(), parts));
        }
        for parts in formula.results() {
            let dims = factors.iter().map(|&f| Access::factor(f)).collect();
            let extents = self.with_parts(&shape, parts.len());
            rule = rule.output(with_parts(dims, parts.len()), extents, dtype);
        }
        rule.build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.dtype(), T => self.run::<T>(call));
    }

    /// The kernel widens what a block reads, and rounds what it writes.
    fn halves(&self, _: DType, _: &[Meta], _: DeviceKind) -> Halves {
        Halves::ALL
    }

    fn keeps(&self) -> Keeps {
        Keeps::INPUTS
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let given: SmallVec<[bool; 4]> = cotangents.iter().map(Option::is_some).collect();
        if !given.contains(&true) {
            return Ok(vec![None; saved.needs.len()]);
        }
        let gradient = self.fused.gradient((saved.needs.into(), given))?;
        let operands: SmallVec<[&Value; 8]> = saved
            .inputs
            .iter()
            .chain(cotangents.iter().flatten())
            .collect();
        let back = |operands: &[&Value]| {
            let found = gradient.fused.apply_to(exec, operands, self.behind)?;
            let of = gradient.of.iter().zip(saved.inputs);
            of.map(|(of, input)| {
                let found = of.map(|result| sum_to(exec, &found[result], input.shape()));
                found.transpose()
            })
            .collect()
        };
        let metas: Vec<Meta> = saved.inputs.iter().map(Meta::of).collect();
        let shape = self.shape(&metas)?;
        let operands_and_parts = saved.inputs.iter().zip(self.fused.formula.operands());
        // What is summed over is rounded behind the sum; numbers beside the operands have no cotangent.
        let is_summed = |((input, &parts), of): ((&Value, &usize), &Option<usize>)| {
            of.is_some() && input.shape() != &self.with_parts(&shape, parts)[..]
        };
        match !operands_and_parts.zip(&gradient.of).any(is_summed) {
            true => back(&operands),
            false => each_of_all_rounded_once(exec, &operands, back),
        }
    }
}
