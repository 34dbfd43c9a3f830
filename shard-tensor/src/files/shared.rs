//! One file that all ranks write, each its own part, and that is there as a whole or not at all.

use super::boxes::{read_at, write_at};
use super::target::Target;
use super::{Place, agree_on_tensors, file_error, text};
use crate::{Context, Result, ShardTensor};
use shard_comm::{AgreedError, Buffer};
use shard_ops::Exec;
use shard_spec::DimPart;
use smallvec::SmallVec;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes by which ranks find out whether they have opened one file.
const MARK: usize = 16;

/// A file beside the one it will replace, open on every rank.
#[derive(Debug)]
pub(crate) struct SharedFile {
    ctx: Context,
    op: &'static str,
    path: PathBuf,
    /// Of rank 0.
    target: Option<Target>,
}

/// A rank's part of a file, which it may write on any thread.
pub(crate) struct Part {
    file: File,
    /// Bytes that go to the file's beginning.
    pub(crate) head: Vec<u8>,
    pieces: Vec<Piece>,
}

/// What a rank writes of one array.
struct Piece {
    place: Place,
    held: SmallVec<[DimPart; 4]>,
    buffer: Buffer,
}

impl SharedFile {
    /// Begins a file of `len` bytes.
    ///
    /// # Collective
    /// All ranks of the program. A few small rounds.
    ///
    /// # Errors
    /// An agreed error if it cannot be made, or if a rank does not find it where the others do.
    #[track_caller]
    pub(crate) fn begin(
        op: &'static str,
        ctx: &Context,
        path: &Path,
        len: u64,
    ) -> Result<(Self, Part)> {
        let made = match ctx.rank() {
            0 => Target::at(path).and_then(|target| {
                let mark = mark();
                let file = open(target.beside())?;
                // With room for the mark, which what is written goes over.
                file.set_len(len.max(MARK as u64)).map_err(text)?;
                write_at(&file, &mark, 0).map_err(text)?;
                file.sync_all().map_err(text)?;
                Ok(Some((target, file, mark)))
            }),
            _ => Ok(None),
        };
        let (made, status) = match made {
            Ok(made) => (made, Ok(())),
            Err(e) => (None, Err(e)),
        };
        let refused = |e| file_error(op, path, "a regular file to write", e);
        ctx.world().agree(status.map_err(refused))?;
        // The name beside differs from one saving to the next. It alone is text: the folder's may be any bytes.
        let told = made.as_ref().map(|(target, _, mark)| {
            let name = target.beside().file_name().unwrap_or_default();
            (name.to_string_lossy().into_owned(), mark.to_vec())
        });
        let told = ctx.gather(&told)?.into_iter().flatten().next();
        let opened = match (&made, told) {
            (Some((_, file, _)), _) => file.try_clone().map_err(text),
            (None, Some((name, mark))) => {
                Target::named_beside(path, &name).and_then(|path| same(&path, &mark))
            }
            (None, None) => Err("no name of rank 0".to_owned()),
        };
        let (file, status) = match opened {
            Ok(file) => (Some(file), Ok(())),
            Err(e) => (None, Err(e)),
        };
        let apart = |e| {
            AgreedError::new(
                op,
                format!("the file that rank 0 has begun beside {}", path.display()),
                e,
                "save to a file system that all ranks share, by a path that means the same on each of them",
            )
        };
        ctx.world().agree(status.map_err(apart))?;
        let Some(file) = file else {
            unreachable!("an error of one rank is an error of all")
        };
        let shared = Self {
            ctx: ctx.clone(),
            op,
            path: path.to_owned(),
            target: made.map(|(target, ..)| target),
        };
        let part = Part {
            file,
            head: Vec::new(),
            pieces: Vec::new(),
        };
        Ok((shared, part))
    }

    /// Tells all ranks whether one of them cannot write.
    #[track_caller]
    pub(crate) fn agree(&self, status: Result<(), String>) -> Result<()> {
        let refused = |e| file_error(self.op, &self.path, "a file to write", e);
        Ok(self.ctx.world().agree(status.map_err(refused))?)
    }

    /// Puts the file in its place, if all ranks have written their parts.
    ///
    /// # Collective
    /// All ranks of the program. Two small rounds.
    ///
    /// # Errors
    /// An agreed error if a rank could not write, or the file could not be put there; what was there before still is.
    #[track_caller]
    pub(crate) fn put(mut self, written: Result<(), String>) -> Result<()> {
        self.agree(written)?;
        let put = self.target.take().map_or(Ok(()), Target::put);
        self.agree(put)
    }
}

impl Part {
    /// Adds what this rank is to write of a tensor that begins at this byte: its piece, if it is the first to have that one.
    ///
    /// # Collective
    /// All ranks of the program. Terms of sums are added.
    #[track_caller]
    pub(crate) fn add(&mut self, tensor: &ShardTensor, at: u64) -> Result<()> {
        let ctx = tensor.context();
        let value = tensor.value().detach();
        let reduced = tensor.layout().with_partial_reduced();
        let whole = ctx.engine().redistribute(&value, &reduced)?;
        ctx.tape().note_read(&value);
        let coords = reduced.mesh().coords(ctx.rank());
        let first = coords.is_some_and(|c| reduced.replicate_axes().iter().all(|&a| c[a] == 0));
        let held = reduced.local_parts(ctx.rank()).filter(|_| first);
        if let (Some(held), Some(buffer)) = (held, whole.array().buffer()) {
            self.pieces.push(Piece {
                place: Place {
                    at,
                    shape: tensor.shape().to_vec(),
                    size: tensor.dtype().size(),
                },
                held,
                buffer: buffer.clone(),
            });
        }
        Ok(())
    }

    /// Writes all of it, and waits until the disk has it.
    pub(crate) fn write(self) -> Result<(), String> {
        write_at(&self.file, &self.head, 0).map_err(text)?;
        for piece in &self.pieces {
            piece.place.write(&self.file, &piece.held, &piece.buffer)?;
        }
        self.file.sync_all().map_err(text)
    }
}

/// Writes one tensor behind these first bytes.
///
/// # Collective
/// All ranks of the program, with the same path and tensor, which is checked.
#[track_caller]
pub(crate) fn save_one(
    op: &'static str,
    path: &Path,
    tensor: &ShardTensor,
    head: Vec<u8>,
) -> Result<()> {
    let ctx = tensor.context();
    agree_on_tensors(op, ctx, path, &[("array", tensor)], std::iter::empty())?;
    let (at, bytes) = (head.len(), tensor.numel() * tensor.dtype().size());
    let (file, mut part) = SharedFile::begin(op, ctx, path, (at + bytes) as u64)?;
    part.add(tensor, at as u64)?;
    if ctx.rank() == 0 {
        part.head = head;
    }
    file.put(part.write())
}

fn open(path: &Path) -> Result<File, String> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|e| format!("{}: {e}", path.display()))
}

/// Opens a file that must have this mark.
pub fn same(path: &Path, mark: &[u8]) -> Result<File, String> {
    let file = open(path)?;
    let mut found = [0; MARK];
    read_at(&file, &mut found, 0).map_err(|e| format!("{}: {e}", path.display()))?;
    match found[..] == *mark {
        true => Ok(file),
        false => Err(format!("another file at {}", path.display())),
    }
}

/// Bytes that no other file begins with.
pub fn mark() -> [u8; MARK] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |d| d.as_nanos());
    (now << 32 | u128::from(std::process::id())).to_le_bytes()
}
