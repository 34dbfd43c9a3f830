//! Fills, copies and conversions of strided views.

use super::nest::Nest;
use crate::{DType, Element, Scalar, Strided, dispatch_dtype};

/// Writes a scalar to a checked view.
pub fn fill(dtype: DType, dst: &mut [u8], view: &Strided, value: Scalar) {
    let Some(nest) = Nest::new(view, view) else {
        return;
    };
    dispatch_dtype!(dtype, T => {
        let value = T::from_scalar(value);
        let dst: &mut [T] = bytemuck::cast_slice_mut(dst);
        // The source is the destination's own shape with nothing in it.
        let nothing = vec![(); dst.len()];
        nest.sweep(&nothing, dst, |row, _| row.fill(value), |_, ()| value);
    });
}

/// Copies a checked view onto another, converting if the types differ.
pub fn copy(from: DType, src: &[u8], sv: &Strided, to: DType, dst: &mut [u8], dv: &Strided) {
    let Some(nest) = Nest::new(sv, dv) else {
        return;
    };
    if from == to {
        // Only the size matters, which keeps four copies of the loops instead of eight.
        match from.size() {
            8 => move_bits::<u64>(&nest, src, dst),
            4 => move_bits::<u32>(&nest, src, dst),
            2 => move_bits::<u16>(&nest, src, dst),
            _ => move_bits::<u8>(&nest, src, dst),
        }
    } else {
        dispatch_dtype!(from, S => dispatch_dtype!(to, D => convert::<S, D>(&nest, src, dst)));
    }
}

fn move_bits<T: bytemuck::Pod>(nest: &Nest, src: &[u8], dst: &mut [u8]) {
    let (src, dst): (&[T], &mut [T]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    macro_rules! runs {
        ($n:expr; $($fixed:literal)*) => {
            match $n {
                $($fixed => runs::<T, $fixed>(nest, src, dst),)*
                _ => nest.sweep(src, dst, |to, from| to.copy_from_slice(from), |_, value| value),
            }
        };
    }
    match nest.innermost() {
        (n, 1, 1) => runs!(n; 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16),
        _ => nest.sweep(
            src,
            dst,
            |to, from| to.copy_from_slice(from),
            |_, value| value,
        ),
    }
}

/// Copies dense rows of a few elements: with their length known to the compiler, a row is one or two moves, where a
/// call to `memcpy` would cost more than the bytes.
fn runs<T: bytemuck::Pod, const N: usize>(nest: &Nest, src: &[T], dst: &mut [T]) {
    nest.starts(|s, d| {
        let (s, d) = (s as usize, d as usize);
        let mut row = [T::zeroed(); N];
        row.copy_from_slice(&src[s..s + N]);
        dst[d..d + N].copy_from_slice(&row);
    });
}

fn convert<S: Element, D: Element>(nest: &Nest, src: &[u8], dst: &mut [u8]) {
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    let one = |value: S| D::from_scalar(value.to_scalar());
    let row = |to: &mut [D], from: &[S]| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = one(*from);
        }
    };
    nest.sweep(src, dst, row, |_, value| one(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;
    use shard_spec::Strides;

    /// Element indices a view visits, in row-major order, straight from the definition.
    fn visits(view: &Strided) -> Vec<usize> {
        let mut all = vec![view.offset as isize];
        for (&extent, &stride) in view.shape.iter().zip(&view.strides) {
            all = all
                .iter()
                .flat_map(|&at| (0..extent).map(move |i| at + i as isize * stride))
                .collect();
        }
        all.into_iter().map(|at| at as usize).collect()
    }

    /// A view that fits: each dim is a permuted, possibly flipped, stepped or broadcast dim of a dense array.
    fn view(shape: Vec<usize>, broadcast: bool) -> impl Strategy<Value = (Strided, usize)> {
        let n = shape.len();
        let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
        let kinds = prop::collection::vec(0..if broadcast { 4 } else { 3 }, n);
        (order, kinds, 0..3usize).prop_map(move |(order, kinds, gap)| {
            let mut strides = Strides::from_elem(0, n);
            let (mut step, mut offset) = (1usize, gap);
            for &d in &order {
                let reach = shape[d].saturating_sub(1);
                match kinds[d] {
                    0 => strides[d] = step as isize,
                    1 => {
                        strides[d] = -(step as isize);
                        offset += reach * step;
                    }
                    2 => {
                        step *= 2;
                        strides[d] = step as isize;
                    }
                    _ => continue,
                }
                step *= shape[d].max(1);
            }
            (
                Strided::new(offset, shape.as_slice().into(), strides),
                offset + step + gap,
            )
        })
    }

    fn pair() -> impl Strategy<Value = ((Strided, usize), (Strided, usize))> {
        prop::collection::vec(0..6usize, 0..5)
            .prop_flat_map(|shape| (view(shape.clone(), true), view(shape, false)))
    }

    proptest! {
        #[test]
        fn copies_equal_the_definition(((sv, s_len), (dv, d_len)) in pair()) {
            sv.validate(s_len).unwrap();
            dv.validate(d_len).unwrap();
            let src: Vec<i32> = (0..s_len as i32).collect();
            let mut expected = vec![-1i32; d_len];
            for (s, d) in visits(&sv).into_iter().zip(visits(&dv)) {
                expected[d] = src[s];
            }
            let mut got = vec![-1i32; d_len];
            copy(DType::I32, bytemuck::cast_slice(&src), &sv, DType::I32, bytemuck::cast_slice_mut(&mut got), &dv);
            prop_assert_eq!(&got, &expected);
            let mut wide = vec![-1f64; d_len];
            copy(DType::I32, bytemuck::cast_slice(&src), &sv, DType::F64, bytemuck::cast_slice_mut(&mut wide), &dv);
            prop_assert_eq!(wide, expected.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
            let mut filled = vec![0u8; d_len];
            fill(DType::U8, &mut filled, &dv, Scalar::I64(7));
            prop_assert_eq!(filled.iter().filter(|&&v| v == 7).count(), dv.numel());
        }
    }

    #[test]
    fn large_transposes_go_through_tiles() {
        let (rows, columns) = (70, 45);
        let src: Vec<f64> = (0..rows * columns).map(|i| i as f64).collect();
        let mut dst = vec![0.0f64; rows * columns];
        let sv = Strided::new(
            0,
            [columns, rows][..].into(),
            [1, columns as isize][..].into(),
        );
        let dv = Strided::contiguous(&[columns, rows]);
        copy(
            DType::F64,
            bytemuck::cast_slice(&src),
            &sv,
            DType::F64,
            bytemuck::cast_slice_mut(&mut dst),
            &dv,
        );
        for i in 0..columns {
            for j in 0..rows {
                assert_eq!(dst[i * rows + j], src[j * columns + i]);
            }
        }
    }

    #[test]
    fn conversions_keep_what_the_type_can_hold() {
        let one = Strided::contiguous(&[3]);
        let src = [f16::from_f32(1.5), f16::NAN, f16::INFINITY];
        let mut dst = [bf16::ZERO; 3];
        copy(
            DType::F16,
            bytemuck::cast_slice(&src),
            &one,
            DType::BF16,
            bytemuck::cast_slice_mut(&mut dst),
            &one,
        );
        assert!(dst[0] == bf16::from_f32(1.5) && dst[1].is_nan() && dst[2] == bf16::INFINITY);
        let big = [(1i64 << 53) + 1, -1, 300];
        let mut small = [0u8; 3];
        copy(
            DType::I64,
            bytemuck::cast_slice(&big),
            &one,
            DType::U8,
            &mut small,
            &one,
        );
        assert_eq!(small, [255, 0, 255]);
    }
}
