//! What moved, counted, and what is remembered of it.

use shard_comm::{CommError, DType, ExchangePlan, Host, Ledger, OpCount, Piece};

/// Rank 0 reads a number of each of two others.
fn two_messages() -> ExchangePlan {
    let recv = [Piece::run(1, 0, 1, 0, 0), Piece::run(2, 0, 1, 0, 1)];
    ExchangePlan::new("halo", 0, recv.into(), [].into(), None, None)
}

#[test]
fn a_snapshot_prints_what_moved() {
    let ledger = Ledger::new(Host::new());
    let moved = two_messages();
    ledger.moved("halo", &moved, 0, Some(DType::F64));
    ledger.moved("barrier", &ExchangePlan::empty("barrier"), 0, None);
    let text = ledger.snapshot().to_string();
    assert!(
        text.starts_with("2 rounds; received 16 bytes in 2 messages"),
        "{text}"
    );
    assert!(
        text.contains("\n  halo: 1 rounds, 16 bytes in 2 messages"),
        "{text}"
    );
    assert!(text.ends_with("\n  barrier: 1 rounds"), "{text}");
}

#[test]
fn differences_keep_only_what_happened() {
    let ledger = Ledger::new(Host::new());
    let moved = two_messages();
    ledger.moved("a", &moved, 0, Some(DType::F64));
    let before = ledger.snapshot();
    ledger.moved("b", &moved, 0, Some(DType::F64));
    let since = ledger.since(&before);
    assert_eq!((since.rounds, since.bytes), (1, 16));
    assert_eq!(
        since.ops,
        [(
            "b",
            OpCount {
                rounds: 1,
                messages: 2,
                bytes: 16
            }
        )]
    );
    assert_eq!(ledger.snapshot().op("a").messages, 2);
}

#[test]
fn a_trace_is_off_until_asked_for() {
    let ledger = Ledger::new(Host::new());
    ledger.note("lost");
    ledger.trace(true);
    ledger.note("kept");
    let labels: Vec<_> = ledger.events().into_iter().map(|e| e.label).collect();
    assert_eq!(labels, ["kept"]);
}

#[test]
fn the_flight_recorder_forgets_the_oldest() {
    let ledger = Ledger::new(Host::new());
    let site = std::panic::Location::caller();
    for sequence in 0..100 {
        ledger.posted("op", sequence, site);
    }
    let recent = ledger.recent();
    assert_eq!((recent.len(), recent[0].sequence), (64, 100 - 64));
    ledger.remember(3);
    ledger.posted("op", 100, site);
    let sequences =
        |ledger: &Ledger| -> Vec<u64> { ledger.recent().iter().map(|op| op.sequence).collect() };
    assert_eq!(sequences(&ledger), [98, 99, 100]);
    ledger.remember(0);
    ledger.posted("op", 101, site);
    assert!(sequences(&ledger).is_empty());
}

#[test]
fn the_first_failure_is_kept_with_what_led_to_it() {
    let ledger = Ledger::new(Host::new());
    let site = std::panic::Location::caller();
    let failed = |cause: &str| CommError::PeerFailed {
        origin: 1,
        cause: cause.into(),
    };
    ledger.posted("a", 0, site);
    ledger.failed(&CommError::invalid("a", "b", "c", "d"));
    assert_eq!(ledger.flight_record(), None);
    ledger.failed(&failed("out of paper"));
    ledger.posted("b", 1, site);
    ledger.failed(&failed("out of ink"));
    let record = ledger.flight_record().unwrap();
    assert_eq!(record.cause, failed("out of paper"));
    assert_eq!(
        record.to_string(),
        format!(
            "rank 1 failed: out of paper\nthe last operations, oldest first:\n  a (operation 0) at {site}"
        )
    );
}
