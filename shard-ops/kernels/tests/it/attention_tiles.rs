//! The tiles that attention computes: every visible pair is in one, and few others are.

use crate::testing::Rng;
use shard_kernels::attention::{Band, KeyBlock, Queries};
use shard_kernels::{Positions, View};

fn area(queries: &[i64], keys: &[i64], band: Band) -> usize {
    tiles(queries, keys, band)[1]
}

/// The number of tiles visited for these positions, and of pairs in them. Each pair that is seen is in one.
fn tiles(queries: &[i64], keys: &[i64], band: Band) -> [usize; 2] {
    let (q, k) = (vec![0.0; queries.len()], vec![0.0; keys.len()]);
    let q = View::contiguous(&q, &[1, 1, queries.len(), 1]);
    let k = View::contiguous(&k, &[1, 1, keys.len(), 1]);
    let banded_queries = Queries::new(q, Positions::List(queries)).band(band);
    let block = KeyBlock::new(k.clone(), k, Positions::List(keys));
    let mut times = vec![0; queries.len() * keys.len()];
    let mut area = 0;
    let tiles = banded_queries.tiles(&block, 100);
    for tile in &tiles {
        area += tile.area();
        for i in tile.rows.clone() {
            for j in tile.keys.clone() {
                times[i * keys.len() + j] += 1;
                assert!(tile.banded || band.sees(queries[i], keys[j]));
            }
        }
    }
    for (i, &query) in queries.iter().enumerate() {
        for (j, &key) in keys.iter().enumerate() {
            let times = times[i * keys.len() + j];
            assert!(
                times <= 1 && (times == 1 || !band.sees(query, key)),
                "{query} {key}: {times}"
            );
        }
    }
    [tiles.len(), area]
}

#[test]
fn tiles_hold_every_visible_pair_once_and_little_else() {
    let all: Vec<i64> = (0..1000).collect();
    let causal = area(&all, &all, Band::causal());
    assert!(causal < 560_000, "{causal} of 500,500 visible pairs");
    let narrow = area(&all, &all, Band::window(20, 20));
    assert!(narrow < 150_000, "{narrow} of about 41,000 visible pairs");
    // Two intervals, as a zigzag rank holds them, against an interval between them.
    let zigzag: Vec<i64> = (0..250).chain(750..1000).collect();
    let half = area(&zigzag, &all[300..700], Band::causal());
    // Rows that the band tells apart are halved down to 64.
    assert!(half <= (250 + 64) * 400, "{half} of 100,000 visible pairs");
    assert_eq!(area(&all[..300], &all[300..], Band::causal()), 0);
    // 64 rows see 220 keys, which lie in pieces of 32 of which the first and the last may have one each.
    let [count, window] = tiles(&all, &all, Band::window(120, 36));
    assert!(count <= 16 * 3, "{count} tiles");
    assert!(
        window <= 1000 * (157 + 63 + 62),
        "{window} of about 150,000 visible pairs"
    );
    let mut rng = Rng::new(1);
    for _ in 0..50 {
        let mut some = |n: usize| -> Vec<i64> {
            (0..rng.within(1, n))
                .map(|_| rng.within(0, 300) as i64)
                .collect()
        };
        let (queries, keys) = (some(200), some(300));
        let band = Band::window(rng.within(0, 60), rng.within(0, 60));
        area(&queries, &keys, band.shifted(rng.within(0, 90) as i64 - 45));
    }
}

#[test]
fn tiles_of_segments_hold_their_own_keys_and_little_else() {
    // Documents of 100, 300 and 600 tokens: 10,000, 90,000 and 360,000 pairs, of which a causal mask leaves half; in another entry of 900 and 100.
    let ends = [[100, 400], [900, 1000]];
    let of: Vec<i64> = (0..2000)
        .map(|i| {
            ends[i / 1000]
                .iter()
                .filter(|&&end| i % 1000 >= end)
                .count() as i64
        })
        .collect();
    let zeros = vec![0.0; 2000];
    let x = View::contiguous(&zeros, &[2, 1, 1000, 1]);
    let segments = View::contiguous(&of, &[2, 1000]);
    let areas = |band: Band| {
        let queries = Queries::new(x.clone(), Positions::from(0)).band(band);
        let block = KeyBlock::new(x.clone(), x.clone(), Positions::from(0));
        let (queries, block) = (
            queries.segments(segments.clone()),
            block.segments(segments.clone()),
        );
        let (mut areas, mut seen) = ([0; 2], [0; 2]);
        for tile in queries.tiles(&block, 100) {
            areas[tile.batch] += tile.area();
            let of = |i: usize| of[tile.batch * 1000 + i];
            for (i, j) in tile
                .rows
                .clone()
                .flat_map(|i| tile.keys.clone().map(move |j| (i, j)))
            {
                let sees = of(i) == of(j) && band.sees(i as i64, j as i64);
                assert!(sees || tile.banded);
                seen[tile.batch] += usize::from(sees);
            }
        }
        (areas, seen)
    };
    // Rows that segments tell apart are halved down to 64, and keys come in pieces of 32.
    let little_else = |areas: [usize; 2], seen: [usize; 2]| {
        for (area, seen) in areas.into_iter().zip(seen) {
            assert!(
                area <= seen + (64 + 32) * 1000,
                "{area} of {seen} visible pairs"
            );
        }
    };
    let (all, seen) = areas(Band::ALL);
    assert_eq!(seen, [460_000, 820_000]);
    little_else(all, seen);
    let (causal, seen) = areas(Band::causal());
    assert_eq!(seen, [230_500, 410_500]);
    little_else(causal, seen);
}
