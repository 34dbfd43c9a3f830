//! Parts that the drivers of the libraries share: handles that are made when they are first needed, and descriptions that
//! end with their scope.
#![expect(unsafe_code, reason = "ends descriptions of the libraries")]

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaContext;

use super::cublaslt::{self, Lt};
use super::cudnn::{self, Dnn};
use super::cufft::{self, FftPlans};
use crate::cuda::driver::Answer;

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
        if !cublaslt::found().is_found() {
            return Ok(None);
        }
        let mut lt = self.lt.lock().unwrap_or_else(PoisonError::into_inner);
        let lt = match &mut *lt {
            Some(lt) => lt,
            none => none.insert(Lt::new(context)?),
        };
        work(lt).map(Some)
    }

    /// Works with the stream's handle of cuDNN, if the library is there. The stream's context is current on this thread.
    pub(in crate::cuda) fn dnn<T>(
        &self,
        context: &Arc<CudaContext>,
        stream: usize,
        work: impl FnOnce(&mut Dnn) -> Answer<T>,
    ) -> Answer<Option<T>> {
        if !cudnn::found().is_found() {
            return Ok(None);
        }
        let mut dnn = self.dnn.lock().unwrap_or_else(PoisonError::into_inner);
        let dnn = match &mut *dnn {
            Some(dnn) => dnn,
            none => none.insert(Dnn::new(context, stream)?),
        };
        work(dnn).map(Some)
    }

    /// Works with the stream's plans of cuFFT, if the library is there. The stream's context is current on this thread.
    pub(in crate::cuda) fn fft<T>(
        &self,
        context: &Arc<CudaContext>,
        stream: usize,
        work: impl FnOnce(&mut FftPlans) -> Answer<T>,
    ) -> Answer<Option<T>> {
        if !cufft::found().is_found() {
            return Ok(None);
        }
        let mut fft = self.fft.lock().unwrap_or_else(PoisonError::into_inner);
        let plans = fft.get_or_insert_with(|| FftPlans::new(context, stream));
        work(plans).map(Some)
    }
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
