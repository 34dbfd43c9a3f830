//! NumPy's files of one array.

mod element;
mod header;
mod save;

pub use save::{npy_bytes, save_npy};

pub(super) use self::element::Stored;
use self::header::Header;
use super::source::{fits, load_as};
use super::{DataError, Source};
use crate::files::{Place, open_regular, read_at};
use crate::{Mesh, Placements, Result, ShardTensor};
use bytemuck::allocation::try_zeroed_vec;
use ndarray::{Array, Dimension};
use shard_comm::{Calling, DType, Element};
use shard_spec::DimPart;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads an array of a NumPy file onto a mesh. The file tells its type and shape.
///
/// `f8`, `f4`, `f2`, `i8`, `i4`, `u1` and `b1` are read as they are, and smaller and unsigned integers as the type above that
/// holds them: `i1`, `i2`, `u2` as `i32`, and `u4`, `u8` as `i64`. Either order of bytes and either order of elements will do.
///
/// # Collective
/// As [`load`](super::load): a rank reads its own piece of the file. Where elements are to be turned or widened, another copy
/// of the piece is held meanwhile.
///
/// # Errors
/// As [`load`](super::load).
///
/// ```
/// use shard_tensor::{data, launch, shard};
/// let path = std::env::temp_dir().join("shard-tensor-doc.npy");
/// let sums = launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     data::save_npy(&path, &mesh.arange(12, shard(0))?.reshape([4, 3])?)?;
///     data::load_npy(&path, &mesh, shard(1))?.sum_all()?.item()
/// })?;
/// assert_eq!(sums, [66.0; 3]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[track_caller]
pub fn load_npy(
    path: impl AsRef<Path>,
    mesh: &Mesh,
    placements: impl Into<Placements>,
) -> Result<ShardTensor> {
    let _call = Calling::of("load_npy");
    load_as("load_npy", mesh, placements.into(), || {
        Npy::open(path.as_ref())
    })
}

/// An array in a NumPy file, or in bytes like one's.
#[derive(Debug)]
pub struct Npy {
    input: Input,
    path: PathBuf,
    /// The bytes before the elements.
    start: usize,
    stored: Stored,
    /// Whether the first index is the one that changes fastest.
    fortran: bool,
    shape: Vec<usize>,
}

/// Where a file's bytes are.
#[derive(Debug)]
pub(super) enum Input {
    /// In a file, from this byte on.
    File(File, u64),
    /// In memory.
    Bytes(Arc<[u8]>),
    /// In an archive.
    #[cfg(feature = "npz")]
    Member(super::npz::Member),
}

/// Gives the bytes from some place on. Places are asked for in ascending order.
pub(super) type Fetch<'a> = Box<dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a>;

impl Input {
    /// `whole` says whether all bytes are wanted.
    #[cfg_attr(
        not(feature = "npz"),
        expect(unused_variables, reason = "only archives have checksums")
    )]
    fn fetch(&self, whole: bool) -> Fetch<'_> {
        match self {
            Self::File(file, base) => Box::new(move |at, into| read_at(file, into, base + at)),
            Self::Bytes(bytes) => Box::new(move |at, into| {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let from = from.and_then(|from| from.get(..into.len()));
                into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }),
            #[cfg(feature = "npz")]
            Self::Member(member) => member.fetch(whole),
        }
    }
}

/// Why bytes are no array that is read here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// It does not begin as files of NumPy do.
    #[error("not a NumPy file: it does not begin with \\x93NUMPY and a version")]
    Magic,
    /// The header ends after the file does, or is longer than any of a plain array.
    #[error("a header of {len} bytes, in a file of {file}; at most {most} are read")]
    HeaderLength {
        /// How long it says it is.
        len: usize,
        /// How long the file is.
        file: u64,
        /// How long it may be.
        most: usize,
    },
    /// The header is of no plain array.
    #[error("byte {at} of the header is not {expected}")]
    Header {
        /// Where.
        at: usize,
        /// What belongs there.
        expected: &'static str,
    },
    /// Elements of a type that is not read, or not the one asked for.
    #[error("elements of type {found:?}, where {expected} are read")]
    Type {
        /// What the header says.
        found: String,
        /// What would do.
        expected: String,
    },
    /// Another number of dims than was asked for.
    #[error("{found} dims, where {expected} were expected")]
    Dims {
        /// What the header says.
        found: usize,
        /// What would do.
        expected: usize,
    },
    /// There are more or fewer elements than the header says.
    #[error("the header says {of} of shape {shape:?}, and {bytes} bytes follow it")]
    Size {
        /// The type of an element.
        of: String,
        /// The shape.
        shape: Vec<usize>,
        /// The bytes there are.
        bytes: u64,
    },
    /// The bytes cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Npy {
    /// Opens a file. Nothing but its header is read.
    ///
    /// # Errors
    /// If it cannot be opened, or is no NumPy file of one of the [types](load_npy) that are read, with nothing after it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let (file, len) = open_regular(path).map_err(|e| DataError::io(path, e))?;
        Self::of(Input::File(file, 0), len, path)
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self, DataError> {
        let bytes: Arc<[u8]> = bytes.into();
        let len = bytes.len() as u64;
        Self::of(Input::Bytes(bytes), len, Path::new("bytes in memory"))
    }

    /// What `len` bytes are.
    pub(super) fn of(input: Input, len: u64, path: &Path) -> Result<Self, DataError> {
        Self::parse(input, len, path).map_err(|source| DataError::Npy {
            path: path.to_owned(),
            source: Arc::new(source),
        })
    }

    fn parse(input: Input, len: u64, path: &Path) -> Result<Self, NpyError> {
        let mut head = vec![0; len.min(header::MOST as u64) as usize];
        input.fetch(head.len() as u64 == len)(0, &mut head)?;
        let (text, start) = header::split(&head, len)?;
        let header = Header::parse(text)?;
        let stored = Stored::of(header.descr)?;
        let bytes = len.saturating_sub(start as u64);
        let (shape, size) = (header.shape, stored.size());
        if !fits(&shape, size.max(8))
            || shape.iter().product::<usize>() as u64 * size as u64 != bytes
        {
            let of = header.descr.to_owned();
            return Err(NpyError::Size { of, shape, bytes });
        }
        Ok(Self {
            input,
            path: path.to_owned(),
            start,
            stored,
            fortran: header.fortran_order,
            shape,
        })
    }

    /// The whole array, here.
    ///
    /// # Errors
    /// If it has elements of another type, or another number of dims; if it cannot be read.
    pub fn to_array<T: Element, D: Dimension>(&self) -> Result<Array<T, D>, DataError> {
        let refused = |source| DataError::Npy {
            path: self.path.clone(),
            source: Arc::new(source),
        };
        if self.dtype() != T::DTYPE {
            return Err(refused(NpyError::Type {
                found: self.dtype().to_string(),
                expected: T::DTYPE.to_string(),
            }));
        }
        let mut dim = D::zeros(D::NDIM.unwrap_or(self.shape.len()));
        if dim.ndim() != self.shape.len() {
            return Err(refused(NpyError::Dims {
                found: self.shape.len(),
                expected: dim.ndim(),
            }));
        }
        dim.slice_mut().copy_from_slice(&self.shape);
        let whole: Vec<DimPart> = self.shape.iter().map(|&n| (0..n).into()).collect();
        let mut elements: Vec<T> = zeroed(self.shape.iter().product())?;
        self.read(&whole, bytemuck::cast_slice_mut(&mut elements))?;
        Array::from_shape_vec(dim, elements).map_err(DataError::other)
    }
}

/// Memory for what a file says that it has.
fn zeroed<T: Element>(count: usize) -> Result<Vec<T>, DataError> {
    let memory = try_zeroed_vec(count);
    memory.map_err(|()| DataError::other(format!("no memory for {count} elements of {}", T::DTYPE)))
}

impl Source for Npy {
    fn dtype(&self) -> DType {
        self.stored.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn read(&self, held: &[DimPart], into: &mut [u8]) -> Result<(), DataError> {
        let size = self.stored.size();
        let mut place = Place {
            at: self.start as u64,
            shape: self.shape.clone(),
            size,
        };
        let mut turned = held.to_vec();
        if self.fortran {
            place.shape.reverse();
            turned.reverse();
        }
        let whole = (held.iter().zip(&self.shape)).all(|(held, &n)| held.len() == n);
        let fetch = |held: &[DimPart], into: &mut [u8]| {
            let fetched = place.fetch(held, into, &mut self.input.fetch(whole));
            fetched.map_err(|e| DataError::io(&self.path, e))
        };
        if !self.fortran && self.stored.is_plain() {
            fetch(held, into)?;
            self.stored.order(into);
            return Ok(());
        }
        let count: usize = held.iter().map(DimPart::len).product();
        let mut raw = zeroed(count * size)?;
        fetch(&turned, &mut raw)?;
        if self.fortran {
            let lens: Vec<usize> = turned.iter().map(DimPart::len).collect();
            raw = element::turned(&raw, &lens, size);
        }
        self.stored.order(&mut raw);
        self.stored.widen(&raw, into)
    }
}
