//! How placements are printed and read.

use shard_spec::{Placement, ReduceOp, SpecError};

#[test]
fn every_placement_prints_and_parses() {
    let all = ReduceOp::ALL
        .map(Placement::Partial)
        .into_iter()
        .chain([Placement::Replicate, Placement::Shard(17)]);
    for placement in all {
        assert_eq!(placement.to_string().parse(), Ok(placement));
    }
}

#[test]
fn junk_is_refused_with_its_text() {
    for junk in [
        "",
        "S",
        "S()",
        "S(x)",
        "S(-1)",
        "P(avg)",
        "R ",
        "s(0)",
        "S(0",
        "S(99999999999999999999)",
    ] {
        match junk.parse::<Placement>() {
            Err(SpecError::Parse { got, .. }) => assert_eq!(got, junk),
            other => panic!("{junk:?} gave {other:?}"),
        }
    }
}
