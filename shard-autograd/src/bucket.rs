//! Many small sums over ranks, taken as few large ones.

use crate::Result;
use crate::law::{gradient_layout, scattered};
use crate::node::ValueId;
use crate::pass::FoundMap;
use shard_comm::{Buffer, Call, DType, Handle, History, Monoid, Strided};
use shard_ops::Value;
use shard_redistribute::{Array, MeshComm};
use shard_spec::{Dims, IndexBox, Layout, ReduceOp, numel};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::rc::Rc;

/// A bucket is closed when it holds this many bytes, unless a recorder says otherwise. This is large enough that latency does
/// not matter, and small enough that the flat copies do not double the gradients' memory.
pub(crate) const BUCKET_BYTES: usize = 32 << 20;

/// So many reductions are in flight at most, so that gradients which are to be scattered are not all held whole.
const MOST_IN_FLIGHT: usize = 2;

/// Collects partial sums and takes them together: one reduction per mesh, axes, type and bucketful. Where the gradient is to be
/// sharded over an axis that it is a sum over, every rank is left its part of the sum, else all of it.
///
/// Which value goes into which bucket follows from layouts and order alone, so ranks agree on it.
pub(crate) struct Buckets {
    limit: usize,
    open: Vec<Bucket>,
    flights: VecDeque<Flight>,
}

/// Partial values that can be summed in one reduction.
struct Bucket {
    cx: Rc<MeshComm>,
    axes: SmallVec<[usize; 4]>,
    /// Whether ranks keep their parts alone.
    scatters: bool,
    dtype: DType,
    terms: Vec<Term>,
    bytes: usize,
}

/// A partial value, and its layout after the reduction.
struct Term {
    id: ValueId,
    value: Value,
    to: Layout,
}

/// A reduction in flight.
struct Flight {
    /// `None` off the mesh.
    handle: Option<Handle>,
    /// What comes of it, without data.
    results: Vec<(ValueId, Array)>,
}

impl Buckets {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Vec::new(),
            flights: VecDeque::new(),
        }
    }

    /// Adds a partial value, and starts the reduction of its bucket if that is full now. What is found keeps the layout alone of
    /// a value whose reduction has started.
    pub(crate) fn add(&mut self, id: ValueId, found: &mut FoundMap) -> Result<()> {
        let Some(entry) = found.get(&id) else {
            return Ok(());
        };
        let (value, law) = (&entry.value, gradient_layout(&entry.outlet.layout));
        let (cx, label, dtype) = (value.array().cx(), value.layout(), value.dtype());
        let (axes, scatters, to) = match scattered(label, &law)? {
            Some((axes, to)) => (axes, true, to),
            None => (
                label.partial_axes().into(),
                false,
                label.with_partial_reduced(),
            ),
        };
        // The bytes of the largest piece, not of this rank's: all ranks must close the bucket at the same value.
        let bytes = label.max_local_numel().saturating_mul(dtype.size());
        let fits = |b: &Bucket| {
            Rc::ptr_eq(&b.cx, cx) && b.axes == axes && b.scatters == scatters && b.dtype == dtype
        };
        let mut bucket = match self.open.iter().position(fits) {
            Some(at) => self.open.remove(at),
            None => Bucket {
                cx: cx.clone(),
                axes,
                scatters,
                dtype,
                terms: Vec::new(),
                bytes: 0,
            },
        };
        bucket.terms.push(Term {
            id,
            value: value.clone(),
            to,
        });
        bucket.bytes = bucket.bytes.saturating_add(bytes);
        if bucket.bytes >= self.limit {
            self.start(bucket, found)
        } else {
            self.open.push(bucket);
            Ok(())
        }
    }

    fn start(&mut self, bucket: Bucket, found: &mut FoundMap) -> Result<()> {
        while self.flights.len() >= MOST_IN_FLIGHT {
            self.land_first(found)?;
        }
        for term in &bucket.terms {
            if let Some(found) = found.get_mut(&term.id) {
                found.value = Value::new(term.value.array().without_data());
            }
        }
        self.flights.push_back(bucket.start()?);
        Ok(())
    }

    /// Waits for the first reduction in flight. A sum of which each rank got its part may still be one over other axes.
    fn land_first(&mut self, found: &mut FoundMap) -> Result<()> {
        for (id, sum) in self
            .flights
            .pop_front()
            .map_or(Ok(Vec::new()), Flight::land)?
        {
            let is_partial = sum.layout().is_partial();
            if let Some(found) = found.get_mut(&id) {
                found.value = sum;
            }
            if is_partial {
                self.add(id, found)?;
            }
        }
        Ok(())
    }

    /// Takes all sums.
    pub(crate) fn finish(&mut self, found: &mut FoundMap) -> Result<()> {
        while !self.open.is_empty() || !self.flights.is_empty() {
            for bucket in std::mem::take(&mut self.open) {
                self.start(bucket, found)?;
            }
            self.land(found)?;
        }
        Ok(())
    }

    /// Waits for the reductions that have been started.
    pub(crate) fn land(&mut self, found: &mut FoundMap) -> Result<()> {
        while !self.flights.is_empty() {
            self.land_first(found)?;
        }
        Ok(())
    }

    /// Forgets the values whose reduction has not started.
    pub(crate) fn forget_open(&mut self) {
        self.open.clear();
    }
}

impl Bucket {
    fn start(self) -> Result<Flight> {
        let _span = tracing::trace_span!(
            "reduce_gradients",
            values = self.terms.len(),
            bytes = self.bytes
        )
        .entered();
        let read: Vec<u64> = (self.terms.iter())
            .map(|term| term.value.array().number())
            .collect();
        (self.cx).record(Call::new("reduce_gradients").reading(&read));
        let sum = Monoid::Op(ReduceOp::Sum);
        let comm = self.cx.along(&self.axes).cloned();
        let (flat, counts) = match (&comm, self.scatters) {
            (None, _) => (None, Vec::new()),
            (Some(_), true) => {
                let (flat, counts) = self.parts()?;
                (Some(flat), counts)
            }
            (Some(_), false) => (Some(self.flatten()?), Vec::new()),
        };
        // The terms are in the flat buffer now: their memory may serve for the sum.
        let scatters = self.scatters;
        let results = self.terms.into_iter().map(|term| {
            let array = term.value.array();
            let sum = Array::from_parts(&self.cx, &term.to, None, self.dtype)?;
            let number = History::derived(array.number(), 0);
            Ok((term.id, sum.with_number(number)))
        });
        let results = results.collect::<Result<_>>()?;
        let handle = match comm.zip(flat) {
            Some((comm, flat)) if scatters => {
                Some(comm.start_reduce_scatter_v(&flat, &counts, sum)?)
            }
            Some((comm, flat)) => Some(comm.start_all_reduce(&flat, sum)?),
            None => None,
        };
        Ok(Flight { handle, results })
    }

    /// The pieces side by side.
    fn flatten(&self) -> Result<Buffer> {
        let pieces = (self.terms.iter()).filter_map(|term| {
            let piece = term.value.array().buffer()?;
            Some((piece, Strided::contiguous(&[piece.len()])))
        });
        self.pack(pieces.collect())
    }

    /// What each rank is to be left, rank after rank, and how much that is.
    fn parts(&self) -> Result<(Buffer, Vec<usize>)> {
        let mut axes = self.axes.clone();
        axes.sort_unstable();
        let members = self.cx.mesh().submesh(self.cx.rank(), &axes)?;
        let mut counts = Vec::with_capacity(members.size());
        let mut parts = Vec::with_capacity(members.size() * self.terms.len());
        for &member in members.ranks() {
            let mut count = 0;
            for term in &self.terms {
                let array = term.value.array();
                let own = array.layout().local_box(self.cx.rank());
                if let (Some(buffer), Some(own), Some(part)) =
                    (array.buffer(), own, term.to.local_box(member))
                {
                    let part = within(&own, &part);
                    count += numel(&part.shape);
                    parts.push((buffer, part));
                }
            }
            counts.push(count);
        }
        Ok((self.pack(parts)?, counts))
    }

    /// Parts of buffers, one after the other.
    fn pack(&self, parts: Vec<(&Buffer, Strided)>) -> Result<Buffer> {
        if let [(only, part)] = &parts[..]
            && part.run_within(only.len()) == Some(0..only.len())
        {
            return Ok((*only).clone());
        }
        let device = self.cx.device();
        let len = parts.iter().map(|(_, part)| part.numel()).sum();
        let mut flat = device.alloc(self.dtype, len)?;
        let mut offset = 0;
        for (buffer, part) in parts {
            let to = Strided::contiguous_at(offset, &part.shape);
            device.copy(buffer, &part, &mut flat, &to)?;
            offset += part.numel();
        }
        Ok(flat.freeze())
    }
}

/// The part of a box, in the row-major buffer of the box.
fn within(whole: &IndexBox, part: &IndexBox) -> Strided {
    let extents = |b: &IndexBox| -> Dims { b.lo.iter().zip(&b.hi).map(|(l, h)| h - l).collect() };
    let mut view = Strided::contiguous(&extents(whole));
    view.shape = extents(part);
    if numel(&view.shape) > 0 {
        let starts = part
            .lo
            .iter()
            .zip(&whole.lo)
            .map(|(part, whole)| part - whole);
        let steps = starts
            .zip(&view.strides)
            .map(|(start, &step)| start * step as usize);
        view.offset = steps.sum();
    }
    view
}

impl Flight {
    fn land(self) -> Result<Vec<(ValueId, Value)>> {
        let _span = tracing::trace_span!("reduce_gradients", values = self.results.len()).entered();
        let flat = self.handle.map(Handle::wait).transpose()?;
        let mut start = 0;
        let mut sums = Vec::with_capacity(self.results.len());
        for (id, array) in self.results {
            let piece = match &flat {
                None => None,
                // A slice of the flat buffer, without a copy.
                Some(flat) => {
                    let end = start + numel(&array.local_shape());
                    Some(flat.try_slice(std::mem::replace(&mut start, end)..end)?)
                }
            };
            let sum = Array::from_parts(array.cx(), array.layout(), piece, array.dtype())?;
            sums.push((id, Value::new(sum.with_number(array.number()))));
        }
        Ok(sums)
    }
}
