//! Boxes as ranges of their row-major order, against their elements one by one.

use proptest::prelude::*;
use shard_redistribute::inside::{Block, Cut, UNEVEN, for_each_box};
use shard_spec::{numel, row_major_strides};
use std::convert::Infallible;

/// A box within a row-major array, with steps between its elements.
fn block() -> impl Strategy<Value = Block> {
    prop::collection::vec((1_usize..5, 0_usize..3, 1_usize..3, 0_usize..3), 0..4).prop_map(|dims| {
        let extents: Vec<usize> = dims
            .iter()
            .map(|&(n, before, step, after)| before + (n - 1) * step + 1 + after)
            .collect();
        let rows = row_major_strides(&extents);
        Block {
            offset: dims.iter().zip(&rows).map(|(d, &s)| d.1 * s as usize).sum(),
            shape: dims.iter().map(|d| d.0).collect(),
            strides: dims
                .iter()
                .zip(&rows)
                .map(|(d, &s)| d.2 as isize * s)
                .collect(),
        }
    })
}

proptest! {
    #[test]
    fn the_first_elements_are_those_before(block in block(), end in 0_usize..200) {
        let places: Vec<usize> = (0..block.numel()).map(|i| block.at(i)).collect();
        prop_assert!(places.is_sorted());
        prop_assert_eq!(block.count_below(end), places.iter().filter(|&&p| p < end).count());
    }

    #[test]
    fn rounds_are_nearly_even_and_know_their_elements(
        shape in prop::collection::vec(1_usize..40, 0..4), rounds in 1_usize..50,
    ) {
        let (n, cut) = (numel(&shape), Cut::new(&shape, rounds));
        let mut next = 0;
        for round in 0..rounds {
            let range = cut.range(round);
            prop_assert_eq!(range.start, next);
            prop_assert!(range.len() * UNEVEN * rounds <= n * (UNEVEN + 1) + UNEVEN * rounds);
            for element in range.clone() {
                prop_assert_eq!(cut.round_of(element), round);
            }
            next = range.end;
        }
        prop_assert_eq!(next, n);
    }

    #[test]
    fn a_range_is_its_boxes(block in block(), a in 0.0..=1.0, b in 0.0..=1.0) {
        let n = block.numel();
        let at = |x: f64| (x * n as f64) as usize;
        let range = at(f64::min(a, b))..at(f64::max(a, b));
        let (mut seen, mut boxes) = (Vec::new(), 0);
        for_each_box(range.clone(), &block.shape, |part| {
            assert_eq!(part.first, range.start + seen.len());
            let part = Block {
                offset: block.place(part.index),
                shape: part.shape.into(),
                strides: block.strides.clone(),
            };
            seen.extend((0..part.numel()).map(|i| part.at(i)));
            boxes += 1;
            Ok::<(), Infallible>(())
        })
        .unwrap();
        prop_assert_eq!(seen, range.map(|i| block.at(i)).collect::<Vec<_>>());
        prop_assert!(boxes < (2 * block.shape.len()).max(2));
    }
}
