//! Arrays in files of NumPy, read and written by boxes.

use crate::{moves, piece_bytes, scratch};
use ndarray::{ArrayD, Ix1, Ix2};
use shard_tensor::data::{self, Npy};
use shard_tensor::{DType, Error, ErrorClass, Launch, Placements, checkpoint, replicate, shard};
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

/// Whoever opens a pipe waits for who writes to it.
#[test]
fn a_pipe_is_no_file() {
    let pipe = scratch("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let told = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let refused = [
            data::load_npy(&pipe, &mesh, shard(0)),
            checkpoint::read(&pipe, "w", &mesh, shard(0)),
            #[cfg(feature = "npz")]
            data::load_npz(&pipe, "w", &mesh, shard(0)),
        ];
        Ok(refused.map(|e| e.map(drop).map_err(|e| (e.class(), e.to_string()))))
    });
    std::fs::remove_file(&pipe).unwrap();
    for error in told.unwrap().concat() {
        let (class, text) = error.unwrap_err();
        assert_eq!(class, ErrorClass::Agreed);
        assert!(text.contains("no regular file"), "{text}");
    }
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

/// What an archive says of a file, and where: the three numbers that may be too large for 32 bits.
#[cfg(feature = "npz")]
#[derive(Clone, Copy)]
enum Wrong {
    Nothing,
    /// By how much a number of an entry is off: its length, its packed length, or its place.
    Entry(usize, i64),
    /// By how much a number of the record at the end is off: entries, bytes of their list, or its place.
    Record(usize, i64),
}

/// An archive as it would say the same if it were larger than 4 GiB, with these numbers of each entry in 64 bits.
#[cfg(feature = "npz")]
fn in_64_bits(archive: &[u8], large: [bool; 3], wrong: Wrong) -> Vec<u8> {
    let number = |at: usize, len: usize| -> usize {
        let bytes = archive[at..at + len].iter().rev();
        bytes.fold(0, |n, &b| n << 8 | usize::from(b))
    };
    let end = archive.windows(4).rposition(|w| w == b"PK\x05\x06");
    let end = end.expect("an archive");
    let (count, start) = (number(end + 10, 2), number(end + 16, 4));
    let mut out = archive[..start].to_vec();
    let mut at = start;
    for _ in 0..count {
        let [name, extra, remark] = [28, 30, 32].map(|field| number(at + field, 2));
        let mut entry = archive[at..at + 46].to_vec();
        // Another program's field comes first.
        let mut more = vec![0x75, 0x70, 3, 0, 1, 2, 3];
        let mut wide = Vec::new();
        for (i, field) in [24, 20, 42].into_iter().enumerate() {
            let off = match wrong {
                Wrong::Entry(which, off) if which == i => off,
                _ => 0,
            };
            let told = (number(at + field, 4) as i64 + off) as u64;
            if large[i] {
                wide.extend(told.to_le_bytes());
                entry[field..field + 4].fill(0xff);
            }
        }
        more.extend([1, 0, wide.len() as u8, 0]);
        more.extend(wide);
        entry[30..32].copy_from_slice(&(more.len() as u16).to_le_bytes());
        out.extend(entry);
        out.extend(&archive[at + 46..at + 46 + name]);
        out.extend(more);
        let behind = at + 46 + name + extra;
        out.extend(&archive[behind..behind + remark]);
        at = behind + remark;
    }
    let record = out.len();
    let told = [count, record - start, start].map(|n| n as i64);
    let told = [0, 1, 2].map(|i| match wrong {
        Wrong::Record(which, off) if which == i => (told[i] + off) as u64,
        _ => told[i] as u64,
    });
    out.extend(b"PK\x06\x06");
    out.extend(44_u64.to_le_bytes());
    out.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for n in [told[0], told[0], told[1], told[2]] {
        out.extend(n.to_le_bytes());
    }
    out.extend(b"PK\x06\x07\0\0\0\0");
    out.extend((record as u64).to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([0xff; 12]);
    out.extend([0, 0]);
    out
}

#[cfg(feature = "npz")]
#[test]
fn archives_with_numbers_of_64_bits_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/data");
    let path = scratch("large.npz");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let both = ["rows", "turned"].map(|name| {
            let npy = Npy::in_archive(&path, name).map_err(|e| e.to_string())?;
            npy.to_array::<f32, Ix2>().map_err(|e| e.to_string())
        });
        let [rows, turned] = both;
        Ok::<_, String>((rows?, turned?))
    };
    let rows = ndarray::arr2(&[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
    let expected = (rows.clone(), rows.t().to_owned());
    // Packed, the three numbers differ.
    for name in ["stored.npz", "packed.npz"] {
        let archive = std::fs::read(format!("{folder}/{name}")).unwrap();
        for mask in 0..8 {
            let large = [0, 1, 2].map(|i| mask >> i & 1 == 1);
            let found = read(&in_64_bits(&archive, large, Wrong::Nothing));
            assert_eq!(found.as_ref(), Ok(&expected), "{name} {large:?}");
        }
        for which in 0..3 {
            for off in [-1, 1, 1 << 40, i64::MAX - (1 << 40)] {
                let wrong = [Wrong::Entry(which, off), Wrong::Record(which, off)];
                for (what, wrong) in ["entry", "record"].into_iter().zip(wrong) {
                    let found = read(&in_64_bits(&archive, [true; 3], wrong));
                    // What is packed ends by itself, whatever its length is said to be.
                    let harmless = (name, what, which, off.abs()) == ("packed.npz", "entry", 1, 1);
                    let right = harmless && found.as_ref() == Ok(&expected);
                    assert!(
                        found.is_err() || right,
                        "{name}: {what} {which} off by {off}"
                    );
                }
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// A file that ranks would write or read otherwise is one that they do not write or read.
#[test]
fn ranks_that_save_or_load_otherwise_are_told() {
    let path = scratch("otherwise.npy");
    let told = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let mine = |choices: [&str; 2]| path.with_extension(choices[ctx.rank()]);
        let [x, y] = [mesh.arange(4, shard(0))?, mesh.arange(6, shard(0))?];
        let other = if ctx.rank() == 0 { &x } else { &y };
        let told = [
            data::save_npy(mine(["a", "b"]), &x),
            data::save_npy(&path, other),
        ];
        let mut told = told.map(|told| told.unwrap_err().class()).to_vec();
        data::save_npy(&path, &x)?;
        let lies = [shard(0), replicate()][ctx.rank()].clone();
        let loaded = data::load_npy(&path, &mesh, lies).and_then(|x| x.sum_all()?.item());
        told.push(loaded.unwrap_err().class());
        Ok(told)
    });
    let told = told.unwrap();
    std::fs::remove_file(&path).unwrap();
    let expected = [ErrorClass::Agreed, ErrorClass::Agreed, ErrorClass::Uniform];
    assert!(told.iter().all(|t| *t == expected), "{told:?}");
}

/// A little archive whose one array is said to have more bytes than any memory, in header and list alike.
#[cfg(feature = "npz")]
#[test]
fn an_archive_of_more_than_all_memory_is_refused() {
    let path = scratch("beyond.npz");
    let mut array = data::npy_bytes(&ndarray::arr1(&[0.0_f64])).unwrap();
    let shape = array.windows(4).position(|w| w == b"(1,)").unwrap();
    // There are as many spaces behind it.
    let end = array.iter().position(|&b| b == b'\n').unwrap();
    let told = "(144115188075855872,), }";
    let text = format!("{told:<0$}", end - shape);
    array[shape..end].copy_from_slice(text.as_bytes());
    let begin = end + 1;
    array.resize(20_000, 0);
    let size = array.len() as u16;
    // One block that is not packed.
    let mut packed = vec![1];
    packed.extend([size.to_le_bytes(), (!size).to_le_bytes()].concat());
    packed.extend(array);
    let le = |n: usize| (n as u32).to_le_bytes();
    let mut archive = [&b"PK\x03\x04"[..], &[20, 0, 0, 0, 8, 0]].concat();
    archive.extend([0; 16]);
    archive.extend([5, 0, 0, 0]);
    archive.extend(b"a.npy");
    archive.extend(&packed);
    let list = archive.len();
    archive.extend([&b"PK\x01\x02"[..], &[45, 0, 45, 0, 0, 0, 8, 0], &[0; 8]].concat());
    archive.extend([le(packed.len()), [0xff; 4]].concat());
    archive.extend([5, 0, 12, 0]);
    archive.extend([0; 14]);
    archive.extend(b"a.npy");
    archive.extend([1, 0, 8, 0]);
    archive.extend(((1_u64 << 60) + begin as u64).to_le_bytes());
    let size = archive.len() - list;
    archive.extend([&b"PK\x05\x06"[..], &[0, 0, 0, 0, 1, 0, 1, 0]].concat());
    archive.extend([le(size), le(list)].concat());
    archive.extend([0, 0]);
    std::fs::write(&path, archive).unwrap();
    let npy = Npy::in_archive(&path, "a").unwrap();
    let error = npy.to_array::<f64, Ix1>().unwrap_err().to_string();
    assert!(error.contains("no memory"), "{error}");
    let error = Launch::new(2).run(|ctx| {
        let x = data::load_npz(&path, "a", &ctx.mesh_of(2)?, shard(0))?;
        Ok(x.numel())
    });
    assert_eq!(error.unwrap_err().class(), ErrorClass::Agreed);
    std::fs::remove_file(&path).unwrap();
}
