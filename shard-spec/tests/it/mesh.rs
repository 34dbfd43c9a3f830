//! Meshes: coordinates, groups, submeshes, and what is refused.

use shard_spec::{DeviceMesh, Result, SpecError};

#[test]
fn coordinates_invert() {
    let mesh = DeviceMesh::with_ranks(&[2, 1, 3], vec![7, 5, 3, 1, 9, 11]).unwrap();
    for (index, &rank) in mesh.ranks().iter().enumerate() {
        assert_eq!(mesh.index_of(rank), Some(index));
        assert_eq!(mesh.rank_at(&mesh.coords(rank).unwrap()), Some(rank));
    }
    assert_eq!(mesh.index_of(0), None);
    assert_eq!(mesh.rank_at(&[0, 1, 0]), None);
    assert_eq!(mesh.rank_at(&[0, 0]), None);
}

#[test]
fn groups_follow_the_order_of_axes() {
    let mesh = DeviceMesh::new(&[2, 3]).unwrap();
    assert_eq!(mesh.groups(&[1]), [[0, 1, 2], [3, 4, 5]]);
    assert_eq!(mesh.groups(&[1, 0]), [[0, 3, 1, 4, 2, 5]]);
    assert_eq!(mesh.groups(&[]), [[0], [1], [2], [3], [4], [5]]);
}

#[test]
fn submeshes_keep_names_and_pass_through_the_rank() {
    let mesh = DeviceMesh::new(&[2, 3])
        .unwrap()
        .with_names(&["dp", "tp"])
        .unwrap();
    let sub = mesh.submesh(4, &[1]).unwrap();
    assert_eq!(
        (sub.ranks(), sub.names().unwrap()),
        (&[3, 4, 5][..], &["tp".to_owned()][..])
    );
    assert_eq!(
        mesh.slice(4, &["tp", "dp"]).unwrap().ranks(),
        &[0, 3, 1, 4, 2, 5]
    );
    let point = mesh.submesh(5, &[]).unwrap();
    assert_eq!((point.ndim(), point.ranks()), (0, &[5][..]));
    assert_eq!(mesh.flatten().to_string(), "mesh(dp_tp=6)");
}

#[test]
fn a_mesh_without_axes_holds_one_rank() {
    let mesh = DeviceMesh::new(&[]).unwrap();
    assert_eq!(
        (mesh.ndim(), mesh.size(), mesh.rank_at(&[])),
        (0, 1, Some(0))
    );
    assert_eq!(mesh.groups(&[]), [[0]]);
}

#[test]
fn invalid_meshes_are_refused() {
    let err = |r: Result<DeviceMesh>| r.unwrap_err();
    assert!(matches!(
        err(DeviceMesh::new(&[2, 0])),
        SpecError::ZeroMeshAxis { axis: 1, .. }
    ));
    assert!(matches!(
        err(DeviceMesh::new(&[1 << 40, 1 << 40])),
        SpecError::Overflow { .. }
    ));
    // Refused before a list of all ranks is made.
    for huge in [&[1 << 36][..], &[100_000, 100_000], &[1 << 62]] {
        assert!(matches!(
            err(DeviceMesh::new(huge)),
            SpecError::Argument { op: "mesh", .. }
        ));
    }
    assert!(matches!(
        err(DeviceMesh::with_ranks(&[2], vec![1])),
        SpecError::RankCount {
            expected: 2,
            got: 1,
            ..
        }
    ));
    assert_eq!(
        err(DeviceMesh::with_ranks(&[3], vec![4, 1, 4])),
        SpecError::DuplicateRank {
            rank: 4,
            first: 0,
            second: 2
        }
    );
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    assert!(matches!(
        err(mesh.with_names(&["a"])),
        SpecError::NameCount { .. }
    ));
    assert!(matches!(
        err(mesh.with_names(&["a", "a"])),
        SpecError::BadName { .. }
    ));
    assert!(matches!(
        err(mesh.slice(0, &["a"])),
        SpecError::UnknownName { .. }
    ));
    assert!(matches!(
        err(mesh.submesh(4, &[0])),
        SpecError::NotInMesh { rank: 4, .. }
    ));
    assert!(matches!(
        err(mesh.submesh(0, &[0, 0])),
        SpecError::RepeatedAxis { axis: 0, .. }
    ));
    assert!(matches!(
        err(mesh.submesh(0, &[2])),
        SpecError::AxisOutOfRange { axis: 2, .. }
    ));
}

#[test]
fn equality_is_by_content() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    assert_eq!(
        mesh,
        DeviceMesh::with_ranks(&[2, 2], vec![0, 1, 2, 3]).unwrap()
    );
    assert_ne!(mesh, mesh.with_names(&["a", "b"]).unwrap());
    assert_ne!(mesh, DeviceMesh::new(&[4]).unwrap());
}
