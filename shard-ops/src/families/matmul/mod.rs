//! Matrix products: batched, with broadcasting, either operand transposed, and with a bias.
//!
//! The batch dims and the rows and columns of the result are map factors, and the contraction is a sum:
//! sharding it makes the result `P(sum)`, and nothing moves.

mod batches;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod rule;

#[cfg(feature = "cuda")]
pub(super) use self::cuda::multiply;

pub(super) use self::batches::{Multiply, batched, one_by_one};

use self::rule::Blocks;
use crate::families::einsum::einsum;
use crate::families::elementwise::{add, cast, isfinite, logical_not, masked_fill, mul_scalar};
use crate::families::full::{in_full_with, rounded_once};
use crate::families::index::stack;
use crate::families::reduce::{sum, sum_to};
use crate::families::shape::{reshape, unsqueeze};
use crate::host::{is_whole, with_float, with_integer};
use crate::{
    Cotangents, Exec, Grads, Halves, HostCall, Keeps, Meta, Op, OpError, Precision, Result, Rule,
    Saved, Value, Wait, Waiting, key_of,
};
use shard_comm::{DType, DeviceKind, Element};
use shard_kernels::View;
use shard_kernels::gemm;
use shard_spec::Layout;
use std::sync::Arc;

/// The matrix product of the last two dims, batched over the others with broadcasting; a one-dim operand is a
/// row on the left and a column on the right, as in PyTorch. Products of integers wrap, and have the operands' type.
///
/// # Collective
/// All members of the mesh. Nothing moves if both operands shard the contraction in the same way; the result is
/// then `P(sum)` over its axes.
///
/// # Errors
/// Shapes that do not fit; types that differ, or truth values.
pub fn matmul(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    matmul_of(exec, a, b, false)
}

/// As [`matmul`]; of floats of 16 bits in `f32`, if it is to be `in_full`.
fn matmul_of(exec: &dyn Exec, a: &Value, b: &Value, in_full: bool) -> Result<Value> {
    if a.ndim() == 0 || b.ndim() == 0 {
        return Err(OpError::Shape {
            op: "matmul",
            problem: "an operand has no dims".into(),
            shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
            fix: "multiply scalars with mul",
        });
    }
    let (row, column) = (a.ndim() == 1, b.ndim() == 1);
    let left = if row {
        unsqueeze(exec, a, 0)?
    } else {
        a.clone()
    };
    let right = if column {
        unsqueeze(exec, b, 1)?
    } else {
        b.clone()
    };
    let op = MatMul {
        in_full,
        ..MatMul::of(false, false)
    };
    let y = exec.apply1(Arc::new(op), &[&left, &right])?;
    if !row && !column {
        return Ok(y);
    }
    let mut shape = y.shape().to_vec();
    if column {
        shape.pop();
    }
    if row {
        shape.remove(shape.len() - 1 - usize::from(!column));
    }
    reshape(exec, &y, &shape)
}

/// `x wᵀ + bias` over the last dim of `x`: `w` is (out, in), `bias` (out).
///
/// # Collective
/// As [`matmul`]. A bias is added once even if the contraction is sharded.
///
/// # Errors
/// As [`matmul`].
pub fn linear(exec: &dyn Exec, x: &Value, w: &Value, bias: Option<&Value>) -> Result<Value> {
    if x.ndim() == 1 {
        let y = linear(exec, &unsqueeze(exec, x, 0)?, w, bias)?;
        return reshape(exec, &y, &y.shape()[1..]);
    }
    let op = Arc::new(MatMul {
        bias: bias.is_some(),
        ..MatMul::of(false, true)
    });
    match bias {
        Some(bias) => exec.apply1(op, &[x, w, bias]),
        None => exec.apply1(op, &[x, w]),
    }
}

/// The inner product of two one-dim operands; `P(sum)` over the axes that shard them.
///
/// # Collective
/// As [`matmul`].
///
/// # Errors
/// As [`matmul`].
pub fn dot(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    if a.ndim() != 1 || b.ndim() != 1 {
        return Err(OpError::Shape {
            op: "dot",
            problem: "operands must have one dim".into(),
            shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
            fix: "use matmul",
        });
    }
    matmul(exec, a, b)
}

/// The product with the last two dims of either operand swapped if asked.
///
/// # Collective
/// As [`matmul`].
///
/// # Errors
/// As [`matmul`].
pub(crate) fn product(exec: &dyn Exec, a: &Value, b: &Value, ta: bool, tb: bool) -> Result<Value> {
    exec.apply1(Arc::new(MatMul::of(ta, tb)), &[a, b])
}

/// The product `[(a, ta), (b, tb)]` as the gradient of an operand of this shape: summed over dims that the operand lacks or has once.
fn gradient(
    exec: &dyn Exec,
    [(a, ta), (b, tb)]: [(&Value, bool); 2],
    of: &[usize],
) -> Result<Value> {
    // What the operand lacks both factors have: their batches are part of the contraction.
    let sums = a.ndim().max(b.ndim()).saturating_sub(of.len());
    let op = MatMul {
        sums,
        ..MatMul::of(ta, tb)
    };
    sum_to(exec, &exec.apply1(Arc::new(op), &[a, b])?, of)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MatMul {
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
    pub(crate) bias: bool,
    /// Whether the result of floats of 16 bits is `f32`.
    pub(crate) in_full: bool,
    /// Over how many dims the products are summed: the first ones of both operands, which have equally many.
    pub(crate) sums: usize,
}

impl MatMul {
    fn of(transpose_a: bool, transpose_b: bool) -> Self {
        Self {
            transpose_a,
            transpose_b,
            bias: false,
            in_full: false,
            sums: 0,
        }
    }

    fn name() -> &'static str {
        "matmul"
    }
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        Self::name()
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        let turned = (self.transpose_a, self.transpose_b);
        key_of(Self::name(), &(turned, self.bias, self.in_full, self.sums))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        rule::rule(self, inputs, None)
    }

    fn block_rules(&self, inputs: &[Meta], outputs: &[Layout]) -> Result<Vec<Rule>> {
        (Blocks::of(&outputs[0]).into_iter())
            .map(|blocks| rule::rule(self, inputs, Some(blocks)))
            .collect()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, stored: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        let is_taken = || {
            let [a, b] = [&inputs[0].shape[..], &inputs[1].shape[..]];
            // Batches that share the other operand are rows, or columns, of one product.
            let of = |own: &[usize], other: &[usize], place: usize| {
                let (batches, matrix) = own.split_at(own.len() - 2);
                let batches = if other.len() == 2 { batches } else { &[] };
                matrix[place] * batches.iter().product::<usize>()
            };
            gemm::takes_halves(
                of(a, b, usize::from(self.transpose_a)),
                of(b, a, usize::from(!self.transpose_b)),
                a[a.len() - 1 - usize::from(self.transpose_a)],
            )
        };
        match on.is_cuda() {
            true => Halves::ALL,
            false if stored == DType::BF16 && is_taken() => Halves {
                reads: &[0, 1],
                writes: false,
            },
            false => Halves::NONE,
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        if call.inputs[0].dtype() == DType::BF16 {
            return self.compute(call, one_by_one(gemm::gemm_halves), |y, b| y + b);
        }
        match is_whole(call.dtype()) {
            true => with_integer!(call.dtype(), T => {
                self.compute(call, one_by_one(gemm::gemm_whole::<T>), T::wrapping_add);
            }),
            false => with_float!(call.dtype(), T => {
                self.compute(call, gemm::gemm_many::<T>, |y, b| y + b);
            }),
        }
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0, 1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        // Gradients are products of operands of one type, which may not be that of a result in full.
        let rounded = |dy: &Value| cast(exec, dy, saved.inputs[0].dtype());
        let dy = cotangents[0].as_ref().map(rounded).transpose()?;
        saved.pull_back(&[dy], |dy, operand| {
            let shape = saved.inputs[operand].shape();
            match operand {
                0 | 1 => self.pulled(exec, operand, &saved.inputs[1 - operand], dy, shape),
                _ => sum(exec, dy, &(0..dy.ndim() - 1).collect::<Vec<_>>(), false),
            }
        })
    }

    /// Of factors that are smaller than their product, such as a step's few samples and a weight: one product of all samples writes and
    /// adds as much as that of one step does.
    fn waits(&self, operand: usize, inputs: &[Value], cotangent: &Value) -> Option<Wait> {
        let own = inputs.get(..2)?.get(operand)?;
        let other = &inputs[1 - operand];
        let elements = |v: &Value| v.shape().iter().product::<usize>();
        let waits = other.ndim() == cotangent.ndim()
            && elements(other) + elements(cotangent) < elements(own);
        let of = |v: &Value| (v.layout().hash128(), v.dtype());
        waits.then(|| Wait {
            keeps: Keeps::inputs(&[1 - operand]),
            with: key_of("matmul", &(self.key(), of(other), of(cotangent))),
        })
    }

    /// The factors lie along a new first dim, over which products are summed.
    fn vjp_together(&self, exec: &dyn Exec, operand: usize, of: &[Waiting<'_>]) -> Result<Value> {
        let others: Vec<&Value> = of.iter().map(|one| &one.inputs[1 - operand]).collect();
        let cotangents: Vec<&Value> = of.iter().map(|one| one.cotangent).collect();
        let all = |of: &[&Value]| match of {
            [one] => Ok((*one).clone()),
            _ => stack(exec, of, 0),
        };
        let (other, dy) = (all(&others)?, all(&cotangents)?);
        let dy = cast(exec, &dy, other.dtype())?;
        self.pulled(exec, operand, &other, &dy, of[0].inputs[operand].shape())
    }
}

impl MatMul {
    /// The gradient of the left or right operand, of this shape, from the other one and the result's.
    fn pulled(
        &self,
        exec: &dyn Exec,
        operand: usize,
        other: &Value,
        dy: &Value,
        shape: &[usize],
    ) -> Result<Value> {
        // y = A B: dA = dy Bᵀ; transposed if A came transposed.
        let factors = match (operand, self.transpose_a, self.transpose_b) {
            (0, true, tb) => [(other, tb), (dy, true)],
            (0, false, tb) => [(dy, false), (other, !tb)],
            (_, ta, true) => [(dy, true), (other, ta)],
            (_, ta, false) => [(other, !ta), (dy, false)],
        };
        gradient(exec, factors, shape)
    }

    /// The product of operands of type `E` in `T`, by a kernel for matrices, and what adds a bias.
    fn compute<E: Element, T: Element>(
        &self,
        call: &mut HostCall<'_, '_>,
        multiply: impl Multiply<E, T>,
        add: impl Fn(T, T) -> T,
    ) {
        let (a, b) = (call.input::<E>(0), call.input::<E>(1));
        let bias = (self.bias && call.cx.adds_once).then(|| call.input::<T>(2));
        let mut y = call.output::<T>(0);
        let (a, b) = (turned(&a, self.transpose_a), turned(&b, self.transpose_b));
        batched(&a, &b, self.sums, &mut y, multiply);
        if let Some(bias) = bias {
            let shape = y.shape().to_vec();
            if let Some(bias) = bias.broadcast_to(&shape) {
                shard_kernels::pointwise::update(&mut y, &bias, add);
            }
        }
    }
}

/// A view with its last two dims swapped if asked.
fn turned<'a, T: Element>(x: &View<'a, T>, swap: bool) -> View<'a, T> {
    let mut order: Vec<usize> = (0..x.ndim()).collect();
    if swap {
        order.swap(x.ndim() - 2, x.ndim() - 1);
    }
    x.permute(&order)
}

/// `beta * c + alpha * (a @ b)`, with broadcasting, rounded once. With a `beta` of 0 only the shape of `c` counts, whatever its elements
/// are, and with an `alpha` of 0 that of the product.
///
/// # Collective
/// As [`matmul`].
///
/// # Errors
/// As [`matmul`].
pub fn baddbmm(
    exec: &dyn Exec,
    c: &Value,
    a: &Value,
    b: &Value,
    beta: f64,
    alpha: f64,
) -> Result<Value> {
    let total = |c: &Value, a: &Value, b: &Value, in_full: bool| -> Result<Value> {
        let product = matmul_of(exec, a, b, in_full)?;
        add(exec, &times(exec, c, beta)?, &times(exec, &product, alpha)?)
    };
    let factors = [a, b];
    // Types that differ are for the product and the sum to refuse.
    if factors.iter().any(|v| v.dtype() != c.dtype()) {
        return total(c, a, b, false);
    }
    // Factors of 16 bits are read as they are, unless they have gradients: of these a cotangent is a factor, which is multiplied by alpha.
    match alpha.abs() == 1.0 || factors.iter().all(|v| v.slot().is_none()) {
        true => rounded_once(exec, [c], |[c]| total(c, a, b, true)),
        false => rounded_once(exec, [c, a, b], |[c, a, b]| total(c, a, b, false)),
    }
}

/// `factor * x`, and 0 for a factor of 0.
fn times(exec: &dyn Exec, x: &Value, factor: f64) -> Result<Value> {
    // NaN and infinity times 0 are NaN.
    match factor == 0.0 && x.dtype().is_float() {
        true => {
            let x = masked_fill(exec, x, &logical_not(exec, &isfinite(exec, x)?)?, 0.0)?;
            mul_scalar(exec, &x, factor)
        }
        false => mul_scalar(exec, x, factor),
    }
}

/// `y[.., o] = Σ a[.., i] w[o, i, j] b[.., j]`, and a bias `[o]` if there is one, rounded once. Dims before the last broadcast.
///
/// # Collective
/// As [`einsum`]: nothing moves for batches that are divided alike, and a divided sum leaves a partial result.
///
/// # Errors
/// Operands without dims, a weight of other dims than three, extents that do not belong together; types that differ or are no floats.
pub fn bilinear(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    w: &Value,
    bias: Option<&Value>,
) -> Result<Value> {
    let fits = match (a.shape().last(), b.shape().last(), w.shape()) {
        (Some(i), Some(j), [o, w_i, w_j]) => {
            (i, j) == (w_i, w_j) && bias.is_none_or(|bias| bias.shape() == [*o])
        }
        _ => false,
    };
    if !fits {
        return Err(OpError::Shape {
            op: "bilinear",
            problem: "the weight does not fit the last dims, or the bias the weight".into(),
            shapes: ([a, b, w].into_iter().chain(bias))
                .map(|v| v.shape().to_vec())
                .collect(),
            fix: "give [.., i], [.., j], a weight of [o, i, j] and a bias of [o]",
        });
    }
    in_full_with(exec, [a, b, w], [bias], |[a, b, w], [bias]| {
        let product = einsum(exec, "...i,oij,...j->...o", &[a, w, b])?;
        match bias {
            Some(bias) => add(exec, &product, bias),
            None => Ok(product),
        }
    })
}
