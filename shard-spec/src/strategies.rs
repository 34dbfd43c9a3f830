//! What property tests of distributed code draw, as strategies of the crate `proptest`: meshes, partitions and layouts, with all that
//! breaks such code.
//!
//! Parts are uneven, empty or of several intervals, dims are shorter than the number of ranks or empty, axes have one rank, several
//! axes shard one dim in any order, and terms of sums are spread. A failure shrinks towards few ranks, copies, and even parts.
//!
//! ```
//! use proptest::prelude::*;
//! use shard_spec::strategies::layouts;
//!
//! // Whatever a tensor's layouts, each element has a holder in all of them.
//! proptest!(|(layouts in layouts(6, 3, 9, 2))| {
//!     let [from, to] = &layouts[..] else { unreachable!() };
//!     prop_assert_eq!((from.mesh(), from.shape()), (to.mesh(), to.shape()));
//!     let held = |rank| from.local_shape(rank).map_or(0, |shape| shape.iter().product::<usize>());
//!     let all: usize = from.mesh().ranks().iter().map(|&rank| held(rank)).sum();
//!     prop_assert!(all >= to.numel());
//! });
//! ```

use crate::{DeviceMesh, DimSharding, Layout, Partition, ReduceOp};
use proptest::collection::vec;
use proptest::prelude::*;

/// What a mesh axis does to a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Replicate,
    Shard(usize),
    Partial,
}

/// Meshes of one to three axes over the ranks 0 to n-1, where n is at most `ranks`; an axis may have one rank.
///
/// Zero ranks count as one.
pub fn mesh(ranks: usize) -> impl Strategy<Value = DeviceMesh> {
    let ranks = ranks.max(1);
    vec(1..=ranks, 1..=3).prop_filter_map("a mesh has ranks", move |mut shape| {
        // Later axes have what the earlier ones leave, so that hardly a draw is thrown away.
        let mut left = ranks;
        for n in &mut shape {
            *n = (*n).min(left);
            left /= *n;
        }
        DeviceMesh::new(&shape).ok()
    })
}

/// Shapes of up to `dims` dims and of extents up to `extent`, 0 and 1 often among them; a scalar has none.
pub fn shape(dims: usize, extent: usize) -> impl Strategy<Value = Vec<usize>> {
    let some = prop_oneof![12 => 0..=extent, 2 => Just(1.min(extent)), 1 => Just(0)];
    vec(some, 0..=dims)
}

/// Partitions of `n` indices into parts of one interval each: by chunk, even, with boundaries anywhere, so that parts are empty, or
/// with all indices in one part.
///
/// Zero parts count as one.
///
/// # Panics
/// If there are more parts than a mesh may have ranks.
pub fn partition(n: usize, parts: usize) -> impl Strategy<Value = Partition> {
    let parts = parts.max(1);
    let valid = move |sizes: Vec<usize>| {
        Partition::from_sizes(&sizes).unwrap_or_else(|_| Partition::chunk(n, parts))
    };
    let cuts = vec(0..=n, parts - 1).prop_map(move |mut cuts| {
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([n]);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        valid(ends.zip(starts).map(|(end, start)| end - start).collect())
    });
    prop_oneof![
        1 => Just(Partition::balanced(n, parts)),
        1 => Just(Partition::chunk(n, parts)),
        4 => cuts,
        1 => (0..parts).prop_map(move |owner| {
            valid((0..parts).map(|part| if part == owner { n } else { 0 }).collect())
        }),
    ]
}

/// Partitions of `n` indices into parts of one interval each, as [`partition`], or of several: zigzag, block-cyclic, scattered.
///
/// Zero parts count as one.
///
/// # Panics
/// If there are more parts than a mesh may have ranks.
pub fn division(n: usize, parts: usize) -> impl Strategy<Value = Partition> {
    let parts = parts.max(1);
    let tiles = || vec((0..parts, 0_usize..5), 0..9);
    let or_chunk =
        move |made: crate::Result<Partition>| made.unwrap_or_else(|_| Partition::chunk(n, parts));
    let scattered = tiles().prop_map(move |mut tiles| {
        let mut left = n;
        for (_, size) in &mut tiles {
            *size = (*size).min(left);
            left -= *size;
        }
        tiles.push((parts - 1, left));
        or_chunk(Partition::from_segments(n, parts, &tiles))
    });
    let repeated =
        tiles().prop_map(move |tiles| or_chunk(Partition::from_repeated(n, parts, &tiles)));
    prop_oneof![
        2 => partition(n, parts),
        1 => Just(Partition::zigzag(n, parts)),
        1 => (1_usize..5).prop_map(move |block| Partition::block_cyclic(n, parts, block)),
        1 => scattered,
        1 => repeated,
    ]
}

/// Layouts of a tensor of this shape on a mesh: every axis holds copies or shards a dim, and axes that shard one dim do so in any order.
pub fn layout(mesh: &DeviceMesh, shape: &[usize]) -> impl Strategy<Value = Layout> + use<> {
    layout_with(mesh, shape, &[])
}

/// As [`layout`], and axes may hold terms of one of these reductions.
pub fn layout_with(
    mesh: &DeviceMesh,
    shape: &[usize],
    reductions: &[ReduceOp],
) -> impl Strategy<Value = Layout> + use<> {
    let mut roles = vec![Role::Replicate];
    roles.extend((0..shape.len()).map(Role::Shard));
    let mut ops = reductions.to_vec();
    match ops.is_empty() {
        true => ops.push(ReduceOp::Sum),
        false => roles.push(Role::Partial),
    }
    let roles = vec(prop::sample::select(roles), mesh.ndim());
    let order = Just((0..mesh.ndim()).collect::<Vec<_>>()).prop_shuffle();
    let (mesh, shape) = (mesh.clone(), shape.to_vec());
    (roles, order, prop::sample::select(ops))
        .prop_flat_map(move |(roles, order, op)| divided(&mesh, &shape, &roles, &order, op))
}

/// Layouts whose axes have these roles; those that shard a dim do so in this order.
fn divided(
    mesh: &DeviceMesh,
    shape: &[usize],
    roles: &[Role],
    order: &[usize],
    op: ReduceOp,
) -> impl Strategy<Value = Layout> + use<> {
    let dim = |(dim, &n): (usize, &usize)| {
        let shards = |&axis: &usize| roles[axis] == Role::Shard(dim);
        let axes: Vec<usize> = order.iter().copied().filter(shards).collect();
        let parts = mesh.part_count(&axes);
        division(n, parts).prop_map(move |partition| {
            let axes = axes.iter().copied().collect();
            Some(DimSharding { axes, partition })
        })
    };
    let dims: Vec<_> = shape.iter().enumerate().map(dim).collect();
    let is_partial = |&axis: &usize| roles[axis] == Role::Partial;
    let partial: Vec<usize> = (0..mesh.ndim()).filter(is_partial).collect();
    let (mesh, shape) = (mesh.clone(), shape.to_vec());
    dims.prop_filter_map("a layout that can be made", move |dims| {
        let partial = (!partial.is_empty()).then_some((op, partial.as_slice()));
        Layout::from_dims(&mesh, &shape, dims, partial).ok()
    })
}

/// As many layouts of one tensor on one mesh: the tensor has up to `dims` dims of extents up to `extent`, the mesh at most `ranks` ranks.
///
/// None holds terms of a reduction: [`layout_with`] makes those.
pub fn layouts(
    ranks: usize,
    dims: usize,
    extent: usize,
    count: usize,
) -> impl Strategy<Value = Vec<Layout>> {
    (mesh(ranks), shape(dims, extent))
        .prop_flat_map(move |(mesh, shape)| vec(layout(&mesh, &shape), count))
}
