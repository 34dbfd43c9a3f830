//! Which runs are tried with which.

use shard_spec::Run;
use shard_spec::inside::candidates;
use shard_spec::{Intersection, Progression};
use std::collections::BTreeSet;

use proptest::prelude::*;

fn runs(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Run>> {
    let run = (
        50usize..90,
        50usize..90,
        1usize..8,
        prop::sample::select(vec![0isize, 1, 1, 1, 2, 3, 4, 6]),
        prop::sample::select(vec![0isize, 1, 1, -1, 2, -3, 4, 6]),
    );
    let run = run.prop_map(|(dst_start, src_start, len, dst_step, src_step)| Run {
        dst_start,
        src_start,
        len,
        dst_step,
        src_step,
    });
    prop::collection::vec(run, count)
}

fn progression(start: usize, step: isize, len: usize) -> Progression {
    Progression {
        start: start as isize,
        step,
        len,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Many runs of all kinds: every pair that meets is tried, and no pair twice.
    #[test]
    fn all_that_meets_is_found(first in runs(0..40), second in runs(0..40)) {
        let mut tried = Vec::new();
        candidates(&first, &second, |i, j| tried.push((i, j)));
        let once: BTreeSet<(usize, usize)> = tried.iter().copied().collect();
        prop_assert_eq!(once.len(), tried.len());
        for (i, a) in first.iter().enumerate() {
            for (j, b) in second.iter().enumerate() {
                let written = progression(a.dst_start, a.dst_step, a.len);
                let read = progression(b.src_start, b.src_step, b.len);
                let meet = written.intersect(&read) != Intersection::Never;
                prop_assert!(!meet || once.contains(&(i, j)), "{a:?} {b:?}");
            }
        }
    }
}

fn run(dst_start: usize, len: usize, dst_step: isize) -> Run {
    Run {
        dst_start,
        src_start: dst_start,
        len,
        dst_step,
        src_step: dst_step,
    }
}

#[test]
fn intervals_are_tried_as_often_as_they_overlap() {
    // Ten thousand intervals of lengths 1 to 7 with gaps, against as many that lie otherwise.
    let intervals = |salt: usize| -> Vec<Run> {
        let mut at = salt;
        let next = |i: usize| {
            let len = 1 + (i * 5 + salt) % 7;
            at += len + (i * 3) % 4;
            run(at - len, len, 1)
        };
        (0..10_000).map(next).collect()
    };
    let (first, second) = (intervals(0), intervals(3));
    let mut tried = 0;
    candidates(&first, &second, |_, _| tried += 1);
    assert!(
        (5_000..30_000).contains(&tried),
        "{tried} pairs were tried of 10^8"
    );
}

#[test]
fn strides_of_other_rests_are_not_tried() {
    // A thousand strides of 2000, and as many of 1000 that lie between them: all overlap, none meets.
    let first: Vec<Run> = (0..1000).map(|i| run(2 * i, 50, 2000)).collect();
    let second: Vec<Run> = (0..500).map(|i| run(2 * i + 1, 50, 1000)).collect();
    candidates(&first, &second, |i, j| panic!("{i} and {j} were tried"));
    let single: Vec<Run> = (0..1000).map(|i| run(2 * i + 1, 1, 1)).collect();
    candidates(&first, &single, |i, j| panic!("{i} and {j} were tried"));
}
