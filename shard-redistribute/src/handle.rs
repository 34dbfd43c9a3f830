//! Plans under way.

use crate::exchange::start;
use crate::rounds::Way;
use crate::{Array, Pending, Plan, RedistributeError, Result, Step};
use shard_comm::{CommError, Handle, Monoid};
use std::rc::Rc;

/// A plan that was started: its first step is in flight while the caller computes.
///
/// Later steps, where there are any, run in [`wait`](Self::wait). A handle that is dropped leaves its step to the
/// communicator, which finishes it, and the later steps undone: drop it on all ranks or on none.
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
    first: Flight,
    /// How many steps have been started.
    started: usize,
}

impl Plan {
    /// Starts moving an array: posts the first step and returns at once.
    ///
    /// # Collective
    /// As [`run`](Self::run); the later steps communicate when the handle is waited for, so all members must wait for
    /// theirs at the same place among their other calls.
    ///
    /// # Errors
    /// As [`run`](Self::run); what other ranks have to say about it comes from the handle.
    #[track_caller]
    pub fn start(self: &Rc<Self>, array: &Array) -> Result<PlanHandle> {
        self.check_source(array)?;
        let (first, started) = match (self.steps().first(), self.bounded(array.dtype())) {
            (Some(step), None | Some(Way::Whole)) => (step.start(array)?, 1),
            // Nothing to do, or a step in rounds, which fill and empty one stage.
            _ => (Flight::Landed(array.clone()), 0),
        };
        Ok(PlanHandle {
            plan: self.clone(),
            first,
            started,
        })
    }

    /// Moves an array.
    ///
    /// # Collective
    /// All members of the mesh, if the plan [communicates](Self::communicates).
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if the array's layout is not the plan's source; what
    /// the communicator reports.
    #[track_caller]
    pub fn run(&self, array: &Array) -> Result<Array> {
        self.check_source(array)?;
        self.finish(array.clone(), 0)
    }

    /// The steps from number `done` on.
    #[track_caller]
    fn finish(&self, mut at: Array, done: usize) -> Result<Array> {
        if let Some(way) = self.bounded(at.dtype()) {
            return match done {
                0 => self.run_bounded(&at, way),
                _ => self.finish_bounded(at, way),
            };
        }
        for step in &self.steps()[done..] {
            at = step.start(&at)?.land()?;
        }
        if at.layout() == self.to() {
            return Ok(at);
        }
        // The same boxes under another description.
        Array::from_parts(at.cx(), self.to(), at.buffer().cloned(), at.dtype())
    }
}

impl PlanHandle {
    /// Completes the move.
    ///
    /// # Collective
    /// All members of the mesh, if the plan [communicates](Plan::communicates).
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn wait(self) -> Result<Array> {
        self.plan.finish(self.first.land()?, self.started)
    }

    /// The plan that is run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether anything is in flight.
    pub fn is_flying(&self) -> bool {
        match &self.first {
            Flight::Landed(_) => false,
            Flight::Pieces(pending, _) => pending.is_flying(),
            Flight::Sum(..) => true,
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
    /// As [`redistribute`](Self::redistribute); what other ranks have to say about it comes from the handle.
    #[track_caller]
    pub fn redistribute_start(&self, to: &shard_spec::Layout) -> Result<PlanHandle> {
        let planner = self.cx().planner();
        planner.plan(self.layout(), to, self.dtype())?.start(self)
    }
}

/// One step under way, and what its result is to be: an array like this one.
#[derive(Debug)]
enum Flight {
    Landed(Array),
    Pieces(Pending, Array),
    Sum(Handle, Array),
}

impl Flight {
    fn land(self) -> Result<Array> {
        let (buffer, like) = match self {
            Self::Landed(array) => return Ok(array),
            Self::Pieces(pending, like) => (pending.wait()?, like),
            Self::Sum(handle, like) => {
                let result = handle.wait();
                if matches!(result, Err(CommError::Mismatch(_))) {
                    like.cx().forget();
                }
                (result?, like)
            }
        };
        Array::from_parts(like.cx(), like.layout(), Some(buffer), like.dtype())
    }
}

impl Step {
    #[track_caller]
    fn start(&self, array: &Array) -> Result<Flight> {
        let cx = array.cx();
        let like = Array::from_parts(cx, self.layout(), None, array.dtype())?;
        let Some(local) = array.buffer() else {
            return Ok(Flight::Landed(like));
        };
        let _span = tracing::trace_span!("redistribute", to = %self.layout()).entered();
        Ok(match self {
            Self::Exchange(exchange, _) => Flight::Pieces(start(exchange, cx, &[array])?, like),
            Self::AllReduce(axes, op, _) => {
                let Some(comm) = cx.along(axes) else {
                    return Err(RedistributeError::NotMember {
                        op: "redistribute",
                        rank: cx.rank(),
                    });
                };
                Flight::Sum(comm.start_all_reduce(local, Monoid::Op(*op))?, like)
            }
        })
    }
}
