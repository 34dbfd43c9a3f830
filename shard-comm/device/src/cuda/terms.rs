//! The terms of the optional libraries, as plain structures: what drivers are asked, and answer.

use std::fmt;

use smallvec::SmallVec;

use crate::{DType, MatmulPrecision};

/// Whether an optional library can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Library {
    /// It is there.
    Found {
        /// Its version, as it counts: 130200 is 13.2.0 of cuBLASLt, 91900 is 9.19.0 of cuDNN.
        version: usize,
    },
    /// It is not, or is no use: kernels of this workspace's own do its work.
    Missing {
        /// Why.
        cause: String,
    },
}

impl Library {
    pub(super) fn missing(cause: impl Into<String>) -> Self {
        Self::Missing {
            cause: cause.into(),
        }
    }

    pub(super) fn is_found(&self) -> bool {
        matches!(self, Self::Found { .. })
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found { version } => write!(f, "{version}"),
            Self::Missing { cause } => write!(f, "not used: {cause}"),
        }
    }
}

/// The optional libraries of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Libraries {
    /// `libcublasLt`: products of matrices.
    pub cublaslt: Library,
    /// `libcudnn`: convolutions.
    pub cudnn: Library,
}

impl fmt::Display for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuBLASLt {}, cuDNN {}", self.cublaslt, self.cudnn)
    }
}

/// A product in the terms of cuBLASLt: `D = op(A) op(B)`, plus a bias along every column of `D`. All matrices lie by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gemm {
    pub(super) dtype: DType,
    pub(super) precision: MatmulPrecision,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) d: Matrix,
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    /// The address of as many elements as `D` has rows.
    pub(super) bias: Option<u64>,
    /// How many products, from one to the next the matrices' steps apart.
    pub(super) batches: i32,
}

/// A matrix by columns: element (i, j) is `i + j * leading` elements behind the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) leading: i64,
    /// Elements from one batch to the next; 0 for the same one.
    pub(super) step: i64,
}

/// Which of the three products of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvKind {
    /// y from x and w.
    Forward,
    /// The gradient by x, from that by y, and w.
    InputGrad,
    /// The gradient by w, from x and the gradient by y.
    WeightGrad,
}

/// Extents or steps of a tensor: batch, channels, two or three spatial dims.
pub(super) type Numbers = SmallVec<[i32; 5]>;

/// A convolution in the terms of cuDNN, which pads alike on both sides of a dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Convolution {
    pub(super) kind: ConvKind,
    pub(super) dtype: DType,
    pub(super) precision: MatmulPrecision,
    pub(super) x: Tensor,
    /// Its elements lie side by side.
    pub(super) w: Tensor,
    pub(super) y: Tensor,
    pub(super) pad: Numbers,
    pub(super) stride: Numbers,
    pub(super) dilation: Numbers,
    pub(super) groups: i32,
}

/// A tensor's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tensor {
    pub(super) address: u64,
    pub(super) dims: Numbers,
    pub(super) strides: Numbers,
}

impl Convolution {
    /// The tensor that is written.
    pub(super) fn written(&mut self) -> &mut Tensor {
        match self.kind {
            ConvKind::Forward => &mut self.y,
            ConvKind::InputGrad => &mut self.x,
            ConvKind::WeightGrad => &mut self.w,
        }
    }

    /// The tensors that are read, in the order of an op's operands.
    pub(super) fn read(&mut self) -> [&mut Tensor; 2] {
        match self.kind {
            ConvKind::Forward => [&mut self.x, &mut self.w],
            ConvKind::InputGrad => [&mut self.y, &mut self.w],
            ConvKind::WeightGrad => [&mut self.x, &mut self.y],
        }
    }
}
