//! NumPy's archives of arrays.

use super::DataError;
use super::npy::{Fetch, Input, Npy};
use super::source::{agreed, load_as};
use super::zip::{Entry, Packing, entries};
use crate::files::{open_regular, read_at};
use crate::{Mesh, Placements, Result, ShardTensor};
use flate2::CrcReader;
use flate2::read::DeflateDecoder;
use shard_comm::Calling;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads one array of a NumPy archive onto a mesh, as [`load_npy`](super::load_npy) does a file. `name` is that under which it
/// was saved.
///
/// Of an array that is stored as it is, as `numpy.savez` does, a rank reads its own piece. Of one that is compressed, as
/// `numpy.savez_compressed` does, every rank unpacks everything up to its last element, block by block, and keeps its piece; the
/// whole is in no rank's memory.
///
/// Bytes that do not have the checksum of the archive are an error where a rank has read all of them: so of a compressed array
/// always, and of one that is stored as it is if it is small, or if a rank holds all of it.
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
        if let Packing::Other(how) = entry.packing {
            return Err(within(format!(
                "packed by method {how}, which is not read here"
            )));
        }
        let len = entry.len;
        let input = Input::Member(Member { file, start, entry });
        Self::of(input, len, &path.join(name))
    }
}

fn open(path: &Path) -> std::result::Result<(File, Vec<Entry>), DataError> {
    let listed = open_regular(path).and_then(|(file, len)| {
        let listed = entries(&file, len)?;
        Ok((file, listed))
    });
    listed.map_err(|e| DataError::io(path, e))
}

/// A file of an archive.
#[derive(Debug)]
pub(super) struct Member {
    file: File,
    start: u64,
    entry: Entry,
}

impl Member {
    /// What gives its bytes, of which `whole` says whether all are wanted.
    pub(super) fn fetch(&self, whole: bool) -> Fetch<'_> {
        let packed = Bytes {
            file: &self.file,
            at: self.start,
            end: self.start + self.entry.packed,
        };
        match self.entry.packing {
            Packing::Deflated => self.in_order(DeflateDecoder::new(packed)),
            _ if whole => self.in_order(packed),
            _ => Box::new(|at, into| read_at(&self.file, into, self.start + at)),
        }
    }

    /// Reads from the beginning on, once, so that at the end the checksum is known.
    fn in_order<'a>(&'a self, bytes: impl Read + 'a) -> Fetch<'a> {
        let mut bytes = CrcReader::new(bytes);
        let mut at = 0;
        Box::new(move |from, into| {
            io::copy(&mut (&mut bytes).take(from - at), &mut io::sink())?;
            bytes.read_exact(into)?;
            at = from + into.len() as u64;
            match at == self.entry.len {
                true => self.check(bytes.crc().sum()),
                false => Ok(()),
            }
        })
    }

    fn check(&self, found: u32) -> io::Result<()> {
        let said = self.entry.crc;
        match found == said {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("damaged: bytes of CRC-32 {found:08x}, where the archive says {said:08x}"),
            )),
        }
    }
}

/// Bytes of a file, one after the other.
struct Bytes<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Bytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let len = into.len().min(left);
        read_at(self.file, &mut into[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}
