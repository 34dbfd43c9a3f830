//! Arrays of which boxes can be read.

use super::npy::NpyError;
use crate::files::filled;
use crate::mesh::check_whole;
use crate::{Error, Mesh, Placements, Result, ShardTensor};
use shard_comm::{AgreedError, Call, Calling, DType};
use shard_ops::Value;
use shard_redistribute::Array;
use shard_spec::{DimPart, numel};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An array that lies somewhere, of which any box can be read: a file, a store, a function.
///
/// ```
/// use shard_tensor::data::{DataError, DimPart, Source, load};
/// use shard_tensor::{DType, launch, shard};
///
/// /// The squares, which lie nowhere.
/// struct Squares([usize; 1]);
///
/// impl Source for Squares {
///     fn dtype(&self) -> DType {
///         DType::I64
///     }
///     fn shape(&self) -> &[usize] {
///         &self.0
///     }
///     fn read(&self, held: &[DimPart], into: &mut [u8]) -> Result<(), DataError> {
///         for (i, room) in held[0].indices().zip(into.chunks_exact_mut(8)) {
///             room.copy_from_slice(&(i as i64 * i as i64).to_ne_bytes());
///         }
///         Ok(())
///     }
/// }
///
/// let sums = launch(3, |ctx| {
///     load(&ctx.mesh_of(3)?, shard(0), || Ok(Squares([5])))?.sum_all()?.item()
/// })?;
/// assert_eq!(sums, [30.0; 3]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub trait Source: Send + Sync {
    /// The type of its elements.
    fn dtype(&self) -> DType;

    /// Its extents.
    fn shape(&self) -> &[usize];

    /// Reads the elements whose index in each dim is held, the last index fastest, as this machine keeps them in memory.
    /// `into` has exactly as many bytes, and `held` lies within the shape.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, held: &[DimPart], into: &mut [u8]) -> Result<(), DataError>;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn dtype(&self) -> DType {
        (**self).dtype()
    }

    fn shape(&self) -> &[usize] {
        (**self).shape()
    }

    fn read(&self, held: &[DimPart], into: &mut [u8]) -> Result<(), DataError> {
        (**self).read(held, into)
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn dtype(&self) -> DType {
        (**self).dtype()
    }

    fn shape(&self) -> &[usize] {
        (**self).shape()
    }

    fn read(&self, held: &[DimPart], into: &mut [u8]) -> Result<(), DataError> {
        (**self).read(held, into)
    }
}

/// Why data cannot be read, on one rank.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The system reports an error.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Arc<std::io::Error>,
    },
    /// It is no file of NumPy, or one of something that is not read here.
    #[error("{path}: {source}")]
    Npy {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Arc<NpyError>,
    },
    /// Anything else.
    #[error("{0}")]
    Other(Arc<str>),
}

impl DataError {
    /// An error of a source of one's own.
    pub fn other(text: impl std::fmt::Display) -> Self {
        Self::Other(text.to_string().into())
    }

    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        let (path, source) = (path.to_owned(), Arc::new(source));
        Self::Io { path, source }
    }
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        Self::other(error)
    }
}

/// Opens a source on every rank and reads it onto a mesh: each rank its own piece and no more.
///
/// # Collective
/// All ranks of the program, with placements and sources that are alike, which is checked by their types and shapes.
///
/// # Errors
/// An agreed error if a rank cannot open it or read its piece; a mismatch if ranks see different types or shapes, or pass
/// different placements; as [`Placements::layout`].
#[track_caller]
pub fn load<S: Source>(
    mesh: &Mesh,
    placements: impl Into<Placements>,
    open: impl FnOnce() -> Result<S, DataError>,
) -> Result<ShardTensor> {
    let _call = Calling::of("load");
    load_as("data::load", mesh, placements.into(), open)
}

#[track_caller]
pub(super) fn load_as<S: Source>(
    op: &'static str,
    mesh: &Mesh,
    placements: Placements,
    open: impl FnOnce() -> Result<S, DataError>,
) -> Result<ShardTensor> {
    let ctx = mesh.context();
    let source = agreed(op, mesh, open())?;
    let (dtype, shape) = (source.dtype(), source.shape().to_vec());
    let layout = mesh.layout(&shape[..], placements);
    let layout = layout.and_then(|layout| check_whole(op, &layout).map(|()| layout));
    let words = |layout: &shard_spec::Layout| format!("{dtype} {shape:?} {layout}");
    let layout = ctx.uniform(op, layout, words)?;
    let piece = match layout.local_parts(ctx.rank()) {
        None => Ok(None),
        Some(held) => {
            let len = numel(&layout.local_shape(ctx.rank()).unwrap_or_default());
            let read = |into: &mut [u8]| source.read(&held, into).map_err(|e| e.to_string());
            filled(ctx.device(), dtype, len, read)
                .map(Some)
                .map_err(DataError::other)
        }
    };
    let local = agreed(op, mesh, piece)?;
    (mesh.comm()).record(Call::new(op).of(dtype, &layout));
    let array = Array::from_parts(mesh.comm(), &layout, local, dtype)?;
    Ok(ShardTensor::new(ctx, Value::new(array)))
}

/// What all ranks have, or the error of the lowest that has it not.
#[track_caller]
pub(super) fn agreed<T>(op: &'static str, mesh: &Mesh, one: Result<T, DataError>) -> Result<T> {
    let (one, status) = match one {
        Ok(one) => (Some(one), Ok(())),
        Err(e) => (None, Err(e)),
    };
    let refused = |e: DataError| {
        AgreedError::new(
            op,
            "data that can be read",
            e.to_string(),
            "check the path and the data",
        )
    };
    mesh.context().world().agree(status.map_err(refused))?;
    match one {
        Some(one) => Ok(one),
        None => unreachable!("an error of one rank is an error of all"),
    }
}

/// Whether memory could have an array of this shape, of which every stride counts, beside an extent of zero too.
pub(super) fn fits(shape: &[usize], size: usize) -> bool {
    let bytes = shape
        .iter()
        .try_fold(size, |n, &extent| n.checked_mul(extent.max(1)));
    bytes.is_some_and(|n| isize::try_from(n).is_ok())
}
