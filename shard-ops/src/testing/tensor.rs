//! Whole tensors, as one rank has them.

use super::Rng;
use shard_comm::DType;
use shard_spec::numel;
use std::fmt;
use std::sync::Arc;

/// Elements of a whole tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Doubles.
    F64(Vec<f64>),
    /// Indices and counts.
    I64(Vec<i64>),
    /// Truth values, 0 or 1.
    Bool(Vec<u8>),
}

impl Data {
    /// The type the elements have when they are computed in double precision.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F64(_) => DType::F64,
            Self::I64(_) => DType::I64,
            Self::Bool(_) => DType::Bool,
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::Bool(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A tensor as one rank has it: shape and elements. Clones share the elements.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements, as many as the shape holds.
    pub data: Arc<Data>,
}

impl fmt::Debug for Tensor {
    /// Type and shape, and the elements if there are few.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.data.dtype(), self.shape)?;
        if self.data.len() <= 8 {
            write!(f, " {:?}", self.data)
        } else {
            Ok(())
        }
    }
}

impl From<Vec<f64>> for Data {
    fn from(values: Vec<f64>) -> Self {
        Self::F64(values)
    }
}

impl From<Vec<i64>> for Data {
    fn from(values: Vec<i64>) -> Self {
        Self::I64(values)
    }
}

impl From<Vec<bool>> for Data {
    fn from(values: Vec<bool>) -> Self {
        Self::Bool(values.into_iter().map(u8::from).collect())
    }
}

impl Tensor {
    /// A tensor of these elements: `f64` for any floating-point type, `i64`, or `bool`.
    ///
    /// # Panics
    /// If they are more or fewer than the shape holds.
    pub fn new(shape: impl Into<Vec<usize>>, elements: impl Into<Data>) -> Self {
        let (shape, data) = (shape.into(), elements.into());
        assert_eq!(data.len(), numel(&shape), "elements of shape {shape:?}");
        Self {
            shape,
            data: Arc::new(data),
        }
    }

    /// Doubles that look random, between -1 and 1; the same for the same shape and seed.
    pub fn drawn(shape: impl Into<Vec<usize>>, seed: u64) -> Self {
        let shape = shape.into();
        let mut rng = Rng::new(seed, &["drawn"]);
        let values: Vec<f64> = (0..numel(&shape)).map(|_| rng.unit() * 2.0 - 1.0).collect();
        Self::new(shape, values)
    }
}
