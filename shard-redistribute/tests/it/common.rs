//! Ranks, random layouts, and arrays of known values in them.

use proptest::prelude::*;
use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DeviceKind};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout, Partition, ReduceOp};
use std::rc::Rc;

/// Runs `f` on every rank of a mesh.
pub(crate) fn on_ranks<T: Send>(shape: &[usize], f: impl Fn(&Rc<MeshComm>) -> T + Sync) -> Vec<T> {
    on_device(DeviceKind::Host, shape, f)
}

/// The same on devices of a kind.
pub(crate) fn on_device<T: Send>(
    device: DeviceKind,
    shape: &[usize],
    f: impl Fn(&Rc<MeshComm>) -> T + Sync,
) -> Vec<T> {
    launched(device, shape, &f)
}

/// Not generic over functions: the launch is compiled for each type of results, not for each call.
fn launched<T: Send>(
    device: DeviceKind,
    shape: &[usize],
    f: &(dyn Fn(&Rc<MeshComm>) -> T + Sync),
) -> Vec<T> {
    let mesh = DeviceMesh::new(shape).unwrap();
    let options = LocalOptions {
        device,
        ..LocalOptions::default()
    };
    local::run_with(mesh.size(), &options, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        f(&MeshComm::new(&world, &mesh).unwrap())
    })
    .unwrap()
}

/// A recipe for a layout of a 2-D tensor on a mesh: small enough to shrink well.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// Per mesh axis: 0 and 1 shard that dim, 2 replicates, 3 is a partial sum.
    pub(crate) kinds: Vec<u8>,
    /// Cut points per dim, scaled to the extent; unused cuts are ignored.
    pub(crate) cuts: Vec<f64>,
    /// Whether a dim sharded by several axes lists them minor to major.
    pub(crate) reversed: bool,
    /// Whether dims are cut at the cuts, or in several intervals per part.
    pub(crate) scatter: Scatter,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Scatter {
    /// One interval per part, in part order.
    No,
    Zigzag,
    Cyclic(usize),
    /// Cut at the cuts, the parts in reverse order.
    Backwards,
}

/// What a rank needs of `to` and does not have of `from`, in elements.
pub(crate) fn missing(from: &Layout, to: &Layout, rank: usize) -> usize {
    let want = to.local_parts(rank).unwrap_or_default();
    let Some(shape) = to.local_shape(rank) else {
        return 0;
    };
    let common: usize = match from.local_parts(rank) {
        Some(have) => have.iter().zip(&want).map(|(h, w)| h.common(w)).product(),
        None => 0,
    };
    shape.iter().product::<usize>() - common
}

pub(crate) fn layout(mesh: &DeviceMesh, shape: &[usize], recipe: &Recipe) -> Layout {
    let mut builder = Layout::builder(mesh, shape);
    for (d, &n) in shape.iter().enumerate() {
        let mut axes: Vec<usize> = (0..mesh.ndim())
            .filter(|&a| usize::from(recipe.kinds[a]) == d)
            .collect();
        if axes.is_empty() {
            continue;
        }
        if recipe.reversed {
            axes.reverse();
        }
        let parts = mesh.part_count(&axes);
        let mut cuts: Vec<usize> = (1..parts)
            .map(|k| (recipe.cuts[k % recipe.cuts.len()] * n as f64) as usize)
            .collect();
        cuts.sort_unstable();
        let offsets = std::iter::once(0)
            .chain(cuts)
            .chain(std::iter::once(n))
            .collect();
        let cut = Partition::from_offsets(n, offsets).unwrap();
        let partition = match recipe.scatter {
            Scatter::No => cut,
            Scatter::Zigzag => Partition::zigzag(n, parts),
            Scatter::Cyclic(block) => Partition::block_cyclic(n, parts, block),
            Scatter::Backwards => {
                let tiles: Vec<(usize, usize)> = (0..parts).rev().zip(cut.sizes()).collect();
                Partition::from_segments(n, parts, &tiles).unwrap()
            }
        };
        builder = builder.shard(d, &axes, partition);
    }
    for a in 0..mesh.ndim() {
        if recipe.kinds[a] == 3 {
            builder = builder.partial(a, ReduceOp::Sum);
        }
    }
    builder.build().unwrap()
}

pub(crate) fn recipe(ndim: usize) -> impl Strategy<Value = Recipe> {
    (
        prop::collection::vec(0_u8..4, ndim),
        prop::collection::vec(0.0..=1.0, 6),
        any::<bool>(),
        prop_oneof![
            3 => Just(Scatter::No),
            1 => Just(Scatter::Zigzag),
            1 => (1_usize..4).prop_map(Scatter::Cyclic),
            1 => Just(Scatter::Backwards),
        ],
    )
        .prop_map(|(kinds, cuts, reversed, scatter)| Recipe {
            kinds,
            cuts,
            reversed,
            scatter,
        })
}

/// Values whose partial shares differ per rank and sum to the global value.
pub(crate) fn value(index: &[usize]) -> f64 {
    index.iter().fold(1.0, |v, &i| 7.0 * v + i as f64)
}

/// The array of `layout` whose partial shares are spread unevenly over the ranks.
pub(crate) fn spread(cx: &Rc<MeshComm>, layout: &Layout) -> Array {
    let whole = Array::from_fn::<f64>(cx, &layout.with_partial_reduced(), value).unwrap();
    let (axes, coords) = (layout.partial_axes(), cx.coords().unwrap());
    let p = cx.mesh().part_count(axes);
    let me = cx.mesh().part_at(axes, coords);
    let data: Vec<f64> = whole
        .to_vec::<f64>()
        .unwrap()
        .iter()
        .map(|v| {
            if me == 0 {
                v - (p * (p - 1) / 2) as f64 * 5.0
            } else {
                me as f64 * 5.0
            }
        })
        .collect();
    let data = if p == 1 {
        whole.to_vec().unwrap()
    } else {
        data
    };
    Array::from_local(
        cx,
        layout,
        Some(cx.device().upload_slice(&data).unwrap()),
        shard_comm::DType::F64,
    )
    .unwrap()
}

/// What this rank should hold of a whole-valued layout.
pub(crate) fn expected(cx: &Rc<MeshComm>, layout: &Layout) -> Vec<f64> {
    Array::from_fn::<f64>(cx, layout, value)
        .unwrap()
        .to_vec()
        .unwrap()
}

/// This rank's term of the inner product of a value and a cotangent of dual layouts.
pub(crate) fn pair(cx: &Rc<MeshComm>, a: &Array, b: &Array) -> f64 {
    let coords = cx.coords().unwrap();
    // Both replicated along an axis would count every copy; duals never are.
    let copies_once = (0..cx.mesh().ndim()).all(|axis| {
        let both = a.layout().replicate_axes().contains(&axis)
            && b.layout().replicate_axes().contains(&axis);
        !both || coords[axis] == 0
    });
    if !copies_once {
        return 0.0;
    }
    a.to_vec::<f64>()
        .unwrap()
        .iter()
        .zip(b.to_vec::<f64>().unwrap())
        .map(|(x, y)| x * y)
        .sum()
}
