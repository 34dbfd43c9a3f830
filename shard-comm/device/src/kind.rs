//! The kinds of device, by name.

use std::fmt;
use std::str::FromStr;

/// The kinds of device that a buffer can live on. As text, for instance on command lines, they are `host`, `test`, `cuda` and
/// `emulated-cuda`.
///
/// ```
/// use shard_device::DeviceKind;
/// assert_eq!("cuda".parse(), Ok(DeviceKind::Cuda));
/// assert_eq!(DeviceKind::EmulatedCuda.to_string(), "emulated-cuda");
/// assert!("gpu".parse::<DeviceKind>().unwrap_err().to_string().contains("cuda"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The memory of this process; see [`Host`](crate::Host).
    Host,
    /// The stand-in for an accelerator; see [`TestDevice`](crate::TestDevice).
    Test,
    /// An NVIDIA GPU; see the module `cuda`, which the feature of that name brings.
    Cuda,
    /// The stand-in for a GPU, whose kernels run on the host; see `Cuda::emulated` in the same module.
    EmulatedCuda,
    /// A device that another crate brings, by its name.
    Other(&'static str),
}

impl DeviceKind {
    /// The kinds that can be read from text.
    const NAMED: [Self; 4] = [Self::Host, Self::Test, Self::Cuda, Self::EmulatedCuda];

    /// Whether the device runs kernels for GPUs: on a GPU, or on its stand-in.
    pub fn is_cuda(self) -> bool {
        matches!(self, Self::Cuda | Self::EmulatedCuda)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Test => "test",
            Self::Cuda => "cuda",
            Self::EmulatedCuda => "emulated-cuda",
            Self::Other(name) => name,
        })
    }
}

/// The error for a text that names no [`DeviceKind`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no device: expected host, test, cuda or emulated-cuda")]
pub struct UnknownDevice(String);

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownDevice> {
        let named = |kind: &Self| kind.to_string() == text;
        let found = Self::NAMED.into_iter().find(named);
        found.ok_or_else(|| UnknownDevice(text.to_owned()))
    }
}
