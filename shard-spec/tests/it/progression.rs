//! Arithmetic progressions, against every pair of indices.

use proptest::prelude::*;
use shard_spec::{Intersection, Progression};

fn progression() -> impl Strategy<Value = Progression> {
    (-20isize..20, -6isize..=6, 0usize..9).prop_map(|(start, step, len)| Progression {
        start,
        step,
        len,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn within_is_a_filter(p in progression(), lo in -60isize..60, len in 0isize..50) {
        let range = lo..lo + len;
        let expected: Vec<usize> = (0..p.len).filter(|&i| range.contains(&p.at(i))).collect();
        prop_assert_eq!(p.within(&range).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn intersections_are_every_pair(a in progression(), b in progression()) {
        let mut expected = Vec::new();
        for i in 0..a.len {
            expected.extend((0..b.len).filter(|&j| a.at(i) == b.at(j)).map(|j| (i, j)));
        }
        let mut found: Vec<(usize, usize)> = match a.intersect(&b) {
            Intersection::Never => Vec::new(),
            Intersection::Line { i_start, i_step, j_start, j_step, len } => (0..len)
                .map(|t| (i_start + t * i_step, (j_start as isize + t as isize * j_step) as usize))
                .collect(),
            Intersection::Everywhere => (0..a.len).flat_map(|i| (0..b.len).map(move |j| (i, j))).collect(),
        };
        found.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}
