//! Who sends how much to whom.

use shard_comm::DType;
use shard_redistribute::{Plan, Step};
use shard_spec::{DimPart, Layout};
use std::fmt::Write;

/// Bytes between every two ranks, over all steps of a plan.
pub(crate) struct Traffic {
    pub(crate) ranks: usize,
    /// `bytes[reader * ranks + owner]`; within an all-reduce, what is received is divided evenly over the group.
    bytes: Vec<u64>,
    messages: Vec<u64>,
    peak: Vec<u64>,
}

impl Traffic {
    /// Sums the plans of all ranks, in order.
    pub(crate) fn of(plans: &[Plan], dtype: DType) -> Self {
        let ranks = plans.len();
        let mut traffic = Self {
            ranks,
            bytes: vec![0; ranks * ranks],
            messages: Vec::new(),
            peak: Vec::new(),
        };
        for (me, plan) in plans.iter().enumerate() {
            let forecast = plan.forecast(dtype);
            traffic.messages.push(forecast.messages);
            traffic.peak.push(forecast.peak);
            let mut exchanged = 0;
            for step in plan.steps() {
                if let Step::Exchange(exchange, _) = step {
                    for piece in exchange.plan().recv.iter().filter(|p| p.peer != me) {
                        let bytes = (piece.numel() * dtype.size()) as u64;
                        traffic.bytes[me * ranks + piece.peer] += bytes;
                        exchanged += bytes;
                    }
                }
            }
            // The all-reduces of a plan share one group.
            for step in plan.steps() {
                if let Step::AllReduce(axes, _, layout) = step {
                    let mesh = layout.mesh();
                    let groups = mesh.groups(axes);
                    let group = groups.iter().find(|g| g.contains(&mesh.ranks()[me]));
                    let others = group.map_or(&[][..], |g| &g[..]);
                    let share = (forecast.bytes - exchanged) / (others.len().max(2) as u64 - 1);
                    for other in others.iter().filter_map(|&r| mesh.index_of(r)) {
                        if other != me {
                            traffic.bytes[me * ranks + other] += share;
                        }
                    }
                }
            }
        }
        traffic
    }

    /// Bytes that `reader` receives from `owner`.
    pub(crate) fn between(&self, reader: usize, owner: usize) -> u64 {
        self.bytes[reader * self.ranks + owner]
    }

    /// The most bytes between two ranks.
    pub(crate) fn most(&self) -> u64 {
        self.bytes.iter().copied().max().unwrap_or(0)
    }

    /// One line per rank: its boxes, what it receives and sends.
    pub(crate) fn table(&self, from: &Layout, to: &Layout) -> String {
        let boxes = |l: &Layout| -> Vec<String> {
            let ranks = l.mesh().ranks().iter();
            ranks.map(|&r| box_text(l, r)).collect()
        };
        let (have, want) = (boxes(from), boxes(to));
        let width = |texts: &[String], title: &str| {
            texts
                .iter()
                .map(String::len)
                .chain([title.len()])
                .max()
                .unwrap_or(0)
        };
        let (hw, ww) = (width(&have, "has"), width(&want, "wants"));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:>5}  {:<hw$}  {:<ww$}  {:>14} {:>9} {:>14} {:>14}",
            "rank", "has", "wants", "receives B", "messages", "sends B", "peak B"
        );
        for me in 0..self.ranks {
            let received: u64 = (0..self.ranks).map(|o| self.between(me, o)).sum();
            let sent: u64 = (0..self.ranks).map(|r| self.between(r, me)).sum();
            let _ = writeln!(
                text,
                "{me:>5}  {:<hw$}  {:<ww$}  {received:>14} {:>9} {sent:>14} {:>14}",
                have[me], want[me], self.messages[me], self.peak[me]
            );
        }
        text
    }
}

/// A rank's box, such as `0..4 x 8..16`.
fn box_text(layout: &Layout, rank: usize) -> String {
    let Some(held) = layout.local_parts(rank) else {
        return "nothing".to_owned();
    };
    let dims: Vec<String> = held.iter().map(part_text).collect();
    if dims.is_empty() {
        "scalar".to_owned()
    } else {
        dims.join(" x ")
    }
}

/// A part's intervals, or the first few of many: `0..2+6..8`.
fn part_text(part: &DimPart) -> String {
    if let Some(interval) = part.interval() {
        return format!("{interval:?}");
    }
    // There may be as many intervals as indices.
    let mut intervals = part.intervals();
    let shown: Vec<String> = (intervals.by_ref().take(3))
        .map(|i| format!("{i:?}"))
        .collect();
    let more = if intervals.next().is_some() {
        "+..."
    } else {
        ""
    };
    format!("{}{more}", shown.join("+"))
}
