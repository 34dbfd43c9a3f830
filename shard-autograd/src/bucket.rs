//! Many small sums over ranks, taken as few large ones.

use crate::Result;
use crate::node::ValueId;
use shard_comm::{Buffer, Call, DType, Handle, History, Monoid, Strided};
use shard_ops::Value;
use shard_redistribute::{Array, MeshComm};
use shard_spec::ReduceOp;
use std::rc::Rc;

/// A bucket is closed when it holds this many bytes, unless a recorder says otherwise. This is large enough that latency does
/// not matter, and small enough that the flat copies do not double the gradients' memory.
pub(crate) const BUCKET_BYTES: usize = 32 << 20;

/// Collects partial sums and takes them together: one reduction per mesh, axes, type and bucketful.
///
/// Which value goes into which bucket follows from layouts and order alone, so ranks agree on it.
pub(crate) struct Buckets {
    limit: usize,
    open: Vec<Bucket>,
    flights: Vec<Flight>,
}

/// Partial values that can be summed in one reduction.
struct Bucket {
    cx: Rc<MeshComm>,
    axes: Vec<usize>,
    dtype: DType,
    values: Vec<(ValueId, Value)>,
    bytes: usize,
}

/// A reduction in flight.
struct Flight {
    /// `None` off the mesh.
    handle: Option<Handle>,
    bucket: Bucket,
}

impl Buckets {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Vec::new(),
            flights: Vec::new(),
        }
    }

    /// Adds a partial value, and starts the reduction of its bucket if that is full now.
    pub(crate) fn add(&mut self, id: ValueId, value: &Value) -> Result<()> {
        let (cx, axes, dtype) = (
            value.array().cx(),
            value.layout().partial_axes(),
            value.dtype(),
        );
        // The bytes of the largest piece, not of this rank's: all ranks must close the bucket at the same value.
        let bytes = value
            .layout()
            .max_local_numel()
            .saturating_mul(dtype.size());
        let fits = |b: &Bucket| Rc::ptr_eq(&b.cx, cx) && b.axes == axes && b.dtype == dtype;
        let mut bucket = match self.open.iter().position(fits) {
            Some(at) => self.open.remove(at),
            None => Bucket {
                cx: cx.clone(),
                axes: axes.to_vec(),
                dtype,
                values: Vec::new(),
                bytes: 0,
            },
        };
        bucket.values.push((id, value.clone()));
        bucket.bytes = bucket.bytes.saturating_add(bytes);
        if bucket.bytes >= self.limit {
            self.flights.push(bucket.start()?);
        } else {
            self.open.push(bucket);
        }
        Ok(())
    }

    /// Starts the reductions of the buckets that are not full.
    pub(crate) fn flush(&mut self) -> Result<()> {
        for bucket in self.open.drain(..) {
            self.flights.push(bucket.start()?);
        }
        Ok(())
    }

    /// Forgets the values whose reduction has not started.
    pub(crate) fn forget_open(&mut self) {
        self.open.clear();
    }

    /// Waits for the reductions that have been started. Returns the sums in the order of starting.
    pub(crate) fn land(&mut self) -> Result<Vec<(ValueId, Value)>> {
        let mut sums = Vec::new();
        for flight in self.flights.drain(..) {
            sums.extend(flight.land()?);
        }
        Ok(sums)
    }
}

impl Bucket {
    fn start(self) -> Result<Flight> {
        let _span = tracing::trace_span!(
            "reduce_gradients",
            values = self.values.len(),
            bytes = self.bytes
        )
        .entered();
        let read: Vec<u64> = (self.values.iter())
            .map(|(_, v)| v.array().number())
            .collect();
        (self.cx).record(Call::new("reduce_gradients").reading(&read));
        let handle = match self.cx.along(&self.axes) {
            Some(comm) => Some(comm.start_all_reduce(&self.flatten()?, Monoid::Op(ReduceOp::Sum))?),
            None => None,
        };
        Ok(Flight {
            handle,
            bucket: self,
        })
    }

    /// The pieces side by side.
    fn flatten(&self) -> Result<Buffer> {
        let pieces: Vec<&Buffer> = self
            .values
            .iter()
            .filter_map(|(_, v)| v.array().buffer())
            .collect();
        if let [only] = pieces[..] {
            return Ok(only.clone());
        }
        let device = self.cx.device();
        let mut flat = device.alloc(self.dtype, pieces.iter().map(|p| p.len()).sum())?;
        let mut offset = 0;
        for piece in pieces {
            let from = Strided::contiguous(&[piece.len()]);
            let to = Strided::contiguous_at(offset, &[piece.len()]);
            device.copy(piece, &from, &mut flat, &to)?;
            offset += piece.len();
        }
        Ok(flat.freeze())
    }
}

impl Flight {
    fn land(self) -> Result<Vec<(ValueId, Value)>> {
        let flat = self.handle.map(Handle::wait).transpose()?;
        let mut start = 0;
        let mut sums = Vec::with_capacity(self.bucket.values.len());
        for (id, value) in self.bucket.values {
            let array = value.array();
            // A slice of the flat buffer, without a copy.
            let piece = match (&flat, array.buffer()) {
                (Some(flat), Some(like)) => {
                    let end = start + like.len();
                    Some(flat.try_slice(std::mem::replace(&mut start, end)..end)?)
                }
                _ => None,
            };
            let layout = value.layout().with_partial_reduced();
            let sum = Array::from_parts(array.cx(), &layout, piece, self.bucket.dtype)?;
            let sum = sum.with_number(History::derived(array.number(), 0));
            sums.push((id, Value::new(sum)));
        }
        Ok(sums)
    }
}
