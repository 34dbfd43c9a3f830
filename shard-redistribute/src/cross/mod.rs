//! Moves between different meshes of one world, and between one rank and a mesh.
//!
//! Ranks are names in the world: a rank may be on both meshes, on one, or on none. The pieces are found as on one mesh, by
//! intersecting intervals, and what a rank has already is not sent to it. Partial values are reduced on their own mesh first,
//! by a reduce-scatter, so that each element crosses once.

mod crossing;
mod run;
mod ways;

use crate::budget::check_bytes;
use crate::error::Incompatible;
use crate::plan::{Comparison, dual};
use crate::{
    Considered, CostModel, Fingerprint, Method, Plan, PlanCost, RedistributeError, Result,
};
use crossing::Crossing;
use shard_comm::{DType, ExchangePlan, Scalar};
use shard_spec::{Layout, ReduceOp, numel};
use std::sync::Arc;
use ways::Way;

/// The name of a move between meshes.
const OP: &str = "move";

/// How an array goes from a layout on one mesh to a layout on another. Every rank of the world derives its own from the two
/// layouts and its number, without communication.
///
/// ```
/// use shard_redistribute::CrossPlan;
/// use shard_comm::DType;
/// use shard_spec::{DeviceMesh, Layout};
/// // From ranks 0 and 1 to ranks 1, 2 and 3.
/// let left = DeviceMesh::with_ranks(&[2], vec![0, 1])?;
/// let right = DeviceMesh::with_ranks(&[3], vec![1, 2, 3])?;
/// let from = Layout::parse(&left, &[12], "S(0)")?;
/// let to = Layout::parse(&right, &[12], "S(0)")?;
/// // Rank 1 holds rows 6 to 11 and wants rows 0 to 3; rank 3 wants rows 8 to 11, which rank 1 has.
/// let messages = |rank| CrossPlan::new(&from, &to, rank).unwrap().forecast(DType::F64).messages;
/// assert_eq!([messages(0), messages(1), messages(2), messages(3)], [0, 1, 2, 1]);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Debug)]
#[doc(alias = "reshard")]
pub struct CrossPlan {
    from: Layout,
    to: Layout,
    rank: usize,
    /// The plan on the source's mesh, before anything crosses.
    before: Option<Plan>,
    /// The layout on the source's mesh from which the array crosses.
    crossing: Layout,
    exchange: Arc<ExchangePlan>,
    /// The layout on the destination's mesh in which the array arrives.
    arriving: Layout,
    /// Elements of this rank's block of `arriving`; 0 off its mesh.
    len: usize,
    /// Whether nothing crosses, since every rank holds what it needs already.
    still: bool,
    /// The plan on the destination's mesh, after the array has arrived.
    after: Option<Plan>,
    method: Method,
    choice: Option<Comparison>,
}

impl CrossPlan {
    /// Plans the move for the rank of this number in the world. A replicated piece is read whole from one of its copies,
    /// readers taking turns. No communication.
    ///
    /// The destination may be a partial sum, as adjoints need: its values arrive at coordinate 0 of the partial
    /// axes, and the others hold zeros.
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if the shapes differ or the destination is partial under
    /// another operation than a sum; [`Spec`](RedistributeError::Spec) if the bytes of the tensor on all ranks cannot be counted;
    /// [`TooManyPieces`](RedistributeError::TooManyPieces) if a rank would read or send more than four million.
    pub fn new(from: &Layout, to: &Layout, rank: usize) -> Result<Self> {
        check(from, to)?;
        let crossing = ways::scattered(from)?;
        let way = Way::direct(&crossing, to);
        Self::build(from, to, rank, crossing, way)
    }

    /// As [`new`](Self::new), but with every piece cut evenly over its copies. There are more messages, and no owner sends
    /// more than its share.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn spread(from: &Layout, to: &Layout, rank: usize) -> Result<Self> {
        check(from, to)?;
        let crossing = ways::scattered(from)?;
        Self::build(from, to, rank, crossing, Way::spread(to))
    }

    /// Plans the move by the method that a cost model finds cheapest for elements of type `dtype`: directly, with pieces cut
    /// over their copies, or, where the destination holds copies, with every element crossing once and gathered on the
    /// destination's mesh. Ties go to the method listed first in [`considered`](Self::considered).
    ///
    /// What crosses pays the model's usual link; what moves on the destination's mesh pays the links of its axes. Methods that
    /// hold more than the model's staging beyond source and destination are not taken, except the direct one.
    ///
    /// ```
    /// use shard_comm::DType;
    /// use shard_redistribute::{CostModel, CrossPlan, LinkCost, Method};
    /// use shard_spec::{DeviceMesh, Layout};
    /// // One rank holds what eight others all want: it crosses once, and they gather it.
    /// let one = DeviceMesh::with_ranks(&[1], vec![0])?;
    /// let eight = DeviceMesh::with_ranks(&[8], (1..9).collect())?;
    /// let (from, to) = (Layout::replicated(&one, &[1 << 20]), Layout::replicated(&eight, &[1 << 20]));
    /// let network = CostModel::network(LinkCost::new(10e-6, 50e9));
    /// let plan = CrossPlan::cheapest(&from, &to, 3, DType::F32, &network)?;
    /// assert_eq!(plan.method(), Method::SliceGather);
    /// assert_eq!(plan.trace(), "R ⇒ S(0) → R");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn cheapest(
        from: &Layout,
        to: &Layout,
        rank: usize,
        dtype: DType,
        model: &CostModel,
    ) -> Result<Self> {
        check(from, to)?;
        let crossing = ways::scattered(from)?;
        let mut all = ways::affordable(from, &crossing, to)?;
        let considered = ways::considered(from, &crossing, to, &all, dtype, model)?;
        let choice = Comparison::new(model, dtype, considered);
        let mut plan = Self::build(from, to, rank, crossing, all.swap_remove(choice.best))?;
        plan.choice = Some(choice);
        Ok(plan)
    }

    /// A plan for every method that [`cheapest`](Self::cheapest) would compare, the direct one first.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn alternatives(from: &Layout, to: &Layout, rank: usize) -> Result<Vec<Self>> {
        check(from, to)?;
        let crossing = ways::scattered(from)?;
        let all = ways::affordable(from, &crossing, to)?.into_iter();
        all.map(|way| Self::build(from, to, rank, crossing.clone(), way))
            .collect()
    }

    fn build(from: &Layout, to: &Layout, rank: usize, crossing: Layout, way: Way) -> Result<Self> {
        way.check(from, &crossing, to)?;
        let Way {
            method,
            arriving,
            spread,
        } = way;
        let before = match from.mesh().index_of(rank) {
            Some(index) if from.is_partial() => Some(Plan::new(from, &crossing, index)?),
            _ => None,
        };
        let after = match to.mesh().index_of(rank) {
            Some(index) if &arriving != to => Some(Plan::new(&arriving, to, index)?),
            _ => None,
        };
        let pieces = Crossing::new(&crossing, &arriving, spread);
        let (mut recv, mut send) = (pieces.receive(rank), pieces.send(rank));
        recv.sort();
        send.sort();
        let id = Fingerprint::new("cross")
            .with(&from.hash128())
            .with(&to.hash128())
            .with(&arriving.hash128())
            .with(&spread)
            .finish();
        let fill = to.is_partial().then_some(Scalar::ZERO);
        let still = !to.is_partial() && crossing.same_boxes(&arriving);
        Ok(Self {
            from: from.clone(),
            to: to.clone(),
            rank,
            before,
            crossing,
            exchange: Arc::new(ExchangePlan::new(OP, id, recv, send, None, fill)),
            len: arriving.local_shape(rank).map_or(0, |s| numel(&s)),
            arriving,
            still,
            after,
            method,
            choice: None,
        })
    }

    /// The method of the move.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The methods that were compared, the direct one first; empty if the plan was made without a model.
    pub fn considered(&self) -> &[Considered] {
        self.choice.as_ref().map_or(&[], |c| &c.considered)
    }

    /// The placements passed through, `⇒` where the tensor crosses; see [`Plan::trace`].
    pub fn trace(&self) -> String {
        ways::trace(&self.from, &self.crossing, &self.arriving, &self.to)
    }

    /// The layout the plan starts from.
    pub fn from(&self) -> &Layout {
        &self.from
    }

    /// The layout the plan ends in.
    pub fn to(&self) -> &Layout {
        &self.to
    }

    /// The pieces that cross, peers numbered as in the world.
    pub fn pieces(&self) -> &ExchangePlan {
        &self.exchange
    }

    /// What this rank will move and hold when the plan runs; see [`Plan::forecast`].
    pub fn forecast(&self, dtype: DType) -> PlanCost {
        let before = self.before.as_ref();
        let mut all = before.map_or_else(PlanCost::default, |p| p.forecast(dtype));
        all.bytes += (self.exchange.remote_elements(self.rank) * dtype.size()) as u64;
        all.messages += self.exchange.remote_messages(self.rank) as u64;
        if !self.still {
            all.rounds += 1;
            all.peak += (self.len * dtype.size()) as u64;
        }
        if let Some(after) = &self.after {
            let after = after.forecast(dtype);
            all.bytes += after.bytes;
            all.messages += after.messages;
            all.rounds += after.rounds;
            all.peak += after.peak;
        }
        all
    }

    /// The plan of the adjoint move: from the dual of the destination to the dual of the source; see
    /// [`Plan::adjoint`].
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn adjoint(&self) -> Result<Self> {
        let (from, to) = (dual(&self.to)?, dual(&self.from)?);
        match &self.choice {
            Some(c) => Self::cheapest(&from, &to, self.rank, c.dtype, &c.model),
            None => Self::new(&from, &to, self.rank),
        }
    }
}

fn check(from: &Layout, to: &Layout) -> Result<()> {
    if from.shape() != to.shape() {
        return Err(incompatible(from, to, "the shapes differ"));
    }
    check_bytes(OP, from)?;
    check_bytes(OP, to)?;
    match to.partial_op() {
        Some(op) if op != ReduceOp::Sum => Err(incompatible(
            from,
            to,
            "only a partial sum can be made from whole values",
        )),
        _ => Ok(()),
    }
}

fn incompatible(from: &Layout, to: &Layout, why: &'static str) -> RedistributeError {
    RedistributeError::Incompatible(Box::new(Incompatible {
        op: OP,
        from: from.clone(),
        to: to.clone(),
        why,
        fix: "give a destination layout of the same shape that is not partial",
    }))
}
