//! The exchanges of an operation on their way to a stream, and messages that are queued together. Nothing here waits: a call of
//! the library may have to connect ranks, which takes until the other ranks make the call too.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::group::Calls;
use super::landing::{Check, Landing, Place, Staging};
use super::library::{Batch, Call, Sink, Source};
use super::op::{Op, State, Step};
use super::options::Order;
use super::wire::library_op;
use crate::guard::PeerSums;
use crate::plan::Shape;
use crate::{Buffer, DeviceRef, ExchangePlan, Ledger, Result};
use crate::{Stage, Target};

/// The parts of a rank that queuing uses.
#[derive(Clone, Copy)]
pub(super) struct Means<'a> {
    pub(super) stream: &'a DeviceRef,
    pub(super) order: Order,
    pub(super) ledger: &'a Ledger,
}

/// The exchanges of an operation of a group: each is queued once the one before it is.
#[derive(Debug)]
pub(super) struct Course {
    /// The exchanges to come, last first.
    stages: SmallVec<[(Stage, Staging); 1]>,
    /// How many exchanges have begun.
    begun: usize,
    flying: Option<Flying>,
    /// The sources of the next exchange.
    sources: SmallVec<[Buffer; 1]>,
    /// All ranks' checksums of the first exchange, until it is queued.
    sums: Option<PeerSums>,
    done: Queued,
}

/// The outcome of an operation when all its exchanges are queued.
#[derive(Debug, Default)]
pub(super) struct Queued {
    pub(super) result: Option<Buffer>,
    /// Buffers that the stream reads until the exchanges are done.
    pub(super) kept: Vec<Buffer>,
    pub(super) check: Option<Check>,
}

/// An exchange whose calls are under way.
#[derive(Debug)]
enum Flying {
    Exchange {
        calls: Calls,
        landing: Landing,
        plan: Arc<ExchangePlan>,
    },
    /// An all-reduce of two exchanges as one call of the library; `write` is the place of its result in the batch.
    Whole { calls: Calls, write: usize },
}

impl Course {
    /// The exchanges of an operation that all ranks agree on.
    pub(super) fn new(state: &mut State, sums: Option<PeerSums>) -> Self {
        let stages = std::mem::take(&mut state.stages);
        let mut stages: SmallVec<_> = stages
            .into_iter()
            .zip(std::mem::take(&mut state.staging))
            .collect();
        stages.reverse();
        Self {
            stages,
            begun: 0,
            flying: None,
            done: Queued {
                kept: state.sources.to_vec(),
                ..Queued::default()
            },
            sources: std::mem::take(&mut state.sources),
            sums,
        }
    }

    /// Queues exchanges as far as that goes without waiting. Returns the outcome once all are queued.
    ///
    /// # Errors
    /// Errors of the library and of the device.
    pub(super) fn go_on(&mut self, op: &Op, means: Means<'_>) -> Result<Option<Queued>> {
        loop {
            match self.flying.take() {
                Some(Flying::Whole { mut calls, write }) => match calls.queued()? {
                    Some(mut batch) => {
                        self.done.result = Some(batch.take(write)?.freeze());
                        self.done.kept.extend(batch.reads);
                    }
                    None => return Ok(self.wait(Flying::Whole { calls, write })),
                },
                Some(Flying::Exchange {
                    mut calls,
                    landing,
                    plan,
                }) => match calls.queued()? {
                    Some(batch) => self.end(op, means, batch, landing, plan)?,
                    None => {
                        return Ok(self.wait(Flying::Exchange {
                            calls,
                            landing,
                            plan,
                        }));
                    }
                },
                None if self.stages.is_empty() => return Ok(Some(std::mem::take(&mut self.done))),
                None => self.flying = Some(self.begin(op, means)?),
            }
        }
    }

    fn wait(&mut self, flying: Flying) -> Option<Queued> {
        self.flying = Some(flying);
        None
    }

    /// Begins the next exchange.
    fn begin(&mut self, op: &Op, means: Means<'_>) -> Result<Flying> {
        if let Some(whole) = self.library_all_reduce(op, means)? {
            return Ok(whole);
        }
        let (Some((stage, staging)), Some(wire)) =
            (self.stages.pop(), op.wiring.wires.get(self.begun))
        else {
            return Err(super::library::failed(
                "batch",
                "an exchange without a wire",
            ));
        };
        let place = self.place(op, means);
        let plan = Arc::clone(&stage.plan);
        let mut batch = Batch::default();
        let landing = Landing::new(
            &place,
            stage,
            wire,
            staging,
            std::mem::take(&mut self.sources),
            &mut batch,
        )?;
        self.begun += 1;
        Ok(Flying::Exchange {
            calls: Calls::begin(&op.group, means.stream, batch)?,
            landing,
            plan,
        })
    }

    /// Ends an exchange that is queued: queues the work that puts what it brings where it belongs.
    fn end(
        &mut self,
        op: &Op,
        means: Means<'_>,
        mut batch: Batch,
        landing: Landing,
        plan: Arc<ExchangePlan>,
    ) -> Result<()> {
        let (place, read) = (self.place(op, means), landing.sources().clone());
        let Some(wire) = op.wiring.wires.get(self.begun - 1) else {
            return Ok(());
        };
        let arrived = landing.finish(&place, wire, &mut batch)?;
        let kept = &mut self.done.kept;
        kept.extend(batch.reads);
        kept.extend(arrived.coming.clone());
        kept.extend(arrived.result.clone());
        (means.ledger).moved(op.name, &plan, op.index, op.dtype);
        self.sources = arrived.result.iter().cloned().collect();
        self.done.result.clone_from(&arrived.result);
        if let Some(sums) = self.sums.take() {
            self.done.check = Some(Check {
                sums,
                plan,
                wiring: Rc::clone(&op.wiring),
                sources: read,
                arrived,
                me: op.index,
            });
        }
        Ok(())
    }

    fn place<'a>(&self, op: &Op, means: Means<'a>) -> Place<'a> {
        Place {
            stream: means.stream,
            me: op.index,
            size: op.members.len(),
            ranks: None,
            order: means.order,
            // Only the first exchange is compared.
            checked: self.sums.is_some(),
        }
    }

    /// Begins an all-reduce as one call of the library, if that is allowed.
    fn library_all_reduce(&mut self, op: &Op, means: Means<'_>) -> Result<Option<Flying>> {
        let [(Stage { target: whole, .. }, _), (first, _)] = &mut self.stages[..] else {
            return Ok(None);
        };
        let (Some(source), Target::Write(dst)) = (self.sources.first(), &*whole) else {
            return Ok(None);
        };
        let library = library_op(first.plan.fold, source.dtype(), means.order);
        let Some(how) = library.filter(|_| {
            self.begun == 0
                && self.sums.is_none()
                && first.plan.shape() == Some(Shape::AllReduce)
                && op.members.len() > 1
                && source.len() == dst.len()
        }) else {
            return Ok(None);
        };
        let Target::Write(dst) = std::mem::replace(whole, Target::Nothing) else {
            return Ok(None);
        };
        let range = 0..dst.len();
        let mut batch = Batch::default();
        let (read, write) = (batch.read(source.clone()), batch.write(dst));
        batch.calls.push(Call::AllReduce {
            op: how,
            from: Source {
                read,
                range: range.clone(),
            },
            into: Sink { write, range },
        });
        for (stage, _) in self.stages.drain(..).rev() {
            (means.ledger).moved(op.name, &stage.plan, op.index, op.dtype);
        }
        let calls = Calls::begin(&op.group, means.stream, batch)?;
        Ok(Some(Flying::Whole { calls, write }))
    }
}

/// A message whose calls are queued, and its outcome.
type Sent = (Rc<Op>, Queued);

/// Messages whose calls are under way together.
#[derive(Debug)]
pub(super) struct Messages {
    calls: Calls,
    landings: Vec<Message>,
}

#[derive(Debug)]
struct Message {
    op: Rc<Op>,
    plan: Arc<ExchangePlan>,
    sums: Option<PeerSums>,
    landing: Landing,
}

impl Messages {
    /// Begins to queue messages whose two ends agree; `None` if there are none.
    ///
    /// # Errors
    /// Errors of the library and of the device.
    pub(super) fn begin(ready: &[&Rc<Op>], means: Means<'_>) -> Result<Option<Self>> {
        let mut batch = Batch::default();
        let mut landings = Vec::new();
        for &op in ready {
            let mut state = op.state.borrow_mut();
            let Step::Met(sums) = &mut state.step else {
                continue;
            };
            let sums = sums.take();
            means.stream.wait(&state.posted)?;
            let sources = std::mem::take(&mut state.sources);
            let (stage, staging) = (state.stages.pop(), state.staging.pop());
            let (Some(stage), Some(staging), Some(wire)) =
                (stage, staging, op.wiring.wires.first())
            else {
                continue;
            };
            let place = place_of(op, means, sums.is_some());
            let plan = Arc::clone(&stage.plan);
            let landing = Landing::new(&place, stage, wire, staging, sources, &mut batch)?;
            state.step = Step::InBatch;
            landings.push(Message {
                op: Rc::clone(op),
                plan,
                sums,
                landing,
            });
        }
        let Some(Message { op, .. }) = landings.first() else {
            return Ok(None);
        };
        let calls = Calls::begin(&op.group, means.stream, batch)?;
        Ok(Some(Self { calls, landings }))
    }

    /// The outcomes of the messages, once all are queued.
    ///
    /// # Errors
    /// Errors of the library and of the device.
    pub(super) fn queued(&mut self, means: Means<'_>) -> Result<Option<Vec<Sent>>> {
        let Some(mut batch) = self.calls.queued()? else {
            return Ok(None);
        };
        let mut all = Vec::new();
        for message in std::mem::take(&mut self.landings) {
            let Message {
                op,
                plan,
                sums,
                landing,
            } = message;
            let Some(wire) = op.wiring.wires.first() else {
                continue;
            };
            let place = place_of(&op, means, sums.is_some());
            let arrived = landing.finish(&place, wire, &mut batch)?;
            (means.ledger).moved(op.name, &plan, op.index, op.dtype);
            let mut kept = batch.reads.to_vec();
            kept.extend(arrived.coming.clone());
            let queued = Queued {
                result: arrived.result.clone(),
                kept,
                check: sums.map(|sums| Check {
                    sums,
                    plan,
                    wiring: Rc::clone(&op.wiring),
                    sources: SmallVec::new(),
                    arrived,
                    me: op.index,
                }),
            };
            all.push((op, queued));
        }
        Ok(Some(all))
    }
}

/// The place of a message's exchange: between two ranks, which the library knows by their places among all ranks.
fn place_of<'a>(op: &'a Op, means: Means<'a>, checked: bool) -> Place<'a> {
    Place {
        stream: means.stream,
        me: op.index,
        size: op.members.len(),
        ranks: Some(&op.places),
        order: means.order,
        checked,
    }
}
