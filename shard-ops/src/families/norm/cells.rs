//! Which elements are normalised together, and how operands relate to them.

use super::Statistics;
use crate::families::statistics::lie_whole;
use crate::{Access, Linearity, Meta, OpError, Reduction, Result, Rule, RuleBuilder, Value};
use shard_comm::{DType, Monoid};
use shard_kernels::Real;
use shard_kernels::normalise::{self as kernels, Along, Scale};
use shard_spec::{Dims, ReduceOp};

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
pub(super) enum Like {
    X,
    /// An entry of this many numbers per cell.
    Stats(usize),
    /// Weight or bias.
    Weight,
    /// This many numbers per element of the weight.
    WeightSums(usize),
}

/// A value of which cells have dims of their own.
pub(super) struct Apart {
    /// Its shape so.
    pub(super) shape: Vec<usize>,
    /// The dims of a cell.
    pub(super) cells: Vec<usize>,
    /// The shape of a weight that is broadcast against it.
    pub(super) weight: Vec<usize>,
}

impl Apart {
    /// The dims over which what belongs to a weight is summed.
    pub(super) fn beside_weight(&self) -> Vec<usize> {
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
    pub(super) fn check(
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
    pub(super) fn lie_whole(self, x: &Value) -> bool {
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
    pub(super) fn rule(
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
    pub(super) fn apart(self, shape: &[usize]) -> Apart {
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
    pub(super) fn for_each_run(
        self,
        shape: &[usize],
        mut f: impl FnMut(std::ops::Range<usize>, usize, usize, usize),
    ) {
        let total: usize = shape.iter().product();
        if total == 0 {
            return;
        }
        let len = self.run_len(shape);
        for number in 0..total / len {
            let (cell, weight, step) = self.run(shape, number);
            f(number * len..(number + 1) * len, cell, weight, step);
        }
    }

    /// How many elements a run has.
    pub(super) fn run_len(self, shape: &[usize]) -> usize {
        match self {
            Self::Groups(_) | Self::Channels => shape[2..].iter().product(),
            Self::Last(last) => shape[shape.len() - last..].iter().product(),
        }
    }

    /// The cell of a run, the index of its first weight, and the weight's step.
    pub(super) fn run(self, shape: &[usize], number: usize) -> (usize, usize, usize) {
        match self {
            // The channels of a group share a cell, and the elements of a channel share a weight.
            Self::Groups(local) => {
                let per_group = (shape[1] / local).max(1);
                let (n, c) = (number / shape[1], number % shape[1]);
                (n * local + c / per_group, c, 0)
            }
            Self::Channels => (number % shape[1], number % shape[1], 0),
            Self::Last(_) => (number, 0, 1),
        }
    }

    /// How many elements of a contiguous `x` of this shape belong to a channel one after the other, if those are so few that it is taken
    /// row by row, all channels of a sample at a time: a run costs a call.
    pub(super) fn short_runs(self, shape: &[usize]) -> Option<usize> {
        const SHORT: usize = 16;
        const WIDEST: usize = 1 << 15;
        let Self::Channels = self else { return None };
        let run: usize = shape[2..].iter().product();
        let has_elements = shape[0] * shape[1] * run > 0;
        (has_elements && run < SHORT && shape[1] * run <= WIDEST).then_some(run)
    }

    /// The cells of a contiguous piece of this shape, for kernels that take them whole.
    pub(super) fn whole(self, shape: &[usize], by: Statistics, eps: f64) -> kernels::WholeCells {
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

impl Cells {
    /// The channels of a contiguous `x` of this shape, if they are cells, each with these statistics.
    pub(super) fn channels<T: Real>(
        self,
        shape: &[usize],
        stats: &[f64],
        eps: f64,
    ) -> Option<Channels<T>> {
        let of_channels = self == Self::Channels;
        of_channels.then(|| Channels::of(stats, shape[1], self.run_len(shape), eps))
    }
}

/// The mean and 1 / σ of a cell.
pub(super) fn scale<T: Real>(stats: &[f64], cell: usize, eps: f64) -> Scale<T> {
    Scale::of(
        [stats[3 * cell], stats[3 * cell + 1], stats[3 * cell + 2]],
        eps,
    )
}

/// Channels of which a row has a run each.
pub(super) struct Channels<T> {
    pub(super) scales: Vec<Scale<T>>,
    pub(super) run: usize,
}

impl<T: Real> Channels<T> {
    pub(super) fn of(stats: &[f64], channels: usize, run: usize, eps: f64) -> Self {
        let scales = (0..channels).map(|c| scale(stats, c, eps)).collect();
        Self { scales, run }
    }

    /// Their runs, behind so many others.
    pub(super) fn runs<'a>(&'a self, before: usize, gain: Option<&'a [T]>) -> kernels::Runs<'a, T> {
        kernels::Runs {
            len: self.run,
            before,
            scales: &self.scales,
            gain,
        }
    }

    /// A number for each element of a row, the same for all of a channel.
    pub(super) fn each(&self, f: impl Fn(usize, Scale<T>) -> T) -> Vec<T> {
        let all = self.scales.iter().enumerate();
        all.flat_map(|(c, of)| std::iter::repeat_n(f(c, *of), self.run))
            .collect()
    }

    /// Two numbers of each channel.
    pub(super) fn pairs(&self, of: impl Fn(usize, usize) -> T) -> Vec<[T; 2]> {
        let all = 0..self.scales.len();
        all.map(|c| [of(c, 0), of(c, 1)]).collect()
    }

    /// Of each channel Σ dy and Σ dy·x̂, where rows came to Σ dy and Σ dy·(x - mean) for each of their elements.
    pub(super) fn sums(&self, of_elements: [&[f64]; 2]) -> Vec<[f64; 2]> {
        let of = |c: usize, k: usize| -> f64 {
            let run = &of_elements[k][c * self.run..][..self.run];
            run.iter().sum()
        };
        let all = self.scales.iter().enumerate();
        all.map(|(c, scale)| [of(c, 0), of(c, 1) * scale.rstd.wide()])
            .collect()
    }

    pub(super) fn means(&self) -> Vec<T> {
        self.each(|_, of| of.mean)
    }

    /// What [`kernels::normalise_rows`] takes, with these weights and summands of channels.
    pub(super) fn scaling(&self, weight: Option<&[T]>, bias: Option<&[T]>) -> [Vec<T>; 3] {
        [
            self.means(),
            self.each(|c, of| weight.map_or(of.rstd, |w| of.rstd * w[c])),
            self.each(|c, _| bias.map_or(T::zero(), |b| b[c])),
        ]
    }

    /// What [`kernels::input_grad_rows`] takes, with these weights of channels, and means of the cell sums.
    pub(super) fn slopes(
        &self,
        weight: Option<&[T]>,
        mean: impl Fn(usize, usize) -> T,
    ) -> [Vec<T>; 4] {
        let gain = |c: usize| weight.map_or(T::one(), |w| w[c]);
        [
            self.means(),
            self.each(|c, of| of.rstd * gain(c)),
            self.each(|c, of| of.rstd * mean(c, 0)),
            self.each(|c, of| of.rstd * of.rstd * mean(c, 1)),
        ]
    }
}

/// The weights of a run, from number `w` on and `step` apart; `missing` where there are none.
pub(super) fn along<T: Real>(
    weights: Option<&[T]>,
    missing: f64,
    w: usize,
    step: usize,
) -> Along<'_, T> {
    match weights {
        None => Along::One(T::of(missing)),
        Some(all) if step == 0 => Along::One(all[w]),
        Some(all) => Along::Each(&all[w..]),
    }
}
