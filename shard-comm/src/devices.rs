//! Devices of ranks: by their kind, or from a factory.

use std::fmt;
use std::sync::Arc;

use shard_device::Result;

use crate::{DeviceError, DeviceKind, DeviceRef};

/// A new device of a kind, for the rank with this number in the process: GPUs are assigned in turn.
///
/// # Errors
/// [`DeviceError::Library`] if there is no such device here, or if this was built without the feature it needs.
pub fn device_of(kind: DeviceKind, rank: usize) -> Result<DeviceRef> {
    match kind {
        DeviceKind::Host => Ok(shard_device::Host::new()),
        DeviceKind::Test => Ok(shard_device::TestDevice::new()),
        crate::simulated::PHANTOM => Ok(crate::simulated::idle_device()),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => crate::cuda::Cuda::of_rank(rank),
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => Err(built_without("cuda", rank)),
        #[cfg(feature = "cuda-emulated")]
        DeviceKind::EmulatedCuda => crate::cuda::Cuda::emulated(),
        #[cfg(not(feature = "cuda-emulated"))]
        DeviceKind::EmulatedCuda => Err(built_without("cuda-emulated", rank)),
        _ => Err(unknown(kind)),
    }
}

/// Makes the devices of the ranks of a launch, which may be devices of other crates: see
/// [`LocalOptions::make`](crate::local::LocalOptions::make).
///
/// Two factories are equal if one is a clone of the other.
///
/// ```
/// use shard_comm::{DeviceFactory, DeviceKind, DeviceRef, Host, TestDevice, local};
/// // Every other rank's memory cannot be read.
/// let make = DeviceFactory::new(|rank| {
///     let device: DeviceRef = if rank % 2 == 0 { Host::new() } else { TestDevice::new() };
///     Ok(device)
/// });
/// let options = local::LocalOptions { make: Some(make), ..Default::default() };
/// let kinds = local::run_with(3, &options, |comm| comm.device().kind()).unwrap();
/// assert_eq!(kinds, [DeviceKind::Host, DeviceKind::Test, DeviceKind::Host]);
/// ```
#[derive(Clone)]
pub struct DeviceFactory(Arc<Make>);

type Make = dyn Fn(usize) -> Result<DeviceRef> + Send + Sync;

impl DeviceFactory {
    /// A factory that is called once for each rank, with its number in the launch.
    pub fn new(make: impl Fn(usize) -> Result<DeviceRef> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// The device of a rank.
    ///
    /// # Errors
    /// An error of the factory.
    pub fn make(&self, rank: usize) -> Result<DeviceRef> {
        (self.0)(rank)
    }
}

impl PartialEq for DeviceFactory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DeviceFactory {}

impl fmt::Debug for DeviceFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceFactory")
    }
}

/// The error for a device of another crate: only that crate can make it.
fn unknown(kind: DeviceKind) -> DeviceError {
    DeviceError::invalid(
        "device_of",
        "a device of this crate",
        kind.to_string(),
        "hand a DeviceFactory to the launch",
    )
}

#[cfg(not(feature = "cuda-emulated"))]
fn built_without(feature: &str, rank: usize) -> DeviceError {
    DeviceError::Library {
        library: "cuda",
        call: "device_of",
        cause: format!("rank {rank} asks for a device that needs the feature {feature}").into(),
    }
}
