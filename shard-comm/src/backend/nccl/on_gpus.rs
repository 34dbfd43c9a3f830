//! The communicator over NCCL itself, where there are GPUs; and what it says where there are none.

use super::*;
use crate::{LaunchError, contract};

/// One rank per GPU, as many as there are.
#[test]
fn the_contract_holds_on_gpus() {
    if let Availability::Ready { devices, version } = availability() {
        println!("NCCL {version}");
        for ranks in 1..=devices.min(4) {
            run(ranks, &NcclOptions::default(), |comm| contract::all(&comm)).unwrap();
        }
    }
}

#[test]
fn where_there_is_no_gpu_or_no_library_asking_for_it_is_a_typed_error() {
    if !matches!(availability(), Availability::Ready { .. }) {
        let error = run(2, &NcclOptions::default(), |_| ()).unwrap_err();
        assert!(matches!(error, LaunchError::Device(_)), "{error}");
    }
    // Memory of the host is none that the library knows: all ranks hear of it.
    let options = NcclOptions {
        device: DeviceKind::Host,
        ..NcclOptions::default()
    };
    let error = run(2, &options, |_| ()).unwrap_err();
    assert!(error.to_string().contains("Cuda"), "{error}");
}
