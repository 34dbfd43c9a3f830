// Maps of two numbers. S: the stored type; T: that of the arithmetic, u8 for truth values; U: as many bits without a sign; R: the result's. FORMULA: an expression of a
// and b, or one of the words below. WHOLE: T is an integer. GRAIN: how many elements a thread takes at once.

struct Binary { View a, b, y; };
// A zero is above its negative.
#define larger (a == b && a == 0 ? a + b : a != a || a > b ? a : b)
#define smaller (a == b && a == 0 ? -(-a - b) : a != a || a < b ? a : b)

#ifdef WHOLE
// Arithmetic wraps: it is done without signs. By 0 quotients and remainders are 0.
#define BITS ((i64)(8 * sizeof(T)))
DEVICE bool least_by_minus_one(T a, T b) { return (T)-1 < 0 && b == (T)-1 && a == (T)((U)1 << (BITS - 1)); }
DEVICE T floor_div(T a, T b) {
    if (b == 0) return 0;
    if (least_by_minus_one(a, b)) return a;
    const T q = (T)(a / b);
    return (T)(q * b) != a && (a < 0) != (b < 0) ? (T)(q - 1) : q;
}
DEVICE T remainder_of(T a, T b) {
    if (b == 0 || least_by_minus_one(a, b)) return 0;
    const T r = (T)(a % b);
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
DEVICE T fmod_of(T a, T b) { return b == 0 || least_by_minus_one(a, b) ? (T)0 : (T)(a % b); }
DEVICE T power_of(T a, T b) {
    if (b < 0) return a == 1 || (a == (T)-1 && !(b & 1)) ? (T)1 : a == (T)-1 ? a : (T)0;
    // In 64 bits, so that narrow types are not widened to signed ones.
    u64 result = 1, square = (u64)a;
    for (T left = b; left > 0; left = (T)(left >> 1)) {
        if (left & 1) result *= square;
        square *= square;
    }
    return (T)result;
}
// By Euclid's remainders in 64 bits, of which the size is taken in the end: the least integer has none.
DEVICE i64 size_of(i64 a) { return a < 0 ? (i64)(0 - (u64)a) : a; }
DEVICE T gcd_of(T first, T second) {
    i64 a = first, b = second;
    while (b != 0) {
        const i64 rest = b == -1 ? 0 : a % b;
        a = b;
        b = rest;
    }
    return (T)size_of(a);
}
DEVICE T lcm_of(T a, T b) {
    if (a == 0 || b == 0) return 0;
    const i64 shared = gcd_of(a, b), share = shared == -1 ? (i64)(0 - (u64)a) : (i64)a / shared;
    return (T)size_of((i64)((u64)share * (u64)b));
}
DEVICE T shift_left(T a, T b) { return b < 0 || (i64)b >= BITS ? (T)0 : (T)((U)a << b); }
DEVICE T shift_right(T a, T b) { return b < 0 || (i64)b >= BITS ? (a < 0 ? (T)-1 : (T)0) : (T)(a >> b); }
#else
// From the exact remainder, as the host's.
DEVICE T floor_div(T a, T b) {
    if (b == 0) return a / b;
    const T r = fmod(a, b);
    T q = (a - r) / b;
    if (r != 0 && (r < 0) != (b < 0)) q = q - 1;
    if (q == 0) return (a / b) * 0;
    const T f = floor(q);
    return q - f > (T)0.5 ? f + 1 : f;
}
DEVICE T remainder_of(T a, T b) {
    const T r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
DEVICE T fmod_of(T a, T b) { return fmod(a, b); }
DEVICE T xlogy(T a, T b) { return a == 0 && b == b ? (T)0 : a * log(b); }
// In steps of the stored type: of 16 bits, up or down in the order of sizes.
DEVICE f64 next_after(f64 a, f64 b) { return nextafter(a, b); }
DEVICE f32 next_after(f32 a, f32 b) { return nextafter(a, b); }
template <class F> DEVICE f32 next_after(F from, F to) {
    const f32 a = widen(from), b = widen(to);
    if (!(a != b) || a != a || b != b) return a == b ? b : a + b;
    F next;
    next.bits = a == 0 ? (a < b ? 1 : 0x8001) : from.bits + ((a > 0) == (a < b) ? 1 : -1);
    return widen(next);
}
// Equal infinities have no difference.
DEVICE bool same_infinity(T a, T b) { return a == b && a - b != a - b; }
DEVICE T logaddexp(T a, T b) { return same_infinity(a, b) ? a : larger + log1p(exp(-fabs(a - b))); }
DEVICE T logaddexp2(T a, T b) {
    return same_infinity(a, b) ? a : larger + log1p(exp2(-fabs(a - b))) / (T)0.69314718055994530942;
}
#endif

DEVICE R joined(S left, S right) {
    const T a = widen(left), b = widen(right);
    return RESULT(FORMULA);
}

KERNEL(binary, Binary) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads())
        element<R>(p.y, place(p.y, i)) = joined(element<S>(p.a, place(p.a, i)), element<S>(p.b, place(p.b, i)));
}

// Where all lie one behind the other; an operand of one element goes with all of the other.
typedef Pack<S, GRAIN> Grain;
DEVICE Grain grain(const View& v, i64 i) {
    if (v.strides[0]) return element<Grain>(v, i);
    Grain same;
    for (i32 k = 0; k < GRAIN; k++) same.at[k] = element<S>(v, 0);
    return same;
}
KERNEL(binary_line, Binary) {
    const i64 n = numel(p.y), grains = n / GRAIN;
    for (i64 i = first_thread(); i < grains; i += threads()) {
        const Grain a = grain(p.a, i), b = grain(p.b, i);
        Pack<R, GRAIN> y;
        for (i32 k = 0; k < GRAIN; k++) y.at[k] = joined(a.at[k], b.at[k]);
        element<Pack<R, GRAIN>>(p.y, i) = y;
    }
    for (i64 i = grains * GRAIN + first_thread(); i < n; i += threads())
        element<R>(p.y, i) = joined(element<S>(p.a, i * p.a.strides[0]), element<S>(p.b, i * p.b.strides[0]));
}
