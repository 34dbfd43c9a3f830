//! A plan as calls of NCCL: which pieces go to whom, which of them are packed, and where they are received.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::library::Op;
use super::options::Order;
use crate::Stage;
use crate::plan::Collisions;
use crate::plan::{Message, messages_of};
use crate::{DType, ExchangePlan, Monoid, Pieces};
use shard_spec::ReduceOp;

/// The plans of a request as calls; made once for these plans and a group.
#[derive(Debug)]
pub(super) struct Wiring {
    /// The plan that ranks agree on before anything moves.
    pub(super) agreement: Arc<ExchangePlan>,
    /// How many of the agreement's sources tell which collective it is.
    pub(super) stand_ins: usize,
    pub(super) wires: SmallVec<[Wire; 1]>,
}

/// One plan as calls.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) outgoing: Vec<Sent>,
    /// Elements to pack before they are sent.
    pub(super) packed_out: usize,
    pub(super) incoming: Vec<Received>,
    /// Elements that are received (or, for this rank's own, packed) into a staging buffer instead of the destination.
    pub(super) packed_in: usize,
    /// For pieces that are combined or overlap: the plan that reads them from the staging buffer, the pieces of each peer from
    /// where that peer's elements begin.
    pub(super) packed: Option<ExchangePlan>,
}

/// The message to one peer.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) message: Message,
    pub(super) way: Way,
}

/// The message from one peer, this rank included.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) message: Message,
    pub(super) way: Way,
}

/// How the elements of a message become contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// They are contiguous already, in the source of this number (or the one destination) from element `at` on.
    Lie { source: usize, at: usize },
    /// They are packed, from this element of the staging buffer on.
    Packed(usize),
    /// They need not be: they are copied from source to destination.
    Copied,
}

impl Wiring {
    /// The calls of participant `me`.
    fn new(stages: &[Stage], me: usize) -> Self {
        let plans: SmallVec<[&ExchangePlan; 2]> = stages.iter().map(|s| &*s.plan).collect();
        Self {
            agreement: Arc::new(ExchangePlan::agreement(&plans)),
            stand_ins: plans.first().map_or(0, |plan| plan.stand_ins()),
            wires: plans.iter().map(|plan| Wire::new(plan, me)).collect(),
        }
    }
}

impl Wire {
    fn new(plan: &ExchangePlan, me: usize) -> Self {
        let (mut packed_out, mut packed_in) = (0, 0);
        let take = |end: &mut usize, message: &Message| {
            let at = *end;
            *end += message.elements;
            Way::Packed(at)
        };
        let outgoing = messages_of(&plan.send)
            .into_iter()
            .filter(|message| message.peer != me);
        let outgoing = outgoing.map(|message| Sent {
            way: read_in_place(&message, &plan.send)
                .unwrap_or_else(|| take(&mut packed_out, &message)),
            message,
        });
        let outgoing = outgoing.collect();
        let copies = plan.collisions() == Collisions::Disjoint
            && (plan.fold.is_none() || plan.fill.is_none());
        let incoming: Vec<Received> = messages_of(&plan.recv)
            .into_iter()
            .map(|message| {
                let in_place = match (copies, message.peer == me) {
                    (true, true) => Some(Way::Copied),
                    (true, false) => written_in_place(&message, &plan.recv),
                    (false, true) => read_in_place(&message, &plan.recv),
                    (false, false) => None,
                };
                let way = in_place.unwrap_or_else(|| take(&mut packed_in, &message));
                Received { message, way }
            })
            .collect();
        let packed = (!copies).then(|| {
            let order = incoming.iter().flat_map(|r| r.message.pieces.clone());
            plan.packed(&order.collect::<Vec<_>>())
        });
        Self {
            outgoing,
            packed_out,
            incoming,
            packed_in,
            packed,
        }
    }
}

/// The place where the elements of a message are read, if they are contiguous there.
fn read_in_place(message: &Message, pieces: &Pieces) -> Option<Way> {
    let [at] = message.pieces[..] else {
        return None;
    };
    let piece = pieces.get(at).filter(|p| p.src_view().is_contiguous())?;
    Some(Way::Lie {
        source: piece.source,
        at: piece.src_offset,
    })
}

/// The place where the elements of a message are written, if they are contiguous there.
fn written_in_place(message: &Message, pieces: &Pieces) -> Option<Way> {
    let [at] = message.pieces[..] else {
        return None;
    };
    let piece = pieces.get(at).filter(|p| p.dst_view().is_contiguous())?;
    Some(Way::Lie {
        source: 0,
        at: piece.dst_offset,
    })
}

/// The library's own reduction, if it gives the bits that were asked for: because they do not depend on the order, or because any
/// order is allowed. The library does not keep NaN in maxima and minima, and has no truth values, only numbers.
pub(super) fn library_op(fold: Option<Monoid>, dtype: DType, order: Order) -> Option<Op> {
    let Monoid::Op(op) = fold? else {
        return None;
    };
    match (op, dtype) {
        (ReduceOp::Sum | ReduceOp::Any | ReduceOp::Max, DType::Bool) => Some(Op::Max),
        (ReduceOp::Prod | ReduceOp::All | ReduceOp::Min, DType::Bool) => Some(Op::Min),
        (ReduceOp::Any | ReduceOp::All, _) => None,
        (op, dtype) if !dtype.is_float() => Some(match op {
            ReduceOp::Sum => Op::Sum,
            ReduceOp::Prod => Op::Prod,
            ReduceOp::Max => Op::Max,
            _ => Op::Min,
        }),
        (ReduceOp::Sum, _) if order == Order::Any => Some(Op::Sum),
        (ReduceOp::Prod, _) if order == Order::Any => Some(Op::Prod),
        _ => None,
    }
}

/// The wirings of the plans that a group used last.
#[derive(Debug, Default)]
pub(super) struct WiringCache(RefCell<VecDeque<Known>>);

/// The plans of a request, and its wiring.
type Known = (SmallVec<[Arc<ExchangePlan>; 1]>, Rc<Wiring>);

impl WiringCache {
    /// How many wirings are kept.
    const CAPACITY: usize = 64;

    pub(super) fn get(&self, stages: &[Stage], me: usize) -> Rc<Wiring> {
        let mut known = self.0.borrow_mut();
        let same = |plans: &[Arc<ExchangePlan>]| {
            plans.len() == stages.len()
                && (plans.iter().zip(stages)).all(|(plan, stage)| Arc::ptr_eq(plan, &stage.plan))
        };
        if let Some((_, wiring)) = known.iter().find(|(plans, _)| same(plans)) {
            return Rc::clone(wiring);
        }
        let wiring = Rc::new(Wiring::new(stages, me));
        if known.len() == Self::CAPACITY {
            known.pop_back();
        }
        let plans = stages.iter().map(|stage| Arc::clone(&stage.plan)).collect();
        known.push_front((plans, Rc::clone(&wiring)));
        wiring
    }
}
