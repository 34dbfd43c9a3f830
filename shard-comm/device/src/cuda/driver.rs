//! The machine underneath a [`Cuda`](super::Cuda) device: memory, one queue, marks in the queue, and kernels.
#![expect(unsafe_code, reason = "declares which calls are unsafe")]

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use super::KernelSource;
use super::terms::{Convolution, Fourier, Gemm, Libraries};

/// Why the machine refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no memory left.
    OutOfMemory,
    /// A call failed.
    Failed {
        /// The function.
        call: &'static str,
        /// Its message.
        cause: String,
    },
}

impl Refusal {
    pub(super) fn new(call: &'static str, cause: impl Into<String>) -> Self {
        Self::Failed {
            call,
            cause: cause.into(),
        }
    }
}

pub(super) type Answer<T> = Result<T, Refusal>;

/// A GPU's queue (a stream), or the emulation of one.
///
/// All work of a queue happens in order. Addresses are those of the GPU, equal for all queues on it.
pub(super) trait Driver: Any + Debug + Send + Sync {
    /// The GPU's name.
    fn name(&self) -> &str;

    /// Memory, to be used by work queued from now on.
    fn alloc(&self, bytes: usize) -> Answer<u64>;

    /// Gives memory back once the work queued so far is done.
    fn free(&self, address: u64);

    /// Copies from the host's memory, which may change once this returns.
    fn upload(&self, bytes: &[u8], to: u64) -> Answer<()>;

    /// Copies to the host's memory once the work queued so far is done.
    fn download(&self, from: u64, bytes: &mut [u8]) -> Answer<()>;

    /// Page-locked memory of the host, which the GPU can read and write.
    fn alloc_pinned(&self, bytes: usize) -> Answer<u64>;

    /// Gives page-locked memory back that no transfer uses any more.
    fn free_pinned(&self, address: u64);

    /// Queues a copy from page-locked memory.
    ///
    /// # Safety
    /// `from` is page-locked memory with these bytes. Nobody writes or frees it before a mark recorded after this call is
    /// reached.
    unsafe fn upload_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// Queues a copy to page-locked memory.
    ///
    /// # Safety
    /// `to` is page-locked memory with room for these bytes. Nobody reads, writes or frees it before a mark recorded after this
    /// call is reached.
    unsafe fn download_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// Copies from one place of the GPU's memory to another; the two have no byte in common.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// Whether work of this queue may access the memory of another queue's GPU. Opens that memory to this GPU where it can be
    /// opened.
    fn reaches(&self, owner: &dyn Driver) -> Answer<bool>;

    /// Copies from memory of another queue's GPU, whether or not this queue can access that memory directly.
    fn fetch(&self, owner: &dyn Driver, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// A mark after the work queued so far.
    fn record(&self) -> Answer<Arc<dyn Mark>>;

    /// Work queued from now on starts after the mark, which may be another queue's.
    fn wait(&self, mark: &Arc<dyn Mark>) -> Answer<()>;

    /// Returns when all work queued so far is done.
    fn synchronize(&self) -> Answer<()>;

    /// Gives memory that was kept for reuse back to the system.
    fn trim(&self);

    /// Another queue of the same GPU.
    fn sibling(&self) -> Answer<Arc<dyn Driver>>;

    /// Compiles a kernel for this GPU, with these definitions in front.
    fn kernel(&self, source: &KernelSource, defines: &str, name: &str) -> Answer<Function>;

    /// Queues a kernel on `blocks` blocks of `threads` threads. `params` are the bytes of its structure.
    ///
    /// # Safety
    /// `params` are exactly the bytes of the kernel's structure. With them the kernel touches only memory that is allocated
    /// here and that work of other queues does not write meanwhile.
    unsafe fn launch(
        &self,
        kernel: Function,
        blocks: [u32; 3],
        threads: [u32; 3],
        params: &[u8],
    ) -> Answer<()>;

    /// The optional libraries.
    fn libraries(&self) -> Libraries;

    /// The bytes of workspace that cuBLASLt needs for a product; `None` if the library is missing or cannot compute it.
    fn plan_gemm(&self, gemm: &Gemm) -> Answer<Option<usize>>;

    /// Queues a product that was planned. `workspace` is the address of the workspace and its size, as planned.
    ///
    /// # Safety
    /// The matrices are memory that is allocated here and that work of other queues does not write meanwhile; `D` overlaps
    /// neither itself nor another matrix. Nobody else uses the workspace until the work queued so far is done.
    unsafe fn gemm(&self, gemm: &Gemm, workspace: (u64, usize)) -> Answer<()>;

    /// The bytes of workspace that cuDNN needs for a convolution; `None` if the library is missing or cannot compute it.
    fn plan_convolution(&self, call: &Convolution) -> Answer<Option<usize>>;

    /// Queues a convolution that was planned. `workspace` is the address of the workspace and its size, as planned.
    ///
    /// # Safety
    /// As for [`gemm`](Self::gemm), with tensors in place of matrices.
    unsafe fn convolve(&self, call: &Convolution, workspace: (u64, usize)) -> Answer<()>;

    /// The bytes of workspace that cuFFT needs for transforms; `None` if the library is missing or cannot compute them.
    fn plan_fourier(&self, call: &Fourier) -> Answer<Option<usize>>;

    /// Queues transforms that were planned. `workspace` is the address of the workspace and its size, as planned.
    ///
    /// # Safety
    /// As for [`gemm`](Self::gemm), with lines in place of matrices; those that are read may be overwritten.
    unsafe fn fourier(&self, call: &Fourier, workspace: (u64, usize)) -> Answer<()>;
}

/// A compiled kernel, which lives as long as the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// The driver's handle.
    pub(super) handle: usize,
}

/// A point in a queue.
pub(super) trait Mark: Any + Debug + Send + Sync {
    /// Returns when the work before it is done.
    fn synchronize(&self) -> Answer<()>;

    /// Whether the work before it is done.
    fn is_done(&self) -> Answer<bool>;
}
