//! Padding, against one index at a time.

use proptest::prelude::*;
use shard_spec::{DimMap, EdgeMap, SpecError};

/// The source of an extended index, one at a time.
fn source(n: isize, before: isize, after: isize, i: isize, edge: EdgeMap) -> Option<isize> {
    let (lo, hi) = ((-before).max(0), n.min(n + after));
    match edge {
        EdgeMap::Zeros => (0..n).contains(&i).then_some(i),
        EdgeMap::Replicate => Some(i.clamp(0, n - 1)),
        EdgeMap::Reflect if i < 0 => Some(-i),
        EdgeMap::Reflect if i >= n => Some(2 * (n - 1) - i),
        EdgeMap::Reflect => Some(i),
        EdgeMap::Circular => Some(lo + (i - lo).rem_euclid(hi - lo)),
    }
}

fn edges() -> impl Strategy<Value = EdgeMap> {
    prop::sample::select(vec![
        EdgeMap::Zeros,
        EdgeMap::Replicate,
        EdgeMap::Reflect,
        EdgeMap::Circular,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pads_match_index_by_index(n in 0isize..9, before in -9isize..20, after in -9isize..20, edge in edges()) {
        match DimMap::pad(n as usize, before, after, edge) {
            Ok(map) => {
                prop_assert_eq!(map.dst_extent() as isize, n + before + after);
                let mut expected = Vec::new();
                for j in 0..map.dst_extent() {
                    if let Some(s) = source(n, before, after, j as isize - before, edge) {
                        expected.push((s as usize, j));
                    }
                }
                let mut found: Vec<_> = map.pairs().collect();
                found.sort_unstable_by_key(|&(s, d)| (d, s));
                prop_assert_eq!(found, expected);
                prop_assert!(map.single_valued());
                prop_assert!(map.covers_all_dst() || edge == EdgeMap::Zeros);
            }
            Err(SpecError::Argument { .. }) => {
                let negative = n + before + after < 0;
                let too_wide = edge == EdgeMap::Reflect && before.max(after) > 0 && before.max(after) >= n;
                let nothing = edge != EdgeMap::Zeros && (n == 0 || -before >= n || -after >= n);
                prop_assert!(negative || too_wide || nothing);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn wide_circular_pads_wrap_many_times() {
    let map = DimMap::pad(3, 7, 1, EdgeMap::Circular).unwrap();
    let sources: Vec<usize> = map.pairs().map(|(s, _)| s).collect();
    assert_eq!(sources, [2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn wide_reflections_and_negative_extents_are_refused() {
    for (before, after, edge) in [
        (3, 0, EdgeMap::Reflect),
        (-2, -2, EdgeMap::Zeros),
        (-3, 1, EdgeMap::Circular),
    ] {
        let bad = DimMap::pad(3, before, after, edge);
        assert!(
            matches!(bad, Err(SpecError::Argument { op: "pad", .. })),
            "{bad:?}"
        );
    }
    assert!(matches!(
        DimMap::pad(1, isize::MAX, 1, EdgeMap::Zeros),
        Err(SpecError::Overflow { .. })
    ));
    assert!(matches!(
        DimMap::pad(1, isize::MIN, 0, EdgeMap::Zeros),
        Err(SpecError::Argument { .. })
    ));
}
