// Maps of one number. S: the stored type; T: that of the arithmetic; R: the result's. FORMULA: a function of x and two numbers; SCALED: its
// value is multiplied by another. GRAIN: how many elements a thread takes at once, where all lie one behind the other.

struct Unary { View x, g, y; f64 a, b; };

DEVICE R mapped(const Unary& p, S x, S g) {
    const T f = FORMULA(widen(x), (T)p.a, (T)p.b);
#ifdef SCALED
    return As<R>::of(f * widen(g));
#else
    return As<R>::of(f);
#endif
}

KERNEL(unary, Unary) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const S x = element<S>(p.x, place(p.x, i));
#ifdef SCALED
        const S g = element<S>(p.g, place(p.g, i));
#else
        const S g = x;
#endif
        element<R>(p.y, place(p.y, i)) = mapped(p, x, g);
    }
}

typedef Pack<S, GRAIN> Grain;
KERNEL(unary_line, Unary) {
    const i64 n = numel(p.y), grains = n / GRAIN;
    for (i64 i = first_thread(); i < grains; i += threads()) {
        const Grain x = element<Grain>(p.x, i);
#ifdef SCALED
        const Grain g = element<Grain>(p.g, i);
#else
        const Grain g = x;
#endif
        Pack<R, GRAIN> y;
        for (i32 k = 0; k < GRAIN; k++) y.at[k] = mapped(p, x.at[k], g.at[k]);
        element<Pack<R, GRAIN>>(p.y, i) = y;
    }
    for (i64 i = grains * GRAIN + first_thread(); i < n; i += threads())
        element<R>(p.y, i) = mapped(p, element<S>(p.x, i), element<S>(p.g, i));
}
