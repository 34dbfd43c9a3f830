//! Kernels on GPUs: what an op gives the engine besides its host kernel, and the tools such kernels are written with.
//!
//! An op with a [`CudaKernel`] runs where its arrays are. An op without one is an error on a GPU, the same on every rank and
//! before anything moves, unless the engine may [fall back](crate::EngineOptions::host_fallback) to the host.
//!
//! Products of matrices and convolutions first ask the vendor's [libraries](shard_comm::cuda::libraries()), if the engine
//! [allows them](crate::KernelPolicy::libraries). Where these are missing or cannot take a box as it lies, the kernels here
//! compute the result.

pub(crate) mod kept;
pub(crate) mod parts;
pub(crate) mod source;
pub(crate) mod view;
pub(crate) mod windows;

use crate::error::InOp;
use crate::{
    DeviceCall, DeviceKernel, FoldState, KernelCx, KernelPhase, KernelPolicy, OpError, Result,
};
use bytemuck::Pod;
use shard_comm::cuda::Cuda;
pub use shard_comm::cuda::KernelSource;
use shard_comm::{Buffer, BufferMut, DType, Device, DeviceKind, Ledger, Strided};
pub use source::VIEW;
#[doc(hidden)]
pub use source::{joined, joined_len};
pub use view::{AXES, CudaView, define};

/// An op's kernel on NVIDIA GPUs.
///
/// A kernel is given boxes of buffers, like [`Op::host`](crate::Op::host), and queues the work that writes the outputs. An op of
/// your own gets one in the same way as the ops here: it implements this trait, its [`Op::kernel`](crate::Op::kernel) is
/// [`kernel`], its text is a [`cuda_source!`](crate::cuda_source!), and [`CudaCall::launch`] queues that text on
/// [views](CudaCall::input) of the operands.
pub trait CudaKernel {
    /// Computes one rank's part (or a box of it): see [`Op::host`](crate::Op::host).
    ///
    /// # Errors
    /// An error of the device; the op's rule has checked everything else.
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()>;

    /// Merges partial results: see [`Op::merge`](crate::Op::merge).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn merge(&self, call: &mut CudaCall<'_>) -> Result<()> {
        call.missing("merge")
    }

    /// Writes the rows that were found: see [`Op::write_rows`](crate::Op::write_rows).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn write_rows(&self, call: &mut CudaCall<'_>) -> Result<()> {
        call.missing("write_rows")
    }
}

/// An op's kernel for devices of this kind, if they are GPUs. An op that is a [`CudaKernel`] and has no kernels for other devices
/// returns this from [`Op::kernel`](crate::Op::kernel).
pub fn kernel<K: CudaKernel>(op: &K, on: DeviceKind) -> Option<&dyn DeviceKernel> {
    on.is_cuda().then_some(op as &dyn DeviceKernel)
}

impl<K: CudaKernel> DeviceKernel for K {
    fn run(&self, phase: KernelPhase, call: DeviceCall<'_>) -> Result<()> {
        let Some(gpu) = Cuda::of(&**call.device) else {
            return Err(OpError::NoKernel {
                op: call.op,
                device: call.device.name(),
            });
        };
        let mut call = CudaCall {
            op: call.op,
            cx: call.cx,
            gpu,
            policy: call.policy,
            ledger: call.ledger,
            inputs: call.inputs,
            outputs: call.outputs,
            state: call.state,
            rows: call.rows,
        };
        match phase {
            KernelPhase::Compute => CudaKernel::run(self, &mut call),
            KernelPhase::WriteRows => self.write_rows(&mut call),
            KernelPhase::Merge => self.merge(&mut call),
        }
    }
}

/// One call of a kernel on a GPU: memory and the boxes in it.
pub struct CudaCall<'a> {
    /// The op's name.
    pub op: &'static str,
    /// What to compute.
    pub cx: &'a KernelCx,
    /// The device, whose stream is the order of all work.
    pub gpu: &'a Cuda,
    /// The policy for precision and libraries.
    pub policy: KernelPolicy,
    /// The rank's ledger.
    pub ledger: &'a Ledger,
    /// The inputs' memory.
    pub inputs: &'a [Buffer],
    /// The outputs' memory.
    pub outputs: &'a mut [BufferMut],
    /// State that a call of the same fold leaves for the next one.
    pub state: &'a mut FoldState,
    /// How many rows this rank's part has, if that depends on the data.
    pub rows: &'a mut usize,
}

impl CudaCall<'_> {
    /// Input `i`'s box.
    ///
    /// # Errors
    /// More dims than [`AXES`], or memory of another device.
    pub fn input(&self, i: usize) -> Result<CudaView> {
        self.input_as(i, &self.cx.inputs[i].strided())
    }

    /// Another view of input `i`'s memory.
    pub(crate) fn input_as(&self, i: usize, view: &Strided) -> Result<CudaView> {
        let address = self.gpu.address(&self.inputs[i]).in_op(self.op)?;
        CudaView::new(self.op, address, self.inputs[i].dtype(), view)
    }

    /// Output `o`'s box.
    ///
    /// # Errors
    /// As [`input`](Self::input).
    pub fn output(&mut self, o: usize) -> Result<CudaView> {
        let view = self.cx.outputs[o].strided();
        self.output_as(o, &view)
    }

    /// Another view of output `o`'s memory.
    pub(crate) fn output_as(&mut self, o: usize, view: &Strided) -> Result<CudaView> {
        let dtype = self.outputs[o].dtype();
        let address = self.gpu.address_mut(&mut self.outputs[o]).in_op(self.op)?;
        CudaView::new(self.op, address, dtype, view)
    }

    /// The address of input `i`'s box, whose elements are contiguous in row-major order, as those of whole pieces are.
    ///
    /// # Errors
    /// As [`input`](Self::input); a box with gaps.
    pub fn dense(&self, i: usize) -> Result<u64> {
        let at = &self.cx.inputs[i];
        if !at.strided().is_contiguous() {
            return Err(OpError::Shape {
                op: self.op,
                problem: format!("operand {i} has gaps, which its kernel on a GPU does not take"),
                shapes: vec![at.shape.to_vec()],
                fix: "let the engine fall back to the host",
            });
        }
        Ok(self.input(i)?.data)
    }

    /// Input `i` in a type: itself, if it is of that type, or else a copy; and where it lies.
    pub(crate) fn converted(&self, i: usize, to: DType) -> Result<(Buffer, Strided)> {
        let (buffer, at) = (&self.inputs[i], self.cx.inputs[i].strided());
        if buffer.dtype() == to {
            return Ok((buffer.clone(), at));
        }
        let dense = Strided::contiguous(&at.shape);
        let mut copy = self.scratch(to, at.numel())?;
        (self.gpu)
            .copy(buffer, &at, &mut copy, &dense)
            .in_op(self.op)?;
        Ok((copy.freeze(), dense))
    }

    /// Input `i` in a type, its elements in a row: its memory, which is to be kept until the kernel is queued, and the address.
    pub(crate) fn in_a_row(&self, i: usize, to: DType) -> Result<(Buffer, u64)> {
        let (mut buffer, mut at) = self.converted(i, to)?;
        if !at.is_contiguous() {
            let dense = Strided::contiguous(&at.shape);
            let mut copy = self.scratch(to, at.numel())?;
            (self.gpu)
                .copy(&buffer, &at, &mut copy, &dense)
                .in_op(self.op)?;
            (buffer, at) = (copy.freeze(), dense);
        }
        let address = self.gpu.address(&buffer).in_op(self.op)?;
        Ok((buffer, address + (at.offset * to.size()) as u64))
    }

    /// Copies another view of input 0's memory to output 0's box, by the copy that every device has.
    pub(crate) fn copy_input(&mut self, from: &Strided) -> Result<()> {
        let to = self.cx.outputs[0].strided();
        (self.gpu)
            .copy(&self.inputs[0], from, &mut self.outputs[0], &to)
            .in_op(self.op)
    }

    /// Memory for `len` elements that only this call uses.
    ///
    /// # Errors
    /// Out of memory.
    pub fn scratch(&self, dtype: DType, len: usize) -> Result<BufferMut> {
        self.gpu.alloc(dtype, len).in_op(self.op)
    }

    /// Queues a kernel over `count` independent items, which its threads divide among themselves with
    /// `first_thread()` and `threads()`. The kernel is compiled at its first launch on the device, with `defines` in front of the
    /// [source](crate::cuda_source!), and gets one parameter `p`, the structure that `params` mirrors.
    ///
    /// # Errors
    /// The compiler's messages about the text; an error of the driver.
    ///
    /// # Safety
    /// `P` has the layout of the kernel's structure. With these values the kernel reads only inside this call's inputs and
    /// writes only inside its outputs and [scratch memory](Self::scratch). That is so for a kernel that accesses memory only
    /// through [views](CudaView) of these, and writes each element of a view once.
    #[expect(unsafe_code, reason = "what a kernel does, only its text says")]
    pub unsafe fn launch<P: Pod>(
        &self,
        source: &KernelSource,
        defines: &str,
        name: &str,
        count: usize,
        params: &P,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let kernel = self.gpu.kernel(source, defines, name).in_op(self.op)?;
        let reads: Vec<&Buffer> = self.inputs.iter().collect();
        // SAFETY: the caller's promise.
        unsafe { self.gpu.launch(kernel, count, params, &reads) }.in_op(self.op)
    }

    /// [`launch`](Self::launch) on `blocks` blocks of `threads` threads that may wait for each other.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    #[expect(unsafe_code, reason = "what a kernel does, only its text says")]
    pub unsafe fn launch_blocks<P: Pod>(
        &self,
        source: &KernelSource,
        defines: &str,
        name: &str,
        blocks: [u32; 3],
        threads: u32,
        params: &P,
    ) -> Result<()> {
        if blocks.contains(&0) {
            return Ok(());
        }
        let kernel = self.gpu.kernel(source, defines, name).in_op(self.op)?;
        let reads: Vec<&Buffer> = self.inputs.iter().collect();
        let threads = [threads, 1, 1];
        // SAFETY: the caller's promise.
        unsafe { (self.gpu).launch_blocks(kernel, blocks, threads, params, &reads) }.in_op(self.op)
    }

    /// [`launch`](Self::launch) of a kernel of this crate, whose parameters hold views that [`input`](Self::input) and
    /// [`output`](Self::output) made, and lengths derived from them.
    #[expect(
        unsafe_code,
        reason = "launches kernels of this crate, which touch only the views they are given"
    )]
    pub(crate) fn launch_own<P: Pod>(
        &self,
        source: &KernelSource,
        defines: &str,
        name: &str,
        count: usize,
        params: &P,
    ) -> Result<()> {
        // SAFETY: `P` mirrors the kernel's structure, which the tests compare; its views are boxes inside buffers of that size,
        // and kernels of this crate access nothing else.
        unsafe { self.launch(source, defines, name, count, params) }
    }

    /// [`launch_blocks`](Self::launch_blocks) of a kernel of this crate.
    #[expect(
        unsafe_code,
        reason = "launches kernels of this crate, which touch only the views they are given"
    )]
    pub(crate) fn launch_own_blocks<P: Pod>(
        &self,
        source: &KernelSource,
        defines: &str,
        name: &str,
        blocks: [u32; 3],
        threads: u32,
        params: &P,
    ) -> Result<()> {
        // SAFETY: as in `launch_own`.
        unsafe { self.launch_blocks(source, defines, name, blocks, threads, params) }
    }

    /// Counts a call that a library of the vendor computed, and returns whether it did.
    pub(crate) fn by_library(&self, did: bool) -> bool {
        if did {
            self.ledger.used_library(1);
            if self.ledger.is_tracing() {
                self.ledger.note(format!("library {}", self.op));
            }
        }
        did
    }

    fn missing(&self, what: &'static str) -> Result<()> {
        Err(OpError::NoKernel {
            op: self.op,
            device: format!("{:?} ({what})", self.gpu),
        })
    }
}

/// Queues one of this crate's kernels over `count` independent items. The addresses and lengths in its parameters are those of
/// buffers: of `reads`, and of one that the caller made for writing.
#[expect(
    unsafe_code,
    reason = "launches kernels of this crate, which touch only the views they are given"
)]
#[expect(
    clippy::too_many_arguments,
    reason = "the pieces of one call, passed on once"
)]
pub(crate) fn launch_own<P: Pod>(
    gpu: &Cuda,
    op: &'static str,
    source: &KernelSource,
    defines: &str,
    name: &str,
    count: usize,
    params: &P,
    reads: &[&Buffer],
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let kernel = gpu.kernel(source, defines, name).in_op(op)?;
    // SAFETY: `P` mirrors the kernel's structure, which the tests compare; its views are boxes inside buffers of that size, and
    // kernels of this crate access nothing else.
    unsafe { gpu.launch(kernel, count, params, reads) }.in_op(op)
}
