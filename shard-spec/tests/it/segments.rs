//! Partitions of several intervals per part, against enumeration.

use crate::common::{division, extent};
use proptest::prelude::*;
use shard_spec::{ContentHash as _, Partition, SpecError};

/// The owner of every index.
fn owners(p: &Partition) -> Vec<usize> {
    (0..p.extent()).map(|i| p.owner_of(i).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every part lists its indices ascending, and index and position invert.
    #[test]
    fn parts_hold_what_they_own((n, parts, p) in (extent(), 1usize..7).prop_flat_map(|(n, parts)| (Just(n), Just(parts), division(n, parts)))) {
        prop_assert_eq!((p.extent(), p.parts()), (n, parts));
        let owners = owners(&p);
        for part in 0..parts {
            let held = p.part(part);
            let expected: Vec<usize> = (0..n).filter(|&i| owners[i] == part).collect();
            prop_assert_eq!(held.indices().collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!((held.len(), p.size(part)), (expected.len(), expected.len()));
            for (local, &i) in expected.iter().enumerate() {
                prop_assert_eq!((held.index(local), held.position(i)), (i, Some(local)));
            }
            prop_assert!((0..n + 2).all(|i| held.position(i).is_some() == expected.contains(&i)));
            let intervals: Vec<_> = held.intervals().collect();
            prop_assert!(intervals.windows(2).all(|w| w[0].end < w[1].start));
            prop_assert_eq!(held.indices().count(), held.len());
            let pairs: Vec<(usize, usize)> = expected.iter().copied().enumerate().collect();
            let mut map: Vec<(usize, usize)> = held.to_global(n).pairs().collect();
            map.sort_unstable();
            prop_assert_eq!(map, pairs);
            prop_assert_eq!(held.interval().is_some(), intervals.len() <= 1);
        }
        prop_assert_eq!(p.to_contiguous().intervals().map(|r| r.len()).collect::<Vec<_>>(), p.sizes().collect::<Vec<_>>());
    }

    /// Parts divided again, and neighbouring parts joined, hold what they should; joining undoes nesting.
    #[test]
    fn nesting_and_joining_invert(
        (outer, inner) in (extent(), 1usize..4, 1usize..4).prop_flat_map(|(n, parts, each)| {
            division(n, parts).prop_flat_map(move |outer| {
                let inner: Vec<_> = outer.sizes().map(|n| division(n, each)).collect();
                (Just(outer), inner)
            })
        })
    ) {
        let each = inner[0].parts();
        let both = Partition::nested(&outer, &inner)?;
        for part in 0..both.parts() {
            let (p, q) = (part / each, part % each);
            let expected: Vec<usize> = inner[p].part(q).indices().map(|i| outer.part(p).index(i)).collect();
            prop_assert_eq!(both.part(part).indices().collect::<Vec<_>>(), expected);
        }
        prop_assert_eq!(owners(&both.joined(each)?), owners(&outer));
    }

    /// Rotating one by one is rotating at once, rotating back gives the original, and each result is what its tiles describe.
    #[test]
    fn rotations_add_up(p in (extent(), 1usize..6).prop_flat_map(|(n, parts)| division(n, parts)), by in 0usize..9) {
        let parts = p.parts();
        let turned = (0..by).fold(p.clone(), |p, _| p.rotated(1));
        prop_assert_eq!(&turned, &p.rotated(by));
        prop_assert_eq!(turned.content_hash(), p.rotated(by).content_hash());
        prop_assert_eq!(&turned.rotated(parts - by % parts), &p);
        let tiles: Vec<(usize, usize)> = owners(&turned).into_iter().map(|owner| (owner, 1)).collect();
        let described = Partition::from_segments(p.extent(), parts, &tiles)?;
        // Tiles that repeat have a shorter description.
        if let Partition::Segments(s) = &turned && s.period() < p.extent() {
            prop_assert_eq!(owners(&turned), owners(&described));
        } else {
            prop_assert_eq!(&turned, &described);
            prop_assert_eq!(turned.content_hash(), described.content_hash());
        }
        let others = (1..parts).map(|k| turned.rotated(k)).filter(|other| other != &turned);
        prop_assert!(others.into_iter().all(|other| other.content_hash() != turned.content_hash()));
    }

    #[test]
    fn rotation_passes_the_parts_round(p in (extent(), 1usize..6).prop_flat_map(|(n, parts)| division(n, parts)), by in 0usize..9) {
        let turned = p.rotated(by);
        for part in 0..p.parts() {
            prop_assert_eq!(turned.part(part), p.part((part + by) % p.parts()));
        }
    }

    #[test]
    fn common_indices_are_counted((a, b) in extent().prop_flat_map(|n| (division(n, 3), division(n, 2)))) {
        for (i, j) in (0..3).flat_map(|i| (0..2).map(move |j| (i, j))) {
            let both = a.part(i).indices().filter(|&x| b.owner_of(x) == Some(j)).count();
            prop_assert_eq!(a.part(i).common(&b.part(j)), both);
        }
    }
}

/// Comparing parts of one partition does not list their intervals, of which there are 2^57 here.
#[test]
fn parts_of_one_partition_compare_at_once() {
    let stripes = Partition::striped(1 << 60, 8);
    assert_eq!(stripes.part(3), stripes.part(3));
    assert_eq!(stripes.part(3).common(&stripes.part(3)), 1 << 57);
    assert_eq!(stripes.part(3).common(&stripes.part(4)), 0);
}

/// Nor does comparing parts of two partitions, and intervals are found lazily.
#[test]
fn parts_of_two_partitions_compare_at_once() {
    let (stripes, halves) = (Partition::striped(1 << 60, 8), Partition::chunk(1 << 60, 2));
    assert_eq!(stripes.part(3).common(&halves.part(1)), 1 << 56);
    // The same stripes, described with a period of 16.
    let tiles: Vec<(usize, usize)> = (0..16).map(|i| (i % 8, 1)).collect();
    let twice = Partition::from_repeated(1 << 60, 8, &tiles).unwrap();
    assert_eq!(stripes.part(3), twice.part(3));
    assert_ne!(stripes.part(3), twice.part(4));
    let first: Vec<_> = twice.part(3).intervals().take(2).collect();
    assert_eq!(first, [3..4, 11..12]);
}

#[test]
fn nesting_that_would_list_the_indices_is_refused() {
    let stripes = Partition::striped(1 << 40, 2);
    let inner = vec![Partition::balanced(1 << 39, 2); 2];
    let refused = Partition::nested(&stripes, &inner).unwrap_err();
    assert!(
        matches!(refused, SpecError::Argument { op: "nested", .. }),
        "{refused}"
    );
}

/// Each partition has one description: contiguous parts are told as such, and neighbours of one owner are one tile.
#[test]
fn segments_are_told_one_way() {
    let plain = Partition::from_sizes(&[2, 0, 3]).unwrap();
    let tiles = [(0, 1), (0, 1), (1, 0), (2, 3)];
    assert_eq!(Partition::from_segments(5, 3, &tiles).unwrap(), plain);
    assert_eq!(Partition::zigzag(7, 1), Partition::chunk(7, 1));
    assert_eq!(Partition::block_cyclic(7, 3, 3), Partition::chunk(7, 3));
    assert_eq!(Partition::striped(0, 3), Partition::chunk(0, 3));
    assert_eq!(Partition::striped(9, 3).to_string(), "[0:1,1:1,2:1]*");
    // Eleven rows in six blocks of two, the last short: rank 0 holds the first and the last.
    let zigzag = Partition::zigzag(11, 3);
    assert_eq!(zigzag.to_string(), "[0:2,1:2,2:4,1:2,0:1]");
    assert_eq!(zigzag.sizes().collect::<Vec<_>>(), [3, 4, 4]);
}

#[test]
fn tiles_that_do_not_fit_are_refused() {
    let bad = Partition::from_segments(5, 2, &[(0, 2), (2, 3)]).unwrap_err();
    assert!(
        matches!(
            bad,
            SpecError::Argument {
                argument: "tiles",
                ..
            }
        ),
        "{bad}"
    );
    let short = Partition::from_segments(5, 2, &[(0, 2), (1, 2)]).unwrap_err();
    assert!(
        matches!(
            short,
            SpecError::Extent {
                expected: 5,
                got: 4,
                ..
            }
        ),
        "{short}"
    );
    let nothing = Partition::from_repeated(5, 2, &[(0, 0)]).unwrap_err();
    assert!(
        matches!(nothing, SpecError::Extent { got: 0, .. }),
        "{nothing}"
    );
    assert!(Partition::from_segments(5, 0, &[]).is_err());
    assert!(Partition::from_segments(5, 2, &[(0, usize::MAX), (1, 7)]).is_err());
}
