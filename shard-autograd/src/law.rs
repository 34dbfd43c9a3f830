//! The gradient law.

use crate::Result;
use shard_spec::{Layout, ReduceOp};
use smallvec::SmallVec;

/// The layout of the gradient of a value with this layout: the same mesh, boundaries and placements, with
/// replicate in place of partial.
///
/// ```
/// use shard_autograd::gradient_layout;
/// use shard_spec::{DeviceMesh, Layout, Placement::*, ReduceOp::Sum};
/// let mesh = DeviceMesh::new(&[2, 2])?;
/// let value = Layout::new(&mesh, &[5, 4], &[Shard(0), Partial(Sum)])?;
/// assert_eq!(gradient_layout(&value), Layout::new(&mesh, &[5, 4], &[Shard(0), Replicate])?);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
pub fn gradient_layout(value: &Layout) -> Layout {
    value.with_partial_reduced()
}

/// Whether a cotangent with this label has the layout of the law, or is partial where the law replicates.
pub(crate) fn is_law_but_for_sums(label: &Layout, law: &Layout) -> bool {
    label == law || label.is_partial() && &label.with_partial_reduced() == law
}

/// Whether a partial cotangent becomes a gradient of this law by a reduction alone that leaves every rank its part: the axes
/// along which ranks are left parts, and the layout then, which may still be partial over other axes.
pub(crate) fn scattered(
    label: &Layout,
    law: &Layout,
) -> Result<Option<(SmallVec<[usize; 4]>, Layout)>> {
    let partial = label.partial_axes();
    let sharded = |&axis: &usize| law.placements()[axis].shard_dim().is_some();
    let (over, rest): (SmallVec<[usize; 4]>, SmallVec<[usize; 4]>) =
        partial.iter().copied().partition(sharded);
    let divides = |dim| divides(label, law, dim, &over);
    let sums = label.partial_op() == Some(ReduceOp::Sum);
    if over.is_empty() || !sums || !label.is_contiguous() || !law.is_contiguous() {
        return Ok(None);
    }
    Ok(match (0..law.ndim()).all(divides) {
        true if rest.is_empty() => Some((over, law.clone())),
        true => Some((over, law.with_partial(&rest, ReduceOp::Sum)?)),
        false => None,
    })
}

/// Whether the parts of a dim under the law are those of the label, divided further over some of these axes.
fn divides(label: &Layout, law: &Layout, dim: usize, over: &[usize]) -> bool {
    let (coarse, fine) = (label.axis_order(dim), law.axis_order(dim));
    let Some(inner) = fine.strip_prefix(coarse) else {
        return false;
    };
    let each = law.parts(dim) / label.parts(dim).max(1);
    let ends = |layout: &Layout, first: usize, last: usize| {
        let interval = |part| layout.part(dim, part).interval();
        Some((interval(first)?.start, interval(last)?.end))
    };
    let same =
        |part: usize| ends(label, part, part) == ends(law, part * each, part * each + each - 1);
    inner.iter().all(|axis| over.contains(axis)) && (0..label.parts(dim)).all(same)
}
