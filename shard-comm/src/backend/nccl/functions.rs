//! The functions of NCCL that are called, looked up once, in whichever file the library is.
#![expect(unsafe_code, reason = "loads functions of a C library")]
#![expect(non_snake_case, reason = "functions have the names they have in C")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use libloading::Library;

use super::library::failed;
use crate::Result;

/// The names of the library's file. NVIDIA's packages install the name with the number; developers' packages the bare name too.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

macro_rules! functions {
    ($($name:ident: ($($argument:ty),*) -> $result:ty,)*) => {
        /// The functions, which stay loaded.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        // SAFETY: a function of this name has this type in every NCCL from the oldest supported one on.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        *found.map_err(|_| {
                            failed("probe", concat!("libnccl has no ", stringify!($name)))
                        })?
                    },)*
                })
            }
        }
    };
}

functions! {
    ncclAllGather: (*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t) -> ncclResult_t,
    ncclAllReduce: (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) -> ncclResult_t,
    ncclBroadcast: (*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t,
    ncclCommAbort: (ncclComm_t) -> ncclResult_t,
    ncclCommCount: (ncclComm_t, *mut c_int) -> ncclResult_t,
    ncclCommDestroy: (ncclComm_t) -> ncclResult_t,
    ncclCommFinalize: (ncclComm_t) -> ncclResult_t,
    ncclCommGetAsyncError: (ncclComm_t, *mut ncclResult_t) -> ncclResult_t,
    ncclCommInitRankConfig: (*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> ncclResult_t,
    ncclCommSplit: (ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> ncclResult_t,
    ncclGetLastError: (ncclComm_t) -> *const c_char,
    ncclGetUniqueId: (*mut ncclUniqueId) -> ncclResult_t,
    ncclGroupEnd: () -> ncclResult_t,
    ncclGroupStart: () -> ncclResult_t,
    ncclRecv: (*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t,
    ncclReduceScatter: (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) -> ncclResult_t,
    ncclSend: (*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t,
}

static LOADED: OnceLock<Functions> = OnceLock::new();

/// The functions of the library, if they have been loaded.
pub(super) fn loaded() -> Option<&'static Functions> {
    LOADED.get()
}

/// Loads the library. Returns its version, if it is at least `oldest`, and its functions.
///
/// # Errors
/// [`CommError::Backend`](crate::CommError::Backend) that says what is missing.
pub(super) fn load(oldest: i32) -> Result<(c_int, &'static Functions)> {
    // SAFETY: loads a library of the system, whose initialisers are its own.
    let open = |name: &str| unsafe { Library::new(name) }.ok();
    let found = NAMES.into_iter().find_map(open);
    let library = found.ok_or_else(|| {
        failed(
            "probe",
            "no libnccl.so.2 in any folder of LD_LIBRARY_PATH; it is part of the Python package nvidia-nccl-cu13",
        )
    })?;
    let mut version = 0;
    // SAFETY: the function has this type in every NCCL; the pointer is to a local.
    let code = unsafe {
        let get =
            library.get::<unsafe extern "C" fn(*mut c_int) -> ncclResult_t>(b"ncclGetVersion");
        get.map(|get| get(&raw mut version))
    };
    if !matches!(code, Ok(ncclResult_t::ncclSuccess)) {
        return Err(failed("probe", "libnccl does not say its version"));
    }
    // An older version may lack functions.
    if version >= oldest && LOADED.get().is_none() {
        drop(LOADED.set(Functions::of(&library)?));
    }
    // The library stays loaded: its functions are kept, and it may have threads.
    std::mem::forget(library);
    match LOADED.get() {
        Some(functions) if version >= oldest => Ok((version, functions)),
        _ => {
            let [version, oldest] = [version, oldest].map(super::Version);
            Err(failed(
                "probe",
                &format!("NCCL {version} is older than {oldest}"),
            ))
        }
    }
}
