// Functions that are sums of series, in double precision: those of the host's special.rs, under the same names.

#define INFINITE at_bits<f64>(0x7ff0000000000000ull)
#define NO_NUMBER at_bits<f64>(0x7ff8000000000000ull)
// B(2n) / (2n)! of the Bernoulli numbers: times what each is given, summed from the first on.
struct Bernoulli { f64 at[12]; };
DEVICE Bernoulli bernoulli() {
    return {{8.333333333333333e-2, -1.388888888888889e-3, 3.306878306878307e-5, -8.267195767195768e-7, 2.08767569878681e-8,
        -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225827e-13, 8.586062056277845e-15, -2.174868698558062e-16,
        5.5090028283602295e-18, -1.3954464685812522e-19}};
}
// Hurwitz's zeta function above 0, by the first terms, and Euler's and Maclaurin's sum of the others.
DEVICE f64 zeta_above(f64 s, f64 q) {
    if (isinf(s)) return pow(q, -s);
    f64 at = q, sum = 0;
    for (int i = 0; i < 10; i++) {
        const f64 term = pow(at, -s);
        sum += term;
        if (term < 1.1102230246251565e-16 * sum) return sum;
        at += 1;
    }
    const Bernoulli series = bernoulli();
    f64 power = pow(at, -s), factor = s;
    sum += pow(at, 1 - s) / (s - 1) + 0.5 * power;
    for (int n = 1; n <= 12; n++) {
        power /= at;
        sum += series.at[n - 1] * factor * power;
        power /= at;
        factor *= (2 * n + s) * (2 * n + s - 1);
    }
    return sum;
}
DEVICE f64 zeta(f64 s, f64 q) {
    if (s == 1) return INFINITE;
    if (!(s >= 1) || q != q) return NO_NUMBER;
    if (q > 0) return zeta_above(s, q);
    if (q == floor(q)) return INFINITE;
    if (s != floor(s)) return NO_NUMBER;
    const f64 near = q - rint(q), sign = isinf(s) || fmod(s, 2.0) == 0 ? 1 : -1;
    const f64 beyond = zeta_above(s, 1 - near) - zeta_above(s, 1 - q);
    return pow(near, -s) + zeta_above(s, 1 + near) + sign * beyond;
}

// m - ln(1 + m), which keeps its digits near 0.
DEVICE f64 less_its_log(f64 m) {
    if (fabs(m) >= 0.5) return m - log1p(m);
    const f64 z = m / (2 + m);
    f64 power = z * z * z, sum = 0;
    for (int k = 1; k < 20; k++) {
        sum += power / (2 * k + 1);
        power *= z * z;
    }
    return m * z - 2 * sum;
}
// x^a e^-x / gamma(a + 1), of large a by Stirling's series.
DEVICE f64 gamma_factor(f64 a, f64 x) {
    if (a < 20) return exp(a * log(x) - x - lgamma(a + 1));
    const f64 square = 1 / (a * a);
    f64 sum = -691.0 / 360360;
    sum = sum * square + 1.0 / 1188;
    sum = sum * square - 1.0 / 1680;
    sum = sum * square + 1.0 / 1260;
    sum = sum * square - 1.0 / 360;
    sum = sum * square + 1.0 / 12;
    return exp(-a * less_its_log((x - a) / a) - sum / a) / sqrt(6.28318530717958647693 * a);
}
// Of the lower function, in powers of x.
DEVICE f64 gamma_series(f64 a, f64 x) {
    f64 sum = 1, term = 1, below = a;
    for (int i = 0; i < 500; i++) {
        below += 1;
        term *= x / below;
        sum += term;
        if (term <= 1.1102230246251565e-16 * sum) break;
    }
    return sum * gamma_factor(a, x);
}
// Of the upper function, by Lentz's method.
DEVICE f64 not_zero(f64 x) { return fabs(x) < 1e-300 ? 1e-300 : x; }
DEVICE f64 gamma_fraction(f64 a, f64 x) {
    f64 b = x + 1 - a, c = 1e300, d = 1 / not_zero(b), fraction = d;
    for (int i = 1; i < 500; i++) {
        const f64 above = -i * (i - a);
        b += 2;
        d = 1 / not_zero(above * d + b);
        c = not_zero(b + above / c);
        fraction *= d * c;
        if (fabs(d * c - 1) < 2.220446049250313e-16) break;
    }
    return a * fraction * gamma_factor(a, x);
}
// The logarithm of gamma(1 + a), of small a by its series.
DEVICE f64 ln_gamma_1p(f64 a) {
    if (a > 0.05) return lgamma(1 + a);
    const f64 series[13] = {0.8224670334241132, -0.4006856343865314, 0.27058080842778454, -0.20738555102867398, 0.1695571769974082,
        -0.1440498967688461, 0.12550966952474304, -0.11133426586956469, 0.1000994575127818, -0.09095401714582904, 0.083353840546109,
        -0.0769325164113522, 0.07143294629536133};
    f64 sum = 0;
    for (int k = 12; k >= 0; k--) sum = (sum + series[k]) * a;
    return a * (sum - 0.5772156649015329);
}
// The upper function of small numbers.
DEVICE f64 gamma_of_small(f64 a, f64 x) {
    f64 factor = 1, sum = 0;
    for (int n = 1; n < 60; n++) {
        factor *= -x / n;
        const f64 term = factor / (a + n);
        sum += term;
        if (fabs(term) <= 2.2e-17 * fabs(sum)) break;
    }
    const f64 size = a * log(x) - ln_gamma_1p(a);
    return -expm1(size) - exp(size) * a * sum;
}
// Around large concentrations, by Temme's expansion.
DEVICE f64 gamma_around(bool is_lower, f64 a, f64 x) {
    const f64 series[27] = {1, -0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073,
        0.0003527336860670194, -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06, -1.85406221071516e-06,
        8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09, 1.0261809784240309e-08, -4.382036018453353e-09,
        9.14769958223679e-10, -2.5514193994946248e-11, -5.830772132550426e-11, 2.4361948020667415e-11, -5.0276692801141755e-12,
        1.1004392031956135e-13, 3.371763262400985e-13, -1.392388722418162e-13, 2.8534893807047445e-14, -5.139111834242572e-16,
        -1.9752288294349442e-15, 8.099521156704561e-16};
    const f64 m = (x - a) / a, half = a * less_its_log(m), root = m < 0 ? -sqrt(half) : sqrt(half);
    const f64 number = root * sqrt(2 / a);
    f64 sum = 0, next = series[25], after = series[26];
    for (int n = 25; n >= 1; n--) {
        sum = sum * number + next;
        const f64 before = series[n] + (n + 1) * after / a;
        after = next;
        next = before;
    }
    const f64 tail = exp(-half) / sqrt(6.28318530717958647693 * a) * (sum * number + next) / (1 + after / a);
    return is_lower ? 0.5 * erfc(-root) - tail : 0.5 * erfc(root) + tail;
}
// The lower (or the upper) incomplete gamma function over the whole one.
DEVICE f64 incomplete_gamma(bool is_lower, f64 a, f64 x) {
    if (!(a >= 0 && x >= 0) || (a == 0 && x == 0) || (isinf(a) && isinf(x))) return NO_NUMBER;
    if (a == 0 || isinf(x)) return is_lower ? 1 : 0;
    if (x == 0 || isinf(a)) return is_lower ? 0 : 1;
    if (a >= 30 && fabs(x - a) < 0.4 * a) return gamma_around(is_lower, a, x);
    const bool is_far = x <= 0.5 ? -0.4 / log(x) < a : 1.1 * x < a, is_large = x > 1.1;
    if (!is_large && !is_far && !is_lower) return gamma_of_small(a, x);
    const bool by_upper = is_large && x > a;
    const f64 found = by_upper ? gamma_fraction(a, x) : gamma_series(a, x);
    return by_upper == is_lower ? 1 - found : found;
}
