//! NVIDIA GPUs as devices: memory and moves in stream order, and the launching of kernels.
//!
//! CUDA's driver and compiler are loaded when they are first asked for, so a program built with the feature `cuda` runs
//! everywhere; where there is no GPU, [`Cuda::new`] says what is missing. [`availability`] asks without an error.
//!
//! Each rank has a device of its own, which is one *stream*: work is queued and done in order, and nothing waits for it
//! but [`Device::synchronize`], [`Device::download`] and other streams that [wait](Device::wait) for an [`Event`]. Several
//! ranks (threads of one process) may share one GPU. Memory that another stream reads is given back, or written again,
//! only after that reading.
//!
//! # Without a GPU
//!
//! With the feature `cuda-emulated`, [`Cuda::emulated`] is a device whose kernels are the same texts, compiled for the host
//! by the C++ compiler that `CXX` names or by `c++`. It is slow, and meant for tests: they can check on any machine that the
//! addresses, strides and arithmetic of every kernel are right. It does not show speed, races between the threads of a
//! block, or what a GPU's own libraries do.
//!
//! # Kernels
//!
//! A [`KernelSource`] is a text in CUDA's C++ whose kernels each take one structure; crates above declare their own and
//! run them with [`Cuda::launch`].
//!
//! # Libraries
//!
//! Products of matrices, convolutions and Fourier transforms can also be computed by NVIDIA's cuBLASLt, cuDNN and cuFFT
//! ([`Cuda::matmul`], [`Cuda::convolve`], [`Cuda::fourier`]), where these are installed; [`libraries()`] says what was found. Without them, and for calls that they do
//! not support, these methods do nothing and return false, and the caller launches a kernel of its own. On an emulated device
//! plain loops on the host take the place of the libraries.

mod cache;
mod compiled;
mod driver;
#[cfg(feature = "cuda-emulated")]
mod emulated;
mod libraries;
mod memory;
mod nvidia;
#[cfg(feature = "cuda-emulated")]
mod queue;
mod staging;
mod strided;
mod terms;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use driver::{Driver, Function, Mark, Refusal};
pub use libraries::{ConvCall, libraries};
use memory::{CudaMemory, Usage};
use staging::Staging;
pub use terms::{ConvKind, FourierKind, Libraries, Library};

use crate::check::{check_pair, check_room, check_terms, check_within, whole_elements};
use crate::view::span;
use crate::{
    Buffer, BufferMut, DType, Device, DeviceError, DeviceKind, DeviceRef, Event, EventState,
    HostJob, MemoryStats, Monoid, Result, Scalar, Strided, kernel,
};

/// Whether a machine offers what [`Cuda::new`] needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Availability {
    /// There is a GPU and everything it needs.
    Ready {
        /// How many GPUs.
        devices: usize,
    },
    /// The driver's library (`libcuda`) is not installed.
    NoDriver,
    /// The compiler's library (`libnvrtc`) is not found. It is part of the CUDA toolkit and of the Python package
    /// `nvidia-cuda-nvrtc`; its folder must be in `LD_LIBRARY_PATH`.
    NoCompiler,
    /// The libraries are there, but no GPU.
    NoDevice {
        /// The driver's message.
        cause: String,
    },
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { devices } => write!(f, "{devices} GPUs"),
            Self::NoDriver => f.write_str("no NVIDIA driver: libcuda is not installed"),
            Self::NoCompiler => f.write_str(
                "no run-time compiler: libnvrtc is in no folder of LD_LIBRARY_PATH (CUDA toolkit, or the Python \
                 package nvidia-cuda-nvrtc)",
            ),
            Self::NoDevice { cause } => write!(f, "no GPU: {cause}"),
        }
    }
}

/// Whether there is a GPU to use, and if not, why. Never panics.
///
/// ```
/// use shard_device::cuda::{Availability, availability};
/// match availability() {
///     Availability::Ready { devices } => assert!(devices > 0),
///     missing => println!("tests on a GPU are skipped: {missing}"),
/// }
/// ```
pub fn availability() -> Availability {
    nvidia::availability()
}

/// A text in CUDA's C++ that defines kernels.
///
/// The text is preceded by a prelude that all kernels share: short names of element types (`f64 f32 f16 bf16 i64 i32 u8 b8`),
/// `widen` and `As<T>::of` between 16-bit floats and `f32`, and `first_thread()` and `threads()`. A kernel is written
/// `KERNEL(name, Params) { ... p.field ... }`, or `BLOCK_KERNEL` if its threads wait for each other with `SYNC()`.
#[derive(Clone, Copy, Debug)]
pub struct KernelSource {
    /// A name for messages, unique in the program.
    pub name: &'static str,
    /// The text.
    pub text: &'static str,
    /// Whether products and sums are each rounded, as on the host, and never fused into one rounding.
    pub exact: bool,
}

/// A kernel compiled for a device's GPU.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(Function);

/// The whole text of a source.
fn text_of(source: &KernelSource, defines: &str) -> String {
    format!(
        "{defines}\n{}\n{}",
        include_str!("source/prelude.cuh"),
        source.text
    )
}

/// Compiles a source to PTX for an architecture such as `compute_90`, or to a GPU's own code for one such as `sm_90`, and returns
/// the size in bytes. This needs the compiler's library but no GPU.
///
/// # Errors
/// [`DeviceError::Library`] with the compiler's messages, or if there is no compiler.
pub fn compile_to_ptx(source: &KernelSource, defines: &str, architecture: &str) -> Result<usize> {
    let ptx = nvidia::compile(source, defines, architecture);
    ptx.map(|ptx| ptx.len())
        .map_err(|refusal| refused("compiler", refusal))
}

/// The name of an element type in kernels.
pub fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "b8",
        other => other.name(),
    }
}

/// One stream of a GPU.
///
/// ```
/// use shard_device::cuda::{Availability, Cuda, availability};
/// use shard_device::{DeviceError, DType};
/// # fn main() -> Result<(), DeviceError> {
/// match Cuda::new(0) {
///     Ok(gpu) => {
///         let numbers = gpu.upload_slice(&[1.0f32, 2.0])?;
///         assert_eq!(numbers.to_vec::<f32>()?, [1.0, 2.0]);
///     }
///     // A machine without one says so.
///     Err(error) => assert!(matches!(error, DeviceError::Library { .. }), "{error}"),
/// }
/// # Ok(()) }
/// ```
pub struct Cuda {
    this: Weak<Self>,
    driver: Arc<dyn Driver>,
    usage: Arc<Usage>,
    staging: Arc<Staging>,
    kind: DeviceKind,
    block: u32,
}

/// Threads that are a warp, and their number on an emulated device. As in `prelude.cuh`.
const LANES: u32 = 32;
const EMULATED_LANES: u32 = 4;
/// Threads of a block.
const BLOCK: u32 = 256;
/// Threads of a block on an emulated device, where each is a fiber of the host.
#[cfg(feature = "cuda-emulated")]
const EMULATED_BLOCK: u32 = 8;
/// The most blocks of a launch: for more work, each block does more.
const MOST_BLOCKS: usize = 8192;

impl Cuda {
    /// A new stream on the GPU with this number.
    ///
    /// # Errors
    /// [`DeviceError::Library`] that says what is [missing](availability), or carries the driver's message.
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are used through shared references only"
    )]
    pub fn new(ordinal: usize) -> Result<DeviceRef> {
        match availability() {
            Availability::Ready { devices } if ordinal < devices => {}
            Availability::Ready { devices } => {
                return Err(DeviceError::invalid(
                    "cuda",
                    format!("the number of one of {devices} GPUs, from 0 on"),
                    ordinal.to_string(),
                    "ask for a GPU that is there",
                ));
            }
            missing => {
                return Err(DeviceError::Library {
                    library: "cuda",
                    call: "probe",
                    cause: missing.to_string().into(),
                });
            }
        }
        let driver = nvidia::Nvidia::new(ordinal).map_err(|r| refused("cuda", r))?;
        Ok(Self::over(Arc::new(driver), DeviceKind::Cuda, BLOCK))
    }

    /// The device for the rank with this number: GPUs are assigned in turn, and shared by several ranks if there are few.
    ///
    /// # Errors
    /// As [`Cuda::new`].
    pub fn of_rank(rank: usize) -> Result<DeviceRef> {
        match availability() {
            Availability::Ready { devices } => Self::new(rank % devices),
            _ => Self::new(0),
        }
    }

    /// A device whose kernels run on the host; see [the module](self).
    ///
    /// # Errors
    /// [`DeviceError::Library`] if there is no C++ compiler.
    #[cfg(feature = "cuda-emulated")]
    pub fn emulated() -> Result<DeviceRef> {
        Self::emulated_on(0, true)
    }

    /// [`emulated`](Self::emulated), on one of several emulated GPUs. The first device with a GPU's number decides whether that
    /// GPU `reaches` the memory of other GPUs.
    ///
    /// # Errors
    /// As [`emulated`](Self::emulated).
    #[cfg(feature = "cuda-emulated")]
    pub fn emulated_on(gpu: usize, reaches: bool) -> Result<DeviceRef> {
        if !emulated::is_available() {
            return Err(DeviceError::Library {
                library: "cuda",
                call: "c++",
                cause: "no C++ compiler: install one, or name it in CXX".into(),
            });
        }
        let driver = Arc::new(emulated::Emulated::new(gpu, reaches));
        Ok(Self::over(driver, DeviceKind::EmulatedCuda, EMULATED_BLOCK))
    }

    fn over(driver: Arc<dyn Driver>, kind: DeviceKind, block: u32) -> DeviceRef {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            driver,
            usage: Arc::default(),
            staging: Arc::default(),
            kind,
            block,
        })
    }

    /// Another stream of the same GPU; its memory is counted with this one's. The two streams run side by side; where their work
    /// must be ordered, make one [wait](Device::wait) for the other's [events](Device::record).
    ///
    /// # Errors
    /// [`DeviceError::Library`] with the driver's message.
    pub fn sibling(&self) -> Result<DeviceRef> {
        let driver = self.driver.sibling().map_err(|r| self.refused(r))?;
        Ok(Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            driver,
            usage: Arc::clone(&self.usage),
            staging: Arc::clone(&self.staging),
            kind: self.kind,
            block: self.block,
        }))
    }

    /// The stream of a real GPU.
    fn nvidia(&self) -> Result<&nvidia::Nvidia> {
        let driver: &dyn Any = &*self.driver;
        driver.downcast_ref().ok_or_else(|| DeviceError::Library {
            library: "cuda",
            call: "probe",
            cause: "the device is no GPU of NVIDIA".into(),
        })
    }

    /// The handle of a real GPU's stream, for libraries that queue work on it themselves. Makes the GPU current on this thread.
    ///
    /// # Errors
    /// [`DeviceError::Library`] on an emulated device, or with the driver's message.
    pub fn raw_stream(&self) -> Result<usize> {
        self.nvidia()?.stream().map_err(|r| self.refused(r))
    }

    /// The unique identifier of a real GPU.
    ///
    /// # Errors
    /// [`DeviceError::Library`] on an emulated device, or with the driver's message.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        self.nvidia()?.uuid().map_err(|r| self.refused(r))
    }

    /// Lets the other GPUs of this process access this one's memory, where they can reach it: until then memory of a pool is
    /// closed to them.
    ///
    /// # Errors
    /// [`DeviceError::Library`] on an emulated device, or with the driver's message.
    pub fn open_to_peers(&self) -> Result<()> {
        self.nvidia()?.open_to_peers().map_err(|r| self.refused(r))
    }

    /// Runs a job on the thread of an emulated device, after everything queued there, if this is a [sibling](Self::sibling): the
    /// emulation of work that a library queues on a real stream.
    ///
    /// # Errors
    /// [`DeviceError::Library`] if there is no such thread.
    #[cfg(feature = "cuda-emulated")]
    pub fn queue_emulated(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let driver: &dyn Any = &*self.driver;
        let Some(queue) = driver.downcast_ref::<queue::Queue>() else {
            return Err(DeviceError::Library {
                library: "cuda",
                call: "queue",
                cause: "the stream is no emulated one".into(),
            });
        };
        let job = || {
            job();
            Ok(())
        };
        queue.queue(job).map_err(|r| self.refused(r))
    }

    /// Tells the owners of buffers that this stream was told to read them by other means than [`launch`](Self::launch): the
    /// owners wait for those reads before they use the memory again.
    ///
    /// # Errors
    /// [`DeviceError::Library`] with the driver's message.
    pub fn uses(&self, buffers: &[&Buffer]) -> Result<()> {
        self.has_read(buffers)
    }

    /// The device as a CUDA device, if it is one.
    pub fn of(device: &dyn Device) -> Option<&Self> {
        let any: &dyn Any = device;
        any.downcast_ref()
    }

    /// A kernel of a source. It is compiled for this GPU at its first use in the process. `defines` stand in front of the text.
    ///
    /// # Errors
    /// [`DeviceError::Library`] with the compiler's messages.
    pub fn kernel(&self, source: &KernelSource, defines: &str, name: &str) -> Result<Kernel> {
        let kernel = self.driver.kernel(source, defines, name);
        kernel.map(Kernel).map_err(|r| self.refused(r))
    }

    /// How many threads exchange values without waiting for the rest of their block: `LANES` in kernels, which divides the threads of
    /// a [block](Self::block).
    pub fn lanes(&self) -> u32 {
        if self.block < LANES {
            EMULATED_LANES
        } else {
            LANES
        }
    }

    /// How many threads a block has, unless a kernel asks for another number.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// The address of a buffer's first element, for kernels of this device to read after the work that writes it.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if the buffer belongs to another kind of device, or to a GPU whose memory this one does not
    /// reach.
    pub fn address(&self, buffer: &Buffer) -> Result<u64> {
        let memory = memory(buffer.opaque())?;
        if !self.reaches(memory)? {
            return Err(DeviceError::invalid(
                "cuda",
                "memory of this GPU, or of one whose memory it reaches",
                format!("memory of {}", memory.driver.name()),
                "copy the data to the device that works on it",
            ));
        }
        Ok(memory.address + (buffer.offset() * buffer.dtype().size()) as u64)
    }

    fn reaches(&self, memory: &CudaMemory) -> Result<bool> {
        if Arc::ptr_eq(&memory.driver, &self.driver) {
            return Ok(true);
        }
        (self.driver.reaches(&*memory.driver)).map_err(|r| self.refused(r))
    }

    /// Whether all of these lie on GPUs whose memory this one reaches.
    fn all_near<'a>(&self, mut buffers: impl Iterator<Item = &'a Buffer>) -> Result<bool> {
        buffers.try_fold(true, |all, buffer| {
            Ok(all && self.reaches(memory(buffer.opaque())?)?)
        })
    }

    /// If the buffer lies on a GPU whose memory this one does not reach, a copy of the range that a view reads of it, and the
    /// index of that range's first element in the buffer.
    fn bring(&self, src: &Buffer, view: &Strided) -> Result<Option<(Buffer, usize)>> {
        let memory = memory(src.opaque())?;
        if self.reaches(memory)? {
            return Ok(None);
        }
        let (dtype, size) = (src.dtype(), src.dtype().size());
        let read = span(view.offset, &view.shape, &view.strides)?;
        let mut here = self.alloc(dtype, read.len())?;
        if !read.is_empty() {
            let from = memory.address + ((src.offset() + read.start) * size) as u64;
            let to = self.address_mut(&mut here)?;
            (self.driver)
                .fetch(&*memory.driver, from, to, read.len() * size)
                .map_err(|r| self.refused(r))?;
            self.has_read(&[src])?;
        }
        Ok(Some((here.freeze(), read.start)))
    }

    /// The address of a buffer's first element, for kernels queued from now on to write.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if the buffer belongs to another kind of device.
    pub fn address_mut(&self, buffer: &mut BufferMut) -> Result<u64> {
        let memory = memory(buffer.opaque())?;
        // The memory may have been shared before it was taken back for writing.
        for mark in memory.take_readers() {
            self.driver.wait(&mark).map_err(|r| self.refused(r))?;
        }
        Ok(memory.address + (buffer.offset() * buffer.dtype().size()) as u64)
    }

    /// Queues a kernel over `count` independent items, which its threads go through with `first_thread()` and `threads()`.
    /// `reads` are the buffers whose addresses `params` holds for reading.
    ///
    /// # Errors
    /// [`DeviceError::Queued`] if the driver refuses, which earlier work may be the cause of.
    ///
    /// # Safety
    /// `P` has the layout of the kernel's structure. With these values the kernel reads only inside `reads`, and writes only
    /// inside buffers that [`address_mut`](Self::address_mut) was asked for and that nobody reads until this device has run the
    /// kernel.
    #[expect(unsafe_code, reason = "what a kernel does, only its text says")]
    pub unsafe fn launch<P: bytemuck::Pod>(
        &self,
        kernel: Kernel,
        count: usize,
        params: &P,
        reads: &[&Buffer],
    ) -> Result<()> {
        let blocks = count.div_ceil(self.block as usize).clamp(1, MOST_BLOCKS) as u32;
        // SAFETY: the caller's promise.
        unsafe { self.launch_blocks(kernel, [blocks, 1, 1], [self.block, 1, 1], params, reads) }
    }

    /// [`launch`](Self::launch) with a given number of blocks and of threads per block.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    #[expect(unsafe_code, reason = "what a kernel does, only its text says")]
    pub unsafe fn launch_blocks<P: bytemuck::Pod>(
        &self,
        kernel: Kernel,
        blocks: [u32; 3],
        threads: [u32; 3],
        params: &P,
        reads: &[&Buffer],
    ) -> Result<()> {
        let params = bytemuck::bytes_of(params);
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(kernel.0, blocks, threads, params) }
            .map_err(|r| self.refused(r))?;
        self.has_read(reads)
    }

    /// Makes the owners of buffers wait for the reads that this stream has queued, before they use the memory again.
    fn has_read(&self, buffers: &[&Buffer]) -> Result<()> {
        let mut now: Option<Arc<dyn Mark>> = None;
        for buffer in buffers {
            let memory = memory(buffer.opaque())?;
            if Arc::ptr_eq(&memory.driver, &self.driver) {
                continue;
            }
            let mark = match &now {
                Some(mark) => Arc::clone(mark),
                None => self.driver.record().map_err(|r| self.refused(r))?,
            };
            memory.add_reader(Arc::clone(&mark));
            now = Some(mark);
        }
        Ok(())
    }

    /// Makes the owner of a buffer wait for the writes that this stream has queued, before it uses the memory again.
    ///
    /// # Errors
    /// [`DeviceError::Library`] with the driver's message.
    pub fn writes(&self, buffer: &BufferMut) -> Result<()> {
        let memory = memory(buffer.opaque())?;
        if !Arc::ptr_eq(&memory.driver, &self.driver) {
            memory.add_reader(self.driver.record().map_err(|r| self.refused(r))?);
        }
        Ok(())
    }

    fn refused(&self, refusal: Refusal) -> DeviceError {
        refused(self.driver.name(), refusal)
    }
}

/// A driver's refusal as an error that names the device. Work that was queued earlier may be its cause.
fn refused(device: &str, refusal: Refusal) -> DeviceError {
    match refusal {
        Refusal::OutOfMemory => DeviceError::Queued {
            device: device.to_owned(),
            cause: "out of memory".into(),
        },
        Refusal::Failed { call, cause } => DeviceError::Library {
            library: "cuda",
            call,
            cause: cause.into(),
        },
    }
}

fn memory(opaque: Option<&Arc<dyn Any + Send + Sync>>) -> Result<&CudaMemory> {
    let memory = opaque.and_then(|memory| memory.downcast_ref());
    memory.ok_or_else(|| {
        DeviceError::invalid(
            "cuda",
            "memory of a GPU",
            "memory of another device",
            "upload the data to the device that works on it",
        )
    })
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({})", self.driver.name())
    }
}

impl Device for Cuda {
    fn kind(&self) -> DeviceKind {
        self.kind
    }

    fn name(&self) -> String {
        format!("cuda {}", self.driver.name())
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut> {
        let device = self
            .this
            .upgrade()
            .ok_or(DeviceError::Closed { op: "alloc" })?;
        let bytes = len.saturating_mul(dtype.size());
        let memory = CudaMemory::new(&self.driver, &self.usage, bytes);
        let memory = memory.map_err(|refusal| match refusal {
            Refusal::OutOfMemory => DeviceError::OutOfMemory {
                device: self.name(),
                bytes,
                dtype,
                len,
            },
            failed @ Refusal::Failed { .. } => self.refused(failed),
        })?;
        Ok(BufferMut::from_opaque(device, dtype, len, Arc::new(memory)))
    }

    fn fill(&self, dst: &mut BufferMut, view: &Strided, value: Scalar) -> Result<()> {
        view.validate(dst.len())?;
        self.fill_view(dst, view, value)
    }

    fn copy(&self, src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()> {
        check_pair("copy", src.len(), sv, dst.len(), dv)?;
        match self.bring(src, sv)? {
            Some((near, start)) => self.copy_views(&[(&near, &from(sv, start), dv)], dst),
            None => self.copy_views(&[(src, sv, dv)], dst),
        }
    }

    fn copy_pieces(
        &self,
        pieces: &[(&Buffer, Strided, Strided)],
        dst: &mut BufferMut,
    ) -> Result<()> {
        let mut views = Vec::with_capacity(pieces.len());
        for (src, sv, dv) in pieces {
            check_pair("copy", src.len(), sv, dst.len(), dv)?;
            views.push((*src, sv, dv));
        }
        if self.all_near(pieces.iter().map(|(src, ..)| *src))? {
            return self.copy_views(&views, dst);
        }
        // One by one: copies from GPUs out of reach are slow anyway.
        let mut each = views.into_iter();
        each.try_for_each(|(src, sv, dv)| self.copy(src, sv, dst, dv))
    }

    fn takes_many_pieces(&self) -> bool {
        true
    }

    fn fold(
        &self,
        op: Monoid,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        check_pair("fold", src.len(), sv, dst.len(), dv)?;
        kernel::check_fold(op, src.dtype(), sv, dst.dtype(), dv)?;
        match self.bring(src, sv)? {
            Some((near, start)) => self.fold_view(op, &near, &from(sv, start), dst, dv),
            None => self.fold_view(op, src, sv, dst, dv),
        }
    }

    fn reduce(
        &self,
        op: Monoid,
        terms: &[(&Buffer, usize)],
        strides: &[isize],
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        check_terms(op, terms, strides, dst, dv)?;
        if self.all_near(terms.iter().map(|(term, _)| *term))? {
            return self.reduce_views(op, terms, strides, dst, dv);
        }
        let view = |at: usize| Strided::new(at, dv.shape.clone(), strides.into());
        let near = |&(term, at): &(&Buffer, usize)| self.bring(term, &view(at));
        let near = terms.iter().map(near).collect::<Result<Vec<_>>>()?;
        let terms: Vec<(&Buffer, usize)> = (terms.iter().zip(&near))
            .map(|(&(term, at), near)| match near {
                Some((near, start)) => (near, at - start),
                None => (term, at),
            })
            .collect();
        self.reduce_views(op, &terms, strides, dst, dv)
    }

    fn copy_within(&self, buffer: &mut BufferMut, from: Range<usize>, to: usize) -> Result<()> {
        check_within(buffer.len(), &from, to)?;
        self.move_within(buffer, from, to)
    }

    fn upload(&self, dtype: DType, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = self.alloc(dtype, whole_elements(dtype, bytes)?)?;
        if !bytes.is_empty() {
            let to = self.address_mut(&mut buffer)?;
            self.staging
                .upload(&self.driver, bytes, to)
                .map_err(|r| self.refused(r))?;
        }
        Ok(buffer.freeze())
    }

    fn download_into(&self, src: &Buffer, to: &mut [u8]) -> Result<()> {
        check_room(src.bytes(), to)?;
        let from = self.address(src)?;
        let done = match to.is_empty() {
            true => self.driver.synchronize(),
            false => self.staging.download(&self.driver, from, to),
        };
        done.map_err(|r| self.refused(r))
    }

    fn submit(&self, _: Vec<Buffer>, _: Vec<BufferMut>, _: HostJob) -> Result<Vec<BufferMut>> {
        Err(DeviceError::HostOnly {
            op: "submit",
            device: self.name(),
        })
    }

    fn record(&self) -> Event {
        match self.driver.record() {
            Ok(mark) => Event::new(Arc::new(CudaEvent {
                mark: Ok(mark),
                device: self.name(),
            })),
            // Whoever waits for the event gets the error.
            Err(refusal) => Event::new(Arc::new(CudaEvent {
                mark: Err(refusal),
                device: self.name(),
            })),
        }
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let Some(state) = event.state() else {
            return Ok(());
        };
        let any: &dyn Any = state.as_ref();
        match any.downcast_ref::<CudaEvent>() {
            Some(event) => {
                let mark = event.mark.as_ref().map_err(|r| self.refused(r.clone()))?;
                self.driver.wait(mark).map_err(|r| self.refused(r))
            }
            None => event.synchronize(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.driver.synchronize().map_err(|r| self.refused(r))
    }

    fn memory(&self) -> MemoryStats {
        self.usage.stats()
    }

    fn reset_peak(&self) {
        self.usage.reset_peak();
    }

    fn raise_peak(&self, to: usize) {
        self.usage.raise_peak(to);
    }

    fn trim(&self) {
        self.driver.trim();
    }
}

/// The same view of a copy that begins with element `start` of the buffer.
fn from(view: &Strided, start: usize) -> Strided {
    Strided {
        offset: view.offset - start,
        ..view.clone()
    }
}

/// A point in a stream.
#[derive(Debug)]
struct CudaEvent {
    mark: driver::Answer<Arc<dyn Mark>>,
    device: String,
}

impl EventState for CudaEvent {
    fn synchronize(&self) -> Result<()> {
        let refused = |r: Refusal| refused(&self.device, r);
        let mark = self.mark.as_ref().map_err(|r| refused(r.clone()))?;
        mark.synchronize().map_err(refused)
    }

    fn is_done(&self) -> Result<bool> {
        let refused = |r: Refusal| refused(&self.device, r);
        let mark = self.mark.as_ref().map_err(|r| refused(r.clone()))?;
        mark.is_done().map_err(refused)
    }
}

#[cfg(test)]
mod tests;
