//! Functions that are sums of series, against mpmath's numbers; and steps from number to number.

use half::f16;
use shard_kernels::pointwise::{Binary, binary_lines, next_halves};
use shard_kernels::unary::Unary;
use shard_kernels::{View, ViewMut};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn one(op: Unary, order: usize, x: f64) -> f64 {
    let mut y = [9.0];
    op.eval(order, &[x], &mut y);
    y[0]
}

fn of_two(op: Binary, a: f64, b: f64) -> f64 {
    let mut y = [9.0];
    binary_lines(op, &[a], &[b], &mut y);
    y[0]
}

fn assert_near(got: f64, expected: f64, off: f64, what: &str) {
    let is_near =
        got == expected || got.is_nan() && expected.is_nan() || (got / expected - 1.0).abs() < off;
    assert!(is_near, "{what}: {got} is not {expected}");
}

#[test]
fn derivatives_of_the_gamma_functions_logarithm_are_known_of_all_orders() {
    for (n, x, expected) in [
        (0.0, 1.5, 0.036_489_973_978_576_52),
        (2.0, 1.5, -0.828_796_644_234_32),
        (2.0, -1.5, -0.236_204_051_641_727_4),
        (3.0, -0.25, 1_555.763_312_534_851),
        (5.0, 7.0, 0.002_009_493_175_049_029_3),
        (20.0, 3.0, -233_141_556.112_256_82),
        (100.0, 12.0, -9.393_593_619_882_782e48),
        (100.0, 0.5, -2.366_100_660_490_897e188),
        (2.0, 1e-3, -2_000_000_002.397_632_1),
        (7.0, -40.3, 76_905_684.333_220_53),
        (4.0, 1e8, -6.000_000_120_000_001e-32),
        (2.0, -1e-20, 2e60),
        (2.0, 0.0, -INF),
        (3.0, -4.0, INF),
        (2.0, INF, 0.0),
        (2.0, NAN, NAN),
    ] {
        let got = one(Unary::Polygamma { n }, 0, x);
        assert_near(got, expected, 2e-14, &format!("polygamma {n} at {x}"));
    }
}

#[test]
fn falling_bessel_functions_are_known_and_join() {
    for (n, x, plain, scaled) in [
        (0, 1e-300, 690.891_459_413_872_1, 690.891_459_413_872_1),
        (0, 1e-3, 7.023_688_800_562_382, 7.030_716_002_378_251),
        (0, 0.7, 0.660_519_859_915_101_6, 1.330_123_656_242_055_8),
        (0, 1.999, 0.114_033_830_589_232_92, 0.841_760_190_189_183_4),
        (0, 2.001, 0.113_754_098_736_684_63, 0.841_376_372_873_540_3),
        (0, 9.0, 5.088_131_295_645_924_6e-5, 0.412_295_549_231_418_1),
        (0, 24.9, 3.836_096_520_989_492e-12, 0.249_932_150_154_024_73),
        (0, 25.1, 3.128_312_714_321_117e-12, 0.248_943_995_463_287_52),
        (
            0,
            100.0,
            4.656_628_229_175_902e-45,
            0.125_175_621_659_126_57,
        ),
        (1, 1e-300, 1e300, 1e300),
        (1, 1e-3, 999.996_238_156_085_6, 1_000.996_734_559_068_4),
        (1, 0.7, 1.050_283_535_312_918, 2.115_011_312_848_052_3),
        (1, 1.999, 0.140_049_842_077_109_66, 1.033_801_820_860_028),
        (1, 2.001, 0.139_682_188_301_767_57, 1.033_152_161_140_363_8),
        (1, 9.0, 5.363_701_637_945_195e-5, 0.434_625_245_347_434_7),
        (1, 24.9, 3.912_382_436_256_763e-12, 0.254_902_385_580_817_07),
        (1, 25.1, 3.190_032_318_604_266e-12, 0.253_855_500_895_056_54),
        (
            1,
            100.0,
            4.679_853_735_636_909_5e-45,
            0.125_799_950_479_578_54,
        ),
    ] {
        let maps = match n {
            0 => [Unary::ModifiedBesselK0, Unary::ScaledModifiedBesselK0],
            _ => [Unary::ModifiedBesselK1, Unary::ScaledModifiedBesselK1],
        };
        // The exponential has the rounding of its argument.
        assert_near(
            one(maps[0], 0, x),
            plain,
            2e-14,
            &format!("{maps:?} at {x}"),
        );
        assert_near(
            one(maps[1], 0, x),
            scaled,
            4e-15,
            &format!("scaled {n} at {x}"),
        );
        for map in maps {
            let ends = [0.0, -0.0, INF].map(|x| one(map, 0, x));
            assert_eq!(ends, [INF, INF, 0.0], "{map:?}");
            assert!(one(map, 0, -1.0).is_nan() && one(map, 0, NAN).is_nan());
            assert_eq!([0.0, INF].map(|x| one(map, 1, x)), [-INF, 0.0]);
            for at in [2.0, 25.0] {
                for order in 0..=3 {
                    let [below, above] = [at - 1e-12, at + 1e-12].map(|x| one(map, order, x));
                    assert_near(below, above, 2e-10, &format!("{map:?} {order} at {at}"));
                }
            }
        }
    }
    for (x, expected) in [
        (1e-9, 1.0),
        (0.3, 0.985_067_355_537_798_6),
        (1.6, 0.624_733_501_900_940_7),
        (-7.3, 0.116_498_167_209_392_39),
        (1e5, 3.574_879_797_201_651e-7),
        (0.0, 1.0),
        (-INF, 0.0),
        (NAN, NAN),
    ] {
        let got = one(Unary::SphericalBesselJ0, 0, x);
        assert_near(got, expected, 4e-15, &format!("spherical at {x}"));
    }
    assert_eq!(one(Unary::SphericalBesselJ0, 1, 0.0), 0.0);
}

/// mpmath's numbers, as exact as what the phase, or the exponent, of so large a number leaves; near its zeros as its waves are high.
#[test]
fn airys_function_is_known() {
    for (x, [value, slope]) in [
        (0.0_f64, [0.3550280538878172, -0.2588194037928068]),
        (-0.0, [0.3550280538878172, -0.2588194037928068]),
        (0.3, [0.2788064819550049, -0.2451463642190548]),
        (-0.5, [0.4757280916105396, -0.20408167033954738]),
        (1.6, [0.06253690796893195, -0.08699590844810412]),
        (-2.338, [7.531737652339437e-05, 0.7012108132634838]),
        (2.5, [0.01572592338047049, -0.026250881035903232]),
        (-4.2, [0.08921076323945072, -0.7822156078624519]),
        (5.25, [6.081011452242365e-05, -0.00014209461719726815]),
        (-8.75, [-0.2382300384596355, -0.6738561861206686]),
        (9.4999, [5.331920597289731e-10, -1.6571459104587126e-09]),
        (9.6, [3.9032335304151394e-10, -1.2193337781681137e-09]),
        (-9.51, [0.3200324144571808, -0.07771798254767023]),
        (14.0, [9.920205491192377e-17, -3.729310110017901e-16]),
        (-30.25, [-0.23690042849155973, -0.23219733237268927]),
        (100.0, [2.6344821520881846e-291, -2.6351403616044097e-290]),
        (-1000.5, [-0.04689546151561413, -2.8050205709318075]),
        (103.0, [1.9562320229339223e-304, -1.985833197807815e-303]),
    ] {
        let digits = 2e-15 * (1.0 + x.abs() * x.abs().sqrt());
        let wave = |power: f64| if x < -1.0 { x.abs().powf(power) } else { 0.0 };
        for (order, expected, size) in [(0, value, wave(-0.25)), (1, slope, wave(0.25))] {
            let got = one(Unary::AiryAi, order, x);
            let apart = (got - expected).abs();
            assert!(
                apart <= digits * f64::max(expected.abs(), size),
                "{order} at {x}: {got} is not {expected}"
            );
        }
        let [f, first, second, third] = [0, 1, 2, 3].map(|order| one(Unary::AiryAi, order, x));
        assert_eq!([second, third], [x * f, f + x * first]);
    }
    // Where one series ends the other goes on, and at the ends it is 0.
    for at in [-9.5, -0.5, 1.5, 9.5] {
        for order in 0..=3 {
            let [below, above] = [at - 1e-13, at + 1e-13].map(|x| one(Unary::AiryAi, order, x));
            assert!(
                (below - above).abs() < 2e-11 * above.abs().max(1e-2),
                "{order} at {at}"
            );
        }
    }
    assert_eq!(
        [INF, -INF, -1e300].map(|x| one(Unary::AiryAi, 0, x)),
        [0.0; 3]
    );
    assert_eq!(one(Unary::AiryAi, 1, INF), 0.0);
    assert!(one(Unary::AiryAi, 0, NAN).is_nan() && one(Unary::AiryAi, 1, -INF).is_nan());
}

/// At the ends of the domain PyTorch's numbers, but at infinity, where it has NaN for what falls to 0.
#[test]
fn hurwitzs_zeta_function_is_known() {
    for (s, q, expected) in [
        (2.0, 0.5, 4.934_802_200_544_679),
        (1.0001, 3.0, 9_999.077_257_603_696),
        (2.5, 1e-5, 3_162_277_660_169.72),
        (30.0, 1.0, 1.000_000_000_931_327_5),
        (3.0, -1.5, 0.118_102_025_820_863_7),
        (2.0, -0.75, 18.975_106_932_284_888),
        (200.0, 7.0, 9.558_549_579_501_173e-170),
        (5.0, 1e10, 2.500_000_000_5e-41),
        (1.5, 1e3, 0.063_261_368_544_514_93),
        (60.0, 50.0, 1.666_005_172_249_715e-102),
        (1.0, 2.0, INF),
        (1.0, NAN, INF),
        (0.5, 2.0, NAN),
        (-3.0, 0.0, NAN),
        (2.0, -2.0, INF),
        (2.0, -INF, INF),
        (2.5, -1.5, NAN),
        (2.0, NAN, NAN),
        (NAN, 2.0, NAN),
        (INF, 1.0, 1.0),
        (INF, 0.5, INF),
        (INF, 2.0, 0.0),
        (2.0, INF, 0.0),
    ] {
        let got = of_two(Binary::Zeta, s, q);
        assert_near(
            got,
            expected,
            2e-12_f64.min(4e-14 * s.abs().max(1.0)),
            &format!("zeta of {s} and {q}"),
        );
    }
}

#[test]
fn incomplete_gamma_functions_are_known_wherever_they_are_found_otherwise() {
    for (a, x, lower, upper) in [
        (0.5, 0.3, 0.561_421_973_919_000_2, 0.438_578_026_080_999_9),
        (
            1e-6,
            0.01,
            0.999_995_962_077_763_3,
            4.037_922_236_637_048e-6,
        ),
        (
            1e-9,
            1.05,
            0.999_999_999_798_127_1,
            2.018_728_134_341_403e-10,
        ),
        (3.0, 20.0, 0.999_999_544_485_049_5, 4.555_149_505_589_213e-7),
        (0.7, 300.0, 1.0, 7.158_024_898_251_584e-132),
        (
            29.0,
            30.0,
            0.596_917_540_365_271_6,
            0.403_082_459_634_728_44,
        ),
        (
            31.0,
            40.0,
            0.938_305_846_887_530_4,
            0.061_694_153_112_469_64,
        ),
        (
            31.0,
            17.0,
            0.001_448_353_862_601_227_3,
            0.998_551_646_137_398_8,
        ),
        (
            200.0,
            190.0,
            0.243_347_427_100_623_8,
            0.756_652_572_899_376_2,
        ),
        (1e4, 1e4, 0.501_329_808_339_955_2, 0.498_670_191_660_044_8),
        (1e4, 9e3, 2.073_299_202_433_928e-25, 1.0),
        (
            1e6,
            1.003e6,
            0.998_638_259_353_782_4,
            0.001_361_740_646_217_591_5,
        ),
        (2.5, 1e-10, 3.009_011_112_039_771e-26, 1.0),
        (150.0, 10.0, 8.509_523_870_866_718e-118, 1.0),
        (50.0, 200.0, 1.0, 1.692_797_995_885_708_7e-37),
        // The ends, as PyTorch has them.
        (0.0, 0.0, NAN, NAN),
        (0.0, 1.0, 1.0, 0.0),
        (0.0, INF, 1.0, 0.0),
        (1.0, INF, 1.0, 0.0),
        (INF, INF, NAN, NAN),
        (INF, 1.0, 0.0, 1.0),
        (1.0, 0.0, 0.0, 1.0),
        (1.0, -0.0, 0.0, 1.0),
        (-1.0, 1.0, NAN, NAN),
        (2.0, -1.0, NAN, NAN),
        (NAN, 1.0, NAN, NAN),
        (1.0, NAN, NAN, NAN),
    ] {
        let what = format!("of {a} and {x}");
        assert_near(of_two(Binary::Igamma, a, x), lower, 1e-13, &what);
        assert_near(of_two(Binary::Igammac, a, x), upper, 1e-13, &what);
    }
    // Both sides of where another way begins agree.
    for (a, x) in [
        (30.0, 29.0),
        (40.0, 24.0),
        (40.0, 56.0),
        (2.0, 2.0),
        (0.3, 1.1),
        (0.5, 0.5),
    ] {
        for op in [Binary::Igamma, Binary::Igammac] {
            for (below, above) in [
                ((a - 1e-13, x), (a + 1e-13, x)),
                ((a, x - 1e-13), (a, x + 1e-13)),
            ] {
                let [below, above] = [below, above].map(|(a, x)| of_two(op, a, x));
                assert_near(below, above, 1e-11, &format!("{op:?} around {a} and {x}"));
            }
        }
    }
}

#[test]
fn a_step_from_a_number_is_one_of_its_type() {
    let least = f64::from_bits(1);
    for (a, b, expected) in [
        (0.0, 1.0, least),
        (-0.0, 1.0, least),
        (0.0, -1.0, -least),
        (1.0, 2.0, 1.0 + f64::EPSILON),
        (-1.0, -2.0, -1.0 - f64::EPSILON),
        (least, -1.0, 0.0),
        (INF, 0.0, f64::MAX),
        (f64::MAX, INF, INF),
        (3.0, 3.0, 3.0),
        (NAN, 1.0, NAN),
        (1.0, NAN, NAN),
    ] {
        let got = of_two(Binary::NextAfter, a, b);
        assert!(
            got == expected || got.is_nan() && expected.is_nan(),
            "{a} to {b}: {got}"
        );
        let mut single = [9.0f32];
        binary_lines(Binary::NextAfter, &[a as f32], &[b as f32], &mut single);
        let up = match (a as f32).partial_cmp(&(b as f32)) {
            Some(core::cmp::Ordering::Less) => (a as f32).next_up(),
            Some(core::cmp::Ordering::Greater) => (a as f32).next_down(),
            Some(core::cmp::Ordering::Equal) => b as f32,
            None => f32::NAN,
        };
        assert!(single[0] == up || single[0].is_nan() && up.is_nan());
    }
    assert!(of_two(Binary::NextAfter, 0.0, -0.0).is_sign_negative());
    // Every number of 16 bits has the next one by its bits.
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for to in [f16::INFINITY, f16::NEG_INFINITY] {
        let mut got = vec![f16::ZERO; all.len()];
        let to_all = vec![to; all.len()];
        next_halves(
            &View::line(&all),
            &View::line(&to_all),
            &mut ViewMut::line(&mut got),
        );
        for (a, got) in all.iter().zip(got) {
            if a.is_nan() {
                assert!(got.is_nan());
            } else if *a == to {
                assert_eq!(got, to);
            } else {
                let (least, most) = if *a < got { (*a, got) } else { (got, *a) };
                assert!(least < most && (got > *a) == (to > *a));
                let between = f16::from_f64((least.to_f64() + most.to_f64()) / 2.0);
                let is_next = between == least
                    || between == most
                    || most == f16::INFINITY
                    || least == f16::NEG_INFINITY;
                assert!(is_next, "{a} to {to}: {got}");
            }
        }
    }
}

#[test]
fn divisors_and_multiples_are_those_of_sizes() {
    let (a, b) = (
        [0, 6, -6, 4, 0, 1 << 62, i64::MIN, i64::MIN, i64::MIN],
        [0, 4, 4, -6, 5, 3, 0, -1, 6],
    );
    let apply = |op| {
        let mut out = [9i64; 9];
        let [a, b] = [&a, &b].map(|x| View::contiguous(x, &[9]));
        shard_kernels::whole::binary(op, &a, &b, &mut ViewMut::contiguous(&mut out, &[9]));
        out
    };
    assert_eq!(apply(Binary::Gcd), [0, 2, 2, 2, 5, 1, i64::MIN, 1, 2]);
    assert_eq!(
        apply(Binary::Lcm)[..6],
        [
            0,
            12,
            12,
            12,
            0,
            (1i64 << 62).wrapping_mul(3).wrapping_abs()
        ]
    );
    for a in 0..=255u8 {
        for b in [0, 1, 6, 128, 255] {
            let shared = (1..=255).rev().find(|d| a % d == 0 && b % d == 0);
            let shared = if a == 0 && b == 0 { 0 } else { shared.unwrap() };
            let mut out = [[9u8]; 2];
            for (op, out) in [Binary::Gcd, Binary::Lcm].into_iter().zip(&mut out) {
                let [a, b] = [[a], [b]];
                shard_kernels::whole::binary(
                    op,
                    &View::line(&a),
                    &View::line(&b),
                    &mut ViewMut::line(out),
                );
            }
            let multiple = a.checked_div(shared).map_or(0, |a| a.wrapping_mul(b));
            assert_eq!(out, [[shared], [multiple]], "{a} and {b}");
        }
    }
}

#[test]
fn mantissas_and_powers_of_two_give_the_number() {
    for x in [1.0, -3.0, 5e-324, 1e308, 0.1, -0.75] {
        let (mantissa, power) = (
            one(Unary::FrexpMantissa, 0, x),
            one(Unary::FrexpExponent, 0, x),
        );
        assert!(
            (0.5..1.0).contains(&mantissa.abs()) && power.fract() == 0.0,
            "{x}"
        );
        assert_eq!(
            mantissa * (power / 2.0).floor().exp2() * (power - (power / 2.0).floor()).exp2(),
            x
        );
    }
    for x in [0.0, -0.0, INF, -INF] {
        let (mantissa, power) = (
            one(Unary::FrexpMantissa, 0, x),
            one(Unary::FrexpExponent, 0, x),
        );
        assert_eq!((mantissa.to_bits(), power), (x.to_bits(), 0.0));
    }
    assert!(one(Unary::FrexpMantissa, 0, NAN).is_nan());
    assert_eq!(
        [3.0, 0.0, INF].map(|x| one(Unary::FrexpMantissa, 1, x)),
        [0.25, 1.0, 1.0]
    );
}
