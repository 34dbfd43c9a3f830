//! What can be wrong with a mesh, a partition, a layout, an index map or a window.

use crate::reduce_op::ReduceOp;

/// The result of every fallible operation of this crate.
pub type Result<T, E = SpecError> = std::result::Result<T, E>;

/// An invalid construction: what was given, what was expected, and what to do about it.
///
/// Everything here is decided from arguments alone, so ranks that pass equal arguments get equal errors.
///
/// ```
/// use shard_spec::{DeviceMesh, SpecError};
/// let err = DeviceMesh::new(&[2, 0]).unwrap_err();
/// assert_eq!(err, SpecError::ZeroMeshAxis { shape: vec![2, 0], axis: 1 });
/// assert!(err.to_string().contains("at least one rank"));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A mesh axis of size zero.
    #[error(
        "mesh shape {shape:?}: axis {axis} has size 0, expected at least one rank along every axis; drop the axis or give it size 1"
    )]
    ZeroMeshAxis {
        /// The shape given.
        shape: Vec<usize>,
        /// The first axis of size zero.
        axis: usize,
    },
    /// A product of extents that cannot be addressed.
    #[error("{op}: the product of {} does not fit in an address (at most {max}); reduce the extents", few(shape), max = isize::MAX)]
    Overflow {
        /// The operation refused.
        op: &'static str,
        /// The extents given.
        shape: Vec<usize>,
    },
    /// A list of ranks that does not fill the mesh.
    #[error(
        "mesh shape {shape:?} holds {expected} ranks, got a list of {got}; list each rank once, row-major"
    )]
    RankCount {
        /// The mesh shape.
        shape: Vec<usize>,
        /// Ranks it holds.
        expected: usize,
        /// Ranks given.
        got: usize,
    },
    /// A rank listed twice.
    #[error(
        "rank {rank} is listed at positions {first} and {second} of the mesh, expected distinct ranks; list each rank once"
    )]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// Its first position, row-major.
        first: usize,
        /// Its second position, row-major.
        second: usize,
    },
    /// A number of axis names other than the number of axes.
    #[error("the mesh has {expected} axes, got {got} names; give one name per axis")]
    NameCount {
        /// Axes of the mesh.
        expected: usize,
        /// Names given.
        got: usize,
    },
    /// An axis name that is empty or used twice.
    #[error("axis name {name:?} is empty or used twice; give each axis a distinct, non-empty name")]
    BadName {
        /// The name.
        name: String,
    },
    /// A name no axis of the mesh has.
    #[error("no mesh axis is named {name:?}, {}", one_of(known))]
    UnknownName {
        /// The name asked for.
        name: String,
        /// The names there are; empty on an unnamed mesh.
        known: Vec<String>,
    },
    /// A mesh axis beyond the mesh.
    #[error(
        "{op}: mesh axis {axis} is out of range, expected less than {ndim}; axes count from 0 in mesh order"
    )]
    AxisOutOfRange {
        /// The operation refused.
        op: &'static str,
        /// The axis given.
        axis: usize,
        /// Axes of the mesh.
        ndim: usize,
    },
    /// A mesh axis given twice where it may appear once.
    #[error(
        "{op}: mesh axis {axis} appears more than once; each axis shards one dim, or is partial, or replicates"
    )]
    RepeatedAxis {
        /// The operation refused.
        op: &'static str,
        /// The axis.
        axis: usize,
    },
    /// A rank that the mesh does not hold.
    #[error("{op}: rank {rank} is not in the mesh {mesh}; call it with a member rank")]
    NotInMesh {
        /// The operation refused.
        op: &'static str,
        /// The rank given.
        rank: usize,
        /// The mesh, in words.
        mesh: String,
    },
    /// A number of placements other than the number of mesh axes.
    #[error(
        "{op}: the mesh has {expected} axes, got {got} placements; give one placement per mesh axis, `Replicate` (R) for copies along it, or name the axes that shard or are partial"
    )]
    PlacementCount {
        /// The operation refused.
        op: &'static str,
        /// Axes of the mesh.
        expected: usize,
        /// Placements given.
        got: usize,
    },
    /// A tensor dim beyond the tensor.
    #[error("{op}: dim {dim} is out of range for a tensor of {ndim} dims; dims count from 0")]
    DimOutOfRange {
        /// The operation refused.
        op: &'static str,
        /// The dim given.
        dim: usize,
        /// Dims of the tensor.
        ndim: usize,
    },
    /// A list with one entry per dim that has too few or too many.
    #[error("{op}: the tensor has {expected} dims, got entries for {got}; give one entry per dim")]
    DimCount {
        /// The operation refused.
        op: &'static str,
        /// Dims of the tensor.
        expected: usize,
        /// Entries given.
        got: usize,
    },
    /// A tensor dim sharded twice in one description.
    #[error(
        "{op}: dim {dim} is sharded twice; give all its mesh axes in one call, major axis first"
    )]
    RepeatedDim {
        /// The operation refused.
        op: &'static str,
        /// The dim.
        dim: usize,
    },
    /// Partial axes with different reductions.
    #[error(
        "{op}: partial axes of one value must share one reduction, got {first} and {second}; reduce one of them first"
    )]
    MixedPartial {
        /// The operation refused.
        op: &'static str,
        /// The reduction seen first.
        first: ReduceOp,
        /// The other one.
        second: ReduceOp,
    },
    /// A partition with the wrong number of parts.
    #[error(
        "{op}: expected {expected} parts, got {got}; a partition has one part per rank along its mesh axes, empty parts included"
    )]
    PartCount {
        /// The operation refused.
        op: &'static str,
        /// Parts needed.
        expected: usize,
        /// Parts given.
        got: usize,
    },
    /// Sizes that do not sum to the extent they divide.
    #[error(
        "{op}: expected sizes that sum to {expected}, got {got}; the parts must cover the dim exactly"
    )]
    Extent {
        /// The operation refused.
        op: &'static str,
        /// The extent to cover.
        expected: usize,
        /// What the parts cover.
        got: usize,
    },
    /// An offset table that does not start at 0, falls somewhere, or does not end at the extent.
    #[error(
        "offsets {}: entry {index} breaks the order, expected {expected}; offsets start at 0, never fall and end at the extent {extent}",
        few(offsets)
    )]
    BadOffsets {
        /// The table given.
        offsets: Vec<usize>,
        /// The extent it should cover.
        extent: usize,
        /// The first offending entry.
        index: usize,
        /// What that entry should be.
        expected: String,
    },
    /// A weight that is negative or not finite, or a list of weights without a positive, finite sum.
    #[error(
        "weights {}: expected finite weights of at least 0 with a positive sum; give each part the share it can hold",
        few(weights)
    )]
    BadWeights {
        /// The weights given.
        weights: Vec<f64>,
    },
    /// Text that is not the short form of what was asked for.
    #[error(
        "cannot read {input:?} as {what}: expected {expected}, got {got:?}; write e.g. `S(0)[3,1,0,2] R P(sum)`"
    )]
    Parse {
        /// What was being read.
        what: &'static str,
        /// The whole text.
        input: String,
        /// What should have been there.
        expected: String,
        /// The offending part.
        got: String,
    },
    /// A window wider than what it slides over.
    #[error(
        "{op}: the window spans {span} but the padded input has {padded} (extent {extent}), expected an output of at least one element; pad more or use a smaller kernel or dilation"
    )]
    WindowTooWide {
        /// The operation refused.
        op: &'static str,
        /// Elements one window spans.
        span: usize,
        /// Input extent with its padding.
        padded: usize,
        /// Input extent.
        extent: usize,
    },
    /// Any other argument out of its domain.
    #[error("{op}: {argument} is {got}, expected {expected}; {remedy}")]
    Argument {
        /// The operation refused.
        op: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// What was given.
        got: String,
        /// What is allowed.
        expected: String,
        /// What to do about it.
        remedy: &'static str,
    },
}

/// A list, of which there may be any number of entries: the first ones, and how many there are.
fn few<T: std::fmt::Debug>(list: &[T]) -> String {
    const MOST: usize = 16;
    match list.get(..MOST) {
        Some(first) if list.len() > MOST => {
            let first = format!("{first:?}");
            format!("{}, ... {} in all]", &first[..first.len() - 1], list.len())
        }
        _ => format!("{list:?}"),
    }
}

/// The names there are to choose from, and what to do.
fn one_of(known: &[String]) -> String {
    match known {
        [] => {
            "its axes have no names; name them where the mesh is made, or use an index".to_owned()
        }
        _ => format!(
            "expected one of {known:?}; use one of these, or name the axes where the mesh is made"
        ),
    }
}
