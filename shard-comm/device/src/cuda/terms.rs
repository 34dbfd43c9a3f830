//! The terms of the optional libraries as plain structures: the questions to drivers, and their answers.

use std::fmt;

use smallvec::SmallVec;

use crate::{DType, MatmulPrecision};

/// Whether an optional library can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Library {
    /// The library is there.
    Found {
        /// Its version in the library's own numbering: 130200 is 13.2.0 of cuBLASLt, 91900 is 9.19.0 of cuDNN,
        /// 12100 is 12.1.0 of cuFFT.
        version: usize,
    },
    /// The library is missing or cannot be used: kernels of this workspace do its work.
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
    /// `libcufft`: Fourier transforms.
    pub cufft: Library,
}

impl fmt::Display for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cublaslt,
            cudnn,
            cufft,
        } = self;
        write!(f, "cuBLASLt {cublaslt}, cuDNN {cudnn}, cuFFT {cufft}")
    }
}

/// A product in the terms of cuBLASLt: `D = op(A) op(B)`, plus a bias along every column of `D`. All matrices lie by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gemm {
    /// The type of A and B.
    pub(super) dtype: DType,
    /// The type of D and of the bias: that of A and B, or `f32` if they are of 16 bits.
    pub(super) result: DType,
    pub(super) precision: MatmulPrecision,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) d: Matrix,
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    /// The address of a vector with as many elements as `D` has rows.
    pub(super) bias: Option<u64>,
    /// How many products; consecutive ones lie the matrices' `step` apart.
    pub(super) batches: i32,
}

/// A matrix by columns: element (i, j) is `i + j * leading` elements behind the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) leading: i64,
    /// Elements from one batch to the next; 0 if all batches use the same matrix.
    pub(super) step: i64,
}

/// Which of the three products of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvKind {
    /// y from x and w.
    Forward,
    /// The gradient by x, from the gradient by y, and w.
    InputGrad,
    /// The gradient by w, from x and the gradient by y.
    WeightGrad,
}

/// Extents or steps of a tensor: batch, channels, two or three spatial dims.
pub(super) type Numbers = SmallVec<[i32; 5]>;

/// A convolution in the terms of cuDNN, which pads both sides of a dim equally.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Convolution {
    pub(super) kind: ConvKind,
    pub(super) dtype: DType,
    pub(super) precision: MatmulPrecision,
    pub(super) x: Tensor,
    /// The filter; its elements are contiguous.
    pub(super) w: Tensor,
    pub(super) y: Tensor,
    pub(super) pad: Numbers,
    pub(super) stride: Numbers,
    pub(super) dilation: Numbers,
    pub(super) groups: i32,
}

/// A tensor's place in memory.
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

/// Which Fourier transform. None of them scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FourierKind {
    /// `n` complex numbers from `n`: `y[k] = Σ x[j] e^(∓2πi jk/n)`, with the upper sign if it is not the inverse.
    Complex {
        /// The sign of the exponent: plus for the inverse.
        inverse: bool,
    },
    /// The first `n / 2 + 1` complex numbers of the transform of `n` real ones.
    FromReal,
    /// The `n` real numbers whose transform begins with these `n / 2 + 1` complex ones, times `n`.
    ToReal,
}

impl FourierKind {
    /// The numbers of type float in a line that is read, and in one that is written.
    pub(super) fn widths(self, n: usize) -> [usize; 2] {
        let pairs = |numbers: usize| numbers.saturating_mul(2);
        let half = pairs(n / 2 + 1);
        match self {
            Self::Complex { .. } => [pairs(n); 2],
            Self::FromReal => [n, half],
            Self::ToReal => [half, n],
        }
    }
}

/// Transforms in the terms of cuFFT: lines lie one behind the other, complex numbers as real and imaginary parts side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fourier {
    pub(super) kind: FourierKind,
    pub(super) dtype: DType,
    /// The elements of a transform.
    pub(super) n: usize,
    pub(super) lines: usize,
    /// The address of the lines that are read, and perhaps overwritten.
    pub(super) x: u64,
    pub(super) y: u64,
}
