//! A device by its kind.

use shard_device::Result;

use crate::{DeviceError, DeviceKind, DeviceRef};

/// A new device of a kind, for the process's rank of this number: GPUs are shared out in turn.
///
/// # Errors
/// [`DeviceError::Library`] if there is no such device here, or this was built without what it needs.
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

/// A device of another crate: that crate makes it.
fn unknown(kind: DeviceKind) -> DeviceError {
    DeviceError::invalid(
        "device_of",
        "a device of this crate",
        kind.to_string(),
        "make it yourself and hand it to the launch",
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

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::cuda::{Availability, availability};
    use crate::local::{self, LocalOptions};
    use crate::{LaunchError, contract};

    fn on(device: DeviceKind) -> LocalOptions {
        LocalOptions {
            device,
            ..LocalOptions::default()
        }
    }

    /// The emulation, where it is built, and a GPU, where there is one.
    #[test]
    fn the_contract_holds_on_gpus() {
        let mut kinds = Vec::new();
        if cfg!(feature = "cuda-emulated") {
            kinds.push(DeviceKind::EmulatedCuda);
        }
        if matches!(availability(), Availability::Ready { .. }) {
            kinds.push(DeviceKind::Cuda);
        }
        for device in kinds {
            for ranks in [1, 2, 3, 4] {
                local::run_with(ranks, &on(device), |comm| contract::all(&comm)).unwrap();
            }
        }
    }

    #[test]
    fn where_there_is_no_gpu_launching_on_one_is_a_typed_error() {
        if !matches!(availability(), Availability::Ready { .. }) {
            let error = local::run_with(2, &on(DeviceKind::Cuda), |_| ()).unwrap_err();
            assert!(matches!(error, LaunchError::Device(_)), "{error}");
        }
    }
}
