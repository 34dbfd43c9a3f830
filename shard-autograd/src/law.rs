//! The gradient law.

use shard_spec::Layout;

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
