//! Ops that give the same elements another shape: permute, transpose, reshape, squeeze, unsqueeze.

#[cfg(feature = "cuda")]
mod cuda;

use crate::host::with_element;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Result, Rule,
    Saved, Value, key_of,
};
use shard_kernels::copy::copy;
use shard_spec::{Dims, numel, reshape_groups, reshape_stop};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Reorders the dims: dim `d` of the result is dim `order[d]` of the operand. No communication.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// An order that is not a permutation of the dims.
pub fn permute(exec: &dyn Exec, x: &Value, order: &[usize]) -> Result<Value> {
    let mut seen = vec![false; x.ndim()];
    let valid = order.len() == x.ndim()
        && order
            .iter()
            .all(|&d| d < x.ndim() && !std::mem::replace(&mut seen[d], true));
    if !valid {
        return Err(OpError::Shape {
            op: "permute",
            problem: format!("{order:?} is not an order of its dims"),
            shapes: vec![x.shape().to_vec()],
            fix: "name every dim once",
        });
    }
    exec.apply1(
        Arc::new(Permute {
            order: order.iter().copied().collect(),
        }),
        &[x],
    )
}

/// Swaps two dims. No communication.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// A dim out of range.
pub fn transpose(exec: &dyn Exec, x: &Value, a: usize, b: usize) -> Result<Value> {
    extent("transpose", x, a)?;
    extent("transpose", x, b)?;
    let mut order: Vec<usize> = (0..x.ndim()).collect();
    order.swap(a, b);
    permute(exec, x, &order)
}

/// The same elements in row-major order under another shape.
///
/// # Collective
/// All members of the mesh. No communication where the sharded dims are the outermost of the groups of dims that
/// are merged or split and boundaries fall on multiples of what is inside; otherwise the operand is moved to the
/// nearest such layout first, which is even where shapes have enough such boundaries. Where the largest shard ends with more
/// than twice the elements, a `tracing` warning says so.
///
/// # Errors
/// Shapes of different sizes.
pub fn reshape(exec: &dyn Exec, x: &Value, shape: &[usize]) -> Result<Value> {
    let once = |x: &Value, shape: &[usize]| {
        exec.apply1(
            Arc::new(Reshape {
                shape: shape.iter().copied().collect(),
            }),
            &[x],
        )
    };
    if numel(x.shape()) != numel(shape) {
        return once(x, shape); // which says so
    }
    let y = match reshape_stop(x.layout(), shape) {
        Some(stop) => once(&once(x, &stop)?, shape)?,
        None => once(x, shape)?,
    };
    let (before, after) = (x.layout().max_local_numel(), y.layout().max_local_numel());
    if after > 2 * before {
        tracing::warn!(
            from = %x.layout(), to = %y.layout(), ?shape, before, after,
            "after this reshape the largest shard has more than twice the elements it had; shard another dim first"
        );
    }
    Ok(y)
}

/// Adds a dim of extent 1 at `dim`. No communication.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// A dim out of range.
pub fn unsqueeze(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Value> {
    if dim > x.ndim() {
        return Err(no_dim("unsqueeze", x, dim));
    }
    let mut shape = x.shape().to_vec();
    shape.insert(dim, 1);
    reshape(exec, x, &shape)
}

/// Removes dim `dim`, of extent 1. No communication.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// A dim out of range, or of another extent.
pub fn squeeze(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Value> {
    if extent("squeeze", x, dim)? != 1 {
        return Err(OpError::Shape {
            op: "squeeze",
            problem: format!("dim {dim} has extent {}", x.shape()[dim]),
            shapes: vec![x.shape().to_vec()],
            fix: "squeeze dims of extent 1 only",
        });
    }
    let mut shape = x.shape().to_vec();
    shape.remove(dim);
    reshape(exec, x, &shape)
}

/// The extent of a dim that the operand must have.
pub(super) fn extent(op: &'static str, x: &Value, dim: usize) -> Result<usize> {
    x.shape()
        .get(dim)
        .copied()
        .ok_or_else(|| no_dim(op, x, dim))
}

fn no_dim(op: &'static str, x: &Value, dim: usize) -> OpError {
    OpError::Shape {
        op,
        problem: format!("there is no dim {dim}"),
        shapes: vec![x.shape().to_vec()],
        fix: "name a dim of the operand, counting from 0",
    }
}

/// One entry for each of `nd` spatial dims, as an option of this name has them; a single one serves all.
pub(super) fn per_dim<T: Copy>(
    op: &'static str,
    option: &str,
    given: &[T],
    nd: usize,
    operands: &[&Value],
) -> Result<SmallVec<[T; 6]>> {
    match given {
        [one] => Ok(smallvec![*one; nd]),
        all if all.len() == nd => Ok(all.iter().copied().collect()),
        other => Err(OpError::Shape {
            op,
            problem: format!("{option} has {} entries for {nd} spatial dims", other.len()),
            shapes: operands.iter().map(|x| x.shape().to_vec()).collect(),
            fix: "give one entry, or one per spatial dim",
        }),
    }
}

/// Refuses operands of no spatial dims, or of more than three.
pub(super) fn check_spatial(
    op: &'static str,
    x: &Value,
    nd: usize,
    fix: &'static str,
) -> Result<()> {
    match nd {
        1..=3 => Ok(()),
        _ => Err(OpError::Shape {
            op,
            problem: format!("{nd} spatial dims"),
            shapes: vec![x.shape().to_vec()],
            fix,
        }),
    }
}

/// Dims in another order: the same pieces, each permuted locally.
#[derive(Clone, Debug)]
struct Permute {
    order: SmallVec<[usize; 6]>,
}

impl Op for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn key(&self) -> u128 {
        key_of("permute", &self.order)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = &inputs[0];
        let mut rule = Rule::builder("permute", inputs).any_order();
        let factors: Vec<usize> = x.shape.iter().map(|&n| rule.factor(n)).collect();
        let shape = self.order.iter().map(|&d| x.shape[d]).collect();
        rule.input(factors.iter().map(|&f| Access::factor(f)).collect())
            .output(
                self.order
                    .iter()
                    .map(|&d| Access::factor(factors[d]))
                    .collect(),
                shape,
                x.dtype,
            )
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.dtype(), T => {
            let x = call.input::<T>(0).permute(&self.order);
            copy(&x, &mut call.output::<T>(0));
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let mut inverse = vec![0; self.order.len()];
        for (d, &from) in self.order.iter().enumerate() {
            inverse[from] = d;
        }
        saved.pull_back(cotangents, |dy, _| permute(exec, dy, &inverse))
    }
}

/// The same row-major elements under another shape.
///
/// The two shapes are cut into groups of dims of equal size; within a group only the outermost dims may be
/// sharded, at boundaries that are multiples of what lies inside on both sides. Worked example: (6, 4) to (8, 3)
/// is one group with 4 and 3 inside, so boundaries must be multiples of 12 elements: 3 rows of the one, 4 of the
/// other.
#[derive(Clone, Debug)]
struct Reshape {
    shape: Dims,
}

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn key(&self) -> u128 {
        key_of("reshape", &self.shape)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = &inputs[0];
        if numel(&x.shape) != numel(&self.shape) {
            return Err(OpError::Shape {
                op: "reshape",
                problem: format!("{:?} has another number of elements", &self.shape[..]),
                shapes: vec![x.shape.to_vec()],
                fix: "give a shape of the same size",
            });
        }
        let mut rule = Rule::builder("reshape", inputs).any_order();
        let mut from: Vec<Access> = vec![Access::WHOLE; x.shape.len()];
        let mut to: Vec<Access> = vec![Access::WHOLE; self.shape.len()];
        for group in reshape_groups(&x.shape, &self.shape) {
            if group.unit == 0 {
                continue;
            }
            let factor = rule.factor(group.numel(&x.shape) / group.unit);
            for d in group.from {
                from[d] = Access::Whole {
                    instead: Some(factor),
                };
            }
            from[group.outer.0] = Access::Factor {
                factor,
                block: group.unit / group.inside.0,
            };
            to[group.outer.1] = Access::Factor {
                factor,
                block: group.unit / group.inside.1,
            };
        }
        rule.input(from)
            .output(to, self.shape.clone(), x.dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .relabels()
            .build()
    }

    fn host(&self, _: &mut HostCall<'_, '_>) {
        unreachable!("a reshape has no kernel: the engine relabels the input's piece");
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, x| {
            reshape(exec, dy, saved.inputs[x].shape())
        })
    }
}
