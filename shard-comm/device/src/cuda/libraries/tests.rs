//! What the real libraries say of our descriptions, which are private. All else is in `tests/it/cuda/libraries.rs`.

use super::*;
use crate::MatmulPrecision;
use crate::cuda::terms::{ConvKind, Convolution, Gemm, Matrix, Numbers, Tensor};

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// Where the libraries are found, they check our descriptions themselves, which needs no GPU.
#[test]
fn the_libraries_take_descriptions_and_agree_on_the_extents_of_outputs() {
    if cublaslt::found().is_found() {
        let matrix = |rows, columns, leading| Matrix {
            address: 64,
            rows,
            columns,
            leading,
            step: 100,
        };
        let alike = FLOATS.map(|dtype| (dtype, dtype));
        let sums = [DType::F16, DType::BF16].map(|dtype| (dtype, DType::F32));
        for (dtype, result) in alike.into_iter().chain(sums) {
            for precision in [MatmulPrecision::Full, MatmulPrecision::Tf32] {
                let gemm = Gemm {
                    dtype,
                    result,
                    precision,
                    a: matrix(4, 3, 5),
                    b: matrix(4, 7, 4),
                    d: matrix(3, 7, 8),
                    transpose_a: true,
                    transpose_b: false,
                    bias: Some(32),
                    batches: 3,
                };
                cublaslt::Described::new(&gemm).unwrap();
                cublaslt::preference(&gemm).unwrap();
            }
        }
    }
    if cudnn::found().is_found() {
        let list = |numbers: &[i32]| Numbers::from_slice(numbers);
        let tensor = |dims: &[i32], strides: &[i32]| Tensor {
            address: 0,
            dims: list(dims),
            strides: list(strides),
        };
        for dtype in FLOATS {
            let mut call = Convolution {
                kind: ConvKind::Forward,
                dtype,
                precision: MatmulPrecision::Full,
                x: tensor(&[2, 4, 9, 8], &[600, 100, 10, 1]),
                w: tensor(&[6, 2, 3, 2], &[12, 6, 2, 1]),
                y: tensor(&[2, 6, 4, 9], &[216, 36, 9, 1]),
                pad: list(&[1, 1]),
                stride: list(&[2, 1]),
                dilation: list(&[1, 1]),
                groups: 2,
            };
            let described = cudnn::Described::new(&call).unwrap();
            assert_eq!(described.outputs().unwrap()[..], [2, 6, 5, 9]);
            // Three spatial dims.
            call.x = tensor(&[1, 2, 7, 7, 7], &[686, 343, 49, 7, 1]);
            call.w = tensor(&[4, 2, 3, 3, 3], &[54, 27, 9, 3, 1]);
            call.y = tensor(&[1, 4, 3, 3, 7], &[252, 63, 21, 7, 1]);
            (call.pad, call.stride) = (list(&[0, 0, 1]), list(&[2, 1, 1]));
            (call.dilation, call.groups) = (list(&[1, 2, 1]), 1);
            let described = cudnn::Described::new(&call).unwrap();
            assert_eq!(described.outputs().unwrap()[..], [1, 4, 3, 3, 7]);
            // As an operation of a graph, whatever is read and written.
            for kind in [ConvKind::Forward, ConvKind::InputGrad, ConvKind::WeightGrad] {
                call.kind = kind;
                cudnn::plan::operation(&call).unwrap();
            }
        }
    }
}
