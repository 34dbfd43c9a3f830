use half::{bf16, f16};
use proptest::prelude::*;
use shard_device::kernel::reduce;
use shard_device::{DType, Element, Monoid, Strided, by_tree};
use shard_spec::ReduceOp;

/// Lengths at which a reduction goes another way, with the names that they have in the crate, which asserts that they are these.
const SHORT: usize = 16;
const TILE: usize = 512;
const ROW: usize = 1 << 16;

/// A shape, the strides of the terms, and a view of the destination that visits no element twice.
fn views() -> impl Strategy<Value = (Vec<usize>, Vec<isize>, Strided)> {
    prop::collection::vec(1..7usize, 1..4).prop_flat_map(|shape| {
        let n = shape.len();
        let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
        let flips = prop::collection::vec(any::<bool>(), n);
        let strides = prop::collection::vec(-9..10isize, n);
        (order, flips, strides, 1..3isize).prop_map(move |(order, flips, strides, gap)| {
            let (mut step, mut offset) = (gap, 0);
            let mut steps = vec![0; shape.len()];
            for &d in &order {
                steps[d] = if flips[d] { -step } else { step };
                let reach = (shape[d] as isize - 1) * step;
                offset += if flips[d] { reach } else { 0 };
                step *= shape[d] as isize;
            }
            let dv = Strided::new(offset as usize, shape[..].into(), steps[..].into());
            (shape.clone(), strides, dv)
        })
    })
}

/// The expected reduction of these terms, in `f32`, element by element in the order of the view.
fn expected(shape: &[usize], strides: &[isize], terms: &[(Vec<f32>, usize)]) -> Vec<f32> {
    let mut index = vec![0; shape.len()];
    let mut all = Vec::new();
    for _ in 0..shape.iter().product() {
        let at: isize = index
            .iter()
            .zip(strides)
            .map(|(&i, &s)| i as isize * s)
            .sum();
        let values = terms
            .iter()
            .map(|(v, start)| v[(*start as isize + at) as usize]);
        all.extend(by_tree(values, |a, b| a + b));
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    all
}

fn sum_of<T: Element>(
    terms: &[(Vec<f32>, usize)],
    strides: &[isize],
    dv: &Strided,
    cast: impl Fn(f32) -> T,
) -> Vec<T> {
    let typed: Vec<(Vec<T>, usize)> = (terms.iter())
        .map(|(v, at)| (v.iter().map(|&v| cast(v)).collect(), *at))
        .collect();
    let bytes: Vec<(&[u8], usize)> = (typed.iter())
        .map(|(v, at)| (bytemuck::cast_slice(v), *at))
        .collect();
    let mut dst = vec![T::default(); dv.end().unwrap()];
    let out = bytemuck::cast_slice_mut(&mut dst);
    reduce(Monoid::SUM, T::DTYPE, &bytes, strides, out, dv);
    // The destination in the order of the view: a reduction of one term that holds element numbers tells the places.
    let places = (0..dst.len()).map(|i| i as f32).collect();
    let places = expected(&dv.shape, &dv.strides, &[(places, dv.offset)]);
    places
        .into_iter()
        .map(|place| dst[place as usize])
        .collect()
}

proptest! {
    #[test]
    fn reductions_equal_their_definition(
        (shape, strides, dv) in views(),
        starts in prop::collection::vec(0..5usize, 1..40),
    ) {
        let down: isize = (shape.iter().zip(&strides))
            .map(|(&n, &s)| (n as isize - 1) * s.min(0))
            .sum();
        let terms: Vec<(Vec<f32>, usize)> = (starts.iter().enumerate())
            .map(|(k, &start)| {
                // Large and small values of both signs: every order of adding gives other bits.
                let value = |i: usize| [1e3, 1.0, -1e3, 0.1][(i + k) % 4] * (1 + i % 7) as f32;
                let values = (0..200).map(|i| bf16::from_f32(f16::from_f32(value(i)).to_f32()));
                (values.map(bf16::to_f32).collect(), start + down.unsigned_abs())
            })
            .collect();
        let sums = expected(&shape, &strides, &terms);
        prop_assert_eq!(&sum_of(&terms, &strides, &dv, |v| v), &sums);
        let rounded: Vec<bf16> = sums.iter().map(|&v| bf16::from_f32(v)).collect();
        prop_assert_eq!(sum_of(&terms, &strides, &dv, bf16::from_f32), rounded);
        let rounded: Vec<f16> = sums.iter().map(|&v| f16::from_f32(v)).collect();
        prop_assert_eq!(sum_of(&terms, &strides, &dv, f16::from_f32), rounded);
    }
}

#[test]
fn long_rows_of_many_terms_go_through_tiles() {
    let n = 2 * TILE + 3;
    for count in [5, 8, 9, 23, 64, 101] {
        let terms: Vec<Vec<f64>> = (0..count)
            .map(|k| (0..n).map(|i| (i * 31 + k) as f64 * 0.1).collect())
            .collect();
        let bytes: Vec<(&[u8], usize)> =
            terms.iter().map(|v| (bytemuck::cast_slice(v), 0)).collect();
        let mut dst = vec![0.0f64; n];
        let view = Strided::contiguous(&[n]);
        let out = bytemuck::cast_slice_mut(&mut dst);
        reduce(Monoid::SUM, DType::F64, &bytes, &view.strides, out, &view);
        for (i, &sum) in dst.iter().enumerate() {
            let values = terms.iter().map(|v| v[i]);
            assert_eq!(Some(sum), by_tree(values, |a, b| a + b));
        }
    }
}

#[test]
fn two_terms_in_a_row_are_combined_where_they_lie() {
    for n in [1, 3, 4, SHORT, SHORT + 1, 1000, ROW / 8, ROW / 8 + 1] {
        let [a, b] = [3, 10].map(|by| (0..n + 9).map(|i| (i * by) as f64).collect::<Vec<_>>());
        let terms = [(bytemuck::cast_slice(&a), 1), (bytemuck::cast_slice(&b), 5)];
        // Steps of a dim of one element mean nothing; those of others that are not 1 make it no row.
        for (steps, step) in [([7, 1, 9], 1), ([7, 2, 9], 2), ([7, -1, 9], -1)] {
            let first = if step < 0 { n + 1 } else { 2 };
            let view = Strided::new(first, [1, n, 1][..].into(), steps[..].into());
            let mut dst = vec![-1.0f64; 2 * n + 4];
            let out = bytemuck::cast_slice_mut(&mut dst);
            reduce(Monoid::SUM, DType::F64, &terms, &[4, 1, 0], out, &view);
            let at = |i: usize| first.wrapping_add_signed(i as isize * step);
            for i in 0..n {
                assert_eq!(dst[at(i)], a[1 + i] + b[5 + i], "{i} of {n} by {step}");
                dst[at(i)] = -1.0;
            }
            assert!(dst.iter().all(|&v| v == -1.0), "{n} by {step}");
        }
    }
    // 16 bits are rounded once: 1 + 1/256 lies between two numbers, 1 + 3/512 is nearer to the upper one.
    let [a, b] = [[1.0f32; 2], [1.0 / 256.0, 3.0 / 512.0]].map(|v| v.map(bf16::from_f32));
    let terms = [(bytemuck::cast_slice(&a), 0), (bytemuck::cast_slice(&b), 0)];
    let (view, mut dst) = (Strided::contiguous(&[2]), [bf16::ZERO; 2]);
    let out = bytemuck::cast_slice_mut(&mut dst);
    reduce(Monoid::SUM, DType::BF16, &terms, &[1], out, &view);
    assert_eq!(dst.map(bf16::to_f32), [1.0, 1.0 + 1.0 / 128.0]);
    // No element at all, of terms that have none either.
    let view = Strided::contiguous(&[0]);
    let terms = [(&[][..], 3), (&[][..], 5)];
    reduce(Monoid::SUM, DType::F32, &terms, &[1], &mut [], &view);
}

#[test]
fn truth_of_many_terms_is_that_of_their_pairs() {
    let n = TILE + 5;
    let (any, all) = (Monoid::Op(ReduceOp::Any), Monoid::Op(ReduceOp::All));
    for count in [2, 3, 4, 7] {
        let terms: Vec<Vec<f32>> = (0..count)
            .map(|k| (0..n).map(|i| f32::from((i >> k) % 2 == 0)).collect())
            .collect();
        let bytes: Vec<(&[u8], usize)> =
            terms.iter().map(|v| (bytemuck::cast_slice(v), 0)).collect();
        for (gap, op) in [(1, any), (1, all), (3, any)] {
            let view = Strided::new(0, [n][..].into(), [gap as isize][..].into());
            let mut dst = vec![-1.0f32; gap * n];
            let out = bytemuck::cast_slice_mut(&mut dst);
            reduce(op, DType::F32, &bytes, &[1], out, &view);
            for i in 0..n {
                let mut values = terms.iter().map(|v| v[i] != 0.0);
                let truth = if op == any {
                    values.any(|v| v)
                } else {
                    values.all(|v| v)
                };
                assert_eq!(dst[gap * i], f32::from(truth));
                assert!(dst[gap * i + 1..gap * (i + 1)].iter().all(|&v| v == -1.0));
            }
        }
    }
}

#[test]
fn groups_are_merged_whole() {
    let (a, b) = ([1.0f32, 5.0, 7.0, 2.0], [3.0f32, 9.0, 7.0, 1.0]);
    let mut dst = [0.0f32; 4];
    let view = Strided::contiguous(&[4]);
    let terms = [(bytemuck::cast_slice(&a), 0), (bytemuck::cast_slice(&b), 0)];
    let out = bytemuck::cast_slice_mut(&mut dst);
    reduce(
        Monoid::ArgMax,
        DType::F32,
        &terms,
        &view.strides,
        out,
        &view,
    );
    assert_eq!(dst, [3.0, 9.0, 7.0, 1.0]);
}
