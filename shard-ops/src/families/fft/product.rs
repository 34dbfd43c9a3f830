//! Products of complex numbers.

use crate::families::broadcast::sum_to;
use crate::families::einsum::einsum;
use crate::families::elementwise::unary;
use crate::families::index::{cat, slice, stack};
use crate::families::types::float_types;
use crate::host::with_float;
use crate::rule::broadcast;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Linearity, Meta, Op, OpError, Result, Rule, Saved,
    Value, key_of,
};
use shard_kernels::fft::multiply;
use shard_kernels::unary::Unary;
use smallvec::smallvec;
use std::sync::Arc;

/// The products of complex numbers, which lie in the last dim; the other dims broadcast.
///
/// # Collective
/// All members of the mesh; communicates only to align operands whose boundaries differ. One partial operand stays partial.
///
/// # Errors
/// A last dim that is not 2; shapes that do not broadcast; types that differ or are not of floats.
pub fn complex_mul(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    let op = ComplexMul {
        conjugate: [false, false],
    };
    exec.apply1(Arc::new(op), &[a, b])
}

/// [`einsum`](fn@crate::einsum::einsum) of complex numbers, which lie in a last dim of 2 that the equation does not name; what the
/// result's letters are stands behind `->`.
///
/// The largest operand stays as it is. The numbers `a + bi` of the others become matrices `[[a, b], [-b, a]]`, which take twice their memory,
/// so that it is one sum of real products.
///
/// # Collective
/// As [`einsum`](fn@crate::einsum::einsum).
///
/// # Errors
/// As [`einsum`](fn@crate::einsum::einsum); a last dim that is not 2; an equation without `->`, or that leaves fewer letters than there are
/// operands.
pub fn complex_einsum(exec: &dyn Exec, equation: &str, operands: &[&Value]) -> Result<Value> {
    let refused = |problem: &str, fix| OpError::Shape {
        op: EINSUM,
        problem: format!("{problem} ({equation:?})"),
        shapes: operands.iter().map(|x| x.shape().to_vec()).collect(),
        fix,
    };
    if operands.iter().any(|x| x.shape().last() != Some(&2)) {
        let fix = "put real and imaginary parts in a last dim of 2";
        return Err(refused("operands are not complex", fix));
    }
    let Some((terms, result)) = equation.split_once("->") else {
        let fix = "write the result's letters behind ->";
        return Err(refused("the result's letters are missing", fix));
    };
    let mut terms: Vec<String> = terms.split(',').map(str::to_owned).collect();
    if terms.len() != operands.len() {
        let fix = "name the dims of each operand, but for the last";
        return Err(refused("operands are more or fewer than terms", fix));
    }
    let letters = ('a'..='z').chain('A'..='Z');
    let mut spare = letters.filter(|&letter| !equation.contains(letter));
    let mut next = || {
        let fix = "use fewer letters";
        spare
            .next()
            .ok_or_else(|| refused("all letters are used", fix))
    };
    let numel = |i: &usize| operands[*i].layout().numel();
    // Of equally large ones the first.
    let largest = (0..operands.len()).rev().max_by_key(numel);
    let mut parts = next()?;
    let mut values: Vec<Value> = operands.iter().map(|&x| x.clone()).collect();
    if let Some(largest) = largest {
        terms[largest].push(parts);
    }
    for i in (0..values.len()).filter(|&i| Some(i) != largest) {
        let made = next()?;
        terms[i].extend([parts, made]);
        values[i] = matrices(exec, &values[i])?;
        parts = made;
    }
    let equation = format!("{}->{result}{parts}", terms.join(","));
    einsum(exec, &equation, &values.iter().collect::<Vec<_>>())
}

const EINSUM: &str = "complex_einsum";

/// Complex numbers `a + bi` as matrices `[[a, b], [-b, a]]`, by which real and imaginary part of another are multiplied.
fn matrices(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let last = x.ndim() - 1;
    let part = |i| slice(exec, x, last, i, 1, 1);
    let turned = cat(
        exec,
        &[&unary(exec, &part(1)?, Unary::Neg)?, &part(0)?],
        last,
    )?;
    stack(exec, &[x, &turned], last)
}

/// A product of complex numbers, either of them conjugated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComplexMul {
    pub(super) conjugate: [bool; 2],
}

impl Op for ComplexMul {
    fn name(&self) -> &'static str {
        "complex_mul"
    }

    fn key(&self) -> u128 {
        key_of("complex_mul", &self.conjugate)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types("complex_mul", inputs)?;
        if inputs.iter().any(|m| m.shape.last() != Some(&2)) {
            return Err(OpError::Shape {
                op: "complex_mul",
                problem: "operands are not complex".into(),
                shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
                fix: "put real and imaginary parts in a last dim of 2",
            });
        }
        let shape = broadcast("complex_mul", inputs)?;
        let last = shape.len() - 1;
        let mut rule = Rule::builder("complex_mul", inputs).any_order();
        let factors: Vec<usize> = shape[..last].iter().map(|&n| rule.factor(n)).collect();
        for meta in inputs {
            let own = meta.shape.len() - 1;
            let dims = (0..own).map(|d| {
                let to = last - own + d;
                match meta.shape[d] == shape[to] {
                    true => Access::factor(factors[to]),
                    false => Access::WHOLE,
                }
            });
            rule = rule.input(dims.chain([Access::WHOLE]).collect());
        }
        let dims = factors.iter().map(|&f| Access::factor(f));
        rule.output(dims.chain([Access::WHOLE]).collect(), shape, dtype)
            .flops(6.0)
            .linearity(Linearity::Each(smallvec![0, 1]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (a, b) = (call.input::<T>(0), call.input::<T>(1));
            let mut out = call.output::<T>(0);
            let (a, b) = (a.broadcast_to(out.shape()), b.broadcast_to(out.shape()));
            if let (Some(a), Some(b)) = (a, b) {
                multiply(self.conjugate, &a, &b, &mut out);
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [of_a, of_b] = self.conjugate;
        saved.pull_back(cotangents, |dy, operand| {
            // y = a b: the pull-back to a is dy b̄, conjugated if a was.
            let other = &saved.inputs[1 - operand];
            let [own, others] = if operand == 0 {
                [of_a, of_b]
            } else {
                [of_b, of_a]
            };
            let op = Self {
                conjugate: [own, others == own],
            };
            let full = exec.apply1(Arc::new(op), &[dy, other])?;
            sum_to(exec, &full, saved.inputs[operand].shape())
        })
    }
}
