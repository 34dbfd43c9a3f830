//! The product of two operands whose dims have letters.

use super::order;
use crate::families::elementwise::{cast, mul};
use crate::families::matmul::{Multiply, batched, one_by_one};
use crate::families::reduce::sum;
use crate::families::shape::{permute, reshape};
use crate::families::types::product_types;
use crate::host::{is_whole, with_float, with_integer};
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, OperandBox,
    Precision, Reduction, Result, Rule, Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind, Element, Strided};
use shard_kernels::copy::copy;
use shard_kernels::gemm::{gemm_halves, gemm_many, gemm_whole, takes_halves};
use shard_kernels::{View, ViewMut};
use shard_spec::{Dims, ReduceOp, Strides};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A letter for each dim.
pub(super) type Letters = SmallVec<[u32; 6]>;

/// The sum of products of two operands, without repeated letters, over the letters that `out` lacks. Every letter of `out` is one of
/// them, and what `out` lacks both have.
pub(super) fn pair(
    exec: &dyn Exec,
    (a, of_a): (&Value, &[u32]),
    (b, of_b): (&Value, &[u32]),
    out: &[u32],
) -> Result<Value> {
    let sums: Letters = (of_a.iter().copied())
        .filter(|l| !out.contains(l))
        .collect();
    if sums.is_empty() || a.dtype() == DType::Bool {
        let all: Letters = out.iter().chain(&sums).copied().collect();
        let product = mul(
            exec,
            &spread(exec, a, of_a, &all)?,
            &spread(exec, b, of_b, &all)?,
        )?;
        if sums.is_empty() {
            return Ok(product);
        }
        let dims: Vec<usize> = (out.len()..all.len()).collect();
        return cast(exec, &sum(exec, &product, &dims, false)?, a.dtype());
    }
    let groups = Groups::of(of_a, of_b, out);
    let (a, of_a) = groups.gathered(exec, a, of_a, [&groups.batch, &groups.rows, &groups.sums])?;
    let (b, of_b) = groups.gathered(
        exec,
        b,
        of_b,
        [&groups.batch, &groups.sums, &groups.columns],
    )?;
    let parts = [&groups.batch, &groups.rows, &groups.columns];
    let made: Letters = match parts.iter().all(|group| adjoin(out, group)) {
        true => out.into(),
        false => parts.into_iter().flatten().copied().collect(),
    };
    let op = Contract::new(&of_a, &of_b, &made);
    let y = exec.apply1(Arc::new(op), &[&a, &b])?;
    match made[..] == *out {
        true => Ok(y),
        false => permute(exec, &y, &order(&made, out)),
    }
}

/// An operand with a dim for each of `all`, of extent 1 where it has none.
fn spread(exec: &dyn Exec, x: &Value, letters: &[u32], all: &[u32]) -> Result<Value> {
    let order = order(letters, all);
    let x = match order.is_sorted() {
        true => x.clone(),
        false => permute(exec, x, &order)?,
    };
    if letters.len() == all.len() {
        return Ok(x);
    }
    let mut extents = x.shape().iter();
    let shape: Vec<usize> = (all.iter())
        .map(|l| match letters.contains(l) {
            true => extents.next().copied().unwrap_or(1),
            false => 1,
        })
        .collect();
    reshape(exec, &x, &shape)
}

/// Whether the letters of a group stand side by side, in this order.
fn adjoin(letters: &[u32], group: &[u32]) -> bool {
    let Some(first) = group.first() else {
        return true;
    };
    let at = letters.iter().position(|l| l == first);
    at.is_some_and(|at| letters[at..].starts_with(group))
}

/// The letters of a product of matrices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Groups {
    /// Letters of both operands and the result.
    batch: Letters,
    /// Letters of the first operand and the result.
    rows: Letters,
    /// Letters of the second operand and the result.
    columns: Letters,
    /// Letters of both operands alone.
    sums: Letters,
}

impl Groups {
    fn of(a: &[u32], b: &[u32], out: &[u32]) -> Self {
        let of = |letters: &[u32], other: &[u32], shared: bool, stays: bool| -> Letters {
            let group = |l: &&u32| other.contains(l) == shared && out.contains(l) == stays;
            letters.iter().filter(group).copied().collect()
        };
        Self {
            batch: of(a, b, true, true),
            rows: of(a, b, false, true),
            columns: of(b, a, false, true),
            sums: of(a, b, true, false),
        }
    }

    /// The operand with the letters of each group side by side, permuted if they are not.
    fn gathered(
        &self,
        exec: &dyn Exec,
        x: &Value,
        letters: &[u32],
        groups: [&Letters; 3],
    ) -> Result<(Value, Letters)> {
        if groups.iter().all(|group| adjoin(letters, group)) {
            return Ok((x.clone(), letters.into()));
        }
        let to: Letters = groups.into_iter().flatten().copied().collect();
        Ok((permute(exec, x, &order(letters, &to))?, to))
    }
}

/// A product of matrices whose batches, rows, columns and sums are any number of dims each.
#[derive(Clone, Debug)]
pub(super) struct Contract {
    a: Letters,
    b: Letters,
    out: Letters,
}

impl Contract {
    /// With letters numbered as they come, so that equal contractions are one op.
    fn new(a: &[u32], b: &[u32], out: &[u32]) -> Self {
        let mut known: Letters = a.into();
        known.extend(b.iter().copied().filter(|l| !a.contains(l)));
        let number = |letters: &[u32]| {
            let place = |l: &u32| known.iter().position(|k| k == l).unwrap_or(0) as u32;
            letters.iter().map(place).collect()
        };
        Self {
            a: number(a),
            b: number(b),
            out: number(out),
        }
    }

    /// The operands' boxes and the result's as batches of matrices: (batch, row, column).
    ///
    /// A box that is not dense may not be one of matrices; then `None` stands for it.
    pub(super) fn matrices(
        &self,
        inputs: &[OperandBox],
        output: &OperandBox,
    ) -> [Option<Strided>; 3] {
        let g = Groups::of(&self.a, &self.b, &self.out);
        [
            matrix(&inputs[0], &self.a, [&g.batch, &g.rows, &g.sums]),
            matrix(&inputs[1], &self.b, [&g.batch, &g.sums, &g.columns]),
            matrix(output, &self.out, [&g.batch, &g.rows, &g.columns]),
        ]
    }
}

/// A box with the dims of each group as one.
fn matrix(at: &OperandBox, letters: &[u32], groups: [&Letters; 3]) -> Option<Strided> {
    let (mut shape, mut strides) = (Dims::new(), Strides::new());
    for group in groups {
        let (mut extent, mut step) = (1, 0);
        for &d in order(letters, group).iter().rev() {
            let (n, stride) = (at.shape[d], at.strides[d]);
            if n == 1 {
                continue;
            }
            if extent == 1 {
                step = stride;
            } else if stride != step * extent as isize && n != 0 && extent != 0 {
                return None;
            }
            extent *= n;
        }
        shape.push(extent);
        strides.push(step);
    }
    Some(Strided::new(at.offset, shape, strides))
}

impl Op for Contract {
    fn name(&self) -> &'static str {
        "einsum"
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        key_of("einsum", &(&self.a, &self.b, &self.out))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = product_types("einsum", inputs)?;
        let mut rule = Rule::builder("einsum", inputs).any_order();
        let sides = [(&self.a, &inputs[0].shape), (&self.b, &inputs[1].shape)];
        let count = sides.iter().flat_map(|(l, _)| l.iter()).max();
        let mut extents: Dims = smallvec![1; count.map_or(0, |&l| l as usize + 1)];
        for (letters, shape) in sides {
            for (&letter, &n) in letters.iter().zip(shape) {
                extents[letter as usize] = n;
            }
        }
        let factors: Vec<usize> = extents.iter().map(|&n| rule.factor(n)).collect();
        let dims = |letters: &Letters| -> Vec<Access> {
            let factor = |l: &u32| Access::factor(factors[*l as usize]);
            letters.iter().map(factor).collect()
        };
        let shape = self.out.iter().map(|&l| extents[l as usize]).collect();
        rule.input(dims(&self.a))
            .input(dims(&self.b))
            .output(dims(&self.out), shape, dtype)
            .flops(2.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0, 1]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, stored: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        let g = Groups::of(&self.a, &self.b, &self.out);
        let extent = |of: &Letters, shape: &[usize], group: &Letters| -> usize {
            order(of, group).iter().map(|&d| shape[d]).product()
        };
        let rows = extent(&self.a, &inputs[0].shape, &g.rows);
        let columns = extent(&self.b, &inputs[1].shape, &g.columns);
        let inner = extent(&self.a, &inputs[0].shape, &g.sums);
        match stored == DType::BF16 && !on.is_cuda() && takes_halves(rows, columns, inner) {
            true => Halves {
                reads: &[0, 1],
                writes: false,
            },
            false => Halves::NONE,
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        if call.inputs[0].dtype() == DType::BF16 {
            return self.compute(call, one_by_one(gemm_halves));
        }
        match is_whole(call.dtype()) {
            true => with_integer!(call.dtype(), T => {
                self.compute(call, one_by_one(gemm_whole::<T>));
            }),
            false => with_float!(call.dtype(), T => self.compute(call, gemm_many::<T>)),
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (a, b) = (&saved.inputs[0], &saved.inputs[1]);
        saved.pull_back(cotangents, |dy, operand| match operand {
            0 => pair(exec, (dy, &self.out), (b, &self.b), &self.a),
            _ => pair(exec, (a, &self.a), (dy, &self.out), &self.b),
        })
    }

    fn keeps(&self) -> Keeps {
        Keeps::INPUTS
    }
}

impl Contract {
    /// The contraction of operands of type `E` in `T`, by a kernel for matrices.
    fn compute<E: Element, T: Element>(
        &self,
        call: &mut HostCall<'_, '_>,
        multiply: impl Multiply<E, T>,
    ) {
        let [a, b, y] = self.matrices(&call.cx.inputs, &call.cx.outputs[0]);
        let g = Groups::of(&self.a, &self.b, &self.out);
        let (left, right) = (call.input::<E>(0), call.input::<E>(1));
        let mut kept = [const { Vec::new() }; 2];
        let [keep_a, keep_b] = &mut kept;
        let left = viewed(&left, a, &self.a, [&g.batch, &g.rows, &g.sums], keep_a);
        let right = viewed(&right, b, &self.b, [&g.batch, &g.sums, &g.columns], keep_b);
        let mut out = call.output::<T>(0);
        if let Some(y) = y {
            let data = match y.shape.contains(&0) {
                true => &mut [],
                false => out.data_mut(),
            };
            let mut y = ViewMut::new(data, y.offset, &y.shape, &y.strides);
            batched(&left, &right, 0, &mut y, multiply);
            return;
        }
        let shape = [left.shape()[0], left.shape()[1], right.shape()[2]];
        let mut made = vec![T::default(); shape.iter().product()];
        let mut y = ViewMut::contiguous(&mut made, &shape);
        batched(&left, &right, 0, &mut y, multiply);
        let groups = [&g.batch, &g.rows, &g.columns];
        let groups: Letters = groups.into_iter().flatten().copied().collect();
        let to = order(&self.out, &groups);
        let shape: Vec<usize> = to.iter().map(|&d| out.shape()[d]).collect();
        copy(&View::contiguous(&made, &shape), &mut out.permute(&to));
    }
}

/// A box as matrices, copied if it is none.
fn viewed<'a, T: Element>(
    x: &View<'a, T>,
    at: Option<Strided>,
    letters: &[u32],
    groups: [&Letters; 3],
    kept: &'a mut Vec<T>,
) -> View<'a, T> {
    if let Some(at) = at {
        let data = if at.shape.contains(&0) { &[] } else { x.data() };
        return View::new(
            data,
            at.offset * usize::from(!data.is_empty()),
            &at.shape,
            &at.strides,
        );
    }
    let to: Letters = groups.into_iter().flatten().copied().collect();
    let x = x.permute(&order(letters, &to));
    *kept = x.to_vec();
    let shape = groups.map(|group| {
        let dims = order(letters, group);
        let at = |d: &usize| {
            to.iter()
                .position(|l| *l == letters[*d])
                .map_or(1, |i| x.shape()[i])
        };
        dims.iter().map(at).product::<usize>()
    });
    View::contiguous(kept, &shape)
}
