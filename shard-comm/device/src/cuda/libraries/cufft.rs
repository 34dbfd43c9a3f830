//! cuFFT itself, loaded when it is first asked for. All calls to it are here.
//!
//! The library is used only if it is [asked for](ASKED): while five programs shared a GPU, transforms by it ended in illegal accesses in all
//! of them, though one program alone gave right results. Until it is known why, and shown that it is mended, transforms are those of the
//! kernels of this workspace.
#![expect(
    unsafe_code,
    reason = "calls into cuFFT, whose plans this file alone holds"
)]

use std::collections::HashMap;
use std::ffi::{c_longlong, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock};

use cudarc::cufft::sys::{self, cufftHandle, cufftResult as Status, cufftType as Type};
use cudarc::driver::{CudaContext, result};

use super::Library;
use crate::DType;
use crate::cuda::driver::{Answer, Refusal};
use crate::cuda::terms::{Fourier, FourierKind};

/// The oldest version that is used: that of CUDA 13, whose status codes are the ones named here.
const OLDEST: i32 = 12_000;
/// The variable of the environment that asks for the library, alike on all ranks.
const ASKED: &str = "SHARD_CUFFT";
/// Plans kept; each holds tables in the GPU's memory. When there are more, all are ended and made again as needed.
const PLANS: usize = 64;
/// `CUFFT_FORWARD` and `CUFFT_INVERSE`.
const FORWARD: i32 = -1;
const INVERSE: i32 = 1;

/// The functions that are called; an old library may lack some of them.
const CALLED: [&str; 13] = [
    "cufftCreate",
    "cufftDestroy",
    "cufftExecC2C",
    "cufftExecC2R",
    "cufftExecD2Z",
    "cufftExecR2C",
    "cufftExecZ2D",
    "cufftExecZ2Z",
    "cufftGetVersion",
    "cufftMakePlanMany64",
    "cufftSetAutoAllocation",
    "cufftSetStream",
    "cufftSetWorkArea",
];

/// Whether the library is there. cudarc panics where it or one of its functions is missing, so this looks for all of them first.
pub(super) fn found() -> &'static Library {
    static FOUND: LazyLock<Library> = LazyLock::new(|| {
        if std::env::var_os(ASKED).is_none_or(|asked| asked != "1") {
            return Library::missing(
                "not asked for: set SHARD_CUFFT=1 on all ranks for transforms by cuFFT, which is not yet shown to be right while several \
                 programs share a GPU",
            );
        }
        // SAFETY: loads a library of the system; the names are cudarc's own.
        if !unsafe { sys::is_culib_present() } {
            return Library::missing(
                "libcufft is in no folder of LD_LIBRARY_PATH (CUDA toolkit, or the Python package nvidia-cufft)",
            );
        }
        let has = |name: &&&str| {
            // SAFETY: the library is there; the symbol is only looked for.
            unsafe { sys::culib().get::<*const c_void>(name.as_bytes()).is_ok() }
        };
        if let Some(name) = CALLED.iter().find(|name| !has(name)) {
            return Library::missing(format!("libcufft has no {name}"));
        }
        let mut version = 0;
        // SAFETY: the function was looked for; the pointer is to a local.
        match unsafe { sys::cufftGetVersion(&raw mut version) } {
            Status::CUFFT_SUCCESS if version >= OLDEST => Library::Found {
                version: version as usize,
            },
            Status::CUFFT_SUCCESS => {
                Library::missing(format!("version {version} is older than {OLDEST}"))
            }
            other => Library::missing(format!("cufftGetVersion: {other:?}")),
        }
    });
    &FOUND
}

/// Plans of the library for one stream, in a context of CUDA.
pub(in crate::cuda) struct FftPlans {
    context: Arc<CudaContext>,
    stream: usize,
    /// The plans by call without addresses; `None` where the library cannot compute the transforms.
    plans: HashMap<Fourier, Option<Plan>>,
}

/// A plan that the library made, and the bytes of workspace that it needs.
#[derive(Clone, Copy, Debug)]
struct Plan {
    handle: cufftHandle,
    workspace: usize,
}

impl FftPlans {
    /// No plans yet, for a stream of the context.
    pub(super) fn new(context: &Arc<CudaContext>, stream: usize) -> Self {
        Self {
            context: Arc::clone(context),
            stream,
            plans: HashMap::new(),
        }
    }

    /// The bytes of workspace that transforms need; `None` if the library cannot compute them.
    pub(in crate::cuda) fn plan(&mut self, call: &Fourier) -> Answer<Option<usize>> {
        Ok(self.planned(call)?.map(|plan| plan.workspace))
    }

    fn planned(&mut self, call: &Fourier) -> Answer<Option<Plan>> {
        let key = Fourier {
            x: 0,
            y: 0,
            ..*call
        };
        if let Some(&plan) = self.plans.get(&key) {
            return Ok(plan);
        }
        if self.plans.len() >= PLANS {
            self.end();
        }
        let plan = make(&key, self.stream)?;
        self.plans.insert(key, plan);
        Ok(plan)
    }

    /// Queues transforms that were planned.
    ///
    /// # Safety
    /// As [`Driver::fourier`](crate::cuda::driver::Driver::fourier). The plans' context is current on this thread.
    pub(in crate::cuda) unsafe fn run(
        &mut self,
        call: &Fourier,
        (workspace, bytes): (u64, usize),
    ) -> Answer<()> {
        let plan = self.planned(call)?.filter(|plan| plan.workspace <= bytes);
        let plan =
            plan.ok_or_else(|| Refusal::new("cufftExec", "transforms that were not planned"))?;
        // SAFETY: the plan is alive, and the workspace has the bytes that it asked for.
        accept("cufftSetWorkArea", unsafe {
            sys::cufftSetWorkArea(plan.handle, workspace as *mut c_void)
        })?;
        let (x, y) = (call.x as *mut c_void, call.y as *mut c_void);
        let direction = |inverse| if inverse { INVERSE } else { FORWARD };
        // SAFETY: the plan is alive and describes the lines; the caller promises that their memory may be touched.
        let status = unsafe {
            match (call.kind, call.dtype) {
                (FourierKind::Complex { inverse }, DType::F64) => {
                    sys::cufftExecZ2Z(plan.handle, x.cast(), y.cast(), direction(inverse))
                }
                (FourierKind::Complex { inverse }, _) => {
                    sys::cufftExecC2C(plan.handle, x.cast(), y.cast(), direction(inverse))
                }
                (FourierKind::FromReal, DType::F64) => {
                    sys::cufftExecD2Z(plan.handle, x.cast(), y.cast())
                }
                (FourierKind::FromReal, _) => sys::cufftExecR2C(plan.handle, x.cast(), y.cast()),
                (FourierKind::ToReal, DType::F64) => {
                    sys::cufftExecZ2D(plan.handle, x.cast(), y.cast())
                }
                (FourierKind::ToReal, _) => sys::cufftExecC2R(plan.handle, x.cast(), y.cast()),
            }
        };
        accept("cufftExec", status)
    }

    /// Ends all plans, after the work that uses their tables.
    fn end(&mut self) {
        // SAFETY: the stream belongs to this rank's device, which outlives its plans.
        let waited = unsafe { result::stream::synchronize(self.stream as _) };
        for plan in self.plans.drain().filter_map(|(_, plan)| plan) {
            // A plan whose stream failed stays: the library may still use its tables.
            if waited.is_ok() {
                // SAFETY: made by `make`, ended once.
                let _ = unsafe { sys::cufftDestroy(plan.handle) };
            }
        }
    }
}

impl Drop for FftPlans {
    fn drop(&mut self) {
        // A context that is gone has ended everything in it.
        if self.context.bind_to_thread().is_ok() {
            self.end();
        }
    }
}

/// A plan for a stream; `None` if the library has none.
fn make(call: &Fourier, stream: usize) -> Answer<Option<Plan>> {
    let lengths = [call.n, call.lines].map(c_longlong::try_from);
    let [Ok(mut n), Ok(lines)] = lengths else {
        return Ok(None);
    };
    let kind = match (call.kind, call.dtype) {
        (FourierKind::Complex { .. }, DType::F64) => Type::CUFFT_Z2Z,
        (FourierKind::Complex { .. }, _) => Type::CUFFT_C2C,
        (FourierKind::FromReal, DType::F64) => Type::CUFFT_D2Z,
        (FourierKind::FromReal, _) => Type::CUFFT_R2C,
        (FourierKind::ToReal, DType::F64) => Type::CUFFT_Z2D,
        (FourierKind::ToReal, _) => Type::CUFFT_C2R,
    };
    let mut handle = 0;
    // SAFETY: the pointer is to a local.
    accept("cufftCreate", unsafe { sys::cufftCreate(&raw mut handle) })?;
    let mut workspace = 0;
    // SAFETY: the plan is alive and the pointers are to locals. Lines without embedding lie one behind the other.
    let (quiet, made, placed) = unsafe {
        let quiet = sys::cufftSetAutoAllocation(handle, 0);
        let (none, one) = (null_mut(), 1);
        let (own, bytes) = (&raw mut n, &raw mut workspace);
        let made = sys::cufftMakePlanMany64(
            handle, 1, own, none, one, 0, none, one, 0, kind, lines, bytes,
        );
        (
            quiet,
            made,
            sys::cufftSetStream(handle, stream as sys::cudaStream_t),
        )
    };
    // The plan's tables are written on the stream that others do not wait for.
    // SAFETY: the null stream is that of the context, which is current on this thread.
    let written = unsafe { result::stream::synchronize(null_mut()) };
    let written = written.map_err(|e| Refusal::new("cuStreamSynchronize", e.to_string()));
    let checked = accept("cufftSetAutoAllocation", quiet)
        .and_then(|()| accept("cufftMakePlanMany64", made))
        .and_then(|()| accept("cufftSetStream", placed))
        .and(written);
    if let Err(refusal) = checked {
        // SAFETY: made above, ended once.
        let _ = unsafe { sys::cufftDestroy(handle) };
        return match made {
            Status::CUFFT_INVALID_SIZE | Status::CUFFT_NOT_SUPPORTED => Ok(None),
            _ => Err(refusal),
        };
    }
    Ok(Some(Plan { handle, workspace }))
}

/// Success, or the status as a refusal.
fn accept(call: &'static str, status: Status) -> Answer<()> {
    match status {
        Status::CUFFT_SUCCESS => Ok(()),
        Status::CUFFT_ALLOC_FAILED => Err(Refusal::OutOfMemory),
        other => Err(Refusal::new(call, format!("{other:?}"))),
    }
}
