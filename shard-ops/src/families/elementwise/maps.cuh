// What formulas of maps of one number are made of: the functions of the host's formulas, under the same names. T: the type.

#define FRAC_2_SQRT_PI T(1.1283791670955125739)
#define FRAC_1_SQRT_2 T(0.70710678118654752440)
#define LN_2 T(0.69314718055994530942)
#define LN_10 T(2.30258509299404568402)
#define abs fabs
#define pick(c, a, b) ((c) ? (a) : (b))
DEVICE T squared(T x) { return x * x; }
DEVICE T sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : T(0); }
DEVICE T round_even(T x) { return rint(x); }
DEVICE T rounded(T x, T decimals) {
    const T scale = pow(T(10), fabs(decimals));
    return decimals < 0 ? rint(x / scale) * scale : rint(x * scale) / scale;
}
DEVICE T clamp(T x, T low, T high) { T v = x < low ? low : x; return v > high ? high : v; }
DEVICE T ln(T x) { return log(x); }
DEVICE T ln_1p(T x) { return log1p(x); }
DEVICE T sigmoid(T x) { return x >= 0 ? T(1) / (T(1) + exp(-x)) : exp(x) / (T(1) + exp(x)); }
DEVICE T softplus(T x) { return (x > 0 ? x : T(0)) + log1p(exp(-fabs(x))); }
DEVICE T normal_cdf(T x) { return T(0.5) * (T(1) + erf(x * FRAC_1_SQRT_2)); }
DEVICE T normal_pdf(T x) { return T(0.39894228040143267794) * exp(T(-0.5) * x * x); }

// A derivative of x^p, whose coefficient p (p-1) ... may vanish: then so does the derivative, at every x.
DEVICE T power(int order, T p, T x) {
    f64 exact = 1;
    for (int i = 0; i < order; i++) exact *= (f64)p - i;
    const T a = (T)exact, b = p - T(order);
    return a == 0 || b == 0 ? a : b == T(1) ? a * x : b == T(2) ? a * x * x : a * pow(x, b);
}

// A function and its first three derivatives.
struct Parts {
    T f, d1, d2, d3;
    DEVICE T operator[](int order) const { return order == 0 ? f : order == 1 ? d1 : order == 2 ? d2 : d3; }
};
DEVICE Parts sigmoid_parts(T x) {
    // sigmoid(-x) rather than 1 - s, which cancels.
    T s = sigmoid(x), d = s * sigmoid(-x);
    return {s, d, d * (T(1) - T(2) * s), d * (T(1) - T(6) * s + T(6) * s * s)};
}
// tanh(u(x)), from u and its derivatives.
DEVICE Parts tanh_of(T u, T u1, T u2, T u3) {
    // 1 - t t would cancel where t is near 1, and lose all digits of f32.
    T t = tanh(u), d = T(4) * sigmoid(T(2) * u) * sigmoid(T(-2) * u);
    return {t, d * u1, d * (u2 - T(2) * t * u1 * u1), d * (u3 - T(6) * t * u1 * u2 + u1 * u1 * u1 * (T(6) * t * t - T(2)))};
}
DEVICE Parts tanh_parts(T x) { return tanh_of(x, T(1), T(0), T(0)); }
DEVICE Parts gelu_tanh_parts(T x) {
    const T scale = FRAC_2_SQRT_PI * FRAC_1_SQRT_2, cubic = T(0.044715);
    return tanh_of(scale * (x + cubic * x * x * x), scale * (T(1) + T(3) * cubic * x * x), T(6) * scale * cubic * x, T(6) * scale * cubic);
}
DEVICE Parts mish_parts(T x) {
    Parts s = sigmoid_parts(x);
    return tanh_of(softplus(x), s.f, s.d1, s.d2);
}
// A derivative of pi cot(pi x).
DEVICE f64 cotangent_slope(int order, f64 x) {
    const f64 pi = 3.14159265358979323846, angle = pi * (x - rint(x)), c = cos(angle) / sin(angle), c2 = c * c;
    f64 scale = pi;
    for (int i = 0; i < order; i++) scale *= pi;
    switch (order) {
        case 0: return scale * c;
        case 1: return -scale * (1 + c2);
        case 2: return scale * 2 * c * (1 + c2);
        case 3: return -scale * 2 * (1 + c2) * (1 + 3 * c2);
        default: return scale * 8 * c * (1 + c2) * (2 + 3 * c2);
    }
}
// 1 / x^n
DEVICE f64 falling_power(f64 x, int n) {
    f64 power = 1;
    for (int i = 0; i < n; i++) power /= x;
    return power;
}
// Derivative number order + 1 of lgamma, for orders up to 4: below 0 by reflection, then up to where the asymptotic series is exact.
// Terms nearly cancel each other there, of which single precision would leave few digits.
DEVICE f64 polygamma(int order, f64 x) {
    // B(2n) / (2n)!, of the Bernoulli numbers.
    const f64 series[9] = {8.333333333333333e-2, -1.388888888888889e-3, 3.306878306878307e-5, -8.267195767195768e-7, 2.08767569878681e-8,
        -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225828e-13, 8.586062056277845e-15};
    const f64 sign = order % 2 == 0 ? -1 : 1;
    const bool reflects = x < 0;
    if (x == 0 && order == 0) return -1 / x;
    if (reflects && order == 0 && x == floor(x)) return (x - x) / (x - x);
    f64 at = reflects ? 1 - x : x, sum = 0, factorial = 1;
    for (int i = 2; i <= order; i++) factorial *= i;
    for (; at < 14; at += 1) sum += sign * factorial * falling_power(at, order + 1);
    f64 rest = order == 0 ? -log(at) : factorial / order * falling_power(at, order);
    rest += 0.5 * factorial * falling_power(at, order + 1);
    f64 term = factorial * (order + 1) * falling_power(at, order + 2);
    for (int n = 1; n <= 9; n++) {
        rest += series[n - 1] * term;
        term *= (2 * n + order + 1) * (2 * n + order) / (at * at);
    }
    const f64 found = sum + sign * rest;
    return reflects ? -sign * found - cotangent_slope(order, x) : found;
}
// sin(pi x) / (pi x), near 0 by its series.
DEVICE Parts sinc_parts(T x) {
    const T pi = T(3.14159265358979323846), u = pi * x;
    T s = T(0), d1 = T(0), d2 = T(0), d3 = T(0);
    if (fabs(u) < T(1.5)) {
        T term = T(1);
        for (int i = 0; i < 13; i++) {
            const T n = T(2 * i), next = T(-1) / ((n + T(2)) * (n + T(3))), after = next * T(-1) / ((n + T(4)) * (n + T(5)));
            s += term;
            d1 += term * next * (n + T(2));
            d2 += term * next * (n + T(2)) * (n + T(1));
            d3 += term * after * (n + T(4)) * (n + T(3)) * (n + T(2));
            term *= next * u * u;
        }
        d1 *= u;
        d3 *= u;
    } else {
        const T angle = pi * (x - T(2) * rint(T(0.5) * x));
        s = sin(angle) / u;
        d1 = (cos(angle) - s) / u;
        d2 = -s - T(2) * d1 / u;
        d3 = -d1 - T(2) * (d2 - d1 / u) / u;
    }
    return {s, pi * d1, pi * pi * d2, pi * pi * pi * d3};
}
