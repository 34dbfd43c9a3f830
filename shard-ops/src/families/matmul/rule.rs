//! How the operands of a product are indexed: at once, or with a side that is dealt with block by block.

use super::MatMul;
use crate::families::types::product_types;
use crate::rule::broadcast;
use crate::{Access, FoldBy, Linearity, Meta, OpError, Reduction, Result, Rule};
use shard_comm::DType;
use shard_spec::{DimSharding, Dims, Layout, ReduceOp};
use smallvec::smallvec;

/// A side of a product that is dealt with block by block. Without a sharding, the operand that has the side goes round among ranks that
/// divide the other side; with one, ranks that divide the contraction make terms of the result for each other, which lies so.
#[derive(Clone, Debug)]
pub(super) enum Blocks {
    Rows(Option<DimSharding>),
    Columns(Option<DimSharding>),
}

impl Blocks {
    /// What may be tried for a result that is to lie so.
    pub(super) fn of(result: &Layout) -> Vec<Self> {
        let sharding = |back: usize| result.sharding(result.ndim().checked_sub(back)?).cloned();
        let mut all = vec![Self::Rows(None), Self::Columns(None)];
        all.extend(sharding(2).map(|s| Self::Rows(Some(s))));
        all.extend(sharding(1).map(|s| Self::Columns(Some(s))));
        all
    }
}

/// The rule of a product, or one that deals with a side block by block.
pub(super) fn rule(op: &MatMul, inputs: &[Meta], blocks: Option<Blocks>) -> Result<Rule> {
    let at = Extents::new(op, inputs)?;
    let (a, b) = (&inputs[0].shape, &inputs[1].shape);
    let mut rule = Rule::builder(MatMul::name(), inputs)
        .any_order()
        .fold_by(FoldBy::Ring);
    let factors: Vec<usize> = at.batch.iter().map(|&n| rule.factor(n)).collect();
    let sides = [at.rows, at.columns, at.inner].map(|n| rule.factor(n));
    let [_, _, inner] = sides.map(Access::factor);
    let (rows, columns, home) = accesses(sides, blocks);
    if let Some(home) = home {
        rule = rule.blocks(home);
    }
    let batch = |shape: &Dims| -> Vec<Access> {
        let own = &shape[..shape.len() - 2];
        let lead = at.batch.len() - own.len();
        let access = |(d, &n): (usize, &usize)| match n == at.batch[lead + d] {
            true => Access::factor(factors[lead + d]),
            false => Access::WHOLE,
        };
        own.iter().enumerate().map(access).collect()
    };
    let operand = |shape: &Dims, mut sides: [Access; 2], swap: bool| -> Vec<Access> {
        if swap {
            sides.reverse();
        }
        batch(shape).into_iter().chain(sides).collect()
    };
    let mut shape: Dims = at.batch[op.sums..].into();
    shape.extend([at.rows, at.columns]);
    let result = factors[op.sums..].iter().map(|&f| Access::factor(f));
    let result = result.chain([rows.clone(), columns.clone()]).collect();
    rule = rule
        .input(operand(a, [rows, inner.clone()], op.transpose_a))
        .input(operand(b, [inner, columns.clone()], op.transpose_b));
    if op.bias {
        rule = rule.input(vec![columns]);
    }
    rule.output(result, shape, at.dtype)
        .flops(2.0)
        .reduction(Reduction::Partial(ReduceOp::Sum))
        .linearity(Linearity::Each(smallvec![0, 1]))
        .unrounded(op.in_full)
        .build()
}

/// How rows and columns are indexed, of the factors of rows, columns and contraction; and how the blocks of a result lie that goes home
/// in blocks.
fn accesses(
    [rows, columns, inner]: [usize; 3],
    blocks: Option<Blocks>,
) -> (Access, Access, Option<DimSharding>) {
    // Blocks meet ranks that divide the other side, or, where they are terms of a result, the contraction.
    let block_by_block = |factor: usize, other: usize, home: &Option<DimSharding>| Access::Ring {
        factor,
        instead: Some(if home.is_some() { inner } else { other }),
    };
    match blocks {
        None => (Access::factor(rows), Access::factor(columns), None),
        Some(Blocks::Rows(home)) => {
            let access = block_by_block(rows, columns, &home);
            (access, Access::factor(columns), home)
        }
        Some(Blocks::Columns(home)) => {
            let access = block_by_block(columns, rows, &home);
            (Access::factor(rows), access, home)
        }
    }
}

/// The extents of a product, checked.
struct Extents {
    dtype: DType,
    batch: Dims,
    rows: usize,
    columns: usize,
    inner: usize,
}

impl Extents {
    fn new(op: &MatMul, inputs: &[Meta]) -> Result<Self> {
        let dtype = product_types(MatMul::name(), inputs)?;
        let wrong = |problem: String, fix: &'static str| OpError::Shape {
            op: MatMul::name(),
            problem,
            shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
            fix,
        };
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        if a.len() < 2 || b.len() < 2 {
            return Err(wrong(
                "operands need two dims".into(),
                "unsqueeze the operand",
            ));
        }
        if op.sums > 0
            && (a.len() != b.len() || a.len() < op.sums + 2 || a[..op.sums] != b[..op.sums])
        {
            let problem = format!("the first {} dims, which are summed, differ", op.sums);
            return Err(wrong(problem, "give operands that agree in them"));
        }
        let sides =
            |shape: &Dims, swap: bool| match (shape[shape.len() - 2], shape[shape.len() - 1]) {
                (x, y) if swap => (y, x),
                sides => sides,
            };
        let (rows, inner) = sides(a, op.transpose_a);
        let (also_inner, columns) = sides(b, op.transpose_b);
        if inner != also_inner {
            let problem =
                format!("the contraction is {inner} on the left and {also_inner} on the right");
            return Err(wrong(problem, "give operands whose inner dims agree"));
        }
        let batch = |shape: &Dims| Meta {
            shape: shape[..shape.len() - 2].iter().copied().collect(),
            dtype,
        };
        Ok(Self {
            dtype,
            batch: broadcast(MatMul::name(), &[batch(a), batch(b)])?,
            rows,
            columns,
            inner,
        })
    }
}
