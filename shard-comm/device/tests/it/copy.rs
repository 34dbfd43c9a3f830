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
        // Short rows, those from 320 bytes on, which go part by part, and those of more than 2 KiB, which do not.
        let parts = (318 / size..=320 / size + 64).chain(2047 / size..=2049 / size);
        for n in (1..=20 + 64 / size).chain(parts) {
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

/// Every order of some dims, by turns of Heap.
fn orders(n: usize) -> Vec<Vec<usize>> {
    match n {
        0 => vec![vec![]],
        _ => orders(n - 1)
            .into_iter()
            .flat_map(|order| {
                (0..n).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, n - 1);
                    order
                })
            })
            .collect(),
    }
}

/// Copies `of` elements of type `S` as type `D` in every order of dims, into a destination whose rows have `gap` elements between them.
fn orders_are_kept<S: Element, D: Element + PartialEq>(shape: &[usize], gap: usize) {
    let numel: usize = shape.iter().product();
    let src: Vec<S> = (0..numel)
        .map(|i| S::from_scalar(Scalar::F64((i % 251) as f64)))
        .collect();
    let dense = Strided::contiguous(shape);
    for order in orders(shape.len()) {
        let extents: Dims = order.iter().map(|&d| shape[d]).collect();
        let strides: Strides = order.iter().map(|&d| dense.strides[d]).collect();
        let sv = Strided::new(0, extents.clone(), strides);
        let mut dv = Strided::contiguous(&extents);
        let last = extents[extents.len() - 1];
        for stride in dv.strides.iter_mut().rev().skip(1) {
            *stride = *stride / last as isize * (last + gap) as isize;
        }
        let untouched = D::from_scalar(Scalar::F64(255.0));
        let mut dst = vec![untouched; numel / last * (last + gap)];
        copy(
            S::DTYPE,
            bytemuck::cast_slice(&src),
            &sv,
            D::DTYPE,
            bytemuck::cast_slice_mut(&mut dst),
            &dv,
        );
        let mut at = vec![0; shape.len()];
        let place = |v: &Strided, at: &[usize]| -> usize {
            let steps = at.iter().zip(&v.strides).map(|(&i, &s)| i as isize * s);
            steps.sum::<isize>() as usize
        };
        for (i, row) in dst.chunks(last + gap).enumerate() {
            let mut rest = i;
            for d in (0..at.len() - 1).rev() {
                (at[d], rest) = (rest % extents[d], rest / extents[d]);
            }
            for (k, value) in row[..last].iter().enumerate() {
                at[extents.len() - 1] = k;
                let expected = D::from_scalar(src[place(&sv, &at)].to_scalar());
                assert!(*value == expected, "{shape:?} as {order:?}: {at:?}");
            }
            assert!(row[last..].iter().all(|v| *v == untouched));
        }
    }
}

#[test]
fn short_dims_that_change_places_go_through_tiles_too() {
    for shape in [
        &[18, 3, 6, 2][..],
        &[33, 5, 12, 2],
        &[2, 17, 2, 9],
        &[4, 4, 4, 4],
        &[3, 2, 19, 2, 3],
    ] {
        for gap in [0, 3] {
            orders_are_kept::<f32, f32>(shape, gap);
            orders_are_kept::<f64, f64>(shape, gap);
            orders_are_kept::<bf16, bf16>(shape, gap);
            orders_are_kept::<bf16, f32>(shape, gap);
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
