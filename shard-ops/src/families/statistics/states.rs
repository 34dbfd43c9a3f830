//! States of cells: what the ranks' parts of a cell come to, merged at once.

use super::check_dims;
use crate::families::broadcast::expand;
use crate::families::elementwise::{add, cast, div_scalar, mul, mul_scalar, sub, unary};
use crate::families::full::rounded_once;
use crate::families::index::slice;
use crate::families::reduce::mean;
use crate::families::shape::reshape;
use crate::families::types::{float_types, number_types};
use crate::host::{is_whole, with_float, with_whole};
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, OperandBox,
    Precision, Reduction, Result, Rule, Saved, Value, key_of,
};
use shard_comm::{DType, Element, Monoid};
use shard_kernels::Real;
use shard_kernels::best::best;
use shard_kernels::cells::map_cells;
use shard_kernels::moments::moments;
use shard_kernels::softmax::{exponentials, max_sum_exp};
use shard_kernels::unary::Unary;
use shard_kernels::whole::{Number, Whole};
use shard_spec::Dims;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The state of every cell of `x` over dims under a monoid, as a last dim; `f64`, or of integers `i64`.
///
/// # Collective
/// All members of the mesh. Communicates the states if reduced dims are sharded.
///
/// # Errors
/// A dim out of range or named twice; a type that has no such statistic.
pub(crate) fn states(
    exec: &dyn Exec,
    name: &'static str,
    monoid: Monoid,
    x: &Value,
    dims: &[usize],
) -> Result<Value> {
    check_dims(name, x, dims)?;
    let mut dims: SmallVec<[usize; 6]> = dims.into();
    dims.sort_unstable();
    exec.apply1(Arc::new(States { name, monoid, dims }), &[x])
}

/// Number `k` of every state, in a shape of as many elements as there are cells.
pub(super) fn part(exec: &dyn Exec, states: &Value, k: usize, shape: &[usize]) -> Result<Value> {
    reshape(
        exec,
        &slice(exec, states, states.ndim() - 1, k, 1, 1)?,
        shape,
    )
}

/// The states of cells.
#[derive(Clone, Debug)]
pub(crate) struct States {
    /// The op it is done for, for messages.
    pub(crate) name: &'static str,
    pub(crate) monoid: Monoid,
    /// The dims that cells extend over, ascending.
    pub(crate) dims: SmallVec<[usize; 6]>,
}

/// The derivative of (count, mean, M2) or of (maximum, sum of exponentials), of which the maximum counts as a constant, for passes
/// that are not recorded: inputs are the operand, its states and their cotangent.
#[derive(Clone, Debug)]
pub(crate) struct StatesGrad(pub(crate) States);

impl States {
    pub(crate) fn has_indices(&self) -> bool {
        matches!(self.monoid, Monoid::ArgMax | Monoid::ArgMin)
    }

    /// The type of states of elements of a type.
    fn dtype(of: DType) -> DType {
        if is_whole(of) { DType::I64 } else { DType::F64 }
    }

    /// How the dims of the operand are indexed, and those of states, and the shape of these.
    fn accesses(&self, rule: &mut crate::RuleBuilder, x: &Meta) -> [Vec<Access>; 2] {
        let all: Vec<Access> = (x.shape.iter())
            .map(|&n| Access::factor(rule.factor(n)))
            .collect();
        let kept = (0..all.len()).filter(|d| !self.dims.contains(d));
        let mut cells: Vec<Access> = kept.map(|d| all[d].clone()).collect();
        cells.push(Access::WHOLE);
        [all, cells]
    }

    /// The shape of the states of an operand.
    fn shape(&self, x: &[usize]) -> Dims {
        let kept = (0..x.len()).filter(|d| !self.dims.contains(d));
        kept.map(|d| x[d]).chain([self.monoid.width()]).collect()
    }

    /// The index of the first element of a box among those of its cell, and the steps of indices along the dims.
    pub(crate) fn indices(&self, at: &OperandBox) -> (i64, SmallVec<[isize; 6]>) {
        let mut steps: SmallVec<[isize; 6]> = smallvec![0; self.dims.len()];
        let (mut step, mut first) = (1, 0);
        for (k, &d) in self.dims.iter().enumerate().rev() {
            steps[k] = step as isize;
            first += (at.start[d] * step) as i64;
            step *= at.global[d];
        }
        (first, steps)
    }

    /// Writes the states of whole numbers.
    fn best_of_whole<T: Whole>(&self, call: &mut HostCall<'_, '_>) {
        let none = self.monoid.identity(DType::I64);
        let none = [i64::from_scalar(none[0]), i64::from_scalar(none[1])];
        self.best::<T, i64>(call, |found| match found {
            Some((value, index)) => [value.wide(), index],
            None => none,
        });
    }

    /// Writes the states of floats.
    fn best_of_floats<T: Real + Number>(&self, call: &mut HostCall<'_, '_>) {
        let worst = match self.monoid {
            Monoid::ArgMax => f64::NEG_INFINITY,
            _ => f64::INFINITY,
        };
        self.best::<T, f64>(call, |found| match found {
            Some((value, index)) => [value.wide(), index as f64],
            None => [worst, f64::INFINITY],
        });
    }

    fn best<T: Number, S: Element>(
        &self,
        call: &mut HostCall<'_, '_>,
        state: impl Fn(Option<(T, i64)>) -> [S; 2],
    ) {
        let (first, steps) = self.indices(&call.cx.inputs[0]);
        let x = call.input::<T>(0);
        let mut to = call.output::<S>(0);
        let to = to.data_mut();
        best(
            self.monoid == Monoid::ArgMax,
            &x,
            &self.dims,
            &steps,
            &mut |cell, found| {
                let found = found.map(|(value, index)| (value, first + index));
                to[2 * cell..][..2].copy_from_slice(&state(found));
            },
        );
    }
}

impl Op for States {
    fn name(&self) -> &'static str {
        self.name
    }

    fn precision(&self) -> Precision {
        match self.monoid {
            // Where the greatest is does not depend on the type.
            Monoid::ArgMax | Monoid::ArgMin => Precision::Widest,
            _ => Precision::Full,
        }
    }

    fn key(&self) -> u128 {
        key_of("states", &(self.monoid, &self.dims))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let of = match self.has_indices() {
            true => number_types(self.name, inputs)?,
            false => float_types(self.name, inputs)?,
        };
        let mut rule = Rule::builder(self.name, inputs);
        if !self.has_indices() {
            rule = rule.any_order();
        }
        let [all, cells] = self.accesses(&mut rule, &inputs[0]);
        rule.input(all)
            .output(cells, self.shape(&inputs[0].shape), Self::dtype(of))
            .reduction(Reduction::Now(self.monoid))
            .linearity(Linearity::None)
            .build()
    }

    crate::kernel::gpu_kernel!(halves);

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let of = call.inputs[0].dtype();
        match self.monoid {
            Monoid::ArgMax | Monoid::ArgMin if is_whole(of) => {
                with_whole!(of, T => self.best_of_whole::<T>(call));
            }
            Monoid::ArgMax | Monoid::ArgMin => with_float!(of, T => self.best_of_floats::<T>(call)),
            Monoid::Moments => with_float!(of, T => {
                let found = moments(&call.input::<T>(0), &self.dims, None);
                let mut to = call.output::<f64>(0);
                let cells = found.count.iter().zip(&found.mean).zip(&found.m2);
                for (to, ((&count, &mean), &m2)) in to.data_mut().chunks_exact_mut(3).zip(cells) {
                    to.copy_from_slice(&[count, mean, m2]);
                }
            }),
            Monoid::MaxSumExp => with_float!(of, T => {
                let x = call.input::<T>(0);
                max_sum_exp(&x, &self.dims, call.output::<f64>(0).data_mut());
            }),
            Monoid::Op(_) => unreachable!("{} has more than one number per cell", self.name),
        }
    }

    fn keeps(&self) -> Keeps {
        match self.has_indices() {
            true => Keeps::NOTHING,
            false => Keeps::ALL,
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        if self.has_indices() {
            return Err(OpError::NoVjp {
                op: self.name,
                operand: 0,
            });
        }
        let (x, states) = (&saved.inputs[0], &saved.outputs[0]);
        saved.pull_back(cotangents, |dy, _| match exec.records() {
            true => rounded_once(exec, [x], |[x]| self.vjp_of_parts(exec, x, states, dy)),
            false => exec.apply1(Arc::new(StatesGrad(self.clone())), &[x, states, dy]),
        })
    }
}

impl States {
    /// The derivative made of ops that have derivatives themselves: for second order.
    fn vjp_of_parts(
        &self,
        exec: &dyn Exec,
        x: &Value,
        states: &Value,
        dy: &Value,
    ) -> Result<Value> {
        let extents = x.shape().iter().enumerate();
        let shape: Vec<usize> = extents
            .map(|(d, &n)| if self.dims.contains(&d) { 1 } else { n })
            .collect();
        let number = |from: &Value, k: usize| cast(exec, &part(exec, from, k, &shape)?, x.dtype());
        if self.monoid == Monoid::MaxSumExp {
            let max = number(&states.detach(), 0)?;
            let exps = unary(exec, &sub(exec, x, &max)?, Unary::Exp)?;
            return mul(exec, &exps, &number(dy, 1)?);
        }
        let count: usize = self.dims.iter().map(|&d| x.shape()[d]).product();
        let level = div_scalar(exec, &number(dy, 1)?, count as f64)?;
        let centred = sub(exec, x, &mean(exec, x, &self.dims, true)?)?;
        let slope = mul(exec, &centred, &mul_scalar(exec, &number(dy, 2)?, 2.0)?)?;
        add(exec, &slope, &expand(exec, &level, x.shape())?)
    }
}

impl Op for StatesGrad {
    fn name(&self) -> &'static str {
        "states_grad"
    }

    fn key(&self) -> u128 {
        key_of("states_grad", &(self.0.monoid, &self.0.dims))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), &inputs[..1])?;
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let [all, cells] = self.0.accesses(&mut rule, &inputs[0]);
        rule.input(all.clone())
            .input(cells.clone())
            .input(cells)
            .output(all, inputs[0].shape.clone(), dtype)
            .linearity(Linearity::Each(smallvec![2]))
            .build()
    }

    crate::kernel::gpu_kernel!(halves);

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => self.compute::<T>(call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}

impl StatesGrad {
    fn compute<T: Real + Element>(&self, call: &mut HostCall<'_, '_>) {
        let width = self.0.monoid.width();
        let (x, states) = (call.input::<T>(0), call.input::<f64>(1).to_vec());
        let dy = call.input::<f64>(2).to_vec();
        let cells = states.chunks_exact(width).zip(dy.chunks_exact(width));
        let (dims, mut out) = (&self.0.dims, call.output::<T>(0));
        if self.0.monoid == Monoid::MaxSumExp {
            let pairs: Vec<f64> = cells.flat_map(|(s, g)| [s[0], g[1]]).collect();
            return exponentials(&x, dims, &pairs, &mut out);
        }
        // Of every cell a line through its elements.
        let lines: Vec<[f64; 3]> = cells
            .map(|(s, g)| [s[1], 2.0 * g[2], g[1] / s[0]])
            .collect();
        map_cells(&x, dims, &mut out, |x, cell| {
            let [from, slope, level] = lines[cell];
            T::of(slope * (x.wide() - from) + level)
        });
    }
}
