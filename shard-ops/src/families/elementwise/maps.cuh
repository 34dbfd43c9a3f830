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
// An infinite bound, of which nothing is half, is none.
DEVICE T passes(T x, T low, T high) {
    const bool above = x > low || (low < 0 && low * T(0.5) == low), below = x < high || (high > 0 && high * T(0.5) == high);
    return above && below ? T(1) : T(0);
}
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
    if (a == 0 || b == 0) return a;
    // Roots differ from powers at the negative infinity and 0.
    if (b == T(0.5)) return a * sqrt(x);
    if (b == T(-0.5)) return a / sqrt(x);
    return b == T(1) ? a * x : b == T(2) ? a * x * x : a * pow(x, b);
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
// 1 / x^n
DEVICE f64 falling_power(f64 x, int n) {
    f64 power = 1;
    for (int i = 0; i < n; i++) power /= x;
    return power;
}
// The derivative of lgamma: below 0 by reflection, then up to where the asymptotic series is exact. Terms nearly cancel each other there, of
// which single precision would leave few digits.
DEVICE f64 digamma_of(f64 x) {
    const f64 pi = 3.14159265358979323846;
    if (x == 0) return -1 / x;
    if (x < 0 && x == floor(x)) return NO_NUMBER;
    f64 at = x < 0 ? 1 - x : x, sum = 0;
    for (; at < 14; at += 1) sum -= 1 / at;
    sum += log(at) - 0.5 / at;
    const Bernoulli series = bernoulli();
    f64 term = 1 / (at * at);
    for (int n = 1; n <= 12; n++) {
        sum -= series.at[n - 1] * term;
        term *= (2 * n + 1) * (2 * n) / (at * at);
    }
    const f64 angle = pi * (x - rint(x));
    return x < 0 ? sum - pi * (cos(angle) / sin(angle)) : sum;
}
// Derivative number n + order + 1 of lgamma.
DEVICE T polygamma(T n, int order, T x) {
    const int all = (int)n + order;
    if (all == 0) return T(digamma_of(x));
    f64 size = all % 2 == 0 ? -1 : 1;
    for (int i = 2; i <= all; i++) size *= i;
    return T(size * zeta(all + 1, x));
}
// sin(u) / u of an angle with the same sine, near 0 by its series.
DEVICE Parts sinc_of(f64 u, f64 angle) {
    f64 s = 0, d1 = 0, d2 = 0, d3 = 0;
    if (fabs(u) < 1.5) {
        f64 term = 1;
        for (int i = 0; i < 13; i++) {
            const f64 n = 2 * i, next = -1 / ((n + 2) * (n + 3)), after = next * -1 / ((n + 4) * (n + 5));
            s += term;
            d1 += term * next * (n + 2);
            d2 += term * next * (n + 2) * (n + 1);
            d3 += term * after * (n + 4) * (n + 3) * (n + 2);
            term *= next * u * u;
        }
        d1 *= u;
        d3 *= u;
    } else {
        s = sin(angle) / u;
        d1 = (cos(angle) - s) / u;
        d2 = -s - 2 * d1 / u;
        d3 = -d1 - 2 * (d2 - d1 / u) / u;
    }
    return {T(s), T(d1), T(d2), T(d3)};
}
DEVICE Parts sinc_parts(T x) {
    const f64 pi = 3.14159265358979323846, wide = x;
    const Parts s = sinc_of(pi * wide, pi * (wide - 2 * rint(0.5 * wide)));
    return {s.f, T(pi * s.d1), T(pi * pi * s.d2), T(pi * pi * pi * s.d3)};
}
DEVICE Parts spherical_parts(T x) {
    if (isinf(x)) return {T(0), T(0), T(0), T(0)};
    return sinc_of(x, x);
}
// Airy's function Ai and its derivative: around the nearest whole number, or far from 0 by asymptotic series.
struct AiryPair { f64 value, slope; };
DEVICE AiryPair airy_near(f64 x) {
    const AiryPair whole[19] = {
        {-0.022133721547341403, -0.9756639809263316},
        {-0.0527050503563862, 0.9355609381983065},
        {0.18428083525050565, -0.7710081684101265},
        {-0.3291451736298231, 0.3459354872813429},
        {0.35076100902411433, 0.32719281855444315},
        {-0.07026553294928951, -0.7906285753685813},
        {-0.37881429367765806, 0.3145837692165988},
        {0.22740742820168558, 0.618259020741691},
        {0.5355608832923521, -0.01016056711664521},
        {0.3550280538878172, -0.2588194037928068},
        {0.13529241631288141, -0.1591474412967932},
        {0.03492413042327438, -0.05309038443365363},
        {0.006591139357460719, -0.011912976705951319},
        {0.0009515638512048018, -0.001958640950204179},
        {0.00010834442813607442, -0.0002474138908684625},
        {9.947694360252889e-06, -2.4765200397034955e-05},
        {7.492128863997167e-07, -2.008150894738792e-06},
        {4.6922076160992316e-08, -1.3414392979067865e-07},
        {2.47116843087249e-09, -7.480641389658946e-09}};
    // Halves go to either side.
    const f64 at = rint(x), step = x - at;
    AiryPair a = whole[(int)at + 9];
    f64 before = 0, last = a.value, next = a.slope, power = step;
    a.value += next * step;
    for (int n = 0; n < 30; n++) {
        const f64 after = (at * last + before) / ((n + 1.0) * (n + 2.0));
        a.slope += (n + 2) * after * power;
        power *= step;
        a.value += after * power;
        before = last;
        last = next;
        next = after;
    }
    return a;
}
DEVICE AiryPair airy_far(f64 x) {
    const f64 size = fabs(x), root = sqrt(size), far = size * root / 1.5, scale = sqrt(root), pi = 3.14159265358979323846;
    const bool falls = x > 0;
    if (isinf(far)) return {0, falls ? 0 : NO_NUMBER};
    f64 values[2] = {0, 0}, slopes[2] = {0, 0}, term = 1;
    for (int k = 0; k < 34; k++) {
        const f64 sign = (falls ? k % 2 : k / 2 % 2) == 0 ? term : -term, six = 6 * k, next = k + 1;
        values[k % 2] += sign;
        slopes[k % 2] += sign * (six + 1) / (1 - six);
        term *= (six + 1) * (six + 3) * (six + 5) / (216 * next * (2 * next - 1) * far);
    }
    const f64 one = 1 / sqrt(pi);
    if (falls) {
        const f64 end = 0.5 * one * exp(-far);
        return {end / scale * (values[0] + values[1]), -end * scale * (slopes[0] + slopes[1])};
    }
    const f64 sine = sin(far - 0.25 * pi), cosine = cos(far - 0.25 * pi);
    return {one / scale * (cosine * values[0] + sine * values[1]), one * scale * (sine * slopes[0] - cosine * slopes[1])};
}
DEVICE Parts airy_parts(T x) {
    const T none = isinf(x) && x < 0 ? T(NO_NUMBER) : T(0);
    if (isinf(x)) return {T(0), none, none, none};
    const f64 wide = x;
    const AiryPair a = fabs(wide) < 9.5 ? airy_near(wide) : airy_far(wide);
    return {T(a.value), T(a.slope), T(wide * a.value), T(a.value + wide * a.slope)};
}
// A number times a power of two. What is not finite stays, as 0 does.
DEVICE T mantissa(T x) {
    int power = 0;
    return x == 0 || x - x != 0 ? x : frexp(x, &power);
}
DEVICE T binary_exponent(T x) {
    int power = 0;
    if (x == 0 || x - x != 0) return T(0);
    frexp(x, &power);
    return T(power);
}
// e^(x²) erfc(x) and derivatives: of large x by its asymptotic series, where the recurrence of the others would cancel.
struct ErfcxParts { f64 at[4]; };
DEVICE ErfcxParts erfcx_of(f64 x) {
    ErfcxParts e = {{0, 0, 0, 0}};
    if (!(x >= 6)) {
        e.at[0] = exp(x * x) * erfc(x);
        e.at[1] = 2 * x * e.at[0] - 1.1283791670955125739;
        e.at[2] = 2 * (e.at[0] + x * e.at[1]);
        e.at[3] = 4 * e.at[1] + 2 * x * e.at[2];
        return e;
    }
    const f64 one = 1 / x;
    f64 term = 0.56418958354775628695 * one;
    for (int k = 0; k < 26; k++) {
        f64 slope = term;
        for (int order = 0; order < 4; order++) {
            e.at[order] += slope;
            slope *= -f64(2 * k + 1 + order) * one;
        }
        term *= -0.5 * (2 * k + 1) * one * one;
    }
    return e;
}
DEVICE Parts erfcx_parts(T x) {
    const ErfcxParts e = erfcx_of(x);
    return {T(e.at[0]), T(e.at[1]), T(e.at[2]), T(e.at[3])};
}
// The logarithm of the standard normal's cumulative distribution, and derivatives.
DEVICE ErfcxParts log_ndtr_of(f64 x) {
    const f64 half = 0.70710678118654752440;
    if (x < -1) {
        const ErfcxParts e = erfcx_of(-x * half);
        const f64 h = 1.1283791670955125739 * half / e.at[0], first = e.at[1] / e.at[0], second = e.at[2] / e.at[0];
        const f64 r = -first * half, slope = 0.5 * (second - first * first);
        return {{log(0.5 * e.at[0]) - 0.5 * x * x, h, -h * r, h * (r * r - slope)}};
    }
    const f64 above = 0.5 * erfc(x * half), h = 0.39894228040143267794 * exp(-0.5 * x * x) / (1 - above), r = h == 0 ? 0 : x + h;
    return {{log1p(-above), h, -h * r, h * (r * r + h * r - 1)}};
}
DEVICE Parts log_ndtr_parts(T x) {
    const ErfcxParts l = log_ndtr_of(x);
    return {T(l.at[0]), T(l.at[1]), T(l.at[2]), T(l.at[3])};
}
// What has so much of the standard normal below it: Newton's method, of which the logarithm's bend makes each step end on the same side.
DEVICE T ndtri(T x) {
    const f64 p = x, tail = p < 1 - p ? p : 1 - p;
    if (tail >= 0.25) return T(1.4142135623730950488 * erfinv(2 * p - 1));
    if (!(tail > 0)) return T(tail == 0 ? (p - 0.5) / fabs(tail) : tail - tail + log(tail));
    const f64 end = log(tail);
    f64 y = -sqrt(-2 * end);
    for (int i = 0; i < 6; i++) {
        const ErfcxParts l = log_ndtr_of(y);
        y -= (l.at[0] - end) / l.at[1];
    }
    return T(p < 0.5 ? y : -y);
}
// A derivative of a Bessel function: half the differences of those of the orders beside, again and again.
DEVICE f64 cylinder(bool first, int n, int order, f64 x) {
    f64 sum = 0, choices = 1;
    for (int i = 0; i <= order; i++) {
        const int beside = n - order + 2 * i, m = beside < 0 ? -beside : beside;
        sum += (beside < 0 && m % 2 == 1 ? -choices : choices) * (first ? jn(m, x) : yn(m, x));
        choices *= -f64(order - i) / (i + 1);
    }
    return sum / (1 << order);
}
DEVICE T bessel_first(int n, int order, T x) { return T(cylinder(true, n, order, x)); }
DEVICE T bessel_second(int n, int order, T x) { return T(cylinder(false, n, order, x)); }
// What a function of a magnitude is at x, if it is odd or even as a number is.
DEVICE f64 odd(int number, f64 x, f64 of_size) { return number % 2 == 1 && x < 0 ? -of_size : of_size; }
// A derivative of e^-x times the modified Bessel function of order n, term by term of its asymptotic series, which is exact from 25 on.
DEVICE f64 bessel_far(int n, int order, f64 x) {
    f64 term = 1, sum = 0;
    for (int k = 0; k < 30; k++) {
        f64 slope = 1;
        for (int i = 0; i < order; i++) slope *= -(k + i) - 0.5;
        sum += slope * term;
        term *= f64((2 * k + 1) * (2 * k + 1) - 4 * n * n) / (8.0 * (k + 1) * x);
    }
    return sum * falling_power(x, order) / sqrt(6.28318530717958647693 * x);
}
// e^-x times the function of x from 0 on.
DEVICE f64 bessel_near_or_far(int n, f64 x) {
    if (x >= 25) return bessel_far(n, 0, x);
    const f64 half = 0.5 * x;
    f64 term = 1;
    for (int i = 1; i <= n; i++) term *= half / i;
    f64 sum = term;
    for (int k = 1; k < 60; k++) {
        term *= half * half / (k * (k + n));
        sum += term;
    }
    return sum * exp(-x);
}
// e^-x times a derivative of it: a mean of the functions of the orders beside.
DEVICE f64 bessel_slope(int n, int order, f64 x) {
    f64 sum = 0, choices = 1;
    for (int i = 0; i <= order; i++) {
        const int beside = n - order + 2 * i;
        sum += choices * bessel_near_or_far(beside < 0 ? -beside : beside, x);
        choices *= f64(order - i) / (i + 1);
    }
    return sum / (1 << order);
}
// A derivative of the modified Bessel function.
DEVICE f64 bessel(int n, int order, f64 x) {
    const f64 size = fabs(x), half = exp(0.5 * size);
    if (size > 800) return odd(n + order, x, exp(size));
    return odd(n + order, x, bessel_slope(n, order, size) * half * half);
}
// A derivative of e^-|x| times it; at 0 that of the magnitude counts as 0.
DEVICE f64 scaled_bessel(int n, int order, f64 x) {
    const f64 size = fabs(x);
    if (size >= 25) return odd(n + order, x, bessel_far(n, order, size));
    f64 sum = 0, choices = 1;
    for (int j = 0; j <= order; j++) {
        const f64 sign = j == order ? 1 : size == 0 ? 0 : (order - j) % 2 == 1 ? -1 : 1;
        sum += choices * sign * bessel_slope(n, j, size);
        choices *= f64(order - j) / (j + 1);
    }
    return odd(n + order, x, sum);
}
// e^x times the modified Bessel function of the second kind: by powers of x and its logarithm, by an integral, or for large x term by term of
// its asymptotic series.
DEVICE f64 falling_near(int n, f64 x) {
    const f64 euler = 0.57721566490153286061, half = 0.5 * x, end = log(half);
    f64 digammas = n - 2 * euler, term = 1, sum = 0;
    for (int k = 1; k < 20; k++) {
        sum += term * (0.5 * digammas - end);
        term *= half * half / (k * (k + n));
        digammas += 1.0 / k + 1.0 / (k + n);
    }
    return n == 0 ? sum : 1 / x - half * sum;
}
DEVICE f64 falling_integral(int n, f64 x) {
    f64 sum = 0.5;
    for (int i = 1; i < 34; i++) {
        const f64 t = 0.125 * i, half = sinh(0.5 * t);
        sum += exp(-2 * x * half * half) * cosh(n * t);
    }
    return 0.125 * sum;
}
DEVICE f64 falling_far(int n, int order, f64 x) {
    f64 term = 1, sum = 0;
    for (int k = 0; k < 30; k++) {
        f64 slope = 1;
        for (int i = 0; i < order; i++) slope *= -(k + i) - 0.5;
        sum += slope * term;
        term *= f64(4 * n * n - (2 * k + 1) * (2 * k + 1)) / (8.0 * (k + 1) * x);
    }
    return sum * falling_power(x, order) * sqrt(1.57079632679489661923 / x);
}
// Of orders 0 to 4, of which each follows from the two before.
struct Orders { f64 at[5]; };
DEVICE Orders falling_orders(f64 x) {
    Orders orders;
    for (int n = 0; n < 2; n++) orders.at[n] = x >= 25 ? falling_far(n, 0, x) : x >= 2 ? falling_integral(n, x) : falling_near(n, x) * exp(x);
    for (int n = 1; n < 4; n++) orders.at[n + 1] = orders.at[n - 1] + 2 * n / x * orders.at[n];
    return orders;
}
// A derivative: a mean of the functions of the orders beside.
DEVICE f64 falling_slope(const Orders& of, int n, int order) {
    f64 sum = 0, choices = 1;
    for (int i = 0; i <= order; i++) {
        const int beside = n - order + 2 * i;
        sum += choices * of.at[beside < 0 ? -beside : beside];
        choices *= f64(order - i) / (i + 1);
    }
    return (order % 2 == 0 ? sum : -sum) / (1 << order);
}
DEVICE T bessel_falling(int n, int order, f64 x) {
    if (!(x >= 0)) return T(NO_NUMBER);
    if (x == 0) return T(order % 2 == 0 ? INFINITE : -INFINITE);
    return T(falling_slope(falling_orders(x), n, order) * exp(-x));
}
DEVICE T scaled_bessel_falling(int n, int order, f64 x) {
    if (!(x > 0)) return bessel_falling(n, order, x);
    if (x >= 25) return T(falling_far(n, order, x));
    const Orders orders = falling_orders(x);
    f64 sum = 0, choices = 1;
    for (int j = 0; j <= order; j++) {
        sum += choices * falling_slope(orders, n, j);
        choices *= f64(order - j) / (j + 1);
    }
    return T(sum);
}
