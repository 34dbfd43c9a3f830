//! Derivatives against slopes, precisions against each other, conventions.

use super::{Unary, unary, unary_scaled};
use crate::{Real, View, ViewMut};

/// Maps whose parameters have other cases than the defaults.
const MORE: [Unary; 7] = [
    Unary::LeakyRelu {
        negative_slope: -0.4,
    },
    Unary::Elu { alpha: 1.3 },
    Unary::Softplus {
        beta: 2.0,
        threshold: 3.0,
    },
    Unary::PowScalar { exponent: 2.0 },
    Unary::PowScalar { exponent: -1.0 },
    Unary::PowScalar { exponent: 0.5 },
    Unary::Clamp {
        min: -0.7,
        max: 1.2,
    },
];

fn all() -> impl Iterator<Item = Unary> {
    Unary::ALL.iter().copied().chain(MORE)
}

fn one<T: Real>(op: Unary, order: usize, x: f64) -> f64 {
    let mut y = [T::zero()];
    op.eval(order, &[T::of(x)], &mut y);
    y[0].wide()
}

/// Points of the map's domain away from kinks.
fn points(op: Unary) -> Vec<f64> {
    let positive = [0.13, 0.31, 0.77, 1.37, 2.1, 3.4, 5.3];
    let negative = positive.map(|x| -x - 0.017);
    let mut points = positive.to_vec();
    points.extend(negative);
    points.retain(|&x| !one::<f64>(op, 0, x).is_nan());
    assert!(
        points.len() >= 5,
        "{op:?} is not a number nearly everywhere"
    );
    points
}

#[test]
fn each_derivative_is_the_slope_of_the_one_before() {
    for op in all() {
        for order in 1..=3 {
            for x in points(op) {
                let h = 1e-5;
                let slope = (one::<f64>(op, order - 1, x + h) - one::<f64>(op, order - 1, x - h))
                    / (2.0 * h);
                let got = one::<f64>(op, order, x);
                assert!(
                    (got - slope).abs() < 2e-7 * slope.abs().max(1.0),
                    "{op:?} order {order} at {x}: {got} against {slope}"
                );
            }
        }
    }
}

#[test]
fn single_precision_agrees_with_double() {
    for op in all() {
        for order in 0..=3 {
            for x in points(op) {
                let x = f64::from(x as f32);
                let (got, exact) = (one::<f32>(op, order, x), one::<f64>(op, order, x));
                // Parameters are rounded to f32 first, hence more than one unit in the last place.
                let floor = if exact.abs() < 1e-30 { 1e-30 } else { 0.0 };
                assert!(
                    (got - exact).abs() <= 2.5e-6 * exact.abs() + floor,
                    "{op:?} order {order} at {x}: {got} against {exact}"
                );
            }
        }
    }
}

#[test]
fn values_match_the_documented_forms() {
    // The documented closed forms, evaluated independently in double precision, at 0.5 and -1.5.
    let table = [
        (
            Unary::Gelu,
            0.345_731_230_637_006_56,
            -0.100_210_801_903_287_13,
        ),
        (
            Unary::Silu,
            0.311_229_665_600_927_3,
            -0.273_638_285_709_534_5,
        ),
        (
            Unary::Tanh,
            0.462_117_157_260_009_74,
            -0.905_148_253_644_866_4,
        ),
        (
            Unary::Expm1,
            0.648_721_270_700_128_2,
            -0.776_869_839_851_570_2,
        ),
        (Unary::Elu { alpha: 1.0 }, 0.5, -0.776_869_839_851_570_2),
        (Unary::Hardswish, 0.291_666_666_666_666_7, -0.375),
        (Unary::Hardsigmoid, 0.583_333_333_333_333_4, 0.25),
        (Unary::Softsign, 0.333_333_333_333_333_3, -0.6),
        (
            Unary::LogSigmoid,
            -0.474_076_984_180_106_63,
            -1.701_413_277_982_752_4,
        ),
        (
            Unary::GeluTanh,
            0.345_714_009_825_143_94,
            -0.100_428_423_019_767_07,
        ),
        (
            Unary::Mish,
            0.375_245_211_304_895_1,
            -0.298_099_742_166_806_74,
        ),
        (
            Unary::Selu,
            0.525_350_493_677_740_2,
            -1.365_814_353_367_252_7,
        ),
    ];
    for (op, at_half, at_minus) in table {
        for (x, expected) in [(0.5, at_half), (-1.5, at_minus)] {
            let got = one::<f64>(op, 0, x);
            assert!(
                (got - expected).abs() < 1e-12,
                "{op:?} at {x}: {got} against {expected}"
            );
        }
    }
}

#[test]
fn kinks_and_special_values_follow_pytorch() {
    let slope = |op, x| one::<f32>(op, 1, x);
    assert_eq!(
        (
            slope(Unary::Relu, 0.0),
            slope(Unary::Abs, 0.0),
            slope(
                Unary::LeakyRelu {
                    negative_slope: 0.5
                },
                0.0
            )
        ),
        (0.0, 0.0, 0.5)
    );
    assert_eq!(
        (
            slope(Unary::Elu { alpha: 2.0 }, 0.0),
            slope(Unary::Hardsigmoid, 3.0),
            slope(Unary::Hardsigmoid, -3.0)
        ),
        (2.0, 0.0, 0.0)
    );
    assert_eq!(
        (slope(Unary::Hardswish, 3.0), slope(Unary::Hardswish, -3.0)),
        (1.0, 0.0)
    );
    let clamp = Unary::Clamp {
        min: -1.0,
        max: 1.0,
    };
    assert_eq!(
        (slope(clamp, 1.0), slope(clamp, -1.0), slope(clamp, 1.5)),
        (1.0, 1.0, 0.0)
    );
    assert_eq!(slope(Unary::Sqrt, 0.0), f64::INFINITY);
    assert_eq!(
        (
            slope(Unary::PowScalar { exponent: 0.0 }, 0.0),
            slope(Unary::PowScalar { exponent: 1.0 }, 0.0)
        ),
        (0.0, 1.0)
    );
    for op in [
        Unary::Relu,
        clamp,
        Unary::Gelu,
        Unary::Silu,
        Unary::Hardswish,
        Unary::Elu { alpha: 1.0 },
        Unary::Log,
    ] {
        assert!(
            one::<f32>(op, 0, f64::NAN).is_nan() && one::<f64>(op, 0, f64::NAN).is_nan(),
            "{op:?}"
        );
    }
    let big = |op, x| one::<f32>(op, 0, x);
    assert_eq!(
        (
            big(Unary::Sigmoid, -200.0),
            big(Unary::Sigmoid, 200.0),
            big(Unary::Exp, 100.0)
        ),
        (0.0, 1.0, f64::INFINITY)
    );
    assert_eq!(
        (
            big(Unary::LogSigmoid, -200.0),
            big(
                Unary::Softplus {
                    beta: 1.0,
                    threshold: 20.0
                },
                100.0
            )
        ),
        (-200.0, 100.0)
    );
    assert_eq!(
        (
            one::<f32>(Unary::Silu, 1, 1e4),
            one::<f32>(Unary::Silu, 1, -1e4)
        ),
        (1.0, 0.0)
    );
}

#[test]
fn log1p_and_expm1_do_not_cancel_near_zero_and_have_pytorchs_special_values() {
    for (op, x, expected) in [
        (Unary::Log1p, 1e-10, 9.999_999_999_5e-11),
        (Unary::Log1p, -0.5, -std::f64::consts::LN_2),
        (Unary::Log1p, 1.5, 0.916_290_731_874_155_1),
        (Unary::Expm1, 1e-10, 1.000_000_000_05e-10),
        (Unary::Expm1, -1e-10, -9.999_999_999_5e-11),
    ] {
        let (single, double) = (one::<f32>(op, 0, x), one::<f64>(op, 0, x));
        assert!(
            (double - expected).abs() <= 1e-15 * expected.abs(),
            "{op:?} of {x}: {double}"
        );
        assert!(
            (single - expected).abs() <= 1.2e-7 * expected.abs(),
            "{op:?} of {x}: {single}"
        );
    }
    for (at_minus_one, below, infinite) in [
        (
            one::<f32>(Unary::Log1p, 0, -1.0),
            one::<f32>(Unary::Log1p, 0, -1.5),
            one::<f32>(Unary::Log1p, 0, f64::INFINITY),
        ),
        (
            one::<f64>(Unary::Log1p, 0, -1.0),
            one::<f64>(Unary::Log1p, 0, -1.5),
            one::<f64>(Unary::Log1p, 0, f64::INFINITY),
        ),
    ] {
        assert_eq!((at_minus_one, infinite), (f64::NEG_INFINITY, f64::INFINITY));
        assert!(below.is_nan());
    }
    assert_eq!(one::<f32>(Unary::Expm1, 0, f64::NEG_INFINITY), -1.0);
}

#[test]
fn strided_and_scaled_maps() {
    let x: Vec<f64> = (0..1400).map(|i| f64::from(i) * 0.01 - 7.0).collect();
    let g: Vec<f64> = (0..1400).map(|i| f64::from(i % 7)).collect();
    let (xv, gv) = (
        View::contiguous(&x, &[700, 2]),
        View::contiguous(&g, &[700, 2]),
    );
    let mut out = vec![0.0; 1400];
    let mut back = ViewMut::contiguous(&mut out, &[2, 700]);
    unary_scaled(
        Unary::Tanh,
        1,
        &xv.permute(&[1, 0]),
        &gv.permute(&[1, 0]),
        &mut back,
    );
    for i in 0..1400 {
        let (r, c) = (i / 2, i % 2);
        let expected = g[i] * (1.0 - x[i].tanh().powi(2));
        assert!((out[c * 700 + r] - expected).abs() < 1e-14);
    }
    unary(
        Unary::Square,
        0,
        &xv,
        &mut ViewMut::contiguous(&mut out, &[2, 700]).permute(&[1, 0]),
    );
    assert_eq!(out[700], x[1] * x[1]);
}
