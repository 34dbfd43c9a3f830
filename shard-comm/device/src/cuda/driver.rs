//! What a [`Cuda`](super::Cuda) device asks of the machine underneath: memory, one queue, marks in it, and kernels.
#![expect(unsafe_code, reason = "declares which calls are unsafe")]

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use super::KernelSource;
use super::terms::{Convolution, Gemm, Libraries};

/// Why the machine refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no memory left.
    OutOfMemory,
    /// A call failed.
    Failed {
        /// The function.
        call: &'static str,
        /// What it says.
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

    /// Gives page-locked memory back, of which no transfer is under way.
    fn free_pinned(&self, address: u64);

    /// Queues a copy from page-locked memory.
    ///
    /// # Safety
    /// `from` is page-locked memory with these bytes, which nobody writes or frees until a mark recorded after this.
    unsafe fn upload_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// Queues a copy to page-locked memory.
    ///
    /// # Safety
    /// `to` is page-locked memory with room for these bytes, which nobody reads, writes or frees until a mark recorded after
    /// this.
    unsafe fn download_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// Copies from one place of the GPU's memory to another; the two have no byte in common.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// Whether work of this queue may read and write memory of another one's GPU, which is opened to it if that is possible.
    fn reaches(&self, owner: &dyn Driver) -> Answer<bool>;

    /// Copies from memory of another queue's GPU, whether this one reaches it or not.
    fn fetch(&self, owner: &dyn Driver, from: u64, to: u64, bytes: usize) -> Answer<()>;

    /// A mark after the work queued so far.
    fn record(&self) -> Answer<Arc<dyn Mark>>;

    /// Work queued from now on starts after the mark, which may be another queue's.
    fn wait(&self, mark: &Arc<dyn Mark>) -> Answer<()>;

    /// Returns when all work queued so far is done.
    fn synchronize(&self) -> Answer<()>;

    /// Gives memory kept for reuse back.
    fn trim(&self);

    /// Another queue of the same GPU.
    fn sibling(&self) -> Answer<Arc<dyn Driver>>;

    /// Compiles a kernel for this GPU, with these definitions in front.
    fn kernel(&self, source: &KernelSource, defines: &str, name: &str) -> Answer<Function>;

    /// Queues a kernel on `blocks` blocks of `threads` threads. `params` are the bytes of its structure.
    ///
    /// # Safety
    /// The kernel's structure has exactly these bytes, and with them the kernel touches no memory but what is allocated here and not
    /// written by work of other queues meanwhile.
    unsafe fn launch(
        &self,
        kernel: Function,
        blocks: [u32; 3],
        threads: [u32; 3],
        params: &[u8],
    ) -> Answer<()>;

    /// The optional libraries.
    fn libraries(&self) -> Libraries;

    /// The bytes that a product by cuBLASLt works in; nothing if the library is not there or has no way to do it.
    fn plan_gemm(&self, gemm: &Gemm) -> Answer<Option<usize>>;

    /// Queues a product that was planned, with an address of that many bytes.
    ///
    /// # Safety
    /// The matrices are memory that is allocated here and not written by work of other queues meanwhile; `D` overlaps neither
    /// itself nor another one. The workspace is nobody else's until the work queued so far is done.
    unsafe fn gemm(&self, gemm: &Gemm, workspace: (u64, usize)) -> Answer<()>;

    /// The bytes that a convolution by cuDNN works in; nothing if the library is not there or has no way to do it.
    fn plan_convolution(&self, call: &Convolution) -> Answer<Option<usize>>;

    /// Queues a convolution that was planned, with an address of that many bytes.
    ///
    /// # Safety
    /// As [`gemm`](Self::gemm), of the tensors.
    unsafe fn convolve(&self, call: &Convolution, workspace: (u64, usize)) -> Answer<()>;
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
