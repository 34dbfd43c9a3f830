//! Files that are not what they should be: errors that all ranks have in common, and nothing changed.

use crate::scratch;
use shard_tensor::checkpoint::{self, Checkpoint};
use shard_tensor::{Context, ErrorClass, Launch, Mesh, Result, ShardTensor, shard};
use std::path::{Path, PathBuf};

/// What is loaded here: two tensors of two types, and a number.
struct Wanted {
    a: ShardTensor,
    b: ShardTensor,
    step: u64,
}

impl Wanted {
    fn new(mesh: &Mesh, value: f64, step: u64) -> Result<Self> {
        let truth = mesh.with_dtype(shard_tensor::DType::U8);
        Ok(Self {
            a: mesh.full([5, 3], value, shard(1))?,
            b: truth.full([4], value, shard(0))?,
            step,
        })
    }

    fn job(&mut self) -> Checkpoint<'_> {
        Checkpoint::new()
            .with("a", &mut self.a)
            .with("b", &mut self.b)
            .step(&mut self.step)
    }

    /// The values, if all are alike.
    fn seen(&self) -> Result<Option<(f64, u64)>> {
        let (a, b) = (self.a.to_array::<f32>()?, self.b.to_array::<u8>()?);
        let all = a
            .iter()
            .map(|x| f64::from(*x))
            .chain(b.iter().map(|x| f64::from(*x)));
        let first = f64::from(a[[0, 0]]);
        Ok(all
            .into_iter()
            .all(|x| x == first)
            .then_some((first, self.step)))
    }

    /// Loads, which must change everything or give an error that changes nothing. Whether it did, and the error.
    fn try_file(&mut self, path: &Path) -> Result<(bool, String)> {
        let before = (0.0, 77);
        match self.job().load(path) {
            Ok(()) => {
                let seen = self.seen()?;
                assert!(seen.is_some_and(|(x, _)| x == 3.0), "{seen:?}");
                Ok((true, String::new()))
            }
            Err(e) => {
                assert_eq!(e.class(), ErrorClass::Agreed, "{e}");
                assert_eq!(self.seen()?, Some(before), "{e}");
                Ok((false, e.to_string()))
            }
        }
    }
}

/// A good file's bytes.
fn good(folder: &Path) -> Vec<u8> {
    let path = folder.join("good");
    let saved = Launch::new(2).run(|ctx| Wanted::new(&ctx.mesh_of(2)?, 3.0, 5)?.job().save(&path));
    saved.unwrap();
    std::fs::read(&path).unwrap()
}

/// Loads each of these files on two ranks; whether that went well, and the error.
fn outcomes(folder: &Path, files: &[Vec<u8>]) -> Vec<(bool, String)> {
    let path = |i: usize| -> PathBuf { folder.join(format!("file-{i}")) };
    for (i, bytes) in files.iter().enumerate() {
        std::fs::write(path(i), bytes).unwrap();
    }
    let told = Launch::new(2).run(|ctx: &Context| {
        let mesh = ctx.mesh_of(2)?;
        (0..files.len())
            .map(|i| Wanted::new(&mesh, 0.0, 77)?.try_file(&path(i)))
            .collect::<Result<Vec<_>>>()
    });
    let mut told = told.unwrap();
    assert_eq!(told[0], told[1]);
    told.remove(0)
}

fn folder(name: &str) -> PathBuf {
    let folder = scratch(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn files_cut_short_anywhere_change_nothing() {
    let folder = folder("cut");
    let good = good(&folder);
    let mut files: Vec<Vec<u8>> = (0..good.len()).map(|n| good[..n].to_vec()).collect();
    files.push([&good[..], b"x"].concat());
    files.push(good);
    let told = outcomes(&folder, &files);
    let fine: Vec<usize> = (0..told.len()).filter(|&i| told[i].0).collect();
    assert_eq!(fine, [told.len() - 1]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn headers_with_a_wrong_bit_change_all_or_nothing() {
    let folder = folder("bits");
    let good = good(&folder);
    let header = 8 + usize::try_from(u64::from_le_bytes(good[..8].try_into().unwrap())).unwrap();
    let flipped = |bit: usize| {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    };
    let files: Vec<Vec<u8>> = (0..header * 8).map(flipped).collect();
    let told = outcomes(&folder, &files);
    // Few things may be otherwise and mean the same: the number, and the spaces at the end.
    let fine = told.iter().filter(|t| t.0).count();
    assert!(fine * 20 < told.len(), "{fine} of {}", told.len());
    std::fs::remove_dir_all(&folder).unwrap();
}

fn file(header: &str, data: usize) -> Vec<u8> {
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn headers_that_lie_are_refused() {
    let folder = folder("lies");
    let remarks = r#""__metadata__":{"step":"5"}"#;
    let with = |a: &str, b: &str| format!("{{{remarks},\"a\":{a},\"b\":{b}}}");
    let a = r#"{"dtype":"F32","shape":[5,3],"data_offsets":[0,60]}"#;
    let b = r#"{"dtype":"U8","shape":[4],"data_offsets":[60,64]}"#;
    let lies = [
        // Overlapping, with a gap, backwards, beyond the end, of another size than the shape's.
        (
            with(a, r#"{"dtype":"U8","shape":[4],"data_offsets":[56,60]}"#),
            "header",
        ),
        (
            with(a, r#"{"dtype":"U8","shape":[4],"data_offsets":[62,66]}"#),
            "header",
        ),
        (
            with(a, r#"{"dtype":"U8","shape":[4],"data_offsets":[64,60]}"#),
            "header",
        ),
        (
            with(a, r#"{"dtype":"U8","shape":[400],"data_offsets":[60,460]}"#),
            "64 bytes",
        ),
        (
            with(a, r#"{"dtype":"U8","shape":[5],"data_offsets":[60,64]}"#),
            "header",
        ),
        // Absurd.
        (
            with(
                a,
                r#"{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[60,64]}"#,
            ),
            "header",
        ),
        (
            with(
                a,
                r#"{"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[60,64]}"#,
            ),
            "header",
        ),
        (
            with(a, r#"{"dtype":"U8","shape":[-4],"data_offsets":[60,64]}"#),
            "header",
        ),
        (
            with(a, r#"{"dtype":"U8","shape":[4],"data_offsets":[60,1e30]}"#),
            "header",
        ),
        (
            with(a, r#"{"dtype":"X8","shape":[4],"data_offsets":[60,64]}"#),
            "header",
        ),
        // Well-formed, and something else than what is wanted.
        (
            with(a, r#"{"dtype":"BOOL","shape":[4],"data_offsets":[60,64]}"#),
            "\"b\": BOOL",
        ),
        (
            with(a, r#"{"dtype":"U8","shape":[2,2],"data_offsets":[60,64]}"#),
            "[2, 2]",
        ),
        (
            format!("{{{remarks},\"a\":{a},\"c\":{b}}}"),
            "no tensor \"b\"",
        ),
        (format!("{{\"a\":{a},\"b\":{b}}}"), "no number \"step\""),
        (with(a, b).replace("\"5\"", "\"five\""), "\"five\""),
        // No header.
        (String::new(), "header"),
        ("[]".to_owned(), "header"),
        ("{".repeat(10_000), "header"),
    ];
    let mut files: Vec<Vec<u8>> = lies.iter().map(|(header, _)| file(header, 64)).collect();
    files.push([&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    files.push([&99_999_999_u64.to_le_bytes()[..], b"{}"].concat());
    let told = outcomes(&folder, &files);
    for (i, (fine, text)) in told.iter().enumerate() {
        let hint = lies.get(i).map_or("a header of", |lie| lie.1);
        assert!(!fine && text.contains(hint), "{i}: {text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn indexes_that_lie_are_refused() {
    let folder = folder("indexes");
    std::fs::write(folder.join("one.safetensors"), good(&folder)).unwrap();
    let index = |text: &str| format!("{{\"weight_map\":{{{text}}}}}");
    let indexes = [
        (index(r#""a":"../one.safetensors""#), "beside it"),
        (index(r#""a":"/etc/passwd""#), "beside it"),
        (index(r#""a":"""#), "beside it"),
        (index(r#""a":"..""#), "beside it"),
        (index(r#""a":"two.safetensors""#), "two.safetensors"),
        (index(r#""z":"one.safetensors""#), "\"z\""),
        (index(r#""a":7"#), "malformed index"),
        ("{}".to_owned(), "malformed index"),
    ];
    let told = Launch::new(2).run(|ctx| {
        let mut texts = Vec::new();
        for (i, (text, _)) in indexes.iter().enumerate() {
            let path = folder.join(format!("{i}.json"));
            ctx.world().barrier()?;
            if ctx.rank() == 0 {
                std::fs::write(&path, text)?;
            }
            ctx.world().barrier()?;
            let refused = checkpoint::contents(ctx, &path).unwrap_err();
            assert_eq!(refused.class(), ErrorClass::Agreed);
            texts.push(refused.to_string());
        }
        // A folder without any of the usual names.
        texts.push(checkpoint::contents(ctx, &folder).unwrap_err().to_string());
        Ok(texts)
    });
    let told = told.unwrap();
    assert_eq!(told[0], told[1]);
    for (text, hint) in told[0]
        .iter()
        .zip(indexes.iter().map(|i| i.1).chain(["a folder without"]))
    {
        assert!(text.contains(hint), "{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A name of as many bytes as there may be, in a folder whose name is no text, behind a link.
#[cfg(unix)]
#[test]
fn names_may_be_long_and_those_of_folders_any_bytes() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let scratch = folder("names");
    let bytes = scratch.join(OsStr::from_bytes(b"no text \xff\xfe"));
    std::fs::create_dir_all(&bytes).unwrap();
    let link = scratch.join("link");
    std::os::unix::fs::symlink(bytes.join("n".repeat(255)), &link).unwrap();
    for path in [bytes.join("é".repeat(127)), link] {
        let sums = Launch::new(2).run(|ctx| {
            let mesh = ctx.mesh_of(2)?;
            checkpoint::save(&path, &[("x".to_owned(), mesh.ones([5], shard(0))?)])?;
            checkpoint::read(&path, "x", &mesh, shard(0))?
                .sum_all()?
                .item()
        });
        assert_eq!(sums.unwrap(), [5.0; 2]);
    }
    // Nothing but these two is left.
    assert_eq!(std::fs::read_dir(&bytes).unwrap().count(), 2);
    std::fs::remove_dir_all(&scratch).unwrap();
}
