//! Whether ops of one key are ruled alike.

use super::{OpSample, ValidationError};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The ops that were tried in this process, by key and operands: the rule, and what the op shows of itself.
static TRIED: Mutex<BTreeMap<(u128, String), [String; 2]>> = Mutex::new(BTreeMap::new());

/// Remembers an op, and finds out if another one, of this check or one before, has its key for such operands and another rule: an engine
/// that has found a strategy for one of them takes it for the other too.
pub(super) fn differs(sample: &OpSample) -> Result<(), ValidationError> {
    let (op, metas) = (&sample.op, &sample.metas);
    let rule = op.rule(metas).map_err(ValidationError::Alone)?;
    let shown = [format!("{rule:?}"), format!("{op:?}")];
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let first = tried.entry((op.key(), format!("{metas:?}")));
    let first = first.or_insert_with(|| shown.clone());
    let ([one, other], [rule, op]) = (first.clone(), shown);
    match one == rule {
        true => Ok(()),
        false => Err(ValidationError::Key { op, other }),
    }
}
