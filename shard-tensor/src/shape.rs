//! Global shapes, however they are written.

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
