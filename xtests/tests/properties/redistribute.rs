//! Laws of redistribution and halos, on random meshes and layouts. Data are whole numbers in doubles, so that
//! every comparison is exact.

use proptest::prelude::*;
use shard_comm::Scalar;
use shard_ops::testing::{local_indices, place, tensor, whole};
use shard_redistribute::{Array, ExchangeBuilder, ExchangeSource, MeshComm, Plan};
use shard_spec::{
    DeviceMesh, DimCover, DimMap, EdgeMap, Layout, Placement, ReduceOp, numel, row_major_strides,
};
use xtests::case::{Data, Tensor};
use xtests::harness::{On, on_mesh};
use xtests::paths::path;
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::{Recipe, integer, mesh_shape, recipe, resolve, shape};

pub(super) const ALL: &[Property] = properties![
    any_path_gives_the_pieces_of_the_global_tensor,
    a_partial_destination_stands_for_the_same_tensor,
    bytes_received_are_the_lower_bound_and_as_predicted,
    the_adjoint_is_the_adjoint,
    a_slab_is_the_slice_of_the_padded_tensor,
    the_test_device_agrees,
];

/// A mesh, a shape, and layout recipes: the first may hold partial sums, the others not, except the last.
fn scene(recipes: usize) -> impl Strategy<Value = (DeviceMesh, Vec<usize>, Vec<Recipe>)> {
    (mesh_shape(6), shape(3, 7)).prop_flat_map(move |(mesh, shape)| {
        let (axes, ndim) = (mesh.len(), shape.len());
        let middle = proptest::collection::vec(recipe(axes, ndim, false), recipes);
        (
            Just(mesh),
            Just(shape),
            recipe(axes, ndim, true),
            middle,
            recipe(axes, ndim, true),
        )
            .prop_map(|(mesh, shape, first, middle, last)| {
                let all = std::iter::once(first).chain(middle).chain([last]).collect();
                (DeviceMesh::new(&mesh).unwrap(), shape, all)
            })
    })
}

fn numbers(shape: &[usize], seed: u64) -> Tensor {
    tensor(shape, |i| integer(seed, i))
}

fn values(t: &Tensor) -> &[f64] {
    match &*t.data {
        Data::F64(v) => v,
        other => panic!("expected doubles, got {}", other.dtype()),
    }
}

/// What this rank must hold of a tensor in a layout without partial axes.
fn piece(t: &Tensor, layout: &Layout, rank: usize) -> Vec<f64> {
    local_indices(layout, rank)
        .unwrap()
        .iter()
        .map(|&i| values(t)[i])
        .collect()
}

fn start(cx: &std::rc::Rc<MeshComm>, layout: &Layout, t: &Tensor) -> Array {
    place(cx, layout, t, shard_comm::DType::F64).unwrap()
}

proptest! {
    #![proptest_config(xtests::strategies::config(96))]

    fn any_path_gives_the_pieces_of_the_global_tensor(path in path(6, 2)) {
        on_mesh(&path.mesh, On::Host, |cx| assert_eq!(path.walk(cx).unwrap(), None));
    }

    fn a_partial_destination_stands_for_the_same_tensor((mesh, shape, recipes) in scene(0), seed: u64) {
        let t = numbers(&shape, seed);
        let layouts: Vec<Layout> = recipes.iter().map(|r| resolve(r, &mesh, &shape)).collect();
        on_mesh(&mesh, On::Host, |cx| {
            let plan = Plan::new(&layouts[0], &layouts[1], cx.rank()).unwrap();
            let moved = plan.run(&start(cx, &layouts[0], &t)).unwrap();
            assert_eq!(moved.layout(), &layouts[1]);
            assert_eq!(values(&whole(&moved).unwrap()), values(&t), "{plan}");
        });
    }

    fn bytes_received_are_the_lower_bound_and_as_predicted((mesh, shape, recipes) in scene(1), seed: u64) {
        let t = numbers(&shape, seed);
        let from = resolve(&recipes[0], &mesh, &shape);
        let to = resolve(&recipes[1], &mesh, &shape);
        on_mesh(&mesh, On::Host, |cx| {
            let source = start(cx, &from, &t);
            let plan = Plan::new(&from, &to, cx.rank()).unwrap();
            let ledger = cx.world().ledger();
            let before = ledger.snapshot();
            plan.run(&source).unwrap();
            let moved = ledger.since(&before);
            assert_eq!(moved.bytes, 8 * plan.received(source.dtype()) as u64, "predicted is moved: {plan}");
            if !plan.communicates() {
                assert_eq!((moved.messages, moved.bytes), (0, 0), "{plan}");
            }
            if !from.is_partial() {
                let (have, want) = (from.local_parts(cx.rank()).unwrap(), to.local_parts(cx.rank()).unwrap());
                let common: usize = have.iter().zip(&want).map(|(h, w)| h.common(w)).product();
                let bound = numel(&to.local_shape(cx.rank()).unwrap()) - common;
                assert_eq!(moved.bytes, 8 * bound as u64, "{plan}: rank {}", cx.rank());
            }
            if from.is_replicated() {
                assert!(!plan.communicates(), "{plan}");
            }
        });
    }

    fn the_adjoint_is_the_adjoint((mesh, shape, recipes) in scene(0), seed: u64) {
        let from = resolve(&recipes[0], &mesh, &shape);
        let to = resolve(&recipes[1], &mesh, &shape);
        let products = on_mesh(&mesh, On::Host, |cx| {
            let plan = Plan::new(&from, &to, cx.rank()).unwrap();
            let x = random(cx, &from, seed);
            let adjoint = plan.adjoint().unwrap();
            // The adjoint goes between the duals: copies and terms change places.
            let y = random(cx, adjoint.from(), seed ^ 0x55);
            assert_eq!(adjoint.from().placements(), dual(&to));
            assert_eq!(adjoint.to().placements(), dual(&from));
            let forth = plan.run(&x).unwrap();
            let back = adjoint.run(&y).unwrap();
            (dot(&forth, &y), dot(&x, &back))
        });
        // Shards add up, and a sum of terms meets copies: every axis adds local products.
        let (forth, back): (Vec<f64>, Vec<f64>) = products.into_iter().unzip();
        prop_assert_eq!(forth.iter().sum::<f64>(), back.iter().sum::<f64>(), "{} to {}", from, to);
    }

    fn a_slab_is_the_slice_of_the_padded_tensor(
        (mesh, shape, recipes) in scene(0),
        pads in proptest::collection::vec((-2_isize..9, -2_isize..9, 0_usize..4), 3),
        cuts in any::<u64>(),
    ) {
        let from = resolve(&recipes[0], &mesh, &shape).with_partial_reduced();
        let t = numbers(&shape, cuts);
        let maps: Vec<DimMap> = shape.iter().zip(&pads).map(|(&n, &pad)| padding(n, pad)).collect();
        let mut rng = shard_ops::testing::Rng::new(cuts, &["cover"]);
        let covers: Vec<DimCover> = (0..shape.len()).map(|d| cover(&from, d, maps[d].dst_extent(), &mut rng)).collect();
        on_mesh(&mesh, On::Host, |cx| {
            let source = start(cx, &from, &t);
            let exchange = ExchangeBuilder::new("halo", &mesh, covers.clone())
                .source(ExchangeSource { layout: from.clone(), maps: maps.clone() })
                .fill(Scalar::F64(-77.0))
                .build(cx.rank());
            let local = source.buffer().unwrap().clone();
            let slab = exchange.run(cx, source.dtype(), &[local]).unwrap();
            let got: Vec<f64> = cx.device().download_vec(&slab).unwrap();
            assert_eq!(got, slab_of(&t, &maps, &covers, &mesh, cx.rank()), "{from} {covers:?}");
        });
    }
}

/// The map of a pad the dim can have: widths are cut where torch would refuse them.
fn padding(n: usize, (before, after, kind): (isize, isize, usize)) -> DimMap {
    let edge = [
        EdgeMap::Zeros,
        EdgeMap::Replicate,
        EdgeMap::Reflect,
        EdgeMap::Circular,
    ][kind];
    DimMap::pad(n, before, after, edge)
        .or_else(|_| DimMap::pad(n, before.max(0), after.max(0), EdgeMap::Zeros))
        .unwrap()
}

/// Random overlapping intervals for the axes that shard the dim, sometimes none.
fn cover(from: &Layout, dim: usize, extent: usize, rng: &mut shard_ops::testing::Rng) -> DimCover {
    let axes = from
        .sharding(dim)
        .map_or_else(Default::default, |s| s.axes.clone());
    let intervals = (0..from.parts(dim))
        .map(|_| {
            let (a, b) = (rng.below(extent + 1), rng.below(extent + 1));
            a.min(b)..a.max(b)
        })
        .collect();
    DimCover::intervals(&axes, intervals)
}

/// The part of the padded tensor that a rank's intervals cover, element by element.
fn slab_of(
    t: &Tensor,
    maps: &[DimMap],
    covers: &[DimCover],
    mesh: &DeviceMesh,
    rank: usize,
) -> Vec<f64> {
    let coords = mesh.coords(rank).unwrap();
    let strides = row_major_strides(&t.shape);
    let mut found = vec![Some(0_usize)];
    for (d, (map, cover)) in maps.iter().zip(covers).enumerate() {
        let part = mesh.part_at(&cover.axes, &coords);
        let mut source_of = vec![None; map.dst_extent()];
        for (src, dst) in map.pairs() {
            source_of[dst] = Some(src * strides[d].unsigned_abs());
        }
        let want = &source_of[cover.part(part).interval().unwrap()];
        found = found
            .iter()
            .flat_map(|base| want.iter().map(|w| Some(base.as_ref()? + w.as_ref()?)))
            .collect();
    }
    found
        .iter()
        .map(|i| i.map_or(-77.0, |i| values(t)[i]))
        .collect()
}

fn dual(layout: &Layout) -> Vec<Placement> {
    let swap = |&p: &Placement| match p {
        Placement::Replicate => Placement::Partial(ReduceOp::Sum),
        Placement::Partial(_) => Placement::Replicate,
        shard => shard,
    };
    layout.placements().iter().map(swap).collect()
}

/// A whole number per element and term: equal on copies, different on shards and terms of a sum.
fn random(cx: &std::rc::Rc<MeshComm>, layout: &Layout, seed: u64) -> Array {
    let coords = cx.coords().unwrap();
    let term = layout
        .partial_axes()
        .iter()
        .fold(0, |t, &a| t * 8 + coords[a] + 1);
    let seed = seed ^ (term as u64) << 32;
    let indices = local_indices(layout, cx.rank()).unwrap();
    let data: Vec<f64> = indices.iter().map(|&i| integer(seed, i)).collect();
    let buffer = cx.device().upload_slice(&data).unwrap();
    Array::from_parts(cx, layout, Some(buffer), shard_comm::DType::F64).unwrap()
}

fn dot(a: &Array, b: &Array) -> f64 {
    let (a, b) = (a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap());
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(x, y)| x * y).sum()
}

fn the_test_device_agrees() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let shape = [5, 3];
    let t = numbers(&shape, 9);
    assert_eq!(numel(&shape), 15);
    for seed in 0..20 {
        let mut rng = shard_ops::testing::Rng::new(seed, &[]);
        let choices = xtests::layouts::choices(shape.len(), true);
        let mut layout = |sums: bool| {
            let axes: Vec<_> = (0..2)
                .map(|_| choices[rng.below(choices.len() - usize::from(!sums))])
                .collect();
            let split = xtests::layouts::Split::ALL[rng.below(3)];
            xtests::layouts::layout(&mesh, &shape, &axes, split, &mut rng).unwrap()
        };
        let (from, to) = (layout(true), layout(false));
        on_mesh(&mesh, On::TestDevice, |cx| {
            let moved = start(cx, &from, &t).redistribute(&to).unwrap();
            assert_eq!(
                moved.to_vec::<f64>().unwrap(),
                piece(&t, &to, cx.rank()),
                "{from} to {to}"
            );
        });
    }
}
