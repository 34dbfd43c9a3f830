//! NVIDIA's driver and run-time compiler, loaded when they are first asked for.
#![expect(
    unsafe_code,
    reason = "calls into CUDA's driver, whose handles this file alone holds"
)]

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::driver::sys::{CUevent_flags, CUevent_wait_flags, CUmemPool_attribute, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use cudarc::nvrtc;
use cudarc::nvrtc::result::NvrtcError;

use super::cache;
use super::compiled::Compiled;
use super::driver::{Answer, Driver, Function, Mark, Refusal};
use super::libraries::{Dnn, FftPlans, Handles, Lt};
use super::terms::{Convolution, Fourier, Gemm, Libraries};
use super::{Availability, KernelSource};

/// Whether there is a GPU to use. cudarc panics where a library is missing, so this is called before any other function of it.
pub(super) fn availability() -> Availability {
    // SAFETY: loads and unloads a library of the system; the names are cudarc's own.
    if !unsafe { sys::is_culib_present() } {
        return Availability::NoDriver;
    }
    // SAFETY: as above.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Availability::NoCompiler;
    }
    if let Err(error) = result::init() {
        return Availability::NoDevice {
            cause: error.to_string(),
        };
    }
    match result::device::get_count() {
        Ok(count) if count > 0 => Availability::Ready {
            devices: count as usize,
        },
        Ok(_) => Availability::NoDevice {
            cause: "the driver knows no device".to_owned(),
        },
        Err(error) => Availability::NoDevice {
            cause: error.to_string(),
        },
    }
}

/// One stream of one GPU.
pub(super) struct Nvidia {
    libraries: Handles,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    name: String,
    /// The architecture that kernels are compiled for.
    architecture: String,
}

/// A module's handle.
type Loaded = usize;

/// Compiled kernels; modules are never unloaded.
static COMPILED: LazyLock<Compiled<CudaContext, Loaded>> = LazyLock::new(Compiled::default);

/// Whether a GPU reaches the memory of another, by reader and owner. That memory was opened to the reader when it was found out.
static REACHED: LazyLock<Mutex<HashMap<(usize, usize), bool>>> = LazyLock::new(Mutex::default);

impl Nvidia {
    /// A new stream on a GPU. The caller has seen that there [is one](availability).
    pub(super) fn new(ordinal: usize) -> Answer<Self> {
        let context = CudaContext::new(ordinal).map_err(refused("cuDevicePrimaryCtxRetain"))?;
        let stream = context.new_stream().map_err(refused("cuStreamCreate"))?;
        let (major, minor) = context
            .compute_capability()
            .map_err(refused("cuDeviceGetAttribute"))?;
        keep_memory(&context)?;
        Ok(Self {
            libraries: Handles::default(),
            name: format!(
                "{} ({ordinal})",
                context.name().map_err(refused("cuDeviceGetName"))?
            ),
            architecture: architecture(major * 10 + minor, &known_architectures()),
            context,
            stream,
        })
    }

    /// The stream's handle, for libraries that queue work on it from this thread.
    pub(super) fn stream(&self) -> Answer<usize> {
        self.bind()?;
        Ok(self.stream.cu_stream() as usize)
    }

    /// The unique identifier of this GPU.
    pub(super) fn uuid(&self) -> Answer<[u8; 16]> {
        let uuid = self.context.uuid().map_err(refused("cuDeviceGetUuid"))?;
        Ok(uuid.bytes.map(|c| c as u8))
    }

    /// Lets the other GPUs of this process access this one's memory, where they can reach it. Between ranks that are threads NCCL
    /// copies straight from one GPU to the other, and until this call memory of a pool is closed to other GPUs.
    pub(super) fn open_to_peers(&self) -> Answer<()> {
        let count = result::device::get_count().map_err(refused("cuDeviceGetCount"))?;
        let mut others = (0..count as usize).filter(|&reader| reader != self.context.ordinal());
        others.try_for_each(|reader| self.open_to(reader).map(drop))
    }

    /// Opens this GPU's memory to another GPU if that can reach it, and returns whether it can.
    fn open_to(&self, reader: usize) -> Answer<bool> {
        let pair = (reader, self.context.ordinal());
        let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&reached) = reached.get(&pair) {
            return Ok(reached);
        }
        let own = self.context.cu_device();
        let peer = result::device::get(reader as i32).map_err(refused("cuDeviceGet"))?;
        let mut can = 0;
        // SAFETY: both are devices of the driver, and the pointer is to a local.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, peer, own) }
            .result()
            .map_err(refused("cuDeviceCanAccessPeer"))?;
        if can != 0 {
            let access = sys::CUmemAccessDesc {
                location: sys::CUmemLocation {
                    type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                    id: reader as i32,
                },
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            // SAFETY: the pool is the device's own, and the description is read before the call returns.
            unsafe {
                let pool = result::device::get_default_mem_pool(own)
                    .map_err(refused("cuDeviceGetDefaultMemPool"))?;
                sys::cuMemPoolSetAccess(pool, &raw const access, 1)
                    .result()
                    .map_err(refused("cuMemPoolSetAccess"))?;
            }
        }
        reached.insert(pair, can != 0);
        Ok(can != 0)
    }

    fn bind(&self) -> Answer<()> {
        self.context
            .bind_to_thread()
            .map_err(refused("cuCtxSetCurrent"))
    }
}

/// Makes the GPU's own pool keep all memory that is freed, until [`Driver::trim`].
fn keep_memory(context: &CudaContext) -> Answer<()> {
    let mut most = u64::MAX;
    // SAFETY: the device is the context's, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())
            .map_err(refused("cuDeviceGetDefaultMemPool"))?;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut most).cast::<c_void>())
            .map_err(refused("cuMemPoolSetAttribute"))
    }
}

impl fmt::Debug for Nvidia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nvidia({})", self.name)
    }
}

impl Driver for Nvidia {
    fn name(&self) -> &str {
        &self.name
    }

    fn alloc(&self, bytes: usize) -> Answer<u64> {
        self.bind()?;
        // SAFETY: the stream is alive; only its work uses the memory, and work that waits for it.
        unsafe { result::malloc_async(self.stream.cu_stream(), bytes) }
            .map_err(refused("cuMemAllocAsync"))
    }

    fn free(&self, address: u64) {
        // A context that is gone has freed everything.
        if self.bind().is_ok() {
            // SAFETY: the address is one of `alloc`, and is freed once, in order with the work that uses it.
            let _ = unsafe { result::free_async(address, self.stream.cu_stream()) };
        }
    }

    fn upload(&self, bytes: &[u8], to: u64) -> Answer<()> {
        self.bind()?;
        // SAFETY: `to` has room for these bytes. Pageable memory is staged by the driver before this returns.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) }
            .map_err(refused("cuMemcpyHtoDAsync"))
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Answer<()> {
        self.bind()?;
        // SAFETY: `from` holds that many bytes, and the slice outlives the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(bytes, from, self.stream.cu_stream()) }
            .map_err(refused("cuMemcpyDtoHAsync"))?;
        self.synchronize()
    }

    fn alloc_pinned(&self, bytes: usize) -> Answer<u64> {
        self.bind()?;
        // SAFETY: the context is bound. Only streams of one GPU use the memory, so that no flag is needed.
        unsafe { result::malloc_host(bytes, 0) }
            .map(|memory| memory as u64)
            .map_err(refused("cuMemHostAlloc"))
    }

    fn free_pinned(&self, address: u64) {
        // A context that is gone has freed everything.
        if self.bind().is_ok() {
            // SAFETY: the address is one of `alloc_pinned`, and is freed once.
            let _ = unsafe { result::free_host(address as *mut c_void) };
        }
    }

    unsafe fn upload_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.bind()?;
        let (from, stream) = (from as *const c_void, self.stream.cu_stream());
        // SAFETY: the caller's promise; `to` has room for these bytes.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream) }
            .result()
            .map_err(refused("cuMemcpyHtoDAsync"))
    }

    unsafe fn download_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.bind()?;
        let (to, stream) = (to as *mut c_void, self.stream.cu_stream());
        // SAFETY: the caller's promise; `from` holds these bytes.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream) }
            .result()
            .map_err(refused("cuMemcpyDtoHAsync"))
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.bind()?;
        // SAFETY: both are inside memory of `alloc`, with room for these bytes, and work of other streams waits for this one's.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }
            .map_err(refused("cuMemcpyDtoDAsync"))
    }

    fn reaches(&self, owner: &dyn Driver) -> Answer<bool> {
        let owner: &dyn Any = owner;
        match owner.downcast_ref::<Self>() {
            Some(owner) if owner.context.ordinal() == self.context.ordinal() => Ok(true),
            Some(owner) => owner.open_to(self.context.ordinal()),
            None => Ok(false),
        }
    }

    fn fetch(&self, owner: &dyn Driver, from: u64, to: u64, bytes: usize) -> Answer<()> {
        let owner: &dyn Any = owner;
        let Some(owner) = owner.downcast_ref::<Self>() else {
            return Err(Refusal::new("cuMemcpyPeerAsync", "memory of no GPU"));
        };
        self.bind()?;
        let (here, there) = (self.context.cu_ctx(), owner.context.cu_ctx());
        // SAFETY: both are inside memory of `alloc`, of these contexts, with room for these bytes; the caller sees to it that
        // the source is written before this copy, and not given back until the copy is done.
        unsafe {
            sys::cuMemcpyPeerAsync(to, here, from, there, bytes, self.stream.cu_stream()).result()
        }
        .map_err(refused("cuMemcpyPeerAsync"))
    }

    fn record(&self) -> Answer<Arc<dyn Mark>> {
        self.bind()?;
        let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(refused("cuEventCreate"))?;
        let mark = Arc::new(CudaMark {
            context: Arc::clone(&self.context),
            event: event as usize,
        });
        // SAFETY: both were made here and are alive.
        unsafe { result::event::record(event, self.stream.cu_stream()) }
            .map_err(refused("cuEventRecord"))?;
        Ok(mark)
    }

    fn wait(&self, mark: &Arc<dyn Mark>) -> Answer<()> {
        let known: &dyn Any = &**mark;
        let Some(mark) = known.downcast_ref::<CudaMark>() else {
            return mark.synchronize();
        };
        self.bind()?;
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(self.stream.cu_stream(), mark.event(), flags) }
            .map_err(refused("cuStreamWaitEvent"))
    }

    fn synchronize(&self) -> Answer<()> {
        self.bind()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.stream.cu_stream()) }
            .map_err(refused("cuStreamSynchronize"))
    }

    fn trim(&self) {
        if self.synchronize().is_ok() {
            // SAFETY: the device is the context's.
            let pool = unsafe { result::device::get_default_mem_pool(self.context.cu_device()) };
            if let Ok(pool) = pool {
                // SAFETY: the pool is the device's own.
                let _ = unsafe { result::mem_pool::trim_to(pool, 0) };
            }
        }
    }

    fn sibling(&self) -> Answer<Arc<dyn Driver>> {
        let stream = (self.context.new_stream()).map_err(refused("cuStreamCreate"))?;
        Ok(Arc::new(Self {
            libraries: Handles::default(),
            context: Arc::clone(&self.context),
            stream,
            name: self.name.clone(),
            architecture: self.architecture.clone(),
        }))
    }

    fn kernel(&self, source: &KernelSource, defines: &str, name: &str) -> Answer<Function> {
        self.bind()?;
        let gpu = (self.context.ordinal(), &self.context);
        let load = || {
            // SAFETY: the image is complete; the module is never unloaded.
            let loaded = |image: &[u8]| unsafe { result::module::load_data(image.as_ptr().cast()) };
            let text = kept_as(source, defines, &self.architecture);
            let kept = cache::read(source.name, &text);
            if let Some(module) = kept.and_then(|image| loaded(&image).ok()) {
                return Ok(module as Loaded);
            }
            let image = compile(source, defines, &self.architecture)?;
            let module = loaded(&image).map_err(refused("cuModuleLoadData"))?;
            cache::write(source.name, &text, &image);
            Ok(module as Loaded)
        };
        COMPILED.get(gpu, source, defines, name, load, |module| {
            let text =
                CString::new(name).map_err(|e| Refusal::new("kernel name", e.to_string()))?;
            // SAFETY: the module is loaded, and the text ends in a zero byte.
            let function = unsafe { result::module::get_function(module as sys::CUmodule, text) };
            Ok(function.map_err(refused("cuModuleGetFunction"))? as usize)
        })
    }

    unsafe fn launch(
        &self,
        kernel: Function,
        blocks: [u32; 3],
        threads: [u32; 3],
        params: &[u8],
    ) -> Answer<()> {
        self.bind()?;
        // The driver reads the structure before it returns, at the alignment of its widest field.
        let mut aligned: Vec<u128> = vec![0; params.len().div_ceil(16)];
        bytemuck::cast_slice_mut::<_, u8>(&mut aligned)[..params.len()].copy_from_slice(params);
        let mut params = [aligned.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the function is one of `kernel`; the caller promises that its parameters fit.
        unsafe {
            result::launch_kernel(
                kernel.handle as sys::CUfunction,
                (blocks[0], blocks[1], blocks[2]),
                (threads[0], threads[1], threads[2]),
                0,
                self.stream.cu_stream(),
                &mut params,
            )
        }
        .map_err(refused("cuLaunchKernel"))
    }

    fn libraries(&self) -> Libraries {
        super::libraries()
    }

    fn plan_gemm(&self, gemm: &Gemm) -> Answer<Option<usize>> {
        self.bind()?;
        let plan = self.libraries.lt(&self.context, |lt| lt.plan(gemm))?;
        Ok(plan.flatten())
    }

    unsafe fn gemm(&self, gemm: &Gemm, workspace: (u64, usize)) -> Answer<()> {
        self.bind()?;
        let stream = self.stream.cu_stream() as usize;
        // SAFETY: the caller's promise; the stream is alive and of this context.
        let queue = |lt: &mut Lt| unsafe { lt.run(gemm, workspace, stream) };
        let queued = self.libraries.lt(&self.context, queue)?;
        queued.ok_or_else(|| Refusal::new("cuBLASLt", "a product that was not planned"))
    }

    fn plan_convolution(&self, call: &Convolution) -> Answer<Option<usize>> {
        self.bind()?;
        let stream = self.stream.cu_stream() as usize;
        let plan = (self.libraries).dnn(&self.context, stream, |dnn| dnn.plan(call))?;
        Ok(plan.flatten())
    }

    unsafe fn convolve(&self, call: &Convolution, workspace: (u64, usize)) -> Answer<()> {
        self.bind()?;
        let stream = self.stream.cu_stream() as usize;
        // SAFETY: the caller's promise.
        let queue = |dnn: &mut Dnn| unsafe { dnn.run(call, workspace) };
        let queued = self.libraries.dnn(&self.context, stream, queue)?;
        queued.ok_or_else(|| Refusal::new("cuDNN", "a convolution that was not planned"))
    }

    fn plan_fourier(&self, call: &Fourier) -> Answer<Option<usize>> {
        self.bind()?;
        let stream = self.stream.cu_stream() as usize;
        let plan = (self.libraries).fft(&self.context, stream, |fft| fft.plan(call))?;
        Ok(plan.flatten())
    }

    unsafe fn fourier(&self, call: &Fourier, workspace: (u64, usize)) -> Answer<()> {
        self.bind()?;
        let stream = self.stream.cu_stream() as usize;
        // SAFETY: the caller's promise.
        let queue = |fft: &mut FftPlans| unsafe { fft.run(call, workspace) };
        let queued = self.libraries.fft(&self.context, stream, queue)?;
        queued.ok_or_else(|| Refusal::new("cuFFT", "transforms that were not planned"))
    }
}

/// The target to compile for, for a GPU of a capability such as 90. If the compiler knows the GPU, this is the GPU's own code,
/// which every driver that knows the GPU takes. Otherwise it is PTX of the newest capability that the compiler knows, which the
/// driver translates. PTX is the second choice, because a driver refuses PTX of a compiler that is newer than itself.
pub(super) fn architecture(capability: i32, known: &[i32]) -> String {
    let older = known.iter().filter(|&&known| known < capability).max();
    match older {
        Some(older) if !known.contains(&capability) => format!("compute_{older}"),
        _ => format!("sm_{capability}"),
    }
}

/// The capabilities that the compiler knows; none if it does not say.
pub(super) fn known_architectures() -> Vec<i32> {
    // SAFETY: loads a library of the system.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Vec::new();
    }
    let mut count = 0;
    // SAFETY: the pointer is to a local.
    let counted = unsafe { nvrtc::sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many as there are.
    let told = unsafe { nvrtc::sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    if counted.result().is_err() || told.result().is_err() {
        known.clear();
    }
    known
}

/// All that the compiler's result depends on, as a text.
fn kept_as(source: &KernelSource, defines: &str, architecture: &str) -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there, as a device is; the pointers are to locals.
    let _ = unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    let text = super::text_of(source, defines);
    let exact = source.exact;
    format!("NVRTC {major}.{minor} {architecture} exact {exact}\n{text}")
}

/// Compiles a source to a GPU's own code for an architecture such as `sm_90`, or to PTX for one such as `compute_90`. Needs the
/// compiler's library, but no GPU.
pub(super) fn compile(source: &KernelSource, defines: &str, architecture: &str) -> Answer<Vec<u8>> {
    let target = [format!("--gpu-architecture={architecture}")];
    let image = with_program(source, defines, &target, |program| {
        // SAFETY: the program is alive.
        unsafe {
            match architecture.starts_with("sm_") {
                true => get_code(program),
                false => nvrtc::result::get_ptx(program),
            }
        }
    })?;
    Ok(image.into_iter().map(|c| c as u8).collect())
}

/// Whether the compiler takes a source. It makes no code of it, which takes a tenth of the time.
#[cfg(feature = "cuda-emulated")]
pub(super) fn check(source: &KernelSource, defines: &str) -> Answer<()> {
    let target = ["--gpu-architecture=compute_80", "-dlto"].map(str::to_owned);
    with_program(source, defines, &target, |_| Ok(()))
}

/// Compiles a source with some options beside those of all kernels, and takes something from what the compiler made.
fn with_program<T>(
    source: &KernelSource,
    defines: &str,
    options: &[String],
    take: impl FnOnce(nvrtc::sys::nvrtcProgram) -> Result<T, NvrtcError>,
) -> Answer<T> {
    // SAFETY: loads a library of the system.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(Refusal::new("nvrtc", "libnvrtc is not installed"));
    }
    let text = CString::new(super::text_of(source, defines))
        .map_err(|e| Refusal::new("kernel text", e.to_string()))?;
    let name = CString::new(source.name).map_err(|e| Refusal::new("name", e.to_string()))?;
    let program = nvrtc::result::create_program(&text, Some(&name))
        .map_err(|e| Refusal::new("nvrtcCreateProgram", format!("{e:?}")))?;
    let mut options = options.to_vec();
    options.push("--std=c++17".to_owned());
    if source.exact {
        // Fusing a product and a sum into one rounding would give other bits than the host.
        options.push("--fmad=false".to_owned());
    }
    // SAFETY: the program was made above and is destroyed below.
    unsafe {
        let made = match nvrtc::result::compile_program(program, &options) {
            Ok(()) => take(program).map_err(|e| Refusal::new("nvrtcGetCUBIN", format!("{e:?}"))),
            Err(error) => {
                let log = nvrtc::result::get_program_log(program).unwrap_or_default();
                let log = log.iter().map(|&c| c as u8).take_while(|&c| c != 0);
                let log = String::from_utf8_lossy(&log.collect::<Vec<_>>()).into_owned();
                let cause = format!("{error:?} in {} [{defines}]: {log}", source.name);
                Err(Refusal::new("nvrtcCompileProgram", cause))
            }
        };
        let _ = nvrtc::result::destroy_program(program);
        made
    }
}

/// The GPU's own code of a program that was compiled for the GPU's architecture.
///
/// # Safety
/// The program is alive.
unsafe fn get_code(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<i8>, NvrtcError> {
    let mut size = 0;
    // SAFETY: the caller's promise; the pointer is to a local.
    unsafe { nvrtc::sys::nvrtcGetCUBINSize(program, &raw mut size) }.result()?;
    let mut code = vec![0; size];
    // SAFETY: the caller's promise; there is room for all of it.
    unsafe { nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr()) }.result()?;
    Ok(code)
}

/// An event of CUDA. Events and streams may be used from any thread while their context is alive.
struct CudaMark {
    context: Arc<CudaContext>,
    event: usize,
}

impl CudaMark {
    fn event(&self) -> sys::CUevent {
        self.event as sys::CUevent
    }
}

impl fmt::Debug for CudaMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaMark({:#x})", self.event)
    }
}

impl Mark for CudaMark {
    fn synchronize(&self) -> Answer<()> {
        self.context
            .bind_to_thread()
            .map_err(refused("cuCtxSetCurrent"))?;
        // SAFETY: the event is alive until this is dropped.
        unsafe { result::event::synchronize(self.event()) }.map_err(refused("cuEventSynchronize"))
    }

    fn is_done(&self) -> Answer<bool> {
        self.context
            .bind_to_thread()
            .map_err(refused("cuCtxSetCurrent"))?;
        // SAFETY: the event is alive until this is dropped.
        match unsafe { result::event::query(self.event()) } {
            Ok(()) => Ok(true),
            Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(refused("cuEventQuery")(error)),
        }
    }
}

impl Drop for CudaMark {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made by `record`, destroyed once; the driver keeps what is still in flight.
            let _ = unsafe { result::event::destroy(self.event()) };
        }
    }
}

fn refused(call: &'static str) -> impl Fn(DriverError) -> Refusal {
    move |error| match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Refusal::OutOfMemory,
        code => {
            let text = error.error_string().map(CStr::to_string_lossy);
            Refusal::new(call, text.map_or_else(|_| format!("{code:?}"), Into::into))
        }
    }
}
