// Maps of one and of two numbers. T: the type. FORMULA: the name of one of the texts below, or an expression.

#if defined(UNARY)
struct Unary { View x, g, y; f64 a, b; };

#define INV_SQRT_2 T(0.70710678118654752440)
#define TWO_OVER_SQRT_PI T(1.1283791670955125739)
#define INV_SQRT_2PI T(0.39894228040143267794)
DEVICE T sq(T x) { return x * x; }
DEVICE T sgn(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; }
DEVICE T clip(T x, T low, T high) { T v = x < low ? low : x; return v > high ? high : v; }
DEVICE T sigmoid_of(T x) { return x >= 0 ? T(1) / (T(1) + exp(-x)) : exp(x) / (T(1) + exp(x)); }
DEVICE T softplus_of(T x) { return (x > 0 ? x : T(0)) + log1p(exp(-fabs(x))); }
DEVICE T cdf(T x) { return T(0.5) * (T(1) + erf(x * INV_SQRT_2)); }
DEVICE T pdf(T x) { return INV_SQRT_2PI * exp(T(-0.5) * x * x); }

// A function and its first three derivatives.
struct Parts { T f, d1, d2, d3; };
DEVICE Parts sig(T x) {
    // sigmoid(-x) rather than 1 - s, which cancels.
    T s = sigmoid_of(x), d = s * sigmoid_of(-x);
    return {s, d, d * (T(1) - T(2) * s), d * (T(1) - T(6) * s + T(6) * s * s)};
}
// tanh(u(x)), from u and its derivatives.
DEVICE Parts tanh_of(T u, T u1, T u2, T u3) {
    T t = tanh(u), d = T(1) - t * t;
    return {t, d * u1, d * (u2 - T(2) * t * u1 * u1), d * (u3 - T(6) * t * u1 * u2 + u1 * u1 * u1 * (T(6) * t * t - T(2)))};
}
DEVICE Parts th(T x) { return tanh_of(x, T(1), T(0), T(0)); }
DEVICE Parts gt(T x) {
    const T scale = TWO_OVER_SQRT_PI * INV_SQRT_2, cubic = T(0.044715);
    return tanh_of(scale * (x + cubic * x * x * x), scale * (T(1) + T(3) * cubic * x * x), T(6) * scale * cubic * x, T(6) * scale * cubic);
}
DEVICE Parts mi(T x) { Parts s = sig(x); return tanh_of(softplus_of(x), s.f, s.d1, s.d2); }

// One text per map and derivative; a and b are the map's parameters.
#define neg_0 -x
#define neg_1 T(-1)
#define abs_0 fabs(x)
#define abs_1 sgn(x)
#define sqrt_0 sqrt(x)
#define sqrt_1 T(0.5) / sqrt(x)
#define sqrt_2 T(-0.25) / (x * sqrt(x))
#define sqrt_3 T(0.375) / (x * x * sqrt(x))
#define rsqrt_0 T(1) / sqrt(x)
#define rsqrt_1 T(-0.5) / (x * sqrt(x))
#define rsqrt_2 T(0.75) / (x * x * sqrt(x))
#define rsqrt_3 T(-1.875) / (x * x * x * sqrt(x))
#define exp_0 exp(x)
#define exp_1 exp(x)
#define exp_2 exp(x)
#define exp_3 exp(x)
#define log_0 log(x)
#define log_1 T(1) / x
#define log_2 T(-1) / (x * x)
#define log_3 T(2) / (x * x * x)
#define sin_0 sin(x)
#define sin_1 cos(x)
#define sin_2 -sin(x)
#define sin_3 -cos(x)
#define cos_0 cos(x)
#define cos_1 -sin(x)
#define cos_2 -cos(x)
#define cos_3 sin(x)
#define tanh_0 tanh(x)
#define tanh_1 th(x).d1
#define tanh_2 th(x).d2
#define tanh_3 th(x).d3
#define sigmoid_0 sigmoid_of(x)
#define sigmoid_1 sig(x).d1
#define sigmoid_2 sig(x).d2
#define sigmoid_3 sig(x).d3
#define relu_0 (x != x || x > 0 ? x : T(0))
#define relu_1 (x <= 0 ? T(0) : T(1))
#define leaky_relu_0 (x > 0 ? x : a * x)
#define leaky_relu_1 (x > 0 ? T(1) : a)
#define elu_0 (x > 0 ? b * x : b * a * expm1(x))
#define elu_1 (x > 0 ? b : b * a * exp(x))
#define elu_2 (x > 0 ? T(0) : b * a * exp(x))
#define elu_3 (x > 0 ? T(0) : b * a * exp(x))
#define gelu_0 x * cdf(x)
#define gelu_1 cdf(x) + x * pdf(x)
#define gelu_2 pdf(x) * (T(2) - x * x)
#define gelu_3 pdf(x) * x * (x * x - T(4))
#define gelu_tanh_0 T(0.5) * x * (T(1) + gt(x).f)
#define gelu_tanh_1 T(0.5) + T(0.5) * gt(x).f + T(0.5) * x * gt(x).d1
#define gelu_tanh_2 gt(x).d1 + T(0.5) * x * gt(x).d2
#define gelu_tanh_3 T(1.5) * gt(x).d2 + T(0.5) * x * gt(x).d3
#define silu_0 x * sigmoid_of(x)
#define silu_1 sig(x).f + x * sig(x).d1
#define silu_2 T(2) * sig(x).d1 + x * sig(x).d2
#define silu_3 T(3) * sig(x).d2 + x * sig(x).d3
#define mish_0 x * tanh(softplus_of(x))
#define mish_1 mi(x).f + x * mi(x).d1
#define mish_2 T(2) * mi(x).d1 + x * mi(x).d2
#define mish_3 T(3) * mi(x).d2 + x * mi(x).d3
#define softplus_0 (a * x > b ? x : softplus_of(a * x) / a)
#define softplus_1 (a * x > b ? T(1) : sigmoid_of(a * x))
#define softplus_2 (a * x > b ? T(0) : a * sig(a * x).d1)
#define softplus_3 (a * x > b ? T(0) : a * a * sig(a * x).d2)
#define softsign_0 x / (T(1) + fabs(x))
#define softsign_1 T(1) / sq(T(1) + fabs(x))
#define softsign_2 T(-2) * sgn(x) / ((T(1) + fabs(x)) * sq(T(1) + fabs(x)))
#define softsign_3 T(6) / sq(sq(T(1) + fabs(x)))
#define hardsigmoid_0 clip(x + T(3), T(0), T(6)) / T(6)
// PyTorch multiplies by a sixth in single precision, whatever the type.
#define hardsigmoid_1 (x > T(-3) && x < T(3) ? T(0.1666666716337204) : T(0))
#define hardswish_0 x * clip(x + T(3), T(0), T(6)) / T(6)
#define hardswish_1 (x <= T(-3) ? T(0) : x < T(3) ? x / T(3) + T(0.5) : T(1))
#define hardswish_2 (x > T(-3) && x < T(3) ? T(1) / T(3) : T(0))
#define hardswish_3 T(0)
#define logsigmoid_0 -softplus_of(-x)
#define logsigmoid_1 sigmoid_of(-x)
#define logsigmoid_2 -sig(x).d1
#define logsigmoid_3 -sig(x).d2
#define erf_0 erf(x)
#define erf_1 TWO_OVER_SQRT_PI * exp(-x * x)
#define erf_2 T(-2) * TWO_OVER_SQRT_PI * x * exp(-x * x)
#define erf_3 TWO_OVER_SQRT_PI * exp(-x * x) * (T(4) * x * x - T(2))
#define square_0 x * x
#define square_1 T(2) * x
#define square_2 T(2)
#define square_3 T(0)
#define reciprocal_0 T(1) / x
#define reciprocal_1 T(-1) / (x * x)
#define reciprocal_2 T(2) / (x * x * x)
#define reciprocal_3 T(-6) / sq(x * x)
// a x^b, the coefficient and power of whichever derivative.
#define power (a == 0 || b == 0 ? a : b == T(1) ? a * x : b == T(2) ? a * x * x : a * pow(x, b))
#define clamp_0 clip(x, a, b)
#define clamp_1 (x >= a && x <= b ? T(1) : T(0))
#define sign_0 sgn(x)
#define floor_0 floor(x)
#define step_0 (x > 0 ? T(1) : T(0))
#define add_scalar_0 x + a
#define add_scalar_1 T(1)
#define mul_scalar_0 x * a
#define mul_scalar_1 a

KERNEL(unary, Unary) {
    const T a = (T)p.a, b = (T)p.b;
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const T x = element<T>(p.x, place(p.x, i));
        T f = FORMULA;
#ifdef SCALED
        f = f * element<T>(p.g, place(p.g, i));
#endif
        element<T>(p.y, place(p.y, i)) = f;
    }
}
#endif

#if defined(BINARY)
struct Binary { View a, b, y; };
// A zero is above its negative.
#define larger (a == b && a == 0 ? a + b : a != a || a > b ? a : b)
#define smaller (a == b && a == 0 ? -(-a - b) : a != a || a < b ? a : b)
KERNEL(binary, Binary) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const T a = element<T>(p.a, place(p.a, i)), b = element<T>(p.b, place(p.b, i));
        element<T>(p.y, place(p.y, i)) = (T)(FORMULA);
    }
}
#endif
