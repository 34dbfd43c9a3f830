//! The picture: boxes before, boxes after, and the traffic between ranks.

use crate::traffic::Traffic;
use shard_spec::{DimPart, Layout};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

/// The side of each of the three panels.
const SIDE: f64 = 320.0;
const GAP: f64 = 40.0;
const TOP: f64 = 60.0;
/// The most intervals of a part that are drawn, along each dim.
const MOST_INTERVALS: usize = 1000;

/// Three panels side by side: the source's boxes, bytes from owner (column) to reader (row), the destination's boxes.
pub(crate) fn draw(from: &Layout, to: &Layout, traffic: &Traffic) -> String {
    let (width, height) = (3.0 * SIDE + 4.0 * GAP, SIDE + TOP + GAP);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">"#
    );
    let _ = writeln!(
        out,
        r#"<rect width="{width}" height="{height}" fill="white"/>"#
    );
    boxes(&mut out, from, GAP);
    matrix(&mut out, traffic, 2.0 * GAP + SIDE);
    boxes(&mut out, to, 3.0 * GAP + 2.0 * SIDE);
    out += "</svg>\n";
    out
}

/// The tensor's first two dims, dim 0 downwards, each box with the ranks that hold it.
fn boxes(out: &mut String, layout: &Layout, x: f64) {
    title(out, x, &layout.to_string());
    let mut holders: BTreeMap<[(usize, usize); 2], Vec<usize>> = BTreeMap::new();
    for &rank in layout.mesh().ranks() {
        let held = layout.local_parts(rank).unwrap_or_default();
        if held.iter().any(DimPart::is_empty) {
            continue;
        }
        let sides = |d: usize| -> Vec<(usize, usize)> {
            let ends = |i: Range<usize>| (i.start, i.end);
            let Some(part) = held.get(d) else {
                return vec![(0, 1)];
            };
            part.intervals().take(MOST_INTERVALS).map(ends).collect()
        };
        let columns = sides(1);
        for rows in sides(0) {
            for &columns in &columns {
                holders.entry([rows, columns]).or_default().push(rank);
            }
        }
    }
    let scale = |d: usize| SIDE / layout.shape().get(d).copied().unwrap_or(1).max(1) as f64;
    for (at, ([rows, cols], ranks)) in holders.iter().enumerate() {
        let (top, left) = (TOP + rows.0 as f64 * scale(0), x + cols.0 as f64 * scale(1));
        let (h, w) = (
            (rows.1 - rows.0) as f64 * scale(0),
            (cols.1 - cols.0) as f64 * scale(1),
        );
        let hue = at * 360 / holders.len();
        let _ = writeln!(
            out,
            r#"<rect x="{left:.2}" y="{top:.2}" width="{w:.2}" height="{h:.2}" fill="hsl({hue},60%,80%)" stroke="black"/>"#
        );
        let (cx, cy) = (left + w / 2.0, top + h / 2.0 + 4.0);
        let _ = writeln!(
            out,
            r#"<text x="{cx:.2}" y="{cy:.2}" text-anchor="middle">{}</text>"#,
            names(ranks)
        );
    }
}

/// A square per pair of ranks, darker for more bytes.
fn matrix(out: &mut String, traffic: &Traffic, x: f64) {
    title(out, x, "bytes from owner (column) to reader (row)");
    let cell = SIDE / traffic.ranks as f64;
    let most = traffic.most().max(1) as f64;
    for reader in 0..traffic.ranks {
        for owner in 0..traffic.ranks {
            let bytes = traffic.between(reader, owner);
            let (left, top) = (x + owner as f64 * cell, TOP + reader as f64 * cell);
            let opacity = bytes as f64 / most;
            let _ = writeln!(
                out,
                r##"<rect x="{left:.2}" y="{top:.2}" width="{cell:.2}" height="{cell:.2}" fill="#1f5fa8" fill-opacity="{opacity:.3}" stroke="#ccc"><title>{owner} to {reader}: {bytes} B</title></rect>"##
            );
        }
    }
}

fn title(out: &mut String, x: f64, text: &str) {
    let y = TOP - 16.0;
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        r#"<text x="{x:.2}" y="{y:.2}" font-weight="bold">{text}</text>"#
    );
}

/// At most three numbers: `0`, `0,4`, or `0,1,2 +5` for more.
fn names(ranks: &[usize]) -> String {
    let first: Vec<String> = ranks.iter().take(3).map(ToString::to_string).collect();
    match ranks.len() {
        0..=3 => first.join(","),
        n => format!("{} +{}", first.join(","), n - 3),
    }
}
