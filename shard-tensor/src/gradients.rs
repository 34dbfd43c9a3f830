//! What a backward pass found.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use std::fmt;

/// The gradients of one backward pass, by parameter.
///
/// Sums over ranks that are still outstanding are taken when the first gradient is read, all in one go.
pub struct Gradients(shard_autograd::Gradients);

impl Gradients {
    pub(crate) fn new(inner: shard_autograd::Gradients) -> Self {
        Self(inner)
    }

    /// The gradient of a parameter, in exactly the parameter's layout; `None` if the loss does not depend on it. It is
    /// there also after the parameter's value was replaced, as by an optimizer's step.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn get(&self, parameter: &ShardTensor) -> Result<Option<ShardTensor>> {
        let _call = Calling::of("get");
        Ok(self
            .0
            .get(&parameter.value())?
            .map(|value| parameter.lift(value)))
    }

    /// Adds the gradients of another pass, as of another part of the batch.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What the device reports.
    #[track_caller]
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        let _call = Calling::of("accumulate");
        Ok(self.0.accumulate(other.0)?)
    }

    /// How many parameters have a gradient.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
