//! Dims as a user names them: from the front, or, below zero, from the end.

use crate::{Error, Result};

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

/// Several dims: `[0, -1]`, `0`, a slice or a vector of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DimList(Vec<Dim>);

impl Dim {
    /// Its index among `ndim` dims. What is beyond the last is left to the op, which names it.
    pub(crate) fn of(self, op: &'static str, ndim: usize) -> Result<usize> {
        if self.0 >= 0 {
            return Ok(self.0.unsigned_abs());
        }
        ndim.checked_sub(self.0.unsigned_abs()).ok_or_else(|| {
            Error::argument(
                op,
                format!("a dim of {ndim}, from -{ndim} on"),
                self.0.to_string(),
                "count dims from 0, or from the end with -1 for the last",
            )
        })
    }
}

impl DimList {
    /// Their indices among `ndim` dims.
    pub(crate) fn of(&self, op: &'static str, ndim: usize) -> Result<Vec<usize>> {
        self.0.iter().map(|dim| dim.of(op, ndim)).collect()
    }
}

impl From<isize> for Dim {
    fn from(dim: isize) -> Self {
        Self(dim)
    }
}

impl From<i32> for Dim {
    fn from(dim: i32) -> Self {
        Self(dim as isize)
    }
}

impl From<usize> for Dim {
    fn from(dim: usize) -> Self {
        // No tensor has so many dims: the op will say so.
        Self(isize::try_from(dim).unwrap_or(isize::MAX))
    }
}

macro_rules! one {
    ($($kind:ty)*) => {$(
        impl From<$kind> for DimList {
            fn from(dim: $kind) -> Self {
                Self(vec![dim.into()])
            }
        }
    )*};
}

one!(Dim usize isize i32);

impl<D: Into<Dim>, const N: usize> From<[D; N]> for DimList {
    fn from(dims: [D; N]) -> Self {
        Self(dims.into_iter().map(Into::into).collect())
    }
}

impl<D: Copy + Into<Dim>, const N: usize> From<&[D; N]> for DimList {
    fn from(dims: &[D; N]) -> Self {
        dims[..].into()
    }
}

impl<D: Copy + Into<Dim>> From<&[D]> for DimList {
    fn from(dims: &[D]) -> Self {
        Self(dims.iter().map(|&dim| dim.into()).collect())
    }
}

impl<D: Into<Dim>> From<Vec<D>> for DimList {
    fn from(dims: Vec<D>) -> Self {
        Self(dims.into_iter().map(Into::into).collect())
    }
}

impl<D: Copy + Into<Dim>> From<&Vec<D>> for DimList {
    fn from(dims: &Vec<D>) -> Self {
        dims[..].into()
    }
}
