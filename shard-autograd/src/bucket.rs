//! Many small sums over ranks taken as few large ones.

use crate::Result;
use shard_comm::{Buffer, DType, Monoid, Strided};
use shard_ops::Value;
use shard_redistribute::{Array, MeshComm};
use shard_spec::ReduceOp;
use std::rc::Rc;

/// A bucket is closed when it holds this many bytes: large enough that latency does not count, small enough
/// that the flat copies do not double the gradients' memory.
const BUCKET_BYTES: usize = 32 << 20;

/// Gradients that can be summed in one reduction.
struct Bucket<'a> {
    cx: Rc<MeshComm>,
    axes: Vec<usize>,
    dtype: DType,
    values: Vec<&'a mut Value>,
    bytes: usize,
}

/// Replaces partial sums by their sums, as few reductions as possible: one per mesh, axes, type and
/// [`BUCKET_BYTES`].
///
/// Which value goes into which bucket follows from layouts and order alone, so ranks agree on it.
pub(crate) fn reduce(values: Vec<&mut Value>) -> Result<()> {
    let mut open: Vec<Bucket<'_>> = Vec::new();
    let mut closed: Vec<Bucket<'_>> = Vec::new();
    for value in values {
        let (cx, axes, dtype) = (
            value.array().cx().clone(),
            value.layout().partial_axes().to_vec(),
            value.dtype(),
        );
        // The largest piece, not this rank's: all ranks must close the bucket at the same value.
        let bytes = value.layout().max_local_numel() * dtype.size();
        let at = open
            .iter()
            .position(|b| Rc::ptr_eq(&b.cx, &cx) && b.axes == axes && b.dtype == dtype);
        let at = at.unwrap_or_else(|| {
            open.push(Bucket {
                cx,
                axes,
                dtype,
                values: Vec::new(),
                bytes: 0,
            });
            open.len() - 1
        });
        open[at].values.push(value);
        open[at].bytes += bytes;
        if open[at].bytes >= BUCKET_BYTES {
            closed.push(open.remove(at));
        }
    }
    closed.into_iter().chain(open).try_for_each(Bucket::reduce)
}

impl Bucket<'_> {
    fn reduce(self) -> Result<()> {
        let _span = tracing::trace_span!(
            "reduce_gradients",
            values = self.values.len(),
            bytes = self.bytes
        )
        .entered();
        let pieces: Vec<Buffer> = self
            .values
            .iter()
            .filter_map(|v| v.array().buffer().cloned())
            .collect();
        let mut sums = match self.cx.along(&self.axes) {
            Some(comm) => unflatten(
                &comm.all_reduce(&self.flatten(&pieces)?, Monoid::Op(ReduceOp::Sum))?,
                &pieces,
            ),
            // Not a member of the mesh: a layout and no data.
            None => Vec::new(),
        }
        .into_iter();
        for value in self.values {
            let layout = value.layout().with_partial_reduced();
            *value = Value::new(Array::from_parts(
                &self.cx,
                &layout,
                sums.next(),
                self.dtype,
            )?);
        }
        Ok(())
    }

    /// The pieces side by side.
    fn flatten(&self, pieces: &[Buffer]) -> Result<Buffer> {
        if let [only] = pieces {
            return Ok(only.clone());
        }
        let device = self.cx.device();
        let mut flat = device.alloc(self.dtype, pieces.iter().map(Buffer::len).sum())?;
        let mut offset = 0;
        for piece in pieces {
            let len = [piece.len()];
            device.copy(
                piece,
                &Strided::contiguous(&len),
                &mut flat,
                &Strided::contiguous_at(offset, &len),
            )?;
            offset += piece.len();
        }
        Ok(flat.freeze())
    }
}

/// Pieces of these lengths of a flat buffer, without copies.
fn unflatten(flat: &Buffer, like: &[Buffer]) -> Vec<Buffer> {
    let ends = like.iter().scan(0, |end, piece| {
        *end += piece.len();
        Some(*end)
    });
    ends.zip(like)
        .map(|(end, piece)| flat.slice(end - piece.len()..end))
        .collect()
}
