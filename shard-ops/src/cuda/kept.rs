//! Memory of a kernel besides its operands: lists of positions, and what a fold keeps from block to block.

use super::CudaCall;
use crate::Result;
use crate::error::InOp;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::Cuda;
use shard_comm::{Buffer, BufferMut, DType, Device};
use shard_spec::DimPart;

/// The global positions of a box's indices, as `Positions` in kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Positions {
    list: u64,
    start: i64,
    step: i64,
}

/// Small arrays on the GPU, which live until the kernels that read them are queued.
#[derive(Default)]
pub(crate) struct Lists(Vec<Buffer>);

impl Lists {
    /// The global positions of a part's indices: by a rule if they are at equal steps, otherwise as a list.
    pub(crate) fn positions(&mut self, call: &CudaCall<'_>, part: &DimPart) -> Result<Positions> {
        self.positions_on(call.gpu, call.op, part)
    }

    /// The same, outside of an op's kernel.
    pub(crate) fn positions_on(
        &mut self,
        gpu: &Cuda,
        op: &'static str,
        part: &DimPart,
    ) -> Result<Positions> {
        let start = match part.interval() {
            Some(interval) => interval.start as i64,
            None => {
                let list: Vec<i64> = part.indices().map(|i| i as i64).collect();
                let list = self.upload_on(gpu, op, &list)?;
                return Ok(Positions {
                    list,
                    start: 0,
                    step: 0,
                });
            }
        };
        Ok(Positions {
            list: 0,
            start,
            step: 1,
        })
    }

    /// Uploads some numbers, and returns the address of the copy.
    pub(crate) fn upload(&mut self, call: &CudaCall<'_>, numbers: &[i64]) -> Result<u64> {
        self.upload_on(call.gpu, call.op, numbers)
    }

    fn upload_on(&mut self, gpu: &Cuda, op: &'static str, numbers: &[i64]) -> Result<u64> {
        let bytes = bytemuck::cast_slice(numbers);
        let list = gpu.upload(DType::I64, bytes).in_op(op)?;
        let address = gpu.address(&list).in_op(op)?;
        self.0.push(list);
        Ok(address)
    }
}

/// Memory that a fold keeps on the GPU from block to block.
pub(crate) struct Kept {
    pub(crate) buffers: Vec<BufferMut>,
}

impl Kept {
    /// Memory for arrays of these lengths and types.
    pub(crate) fn new(
        call: &CudaCall<'_>,
        lens: impl IntoIterator<Item = (DType, usize)>,
    ) -> Result<Self> {
        let buffers = lens
            .into_iter()
            .map(|(dtype, len)| call.scratch(dtype, len));
        Ok(Self {
            buffers: buffers.collect::<Result<_>>()?,
        })
    }

    /// The memory that the call before kept; `None` before the first block.
    pub(crate) fn take(call: &mut CudaCall<'_>) -> Option<Self> {
        let state = call.state.take()?;
        state.downcast().ok().map(|kept| *kept)
    }

    pub(crate) fn addresses<const N: usize>(&mut self, call: &CudaCall<'_>) -> Result<[u64; N]> {
        let mut all = [0; N];
        for (address, buffer) in all.iter_mut().zip(&mut self.buffers) {
            *address = call.gpu.address_mut(buffer).in_op(call.op)?;
        }
        Ok(all)
    }
}
