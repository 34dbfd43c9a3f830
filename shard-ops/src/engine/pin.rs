//! Results that are to lie in a given layout.

use crate::{OpError, Result, key_of};
use shard_spec::{DeviceMesh, Layout};
use std::fmt;
use std::rc::Rc;

/// The layout of a mesh and a shape, or what is wrong with that.
type LayoutOf = dyn Fn(&DeviceMesh, &[usize]) -> Result<Layout, String>;

/// How the first result of ops is to lie, whatever its shape.
///
/// ```
/// use shard_ops::Pin;
/// use shard_spec::{Layout, Placement};
/// let rows = Pin::new("S(0)", |mesh, shape| {
///     Layout::new(mesh, shape, &[Placement::Shard(0)]).map_err(|e| e.to_string())
/// });
/// assert_eq!(rows.to_string(), "S(0)");
/// ```
#[derive(Clone)]
pub struct Pin {
    text: Rc<str>,
    key: u128,
    layout: Rc<LayoutOf>,
}

impl Pin {
    /// What is to be as this says; equal texts mean equal layouts, on all ranks.
    pub fn new(
        text: impl Into<Rc<str>>,
        layout: impl Fn(&DeviceMesh, &[usize]) -> Result<Layout, String> + 'static,
    ) -> Self {
        let text = text.into();
        Self {
            key: key_of("pin", &*text),
            text,
            layout: Rc::new(layout),
        }
    }

    /// What strategies are cached under beside the op.
    pub(super) fn key(&self) -> u128 {
        self.key
    }

    /// The layout of an op's first result.
    pub(super) fn layout(
        &self,
        op: &'static str,
        mesh: &DeviceMesh,
        shape: &[usize],
    ) -> Result<Layout> {
        (self.layout)(mesh, shape).map_err(|problem| OpError::Pinned {
            op,
            wanted: format!("{self} ({problem})"),
            possible: vec![format!("any layout of shape {shape:?}")],
        })
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}
