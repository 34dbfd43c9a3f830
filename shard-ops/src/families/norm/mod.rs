//! Group, instance, layer, batch and RMS normalisation by (count, mean, M2): exact for any sharding, stable for any offset.
//!
//! The moments of the ranks' parts are merged by Chan's formula, in double precision, so the statistics are
//! the global ones, with the same bits on every rank. This takes one small all-reduce forward and one backward.
//! Of cells that lie whole on ranks, and are short, one op finds the statistics and normalises, cell by cell.

mod batch;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod grad;
mod halves;

pub use batch::{Running, batch_norm, instance_norm_running};

use self::grad::{GradOp, Part};

use crate::families::elementwise::{add_scalar, cast, mul, sub, unary};
use crate::families::full::sums;
use crate::families::reduce::{mean, sum};
use crate::families::shape::reshape;
use crate::families::statistics::lie_whole;
use crate::families::types::float_types;
use crate::host::{flat, with_float, with_half};
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, OpError,
    Precision, Reduction, Result, Rule, RuleBuilder, Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind, Monoid};
use shard_kernels::Real;
use shard_kernels::moments::{Groups, about_zero, moments};
use shard_kernels::normalise::{self as kernels, Along, Scale};
use shard_kernels::unary::Unary;
use shard_spec::{Dims, ReduceOp};
use std::cell::LazyCell;
use std::sync::Arc;

/// Normalises each group of channels of each sample: `x` is (N, C, spatial...), `weight` and `bias` are (C).
///
/// # Collective
/// All members of the mesh. Communicates three numbers per group and sample if spatial dims are sharded.
///
/// # Errors
/// A number of channels that is not a multiple of the groups; a weight or bias of another shape.
pub fn group_norm(
    exec: &dyn Exec,
    x: &Value,
    groups: usize,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    let fits = x.ndim() >= 2 && groups > 0 && x.shape()[1].is_multiple_of(groups);
    if !fits {
        return Err(OpError::Shape {
            op: "group_norm",
            problem: format!("{groups} groups do not divide the channels"),
            shapes: vec![x.shape().to_vec()],
            fix: "give (N, C, ...) with groups dividing C",
        });
    }
    let cells = Cells::Groups(groups);
    cells.check("group_norm", x, weight, bias)?;
    normalise(exec, x, cells, Statistics::Moments, weight, bias, eps)
}

/// Normalises each channel of each sample: [`group_norm`] with as many groups as channels.
///
/// # Collective
/// As [`group_norm`].
///
/// # Errors
/// As [`group_norm`].
pub fn instance_norm(
    exec: &dyn Exec,
    x: &Value,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    group_norm(
        exec,
        x,
        x.shape().get(1).copied().unwrap_or(0).max(1),
        weight,
        bias,
        eps,
    )
}

/// Normalises over the last `dims` dims: `weight` and `bias` have their shape.
///
/// Where squares of deviations are beyond `f64`, the variance is infinite and what is divided by its root is 0, in all normalisations; in
/// PyTorch some have NaN there.
///
/// # Collective
/// All members of the mesh. Communicates three numbers per row if normalised dims are sharded.
///
/// # Errors
/// No dims, or more than there are; a weight or bias of another shape.
pub fn layer_norm(
    exec: &dyn Exec,
    x: &Value,
    dims: usize,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    if dims == 0 || dims > x.ndim() {
        return Err(OpError::Shape {
            op: "layer_norm",
            problem: format!("cannot normalise over the last {dims} dims"),
            shapes: vec![x.shape().to_vec()],
            fix: "normalise over at least one and at most all dims",
        });
    }
    let cells = Cells::Last(dims);
    cells.check("layer_norm", x, weight, bias)?;
    normalise(exec, x, cells, Statistics::Moments, weight, bias, eps)
}

/// Divides by the root of the mean square over the last `dims` dims, and multiplies by `weight`, which has their shape. `eps` is added to
/// the mean square; without one it is the distance from 1 to the next number of the type that the op
/// computes in, which is `f32` for 16-bit types.
///
/// # Collective
/// As [`layer_norm`].
///
/// # Errors
/// As [`layer_norm`].
pub fn rms_norm(
    exec: &dyn Exec,
    x: &Value,
    dims: usize,
    weight: Option<&Value>,
    eps: Option<f64>,
) -> Result<Value> {
    if dims == 0 || dims > x.ndim() {
        return Err(OpError::Shape {
            op: "rms_norm",
            problem: format!("cannot normalise over the last {dims} dims"),
            shapes: vec![x.shape().to_vec()],
            fix: "normalise over at least one and at most all dims",
        });
    }
    let least = match x.dtype() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let (cells, eps) = (Cells::Last(dims), eps.unwrap_or(least));
    cells.check("rms_norm", x, weight, None)?;
    normalise(exec, x, cells, Statistics::Squares, weight, None, eps)
}

fn normalise(
    exec: &dyn Exec,
    x: &Value,
    cells: Cells,
    by: Statistics,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    let by = (cells, by);
    if cells.lie_whole(x) {
        return normalise_by(exec, x, None, by, [weight, bias], eps);
    }
    let [x] = &sums(exec, [x])?;
    let stats = statistics(exec, x, cells, by.1)?;
    normalise_by(exec, x, Some(&stats), by, [weight, bias], eps)
}

/// The statistics of every cell. The derivative through them is part of the normalisation's vjp.
fn statistics(exec: &dyn Exec, x: &Value, cells: Cells, by: Statistics) -> Result<Value> {
    let squares = by == Statistics::Squares;
    let stats = exec.apply1(Arc::new(MomentsOp { cells, squares }), &[&x.detach()])?;
    Ok(stats.detach())
}

/// Normalises `x` by statistics, or without these by its own.
fn normalise_by(
    exec: &dyn Exec,
    x: &Value,
    stats: Option<&Value>,
    (cells, by): (Cells, Statistics),
    [weight, bias]: [Option<&Value>; 2],
    eps: f64,
) -> Result<Value> {
    let op = Normalise {
        cells,
        by,
        eps: eps.to_bits(),
        finds: stats.is_none(),
        weight: weight.is_some(),
        bias: bias.is_some(),
    };
    let operands: Vec<&Value> = [Some(x), stats, weight, bias]
        .into_iter()
        .flatten()
        .collect();
    let mut outputs = exec.apply(Arc::new(op), &operands)?;
    Ok(outputs.swap_remove(0))
}

/// What cells are normalised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Statistics {
    /// The mean and the variance of the cell.
    Moments,
    /// The mean square of the cell: moments about zero.
    Squares,
    /// Moments that do not depend on the cell.
    Given,
}

/// Which elements are normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Cells {
    /// Groups of channels of one sample.
    Groups(usize),
    /// The last dims of one row.
    Last(usize),
    /// One channel of all samples.
    Channels,
}

/// How an operand's dims relate to those of `x`.
#[derive(Clone, Copy)]
enum Like {
    X,
    /// An entry of this many numbers per cell.
    Stats(usize),
    /// Weight or bias.
    Weight,
    /// This many numbers per element of the weight.
    WeightSums(usize),
}

/// A value of which cells have dims of their own.
struct Apart {
    /// Its shape so.
    shape: Vec<usize>,
    /// The dims of a cell.
    cells: Vec<usize>,
    /// The shape of a weight that is broadcast against it.
    weight: Vec<usize>,
}

impl Apart {
    /// The dims over which what belongs to a weight is summed.
    fn beside_weight(&self) -> Vec<usize> {
        let is_one = |&d: &usize| self.weight[d] == 1 && self.shape[d] != 1;
        (0..self.shape.len()).filter(is_one).collect()
    }
}

impl Cells {
    /// The dims that a cell has all indices of.
    fn dims(self, ndim: usize) -> Vec<usize> {
        match self {
            Self::Groups(_) => (2..ndim).collect(),
            Self::Last(last) => (ndim - last..ndim).collect(),
            Self::Channels => (0..ndim).filter(|&d| d != 1).collect(),
        }
    }

    /// Weight and bias have an element for each element, or channel, of a cell.
    fn check(
        self,
        op: &'static str,
        x: &Value,
        weight: Option<&Value>,
        bias: Option<&Value>,
    ) -> Result<()> {
        let expected = self.of_weight(x.shape());
        let fix = match self {
            Self::Last(_) => {
                "give weight and bias the shape of the last dims, which are normalised; permute channels last to normalise them"
            }
            Self::Groups(_) | Self::Channels => "give weight and bias one element per channel",
        };
        for (what, value) in [("weight", weight), ("bias", bias)] {
            if let Some(value) = value.filter(|value| value.shape() != expected) {
                return Err(OpError::Shape {
                    op,
                    problem: format!(
                        "the {what} has shape {:?}, expected {expected:?}",
                        value.shape()
                    ),
                    shapes: vec![x.shape().to_vec(), value.shape().to_vec()],
                    fix,
                });
            }
        }
        Ok(())
    }

    /// Whether cells lie whole on ranks, the elements of each one after another.
    fn lie_whole(self, x: &Value) -> bool {
        let dims = self.dims(x.ndim());
        let over: usize = dims.iter().map(|&d| x.shape()[d]).product();
        match self {
            Self::Groups(groups) => lie_whole(x, &dims, over * (x.shape()[1] / groups)),
            Self::Last(_) => lie_whole(x, &dims, over),
            Self::Channels => false,
        }
    }

    /// A rule with the factors of `x`, and the accesses and shapes of operands that relate to it in the given ways. Where cells
    /// are `whole`, ranks hold all of each.
    fn rule(
        self,
        op: &'static str,
        inputs: &[Meta],
        whole: bool,
        sides: &[Like],
        outputs: &[(Like, DType)],
    ) -> Result<Rule> {
        let mut rule = Rule::builder(op, inputs).any_order();
        let x = self.accesses(&mut rule, &inputs[0].shape, whole);
        for (operand, &side) in sides.iter().enumerate() {
            let (access, shape) = self.described(side, &x);
            // A dim that ranks have all of is compared with no other operand's.
            if inputs[operand].shape != shape {
                return Err(OpError::Shape {
                    op,
                    problem: format!(
                        "operand {operand} has shape {:?}, expected {:?}",
                        &inputs[operand].shape[..],
                        &shape[..]
                    ),
                    shapes: inputs.iter().map(|meta| meta.shape.to_vec()).collect(),
                    fix: "give weight and bias the shape of what is normalised, or one element per channel",
                });
            }
            rule = rule.input(access);
        }
        for &(like, dtype) in outputs {
            let (access, shape) = self.described(like, &x);
            rule = rule.output(access, shape, dtype);
        }
        match outputs[0].0 {
            Like::Stats(3) => rule.reduction(Reduction::Now(Monoid::Moments)),
            _ => rule.reduction(Reduction::Partial(ReduceOp::Sum)),
        }
        .linearity(Linearity::None)
        .build()
    }

    /// The access and the extent of each dim of `x`.
    fn accesses(self, rule: &mut RuleBuilder, x: &[usize], whole: bool) -> Vec<(Access, usize)> {
        let of_cells = self.dims(x.len());
        let access = |(d, &n): (usize, &usize)| match self {
            _ if whole && of_cells.contains(&d) => Access::WHOLE,
            Self::Groups(groups) if d == 1 => Access::Factor {
                factor: rule.factor(groups),
                block: n / groups,
            },
            _ => Access::factor(rule.factor(n)),
        };
        let accesses: Vec<Access> = x.iter().enumerate().map(access).collect();
        accesses.into_iter().zip(x.iter().copied()).collect()
    }

    /// Accesses and shape of an operand that relates so to `x`.
    fn described(self, like: Like, x: &[(Access, usize)]) -> (Vec<Access>, Dims) {
        let (dims, numbers) = match like {
            Like::X => (x.to_vec(), None),
            Like::Stats(k) => (self.of_cells(x), Some(k)),
            Like::Weight => (self.of_weight(x).to_vec(), None),
            Like::WeightSums(k) => (self.of_weight(x).to_vec(), Some(k)),
        };
        let numbers = numbers.map(|k| (Access::WHOLE, k));
        dims.into_iter().chain(numbers).unzip()
    }

    /// The dims that cells are counted along.
    fn of_cells(self, x: &[(Access, usize)]) -> Vec<(Access, usize)> {
        match self {
            Self::Groups(groups) => {
                let group = x[1].0.factor_index().map_or(Access::WHOLE, Access::factor);
                vec![x[0].clone(), (group, groups)]
            }
            Self::Last(last) => x[..x.len() - last].to_vec(),
            Self::Channels => x[1..2].to_vec(),
        }
    }

    /// The dims of a weight.
    fn of_weight<T>(self, x: &[T]) -> &[T] {
        match self {
            Self::Groups(_) | Self::Channels => &x[1..2],
            Self::Last(last) => &x[x.len() - last..],
        }
    }

    /// How a value of this shape is taken apart so that cells have dims of their own.
    fn apart(self, shape: &[usize]) -> Apart {
        let mut split = shape.to_vec();
        let weighted = match self {
            Self::Groups(groups) => {
                split.splice(1..2, [groups, shape[1] / groups]);
                1..3
            }
            Self::Last(last) => shape.len() - last..shape.len(),
            Self::Channels => 1..2,
        };
        let mut weight = vec![1; split.len()];
        weight[weighted.clone()].copy_from_slice(&split[weighted]);
        Apart {
            // A group has all of its channels, which are a dim of their own now.
            cells: self.dims(split.len()),
            shape: split,
            weight,
        }
    }

    /// Calls `f` for every run of consecutive elements of a contiguous `x` that share a cell, with the run's range,
    /// its cell, the index of the run's first weight, and the weight's step.
    fn for_each_run(
        self,
        shape: &[usize],
        mut f: impl FnMut(std::ops::Range<usize>, usize, usize, usize),
    ) {
        let total: usize = shape.iter().product();
        if total == 0 {
            return;
        }
        match self {
            // The channels of a group share a cell, and the elements of a channel share a weight.
            Self::Groups(local) => {
                let inner: usize = shape[2..].iter().product();
                let per_group = (shape[1] / local).max(1);
                for run in 0..shape[0] * shape[1] {
                    let (n, c) = (run / shape[1], run % shape[1]);
                    f(
                        run * inner..(run + 1) * inner,
                        n * local + c / per_group,
                        c,
                        0,
                    );
                }
            }
            Self::Channels => {
                let inner: usize = shape[2..].iter().product();
                for run in 0..shape[0] * shape[1] {
                    let c = run % shape[1];
                    f(run * inner..(run + 1) * inner, c, c, 0);
                }
            }
            Self::Last(last) => {
                let inner: usize = shape[shape.len() - last..].iter().product();
                for row in 0..total / inner {
                    f(row * inner..(row + 1) * inner, row, 0, 1);
                }
            }
        }
    }

    /// How many elements of a contiguous `x` of this shape belong to a channel one after the other, if those are so few that it is taken
    /// row by row, all channels of a sample at a time: a run costs a call.
    fn short_runs(self, shape: &[usize]) -> Option<usize> {
        const SHORT: usize = 16;
        const WIDEST: usize = 1 << 15;
        let Self::Channels = self else { return None };
        let run: usize = shape[2..].iter().product();
        let has_elements = shape[0] * shape[1] * run > 0;
        (has_elements && run < SHORT && shape[1] * run <= WIDEST).then_some(run)
    }

    /// The cells of a contiguous piece of this shape, for kernels that take them whole.
    fn whole(self, shape: &[usize], by: Statistics, eps: f64) -> kernels::WholeCells {
        let (runs, len, by_element) = match self {
            Self::Last(last) => (1, shape[shape.len() - last..].iter().product(), true),
            Self::Groups(local) => {
                let channels = shape[1].checked_div(local).unwrap_or(0);
                (channels, shape[2..].iter().product(), false)
            }
            Self::Channels => (shape[0], shape[2..].iter().product(), false),
        };
        kernels::WholeCells {
            before: 0,
            runs,
            len,
            by_element,
            about_zero: by == Statistics::Squares,
            eps,
        }
    }

    /// The cells of a rank's piece, with as many groups as it holds whole.
    pub(crate) fn local(self, local: &[usize], global: &[usize]) -> Self {
        match self {
            Self::Groups(groups) if global[1] > 0 => {
                Self::Groups(local[1] / (global[1] / groups).max(1))
            }
            other => other,
        }
    }
}

/// Moments of every cell: (count, mean, M2) in double precision, or (count, 0, sum of squares).
#[derive(Clone, Copy, Debug)]
pub(crate) struct MomentsOp {
    pub(crate) cells: Cells,
    pub(crate) squares: bool,
}

impl Op for MomentsOp {
    fn name(&self) -> &'static str {
        "moments"
    }

    fn key(&self) -> u128 {
        key_of("moments", &(self.cells, self.squares))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        float_types("moments", inputs)?;
        let to = [(Like::Stats(3), DType::F64)];
        self.cells.rule("moments", inputs, false, &[Like::X], &to)
    }

    crate::kernel::gpu_kernel!(halves);

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.inputs[0].dtype(), T => {
            let x = call.input::<T>(0);
            let found = match self.cells.local(x.shape(), &call.cx.inputs[0].global) {
                Cells::Groups(groups) => {
                    let dims: Vec<usize> = (2..x.ndim()).collect();
                    let channels = x.shape()[1];
                    moments(&x, &dims, Some(Groups { dim: 1, start: 0, channels, groups }))
                }
                Cells::Last(last) => moments(&x, &(x.ndim() - last..x.ndim()).collect::<Vec<_>>(), None),
                Cells::Channels => {
                    let dims: Vec<usize> = (0..x.ndim()).filter(|&d| d != 1).collect();
                    moments(&x, &dims, None)
                }
            };
            // Squares are those of the last dims.
            let all = LazyCell::new(|| flat(&x));
            let has_nan = |c: usize| {
                let len = all.len() / found.count.len();
                all[c * len..][..len].iter().any(|x| x.is_nan())
            };
            let mut out = call.output::<f64>(0);
            let cells = found.count.iter().zip(&found.mean).zip(&found.m2);
            let to = out.data_mut().chunks_exact_mut(3);
            for (c, (to, ((&count, &mean), &m2))) in to.zip(cells).enumerate() {
                to.copy_from_slice(&match self.squares {
                    true => [count, 0.0, about_zero([count, mean, m2], || has_nan(c))],
                    false => [count, mean, m2],
                });
            }
        });
    }
}

/// `(x - mean) / sqrt(M2 / count + eps) * weight + bias`, given the moments of `x`, or with them as a second output.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Normalise {
    pub cells: Cells,
    pub by: Statistics,
    pub eps: u64,
    /// Whether moments are found here, as they can be where cells lie whole on ranks. Otherwise they are the second operand.
    pub finds: bool,
    pub weight: bool,
    pub bias: bool,
}

impl Normalise {
    fn sides(&self) -> Vec<Like> {
        let mut sides = vec![Like::X, Like::Stats(3)];
        sides.truncate(self.first_weight());
        sides.extend((0..usize::from(self.weight) + usize::from(self.bias)).map(|_| Like::Weight));
        sides
    }

    /// The number of the operand that is the weight, or the bias if there is none.
    pub(crate) fn first_weight(&self) -> usize {
        2 - usize::from(self.finds)
    }

    /// The number of the operand that is the bias, if there is one.
    fn bias_at(&self) -> usize {
        self.first_weight() + usize::from(self.weight)
    }

    pub(crate) fn eps(&self) -> f64 {
        f64::from_bits(self.eps)
    }
}

/// The mean and 1 / σ of a cell.
fn scale<T: Real>(stats: &[f64], cell: usize, eps: f64) -> Scale<T> {
    Scale::of(
        [stats[3 * cell], stats[3 * cell + 1], stats[3 * cell + 2]],
        eps,
    )
}

/// Channels of which a row has a short run each.
struct Channels<T> {
    scales: Vec<Scale<T>>,
    run: usize,
}

impl<T: Real> Channels<T> {
    fn of(stats: &[f64], channels: usize, run: usize, eps: f64) -> Self {
        let scales = (0..channels).map(|c| scale(stats, c, eps)).collect();
        Self { scales, run }
    }

    /// A number for each element of a row, the same for all of a channel.
    fn each(&self, f: impl Fn(usize, Scale<T>) -> T) -> Vec<T> {
        let all = self.scales.iter().enumerate();
        all.flat_map(|(c, of)| std::iter::repeat_n(f(c, *of), self.run))
            .collect()
    }

    fn means(&self) -> Vec<T> {
        self.each(|_, of| of.mean)
    }
}

/// The weights of a run, from number `w` on and `step` apart; `missing` where there are none.
fn along<T: Real>(weights: Option<&[T]>, missing: f64, w: usize, step: usize) -> Along<'_, T> {
    match weights {
        None => Along::One(T::of(missing)),
        Some(all) if step == 0 => Along::One(all[w]),
        Some(all) => Along::Each(&all[w..]),
    }
}

impl Op for Normalise {
    fn name(&self) -> &'static str {
        "normalise"
    }

    fn precision(&self) -> Precision {
        Precision::First
    }

    fn key(&self) -> u128 {
        let affine = (self.weight, self.bias);
        key_of(
            "normalise",
            &(self.cells, self.by, self.eps, self.finds, affine),
        )
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = float_types("normalise", &inputs[..1])?;
        for (operand, meta) in inputs.iter().enumerate().skip(self.first_weight()) {
            if meta.dtype != x {
                let expected = x.to_string();
                return Err(OpError::dtype("normalise", operand, expected, meta.dtype));
            }
        }
        let outputs = [(Like::X, x), (Like::Stats(3), DType::F64)];
        let outputs = &outputs[..1 + usize::from(self.finds)];
        self.cells
            .rule("normalise", inputs, self.finds, &self.sides(), outputs)
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, _: DType, _: &[Meta], on: DeviceKind) -> Halves {
        match on.is_cuda() {
            true => Halves::ALL,
            // Weights are few.
            false if self.finds => Halves {
                reads: &[0],
                writes: true,
            },
            false => Halves::NONE,
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_half!(call, T, U => return self.in_halves::<T, U>(call));
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let shape = x.shape().to_vec();
            let cells = self.cells.local(&shape, &call.cx.inputs[0].global);
            let weight_at = self.first_weight();
            let weight = self.weight.then(|| call.input::<T>(weight_at).to_vec());
            let bias_at = weight_at + usize::from(self.weight);
            let bias = self.bias.then(|| call.input::<T>(bias_at).to_vec());
            let data = flat(&x);
            if self.finds {
                let whole = cells.whole(&shape, self.by, self.eps());
                let (mut out, mut stats) = call.output_pair::<T, f64>();
                let affine = [weight.as_deref(), bias.as_deref()];
                kernels::normalise_cells(whole, &data, affine, out.data_mut(), stats.data_mut());
                return;
            }
            let stats = call.input::<f64>(1);
            let stats = flat(&stats);
            let mut out = call.output::<T>(0);
            let out = out.data_mut();
            if let Some(run) = cells.short_runs(&shape) {
                let channels = Channels::of(&stats, shape[1], run, self.eps());
                let gain = channels.each(|c, of| weight.as_ref().map_or(of.rstd, |w| of.rstd * w[c]));
                let shift = channels.each(|c, _| bias.as_ref().map_or(T::of(0.0), |b| b[c]));
                kernels::normalise_rows(&data, out, [&channels.means(), &gain, &shift]);
                return;
            }
            cells.for_each_run(&shape, |run, cell, w, step| {
                let scale = scale(&stats, cell, self.eps());
                let gain = along(weight.as_deref(), 1.0, w, step);
                let shift = along(bias.as_deref(), 0.0, w, step);
                kernels::normalise(&data[run.clone()], &mut out[run], scale, gain, shift);
            });
        });
    }

    fn keeps(&self) -> Keeps {
        match (self.finds, self.weight) {
            (true, false) => Keeps::inputs(&[0]).and_outputs(&[1]),
            (true, true) => Keeps::inputs(&[0, 1]).and_outputs(&[1]),
            (false, false) => Keeps::inputs(&[0, 1]),
            (false, true) => Keeps::inputs(&[0, 1, 2]),
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None; saved.inputs.len()]);
        };
        let x = &saved.inputs[0];
        let stats = match self.finds {
            true => &saved.outputs[1],
            false => &saved.inputs[1],
        };
        let weight = self.weight.then(|| &saved.inputs[self.first_weight()]);
        if exec.records() {
            return self.vjp_of_parts(exec, saved, dy);
        }
        let operands: Vec<&Value> = [Some(x), Some(stats), Some(dy), weight]
            .into_iter()
            .flatten()
            .collect();
        let mut back = vec![None; saved.inputs.len()];
        match saved.needs[0] && self.finds {
            true => self.vjp_at_once(exec, saved, &operands, &mut back)?,
            false => self.vjp_by_part(exec, saved, &operands, &mut back)?,
        }
        Ok(back)
    }
}

impl Normalise {
    /// The op that finds a part of the derivative.
    fn grad(&self, part: Part) -> Arc<GradOp> {
        Arc::new(GradOp {
            cells: self.cells,
            by: self.by,
            eps: self.eps,
            weight: self.weight,
            part,
        })
    }

    /// Puts the cotangents of weight and bias, where there are any and they are wanted: `found` has them, by whether it is the weight's,
    /// and the operand's number.
    fn set_weights(
        &self,
        saved: &Saved<'_>,
        back: &mut Grads,
        mut found: impl FnMut(bool, usize) -> Result<Option<Value>>,
    ) -> Result<()> {
        let weight = self.weight.then(|| (true, self.first_weight()));
        let bias = self.bias.then(|| (false, self.bias_at()));
        for (is_weight, i) in [weight, bias].into_iter().flatten() {
            if saved.needs[i] {
                back[i] = found(is_weight, i)?;
            }
        }
        Ok(())
    }

    /// All that is wanted by one op, where cells lie whole on ranks.
    fn vjp_at_once(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        operands: &[&Value],
        back: &mut Grads,
    ) -> Result<()> {
        let weights = saved.needs[self.first_weight()..].contains(&true);
        let mut found = (exec.apply(self.grad(Part::Whole { weights }), operands)?).into_iter();
        back[0] = found.next();
        let (mut units, mut sums) = (found.next(), found.next());
        self.set_weights(saved, back, |is_weight, _| match is_weight {
            true => Ok(units.take()),
            false => Ok(sums.take()),
        })
    }

    /// An op for what cells sum to, one for the input's cotangent and one for those of weight and bias.
    fn vjp_by_part(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        operands: &[&Value],
        back: &mut Grads,
    ) -> Result<()> {
        if saved.needs[0] {
            let sums = match self.by {
                Statistics::Given => None,
                _ => Some(exec.apply1(self.grad(Part::CellSums), operands)?),
            };
            let mut operands = operands.to_vec();
            operands.splice(3..3, sums.as_ref());
            back[0] = Some(exec.apply1(self.grad(Part::Input), &operands)?);
        }
        if !saved.needs[self.first_weight()..].contains(&true) {
            return Ok(());
        }
        let sums = exec.apply1(self.grad(Part::WeightSums), &operands[..3])?;
        let last = sums.ndim() - 1;
        self.set_weights(saved, back, |is_weight, i| {
            let column = usize::from(is_weight);
            let sums = crate::families::index::slice(exec, &sums, last, column, 1, 1)?;
            reshape(exec, &sums, saved.inputs[i].shape()).map(Some)
        })
    }

    /// The same derivative, made of ops that have derivatives themselves: for second order.
    fn vjp_of_parts(&self, exec: &dyn Exec, saved: &Saved<'_>, dy: &Value) -> Result<Grads> {
        let x = &saved.inputs[0];
        let apart = self.cells.apart(x.shape());
        let over = |v: &Value| mean(exec, v, &apart.cells, true);
        let dys = reshape(exec, dy, &apart.shape)?;
        let [centred, variance] = self.centred(exec, saved, &apart)?;
        let shifted = add_scalar(exec, &variance, self.eps())?;
        let rstd = unary(exec, &shifted, Unary::Rsqrt)?;
        let unit = mul(exec, &centred, &rstd)?;
        let scaled = match self.weight {
            true => mul(
                exec,
                &dys,
                &reshape(exec, &saved.inputs[self.first_weight()], &apart.weight)?,
            )?,
            false => dys.clone(),
        };
        let mut back = vec![None; saved.inputs.len()];
        if saved.needs[0] {
            let along = || mul(exec, &unit, &over(&mul(exec, &scaled, &unit)?)?);
            let rest = match self.by {
                Statistics::Moments => sub(exec, &sub(exec, &scaled, &over(&scaled)?)?, &along()?)?,
                Statistics::Squares => sub(exec, &scaled, &along()?)?,
                Statistics::Given => scaled.clone(),
            };
            back[0] = Some(reshape(exec, &mul(exec, &rest, &rstd)?, x.shape())?);
        }
        self.set_weights(saved, &mut back, |is_weight, i| {
            let terms = match is_weight {
                true => mul(exec, &dys, &unit)?,
                false => dys.clone(),
            };
            let summed = sum(exec, &terms, &apart.beside_weight(), true)?;
            reshape(exec, &summed, saved.inputs[i].shape()).map(Some)
        })?;
        Ok(back)
    }

    /// What is normalised, taken apart, less the mean that is taken from it; and the variance of cells.
    fn centred(&self, exec: &dyn Exec, saved: &Saved<'_>, apart: &Apart) -> Result<[Value; 2]> {
        let x = &saved.inputs[0];
        let xs = reshape(exec, x, &apart.shape)?;
        let over = |v: &Value| mean(exec, v, &apart.cells, true);
        Ok(match self.by {
            Statistics::Moments => {
                let centred = sub(exec, &xs, &over(&xs)?)?;
                let variance = over(&unary(exec, &centred, Unary::Square)?)?;
                [centred, variance]
            }
            Statistics::Squares => {
                let variance = over(&unary(exec, &xs, Unary::Square)?)?;
                [xs, variance]
            }
            Statistics::Given => {
                let [mean, variance] = batch::mean_and_variance(exec, &saved.inputs[1])?;
                let broad = |v: &Value| reshape(exec, &cast(exec, v, x.dtype())?, &apart.weight);
                [sub(exec, &xs, &broad(&mean)?)?, broad(&variance)?]
            }
        })
    }
}
