//! Parts of several segments, and who has what of them.

use shard_spec::{CoverParts, DimMap, Partition, overlaps, overlaps_from};

#[test]
fn parts_within_are_those_of_the_indices() {
    let ragged = Partition::from_segments(20, 5, &[(3, 4), (0, 7), (3, 2), (1, 7)]).unwrap();
    for p in [
        ragged,
        Partition::block_cyclic(23, 4, 3),
        Partition::zigzag(21, 3),
    ] {
        for by in 0..p.parts() {
            let turned = p.rotated(by);
            let Partition::Segments(segments) = &turned else {
                panic!("{p} turned by {by}")
            };
            for start in 0..p.extent() {
                for end in start..p.extent() + 3 {
                    let held = (start..end.min(p.extent())).map(|i| turned.owner_of(i).unwrap());
                    let mut parts: Vec<usize> = held.collect();
                    parts.sort_unstable();
                    parts.dedup();
                    assert_eq!(
                        segments.parts_within(start..end),
                        parts,
                        "{segments} {start}..{end}"
                    );
                }
            }
        }
    }
}

/// Finds each rank's part in every step of a ring of many ranks. Work in the square of the ranks would take minutes.
#[test]
fn the_steps_of_a_long_ring_are_found_at_once() {
    const PARTS: usize = 1 << 14;
    let blocks = Partition::balanced(8 * PARTS + 5, PARTS);
    let same = DimMap::identity(blocks.extent());
    let started = std::time::Instant::now();
    let mut turned = blocks.clone();
    for t in 0..PARTS {
        let read = overlaps(&blocks, &same, turned.part(7));
        let sent = overlaps_from(
            blocks.part(7),
            &same,
            &CoverParts::Partition(turned.clone()),
        );
        assert_eq!((read.len(), sent.len()), (1, 1));
        assert_eq!(read[0].src_part, (7 + t) % PARTS);
        assert_eq!(sent[0].dst_part, (7 + PARTS - t) % PARTS);
        let home = overlaps(&turned, &same, blocks.part(7));
        assert_eq!(home[0].src_part, sent[0].dst_part);
        turned = turned.rotated(1);
    }
    assert_eq!(turned, blocks);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
