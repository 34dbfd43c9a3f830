//! Plans in flight.

use crate::exchange::start;
use crate::{Array, ExchangeHandle, Plan, RedistributeError, Result, Step};
use shard_comm::{Calling, Handle, Monoid};
use shard_spec::Layout;
use std::rc::Rc;
use tracing::span::EnteredSpan;

/// A plan that was started: its first step is in flight while the caller computes.
///
/// Later steps, where there are any, run in [`wait`](Self::wait). If a handle is dropped, the communicator finishes the step
/// in flight, and the later steps are left undone. So it must be dropped on all ranks or on none.
///
/// ```
/// use shard_redistribute::{Array, MeshComm};
/// use shard_spec::{DeviceMesh, Layout};
/// use std::rc::Rc;
/// let rows = shard_comm::local::run(2, |comm| {
///     let world: Rc<dyn shard_comm::Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::new(&[2]).unwrap();
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let columns = Layout::parse(&mesh, &[2, 2], "S(1)").unwrap();
///     let x = Array::from_fn::<f64>(&cx, &columns, |i| (10 * i[0] + i[1]) as f64).unwrap();
///     let moving = x.redistribute_start(&Layout::parse(&mesh, &[2, 2], "S(0)").unwrap()).unwrap();
///     // ... work that does not need the rows ...
///     moving.wait().unwrap().to_vec::<f64>().unwrap()
/// })
/// .unwrap();
/// assert_eq!(rows, [[0.0, 1.0], [10.0, 11.0]]);
/// ```
#[must_use = "the array arrives by `wait`"]
#[derive(Debug)]
pub struct PlanHandle {
    plan: Rc<Plan>,
    first: UnderWay,
    /// How many steps have been started.
    started: usize,
    /// The number of the array that arrives, if the move was recorded.
    number: Option<u64>,
}

impl PlanHandle {
    pub(crate) fn new(plan: Rc<Plan>, first: UnderWay, started: usize) -> Self {
        Self {
            plan,
            first,
            started,
            number: None,
        }
    }

    /// Completes the move.
    ///
    /// # Collective
    /// All members of the mesh, if the plan [communicates](Plan::communicates).
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn wait(self) -> Result<Array> {
        let _call = Calling::doing("redistribute");
        let first = {
            let _span = moving(self.first.layout());
            self.first.land()?
        };
        let array = self.plan.finish(first, self.started)?;
        Ok(match self.number {
            Some(number) => array.with_number(number),
            None => array,
        })
    }

    /// The plan that is run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether anything is in flight.
    pub fn is_flying(&self) -> bool {
        match &self.first {
            UnderWay::Landed(_) => false,
            UnderWay::Pieces(pending, _) => pending.is_flying(),
            UnderWay::Sum(..) => true,
        }
    }
}

impl Array {
    /// Starts moving the array to another layout of the same mesh and shape; see [`redistribute`](Self::redistribute).
    ///
    /// # Collective
    /// All members of the mesh, which wait for their handles at the same place among their other calls.
    ///
    /// # Errors
    /// As [`redistribute`](Self::redistribute); errors of other ranks are reported by the handle.
    #[track_caller]
    pub fn redistribute_start(&self, to: &Layout) -> Result<PlanHandle> {
        let planner = self.cx().planner();
        let _call = Calling::doing("redistribute");
        let number = Some(self.record_move(to));
        let handle = planner.plan(self.layout(), to, self.dtype())?.start(self)?;
        Ok(PlanHandle { number, ..handle })
    }
}

/// One step in flight, with an array of the layout and type that its result is to have.
#[derive(Debug)]
pub(crate) enum UnderWay {
    Landed(Array),
    Pieces(ExchangeHandle, Array),
    Sum(Handle, Array),
}

/// The span of a step of a move, or of a part of one, to this layout.
pub(crate) fn moving(to: &Layout) -> EnteredSpan {
    tracing::trace_span!("redistribute", %to).entered()
}

impl UnderWay {
    fn layout(&self) -> &Layout {
        match self {
            Self::Landed(like) | Self::Pieces(_, like) | Self::Sum(_, like) => like.layout(),
        }
    }

    pub(crate) fn land(self) -> Result<Array> {
        let (buffer, like) = match self {
            Self::Landed(array) => return Ok(array),
            Self::Pieces(pending, like) => (pending.wait()?, like),
            Self::Sum(handle, like) => (handle.wait()?, like),
        };
        Array::laid(like.cx(), like.layout(), Some(buffer), like.dtype())
    }
}

impl Step {
    #[track_caller]
    pub(crate) fn start(&self, array: &Array) -> Result<UnderWay> {
        let cx = array.cx();
        let like = Array::laid(cx, self.layout(), None, array.dtype())?;
        let Some(local) = array.buffer() else {
            return Ok(UnderWay::Landed(like));
        };
        Ok(match self {
            Self::Exchange(exchange, _) => UnderWay::Pieces(start(exchange, cx, &[array])?, like),
            Self::AllReduce(axes, op, _) => {
                let Some(comm) = cx.along(axes) else {
                    return Err(RedistributeError::NotMember {
                        op: "redistribute",
                        rank: cx.rank(),
                    });
                };
                UnderWay::Sum(comm.start_all_reduce(local, Monoid::Op(*op))?, like)
            }
        })
    }
}
