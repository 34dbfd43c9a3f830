//! NVIDIA's libraries for what most of the arithmetic goes into: cuBLASLt for [products](Cuda::matmul) and cuDNN for
//! [convolutions](Cuda::convolve).
//!
//! Both are optional, and loaded when they are first asked for. What they are asked is said in a few plain structures
//! ([`Gemm`], [`Convolution`]) in the library's own terms, and two drivers take these: NVIDIA's (`cublaslt.rs`, `cudnn.rs`),
//! which hands each field to the library under the name it has there, and the emulation (`played.rs`), which does with plain
//! loops what the library's manual says of them. So that views become the right terms is tested without a GPU.

pub(super) mod conv;
mod cublaslt;
mod cudnn;
pub(super) mod matmul;
mod nvidia;
#[cfg(feature = "cuda-emulated")]
pub(super) mod played;

use std::fmt;

pub use conv::{ConvCall, ConvKind};
pub(super) use cublaslt::Lt;
pub(super) use cudnn::Dnn;
pub(super) use nvidia::Handles;

use super::Cuda;
use crate::{BufferMut, DType, Device, Result};

/// Whether an optional library can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Library {
    /// It is there.
    Found {
        /// Its version, as it counts: 130200 is 13.2.0 of cuBLASLt, 91900 is 9.19.0 of cuDNN.
        version: usize,
    },
    /// It is not, or is no use: kernels of this workspace's own do its work.
    Missing {
        /// Why.
        cause: String,
    },
}

impl Library {
    fn missing(cause: impl Into<String>) -> Self {
        Self::Missing {
            cause: cause.into(),
        }
    }

    fn is_found(&self) -> bool {
        matches!(self, Self::Found { .. })
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found { version } => write!(f, "{version}"),
            Self::Missing { cause } => write!(f, "not used: {cause}"),
        }
    }
}

/// The optional libraries of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Libraries {
    /// `libcublasLt`: products of matrices.
    pub cublaslt: Library,
    /// `libcudnn`: convolutions.
    pub cudnn: Library,
}

impl fmt::Display for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuBLASLt {}, cuDNN {}", self.cublaslt, self.cudnn)
    }
}

/// Which optional libraries were found, and of the others why they are not used. Never panics, and needs no GPU.
///
/// All ranks should find the same: which one computed a value shows in its last bits.
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
    }
}

impl Cuda {
    /// The optional libraries that [`matmul`](Self::matmul) and [`convolve`](Self::convolve) call on this device: those of the
    /// [machine](libraries), or what plays them where the device is emulated.
    pub fn libraries(&self) -> Libraries {
        self.driver.libraries()
    }

    /// Memory for a library to work in, which goes back when the work queued until its end is done.
    fn workspace(&self, bytes: usize) -> Result<BufferMut> {
        self.alloc(DType::U8, bytes)
    }
}

#[cfg(test)]
mod tests;
