//! The communicator over NCCL itself, where there are GPUs, and its errors where there are none.

#[cfg(feature = "cuda-emulated")]
mod emulated;

use shard_comm::nccl::{NcclAvailability, NcclOptions, availability, run};
use shard_comm::{DeviceKind, LaunchError, contract};

/// One rank per GPU, as many as there are.
#[test]
fn the_contract_holds_on_gpus() {
    if let NcclAvailability::Ready { devices, version } = availability() {
        println!("NCCL {version}");
        for ranks in 1..=devices.min(4) {
            run(ranks, &NcclOptions::default(), |comm| contract::all(&comm)).unwrap();
        }
    }
}

#[test]
fn where_there_is_no_gpu_or_no_library_asking_for_it_is_a_typed_error() {
    if !matches!(availability(), NcclAvailability::Ready { .. }) {
        let error = run(2, &NcclOptions::default(), |_| ()).unwrap_err();
        assert!(matches!(error, LaunchError::Device(_)), "{error}");
    }
    // The library cannot use memory of the host: all ranks get the error.
    let options = NcclOptions {
        device: DeviceKind::Host,
        ..NcclOptions::default()
    };
    let error = run(2, &options, |_| ()).unwrap_err();
    assert!(error.to_string().contains("Cuda"), "{error}");
}
