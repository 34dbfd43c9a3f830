//! One operation on its way: first the records of every rank, then its exchanges.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::all_gather::AllGather;
use super::details::{Details, Own, disagreement};
use super::moving::{Moving, Start};
use super::progress::Rank;
use super::record::Carriage;
use super::records::Records;
use super::short::Begun;
use super::sums::{self, Found};
use super::tags::{Phase, Tags};
use super::wire::{Wire, WireCache};
use crate::guard::{Guard, PeerSum, sum_of};
use crate::run;
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
        let mut state = self.state.borrow_mut();
        while state.result.is_none() {
            let ready = match &mut state.step {
                Step::Held(..) => !rank.is_held(&self.tags),
                Step::Records(records) => records.advance(rank, &self.tags)?,
                Step::Sizes(all_gather, _)
                | Step::Details(all_gather)
                | Step::Sums(all_gather, _)
                | Step::Verdicts(all_gather, _) => all_gather.advance(rank.world(), &self.tags)?,
                Step::Moving(moving) => moving.is_there()?,
                Step::Done => true,
            };
            if !ready {
                return Ok(());
            }
            match std::mem::replace(&mut state.step, Step::Done) {
                Step::Held(mut request, wires) => {
                    let begun = Begun::new(rank, &self.tags, &mut request, &wires)?;
                    let dropped = state.dropped;
                    *state = State::new(*request, begun);
                    state.dropped = dropped;
                }
                Step::Records(records) => {
                    if state.status.is_ok() && records.agree(&self.tags) {
                        if records.any_sums(&self.tags) {
                            let sums = sums::tell(rank.world(), &self.tags, state.sums.as_ref())?;
                            state.step = Step::Sums(sums, Some(records));
                        } else {
                            self.move_on(rank, &mut state, records)?;
                        }
                    } else {
                        let details = self.details(&state).to_bytes()?;
                        let size = (details.len() as u64).to_le_bytes();
                        let sizes = AllGather::new(rank.world(), &self.tags, Phase::Sizes, &size)?;
                        state.step = Step::Sizes(sizes, details);
                    }
                }
                Step::Sizes(sizes, mut details) => {
                    let size = |r| {
                        let mut word = [0; 8];
                        word.copy_from_slice(sizes.record(&self.tags, r));
                        u64::from_le_bytes(word) as usize
                    };
                    details.resize((0..self.ranks()).map(size).max().unwrap_or(0), 0);
                    let all = AllGather::new(rank.world(), &self.tags, Phase::Details, &details)?;
                    state.step = Step::Details(all);
                }
                Step::Details(all) => {
                    // If several operations are out of step, all ranks must report the first.
                    if rank.has_earlier(&self.tags) {
                        state.step = Step::Details(all);
                        return Ok(());
                    }
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
                }
                Step::Sums(peer_sums, records) => {
                    state.peer_sums = Some(peer_sums);
                    match records {
                        Some(records) => self.move_on(rank, &mut state, records)?,
                        None => self.begin_stage(rank, &mut state, None)?,
                    }
                }
                Step::Moving(moving) => {
                    let plan = Arc::clone(moving.plan());
                    let (result, leaving, found) =
                        moving.finish(rank.device(), state.peer_sums.is_some())?;
                    rank.see_off(leaving)?;
                    self.end_stage(rank, &mut state, result, &plan, &found)?;
                }
                Step::Verdicts(all, result) => match sums::verdict(&all, &self.tags) {
                    Some(error) => {
                        rank.fail_all(error.clone());
                        state.result = Some(Err(error));
                    }
                    None => self.next_stage(rank, &mut state, result)?,
                },
                Step::Done => state.result = Some(Ok(None)),
            }
        }
        Ok(())
    }

    /// The processes that the operation waits for.
    pub(super) fn peers(&self) -> Vec<usize> {
        match &self.state.borrow().step {
            Step::Records(records) => records.peers(),
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
        if !self.finish_at_once(rank, state, &records)? {
            self.begin_stage(rank, state, Some(&records))?;
        }
        records.keep(rank);
        Ok(())
    }

    /// Finishes the first exchange if all that this rank reads has come with the `records`, and all that others read has
    /// been sent: small exchanges need nothing more.
    fn finish_at_once(&self, rank: &Rank, state: &mut State, records: &Records) -> Result<bool> {
        let me = self.tags.index;
        let Some((_, wire)) = state.stages.last() else {
            return Ok(false);
        };
        let gone = state.complete || wire.outgoing.iter().all(|message| message.peer == me);
        if !gone {
            return Ok(false);
        }
        for message in wire.incoming.iter().filter(|message| message.peer != me) {
            if records.carried(&self.tags, message.peer)?.is_none() {
                return Ok(false);
            }
        }
        let Some((stage, wire)) = state.stages.pop() else {
            return Ok(false);
        };
        let own = std::mem::take(&mut state.sources);
        let mut found = Found::new();
        let result = match stage.target {
            Target::Nothing | Target::Elsewhere => None,
            Target::Keep(result) => Some(result),
            Target::Same => own.first().cloned(),
            Target::Write(mut dst) => {
                // All elements that came are put in one buffer, of which each participant's source is a part.
                let (device, dtype) = (rank.device(), dst.dtype());
                let others = || {
                    wire.incoming
                        .iter()
                        .map(|message| message.peer)
                        .filter(|&r| r != me)
                };
                let mut bytes: SmallVec<[u8; 256]> = SmallVec::new();
                let mut ends: SmallVec<[usize; 8]> = SmallVec::new();
                for peer in others() {
                    let brought = records.carried(&self.tags, peer)?.unwrap_or(&[]);
                    bytes.extend_from_slice(brought);
                    ends.push(bytes.len() / dtype.size());
                }
                let all = device.upload(dtype, &bytes)?;
                let mut sources: SmallVec<[Buffer; 8]> = SmallVec::new();
                let mut start = 0;
                for (peer, end) in others().zip(ends) {
                    sources.resize(peer, all.slice(0..0));
                    sources.push(all.try_slice(start..end)?);
                    start = end;
                }
                let source = |peer: usize, k: usize| match own.get(k) {
                    Some(own) if peer == me => own,
                    _ => sources.get(peer).unwrap_or(&all),
                };
                if state.peer_sums.is_some() {
                    for piece in stage.plan.recv.iter() {
                        let source = source(piece.peer, piece.source);
                        sums::add(&mut found, piece.peer, sum_of(device, piece, source)?);
                    }
                }
                run::run(device, &stage.plan, source, &mut dst)?;
                Some(dst.freeze())
            }
        };
        state.begun += 1;
        self.count(rank, &stage.plan);
        self.end_stage(rank, state, result, &stage.plan, &found)?;
        Ok(true)
    }

    /// Posts an exchange. Elements that came with the `records` need no message.
    fn begin_stage(&self, rank: &Rank, state: &mut State, records: Option<&Records>) -> Result<()> {
        let Some((stage, wire)) = state.stages.pop() else {
            state.result = Some(Ok(None));
            return Ok(());
        };
        let mut inlined: Vec<Option<Buffer>> = Vec::new();
        if let (Some(records), Some(dtype)) = (records, self.moves)
            && Records::carriage(&self.tags) != Carriage::None
        {
            for r in 0..self.ranks() {
                let brought = records.carried(&self.tags, r)?;
                inlined.push(self.inlined(rank, brought, r, &wire, dtype)?);
            }
        }
        let silent = records.is_some() && state.complete;
        let sources = std::mem::take(&mut state.sources);
        let start = Start {
            rank,
            tags: &self.tags,
            phase: Phase::Stage(state.begun),
            own: &sources,
            inlined,
            silent,
        };
        state.begun += 1;
        self.count(rank, &stage.plan);
        let moving = Moving::new(start, stage, wire)?;
        state.step = Step::Moving(Box::new(moving));
        Ok(())
    }

    fn count(&self, rank: &Rank, plan: &ExchangePlan) {
        (rank.ledger()).moved(self.name_of_call(), plan, self.tags.index, self.moves);
    }

    /// The source of participant `r`, if it came with its record and is read here.
    fn inlined(
        &self,
        rank: &Rank,
        brought: Option<&[u8]>,
        r: usize,
        wire: &Wire,
        dtype: DType,
    ) -> Result<Option<Buffer>> {
        match brought {
            Some(bytes) if r != self.tags.index && wire.from(r).is_some() => {
                Ok(Some(rank.device().upload(dtype, bytes)?))
            }
            _ => Ok(None),
        }
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
        self.begin_stage(rank, state, None)
    }
}
