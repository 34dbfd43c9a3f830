//! Runs that are merged: every rank finds where its stretch of the result cuts the runs of all ranks, by rounds that look at few elements
//! of each, and reads the parts that the stretch is made of where they are.

use super::telling::{Status, exchange_numbers};
use super::{list, numbers_of};
use crate::engine::Applied;
use crate::error::InOp;
use crate::families::indexing::with_foldable;
use crate::strategy::{Group, Merging, Routing};
use crate::{KernelCx, Result};
use shard_comm::simulated::PHANTOM;
use shard_comm::{AgreedError, Buffer, Communicator, DType, ExchangePlan, Piece, Pieces};
use shard_kernels::cuts::{Bracket, narrow, places};
use shard_kernels::sort::rank;
use shard_redistribute::MeshComm;
use smallvec::smallvec;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// Finds the cuts of this rank's stretch and brings the parts: the inputs with those of others behind them, and the call on them.
pub(in crate::engine) fn bring(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    routing: &Routing,
    call: &KernelCx,
    buffers: &mut Vec<Buffer>,
) -> Result<KernelCx> {
    let (name, device) = (op.name(), cx.device());
    let mut call = call.clone();
    let (Some(group), Some(comm), Some(merging)) = (&routing.group, cx.all(), &routing.merging)
    else {
        // All runs are at hand, uncut.
        call.inputs[routing.index] = list(0);
        buffers[routing.index] = device.upload_slice::<i64>(&[]).in_op(name)?;
        for &(i, _) in &routing.fetched {
            let none = device.alloc(buffers[i].dtype(), 0).in_op(name)?;
            (call.inputs).push(list(0));
            buffers.push(none.freeze());
        }
        return Ok(call);
    };
    let first = routing.fetched.first().map_or(routing.index, |f| f.0);
    let meeting = Meeting::new(name, &**comm, group, merging, routing, &call, first);
    let found = meeting.cut(&buffers[first])?;
    let (told, mut status) = meeting.tell(&found)?;
    for (i, _) in &routing.fetched {
        let status = std::mem::replace(&mut status, Ok(()));
        let parts = meeting.read(&buffers[*i], &found, &told, status)?;
        call.inputs.push(list(parts.len()));
        buffers.push(parts);
    }
    let cuts = meeting.for_kernel(&found);
    call.inputs[routing.index] = list(cuts.len());
    buffers[routing.index] = device.upload_slice(&cuts).in_op(name)?;
    Ok(call)
}

/// The ranks whose runs are merged, seen from one of them. Runs are numbered as the ranks are among the peers.
pub struct Meeting<'a> {
    /// Whose runs they are, for errors.
    pub op: &'static str,
    /// Over which they meet.
    pub comm: &'a dyn Communicator,
    /// The ranks.
    pub group: &'a Group,
    /// What they do.
    pub merging: &'a Merging,
    /// Equal for meetings that are alike.
    pub id: u128,
    /// How many elements of each line each run has.
    pub lens: Vec<usize>,
    /// The runs in the order of their elements' indices.
    pub in_order: Vec<usize>,
    /// How many lines each run is made of.
    pub lines: usize,
    /// How far apart the elements of a line are.
    pub step: usize,
    /// Where this rank's stretch begins and ends.
    pub stretch: [usize; 2],
}

/// Where something begins and ends in front of a stretch, and behind it: for each run and line.
type Sides = [Vec<Bracket>; 2];

impl<'a> Meeting<'a> {
    fn new(
        op: &'static str,
        comm: &'a dyn Communicator,
        group: &'a Group,
        merging: &'a Merging,
        routing: &Routing,
        call: &KernelCx,
        first: usize,
    ) -> Self {
        let part = |k: usize| group.peers[k].part;
        let mut in_order: Vec<usize> = (0..group.peers.len()).collect();
        in_order.sort_by_key(|&k| part(k));
        let (runs, to) = (&call.inputs[first], &call.outputs[0]);
        let start = merging.runs.from + to.start[merging.dim];
        let size = |k: usize| group.partition.size(part(k));
        Self {
            op,
            comm,
            group,
            merging,
            id: routing.id,
            lens: (0..group.peers.len()).map(size).collect(),
            in_order,
            lines: numbers_of(routing),
            step: runs.shape[merging.dim + 1..].iter().product(),
            stretch: [start, start + to.shape[merging.dim]],
        }
    }

    fn is_forecast(&self) -> bool {
        self.comm.device().kind() == PHANTOM
    }

    /// Finds the cuts in front of this rank's stretch and behind it, while others find theirs.
    fn cut(&self, own: &Buffer) -> Result<Sides> {
        let own = OwnRun::new(self, own)?;
        let whole: Vec<Bracket> = (self.lens.iter())
            .flat_map(|&len| std::iter::repeat_n((0, len), self.lines))
            .collect();
        let mut found = [whole.clone(), whole];
        // At first everybody looks at whole runs.
        let mut asked = vec![(0, self.lens[self.group.me]); 2 * self.lens.len() * self.lines];
        let mut status = Ok(());
        for round in 0..self.merging.rounds {
            if round > 0 {
                (asked, status) = self.ask(&found)?;
            }
            let answers = self.answer(&own, &asked, status)?;
            status = Ok(());
            for (side, brackets) in found.iter_mut().enumerate() {
                self.narrow(brackets, side, &answers);
            }
        }
        match self.is_forecast() {
            true => Ok(self.stretch.map(|count| self.even_cuts(count))),
            false => Ok(found),
        }
    }

    /// Tells every peer which brackets of its run are to be looked at, and hears which of this rank's.
    fn ask(&self, found: &Sides) -> Result<(Vec<Bracket>, Status)> {
        let lines = |k: usize| k * self.lines..(k + 1) * self.lines;
        let mine = (0..self.lens.len())
            .flat_map(|k| found.iter().flat_map(move |side| &side[lines(k)]))
            .flat_map(|&(low, high)| [low as i64, high as i64]);
        let told = self.exchange("cut requests", mine.collect(), 4 * self.lines, Ok(()))?;
        Ok(self.within_own(&told))
    }

    /// The stretches of this rank's run that others named, if they are some.
    pub fn within_own(&self, told: &[i64]) -> (Vec<Bracket>, Status) {
        let len = self.lens[self.group.me];
        let mut status = Ok(());
        let stretch = |pair: &[i64]| {
            let ends = usize::try_from(pair[0])
                .ok()
                .zip(usize::try_from(pair[1]).ok());
            ends.filter(|&(low, high)| low <= high && high <= len)
                .unwrap_or_else(|| {
                    status = Err(AgreedError::new(
                        self.op,
                        format!("a stretch of a run of {len} elements"),
                        format!("{} to {}", pair[0], pair[1]),
                        "run the same program on all ranks",
                    ));
                    (0, 0)
                })
        };
        (told.chunks_exact(2).map(stretch).collect(), status)
    }

    /// Tells every peer the ranks of the elements at the places of the brackets that it asks for, and hears those of its own.
    pub fn answer(&self, own: &OwnRun<'_>, asked: &[Bracket], status: Status) -> Result<Vec<u64>> {
        let most = self.merging.places;
        let mut mine = vec![0; asked.len() * most];
        if !self.is_forecast() {
            for (k, (to, &bracket)) in mine.chunks_exact_mut(most).zip(asked).enumerate() {
                for (to, at) in to.iter_mut().zip(places(bracket, most)) {
                    *to = own.rank(k % self.lines, at).cast_signed();
                }
            }
        }
        let told = self.exchange("cut answers", mine, 2 * self.lines * most, status)?;
        Ok(told.into_iter().map(i64::cast_unsigned).collect())
    }

    /// Draws from the answers what they tell about the cut on one side.
    fn narrow(&self, brackets: &mut [Bracket], side: usize, answers: &[u64]) {
        let most = self.merging.places;
        let (mut of_line, mut ranks) = (Vec::new(), Vec::new());
        for line in 0..self.lines {
            of_line.clear();
            ranks.clear();
            for &k in &self.in_order {
                of_line.push(brackets[k * self.lines + line]);
                let first = ((2 * k + side) * self.lines + line) * most;
                ranks.extend_from_slice(&answers[first..first + most]);
            }
            narrow(&mut of_line, &ranks, most, self.stretch[side]);
            for (&k, &bracket) in self.in_order.iter().zip(&of_line) {
                brackets[k * self.lines + line] = bracket;
            }
        }
    }

    /// The cuts of runs whose elements nobody knows: as if all were spread alike.
    fn even_cuts(&self, count: usize) -> Vec<Bracket> {
        let all = self.lens.iter().sum::<usize>().max(1) as u128;
        let cut = |&len: &usize| (len as u128 * count as u128 / all) as usize;
        let cuts = self.lens.iter().map(cut);
        cuts.flat_map(|at| std::iter::repeat_n((at, at), self.lines))
            .collect()
    }

    /// Where the part of a run that belongs to this rank's stretch begins and ends on a line.
    fn part(&self, found: &Sides, k: usize, line: usize) -> Bracket {
        let at = k * self.lines + line;
        (found[0][at].0, found[1][at].0)
    }

    /// Tells every peer which parts of its run are read, and hears which of this rank's.
    fn tell(&self, found: &Sides) -> Result<(Vec<Bracket>, Status)> {
        let closed = found.iter().flatten().all(|(low, high)| low == high);
        let status = match closed {
            true => Ok(()),
            false => Err(AgreedError::new(
                self.op,
                "runs that are sorted",
                "some that are not",
                "sort them first",
            )),
        };
        let mine = (0..self.lens.len())
            .flat_map(|k| (0..self.lines).map(move |line| self.part(found, k, line)))
            .flat_map(|(from, to)| [from as i64, to as i64]);
        let told = self.exchange("cuts", mine.collect(), 2 * self.lines, status)?;
        if !self.is_forecast() {
            return Ok(self.within_own(&told));
        }
        // Others' stretches lie as their runs do.
        let first = self.merging.runs.from;
        let of = (self.group.partition).scaled(self.merging.wanted);
        let parts = (self.group.peers.iter()).map(|peer| of.part(peer.part).interval());
        let told = parts.flat_map(|part| {
            let part = part.unwrap_or(0..0);
            let cut = |at: usize| self.even_cuts(first + at)[self.group.me * self.lines].0;
            std::iter::repeat_n((cut(part.start), cut(part.end)), self.lines)
        });
        Ok((told.collect(), Ok(())))
    }

    /// Reads the parts of other ranks' runs: run by run in order, line by line.
    fn read(
        &self,
        own: &Buffer,
        found: &Sides,
        told: &[Bracket],
        status: Status,
    ) -> Result<Buffer> {
        let (group, device) = (self.group, self.comm.device());
        let piece = |k: usize, run: usize, line: usize, (from, to): Bracket, into: usize| Piece {
            src_offset: place(line, self.lens[run], self.step, from),
            src_strides: smallvec![self.step as isize],
            ..Piece::run(group.peers[k].at, 0, to - from, 0, into)
        };
        let (mut recv, mut send, mut written) = (Pieces::new(), Pieces::new(), 0);
        for &k in self.in_order.iter().filter(|&&k| k != group.me) {
            // A message has its pieces in the order in which they are written, line by line: where they are read says another one.
            let mut sent = 0;
            for line in 0..self.lines {
                let part = self.part(found, k, line);
                recv.push(piece(k, k, line, part, written).view());
                written += part.1 - part.0;
                let part = told[k * self.lines + line];
                send.push(piece(k, group.me, line, part, sent).view());
                sent += part.1 - part.0;
            }
        }
        let (into, alloc) = match device.alloc(own.dtype(), written) {
            Ok(into) => (into, Ok(())),
            Err(e) => {
                let none = device.alloc(own.dtype(), 0).in_op(self.op)?;
                (none, Err(AgreedError::from_local(self.op, e)))
            }
        };
        // The data decided it, so that it is worth nothing to another call, and is compared pair by pair.
        let plan = ExchangePlan::new("merged runs", 0, recv, send, None, None);
        let sources = std::slice::from_ref(own);
        (self.comm)
            .exchange(&Arc::new(plan), sources, into, status.and(alloc))
            .in_op(self.op)
    }

    /// The cuts as the kernel sees them.
    fn for_kernel(&self, found: &Sides) -> Vec<i64> {
        let (mut cuts, mut read) = (Vec::with_capacity(3 * self.lens.len() * self.lines), 0);
        for &k in &self.in_order {
            for line in 0..self.lines {
                let (from, to) = self.part(found, k, line);
                let is_own = k == self.group.me;
                cuts.extend([from as i64, to as i64, if is_own { -1 } else { read }]);
                read += if is_own { 0 } else { (to - from) as i64 };
            }
        }
        cuts
    }

    /// As many numbers to each peer, and from each; a rank's own are kept.
    pub fn exchange(
        &self,
        what: &'static str,
        mine: Vec<i64>,
        width: usize,
        status: Status,
    ) -> Result<Vec<i64>> {
        let (op, comm, group) = (self.op, self.comm, self.group);
        let told = exchange_numbers(op, what, comm, group, self.id, status, &mine, width)?;
        if self.is_forecast() {
            return Ok(mine);
        }
        let mut told = comm.device().download_vec::<i64>(&told).in_op(op)?;
        let own = group.me * width..(group.me + 1) * width;
        told[own.clone()].copy_from_slice(&mine[own]);
        Ok(told)
    }
}

/// Where element `at` of a line lies in a run whose lines have `len`, `step` apart.
fn place(line: usize, len: usize, step: usize, at: usize) -> usize {
    let (row, column) = (line / step.max(1), line % step.max(1));
    (row * len + at) * step + column
}

/// This rank's run, which the host looks into; of memory that it cannot see it gets a copy, once for all rounds.
pub struct OwnRun<'a> {
    elements: Cow<'a, [u8]>,
    dtype: DType,
    len: usize,
    step: usize,
    descending: bool,
}

impl<'a> OwnRun<'a> {
    /// Its run among those of a meeting.
    pub fn new(of: &Meeting<'_>, values: &'a Buffer) -> Result<Self> {
        let elements = match values.as_bytes() {
            _ if of.is_forecast() => Cow::Borrowed(&[][..]),
            Ok(bytes) => Cow::Borrowed(bytes),
            Err(_) => Cow::Owned(of.comm.device().download(values).in_op(of.op)?),
        };
        Ok(Self {
            elements,
            dtype: values.dtype(),
            len: of.lens[of.group.me],
            step: of.step,
            descending: of.merging.runs.descending,
        })
    }

    /// The rank of an element.
    fn rank(&self, line: usize, at: usize) -> u64 {
        let size = self.dtype.size();
        let element = &self.elements[place(line, self.len, self.step, at) * size..][..size];
        // Those of 16 bits lie in the order of what they are in `f32`, to which the kernel merges them.
        let widened = match self.dtype {
            DType::F16 => bytemuck::pod_read_unaligned::<half::f16>(element).to_f32(),
            DType::BF16 => bytemuck::pod_read_unaligned::<half::bf16>(element).to_f32(),
            other => {
                return with_foldable!(other, T => {
                    rank(bytemuck::pod_read_unaligned::<T>(element), self.descending)
                });
            }
        };
        rank(widened, self.descending)
    }
}
