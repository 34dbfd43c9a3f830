//! One operation on its way: what every rank says of it, then its exchanges.

use std::cell::RefCell;
use std::rc::Rc;

use smallvec::{SmallVec, smallvec};

use super::details::{Details, Own, disagreement};
use super::gossip::Gossip;
use super::mix::Mix;
use super::moving::Moving;
use super::progress::Rank;
use super::raw::failure;
use super::tags::{Phase, STAGES, Tags};
use super::wire::{Wire, WireCache};
use crate::communicator::{Request, Stage, Target};
use crate::{AgreedError, Buffer, DType, ErrorClass, Result, Site};

/// Sources of up to so many bytes travel with the fingerprints, and need no message of their own.
pub(super) const INLINE: usize = 32;

/// Two fingerprints of two words, how many bytes travel along, and those.
const RECORD: usize = 40 + INLINE;

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) name: &'static str,
    pub(super) site: Site,
    pub(super) tags: Tags,
    dtype: Option<DType>,
    pub(super) state: RefCell<State>,
}

#[derive(Debug)]
pub(super) struct State {
    step: Step,
    /// The exchanges to come, last first, and how many there were.
    stages: SmallVec<[(Stage, Rc<Wire>); 1]>,
    begun: usize,
    /// What the next exchange reads.
    sources: SmallVec<[Buffer; 1]>,
    turn: Option<u64>,
    status: Result<(), AgreedError>,
    argument: Option<(&'static str, u128)>,
    /// Every rank's error, if they had to be told.
    pub(super) statuses: Vec<Option<AgreedError>>,
    pub(super) result: Option<Result<Option<Buffer>>>,
    pub(super) dropped: bool,
}

#[derive(Debug)]
enum Step {
    Records(Gossip),
    Sizes(Gossip, Vec<u8>),
    Details(Gossip),
    Moving(Box<Moving>),
    Done,
}

impl Op {
    /// Starts an operation: this rank says what its part is.
    pub(super) fn new(
        rank: &Rank,
        tags: Tags,
        request: Request,
        wires: &WireCache,
    ) -> Result<Self> {
        let name = request.name();
        let Request {
            stages,
            sources,
            status,
            argument,
            dtype,
            site,
            guard,
        } = request;
        let status = match stages.len() {
            0..=STAGES => status,
            many => Err(AgreedError::new(
                name,
                format!("at most {STAGES} exchanges"),
                many.to_string(),
                "make several operations of it",
            )),
        };
        let size = dtype.map_or(1, DType::size);
        let wire = |stage: Stage| {
            let wire = wires.get(&stage.plan, size, tags.index);
            (stage, wire)
        };
        let mut stages: SmallVec<[(Stage, Rc<Wire>); 1]> = stages.into_iter().map(wire).collect();
        let mut print = Mix::new();
        print.word(tags.sequence);
        print.word(guard.turn.map_or(0, |turn| turn.wrapping_add(1)));
        print.text(argument.map_or("", |a| a.0));
        print.wide(argument.map_or(0, |a| a.1));
        print.word(dtype.map_or(0, |t| t as u64 + 1));
        let mut balance = [0_u64; 2];
        for (at, (_, wire)) in stages.iter().enumerate() {
            print.print(wire.print);
            // Exchanges are weighed differently, so that one cannot make up for another.
            for (sum, part) in balance.iter_mut().zip(wire.balance) {
                *sum = sum.wrapping_add(part.wrapping_mul(2 * at as u64 + 1));
            }
        }
        if status.is_err() {
            // Unlike anybody's, so that all tell the details.
            print.word(!(tags.index as u64));
            print.text("error");
        }
        let mut record = [0; RECORD];
        let words = print.done().into_iter().chain(balance);
        for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        if status.is_ok()
            && let [source] = &sources[..]
            && source.bytes() <= INLINE
        {
            record[32] = 1 + source.bytes() as u8;
            record[40..40 + source.bytes()].copy_from_slice(source.as_bytes()?);
        }
        let gossip = Gossip::new(rank.world(), &tags, Phase::Records, &record)?;
        stages.reverse();
        let state = State {
            step: Step::Records(gossip),
            stages,
            begun: 0,
            sources,
            turn: guard.turn,
            status,
            argument,
            statuses: Vec::new(),
            result: None,
            dropped: false,
        };
        Ok(Self {
            name,
            site,
            tags,
            dtype,
            state: RefCell::new(state),
        })
    }

    /// Goes on as far as it goes without waiting. An error here is a failure of this rank.
    pub(super) fn advance(&self, rank: &Rank) -> Result<()> {
        let mut state = self.state.borrow_mut();
        while state.result.is_none() {
            let ready = match &mut state.step {
                Step::Records(gossip) | Step::Sizes(gossip, _) | Step::Details(gossip) => {
                    gossip.advance(rank.world(), &self.tags)?
                }
                Step::Moving(moving) => moving.is_there()?,
                Step::Done => true,
            };
            if !ready {
                return Ok(());
            }
            match std::mem::replace(&mut state.step, Step::Done) {
                Step::Records(records) => {
                    if state.status.is_ok() && self.agree(&records) {
                        self.begin_stage(rank, &mut state, Some(&records))?;
                    } else {
                        let details = self.details(&state).to_bytes()?;
                        let size = (details.len() as u64).to_le_bytes();
                        let sizes = Gossip::new(rank.world(), &self.tags, Phase::Sizes, &size)?;
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
                    let all = Gossip::new(rank.world(), &self.tags, Phase::Details, &details)?;
                    state.step = Step::Details(all);
                }
                Step::Details(all) => {
                    let all = (0..self.ranks())
                        .map(|r| Details::from_bytes(all.record(&self.tags, r)))
                        .collect::<Result<Vec<_>>>()?;
                    state.statuses = all.iter().map(Details::status).collect();
                    let error = disagreement(self.tags.sequence, &self.tags.members, &all);
                    if error.class() == ErrorClass::Failure {
                        rank.hear(error.clone());
                    }
                    state.result = Some(Err(error));
                }
                Step::Moving(moving) => {
                    let (result, leaving) = moving.finish(rank.device())?;
                    rank.see_off(leaving)?;
                    self.end_stage(rank, &mut state, result)?;
                }
                Step::Done => state.result = Some(Ok(None)),
            }
        }
        Ok(())
    }

    /// The processes it waits for.
    pub(super) fn peers(&self) -> Vec<usize> {
        match &self.state.borrow().step {
            Step::Records(gossip) | Step::Sizes(gossip, _) | Step::Details(gossip) => {
                gossip.peers()
            }
            Step::Moving(moving) => moving.peers(),
            Step::Done => Vec::new(),
        }
    }

    fn ranks(&self) -> usize {
        self.tags.members.len()
    }

    /// Whether all fingerprints are equal and all pairs balanced.
    fn agree(&self, records: &Gossip) -> bool {
        let first = records.record(&self.tags, 0);
        let mut sums = [0_u64; 2];
        for r in 0..self.ranks() {
            let record = records.record(&self.tags, r);
            if record.len() != RECORD || record[..16] != first[..16] {
                return false;
            }
            for (sum, bytes) in sums.iter_mut().zip(record[16..32].chunks_exact(8)) {
                let mut word = [0; 8];
                word.copy_from_slice(bytes);
                *sum = sum.wrapping_add(u64::from_le_bytes(word));
            }
        }
        sums == [0; 2]
    }

    fn details(&self, state: &State) -> Details {
        let mut details = Details::new(Own {
            op: self.name_of_call(),
            site: self.site.into(),
            turn: state.turn,
            status: state.status.as_ref().err(),
            argument: state.argument,
            dtype: self.dtype,
        });
        let mut sources: Vec<usize> = state.sources.iter().map(Buffer::len).collect();
        for (stage, wire) in state.stages.iter().rev() {
            details.push(&stage.plan, wire, std::mem::take(&mut sources));
            sources = vec![match &stage.target {
                Target::Write(dst) => dst.len(),
                Target::Keep(result) => result.len(),
                Target::Nothing => 0,
            }];
        }
        details
    }

    /// The call, where it differs from the plan: a message has two ends.
    fn name_of_call(&self) -> &'static str {
        match (self.tags.is_link(), self.tags.index) {
            (true, 0) => "send",
            (true, _) => "recv",
            (false, _) => self.name,
        }
    }

    /// Posts an exchange. What came with the `records` needs no message.
    fn begin_stage(&self, rank: &Rank, state: &mut State, records: Option<&Gossip>) -> Result<()> {
        let Some((stage, wire)) = state.stages.pop() else {
            state.result = Some(Ok(None));
            return Ok(());
        };
        let mut inlined: Vec<Option<Buffer>> = Vec::new();
        if let (Some(records), Some(dtype)) = (records, self.dtype) {
            for r in 0..self.ranks() {
                inlined.push(self.inlined(rank, records.record(&self.tags, r), r, &wire, dtype)?);
            }
        }
        let silent = records.is_some_and(|r| r.record(&self.tags, self.tags.index)[32] > 0);
        let sources = std::mem::take(&mut state.sources);
        let moved = stage.plan.moved(self.tags.index, self.dtype);
        let at = Phase::Stage(state.begun);
        state.begun += 1;
        let moving = Moving::new(rank, &self.tags, at, stage, wire, &sources, inlined, silent)?;
        tracing::trace!(
            target: "shard_comm",
            op = self.name,
            messages = moved.messages,
            bytes = moved.bytes,
            "exchanging"
        );
        rank.ledger().moved(self.name_of_call(), &moved);
        state.step = Step::Moving(Box::new(moving));
        Ok(())
    }

    /// The source of participant `r`, if it came with its record and is read here.
    fn inlined(
        &self,
        rank: &Rank,
        record: &[u8],
        r: usize,
        wire: &Wire,
        dtype: DType,
    ) -> Result<Option<Buffer>> {
        if r == self.tags.index || record[32] == 0 || wire.from(r).is_none() {
            return Ok(None);
        }
        let bytes = usize::from(record[32]) - 1;
        let source = record.get(40..40 + bytes);
        let source = source.ok_or_else(|| failure("record", "a length beyond its end"))?;
        rank.device().upload(dtype, source).map(Some)
    }

    fn end_stage(&self, rank: &Rank, state: &mut State, result: Option<Buffer>) -> Result<()> {
        if state.stages.is_empty() {
            state.result = Some(Ok(result));
            return Ok(());
        }
        state.sources = result.map_or_else(SmallVec::new, |result| smallvec![result]);
        self.begin_stage(rank, state, None)
    }
}
