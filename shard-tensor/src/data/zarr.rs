//! Zarr stores of versions 2 and 3, in folders.

use super::npy::Stored;
use super::source::{fits, load_as};
use super::{DataError, Source};
use crate::{Mesh, Placements, Result, ShardTensor};
use shard_comm::{Calling, DType};
use shard_spec::DimPart;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrs::array::{Array, DataType};
use zarrs::array_subset::ArraySubset;
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableStorageTraits;

/// Reads an array of a Zarr store onto a mesh: the folder with its `zarr.json` or `.zarray`. Types are as in
/// [`load_npy`](super::load_npy), and `bfloat16`.
///
/// # Collective
/// As [`load`](super::load): a rank reads the chunks that its piece touches, whole, and of sharded chunks the inner ones.
///
/// # Errors
/// As [`load`](super::load).
#[track_caller]
pub fn load_zarr(
    path: impl AsRef<Path>,
    mesh: &Mesh,
    placements: impl Into<Placements>,
) -> Result<ShardTensor> {
    let _call = Calling::of("load_zarr");
    load_as("load_zarr", mesh, placements.into(), || {
        Zarr::open(path.as_ref())
    })
}

/// An array in a Zarr store.
pub struct Zarr {
    array: Array<dyn ReadableStorageTraits>,
    path: PathBuf,
    stored: Stored,
    shape: Vec<usize>,
}

impl Zarr {
    /// Opens the folder of an array. Nothing but what is said of it is read.
    ///
    /// # Errors
    /// If there is none, or one of a type or packing that is not read.
    pub fn open(path: impl AsRef<Path>) -> std::result::Result<Self, DataError> {
        let path = path.as_ref();
        let refused = |e: String| DataError::other(format!("{}: {e}", path.display()));
        if !path.is_dir() {
            return Err(refused("no folder".to_owned()));
        }
        let store = FilesystemStore::new(path).map_err(|e| refused(e.to_string()))?;
        let store: Arc<dyn ReadableStorageTraits> = Arc::new(store);
        let array = Array::open(store, "/").map_err(|e| refused(e.to_string()))?;
        let dtype = array.data_type();
        let stored = stored(dtype).ok_or_else(|| refused(format!("elements of {dtype}")))?;
        let shape = array.shape().iter().map(|&n| usize::try_from(n).ok());
        let shape: Option<Vec<usize>> = shape.collect();
        let shape = shape.filter(|shape| fits(shape, 8));
        let shape = shape.ok_or_else(|| refused(format!("the shape {:?}", array.shape())))?;
        Ok(Self {
            array,
            path: path.to_owned(),
            stored,
            shape,
        })
    }

    /// The elements of one box, as they are stored.
    fn piece(&self, ranges: &[Range<u64>]) -> std::result::Result<Vec<u8>, DataError> {
        let refused = |e: String| DataError::other(format!("{}: {e}", self.path.display()));
        let subset = ArraySubset::new_with_ranges(ranges);
        let bytes = self.array.retrieve_array_subset(&subset);
        let bytes = bytes.map_err(|e| refused(e.to_string()))?;
        let fixed = bytes.into_fixed().map_err(|e| refused(e.to_string()))?;
        Ok(fixed.into_owned())
    }
}

impl Source for Zarr {
    fn dtype(&self) -> DType {
        self.stored.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn read(&self, held: &[DimPart], into: &mut [u8]) -> std::result::Result<(), DataError> {
        if into.is_empty() {
            return Ok(());
        }
        let lens: Vec<usize> = held.iter().map(DimPart::len).collect();
        let (size, count) = (self.stored.size(), lens.iter().product::<usize>());
        let boxes = boxes(held);
        let mut raw = Vec::new();
        for ranges in &boxes {
            let there: Vec<Range<u64>> = ranges
                .iter()
                .map(|(_, r)| r.start as u64..r.end as u64)
                .collect();
            let piece = self.piece(&there)?;
            if boxes.len() == 1 {
                raw = piece;
                break;
            }
            raw.resize(count * size, 0);
            put(&piece, ranges, &lens, size, &mut raw);
        }
        if raw.len() != count * size {
            let got = raw.len();
            return Err(DataError::other(format!(
                "{got} bytes of {count} elements of {size}"
            )));
        }
        self.stored.order(&mut raw);
        self.stored.widen(&raw, into)
    }
}

/// The boxes of what is held: for every dim where it begins in the piece, and its interval in the array.
fn boxes(held: &[DimPart]) -> Vec<Vec<(usize, Range<usize>)>> {
    let mut boxes = vec![Vec::new()];
    for part in held {
        let mut begin = 0;
        let intervals: Vec<(usize, Range<usize>)> = part
            .intervals()
            .map(|interval| {
                begin += interval.len();
                (begin - interval.len(), interval)
            })
            .collect();
        let longer = |b: &Vec<(usize, Range<usize>)>| -> Vec<Vec<(usize, Range<usize>)>> {
            let with = |i: &(usize, Range<usize>)| b.iter().cloned().chain([i.clone()]).collect();
            intervals.iter().map(with).collect()
        };
        boxes = boxes.iter().flat_map(longer).collect();
    }
    boxes
}

/// Copies a box's elements to their place in a piece of these extents.
fn put(from: &[u8], ranges: &[(usize, Range<usize>)], lens: &[usize], size: usize, to: &mut [u8]) {
    let row = ranges.last().map_or(1, |(_, r)| r.len()) * size;
    for (number, bytes) in from.chunks_exact(row.max(1)).enumerate() {
        // The row's place: its index in the box, digit by digit from the last dim but one.
        let (mut rest, mut at, mut stride) = (number, 0, 1);
        for (dim, (begin, range)) in ranges.iter().enumerate().rev() {
            let digit = match dim + 1 == ranges.len() {
                true => 0,
                false => {
                    let digit = rest % range.len();
                    rest /= range.len();
                    digit
                }
            };
            at += (begin + digit) * stride;
            stride *= lens[dim];
        }
        if let Some(room) = to.get_mut(at * size..at * size + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }
}

/// What elements of a type are here.
fn stored(dtype: &DataType) -> Option<Stored> {
    let name = match dtype {
        DataType::Float64 => "f8",
        DataType::Float32 => "f4",
        DataType::Float16 => "f2",
        DataType::Int64 => "i8",
        DataType::Int32 => "i4",
        DataType::UInt8 => "u1",
        DataType::Bool => "b1",
        DataType::Int8 => "i1",
        DataType::Int16 => "i2",
        DataType::UInt16 => "u2",
        DataType::UInt32 => "u4",
        DataType::UInt64 => "u8",
        DataType::BFloat16 => return Some(Stored::same(DType::BF16)),
        _ => return None,
    };
    Stored::named(name)
}

impl fmt::Debug for Zarr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Zarr({} {:?} at {})",
            self.dtype(),
            self.shape,
            self.path.display()
        )
    }
}
