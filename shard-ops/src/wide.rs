//! Operands of 16 bits for ops whose kernels have none: such an op is computed in `f32`, and its results are rounded once.
//!
//! Where the op's rule refuses a 16-bit type and takes `f32` in its place, the rule is that of `f32`, and says which results are
//! [rounded](Rule::narrows). What moves before the kernel are the operands as they are, of 16 bits; each kernel call is given `f32` copies
//! of the boxes it reads and writes `f32`. Calls are made for blocks of the factors, so that these copies fit into a cache and are never
//! those of whole operands (`strategy/blocks.rs`, `engine/widened.rs`). Kernels of maps and of formulas take them block by block themselves (`families/elementwise`, `families/fused`). Sums over ranks that the op leaves behind are taken in `f32`, and
//! only then is there a result of 16 bits: a term of a sum that was rounded to 16 bits would round the sum as often as there are ranks.

use crate::{Linearity, Meta, Op, OpError, Result, Rule};
use shard_comm::{DType, DeviceKind, DeviceRef};
use shard_spec::Layout;

/// How many bytes the `f32` copies for one call take at most, where calls can be divided so far.
///
/// On the host what a call reads and writes should stay in the cache nearest to a core that has room for it; on other devices calls are
/// to be few.
pub(crate) fn room(device: &DeviceRef) -> usize {
    match device.runs_host_jobs() {
        true => 1 << 20,
        false => 64 << 20,
    }
}

/// The op's rule for these operands: its own, or if it refuses their 16-bit type that for `f32`, with copies in blocks of `room` bytes. The
/// op's kernel for the kind of device may read some operands as they are, and write results as they are stored.
///
/// # Errors
/// What the op's rule reports.
pub(crate) fn rule(op: &dyn Op, inputs: &[Meta], room: usize, on: DeviceKind) -> Result<Rule> {
    match (op.rule(inputs), stored(inputs)) {
        (Err(refused @ OpError::DType { .. }), Some(stored)) => match op.rule(&widened(inputs)) {
            Ok(rule) => {
                let mut rule = narrowing(rule, inputs, stored, room);
                let halves = op.halves(stored, inputs, on);
                rule.as_stored = halves.reads.into();
                rule.rounds = halves.writes && !rule.unrounded;
                Ok(rule)
            }
            // The type that the caller gave is what the message should name.
            Err(OpError::DType { .. }) => Err(refused),
            Err(other) => Err(other),
        },
        (rule, _) => rule,
    }
}

/// The op's rules for block by block, where `rule` is the one it goes by.
///
/// # Errors
/// What the op's rules report.
pub(crate) fn block_rules(
    op: &dyn Op,
    rule: &Rule,
    inputs: &[Meta],
    outputs: &[Layout],
) -> Result<Vec<Rule>> {
    match stored(inputs) {
        Some(stored) if rule.is_wide() => {
            let rules = op.block_rules(&widened(inputs), outputs)?;
            Ok((rules.into_iter())
                .map(|made| Rule {
                    as_stored: rule.as_stored.clone(),
                    rounds: rule.rounds,
                    ..narrowing(made, inputs, stored, rule.room)
                })
                .collect())
        }
        _ => op.block_rules(inputs, outputs),
    }
}

/// The 16-bit type of all operands that are floats below `f64`, which has a part of its own: statistics come in it.
fn stored(inputs: &[Meta]) -> Option<DType> {
    let mut narrow = (inputs.iter().map(|meta| meta.dtype))
        .filter(|dtype| dtype.is_half() || *dtype == DType::F32);
    let first = narrow.next().filter(|dtype| dtype.is_half())?;
    narrow.all(|dtype| dtype == first).then_some(first)
}

fn widened(inputs: &[Meta]) -> Vec<Meta> {
    let wide = |meta: &Meta| Meta {
        shape: meta.shape.clone(),
        dtype: crate::host::partial_type(meta.dtype),
    };
    inputs.iter().map(wide).collect()
}

/// A rule of `f32` for operands that are stored so.
fn narrowing(mut rule: Rule, inputs: &[Meta], stored: DType, room: usize) -> Rule {
    rule.metas = inputs.to_vec();
    rule.room = room;
    // Terms of sums over ranks, each rounded to 16 bits, would be rounded once more each.
    rule.linearity = Linearity::None;
    let narrow = |dtype: DType| (dtype == DType::F32 && !rule.unrounded).then_some(stored);
    rule.narrows = (rule.outputs.iter())
        .map(|output| narrow(output.meta.dtype))
        .collect();
    rule
}
