//! Layout invariants over random meshes, partitions and axis orders, and sizes known from PyTorch.

use std::collections::BTreeMap;

use crate::common::{any_partition, extent, indices, layout, mesh, partition};
use proptest::prelude::*;
use shard_spec::{
    ContentHash, DeviceMesh, DimCover, DimMap, DimPart, DimSharding, Layout, Partition, Placement,
    ReduceOp, ResampleMode, Run, SpecError, Window,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Along the axes that shard, boxes are disjoint and cover everything; along the others they are copies.
    #[test]
    fn boxes_partition_the_index_space(layout in layout()) {
        let copies: usize = layout
            .partial_axes()
            .iter()
            .chain(layout.replicate_axes())
            .map(|&a| layout.mesh().axis_size(a))
            .product();
        let mut owners: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        let mut held = 0;
        let mut largest = 0;
        for &rank in layout.mesh().ranks() {
            let own = layout.local_parts(rank).unwrap();
            let shape: Vec<usize> = own.iter().map(DimPart::len).collect();
            prop_assert_eq!(&shape[..], &layout.local_shape(rank).unwrap()[..]);
            let numel: usize = shape.iter().product();
            held += numel;
            largest = largest.max(numel);
            if let Some(one_box) = layout.local_box(rank) {
                prop_assert!(layout.local_box(rank).unwrap().shape()[..] == shape || one_box.is_empty());
            }
            let holds = |i: &Vec<usize>| own.iter().zip(i).all(|(p, &i)| p.position(i).is_some());
            for index in indices(layout.shape()).into_iter().filter(holds) {
                *owners.entry(index).or_default() += 1;
            }
        }
        prop_assert_eq!(held, layout.numel() * copies);
        prop_assert_eq!(owners.len(), layout.numel());
        prop_assert!(owners.values().all(|&n| n == copies));
        prop_assert_eq!(largest, layout.max_local_numel());
        prop_assert!(layout.local_box(1000).is_none());
    }

    /// Global index to owner and local index and back.
    #[test]
    fn owners_and_locals_invert(layout in layout()) {
        for dim in 0..layout.ndim() {
            for (part, i) in (0..layout.parts(dim)).flat_map(|p| layout.part(dim, p).indices().map(move |i| (p, i))) {
                let owner = layout.sharding(dim).map_or(Some(0), |s| s.partition.owner_of(i));
                prop_assert_eq!(owner, Some(part));
            }
            for &rank in layout.mesh().ranks() {
                let part = layout.part_of(rank, dim).unwrap();
                prop_assert_eq!(&layout.local_parts(rank).unwrap()[dim], &layout.part(dim, part));
                let coords = layout.mesh().coords(rank).unwrap();
                let along: Vec<usize> = layout.axis_order(dim).iter().map(|&a| coords[a]).collect();
                prop_assert_eq!(layout.part_coords(dim, part).to_vec(), along);
            }
        }
        prop_assert_eq!(layout.part_of(layout.mesh().ranks()[0], layout.ndim()), None);
    }

    #[test]
    fn short_form_round_trips(layout in layout()) {
        let text = layout.to_string();
        let back = Layout::parse(layout.mesh(), layout.shape(), &text)?;
        prop_assert_eq!(&back, &layout, "{}", text);
        prop_assert_eq!(back.hash128(), layout.hash128());
    }

    /// Nested shards of one dim are one flat partition over the product, major axis first.
    #[test]
    fn nesting_is_flat(n in extent(), p in 1usize..5, q in 1usize..5) {
        let mesh = DeviceMesh::new(&[p, q])?;
        let outer = Partition::chunk(n, p);
        let inner: Vec<Partition> = outer.sizes().map(|size| Partition::chunk(size, q)).collect();
        let flat = Partition::nested(&outer, &inner)?;
        prop_assert_eq!(&flat, &Partition::nested_chunk(n, &[p, q]));
        let nested = Layout::new(&mesh, &[n], &[Placement::Shard(0); 2])?;
        let one_axis = Layout::builder(&mesh.flatten(), &[n]).shard(0, &[0], flat).build()?;
        prop_assert!(nested.same_boxes(&one_axis));
        prop_assert_ne!(nested, one_axis);
    }

    /// A canonical layout equals the explicit one with the canonical offsets: same value, same hash.
    #[test]
    fn canonical_is_explicit(n in extent(), p in 1usize..9) {
        let mesh = DeviceMesh::new(&[p])?;
        let canonical = Layout::new(&mesh, &[n], &[Placement::Shard(0)])?;
        let offsets = Partition::chunk(n, p).offsets().unwrap().to_vec();
        let explicit = Layout::builder(&mesh, &[n]).shard(0, &[0], Partition::from_offsets(n, offsets)?).build()?;
        prop_assert_eq!(&canonical, &explicit);
        prop_assert_eq!(canonical.content_hash(), explicit.content_hash());
    }

    /// Size-1 axes and more replication never change boxes.
    #[test]
    fn idle_axes_change_nothing(layout in layout(), extra in 1usize..3) {
        let mesh = layout.mesh();
        let shape: Vec<usize> = mesh.shape().iter().copied().chain([1]).collect();
        let wider = DeviceMesh::with_ranks(&shape, mesh.ranks().to_vec())?;
        let dims = layout.shardings().to_vec();
        let wide = Layout::from_dims(&wider, layout.shape(), dims.clone(), None)?;
        prop_assert!(wide.same_boxes(&layout));
        if let Some(dim) = (0..layout.ndim()).find(|&d| layout.sharding(d).is_none()) {
            let partition = Partition::chunk(layout.shape()[dim], 1);
            let axes = [mesh.ndim()].into_iter().collect();
            let on_unit_axis = wide.with_sharding(dim, Some(DimSharding { axes, partition }))?;
            prop_assert!(on_unit_axis.same_boxes(&layout));
        }

        let ranks = (0..extra).flat_map(|copy| mesh.ranks().iter().map(move |r| r + 100 * copy)).collect();
        let shape: Vec<usize> = std::iter::once(extra).chain(mesh.shape().iter().copied()).collect();
        let stacked = DeviceMesh::with_ranks(&shape, ranks)?;
        let shifted = dims.into_iter().map(|s| {
            s.map(|s| DimSharding { axes: s.axes.iter().map(|a| a + 1).collect(), partition: s.partition })
        });
        let copies = Layout::from_dims(&stacked, layout.shape(), shifted, None)?;
        for &rank in mesh.ranks() {
            prop_assert_eq!(copies.local_box(rank), layout.local_box(rank));
        }
    }

    #[test]
    fn groups_partition_the_mesh(mesh in mesh(), pick in prop::collection::vec(any::<bool>(), 3)) {
        let axes: Vec<usize> = (0..mesh.ndim()).filter(|&a| pick[a]).rev().collect();
        let groups = mesh.groups(&axes);
        let mut all: Vec<usize> = groups.concat();
        all.sort_unstable();
        let mut ranks = mesh.ranks().to_vec();
        ranks.sort_unstable();
        prop_assert_eq!(all, ranks);
        for group in groups {
            for &rank in &group {
                let sub = mesh.submesh(rank, &axes)?;
                prop_assert_eq!(sub.ranks(), group.as_slice());
            }
        }
        let parts = mesh.part_count(&axes);
        for (index, part) in (0..mesh.size()).flat_map(|i| (0..parts).map(move |p| (i, p))) {
            let old = mesh.coords_at(index);
            let mut coords = old.clone();
            mesh.set_part(&axes, part, &mut coords);
            prop_assert_eq!(mesh.part_at(&axes, &coords), part);
            prop_assert!((0..mesh.ndim()).all(|a| axes.contains(&a) || coords[a] == old[a]));
        }
    }

    /// Scaled boundaries are monotone, cover the new extent, keep proportions to within rounding, and scale back up exactly.
    #[test]
    fn scaling_keeps_proportions(p in any_partition(), new in extent()) {
        let scaled = p.scaled(new);
        prop_assert_eq!((scaled.parts(), scaled.extent()), (p.parts(), new));
        if p.extent() > 0 {
            for (x, y) in p.offsets().unwrap().iter().zip(scaled.offsets().unwrap()) {
                prop_assert_eq!(*y, (x * new * 2 + p.extent()) / (2 * p.extent()));
            }
            prop_assert_eq!(p.scaled(p.extent() * 3).scaled(p.extent()), p);
        }
    }

    #[test]
    fn aligned_boundaries_are_the_nearest_multiples(p in any_partition(), multiple in 1usize..6) {
        let aligned = p.aligned_to(multiple);
        prop_assert_eq!((aligned.parts(), aligned.extent()), (p.parts(), p.extent()));
        for (x, y) in p.offsets().unwrap().iter().zip(aligned.offsets().unwrap()) {
            prop_assert!(y % multiple == 0 || *y == p.extent());
            prop_assert!(2 * x.abs_diff(*y) <= multiple || *y == p.extent());
        }
    }

    #[test]
    fn weights_give_their_share(n in 0usize..1000, weights in prop::collection::vec(0.0f64..9.0, 1..6)) {
        prop_assume!(weights.iter().sum::<f64>() > 0.0);
        let p = Partition::weighted(n, &weights)?;
        prop_assert_eq!((p.parts(), p.extent()), (weights.len(), n));
        let total: f64 = weights.iter().sum();
        for (size, weight) in p.sizes().zip(&weights) {
            prop_assert!((size as f64 - n as f64 * weight / total).abs() <= 1.0 + 1e-9);
            prop_assert!(*weight > 0.0 || size == 0);
        }
    }

    /// Partial bookkeeping: adding and reducing partial axes is an inverse pair and never touches boxes.
    #[test]
    fn partial_axes_come_and_go(layout in layout()) {
        let reduced = layout.with_partial_reduced();
        prop_assert!(!reduced.is_partial() && reduced.same_boxes(&layout));
        if let Some(op) = layout.partial_op() {
            prop_assert_eq!(&reduced.with_partial(layout.partial_axes(), op)?, &layout);
            prop_assert_ne!(&reduced, &layout);
        } else {
            prop_assert_eq!(&reduced, &layout);
        }
    }

    /// The scaled law for whole layouts.
    #[test]
    fn reshaped_layouts_scale_each_dim(layout in layout(), by in 1usize..4) {
        let shape: Vec<usize> = layout.shape().iter().map(|n| n * by).collect();
        let scaled = layout.with_shape(&shape)?;
        for dim in 0..layout.ndim() {
            for part in 0..layout.parts(dim) {
                let (old, new) = (layout.part(dim, part), scaled.part(dim, part));
                if layout.shape()[dim] > 0 {
                    prop_assert_eq!(new.len(), old.len() * by);
                    if let Some(old) = old.interval().filter(|_| layout.is_contiguous()) {
                        prop_assert_eq!(new.interval(), Some(old.start * by..old.end * by));
                    }
                }
            }
        }
        prop_assert_eq!(scaled.placements(), layout.placements());
    }

    /// Tables that are short, overflowing or out of order are refused, each with the entry at fault.
    #[test]
    fn broken_tables_are_refused(n in extent(), p in partition(24, 4), at in 0usize..5, wrong in 0usize..40) {
        let mut offsets = p.offsets().unwrap().to_vec();
        offsets[at] = wrong;
        let valid = offsets[0] == 0 && offsets[4] == n && offsets.is_sorted();
        match Partition::from_offsets(n, offsets.clone()) {
            Ok(p) => prop_assert!(valid && p.offsets().unwrap() == offsets),
            Err(SpecError::BadOffsets { offsets: given, extent, .. }) => {
                prop_assert!(!valid);
                prop_assert_eq!((given, extent), (offsets, n));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

/// `(size, offset)` of every rank along a dim.
fn table(
    mesh: &[usize],
    shape: &[usize],
    placements: &[Placement],
    dim: usize,
) -> Vec<(usize, usize)> {
    let mesh = DeviceMesh::new(mesh).unwrap();
    let layout = Layout::new(&mesh, shape, placements).unwrap();
    let interval = |&rank| layout.local_box(rank).unwrap().interval(dim);
    mesh.ranks()
        .iter()
        .map(interval)
        .map(|r| (r.len(), r.start))
        .collect()
}

const S0: Placement = Placement::Shard(0);
const S1: Placement = Placement::Shard(1);

/// Of an extent that `f64` cannot hold, the last part with a weight takes what rounding left over.
#[test]
fn weights_of_extents_beyond_their_precision() {
    let n = (1 << 53) + 1;
    let p = Partition::weighted(n, &[0.0, 1.0, 0.0]).unwrap();
    assert_eq!(p.sizes().collect::<Vec<_>>(), [0, n, 0]);
}

/// Sizes of PyTorch's chunked shards, uneven and empty.
#[test]
fn chunks_as_in_pytorch() {
    for (n, sizes) in [
        (5, [2, 2, 1, 0]),
        (3, [1, 1, 1, 0]),
        (9, [3, 3, 3, 0]),
        (13, [4, 4, 4, 1]),
    ] {
        assert_eq!(Partition::chunk(n, 4).sizes().collect::<Vec<_>>(), sizes);
    }
}

/// Sizes and offsets of PyTorch's nested shards.
#[test]
fn nested_shards_as_in_pytorch() {
    let two = [2, 2];
    assert_eq!(
        table(&two, &[10, 5], &[S0, S0], 0),
        [(3, 0), (2, 3), (3, 5), (2, 8)]
    );
    assert_eq!(
        table(&two, &[9, 5], &[S0, S0], 0),
        [(3, 0), (2, 3), (2, 5), (2, 7)]
    );
    assert_eq!(
        table(&two, &[3, 5], &[S0, S0], 0),
        [(1, 0), (1, 1), (1, 2), (0, 3)]
    );
    assert_eq!(
        table(&[3, 2], &[7], &[S0, S0], 0),
        [(2, 0), (1, 2), (2, 3), (1, 5), (1, 6), (0, 7)]
    );
    let held: Vec<usize> = table(&[2, 4], &[2], &[S0, S0], 0)
        .into_iter()
        .map(|(size, _)| size)
        .collect();
    assert_eq!(held, [1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(
        table(&two, &[2, 5], &[S1, S1], 1),
        [(2, 0), (1, 2), (1, 3), (1, 4)]
    );
    let both: Vec<_> = table(&two, &[1, 3], &[S0, S1], 0)
        .into_iter()
        .zip(table(&two, &[1, 3], &[S0, S1], 1))
        .map(|(rows, columns)| (rows.0, columns.0))
        .collect();
    assert_eq!(both, [(1, 2), (1, 1), (0, 2), (0, 1)]);
}

/// The reversed axis order of fully sharded plus tensor parallel training: the second axis is the major one.
#[test]
fn reversed_order_as_in_pytorch() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let layout = Layout::builder(&mesh, &[8])
        .shard_chunk(0, &[1, 0])
        .build()
        .unwrap();
    assert_eq!(layout.to_string(), "S(0;1,0) S(0)");
    let held: Vec<_> = (0..4)
        .map(|r| layout.local_box(r).unwrap().interval(0))
        .collect();
    assert_eq!(held, [0..2, 4..6, 2..4, 6..8]);
}

#[test]
fn short_forms_read_as_documented() {
    let mesh = DeviceMesh::new(&[4, 2, 2]).unwrap();
    let text = "S(0)[3,1,0,2] R P(sum)";
    let layout = Layout::parse(&mesh, &[6, 5], text).unwrap();
    assert_eq!(layout.to_string(), text);
    let in_full = "S(0)[3,1,0,2] R P(sum) of [6, 5] on mesh(4x2x2)";
    assert_eq!(format!("{layout:?}"), in_full);
    assert_eq!(
        layout.sharding(0).unwrap().partition.offsets(),
        Some(&[0, 3, 4, 4, 6][..])
    );
    assert_eq!(
        (layout.partial_axes(), layout.partial_op()),
        (&[2][..], Some(ReduceOp::Sum))
    );
    assert_eq!(
        Layout::parse(&mesh, &[6, 5], " S(0)[3, 1, 0, 2]  R\tP(sum) ").unwrap(),
        layout
    );
    assert_eq!(
        Layout::parse(&DeviceMesh::new(&[]).unwrap(), &[6], "")
            .unwrap()
            .to_string(),
        ""
    );
}

/// Hashes are part of the wire protocol between ranks, whatever machine or build they run on.
#[test]
fn hashes_are_pinned() {
    let mesh = DeviceMesh::new(&[2, 2])
        .unwrap()
        .with_names(&["h", "w"])
        .unwrap();
    let layout = Layout::parse(&mesh, &[6, 4], "S(0)[4,2] P(sum)").unwrap();
    assert_eq!(
        layout.hash128(),
        0x8fc7_3580_7535_b148_c20c_bdef_b831_896f,
        "{:#034x}",
        layout.hash128()
    );
    assert_eq!(
        mesh.content_hash(),
        0x004d_b4f2_43da_d0cc_941f_05dd_c149_a08a,
        "{:#034x}",
        mesh.content_hash()
    );
}

#[test]
fn hashes_tell_contents_apart() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let texts = [
        "R R",
        "S(0) R",
        "R S(0)",
        "S(0) S(0)",
        "S(0;1,0) S(0)",
        "S(0)[4,2] R",
        "P(sum) R",
        "P(max) R",
        "S(1) R",
    ];
    let mut hashes: Vec<u128> = Vec::new();
    for shape in [[6, 4], [4, 6]] {
        hashes.extend(
            texts
                .iter()
                .filter_map(|t| Layout::parse(&mesh, &shape, t).ok())
                .map(|l| l.hash128()),
        );
    }
    assert_eq!(hashes.len(), 17);
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 17);
}

/// What was found for one value is taken for every other of its hash: values that differ in one number alone have others.
#[test]
fn hashes_tell_values_apart_that_differ_in_one_number() {
    /// All hashes of values in order, each of which is another than those before.
    fn all_differ(what: &str, values: &[&dyn ContentHash]) {
        let hashes: Vec<u128> = values.iter().map(|v| v.content_hash()).collect();
        for (i, hash) in hashes.iter().enumerate() {
            let before = hashes[..i].iter().position(|h| h == hash);
            assert_eq!(before, None, "{what} {i}");
        }
    }
    let tiles = |n, parts, tiles: &[(usize, usize)]| Partition::from_segments(n, parts, tiles);
    let partitions = [
        tiles(9, 2, &[(0, 3), (1, 3), (0, 3)]).unwrap(),
        tiles(9, 2, &[(0, 3), (1, 4), (0, 2)]).unwrap(),
        tiles(9, 2, &[(1, 3), (0, 3), (1, 3)]).unwrap(),
        tiles(9, 3, &[(0, 3), (1, 3), (0, 3)]).unwrap(),
        tiles(9, 3, &[(0, 2), (1, 2), (0, 2), (2, 3)]).unwrap(),
        tiles(9, 3, &[(0, 2), (2, 2), (0, 2), (1, 3)]).unwrap(),
        tiles(10, 2, &[(0, 3), (1, 3), (0, 4)]).unwrap(),
        Partition::from_repeated(9, 2, &[(0, 3), (1, 3)])
            .unwrap()
            .rotated(1),
        Partition::from_repeated(10, 2, &[(0, 3), (1, 3)]).unwrap(),
        Partition::chunk(9, 2),
        Partition::balanced(9, 3),
        Partition::from_sizes(&[9, 0]).unwrap(),
    ];
    let partitions: Vec<&dyn ContentHash> = partitions.iter().map(|p| p as _).collect();
    all_differ("partition", &partitions);

    let run = Run {
        dst_start: 1,
        src_start: 2,
        len: 2,
        dst_step: 1,
        src_step: 1,
    };
    let map = |src, dst, run| DimMap::from_runs(src, dst, [run]).unwrap();
    let maps = [
        map(8, 8, run),
        map(9, 8, run),
        map(8, 9, run),
        map(
            8,
            8,
            Run {
                dst_start: 0,
                ..run
            },
        ),
        map(
            8,
            8,
            Run {
                src_start: 3,
                ..run
            },
        ),
        map(8, 8, Run { len: 3, ..run }),
        map(8, 8, Run { dst_step: 2, ..run }),
        map(8, 8, Run { src_step: 2, ..run }),
        map(
            8,
            8,
            Run {
                src_step: -1,
                ..run
            },
        ),
        DimMap::from_runs(
            8,
            8,
            [
                run,
                Run {
                    dst_start: 5,
                    ..run
                },
            ],
        )
        .unwrap(),
    ];
    let maps: Vec<&dyn ContentHash> = maps.iter().map(|m| m as _).collect();
    all_differ("map", &maps);

    let mesh = DeviceMesh::new(&[2]).unwrap();
    let sharded = Layout::new(&mesh, &[6], &[S0]).unwrap();
    let covers = [
        DimCover::intervals(&[0], vec![0..3, 3..6]),
        DimCover::intervals(&[0], vec![0..4, 3..6]),
        DimCover::intervals(&[0], vec![0..3, 2..6]),
        DimCover::intervals(&[1], vec![0..3, 3..6]),
        DimCover::intervals(&[0], vec![0..3, 3..6, 6..6]),
        DimCover::whole(6),
        DimCover::whole(7),
        DimCover::of(&sharded, 0),
    ];
    let covers: Vec<&dyn ContentHash> = covers.iter().map(|c| c as _).collect();
    all_differ("cover", &covers);

    let (nearest, linear) = (ResampleMode::Nearest, ResampleMode::Linear);
    let windows = [
        Window::conv(3, 2, 1, 1, 1),
        Window::conv(4, 2, 1, 1, 1),
        Window::conv(3, 1, 1, 1, 1),
        Window::conv(3, 2, 2, 1, 1),
        Window::conv(3, 2, 1, 0, 1),
        Window::conv(3, 2, 1, 1, 0),
        Window::pool(3, 2, 1, 1, true),
        Window::transposed(3, 3, 1, 1, 1, 1),
        Window::transposed(4, 3, 1, 1, 1, 1),
        Window::transposed(3, 2, 1, 1, 1, 1),
        Window::transposed(3, 3, 2, 1, 1, 1),
        Window::transposed(3, 3, 1, 0, 1, 1),
        Window::transposed(3, 3, 1, 1, 0, 1),
        Window::transposed(3, 3, 1, 1, 1, 0),
        Window::resample(4, 8, nearest, None),
        Window::resample(4, 8, linear, None),
        Window::resample(5, 8, nearest, None),
        Window::resample(4, 9, nearest, None),
        Window::resample(4, 8, nearest, Some(2.0)),
        Window::resample(4, 8, nearest, Some(2.1)),
        Window::neighborhood(9, 3, 1, false),
        Window::neighborhood(8, 3, 1, false),
        Window::neighborhood(9, 4, 1, false),
        Window::neighborhood(9, 3, 2, false),
        Window::neighborhood(9, 3, 1, true),
    ]
    .map(Result::unwrap);
    let windows: Vec<&dyn ContentHash> = windows.iter().map(|w| w as _).collect();
    all_differ("window", &windows);
}

/// Ranks that hold other elements do not hold the same, on meshes of any shape; parts without elements are the same anywhere.
#[test]
fn boxes_are_compared_rank_by_rank() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let sizes = |sizes: &[usize]| {
        let partition = Partition::from_sizes(sizes).unwrap();
        let n = partition.extent();
        let layout = Layout::builder(&mesh, &[n]).shard(0, &[0], partition);
        layout.build().unwrap()
    };
    let even = sizes(&[2, 2, 2]);
    // The first and the last rank hold the same, the one between them not; then the first alone differs.
    assert!(!even.same_boxes(&sizes(&[2, 1, 3])));
    assert!(!sizes(&[1, 3, 2]).same_boxes(&even));
    assert!(!even.same_boxes(&sizes(&[2, 2, 3])));
    assert!(!even.same_boxes(&Layout::new(&mesh, &[6], &[Placement::Replicate]).unwrap()));
    // Without elements on one side alone.
    assert!(!sizes(&[0, 6, 0]).same_boxes(&sizes(&[0, 5, 1])));
    assert!(!sizes(&[0, 5, 1]).same_boxes(&sizes(&[0, 6, 0])));
    let other = DeviceMesh::with_ranks(&[3], vec![0, 2, 1]).unwrap();
    let moved = even.with_mesh(&other).unwrap();
    assert_eq!(moved.mesh(), &other);
    assert_eq!(moved.shardings(), even.shardings());
    assert!(!moved.same_boxes(&even) && !even.same_boxes(&moved));
    // Row 0 of two, or none of no columns: nobody holds anything.
    let rows = |sizes: &[usize]| {
        let partition = Partition::from_sizes(sizes).unwrap();
        let shape = [partition.extent(), 0];
        let layout = Layout::builder(&mesh, &shape).shard(0, &[0], partition);
        layout.build().unwrap()
    };
    assert!(rows(&[1, 1, 0]).same_boxes(&rows(&[0, 2, 0])));
    // Of another shape it is another index space.
    assert!(!rows(&[1, 1, 0]).same_boxes(&rows(&[1, 1, 1])));
}
