use shard_kernels::Real;

fn worst<T: Real>(low: f64, high: f64) -> f64 {
    (0..=400_000)
        .map(|i| T::of(low + (high - low) * f64::from(i) / 400_000.0))
        .flat_map(|x| {
            [T::exp_fast::<true>(x), T::exp_fast::<false>(x)]
                .map(|e| ((e.wide() - x.wide().exp()) / x.wide().exp()).abs())
        })
        .fold(0.0, f64::max)
}

#[test]
fn exponentials_are_right_to_two_units() {
    for (low, high) in [(-87.2, 88.3), (-1.0, 1.0)] {
        let error = worst::<f32>(low, high);
        assert!(error < 1.2e-7 * 2.0, "f32: {error:e}");
    }
    for (low, high) in [(-708.2, 709.4), (-1.0, 1.0)] {
        let error = worst::<f64>(low, high);
        assert!(error < 2.3e-16 * 2.0, "f64: {error:e}");
    }
}

#[test]
fn special_values() {
    fn check<T: Real>() {
        let e = T::exp_fast::<true>;
        assert_eq!(
            (e(T::neg_infinity()), e(T::zero()), e(-T::zero())),
            (T::zero(), T::one(), T::one())
        );
        assert_eq!((e(T::of(-1e4)), e(T::min_value())), (T::zero(), T::zero()));
        assert!(e(T::nan()).is_nan());
    }
    check::<f32>();
    check::<f64>();
}
