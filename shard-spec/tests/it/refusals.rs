//! Every invalid construction is a typed error that names what was given and what to do.

use shard_spec::{DeviceMesh, DimMap, Layout, Partition, Placement, ReduceOp, SpecError};

const S0: Placement = Placement::Shard(0);
const S1: Placement = Placement::Shard(1);

#[test]
fn mistakes_in_short_forms_are_named() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let err = |text: &str| Layout::parse(&mesh, &[6, 4], text).unwrap_err();
    for text in [
        "S(0",
        "S(0)[1",
        "S(0)x R",
        "Q R",
        "S(0;0,2) S(0)",
        "S(0;0) S(0)",
        "S(0) S(0)[1,1,2,2]",
        "S() R",
        "R R]",
    ] {
        assert!(
            matches!(
                err(text),
                SpecError::Parse { .. } | SpecError::PlacementCount { .. }
            ),
            "{text}: {}",
            err(text)
        );
    }
    assert_eq!(
        err("R"),
        SpecError::PlacementCount {
            op: "parse layout",
            expected: 2,
            got: 1
        }
    );
    assert_eq!(
        err("S(2) R"),
        SpecError::DimOutOfRange {
            op: "layout",
            dim: 2,
            ndim: 2
        }
    );
    assert_eq!(
        err("S(0)[3,2] R"),
        SpecError::Extent {
            op: "layout",
            expected: 6,
            got: 5
        }
    );
    assert_eq!(
        err("S(0)[3,2,1] R"),
        SpecError::PartCount {
            op: "layout",
            expected: 2,
            got: 3
        }
    );
    let (first, second) = (ReduceOp::Sum, ReduceOp::Max);
    assert_eq!(
        err("P(sum) P(max)"),
        SpecError::MixedPartial {
            op: "layout",
            first,
            second
        }
    );
}

#[test]
fn invalid_layouts_are_refused() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let build = |dim, axes: &[usize], parts| {
        Layout::builder(&mesh, &[6, 4])
            .shard(dim, axes, Partition::balanced(6, parts))
            .build()
            .unwrap_err()
    };
    assert_eq!(
        build(0, &[2], 2),
        SpecError::AxisOutOfRange {
            op: "layout",
            axis: 2,
            ndim: 2
        }
    );
    assert_eq!(
        build(0, &[0, 0], 4),
        SpecError::RepeatedAxis {
            op: "layout",
            axis: 0
        }
    );
    assert_eq!(
        build(2, &[0], 2),
        SpecError::DimOutOfRange {
            op: "layout",
            dim: 2,
            ndim: 2
        }
    );
    assert_eq!(
        build(0, &[0], 4),
        SpecError::PartCount {
            op: "layout",
            expected: 2,
            got: 4
        }
    );
    assert_eq!(
        build(1, &[0], 2),
        SpecError::Extent {
            op: "layout",
            expected: 4,
            got: 6
        }
    );
    // Refused before there are as many parts as the axes multiply to.
    for layout in [
        Layout::builder(&mesh, &[6, 4]).shard_balanced(0, &[0; 70]),
        Layout::builder(&mesh, &[6, 4]).shard_chunk(0, &[0; 70]),
    ] {
        assert_eq!(
            layout.build(),
            Err(SpecError::RepeatedAxis {
                op: "layout",
                axis: 0
            })
        );
    }
    let twice = Layout::builder(&mesh, &[6, 4])
        .shard_chunk(0, &[0])
        .shard_chunk(0, &[1])
        .build();
    assert_eq!(
        twice,
        Err(SpecError::RepeatedDim {
            op: "layout",
            dim: 0
        })
    );
    let shared = Layout::builder(&mesh, &[6, 4])
        .shard_chunk(0, &[0])
        .partial(0, ReduceOp::Sum)
        .build();
    assert_eq!(
        shared,
        Err(SpecError::RepeatedAxis {
            op: "layout",
            axis: 0
        })
    );
    let mixed = Layout::builder(&mesh, &[6])
        .partial(0, ReduceOp::Sum)
        .partial(1, ReduceOp::Min)
        .build();
    assert!(matches!(mixed, Err(SpecError::MixedPartial { .. })));
    assert!(matches!(
        Layout::new(&mesh, &[6], &[S0]),
        Err(SpecError::PlacementCount {
            expected: 2,
            got: 1,
            ..
        })
    ));
    assert!(matches!(
        Layout::new(&mesh, &[6], &[S1, S0]),
        Err(SpecError::DimOutOfRange {
            dim: 1,
            ndim: 1,
            ..
        })
    ));
    assert!(matches!(
        Layout::new(&mesh, &[usize::MAX, 2], &[S0, S1]),
        Err(SpecError::Overflow { .. })
    ));
    let good = Layout::new(&mesh, &[6, 4], &[S0, Placement::Replicate]).unwrap();
    assert!(matches!(
        good.with_shape(&[6]),
        Err(SpecError::DimCount {
            expected: 2,
            got: 1,
            ..
        })
    ));
    assert!(matches!(
        good.with_partial(&[0], ReduceOp::Sum),
        Err(SpecError::RepeatedAxis { axis: 0, .. })
    ));
    assert!(matches!(
        good.with_mesh(&mesh.flatten()),
        Err(SpecError::Argument {
            op: "with_mesh",
            ..
        })
    ));
}

#[test]
fn invalid_partitions_are_refused() {
    assert!(matches!(
        Partition::from_sizes(&[]),
        Err(SpecError::PartCount { .. })
    ));
    assert!(matches!(
        Partition::from_sizes(&[usize::MAX, 1]),
        Err(SpecError::Overflow { .. })
    ));
    assert!(matches!(
        Partition::from_offsets(3, vec![]),
        Err(SpecError::BadOffsets { index: 0, .. })
    ));
    assert!(matches!(
        Partition::from_offsets(3, vec![0, 2, 1, 3]),
        Err(SpecError::BadOffsets { index: 2, .. })
    ));
    for weights in [
        &[][..],
        &[0.0, 0.0],
        &[1.0, -1.0],
        &[2.0, -1.0],
        &[f64::NAN],
        &[f64::INFINITY, 1.0],
        &[f64::MAX, f64::MAX],
    ] {
        assert!(
            matches!(
                Partition::weighted(8, weights),
                Err(SpecError::BadWeights { .. })
            ),
            "{weights:?}"
        );
    }
    let outer = Partition::chunk(5, 2);
    let chunks = |sizes: [usize; 2]| sizes.map(|n| Partition::chunk(n, 2));
    assert!(Partition::nested(&outer, &chunks([3, 2])).is_ok());
    assert!(matches!(
        Partition::nested(&outer, &chunks([2, 3])),
        Err(SpecError::Extent {
            expected: 3,
            got: 2,
            ..
        })
    ));
    assert!(matches!(
        Partition::nested(&outer, &[Partition::chunk(3, 2)]),
        Err(SpecError::PartCount { .. })
    ));
    assert!(matches!(
        Partition::nested(&outer, &[Partition::chunk(3, 2), Partition::chunk(2, 1)]),
        Err(SpecError::PartCount { .. })
    ));
    // Zeros count as one.
    assert_eq!(Partition::chunk(5, 0), Partition::chunk(5, 1));
    assert_eq!(Partition::balanced(5, 0), Partition::balanced(5, 1));
    assert_eq!(Partition::block_cyclic(5, 0, 2).parts(), 1);
    assert_eq!(Partition::block_cyclic(5, 2, 0), Partition::striped(5, 2));
}

/// Every error says what was expected and what to do.
#[test]
fn errors_name_a_remedy() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let text = Layout::new(&mesh, &[4], &[]).unwrap_err().to_string();
    assert_eq!(
        text,
        "layout: the mesh has 1 axes, got 0 placements; give one placement per mesh axis, `Replicate` (R) for copies along \
         it, or name the axes that shard or are partial"
    );
    let unnamed = mesh.axis("x").unwrap_err().to_string();
    assert!(
        unnamed.contains("\"x\", its axes have no names; name them where"),
        "{unnamed}"
    );
    let named = mesh.with_names(&["y"]).unwrap().axis("x").unwrap_err();
    let said = "expected one of [\"y\"]; use one of these, or name the axes where the mesh is made";
    assert!(named.to_string().ends_with(said), "{named}");
    let by_none = Partition::chunk(4, 2).joined(0).unwrap_err().to_string();
    assert!(
        by_none.starts_with("joined: count is 0, expected a divisor of 2"),
        "{by_none}"
    );
    let repeated = Partition::from_repeated(3, 2, &[(0, 0)]).unwrap_err();
    assert!(
        repeated.to_string().starts_with("from_repeated: "),
        "{repeated}"
    );
}

/// Whatever the number of entries.
#[test]
fn messages_are_short() {
    let falling = Partition::from_offsets(5, (0..1_000_000).rev().collect());
    let weights = Partition::weighted(5, &vec![-1.0; 1_000_000]);
    let sizes = Partition::from_sizes(&vec![usize::MAX / 4; 1_000_000]);
    for error in [falling, weights, sizes].map(Result::unwrap_err) {
        let text = error.to_string();
        assert!(
            text.len() < 700 && text.contains(", ... 1000000 in all]"),
            "{} bytes",
            text.len()
        );
    }
}

/// Beyond `isize::MAX` an extent is refused by all that may refuse, panics with its name where an index map is made of it, and is
/// cut off where it is divided, since shapes are refused by layouts.
#[test]
fn extents_beyond_an_address_are_not_taken() {
    const MOST: usize = isize::MAX.unsigned_abs();
    for n in [MOST + 1, usize::MAX] {
        let refused = [
            Partition::from_offsets(n, vec![0, n]).map(drop),
            Partition::weighted(n, &[1.0]).map(drop),
            Partition::from_segments(n, 1, &[(0, n)]).map(drop),
            Partition::from_repeated(n, 2, &[(0, 1), (1, 1)]).map(drop),
            DimMap::place(1, n, 0).map(drop),
            DimMap::repeat(n, 1).map(drop),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            let overflows = matches!(refused, Err(SpecError::Overflow { .. }));
            assert!(overflows, "{i}: {refused:?}");
        }
        let panics: [fn(usize) -> DimMap; 4] =
            [DimMap::identity, DimMap::flip, DimMap::expand, |n| {
                DimMap::roll(n, isize::MAX)
            }];
        for make in panics {
            let panic = std::panic::catch_unwind(|| make(n)).unwrap_err();
            let said = panic.downcast_ref::<String>().unwrap();
            assert!(
                said.contains(&format!("an extent of {n}, expected at most")),
                "{said}"
            );
        }
        let parts = [
            Partition::chunk(n, 3),
            Partition::balanced(n, 3),
            Partition::nested_chunk(n, &[3]),
            Partition::zigzag(n, 3),
            Partition::striped(n, 3),
            Partition::chunk(4, 3).scaled(n),
        ];
        assert!(parts.iter().all(|p| p.extent() == MOST));
    }
    assert_eq!(DimMap::roll(MOST, -1).dst_extent(), MOST);
    let read = format!(r#"{{"offsets":[0,{}]}}"#, MOST + 1);
    let error = serde_json::from_str::<Partition>(&read).unwrap_err();
    assert!(
        error.to_string().contains("does not fit in an address"),
        "{error}"
    );
}

/// Places that a mesh does not have, as far as builds like that of tests look.
#[test]
fn places_off_the_mesh_panic() {
    let mesh = DeviceMesh::new(&[2, 3]).unwrap();
    let rows = Layout::new(&mesh, &[6, 4], &[S0, S1]).unwrap();
    let off: [&(dyn Fn() + std::panic::RefUnwindSafe); 6] = [
        &|| drop(mesh.coords_at(6)),
        &|| assert!(mesh.index_at(&[1, 3]) > 0),
        &|| assert!(mesh.index_at(&[1]) > 0),
        &|| assert!(mesh.part_at(&[1], &[0, 3]) > 0),
        &|| mesh.set_part(&[0], 2, &mut [0, 0]),
        &|| drop(rows.part_coords(1, 3)),
    ];
    for (i, off) in off.into_iter().enumerate() {
        assert!(std::panic::catch_unwind(off).is_err(), "{i}");
    }
}
