//! The table of all maps of one number: a row says everything about its map.

/// Calls the macro that it is given with every map of one number.
///
/// A row reads
///
/// ```text
/// /// What the map is, which becomes the documentation of its variant and of the tensor's method.
/// name: Variant(parameter = default, ...), Form {
///     with constant = number;
///     let t = what several formulas share;
///     0 => the map of x;
///     1 => its derivative;
///     2 | 3 => one formula for two derivatives;
/// }
/// ```
///
/// - A parameter's default is PyTorch's; where PyTorch has none, the default is a value for tests.
/// - [`Form`](crate::unary::Form) is `Linear` or `Shift`, or left out.
/// - Constants are rounded to the element type, as parameters are; there are at most two constants and parameters together.
/// - A derivative that is left out is zero.
///
/// Formulas are Rust for the host, and the same text is CUDA for GPUs. There, `pick!(c, a, b)` stands for
/// `if c { a } else { b }`, `M::` is removed, and a number with a point gets the element type. Formulas may use arithmetic,
/// comparisons, and functions that both sides have under one name: `sqrt`, `abs`, `floor`, `sign`, `clamp` and `squared`, and
/// with `M::` in front those of [`Math`](crate::math::Math) and of `Parts` in `formulas.rs`; on GPUs, those of `maps.cuh`.
/// `M::f_parts(x)` is `f` and its first three derivatives.
#[macro_export]
macro_rules! unary_table {
    ($then:ident) => {
        $then! { x;
            /// `-x`
            neg: Neg, Linear {
                0 => -x;
                1 => -1.0;
            }
            /// `|x|`; derivative 0 at 0.
            abs: Abs {
                0 => abs(x);
                1 => sign(x);
            }
            /// `√x`
            sqrt: Sqrt {
                0 => sqrt(x);
                1 => 0.5 / sqrt(x);
                2 => -0.25 / (x * sqrt(x));
                3 => 0.375 / (x * x * sqrt(x));
            }
            /// `1 / √x`
            rsqrt: Rsqrt {
                0 => 1.0 / sqrt(x);
                1 => -0.5 / (x * sqrt(x));
                2 => 0.75 / (x * x * sqrt(x));
                3 => -1.875 / (x * x * x * sqrt(x));
            }
            /// `e^x`
            exp: Exp {
                0 | 1 | 2 | 3 => M::exp(x);
            }
            /// `e^x - 1`, without cancellation near 0.
            expm1: Expm1 {
                0 => M::expm1(x);
                1 | 2 | 3 => M::exp(x);
            }
            /// Natural logarithm.
            log: Log {
                0 => M::ln(x);
                1 => 1.0 / x;
                2 => -1.0 / (x * x);
                3 => 2.0 / (x * x * x);
            }
            /// `ln(1 + x)`, without cancellation near 0.
            log1p: Log1p {
                0 => M::ln_1p(x);
                1 => 1.0 / (1.0 + x);
                2 => -1.0 / squared(1.0 + x);
                3 => 2.0 / ((1.0 + x) * squared(1.0 + x));
            }
            /// Sine.
            sin: Sin {
                0 => M::sin(x);
                1 => M::cos(x);
                2 => -M::sin(x);
                3 => -M::cos(x);
            }
            /// Cosine.
            cos: Cos {
                0 => M::cos(x);
                1 => -M::sin(x);
                2 => -M::cos(x);
                3 => M::sin(x);
            }
            /// Hyperbolic tangent.
            tanh: Tanh {
                let t = M::tanh_parts(x);
                0 => t[0];
                1 => t[1];
                2 => t[2];
                3 => t[3];
            }
            /// `1 / (1 + e^-x)`
            sigmoid: Sigmoid {
                let s = M::sigmoid_parts(x);
                0 => s[0];
                1 => s[1];
                2 => s[2];
                3 => s[3];
            }
            /// `max(x, 0)`; derivative 0 at 0.
            relu: Relu {
                0 => pick!(x <= 0.0, 0.0, x);
                1 => pick!(x <= 0.0, 0.0, 1.0);
            }
            /// `x` above 0, `negative_slope * x` at and below it.
            leaky_relu: LeakyRelu(
                /// The slope below 0.
                negative_slope = 0.01
            ) {
                0 => pick!(x > 0.0, x, negative_slope * x);
                1 => pick!(x > 0.0, 1.0, negative_slope);
            }
            /// `x` above 0, `alpha (e^x - 1)` at and below it.
            elu: Elu(
                /// The negative of the value at -∞.
                alpha = 1.0
            ) {
                0 => pick!(x > 0.0, x, alpha * M::expm1(x));
                1 => pick!(x > 0.0, 1.0, alpha * M::exp(x));
                2 | 3 => pick!(x > 0.0, 0.0, alpha * M::exp(x));
            }
            /// `elu`, scaled, with the self-normalising constants.
            selu: Selu {
                with scale = 1.050_700_987_355_480_5, alpha = 1.673_263_242_354_377_2;
                0 => scale * pick!(x > 0.0, x, alpha * M::expm1(x));
                1 => scale * pick!(x > 0.0, 1.0, alpha * M::exp(x));
                2 | 3 => scale * pick!(x > 0.0, 0.0, alpha * M::exp(x));
            }
            /// `x Φ(x)`, Φ the standard normal's distribution.
            gelu: Gelu {
                0 => x * M::normal_cdf(x);
                1 => M::normal_cdf(x) + x * M::normal_pdf(x);
                2 => M::normal_pdf(x) * (2.0 - x * x);
                3 => M::normal_pdf(x) * x * (x * x - 4.0);
            }
            /// The tanh approximation of gelu.
            gelu_tanh: GeluTanh {
                let t = M::gelu_tanh_parts(x);
                0 => 0.5 * x * (1.0 + t[0]);
                1 => 0.5 + 0.5 * t[0] + 0.5 * x * t[1];
                2 => t[1] + 0.5 * x * t[2];
                3 => 1.5 * t[2] + 0.5 * x * t[3];
            }
            /// `x sigmoid(x)`
            silu: Silu {
                let s = M::sigmoid_parts(x);
                0 => x * s[0];
                1 => s[0] + x * s[1];
                2 => 2.0 * s[1] + x * s[2];
                3 => 3.0 * s[2] + x * s[3];
            }
            /// `x tanh(ln(1 + e^x))`
            mish: Mish {
                let t = M::mish_parts(x);
                0 => x * t[0];
                1 => t[0] + x * t[1];
                2 => 2.0 * t[1] + x * t[2];
                3 => 3.0 * t[2] + x * t[3];
            }
            /// `ln(1 + e^(beta x)) / beta`, and `x` itself where `beta x > threshold`. PyTorch's defaults are 1 and 20.
            softplus: Softplus(
                /// Sharpness.
                beta = 1.0,
                /// Where the map turns linear.
                threshold = 20.0
            ) {
                0 => pick!(beta * x > threshold, x, M::softplus(beta * x) / beta);
                1 => pick!(beta * x > threshold, 1.0, M::sigmoid(beta * x));
                2 => pick!(beta * x > threshold, 0.0, beta * M::sigmoid_parts(beta * x)[1]);
                3 => pick!(beta * x > threshold, 0.0, beta * beta * M::sigmoid_parts(beta * x)[2]);
            }
            /// `x / (1 + |x|)`
            softsign: Softsign {
                0 => x / (1.0 + abs(x));
                1 => 1.0 / squared(1.0 + abs(x));
                2 => -2.0 * sign(x) / ((1.0 + abs(x)) * squared(1.0 + abs(x)));
                3 => 6.0 / squared(squared(1.0 + abs(x)));
            }
            /// `clamp(x + 3, 0, 6) / 6`; derivative 0 at ±3, and between them a sixth in single precision, as PyTorch's is for all types.
            hardsigmoid: Hardsigmoid {
                0 => clamp(x + 3.0, 0.0, 6.0) / 6.0;
                1 => pick!(x > -3.0 && x < 3.0, 0.166_666_671_633_720_4, 0.0);
            }
            /// `x clamp(x + 3, 0, 6) / 6`; derivative 0 at -3 and 1 at 3.
            hardswish: Hardswish {
                0 => x * clamp(x + 3.0, 0.0, 6.0) / 6.0;
                1 => pick!(x <= -3.0, 0.0, pick!(x < 3.0, x / 3.0 + 0.5, 1.0));
                2 => pick!(x > -3.0 && x < 3.0, 1.0 / 3.0, 0.0);
            }
            /// `ln sigmoid(x)`
            log_sigmoid: LogSigmoid {
                0 => -M::softplus(-x);
                1 => M::sigmoid(-x);
                2 => -M::sigmoid_parts(x)[1];
                3 => -M::sigmoid_parts(x)[2];
            }
            /// The error function.
            erf: Erf {
                0 => M::erf(x);
                1 => FRAC_2_SQRT_PI * M::exp(-x * x);
                2 => -2.0 * FRAC_2_SQRT_PI * x * M::exp(-x * x);
                3 => FRAC_2_SQRT_PI * M::exp(-x * x) * (4.0 * x * x - 2.0);
            }
            /// `x²`
            square: Square {
                0 => x * x;
                1 => 2.0 * x;
                2 => 2.0;
            }
            /// `1 / x`
            reciprocal: Reciprocal {
                0 => 1.0 / x;
                1 => -1.0 / (x * x);
                2 => 2.0 / (x * x * x);
                3 => -6.0 / squared(x * x);
            }
            /// `x^exponent`
            pow_scalar: PowScalar(
                /// The power.
                exponent = 3.7
            ) {
                0 => M::power(0, exponent, x);
                1 => M::power(1, exponent, x);
                2 => M::power(2, exponent, x);
                3 => M::power(3, exponent, x);
            }
            /// `min(max(x, min), max)`; derivative 1 on the closed interval.
            clamp: Clamp(
                /// Lower bound.
                min = f64::NEG_INFINITY,
                /// Upper bound; wins where the bounds cross.
                max = f64::INFINITY
            ) {
                0 => clamp(x, min, max);
                1 => pick!(x >= min && x <= max, 1.0, 0.0);
            }
            /// -1, 0 or 1.
            sign: Sign {
                0 => sign(x);
            }
            /// The largest integer not above `x`.
            floor: Floor {
                0 => floor(x);
            }
            /// 1 where `x > 0`, else 0.
            step: Step {
                0 => pick!(x > 0.0, 1.0, 0.0);
            }
            /// `x + value`
            add_scalar: AddScalar(
                /// The number added.
                value = 0.3
            ), Shift {
                0 => x + value;
                1 => 1.0;
            }
            /// `x * value`
            mul_scalar: MulScalar(
                /// The factor.
                value = -1.7
            ), Linear {
                0 => x * value;
                1 => value;
            }
        }
    };
}
