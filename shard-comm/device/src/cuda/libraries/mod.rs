//! NVIDIA's libraries for the ops that most of the arithmetic is in: cuBLASLt for [products](Cuda::matmul), cuDNN for
//! [convolutions](Cuda::convolve) and cuFFT for [Fourier transforms](Cuda::fourier).
//!
//! All are optional, and loaded when they are first asked for. A call is described by a few plain structures (`terms.rs`) in
//! the library's own terms. Two drivers take these: NVIDIA's (`cublaslt.rs`, `cudnn/`, `cufft.rs`), which hands each field to the library
//! under the name it has there, and the emulation (`played.rs`), which does with plain loops what the library's manual says.
//! That way the translation of views into these terms is tested without a GPU.

pub(super) mod conv;
mod cublaslt;
mod cudnn;
mod cufft;
mod fourier;
pub(super) mod matmul;
mod nvidia;
#[cfg(feature = "cuda-emulated")]
pub(super) mod played;
mod rewritten;

pub use conv::ConvCall;
pub(super) use cublaslt::Lt;
pub(super) use cudnn::Dnn;
pub(super) use cufft::FftPlans;
pub(super) use nvidia::Handles;

use super::Cuda;
use super::terms::{Libraries, Library};
use crate::{BufferMut, DType, Device, Result};

/// Which optional libraries were found, and for the others why they are not used. Never panics, and needs no GPU.
///
/// All ranks should find the same libraries, because which one computed a value shows in its last bits.
///
/// ```
/// use shard_device::cuda::{Library, libraries};
/// let found = libraries();
/// if let Library::Missing { cause } = found.cudnn {
///     println!("convolutions run on kernels of our own: {cause}");
/// }
/// ```
pub fn libraries() -> Libraries {
    Libraries {
        cublaslt: cublaslt::found().clone(),
        cudnn: cudnn::found().clone(),
        cufft: cufft::found().clone(),
    }
}

impl Cuda {
    /// The optional libraries that [`matmul`](Self::matmul), [`convolve`](Self::convolve) and [`fourier`](Self::fourier) call on
    /// this device: those of the [machine](libraries), or their emulation where the device is emulated.
    pub fn libraries(&self) -> Libraries {
        self.driver.libraries()
    }

    /// Memory for a library to work in. It is given back after the work queued until it is dropped.
    fn workspace(&self, bytes: usize) -> Result<BufferMut> {
        self.alloc(DType::U8, bytes)
    }
}

#[cfg(test)]
mod tests;
