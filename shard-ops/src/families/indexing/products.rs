//! Rows that are multiplied each with the matrix that an index names, and the matrices that are sums of such rows' products: each of the two
//! ops is the other's derivative.
//!
//! Matrices are rows of a table here. Which of them a rank needs its part of the index says, and they come, as their gradients go home, as any
//! rows that are named: where the rows of each matrix lie with it, nothing but a count of zero is told. A rank that has all rows, and part of the
//! matrices, looks at its own alone, and the results are terms of a sum.

use super::ABSENT;
use crate::families::elementwise::cast;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, OpError,
    Precision, Reduction, Result, RouteBy, Routes, Rule, Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind, Element};
use shard_kernels::gemm::{gemm, gemm_halves};
use shard_kernels::rows::{OneProduct, multiply_each, outer_each};
use shard_spec::ReduceOp;
use smallvec::smallvec;
use std::sync::Arc;

/// `y[i] = x[i] w[index[i]]`: inputs are the matrices `w`, `[matrices, k, n]`, or `[matrices, n, k]` if they are transposed, the index, and the
/// rows `x`, `[rows, k]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct EachProduct {
    pub(super) transposed: bool,
    pub(super) by: RouteBy,
}

/// The derivative of [`EachProduct`] by the matrices: the sums of `a[i]ᵀ b[i]` over the rows of each. Inputs are the matrices, which lend their
/// layout, the index, and the rows `a`, `[rows, k]`, and `b`, `[rows, n]`. Of floats of 16 bits the sums are `f32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct EachOuter {
    pub(super) by: RouteBy,
}

impl EachProduct {
    /// Applies it.
    pub(super) fn apply(self, exec: &dyn Exec, [w, index, x]: [&Value; 3]) -> Result<Value> {
        exec.apply1(Arc::new(self), &[w, &index.detach(), x])
    }
}

impl EachOuter {
    /// Applies it, and rounds what it gives once.
    pub(super) fn apply(self, exec: &dyn Exec, inputs: [&Value; 4]) -> Result<Value> {
        let [w, index, a, b] = inputs;
        let sums = exec.apply1(Arc::new(self), &[&w.detach(), &index.detach(), a, b])?;
        cast(exec, &sums, a.dtype())
    }
}

/// How an index names matrices. Without masks where rows are asked for in any case.
fn routes(by: RouteBy) -> Routes {
    let routes = Routes::by(1).absent(ABSENT).served(by);
    match by {
        RouteBy::Auto => routes.masks(),
        _ => routes,
    }
}

/// The type of the matrices and rows; rows that are not one for each element of the index are refused, as is an index of another type.
fn types(name: &'static str, inputs: &[Meta], expected: usize) -> Result<DType> {
    if inputs.len() != expected {
        return Err(OpError::arity(name, expected.to_string(), inputs.len()));
    }
    let index = &inputs[1];
    if !matches!(index.dtype, DType::I64 | DType::I32) {
        return Err(OpError::dtype(name, 1, "i64 or i32", index.dtype));
    }
    let floats: Vec<Meta> = (inputs.iter().enumerate())
        .filter(|(i, _)| *i != 1)
        .map(|(_, meta)| meta.clone())
        .collect();
    float_types(name, &floats)
}

fn misfit(name: &'static str, inputs: &[Meta]) -> OpError {
    OpError::Shape {
        op: name,
        problem: "rows, their index and the matrices do not belong together".into(),
        shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
        fix: "give matrices [matrices, in, out], an index [rows], and rows [rows, in]",
    }
}

impl Op for EachProduct {
    fn name(&self) -> &'static str {
        "gather_mm"
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &(self.transposed, self.by))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = types(self.name(), inputs, 3)?;
        let (&[g, first, last], &[rows], &[also_rows, k]) = (
            &inputs[0].shape[..],
            &inputs[1].shape[..],
            &inputs[2].shape[..],
        ) else {
            return Err(misfit(self.name(), inputs));
        };
        let (inner, n) = match self.transposed {
            true => (last, first),
            false => (first, last),
        };
        if rows != also_rows || inner != k {
            return Err(misfit(self.name(), inputs));
        }
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let [g, t, k_factor, n_factor] = [g, rows, k, n].map(|n| rule.factor(n));
        let [t, k_dim, n_dim] = [t, k_factor, n_factor].map(Access::factor);
        let mut table = vec![Access::Routed { factor: g }, k_dim.clone(), n_dim.clone()];
        if self.transposed {
            table.swap(1, 2);
        }
        rule.input(table)
            .input(vec![t.clone()])
            .input(vec![t.clone(), k_dim])
            .output(vec![t, n_dim], smallvec![rows, n], dtype)
            .routes(routes(self.by))
            .flops(2.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0, 2]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, stored: DType, _: &[Meta], on: DeviceKind) -> Halves {
        read_as_stored(stored, on, &[0, 2, 3])
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        if call.inputs[0].dtype() == DType::BF16 {
            return self.compute(call, gemm_halves);
        }
        with_float!(call.dtype(), T => self.compute(call, gemm::<T>));
    }

    fn keeps(&self) -> Keeps {
        Keeps::INPUTS
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [w, index, x] = saved.inputs else {
            unreachable!("the rule has three inputs")
        };
        saved.pull_back(cotangents, |dy, operand| match (operand, self.transposed) {
            (0, false) => self.adjoint().apply(exec, [w, index, x, dy]).map(Some),
            (0, true) => self.adjoint().apply(exec, [w, index, dy, x]).map(Some),
            (2, _) => {
                let other = Self {
                    transposed: !self.transposed,
                    ..*self
                };
                other.apply(exec, [w, index, dy]).map(Some)
            }
            _ => Ok(None),
        })
    }
}

impl EachProduct {
    fn adjoint(&self) -> EachOuter {
        EachOuter { by: self.by }
    }

    fn compute<E: Element, T: Element>(
        &self,
        call: &mut HostCall<'_, '_>,
        multiply: impl OneProduct<E, T>,
    ) {
        let order = if self.transposed {
            [0, 2, 1]
        } else {
            [0, 1, 2]
        };
        let [own, others] = [0, 3].map(|i| call.input::<E>(i).permute(&order));
        let (keys, x) = (call.input::<i64>(1), call.input::<E>(2));
        let mut y = call.output::<T>(0);
        multiply_each(keys.data(), &x, [&own, &others], &mut y, multiply);
    }
}

/// The processor's own products of `bf16` take matrices and rows as they are stored.
fn read_as_stored(stored: DType, on: DeviceKind, reads: &'static [usize]) -> Halves {
    match on.is_cuda() {
        true => Halves::ALL,
        false if stored == DType::BF16 => Halves {
            reads,
            writes: false,
        },
        false => Halves::NONE,
    }
}

impl Op for EachOuter {
    fn name(&self) -> &'static str {
        "gather_mm_grad"
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.by)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = types(self.name(), inputs, 4)?;
        let (&[g, k, n], &[rows], &[rows_of_a, also_k], &[rows_of_b, also_n]) = (
            &inputs[0].shape[..],
            &inputs[1].shape[..],
            &inputs[2].shape[..],
            &inputs[3].shape[..],
        ) else {
            return Err(misfit(self.name(), inputs));
        };
        if [rows_of_a, rows_of_b] != [rows; 2] || [k, n] != [also_k, also_n] {
            return Err(misfit(self.name(), inputs));
        }
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let [g_factor, t, k_factor, n_factor] = [g, rows, k, n].map(|n| rule.factor(n));
        let [t, k_dim, n_dim] = [t, k_factor, n_factor].map(Access::factor);
        let table = vec![
            Access::Routed { factor: g_factor },
            k_dim.clone(),
            n_dim.clone(),
        ];
        rule.input(table.clone())
            .input(vec![t.clone()])
            .input(vec![t.clone(), k_dim])
            .input(vec![t, n_dim])
            .output(table, smallvec![g, k, n], dtype)
            .routes(routes(self.by))
            .flops(2.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .unread(0)
            .unrounded(true)
            .linearity(Linearity::Each(smallvec![2, 3]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, stored: DType, _: &[Meta], on: DeviceKind) -> Halves {
        read_as_stored(stored, on, &[2, 3])
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        if call.inputs[2].dtype() == DType::BF16 {
            return compute_sums(call, gemm_halves);
        }
        with_float!(call.dtype(), T => compute_sums(call, gemm::<T>));
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1, 2, 3])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [_, index, a, b] = saved.inputs else {
            unreachable!("the rule has four inputs")
        };
        // Products are of operands of one type, which may not be that of the sums.
        let rounded = |d: &Value| cast(exec, d, a.dtype());
        let d = cotangents[0].as_ref().map(rounded).transpose()?;
        let product = |transposed| EachProduct {
            transposed,
            by: self.by,
        };
        saved.pull_back(&[d], |d, operand| match operand {
            2 => product(true).apply(exec, [d, index, b]).map(Some),
            3 => product(false).apply(exec, [d, index, a]).map(Some),
            _ => Ok(None),
        })
    }
}

fn compute_sums<E: Element, T: Element>(
    call: &mut HostCall<'_, '_>,
    multiply: impl OneProduct<E, T>,
) {
    let goes_on = !call.cx.fold.first;
    let keys = call.input::<i64>(1);
    let (a, b) = (call.input::<E>(2), call.input::<E>(3));
    let (mut own, mut away) = call.output_pair::<T, T>();
    outer_each(
        keys.data(),
        [&a, &b],
        [&mut own, &mut away],
        goes_on,
        multiply,
    );
}
