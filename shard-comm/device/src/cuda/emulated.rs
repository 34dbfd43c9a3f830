//! The host in the place of a GPU: kernels compiled by its C++ compiler, for tests where there is no GPU.
#![expect(
    unsafe_code,
    reason = "calls into kernels that were compiled at run time"
)]

use std::alloc::{Layout, alloc, dealloc};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use libloading::Library;

use super::KernelSource;
use super::cache;
use super::compiled::Compiled;
use super::driver::{Answer, Driver, Function, Mark, Refusal};
use super::libraries::played;
use super::queue::Queue;
use super::terms::{Convolution, Fourier, Gemm, Libraries};
use crate::pool::poison;

/// A queue whose calls do their work before they return. Its siblings ([`Queue`](super::queue::Queue)) work on threads of their
/// own. Fresh memory is poisoned.
#[derive(Clone, Debug)]
pub(super) struct Emulated {
    context: Arc<Context>,
}

/// State that the queues of one emulated GPU share. It ends with the last of them, and so do the kernels loaded into it.
#[derive(Debug)]
struct Context {
    gpu: usize,
    /// Whether this GPU can access the memory of other GPUs.
    reaches: bool,
}

/// The contexts that are alive, by GPU.
static CONTEXTS: LazyLock<Mutex<HashMap<usize, Weak<Context>>>> = LazyLock::new(Mutex::default);
/// Kernels, by handle.
static LOADED: LazyLock<Mutex<Vec<Loaded>>> = LazyLock::new(Mutex::default);
/// The context that a kernel was loaded into, and the kernel's address.
type Loaded = (Weak<Context>, usize);
static COMPILED: LazyLock<Compiled<Context, &'static Library>> = LazyLock::new(Compiled::default);

impl Emulated {
    /// A queue of an emulated GPU. The first queue of a GPU decides whether the GPU `reaches` the memory of others.
    pub(super) fn new(gpu: usize, reaches: bool) -> Self {
        let mut contexts = lock(&CONTEXTS);
        let known = contexts.get(&gpu).and_then(Weak::upgrade);
        let context = known.unwrap_or_else(|| Arc::new(Context { gpu, reaches }));
        contexts.insert(gpu, Arc::downgrade(&context));
        Self { context }
    }
}

/// The emulated GPU of a queue.
fn of(driver: &dyn Driver) -> Option<&Emulated> {
    let any: &dyn Any = driver;
    let queue = || any.downcast_ref::<Queue>().map(Queue::emulated);
    any.downcast_ref::<Emulated>().or_else(queue)
}

/// The sizes of all allocations, by address, of all queues.
static MEMORY: LazyLock<Mutex<HashMap<u64, usize>>> = LazyLock::new(Mutex::default);
/// Compiled texts, by hash. Libraries stay loaded. Who compiles one keeps nobody from another.
static LIBRARIES: LazyLock<Mutex<HashMap<u64, Place>>> = LazyLock::new(Mutex::default);
/// Where a library will be.
type Place = Arc<Mutex<Option<&'static Library>>>;

/// The signature that kernels are called by: blocks, threads of a block, parameters, and where threads of a block get memory.
type Launch = unsafe extern "C" fn(*const u32, *const u32, *const u8, Room);
/// Memory of at least as many bytes. It is the calling thread's until its next launch.
type Room = extern "C" fn(usize) -> *mut u128;

thread_local! {
    /// What launches of this thread had: stacks, whose pages cost nothing until they are used.
    static ROOM: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
}

extern "C" fn room(bytes: usize) -> *mut u128 {
    ROOM.with_borrow_mut(|room| {
        let count = bytes.div_ceil(size_of::<u128>());
        if room.len() < count {
            *room = vec![0; count];
        }
        room.as_mut_ptr()
    })
}

/// What kernels are linked with: functions of numbers. To look for names in the library of C++, which no GPU has, takes longer than
/// most kernels take to compile. A name that is missing is an error of the linker's.
const LINKED_WITH: &[&str] = match cfg!(target_os = "linux") {
    true => &["-nodefaultlibs", "-Wl,-z,defs", "-lm", "-lc", "-lgcc"],
    false => &[],
};

/// Whether a compiler is there.
pub(super) fn is_available() -> bool {
    let asked = Command::new(compiler()).arg("--version").output();
    asked.is_ok_and(|answer| answer.status.success())
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned())
}

impl Driver for Emulated {
    fn name(&self) -> &str {
        "emulated"
    }

    fn alloc(&self, bytes: usize) -> Answer<u64> {
        let layout = layout(bytes)?;
        // SAFETY: the size is not zero: `Cuda` sees to that, and `layout` makes sure of it.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            return Err(Refusal::OutOfMemory);
        }
        // SAFETY: freshly allocated with this size.
        unsafe { memory.write_bytes(0, layout.size()) };
        // SAFETY: as above, initialised, and nobody else knows of it yet.
        poison(unsafe { std::slice::from_raw_parts_mut(memory, layout.size()) });
        lock(&MEMORY).insert(memory as u64, layout.size());
        Ok(memory as u64)
    }

    fn free(&self, address: u64) {
        let size = lock(&MEMORY).remove(&address);
        if let Some(layout) = size.and_then(|size| layout(size).ok()) {
            // SAFETY: allocated above with this layout, and no longer listed.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }

    fn upload(&self, bytes: &[u8], to: u64) -> Answer<()> {
        // SAFETY: `Cuda` gives addresses inside its own memory, with room for these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Answer<()> {
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len());
        };
        Ok(())
    }

    fn alloc_pinned(&self, bytes: usize) -> Answer<u64> {
        self.alloc(bytes)
    }

    fn free_pinned(&self, address: u64) {
        self.free(address);
    }

    unsafe fn upload_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.copy(from, to, bytes)
    }

    unsafe fn download_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.copy(from, to, bytes)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        // SAFETY: as above, for both addresses; the caller says that they have no byte in common.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    fn reaches(&self, owner: &dyn Driver) -> Answer<bool> {
        let Some(owner) = of(owner) else {
            return Ok(false);
        };
        Ok(owner.context.gpu == self.context.gpu || self.context.reaches)
    }

    fn fetch(&self, _: &dyn Driver, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.copy(from, to, bytes)
    }

    fn record(&self) -> Answer<Arc<dyn Mark>> {
        Ok(Arc::new(Done))
    }

    fn wait(&self, mark: &Arc<dyn Mark>) -> Answer<()> {
        mark.synchronize()
    }

    fn synchronize(&self) -> Answer<()> {
        Ok(())
    }

    fn trim(&self) {}

    fn sibling(&self) -> Answer<Arc<dyn Driver>> {
        Ok(Arc::new(Queue::new(self.clone())?))
    }

    fn kernel(&self, source: &KernelSource, defines: &str, name: &str) -> Answer<Function> {
        let gpu = (self.context.gpu, &self.context);
        let load = || library(source, defines);
        COMPILED.get(gpu, source, defines, name, load, |library| {
            let symbol = format!("launch_{name}\0");
            // SAFETY: every kernel of an emulated source has a function of this type by this name.
            let found = unsafe { library.get::<Launch>(symbol.as_bytes()) };
            let launch = found.map_err(|e| Refusal::new("dlsym", e.to_string()))?;
            let mut loaded = lock(&LOADED);
            loaded.push((Arc::downgrade(&self.context), *launch as usize));
            Ok(loaded.len() - 1)
        })
    }

    unsafe fn launch(
        &self,
        kernel: Function,
        blocks: [u32; 3],
        threads: [u32; 3],
        params: &[u8],
    ) -> Answer<()> {
        let mut aligned: Vec<u128> = vec![0; params.len().div_ceil(16)];
        bytemuck::cast_slice_mut::<_, u8>(&mut aligned)[..params.len()].copy_from_slice(params);
        let loaded = lock(&LOADED).get(kernel.handle).cloned();
        let (context, launch) = loaded.ok_or_else(|| Refusal::new("launch", "no such kernel"))?;
        match context.upgrade() {
            Some(context) if context.gpu == self.context.gpu => {}
            Some(_) => return Err(Refusal::new("launch", "the kernel is another GPU's")),
            None => return Err(Refusal::new("launch", "the kernel's context has ended")),
        }
        // SAFETY: the address is one of `kernel`, a function of a library that stays loaded.
        let launch = unsafe { std::mem::transmute::<usize, Launch>(launch) };
        let (blocks, threads, params) = (blocks.as_ptr(), threads.as_ptr(), aligned.as_ptr());
        // SAFETY: the caller promises that the parameters fit.
        unsafe { launch(blocks, threads, params.cast(), room) };
        Ok(())
    }

    fn libraries(&self) -> Libraries {
        played::libraries()
    }

    fn plan_gemm(&self, gemm: &Gemm) -> Answer<Option<usize>> {
        played::plan_gemm(gemm)
    }

    unsafe fn gemm(&self, gemm: &Gemm, workspace: (u64, usize)) -> Answer<()> {
        // SAFETY: the caller's promise; addresses are of the host.
        unsafe { played::gemm(gemm, workspace) }
    }

    fn plan_convolution(&self, call: &Convolution) -> Answer<Option<usize>> {
        played::plan_convolution(call)
    }

    unsafe fn convolve(&self, call: &Convolution, workspace: (u64, usize)) -> Answer<()> {
        // SAFETY: the caller's promise; addresses are of the host.
        unsafe { played::convolve(call, workspace) }
    }

    fn plan_fourier(&self, call: &Fourier) -> Answer<Option<usize>> {
        played::plan_fourier(call)
    }

    unsafe fn fourier(&self, call: &Fourier, workspace: (u64, usize)) -> Answer<()> {
        // SAFETY: the caller's promise.
        unsafe { played::fourier(call, workspace) }
    }
}

fn layout(bytes: usize) -> Answer<Layout> {
    Layout::from_size_align(bytes.max(1), 256).map_err(|_| Refusal::OutOfMemory)
}

/// The mark of a queue whose work is done when the mark is recorded.
#[derive(Debug)]
struct Done;

impl Mark for Done {
    fn synchronize(&self) -> Answer<()> {
        Ok(())
    }

    fn is_done(&self) -> Answer<bool> {
        Ok(true)
    }
}

/// The library of a compiled text: loaded by this process before, compiled by an earlier process, or compiled now.
fn library(source: &KernelSource, defines: &str) -> Answer<&'static Library> {
    let text = format!(
        "{}\n{}",
        include_str!("source/emulated.h"),
        super::text_of(source, defines)
    );
    let mut hasher = DefaultHasher::new();
    (&text, source.exact).hash(&mut hasher);
    let hash = hasher.finish();
    let place = Arc::clone(lock(&LIBRARIES).entry(hash).or_default());
    let mut place = lock(&place);
    if let Some(library) = *place {
        return Ok(library);
    }
    let folder = cache::folder().map_err(failed("mkdir"))?;
    let path = folder.join(format!("{}-{hash:016x}.so", source.name));
    if !path.exists() {
        accepted_by_nvidia(source, defines)?;
        compile(&path, &text, source.exact)?;
    }
    // SAFETY: the library was made from a text of this crate or of its user; it has no initialisers.
    let library = unsafe { Library::new(&path) }.map_err(failed("dlopen"))?;
    Ok(place.insert(Box::leak(Box::new(library))))
}

/// NVIDIA's compiler must accept a text too, where it is installed: it finds other functions for the same names than the host's.
fn accepted_by_nvidia(source: &KernelSource, defines: &str) -> Answer<()> {
    match super::nvidia::check(source, defines) {
        Err(Refusal::Failed { call: "nvrtc", .. }) => Ok(()),
        answer => answer,
    }
}

fn compile(path: &Path, text: &str, exact: bool) -> Answer<()> {
    // Another process may compile the same text: each writes its own file, and the last to rename its file wins.
    let own = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut compiler = Command::new(compiler())
        .args([
            "-x",
            "c++",
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            "-w",
            "-fwrapv",
            "-fno-exceptions",
            "-fno-rtti",
        ])
        .arg(if exact {
            "-ffp-contract=off"
        } else {
            "-ffp-contract=fast"
        })
        .args(["-o".as_ref(), own.as_os_str(), "-".as_ref()])
        .args(LINKED_WITH)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed("c++"))?;
    if let Some(mut stdin) = compiler.stdin.take() {
        stdin.write_all(text.as_bytes()).map_err(failed("c++"))?;
    }
    let answer = compiler.wait_with_output().map_err(failed("c++"))?;
    if !answer.status.success() {
        let cause = String::from_utf8_lossy(&answer.stderr).into_owned();
        return Err(Refusal::new("c++", cause));
    }
    std::fs::rename(&own, path).map_err(failed("rename"))
}

fn failed<E: std::fmt::Display>(call: &'static str) -> impl Fn(E) -> Refusal {
    move |error| Refusal::new(call, error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
