//! What reads from outside, on mutated inputs.

use ndarray::Ix2;
use shard_ops::testing::Rng;
use shard_redistribute::Plan;
use shard_spec::{DeviceMesh, Layout, Partition};
use shard_tensor::data::Npy;
use std::panic::catch_unwind;
use xtests::parsers::{ALL, LAYOUT_TEXT, NPY, PLANS, mutated};

/// Mutations per reader; one of them writes files.
const TURNS: [usize; 5] = [40_000, 40_000, 15_000, 1500, 20_000];

#[test]
fn readers_give_a_value_or_an_error() {
    for (parser, turns) in ALL.into_iter().zip(TURNS) {
        let seeds = (parser.seeds)();
        for seed in &seeds {
            (parser.read)(seed);
        }
        let mut rng = Rng::new(1, &[parser.name]);
        for turn in 0..turns {
            let seed = &seeds[turn % seeds.len()];
            let data = mutated(seed, &mut rng);
            let read = catch_unwind(|| (parser.read)(&data));
            assert!(
                read.is_ok(),
                "{} {turn}: {:?}",
                parser.name,
                String::from_utf8_lossy(&data)
            );
        }
    }
}

#[test]
fn fuzzers_get_inputs_to_begin_with() {
    for parser in ALL {
        let mut data = vec![0; 1 << 16];
        let lengths: Vec<usize> = (0..2000)
            .filter_map(|seed| parser.begin_anew(&mut data, seed))
            .collect();
        assert!((10..100).contains(&lengths.len()), "{lengths:?}");
        assert!(lengths.iter().any(|&n| n > 4));
        // What does not fit is left to the fuzzer.
        assert!((0..2000).all(|seed| parser.begin_anew(&mut [], seed).unwrap_or(0) == 0));
    }
}

#[test]
fn seeds_are_read() {
    // A reader that refuses everything would pass the test above.
    let layouts = (LAYOUT_TEXT.seeds)();
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let read = layouts.iter().filter(|s| {
        let text = std::str::from_utf8(&s[4..]).unwrap();
        Layout::parse(&mesh, &[6, 9, 10], text).is_ok()
    });
    assert!(read.count() >= 6);
    for plan in (PLANS.seeds)() {
        serde_json::from_slice::<Plan>(&plan).unwrap();
    }
    let files = (NPY.seeds)();
    let array = |f: &[u8]| Npy::from_bytes(f).and_then(|npy| npy.to_array::<f32, Ix2>());
    let read = files.iter().filter(|f| array(f).is_ok());
    assert_eq!(read.count(), 3);
}

#[test]
fn more_parts_than_memory_are_refused() {
    let absurd =
        br#"{"segments":{"extent":10,"parts":18446744073709551615,"tiles":[[0,3],[1,5],[0,2]]}}"#;
    let error = serde_json::from_slice::<Partition>(absurd).unwrap_err();
    assert!(error.to_string().contains("parts"), "{error}");
}
