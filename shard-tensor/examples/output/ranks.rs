//! What each rank held and received, as a table.

use serde::{Deserialize, Serialize};
use shard_tensor::nn::Parameters;
use shard_tensor::{Context, LedgerSnapshot, OpCount, Result};
use std::io::{self, Write};

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// What one rank had to do.
#[derive(Serialize, Deserialize)]
pub(crate) struct RankReport {
    /// Extents of its piece.
    piece: Vec<usize>,
    /// Bytes of its pieces of the parameters.
    parameters: usize,
    /// Most bytes of tensors at any time.
    peak: usize,
    /// Messages and bytes received during all steps.
    messages: u64,
    bytes: u64,
    /// The same by the name of the operation.
    operations: Vec<(String, u64, u64)>,
}

impl RankReport {
    /// Of all ranks, on every one.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn gather(
        ctx: &Context,
        piece: &[usize],
        parameters: &Parameters,
        moved: &LedgerSnapshot,
    ) -> Result<Vec<Self>> {
        let bytes = parameters
            .iter()
            .map(|(_, p)| p.local_shape().iter().product::<usize>() * p.dtype().size());
        let operation =
            |(name, count): &(&str, OpCount)| (String::from(*name), count.messages, count.bytes);
        ctx.gather(&Self {
            piece: piece.to_vec(),
            parameters: bytes.sum(),
            peak: ctx.ledger().memory().peak,
            messages: moved.messages,
            bytes: moved.bytes,
            operations: moved.ops.iter().map(operation).collect(),
        })
    }
}

/// Prints memory and messages per rank, and what the messages were for.
pub(crate) fn print(out: &mut impl Write, ranks: &[RankReport], steps: usize) -> io::Result<()> {
    let steps = steps.max(1) as f64;
    writeln!(
        out,
        "\nper rank           piece   KiB of parameters   peak MiB   messages   MiB received   in a step"
    )?;
    for (rank, report) in ranks.iter().enumerate() {
        let piece: Vec<String> = report.piece.iter().map(usize::to_string).collect();
        writeln!(
            out,
            "  {rank:>6}   {:>13}   {:>17.1}   {:>8.1}   {:>8}   {:>12.1}   {:>9.3}",
            piece.join(" x "),
            report.parameters as f64 / KIB,
            report.peak as f64 / MIB,
            report.messages,
            report.bytes as f64 / MIB,
            report.bytes as f64 / MIB / steps,
        )?;
    }
    let messages: u64 = ranks.iter().map(|r| r.messages).sum();
    let bytes = ranks.iter().map(|r| r.bytes).sum::<u64>() as f64 / MIB;
    writeln!(
        out,
        "  {:>6}   {:>13}   {:>17}   {:>8}   {messages:>8}   {bytes:>12.1}   {:>9.3}",
        "all",
        "",
        "",
        "",
        bytes / steps
    )?;
    if messages == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "\nby operation, in a step, all ranks   messages      KiB"
    )?;
    for (name, messages, bytes) in by_operation(ranks) {
        writeln!(
            out,
            "  {name:33}   {:8.1}   {:6.1}",
            messages / steps,
            bytes / steps / KIB
        )?;
    }
    Ok(())
}

/// Messages and bytes of every operation that sent any, over all ranks.
fn by_operation(ranks: &[RankReport]) -> Vec<(&str, f64, f64)> {
    let mut sums: Vec<(&str, f64, f64)> = Vec::new();
    for (name, messages, bytes) in ranks.iter().flat_map(|r| &r.operations) {
        let (messages, bytes) = (*messages as f64, *bytes as f64);
        match sums.iter_mut().find(|s| s.0 == name) {
            Some(sum) => (sum.1, sum.2) = (sum.1 + messages, sum.2 + bytes),
            None => sums.push((name, messages, bytes)),
        }
    }
    sums.retain(|s| s.1 > 0.0);
    sums.sort_by(|a, b| b.2.total_cmp(&a.2));
    sums
}
