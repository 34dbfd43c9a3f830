//! Index maps and overlaps against enumeration element by element.

use crate::common::{any_partition, division, extent};
use proptest::prelude::*;
use shard_spec::{
    CoverParts, DimMap, EdgeMap, Partition, Run, most_pieces, overlaps, overlaps_from, overlaps_to,
};

/// Any valid map with a source of `n`, by its constructors or of arbitrary runs.
fn map_from(n: usize) -> impl Strategy<Value = DimMap> {
    let edge = prop::sample::select(vec![
        EdgeMap::Zeros,
        EdgeMap::Replicate,
        EdgeMap::Reflect,
        EdgeMap::Circular,
    ]);
    let built = prop_oneof![
        Just(DimMap::flip(n)),
        (-30isize..30).prop_map(move |s| DimMap::roll(n, s)),
        (0usize..5).prop_map(move |t| DimMap::repeat(n, t).unwrap()),
        (0usize..5, 0usize..5).prop_map(move |(a, b)| DimMap::place(n, n + a + b, a).unwrap()),
        (-4isize..30, -4isize..30, edge).prop_map(
            move |(a, b, e)| DimMap::pad(n, a, b, e).unwrap_or_else(|_| DimMap::identity(n))
        ),
        (0..n.max(1), -4isize..5, 0usize..9).prop_map(move |(start, step, len)| {
            DimMap::slice(n, start, step, len).unwrap_or_else(|_| DimMap::flip(n))
        }),
    ];
    let runs = prop::collection::vec(
        (0..n.max(1), -3isize..4, 0usize..14, -3isize..4, 1usize..7),
        0..4,
    );
    let arbitrary = runs.prop_map(move |runs| {
        let keep = |(src_start, src_step, dst_start, dst_step, len)| {
            let run = Run {
                src_start,
                src_step,
                dst_start,
                dst_step,
                len,
            };
            DimMap::from_runs(n, 14, [run]).is_ok().then_some(run)
        };
        DimMap::from_runs(n, 14, runs.into_iter().filter_map(keep)).unwrap()
    });
    prop_oneof![1 => built, 1 => arbitrary]
}

/// Any valid map or the inverse of one.
fn any_map() -> impl Strategy<Value = DimMap> {
    let map = extent().prop_flat_map(map_from);
    (map, prop::bool::weighted(0.3)).prop_map(|(m, swap)| if swap { m.inverse() } else { m })
}

/// A map, a partition of its source, and a cover of its destination in any order, overlapping or empty.
fn problem() -> impl Strategy<Value = (DimMap, Partition, CoverParts)> {
    any_map().prop_flat_map(|map| {
        let (n, m) = (map.src_extent(), map.dst_extent());
        let cover =
            prop::collection::vec((0..=m, 0..=m).prop_map(|(a, b)| a.min(b)..a.max(b)), 1..5)
                .prop_map(CoverParts::Intervals);
        let owned = (1usize..5)
            .prop_flat_map(move |parts| division(m, parts))
            .prop_map(CoverParts::Partition);
        let cover = prop_oneof![cover, owned];
        (
            (1usize..7).prop_flat_map(move |parts| division(n, parts)),
            cover,
        )
            .prop_map(move |(src, cover)| (map.clone(), src, cover))
    })
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort_unstable();
    items
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn overlaps_are_the_pairs_of_the_map((map, src, cover) in problem()) {
        for dst in (0..cover.len()).map(|p| cover.get(p)) {
            let mut expected = Vec::new();
            for (s, d) in map.pairs() {
                if let Some(d) = dst.position(d) {
                    let part = src.owner_of(s).unwrap();
                    expected.push((part, d, src.part(part).position(s).unwrap()));
                }
            }
            let pieces = overlaps(&src, &map, dst);
            prop_assert!(pieces.is_sorted_by_key(|p| (p.src_part, p.dst_start)));
            let mut found = Vec::new();
            for p in &pieces {
                prop_assert!(p.len > 0 && p.dst_step >= 0);
                for i in 0..p.len as isize {
                    let (d, s) = (p.dst_start as isize + i * p.dst_step, p.src_start as isize + i * p.src_step);
                    prop_assert!(d >= 0 && s >= 0);
                    found.push((p.src_part, d as usize, s as usize));
                }
            }
            prop_assert_eq!(sorted(found), sorted(expected));
        }
    }

    /// What a part sends is what the others say they receive: the same pieces in the same order for every pair.
    #[test]
    fn both_sides_list_the_same_pieces((map, src, cover) in problem()) {
        for src_part in 0..src.parts() {
            let sent = overlaps_from(src.part(src_part), &map, &cover);
            prop_assert!(sent.is_sorted_by_key(|p| (p.dst_part, p.dst_start)));
            for dst_part in 0..cover.len() {
                let received: Vec<_> = overlaps(&src, &map, cover.get(dst_part))
                    .into_iter()
                    .filter(|p| p.src_part == src_part)
                    .map(|p| (p.dst_start, p.src_start, p.len, p.dst_step, p.src_step))
                    .collect();
                let alone = overlaps_to(src.part(src_part), &map, &cover.get(dst_part), dst_part);
                let sent: Vec<_> = sent.iter().copied().filter(|p| p.dst_part == dst_part).collect();
                prop_assert_eq!(&alone, &sent);
                let sent: Vec<_> = sent
                    .iter()
                    .map(|p| (p.dst_start, p.src_start, p.len, p.dst_step, p.src_step))
                    .collect();
                prop_assert_eq!(sent, received);
            }
        }
    }

    /// One-dimensional moves between partitions take at most one piece per boundary.
    #[test]
    fn plain_moves_are_few(a in any_partition(), parts in 1usize..9) {
        let b = Partition::balanced(a.extent(), parts);
        let map = DimMap::identity(a.extent());
        let pieces: usize = (0..parts).map(|p| overlaps(&a, &map, b.part(p)).len()).sum();
        prop_assert!(pieces < a.parts() + b.parts());
        let direct: usize = (0..parts).map(|p| overlaps(&a, &map, b.part(p)).iter().map(|x| x.len).sum::<usize>()).sum();
        prop_assert_eq!(direct, a.extent());
    }

    #[test]
    fn maps_are_classified_as_enumerated(map in any_map()) {
        let mut hits = vec![0; map.dst_extent()];
        map.pairs().for_each(|(_, d)| hits[d] += 1);
        prop_assert_eq!(map.covers_all_dst(), hits.iter().all(|&h| h > 0));
        prop_assert_eq!(map.single_valued(), hits.iter().all(|&h| h <= 1));
        let identical = map.src_extent() == map.dst_extent() && map.pairs().all(|(s, d)| s == d)
            && hits.iter().all(|&h| h == 1);
        prop_assert!(!map.is_identity() || identical);
        let inverse = map.inverse();
        prop_assert_eq!(sorted(inverse.pairs().map(|(d, s)| (s, d))), sorted(map.pairs()));
        prop_assert_eq!(inverse.inverse(), map);
    }

    #[test]
    fn composition_relates_what_the_parts_relate(
        (first, second) in any_map().prop_flat_map(|m| {
            let n = m.dst_extent();
            (Just(m), map_from(n))
        })
    ) {
        let both = first.compose(&second)?;
        let mut expected = Vec::new();
        for (a, b) in first.pairs() {
            expected.extend(second.pairs().filter(|&(via, _)| via == b).map(|(_, c)| (a, c)));
        }
        prop_assert_eq!(sorted(both.pairs()), sorted(expected));
        prop_assert_eq!((both.src_extent(), both.dst_extent()), (first.src_extent(), second.dst_extent()));
    }
}

#[test]
fn maps_that_do_not_meet_are_not_composed() {
    assert!(DimMap::identity(3).compose(&DimMap::identity(4)).is_err());
}

#[test]
#[should_panic(expected = "a partition of 3 cannot be the source of a map from 4")]
fn a_partition_of_another_extent_is_a_bug() {
    overlaps(&Partition::chunk(3, 2), &DimMap::identity(4), 0..4);
}

/// Large extents cost nothing per element.
#[test]
fn work_is_per_piece() {
    let n = 1 << 60;
    let pieces = overlaps(&Partition::chunk(n, 1024), &DimMap::flip(n), 5..n - 3);
    assert_eq!(pieces.len(), 1024);
    assert_eq!(pieces.iter().map(|p| p.len).sum::<usize>(), n - 8);
    let strided = DimMap::slice(n, n - 1, -(1 << 50), 1 << 10).unwrap();
    assert_eq!(
        overlaps(&Partition::chunk(n, 4), &strided, 0..1 << 10).len(),
        4
    );
}

/// Stripes are one piece per pair of parts, whatever the extent, and blocks are few.
#[test]
fn periodic_segments_meet_in_closed_form() {
    let n = 1 << 40;
    let (from, to) = (Partition::striped(n, 8), Partition::striped(n, 6));
    let map = DimMap::identity(n);
    let pieces = overlaps(&from, &map, to.part(5));
    // Index i goes from part i % 8 to part i % 6: for the odd part 5 that is every 24th index of four parts.
    let parts: Vec<usize> = pieces.iter().map(|p| p.src_part).collect();
    assert_eq!(parts, [1, 3, 5, 7]);
    assert!(pieces.iter().all(|p| (p.dst_step, p.src_step) == (4, 3)));
    assert_eq!(
        pieces.iter().map(|p| p.len).sum::<usize>(),
        to.part(5).len()
    );
    let blocks = Partition::block_cyclic(n, 4, 1 << 38);
    assert_eq!(overlaps(&blocks, &map, 0..n).len(), 4);
}

/// Tiles of irregular sizes, owned irregularly, up to an extent.
fn irregular(extent: usize, parts: usize, mut seed: u64) -> Partition {
    let mut next = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let (mut tiles, mut left) = (Vec::new(), extent);
    while left > 0 {
        let size = (1 + next(100)).min(left);
        tiles.push((next(parts), size));
        left -= size;
    }
    Partition::from_segments(extent, parts, &tiles).unwrap()
}

/// A hundred thousand irregular tiles meet as many others. Trying every tile of a part with every one of another would take
/// minutes.
#[test]
fn many_irregular_tiles_are_merged() {
    let n = 5_000_000;
    let (from, to) = (irregular(n, 8, 1), irregular(n, 8, 2));
    let map = DimMap::identity(n);
    let started = std::time::Instant::now();
    let found: Vec<_> = (0..8).map(|p| overlaps(&from, &map, to.part(p))).collect();
    let sent: usize = (0..8)
        .map(|p| overlaps_from(from.part(p), &map, &CoverParts::Partition(to.clone())).len())
        .sum();
    let took = started.elapsed();
    let pieces = found.iter().flatten();
    assert_eq!(pieces.clone().map(|p| p.len).sum::<usize>(), n);
    // No more pieces than boundaries, of which there are about two hundred thousand.
    assert!((100_000..210_000).contains(&sent), "{sent}");
    assert_eq!(pieces.count(), sent);
    for (part, pieces) in found.iter().enumerate() {
        for p in pieces.iter().step_by(101) {
            let index = to.part(part).index(p.dst_start);
            assert_eq!(from.owner_of(index), Some(p.src_part));
            assert_eq!(from.part(p.src_part).position(index), Some(p.src_start));
        }
    }
    assert!(took.as_secs() < 20, "{took:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The bound holds for what is read and for what is sent.
    #[test]
    fn pieces_are_bounded(
        (src, dst) in extent().prop_flat_map(|n| (1usize..6, 1usize..6).prop_flat_map(move |(p, q)| (division(n, p), division(n, q))))
    ) {
        let map = DimMap::identity(src.extent());
        let most = most_pieces(&src, &dst);
        let cover = CoverParts::Partition(dst.clone());
        for p in 0..dst.parts() {
            prop_assert!(overlaps(&src, &map, dst.part(p)).len() <= most, "{src} to {dst}: {most}");
        }
        for p in 0..src.parts() {
            prop_assert!(overlaps_from(src.part(p), &map, &cover).len() <= most, "{src} to {dst}: {most}");
        }
    }

    /// As above, where the bound is found in closed form.
    #[test]
    fn pieces_of_many_tiles_are_bounded(
        tiles in (prop::collection::vec((0usize..3, 1usize..9), 1..5), prop::collection::vec((0usize..3, 1usize..9), 1..5)),
    ) {
        let n = 9_000_000;
        let of = |tiles: &[(usize, usize)]| Partition::from_repeated(n, 3, tiles).unwrap();
        let (src, dst) = (of(&tiles.0), of(&tiles.1));
        let map = DimMap::identity(n);
        let most = most_pieces(&src, &dst);
        for p in 0..3 {
            prop_assert!(overlaps(&src, &map, dst.part(p)).len() <= most, "{src} to {dst}: {most}");
        }
        prop_assert!(most < 40_000);
    }
}
