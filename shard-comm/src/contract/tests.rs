//! The contract on the local backend, on both of its devices.

use crate::local::{LocalOptions, run_with};
use crate::{DeviceKind, HostOptions};

fn check(ranks: usize, device: DeviceKind) {
    let host = HostOptions {
        poison: true,
        ..HostOptions::default()
    };
    let options = LocalOptions {
        device,
        host,
        ..LocalOptions::default()
    };
    run_with(ranks, &options, |comm| super::all(&comm)).unwrap();
}

#[test]
fn host_ranks_keep_the_contract() {
    for ranks in 1..=8 {
        check(ranks, DeviceKind::Host);
    }
}

#[test]
fn test_device_ranks_keep_the_contract() {
    for ranks in [1, 2, 3, 5, 8] {
        check(ranks, DeviceKind::Test);
    }
}
