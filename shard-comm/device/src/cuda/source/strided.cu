// Fills, copies, conversions and folds of strided views: many pieces in one launch.
//
// SRC, DST: element types. OP: how values combine, for fold and reduce. WIDTH: elements of a group that combine at once.

#define MAX_AXES 8
#define MAX_PIECES 15
#define MAX_TERMS 64

struct Axis { i64 extent, src, dst; };
// `count` threads each visit `turns` elements one after the other: the elements of the axes from `serial` on. Along those axes
// the destination visits an element more than once.
struct Piece { u64 src; i64 src_at, dst_at, count; i32 axes, serial; i64 turns; Axis axis[MAX_AXES]; };
struct Pieces { u64 dst; i64 threads; i32 pieces, pad; Piece piece[MAX_PIECES]; };

// Adds to two places the steps that lead to an index along the axes [from, to).
DEVICE void step(const Piece& piece, i32 from, i32 to, i64 index, i64& s, i64& d) {
    if (from == to) return;
    for (i32 a = to - 1; a > from; a--) {
        const Axis& axis = piece.axis[a];
        // 32-bit division is several times faster, and nearly always enough.
        i64 rest = ((index | axis.extent) >> 32) == 0 ? (i64)((u32)index / (u32)axis.extent) : index / axis.extent;
        i64 i = index - rest * axis.extent;
        s += i * axis.src;
        d += i * axis.dst;
        index = rest;
    }
    s += index * piece.axis[from].src;
    d += index * piece.axis[from].dst;
}

// Runs f(source index, destination index, piece) over all elements of all pieces.
template <class F> DEVICE void each(const Pieces& p, F f) {
    for (i64 t = first_thread(); t < p.threads; t += threads()) {
        i64 index = t;
        i32 k = 0;
        while (index >= p.piece[k].count) index -= p.piece[k++].count;
        const Piece& piece = p.piece[k];
        i64 s = piece.src_at, d = piece.dst_at;
        step(piece, 0, piece.serial, index, s, d);
        for (i64 turn = 0; turn < piece.turns; turn++) {
            i64 si = s, di = d;
            step(piece, piece.serial, piece.axes, turn, si, di);
            f(si, di, piece);
        }
    }
}

#ifdef COPY
KERNEL(copy, Pieces) {
    each(p, [&](i64 s, i64 d, const Piece& piece) { ((DST*)p.dst)[d] = ((const SRC*)piece.src)[s]; });
}
#endif

#ifdef FILL
struct Fill { u64 value; Pieces pieces; };
KERNEL(fill, Fill) {
    DST value = at_bits<DST>(p.value);
    each(p.pieces, [&](i64, i64 d, const Piece&) { ((DST*)p.pieces.dst)[d] = value; });
}
#endif

#ifdef CONVERT
template <class T> DEVICE bool is_true(T v) { return v != 0; }
DEVICE bool is_true(b8 v) { return v.byte != 0; }
DEVICE bool is_true(f16 v) { return (v.bits & 0x7fff) != 0; }
DEVICE bool is_true(bf16 v) { return (v.bits & 0x7fff) != 0; }

// To integers: towards zero, into the type's range, NaN to 0.
template <class I> DEVICE I saturate(f64 v, f64 low, f64 high, I least, I most) {
    if (v != v) return 0;
    if (v <= low) return least;
    if (v >= high) return most;
    return (I)v;
}
template <class I> DEVICE I clamp(i64 v, i64 least, i64 most) { return (I)(v < least ? least : v > most ? most : v); }

DEVICE void to(f64 v, f64* r) { *r = v; }
DEVICE void to(f64 v, f32* r) { *r = (f32)v; }
DEVICE void to(f64 v, f16* r) { *r = As<f16>::of(v); }
DEVICE void to(f64 v, bf16* r) { *r = As<bf16>::of(v); }
DEVICE void to(f64 v, i64* r) { *r = saturate<i64>(v, -9223372036854775808.0, 9223372036854775808.0, (i64)(1ull << 63), (i64)(~0ull >> 1)); }
DEVICE void to(f64 v, i32* r) { *r = saturate<i32>(v, -2147483648.0, 2147483647.0, (i32)0x80000000u, 0x7fffffff); }
DEVICE void to(f64 v, u8* r) { *r = saturate<u8>(v, 0.0, 255.0, (u8)0, (u8)255); }
DEVICE void to(f64 v, b8* r) { r->byte = v != 0; }
DEVICE void to(i64 v, f64* r) { *r = (f64)v; }
DEVICE void to(i64 v, f32* r) { *r = (f32)v; }
DEVICE void to(i64 v, f16* r) { *r = As<f16>::of((f32)v); }
DEVICE void to(i64 v, bf16* r) { *r = As<bf16>::of((f32)v); }
DEVICE void to(i64 v, i64* r) { *r = v; }
DEVICE void to(i64 v, i32* r) { *r = clamp<i32>(v, -2147483648ll, 2147483647ll); }
DEVICE void to(i64 v, u8* r) { *r = clamp<u8>(v, 0, 255); }
DEVICE void to(i64 v, b8* r) { r->byte = v != 0; }

template <class T> struct Number { typedef f64 type; static DEVICE f64 of(T v) { return as_f64(v); } };
template <> struct Number<i64> { typedef i64 type; static DEVICE i64 of(i64 v) { return v; } };
template <> struct Number<i32> { typedef i64 type; static DEVICE i64 of(i32 v) { return v; } };
template <> struct Number<u8> { typedef i64 type; static DEVICE i64 of(u8 v) { return v; } };
template <> struct Number<b8> { typedef i64 type; static DEVICE i64 of(b8 v) { return v.byte != 0; } };

KERNEL(convert, Pieces) {
    each(p, [&](i64 s, i64 d, const Piece& piece) { to(Number<SRC>::of(((const SRC*)piece.src)[s]), &((DST*)p.dst)[d]); });
}
#endif

#ifdef OP
typedef Wide<DST>::type W;
enum { SUM, PROD, MAX, MIN, ANY, ALL, MOMENTS, MAX_SUM_EXP, ARG_MAX, ARG_MIN };

template <class T> DEVICE T add(T a, T b) { return a + b; }
template <class T> DEVICE T mul(T a, T b) { return a * b; }
// Sums and products of integers wrap.
DEVICE i64 add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE i64 mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEVICE i32 add(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE i32 mul(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
// +0 is above -0; of two zeros of different sign the sum is +0.
template <class T> DEVICE T greater(T a, T b) { return a == b && a == 0 ? a + b : a != a || a > b ? a : b; }
template <class T> DEVICE T lesser(T a, T b) { return a == b && a == 0 ? -(-a - b) : a != a || a < b ? a : b; }
template <class T> DEVICE bool nan(T a) { return a != a; }
template <class T> DEVICE bool truth(T v) { return v != 0; }
template <class T> DEVICE T one(bool v) { return (T)v; }
template <> DEVICE b8 one<b8>(bool v) { b8 r; r.byte = v; return r; }
DEVICE bool truth(b8 v) { return v.byte != 0; }
DEVICE b8 add(b8 a, b8 b) { return one<b8>(truth(a) || truth(b)); }
DEVICE b8 mul(b8 a, b8 b) { return one<b8>(truth(a) && truth(b)); }
DEVICE b8 greater(b8 a, b8 b) { return add(a, b); }
DEVICE b8 lesser(b8 a, b8 b) { return mul(a, b); }

template <class T> DEVICE void lower(T* a, const T* b) { if (b[1] < a[1]) { a[0] = b[0]; a[1] = b[1]; } }
// The better of two (value, index) pairs; NaN is best, and the lower index wins ties.
template <class T> DEVICE void better(T* a, const T* b, bool most) {
    if (nan(a[0]) || nan(b[0])) {
        if (nan(a[0]) && nan(b[0])) lower(a, b);
        else if (nan(b[0])) { a[0] = b[0]; a[1] = b[1]; }
    } else if (a[0] == b[0]) lower(a, b);
    else if (most ? b[0] > a[0] : b[0] < a[0]) { a[0] = b[0]; a[1] = b[1]; }
}

// Combines a group into another.
DEVICE void combine(W* a, const W* b) {
#if OP == 0
    a[0] = add(a[0], b[0]);
#elif OP == 1
    a[0] = mul(a[0], b[0]);
#elif OP == 2
    a[0] = greater(a[0], b[0]);
#elif OP == 3
    a[0] = lesser(a[0], b[0]);
#elif OP == 4
    a[0] = one<W>(truth(a[0]) || truth(b[0]));
#elif OP == 5
    a[0] = one<W>(truth(a[0]) && truth(b[0]));
#elif OP == 6
    if (b[0] == 0) return;
    if (a[0] == 0) { a[0] = b[0]; a[1] = b[1]; a[2] = b[2]; return; }
    W delta = b[1] - a[1], count = a[0] + b[0];
    if (delta - delta != 0) {
        // Means that are not finite, or as large as numbers get.
        W all = a[1] * (a[0] / count) + b[1] * (b[0] / count);
        a[2] = a[2] + b[2] + (all - all == 0 ? delta * delta : delta - delta);
        a[1] = all;
        a[0] = count;
        return;
    }
    a[1] = a[1] + delta * (b[0] / count);
    a[2] = a[2] + b[2] + delta * delta * (a[0] * b[0] / count);
    a[0] = count;
#elif OP == 7
    W m = greater(a[0], b[0]);
    // Equal maxima need no rescaling, and infinite ones must not become inf - inf.
    a[1] = (a[0] == m ? a[1] : a[1] * exp(a[0] - m)) + (b[0] == m ? b[1] : b[1] * exp(b[0] - m));
    a[0] = m;
#elif OP == 8
    better(a, b, true);
#else
    better(a, b, false);
#endif
}

// The innermost axis counts groups; the elements of a group lie side by side.
KERNEL(fold, Pieces) {
    each(p, [&](i64 s, i64 d, const Piece& piece) {
        W a[WIDTH], b[WIDTH];
        for (i32 k = 0; k < WIDTH; k++) {
            a[k] = widen(((const DST*)p.dst)[d + k]);
            b[k] = widen(((const SRC*)piece.src)[s + k]);
        }
        combine(a, b);
        for (i32 k = 0; k < WIDTH; k++) ((DST*)p.dst)[d + k] = As<DST>::of(a[k]);
    });
}

// dst = terms combined by the binary tree over their numbers. The piece's own source is the first; the others lie `delta` elements
// from it.
struct Term { u64 src; i64 at; };
struct Terms { u64 dst, more; i64 threads; i32 terms, pad; Piece piece; Term term[MAX_TERMS]; };
DEVICE void load(const Terms& p, i32 n, i64 s, W* to) {
    const Term term = n < MAX_TERMS ? p.term[n] : ((const Term*)p.more)[n - MAX_TERMS];
    for (i32 k = 0; k < WIDTH; k++) to[k] = widen(((const DST*)term.src)[term.at + s + k]);
}
KERNEL(reduce, Terms) {
    for (i64 t = first_thread(); t < p.threads; t += threads()) {
        i64 s = 0, d = p.piece.dst_at;
        step(p.piece, 0, p.piece.axes, t, s, d);
        // The sums of finished subtrees, the largest first. Few terms stay in registers.
        W sum[32][WIDTH], next[WIDTH];
        load(p, 0, s, sum[0]);
        if (p.terms <= 3) {
            for (i32 n = 1; n < p.terms; n++) {
                load(p, n, s, next);
                combine(sum[0], next);
            }
        } else {
            i32 top = 1;
            for (i32 n = 1; n < p.terms; n++, top++) {
                load(p, n, s, sum[top]);
                for (i32 done = n; done & 1; done >>= 1, top--) combine(sum[top - 1], sum[top]);
            }
            for (top--; top > 0; top--) combine(sum[top - 1], sum[top]);
        }
        for (i32 k = 0; k < WIDTH; k++) ((DST*)p.dst)[d + k] = As<DST>::of(sum[0][k]);
    }
}
#endif
