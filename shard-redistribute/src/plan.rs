//! Plans from one layout to another.

use crate::error::Incompatible;
use crate::exchange::{cover_of, start};
use crate::{Array, Exchange, ExchangeBuilder, RedistributeError, Result, Source};
use shard_comm::{Buffer, DType, Monoid, Scalar, all_reduce_received};
use shard_spec::{Layout, Placement, ReduceOp, numel};
use smallvec::SmallVec;
use std::fmt;

/// How an array goes from one layout to another: derived from the two layouts alone, the same on every rank,
/// run as often as wanted.
///
/// A partial source is reduced first, never gathered: mesh axes that shard the destination reduce by an
/// exchange in which each owner folds what it will keep (a reduce-scatter), the others by an all-reduce, which
/// runs on the smaller of the two blocks. Everything else is one direct exchange, in which a rank receives
/// exactly what it needs and does not have.
///
/// ```
/// use shard_redistribute::Plan;
/// use shard_spec::{DeviceMesh, Layout, Placement::*, ReduceOp::Sum};
/// let mesh = DeviceMesh::new(&[2, 2])?;
/// let from = Layout::new(&mesh, &[10], &[Shard(0), Partial(Sum)])?;
/// let to = Layout::replicated(&mesh, &[10]);
/// let plan = Plan::new(&from, &to, 0)?;
/// assert_eq!(plan.steps().len(), 2); // all-reduce half a tensor, then gather the halves
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Plan {
    from: Layout,
    to: Layout,
    index: usize,
    steps: Vec<Step>,
}

/// One step of a plan.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step {
    /// Pieces move between ranks (or within one), to the layout given.
    Exchange(Exchange, Layout),
    /// Ranks along these mesh axes combine their blocks of equal shape, to the layout given.
    AllReduce(SmallVec<[usize; 4]>, ReduceOp, Layout),
}

impl Plan {
    /// Plans the move for the member of the mesh at row-major position `index`. No communication.
    ///
    /// The destination may be partial (`P(sum)`), as adjoints need: a replicated value is kept at coordinate 0
    /// of the axis, a sharded one is embedded in zeros.
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if meshes or shapes differ, or a partial value would
    /// have to become partial under another operation.
    pub fn new(from: &Layout, to: &Layout, index: usize) -> Result<Self> {
        check(from, to)?;
        let mut steps = Vec::new();
        let mut at = from.clone();
        let reduce: SmallVec<[usize; 4]> = from
            .partial_axes()
            .iter()
            .copied()
            .filter(|a| !to.partial_axes().contains(a))
            .collect();
        let (scatter, all): (SmallVec<[usize; 4]>, SmallVec<[usize; 4]>) = reduce
            .iter()
            .copied()
            .partition(|&a| matches!(to.placements()[a], Placement::Shard(_)));
        if let (Some(op), false) = (from.partial_op(), all.is_empty()) {
            // Reducing before moving costs the source's block, after moving the destination's.
            if from.max_local_numel() <= to.max_local_numel() {
                at = reduced(&at, &all)?;
                steps.push(Step::AllReduce(all, op, at.clone()));
                push_exchange(&mut steps, &mut at, to, &scatter, index);
            } else {
                let between = to.with_partial(&all, op)?;
                push_exchange(&mut steps, &mut at, &between, &scatter, index);
                steps.push(Step::AllReduce(all, op, to.clone()));
            }
        } else {
            push_exchange(&mut steps, &mut at, to, &scatter, index);
        }
        Ok(Self {
            from: from.clone(),
            to: to.clone(),
            index,
            steps,
        })
    }

    /// The layout the plan starts from.
    pub fn from(&self) -> &Layout {
        &self.from
    }

    /// The layout the plan ends in.
    pub fn to(&self) -> &Layout {
        &self.to
    }

    /// The steps, none if nothing has to change.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether running the plan communicates.
    pub fn communicates(&self) -> bool {
        self.steps.iter().any(|s| match s {
            Step::Exchange(exchange, _) => !exchange.is_local(),
            Step::AllReduce(axes, ..) => axes.iter().any(|&a| self.from.mesh().shape()[a] > 1),
        })
    }

    /// Elements of the given type that this rank receives from others when the plan runs.
    pub fn received(&self, dtype: DType) -> usize {
        self.steps
            .iter()
            .map(|s| match s {
                Step::Exchange(exchange, _) => exchange.received(self.index),
                Step::AllReduce(axes, _, layout) => {
                    let mesh = layout.mesh();
                    let rank = mesh.ranks()[self.index];
                    let len = layout.local_shape(rank).map_or(0, |s| numel(&s));
                    let (mut ranks, mut me) = (1, 0);
                    for (a, &n) in mesh
                        .shape()
                        .iter()
                        .enumerate()
                        .filter(|(a, _)| axes.contains(a))
                    {
                        ranks *= n;
                        me = me * n + mesh.coords(rank).map_or(0, |c| c[a]);
                    }
                    all_reduce_received(len, dtype.size(), ranks, me, 1)
                }
            })
            .sum()
    }

    /// The plan of the adjoint move: from the dual of the destination to the dual of the source.
    ///
    /// Duals exchange replicate and partial sum: what a gather spreads, its adjoint sums.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn adjoint(&self) -> Result<Self> {
        Self::new(&dual(&self.to)?, &dual(&self.from)?, self.index)
    }

    /// Moves an array.
    ///
    /// # Collective
    /// All members of the mesh, if the plan [communicates](Self::communicates).
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if the array's layout is not the plan's source; what
    /// the communicator reports.
    pub fn run(&self, array: &Array) -> Result<Array> {
        if array.layout() != &self.from {
            return Err(incompatible(
                array.layout(),
                &self.from,
                "the plan was made for another source layout",
            ));
        }
        let mut at = array.clone();
        for step in &self.steps {
            at = step.run(&at)?;
        }
        if at.layout() == &self.to {
            return Ok(at);
        }
        // The same boxes under another description.
        Array::from_parts(at.cx(), &self.to, at.buffer().cloned(), at.dtype())
    }
}

impl Step {
    /// The layout after the step.
    pub fn layout(&self) -> &Layout {
        match self {
            Self::Exchange(_, layout) | Self::AllReduce(_, _, layout) => layout,
        }
    }

    fn run(&self, array: &Array) -> Result<Array> {
        let cx = array.cx();
        let Some(local) = array.buffer() else {
            return Array::from_parts(cx, self.layout(), None, array.dtype());
        };
        let _span = tracing::trace_span!("redistribute", to = %self.layout()).entered();
        let buffer: Buffer = match self {
            Self::Exchange(exchange, _) => start(exchange, cx, &[array])?.wait()?,
            Self::AllReduce(axes, op, _) => match cx.along(axes) {
                Some(comm) => comm.all_reduce(local, Monoid::Op(*op))?,
                None => {
                    return Err(RedistributeError::NotMember {
                        op: "redistribute",
                        rank: cx.rank(),
                    });
                }
            },
        };
        Array::from_parts(cx, self.layout(), Some(buffer), array.dtype())
    }
}

impl fmt::Display for Plan {
    /// The layouts passed through, such as `S(0) P(sum) -> S(0) R -> R R`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.from)?;
        for step in &self.steps {
            write!(f, " -> {}", step.layout())?;
        }
        Ok(())
    }
}

/// Adds the exchange from `at` to `to`, folding over `scatter`, unless nothing changes.
fn push_exchange(
    steps: &mut Vec<Step>,
    at: &mut Layout,
    to: &Layout,
    scatter: &[usize],
    index: usize,
) {
    if at == to {
        return;
    }
    let fresh: SmallVec<[usize; 4]> = to
        .partial_axes()
        .iter()
        .copied()
        .filter(|a| !at.partial_axes().contains(a))
        .collect();
    let mut builder = ExchangeBuilder::new("redistribute", at.mesh(), cover_of(to))
        .source(Source::identity(at))
        .embed_axes(&fresh)
        .reduce_axes(scatter);
    if let (Some(op), false) = (at.partial_op(), scatter.is_empty()) {
        builder = builder.fold(Monoid::Op(op));
    }
    if !fresh.is_empty() {
        builder = builder.fill(Scalar::ZERO);
    }
    steps.push(Step::Exchange(builder.build(index), to.clone()));
    *at = to.clone();
}

/// The layout of cotangents: replicate and partial sum change places.
fn dual(layout: &Layout) -> Result<Layout> {
    let whole = layout.with_partial_reduced();
    let spread = layout.replicate_axes();
    Ok(if spread.is_empty() {
        whole
    } else {
        whole.with_partial(spread, ReduceOp::Sum)?
    })
}

/// The layout with these partial axes replicated.
fn reduced(layout: &Layout, axes: &[usize]) -> Result<Layout> {
    let keep: SmallVec<[usize; 4]> = layout
        .partial_axes()
        .iter()
        .copied()
        .filter(|a| !axes.contains(a))
        .collect();
    let whole = layout.with_partial_reduced();
    match layout.partial_op() {
        Some(op) if !keep.is_empty() => Ok(whole.with_partial(&keep, op)?),
        _ => Ok(whole),
    }
}

fn check(from: &Layout, to: &Layout) -> Result<()> {
    if from.mesh() != to.mesh() {
        return Err(incompatible(from, to, "the meshes differ"));
    }
    if from.shape() != to.shape() {
        return Err(incompatible(from, to, "the shapes differ"));
    }
    match (from.partial_op(), to.partial_op()) {
        (Some(a), Some(b)) if a != b => {
            Err(incompatible(from, to, "the partial operations differ"))
        }
        (None, Some(op)) if op != ReduceOp::Sum => Err(incompatible(
            from,
            to,
            "only a partial sum can be made from whole values",
        )),
        _ => Ok(()),
    }
}

fn incompatible(from: &Layout, to: &Layout, why: &'static str) -> RedistributeError {
    RedistributeError::Incompatible(Box::new(Incompatible {
        op: "redistribute",
        from: from.clone(),
        to: to.clone(),
        why,
        fix: "give a destination layout of the same shape on the same mesh, reducing partial values first",
    }))
}
