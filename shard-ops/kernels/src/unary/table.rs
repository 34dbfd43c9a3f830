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
/// comparisons, and functions that both sides have under one name: `sqrt`, `abs`, `floor`, `sign`, `clamp`, `passes` and `squared`, and
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
            /// `2^x`
            exp2: Exp2 {
                let e = M::exp2(x);
                0 => e;
                1 => LN_2 * e;
                2 => LN_2 * LN_2 * e;
                3 => LN_2 * LN_2 * LN_2 * e;
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
            /// Logarithm to base 2.
            log2: Log2 {
                0 => M::log2(x);
                1 => 1.0 / (LN_2 * x);
                2 => -1.0 / (LN_2 * x * x);
                3 => 2.0 / (LN_2 * x * x * x);
            }
            /// Logarithm to base 10.
            log10: Log10 {
                0 => M::log10(x);
                1 => 1.0 / (LN_10 * x);
                2 => -1.0 / (LN_10 * x * x);
                3 => 2.0 / (LN_10 * x * x * x);
            }
            /// `ln(x / (1 - x))`, of `x` clamped to `eps ..= 1 - eps` if `eps` is not below 0; derivative 0 where that clamps.
            logit: Logit(
                /// How near to 0 and 1 the argument may come; below 0, as near as it does.
                eps = -1.0
            ) {
                let z = pick!(eps < 0.0, x, clamp(x, eps, 1.0 - eps));
                0 => M::ln(z / (1.0 - z));
                1 => pick!(eps >= 0.0 && (x < eps || x > 1.0 - eps), 0.0, 1.0 / squared(sqrt(x * (1.0 - x))));
                2 => pick!(eps >= 0.0 && (x < eps || x > 1.0 - eps), 0.0, (2.0 * x - 1.0) / squared(x * (1.0 - x)));
                3 => pick!(eps >= 0.0 && (x < eps || x > 1.0 - eps), 0.0,
                    (2.0 - 6.0 * x * (1.0 - x)) / (x * (1.0 - x) * squared(x * (1.0 - x))));
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
            /// Tangent.
            tan: Tan {
                let t = M::tan(x);
                0 => t;
                1 => 1.0 + t * t;
                2 => 2.0 * t * (1.0 + t * t);
                3 => 2.0 * (1.0 + t * t) * (1.0 + 3.0 * t * t);
            }
            /// The angle in `-π/2 ..= π/2` whose sine is `x`.
            asin: Asin {
                let d = (1.0 - x) * (1.0 + x);
                0 => M::asin(x);
                1 => 1.0 / sqrt(d);
                2 => x / (d * sqrt(d));
                3 => (1.0 + 2.0 * x * x) / (d * d * sqrt(d));
            }
            /// The angle in `0 ..= π` whose cosine is `x`.
            acos: Acos {
                let d = (1.0 - x) * (1.0 + x);
                0 => M::acos(x);
                1 => -1.0 / sqrt(d);
                2 => -x / (d * sqrt(d));
                3 => -(1.0 + 2.0 * x * x) / (d * d * sqrt(d));
            }
            /// The angle in `-π/2 ..= π/2` whose tangent is `x`.
            atan: Atan {
                0 => M::atan(x);
                1 => 1.0 / (1.0 + x * x);
                2 => -2.0 * x / squared(1.0 + x * x);
                3 => (6.0 * x * x - 2.0) / ((1.0 + x * x) * squared(1.0 + x * x));
            }
            /// Hyperbolic sine.
            sinh: Sinh {
                0 | 2 => M::sinh(x);
                1 | 3 => M::cosh(x);
            }
            /// Hyperbolic cosine.
            cosh: Cosh {
                0 | 2 => M::cosh(x);
                1 | 3 => M::sinh(x);
            }
            /// What `x` is the hyperbolic sine of.
            asinh: Asinh {
                let d = x * x + 1.0;
                0 => M::asinh(x);
                1 => 1.0 / sqrt(d);
                2 => -x / (d * sqrt(d));
                3 => (2.0 * x * x - 1.0) / (d * d * sqrt(d));
            }
            /// The number not below 0 whose hyperbolic cosine is `x`.
            acosh: Acosh {
                let d = (x - 1.0) * (x + 1.0);
                0 => M::acosh(x);
                1 => 1.0 / sqrt(d);
                2 => -x / (d * sqrt(d));
                3 => (2.0 * x * x + 1.0) / (d * d * sqrt(d));
            }
            /// What `x` is the hyperbolic tangent of.
            atanh: Atanh {
                let d = (1.0 - x) * (1.0 + x);
                0 => M::atanh(x);
                1 => 1.0 / d;
                2 => 2.0 * x / (d * d);
                3 => (2.0 + 6.0 * x * x) / (d * d * d);
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
            /// `x` above 0, `alpha (e^(x/alpha) - 1)` at and below it: an `elu` whose slope has no jump.
            celu: Celu(
                /// The negative of the value at -∞.
                alpha = 1.0
            ) {
                0 => pick!(x > 0.0, x, alpha * M::expm1(x / alpha));
                1 => pick!(x > 0.0, 1.0, M::exp(x / alpha));
                2 => pick!(x > 0.0, 0.0, M::exp(x / alpha) / alpha);
                3 => pick!(x > 0.0, 0.0, M::exp(x / alpha) / (alpha * alpha));
            }
            /// `clamp(x, 0, 6)`; derivative 0 at 0 and at 6, and 1 for NaN, as PyTorch has it.
            relu6: Relu6 {
                0 => clamp(x, 0.0, 6.0);
                1 => pick!(x <= 0.0 || x >= 6.0, 0.0, 1.0);
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
            /// The tanh approximation of gelu. Half of one and a hyperbolic tangent is a sigmoid of twice the argument, which keeps its digits
            /// where it is small.
            gelu_tanh: GeluTanh {
                with a = 1.595_769_121_605_730_8, b = 0.071_354_816_272_600_25;
                let t = M::gelu_tanh_parts(x);
                0 => x * M::sigmoid(x * (a + b * x * x));
                1 => M::sigmoid(x * (a + b * x * x)) + clamp(x, -40.0, 40.0) * M::sigmoid(-abs(x) * (a + b * x * x))
                    * (1.0 - M::sigmoid(-abs(x) * (a + b * x * x))) * (a + 3.0 * b * squared(clamp(x, -40.0, 40.0)));
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
                1 => t[0] + clamp(x, -1000.0, 1000.0) * t[1];
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
            /// `clamp(x, min_val, max_val)`; derivative 1 between the bounds and 0 at them, and 1 for NaN, as PyTorch has it.
            hardtanh: Hardtanh(
                /// Lower bound.
                min_val = -1.0,
                /// Upper bound.
                max_val = 1.0
            ) {
                0 => clamp(x, min_val, max_val);
                1 => pick!(x <= min_val || x >= max_val, 0.0, 1.0);
            }
            /// `x` above the threshold, a number at and below it.
            threshold: Threshold(
                /// What `x` must exceed.
                threshold = 0.1,
                /// What stands for all that does not.
                value = 0.7
            ) {
                0 => pick!(x <= threshold, value, x);
                1 => pick!(x <= threshold, 0.0, 1.0);
            }
            /// `x` where `|x|` exceeds `lambd`, else 0.
            hardshrink: Hardshrink(
                /// Half the width of what becomes 0.
                lambd = 0.5
            ) {
                0 => pick!(x >= -lambd && x <= lambd, 0.0, x);
                1 => pick!(x >= -lambd && x <= lambd, 0.0, 1.0);
            }
            /// `x` moved towards 0 by `lambd`, not beyond it.
            softshrink: Softshrink(
                /// Half the width of what becomes 0.
                lambd = 0.5
            ) {
                0 => pick!(x > lambd, x - lambd, pick!(x < -lambd, x + lambd, x * 0.0));
                1 => pick!(x >= -lambd && x <= lambd, 0.0, 1.0);
            }
            /// `x - tanh(x)`
            tanhshrink: Tanhshrink {
                let t = M::tanh_parts(x);
                0 => x - t[0];
                1 => t[0] * t[0];
                2 => -t[2];
                3 => -t[3];
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
            /// `1 - erf(x)`, without cancellation where that is small.
            erfc: Erfc {
                0 => M::erfc(x);
                1 => -FRAC_2_SQRT_PI * M::exp(-x * x);
                2 => 2.0 * FRAC_2_SQRT_PI * x * M::exp(-x * x);
                3 => FRAC_2_SQRT_PI * M::exp(-x * x) * (2.0 - 4.0 * x * x);
            }
            /// `e^(x²)` times `erfc(x)`, which neither overflows nor vanishes far above 0.
            erfcx: Erfcx {
                let e = M::erfcx_parts(x);
                0 => e[0];
                1 => e[1];
                2 => e[2];
                3 => e[3];
            }
            /// The probability of a standard normal number to be below `x`.
            ndtr: Ndtr {
                0 => 0.5 * M::erfc(-FRAC_1_SQRT_2 * x);
                1 => M::normal_pdf(x);
                2 => -x * M::normal_pdf(x);
                3 => (x * x - 1.0) * M::normal_pdf(x);
            }
            /// The logarithm of the probability of a standard normal number to be below `x`, also where that is too small for a number.
            log_ndtr: LogNdtr {
                let l = M::log_ndtr_parts(x);
                0 => l[0];
                1 => l[1];
                2 => l[2];
                3 => l[3];
            }
            /// What a standard normal number is below with probability `x`.
            ndtri: Ndtri {
                let y = M::ndtri(x);
                0 => y;
                1 => 1.0 / M::normal_pdf(y);
                2 => y * squared(1.0 / M::normal_pdf(y));
                3 => (1.0 + 2.0 * y * y) * squared(1.0 / M::normal_pdf(y)) * (1.0 / M::normal_pdf(y));
            }
            /// What `x` is the error function of.
            erfinv: Erfinv {
                let y = M::erfinv(x);
                0 => y;
                1 => M::exp(y * y) / FRAC_2_SQRT_PI;
                2 => 2.0 * y * squared(M::exp(y * y) / FRAC_2_SQRT_PI);
                3 => (2.0 + 8.0 * y * y) * squared(M::exp(y * y) / FRAC_2_SQRT_PI) * (M::exp(y * y) / FRAC_2_SQRT_PI);
            }
            /// The logarithm of the size of the gamma function, infinite at 0 and below it at whole numbers.
            lgamma: Lgamma {
                0 => M::lgamma(x);
                1 => M::polygamma(0.0, 0, x);
                2 => M::polygamma(0.0, 1, x);
                3 => M::polygamma(0.0, 2, x);
            }
            /// The derivative of `lgamma`, NaN below 0 at whole numbers.
            digamma: Digamma {
                0 => M::polygamma(0.0, 0, x);
                1 => M::polygamma(0.0, 1, x);
                2 => M::polygamma(0.0, 2, x);
                3 => M::polygamma(0.0, 3, x);
            }
            /// The derivative of `digamma`, which is `torch.polygamma(1, x)`.
            trigamma: Trigamma {
                0 => M::polygamma(0.0, 1, x);
                1 => M::polygamma(0.0, 2, x);
                2 => M::polygamma(0.0, 3, x);
                3 => M::polygamma(0.0, 4, x);
            }
            /// A derivative of `digamma`, of order `n` up to 100: by Hurwitz's zeta function, `(-1)^(n + 1) n! ζ(n + 1, x)`.
            polygamma: Polygamma(
                /// How often `digamma` is differentiated.
                n = 2.0
            ) {
                0 => M::polygamma(n, 0, x);
                1 => M::polygamma(n, 1, x);
                2 => M::polygamma(n, 2, x);
                3 => M::polygamma(n, 3, x);
            }
            /// `sin(πx) / (πx)`, 1 at 0.
            sinc: Sinc {
                let s = M::sinc_parts(x);
                0 => s[0];
                1 => s[1];
                2 => s[2];
                3 => s[3];
            }
            /// The modified Bessel function of the first kind of order 0.
            i0: I0 {
                0 => M::bessel(0, 0, x);
                1 => M::bessel(0, 1, x);
                2 => M::bessel(0, 2, x);
                3 => M::bessel(0, 3, x);
            }
            /// `e^-|x|` times the modified Bessel function of the first kind of order 0; derivative 0 at 0, where it has a kink.
            i0e: I0e {
                0 => M::scaled_bessel(0, 0, x);
                1 => M::scaled_bessel(0, 1, x);
                2 => M::scaled_bessel(0, 2, x);
                3 => M::scaled_bessel(0, 3, x);
            }
            /// The modified Bessel function of the first kind of order 1.
            i1: I1 {
                0 => M::bessel(1, 0, x);
                1 => M::bessel(1, 1, x);
                2 => M::bessel(1, 2, x);
                3 => M::bessel(1, 3, x);
            }
            /// `e^-|x|` times the modified Bessel function of the first kind of order 1.
            i1e: I1e {
                0 => M::scaled_bessel(1, 0, x);
                1 => M::scaled_bessel(1, 1, x);
                2 => M::scaled_bessel(1, 2, x);
                3 => M::scaled_bessel(1, 3, x);
            }
            /// The modified Bessel function of the second kind of order 0: of numbers above 0, and ∞ at 0.
            modified_bessel_k0: ModifiedBesselK0 {
                0 => M::bessel_falling(0, 0, x);
                1 => M::bessel_falling(0, 1, x);
                2 => M::bessel_falling(0, 2, x);
                3 => M::bessel_falling(0, 3, x);
            }
            /// `e^x` times the modified Bessel function of the second kind of order 0: of numbers above 0, and ∞ at 0.
            scaled_modified_bessel_k0: ScaledModifiedBesselK0 {
                0 => M::scaled_bessel_falling(0, 0, x);
                1 => M::scaled_bessel_falling(0, 1, x);
                2 => M::scaled_bessel_falling(0, 2, x);
                3 => M::scaled_bessel_falling(0, 3, x);
            }
            /// The modified Bessel function of the second kind of order 1: of numbers above 0, and ∞ at 0.
            modified_bessel_k1: ModifiedBesselK1 {
                0 => M::bessel_falling(1, 0, x);
                1 => M::bessel_falling(1, 1, x);
                2 => M::bessel_falling(1, 2, x);
                3 => M::bessel_falling(1, 3, x);
            }
            /// `e^x` times the modified Bessel function of the second kind of order 1: of numbers above 0, and ∞ at 0.
            scaled_modified_bessel_k1: ScaledModifiedBesselK1 {
                0 => M::scaled_bessel_falling(1, 0, x);
                1 => M::scaled_bessel_falling(1, 1, x);
                2 => M::scaled_bessel_falling(1, 2, x);
                3 => M::scaled_bessel_falling(1, 3, x);
            }
            /// The Bessel function of the first kind of order 0.
            bessel_j0: BesselJ0 {
                0 => M::bessel_first(0, 0, x);
                1 => M::bessel_first(0, 1, x);
                2 => M::bessel_first(0, 2, x);
                3 => M::bessel_first(0, 3, x);
            }
            /// The Bessel function of the first kind of order 1.
            bessel_j1: BesselJ1 {
                0 => M::bessel_first(1, 0, x);
                1 => M::bessel_first(1, 1, x);
                2 => M::bessel_first(1, 2, x);
                3 => M::bessel_first(1, 3, x);
            }
            /// The Bessel function of the second kind of order 0: of numbers above 0, and -∞ at 0.
            bessel_y0: BesselY0 {
                0 => M::bessel_second(0, 0, x);
                1 => M::bessel_second(0, 1, x);
                2 => M::bessel_second(0, 2, x);
                3 => M::bessel_second(0, 3, x);
            }
            /// The Bessel function of the second kind of order 1: of numbers above 0, and -∞ at 0.
            bessel_y1: BesselY1 {
                0 => M::bessel_second(1, 0, x);
                1 => M::bessel_second(1, 1, x);
                2 => M::bessel_second(1, 2, x);
                3 => M::bessel_second(1, 3, x);
            }
            /// The spherical Bessel function of the first kind of order 0, `sin(x) / x`: 1 at 0 and 0 at infinity.
            spherical_bessel_j0: SphericalBesselJ0 {
                let s = M::spherical_parts(x);
                0 => s[0];
                1 => s[1];
                2 => s[2];
                3 => s[3];
            }
            /// Airy's function Ai, a solution of `y″ = x y`: 0 at infinity, on either side.
            airy_ai: AiryAi {
                let s = M::airy_parts(x);
                0 => s[0];
                1 => s[1];
                2 => s[2];
                3 => s[3];
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
            /// `min(max(x, min), max)`; derivative 1 between the bounds and 0 at them, as PyTorch 2.15 has it. An infinite bound is none: beside
            /// it the derivative is 1 at that infinity, too. A bound that is NaN makes all NaN.
            clamp: Clamp(
                /// Lower bound.
                min = f64::NEG_INFINITY,
                /// Upper bound; wins where the bounds cross.
                max = f64::INFINITY
            ) {
                0 => pick!(min == min && max == max, clamp(x, min, max), min + max);
                1 => passes(x, min, max);
            }
            /// -1, 0 or 1.
            sign: Sign {
                0 => sign(x);
            }
            /// The largest integer not above `x`.
            floor: Floor {
                0 => floor(x);
            }
            /// The smallest integer not below `x`.
            ceil: Ceil {
                0 => ceil(x);
            }
            /// The nearest integer towards 0.
            trunc: Trunc {
                0 => trunc(x);
            }
            /// The nearest integer, of two the even one.
            round: Round {
                0 => round_even(x);
            }
            /// The nearest number of so many decimals, or with decimals below 0 so many zeros; of two the one that ends evenly.
            round_decimals: RoundDecimals(
                /// Digits after the point.
                decimals = 1.0
            ) {
                0 => M::rounded(x, decimals);
            }
            /// What `trunc` leaves, with the sign of `x`.
            frac: Frac {
                0 => x - trunc(x);
                1 => 1.0;
            }
            /// What of `x` is from a half to 1 in size, and gives `x` with a power of two; 0, infinity and NaN stay.
            frexp_mantissa: FrexpMantissa {
                0 => M::mantissa(x);
                1 => M::exp2(-M::binary_exponent(x));
            }
            /// The power of two of `frexp_mantissa`, a whole number; 0 of 0, infinity and NaN.
            frexp_exponent: FrexpExponent {
                0 => M::binary_exponent(x);
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
