//! Arrays in files of NumPy, read and written by boxes.

use crate::{moves, piece_bytes, scratch};
use ndarray::{ArrayD, Ix2};
use shard_tensor::data::{self, Npy};
use shard_tensor::{DType, Error, ErrorClass, Launch, Placements, replicate, shard};
use std::os::unix::fs::FileExt;

const LITTLE: u64 = 16 << 10;

#[test]
fn tensors_of_any_layout_are_written_and_read_by_their_pieces() {
    let path = scratch("pieces.npy");
    let layouts: [(usize, &[usize], Placements); 4] = [
        (4, &[2, 2], [shard(0).sizes([10, 190]), shard(1)].into()),
        (3, &[3], [shard(1).sizes([0, 299, 1])].into()),
        (2, &[2], [replicate()].into()),
        (3, &[3], [shard(0).zigzag()].into()),
    ];
    let mut first = None;
    for (ranks, mesh, placements) in layouts.clone() {
        let told = Launch::new(ranks).run(|ctx| {
            let x = ctx.mesh_of(mesh)?.randn([200, 300], placements.clone())?;
            let ((), [_, written]) = moves(|| data::save_npy(&path, &x))?;
            assert!(written < piece_bytes(&x) + LITTLE);
            x.to_array::<f32>()
        });
        let whole = told.unwrap().remove(0);
        let bytes = std::fs::read(&path).unwrap();
        let alone = Npy::open(&path).unwrap().to_array::<f32, Ix2>().unwrap();
        assert_eq!(alone.into_dyn(), whole);
        assert_eq!(*first.get_or_insert_with(|| bytes.clone()), bytes);
        for (ranks, mesh, placements) in layouts.clone() {
            let read = Launch::new(ranks).run(|ctx| {
                let mesh = ctx.mesh_of(mesh)?;
                let (x, [read, _]) = moves(|| data::load_npy(&path, &mesh, placements.clone()))?;
                assert!(read <= piece_bytes(&x) * 11 / 10 + LITTLE, "{read}");
                x.to_array::<f32>()
            });
            assert!(read.unwrap().into_iter().all(|x| x == whole));
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// Four gigabytes, nearly all of it a hole in the file: four ranks read them, and none holds more than its quarter.
#[test]
#[ignore = "it takes 4 GiB of memory and many seconds; run by hand"]
fn four_gigabytes_are_read_by_four_ranks() {
    large(1 << 20, 1024);
}

/// The same, smaller.
#[test]
fn a_large_array_is_in_no_ranks_memory() {
    large(1 << 14, 1024);
}

fn large(rows: usize, columns: usize) {
    let path = scratch(&format!("large-{rows}.npy"));
    let head = data::npy_bytes(&ArrayD::<f32>::zeros(vec![0, columns])).unwrap();
    let text = String::from_utf8_lossy(&head).replace("(0,", &format!("({rows},"));
    let pad = text.chars().count() - head.len();
    // The header keeps its length: it loses spaces for digits.
    let text = text.replacen(&" ".repeat(pad + 1), " ", 1);
    let head: Vec<u8> = text
        .chars()
        .map(|c| if c == '\u{fffd}' { 0x93 } else { c as u8 })
        .collect();
    let file = std::fs::File::create(&path).unwrap();
    file.write_all_at(&head, 0).unwrap();
    let bytes = (rows * columns * 4) as u64;
    file.set_len(head.len() as u64 + bytes).unwrap();
    // One in each quarter.
    for quarter in 0..4 {
        let at = head.len() as u64 + bytes / 4 * quarter + 4 * (17 * quarter + 3);
        file.write_all_at(&((quarter + 1) as f32).to_le_bytes(), at)
            .unwrap();
    }
    let start = std::time::Instant::now();
    let told = Launch::new(4).run(|ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        ctx.device().reset_peak();
        let (x, [read, _]) = moves(|| data::load_npy(&path, &mesh, [shard(0), shard(1)]))?;
        let peak = ctx.ledger().memory().peak as u64;
        Ok((x.sum_all()?.item()?, piece_bytes(&x), read, peak))
    });
    let took = start.elapsed();
    std::fs::remove_file(&path).unwrap();
    for (sum, piece, read, peak) in told.unwrap() {
        assert_eq!((sum, piece), (10.0, bytes / 4));
        assert!(
            read <= piece * 11 / 10 + LITTLE && peak <= piece + LITTLE,
            "{read} {peak}"
        );
    }
    println!("{bytes} bytes in {took:?}");
}

#[test]
fn what_one_rank_cannot_read_is_an_error_of_all() {
    let path = scratch("one.npy");
    let told = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        data::save_npy(&path, &mesh.with_dtype(DType::I64).arange(5, shard(0))?)?;
        let open = || match ctx.rank() {
            1 => Npy::open("/no/such/file.npy"),
            _ => Npy::open(&path),
        };
        let missing = data::load(&mesh, shard(0), open).unwrap_err();
        let folder = data::load_npy(std::env::temp_dir(), &mesh, shard(0)).unwrap_err();
        let other = match ctx.rank() {
            0 => data::load(&mesh, shard(0), || Npy::open(&path)),
            _ => data::load(&mesh, shard(0), || {
                Npy::from_bytes(
                    data::npy_bytes(&ndarray::arr1(&[1_i64])).map_err(data::DataError::other)?,
                )
            }),
        };
        let brain =
            data::save_npy(&path, &mesh.with_dtype(DType::BF16).ones([2], shard(0))?).unwrap_err();
        assert_eq!(brain.class(), ErrorClass::Uniform);
        assert!(brain.to_string().contains("bf16"), "{brain}");
        let classes = [&missing, &folder].map(Error::class);
        let sum = data::load_npy(&path, &mesh, shard(0))?.sum_all()?.item()?;
        Ok((
            classes,
            sum,
            missing.to_string(),
            other.unwrap_err().to_string(),
        ))
    });
    let told = told.unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(told.iter().all(|t| *t == told[0]), "{told:?}");
    assert_eq!((told[0].0, told[0].1), ([ErrorClass::Agreed; 2], 10.0));
    assert!(
        told[0].2.contains("rank 1") && told[0].2.contains("no/such"),
        "{told:?}"
    );
}

/// Archives that NumPy wrote: `numpy.savez` and `numpy.savez_compressed` of `rows` (2 x 3 of `f4`) and `turned` (its
/// transpose, in the other order).
#[cfg(feature = "npz")]
#[test]
fn archives_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/data");
    for name in ["stored.npz", "packed.npz"] {
        let path = format!("{folder}/{name}");
        let told = Launch::new(2).run(|ctx| {
            let mesh = ctx.mesh_of(2)?;
            assert_eq!(data::npz_names(&path, &mesh)?, ["rows", "turned"]);
            let rows = data::load_npz(&path, "rows", &mesh, shard(1).sizes([1, 2]))?;
            let turned = data::load_npz(&path, "turned", &mesh, shard(0))?;
            let none = data::load_npz(&path, "none", &mesh, shard(0)).unwrap_err();
            assert_eq!(none.class(), ErrorClass::Agreed);
            assert_eq!(
                data::load_npz(file!(), "rows", &mesh, shard(0))
                    .unwrap_err()
                    .class(),
                ErrorClass::Agreed
            );
            Ok((rows.to_array::<f32>()?, turned.to_array::<f32>()?))
        });
        for (rows, turned) in told.unwrap() {
            let expected = ndarray::arr2(&[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
            assert_eq!(turned, expected.t().into_dyn());
            assert_eq!(rows, expected.into_dyn());
        }
    }
}
