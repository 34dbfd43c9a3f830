//! Ops that take elements by their index along a dim: slice, flip, roll, repeat, pad, cat, stack, split.
//!
//! Each is one exchange under an index map ([`DimMap`]), and its vjp is the same exchange under the inverse map, adding
//! where several elements arrive at one place. Boundaries follow the first operand's, scaled to the new extent (padding
//! shifts them instead).

use super::broadcast::expand;
use super::shape::{extent, reshape, squeeze, transpose, unsqueeze};
use super::types::same_types;
use crate::error::InOp;
use crate::{
    Access, Boundaries, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError,
    Result, Rule, Saved, Value, Wait, Waiting, holds, key_of,
};
use shard_comm::Scalar;
use shard_spec::{DimMap, Dims, EdgeMap};
use smallvec::smallvec;
use std::any::Any;
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

/// Of each dim the elements `start, start + step, ...`, so many of them: [`slice`](fn@slice) of all dims at once.
///
/// # Collective
/// All members of the mesh: one exchange, if a dim is sharded that is not whole.
///
/// # Errors
/// Another number of slices than dims; a zero step, or indices out of range.
pub fn slices(exec: &dyn Exec, x: &Value, of: &[(usize, isize, usize)]) -> Result<Value> {
    if of.len() != x.ndim() {
        return Err(OpError::Shape {
            op: "slice",
            problem: format!("{} slices were given", of.len()),
            shapes: vec![x.shape().to_vec()],
            fix: "give one for each dim",
        });
    }
    let maps = (x.shape().iter().zip(of)).map(|(&n, &(start, step, len))| {
        match (start, step, len) == (0, 1, n) {
            true => Ok(DimMap::identity(n)),
            false => DimMap::slice(n, start, step, len).in_op("slice"),
        }
    });
    scaled(exec, "slice", x, maps.collect::<Result<_>>()?)
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
    roll_dims(exec, x, &[(dim, shift)])
}

/// [`roll`] of several dims at once, each by its own shift. Shifts of a dim that is named several times add up.
///
/// # Collective
/// All members of the mesh: one exchange, if one of the dims is sharded.
///
/// # Errors
/// A dim out of range.
pub fn roll_dims(exec: &dyn Exec, x: &Value, shifts: &[(usize, isize)]) -> Result<Value> {
    let mut maps: Vec<DimMap> = x.shape().iter().map(|&n| DimMap::identity(n)).collect();
    let mut sums = vec![0_i128; x.ndim()];
    for &(dim, shift) in shifts {
        let n = extent("roll", x, dim)?.max(1) as i128;
        sums[dim] = (sums[dim] + shift as i128) % n;
        maps[dim] = DimMap::roll(x.shape()[dim], sums[dim] as isize);
    }
    scaled(exec, "roll", x, maps)
}

/// What comes before each element of a dim (behind it, `backwards`): `first` comes before all others, or zeros. Boundaries stay, so that a
/// rank gets an element of each line.
///
/// # Collective
/// All members of the mesh; communicates if the dim is sharded.
///
/// # Errors
/// A first one of another shape than the others with extent 1 along the dim.
pub(super) fn shift(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    backwards: bool,
    first: Option<&Value>,
) -> Result<Value> {
    let (op, n) = ("shift", x.shape()[dim]);
    if n == 0 {
        return Ok(x.clone());
    }
    let (by, start) = if backwards { (-1, n - 1) } else { (1, 0) };
    let along = [
        DimMap::pad(n, by, -by, EdgeMap::Zeros).in_op(op)?,
        DimMap::place(1, n, start).in_op(op)?,
    ];
    let maps = along[..1 + usize::from(first.is_some())].iter().map(|map| {
        let dims = x.shape().iter().enumerate().map(|(d, &n)| MoveDim {
            map: match d == dim {
                true => map.clone(),
                false => DimMap::identity(n),
            },
            law: Boundaries::Scaled,
        });
        dims.collect()
    });
    let shifted = Move::new(op, maps.collect(), 0.0, false);
    let operands: Vec<&Value> = std::iter::once(x).chain(first).collect();
    exec.apply1(Arc::new(shifted), &operands)
}

/// The elements of dim `dim`, `times` times over.
///
/// # Collective
/// All members of the mesh; communicates if the dim is sharded.
///
/// # Errors
/// A dim out of range; more than 1,048,576 times.
pub fn repeat(exec: &dyn Exec, x: &Value, dim: usize, times: usize) -> Result<Value> {
    repeat_dims(exec, x, &[(dim, times)])
}

/// [`repeat`] of several dims at once, each by its own number. Numbers of a dim that is named several times multiply.
///
/// # Collective
/// All members of the mesh: one exchange, if one of the dims is sharded.
///
/// # Errors
/// As [`repeat`].
pub fn repeat_dims(exec: &dyn Exec, x: &Value, times: &[(usize, usize)]) -> Result<Value> {
    let mut all = vec![1_usize; x.ndim()];
    for &(dim, times) in times {
        extent("repeat", x, dim)?;
        all[dim] = all[dim].saturating_mul(times);
        few_runs("repeat", x, all[dim])?;
    }
    let repeated = |x: &Value, of: &dyn Fn(usize) -> bool| {
        let maps = (x.shape().iter().enumerate()).map(|(d, &n)| match all[d] != 1 && of(d) {
            true => DimMap::repeat(n, all[d]).in_op("repeat"),
            false => Ok(DimMap::identity(n)),
        });
        scaled(exec, "repeat", x, maps.collect::<Result<_>>()?)
    };
    let divided = |d: usize| x.layout().sharding(d).is_some();
    let mixed = |here: bool| (0..x.ndim()).any(|d| all[d] != 1 && divided(d) == here);
    match mixed(true) && mixed(false) {
        // What crosses boundaries does so before it is repeated along other dims.
        true => repeated(&repeated(x, &divided)?, &|d| !divided(d)),
        false => repeated(x, &|_| true),
    }
}

/// Every index of dim `dim` so many times, one behind the other.
///
/// # Collective
/// All members of the mesh. No communication: copies lie with what they repeat.
///
/// # Errors
/// A dim out of range; more copies than can be counted.
pub fn repeat_interleave(exec: &dyn Exec, x: &Value, dim: usize, times: usize) -> Result<Value> {
    let op = "repeat_interleave";
    let n = extent(op, x, dim)?;
    let Some(all) = n.checked_mul(times) else {
        return Err(OpError::Shape {
            op,
            problem: format!("{times} copies of {n} indices"),
            shapes: vec![x.shape().to_vec()],
            fix: "ask for fewer",
        });
    };
    let mut shape = x.shape().to_vec();
    shape.insert(dim + 1, times);
    let copies = expand(exec, &unsqueeze(exec, x, dim + 1)?, &shape)?;
    shape.remove(dim + 1);
    shape[dim] = all;
    reshape(exec, &copies, &shape)
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
        return Err(OpError::arity("cat", "at least one operand", 0));
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

/// Dim `dim` in so many pieces, of which the first ones have an index more than the others where it does not divide.
///
/// # Collective
/// As [`slice`](fn@slice).
///
/// # Errors
/// No pieces, or more empty ones than a million; a dim out of range.
pub fn tensor_split(exec: &dyn Exec, x: &Value, pieces: usize, dim: usize) -> Result<Vec<Value>> {
    let n = extent("tensor_split", x, dim)?;
    if pieces == 0 || pieces > n.max(1 << 20) {
        return Err(OpError::Shape {
            op: "tensor_split",
            problem: format!("{pieces} pieces of {n} indices"),
            shapes: vec![x.shape().to_vec()],
            fix: "ask for one at least, and not for a million empty ones",
        });
    }
    let size = |i| n / pieces + usize::from(i < n % pieces);
    split(exec, x, &(0..pieces).map(size).collect::<Vec<_>>(), dim)
}

/// `x` turned by so many quarters in the plane of two dims, from the first to the second; by negative numbers the other way.
///
/// # Collective
/// All members of the mesh. Half a turn as [`flip`](fn@flip) of both; of a quarter one dim is flipped, and each lies where the other did.
///
/// # Errors
/// Dims out of range, or one named twice.
pub fn rot90(exec: &dyn Exec, x: &Value, quarters: i64, [from, to]: [usize; 2]) -> Result<Value> {
    extent("rot90", x, from)?;
    extent("rot90", x, to)?;
    if from == to {
        return Err(OpError::Shape {
            op: "rot90",
            problem: format!("dims {from} and {to} are no plane"),
            shapes: vec![x.shape().to_vec()],
            fix: "name two dims",
        });
    }
    match quarters.rem_euclid(4) {
        0 => Ok(x.clone()),
        1 => transpose(exec, &flip(exec, x, to)?, from, to),
        2 => flip(exec, &flip(exec, x, from)?, to),
        _ => transpose(exec, &flip(exec, x, from)?, from, to),
    }
}

/// The matrix with these on its diagonal, one after the other, and zeros elsewhere. A list is a matrix of one row, and a number one of one
/// element.
///
/// # Collective
/// As [`pad`](fn@pad) of each, and [`cat`](fn@cat).
///
/// # Errors
/// No operands, or one of more than two dims; types that differ.
pub fn block_diag(exec: &dyn Exec, xs: &[&Value]) -> Result<Value> {
    let blocks = xs.iter().map(|x| match *x.shape() {
        [] => reshape(exec, x, &[1, 1]),
        [n] => reshape(exec, x, &[1, n]),
        [_, _] => Ok((*x).clone()),
        _ => Err(OpError::Shape {
            op: "block_diag",
            problem: format!("an operand of {} dims", x.ndim()),
            shapes: vec![x.shape().to_vec()],
            fix: "give matrices, lists and numbers",
        }),
    });
    let blocks = blocks.collect::<Result<Vec<_>>>()?;
    let widths = blocks.iter().map(|block| block.shape()[1]);
    let all = widths.fold(0, usize::saturating_add);
    if isize::try_from(all).is_err() {
        return Err(OpError::Shape {
            op: "block_diag",
            problem: "more columns than can be counted".into(),
            shapes: blocks.iter().map(|block| block.shape().to_vec()).collect(),
            fix: "give smaller matrices",
        });
    }
    let mut before = 0;
    let rows = blocks.iter().map(|block| {
        let columns = block.shape()[1];
        let after = all - before - columns;
        let pads = [(0, 0), (before as isize, after as isize)];
        before += columns;
        pad(exec, block, &pads, EdgeMap::Zeros, 0.0)
    });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    cat(exec, &rows.iter().collect::<Vec<_>>(), 0)
}

/// Dim `dim` in `chunks` pieces of equal size but for the last, which is shorter; as PyTorch has it, fewer than `chunks` if the
/// extent is used up before. A dim without elements has as many empty pieces as are asked for.
///
/// # Collective
/// As [`slice`](fn@slice).
///
/// # Errors
/// No chunks, or more empty ones than a million; a dim out of range.
pub fn chunk(exec: &dyn Exec, x: &Value, chunks: usize, dim: usize) -> Result<Vec<Value>> {
    let n = extent("chunk", x, dim)?;
    if chunks == 0 || (n == 0 && chunks > MOST_RUNS) {
        return Err(OpError::Shape {
            op: "chunk",
            problem: format!("{chunks} chunks of {n} indices"),
            shapes: vec![x.shape().to_vec()],
            fix: "ask for one chunk or more, and for a million at most where all are empty",
        });
    }
    let sizes = match n.div_ceil(chunks) {
        0 => vec![0; chunks],
        size => (0..n.div_ceil(size))
            .map(|i| size.min(n - i * size))
            .collect(),
    };
    split(exec, x, &sizes, dim)
}

/// The slices of dim `dim`, one for each index and without the dim.
///
/// # Collective
/// As [`slice`](fn@slice), for each.
///
/// # Errors
/// A dim out of range.
pub fn unbind(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Vec<Value>> {
    let n = extent("unbind", x, dim)?;
    let each = |x: &Value| -> Result<Vec<Value>> {
        let one = |i| squeeze(exec, &slice(exec, x, dim, i, 1, 1)?, dim);
        (0..x.shape()[dim]).map(one).collect()
    };
    // The gradients of some dozens of slices are put together at once, in a tensor as large as what they were taken of: of more
    // indices, slices are taken of runs of them.
    let run = n.isqrt();
    if n <= 64 || !exec.records() || x.layout().sharding(dim).is_some() {
        return each(x);
    }
    let mut all = Vec::with_capacity(n);
    for start in (0..n).step_by(run) {
        all.extend(each(&slice(exec, x, dim, start, 1, run.min(n - start))?)?);
    }
    Ok(all)
}

fn one_dim(
    exec: &dyn Exec,
    name: &'static str,
    x: &Value,
    dim: usize,
    map: &DimMap,
) -> Result<Value> {
    let mut maps: Vec<DimMap> = x.shape().iter().map(|&n| DimMap::identity(n)).collect();
    maps[dim] = map.clone();
    scaled(exec, name, x, maps)
}

/// A move with boundaries in proportion, by a map for each dim. A value of which all is meant, as it lies, is what it is.
fn scaled(exec: &dyn Exec, name: &'static str, x: &Value, maps: Vec<DimMap>) -> Result<Value> {
    if maps.iter().all(DimMap::is_identity) {
        return Ok(x.clone());
    }
    let law = Boundaries::Scaled;
    let dims = (maps.into_iter()).map(|map| MoveDim { map, law }).collect();
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

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, i| {
            let back: Vec<MoveDim> = self.inputs[i].iter().map(MoveDim::inverse).collect();
            // Elements read more than once collect what comes back from every reader.
            let accumulate = !back.iter().all(|d| d.map.single_valued());
            let adjoint = Self::new("move_adjoint", vec![back], 0.0, accumulate);
            exec.apply1(Arc::new(adjoint), &[dy])
        })
    }

    /// Of a piece that is cut from what each rank has whole: with the others it is one move, where each alone is as large as the whole.
    fn waits(&self, _: usize, _: &[Value], cotangent: &Value) -> Option<Wait> {
        let [dims] = &self.inputs[..] else {
            return None;
        };
        let whole = dims.iter().map(|dim| dim.map.src_extent());
        let is_whole = |(d, dim): (usize, &MoveDim)| {
            dim.map.is_identity() || cotangent.layout().sharding(d).is_none()
        };
        let waits = cotangent.shape().iter().product::<usize>() < whole.product()
            && dims.iter().enumerate().all(is_whole);
        waits.then(|| Wait {
            keeps: Keeps::NOTHING,
            with: key_of("move", &()),
        })
    }

    fn vjp_together(&self, exec: &dyn Exec, _: usize, of: &[Waiting<'_>]) -> Result<Value> {
        let moves = of.iter().map(|one| {
            let op: &dyn Any = one.op;
            let dims = op.downcast_ref::<Self>()?.inputs[0].iter();
            Some(dims.map(MoveDim::inverse).collect::<Vec<_>>())
        });
        let Some(back) = moves.collect::<Option<Vec<_>>>() else {
            return Err(OpError::NoVjp {
                op: self.name,
                operand: 0,
            });
        };
        let adds = |(i, dims): (usize, &Vec<MoveDim>)| {
            let meets = |other: &Vec<MoveDim>| {
                let mut pairs = dims.iter().zip(other);
                pairs.all(|(a, b)| a.map.meets(&b.map))
            };
            !dims.iter().all(|d| d.map.single_valued()) || back[..i].iter().any(meets)
        };
        let accumulate = back.iter().enumerate().any(adds);
        let cotangents: Vec<&Value> = of.iter().map(|one| one.cotangent).collect();
        let adjoint = Self::new("move_adjoint", back, 0.0, accumulate);
        exec.apply1(Arc::new(adjoint), &cotangents)
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

/// How many copies or pieces of a dim are listed at most.
const MOST_RUNS: usize = 1 << 20;

/// Refuses to copy a dim so many times that to list the copies alone would take long.
fn few_runs(op: &'static str, x: &Value, times: usize) -> Result<()> {
    if times <= MOST_RUNS {
        return Ok(());
    }
    Err(OpError::Shape {
        op,
        problem: format!("{times} copies of a dim, more than {MOST_RUNS}"),
        shapes: vec![x.shape().to_vec()],
        fix: "expand along a new dim, and reshape",
    })
}
