use shard_kernels::math::*;

fn worst(low: f64, high: f64, fast: fn(f64) -> f64, exact: fn(f64) -> f64) -> f64 {
    let n = 20_001;
    (0..=n)
        .map(|i| low + (high - low) * f64::from(i) / f64::from(n))
        .filter(|x| exact(*x) != 0.0)
        .map(|x| ((fast(x) - exact(x)) / exact(x)).abs())
        .fold(0.0, f64::max)
}

fn grades<const FMA: bool>() {
    type P = Precise;
    type Map = fn(f64) -> f64;
    let cases: [(&str, Map, Map, f64, f64); 21] = [
        ("exp", Fast::<FMA>::exp, P::exp, -700.0, 700.0),
        ("exp near 0", Fast::<FMA>::exp, P::exp, -1.0, 1.0),
        ("expm1", Fast::<FMA>::expm1, P::expm1, -0.4, 0.4),
        ("ln", Fast::<FMA>::ln, P::ln, 1e-3, 30.0),
        ("ln_1p", Fast::<FMA>::ln_1p, P::ln_1p, -0.999, 30.0),
        ("ln_1p near 0", Fast::<FMA>::ln_1p, P::ln_1p, -2e-3, 2e-3),
        ("ln_1p nearer", Fast::<FMA>::ln_1p, P::ln_1p, -1e-9, 1e-9),
        ("tanh", Fast::<FMA>::tanh, P::tanh, -12.0, 12.0),
        ("tanh near 0", Fast::<FMA>::tanh, P::tanh, -0.1, 0.1),
        ("erf", Fast::<FMA>::erf, P::erf, -12.0, 12.0),
        ("cdf", Fast::<FMA>::normal_cdf, P::normal_cdf, -14.0, 14.0),
        ("erf near 0", Fast::<FMA>::erf, P::erf, -0.6, 0.6),
        ("sin", Fast::<FMA>::sin, P::sin, -10.0, 10.0),
        ("sin far", Fast::<FMA>::sin, P::sin, -TURNS, TURNS),
        ("sin near 0", Fast::<FMA>::sin, P::sin, -1e-6, 1e-6),
        ("cos", Fast::<FMA>::cos, P::cos, -10.0, 10.0),
        ("cos far", Fast::<FMA>::cos, P::cos, 0.9 * TURNS, TURNS),
        ("tan", Fast::<FMA>::tan, P::tan, -10.0, 10.0),
        ("exp2", Fast::<FMA>::exp2, P::exp2, -150.0, 150.0),
        ("log2", Fast::<FMA>::log2, P::log2, 1e-3, 30.0),
        ("log10", Fast::<FMA>::log10, P::log10, 1e-3, 30.0),
    ];
    for (name, fast, exact, low, high) in cases {
        let error = worst(low, high, fast, exact);
        assert!(error < 2e-10, "{name}: relative error {error:e}");
    }
}

#[test]
fn fast_powers_are_those_of_the_standard_library() {
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.3,
        -0.3,
        2.5,
        -7.0,
        1e-30,
        3e38,
        f64::INFINITY,
    ];
    let numbers = numbers.into_iter().chain([f64::NEG_INFINITY, f64::NAN]);
    for x in numbers {
        for p in [2.5, -2.5, 3.7, 4.0, -4.0, 5.0, -5.0, 0.1, 1e10, -1e10] {
            let (fast, exact) = (Fast::<true>::powf(x, p) as f32, x.powf(p) as f32);
            let is_near = (fast - exact).abs() <= exact.abs() * f32::EPSILON;
            let is_same = fast == exact && fast.is_sign_negative() == exact.is_sign_negative();
            let both_nan = fast.is_nan() && exact.is_nan();
            assert!(
                is_near || is_same || both_nan,
                "{x}^{p}: {fast} for {exact}"
            );
        }
    }
}

#[test]
fn fast_functions_are_far_below_single_precision() {
    grades::<true>();
    grades::<false>();
}

#[test]
fn fast_functions_keep_special_values() {
    type F = Fast<false>;
    for f in [
        F::exp,
        F::expm1,
        F::ln,
        F::ln_1p,
        F::tanh,
        F::erf,
        F::normal_cdf,
    ] {
        assert!(f(f64::NAN).is_nan());
    }
    assert_eq!(
        (
            F::exp(f64::INFINITY) as f32,
            F::exp(f64::NEG_INFINITY) as f32
        ),
        (f32::INFINITY, 0.0)
    );
    assert_eq!(
        (F::ln(0.0), F::ln(f64::INFINITY)),
        (f64::NEG_INFINITY, f64::INFINITY)
    );
    assert!(F::ln(-1.0).is_nan());
    assert_eq!(
        (
            F::tanh(f64::INFINITY),
            F::tanh(-1e30),
            F::erf(f64::NEG_INFINITY)
        ),
        (1.0, -1.0, -1.0)
    );
    let ends = [f64::NEG_INFINITY, -1e30, 0.0, f64::INFINITY];
    assert_eq!(ends.map(F::normal_cdf)[..2], [0.0; 2]);
    assert!((F::normal_cdf(0.0) - 0.5).abs() < 1e-10);
    assert_eq!(F::normal_cdf(ends[3]), 1.0);
    assert_eq!(
        (F::tanh(0.0), F::erf(0.0), F::exp(0.0), F::expm1(0.0)),
        (0.0, 0.0, 1.0, 0.0)
    );
    assert!(f64::from(f32::from_bits(1)).ln() - F::ln(f64::from(f32::from_bits(1))) < 1e-9);
}
