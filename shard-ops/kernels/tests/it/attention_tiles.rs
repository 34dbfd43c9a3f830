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
fn tiles_of_segments_hold_little_but_their_own_keys() {
    // Documents of 100, 300 and 600 tokens: 10,000, 90,000 and 360,000 pairs, of which a causal mask leaves half.
    let of: Vec<i64> = (0..1000)
        .map(|i| i64::from(i >= 100) + i64::from(i >= 400))
        .collect();
    let zeros = vec![0.0; 1000];
    let x = View::contiguous(&zeros, &[1, 1, 1000, 1]);
    let segments = View::contiguous(&of, &[1, 1000]);
    let area = |band| {
        let queries = Queries::new(x.clone(), Positions::from(0))
            .band(band)
            .segments(segments.clone());
        let block =
            KeyBlock::new(x.clone(), x.clone(), Positions::from(0)).segments(segments.clone());
        let tiles = queries.tiles(&block, 100);
        assert!(
            tiles.iter().any(|tile| !tile.banded),
            "some tiles lie within a segment"
        );
        tiles.iter().map(|tile| tile.area()).sum::<usize>()
    };
    let all = area(Band::ALL);
    assert!(
        (460_000..520_000).contains(&all),
        "{all} of 460,000 visible pairs"
    );
    let causal = area(Band::causal());
    assert!(
        (230_500..320_000).contains(&causal),
        "{causal} of 230,500 visible pairs"
    );
}
