//! The contract on GPUs, with ranks that are threads.

use shard_comm::cuda::{Availability, availability};
use shard_comm::local::{self, LocalOptions};
use shard_comm::{DeviceKind, LaunchError, contract};

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
