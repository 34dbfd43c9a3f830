//! Global shapes, however they are written.

use crate::{Error, Result};
use shard_spec::Dims;
use std::ops::Deref;

/// A global shape: anything that lists extents turns into one.
///
/// ```
/// use shard_tensor::Shape;
/// let shape = |s: Shape| s.to_vec();
/// assert_eq!(shape([2, 3].into()), [2, 3]);
/// assert_eq!(shape(vec![2, 3].into()), [2, 3]);
/// assert_eq!(shape(5.into()), [5]);
/// assert_eq!(shape(().into()), [0; 0]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Shape {
    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<usize> for Shape {
    fn from(extent: usize) -> Self {
        [extent].into()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(extents: [usize; N]) -> Self {
        Self(extents.iter().copied().collect())
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(extents: &[usize; N]) -> Self {
        extents[..].into()
    }
}

impl From<&[usize]> for Shape {
    fn from(extents: &[usize]) -> Self {
        Self(extents.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(extents: Vec<usize>) -> Self {
        Self(extents.into())
    }
}

impl From<Dims> for Shape {
    fn from(extents: Dims) -> Self {
        Self(extents)
    }
}

impl From<&Self> for Shape {
    fn from(shape: &Self) -> Self {
        shape.clone()
    }
}

/// A shape of which one extent may be -1, for what the others leave: what [`reshape`](crate::ShardTensor::reshape) takes. Extents that
/// are computed are of one type in Rust: `[-1, n as isize]`. To [`expand`](crate::ShardTensor::expand) each -1 is the extent that there is.
///
/// ```
/// use shard_tensor::{launch, shard};
/// launch(2, |ctx| {
///     let images = ctx.mesh_of(2)?.zeros([6, 4, 4, 3], shard(0))?;
///     assert_eq!(images.reshape([6, -1])?.shape(), [6, 48]);
///     assert_eq!(images.reshape(-1)?.shape(), [288]);
///     assert!(images.reshape([-1, 5]).is_err());
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Extents {
    dims: Dims,
    /// Dims that are -1.
    left: Dims,
    /// What is no extent.
    wrong: Option<isize>,
}

impl Extents {
    /// The shape that they are of so many elements.
    pub(crate) fn of(mut self, op: &'static str, elements: usize) -> Result<Dims> {
        let twice = (self.left.len() > 1).then_some(-1);
        if let Some(wrong) = self.wrong.or(twice) {
            return Err(Error::argument(
                op,
                "extents from 0 on, and -1 for one of them",
                wrong.to_string(),
                "let one extent at most be found out",
            ));
        }
        let Some(&left) = self.left.first() else {
            return Ok(self.dims);
        };
        let others = (self.dims.iter()).try_fold(1_usize, |all, &n| all.checked_mul(n));
        let found = others.filter(|&others| others > 0 && elements.is_multiple_of(others));
        let Some(others) = found else {
            self.dims.remove(left);
            return Err(Error::argument(
                op,
                format!("other extents than -1 that divide {elements} elements"),
                format!("{:?}", &self.dims[..]),
                "give extents whose product divides the number of elements",
            ));
        };
        self.dims[left] = elements / others;
        Ok(self.dims)
    }

    /// The shape that a tensor of this shape is expanded to, which keeps its extent where -1 is.
    pub(crate) fn expanding(mut self, op: &'static str, own: &[usize]) -> Result<Dims> {
        let new = self.dims.len().checked_sub(own.len());
        let known = |dim: usize| own.get(dim.checked_sub(new?)?).copied();
        let mut wrong = self.wrong;
        for &dim in &self.left {
            match known(dim) {
                Some(extent) => self.dims[dim] = extent,
                None => wrong = Some(-1),
            }
        }
        match wrong {
            None => Ok(self.dims),
            Some(wrong) => Err(Error::argument(
                op,
                "extents from 0 on, and -1 for dims that there are",
                wrong.to_string(),
                "say how long dims are that come before the tensor's own",
            )),
        }
    }

    fn signed(extents: impl IntoIterator<Item = isize>) -> Self {
        let mut read = Self::default();
        for (dim, extent) in extents.into_iter().enumerate() {
            match usize::try_from(extent) {
                Ok(extent) => read.dims.push(extent),
                Err(_) if extent == -1 => {
                    read.left.push(dim);
                    read.dims.push(1);
                }
                Err(_) => read.wrong = Some(extent),
            }
        }
        read
    }
}

macro_rules! shapes {
    ($($kind:ty;)*) => {$(
        impl From<$kind> for Extents {
            fn from(shape: $kind) -> Self {
                Self { dims: Shape::from(shape).0, left: Dims::new(), wrong: None }
            }
        }
    )*};
}

shapes! { (); usize; &[usize]; Vec<usize>; Dims; Shape; &Shape; }

impl From<&Vec<usize>> for Extents {
    fn from(shape: &Vec<usize>) -> Self {
        shape[..].into()
    }
}

impl<const N: usize> From<[usize; N]> for Extents {
    fn from(shape: [usize; N]) -> Self {
        Shape::from(shape).into()
    }
}

impl<const N: usize> From<&[usize; N]> for Extents {
    fn from(shape: &[usize; N]) -> Self {
        shape[..].into()
    }
}

impl From<i32> for Extents {
    fn from(extent: i32) -> Self {
        Self::signed([extent as isize])
    }
}

impl From<isize> for Extents {
    fn from(extent: isize) -> Self {
        Self::signed([extent])
    }
}

impl<const N: usize> From<[i32; N]> for Extents {
    fn from(extents: [i32; N]) -> Self {
        Self::signed(extents.map(|extent| extent as isize))
    }
}

impl From<i64> for Extents {
    fn from(extent: i64) -> Self {
        [extent].into()
    }
}

impl<const N: usize> From<[i64; N]> for Extents {
    fn from(extents: [i64; N]) -> Self {
        // No array is so large: who reads them will say so.
        let near = |extent: i64| {
            isize::try_from(extent).unwrap_or(if extent < 0 { isize::MIN } else { isize::MAX })
        };
        Self::signed(extents.map(near))
    }
}

impl<const N: usize> From<[isize; N]> for Extents {
    fn from(extents: [isize; N]) -> Self {
        Self::signed(extents)
    }
}

impl From<&[isize]> for Extents {
    fn from(extents: &[isize]) -> Self {
        Self::signed(extents.iter().copied())
    }
}

impl From<Vec<isize>> for Extents {
    fn from(extents: Vec<isize>) -> Self {
        Self::signed(extents)
    }
}
