//! What must move for a choice.

use super::choice::Choice;
use super::missing::{axes_of, most_missing};
use super::site::{Site, Spans};
use crate::Rule;
use shard_spec::Layout;

/// Elements the busiest rank receives, plus, for partial results that must be reduced later, their share of that sum. `None` if that is
/// more than `ceiling`, which is often seen before all ranks have been looked at.
pub(super) fn cost(
    rule: &Rule,
    layouts: &[&Layout],
    choice: &Choice,
    ceiling: usize,
) -> Option<usize> {
    let site = Site::serving(rule, choice, layouts);
    let mut total = site.asked();
    let partial_result = !site.reduced_axes().is_empty() || !choice.carry.is_empty();
    for o in 0..rule.outputs.len() {
        if partial_result && let Ok(layout) = site.output_layout(o) {
            // What goes home is counted as what is asked for.
            let at_home = site.routed.is_some() && !layout.is_partial();
            let moved = if at_home {
                0
            } else {
                layout.max_local_numel().div_ceil(rule.terms)
            };
            total = total.saturating_add(moved);
        }
    }
    for (i, layout) in layouts.iter().enumerate() {
        if rule.unread.contains(&i) {
            continue;
        }
        if layout.partial_axes().iter().any(|&a| !choice.carries(i, a)) {
            total = total.saturating_add(2 * layout.max_local_numel());
        }
        let received = received_input(&site, i, layout, ceiling.checked_sub(total)?)?;
        total = total.saturating_add(received);
    }
    (total <= ceiling).then_some(total)
}

/// Elements of input `i` that the busiest rank receives; `None` if more than `ceiling`.
pub(super) fn received_input(
    site: &Site<'_>,
    i: usize,
    layout: &Layout,
    ceiling: usize,
) -> Option<usize> {
    let (mesh, covers) = (site.mesh, site.covers_with_halos(i, &Spans::Full));
    if site.in_place(layout, &covers) {
        return Some(0);
    }
    let worst = most_missing(
        mesh,
        covers.len(),
        |d| axes_of(mesh, &covers[d].axes) | axes_of(mesh, layout.axis_order(d)),
        |d, coords| {
            let want = covers[d].at(mesh, coords);
            let have = layout.part(d, mesh.part_at(layout.axis_order(d), coords));
            (want.len(), want.common(&have))
        },
    );
    (worst <= ceiling).then_some(worst)
}
