//! Ops that only move elements: slice, flip, roll, pad, cat, repeat, permute, reshape and their kin.
//!
//! Most are one exchange under an index map ([`DimMap`]), and their vjp is the same exchange under the inverse
//! map, adding where several elements arrive at one place. Boundaries follow the first operand's, scaled to the
//! new extent (padding shifts them instead).

use crate::error::InOp;
use crate::host::with_element;
use crate::kernels::copy::copy;
use crate::{
    Access, Boundaries, Exec, HostCall, Linearity, Meta, Op, OpError, Result, Rule, Saved, Value,
    holds, key_of,
};
use shard_comm::{DType, Scalar};
use shard_spec::{DimMap, Dims, EdgeMap, numel};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Elements `start, start + step, ...` of dim `dim`, `len` of them; `step` may be negative.
///
/// # Collective
/// All members of the mesh; communicates if the dim is sharded.
///
/// # Errors
/// A dim out of range, a zero step, or indices out of range.
pub fn slice(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    start: usize,
    step: isize,
    len: usize,
) -> Result<Value> {
    let n = extent("slice", x, dim)?;
    let map = DimMap::slice(n, start, step, len).in_op("slice")?;
    one_dim(exec, "slice", x, dim, &map)
}

/// The elements of dim `dim` in reverse.
///
/// # Collective
/// All members of the mesh; communicates if the dim is sharded.
///
/// # Errors
/// A dim out of range.
pub fn flip(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Value> {
    let n = extent("flip", x, dim)?;
    one_dim(exec, "flip", x, dim, &DimMap::flip(n))
}

/// The elements of dim `dim` moved by `shift` places, around the end.
///
/// # Collective
/// All members of the mesh; communicates if the dim is sharded.
///
/// # Errors
/// A dim out of range.
pub fn roll(exec: &dyn Exec, x: &Value, dim: usize, shift: isize) -> Result<Value> {
    let n = extent("roll", x, dim)?;
    one_dim(exec, "roll", x, dim, &DimMap::roll(n, shift))
}

/// The elements of dim `dim`, `times` times over.
///
/// # Collective
/// All members of the mesh; communicates if the dim is sharded.
///
/// # Errors
/// A dim out of range; more than 1,048,576 times.
pub fn repeat(exec: &dyn Exec, x: &Value, dim: usize, times: usize) -> Result<Value> {
    let n = extent("repeat", x, dim)?;
    few_runs("repeat", x, times)?;
    let map = DimMap::repeat(n, times).in_op("repeat")?;
    one_dim(exec, "repeat", x, dim, &map)
}

/// Pads every dim by `(before, after)`; negative pads crop. `value` fills the padding of [`EdgeMap::Zeros`].
///
/// # Collective
/// All members of the mesh; communicates what crosses boundaries.
///
/// # Errors
/// Another number of pads than dims; a reflection wider than the dim, or more than 1,048,576 rounds of it; a crop of more
/// than there is; a value that the type cannot hold.
pub fn pad(
    exec: &dyn Exec,
    x: &Value,
    pads: &[(isize, isize)],
    edge: EdgeMap,
    value: f64,
) -> Result<Value> {
    if pads.len() != x.ndim() {
        return Err(OpError::Shape {
            op: "pad",
            problem: format!("{} pads were given", pads.len()),
            shapes: vec![x.shape().to_vec()],
            fix: "give one (before, after) per dim",
        });
    }
    if edge == EdgeMap::Zeros && !holds(x.dtype(), value) {
        return Err(OpError::Value {
            op: "pad",
            value,
            dtype: x.dtype(),
        });
    }
    let mut dims = Vec::with_capacity(pads.len());
    for (&n, &(before, after)) in x.shape().iter().zip(pads) {
        if edge == EdgeMap::Circular {
            let wide = before
                .max(0)
                .unsigned_abs()
                .max(after.max(0).unsigned_abs());
            few_runs("pad", x, wide / n.max(1))?;
        }
        let map = DimMap::pad(n, before, after, edge).in_op("pad")?;
        dims.push(MoveDim {
            map,
            law: Boundaries::Shifted(before),
        });
    }
    let op = Move::new("pad", vec![dims], value, false);
    exec.apply1(Arc::new(op), &[x])
}

/// Joins values along dim `dim`.
///
/// # Collective
/// All members of the mesh; communicates if the dim is sharded or the operands are misaligned.
///
/// # Errors
/// No operands; extents that differ in other dims; types that differ.
pub fn cat(exec: &dyn Exec, xs: &[&Value], dim: usize) -> Result<Value> {
    let Some(first) = xs.first() else {
        return Err(OpError::Arity {
            op: "cat",
            expected: "at least one operand".into(),
            got: 0,
        });
    };
    extent("cat", first, dim)?;
    let agree = |x: &&&Value| {
        x.ndim() == first.ndim()
            && (0..x.ndim()).all(|d| d == dim || x.shape()[d] == first.shape()[d])
    };
    if !xs.iter().all(|x| agree(&x)) {
        return Err(OpError::Shape {
            op: "cat",
            problem: format!("operands differ outside dim {dim}"),
            shapes: xs.iter().map(|x| x.shape().to_vec()).collect(),
            fix: "give operands that agree in all other dims",
        });
    }
    let total: usize = xs.iter().map(|x| x.shape()[dim]).sum();
    let mut at = 0;
    let mut inputs = Vec::with_capacity(xs.len());
    for x in xs {
        inputs.push(
            (0..x.ndim())
                .map(|d| {
                    let n = x.shape()[d];
                    let map = if d == dim {
                        DimMap::place(n, total, at).in_op("cat")?
                    } else {
                        DimMap::identity(n)
                    };
                    Ok(MoveDim {
                        map,
                        law: Boundaries::Scaled,
                    })
                })
                .collect::<Result<Vec<_>>>()?,
        );
        at += x.shape()[dim];
    }
    exec.apply1(Arc::new(Move::new("cat", inputs, 0.0, false)), xs)
}

/// Joins values along a new dim `dim`.
///
/// # Collective
/// As [`cat`].
///
/// # Errors
/// As [`cat`].
pub fn stack(exec: &dyn Exec, xs: &[&Value], dim: usize) -> Result<Value> {
    let widened = xs
        .iter()
        .map(|x| unsqueeze(exec, x, dim))
        .collect::<Result<Vec<_>>>()?;
    cat(exec, &widened.iter().collect::<Vec<_>>(), dim)
}

/// The pieces of dim `dim` of the given sizes.
///
/// # Collective
/// As [`slice`](fn@slice).
///
/// # Errors
/// Sizes that do not sum to the extent.
pub fn split(exec: &dyn Exec, x: &Value, sizes: &[usize], dim: usize) -> Result<Vec<Value>> {
    let n = extent("split", x, dim)?;
    if sizes
        .iter()
        .try_fold(0_usize, |sum, &size| sum.checked_add(size))
        != Some(n)
    {
        return Err(OpError::Shape {
            op: "split",
            problem: format!("sizes {sizes:?} do not sum to {n}"),
            shapes: vec![x.shape().to_vec()],
            fix: "give sizes that sum to the extent of the dim",
        });
    }
    let mut at = 0;
    sizes
        .iter()
        .map(|&len| {
            let piece = slice(exec, x, dim, at, 1, len);
            at += len;
            piece
        })
        .collect()
}

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
/// nearest such layout first.
///
/// # Errors
/// Shapes of different sizes.
pub fn reshape(exec: &dyn Exec, x: &Value, shape: &[usize]) -> Result<Value> {
    exec.apply1(
        Arc::new(Reshape {
            shape: shape.iter().copied().collect(),
        }),
        &[x],
    )
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

/// Repeats dims of extent 1 to `shape`, which may have more leading dims. No communication.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// A shape the operand does not broadcast to.
pub fn expand(exec: &dyn Exec, x: &Value, shape: &[usize]) -> Result<Value> {
    let op = Expand {
        shape: shape.iter().copied().collect(),
    };
    exec.apply1(Arc::new(op), &[x])
}

/// As [`expand`] to the shape of `like`, whose layout the result takes: what a sum's vjp needs, so that the
/// gradient of a sharded operand is sharded too. `like`'s elements are not read.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// A shape the operand does not broadcast to.
pub fn expand_like(exec: &dyn Exec, x: &Value, like: &Value) -> Result<Value> {
    if like.layout().is_partial() || like.dtype() != x.dtype() {
        return expand(exec, x, like.shape());
    }
    let op = Expand {
        shape: like.shape().iter().copied().collect(),
    };
    exec.apply1(Arc::new(op), &[x, &like.detach()])
}

/// Refuses to copy a dim so many times that to list the copies alone would take long.
fn few_runs(op: &'static str, x: &Value, times: usize) -> Result<()> {
    const MOST: usize = 1 << 20;
    if times <= MOST {
        return Ok(());
    }
    Err(OpError::Shape {
        op,
        problem: format!("{times} copies of a dim, more than {MOST}"),
        shapes: vec![x.shape().to_vec()],
        fix: "expand along a new dim, and reshape",
    })
}

fn extent(op: &'static str, x: &Value, dim: usize) -> Result<usize> {
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

fn one_dim(
    exec: &dyn Exec,
    name: &'static str,
    x: &Value,
    dim: usize,
    map: &DimMap,
) -> Result<Value> {
    let dims = (0..x.ndim())
        .map(|d| {
            let map = if d == dim {
                map.clone()
            } else {
                DimMap::identity(x.shape()[d])
            };
            MoveDim {
                map,
                law: Boundaries::Scaled,
            }
        })
        .collect();
    exec.apply1(Arc::new(Move::new(name, vec![dims], 0.0, false)), &[x])
}

/// An exchange under index maps.
#[derive(Clone, Debug)]
struct Move {
    name: &'static str,
    /// Per input, per dim.
    inputs: Vec<Vec<MoveDim>>,
    shape: Dims,
    fill: f64,
    accumulate: bool,
}

#[derive(Clone, Debug, Hash)]
struct MoveDim {
    map: DimMap,
    law: Boundaries,
}

impl Move {
    fn new(name: &'static str, inputs: Vec<Vec<MoveDim>>, fill: f64, accumulate: bool) -> Self {
        let shape = inputs[0].iter().map(|d| d.map.dst_extent()).collect();
        Self {
            name,
            inputs,
            shape,
            fill,
            accumulate,
        }
    }
}

impl Op for Move {
    fn name(&self) -> &'static str {
        self.name
    }

    fn key(&self) -> u128 {
        key_of(
            self.name,
            &(
                &self.inputs,
                &self.shape,
                self.fill.to_bits(),
                self.accumulate,
            ),
        )
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = same_types(self.name, inputs)?;
        let mut rule = Rule::builder(self.name, inputs).any_order();
        let factors: Vec<usize> = self.shape.iter().map(|&n| rule.factor(n)).collect();
        for dims in &self.inputs {
            let accesses = dims.iter().zip(&factors).map(|(dim, &factor)| {
                if dim.map.is_identity() {
                    Access::factor(factor)
                } else {
                    Access::Map {
                        factor,
                        map: dim.map.clone(),
                        law: dim.law,
                    }
                }
            });
            rule = rule.input(accesses.collect());
        }
        let linear = match inputs.len() {
            _ if self.fill != 0.0 => Linearity::None,
            1 => Linearity::Each(smallvec![0]),
            _ => Linearity::Joint,
        };
        rule.output(
            factors.iter().map(|&f| Access::factor(f)).collect(),
            self.shape.clone(),
            dtype,
        )
        .fill(Scalar::F64(self.fill))
        .linearity(linear)
        .moves(self.accumulate)
        .build()
    }

    fn host(&self, _: &mut HostCall<'_, '_>) {
        unreachable!("a move has no kernel: the engine returns what the exchange assembled");
    }

    fn keeps_input(&self, _: usize) -> bool {
        false
    }

    fn keeps_output(&self, _: usize) -> bool {
        false
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None; self.inputs.len()]);
        };
        self.inputs
            .iter()
            .zip(saved.needs)
            .map(|(dims, &needed)| {
                if !needed {
                    return Ok(None);
                }
                let back: Vec<MoveDim> = dims.iter().map(MoveDim::inverse).collect();
                // Elements read more than once collect what comes back from every reader.
                let accumulate = !back.iter().all(|d| d.map.single_valued());
                exec.apply1(
                    Arc::new(Self::new("move_adjoint", vec![back], 0.0, accumulate)),
                    &[dy],
                )
                .map(Some)
            })
            .collect()
    }
}

impl MoveDim {
    fn inverse(&self) -> Self {
        let law = match self.law {
            Boundaries::Scaled => Boundaries::Scaled,
            Boundaries::Shifted(by) => Boundaries::Shifted(-by),
        };
        Self {
            map: self.map.inverse(),
            law,
        }
    }
}

/// Dims in another order: the same pieces, each permuted locally.
#[derive(Clone, Debug)]
pub(crate) struct Permute {
    pub(crate) order: SmallVec<[usize; 6]>,
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

    #[cfg(feature = "cuda")]
    fn cuda(&self) -> Option<&dyn crate::cuda::CudaKernel> {
        Some(self)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.dtype(), T => {
            let x = call.input::<T>(0).permute(&self.order);
            copy(&x, &mut call.output::<T>(0));
        });
    }

    fn keeps_input(&self, _: usize) -> bool {
        false
    }

    fn keeps_output(&self, _: usize) -> bool {
        false
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        _: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None]);
        };
        let mut inverse = vec![0; self.order.len()];
        for (d, &from) in self.order.iter().enumerate() {
            inverse[from] = d;
        }
        Ok(vec![Some(permute(exec, dy, &inverse)?)])
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
        for (a, b) in groups(&x.shape, &self.shape) {
            let (Some(outer_a), Some(outer_b)) =
                (outermost(&x.shape, &a), outermost(&self.shape, &b))
            else {
                continue;
            };
            let inside_a = numel(&x.shape[outer_a + 1..a.end]);
            let inside_b = numel(&self.shape[outer_b + 1..b.end]);
            let unit = lcm(inside_a, inside_b);
            if unit == 0 {
                continue;
            }
            let factor = rule.factor(numel(&x.shape[a.clone()]) / unit);
            for d in a.clone() {
                from[d] = Access::Whole {
                    instead: Some(factor),
                };
            }
            from[outer_a] = Access::Factor {
                factor,
                block: unit / inside_a,
            };
            to[outer_b] = Access::Factor {
                factor,
                block: unit / inside_b,
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

    fn keeps_input(&self, _: usize) -> bool {
        false
    }

    fn keeps_output(&self, _: usize) -> bool {
        false
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None]);
        };
        Ok(vec![Some(reshape(exec, dy, saved.inputs[0].shape())?)])
    }
}

/// The first dim of a group that is not of extent 1: sharding a dim of extent 1 gives one rank everything.
fn outermost(shape: &[usize], group: &std::ops::Range<usize>) -> Option<usize> {
    group
        .clone()
        .find(|&d| shape[d] != 1)
        .or(group.clone().next())
}

/// Cuts two shapes of equal size into groups of consecutive dims whose products agree, as small as possible.
fn groups(a: &[usize], b: &[usize]) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    if a.contains(&0) || b.contains(&0) {
        return vec![(0..a.len(), 0..b.len())];
    }
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let (start_i, start_j) = (i, j);
        let (mut left, mut right) = (a[i], b[j]);
        (i, j) = (i + 1, j + 1);
        while left != right {
            if left < right {
                left *= a[i];
                i += 1;
            } else {
                right *= b[j];
                j += 1;
            }
        }
        found.push((start_i..i, start_j..j));
    }
    // What is left over on one side has extent 1.
    found
}

fn lcm(a: usize, b: usize) -> usize {
    fn gcd(a: usize, b: usize) -> usize {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    if a == 0 || b == 0 {
        0
    } else {
        a / gcd(a, b) * b
    }
}

/// Dims of extent 1, and missing leading dims, repeated. A second operand only lends its layout.
#[derive(Clone, Debug)]
pub(crate) struct Expand {
    shape: Dims,
}

impl Op for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn key(&self) -> u128 {
        key_of("expand", &self.shape)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = &inputs[0];
        let fits = x.shape.len() <= self.shape.len()
            && x.shape
                .iter()
                .rev()
                .zip(self.shape.iter().rev())
                .all(|(&n, &m)| n == m || n == 1);
        if !fits {
            return Err(OpError::Shape {
                op: "expand",
                problem: format!("does not broadcast to {:?}", &self.shape[..]),
                shapes: vec![x.shape.to_vec()],
                fix: "expand dims of extent 1 only",
            });
        }
        let mut rule = Rule::builder("expand", inputs).any_order();
        let factors: Vec<usize> = self.shape.iter().map(|&n| rule.factor(n)).collect();
        let lead = self.shape.len() - x.shape.len();
        let dims = x.shape.iter().enumerate().map(|(d, &n)| {
            if n == self.shape[lead + d] {
                Access::factor(factors[lead + d])
            } else {
                Access::WHOLE
            }
        });
        let all: Vec<Access> = factors.iter().map(|&f| Access::factor(f)).collect();
        let mut rule = rule.input(dims.collect());
        if inputs.len() == 2 {
            rule = rule.input(all.clone()).unread(1);
        }
        rule.output(all, self.shape.clone(), x.dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self) -> Option<&dyn crate::cuda::CudaKernel> {
        Some(self)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let mut y = call.output::<T>(0);
            let shape = y.shape().to_vec();
            if let Some(x) = x.broadcast_to(&shape) {
                copy(&x, &mut y);
            }
        });
    }

    fn keeps_input(&self, _: usize) -> bool {
        false
    }

    fn keeps_output(&self, _: usize) -> bool {
        false
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let mut back = vec![None; saved.inputs.len()];
        if let Some(dy) = &cotangents[0] {
            back[0] = Some(crate::reduce::sum_to(exec, dy, saved.inputs[0].shape())?);
        }
        Ok(back)
    }
}

/// The common type of the operands.
pub(crate) fn same_types(op: &'static str, inputs: &[Meta]) -> Result<DType> {
    let Some(first) = inputs.first() else {
        return Err(OpError::Arity {
            op,
            expected: "at least one operand".into(),
            got: 0,
        });
    };
    match inputs.iter().position(|m| m.dtype != first.dtype) {
        Some(operand) => Err(OpError::DType {
            op,
            operand,
            expected: first.dtype.to_string(),
            got: inputs[operand].dtype,
        }),
        None => Ok(first.dtype),
    }
}
