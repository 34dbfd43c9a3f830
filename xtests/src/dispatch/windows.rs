//! Ops with windows, and norms.

use super::Entry;

pub(crate) const TABLE: &[Entry] = &[];
