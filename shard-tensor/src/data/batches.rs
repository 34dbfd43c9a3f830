//! What one rank reads of batches, and the thread that reads ahead.

use super::{DataError, Source};
use bytemuck::allocation::try_zeroed_vec;
use shard_comm::panic_message;
use shard_spec::DimPart;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// What a rank reads of the batches of one source. Its first dim is the samples.
pub(super) struct Share {
    pub(super) source: Arc<dyn Source>,
    /// What it holds of a batch of each size that there is; `None` off the mesh.
    pub(super) held: Vec<(usize, Option<Vec<DimPart>>)>,
}

/// Where the batches of an epoch end.
#[derive(Clone, Copy)]
pub(super) struct Cuts {
    pub(super) samples: usize,
    pub(super) batch: usize,
    pub(super) drop_last: bool,
}

/// The rest of an epoch.
pub(super) struct Plan {
    pub(super) shares: Vec<Share>,
    /// The samples, in their order, counted from the first that is used; if there is no list, in that of the source.
    pub(super) order: Option<Vec<usize>>,
    pub(super) first: usize,
    pub(super) cuts: Cuts,
    /// Places in that order that were read.
    pub(super) given: usize,
}

/// A rank's pieces of one batch, one per source.
pub(super) type Pieces = Vec<Option<Vec<u8>>>;

/// What the thread sends.
type ReadAhead = Result<Pieces, DataError>;

/// Gives a rank's pieces of one batch after the other.
pub(super) struct Feed {
    plan: Option<Plan>,
    ahead: Option<(Receiver<ReadAhead>, JoinHandle<()>)>,
}

impl Feed {
    /// Reads up to so many batches before they are asked for, on a thread; with zero, when they are.
    pub(super) fn new(mut plan: Plan, ahead: usize) -> Result<Self, DataError> {
        if ahead == 0 {
            return Ok(Self {
                plan: Some(plan),
                ahead: None,
            });
        }
        let (sender, receiver) = sync_channel(plan.cuts.most_ahead(ahead) - 1);
        let read = move || {
            while let Some(pieces) = plan.next() {
                // Nobody waits for more, if this cannot be sent.
                if sender.send(pieces).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".to_owned());
        let thread = thread.spawn(read).map_err(DataError::other)?;
        Ok(Self {
            plan: None,
            ahead: Some((receiver, thread)),
        })
    }

    /// The next batch, of which there must be one.
    pub(super) fn next(&mut self) -> Result<Pieces, DataError> {
        let read = match &mut self.plan {
            Some(plan) => plan.next(),
            None => (self.ahead.as_ref()).and_then(|(receiver, _)| receiver.recv().ok()),
        };
        read.unwrap_or_else(|| Err(self.ended()))
    }

    /// Why the thread sends nothing more.
    fn ended(&mut self) -> DataError {
        let panic = (self.ahead.take()).and_then(|(_, thread)| thread.join().err());
        let text = panic.map(|panic| format!(": the source panicked: {}", panic_message(&*panic)));
        let text = text.unwrap_or_default();
        DataError::other(format!("the thread that reads ahead ended early{text}"))
    }
}

impl Drop for Feed {
    /// The thread may be reading; it ends with that.
    fn drop(&mut self) {
        if let Some((receiver, thread)) = self.ahead.take() {
            drop(receiver);
            thread.join().ok();
        }
    }
}

impl Cuts {
    /// The places in an epoch's order that the next batch takes, after so many.
    pub(super) fn next(self, given: usize) -> Option<Range<usize>> {
        let end = self.samples.min(given.saturating_add(self.batch));
        let enough = end > given && (end - given == self.batch || !self.drop_last);
        enough.then_some(given..end)
    }

    /// The sizes of the batches that are left: of all, and of the last one if that is smaller.
    pub(super) fn sizes(self, given: usize) -> Vec<usize> {
        let left = self.samples.saturating_sub(given);
        let full = (left >= self.batch).then_some(self.batch);
        let last = Some(left % self.batch).filter(|&last| last > 0 && !self.drop_last);
        full.into_iter().chain(last).collect()
    }

    /// How many batches are read ahead, where so many may be: each has a place in a queue.
    fn most_ahead(self, ahead: usize) -> usize {
        let all = self.samples.div_ceil(self.batch);
        ahead.min(all).clamp(1, 1 << 16)
    }
}

impl Plan {
    /// The pieces of the next batch, if there is one.
    fn next(&mut self) -> Option<ReadAhead> {
        let batch = self.cuts.next(self.given)?;
        self.given = batch.end;
        Some(self.read(batch))
    }

    fn read(&self, batch: Range<usize>) -> ReadAhead {
        let sample = |at: usize| self.first + self.order.as_ref().map_or(at, |order| order[at]);
        let mut samples = Vec::new();
        (samples.try_reserve_exact(batch.len())).map_err(|_| beyond_memory(batch.len()))?;
        samples.extend(batch.map(sample));
        self.shares.iter().map(|s| s.read(&samples)).collect()
    }
}

/// That so many samples are too many at once.
pub(super) fn beyond_memory(samples: usize) -> DataError {
    DataError::other(format!("no memory for {samples} samples"))
}

impl Share {
    /// Its part of a batch of these samples.
    fn read(&self, batch: &[usize]) -> Result<Option<Vec<u8>>, DataError> {
        let held = self.held.iter().find(|(size, _)| *size == batch.len());
        let Some(held) = held.and_then(|(_, held)| held.as_deref()) else {
            return Ok(None);
        };
        let inner: usize = held[1..].iter().map(DimPart::len).product();
        let sample = inner * self.source.dtype().size();
        let pieces = try_zeroed_vec(held[0].len() * sample);
        let mut pieces: Vec<u8> = pieces.map_err(|()| beyond_memory(held[0].len()))?;
        let mut rest = &mut pieces[..];
        for samples in runs(held[0].indices().map(|i| batch[i])) {
            let (into, after) = std::mem::take(&mut rest).split_at_mut(samples.len() * sample);
            rest = after;
            let mut part = held.to_vec();
            part[0] = samples.into();
            if !into.is_empty() {
                self.source.read(&part, into)?;
            }
        }
        Ok(Some(pieces))
    }
}

/// Numbers that follow each other, as ranges.
fn runs(numbers: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some(last) if last.end == n => last.end += 1,
            _ => runs.push(n..n + 1),
        }
    }
    runs
}
