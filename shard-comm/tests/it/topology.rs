//! How fast machines compute.

use std::time::Duration;

use shard_comm::{Machine, Work, WorkStats};

#[test]
fn a_calibrated_machine_repeats_what_was_measured() {
    let work = Work {
        flops: 1000,
        bytes: 10,
    };
    let spent = WorkStats {
        calls: 4,
        work: work + work + work + work,
        time: Duration::from_micros(12),
    };
    let machine = Machine::new(1e9, 1e9)
        .with_launch(1e-6)
        .calibrated(&[("slow", spent)]);
    assert!((machine.time("slow", work) - 4e-6).abs() < 1e-12);
    assert!((machine.time("other", work) - 2e-6).abs() < 1e-12);
    assert!((machine.slowed(2.0).time("slow", work) - 8e-6).abs() < 1e-12);
}
