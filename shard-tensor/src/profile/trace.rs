//! Profiles as a trace, in Chrome's "Trace Event Format".

use super::{Profile, Slice};
use serde_json::{Value, json};
use std::time::Duration;

/// The JSON of some ranks' profiles.
pub(super) fn written(ranks: &[Profile]) -> String {
    let first = ranks.iter().map(|rank| rank.began).min();
    let first = first.unwrap_or_default();
    let events: Vec<Value> = (ranks.iter())
        .flat_map(|rank| {
            let began = rank.began - first;
            let name = json!({
                "name": "process_name", "ph": "M", "pid": rank.rank,
                "args": { "name": format!("rank {}", rank.rank) },
            });
            let slices = rank
                .slices
                .iter()
                .map(move |slice| event(rank, began, slice));
            std::iter::once(name).chain(slices)
        })
        .collect();
    json!({ "traceEvents": events }).to_string()
}

/// One stretch of time, as a "complete event".
fn event(rank: &Profile, began: Duration, slice: &Slice) -> Value {
    let micros = |time: Duration| 1e6 * time.as_secs_f64();
    json!({
        "name": rank.names.get(slice.name), "ph": "X", "pid": rank.rank, "tid": 0,
        "ts": micros(began + slice.from), "dur": micros(slice.time),
    })
}
