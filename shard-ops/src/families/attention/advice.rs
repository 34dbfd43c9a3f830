//! What the layout of queries means for the work of ranks.

use super::Attention;
use shard_kernels::attention::Band;
use shard_spec::{Layout, Partition};

/// A line about queries of which one rank's see many more keys under the mask than another's, if a zigzag divides them better.
pub fn advice(options: &Attention, layouts: &[&Layout]) -> Option<String> {
    const WORTH: f64 = 1.25;
    let [queries, keys] = [layouts.first()?, layouts.get(1)?];
    let (sharding, keys) = (queries.sharding(2)?, *keys.shape().get(2)?);
    let partition = &sharding.partition;
    let band = options.band(partition.extent(), keys);
    let zigzag = Partition::zigzag(partition.extent(), partition.parts());
    let [now, then] = [partition, &zigzag].map(|p| busiest(band, keys, p));
    (now > WORTH * then).then(|| {
        format!(
            "the queries of the busiest rank see {now:.2} times as many keys as those of a rank on average; in a zigzag \
             (`Partition::zigzag`, `shard(2).zigzag()`) of all operands {then:.2} times"
        )
    })
}

/// How many keys the queries of the part with the most see, by the mean over parts.
fn busiest(band: Band, keys: usize, partition: &Partition) -> f64 {
    let (low, high) = band.bounds();
    let last = keys as i64 - 1;
    let seen = |query: usize| {
        let (first, end) = (
            low.saturating_add(query as i64),
            high.saturating_add(query as i64),
        );
        (end.min(last) - first.max(0) + 1).max(0) as f64
    };
    let of_part = |part| partition.part(part).indices().map(seen).sum::<f64>();
    let work: Vec<f64> = (0..partition.parts()).map(of_part).collect();
    let (most, all) = work
        .iter()
        .fold((0.0_f64, 0.0), |(most, all), w| (most.max(*w), all + w));
    if all > 0.0 {
        most * work.len() as f64 / all
    } else {
        1.0
    }
}
