//! Zarr stores of both versions, written by hand as their specifications have them.

use crate::{moves, scratch};
use ndarray::{Array2, ArrayD};
use shard_tensor::data::{self, Zarr};
use shard_tensor::{ErrorClass, Launch, Placements, replicate, shard};
use std::path::{Path, PathBuf};

const ROWS: usize = 10;
const COLUMNS: usize = 7;

fn whole() -> Array2<i32> {
    Array2::from_shape_fn((ROWS, COLUMNS), |(i, j)| (100 * i + j) as i32)
}

/// The bytes of a chunk of 4 x 3, which at the edge is filled up.
fn chunk(row: usize, column: usize, bytes: fn(i32) -> Vec<u8>) -> Vec<u8> {
    let at = |i, j| {
        whole()
            .get((4 * row + i, 3 * column + j))
            .copied()
            .unwrap_or(-1)
    };
    (0..4)
        .flat_map(|i| (0..3).flat_map(move |j| bytes(at(i, j))))
        .collect()
}

fn write(
    folder: &Path,
    about: (&str, &str),
    name: fn(usize, usize) -> String,
    bytes: fn(i32) -> Vec<u8>,
) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(about.0), about.1).unwrap();
    for (row, column) in (0..3).flat_map(|i| (0..3).map(move |j| (i, j))) {
        let path = folder.join(name(row, column));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, chunk(row, column, bytes)).unwrap();
    }
}

/// Of version 2 with two bytes per number, the highest first; of version 3 with four.
fn stores() -> [PathBuf; 2] {
    let [two, three] = [scratch("two.zarr"), scratch("three.zarr")];
    let about = r#"{"zarr_format": 2, "shape": [10, 7], "chunks": [4, 3], "dtype": ">i2", "compressor": null,
        "fill_value": 0, "order": "C", "filters": null}"#;
    write(
        &two,
        (".zarray", about),
        |i, j| format!("{i}.{j}"),
        |n| (n as i16).to_be_bytes().to_vec(),
    );
    let about = r#"{"zarr_format": 3, "node_type": "array", "shape": [10, 7], "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}"#;
    write(
        &three,
        ("zarr.json", about),
        |i, j| format!("c/{i}/{j}"),
        |n| n.to_le_bytes().to_vec(),
    );
    [two, three]
}

#[test]
fn stores_of_both_versions_are_read_under_any_layout() {
    let stores = stores();
    let layouts: [(usize, &[usize], Placements); 4] = [
        (1, &[1], [replicate()].into()),
        (4, &[2, 2], [shard(0).sizes([7, 3]), shard(1)].into()),
        (3, &[3], [shard(1).sizes([0, 6, 1])].into()),
        (2, &[2], [shard(0).zigzag()].into()),
    ];
    for (path, (ranks, mesh, placements)) in stores
        .iter()
        .flat_map(|s| layouts.iter().map(move |l| (s, l.clone())))
    {
        let read = Launch::new(ranks).run(|ctx| {
            data::load_zarr(path, &ctx.mesh_of(mesh)?, placements.clone())?.to_array::<i32>()
        });
        let expected: ArrayD<i32> = whole().into_dyn();
        assert!(
            read.unwrap().into_iter().all(|x| x == expected),
            "{path:?} {placements:?}"
        );
    }
    stores
        .iter()
        .for_each(|s| std::fs::remove_dir_all(s).unwrap());
}

#[test]
fn a_damaged_store_is_an_error_of_all() {
    let folder = scratch("damaged.zarr");
    let about = r#"{"zarr_format": 2, "shape": [10, 7], "chunks": [4, 3], "dtype": "<i4", "compressor": null,
        "fill_value": 0, "order": "C", "filters": null}"#;
    write(
        &folder,
        (".zarray", about),
        |i, j| format!("{i}.{j}"),
        |n| n.to_le_bytes().to_vec(),
    );
    std::fs::write(folder.join("2.2"), b"short").unwrap();
    let told = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let chunk = data::load_zarr(&folder, &mesh, shard(0)).unwrap_err();
        let missing = data::load_zarr(folder.join("none"), &mesh, shard(0)).unwrap_err();
        let empty = data::load(&mesh, shard(0), || Zarr::open(std::env::temp_dir())).unwrap_err();
        // The other rank's part is whole.
        let (_, [read, _]) = moves(|| Ok(Zarr::open(&folder).map(drop)))?;
        assert!(read < 10_000);
        Ok([chunk, missing, empty].map(|e| (e.class(), e.to_string())))
    });
    let told = told.unwrap();
    assert_eq!(told[0], told[1]);
    assert!(
        told[0].iter().all(|e| e.0 == ErrorClass::Agreed),
        "{told:?}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
