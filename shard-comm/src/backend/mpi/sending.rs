//! The first half of an exchange: this rank lays its elements into the memory of the node, or sends them, and reads there what others have
//! laid. Messages bring the rest.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::moving::{Moving, Start, send};
use super::node::{Gathered, Whereabouts};
use super::progress::Rank;
use super::raw::Mail;
use super::records::Records;
use super::short;
use super::tags::{Phase, Tags};
use super::wire::Wire;
use crate::{Buffer, ExchangePlan, Result, Stage, Target};

/// An exchange for which this rank has laid or sent its elements.
#[derive(Debug)]
pub(super) struct Sending {
    stage: Stage,
    wire: Rc<Wire>,
    sources: SmallVec<[Buffer; 1]>,
    /// The number of the exchange in its operation.
    number: usize,
    /// The messages that this rank sends.
    out: Mail,
}

/// What becomes of an exchange when all have told how their elements get here.
pub(super) enum Then {
    /// It is done.
    Done(Option<Buffer>),
    /// Elements are to be received, or more is to be done with them.
    Moving(Box<Moving>),
}

impl Sending {
    /// Begins the exchange of this number. `gone` says whether all that others read of this rank got to them with its record.
    pub(super) fn new(
        rank: &Rank,
        tags: &Tags,
        records: Option<&Records>,
        (stage, wire): (Stage, Rc<Wire>),
        sources: SmallVec<[Buffer; 1]>,
        (number, gone): (usize, bool),
    ) -> Result<Self> {
        let mut out = Mail::default();
        let silent = wire.outgoing.iter().all(|m| m.peer == tags.index);
        if !gone && !silent {
            let told = number > 0 && lay(tags, records, &stage.plan, &wire, &sources, number)?;
            if !told {
                let phase = Phase::Stage(number);
                out = send(rank, tags, phase, &sources, &stage.plan, &wire)?;
            }
        }
        Ok(Self {
            stage,
            wire,
            sources,
            number,
            out,
        })
    }

    /// The plan of the exchange.
    pub(super) fn plan(&self) -> &Arc<ExchangePlan> {
        &self.stage.plan
    }

    /// Whether all have told how the elements that this rank reads get here.
    pub(super) fn is_told(&self, tags: &Tags, records: Option<&Records>) -> bool {
        self.missing(tags, records).next().is_none()
    }

    /// The processes that have not told.
    pub(super) fn peers(&self, tags: &Tags, records: Option<&Records>) -> Vec<usize> {
        let missing = self.missing(tags, records);
        missing.map(|peer| tags.members[peer]).collect()
    }

    fn missing(&self, tags: &Tags, records: Option<&Records>) -> impl Iterator<Item = usize> {
        let peers = self.wire.incoming.iter().map(|message| message.peer);
        peers.filter(move |&peer| {
            let near = records.and_then(Records::near);
            let told = near.map(|near: &Gathered| near.told(peer, self.number));
            peer != tags.index && told == Some(Whereabouts::Nothing)
        })
    }

    /// Reads what is here, once all have told. If `summed`, the checksums of what comes are wanted too.
    pub(super) fn go_on(
        mut self,
        rank: &Rank,
        tags: &Tags,
        records: Option<&Records>,
        summed: bool,
    ) -> Result<Then> {
        let brought = |peer| match records {
            Some(records) => records.brought(tags, self.number, peer),
            None => Ok(None),
        };
        if let Target::Write(dst) = &mut self.stage.target
            && rank.is_plain()
            && !summed
            && short::run(
                &self.stage.plan,
                &self.wire,
                brought,
                tags.index,
                &self.sources,
                dst,
            )?
        {
            let result = match self.stage.target {
                Target::Write(dst) => Some(dst.freeze()),
                _ => None,
            };
            rank.see_off(self.out)?;
            return Ok(Then::Done(result));
        }
        let mut inlined = Vec::new();
        if let (Target::Write(dst), Some(_)) = (&self.stage.target, records) {
            inlined.resize(tags.members.len(), None);
            for message in self.wire.incoming.iter().filter(|m| m.peer != tags.index) {
                if let Some(part) = brought(message.peer)? {
                    inlined[message.peer] = Some(part.to_buffer(rank.device(), dst.dtype())?);
                }
            }
        }
        let start = Start {
            rank,
            tags,
            phase: Phase::Stage(self.number),
            own: &self.sources,
            inlined,
            out: Some(self.out),
        };
        let moving = Moving::new(start, self.stage, self.wire)?;
        Ok(Then::Moving(Box::new(moving)))
    }
}

/// Tells the others where this rank has laid its elements for an exchange, or that it sends messages; returns whether they are laid.
fn lay(
    tags: &Tags,
    records: Option<&Records>,
    plan: &ExchangePlan,
    wire: &Wire,
    sources: &[Buffer],
    number: usize,
) -> Result<bool> {
    let Some(near) = records.and_then(Records::near) else {
        return Ok(false);
    };
    let mut laid = None;
    if let ([source], Some(board)) = (sources, &tags.board)
        && let Some(range) = wire.lies(plan, tags.index, source, board.most())
    {
        let bytes = &source.as_bytes()?[range.clone()];
        laid = near.lay(number, range.start, bytes);
    }
    near.tell(number, laid);
    Ok(laid.is_some())
}
