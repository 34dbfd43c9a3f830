//! Plans from one layout to another.

use crate::budget::{check_bytes, check_pieces, pieces_of};
use crate::cost::STAGING;
use crate::error::Incompatible;
use crate::handle::{UnderWay, moving};
use crate::path::{self, Hop, Path};
use crate::price::Prices;
use crate::rounds::Way;
use crate::{Array, CostModel, Exchange, MeshComm, Method, PlanHandle, RedistributeError, Result};
use shard_comm::{AgreedError, CommError, DType, ExchangePlan, Request};
use shard_spec::{Layout, ReduceOp};
use smallvec::SmallVec;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// How an array goes from one layout to another. A plan is derived from the two layouts and a rank's place on the mesh, without
/// communication, and runs any number of times. Each rank makes its own, for its place ([`Array::index`]): the steps are the same on
/// all, and what a rank sends and receives in them is not.
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
#[doc(alias = "reshard")]
#[doc(alias = "all-to-all")]
#[doc(alias = "Ulysses")]
pub struct Plan {
    pub(crate) from: Layout,
    pub(crate) to: Layout,
    pub(crate) index: usize,
    method: Method,
    pub(crate) steps: Vec<Step>,
    pub(crate) hops: Vec<Hop>,
    pub(crate) choice: Option<Comparison>,
    /// Bytes that the plan may hold on one rank beyond source and destination.
    pub(crate) staging: usize,
}

/// The methods among which a plan was chosen, and the model that it was chosen by.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) model: CostModel,
    pub(crate) dtype: DType,
    pub(crate) considered: Vec<Considered>,
    pub(crate) best: usize,
}

impl Comparison {
    /// The cheapest, of those that hold no more than the model's staging and of the first, which always may; ties go to the left.
    pub(crate) fn new(model: &CostModel, dtype: DType, considered: Vec<Considered>) -> Self {
        let mut best = 0;
        for (i, c) in considered.iter().enumerate() {
            // Prices that differ by the rounding of their sums are equal.
            let cheaper = c.seconds < considered[best].seconds * (1.0 - 1e-9);
            if c.staging <= model.staging && cheaper {
                best = i;
            }
        }
        Self {
            model: model.clone(),
            dtype,
            considered,
            best,
        }
    }
}

/// One method that was compared with others.
#[derive(Clone, PartialEq, Debug)]
pub struct Considered {
    /// The method.
    pub method: Method,
    /// The layouts it passes through, such as `S(0) R → S(0) S(1) → R S(1)`; see [`Plan::trace`].
    pub trace: String,
    /// What it costs by the model, in seconds.
    pub seconds: f64,
    /// Most bytes that some rank holds on the way, beyond its source and its destination.
    pub staging: usize,
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
    /// Plans the move for the member of the mesh at row-major position `index`, by the direct path. It is the best one for
    /// ranks that share memory, and receives the fewest bytes everywhere. No communication.
    ///
    /// The destination may be partial (`P(sum)`), as adjoints need: a replicated value is kept at coordinate 0
    /// of the axis, a sharded one is embedded in zeros.
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if meshes or shapes differ, or a partial value would
    /// have to become partial under another operation; [`Spec`](RedistributeError::Spec) if the bytes of the tensor on all
    /// ranks cannot be counted; [`NoSuchRank`](RedistributeError::NoSuchRank) if the mesh has no position `index`;
    /// [`TooManyPieces`](RedistributeError::TooManyPieces) if a rank would read or send more than four million.
    pub fn new(from: &Layout, to: &Layout, index: usize) -> Result<Self> {
        check(from, to)?;
        let hops = path::direct(from, to, false)?.unwrap_or_default();
        Self::along(from, to, index, path::direct_way(from, to), hops)
    }

    /// Plans the move by the direct path, whose exchanges go in stages where a cost model finds that cheaper for elements of type
    /// `dtype`: pieces then pass through other ranks, so that each of many ranks has few messages. No communication.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn staged(
        from: &Layout,
        to: &Layout,
        index: usize,
        dtype: DType,
        model: &CostModel,
    ) -> Result<Self> {
        check(from, to)?;
        let mut path = Path {
            method: path::direct_way(from, to),
            hops: path::direct(from, to, false)?.unwrap_or_default(),
        };
        path.stage(dtype, model);
        let Path { method, hops } = path;
        let mut plan = Self::along(from, to, index, method, hops)?;
        plan.staging = model.staging;
        Ok(plan)
    }

    /// Plans the move by the method that a cost model finds cheapest for elements of type `dtype`. No
    /// communication; ties go to the method listed first in [`considered`](Self::considered).
    ///
    /// Methods that would hold more than the model's staging beyond source and destination are not taken. Those of one
    /// reduction and one exchange, such as the direct one, are exempt: where they would hold too much in between, they run by
    /// rounds.
    ///
    /// ```
    /// use shard_comm::DType;
    /// use shard_redistribute::{CostModel, LinkCost, Plan, Method};
    /// use shard_spec::{DeviceMesh, Layout};
    /// // One rank holds a large tensor that all want: it is shared out first, then gathered.
    /// let mesh = DeviceMesh::new(&[4])?;
    /// let from = Layout::parse(&mesh, &[1 << 20], "S(0)[1048576,0,0,0]")?;
    /// let to = Layout::replicated(&mesh, &[1 << 20]);
    /// let network = CostModel::network(LinkCost::new(10e-6, 50e9));
    /// let plan = Plan::cheapest(&from, &to, 0, DType::F32, &network)?;
    /// assert_eq!(plan.method(), Method::SliceGather);
    /// // Where readers copy from shared memory, the direct way is cheaper.
    /// let plan = Plan::cheapest(&from, &to, 0, DType::F32, &CostModel::shared_memory())?;
    /// assert_eq!(plan.method(), Method::Direct);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn cheapest(
        from: &Layout,
        to: &Layout,
        index: usize,
        dtype: DType,
        model: &CostModel,
    ) -> Result<Self> {
        check(from, to)?;
        let mut paths = affordable(from, to)?;
        // Sums of which every rank is left everything have stages of their own.
        let sums = paths.first().is_some_and(Path::all_reduces);
        for path in &mut paths {
            if path.all_reduces() == sums {
                path.stage(dtype, model);
            }
        }
        let mut prices = Prices::new(model, dtype.size());
        let considered: Vec<Considered> = paths
            .iter()
            .map(|r| Considered {
                method: r.method,
                trace: crate::trace::trace(from, &r.hops),
                seconds: prices.seconds(&r.hops),
                staging: r.staging(dtype.size(), model.staging),
            })
            .collect();
        let choice = Comparison::new(model, dtype, considered);
        let Path { method, hops } = paths.swap_remove(choice.best);
        let mut plan = Self::along(from, to, index, method, hops)?;
        plan.staging = model.staging;
        plan.choice = Some(choice);
        Ok(plan)
    }

    /// A plan for every method that [`cheapest`](Self::cheapest) would compare, the direct one first: for
    /// measuring them against each other.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn alternatives(from: &Layout, to: &Layout, index: usize) -> Result<Vec<Self>> {
        check(from, to)?;
        affordable(from, to)?
            .into_iter()
            .map(|r| Self::along(from, to, index, r.method, r.hops))
            .collect()
    }

    /// The plan of these hops, unless the mesh has no such position or they are cut into too many pieces.
    pub(crate) fn along(
        from: &Layout,
        to: &Layout,
        index: usize,
        method: Method,
        hops: Vec<Hop>,
    ) -> Result<Self> {
        let size = from.mesh().size();
        if index >= size {
            return Err(RedistributeError::NoSuchRank {
                op: "plan",
                rank: index,
                size,
            });
        }
        check_pieces("redistribute", from, to, pieces_of(&hops))?;
        Ok(Self::of_hops(from, to, index, method, hops))
    }

    /// The plan of hops that are known to be affordable.
    pub(crate) fn of_hops(
        from: &Layout,
        to: &Layout,
        index: usize,
        method: Method,
        hops: Vec<Hop>,
    ) -> Self {
        let steps = hops.iter().map(|hop| match hop {
            Hop::AllReduce { axes, op, to } => Step::AllReduce(axes.clone(), *op, to.clone()),
            Hop::Exchange(e) => Step::Exchange(e.builder().build(index), e.to.clone()),
        });
        let steps: Vec<Step> = steps.collect();
        Self {
            from: from.clone(),
            to: to.clone(),
            index,
            method,
            steps,
            hops,
            choice: None,
            staging: STAGING,
        }
    }

    /// The method of the move.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The methods that were compared, the direct one first; empty if the plan was made without a model.
    pub fn considered(&self) -> &[Considered] {
        self.choice.as_ref().map_or(&[], |c| &c.considered)
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

    /// The plan of the adjoint move, from the dual of the destination to the dual of the source.
    ///
    /// Replicate and partial sum are duals of each other: what a gather spreads, its adjoint sums. The adjoint is chosen by
    /// the same model as this plan.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn adjoint(&self) -> Result<Self> {
        let (from, to) = (dual(&self.to)?, dual(&self.from)?);
        match &self.choice {
            Some(c) => Self::cheapest(&from, &to, self.index, c.dtype, &c.model),
            None => Self::new(&from, &to, self.index),
        }
    }

    /// Whether the plan moves this array on this rank. A plan of another rank's is refused where the first step would communicate,
    /// since only this rank knows and the others wait there.
    #[track_caller]
    pub(crate) fn check_source(&self, array: &Array) -> Result<()> {
        if array.layout() != &self.from {
            let why = "the plan was made for another source layout";
            return Err(incompatible(array.layout(), &self.from, why));
        }
        match array.cx().is_member() && array.index() != self.index {
            true => Err(self.refuse(
                array.cx(),
                of_another("redistribute", "index", self.index, array.index()),
            )),
            false => Ok(()),
        }
    }

    /// Tells the ranks that would run this plan together why this rank does not.
    #[cold]
    #[track_caller]
    pub(crate) fn refuse(&self, cx: &MeshComm, error: CommError) -> RedistributeError {
        let group = self.steps.iter().find_map(|step| match step {
            Step::Exchange(exchange, _) if exchange.is_local() => None,
            Step::Exchange(exchange, _) => Some((cx.all()?, exchange.plan().name)),
            Step::AllReduce(axes, ..) if axes.iter().all(|&a| cx.mesh().axis_size(a) == 1) => None,
            Step::AllReduce(axes, ..) => Some((cx.along(axes)?, "all_reduce")),
        });
        let Some((group, name)) = group else {
            return error.into();
        };
        let status = Err(AgreedError::from_local("redistribute", error.clone()));
        let plan = Arc::new(ExchangePlan::empty(name));
        match group.call(Request::status(plan, status, Location::caller())) {
            Ok(_) => error.into(),
            Err(agreed) => agreed.into(),
        }
    }
}

/// What a rank has to say that runs another one's plan.
pub(crate) fn of_another(op: &'static str, what: &str, made_for: usize, this: usize) -> CommError {
    CommError::invalid(
        op,
        format!("a plan made for {what} {this}"),
        format!("one made for {what} {made_for}"),
        "make the plan on each rank, for that rank's own place",
    )
}

/// Running plans.
impl Plan {
    /// Starts moving an array: posts the first step and returns at once.
    ///
    /// # Collective
    /// As [`run`](Self::run); the later steps communicate when the handle is waited for, so all members must wait for
    /// theirs at the same place among their other calls.
    ///
    /// # Errors
    /// As [`run`](Self::run); errors of other ranks are reported by the handle.
    #[track_caller]
    pub fn start(self: &Rc<Self>, array: &Array) -> Result<PlanHandle> {
        self.check_source(array)?;
        let (first, started) = match (self.steps().first(), self.bounded(array.dtype())) {
            (Some(step), None | Some(Way::Whole)) => {
                let _span = moving(step.layout());
                (step.start(array)?, 1)
            }
            // There is nothing to do, or the step runs in rounds, which fill and empty one stage.
            _ => (UnderWay::Landed(array.clone()), 0),
        };
        Ok(PlanHandle::new(self.clone(), first, started))
    }

    /// Moves an array.
    ///
    /// # Collective
    /// All members of the mesh, if the plan [communicates](Self::communicates).
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if the array's layout is not the plan's source; an error that all ranks
    /// of the first step learn of if a rank runs a plan made for another's place; what the communicator reports.
    #[track_caller]
    pub fn run(&self, array: &Array) -> Result<Array> {
        self.check_source(array)?;
        self.finish(array.clone(), 0)
    }

    /// The steps from number `done` on.
    #[track_caller]
    pub(crate) fn finish(&self, mut at: Array, done: usize) -> Result<Array> {
        if let Some(way) = self.bounded(at.dtype()) {
            return match done {
                0 => self.run_bounded(&at, way),
                _ => self.finish_bounded(at, way),
            };
        }
        for step in &self.steps()[done..] {
            let _span = moving(step.layout());
            at = step.start(&at)?.land()?;
        }
        if at.layout() == self.to() {
            return Ok(at);
        }
        // The array has the same boxes under another description.
        Array::laid(at.cx(), self.to(), at.buffer().cloned(), at.dtype())
    }
}

impl Step {
    /// The layout after the step.
    pub fn layout(&self) -> &Layout {
        match self {
            Self::Exchange(_, layout) | Self::AllReduce(_, _, layout) => layout,
        }
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

/// The layout of cotangents: replicate and partial sum change places.
pub(crate) fn dual(layout: &Layout) -> Result<Layout> {
    let whole = layout.with_partial_reduced();
    let spread = layout.replicate_axes();
    Ok(if spread.is_empty() {
        whole
    } else {
        whole.with_partial(spread, ReduceOp::Sum)?
    })
}

/// The paths that have no more pieces than a plan may have; an error if there are none.
fn affordable(from: &Layout, to: &Layout) -> Result<Vec<Path>> {
    let mut paths = path::paths(from, to)?;
    if let Some(direct) = paths.first() {
        let check = |path: &Path| check_pieces("redistribute", from, to, pieces_of(&path.hops));
        let refused = check(direct);
        paths.retain(|path| check(path).is_ok());
        if paths.is_empty() {
            refused?;
        }
    }
    Ok(paths)
}

pub(crate) fn check(from: &Layout, to: &Layout) -> Result<()> {
    if from.mesh() != to.mesh() {
        return Err(incompatible(from, to, "the meshes differ"));
    }
    if from.shape() != to.shape() {
        return Err(incompatible(from, to, "the shapes differ"));
    }
    check_bytes("redistribute", to)?;
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
