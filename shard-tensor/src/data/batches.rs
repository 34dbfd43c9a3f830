//! What one rank reads of batches, and the thread that reads ahead.

use super::{DataError, Source};
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

/// The rest of an epoch.
pub(super) struct Plan {
    pub(super) shares: Vec<Share>,
    /// The samples, in their order, counted from the first that is used; if there is no list, in that of the source.
    pub(super) order: Option<Vec<usize>>,
    pub(super) first: usize,
    /// The places in that order that each batch takes.
    pub(super) batches: Vec<Range<usize>>,
}

/// A rank's pieces of one batch, one per source.
pub(super) type Pieces = Vec<Option<Vec<u8>>>;

/// What the thread sends.
type ReadAhead = Result<Pieces, DataError>;

/// Gives a rank's pieces of one batch after the other.
pub(super) struct Feed {
    at: usize,
    plan: Option<Plan>,
    ahead: Option<(Receiver<ReadAhead>, JoinHandle<()>)>,
}

impl Feed {
    /// Reads up to so many batches before they are asked for, on a thread; with zero, when they are.
    pub(super) fn new(plan: Plan, ahead: usize) -> Result<Self, DataError> {
        if ahead == 0 {
            return Ok(Self {
                at: 0,
                plan: Some(plan),
                ahead: None,
            });
        }
        let (sender, receiver) = sync_channel(ahead - 1);
        let read = move || {
            for at in 0..plan.batches.len() {
                // Nobody waits for more, if this cannot be sent.
                if sender.send(plan.read(at)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".to_owned());
        let thread = thread.spawn(read).map_err(DataError::other)?;
        Ok(Self {
            at: 0,
            plan: None,
            ahead: Some((receiver, thread)),
        })
    }

    /// The next batch, of which there must be one.
    pub(super) fn next(&mut self) -> Result<Pieces, DataError> {
        self.at += 1;
        if let Some(plan) = &self.plan {
            return plan.read(self.at - 1);
        }
        let read = (self.ahead.as_ref()).and_then(|(receiver, _)| receiver.recv().ok());
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

impl Plan {
    fn read(&self, at: usize) -> Result<Pieces, DataError> {
        let batch = self.batches[at].clone();
        let sample = |at: usize| self.first + self.order.as_ref().map_or(at, |order| order[at]);
        let samples: Vec<usize> = batch.map(sample).collect();
        self.shares.iter().map(|s| s.read(&samples)).collect()
    }
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
        let mut pieces = vec![0; held[0].len() * sample];
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
