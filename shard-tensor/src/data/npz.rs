//! NumPy's archives of arrays.

use super::DataError;
use super::npy::{Fetch, Input, Npy};
use super::source::{agreed, load_as};
use super::zip::{Entry, Packing, entries};
use crate::{Mesh, Placements, Result, ShardTensor};
use flate2::read::DeflateDecoder;
use shard_comm::Calling;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Reads one array of a NumPy archive onto a mesh, as [`load_npy`](super::load_npy) does a file. `name` is that under which it
/// was saved.
///
/// Of an array that is stored as it is, as `numpy.savez` does, a rank reads its own piece. Of one that is compressed, as
/// `numpy.savez_compressed` does, every rank unpacks everything up to its last element, block by block, and keeps its piece; the
/// whole is in no rank's memory.
///
/// # Collective
/// As [`load`](super::load).
///
/// # Errors
/// As [`load`](super::load).
#[track_caller]
pub fn load_npz(
    path: impl AsRef<Path>,
    name: &str,
    mesh: &Mesh,
    placements: impl Into<Placements>,
) -> Result<ShardTensor> {
    let _call = Calling::of("load_npz");
    load_as("load_npz", mesh, placements.into(), || {
        Npy::in_archive(path.as_ref(), name)
    })
}

/// The names of the arrays in a NumPy archive.
///
/// # Collective
/// All ranks of the program.
///
/// # Errors
/// An agreed error if a rank cannot read it.
#[track_caller]
pub fn npz_names(path: impl AsRef<Path>, mesh: &Mesh) -> Result<Vec<String>> {
    let _call = Calling::of("npz_names");
    let names = open(path.as_ref()).map(|(_, all)| {
        let name = |e: Entry| e.name.strip_suffix(".npy").map(str::to_owned);
        let mut names: Vec<String> = all.into_iter().filter_map(name).collect();
        names.sort();
        names
    });
    agreed("npz_names", mesh, names)
}

impl Npy {
    /// An array of an archive.
    ///
    /// # Errors
    /// If there is none, or as [`Npy::open`].
    pub fn in_archive(path: impl AsRef<Path>, name: &str) -> std::result::Result<Self, DataError> {
        let path = path.as_ref();
        let (file, all) = open(path)?;
        let within = |e: String| DataError::other(format!("{}: {name:?}: {e}", path.display()));
        let entry = all
            .into_iter()
            .find(|e| e.name.strip_suffix(".npy") == Some(name));
        let entry = entry.ok_or_else(|| within("no such array".to_owned()))?;
        let start = entry.start(&file).map_err(|e| within(e.to_string()))?;
        let input = match entry.packing {
            Packing::Stored => Input::File(file, start),
            Packing::Deflated => Input::Packed(Packed {
                path: path.to_owned(),
                start,
                len: entry.packed,
            }),
            Packing::Other(how) => {
                return Err(within(format!(
                    "packed by method {how}, which is not read here"
                )));
            }
        };
        Self::of(input, entry.len, &path.join(name))
    }
}

fn open(path: &Path) -> std::result::Result<(File, Vec<Entry>), DataError> {
    let listed = File::open(path).and_then(|file| {
        let listed = entries(&file)?;
        Ok((file, listed))
    });
    listed.map_err(|e| DataError::io(path, e))
}

/// A compressed file of an archive.
#[derive(Debug)]
pub(super) struct Packed {
    path: PathBuf,
    start: u64,
    /// Bytes as they are packed.
    len: u64,
}

impl Packed {
    /// Unpacks it from its beginning, once.
    pub(super) fn fetch(&self) -> io::Result<Fetch<'_>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.start))?;
        let mut unpacked = DeflateDecoder::new(file.take(self.len));
        let mut at = 0;
        Ok(Box::new(move |from, into| {
            io::copy(&mut (&mut unpacked).take(from - at), &mut io::sink())?;
            unpacked.read_exact(into)?;
            at = from + into.len() as u64;
            Ok(())
        }))
    }
}
