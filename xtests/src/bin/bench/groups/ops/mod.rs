//! A survey of ops, of each alone, at shapes that models have: forward and with gradients, in `f32` and `bf16`.
//!
//! A case's name says what it is of, as `ops/linear: 4096x1024, 1024x1024, 1024/fwd+bwd/bf16`: from it `torch_ops.py` makes the same operands,
//! of the same numbers, so both sides have the same shapes, and results are compared. What it has to know besides is a function by
//! the op's name.

#[cfg(feature = "linalg")]
mod factors;
mod fields;
mod maps;
mod moves;
mod operand;
mod products;
mod reductions;
mod rows;
mod signals;

use crate::case::{Bench, Limit, Work};
use crate::numbers::{fill, number};
use crate::suite::{Split, Suite};
use crate::tensors::{self, Share, bench, gradients_by, numbers};
use operand::{Operand, parse};
use shard_tensor::{Context, DType, Result, ShardTensor, replicate, shard};
use std::collections::BTreeSet;

type Function = fn(&[ShardTensor]) -> Result<ShardTensor>;

/// An op: its name, lists of operands that it is asked with, and what it is.
#[derive(Clone, Copy)]
struct Line {
    name: &'static str,
    operands: &'static [&'static str],
    f: Function,
    /// Whether it has a gradient that is worth asking for.
    backward: bool,
    /// Whether it takes `bf16`, here and in PyTorch.
    halves: bool,
    /// Whether it gives the same for the same operands. Random numbers do not, and of some factors of matrices there are several.
    fixed: bool,
}

const fn op(name: &'static str, operands: &'static [&'static str], f: Function) -> Line {
    Line {
        name,
        operands,
        f,
        backward: true,
        halves: true,
        fixed: true,
    }
}

impl Line {
    /// Without gradients.
    const fn forward(self) -> Self {
        Self {
            backward: false,
            ..self
        }
    }

    /// In `f32` alone.
    const fn full(self) -> Self {
        Self {
            halves: false,
            ..self
        }
    }

    /// On one rank alone, and not compared.
    const fn free(self) -> Self {
        Self {
            fixed: false,
            ..self
        }
    }
}

/// A line with one of its lists of operands, one way.
#[derive(Clone)]
struct Case {
    line: Line,
    operands: Vec<Operand>,
    backward: bool,
    dtype: DType,
}

pub(super) fn add(suite: &mut Suite<'_>) {
    let (split, beside) = (suite.options.split, suite.options.beside);
    let quick = suite.options.quick;
    for (name, case) in cases(quick) {
        for &ranks in &suite.options.ranks {
            let left_out = !case.line.fixed || (quick && !case.is_whole());
            if ranks > 1 && left_out {
                continue;
            }
            let case = case.clone();
            suite.add(&*name, ranks, move |ctx| case.build(ctx, split, beside));
        }
    }
}

/// All cases with their names. In a quick run lists of as many operands and dims are asked for once.
fn cases(quick: bool) -> Vec<(String, Case)> {
    let lines: &[&[Line]] = &[
        maps::LINES,
        reductions::LINES,
        products::LINES,
        fields::LINES,
        rows::LINES,
        moves::LINES,
        signals::LINES,
        #[cfg(feature = "linalg")]
        factors::LINES,
    ];
    let mut cases: Vec<(String, Case)> = Vec::new();
    for line in lines.iter().copied().flatten() {
        let mut forms = BTreeSet::new();
        for list in line.operands {
            if quick && !forms.insert(list.replace(char::is_numeric, "")) {
                continue;
            }
            let (list, operands) = parse(list, quick);
            let name = format!("ops/{}: {list}", line.name);
            for (way, backward) in [("fwd", false), ("fwd+bwd", true)] {
                for (suffix, dtype) in [("", DType::F32), ("/bf16", DType::BF16)] {
                    if (backward && !line.backward) || (dtype == DType::BF16 && !line.halves) {
                        continue;
                    }
                    let case = Case {
                        line: *line,
                        operands: operands.clone(),
                        backward,
                        dtype,
                    };
                    cases.push((format!("{name}/{way}{suffix}"), case));
                }
            }
        }
    }
    cases
}

impl Case {
    /// Whether it goes all the way, in full precision.
    fn is_whole(&self) -> bool {
        self.backward == self.line.backward && self.dtype == DType::F32
    }

    fn build(&self, ctx: &Context, split: Split, beside: bool) -> Result<Bench> {
        let (ranks, f) = (ctx.world_size(), self.line.f);
        let mesh = ctx.mesh_of(ranks)?.with_dtype(self.dtype);
        let rows = self.operands[0].shape[0];
        let mut inputs = Vec::new();
        for (operand, seed) in self.operands.iter().zip(1..) {
            // What has a row for each of the first operand's lies as that does.
            let at = match operand.shape[0] == rows {
                true => split.shard(0, rows, ranks),
                false => replicate(),
            };
            inputs.push((operand.fill(&mesh, at, seed)?, Share::Piece));
        }
        let function = move |x: &[ShardTensor]| Ok(vec![f(x)?]);
        let y = f(&inputs.iter().map(|(x, _)| x.clone()).collect::<Vec<_>>())?;
        let once: usize = inputs.iter().map(|(x, _)| bytes(x)).sum::<usize>() + bytes(&y);
        // A copy reads and writes; with gradients there is one of each operand, and one that comes in.
        let copied = if self.backward { once } else { once / 2 };
        if self.backward {
            let cotangent = fill(
                &mesh.with_dtype(y.dtype()),
                y.shape(),
                y.layout(),
                COTANGENT,
            )?;
            inputs.push((cotangent, Share::Piece));
            let varied: Vec<bool> = self.operands.iter().map(Operand::is_varied).collect();
            let gradients = gradients_by(move |i| varied[i], function);
            self.bench(&inputs, gradients, copied, beside)
        } else {
            self.bench(&inputs, function, copied, beside)
        }
    }

    /// Times a function of the inputs, and says what is to be found where a peer says it too.
    fn bench(
        &self,
        inputs: &[tensors::Operand],
        f: impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + Clone + 'static,
        copied: usize,
        beside: bool,
    ) -> Result<Bench> {
        let machine = |ctx: &Context| Limit::memcpy(ctx, copied);
        let work = Some(Work::Bytes(2.0 * copied as f64));
        let whole: Vec<ShardTensor> = inputs.iter().map(|(x, _)| x.clone()).collect();
        let mut bench = bench(inputs, f.clone(), machine, work)?;
        if !are_operands(&whole, &f)? {
            bench.limit = None;
        }
        if beside && whole[0].context().world_size() == 1 && self.line.fixed {
            bench.found = vec![digest(&f(&whole)?)?];
        }
        if self.dtype == DType::BF16 {
            bench.tolerance = HALVES;
        }
        Ok(bench)
    }
}

/// Whether the pieces of every rank are operands by themselves, as those of a table and an index of all its rows are not.
fn are_operands(
    inputs: &[ShardTensor],
    f: &dyn Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>,
) -> Result<bool> {
    let ctx = inputs[0].context();
    let ranks = ctx.world_size();
    let pieces = (inputs.iter())
        .map(ShardTensor::to_local)
        .collect::<Result<Vec<_>>>()?;
    let own = f64::from(ranks == 1 || f(&pieces).is_ok());
    let all = ctx.mesh_of(ranks)?.from_fn([ranks], [shard(0)], |_| own)?;
    Ok(all.sum_all()?.item()? == ranks as f64)
}

/// The sequence that the cotangent is of.
const COTANGENT: u64 = 99;

/// The sequence of weights in digests.
const WEIGHTS: u64 = 100;

/// How far results in `bf16` may be from others, as a share: a few times of what its rounding changes.
const HALVES: f64 = 0.01;

fn bytes(x: &ShardTensor) -> usize {
    x.numel() * x.dtype().size()
}

/// One number that tells results apart, and to which nothing cancels: the sum of magnitudes, those of numbers above 0 twice, each with a
/// weight of its place.
fn digest(results: &[ShardTensor]) -> Result<f64> {
    let mut sum = 0.0;
    for x in results {
        for (v, at) in numbers(x)?.into_iter().zip(0..) {
            let side = if v > 0.0 { 2.0 } else { 1.0 };
            sum += side * v.abs() * (number(WEIGHTS, at) + 1.0);
        }
    }
    Ok(sum)
}
