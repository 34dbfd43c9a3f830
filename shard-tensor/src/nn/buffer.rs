//! Tensors of a model that are no parameters.

use crate::{Error, Result, ShardTensor};
use shard_comm::{Call, Calling};
use shard_spec::Layout;
use std::cell::RefCell;
use std::rc::Rc;

/// A tensor of a model that gets no gradient and changes while the model is used, as running statistics do. Its clones see
/// what is set.
#[derive(Clone, Debug)]
pub struct Buffer(Rc<RefCell<ShardTensor>>);

impl Buffer {
    /// A buffer that holds this, without its history.
    pub fn new(tensor: &ShardTensor) -> Self {
        Self(Rc::new(RefCell::new(tensor.detach())))
    }

    /// What it holds now.
    pub fn get(&self) -> ShardTensor {
        self.0.borrow().clone()
    }

    /// Whether what is set in one is seen in the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Moves what it holds, for all its clones.
    #[track_caller]
    pub(crate) fn settle(&self, to: &Layout) -> Result<()> {
        let settled = self.get().settled(to)?;
        self.0.replace(settled);
        Ok(())
    }

    /// Replaces what it holds; where a function [runs again](crate::Context::recompute), its first run has done so.
    ///
    /// # Collective
    /// All members of its mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for another type, shape or layout than it has.
    #[track_caller]
    pub fn set(&self, tensor: &ShardTensor) -> Result<()> {
        let _call = Calling::of("set");
        let old = self.get();
        if tensor.layout() != old.layout() || tensor.dtype() != old.dtype() {
            let tell = |t: &ShardTensor| format!("{} {:?} {}", t.dtype(), t.shape(), t.layout());
            return Err(Error::argument(
                "set",
                tell(&old),
                tell(tensor),
                "a buffer keeps its type, shape and layout; redistribute the new value to the buffer's layout",
            ));
        }
        let (from, to) = (tensor.value(), old.value());
        let call = Call::new("set").of(old.dtype(), old.layout());
        let read = [to.array().number(), from.array().number()];
        from.array().cx().record(call.reading(&read));
        if !tensor.context().runs_again().get() {
            self.0.replace(tensor.detach());
        }
        Ok(())
    }
}
