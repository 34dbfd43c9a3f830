//! The keys by which calls are found again.

use shard_comm::DType;
use shard_ops::inside::with_operand;
use shard_ops::key_of;
use std::collections::HashSet;

/// Attributes that differ little have keys of which neither half is met twice.
#[test]
fn keys_that_differ_little_share_neither_half() {
    let mut all = Vec::new();
    for name in [
        "a",
        "b",
        "ab",
        "ba",
        "abcdefgh",
        "abcdefg",
        "abcdefgh\0",
        "",
    ] {
        for at in 0..64_u32 {
            all.push(key_of(name, &(1_u64 << at)));
            all.push(key_of(name, &(f64::from(at) + 0.5).to_bits()));
            all.push(key_of(name, &(1_u64 << at, 0_usize)));
            all.push(key_of(name, &(0_usize, 1_u64 << at)));
            all.push(key_of(name, &vec![0_u8; at as usize][..]));
        }
    }
    let high: HashSet<u64> = all.iter().map(|key| (key >> 64) as u64).collect();
    let low: HashSet<u64> = all.iter().map(|&key| key as u64).collect();
    assert_eq!([high.len(), low.len()], [all.len(); 2]);
}

/// An operand more, or another order of operands, is another key.
#[test]
fn operands_and_their_order_matter() {
    let key = key_of("add", &false);
    let with = |layouts: &[u128]| {
        (layouts.iter()).fold(key, |key, &layout| with_operand(key, layout, DType::F32))
    };
    let all = [
        with(&[]),
        with(&[0]),
        with(&[1, 2]),
        with(&[2, 1]),
        with(&[1, 2, 0]),
    ];
    assert_eq!(HashSet::from(all).len(), all.len());
    assert_ne!(with(&[1]), with_operand(key, 1, DType::F64));
}

/// Processes come to the same keys.
#[test]
fn keys_are_the_same_in_every_run() {
    assert_eq!(
        key_of("add", &false),
        0x9cf6_d78b_d007_9a42_6c95_8d25_5dde_d69b
    );
}
