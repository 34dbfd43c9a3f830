//! The table, and the lines of JSON.

use crate::harness::Record;
use shard_tensor::DeviceKind;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use xtests::say;

/// Where results go.
pub(crate) struct Report {
    device: DeviceKind,
    json: Option<File>,
    group: Option<&'static str>,
    /// Cases of which the peer has none.
    lacking: Vec<String>,
}

impl Report {
    /// Opens the file, and prints what the columns are.
    pub(crate) fn begin(
        device: DeviceKind,
        json: Option<&Path>,
        beside: Option<&str>,
    ) -> Result<Self, String> {
        let json = json
            .map(|path| {
                let file = OpenOptions::new().create(true).append(true).open(path);
                file.map_err(|e| format!("{}: {e}", path.display()))
            })
            .transpose()?;
        let last = match (device.is_cuda(), beside) {
            (true, _) => "host busy".to_owned(),
            (false, Some(peer)) => {
                format!("{:>10} {:>6} {:>6}  ({peer})", "peer", "ratio", "least")
            }
            (false, None) => String::new(),
        };
        say!(
            "{:<58} {:>5} {:>10} {:>10}  {:<10} {:>10} {:>6} {:>6} {:>10} {:>8}  {last}",
            "case",
            "ranks",
            "median",
            "least",
            "limit",
            "median",
            "ratio",
            "least",
            "rate",
            "check",
        );
        Ok(Self {
            device,
            json,
            group: None,
            lacking: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, group: &'static str, r: &Record) -> Result<(), String> {
        if self.group.replace(group) != Some(group) {
            say!();
        }
        if r.beside_lacks {
            self.lacking.push(r.case.clone());
        }
        let ratio = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.2}"));
        let rate = match (r.gflops, r.gbytes_per_s) {
            (Some(g), _) => format!("{g:.1} GF/s"),
            (_, Some(b)) => format!("{b:.1} GB/s"),
            _ => "-".to_owned(),
        };
        let check = (r.check).map_or("-".to_owned(), |c| match c {
            0.0 => "exact".to_owned(),
            c => format!("{c:.0e}"),
        });
        let told: String = match &r.beside_fails {
            Some(told) => told.chars().take(100).collect(),
            None if r.beside_lacks => "none".to_owned(),
            None => String::new(),
        };
        let last = match (r.host_s, r.beside_s) {
            (Some(s), _) => time(s),
            (None, None) => told,
            (None, Some(s)) => format!(
                "{:>10} {:>6} {:>6}  {told}",
                time(s),
                ratio(r.beside_ratio),
                ratio(r.beside_min_ratio)
            ),
        };
        say!(
            "{:<58} {:>5} {:>10} {:>10}  {:<10} {:>10} {:>6} {:>6} {:>10} {:>8}  {}",
            r.case,
            r.ranks,
            time(r.median_s),
            time(r.min_s),
            r.limit.unwrap_or("-"),
            r.limit_s.map_or("-".to_owned(), time),
            ratio(r.ratio),
            ratio(r.min_ratio),
            rate,
            check,
            last,
        );
        if let Some(file) = &mut self.json {
            let line = serde_json::to_string(r).map_err(|e| e.to_string())?;
            writeln!(file, "{line}").map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn end(&self) {
        let more = match self.device.is_cuda() {
            true => " Host busy: until a call returns, its work queued.",
            false => "",
        };
        say!(
            "\nRatios: of the medians, and of the least times. Rates: of all ranks, at the least time.{more}"
        );
        if let Some(first) = self.lacking.first() {
            let count = self.lacking.len();
            say!("Cases that the peer has not: {count}, the first of them {first}.");
        }
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.3} us", s * 1e6),
        s if s < 10.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
