// Maps of one number. T: the type. FORMULA: a function of x and two numbers; SCALED: its value is multiplied by another.

struct Unary { View x, g, y; f64 a, b; };

KERNEL(unary, Unary) {
    const T a = (T)p.a, b = (T)p.b;
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const T x = element<T>(p.x, place(p.x, i));
        T f = FORMULA(x, a, b);
#ifdef SCALED
        f = f * element<T>(p.g, place(p.g, i));
#endif
        element<T>(p.y, place(p.y, i)) = f;
    }
}
