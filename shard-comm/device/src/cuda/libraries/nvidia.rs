//! Parts that the drivers of the libraries share: handles that are made when they are first needed, what libraries say of calls that they
//! refuse, and descriptions that end with their scope.
#![expect(
    unsafe_code,
    reason = "reads texts of the libraries, and ends their descriptions"
)]

use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaContext;

use super::Library;
use super::cublaslt::{self, Lt};
use super::cudnn::{self, Dnn};
use super::cufft::{self, FftPlans};
use crate::cuda::driver::{Answer, Refusal};

/// The libraries' handles for one stream. They must end before the context that they were made in.
#[derive(Default)]
pub(in crate::cuda) struct Handles {
    lt: Mutex<Option<Lt>>,
    dnn: Mutex<Option<Dnn>>,
    fft: Mutex<Option<FftPlans>>,
}

impl Handles {
    /// Works with the stream's handle of cuBLASLt, if the library is there. The stream's context is current on this thread.
    pub(in crate::cuda) fn lt<T>(
        &self,
        context: &Arc<CudaContext>,
        work: impl FnOnce(&mut Lt) -> Answer<T>,
    ) -> Answer<Option<T>> {
        with(&self.lt, cublaslt::found(), || Lt::new(context), work)
    }

    /// Works with the stream's handle of cuDNN, if the library is there. The stream's context is current on this thread.
    pub(in crate::cuda) fn dnn<T>(
        &self,
        context: &Arc<CudaContext>,
        stream: usize,
        work: impl FnOnce(&mut Dnn) -> Answer<T>,
    ) -> Answer<Option<T>> {
        with(
            &self.dnn,
            cudnn::found(),
            || Dnn::new(context, stream),
            work,
        )
    }

    /// Works with the stream's plans of cuFFT, if the library is there. The stream's context is current on this thread.
    pub(in crate::cuda) fn fft<T>(
        &self,
        context: &Arc<CudaContext>,
        stream: usize,
        work: impl FnOnce(&mut FftPlans) -> Answer<T>,
    ) -> Answer<Option<T>> {
        let new = || Ok(FftPlans::new(context, stream));
        with(&self.fft, cufft::found(), new, work)
    }
}

/// Works with a handle, which is made at its first use; `None` if the library is not there.
fn with<H, T>(
    handle: &Mutex<Option<H>>,
    library: &Library,
    new: impl FnOnce() -> Answer<H>,
    work: impl FnOnce(&mut H) -> Answer<T>,
) -> Answer<Option<T>> {
    if !library.is_found() {
        return Ok(None);
    }
    let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = match &mut *handle {
        Some(handle) => handle,
        none => none.insert(new()?),
    };
    work(handle).map(Some)
}

/// A library's message about a call that it refused.
///
/// # Safety
/// `text` is null, or a text that ends in a zero byte and lives as long as the library.
pub(super) unsafe fn refusal(
    call: &'static str,
    status: impl fmt::Debug,
    text: *const c_char,
) -> Refusal {
    if text.is_null() {
        return Refusal::new(call, format!("{status:?}"));
    }
    // SAFETY: the caller's promise.
    Refusal::new(call, unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handles")
    }
}

/// A description that a library made; it ends with the scope.
pub(super) struct Description<T, S> {
    raw: *mut T,
    end: unsafe fn(*mut T) -> S,
}

impl<T, S> Description<T, S> {
    /// Takes over a description that a library made and that `end` ends.
    ///
    /// # Safety
    /// `raw` is alive, nobody else ends it, and `end` may be called with it once.
    pub(super) unsafe fn new(raw: *mut T, end: unsafe fn(*mut T) -> S) -> Self {
        Self { raw, end }
    }

    pub(super) fn raw(&self) -> *mut T {
        self.raw
    }
}

impl<T, S> Drop for Description<T, S> {
    fn drop(&mut self) {
        // SAFETY: promised to `new`.
        let _ = unsafe { (self.end)(self.raw) };
    }
}
