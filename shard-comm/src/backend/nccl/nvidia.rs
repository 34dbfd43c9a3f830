//! NCCL itself, loaded when it is first asked for. All of this backend's calls to it are here.
//!
//! Communicators do not block: a call that is under way is polled until it is done, so that a rank can give up waiting
//! and abort.
#![expect(
    unsafe_code,
    reason = "calls into NCCL, whose handles this file alone holds"
)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{
    self, ncclComm, ncclComm_t, ncclConfig_t, ncclDataType_t as Type, ncclRedOp_t as RedOp,
    ncclResult_t as Code,
};

use super::functions::{self, Functions};
use super::library::{
    Batch, Call, Clique, Data, Library, Op, Patience, Place, Ticket, Version, check_parts, failed,
};
use crate::cuda::Cuda;
use crate::{DType, Result};

/// How long a communicator that is dropped may take to finish before it is aborted.
const PARTING: Duration = Duration::from_secs(2);

/// `NCCL_CONFIG_INITIALIZER`: the magic number of a configuration, and the value that stands for "not set".
const MAGIC: u32 = 0xcafe_beef;
const UNDEFINED: i32 = i32::MIN;
/// The version whose configuration this is, or the library's version if that is older.
const CONFIGURATION: i32 = 22403;

/// The library of this machine: its version and functions.
pub(super) struct Nccl(Version, &'static Functions);

impl Nccl {
    /// Loads the library.
    pub(super) fn load() -> Result<Self> {
        let (version, functions) = functions::load(Version::OLDEST.0)?;
        Ok(Self(Version(version), functions))
    }

    fn configuration(&self) -> ncclConfig_t {
        ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: MAGIC,
            version: CONFIGURATION.min(self.0.0).cast_unsigned(),
            blocking: 0,
            cgaClusterSize: UNDEFINED,
            minCTAs: UNDEFINED,
            maxCTAs: UNDEFINED,
            netName: null_mut(),
            splitShare: UNDEFINED,
        }
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nccl").field(&self.0).finish()
    }
}

impl Library for Nccl {
    fn version(&self) -> Version {
        self.0
    }

    fn ticket(&self) -> Result<Ticket> {
        let mut id = MaybeUninit::<sys::ncclUniqueId>::uninit();
        // SAFETY: the pointer is to a local, which the call fills unless it fails.
        let id = unsafe {
            accept(
                "ncclGetUniqueId",
                (self.1.ncclGetUniqueId)(id.as_mut_ptr()),
                null_mut(),
            )?;
            id.assume_init()
        };
        Ok(Ticket(id.internal.iter().map(|&c| c as u8).collect()))
    }

    fn gpu(&self, stream: &Cuda) -> Result<[u8; 16]> {
        Ok(stream.uuid()?)
    }

    fn join(
        &self,
        ticket: &Ticket,
        rank: usize,
        size: usize,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Box<dyn Clique>> {
        const CALL: &str = "ncclCommInitRankConfig";
        bind(stream)?;
        stream.open_to_peers()?;
        let mut id = sys::ncclUniqueId {
            internal: [0; Ticket::BYTES],
        };
        for (c, &byte) in id.internal.iter_mut().zip(&ticket.0) {
            *c = byte as c_char;
        }
        let mut configuration = self.configuration();
        let cell = Handle::new();
        // SAFETY: the configuration is complete and read before the call returns; the cell is never moved or freed.
        let code = unsafe {
            (self.1.ncclCommInitRankConfig)(
                cell.out(),
                size as i32,
                id,
                rank as i32,
                &raw mut configuration,
            )
        };
        accept(CALL, code, null_mut())?;
        let clique = NcclClique::new(self.1, cell, self.configuration(), size);
        clique.finish_call(CALL, patience)?;
        Ok(Box::new(clique))
    }
}

/// A cell where NCCL writes a communicator's pointer, perhaps later and from a thread of its own: memory that is never freed.
#[derive(Clone, Copy)]
struct Handle(&'static AtomicPtr<ncclComm>);

impl Handle {
    fn new() -> Self {
        Self(Box::leak(Box::new(AtomicPtr::new(null_mut()))))
    }

    fn out(self) -> *mut ncclComm_t {
        self.0.as_ptr()
    }

    fn get(self) -> ncclComm_t {
        self.0.load(Ordering::Acquire)
    }
}

/// One communicator. It stays on its thread.
struct NcclClique {
    nccl: &'static Functions,
    handle: Handle,
    configuration: ncclConfig_t,
    size: Cell<usize>,
    gone: Cell<bool>,
}

impl NcclClique {
    fn new(
        nccl: &'static Functions,
        handle: Handle,
        configuration: ncclConfig_t,
        size: usize,
    ) -> Self {
        Self {
            nccl,
            handle,
            configuration,
            size: Cell::new(size),
            gone: Cell::new(false),
        }
    }

    /// The communicator, unless it was aborted.
    fn comm(&self, call: &'static str) -> Result<ncclComm_t> {
        let comm = self.handle.get();
        if self.gone.get() || comm.is_null() {
            return Err(failed(call, "the communicator was aborted"));
        }
        Ok(comm)
    }

    /// Whether the last call is done.
    fn is_idle(&self, call: &'static str) -> Result<bool> {
        let comm = self.handle.get();
        if comm.is_null() && !self.gone.get() {
            // The communicator is not made yet.
            return Ok(false);
        }
        let comm = self.comm(call)?;
        let mut state = Code::ncclSuccess;
        // SAFETY: the communicator is alive, and the pointer is to a local.
        let code = unsafe { (self.nccl.ncclCommGetAsyncError)(comm, &raw mut state) };
        accept("ncclCommGetAsyncError", code, comm)?;
        accept(call, state, comm)?;
        Ok(state != Code::ncclInProgress)
    }

    /// Waits until the last call is done, which means that its work is queued. A rank whose patience ends aborts.
    fn finish_call(&self, call: &'static str, patience: Patience<'_>) -> Result<()> {
        loop {
            let idle = self.is_idle(call).inspect_err(|_| self.abort())?;
            if idle {
                return Ok(());
            }
            patience().inspect_err(|_| self.abort())?;
            std::thread::yield_now();
        }
    }

    /// Makes the calls of a batch.
    fn call(&self, comm: ncclComm_t, batch: &mut Batch, cuda: &Cuda, stream: usize) -> Result<()> {
        let (nccl, stream) = (&self.nccl, stream as sys::cudaStream_t);
        let ranks = self.size.get();
        for call in std::mem::take(&mut batch.calls) {
            let from = |batch: &Batch, from| batch.source(cuda, from);
            // SAFETY, for all calls: the communicator and the stream are alive; addresses and lengths are those of ranges
            // inside buffers of this GPU that stay allocated until the stream is past this (`Batch::in_use`); nobody else
            // writes them, and nobody else reads those that are written.
            let (name, code) = match &call {
                Call::Send { to, from: source } => {
                    let at = from(batch, source)?;
                    let (data, n, peer) = (read(at), at.bytes(), *to as i32);
                    // SAFETY: as said above.
                    let code = unsafe { (nccl.ncclSend)(data, n, BYTES, peer, comm, stream) };
                    ("ncclSend", code)
                }
                Call::Recv { from, into } => {
                    let at = batch.destination(cuda, into)?;
                    let (data, n, peer) = (write(at), at.bytes(), *from as i32);
                    // SAFETY: as said above.
                    let code = unsafe { (nccl.ncclRecv)(data, n, BYTES, peer, comm, stream) };
                    ("ncclRecv", code)
                }
                Call::AllGather { from: source, into } => {
                    let (at, to) = (from(batch, source)?, batch.destination(cuda, into)?);
                    check_parts("ncclAllGather", at.elements, to.elements, ranks)?;
                    let (data, to, n) = (read(at), write(to), at.bytes());
                    // SAFETY: as said above.
                    let code = unsafe { (nccl.ncclAllGather)(data, to, n, BYTES, comm, stream) };
                    ("ncclAllGather", code)
                }
                Call::Broadcast { root, data } => {
                    let at = match data {
                        Data::Source(source) => from(batch, source)?,
                        Data::Sink(into) => batch.destination(cuda, into)?,
                    };
                    let (data, to, n, root) = (read(at), write(at), at.bytes(), *root as i32);
                    // SAFETY: as said above; in place the root only reads.
                    let code =
                        unsafe { (nccl.ncclBroadcast)(data, to, n, BYTES, root, comm, stream) };
                    ("ncclBroadcast", code)
                }
                Call::ReduceScatter {
                    op,
                    from: source,
                    into,
                } => {
                    let (at, to) = (from(batch, source)?, batch.destination(cuda, into)?);
                    check_parts("ncclReduceScatter", to.elements, at.elements, ranks)?;
                    let (dtype, op) = (type_of(at.dtype), operation(*op));
                    let (data, to, n) = (read(at), write(to), to.elements);
                    // SAFETY: as said above.
                    let code =
                        unsafe { (nccl.ncclReduceScatter)(data, to, n, dtype, op, comm, stream) };
                    ("ncclReduceScatter", code)
                }
                Call::AllReduce {
                    op,
                    from: source,
                    into,
                } => {
                    let (at, to) = (from(batch, source)?, batch.destination(cuda, into)?);
                    check_parts("ncclAllReduce", at.elements, to.elements, 1)?;
                    let (dtype, op) = (type_of(at.dtype), operation(*op));
                    let (data, to, n) = (read(at), write(to), at.elements);
                    // SAFETY: as said above.
                    let code =
                        unsafe { (nccl.ncclAllReduce)(data, to, n, dtype, op, comm, stream) };
                    ("ncclAllReduce", code)
                }
            };
            accept(name, code, comm)?;
        }
        Ok(())
    }
}

impl Clique for NcclClique {
    fn begin(&self, batch: &mut Batch, stream: &Cuda) -> Result<()> {
        let comm = self.comm(QUEUE)?;
        let queue = bind(stream)?;
        // SAFETY: no group of this thread is open: every one is closed below.
        let code = unsafe { (self.nccl.ncclGroupStart)() };
        accept("ncclGroupStart", code, comm)?;
        let called = self.call(comm, batch, stream, queue);
        // SAFETY: closes the group opened above, also after an error.
        let ended = unsafe { (self.nccl.ncclGroupEnd)() };
        called
            .and_then(|()| accept(QUEUE, ended, comm))
            .inspect_err(|_| self.abort())
    }

    fn is_queued(&self, _: &Cuda) -> Result<bool> {
        self.is_idle(QUEUE).inspect_err(|_| self.abort())
    }

    fn split(
        &self,
        color: Option<usize>,
        key: usize,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Option<Box<dyn Clique>>> {
        const CALL: &str = "ncclCommSplit";
        /// `NCCL_SPLIT_NOCOLOR`.
        const NO_COLOR: i32 = -1;
        let comm = self.comm(CALL)?;
        bind(stream)?;
        let mut configuration = self.configuration;
        let cell = Handle::new();
        let color_number = color.map_or(NO_COLOR, |c| c as i32);
        // SAFETY: the communicator is alive, the configuration is complete and read before the call returns; the cell, which
        // is written when the split is done, is never moved or freed.
        let code = unsafe {
            (self.nccl.ncclCommSplit)(
                comm,
                color_number,
                key as i32,
                cell.out(),
                &raw mut configuration,
            )
        };
        accept(CALL, code, comm).inspect_err(|_| self.abort())?;
        self.finish_call(CALL, patience)?;
        if color.is_none() {
            return Ok(None);
        }
        let clique = Self::new(self.nccl, cell, configuration, 0);
        clique.finish_call(CALL, patience)?;
        let mut size = 0;
        let comm = clique.comm(CALL)?;
        // SAFETY: the communicator is alive, and the pointer is to a local.
        let code = unsafe { (self.nccl.ncclCommCount)(comm, &raw mut size) };
        accept("ncclCommCount", code, comm)?;
        clique.size.set(size as usize);
        Ok(Some(Box::new(clique)))
    }

    fn check(&self) -> Result<()> {
        self.is_idle("ncclCommGetAsyncError").map(drop)
    }

    fn abort(&self) {
        let comm = self.handle.get();
        if !comm.is_null() && !self.gone.replace(true) {
            // SAFETY: the communicator is alive until this call, and not used afterwards. No other thread is ever inside NCCL
            // with it.
            let _ = unsafe { (self.nccl.ncclCommAbort)(comm) };
        }
    }
}

impl Drop for NcclClique {
    fn drop(&mut self) {
        let Ok(comm) = self.comm("drop") else {
            return;
        };
        // SAFETY: the communicator is alive.
        let code = unsafe { (self.nccl.ncclCommFinalize)(comm) };
        let begun = Instant::now();
        let mut finished = matches!(code, Code::ncclSuccess | Code::ncclInProgress);
        while finished && !std::thread::panicking() {
            match self.is_idle("ncclCommFinalize") {
                Ok(true) => {
                    self.gone.set(true);
                    // SAFETY: the communicator is finished, and not used afterwards.
                    let _ = unsafe { (self.nccl.ncclCommDestroy)(comm) };
                    return;
                }
                Ok(false) => finished = begun.elapsed() < PARTING,
                Err(_) => finished = false,
            }
            std::thread::yield_now();
        }
        self.abort();
    }
}

impl fmt::Debug for NcclClique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclClique({:p})", self.handle.get())
    }
}

/// The call after which a group of calls is under way.
const QUEUE: &str = "ncclGroupEnd";

/// The type for elements that are only moved: to NCCL they are bytes.
const BYTES: Type = Type::ncclUint8;

fn read(place: Place) -> *const c_void {
    place.address as *const c_void
}

fn write(place: Place) -> *mut c_void {
    place.address as *mut c_void
}

fn type_of(dtype: DType) -> Type {
    match dtype {
        DType::F64 => Type::ncclFloat64,
        DType::F32 => Type::ncclFloat32,
        DType::F16 => Type::ncclFloat16,
        DType::BF16 => Type::ncclBfloat16,
        DType::I64 => Type::ncclInt64,
        DType::I32 => Type::ncclInt32,
        DType::U8 | DType::Bool => Type::ncclUint8,
    }
}

fn operation(op: Op) -> RedOp {
    match op {
        Op::Sum => RedOp::ncclSum,
        Op::Prod => RedOp::ncclProd,
        Op::Max => RedOp::ncclMax,
        Op::Min => RedOp::ncclMin,
    }
}

/// Makes the GPU of a stream current on this thread, and returns the stream's handle.
fn bind(stream: &Cuda) -> Result<usize> {
    Ok(stream.raw_stream()?)
}

/// Success, or "in progress"; otherwise an error with NCCL's message.
fn accept(call: &'static str, code: Code, comm: ncclComm_t) -> Result<()> {
    let text = match code {
        Code::ncclSuccess | Code::ncclInProgress => return Ok(()),
        Code::ncclUnhandledCudaError => "a call to CUDA failed",
        Code::ncclSystemError => "a call to the system failed",
        Code::ncclInternalError => "an internal check failed",
        Code::ncclInvalidArgument => "an argument is not valid",
        Code::ncclInvalidUsage => "a use that is not valid",
        Code::ncclRemoteError => "another process ended, or the network failed",
        _ => "an unknown error",
    };
    let Some(nccl) = functions::loaded() else {
        return Err(failed(call, text));
    };
    // SAFETY: returns a text that lives as long as the library, or null.
    let last = unsafe { (nccl.ncclGetLastError)(comm) };
    if last.is_null() {
        return Err(failed(call, text));
    }
    // SAFETY: a text that ends in a zero byte.
    let last = unsafe { CStr::from_ptr(last) }.to_string_lossy();
    match last.trim() {
        "" => Err(failed(call, text)),
        last => Err(failed(call, &format!("{text}: {last}"))),
    }
}
