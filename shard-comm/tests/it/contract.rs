//! The contract on the local backend, on both of its devices.

use shard_comm::local::{Interleaving, LocalOptions, run_with};
use shard_comm::{DeviceKind, HostOptions, contract};

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
    run_with(ranks, &options, |comm| contract::all(&comm)).unwrap();
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

#[test]
fn ranks_that_run_one_at_a_time_keep_the_contract_in_every_order() {
    for ranks in 1..=5 {
        for seed in 0..20 {
            let options = LocalOptions {
                device: [DeviceKind::Host, DeviceKind::Test][seed as usize % 2],
                interleaving: Interleaving::Seeded(seed),
                ..LocalOptions::default()
            };
            run_with(ranks, &options, |comm| contract::all(&comm)).unwrap();
        }
    }
}
