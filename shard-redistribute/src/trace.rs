//! The short form of the layouts that a plan passes through.

use crate::Plan;
use crate::path::Hop;
use shard_spec::{Layout, Placement};
use std::fmt::Write;

impl Plan {
    /// The placements passed through, as DTensor prints them: `S(0)[0]S(0)[1] → R S(0)`.
    ///
    /// Where several mesh axes divide one dim, the number in brackets is the axis's level, 0 the outermost. Boundaries
    /// are not shown; the plan's `Display` shows them.
    ///
    /// ```
    /// use shard_redistribute::Plan;
    /// use shard_spec::{DeviceMesh, Layout};
    /// let mesh = DeviceMesh::new(&[2, 2])?;
    /// let from = Layout::parse(&mesh, &[8, 4], "S(0;1,0) S(0)")?;
    /// let to = Layout::parse(&mesh, &[8, 4], "R S(0)")?;
    /// assert_eq!(Plan::new(&from, &to, 0)?.trace(), "S(0)[1]S(0)[0] → R S(0)");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trace(&self) -> String {
        trace(&self.from, &self.hops)
    }
}

/// The placements of a layout and of the layouts that the hops lead to.
pub(crate) fn trace(from: &Layout, hops: &[Hop]) -> String {
    hops.iter().fold(placements(from), |text, hop| {
        format!("{text} → {}", placements(hop.to()))
    })
}

/// One token per mesh axis. Axes that divide one dim together are written without a space between them, each with its level.
pub fn placements(layout: &Layout) -> String {
    let mut text = String::new();
    let mut before = None;
    for (axis, placement) in layout.placements().iter().enumerate() {
        let dim = placement.shard_dim();
        if axis > 0 && (dim.is_none() || dim != before) {
            text.push(' ');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{placement}");
        if let Placement::Shard(d) = placement
            && let order = layout.axis_order(*d)
            && order.len() > 1
        {
            let level = order.iter().position(|&a| a == axis).unwrap_or(0);
            let _ = write!(text, "[{level}]");
        }
        before = dim;
    }
    text
}
