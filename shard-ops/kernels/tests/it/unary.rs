//! Derivatives against slopes, precisions against each other, conventions.

use half::bf16;
use shard_kernels::unary::{Unary, unary, unary_halves, unary_scaled};
use shard_kernels::{Real, View, ViewMut};

/// Maps whose parameters have other cases than the defaults.
const MORE: [Unary; 11] = [
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
    Unary::Celu { alpha: 0.6 },
    Unary::Logit { eps: 0.2 },
    Unary::Threshold {
        threshold: -0.6,
        value: -1.3,
    },
    Unary::Hardtanh {
        min_val: -0.7,
        max_val: 1.2,
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
    let positive = [0.13, 0.31, 0.43, 0.77, 0.91, 1.37, 2.1, 3.4, 5.3, 7.7];
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

/// Angles of many turns, beside small ones and by themselves, in single precision.
#[test]
fn large_angles_keep_their_digits() {
    let angles = [
        0.5f32,
        -0.0,
        std::f32::consts::PI,
        9e5,
        -2e6,
        1e30,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let mut many: Vec<f32> = (0..999).map(|i| (i as f32 * 0.731).powi(2)).collect();
    many[7] = 1e30;
    for op in [Unary::Sin, Unary::Cos, Unary::Log] {
        let mut beside = vec![0.0; many.len()];
        op.eval(0, &many, &mut beside);
        for (x, beside) in many.iter().zip(beside) {
            let mut alone = [0.0];
            op.eval(0, &[*x], &mut alone);
            assert_eq!(alone[0], beside, "{op:?} of {x}");
        }
        many.extend([0.0, 1e-40]);
    }
    for op in [Unary::Sin, Unary::Cos, Unary::Tan] {
        for order in [0, 1] {
            let (mut all, mut wide) = ([0.0; 9], [0.0; 9]);
            op.eval(order, &angles, &mut all);
            op.eval(order, &angles.map(f64::from), &mut wide);
            for (i, (x, exact)) in all.into_iter().zip(wide).enumerate() {
                let mut alone = [0.0];
                op.eval(order, &angles[i..=i], &mut alone);
                assert_eq!(
                    x.to_bits(),
                    alone[0].to_bits(),
                    "{op:?} {order} of {}",
                    angles[i]
                );
                {
                    let exact = exact as f32;
                    let is_near = (x - exact).abs() <= exact.abs() * f32::EPSILON;
                    let signs = x.is_sign_negative() == exact.is_sign_negative();
                    assert!(
                        is_near && signs || x.is_nan() && exact.is_nan(),
                        "{op:?} {order} of {}: {x} for {exact}",
                        angles[i]
                    );
                }
            }
        }
    }
}

/// Against double precision, over the whole range of numbers and near 0, and of what is none.
#[test]
fn maps_in_single_precision_keep_their_digits() {
    let mut x: Vec<f32> = (-400_000..=400_000).map(|i| i as f32 / 4e3).collect();
    x.extend((0..2550).map(|i| f32::from_bits(i * 841_813)));
    x.extend((0..2550).map(|i| -f32::from_bits(i * 841_813)));
    x.extend((0..40_000).map(|i| 0.9 + i as f32 / 2e5));
    // Near multiples of a quarter of a turn, and where angles become large.
    x.extend((0..22_000).map(|i| (f64::from(i) * std::f64::consts::FRAC_PI_2) as f32));
    x.extend((0..40_000).map(|i| 30_000.0 + i as f32 / 8.0));
    x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0]);
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let (mut got, mut exact) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let (beta, threshold) = (1.0, 20.0);
    let softplus = Unary::Softplus { beta, threshold };
    for (op, order, nearly_zero) in [
        (Unary::Sigmoid, 0, 0.0),
        (Unary::Sigmoid, 1, 0.0),
        (Unary::Silu, 0, 0.0),
        // It is 0 at -1.278.
        (Unary::Silu, 1, 1e-7),
        (Unary::Tanh, 0, 0.0),
        // In double precision it is `1 - tanh²`.
        (Unary::Tanh, 1, 2e-16),
        (Unary::Exp, 0, 0.0),
        (Unary::Log, 0, 0.0),
        (Unary::Log1p, 0, 0.0),
        (Unary::Expm1, 0, 0.0),
        (Unary::Elu { alpha: 1.5 }, 0, 0.0),
        (Unary::Elu { alpha: 1.5 }, 1, 0.0),
        (Unary::GeluTanh, 0, 2e-8),
        (Unary::GeluTanh, 1, 2e-7),
        (Unary::Mish, 0, 0.0),
        (Unary::Mish, 1, 1e-7),
        (Unary::Rsqrt, 0, 0.0),
        (Unary::Rsqrt, 1, 0.0),
        (Unary::Hardswish, 0, 0.0),
        (Unary::Hardswish, 1, 1e-7),
        (Unary::Hardsigmoid, 0, 0.0),
        (Unary::Atan, 0, 0.0),
        (Unary::Tan, 0, 0.0),
        (Unary::LogSigmoid, 0, 0.0),
        (Unary::LogSigmoid, 1, 0.0),
        (Unary::Erf, 0, 0.0),
        (Unary::Sin, 0, 0.0),
        (Unary::Sin, 1, 0.0),
        (Unary::Cos, 0, 0.0),
        (Unary::Cos, 1, 0.0),
        (softplus, 0, 0.0),
        (softplus, 1, 0.0),
    ] {
        op.eval(order, &x, &mut got);
        op.eval(order, &wide, &mut exact);
        for ((x, got), exact) in x.iter().zip(&got).zip(&exact) {
            let off = (f64::from(*got) - exact).abs();
            // Below the smallest normal exponential there is none.
            let most = 4.8e-7 * exact.abs() + nearly_zero + 1.3e-36;
            // What is beyond the largest number is infinite.
            let same = *got == *exact as f32 || got.is_nan() && exact.is_nan();
            assert!(
                same || off <= most,
                "{op:?} {order} of {x}: {got} for {exact}"
            );
        }
    }
}

/// Down to the smallest number, up to the largest, and beyond both.
#[test]
fn exponentials_and_logarithms_reach_as_far_as_numbers() {
    let x = [-88.0f32, -95.0, -103.0, -103.9, 88.0, 88.7];
    let mut y = [0.0; 6];
    Unary::Exp.eval(0, &x, &mut y);
    for (x, y) in x.iter().zip(y) {
        let exact = f64::from(*x).exp();
        let most = 2.4e-7 * exact + f64::from(f32::from_bits(1)) / 2.0;
        assert!((f64::from(y) - exact).abs() <= most, "{y} for {exact}");
    }
    let ends = [-104.5, f32::MIN, 88.8, f32::MAX, 0.0, f32::NAN];
    Unary::Exp.eval(0, &ends, &mut y);
    assert_eq!(y[..5], [0.0, 0.0, f32::INFINITY, f32::INFINITY, 1.0]);
    assert!(y[5].is_nan());
    Unary::Log1p.eval(0, &[0.0, -0.0, -1.0, -1.5, 1e-40, f32::INFINITY], &mut y);
    assert_eq!(y[..3], [0.0, 0.0, f32::NEG_INFINITY]);
    assert!(y[1].is_sign_negative() && y[3].is_nan());
    assert_eq!(y[4..], [1e-40, f32::INFINITY]);
}

/// Against double precision, all over the line: vectors with ends, the tail as far as single precision reaches, and beyond.
#[test]
fn gelu_in_single_precision_keeps_its_digits() {
    let x: Vec<f32> = (-130_001..=60_000).map(|i| i as f32 / 1e4).collect();
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let (mut got, mut exact) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    Unary::Gelu.eval(0, &x, &mut got);
    Unary::Gelu.eval(0, &wide, &mut exact);
    let near = |got: &[f32], exact: &[f64]| {
        for ((x, got), exact) in x.iter().zip(got).zip(exact) {
            let off = (f64::from(*got) - exact).abs();
            assert!(off <= 1.3e-6 * exact.abs(), "{got} for {exact} at {x}");
        }
    };
    near(&got, &exact);
    Unary::Gelu.eval(1, &x, &mut got);
    Unary::Gelu.eval(1, &wide, &mut exact);
    near(&got, &exact);
    let ends = [
        -14.0,
        -1e30,
        0.0,
        -0.0,
        1e-40,
        20.0,
        f32::INFINITY,
        f32::NAN,
    ];
    let mut y = [1.0; 8];
    Unary::Gelu.eval(0, &ends, &mut y);
    assert_eq!(y[..7], [0.0, 0.0, 0.0, 0.0, 0.5e-40, 20.0, f32::INFINITY]);
    assert!(y[7].is_nan() && y[3].is_sign_negative());
    Unary::Gelu.eval(1, &ends, &mut y);
    assert_eq!([y[0], y[1], y[5]], [0.0, 0.0, 1.0]);
    assert!(y[2..5].iter().all(|y| (y - 0.5).abs() < 1.3e-7), "{y:?}");
    assert!(y[6].is_nan() && y[7].is_nan());
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
            Unary::Asinh,
            0.481_211_825_059_603_45,
            -1.194_763_217_287_109_3,
        ),
        (
            Unary::Erfc,
            0.479_500_122_186_953_5,
            1.966_105_146_475_310_8,
        ),
        (
            Unary::Tanhshrink,
            0.037_882_842_739_990_24,
            -0.594_851_746_355_133_5,
        ),
        (
            Unary::Exp2,
            std::f64::consts::SQRT_2,
            0.353_553_390_593_273_8,
        ),
        (
            Unary::Lgamma,
            0.572_364_942_924_700_1,
            0.860_047_015_376_481_1,
        ),
        (
            Unary::Digamma,
            -1.963_510_026_021_423_5,
            0.703_156_640_645_243_1,
        ),
        (
            Unary::Trigamma,
            4.934_802_200_544_679,
            9.379_246_644_989_124,
        ),
        (
            Unary::Sinc,
            std::f64::consts::FRAC_2_PI,
            -0.212_206_590_789_193_78,
        ),
        (Unary::I0, 1.063_483_370_741_323_4, 1.646_723_189_772_890_7),
        (
            Unary::I0e,
            0.645_035_270_449_150_1,
            0.367_433_609_054_158_34,
        ),
        (
            Unary::I1,
            0.257_894_305_390_896_36,
            -0.981_666_428_577_907_9,
        ),
        (
            Unary::I1e,
            0.156_420_803_184_871_73,
            -0.219_039_387_420_925_74,
        ),
        (Unary::Softshrink { lambd: 0.2 }, 0.3, -1.3),
        (Unary::Frac, 0.5, -0.5),
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

/// At the poles, at 0, at the ends of the line, and where numbers are small.
#[test]
fn gamma_functions_and_sinc_are_pytorchs_at_their_poles() {
    let at = |op, x| one::<f64>(op, 0, x);
    let infinity = f64::INFINITY;
    for (op, x, expected) in [
        (Unary::Lgamma, 0.0, infinity),
        (Unary::Lgamma, -3.0, infinity),
        (Unary::Lgamma, -infinity, infinity),
        (Unary::Lgamma, 2.0, 0.0),
        (Unary::Digamma, 0.0, -infinity),
        (Unary::Digamma, -0.0, infinity),
        (Unary::Digamma, infinity, infinity),
        (Unary::Trigamma, 0.0, infinity),
        (Unary::Trigamma, -2.0, infinity),
        (Unary::Trigamma, infinity, 0.0),
        (Unary::Sinc, 0.0, 1.0),
        (Unary::Sinc, 3.0, 0.0),
    ] {
        let got = at(op, x);
        let same = got == expected || (got - expected).abs() < 1e-16;
        assert!(same, "{op:?} at {x}: {got} is not {expected}");
    }
    assert!(at(Unary::Digamma, -2.0).is_nan());
    for op in [Unary::Lgamma, Unary::Digamma, Unary::Trigamma, Unary::Sinc] {
        assert!(at(op, f64::NAN).is_nan(), "{op:?}");
        // Both sides of where a series takes over agree.
        for order in 0..=3 {
            for x in [1.5 / std::f64::consts::PI, 14.0, 13.0] {
                let [below, above] = [x - 1e-12, x + 1e-12].map(|x| one::<f64>(op, order, x));
                let most = 1e-9 * below.abs().max(1e-3);
                assert!((below - above).abs() < most, "{op:?} {order} at {x}");
            }
        }
    }
    assert_eq!(one::<f64>(Unary::Sinc, 1, 0.0), 0.0);
}

/// PyTorch's numbers; of Bessel functions, of which PyTorch has nine digits, mpmath's.
#[test]
fn functions_of_the_normal_and_bessel_functions_are_known_ones() {
    let infinity = f64::INFINITY;
    for (op, x, expected) in [
        (Unary::Erfcx, -3.3, 107_274.435_932_814_36),
        (Unary::Erfcx, 0.3, 0.734_599_334_567_655_4),
        (Unary::Erfcx, 5.9, 0.094_307_136_148_327_03),
        (Unary::Erfcx, 6.1, 0.091_294_300_368_683_64),
        (Unary::Erfcx, 1e9, 5.641_895_835_477_563e-10),
        (Unary::Erfcx, infinity, 0.0),
        (Unary::Ndtr, -1.0, 0.158_655_253_931_457_02),
        // Where PyTorch has 0, SciPy's.
        (Unary::Ndtr, -30.0, 4.906_713_927_147_908e-198),
        (Unary::Ndtr, 5.0, 0.999_999_713_348_428_2),
        (Unary::LogNdtr, -1e5, -5_000_000_012.431_865),
        (Unary::LogNdtr, -30.0, -454.321_243_956_343_27),
        (Unary::LogNdtr, -1.0, -1.841_021_645_009_264),
        (Unary::LogNdtr, 1.7, -0.045_589_029_170_068_934),
        (Unary::LogNdtr, 9.0, -1.128_588_405_953_829_5e-19),
        (Unary::LogNdtr, infinity, 0.0),
        (Unary::LogNdtr, -infinity, -infinity),
        (Unary::Ndtri, 1e-300, -37.047_096_299_361_2),
        (Unary::Ndtri, 0.2, -0.841_621_233_572_914_2),
        (Unary::Ndtri, 0.500_000_1, 2.506_628_273_311_648e-7),
        (Unary::Ndtri, 0.99, 2.326_347_874_040_840_8),
        (Unary::Ndtri, 1.0 - 1e-12, 7.034_486_910_047_836),
        (Unary::Ndtri, 0.0, -infinity),
        (Unary::Ndtri, 1.0, infinity),
        (Unary::BesselJ0, -7.3, 0.288_216_947_635_014_4),
        (Unary::BesselJ0, 40.0, 0.007_366_890_584_236_952),
        (Unary::BesselJ1, -7.3, -0.082_570_430_493_257_83),
        (Unary::BesselJ1, 0.0, 0.0),
        (Unary::BesselY0, 0.4, -0.606_024_568_427_009_6),
        (Unary::BesselY0, 0.0, -infinity),
        (Unary::BesselY1, 3.0, 0.324_674_424_791_8),
        (Unary::BesselY1, 40.0, -0.005_793_505_821_549_509),
    ] {
        let got = one::<f64>(op, 0, x);
        let is_near = got == expected || (got / expected - 1.0).abs() < 3e-13;
        assert!(is_near, "{op:?} at {x}: {got} is not {expected}");
    }
    let all = [
        Unary::Erfcx,
        Unary::Ndtr,
        Unary::LogNdtr,
        Unary::Ndtri,
        Unary::BesselJ0,
        Unary::BesselY1,
    ];
    for op in all {
        assert!(one::<f64>(op, 0, f64::NAN).is_nan(), "{op:?}");
    }
    assert!(
        one::<f64>(Unary::Ndtri, 0, -0.1).is_nan() && one::<f64>(Unary::Ndtri, 0, 1.1).is_nan()
    );
    // Both sides of where another formula takes over agree, and nothing far away is no number.
    for (op, at) in [
        (Unary::Erfcx, 6.0),
        (Unary::LogNdtr, -1.0),
        (Unary::Ndtri, 0.25),
    ] {
        for order in 0..=3 {
            let [below, above] = [at - 1e-12, at + 1e-12].map(|x| one::<f64>(op, order, x));
            let off = (below / above - 1.0).abs();
            assert!(off < 1e-8, "{op:?} {order}: {below} {above}");
        }
    }
    for x in [-1e300, -1e9, -50.0, 50.0, 1e300] {
        for order in 0..=1 {
            let (low, high) = (
                one::<f64>(Unary::LogNdtr, order, x),
                one::<f64>(Unary::Erfcx, order, x.abs()),
            );
            assert!(
                !low.is_nan() && !high.is_nan(),
                "{order} at {x}: {low} {high}"
            );
        }
    }
    let slope = one::<f64>(Unary::LogNdtr, 2, -1e9);
    assert!((slope + 1.0).abs() < 1e-9, "{slope}");
}

/// By both series, of both signs, at 0, and where only the scaled ones are numbers.
#[test]
fn bessel_functions_are_scipys_everywhere() {
    let at = |op, x| one::<f64>(op, 0, x);
    for (op, x, expected) in [
        (Unary::I0, 30.0, 781_672_297_823.977_5),
        (Unary::I0e, 30.0, 0.073_145_946_482_237_3),
        (Unary::I1, 30.0, 768_532_038_938.956_9),
        (Unary::I1e, 30.0, 0.071_916_330_598_647_55),
        (Unary::I0e, -712.0, 0.014_953_620_962_177_634),
        (Unary::I1e, -712.0, -0.014_943_116_131_474_008),
        (Unary::I0, 0.0, 1.0),
        (Unary::I0e, 0.0, 1.0),
        (Unary::I1, 0.0, 0.0),
        (Unary::I1e, 0.0, 0.0),
        (Unary::I0e, f64::INFINITY, 0.0),
    ] {
        let got = at(op, x);
        let off = (got - expected).abs();
        assert!(off <= 2e-15 * expected.abs(), "{op:?} at {x}: {got}");
    }
    assert_eq!(at(Unary::I0, f64::NEG_INFINITY), f64::INFINITY);
    assert_eq!(at(Unary::I1, f64::NEG_INFINITY), f64::NEG_INFINITY);
    // The exponential overflows before.
    assert!((at(Unary::I0, 712.0).ln() - 712.0 - at(Unary::I0e, 712.0).ln()).abs() < 1e-12);
    for op in [Unary::I0, Unary::I0e, Unary::I1, Unary::I1e] {
        assert!(at(op, f64::NAN).is_nan(), "{op:?}");
        for order in 0..=3 {
            let [below, above] = [25.0 - 1e-9, 25.0].map(|x| one::<f64>(op, order, x));
            let off = (below - above).abs();
            assert!(off < 1e-8 * above.abs(), "{op:?} {order}: {below} {above}");
            // Magnitudes are even; derivatives of one are odd.
            let odd = (order + usize::from(matches!(op, Unary::I1 | Unary::I1e))) % 2 == 1;
            let (left, right) = (one::<f64>(op, order, -1.7), one::<f64>(op, order, 1.7));
            assert_eq!(left, if odd { -right } else { right }, "{op:?} {order}");
        }
    }
    assert_eq!(one::<f64>(Unary::I0e, 1, 0.0), 0.0);
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
        [1.5, 1.0, 0.5, -1.0, f64::NAN].map(|x| slope(clamp, x)),
        [0.0, 0.0, 1.0, 0.0, 0.0]
    );
    // What has no bound on a side passes however far it is there.
    let infinity = f64::INFINITY;
    for (min, max) in [(-infinity, 1.0), (-1.0, infinity), (-infinity, infinity)] {
        let clamp = Unary::Clamp { min, max };
        let expected = [-infinity, infinity].map(|x| f64::from(x == min || x == max));
        assert_eq!([-infinity, infinity].map(|x| slope(clamp, x)), expected);
        let single = [-infinity, infinity].map(|x| one::<f32>(clamp, 1, x));
        assert_eq!(single, expected);
    }
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
fn roundings_go_where_pytorchs_go() {
    let of = |op| [-2.5f32, -1.5, -0.5, 0.5, 1.5, 2.4].map(|x| one::<f32>(op, 0, x.into()));
    assert_eq!(of(Unary::Round), [-2.0, -2.0, 0.0, 0.0, 2.0, 2.0]);
    assert_eq!(of(Unary::Ceil), [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(of(Unary::Trunc), [-2.0, -1.0, 0.0, 0.0, 1.0, 2.0]);
    let to = |decimals, x| one::<f64>(Unary::RoundDecimals { decimals }, 0, x);
    assert_eq!((to(2.0, 0.126), to(-2.0, 1250.0)), (0.13, 1200.0));
    assert_eq!((to(0.0, 2.5), to(-1.0, -25.0)), (2.0, -20.0));
}

#[test]
fn bounds_and_what_lies_outside_of_a_domain_follow_pytorch() {
    let slope = |op, x| one::<f64>(op, 1, x);
    let bounds = Unary::Hardtanh {
        min_val: -1.0,
        max_val: 1.0,
    };
    assert_eq!((slope(bounds, 1.0), slope(bounds, 0.9)), (0.0, 1.0));
    assert_eq!(
        (slope(Unary::Relu6, 0.0), slope(Unary::Relu6, 6.0)),
        (0.0, 0.0)
    );
    assert_eq!(
        [bounds, Unary::Relu6].map(|map| slope(map, f64::NAN)),
        [1.0; 2]
    );
    let [hard, soft] = [
        Unary::Hardshrink { lambd: 0.5 },
        Unary::Softshrink { lambd: 0.5 },
    ];
    assert_eq!((slope(hard, 0.5), slope(soft, -0.5)), (0.0, 0.0));
    assert!(one::<f64>(soft, 0, f64::NAN).is_nan() && one::<f64>(hard, 0, f64::NAN).is_nan());
    let logit = |eps, order, x| one::<f64>(Unary::Logit { eps }, order, x);
    assert!(logit(-1.0, 0, 1.5).is_nan() && logit(-1.0, 1, 1.5).is_nan());
    assert_eq!(logit(-1.0, 0, 1.0), f64::INFINITY);
    assert_eq!(
        (logit(0.25, 0, 0.0), logit(0.25, 1, 0.0)),
        ((1f64 / 3.0).ln(), 0.0)
    );
    assert!(one::<f32>(Unary::Acosh, 0, 0.5).is_nan() && one::<f32>(Unary::Asin, 0, 1.5).is_nan());
    assert!((one::<f32>(Unary::Erfc, 0, 5.0) / 1.537_459_794_428_035e-12 - 1.0).abs() < 1e-6);
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

/// Also where a run begins or ends within a word of two numbers.
#[test]
fn maps_of_bf16_are_those_of_f32_rounded_once() {
    let all_numbers: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let by: Vec<bf16> = all_numbers.iter().rev().copied().collect();
    let wide = |of: &[bf16]| of.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
    let same = |got: bf16, y: f32| {
        let y = bf16::from_f32(y);
        got.to_bits() == y.to_bits() || got.is_nan() && y.is_nan()
    };
    let mut written = [0, 0];
    // All bits of it are set: to round it as a number would give a zero.
    let value = f64::from_bits(u64::MAX >> 1);
    for op in all().chain([Unary::AddScalar { value }]) {
        for cut in [0..1 << 16, 1..1 << 16, 0..(1 << 16) - 1, 5..10, 7..8, 3..3] {
            let (x, g) = (&all_numbers[cut.clone()], &by[cut.clone()]);
            let mut y = vec![0.0; cut.len()];
            let mut out = vec![bf16::ONE; cut.len()];
            if unary_halves(op, x, None, &mut out) {
                op.eval(0, &wide(x), &mut y);
                let wrong = (0..y.len()).find(|&i| !same(out[i], y[i]));
                assert_eq!(wrong.map(|i| (x[i], out[i], y[i])), None, "{op:?} {cut:?}");
                written[0] += 1;
            }
            if unary_halves(op, x, Some(g), &mut out) {
                op.eval(1, &wide(x), &mut y);
                y.iter_mut().zip(wide(g)).for_each(|(y, g)| *y *= g);
                let wrong = (0..y.len()).find(|&i| !same(out[i], y[i]));
                assert_eq!(
                    wrong.map(|i| (x[i], g[i], out[i], y[i])),
                    None,
                    "{op:?}' {cut:?}"
                );
                written[1] += 1;
            }
        }
    }
    assert!(written[0] > 6 * 30 && written[1] > 6 * 20, "{written:?}");
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
