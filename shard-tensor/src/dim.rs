//! Dims as a user names them: from the front, or, below zero, from the end.

use crate::{Error, Result};
use ndarray::SliceInfoElem;
use std::ops::RangeFull;

/// A dim of a tensor: 0 is the first, -1 the last.
///
/// ```
/// use shard_tensor::{launch, shard};
/// let shapes = launch(2, |ctx| {
///     let x = ctx.mesh_of(2)?.ones([4, 3, 2], [shard(0)])?;
///     let y = x.sum([1, -1], false)?;
///     assert_eq!(x.select(-2, 0)?.shape(), [4, 2]);
///     Ok(y.shape().to_vec())
/// })?;
/// assert_eq!(shapes[0], [4]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim(isize);

/// An index of a dim: 0 is the first, -1 the last.
///
/// ```
/// use shard_tensor::{launch, shard};
/// let last = launch(2, |ctx| ctx.mesh_of(2)?.arange(6, shard(0))?.reshape([2, 3])?.select(1, -1)?.to_array::<f32>())?;
/// assert_eq!(last[0].as_slice(), Some(&[2.0, 5.0][..]));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Index(isize);

/// Several dims: `[0, -1]`, `0`, a slice or a vector of them, or `..` for all.
///
/// ```
/// use shard_tensor::{launch, shard};
/// let largest = launch(2, |ctx| ctx.mesh_of(2)?.arange(6, shard(0))?.reshape([2, 3])?.amax(.., false)?.item())?;
/// assert_eq!(largest[0], 5.0);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DimList(Listed);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Listed {
    All,
    These(Vec<Dim>),
}

impl Dim {
    /// Whether it is the first or the last, which a tensor of one dim has.
    pub(crate) fn is_first(self) -> bool {
        matches!(self.0, 0 | -1)
    }

    /// Its index among `ndim` dims. What is beyond the last is left to the op, which names it.
    pub(crate) fn of(self, op: &'static str, ndim: usize) -> Result<usize> {
        if self.0 >= 0 {
            return Ok(self.0.unsigned_abs());
        }
        ndim.checked_sub(self.0.unsigned_abs())
            .ok_or_else(|| self.none_of(op, ndim))
    }

    /// [As `of`](Self::of), for what looks at the extent by itself: what is beyond the last is refused here.
    #[track_caller]
    pub(crate) fn within(self, op: &'static str, ndim: usize) -> Result<usize> {
        match self.of(op, ndim)? {
            dim if dim < ndim => Ok(dim),
            _ => Err(self.none_of(op, ndim)),
        }
    }

    #[track_caller]
    fn none_of(self, op: &'static str, ndim: usize) -> Error {
        let (expected, fix) = match ndim {
            0 => (
                "a tensor with dims".to_owned(),
                "give it one: `unsqueeze(0)`",
            ),
            _ => (
                format!("a dim of {ndim}, from -{ndim} on"),
                "count dims from 0, or from the end with -1 for the last",
            ),
        };
        Error::argument(op, expected, format!("dim {}", self.0), fix)
    }
}

impl Index {
    /// Its place in a dim of a shape. What is no dim is left to the op, which names it.
    pub(crate) fn of(self, op: &'static str, shape: &[usize], dim: usize) -> Result<usize> {
        let Some(&extent) = shape.get(dim) else {
            return Ok(0);
        };
        let found = match usize::try_from(self.0) {
            Ok(index) => Some(index).filter(|&index| index < extent),
            Err(_) => extent.checked_sub(self.0.unsigned_abs()),
        };
        found.ok_or_else(|| {
            Error::argument(
                op,
                format!("an index of the {extent} in dim {dim}"),
                self.0.to_string(),
                "count from 0, or from the end with -1 for the last",
            )
        })
    }
}

impl DimList {
    /// Whether it is the first or the last dim alone, which a tensor of one dim has.
    pub(crate) fn is_first(&self) -> bool {
        matches!(&self.0, Listed::These(dims) if matches!(dims[..], [dim] if dim.is_first()))
    }

    /// Their indices among `ndim` dims.
    pub(crate) fn of(&self, op: &'static str, ndim: usize) -> Result<Vec<usize>> {
        match &self.0 {
            Listed::All => Ok((0..ndim).collect()),
            Listed::These(dims) => dims.iter().map(|dim| dim.of(op, ndim)).collect(),
        }
    }
}

macro_rules! counted {
    ($($counted:ident)*) => {$(
        impl From<isize> for $counted {
            fn from(number: isize) -> Self {
                Self(number)
            }
        }

        impl From<i32> for $counted {
            fn from(number: i32) -> Self {
                Self(number as isize)
            }
        }

        impl From<i64> for $counted {
            fn from(number: i64) -> Self {
                // None is so far: the op will say so.
                let farthest = if number < 0 { isize::MIN } else { isize::MAX };
                Self(isize::try_from(number).unwrap_or(farthest))
            }
        }

        impl From<usize> for $counted {
            fn from(number: usize) -> Self {
                Self(isize::try_from(number).unwrap_or(isize::MAX))
            }
        }
    )*};
}

counted! { Dim Index }

macro_rules! one {
    ($($kind:ty)*) => {$(
        impl From<$kind> for DimList {
            fn from(dim: $kind) -> Self {
                Self(Listed::These(vec![dim.into()]))
            }
        }
    )*};
}

one!(Dim usize isize i64 i32);

impl From<RangeFull> for DimList {
    fn from(_all: RangeFull) -> Self {
        Self(Listed::All)
    }
}

impl<D: Into<Dim>, const N: usize> From<[D; N]> for DimList {
    fn from(dims: [D; N]) -> Self {
        Self(Listed::These(dims.into_iter().map(Into::into).collect()))
    }
}

impl<D: Copy + Into<Dim>, const N: usize> From<&[D; N]> for DimList {
    fn from(dims: &[D; N]) -> Self {
        dims[..].into()
    }
}

impl<D: Copy + Into<Dim>> From<&[D]> for DimList {
    fn from(dims: &[D]) -> Self {
        Self(Listed::These(dims.iter().map(|&dim| dim.into()).collect()))
    }
}

impl<D: Into<Dim>> From<Vec<D>> for DimList {
    fn from(dims: Vec<D>) -> Self {
        Self(Listed::These(dims.into_iter().map(Into::into).collect()))
    }
}

impl<D: Copy + Into<Dim>> From<&Vec<D>> for DimList {
    fn from(dims: &Vec<D>) -> Self {
        dims[..].into()
    }
}

/// By how many places each of some dims is shifted: `1`, `[1, -2]`, a slice or a vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shifts(pub(crate) Vec<isize>);

impl From<isize> for Shifts {
    fn from(shift: isize) -> Self {
        Self(vec![shift])
    }
}

impl From<i32> for Shifts {
    fn from(shift: i32) -> Self {
        Self(vec![shift as isize])
    }
}

impl<const N: usize> From<[isize; N]> for Shifts {
    fn from(shifts: [isize; N]) -> Self {
        Self(shifts.into())
    }
}

impl<const N: usize> From<[i32; N]> for Shifts {
    fn from(shifts: [i32; N]) -> Self {
        Self(shifts.map(|shift| shift as isize).into())
    }
}

impl From<&[isize]> for Shifts {
    fn from(shifts: &[isize]) -> Self {
        Self(shifts.into())
    }
}

impl From<Vec<isize>> for Shifts {
    fn from(shifts: Vec<isize>) -> Self {
        Self(shifts)
    }
}

/// Sizes of the parts that a dim is split into: a number for all of them, of which the last may be shorter, or one for each, as `[3, 5]`,
/// a slice or a vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartSizes(Parts);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Parts {
    Equal(usize),
    These(Vec<usize>),
}

impl PartSizes {
    /// The sizes that a dim of this extent is split into. An extent of 0 is one part.
    pub(crate) fn of(self, op: &'static str, extent: usize) -> Result<Vec<usize>> {
        match self.0 {
            Parts::These(sizes) => Ok(sizes),
            Parts::Equal(0) if extent > 0 => Err(Error::argument(
                op,
                "parts of one index or more",
                "parts of size 0",
                "give a size from 1 on, or a size for each part",
            )),
            Parts::Equal(_) if extent == 0 => Ok(vec![0]),
            Parts::Equal(size) => {
                let mut sizes = vec![size; extent / size];
                sizes.extend(Some(extent % size).filter(|&rest| rest > 0));
                Ok(sizes)
            }
        }
    }
}

impl From<usize> for PartSizes {
    fn from(each: usize) -> Self {
        Self(Parts::Equal(each))
    }
}

impl<const N: usize> From<[usize; N]> for PartSizes {
    fn from(sizes: [usize; N]) -> Self {
        sizes[..].into()
    }
}

impl<const N: usize> From<&[usize; N]> for PartSizes {
    fn from(sizes: &[usize; N]) -> Self {
        sizes[..].into()
    }
}

impl From<&[usize]> for PartSizes {
    fn from(sizes: &[usize]) -> Self {
        Self(Parts::These(sizes.into()))
    }
}

impl From<Vec<usize>> for PartSizes {
    fn from(sizes: Vec<usize>) -> Self {
        Self(Parts::These(sizes))
    }
}

impl From<&Vec<usize>> for PartSizes {
    fn from(sizes: &Vec<usize>) -> Self {
        sizes[..].into()
    }
}

/// Ranges of all dims, and the shape of what they leave.
pub(crate) struct Slices {
    /// Per dim: start, step and how many.
    pub(crate) ranges: Vec<(usize, isize, usize)>,
    pub(crate) shape: Vec<usize>,
    /// Whether dims go or come.
    pub(crate) changes: bool,
}

impl Slices {
    /// Ranges of a tensor of this shape as a user writes them for an op.
    pub(crate) fn of(
        op: &'static str,
        shape: &[usize],
        elements: &[SliceInfoElem],
    ) -> Result<Self> {
        let mut read = Self {
            ranges: Vec::new(),
            shape: Vec::new(),
            changes: false,
        };
        let mut extents = shape.iter();
        let mut next = || {
            extents.next().copied().ok_or_else(|| {
                Error::argument(
                    op,
                    format!("at most {} ranges, one for each dim", shape.len()),
                    format!("{elements:?}"),
                    "give fewer ranges",
                )
            })
        };
        for element in elements {
            match *element {
                SliceInfoElem::Slice { start, end, step } => {
                    let range = range(op, next()?, start, end, step)?;
                    read.ranges.push(range);
                    read.shape.push(range.2);
                }
                SliceInfoElem::Index(index) => {
                    read.ranges.push((place(op, next()?, index)?, 1, 1));
                    read.changes = true;
                }
                SliceInfoElem::NewAxis => {
                    read.shape.push(1);
                    read.changes = true;
                }
            }
        }
        for &n in extents {
            read.ranges.push((0, 1, n));
            read.shape.push(n);
        }
        Ok(read)
    }

    /// What a source is told that does not expand to what the ranges leave.
    #[track_caller]
    pub(crate) fn refuses(&self, op: &'static str, source: &[usize]) -> Error {
        Error::argument(
            op,
            format!("a source that expands to {:?}", self.shape),
            format!("one of {source:?}"),
            "give an element for each place, or 1 along dims where it is repeated",
        )
    }
}

/// Start, step and length of a range of a dim of `n`, of which ends below 0 count from the end, and ends beyond are cut off.
fn range(
    op: &'static str,
    n: usize,
    start: isize,
    end: Option<isize>,
    step: isize,
) -> Result<(usize, isize, usize)> {
    if step == 0 {
        return Err(Error::argument(
            op,
            "a step other than 0",
            step.to_string(),
            "leave the step away, or give another",
        ));
    }
    let within = |at: isize| match at {
        0.. => n.min(at.unsigned_abs()),
        _ => n.saturating_sub(at.unsigned_abs()),
    };
    let (start, end) = (within(start), end.map_or(n, within));
    let len = end.saturating_sub(start).div_ceil(step.unsigned_abs());
    Ok(match step > 0 || len == 0 {
        true => (start, step, len),
        // Backwards from the last of the range.
        false => (end - 1, step, len),
    })
}

/// The place of an index of a dim of `n`, from the end below 0.
fn place(op: &'static str, n: usize, index: isize) -> Result<usize> {
    let at = match index {
        0.. => Some(index.unsigned_abs()),
        _ => n.checked_sub(index.unsigned_abs()),
    };
    at.filter(|&at| at < n).ok_or_else(|| {
        Error::argument(
            op,
            format!("an index of {n}, from -{n} on and below {n}"),
            index.to_string(),
            "name an index that is there",
        )
    })
}
