//! Running steps by rounds.

use super::pages::Pages;
use super::ranges::{Block, Cut, for_each_box};
use super::sizes::{Leg, Place, Schedule, Way, settles};
use crate::exchange::Exchange;
use crate::geometry::is_run;
use crate::handle::moving;
use crate::{Array, Fingerprint, MeshComm, Plan, RedistributeError, Result, Step};
use shard_comm::{
    AgreedError, Buffer, BufferMut, Communicator, DType, DeviceError, DeviceRef, ExchangePlan,
    Monoid, Piece, Request, Strided, Target,
};
use shard_spec::row_major_strides;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// Runs a plan's steps from `first` on, in the array's own memory where that saves some. `loose` tells whether slower ranks
/// may still be reading buffers of an earlier step.
#[track_caller]
pub(crate) fn move_into(plan: &Plan, first: usize, array: Array, mut loose: bool) -> Result<Array> {
    let (cx, dtype) = (array.cx().clone(), array.dtype());
    let Some(mut buffer) = array.into_buffer() else {
        return Array::laid(&cx, plan.to(), None, dtype);
    };
    let shares = plan.in_even_shares(first, dtype);
    let plan = shares.as_ref().unwrap_or(plan);
    let mover = Mover {
        cx: &cx,
        dtype,
        staging: plan.staging(),
        index: plan.index,
    };
    for (number, leg) in plan.legs().enumerate().skip(first) {
        let _span = moving(leg.step.layout());
        let way = leg.way(dtype, plan.staging(), Place::Own);
        if settles(way, leg.is_local(), loose) {
            mover.settle()?;
        } else if number > first {
            // Queued work still holds the buffers that the previous step reads.
            cx.device().synchronize()?;
        }
        buffer = mover.step(&leg, way, buffer, Place::Own)?;
        loose = way == Way::Whole && !leg.is_local();
    }
    Array::laid(&cx, plan.to(), Some(buffer), dtype)
}

/// What all steps of one run share.
pub(crate) struct Mover<'a> {
    pub(crate) cx: &'a Rc<MeshComm>,
    pub(crate) dtype: DType,
    pub(crate) staging: usize,
    /// This rank's position on the mesh.
    pub(crate) index: usize,
}

impl Mover<'_> {
    /// Runs one step.
    #[track_caller]
    pub(crate) fn step(
        &self,
        leg: &Leg<'_>,
        way: Way,
        buffer: Buffer,
        place: Place,
    ) -> Result<Buffer> {
        match (leg.step, way) {
            (_, Way::Keep) => Ok(buffer),
            (Step::Exchange(exchange, _), Way::Rounds(rounds)) => {
                let exchange = Rounds {
                    mover: self,
                    exchange,
                    schedule: Schedule::new(exchange, rounds, leg.shared(self.index)),
                };
                match place {
                    Place::Own => exchange.in_place(buffer),
                    Place::Fresh => exchange.beside(&buffer),
                }
            }
            (Step::Exchange(exchange, _), _) => {
                let result = exchange.run(self.cx, self.dtype, std::slice::from_ref(&buffer))?;
                drop(buffer);
                match place {
                    Place::Own if exchange.is_local() => self.detached(result),
                    _ => Ok(result),
                }
            }
            (Step::AllReduce(axes, op, _), way) => {
                let comm = self.cx.along(axes).ok_or(RedistributeError::NotMember {
                    op: "redistribute",
                    rank: self.cx.rank(),
                })?;
                match way {
                    Way::Slices(slice) => self.slices(comm, Monoid::Op(*op), slice, buffer, place),
                    _ => Ok(comm.all_reduce(&buffer, Monoid::Op(*op))?),
                }
            }
        }
    }

    fn device(&self) -> &DeviceRef {
        self.cx.device()
    }

    /// Waits until every rank has come this far, so that no rank still reads what this one posted before.
    #[track_caller]
    fn settle(&self) -> Result<()> {
        match self.cx.all() {
            Some(comm) => self.meet(comm, Ok(())),
            None => Ok(()),
        }
    }

    /// Waits until all ranks have read what they asked for, and tells every rank if one could not go on.
    #[track_caller]
    fn meet(&self, comm: &Rc<dyn Communicator>, trouble: Result<()>) -> Result<()> {
        let done = trouble.and_then(|()| Ok(self.device().synchronize()?));
        Ok(comm.agree(done.map_err(told))?)
    }

    /// Brings a result that is a view of a larger buffer to memory of its own.
    fn detached(&self, buffer: Buffer) -> Result<Buffer> {
        self.device().synchronize()?;
        Ok(match buffer.into_mut() {
            Ok(part) => {
                let len = part.len();
                self.device().resize(part, len)?.freeze()
            }
            Err(shared) => shared,
        })
    }

    /// The elements in a buffer of this length that only this rank holds: the buffer itself, resized, or a copy if somebody
    /// else holds it too.
    fn own(&self, buffer: Buffer, len: usize) -> Result<BufferMut> {
        // Queued work still holds the buffers that it reads.
        self.device().synchronize()?;
        match buffer.into_mut() {
            Ok(buffer) => Ok(self.device().resize(buffer, len)?),
            Err(shared) => self.copied(&shared, len),
        }
    }

    /// As many elements of a buffer as there are, in a new one of this length.
    fn copied(&self, buffer: &Buffer, len: usize) -> Result<BufferMut> {
        let mut copy = self.device().alloc(buffer.dtype(), len)?;
        let all = Strided::contiguous(&[buffer.len().min(len)]);
        self.device().copy(buffer, &all, &mut copy, &all)?;
        Ok(copy)
    }

    /// Writes to the elements of a buffer, in memory that only this rank holds: a copy, if somebody else holds the buffer too. Where
    /// there is no memory for one, the buffer is as it was.
    fn written(
        &self,
        buffer: Buffer,
        write: impl FnOnce(&mut BufferMut) -> Result<()>,
    ) -> (Buffer, Result<()>) {
        // Queued work still holds the buffers that it reads.
        if let Err(error) = self.device().synchronize() {
            return (buffer, Err(error.into()));
        }
        let own = match buffer.into_mut() {
            Ok(own) => Ok(own),
            Err(shared) => match self.copied(&shared, shared.len()) {
                Ok(own) => Ok(own),
                Err(error) => Err((shared, error)),
            },
        };
        match own {
            Ok(mut own) => {
                let written = write(&mut own);
                (own.freeze(), written)
            }
            Err((shared, error)) => (shared, Err(error)),
        }
    }

    /// Combines the ranks' buffers slice by slice.
    ///
    /// A rank that cannot go on joins the next sum, so that all ranks hear of it behind that one. Memory is taken before the first:
    /// after it nothing more is needed than a slice.
    #[track_caller]
    fn slices(
        &self,
        comm: &Rc<dyn Communicator>,
        op: Monoid,
        slice: usize,
        source: Buffer,
        place: Place,
    ) -> Result<Buffer> {
        let (len, device) = (source.len(), self.device());
        let (mut source, mut trouble) = match place {
            Place::Own => self.written(source, |_| Ok(())),
            Place::Fresh => (source, Ok(())),
        };
        let mut fresh = match place {
            Place::Own => None,
            Place::Fresh => match device.alloc(self.dtype, len) {
                Ok(buffer) => Some(buffer),
                Err(error) => {
                    trouble = Err(error.into());
                    None
                }
            },
        };
        for start in (0..len).step_by(slice) {
            let part = source.slice(start..len.min(start + slice));
            let combined = comm.all_reduce(&part, op)?;
            drop(part);
            let all = Strided::contiguous(&[combined.len()]);
            let there = Strided::contiguous_at(start, &[combined.len()]);
            let write = |to: &mut BufferMut| Ok(device.copy(&combined, &all, to, &there)?);
            if place == Place::Own {
                self.meet(comm, std::mem::replace(&mut trouble, Ok(())))?;
                (source, trouble) = self.written(source, write);
            } else if let Some(fresh) = &mut fresh {
                trouble = trouble.and_then(|()| write(fresh));
            }
            // Only one slice at a time: queued work still holds the last one's result.
            trouble = trouble.and_then(|()| Ok(device.synchronize()?));
        }
        let result = trouble.and_then(|()| match (place, fresh) {
            (Place::Own, _) => self.detached(source),
            (Place::Fresh, Some(fresh)) => Ok(fresh.freeze()),
            (Place::Fresh, None) => Err(lost()),
        });
        let (result, trouble) = match result {
            Ok(result) => (Some(result), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.meet(comm, trouble)?;
        result.ok_or_else(lost)
    }
}

/// What this rank tells the others of an error.
fn told(error: RedistributeError) -> AgreedError {
    match error {
        RedistributeError::Comm(error) => AgreedError::from_local("redistribute", error),
        other => AgreedError::new(
            "redistribute",
            "a move within this rank's memory",
            other.to_string(),
            "see the rank's own error",
        ),
    }
}

/// An exchange by rounds.
struct Rounds<'a> {
    mover: &'a Mover<'a>,
    exchange: &'a Exchange,
    schedule: Schedule,
}

impl Rounds<'_> {
    /// The communicator of the ranks to meet, `None` if no rank communicates.
    fn comm(&self) -> Result<Option<&Rc<dyn Communicator>>> {
        if self.exchange.is_local() {
            return Ok(None);
        }
        match self.mover.cx.all() {
            Some(comm) => Ok(Some(comm)),
            None => Err(RedistributeError::NotMember {
                op: "redistribute",
                rank: self.mover.cx.rank(),
            }),
        }
    }

    /// Runs the rounds into a new buffer. The stage then only bounds what is summed in a wider type.
    #[track_caller]
    fn beside(self, source: &Buffer) -> Result<Buffer> {
        let (device, comm) = (self.mover.device(), self.comm()?);
        let mut trouble = Ok(());
        let mut target = None;
        match device.alloc(self.mover.dtype, self.exchange.len) {
            Ok(mut buffer) => {
                if let Some(fill) = self.exchange.fill {
                    let all = Strided::contiguous(&[buffer.len()]);
                    trouble = device.fill(&mut buffer, &all, fill).map_err(Into::into);
                }
                target = Some(buffer);
            }
            Err(error) => trouble = Err(error.into()),
        }
        for round in 0..self.schedule.rounds {
            let staged = self.round(round, source, trouble)?;
            trouble = match &mut target {
                Some(target) => self.scatter(round, &staged, target, None),
                None => Ok(()),
            };
            // Only one stage at a time: queued work still holds the last one.
            trouble = trouble.and_then(|()| Ok(device.synchronize()?));
        }
        match comm {
            Some(comm) => self.mover.meet(comm, trouble)?,
            None => trouble?,
        }
        target.map(BufferMut::freeze).ok_or_else(lost)
    }

    /// Runs the rounds into the source's own buffer.
    #[track_caller]
    fn in_place(self, source: Buffer) -> Result<Buffer> {
        let (mover, comm) = (self.mover, self.comm()?);
        let (device, len) = (mover.device(), self.exchange.len);
        let times = self
            .schedule
            .timetable(source.len(), len, mover.dtype.size(), mover.staging);
        let mut pages = Pages::new(&times);
        let mut held = mover.own(source, times.elements()).map(BufferMut::freeze);
        for round in 0..self.schedule.rounds {
            // A rank that cannot go on still joins, so that all ranks fail alike.
            let (buffer, trouble) = match held {
                Ok(buffer) => (buffer, Ok(())),
                Err(error) => (device.alloc(mover.dtype, 0)?.freeze(), Err(error)),
            };
            let staged = self.round(round, &buffer, trouble)?;
            match comm {
                Some(comm) => mover.meet(comm, Ok(()))?,
                None => device.synchronize()?,
            }
            pages.finish(round);
            held = mover.own(buffer, times.elements()).and_then(|mut own| {
                self.scatter(round, &staged, &mut own, Some(&mut pages))?;
                // Only one stage at a time: queued work still holds the last one.
                device.synchronize()?;
                Ok(own.freeze())
            });
        }
        let done = held.and_then(|buffer| {
            let mut own = mover.own(buffer, times.elements())?;
            for page in pages.missing() {
                self.take(&mut pages, page, &mut own)?;
            }
            pages.order(device, &mut own)?;
            Ok(device.resize(own, len)?.freeze())
        });
        let (buffer, trouble) = match done {
            Ok(buffer) => (Some(buffer), Ok(())),
            Err(error) => (None, Err(error)),
        };
        match comm {
            Some(comm) => mover.meet(comm, trouble)?,
            None => trouble?,
        }
        buffer.ok_or_else(lost)
    }

    /// Brings a round's elements to a stage of its own.
    #[track_caller]
    fn round(&self, round: usize, source: &Buffer, trouble: Result<()>) -> Result<Buffer> {
        let (mover, len) = (self.mover, self.schedule.len(round));
        let plan = self.plan(round);
        let stage = trouble.and_then(|()| Ok(mover.device().alloc(mover.dtype, len)?));
        let Some(comm) = self.comm()? else {
            let mut stage = stage?;
            for piece in plan.recv.iter() {
                let (from, to) = (piece.src_view(), piece.dst_view());
                mover.device().copy(source, &from, &mut stage, &to)?;
            }
            return Ok(stage.freeze());
        };
        let (stage, status) = match stage {
            Ok(stage) => (stage, Ok(())),
            Err(error) => (mover.device().alloc(mover.dtype, 0)?, Err(told(error))),
        };
        let request = Request::exchange(
            Arc::new(plan),
            std::slice::from_ref(source),
            Target::Write(stage),
            Location::caller(),
        );
        let handle = comm.post(Request {
            status: status.map_err(Box::new),
            ..request
        })?;
        Ok(handle.wait()?)
    }

    /// The exchange of one round: the same ranges of the same pieces on both sides, to a stage without gaps.
    fn plan(&self, round: usize) -> ExchangePlan {
        let (whole, rounds) = (self.exchange.plan(), self.schedule.rounds);
        let stage: Vec<(usize, usize)> = (self.schedule.staged(round))
            .map(|(block, _, at)| (block.offset, at))
            .collect();
        let base = |offset: usize| {
            let at = stage.partition_point(|&(o, _)| o < offset);
            stage.get(at).map_or(0, |&(_, at)| at)
        };
        let (mut recv, mut send) = (Vec::new(), Vec::new());
        for piece in &self.schedule.pieces.recv {
            let block = Block::new(piece.src_offset, &piece.shape, &piece.src_strides);
            ranges_of(
                piece.peer,
                &block,
                rounds,
                round,
                base(piece.dst_offset),
                &mut recv,
            );
        }
        for piece in &self.schedule.pieces.send {
            let block = Block::new(piece.src_offset, &piece.shape, &piece.src_strides);
            ranges_of(piece.peer, &block, rounds, round, 0, &mut send);
        }
        let id = Fingerprint::new("round")
            .with(&whole.id)
            .with(&(round, rounds))
            .finish();
        // The pieces of a round leave no gaps on the stage. A fold begins with the same fill as the whole exchange.
        let fill = whole.fold.and(whole.fill);
        ExchangePlan::new(
            whole.name,
            id,
            recv.into_iter().collect(),
            send.into_iter().collect(),
            whole.fold,
            fill,
        )
    }

    /// Takes staged elements to their places: in the destination itself, or in its pages.
    fn scatter(
        &self,
        round: usize,
        staged: &Buffer,
        target: &mut BufferMut,
        mut pages: Option<&mut Pages>,
    ) -> Result<()> {
        let page = pages.as_ref().map_or(usize::MAX, |p| p.size());
        for (block, range, base) in self.schedule.staged(round) {
            let mut next = range.start;
            while next < range.end {
                let wanted = block.at(next) / page;
                let end = match wanted.checked_add(1).and_then(|w| w.checked_mul(page)) {
                    Some(end) => block.count_below(end).min(range.end),
                    None => range.end,
                };
                let at = match &mut pages {
                    Some(pages) => self.take(pages, wanted, target)?,
                    None => 0,
                };
                for_each_box(next..end, &block.shape, |part| {
                    let from = Strided::contiguous_at(base + part.first - range.start, part.shape);
                    let place = block.place(part.index) - wanted * page;
                    let to =
                        Strided::new(at * page + place, part.shape.into(), block.strides.clone());
                    self.mover.device().copy(staged, &from, target, &to)
                })?;
                next = end;
            }
        }
        Ok(())
    }

    /// The place of a page of the destination. A page that has just been put there is filled if the exchange fills.
    fn take(&self, pages: &mut Pages, wanted: usize, target: &mut BufferMut) -> Result<usize> {
        let (at, fresh) = pages.place(wanted).ok_or_else(lost)?;
        if let (true, Some(fill)) = (fresh, self.exchange.fill) {
            let page = Strided::contiguous_at(at * pages.size(), &[pages.size()]);
            self.mover.device().fill(target, &page, fill)?;
        }
        Ok(at)
    }
}

/// Adds the boxes of one round of a piece.
fn ranges_of(
    peer: usize,
    block: &Block,
    rounds: usize,
    round: usize,
    base: usize,
    out: &mut Vec<Piece>,
) {
    let range = Cut::new(&block.shape, rounds).range(round);
    let Ok(()) = for_each_box(range.clone(), &block.shape, |part| {
        let from = block.place(part.index);
        let to = base + part.first - range.start;
        out.push(if is_run(part.shape, &block.strides) {
            Piece::run(peer, 0, part.shape.iter().product(), from, to)
        } else {
            Piece {
                peer,
                source: 0,
                shape: part.shape.into(),
                src_offset: from,
                src_strides: block.strides.clone(),
                dst_offset: to,
                dst_strides: row_major_strides(part.shape),
            }
        });
        Ok::<(), std::convert::Infallible>(())
    });
}

/// A page that the schedule promised was not free. This is reported, since it would be a mistake of this crate.
fn lost() -> RedistributeError {
    DeviceError::Queued {
        device: "redistribute".to_owned(),
        cause: "a page of the destination has no room in its schedule".into(),
    }
    .into()
}
