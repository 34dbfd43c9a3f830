use half::f16;
use proptest::prelude::*;
use shard_device::kernel::{check_fold, fold};
use shard_device::{DType, Element, Monoid, Strided};
use shard_spec::ReduceOp;
use smallvec::smallvec;

fn fold_slices<T: Element>(op: Monoid, dst: &mut [T], src: &[T]) {
    let v = Strided::contiguous(&[src.len()]);
    check_fold(op, T::DTYPE, &v, T::DTYPE, &v).unwrap();
    fold(
        op,
        T::DTYPE,
        bytemuck::cast_slice(src),
        &v,
        T::DTYPE,
        bytemuck::cast_slice_mut(dst),
        &v,
    );
}

#[test]
fn extremes_propagate_nan_from_either_side() {
    for op in [Monoid::MAX, Monoid::MIN] {
        let mut a = [f64::NAN, 1.0];
        fold_slices(op, &mut a, &[1.0, f64::NAN]);
        assert!(a.iter().all(|v| v.is_nan()), "{op}");
    }
}

#[test]
fn lowest_index_wins_ties_and_nan_wins_all() {
    let mut a = [2.0f64, 7.0, 2.0, 3.0, f64::NAN, 9.0, 5.0, 0.0];
    fold_slices(
        Monoid::ArgMax,
        &mut a,
        &[2.0, 5.0, 3.0, 9.0, 8.0, 1.0, f64::NAN, 4.0],
    );
    assert_eq!(a[..4], [2.0, 5.0, 3.0, 9.0]);
    assert!(a[4].is_nan() && a[5] == 9.0 && a[6].is_nan() && a[7] == 4.0);
    let mut b = [4i64, 1];
    fold_slices(Monoid::ArgMin, &mut b, &[4, 0]);
    assert_eq!(b, [4, 0]);
}

#[test]
fn identities_change_nothing() {
    let all = [
        Monoid::SUM,
        Monoid::Op(ReduceOp::Prod),
        Monoid::MAX,
        Monoid::MIN,
        Monoid::Moments,
        Monoid::MaxSumExp,
        Monoid::ArgMax,
        Monoid::ArgMin,
    ];
    for op in all {
        let identity: Vec<f64> = op
            .identity(DType::F64)
            .iter()
            .map(|&s| f64::from_scalar(s))
            .collect();
        let values = [[-3.0, 2.0, 5.0], [f64::NEG_INFINITY, 1.0, 4.0]];
        for value in values {
            let value = &value[..op.width()];
            let mut left = identity.clone();
            fold_slices(op, &mut left, value);
            assert_eq!(left, value, "{op}");
            let mut right = value.to_vec();
            fold_slices(op, &mut right, &identity);
            assert_eq!(right, value, "{op}");
        }
    }
    for (op, start) in [(Monoid::MAX, i32::MIN), (Monoid::MIN, i32::MAX)] {
        assert_eq!(i32::from_scalar(op.identity(DType::I32)[0]), start);
    }
}

#[test]
fn moments_survive_a_large_mean() {
    let parts: [&[f32]; 3] = [&[1e4, 1e4 + 1.0], &[], &[1e4 - 1.0, 1e4 + 2.0, 1e4]];
    let mut total = [0.0f32; 3];
    for part in parts {
        let n = part.len() as f32;
        let mean = if part.is_empty() {
            0.0
        } else {
            part.iter().sum::<f32>() / n
        };
        let m2 = part.iter().map(|v| (v - mean).powi(2)).sum::<f32>();
        fold_slices(Monoid::Moments, &mut total, &[n, mean, m2]);
    }
    assert!((total[1] - 10_000.4).abs() < 1e-2, "{total:?}");
    assert!((total[2] - 5.2).abs() < 1e-2, "{total:?}");
}

#[test]
fn half_sums_round_once_in_single() {
    let v = Strided::contiguous(&[1]);
    let one = [f16::from_f32(2048.0)];
    let mut acc = [0.0f32];
    for value in [one[0], f16::ONE, f16::ONE] {
        fold(
            Monoid::SUM,
            DType::F16,
            bytemuck::cast_slice(&[value]),
            &v,
            DType::F32,
            bytemuck::cast_slice_mut(&mut acc),
            &v,
        );
    }
    assert_eq!(acc, [2050.0]);
}

#[test]
fn an_overlapping_destination_accumulates_in_order() {
    // Three sources on one element, as the adjoint of a broadcast: ((1e16 + 1) - 1e16) differs from other orders.
    let src = [1e16f64, 1.0, -1e16];
    let mut dst = [0.0f64];
    let sv = Strided::contiguous(&[3]);
    let dv = Strided::new(0, smallvec![3], smallvec![0]);
    fold(
        Monoid::SUM,
        DType::F64,
        bytemuck::cast_slice(&src),
        &sv,
        DType::F64,
        bytemuck::cast_slice_mut(&mut dst),
        &dv,
    );
    assert_eq!(dst, [(1e16 + 1.0) - 1e16]);
}

#[test]
fn an_overlapping_destination_keeps_its_order_in_two_dims() {
    // This looks like a transpose, but each element is written several times, from rows that step backwards.
    let src: Vec<f64> = (0..10).map(f64::from).collect();
    let sv = Strided::new(4, smallvec![2, 3], smallvec![1, -1]);
    let dv = Strided::new(2, smallvec![2, 3], smallvec![-1, 1]);
    let mut dst = [0.0f64; 6];
    let v = (DType::F64, bytemuck::cast_slice(&src));
    fold(
        Monoid::SUM,
        v.0,
        v.1,
        &sv,
        v.0,
        bytemuck::cast_slice_mut(&mut dst),
        &dv,
    );
    assert_eq!(dst, [0.0, 5.0, 4.0 + 4.0, 3.0 + 3.0, 2.0, 0.0]);
}

#[test]
fn torn_groups_and_wrong_types_are_refused() {
    let v = Strided::contiguous(&[4]);
    assert!(check_fold(Monoid::Moments, DType::F32, &v, DType::F32, &v).is_err());
    assert!(check_fold(Monoid::ArgMax, DType::F16, &v, DType::F16, &v).is_err());
    assert!(check_fold(Monoid::SUM, DType::F32, &v, DType::F64, &v).is_err());
    assert!(check_fold(Monoid::SUM, DType::BF16, &v, DType::F32, &v).is_ok());
}

proptest! {
    #[test]
    fn max_sum_exp_is_the_log_sum(values in prop::collection::vec(-50.0..50.0f64, 1..20)) {
        let mut total = [f64::NEG_INFINITY, 0.0];
        for &v in &values {
            fold_slices(Monoid::MaxSumExp, &mut total, &[v, 1.0]);
        }
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = values.iter().map(|v| (v - max).exp()).sum();
        prop_assert_eq!(total[0], max);
        prop_assert!((total[1] - sum).abs() <= 1e-12 * sum);
    }
}
