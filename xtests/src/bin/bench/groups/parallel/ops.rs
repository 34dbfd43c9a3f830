//! Ops on operands that are divided, often over the dim that the op goes along.

use crate::case::Bench;
use crate::numbers::{below, fill};
use crate::suite::Suite;
use crate::tensors::{Share, bench, gradients};
use shard_tensor::{
    AxisPlacement, ClassLoss, Context, ConvOptions, Error, Result, ShardTensor, replicate, shard,
};

type Function = fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>;

/// A tensor of numbers, or of integers below an end.
#[derive(Clone)]
struct Operand {
    shape: Vec<usize>,
    at: AxisPlacement,
    end: Option<usize>,
}

fn numbers(shape: &[usize], at: AxisPlacement) -> Operand {
    let (shape, end) = (shape.to_vec(), None);
    Operand { shape, at, end }
}

/// On every rank.
fn indices(count: usize, end: usize) -> Operand {
    Operand {
        shape: vec![count],
        at: replicate(),
        end: Some(end),
    }
}

#[derive(Clone)]
struct Case {
    name: String,
    operands: Vec<Operand>,
    f: Function,
    /// Whether gradients are computed, from a cotangent that is the last operand.
    backward: bool,
    /// Whether the function of a rank's pieces alone is what the work of all is bounded by.
    bounded: bool,
}

fn case(name: impl Into<String>, operands: &[Operand], f: Function) -> Case {
    Case {
        name: name.into(),
        operands: operands.to_vec(),
        f,
        backward: false,
        bounded: true,
    }
}

impl Case {
    /// With gradients, from a cotangent that lies as this operand.
    fn backward(self, cotangent: &Operand) -> Self {
        let mut operands = self.operands;
        operands.push(cotangent.clone());
        Self {
            name: format!("{}, fwd+bwd", self.name),
            operands,
            backward: true,
            ..self
        }
    }

    /// Of which pieces are no operands by themselves, as an index of all rows is not.
    fn unbounded(self) -> Self {
        Self {
            bounded: false,
            ..self
        }
    }

    fn build(&self, ctx: &Context) -> Result<Bench> {
        let mesh = ctx.mesh_of(ctx.world_size())?;
        let mut operands = Vec::new();
        for (operand, seed) in self.operands.iter().zip(1..) {
            let (shape, at) = (&operand.shape, [operand.at.clone()]);
            let x = match operand.end {
                Some(end) => below(&mesh, end, shape, at, seed)?,
                None => fill(&mesh, shape, at, seed)?,
            };
            operands.push((x, Share::Piece));
        }
        let machine = |_: &Context| Err(Error::custom("one rank has nobody to divide work with"));
        let bench = match self.backward {
            true => bench(&operands, gradients(self.f), machine, None),
            false => bench(&operands, self.f, machine, None),
        }?;
        let limit = bench.limit.filter(|_| self.bounded);
        Ok(Bench { limit, ..bench })
    }
}

pub(super) fn add(suite: &mut Suite<'_>, ranks: usize) {
    let mut cases = maps(suite);
    cases.extend(products(suite));
    cases.extend(means(suite));
    cases.extend(norms(suite));
    cases.extend(windows(suite));
    cases.extend(picked(suite));
    cases.extend(sorted(suite));
    for case in cases {
        let name = format!("parallel/{}", case.name);
        suite.add(name, ranks, move |ctx| case.build(ctx));
    }
}

fn maps(suite: &Suite<'_>) -> Vec<Case> {
    let ten: Function = |x| {
        let mut y = x[0].clone();
        for _ in 0..5 {
            y = y.mul_scalar(0.75)?.add(&x[0])?;
        }
        Ok(vec![y])
    };
    let many = suite.size(4_000_000, 40_000);
    let line = |n: usize| numbers(&[n], shard(0));
    vec![
        case("add of 16, S(0)", &[line(16), line(16)], |x| {
            Ok(vec![x[0].add(&x[1])?])
        }),
        case("ten maps of 16, S(0)", &[line(16)], ten),
        case(format!("ten maps of {many}, S(0)"), &[line(many)], ten),
    ]
}

fn products(suite: &Suite<'_>) -> Vec<Case> {
    let n = suite.size(2048, 64);
    let square = |at| numbers(&[n, n], at);
    let rows = case(
        format!("product {n}, S(0) x R"),
        &[square(shard(0)), square(replicate())],
        |x| Ok(vec![x[0].matmul(&x[1])?]),
    );
    vec![
        rows.clone(),
        rows.backward(&square(shard(0))),
        case(
            format!("product {n}, S(1) x S(0) -> R"),
            &[square(shard(1)), square(shard(0))],
            |x| Ok(vec![x[0].matmul(&x[1])?.redistribute(replicate())?]),
        ),
    ]
}

fn means(suite: &Suite<'_>) -> Vec<Case> {
    let (rows, width) = (suite.size(4097, 65), suite.size(1024, 32));
    let table = numbers(&[rows, width], shard(0));
    let name = |what: &str| format!("{what} {rows}x{width}, S(0)");
    vec![
        case(
            format!("{} -> R", name("sum")),
            std::slice::from_ref(&table),
            |x| Ok(vec![x[0].sum_all()?.redistribute(replicate())?]),
        ),
        case(
            format!("{} -> R", name("mean of rows")),
            std::slice::from_ref(&table),
            |x| Ok(vec![x[0].mean([0], false)?.redistribute(replicate())?]),
        ),
        case(
            format!("{}, fwd+bwd", name("mse loss")),
            &[table.clone(), table],
            |x| {
                let leaf = x[0].requires_grad()?;
                loss_and_gradient(&leaf, &leaf.mse_loss(&x[1])?)
            },
        ),
    ]
}

/// A loss, and its gradient by what it was computed from.
fn loss_and_gradient(leaf: &ShardTensor, loss: &ShardTensor) -> Result<Vec<ShardTensor>> {
    let gradient = loss.backward()?.get(leaf)?;
    let gradient = gradient.ok_or_else(|| Error::custom("a loss of something else"))?;
    Ok(vec![loss.reduced()?, gradient])
}

fn norms(suite: &Suite<'_>) -> Vec<Case> {
    let width = suite.size(1024, 32);
    let (rows, columns) = (suite.size(16384, 256), 256);
    let side = suite.size(512, 32);
    let table = numbers(&[4 * width, width], shard(1));
    let of = |n: usize| numbers(&[n], replicate());
    let layer = case(
        format!("layer norm {}x{width}, S(1)", 4 * width),
        &[table.clone(), of(width), of(width)],
        |x| Ok(vec![x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5)?]),
    );
    let scores = numbers(&[rows, columns], shard(0));
    let softmax = case(
        format!("softmax of columns {rows}x{columns}, S(0)"),
        std::slice::from_ref(&scores),
        |x| Ok(vec![x[0].softmax([0])?]),
    );
    let image = numbers(&[1, 32, side, side], shard(2));
    let group = case(
        format!("group norm 1x32x{side}x{side}, S(2)"),
        &[image.clone(), of(32), of(32)],
        |x| Ok(vec![x[0].group_norm(8, Some(&x[1]), Some(&x[2]), 1e-5)?]),
    );
    vec![
        layer.clone(),
        layer.backward(&table),
        softmax.clone(),
        softmax.backward(&scores),
        group.clone(),
        group.backward(&image),
    ]
}

fn windows(suite: &Suite<'_>) -> Vec<Case> {
    let side = suite.size(512, 32);
    let image = numbers(&[1, 32, side, side], shard(2));
    let filters = numbers(&[32, 32, 3, 3], replicate());
    let near = case(
        format!("convolution 1x32x{side}x{side}, k3, S(2)"),
        &[image.clone(), filters],
        |x| {
            Ok(vec![x[0].conv(
                &x[1],
                None,
                ConvOptions::new().padding(1),
            )?])
        },
    );
    vec![near.clone(), near.backward(&image)]
}

fn picked(suite: &Suite<'_>) -> Vec<Case> {
    let (rows, count) = (suite.size(32768, 512), suite.size(4096, 64));
    let classes = suite.size(8192, 64);
    let table = [numbers(&[rows, 256], shard(0)), indices(count, rows)];
    let logits = [
        numbers(&[count / 2, classes], shard(1)),
        indices(count / 2, classes),
    ];
    let cases = [
        case(
            format!("embedding of {count}, {rows}x256, S(0) -> R"),
            &table,
            |x| {
                let found = x[0].embedding(&x[1], None)?;
                Ok(vec![found.redistribute(replicate())?])
            },
        ),
        case(
            format!("rows {count} of {rows}x256 by index, S(0)"),
            &table,
            |x| Ok(vec![x[0].index_select(0, &x[1])?]),
        ),
        case(
            format!("cross entropy {}x{classes}, S(1), fwd+bwd", count / 2),
            &logits,
            |x| {
                let leaf = x[0].requires_grad()?;
                let loss = leaf.cross_entropy(&x[1], &ClassLoss::new())?;
                loss_and_gradient(&leaf, &loss)
            },
        ),
    ];
    cases.map(Case::unbounded).into()
}

fn sorted(suite: &Suite<'_>) -> Vec<Case> {
    let many = suite.size(1_000_000, 10_000);
    let line = numbers(&[many], shard(0));
    vec![
        case(
            format!("sort of {many}, S(0)"),
            std::slice::from_ref(&line),
            |x| Ok(vec![x[0].sort(0, false)?.0]),
        ),
        case(format!("largest 64 of {many}, S(0)"), &[line], |x| {
            Ok(vec![x[0].topk(64, 0, true)?.0])
        }),
    ]
}
