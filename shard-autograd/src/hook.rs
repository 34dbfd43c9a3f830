//! Functions that see, and may replace, the gradient of a value.

use crate::node::Node;
use crate::{Recorder, Result};
use shard_ops::Value;
use std::fmt;
use std::rc::{Rc, Weak};

/// Looks at a gradient and may give another one in its place.
///
/// It gets the gradient in the layout of the gradient law, and may return one in any layout.
pub type GradientHook = Rc<dyn Fn(&Value) -> Result<Option<Value>>>;

/// A hook with its place.
#[derive(Clone)]
pub(crate) struct Hook {
    pub(crate) output: usize,
    /// Unique within the tape, also after hooks have been forgotten.
    pub(crate) key: u64,
    pub(crate) run: GradientHook,
}

/// The handle of a hook, which can remove it. Dropping the handle leaves the hook in place.
pub struct HookHandle {
    node: Weak<Node>,
    key: u64,
}

impl HookHandle {
    /// Removes the hook.
    ///
    /// # Collective
    /// All ranks must do this between the same two backward passes, as they must when adding one.
    pub fn remove(self) {
        if let Some(node) = self.node.upgrade() {
            node.hooks.borrow_mut().retain(|h| h.key != self.key);
        }
    }
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookHandle")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Calls `hook` with the gradient of `value` in every backward pass that computes it, once the gradient is complete and in
    /// the layout of the [gradient law](crate::gradient_layout). `value` may be a leaf or not. Hooks of one value run in the
    /// order they were added, each on what the previous one returned. The hook of a leaf stays when the leaf is
    /// [renewed](Self::renewed).
    ///
    /// A hook that holds its own value keeps it until it is removed; see [`forget_hooks`](Self::forget_hooks).
    ///
    /// # Collective
    /// All ranks must add the hook, because a hooked gradient is brought to its layout at once, and because the
    /// hook itself may communicate.
    ///
    /// # Errors
    /// [`NotTracked`](crate::AutogradError::NotTracked).
    pub fn on_gradient(&self, value: &Value, hook: GradientHook) -> Result<HookHandle> {
        let slot = self.slot_of("on_gradient", "the value", value)?;
        let mut hooks = slot.node.hooks.borrow_mut();
        if hooks.is_empty() {
            self.census().add_hooked(&slot.node);
        }
        let key = self.census().next_hook();
        hooks.push(Hook {
            output: slot.output,
            key,
            run: hook,
        });
        Ok(HookHandle {
            node: Rc::downgrade(&slot.node),
            key,
        })
    }
}
