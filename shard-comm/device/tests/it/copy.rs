use half::{bf16, f16};
use proptest::prelude::*;
use shard_device::kernel::{copy, fill};
use shard_device::{DType, Element, Scalar, Strided};
use shard_spec::{Dims, Strides};

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
fn rows_of_every_length_are_copied_whole() {
    for dtype in [DType::U8, DType::F16, DType::I32, DType::F64] {
        let size = dtype.size();
        for n in 1..=20 + 64 / size {
            // Rows with gaps after them, in two planes with more.
            let shape = [2, 3, n];
            let (from, to) = ([4 * (n + 2), n + 2, 1], [5 * (n + 1), n + 1, 1]);
            let view = |steps: [usize; 3]| {
                Strided::new(
                    1,
                    shape[..].into(),
                    steps.map(|step| step as isize)[..].into(),
                )
            };
            let (sv, dv) = (view(from), view(to));
            let bytes: Vec<u64> = (0..3 * from[0] as u64)
                .map(|i| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
                .collect();
            let src: &[u8] = &bytemuck::cast_slice(&bytes)[..2 * from[0] * size];
            let mut dst = vec![0u64; 2 * to[0]];
            let dst: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut dst)[..2 * to[0] * size];
            let mut expected = dst.to_vec();
            for (s, d) in visits(&sv).into_iter().zip(visits(&dv)) {
                expected[d * size..][..size].copy_from_slice(&src[s * size..][..size]);
            }
            copy(dtype, src, &sv, dtype, dst, &dv);
            assert_eq!(dst, expected, "{n} of {dtype}");
        }
    }
}

#[test]
fn any_number_of_dims_is_walked() {
    // Ten or more loops whose steps differ, so that none can be joined.
    let shape = [2; 12];
    let view = |gap: isize| {
        let strides = (0..12).map(|d| (1 << (11 - d)) * (1 + gap * (12 - d) / 2));
        Strided::new(0, shape[..].into(), strides.collect())
    };
    let (sv, dv) = (view(1), view(2));
    let src: Vec<i32> = (0..sv.end().unwrap() as i32).collect();
    let mut expected = vec![-1i32; dv.end().unwrap()];
    let mut got = expected.clone();
    for (s, d) in visits(&sv).into_iter().zip(visits(&dv)) {
        expected[d] = src[s];
    }
    let out = bytemuck::cast_slice_mut(&mut got);
    copy(
        DType::I32,
        bytemuck::cast_slice(&src),
        &sv,
        DType::I32,
        out,
        &dv,
    );
    assert_eq!(got, expected);
    // And where the order counts: many source elements fall on each destination element.
    let few = Strided::new(0, shape[..].into(), [1; 12][..].into());
    for (s, d) in visits(&sv).into_iter().zip(visits(&few)) {
        expected[d] = src[s];
    }
    let out = bytemuck::cast_slice_mut(&mut got);
    copy(
        DType::I32,
        bytemuck::cast_slice(&src),
        &sv,
        DType::I32,
        out,
        &few,
    );
    assert_eq!(got[..13], expected[..13]);
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

/// Converts elements to others of the type `to`, from and to every `step`-th place.
fn converted<S: Element, D: Element>(from: &[S], step: usize) -> Vec<D> {
    let spread = |i: usize| {
        if i.is_multiple_of(step) {
            from[i / step]
        } else {
            S::default()
        }
    };
    let src: Vec<S> = (0..from.len() * step).map(spread).collect();
    let mut dst = vec![D::default(); src.len()];
    let shape = Dims::from_slice(&[from.len()]);
    let view = Strided::new(0, shape, Strides::from_slice(&[step as isize]));
    let (read, written) = (
        bytemuck::cast_slice(&src),
        bytemuck::cast_slice_mut(&mut dst),
    );
    copy(S::DTYPE, read, &view, D::DTYPE, written, &view);
    dst.into_iter().step_by(step).collect()
}

/// Rows of all lengths up to that of two vectors, and one of all values, give what the crate gives for each element alone.
#[test]
fn floats_of_16_bits_are_converted_as_one_by_one() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    // All exponents, and mantissas at and beside what is halfway between two results, or a NaN's.
    let wide: Vec<f32> = (0..u32::from(u16::MAX))
        .flat_map(|high| [0, 1, 0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(high << 16 | low)))
        .chain((0..1 << 20).map(|i: u32| f32::from_bits(i.wrapping_mul(0x9e37_79b9))))
        .collect();
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for step in [1, 2] {
        let halves: Vec<f16> = all.iter().map(|&b| f16::from_bits(b)).collect();
        let brains: Vec<bf16> = all.iter().map(|&b| bf16::from_bits(b)).collect();
        for n in (0..70).chain([all.len()]) {
            let told: Vec<f32> = halves[..n].iter().map(|v| v.to_f32()).collect();
            assert_eq!(bits(&converted(&halves[..n], step)), bits(&told));
            let told: Vec<f32> = brains[..n].iter().map(|v| v.to_f32()).collect();
            assert_eq!(bits(&converted(&brains[..n], step)), bits(&told));
        }
        let narrowed: Vec<f16> = converted(&wide, step);
        let told = wide.iter().map(|&v| f16::from_f32(v));
        assert!(
            told.map(f16::to_bits)
                .eq(narrowed.iter().map(|v| v.to_bits()))
        );
        let narrowed: Vec<bf16> = converted(&wide, step);
        let told = wide.iter().map(|&v| bf16::from_f32(v));
        assert!(
            told.map(bf16::to_bits)
                .eq(narrowed.iter().map(|v| v.to_bits()))
        );
    }
}
