//! One operation on its way: first the records of every rank, then its exchanges.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::all_gather::AllGather;
use super::details::{Details, Own, disagreement};
use super::moving::Moving;
use super::progress::Rank;
use super::records::Records;
use super::sending::{Sending, Then};
use super::short::Begun;
use super::sums::{self, Found};
use super::tags::{Phase, Tags};
use super::wire::{Wire, WireCache};
use crate::guard::{Guard, PeerSum};
use crate::{AgreedError, Buffer, DType, ErrorClass, ExchangePlan, Past, Result, Site, SiteText};
use crate::{Direct, Request, Stage, Target};

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) name: &'static str,
    /// What the user called, if that is known.
    method: Option<&'static str>,
    pub(super) site: Site,
    pub(super) tags: Tags,
    dtype: Option<DType>,
    /// The type in which elements move.
    moves: Option<DType>,
    pub(super) state: RefCell<State>,
}

#[derive(Debug)]
pub(super) struct State {
    step: Step,
    /// Whether everything that this rank sends in the first exchange has gone with its record.
    complete: bool,
    /// The exchanges to come, last first; `begun` counts those that have begun.
    stages: SmallVec<[(Stage, Rc<Wire>); 1]>,
    begun: usize,
    /// The sources of the next exchange.
    sources: SmallVec<[Buffer; 1]>,
    turn: Option<u64>,
    /// The checksums that peers should find in the next exchange, if this rank computes them; and those of all ranks, if any
    /// does.
    sums: Option<Arc<[PeerSum]>>,
    peer_sums: Option<AllGather>,
    /// Whether exchanges of this operation are followed by verdicts.
    judged: bool,
    status: Result<(), Box<AgreedError>>,
    argument: Option<(&'static str, u128)>,
    past: Option<Past>,
    direct: Option<Direct>,
    /// Every rank's error, if ranks exchanged their errors.
    pub(super) statuses: Vec<Option<AgreedError>>,
    /// Where members find each other's elements, until all that this rank reads is here.
    records: Option<Records>,
    pub(super) result: Option<Result<Option<Buffer>>>,
    pub(super) dropped: bool,
}

#[derive(Debug)]
enum Step {
    /// Waits until earlier operations with the same tags are done.
    Held(Box<Request>, Rc<WireCache>),
    Records(Records),
    Sizes(AllGather, Vec<u8>),
    Details(AllGather),
    /// With the records, if the exchange may find its elements in them.
    Sums(AllGather, Option<Records>),
    /// Waits until the ranks of the node have told how their elements get here.
    Sending(Box<Sending>),
    Moving(Box<Moving>),
    /// With the result of the exchange that the verdicts are about.
    Verdicts(AllGather, Option<Buffer>),
    Done,
}

impl State {
    fn new(request: Request, begun: Begun) -> Self {
        let mut stages: SmallVec<_> = request.stages.into_iter().zip(begun.wires).collect();
        stages.reverse();
        Self {
            complete: begun.complete,
            stages,
            sources: request.sources,
            turn: request.guard.turn,
            sums: request.guard.sums,
            status: request.status,
            argument: request.argument,
            past: request.past,
            direct: request.direct,
            ..Self::at(Step::Records(begun.records))
        }
    }

    fn at(step: Step) -> Self {
        Self {
            step,
            complete: false,
            stages: SmallVec::new(),
            begun: 0,
            sources: SmallVec::new(),
            turn: None,
            sums: None,
            peer_sums: None,
            judged: false,
            status: Ok(()),
            argument: None,
            past: None,
            direct: None,
            statuses: Vec::new(),
            records: None,
            result: None,
            dropped: false,
        }
    }
}

impl Op {
    /// An operation that has begun.
    pub(super) fn new(tags: Tags, request: Request, begun: Begun) -> Self {
        Self {
            name: request.name(),
            method: request.method,
            site: request.site,
            tags,
            dtype: request.dtype,
            moves: request.moves(),
            state: RefCell::new(State::new(request, begun)),
        }
    }

    /// An operation that begins when the operations that [hold](Rank::is_held) it are done.
    pub(super) fn held(tags: Tags, request: Request, wires: Rc<WireCache>) -> Self {
        Self {
            name: request.name(),
            method: request.method,
            site: request.site,
            tags,
            dtype: request.dtype,
            moves: request.moves(),
            state: RefCell::new(State::at(Step::Held(Box::new(request), wires))),
        }
    }

    /// Makes progress as far as possible without waiting. An error here is a failure of this rank.
    pub(super) fn advance(&self, rank: &Rank) -> Result<()> {
        let state = &mut *self.state.borrow_mut();
        while state.result.is_none() {
            if !self.is_ready(rank, state)? {
                return Ok(());
            }
            match std::mem::replace(&mut state.step, Step::Done) {
                Step::Held(request, wires) => self.begin(rank, state, *request, &wires)?,
                Step::Records(records) => self.compared(rank, state, records)?,
                Step::Sizes(sizes, details) => self.tell_details(rank, state, &sizes, details)?,
                Step::Details(all) => self.disagree(rank, state, &all)?,
                Step::Sums(peer_sums, records) => {
                    state.peer_sums = Some(peer_sums);
                    match records {
                        Some(records) => self.move_on(rank, state, records)?,
                        None => self.begin_stage(rank, state)?,
                    }
                }
                Step::Sending(sending) => self.receive(rank, state, *sending)?,
                Step::Moving(moving) => {
                    let plan = Arc::clone(moving.plan());
                    let (result, leaving, found) =
                        moving.finish(rank.device(), state.peer_sums.is_some())?;
                    rank.see_off(leaving)?;
                    self.end_stage(rank, state, result, &plan, &found)?;
                }
                Step::Verdicts(all, result) => match sums::verdict(&all, &self.tags) {
                    Some(error) => {
                        rank.fail_all(error.clone());
                        state.result = Some(Err(error));
                    }
                    None => self.next_stage(rank, state, result)?,
                },
                Step::Done => state.result = Some(Ok(None)),
            }
        }
        // Others write there again.
        state.records = None;
        Ok(())
    }

    /// Whether the step that the operation is at can be taken.
    fn is_ready(&self, rank: &Rank, state: &mut State) -> Result<bool> {
        Ok(match &mut state.step {
            Step::Held(..) => !rank.is_held(&self.tags),
            Step::Records(records) => records.advance(rank, &self.tags)?,
            Step::Sizes(all_gather, _)
            | Step::Sums(all_gather, _)
            | Step::Verdicts(all_gather, _) => all_gather.advance(rank.world(), &self.tags)?,
            // If several operations are out of step, all ranks must report the first.
            Step::Details(all_gather) => {
                all_gather.advance(rank.world(), &self.tags)? && !rank.has_earlier(&self.tags)
            }
            Step::Sending(sending) => sending.is_told(&self.tags, state.records.as_ref()),
            Step::Moving(moving) => moving.is_there()?,
            Step::Done => true,
        })
    }

    /// Begins an operation that others held.
    fn begin(
        &self,
        rank: &Rank,
        state: &mut State,
        mut request: Request,
        wires: &Rc<WireCache>,
    ) -> Result<()> {
        let begun = Begun::new(rank, &self.tags, &mut request, wires)?;
        let dropped = state.dropped;
        *state = State::new(request, begun);
        state.dropped = dropped;
        Ok(())
    }

    /// Goes on to the elements if the records of all ranks agree, and to the details if they do not.
    fn compared(&self, rank: &Rank, state: &mut State, records: Records) -> Result<()> {
        let accord = records.accord(&self.tags);
        if state.status.is_err() || !accord.agrees {
            let details = self.details(state).to_bytes()?;
            let size = (details.len() as u64).to_le_bytes();
            let sizes = AllGather::new(rank.world(), &self.tags, Phase::Sizes, &size)?;
            state.step = Step::Sizes(sizes, details);
        } else if accord.summed {
            let sums = sums::tell(rank.world(), &self.tags, state.sums.as_ref())?;
            state.step = Step::Sums(sums, Some(records));
        } else {
            self.move_on(rank, state, records)?;
        }
        Ok(())
    }

    /// Tells all ranks this one's details, as long as the longest.
    fn tell_details(
        &self,
        rank: &Rank,
        state: &mut State,
        sizes: &AllGather,
        mut details: Vec<u8>,
    ) -> Result<()> {
        let size = |r| {
            let mut word = [0; 8];
            word.copy_from_slice(sizes.record(&self.tags, r));
            u64::from_le_bytes(word) as usize
        };
        details.resize((0..self.ranks()).map(size).max().unwrap_or(0), 0);
        let all = AllGather::new(rank.world(), &self.tags, Phase::Details, &details)?;
        state.step = Step::Details(all);
        Ok(())
    }

    /// Ends with the error that the details of all ranks come to.
    fn disagree(&self, rank: &Rank, state: &mut State, all: &AllGather) -> Result<()> {
        let all = (0..self.ranks())
            .map(|r| Details::from_bytes(all.record(&self.tags, r)))
            .collect::<Result<Vec<_>>>()?;
        state.statuses = all.iter().map(Details::status).collect();
        let mut error = disagreement(self.tags.sequence, &self.tags.members, &all);
        if error.class() == ErrorClass::Failure {
            rank.hear(error.clone());
            error = rank.failure().unwrap_or(error);
        }
        state.result = Some(Err(error));
        Ok(())
    }

    /// The processes that the operation waits for.
    pub(super) fn peers(&self) -> Vec<usize> {
        let state = self.state.borrow();
        match &state.step {
            Step::Records(records) => records.peers(),
            Step::Sending(sending) => sending.peers(&self.tags, state.records.as_ref()),
            Step::Sizes(all_gather, _)
            | Step::Details(all_gather)
            | Step::Sums(all_gather, _)
            | Step::Verdicts(all_gather, _) => all_gather.peers(),
            Step::Moving(moving) => moving.peers(),
            Step::Held(..) => {
                let board = self.tags.board.as_ref();
                board.map_or(Vec::new(), |board| board.behind(self.tags.sequence))
            }
            Step::Done => Vec::new(),
        }
    }

    fn ranks(&self) -> usize {
        self.tags.members.len()
    }

    fn details(&self, state: &State) -> Details {
        let mut details = Details::new(Own {
            op: self.called(),
            site: self.site.into(),
            turn: state.turn,
            status: state.status.as_ref().err().map(Box::as_ref),
            argument: state.argument,
            past: state.past.as_ref(),
            dtype: self.dtype,
        });
        let mut sources: Vec<usize> = state.sources.iter().map(Buffer::len).collect();
        if let Some(direct) = &state.direct {
            let plan = direct.plan();
            details.push(&plan, &Wire::new(&plan, self.tags.index), sources);
            details.follow(state.stages.iter().rev().map(|(_, wire)| wire.print));
            return details;
        }
        for (stage, wire) in state.stages.iter().rev() {
            details.push(&stage.plan, wire, sources.clone());
            let left = match &stage.target {
                Target::Write(dst) => dst.len(),
                Target::Keep(result) => result.len(),
                Target::Same => sources.first().copied().unwrap_or(0),
                Target::Nothing | Target::Elsewhere => 0,
            };
            sources = vec![left];
        }
        details
    }

    /// What the user called, for messages.
    pub(super) fn called(&self) -> &'static str {
        self.method.unwrap_or_else(|| self.name_of_call())
    }

    /// The name of the call, where it differs from that of the plan: a message has two ends.
    fn name_of_call(&self) -> &'static str {
        match (self.tags.is_link(), self.tags.index) {
            (true, 0) => "send",
            (true, _) => "recv",
            (false, _) => self.name,
        }
    }

    /// Runs or begins the first exchange.
    fn move_on(&self, rank: &Rank, state: &mut State, records: Records) -> Result<()> {
        let elsewhere = |(stage, _): &(Stage, _)| matches!(stage.target, Target::Elsewhere);
        if state.stages.last().is_some_and(elsewhere) {
            records.keep(rank);
            let sums = state
                .peer_sums
                .take()
                .map(|sums| sums::guards(&sums, &self.tags));
            let sums = sums.map(|g| Guard::tell(&g.iter().map(Some).collect::<Vec<_>>()));
            state.result = Some(Ok(sums.transpose()?.flatten()));
            return Ok(());
        }
        state.records = Some(records);
        self.begin_stage(rank, state)
    }

    /// Begins an exchange. Elements that came with the records, or lie in the memory of the node, need no message.
    fn begin_stage(&self, rank: &Rank, state: &mut State) -> Result<()> {
        let Some((stage, wire)) = state.stages.pop() else {
            state.result = Some(Ok(None));
            return Ok(());
        };
        let sources = std::mem::take(&mut state.sources);
        let number = state.begun;
        state.begun += 1;
        self.count(rank, &stage.plan);
        let gone = number == 0 && state.complete;
        let records = state.records.as_ref();
        let exchange = (stage, wire);
        let sending = Sending::new(rank, &self.tags, records, exchange, sources, (number, gone))?;
        state.step = Step::Sending(Box::new(sending));
        Ok(())
    }

    /// Reads what is here of an exchange, once all have told how their elements get here, and receives the rest.
    fn receive(&self, rank: &Rank, state: &mut State, sending: Sending) -> Result<()> {
        let (plan, summed) = (Arc::clone(sending.plan()), state.peer_sums.is_some());
        let then = sending.go_on(rank, &self.tags, state.records.as_ref(), summed)?;
        // Only in the memory of a node is there anything for later exchanges.
        if let Some(records) = state.records.take_if(|records| records.near().is_none()) {
            records.keep(rank);
        }
        match then {
            Then::Done(result) => self.end_stage(rank, state, result, &plan, &Found::new()),
            Then::Moving(moving) => {
                state.step = Step::Moving(moving);
                Ok(())
            }
        }
    }

    fn count(&self, rank: &Rank, plan: &ExchangePlan) {
        (rank.ledger()).moved(self.name_of_call(), plan, self.tags.index, self.moves);
    }

    /// Ends an exchange. With checksums, all ranks first tell each other whether they found what was sent.
    fn end_stage(
        &self,
        rank: &Rank,
        state: &mut State,
        result: Option<Buffer>,
        plan: &ExchangePlan,
        found: &Found,
    ) -> Result<()> {
        let Some(sums) = state.peer_sums.take() else {
            return self.next_stage(rank, state, result);
        };
        let wrong = sums::first_wrong(&sums, &self.tags, found).map(|peer| {
            let (me, sender) = (rank.world().rank(), self.tags.members[peer]);
            let (op, site) = (self.called(), SiteText::from(self.site));
            let text = format!(
                "rank {me} did not find in {op} ({}) at {site} what rank {sender} sent",
                plan.name
            );
            (peer, text)
        });
        let verdicts = sums::judge(rank.world(), &self.tags, wrong)?;
        state.step = Step::Verdicts(verdicts, result);
        state.judged = true;
        Ok(())
    }

    fn next_stage(&self, rank: &Rank, state: &mut State, result: Option<Buffer>) -> Result<()> {
        let Some((next, _)) = state.stages.last() else {
            state.result = Some(Ok(result));
            return Ok(());
        };
        let sources: SmallVec<[Buffer; 1]> = result.into_iter().collect();
        if state.judged {
            if state.sums.is_some() {
                state.sums = Some(Guard::sums_of(rank.device(), &next.plan, &sources)?);
            }
            state.sources = sources;
            let sums = sums::tell(rank.world(), &self.tags, state.sums.as_ref())?;
            state.step = Step::Sums(sums, None);
            return Ok(());
        }
        state.sources = sources;
        self.begin_stage(rank, state)
    }
}
