//! Index maps of one dim.

use shard_spec::DimMap;

fn pairs(map: &DimMap) -> Vec<(usize, usize)> {
    let mut pairs: Vec<_> = map.pairs().map(|(s, d)| (d, s)).collect();
    pairs.sort_unstable();
    pairs
}

#[test]
fn constructors_say_what_they_mean() {
    assert_eq!(pairs(&DimMap::flip(3)), [(0, 2), (1, 1), (2, 0)]);
    assert_eq!(pairs(&DimMap::roll(4, 1)), [(0, 3), (1, 0), (2, 1), (3, 2)]);
    assert_eq!(DimMap::roll(4, -3), DimMap::roll(4, 1));
    assert_eq!(
        pairs(&DimMap::slice(6, 5, -2, 3).unwrap()),
        [(0, 5), (1, 3), (2, 1)]
    );
    assert_eq!(pairs(&DimMap::place(2, 5, 3).unwrap()), [(3, 0), (4, 1)]);
    assert_eq!(
        pairs(&DimMap::repeat(2, 2).unwrap()),
        [(0, 0), (1, 1), (2, 0), (3, 1)]
    );
    assert_eq!(pairs(&DimMap::expand(2)), [(0, 0), (1, 0)]);
}

#[test]
fn trivial_cases_are_the_identity() {
    for n in 0..4 {
        let same = [
            DimMap::roll(n, 0),
            DimMap::roll(n, 2 * n as isize),
            DimMap::repeat(n, 1).unwrap(),
        ];
        assert!(same.iter().all(DimMap::is_identity), "{same:?}");
        assert!(DimMap::slice(n, 0, 1, n).unwrap().is_identity());
        assert!(DimMap::place(n, n, 0).unwrap().is_identity());
        assert_eq!(DimMap::flip(n).is_identity(), n < 2);
        assert_eq!(DimMap::flip(n).inverse(), DimMap::flip(n));
    }
    assert!(DimMap::expand(1).is_identity());
}

#[test]
fn maps_off_the_dim_are_refused() {
    for bad in [
        DimMap::slice(5, 0, 0, 2),
        DimMap::slice(5, 1, 2, 3),
        DimMap::slice(5, 1, -1, 3),
        DimMap::slice(5, 6, 1, 0),
        DimMap::place(3, 5, 3),
        DimMap::place(3, 5, usize::MAX),
        DimMap::repeat(usize::MAX, 2),
    ] {
        assert!(bad.is_err(), "{bad:?}");
    }
    assert_eq!(DimMap::slice(0, 0, -1, 0).unwrap().dst_extent(), 0);
}
